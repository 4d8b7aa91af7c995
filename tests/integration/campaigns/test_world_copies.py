"""Forks of a chat with a copy of its campaign as it was at a message."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.campaigns.seagate import Table, seagate
from tests.support.memory import preview, remembering, search, set_chat, settled, take_turn
from tests.support.server import Account, Running, ok, problem

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

KINDS = (
    "entities", "relations", "threads", "clocks", "facts", "scenes", "chapters", "echoes",
    "glossary",
)  # fmt: skip


@pytest.fixture
async def server(
    database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    async with remembering(database_url, tmp_path_factory.mktemp("data")) as server:
        yield server


async def read_world(table: Table) -> dict[str, Any]:
    """Return a campaign and its items by id."""
    items = {
        kind: {each["id"]: each for each in (await table.get(f"/{kind}", limit=100))["items"]}
        for kind in KINDS
    }
    return {**items, "campaign": await table.get()}


def list_items(world: dict[str, Any], ids: dict[str, str]) -> list[str]:
    """Return the items of a world with names instead of ids, without versions and times."""
    text = json.dumps([list(world[kind].values()) for kind in KINDS])
    for entity_id, name in ids.items():
        text = text.replace(entity_id, f"<{name}>")
    found: list[str] = []
    for item in (each for kind in json.loads(text) for each in kind):
        told = {k: v for k, v in item.items() if k not in {"revision", "created_at", "updated_at"}}
        found.append(json.dumps(told, sort_keys=True))
    return sorted(found)


def list_names(world: dict[str, Any]) -> dict[str, str]:
    return {
        each["id"]: str(each.get("name") or each.get("title") or each.get("text") or "it")
        for kind in KINDS
        for each in world[kind].values()
    }


async def fork(account: Account, chat: str, message_id: str, **body: Any) -> dict[str, Any]:
    path, body = f"/chats/{chat}/fork", {"message_id": message_id, **body}
    return await account.post(path, body, 201)


async def read_settings(account: Account, chat: str) -> dict[str, Any]:
    return await account.get(f"/chats/{chat}/settings")


@dataclass
class Evening:
    """A chat of three rounds, and the world at its second and third reply."""

    table: Table
    ids: dict[str, str]
    chat: str
    replies: list[str]
    at_second: dict[str, Any]
    at_third: dict[str, Any]


async def fill(table: Table, ids: dict[str, str]) -> None:
    """Add items of every kind, with references and audiences."""
    jake, marlena, shop = ids["jake"], ids["marlena"], ids["shop"]
    ids["gone"] = (await table.add("entities", kind="npc", name="Gone"))["id"]
    await table.add("facts", text="The ledger is forged.", about_id=marlena, audience=[jake])
    await table.add("facts", text="Only Gone knew of the moths.", audience=[ids["gone"]])
    await table.delete(f"/entities/{ids['gone']}")
    await table.add("relations", from_id=marlena, to_id=jake, score=60, audience="gm")
    clock = await table.add("clocks", name="The tide", linked_id=shop, audience=[jake, marlena])
    await table.add("threads", title="The debt", giver_id=marlena, clock_id=clock["id"])
    scene = await table.add("scenes", location_id=shop, present=[marlena], title="The counter")
    ids["scene"] = scene["id"]
    over = {"status": "closed", "summary": "They met at the obsidian pier."}
    pier = await table.add("scenes", title="The pier", **over)
    await table.add("chapters", title="Arrival", summary="They came.", scene_ids=[pier["id"]])
    await table.add("echoes", text="A debt to the tide", kind="threat")
    await table.add("glossary", term="Muffle", definition="Fog that eats sounds.")


async def play(ada: Account) -> Evening:
    settings = {"hidden_information": True, "glossary_tokens": 77}
    body = {"name": "Seagate", "day": 5, "rules": "blades", "settings": settings}
    table = Table(ada, await ada.post("/campaigns", body, 201))
    ids = await seagate(table)
    await fill(table, ids)
    jake, chat = ids["jake"], (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]

    async def follows(path: str, **fields: Any) -> None:
        """Change an item with the last reply as its source."""
        asked = {"params": {"message_id": replies[-1]}, "json": fields}
        ok(await table.ask("PATCH", path, **asked))

    await table.change("", flags={"bridge_down": True}, locked=["day", "flags.bridge_down"])
    replies = [await take_turn(ada, chat, text="I come in.")]
    await follows(f"/entities/{jake}", attributes={"hp": 9})
    replies.append(await take_turn(ada, chat, text="Psst.", audience=[jake]))
    chronicle = (await read_settings(ada, chat))["chronicle_id"]
    for summary, source in zip(EVENTS, replies, strict=True):
        event = {"summary": summary, "audience": [jake], "source_message_ids": [source]}
        await ada.post(f"/chronicles/{chronicle}/events", event, 201)
    await set_chat(ada, chat, viewpoint=jake)
    at_second = await read_world(table)
    replies.append(await take_turn(ada, chat, text="I pay.", viewpoint="gm"))
    await follows(f"/entities/{jake}", attributes={"hp": 1})
    await follows(f"/scenes/{ids['scene']}", stakes="All of it.")
    await follows("", day=9)
    return Evening(table, ids, chat, replies, at_second, await read_world(table))


EVENTS = ["The tide rose.", "Jake whispered."]


async def list_events(account: Account, chat: str) -> list[dict[str, Any]]:
    path = f"/chronicles/{(await read_settings(account, chat))['chronicle_id']}/events"
    events: list[dict[str, Any]] = (await account.get(path))["items"]
    return events


async def test_a_fork_copies_the_world_at_its_message(server: Running) -> None:
    async with server.account() as ada:
        evening = await play(ada)
        at_second = evening.at_second

        copy = await fork(ada, evening.chat, evening.replies[1], world="copy", title="What if")
        assert copy["campaign_id"] not in {None, evening.table.campaign["id"]}
        other = Table(ada, await ada.get(f"/campaigns/{copy['campaign_id']}"))
        world = await read_world(other)
        # The copy contains all items, with new ids and references.
        assert not set(list_names(world)) & set(list_names(at_second))
        assert list_items(world, list_names(world)) == [
            each.replace(json.dumps([evening.ids["gone"]]), '"gm"')
            for each in list_items(at_second, list_names(at_second))
        ]
        [jake] = [each for each in world["entities"].values() if each["name"] == "Jake"]
        assert jake["attributes"]["hp"] == 9
        for key in ("rules", "brief", "settings", "day", "attributes", "flags"):
            assert world["campaign"][key] == at_second["campaign"][key]
        assert world["campaign"]["name"] == "Seagate (copy)"
        assert world["campaign"]["chat_ids"] == [copy["id"]]
        changes = (await other.get("/changes", limit=100))["items"]
        assert {each["version"] for each in changes} == {1}
        assert len(changes) == 1 + sum(len(world[kind]) for kind in KINDS)
        # Audiences of the chat refer to the copied players.
        lines = await ada.messages(copy["id"])
        assert [each["audience"] for each in lines[-2:]] == [[jake["id"]]] * 2
        assert (await read_settings(ada, copy["id"]))["viewpoint"] == jake["id"]
        events = await list_events(ada, copy["id"])
        assert {each["summary"] for each in events} == set(EVENTS)
        assert [each["audience"] for each in events] == [[jake["id"]]] * 2
        assert await read_world(evening.table) == evening.at_third


async def test_each_fork_changes_only_its_own_world(server: Running) -> None:
    async with server.account() as ada:
        evening = await play(ada)
        # The inactive swipe is another branch, with another world.
        await take_turn(ada, evening.chat, regenerate_of=evening.replies[2], viewpoint="gm")
        copy = await fork(ada, evening.chat, evening.replies[2], world="copy")
        other = Table(ada, await ada.get(f"/campaigns/{copy['campaign_id']}"))
        people = (await other.get("/entities", limit=100))["items"]
        [jake] = [each for each in people if each["name"] == "Jake"]
        assert jake["attributes"]["hp"] == 1
        await other.change(f"/entities/{jake['id']}", attributes={"hp": 3})
        before = await evening.table.get(f"/entities/{evening.ids['jake']}")
        assert before["attributes"]["hp"] == 9
        assert (await other.get(f"/entities/{jake['id']}"))["attributes"]["hp"] == 3

        shown = await preview(ada, copy["id"], "Who forged the ledger?")
        assert "The ledger is forged." in json.dumps(shown["prompt"])
        await settled(server)
        found = await search(ada, "obsidian pier", campaign_id=copy["campaign_id"])
        assert "They met at the obsidian pier." in json.dumps(found)
        await ada.delete(f"/chats/{evening.chat}")
        assert {each["summary"] for each in await list_events(ada, copy["id"])} == set(EVENTS)


async def test_a_fork_shares_the_world_by_default(server: Running) -> None:
    async with server.account() as ada:
        made = await ada.post("/campaigns", {"name": "Seagate"}, 201)
        table = Table(ada, made)
        chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
        reply_id = await take_turn(ada, chat, text="I come in.")
        for body in ({}, {"world": "shared"}):
            copy = await fork(ada, chat, reply_id, **body)
            assert copy["campaign_id"] == table.campaign["id"]
        plain = (await ada.new_chat())["id"]
        line = await take_turn(ada, plain, text="Hello.")
        before = await ada.get("/chats")
        for where, message_id, world in (
            (plain, line, "copy"), (chat, line, "copy"), (chat, reply_id, "both"),
        ):  # fmt: skip
            body = {"message_id": message_id, "world": world}
            answer = await ada.ask("POST", f"/chats/{where}/fork", json=body)
            problem(answer, 422, "validation-failed")
        assert (await ada.get("/chats")) == before
        assert len((await ada.get("/campaigns"))["items"]) == 1
