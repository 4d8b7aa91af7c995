"""Export and import of chronicles as files."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import httpx
import pytest

from backend.chronicles import repository
from backend.chronicles import transfer as files
from tests.integration.chronicles.chroniclers import Chronicler
from tests.support.server import ok, problem

pytestmark = pytest.mark.anyio

WHEN = "2026-03-01T20:00:00Z"


def event(summary: str = "The lamp went out.", **fields: Any) -> dict[str, Any]:
    return {"summary": summary, "happened_at": WHEN, **fields}


def file(*events: Any, **fields: Any) -> dict[str, Any]:
    head = {"format": "talekeeper-chronicle", "version": 1, "name": "Coast"}
    return {**head, "events": list(events), **fields}


async def send(
    writer: Chronicler, value: object, *, into: str = "", filename: str = "tale.json", **form: str
) -> httpx.Response:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    path = f"/chronicles/{into}/import" if into else "/chronicles/import"
    return await writer.ask("POST", path, files={"file": (filename, data)}, data=form)


async def bring(writer: Chronicler, value: object, **options: Any) -> dict[str, Any]:
    made: dict[str, Any] = ok(await send(writer, value, **options), 201)
    return made


async def export(writer: Chronicler, chronicle: str) -> dict[str, Any]:
    found: dict[str, Any] = await writer.get(f"/chronicles/{chronicle}/export")
    return found


def without_source(exported: dict[str, Any]) -> dict[str, Any]:
    """Return an export without sources, because imported events have another one."""
    events = [{**each, "source": ""} for each in exported["events"]]
    return {**exported, "events": events}


async def test_a_file_contains_the_chronicle_and_its_events(writer: Chronicler, chat: str) -> None:
    chronicle = await writer.new_chronicle("Die Küste", description="Of storms.")
    reply = (await writer.say(chat))[-1]["id"]
    full: dict[str, Any] = {
        "kind": "death",
        "day": -2,
        "time": "dawn",
        "where": "Skerry",
        "who": ["Mara"],
        "keywords": ["lamp"],
        "significance": 5,
    }
    later = await writer.new_event(chronicle, "It burns.", happened_at="2026-04-01T00:00:00Z")
    first = await writer.new_event(
        chronicle, pinned=True, happened_at=WHEN, source_message_ids=[reply], **full
    )
    await writer.change(first, superseded_by=later["id"])
    await writer.account.turn(chat, regenerate_of=reply)
    answer = await writer.ask("GET", f"/chronicles/{chronicle}/export")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"Die Kuste.json\"; filename*=UTF-8''Die%20K%C3%BCste.json"
    )
    assert ok(answer) == {
        "format": "talekeeper-chronicle",
        "version": 1,
        "name": "Die Küste",
        "description": "Of storms.",
        "events": [
            {
                "id": "1",
                "summary": "The lamp went out.",
                **full,
                "pinned": True,
                "happened_at": WHEN,
                "source": "user",
                "source_message_ids": [reply],
                "told_again": [],
                "superseded_by": "2",
                "counts": False,
                "audience": "public",
            },
            {
                "id": "2",
                "summary": "It burns.",
                "kind": "event",
                "day": None,
                "time": "",
                "where": "",
                "who": [],
                "keywords": [],
                "significance": 3,
                "pinned": False,
                "happened_at": "2026-04-01T00:00:00Z",
                "source": "user",
                "source_message_ids": [],
                "told_again": [],
                "superseded_by": None,
                "counts": True,
                "audience": "public",
            },
        ],
    }


def made_up(random: Random, messages: list[str]) -> dict[str, Any]:
    """Return a random valid chronicle."""
    words = ["lamp", "Küste", "鐘", "🗝️", 'quo"te', "back\\slash", "line\nbreak", "\x00", "x" * 300]
    count = random.randint(0, 30)
    moments = [f"2026-03-{day:02}T20:00:00.{day:06}Z" for day in range(1, 5)]
    events: list[dict[str, Any]] = []
    for number in range(count):
        one = event(
            random.choice(words),
            id=f"e{number}",
            kind=random.choice(["event", "fact", "death"]),
            day=random.choice([None, -1_000_000, 0, 7]),
            time=random.choice(["", *words]),
            where=random.choice(["", *words]),
            who=random.sample(words, random.randint(0, 3)),
            keywords=random.sample(words, random.randint(0, 3)),
            significance=random.randint(1, 5),
            pinned=random.random() < 0.2,
            happened_at=random.choice(moments),
            source_message_ids=random.sample(messages, random.choice([0, 0, 1, 2])),
        )
        if number and random.random() < 0.3:
            one["superseded_by"] = f"e{random.randrange(number)}"
        events.append(one)
    random.shuffle(events)
    return file(*events, name=random.choice(words[:6]), description=random.choice(["", *words]))


async def test_an_imported_file_exports_the_same_again(writer: Chronicler, chat: str) -> None:
    await writer.say(chat)
    messages = [line["id"] for line in await writer.say(chat, "And further.")]
    random = Random(7)
    for _ in range(15):
        given = made_up(random, messages)
        first = await bring(writer, given)
        assert (first["created"], first["skipped"]) == (len(given["events"]), 0)
        exported = await export(writer, first["chronicle_id"])
        assert sorted(each["summary"] for each in exported["events"]) == sorted(
            each["summary"] for each in given["events"]
        )
        second = await bring(writer, exported)
        assert await export(writer, second["chronicle_id"]) == exported
        again = await bring(writer, exported, into=second["chronicle_id"])
        assert (again["created"], again["skipped"]) == (0, len(given["events"]))
        assert await export(writer, second["chronicle_id"]) == exported


async def test_imports_keep_the_order(writer: Chronicler, stranger: Chronicler, chat: str) -> None:
    chronicle = await writer.new_chronicle()
    path = await writer.say(chat)
    for line in reversed(path):
        ids = [line["id"]]
        await writer.new_event(
            chronicle, f"At {line['position']}.", happened_at=WHEN, source_message_ids=ids
        )
    assert await writer.summaries(chronicle) == ["At 0.", "At 1.", "At 2."]
    exported = await export(writer, chronicle)
    theirs = (await bring(stranger, exported))["chronicle_id"]
    page = await stranger.page(theirs)
    assert [each["summary"] for each in page["items"]] == ["At 0.", "At 1.", "At 2."]
    assert {each["source"] for each in page["items"]} == {"import"}
    assert all(each["source_message_ids"] == [] for each in page["items"])
    own = (await bring(writer, exported))["chronicle_id"]
    assert without_source(await export(writer, own)) == without_source(exported)


async def test_inactive_events_are_only_imported_with_their_messages(
    writer: Chronicler, stranger: Chronicler, chat: str
) -> None:
    chronicle = await writer.new_chronicle()
    reply = (await writer.say(chat))[-1]["id"]
    await writer.new_event(chronicle, "Of a branch.", source_message_ids=[reply])
    await writer.new_event(chronicle, "Of no message.")
    await writer.account.turn(chat, regenerate_of=reply)
    exported = await export(writer, chronicle)
    theirs = await bring(stranger, exported)
    assert (theirs["created"], theirs["skipped"]) == (1, 1)
    assert await stranger.summaries(theirs["chronicle_id"], current=False) == ["Of no message."]
    own = await bring(writer, exported)
    assert (own["created"], own["skipped"]) == (2, 0)
    assert await writer.summaries(own["chronicle_id"]) == ["Of no message."]
    ok(await writer.ask("POST", f"/messages/{reply}/activate"))
    assert "Of a branch." in await writer.summaries(own["chronicle_id"])


async def test_an_import_skips_identical_events(writer: Chronicler) -> None:
    chronicle = await writer.new_chronicle("Hers", description="Her own.")
    there = await writer.new_event(chronicle, happened_at=WHEN, who=["Mara"], significance=5)
    added = await bring(
        writer,
        file(
            event(who=["Mara"], id="old", significance=1),
            event(who=["mara"]),
            event(who=["Mara"], happened_at="2026-03-01T20:00:01Z", superseded_by="old"),
            description="Not this.",
        ),
        into=chronicle,
    )
    assert added == {"chronicle_id": chronicle, "created": 2, "skipped": 1}
    shown = await writer.get(f"/chronicles/{chronicle}")
    assert (shown["name"], shown["description"]) == ("Hers", "Her own.")
    assert await writer.event(chronicle, there["id"]) == there
    items = (await writer.page(chronicle, current=False))["items"]
    assert [each["superseded_by"] for each in items] == [None, None, there["id"]]


async def test_a_file_without_a_name_gets_one(writer: Chronicler) -> None:
    for options, name in (
        ({"name": "Given"}, "Given"),
        ({"filename": "C:\\tales\\The night ferry.json"}, "The night ferry"),
        ({"filename": ""}, "Chronicle"),
    ):
        made = await bring(writer, file(name=" "), **options)
        shown = await writer.get(f"/chronicles/{made['chronicle_id']}")
        assert (shown["name"], made["created"]) == (name, 0)


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        (b"", "line 1, column 1"),
        (b"\xff{", "byte 0"),
        (b'{"format": ', "line 1, column 12"),
        (b"[" * 100, "100 or more levels"),
        ([], "not a JSON object"),
        ({"name": "Coast", "entries": {}}, "`format` is not `talekeeper-chronicle`"),
        (file(version=2), "`version` must be 1"),
        (file(author="Ada"), "unknown field `author`"),
        (file(events={}), "events: Expected `array`"),
        (file(event(), 7), "events[1]: Expected `object`"),
        (file(event(), event(significance=6)), "events[1].significance: Expected `int` <= 5"),
        (file(event(mood="grim")), "events[0]: Object contains unknown field `mood`"),
        (file({"summary": "When?"}), "events[0]: Object missing required field `happened_at`"),
        (file(event(happened_at="2026-03-01T20:00:00")), "events[0].happened_at: "),
        (file(event(happened_at="0001-01-01T00:00:00+14:00")), "events[0].happened_at must"),
        (file(event(" ")), "events[0].summary: "),
        (file(event("x" * 4001)), "events[0].summary: Expected `str` of length <= 4000"),
        (file(event(who=["a", 1])), "events[0].who[1]: Expected `str`"),
        (file(event(source_message_ids=["x"])), "events[0].source_message_ids[0]: "),
        (file(event(id="a"), event(id="a")), "events[1].id is already used by events[0]"),
        (
            file(event(), event(superseded_by="a")),
            "events[1].superseded_by is not the id of an event",
        ),
        (file(event(id="a", superseded_by="a")), "events[0].superseded_by leads back"),
        (
            file(
                event(id="c", superseded_by="a"),
                event(id="a", superseded_by="b"),
                event(id="b", superseded_by="a"),
            ),
            "events[1].superseded_by leads back",
        ),
    ],
)
async def test_a_broken_file_names_the_place(
    writer: Chronicler, value: object, detail: str
) -> None:
    chronicle = await writer.new_chronicle()
    await writer.new_event(chronicle)
    before = await writer.get("/chronicles")
    for into in ("", chronicle):
        refused = await send(writer, value, into=into)
        body = problem(refused, 422, "unreadable-chronicle")
        assert detail in body["detail"]
    assert await writer.get("/chronicles") == before


async def test_imports_have_limits(writer: Chronicler, monkeypatch: pytest.MonkeyPatch) -> None:
    chronicle = await writer.new_chronicle()
    await writer.new_event(chronicle, "Hers.", pinned=True)
    monkeypatch.setattr(files, "MAX_EVENTS", 2)
    body = problem(
        await send(writer, file(*[event(str(number)) for number in range(3)])),
        422,
        "unreadable-chronicle",
    )
    assert (body["limit"], body["allowed"], body["found"]) == ("chronicle_events", 2, 3)
    pinned = file(*[event(str(number), pinned=True) for number in range(101)])
    monkeypatch.setattr(files, "MAX_EVENTS", 1_000)
    body = problem(await send(writer, pinned), 422, "unreadable-chronicle")
    assert body["limit"] == "pinned_events"
    full = file(*pinned["events"][:100])
    problem(await send(writer, full, into=chronicle), 409, "chronicle-full")
    assert await writer.summaries(chronicle) == ["Hers."]
    monkeypatch.setattr(repository, "MAX_EVENTS", 2)
    two = file(event("One."), event("Two."))
    problem(await send(writer, two, into=chronicle), 409, "chronicle-full")
    assert await writer.summaries(chronicle) == ["Hers."]
    assert (await bring(writer, file(event("One.")), into=chronicle))["created"] == 1
    monkeypatch.setattr(repository, "MAX_CHRONICLES", 1)
    problem(await send(writer, file()), 409, "chronicle-full")
    assert len((await writer.get("/chronicles"))["items"]) == 1


async def test_requests_without_a_file_are_refused(writer: Chronicler) -> None:
    answer = await writer.ask("POST", "/chronicles/import", json=file())
    problem(answer, 415, "unsupported-media-type")
    answer = await writer.ask("POST", "/chronicles/import", files={"other": b"x"})
    problem(answer, 422, "validation-failed")
