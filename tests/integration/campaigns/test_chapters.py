"""Chapters of old scenes: their scenes, audiences and messages."""

from __future__ import annotations

from typing import Any

import pytest

from backend.enrichment.outbox import CHAPTER
from tests.fakes.openai_server import error, reply
from tests.integration.campaigns.recorder import Play, Recorder, model, play, server, short_waits
from tests.support.lost_processes import lose_lease
from tests.support.server import Running, ok

__all__ = ["model", "play", "server", "short_waits"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("short_waits")]


@pytest.fixture(autouse=True)
async def _few_scenes(play: Play, model: Recorder) -> None:
    """Make a chapter of the first two scenes when four are closed."""
    model.reset()
    model.task = "chapter"
    await play.table.change("", settings={"chapter_scenes": 3})
    await play.table.delete(f"/scenes/{play.scene_id}")


async def scene_ids(play: Play) -> list[str]:
    """Return the ids of the scenes, in order of creation."""
    return [each["id"] for each in (await play.table.get("/scenes"))["items"]]


def sections(context: dict[str, Any]) -> dict[str, str]:
    return {each["kind"]: each["text"] for each in context["items"]}


@pytest.mark.every_database
async def test_old_scenes_become_a_chapter_in_prompts(play: Play, model: Recorder) -> None:
    model.chapter = {"title": "The <b>break-in", "summary": "They stole\n\nthe {{ledger}}."}
    await play.end(1)
    said = await play.end(2)
    await play.end(3)
    assert await play.chapters() == []
    await play.end(4)
    [chapter] = await play.chapters()
    assert (chapter["title"], chapter["summary"]) == ("The ‹b>break-in", "They stole the {ledger}.")
    assert (chapter["audience"], chapter["scene_ids"]) == ("public", (await scene_ids(play))[:2])
    [asked] = model.told("chapter")
    assert "- Scene 1: They broke in.\n  - The lock gave.\n- Scene 2: They broke in." in asked
    assert "Scene 3" not in asked
    change = (await play.changes())[0]
    assert (change["target"]["kind"], change["message_id"]) == ("chapter", said)
    [run] = await play.runs("chapter")
    assert (run["state"], run["calls"], run["prompt_tokens"]) == ("done", 1, 100)
    context = await play.prompt()
    told = sections(context)
    assert told["chapters"] == "EARLIER CHAPTERS\n- The ‹b>break-in: They stole the {ledger}."
    assert "Scene 3" in told["scenes"]
    assert "Scene 4" in told["scenes"]
    kinds = [each["kind"] for each in context["items"]]
    assert kinds.index("chapters") < kinds.index("scenes")
    cold = [each["tokens"] for each in context["items"] if each["kind"] in {"chapters", "scenes"}]
    assert context["layers"]["cold"] == sum(cold)


async def test_no_scene_is_in_two_chapters(play: Play) -> None:
    for number in range(1, 8):
        await play.end(number)
    ids = await scene_ids(play)
    told = [each["scene_ids"] for each in await play.chapters()]
    assert told == [ids[:2], ids[2:4]]


async def test_prompts_have_the_last_chapters_that_fit(play: Play, model: Recorder) -> None:
    for number in range(1, 7):
        model.chapter["summary"] = f"Before scene {number} " + "they ran and ran " * 20
        await play.end(number)
    assert len(await play.chapters()) == 2
    await play.table.change("", settings={"chapter_tokens": 120})
    told = sections(await play.prompt())["chapters"]
    assert "Before scene 6" in told
    assert "Before scene 4" not in told
    await play.table.change("", settings={"chapter_tokens": 0})
    assert "chapters" not in sections(await play.prompt())


async def test_a_chapter_follows_its_messages(play: Play, model: Recorder) -> None:
    await play.end(1)
    second = await play.end(2)
    await play.end(3)
    last = await play.end(4)
    other = await play.turn("", regenerate_of=last)
    # The scenes of the chapter are still active.
    assert [each["title"] for each in await play.chapters()] == ["The break-in"]
    model.chapter = {"title": "Another", "summary": "They were caught."}
    await play.turn("", regenerate_of=second)
    assert await play.chapters() == []
    for message in (second, other):
        await play.ada.post(f"/messages/{message}/activate")
    assert [each["title"] for each in await play.chapters()] == ["The break-in"]


async def test_a_fork_has_the_chapter(play: Play) -> None:
    for number in range(1, 5):
        await play.end(number)
    last = (await play.ada.messages(play.chat))[-1]
    path, body = f"/chats/{play.chat}/fork", {"message_id": last["id"]}
    fork = await play.ada.post(path, body, 201)
    await play.ada.delete(f"/chats/{play.chat}")
    play.chat = fork["id"]
    assert len(await play.chapters()) == 1
    assert "They stole the ledger." in sections(await play.prompt())["chapters"]


@pytest.mark.parametrize("way", ["DELETE", "undo"])
async def test_a_chapter_that_the_user_undid_is_not_made_again(play: Play, way: str) -> None:
    for number in range(1, 5):
        await play.end(number)
    [chapter] = await play.chapters()
    if way == "DELETE":
        await play.table.delete(f"/chapters/{chapter['id']}")
    else:
        change = (await play.changes())[0]
        ok(await play.table.ask("POST", f"/changes/{change['id']}/undo"))
    await play.end(5)
    assert await play.chapters() == []
    await play.end(6)
    assert [each["scene_ids"] for each in await play.chapters()] == [(await scene_ids(play))[2:4]]


async def test_a_chapter_has_scenes_of_one_audience(play: Play, model: Recorder) -> None:
    model.kept["summary"] = "SECRET"
    await play.end(1, audience="gm")
    model.kept["summary"] = "They broke in."
    for number in range(2, 6):
        await play.end(number)
    [chapter] = await play.chapters()
    assert chapter["scene_ids"] == (await scene_ids(play))[1:3]
    assert "SECRET" not in "".join(model.told("chapter"))


async def test_limiting_a_message_limits_its_chapter(play: Play) -> None:
    said = await play.end(1)
    for number in range(2, 5):
        await play.end(number)
    await play.ada.patch(f"/messages/{said}", {"audience": "gm"})
    assert [each["audience"] for each in await play.chapters()] == ["gm"]
    assert "chapters" not in sections(await play.prompt(viewpoint="public"))
    assert "chapters" in sections(await play.prompt())


async def test_limiting_a_scene_limits_its_chapter(play: Play) -> None:
    for number in range(1, 5):
        await play.end(number)
    first, second, third, _ = await scene_ids(play)
    await play.table.change(f"/scenes/{third}", audience="gm")
    assert [each["audience"] for each in await play.chapters()] == ["public"]
    await play.table.change(f"/scenes/{second}", audience="gm")
    assert [each["audience"] for each in await play.chapters()] == ["gm"]
    await play.table.change(f"/scenes/{first}", title="The roof")
    assert [each["audience"] for each in await play.chapters()] == ["gm"]


@pytest.mark.parametrize(
    "broken",
    [
        "no JSON",
        '{"title": "", "summary": ""}',
        '{"title": "A", "summary": "I won\'t write this."}',
    ],
)
async def test_a_failed_chapter_is_retried(play: Play, model: Recorder, broken: str) -> None:
    model.fails = [error(500), reply(broken)]
    for number in range(1, 5):
        await play.end(number)
    assert len(await play.chapters()) == 1
    states = [each["state"] for each in await play.runs("chapter")]
    assert states == ["done", "failed", "failed"]


async def test_scenes_that_change_meanwhile_are_read_again(play: Play, model: Recorder) -> None:
    for number in range(1, 4):
        await play.end(number)
    first, *_ = await scene_ids(play)
    async with model.thinking() as is_reached:
        scene = await play.table.add("scenes", title="Scene 4")
        play.scene_id = scene["id"]
        await play.ada.turn(play.chat, text="Scene 4 is told.")
        ok(await play.table.ask("POST", f"/scenes/{scene['id']}/close"))
        await is_reached.wait()
        await play.table.change(f"/scenes/{first}", summary="They knocked.")
    await play.at_rest()
    assert "They knocked." not in model.told("chapter")[0]
    assert "They knocked." in model.told("chapter")[1]
    assert len(await play.chapters()) == 1


@pytest.mark.every_database
async def test_two_workers_make_one_chapter(play: Play, model: Recorder, server: Running) -> None:
    for number in range(1, 4):
        await play.end(number)
    async with model.thinking() as is_reached:
        scene = await play.table.add("scenes", title="Scene 4")
        await play.ada.turn(play.chat, text="Scene 4 is told.")
        ok(await play.table.ask("POST", f"/scenes/{scene['id']}/close"))
        await is_reached.wait()
        await lose_lease(server.parts.database, CHAPTER, play.chat)
    await play.at_rest()
    assert len(model.told("chapter")) >= 2
    assert len(await play.chapters()) == 1


async def test_without_summaries_there_are_no_chapters(play: Play, model: Recorder) -> None:
    for number in range(1, 4):
        await play.end(number)
    await play.table.change("", settings={"summaries": False})
    await play.end(4)
    assert model.told("chapter") == []
    await play.table.change("", settings={"summaries": True})
    await play.end(5)
    assert len(await play.chapters()) == 1


async def test_a_removed_message_takes_the_summaries_that_contain_it(play: Play) -> None:
    ids = [await play.end(number) for number in range(1, 5)]
    [chapter] = await play.chapters()
    scenes = (await play.table.get("/scenes"))["items"]
    assert [each["summary"] for each in scenes] == ["They broke in."] * 4
    line = (await play.ada.get(f"/messages/{ids[0]}"))["parent_id"]
    await play.ada.delete(f"/messages/{line}", 200, alone="true")
    assert await play.chapters() == []
    scenes = (await play.table.get("/scenes"))["items"]
    assert [each["summary"] for each in scenes] == ["", *["They broke in."] * 3]
    # The reply closed no scene, but its beat and its summary were changes of it.
    await play.ada.delete(f"/messages/{ids[3]}", 200, alone="true")
    last = await play.table.get(f"/scenes/{scenes[3]['id']}")
    assert (last["beats"], last["summary"]) == (0, "")
    assert chapter["title"] not in str(await play.prompt())
