"""Rows that models have written come back with an archive."""

from __future__ import annotations

import asyncio
import io
import shutil
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import insert, select, update

from backend.campaigns.ledger.changes import Operations
from backend.campaigns.models import PROPOSAL, CampaignMark, CampaignProposal, ProposalSource
from backend.campaigns.proposals.authority import ProposalContent
from backend.chats.models import Message, ReplyCutNotice, encode_notices
from backend.database.base import new_id
from backend.enrichment.models import EnrichmentMark
from backend.lorebooks.authoring import EntryOrigin, add_entry, chronicle_book
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.models import LoreEntryRow
from backend.transfer.archives.comparison import compare_archives
from tests.support.archives import find_identity, make_archive
from tests.support.full_account import FullAccount, fill_account
from tests.support.importing import bring
from tests.support.server import Account, Running, running

pytestmark = [pytest.mark.anyio]


async def _add_work(server: Running, account: Account, full: FullAccount) -> None:
    """Add the rows that jobs with a model write."""
    identity = await find_identity(server, account)
    sealer, owner = identity.sealer, {"user_id": identity.user_id}
    chat, session_chat = UUID(full.ids["inn"]), UUID(full.ids["session"])
    campaign = UUID(full.ids["campaign"])
    entities = await account.get(f"/campaigns/{campaign}/entities")
    item = UUID(entities["items"][0]["id"])
    told = await account.post(f"/campaigns/{campaign}/facts", {"text": "It never rains."}, 201)
    fact = UUID(told["id"])
    async with server.parts.database.write() as session:
        path = select(Message.id).where(Message.is_active).order_by(Message.position)
        here = list(await session.scalars(path.where(Message.chat_id == chat)))
        there = list(await session.scalars(path.where(Message.chat_id == session_chat)))
        book = await chronicle_book(
            session, sealer, UUID(full.ids["chronicle"]), name="Lore of the nights"
        )
        origin = EntryOrigin(run_id=new_id(), chat_id=chat, message_id=here[2])
        await add_entry(session, sealer, book, LoreEntry(content="By the agent."), origin)
        changed = await add_entry(session, sealer, book, LoreEntry(content="Changed."), origin)
        await session.execute(
            update(LoreEntryRow).where(LoreEntryRow.id == changed.id).values(revision=2)
        )
        await session.execute(
            insert(EnrichmentMark), {**owner, "id": here[1], "chat_id": chat, "position": 1}
        )
        mark = {"id": there[1], "chat_id": session_chat, "position": 1, "version": 3}
        await session.execute(insert(CampaignMark), {**owner, **mark, "campaign_id": campaign})
        notice = encode_notices([ReplyCutNotice(reason="length")])
        await session.execute(update(Message).where(Message.id == here[2]).values(notices=notice))
        proposal_id = new_id()
        content = ProposalContent(
            operations=Operations(set={"notes": str(item)}), name="Marlena", replaces=fact
        )
        proposal = {
            "id": proposal_id,
            "campaign_id": campaign,
            "item_id": item,
            "kind": "entity",
            "reason": "uncertain",
            "audience": f" {item} ",
            "sealed_proposal": sealer.seal_bytes(
                PROPOSAL, proposal_id, msgspec.json.encode(content)
            ),
        }
        await session.execute(insert(CampaignProposal), {**owner, **proposal})
        source = {"proposal_id": proposal_id, "message_id": there[2], "chat_id": session_chat}
        await session.execute(insert(ProposalSource), source)


@pytest.mark.every_database
async def test_work_of_models_comes_back(
    database_url: str, sqlite_template: Path, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path / "one") as here, here.account("Ada") as ada:
        full = await fill_account(ada)
        await _add_work(here, ada, full)
        archive = await make_archive(ada)
    file = await asyncio.to_thread(shutil.copy, sqlite_template, tmp_path / "two.sqlite3")
    async with (
        running(f"sqlite+aiosqlite:///{file}", tmp_path / "two") as there,
        there.account("Bea") as bea,
    ):
        _, results = await bring(bea, archive)
        assert {each["outcome"] for each in results.values()} == {"imported"}
        again = await make_archive(bea)
        found = compare_archives(io.BytesIO(archive), io.BytesIO(again))
        assert [each.render() for each in found] == []
        [campaign] = (await bea.get("/campaigns"))["items"]
        [proposal] = (await bea.get(f"/campaigns/{campaign['id']}/proposals"))["items"]
        entities = await bea.get(f"/campaigns/{campaign['id']}/entities")
        assert proposal["target"]["id"] in {each["id"] for each in entities["items"]}
        [chat] = [
            each for each in (await bea.get("/chats"))["items"] if each["campaign_id"] is not None
        ]
        assert len(await bea.messages(chat["id"])) > 3
