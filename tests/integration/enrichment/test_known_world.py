"""What a compaction knows of a campaign: the latest of it, kept up to date by what changes."""

from __future__ import annotations

from uuid import UUID

import pytest

from backend.campaigns.ledger.records import get_campaign
from backend.campaigns.state.snapshot import SnapshotCache
from backend.enrichment.compaction import reader as module
from backend.enrichment.compaction.reader import KnownWorld, read_world, refresh_world
from tests.integration.campaigns.conftest import table
from tests.integration.campaigns.seagate import Table, seagate
from tests.integration.turns.seeding import identity_of
from tests.support.server import Running
from tests.support.shared import server, shared_url

__all__ = ["server", "shared_url", "table"]

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


async def read(
    server: Running, table: Table, *lines: str, since: KnownWorld | None = None
) -> KnownWorld:
    """Read what everyone may know; from `since` on if there is one."""
    identity = await identity_of(server, table.account)
    async with server.parts.database.read() as session:
        campaign = await get_campaign(session, identity, UUID(table.campaign["id"]))
        place = session, identity.sealer, campaign
        if since is not None:
            return await refresh_world(*place, since, audience="public")
        return await read_world(*place, SnapshotCache(), lines, audience="public")


async def test_a_world_that_is_refreshed_is_the_one_that_is_read(
    server: Running, table: Table
) -> None:
    town = await seagate(table)
    thread = await table.add("threads", title="The Muffle")
    clock = await table.add("clocks", name="Watch", segments=4)
    scene = await table.add("scenes", title="Inside", location_id=town["shop"])
    fact = await table.add("facts", text="The gate is shut.")
    before = await read(server, table)
    later = await table.add("facts", text="The gate is open.")
    await table.change(f"/facts/{fact['id']}", superseded_by=later["id"])
    await table.change(f"/entities/{town['jake']}", status="asleep")
    await table.change(f"/entities/{town['holt']}", audience="gm")
    await table.change(f"/scenes/{scene['id']}", status="closed")
    await table.change("", day=6)
    await table.delete(f"/clocks/{clock['id']}")
    await table.add("entities", kind="npc", name="Odd")

    after = await read(server, table, since=before)

    assert after == await read(server, table)
    assert UUID(thread["id"]) in after.items
    gone = {UUID(each) for each in (town["holt"], clock["id"], scene["id"], fact["id"])}
    assert gone <= before.items.keys()
    assert not gone & after.items.keys()


async def test_a_world_that_is_refreshed_is_not_read_again(server: Running, table: Table) -> None:
    town = await seagate(table)
    before = await read(server, table)
    await table.change(f"/entities/{town['jake']}", status="asleep")
    after = await read(server, table, since=before)
    changed = {one for one, held in after.items.items() if before.items[one] is not held}
    assert changed == {UUID(town["jake"])}


async def test_of_a_large_campaign_what_changed_last_is_known_and_who_is_named(
    server: Running, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = await seagate(table)
    for number in range(5):
        await table.add("entities", kind="npc", name=f"Guard {number}")
    monkeypatch.setattr(module, "MAX_KNOWN", 4)
    names = {state["name"] for state in (await read(server, table)).entities.values()}
    assert names == {"Jake", "Guard 3", "Guard 4"}
    known = await read(server, table, "Marlena nods.")
    assert UUID(town["marlena"]) in known.entities
    assert len(known.items) == 5
