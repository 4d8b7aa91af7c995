"""Macros in the user's line: expanded once, when the line is stored."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.memory import preview, set_chat, take_turn
from tests.support.server import Account, problem

pytestmark = pytest.mark.anyio

TYPED = "{{user}} asks {{char}}, and rolls {{roll::d1000000}}.{{setvar::hp::7}}"


@pytest.fixture
async def chat(ada: Account) -> str:
    character = await ada.new_character(name="Mags", first_mes="Yes?")
    return str((await ada.new_chat(character_ids=[character["id"]]))["id"])


async def last_line(account: Account, chat_id: str) -> dict[str, Any]:
    """The newest line of the user."""
    lines = await account.messages(chat_id)
    return next(line for line in reversed(lines) if line["role"] == "user")


async def edit(account: Account, message_id: str, text: str) -> dict[str, Any]:
    """The new version of a message."""
    path = f"/messages/{message_id}"
    return await account.patch(path, {"text": text})


async def test_macros_in_a_line_are_fixed_when_it_is_stored(ada: Account, chat: str) -> None:
    drafted = (await preview(ada, chat, TYPED))["prompt"][-1]["text"]
    reply = await take_turn(ada, chat, text=TYPED)
    line = await last_line(ada, chat)
    assert re.fullmatch(rf"{ada.name} asks Mags, and rolls \d+\.", line["text"])
    assert (line["text"], line["typed"]) == (drafted, TYPED)
    again = await take_turn(ada, chat, regenerate_of=reply)
    assert (await last_line(ada, chat))["text"] == line["text"]

    # Variables are kept, and a copy of the chat keeps the typed line.
    await take_turn(ada, chat, text="HP {{getvar::hp}}, {{lastUserMessage}}")
    assert (await last_line(ada, chat))["text"] == f"HP 7, {line['text']}"
    fork = await ada.post(f"/chats/{chat}/fork", {"message_id": again}, 201)
    copy = await last_line(ada, fork["id"])
    assert (copy["text"], copy["typed"]) == (line["text"], TYPED)

    # An edited line is expanded again, and draws the same.
    edited = await edit(ada, line["id"], TYPED.replace("asks", "begs"))
    assert edited["text"] == line["text"].replace("asks", "begs")
    assert edited["typed"] == TYPED.replace("asks", "begs")
    plain = await edit(ada, edited["id"], "HP {{getvar::hp}}")
    assert (plain["text"], plain["typed"]) == ("HP 7", "HP {{getvar::hp}}")
    assert (await edit(ada, plain["id"], "No macros."))["typed"] is None


async def test_a_line_with_many_macros_is_expanded_all_the_same(ada: Account, chat: str) -> None:
    await take_turn(ada, chat, text="{{char}} " * 500)
    assert (await last_line(ada, chat))["text"] == "Mags " * 500


async def test_lines_stay_as_typed_where_macros_are_off(ada: Account, chat: str) -> None:
    await set_chat(ada, chat, expand_macros=False)
    await take_turn(ada, chat, text=TYPED)
    line = await last_line(ada, chat)
    assert (line["text"], line["typed"]) == (TYPED, None)
    edited = await edit(ada, line["id"], "{{char}}?")
    assert (edited["text"], edited["typed"]) == ("{{char}}?", None)


async def test_a_reply_keeps_its_braces(ada: Account, chat: str) -> None:
    (greeting,) = await ada.messages(chat)
    edited = await edit(ada, greeting["id"], "Say {{user}}.")
    assert (edited["text"], edited["typed"]) == ("Say {{user}}.", None)


@pytest.mark.parametrize(
    ("text", "slug", "status"),
    [("{{setvar::hp::1}}", "message-empty", 422), ("{{char}}" * 10_001, "macro-limit", 422)],
)
async def test_a_line_that_macros_make_unusable_is_refused(
    ada: Account, chat: str, text: str, slug: str, status: int
) -> None:
    answer = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": text})
    problem(answer, status, slug)
    assert len(await ada.messages(chat)) == 1


async def test_regex_scripts_see_the_line_before_its_macros_are_expanded(
    ada: Account, chat: str
) -> None:
    script = {"scriptName": "Hush", "findRegex": r"/\{\{char\}\}/", "replaceString": "somebody"}
    body = {"scripts": [{**script, "placement": [1]}]}
    await ada.put("/me/regex-scripts", body)
    await take_turn(ada, chat, text="{{char}} and {{bot}}{{user}}?")
    line = await last_line(ada, chat)
    assert line["text"] == f"somebody and {{{{bot}}}}{ada.name}?"
    assert line["typed"] == "somebody and {{bot}}{{user}}?"
    await ada.put("/me/regex-scripts", {"scripts": []})
