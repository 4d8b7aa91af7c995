"""Tests of chats with many greetings, long greetings, and deep trees."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, insert, select, text

from backend.characters.cards.model import MAX_GREETINGS_CHARACTERS
from backend.chats.drafts import MessageDraft, make_message
from backend.chats.models import Message
from backend.database.base import now
from backend.database.engine import Database
from tests.integration.chats.trees import AUTHORS, Grove, sign_up
from tests.support.memory import API
from tests.support.server import Account, ok, problem, read_pages

pytestmark = pytest.mark.anyio

LONGEST = 100_000
"""The default of `max_message_chars`."""


async def import_card(ada: Account, **data: Any) -> dict[str, Any]:
    card = {"spec": "chara_card_v3", "spec_version": "3.0", "data": {"name": "Mara", **data}}
    files = {"file": ("card.json", json.dumps(card).encode())}
    made: dict[str, Any] = ok(await ada.client.post(f"{API}/characters/import", files=files), 201)
    return made


async def refuse_chat(ada: Account, character_id: str, slug: str) -> dict[str, Any]:
    """Fail to open a chat. Return the problem. No chat may be stored."""
    answer = await ada.client.post(f"{API}/chats", json={"character_ids": [character_id]})
    assert ok(await ada.client.get(f"{API}/chats"))["items"] == []
    return problem(answer, 422, slug)


async def list_swipes(ada: Account, chat: dict[str, Any]) -> list[dict[str, Any]]:
    url = f"{API}/messages/{chat['leaf_id']}/siblings"
    return [each for page in await read_pages(ada.client.get, url, limit=200) for each in page]


@pytest.mark.parametrize(
    ("greeting", "length", "slug", "told"),
    [
        (
            "{{description}}" * 4,
            199_000,
            "message-too-long",
            {"greeting": 1, "length": 796_000, "limit": LONGEST},
        ),
        (
            "{{description}}" * 2,
            45_000,
            "opening-too-long",
            {"greeting": 12, "limit": MAX_GREETINGS_CHARACTERS},
        ),
        (
            "{{if {{description}}}}Hello.{{/if}}",
            150_000,
            "macro-limit",
            {"limit": "characters", "scope": "request"},
        ),
    ],
    ids=["one is too long", "all are too long", "the macros are too long"],
)
async def test_greetings_that_macros_make_too_long_open_no_chat(
    ada: Account, greeting: str, length: int, slug: str, told: dict[str, Any]
) -> None:
    greetings = {"first_mes": greeting, "alternate_greetings": [greeting] * 39}
    card = await import_card(ada, description="x" * length, **greetings)
    body = await refuse_chat(ada, card["character"]["id"], slug)
    assert {name: body[name] for name in told} == told


@pytest.mark.every_database
async def test_a_greeting_that_is_too_long_costs_a_warning_on_import_and_names_itself_on_opening(
    ada: Account,
) -> None:
    long = "x" * (LONGEST + 1)
    made = await import_card(ada, first_mes="Hello.", alternate_greetings=["Hm.", long])
    (warning,) = made["warnings"]
    assert warning.startswith("`alternate_greetings` 2 has 100,001 characters; a message may have")
    character = made["character"]
    assert character["alternate_greetings"][1] == long
    body = await refuse_chat(ada, character["id"], "message-too-long")
    assert body["detail"].startswith("Greeting 3 has 100,001 characters; 100,000 are allowed.")
    # The character can still be changed, and its greeting shortened.
    url = f"{API}/characters/{character['id']}"
    ok(await ada.client.patch(url, json={"tags": ["long"], "first_mes": "Well?"}))
    ok(await ada.client.patch(url, json={"alternate_greetings": ["Hm.", long, "Ah."]}))
    ok(await ada.client.patch(url, json={"alternate_greetings": ["Hm.", long[1:]]}))
    chat = await ada.new_chat(character_ids=[character["id"]])
    assert [len(each["text"]) for each in await list_swipes(ada, chat)] == [5, 3, LONGEST]


async def test_greetings_that_are_too_long_together_cost_a_warning_on_import(ada: Account) -> None:
    made = await import_card(ada, alternate_greetings=["x" * 99_000] * 11)
    (warning,) = made["warnings"]
    assert warning.startswith("The greetings have 1,089,000 characters together; a chat opens with")
    await refuse_chat(ada, made["character"]["id"], "opening-too-long")


async def test_a_greeting_that_is_too_long_is_refused(ada: Account) -> None:
    long = "x" * (LONGEST + 1)
    body = {"name": "Mara", "first_mes": long}
    answer = problem(await ada.client.post(f"{API}/characters", json=body), 422, "card-limit")
    assert (answer["limit"], answer["allowed"]) == ("greeting_characters", LONGEST)
    character = await ada.new_character()
    url = f"{API}/characters/{character['id']}"
    for patch in ({"first_mes": long}, {"group_only_greetings": ["Hm.", long]}):
        problem(await ada.client.patch(url, json=patch), 422, "card-limit")
    assert ok(await ada.client.get(url))["revision"] == character["revision"]


@pytest.mark.every_database
async def test_a_thousand_greetings_are_swipes_of_one_message(ada: Account) -> None:
    greetings = [f"{{{{char}}}} says {number}." for number in range(1_000)]
    character = await ada.new_character(alternate_greetings=greetings)
    chat = await ada.new_chat(character_ids=[character["id"]])
    (line,) = await ada.messages(chat["id"])
    assert (line["text"], line["sibling"], line["sibling_count"]) == (
        "The door creaks open.",
        1,
        1_001,
    )
    found = await list_swipes(ada, chat)
    assert [each["text"] for each in found[1:]] == [f"Mara says {n}." for n in range(1_000)]
    assert [each["is_active"] for each in found] == [True, *[False] * 1_000]
    # Another greeting can be activated and answered.
    ok(await ada.client.post(f"{API}/messages/{found[7]['id']}/activate"))
    await ada.turn(chat["id"], text="Why?")
    lines = await ada.messages(chat["id"])
    assert [each["text"] for each in lines[:2]] == ["Mara says 6.", "Why?"]


DEEP = 6000
"""More than `tree.CHUNK`, and more than the recursion limit."""


@pytest.fixture
async def grove(database: Database) -> Grove:
    grove = Grove(database, await sign_up(database))
    await grove.plant("The door creaks open.")
    return grove


async def grow(grove: Grove, length: int) -> list[UUID]:
    """Insert an inactive chain of messages below the root. Return its ids from the top down."""
    (root,) = grove.expected.nodes
    line = MessageDraft(role="user", author=AUTHORS["user"], text="And then?")
    made = [
        make_message(grove.identity.sealer, line, unit=grove.expected.unit) for _ in range(length)
    ]
    ids = [message.id for message in made]
    sums = accumulate((message.tokens for message in made), initial=grove.expected.tokens(root))
    rows = [
        {
            "id": message.id,
            "user_id": grove.identity.user_id,
            "chat_id": grove.chat_id,
            "parent_id": parent,
            "position": position,
            "role": message.role,
            "status": message.status,
            "hidden": False,
            "is_active": False,
            "is_selected": position > 1,
            "tokens": message.tokens,
            "path_tokens": path_tokens,
            "token_counts": message.token_counts,
            "sealed_author": message.sealed_author,
            "sealed_content": message.sealed_content,
            "created_at": now(),
            "updated_at": now(),
        }
        for position, (message, parent, path_tokens) in enumerate(
            zip(made, [root, *ids], list(sums)[1:], strict=False), start=1
        )
    ]
    async with grove.database.write() as session:
        await session.execute(insert(Message), rows)
        if not grove.database.is_sqlite:
            # Without statistics each step down the tree would read the whole table. Autovacuum
            # analyses the table within a minute.
            await session.execute(text("ANALYZE messages"))
    return ids


async def active_ids(grove: Grove) -> list[UUID]:
    query = (
        select(Message.id)
        .where(Message.chat_id == grove.chat_id, Message.is_active)
        .order_by(Message.position)
    )
    async with grove.database.read() as session:
        return list(await session.scalars(query))


async def read_sums(grove: Grove, *ids: UUID) -> list[int]:
    async with grove.database.read() as session:
        return [(await session.get_one(Message, each)).path_tokens for each in ids]


async def test_going_from_one_deep_branch_to_another_and_back(grove: Grove) -> None:
    (root,) = grove.expected.nodes
    one, other = await grow(grove, DEEP), await grow(grove, DEEP)
    await grove.messages.activate(grove.identity, one[0], follow=True)
    assert await active_ids(grove) == [root, *one]
    await grove.messages.activate(grove.identity, other[-1], follow=False)
    assert await active_ids(grove) == [root, *other]
    await grove.messages.activate(grove.identity, root, follow=False)
    assert await active_ids(grove) == [root]
    await grove.messages.activate(grove.identity, root, follow=True)
    assert await active_ids(grove) == [root, *other]


async def test_hiding_the_first_message_reaches_every_sum_below(grove: Grove) -> None:
    (root,) = grove.expected.nodes
    ids = await grow(grove, DEEP)
    tokens = grove.expected.tokens(root)
    before = await read_sums(grove, ids[0], ids[DEEP // 2], ids[-1])
    await grove.messages.hide(grove.identity, root, hidden=True)
    after = await read_sums(grove, ids[0], ids[DEEP // 2], ids[-1])
    assert after == [each - tokens for each in before]
    await grove.messages.hide(grove.identity, root, hidden=False)
    assert await read_sums(grove, ids[0], ids[DEEP // 2], ids[-1]) == before


@pytest.mark.every_database
async def test_forking_a_deep_path_copies_all_of_it(grove: Grove) -> None:
    ids = await grow(grove, DEEP)
    fork = await grove.chats.fork(grove.identity, grove.chat_id, message_id=ids[-1], title="Two")
    page = await grove.messages.page(grove.identity, fork.id, before=None, limit=3)
    assert [line.position for line in page.items] == [DEEP - 2, DEEP - 1, DEEP]
    assert page.items[-1].id == fork.leaf_id != ids[-1]


@pytest.mark.every_database
async def test_deleting_near_the_root_takes_everything_below(grove: Grove) -> None:
    (root,) = grove.expected.nodes
    ids, stays = await grow(grove, DEEP), await grow(grove, 3)
    await grove.messages.activate(grove.identity, ids[-1], follow=True)
    gone = await grove.messages.delete(grove.identity, ids[0])
    assert gone.deleted == DEEP
    assert await active_ids(grove) == [root, *stays]
    async with grove.database.read() as session:
        left = await session.scalar(select(func.count()).where(Message.chat_id == grove.chat_id))
    assert left == 1 + len(stays)


@pytest.mark.every_database
async def test_deleting_a_chat_takes_its_deep_branches_along(grove: Grove) -> None:
    await grow(grove, DEEP)
    await grove.chats.delete(grove.identity, grove.chat_id)
    assert await grove.rows() == []
