"""Tests of members: who takes part in a chat, who joins, leaves or is muted, and what they know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.chats.models import Message
from tests.fakes.openai_server import OpenAIServer, reply
from tests.fakes.scripted_server import Gate
from tests.support.models import asking, held_back
from tests.support.server import Account, Running, ok, problem, running
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[OpenAIServer]:
    """A model server that keeps the requests it has received."""
    async with OpenAIServer() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    async with running(shared_url, tmp_path_factory.mktemp("data"), **asking(model)) as server:
        yield server


@pytest.fixture
async def alda(ada: Account) -> str:
    return str((await ada.new_character(name="Alda", first_mes="Alda waits."))["id"])


@pytest.fixture
async def bor(ada: Account) -> str:
    return str((await ada.new_character(name="Bor", first_mes="Bor waits."))["id"])


@pytest.fixture
async def group(ada: Account, alda: str, bor: str) -> str:
    """A chat with Alda and Bor, which begins with Alda's greeting."""
    return str((await ada.new_chat(character_ids=[alda, bor]))["id"])


async def set_presence(ada: Account, chat: str, character: str, presence: str, **more: Any) -> Any:
    path = f"/chats/{chat}/members/{character}"
    return ok(await ada.ask("PATCH", path, json={"presence": presence, **more}))


async def presences(ada: Account, chat: str) -> dict[str, str]:
    members: Any = await ada.get(f"/chats/{chat}/members")
    return {member["name"]: member["presence"] for member in members}


async def test_members_from_the_start_are_present(
    ada: Account, group: str, alda: str, bor: str
) -> None:
    members: Any = await ada.get(f"/chats/{group}/members")
    assert members == [
        {
            "character_id": each,
            "name": name,
            "presence": "present",
            "since": None,
            "talkativeness": 0.5,
            "narrates": False,
        }
        for each, name in ((alda, "Alda"), (bor, "Bor"))
    ]


async def test_a_member_leaves_returns_and_is_muted(ada: Account, group: str, bor: str) -> None:
    for presence, text in (
        ("absent", "Bor leaves."),
        ("present", "Bor joins."),
        ("muted", "Bor only listens."),
        ("present", "Bor speaks again."),
    ):
        members = await set_presence(ada, group, bor, presence)
        last = (await ada.messages(group))[-1]
        assert members[1]["presence"] == last["presence"] == presence
        assert members[1]["since"] == last["position"]
        assert (last["text"], last["author"], last["character_id"]) == (text, "Bor", bor)
        assert (last["role"], last["hidden"], last["audience"]) == ("system", True, "public")
        assert members[0]["presence"] == "present"


async def test_presence_that_is_the_same_changes_nothing(
    ada: Account, group: str, bor: str
) -> None:
    before = await ada.messages(group)
    await set_presence(ada, group, bor, "present")
    assert await ada.messages(group) == before
    await set_presence(ada, group, bor, "absent")
    left = await ada.messages(group)
    await set_presence(ada, group, bor, "absent")
    assert await ada.messages(group) == left
    assert len(left) == len(before) + 1


async def refuse(
    ada: Account, chat: str, character: str, status: int, slug: str, **body: Any
) -> dict[str, Any]:
    """Send a change that is refused with this problem, and check that nothing has changed."""
    before = await ada.messages(chat), await presences(ada, chat)
    answer = await ada.ask("PATCH", f"/chats/{chat}/members/{character}", json=body)
    found = problem(answer, status, slug)
    assert (await ada.messages(chat), await presences(ada, chat)) == before
    return found


async def test_a_new_member_joins_and_is_not_there_before(ada: Account, group: str) -> None:
    cara = str((await ada.new_character(name="Cara"))["id"])
    before = await ada.get(f"/chats/{group}")
    members = await set_presence(ada, group, cara, "muted")
    last = (await ada.messages(group))[-1]
    assert [(each["name"], each["presence"]) for each in members] == [
        ("Alda", "present"),
        ("Bor", "present"),
        ("Cara", "muted"),
    ]
    assert members[2]["since"] == last["position"]
    after = await ada.get(f"/chats/{group}")
    assert after["character_ids"] == [*before["character_ids"], cara]
    assert after["revision"] == before["revision"] + 1
    await ada.post(f"/messages/{last['parent_id']}/activate", {"follow": False})
    assert (await presences(ada, group))["Cara"] == "absent"


async def test_changes_that_make_no_sense_are_refused(
    ada: Account, server: Running, group: str, bor: str
) -> None:
    cara = str((await ada.new_character(name="Cara"))["id"])
    found = await refuse(ada, group, cara, 404, "member-not-found", presence="absent")
    assert "Cara is not a member" in found["detail"]
    found = await refuse(
        ada, group, bor, 422, "validation-failed", presence="absent", briefing="Hello."
    )
    assert "`briefing`" in found["detail"]
    await refuse(ada, group, cara, 422, "message-empty", presence="present", briefing=" \n")
    await refuse(ada, group, bor, 422, "validation-failed", presence="asleep")
    async with server.account(f"eve-{group}") as eve:
        hers = str((await eve.new_character(name="Dana"))["id"])
        await refuse(ada, group, hers, 404, "member-not-found", presence="present")
        path = f"/chats/{group}/members"
        problem(await eve.ask("GET", path), 404, "chat-not-found")
        answer = await eve.ask("PATCH", f"{path}/{hers}", json={"presence": "present"})
        problem(answer, 404, "chat-not-found")


async def test_a_chat_has_at_most_twenty_members(ada: Account, group: str) -> None:
    for number in range(18):
        made = await ada.new_character(name=f"Guest {number}")
        await set_presence(ada, group, made["id"], "present")
    made = await ada.new_character(name="Guest 18")
    await refuse(ada, group, made["id"], 422, "too-many-members", presence="present")


async def test_talkativeness_is_that_of_the_chat_or_of_the_card(ada: Account) -> None:
    cards: list[Any] = ["0.8", 0.2, "much", 7]
    ids = [
        (await ada.new_character(name=str(each), extensions={"talkativeness": each}))["id"]
        for each in cards
    ]
    chat = (await ada.new_chat(character_ids=ids))["id"]
    own = {"group": {"talkativeness": {ids[1]: 1.0}, "narrators": [ids[2]]}}
    await ada.patch(f"/chats/{chat}/settings", own)
    members: Any = await ada.get(f"/chats/{chat}/members")
    assert [each["talkativeness"] for each in members] == [0.8, 1.0, 0.5, 0.5]
    assert [each["narrates"] for each in members] == [False, False, True, False]


async def test_no_one_joins_or_leaves_while_a_reply_is_written(
    ada: Account, group: str, bor: str, alda: str, model: OpenAIServer
) -> None:
    gate = Gate()
    model.script(held_back(gate))
    turn = asyncio.create_task(ada.turn(group, text="Who is there?", speaker=alda))
    try:
        async with asyncio.timeout(PATIENCE):
            while (await ada.messages(group))[-1]["status"] != "streaming":
                await asyncio.sleep(0.01)
        await refuse(ada, group, bor, 409, "message-busy", presence="absent")
        await set_presence(ada, group, bor, "present")  # it is so already
        patched = await ada.ask("PATCH", f"/chats/{group}", json={"character_ids": [alda]})
        problem(patched, 409, "message-busy")
        problem(await ada.ask("POST", f"/chats/{group}/duplicate"), 409, "message-busy")
        assert await presences(ada, group) == {"Alda": "present", "Bor": "present"}
    finally:
        gate.opened.set()
        await turn
    await set_presence(ada, group, bor, "absent")


# Changes of presence in the tree.


async def test_a_branch_undoes_a_change_and_returns_to_it(
    ada: Account, group: str, alda: str, bor: str
) -> None:
    await ada.turn(group, text="Stay here.", speaker=alda)
    line = (await ada.messages(group))[1]
    await set_presence(ada, group, bor, "absent")
    left = (await ada.messages(group))[-1]
    await ada.turn(group, text="Now we are alone.", speaker=alda)
    assert (await presences(ada, group))["Bor"] == "absent"
    await ada.patch(f"/messages/{line['id']}", {"text": "Stay, both of you."})
    assert (await presences(ada, group))["Bor"] == "present"
    await ada.post(f"/messages/{left['id']}/activate")
    assert (await presences(ada, group))["Bor"] == "absent"
    path = await ada.messages(group)
    assert [each["text"] for each in path[-2:]][:1] == ["Now we are alone."]
    await ada.delete(f"/messages/{left['id']}", status=200)
    assert (await presences(ada, group))["Bor"] == "present"


async def test_a_swipe_of_an_earlier_reply_undoes_a_change(
    ada: Account, group: str, alda: str, bor: str
) -> None:
    await ada.turn(group, text="Stay here.", speaker=alda)
    reply = (await ada.messages(group))[-1]
    await set_presence(ada, group, bor, "absent")
    await ada.turn(group, regenerate_of=reply["id"])
    assert (await presences(ada, group))["Bor"] == "present"
    await ada.post(f"/messages/{reply['id']}/activate")
    assert (await presences(ada, group))["Bor"] == "absent"


async def test_a_change_of_presence_stays_as_it_is(ada: Account, group: str, bor: str) -> None:
    await set_presence(ada, group, bor, "absent")
    before = await ada.messages(group)
    path = f"/messages/{before[-1]['id']}"
    for body in ({"text": "Bor stays."}, {"hidden": False}, {"audience": "gm"}):
        problem(await ada.ask("PATCH", path, json=body), 409, "presence-message")
    problem(await ada.ask("POST", f"{path}/thoughts-as-text"), 409, "presence-message")
    await ada.patch(path, {"hidden": True})  # it is so already
    assert await ada.messages(group) == before


async def test_a_fork_has_the_members_with_their_presence(
    ada: Account, group: str, alda: str, bor: str
) -> None:
    cara = str((await ada.new_character(name="Cara"))["id"])
    await set_presence(ada, group, cara, "present", briefing="The bridge is down.")
    await ada.turn(group, text="Welcome.", speaker=alda)
    await set_presence(ada, group, bor, "muted")
    last = (await ada.messages(group))[-1]
    copy = await ada.post(f"/chats/{group}/fork", {"message_id": last["id"]}, 201)
    assert await ada.get(f"/chats/{copy['id']}/members") == await ada.get(f"/chats/{group}/members")
    first = (await ada.messages(copy["id"]))[0]
    await ada.post(f"/messages/{first['id']}/activate", {"follow": False})
    assert (await presences(ada, copy["id"]))["Cara"] == "absent"


# Turns.


async def ask(ada: Account, model: OpenAIServer, chat: str, **body: Any) -> str:
    """Take a turn, and return its whole prompt."""
    events = await ada.turn(chat, **body)
    assert events[-1].name == "turn.completed", events[-1]
    return "\n".join(str(each["content"]) for each in model.requests[-1].body["messages"])


async def test_a_turn_looks_past_changes_of_presence(
    ada: Account, group: str, alda: str, bor: str, model: OpenAIServer
) -> None:
    await ada.turn(group, text="Stay here.", speaker=alda)
    reply = (await ada.messages(group))[-1]
    await ada.delete(f"/messages/{reply['id']}", status=200)
    await set_presence(ada, group, bor, "absent")
    left = (await ada.messages(group))[-1]
    prompt = await ask(ada, model, group, speaker=alda)
    assert "Stay here." in prompt
    assert "Bor leaves." not in prompt
    answer = (await ada.messages(group))[-1]
    assert (answer["role"], answer["parent_id"]) == ("assistant", left["id"])
    assert model.requests[-1].body["messages"][-1]["role"] == "user"
    again = await ask(ada, model, group, regenerate_of=answer["id"])
    assert again == prompt
    swipe = (await ada.messages(group))[-1]
    assert (swipe["parent_id"], swipe["sibling_count"]) == (left["id"], 2)


async def test_a_reply_is_continued_below_changes_of_presence(
    ada: Account, server: Running, group: str, alda: str, bor: str, model: OpenAIServer
) -> None:
    model.script(reply("The door", " is open."))
    await ada.turn(group, text="Stay here.", speaker=alda)
    await set_presence(ada, group, bor, "absent")
    model.script(reply(" So is the window, wide and bright in the morning sun."))
    await ada.turn(group, **{"continue": True})
    *_, said, left = await ada.messages(group)
    assert said["text"] == (
        "The door is open. So is the window, wide and bright in the morning sun."
    )
    assert (left["presence"], left["parent_id"]) == ("absent", said["id"])
    await ada.turn(group, text="And now?", speaker=alda)
    sums: dict[UUID | None, int] = {None: 0}
    async with server.parts.database.read() as session:
        query = select(Message).where(Message.chat_id == UUID(group)).order_by(Message.position)
        for row in await session.scalars(query):
            sums[row.id] = sums[row.parent_id] + (0 if row.hidden else row.tokens)
            assert row.path_tokens == sums[row.id]


async def test_an_empty_chat_opens_below_changes_of_presence(
    ada: Account, alda: str, bor: str, model: OpenAIServer
) -> None:
    chat = str((await ada.new_chat())["id"])
    members = await set_presence(ada, chat, alda, "present")
    assert members[0]["presence"] == "present"
    joined = (await ada.messages(chat))[-1]
    await ada.turn(chat)
    opened = (await ada.messages(chat))[-1]
    assert (opened["parent_id"], opened["character_id"]) == (joined["id"], alda)


async def test_who_is_absent_does_not_speak(
    ada: Account, group: str, alda: str, bor: str, model: OpenAIServer
) -> None:
    await set_presence(ada, group, bor, "absent")
    before = await ada.messages(group)
    turns = f"/chats/{group}/turns"
    for body in ({"text": "Bor?", "speaker": bor}, {"speaker": bor}):
        found = problem(await ada.ask("POST", turns, json=body), 409, "member-absent")
        assert (found["name"], found["character_id"]) == ("Bor", bor)
        assert "Bor is absent" in found["detail"]
    whispered = await ada.ask("POST", turns, json={"text": "Psst.", "audience": [bor]})
    assert problem(whispered, 409, "member-absent")["name"] == "Bor"
    await set_presence(ada, group, alda, "absent")
    problem(await ada.ask("POST", turns, json={"text": "Anyone?"}), 409, "nobody-present")
    assert [each["text"] for each in (await ada.messages(group))[:-1]] == [
        each["text"] for each in before
    ]
    await ada.get(f"/chats/{group}/context", text="Anyone?")
    await ada.turn(group, impersonate=True)


async def test_a_muted_member_speaks_only_when_asked(
    ada: Account, group: str, alda: str, bor: str, model: OpenAIServer
) -> None:
    await set_presence(ada, group, bor, "muted")
    for _ in range(3):
        await ada.turn(group, text="Bor, what do you say?")
        assert (await ada.messages(group))[-1]["character_id"] == alda
    prompt = await ask(ada, model, group, text="Do speak.", speaker=bor)
    assert "Bor, what do you say?" in prompt
    assert (await ada.messages(group))[-1]["character_id"] == bor


async def test_a_reply_is_regenerated_with_who_was_there_then(
    ada: Account, group: str, alda: str, bor: str, model: OpenAIServer
) -> None:
    await ada.turn(group, text="Who is there?", speaker=bor)
    said = (await ada.messages(group))[-1]
    await set_presence(ada, group, bor, "absent")
    await ada.turn(group, text="He is gone.", speaker=alda)
    await ada.turn(group, regenerate_of=said["id"])
    swipe = (await ada.messages(group))[-1]
    assert (swipe["character_id"], swipe["sibling_count"]) == (bor, 2)
    await ada.post(f"/messages/{said['id']}/activate")
    last = (await ada.messages(group))[-1]
    found = await ada.ask(
        "POST", f"/chats/{group}/turns", json={"regenerate_of": last["id"], "speaker": bor}
    )
    problem(found, 409, "member-absent")
    await ada.turn(group, regenerate_of=said["id"], speaker=alda)
    assert (await ada.messages(group))[-1]["character_id"] == alda


async def test_a_late_member_knows_only_what_was_said_since(
    ada: Account, group: str, alda: str, bor: str, model: OpenAIServer
) -> None:
    await ada.turn(group, text="The password is heron.", speaker=alda)
    cara = str((await ada.new_character(name="Cara"))["id"])
    await set_presence(ada, group, cara, "present")
    prompt = await ask(ada, model, group, text="Welcome to the harbour.", speaker=cara)
    assert "heron" not in prompt
    assert "Alda waits." not in prompt
    assert "Welcome to the harbour." in prompt
    assert "heron" in await ask(ada, model, group, text="Well?", speaker=bor)


async def test_who_joins_after_a_line_speaks_without_it(
    ada: Account, group: str, alda: str, model: OpenAIServer
) -> None:
    await ada.turn(group, text="The password is heron.", speaker=alda)
    reply = (await ada.messages(group))[-1]
    await ada.delete(f"/messages/{reply['id']}", status=200)
    cara = str((await ada.new_character(name="Cara"))["id"])
    await set_presence(ada, group, cara, "present", briefing="You look for a lost cat.")
    told = (await ada.messages(group))[-1]
    prompt = await ask(ada, model, group, speaker=cara)
    assert "heron" not in prompt
    assert "You look for a lost cat." in prompt
    said = (await ada.messages(group))[-1]
    assert (said["parent_id"], said["audience"]) == (told["id"], "public")
    again = await ask(ada, model, group, regenerate_of=said["id"])
    assert again == prompt


async def test_only_the_one_who_joins_is_told_the_briefing(
    ada: Account, group: str, alda: str, bor: str, model: OpenAIServer
) -> None:
    cara = str((await ada.new_character(name="Cara"))["id"])
    await set_presence(ada, group, cara, "present", briefing="The bridge is down.")
    joined, told = (await ada.messages(group))[-2:]
    assert (joined["presence"], told["parent_id"]) == ("present", joined["id"])
    assert (told["text"], told["author"], told["role"]) == ("The bridge is down.", "Cara", "system")
    assert (told["audience"], told["hidden"], told["presence"]) == ([cara], False, None)
    assert told["character_id"] == cara
    assert "The bridge is down." in await ask(ada, model, group, text="Hello.", speaker=cara)
    for other in (alda, bor):
        prompt = await ask(ada, model, group, text="Well?", speaker=other)
        assert "The bridge is down." not in prompt
    await set_presence(ada, group, cara, "absent")
    await set_presence(ada, group, cara, "present")
    assert "The bridge is down." in await ask(ada, model, group, text="Again.", speaker=cara)


async def test_someone_who_is_there_can_be_told_more(
    ada: Account, group: str, bor: str, model: OpenAIServer
) -> None:
    before = await ada.messages(group)
    await set_presence(ada, group, bor, "present", briefing="The bridge is down.")
    *same, told = await ada.messages(group)
    assert same == before
    assert (told["text"], told["audience"], told["presence"]) == (
        "The bridge is down.",
        [bor],
        None,
    )
    assert "The bridge is down." in await ask(ada, model, group, text="Hello.", speaker=bor)


async def test_a_whisper_is_known_to_those_it_names(
    ada: Account, group: str, alda: str, bor: str, model: OpenAIServer
) -> None:
    await ada.turn(group, text="The key is under the mat.", audience=[bor], speaker=bor)
    _, line, said = await ada.messages(group)
    assert line["audience"] == said["audience"] == [bor]
    assert "under the mat" in await ask(ada, model, group, text="Well?", speaker=bor)
    assert "under the mat" not in await ask(ada, model, group, text="Well?", speaker=alda)
    await ada.patch(f"/messages/{line['id']}", {"audience": [alda, bor]})
    assert "under the mat" in await ask(ada, model, group, text="Well?", speaker=alda)
    await ada.patch(f"/chats/{group}", {"character_ids": [alda]})
    found = await ada.ask("PATCH", f"/messages/{line['id']}", json={"audience": [bor]})
    problem(found, 422, "validation-failed")


async def test_the_audience_of_a_line_is_judged_at_its_place(
    ada: Account, group: str, alda: str, bor: str
) -> None:
    await ada.turn(group, text="The key is under the mat.", speaker=alda)
    early = (await ada.messages(group))[1]
    await set_presence(ada, group, bor, "absent")
    await ada.turn(group, text="He is gone.", speaker=alda)
    late = (await ada.messages(group))[-2]
    changed = await ada.patch(f"/messages/{early['id']}", {"audience": [bor]})
    assert changed["audience"] == [bor]
    for body in ({"audience": [bor]}, {"text": "Away.", "audience": [bor]}):
        answer = await ada.ask("PATCH", f"/messages/{late['id']}", json=body)
        assert problem(answer, 409, "member-absent")["name"] == "Bor"


# The list of members.


async def test_the_list_of_members_changes_with_messages(
    ada: Account, group: str, alda: str, bor: str, model: OpenAIServer
) -> None:
    cara = str((await ada.new_character(name="Cara"))["id"])
    await ada.turn(group, text="The password is heron.", speaker=alda)
    await ada.patch(f"/chats/{group}", {"character_ids": [cara, alda]})
    left, joined = (await ada.messages(group))[-2:]
    assert [(each["text"], each["presence"]) for each in (left, joined)] == [
        ("Bor leaves.", "absent"),
        ("Cara joins.", "present"),
    ]
    assert await presences(ada, group) == {"Cara": "present", "Alda": "present"}
    await ada.patch(f"/chats/{group}", {"character_ids": [alda, cara]})  # only in another order
    assert (await ada.messages(group))[-1] == joined
    assert "heron" not in await ask(ada, model, group, text="Hello.", speaker=cara)
    await ada.patch(f"/chats/{group}", {"character_ids": [alda, cara, bor]})
    assert "Hello." not in await ask(ada, model, group, text="Back again?", speaker=bor)
    assert "heron" in await ask(ada, model, group, text="Well?", speaker=alda)


async def test_members_of_an_empty_chat_are_there_from_the_start(
    ada: Account, alda: str, bor: str
) -> None:
    chat = str((await ada.new_chat())["id"])
    await ada.patch(f"/chats/{chat}", {"character_ids": [bor, alda]})
    assert await ada.messages(chat) == []
    assert await presences(ada, chat) == {"Bor": "present", "Alda": "present"}


async def test_a_solo_chat_becomes_a_group(
    ada: Account, alda: str, bor: str, model: OpenAIServer
) -> None:
    chat = str((await ada.new_chat(character_ids=[alda]))["id"])
    await ada.turn(chat, text="The password is heron.")
    before = {each["id"]: each["tokens"] for each in await ada.messages(chat)}
    await set_presence(ada, chat, bor, "present")
    prompt = await ask(ada, model, chat, text="Hello, Bor.", speaker=bor)
    assert "heron" not in prompt
    assert "heron" in await ask(ada, model, chat, text="Well?", speaker=alda)
    async with asyncio.timeout(PATIENCE):  # the messages are counted again with names
        while not all(
            each["tokens"] > before[each["id"]]
            for each in await ada.messages(chat)
            if each["id"] in before
        ):
            await asyncio.sleep(0.05)
    prompt = await ask(ada, model, chat, text="And you?", speaker=bor)
    assert "Alda:" in prompt


async def test_a_deleted_character_leaves_its_messages(
    ada: Account, group: str, alda: str, bor: str, model: OpenAIServer
) -> None:
    await set_presence(ada, group, bor, "muted")
    await ada.turn(group, text="Who is there?", speaker=alda)
    before = await ada.messages(group)
    await ada.delete(f"/characters/{bor}")
    assert await presences(ada, group) == {"Alda": "present"}
    assert await ada.messages(group) == before
    assert "Who is there?" in await ask(ada, model, group, text="Well?")
    fork = await ada.post(f"/chats/{group}/fork", {"message_id": before[-1]["id"]}, 201)
    assert await presences(ada, fork["id"]) == {"Alda": "present"}
