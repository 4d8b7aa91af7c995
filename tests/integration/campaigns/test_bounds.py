"""What a campaign takes in, and gives out, at most."""

from __future__ import annotations

from typing import Any

import pytest

from backend.campaigns.state import situation_reader as reader
from tests.support.server import Account, problem

pytestmark = [pytest.mark.anyio]


@pytest.fixture
async def path(ada: Account) -> str:
    """A campaign's path."""
    made = await ada.post("/campaigns", {"name": "Seagate"}, 201)
    return f"/campaigns/{made['id']}"


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({f"n{number}": number for number in range(201)}, "length <= 200 - at `$.attributes`"),
        ({"inventory": ["coin"] * 201}, "length <= 200 - at `$.attributes[...]`"),
        ({"inventory": [{"in": [{"a": "box"}]}]}, "got `array` - at `$.attributes[...][0][...]`"),
        ({"gold": 10**16}, "<= 1000000000000000 - at `$.attributes[...]`"),
        ({"notes": "n" * 1_001}, "length <= 1000 - at `$.attributes[...]`"),
        ({f"n{number}": "n" * 900 for number in range(100)}, "64,000 are allowed"),
    ],
)
async def test_attributes_are_bounded(
    ada: Account, path: str, attributes: dict[str, Any], said: str
) -> None:
    body = {"kind": "npc", "name": "Holt"}
    holt = await ada.post(f"{path}/entities", body, 201)
    before = (await ada.get(path))["version"]
    for answer in (
        await ada.ask("POST", f"{path}/entities", json=body | {"attributes": attributes}),
        await ada.ask("PATCH", f"{path}/entities/{holt['id']}", json={"attributes": attributes}),
    ):
        assert said in problem(answer, 422, "validation-failed")["detail"]
    assert (await ada.get(path))["version"] == before


async def test_attributes_may_hold_things_with_members_of_their_own(
    ada: Account, path: str
) -> None:
    attributes = {"inventory": [{"name": "rope", "feet": 50}, "fork"], "luck": 0.5, "cursed": True}
    body = {"kind": "npc", "name": "Holt", "attributes": attributes}
    holt = await ada.post(f"{path}/entities", body, 201)
    assert holt["attributes"] == attributes


async def test_flags_are_bounded(ada: Account, path: str) -> None:
    flags = {f"flag {number}": True for number in range(201)}
    refused = problem(await ada.ask("PATCH", path, json={"flags": flags}), 422, "validation-failed")
    assert "length <= 200 - at `$.flags`" in refused["detail"]
    flags.popitem()
    assert (await ada.patch(path, {"flags": flags}))["flags"] == flags


async def test_the_state_shows_who_is_near_and_counts_the_others(
    ada: Account, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_ENTITIES", 4)

    async def add(**fields: Any) -> str:
        return str((await ada.post(f"{path}/entities", fields, 201))["id"])

    shop, hills = [await add(kind="location", name=name) for name in ("Shop", "Hills")]
    await add(kind="npc", name="Marlena", location_id=shop)
    holt = await add(kind="npc", name="Holt", location_id=hills)
    await add(kind="pc", name="Jake", location_id=shop)
    for name in ("Aldous", "Bettany"):
        await add(kind="npc", name=name, location_id=hills)
    await ada.patch(f"{path}/entities/{holt}", {"status": "asleep"})
    state = await ada.get(f"{path}/state")
    assert [one["name"] for one in state["entities"]] == ["Shop", "Marlena", "Holt", "Jake"]
    assert state["more"] == {"entities": 3, "threads": 0, "clocks": 0, "echoes": 0}
