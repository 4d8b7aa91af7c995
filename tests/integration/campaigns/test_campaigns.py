"""Campaigns over HTTP: items, the change log, versions, limits, and the chats of a campaign."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from backend.campaigns.state import situation_reader as reader
from tests.integration.campaigns.seagate import Table, seagate
from tests.support.server import Account, ok, problem

pytestmark = pytest.mark.anyio


async def test_a_campaign_is_created_read_changed_and_deleted(ada: Account, table: Table) -> None:
    view = await table.get()
    assert (view["name"], view["day"], view["rules"]) == ("Seagate", 5, "freeform")
    changed = await table.change("", day=6, settings={"memory_interval": 6})
    assert (changed["day"], changed["settings"]["memory_interval"]) == (6, 6)
    assert changed["settings"]["compaction_interval"] == 5
    assert changed["version"] == view["version"] + 1
    stale = {"If-Match": f'"{view["version"]}"'}
    problem(await table.ask("PATCH", "", json={"day": 7}, headers=stale), 412, "revision-mismatch")
    problem(await table.ask("PATCH", "", json={"rules": "chess"}), 422, "validation-failed")
    problem(await table.ask("PATCH", "", json={"weather": "rain"}), 422, "validation-failed")
    await table.delete()
    problem(await table.ask("GET", ""), 404, "campaign-not-found")
    assert (await ada.get("/campaigns"))["items"] == []


async def test_rule_systems_are_listed_and_chosen(ada: Account) -> None:
    listed = (await ada.get("/campaigns/rules"))["items"]
    names = [each["name"] for each in listed]
    assert "freeform" in names
    assert names == sorted(names)
    for each in listed:
        made = {"name": "A campaign", "rules": each["name"]}
        await ada.post("/campaigns", made, 201)


async def test_items_are_listed_by_kind_place_status_and_text(table: Table) -> None:
    ids = await seagate(table)
    people = await table.get("/entities", kind="npc")
    assert [one["name"] for one in people["items"]] == ["Marlena", "Inspector Holt"]
    here = await table.get("/entities", at=ids["shop"])
    assert {one["name"] for one in here["items"]} == {"Marlena", "Jake"}
    assert [one["name"] for one in (await table.get("/entities", q="holt"))["items"]] == [
        "Inspector Holt"
    ]
    assert (await table.get("/entities", status="dead"))["items"] == []
    first = await table.get("/entities", limit=2)
    rest = await table.get("/entities", limit=10, after=first["next"])
    assert len(first["items"]) + len(rest["items"]) == 5


async def test_invalid_items_are_refused(table: Table) -> None:
    ids = await seagate(table)
    before = await table.get()
    for kind, body in [
        ("entities", {"kind": "npc", "name": ""}),
        ("entities", {"kind": "wizard", "name": "Jake"}),
        ("entities", {"kind": "npc", "name": "Bob", "location_id": str(uuid4())}),
        ("entities", {"kind": "pc", "name": "Bob", "attributes": {"hp": "much"}}),
        ("clocks", {"name": "Tide", "segments": 5}),
        ("relations", {"from_id": ids["jake"]}),
        ("facts", {"text": "x", "audience": "nobody"}),
    ]:
        answer = await table.ask("POST", f"/{kind}", json=body)
        problem(answer, 422, "validation-failed")
    problem(await table.ask("GET", f"/threads/{ids['jake']}"), 404, "campaign-item-not-found")
    assert (await table.get())["version"] == before["version"]


async def test_each_change_is_logged_and_can_be_undone(table: Table) -> None:
    ids = await seagate(table)
    path = f"/entities/{ids['jake']}"
    await table.change(path, attributes={"hp": 9, "inventory": ["fork", "cloak"]})
    await table.change(path, status="wounded")
    ledger = (await table.get("/changes"))["items"]
    assert [line["target"]["name"] for line in ledger[:2]] == ["Jake", "Jake"]
    assert ledger[1]["set"] == {"attributes.hp": 9}
    assert ledger[1]["add"] == {"attributes.inventory": ["cloak"]}
    assert (ledger[1]["actor"], ledger[1]["counts"]) == ("user", True)
    undone = ok(await table.ask("POST", f"/changes/{ledger[1]['id']}/undo"))
    assert not undone["counts"]
    jake = await table.get(path)
    assert (jake["attributes"]["hp"], jake["attributes"]["inventory"]) == (13, ["fork"])
    assert jake["status"] == "wounded"
    problem(await table.ask("POST", f"/changes/{uuid4()}/undo"), 404, "campaign-change-not-found")


async def test_undoing_a_deletion_restores_the_item(table: Table) -> None:
    ids = await seagate(table)
    await table.delete(f"/entities/{ids['holt']}")
    problem(await table.ask("GET", f"/entities/{ids['holt']}"), 404, "campaign-item-not-found")
    newest = (await table.get("/changes", limit=1))["items"][0]
    ok(await table.ask("POST", f"/changes/{newest['id']}/undo"))
    assert (await table.get(f"/entities/{ids['holt']}"))["aliases"] == ["Holt"]


async def test_a_version_is_compared_and_restored(table: Table) -> None:
    ids = await seagate(table)
    then = (await table.get())["version"]
    await table.change(f"/entities/{ids['jake']}", location_id=ids["hills"])
    await table.add("clocks", name="The tide", segments=4, filled=1)
    await table.delete(f"/entities/{ids['holt']}")
    compared = await table.get("/comparison", version=then)
    by_name = {each["target"]["name"]: each for each in compared["differences"]}
    assert by_name["Jake"]["then"]["location_id"] == ids["shop"]
    assert by_name["The tide"]["then"] is None
    assert by_name["Inspector Holt"]["now"] is None
    restored = ok(await table.ask("POST", "/restore", json={"version": then}))
    assert restored["version"] > compared["current"]
    assert (await table.get("/comparison", version=then))["differences"] == []
    assert (await table.get("/clocks"))["items"] == []
    assert (await table.get(f"/entities/{ids['jake']}"))["location_id"] == ids["shop"]
    problem(await table.ask("GET", "/comparison?version=9999"), 404, "campaign-version-not-found")


async def test_both_forms_of_the_state_block_describe_the_scene(table: Table) -> None:
    ids = await seagate(table)
    for name in ("Aldous", "Bettany", "Corwin", "Delphine", "Emeric", "Gareth"):
        await table.add("entities", kind="npc", name=name, location_id=ids["shop"])
    await table.add("threads", kind="quest", title="The Fading Muffle", tension="urgent",
                    summary="It fades.", next_step="Go in")  # fmt: skip
    context = await table.get("/context", text="continue")
    assert (context["form"], context["why"]) == ("full", "first message of the chat")
    full = context["full"]
    assert full.startswith("## SESSION CONTEXT: Seagate\n")
    assert "SEAGATE" in full
    assert "**Day 5** - morning" in full
    assert "**Marlena** [active] - intimate-ally" in full
    assert "*Voice: Speaks in a slow drawl*" in full
    assert "Also here: Emeric, Gareth" in full
    assert "[URGENT]" in full
    assert "→ Next: Go in" in full
    assert "Holt" not in full
    assert (
        context["light"] == "[Day 5 | Jake HP 13/13 | at the-salty-sigil | with Marlena, Aldous +5]"
    )
    assert context["tokens"]["light"] < 40
    first = await table.get("/context", text="I look at Emeric")
    assert first["light"].endswith("with Emeric, Marlena +5]")


async def test_a_chat_joins_a_campaign_and_leaves_it(ada: Account, table: Table) -> None:
    chat = await ada.new_chat(campaign_id=table.campaign["id"])
    assert chat["campaign_id"] == table.campaign["id"]
    assert (await table.get())["chat_ids"] == [chat["id"]]
    left = await ada.patch(f"/chats/{chat['id']}", {"campaign_id": None})
    assert left["campaign_id"] is None
    answer = await ada.ask("PATCH", f"/chats/{chat['id']}", json={"campaign_id": str(uuid4())})
    problem(answer, 404, "campaign-not-found")
    await table.delete()
    await ada.get(f"/chats/{chat['id']}")


@pytest.fixture
async def path(ada: Account) -> str:
    """The path of a campaign."""
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
async def test_attributes_have_limits(
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


async def test_attributes_can_contain_objects(ada: Account, path: str) -> None:
    attributes = {"inventory": [{"name": "rope", "feet": 50}, "fork"], "luck": 0.5, "cursed": True}
    body = {"kind": "npc", "name": "Holt", "attributes": attributes}
    holt = await ada.post(f"{path}/entities", body, 201)
    assert holt["attributes"] == attributes


async def test_flags_have_a_maximum(ada: Account, path: str) -> None:
    flags = {f"flag {number}": True for number in range(201)}
    refused = problem(await ada.ask("PATCH", path, json={"flags": flags}), 422, "validation-failed")
    assert "length <= 200 - at `$.flags`" in refused["detail"]
    flags.popitem()
    assert (await ada.patch(path, {"flags": flags}))["flags"] == flags


async def test_the_state_shows_near_entities_and_counts_the_others(
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


async def test_a_campaign_has_a_chronicle_that_outlives_it(ada: Account) -> None:
    campaign = await ada.post("/campaigns", {"name": "Seagate", "day": 5}, 201)
    path_of_it = f"/campaigns/{campaign['id']}"
    [chronicle] = (await ada.get("/chronicles"))["items"]
    assert chronicle["name"] == "Seagate"
    path = f"/chronicles/{chronicle['id']}/events"
    for day, summary in [(4, "The token was found"), (5, "Gareth was rescued")]:
        event = {"summary": summary, "day": day, "happened_at": "2026-01-01T00:00:00Z"}
        await ada.post(path, event, 201)
    chat = await ada.new_chat(campaign_id=campaign["id"])
    taken = await ada.get(f"/chats/{chat['id']}/settings")
    assert taken["chronicle_id"] == chronicle["id"]
    full = (await ada.get(f"{path_of_it}/context"))["full"]
    assert "### Today\n- Gareth was rescued" in full
    assert "The token was found" not in full
    await ada.delete(path_of_it)
    await ada.get(f"/chronicles/{chronicle['id']}")
