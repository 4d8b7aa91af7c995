"""Turns from the user's line to the stored reply.

Failures before the model is asked are error responses, later ones are events of the stream. No
database connection is held while the model works.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from uuid import UUID

import msgspec
from msgspec import structs
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.viewpoints import MIN_GROUP
from backend.chats.errors import MessageNotFoundError
from backend.chats.messages import MessageService
from backend.chats.models import Message
from backend.chats.repository import get_chat
from backend.chats.token_counting import recount_chat
from backend.context.record import Totals
from backend.core.cpu_pool import CpuPool
from backend.core.logs import get_logger
from backend.database.base import new_id, now
from backend.database.engine import Database, OvertakenError
from backend.errors import BadRequestError
from backend.generation.sampling import SamplingField
from backend.llm.server_slots import ModelSlots
from backend.prompts import PromptLibrary
from backend.quotas.limits import TOKENS_PER_DAY, QuotaExceededError
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
from backend.turns.models import NOT_BUILT, TURN_OUTPUT, TURN_PROBLEM, Turn, TurnState
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.prompt.client import ClientPrompt
from backend.turns.prompt.images import name_images
from backend.turns.prompt.speaker_choice import TurnSpeaker
from backend.turns.run.chains import FindOpen, ReplyChains
from backend.turns.run.events import (
    EventCursor,
    EventPlace,
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
from backend.turns.run.turn_run import ChainPlace, TurnRun
from backend.vault.sealing import Sealer, digest

log = get_logger(__name__)

MAX_ATTEMPTS = 3

FOLLOW_SECONDS = 0.5

NEW_ID = "Use a new id for each turn."


def view_turn(sealer: Sealer, turn: Turn) -> TurnView:
    return TurnView(
        id=turn.id,
        chat_id=turn.chat_id,
        kind=turn.kind,
        state=turn.state,
        model=turn.model,
        user_message_id=turn.user_message_id,
        reply_id=turn.reply_id,
        usage=msgspec.json.decode(turn.usage, type=TurnUsage) if turn.usage else None,
        totals=(
            msgspec.json.decode(turn.totals, type=Totals) if turn.totals != NOT_BUILT else None
        ),
        problem=(
            msgspec.json.decode(sealer.open_bytes(TURN_PROBLEM, turn.id, turn.sealed_problem))
            if turn.sealed_problem
            else None
        ),
        waiting=find_awaited_choice(sealer, turn),
        waits_for=turn.waits_for,
        chain_id=turn.chain_id,
        replies_left=turn.replies_left,
        created_at=turn.created_at,
        finished_at=turn.finished_at,
    )


class TurnService:
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
        find_open: FindOpen,
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
        self._chains = ReplyChains(
            database, builder, self._starter, quotas, self.runs, find_open=find_open
        )

    async def take(
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        client: ClientPrompt | None = None,
    ) -> UUID:
        """Build the prompt, store the user's line with a row for the reply, and ask the model.

        With the prompt of a `client`, its messages are the history. `text` is stored as it is, with
        the images of the client's line.

        Returns the id of the turn, which runs with or without a listener. If the turn id was used
        for the same request, nothing is started. Replies may follow it by themselves, but not that
        of a client.

        Raises `TurnInProgressError`, `TurnIdReusedError`, `QuotaExceededError`, `ChatChangedError`
        and the errors of `PromptBuilder.build`. Nothing is stored then.
        """
        request = name_images(request)
        turn_id, fingerprint = (
            request.turn_id or new_id(),
            _compute_fingerprint(identity, chat_id, request),
        )
        try:
            await self._quotas.check(TOKENS_PER_DAY, identity.user_id)
            with self._quotas.turns.hold(identity.user_id) as permit:
                run = await self._prepare(identity, chat_id, request, turn_id, fingerprint, client)
                over = run.finished
                if run.chain is not None:
                    # One permit for all replies, because only one of them runs at a time.
                    over = self._chains.follow(identity, run, viewpoint=request.viewpoint)
                permit.extend(over)
        except _ReplayError:
            return turn_id
        except QuotaExceededError:
            # A repeated request uses no tokens, so it returns the same turn.
            async with self._database.read() as session:
                if await _is_replay(session, identity, turn_id, fingerprint):
                    return turn_id
            raise
        self.runs.start(run)
        self._recount_if_needed(run)
        # Yield twice so that the model request starts before the response headers are sent.
        for _ in range(2):
            await asyncio.sleep(0)
        return turn_id

    def list_unsent_settings(self, turn_id: UUID) -> list[SamplingField]:
        """Return the settings of a running turn that the model does not support."""
        run = self.runs.get(turn_id)
        return run.unsent_settings if run is not None else []

    async def choose(
        self,
        identity: Identity,
        turn_id: UUID,
        choice: ChoiceRequest,
        client: ClientPrompt | None = None,
    ) -> int:
        """Resume a waiting turn with the player's choice. A repeated choice has no further effect.

        With the prompt of a `client`, which ends with the line that the turn answers, the rest of
        the turn has this prompt.

        Returns the id of the event before that of the choice. Raises the errors of
        `TurnResumer.choose` and `QuotaExceededError`.
        """
        event_id = await self._waiting.find_made_choice(identity, turn_id, choice)
        if event_id is None:
            await self._quotas.check(TOKENS_PER_DAY, identity.user_id)
            with self._quotas.turns.hold(identity.user_id) as permit:
                run, event_id = await self._waiting.choose(identity, turn_id, choice, client)
                if run is not None:
                    permit.extend(run.finished)
                    self.runs.start(run)
        return event_id

    async def _prepare(
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        turn_id: UUID,
        fingerprint: bytes,
        client: ClientPrompt | None,
    ) -> TurnRun:
        """Store the turn. Raises `_ReplayError` if the same request has started it before."""
        replaced: UUID | None = None

        async def check(session: AsyncSession) -> None:
            """Raise an error if this turn exists or another turn of the chat is open."""
            nonlocal replaced
            if request.turn_id and await _is_replay(session, identity, turn_id, fingerprint):
                raise _ReplayError
            replaced = await _find_reserved(session, identity, chat_id)

        is_outrun, speaker = False, TurnSpeaker.of_turn(turn_id)
        for attempt in range(MAX_ATTEMPTS):
            # A new line without a turn id needs no check, because the index on open turns refuses a
            # second one. Other requests depend on the last message and must know that no turn is
            # running.
            look = check if attempt or request.turn_id or request.text is None else None
            try:
                built = await self._builder.build(
                    identity, chat_id, request, check=look, client=client, speaker=speaker
                )
            except _AbandonedTurnError as error:
                # Here, because after a loss there may be thousands to recover before it.
                await self._recovery.recover_turn(error.turn)
                is_outrun = False
                continue
            try:
                run = await self._starter.start(
                    identity,
                    built,
                    turn_id,
                    fingerprint,
                    viewpoint=request.viewpoint,
                    rebuild=partial(self._builder.rebuild, identity, request),
                    chain=None if client else _plan_chain(request, built, turn_id),
                    replaced=replaced,
                )
            except OvertakenError:
                # Another turn was first, or has the same id. The next check finds out which, and
                # raises, unless the id belongs to another user's turn.
                log.info("turn.outrun", chat_id=chat_id, turn_id=turn_id, attempt=attempt)
                is_outrun = True
                continue
            if run is not None:
                return run
            is_outrun = False
            log.info("turn.chat_changed", chat_id=chat_id, turn_id=turn_id, attempt=attempt)
        if is_outrun and request.turn_id is not None:
            raise TurnIdReusedError(NEW_ID)
        raise ChatChangedError("Read the chat again, and send the message again.")

    async def events(
        self, identity: Identity, turn_id: UUID, *, last_id: int, beat: float
    ) -> AsyncIterator[list[TurnEvent]]:
        """Yield the events of a turn after `last_id`, in any process.

        Yields empty lists in silence.

        Raises `TurnNotFoundError` before the first event.
        """
        async for batch, _ in self._follow(identity, turn_id, last_id=last_id, beat=beat):
            yield batch

    async def joined_events(
        self, identity: Identity, turn_id: UUID, *, last: EventPlace, beat: float
    ) -> AsyncIterator[list[TurnEvent]]:
        """Yield the events of a turn and of those that follow it by themselves, after `last`.

        Yields empty lists in silence. Events of later turns carry the id of their turn. Turns that
        are deleted have no events.
        """
        current, last_id = last.turn_id or turn_id, last.id
        while True:
            label, replies_left = None if current == turn_id else current, 0
            with contextlib.suppress(TurnNotFoundError):
                async for batch, left in self._follow(
                    identity, current, last_id=last_id, beat=beat
                ):
                    replies_left = left
                    yield (
                        [structs.replace(each, turn_id=label) for each in batch] if label else batch
                    )
            if not replies_left or self.runs.is_closing:
                return
            async with self._database.read() as session:
                turn = await repository.find_turn(session, current, owner_id=identity.user_id)
                following = await repository.find_next_turn(session, turn) if turn else None
            if following is None:
                return
            current, last_id = following.id, 0

    async def check_place(self, identity: Identity, turn_id: UUID, last: EventPlace) -> None:
        """Raise `BadRequestError` unless a turn or one that follows it has the last event.

        Raises `TurnNotFoundError`.
        """
        async with self._database.read() as session:
            turn = await repository.get_turn(session, turn_id, owner_id=identity.user_id)
            if last.turn_id in {None, turn.id}:
                return
            later = await repository.list_following_turns(session, turn)
        if all(each.id != last.turn_id for each in later):
            raise BadRequestError("Last-Event-ID names a turn that does not follow this one.")

    async def _follow(
        self, identity: Identity, turn_id: UUID, *, last_id: int, beat: float
    ) -> AsyncIterator[tuple[list[TurnEvent], int]]:
        """Yield the events of a turn, each time with the number of replies that may follow.

        A reserved turn that is given up has no events.
        """
        cursor, is_reserved = EventCursor(last_id), False
        silence = 0.0
        while not self._is_run_here(identity, turn_id):
            try:
                progress = await self._read_progress(identity, turn_id)
            except TurnNotFoundError as error:
                if is_reserved:
                    return
                if cursor.last_id == 0:
                    raise
                # The chat was deleted while a client followed the turn here.
                yield [TurnEvent(cursor.last_id + 1, "turn.failed", error.to_problem())], 0
                return
            is_reserved = progress.is_reserved
            batch = cursor.next_events(progress)
            silence = 0.0 if batch else silence + FOLLOW_SECONDS
            if batch or progress.is_at_rest or silence >= beat:
                silence = 0.0
                yield batch, progress.replies_left
            if progress.is_at_rest or self.runs.is_closing:
                return  # another process continues the stream
            await self._wait_for_news(turn_id, is_reserved=is_reserved)
        if run := self.runs.get(turn_id):
            async for batch in run.events(cursor.last_id, beat=beat):
                yield batch, run.progress.replies_left
            yield [], run.progress.replies_left

    def _is_run_here(self, identity: Identity, turn_id: UUID) -> bool:
        run = self.runs.get(turn_id)
        return run is not None and run.user_id == identity.user_id

    async def _wait_for_news(self, turn_id: UUID, *, is_reserved: bool) -> None:
        if is_reserved:
            await self._chains.wait(turn_id, within=FOLLOW_SECONDS)
        else:
            await asyncio.sleep(FOLLOW_SECONDS)

    async def get(self, identity: Identity, turn_id: UUID) -> TurnView:
        """Return a turn with its reply, and those that followed. Raises `TurnNotFoundError`."""
        async with self._database.read() as session:
            turn = await repository.get_turn(session, turn_id, owner_id=identity.user_id)
            later = await repository.list_following_turns(session, turn)
        view = await self._view_with_reply(identity, turn)
        view.following = [await self._view_with_reply(identity, each) for each in later]
        return view

    async def _view_with_reply(self, identity: Identity, turn: Turn) -> TurnView:
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
        """List turns of a chat, newest first, without their texts. Raises `ChatNotFoundError`."""
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
        """Stop a turn, and those that would follow it by themselves. Its text so far is kept.

        Raises `TurnNotFoundError`.
        """
        stopped_id = await self._recovery.stop(identity, turn_id)
        if run := self.runs.get(stopped_id):
            run.stop()
        self._chains.notify(stopped_id)

    async def recover(self) -> None:
        count = await self._recovery.recover()
        if count:
            log.warning("turn.recovered", count=count)

    async def close(self) -> None:
        await self.runs.close()
        await self._chains.close()
        await self.runs.close()  # a chain may just have started a turn
        for task in list(self._recounts):
            task.cancel()

    async def _read_progress(self, identity: Identity, turn_id: UUID) -> Progress:
        async with self._database.read() as session:
            turn = await repository.get_turn(session, turn_id, owner_id=identity.user_id)
            reply = await session.get(Message, turn.reply_id) if turn.reply_id else None
            number = await repository.find_chain_number(session, turn)
        return read_progress(identity.sealer, turn, reply, number=number)

    def _recount_if_needed(self, run: TurnRun) -> None:
        """Count the chat's messages with its model's tokenizer, in the background."""
        if not run.built.window.is_estimated:
            return
        task = asyncio.create_task(self._recount(run))
        self._recounts.add(task)
        task.add_done_callback(self._recounts.discard)

    async def _recount(self, run: TurnRun) -> None:
        try:
            await run.finished.wait()
            await recount_chat(
                self._database, self._pool, run.sealer, run.chat_id, run.built.window.unit
            )
        except Exception as error:  # the next turn tries again
            log.warning("chat.not_recounted", chat_id=run.chat_id, exc_info=error)


def _plan_chain(request: TurnRequest, built: BuiltPrompt, turn_id: UUID) -> ChainPlace | None:
    """Return the place of a first turn that others may follow. None if it stays alone."""
    loaded = built.loaded
    wanted = request.auto_replies
    if wanted is None:
        wanted = loaded.settings.group.auto_replies
    if loaded.target.kind != "reply" or loaded.cast.member_count < MIN_GROUP or wanted <= 1:
        return None
    return ChainPlace(chain_id=turn_id, number=1, left=wanted - 1)


class _ReplayError(Exception):
    """The same request has started the turn before."""


class _AbandonedTurnError(Exception):
    """An open turn of the chat has lost its process, and is not recovered yet."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn


async def _find_reserved(session: AsyncSession, identity: Identity, chat_id: UUID) -> UUID | None:
    """Return the reserved turn of a chat, which a new one may replace.

    Raises `TurnWaitingError`, `TurnInProgressError` and `_AbandonedTurnError` for any other turn.
    """
    turn = await repository.find_open_turn(session, chat_id, owner_id=identity.user_id)
    if turn is None:
        return None
    if turn.is_abandoned(now()):
        raise _AbandonedTurnError(turn)
    if turn.is_reserved:
        return turn.id
    if turn.state == "waiting":
        raise TurnWaitingError(turn.id, find_awaited_choice(identity.sealer, turn))
    raise TurnInProgressError(turn.id)


async def _is_replay(
    session: AsyncSession, identity: Identity, turn_id: UUID, fingerprint: bytes
) -> bool:
    turn = await repository.find_turn(session, turn_id, owner_id=identity.user_id)
    if turn is None:
        return False
    if turn.request_digest != fingerprint:
        raise TurnIdReusedError(NEW_ID)
    return True


def _compute_fingerprint(identity: Identity, chat_id: UUID, request: TurnRequest) -> bytes:
    body = msgspec.json.encode(structs.replace(request, turn_id=None))
    return digest(identity.sealer.derive_key("turn-requests"), chat_id.bytes, body)
