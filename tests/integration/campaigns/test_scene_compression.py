"""Scenes compressed by a scripted model, and the quotes that are kept word for word."""

from __future__ import annotations

from typing import Any

import pytest

from backend.campaigns.state.snapshot import CampaignSnapshot
from backend.enrichment.outbox import SCENE
from tests.fakes.openai_server import called, error, reply
from tests.integration.campaigns.recorder import (
    Play,
    Recorder,
    fresh,
    list_lines,
    model,
    play,
    server,
    short_waits,
)
from tests.integration.campaigns.seagate import seagate
from tests.support.lost_processes import lose_lease
from tests.support.server import Running, ok

__all__ = ["fresh", "model", "play", "server", "short_waits"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("fresh", "short_waits")]

DEBT = {"title": "The watchman's debt", "summary": "He wants his lantern back.", "kind": "threat"}


async def test_a_scene_is_compressed_after_several_beats(play: Play, model: Recorder) -> None:
    model.kept |= {"summary": "They <b>broke</b> in.\n\n{{char}} ran.", "seeds": [DEBT]}
    await play.turn("Before the scene there is a first line.")
    await play.turn()
    assert model.asked == []
    said = await play.turn("I run.")
    [asked] = model.asked
    assert "The counting house\nAt stake: The ledger." in asked
    assert len(list_lines(asked)) == 6
    assert list_lines(asked)[0].endswith("there is a first line.")
    scene = await play.scene()
    assert (scene["status"], scene["beats"]) == ("open", 3)
    assert scene["summary"] == "They ‹b>broke‹/b> in. {char} ran."
    assert scene["key_moments"] == ["The lock gave."]
    [thread] = (await play.table.get("/threads"))["items"]
    assert (thread["title"], thread["kind"]) == (DEBT["title"], "threat")
    assert (thread["summary"], thread["tension"]) == (DEBT["summary"], "rising")
    assert {each["message_id"] for each in await play.changes()} == {said}
    [run] = await play.runs()
    assert (run["state"], run["why"], run["prompt_tokens"]) == ("done", DEBT["title"], 100)


async def test_a_compression_reads_only_changes_since_the_last_turn(
    play: Play, model: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seagate(play.table)
    await play.turn()
    since, read = list[int](), CampaignSnapshot.update

    async def noting(names: CampaignSnapshot, *arguments: Any) -> CampaignSnapshot:
        since.append(names.version)
        return await read(names, *arguments)

    monkeypatch.setattr(CampaignSnapshot, "update", noting)
    await play.turn()
    await play.turn()
    assert len(model.asked) == 1
    assert since
    assert -1 not in since


async def test_the_end_of_a_scene_is_compressed(play: Play, model: Recorder) -> None:
    for _ in range(3):
        await play.turn("Once.")
    model.kept = {"summary": "They broke in and got away.", "key_moments": ["They ran."]}
    model.kept["seeds"] = []
    said = await play.turn("We leave.")
    await play.close()
    [_, second] = model.asked
    assert "They broke in.\n- The lock gave." in second
    assert [line.rpartition(": ")[2] for line in list_lines(second)] == [
        "We leave.",
        "The lock gives way with a sigh.",
    ]
    scene = await play.scene()
    assert (scene["status"], scene["summary"]) == ("closed", "They broke in and got away.")
    assert (await play.changes())[0]["message_id"] == said
    context = await play.ada.get(f"/chats/{play.chat}/context", text="Well?", prompt="true")
    texts = [each["text"] for each in context["items"] if "LAST SCENES" in (each["text"] or "")]
    assert len(texts) == 1
    assert "- The counting house: They broke in and got away.\n  - They ran." in texts[0]


@pytest.mark.every_database
async def test_a_compressed_scene_is_not_compressed_again(play: Play, model: Recorder) -> None:
    model.kept["seeds"] = [DEBT]
    for _ in range(3):
        await play.turn()
    before = await play.scene(), await play.changes()
    await play.close()
    await play.close()
    assert len(model.asked) == 1
    assert await play.changes() == before[1]
    assert (await play.scene())["summary"] == before[0]["summary"]


async def test_undone_changes_are_not_made_again(play: Play, model: Recorder) -> None:
    model.kept["seeds"] = [DEBT, {"title": "A witness"}, {"title": "The key"}]
    for _ in range(3):
        await play.turn()
    assert len(await play.threads()) == 3
    for change in await play.changes():
        # Undo the summary and one thread; the other thread is deleted below.
        if change["target"]["name"] != "The key":
            path = f"/changes/{change['id']}/undo"
            ok(await play.table.ask("POST", path))
    [key] = (await play.table.get("/threads"))["items"]
    await play.table.delete(f"/threads/{key['id']}")
    assert await play.summary() == ""
    await play.close()
    assert len(model.asked) == 2
    assert await play.summary() == "They broke in."
    assert await play.threads() == []
    [run, _] = await play.runs()
    refused = [each["reason"] for each in run["refused"]]
    assert refused == ["The watchman's debt", "A witness", "The key"]


async def test_an_existing_thread_is_not_added_again(play: Play, model: Recorder) -> None:
    await play.table.add("threads", title="the WATCHMAN's debt!")
    model.kept["seeds"] = [DEBT, {"title": ""}, {"title": "A witness"}]
    for _ in range(3):
        await play.turn()
    assert await play.threads() == ["the WATCHMAN's debt!", "A witness"]


async def test_changes_follow_the_active_branch(play: Play, model: Recorder) -> None:
    model.kept["seeds"] = [DEBT]
    for _ in range(2):
        await play.turn()
    last = await play.turn()
    model.kept = {"summary": "They fled.", "key_moments": [], "seeds": [{"title": "A witness"}]}
    other = await play.turn("", regenerate_of=last)
    assert (await play.summary(), await play.threads()) == ("They fled.", ["A witness"])
    await play.ada.post(f"/messages/{last}/activate")
    assert (await play.summary(), await play.threads()) == ("They broke in.", [DEBT["title"]])
    await play.ada.delete(f"/messages/{last}", 200)
    await play.ada.delete(f"/messages/{other}", 200)
    assert (await play.summary(), await play.threads()) == ("", [])
    assert (await play.scene())["beats"] == 2


async def test_a_scene_is_open_again_without_its_end(play: Play, model: Recorder) -> None:
    said = await play.turn()
    await play.close(message_id=said)
    assert await play.summary() == "They broke in."
    await play.turn("", regenerate_of=said)
    scene = await play.scene()
    assert (scene["status"], scene["summary"], scene["beats"]) == ("open", "", 1)


@pytest.mark.every_database
async def test_lines_that_move_are_read_again(play: Play, model: Recorder) -> None:
    await play.turn("I whistle.")
    line = (await play.ada.messages(play.chat))[0]
    async with model.thinking() as is_reached:
        ok(await play.table.ask("POST", f"/scenes/{play.scene_id}/close"))
        await is_reached.wait()
        await play.ada.patch(f"/messages/{line['id']}", {"hidden": True})
    await play.at_rest()
    assert [len(list_lines(asked)) for asked in model.asked] == [2, 1]
    assert [each["state"] for each in await play.runs()] == ["done", "failed"]
    assert len(await play.changes()) == 1


@pytest.mark.every_database
async def test_a_lost_worker_writes_nothing(play: Play, model: Recorder, server: Running) -> None:
    model.kept["seeds"] = [DEBT]
    await play.turn()
    async with model.thinking() as is_reached:
        ok(await play.table.ask("POST", f"/scenes/{play.scene_id}/close"))
        await is_reached.wait()
        await lose_lease(server.parts.database, SCENE, play.chat)
    await play.at_rest()
    assert len(model.asked) >= 2
    assert await play.threads() == [DEBT["title"]]
    assert len(await play.changes()) == 2


@pytest.mark.parametrize(
    "broken",
    [
        "no JSON",
        '{"summary": "", "key_moments": []}',
        '{"summary": "I cannot help with that.", "key_moments": []}',
    ],
)
async def test_a_failed_compression_is_retried(play: Play, model: Recorder, broken: str) -> None:
    model.fails = [error(500), reply(broken)]
    await play.turn()
    await play.close()
    assert await play.summary() == "They broke in."
    assert [each["state"] for each in await play.runs()] == ["done", "failed", "failed"]


async def test_a_compression_that_gave_up_can_be_requested(play: Play, model: Recorder) -> None:
    model.fails = [reply("no JSON")] * 3
    await play.turn()
    await play.close()
    assert ((await play.scene())["status"], await play.summary()) == ("closed", "")
    [run] = await play.runs()
    assert (run["state"], run["calls"]) == ("failed", 3)
    await play.close()
    assert await play.summary() == "They broke in."


async def test_without_summaries_no_scene_is_compressed(play: Play, model: Recorder) -> None:
    await play.table.change("", settings={"summaries": False})
    for _ in range(3):
        await play.turn()
    await play.close()
    assert model.asked == []
    assert (await play.scene())["beats"] == 3


async def test_a_locked_summary_is_kept(play: Play) -> None:
    await play.table.change(f"/scenes/{play.scene_id}", summary="Mine.", locked=["summary"])
    await play.turn()
    await play.close()
    scene = await play.scene()
    assert (scene["summary"], scene["key_moments"]) == ("Mine.", ["The lock gave."])


@pytest.mark.every_database
async def test_secret_lines_are_compressed_at_the_end(play: Play, model: Recorder) -> None:
    model.kept["seeds"] = [DEBT]
    await play.turn()
    secret = await play.turn()
    await play.ada.patch(f"/messages/{secret}", {"audience": "gm"})
    await play.turn()
    assert model.asked == []
    await play.close()
    assert (await play.scene())["audience"] == "gm"
    [thread] = (await play.table.get("/threads"))["items"]
    assert thread["audience"] == "gm"
    preview = {"text": "Well?", "prompt": "true", "viewpoint": "public"}
    context = await play.ada.ask("GET", f"/chats/{play.chat}/context", params=preview)
    assert "They broke in" not in context.text
    preview["viewpoint"] = "gm"
    context = await play.ada.ask("GET", f"/chats/{play.chat}/context", params=preview)
    assert "They broke in" in context.text


async def test_a_long_scene_is_compressed_in_steps(
    play: Play, model: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.enrichment.reader.STRETCH_TOKENS", 60)
    for number in range(2):
        await play.turn(f"{number}: " + "the clock in the hall went on and on " * 4)
    await play.close()
    steps = [list_lines(asked) for asked in model.asked]
    assert len(steps) > 1
    read = [line for step in steps for line in step]
    messages = await play.ada.messages(play.chat)
    assert len(read) == len(set(read)) == len(messages) == 4
    assert (await play.scene())["summary"] == "They broke in."


def delta(item: str, field: str, value: str = "", **more: Any) -> dict[str, Any]:
    return {"item": item, "field": field, "value": value, **more}


@pytest.mark.every_database
async def test_a_scene_writes_changes_that_are_missing(play: Play, model: Recorder) -> None:
    town = await seagate(play.table)
    model.kept["changes"] = [
        delta("Marlena", "status", "wounded"),
        delta("Jake", "inventory", "ledger", how="add"),
        delta("Jake", "inventory", "fork", how="add"),
        delta("Jake", "hp", how="set", amount=9),
        delta("Jake", "gold", how="add", amount=5),
        delta("Jake", "class", "<b>King"),
        delta("Nobody", "status", "gone"),
        {"field": "status"},
    ]
    said = await play.turn("Marlena is hit.")
    await play.close()
    [asked] = model.asked
    assert "- Jake (pc) status: active; " in asked
    assert "; inventory: fork" in asked
    jake = await play.table.get(f"/entities/{town['jake']}")
    assert (jake["attributes"]["inventory"], jake["attributes"]["hp"]) == (["fork", "ledger"], 9)
    assert (jake["attributes"]["gold"], jake["attributes"]["class"]) == (15, "‹b>King")
    assert (await play.table.get(f"/entities/{town['marlena']}"))["status"] == "wounded"
    [run] = await play.runs()
    assert [each["reason"].rpartition(": ")[2] for each in run["refused"]] == [
        "Object missing required field `item`.",
        "It would change nothing.",
        "A number is set to what it is now.",
        "Jake, Marlena, The Salty Sigil.",
    ]
    await play.ada.delete(f"/messages/{said}", 200)
    assert (await play.table.get(f"/entities/{town['marlena']}"))["status"] == "active"
    assert (await play.table.get(f"/entities/{town['jake']}"))["attributes"]["hp"] == 13


async def test_later_changes_win_over_the_scene(play: Play, model: Recorder) -> None:
    town = await seagate(play.table)
    await play.table.change(f"/entities/{town['jake']}", attributes={"hp": 5})
    await play.table.change(f"/entities/{town['marlena']}", locked=["status"])
    model.kept["changes"] = [
        delta("Jake", "hp", amount=9),
        delta("Marlena", "status", "wounded"),
        delta("Marlena", "disposition", "afraid"),
    ]
    await play.turn("Marlena is hit.")
    await play.close()
    jake = await play.table.get(f"/entities/{town['jake']}")
    marlena = await play.table.get(f"/entities/{town['marlena']}")
    assert (jake["attributes"]["hp"], marlena["status"]) == (5, "active")
    assert marlena["disposition"] == "afraid"


async def test_a_second_compression_repeats_no_change(play: Play, model: Recorder) -> None:
    town = await seagate(play.table)
    model.kept["changes"] = [
        delta("Jake", "inventory", "ledger", how="add"),
        delta("Jake", "hp", amount=9),
        delta("Marlena", "status", "wounded"),
    ]
    await play.turn("Marlena is hit.")
    await play.close()
    for change in await play.changes():
        # The summary, and one change of an item.
        if change["target"]["kind"] == "scene" or "status" in change["set"]:
            ok(await play.table.ask("POST", f"/changes/{change['id']}/undo"))
    before = await play.changes()
    await play.close()
    assert len(model.asked) == 2
    assert [each["target"]["kind"] for each in await play.changes()] == [
        "scene",
        *(each["target"]["kind"] for each in before),
    ]
    jake = await play.table.get(f"/entities/{town['jake']}")
    assert jake["attributes"]["inventory"] == ["fork", "ledger"]
    assert (await play.table.get(f"/entities/{town['marlena']}"))["status"] == "active"


async def test_secrets_change_nothing_that_is_public(play: Play, model: Recorder) -> None:
    town = await seagate(play.table)
    model.kept["changes"] = [delta("Marlena", "status", "a traitor")]
    said = await play.turn("Marlena winks.")
    await play.ada.patch(f"/messages/{said}", {"audience": "gm"})
    await play.close()
    assert (await play.table.get(f"/entities/{town['marlena']}"))["status"] == "active"
    [run] = await play.runs()
    assert run["refused"][0]["reason"].endswith("may know this.")


@pytest.mark.every_database
async def test_a_scene_that_a_tool_ends_is_compressed(play: Play, model: Recorder) -> None:
    await play.turn("I look around.")
    roof = {"location": "The roof", "description": "Slates, wet.", "title": "On the roof"}
    model.script(called(("set_scene", roof), text="Up."), called(("finish_turn", {}), text="Wet."))
    said = await play.turn("I climb out.")
    scene = await play.scene()
    assert (scene["status"], scene["beats"], scene["summary"]) == ("closed", 2, "They broke in.")
    assert len(list_lines(model.asked[0])) == 4
    state = await play.table.get("/state")
    assert (state["scene"]["title"], state["scene"]["beats"]) == ("On the roof", 0)
    await play.turn("", regenerate_of=said)
    scene = await play.scene()
    assert (scene["status"], scene["beats"], scene["summary"]) == ("open", 2, "")


async def test_limiting_a_message_limits_scene_and_threads(play: Play, model: Recorder) -> None:
    model.kept["seeds"] = [DEBT]
    before = await play.turn("Before the scene.")
    await play.close()
    later = await play.table.add("scenes", title="The roof")
    said = await play.turn("Now.")
    await play.table.ask("POST", f"/scenes/{later['id']}/close")
    await play.at_rest()
    await play.ada.patch(f"/messages/{said}", {"audience": "gm"})
    assert (await play.table.get(f"/scenes/{later['id']}"))["audience"] == "gm"
    assert (await play.scene())["audience"] == "public"
    assert [each["audience"] for each in (await play.table.get("/threads"))["items"]] == ["public"]
    await play.ada.patch(f"/messages/{before}", {"audience": "gm"})
    assert (await play.scene())["audience"] == "gm"
    assert [each["audience"] for each in (await play.table.get("/threads"))["items"]] == ["gm"]


PROMISE = "Forty crowns, Holt, by the new moon."
SAYING = "We call it the Drowned Bell."


def make_quote(quote: str, about: str = "", kind: str = "promised") -> dict[str, Any]:
    return {"quote": quote, "about": about, "kind": kind}


async def facts_by_text(play: Play) -> dict[str, dict[str, Any]]:
    return {each["text"]: each for each in (await play.table.get("/facts"))["items"]}


@pytest.mark.every_database
async def test_a_quote_is_a_fact_with_subject_and_line(play: Play, model: Recorder) -> None:
    town = await seagate(play.table)
    model.kept["kept"] = [
        make_quote(PROMISE, "the Inspector"),
        make_quote(f"“{SAYING}”", "the Bell", "coined"),
        make_quote("The lock gives way with a sigh.", "Nobody", "owned"),
        make_quote("Fifty crowns, Holt.", "Holt"),
        make_quote("x" * 500),
        {"quote": SAYING},
    ]
    await play.turn(f'I bow to the Inspector. "{PROMISE}"')
    await play.turn(SAYING)
    await play.close()
    found = await facts_by_text(play)
    assert set(found) == {PROMISE, f"“{SAYING}”", "The lock gives way with a sigh."}
    assert found[PROMISE]["about_id"] == town["holt"]
    assert found[f"“{SAYING}”"]["about_id"] is None
    lines = {each["id"]: each["text"] for each in await play.ada.messages(play.chat)}
    sources = {
        each["set"]["text"]: lines[each["message_id"]]
        for each in await play.changes()
        if each["target"]["kind"] == "fact"
    }
    assert all(text.strip("“”") in line for text, line in sources.items())
    [run] = await play.runs()
    assert [each["tool"] for each in run["refused"]] == ["quote"] * 3
    assert run["refused"][1]["reason"] == "It is in no line: Fifty crowns, Holt."


async def test_known_and_deleted_quotes_are_not_added(play: Play, model: Recorder) -> None:
    town = await seagate(play.table)
    await play.table.add("facts", text=f"{PROMISE}", about_id=town["holt"])
    model.kept["kept"] = [
        make_quote(PROMISE, "Inspector Holt"),
        make_quote(SAYING),
        make_quote(SAYING),
    ]
    await play.turn(f"Inspector Holt! {PROMISE} {SAYING}")
    await play.close()
    assert sorted(await facts_by_text(play)) == [PROMISE, SAYING]
    assert len((await play.table.get("/facts"))["items"]) == 2
    await play.table.delete(f"/facts/{(await facts_by_text(play))[SAYING]['id']}")
    later = await play.table.add("scenes", title="The roof")
    play.scene_id = later["id"]
    await play.turn(SAYING)
    await play.close()
    assert list(await facts_by_text(play)) == [PROMISE]


async def test_a_quote_follows_its_line(play: Play, model: Recorder) -> None:
    model.kept["kept"] = [make_quote(PROMISE)]
    await play.turn(PROMISE)
    said = await play.turn("I leave.")
    await play.close()
    model.kept["kept"] = []
    await play.turn("", regenerate_of=said)
    assert list(await facts_by_text(play)) == [PROMISE]
    first = (await play.ada.messages(play.chat))[0]
    await play.ada.patch(f"/messages/{first['id']}", {"text": "Nothing."})
    assert await facts_by_text(play) == {}


@pytest.mark.every_database
async def test_a_quote_has_the_audience_of_its_line(play: Play, model: Recorder) -> None:
    model.kept["kept"] = [make_quote(PROMISE), make_quote(SAYING)]
    secret = await play.turn(PROMISE, audience="gm")
    said = await play.turn(SAYING)
    await play.close()
    found = await facts_by_text(play)
    assert (found[PROMISE]["audience"], found[SAYING]["audience"]) == ("gm", "public")
    line = (await play.ada.messages(play.chat))[2]
    assert line["text"] == SAYING
    await play.ada.patch(f"/messages/{said}", {"audience": "gm"})
    assert (await facts_by_text(play))[SAYING]["audience"] == "public"
    await play.ada.patch(f"/messages/{line['id']}", {"audience": "gm"})
    assert (await facts_by_text(play))[SAYING]["audience"] == "gm"
    assert secret


@pytest.mark.every_database
async def test_a_quote_outlives_its_scene(play: Play, model: Recorder) -> None:
    await play.table.change("", settings={"chapter_scenes": 3})
    model.kept["kept"] = [make_quote(PROMISE)]
    await play.turn(PROMISE)
    await play.close()
    for number in range(2, 5):
        await play.end(number)
    assert len(await play.chapters()) == 1
    assert list(await facts_by_text(play)) == [PROMISE]
