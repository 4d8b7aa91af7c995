"""Tests that an agent which obeys orders in texts writes only to allowed rows.

For each text of the corpus, a chat opts in, a turn is played with the text, and the agent runs
with a model that obeys the text. Then all rows of the database are compared with those before.
"""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from backend.chronicles.events import EventFields
from backend.lorebooks.activation.compiled import split_decorators
from backend.lorebooks.entries import LoreEntry
from backend.regex.javascript import parse_key
from tests.fakes import gemini_server
from tests.fakes.obedient_server import ObedientGemini, ObedientOpenAI
from tests.fakes.openai_server import MODEL_ID
from tests.integration.security.obeyed import (
    Neighbour,
    Played,
    Wire,
    find_allowed_addresses,
    play,
    settle_down,
    undo,
)
from tests.support.injections import Injection, load_injections, texts_in
from tests.support.memory import embedding, points_of, preview
from tests.support.models import asking
from tests.support.server import Running, running
from tests.support.stored import Change, Row, differences, of_owner, without

pytestmark = pytest.mark.anyio

CASES = load_injections()
MOST_CALLS = 6
SEEN = {"used_at", "last_used_at", "last_seen_at"}
"""Columns that every request changes."""
WORK = {
    *("jobs", "index_changes", "index_states", "embeddings", "token_ratios", "key_slots"),
    "token_ledger",
}
"""Tables of background work. Their rows belong to this account or to no account."""
RUNS = {"enrichment_runs", "enrichment_marks"}
_TAG = re.compile(r"<\s*[/!?|]?\s*[^\W\d]|<\|")
_MACRO = re.compile(r"\{\{|\}\}|<(?:user|char|bot)>", re.IGNORECASE)
_SECTION = re.compile(r"<\s*/?\s*(?:long_term_memory|lorebook_entries)", re.IGNORECASE)
_numbers = count(1)


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[ObedientOpenAI]:
    async with ObedientOpenAI() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory, model: ObedientOpenAI
) -> AsyncGenerator[Running]:
    folder = tmp_path_factory.mktemp("obeyed")
    url = f"sqlite+aiosqlite:///{shutil.copy(sqlite_template, folder / 'talekeeper.sqlite3')}"
    settings: dict[str, Any] = {**asking(model), **embedding(model), "enrichment_model": MODEL_ID}
    async with running(url, folder, **settings) as server:
        yield server


@pytest.fixture(scope="module")
async def neighbour(server: Running) -> AsyncGenerator[Neighbour]:
    async with server.account("Ben") as ben:
        yield await settle_down(server, ben)


@pytest.fixture(scope="module")
def wire() -> Wire:
    return Wire()


def test_the_corpus_is_large_and_of_every_kind() -> None:
    assert len(CASES) >= 80
    assert len({case.name for case in CASES}) == len(CASES)
    assert min(Counter(case.kind for case in CASES).values()) >= 20
    assert all(case.calls and case.text.strip() for case in CASES)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.thorough] if number % 6 else [], id=str(case))
        for number, case in enumerate(CASES)
    ],
)
async def test_an_obedient_agent_writes_only_to_allowed_rows(
    server: Running, model: ObedientOpenAI, neighbour: Neighbour, wire: Wire, case: Injection
) -> None:
    await check(server, model, neighbour, wire, case)


async def test_it_is_the_same_with_gemini_and_on_every_database(
    database_url: str, tmp_path: Path, wire: Wire
) -> None:
    async with ObedientGemini() as model:
        settings: dict[str, Any] = {
            "gemini_base_url": model.url,
            "gemini_api_key": gemini_server.API_KEY,
            "embedder": "none",
        }
        async with running(database_url, tmp_path, **settings) as server:
            async with server.account("Ben") as ben:
                neighbour = await settle_down(server, ben)
            for case in CASES[::12]:
                await check(server, model, neighbour, wire, case)


async def check(
    server: Running,
    model: ObedientOpenAI | ObedientGemini,
    neighbour: Neighbour,
    wire: Wire,
    case: Injection,
) -> None:
    """Play a case, compare all rows, undo the run, and compare again."""
    async with server.account(f"ada-{next(_numbers)}") as ada:
        played = await play(server, model, wire, ada, neighbour, case)
        check_requests(played, [server.url, model.url])
        check_writes(played, neighbour)
        await check_prompt(played)
        if played.run["state"] == "failed":
            assert played.run["written"] == []
        elif played.run["written"]:
            assert_as_before(played, await undo(played, neighbour))
            await check_index(played)


def check_requests(played: Played, urls: Sequence[str]) -> None:
    """Check that only the model was asked, and not too often."""
    assert played.reached <= find_allowed_addresses(urls)
    asked = [each for each in played.requests if "embed" not in each.path]
    assert 1 <= len(asked) <= MOST_CALLS
    assert played.steps >= 1, "the model was not given its tools"
    assert {each.method for each in played.requests} == {"POST"}


def check_writes(played: Played, neighbour: Neighbour) -> None:
    before, after = (without(each, SEEN) for each in (played.before, played.after))
    other = neighbour.identity.user_id
    assert differences(of_owner(before, other), of_owner(after, other)) == {}
    changes = differences(before, after)
    for name in WORK:
        check_work(changes.pop(name, Change()), played.identity.user_id)
    check_stored(changes.pop("storage_ledger", Change()), played.identity.user_id)
    run = check_run(changes, played)
    events = check_events(changes.pop("chronicle_events", Change()), played, run)
    check_sources(changes.pop("chronicle_event_sources", Change()), played, events)
    book = check_book(changes.pop("lorebooks", Change()), played)
    entries = check_entries(changes.pop("lore_entries", Change()), played, book, run)
    most = played.server.parts.settings.enrichment_max_writes
    assert len(events) + len(entries) <= most
    assert changes == {}


def check_work(change: Change, user_id: UUID) -> None:
    """Check that rows belong to this account or to no account."""
    rows = [*change.added, *change.removed]
    assert {row.get("user_id") for row in rows} <= {user_id, None}


def check_stored(change: Change, user_id: UUID) -> None:
    """Check the stored bytes of other accounts. Their ledger rows may be folded into one."""
    stored = Counter[UUID]()
    for row in change.added:
        stored[row["user_id"]] += row["bytes"]
    for row in change.removed:
        stored[row["user_id"]] -= row["bytes"]
    assert {owner for owner, moved in stored.items() if moved} <= {user_id}


def check_run(changes: dict[str, Change], played: Played) -> Row:
    """Check that there are one run and one watermark after the messages that it read."""
    runs = changes.pop("enrichment_runs")
    (run,) = runs.added
    assert (runs.removed, runs.changed) == ([], [])
    assert run["user_id"] == played.identity.user_id
    assert str(run["chat_id"]) == played.ids["own_chat"]
    assert run["chronicle_id"] == played.chronicle_id
    marks = changes.pop("enrichment_marks", Change())
    assert (marks.removed, marks.changed) == ([], [])
    if run["state"] == "done":
        (mark,) = marks.added
        assert mark["id"] == played.new_lines[-1]
    else:
        assert marks.added == []
    return run


def check_events(change: Change, played: Played, run: Row) -> set[UUID]:
    """Check that new events are the agent's, and that the user's events are at most superseded."""
    assert change.removed == []
    new = {row["id"] for row in change.added}
    for row in change.added:
        assert row["user_id"] == played.identity.user_id
        assert row["chronicle_id"] == played.chronicle_id
        assert (row["source"], row["is_pinned"], row["is_edited"]) == ("agent", False, False)
        assert row["run_id"] == run["id"]
        assert 1 <= row["significance"] <= 5
        assert row["superseded_by"] in {None, *new}
        check_event_text(msgspec.json.decode(row["sealed_event"], type=EventFields))
    shown = [text for request in played.requests for text in texts_in(request.body)]
    for old, now in change.changed:
        assert old.keys() <= {"id", "superseded_by", "revision", "updated_at"}
        assert now["superseded_by"] in new
        whole = played.before["chronicle_events"][now["id"],]
        summary = msgspec.json.decode(whole["sealed_event"], type=EventFields).summary
        assert any(summary in text for text in shown)
    return new


def check_event_text(event: EventFields) -> None:
    """Check the length and the lines of a text."""
    texts = [event.summary, event.time, event.where, *event.who, *event.keywords]
    assert event.summary.strip()
    assert sum(map(len, texts)) < 6_000
    for text in texts:
        assert "\n" not in text
        check_text(text)


def check_text(text: str) -> None:
    """Check that a text has no tags, macros or invisible characters."""
    assert not _TAG.search(text), text
    assert not _MACRO.search(text), text
    hidden = {unicodedata.category(each) for each in text if each not in "\n\u200c\u200d"}
    assert not hidden & {"Cc", "Cf", "Cs", "Zl", "Zp"}, text


def check_sources(change: Change, played: Played, events: set[UUID]) -> None:
    """Check that the sources of each event are new messages of this chat."""
    assert (change.removed, change.changed) == ([], [])
    assert {row["event_id"] for row in change.added} == events
    for row in change.added:
        assert str(row["chat_id"]) == played.ids["own_chat"]
        assert row["message_id"] in played.new_lines


def check_book(change: Change, played: Played) -> UUID | None:
    """Check that at most the chronicle's own book was created."""
    assert (change.removed, change.changed) == ([], [])
    assert len(change.added) <= 1
    for row in change.added:
        assert row["user_id"] == played.identity.user_id
        assert row["chronicle_id"] == played.chronicle_id
        assert (row["character_id"], row["is_global"]) == (None, False)
    return change.added[0]["id"] if change.added else None


def check_entries(change: Change, played: Played, book: UUID | None, run: Row) -> list[Row]:
    """Check that new entries are in that book, with usual keys and position."""
    assert (change.removed, change.changed) == ([], [])
    for row in change.added:
        assert (row["user_id"], row["lorebook_id"]) == (played.identity.user_id, book)
        assert (row["agent_run_id"], row["agent_revision"]) == (run["id"], row["revision"])
        assert str(row["source_chat_id"]) == played.ids["own_chat"]
        assert row["source_message_id"] in played.new_lines
        entry = msgspec.json.decode(row["sealed_entry"], type=LoreEntry)
        plain = LoreEntry(title=entry.title, content=entry.content, keys=entry.keys)
        assert entry == plain
        assert entry.keys
        assert entry.content.strip()
        assert len(entry.content) <= 8_000
        for key in entry.keys:
            assert parse_key(key.strip()) is None
            assert len(re.sub(r"\W", "", key)) >= 2, key
        assert not any(line.lstrip().startswith("@@") for line in entry.content.split("\n"))
        assert split_decorators(entry.content)[1] == entry.content
        for text in (entry.title, entry.content, *entry.keys):
            check_text(text)
    return change.added


async def check_prompt(played: Played) -> None:
    """Check that written texts are unchanged in prompts, inside their section.

    They are those of another chat on the same chronicle: it has none of this one's history.
    """
    events, entries = written_texts(played)
    query = "\n".join(
        [event.summary[:300] for event in events] + [entry.keys[0] for entry in entries]
    )
    context = await preview(played.account, played.ids["own_second_chat"], query or "The lamp?")
    mine = {each["id"] for each in played.run["written"] if each["what"].endswith("created")}
    found = [each for each in context["retrieved"] if each.get("source_id") in mine]
    kinds = {each["kind"] for each in found}
    assert kinds == ({"event"} if events else set()) | ({"lore"} if entries else set())
    contents = {entry.content for entry in entries}
    summaries = [event.summary for event in events]
    for item in found:
        check_text(item["text"])
        assert item["text"] in contents or item["text"].endswith(tuple(summaries))
    sections = [
        message["text"]
        for message in context["prompt"]
        if message["text"].startswith(("<long_term_memory>\n", "<lorebook_entries>\n"))
    ]
    assert len(sections) == 1 or not found
    for section in sections:
        tags = [tag.strip("<>/ ") for tag in _SECTION.findall(section)]
        assert Counter(tags) == dict.fromkeys(tags, 2)
        assert section.endswith(("</long_term_memory>", "</lorebook_entries>"))
        assert all(item["text"] in section for item in found)


def written_texts(played: Played) -> tuple[list[EventFields], list[LoreEntry]]:
    new = differences(played.before, played.after)
    events = new.get("chronicle_events", Change()).added
    entries = new.get("lore_entries", Change()).added
    return (
        [msgspec.json.decode(row["sealed_event"], type=EventFields) for row in events],
        [msgspec.json.decode(row["sealed_entry"], type=LoreEntry) for row in entries],
    )


async def check_index(played: Played) -> None:
    before = of_owner(played.before, played.identity.user_id)
    index = played.server.parts.memory.collections.current
    points = await points_of(index, played.identity.user_id)
    found = {point.source_id for point in points if point.kind in {"event", "lore"}}
    there = [*before["chronicle_events"].values(), *before["lore_entries"].values()]
    assert found == {row["id"] for row in there}


def assert_as_before(played: Played, undone: Mapping[str, Any]) -> None:
    """Check that an undone run leaves only its row and an empty book."""
    volatile, not_compared = SEEN | {"revision", "updated_at"}, WORK | RUNS | {"storage_ledger"}
    left = differences(
        without(played.before, volatile, tables=not_compared),
        without(undone, volatile, tables=not_compared),
    )
    book = left.pop("lorebooks", Change())
    assert (book.removed, book.changed) == ([], [])
    assert {row["chronicle_id"] for row in book.added} <= {played.chronicle_id}
    assert left == {}
