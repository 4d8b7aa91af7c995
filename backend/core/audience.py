"""Audiences of texts, and viewpoints that may read them.

An audience is stored in one column: `gm` (the narrator only), `public` (everyone who was there), or
ids separated by blanks: of a campaign's entities or of a chat's characters. The viewpoint `gm` may
know everything, `public` only public texts, and an entity public texts and those that name it. A
character is a `Witness`. An unreadable value counts as `gm`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, and_, or_, true
from sqlalchemy.orm import InstrumentedAttribute

from backend.errors import ValidationError

GM: Literal["gm"] = "gm"
PUBLIC: Literal["public"] = "public"

Audience = Literal["gm", "public"] | Annotated[list[UUID], msgspec.Meta(max_length=50)]
"""The readers of a text: the narrator only, everyone, or the listed entities or characters."""

Ranges = Sequence[tuple[int, int]]
"""Ranges of positions in a chat in ascending order: the first, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Witness:
    """The viewpoint of a character, limited to texts that it has heard.

    It knows texts whose audience names it, and public ones from the times when it was there.

    Attributes:
        character_id: The character.
        ids: The character, and the entities of campaigns that it plays. An audience may name them.
        absences: The positions of the active path at which the character was not there, by chat. It
            was always there in chats that are not listed.
    """

    character_id: UUID
    ids: frozenset[UUID]
    absences: Mapping[UUID, Ranges] = field(default_factory=dict[UUID, Ranges], hash=False)

    def was_absent(self, chat_id: UUID, position: int) -> bool:
        """True if the character was not there when a message was said."""
        ranges = self.absences.get(chat_id, ())
        place = bisect_right(ranges, position, key=_get_begin)
        return place > 0 and position < ranges[place - 1][1]

    def has_heard(self, chat_id: UUID, position: int, column: str) -> bool:
        """True if the character knows a message with this audience at this position."""
        if column == PUBLIC:
            return not self.was_absent(chat_id, position)
        return may_know(self, column)


def _get_begin(each: tuple[int, int]) -> int:
    return each[0]


Viewpoint = Literal["gm", "public"] | UUID | Witness

ViewpointText = Annotated[
    str,
    msgspec.Meta(
        max_length=36,
        pattern=r"^(gm|public|[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12})$",
        description="`gm`, `public`, or the id of a character or of an entity of its campaign.",
    ),
]


def read_viewpoint(text: str) -> Viewpoint:
    """Raises `ValidationError`."""
    if text == GM:
        return GM
    if text == PUBLIC:
        return PUBLIC
    try:
        return UUID(text)
    except ValueError as error:
        raise ValidationError(
            "viewpoint must be `gm`, `public`, or the id of a character or an entity."
        ) from error


def encode_audience(audience: Audience) -> str:
    if isinstance(audience, str):
        return audience
    return f" {' '.join(map(str, dict.fromkeys(audience)))} "


_ID_LIST = r"\A(?: [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})+ \Z"
"""A list of ids as `encode_audience` writes it. Python and both databases read this pattern."""

_match_ids = re.compile(_ID_LIST).match


def decode_audience(column: str) -> Audience:
    if column == PUBLIC:
        return PUBLIC
    return [UUID(each) for each in column.split()] if _match_ids(column) else GM


def list_entities(column: str) -> Sequence[UUID]:
    audience = decode_audience(column)
    return () if isinstance(audience, str) else audience


def list_viewers(viewpoint: UUID | Witness) -> list[UUID]:
    """Return the ids that an audience may name for a viewpoint, in a stable order."""
    return sorted(viewpoint.ids) if isinstance(viewpoint, Witness) else [viewpoint]


def encode_viewpoint(viewpoint: Viewpoint) -> str:
    return viewpoint if isinstance(viewpoint, str) else encode_audience(list_viewers(viewpoint))


def filter_known_to(
    viewpoint: Viewpoint, column: InstrumentedAttribute[str] | ColumnElement[str]
) -> ColumnElement[bool]:
    """Return the SQL condition that an audience includes a viewpoint.

    For messages, it also matters who was there: see `backend.chats.members`.
    """
    if viewpoint == GM:
        return true()
    if isinstance(viewpoint, str):
        return column == PUBLIC
    return or_(column == PUBLIC, is_named(viewpoint, column))


def is_named(
    viewpoint: UUID | Witness, column: InstrumentedAttribute[str] | ColumnElement[str]
) -> ColumnElement[bool]:
    """Return the SQL condition that an audience names a viewpoint. A damaged one names no one."""
    named = (column.contains(f" {each} ", autoescape=True) for each in list_viewers(viewpoint))
    return and_(or_(*named), column.regexp_match(_ID_LIST))


def filter_known_to_all(listeners: str, column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """Return the SQL condition that all listeners of a column value may know a row."""
    audience = decode_audience(listeners)
    if isinstance(audience, str):
        return filter_known_to(audience, column)
    return and_(*(filter_known_to(each, column) for each in audience))


def may_know(viewpoint: Viewpoint, column: str) -> bool:
    if viewpoint == GM or column == PUBLIC:
        return True
    audience = decode_audience(column)
    if isinstance(audience, str) or isinstance(viewpoint, str):
        return False
    return not frozenset(list_viewers(viewpoint)).isdisjoint(audience)


def may_all_know(listeners: str, column: str) -> bool:
    audience = decode_audience(listeners)
    if isinstance(audience, str):
        return may_know(audience, column)
    return all(may_know(each, column) for each in audience)


def intersect_audiences(columns: Sequence[str]) -> str:
    """Return the column value for a text made from several: those who may know all of them."""
    limited = {column for column in columns if column != PUBLIC}
    if not limited:
        return PUBLIC
    audiences = [decode_audience(column) for column in limited]
    shared: list[UUID] | None = None
    for audience in audiences:
        if isinstance(audience, str):
            return GM
        shared = audience if shared is None else [each for each in shared if each in audience]
    return encode_audience(shared) if shared else GM


def unite_audiences(columns: Sequence[str]) -> str:
    """Return the column value for the members of all these audiences."""
    if PUBLIC in columns:
        return PUBLIC
    named = dict.fromkeys(each for column in columns for each in list_entities(column))
    return encode_audience(list(named)) if named else GM


def limit_audience(column: str, limit: str) -> str:
    """Return an audience without those who are not in another one."""
    return column if limit in {PUBLIC, column} else intersect_audiences([column, limit])


def make_keywords(column: str) -> tuple[str, ...]:
    audience = decode_audience(column)
    return (audience,) if isinstance(audience, str) else tuple(map(str, audience))


def find_required_keywords(viewpoint: Viewpoint) -> tuple[str, ...]:
    """Return keywords of which an index point needs one; empty for the game master."""
    if viewpoint == GM:
        return ()
    named = () if isinstance(viewpoint, str) else map(str, list_viewers(viewpoint))
    return (PUBLIC, *named)


MAX_NAMED = 5
"""Names in a mark. If there are more, it says how many others there are."""

GM_MARK = "secret: game master only"

MARK_PATTERN = rf"\((?:{GM_MARK}|known to [^()\n]{{1,400}} only)\)"
"""A mark as a regular expression, because models copy marks to the beginning of their replies."""


def _no_name(_: UUID) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class AudienceMarks:
    """Renders the audience of a text in words for a model.

    Attributes:
        find_name: Returns the name of an entity or a character, or None if the reader may not know
            it.
        present: Those who are in the scene, each with all of its ids. A text that all of them know
            needs no mark.
    """

    find_name: Callable[[UUID], str | None] = _no_name
    present: Sequence[frozenset[UUID]] = ()

    def words(self, audience: Audience | str) -> str:
        """Return the words for an audience or its column value; empty if it needs no mark."""
        if audience == PUBLIC:
            return ""
        listeners = decode_audience(audience) if isinstance(audience, str) else audience
        if isinstance(listeners, str) or not listeners:
            return GM_MARK
        if self.present and not any(each.isdisjoint(listeners) for each in self.present):
            return ""
        found = (" ".join(name.split()) for each in listeners if (name := self.find_name(each)))
        names = list(dict.fromkeys(found))  # a character and the entity that it plays are one
        if not names:
            return "known to a few only"
        if len(names) > MAX_NAMED:
            names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} others"]
        *first, last = names
        known = f"{', '.join(first)} and {last}" if first else last
        return f"known to {known} only"

    def mark(self, text: str, audience: Audience | str, *, within: Audience | str = PUBLIC) -> str:
        """Return a text with its mark, unless the text around it (`within`) has the same one."""
        words = self.words(audience) if text.strip() else ""
        return text if words == self.words(within) else put_mark(text, words)


def put_mark(text: str, words: str) -> str:
    return f"({words}) {text}" if words else text


NAMELESS_MARKS = AudienceMarks()
"""Marks without names, for example in a chat outside the campaign that uses its chronicle."""
