"""Turns that wait for their player: other requests meanwhile, and choices."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
import pytest
from sqlalchemy import select

from backend.generation.registry import ModelRegistry
from backend.turns.models import TURN_PLAY, Turn
from backend.turns.run.resume import read_suspended
from tests.fakes.openai_server import MODEL_ID, OpenAIServer, called, error, stream
from tests.fakes.scripted_server import Gate
from tests.integration.turns.following import (
    Outage,
    check_tree,
    follow,
    is_over,
    same_browser,
    take_words,
    turn_under_way,
)
from tests.integration.turns.playing import FINISH, QUESTION, Game, named, names, new_game
from tests.integration.turns.seeding import identity_of
from tests.support.logs import Logged
from tests.support.server import Account, Running, ok, problem, running, text_of
from tests.support.shared import asking_server as server
from tests.support.waiting import until

__all__ = ["server"]

pytestmark = pytest.mark.anyio

DAYS = ("advance_time", {"days": 1})


def registry(vendor: OpenAIServer) -> ModelRegistry:
    return ModelRegistry(demo_tokens_per_second=0, openai=vendor.config(), default=MODEL_ID)


@pytest.fixture
async def game(ada: Account, vendor: OpenAIServer) -> Game:
    vendor.requests.clear()
    return await new_game(ada)


async def load_turn(server: Running, turn_id: str) -> Turn:
    async with server.parts.database.read() as session:
        return await session.get_one(Turn, UUID(turn_id))


class TestMeanwhile:
    async def test_refuses_other_turns(self, game: Game, vendor: OpenAIServer) -> None:
        turn_id = await game.wait_for_choice(vendor, text="A fork.")
        answer = await game.last()
        for body in (
            {"text": "Well?"},
            {"regenerate_of": answer["id"]},
            {"continue": True},
            {"impersonate": True},
            {"text": "Well?", "turn_id": str(uuid4())},
        ):
            sent = await game.account.ask("POST", f"/chats/{game.chat}/turns", json=body)
            told = problem(sent, 409, "turn-waiting")
            assert told["turn_id"] == turn_id
            assert told["waiting"]["prompt"] == "Which way?"
        assert len(vendor.requests) == 1
        assert len(await game.account.messages(game.chat)) == 2
        waiting = await game.account.get(f"/chats/{game.chat}/turns", state="waiting")
        assert [each["id"] for each in waiting["items"]] == [turn_id]
        preview = await game.account.get(f"/chats/{game.chat}/context?text=Well")
        assert "A fork." not in str(preview)

    async def test_locks_its_reply(self, game: Game, vendor: OpenAIServer, server: Running) -> None:
        turn_id = await game.wait_for_choice(vendor, text="A fork.")
        [line, answer] = await game.account.messages(game.chat)
        messages = "/messages"
        for refused in (
            await game.account.ask(
                "PATCH", f"{messages}/{answer['id']}", json={"text": "No fork."}
            ),
            await game.account.ask("DELETE", f"{messages}/{answer['id']}"),
            await game.account.ask("DELETE", f"{messages}/{line['id']}"),
            await game.account.ask(
                "POST", f"/chats/{game.chat}/fork", json={"message_id": answer["id"]}
            ),
        ):
            problem(refused, 409, "message-busy")
        await server.parts.turns.recover()
        assert (await game.turn(turn_id))["state"] == "waiting"
        await game.choose(turn_id, "1.1")
        assert (await game.turn(turn_id))["state"] == "completed"

    async def test_waits_for_its_branch(
        self, game: Game, vendor: OpenAIServer, server: Running
    ) -> None:
        turn_id = await game.wait_for_choice(vendor, text="A fork.")
        [line, answer] = await game.account.messages(game.chat)
        messages = "/messages"
        await game.account.patch(f"{messages}/{line['id']}", {"text": "I stay."})
        await game.refused(turn_id, "1.0", 409, "chat-changed")
        sent = await game.account.ask("POST", f"/chats/{game.chat}/turns", json={"text": "Well?"})
        problem(sent, 409, "turn-waiting")
        await game.account.post(f"{messages}/{answer['id']}/activate")
        vendor.script(called(DAYS, FINISH, text="You go."))
        assert (await game.choose(turn_id, "1.0"))[-1].name == "turn.completed"
        assert (await game.state())["day"] == 2
        await check_tree(server.parts.database, game.chat)

    async def test_needs_its_campaign(self, game: Game, vendor: OpenAIServer) -> None:
        turn_id = await game.wait_for_choice(vendor)
        chat = f"/chats/{game.chat}"
        await game.account.patch(chat, {"campaign_id": None})
        await game.refused(turn_id, "1.0", 409, "conflict")
        assert (await game.turn(turn_id))["state"] == "waiting"
        await game.stop(turn_id)
        assert (await game.say("And now?"))[-1].name == "turn.completed"

    async def test_goes_with_its_chat(
        self, game: Game, vendor: OpenAIServer, server: Running
    ) -> None:
        turn_id = await game.wait_for_choice(vendor, text="A fork.")
        assert (await game.account.ask("DELETE", f"/chats/{game.chat}")).status_code == 204
        await game.refused(turn_id, "1.0", 404, "turn-not-found")
        async with server.parts.database.read() as session:
            assert await session.get(Turn, UUID(turn_id)) is None

    async def test_it_is_sealed(self, game: Game, vendor: OpenAIServer, server: Running) -> None:
        turn_id = await game.wait_for_choice(vendor, text="A fork.")
        async with server.parts.database.read() as session:
            row = (
                await session.execute(select(Turn.__table__).where(Turn.id == UUID(turn_id)))
            ).one()
        # A time can contain "1.0".
        values = [each for each in row if not isinstance(each, datetime)]
        stored = b" ".join(
            each if isinstance(each, bytes) else str(each).encode() for each in values
        )
        for word in (b"Which way", b"Left", b"ask_player", b"fork", b"1.0"):
            assert word not in stored
        assert row.sealed_play is not None
        assert row.lease_until is None
        assert len(row.sealed_play) + len(row.sealed_events) < 8_000


class TestAsking:
    async def test_the_question_comes_when_it_can_be_answered(
        self,
        game: Game,
        vendor: OpenAIServer,
        server: Running,
        monkeypatch: pytest.MonkeyPatch,
        logged: Logged,
    ) -> None:
        async def is_refused() -> bool:
            return bool(logged.lines("turn.not_stored_yet"))

        outage, gate = Outage(server.parts.database, monkeypatch), Gate()
        begin, *rest = called(QUESTION, text="A fork.").events or [{}]
        vendor.script(stream(begin, gate, *rest))
        async with turn_under_way(game.account, game.chat, text="I go on.") as (turn_id, events):
            heard = await take_words(events, 2)
            await outage.start()
            gate.opened.set()
            await until(is_refused)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    while heard[-1].name != "turn.awaiting_choice":
                        heard.append(await anext(events))
            outage.is_on = False
        (question,) = await follow(game.client, turn_id, last_id=heard[-1].id)
        assert question.name == "turn.awaiting_choice"
        vendor.script(called(FINISH, text="Home."))
        assert (await game.choose(turn_id, "1.0"))[-1].name == "turn.completed"


class TestStopping:
    async def test_changes_nothing(self, game: Game, vendor: OpenAIServer, server: Running) -> None:
        vendor.script(called(DAYS, QUESTION, text="You walk on."))
        events = await game.say()
        turn_id = events[0].data["turn_id"]
        changes = await game.changes()
        await game.stop(turn_id)
        assert (await game.turn(turn_id))["state"] == "stopped"
        assert (await game.turn(turn_id))["waiting"] is None
        assert ((await game.state())["day"], await game.changes()) == (1, changes)
        kept = await game.last()
        assert (kept["text"], kept["status"]) == ("You walk on.", "interrupted")
        rest = await follow(game.client, turn_id, last_id=events[-1].id)
        assert names(rest) == ["usage", "message.saved", "turn.completed"]
        await game.refused(turn_id, "1.0", 409, "turn-not-waiting")
        row = await load_turn(server, turn_id)
        assert row.sealed_play is None
        await check_tree(server.parts.database, game.chat)
        assert (await game.say("And now?"))[-1].name == "turn.completed"

    async def test_leaves_no_empty_reply(
        self, game: Game, vendor: OpenAIServer, server: Running
    ) -> None:
        turn_id = await game.wait_for_choice(vendor)
        await game.stop(turn_id)
        assert [each["role"] for each in await game.account.messages(game.chat)] == ["user"]
        assert (await game.turn(turn_id))["reply_id"] is None
        await check_tree(server.parts.database, game.chat)


class TestChoosing:
    async def test_refuses_unknown_options(self, game: Game, vendor: OpenAIServer) -> None:
        turn_id = await game.wait_for_choice(vendor)
        for option in ("1.2", "2.0", "0.0", "left", "1.0 "):
            await game.refused(turn_id, option, 422, "validation-failed")
        await game.refused(turn_id, "", 422, "validation-failed")
        await game.refused(turn_id, "1" * 100, 422, "validation-failed")
        assert len(vendor.requests) == 1
        assert (await game.turn(turn_id))["state"] == "waiting"

    async def test_a_second_wait_has_new_options(self, game: Game, vendor: OpenAIServer) -> None:
        turn_id = await game.wait_for_choice(vendor, text="A fork.")
        vendor.script(called(QUESTION, text="Another one."))
        second = await game.choose(turn_id, "1.0")
        assert names(second) == [
            "turn.choice_made", "text.delta", "tool.used", "turn.awaiting_choice"
        ]  # fmt: skip
        assert [each["id"] for each in second[-1].data["options"]] == ["2.0", "2.1"]
        assert await game.choose(turn_id, "1.0") == second
        assert (await game.turn(turn_id))["state"] == "waiting"
        await game.refused(turn_id, "1.1", 409, "choice-made")
        vendor.script(called(FINISH, text="Home."))
        third = await game.choose(turn_id, "2.1")
        assert await game.choose(turn_id, "1.0") == [*second, *third]
        assert (await game.last())["text"] == ("A fork.\n\nAnother one.\n\nHome.")

    async def test_repeated_choices_count_once(self, game: Game, vendor: OpenAIServer) -> None:
        vendor.script(called(DAYS, QUESTION))
        turn_id = (await game.say())[0].data["turn_id"]
        vendor.script(called(DAYS, FINISH, text="You go."))
        told = await asyncio.gather(*(game.choose(turn_id, "1.0") for _ in range(6)))
        assert {text_of(each) for each in told} == {"You go."}
        assert all(each[-1].name == "turn.completed" for each in told)
        assert len(vendor.requests) == 2
        assert (await game.state())["day"] == 3

    async def test_one_of_two_choices_wins(self, game: Game, vendor: OpenAIServer) -> None:
        turn_id = await game.wait_for_choice(vendor)
        path = f"/turns/{turn_id}/choice"
        json = {"Accept": "application/json"}
        answers = await asyncio.gather(
            *(
                game.account.ask("POST", path, json={"option": f"1.{number % 2}"}, headers=json)
                for number in range(6)
            )
        )
        states = [each.status_code for each in answers]
        assert sorted(states) == [200, 200, 200, 409, 409, 409]
        assert {ok(each)["state"] for each in answers if each.status_code == 200} == {"completed"}
        assert len(vendor.requests) == 2

    async def test_continues_in_another_session_after_a_restart(
        self, shared_url: str, vendor: OpenAIServer, tmp_path: Path
    ) -> None:
        name = f"ada-{uuid4().hex[:8]}"
        async with (
            running(shared_url, tmp_path, registry=registry(vendor)) as one,
            one.account(name) as ada,
        ):
            game = await new_game(ada)
            vendor.script(called(DAYS, QUESTION, text="A fork."))
            events = await game.say()
            turn_id = events[0].data["turn_id"]
            assert (await ada.ask("DELETE", "/sessions/current")).status_code == 204
        async with (
            running(shared_url, tmp_path, registry=registry(vendor)) as other,
            other.signed_in(name) as back,
        ):
            again = game.at(back)
            assert (await again.turn(turn_id))["waiting"]["prompt"] == "Which way?"
            assert await follow(back.client, turn_id) == events
            vendor.script(called(FINISH, text="You go left."))
            rest = await again.choose(turn_id, "1.0")
            assert (await again.account.messages(game.chat))[-1]["text"] == (
                "A fork.\n\nYou go left."
            )
            assert (await again.state())["day"] == 2
            assert await follow(back.client, turn_id) == [*events, *rest]
            middle = events[len(events) // 2].id
            assert [*events[: len(events) // 2 + 1]][-1].id == middle
            assert await follow(back.client, turn_id, last_id=middle) == [
                *events[len(events) // 2 + 1 :], *rest
            ]  # fmt: skip

    async def test_continues_a_turn_of_an_earlier_version(
        self, game: Game, vendor: OpenAIServer, server: Running
    ) -> None:
        vendor.script(called(DAYS, QUESTION, text="A fork."))
        turn_id = (await game.say())[0].data["turn_id"]
        sealer = (await identity_of(server, game.account)).sealer
        async with server.parts.database.write() as session:
            turn = await session.get_one(Turn, UUID(turn_id))
            suspended = read_suspended(sealer, turn)
            table = json.loads(suspended.table)
            del table["stored"], table["is_private"], table["pending"]["waiting"]["own"]
            suspended.table = json.dumps(table).encode()
            data = msgspec.json.encode(suspended)
            turn.sealed_play = sealer.seal_bytes(TURN_PLAY, turn.id, data)
        vendor.script(called(FINISH, text="You go left."))
        assert (await game.choose(turn_id, "1.0"))[-1].name == "turn.completed"
        assert (await game.state())["day"] == 2

    async def test_changes_of_the_user_are_kept(self, game: Game, vendor: OpenAIServer) -> None:
        clock = await game.add("clocks", name="Alarm", segments=4)
        vendor.script(called(DAYS, ("tick_clock", {"clock": "Alarm"}), QUESTION, text="Steps."))
        turn_id = (await game.say())[0].data["turn_id"]
        gone = await game.account.ask("DELETE", f"{game.path}/clocks/{clock['id']}")
        assert gone.status_code == 204
        vendor.script(called(FINISH, text="You go."))
        events = await game.choose(turn_id, "1.0")
        [changed] = named(events, "state.changed")
        assert [each["target"]["kind"] for each in changed["changes"]] == ["world"]
        assert changed["left_out"] == 1
        assert (await game.state())["day"] == 2

    async def test_a_failed_model_keeps_changes(self, game: Game, vendor: OpenAIServer) -> None:
        vendor.script(called(DAYS, QUESTION, text="Steps."))
        turn_id = (await game.say())[0].data["turn_id"]
        vendor.script(error(401, message="no"))
        events = await game.choose(turn_id, "1.0")
        assert events[-1].name == "turn.failed"
        [changed] = named(events, "state.changed")
        assert len(changed["changes"]) == 1
        assert (await game.state())["day"] == 2
        kept = await game.last()
        assert (kept["text"], kept["status"]) == ("Steps.", "failed")


@pytest.mark.postgres
async def test_concurrent_choices_in_two_processes_count_once(
    postgres_url: str, vendor: OpenAIServer, tmp_path: Path
) -> None:
    async with (
        running(postgres_url, tmp_path, registry=registry(vendor)) as one,
        running(postgres_url, tmp_path / "other", registry=registry(vendor)) as other,
        one.account() as ada,
        same_browser(ada, other) as there,
    ):
        game = await new_game(ada)
        elsewhere = game.at(there)
        for day in range(2, 6):
            # The day passes with the choice.
            vendor.script(called(DAYS, QUESTION, text="A fork."))
            turn_id = (await game.say())[0].data["turn_id"]
            vendor.requests.clear()
            vendor.script(called(FINISH, text="You go."))
            told = await asyncio.gather(
                game.choose(turn_id, "1.0"),
                elsewhere.choose(turn_id, "1.0"),
                game.choose(turn_id, "1.0"),
                elsewhere.choose(turn_id, "1.0"),
            )
            assert len(vendor.requests) == 1
            assert {text_of(each).strip() for each in told} == {"You go."}
            assert (await game.state())["day"] == day
        turn_id = await game.wait_for_choice(vendor)
        assert (await there.ask("POST", f"/turns/{turn_id}/stop")).status_code == 202
        await until(lambda: is_over(ada, turn_id))
        await game.refused(turn_id, "1.0", 409, "turn-not-waiting")
