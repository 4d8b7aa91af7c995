"""A model on an OpenAI-compatible server: replies, tool calls, and JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, cast

import msgspec
from msgspec import structs

from backend.generation.adapters.openai import mapping as wire
from backend.generation.adapters.openai.dialects import OPENAI_SERVERS, PRESETS, build_route_url
from backend.generation.adapters.openai.probes import (
    MISSING_ROUTE_STATUSES,
    REQUEST_SECONDS,
    ask_windows,
    can_be_asked,
    count_usage,
)
from backend.generation.catalogue import ListedModel
from backend.generation.client.client import ModelClient, ServerError
from backend.generation.client.provider import (
    EmbeddingKind,
    EmbeddingProvider,
    EmbeddingRequest,
    EnvironmentProvider,
    ModelTraits,
    ProviderKind,
    ServerConfig,
    Vector,
)
from backend.generation.declined_answers import check_declined
from backend.generation.failures.failures import read_refusal
from backend.generation.model import (
    JsonForm,
    ModelError,
    ModelMalformedAnswerError,
    ModelRequestError,
    ModelServerError,
    ModelSpec,
    ModelWritesNoJsonError,
    Piece,
    Prompt,
    PromptMessage,
    StructuredAnswer,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    apply_resets,
)
from backend.generation.sampling import Sampling, SamplingField
from backend.generation.servers.abilities import (
    JSON_WAYS,
    JsonWay,
    ServerAbilities,
    count_slots,
)
from backend.generation.servers.model import AnswerReader, ModelRequest, ServerModel
from backend.generation.servers.replies import Delta, parse_value, read_text, read_tool_answer
from backend.settings import ServerName, Settings

WHO = "The OpenAI-compatible server"
EMBEDDINGS_LABEL = "The embeddings server"

SLOTS_SECONDS = 600.0
"""Interval at which a server is asked for its number of slots. A restart may change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICompatibleConfig(ServerConfig):
    """The configuration of a server. `base_url` usually ends in `/v1`.

    Attributes:
        context_window: Tokens of models with an unknown window.
        max_output_tokens: Tokens of replies of models with an unknown limit.
        server: The program or service.
    """

    base_url: str = field()
    context_window: int = 32_768
    max_output_tokens: int = 8_192
    server: ServerName = "other"

    def usual_concurrency(self, abilities: ServerAbilities) -> int | None:
        """See `ServerConfig`. The number that the server reports precedes the default."""
        return abilities.slots or OPENAI_SERVERS[self.server].concurrency


class OpenAICompatibleProvider(EmbeddingProvider[OpenAICompatibleConfig, ModelClient]):
    who = WHO

    def __init__(self, config: OpenAICompatibleConfig) -> None:
        super().__init__(config)
        self._asked: set[str] = set()
        self._asking: set[asyncio.Task[None]] = set()
        self._slots_asked_at = -math.inf

    @property
    def list_url(self) -> str:
        return f"{self.base_url}/models"

    @property
    def default_figures(self) -> ListedModel:
        return ListedModel(
            name="-",
            context_window=self.config.context_window,
            max_output_tokens=self.config.max_output_tokens,
        )

    def find_traits(self, model: str) -> ModelTraits:  # noqa: ARG002 - the same for all
        server = OPENAI_SERVERS[self.config.server]
        return ModelTraits(accepts=server.accepts, shape=server.shape)

    def get_client(self, connection: ModelClient) -> ModelClient:
        return connection

    async def embed(self, connection: ModelClient, request: EmbeddingRequest) -> list[Vector]:
        body: dict[str, Any] = {
            "model": request.model,
            "input": list(request.texts),
            "encoding_format": "base64",
        }
        if request.dimension is not None:
            body["dimensions"] = request.dimension
        # Unparsed, because the vectors are decoded into their own type.
        return _decode_vectors(await connection.post_raw(f"{self.base_url}/embeddings", body))

    async def learn_windows(self, models: Sequence[str]) -> None:
        self._asked.update(models)
        config = self.config
        if not models or not can_be_asked(config.server):
            return
        try:
            async with self.open_connection() as client:
                reports = await ask_windows(client, config.base_url, config.server, models)
        except ModelError:  # no client can be made
            return
        for name, report in reports.items():
            window = report.window
            if window is None and report.largest is not None:
                # The window in force is unknown, but it is no larger than that.
                known = self.abilities.find(name).window or config.context_window
                window = report.largest if report.largest < known else None
            learned = self.abilities.find(name)
            window, images = window or learned.window, report.images or learned.images
            if (window, images) != (learned.window, learned.images):
                self.learn(name, window=window, images=images)

    def learn_window_later(self, model: str) -> None:
        """Ask for a model's window in the background, once in the lifetime of this object."""
        if model in self._asked:
            return
        task = asyncio.create_task(self.learn_windows([model]))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def refresh_slots(self) -> None:
        """See `ModelProvider`. Asks at most once in `SLOTS_SECONDS`."""
        path = OPENAI_SERVERS[self.config.server].slots
        if not path or time.monotonic() < self._slots_asked_at + SLOTS_SECONDS:
            return
        self._slots_asked_at = time.monotonic()
        try:
            async with asyncio.timeout(REQUEST_SECONDS), self.open_connection() as client:
                answer = await client.get(build_route_url(self.config.base_url, path))
        except ServerError as error:
            if error.status not in MISSING_ROUTE_STATUSES:
                return
            answer = None
        except Exception:  # noqa: BLE001 - the next time may be better
            return
        slots = count_slots(answer)
        if slots != self.abilities.slots:
            self._remember(structs.replace(self.abilities, slots=slots))

    async def aclose(self) -> None:
        asking = list(self._asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await super().aclose()

    def _connect(self) -> ModelClient:
        key = self.config.api_key
        return self._make_client({"authorization": f"Bearer {key}"} if key else {})

    async def _disconnect(self, connection: ModelClient) -> None:
        await connection.aclose()


class _Embedding(msgspec.Struct):
    embedding: str | list[float]
    index: int | None = None


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


def _decode_vectors(response: bytes) -> list[Vector]:
    """Return the vectors in the order of the texts. Some servers ignore the requested encoding.

    Raises `ModelError` at the first invalid value, because a faulty response may be large.
    """
    try:
        data = msgspec.json.decode(response, type=_Embeddings).data
        if all(each.index is not None for each in data):
            data.sort(key=lambda each: each.index or 0)
        return [
            base64.b64decode(each.embedding, validate=True)
            if isinstance(each.embedding, str)
            else each.embedding
            for each in data
        ]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ModelError(f"{EMBEDDINGS_LABEL} sent a response without embeddings.") from None


ANSWER_TOOL = "answer"
"""The tool whose arguments are the requested value."""

_INSTRUCTIONS = (
    "Answer with one JSON value of this JSON Schema and nothing else, in a fenced block that "
    "begins with ```json and ends with ```:\n\n"
)
_PLAIN_INSTRUCTIONS = "Answer with one JSON value of this JSON Schema and nothing else:\n\n"


def add_schema(prompt: Prompt, schema: Mapping[str, Any], way: JsonWay) -> Prompt:
    """Add the schema to the prompt if the model may not see the one in the request."""
    if way not in ("json_object", "fenced"):
        return prompt
    words = _INSTRUCTIONS if way == "fenced" else _PLAIN_INSTRUCTIONS
    told = PromptMessage("system", words + json.dumps(dict(schema), ensure_ascii=False))
    return replace(prompt, messages=[*prompt.messages, told])


def build_json_members(schema: Mapping[str, Any], way: JsonWay) -> dict[str, Any]:
    match way:
        case "json_schema":
            return {"response_format": wire.build_response_format(schema)}
        case "json_object":
            return {"response_format": {"type": "json_object", "schema": dict(schema)}}
        case "tool":
            tool = Tool(ANSWER_TOOL, "Give the answer.", schema)
            choice = {"type": "function", "function": {"name": ANSWER_TOOL}}
            return {"tools": wire.declare_tools([tool]), "tool_choice": choice}
        case "fenced":
            return {}


def build_client_format(form: JsonForm) -> dict[str, Any]:
    if form.schema is None:
        return {"type": "json_object"}
    return wire.build_response_format(form.schema, name=form.name, strict=form.strict)


def read_value(answer: Delta, way: JsonWay, *, who: str) -> Any:
    """Return the value in an answer. Raises `ModelMalformedAnswerError`, `ModelDeclinedError`."""
    if way == "tool":
        whole = read_tool_answer(answer, who=who)
        if not (calls := whole.calls):
            check_declined(whole.text)
            raise ModelMalformedAnswerError(f"{who} did not return the requested tool call.")
        return dict(calls[0].arguments)
    text, finish = read_text(answer, who=who)
    return parse_value(text, who=who, finish=finish)


COMPLETIONS = "/chat/completions"

RENAMED_MEMBERS = {"max_tokens": "max_completion_tokens"}
"""New names of members. OpenAI's reasoning models refuse the old ones."""

OPTIONAL_MEMBERS = ("stream_options", *RENAMED_MEMBERS)
"""Members that Talekeeper adds, and removes or renames if a server refuses them."""


class OpenAICompatibleModel(ServerModel[OpenAICompatibleProvider]):
    def __init__(self, spec: ModelSpec, provider: OpenAICompatibleProvider) -> None:
        super().__init__(spec, provider)
        self._server = OPENAI_SERVERS[provider.config.server]
        self._json_way: JsonWay | None = None

    async def generate_json(
        self, prompt: Prompt, schema: Mapping[str, Any], sampling: Sampling
    ) -> StructuredAnswer:
        """See `ChatModel`. Tries the ways in `JSON_WAYS` until one works.

        If a way was refused, the working way is remembered at once. If an answer was not JSON,
        which may be chance, a way is remembered after it has worked twice in a row.
        """
        known = self._provider.abilities.find(self.spec.name).json
        wrote_no_json = False
        for way in JSON_WAYS[JSON_WAYS.index(known or JSON_WAYS[0]) :]:
            request = self._request(
                add_schema(prompt, schema, way),
                sampling.without_form(),
                members=build_json_members(schema, way),
                is_trial=way not in (known, JSON_WAYS[-1]),
            )
            try:
                answer = await self._collect(request)
                value = read_value(answer, way, who=WHO)
            except ModelMalformedAnswerError:
                if way == known:
                    raise
                wrote_no_json = True
            except ModelRequestError:
                if way == JSON_WAYS[-1] and not wrote_no_json:
                    raise
            else:
                if way != known and (not wrote_no_json or way == self._json_way):
                    self._provider.learn(self.spec.name, json=way)
                self._json_way = way
                return StructuredAnswer(value, answer.usage)
        raise ModelWritesNoJsonError(
            f"{self.spec.id} did not return JSON in any of the tried ways "
            f"({', '.join(JSON_WAYS)}). Choose another model."
        )

    @property
    def _reads_addresses(self) -> bool:
        return self._server.reads_addresses

    def _address(self, *, stream: bool) -> str:  # noqa: ARG002 - one address for both
        return self._provider.base_url + COMPLETIONS

    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        sampling, schema = request.sampling, request.schema
        if self._server.needs_limit and sampling.max_output_tokens is None:
            room = request.prompt.reply_room or max(1, self.spec.context_window // 4)
            limit = min(self.spec.max_output_tokens, room)
            sampling = structs.replace(sampling, max_output_tokens=limit)
        start = request.start
        known = self._provider.abilities.find(self.spec.name)
        body: dict[str, Any] = {
            **request.options.extra,
            "model": self.spec.name,
            "messages": wire.build_messages(
                request.shaped_prompt, start, self._server.prefix, shape=request.shape
            ),
            **wire.map_settings(sampling, self._server.names),
            **(self._server.prefill if start else {}),
            **request.members,
        }
        if request.tools:
            body["tools"] = wire.declare_tools(request.tools)
            if (choice := request.options.tool_choice).mode != "auto":
                body["tool_choice"] = wire.build_tool_choice(choice)
        if (form := request.options.form) is not None:
            body["response_format"] = build_client_format(form)
        elif schema is not None:
            way: JsonWay = "json_object" if known.json == "json_object" else "json_schema"
            body |= build_json_members(schema, way)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return _remove_members(body, known.without)

    def _reader(self, request: ModelRequest) -> AnswerReader:
        return wire.ChunkReader(tool.name for tool in request.tools)

    def _setting_names(self, request: ModelRequest) -> Mapping[str, Sequence[SamplingField]]:
        names = wire.map_setting_names(self._server.names)
        if request.is_plain:
            names["response_format"] = "json_schema"
        return {member: (setting,) for member, setting in names.items()}

    def _adapt(self, request: ModelRequest, error: ServerError) -> ModelRequest:
        """See `ServerModel`. First removes or renames members that Talekeeper adds."""
        known = self._provider.abilities.find(self.spec.name)
        failure = self._provider.failure(error)
        is_refusal = isinstance(failure, ModelRequestError)
        refusal = read_refusal(error, OPTIONAL_MEMBERS) if is_refusal else None
        if refusal and refusal.for_good and refusal.member not in known.without:
            self._provider.learn(self.spec.name, without=(*known.without, refusal.member))
            return request
        form: SamplingField = "json_schema"
        fails = isinstance(failure, ModelServerError)
        if fails and request.is_plain and request.sampling.json_schema:
            self._remember_refused(form)
            return request.without(form)
        return super()._adapt(request, error)

    def _failure(self, error: ServerError, request: ModelRequest) -> ModelError:
        """See `ServerModel`. In a trial of a way to request JSON, the status 500 is a refusal."""
        failure = super()._failure(error, request)
        is_trial = request.is_trial or request.schema is not None
        fails = isinstance(failure, ModelServerError)
        if is_trial and fails and error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            return ModelRequestError(f"{WHO} fails at such a request (500).")
        return failure

    def _note_finish(self) -> None:
        """See `ServerModel`. Asks once for a window that is neither set nor listed."""
        if self.spec.figures_from in {"default", "learned"}:
            self._provider.learn_window_later(self.spec.name)

    async def _count(
        self, client: ModelClient, request: ModelRequest, received: Sequence[Piece]
    ) -> TokenUsage | None:
        known = self._provider.abilities.find(self.spec.name).counts
        routes = [each for each in self._server.counts if known in (None, each.path)]
        if not routes or any(isinstance(piece, TokenUsage) for piece in received):
            return None
        left = apply_resets(received)
        counts = await count_usage(
            client,
            self._provider.config.base_url,
            self.spec.name,
            routes,
            request.shaped_prompt,
            said="".join(piece.text for piece in left if isinstance(piece, TextPiece)),
            thought="".join(piece.text for piece in left if isinstance(piece, ThinkingPiece)),
        )
        if counts.route not in (None, known):
            self._provider.learn(self.spec.name, counts=counts.route)
        return counts.usage


def _remove_members(body: Mapping[str, Any], members: Sequence[str]) -> dict[str, Any]:
    """Remove members, or rename them if they have a new name."""
    renamed = {name: RENAMED_MEMBERS[name] for name in members if name in RENAMED_MEMBERS}
    return {
        renamed.get(name, name): value
        for name, value in body.items()
        if name in renamed or name not in members
    }


def _read_settings(settings: Settings) -> EnvironmentProvider | None:
    if not settings.openai_base_url:
        return None
    key = settings.openai_api_key
    config = OpenAICompatibleConfig(
        base_url=settings.openai_base_url,
        api_key=key.get_secret_value() if key else None,
        models=settings.openai_models,
        context_window=settings.openai_context_window,
        max_output_tokens=settings.openai_max_output_tokens,
        server=settings.openai_server,
        chunk_timeout=settings.model_silence_seconds,
    )
    sizes: dict[str, Any] = {
        size: getattr(settings, f"openai_{size}")
        for size in ("context_window", "max_output_tokens")
        if f"openai_{size}" in settings.model_fields_set
    }
    tool_support = settings.openai_tool_support or None
    return EnvironmentProvider(
        config=config,
        models=[
            ListedModel(name=name, tool_support=tool_support, **sizes)
            for name in settings.openai_models
        ],
        concurrency=settings.openai_concurrency,
    )


def _read_embedding_settings(settings: Settings) -> ServerConfig:
    key = settings.embedding_api_key
    if key is None and not settings.embedding_base_url:
        # A key must be sent only to the server that it belongs to.
        key = settings.openai_api_key
    return OpenAICompatibleConfig(
        base_url=settings.embedding_base_url or settings.openai_base_url,
        api_key=key.get_secret_value() if key else None,
    )


def _configure(preset: str | None, **fields: Any) -> ServerConfig:
    server = cast("ServerName", preset if preset in OPENAI_SERVERS else "other")
    base_url = fields.pop("base_url") or ""
    return OpenAICompatibleConfig(base_url=base_url, server=server, **fields)


OPENAI_COMPATIBLE = ProviderKind(
    title="OpenAI-compatible server",
    variables=("TALEKEEPER_OPENAI_BASE_URL", "TALEKEEPER_OPENAI_MODELS"),
    read_settings=_read_settings,
    configure=_configure,
    provider=OpenAICompatibleProvider,
    model=OpenAICompatibleModel,
    presets=PRESETS,
    needs_address=True,
    needs_key=False,
    reserved_headers=frozenset({"authorization"}),
    embeddings=EmbeddingKind(label=EMBEDDINGS_LABEL, read_settings=_read_embedding_settings),
)
