"""Runs of background work: their views, and undoing them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from backend.chats.models import Message
from backend.database.base import new_id
from backend.enrichment.models import ChatSummary, EnrichmentRun
from backend.enrichment.outbox import TURN
from backend.enrichment.runs.store import RunDetail, seal_detail
from backend.enrichment.summaries.store import store_summary
from backend.jobs.models import Job
from tests.fakes.openai_server import MODEL_ID
from tests.integration.turns.seeding import identity_of
from tests.support.memory import points_of, rows_of, settled
from tests.support.server import problem
from tests.support.studying import (
    FINISH,
    Call,
    Study,
    Vendor,
    entry,
    event,
    model,
    server,
    study,
    studying,
)

__all__ = ["model", "server", "study"]

pytestmark = pytest.mark.anyio


async def test_a_run_shows_its_input_results_and_costs(study: Study, model: Vendor) -> None:
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
    # The details are stored sealed.
    [(row, _)] = await study.runs()
    assert b"Morrow" not in (row.sealed_detail or b"")
    assert "Morrow" not in json.dumps([str(row.error), str(row.model)])


async def test_waiting_lines_and_failures_are_shown(study: Study, model: Vendor) -> None:
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
async def test_a_dead_job_is_shown_while_lines_wait(study: Study, model: Vendor) -> None:
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
        await study.account.ask("POST", f"/enrichment/runs/{run_id}/undo"), 409, "nothing-to-undo"
    )


async def test_without_consent_nothing_waits(study: Study) -> None:
    await study.settings(chronicle_enabled=False)
    await study.tell("I light the lamp.", "The lamp shines.")
    view = await study.account.get(f"/chats/{study.chat_id}/enrichment")
    assert (view["enabled"], view["pending"], view["job"]) == (False, 0, None)


async def run_agent(study: Study, *calls: Call, said: str = "So it goes.") -> str:
    """Add two lines and run the agent with these calls; return the id of the run."""
    known = {run.id for run, _ in await study.runs()}
    await study.tell("I do it.", said)
    study.model.script(study.model.decides(), study.model.calls(*calls, FINISH))
    await study.read()
    [made] = [run for run, _ in await study.runs() if run.id not in known]
    assert made.state == "done"
    return str(made.id)


async def undo(study: Study, run_id: str, **query: Any) -> dict[str, Any]:
    return await study.account.post(f"/enrichment/runs/{run_id}/undo", **query)


async def read_events(study: Study, **query: Any) -> list[dict[str, Any]]:
    path = f"/chronicles/{study.chronicle_id}/events"
    items: list[dict[str, Any]] = (await study.account.get(path, **query))["items"]
    return items


async def change_event(study: Study, event_id: str, **changes: Any) -> None:
    path = f"/chronicles/{study.chronicle_id}/events/{event_id}"
    await study.account.patch(path, changes)


async def read_entries(study: Study) -> list[dict[str, Any]]:
    """Return the entries of the chronicle's lorebook."""
    books = (await study.account.get("/lorebooks"))["items"]
    [own] = [each for each in books if each.get("chronicle_id") == str(study.chronicle_id)]
    items: list[dict[str, Any]] = (await study.account.get(f"/lorebooks/{own['id']}/entries"))[
        "items"
    ]
    return items


async def change_entry(study: Study, found: dict[str, Any], **changes: Any) -> None:
    path = f"/lorebooks/{found['lorebook_id']}/entries/{found['id']}"
    await study.account.patch(path, changes)


@pytest.mark.every_database
async def test_undoing_a_run_removes_all_its_results(study: Study) -> None:
    run_id = await run_agent(
        study,
        event("The lamp was lit."),
        event("Mara promised to stay."),
        entry("Morrow", "A harbour town."),
    )
    await settled(study.server)
    assert len(await read_events(study)) == 2
    answer = await undo(study, run_id)
    assert sorted(each["what"] for each in answer["undone"]) == [
        "entry_created",
        "event_created",
        "event_created",
    ]
    assert answer["kept"] == []
    assert await read_events(study) == []
    assert await read_entries(study) == []
    run = await study.account.get(f"/enrichment/runs/{run_id}")
    assert (run["state"], run["can_undo"], len(run["written"])) == ("undone", False, 3)
    assert run["undone_at"] is not None
    # The lines stay marked as read, and the index is updated.
    assert await study.marks() == [2]
    await settled(study.server)
    found = await study.account.get("/search", q="lamp lit Mara")
    assert [item for item in found["items"] if item["kind"] == "event"] == []
    path = f"/enrichment/runs/{run_id}/undo"
    problem(await study.account.ask("POST", path), 409, "run-already-undone")


async def test_undoing_a_run_removes_its_points(study: Study) -> None:
    run_id = await run_agent(study, event("The lamp was lit."), entry("Morrow", "A town."))
    await settled(study.server)
    [lamp], [morrow] = await read_events(study), await read_entries(study)
    index = study.server.parts.memory.collections.current
    owner_id = UUID(study.account.user["id"])

    async def indexed() -> set[UUID]:
        rows = rows_of(await points_of(index, owner_id))
        return {UUID(lamp["id"]), UUID(morrow["id"])} & rows.keys()

    assert len(await indexed()) == 2
    await undo(study, run_id)
    await settled(study.server)
    assert await indexed() == set()


async def test_changes_of_the_user_survive_an_undo(study: Study) -> None:
    run_id = await run_agent(
        study,
        event("The lamp was lit."),
        event("Mara promised to stay."),
        entry("Morrow", "A harbour town."),
        entry("Gull", "A ship."),
    )
    [lamp, mara] = await read_events(study)
    await change_event(study, lamp["id"], summary="The great lamp was lit.")
    [morrow] = [each for each in await read_entries(study) if each["title"] == "Morrow"]
    await change_entry(study, morrow, content="A harbour town in the north.")
    answer = await undo(study, run_id)
    assert {(each["id"], each["title"], each["reason"]) for each in answer["kept"]} == {
        (lamp["id"], "The lamp was lit.", "edited"),
        (morrow["id"], "Morrow", "edited"),
    }
    assert mara["id"] in {each["id"] for each in answer["undone"]}
    assert [each["summary"] for each in await read_events(study)] == ["The great lamp was lit."]
    assert [each["content"] for each in await read_entries(study)] == [
        "A harbour town in the north."
    ]


async def test_force_removes_changed_results_too(study: Study) -> None:
    run_id = await run_agent(study, event("The lamp was lit."), entry("Morrow", "A harbour town."))
    [lamp] = await read_events(study)
    await change_event(study, lamp["id"], significance=5)
    [morrow] = await read_entries(study)
    await change_entry(study, morrow, content="A harbour town in the north.")
    answer = await undo(study, run_id, force="true")
    assert (len(answer["undone"]), answer["kept"]) == (2, [])
    assert await read_events(study) == []
    assert await read_entries(study) == []


@pytest.mark.every_database
async def test_force_removes_only_what_was_kept_before(study: Study) -> None:
    """An event that the user added after the first undo is kept."""
    await run_agent(study, event("The gate was locked by Mara."))
    [locked] = await read_events(study)
    run_id = await run_agent(
        study,
        event("The gate was thrown open by rebels.", supersedes="E1"),
        entry("Morrow", "A harbour town."),
    )
    [morrow] = await read_entries(study)
    await change_entry(study, morrow, content="A harbour town in the north.")
    assert [each["reason"] for each in (await undo(study, run_id))["kept"]] == ["edited"]
    await change_event(study, locked["id"], summary="The gate was locked by Ben.")
    path = f"/enrichment/runs/{run_id}/undo"
    problem(await study.account.ask("POST", path), 409, "run-already-undone")
    answer = await undo(study, run_id, force="true")
    assert [(each["what"], each["title"]) for each in answer["undone"]] == [
        ("entry_created", "Morrow")
    ]
    assert (answer["kept"], await read_entries(study)) == ([], [])
    assert await study.summaries() == ["The gate was locked by Ben."]
    again = await study.account.ask("POST", path, params={"force": "true"})
    problem(again, 409, "run-already-undone")


@pytest.mark.every_database
async def test_undoing_restores_superseded_events(study: Study) -> None:
    await run_agent(study, event("The gate was locked by Mara."))
    [locked] = await read_events(study)
    run_id = await run_agent(study, event("The gate was thrown open by rebels.", supersedes="E1"))
    [opened] = await study.events()
    assert opened.fields.summary == "The gate was thrown open by rebels."
    answer = await undo(study, run_id)
    assert {each["what"] for each in answer["undone"]} == {"event_created", "event_changed"}
    [again] = await study.events()
    assert (str(again.id), again.superseded_by) == (locked["id"], None)


@pytest.mark.every_database
async def test_undoing_a_middle_run_moves_the_mark(study: Study) -> None:
    """Three facts supersede each other, and the middle one is removed."""
    await run_agent(study, event("The gate was locked by Mara."))
    middle = await run_agent(study, event("The gate was thrown open by rebels.", supersedes="E1"))
    [second] = await study.events()
    await run_agent(study, event("The gate burned down in the night.", supersedes="E1"))
    [third] = await study.events()
    answer = await undo(study, middle)
    assert answer["kept"] == []
    assert await study.summaries() == ["The gate burned down in the night."]
    left = {each["summary"]: each for each in await read_events(study, current="false")}
    assert str(second.id) not in {each["id"] for each in left.values()}
    assert left["The gate was locked by Mara."]["superseded_by"] == str(third.id)


@pytest.mark.every_database
async def test_undoing_all_runs_leaves_nothing(study: Study) -> None:
    """Undoing the last one leaves its things at new revisions, which are not a user's changes."""
    first = await run_agent(
        study, event("The gate was locked by Mara."), entry("Gate", "Made of oak.")
    )
    await settled(study.server)
    second = await run_agent(
        study,
        event("The gate was thrown open by rebels.", supersedes="E1"),
        ("update_lorebook_entry", {"entry": "L1", "append": "It stands open.", "because": "x"}),
        said="The Gate made of oak is open.",
    )
    [gate] = await read_entries(study)
    assert gate["content"].endswith("It stands open.")
    answer = await undo(study, second)
    assert answer["kept"] == []
    [gate] = await read_entries(study)
    assert gate["content"] == "Made of oak."
    answer = await undo(study, first)
    assert answer["kept"] == []
    assert await read_events(study, current="false") == []
    assert await read_entries(study) == []


async def test_changes_of_a_later_run_are_kept(study: Study) -> None:
    first = await run_agent(study, entry("Gate", "Made of oak."))
    await settled(study.server)
    await run_agent(
        study,
        ("update_lorebook_entry", {"entry": "L1", "append": "It stands open.", "because": "x"}),
        said="The Gate made of oak is open.",
    )
    answer = await undo(study, first)
    [kept] = answer["kept"]
    assert (kept["title"], kept["reason"]) == ("Gate", "changed")
    [gate] = await read_entries(study)
    assert gate["content"].endswith("It stands open.")


@pytest.mark.every_database
async def test_superseded_events_of_the_same_run_are_removed(study: Study) -> None:
    run_id = await run_agent(
        study,
        event("The gate was locked by Mara."),
        event("The gate was thrown open by rebels.", supersedes="E1"),
    )
    assert await study.summaries() == ["The gate was thrown open by rebels."]
    answer = await undo(study, run_id)
    assert answer["kept"] == []
    assert await read_events(study, current="false") == []


async def test_deleted_results_do_not_stop_an_undo(study: Study) -> None:
    run_id = await run_agent(study, event("The lamp was lit."), entry("Morrow", "A harbour town."))
    [lamp] = await read_events(study)
    path = f"/chronicles/{study.chronicle_id}/events/{lamp['id']}"
    await study.account.delete(path)
    answer = await undo(study, run_id)
    assert answer["kept"] == []
    assert await read_entries(study) == []


async def test_undoing_while_the_agent_works_loses_nothing(study: Study) -> None:
    first = await run_agent(study, event("The lamp was lit."))
    await study.tell("I wait.", "The tide comes in.")
    model = study.model
    model.script(model.decides(), model.calls(event("The tide came in."), FINISH))
    await study.enqueue()
    async with model.thinking() as hold:
        await hold.is_reached.wait()
        answer = await undo(study, first)
        assert len(answer["undone"]) == 1
    await study.idle()
    assert await study.summaries() == ["The tide came in."]


@pytest.mark.every_database
async def test_a_run_counts_if_its_chronicle_is_deleted_while_the_model_works(study: Study) -> None:
    await study.tell("I wait.", "The tide comes in.")
    model, account = study.model, study.account
    model.script(model.decides(), model.calls(event("The tide came in."), FINISH))
    await study.enqueue()
    async with model.thinking() as hold:
        await hold.is_reached.wait()
        await account.delete(f"/chronicles/{study.chronicle_id}")
    await study.idle()
    (spent,) = (await account.get("/usage/month"))["by_model"]
    assert spent["runs"] == 1
    assert spent["prompt_tokens"] > 0
    assert (await account.get(f"/chats/{study.chat_id}/usage"))["prompt_tokens"] > 0


@pytest.mark.every_database
async def test_concurrent_undos_happen_once(study: Study) -> None:
    run_id = await run_agent(study, event("The lamp was lit."), entry("Morrow", "A harbour town."))
    path = f"/enrichment/runs/{run_id}/undo"
    answers = await asyncio.gather(*(study.account.ask("POST", path) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    assert await read_events(study) == []


async def add_summary(study: Study, *, edited: bool) -> str:
    """A summary of the chat's, and a run that says that it wrote it."""
    identity, run_id = await identity_of(study.server, study.account), new_id()
    [line] = (await study.tell("I do it.", "So it goes."))[1:]
    async with study.server.parts.database.write() as session:
        session.add(
            EnrichmentRun(
                id=run_id,
                user_id=identity.user_id,
                chat_id=UUID(study.chat_id),
                kind="summary",
                state="done",
                model="demo",
                from_position=0,
                to_position=line.position,
                sealed_detail=seal_detail(identity.sealer, run_id, RunDetail()),
            )
        )
        await session.flush()
        message = await session.get_one(Message, line.id)
        await store_summary(
            session, identity.sealer, message, "So far.", run_id=run_id, is_edited=edited
        )
    return str(run_id)


async def read_summaries(study: Study) -> int:
    async with study.server.parts.database.read() as session:
        return len(list(await session.scalars(select(ChatSummary))))


@pytest.mark.parametrize("force", ["false", "true"])
@pytest.mark.parametrize("edited", [False, True])
async def test_undoing_a_summary_deletes_it_unless_edited(
    sqlite_url: str, tmp_path: Path, model: Vendor, *, edited: bool, force: str
) -> None:
    async with studying(sqlite_url, tmp_path, model) as study:
        run_id = await add_summary(study, edited=edited)
        answer = await undo(study, run_id, force=force)
        stays = edited and force == "false"
        assert await read_summaries(study) == int(stays)
        assert [each["reason"] for each in answer["kept"]] == ["edited"] * stays
        assert len(answer["undone"]) == int(not stays)
