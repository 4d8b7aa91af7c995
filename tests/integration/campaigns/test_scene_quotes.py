"""What a scene coins, owns, promises and owes stays word for word, as facts of the lines."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.campaigns.recorder import (
    Play,
    Recorder,
    fresh,
    model,
    play,
    server,
    short_waits,
)
from tests.integration.campaigns.seagate import seagate

__all__ = ["fresh", "model", "play", "server", "short_waits"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("fresh", "short_waits")]

PROMISE = "Forty crowns, Holt, by the new moon."
SAYING = "We call it the Drowned Bell."


def kept(quote: str, about: str = "", kind: str = "promised") -> dict[str, Any]:
    return {"quote": quote, "about": about, "kind": kind}


async def facts(play: Play) -> dict[str, dict[str, Any]]:
    return {each["text"]: each for each in (await play.table.get("/facts"))["items"]}


@pytest.mark.every_database
async def test_what_is_quoted_is_a_fact_of_whom_it_is_about_and_of_its_line(
    play: Play, model: Recorder
) -> None:
    town = await seagate(play.table)
    model.kept["kept"] = [
        kept(PROMISE, "the Inspector"),
        kept(f"“{SAYING}”", "the Bell", "coined"),
        kept("The lock gives way with a sigh.", "Nobody", "owned"),
        kept("Fifty crowns, Holt.", "Holt"),
        kept("x" * 500),
        {"quote": SAYING},
    ]
    await play.turn(f'I bow to the Inspector. "{PROMISE}"')
    await play.turn(SAYING)
    await play.close()
    found = await facts(play)
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


async def test_what_is_known_is_not_told_twice_nor_what_the_user_took_back(
    play: Play, model: Recorder
) -> None:
    town = await seagate(play.table)
    await play.table.add("facts", text=f"{PROMISE}", about_id=town["holt"])
    model.kept["kept"] = [kept(PROMISE, "Inspector Holt"), kept(SAYING), kept(SAYING)]
    await play.turn(f"Inspector Holt! {PROMISE} {SAYING}")
    await play.close()
    assert sorted(await facts(play)) == [PROMISE, SAYING]
    assert len((await play.table.get("/facts"))["items"]) == 2
    await play.table.delete(f"/facts/{(await facts(play))[SAYING]['id']}")
    later = await play.table.add("scenes", title="The roof")
    play.scene_id = later["id"]
    await play.turn(SAYING)
    await play.close()
    assert list(await facts(play)) == [PROMISE]


async def test_it_goes_with_its_line_alone(play: Play, model: Recorder) -> None:
    model.kept["kept"] = [kept(PROMISE)]
    await play.turn(PROMISE)
    said = await play.turn("I leave.")
    await play.close()
    model.kept["kept"] = []
    await play.turn("", regenerate_of=said)
    assert list(await facts(play)) == [PROMISE]
    first = (await play.ada.messages(play.chat))[0]
    await play.ada.patch(f"/messages/{first['id']}", {"text": "Nothing."})
    assert await facts(play) == {}


@pytest.mark.every_database
async def test_it_is_for_those_who_may_know_its_line(play: Play, model: Recorder) -> None:
    model.kept["kept"] = [kept(PROMISE), kept(SAYING)]
    secret = await play.turn(PROMISE, audience="gm")
    said = await play.turn(SAYING)
    await play.close()
    found = await facts(play)
    assert (found[PROMISE]["audience"], found[SAYING]["audience"]) == ("gm", "public")
    line = (await play.ada.messages(play.chat))[2]
    assert line["text"] == SAYING
    await play.ada.patch(f"/messages/{said}", {"audience": "gm"})
    assert (await facts(play))[SAYING]["audience"] == "public"
    await play.ada.patch(f"/messages/{line['id']}", {"audience": "gm"})
    assert (await facts(play))[SAYING]["audience"] == "gm"
    assert secret


@pytest.mark.every_database
async def test_it_stays_when_its_scene_is_in_a_chapter(play: Play, model: Recorder) -> None:
    await play.table.change("", settings={"chapter_scenes": 3})
    model.kept["kept"] = [kept(PROMISE)]
    await play.turn(PROMISE)
    await play.close()
    for number in range(2, 5):
        await play.end(number)
    assert len(await play.chapters()) == 1
    assert list(await facts(play)) == [PROMISE]
