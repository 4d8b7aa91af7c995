"""Tests of messages that are added without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import pytest

from tests.fakes.openai_server import OpenAIServer, reply
from tests.fakes.scripted_server import Gate
from tests.support.memory import settled
from tests.support.models import asking, held_back
from tests.support.server import Account, Running, ok, problem, running
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


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


async def add(ada: Account, chat: str, text: str, **body: Any) -> dict[str, Any]:
    return await ada.post(f"/chats/{chat}/messages", {"text": text, **body}, 201)


async def test_lines_of_all_roles_end_the_path_and_a_character_answers_them(
    ada: Account, chat: str, model: OpenAIServer, server: Running
) -> None:
    mara = (await ada.get(f"/chats/{chat}"))["character_ids"][0]
    greeting = (await ada.messages(chat))[-1]
    night = await add(ada, chat, "Night falls.", role="system")
    assert (night["role"], night["author"], night["character_id"]) == ("system", "Narrator", None)
    assert (night["parent_id"], night["position"]) == (greeting["id"], 1)
    assert (night["hidden"], night["audience"], night["status"]) == (False, "public", "complete")
    assert night["tokens"] > 0
    said = await add(ada, chat, "I light the lamp.", role="assistant")
    assert (said["author"], said["character_id"]) == ("Mara", mara)
    own = await add(ada, chat, "I wait.")
    assert (own["role"], own["author"]) == ("user", ada.user["username"])
    path = await ada.messages(chat)
    assert [each["id"] for each in path[1:]] == [night["id"], said["id"], own["id"]]

    model.script(reply("The lamp burns."))
    await ada.turn(chat)
    sent = model.requests[-1].body["messages"]
    texts = [(each["role"], each["content"]) for each in sent]
    assert ("assistant", "I light the lamp.") in texts
    assert texts[-1] == ("user", "I wait.")
    assert any("Night falls." in text for _, text in texts)
    await settled(server)
    found: Any = ok(await ada.ask("GET", "/search", params={"q": "night falls"}))
    assert night["id"] in {item["source_id"] for item in found["items"]}


async def test_a_persona_and_a_member_are_named(ada: Account) -> None:
    persona = await ada.post("/personas", {"name": "Jo", "description": "A sailor."}, 201)
    members = [(await ada.new_character(name=name))["id"] for name in ("Alda", "Bor")]
    chat = (await ada.new_chat(character_ids=members))["id"]
    own = await add(ada, chat, "Ahoy!", persona_id=persona["id"])
    assert (own["author"], own["persona_id"]) == ("Jo", persona["id"])
    bors = await add(ada, chat, "Good morning.", role="assistant", character_id=members[1])
    assert (bors["author"], bors["character_id"]) == ("Bor", members[1])
    await ada.patch(f"/chats/{chat}", {"persona_id": persona["id"]})
    assert (await add(ada, chat, "Well?"))["author"] == "Jo"


async def test_a_whispered_line_is_in_no_prompt_of_a_member_who_did_not_hear_it(
    ada: Account, model: OpenAIServer
) -> None:
    ids = [(await ada.new_character(name=name))["id"] for name in ("Alda", "Bor", "Cid")]
    alda, bor, _ = ids
    chat = (await ada.new_chat(character_ids=ids))["id"]
    secret, told = "The ledger is under the altar.", "A draught moves the curtain."
    said = await add(ada, chat, secret, role="assistant", character_id=alda, audience=[bor])
    assert said["audience"] == [bor, alda]
    heard = await add(ada, chat, told, role="system", audience=[bor])
    assert heard["audience"] == [bor]
    for member, knows in zip(ids, ((True, False), (True, True), (False, False)), strict=True):
        model.script(reply("Hm."))
        await ada.turn(chat, text="Well?", speaker=member)
        sent = str(model.requests[-1].body["messages"])
        assert (secret in sent, told in sent) == knows
    await ada.patch(f"/chats/{chat}/members/{bor}", {"presence": "absent"})
    before = await ada.messages(chat)
    for audience, status, slug in (
        ([bor], 409, "member-absent"),
        ([str(uuid4())], 422, "validation-failed"),
    ):
        body = {"text": "Hm.", "audience": audience}
        problem(await ada.ask("POST", f"/chats/{chat}/messages", json=body), status, slug)
    assert await ada.messages(chat) == before


async def test_macros_are_expanded_and_the_user_s_are_kept_for_editing(
    ada: Account, chat: str
) -> None:
    own = await add(ada, chat, "{{char}}, wait!")
    assert (own["text"], own["typed"]) == ("Mara, wait!", "{{char}}, wait!")
    night = await add(ada, chat, "{{char}} sleeps.", role="system")
    assert (night["text"], night["typed"]) == ("Mara sleeps.", None)
    await ada.patch(f"/chats/{chat}/settings", {"expand_macros": False})
    assert (await add(ada, chat, "{{char}}!"))["text"] == "{{char}}!"


async def test_lines_that_make_no_sense_are_refused_and_change_nothing(
    ada: Account, server: Running
) -> None:
    ids = [(await ada.new_character(name=name))["id"] for name in ("Alda", "Bor", "Cid")]
    alda, bor, cid = ids
    chat = (await ada.new_chat(character_ids=[alda, bor]))["id"]
    await ada.patch(f"/chats/{chat}/members/{bor}", {"presence": "absent"})
    before = await ada.messages(chat)
    persona = (await ada.post("/personas", {"name": "Jo"}, 201))["id"]
    longest = server.parts.settings.max_message_chars
    for body, status, slug in (
        ({"text": " \n"}, 422, "message-empty"),
        ({"text": "x" * (longest + 1)}, 422, "message-too-long"),
        ({"role": "narrator"}, 422, "validation-failed"),
        ({"role": "assistant"}, 422, "validation-failed"),
        ({"role": "assistant", "character_id": cid}, 404, "member-not-found"),
        ({"role": "assistant", "character_id": bor}, 409, "member-absent"),
        ({"role": "assistant", "persona_id": persona}, 422, "validation-failed"),
        ({"role": "system", "character_id": alda}, 422, "validation-failed"),
        ({"persona_id": str(uuid4())}, 404, "persona-not-found"),
    ):
        answer = await ada.ask("POST", f"/chats/{chat}/messages", json={"text": "Hm.", **body})
        problem(answer, status, slug)
    async with server.account("eve-of-lines") as eve:
        hers = await eve.post("/personas", {"name": "Eve"}, 201)
        answer = await ada.ask(
            "POST", f"/chats/{chat}/messages", json={"text": "Hm.", "persona_id": hers["id"]}
        )
        problem(answer, 404, "persona-not-found")
        answer = await eve.ask("POST", f"/chats/{chat}/messages", json={"text": "Hm."})
        problem(answer, 404, "chat-not-found")
    assert await ada.messages(chat) == before


async def test_no_line_is_added_while_a_reply_is_written(
    ada: Account, chat: str, model: OpenAIServer
) -> None:
    gate = Gate()
    model.script(held_back(gate))
    turn = asyncio.create_task(ada.turn(chat, text="Who is there?"))
    try:
        async with asyncio.timeout(PATIENCE):
            while (await ada.messages(chat))[-1]["status"] != "streaming":
                await asyncio.sleep(0.01)
        answer = await ada.ask(
            "POST", f"/chats/{chat}/messages", json={"role": "system", "text": "Night falls."}
        )
        problem(answer, 409, "message-busy")
    finally:
        gate.opened.set()
        await turn
    await add(ada, chat, "Night falls.", role="system")
