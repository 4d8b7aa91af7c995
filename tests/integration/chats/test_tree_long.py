"""The message tree against a model of it, on both databases, whatever is done in whatever order."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.chats.counting import CountUnit
from backend.database.engine import Database
from tests.integration.chats.trees import Grove, sign_up

pytestmark = pytest.mark.anyio

WORDS = st.sampled_from(["Yes.", "The rain has stopped.", "“Wer da?”", "x " * 40, "👋🏽 hello"])
UNITS = st.builds(CountUnit, st.sampled_from(["o200k_base", "gemma3"]), names=st.booleans())
PLACE = st.integers(0, 10_000)
"""Which message, counted round and round."""

STEP = st.one_of(
    st.tuples(st.just("append"), WORDS),
    st.tuples(st.just("append"), WORDS),
    st.tuples(st.just("greet"), WORDS),
    st.tuples(st.just("regenerate"), PLACE, WORDS),
    st.tuples(st.just("edit"), PLACE, WORDS),
    st.tuples(st.just("branch"), PLACE, WORDS),
    st.tuples(st.just("activate"), PLACE, st.booleans()),
    st.tuples(st.just("hide"), PLACE, st.booleans()),
    st.tuples(st.just("delete"), PLACE),
    st.tuples(st.just("fork"), PLACE),
    st.tuples(st.just("recount"), UNITS),
)
STEPS = st.lists(STEP, min_size=4, max_size=20)
GREETINGS = st.lists(WORDS, max_size=3)


async def play(database: Database, greetings: list[str], steps: list[tuple[object, ...]]) -> None:
    """Do the steps one after the other, and look at every row after each."""
    grove = Grove(database, await sign_up(database))
    await grove.plant(*greetings)
    await grove.check()
    for step in steps:
        await take(grove, step)
        await grove.check()


async def take(grove: Grove, step: tuple[object, ...]) -> None:
    nodes = list(grove.expected.nodes)
    match step:
        case ("append", str(text)):
            await grove.append(text)
        case ("greet", str(text)):
            await grove.attach(text, parent=None)
        case ("recount", CountUnit() as unit):
            await grove.recount(unit)
        case (str(), int(), *_) if not nodes:
            await grove.append("The first line.")
        case ("regenerate", int(place), str(text)):
            await grove.regenerate(nodes[place % len(nodes)], text)
        case ("edit", int(place), str(text)):
            await grove.edit(nodes[place % len(nodes)], text)
        case ("branch", int(place), str(text)):
            await grove.attach(text, parent=nodes[place % len(nodes)])
        case ("activate", int(place), bool(follow)):
            await grove.activate(nodes[place % len(nodes)], follow=follow)
        case ("hide", int(place), bool(hidden)):
            await grove.hide(nodes[place % len(nodes)], hidden=hidden)
        case ("delete", int(place)):
            await grove.delete(nodes[place % len(nodes)])
        case ("fork", int(place)):
            copy = await grove.fork(nodes[place % len(nodes)])
            await copy.check()
        case _:
            raise AssertionError(step)


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
    max_examples=1200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(GREETINGS, STEPS)
async def test_the_tree_is_what_its_model_says_after_every_step(
    sqlite: Database, greetings: list[str], steps: list[tuple[object, ...]]
) -> None:
    await play(sqlite, greetings, steps)


@pytest.mark.postgres
@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(GREETINGS, STEPS)
async def test_the_tree_is_what_its_model_says_on_postgresql_too(
    postgres: Database, greetings: list[str], steps: list[tuple[object, ...]]
) -> None:
    await play(postgres, greetings, steps)
