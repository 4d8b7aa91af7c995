"""Paths of thousands of messages: no recursion limit, no limit of a statement's parameters."""

from __future__ import annotations

from itertools import accumulate
from uuid import UUID

import pytest
from sqlalchemy import func, insert, select, text

from backend.chats.drafts import MessageDraft, make_message
from backend.chats.models import Message
from backend.database.base import now
from backend.database.engine import Database
from tests.integration.chats.trees import AUTHORS, Grove, sign_up

pytestmark = pytest.mark.anyio

DEEP = 6000
"""More than `tree.CHUNK`, and more than any stack has frames."""


@pytest.fixture
async def grove(database: Database) -> Grove:
    grove = Grove(database, await sign_up(database))
    await grove.plant("The door creaks open.")
    return grove


async def grow(grove: Grove, length: int) -> list[UUID]:
    """A chain below the root, written at once, off the active path; its ids from the top down."""
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
            # As autovacuum does within a minute: planned without statistics, each step down the
            # tree would read the whole table.
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


async def sums_at(grove: Grove, *ids: UUID) -> list[int]:
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
    before = await sums_at(grove, ids[0], ids[DEEP // 2], ids[-1])
    await grove.messages.hide(grove.identity, root, hidden=True)
    after = await sums_at(grove, ids[0], ids[DEEP // 2], ids[-1])
    assert after == [each - tokens for each in before]
    await grove.messages.hide(grove.identity, root, hidden=False)
    assert await sums_at(grove, ids[0], ids[DEEP // 2], ids[-1]) == before


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
