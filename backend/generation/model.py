"""The protocol of language models, with its prompts, pieces and errors.

Adapters implement `ChatModel`. They hide the vendor's types, and raise only `ModelError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import msgspec

from backend.errors import AppError
from backend.generation.catalogue import (
    Ability,
    FiguresFrom,
    ImageSupport,
    MessageShape,
    Price,
    ToolSupport,
)
from backend.generation.sampling import Sampling, SamplingField, check_taken
from backend.generation.servers.abilities import ModelAbilities

Role = Literal["system", "user", "assistant"]
Fixable = Literal["tool_support", "shape"]
"""Facts that are learned unless the user sets them."""

FinishReason = Literal["stop", "length", "safety", "tool_calls", "other"]


MAX_REPLY_CHARACTERS = 400_000
"""Maximum length of a reply's text, and of its thoughts: about 100,000 tokens each."""


class PromptImage(msgspec.Struct, frozen=True, gc=False):
    """An image of a message: its content, or the address of one that the provider reads itself."""

    media_type: str = ""
    data: bytes = b""
    url: str = ""


class PromptMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of a prompt. A struct, because a prompt has thousands and a dataclass is slow.

    Attributes:
        images: Images after the text.
        name: The speaker, for servers that accept it. It is not a part of the text.
        calls: The tool calls of an assistant's message.
        results: One JSON value for each call. They belong to the same message, so that no part of
            the backend can separate them.
    """

    role: Role
    text: str
    images: tuple[PromptImage, ...] = ()
    name: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. `arguments` are parsed but not validated.

    `problem` describes an unreadable call, whose `arguments` and perhaps `name` are empty.
    `vendor_state` is opaque JSON to send back with the result, such as Gemini's thought signature.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    vendor_state: Any = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ToolRound:
    """A completed step of a tool loop. `results` has one JSON value for each call."""

    calls: Sequence[ToolCall]
    results: Sequence[Any]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The messages in order, and the rounds of a tool loop so far.

    Attributes:
        stable: Number of the first messages that probably begin the next prompt, for caches.
        reply_room: Remaining tokens of the window; None if they were not counted.
        reply_limit: Maximum number of characters of text, and of thoughts.
    """

    messages: Sequence[PromptMessage]
    rounds: Sequence[ToolRound] = ()
    stable: int = 0
    reply_room: int | None = None
    reply_limit: int = MAX_REPLY_CHARACTERS


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that a model may or must call. `name` is the only tool of the mode `named`."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForm:
    """The JSON that a client requests as the text of a reply. Without a schema, any object.

    `name` and `strict` are for servers that accept them.
    """

    schema: Mapping[str, Any] | None = None
    name: str = "answer"
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Options of a request that only clients of the API set.

    `extra` are further members of the request, for OpenAI-compatible servers. They never replace
    others.
    """

    tool_choice: ToolChoice = ToolChoice()
    form: JsonForm | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


NO_OPTIONS = RequestOptions()


class TextPiece(msgspec.Struct, frozen=True):
    """A piece of the reply. Never empty."""

    text: str


class ThinkingPiece(msgspec.Struct, frozen=True):
    """A piece of the model's thoughts. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class TextReset:
    """Takes back the text that was streamed so far, because it was thoughts."""


@dataclass(frozen=True, slots=True)
class ThinkingReset:
    """Takes back the thoughts that were streamed so far, because they were the reply."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """The form of a request that was changed: the first piece of a stream.

    `left_out` are the user's sampling settings that the model does not support, or not in
    combination. `images_left_out` is the number of images that it cannot read.
    """

    shape: MessageShape = "lenient"
    left_out: tuple[SamplingField, ...] = ()
    images_left_out: int = 0


MAX_REPORTED_TOKENS = 10_000_000
"""Maximum tokens of one request: several times the largest context window."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Reported tokens. `completion_tokens` includes `thinking_tokens`.

    Impossible numbers are limited, because they are added and stored.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    thinking_tokens: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            reported = getattr(self, each.name)
            object.__setattr__(self, each.name, min(max(reported, 0), MAX_REPORTED_TOKENS))


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a reply: the last piece of a stream without error."""

    reason: FinishReason


Piece = (
    TextPiece
    | ThinkingPiece
    | TextReset
    | ThinkingReset
    | ToolCall
    | SentRequest
    | TokenUsage
    | Finish
)


def apply_resets(pieces: Iterable[Piece]) -> list[Piece]:
    """Remove resets and the pieces that they take back."""
    kept: list[Piece] = []
    for piece in pieces:
        match piece:
            case TextReset():
                kept = [each for each in kept if not isinstance(each, TextPiece)]
            case ThinkingReset():
                kept = [each for each in kept if not isinstance(each, ThinkingPiece)]
            case _:
                kept.append(piece)
    return kept


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    text: str
    calls: Sequence[ToolCall]
    usage: TokenUsage | None
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class StructuredAnswer:
    """A requested JSON value, parsed but not validated."""

    value: Any
    usage: TokenUsage | None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The known facts about a model.

    Attributes:
        id: `provider/name` (`gemini/gemini-2.5-flash`), or `demo`.
        provider: The provider's slug.
        tokenizer: The closest vocabulary in `generation.tokens`.
        accepts: The supported sampling settings. Others cannot be set.
        refused: Settings that the server has refused. They are omitted from requests.
        tool_support: The best way to call tools: see `tools.streams`.
        shape: The message shape. Like `tool_support`, it is set by the user, learned or a default.
        excludes: The settings that may be omitted if another one is set.
        fixed: The facts that the user has set, which are not learned.
        provider_name: The provider's name on the page.
        image_support: The way to send images. None tries it and learns from a refusal.
        learned_window: The window that answers have shown. The user's setting has precedence.
        is_own: True if its provider belongs to the user.
    """

    id: str
    provider: str
    name: str
    title: str
    context_window: int
    max_output_tokens: int
    tokenizer: str
    accepts: frozenset[SamplingField] = frozenset()
    refused: frozenset[SamplingField] = frozenset()
    tool_support: ToolSupport = "native"
    shape: MessageShape = "lenient"
    excludes: Mapping[SamplingField, Sequence[SamplingField]] = field(
        default_factory=dict[SamplingField, Sequence[SamplingField]]
    )
    fixed: frozenset[Fixable] = frozenset()
    provider_name: str = ""
    price: Price | None = None
    abilities: frozenset[Ability] = frozenset()
    image_support: ImageSupport | None = None
    figures_from: FiguresFrom = "default"
    learned_window: int | None = None
    is_own: bool = False

    @property
    def usable_window(self) -> int:
        """The window, limited by the one that the server has shown."""
        return min(self.context_window, self.learned_window or self.context_window)

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise `SettingNotTakenError` for a setting that the vendor's API does not have.

        Settings that the server has refused are omitted from requests instead.
        """
        check_taken(sampling, accepts=self.accepts | self.refused, model_id=self.id)


@runtime_checkable
class ChatModel(Protocol):
    """A language model. All errors are `ModelError`s."""

    spec: ModelSpec

    @property
    def learned(self) -> ModelAbilities:
        """The abilities that answers have shown."""
        ...

    def learn(self, **changes: Any) -> None:
        """Remember members of `ModelAbilities`."""
        ...

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        options: RequestOptions = NO_OPTIONS,
    ) -> AsyncGenerator[Piece, None]:
        """Yield the reply piece by piece: text or calls, then usage if known, then `Finish`.

        Iterate inside `contextlib.aclosing`, because closing it early ends the request.

        Args:
            prompt: The prompt before shaping.
            sampling: The user's settings.
            tools: The available tools. Each complete call is one piece. An unreadable one has a
                `problem`. Without tools, there is at least one piece of text or thoughts.
            schema: JSON Schema of the whole text. Not allowed with tools.
            options: The wishes of a client of the API. Those that the vendor's API does not have
                are ignored.
        """
        ...

    async def call_tools(
        self, prompt: Prompt, tools: Sequence[Tool], sampling: Sampling
    ) -> ToolAnswer:
        """Request one step of a tool loop."""
        ...

    async def generate_json(
        self, prompt: Prompt, schema: Mapping[str, Any], sampling: Sampling
    ) -> StructuredAnswer:
        """Request one JSON value of a schema."""
        ...


class ModelError(AppError):
    """The model could not be reached, rejected the request, or stopped too early.

    `retryable`: the same request may succeed later. The problem's member `provider_message` quotes
    the provider's error text, if there is one.
    """

    status, slug, title = 502, "model-failed", "The model failed"
    retryable: ClassVar[bool] = False


class ModelUnavailableError(ModelError):
    """There is no connection to the model's server."""

    status, slug, title = 502, "model-unavailable", "The model cannot be reached"
    retryable = True


class ModelServerError(ModelUnavailableError):
    """The model's server reports an internal fault (5xx)."""

    slug, title = "model-server-failed", "The model's server failed"


class ModelLoadingError(ModelUnavailableError):
    """The server has not loaded the model yet."""

    status, slug, title = 503, "model-loading", "The model is still loading"


class ModelOverloadedError(ModelUnavailableError):
    """The server is busy with other requests."""

    status, slug, title = 503, "model-overloaded", "The provider is overloaded"


class ModelWebPageError(ModelUnavailableError):
    """A proxy, a login page or a web interface answered instead of the model's API."""

    slug, title = "model-web-page", "The server answered with a web page"


class ModelRedirectError(ModelUnavailableError):
    """The server redirects. Redirects are never followed, because they would take the key along."""

    slug, title = "model-redirect", "The server redirects to another address"


class ModelForeignAnswerError(ModelUnavailableError):
    """The response is neither a reply nor a known error."""

    slug, title = "model-foreign-answer", "The server's response is not a reply"


class ModelTimeoutError(ModelError):
    """The model sent nothing for longer than the configured limit, or a proxy stopped waiting."""

    status, slug, title = 504, "model-timeout", "The model stopped responding"
    retryable = True


class ModelRateLimitError(ModelError):
    """The provider's rate limit was reached: `retry_after` is in seconds, if it was reported."""

    status, slug, title = 503, "model-rate-limited", "The provider's rate limit was reached"
    retryable = True

    def __init__(self, detail: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(
            detail,
            extra={} if retry_after is None else {"retry_after": retry_after},
            headers={} if retry_after is None else {"Retry-After": str(max(1, ceil(retry_after)))},
        )
        self.retry_after = retry_after


class ModelCreditError(ModelError):
    """The account or the key has no credit, or has reached its spending limit."""

    status, slug, title = 502, "model-no-credit", "The account has no credit at the provider"


class ModelAuthError(ModelError):
    """The API key is missing, wrong, or has no permission."""

    status, slug, title = 502, "model-key-refused", "The provider rejected the API key"


class ModelRegionError(ModelError):
    """The provider does not answer requests from the country of this server."""

    status, slug, title = 502, "model-region-refused", "The provider does not serve this region"


class ModelDataPolicyError(ModelError):
    """A router has no server for the model that the account's privacy settings allow."""

    status, slug, title = (
        502,
        "model-data-policy",
        "The account's privacy settings exclude this model",
    )


class ModelNotFoundError(ModelError):
    """The provider has no model of this name, or the account may not use it."""

    status, slug, title = 502, "model-not-found", "The provider does not have this model"


class ModelWrongAddressError(ModelError):
    """The server responds, but has no model API at this path."""

    status, slug, title = 502, "model-wrong-address", "The provider's address is not a model API"


class ModelRequestError(ModelError):
    """The provider rejected the form of the request: a setting, a message role, or a tool."""

    status, slug, title = 502, "model-refused-request", "The provider rejected the request"


class ModelContextOverflowError(ModelError):
    """The prompt is longer than the model's context window.

    `window` is the model's window and `needed` the length of the prompt, in the model's tokens,
    each None if the server did not report it. Some servers include the reply in `needed`.
    `reply_limit` is the requested output limit, if there was one.
    """

    status, slug, title = (
        422,
        "model-context-overflow",
        "The prompt is longer than the model's context window",
    )

    def __init__(
        self, detail: str = "", *, window: int | None = None, needed: int | None = None
    ) -> None:
        reported = {"window": window, "needed": needed}
        super().__init__(
            detail, extra={name: size for name, size in reported.items() if size is not None}
        )
        self.window, self.needed = window, needed
        self.reply_limit: int | None = None


class ModelBlockedError(ModelError):
    """A content filter blocked the prompt or the reply. `reason` is the provider's category."""

    status, slug, title = 502, "model-blocked", "The provider's content filter blocked the text"

    def __init__(self, detail: str = "", *, reason: str = "") -> None:
        super().__init__(detail, extra={"reason": reason} if reason else {})
        self.reason = reason


class ModelDeclinedError(ModelError):
    """The model refused its task in words. It may accept if it is asked again."""

    status, slug, title = 502, "model-declined", "The model declined to answer"
    retryable = True


class ModelEmptyReplyError(ModelError):
    """The model finished without usable text."""

    status, slug, title = 502, "model-empty-reply", "The model returned an empty reply"
    retryable = True


class ModelMalformedAnswerError(ModelError):
    """The answer cannot be read: the arguments of a call, or a value, are not JSON."""

    status, slug, title = 502, "model-malformed-answer", "The model's answer cannot be read"
    retryable = True


class ModelMalformedCallError(ModelMalformedAnswerError):
    """The model ended its reply with a function call that its provider could not read."""

    slug, title = "model-malformed-call", "The model wrote a malformed function call"


class ModelWritesNoJsonError(ModelMalformedAnswerError):
    """The model wrote no JSON, in any of the ways it was asked. Choose another model."""

    slug, title = "model-writes-no-json", "The model cannot answer in JSON"


class ModelInterruptedError(ModelError):
    """The stream ended before the model had finished."""

    status, slug, title = 502, "model-interrupted", "The reply was cut off"
    retryable = True
