"""The base class of models on servers.

Adapters build requests and read answers. This class sends each request as a stream, and changes and
repeats it if the server refuses a part: a message shape, a sampling setting, or a member that
Talekeeper adds. It remembers the refusals.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from msgspec import structs

from backend.generation.catalogue import MessageShape
from backend.generation.client.client import ModelClient, ServerError
from backend.generation.client.provider import AnyProvider
from backend.generation.failures.failures import Refusal, read_refusal
from backend.generation.images import count_images, place_images, refuses_images
from backend.generation.message_shapes import find_stricter_shape, shape_prompt
from backend.generation.model import (
    NO_OPTIONS,
    Finish,
    FinishReason,
    ModelContextOverflowError,
    ModelError,
    ModelNotFoundError,
    ModelRequestError,
    ModelServerError,
    ModelSpec,
    Piece,
    Prompt,
    RequestOptions,
    SentRequest,
    StructuredAnswer,
    TextPiece,
    TextReset,
    TokenUsage,
    Tool,
    ToolAnswer,
    ToolCall,
)
from backend.generation.sampling import Sampling, SamplingField
from backend.generation.servers.abilities import ModelAbilities
from backend.generation.servers.replies import (
    Delta,
    ReplyLimit,
    parse_value,
    read_text,
    read_tool_answer,
    relay,
)
from backend.generation.servers.window_evidence import choose_window_after_refusal
from backend.generation.thoughts import ThoughtReader

ProviderT = TypeVar("ProviderT", bound=AnyProvider)

_ADAPTABLE_ERRORS = (ModelRequestError, ModelServerError)
"""Errors after which another form of the request may succeed. Some templates fail with 500."""

_REFUSES_START = ("prefill", "final `assistant` message")
"""Words of models that refuse the beginning of a reply: thinking models, and Claude since 4.6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request to a model, and its form.

    Attributes:
        prompt: The prompt before shaping.
        sampling: The user's settings to send.
        tools: The available tools.
        schema: The JSON Schema of the whole text.
        members: Members that the adapter adds to request JSON.
        start: The beginning of the reply, which the server does not repeat.
        shape: The message shape.
        left_out: The user's settings that are not sent.
        images_left_out: The number of images that are not sent.
        options: The wishes of a client of the API.
        is_trial: True if the server may refuse this way, and another one is tried next.
    """

    prompt: Prompt
    sampling: Sampling
    tools: Sequence[Tool] = ()
    schema: Mapping[str, Any] | None = None
    members: Mapping[str, Any] = field(default_factory=dict[str, Any])
    start: str = ""
    shape: MessageShape = "lenient"
    left_out: tuple[SamplingField, ...] = ()
    images_left_out: int = 0
    options: RequestOptions = NO_OPTIONS
    is_trial: bool = False

    @property
    def is_plain(self) -> bool:
        """True for a reply in words, without tools or a schema."""
        has_form = self.schema or self.members or self.options.form
        return not (self.tools or has_form or self.prompt.rounds)

    @property
    def is_json(self) -> bool:
        has_form = self.schema or self.members or self.options.form
        return bool(has_form or self.sampling.json_schema)

    @property
    def schema_of_text(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the whole text, of Talekeeper's own request or of a client's."""
        form = self.options.form
        return self.schema if form is None else form.schema

    @property
    def shaped_prompt(self) -> Prompt:
        return shape_prompt(self.prompt, self.shape)

    def without(self, *settings: SamplingField) -> ModelRequest:
        left_out = (*self.left_out, *settings)
        absent = dict.fromkeys(settings)
        start = "" if "start_reply_with" in settings else self.start
        sampling = structs.replace(self.sampling, **absent)
        return replace(self, sampling=sampling, left_out=left_out, start=start)

    def describe_changes(self) -> SentRequest | None:
        """Return the piece that reports changes of the request; None if there are none."""
        sent = SentRequest(self.shape, self.left_out, self.images_left_out)
        return None if sent == SentRequest() else sent

    def without_images(self) -> ModelRequest:
        messages, removed = place_images(
            self.prompt.messages, reads_images=False, reads_addresses=False
        )
        prompt = replace(self.prompt, messages=messages)
        return replace(self, prompt=prompt, images_left_out=self.images_left_out + removed)

    def with_start(self, start: str) -> ModelRequest:
        return replace(self, start=start)


_LIMIT_MEMBERS = ("max_tokens", "max_completion_tokens")
"""Members of a request that limit the reply, which some servers count in the window."""


class AnswerReader(Protocol):
    """Reads one answer, event by event or as a whole."""

    def read_event(self, event: Any) -> Delta: ...

    def read_whole(self, answer: Any) -> Delta: ...

    def close(self) -> Sequence[ToolCall]:
        """Return the calls that no event has completed."""
        ...


class ServerModel(ABC, Generic[ProviderT]):
    """A `ChatModel` on a server."""

    def __init__(self, spec: ModelSpec, provider: ProviderT) -> None:
        self.spec = spec
        self._provider = provider

    @property
    def learned(self) -> ModelAbilities:
        return self._provider.abilities.find(self.spec.name)

    def learn(self, **changes: Any) -> None:
        self._provider.learn(self.spec.name, **changes)

    @abstractmethod
    def _address(self, *, stream: bool) -> str:
        """Return the URL of requests."""

    @abstractmethod
    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        """Return the vendor's body of a request, without `extra_body`."""

    @abstractmethod
    def _reader(self, request: ModelRequest) -> AnswerReader:
        """Return a reader of the answer."""

    @abstractmethod
    def _setting_names(self, request: ModelRequest) -> Mapping[str, Sequence[SamplingField]]:
        """Return the settings by the names that refusals use."""

    @property
    def _reads_addresses(self) -> bool:
        """True if the server loads images from their addresses."""
        return False

    def _fit_settings(self, request: ModelRequest) -> ModelRequest:
        """Remove settings that the vendor refuses in combination."""
        return request

    async def _count(
        self,
        client: ModelClient,  # noqa: ARG002 - for subclasses
        request: ModelRequest,  # noqa: ARG002 - for subclasses
        received: Sequence[Piece],  # noqa: ARG002 - for subclasses
    ) -> TokenUsage | None:
        """Let the server count the tokens if it reported no usage. Return None if it cannot."""
        return None

    def _note_finish(self) -> None:
        """Called after a finished reply, when the server has loaded the model."""

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        options: RequestOptions = NO_OPTIONS,
    ) -> AsyncGenerator[Piece, None]:
        request = self._request(prompt, sampling, tools=tools, schema=schema, options=options)
        silence = self._provider.config.chunk_timeout
        async with aclosing(self._pieces(request, silence=silence)) as pieces:
            async for piece in pieces:
                yield piece

    async def call_tools(
        self, prompt: Prompt, tools: Sequence[Tool], sampling: Sampling
    ) -> ToolAnswer:
        answer = await self._collect(self._request(prompt, sampling, tools=tools))
        return read_tool_answer(answer, who=self._provider.who)

    async def generate_json(
        self, prompt: Prompt, schema: Mapping[str, Any], sampling: Sampling
    ) -> StructuredAnswer:
        answer = await self._collect(self._request(prompt, sampling, schema=schema))
        text, finish = read_text(answer, who=self._provider.who)
        value = parse_value(text, who=self._provider.who, finish=finish)
        return StructuredAnswer(value, answer.usage)

    def _request(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        members: Mapping[str, Any] | None = None,
        options: RequestOptions = NO_OPTIONS,
        is_trial: bool = False,
    ) -> ModelRequest:
        """Return a request in the known form of the model. Raises `SettingNotTakenError`."""
        self.spec.check_sampling(sampling)
        messages, removed = place_images(
            prompt.messages,
            reads_images=self.spec.image_support != "none",
            reads_addresses=self._reads_addresses,
        )
        request = ModelRequest(
            prompt=replace(prompt, messages=messages)
            if messages is not prompt.messages
            else prompt,
            images_left_out=removed,
            options=options,
            sampling=sampling,
            tools=tools,
            schema=schema,
            members=members or {},
            shape=self.spec.shape,
            is_trial=is_trial,
        )
        if not request.is_plain:
            request = replace(request, sampling=sampling.without_form())
        request = replace(request, start=request.sampling.start_reply_with or "")
        known = self.spec.refused.intersection(request.sampling.set_fields())
        if known:
            request = request.without(*sorted(known))
        return self._fit_settings(request)

    async def _collect(self, request: ModelRequest) -> Delta:
        """Collect a streamed answer.

        Background tasks also stream, so that the server notices when they are cancelled.
        """
        pieces: list[TextPiece | ToolCall] = []
        usage: TokenUsage | None = None
        finish: FinishReason | None = None
        silence = self._provider.config.answer_timeout
        async with aclosing(self._pieces(request, silence=silence)) as stream:
            async for piece in stream:
                match piece:
                    case TextPiece() | ToolCall():
                        pieces.append(piece)
                    case TextReset():
                        pieces = [each for each in pieces if isinstance(each, ToolCall)]
                    case TokenUsage():
                        usage = piece
                    case Finish(reason):
                        finish = reason
                    case _:
                        pass
        return Delta(tuple(pieces), usage, finish)

    async def _pieces(
        self, request: ModelRequest, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        received: list[Piece] = []
        async with self._provider.open_connection() as connection:
            client = self._provider.get_client(connection)
            deltas = self._deltas(client, request)
            who = self._provider.who
            async with aclosing(relay(deltas, who=who, chunk_timeout=silence)) as pieces:
                async for piece in pieces:
                    received.append(piece)
                    if isinstance(piece, Finish):
                        self._note_finish()
                    if isinstance(piece, Finish) and request.is_plain:
                        counted = await self._count(client, request, received)
                        if counted is not None:
                            yield counted
                    yield piece

    async def _deltas(
        self, client: ModelClient, request: ModelRequest
    ) -> AsyncGenerator[Delta, None]:
        """Yield an answer, chunk by chunk. Adapt and repeat the request if it is refused."""
        while True:
            has_begun = False
            try:
                async with aclosing(self._attempt(client, request)) as deltas:
                    async for delta in deltas:
                        if not has_begun and (delta.pieces or delta.finish):
                            has_begun = True
                            self._note_acceptance(request)
                            if sent := request.describe_changes():
                                yield Delta((sent,))
                        yield delta
            except ServerError as error:
                if has_begun:
                    raise self._failure(error, request) from None
                request = self._adapt(request, error)
            except Exception as error:  # noqa: BLE001 - a server may answer anything
                raise self._provider.failure(error) from None
            else:
                return

    async def _attempt(
        self, client: ModelClient, request: ModelRequest
    ) -> AsyncGenerator[Delta, None]:
        """Yield the answer to one request with separated thoughts. Raises `ServerError`."""
        thoughts, limit = self._thought_reader(request), ReplyLimit(request.prompt.reply_limit)
        finish: FinishReason | None = None
        try:
            async with aclosing(self._answer(client, request)) as answer:
                async for delta in answer:
                    for part in (parts := limit.read(delta)):
                        finish = part.finish or finish
                        yield thoughts.read(part)
                        if len(parts) > 1:
                            await asyncio.sleep(0)
                    if limit.is_reached:
                        break
        except Exception:
            yield thoughts.break_off()
            raise
        finally:
            self._learn_thoughts(thoughts)
        if finish is None:
            yield thoughts.break_off()

    async def _answer(
        self, client: ModelClient, request: ModelRequest
    ) -> AsyncGenerator[Delta, None]:
        """Yield the answer to one request, chunk by chunk. Raises `ServerError`."""
        reader = self._reader(request)
        has_finished = False
        last_event = time.monotonic()
        body = {**self._body(request, stream=True), **self._provider.config.extra_body}
        async with (
            client.stream(self._address(stream=True), body) as stream,
            aclosing(stream.events()) as events,
        ):
            async for event in events:
                if event is None:
                    # Comments keep a slow server's connection alive, for a limited time.
                    if time.monotonic() - last_event < self._provider.config.answer_timeout:
                        yield Delta()
                    continue
                last_event = time.monotonic()
                read = reader.read_whole if stream.is_whole else reader.read_event
                delta = read(event)
                has_finished = has_finished or delta.finish is not None
                yield delta
        if stream.is_empty and not stream.is_done:
            # Some servers end the stream without an error, and report it only without streaming.
            body = {**self._body(request, stream=False), **self._provider.config.extra_body}
            answer = await client.post(self._address(stream=False), body)
            yield reader.read_whole(answer)
            return
        if not has_finished and not stream.is_done:
            return
        if calls := tuple(reader.close()):
            yield Delta(calls)
        if not has_finished:
            yield Delta(finish="stop", reason="[DONE]")

    def _thought_reader(self, request: ModelRequest) -> ThoughtReader:
        config = self._provider.config
        return ThoughtReader(
            config.thought_tags,
            start=request.start,
            thinks_first=self._provider.abilities.find(self.spec.name).thinks_first,
            is_json=request.is_json,
            is_off=not config.reads_thoughts,
        )

    def _learn_thoughts(self, thoughts: ThoughtReader) -> None:
        known = self._provider.abilities.find(self.spec.name).thinks_first
        if thoughts.thinks_first != known:
            self._provider.learn(self.spec.name, thinks_first=thoughts.thinks_first)

    def _note_acceptance(self, request: ModelRequest) -> None:
        """Remember a shape that the server accepted after it refused another one."""
        if request.shape != self.spec.shape and "shape" not in self.spec.fixed:
            self.spec = replace(self.spec, shape=request.shape)
            self._provider.learn(self.spec.name, shape=request.shape)

    def _adapt(self, request: ModelRequest, error: ServerError) -> ModelRequest:
        """Return the request in another form. Raises `ModelError` if there is none."""
        failure = self._failure(error, request)
        if isinstance(failure, ModelContextOverflowError):
            body = {**self._body(request, stream=True), **self._provider.config.extra_body}
            limits = (body.get(name) for name in _LIMIT_MEMBERS)
            failure.reply_limit = next((each for each in limits if isinstance(each, int)), None)
            self._learn_window(request.prompt, failure)
        if count_images(request.prompt.messages) and _may_refuse_images(failure, error):
            self._provider.learn(self.spec.name, images="none")
            self.spec = replace(
                self.spec,
                image_support="none",
                abilities=self.spec.abilities.difference({"images"}),
            )
            return request.without_images()
        if not isinstance(failure, _ADAPTABLE_ERRORS):
            raise failure
        if request.start and any(words in error.text for words in _REFUSES_START):
            self._remember_refused("start_reply_with")
            return request.without("start_reply_with")
        shape = find_stricter_shape(error.text, request.prompt, request.shape)
        if shape is not None:
            return replace(request, shape=shape)
        names = self._setting_names(request)
        refusal = read_refusal(error, names)
        adapted = self._leave_out(request, refusal, names, error.text) if refusal else None
        if adapted is None:
            raise failure
        return adapted

    def _learn_window(self, prompt: Prompt, refusal: ModelContextOverflowError) -> None:
        """Remember the window in a refusal, or else a smaller one than the prompt was built for."""
        known = self._provider.abilities.find(self.spec.name).window
        current = min(self.spec.context_window, known or self.spec.context_window)
        needed = refusal.needed or current - (prompt.reply_room or 0)
        window = choose_window_after_refusal(refusal.window, needed=needed, current=current)
        if window != known:
            self._provider.learn(self.spec.name, window=window)

    def _leave_out(
        self,
        request: ModelRequest,
        refusal: Refusal,
        names: Mapping[str, Sequence[SamplingField]],
        text: str,  # noqa: ARG002 - for subclasses
    ) -> ModelRequest | None:
        """Remove a refused setting; return None if the user has not set it.

        It is remembered if the refusal is for good.
        """
        set_by_user = request.sampling.set_fields()
        settings: list[SamplingField] = [
            each for each in names[refusal.member] if each in set_by_user
        ]
        if not settings:
            return None
        if refusal.for_good:
            self._remember_refused(*settings)
        return request.without(*settings)

    def _remember_refused(self, *settings: SamplingField) -> None:
        refused = self._provider.abilities.find(self.spec.name).refused
        refused = tuple(dict.fromkeys((*refused, *settings)))
        self._provider.learn(self.spec.name, refused=refused)
        self.spec = replace(
            self.spec,
            accepts=self.spec.accepts.difference(refused),
            refused=self.spec.refused.union(refused),
        )

    def _failure(
        self,
        error: ServerError,
        request: ModelRequest,  # noqa: ARG002 - for subclasses
    ) -> ModelError:
        """Convert the error of a request that is not repeated."""
        return self._provider.failure(error)


def _may_refuse_images(failure: ModelError, error: ServerError) -> bool:
    """True if a request with images was refused because of them."""
    is_refusal = isinstance(failure, (*_ADAPTABLE_ERRORS, ModelNotFoundError))
    return is_refusal and refuses_images(error.text)
