"""Match a client's list with a stored path: equal, changed and missing messages, and the tail."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Final
from uuid import UUID

from backend.chats.text_digests import TextDigester
from backend.openai_api.alignment import (
    GapMessage,
    Pair,
    PieceDigests,
    Unit,
    digest_lines,
    find_block,
    pair_digests,
    settle_gap,
    split_lines,
)
from backend.openai_api.contracts import Line
from backend.openai_api.stored_paths import LineBlock, MessagePath

MAX_TAIL: Final = 3
"""New lines of a usual request: a line of the user, an instruction, the beginning of a reply."""

MAX_KEPT_LINES: Final = 6
MAX_DELETED: Final = 8
"""Some clients keep the first lines of a chat, up to `MAX_KEPT_LINES`, and leave out later ones.

After these first lines, more than `MAX_DELETED` missing messages are outside the client's window.
Fewer are deleted, because a user deletes messages one by one or a few at once.
"""

MAX_MISSING: Final = 40
"""Messages that a user can have deleted at another place. More are outside the window as well."""

MIN_STORED_SHARE: Final = 3
"""One of this number of lines, up to the last match, must be stored."""


@dataclass(frozen=True, slots=True)
class ClientLines:
    """A client's lines with their digests. `joined` are the digests without separators."""

    lines: Sequence[Line]
    digests: Sequence[bytes]
    joined: bytes
    pieces: PieceDigests

    @classmethod
    def digest(cls, digester: TextDigester, lines: Sequence[Line]) -> ClientLines:
        """CPU-bound."""
        digests = digest_lines(digester, lines)
        return cls(lines, digests, b"".join(digests), PieceDigests(digester))

    @property
    def last_user(self) -> Line | None:
        return next((line for line in reversed(self.lines) if line.role == "user"), None)


@dataclass(frozen=True, slots=True)
class OpenGap:
    """Units between two pairs, and the places of the messages that they may be."""

    units: Sequence[tuple[int, Unit]]
    places: Sequence[int]

    @property
    def is_outside_window(self) -> bool:
        """True if the client has left out these messages to save tokens.

        For example, it can always send the greeting or the first lines, and then only the last
        ones. The user has not deleted the messages between them. Nothing happens to them, as to
        those before the first match. Messages that were hidden one by one before stay hidden.
        """
        is_after_first = self.places[0] <= MAX_KEPT_LINES
        missing = len(self.places) - len(self.units)
        return missing > (MAX_DELETED if is_after_first else MAX_MISSING)


@dataclass(slots=True, kw_only=True)
class PathMatch:
    """A client's list on a path. Messages are given by their places on the path.

    Attributes:
        lines: The place of each line that is stored. A merged line has that of its last message.
        hidden: The messages of lines that are hidden.
        first: The first message of a line.
        window_start: The first message in the client's window. If the client keeps the first lines
            of the chat and leaves out many after them, it is the first one after these.
        last: The last message of a line.
        last_line: The last line that is stored.
        tail: The lines after the last match, with their indexes in the list.
        gaps: Parts between two pairs that are not settled yet.
        edits: New texts.
        hides: Messages that the client no longer sends.
        matches: The number of lines that are stored with the same or nearly the same text.
        replies: The number of replies among them, without a greeting.
        changes: The number of lines that replace another text.
    """

    path: MessagePath
    lines: Mapping[int, int]
    hidden: Collection[int]
    first: int
    window_start: int
    last: int
    last_line: int
    tail: Sequence[tuple[int, Line]]
    gaps: Sequence[OpenGap] = ()
    edits: dict[int, str] = field(default_factory=dict[int, str])
    hides: list[int] = field(default_factory=list[int])
    matches: int
    replies: int
    changes: int = 0

    @property
    def end(self) -> int:
        """The place of the next line after `last`."""
        return self.path.find_line(self.last + 1)

    @property
    def skipped(self) -> int:
        """The number of lines before the last match that are not on the path."""
        return self.last_line + 1 - len(self.lines)

    def list_text_ids(self, limit: int) -> list[UUID]:
        """Return the messages of the gaps. Their texts decide which of them were changed."""
        places = [place for gap in self.gaps if gap.units for place in gap.places]
        return [self.path.get_id(place) for place in places[:limit]]

    def settle(self, texts: Mapping[UUID, str]) -> None:
        """Decide about all gaps. CPU-bound."""
        self.lines, self.hidden = lines, hidden = dict(self.lines), set(self.hidden)
        for gap in self.gaps:
            candidates = [self._make_candidate(place, texts) for place in gap.places]
            pairs, units = settle_gap(gap.units, candidates), dict(gap.units)
            for pair in pairs:
                unit = units[pair.unit]
                lines[unit.line] = pair.stored
                if self.path.is_hidden(pair.stored):
                    hidden.add(pair.stored)
                self._take(pair, unit)
            taken = {pair.stored for pair in pairs}
            missing = (each for each in candidates if each.stored not in taken)
            self.hides += [each.stored for each in missing if not each.is_hidden]
        self.gaps = ()

    def follow(self, path: MessagePath, place: int, *, text: str | None) -> None:
        """Take the first line of the tail as the message at a place of `path` after `last`.

        `text` is the client's text if it is not the stored one.
        """
        line, _ = self.tail[0]
        self.path, self.last, self.last_line = path, place, line
        self.tail = self.tail[1:]
        self.lines = {**self.lines, line: self.last}
        if path.is_hidden(self.last):
            self.hidden = {*self.hidden, self.last}
        if text is not None:
            self.edits[self.last] = text
        self.matches += 1
        self.replies += path.get_role(self.last) == "assistant"

    def list_shown(self, hidden: Collection[UUID]) -> list[UUID]:
        """Return the messages of the list among those that the endpoint has hidden."""
        found = [self.path.get_id(each) for each in self.hidden]
        return [each for each in found if each in hidden]

    def drop_notes(self, digests: Sequence[bytes], hidden: Collection[UUID]) -> None:
        """Drop lines of the tail that the client moves along with its last line.

        Such a note was stored once before an earlier line, where the client no longer sends it.
        `digests` are those of all lines.
        """
        path = self.path
        texts = {path.get_digest(place) for place in self.hides}
        texts |= {
            path.get_digest(place) for place in path.list_hidden() if path.get_id(place) in hidden
        }
        users = [at for at, (_, line) in enumerate(self.tail) if line.role == "user"]
        end = users[-1] if users else 0
        self.tail = [
            each for at, each in enumerate(self.tail) if at >= end or digests[each[0]] not in texts
        ]

    def is_recognised(self, *, is_named: bool, is_retry: bool = False) -> bool:
        """True if enough lines are stored to take the list for this chat.

        Greetings and first lines of the user, which may begin many chats, are enough only if the
        chat went no further. Each member of a group can have a greeting. If the chat is named, a
        greeting and a line are enough, and if the request is sent again, the last line.
        """
        last_line = self.last_line
        is_sparse = MIN_STORED_SHARE * self.matches < last_line + 1
        if is_sparse or self.changes > self.matches:
            return False
        flags, places = self.path.flags.lower(), self.lines.values()
        greetings = flags.find("u") if "u" in flags else len(flags)
        if self.replies and any(flags[at] == "a" and at > greetings for at in places):
            return True
        if not self.replies and not any(flags[at] == "u" for at in places):
            return False
        beginning = self.path.find_line(0)
        if is_named and self.first == beginning and flags[beginning] == "a":
            return True
        if is_named and is_retry:
            return "u" not in flags[self.last + 1 :]
        return "u" not in flags[: self.first] + flags[self.last + 1 :]

    def _take(self, pair: Pair, unit: Unit) -> None:
        self.edits[pair.stored] = unit.text
        if pair.kind == "changed":
            self.changes += 1
        else:
            self.matches += 1
            self.replies += unit.role == "assistant"

    def _make_candidate(self, place: int, texts: Mapping[UUID, str]) -> GapMessage:
        return GapMessage(
            stored=place,
            role=self.path.get_role(place),
            is_hidden=self.path.is_hidden(place),
            text=texts.get(self.path.get_id(place)),
        )


def match_block(client: ClientLines, path: MessagePath) -> PathMatch | None:
    """Match a list that has only grown: all lines but the last few are on the path, in one piece.

    The hidden messages of the path are all in the list, or none of them. System messages are never
    in it. It costs microseconds.
    """
    system = path.list_system()
    found = _match_block(client, path, system)
    if found is None and path.has_hidden:
        found = _match_block(client, path, sorted({*system, *path.list_hidden()}))
    return found


def _match_block(
    client: ClientLines, path: MessagePath, skipped: Sequence[int]
) -> PathMatch | None:
    """Match a list with a path without some messages."""
    shown, out = (path.without(skipped) if skipped else path), frozenset(skipped)
    block = find_block(client.joined, shown.digests, max_tail=MAX_TAIL)
    if block is None:
        return None
    start, count = block
    tail = list(enumerate(client.lines[count:], count))
    if start + count < len(shown) and any(line.pieces for _, line in tail):
        return None  # a part of a merged line may be the next message
    lines = LineBlock(start, count, skipped)
    first, last = lines[0], lines[count - 1]
    return PathMatch(
        path=path,
        lines=lines,
        hidden=[each for each in path.list_hidden() if first <= each <= last and each not in out],
        first=first,
        window_start=first,
        last=last,
        last_line=count - 1,
        tail=tail,
        matches=count,
        replies=shown.flags[max(1, start) : start + count].lower().count("a"),
    )


def match_digests(
    client: ClientLines, path: MessagePath, hidden: Collection[UUID]
) -> PathMatch | None:
    """Match a list by digests. None if no line is on the path.

    `hidden` are the messages that the endpoint has hidden. Others that are hidden are neither
    changed nor missing. CPU-bound: some milliseconds for thousands of lines.
    """
    digests = path.list_digests()
    units = split_lines(client.pieces, client.lines, client.digests, set(digests))
    pairs = pair_digests([unit.digest for unit in units], digests)
    if not pairs:
        return None
    last_unit, last = pairs[-1]
    gaps = _list_gaps(path, units, pairs, hidden)
    outside = [gap for gap in gaps if gap.is_outside_window]
    return PathMatch(
        path=path,
        lines={units[ours].line: theirs for ours, theirs in pairs},
        hidden={theirs for _, theirs in pairs if path.is_hidden(theirs)},
        first=pairs[0][1],
        window_start=outside[-1].places[-1] + 1 if outside else pairs[0][1],
        last=last,
        last_line=units[last_unit].line,
        tail=_join_units(client.lines, units[last_unit + 1 :]),
        gaps=[gap for gap in gaps if not gap.is_outside_window],
        matches=len({units[ours].line for ours, _ in pairs}),
        replies=sum(
            theirs > path.find_line(0) and path.get_role(theirs) == "assistant"
            for _, theirs in pairs
        ),
    )


def _list_gaps(
    path: MessagePath,
    units: Sequence[Unit],
    pairs: Sequence[tuple[int, int]],
    hidden: Collection[UUID],
) -> list[OpenGap]:
    gaps: list[OpenGap] = []
    for (our, their), (next_our, next_their) in pairwise(pairs):
        if next_their == their + 1:
            continue  # lines that were inserted here are ignored
        places = [
            place
            for place in range(their + 1, next_their)
            if path.get_role(place) != "system"
            and (not path.is_hidden(place) or path.get_id(place) in hidden)
        ]
        if places:
            gaps.append(OpenGap([(at, units[at]) for at in range(our + 1, next_our)], places))
    return gaps


def _join_units(lines: Sequence[Line], units: Sequence[Unit]) -> list[tuple[int, Line]]:
    """Return the lines that units are of. A line that begins before them has only their text."""
    tail: list[tuple[int, Line]] = []
    for place, group in groupby(units, key=lambda unit: unit.line):
        text = "\n\n".join(unit.text for unit in group)
        line = lines[place]
        tail.append((place, line if text == line.text else replace(line, text=text, pieces=())))
    return tail
