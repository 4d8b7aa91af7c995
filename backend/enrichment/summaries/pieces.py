"""The summary of a group's path, in pieces that never reach over a change of presence.

A piece is a public summary of the lines between two changes. All members who heard one of its lines
heard all of them, so that each viewpoint gets the pieces that it witnessed completely. Whispers are
in no public piece. Where many of them follow each other, those who know them get a piece of their
own, as in campaigns with hidden information. Old pieces are combined in further rows, for those who
witnessed all of them; the pieces themselves stay for the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, func, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.state.viewpoints import filter_players, find_witness
from backend.characters.repository import find_names
from backend.chats.members import END, Group
from backend.chats.models import MESSAGE_CONTENT, Chat, Message
from backend.chats.repository import MAX_POSITION
from backend.core.audience import (
    GM,
    PUBLIC,
    Ranges,
    Viewpoint,
    Witness,
    encode_audience,
    list_entities,
    may_know,
)
from backend.enrichment.models import ChatSummary
from backend.enrichment.story import is_readable
from backend.enrichment.summaries.store import (
    StoredSummary,
    find_current_summary,
    list_own_columns,
    load_summaries,
    select_active,
)
from backend.vault.sealing import OVERHEAD, Sealer

MAX_PIECES = 8
"""Maximum pieces in a prompt. The newest come first."""

SIZE_FACTOR = 4
"""All pieces of a prompt together may have this many times the words of one summary."""

BYTES_PER_WORD = 7
"""Estimate for long words and the space after them."""

COMBINE_ABOVE = 6
"""If there are more pieces, old ones are combined."""

KEPT_PIECES = 3
"""The last pieces are not combined, because the story may still continue them."""

PRIVATE_LINES = 6
"""Whispers between two public pieces from which those who know them get a piece of their own.

A piece for a few of them would cost more than it saves: they are short, and the search finds them.
"""

_GAPS_IN_QUERY = 30
"""SQLite limits the depth of an expression."""


class Stretch(NamedTuple):
    """The positions from `begin` to before `end`, at which the same members were there."""

    begin: int
    end: int


class Piece(NamedTuple):
    """A stored summary of the active path without its text, which has `size` bytes."""

    id: UUID
    message_id: UUID
    position: int
    path_tokens: int
    begins_at: int
    audience: str
    revision: int
    size: int


class Pieces:
    """The pieces along the active path of a group, up to a position."""

    def __init__(self, group: Group, pieces: Sequence[Piece]) -> None:
        self.group = group
        self._pieces = pieces
        self._absences = {each: group.find_absences(each) for each in group.members}
        cuts = {place for ranges in self._absences.values() for each in ranges for place in each}
        self._begins = [0, *sorted(cuts - {0, END})]
        self.stretches = [Stretch(*each) for each in pairwise([*self._begins, END])]

    @cached_property
    def _by_stretch(self) -> Mapping[Stretch, Sequence[Piece]]:
        """The pieces of each stretch, without those that combine several."""
        found: dict[Stretch, list[Piece]] = {}
        for each in self._pieces:
            if not self.is_combined(each):
                found.setdefault(self.find_stretch(each.position), []).append(each)
        return found

    @property
    def deepest(self) -> Piece | None:
        """The piece that reaches furthest, of any audience."""
        return max(self._pieces, key=lambda each: each.position, default=None)

    def find_stretch(self, position: int) -> Stretch:
        return self.stretches[bisect_right(self._begins, position) - 1]

    def is_combined(self, piece: Piece) -> bool:
        """True if a piece covers more than one stretch."""
        return piece.begins_at < self.find_stretch(piece.position).begin

    def find_hearers(self, first: int, last: int) -> list[UUID]:
        """Return the members who were there from one position to another."""
        return [
            each
            for each, absences in self._absences.items()
            if not _overlaps(absences, first, last)
        ]

    def describe_hearers(self, piece: Piece | StoredSummary) -> str:
        """Return the audience of a public piece: `public` if all members witnessed it."""
        if piece.audience != PUBLIC:
            return piece.audience
        found = self.find_hearers(piece.begins_at, piece.position)
        if len(found) == len(self._absences):
            return PUBLIC
        return encode_audience(found) if found else GM

    def may_read(self, viewpoint: Viewpoint, piece: Piece) -> bool:
        """True if a viewpoint witnessed all that a piece covers, or if it was written for it."""
        if viewpoint == GM:
            return piece.audience in {GM, PUBLIC} or self.is_combined(piece)
        if not isinstance(viewpoint, Witness):
            known = (PUBLIC, *list_own_columns(viewpoint))
            return piece.audience in known and not self.is_combined(piece)
        if piece.audience in list_own_columns(viewpoint) and not self.is_combined(piece):
            return True
        if not may_know(viewpoint, piece.audience):
            return False
        # Those who combined a piece may have been other members than now.
        absences = viewpoint.absences.get(self.group.chat_id, ())
        return (piece.audience == PUBLIC or self.is_combined(piece)) and not _overlaps(
            absences, piece.begins_at, piece.position
        )

    def list_readable(self, viewpoint: Viewpoint) -> list[Piece]:
        """Return all pieces that a viewpoint may know: the deepest first, its own before others."""
        own = list_own_columns(viewpoint)

        def place(each: Piece) -> tuple[int, bool, bool]:
            return -each.position, self.is_combined(each), each.audience not in own

        return sorted((each for each in self._pieces if self.may_read(viewpoint, each)), key=place)

    def choose(self, viewpoint: Viewpoint, *, with_own: bool = True) -> list[Piece]:
        """Return the pieces that together cover most of the lines of a viewpoint, in order.

        Without its own ones they have only public lines.
        """
        own = list_own_columns(viewpoint) if with_own else ()
        combined = [
            each
            for each in self._pieces
            if self.is_combined(each)
            and self.may_read(viewpoint, each)
            and not self._has_own(own, each)
        ]
        # The one that reaches back furthest comes first.
        combined.sort(key=lambda each: (-each.position, each.begins_at))
        found: list[Piece] = []
        limit = END
        for stretch in reversed(self.stretches):
            if stretch.begin >= limit:
                continue
            here = self._choose_here(viewpoint, stretch, own, limit=limit)
            last = here[-1].position if here else stretch.begin
            end = min(limit, stretch.end)
            whole = next((each for each in combined if last <= each.position < end), None)
            if whole is None:
                found += reversed(here)
            else:
                found.append(whole)
                limit = whole.begins_at
        return found[::-1]

    def choose_here(self, viewpoint: Viewpoint, stretch: Stretch) -> list[Piece]:
        """Return the pieces that cover most of one stretch for a viewpoint, in order."""
        return self._choose_here(viewpoint, stretch, list_own_columns(viewpoint), limit=END)

    def find_covered(self, stretch: Stretch) -> int:
        """Return the last position of a stretch that a public piece covers."""
        places = [each.position for each in self._by_stretch.get(stretch, ()) if _is_public(each)]
        return max(places, default=stretch.begin - 1)

    def find_end(self, viewpoint: Viewpoint) -> Piece | None:
        """Return the piece that reaches furthest for a viewpoint, whether it may know it or not.

        Up to there, all lines that it knows are summarised for it.
        """
        columns = {PUBLIC, *list_own_columns(viewpoint)}
        found = (each for each in self._pieces if each.audience in columns)
        return max(found, key=lambda each: each.position, default=None)

    def find_combinations(self, position: int) -> list[UUID]:
        """Return the pieces that combine several and cover a position."""
        return [
            each.id
            for each in self._pieces
            if self.is_combined(each) and each.begins_at <= position <= each.position
        ]

    def find_combinable(self) -> tuple[list[Piece], str] | None:
        """Return old public pieces to combine, and the audience of those who witnessed all of them.

        Returns None if there are few.
        """
        chosen = self.choose(GM, with_own=False)
        if len(chosen) <= COMBINE_ABOVE:
            return None
        taken = {(each.message_id, each.audience) for each in self._pieces}
        for count in range(len(chosen) - KEPT_PIECES, 1, -1):
            old = chosen[:count]
            hearers = self.find_hearers(old[0].begins_at, old[-1].position)
            audience = encode_audience(hearers) if hearers else GM
            if (old[-1].message_id, audience) not in taken:
                return old, audience
        return None

    def _choose_here(
        self, viewpoint: Viewpoint, stretch: Stretch, own: Collection[str], *, limit: int
    ) -> list[Piece]:
        """Return the deepest own piece before `limit`, and public ones that cover more."""
        here = [
            each
            for each in self._by_stretch.get(stretch, ())
            if each.position < limit and self.may_read(viewpoint, each)
        ]
        mine = max(
            (each for each in here if each.audience in own),
            key=lambda each: each.position,
            default=None,
        )
        chosen: list[Piece] = []
        for each in sorted(here, key=lambda each: (-each.position, each.begins_at)):
            is_after = mine is None or each.position > mine.position
            if _is_public(each) and is_after and each.position < limit:
                chosen.append(each)
                limit = each.begins_at
        return [*([mine] if mine else ()), *reversed(chosen)]

    def _has_own(self, own: Collection[str], whole: Piece) -> bool:
        """True if a combined piece lacks something that a viewpoint's own pieces have."""
        return any(
            each.audience in own
            and not self.is_combined(each)
            and whole.begins_at <= each.position <= whole.position
            for each in self._pieces
        )


def _overlaps(absences: Ranges, first: int, last: int) -> bool:
    """True if someone was absent at any of the positions from `first` to `last`."""
    place = bisect_right(absences, last, key=lambda each: each[0])
    return place > 0 and absences[place - 1][1] > first


def _is_public(piece: Piece) -> bool:
    return piece.audience == PUBLIC


# The statements are built once, because every turn of a group executes them.
_PIECES = select_active(
    ChatSummary.id,
    ChatSummary.message_id,
    Message.position,
    Message.path_tokens,
    ChatSummary.begins_at,
    ChatSummary.audience,
    ChatSummary.revision,
    func.length(ChatSummary.sealed_summary) - OVERHEAD,
).where(ChatSummary.position <= bindparam("up_to"))
_BRIEFINGS = select(
    Message.id,
    Message.id,
    Message.position,
    Message.path_tokens,
    Message.position,
    Message.audience,
    literal(0),
    func.length(Message.sealed_content) - OVERHEAD,
).where(
    Message.chat_id == bindparam("chat"),
    Message.user_id == bindparam("owner"),
    Message.is_active,
    ~Message.hidden,
    Message.position <= bindparam("through"),
    Message.role == "system",
    Message.character_id == bindparam("character"),
    Message.presence.is_(None),
)


async def load_pieces(
    session: AsyncSession, sealer: Sealer, group: Group, *, up_to_position: int | None = None
) -> Pieces:
    """Load the pieces along the active path of a group."""
    values = {
        "chat": group.chat_id,
        "owner": sealer.user_id,
        "up_to": MAX_POSITION if up_to_position is None else up_to_position,
    }
    return Pieces(group, [Piece(*row) for row in await session.execute(_PIECES, values)])


async def join_pieces(
    session: AsyncSession, sealer: Sealer, group: Group, chosen: Sequence[Piece]
) -> StoredSummary | None:
    """Return the last of some pieces with the text of all of them."""
    texts = await load_summaries(session, sealer, group.chat_id, [each.id for each in chosen])
    found = [texts[each.id] for each in chosen if each.id in texts]
    if not found:
        return None
    limited = [each.audience for each in found if each.audience != PUBLIC]
    return msgspec.structs.replace(
        found[-1],
        text="\n".join(each.text for each in found),
        begins_at=found[0].begins_at,
        audience=limited[0] if limited else PUBLIC,
    )


@dataclass(frozen=True, slots=True)
class PieceStep:
    """The next piece to write or to continue: its viewpoint, its last version, its stretch."""

    viewpoint: Viewpoint
    previous: StoredSummary | None
    stretch: Stretch


async def find_next_piece(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    pieces: Pieces,
    *,
    through: int,
    private_lines: int = PRIVATE_LINES,
) -> PieceStep | None:
    """Return the first piece of the path that lacks lines up to a position.

    Viewpoints with at least so many `private_lines` that are not in a summary of theirs come first.
    The public piece comes last, so that the others contain everything that it leaves out.
    """
    gaps = [
        (covered + 1, min(each.end - 1, through))
        for each in pieces.stretches
        if (covered := pieces.find_covered(each)) < min(each.end - 1, through)
    ]
    for start in range(0, len(gaps), _GAPS_IN_QUERY):
        inside = [Message.position.between(*gap) for gap in gaps[start : start + _GAPS_IN_QUERY]]
        query = (
            select(Message.position, Message.audience)
            .where(is_readable(chat), or_(*inside))
            .order_by(Message.position)
        )
        lines: dict[Stretch, list[tuple[int, str]]] = {}
        for position, audience in await session.execute(query):
            lines.setdefault(pieces.find_stretch(position), []).append((position, audience))
        for stretch, unread in lines.items():
            found = await _find_viewpoint(
                session, sealer, chat, pieces, stretch, unread, least=private_lines
            )
            if found is not None:
                return found
    return None


async def _find_viewpoint(  # the arguments of `find_next_piece`, and one stretch
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    pieces: Pieces,
    stretch: Stretch,
    unread: Sequence[tuple[int, str]],
    *,
    least: int,
) -> PieceStep | None:
    """Return the viewpoint that needs a piece with unread lines of a stretch.

    The lines are given by position and audience.
    """
    private = [each for each in unread if each[1] != PUBLIC]
    if len(private) >= least:
        named = {each for _, audience in private for each in list_entities(audience)}
        for viewpoint in await _list_viewpoints(session, sealer, chat, pieces.group, named):
            chosen = pieces.choose_here(viewpoint, stretch)
            after = chosen[-1].position if chosen else -1
            news = sum(place > after and may_know(viewpoint, each) for place, each in private)
            if news >= least:
                previous = await join_pieces(session, sealer, pieces.group, chosen)
                return PieceStep(viewpoint, previous, stretch)
    if len(private) == len(unread):
        return None
    chosen = pieces.choose_here(PUBLIC, stretch)
    return PieceStep(PUBLIC, await join_pieces(session, sealer, pieces.group, chosen), stretch)


async def _list_viewpoints(
    session: AsyncSession, sealer: Sealer, chat: Chat, group: Group, named: Collection[UUID]
) -> list[Viewpoint]:
    """Return the viewpoints of those who are named, and the game master's.

    They are members, and players' characters of the campaign that no member plays.
    """
    asked = [each for each in group.members if chat.campaign_id is not None or each in named]
    names = await find_names(session, asked, owner_id=sealer.user_id, sealer=sealer)
    witnesses = [
        await find_witness(session, sealer, chat, each, name) for each, name in names.items()
    ]
    there = [each for each in witnesses if not each.ids.isdisjoint(named)]
    others = set(named).difference(*(each.ids for each in witnesses))
    players = await filter_players(session, others, chat.campaign_id) if others else ()
    return [*there, *players, GM]


class SummaryPart(msgspec.Struct, frozen=True):
    """A piece in a prompt, and the audience that knows it, in the form of the column."""

    text: str
    audience: str = PUBLIC
    id: UUID | None = None


class LostPart(msgspec.Struct, frozen=True):
    """A piece that is not in the prompt: the position and the id of its message, and its bytes."""

    position: int
    message_id: UUID
    size: int


class PathSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a path for one viewpoint.

    Attributes:
        message_id: The message through which the path is summarised.
        position: Its position.
        path_tokens: The stored tokens from the root to its end.
        parts: The pieces in order. They may be none, if the viewpoint witnessed none.
        audience: The audience of a summary that has only one piece, which is not marked.
        left_out: Older pieces for which there is no room.
        unknown: Pieces that the viewpoint did not witness completely.
    """

    message_id: UUID
    position: int
    path_tokens: int
    parts: Sequence[SummaryPart]
    audience: str = PUBLIC
    left_out: Sequence[LostPart] = ()
    unknown: Sequence[LostPart] = ()

    @property
    def text(self) -> str:
        return "\n".join(each.text for each in self.parts)


async def load_path_summary(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    group: Group,
    *,
    viewpoint: Viewpoint = GM,
    up_to_position: int | None = None,
    words: int,
) -> PathSummary | None:
    """Return the summary of the active path that a viewpoint may know, at most to a position.

    In a group these are pieces, and the briefings of a character that joined. `words` is the length
    of one summary. Returns None if nothing is summarised.
    """
    if not group.is_group:
        found = await find_current_summary(
            session, sealer, chat, up_to_position=up_to_position, viewpoint=viewpoint
        )
        if found is None:
            return None
        return PathSummary(
            message_id=found.message_id,
            position=found.position,
            path_tokens=found.path_tokens,
            parts=[SummaryPart(found.text, id=found.id)],
            audience=found.audience,
        )
    pieces = await load_pieces(session, sealer, group, up_to_position=up_to_position)
    end = pieces.find_end(viewpoint)
    if end is None:
        return None
    chosen = pieces.choose(viewpoint)
    if isinstance(viewpoint, Witness):
        briefings = await _load_briefings(session, chat, viewpoint, through=end.position)
        chosen = sorted([*chosen, *briefings], key=lambda each: each.position)
    kept = take_newest(chosen, most=words * SIZE_FACTOR * BYTES_PER_WORD)
    unknown: list[Piece] = []
    if isinstance(viewpoint, Witness):
        public = pieces.choose(PUBLIC)
        unknown = [each for each in public if not pieces.may_read(viewpoint, each)]
    return PathSummary(
        message_id=end.message_id,
        position=end.position,
        path_tokens=end.path_tokens,
        parts=await _open_parts(session, sealer, pieces, kept),
        left_out=[_lose(each) for each in chosen[: len(chosen) - len(kept)]],
        unknown=[_lose(each) for each in unknown[-MAX_PIECES:]],
    )


def _lose(piece: Piece) -> LostPart:
    return LostPart(piece.position, piece.message_id, piece.size)


def take_newest(pieces: Sequence[Piece], *, most: int) -> Sequence[Piece]:
    """Return the last pieces with at most `most` bytes; always the last one."""
    total = 0
    for count, each in enumerate(reversed(pieces)):
        total += each.size
        if count and (count == MAX_PIECES or total > most):
            return pieces[len(pieces) - count :]
    return pieces


async def _load_briefings(
    session: AsyncSession, chat: Chat, viewpoint: Witness, *, through: int
) -> list[Piece]:
    """Return the briefings of a character that joined, in the form of pieces.

    Their ids are those of the messages.
    """
    values = {
        "chat": chat.id,
        "owner": chat.user_id,
        "through": through,
        "character": viewpoint.character_id,
    }
    found = (Piece(*row) for row in await session.execute(_BRIEFINGS, values))
    return [
        each for each in found if each.audience != PUBLIC and may_know(viewpoint, each.audience)
    ]


async def _open_parts(
    session: AsyncSession, sealer: Sealer, pieces: Pieces, kept: Sequence[Piece]
) -> list[SummaryPart]:
    """Return pieces and briefings with their texts."""
    found = await load_summaries(session, sealer, pieces.group.chat_id, [each.id for each in kept])
    told = [each.id for each in kept if each.id not in found]
    briefings: dict[UUID, str] = {}
    if told:
        query = select(Message.id, Message.sealed_content).where(Message.id.in_(told))
        for key, sealed in await session.execute(query):
            briefings[key] = sealer.open(MESSAGE_CONTENT, key, sealed)
    parts: list[SummaryPart] = []
    for each in kept:
        if (stored := found.get(each.id)) is not None:
            known = pieces.describe_hearers(each)
            # Each of the combined pieces was known to someone.
            is_mixed = known == GM and pieces.is_combined(each)
            parts.append(SummaryPart(stored.text, PUBLIC if is_mixed else known, stored.id))
        elif each.id in briefings:
            parts.append(SummaryPart(briefings[each.id], each.audience))
    return [each for each in parts if each.text]
