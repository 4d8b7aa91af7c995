"""A campaign that was read, as rows to store; a stored one, as what files are written of.

Sealing and opening thousands of texts: for the pool, not for the event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any
from uuid import UUID

import msgspec

from backend.campaigns.files.archive import ChangeRecord, SourceRecord
from backend.campaigns.files.draft import CampaignDraft
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import State, exists
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.records import keep_references, seal_campaign
from backend.campaigns.ledger.store import build_item_row, read_state
from backend.campaigns.models import OPERATIONS, Campaign
from backend.chats.models import CHAT_TITLE
from backend.chats.token_counting import CountUnit
from backend.chats.transfer import ChatLog, build_message_rows
from backend.chronicles.repository import SourceMessage
from backend.chronicles.transfer import IncomingEvent, incoming_event
from backend.core.cpu_pool import check_stopped
from backend.database.base import new_id
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRows:
    """A session: its chat, who takes part, and its messages."""

    chat: dict[str, Any]
    character_ids: Sequence[UUID]
    messages: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignRows:
    """A campaign with its items, its ledger and its chronicle's events.

    `messages` are those of its chats that events come from, by their ids in the file.
    """

    campaign: Campaign
    items: Sequence[dict[str, Any]]
    changes: Sequence[dict[str, Any]]
    sources: Sequence[dict[str, Any]]
    events: Sequence[IncomingEvent]
    messages: Mapping[UUID, SourceMessage]


def chat_rows(
    sealer: Sealer, draft: CampaignDraft, log: ChatLog, *, unit: CountUnit, people: Collection[UUID]
) -> ChatRows:
    """The rows of a session. `people` are the characters and personas that its owner has."""
    chat_id, head = new_id(), log.head
    rows = build_message_rows(
        sealer,
        log,
        chat_id=chat_id,
        unit=unit,
        ids=draft.ids,
        audience=draft.audience,
        people=people,
    )
    chat = {
        "id": chat_id,
        "user_id": sealer.user_id,
        "sealed_title": sealer.seal(CHAT_TITLE, chat_id, head.title),
        "persona_id": head.persona_id if head.persona_id in people else None,
        "campaign_id": draft.id,
        "leaf_id": draft.ids[head.leaf_id] if head.leaf_id else None,
        "count_unit": str(unit),
        "created_at": head.created_at.astimezone(UTC),
        "updated_at": head.created_at.astimezone(UTC),
    }
    members = [each for each in dict.fromkeys(head.character_ids) if each in people]
    return ChatRows(chat=chat, character_ids=members, messages=rows)


def campaign_rows(
    sealer: Sealer,
    draft: CampaignDraft,
    settled: Mapping[UUID, tuple[State, int]],
    chats: Iterable[ChatRows],
) -> CampaignRows:
    """The rows of a campaign. `settled` is each item's state, and its last change that counts."""
    campaign = Campaign(
        id=draft.id,
        user_id=sealer.user_id,
        version=max(draft.version, 1),
        last_seq=draft.lines[-1].seq if draft.lines else 0,
        edits=draft.edits,
        compactions=draft.compactions,
    )
    seal_campaign(sealer, campaign, draft.fields)
    messages = {
        row["id"]: SourceMessage(id=row["id"], chat_id=row["chat_id"], position=row["position"])
        for chat in chats
        for row in chat.messages
    }
    items = [
        {
            **build_item_row(sealer, campaign, item_id, draft.kinds[item_id], state, seq),
            "uses": draft.uses.get(item_id, 0),
        }
        for item_id, (state, seq) in settled.items()
    ]
    changes: list[dict[str, Any]] = []
    sources: list[dict[str, Any]] = []
    for line in draft.lines:
        check_stopped()
        change_id = new_id()
        changes.append(
            {
                "id": change_id,
                "user_id": sealer.user_id,
                "campaign_id": draft.id,
                "item_id": line.item_id,
                "seq": line.seq,
                "version": line.version,
                "actor": line.actor,
                "is_on_path": line.is_on_path,
                "is_undone": line.is_undone,
                "sealed_operations": sealer.seal_bytes(
                    OPERATIONS, change_id, msgspec.json.encode(line.operations)
                ),
                "created_at": line.created_at,
            }
        )
        sources += [
            {
                "change_id": change_id,
                "message_id": each,
                "chat_id": messages[each].chat_id,
                "position": messages[each].position,
            }
            for each in line.messages
        ]
    return CampaignRows(
        campaign=campaign,
        items=items,
        changes=changes,
        sources=sources,
        events=[
            incoming_event(sealer, record, audience=draft.audience(record.audience))
            for record in draft.events
        ],
        messages={old: messages[new] for old, new in draft.ids.items() if new in messages},
    )


def open_items(sealer: Sealer, rows: Iterable[Any]) -> list[tuple[UUID, Kind, State]]:
    """Items by their rows (`id`, `kind`, `sealed_state`)."""
    return [(row.id, row.kind, read_state(sealer, row.id, row.sealed_state)) for row in rows]


def existing_items(items: Iterable[tuple[UUID, Kind, State]]) -> list[tuple[UUID, Kind, State]]:
    """Return the items that exist, without references to items that are not among them."""
    known = [each for each in items if exists(each[2])]
    found = {str(item_id) for item_id, *_ in known}
    kept: list[tuple[UUID, Kind, State]] = []
    for item_id, kind, state in known:
        if kind != "relation" or {state["from_id"], state["to_id"]} <= found:
            kept.append((item_id, kind, keep_references(state, found)))
    return kept


def open_changes(
    sealer: Sealer, rows: Iterable[Any], sources: Mapping[UUID, list[SourceRecord]]
) -> list[ChangeRecord]:
    """Lines of the ledger by their rows, each with the `kind` of its item."""
    records: list[ChangeRecord] = []
    for row in rows:
        check_stopped()
        operations = ledger_store.read_operations(sealer, row.id, row.sealed_operations)
        records.append(
            ChangeRecord(
                seq=row.seq,
                version=row.version,
                actor=row.actor,
                kind=row.kind,
                item_id=row.item_id,
                created_at=row.created_at,
                set=operations.set,
                add=operations.add,
                remove=operations.remove,
                because=operations.because,
                on_path=row.is_on_path,
                undone=row.is_undone,
                sources=sources.get(row.id, []),
            )
        )
    return records
