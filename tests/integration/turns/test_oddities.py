"""Oddities of model servers, end to end: stored replies equal streamed ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from backend.generation.registry import ModelRegistry
from tests.fakes.oddities.errors import ERRORS
from tests.fakes.oddities.labels import LABELS
from tests.fakes.oddities.oddity import Oddity, Result
from tests.fakes.oddities.server import OddServer, serve
from tests.fakes.oddities.settings import SETTINGS
from tests.fakes.oddities.streams import CHARACTERS, ENDS, FAULTS
from tests.fakes.oddities.templates import TEMPLATES
from tests.fakes.oddities.thoughts import THOUGHTS
from tests.fakes.oddities.tool_calls import CALLS, HARDER
from tests.fakes.oddities.wire_formats import FORMATS
from tests.integration.turns.following import follow
from tests.integration.turns.playing import new_game
from tests.support.server import Account, Event, Running, running
from tests.support.thorough import THOROUGH

pytestmark = pytest.mark.anyio

ALL = (*CHARACTERS, *ENDS, *FAULTS, *ERRORS, *THOUGHTS, *SETTINGS, *TEMPLATES, *LABELS, *CALLS)
STRICT = [row for row in TEMPLATES if not row.continues]


def rows(*tables: Iterable[Oddity]) -> pytest.MarkDecorator:
    """Parametrise a test with rows, each in one of its formats."""
    found = [row for table in tables for row in table]
    return pytest.mark.parametrize("row", found, ids=[f"{r.formats[0]}-{r.name}" for r in found])


def samples(*tables: Iterable[Oddity]) -> list[Oddity]:
    """Return one row of each kind of result, and all of them for a thorough run.

    The tests of the adapters read every row in every format.
    """
    found = [row for table in tables for row in table]
    return found if THOROUGH else list({classify(row): row for row in reversed(found)}.values())


def classify(row: Oddity) -> object:
    result = row.result
    said = bool(result.text), bool(result.thinking), [name for name, _ in result.calls]
    return str((row.formats[0], result.error, result.finish, said, result.shape, result.left_out))


@pytest.fixture(scope="module")
async def vendors() -> AsyncGenerator[Mapping[str, OddServer]]:
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(
                serve(form, [row for row in ALL if row.formats[0] == name])
            )
            for name, form in FORMATS.items()
        }


@pytest.fixture(scope="module")
async def server(
    shared_url: str, vendors: Mapping[str, OddServer], tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    configs: dict[str, Any] = {name: vendor.config() for name, vendor in vendors.items()}
    registry = ModelRegistry(**configs, demo_tokens_per_second=0)
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder, registry=registry) as server:
        yield server


async def choose(ada: Account, chat: str, row: Oddity, **settings: Any) -> None:
    """Set the model of a row and its settings for a chat."""
    body = {"model": f"{row.formats[0]}/{row.name}", "sampling": row.sampling, **settings}
    await ada.patch(f"/chats/{chat}/settings", body)


def heard(events: Iterable[Event]) -> tuple[str, str]:
    """Return text and thoughts as a client has them in the end."""
    said = {"text": "", "thinking": ""}
    for event in events:
        kind, _, what = event.name.partition(".")
        if what == "delta":
            said[kind] += event.data["text"]
        elif what == "reset":
            said[kind] = said[kind][: event.data["length"]]
    return said["text"], said["thinking"]


async def check(ada: Account, chat: str, events: list[Event], result: Result) -> None:
    """Raise unless a turn ended as it should, and all of it is stored as it was streamed."""
    said = result.text.rstrip(), result.thinking
    text, thinking = heard(events)
    assert (text.rstrip(), thinking) == said
    last, end = (await ada.messages(chat))[-1], events[-1]
    if result.error:
        assert end.data["type"] == f"urn:talekeeper:problem:{result.error}"
        assert result.says in f"{end.data['title']}: {end.data['detail']}"
    else:
        assert (end.name, end.data.get("finish_reason")) == ("turn.completed", result.finish)
    again = await follow(ada.client, events[0].data["turn_id"])
    if text.strip() or not result.error:
        assert (last["role"], last["text"].rstrip(), last["thinking"] or "") == ("assistant", *said)
        assert heard(again) == (text, thinking)
        record = await ada.get(f"/messages/{last['id']}/context")
        assert record.get("shape", "lenient") == result.shape
        assert record.get("unsent_settings", []) == list(result.left_out)
    else:
        assert last["role"] == "user"
    assert again[-1].data == end.data


@rows(ERRORS, samples(CHARACTERS, ENDS, FAULTS, THOUGHTS, SETTINGS))
async def test_a_reply_is_stored_as_it_was_streamed(ada: Account, chat: str, row: Oddity) -> None:
    await choose(ada, chat, row)

    await check(ada, chat, await ada.turn(chat, text="Hello?"), row.result)


@rows(samples(STRICT))
async def test_strict_templates_are_obeyed(
    ada: Account, row: Oddity, vendors: Mapping[str, OddServer]
) -> None:
    entry = {"title": "Inn", "constant": True, "content": "It rains.", "position": "at_depth"}
    book = {"name": "World", "entries": [{**entry, "keys": ["inn"], "depth": 1}]}
    note = {"prompt": "{{char}} limps.", "depth": 2, "role": "system"}
    character = await ada.new_character(extensions={"depth_prompt": note}, character_book=book)
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    await choose(ada, chat, row, authors_note={"text": "She is tired.", "depth": 1})
    vendor = vendors[row.formats[0]]

    await check(ada, chat, await ada.turn(chat, text="Hello?"), row.result)
    asked = len(vendor.requests)
    await check(ada, chat, await ada.turn(chat, text="And now?"), row.result)

    assert len(vendor.requests) == asked + 1


@rows(LABELS)
async def test_labels_of_speakers_are_removed(ada: Account, row: Oddity) -> None:
    members = [(await ada.new_character(name=name))["id"] for name in ("Mags", "Alda")]
    persona = await ada.post("/personas", {"name": "Tester"}, 201)
    chat = (await ada.new_chat(character_ids=members, persona_id=persona["id"]))["id"]
    await choose(ada, chat, row)

    events = await ada.turn(chat, text="Hello?", speaker=members[1])

    await check(ada, chat, events, row.result)


@rows(samples(CALLS))
async def test_tool_calls_are_executed(ada: Account, row: Oddity) -> None:
    game = await new_game(ada, rules="dnd")
    await game.add("entities", kind="pc", name="Anna", attributes={"hp": 20, "hp_max": 20})
    await choose(ada, game.chat, row)

    events = await game.say()

    assert events[-1].name == "turn.completed"
    (anna,) = (each for each in (await game.state())["entities"] if each["name"] == "Anna")
    is_both = ("damage", HARDER) in row.result.calls
    assert 20 - anna["attributes"]["hp"] in (range(8, 11) if is_both else range(3, 5))
