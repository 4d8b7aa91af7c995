"""Scenes over HTTP: beats that follow the story, the end of a scene, and its consequences."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from backend.campaigns.scenes.scenes import find_consequences
from backend.core.audience import GM
from backend.database.base import new_id
from backend.database.engine import Database
from tests.integration.campaigns.seagate import Table, new_session, seagate
from tests.integration.chats.trees import sign_up
from tests.support.server import Account, ok, problem
from tests.support.statements import record_statements

pytestmark = pytest.mark.anyio


class Play:
    """A chat of a campaign, and one of the campaign's scenes."""

    def __init__(self, table: Table, chat: str, scene: str) -> None:
        self.table, self.chat, self.scene_id = table, chat, scene
        self.ada = table.account

    async def turn(self, text: str = "Go on.", **body: Any) -> str:
        """Take a turn; return the id of its reply."""
        events = await self.ada.turn(self.chat, **({"text": text, **body} if text else body))
        assert events[-1].name == "turn.completed", events[-1]
        return str(events[0].data["reply_id"])

    async def scene(self) -> dict[str, Any]:
        return await self.table.get(f"/scenes/{self.scene_id}")

    async def beats(self) -> int:
        return int((await self.scene())["beats"])

    async def close(self, status: int = 200, **query: Any) -> Any:
        path = f"/scenes/{self.scene_id}/close"
        return ok(await self.table.ask("POST", path, params=query), status)


@pytest.fixture
async def play(table: Table) -> Play:
    chat = await new_session(table)
    scene = await table.add("scenes", title="The counting house", stakes="The ledger.")
    return Play(table, chat, scene["id"])


async def test_a_finished_turn_is_a_beat_of_the_open_scene(play: Play) -> None:
    said = await play.turn()
    assert await play.beats() == 1
    [change] = [each for each in (await play.table.get("/changes"))["items"] if each["add"]]
    assert (change["actor"], change["message_id"], change["add"]) == ("tool", said, {"beats": 1})
    assert change["turn_id"]
    await play.turn()
    assert await play.beats() == 2


@pytest.mark.every_database
async def test_beats_follow_the_story(play: Play) -> None:
    first = await play.turn()
    second = await play.turn()
    third = await play.turn("", regenerate_of=second)
    assert await play.beats() == 2
    await play.ada.post(f"/messages/{second}/activate")
    assert await play.beats() == 2
    await play.ada.delete(f"/messages/{second}", 200)
    await play.ada.delete(f"/messages/{third}", 200)
    assert await play.beats() == 1
    await play.ada.delete(f"/messages/{first}", 200)
    assert await play.beats() == 0


async def test_an_unfinished_turn_is_no_beat(play: Play) -> None:
    events = await play.ada.turn(play.chat, text="/demo fail-midway")
    assert events[-1].name == "turn.failed"
    assert await play.beats() == 0
    await play.turn("", **{"continue": True})
    assert await play.beats() == 1
    await play.turn("", **{"continue": True})
    assert await play.beats() == 1


async def test_beats_go_to_the_next_scene_after_a_close(play: Play) -> None:
    await play.turn()
    assert (await play.close())["status"] == "closed"
    await play.turn()
    assert await play.beats() == 1
    later = await play.table.add("scenes", title="The roof")
    await play.turn()
    assert await play.beats() == 1
    assert (await play.table.get(f"/scenes/{later['id']}"))["beats"] == 1


async def test_a_scene_has_a_maximum_of_beats(play: Play) -> None:
    await play.table.change(f"/scenes/{play.scene_id}", beats=10_000)
    await play.turn()
    assert await play.beats() == 10_000


async def test_a_scene_is_closed_while_its_last_message_is_active(play: Play) -> None:
    await play.turn()
    said = await play.turn()
    assert (await play.close(message_id=said))["status"] == "closed"
    await play.turn("", regenerate_of=said)
    assert (await play.scene())["status"] == "open"
    await play.ada.post(f"/messages/{said}/activate")
    assert (await play.scene())["status"] == "closed"


async def test_invalid_closes_are_refused(play: Play, ada: Account) -> None:
    said = await play.turn()
    other = await ada.new_chat()
    elsewhere = (await ada.turn(other["id"], text="Hello."))[0].data["reply_id"]
    path = f"/scenes/{play.scene_id}/close"
    stale = await play.table.ask("POST", path, headers={"If-Match": '"1"'})
    problem(stale, 412, "revision-mismatch")
    missing = await play.table.ask("POST", f"/scenes/{uuid4()}/close")
    problem(missing, 404, "campaign-item-not-found")
    entity = await play.table.add("entities", kind="npc", name="Holt")
    wrong = await play.table.ask("POST", f"/scenes/{entity['id']}/close")
    problem(wrong, 404, "campaign-item-not-found")
    nowhere = await play.table.ask("POST", path, params={"message_id": str(uuid4())})
    problem(nowhere, 404, "message-not-found")
    outside = await play.table.ask("POST", path, params={"message_id": elsewhere})
    problem(outside, 422, "validation-failed")
    assert (await play.scene())["status"] == "open"
    current = await play.table.ask("GET", f"/scenes/{play.scene_id}")
    tag = {"If-Match": current.headers["etag"]}
    closed = await play.table.ask("POST", path, headers=tag, params={"message_id": said})
    assert ok(closed)["status"] == "closed"
    assert closed.headers["etag"] != current.headers["etag"]


async def _scenes(table: Table) -> list[dict[str, Any]]:
    """Return the active scenes, oldest first."""
    items: list[dict[str, Any]] = (await table.get("/scenes"))["items"]
    return items


async def _block(table: Table, chat: str) -> str:
    return str((await table.get("/context", chat_id=chat, text="I look around."))["full"])


async def test_moving_the_player_ends_an_open_scene(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    shop = await table.add("scenes", location_id=ids["shop"], present=[ids["marlena"]])
    await ada.turn(chat, text="I come in.")
    assert "Marlena" in await _block(table, chat)

    await table.change(f"/entities/{ids['jake']}", location_id=ids["hills"])
    block = await _block(table, chat)
    assert "**Sunfall Hills**" in block
    assert "**Inspector Holt**" in block
    assert "Marlena" not in block
    assert (await table.get("/state"))["scene"] is None

    said = (await ada.turn(chat, text="I look around."))[0].data["reply_id"]
    left, entered = await _scenes(table)
    assert (left["id"], left["status"], left["beats"]) == (shop["id"], "closed", 1)
    assert (entered["location_id"], entered["status"], entered["beats"]) == (
        ids["hills"],
        "open",
        1,
    )
    assert (await table.get("/state"))["scene"]["id"] == entered["id"]

    await ada.delete(f"/messages/{said}", 200)
    assert [each["status"] for each in await _scenes(table)] == ["open"]
    assert "**Sunfall Hills**" in await _block(table, chat)
    moved = next(
        each
        for each in (await table.get("/changes"))["items"]
        if each["set"] == {"location_id": ids["hills"]}
    )
    ok(await table.ask("POST", f"/changes/{moved['id']}/undo"))
    assert "Marlena" in await _block(table, chat)
    assert (await table.get("/state"))["scene"]["id"] == shop["id"]


async def test_a_scene_stays_for_those_who_stay_in_it(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    mara = await table.add("entities", kind="pc", name="Mara", location_id=ids["shop"])
    persona = await ada.post("/personas", {"name": "mara"}, 201)
    chats = [
        (await ada.new_chat(campaign_id=table.campaign["id"], persona_id=who))["id"]
        for who in (None, persona["id"])
    ]
    await ada.turn(chats[0], text="We come in.")
    await table.change(f"/entities/{mara['id']}", location_id=ids["hills"])
    blocks = [await take_turn(ada, chat) for chat in chats]
    assert "**The Salty Sigil**" in blocks[0]
    assert "**Sunfall Hills**" in blocks[1]
    both = {each["location_id"]: each for each in await _scenes(table)}
    assert {each["status"] for each in both.values()} == {"open"}
    assert [both[ids[place]]["beats"] for place in ("shop", "hills")] == [2, 1]
    await table.change(f"/entities/{ids['jake']}", location_id=ids["hills"])
    await ada.turn(chats[1], text="There you are.")
    ended = {each["location_id"]: each["status"] for each in await _scenes(table)}
    assert ended == {ids["shop"]: "closed", ids["hills"]: "open"}


async def take_turn(ada: Account, chat: str) -> str:
    """Take a turn; return its state block."""
    await ada.turn(chat, text="continue")
    return str((await ada.messages(chat))[-1]["injected_context"])


async def test_opening_a_scene_moves_its_players(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    mara = await table.add("entities", kind="pc", name="Mara", location_id=ids["shop"])
    scene = await table.add("scenes", location_id=ids["hills"], present=[ids["jake"]])
    assert (await table.get(f"/entities/{ids['jake']}"))["location_id"] == ids["hills"]
    assert (await table.get(f"/entities/{mara['id']}"))["location_id"] == ids["shop"]
    await table.change(f"/scenes/{scene['id']}", present=[], location_id=ids["shop"])
    assert (await table.get(f"/entities/{ids['jake']}"))["location_id"] == ids["shop"]


@pytest.mark.every_database
async def test_the_first_scene_opens_at_the_first_place(ada: Account) -> None:
    for rules in ("freeform", "blades", "dnd"):
        made = await ada.post("/campaigns", {"name": "Seagate", "rules": rules}, 201)
        table = Table(ada, made)
        chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
        await ada.turn(chat, text="Where am I?")
        assert await _scenes(table) == []
        shop = await table.add("entities", kind="location", name="The Salty Sigil")
        await table.add("entities", kind="pc", name="Jake", location_id=shop["id"])
        whisper = {"text": "To myself.", "audience": "gm"}
        await ada.turn(chat, **whisper)
        assert await _scenes(table) == []

        said = (await ada.turn(chat, text="I come in."))[0].data["reply_id"]
        [first] = await _scenes(table)
        assert (first["location_id"], first["status"], first["beats"]) == (shop["id"], "open", 1)
        await ada.turn(chat, regenerate_of=said)
        [second] = await _scenes(table)
        assert (second["id"] != first["id"], second["beats"]) == (True, 1)
        leaf = (await ada.messages(chat))[-1]["id"]
        fork = await ada.post(f"/chats/{chat}/fork", {"message_id": leaf}, 201)
        await ada.turn(fork["id"], text="On.")
        assert [(each["id"], each["beats"]) for each in await _scenes(table)] == [(second["id"], 2)]
        await ada.delete(f"/chats/{fork['id']}")
        await ada.post(f"/messages/{said}/activate")
        assert [(each["id"], each["beats"]) for each in await _scenes(table)] == [(first["id"], 1)]


async def test_consequences_are_loaded_by_message_ids(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    try:
        sealer = (await sign_up(database)).sealer
        async with database.read() as session:
            lines = [new_id() for _ in range(150)]
            with record_statements() as statements:
                assert await find_consequences(session, sealer, lines, viewpoint=GM) == {}
            connection = await session.connection()
            [(statement, values)] = [
                each for each in statements if "campaign_change_sources" in each.text
            ]
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            steps = [step for *_, step in plan if " messages " in step]
    finally:
        await database.dispose()
    # With another index, SQLite would read 10,000 rows for a hundred lines.
    assert [step.partition("(")[2] for step in steps] == ["id=?)", "parent_id=?)"]
