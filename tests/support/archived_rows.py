"""Rows of an archive that have no route to write them: work of models, and imported parts."""

from __future__ import annotations

from uuid import UUID

import msgspec
from sqlalchemy import insert, select, update

from backend.campaigns.ledger.changes import Operations
from backend.campaigns.models import PROPOSAL, CampaignMark, CampaignProposal, ProposalSource
from backend.campaigns.proposals.authority import ProposalContent
from backend.chats.files import FileName, insert_files, seal_file, seal_reference
from backend.chats.models import MESSAGE_SOURCE, Message, ReplyCutNotice, encode_notices
from backend.database.base import new_id
from backend.enrichment.models import EnrichmentMark
from backend.lorebooks.authoring import EntryOrigin, add_entry, chronicle_book
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.models import LoreEntryRow
from tests.support.archives import find_identity
from tests.support.full_account import FullAccount
from tests.support.server import Account, Running


async def add_work(server: Running, account: Account, full: FullAccount) -> None:
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


async def add_file_and_source(server: Running, account: Account, message: str) -> None:
    """Add a picture, a file without content, and members of an imported line to a message."""
    identity = await find_identity(server, account)
    sealer, message_id = identity.sealer, UUID(message)
    picture = seal_file(sealer, b"GIF89a of a cat", media_type="image/gif")
    names = FileName(name="cat.gif", path="user/images/cat.gif"), FileName(name="", path="x.mp3")
    references = [
        seal_reference(sealer, message_id, names[0], place=0, digest=picture.digest),
        seal_reference(sealer, message_id, names[1], place=1, digest=None),
    ]
    source = sealer.seal(MESSAGE_SOURCE, message_id, '{"extra":{"api":"other"}}')
    async with server.parts.database.write() as session:
        await insert_files(session, identity.user_id, [picture], references)
        await session.execute(
            update(Message).where(Message.id == message_id).values(sealed_source=source)
        )
