"""Tool calls in played turns: ways of asking for them, and models that do not call."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backend.generation.catalogue import ToolSupport
from backend.generation.registry import ModelRegistry
from tests.fakes import gemini_server, openai_server
from tests.fakes.game_master import BlockWritingGameMaster
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import (
    API_KEY,
    MODEL,
    OpenAIServer,
    call_delta,
    called,
    chunk,
    error,
    reply,
    stream,
    tool_call,
)
from tests.fakes.scripted_server import Answer
from tests.integration.turns.playing import FINISH, QUESTION, Game, named, names, new_game
from tests.support.server import Account, Event, running, text_of

pytestmark = pytest.mark.anyio

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Script:
    """A model server, its answers, and a game that uses it."""

    server: OpenAIServer | GeminiServer
    reply: Callable[..., Answer]
    called: Callable[..., Answer]
    refused: Answer
    game: Game

    def says(self, support: ToolSupport, text: str, *calls: Call) -> Answer:
        """Return a reply with calls in the given form."""
        if support == "native":
            return self.called(*calls, text=text)
        return self.reply(*cut(written(support, text, *calls)))

    @property
    def sent(self) -> Any:
        """Return the body of the last request."""
        return self.server.requests[-1].body


def written(support: ToolSupport, text: str, *calls: Call) -> str:
    """Return a reply with calls in its text."""
    listed = [{"tool": name, "arguments": arguments} for name, arguments in calls]
    if support == "structured":
        return json.dumps({"narration": text, "calls": listed})
    return f"{text}\n```tools\n{json.dumps(listed)}\n```"


def cut(text: str, size: int = 7) -> Sequence[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.fixture(params=["openai", "gemini"])
async def script(
    request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path
) -> AsyncGenerator[Script]:
    vendor = openai_server if request.param == "openai" else gemini_server
    async with OpenAIServer() if request.param == "openai" else GeminiServer() as server:
        config: Any = {request.param: server.config()}
        registry = ModelRegistry(**config, demo_tokens_per_second=0, default=vendor.MODEL_ID)
        async with (
            running(sqlite_url, tmp_path, registry=registry) as host,
            host.account("Ada") as ada,
        ):
            refused = (
                openai_server.error(400, code="invalid_request_error")
                if request.param == "openai"
                else gemini_server.error(400, "INVALID_ARGUMENT")
            )
            game = await new_game(ada)
            yield Script(server, vendor.reply, vendor.called, refused, game)


async def read_reply_support(account: Account, chat: str) -> str:
    """Return the tool support in the record of the last reply."""
    message = (await account.messages(chat))[-1]
    path = f"/messages/{message['id']}/context"
    return str((await account.get(path))["tool_support"])


@pytest.mark.parametrize(("support", "refusals"), [("native", 0), ("structured", 1), ("fenced", 2)])
async def test_a_turn_works_in_every_way(
    script: Script, support: ToolSupport, refusals: int
) -> None:
    game = script.game
    script.server.script(
        *[script.refused] * refusals,
        script.says(support, "A fork.", ("advance_time", {"days": 1}), QUESTION),
    )

    events = await game.say()

    assert events[-1].name == "turn.awaiting_choice"
    assert text_of(events).strip() == "A fork."
    script.server.script(script.says(support, "You go left.", FINISH))
    rest = await game.choose(events[0].data["turn_id"], "1.0")
    assert names(rest)[-1] == "turn.completed"
    assert "Left" in json.dumps(script.sent)
    assert text_of(rest).strip() == "You go left."
    assert (await game.state())["day"] == 2
    assert await read_reply_support(game.account, game.chat) == support


@pytest.mark.parametrize("script", ["gemini"], indirect=True)
async def test_gemini_s_signature_survives_the_wait(script: Script) -> None:
    script.server.script(script.says("native", "A fork.", QUESTION))
    events = await script.game.say()

    await script.game.choose(events[0].data["turn_id"], "1.0")

    asked = script.sent["contents"][-2]["parts"][-1]
    assert asked["functionCall"]["id"] == "call-0"
    assert asked["thoughtSignature"] == "c2lnbmF0dXJl"


@pytest.mark.parametrize(("support", "refusals"), [("structured", 1), ("fenced", 2)])
@pytest.mark.parametrize("thoughts", ["I plan.</think>", "<think>I plan.</think>"])
async def test_thoughts_can_precede_written_calls(
    script: Script, support: ToolSupport, refusals: int, thoughts: str
) -> None:
    answer = written(support, "Night falls.", ("advance_time", {"days": 1}), FINISH)
    script.server.script(*[script.refused] * refusals, script.reply(*cut(thoughts + answer)))

    events = await script.game.say()

    assert events[-1].name == "turn.completed"
    message = (await script.game.account.messages(script.game.chat))[-1]
    assert (message["text"].strip(), message["thinking"]) == ("Night falls.", "I plan.")
    assert (await script.game.state())["day"] == 2


@pytest.mark.parametrize("support", ["structured", "fenced"])
async def test_broken_calls_do_not_end_the_turn(script: Script, support: ToolSupport) -> None:
    broken = '{"narration": "A fork.", "calls": [{"tool": "advance_time", "argum'
    if support == "fenced":
        broken = 'A fork.\n```tools\n[{"tool": "advance_time", "argum\n```'
    refusals = [script.refused] * (1 if support == "structured" else 2)
    script.server.script(*refusals, script.reply(*cut(broken)), script.says(support, "On.", FINISH))

    events = await script.game.say()

    assert events[-1].name == "turn.completed"
    assert text_of(events).split() == ["A", "fork.", "On."]
    assert "not JSON" in json.dumps(script.sent)
    assert (await script.game.state())["day"] == 1


OWN = f"mine/{MODEL}"
HIT = ("damage", {"target": "Anna", "damage": "1d2+2"})
HARDER = ("damage", {"target": "Anna", "damage": "1d2+4"})
TOLD = "The orc's axe comes down."


@pytest.fixture
async def vendor() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as vendor:
        yield vendor


@pytest.fixture
async def ada(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Account]:
    async with running(sqlite_url, tmp_path) as server, server.account("Ada") as ada:
        yield ada


async def provide(account: Account, vendor: OpenAIServer, **model: Any) -> dict[str, Any]:
    """Create a provider of the account with settings of its model."""
    body: dict[str, Any] = {"kind": "openai", "slug": "mine", "api_key": API_KEY}
    body |= {"base_url": vendor.url, "models": [{"name": MODEL, **model}]}
    return await account.post("/providers", body, 201)


async def fight(account: Account, rules: str = "dnd") -> Game:
    """Create a campaign with Anna at 20 hit points and the account's own model."""
    game = await new_game(account, rules=rules)
    await game.add("entities", kind="pc", name="Anna", attributes={"hp": 20, "hp_max": 20})
    settings = f"/chats/{game.chat}/settings"
    await account.patch(settings, {"model": OWN})
    return game


@pytest.fixture
async def game(ada: Account, vendor: OpenAIServer) -> Game:
    await provide(ada, vendor)
    return await fight(ada)


def block(*calls: tuple[str, Any]) -> str:
    written = [{"tool": name, "arguments": arguments} for name, arguments in calls]
    return f"```tools\n{json.dumps(written)}\n```"


async def read_hit_points(game: Game) -> int:
    (anna,) = (each for each in (await game.state())["entities"] if each["name"] == "Anna")
    return int(anna["attributes"]["hp"])


async def read_support(account: Account) -> str:
    listed = (await account.get("/models"))["items"]
    (found,) = (each["tool_support"] for each in listed if each["id"] == OWN)
    return str(found)


async def read_last_record(game: Game) -> dict[str, Any]:
    """Return the context record of the last reply."""
    message = (await game.account.messages(game.chat))[-1]
    answer = await game.account.get(f"/messages/{message['id']}/context")
    record: dict[str, Any] = answer
    return record


def read_bodies(vendor: OpenAIServer) -> list[Any]:
    return [request.body for request in vendor.requests]


async def test_a_model_is_asked_once_for_its_calls(game: Game, vendor: OpenAIServer) -> None:
    vendor.script(reply(TOLD), reply(block(HIT, HARDER, FINISH)))

    events = await game.say()

    assert text_of(events) == TOLD
    assert "text.reset" not in names(events)
    assert [each["name"] for each in named(events, "tool.used")] == ["damage", "damage", FINISH[0]]
    assert names(events).index("calls.requested") < names(events).index("tool.used")
    assert events[-1].name == "turn.completed"
    assert 20 - 10 <= await read_hit_points(game) <= 20 - 8
    native, fenced = read_bodies(vendor)
    assert "tools" in native
    assert "tools" not in fenced
    assert fenced["messages"][: len(native["messages"])] == native["messages"]
    roles = [message["role"] for message in fenced["messages"][len(native["messages"]) :]]
    assert roles == ["assistant", "system", "user"]
    assert TOLD in json.dumps(fenced["messages"])
    assert "ask_player" not in json.dumps(fenced["messages"][-2:])
    record = await read_last_record(game)
    assert record["tool_support"] == "fenced"
    assert record["tools"] == ["damage", "damage", FINISH[0]]
    assert (await game.account.messages(game.chat))[-1]["text"] == TOLD


async def test_written_calls_are_requested_from_then_on(game: Game, vendor: OpenAIServer) -> None:
    vendor.script(reply(TOLD), reply(block(FINISH)))
    await game.say()
    vendor.script(reply(f"It hits.\n\n{block(HIT, FINISH)}"))

    events = await game.say()

    assert text_of(events).strip() == "It hits."
    assert "calls.requested" not in names(events)
    assert len(vendor.requests) == 3
    assert await read_hit_points(game) < 20
    assert await read_support(game.account) == "fenced"


async def test_a_model_that_writes_blocks_plays_a_risky_action(ada: Account) -> None:
    async with BlockWritingGameMaster() as master:
        master.likes_danger = 1.0
        await provide(ada, master)
        game = await fight(ada, rules="blades")
        await game.add("clocks", name="Alarm", segments=6)

        first = await game.say("I pick the lock.")
        assert "calls.requested" in names(first)
        assert text_of(first)
        assert named(first, "mood.changed")[0]["mood"] == "action"
        second = await game.say("Now.")
        assert second[-1].name == "turn.awaiting_choice"
        options = second[-1].data["options"]
        rest = await game.choose(second[0].data["turn_id"], options[0]["id"])

        assert rest[-1].name == "turn.completed"
        assert "calls.requested" not in names(rest)
        assert "aftermath" in [each["mood"] for each in named(rest, "mood.changed")]
        assert await read_support(ada) == "fenced"


async def test_a_model_without_calls_is_not_asked_again(game: Game, vendor: OpenAIServer) -> None:
    vendor.script(reply(TOLD), reply("I hit Anna for 3 points."))

    events = await game.say()

    assert text_of(events) == TOLD
    assert events[-1].name == "turn.completed"
    assert await read_support(game.account) == "none"
    vendor.requests.clear()
    vendor.script(reply("Anna falls."))
    assert text_of(await game.say()) == "Anna falls."
    (body,) = read_bodies(vendor)
    assert "tools" not in body
    assert "no tools" in json.dumps(body["messages"])
    assert await read_hit_points(game) == 20
    assert (await read_last_record(game))["tool_support"] == "none"


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps([{"tool": HIT[0], "arguments": HIT[1]}]),
        f'The calls are {{"name": "damage", "parameters": {json.dumps(HIT[1])}}}.',
        block(HIT).replace("tools", "json"),
        block(HIT).replace('"}}]', '"}},]'),
    ],
)
async def test_other_formats_are_read(game: Game, vendor: OpenAIServer, answer: str) -> None:
    vendor.script(reply(TOLD), reply(answer))

    await game.say()

    assert await read_hit_points(game) in {16, 17}
    assert await read_support(game.account) == "fenced"


async def test_a_change_of_mood_keeps_the_text(game: Game, vendor: OpenAIServer) -> None:
    attack = {"attacker": "Anna", "target": "Anna", "ability": "strength", "damage": "1d4"}
    calls: list[Any] = [("start_combat", {}), ("attack", attack), FINISH, HIT]
    vendor.script(reply(TOLD), reply(block(QUESTION, *calls)))

    events = await game.say()

    assert text_of(events) == TOLD
    assert "text.reset" not in names(events)
    assert events[-1].name == "turn.completed"
    used = [each["name"] for each in named(events, "tool.used")]
    assert used == ["start_combat", "attack", FINISH[0]]
    assert named(events, "mood.changed")[0]["mood"] == "combat"


async def test_native_calls_are_remembered(game: Game, vendor: OpenAIServer) -> None:
    vendor.script(called(FINISH, text="It begins."))
    await game.say()
    vendor.script(reply(TOLD))

    events = await game.say()

    assert len(vendor.requests) == 2
    assert "calls.requested" not in names(events)
    assert await read_support(game.account) == "native"


async def test_freeform_turns_need_no_calls(ada: Account, vendor: OpenAIServer) -> None:
    await provide(ada, vendor)
    game = await fight(ada, rules="freeform")
    vendor.script(reply(TOLD))

    events = await game.say()

    assert len(vendor.requests) == 1
    assert events[-1].name == "turn.completed"
    assert await read_support(ada) == "native"


@pytest.mark.parametrize("setting", ["native", "structured", "fenced", "none"])
async def test_the_user_s_setting_wins(ada: Account, vendor: OpenAIServer, setting: str) -> None:
    await provide(ada, vendor, tool_support=setting)
    game = await fight(ada)
    answer = json.dumps({"narration": TOLD, "calls": []}) if setting == "structured" else TOLD
    vendor.script(reply(answer))

    events = await game.say()

    (body,) = read_bodies(vendor)
    assert ("tools" in body) == (setting == "native")
    assert ("response_format" in body) == (setting == "structured")
    assert ("```tools" in json.dumps(body["messages"])) == (setting == "fenced")
    assert text_of(events) == TOLD
    assert events[-1].name == "turn.completed"
    assert await read_support(ada) == setting


async def test_a_refused_setting_is_not_learned(ada: Account, vendor: OpenAIServer) -> None:
    await provide(ada, vendor, tool_support="native")
    game = await fight(ada)
    answer = json.dumps({"narration": TOLD, "calls": []})
    vendor.script(error(400, message="no tools"), reply(answer))

    assert text_of(await game.say()) == TOLD
    assert await read_support(ada) == "native"


@pytest.mark.parametrize(
    "answers",
    [
        (reply(TOLD, finish="length"),),
        (reply(TOLD), error(503)),
        (reply(TOLD), reply("```tools\n[{", finish="length")),
    ],
    ids=["the reply was cut off", "the server fails", "the block was cut off"],
)
async def test_unclear_answers_teach_nothing(
    game: Game, vendor: OpenAIServer, answers: tuple[Answer, ...]
) -> None:
    vendor.script(*answers)

    events = await game.say()

    assert text_of(events) == TOLD
    assert events[-1].name == "turn.completed"
    assert len(vendor.requests) == len(answers)
    assert await read_support(game.account) == "native"


async def test_a_short_reply_limit_leaves_room_for_calls(game: Game, vendor: OpenAIServer) -> None:
    settings = f"/chats/{game.chat}/settings"
    body = {"sampling": {"max_output_tokens": 60, "start_reply_with": "Hm"}}
    await game.account.patch(settings, body)
    vendor.script(reply(TOLD), reply(block(FINISH)))

    await game.say()

    told, asked = read_bodies(vendor)
    assert told["max_tokens"] == 60
    assert asked["max_tokens"] == 1024
    assert asked["messages"][-1]["role"] == "user"


async def test_a_small_window_has_no_history(ada: Account, vendor: OpenAIServer) -> None:
    await provide(ada, vendor, context_window=4_096)
    game = await fight(ada, rules="freeform")
    for number in range(6):
        vendor.script(reply(f"Scene {number}. " + "The rain goes on and on. " * 40))
        await game.say(f"Line {number}.")
    path = game.path
    await game.account.patch(path, {"rules": "dnd"})
    vendor.requests.clear()
    vendor.script(reply(TOLD), reply(block(FINISH)))

    await game.say("The last line.")

    told, asked = (json.dumps(body["messages"]) for body in read_bodies(vendor))
    assert "Scene 5" in told
    assert "Scene 5" not in asked
    assert "The last line." in asked
    assert TOLD in asked


async def play_once(account: Account, vendor: OpenAIServer, *answers: Answer) -> Game:
    """Return a game after one turn with these answers."""
    await provide(account, vendor)
    game = await fight(account)
    vendor.script(*answers)
    await game.say()
    return game


@pytest.mark.parametrize(
    ("answers", "way"),
    [
        ((called(FINISH, text=TOLD),), "native"),
        ((reply(TOLD), reply(block(FINISH))), "fenced"),
        ((reply(TOLD), reply("No.")), "none"),
        ((error(400), reply(json.dumps({"narration": TOLD, "calls": []})), reply("No.")), "none"),
        (
            (
                error(400),
                reply(
                    json.dumps(
                        {"narration": TOLD, "calls": [{"tool": FINISH[0], "arguments": FINISH[1]}]}
                    )
                ),
            ),
            "structured",
        ),
    ],
)
async def test_the_way_is_remembered_until_the_provider_is_tested(
    sqlite_url: str, tmp_path: Path, vendor: OpenAIServer, answers: tuple[Answer, ...], way: str
) -> None:
    async with running(sqlite_url, tmp_path) as server, server.account("Ada") as ada:
        await play_once(ada, vendor, *answers)
        assert await read_support(ada) == way
    async with running(sqlite_url, tmp_path) as server, server.signed_in("Ada") as ada:
        assert await read_support(ada) == way
        (provider,) = (
            each for each in (await ada.get("/providers"))["items"] if each["slug"] == "mine"
        )
        await ada.post(f"/providers/{provider['id']}/test", {})
        assert await read_support(ada) == "native"


async def test_renaming_keeps_the_way(
    sqlite_url: str, tmp_path: Path, vendor: OpenAIServer
) -> None:
    async with running(sqlite_url, tmp_path) as server, server.account("Ada") as ada:
        made = await provide(ada, vendor)
        game = await fight(ada)
        path = f"/providers/{made['id']}"
        await ada.patch(path, {"name": "My server"})
        vendor.script(reply(TOLD), reply(block(FINISH)))
        await game.say()
    async with running(sqlite_url, tmp_path) as server, server.signed_in("Ada") as ada:
        assert await read_support(ada) == "fenced"


async def test_testing_a_provider_resets_the_way(ada: Account, vendor: OpenAIServer) -> None:
    game = await play_once(ada, vendor, reply(TOLD), reply("No."))
    assert await read_support(ada) == "none"
    (provider,) = (
        each for each in (await ada.get("/providers"))["items"] if each["slug"] == "mine"
    )

    await ada.post(f"/providers/{provider['id']}/test", {})

    assert await read_support(ada) == "native"
    vendor.requests.clear()
    vendor.script(called(FINISH, text="It calls now."))
    await game.say()
    assert "tools" in read_bodies(vendor)[0]


FRAGMENTS = [
    pytest.param(
        [
            chunk(tool_calls=[tool_call(*HIT, call_id="", index=0)]),
            chunk(tool_calls=[tool_call(*HARDER, call_id="", index=0)]),
        ],
        id="one index and no ids",
    ),
    pytest.param(
        [chunk(tool_calls=[tool_call(*each, call_id="x") for each in (HIT, HARDER)])],
        id="one id for all, in one chunk",
    ),
    pytest.param(
        [
            chunk(
                tool_calls=[
                    tool_call(name, f"```json\n{json.dumps(arguments)}\n```", call_id=name, index=n)
                ]
            )
            for n, (name, arguments) in enumerate((HIT, HARDER))
        ],
        id="in code fences",
    ),
    pytest.param(
        [
            chunk(
                tool_calls=[tool_call(HIT[0], json.dumps(json.dumps(HIT[1])), call_id="a", index=0)]
            ),
            chunk(tool_calls=[tool_call(*HARDER, call_id="b", index="1")]),
        ],
        id="encoded twice",
    ),
    pytest.param(
        [
            call_delta(0, name=HIT[0], arguments=json.dumps(HIT[1])),
            call_delta(0, arguments=json.dumps(HARDER[1])),
        ],
        id="two objects under one name",
    ),
]


@pytest.mark.parametrize("chunks", FRAGMENTS)
async def test_parallel_calls_are_separate(
    game: Game, vendor: OpenAIServer, chunks: list[dict[str, Any]]
) -> None:
    vendor.script(stream(*chunks, chunk("tool_calls"), "[DONE]"), reply(TOLD))

    events: list[Event] = await game.say()

    assert 20 - 10 <= await read_hit_points(game) <= 20 - 8
    assert text_of(events) == TOLD
    asked, *results = read_bodies(vendor)[-1]["messages"][-3:]
    sent = asked["tool_calls"]
    assert [json.loads(each["function"]["arguments"]) for each in sent] == [HIT[1], HARDER[1]]
    assert [each["id"] for each in sent] == [each["tool_call_id"] for each in results]
    assert len({each["id"] for each in sent} - {""}) == 2


async def test_calls_without_a_finish_reason_count(game: Game, vendor: OpenAIServer) -> None:
    vendor.script(stream(chunk(tool_calls=[tool_call(*HIT, call_id="a")]), "[DONE]"), reply(TOLD))

    await game.say()

    assert await read_hit_points(game) in {16, 17}
