"""Turns with a model that has a smaller window than assumed: they learn it and continue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import API_KEY, MODEL, MODEL_ID, called, reply, usage
from tests.fakes.scripted_server import Answer, Request
from tests.fakes.window_server import Overflow, WindowServer
from tests.integration.turns.following import check_tree, follow, others
from tests.integration.turns.playing import new_game
from tests.integration.turns.seeding import seed
from tests.support.server import Account, Event, Running, problem, running, text_of
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LINE = (
    "The rain drums on the slates of the old mill while nobody dares to speak of the drowned. " * 4
)
WINDOW = 4_096


Play = tuple[WindowServer, Running, Account]
PlayIn = Callable[..., AbstractAsyncContextManager[Play]]


@pytest.fixture
def play_in(sqlite_url: str, tmp_path: Path) -> PlayIn:
    """Start a model server with a window, a server that uses it, and an account."""

    @asynccontextmanager
    async def play(model: WindowServer | int, **config: Any) -> AsyncGenerator[Play]:
        async with WindowServer(model) if isinstance(model, int) else model as vendor:
            openai = vendor.config(**config)
            registry = ModelRegistry(demo_tokens_per_second=0, openai=openai, default=MODEL_ID)
            async with (
                running(sqlite_url, tmp_path, registry=registry) as server,
                server.account("ada") as ada,
            ):
                yield vendor, server, ada

    return play


async def long_chat(server: Running, ada: Account, *, lines: int = 120) -> str:
    """Create a chat with a history of about 10,000 tokens."""
    character = await ada.new_character()
    chat = str((await ada.new_chat(character_ids=[character["id"]]))["id"])
    await seed(server, ada, chat, [f"{number}. {LINE}" for number in range(lines)])
    return chat


async def read_context(ada: Account, events: list[Event]) -> dict[str, Any]:
    """Return the context of the reply of a turn."""
    url = f"/messages/{events[0].data['reply_id']}/context"
    return await ada.get(url)


async def read_model(ada: Account, model_id: str = MODEL_ID) -> dict[str, Any]:
    models = (await ada.get("/models"))["items"]
    return next(each for each in models if each["id"] == model_id)


def ready(events: list[Event]) -> list[dict[str, Any]]:
    return [event.data["totals"] for event in events if event.name == "context.ready"]


@pytest.mark.parametrize("overflow", ["llama-cpp", "llama-cpp-python", "vllm", "empty-stream"])
async def test_the_window_in_a_refusal_is_used_for_a_second_prompt(
    play_in: PlayIn, overflow: Overflow
) -> None:
    async with play_in(WindowServer(WINDOW, overflow=overflow)) as (vendor, server, ada):
        chat = await long_chat(server, ada)
        assert (await read_model(ada))["figures_from"] == "default"

        events = await ada.turn(chat, text="Well?")

        assert (events[-1].name, text_of(events)) == ("turn.completed", "Fine.")
        assert vendor.refusals == 1 + (overflow == "empty-stream")
        model = await read_model(ada)
        assert (model["context_window"], model["figures_from"]) == (WINDOW, "learned")
        # There is one line and one reply; the totals are of the accepted prompt.
        assert [each["text"] for each in await ada.messages(chat)][-2:] == ["Well?", "Fine."]
        await check_tree(server.parts.database, chat)
        first, second = ready(events)
        assert first["total"] > WINDOW == second["total"] > second["prompt"]
        turn = await ada.get(f"/turns/{events[0].data['turn_id']}")
        context = await read_context(ada, events)
        assert turn["totals"] == second == context["totals"]
        assert context["window"] == {"tokens": WINDOW, "source": "learned"}
        assert any(f"has {WINDOW:,}" in note for note in context["notes"])
        # Late followers receive the same.
        stored = await follow(ada.client, events[0].data["turn_id"])
        assert others(stored)[1:] == [("context.ready", {"totals": second}), *others(events)[2:]]

        vendor.refusals = 0
        events = await ada.turn(chat, text="And then?")
        assert (text_of(events), vendor.refusals, len(ready(events))) == ("Fine.", 0, 1)
        assert (await read_context(ada, events))["notes"] == []


async def test_a_refusal_without_numbers_halves_the_window(play_in: PlayIn) -> None:
    async with play_in(WindowServer(9_000, overflow="nameless")) as (vendor, server, ada):
        chat = await long_chat(server, ada, lines=200)
        events = await ada.turn(chat, text="Well?")
        assert text_of(events) == "Fine."
        assert vendor.refusals in {1, 2}
        assert (await read_model(ada))["context_window"] == 8_192


async def test_the_size_of_tokens_is_learned_too(play_in: PlayIn) -> None:
    async with play_in(WindowServer(8_192, worth=2.2), context_window=8_192) as (
        vendor,
        server,
        ada,
    ):
        chat = await long_chat(server, ada)
        events = await ada.turn(chat, text="Well?")
        assert (text_of(events), vendor.refusals) == ("Fine.", 1)
        context = await read_context(ada, events)
        assert context["ratio"] == pytest.approx(2.2, abs=0.1)
        assert context["totals"]["prompt"] == pytest.approx(
            events[-3].data["prompt_tokens"], rel=0.05
        )
        # The next turn begins with the learned ratio.
        events = await ada.turn(chat, text="And then?")
        assert vendor.refusals <= 2
        assert (await read_context(ada, events))["ratio"] > 1.3


async def test_the_reply_is_not_counted_as_prompt(play_in: PlayIn) -> None:
    async with play_in(
        WindowServer(WINDOW, overflow="llama-cpp-python", worth=1.2), server="llama-cpp"
    ) as (vendor, server, ada):
        chat = await long_chat(server, ada)
        events = await ada.turn(chat, text="Well?")
        assert (text_of(events), vendor.refusals) == ("Fine.", 1)
        assert (await read_context(ada, events))["ratio"] == pytest.approx(1.2, abs=0.05)


class Stubborn(WindowServer):
    """Refuses every prompt."""

    def count(self, body: Any) -> int:
        return self.window + super().count(body)


@pytest.mark.parametrize("overflow", ["llama-cpp", "nameless"])
async def test_the_final_error_has_both_numbers(play_in: PlayIn, overflow: Overflow) -> None:
    async with play_in(Stubborn(WINDOW, overflow=overflow)) as (vendor, server, ada):
        chat = await long_chat(server, ada)
        events = await ada.turn(chat, text="Well?")
        failed = events[-1].data
        assert failed["type"] == "urn:talekeeper:problem:model-context-overflow"
        assert failed["title"] == "The prompt is longer than the model's context window"
        assert failed["window"] <= WINDOW
        assert failed["needed"] > 0
        assert f"{failed['window']:,}" in failed["detail"]
        assert f"{failed['needed']:,}" in failed["detail"]
        assert vendor.refusals == 3
        # The line is stored, so it can be sent again.
        assert [each["text"] for each in await ada.messages(chat)][-1] == "Well?"


async def test_the_error_names_sections_that_cannot_be_shortened(play_in: PlayIn) -> None:
    async with play_in(WINDOW) as (_, _, ada):
        character = await ada.new_character(description=LINE * 60)
        chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
        events = await ada.turn(chat, text="Well?")
        assert events[-1].data["type"] == "urn:talekeeper:problem:context-overflow"
        assert events[-1].data["needed"] > events[-1].data["available"] > 0
        problem(await ada.ask("POST", f"/chats/{chat}/turns", json={}), 422, "context-overflow")


@pytest.mark.parametrize(
    ("fault", "needed"),
    [
        (
            {
                "code": 400,
                "message": "the request exceeds the available context size. try increasing the "
                "context size or enable context shift",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 9_000,
                "n_ctx": WINDOW,
            },
            9_000,
        ),
        (
            {
                "object": "error",
                "message": "This model's maximum context length is 4096 tokens. However, you "
                "requested 5000 tokens.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
            5_000,
        ),
    ],
)
async def test_implausible_numbers_teach_no_ratio(
    play_in: PlayIn, fault: dict[str, Any], needed: int
) -> None:
    async with play_in(60_000) as (vendor, server, ada):
        chat = await long_chat(server, ada, lines=8)
        whole = fault if "object" in fault else {"error": fault}
        vendor.script(*[Answer(400, body=whole)] * 3)
        events = await ada.turn(chat, text="Well?")
        assert (events[-1].data["needed"], events[-1].data["window"]) == (needed, WINDOW)
        assert (await read_model(ada))["context_window"] == WINDOW
        events = await ada.turn(chat, text="And then?")
        assert (await read_context(ada, events))["ratio"] == 1


@pytest.mark.parametrize("kind", ["regenerate", "continue", "impersonate"])
async def test_every_kind_of_turn_continues(play_in: PlayIn, kind: str) -> None:
    async with play_in(60_000) as (vendor, server, ada):
        chat = await long_chat(server, ada)
        reply_id = (await ada.turn(chat, text="Well?"))[0].data["reply_id"]
        vendor.window = WINDOW
        body: dict[str, Any] = {"regenerate_of": reply_id} if kind == "regenerate" else {kind: True}
        events = await ada.turn(chat, **body)
        assert (events[-1].name, text_of(events).strip()) == ("turn.completed", "Fine.")
        assert vendor.refusals == 1
        assert ready(events)[1]["total"] == WINDOW
        last = (await ada.messages(chat))[-1]
        assert last["text"] == ("Fine. Fine." if kind == "continue" else "Fine.")
        await check_tree(server.parts.database, chat)
        if kind == "continue":
            context = await read_context(ada, events)
            assert context["totals"] == ready(events)[1]


async def test_macros_write_variables_once(play_in: PlayIn) -> None:
    async with play_in(WINDOW) as (vendor, server, ada):
        chat = await long_chat(server, ada)
        counting = {"post_history_instructions": "Turn {{incvar::turn}}."}
        await ada.patch(f"/chats/{chat}/settings", counting)
        await ada.turn(chat, text="Well?")
        assert vendor.refusals == 1
        first = [each["content"] for each in vendor.requests[-1].body["messages"]]
        assert any("Turn 1." in each for each in first)
        await ada.turn(chat, text="And then?")
        assert any("Turn 2." in each["content"] for each in vendor.requests[-1].body["messages"])


async def test_suggestions_use_the_learned_window(play_in: PlayIn) -> None:
    class Suggesting(WindowServer):
        def accept(self, body: Any, needed: int) -> Answer:  # noqa: ARG002  # it says the same
            return reply('{"lines": ["I wait.", "I knock."]}', used=usage(needed, 2))

    async with play_in(Suggesting(WINDOW)) as (vendor, server, ada):
        chat = await long_chat(server, ada)
        answer = await ada.post(f"/chats/{chat}/suggestions", {})
        assert answer["items"] == ["I wait.", "I knock."]
        assert vendor.refusals == 1


async def test_a_window_set_by_the_user_wins(sqlite_url: str, tmp_path: Path) -> None:
    async with (
        WindowServer(WINDOW) as vendor,
        running(sqlite_url, tmp_path) as server,
        server.account("ada") as ada,
    ):
        provider = {
            "kind": "openai",
            "slug": "mine",
            "base_url": vendor.url,
            "api_key": API_KEY,
            "models": [{"name": MODEL, "context_window": 16_384}],
        }
        made = await ada.post("/providers", provider, 201)
        await ada.patch("/me/settings", {"model": f"mine/{MODEL}"})
        chat = await long_chat(server, ada)
        for refusals in (1, 2):
            events = await ada.turn(chat, text="Well?")
            assert (text_of(events), vendor.refusals) == ("Fine.", refusals)
            assert [each["total"] for each in ready(events)] == [16_384, WINDOW]
        model = await read_model(ada, f"mine/{MODEL}")
        assert (model["context_window"], model["figures_from"]) == (16_384, "user")
        # Without a setting, the learned window applies.
        path = f"/providers/{made['id']}"
        await ada.patch(path, {"models": [{"name": MODEL}]})
        model = await read_model(ada, f"mine/{MODEL}")
        assert (model["context_window"], model["figures_from"]) == (WINDOW, "learned")
        events = await ada.turn(chat, text="And then?")
        assert (text_of(events), vendor.refusals) == ("Fine.", 2)


class Playing(WindowServer):
    """Calls a tool first, then answers in a smaller window."""

    later_window = WINDOW

    def accept(self, body: Any, needed: int) -> Answer:
        if body["messages"][-1]["role"] != "tool":
            self.window = self.later_window
            return called(("advance_time", {"days": 2}), text="She sleeps.")
        return reply("It rains.", used=usage(needed, 2))


async def test_a_played_turn_continues_with_its_calls(play_in: PlayIn) -> None:
    async with play_in(Playing(60_000)) as (vendor, server, ada):
        game = await new_game(ada)
        await seed(server, ada, game.chat, [f"{number}. {LINE}" for number in range(120)])
        events = await game.say("I sleep.")
        assert events[-1].name == "turn.completed", events[-1]
        assert text_of(events) == "She sleeps.\n\nIt rains."
        assert vendor.refusals == 1
        assert [event.name for event in events].count("tool.used") == 1
        sent = vendor.requests[-1].body["messages"]
        assert [each["role"] for each in sent[-2:]] == ["assistant", "tool"]
        assert vendor.count(vendor.requests[-1].body) <= WINDOW
        context = await read_context(ada, events)
        assert context["totals"] == ready(events)[1]
        turn = await game.turn(events[0].data["turn_id"])
        assert turn["totals"] == ready(events)[1]
        stored = await follow(ada.client, events[0].data["turn_id"])
        assert others(stored)[2:] == others(events)[2:]


async def test_a_silently_cut_prompt_is_reported(play_in: PlayIn) -> None:
    async with play_in(WindowServer(WINDOW, overflow="cut")) as (vendor, server, ada):
        chat = await long_chat(server, ada)
        events = await ada.turn(chat, text="Well?")
        reply_ = (await ada.messages(chat))[-1]
        (notice,) = reply_["notices"]
        assert (notice["kind"], notice["model"], notice["read"]) == ("prompt_cut", MODEL_ID, 2_050)
        assert notice["sent"] == pytest.approx(ready(events)[0]["prompt"], rel=0.01)
        model = await read_model(ada)
        assert (model["context_window"], model["figures_from"]) == (WINDOW, "learned")
        events = await ada.turn(chat, text="And then?")
        # The usage of the cut prompt did not change the ratio.
        context = await read_context(ada, events)
        assert (context["ratio"], context["totals"]["total"]) == (1, WINDOW)
        assert (await ada.messages(chat))[-1]["notices"] == []
        assert vendor.refusals == 1


@pytest.mark.parametrize(
    "used",
    [
        usage(300, 2),  # without cached tokens
        usage(2_050, 2, cached=9_000),  # cached tokens are counted separately
        usage(9_000, 2),
    ],
)
async def test_cached_tokens_are_no_cut(play_in: PlayIn, used: dict[str, Any]) -> None:
    async with play_in(60_000) as (vendor, server, ada):
        chat = await long_chat(server, ada)
        vendor.script(reply("Fine.", used=used))
        await ada.turn(chat, text="Well?")
        assert (await ada.messages(chat))[-1]["notices"] == []
        assert (await read_model(ada))["figures_from"] == "default"


async def test_an_assumed_window_is_requested_once(play_in: PlayIn) -> None:
    async with play_in(60_000, server="llama-cpp") as (vendor, server, ada):
        vendor.aside["/props"] = Answer(body={"default_generation_settings": {"n_ctx": 12_288}})
        chat = await long_chat(server, ada, lines=3)
        events = await ada.turn(chat, text="Well?")
        assert (await read_context(ada, events))["window"]["source"] == "default"

        async def learned() -> bool:
            return bool((await read_model(ada))["context_window"] == 12_288)

        await until(learned)
        assert (await read_model(ada))["figures_from"] == "learned"
        (probe,) = vendor.probes
        assert (probe.path, probe.query["model"]) == ("/props", MODEL)
        assert probe.headers["authorization"] == f"Bearer {API_KEY}"
        await ada.turn(chat, text="And then?")
        assert len(vendor.probes) == 1


async def test_the_reply_limit_is_what_the_prompt_leaves(play_in: PlayIn) -> None:
    def longest(request: Request) -> tuple[int, int]:
        return vendor.count(request.body), request.body["max_tokens"]

    config = {"server": "koboldcpp", "context_window": WINDOW}
    async with play_in(WINDOW, **config) as (vendor, server, ada):
        # KoboldCpp cuts prompts that exceed its window together with the longest reply.
        chat = await long_chat(server, ada)
        budgets = {"budgets": {"reply_reserve": 300}}
        await ada.patch(f"/chats/{chat}/settings", budgets)
        await ada.turn(chat, text="Well?")
        prompt, most = longest(vendor.requests[-1])
        assert prompt + most <= WINDOW * 1.02
        assert most >= 300
        await ada.patch(f"/chats/{chat}/settings", {"sampling": {"max_output_tokens": 4_000}})
        await ada.turn(chat, text="And then?")
        prompt, most = longest(vendor.requests[-1])
        assert prompt + most <= WINDOW * 1.02
