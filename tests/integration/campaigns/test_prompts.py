"""State blocks and facts of a campaign in the prompts of its chats."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.integration.campaigns.seagate import Table, seagate
from tests.support.server import Account, ok, problem

pytestmark = [pytest.mark.anyio]


async def _last(ada: Account, chat_id: str) -> dict[str, Any]:
    return (await ada.messages(chat_id))[-1]


async def _context(ada: Account, chat_id: str) -> dict[str, Any]:
    reply = await _last(ada, chat_id)
    answer = await ada.get(f"/messages/{reply['id']}/context")
    context: dict[str, Any] = answer
    return context


async def test_the_full_state_block_is_followed_by_light_ones(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    chat = await ada.new_chat(campaign_id=table.campaign["id"])
    assert (await table.get("/context", chat_id=chat["id"], text="continue"))["form"] == "full"

    await ada.turn(chat["id"], text="I come in.")
    first = (await _last(ada, chat["id"]))["injected_context"]
    assert first.startswith("## SESSION CONTEXT: Seagate")
    context = await _context(ada, chat["id"])
    state = next(item for item in context["items"] if item["kind"] == "state")
    assert (state["text"], state["reason"]) == (first, "state block: first message of the chat")
    assert [each["text"] for each in context["prompt"]][-2:] == [first, "I come in."]
    assert "CAMPAIGN: Seagate" in context["prompt"][0]["text"]

    await ada.turn(chat["id"], text="I look around")
    light = (await _last(ada, chat["id"]))["injected_context"]
    assert light == "[Day 5 | Jake HP 13/13 | at the-salty-sigil | with Marlena]"

    await ada.turn(chat["id"], text="What\u2019s next ?")
    again = await _last(ada, chat["id"])
    assert again["injected_context"].startswith("## SESSION CONTEXT")

    await table.change(f"/entities/{ids['jake']}", location_id=ids["hills"])
    asked = await table.get("/context", chat_id=chat["id"], text="I look around")
    assert (asked["form"], asked["why"]) == ("full", "the place changed")
    await ada.turn(chat["id"], text="I look around")
    moved = (await _last(ada, chat["id"]))["injected_context"]
    assert "Inspector Holt" in moved
    assert "Marlena" not in moved
    users = [each for each in await ada.messages(chat["id"]) if each["role"] == "user"]
    assert {each["injected_context"] for each in users} == {None}


async def test_a_swipe_has_the_state_block_of_its_line(ada: Account, table: Table) -> None:
    await seagate(table)
    chat = await ada.new_chat(campaign_id=table.campaign["id"])
    await ada.turn(chat["id"], text="I come in.")
    reply = await _last(ada, chat["id"])
    await ada.turn(chat["id"], regenerate_of=reply["id"])
    swipe = await _last(ada, chat["id"])
    assert swipe["id"] != reply["id"]
    assert swipe["injected_context"] == reply["injected_context"]
    fork = await ada.post(f"/chats/{chat['id']}/fork", {"message_id": swipe["id"]}, 201)
    assert (await _last(ada, fork["id"]))["injected_context"] == swipe["injected_context"]
    await ada.turn(fork["id"], text="I look around")
    assert (await _last(ada, fork["id"]))["injected_context"].startswith("[Day 5")


async def test_mentioned_people_bring_their_facts(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    await table.add("facts", about_id=ids["holt"], text="Holt counts the gulls twice.")
    chat = await ada.new_chat(campaign_id=table.campaign["id"])
    await ada.turn(chat["id"], text="I come in.")
    asked = await table.get("/context", chat_id=chat["id"], text="Where is Holt\u2019s coach?")
    assert asked["form"] == "light"
    await ada.turn(chat["id"], text="Where is Holt\u2019s coach?")
    context = await _context(ada, chat["id"])
    assert any("Holt counts the gulls twice." in each["text"] for each in context["prompt"])


async def test_facts_show_their_subject_and_audience(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    jake = ids["jake"]
    for about, text, audience in (
        ("marlena", "owes the Guild 40 gold", "public"),
        ("marlena", "Marlena wears a wig", [jake]),
        ("jake", "is the heir", "gm"),
        ("holt", "takes bribes", "gm"),
    ):
        await table.add("facts", about_id=ids[about], text=text, audience=audience)
    asked = {"text": "Where is Holt?"}
    block = (await table.get("/context", **asked))["full"]
    told = block.partition("### Known facts\n")[2].partition("\n\n")[0].splitlines()
    assert sorted(told) == [
        "- (known to Jake only) Marlena wears a wig",
        "- (secret: game master only) Jake: is the heir",
        "- Marlena: owes the Guild 40 gold",
    ]
    # Everyone who is present knows it.
    for_jake = (await table.get("/context", **asked, viewpoint=jake))["full"]
    assert "- (known to Jake only) Marlena wears a wig" in for_jake
    both = [jake, ids["marlena"]]
    [wig] = [each for each in (await table.get("/facts"))["items"] if "wig" in each["text"]]
    await table.change(f"/facts/{wig['id']}", audience=both)
    assert "- Marlena wears a wig" in (await table.get("/context", **asked, viewpoint=jake))["full"]
    assert (
        "- (known to Jake and Marlena only) Marlena wears a wig"
        in (await table.get("/context", **asked))["full"]
    )
    # A named person is shown with the facts.
    chat = await ada.new_chat(campaign_id=table.campaign["id"])
    await ada.turn(chat["id"], **asked)
    prompt = "\n".join(each["text"] for each in (await _context(ada, chat["id"]))["prompt"])
    assert "Inspector Holt (active, at Sunfall Hills): (secret: game master only) takes" in prompt


async def test_a_plain_chat_contains_nothing_of_a_campaign(ada: Account, table: Table) -> None:
    await seagate(table)
    chat = await ada.new_chat()
    await ada.turn(chat["id"], text="I come in to see Marlena.")
    assert (await _last(ada, chat["id"]))["injected_context"] is None
    kinds = {item["kind"] for item in (await _context(ada, chat["id"]))["items"]}
    assert kinds.isdisjoint({"campaign", "state", "scenes", "mentioned"})


async def test_changes_follow_their_reply(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    chat = await ada.new_chat(campaign_id=table.campaign["id"])
    await ada.turn(chat["id"], text="I ride out to the hills.")
    reply = await _last(ada, chat["id"])
    there = {"location_id": ids["hills"]}
    moved = await table.ask(
        "PATCH", f"/entities/{ids['jake']}?message_id={reply['id']}", json=there
    )
    assert ok(moved)["location_id"] == ids["hills"]
    (change, *_) = (await table.get("/changes"))["items"]
    assert (change["message_id"], change["counts"]) == (reply["id"], True)
    found = await table.ask("POST", f"/clocks?message_id={reply['id']}", json={"name": "Storm"})
    clock = ok(found, 201)["id"]
    at = await table.get("/context", chat_id=chat["id"], text="I look around")
    assert (at["form"], "Inspector Holt" in at["full"]) == ("full", True)

    await ada.turn(chat["id"], regenerate_of=reply["id"])
    swipe = await _last(ada, chat["id"])
    assert "**The Salty Sigil**" in swipe["injected_context"]
    assert "Storm" not in swipe["injected_context"]
    assert ids["jake"] not in {
        item.get("source_id") for item in (await _context(ada, chat["id"]))["retrieved"]
    }
    assert (await table.get(f"/entities/{ids['jake']}"))["location_id"] == ids["shop"]
    problem(await table.ask("GET", f"/clocks/{clock}"), 404, "campaign-item-not-found")
    at = await table.get("/context", chat_id=chat["id"], text="continue")
    assert "**The Salty Sigil**" in at["full"]
    problem(
        await table.ask("PATCH", f"/entities/{ids['jake']}?message_id={reply['id']}", json=there),
        422,
        "validation-failed",
    )

    await ada.post(f"/messages/{reply['id']}/activate", {})
    assert (await table.get(f"/entities/{ids['jake']}"))["location_id"] == ids["hills"]
    assert (await table.get("/clocks"))["items"][0]["id"] == clock
    elsewhere = await ada.new_chat()
    await ada.turn(elsewhere["id"], text="Hello.")
    other = await _last(ada, elsewhere["id"])
    answer = await table.ask("POST", f"/clocks?message_id={other['id']}", json={"name": "Storm"})
    problem(answer, 422, "validation-failed")


async def test_only_feelings_for_players_are_shown(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    hesk = await table.add("entities", kind="npc", name="Hesk", location_id=ids["shop"])
    other = await table.add("entities", kind="npc", name="Cass", location_id=ids["shop"])
    await table.add("relations", from_id=hesk["id"], to_id=ids["jake"], score=80)
    await table.add("relations", from_id=hesk["id"], to_id=other["id"], score=-90)
    full = (await table.get("/context", text="continue"))["full"]
    assert "**Hesk** [active] - devoted" in full
    assert "**Cass** [active]\n" in f"{full}\n"


PYTHON = re.compile(r"\b(True|False|None)\b|\{'|\['|UUID\(")


@pytest.mark.parametrize("tools", [True, False])
async def test_each_item_is_in_a_prompt_once_and_in_words(ada: Account, tools: bool) -> None:
    made = await ada.post(
        "/campaigns", {"name": "Seagate", "rules": "blades", "settings": {"tools": tools}}, 201
    )
    table = Table(ada, made)
    await table.change(
        "",
        attributes={"heat": 4, "wanted": 1, "dice": [6, 1]},
        flags={"bridge_down": True, "alarm": False},
    )
    ids = await seagate(table)
    numbers = {
        "stress": 6, "stress_max": 9, "ratings": {"violence": 0, "arcane": 2}, "sworn": True,
        "mentor": None, "inventory": [{"name": "rope", "count": 2}, "lamp"], "speed": 9.0,
    }  # fmt: skip
    await table.change(f"/entities/{ids['jake']}", attributes=numbers)
    await table.change(f"/entities/{ids['marlena']}", wants="Her sister back")
    await table.add("clocks", name="The Watch", segments=4, filled=3, consequence="They search.")
    await table.add("clocks", name="The Traitor", segments=6, filled=1, visible=False)
    clock = (await table.add("clocks", name="The Flood", filled=2))["id"]
    await table.add(
        "threads", title="The drowned bell", tension="urgent", kind="threat", clock_id=clock,
        objectives=[{"text": "Find the clapper"}, {"text": "Ask Holt", "done": True}],
    )  # fmt: skip
    await table.add("echoes", text="The mirror is broken", kind="cost")
    for number in range(4):
        await table.add("echoes", text=f"Rival {number} wants blood", kind="threat")
    await table.add("scenes", location_id=ids["shop"], stakes="The muffled token")
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    once = (
        "The Watch 3/4: They search.", "The Flood 2/6", "The drowned bell", "Find the clapper",
        "The mirror is broken", *(f"Rival {number} wants blood" for number in range(4)),
        "The muffled token", "Her sister back", "Heat: 4/9", "Wanted level: 1/4",
        "Room for stress before a trauma: Jake 2", "stress: 6/9", "ratings: violence 0, arcane 2",
        "sworn: yes", "Inventory: rope (count 2); lamp", "speed: 9",
    )  # fmt: skip
    secret = ("bridge down: yes", "alarm: no", "The Traitor 1/6")
    line = "I tell Marlena of the drowned bell, the Watch and the broken mirror."
    for viewpoint, hidden in (("gm", 1), ("public", 0)):
        asked: dict[str, Any] = {"text": line, "prompt": True, "viewpoint": viewpoint}
        answer = await ada.get(f"/chats/{chat}/context", **asked)
        told = "\n".join(each["text"] for each in answer["prompt"])
        assert {each: told.count(each) for each in once} == dict.fromkeys(once, 1)
        assert {each: told.count(each) for each in secret} == dict.fromkeys(secret, hidden)
        assert told.count("secret: game master only") == 2 * hidden
        assert PYTHON.findall(told) == []
    whole = await table.get("/context", chat_id=chat, text=line)
    assert PYTHON.findall(whole["full"] + whole["light"]) == []
