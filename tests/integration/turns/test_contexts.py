"""Context records: the items of the prompt of a reply, and the prompt as it was sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, update

from backend.chats.models import Message
from backend.generation.registry import ModelRegistry
from backend.turns.models import ContextText, StoredContextRecord
from tests.fakes.openai_server import MODEL_ID, OpenAIServer
from tests.integration.turns.seeding import seed
from tests.support.memory import context_of, set_chat
from tests.support.server import Account, Running, problem, running

pytestmark = pytest.mark.anyio

Shown = list[dict[str, str]]


@pytest.fixture(scope="module")
async def server(
    shared_url: str, vendor: OpenAIServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    """A server with a model that records its requests."""
    openai = vendor.config(context_window=300_000)
    registry = ModelRegistry(demo_tokens_per_second=0, openai=openai, default=MODEL_ID)
    async with running(shared_url, tmp_path_factory.mktemp("data"), registry=registry) as server:
        yield server


@pytest.fixture
async def told(ada: Account, chat: str) -> str:
    """A chat with a few lines."""
    for line in ("Who is there?", "What do you want?", "Come in."):
        await ada.turn(chat, text=line)
    return chat


def sent(vendor: OpenAIServer) -> Shown:
    """Return the prompt of the last request."""
    messages = vendor.requests[-1].body["messages"]
    return [{"role": each["role"], "text": each["content"]} for each in messages]


async def turn(
    ada: Account, vendor: OpenAIServer, chat: str, **body: Any
) -> tuple[str, Shown, dict[str, Any]]:
    """Take a turn and compare its record; return the reply's id, prompt and record."""
    events = await ada.turn(chat, **body)
    assert events[-1].name == "turn.completed", events[-1]
    prompt = sent(vendor)
    context = await context_of(ada, events[0].data["reply_id"])
    assert context["prompt"] == prompt
    assert context["totals"] == events[1].data["totals"]
    return events[0].data["reply_id"], prompt, context


async def test_a_prompt_is_shown_as_sent(ada: Account, vendor: OpenAIServer, told: str) -> None:
    _, prompt, context = await turn(ada, vendor, told, text="Sit down.")
    assert [message["role"] for message in prompt] == ["system", *["assistant", "user"] * 4]
    assert prompt[-1]["text"] == "Sit down."
    history = context["history"]
    assert (history["first"], history["last"], history["count"]) == (0, 6, 7)
    assert context["totals"]["prompt"] == sum(
        context["totals"][part] for part in ("fixed", "history", "retrieved")
    )
    assert [item["kind"] for item in context["items"]] == ["system_prompt", "user_line"]


async def test_hidden_lines_are_named(ada: Account, vendor: OpenAIServer, told: str) -> None:
    lines = await ada.messages(told)
    for line in (lines[0], lines[3], lines[4], lines[6]):
        await ada.patch(f"/messages/{line['id']}", {"hidden": True})
    _, prompt, context = await turn(ada, vendor, told, text="Sit down.")
    assert [message["text"] for message in prompt[1:]] == [
        lines[1]["text"],
        lines[2]["text"],
        lines[5]["text"],
        "Sit down.",
    ]
    assert (context["history"]["first"], context["history"]["last"]) == (1, 5)
    assert context["history"]["hidden"] == [3, 4]


async def test_the_prompt_of_a_group_is_shown_with_names(
    ada: Account, vendor: OpenAIServer
) -> None:
    members = [(await ada.new_character(name=name))["id"] for name in ("Mara", "Bo: the Smith")]
    chat = (await ada.new_chat(character_ids=members))["id"]
    await turn(ada, vendor, chat, text="Who speaks?", speaker=members[1])
    _, prompt, _ = await turn(ada, vendor, chat, text="And now?", speaker=members[0])
    spoken = [message["text"] for message in prompt if message["role"] != "system"]
    assert [text.split(": ")[0] for text in spoken] == [
        "Mara",
        ada.name,
        "Bo",
        ada.name,
    ]
    await turn(ada, vendor, chat, **{"continue": True})
    await turn(ada, vendor, chat, speaker=members[1])


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 50])
async def test_a_depth_is_shown_as_sent(ada: Account, vendor: OpenAIServer, depth: int) -> None:
    character = await ada.new_character(
        extensions={
            "depth_prompt": {"prompt": "{{char}} limps.", "depth": depth, "role": "system"}
        },
        post_history_instructions="Be brief.",
    )
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    await set_chat(ada, chat, authors_note={"text": "It rains.", "depth": depth, "role": "user"})
    await ada.turn(chat, text="One.")
    _, prompt, _ = await turn(ada, vendor, chat, text="Two.")
    texts = [message["text"] for message in prompt[1:]]
    place = texts.index("Mara limps.")
    assert texts[place + 1] == "It rains."
    below = [text for text in texts[place + 2 :] if text != "Be brief."]
    assert len(below) == min(depth, 4)
    await turn(ada, vendor, chat, **{"continue": True})
    await turn(ada, vendor, chat, text="Three.")


async def test_a_continued_reply_is_shown(ada: Account, vendor: OpenAIServer, told: str) -> None:
    before = (await ada.messages(told))[-1]["text"]
    reply_id, prompt, _ = await turn(ada, vendor, told, **{"continue": True})
    assert prompt[-2]["text"] == before
    again, prompt, _ = await turn(ada, vendor, told, **{"continue": True})
    assert again == reply_id
    assert prompt[-2]["text"].startswith(before)
    assert prompt[-2]["text"] != before


async def test_a_swipe_sends_the_same_prompt(ada: Account, vendor: OpenAIServer, told: str) -> None:
    await set_chat(
        ada, told, authors_note={"text": "{{random::a::b::c}}{{pick::a::b::c}}{{roll::d20}}"}
    )
    first, prompt, context = await turn(ada, vendor, told, text="Sit down.")
    second, prompt_again, context_again = await turn(ada, vendor, told, regenerate_of=first)
    assert second != first
    assert (prompt_again, context_again["prompt_hash"]) == (prompt, context["prompt_hash"])
    assert await context_of(ada, first) == context


async def test_openings_have_records_too(ada: Account, vendor: OpenAIServer) -> None:
    character = await ada.new_character(first_mes="")
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    opening, _, context = await turn(ada, vendor, chat)
    assert context["history"] is None
    await turn(ada, vendor, chat, speaker=character["id"])
    await turn(ada, vendor, chat, regenerate_of=opening)


async def test_memory_can_precede_history(ada: Account, vendor: OpenAIServer, told: str) -> None:
    book = (await ada.post("/lorebooks", {"name": "Coast"}, 201))["id"]
    entry = {"title": "Inn", "keys": ["inn"], "content": "It burned down."}
    await ada.post(f"/lorebooks/{book}/entries", entry, 201)
    link = {"state": "linked"}
    await ada.put(f"/chats/{told}/lorebooks/{book}", link)
    places: dict[str, bool] = {}
    for placement in ("before_history", "after_history"):
        await set_chat(ada, told, memory_placement=placement)
        _, prompt, _ = await turn(ada, vendor, told, text="To the inn.")
        texts = [message["text"] for message in prompt]
        memory = next(at for at, text in enumerate(texts) if "burned down" in text)
        places[placement] = memory < texts.index("Who is there?")
    assert places == {"before_history": True, "after_history": False}


async def test_later_changes_do_not_alter_a_prompt(ada: Account, vendor: OpenAIServer) -> None:
    character = await ada.new_character(
        description="{{char}} keeps the inn.", mes_example="<START>\n{{char}}: Hm."
    )
    persona = await ada.post("/personas", {"name": "Cap", "description": "Tall."}, 201)
    chat = (await ada.new_chat(character_ids=[character["id"]], persona_id=persona["id"]))["id"]
    await set_chat(ada, chat, authors_note={"text": "It rains."}, system_prompt="{{original}} Go.")
    shown: dict[str, Shown] = {}
    for line in ("One.", "Two.", "Three."):
        reply_id, prompt, _ = await turn(ada, vendor, chat, text=line)
        shown[reply_id] = prompt
    lines = await ada.messages(chat)
    change = {"name": "Nora", "description": "Gone.", "mes_example": ""}
    await ada.patch(f"/characters/{character['id']}", change)
    await ada.patch(f"/personas/{persona['id']}", {"name": "Lieutenant"})
    await set_chat(ada, chat, authors_note=None, system_prompt=None, names=True)
    for shown_line in lines[:4]:
        url = f"/messages/{shown_line['id']}"
        await ada.patch(url, {"hidden": True})
    await ada.patch(f"/messages/{lines[1]['id']}", {"text": "Else."})
    await ada.post(f"/messages/{lines[1]['id']}/activate")
    await turn(ada, vendor, chat, **{"continue": True})
    await turn(ada, vendor, chat, text="Four.")
    del shown[lines[-1]["id"]]  # it went on, and has a record of that
    for reply_id, prompt in shown.items():
        assert (await context_of(ada, reply_id))["prompt"] == prompt
    await ada.delete(f"/characters/{character['id']}")
    await ada.delete(f"/personas/{persona['id']}")
    for reply_id, prompt in shown.items():
        assert (await context_of(ada, reply_id))["prompt"] == prompt


@pytest.mark.every_database
async def test_the_gap_of_a_truncated_prompt_is_shown(
    ada: Account, vendor: OpenAIServer, chat: str, server: Running
) -> None:
    """If stored counts are too low, the prompt is cut before it is sent."""
    await seed(server, ada, chat, [f"Line {n}. " + "So it goes. " * 30 for n in range(60)])
    lower = {"tokens": Message.tokens / 3, "path_tokens": Message.path_tokens / 3}
    async with server.parts.database.write() as session:
        await session.execute(update(Message).where(Message.chat_id == UUID(chat)).values(lower))
    # With names, all lines are counted again.
    budgets = {"total": 5000, "reply_reserve": 500, "min_tail_messages": 4}
    await set_chat(ada, chat, names=True, budgets=budgets)
    reply_id, prompt, context = await turn(ada, vendor, chat, text="And then?")
    history = context["history"]
    assert history["omitted_first"] == history["first"] + 1
    omitted = history["omitted_last"] - history["omitted_first"] + 1
    assert prompt[2]["text"] == f"[... {omitted} messages omitted ...]"
    assert context["totals"]["prompt"] <= 4500
    assert len(prompt) == 1 + (history["last"] - history["first"] + 1 - omitted) + 1 + 1
    assert prompt[3]["role"] == "user"
    assert {"history", "truncated"} <= {
        word for each in context["left_out"] for word in (each["kind"], each["reason"])
    }
    again, _, _ = await turn(ada, vendor, chat, **{"continue": True})
    assert again == reply_id


@pytest.mark.every_database
async def test_the_record_of_a_full_window_is_small(
    ada: Account, vendor: OpenAIServer, chat: str, server: Running
) -> None:
    text = "The rain had not stopped since the morning, and nobody spoke of leaving. " * 10
    lines = await seed(
        server,
        ada,
        chat,
        (f"{n}: {text}" for n in range(1200)),
        hidden=frozenset(range(0, 1200, 7)),
    )
    assert lines[-1].path_tokens > 150_000
    reply_id, prompt, context = await turn(ada, vendor, chat, text="Shall we go?")
    assert 130_000 < context["totals"]["history"] <= 150_000
    assert len(prompt) > 900
    assert len(context["history"]["hidden"]) > 130
    assert context["left_out"][0]["reason"] == "budget"
    async with server.parts.database.read() as session:
        row = await session.get_one(StoredContextRecord, UUID(reply_id))
    assert len(row.sealed_record) < 64 * 1024


async def test_a_shared_text_is_stored_once(ada: Account, told: str, server: Running) -> None:
    async with server.parts.database.read() as session:
        texts = await session.scalar(select(func.count()).where(ContextText.chat_id == UUID(told)))
        records = await session.scalar(
            select(func.count()).where(StoredContextRecord.chat_id == UUID(told))
        )
    assert (records, texts) == (3, 1 + 3)  # one system prompt, three lines of the user's


@pytest.mark.every_database
async def test_the_difference_is_itemised(ada: Account, vendor: OpenAIServer, told: str) -> None:
    await set_chat(ada, told, authors_note={"text": "It rains.", "depth": 1})
    first, prompt, _ = await turn(ada, vendor, told, text="One.")
    await set_chat(ada, told, authors_note=None, post_history_instructions="Be brief.")
    second, prompt_after, _ = await turn(ada, vendor, told, text="Two.")
    difference = (await context_of(ada, second, diff="previous"))["difference"]
    assert difference["previous_message_id"] == first
    assert [item["text"] for item in difference["added"]] == ["Be brief."]
    assert [item["text"] for item in difference["removed"]] == ["It rains."]
    assert [item["text"] for item in difference["changed"]] == ["Two."]
    shared = next(
        place
        for place, (one, other) in enumerate(zip(prompt, prompt_after, strict=False))
        if one != other
    )
    assert difference["shared_prefix"] == shared == len(prompt) - 2
    assert (difference["history_first"], difference["history_last"]) == ([0, 0], [6, 8])
    lines = await ada.messages(told)
    first_reply = await context_of(ada, lines[2]["id"], diff="previous")
    assert first_reply["difference"] is None


async def test_lines_without_a_model_have_no_context(ada: Account, told: str) -> None:
    greeting, line, *_, reply = await ada.messages(told)
    edited = await ada.patch(f"/messages/{reply['id']}", {"text": "Mine."})
    fork = await ada.post(f"/chats/{told}/fork", {"message_id": reply["id"]}, 201)
    for message_id in (greeting["id"], line["id"], edited["id"], fork["leaf_id"]):
        answer = await ada.ask("GET", f"/messages/{message_id}/context")
        problem(answer, 404, "context-not-found")
    answer = await ada.ask("GET", f"/messages/{uuid4()}/context")
    problem(answer, 404, "message-not-found")
    answer = await ada.ask("GET", f"/messages/{reply['id']}/context", params={"diff": "next"})
    problem(answer, 422, "validation-failed")


async def test_impersonation_leaves_no_record(ada: Account, told: str, server: Running) -> None:
    async with server.parts.database.read() as session:
        query = select(func.count()).where(StoredContextRecord.chat_id == UUID(told))
        before = await session.scalar(query)
    await ada.turn(told, impersonate=True)
    async with server.parts.database.read() as session:
        assert await session.scalar(query) == before == 3
