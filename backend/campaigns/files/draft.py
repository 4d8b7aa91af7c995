"""A campaign from a file before it is stored: items under new ids, ledger and chats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec

from backend.campaigns.api.schemas import CampaignFields
from backend.campaigns.errors import CampaignFileError
from backend.campaigns.files.markdown import get_link_target
from backend.campaigns.ledger.changes import (
    DELETION,
    Operations,
    State,
    apply_operations,
    build_creation,
    build_item,
    compare_states,
    exists,
    fold,
)
from backend.campaigns.ledger.item_service import MAX_ITEMS
from backend.campaigns.ledger.items import Fact, Item, Kind
from backend.campaigns.ledger.records import find_references
from backend.campaigns.models import Actor
from backend.campaigns.names.roster import make_slug
from backend.campaigns.rules.protocol import find_rules
from backend.characters.cards.model import Limit
from backend.chats.transfer import ChatLog
from backend.chronicles.transfer import EventRecord
from backend.core.audience import GM, Audience, decode_audience, encode_audience, list_entities
from backend.core.cpu_pool import check_stopped
from backend.database.base import new_id, now
from backend.errors import ValidationError

ZIP_ENTRIES = Limit("archive_entries", 5_000, "archive entries")
MAX_FILES = 4_900
"""Maximum number of entity files in a vault. With its lists, it is within `ZIP_ENTRIES`."""

MAX_WARNINGS = 200
MAX_KNOWING = 50
"""Maximum number of entities in one audience."""

MAX_NOTES = 1_000
"""Maximum number of facts of texts that have no other place."""

_FACT = 2_000
MAX_CHANGES = 200_000
"""Maximum number of changes in one ledger."""

MAX_FOLD = 2_000_000_000
"""Maximum sum over all items of changes times bytes, which takes a second to fold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """A change. `messages` has the new ids of the messages that made it."""

    item_id: UUID
    operations: Operations
    seq: int
    version: int
    actor: Actor
    is_undone: bool = False
    is_on_path: bool = True
    messages: Sequence[UUID] = ()
    created_at: datetime = field(default_factory=now)


@dataclass(slots=True, kw_only=True)
class CampaignDraft:
    """A campaign from a file.

    `kinds` has all items, also deleted ones; `states` has those that exist. The world has the
    campaign's id. `lines` is the ledger, in order. `ids` has new ids by the ids of the file.
    """

    id: UUID
    fields: CampaignFields
    kinds: dict[UUID, Kind] = field(default_factory=dict[UUID, Kind])
    states: dict[UUID, State] = field(default_factory=dict[UUID, State])
    lines: list[LedgerLine] = field(default_factory=list[LedgerLine])
    uses: dict[UUID, int] = field(default_factory=dict[UUID, int])
    ids: Mapping[UUID, UUID] = field(default_factory=dict[UUID, UUID])
    version: int = 0
    edits: int = 0
    compactions: int = 0
    events: Sequence[EventRecord] = ()
    chats: Sequence[ChatLog] = ()
    warnings: list[str] = field(default_factory=list[str])

    def warn(self, text: str) -> None:
        """Add a warning to the response of the import, up to `MAX_WARNINGS`."""
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)
        elif len(self.warnings) == MAX_WARNINGS:
            self.warnings.append("There is more that was not understood.")

    def check_count(self) -> None:
        """Raise `CampaignFileError` if there are more items than a campaign may have."""
        if len(self.kinds) > MAX_ITEMS:
            raise CampaignFileError(f"The file has more than {MAX_ITEMS:,} items.")

    def list_people(self) -> set[UUID]:
        """Return the ids outside the campaign that its items name: those of characters."""
        parts = [part for line in self.lines for part in _list_parts(line.operations)]
        named = {one for each in (*self.states.values(), *parts) for one in _list_people(each)}
        audiences = (line.audience for log in self.chats for line in log.lines)
        listed = {one for each in set(audiences) for one in list_entities(each)} - self.ids.keys()
        return listed | ({UUID(each) for each in named} - self.kinds.keys())

    def rename_people(self, people: Mapping[UUID, UUID]) -> None:
        """Replace the ids of characters. Those without a new id are removed."""
        new_ids = {str(each): str(each) for each in self.kinds}
        new_ids |= {str(old): str(new) for old, new in people.items()}
        for item_id, state in self.states.items():
            self.states[item_id] = _rename_people(state, new_ids)
        for place, line in enumerate(self.lines):
            operations = line.operations
            if any(_list_people(each) for each in _list_parts(operations)):
                made = msgspec.structs.replace(
                    operations,
                    set=_rename_people(operations.set, new_ids),
                    add=_rename_people(operations.add, new_ids),
                    remove=_rename_people(operations.remove, new_ids),
                )
                self.lines[place] = replace(line, operations=made)
        self.ids = {**self.ids, **people}

    def audience(self, column: str) -> str:
        """Translate a stored audience of the file. Unknown ids are removed."""
        audience = decode_audience(column)
        if isinstance(audience, str):
            return audience
        found = [self.ids[each] for each in audience if each in self.ids]
        return encode_audience(found) if found else GM


@dataclass(slots=True, kw_only=True)
class VaultDraft(CampaignDraft):
    """A campaign from a vault, with its entities by name.

    `names` has entities by file, by name and by alias, in this order of precedence; for each name,
    the first entity of each kind. `notes` counts the facts of texts that have no other place.
    """

    names: tuple[dict[str, dict[str, UUID]], ...] = field(default_factory=lambda: ({}, {}, {}))
    notes: int = 0

    def add_entity(self, entity_id: UUID, kind: str, *spellings: Iterable[str]) -> None:
        """Make an entity available to `find` by its file, its name and its aliases."""
        self.kinds[entity_id] = "entity"
        for names, known in zip(spellings, self.names, strict=True):
            for name in dict.fromkeys(each.casefold() for each in names):
                known.setdefault(name, {}).setdefault(kind, entity_id)

    def find(self, name: str, kind: str = "") -> UUID | None:
        """Return the entity that a link or a name means, preferably of a kind."""
        said = name.rpartition("/")[2].strip().casefold()
        matches = (names.get(each) for names in self.names for each in (said, make_slug(name)))
        found = next(filter(None, matches), None)
        if found is None:
            return None
        return found.get(kind) or next(iter(found.values()))

    def follow(self, target: str) -> None:
        """Warn if a link has no target."""
        if target and self.find(target) is None:
            self.warn(f"[[{target[:200]}]] names nothing in the vault")

    def read_audience(self, value: Any, where: str) -> Audience:
        """Return the audience that a value names; warn and return `gm` if it is unclear."""
        names: list[Any] = cast("Any", value) if isinstance(value, list) else [value]
        if names in (["public"], ["gm"]):
            return cast("Audience", names[0])
        found = [self.find(get_link_target(str(each))) for each in names]
        if not found or None in found or len(found) > MAX_KNOWING:
            self.warn(f"{where}: `audience` is not clear: the game master alone knows it")
            return "gm"
        return [each for each in found if each is not None]

    def add(self, kind: Kind, item: Item, item_id: UUID | None = None) -> UUID:
        """Add an item. Raises `CampaignFileError` if there are too many."""
        check_stopped()
        item_id = item_id or new_id()
        self.kinds[item_id] = kind
        self.check_count()
        self.states[item_id] = build_creation(item).set
        return item_id

    def add_facts(self, text: str, about: UUID, audience: Audience) -> None:
        """Add a text as one or several facts about an entity."""
        for part in _split_text(text):
            self.add("fact", Fact(text=part, about_id=about, audience=audience))

    def note(self, text: str, about: UUID | None) -> None:
        """Keep a text as facts that only the game master knows."""
        for part in filter(None, map(str.strip, _split_text(text))):
            self.notes += 1
            if self.notes > MAX_NOTES:
                self.warn(f"Of what was not understood, {MAX_NOTES:,} facts stay")
                return
            self.add("fact", Fact(text=part, about_id=about, audience="gm"))


def _list_parts(operations: Operations) -> tuple[State, ...]:
    return operations.set, operations.add, operations.remove


def _list_people(fields: State) -> list[str]:
    """Return the ids in the fields that may name characters."""
    named: list[Any] = [fields.get("character_id")]
    audience = fields.get("audience")
    if isinstance(audience, list):
        listed: list[Any] = audience
        named += listed
    return [each for each in named if isinstance(each, str) and _is_id(each)]


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _rename_people(fields: State, new_ids: Mapping[str, str]) -> State:
    named = dict(fields)
    if isinstance(card := named.get("character_id"), str):
        named["character_id"] = new_ids.get(card)
    audience = named.get("audience")
    if isinstance(audience, list) and audience:
        listed: list[Any] = audience
        found = [new_ids[each] for each in listed if isinstance(each, str) and each in new_ids]
        named["audience"] = found or GM
    return named


def _split_text(text: str) -> Iterator[str]:
    """Yield parts of a text that fit into facts."""
    return (text[start : start + _FACT] for start in range(0, len(text), _FACT))


def settle_ledger(
    draft: CampaignDraft, *, covered: Iterable[UUID] = ()
) -> dict[UUID, tuple[State, int]]:
    """Make the ledger agree with the states; return each item's state and its last active change.

    If the file has no ledger or was edited by hand, changes are added that lead to its states. An
    item of `covered` that exists only in the ledger is deleted.
    """
    settled: dict[UUID, tuple[State, int]] = {}
    changes = _group_active_lines(draft.lines)
    needed: dict[UUID, Operations] = {}
    for item_id, kind in draft.kinds.items():
        check_stopped()
        lines = changes[item_id]
        state = fold(kind, (line.operations for line in lines))
        settled[item_id] = state, lines[-1].seq if lines else 0
        if item_id in draft.states:
            operations = _compare_with_file(kind, state, draft.states[item_id])
            if operations.list_fields() or not exists(state):
                needed[item_id] = operations
    for item_id in covered:
        if item_id not in draft.states and exists(settled[item_id][0]):
            needed[item_id] = DELETION
    last = draft.lines[-1].seq if draft.lines else 0
    draft.version += bool(needed)
    for seq, (item_id, operations) in enumerate(needed.items(), start=last + 1):
        line = LedgerLine(
            item_id=item_id, operations=operations, seq=seq, version=draft.version, actor="import"
        )
        draft.lines.append(line)
        settled[item_id] = (
            apply_operations(draft.kinds[item_id], settled[item_id][0], operations),
            seq,
        )
    return settled


def _compare_with_file(kind: Kind, folded: State, state: State) -> Operations:
    """Return the change from the state of the ledger to the state of the file; it can be empty."""
    if folded == state:
        return Operations()
    item = build_item(kind, state)
    return compare_states(folded, build_creation(item).set) if folded else build_creation(item)


def check_items(draft: CampaignDraft) -> None:
    """Raise `CampaignFileError` if an item is invalid for its kind or for the rules."""
    rules = find_rules(draft.fields.rules)
    for item_id, state in draft.states.items():
        check_stopped()
        kind = draft.kinds[item_id]
        name = state.get("name") or state.get("title") or kind
        try:
            item = build_item(kind, state)
            rules.validate(kind, {}, state)
        except ValidationError as error:
            raise CampaignFileError(f"{name}: {error.detail}") from error
        for member, ids in find_references(item).items():
            if lost := [each for each in ids if each not in draft.kinds]:
                raise CampaignFileError(
                    f"{name}: `{member}` names {lost[0]}, which is not in the file."
                )


def check_work(lines: Sequence[LedgerLine]) -> None:
    """Raise `CampaignFileError` if a ledger would take too long to fold."""
    count: defaultdict[UUID, int] = defaultdict(int)
    size: defaultdict[UUID, int] = defaultdict(int)
    for line in lines:
        count[line.item_id] += 1
        size[line.item_id] += len(msgspec.json.encode(line.operations))
    if sum(count[each] * size[each] for each in count) > MAX_FOLD:
        raise CampaignFileError("ledger.json has too many changes of one item.")


def _group_active_lines(lines: Iterable[LedgerLine]) -> defaultdict[UUID, list[LedgerLine]]:
    """Return the active changes of each item."""
    found: defaultdict[UUID, list[LedgerLine]] = defaultdict(list)
    for line in lines:
        if line.is_on_path and not line.is_undone:
            found[line.item_id].append(line)
    return found
