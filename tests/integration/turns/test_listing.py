"""The turns of a chat as a list: what a page that is opened anew finds of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.turns.following import turn_under_way
from tests.support.server import Account, Running, problem, running

pytestmark = pytest.mark.anyio


async def turns_of(ada: Account, chat: str, **query: Any) -> dict[str, Any]:
    return await ada.get(f"/chats/{chat}/turns", **query)


async def test_turns_are_listed_newest_first_in_pages(ada: Account, chat: str) -> None:
    made = [(await ada.turn(chat, text=f"Line {n}."))[0].data["turn_id"] for n in range(3)]
    first = await turns_of(ada, chat, limit=2)
    assert [turn["id"] for turn in first["items"]] == [made[2], made[1]]
    assert first["next"] == made[1]
    rest = await turns_of(ada, chat, limit=2, after=first["next"])
    assert [turn["id"] for turn in rest["items"]] == [made[0]]
    assert rest["next"] is None
    assert first["items"][0]["totals"]["prompt"] > 0
    assert (first["items"][0]["text"], first["items"][0]["reply"]) == (None, None)


@pytest.mark.every_database
async def test_a_turn_with_an_id_of_the_clients_has_its_place_by_time(
    ada: Account, chat: str
) -> None:
    low = "00000000-0000-4000-8000-000000000000"
    before = (await ada.turn(chat, text="One."))[0].data["turn_id"]
    await ada.turn(chat, text="Two.", turn_id=low)
    listed = [turn["id"] for turn in (await turns_of(ada, chat))["items"]]
    assert listed == [low, before]
    behind = await turns_of(ada, chat, after=low)
    assert [turn["id"] for turn in behind["items"]] == [before]


@pytest.mark.every_database
async def test_the_turn_that_runs_is_found_by_its_state(database_url: str, tmp_path: Path) -> None:
    async with (
        running(database_url, tmp_path, demo_tokens_per_second=50) as server,
        server.account() as ada,
    ):
        chat = (await ada.new_chat())["id"]
        await ada.turn(chat, text="Hello.")
        async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, _):
            found = (await turns_of(ada, chat, state="running"))["items"]
            assert [(turn["id"], turn["finished_at"]) for turn in found] == [(turn_id, None)]
        await server.parts.turns.close()
        assert (await turns_of(ada, chat, state="running"))["items"] == []
        cut = (await turns_of(ada, chat, state="interrupted"))["items"]
        assert [turn["id"] for turn in cut] == [turn_id]


async def test_a_turn_that_failed_says_why(ada: Account, chat: str) -> None:
    await ada.turn(chat, text="/demo fail")
    newest = (await turns_of(ada, chat, limit=1))["items"][0]
    assert newest["state"] == "failed"
    assert newest["problem"]["type"].startswith("urn:talekeeper:problem:")


async def test_turns_of_somebody_elses_chat_do_not_exist(
    ada: Account, chat: str, server: Running
) -> None:
    turn = (await ada.turn(chat, text="Hello."))[0].data["turn_id"]
    async with server.account(f"bo-of-{ada.name}") as bo:
        problem(await bo.ask("GET", f"/chats/{chat}/turns"), 404, "chat-not-found")
        own = (await bo.new_chat())["id"]
        assert (await turns_of(bo, own, after=turn))["items"] == []


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 501}, {"state": "odd"}])
async def test_odd_questions_are_refused(ada: Account, chat: str, query: dict[str, Any]) -> None:
    answer = await ada.ask("GET", f"/chats/{chat}/turns", params=query)
    problem(answer, 422, "validation-failed")
