"""Tests that the search index follows the database."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from tests.fakes.openai_server import OpenAIServer, error, reply
from tests.support.memory import (
    API,
    link,
    new_book,
    new_entry,
    points_of,
    preview,
    reasons,
    rows_of,
    settled,
    stored_rows,
    take_turn,
    tell,
    texts_found,
    texts_worded,
)
from tests.support.server import Account, Running, ok
from tests.support.statements import record_statements

pytestmark = pytest.mark.anyio

SEALS = "Do grey seals bask on flat rocks, at low tide?"
BASK = "Grey seals bask on the flat rocks at low tide."
DOZE = "Old walruses doze on the flat rocks at high tide."
WALRUSES = "Do old walruses doze on flat rocks, at high tide?"


async def check_index(server: Running, account: Account) -> None:
    """Check that the index contains each row of a user once, and nothing else."""
    user_id = UUID(account.user["id"])
    points = await points_of(server.parts.memory.collections.current, user_id)
    rows = rows_of(points)
    assert rows.keys() == await stored_rows(server, user_id)
    assert set(rows.values()) <= {1}
    assert 0 not in {point.version for point in points}


async def test_lines_replies_and_greetings_are_found_once_they_are_stored(
    ada: Account, chat: str, server: Running, model: OpenAIServer
) -> None:
    model.script(reply("The ferryman sharpens", " his sickle."))
    await take_turn(ada, chat, text="Who waits at the jetty?")
    await settled(server)
    for words, text in (
        ("sickle", "The ferryman sharpens his sickle."),
        ("jetty", "Who waits at the jetty?"),
        ("creaks", "The door creaks open."),
    ):
        assert (await texts_found(ada, words))[0] == text
    # The swipe is indexed, but found only while it is active.
    assert "A knock at the window." not in await texts_found(ada, "knock window")
    await check_index(server, ada)


async def test_the_continuation_of_a_reply_is_found_with_it(
    ada: Account, chat: str, server: Running, model: OpenAIServer
) -> None:
    model.script(reply("The ferryman hums."), reply(" A gannet answers."))
    await take_turn(ada, chat, text="Listen.")
    await settled(server)
    assert await texts_worded(ada, "gannet") == []
    await take_turn(ada, chat, **{"continue": True})
    await settled(server)
    assert (await texts_found(ada, "gannet"))[0] == "The ferryman hums. A gannet answers."
    await check_index(server, ada)


async def test_an_edit_takes_its_old_words_out_of_search_and_coming_back_brings_them_in_again(
    ada: Account, chat: str, server: Running
) -> None:
    lines = await tell(server, ada, chat, ["The key is under the anvil.", "I see.", "Good."])
    path = f"{API}/messages/{lines[0].id}"
    edited = ok(await ada.client.patch(path, json={"text": "The key is in the bellows."}))
    await settled(server)
    found = await texts_found(ada, "anvil bellows key")
    assert found[0] == "The key is in the bellows."
    assert "The key is under the anvil." not in found
    # Its neighbours no longer contain its words.
    assert await texts_worded(ada, "anvil") == []
    await check_index(server, ada)

    ok(await ada.client.post(f"{path}/activate", json={}))
    await settled(server)
    found = await texts_found(ada, "key")
    assert found[0] == "The key is under the anvil."
    assert "The key is in the bellows." not in found
    assert await texts_worded(ada, "bellows") == []
    ok(await ada.client.delete(f"{API}/messages/{edited['id']}"))
    await settled(server)
    await check_index(server, ada)


async def test_a_hidden_message_is_not_found_until_it_is_shown_again(
    ada: Account, chat: str, server: Running
) -> None:
    lines = await tell(server, ada, chat, ["The cellar holds a gryphon.", "I see.", "Good."])
    path = f"{API}/messages/{lines[0].id}"
    ok(await ada.client.patch(path, json={"hidden": True}))
    assert "The cellar holds a gryphon." not in await texts_found(ada, "gryphon")
    ok(await ada.client.patch(path, json={"hidden": False}))
    assert (await texts_found(ada, "gryphon"))[0] == "The cellar holds a gryphon."


@pytest.mark.every_database
async def test_deleting_takes_the_points_of_all_that_went(
    ada: Account, chat: str, server: Running
) -> None:
    lines = await tell(server, ada, chat, ["A pewter spoon.", "Yes.", "A copper ladle.", "No."])
    ok(await ada.client.delete(f"{API}/messages/{lines[2].id}"))
    await settled(server)
    assert "A copper ladle." not in await texts_found(ada, "copper ladle")
    assert (await texts_found(ada, "pewter"))[0] == "A pewter spoon."
    await check_index(server, ada)
    # The windows of its neighbours contained its words, too.
    assert await texts_worded(ada, "ladle") == []


async def test_a_fork_is_found_as_a_chat_of_its_own_and_a_deleted_chat_not_at_all(
    ada: Account, chat: str, server: Running
) -> None:
    lines = await tell(server, ada, chat, ["A marble stair.", "Where?", "Behind the orchard."])
    body = {"message_id": str(lines[1].id)}
    fork = ok(await ada.client.post(f"{API}/chats/{chat}/fork", json=body), 201)["id"]
    await settled(server)
    await check_index(server, ada)
    assert (await texts_found(ada, "marble", chat_id=fork))[0] == "A marble stair."
    assert await texts_worded(ada, "orchard", chat_id=fork) == []

    ok(await ada.client.delete(f"{API}/chats/{chat}"), 204)
    await settled(server)
    assert await texts_worded(ada, "orchard") == []
    assert (await texts_found(ada, "marble"))[0] == "A marble stair."
    await check_index(server, ada)
    ok(await ada.client.delete(f"{API}/chats/{fork}"), 204)
    await settled(server)
    assert await points_of(server.parts.memory.collections.current, UUID(ada.user["id"])) == []


async def test_lore_is_found_by_its_words_and_follows_its_changes(
    ada: Account, chat: str, server: Running
) -> None:
    book = await new_book(ada)
    entry = await new_entry(ada, book, title="Skerry", keys=["skerry"], content=BASK)
    await new_entry(ada, book, title="Firth", keys=["firth"], content="Herring spawn here.")
    await link(ada, chat, book)
    await settled(server)
    await check_index(server, ada)
    where = {"sources": "lore", "chat_id": chat}
    assert (await texts_found(ada, "where do seals bask", **where))[0] == BASK
    context = await preview(ada, chat, SEALS)
    assert reasons(context)["Skerry"].startswith("semantic ")
    assert "Firth" not in reasons(context)

    path = f"{API}/lorebooks/{book}/entries/{entry}"
    ok(await ada.client.patch(path, json={"content": DOZE}))
    await settled(server)
    assert await texts_worded(ada, "bask", **where) == []
    assert await texts_worded(ada, "walruses", **where) == [DOZE]

    ok(await ada.client.patch(path, json={"enabled": False}))
    assert await texts_worded(ada, "walruses", **where) == []
    assert "Skerry" not in reasons(await preview(ada, chat, WALRUSES))
    ok(await ada.client.patch(path, json={"enabled": True}))
    await settled(server)
    assert "Skerry" in reasons(await preview(ada, chat, WALRUSES))

    ok(await ada.client.delete(path), 204)
    await settled(server)
    assert await texts_worded(ada, "walruses", **where) == []
    await check_index(server, ada)
    ok(await ada.client.delete(f"{API}/lorebooks/{book}"), 204)
    await settled(server)
    assert await texts_worded(ada, "herring") == []
    await check_index(server, ada)


@pytest.mark.every_database
async def test_a_book_counts_where_it_is_linked_and_not_switched_off(
    ada: Account, chat: str, server: Running
) -> None:
    entry = {"title": "Skerry", "keys": ["skerry"], "content": BASK}
    book = await new_book(ada, entry)
    await settled(server)
    line, where = f"{SEALS} On the skerry?", {"chat_id": chat, "sources": "lore"}

    async def is_in() -> tuple[bool, bool]:
        context = await preview(ada, chat, line)
        return "Skerry" in reasons(context), bool(await texts_found(ada, "seals", **where))

    assert await is_in() == (False, False)
    await link(ada, chat, book)
    assert await is_in() == (True, True)
    await link(ada, chat, book, "off")
    assert await is_in() == (False, False)
    ok(await ada.client.delete(f"{API}/chats/{chat}/lorebooks/{book}"), 204)
    assert await is_in() == (False, False)
    ok(await ada.client.patch(f"{API}/lorebooks/{book}", json={"is_global": True}))
    assert await is_in() == (True, True)
    await link(ada, chat, book, "off")
    assert await is_in() == (False, False)


async def test_a_book_that_is_not_to_be_found_by_meaning_leaves_the_index_and_keeps_its_keys(
    ada: Account, chat: str, server: Running
) -> None:
    entry = {"title": "Skerry", "keys": ["skerry"], "content": BASK}
    book = await new_book(ada, entry)
    await link(ada, chat, book)
    ok(await ada.client.patch(f"{API}/lorebooks/{book}", json={"mode": "keys"}))
    await settled(server)
    assert BASK not in await texts_found(ada, "seals bask")
    assert reasons(await preview(ada, chat, SEALS)) == {}
    assert "Skerry" in reasons(await preview(ada, chat, "To the skerry!"))
    ok(await ada.client.patch(f"{API}/lorebooks/{book}", json={"mode": None}))
    await settled(server)
    assert (await texts_found(ada, "seals bask"))[0] == BASK


async def test_a_hundred_lines_left_behind_do_not_hide_the_one_that_counts(
    server: Running, ada: Account, chat: str
) -> None:
    await tell(server, ada, chat, ["A silver key was sold in town.", "Was it?"])
    path = f"{API}/messages/{(await ada.messages(chat))[-1]['id']}"
    for number in range(110):
        text = f"The silver key, the silver key, number {number}."
        path = f"{API}/messages/{ok(await ada.client.patch(path, json={'text': text}))['id']}"
    ok(await ada.client.patch(path, json={"text": "Nobody knows."}))
    await settled(server)
    found = await texts_found(ada, "silver key", chat_id=chat, sources="message")
    assert found[0] == "A silver key was sold in town."


async def test_the_line_of_a_turn_that_failed_is_remembered(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    for _ in range(3):  # the client repeats some failed requests
        model.script(error(500, message="broken"))
    events = await ada.turn(chat, text="The heron sleeps in the bell tower.")
    model.unscript()
    assert events[-1].name == "turn.failed"
    await settled(server)
    found = await texts_found(ada, "heron tower", chat_id=chat, sources="message")
    assert found[0] == "The heron sleeps in the bell tower."


_TABLES = ("messages", "lore_entries", "chronicle_events", "campaign_items")


async def test_search_results_are_loaded_by_id(server: Running, ada: Account, chat: str) -> None:
    database = server.parts.database
    if not database.is_sqlite:
        pytest.skip("PostgreSQL chooses by its statistics, and reads tables of a page whole")
    await link(ada, chat, await new_book(ada, {"keys": ["oak"], "content": "A heron in the oak."}))
    with record_statements() as statements:
        await tell(server, ada, chat, ["A heron sat in the oak.", "Did it sing?"])
        found = await texts_found(ada, "heron oak")
        assert {"A heron sat in the oak.", "A heron in the oak."} <= set(found)
        await take_turn(ada, chat, text="Where is the heron?")
        await settled(server)
    asked = [each for each in statements if re.match(r"SELECT\b.*\.id IN \(", each.text, re.DOTALL)]
    plans: dict[str, str] = {}
    async with database.read() as session:
        connection = await session.connection()
        for statement, values in asked:
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            for *_, step in plan:
                if any(f" {table} " in step for table in _TABLES):
                    plans[statement] = step
    assert len(plans) >= 3
    assert [step for step in plans.values() if "(id=?)" not in step] == []
