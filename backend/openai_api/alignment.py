"""Align the lines of a client with the messages of a stored path, as a diff does. Pure.

Messages are compared by digests first. Digests that are unique on both sides are the anchors of a
patience diff. Around and between anchors, equal neighbours are paired. Then the remaining texts
between two pairs decide which stored message a line has changed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from backend.chats.text_digests import DIGEST_BYTES, TextDigester, normalize_text
from backend.core.cpu_pool import check_stopped
from backend.openai_api.contracts import Line

MAX_RUN_PIECES: Final = 12
"""Parts of a merged message that can together be one stored message."""

MAX_RUN_CHARACTERS: Final = 5_000_000
"""Characters of all runs of pieces that are hashed for one request, which takes 50 ms."""

MAX_OCCURRENCES: Final = 8
"""Equal messages that each line is compared with, if a part of the list has no unique message."""

MAX_GAP_CELLS: Final = 400
"""Maximum of lines times messages for a comparison of texts. Larger gaps are paired in order."""

COMPARED_CHARACTERS: Final = 20_000
"""Long texts are compared by their beginnings and ends of together this length."""

NEAR_SIMILARITY: Final = 0.75
NEAR_CONTAINMENT: Final = 0.9
MIN_CONTAINED_SHARE: Final = 0.25
MIN_CONTAINED_WORDS: Final = 5

_WORD: Final = re.compile(r"\w+")
_LONG_WORD: Final = 12
"""Texts with longer words on average are of a script without spaces. Pairs of letters count."""

_NEAR_WEIGHT: Final = 4.0
"""Weight of a near text, against 1 for any message of the same role."""

Role = Literal["user", "assistant", "system"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of the client's list that can be one stored message: a line, or pieces of one.

    `line` is the index of its line.
    """

    line: int
    role: Literal["user", "assistant"]
    text: str
    digest: bytes


def digest_lines(digester: TextDigester, lines: Iterable[Line]) -> list[bytes]:
    """Return the digest of each line. CPU-bound."""
    digests: list[bytes] = []
    for line in lines:
        check_stopped()
        digests.append(digester.compute(line.role, line.text))
    return digests


class PieceDigests:
    """The digests of runs of pieces of merged lines, each computed once for all paths.

    There are none after `MAX_RUN_CHARACTERS`, so that a list of long lines takes bounded time.
    """

    def __init__(self, digester: TextDigester) -> None:
        self._digester = digester
        self._digests: dict[tuple[int, int, int], bytes] = {}
        self._free_characters = MAX_RUN_CHARACTERS

    def split(self, line: Line, place: int, known: Container[bytes]) -> list[Unit]:
        """Return runs of pieces that are known, the longest, and the pieces between them.

        Empty if no run is known.
        """
        units: list[Unit] = []
        pieces, first, unknown = line.pieces, 0, 0
        while first < len(pieces):
            end = self._find_end(line, place, first, known)
            if end is None:
                first += 1
                continue
            if unknown < first:
                units.append(self._make_unit(line, place, unknown, first))
            units.append(self._make_unit(line, place, first, end))
            first = unknown = end
        if units and unknown < len(pieces):
            units.append(self._make_unit(line, place, unknown, len(pieces)))
        return units

    def _find_end(self, line: Line, place: int, first: int, known: Container[bytes]) -> int | None:
        """Return the end of the longest run from `first` that is known."""
        for end in range(min(len(line.pieces), first + MAX_RUN_PIECES), first, -1):
            if self._free_characters <= 0:
                return None
            if self._digest(line, place, first, end) in known:
                return end
        return None

    def _digest(self, line: Line, place: int, first: int, end: int) -> bytes:
        key = (place, first, end)
        if key not in self._digests:
            text = _join(line.pieces[first:end])
            self._free_characters -= len(text)
            self._digests[key] = self._digester.compute(line.role, text)
        return self._digests[key]

    def _make_unit(self, line: Line, place: int, first: int, end: int) -> Unit:
        text = _join(line.pieces[first:end])
        return Unit(place, line.role, text, self._digest(line, place, first, end))


def _join(pieces: Sequence[str]) -> str:
    return "\n\n".join(pieces)


def split_lines(
    pieces: PieceDigests,
    lines: Sequence[Line],
    digests: Sequence[bytes],
    known: Container[bytes],
) -> list[Unit]:
    """Return the units of lines: several for a merged line of which only parts are known.

    Blank lines have none. CPU-bound.
    """
    units: list[Unit] = []
    for place, (line, digest) in enumerate(zip(lines, digests, strict=True)):
        check_stopped()
        if not line.text.strip() and not line.images:
            continue
        parts: list[Unit] = []
        if line.pieces and digest not in known:
            parts = pieces.split(line, place, known)
        units += parts or [Unit(place, line.role, line.text, digest)]
    return units


def find_block(ours: bytes, theirs: bytes, *, max_tail: int) -> tuple[int, int] | None:
    """Find all our messages, except for the last few, as one block of theirs.

    Both are digests without separators. Returns the index of the first message in theirs, and the
    number of messages of the block. None if there is no such block, or if one of the last few is
    elsewhere in theirs. It costs microseconds, and finds the usual request: a list that has grown.
    """
    size = DIGEST_BYTES
    count = len(ours) // size
    for tail in range(min(max_tail + 1, count)):
        last = (count - tail - 1) * size
        at = _rfind(theirs, ours[last : last + size])
        if at < 0:
            continue
        start = at - last
        if start < 0 or theirs[start : at + size] != ours[: last + size]:
            return None
        return start // size, last // size + 1
    return None


def _rfind(theirs: bytes, digest: bytes) -> int:
    """Return the offset of the last message with a digest, or -1."""
    at = theirs.rfind(digest)
    while at % DIGEST_BYTES and at >= 0:
        at = theirs.rfind(digest, 0, at + DIGEST_BYTES - 1)
    return at


def pair_digests(ours: Sequence[bytes], theirs: Sequence[bytes]) -> list[tuple[int, int]]:
    """Pair equal messages in order, as a patience diff does, in O(n log n).

    Returns pairs of indexes, both ascending. Of several longest results, one near the end of theirs
    is preferred, because clients send the end of a chat.
    """
    pairs: list[tuple[int, int]] = []
    _pair_gap(ours, theirs, PairGap(0, len(ours), 0, len(theirs)), pairs, level=0)
    pairs.sort()
    return pairs


@dataclass(frozen=True, slots=True)
class PairGap:
    """A part of both lists, by indexes."""

    our_first: int
    our_end: int
    their_first: int
    their_end: int

    @property
    def is_empty(self) -> bool:
        """True if one of the lists has nothing to pair here."""
        return self.our_first >= self.our_end or self.their_first >= self.their_end


_MAX_LEVELS: Final = 3
"""A gap has fewer repeated messages than the gap around it, so that some become unique."""


def _pair_gap(
    ours: Sequence[bytes],
    theirs: Sequence[bytes],
    gap: PairGap,
    pairs: list[tuple[int, int]],
    *,
    level: int,
) -> None:
    """Append the pairs of a gap."""
    gap = _trim_gap(ours, theirs, gap, pairs)
    if gap.is_empty:
        return
    anchors = _find_anchors(ours, theirs, gap) if level < _MAX_LEVELS else []
    if not anchors:
        pairs += _pair_occurrences(ours, theirs, gap)
        return
    pairs += anchors
    before = (gap.our_first - 1, gap.their_first - 1)
    for our, their in [*anchors, (gap.our_end, gap.their_end)]:
        inner = PairGap(before[0] + 1, our, before[1] + 1, their)
        if not inner.is_empty:
            _pair_gap(ours, theirs, inner, pairs, level=level + 1)
        before = our, their


def _trim_gap(
    ours: Sequence[bytes], theirs: Sequence[bytes], gap: PairGap, pairs: list[tuple[int, int]]
) -> PairGap:
    """Pair equal messages next to the anchors of a gap.

    The ends of the lists are no anchors: a client's window can begin anywhere in the path.
    """
    our, their, our_end, their_end = gap.our_first, gap.their_first, gap.our_end, gap.their_end
    if our > 0 and their > 0:
        while our < our_end and their < their_end and ours[our] == theirs[their]:
            pairs.append((our, their))
            our, their = our + 1, their + 1
    if our_end < len(ours) and their_end < len(theirs):
        while our < our_end and their < their_end and ours[our_end - 1] == theirs[their_end - 1]:
            our_end, their_end = our_end - 1, their_end - 1
            pairs.append((our_end, their_end))
    return PairGap(our, our_end, their, their_end)


def _find_anchors(
    ours: Sequence[bytes], theirs: Sequence[bytes], gap: PairGap
) -> list[tuple[int, int]]:
    """Return the longest ascending pairs of messages that are unique on both sides."""
    own = _index_unique(ours, gap.our_first, gap.our_end)
    other = _index_unique(theirs, gap.their_first, gap.their_end)
    common = [(place, other[digest]) for digest, place in own.items() if digest in other]
    if all(a[1] < b[1] for a, b in pairwise(common)):
        return common
    return _keep_ascending_from_end(common)


def _index_unique(digests: Sequence[bytes], first: int, end: int) -> dict[bytes, int]:
    """Return the places of messages without an equal one, in order."""
    part = digests[first:end]
    places = dict(zip(part, range(first, end), strict=True))
    if len(places) == end - first:
        return places
    counts = Counter(part)
    return {digest: place for digest, place in places.items() if counts[digest] == 1}


def _pair_occurrences(
    ours: Sequence[bytes], theirs: Sequence[bytes], gap: PairGap
) -> list[tuple[int, int]]:
    """Pair repeated messages: a longest common subsequence of a bounded number of candidates.

    After the last anchor, messages near it are preferred, otherwise messages near the end.
    """
    candidates = _list_candidates(ours, theirs, gap)
    is_last = gap.our_first > 0 and gap.our_end == len(ours)
    return _keep_ascending(candidates) if is_last else _keep_ascending_from_end(candidates)


def _list_candidates(
    ours: Sequence[bytes], theirs: Sequence[bytes], gap: PairGap
) -> list[tuple[int, int]]:
    """Return possible pairs: for each of our messages, equal ones in descending order.

    The nth occurrence from the end is compared with those near the nth of theirs.
    """
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for their in range(gap.their_end - 1, gap.their_first - 1, -1):
        places[theirs[their]].append(their)
    used: Counter[bytes] = Counter()
    groups: list[list[tuple[int, int]]] = []
    for our in range(gap.our_end - 1, gap.our_first - 1, -1):
        if (found := places.get(ours[our])) is not None:
            first = max(0, used[ours[our]] - MAX_OCCURRENCES // 2)
            used[ours[our]] += 1
            groups.append([(our, their) for their in found[first : first + MAX_OCCURRENCES]])
    return [pair for group in reversed(groups) for pair in group]


def _keep_ascending(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a longest subsequence that ascends strictly in both members.

    The first members ascend. Pairs with the same first member have descending second members. Of
    several longest subsequences it is one with small second members.
    """
    ends: list[int] = []
    chosen: list[int] = []
    before: list[int] = []
    for place, (_, their) in enumerate(pairs):
        at = bisect_left(ends, their)
        before.append(chosen[at - 1] if at else -1)
        ends[at : at + 1] = [their]
        chosen[at : at + 1] = [place]
    found: list[tuple[int, int]] = []
    at = chosen[-1] if chosen else -1
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]


def _keep_ascending_from_end(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Do the same, but prefer large second members."""
    mirrored = sorted(((-our, -their) for our, their in pairs), key=lambda p: (p[0], -p[1]))
    return [(-our, -their) for our, their in _keep_ascending(mirrored)][::-1]


@dataclass(frozen=True, slots=True)
class Pair:
    """A unit and the stored message that it is, by indexes.

    `kind` is `equal`, `near` if the texts are nearly equal, or `changed` if they are not.
    """

    unit: int
    stored: int
    kind: Literal["equal", "near", "changed"]


@dataclass(frozen=True, slots=True)
class GapMessage:
    """A message of a gap that a unit can be.

    `is_hidden` is true if the endpoint has hidden it: a unit is this message only if its text is
    near. `text` is None if it was not read.
    """

    stored: int
    role: Role
    is_hidden: bool
    text: str | None = None


def settle_gap(units: Sequence[tuple[int, Unit]], candidates: Sequence[GapMessage]) -> list[Pair]:
    """Decide which messages between two pairs were changed. CPU-bound.

    Near texts are paired first, then messages of the same role, all in order. Units without a
    message were inserted, messages without a unit are missing.
    """
    if len(units) * len(candidates) > MAX_GAP_CELLS:
        return _pair_roles(units, candidates)
    stored = [(each, TextProfile(each.text or "")) for each in candidates]
    weights: list[list[float]] = []
    for _, unit in units:
        check_stopped()
        sent = TextProfile(unit.text)
        weights.append([_weigh(unit, sent, each, profile) for each, profile in stored])
    best = [[0.0] * (len(candidates) + 1) for _ in range(len(units) + 1)]
    for i in range(len(units) - 1, -1, -1):
        for j in range(len(candidates) - 1, -1, -1):
            skipped = max(best[i + 1][j], best[i][j + 1])
            weight = weights[i][j]
            best[i][j] = max(skipped, weight + best[i + 1][j + 1]) if weight else skipped
    pairs: list[Pair] = []
    i = j = 0
    while i < len(units) and j < len(candidates):
        weight = weights[i][j]
        if weight and best[i][j] == weight + best[i + 1][j + 1]:
            kind: Literal["near", "changed"] = "near" if weight >= _NEAR_WEIGHT else "changed"
            pairs.append(Pair(units[i][0], candidates[j].stored, kind))
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _pair_roles(units: Sequence[tuple[int, Unit]], candidates: Sequence[GapMessage]) -> list[Pair]:
    """Pair messages of the same role in order, without their texts."""
    pairs: list[Pair] = []
    rest = iter([each for each in candidates if not each.is_hidden])
    for place, unit in units:
        if not unit.text.strip():
            continue
        found = next((each for each in rest if each.role == unit.role), None)
        if found is None:
            break
        pairs.append(Pair(place, found.stored, "changed"))
    return pairs


def _weigh(unit: Unit, sent: TextProfile, candidate: GapMessage, stored: TextProfile) -> float:
    """Return 0 if a unit cannot be a message."""
    if unit.role != candidate.role or not sent.text:
        return 0.0
    similarity = sent.compare(stored)
    if similarity is not None:
        return _NEAR_WEIGHT + similarity
    return 0.0 if candidate.is_hidden else 1.0


class TextProfile:
    """A text with its words, which are counted once for many comparisons. CPU-bound."""

    __slots__ = ("_words", "text")

    def __init__(self, text: str) -> None:
        self.text = normalize_text(text)
        self._words: Counter[str] | None = None

    @property
    def words(self) -> Counter[str]:
        if self._words is None:
            self._words = _count_words(_cut(self.text))
        return self._words

    def compare(self, other: TextProfile) -> float | None:
        """Return how similar two texts of one message are, or None if they are of different ones.

        They are of one if one is the beginning of the other (a trimmed, stopped or continued
        reply), if most words are the same, or if the shorter one lacks parts (a script has removed
        them). Linear in time, and bounded for long texts.
        """
        short, long = sorted((self.text, other.text), key=len)
        if not short:
            return None
        if long.startswith(short):
            return 1.0
        smaller, larger = sorted((self.words.total(), other.words.total()))
        common = (self.words & other.words).total()
        similarity = 2 * common / (smaller + larger)
        is_part = (
            smaller >= MIN_CONTAINED_WORDS
            and smaller >= MIN_CONTAINED_SHARE * larger
            and common >= NEAR_CONTAINMENT * smaller
        )
        return similarity if is_part or similarity >= NEAR_SIMILARITY else None


def _cut(text: str) -> str:
    if len(text) <= COMPARED_CHARACTERS:
        return text
    half = COMPARED_CHARACTERS // 2
    return f"{text[:half]} {text[-half:]}"


def _count_words(text: str) -> Counter[str]:
    """Count words without punctuation and case; pairs of letters in a script without spaces."""
    words = _WORD.findall(text.lower())
    if words and len(text) <= _LONG_WORD * len(words):
        return Counter(words)
    letters = "".join(words) or text
    return Counter(letters[at : at + 2] for at in range(max(1, len(letters) - 1)))
