"""The cached snapshot of a campaign always equals a new one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.records import get_campaign
from backend.campaigns.state import snapshot as name_cache
from backend.campaigns.state.situation_reader import SituationReader
from backend.campaigns.state.snapshot import CampaignSnapshot, SnapshotCache
from backend.core.audience import GM, PUBLIC
from backend.database.engine import DatabaseUnavailableError
from tests.integration.campaigns.seagate import Table, seagate
from tests.integration.turns.seeding import identity_of
from tests.support.server import Running

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


async def test_a_cached_campaign_follows_each_change(server: Running, table: Table) -> None:
    cache, town = SnapshotCache(), await seagate(table)
    await table.add("echoes", text="Somebody saw her.", audience="gm")
    thread = await table.add("threads", title="The Muffle")
    clock = await table.add("clocks", name="Watch", segments=4)
    scene = await table.add("scenes", title="Inside", location_id=town["shop"])
    about = {"from_id": town["jake"], "to_id": town["marlena"]}
    relation = await table.add("relations", **about, score=20, audience="gm")
    for who, text in (("jake", "Jake owes Holt."), ("marlena", "She hides."), ("holt", "He pays.")):
        await table.add("facts", about_id=town[who], text=text, audience="gm")
    await _compare(server, table, cache)
    later = await table.add("facts", about_id=town["jake"], text="Jake has paid Holt.")
    [owes] = [
        each for each in (await table.get("/facts"))["items"] if each["text"] == "Jake owes Holt."
    ]
    await table.change(f"/facts/{owes['id']}", superseded_by=later["id"])
    await _compare(server, table, cache)
    await table.change(f"/relations/{relation['id']}", score=60, audience="public")
    await table.change(f"/entities/{town['marlena']}", location_id=town["hills"])
    await table.change(f"/entities/{town['jake']}", attributes={"hp": 3})
    await table.change(f"/clocks/{clock['id']}", filled=2)
    await _compare(server, table, cache)
    await table.change(f"/threads/{thread['id']}", status="resolved")
    await table.change(f"/scenes/{scene['id']}", status="closed")
    await table.change("", day=6)
    await _compare(server, table, cache)
    await table.delete(f"/clocks/{clock['id']}")
    changes = (await table.get("/changes"))["items"]
    await table.ask("POST", f"/changes/{changes[0]['id']}/undo")
    await table.change(f"/entities/{town['jake']}", location_id=town["hills"])
    await _compare(server, table, cache)


async def test_a_large_campaign_is_not_cached(
    server: Running, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, town = SnapshotCache(), await seagate(table)
    for number in range(3):
        await table.add("threads", title=f"Thread {number}")
    monkeypatch.setattr(name_cache, "MAX_ITEMS_IN_VIEW", 2)
    monkeypatch.setattr(name_cache, "MAX_SURROUNDINGS_BYTES", 300)
    kept = await _compare(server, table, cache)
    assert kept.in_view is None
    assert kept.around is None
    await table.change(f"/entities/{town['jake']}", status="asleep")
    kept = await _compare(server, table, cache)
    assert kept.in_view is None
    assert kept.around is None


async def test_a_cached_campaign_is_dropped_at_sign_out(server: Running, table: Table) -> None:
    cache = SnapshotCache()
    await seagate(table)
    first = await _compare(server, table, cache)
    assert await _compare(server, table, cache) is first
    cache.user_signed_out(first.user_id)
    assert await _compare(server, table, cache) is not first


async def test_a_failed_read_keeps_the_cached_campaign(server: Running, table: Table) -> None:
    cache, town = SnapshotCache(), await seagate(table)
    before = await _compare(server, table, cache)
    await table.change(f"/entities/{town['jake']}", status="asleep")

    async def fail() -> None:
        raise ConnectionError

    with pytest.raises(DatabaseUnavailableError):
        await _read(server, table, cache, fail)
    assert await _read(server, table, cache) == [before.version]


async def test_concurrent_turns_read_only_changes(server: Running, table: Table) -> None:
    cache, town = SnapshotCache(), await seagate(table)
    before = await _compare(server, table, cache)
    await table.change(f"/entities/{town['jake']}", status="asleep")
    seen: list[int] = []

    async def read_too() -> None:
        seen.extend(await _read(server, table, cache))

    assert await _read(server, table, cache, read_too) == [before.version]
    assert seen == [before.version]


async def test_an_earlier_state_does_not_replace_a_later_one(server: Running, table: Table) -> None:
    cache, town = SnapshotCache(), await seagate(table)
    before = await _compare(server, table, cache)
    identity = await identity_of(server, table.account)
    async with server.parts.database.read() as session:
        campaign = await get_campaign(session, identity, UUID(table.campaign["id"]))
        await table.change(f"/entities/{town['jake']}", status="asleep")
        assert await _read(server, table, cache) == [before.version]
        late = await cache.load(session, identity.sealer, campaign)
    assert late.version == before.version
    assert await _read(server, table, cache) == []


async def test_a_sign_out_during_a_read_caches_nothing(server: Running, table: Table) -> None:
    cache, identity = SnapshotCache(), await identity_of(server, table.account)
    await seagate(table)

    async def sign_out() -> None:
        cache.user_signed_out(identity.user_id)

    assert await _read(server, table, cache, sign_out) == [-1]
    assert await _read(server, table, cache) == [-1]


async def _nothing() -> None:
    pass


class _Noting:
    """A session that calls a function before it reads, and records the versions that it reads."""

    def __init__(self, session: AsyncSession, before: Callable[[], Awaitable[None]]) -> None:
        self._session, self._before = session, before
        self.versions: list[int] = []

    async def execute(self, statement: Any, values: dict[str, Any]) -> Any:
        self.versions.append(values["version"])
        await self._before()
        return await self._session.execute(statement, values)


async def _read(
    server: Running,
    table: Table,
    cache: SnapshotCache,
    before: Callable[[], Awaitable[None]] = _nothing,
) -> list[int]:
    """Read names through a cache; return the versions that the queries started from."""
    identity = await identity_of(server, table.account)
    async with server.parts.database.read() as session:
        campaign = await get_campaign(session, identity, UUID(table.campaign["id"]))
        noting = _Noting(session, before)
        await cache.load(cast("AsyncSession", noting), identity.sealer, campaign)
    return noting.versions


async def _compare(server: Running, table: Table, cache: SnapshotCache) -> CampaignSnapshot:
    """Raise unless the cached snapshot equals a new one for every viewpoint; return it."""
    identity = await identity_of(server, table.account)
    async with server.parts.database.read() as session:
        campaign = await get_campaign(session, identity, UUID(table.campaign["id"]))
        kept = await cache.load(session, identity.sealer, campaign)
        read = await CampaignSnapshot(identity.user_id).update(session, identity.sealer, campaign)
        assert kept.past >= read.past
        read.in_view = read.around = None
        for viewpoint in (GM, PUBLIC):
            reader = SituationReader(session, identity.sealer, campaign, viewpoint)
            one, other = [
                await reader.add_facts(
                    names,
                    await reader.load_situation(
                        names, line="Where is Holt?", recent=["Marlena nods."]
                    ),
                    form="full",
                )
                for names in (kept, read)
            ]
            assert one == other
    return kept
