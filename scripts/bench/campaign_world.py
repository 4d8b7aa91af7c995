"""A large campaign made of random people, places and facts, and the chat that it belongs to."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import select

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import CampaignSettings, NewCampaign
from backend.campaigns.api.service import make_campaign
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, Operations, build_creation
from backend.campaigns.ledger.items import Clock, Entity, Fact, Relation, Scene, Thread
from backend.campaigns.ledger.records import get_campaign
from backend.chats.models import Chat, Message
from backend.database.base import new_id, split_chunks
from backend.database.engine import Database
from scripts.bench.application import make_chat
from scripts.bench.data import Lines

CHANGES_PER_VERSION = 1_000

_WORDS = re.findall(r"\w+", "the old harbour lamp was sold by her brother after rain for silver")
_PLACE_COUNT = 50
_PLAYER_COUNT = 4
_RELATION_COUNT, _THREAD_COUNT, _CLOCK_COUNT = 200, 20, 10


@dataclass(frozen=True, kw_only=True)
class CampaignSizes:
    """Numbers of items. `changes` counts the whole ledger, with the changes that create items."""

    entities: int = 2_000
    facts: int = 10_000
    changes: int = 20_000
    messages: int = 5_000


@dataclass(frozen=True, kw_only=True)
class CampaignWorld:
    """A campaign, its chat and people, and a plain chat with the same messages."""

    campaign_id: UUID
    chat_id: UUID
    plain_id: UUID
    people: Sequence[UUID]
    names: Sequence[str]


def make_names(count: int) -> list[str]:
    """Return different names of two words, the same in each run."""
    draw, found = random.Random(30), dict[str, None]()
    ends = ("an", "ela", "o", "ith", "mar", "us", "ine", "ok")
    while len(found) < count:
        first, last = ("".join(draw.choices("bdfgklmnprstvz", k=1)) for _ in range(2))
        first += draw.choice("aeiou") + draw.choice("lmnrst") + draw.choice(ends)
        last += draw.choice("aeiou") + draw.choice("bdgknrt") + draw.choice("aeo")
        found[f"{first} {last}{draw.choice(ends)}".title()] = None
    return list(found)


async def make_world(
    database: Database, identity: Identity, lines: Lines, sizes: CampaignSizes
) -> CampaignWorld:
    """Make a campaign. Half of its later changes belong to replies, the others are the user's."""
    draw = random.Random(31)
    chat_id = await make_chat(database, identity, lines, sizes.messages)
    plain_id = await make_chat(database, identity, lines, sizes.messages)
    names = make_names(sizes.entities)
    ids = [new_id() for _ in names]
    places, people = ids[:_PLACE_COUNT], ids[_PLACE_COUNT:]
    made = [
        Change(
            "entity",
            each,
            build_creation(Entity(kind="location", name=name, description=_make_text(draw))),
        )
        for each, name in zip(places, names, strict=False)
    ]
    for number, (each, name) in enumerate(zip(people, names[_PLACE_COUNT:], strict=True)):
        entity = Entity(
            kind="pc" if number < _PLAYER_COUNT else "npc",
            name=name,
            role="sailor",
            description=_make_text(draw),
            disposition=draw.choice(("ally", "wary", "enemy")),
            voice=["slow and low"],
            location_id=places[0] if number < _PLAYER_COUNT else draw.choice(places),
            attributes={"hp": 13, "hp_max": 13, "gold": 15} if number < _PLAYER_COUNT else {},
        )
        made.append(Change("entity", each, build_creation(entity)))
    facts = [Fact(text=_make_text(draw), about_id=draw.choice(ids)) for _ in range(sizes.facts)]
    made += [Change("fact", new_id(), build_creation(fact)) for fact in facts]
    for number in range(_RELATION_COUNT):
        one, other = draw.sample(people, 2)
        if number < _PLAYER_COUNT:
            one = people[number]
        relation = Relation(from_id=one, to_id=other, score=draw.randint(-100, 100))
        made.append(Change("relation", new_id(), build_creation(relation)))
    threads = [Thread(title=f"Thread {n}", summary=_make_text(draw)) for n in range(_THREAD_COUNT)]
    made += [Change("thread", new_id(), build_creation(thread)) for thread in threads]
    clocks = [Clock(name=f"Clock {n}", filled=n % 6) for n in range(_CLOCK_COUNT)]
    made += [Change("clock", new_id(), build_creation(clock)) for clock in clocks]
    made.append(
        Change("scene", new_id(), build_creation(Scene(title="Here", location_id=places[0])))
    )

    async with database.write() as session:
        campaign = await make_campaign(
            session, identity, NewCampaign(name="Bench", settings=CampaignSettings(summaries=False))
        )
        chat = await session.get_one(Chat, chat_id)
        chat.campaign_id = campaign.id
    for part in split_chunks(made, CHANGES_PER_VERSION):
        await write_changes(database, identity, campaign.id, part)
    later = sizes.changes - len(made) - 1
    moved = [_make_change(draw, people, number) for number in range(max(0, later))]
    await write_changes(database, identity, campaign.id, moved[: len(moved) // 2])
    await _write_to_replies(database, identity, campaign.id, chat_id, moved[len(moved) // 2 :])
    return CampaignWorld(
        campaign_id=campaign.id, chat_id=chat_id, plain_id=plain_id, people=people, names=names
    )


async def write_changes(
    database: Database,
    identity: Identity,
    campaign_id: UUID,
    changes: Sequence[Change],
    *,
    message: Message | None = None,
) -> int:
    """Write changes as one version, for a message if there is one; return the version."""
    async with database.write() as session:
        campaign = await get_campaign(session, identity, campaign_id, lock=True)
        await ledger_store.append_changes(
            session,
            identity.sealer,
            campaign,
            changes,
            actor="compactor" if message else "user",
            message=message,
        )
        return campaign.version


async def _write_to_replies(
    database: Database,
    identity: Identity,
    campaign_id: UUID,
    chat_id: UUID,
    changes: Sequence[Change],
) -> None:
    """Spread changes over the replies of a chat, 200 versions in a transaction."""
    async with database.read() as session:
        query = select(Message).where(Message.chat_id == chat_id, Message.role == "assistant")
        replies = (await session.scalars(query.order_by(Message.position))).all()
    each = -(-len(changes) // len(replies)) or 1
    groups = list(zip(replies, split_chunks(changes, each), strict=False))
    for part in split_chunks(groups, 200):
        async with database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            for message, some in part:
                await ledger_store.append_changes(
                    session, identity.sealer, campaign, some, actor="compactor", message=message
                )


def _make_change(draw: random.Random, people: Sequence[UUID], number: int) -> Change:
    """Return a change of a random person."""
    operations = draw.choice(
        [
            Operations(set={"status": f"seen {number} times"}),
            Operations(set={"disposition": draw.choice(("ally", "wary", "enemy"))}),
            Operations(add={"aliases": [f"Number {number}"]}),
            Operations(set={"attributes.gold": number}),
        ]
    )
    return Change("entity", draw.choice(people), operations)


def _make_text(draw: random.Random) -> str:
    """Return a sentence of 15 words."""
    return " ".join(draw.choices(_WORDS, k=15)).capitalize() + "."
