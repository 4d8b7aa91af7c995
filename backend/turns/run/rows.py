"""What a running turn puts into its rows: sealed, counted, encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from backend.chats import tree
from backend.chats.models import MESSAGE_CONTENT, MESSAGE_THINKING, Chat, Message
from backend.chats.notices import (
    Notice,
    PromptCutNotice,
    ReplyCutNotice,
    decode_notices,
    encode_notices,
)
from backend.chats.token_counting import CountUnit
from backend.database.base import now
from backend.turns.models import TURN_EVENTS, Turn
from backend.turns.play.played_turn import added
from backend.turns.prompt.record import SealedRecord, seal_record
from backend.turns.run.events import PlayEvent
from backend.turns.run.turn_run import TurnRun


def usage_event(run: TurnRun) -> dict[str, Any] | None:
    """The `usage` event's data: what the provider reported, of the whole turn."""
    usage = added(run.play.earlier, run.usage) if run.play else run.usage
    return {**asdict(usage), "model": run.built.window.spec.id} if usage else None


def encoded(data: dict[str, Any] | None) -> str | None:
    """Data as the column of a turn takes it."""
    return msgspec.json.encode(data).decode() if data else None


def segments_of(run: TurnRun, closing: Sequence[PlayEvent] = ()) -> str:
    """The runs of what was said and what happened, with what is told at the end."""
    segments = run.segments
    if closing:
        segments.append(("event", len(closing)))
    return msgspec.json.encode(segments).decode()


def replace_totals(run: TurnRun, turn: Turn) -> None:
    """Put the totals of a prompt that was built again into its turn's row."""
    turn.totals = msgspec.json.encode(run.built.totals).decode()
    if turn.path_tokens is not None:
        turn.path_tokens, turn.sent_tokens = run.built.path_tokens, run.built.sent_tokens


def sealed_events(run: TurnRun, closing: Sequence[PlayEvent] = ()) -> bytes | None:
    """What happened in a played turn, with what is told at its end."""
    events = [*run.progress.transcript.events, *closing]
    if not events:
        return None
    return run.sealer.seal_bytes(TURN_EVENTS, run.turn_id, msgspec.json.encode(events))


def capture_progress(run: TurnRun) -> Callable[[], dict[str, Any]]:
    """Capture the reply as it is now, and return a function that makes its row.

    The function counts and seals: it is CPU-bound, and may be called in a thread.
    """
    if run.reply_id is None:
        raise ValueError("Only a reply is stored as it grows.")
    count = run.capture_unstored()
    seal = partial(_seal_reply, run, run.reply_id, run.text, run.thinking)
    return lambda: {"key": run.reply_id, "more": count(), **seal()}


def write_reply(run: TurnRun, chat: Chat, message: Message, counts: dict[str, int]) -> None:
    """Put what was said so far into the reply's row; `counts` by unit, none of a silent one.

    A reply without text is hidden: it may not be sent to a model.
    """
    for name, value in _seal_reply(run, message.id, run.text, run.thinking).items():
        setattr(message, name, value)
    if run.adds_to_reply:
        message.notices = encode_notices(_notices(run, message))
    if counts:
        message.token_counts = msgspec.json.encode(counts).decode()
        tree.set_unfollowed_tokens(message, counts[chat.count_unit])
        if run.outcome != "waiting" and not run.text.strip():
            tree.set_unfollowed_hidden(chat, message, hidden=True)


def _notices(run: TurnRun, message: Message) -> list[Notice]:
    """Return the notices of the whole reply: how a part before this one ended no longer counts."""
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
    return notices


def _seal_reply(run: TurnRun, reply_id: UUID, text: str, thinking: str) -> dict[str, Any]:
    seal = run.sealer.seal
    return {
        "sealed_content": seal(MESSAGE_CONTENT, reply_id, text if text.strip() else ""),
        "sealed_thinking": seal(MESSAGE_THINKING, reply_id, thinking) if thinking else None,
        "updated_at": now(),
    }


def finished(run: TurnRun) -> tuple[dict[str, int], SealedRecord | None, int]:
    """What `counted` gives, once regex scripts have changed what was said. CPU-bound."""
    run.apply_scripts()
    return counted(run)


def counted(run: TurnRun) -> tuple[dict[str, int], SealedRecord | None, int]:
    """The reply's counts by unit, its record, what the turn took in tokens. CPU-bound.

    Counts are in the unit of the prompt and in that of the chat. Without a reply there are none.
    """
    is_kept = run.text.strip() or run.has_only_thoughts or run.has_stored
    if run.reply_id is None or not is_kept:
        return {}, None, run.spent_tokens()
    loaded = run.built.loaded
    units = {str(run.built.window.unit), loaded.chat.count_unit}
    counts = {unit: CountUnit.parse(unit).count(loaded.speaker.name, run.text) for unit in units}
    return counts, seal_record(run), run.spent_tokens()
