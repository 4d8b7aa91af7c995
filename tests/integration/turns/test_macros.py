"""Macros in the line of the user, and the limits on macros of one request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from backend.context.macros import MAX_CHARACTERS
from tests.support.memory import context_of, link, new_book, preview, reasons, set_chat, take_turn
from tests.support.server import Account, Running, ok, problem, running

pytestmark = pytest.mark.anyio

TYPED = "{{user}} asks {{char}}, and rolls {{roll::d1000000}}.{{setvar::hp::7}}"


@pytest.fixture
async def chat(ada: Account) -> str:
    character = await ada.new_character(name="Mags", first_mes="Yes?")
    return str((await ada.new_chat(character_ids=[character["id"]]))["id"])


async def last_line(account: Account, chat_id: str) -> dict[str, Any]:
    """Return the newest line of the user."""
    lines = await account.messages(chat_id)
    return next(line for line in reversed(lines) if line["role"] == "user")


async def edit(account: Account, message_id: str, text: str) -> dict[str, Any]:
    """Edit a message; return the new version."""
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


async def test_a_line_with_many_macros_is_expanded(ada: Account, chat: str) -> None:
    await take_turn(ada, chat, text="{{char}} " * 500)
    assert (await last_line(ada, chat))["text"] == "Mags " * 500


async def test_lines_stay_as_typed_if_macros_are_off(ada: Account, chat: str) -> None:
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
async def test_unusable_lines_are_refused(
    ada: Account, chat: str, text: str, slug: str, status: int
) -> None:
    answer = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": text})
    problem(answer, status, slug)
    assert len(await ada.messages(chat)) == 1


async def test_regex_scripts_run_before_macros(ada: Account, chat: str) -> None:
    script = {"scriptName": "Hush", "findRegex": r"/\{\{char\}\}/", "replaceString": "somebody"}
    body = {"scripts": [{**script, "placement": [1]}]}
    await ada.put("/me/regex-scripts", body)
    await take_turn(ada, chat, text="{{char}} and {{bot}}{{user}}?")
    line = await last_line(ada, chat)
    assert line["text"] == f"somebody and {{{{bot}}}}{ada.name}?"
    assert line["typed"] == "somebody and {{bot}}{{user}}?"
    await ada.put("/me/regex-scripts", {"scripts": []})


async def new_chat_with(ada: Account, **card: Any) -> str:
    character = await ada.new_character(**card)
    return str((await ada.new_chat(character_ids=[character["id"]]))["id"])


def read_left_out(context: dict[str, Any]) -> dict[str, str]:
    return {each["title"]: each["reason"] for each in context["left_out"]}


async def test_fields_that_grow_too_long_refuse_the_turn(ada: Account) -> None:
    """Each field of the card is below the limit of a field."""
    grown = "{{description}}" * 4
    chat = await new_chat_with(
        ada,
        description="x" * 190_000 + "{{char}}",
        personality=grown,
        scenario=grown,
        system_prompt=grown,
    )
    answer = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": "Well?"})
    body = problem(answer, 422, "macro-limit")
    assert (body["limit"], body["most"], body["scope"]) == ("characters", 2_000_000, "request")
    assert len(await ada.messages(chat)) == 1


async def test_lore_that_grows_too_long_is_left_out(ada: Account) -> None:
    chat = await new_chat_with(ada, description="x" * 150_000)
    bomb = "{{description}}" * 7
    book = await new_book(
        ada,
        {"title": "Bomb", "content": bomb, "constant": True, "order": 9},
        {"title": "Fine", "content": "{{char}} keeps the light.", "constant": True},
    )
    await link(ada, chat, book)
    context = await context_of(ada, await take_turn(ada, chat, text="Well?"))
    assert reasons(context) == {"Fine": "constant"}
    assert read_left_out(context)["Bomb"] == "macros: more than 1,000,000 characters"
    assert any("macros" in note for note in context["notes"])


async def test_lore_leaves_half_of_the_limit_to_the_fields(ada: Account) -> None:
    chat = await new_chat_with(ada, description="{{char}} keeps the light. " + "x" * 10_000)
    await set_chat(ada, chat, authors_note={"text": "{{if {{description}}}}NOTE{{/if}}"})
    idle = "{{if {{description}}}}{{/if}}" * 10
    book = await new_book(
        ada, *({"title": f"{n}", "content": idle, "constant": True} for n in range(30))
    )
    await link(ada, chat, book)
    context = await preview(ada, chat, "Well?")
    assert "macros: more than 1,000,000 characters" in read_left_out(context).values()
    assert any(item["kind"] == "authors_note" for item in context["items"])


async def test_variables_that_grow_too_large_stay_unchanged(ada: Account) -> None:
    note = "{{addvar::a::" + "x" * 15_000 + "}}{{setvar::length::{{getvar::length}}i}}"
    chat = await new_chat_with(ada, description="The light. {{getvar::length}}")
    await set_chat(ada, chat, authors_note={"text": note + "Be brief."})
    for _ in range(13):
        context = await context_of(ada, await take_turn(ada, chat, text="On."))
        assert context["notes"] == []
    reply = ""
    for _ in range(2):
        reply = await take_turn(ada, chat, text="On.")
        context = await context_of(ada, reply)
        (said,) = context["notes"]
        assert "variables were not changed" in said
    items: list[dict[str, Any]] = (await context_of(ada, reply))["items"]
    character = next(item for item in items if item["kind"] == "character")
    assert "i" * 13 in character["text"]
    assert "i" * 14 not in character["text"]


ENTRIES = 400
CONTENT = "{{char}} walks with {{user}} down to the harbour in the rain. " * 80
"""5,000 characters. All entries together have two million."""

LONGEST_PAUSE = 0.5
"""Maximum CPU seconds for which the event loop may be blocked."""


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    """A server without background work, because the tests measure requests."""
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder, embedder="none", job_workers=0) as server:
        yield server


async def heavy_chat(ada: Account, count: int = ENTRIES) -> str:
    """Create a chat with a book of this many entries."""
    chat = str((await ada.new_chat())["id"])
    entry: dict[str, Any] = {"content": CONTENT, "constant": True, "position": 0, "key": []}
    world = {"entries": {f"{n}": {**entry, "uid": n, "comment": f"{n}"} for n in range(count)}}
    files = {"file": ("world.json", json.dumps(world).encode())}
    made = ok(await ada.ask("POST", "/lorebooks/import", files=files), 201)
    await link(ada, chat, made["lorebook"]["id"])
    return chat


async def preview_lore(ada: Account, chat: str) -> dict[str, Any]:
    return await ada.post(f"/chats/{chat}/context", {"text": "Well?"})


@contextlib.asynccontextmanager
async def measure_pauses() -> AsyncGenerator[list[float]]:
    """Yield the CPU seconds of the process between two ticks of the loop."""
    found: list[float] = []

    async def tick() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0.005)
            now = time.process_time()
            found.append(now - last)
            last = now

    task = asyncio.create_task(tick())
    try:
        yield found
    finally:
        task.cancel()


async def test_a_preview_expands_only_what_fits(ada: Account) -> None:
    chat = await heavy_chat(ada)
    context = await preview_lore(ada, chat)
    lore = [item for item in context["items"] if item["kind"] == "lore"]
    expanded = sum(len(item["text"]) for item in lore)
    assert 0 < expanded <= MAX_CHARACTERS
    reasons = [each["reason"] for each in context["left_out"] if each["kind"] == "lore"]
    assert "macros: more than 1,000,000 characters" in reasons
    assert await preview_lore(ada, chat) == context


async def test_heavy_previews_do_not_block_other_users(ada: Account, server: Running) -> None:
    heavy = await heavy_chat(ada)
    async with server.account(f"bob-of-{ada.name}") as bob:
        character = await bob.new_character()
        quiet = str((await bob.new_chat(character_ids=[character["id"]]))["id"])
        await bob.turn(quiet, text="First, to warm up.")
        async with measure_pauses() as found:
            previews = [asyncio.create_task(preview_lore(ada, heavy)) for _ in range(8)]
            events = await bob.turn(quiet, text="Is anyone there?")
            await asyncio.gather(*previews)
    assert events[-1].name == "turn.completed"
    assert max(found) < LONGEST_PAUSE


async def test_the_cost_of_a_preview_does_not_grow_with_the_book(ada: Account) -> None:
    few, many = await heavy_chat(ada, 200), await heavy_chat(ada, 1_600)
    costs: dict[str, float] = {}
    for chat in (few, many):
        await preview_lore(ada, chat)  # compiles the book
        began = time.process_time()
        for _ in range(3):
            await preview_lore(ada, chat)
        costs[chat] = time.process_time() - began
    assert costs[many] < 3 * costs[few], costs


async def test_a_chat_replaces_the_scenario_of_its_cards(ada: Account) -> None:
    card = {"scenario": "A storm at sea.", "description": "Mara hides from {{scenario}}"}
    character = await ada.new_character(**card)
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    book = await new_book(
        ada, {"keys": ["desert"], "content": "Sand is everywhere.", "match_fields": ["scenario"]}
    )
    await link(ada, chat, book)

    async def read_prompt() -> str:
        context = await preview(ada, chat, "I ask about {{scenario}}")
        return "\n".join(part["text"] for part in context["prompt"])

    before = await read_prompt()
    assert before.count("A storm at sea.") == 3
    assert "Sand is everywhere." not in before
    await set_chat(ada, chat, scenario="A desert of glass.")
    after = await read_prompt()
    assert after.count("A desert of glass.") == 3
    assert "A storm at sea." not in after
    assert "Sand is everywhere." in after
    await set_chat(ada, chat, scenario=None)
    assert await read_prompt() == before
