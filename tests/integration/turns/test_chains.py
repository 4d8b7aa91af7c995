"""Replies that follow each other by themselves: order, streams, stops, passes and processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select

from backend.chats.models import Message
from backend.database.base import now
from backend.quotas.limits import TOKENS_PER_DAY
from backend.turns.api import service
from backend.turns.models import Turn
from backend.turns.run import registry as runs
from tests.fakes.openai_server import OpenAIServer, called, error, reply, stream
from tests.fakes.scripted_server import Gate
from tests.integration.turns.ensembles import (
    FIVE,
    Ensemble,
    gather,
    speakers_in,
    split_turns,
)
from tests.integration.turns.following import check_tree, follow, lapse, others, said, same_browser
from tests.integration.turns.playing import FINISH, QUESTION, new_game
from tests.support.memory import preview, search, set_chat
from tests.support.models import asking, held_back
from tests.support.server import (
    Account,
    Event,
    Running,
    ok,
    problem,
    read_events,
    running,
    text_of,
)
from tests.support.waiting import until, until_true

pytestmark = [pytest.mark.anyio]

TURNS = "/chats/{}/turns"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store and poll five times as often, so that tests do not wait."""
    monkeypatch.setattr(runs, "STORE_SECONDS", 0.2)
    monkeypatch.setattr(service, "FOLLOW_SECONDS", 0.1)


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    async with running(shared_url, tmp_path_factory.mktemp("data"), **asking(model)) as server:
        yield server


@pytest.fixture
async def group(ada: Account, model: OpenAIServer) -> AsyncGenerator[Ensemble]:
    """Three characters that speak in the order of the list."""
    group = await gather(ada, ("Alda", "Bor", "Cara"))
    await group.set(next_speaker="list")
    yield group
    model.unscript()


@contextlib.asynccontextmanager
async def chain_under_way(
    group: Ensemble, **body: Any
) -> AsyncGenerator[tuple[str, AsyncGenerator[Event]]]:
    """Begin a turn that others follow; yield its id and all of its events."""
    path = TURNS.format(group.chat)
    async with group.ada.stream("POST", path, json={"text": "Well?", **body}) as response:
        assert response.status_code == 200, await response.aread()
        async with contextlib.aclosing(read_events(response)) as events:
            yield response.headers["x-turn-id"], events


async def take_until(events: AsyncGenerator[Event], name: str, count: int = 1) -> list[Event]:
    """Return the next events, up to this one."""
    taken: list[Event] = []
    while count:
        taken.append(await anext(events))
        count -= taken[-1].name == name
    return taken


async def stop(ada: Account, turn_id: str) -> None:
    assert (await ada.ask("POST", f"/turns/{turn_id}/stop")).status_code == 202


async def is_idle(group: Ensemble) -> bool:
    """True if no turn of the chat runs or is to come."""
    found: Any = await group.ada.get(TURNS.format(group.chat), state="running")
    return not found["items"]


async def spoken(group: Ensemble) -> list[str]:
    return [each["author"] for each in await group.messages() if each["role"] == "assistant"]


async def has_text(group: Ensemble, text: str) -> bool:
    return bool((await group.messages())[-1]["text"] == text)


async def last_events(client: Any, turn_id: str, place: str) -> list[Event]:
    """Return the events after a place of a joined stream."""
    headers = {"Last-Event-ID": place}
    async with client.stream("GET", f"/api/v1/turns/{turn_id}/events", headers=headers) as found:
        assert found.status_code == 200, await found.aread()
        return [event async for event in read_events(found)]


async def test_five_characters_talk_without_a_click(sqlite_url: str, tmp_path: Path) -> None:
    """20 replies on the demo model, each with a prompt of its own speaker."""
    async with running(sqlite_url, tmp_path) as server, server.account("Ada") as ada:
        group = await gather(ada)
        await set_chat(ada, group.chat, group={"auto_replies": 20})
        events = await group.turn(text="What happened to the lighthouse?")
        turns = split_turns(events)
        assert len(turns) == 20
        started = [turn[0].data for turn in turns]
        assert [each["number"] for each in started] == list(range(1, 21))
        assert [each["left"] for each in started] == list(range(19, -1, -1))
        assert all(turn[-1].name == "turn.completed" for turn in turns)
        names = speakers_in(events)
        assert set(names) == set(FIVE)
        assert all(one != other for one, other in pairwise(names))
        assert await spoken(group) == names
        replies = [each for each in await group.messages() if each["role"] == "assistant"]
        assert [text_of(turn) for turn in turns] == [each["text"] for each in replies]
        await check_tree(server.parts.database, group.chat)
        # The next line begins anew, and its chain is another one.
        assert len(split_turns(await group.turn(text="And then?", auto_replies=2))) == 2


@pytest.mark.every_database
async def test_each_reply_is_a_turn_of_its_own(group: Ensemble, model: OpenAIServer) -> None:
    sent = len(model.requests)
    model.script(reply("One."), reply("Two."), reply("Three."))
    events = await group.turn(text="Well?", auto_replies=3)
    assert speakers_in(events) == ["Alda", "Bor", "Cara"]
    first, second, third = split_turns(events)
    for number, turn in enumerate((first, second, third), 1):
        names = [event.name for event in turn]
        assert names[:3] == ["speaker.started", "turn.started", "context.ready"]
        assert names[-2:] == ["message.saved", "turn.completed"]
        begun = turn[0].data
        name = begun["name"]
        assert begun == {
            "turn_id": turn[1].data["turn_id"],
            "character_id": group.ids[name],
            "name": name,
            "number": number,
            "left": 3 - number,
        }
    assert [text_of(turn) for turn in (first, second, third)] == ["One.", "Two.", "Three."]
    # The ids of the first turn are numbers; others name their turn.
    assert {event.turn_id for event in first} == {""}
    for turn in (second, third):
        assert {event.turn_id for event in turn} == {turn[1].data["turn_id"]}
        assert [event.id for event in turn] == sorted({event.id for event in turn})
    prompts = [str(each.body["messages"]) for each in model.requests[sent:]]
    for name, prompt in zip(speakers_in(events), prompts, strict=True):
        assert f"You are {name}" in prompt
    assert ["[pass]" in each for each in prompts] == [False, True, True]
    assert "Bor: Two." in prompts[2]

    first_id = first[1].data["turn_id"]
    view: Any = await group.ada.get(f"/turns/{first_id}")
    assert (view["chain_id"], view["replies_left"]) == (first_id, 2)
    assert [each["reply"]["text"] for each in view["following"]] == ["Two.", "Three."]
    assert [each["chain_id"] for each in view["following"]] == [first_id] * 2
    listed: Any = await group.ada.get(TURNS.format(group.chat))
    assert [each["replies_left"] for each in listed["items"]] == [0, 1, 2]


@pytest.mark.every_database
@pytest.mark.parametrize("count", [0, 1])
async def test_one_reply_is_no_chain(group: Ensemble, count: int) -> None:
    await group.set(auto_replies=5)
    events = await group.turn(text="Well?", auto_replies=count)
    assert speakers_in(events) == []
    assert len(await group.messages()) == 2
    turn: Any = await group.ada.get(f"/turns/{events[0].data['turn_id']}")
    assert (turn["chain_id"], turn["replies_left"], turn["following"]) == (None, 0, [])


@pytest.mark.every_database
async def test_only_new_replies_of_a_group_are_followed(
    ada: Account, group: Ensemble, chat: str
) -> None:
    await group.set(auto_replies=3)
    await set_chat(ada, chat, group={"auto_replies": 3})
    assert len(await ada.turn(chat, text="Well?")) == len(await ada.turn(chat, text="Well?"))
    assert len(await ada.messages(chat)) == 5
    await group.turn(text="Well?", auto_replies=0)
    reply_id = (await group.messages())[-1]["id"]
    for body in ({"regenerate_of": reply_id}, {"continue": True}, {"impersonate": True}):
        await group.turn(**body)
        assert len(await group.messages()) == 2
    await ada.ask("POST", f"/chats/{group.chat}/suggestions")
    assert len(await group.messages()) == 2


async def test_clients_of_the_openai_compatible_endpoint_get_one_reply(
    group: Ensemble, server: Running
) -> None:
    """They cannot choose a speaker, either."""
    await group.set(auto_replies=3, next_speaker="by_hand")
    body = {"label": "client", "scope": "chat"}
    key = ok(await group.ada.client.post("/api/v1/api-keys", json=body), 201)["token"]
    async with server.program(key) as program:
        answer = await program.post(
            "/v1/chat/completions",
            json={
                "model": "character:alda",
                "messages": [{"role": "user", "content": "Well, Bor?"}],
            },
            headers={"X-Talekeeper-Chat": group.chat},
        )
        assert len(ok(answer)["choices"]) == 1
    assert await is_idle(group)
    assert await spoken(group) == ["Bor"]


@pytest.mark.every_database
async def test_a_chain_needs_no_line(group: Ensemble) -> None:
    await group.turn(text="Well?", auto_replies=0)
    assert speakers_in(await group.turn(auto_replies=3)) == ["Bor", "Cara", "Alda"]
    asked = await group.turn(auto_replies=2, speaker=group.ids["Cara"])
    assert speakers_in(asked) == ["Cara", "Alda"]


async def test_those_who_were_named_come_first(group: Ensemble, model: OpenAIServer) -> None:
    """Also after a reply that names no one."""
    await group.set(next_speaker="mention")
    for _ in range(3):
        model.script(reply("Hm."), reply("Ask Alda."), reply("I?"))
        events = await group.turn(text="Cara and Bor, what do you say?", auto_replies=3)
        assert speakers_in(events) == ["Cara", "Bor", "Alda"]


@pytest.mark.every_database
async def test_a_whisper_stays_among_its_listeners(group: Ensemble, model: OpenAIServer) -> None:
    await group.set(next_speaker="mention")
    listeners = [group.ids["Alda"], group.ids["Bor"]]
    events = await group.turn(text="Quiet.", audience=listeners, auto_replies=4)
    names = speakers_in(events)
    assert len(names) == 4
    assert set(names) == {"Alda", "Bor"}
    assert all(one != other for one, other in pairwise(names))
    assert all(set(each["audience"]) == set(listeners) for each in await group.messages())
    await group.turn(text="Aloud.", auto_replies=0, speaker=group.ids["Cara"])
    assert "Quiet." not in str(model.requests[-1].body)


@pytest.mark.every_database
async def test_no_one_answers_himself_by_himself(group: Ensemble) -> None:
    for name in ("Bor", "Cara"):
        await group.move(name, "absent")
    assert speakers_in(await group.turn(text="Well?", auto_replies=4)) == ["Alda"]
    await group.set(allow_self_replies=True)
    assert speakers_in(await group.turn(text="Well?", auto_replies=3)) == ["Alda"] * 3
    await until(lambda: is_idle(group))


async def test_by_hand_no_one_follows(group: Ensemble) -> None:
    await group.set(next_speaker="by_hand")
    events = await group.turn(text="Well?", auto_replies=4, speaker=group.ids["Bor"])
    assert speakers_in(events) == ["Bor"]


@pytest.mark.every_database
async def test_the_task_model_may_end_it(group: Ensemble, model: OpenAIServer) -> None:
    await group.set(next_speaker="model")
    model.script(
        reply('{"speaker": "Cara"}'),
        reply("Hm."),
        reply('{"speaker": "Alda"}'),
        reply("So?"),
        reply('{"speaker": ""}'),
    )
    events = await group.turn(text="Well?", auto_replies=5)
    assert speakers_in(events) == ["Cara", "Alda"]
    assert await is_idle(group)


@pytest.mark.every_database
async def test_a_failed_reply_ends_it(group: Ensemble, model: OpenAIServer) -> None:
    model.script(reply("One."), error(400, message="No."))
    events = await group.turn(text="Well?", auto_replies=5)
    assert speakers_in(events) == ["Alda", "Bor"]
    assert events[-1].name == "turn.failed"
    assert len(await group.messages()) == 2
    stored = await follow(group.ada.client, events[1].data["turn_id"])
    # The empty reply is deleted, and with it the name of its speaker.
    assert [each.name for each in stored] == [
        each.name for each in events if each != split_turns(events)[1][0]
    ]


@pytest.mark.every_database
async def test_a_turn_that_may_not_begin_ends_it(
    group: Ensemble, server: Running, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream says why."""

    async def exceed(*_: Any, **__: Any) -> None:
        raise TOKENS_PER_DAY.make_error(limit=1, used=2)

    gate = Gate()
    model.script(reply("One."), held_back(gate))
    async with chain_under_way(group, auto_replies=4) as (_, events):
        heard = await take_until(events, "text.delta", 2)
        with monkeypatch.context() as patch:
            patch.setattr(server.parts.quotas, "check", exceed)
            gate.opened.set()
            heard += [event async for event in events]
    assert speakers_in(heard) == ["Alda", "Bor"]
    assert [each.name for each in heard[-3:]] == ["turn.completed", "turn.started", "turn.failed"]
    assert heard[-1].data["type"].endswith(":quota-exceeded")
    turn: Any = await group.ada.get(f"/turns/{heard[-1].data['turn_id']}")
    assert (turn["state"], turn["totals"], turn["reply_id"]) == ("failed", None, None)
    assert await is_idle(group)
    assert len(split_turns(await group.turn(text="Next.", auto_replies=2))) == 2


class TestStop:
    """A chain is stopped at each point, by the id of any of its turns."""

    @pytest.mark.every_database
    async def test_before_the_first_token(self, group: Ensemble, model: OpenAIServer) -> None:
        gate = Gate()
        model.script(stream(gate))
        async with chain_under_way(group, auto_replies=3) as (turn_id, events):
            heard = await take_until(events, "context.ready")
            await stop(group.ada, turn_id)
            heard += [event async for event in events]
        assert heard[-1].data["state"] == "stopped"
        assert speakers_in(heard) == ["Alda"]
        assert [each["role"] for each in await group.messages()] == ["user"]

    @pytest.mark.every_database
    @pytest.mark.parametrize("by", ["first", "second"])
    async def test_in_the_middle(self, group: Ensemble, model: OpenAIServer, by: str) -> None:
        model.script(reply("One."), held_back(Gate()))
        async with chain_under_way(group, auto_replies=3) as (turn_id, events):
            heard = await take_until(events, "text.delta", 2)
            await stop(group.ada, turn_id if by == "first" else heard[-1].turn_id)
            heard += [event async for event in events]
        assert heard[-1].data["state"] == "stopped"
        assert speakers_in(heard) == ["Alda", "Bor"]
        assert [each["text"] for each in await group.messages()] == ["Well?", "One.", "Once upon"]
        assert await is_idle(group)

    @pytest.mark.every_database
    @pytest.mark.parametrize("by", ["first", "reserved"])
    async def test_between_two_turns(
        self, group: Ensemble, server: Running, monkeypatch: pytest.MonkeyPatch, by: str
    ) -> None:
        async with held_between(group, server, monkeypatch) as (turn_id, events, may_go_on):
            heard = await take_until(events, "turn.completed")
            [reserved] = await running_turns(group)
            assert (reserved["totals"], reserved["replies_left"]) == (None, 1)
            await stop(group.ada, turn_id if by == "first" else reserved["id"])
            may_go_on.set()
            heard += [event async for event in events]
        assert heard[-1].name == "turn.completed"
        assert speakers_in(heard) == ["Alda"]
        assert await is_idle(group)
        answer = await group.ada.ask("GET", f"/turns/{reserved['id']}")
        problem(answer, 404, "turn-not-found")

    async def test_when_the_model_has_just_finished(
        self, group: Ensemble, server: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The end of the turn is not stored yet."""
        registry = server.parts.turns.runs
        conclude, is_done, may_end = registry._conclude, asyncio.Event(), asyncio.Event()

        async def hang(run: Any) -> None:
            is_done.set()
            await may_end.wait()
            await conclude(run)

        monkeypatch.setattr(registry, "_conclude", hang)
        async with chain_under_way(group, auto_replies=3) as (turn_id, events):
            await is_done.wait()
            await stop(group.ada, turn_id)
            may_end.set()
            heard = [event async for event in events]
        assert heard[-1].data["state"] == "completed"
        assert speakers_in(heard) == ["Alda"]
        assert await is_idle(group)

    async def test_after_the_end_it_changes_nothing(self, group: Ensemble) -> None:
        events = await group.turn(text="Well?", auto_replies=2)
        before = await group.messages()
        for event in (events[0], events[-1]):
            await stop(group.ada, event.data["turn_id"])
        assert await group.messages() == before


@contextlib.asynccontextmanager
async def held_between(
    group: Ensemble, server: Running, monkeypatch: pytest.MonkeyPatch, count: int = 3
) -> AsyncGenerator[tuple[str, AsyncGenerator[Event], asyncio.Event]]:
    """Begin a chain that waits before its second turn until the yielded event is set."""
    builder = server.parts.turns._builder
    build, may_go_on = builder.build, asyncio.Event()

    async def build_later(*args: Any, speaker: Any = None, **options: Any) -> Any:
        if speaker is not None and speaker.automatic is not None:
            await may_go_on.wait()
        return await build(*args, speaker=speaker, **options)

    monkeypatch.setattr(builder, "build", build_later)
    async with chain_under_way(group, auto_replies=count) as (turn_id, events):
        yield turn_id, events, may_go_on


async def running_turns(group: Ensemble) -> list[dict[str, Any]]:
    found: Any = await group.ada.get(TURNS.format(group.chat), state="running")
    return list(found["items"])


class TestBetweenTurns:
    """What happens between two turns of a chain ends it."""

    @pytest.mark.every_database
    @pytest.mark.parametrize("with_id", [False, True])
    async def test_a_line_of_the_user_takes_its_place(
        self,
        group: Ensemble,
        server: Running,
        monkeypatch: pytest.MonkeyPatch,
        with_id: bool,  # a parameter of the test
    ) -> None:
        async with held_between(group, server, monkeypatch) as (_, events, may_go_on):
            heard = await take_until(events, "turn.completed")
            body = {"text": "Stop it, Cara.", **({"turn_id": str(uuid4())} if with_id else {})}
            mine = await group.turn(**body)
            assert mine[-1].name == "turn.completed"
            may_go_on.set()
            heard += [event async for event in events]
        assert speakers_in(heard) == ["Alda"]
        texts = [each["text"] for each in await group.messages()]
        assert (len(texts), texts[2]) == (4, "Stop it, Cara.")
        assert await is_idle(group)

    @pytest.mark.every_database
    async def test_while_a_character_speaks_a_line_is_refused(
        self, group: Ensemble, model: OpenAIServer
    ) -> None:
        model.script(reply("One."), held_back(Gate()))
        async with chain_under_way(group, auto_replies=3) as (_, events):
            heard = await take_until(events, "text.delta", 2)
            refused = await group.ada.ask("POST", TURNS.format(group.chat), json={"text": "Me!"})
            found = problem(refused, 409, "turn-in-progress")
            assert found["turn_id"] == heard[-1].turn_id
            await stop(group.ada, found["turn_id"])

    @pytest.mark.every_database
    async def test_another_path_ends_it(
        self, group: Ensemble, server: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with held_between(group, server, monkeypatch) as (_, events, may_go_on):
            await take_until(events, "turn.completed")
            line = (await group.messages())[0]
            await group.ada.patch(f"/messages/{line['id']}", {"text": "Something else?"})
            may_go_on.set()
            assert [event async for event in events] == []
        assert [each["text"] for each in await group.messages()] == ["Something else?"]
        assert await is_idle(group)
        await check_tree(server.parts.database, group.chat)

    async def test_other_settings_do_not_end_it(
        self, group: Ensemble, server: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with held_between(group, server, monkeypatch) as (_, events, may_go_on):
            heard = await take_until(events, "turn.completed")
            await group.set(next_speaker="pooled")
            may_go_on.set()
            heard += [event async for event in events]
        assert len(speakers_in(heard)) == 3

    async def test_a_deleted_chat_ends_it(
        self, group: Ensemble, server: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with held_between(group, server, monkeypatch) as (_, events, may_go_on):
            await take_until(events, "turn.completed")
            await group.ada.delete(f"/chats/{group.chat}")
            may_go_on.set()
            assert [event async for event in events] == []
        await until_true(lambda: not server.parts.turns._chains._tasks)

    async def test_signing_out_ends_it(
        self, group: Ensemble, server: Running, model: OpenAIServer
    ) -> None:
        """The running turn is finished, and no other begins."""
        gate = Gate()
        model.script(held_back(gate))
        async with chain_under_way(group, auto_replies=3) as (_, events):
            await take_until(events, "text.delta")
            ok(await group.ada.client.delete("/api/v1/sessions/current"), 204)
            gate.opened.set()
        async with server.signed_in(group.ada.name) as again:
            there = Ensemble(again, group.chat, group.ids)
            await until(lambda: is_idle(there))
            assert [each["text"] for each in await there.messages()] == [
                "Well?",
                "Once upon a time.",
            ]


class TestPassing:
    """A character may have nothing to say in a reply that follows by itself."""

    @pytest.mark.every_database
    @pytest.mark.parametrize("mark", ["[pass]", '"Pass."', "*[PASS]*", ""])
    async def test_a_pass_is_hidden_and_no_line(
        self, group: Ensemble, model: OpenAIServer, server: Running, mark: str
    ) -> None:
        sent = len(model.requests)
        model.script(reply("One."), reply(*mark), reply("Three."))
        events = await group.turn(text="Well?", auto_replies=3)
        assert speakers_in(events) == ["Alda", "Bor", "Cara"]
        _, passed, _ = split_turns(events)
        assert text_of(passed) == ""
        names = [event.name for event in passed if event.name != "usage"]
        assert names == [
            *("speaker.started", "turn.started", "context.ready"),
            *("speaker.passed", "message.saved", "turn.completed"),
        ]
        [told] = [event.data for event in passed if event.name == "speaker.passed"]
        _, one, silent, three = await group.messages()
        assert told == {
            "turn_id": passed[1].data["turn_id"],
            "character_id": group.ids["Bor"],
            "name": "Bor",
            "message_id": silent["id"],
        }
        assert (silent["text"], silent["hidden"], silent["status"]) == ("", True, "complete")
        assert silent["notices"] == [{"kind": "passed"}]
        assert (three["parent_id"], silent["parent_id"]) == (silent["id"], one["id"])
        prompt = model.requests[sent + 2].body["messages"]
        assert "One." in str(prompt)
        assert "Bor:" not in str(prompt)
        stored = await follow(group.ada.client, events[1].data["turn_id"])
        assert (said(stored), others(stored)) == (said(events), others(events))
        await check_tree(server.parts.database, group.chat)

    @pytest.mark.every_database
    async def test_the_last_line_is_that_before_the_pass(
        self, group: Ensemble, model: OpenAIServer
    ) -> None:
        await group.set(next_speaker="mention")
        model.script(reply("Bor and Cara, go."), reply("[pass]"), reply("I go."))
        events = await group.turn(text="Alda?", auto_replies=3)
        assert speakers_in(events) == ["Alda", "Bor", "Cara"]
        assert await search(group.ada, "pass") == []
        assert (await preview(group.ada, group.chat))["speaker"]["name"] != "Cara"

    @pytest.mark.every_database
    async def test_it_ends_when_all_have_passed(self, group: Ensemble, model: OpenAIServer) -> None:
        model.script(reply("One."), reply("[pass]"), reply("[pass]"), reply("No."))
        events = await group.turn(text="Well?", auto_replies=9)
        assert speakers_in(events) == ["Alda", "Bor", "Cara"]
        assert await is_idle(group)
        model.unscript()
        model.script(reply("Two."), reply("[pass]"), reply("Three."), *[reply("[pass]")] * 5)
        events = await group.turn(text="Well?", auto_replies=9)
        assert len(speakers_in(events)) == 5  # the third reply begins anew

    async def test_two_characters_pass_twice(self, ada: Account, model: OpenAIServer) -> None:
        group = await gather(ada, ("Alda", "Bor"))
        model.script(reply("One."), *[reply("[pass]")] * 5)
        events = await group.turn(text="Alda?", auto_replies=9)
        assert speakers_in(events) == ["Alda", "Bor", "Bor"]
        model.unscript()

    async def test_passes_count(self, group: Ensemble, model: OpenAIServer) -> None:
        model.script(reply("One."), reply("[pass]"))
        assert len(split_turns(await group.turn(text="Well?", auto_replies=2))) == 2

    async def test_who_answers_the_user_does_not_pass(
        self, group: Ensemble, model: OpenAIServer
    ) -> None:
        model.script(reply("[pass]"), reply("Two."))
        events = await group.turn(text="Well?", auto_replies=2)
        assert text_of(split_turns(events)[0]) == "[pass]"
        model.script(reply(""))
        events = await group.turn(text="Well?", auto_replies=2)
        assert (events[-1].name, len(speakers_in(events))) == ("turn.failed", 1)

    async def test_the_mark_is_never_streamed(self, group: Ensemble, model: OpenAIServer) -> None:
        model.script(reply("One."), reply(*"[pass] He nods."), reply(*"Pass me that."))
        events = await group.turn(text="Well?", auto_replies=3)
        texts = [text_of(turn) for turn in split_turns(events)]
        assert texts == ["One.", "He nods.", "Pass me that."]

    async def test_a_pass_can_be_written_again(self, group: Ensemble, model: OpenAIServer) -> None:
        model.script(reply("One."), reply("[pass]"))
        await group.turn(text="Well?", auto_replies=2)
        silent = (await group.messages())[-1]
        model.script(reply("Two after all."))
        await group.turn(regenerate_of=silent["id"], auto_replies=0)
        last = (await group.messages())[-1]
        assert (last["text"], last["author"], last["notices"]) == ("Two after all.", "Bor", [])


class TestPlay:
    """A group that plays in a campaign, in which tools end a turn."""

    @pytest.fixture
    async def played(self, ada: Account, group: Ensemble) -> Ensemble:
        game = await new_game(ada)
        await ada.patch(f"/chats/{group.chat}", {"campaign_id": game.campaign["id"]})
        return group

    @pytest.mark.every_database
    async def test_a_choice_ends_it(self, played: Ensemble, model: OpenAIServer) -> None:
        model.script(called(FINISH, text="One."), called(QUESTION, text="A fork."))
        events = await played.turn(text="Well?", auto_replies=4)
        assert speakers_in(events) == ["Alda", "Bor"]
        assert events[-1].name == "turn.awaiting_choice"
        assert "[pass]" not in str(model.requests[-1].body)
        model.script(called(FINISH, text="We go left."))
        path = f"/turns/{events[-1].turn_id}/choice"
        async with played.ada.stream("POST", path, json={"option": "1.0"}) as answer:
            rest = [event async for event in read_events(answer)]
        assert (rest[-1].name, text_of(rest)) == ("turn.completed", "\n\nWe go left.")
        assert await is_idle(played)
        assert await spoken(played) == ["Alda", "Bor"]

    async def test_a_waiting_turn_is_stopped_by_the_first(
        self, played: Ensemble, model: OpenAIServer
    ) -> None:
        model.script(called(FINISH, text="One."), called(QUESTION, text="A fork."))
        events = await played.turn(text="Well?", auto_replies=4)
        await stop(played.ada, events[0].data["turn_id"])
        turn: Any = await played.ada.get(f"/turns/{events[-1].turn_id}")
        assert turn["state"] == "stopped"
        assert await spoken(played) == ["Alda", "Bor"]


class TestStreams:
    """A client can leave, and resume in the middle of any turn."""

    async def test_a_chain_needs_no_client(self, group: Ensemble, model: OpenAIServer) -> None:
        gate = Gate()
        model.script(held_back(gate))
        async with chain_under_way(group, auto_replies=3) as (turn_id, events):
            await take_until(events, "text.delta")
        gate.opened.set()

        async def is_complete() -> bool:
            return len(await spoken(group)) == 3 and await is_idle(group)

        await until(is_complete)
        assert speakers_in(await follow(group.ada.client, turn_id)) == ["Alda", "Bor", "Cara"]

    @pytest.mark.every_database
    async def test_it_resumes_after_any_event(self, group: Ensemble, model: OpenAIServer) -> None:
        model.script(reply("One", " by", " one."), reply("[pass]"), reply("Three."))
        events = await group.turn(text="Well?", auto_replies=3)
        client, first_id = group.ada.client, events[1].data["turn_id"]
        for number, event in enumerate(events):
            rest = await last_events(client, first_id, event.place)
            if event.name == "speaker.started":
                # It is sent again until its turn has begun.
                assert rest[0] == event
                rest = rest[1:]
            assert (said(rest), others(rest)) == (
                said(events[number + 1 :]),
                others(events[number + 1 :]),
            )
        # From the turn that `speaker.started` names, the ids of this turn are numbers.
        second = split_turns(events)[1]
        second_id = second[0].data["turn_id"]
        rest = await last_events(client, second_id, str(second[1].id))
        assert others(rest)[0][0] == "context.ready"
        assert [event.turn_id for event in rest][:1] == [""]
        assert rest[-1].turn_id == split_turns(events)[2][0].data["turn_id"]

    async def test_it_resumes_while_it_runs(self, group: Ensemble, model: OpenAIServer) -> None:
        gate = Gate()
        model.script(reply("One."), held_back(gate), reply("Three."))
        async with chain_under_way(group, auto_replies=3) as (turn_id, events):
            heard = await take_until(events, "text.delta", 2)
        resumed = asyncio.create_task(last_events(group.ada.client, turn_id, heard[-1].place))
        await asyncio.sleep(0.2)
        gate.opened.set()
        heard += await resumed
        assert [text_of(turn) for turn in split_turns(heard)] == [
            "One.",
            "Once upon a time.",
            "Three.",
        ]

    async def test_foreign_places_are_refused(self, group: Ensemble) -> None:
        ids = [
            (await group.turn(text="Well?", auto_replies=2))[1].data["turn_id"] for _ in range(2)
        ]
        for place in (f"{ids[1]}:3", f"{uuid4()}:3", "x:3", f"{ids[0]}:", f"{ids[0]}:x"):
            headers = {"Last-Event-ID": place}
            answer = await group.ada.ask("GET", f"/turns/{ids[0]}/events", headers=headers)
            problem(answer, 400, "bad-request")

    @pytest.mark.every_database
    async def test_json_waits_for_all(self, group: Ensemble, model: OpenAIServer) -> None:
        model.script(reply("One."), reply("Two."))
        body = {"text": "Well?", "auto_replies": 2, "turn_id": str(uuid4())}
        for _ in range(2):
            found = ok(
                await group.ada.ask(
                    "POST",
                    TURNS.format(group.chat),
                    json=body,
                    headers={"Accept": "application/json"},
                )
            )
            assert (found["id"], found["reply"]["text"]) == (body["turn_id"], "One.")
            assert [each["reply"]["text"] for each in found["following"]] == ["Two."]
            assert len(await group.messages()) == 3

    @pytest.mark.every_database
    async def test_a_repeated_request_follows_the_chain(
        self, group: Ensemble, model: OpenAIServer
    ) -> None:
        gate = Gate()
        model.script(reply("One."), held_back(gate))
        body = {"text": "Well?", "auto_replies": 3, "turn_id": str(uuid4())}
        async with chain_under_way(group, **body) as (_, events):
            heard = await take_until(events, "text.delta", 2)
            again = asyncio.create_task(group.turn(**body))
            await asyncio.sleep(0.2)
            gate.opened.set()
            heard += [event async for event in events]
        repeated = await again
        assert (said(repeated), others(repeated)) == (said(heard), others(heard))
        assert len(speakers_in(repeated)) == 3
        assert len(await group.messages()) == 4
        once_more = await group.turn(**body)
        assert (said(once_more), others(once_more)) == (said(heard), others(heard))


@pytest.mark.postgres
class TestProcesses:
    """Several processes on one PostgreSQL."""

    @pytest.fixture
    async def first(
        self, postgres_url: str, tmp_path: Path, model: OpenAIServer
    ) -> AsyncGenerator[Running]:
        async with running(postgres_url, tmp_path, **asking(model)) as server:
            yield server

    @pytest.fixture
    async def other(
        self, postgres_url: str, tmp_path: Path, model: OpenAIServer
    ) -> AsyncGenerator[Running]:
        async with running(postgres_url, tmp_path / "other", **asking(model)) as server:
            yield server

    @pytest.fixture
    async def group(self, first: Running, model: OpenAIServer) -> AsyncGenerator[Ensemble]:
        async with first.account() as ada:
            group = await gather(ada, ("Alda", "Bor", "Cara"))
            await group.set(next_speaker="list")
            yield group
            model.unscript()

    @pytest.fixture
    async def elsewhere(self, group: Ensemble, other: Running) -> AsyncGenerator[Account]:
        async with same_browser(group.ada, other) as elsewhere:
            yield elsewhere

    async def test_a_chain_is_followed_and_resumed_elsewhere(
        self, group: Ensemble, elsewhere: Account, model: OpenAIServer
    ) -> None:
        gate = Gate()
        model.script(reply("One."), held_back(gate), reply("Three."))
        async with chain_under_way(group, auto_replies=3) as (turn_id, events):
            heard = await take_until(events, "text.delta", 2)
            whole = asyncio.create_task(follow(elsewhere.client, turn_id))
            rest = asyncio.create_task(last_events(elsewhere.client, turn_id, heard[-1].place))
            await asyncio.sleep(0.5)
            gate.opened.set()
            live = [*heard, *[event async for event in events]]
        assert (said(await whole), others(await whole)) == (said(live), others(live))
        resumed = [*heard, *await rest]
        assert (said(resumed), others(resumed)) == (said(live), others(live))

    async def test_a_chain_is_stopped_elsewhere(
        self, group: Ensemble, elsewhere: Account, model: OpenAIServer
    ) -> None:
        model.script(reply("One."), held_back(Gate()))
        async with chain_under_way(group, auto_replies=3) as (turn_id, events):
            heard = await take_until(events, "text.delta", 2)
            await stop(elsewhere, turn_id)
            heard += [event async for event in events]
        assert heard[-1].data["state"] == "stopped"
        assert speakers_in(heard) == ["Alda", "Bor"]

    async def test_it_is_stopped_elsewhere_between_two_turns(
        self,
        group: Ensemble,
        elsewhere: Account,
        first: Running,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async with held_between(group, first, monkeypatch) as (turn_id, events, may_go_on):
            heard = await take_until(events, "turn.completed")
            followed = asyncio.create_task(follow(elsewhere.client, turn_id))
            await asyncio.sleep(0.3)
            await stop(elsewhere, turn_id)
            may_go_on.set()
            heard += [event async for event in events]
        assert speakers_in(heard) == speakers_in(await followed) == ["Alda"]
        assert await is_idle(group)

    async def test_a_shutdown_ends_it(
        self,
        group: Ensemble,
        elsewhere: Account,
        first: Running,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async with held_between(group, first, monkeypatch) as (turn_id, events, _):
            await take_until(events, "turn.completed")
            followed = asyncio.create_task(follow(elsewhere.client, turn_id))
            await first.parts.turns.close()
            assert [event async for event in events] == []
        assert speakers_in(await followed) == ["Alda"]
        there = Ensemble(elsewhere, group.chat, group.ids)
        assert await is_idle(there)
        assert len(await there.turn(text="Next.", auto_replies=0)) > 3

    async def test_a_lost_process_ends_it(
        self,
        group: Ensemble,
        elsewhere: Account,
        first: Running,
        other: Running,
        model: OpenAIServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """In the middle of a turn, and between two turns."""
        there = Ensemble(elsewhere, group.chat, group.ids)
        async with held_between(group, first, monkeypatch) as (turn_id, events, may_go_on):
            await take_until(events, "turn.completed")
            [reserved] = await running_turns(there)
            await lapse(other.parts.database, reserved["id"])
            await other.parts.turns.recover()
            assert await is_idle(there)
            assert speakers_in(await follow(elsewhere.client, turn_id)) == ["Alda"]
            may_go_on.set()
            assert [event async for event in events] == []
        assert await is_idle(there)

        model.script(reply("One."), held_back(Gate()))
        async with chain_under_way(group, auto_replies=3) as (turn_id, events):
            heard = await take_until(events, "text.delta", 2)
            second_id = heard[-1].turn_id
            await until(lambda: has_text(there, "Once upon"))
            async with first.parts.database.write() as session:
                turn = await session.get_one(Turn, UUID(second_id), with_for_update=True)
                turn.lease_until, turn.lease_owner = now(), uuid4()
            await other.parts.turns.recover()
            heard += [event async for event in events]
        followed = await follow(elsewhere.client, turn_id)
        assert speakers_in(followed) == speakers_in(heard) == ["Bor", "Cara"]
        assert followed[-1].name == "turn.failed"
        assert followed[-1].data["type"].endswith(":turn-interrupted")
        assert await is_idle(there)
        async with other.parts.database.read() as session:
            query = select(Message.status).where(Message.chat_id == UUID(group.chat))
            assert "streaming" not in set(await session.scalars(query))
