"""Read the bodies of requests in OpenAI's format.

Clients differ in many details, so reading is lenient where the meaning is clear: content is a
string, null or a list of parts, every member may be null, and unknown members are collected. A
value without a clear meaning gets an error with its path in the body, and nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import msgspec

from backend.errors import BadRequestError
from backend.generation.json_text import mapping, parse_json, sequence
from backend.generation.model import JsonForm, Tool, ToolCall, ToolChoice
from backend.generation.sampling import Sampling
from backend.openai_api.contracts import SentMessage, SentRole
from backend.openai_api.errors import InvalidParameterError
from backend.openai_api.images import ImageReader

BodyT = TypeVar("BodyT", bound=msgspec.Struct)

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Maximum size of a request with images, which are a third longer in base64."""
MAX_MESSAGES = 20_000
MAX_TEXT_CHARACTERS = 8_000_000
"""All texts of a request together. The largest context windows have about as many."""
MAX_TOOLS = 128
MAX_CHOICES = 8
MAX_STOP_SEQUENCES = 5
MAX_INPUTS = 2_048
MAX_INPUT_CHARACTERS = 2_000_000
"""All texts of a request for embeddings together."""
MAX_MODEL_NAME = 300

ToolMode = Literal["auto", "none", "required"]

_ROLES: Mapping[str, SentRole] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_REASONING_EFFORTS: Mapping[str, str | None] = {
    "auto": None,
    "min": "minimal",
    "max": "high",
    "xhigh": "high",
}
"""Values of other models and clients, and the closest one of `Sampling`."""
_FORM_NAME = JsonForm().name
_MIN_TOP_P = 1e-6
"""OpenAI accepts a `top_p` of 0, which most servers refuse."""
_MAX_SEED = 2**31 - 1
_MAX_OUTPUT_TOKENS = 1_000_000
_PLACE = re.compile(r"(?P<message>.*) - at `\$\.?(?P<path>[^`]*)`", re.DOTALL)
"""A message of msgspec about a value inside the body."""
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape in a JSON text: a pair of surrogates, half of a pair, or any other."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ImageAddress(msgspec.Struct, kw_only=True):
    """The image of a part. `url` is a `data:` URL in base64, or an https URL."""

    url: str
    detail: str | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message. Only `text` and `image_url` are supported."""

    type: str
    text: str | None = None
    image_url: ImageAddress | str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class SentToolCall(msgspec.Struct, kw_only=True):
    """A tool call that an earlier reply made."""

    function: CalledFunction
    id: str | None = None


class MessageBody(msgspec.Struct, kw_only=True):
    """A message. `developer` counts as `system`, and `function` as `tool`."""

    role: str
    content: str | list[ContentPart | str] | None = None
    name: str | None = None
    tool_calls: list[SentToolCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None


class FunctionBody(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(msgspec.Struct, kw_only=True):
    """A tool of the client. Only functions are supported."""

    type: str = "function"
    function: FunctionBody | None = None


class NamedFunction(msgspec.Struct, kw_only=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """The tool that the model must call."""

    function: NamedFunction
    type: str = "function"


class NamedSchema(msgspec.Struct, kw_only=True):
    schema: dict[str, Any]
    name: str | None = None
    strict: bool | None = None


class FormatBody(msgspec.Struct, kw_only=True):
    """The form of the reply: `text`, `json_object` or `json_schema`."""

    type: str
    json_schema: NamedSchema | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class SamplerBody(msgspec.Struct, kw_only=True):
    """The members of a request that both kinds of completions have."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    top_a: float | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None


class ChatCompletionBody(SamplerBody, kw_only=True):
    """A request for a chat completion. Other members are ignored, or passed on to the provider."""

    messages: list[MessageBody]
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ToolMode | NamedTool | None = None
    response_format: FormatBody | None = None


class TextCompletionBody(SamplerBody, kw_only=True):
    """A request to continue texts, for plain models only."""

    prompt: str | list[str]


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """A request for the vectors of texts."""

    model: str
    input: str | list[str]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRequest:
    """The part of a request that both kinds of completions have.

    Attributes:
        count: The number of choices (`n`).
        is_stream: True to send the reply as chunks.
        with_usage: True to end the stream with a chunk that reports usage.
        unknown: The members of the body that Talekeeper does not know.
    """

    model: str
    sampling: Sampling
    count: int = 1
    is_stream: bool = False
    with_usage: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletionRequest(SampledRequest):
    """A request for a chat completion.

    `format` is the JSON of the reply. None is text.
    """

    messages: Sequence[SentMessage]
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice()  # noqa: RUF009  # frozen
    format: JsonForm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCompletionRequest(SampledRequest):
    """A request to continue texts. Choice `i * count + k` is the `k`-th one of prompt `i`."""

    prompts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRequest:
    model: str
    texts: Sequence[str]
    is_base64: bool = False
    dimensions: int | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict[str, Any])


def parse_chat_request(data: bytes) -> ChatCompletionRequest:
    """Parse the body of `POST /v1/chat/completions`.

    Raises `InvalidParameterError`, and `BadRequestError` if the body is not a JSON object.
    """
    members = _decode(data)
    body = _convert(members, ChatCompletionBody)
    tools = [_read_tool(tool, place) for place, tool in enumerate(body.tools or ())]
    if len(tools) > MAX_TOOLS:
        raise InvalidParameterError("tools", f"Send at most {MAX_TOOLS} tools.")
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    named = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    return ChatCompletionRequest(
        **_read_samplers(
            body, limit=_read_limit(limit, named), reasoning_effort=body.reasoning_effort
        ),
        unknown=_find_unknown(members, ChatCompletionBody),
        messages=_read_messages(body.messages),
        tools=tools,
        tool_choice=_read_tool_choice(body.tool_choice, tools),
        format=_read_format(body.response_format),
    )


def parse_text_request(data: bytes) -> TextCompletionRequest:
    """Parse the body of `POST /v1/completions`. Raises like `parse_chat_request`."""
    members = _decode(data)
    _refuse_tokens(members, "prompt")
    body = _convert(members, TextCompletionBody)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not prompts:
        raise InvalidParameterError("prompt", "Send at least one text.")
    _check_characters(sum(map(len, prompts)), "prompt")
    shared = _read_samplers(body, limit=_read_limit(body.max_tokens, "max_tokens"))
    if len(prompts) * shared["count"] > MAX_CHOICES:
        raise InvalidParameterError(
            "prompt", f"The number of texts times `n` must be at most {MAX_CHOICES}."
        )
    return TextCompletionRequest(
        **shared, unknown=_find_unknown(members, TextCompletionBody), prompts=prompts
    )


def parse_embedding_request(data: bytes) -> VectorRequest:
    """Parse the body of `POST /v1/embeddings`. Raises like `parse_chat_request`."""
    members = _decode(data)
    _refuse_tokens(members, "input")
    body = _convert(members, EmbeddingBody)
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not 0 < len(texts) <= MAX_INPUTS:
        raise InvalidParameterError("input", f"Send 1 to {MAX_INPUTS:,} texts.")
    for place, text in enumerate(texts):
        if not text.strip():
            raise InvalidParameterError(f"input[{place}]", "The text is empty.")
    if sum(map(len, texts)) > MAX_INPUT_CHARACTERS:
        raise InvalidParameterError(
            "input", f"Send at most {MAX_INPUT_CHARACTERS:,} characters together."
        )
    if body.dimensions is not None and body.dimensions < 1:
        raise InvalidParameterError("dimensions", "Send a positive number.")
    return VectorRequest(
        model=_check_model(body.model),
        texts=texts,
        is_base64=body.encoding_format == "base64",
        dimensions=body.dimensions,
        unknown=_find_unknown(members, EmbeddingBody),
    )


def _decode(data: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError:
        # A client that cuts a text inside an emoji sends half of a pair of surrogates.
        value = _decode_repaired(data)
    if not isinstance(value, dict):
        raise BadRequestError("The body must be a JSON object.")
    return cast("dict[str, Any]", value)


def _decode_repaired(data: bytes) -> Any:
    repaired = _ESCAPE.sub(lambda found: b"\\ufffd" if found["lone"] else found[0], data)
    try:
        return msgspec.json.decode(repaired)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"The body is not valid JSON: {error}.") from error


def _convert(members: dict[str, Any], kind: type[BodyT]) -> BodyT:
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as error:
        found = _PLACE.fullmatch(str(error))
        message, path = (found["message"], found["path"]) if found else (str(error), "")
        raise InvalidParameterError(path, f"{message}.") from error


def _find_unknown(members: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    known = frozenset(kind.__struct_fields__)
    return {
        name: value for name, value in members.items() if name not in known and value is not None
    }


def _check_model(name: str) -> str:
    name = name.strip()
    if not 0 < len(name) <= MAX_MODEL_NAME:
        raise InvalidParameterError(
            "model", f"Send 1 to {MAX_MODEL_NAME} characters. `GET /v1/models` lists the names."
        )
    return name


def _check_characters(count: int, param: str) -> None:
    if count > MAX_TEXT_CHARACTERS:
        raise InvalidParameterError(
            param, f"The texts have {count:,} characters; {MAX_TEXT_CHARACTERS:,} are allowed."
        )


def _refuse_tokens(members: Mapping[str, Any], name: str) -> None:
    """Raise `InvalidParameterError` for numbers of tokens, because each model has its own."""
    first: Any = next(iter(sequence(members.get(name))), None)
    if isinstance(first, int | list):
        raise InvalidParameterError(
            name,
            "Arrays of tokens are not supported: send text. In LangChain, set "
            "`check_embedding_ctx_length=False`.",
        )


def _read_limit(limit: int | None, param: str) -> int | None:
    """Return the maximum of output tokens. -1 means no maximum in several clients."""
    if limit is None or limit == -1:
        return None
    if limit < 1:
        raise InvalidParameterError(param, "Send a positive number.")
    return min(limit, _MAX_OUTPUT_TOKENS)


def _read_samplers(
    body: SamplerBody, *, limit: int | None, reasoning_effort: str | None = None
) -> dict[str, Any]:
    """Return the members of a `SampledRequest`, except `unknown`."""
    count = 1 if body.n is None else body.n
    if not 1 <= count <= MAX_CHOICES:
        raise InvalidParameterError("n", f"Send a number from 1 to {MAX_CHOICES}.")
    values: dict[str, Any] = {
        name: getattr(body, name)
        for name in SamplerBody.__struct_fields__
        if name in Sampling.__struct_fields__
    }
    values |= {
        "max_output_tokens": limit,
        "stop": _read_stop(body.stop),
        "seed": _read_seed(body.seed),
        "top_p": None if body.top_p is None else body.top_p or _MIN_TOP_P,
        # 0 and -1 switch it off in servers that have it.
        "top_k": None if body.top_k in {0, -1} else body.top_k,
        "logit_bias": body.logit_bias or None,
        "reasoning_effort": _REASONING_EFFORTS.get(reasoning_effort or "", reasoning_effort),
    }
    usage = body.stream_options is not None and body.stream_options.include_usage
    return {
        "model": _check_model(body.model),
        "sampling": _convert({k: v for k, v in values.items() if v is not None}, Sampling),
        "count": count,
        "is_stream": bool(body.stream),
        "with_usage": bool(usage),
    }


def _read_stop(stop: str | list[str] | None) -> list[str] | None:
    sequences = [stop] if isinstance(stop, str) else stop or []
    kept = list(dict.fromkeys(each for each in sequences if each))
    if len(kept) > MAX_STOP_SEQUENCES:
        raise InvalidParameterError("stop", f"Send at most {MAX_STOP_SEQUENCES} sequences.")
    return kept or None


def _read_seed(seed: int | None) -> int | None:
    """Map a 64-bit seed to one of 31 bits. Negative ones mean a random seed in many clients."""
    return None if seed is None or seed < 0 else seed & _MAX_SEED


def _read_format(body: FormatBody | None) -> JsonForm | None:
    if body is None or body.type == "text":
        return None
    if body.type == "json_object":
        return JsonForm()
    if body.type != "json_schema":
        raise InvalidParameterError(
            "response_format.type", "Send `text`, `json_object` or `json_schema`."
        )
    if body.json_schema is None:
        raise InvalidParameterError("response_format.json_schema", "The schema is missing.")
    found = body.json_schema
    return JsonForm(schema=found.schema, name=found.name or _FORM_NAME, strict=bool(found.strict))


def _read_tool(tool: ToolBody, place: int) -> Tool:
    if tool.type != "function" or tool.function is None:
        raise InvalidParameterError(f"tools[{place}]", "Only tools of type `function` work here.")
    function = tool.function
    if not _TOOL_NAME.fullmatch(function.name):
        raise InvalidParameterError(
            f"tools[{place}].function.name",
            "A name has 1 to 64 letters, digits, dots, dashes and underscores.",
        )
    parameters = function.parameters or {"type": "object", "properties": {}}
    return Tool(function.name, function.description or "", parameters)


def _read_tool_choice(choice: ToolMode | NamedTool | None, tools: Sequence[Tool]) -> ToolChoice:
    if not isinstance(choice, NamedTool):
        return ToolChoice(choice or "auto")
    name = choice.function.name
    if name not in {each.name for each in tools}:
        raise InvalidParameterError("tool_choice", "`tools` has no function of this name.")
    return ToolChoice("named", name)


def _read_messages(bodies: Sequence[MessageBody]) -> list[SentMessage]:
    if not bodies:
        raise InvalidParameterError("messages", "Send at least one message.")
    if len(bodies) > MAX_MESSAGES:
        raise InvalidParameterError("messages", f"Send at most {MAX_MESSAGES:,} messages.")
    images = ImageReader()
    messages = [
        _read_message(body, f"messages[{place}]", images) for place, body in enumerate(bodies)
    ]
    _check_characters(sum(len(each.text) for each in messages), "messages")
    return messages


def _read_message(body: MessageBody, path: str, images: ImageReader) -> SentMessage:
    role = _ROLES.get(body.role)
    if role is None:
        raise InvalidParameterError(f"{path}.role", f"Send one of {', '.join(_ROLES)}.")
    parts = [body.content] if isinstance(body.content, str) else body.content or []
    texts: list[str] = []
    for place, part in enumerate(parts):
        at = f"{path}.content[{place}]"
        if isinstance(part, str):
            texts.append(part)
        elif part.type == "image_url":
            images.add(_find_address(part, at), f"{at}.image_url.url")
        else:
            texts.append(_read_text(part, at))
    calls = [
        _read_call(call.function, call.id or f"call_{place}")
        for place, call in enumerate(body.tool_calls or ())
    ]
    if body.function_call is not None:
        calls.append(_read_call(body.function_call, body.function_call.name))
    call_id = body.tool_call_id or (body.name if role == "tool" else None)
    return SentMessage(
        role=role,
        text="\n".join(texts),
        name=(body.name or "").strip(),
        images=images.take(),
        calls=tuple(calls),
        call_id=call_id or "",
    )


def _read_text(part: ContentPart, at: str) -> str:
    if part.type in {"text", "input_text", "output_text"}:
        return part.text or ""
    if part.type == "refusal":
        return part.refusal or ""
    unsupported = {"input_audio": "Audio is", "file": "Files are", "video_url": "Videos are"}
    problem = unsupported.get(part.type, "Parts of this type are")
    raise InvalidParameterError(
        f"{at}.type", f"{problem} not supported. Send parts of type `text` or `image_url`."
    )


def _find_address(part: ContentPart, at: str) -> str:
    address = part.image_url
    if address is None:
        raise InvalidParameterError(f"{at}.image_url", "The image is missing.")
    return address if isinstance(address, str) else address.url


def _read_call(function: CalledFunction, call_id: str) -> ToolCall:
    """Return a call of an earlier reply. Unreadable arguments are its `problem`."""
    arguments = function.arguments
    problem = ""
    if isinstance(arguments, str):
        try:
            arguments = dict(mapping(parse_json(arguments or "{}")))
        except ValueError:
            arguments, problem = {}, "The arguments are not JSON."
    return ToolCall(call_id, function.name, arguments or {}, problem=problem)
