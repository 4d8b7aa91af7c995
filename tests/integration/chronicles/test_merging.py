"""One event in place of several."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from backend.chronicles.events import MAX_MERGED
from tests.integration.chronicles.chroniclers import Chronicler
from tests.support.server import ok, problem

pytestmark = pytest.mark.anyio


@pytest.fixture
async def chronicle(writer: Chronicler) -> str:
    return await writer.new_chronicle()


async def test_events_become_one_that_says_what_they_said(
    writer: Chronicler, chat: str, chronicle: str
) -> None:
    path = [each["id"] for each in await writer.say(chat)]
    second = await writer.new_event(
        chronicle,
        "It was cracked.",
        kind="discovery",
        who=["mara", "Tom"],
        keywords=["crack"],
        where="The tower",
        significance=5,
        happened_at="2026-03-02T00:00:00Z",
        source_message_ids=path[1:],
    )
    first = await writer.new_event(
        chronicle,
        "Mara found the lens.",
        day=3,
        time="evening",
        who=["Mara"],
        keywords=["lens"],
        pinned=True,
        happened_at="2026-03-01T00:00:00Z",
        source_message_ids=path[:2],
    )
    made = await _merge(writer, chronicle, second, first)
    assert made["summary"] == "Mara found the lens.\nIt was cracked."
    assert (made["kind"], made["significance"], made["pinned"]) == ("discovery", 5, True)
    assert (made["day"], made["time"], made["where"]) == (3, "evening", "The tower")
    assert (made["who"], made["keywords"]) == (["Mara", "Tom"], ["lens", "crack"])
    assert made["happened_at"] == "2026-03-01T00:00:00Z"
    assert (made["source_message_ids"], made["source_chat_ids"]) == (path, [chat])
    assert (made["source"], made["edited"], made["run_id"]) == ("user", False, None)
    assert (await writer.page(chronicle, current=False))["items"] == [made]
    for gone in (first, second):
        answer = await writer.ask("GET", f"/chronicles/{chronicle}/events/{gone['id']}")
        problem(answer, 404, "event-not-found")


async def test_what_is_given_is_taken_as_it_is(writer: Chronicler, chronicle: str) -> None:
    first = await writer.new_event(chronicle, "One.", day=3, who=["Mara"], significance=5)
    second = await writer.new_event(chronicle, "Two.", keywords=["lens"], pinned=True)
    given: dict[str, Any] = {
        "summary": "Both.",
        "day": None,
        "who": [],
        "significance": 1,
        "pinned": False,
    }
    made = await _merge(writer, chronicle, first, second, event=given)
    assert {name: made[name] for name in given} == given
    assert made["keywords"] == ["lens"]


async def test_what_they_superseded_is_superseded_by_the_one(
    writer: Chronicler, chronicle: str
) -> None:
    old, first, second = [await writer.new_event(chronicle, each) for each in ("Old.", "1", "2")]
    await writer.change(old, superseded_by=first["id"])
    await writer.change(first, superseded_by=second["id"])
    made = await _merge(writer, chronicle, first, second)
    assert made["superseded_by"] is None
    assert (await writer.event(chronicle, old["id"]))["superseded_by"] == made["id"]
    assert await writer.summaries(chronicle) == ["1\n2"]


@pytest.mark.every_database
async def test_what_superseded_all_of_them_supersedes_the_one(
    writer: Chronicler, chronicle: str
) -> None:
    first, second, new = [await writer.new_event(chronicle, each) for each in ("1", "2", "New.")]
    await writer.change(first, superseded_by=second["id"])
    await writer.change(second, superseded_by=new["id"])
    made = await _merge(writer, chronicle, first, second)
    assert (made["superseded_by"], made["is_current"]) == (new["id"], False)


async def test_the_one_never_supersedes_itself_over_another(
    writer: Chronicler, chronicle: str
) -> None:
    first, between, last, new = [await writer.new_event(chronicle, each) for each in "1234"]
    await writer.change(last, superseded_by=between["id"])
    await writer.change(between, superseded_by=first["id"])
    await writer.change(first, superseded_by=new["id"])
    made = await _merge(writer, chronicle, first, last)
    assert made["superseded_by"] == new["id"]
    assert (await writer.event(chronicle, between["id"]))["superseded_by"] == made["id"]
    assert await writer.summaries(chronicle) == ["4"]


async def test_nothing_is_merged_that_would_be_too_long(writer: Chronicler, chronicle: str) -> None:
    first = await writer.new_event(chronicle, "1" * 3_000, who=[f"a{n}" for n in range(30)])
    second = await writer.new_event(chronicle, "2" * 3_000, who=[f"b{n}" for n in range(30)])
    before = await writer.page(chronicle)
    body: dict[str, Any] = {"event_ids": [first["id"], second["id"]]}
    path = f"/chronicles/{chronicle}/events/merge"
    found = problem(await writer.ask("POST", path, json=body), 422, "validation-failed")
    assert (found["limit"], found["found"]) == (4_000, 6_001)
    body["event"] = {"summary": "Both."}
    found = problem(await writer.ask("POST", path, json=body), 422, "validation-failed")
    assert (found["limit"], found["found"]) == (50, 60)
    assert await writer.page(chronicle) == before
    body["event"] = {"summary": "Both.", "who": ["Mara"]}
    ok(await writer.ask("POST", path, json=body), 201)


@pytest.mark.parametrize(
    "event",
    [{"summary": " "}, {"summary": None}, {"kind": "feast"}, {"significance": 9}, {"source": "x"}],
)
async def test_what_is_given_has_to_be_of_the_right_form(
    writer: Chronicler, chronicle: str, event: dict[str, Any]
) -> None:
    made = [await writer.new_event(chronicle, each) for each in "12"]
    body = {"event_ids": [each["id"] for each in made], "event": event}
    answer = await writer.ask("POST", f"/chronicles/{chronicle}/events/merge", json=body)
    problem(answer, 422, "validation-failed")
    assert (await writer.page(chronicle))["items"] == made


async def test_two_to_twenty_events_of_the_chronicle_are_merged_and_no_others(
    writer: Chronicler, stranger: Chronicler, chronicle: str
) -> None:
    one = await writer.new_event(chronicle)
    elsewhere = await writer.new_event(await writer.new_chronicle())
    theirs = await stranger.new_event(await stranger.new_chronicle())
    path = f"/chronicles/{chronicle}/events/merge"
    for ids in ([one["id"]], [one["id"]] * 2, [one["id"]] * (MAX_MERGED + 1), []):
        answer = await writer.ask("POST", path, json={"event_ids": ids})
        problem(answer, 422, "validation-failed")
    for other in (elsewhere["id"], theirs["id"], str(uuid4())):
        answer = await writer.ask("POST", path, json={"event_ids": [one["id"], other]})
        assert problem(answer, 404, "event-not-found")["event_id"] == other
    assert (await writer.page(chronicle))["items"] == [one]


async def test_what_was_swiped_away_is_not_merged_into_what_counts(
    writer: Chronicler, chat: str, chronicle: str
) -> None:
    reply = (await writer.say(chat))[-1]
    away = await writer.new_event(chronicle, "Away.", source_message_ids=[reply["id"]])
    here = await writer.new_event(chronicle, "Here.")
    await writer.account.turn(chat, regenerate_of=reply["id"])
    body = {"event_ids": [away["id"], here["id"]]}
    answer = await writer.ask("POST", f"/chronicles/{chronicle}/events/merge", json=body)
    assert problem(answer, 422, "validation-failed")["event_id"] == away["id"]
    assert len(await writer.summaries(chronicle, current=False)) == 2


async def _merge(
    writer: Chronicler, chronicle_id: str, *events: dict[str, Any], **body: Any
) -> dict[str, Any]:
    ids = [each["id"] for each in events]
    path = f"/chronicles/{chronicle_id}/events/merge"
    made: dict[str, Any] = await writer.post(path, event_ids=ids, **body)
    return made
