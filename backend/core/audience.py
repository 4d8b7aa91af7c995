"""Who may know a text of a campaign, and whose knowledge a prompt may hold.

An audience is stored in one column: `gm` (the game master alone), `public` (everyone), or the ids
of entities between blanks. A viewpoint asks: the game master may know everything, `public` what
everyone may, an entity that and what names it. A value that cannot be read is for the game master.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, and_, or_, true
from sqlalchemy.orm import InstrumentedAttribute

from backend.errors import ValidationError

GM: Literal["gm"] = "gm"
PUBLIC: Literal["public"] = "public"

Audience = Literal["gm", "public"] | Annotated[list[UUID], msgspec.Meta(max_length=50)]
"""Who may know it: the game master alone, everyone, or the entities named."""

Viewpoint = Literal["gm", "public"] | UUID
"""Whose knowledge counts: the game master's, everyone's, or an entity's."""

ViewpointText = Annotated[
    str,
    msgspec.Meta(
        max_length=36,
        pattern=r"^(gm|public|[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12})$",
        description="`gm`, `public`, or the id of an entity of the chat's campaign.",
    ),
]
"""A viewpoint as the API takes it."""


def read_viewpoint(text: str) -> Viewpoint:
    """The viewpoint that a text names. Raises `ValidationError` for any other text."""
    if text == GM:
        return GM
    if text == PUBLIC:
        return PUBLIC
    try:
        return UUID(text)
    except ValueError as error:
        raise ValidationError("viewpoint is `gm`, `public`, or the id of an entity.") from error


def encode_audience(audience: Audience) -> str:
    """An audience as its column holds it."""
    if isinstance(audience, str):
        return audience
    return f" {' '.join(map(str, dict.fromkeys(audience)))} "


def decode_audience(column: str) -> Audience:
    """The audience that a column holds."""
    if column == PUBLIC:
        return PUBLIC
    try:
        return [UUID(each) for each in column.split()] if column.startswith(" ") else GM
    except ValueError:
        return GM


def list_entities(column: str) -> Sequence[UUID]:
    """The entities that a stored audience names."""
    audience = decode_audience(column)
    return () if isinstance(audience, str) else audience


def encode_viewpoint(viewpoint: Viewpoint) -> str:
    """The stored audience of what is for a viewpoint alone."""
    return encode_audience([viewpoint]) if isinstance(viewpoint, UUID) else viewpoint


def filter_known_to(
    viewpoint: Viewpoint, column: InstrumentedAttribute[str] | ColumnElement[str]
) -> ColumnElement[bool]:
    """The condition that a viewpoint may know a row with this audience."""
    if viewpoint == GM:
        return true()
    if isinstance(viewpoint, UUID):
        return or_(column == PUBLIC, column.contains(f" {viewpoint} ", autoescape=True))
    return column == PUBLIC


def filter_known_to_all(listeners: str, column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """The condition that all of a stored audience may know a row with this one."""
    audience = decode_audience(listeners)
    if isinstance(audience, str):
        return filter_known_to(audience, column)
    return and_(*(filter_known_to(each, column) for each in audience))


def may_know(viewpoint: Viewpoint, column: str) -> bool:
    """Whether a viewpoint may know what has this stored audience."""
    if viewpoint == GM or column == PUBLIC:
        return True
    audience = decode_audience(column)
    return isinstance(audience, list) and viewpoint in audience


def may_all_know(listeners: str, column: str) -> bool:
    """Whether all of one stored audience may know what has the other."""
    audience = decode_audience(listeners)
    if isinstance(audience, str):
        return may_know(audience, column)
    return all(may_know(each, column) for each in audience)


def intersect_audiences(columns: Sequence[str]) -> str:
    """The stored audience of a text made from texts with these: those who may know all of them."""
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


def make_keywords(column: str) -> tuple[str, ...]:
    """A stored audience as words that points of an index are found by."""
    audience = decode_audience(column)
    return (audience,) if isinstance(audience, str) else tuple(map(str, audience))


def find_required_keywords(viewpoint: Viewpoint) -> tuple[str, ...]:
    """Words of which a point must have one; none for the game master, who may know all."""
    if viewpoint == GM:
        return ()
    return (PUBLIC,) if viewpoint == PUBLIC else (PUBLIC, str(viewpoint))


MAX_NAMED = 5
"""Names in a mark. If there are more, it says how many others there are."""

GM_MARK = "secret: game master only"

MARK_PATTERN = rf"\((?:{GM_MARK}|known to [^()\n]{{1,400}} only)\)"
"""A mark as a regular expression, because models copy marks to the beginning of their replies."""


def _no_name(_: UUID) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class AudienceMarks:
    """Renders who knows a text with a limited audience, in words for a model.

    Attributes:
        find_name: Returns the name of an entity, or None if the reader may not know it.
        present: Those who hear what is said. A text that all of them know needs no mark. If it is
            empty, every text that is not public gets one.
    """

    find_name: Callable[[UUID], str | None] = _no_name
    present: frozenset[UUID] = frozenset()

    def words(self, audience: Audience | str) -> str:
        """Return who knows a text with this audience; empty if it needs no mark.

        The audience may be as a column holds it.
        """
        if audience == PUBLIC:
            return ""
        listeners = decode_audience(audience) if isinstance(audience, str) else audience
        if isinstance(listeners, str) or not listeners:
            return GM_MARK
        if self.present and self.present.issubset(listeners):
            return ""
        names = [" ".join(name.split()) for each in listeners if (name := self.find_name(each))]
        if not names:
            return "known to a few only"
        if len(names) > MAX_NAMED:
            names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} others"]
        *first, last = names
        known = f"{', '.join(first)} and {last}" if first else last
        return f"known to {known} only"

    def mark(self, text: str, audience: Audience | str, *, within: Audience | str = PUBLIC) -> str:
        """Return a text with its mark in front.

        There is none if the text around it has the same one; `within` is the audience of that.
        """
        words = self.words(audience) if text.strip() else ""
        return text if words == self.words(within) else put_mark(text, words)


def put_mark(text: str, words: str) -> str:
    """Return a text with who knows it before it; `words` may be empty."""
    return f"({words}) {text}" if words else text


NAMELESS_MARKS = AudienceMarks()
"""Marks if no names are known, as in a chat of no campaign that uses a campaign's chronicle."""
