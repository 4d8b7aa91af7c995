"""Scenes over HTTP: beats that follow the story, and how a scene ends."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.integration.campaigns.seagate import Table
from tests.support.server import Account, ok, problem

pytestmark = pytest.mark.anyio

API = "/api/v1"


class Play:
    """A chat of a campaign, and one of the campaign's scenes."""

    def __init__(self, table: Table, chat: str, scene: str) -> None:
        self.table, self.chat, self.scene_id = table, chat, scene
        self.ada = table.account

    async def turn(self, text: str = "Go on.", **body: Any) -> str:
        """Take a turn; the id of its reply."""
        events = await self.ada.turn(self.chat, **({"text": text, **body} if text else body))
        assert events[-1].name == "turn.completed", events[-1]
        return str(events[0].data["reply_id"])

    async def scene(self) -> dict[str, Any]:
        scene: dict[str, Any] = await self.table.get(f"/scenes/{self.scene_id}")
        return scene

    async def beats(self) -> int:
        return int((await self.scene())["beats"])

    async def close(self, status: int = 200, **query: Any) -> Any:
        path = f"/scenes/{self.scene_id}/close"
        return ok(await self.table.ask("POST", path, params=query), status)


@pytest.fixture
async def play(ada: Account, table: Table) -> Play:
    character = await ada.new_character(name="Mara")
    chat = await ada.new_chat(campaign_id=table.campaign["id"], character_ids=[character["id"]])
    scene = await table.add("scenes", title="The counting house", stakes="The ledger.")
    return Play(table, chat["id"], scene["id"])


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
    ok(await play.ada.client.post(f"{API}/messages/{second}/activate"))
    assert await play.beats() == 2
    ok(await play.ada.client.request("DELETE", f"{API}/messages/{second}"))
    ok(await play.ada.client.request("DELETE", f"{API}/messages/{third}"))
    assert await play.beats() == 1
    ok(await play.ada.client.request("DELETE", f"{API}/messages/{first}"))
    assert await play.beats() == 0


async def test_what_is_not_finished_is_no_beat(play: Play) -> None:
    events = await play.ada.turn(play.chat, text="/demo fail-midway")
    assert events[-1].name == "turn.failed"
    assert await play.beats() == 0
    await play.turn("", **{"continue": True})
    assert await play.beats() == 1
    await play.turn("", **{"continue": True})
    assert await play.beats() == 1


async def test_a_closed_scene_has_no_more_beats_and_the_next_one_has_them(play: Play) -> None:
    await play.turn()
    assert (await play.close())["status"] == "closed"
    await play.turn()
    assert await play.beats() == 1
    later = await play.table.add("scenes", title="The roof")
    await play.turn()
    assert await play.beats() == 1
    assert (await play.table.get(f"/scenes/{later['id']}"))["beats"] == 1


async def test_a_scene_has_at_most_so_many_beats(play: Play) -> None:
    await play.table.change(f"/scenes/{play.scene_id}", beats=10_000)
    await play.turn()
    assert await play.beats() == 10_000


async def test_a_scene_can_be_over_while_a_message_is_told(play: Play) -> None:
    await play.turn()
    said = await play.turn()
    assert (await play.close(message_id=said))["status"] == "closed"
    await play.turn("", regenerate_of=said)
    assert (await play.scene())["status"] == "open"
    ok(await play.ada.client.post(f"{API}/messages/{said}/activate"))
    assert (await play.scene())["status"] == "closed"


async def test_what_cannot_be_closed_is_refused_and_nothing_changes(
    play: Play, ada: Account
) -> None:
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
