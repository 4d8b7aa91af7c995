"""Writes a campaign as a zip of JSON files, and reads it under new ids. CPU-bound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast
from uuid import UUID

import msgspec

from backend.campaigns.api.schemas import CampaignFields
from backend.campaigns.errors import CampaignFileError
from backend.campaigns.files.draft import (
    MAX_CHANGES,
    CampaignDraft,
    LedgerLine,
    check_items,
    check_work,
)
from backend.campaigns.ledger.changes import EXISTS, Operations, State, exists
from backend.campaigns.ledger.items import STRUCTS, Kind, Line
from backend.campaigns.ledger.records import REFERENCE_LISTS, REFERENCES
from backend.campaigns.models import Actor
from backend.campaigns.rules.protocol import check_rules
from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError
from backend.chats.transfer import YEARS, ChatLog, create_message_ids, read_log
from backend.chronicles.events import ChronicleFields
from backend.chronicles.repository import StoryEvent
from backend.chronicles.transfer import EventRecord, read_file, write_file
from backend.core.cpu_pool import check_stopped
from backend.database.base import new_id
from backend.errors import AppError, ValidationError
from backend.http.schemas import convert_list

MAIN = "campaign_data.json"
CHATS = "chats/"
MAX_NUMBER = 1_000_000_000

ENTITY_FILES = {
    "pc": "characters.json",
    "npc": "npcs.json",
    "location": "environments.json",
    "item": "items.json",
    "faction": "factions.json",
    "ability": "abilities.json",
}
ITEM_FILES: dict[Kind, str] = {
    "thread": "threads.json",
    "clock": "clocks.json",
    "fact": "facts.json",
    "term": "glossary.json",
    "relation": "relations.json",
    "scene": "scenes.json",
    "chapter": "chapters.json",
    "echo": "echoes.json",
}

Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]


class CampaignRecord(CampaignFields, kw_only=True):
    """`campaign_data.json`. `world` has the day, the time and the flags."""

    format: Literal["talekeeper-campaign"]
    file_version: Literal[1]
    id: UUID
    world: dict[str, Any]


class CompactionRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`compaction_state.json`: the counters of a campaign."""

    version: Number = 0
    edits: Number = 0
    compactions: Number = 0


class SourceRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    chat_id: UUID
    message_id: UUID


class ChangeRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A change in `ledger.json`. It is active if it is on the path and not undone."""

    seq: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    version: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    actor: Actor
    kind: Kind
    item_id: UUID
    created_at: datetime
    set: dict[str, Any] = {}
    add: dict[str, Any] = {}
    remove: dict[str, Any] = {}
    because: Line = ""
    on_path: bool = True
    undone: bool = False
    sources: Annotated[list[SourceRecord], msgspec.Meta(max_length=1_000)] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCampaign:
    """An unsealed campaign with all data of an export."""

    id: UUID
    fields: CampaignFields
    counters: CompactionRecord
    items: Sequence[tuple[UUID, Kind, State]]
    uses: Mapping[UUID, int]
    changes: Sequence[ChangeRecord]
    chronicle: ChronicleFields
    events: Sequence[StoryEvent]
    chats: Sequence[bytes] = ()


def write_archive(campaign: OpenCampaign) -> dict[str, bytes]:
    """Return the files of a zip by path."""
    world: State = {}
    lists: dict[str, list[dict[str, Any]]] = {
        name: [] for name in (*ENTITY_FILES.values(), *ITEM_FILES.values())
    }
    for item_id, kind, state in campaign.items:
        fields = {key: value for key, value in state.items() if key != EXISTS}
        if kind == "world":
            world = fields
        elif exists(state):
            name = ENTITY_FILES[state["kind"]] if kind == "entity" else ITEM_FILES[kind]
            counted = {"uses": campaign.uses[item_id]} if kind == "term" else {}
            lists[name].append({"id": item_id, **fields, **counted})
    record = CampaignRecord(
        format="talekeeper-campaign",
        file_version=1,
        id=campaign.id,
        world=world,
        **msgspec.structs.asdict(campaign.fields),
    )
    files: dict[str, Any] = {MAIN: record, **lists, "compaction_state.json": campaign.counters}
    written = {name: _format_json(value) for name, value in files.items()}
    written["narratives.json"] = write_file(campaign.chronicle, campaign.events)
    written["ledger.json"] = msgspec.json.encode(campaign.changes)
    for number, chat in enumerate(campaign.chats, start=1):
        written[f"{CHATS}{number:03}.jsonl"] = chat
    return written


def _format_json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


MAX_CHATS = 1_000

T = TypeVar("T")


class ItemRecord(NamedTuple):
    """An item of a file, and its place there: `npcs.json[3]`."""

    where: str
    item_id: UUID
    kind: Kind
    fields: dict[str, Any]


def read_archive(files: Mapping[str, bytes]) -> CampaignDraft:
    """Read the files of a zip. Raises `CampaignFileError`, which names file and place."""
    main = _read(files, MAIN, CampaignRecord)
    assert main is not None  # noqa: S101  # the caller has checked that the file exists
    counters = _read(files, "compaction_state.json", CompactionRecord) or CompactionRecord()
    changes = _read_list(files, "ledger.json", ChangeRecord)
    items = _read_items(files)
    kinds = _find_kinds(main, changes, items)
    renumbered = IdMap(kinds)
    draft = CampaignDraft(
        id=renumbered.ids[main.id],
        fields=CampaignFields(
            name=main.name, rules=main.rules, brief=main.brief, settings=main.settings
        ),
        kinds={renumbered.ids[old]: kind for old, kind in sorted(kinds.items())},
        version=max([counters.version, *(change.version for change in changes)]),
        edits=counters.edits,
        compactions=counters.compactions,
    )
    _check_rules(draft)
    draft.states[draft.id] = {EXISTS: True, **_read_item(renumbered, "world", main.world, MAIN)}
    for where, item_id, kind, fields in items:
        if kind == "term":
            draft.uses[renumbered.ids[item_id]] = _read_uses(fields.pop("uses", 0), where)
        state = _read_item(renumbered, kind, fields, where)
        draft.states[renumbered.ids[item_id]] = {EXISTS: True, **state}
    check_items(draft)
    draft.chats, message_ids = _read_chats(files)
    draft.ids = {**renumbered.ids, **message_ids}
    on_path = {each for log in draft.chats for each in log.find_path()}
    draft.lines = [_read_change(renumbered, change, message_ids, on_path) for change in changes]
    check_work(draft.lines)
    draft.events = _read_events(files)
    return draft


def _find_kinds(
    main: CampaignRecord, changes: Sequence[ChangeRecord], items: Sequence[ItemRecord]
) -> dict[UUID, Kind]:
    """Return the kind of every item. Raises `CampaignFileError` if the ledger is inconsistent."""
    if len(changes) > MAX_CHANGES:
        raise CampaignFileError(f"ledger.json has more than {MAX_CHANGES:,} changes.")
    for before, after in pairwise(changes):
        if after.seq <= before.seq:
            raise CampaignFileError("ledger.json is not sorted by `seq`.")
    kinds: dict[UUID, Kind] = {main.id: "world"}
    for change in changes:
        if kinds.setdefault(change.item_id, change.kind) != change.kind:
            raise CampaignFileError(
                f"ledger.json, change {change.seq}: the item is of another kind."
            )
    for where, item_id, kind, _ in items:
        if kinds.setdefault(item_id, kind) != kind:
            raise CampaignFileError(f"{where}.id is the id of an item of another kind.")
    if list(kinds.values()).count("world") > 1:
        raise CampaignFileError("ledger.json has changes of another campaign's world.")
    return kinds


def list_item_ids(files: Mapping[str, bytes]) -> list[UUID]:
    """Return the ids of all items of a file, in the order of the ids that they get in an import.

    CPU-bound. Raises `CampaignFileError`.
    """
    main = _read(files, MAIN, CampaignRecord)
    if main is None:
        raise CampaignFileError(f"The zip file has no `{MAIN}`.")
    changes = _read_list(files, "ledger.json", ChangeRecord)
    return sorted(_find_kinds(main, changes, _read_items(files)))


def list_chat_logs(files: Mapping[str, bytes]) -> list[ChatLog]:
    """Return the chats of a file. CPU-bound. Raises `CampaignFileError`."""
    return _read_chats(files)[0]


def list_covered_items(files: Mapping[str, bytes], draft: CampaignDraft) -> list[UUID]:
    """Return the items of kinds that have a file.

    Items of the ledger that are missing in these files were removed by hand.
    """
    covered: set[Kind] = {kind for kind, name in ITEM_FILES.items() if name in files}
    if files.keys() >= set(ENTITY_FILES.values()):
        covered.add("entity")
    return [item_id for item_id, kind in draft.kinds.items() if kind in covered]


class IdMap:
    """New ids by old ids, in the same order, because ids sort by time."""

    def __init__(self, old: Mapping[UUID, Kind]) -> None:
        self.ids = {each: new_id() for each in sorted(old)}
        self._texts = {str(each): str(made) for each, made in self.ids.items()}
        self._known = frozenset({*self._texts, "gm", "public"})

    def value(self, value: Any) -> Any:
        """Return a JSON value with new ids."""
        if isinstance(value, str):
            return self._texts.get(value, value)
        if isinstance(value, list):
            return [self.value(one) for one in cast("Any", value)]
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {key: self.value(member) for key, member in members.items()}
        return value

    def members(self, fields: dict[str, Any], where: str) -> dict[str, Any]:
        """Return an item's fields with new ids. Raises `CampaignFileError` for unknown ids."""
        for key in fields.keys() & {*REFERENCES, *REFERENCE_LISTS}:
            value = fields[key]
            for one in cast("Any", value) if isinstance(value, list) else [value]:
                if isinstance(one, str) and one not in self._known:
                    raise CampaignFileError(
                        f"{where}: `{key}` is not the id of an item in the file."
                    )
        return {key: self.value(value) for key, value in fields.items()}


def _read_uses(value: Any, where: str) -> int:
    try:
        return msgspec.convert(value, Number)
    except msgspec.ValidationError as error:
        raise CampaignFileError(f"{where}.uses: {error}.") from error


def _read_item(renumbered: IdMap, kind: Kind, fields: dict[str, Any], where: str) -> State:
    try:
        msgspec.convert(fields, STRUCTS[kind], strict=True)
    except msgspec.ValidationError as error:
        raise CampaignFileError(f"{where}: {error}.") from error
    return renumbered.members(fields, where)


def _read_change(
    renumbered: IdMap,
    change: ChangeRecord,
    message_ids: Mapping[UUID, UUID],
    on_path: Collection[UUID],
) -> LedgerLine:
    """Return a change with new ids. The imported messages decide if it is on the path."""
    check_stopped()
    sources = {each.message_id for each in change.sources} & message_ids.keys()
    where = f"ledger.json, change {change.seq}"
    if change.created_at.tzinfo is None or change.created_at.year not in YEARS:
        raise CampaignFileError(
            f"{where}: `created_at` has no UTC offset, or its year is out of range."
        )
    return LedgerLine(
        item_id=renumbered.ids[change.item_id],
        operations=Operations(
            set=renumbered.members(change.set, where),
            add=renumbered.members(change.add, where),
            remove=renumbered.members(change.remove, where),
            because=change.because,
        ),
        seq=change.seq,
        version=change.version,
        actor=change.actor,
        is_undone=change.undone,
        is_on_path=not sources.isdisjoint(on_path) if sources else change.on_path,
        messages=[message_ids[each] for each in sources],
        created_at=change.created_at.astimezone(UTC),
    )


def _read_items(files: Mapping[str, bytes]) -> list[ItemRecord]:
    found: list[ItemRecord] = []
    named: list[tuple[Kind, str]] = [("entity", name) for name in ENTITY_FILES.values()]
    seen: set[UUID] = set()
    for kind, name in (*named, *ITEM_FILES.items()):
        for number, fields in enumerate(_read_list(files, name, dict[str, Any])):
            check_stopped()
            where = f"{name}[{number}]"
            try:
                item_id = msgspec.convert(fields.pop("id", None) or new_id(), UUID)
            except msgspec.ValidationError as error:
                raise CampaignFileError(f"{where}.id: {error}.") from error
            if item_id in seen:
                raise CampaignFileError(f"{where}.id is already used by an earlier item.")
            seen.add(item_id)
            found.append(ItemRecord(where, item_id, kind, fields))
    return found


def _read_chats(files: Mapping[str, bytes]) -> tuple[list[ChatLog], dict[UUID, UUID]]:
    """Return the chats, and the new ids of their messages."""
    names = sorted(each for each in files if each.startswith(CHATS) and each.endswith(".jsonl"))
    if len(names) > MAX_CHATS:
        raise CampaignFileError(f"The file has more than {MAX_CHATS:,} chats.")
    chats: list[ChatLog] = []
    ids: dict[UUID, UUID] = {}
    for name in names:
        try:
            log = read_log(files[name])
        except ValidationError as error:
            raise CampaignFileError(f"{name}: {error.detail}") from error
        if any(line.id in ids for line in log.lines):
            raise CampaignFileError(f"{name} contains a message from another chat's file.")
        ids |= create_message_ids(log)
        chats.append(log)
    return chats, ids


def _read_events(files: Mapping[str, bytes]) -> list[EventRecord]:
    if "narratives.json" not in files:
        return []
    try:
        return read_file(files["narratives.json"]).events
    except AppError as error:
        raise CampaignFileError(f"narratives.json: {error.detail}") from error


def _check_rules(draft: CampaignDraft) -> None:
    try:
        check_rules(draft.fields.rules)
    except ValidationError as error:
        raise CampaignFileError(f"{MAIN}: {error.detail}") from error


def _read(files: Mapping[str, bytes], name: str, kind: type[T]) -> T | None:
    """Read one file; return None if it is missing."""
    if name not in files:
        return None
    return _convert(files, name, lambda value: msgspec.convert(value, kind, strict=True))


def _read_list(files: Mapping[str, bytes], name: str, kind: type[T]) -> list[T]:
    """Read the entries of one file; return none if it is missing."""
    if name not in files:
        return []
    return _convert(files, name, lambda value: convert_list(value, kind))


def _convert(files: Mapping[str, bytes], name: str, convert: Callable[[Any], T]) -> T:
    try:
        return convert(parse_json(files[name]))
    except CardError as error:
        raise CampaignFileError(f"{name}: {error.detail}") from error
    except msgspec.ValidationError as error:
        raise CampaignFileError(f"{name}: {error}.") from error
