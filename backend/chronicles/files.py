"""A chronicle as a file: JSON of version 1. CPU-bound, no database.

    {"format": "talekeeper-chronicle", "version": 1, "name": ..., "description": ...,
     "events": [{"id": "1", "summary": ..., "happened_at": ..., ...}, ...]}

Events stand in story order. Their ids hold within the file alone: `superseded_by` names one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import msgspec

from backend.audience import PUBLIC
from backend.characters.cards.limits import check_file_size
from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError, CardLimitError
from backend.chronicles.errors import ChronicleFileError
from backend.chronicles.event_changes import YEARS
from backend.chronicles.events import (
    MAX_EVENTS,
    MAX_PINNED,
    ChronicleFields,
    EventFields,
    Significance,
)
from backend.chronicles.models import EventSourceName
from backend.chronicles.reading import StoryEvent
from backend.chronicles.schemas import Moment, Sources, Summary
from backend.wire import convert_list, struct_from

FORMAT = "talekeeper-chronicle"
VERSION = 1

LocalId = Annotated[str, msgspec.Meta(max_length=100)]


class EventRecord(EventFields, frozen=True, kw_only=True, omit_defaults=False):
    """An event in a file.

    `source` says who wrote it down there; what is imported is of source `import`. `counts` is false
    where it came from a branch that was left. `source_message_ids`, and ids in `audience`, mean
    something to the account alone that the file is from.
    """

    id: LocalId = ""
    summary: Summary  # pyright: ignore[reportGeneralTypeIssues]  # an event says something
    significance: Significance = 3
    pinned: bool = False
    happened_at: Moment
    source: EventSourceName = "import"
    source_message_ids: Sources = msgspec.field(default_factory=list[UUID])
    superseded_by: LocalId | None = None
    counts: bool = True
    audience: Annotated[str, msgspec.Meta(max_length=4_000)] = PUBLIC

    @property
    def fields(self) -> EventFields:
        """What happened, without what stands around it."""
        return struct_from(EventFields, self)


class ChronicleFile(ChronicleFields, frozen=True, kw_only=True, omit_defaults=False):
    """A chronicle in a file."""

    format: Literal["talekeeper-chronicle"]
    version: Literal[1]
    events: list[EventRecord] = msgspec.field(default_factory=list[EventRecord])


def write_file(fields: ChronicleFields, events: Sequence[StoryEvent]) -> bytes:
    """A chronicle with its events, in story order, as JSON: one line, which takes less room."""
    ids = {event.id: str(number) for number, event in enumerate(events, start=1)}
    file = ChronicleFile(
        format="talekeeper-chronicle",
        version=1,
        name=fields.name,
        description=fields.description,
        events=[_record(event, ids) for event in events],
    )
    return msgspec.json.encode(file)


def _record(event: StoryEvent, ids: dict[UUID, str]) -> EventRecord:
    return struct_from(
        EventRecord,
        event,
        **msgspec.structs.asdict(event.fields),
        id=ids[event.id],
        pinned=event.is_pinned,
        source_message_ids=[each.id for each in event.sources],
        superseded_by=ids.get(event.superseded_by) if event.superseded_by else None,
    )


def read_file(data: bytes) -> ChronicleFile:
    """Read a file that somebody sends.

    Raises `ChronicleFileError`, which names the place (`events[12].significance`), and
    `TooLargeError`.
    """
    check_file_size(len(data))
    try:
        value: Any = parse_json(data)
    except CardLimitError as error:
        limit = {"limit": error.limit, "allowed": error.allowed, "found": error.found}
        raise ChronicleFileError(error.detail, extra=limit) from error
    except CardError as error:
        raise ChronicleFileError(error.detail) from error
    _check_kind(value)
    try:
        # The events by themselves: there may be very many.
        head: Any = {**value, "events": []} if isinstance(value.get("events"), list) else value
        file = msgspec.convert(head, ChronicleFile, strict=True)
        events = convert_list(value.get("events", []), EventRecord, at="$.events")
    except msgspec.ValidationError as error:
        raise ChronicleFileError(_placed(str(error))) from error
    file = msgspec.structs.replace(file, events=events)
    pinned = sum(event.pinned for event in events)
    _check_count("pinned events", pinned, MAX_PINNED, "pinned_events")
    for number, event in enumerate(events):
        if event.happened_at.year not in YEARS:
            raise ChronicleFileError(
                f"events[{number}].happened_at must be in the years {YEARS[0]} to {YEARS[-1]}."
            )
    _check_ids(events)
    return file


def _check_kind(value: Any) -> None:
    """Raise `ChronicleFileError` unless it is a chronicle, of a version and a size to be read."""
    if not isinstance(value, dict):
        raise ChronicleFileError("This is not a chronicle: the file is not a JSON object.")
    raw = cast("dict[str, Any]", value)
    if raw.get("format") != FORMAT:
        raise ChronicleFileError(f"This is not a chronicle: `format` is not `{FORMAT}`.")
    version = raw.get("version")
    if isinstance(version, bool) or version != VERSION:
        raise ChronicleFileError(f"`version` must be {VERSION}. Other versions are not supported.")
    events: list[Any] | None = raw.get("events")
    if isinstance(events, list):  # it says so, but anything may come
        _check_count("events", len(events), MAX_EVENTS, "chronicle_events")


def _check_count(what: str, found: int, allowed: int, limit: str) -> None:
    if found > allowed:
        raise ChronicleFileError(
            f"The chronicle has {found:,} {what}; {allowed:,} are allowed.",
            extra={"limit": limit, "allowed": allowed, "found": found},
        )


def _check_ids(events: Sequence[EventRecord]) -> None:
    """Each id once, each `superseded_by` an event of the file, and no circle of them."""
    places: dict[str, int] = {}
    for number, event in enumerate(events):
        if event.id and places.setdefault(event.id, number) != number:
            raise ChronicleFileError(
                f"events[{number}].id is already used by events[{places[event.id]}]."
            )
    known_good: set[int] = set()
    for number, event in enumerate(events):
        if event.superseded_by is not None and event.superseded_by not in places:
            raise ChronicleFileError(
                f"events[{number}].superseded_by is not the id of an event in the file."
            )
        walked: set[int] = set()
        at: int | None = number
        while at is not None and at not in known_good:
            if at in walked:
                raise ChronicleFileError(
                    f"events[{at}].superseded_by leads back to the event itself."
                )
            walked.add(at)
            following = events[at].superseded_by
            at = places.get(following) if following is not None else None
        known_good |= walked


def _placed(message: str) -> str:
    """Msgspec's sentence with the place in front: `events[12].significance: Expected ...`."""
    said, _, path = message.partition(" - at `$")
    place = path.removesuffix("`").removeprefix(".")
    return f"{place}: {said}." if place else f"{said}."
