"""A campaign as a zip of JSON files, from which it is imported to the same state. CPU-bound.

`campaign_data.json` says what the campaign is and where its world stands; one file for each kind of
item holds those that exist; `ledger.json` how they came to be; `narratives.json` is its chronicle,
`compaction_state.json` how far it was compacted, and `chats/` has its sessions, one file each.
Ids hold within the zip alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from backend.campaigns.items import Kind, Line
from backend.campaigns.ledger import EXISTS, State, exists
from backend.campaigns.models import Actor
from backend.campaigns.schemas import CampaignFields
from backend.chronicles.events import ChronicleFields
from backend.chronicles.files import write_file
from backend.chronicles.reading import StoryEvent

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
    """`campaign_data.json`. `world` is the state of the campaign's day, time and flags."""

    format: Literal["talekeeper-campaign"]
    file_version: Literal[1]
    id: UUID
    world: dict[str, Any]


class CompactionRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`compaction_state.json`: what counts up in a campaign."""

    version: Number = 0
    edits: Number = 0
    compactions: Number = 0


class SourceRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message that made a change."""

    chat_id: UUID
    message_id: UUID


class ChangeRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of `ledger.json`. It counts while it is on the path and not undone."""

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
    """A campaign with all that belongs to it, unsealed: what files are written of."""

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
    """The files of a campaign's zip, by path."""
    world: State = {}
    held: dict[str, list[dict[str, Any]]] = {
        name: [] for name in (*ENTITY_FILES.values(), *ITEM_FILES.values())
    }
    for item_id, kind, state in campaign.items:
        fields = {key: value for key, value in state.items() if key != EXISTS}
        if kind == "world":
            world = fields
        elif exists(state):
            name = ENTITY_FILES[state["kind"]] if kind == "entity" else ITEM_FILES[kind]
            counted = {"uses": campaign.uses[item_id]} if kind == "term" else {}
            held[name].append({"id": item_id, **fields, **counted})
    record = CampaignRecord(
        format="talekeeper-campaign",
        file_version=1,
        id=campaign.id,
        world=world,
        **msgspec.structs.asdict(campaign.fields),
    )
    files: dict[str, Any] = {MAIN: record, **held, "compaction_state.json": campaign.counters}
    written = {name: _indented(value) for name, value in files.items()}
    written["narratives.json"] = write_file(campaign.chronicle, campaign.events)
    written["ledger.json"] = msgspec.json.encode(campaign.changes)
    for number, chat in enumerate(campaign.chats, start=1):
        written[f"{CHATS}{number:03}.jsonl"] = chat
    return written


def _indented(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)
