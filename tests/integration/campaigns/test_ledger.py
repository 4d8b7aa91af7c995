"""The stored state of a campaign compared with a fold of its changes, on random paths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from backend.campaigns.api.schemas import NewCampaign
from backend.campaigns.api.service import CampaignService
from backend.campaigns.ledger import paths as ledger_paths
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.change_log import ChangeLogService
from backend.campaigns.ledger.changes import (
    DELETION,
    EXISTS,
    Change,
    Operations,
    build_creation,
    fold,
)
from backend.campaigns.ledger.items import Clock, Entity
from backend.campaigns.ledger.records import get_campaign, open_reading
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import CampaignChange, CampaignItem
from backend.chats.models import Chat, Message
from backend.database.base import new_id
from backend.database.engine import Database
from tests.integration.chats.trees import Grove, sign_up
from tests.support.thorough import rounds

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

EXAMPLES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "tool",
                "tool",
                "tool",
                "hand",
                "append",
                "regenerate",
                "branch",
                "activate",
                "delete",
                "fork",
                "undo",
                "restore",
            ]
        ),
        st.integers(0, 1),
        st.integers(0, 1_000),
        st.booleans(),
    ),
    min_size=4,
    max_size=20,
)


@dataclass
class Line:
    """A change in the reference model. `told_by` contains its message and the copies of it."""

    id: UUID
    item: UUID
    operations: Operations
    version: int
    told_by: list[UUID] | None = None
    undone: bool = False


@dataclass
class World:
    """A campaign with its chats, and its ledger as a simple list."""

    database: Database
    groves: list[Grove]
    campaign_id: UUID
    lines: list[Line] = field(default_factory=list[Line])
    items: dict[UUID, str] = field(default_factory=dict[UUID, str])

    @property
    def identity(self) -> Any:
        return self.groves[0].identity

    def told(self) -> set[UUID]:
        """Return the messages on the active path of any chat."""
        return {key for grove in self.groves for key in grove.expected.path(grove.expected.leaf)}

    def counting(self, *, through: int | None = None) -> list[Line]:
        told = self.told()
        return [
            line
            for line in self.lines
            if not line.undone
            and (line.told_by is None or told & set(line.told_by))
            and (through is None or line.version <= through)
        ]

    async def write(self, item: UUID, kind: str, change: Operations, message: UUID | None) -> None:
        async with self.database.write() as session:
            campaign = await get_campaign(session, self.identity, self.campaign_id, lock=True)
            row = await session.get_one(Message, message) if message else None
            (change_id,) = await ledger_store.append_changes(
                session,
                self.identity.sealer,
                campaign,
                [Change(kind, item, change)],  # type: ignore[arg-type]
                actor="tool" if message else "user",
                message=row,
            )
            version = campaign.version
        self.items[item] = kind
        told_by = [message] if message else None
        self.lines.append(Line(change_id, item, change, version, told_by))

    async def check(self) -> None:
        async with self.database.read() as session:
            rows = {row.id: row for row in await session.scalars(select(CampaignItem))}
            query = select(CampaignChange.id, CampaignChange.is_on_path, CampaignChange.is_undone)
            stored = {row.id: row for row in await session.execute(query)}
        counting = self.counting()
        told = self.told()
        for line in self.lines:
            on_path = line.told_by is None or bool(told & set(line.told_by))
            assert (stored[line.id].is_on_path, stored[line.id].is_undone) == (on_path, line.undone)
        for item, kind in self.items.items():
            row = rows[item]
            state = read_state(self.identity.sealer, item, row.sealed_state)
            own = [line.operations for line in counting if line.item == item]
            assert state == fold(kind, own)  # type: ignore[arg-type]
            assert row.exists == (state.get(EXISTS) is True)


async def made(database: Database) -> World:
    identity = await sign_up(database)
    service = CampaignService(database)
    view = await service.create(identity, NewCampaign(name="Seagate"))
    groves: list[Grove] = []
    for _ in range(2):
        grove = Grove(database, identity)
        await grove.plant("The door creaks open.")
        async with database.write() as session:
            await session.execute(
                update(Chat).where(Chat.id == grove.chat_id).values(campaign_id=view.id)
            )
        groves.append(grove)
    return World(database, groves, view.id)


def operations(kind: str, place: int, *, flag: bool) -> Operations:
    """Return a change for an item of this kind."""
    if kind == "clock":
        return Operations(add={"filled": place % 3}) if flag else Operations(remove={"filled": 1})
    changes = [
        Operations(set={"status": f"status {place}"}),
        Operations(add={"attributes.inventory": [f"thing {place % 4}"]}),
        Operations(remove={"attributes.inventory": [f"thing {place % 4}"]}),
        Operations(remove={"attributes.hp": place % 5}),
        Operations(add={"aliases": [f"Jake {place % 3}"], "attributes.hp": 2}),
        DELETION,
    ]
    return changes[place % len(changes)]


async def take(world: World, name: str, which: int, place: int, *, flag: bool) -> None:  # noqa: C901
    grove = world.groves[which % len(world.groves)]
    nodes = list(grove.expected.nodes)
    if name in {"tool", "hand"}:
        path = grove.expected.path(grove.expected.leaf)
        message = path[-1] if name == "tool" and path else None
        if place % 3 == 0 or not world.items:
            new = (
                Clock(name="Tide", segments=8)
                if flag
                else Entity(kind="pc", name="Jake", attributes={"hp": 9, "hp_max": 13})
            )
            kind = "clock" if flag else "entity"
            await world.write(new_id(), kind, build_creation(new), message)
        else:
            item = list(world.items)[place % len(world.items)]
            kind = world.items[item]
            await world.write(item, kind, operations(kind, place, flag=flag), message)
    elif name == "undo" and world.lines:
        line = world.lines[place % len(world.lines)]
        await ChangeLogService(world.database).undo(world.identity, world.campaign_id, line.id)
        line.undone = True
    elif name == "restore" and world.lines:
        await restore(world, world.lines[place % len(world.lines)].version)
    elif not nodes or name == "append":
        await grove.append(f"Line {place}.")
    elif name == "regenerate":
        await grove.regenerate(nodes[place % len(nodes)], f"Again {place}.")
    elif name == "branch":
        await grove.attach(f"Else {place}.", parent=nodes[place % len(nodes)])
    elif name == "activate":
        await grove.activate(nodes[place % len(nodes)], follow=flag)
    elif name == "delete":
        await grove.delete(nodes[place % len(nodes)])
    elif name == "fork" and len(world.groves) < 4:
        await fork(world, grove, nodes[place % len(nodes)])


async def fork(world: World, grove: Grove, key: UUID) -> None:
    copy = await grove.fork(key)
    world.groves.append(copy)
    copies = dict(
        zip(grove.expected.path(key), copy.expected.path(copy.expected.leaf), strict=True)
    )
    for line in world.lines:
        if line.told_by is not None:
            line.told_by += [copies[each] for each in line.told_by if each in copies]


async def restore(world: World, version: int) -> None:
    """Restore a version; compare the state and add its changes to the model."""
    then = {
        item: fold(kind, [x.operations for x in world.counting(through=version) if x.item == item])  # type: ignore[arg-type]
        for item, kind in world.items.items()
    }
    await ChangeLogService(world.database).restore(world.identity, world.campaign_id, version)
    known = {line.id for line in world.lines}
    async with world.database.read() as session:
        query = select(CampaignChange).where(CampaignChange.campaign_id == world.campaign_id)
        for row in await session.scalars(query.order_by(CampaignChange.seq)):
            if row.id not in known and row.item_id in world.items:
                change = ledger_store.read_operations(
                    world.identity.sealer, row.id, row.sealed_operations
                )
                world.lines.append(Line(row.id, row.item_id, change, row.version))
        for item in await session.scalars(select(CampaignItem)):
            if item.id in then:
                sealer = world.identity.sealer
                state = read_state(sealer, item.id, item.sealed_state)
                assert state == then[item.id] or not (item.exists or then[item.id].get(EXISTS))


async def play(database: Database, steps: list[tuple[str, int, int, bool]]) -> None:
    world = await made(database)
    for name, which, place, flag in steps:
        await take(world, name, which, place, flag=flag)
        await world.check()


@settings(EXAMPLES, max_examples=rounds(10, 60))
@given(STEPS)
async def test_the_state_equals_a_fold_of_all_changes(
    sqlite: Database, steps: list[tuple[str, int, int, bool]]
) -> None:
    await play(sqlite, steps)


@pytest.mark.postgres
@settings(EXAMPLES, max_examples=rounds(3, 20))
@given(STEPS)
async def test_the_state_equals_a_fold_on_postgresql(
    postgres: Database, steps: list[tuple[str, int, int, bool]]
) -> None:
    await play(postgres, steps)


async def test_changes_come_back_with_their_swipe(database: Database) -> None:
    world = await made(database)
    grove = world.groves[0]
    reply = await grove.append("The clock ticks.")
    clock = new_id()
    await world.write(clock, "clock", build_creation(Clock(name="Tide", filled=1)), reply)
    await grove.regenerate(reply, "Nothing ticks.")
    await world.check()
    async with database.read() as session:
        assert not (await session.get_one(CampaignItem, clock)).exists
    await grove.activate(reply, follow=True)
    await world.check()
    async with database.read() as session:
        assert (await session.get_one(CampaignItem, clock)).exists


async def test_a_path_that_moved_without_a_key_is_followed_later(database: Database) -> None:
    world = await made(database)
    grove = world.groves[0]
    reply = await grove.append("The clock ticks.")
    clock = new_id()
    await world.write(clock, "clock", build_creation(Clock(name="Tide", filled=1)), reply)
    async with database.write() as session:
        campaign = await get_campaign(session, world.identity, world.campaign_id, lock=True)
        await session.execute(update(Message).where(Message.id == reply).values(is_active=False))
        await ledger_paths.follow_path(session, None, campaign, grove.chat_id, above=0)
        assert campaign.is_stale
    async with open_reading(database, world.identity, world.campaign_id) as (session, campaign):
        item = await session.get_one(CampaignItem, clock)
        assert (campaign.is_stale, item.exists, item.is_stale) == (False, False, False)
