"""What a turn has said and done so far, each piece at its place in the numbering of events."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

Spoken = Literal["thinking", "text"]
SegmentKind = Literal["thinking", "text", "event", "dropped"]
"""An event takes one place, all else one for each character. What was dropped keeps its places."""

Segment = tuple[SegmentKind, int]
"""How many places a run of one kind takes."""

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


class PlayEvent(NamedTuple):
    """Something that happened between two pieces of text: an event's name and its data."""

    name: str
    data: Any


class Transcript:
    """What the model has said, piece by piece, and what happened between, in order."""

    __slots__ = ("_ends", "_events", "_kinds", "_texts", "drops", "length")

    def __init__(self) -> None:
        self._kinds: list[SegmentKind] = []
        self._texts: list[str] = []
        self._ends: list[int] = []
        self._events: dict[int, PlayEvent] = {}
        self.length = 0
        self.drops = 0

    def append(self, kind: Spoken, text: str) -> None:
        """Add a piece; empty ones are passed over.

        Half characters, which some servers send, have no UTF-8 form: they become U+FFFD.
        """
        if text:
            text = _HALF_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", text)
            self._add(kind, text, len(text))

    def append_event(self, name: str, data: Any) -> None:
        """Add an event."""
        self._add("event", "", 1)
        self._events[self.length] = PlayEvent(name, data)

    def drop(self, kind: Spoken, *, since: int = 0) -> None:
        """Take back everything of one kind after the first `since` places, and count it in `drops`.

        The places remain, so that no event's id changes.
        """
        self.drops += 1
        self._split(since)
        for index in range(bisect_right(self._ends, since), len(self._ends)):
            if self._kinds[index] == kind:
                self._kinds[index], self._texts[index] = "dropped", ""

    @property
    def events(self) -> list[PlayEvent]:
        """What happened, in order."""
        return list(self._events.values())

    def joined(self, kind: Spoken, *, since: int = 0) -> str:
        """Everything of one kind that came after the first `since` places."""
        first = bisect_right(self._ends, since) if since else 0
        pieces = zip(self._kinds[first:], self._texts[first:], strict=True)
        return "".join(text for each, text in pieces if each == kind)

    def since(self, offset: int) -> Iterator[tuple[str, Any, int]]:
        """What came after the first `offset` places, as events: (name, data, the last place)."""
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
        """The runs of one kind, in order: what is stored beside the texts and the events."""
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
    def restored(
        cls,
        segments: Sequence[Segment],
        *,
        thinking: str,
        text: str,
        events: Sequence[PlayEvent] = (),
    ) -> Transcript:
        """The transcript of stored texts and events, and the lengths of their runs.

        What is no longer there (a deleted reply, thoughts that no reply followed) keeps its place.
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
        """Cut the piece in two that lies across a place: a restored piece joins several."""
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
