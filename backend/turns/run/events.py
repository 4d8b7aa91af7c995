"""The events of a turn, numbered so that any process can continue the stream.

Event 1 is `turn.started`, event 2 `context.ready`. The id of a delta is 2 plus the number of
characters that the model has written up to its end, thinking and text together. An event of a
played turn counts as one character, as does a reset. The last three ids are for the closing events.

An id therefore determines which text a client has. The events after it are made from the stored
reply. No log of deltas is needed, and the pieces for a slow client are sent as one.

Text that a reset has dropped is not sent again. A client that has received it keeps the first
`length` characters (code points) of the text or of the thoughts. For other clients the reset
changes nothing.

Turns that follow each other by themselves are joined in one stream. Each turn has its own ids.
Those of the later turns of a stream are written with the turn, `{turn_id}:{id}`, so that a client
can resume anywhere and no id is mistaken for one of the first turn.

A crash loses at most a second of text that clients may already have. The closing events after a
crash get much higher ids, so that they are new to all clients.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec

from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, MESSAGE_THINKING, Message
from backend.llm.slot_rules import Occupation
from backend.turns.errors import TurnInterruptedError
from backend.turns.models import OPEN_STATES, TURN_EVENTS, TURN_OUTPUT, TURN_PROBLEM, Turn
from backend.vault.sealing import Sealer

SpokenKind = Literal["thinking", "text"]

SegmentKind = Literal["thinking", "text", "event", "dropped"]
"""An event takes one place, any other piece one place for each character.

Dropped text keeps its places."""

Segment = tuple[SegmentKind, int]
"""The number of places of one run of a kind."""

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")

AWAITING_CHOICE, CHOICE_MADE = "turn.awaiting_choice", "turn.choice_made"

STATE_CHANGED, SUGGESTIONS = "state.changed", "suggestions"

MODEL_BUSY = "model.busy"
"""The work of the model's server that the turn waits for. Null when the wait is over.

It is a state and not a part of the reply, so it has the id of the event before it."""

CALLS_REQUESTED = "calls.requested"

SPEAKER_STARTED = "speaker.started"
"""The turn of which the next events are. A client that resumes before `turn.started` gets it again.
"""

SPEAKER_PASSED = "speaker.passed"

CONTEXT_READY = "context.ready"
"""Sent again if the prompt had to be built again. The later totals apply."""

EVENTS: Mapping[str, tuple[str, ...]] = {
    SPEAKER_STARTED: ("turn_id", "character_id", "name", "number", "left"),
    "turn.started": ("turn_id", "user_message_id", "reply_id"),
    CONTEXT_READY: ("totals",),
    MODEL_BUSY: ("work",),
    "thinking.delta": ("text",),
    "text.delta": ("text",),
    "thinking.reset": ("length",),
    "text.reset": ("length",),
    "mood.changed": ("mood", "variant", "position", "effect"),
    "tool.used": ("name", "summary"),
    CALLS_REQUESTED: (),
    AWAITING_CHOICE: ("kind", "prompt", "options", "own"),
    CHOICE_MADE: ("option", "text"),
    SPEAKER_PASSED: ("turn_id", "character_id", "name", "message_id"),
    STATE_CHANGED: ("changes", "left_out"),
    SUGGESTIONS: ("items",),
    "usage": ("prompt_tokens", "completion_tokens", "cached_tokens", "thinking_tokens", "model"),
    "message.saved": ("message_id",),
    "turn.completed": ("turn_id", "state", "finish_reason"),
    "turn.failed": ("turn_id", "type", "title", "status", "detail", "provider_message"),
}
"""The members of each event's data."""

SPEAKER_ID, STARTED_ID, READY_ID = 0, 1, 2

USAGE_OFFSET, SAVED_OFFSET, END_OFFSET = 1, 2, 3
"""The ids of the closing events, counted from the last delta."""

MAX_UNSTORED_CHARACTERS = 1_000_000
"""More characters than a model can write in the second that a crash may lose."""

KEEP_ALIVE = b": still here\n\n"


class PlayEvent(NamedTuple):
    """Something that happened between two pieces of text: the name and data of an event."""

    name: str
    data: Any


class Transcript:
    """The output of the model, and the events between its pieces, in order."""

    __slots__ = ("_ends", "_events", "_kinds", "_texts", "drops", "length")

    def __init__(self) -> None:
        self._kinds: list[SegmentKind] = []
        self._texts: list[str] = []
        self._ends: list[int] = []
        self._events: dict[int, PlayEvent] = {}
        self.length = 0
        self.drops = 0

    def append(self, kind: SpokenKind, text: str) -> None:
        """Add a piece. Empty pieces are ignored.

        Some servers send surrogates, which have no UTF-8 form. They are replaced by U+FFFD.
        """
        if text:
            text = _HALF_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", text)
            self._add(kind, text, len(text))

    def append_event(self, name: str, data: Any) -> None:
        self._add("event", "", 1)
        self._events[self.length] = PlayEvent(name, data)

    def drop(self, kind: SpokenKind, *, since: int = 0) -> None:
        """Drop everything of one kind after `since` places. The places stay for the event ids."""
        self.drops += 1
        self._split(since)
        for index in range(bisect_right(self._ends, since), len(self._ends)):
            if self._kinds[index] == kind:
                self._kinds[index], self._texts[index] = "dropped", ""

    @property
    def events(self) -> list[PlayEvent]:
        return list(self._events.values())

    def join(self, kind: SpokenKind, *, since: int = 0) -> str:
        """Return everything of one kind after the first `since` places."""
        first = bisect_right(self._ends, since) if since else 0
        pieces = zip(self._kinds[first:], self._texts[first:], strict=True)
        return "".join(text for each, text in pieces if each == kind)

    def since(self, offset: int) -> Iterator[tuple[str, Any, int]]:
        """Yield the events after the first `offset` places, as (name, data, last place)."""
        first = bisect_right(self._ends, offset)
        for kind, run in groupby(range(first, len(self._ends)), self._kinds.__getitem__):
            places = list(run)
            end = self._ends[places[-1]]
            if kind == "event":
                for place in map(self._ends.__getitem__, places):
                    event = self._events[place]
                    yield event.name, event.data, place
            elif kind != "dropped":
                begin = self._ends[places[0]] - len(self._texts[places[0]])
                text = "".join(self._texts[places[0] : places[-1] + 1])
                yield f"{kind}.delta", {"text": text[max(0, offset - begin) :]}, end

    def segments(self) -> list[Segment]:
        """Return the lengths of the runs in order, to be stored with the texts and the events."""
        runs: list[Segment] = []
        before = 0
        for kind, end in zip(self._kinds, self._ends, strict=True):
            taken = end - before
            if runs and runs[-1][0] == kind:
                taken += runs.pop()[1]
            runs.append((kind, taken))
            before = end
        return runs

    @classmethod
    def restore(
        cls,
        segments: Sequence[Segment],
        *,
        thinking: str,
        text: str,
        events: Sequence[PlayEvent] = (),
    ) -> Transcript:
        """Return the transcript of stored texts, events and run lengths.

        Text that no longer exists, for example of a deleted reply, keeps its places.
        """
        transcript, coming = cls(), iter(events)
        texts: dict[SegmentKind, str] = {"thinking": thinking, "text": text}
        for kind, length in segments:
            if kind == "event":
                for event in (next(coming) for _ in range(length)):
                    transcript.append_event(*event)
                continue
            piece = texts.get(kind, "")[:length]
            if piece:
                texts[kind] = texts[kind][length:]
                transcript._add(kind, piece, len(piece))
            if missing := length - len(piece):
                transcript._add("dropped", "", missing)
        return transcript

    def _split(self, place: int) -> None:
        """Split the piece that contains a place. A restored piece may join several."""
        index = bisect_right(self._ends, place)
        if index == len(self._ends):
            return
        kept = place - (self._ends[index] - len(self._texts[index]))
        if kept > 0:
            text = self._texts[index]
            self._texts[index : index + 1] = [text[:kept], text[kept:]]
            self._kinds.insert(index, self._kinds[index])
            self._ends.insert(index, place)

    def _add(self, kind: SegmentKind, text: str, taken: int) -> None:
        self.length += taken
        self._kinds.append(kind)
        self._texts.append(text)
        self._ends.append(self.length)


_PLAY_EVENTS = msgspec.json.Decoder(list[PlayEvent])


class TurnEvent(msgspec.Struct, frozen=True):
    """An event of a turn. With `turn_id`, it is one of a later turn of the stream."""

    id: int
    name: str
    data: Any
    turn_id: UUID | None = None

    def encode(self) -> bytes:
        """Return the event in the wire format of server-sent events."""
        return b"id: %b%d\nevent: %b\ndata: %b\n\n" % (
            f"{self.turn_id}:".encode() if self.turn_id else b"",
            self.id,
            self.name.encode(),
            msgspec.json.encode(self.data),
        )


class EventPlace(NamedTuple):
    """The last event that a client has got: its id, and its turn if that is a later one."""

    id: int = 0
    turn_id: UUID | None = None


@dataclass(slots=True)
class Progress:
    """The state of a turn from which its events are made.

    `waits_for` is the work of the model's server that the turn waits for. `is_waiting` if the turn
    waits for the player's choice. `is_cut_off` if its process died and the last text is lost.
    `speaker` is the data of `speaker.started`, and `replies_left` how many replies may follow by
    themselves. `is_reserved` if the turn has not begun.
    """

    started: dict[str, Any]
    totals: Any = None
    transcript: Transcript = field(default_factory=Transcript)
    usage: Any = None
    saved: dict[str, Any] | None = None
    completed: dict[str, Any] | None = None
    failed: dict[str, Any] | None = None
    waits_for: Occupation | None = None
    is_waiting: bool = False
    is_cut_off: bool = False
    speaker: dict[str, Any] | None = None
    replies_left: int = 0
    is_reserved: bool = False

    @property
    def is_over(self) -> bool:
        """True if no more events will come."""
        return self.completed is not None or self.failed is not None

    @property
    def is_at_rest(self) -> bool:
        """True if no more events will come without an action of the player."""
        return self.is_over or self.is_waiting

    def events_after(self, last_id: int) -> Iterator[TurnEvent]:
        """Yield all current events after `last_id`. Use 0 for all events.

        A question comes when the turn is stored as waiting, because no earlier choice is accepted.
        """
        if self.is_reserved:
            return
        if last_id < STARTED_ID:
            if self.speaker is not None:
                yield TurnEvent(SPEAKER_ID, SPEAKER_STARTED, self.speaker)
            yield TurnEvent(STARTED_ID, "turn.started", self.started)
        if self.totals is None and not self.is_over:
            return
        if self.totals is not None and last_id < READY_ID:
            yield TurnEvent(READY_ID, CONTEXT_READY, {"totals": self.totals})
        for name, data, place in self.transcript.since(max(0, last_id - READY_ID)):
            is_last = place == self.transcript.length
            if name == AWAITING_CHOICE and is_last and not self.is_at_rest:
                return
            yield TurnEvent(READY_ID + place, name, data)
        if self.is_over:
            yield from self._closing_events_after(last_id)

    def _closing_events_after(self, last_id: int) -> Iterator[TurnEvent]:
        last = (
            READY_ID + self.transcript.length + (MAX_UNSTORED_CHARACTERS if self.is_cut_off else 0)
        )
        if self.usage is not None and last_id < last + USAGE_OFFSET:
            yield TurnEvent(last + USAGE_OFFSET, "usage", self.usage)
        if self.saved is not None and last_id < last + SAVED_OFFSET:
            yield TurnEvent(last + SAVED_OFFSET, "message.saved", self.saved)
        if last_id < last + END_OFFSET:
            if self.completed is not None:
                yield TurnEvent(last + END_OFFSET, "turn.completed", self.completed)
            else:
                yield TurnEvent(last + END_OFFSET, "turn.failed", self.failed)


@dataclass(slots=True)
class EventCursor:
    """The position of a listener: the id of its last event, and the last `model.busy`."""

    last_id: int
    waits_for: Occupation | None = None

    def next_events(self, progress: Progress) -> list[TurnEvent]:
        batch = list(progress.events_after(self.last_id))
        if batch:
            self.last_id = batch[-1].id
        if progress.waits_for != self.waits_for:
            self.waits_for = progress.waits_for
            batch.append(TurnEvent(self.last_id, MODEL_BUSY, {"work": self.waits_for}))
        return batch


def make_started_data(turn: Turn) -> dict[str, Any]:
    return {
        "turn_id": str(turn.id),
        "user_message_id": str(turn.user_message_id) if turn.user_message_id else None,
        "reply_id": str(turn.reply_id) if turn.reply_id else None,
    }


def make_speaker_data(
    turn: Turn, character_id: UUID | None, name: str, number: int
) -> dict[str, Any] | None:
    """Return the data of `speaker.started`. None if the `number` is 0, outside of chains."""
    if not number:
        return None
    return {
        "turn_id": str(turn.id),
        "character_id": str(character_id) if character_id else None,
        "name": name,
        "number": number,
        "left": turn.replies_left,
    }


def read_progress(
    sealer: Sealer, turn: Turn, reply: Message | None, *, number: int = 0
) -> Progress:
    """Return the stored progress of a turn. Any process can read it, at most a second late.

    `number` is the place of the turn in its chain, from 1.
    """
    speaker = None
    if reply is not None:
        name = sealer.open(MESSAGE_AUTHOR, reply.id, reply.sealed_author)
        speaker = make_speaker_data(turn, reply.character_id, name, number)
    progress = Progress(
        started=make_started_data(turn),
        speaker=speaker,
        replies_left=turn.replies_left,
        is_reserved=turn.is_reserved,
        totals=msgspec.json.decode(turn.totals) or None,
        transcript=_read_transcript(sealer, turn, reply),
        usage=msgspec.json.decode(turn.usage) if turn.usage else None,
    )
    if turn.state in OPEN_STATES:
        progress.is_waiting = turn.state == "waiting"
        progress.waits_for = turn.waits_for
        return progress
    said = progress.transcript
    kept = {CHOICE_MADE, SPEAKER_PASSED}
    is_kept = bool(said.join("text")) or any(each.name in kept for each in said.events)
    if reply is not None and (turn.state == "completed" or is_kept):
        progress.saved = {"message_id": str(reply.id)}
    if turn.state in {"completed", "stopped"}:
        progress.completed = make_completed_data(turn.id, turn.state, turn.finish or "")
    elif turn.sealed_problem is not None:
        problem = sealer.open_bytes(TURN_PROBLEM, turn.id, turn.sealed_problem)
        progress.failed = {"turn_id": str(turn.id), **msgspec.json.decode(problem)}
    else:
        # No process was left to seal a problem.
        progress.is_cut_off = True
        progress.failed = {"turn_id": str(turn.id), **make_interrupted_error().to_problem()}
    return progress


def make_completed_data(turn_id: UUID, state: str, finish: str) -> dict[str, Any]:
    return {"turn_id": str(turn_id), "state": state, "finish_reason": finish or state}


def make_interrupted_error() -> TurnInterruptedError:
    """Return the error of a turn that ends because its process stops."""
    return TurnInterruptedError("Continue or regenerate the reply.")


def read_play_events(sealer: Sealer, turn: Turn) -> list[PlayEvent]:
    if turn.sealed_events is None:
        return []
    data = sealer.open_bytes(TURN_EVENTS, turn.id, turn.sealed_events)
    return _PLAY_EVENTS.decode(data)


def find_awaited_choice(sealer: Sealer, turn: Turn) -> Any:
    """Return the data of the choice that a turn waits for. None if it does not wait."""
    if turn.state != "waiting":
        return None
    return next(
        (
            each.data
            for each in reversed(read_play_events(sealer, turn))
            if each.name == AWAITING_CHOICE
        ),
        None,
    )


def _read_transcript(sealer: Sealer, turn: Turn, reply: Message | None) -> Transcript:
    text = thinking = ""
    if reply is not None:
        text = sealer.open(MESSAGE_CONTENT, reply.id, reply.sealed_content)[turn.prefix_length :]
        if reply.sealed_thinking:
            thinking = sealer.open(MESSAGE_THINKING, reply.id, reply.sealed_thinking)
            thinking = thinking[turn.thinking_prefix_length :]
    elif turn.sealed_output is not None:
        text = sealer.open(TURN_OUTPUT, turn.id, turn.sealed_output)
    return Transcript.restore(
        msgspec.json.decode(turn.segments, type=list[Segment]),
        thinking=thinking,
        text=text,
        events=read_play_events(sealer, turn),
    )
