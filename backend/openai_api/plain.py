"""Plain models: chat completions of any model of the account, without a chat. Nothing is stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.core.logs import get_logger
from backend.database.base import new_id
from backend.database.engine import Database
from backend.errors import AppError, InternalError, ValidationError
from backend.generation.model import (
    Finish,
    JsonForm,
    ModelEmptyReplyError,
    ModelInterruptedError,
    Piece,
    RequestOptions,
    SentRequest,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolCall,
    ToolChoice,
)
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ServerLimit
from backend.generation.tools.streams import stream_in_way
from backend.llm.answers import estimate_usage, join_answer
from backend.llm.server_slots import ModelSlots
from backend.llm.slot_rules import Rank, SlotWork
from backend.llm.user_models import UserModels
from backend.openai_api.contracts import SentMessage
from backend.openai_api.plain_prompts import PlainCall, build_call, name_settings
from backend.quotas.ledgers import UnlistedUsage, add_unlisted
from backend.quotas.limits import TOKENS_PER_DAY
from backend.quotas.service import Quotas

log = get_logger(__name__)

MAX_CHOICES = 8
"""Maximum number of choices that one request writes at the same time."""

FIRST_PIECE_SECONDS = 10.0
"""Time that `PlainModels.start` waits for the first piece. Proxies close connections without
response headers after 30 to 60 seconds."""

SLOT_SECONDS = 600.0
"""Time that a request waits for a place at a server with few slots."""


class TooManyChoicesError(ValidationError):
    """A request asks for too many replies at the same time."""

    slug, title = "too-many-choices", "Too many choices"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRequest:
    """A chat completion of a plain model.

    Attributes:
        model: The id of a model, `<provider>/<model>` or `demo`.
        messages: The client's messages, in order.
        sampling: The client's settings. Those that the model does not support are left out.
        tools: The client's tools.
        tool_choice: The tools that the model may or must call.
        form: The member `response_format`. None is text.
        n: The number of choices.
        extra: Unknown parameters to pass on. See `PlainModels`.
        chat_id: The chat of a quiet request.
    """

    model: str
    messages: Sequence[SentMessage]
    sampling: Sampling = Sampling()  # noqa: RUF009  # frozen
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice()  # noqa: RUF009  # frozen
    form: JsonForm | None = None
    n: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    chat_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class _Choice:
    """One reply to write, and the limit of its server."""

    model_id: str
    call: PlainCall
    limit: ServerLimit | None
    work: SlotWork


class PlainReply:
    """The choices of one request while they are written.

    The requests run in a task, which ends with the reply, or if `pieces` is closed.

    Attributes:
        left_out: The parameters that are not sent, by the names of the API. It is complete once
            the first piece has arrived.
    """

    def __init__(self, left_out: Sequence[str]) -> None:
        self.left_out: Sequence[str] = list(dict.fromkeys(left_out))
        self._queue: asyncio.Queue[tuple[int, Piece] | AppError | None] = asyncio.Queue()
        self._arrived = asyncio.Event()
        self._failure: AppError | None = None
        self._task: asyncio.Task[None] | None = None

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """Yield the index of a choice and a piece of it.

        The pieces are texts, thoughts, tool calls, resets, and a `Finish` for each choice. The last
        piece is the `TokenUsage` of all, with the index 0. Closing it ends the requests.

        Raises:
            AppError: The errors of `PlainModels.start` that come later.
        """
        try:
            while isinstance(each := await self._queue.get(), tuple):
                yield each
            if each is not None:
                raise each
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End the requests and count their tokens. Required if `pieces` is never iterated."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start the task that writes the reply."""
        self._task = asyncio.create_task(work, name="plain.reply")
        return self._task

    async def wait_for_first(self, seconds: float) -> None:
        """Wait for the first piece. Raises an error that comes before it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        if self._failure is not None:
            await self.aclose()
            raise self._failure

    def put(self, index: int, piece: Piece) -> None:
        """Add a piece of a choice."""
        self._queue.put_nowait((index, piece))
        self._arrived.set()

    def leave_out(self, names: Sequence[str]) -> None:
        self.left_out = list(dict.fromkeys((*self.left_out, *names)))

    def end(self, failure: AppError | None) -> None:
        if not self._arrived.is_set():
            self._failure = failure
        self._queue.put_nowait(failure)
        self._arrived.set()


class PlainModels:
    """Requests to plain models.

    Unknown parameters are passed on only to OpenAI-compatible servers of the user's own, or if the
    user is an administrator. They may choose other models or paid services, which would be billed
    to the installation's key.
    """

    def __init__(
        self, database: Database, user_models: UserModels, quotas: Quotas, slots: ModelSlots
    ) -> None:
        self._database = database
        self._user_models = user_models
        self._quotas = quotas
        self._slots = slots
        self._replies: set[asyncio.Task[None]] = set()
        self._counts: set[asyncio.Task[None]] = set()

    async def start(self, identity: Identity, *requests: PlainRequest) -> PlainReply:
        """Begin a request. The choices of several requests are numbered in order.

        Waits `FIRST_PIECE_SECONDS` for the first piece, so that most errors of a provider are
        raised here.

        Raises:
            UnknownModelError: The account has no such model.
            ValidationError: The messages, the tools or the number of choices are not valid.
            QuotaExceededError: A quota is used up.
            ModelBusyError: The model's server had no place in time.
            ModelError: The provider failed before the first piece.
        """
        count = sum(request.n for request in requests)
        if count > MAX_CHOICES or any(request.n < 1 for request in requests):
            raise TooManyChoicesError(f"A request may have 1 to {MAX_CHOICES} choices.")
        await self._quotas.check(TOKENS_PER_DAY, identity.user_id)
        async with self._database.read() as session:
            models = await self._user_models.of(session, identity.user, identity.sealer)
        choices: list[_Choice] = []
        left_out: list[str] = []
        for request in requests:
            choice = _make_choice(identity, models, request)
            left_out += choice.call.left_out
            choices += [choice] * request.n
        reply = PlainReply(left_out)
        task = reply.begin(self._write_all(identity.user_id, choices, reply))
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)
        try:
            await reply.wait_for_first(FIRST_PIECE_SECONDS)
        except asyncio.CancelledError:
            await reply.aclose()
            raise
        return reply

    async def aclose(self) -> None:
        """End all replies and count their tokens."""
        for task in self._replies:
            task.cancel()
        while running := self._replies | self._counts:
            await asyncio.wait(running)

    async def _write_all(
        self, user_id: UUID, choices: Sequence[_Choice], reply: PlainReply
    ) -> None:
        """Write all choices at the same time. The first error ends the others."""
        failure: AppError | None = ModelInterruptedError("The request was ended.")
        usages: list[tuple[str, TokenUsage]] = []
        try:
            with self._quotas.turns.hold(user_id, len(choices)):
                async with asyncio.TaskGroup() as group:
                    for index, choice in enumerate(choices):
                        group.create_task(self._write(index, choice, reply, usages))
            failure = None
        except* AppError as errors:
            failure = _find_first(errors)
        except* Exception as errors:  # an error in the code must end the reply and not block it
            log.exception("plain.crashed", user_id=user_id, exc_info=errors)
            failure = InternalError("The server log has the details.")
        finally:
            # Tokens are counted even if the client has closed the connection.
            counting = asyncio.create_task(self._count(user_id, usages))
            self._counts.add(counting)
            counting.add_done_callback(self._counts.discard)
            await asyncio.shield(counting)
            if failure is None:
                reply.put(0, _add_usages([usage for _, usage in usages]))
            reply.end(failure)

    async def _write(
        self, index: int, choice: _Choice, reply: PlainReply, usages: list[tuple[str, TokenUsage]]
    ) -> None:
        async with self._slots.hold([choice.limit], choice.work, patience=SLOT_SECONDS):
            writer = _ChoiceWriter(index, choice.call, reply)
            try:
                await writer.run()
            finally:
                if (usage := writer.usage) is not None:
                    usages.append((choice.model_id, usage))

    async def _count(self, user_id: UUID, usages: Sequence[tuple[str, TokenUsage]]) -> None:
        if not usages:
            return
        spent = sum(usage.prompt_tokens + usage.completion_tokens for _, usage in usages)
        theirs = [UnlistedUsage(model=model, turns=1, **asdict(usage)) for model, usage in usages]
        async with self._database.write() as session:
            await add_unlisted(session, user_id, theirs, tokens=spent)


class _ChoiceWriter:
    """Puts the pieces of one reply into a `PlainReply`."""

    def __init__(self, index: int, call: PlainCall, reply: PlainReply) -> None:
        self._index = index
        self._call = call
        self._reply = reply
        self._prefill = call.prefill
        self._said: list[str] = []
        self._calls: list[ToolCall] = []
        self._reported: TokenUsage | None = None
        self._is_finished = False

    @property
    def usage(self) -> TokenUsage | None:
        """The reported tokens, or else an estimate. None if the provider refused the request."""
        if self._reported is not None:
            return self._reported
        if not (self._said or self._calls or self._is_finished):
            return None
        return estimate_usage(self._call.prompt, join_answer("".join(self._said), self._calls))

    async def run(self) -> None:
        call = self._call
        stream = stream_in_way(
            call.model, call.prompt, call.tools, call.sampling, call.way, options=call.options
        )
        try:
            async with aclosing(stream) as pieces:
                async for piece in pieces:
                    self._add(piece)
        except ModelEmptyReplyError:
            # Short limits and stop sequences of clients make empty replies, which are no errors.
            self._put(Finish("stop"))

    def _add(self, piece: Piece) -> None:
        match piece:
            case SentRequest(left_out=settings, images_left_out=images):
                names = name_settings(settings) + (["images"] if images else [])
                self._reply.leave_out(names)
            case TokenUsage():
                self._reported = piece
            case TextPiece(text):
                self._said.append(text)
                if rest := self._remove_prefill(text):
                    self._put(TextPiece(rest))
            case _:
                if isinstance(piece, ThinkingPiece):
                    self._said.append(piece.text)
                elif isinstance(piece, ToolCall):
                    self._calls.append(piece)
                self._put(piece)

    def _put(self, piece: Piece) -> None:
        self._is_finished = self._is_finished or isinstance(piece, Finish)
        self._reply.put(self._index, piece)

    def _remove_prefill(self, text: str) -> str:
        """Remove the beginning of the reply that the client has sent itself."""
        length = min(len(text), len(self._prefill))
        if text[:length] != self._prefill[:length]:
            self._prefill = ""
            return text
        self._prefill = self._prefill[length:]
        return text[length:]


def _make_choice(identity: Identity, models: ModelRegistry, request: PlainRequest) -> _Choice:
    model = models.get(request.model)
    options = RequestOptions(
        tool_choice=request.tool_choice,
        form=request.form,
        extra=request.extra if _may_pass_extra(identity, models, request.model) else {},
    )
    call = build_call(
        model, request.messages, request.sampling, tools=request.tools, options=options
    )
    unsent = [name for name in request.extra if name not in options.extra]
    return _Choice(
        request.model,
        replace(call, left_out=[*call.left_out, *unsent]),
        models.find_limit(request.model),
        # A reply cannot be repeated once its beginning was sent, so it has the rank of a turn.
        SlotWork(
            use="request",
            rank=Rank.TURN,
            user_id=identity.user_id,
            chat_id=request.chat_id or new_id(),
        ),
    )


def _may_pass_extra(identity: Identity, models: ModelRegistry, model_id: str) -> bool:
    provider = models.providers.get(model_id.partition("/")[0])
    if provider is None or provider.kind != "openai":
        return False
    return provider.is_own or identity.user.is_administrator


def _find_first(errors: BaseExceptionGroup[AppError]) -> AppError:
    """Return the first error of a group, or of a group in it."""
    first = errors.exceptions[0]
    return _find_first(first) if isinstance(first, BaseExceptionGroup) else first


def _add_usages(usages: Sequence[TokenUsage]) -> TokenUsage:
    return TokenUsage(
        prompt_tokens=sum(each.prompt_tokens for each in usages),
        completion_tokens=sum(each.completion_tokens for each in usages),
        cached_tokens=sum(each.cached_tokens for each in usages),
        thinking_tokens=sum(each.thinking_tokens for each in usages),
    )
