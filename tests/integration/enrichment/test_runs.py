"""What people see of the work behind the reply, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sqlalchemy import update

from backend.enrichment.outbox import TURN
from backend.jobs.models import Job
from tests.fakes.openai_server import MODEL_ID
from tests.support.server import problem
from tests.support.studying import FINISH, Study, Vendor, entry, event, studying, vendor

pytestmark = pytest.mark.anyio


@pytest.fixture
async def model() -> AsyncGenerator[Vendor]:
    async with vendor("openai") as model:
        yield model


@pytest.fixture
async def study(database_url: str, tmp_path: Path, model: Vendor) -> AsyncGenerator[Study]:
    async with studying(database_url, tmp_path, model) as study:
        yield study


async def test_a_run_tells_what_it_read_wrote_was_refused_and_took(
    study: Study, model: Vendor
) -> None:
    path = f"/chats/{study.chat_id}/enrichment"
    lines = await study.tell("I light the lamp.", "The lamp of Morrow shines.")
    before = await study.account.get(path)
    assert (before["enabled"], before["pending"], before["items"]) == (True, 2, [])
    assert (before["chronicle_id"], before["model"]) == (str(study.chronicle_id), MODEL_ID)
    assert (before["tokens_today"], before["tokens_per_day"]) == (0, 2_000_000)
    model.script(
        model.decides(why="A lamp was lit."),
        model.calls(
            event("The lamp of Morrow was lit.", "#2", "#3"),
            event("The lamp of Morrow was lit.", "#3"),
            entry("Lamp of Morrow", "A lamp on the harbour.", because="It has a name."),
            FINISH,
        ),
    )
    await study.read()
    after = await study.account.get(path)
    assert (after["pending"], after["job"], after["tokens_today"]) == (0, None, 330)
    [run] = after["items"]
    assert run == (await study.account.get(f"/enrichment/runs/{run['id']}"))
    assert (run["kind"], run["state"], run["model"], run["error"]) == (
        "turn",
        "done",
        MODEL_ID,
        None,
    )
    assert (run["why"], run["significant"], run["kinds"]) == ("A lamp was lit.", True, ["event"])
    assert (run["from_position"], run["to_position"]) == (1, 2)
    assert run["message_ids"] == [str(line.id) for line in lines]
    assert (run["calls"], run["prompt_tokens"], run["completion_tokens"]) == (2, 300, 30)
    [made] = await study.events()
    written = [(each["what"], each["title"], each["because"]) for each in run["written"]]
    assert written == [
        ("event_created", "The lamp of Morrow was lit.", ""),
        ("entry_created", "Lamp of Morrow", "It has a name."),
    ]
    assert (run["written"][0]["id"], run["written"][0]["container_id"]) == (
        str(made.id),
        str(study.chronicle_id),
    )
    [refused] = run["refused"]
    assert refused["tool"] == "create_chronicle_event"
    assert "duplicate" in refused["reason"]
    assert (run["can_undo"], run["undone_at"]) == (True, None)
    # What is shown is what is stored sealed.
    [(row, _)] = await study.runs()
    assert b"Morrow" not in (row.sealed_detail or b"")
    assert "Morrow" not in json.dumps([str(row.error), str(row.model)])


async def test_what_waits_and_what_failed_are_told(study: Study, model: Vendor) -> None:
    path = f"/chats/{study.chat_id}/enrichment"
    await study.tell("I light the lamp.", "The lamp shines.")
    model.script(model.fails(503))
    await study.enqueue()
    await study.idle()
    view = await study.account.get(path)
    assert (view["pending"], view["job"]["kind"], view["job"]["state"]) == (
        2,
        "enrichment.turn",
        "queued",
    )
    [run] = view["items"]
    assert (run["state"], run["can_undo"], run["written"]) == ("failed", False, [])
    assert (run["error"], run["problem"]["title"]) == (
        "model-overloaded",
        "The provider is overloaded",
    )
    problem(
        await study.account.ask("POST", f"/enrichment/runs/{run['id']}/undo"),
        409,
        "nothing-to-undo",
    )


@pytest.mark.every_database
async def test_a_job_that_gave_up_is_shown_while_lines_wait(study: Study, model: Vendor) -> None:
    path = f"/chats/{study.chat_id}/enrichment"
    await study.tell("I light the lamp.", "The lamp shines.")
    model.script(model.fails(401))
    await study.read()
    async with study.server.parts.database.write() as session:
        await session.execute(update(Job).where(Job.kind == TURN).values(state="dead"))
    view = await study.account.get(path)
    assert (view["pending"], view["job"]["state"], view["job"]["error"]) == (
        2,
        "dead",
        "model-key-refused",
    )
    assert view["items"][0]["error"] == "model-key-refused"
    model.script(model.decides(significant=False))
    await study.read()
    view = await study.account.get(path)
    assert (view["pending"], view["job"]) == (0, None)


@pytest.mark.every_database
async def test_runs_are_listed_newest_first_page_by_page(study: Study, model: Vendor) -> None:
    path = f"/chats/{study.chat_id}/enrichment"
    for number in range(3):
        await study.tell(f"Round {number}.", "On we go.")
        model.script(model.decides(significant=False, why=f"Nothing in round {number}."))
        await study.read()
    first = await study.account.get(path, limit=2)
    assert [run["why"][-2:] for run in first["items"]] == ["2.", "1."]
    assert [run["can_undo"] for run in first["items"]] == [False, False]
    rest = await study.account.get(path, limit=2, after=first["next"])
    assert ([run["why"][-2:] for run in rest["items"]], rest["next"]) == (["0."], None)
    problem(await study.account.ask("GET", path, params={"limit": 0}), 422, "validation-failed")
    run_id = rest["items"][0]["id"]
    problem(
        await study.account.ask("POST", f"/enrichment/runs/{run_id}/undo"),
        409,
        "nothing-to-undo",
    )


async def test_without_consent_nothing_waits(study: Study) -> None:
    await study.settings(chronicle_enabled=False)
    await study.tell("I light the lamp.", "The lamp shines.")
    view = await study.account.get(f"/chats/{study.chat_id}/enrichment")
    assert (view["enabled"], view["pending"], view["job"]) == (False, 0, None)
