"""Tests of the message tree against a model of it, with random steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.chats.models import Chat
from backend.chats.token_counting import CountUnit
from backend.database.engine import Database
from tests.integration.chats.trees import Grove, sign_up

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

WORDS = st.sampled_from(["Yes.", "The rain has stopped.", "“Wer da?”", "x " * 40, "👋🏽 hello"])
UNITS = st.builds(CountUnit, st.sampled_from(["o200k_base", "gemma3"]), names=st.booleans())
PLACE = st.integers(0, 10_000)
"""The index of a message, modulo the number of messages."""

NAMES = st.sampled_from(
    [
        "append",
        "append",
        "greet",
        "regenerate",
        "edit",
        "branch",
        "activate",
        "hide",
        "delete",
        "fork",
        "recount",
    ]
)
STEPS = st.lists(st.tuples(NAMES, PLACE, WORDS, st.booleans(), UNITS), min_size=4, max_size=20)
GREETINGS = st.lists(WORDS, max_size=3)
Step = tuple[str, int, str, bool, CountUnit]


async def play(database: Database, greetings: list[str], steps: list[Step]) -> None:
    """Take the steps in order, and check every row after each."""
    grove = Grove(database, await sign_up(database))
    await grove.plant(*greetings)
    await grove.check()
    for step in steps:
        await take(grove, *step)
        await grove.check()


async def take(grove: Grove, name: str, place: int, text: str, flag: bool, unit: CountUnit) -> None:
    nodes = list(grove.expected.nodes) or [await grove.append("The first line.")]
    key = nodes[place % len(nodes)]
    steps: dict[str, Callable[[], Awaitable[object]]] = {
        "append": lambda: grove.append(text),
        "greet": lambda: grove.attach(text, parent=None),
        "regenerate": lambda: grove.regenerate(key, text),
        "edit": lambda: grove.edit(key, text),
        "branch": lambda: grove.attach(text, parent=key),
        "activate": lambda: grove.activate(key, follow=flag),
        "hide": lambda: grove.hide(key, hidden=flag),
        "delete": lambda: grove.delete(key),
        "fork": lambda: fork(grove, key),
        "recount": lambda: grove.recount(unit),
    }
    await steps[name]()


async def fork(grove: Grove, key: UUID) -> None:
    await (await grove.fork(key)).check()


@pytest.fixture
async def sqlite(sqlite_url: str) -> AsyncIterator[Database]:
    database = Database(sqlite_url)
    yield database
    await database.dispose()


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[Database]:
    database = Database(postgres_url)
    yield database
    await database.dispose()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(GREETINGS, STEPS)
async def test_the_tree_is_what_its_model_says_after_every_step(
    sqlite: Database, greetings: list[str], steps: list[Step]
) -> None:
    await play(sqlite, greetings, steps)


@pytest.mark.postgres
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(GREETINGS, STEPS)
async def test_the_tree_is_what_its_model_says_on_postgresql_too(
    postgres: Database, greetings: list[str], steps: list[Step]
) -> None:
    await play(postgres, greetings, steps)


async def test_the_sums_include_changes_above_a_parent_that_was_read_before(
    database: Database,
) -> None:
    grove = Grove(database, await sign_up(database))
    await grove.plant("The door creaks open.")
    (greeting,) = grove.expected.nodes
    parent = await grove.read(await grove.append("Who is there?"))
    await grove.hide(greeting, hidden=True)
    await grove.recount(CountUnit("gemma3", names=True))
    await grove.attach_below(parent, "Nobody.")
    await grove.check()


async def test_two_who_edit_one_message_at_once_leave_one_active_path(database: Database) -> None:
    grove = Grove(database, await sign_up(database))
    await grove.plant("The door creaks open.")
    (greeting,) = grove.expected.nodes
    line = await grove.append("Who is there?")

    async def busy(number: int) -> None:
        match number % 4:
            case 0:
                await grove.messages.edit(grove.identity, line, f"Version {number}.")
            case 1:
                await grove.messages.activate(grove.identity, line, follow=True)
            case 2:
                await grove.messages.hide(grove.identity, greeting, hidden=number % 8 == 2)
            case _:
                await grove.messages.edit(grove.identity, greeting, f"Greeting {number}.")

    await asyncio.gather(*(busy(number) for number in range(24)))
    rows = {row.id: row for row in await grove.rows()}
    assert len(rows) == 2 + 12
    async with database.read() as session:
        leaf = (await session.get_one(Chat, grove.chat_id)).leaf_id
    path: list[UUID] = []
    while leaf is not None:
        path.append(leaf)
        leaf = rows[leaf].parent_id
    assert {key for key, row in rows.items() if row.is_active} == set(path)
    selected = Counter(row.parent_id for row in rows.values() if row.is_selected)
    assert set(selected.values()) == {1}
    for row in rows.values():
        above = rows[row.parent_id].path_tokens if row.parent_id else 0
        assert row.path_tokens == above + (0 if row.hidden else row.tokens)
