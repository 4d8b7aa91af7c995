"""The events of a turn, numbered so that any process can take them up where another left off.

Ids count up: 1 is `turn.started`, 2 `context.ready`; a delta's id is 2 plus the characters that the
model has said up to its end, thinking and text together; the last three follow. So an id says what
a client has, and the events after it follow from what is stored: no log of events is kept, and
pieces that pile up for a slow client are sent as one. A crash loses up to a second of what clients
may have: the closing events that then follow stand far after, so that they are news to them all.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

import msgspec

from backend.chats.models import MESSAGE_CONTENT, MESSAGE_THINKING, Message
from backend.turns.errors import TurnInterruptedError
from backend.turns.models import TURN_OUTPUT, TURN_PROBLEM, Turn
from backend.vault.sealing import Sealer

EVENTS: Mapping[str, tuple[str, ...]] = {
    "turn.started": ("turn_id", "user_message_id", "reply_id"),
    "context.ready": ("totals",),
    "thinking.delta": ("text",),
    "text.delta": ("text",),
    "usage": ("prompt_tokens", "completion_tokens", "cached_tokens", "thinking_tokens", "model"),
    "message.saved": ("message_id",),
    "turn.completed": ("turn_id", "state", "finish_reason"),
    "turn.failed": ("turn_id", "type", "title", "status", "detail"),
}
"""The members of each event's data."""

SegmentKind = Literal["thinking", "text"]

STARTED, READY = 1, 2
USAGE, SAVED, OVER = 1, 2, 3
"""Ids of the closing events, counted from the last delta's."""

UNSTORED = 1_000_000
"""Characters that no model says in the second that a crash can lose."""

KEEP_ALIVE = b": still here\n\n"

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """One event of a turn."""

    id: int
    name: str
    data: Any

    def encode(self) -> bytes:
        """The event as server-sent events put it on the wire."""
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (
            self.id,
            self.name.encode(),
            msgspec.json.encode(self.data),
        )


class Transcript:
    """What the model has said, piece by piece, in order."""

    __slots__ = ("_ends", "_kinds", "_texts", "length")

    def __init__(self) -> None:
        self._kinds: list[SegmentKind] = []
        self._texts: list[str] = []
        self._ends: list[int] = []
        self.length = 0

    def append(self, kind: SegmentKind, text: str) -> None:
        """Add a piece; empty ones are passed over.

        Half characters, which some servers send, have no UTF-8 form: they become U+FFFD.
        """
        if text:
            text = _HALF_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", text)
            self.length += len(text)
            self._kinds.append(kind)
            self._texts.append(text)
            self._ends.append(self.length)

    def joined(self, kind: SegmentKind) -> str:
        """Everything of one kind."""
        return "".join(
            text for each, text in zip(self._kinds, self._texts, strict=True) if each == kind
        )

    def since(self, offset: int) -> Iterator[tuple[SegmentKind, str, int]]:
        """What came after the first `offset` characters: runs of a kind as (kind, text, end)."""
        index = bisect_right(self._ends, offset)
        parts: list[str] = []
        while index < len(self._texts):
            kind, text, end = self._kinds[index], self._texts[index], self._ends[index]
            parts.append(text[offset - end :] if offset > end - len(text) else text)
            offset = end
            index += 1
            if index == len(self._texts) or self._kinds[index] != kind:
                yield kind, "".join(parts), end
                parts = []

    def segments(self) -> list[tuple[SegmentKind, int]]:
        """Lengths of the runs of one kind, in order: what is stored beside the texts."""
        runs: list[tuple[SegmentKind, int]] = []
        for kind, text in zip(self._kinds, self._texts, strict=True):
            if runs and runs[-1][0] == kind:
                runs[-1] = (kind, runs[-1][1] + len(text))
            else:
                runs.append((kind, len(text)))
        return runs

    @classmethod
    def restored(
        cls, segments: Sequence[tuple[SegmentKind, int]], *, thinking: str, text: str
    ) -> Transcript:
        """The transcript of stored texts and the lengths of their runs.

        What is no longer there (a deleted reply, thoughts that no reply followed) keeps its place.
        """
        transcript = cls()
        texts = {"thinking": thinking, "text": text}
        places = {"thinking": 0, "text": 0}
        for kind, length in segments:
            begin, end = places[kind], transcript.length + length
            transcript.append(kind, texts[kind][begin : begin + length])
            places[kind], transcript.length = begin + length, end
        return transcript


@dataclass(slots=True)
class Progress:
    """How far a turn is: what its events are made of, whether it runs here or was stored.

    `is_cut_off`: the process that it ran in died, and what it said last is lost.
    """

    started: dict[str, Any]
    totals: Any = None
    transcript: Transcript = field(default_factory=Transcript)
    usage: Any = None
    saved: dict[str, Any] | None = None
    completed: dict[str, Any] | None = None
    failed: dict[str, Any] | None = None
    is_cut_off: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.completed is not None or self.failed is not None

    def events_after(self, last_id: int) -> Iterator[TurnEvent]:
        """Every event that there is by now after `last_id` (0: from the beginning)."""
        if last_id < STARTED:
            yield TurnEvent(STARTED, "turn.started", self.started)
        if self.totals is None:
            return
        if last_id < READY:
            yield TurnEvent(READY, "context.ready", {"totals": self.totals})
        for kind, text, end in self.transcript.since(max(0, last_id - READY)):
            yield TurnEvent(READY + end, f"{kind}.delta", {"text": text})
        if not self.is_over:
            return
        last = READY + self.transcript.length + (UNSTORED if self.is_cut_off else 0)
        if self.usage is not None and last_id < last + USAGE:
            yield TurnEvent(last + USAGE, "usage", self.usage)
        if self.saved is not None and last_id < last + SAVED:
            yield TurnEvent(last + SAVED, "message.saved", self.saved)
        if last_id < last + OVER:
            if self.completed is not None:
                yield TurnEvent(last + OVER, "turn.completed", self.completed)
            else:
                yield TurnEvent(last + OVER, "turn.failed", self.failed)


def started_event(turn: Turn) -> dict[str, Any]:
    """The `turn.started` event's data."""
    return {
        "turn_id": str(turn.id),
        "user_message_id": str(turn.user_message_id) if turn.user_message_id else None,
        "reply_id": str(turn.reply_id) if turn.reply_id else None,
    }


def stored_progress(sealer: Sealer, turn: Turn, reply: Message | None) -> Progress:
    """How far a turn is, as any process can read it, at most a second late."""
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
