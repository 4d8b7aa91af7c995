"""Scenes of a group: one scene has the same witnesses from its beginning to its end."""

from __future__ import annotations

import json

import pytest

from tests.integration.campaigns.recorder import (
    Play,
    Recorder,
    fresh,
    list_lines,
    model,
    server,
    short_waits,
)
from tests.integration.campaigns.seagate import Table
from tests.support.server import Running

__all__ = ["fresh", "model", "server", "short_waits"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.every_database,
    pytest.mark.usefixtures("fresh", "short_waits"),
]


class Ensemble(Play):
    """A chat of Alda and Bor in an open scene."""

    alda = bor = ""

    async def say(self, text: str, speaker: str = "", **body: object) -> str:
        return await self.turn(text, speaker=speaker or self.alda, **body)

    async def set_presence(self, presence: str) -> None:
        await self.ada.patch(f"/chats/{self.chat}/members/{self.bor}", {"presence": presence})


@pytest.fixture
async def play(server: Running, table: Table) -> Ensemble:
    await table.change("", settings={"scene_beats": 10})
    ada = table.account
    alda, bor = [
        (await ada.new_character(name=name, first_mes=""))["id"] for name in ("Alda", "Bor")
    ]
    chat = await ada.new_chat(campaign_id=table.campaign["id"], character_ids=[alda, bor])
    scene = await table.add("scenes", title="The counting house", stakes="The ledger.")
    play = Ensemble(server, table, chat["id"], scene["id"])
    play.alda, play.bor = alda, bor
    return play


async def test_a_scene_ends_when_someone_leaves_or_returns(play: Ensemble, model: Recorder) -> None:
    await play.say("First.")
    await play.set_presence("absent")
    model.kept = {"summary": "publicq", "key_moments": ["They came."], "seeds": []}
    await play.say("Second.")
    [asked] = model.asked
    assert next(line.rpartition(": ")[2] for line in list_lines(asked)) == "First."
    first, second = await play.table.items("scenes")
    assert (first["status"], first["summary"], first["audience"]) == ("closed", "publicq", "public")
    assert (second["status"], second["audience"]) == ("open", [play.alda])
    assert (second["title"], second["stakes"]) == ("The counting house", "The ledger.")
    model.kept = {
        "summary": "awayq",
        "key_moments": ["awayq."],
        "seeds": [{"title": "awayq thread", "summary": "awayq"}],
        "kept": [{"quote": "Second.", "kind": "coined"}],
    }
    await play.set_presence("present")
    await play.say("Third.")
    asked = model.asked[-1]
    assert "publicq" not in asked
    assert list_lines(asked)[0].endswith("Second.")
    _, second, third = await play.table.items("scenes")
    assert (second["status"], second["summary"]) == ("closed", "awayq")
    assert (third["status"], third["audience"], third["stakes"]) == ("open", "public", "")
    [thread], [fact] = await play.table.items("threads"), await play.table.items("facts")
    assert thread["audience"] == fact["audience"] == [play.alda]
    for_bor = json.dumps(await play.prompt(viewpoint=play.bor))
    for_alda = json.dumps(await play.prompt(viewpoint=play.alda))
    assert ("publicq" in for_bor, "awayq" in for_bor) == (True, False)
    assert ("publicq" in for_alda, "awayq" in for_alda) == (True, True)


async def test_whispers_are_not_in_the_summary_of_a_scene(play: Ensemble, model: Recorder) -> None:
    await play.say("First.")
    await play.say("whisperq.", play.bor, audience=[play.bor])
    await play.say("Second.")
    await play.close()
    [asked] = model.asked
    assert "whisperq" not in asked
    assert [line.rpartition(": ")[2] for line in list_lines(asked)][::2] == ["First.", "Second."]
    scene = await play.scene()
    assert (scene["summary"], scene["audience"]) == ("They broke in.", "public")


async def test_what_was_said_before_someone_joined_stays_with_the_others(
    play: Ensemble, model: Recorder
) -> None:
    await play.say("First.")
    late = (await play.ada.new_character(name="Late", first_mes=""))["id"]
    await play.ada.patch(f"/chats/{play.chat}/members/{late}", {"presence": "present"})
    model.kept = {"summary": "awayq", "key_moments": ["awayq."], "seeds": []}
    await play.say("Second.")
    first, second = await play.table.items("scenes")
    assert (first["status"], first["audience"]) == ("closed", [play.alda, play.bor])
    assert (second["status"], second["audience"]) == ("open", "public")
    assert "awayq" not in json.dumps(await play.prompt(viewpoint=late))
    assert "awayq" in json.dumps(await play.prompt(viewpoint=play.bor))
