"""Counts of tokens: stored as they are sent, scaled and made anew, and learned from providers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.token_counting import CountUnit, recount_chat
from backend.generation.registry import ModelRegistry
from backend.generation.tokens import MESSAGE_OVERHEAD, get_tokenizer
from backend.llm import token_ratios as ratios
from backend.turns.prompt.builder import PromptBuilder
from tests.fakes.gemini_server import MODEL_ID as GEMINI
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import MODEL_ID as OPENAI
from tests.fakes.openai_server import OpenAIServer, reply, usage
from tests.integration.turns.following import check_tree
from tests.integration.turns.seeding import identity_of, seed, stored_lines
from tests.support.server import Account, Running, ok, running, text_of
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

PROSE = "The rain had not stopped since the morning, and nobody at the inn spoke of leaving. "


@pytest.fixture(scope="module")
async def server(
    shared_url: str, vendor: OpenAIServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    """With a model that counts as the demo does, and one that does not."""
    async with GeminiServer() as gemini:
        registry = ModelRegistry(
            demo_tokens_per_second=0, gemini=gemini.config(), openai=vendor.config(), default="demo"
        )
        folder = tmp_path_factory.mktemp("data")
        async with running(shared_url, folder, registry=registry) as server:
            yield server


async def settings(ada: Account, chat: str, **body: Any) -> None:
    ok(await ada.client.patch(f"/api/v1/chats/{chat}/settings", json=body))


async def preview(ada: Account, chat: str) -> dict[str, Any]:
    query = {"text": "Well?", "prompt": "true"}
    return ok(  # type: ignore[no-any-return]
        await ada.client.get(f"/api/v1/chats/{chat}/context", params=query)
    )


async def unit_of(server: Running, chat: str) -> str:
    async with server.parts.database.read() as session:
        return (await session.get_one(Chat, UUID(chat))).count_unit


async def counted_in(server: Running, chat: str, unit: str) -> bool:
    return await unit_of(server, chat) == unit


async def check_counts(server: Running, ada: Account, chat: str) -> list[Message]:
    """Raise unless every line's count is what its chat's unit makes of it; the rows."""
    sealer = (await identity_of(server, ada)).sealer
    unit = CountUnit.parse(await unit_of(server, chat))
    rows = await check_tree(server.parts.database, chat)
    for row in rows:
        text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
        author = sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author)
        line = f"{author}: {text}" if unit.names else text
        expected = get_tokenizer(unit.tokenizer).count(line) + MESSAGE_OVERHEAD
        assert row.tokens == expected
        assert json.loads(row.token_counts)[str(unit)] == expected
    return rows


async def test_a_line_counts_as_it_is_sent_with_what_a_message_costs_beside_it(
    ada: Account, chat: str, server: Running
) -> None:
    await ada.turn(chat, text="Grüß Gott! 你好 👋🏽")
    await ada.turn(chat, regenerate_of=(await ada.messages(chat))[-1]["id"])
    await ada.turn(chat, **{"continue": True})
    await ada.turn(chat, text="/demo cut")
    await check_counts(server, ada, chat)
    assert await unit_of(server, chat) == "o200k_base"
    members = [(await ada.new_character(name=name))["id"] for name in ("Mara", "Bo")]
    group = (await ada.new_chat(character_ids=members))["id"]
    await ada.turn(group, text="And you?", speaker=members[1])
    await check_counts(server, ada, group)
    assert await unit_of(server, group) == "o200k_base+names"


@pytest.mark.every_database
async def test_the_totals_are_those_of_the_prompt_that_was_sent(
    ada: Account, chat: str, server: Running
) -> None:
    await seed(server, ada, chat, [f"{n}: {PROSE}" for n in range(30)])
    await settings(ada, chat, budgets={"history": 500}, authors_note={"text": "It rains."})
    context = await preview(ada, chat)
    tokenizer = get_tokenizer("o200k_base")
    tokens = [tokenizer.count(message["text"]) for message in context["prompt"]]
    assert context["totals"]["prompt"] == sum(tokens) + MESSAGE_OVERHEAD * len(tokens)
    assert context["totals"]["messages"] == len(tokens)


@pytest.mark.every_database
async def test_moving_to_another_vocabulary_scales_at_once_and_counts_anew_afterwards(
    ada: Account, chat: str, server: Running
) -> None:
    lines = await seed(server, ada, chat, [f"{n}: {PROSE * 3}" for n in range(60)])
    in_demo = {row.id: row.tokens for row in await check_counts(server, ada, chat)}
    await settings(ada, chat, model=GEMINI, budgets={"history": 1000})

    context = await preview(ada, chat)
    assert context["tokenizer"] == "gemma3"
    assert any("recalculated" in note for note in context["notes"])
    assert await unit_of(server, chat) == "o200k_base"
    gemma = get_tokenizer("gemma3")
    sent = [gemma.count(message["text"]) + MESSAGE_OVERHEAD for message in context["prompt"]]
    assert context["totals"]["prompt"] == sum(sent)
    assert 800 < context["totals"]["history"] <= 1000

    await ada.turn(chat, text="Well?")
    await until(lambda: counted_in(server, chat, "gemma3"))
    rows = await check_counts(server, ada, chat)
    assert len(rows) == 2 + len(lines) + 2  # greetings, lines, and the turn's two
    assert (await preview(ada, chat))["notes"] == []

    await settings(ada, chat, model=None)
    await ada.turn(chat, text="And back.")
    await until(lambda: counted_in(server, chat, "o200k_base"))
    rows = await check_counts(server, ada, chat)
    assert {row.id: row.tokens for row in rows if row.id in in_demo} == in_demo


@pytest.mark.every_database
async def test_counts_that_were_made_once_are_used_again(
    ada: Account, chat: str, server: Running
) -> None:
    """They are told from fresh ones by being wrong."""
    (greeting,) = await stored_lines(server, chat)
    wrong = {"o200k_base": greeting.tokens, "gemma3": 77}
    async with server.parts.database.write() as session:
        row = await session.get_one(Message, greeting.id)
        row.token_counts = msgspec.json.encode(wrong).decode()
    await settings(ada, chat, model=GEMINI)
    await ada.turn(chat, text="Well?")
    await until(lambda: counted_in(server, chat, "gemma3"))
    assert (await stored_lines(server, chat))[0].tokens == 77
    await check_tree(server.parts.database, chat)


async def test_showing_names_counts_them(ada: Account, chat: str, server: Running) -> None:
    await settings(ada, chat, names=True)
    await ada.turn(chat, text="Well?")
    await until(lambda: counted_in(server, chat, "o200k_base+names"))
    await check_counts(server, ada, chat)


async def test_a_line_hidden_while_counts_are_made_anew_stays_out_of_the_sums(
    ada: Account, chat: str, server: Running
) -> None:
    lines = await seed(server, ada, chat, [f"{n}: {PROSE}" for n in range(300)])
    await settings(ada, chat, model=GEMINI)
    await ada.turn(chat, text="Well?")
    for line in lines[:40:8]:
        ok(await ada.client.patch(f"/api/v1/messages/{line.id}", json={"hidden": True}))
    await until(lambda: counted_in(server, chat, "gemma3"))
    rows = await check_counts(server, ada, chat)
    assert sum(row.hidden for row in rows) == 5


async def test_what_changes_between_the_prompt_and_the_line_does_not_spoil_the_sums(
    ada: Account, chat: str, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    (greeting,) = await ada.messages(chat)
    build = PromptBuilder.build

    async def build_and_hide(*arguments: Any, **options: Any) -> Any:
        built = await build(*arguments, **options)
        url = f"/api/v1/messages/{greeting['id']}"
        ok(await ada.client.patch(url, json={"hidden": True}))
        return built

    monkeypatch.setattr(PromptBuilder, "build", build_and_hide)
    await ada.turn(chat, text="Well?")
    await check_counts(server, ada, chat)


async def test_counts_made_anew_between_the_prompt_and_the_line_are_those_that_hold(
    ada: Account, chat: str, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: then the prompt is built again, and goes on from the new counts."""
    sealer = (await identity_of(server, ada)).sealer
    build, units = PromptBuilder.build, [CountUnit("gemma3", names=True)]

    async def build_and_recount(*arguments: Any, **options: Any) -> Any:
        built = await build(*arguments, **options)
        while units:
            await recount_chat(
                server.parts.database, server.parts.cpu_pool, sealer, UUID(chat), units.pop()
            )
        return built

    monkeypatch.setattr(PromptBuilder, "build", build_and_recount)
    events = await ada.turn(chat, text="Well?")
    assert events[-1].name == "turn.completed"
    await until(lambda: counted_in(server, chat, "o200k_base"))
    await check_counts(server, ada, chat)


@pytest.mark.every_database
async def test_moving_back_at_once_while_counts_are_made_anew_loses_nothing(
    ada: Account, chat: str, server: Running
) -> None:
    await seed(server, ada, chat, [f"{n}: {PROSE}" for n in range(300)])
    for model in (GEMINI, "demo", GEMINI, None, GEMINI):
        await settings(ada, chat, model=model)
        events = await ada.turn(chat, text="Well?")
        assert [event.name for event in events[-2:]] == ["message.saved", "turn.completed"]
        assert (await ada.messages(chat))[-1]["text"] == text_of(events)
    await until(lambda: counted_in(server, chat, "gemma3"))
    await check_counts(server, ada, chat)


@pytest.mark.every_database
async def test_the_budget_comes_to_keep_to_what_the_provider_counts(
    ada: Account,
    chat: str,
    server: Running,
    vendor: OpenAIServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A provider whose tokens are half as long."""
    monkeypatch.setattr(ratios, "RELOAD_SECONDS", 0.0)
    await seed(server, ada, chat, [f"{n}: {PROSE}" for n in range(400)])
    await settings(
        ada, chat, model=OPENAI, budgets={"total": 4000, "history": 4000, "reply_reserve": 200}
    )
    tokenizer = get_tokenizer("o200k_base")
    reported: list[int] = []
    for _ in range(16):
        prompt = (await preview(ada, chat))["prompt"]
        real = 2 * sum(tokenizer.count(each["text"]) + MESSAGE_OVERHEAD for each in prompt)
        reported.append(real)
        vendor.script(reply("Yes.", used=usage(real, 1)))
        await ada.turn(chat, text="Well?")
    assert reported[0] > 6000
    assert max(reported[12:]) < 1.04 * 3800
    assert min(reported[12:]) > 0.75 * 3800
    context = await preview(ada, chat)
    assert context["ratio"] == pytest.approx(2, rel=0.04)
    assert context["budgets"]["total"] == pytest.approx(4000, abs=3)
    assert context["totals"]["prompt"] <= 3800
    total = context["totals"]
    assert total["prompt"] == pytest.approx(
        total["fixed"] + total["history"] + total["retrieved"], abs=2
    )
