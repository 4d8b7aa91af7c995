"""Copies of campaigns' worlds for copies of chats: new campaigns with stories of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import CampaignFields
from backend.campaigns.api.service import check_room
from backend.campaigns.files.archive import Renumbered
from backend.campaigns.files.draft import CampaignDraft, LedgerLine, settle
from backend.campaigns.files.rows import CampaignRows, campaign_rows, existing_items, open_items
from backend.campaigns.files.transfer import insert_campaign
from backend.campaigns.ledger import paths as ledger_paths
from backend.campaigns.ledger.changes import Operations
from backend.campaigns.ledger.read_marks import copy_marks
from backend.campaigns.ledger.records import get_campaign, open_campaign
from backend.campaigns.models import Actor, CampaignChange, CampaignItem
from backend.chats import tree
from backend.chats.events import StoreWorld, WorldCopied, WorldParted, translate_audiences
from backend.chats.models import CHAT_SETTINGS, Chat, Message
from backend.chats.repository import get_chat
from backend.chats.service import read_settings
from backend.chronicles.events import ChronicleFields
from backend.chronicles.repository import make_chronicle
from backend.core.audience import GM
from backend.core.cpu_pool import CpuPool
from backend.core.events import Participants
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.service import CheckAdded
from backend.vault.sealing import Sealer

MAX_NAME = 200
COPY = " (copy)"

_RANK: Mapping[Actor, int] = {"user": 0, "import": 0, "tool": 1, "compactor": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldAtMessage:
    """A campaign as it is at a message, sealed.

    Attributes:
        items: Rows of all items.
        writers: For each item who has changed it, and when last: rows of (item, actor, time).
    """

    campaign_id: UUID
    fields: CampaignFields
    compactions: int
    items: Sequence[Any]
    writers: Sequence[Any]


@dataclass(frozen=True, slots=True)
class WorldCopy:
    """The rows of a copied world, and the new ids of its entities by the old ones."""

    rows: CampaignRows
    draft: CampaignDraft


class WorldCopies(WorldCopied):
    """Makes a new campaign for the copy of a campaign's chat.

    Args:
        checks_added: Refuse a copy after which its account holds more than it may.
    """

    def __init__(
        self,
        database: Database,
        outbox: IndexOutbox,
        pool: CpuPool,
        *,
        participants: Participants,
        checks_added: Collection[CheckAdded],
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._pool = pool
        self._participants = participants
        self._checks_added = checks_added

    async def world_copied(self, identity: Identity, chat_id: UUID, message_id: UUID) -> StoreWorld:
        """Copy the campaign of a chat as it is at a message.

        Storing it raises `CampaignFullError`, `ChronicleFullError`, `StorageQuotaExceededError`.

        Raises `ValidationError` for a chat of no campaign.
        """
        world = await self._read(identity, chat_id, message_id)
        work = partial(copy_world, identity.sealer, world)
        copy = await self._pool.run(identity.user_id, work)

        async def store(session: AsyncSession, fork: Chat, copied: Mapping[UUID, UUID]) -> None:
            await self._store(session, identity, copy, fork)
            campaign_id = copy.rows.campaign.id
            await copy_marks(session, chat_id, fork.id, copied, campaign_id=campaign_id)

        return store

    async def _read(self, identity: Identity, chat_id: UUID, message_id: UUID) -> WorldAtMessage:
        """Read the world with the chat's path at a message; the path moves for the read alone."""
        async with self._database.trial() as trial:
            chat = await get_chat(trial, chat_id, owner_id=identity.user_id, lock=True)
            if chat.campaign_id is None:
                raise ValidationError("world: the chat is not in a campaign that can be copied.")
            campaign = await get_campaign(trial, identity, chat.campaign_id, lock=True)
            above = await tree.choose_leaf(trial, chat, message_id)
            await ledger_paths.path_moved(trial, identity.sealer, campaign, chat_id, above=above)
            items = CampaignItem.campaign_id == campaign.id, CampaignItem.exists
            counting = (
                CampaignChange.campaign_id == campaign.id,
                CampaignChange.is_on_path,
                ~CampaignChange.is_undone,
            )
            columns = (
                CampaignItem.id,
                CampaignItem.kind,
                CampaignItem.uses,
                CampaignItem.sealed_state,
            )
            return WorldAtMessage(
                campaign_id=campaign.id,
                fields=open_campaign(identity.sealer, campaign),
                compactions=campaign.compactions,
                items=(
                    await trial.execute(
                        select(*columns).where(*items).order_by(CampaignItem.seq, CampaignItem.id)
                    )
                ).all(),
                writers=(
                    await trial.execute(
                        select(
                            CampaignChange.item_id,
                            CampaignChange.actor,
                            func.max(CampaignChange.created_at).label("at"),
                        )
                        .where(*counting)
                        .group_by(CampaignChange.item_id, CampaignChange.actor)
                    )
                ).all(),
            )

    async def _store(
        self, session: AsyncSession, identity: Identity, copy: WorldCopy, fork: Chat
    ) -> None:
        """Store the campaign, and make the fork a session of it."""
        campaign, translate = copy.rows.campaign, copy.draft.audience
        await check_room(session, identity)
        if fork.chronicle_id is None:
            name = copy.draft.fields.name
            chronicle = await make_chronicle(session, identity, ChronicleFields(name=name))
            fork.chronicle_id = chronicle.id
        campaign.chronicle_id = fork.chronicle_id
        await insert_campaign(session, identity, self._outbox, copy.rows)
        fork.campaign_id = campaign.id
        _lead_viewpoint(identity.sealer, fork, copy.draft.ids)
        mine = Message.chat_id == fork.id, Message.user_id == identity.user_id
        await translate_audiences(session, Message.audience, translate, *mine)
        await session.flush()
        for part in self._participants.find_handlers(WorldParted):
            await part.world_parted(session, identity, fork, translate)
        for check in self._checks_added:
            await check(session, identity.user_id)


def copy_world(sealer: Sealer, world: WorldAtMessage) -> WorldCopy:
    """Make the rows of a campaign that begins with the state of another one. CPU-bound.

    One change makes each item. Its actor is the one with the last word in the old ledger, and its
    time is when they changed the item, so that later work meets the same precedence.
    """
    items = existing_items(open_items(sealer, world.items))
    renumbered = Renumbered({item_id: kind for item_id, kind, _ in items})
    ids = renumbered.ids
    writers = _writers(world.writers)
    draft = CampaignDraft(
        id=ids[world.campaign_id],
        fields=msgspec.structs.replace(
            world.fields, name=world.fields.name[: MAX_NAME - len(COPY)] + COPY
        ),
        kinds={ids[item_id]: kind for item_id, kind, _ in items},
        uses={ids[row.id]: row.uses for row in world.items if row.kind == "term"},
        ids=ids,
        version=1,
        compactions=world.compactions,
    )
    for seq, (item_id, _, state) in enumerate(items, start=1):
        actor, at = writers[item_id]
        own = renumbered.value(state)
        if own.get("audience") == []:  # everyone who knew it is deleted
            own["audience"] = GM
        draft.lines.append(
            LedgerLine(
                item_id=ids[item_id],
                operations=Operations(set=own),
                seq=seq,
                version=1,
                actor=actor,
                created_at=at,
            )
        )
    return WorldCopy(campaign_rows(sealer, draft, settle(draft), ()), draft)


def _writers(rows: Iterable[Any]) -> dict[UUID, tuple[Actor, datetime]]:
    """Return the actor with the last word on each item, and when they changed it."""
    found: dict[UUID, tuple[Actor, datetime]] = {}
    for row in sorted(rows, key=lambda row: (-_RANK[row.actor], row.at)):
        found[row.item_id] = row.actor, row.at
    return found


def _lead_viewpoint(sealer: Sealer, fork: Chat, ids: Mapping[UUID, UUID]) -> None:
    """Set the viewpoint in a chat's settings to the copied entity; to none if there is none."""
    settings = read_settings(sealer, fork)
    try:
        viewpoint = UUID(settings.viewpoint)
    except (TypeError, ValueError):  # none, everyone's or the game master's
        return
    led = ids.get(viewpoint)
    settings = msgspec.structs.replace(
        settings,
        viewpoint=str(led) if led else None,
        chronicle_enabled=False,
        chronicle_id=None,
    )
    fork.sealed_settings = sealer.seal_bytes(CHAT_SETTINGS, fork.id, msgspec.json.encode(settings))
