"""One turn, from the user's line to the stored reply.

`prepare` and `start` are apart: what fails in `prepare` is an answer of its own, what fails later
is an event of the stream. No database connection is held while the model talks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

import msgspec
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.accounts.settings import BudgetSettings
from backend.chats.counting import recount
from backend.chats.errors import EmptyMessageError, MessageNotFoundError
from backend.chats.messages import MessageService
from backend.chats.models import Message
from backend.chats.repository import get_chat
from backend.context.record import Totals
from backend.cpu_pool import CpuPool
from backend.database.base import new_id
from backend.database.engine import Database
from backend.generation.model import ModelEmptyReplyError
from backend.generation.registry import ModelRegistry
from backend.logs import get_logger
from backend.quotas.ledgers import add_tokens
from backend.quotas.limits import ConcurrencyLimit
from backend.turns import repository
from backend.turns.assemble import Built
from backend.turns.builder import Check, PromptBuilder
from backend.turns.errors import (
    ChatChangedError,
    TurnIdReusedError,
    TurnInProgressError,
    TurnNotFoundError,
)
from backend.turns.events import Progress, TurnEvent
from backend.turns.models import TURN_OUTPUT, TURN_PROBLEM, Turn, TurnState
from backend.turns.progress import stored_progress
from backend.turns.runs import RunRegistry, TurnRun
from backend.turns.schemas import SuggestionRequest, TurnRequest, TurnUsage, TurnView
from backend.turns.spending import tokens_of
from backend.turns.start import TurnStarter
from backend.turns.store import TurnStore
from backend.vault.sealing import Sealer, digest

log = get_logger(__name__)

NO_BUDGETS = BudgetSettings()
"""All as the settings say."""

ATTEMPTS = 3
FOLLOW_EVERY = 0.5

SUGGESTION_SCHEMA = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"type": "string"}}},
    "required": ["lines"],
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A turn that is stored and may start; `run` is None for one that was there before."""

    turn_id: UUID
    run: TurnRun | None


class TurnService:
    """Starts turns, follows them, stops them."""

    def __init__(  # the application hands it its parts
        self,
        database: Database,
        builder: PromptBuilder,
        registry: ModelRegistry,
        message_service: MessageService,
        store: TurnStore,
        limit: ConcurrencyLimit,
        *,
        pool: CpuPool,
    ) -> None:
        self._pool = pool
        self._database = database
        self._builder = builder
        self._registry = registry
        self._messages = message_service
        self._store = store
        self._starter = TurnStarter(database, registry, pool, store.participants)
        self._limit = limit
        self._recounts: set[asyncio.Task[None]] = set()
        self.runs = RunRegistry(store=self._store.store_progress, conclude=self._store.conclude)

    async def preview(
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        *,
        budgets: BudgetSettings = NO_BUDGETS,
    ) -> Built:
        """The prompt of the turn that would come now, with a line or without; nothing is stored.

        `budgets` stand before what the settings say.

        Raises what `PromptBuilder.build` raises.
        """
        return await self._build(identity, chat_id, request, tried=budgets)

    async def _build(
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        *,
        check: Check | None = None,
        tried: BudgetSettings | None = None,
        suggestions: int = 0,
    ) -> Built:
        if request.text:
            self._messages.check_text(request.text)
        built = await self._builder.build(
            identity,
            chat_id,
            request,
            check=check,
            tried=tried,
            suggestions=suggestions,
        )
        line = built.loaded.line
        if line is not None and line != request.text:
            if not line.strip():
                raise EmptyMessageError("Regex scripts of yours leave nothing of it.")
            self._messages.check_text(line)
        return built

    async def prepare(self, identity: Identity, chat_id: UUID, request: TurnRequest) -> Prepared:
        """Build the prompt and store the user's line, with a place for the reply.

        A turn id that was used for the same request gives back that turn.

        Raises `TurnInProgressError`, `TurnIdReusedError`, `QuotaExceededError`,
        `ChatChangedError`, `EmptyMessageError`, `MessageTooLongError`, `NotContinuableError` and
        what `PromptBuilder.build` raises. Nothing is stored then.
        """
        if request.text is not None:
            self._messages.check_text(request.text)
        with self._limit.hold(identity.user_id) as permit:
            prepared = await self._prepare(identity, chat_id, request)
            if prepared.run is not None:
                # Counted until it is over.
                permit.until(prepared.run.finished)
            return prepared

    async def find_again(
        self, identity: Identity, chat_id: UUID, request: TurnRequest
    ) -> Prepared | None:
        """The turn that this very request began before; None where there is none.

        Raises `TurnIdReusedError`.
        """
        if request.turn_id is None:
            return None
        fingerprint = _fingerprint(identity, chat_id, request)
        async with self._database.read() as session:
            is_known = await _is_replay(session, identity, request.turn_id, fingerprint)
        return Prepared(request.turn_id, None) if is_known else None

    async def _prepare(self, identity: Identity, chat_id: UUID, request: TurnRequest) -> Prepared:
        turn_id = request.turn_id or new_id()
        fingerprint = _fingerprint(identity, chat_id, request)

        async def check(session: AsyncSession) -> None:
            """Look for this very turn, and for another one that runs."""
            if request.turn_id and await _is_replay(session, identity, turn_id, fingerprint):
                raise _ReplayError
            running = await repository.running_turn(session, chat_id, owner_id=identity.user_id)
            if running is not None:
                raise TurnInProgressError(running.id)

        try:
            for attempt in range(ATTEMPTS):
                # A new line without an id needs no look: the index on running turns refuses a
                # second one. Whatever else goes by the last message has to know that none runs.
                look = check if attempt or request.turn_id or request.text is None else None
                built = await self._build(identity, chat_id, request, check=look)
                try:
                    run = await self._starter.start(identity, built, turn_id, fingerprint)
                except IntegrityError:
                    # Another turn came first, and the next look will say which.
                    continue
                if run is not None:
                    return Prepared(turn_id, run)
        except _ReplayError:
            return Prepared(turn_id, None)
        raise ChatChangedError("Look at it again, and send the line once more.")

    async def start(self, run: TurnRun) -> None:
        """Let the model speak; the turn goes on whoever listens."""
        self.runs.start(run)
        self._recount_if_needed(run)
        # The turn's task, and in it the model's, get to run before the answer's head is made.
        for _ in range(2):
            await asyncio.sleep(0)

    async def events(
        self, identity: Identity, turn_id: UUID, *, last_id: int, beat: float
    ) -> AsyncIterator[list[TurnEvent]]:
        """A turn's events behind `last_id`, wherever it runs or ran; empty lists in silence.

        Raises `TurnNotFoundError` before the first.
        """
        run = self.runs.get(turn_id)
        if run is not None and run.user_id == identity.user_id:
            async for batch in run.events(last_id, beat=beat):
                yield batch
            return
        silence = 0.0
        while True:
            try:
                progress = await self._read_progress(identity, turn_id)
            except TurnNotFoundError as error:
                if last_id == 0:
                    raise
                # Its chat was deleted while somebody followed it here.
                yield [TurnEvent(last_id + 1, "turn.failed", error.to_problem())]
                return
            batch = list(progress.events_after(last_id))
            if batch:
                last_id = batch[-1].id
                yield batch
            if progress.is_over:
                return
            silence = 0.0 if batch else silence + FOLLOW_EVERY
            if silence >= beat:
                silence = 0.0
                yield []
            await asyncio.sleep(FOLLOW_EVERY)

    async def get(self, identity: Identity, turn_id: UUID) -> TurnView:
        """Raises `TurnNotFoundError`."""
        async with self._database.read() as session:
            turn = await repository.get_turn(session, turn_id, owner_id=identity.user_id)
        reply = None
        if turn.reply_id is not None and turn.kind != "impersonate":
            with contextlib.suppress(MessageNotFoundError):  # deleted since
                reply = await self._messages.get(identity, turn.reply_id)
        view = _view(identity.sealer, turn)
        view.reply = reply
        if turn.sealed_output:
            view.text = identity.sealer.open(TURN_OUTPUT, turn.id, turn.sealed_output)
        return view

    async def list_turns(
        self,
        identity: Identity,
        chat_id: UUID,
        *,
        state: TurnState | None,
        after: UUID | None,
        limit: int,
    ) -> list[TurnView]:
        """Turns of a chat, newest first, without what was said. Raises `ChatNotFoundError`."""
        async with self._database.read() as session:
            await get_chat(session, chat_id, owner_id=identity.user_id)
            turns = await repository.list_turns(
                session,
                chat_id,
                owner_id=identity.user_id,
                state=state,
                after=after,
                limit=limit,
            )
        return [_view(identity.sealer, turn) for turn in turns]

    async def stop(self, identity: Identity, turn_id: UUID) -> None:
        """End a turn where it is; what was said is kept. Raises `TurnNotFoundError`."""
        async with self._database.write() as session:
            turn = await repository.get_turn(session, turn_id, owner_id=identity.user_id)
            if turn.state != "running":
                return
            await repository.request_stop(session, turn.id)
        if run := self.runs.get(turn_id):
            run.stop()

    async def suggest(
        self, identity: Identity, chat_id: UUID, request: SuggestionRequest
    ) -> list[str]:
        """Lines that the user could say next, made by the model of the same prompt."""
        with self._limit.hold(identity.user_id):
            built = await self._build(
                identity, chat_id, TurnRequest(impersonate=True), suggestions=request.count
            )
            model = self._registry.get(built.window.spec.id)
            answer = await model.structured(built.prompt, SUGGESTION_SCHEMA, built.window.sampling)
        spent = tokens_of(answer.usage, counted=built.assembled.tokens)
        async with self._database.write() as session:
            await add_tokens(session, identity.user_id, spent)
        try:
            lines = msgspec.convert(answer.value, _Suggested).lines
        except msgspec.ValidationError:
            lines = []
        texts = [text for line in lines if (text := line.strip())][: request.count]
        if not texts:
            raise ModelEmptyReplyError("It suggested nothing. Try again, or another model.")
        return texts

    async def recover(self, *, all_running: bool) -> None:
        """Mark turns that a crash cut off."""
        count = await self._store.recover(all_running=all_running)
        if count:
            log.warning("turn.recovered", count=count)

    async def close(self) -> None:
        """Cut running turns off, with what they said kept."""
        await self.runs.close()
        for task in list(self._recounts):
            task.cancel()

    async def _read_progress(self, identity: Identity, turn_id: UUID) -> Progress:
        async with self._database.read() as session:
            turn = await repository.get_turn(session, turn_id, owner_id=identity.user_id)
            reply = await session.get(Message, turn.reply_id) if turn.reply_id else None
        return stored_progress(identity.sealer, turn, reply)

    def _recount_if_needed(self, run: TurnRun) -> None:
        """Move a chat's stored counts to its model's vocabulary, behind the scenes."""
        if not run.built.window.is_estimated:
            return
        task = asyncio.create_task(self._recount(run))
        self._recounts.add(task)
        task.add_done_callback(self._recounts.discard)

    async def _recount(self, run: TurnRun) -> None:
        try:
            await run.finished.wait()
            await recount(
                self._database, self._pool, run.sealer, run.chat_id, run.built.window.unit
            )
        except Exception as error:  # the next turn tries again
            log.warning("chat.not_recounted", chat_id=run.chat_id, exc_info=error)


def _view(sealer: Sealer, turn: Turn) -> TurnView:
    """A turn as its row tells it."""
    return TurnView(
        id=turn.id,
        chat_id=turn.chat_id,
        kind=turn.kind,
        state=turn.state,
        model=turn.model,
        user_message_id=turn.user_message_id,
        reply_id=turn.reply_id,
        usage=msgspec.json.decode(turn.usage, type=TurnUsage) if turn.usage else None,
        totals=msgspec.json.decode(turn.totals, type=Totals),
        problem=(
            msgspec.json.decode(sealer.open_bytes(TURN_PROBLEM, turn.id, turn.sealed_problem))
            if turn.sealed_problem
            else None
        ),
        created_at=turn.created_at,
        finished_at=turn.finished_at,
    )


class _Suggested(msgspec.Struct):
    """What a model is to answer when it is asked for suggestions."""

    lines: list[str]


class _ReplayError(Exception):
    """The very same turn was started before."""


async def _is_replay(
    session: AsyncSession, identity: Identity, turn_id: UUID, fingerprint: bytes
) -> bool:
    """Whether this request started this turn before. Raises `TurnIdReusedError`."""
    turn = await repository.find_turn(session, turn_id)
    if turn is None:
        return False
    if turn.user_id != identity.user_id or turn.request_digest != fingerprint:
        raise TurnIdReusedError("Make a new one for each turn.")
    return True


def _fingerprint(identity: Identity, chat_id: UUID, request: TurnRequest) -> bytes:
    """What makes two requests the same turn: everything in them but the turn's id."""
    body = msgspec.json.encode(msgspec.structs.replace(request, turn_id=None))
    return digest(identity.sealer.derived("turn-requests"), chat_id.bytes, body)
