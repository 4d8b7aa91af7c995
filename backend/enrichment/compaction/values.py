"""What calls come to: changes, and values as items hold them. Nothing here knows the items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import msgspec

from backend.campaigns.authority import Unclear
from backend.campaigns.items import Kind
from backend.campaigns.ledger import Operations
from backend.campaigns.play.tools import ToolRefusedError
from backend.chronicles.events import EventFields
from backend.database.base import new_id
from backend.enrichment.cleaning import clipped, one_line
from backend.enrichment.compaction.tools import Call, FieldType

MAX_TEXT = 1_000
MAX_LISTED = 20

_WORLD = frozenset({"day", "time_of_day"})


@dataclass(frozen=True, slots=True)
class Drafted:
    """A change that was read out of the message at `position`.

    `replaces` is the fact that a new one makes untrue. With `unclear` nothing is changed: the user
    is asked which item is meant; `item_id` is then a new one.
    """

    kind: Kind
    item_id: UUID
    operations: Operations
    position: int
    because: str
    replaces: UUID | None = None
    unclear: Unclear | None = None


@dataclass(frozen=True, slots=True)
class DraftedEvent:
    """Something for the chronicle, from the messages at these positions.

    `id` stands for it until it has a row. `differs_from` are the references of events that it was
    taken for.
    """

    fields: EventFields
    significance: int
    because: str
    positions: Sequence[int]
    differs_from: Sequence[str] = ()
    id: UUID = field(default_factory=new_id)


def parted(asked: Call) -> tuple[Call | None, Call]:
    """What a call says of the whole world, if anything, and the rest of it."""
    given: dict[str, dict[str, Any]] = {"set": asked.set, "add": asked.add}
    world = {how: {k: v for k, v in each.items() if k in _WORLD} for how, each in given.items()}
    if not any(world.values()):
        return None, asked
    rest = {how: {k: v for k, v in each.items() if k not in _WORLD} for how, each in given.items()}
    replace = msgspec.structs.replace
    return replace(asked, remove={}, **world), replace(asked, **rest)


def put_objectives(
    operations: Operations, name: str, texts: Sequence[str], *, is_gone: bool
) -> None:
    """Objectives are put in, taken out, or done: then they stand there as such."""
    open_ones = [{"text": text, "done": False} for text in texts]
    done = [{"text": text, "done": True} for text in texts]
    if name == "done":
        operations.add.setdefault("objectives", []).extend(done)
        operations.remove.setdefault("objectives", []).extend(open_ones)
    elif is_gone:
        operations.remove.setdefault("objectives", []).extend([*open_ones, *done])
    else:
        operations.add.setdefault("objectives", []).extend(open_ones)


def read_value(name: str, kind: FieldType, value: Any, how: str) -> Any:
    """A value as its field holds it. Raises `ToolRefusedError`."""
    if kind == "list":
        return listed(value)
    if kind == "number":
        number = int(value) if isinstance(value, str) and _is_number(value) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ToolRefusedError(f"{name} is a number.")
        return number
    if how != "set":
        raise ToolRefusedError(f"{name} is a text: use `set`.")
    text = cleaned(str(value) if isinstance(value, int | float) else value)
    if not isinstance(text, str):
        raise ToolRefusedError(f"{name} is a text.")
    if isinstance(kind, tuple) and text not in kind:
        raise ToolRefusedError(f"{name} is one of: {', '.join(kind)}.")
    return text


def _is_number(text: str) -> bool:
    return text.strip().lstrip("+-").isdecimal() and len(text) < 12  # noqa: PLR2004


def event_of(asked: Call, positions: Sequence[int], because: str) -> DraftedEvent:
    """Return the event that a call tells of. Raises `ToolRefusedError`."""
    given = {**asked.add, **asked.set}
    names = EventFields.__struct_fields__
    said = {name: cleaned(value) for name, value in given.items() if name in names}
    said |= {name: listed(said[name]) for name in ("who", "keywords") if name in said}
    said["summary"] = said.get("summary") or one_line(asked.name)
    if not said["summary"]:
        raise ToolRefusedError("An event has a `set.summary`, one sentence.")
    try:
        weight = msgspec.convert(given.get("significance", 3), int)
        return DraftedEvent(
            fields=msgspec.convert(said, EventFields),
            significance=min(max(weight, 1), 5),
            because=because,
            positions=positions,
            differs_from=listed(given.get("differs_from", [])),
        )
    except msgspec.ValidationError as error:
        raise ToolRefusedError(f"{error}.") from None


def cleaned(value: Any) -> Any:
    """A text in one line, without what would have power in a prompt."""
    return clipped(one_line(value), MAX_TEXT) if isinstance(value, str) else value


def listed(value: Any) -> list[str]:
    """A list of texts; one text stands for a list of it."""
    values = cast("Sequence[Any]", value) if isinstance(value, list) else [value]
    texts = [cleaned(each) for each in values[:MAX_LISTED]]
    if not all(isinstance(each, str) for each in texts):
        raise ToolRefusedError("A list holds texts.")
    return [each for each in texts if each]
