"""Rebuilding a chronicle from a chat: replacements, estimates and interruptions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import select

from backend.accounts.models import USER_SETTINGS, User
from backend.accounts.profile.settings import EnrichmentSettings, UserSettings
from backend.database.base import now
from backend.enrichment.models import EnrichmentRun
from backend.enrichment.outbox import REBUILD
from backend.enrichment.runtime import job_kinds
from backend.enrichment.tasks.rebuild import RebuildTask
from backend.jobs.keys import JobKeys
from backend.jobs.models import Job
from backend.jobs.running import JobKind
from backend.jobs.worker import Worker
from tests.fakes.openai_server import MODEL_ID, reply, usage
from tests.fakes.scripted_server import Answer
from tests.integration.turns.seeding import identity_of
from tests.support.memory import settled
from tests.support.server import ROOT, problem
from tests.support.studying import (
    FINISH,
    Call,
    Hold,
    Study,
    Vendor,
    enrichment,
    entry,
    event,
    studying,
    vendor,
)
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LINES = 58
"""Three batches with the greeting: 24, 24 and 11 lines."""


@pytest.fixture
async def model() -> AsyncGenerator[Vendor]:
    async with vendor("openai") as model:
        yield model


@pytest.fixture
async def study(database_url: str, tmp_path: Path, model: Vendor) -> AsyncGenerator[Study]:
    async with studying(database_url, tmp_path, model) as study:
        yield study


@contextlib.asynccontextmanager
async def rebuilder(study: Study, kind: JobKind | None = None) -> AsyncGenerator[Worker]:
    """Yield a worker for rebuilds."""
    parts = study.server.parts
    # The longest wait after a failure, so that a test sees it before the next attempt.
    own = job_kinds(replace(enrichment(study.server), draw=lambda: 0.999))
    kinds = {REBUILD: kind or own[REBUILD]}
    worker = Worker(parts.queue, kinds, JobKeys(ROOT), poll=0.05)
    worker.start()
    try:
        yield worker
    finally:
        await worker.aclose()


def rebuild_path(study: Study) -> str:
    return f"/chronicles/{study.chronicle_id}/rebuild"


async def start(study: Study, **body: Any) -> dict[str, Any]:
    wanted = {"chat_id": study.chat_id, **body}
    return await study.account.post(rebuild_path(study), wanted, 202)


async def latest(study: Study) -> dict[str, Any]:
    return await study.account.get(rebuild_path(study))


async def wait_for_end(study: Study) -> dict[str, Any]:
    """Wait until the job has ended; return it."""

    async def ended() -> dict[str, Any] | None:
        job = await latest(study)
        return job if job["state"] in {"done", "dead"} else None

    found: dict[str, Any] = await until(ended)
    return found


async def wait_for_postponement(study: Study) -> dict[str, Any]:
    """Wait until the job is postponed; return it."""

    async def waits() -> dict[str, Any] | None:
        async with study.server.parts.database.read() as session:
            row = await session.scalar(select(Job).where(Job.kind == REBUILD))
        is_later = row is not None and row.state == "queued" and row.run_after > now()
        return await latest(study) if is_later else None

    found: dict[str, Any] = await until(waits)
    return found


async def try_again(study: Study) -> None:
    parts = study.server.parts
    async with parts.database.write() as session:
        for job in await session.scalars(select(Job).where(Job.kind == REBUILD)):
            job.run_after = now()
    parts.queue.wake()


def found(model: Vendor, *calls: Call) -> list[Answer]:
    """Return the answers for a batch with these calls."""
    return [model.decides(), model.calls(*calls, FINISH)]


async def long_story(study: Study) -> None:
    """Add three batches of lines with one event of the agent in each."""
    model = study.model
    await study.tell(*(f"Line {number} of the story." for number in range(1, LINES + 1)))
    model.script(
        *found(model, event("The lamp of Morrow was lit.", "#10")),
        *found(model, event("Mara sold the boat.", "#30")),
        *found(model, event("The harbour burned down.", "#53")),
    )
    await study.read()
    assert await study.summaries() == [
        "The lamp of Morrow was lit.",
        "Mara sold the boat.",
        "The harbour burned down.",
    ]


def anew(model: Vendor) -> list[Answer]:
    """Return answers with other events for the same lines."""
    return [
        *found(model, event("The lamp of Morrow was lit.", "#12")),
        *found(model, event("Mara gave the boat to Ben.", "#32")),
        *found(model, event("The harbour of Morrow burned down.", "#54")),
    ]


async def runs(study: Study) -> list[tuple[str, str]]:
    """Return state and error of the rebuild runs, in order."""
    query = select(EnrichmentRun.state, EnrichmentRun.error).where(EnrichmentRun.kind == "rebuild")
    async with study.server.parts.database.read() as session:
        rows = await session.execute(query.order_by(EnrichmentRun.id))
    return [(row.state, row.error or "") for row in rows]


async def test_events_of_the_agent_are_replaced(study: Study) -> None:
    await long_story(study)
    _, boat, _ = await study.events()
    events = f"/chronicles/{study.chronicle_id}/events"
    account = study.account
    await account.patch(f"{events}/{boat.id}", {"summary": "Mara sold her old boat."})
    own = {"summary": "Winter came.", "source_message_ids": [str(boat.sources[0].id)]}
    await account.post(events, own, 201)
    study.model.script(*anew(study.model))
    job = await start(study)
    assert (job["kind"], job["state"]) == (REBUILD, "queued")
    assert job["progress"] == {"done": 0, "total": LINES + 1}
    async with rebuilder(study):
        ended = await wait_for_end(study)
    assert (ended["state"], ended["error"]) == ("done", None)
    assert ended["progress"] == {"done": LINES + 1, "total": LINES + 1}
    assert ended["counts"] == {"events": 3, "entries": 0, "replaced": 2}
    assert await study.summaries() == [
        "The lamp of Morrow was lit.",
        "Mara sold her old boat.",
        "Winter came.",
        "Mara gave the boat to Ben.",
        "The harbour of Morrow burned down.",
    ]
    assert [each.place for each in await study.events()] == [11, 29, 29, 31, 53]
    assert await runs(study) == [("done", "")] * 3
    # Marks of the rebuild and of the agent, which did not read lines before consent.
    assert await study.marks() == [22, 23, 24, 46, 47, 48, 56, 58]


async def test_undoing_a_rebuild_restores_the_replaced_events(study: Study) -> None:
    await long_story(study)
    before = [(each.id, each.fields, each.sources) for each in await study.events()]
    study.model.script(*anew(study.model))
    await start(study)
    async with rebuilder(study):
        await wait_for_end(study)
    account = study.account
    listed = (await account.get(f"/chats/{study.chat_id}/enrichment"))["items"]
    turns = [run for run in listed if run["kind"] == "turn"]
    undo = "/enrichment/runs/{}/undo"
    # Replaced events cannot be undone.
    answer = problem(await account.ask("POST", undo.format(turns[0]["id"])), 409, "run-replaced")
    rebuilds = [run for run in listed if run["kind"] == "rebuild"]
    assert answer["run_id"] == rebuilds[0]["id"]
    for run in rebuilds:
        assert (await account.post(undo.format(run["id"])))["kept"] == []
    assert [(each.id, each.fields, each.sources) for each in await study.events()] == before
    for run in turns:
        assert (await account.post(undo.format(run["id"])))["kept"] == []
    assert await study.events() == []


async def test_a_dry_run_estimates_without_asking_the_model(study: Study) -> None:
    await long_story(study)
    asked = len(study.model.server.requests)
    account = study.account
    body = {"chat_id": study.chat_id}
    estimate = await account.post(rebuild_path(study), body, dry_run="true")
    assert (estimate["messages"], estimate["batches"]) == (LINES + 1, 3)
    assert (estimate["events_to_replace"], estimate["entries_to_replace"]) == (3, 0)
    assert estimate["calls"] == {"least": 3, "most": 18}
    assert estimate["model"] == MODEL_ID
    assert 0 < estimate["prompt_tokens"]["least"] < estimate["prompt_tokens"]["most"]
    assert 0 < estimate["completion_tokens"]["least"] < estimate["completion_tokens"]["most"]
    part = {**body, "from_position": 24, "to_position": 43}
    half = await account.post(rebuild_path(study), part, dry_run="true")
    assert (half["messages"], half["batches"], half["events_to_replace"]) == (20, 1, 1)
    assert len(study.model.server.requests) == asked
    problem(await account.ask("GET", rebuild_path(study)), 404, "rebuild-not-found")
    assert len(await study.events()) == 3
    # The sent prompts have about the estimated length.
    study.model.script(*(study.model.decides(significant=False) for _ in range(3)))
    await start(study)
    async with rebuilder(study):
        await wait_for_end(study)
    sent = study.model.server.requests[asked:]
    assert len(sent) == estimate["calls"]["least"]
    characters = sum(len(study.model.prompt_of(each)) for each in sent)
    assert 0.5 < estimate["prompt_tokens"]["least"] / (characters / 4) < 2


async def test_events_outside_the_range_are_kept(study: Study) -> None:
    await long_story(study)
    study.model.script(*found(study.model, event("Mara gave the boat to Ben.", "#32")))
    await start(study, from_position=24, to_position=46)
    async with rebuilder(study):
        ended = await wait_for_end(study)
    assert ended["progress"] == {"done": 23, "total": 23}
    assert await study.summaries() == [
        "The lamp of Morrow was lit.",
        "Mara gave the boat to Ben.",
        "The harbour burned down.",
    ]


async def test_an_invalid_rebuild_is_refused_with_its_reason(study: Study) -> None:
    await study.tell("I light the lamp.", "The lamp shines.")
    account, path = study.account, rebuild_path(study)
    body = {"chat_id": study.chat_id}
    await start(study)
    again = problem(await account.ask("POST", path, json=body), 409, "rebuild-under-way")
    assert again["job_id"] == (await latest(study))["id"]
    problem(
        await account.ask("POST", path, json={**body, "from_position": 5, "to_position": 4}),
        422,
        "validation-failed",
    )
    problem(await account.ask("POST", path, json={**body, "text": "x"}), 422, "validation-failed")
    other = await account.post("/chronicles", {"name": "Another one"}, 201)
    problem(
        await account.ask("POST", f"/chronicles/{other['id']}/rebuild", json=body),
        422,
        "chat-has-other-chronicle",
    )
    await study.settings(chronicle_enabled=False)
    for query in ({}, {"dry_run": "true"}):
        answer = await account.ask("POST", path, json=body, params=query)
        problem(answer, 409, "chronicle-not-enabled")
    assert study.model.server.requests == []


async def test_a_stopped_rebuild_keeps_finished_batches(study: Study) -> None:
    await long_story(study)
    study.model.script(*anew(study.model))
    job = await start(study)
    hold = study.model.server.hold = Hold(after=2)
    async with rebuilder(study) as worker:
        await hold.is_reached.wait()
        stopped = await study.account.post(f"/jobs/{job['id']}/stop", status=202)
        study.model.server.hold = None
        hold.is_opened.set()

        async def has_let_go() -> bool:
            return not worker.is_busy

        await until(has_let_go)
    assert (stopped["state"], stopped["error"]) == ("done", "stopped")
    assert stopped == await latest(study)
    assert stopped["progress"] == {"done": 24, "total": LINES + 1}
    assert stopped["counts"]["events"] == 1
    assert await runs(study) == [("done", "")]
    assert [each.place for each in await study.events()] == [11, 29, 52]
    # It can be started again.
    await start(study)


class Stuck(RebuildTask):
    """Hangs within the transaction of its second batch."""

    is_inside: ClassVar[asyncio.Event]
    batches = 0

    async def _store_progress(self, *args: Any, **options: Any) -> None:
        await super()._store_progress(*args, **options)
        self.batches += 1
        if self.batches == 2:
            self.is_inside.set()
            await asyncio.Event().wait()


def stuck(study: Study) -> JobKind:
    Stuck.is_inside = asyncio.Event()
    runtime = enrichment(study.server)
    return JobKind(lambda job: Stuck(runtime, job).run(), keep=True, stoppable=True)


async def test_a_killed_rebuild_resumes_at_its_batch(study: Study) -> None:
    await long_story(study)
    first, second, third = (anew(study.model)[at : at + 2] for at in (0, 2, 4))
    study.model.script(*first, *second, *second, *third)
    await start(study)
    async with rebuilder(study, stuck(study)) as worker:
        await Stuck.is_inside.wait()
        await worker.kill()
    assert await runs(study) == [("done", "")]
    assert (await latest(study))["progress"]["done"] == 24
    await study.server.parts.processes.start()
    async with rebuilder(study):
        ended = await wait_for_end(study)
    assert ended["counts"] == {"events": 3, "entries": 0, "replaced": 3}
    assert await runs(study) == [("done", "")] * 3
    assert await study.summaries() == [
        "The lamp of Morrow was lit.",
        "Mara gave the boat to Ben.",
        "The harbour of Morrow burned down.",
    ]


async def test_lines_that_change_meanwhile_are_read_again(study: Study) -> None:
    model = study.model
    *_, last = await study.tell("I light the lamp.", "The lamp shines.", "I go.", "A wolf bites.")
    model.script(
        *found(model, event("A wolf bit Ada.", "#5")),
        *found(model, event("The lamp was lit.", "#3")),
    )
    await start(study)
    async with model.thinking() as hold, rebuilder(study) as worker:
        await hold.is_reached.wait()
        path = f"/messages/{last.id}"
        await study.account.delete(path, 200)
        model.server.hold = None
        hold.is_opened.set()
        await wait_for_end(study)
        assert not worker.is_busy
    assert await study.summaries() == ["The lamp was lit."]
    assert await runs(study) == [("failed", "path-changed"), ("done", "")]
    assert "wolf" not in model.prompt_of(model.server.requests[-1])


async def test_withdrawn_consent_ends_a_rebuild(study: Study) -> None:
    await long_story(study)
    asked = len(study.model.server.requests)
    study.model.script(*anew(study.model))
    await start(study)
    hold = study.model.server.hold = Hold(after=2)
    async with rebuilder(study):
        await hold.is_reached.wait()
        await study.settings(chronicle_enabled=False)
        await study.model.server.hung_up.wait()
        study.model.server.hold = None
        ended = await wait_for_end(study)
    assert ended["progress"] == {"done": 24, "total": LINES + 1}
    assert (ended["state"], ended["error"]) == ("done", "chronicle-not-enabled")
    # Two requests for the first batch, and one for the second.
    assert len(study.model.server.requests) - asked == 3
    assert [state for state, _ in await runs(study)] == ["done"]
    assert [each.place for each in await study.events()] == [11, 29, 52]


async def test_an_unknown_model_ends_a_rebuild(study: Study) -> None:
    await long_story(study)
    asked = len(study.model.server.requests)
    await start(study)
    identity = await identity_of(study.server, study.account)
    chosen = UserSettings(enrichment=EnrichmentSettings(model="gone/model"))
    async with study.server.parts.database.write() as session:
        user = await session.get_one(User, identity.user_id)
        user.sealed_settings = identity.sealer.seal_bytes(
            USER_SETTINGS, user.id, msgspec.json.encode(chosen)
        )
    async with rebuilder(study):
        ended = await wait_for_end(study)
    assert (ended["state"], ended["error"]) == ("done", "unknown-model")
    assert await runs(study) == [("failed", "unknown-model")]
    assert len(study.model.server.requests) == asked


async def test_it_waits_for_daily_tokens(sqlite_url: str, tmp_path: Path, model: Vendor) -> None:
    async with studying(sqlite_url, tmp_path, model, enrichment_tokens_per_day=30_000) as study:
        await long_story(study)
        call = event("The lamp of Morrow was lit.", "#12")
        model.script(model.decides(), model.calls(call, FINISH, used=(29_000, 900)))
        await start(study)
        async with rebuilder(study):
            waiting = await wait_for_postponement(study)
        assert waiting["progress"]["done"] == 24
        assert waiting["attempts"] == 0
        assert await runs(study) == [("done", "")]


async def test_a_failed_batch_is_retried_without_an_attempt(study: Study) -> None:
    model = study.model
    await long_story(study)
    first, second, third = (anew(model)[at : at + 2] for at in (0, 2, 4))
    model.script(*first, model.fails(503), *second, *third)
    await start(study)
    async with rebuilder(study):
        waiting = await wait_for_postponement(study)
        assert (waiting["attempts"], waiting["progress"]["done"]) == (0, 24)
        await try_again(study)
        ended = await wait_for_end(study)
    assert ended["counts"]["events"] == 3
    assert await runs(study) == [
        ("done", ""),
        ("failed", "model-overloaded"),
        ("done", ""),
        ("done", ""),
    ]


@pytest.mark.parametrize("problem", ["model-blocked", "model-malformed-answer"])
async def test_batches_without_an_answer_are_skipped(study: Study, problem: str) -> None:
    model = study.model
    await long_story(study)
    refused = reply("", finish="content_filter", used=usage(50, 0))
    bad = refused if problem == "model-blocked" else model.says("Certainly!")
    model.script(bad, bad, bad, *anew(model)[2:])
    await start(study)
    async with rebuilder(study):
        for _ in range(2):
            await wait_for_postponement(study)
            await try_again(study)
        ended = await wait_for_end(study)
    assert ended["progress"] == {"done": LINES + 1, "total": LINES + 1}
    # Earlier events of the agent stay there, without new marks.
    assert [each.place for each in await study.events()] == [9, 31, 53]
    assert await runs(study) == [("failed", problem), ("done", ""), ("done", "")]
    assert await study.marks() == [22, 24, 46, 47, 48, 56, 58]


async def entries(study: Study) -> dict[str, dict[str, Any]]:
    """Return the entries of the chronicle's lorebook by title."""
    account = study.account
    books = (await account.get("/lorebooks"))["items"]
    [own] = [each for each in books if each.get("chronicle_id") == str(study.chronicle_id)]
    items = (await account.get(f"/lorebooks/{own['id']}/entries"))["items"]
    return {each["title"]: {**each, "lorebook_id": own["id"]} for each in items}


async def test_only_unchanged_entries_of_the_agent_are_replaced(study: Study) -> None:
    model, account = study.model, study.account
    await study.tell("I sail to Morrow on the Gull.", "Morrow lies in the north, says the Gull.")
    model.script(
        *found(model, entry("Morrow", "A harbour."), entry("Gull", "A ship."), event("X sailed."))
    )
    await study.read()
    await settled(study.server)
    gull = (await entries(study))["Gull"]
    path = f"/lorebooks/{gull['lorebook_id']}/entries/{gull['id']}"
    await account.patch(path, {"content": "A fast ship."})
    model.script(
        *found(model, entry("Morrow", "A harbour in the north."), entry("Gull", "Some ship."))
    )
    await start(study)
    async with rebuilder(study):
        ended = await wait_for_end(study)
    assert ended["counts"] == {"events": 0, "entries": 1, "replaced": 2}
    now_there = {title: each["content"] for title, each in (await entries(study)).items()}
    assert now_there == {"Morrow": "A harbour in the north.", "Gull": "A fast ship."}
    [run] = [
        each
        for each in (await account.get(f"/chats/{study.chat_id}/enrichment"))["items"]
        if each["kind"] == "rebuild"
    ]
    assert (await account.post(f"/enrichment/runs/{run['id']}/undo"))["kept"] == []
    back = {title: each["content"] for title, each in (await entries(study)).items()}
    assert back == {"Morrow": "A harbour.", "Gull": "A fast ship."}


async def test_other_branches_and_other_chats_keep_their_events(study: Study) -> None:
    model, account = study.model, study.account
    *_, last = await study.tell("I light the lamp.", "The lamp shines.")
    model.script(*found(model, event("The lamp was lit.", "#3")))
    await study.read()
    path = f"/messages/{last.id}"
    await account.delete(path, 200)
    assert await study.summaries() == []
    await study.tell("The lamp is broken.")
    # Another chat with the same chronicle.
    character = await study.account.new_character()
    other = await study.account.new_chat(character_ids=[character["id"]])
    settings = {"chronicle_enabled": True, "chronicle_id": str(study.chronicle_id)}
    await account.patch(f"/chats/{other['id']}/settings", settings)
    first, study.chat_id = study.chat_id, other["id"]
    await study.tell("I sail.", "You sail to Morrow.")
    model.script(*found(model, event("Ada sailed to Morrow.", "#3")))
    await study.read()
    study.chat_id = first
    model.script(*found(model, event("The lamp broke.", "#3")))
    await start(study)
    async with rebuilder(study):
        await wait_for_end(study)
    assert sorted(await study.summaries()) == ["Ada sailed to Morrow.", "The lamp broke."]
    page = await account.get(f"/chronicles/{study.chronicle_id}/events", current="false")
    assert "The lamp was lit." in {each["summary"] for each in page["items"]}


async def test_a_sealed_account_waits_for_its_user(study: Study) -> None:
    await study.tell("I light the lamp.", "The lamp shines.")
    await study.account.patch("/me", {"key_mode": "sealed"})
    job = await start(study)
    assert job["state"] == "waiting_key"
    async with study.server.parts.database.read() as session:
        row = await session.get_one(Job, UUID(job["id"]))
    assert row.wrapped_key is None
    assert "lamp" not in row.payload
