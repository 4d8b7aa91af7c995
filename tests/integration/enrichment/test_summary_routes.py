"""Summaries over HTTP, and turns that wait for a summary."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import update

from backend.database.engine import Database
from backend.enrichment.outbox import GLOSSARY, SUMMARY, SummaryWatch, UnfinishedJob
from backend.jobs.models import Job
from backend.jobs.queue import NewJob, insert_job
from tests.integration.enrichment.storytelling import put_summary, read_summary
from tests.integration.turns.seeding import seed
from tests.support.memory import set_chat
from tests.support.server import Account, Running, ok, problem
from tests.support.statements import record_statements

pytestmark = pytest.mark.anyio


@pytest.fixture
async def lines(server: Running, ada: Account, chat: str) -> list[dict[str, Any]]:
    """The messages of a chat with ten lines."""
    await seed(server, ada, chat, [f"{number} o'clock." for number in range(9)])
    return await ada.messages(chat)


def summary_path(chat: str) -> str:
    return f"/chats/{chat}/summary"


async def test_a_chat_without_summaries_has_none(ada: Account, chat: str) -> None:
    problem(await ada.ask("GET", summary_path(chat)), 404, "summary-not-found")
    problem(await ada.ask("DELETE", summary_path(chat)), 404, "summary-not-found")
    assert (await ada.get(f"/chats/{chat}/summaries"))["items"] == []
    answer = await ada.ask("PUT", summary_path(chat), json={"text": "So far."})
    assert "through_message_id" in problem(answer, 422, "validation-failed")["detail"]


async def test_an_own_summary_is_current_until_it_is_deleted(
    ada: Account, chat: str, lines: list[dict[str, Any]]
) -> None:
    early = await put_summary(ada, chat, "Early.", through_message_id=lines[3]["id"])
    assert early == {
        **early,
        "text": "Early.",
        "through_message_id": lines[3]["id"],
        "through_position": 3,
        "edited": True,
        "model": None,
        "revision": 1,
        "is_used": False,
    }
    await set_chat(ada, chat, summary={"enabled": True})
    assert (await read_summary(ada, chat))["is_used"] is True
    late = await put_summary(ada, chat, "Late.", through_message_id=lines[7]["id"])
    assert (late["through_position"], late["is_used"]) == (7, True)
    assert (await put_summary(ada, chat, "Later."))["revision"] == 2
    items = (await ada.get(f"/chats/{chat}/summaries"))["items"]
    assert [(each["text"], each["is_used"]) for each in items] == [
        ("Later.", True),
        ("Early.", False),
    ]
    await ada.delete(summary_path(chat))
    assert (await read_summary(ada, chat))["text"] == "Early."
    await ada.delete(summary_path(chat))
    assert await read_summary(ada, chat) == {}


async def test_stale_edits_are_refused(
    ada: Account, chat: str, lines: list[dict[str, Any]]
) -> None:
    body = {"text": "One.", "through_message_id": lines[3]["id"]}
    problem(
        await ada.ask("PUT", summary_path(chat), json=body, headers={"If-Match": '"1"'}),
        412,
        "revision-mismatch",
    )
    made = await ada.ask("PUT", summary_path(chat), json=body)
    tag = made.headers["etag"]
    changed = await ada.ask(
        "PUT", summary_path(chat), json={"text": "Two."}, headers={"If-Match": tag}
    )
    assert ok(changed)["text"] == "Two."
    for method in ("PUT", "DELETE"):
        late = await ada.ask(
            method,
            summary_path(chat),
            headers={"If-Match": tag},
            json={"text": "Three."} if method == "PUT" else None,
        )
        problem(late, 412, "revision-mismatch")
    read = await ada.ask("GET", summary_path(chat))
    assert (ok(read)["text"], read.headers["etag"]) == ("Two.", changed.headers["etag"])


@pytest.mark.parametrize(
    "body",
    [
        {"text": " \n\t "},
        {"text": ""},
        {"text": "a" * 20_001},
        {"text": None},
        {},
        {"text": "a", "through_message_id": "b"},
        {"text": "a", "edited": True},
    ],
)
async def test_invalid_summaries_are_refused(
    ada: Account, chat: str, lines: list[dict[str, Any]], body: dict[str, Any]
) -> None:
    await put_summary(ada, chat, "As it was.", through_message_id=lines[3]["id"])
    answer = await ada.ask("PUT", summary_path(chat), json=body)
    problem(answer, 422, "validation-failed")
    found = await read_summary(ada, chat)
    assert (found["text"], found["revision"]) == ("As it was.", 1)


async def test_a_summary_ends_with_a_message_of_the_active_path(
    ada: Account, chat: str, lines: list[dict[str, Any]]
) -> None:
    other = (await ada.new_chat(character_ids=[]))["id"]
    elsewhere = (await ada.post(f"/chats/{chat}/fork", {"message_id": lines[2]["id"]}, 201))["id"]
    foreign = (await ada.messages(elsewhere))[0]["id"]
    await ada.patch(f"/messages/{lines[6]['id']}", {"text": "Else."})
    await put_summary(ada, chat, "As it was.", through_message_id=lines[3]["id"])
    for message_id, word in (
        (foreign, "this chat"),
        (lines[7]["id"], "active path"),
        (lines[1]["id"], "covers more"),
    ):
        body = {"text": "No.", "through_message_id": message_id}
        answer = await ada.ask("PUT", summary_path(chat), json=body)
        assert word in problem(answer, 422, "validation-failed")["detail"]
    body = {"text": "No.", "through_message_id": str(uuid4())}
    problem(await ada.ask("PUT", summary_path(chat), json=body), 404, "message-not-found")
    assert (await read_summary(ada, chat))["text"] == "As it was."
    assert await read_summary(ada, other) == {}


async def test_the_list_has_pages(ada: Account, chat: str, lines: list[dict[str, Any]]) -> None:
    for place in (1, 3, 5, 7):
        await put_summary(ada, chat, f"To {place}.", through_message_id=lines[place]["id"])
    url = f"/chats/{chat}/summaries"
    found: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = await ada.get(url, **query)
        found += [each["text"] for each in page["items"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert found == ["To 7.", "To 5.", "To 3.", "To 1."]
    problem(await ada.ask("GET", url, params={"limit": 0}), 422, "validation-failed")


@pytest.mark.every_database
async def test_turns_that_wait_share_one_query(database: Database) -> None:
    busy, idle, watch = uuid4(), uuid4(), SummaryWatch(database, SUMMARY)
    async with database.write() as session:
        await insert_job(session, NewJob(kind=SUMMARY, lane=busy))
        await insert_job(session, NewJob(kind=GLOSSARY, lane=idle))
    with record_statements() as statements:
        found = await asyncio.gather(*(watch.poll(lane) for lane in [busy, idle] * 20))
    assert len([each for each in statements if "FROM jobs" in each.text]) == 1
    assert found == [[UnfinishedJob("queued", 0)], ()] * 20
    async with database.write() as session:
        await session.execute(update(Job).where(Job.lane == busy).values(state="done"))
    assert await watch.poll(busy) == ()


@pytest.mark.every_database
async def test_a_cancelled_turn_leaves_the_others_their_answer(database: Database) -> None:
    watch, lanes = SummaryWatch(database, SUMMARY), [uuid4(), uuid4()]
    first, second = [asyncio.create_task(watch.poll(lane)) for lane in lanes]
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ()
