"""Events of chronicles: create, read, change, list, search, supersede, merge, delete."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, select, text, update

from backend.chronicles import event_search, repository
from backend.chronicles.events import MAX_MERGED, MAX_PINNED
from backend.chronicles.models import ChronicleEvent
from backend.database.base import new_id, now
from backend.memory.models import IndexChange
from tests.integration.chronicles.chroniclers import Chronicler
from tests.support.server import Running, ok, problem
from tests.support.statements import record_statements

pytestmark = pytest.mark.anyio

FULL: dict[str, Any] = {
    "summary": "Mara found the cracked lens under the third stair. ☕",
    "kind": "discovery",
    "day": 3,
    "time": "evening",
    "where": "The lighthouse",
    "who": ["Mara", "Old Tom"],
    "keywords": ["lens", "stair"],
    "significance": 4,
    "pinned": True,
    "happened_at": "2026-03-01T20:15:00Z",
}


async def test_an_event_stores_every_field(writer: Chronicler) -> None:
    chronicle = await writer.new_chronicle()
    made = await writer.new_event(chronicle, **FULL)
    assert {name: made[name] for name in FULL} == FULL
    assert (made["source"], made["edited"], made["run_id"]) == ("user", False, None)
    assert (made["is_current"], made["superseded_by"], made["revision"]) == (True, None, 1)
    assert (made["source_message_ids"], made["source_chat_ids"]) == ([], [])
    assert made["chronicle_id"] == chronicle
    answer = await writer.ask("GET", f"/chronicles/{chronicle}/events/{made['id']}")
    assert ok(answer) == made
    assert answer.headers["etag"] == '"1"'
    assert (await writer.page(chronicle))["items"] == [made]


async def test_an_event_with_only_a_summary_happens_now(writer: Chronicler) -> None:
    before = now().isoformat()
    made = await writer.new_event(await writer.new_chronicle())
    assert (made["kind"], made["significance"], made["day"]) == ("event", 3, None)
    assert made["pinned"] is False
    assert before <= made["happened_at"].replace("Z", "+00:00") <= now().isoformat()


async def test_an_event_has_the_time_of_its_last_message(writer: Chronicler, chat: str) -> None:
    path = await writer.say(chat)
    ids = [each["id"] for each in path]
    made = await writer.new_event(
        await writer.new_chronicle(), source_message_ids=[ids[2], ids[0], ids[2]]
    )
    assert made["happened_at"] == path[2]["created_at"]
    assert (made["source_message_ids"], made["source_chat_ids"]) == ([ids[0], ids[2]], [chat])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"summary": ""},
        {"summary": " \n"},
        {"summary": "s" * 4_001},
        {"kind": "feast"},
        {"significance": 0},
        {"significance": 6},
        {"day": 1_000_001},
        {"who": ["Mara"] * 51},
        {"keywords": ["k" * 301]},
        {"happened_at": "2026-03-01T20:15:00"},
        {"happened_at": "0001-01-01T00:00:00+14:00"},
        {"happened_at": "9999-12-31T23:59:59-12:00"},
        {"source_message_ids": [str(uuid4())] * 51},
        {"source": "agent"},
        {"superseded_by": None},
    ],
)
async def test_invalid_bodies_are_refused(writer: Chronicler, body: dict[str, Any]) -> None:
    chronicle = await writer.new_chronicle()
    if body:
        body = {"summary": "The lamp went out.", **body}
    answer = await writer.ask("POST", f"/chronicles/{chronicle}/events", json=body)
    problem(answer, 422, "validation-failed")
    assert (await writer.page(chronicle))["items"] == []


@pytest.mark.every_database
async def test_a_patch_keeps_absent_fields_and_resets_null(writer: Chronicler) -> None:
    made = await writer.new_event(await writer.new_chronicle(), **FULL)
    changed = await writer.change(made, where=None, day=None, who=["Tom"], significance=None)
    assert (changed["where"], changed["day"], changed["who"]) == ("", None, ["Tom"])
    assert (changed["significance"], changed["revision"]) == (3, 2)
    unchanged = ("summary", "kind", "time", "keywords", "pinned", "happened_at", "created_at")
    assert [changed[name] for name in unchanged] == [made[name] for name in unchanged]
    assert await writer.event(made["chronicle_id"], made["id"]) == changed


@pytest.mark.every_database
async def test_a_patch_of_many_fields_is_one_revision(writer: Chronicler, chat: str) -> None:
    chronicle = await writer.new_chronicle()
    [greeting] = await writer.account.messages(chat)
    made, later = await writer.new_event(chronicle), await writer.new_event(chronicle)
    changed = await writer.change(
        made,
        summary="The lamp was put out.",
        source_message_ids=[greeting["id"]],
        superseded_by=later["id"],
        pinned=True,
        happened_at="2026-03-01T20:15:00+01:00",
    )
    assert changed["revision"] == 2
    assert changed["happened_at"] == "2026-03-01T19:15:00Z"
    assert changed["source_message_ids"] == [greeting["id"]]
    assert (changed["superseded_by"], changed["pinned"]) == (later["id"], True)
    assert (await writer.change(changed, source_message_ids=None))["source_message_ids"] == []


async def test_a_patch_without_effect_keeps_the_revision(writer: Chronicler) -> None:
    made = await writer.new_event(await writer.new_chronicle(), **FULL)
    assert await writer.change(made, where="The lighthouse", pinned=True) == made


@pytest.mark.every_database
async def test_a_cleared_time_is_that_of_the_message(writer: Chronicler, chat: str) -> None:
    path = await writer.say(chat)
    made = await writer.new_event(
        await writer.new_chronicle(),
        happened_at="2020-01-01T00:00:00Z",
        source_message_ids=[path[1]["id"]],
    )
    changed = await writer.change(made, happened_at=None)
    assert changed["happened_at"] == path[1]["created_at"]
    bare = await writer.change(changed, source_message_ids=[], happened_at=None)
    assert bare["happened_at"] == bare["created_at"]


@pytest.mark.parametrize(
    "patch",
    [
        {"summary": None},
        {"summary": " "},
        {"kind": "feast"},
        {"significance": "high"},
        {"happened_at": "2026-03-01T20:15:00"},
        {"happened_at": "1066-10-14T09:00:00Z"},
        {"source_message_ids": ["x"]},
        {"source_message_ids": [str(uuid4()) for _ in range(51)]},
        {"is_current": False},
        {"edited": False},
    ],
)
async def test_an_invalid_patch_changes_nothing(writer: Chronicler, patch: dict[str, Any]) -> None:
    made = await writer.new_event(await writer.new_chronicle(), **FULL)
    path = f"/chronicles/{made['chronicle_id']}/events/{made['id']}"
    answer = await writer.ask("PATCH", path, json={"where": "Elsewhere", **patch})
    problem(answer, 422, "validation-failed")
    assert await writer.event(made["chronicle_id"], made["id"]) == made


async def test_a_change_of_an_old_revision_is_refused(writer: Chronicler) -> None:
    made = await writer.new_event(await writer.new_chronicle())
    path = f"/chronicles/{made['chronicle_id']}/events/{made['id']}"
    answer = await writer.ask("PATCH", path, json={"day": 2}, headers={"If-Match": '"1"'})
    assert ok(answer)["revision"] == 2
    assert answer.headers["etag"] == '"2"'
    stale = {"If-Match": '"1"'}
    answer = await writer.ask("PATCH", path, json={"day": 3}, headers=stale)
    problem(answer, 412, "revision-mismatch")
    problem(await writer.ask("DELETE", path, headers=stale), 412, "revision-mismatch")
    assert (await writer.event(made["chronicle_id"], made["id"]))["day"] == 2
    ok(await writer.ask("DELETE", path, headers={"If-Match": '"2"'}), 204)
    problem(await writer.ask("GET", path), 404, "event-not-found")


@pytest.mark.every_database
async def test_only_more_than_a_pin_marks_an_edit(writer: Chronicler, server: Running) -> None:
    chronicle = await writer.new_chronicle()
    made = await writer.new_event(chronicle)
    own = await writer.new_event(chronicle)
    async with server.parts.database.write() as session:
        await session.execute(
            update(ChronicleEvent)
            .where(ChronicleEvent.id == UUID(made["id"]))
            .values(source="agent", run_id=new_id())
        )
    assert (await writer.change(made, pinned=True))["edited"] is False
    assert (await writer.change(made, significance=5))["edited"] is True
    assert (await writer.change(made, pinned=False))["edited"] is True
    assert (await writer.change(own, significance=5))["edited"] is False


async def test_lists_are_in_story_order(writer: Chronicler, chat: str) -> None:
    chronicle = await writer.new_chronicle()
    path = await writer.say(chat)
    same = "2026-03-02T00:00:00Z"
    for summary, time, source in (
        ("third", same, path[1]["id"]),
        ("fourth", same, path[2]["id"]),
        ("first", "2026-03-01T00:00:00Z", path[2]["id"]),
        ("second", same, path[0]["id"]),
        ("fifth", "2026-03-02T00:00:00.000001Z", path[0]["id"]),
    ):
        await writer.new_event(chronicle, summary, happened_at=time, source_message_ids=[source])
    order = ["first", "second", "third", "fourth", "fifth"]
    assert await writer.summaries(chronicle) == order
    assert await writer.summaries(chronicle, order="newest") == order[::-1]


@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_pages_have_no_gaps_and_no_repetitions(writer: Chronicler, order: str) -> None:
    chronicle = await writer.new_chronicle()
    moments = ["2026-03-02T00:00:00Z", "2026-03-01T00:00:00.5Z", "1999-03-02T00:00:00Z"]
    for place in range(7):
        await writer.new_event(chronicle, str(place), happened_at=moments[place % 3])
    whole = await writer.summaries(chronicle, order=order)
    assert sorted(whole) == [str(place) for place in range(7)]
    for limit in (1, 2, 6, 7):
        assert await _all_pages(writer, chronicle, limit=limit, order=order) == whole


async def test_a_changed_list_continues_at_its_place(writer: Chronicler) -> None:
    chronicle = await writer.new_chronicle()
    made = [
        await writer.new_event(chronicle, day, happened_at=f"2026-03-0{day}T00:00:00Z")
        for day in "1345"
    ]
    page = await writer.page(chronicle, limit=2)
    await writer.new_event(chronicle, "2", happened_at="2026-03-02T00:00:00Z")
    await writer.delete(f"/chronicles/{chronicle}/events/{made[1]['id']}")
    assert await writer.summaries(chronicle, after=page["next"]) == ["4", "5"]


@pytest.mark.parametrize(
    "after", ["x", "", "AAAA", "é", "9f0c7c0e-1d7b-4f5e-8a54-2f1d3b7a9c10", "A" * 200]
)
async def test_an_invalid_cursor_is_refused(writer: Chronicler, after: str) -> None:
    chronicle = await writer.new_chronicle()
    answer = await writer.ask("GET", f"/chronicles/{chronicle}/events", params={"after": after})
    problem(answer, 422, "validation-failed")


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 501},
        {"min_significance": 0},
        {"min_significance": 6},
        {"kind": "feast"},
        {"order": "best"},
        {"chat_id": "x"},
        {"q": "q" * 201},
    ],
)
async def test_an_invalid_query_is_refused(writer: Chronicler, query: dict[str, Any]) -> None:
    chronicle = await writer.new_chronicle()
    answer = await writer.ask("GET", f"/chronicles/{chronicle}/events", params=query)
    assert answer.status_code in {400, 422}, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.every_database
async def test_events_are_found_by_their_text_and_fields(writer: Chronicler, chat: str) -> None:
    chronicle = await writer.new_chronicle()
    [greeting] = await writer.account.messages(chat)
    await writer.new_event(chronicle, **FULL)
    await writer.new_event(
        chronicle,
        "Tom swore to mend it.",
        kind="promise",
        who=["Old Tom"],
        happened_at="2026-03-02T00:00:00Z",
    )
    await writer.new_event(
        chronicle, "It rained.", significance=1, source_message_ids=[greeting["id"]]
    )

    async def found(**query: Any) -> list[str]:
        return [each.split()[0] for each in await writer.summaries(chronicle, **query)]

    assert await found() == ["Mara", "Tom", "It"]
    assert await found(q="STAIR lens") == ["Mara"]
    assert await found(q="lighthouse") == ["Mara"]
    assert await found(q="old tom") == ["Mara", "Tom"]
    assert await found(q="dragon") == []
    assert await found(kind="promise") == ["Tom"]
    assert await found(who="tom") == ["Mara", "Tom"]
    assert await found(who="Tom", kind="discovery") == ["Mara"]
    assert await found(pinned=True) == ["Mara"]
    assert await found(pinned=False) == ["Tom", "It"]
    assert await found(min_significance=3) == ["Mara", "Tom"]
    assert await found(min_significance=4, q="mend") == []
    assert await found(chat_id=chat) == ["It"]
    assert await found(chat_id=str(uuid4())) == []
    assert await found(q="tom", limit=1, order="newest") == ["Tom"]


async def test_a_long_search_is_paged(writer: Chronicler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_search, "OPEN_BATCH_SIZE", 3)
    monkeypatch.setattr(event_search, "MAX_SEARCHED_EVENTS", 5)
    chronicle = await writer.new_chronicle()
    for place in range(11):
        day = f"2026-03-{place + 1:02}T00:00:00Z"
        await writer.new_event(
            chronicle, f"needle {place}" if place > 6 else "hay", happened_at=day
        )
    first = await writer.page(chronicle, q="needle")
    assert (first["items"], first["next"] is None) == ([], False)
    assert await _all_pages(writer, chronicle, limit=50, q="needle") == [
        f"needle {place}" for place in range(7, 11)
    ]
    assert await _all_pages(writer, chronicle, limit=1, q="needle", order="newest") == [
        f"needle {place}" for place in range(10, 6, -1)
    ]


async def test_a_superseded_event_is_not_current(writer: Chronicler) -> None:
    chronicle = await writer.new_chronicle()
    old = await writer.new_event(chronicle, "The lamp is lit.", kind="fact")
    new = await writer.new_event(chronicle, "The lamp is out.", kind="fact")
    changed = await writer.change(old, superseded_by=new["id"])
    assert (changed["superseded_by"], changed["is_current"]) == (new["id"], False)
    assert await writer.summaries(chronicle) == ["The lamp is out."]
    shown = (await writer.page(chronicle, current=False))["items"]
    assert [each["is_current"] for each in shown] == [False, True]
    assert (await writer.change(old, superseded_by=None))["is_current"] is True
    assert len(await writer.summaries(chronicle)) == 2


async def test_deleting_an_event_restores_the_one_it_superseded(writer: Chronicler) -> None:
    chronicle = await writer.new_chronicle()
    old, new = await writer.new_event(chronicle, "Lit."), await writer.new_event(chronicle, "Out.")
    await writer.change(old, superseded_by=new["id"])
    await writer.delete(f"/chronicles/{chronicle}/events/{new['id']}")
    shown = await writer.event(chronicle, old["id"])
    assert (shown["superseded_by"], shown["is_current"]) == (None, True)


async def test_no_event_supersedes_itself_directly_or_indirectly(writer: Chronicler) -> None:
    chronicle = await writer.new_chronicle()
    first, second, third = [await writer.new_event(chronicle, each) for each in "123"]
    await writer.change(first, superseded_by=second["id"])
    await writer.change(second, superseded_by=third["id"])
    for by in (third, second, first):
        path = f"/chronicles/{chronicle}/events/{third['id']}"
        answer = await writer.ask("PATCH", path, json={"superseded_by": by["id"]})
        problem(answer, 422, "validation-failed")
    assert await writer.summaries(chronicle) == ["3"]


async def test_only_own_events_supersede(writer: Chronicler, stranger: Chronicler) -> None:
    made = await writer.new_event(await writer.new_chronicle())
    elsewhere = await writer.new_event(await writer.new_chronicle())
    theirs = await stranger.new_event(await stranger.new_chronicle())
    path = f"/chronicles/{made['chronicle_id']}/events/{made['id']}"
    for by in (elsewhere["id"], theirs["id"], str(uuid4())):
        answer = await writer.ask("PATCH", path, json={"superseded_by": by})
        problem(answer, 422, "validation-failed")
    assert (await writer.event(made["chronicle_id"], made["id"]))["superseded_by"] is None


async def test_a_chronicle_has_a_maximum_of_pinned_events(
    writer: Chronicler, server: Running
) -> None:
    chronicle = await writer.new_chronicle()
    await _fill(server, writer, chronicle, MAX_PINNED - 1, is_pinned=True)
    loose = await writer.new_event(chronicle)
    last = await writer.new_event(chronicle, pinned=True)
    path = f"/chronicles/{chronicle}/events"
    body = {"summary": "One more.", "pinned": True}
    answer = await writer.ask("POST", path, json=body)
    assert problem(answer, 409, "chronicle-full")["allowed"] == MAX_PINNED
    answer = await writer.ask("PATCH", f"{path}/{loose['id']}", json={"pinned": True})
    problem(answer, 409, "chronicle-full")
    assert (await writer.change(last, summary="Said anew."))["pinned"] is True
    await writer.change(last, pinned=False)
    assert (await writer.change(loose, pinned=True))["pinned"] is True


async def test_a_chronicle_has_a_maximum_of_events(
    writer: Chronicler, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 200
    monkeypatch.setattr(repository, "MAX_EVENTS", most)
    chronicle = await writer.new_chronicle()
    await _fill(server, writer, chronicle, most - 1)
    await writer.new_event(chronicle, "The last one.")
    body = {"summary": "One more."}
    answer = await writer.ask("POST", f"/chronicles/{chronicle}/events", json=body)
    assert problem(answer, 409, "chronicle-full")["allowed"] == most
    assert (await writer.get(f"/chronicles/{chronicle}"))["event_count"] == most


async def test_foreign_events_are_not_found(writer: Chronicler, stranger: Chronicler) -> None:
    chronicle = await writer.new_chronicle()
    made, second = await writer.new_event(chronicle), await writer.new_event(chronicle)
    events = f"/chronicles/{chronicle}/events"
    body: dict[str, Any] = {"summary": "Mine."}
    for method, path, sent, slug in (
        ("GET", events, None, "chronicle-not-found"),
        ("POST", events, body, "chronicle-not-found"),
        (
            "POST",
            f"{events}/merge",
            {"event_ids": [made["id"], second["id"]]},
            "chronicle-not-found",
        ),
        ("GET", f"{events}/{made['id']}", None, "event-not-found"),
        ("PATCH", f"{events}/{made['id']}", body, "chronicle-not-found"),
        ("DELETE", f"{events}/{made['id']}", None, "chronicle-not-found"),
    ):
        problem(await stranger.ask(method, path, json=sent), 404, slug)
    own = await stranger.new_chronicle()
    beside = f"/chronicles/{own}/events/{made['id']}"
    for method, sent in (("GET", None), ("PATCH", body), ("DELETE", None)):
        problem(await stranger.ask(method, beside, json=sent), 404, "event-not-found")
    assert (await writer.page(chronicle))["items"] == [made, second]


@pytest.mark.every_database
async def test_the_index_is_told_of_every_change(idle: Running) -> None:
    async with idle.account() as account:
        writer = Chronicler(account)
        chronicle = await writer.new_chronicle()
        first, second, third = [await writer.new_event(chronicle, each) for each in "123"]
        assert await _take_index_changes(idle) == [first["id"], second["id"], third["id"]]
        await writer.change(second, pinned=True)
        assert await _take_index_changes(idle) == [second["id"]]
        await writer.change(second, pinned=True)
        assert await _take_index_changes(idle) == []
        await writer.delete(f"/chronicles/{chronicle}/events/{third['id']}")
        assert await _take_index_changes(idle) == [third["id"]]
        made = await writer.post(
            f"/chronicles/{chronicle}/events/merge", event_ids=[first["id"], second["id"]]
        )
        assert sorted(await _take_index_changes(idle)) == sorted(
            [first["id"], second["id"], made["id"]]
        )


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.every_database
async def test_lists_are_read_from_an_index(
    writer: Chronicler, server: Running, order: str
) -> None:
    chronicle, database = await writer.new_chronicle(), server.parts.database
    for day in ("03-01", "03-02", "03-03", "05-01", "05-02", "05-03"):
        await writer.new_event(chronicle, happened_at=f"2026-{day}T00:00:00Z")
    between = datetime(2026, 4, 1, tzinfo=UTC)
    await _fill(server, writer, chronicle, 3_000, happened_at=between)
    async with database.write() as session:
        await session.execute(text("ANALYZE"))
    follows = (await writer.page(chronicle, limit=1, order=order))["next"]
    with record_statements() as statements:
        assert await writer.summaries(chronicle, limit=1, after=follows, order=order)
    [(statement, values)] = [
        each for each in statements if "sealed_event" in each.text and "LIMIT" in each.text
    ]
    async with database.write() as session:
        connection = await session.connection()
        explain = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
        plan = await connection.exec_driver_sql(explain + statement, values)
        lines = "\n".join(str(row) for row in plan)
    assert "ix_chronicle_events_chronicle_id_happened_at_place_id" in lines
    assert "TEMP B-TREE" not in lines
    assert "Sort" not in lines


async def _all_pages(writer: Chronicler, chronicle_id: str, **query: Any) -> list[str]:
    found: list[str] = []
    while True:
        page = await writer.page(chronicle_id, **query)
        assert len(page["items"]) <= query["limit"]
        found += [each["summary"] for each in page["items"]]
        if page["next"] is None:
            return found
        query["after"] = page["next"]


async def _fill(
    server: Running, writer: Chronicler, chronicle_id: str, count: int, **values: Any
) -> None:
    """Add events without readable text to a chronicle."""
    rows = [
        {
            "id": new_id(),
            "user_id": UUID(writer.account.user["id"]),
            "chronicle_id": UUID(chronicle_id),
            "source": "user",
            "significance": 3,
            "happened_at": now(),
            "sealed_event": b"",
            **values,
        }
        for _ in range(count)
    ]
    async with server.parts.database.write() as session:
        await session.execute(insert(ChronicleEvent), rows)


async def _take_index_changes(server: Running) -> list[str]:
    """Return and delete the queued index changes."""
    async with server.parts.database.write() as session:
        rows = (await session.scalars(select(IndexChange).order_by(IndexChange.id))).all()
        for row in rows:
            assert row.kind == "event"
            await session.delete(row)
    return [str(row.source_id) for row in rows]


@pytest.fixture
async def chronicle(writer: Chronicler) -> str:
    return await writer.new_chronicle()


async def test_merged_events_keep_all_texts(writer: Chronicler, chat: str, chronicle: str) -> None:
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


async def test_given_fields_replace_merged_ones(writer: Chronicler, chronicle: str) -> None:
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


async def test_the_merged_event_supersedes_as_both_did(writer: Chronicler, chronicle: str) -> None:
    old, first, second = [await writer.new_event(chronicle, each) for each in ("Old.", "1", "2")]
    await writer.change(old, superseded_by=first["id"])
    await writer.change(first, superseded_by=second["id"])
    made = await _merge(writer, chronicle, first, second)
    assert made["superseded_by"] is None
    assert (await writer.event(chronicle, old["id"]))["superseded_by"] == made["id"]
    assert await writer.summaries(chronicle) == ["1\n2"]


@pytest.mark.every_database
async def test_a_merged_event_is_superseded_as_both_were(
    writer: Chronicler, chronicle: str
) -> None:
    first, second, new = [await writer.new_event(chronicle, each) for each in ("1", "2", "New.")]
    await writer.change(first, superseded_by=second["id"])
    await writer.change(second, superseded_by=new["id"])
    made = await _merge(writer, chronicle, first, second)
    assert (made["superseded_by"], made["is_current"]) == (new["id"], False)


async def test_a_merged_event_never_supersedes_itself(writer: Chronicler, chronicle: str) -> None:
    first, between, last, new = [await writer.new_event(chronicle, each) for each in "1234"]
    await writer.change(last, superseded_by=between["id"])
    await writer.change(between, superseded_by=first["id"])
    await writer.change(first, superseded_by=new["id"])
    made = await _merge(writer, chronicle, first, last)
    assert made["superseded_by"] == new["id"]
    assert (await writer.event(chronicle, between["id"]))["superseded_by"] == made["id"]
    assert await writer.summaries(chronicle) == ["4"]


async def test_an_event_that_would_be_too_long_is_not_merged(
    writer: Chronicler, chronicle: str
) -> None:
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
async def test_invalid_fields_of_a_merge_are_refused(
    writer: Chronicler, chronicle: str, event: dict[str, Any]
) -> None:
    made = [await writer.new_event(chronicle, each) for each in "12"]
    body = {"event_ids": [each["id"] for each in made], "event": event}
    answer = await writer.ask("POST", f"/chronicles/{chronicle}/events/merge", json=body)
    problem(answer, 422, "validation-failed")
    assert (await writer.page(chronicle))["items"] == made


async def test_two_to_twenty_own_events_are_merged(
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


async def test_inactive_events_are_not_merged(
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
