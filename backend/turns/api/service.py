"""One turn, from the user's line to the stored reply.

What fails before the model is asked is an answer of its own, what fails later is an event of the
stream. No database connection is held while the model talks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.errors import MessageNotFoundError
from backend.chats.messages import MessageService
from backend.chats.models import Message
from backend.chats.repository import get_chat
from backend.chats.token_counting import recount
from backend.context.record import Totals
from backend.core.cpu_pool import CpuPool
from backend.core.logs import get_logger
from backend.database.base import new_id
from backend.database.engine import Database, OvertakenError
from backend.llm.server_slots import ModelSlots
from backend.prompts import PromptLibrary
from backend.quotas.definitions import TOKENS_PER_DAY, QuotaExceededError
from backend.quotas.service import Quotas
from backend.turns import repository
from backend.turns.api.schemas import ChoiceRequest, TurnRequest, TurnUsage, TurnView
from backend.turns.errors import (
    ChatChangedError,
    TurnIdReusedError,
    TurnInProgressError,
    TurnNotFoundError,
    TurnWaitingError,
)
from backend.turns.models import TURN_OUTPUT, TURN_PROBLEM, Turn, TurnState
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.run.events import (
    EventCursor,
    Progress,
    TurnEvent,
    find_awaited_choice,
    read_progress,
)
from backend.turns.run.recovery import TurnRecovery
from backend.turns.run.registry import RunRegistry
from backend.turns.run.resume import TurnResumer
from backend.turns.run.start import TurnStarter
from backend.turns.run.store import TurnStore
from backend.turns.run.turn_run import TurnRun
from backend.vault.sealing import Sealer, digest


def view_turn(sealer: Sealer, turn: Turn) -> TurnView:
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
        waiting=find_awaited_choice(sealer, turn),
        waits_for=turn.waits_for,
        created_at=turn.created_at,
        finished_at=turn.finished_at,
    )


log = get_logger(__name__)

MAX_ATTEMPTS = 3
FOLLOW_SECONDS = 0.5
NEW_ID = "Make a new one for each turn."


class TurnService:
    """Starts turns, follows them, stops them."""

    def __init__(  # noqa: PLR0913  # the application hands it its parts
        self,
        database: Database,
        builder: PromptBuilder,
        message_service: MessageService,
        *,
        store: TurnStore,
        recovery: TurnRecovery,
        prompts: PromptLibrary,
        quotas: Quotas,
        pool: CpuPool,
        slots: ModelSlots,
    ) -> None:
        self._pool = pool
        self._database = database
        self._builder = builder
        self._messages = message_service
        self._store = store
        self._recovery = recovery
        self._starter = TurnStarter(database, pool, store.participants, prompts)
        self._waiting = TurnResumer(database, builder, prompts)
        self._quotas = quotas
        self._recounts: set[asyncio.Task[None]] = set()
        self.runs = RunRegistry(
            store=self._store.store_progress, conclude=self._store.conclude, slots=slots
        )

    async def take(self, identity: Identity, chat_id: UUID, request: TurnRequest) -> UUID:
        """Build the prompt, store the user's line with a place for the reply, ask the model.

        Gives back the turn's id; the turn goes on without a listener, too. With a turn id that was
        used for the same request it is that turn, and nothing is begun.

        Raises `TurnInProgressError`, `TurnIdReusedError`, `QuotaExceededError`, `ChatChangedError`
        and what `PromptBuilder.build` raises. Nothing is stored then.
        """
        turn_id, fingerprint = (
            request.turn_id or new_id(),
            _compute_fingerprint(identity, chat_id, request),
        )
        try:
            await self._quotas.check(TOKENS_PER_DAY, identity.user_id)
            with self._quotas.turns.hold(identity.user_id) as permit:
                run = await self._prepare(identity, chat_id, request, turn_id, fingerprint)
                permit.until(run.finished)
        except _ReplayError:
            return turn_id
        except QuotaExceededError:
            # What is sent again takes nothing more: it gives back the same turn.
            async with self._database.read() as session:
                if await _is_replay(session, identity, turn_id, fingerprint):
                    return turn_id
            raise
        self.runs.start(run)
        self._recount_if_needed(run)
        # The turn's task, and in it the model's, get to run before the answer's head is made.
        for _ in range(2):
            await asyncio.sleep(0)
        return turn_id

    async def choose(self, identity: Identity, turn_id: UUID, choice: ChoiceRequest) -> int:
        """Let a turn that waits go on with the player's choice, once however often it is sent.

        Returns the id of the event before that of the choice. Raises what `TurnResumer.choose`
        raises, and `QuotaExceededError`.
        """
        event_id = await self._waiting.made(identity, turn_id, choice)
        if event_id is None:
            await self._quotas.check(TOKENS_PER_DAY, identity.user_id)
            with self._quotas.turns.hold(identity.user_id) as permit:
                run, event_id = await self._waiting.choose(identity, turn_id, choice)
                if run is not None:
                    permit.until(run.finished)
                    self.runs.start(run)
        return event_id

    async def _prepare(
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        turn_id: UUID,
        fingerprint: bytes,
    ) -> TurnRun:
        """The turn, stored and ready to run. Raises `_ReplayError` if it was started before."""

        async def check(session: AsyncSession) -> None:
            """Look for this very turn, and for another one that is not over."""
            if request.turn_id and await _is_replay(session, identity, turn_id, fingerprint):
                raise _ReplayError
            turn = await repository.find_open_turn(session, chat_id, owner_id=identity.user_id)
            if turn is not None and turn.state == "waiting":
                raise TurnWaitingError(turn.id, find_awaited_choice(identity.sealer, turn))
            if turn is not None:
                raise TurnInProgressError(turn.id)

        is_outrun = False
        for attempt in range(MAX_ATTEMPTS):
            # A new line without an id needs no look: the index on running turns refuses a second
            # one. Whatever else goes by the last message has to know that none runs.
            look = check if attempt or request.turn_id or request.text is None else None
            built = await self._builder.build(identity, chat_id, request, check=look)
            try:
                run = await self._starter.start(
                    identity,
                    built,
                    turn_id,
                    fingerprint,
                    viewpoint=request.viewpoint,
                    rebuild=partial(self._builder.rebuild, identity, request),
                )
            except OvertakenError:
                # A turn that came first has the place of the running one, or this one's id. The
                # next look says which, and raises, unless the id is that of someone else's turn.
                log.info("turn.outrun", chat_id=chat_id, turn_id=turn_id, attempt=attempt)
                is_outrun = True
                continue
            if run is not None:
                return run
            is_outrun = False
            log.info("turn.chat_changed", chat_id=chat_id, turn_id=turn_id, attempt=attempt)
        if is_outrun and request.turn_id is not None:
            raise TurnIdReusedError(NEW_ID)
        raise ChatChangedError("Look at it again, and send the line once more.")

    async def events(
        self, identity: Identity, turn_id: UUID, *, last_id: int, beat: float
    ) -> AsyncIterator[list[TurnEvent]]:
        """A turn's events after `last_id`, wherever it runs or ran; empty lists in silence.

        Raises `TurnNotFoundError` before the first.
        """
        run = self.runs.get(turn_id)
        if run is not None and run.user_id == identity.user_id:
            async for batch in run.events(last_id, beat=beat):
                yield batch
            return
        silence, cursor = 0.0, EventCursor(last_id)
        while True:
            try:
                progress = await self._read_progress(identity, turn_id)
            except TurnNotFoundError as error:
                if cursor.last_id == 0:
                    raise
                # Its chat was deleted while somebody followed it here.
                yield [TurnEvent(cursor.last_id + 1, "turn.failed", error.to_problem())]
                return
            batch = cursor.next_events(progress)
            if batch:
                yield batch
            if progress.is_at_rest or self.runs.is_closing:
                return  # the process that has the turn, or the next one, goes on
            silence = 0.0 if batch else silence + FOLLOW_SECONDS
            if silence >= beat:
                silence = 0.0
                yield []
            await asyncio.sleep(FOLLOW_SECONDS)

    async def get(self, identity: Identity, turn_id: UUID) -> TurnView:
        """Raises `TurnNotFoundError`."""
        async with self._database.read() as session:
            turn = await repository.get_turn(session, turn_id, owner_id=identity.user_id)
        reply = None
        if turn.reply_id is not None and turn.kind != "impersonate":
            with contextlib.suppress(MessageNotFoundError):  # deleted since
                reply = await self._messages.get(identity, turn.reply_id)
        view = view_turn(identity.sealer, turn)
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
        return [view_turn(identity.sealer, turn) for turn in turns]

    async def stop(self, identity: Identity, turn_id: UUID) -> None:
        """End a turn where it is; what was said is kept. Raises `TurnNotFoundError`."""
        await self._recovery.stop(identity, turn_id)
        if run := self.runs.get(turn_id):
            run.stop()

    async def recover(self) -> None:
        """Mark turns that a crash cut off."""
        count = await self._recovery.recover()
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
        return read_progress(identity.sealer, turn, reply)

    def _recount_if_needed(self, run: TurnRun) -> None:
        """Move a chat's stored counts to its model's vocabulary, beside the turn."""
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


class _ReplayError(Exception):
    """The very same turn was started before."""


async def _is_replay(
    session: AsyncSession, identity: Identity, turn_id: UUID, fingerprint: bytes
) -> bool:
    """Whether this request started this turn before. Raises `TurnIdReusedError`."""
    turn = await repository.find_turn(session, turn_id, owner_id=identity.user_id)
    if turn is None:
        return False
    if turn.request_digest != fingerprint:
        raise TurnIdReusedError(NEW_ID)
    return True


def _compute_fingerprint(identity: Identity, chat_id: UUID, request: TurnRequest) -> bytes:
    """What makes two requests the same turn: everything in them but the turn's id."""
    body = msgspec.json.encode(msgspec.structs.replace(request, turn_id=None))
    return digest(identity.sealer.derived("turn-requests"), chat_id.bytes, body)
