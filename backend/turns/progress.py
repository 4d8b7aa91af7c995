"""A turn's progress, made again from what is stored of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from backend.chats.models import MESSAGE_CONTENT, MESSAGE_THINKING, Message
from backend.turns.errors import TurnInterruptedError
from backend.turns.events import Progress, SegmentKind, Transcript
from backend.turns.models import TURN_OUTPUT, TURN_PROBLEM, Turn
from backend.vault.sealing import Sealer


def started_event(turn: Turn) -> dict[str, Any]:
    """The `turn.started` event's data."""
    return {
        "turn_id": str(turn.id),
        "user_message_id": str(turn.user_message_id) if turn.user_message_id else None,
        "reply_id": str(turn.reply_id) if turn.reply_id else None,
    }


def stored_progress(sealer: Sealer, turn: Turn, reply: Message | None) -> Progress:
    """How far a turn is, as any process can read it: at most a second behind the one it runs in."""
    progress = Progress(
        started=started_event(turn),
        totals=msgspec.json.decode(turn.totals),
        transcript=_transcript(sealer, turn, reply),
        usage=msgspec.json.decode(turn.usage) if turn.usage else None,
    )
    if turn.state == "running":
        return progress
    if reply is not None and progress.transcript.joined("text"):
        progress.saved = {"message_id": str(reply.id)}
    if turn.state in {"completed", "stopped"}:
        progress.completed = completed_event(turn.id, turn.state, turn.finish or "")
    elif turn.sealed_problem is not None:
        problem = sealer.open_bytes(TURN_PROBLEM, turn.id, turn.sealed_problem)
        progress.failed = {"turn_id": str(turn.id), **msgspec.json.decode(problem)}
    else:
        # Nobody was there to seal a problem.
        progress.is_cut_off = True
        progress.failed = {"turn_id": str(turn.id), **cut_off().to_problem()}
    return progress


def completed_event(turn_id: UUID, state: str, finish: str) -> dict[str, Any]:
    """The `turn.completed` event's data."""
    return {"turn_id": str(turn_id), "state": state, "finish_reason": finish or state}


def cut_off() -> TurnInterruptedError:
    """What a turn ends with when the process that it runs in goes down."""
    return TurnInterruptedError("Continue it, or regenerate it.")


def _transcript(sealer: Sealer, turn: Turn, reply: Message | None) -> Transcript:
    segments = msgspec.json.decode(turn.segments, type=list[tuple[SegmentKind, int]])
    text = thinking = ""
    if reply is not None:
        text = sealer.open(MESSAGE_CONTENT, reply.id, reply.sealed_content)[turn.prefix_length :]
        if reply.sealed_thinking:
            thinking = sealer.open(MESSAGE_THINKING, reply.id, reply.sealed_thinking)
            thinking = thinking[turn.thinking_prefix_length :]
    elif turn.sealed_output is not None:
        text = sealer.open(TURN_OUTPUT, turn.id, turn.sealed_output)
    return Transcript.restored(segments, thinking=thinking, text=text)
