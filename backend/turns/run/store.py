"""Store running and ended turns with their replies and context records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import Integer, bindparam, case, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.records import find_campaign
from backend.campaigns.play.store import record_table, view_changes
from backend.campaigns.play.table import Table
from backend.campaigns.scenes.scenes import count_beat, end_left_scenes, find_ended_scenes
from backend.chats import tree
from backend.chats.drafts import opens_scene
from backend.chats.models import (
    MESSAGE_CONTENT,
    MESSAGE_THINKING,
    Chat,
    Message,
    MessageStatus,
    Notice,
    PassedNotice,
    PromptCutNotice,
    ReplyCutNotice,
    decode_notices,
    encode_notices,
)
from backend.chats.repository import lock_trees
from backend.chats.service import read_settings
from backend.chats.text_digests import TextDigester
from backend.chats.token_counting import CountUnit
from backend.context.record import move_texts
from backend.core.events import Participants
from backend.database.base import Base, new_id, now, split_chunks
from backend.database.engine import Database
from backend.database.types import UtcTime
from backend.database.writes import Upsert, upsert_all, write_out
from backend.enrichment.outbox import EnrichmentOutbox
from backend.llm import token_ratios as ratios
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.ledgers import (
    UnlistedUsage,
    add_tokens,
    add_tokens_if_account,
    add_unlisted,
    note_tokens,
)
from backend.turns import repository
from backend.turns.models import (
    CONTEXT_RECORD,
    CONTEXT_TEXT,
    LEASE_DURATION,
    RESERVATION,
    TURN_EVENTS,
    TURN_OUTPUT,
    TURN_PLAY,
    TURN_PROBLEM,
    ContextText,
    StoredContextRecord,
    Turn,
)
from backend.turns.play.state import TurnPlay, add_usage
from backend.turns.prompt.built_prompt import make_record
from backend.turns.prompt.lore import store_timed_state
from backend.turns.run.events import (
    STATE_CHANGED,
    SUGGESTIONS,
    PlayEvent,
    make_completed_data,
    make_interrupted_error,
)
from backend.turns.run.recovery import remove_empty_reply
from backend.turns.run.turn_run import TurnRun
from backend.vault.sealing import digest

MAX_UNCHECKED_TEXTS = 8
"""Up to this many texts are inserted without a query for the ones that exist."""

TEXT_RENEWAL = timedelta(days=7)
"""The `created_at` of a text is renewed if it is older than this. Until then a newer record may
refer to it, so it is kept for this time longer than records."""

_RENEWED_BEFORE = bindparam(None, callable_=lambda: now() - TEXT_RENEWAL, type_=UtcTime())
_KNOWN = select(ContextText.digest).where(
    ContextText.chat_id == bindparam("chat_id"),
    ContextText.digest.in_(bindparam("digests", expanding=True)),
    ContextText.created_at >= _RENEWED_BEFORE,
)


T = TypeVar("T")

_NOT_COUNTED = "{}"

# These are tables and not mapped classes, because many rows are updated at once by key.
_TURNS, _MESSAGES = Base.metadata.tables["turns"], Base.metadata.tables["messages"]

_IS_OURS = (_TURNS.c.state == "running", _TURNS.c.lease_owner == bindparam("owner"))

_RENEW = (
    update(_TURNS)
    .where(_TURNS.c.id == bindparam("key"), *_IS_OURS)
    .values(
        lease_until=bindparam("lease"),
        segments=bindparam("lengths"),
        waits_for=bindparam("occupation"),
    )
)

_STORE_EVENTS = (
    update(_TURNS)
    .where(_TURNS.c.id == bindparam("key"), *_IS_OURS)
    .values(sealed_events=bindparam("sealed_events"))
)

_STORE_REPLY = (
    update(_MESSAGES)
    .where(_MESSAGES.c.id == bindparam("key"), _MESSAGES.c.status == "streaming")
    .values(
        sealed_content=bindparam("sealed_content"),
        sealed_thinking=bindparam("sealed_thinking"),
        text_digest=bindparam("text_digest"),
        updated_at=bindparam("updated_at"),
        # After a crash no one has the key to count the text, so a running sum is stored. It is at
        # most a few tokens too high. The sums below a continued reply are set at its end.
        tokens=_MESSAGES.c.tokens + bindparam("more"),
        path_tokens=_MESSAGES.c.path_tokens
        + case((_MESSAGES.c.hidden, 0), else_=bindparam("more", type_=Integer)),
        token_counts=_NOT_COUNTED,
    )
)


class RecordedChanges(NamedTuple):
    """The ids of stored changes, and the number of changes that were no longer possible."""

    ids: list[UUID]
    left_out: int


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """A sealed context record, and its sealed texts by keyed hash."""

    record: bytes
    texts: dict[bytes, tuple[UUID, bytes]]


class TurnStore:
    def __init__(
        self,
        database: Database,
        index: IndexOutbox,
        enrichment: EnrichmentOutbox,
        participants: Participants | None = None,
    ) -> None:
        self.participants = participants or Participants()
        self._database = database
        self._index = index
        self._enrichment = enrichment

    async def store_progress(self, runs: Iterable[TurnRun]) -> set[UUID]:
        """Store the text of running turns and renew their leases, in one transaction.

        Returns the turns that have to stop. Another process has requested that, or they no longer
        belong to this process, because the chat was deleted or the lease has expired.
        """
        runs = list(runs)
        lease_until, owner = now() + LEASE_DURATION, self._database.process_id
        turns = [
            {
                "key": run.turn_id,
                "owner": owner,
                "lease": lease_until,
                "lengths": encode_segments(run),
                "occupation": run.progress.waits_for,
            }
            for run in runs
        ]
        dirty = [
            run
            for run in runs
            if run.reply_id is not None and run.stored_length != run.progress.transcript.length
        ]
        lengths = {run.turn_id: run.progress.transcript.length for run in dirty}
        events = {run.turn_id: len(run.progress.transcript.events) for run in runs}
        drops = {run.turn_id: run.progress.transcript.drops for run in dirty}
        told = [
            {"key": run.turn_id, "owner": owner, "sealed_events": seal_events(run)}
            for run in runs
            if events[run.turn_id] > run.stored_events
        ]
        captured = {run.turn_id: capture_progress(run) for run in dirty}
        records = {
            run.turn_id: await asyncio.to_thread(seal_record, run)
            for run in dirty
            if run.has_spoken and not run.record_stored
        }
        replies = await asyncio.to_thread(_call_each, captured) if captured else {}
        async with self._database.write() as session:
            await lock_trees(session, {run.chat_id for run in runs})
            connection = await session.connection()
            await connection.execute(_RENEW, turns)
            if told:
                await connection.execute(_STORE_EVENTS, told)
            rows = await session.execute(
                select(Turn.id, Turn.stop_requested).where(
                    Turn.id.in_([run.turn_id for run in runs]), *_IS_OURS
                ),
                {"owner": owner},
            )
            stop_requested = {row.id: row.stop_requested for row in rows}
            # If a turn was lost, its reply may belong to another turn.
            dirty = [run for run in dirty if run.turn_id in stop_requested]
            if dirty:
                await connection.execute(_STORE_REPLY, [replies[run.turn_id] for run in dirty])
            for run in dirty:
                if run.turn_id in records:
                    await store_record(session, run, records[run.turn_id])
        for run in runs:
            run.stored_events = events[run.turn_id]
        for run in dirty:
            run.stored_length, run.stored_drops = lengths[run.turn_id], drops[run.turn_id]
            run.stored_tokens += replies[run.turn_id]["more"]
            run.record_stored = run.record_stored or run.turn_id in records
        return {run.turn_id for run in runs if stop_requested.get(run.turn_id, True)}

    async def conclude(self, run: TurnRun) -> None:
        """Store a turn when its model has finished: a waiting turn, or an ended one.

        One transaction stores the text of the reply, its counts, its context record, the changes of
        a played turn, the learned token ratio, and the end of the turn. The closing events are set.
        A reply without text or thoughts is deleted, unless a choice has stored changes of it.
        Nothing is stored if the turn no longer belongs to this process; see `store_progress`.
        """
        play = run.play
        if play and run.outcome == "waiting" and await suspend_turn(self._database, run, play):
            return
        usage = make_usage_data(run)
        run.has_next = False
        saved, problem = await self._conclude(run, usage)
        progress = run.progress
        for name, data in play.closing if play and saved else ():
            progress.transcript.append_event(name, data)
        progress.usage = usage
        if saved:
            progress.saved = {"message_id": str(run.reply_id)}
        if problem is not None:
            progress.failed = problem
        else:
            progress.completed = make_completed_data(run.turn_id, run.outcome, run.finish)

    async def _conclude(
        self, run: TurnRun, usage: dict[str, Any] | None
    ) -> tuple[bool, dict[str, Any] | None]:
        """Store the end of a turn. Returns whether there is a reply, and the problem."""
        problem, saved = _make_problem(run), False
        counts, record, spent = await asyncio.to_thread(finish_reply, run)
        window, writes = run.built.window, list[Upsert]()
        key = ratios.make_ratio_key(window.spec, window.unit.tokenizer)
        async with self._database.write() as session:
            chat, turn, reply, ratio = await repository.lock_turn(
                session, run.chat_id, run.turn_id, ratio_key=key
            )
            is_ours = turn is not None and turn.is_run_by(self._database.process_id)
            if chat is not None and turn is not None and is_ours:
                _write_end(run, turn, usage, problem)
                saved = await self._conclude_reply(session, run, chat, turn, reply, counts)
                # If a continuation has added nothing, the reply and its record do not change.
                saved = saved and (run.adds_to_reply or run.has_stored)
                if saved and record is not None and (run.play or not run.record_stored):
                    writes += await make_record_writes(session, run, record)
                if run.play and saved and run.play.closing:
                    _write_events(run, turn, run.play.closing)
                await self._reserve_next(session, run, chat, turn)
            elif turn is not None:
                problem = run.show_problem(make_interrupted_error())
            if turn is not None:
                spec, tokenizer = window.spec, window.unit.tokenizer
                reports = _list_reports(run)
                writes += [
                    await ratios.learn(session, run.user_id, spec, tokenizer, ratio, reports),
                    note_tokens(run.user_id, spent),
                ]
                await write_out(session, writes)
            else:  # the chat was deleted
                await _add_unlisted(session, run, spent)
        return saved, problem

    async def _reserve_next(
        self, session: AsyncSession, run: TurnRun, chat: Chat, turn: Turn
    ) -> None:
        """Reserve the turn that follows by itself, if one may.

        It is stored in the transaction that ends this turn, so that every process knows at any time
        if another reply follows, and the chain can be stopped between two turns.
        """
        chain = run.chain
        if chain is None or not chain.left or turn.stop_requested or run.outcome != "completed":
            return
        if turn.reply_id is None or chat.leaf_id != turn.reply_id:
            return
        await session.flush()  # first the end of this turn, because only one may be open
        following = Turn(
            id=chain.next_id,
            user_id=turn.user_id,
            chat_id=turn.chat_id,
            kind="reply",
            state="running",
            model=turn.model,
            request_digest=turn.request_digest,
            chain_id=chain.chain_id,
            replies_left=chain.left - 1,
            lease_owner=self._database.process_id,
            lease_until=now() + RESERVATION,
        )
        session.add(following)
        run.has_next = True

    async def _conclude_reply(
        self,
        session: AsyncSession,
        run: TurnRun,
        chat: Chat,
        turn: Turn,
        message: Message | None,
        counts: dict[str, int],
    ) -> bool:
        """Store the reply. False if there is none, because the model wrote nothing.

        Nothing follows from a message without text with which a character passes.
        """
        if message is None:
            return False
        if not counts:
            turn.reply_id = None
            await remove_empty_reply(session, self.participants, run.sealer, chat, message)
            await self._spoken(session, run, turn, None)
            return False
        write_reply(run, chat, message, counts)
        message.status = _get_status(run)
        if run.has_passed:
            chat.updated_at = now()
            return True
        if not run.prefix and opens_scene(run.text):
            message.scene_id, message.scene_place = message.id, 0
        await store_timed_state(
            session,
            run.sealer,
            message,
            before=run.built.loaded.lore.stored_timed,
            after=run.built.timed,
        )
        chat.updated_at = now()
        if run.kind == "continue":
            await tree.refresh_sums_below(session, message)
        await self._spoken(session, run, turn, message.id)
        if run.kind == "continue" and run.adds_to_reply:
            await self._enrichment.study_again(session, message.id)
        await self._play_on(session, run, chat, message)
        await self._enrichment.read_terms(session, run, chat, message.id)
        await self._enrichment.follow_reply(
            session,
            run,
            chat,
            read_settings(run.sealer, chat),
            path_tokens=run.built.loaded.whole_tokens + message.tokens,
            history_budget=run.built.history_budget,
            count_unit=run.built.loaded.chat.count_unit,
            is_summary_due=run.built.loaded.is_summary_due,
        )
        await self._enrichment.name_chat(session, run, chat)
        if run.built.loaded.is_compaction_due:
            await self._enrichment.compact(session, run, chat)
        elif run.built.loaded.story.begins_unsettled or run.has_stored:
            await self._enrichment.resume_compactions(session, chat)
        return True

    async def _play_on(
        self, session: AsyncSession, run: TurnRun, chat: Chat, message: Message
    ) -> None:
        """Store a beat of the open scene, the changes of a played turn, and ended scenes."""
        if run.is_beat:
            campaign = run.built.loaded.story.campaign
            lead_id = campaign.now.lead_id if campaign else None
            due = await count_beat(
                session, run.sealer, chat, message, turn_id=run.turn_id, lead_id=lead_id
            )
            await self._enrichment.compress_scenes(session, run, chat, due)
        if run.play is not None:
            run.play.closing = await close_play(session, run.play, run, chat, message)
        if run.play is not None or run.is_beat:
            await end_left_scenes(session, run.sealer, chat, message, turn_id=run.turn_id)
            if ended := await find_ended_scenes(session, chat, turn_id=run.turn_id):
                await self._enrichment.compact(session, run, chat)
                await self._enrichment.compress_scenes(session, run, chat, ended)

    async def _spoken(
        self, session: AsyncSession, run: TurnRun, turn: Turn, reply_id: UUID | None
    ) -> None:
        """Queue the messages of a turn for the index."""
        said = [each for each in (turn.user_message_id, reply_id) if each is not None]
        with session.no_autoflush:  # the rows of the turn are written together, at the end
            await self._index.record_lines(session, run, chat_id=turn.chat_id, message_ids=said)


def _call_each(functions: Mapping[UUID, Callable[[], T]]) -> dict[UUID, T]:
    return {key: function() for key, function in functions.items()}


def _write_end(
    run: TurnRun, turn: Turn, usage: dict[str, Any] | None, problem: dict[str, Any] | None
) -> None:
    turn.state = run.outcome
    turn.finished_at = now()
    turn.usage = encode_json(usage)
    turn.finish = run.finish or None
    _write_events(run, turn)
    if run.refused:
        replace_totals(run, turn)
    turn.lease_owner = turn.lease_until = turn.waits_for = None
    turn.sealed_play = turn.sealed_problem = None
    if problem:
        data = msgspec.json.encode(problem)
        turn.sealed_problem = run.sealer.seal_bytes(TURN_PROBLEM, turn.id, data)
    if run.reply_id is None and run.text:
        turn.sealed_output = run.sealer.seal(TURN_OUTPUT, turn.id, run.text)


def _write_events(run: TurnRun, turn: Turn, closing: Sequence[PlayEvent] = ()) -> None:
    turn.segments = encode_segments(run, closing)
    turn.sealed_events = seal_events(run, closing)


def _list_reports(run: TurnRun) -> list[ratios.Report]:
    """List the provider's reports from which the model's token ratio is learned.

    A played turn sends more than its prompt, so it is ignored.

    The report of a prompt that the server has cut is ignored, because it is about a shorter prompt.
    The tokens of images are only estimated.
    """
    if run.play is not None or run.built.has_images:
        return []
    reports = [
        ratios.Report(refused.counted, refused.needed)
        for refused in run.refused
        if refused.is_reported
    ]
    if run.usage is not None and run.outcome == "completed" and run.cut is None:
        reports.append(ratios.Report(run.built.assembled.tokens, run.usage.prompt_tokens))
    return reports


def _make_problem(run: TurnRun) -> dict[str, Any] | None:
    error = run.problem or (make_interrupted_error() if run.outcome == "interrupted" else None)
    return run.show_problem(error) if error else None


def _get_status(run: TurnRun) -> MessageStatus:
    if run.kind == "continue" and not run.adds_to_reply:
        return run.status_before
    match run.outcome:
        case "completed":
            return "complete"
        case "failed":
            return "failed"
        case _:
            return "interrupted"


async def suspend_turn(database: Database, run: TurnRun, play: TurnPlay) -> bool:
    """Store a turn that waits for its player. False if it has to end instead."""
    counts, record, spent = await asyncio.to_thread(count_reply, run)
    suspended = play.encode(run.usage)
    async with database.write() as session:
        chat = await session.get(Chat, run.chat_id, with_for_update=True)
        turn = await session.get(Turn, run.turn_id, with_for_update=True)
        message = await session.get(Message, run.reply_id) if run.reply_id else None
        if (
            chat is None
            or turn is None
            or message is None
            or not turn.is_run_by(database.process_id)
        ):
            run.end_waiting("interrupted")
            return False
        if turn.stop_requested:
            run.end_waiting("stopped")
            return False
        turn.state = "waiting"
        turn.lease_owner = turn.lease_until = turn.waits_for = None
        turn.segments = encode_segments(run)
        turn.usage = encode_json(make_usage_data(run))
        turn.sealed_events = seal_events(run)
        turn.sealed_play = run.sealer.seal_bytes(TURN_PLAY, turn.id, suspended)
        if run.refused:
            replace_totals(run, turn)
        write_reply(run, chat, message, counts)
        if record is not None:
            await store_record(session, run, record)
        chat.updated_at = now()
        await add_tokens(session, run.user_id, spent)
    run.progress.is_waiting = True
    return True


async def close_play(
    session: AsyncSession, play: TurnPlay, run: TurnRun, chat: Chat, message: Message
) -> list[PlayEvent]:
    """Store the changes of a played turn with its reply, and return the closing events.

    A turn that did not complete keeps only the changes that a choice has stored. The chat's row is
    locked.
    """
    table, events = play.table, list[PlayEvent]()
    is_complete = run.outcome == "completed"
    new = (
        await record_changes(session, table, run, chat, message)
        if is_complete
        else RecordedChanges([], 0)
    )
    stored = table.state.stored
    ids, left_out = [*stored.ids, *new.ids], stored.left_out + new.left_out
    if ids or left_out:
        changes = await view_changes(session, run.sealer, ids)
        events.append(PlayEvent(STATE_CHANGED, {"changes": changes, "left_out": left_out}))
    if is_complete and table.suggestions:
        events.append(PlayEvent(SUGGESTIONS, {"items": list(table.suggestions)}))
    return events


async def record_changes(
    session: AsyncSession, table: Table, run: TurnRun, chat: Chat, message: Message
) -> RecordedChanges:
    """Store the new changes of a table. The chat's row is locked."""
    if chat.campaign_id is None or chat.campaign_id != table.state.campaign_id:
        return RecordedChanges([], 0)
    campaign = await find_campaign(session, run.sealer, chat.campaign_id, lock=True)
    if campaign is None:
        return RecordedChanges([], 0)
    wanted = len(table.ledger)
    ids = await record_table(session, run.sealer, campaign, table, message, run.turn_id)
    return RecordedChanges(ids, wanted - len(ids))


def capture_progress(run: TurnRun) -> Callable[[], dict[str, Any]]:
    """Capture the current reply. The returned function makes its row and is CPU-bound."""
    if run.reply_id is None:
        raise ValueError("Only a reply is stored as it grows.")
    count = run.capture_token_count()
    seal = partial(_seal_reply, run, run.reply_id, run.text, run.thinking)
    return lambda: {"key": run.reply_id, "more": count(), **seal()}


def write_reply(run: TurnRun, chat: Chat, message: Message, counts: dict[str, int]) -> None:
    """Write the current text to the row of the reply. `counts` are by unit, empty without text.

    A reply without text is hidden, because it must not be sent to a model.
    """
    for name, value in _seal_reply(run, message.id, run.text, run.thinking).items():
        setattr(message, name, value)
    if run.adds_to_reply:
        message.notices = encode_notices(_make_notices(run, message))
    if counts:
        message.token_counts = msgspec.json.encode(counts).decode()
        tree.set_unfollowed_tokens(message, counts[chat.count_unit])
        if run.outcome != "waiting" and not run.text.strip():
            tree.set_unfollowed_hidden(chat, message, hidden=True)


def _make_notices(run: TurnRun, message: Message) -> list[Notice]:
    """Return the notices of the whole reply. The end of an earlier part no longer matters."""
    notices: list[Notice] = [
        each for each in decode_notices(message.notices) if isinstance(each, PromptCutNotice)
    ]
    if run.cut is not None:
        notices = [PromptCutNotice(run.built.window.spec.id, run.cut.sent, run.cut.read)]
    match run.finish:
        case "length" | "safety" as reason if run.outcome == "completed":
            notices.append(ReplyCutNotice(reason))
        case _:
            pass
    return [*notices, PassedNotice()] if run.has_passed else notices


def _seal_reply(run: TurnRun, reply_id: UUID, text: str, thinking: str) -> dict[str, Any]:
    seal = run.sealer.seal
    text = text if text.strip() else ""
    return {
        "sealed_content": seal(MESSAGE_CONTENT, reply_id, text),
        "text_digest": TextDigester(run.sealer).compute("assistant", text),
        "sealed_thinking": seal(MESSAGE_THINKING, reply_id, thinking) if thinking else None,
        "updated_at": now(),
    }


def finish_reply(run: TurnRun) -> tuple[dict[str, int], SealedRecord | None, int]:
    """Run regex scripts on the reply, then count it. CPU-bound."""
    run.apply_scripts()
    return count_reply(run)


def count_reply(run: TurnRun) -> tuple[dict[str, int], SealedRecord | None, int]:
    """Return the token counts of the reply by unit, its record, and the used tokens. CPU-bound.

    Counts use the units of the prompt and of the chat. Without a reply there are none.
    """
    is_kept = run.text.strip() or run.has_only_thoughts or run.has_stored or run.has_passed
    if run.reply_id is None or not is_kept:
        return {}, None, run.spent_tokens()
    loaded = run.built.loaded
    units = {str(run.built.window.unit), loaded.chat.count_unit}
    counts = {
        unit: CountUnit.parse(unit).count(loaded.cast.speaker.name, run.text) for unit in units
    }
    return counts, seal_record(run), run.spent_tokens()


def seal_record(run: TurnRun) -> SealedRecord:
    """Make and seal the context record of a turn. CPU-bound: it hashes the whole prompt."""
    record = make_record(run.built.with_shape(run.sent.shape))
    record.unsent_settings = run.unsent_settings
    if images := run.sent.images_left_out:
        record.notes.append(f"{images} images were left out, because the model cannot read them.")
    if run.play is not None:
        record.tools, record.tool_support = list(run.play.used), run.play.support
    record.notes += [refused.note for refused in run.refused]
    key = run.sealer.derive_key("context-texts")
    texts = move_texts(record, lambda text: digest(key, text.encode()).hex())
    sealed: dict[bytes, tuple[UUID, bytes]] = {}
    for text_hash, text in texts.items():
        text_id = new_id()
        sealed[bytes.fromhex(text_hash)] = text_id, run.sealer.seal(CONTEXT_TEXT, text_id, text)
    if run.reply_id is None:
        raise ValueError("Only a reply has a record.")
    blob = run.sealer.seal_bytes(CONTEXT_RECORD, run.reply_id, msgspec.json.encode(record))
    return SealedRecord(blob, sealed)


async def store_record(session: AsyncSession, run: TurnRun, sealed: SealedRecord) -> None:
    """Store a context record, and the texts that the chat does not have yet."""
    await upsert_all(session, await make_record_writes(session, run, sealed))


async def make_record_writes(
    session: AsyncSession, run: TurnRun, sealed: SealedRecord
) -> list[Upsert]:
    """Return the writes of `store_record`."""
    record = {
        "id": run.reply_id,
        "user_id": run.user_id,
        "chat_id": run.chat_id,
        "sealed_record": sealed.record,
        "created_at": now(),
    }
    texts = sealed.texts
    if len(texts) > MAX_UNCHECKED_TEXTS:
        known: set[bytes] = set()
        for part in split_chunks(list(texts)):
            held = {"chat_id": run.chat_id, "digests": part}
            known.update(await session.scalars(_KNOWN, held))
        texts = {key: text for key, text in texts.items() if key not in known}
    rows = [
        {
            "id": text_id,
            "user_id": run.user_id,
            "chat_id": run.chat_id,
            "digest": key,
            "sealed_text": blob,
            "created_at": now(),
        }
        for key, (text_id, blob) in texts.items()
    ]
    return [
        Upsert(
            ContextText,
            rows,
            key=("chat_id", "digest"),
            update=("created_at",),
            min_age=TEXT_RENEWAL,
        ),
        Upsert(StoredContextRecord, [record], key=("id",), update=("sealed_record", "created_at")),
    ]


def make_usage_data(run: TurnRun) -> dict[str, Any] | None:
    """Return the data of the `usage` event: the tokens that the provider reported for the turn."""
    usage = add_usage(run.play.earlier, run.usage) if run.play else run.usage
    return {**asdict(usage), "model": run.built.window.spec.id} if usage else None


async def _add_unlisted(session: AsyncSession, run: TurnRun, spent: int) -> None:
    """Count a turn without a row, since it has begun or was resumed."""
    model, usage = run.built.window.spec.id, run.usage
    if usage is not None:
        unlisted = UnlistedUsage(model=model, turns=1, **asdict(usage))
    elif run.outcome != "failed":
        unlisted = UnlistedUsage(model=model, unreported=1)
    else:
        # As for turns with a row: one that failed without a report is not counted.
        await add_tokens_if_account(session, run.user_id, spent)
        return
    await add_unlisted(session, run.user_id, [unlisted], tokens=spent)


def encode_json(data: dict[str, Any] | None) -> str | None:
    return msgspec.json.encode(data).decode() if data else None


def encode_segments(run: TurnRun, closing: Sequence[PlayEvent] = ()) -> str:
    segments = run.segments
    if closing:
        segments.append(("event", len(closing)))
    return msgspec.json.encode(segments).decode()


def seal_events(run: TurnRun, closing: Sequence[PlayEvent] = ()) -> bytes | None:
    events = [*run.progress.transcript.events, *closing]
    if not events:
        return None
    return run.sealer.seal_bytes(TURN_EVENTS, run.turn_id, msgspec.json.encode(events))


def replace_totals(run: TurnRun, turn: Turn) -> None:
    turn.totals = msgspec.json.encode(run.built.totals).decode()
    if turn.path_tokens is not None:
        turn.path_tokens, turn.sent_tokens = run.built.path_tokens, run.built.sent_tokens
