"""Token counts: of stored lines, of texts, and the ratios that are learned from providers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.token_counting import CountUnit, recount_chat
from backend.database.engine import Database
from backend.database.writes import upsert_all
from backend.generation.model import ModelSpec
from backend.generation.registry import ModelRegistry
from backend.generation.tokens import (
    MESSAGE_OVERHEAD,
    SHARED_BOUNDS,
    choose_tokenizer,
    get_tokenizer,
)
from backend.llm import token_ratios as ratios
from backend.llm.token_ratios import TokenRatio
from backend.turns.prompt.builder import PromptBuilder
from tests.fakes.gemini_server import MODEL_ID as GEMINI
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import MODEL_ID as OPENAI
from tests.fakes.openai_server import OpenAIServer, reply, usage
from tests.integration.turns.following import check_tree
from tests.integration.turns.seeding import identity_of, seed, stored_lines
from tests.support.memory import preview, set_chat
from tests.support.server import Account, Running, ok, problem, running, text_of
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

PROSE = "The rain had not stopped since the morning, and nobody at the inn spoke of leaving. "


@pytest.fixture(scope="module")
async def server(
    shared_url: str, vendor: OpenAIServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    """A server with a model that has the demo's tokenizer, and one with another."""
    async with GeminiServer() as gemini:
        registry = ModelRegistry(
            demo_tokens_per_second=0, gemini=gemini.config(), openai=vendor.config(), default="demo"
        )
        folder = tmp_path_factory.mktemp("data")
        async with running(shared_url, folder, registry=registry) as server:
            yield server


async def read_unit(server: Running, chat: str) -> str:
    async with server.parts.database.read() as session:
        return (await session.get_one(Chat, UUID(chat))).count_unit


async def is_counted_in(server: Running, chat: str, unit: str) -> bool:
    return await read_unit(server, chat) == unit


async def check_counts(server: Running, ada: Account, chat: str) -> list[Message]:
    """Raise unless each line is counted in the unit of its chat; return the rows."""
    sealer = (await identity_of(server, ada)).sealer
    unit = CountUnit.parse(await read_unit(server, chat))
    rows = await check_tree(server.parts.database, chat)
    for row in rows:
        text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
        author = sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author)
        line = f"{author}: {text}" if unit.names else text
        expected = get_tokenizer(unit.tokenizer).count(line) + MESSAGE_OVERHEAD
        assert row.tokens == expected
        assert json.loads(row.token_counts)[str(unit)] == expected
    return rows


async def test_a_line_counts_as_it_is_sent(ada: Account, chat: str, server: Running) -> None:
    await ada.turn(chat, text="Grüß Gott! 你好 👋🏽")
    await ada.turn(chat, regenerate_of=(await ada.messages(chat))[-1]["id"])
    await ada.turn(chat, **{"continue": True})
    await ada.turn(chat, text="/demo cut")
    await check_counts(server, ada, chat)
    assert await read_unit(server, chat) == "o200k_base"
    members = [(await ada.new_character(name=name))["id"] for name in ("Mara", "Bo")]
    group = (await ada.new_chat(character_ids=members))["id"]
    await ada.turn(group, text="And you?", speaker=members[1])
    await check_counts(server, ada, group)
    assert await read_unit(server, group) == "o200k_base+names"


@pytest.mark.every_database
async def test_totals_match_the_sent_prompt(ada: Account, chat: str, server: Running) -> None:
    await seed(server, ada, chat, [f"{n}: {PROSE}" for n in range(30)])
    await set_chat(ada, chat, budgets={"history": 500}, authors_note={"text": "It rains."})
    context = await preview(ada, chat, "Well?")
    tokenizer = get_tokenizer("o200k_base")
    tokens = [tokenizer.count(message["text"]) for message in context["prompt"]]
    assert context["totals"]["prompt"] == sum(tokens) + MESSAGE_OVERHEAD * len(tokens)
    assert context["totals"]["messages"] == len(tokens)


@pytest.mark.every_database
async def test_another_tokenizer_recounts(ada: Account, chat: str, server: Running) -> None:
    lines = await seed(server, ada, chat, [f"{n}: {PROSE * 3}" for n in range(60)])
    in_demo = {row.id: row.tokens for row in await check_counts(server, ada, chat)}
    await set_chat(ada, chat, model=GEMINI, budgets={"history": 1000})

    context = await preview(ada, chat, "Well?")
    assert context["tokenizer"] == "gemma3"
    assert any("recalculated" in note for note in context["notes"])
    assert await read_unit(server, chat) == "o200k_base"
    gemma = get_tokenizer("gemma3")
    sent = [gemma.count(message["text"]) + MESSAGE_OVERHEAD for message in context["prompt"]]
    assert context["totals"]["prompt"] == sum(sent)
    assert 800 < context["totals"]["history"] <= 1000

    await ada.turn(chat, text="Well?")
    await until(lambda: is_counted_in(server, chat, "gemma3"))
    rows = await check_counts(server, ada, chat)
    assert len(rows) == 2 + len(lines) + 2  # greetings, lines, and the turn's two
    assert (await preview(ada, chat, "Well?"))["notes"] == []

    await set_chat(ada, chat, model=None)
    await ada.turn(chat, text="And back.")
    await until(lambda: is_counted_in(server, chat, "o200k_base"))
    rows = await check_counts(server, ada, chat)
    assert {row.id: row.tokens for row in rows if row.id in in_demo} == in_demo


@pytest.mark.every_database
async def test_stored_counts_are_reused(ada: Account, chat: str, server: Running) -> None:
    """The test stores wrong counts, to distinguish them from new ones."""
    (greeting,) = await stored_lines(server, chat)
    wrong = {"o200k_base": greeting.tokens, "gemma3": 77}
    async with server.parts.database.write() as session:
        row = await session.get_one(Message, greeting.id)
        row.token_counts = msgspec.json.encode(wrong).decode()
    await set_chat(ada, chat, model=GEMINI)
    await ada.turn(chat, text="Well?")
    await until(lambda: is_counted_in(server, chat, "gemma3"))
    assert (await stored_lines(server, chat))[0].tokens == 77
    await check_tree(server.parts.database, chat)


async def test_names_are_counted_if_shown(ada: Account, chat: str, server: Running) -> None:
    await set_chat(ada, chat, names=True)
    await ada.turn(chat, text="Well?")
    await until(lambda: is_counted_in(server, chat, "o200k_base+names"))
    await check_counts(server, ada, chat)


async def test_hidden_lines_are_not_summed(ada: Account, chat: str, server: Running) -> None:
    lines = await seed(server, ada, chat, [f"{n}: {PROSE}" for n in range(300)])
    await set_chat(ada, chat, model=GEMINI)
    await ada.turn(chat, text="Well?")
    for line in lines[:40:8]:
        await ada.patch(f"/messages/{line.id}", {"hidden": True})
    await until(lambda: is_counted_in(server, chat, "gemma3"))
    rows = await check_counts(server, ada, chat)
    assert sum(row.hidden for row in rows) == 5


async def test_a_change_before_storing_keeps_the_sums_right(
    ada: Account, chat: str, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    (greeting,) = await ada.messages(chat)
    build = PromptBuilder.build

    async def build_and_hide(*arguments: Any, **options: Any) -> Any:
        built = await build(*arguments, **options)
        url = f"/messages/{greeting['id']}"
        await ada.patch(url, {"hidden": True})
        return built

    monkeypatch.setattr(PromptBuilder, "build", build_and_hide)
    await ada.turn(chat, text="Well?")
    await check_counts(server, ada, chat)


async def test_a_recount_before_storing_builds_the_prompt_again(
    ada: Account, chat: str, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is built once more, with the new counts."""
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
    await until(lambda: is_counted_in(server, chat, "o200k_base"))
    await check_counts(server, ada, chat)


@pytest.mark.every_database
async def test_fast_changes_lose_nothing(ada: Account, chat: str, server: Running) -> None:
    await seed(server, ada, chat, [f"{n}: {PROSE}" for n in range(300)])
    for model in (GEMINI, "demo", GEMINI, None, GEMINI):
        await set_chat(ada, chat, model=model)
        events = await ada.turn(chat, text="Well?")
        assert [event.name for event in events[-2:]] == ["message.saved", "turn.completed"]
        assert (await ada.messages(chat))[-1]["text"] == text_of(events)
    await until(lambda: is_counted_in(server, chat, "gemma3"))
    await check_counts(server, ada, chat)


@pytest.mark.every_database
async def test_the_budget_follows_the_counts_of_the_provider(
    ada: Account, chat: str, server: Running, vendor: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of the provider are half as long."""
    monkeypatch.setattr(ratios, "RELOAD_SECONDS", 0.0)
    await seed(server, ada, chat, [f"{n}: {PROSE}" for n in range(400)])
    await set_chat(
        ada, chat, model=OPENAI, budgets={"total": 4000, "history": 4000, "reply_reserve": 200}
    )
    tokenizer = get_tokenizer("o200k_base")
    reported: list[int] = []
    for _ in range(16):
        prompt = (await preview(ada, chat, "Well?"))["prompt"]
        real = 2 * sum(tokenizer.count(each["text"]) + MESSAGE_OVERHEAD for each in prompt)
        reported.append(real)
        vendor.script(reply("Yes.", used=usage(real, 1)))
        await ada.turn(chat, text="Well?")
    assert reported[0] > 6000
    assert max(reported[12:]) < 1.04 * 3800
    assert min(reported[12:]) > 0.75 * 3800
    context = await preview(ada, chat, "Well?")
    assert context["ratio"] == pytest.approx(2, rel=0.04)
    assert context["budgets"]["total"] == pytest.approx(4000, abs=3)
    assert context["totals"]["prompt"] <= 3800
    total = context["totals"]
    assert total["prompt"] == pytest.approx(
        total["fixed"] + total["history"] + total["retrieved"], abs=2
    )


TOKENS = "/tokens"


async def count_tokens(ada: Account, *texts: str, **body: Any) -> dict[str, Any]:
    return await ada.post(TOKENS, {"texts": texts, **body})


async def test_each_text_is_counted_in_its_place(ada: Account) -> None:
    tokenizer = get_tokenizer(choose_tokenizer("o200k_base"))
    assert await count_tokens(ada, PROSE, "", "Mara") == {
        "counts": [tokenizer.count(PROSE), 0, tokenizer.count("Mara")],
        "tokenizer": tokenizer.name,
    }
    assert (await count_tokens(ada))["counts"] == []


async def test_counts_are_scaled_by_the_learned_ratio(server: Running, ada: Account) -> None:
    plain = (await count_tokens(ada, PROSE * 10, model="demo"))["counts"][0]
    user_id, model = UUID(ada.user["id"]), f"demo {choose_tokenizer('o200k_base')}"
    async with server.parts.database.write() as session:
        learned = {"ratio": 1.5, "samples": 9}
        session.add(TokenRatio(user_id=user_id, model=model, **learned))
    try:
        assert (await count_tokens(ada, PROSE * 10, model="demo"))["counts"] == [round(plain * 1.5)]
    finally:
        async with server.parts.database.write() as session:
            await session.delete(await session.get_one(TokenRatio, (user_id, model)))


async def test_an_unknown_model_is_refused(ada: Account) -> None:
    body = {"texts": [PROSE], "model": "gemini/none"}
    assert problem(await ada.ask("POST", TOKENS, json=body), 422, "unknown-model")["models"]


async def test_too_many_or_too_long_texts_are_refused(ada: Account) -> None:
    for texts in (["a"] * 101, ["a" * 200_001]):
        problem(await ada.ask("POST", TOKENS, json={"texts": texts}), 422, "validation-failed")
    body = {"texts": ["a " * 100_000] * 22}
    problem(await ada.ask("POST", TOKENS, json=body), 413, "too-large")


async def test_a_read_only_key_may_count(server: Running, ada: Account) -> None:
    key = {"label": "a script", "scope": "read"}
    token = (await ada.post("/api-keys", key, 201))["token"]
    async with server.program(token) as client:
        ok(await client.post(f"/api/v1{TOKENS}", json={"texts": [PROSE]}))


TOKENIZER = "o200k_base"
SPEC: ModelSpec = ModelRegistry(demo_tokens_per_second=0).spec("demo")


@pytest.fixture
async def own_server(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(sqlite_url, tmp_path) as own_server:
        yield own_server


@pytest.fixture
async def users(own_server: Running) -> list[UUID]:
    found: list[UUID] = []
    for n in range(5):
        async with own_server.account(f"Person {n}") as account:
            found.append(UUID(account.user["id"]))
    return found


@pytest.fixture
def own_database(own_server: Running) -> Database:
    return own_server.parts.database


async def report_ratio(
    own_database: Database, user_id: UUID, ratio: float, *, times: int = 60
) -> None:
    key = user_id, ratios.make_ratio_key(SPEC, TOKENIZER)
    reports = times * [ratios.Report(10_000, round(10_000 * ratio))]
    async with own_database.write() as session:
        row = await session.get(TokenRatio, key)
        write = await ratios.learn(session, user_id, SPEC, TOKENIZER, row, reports)
        await upsert_all(session, [write])


async def read_ratio(own_database: Database, user_id: UUID) -> float:
    async with own_database.read() as session:
        return await ratios.RatioCache().get(session, user_id, SPEC, TOKENIZER)


async def test_a_user_changes_only_the_own_ratio(own_database: Database, users: list[UUID]) -> None:
    ada, ben, hostile, new = users[:4]
    await report_ratio(own_database, ada, 1.1)
    before = await read_ratio(own_database, ada), await read_ratio(own_database, ben)
    await report_ratio(own_database, hostile, 100.0)
    await report_ratio(own_database, hostile, 0.001)
    await report_ratio(own_database, hostile, 100.0)
    assert (await read_ratio(own_database, ada), await read_ratio(own_database, ben)) == before
    assert await read_ratio(own_database, new) == 1.0  # two users are too few for a median
    assert await read_ratio(own_database, hostile) > 2


async def test_a_new_user_gets_the_median(own_database: Database, users: list[UUID]) -> None:
    ada, ben, cleo, hostile, new = users
    for user_id, ratio in ((ada, 1.1), (ben, 1.15), (cleo, 1.2)):
        await report_ratio(own_database, user_id, ratio)
    assert await read_ratio(own_database, new) == pytest.approx(1.15, abs=0.01)
    for ratio in (100.0, 0.001):
        await report_ratio(own_database, hostile, ratio, times=300)
        # At most half of the distance to the next one.
        assert 1.12 < await read_ratio(own_database, new) < 1.18
    async with own_database.write() as session:
        for user_id in (ada, ben, cleo):
            key = user_id, ratios.make_ratio_key(SPEC, TOKENIZER)
            (await session.get_one(TokenRatio, key)).ratio = 3.0
    assert await read_ratio(own_database, new) == SHARED_BOUNDS[1]


async def test_ratios_are_deleted_with_their_user(
    own_database: Database, own_server: Running
) -> None:
    async with own_server.account("Ada") as ada:
        user_id = UUID(ada.user["id"])
        await report_ratio(own_database, user_id, 1.1)
        await own_server.parts.accounts.delete(user_id)
    async with own_database.read() as session:
        key = user_id, ratios.make_ratio_key(SPEC, TOKENIZER)
        assert await session.get(TokenRatio, key) is None
