"""Compactions with a scripted model: triggers, changes, audiences, conflicts and retries."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update

from backend.chronicles import event_writer as writing
from backend.database.base import now
from backend.enrichment.compaction.task import CompactionTask
from backend.enrichment.outbox import COMPACTION, GLOSSARY, SUMMARY, TURN, lane_of
from backend.jobs import running as running_jobs
from backend.jobs.errors import RetryLaterError
from backend.jobs.models import Job
from tests.fakes.openai_server import error
from tests.integration.campaigns.conftest import table
from tests.integration.campaigns.seagate import Table, seagate
from tests.support.compacting import Call, Compactor, Evening, evening, lines_of, model, npc, server
from tests.support.lost_processes import lose_lease
from tests.support.memory import set_chat
from tests.support.server import Account, Running, ok, problem
from tests.support.waiting import until

__all__ = ["model", "server", "table"]

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry failed jobs at once instead of after seconds."""
    monkeypatch.setattr(running_jobs, "FIRST_DELAY_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def fresh(model: Compactor) -> None:
    model.reset()


@pytest.fixture
async def play(server: Running, table: Table) -> Evening:
    return await evening(server, table)


HOLT = npc("Inspector Holt", status="wounded")
DEBT: Call = ("thread_updater_tool", {"name": "The debt", "set": {"summary": "It is due."}})


async def test_changes_of_a_removed_message_are_undone_and_later_messages_read_again(
    play: Evening, model: Compactor
) -> None:
    model.finds = {"Holt falls": [HOLT], "The debt": [DEBT]}
    await play.turn("Holt falls down the stairs.")
    await play.turn("The debt is mentioned.")
    await play.compacted()
    assert (await play.entity("Inspector Holt"))["status"] == "wounded"
    lines = await play.ada.messages(play.chat)
    await play.ada.delete(f"/messages/{lines[0]['id']}", 200, alone="true")
    assert await play.entity("Inspector Holt") == {}
    await play.compacted()
    [_, asked] = model.asked
    assert "Holt falls" not in asked
    assert len(lines_of(asked)) == 3


@pytest.mark.every_database
async def test_a_compaction_follows_several_rounds(play: Evening, model: Compactor) -> None:
    await play.table.change("", settings={"compaction_interval": 3})
    model.finds = {"Holt falls": [HOLT]}
    first = await play.turn("Holt falls down the stairs.")
    await play.turn()
    assert model.asked == []
    await play.turn()
    [asked] = model.asked
    assert len(lines_of(asked)) == 6
    holt = await play.entity("Inspector Holt")
    assert (holt["status"], holt["kind"]) == ("wounded", "npc")
    [change] = await play.changes()
    line = (await play.ada.messages(play.chat))[0]
    assert line["id"] != first
    assert change["message_id"] == line["id"]
    assert change["because"].endswith(": Holt falls down the stairs.")
    [run] = await play.runs()
    assert (run["state"], run["from_position"], run["to_position"]) == ("done", 0, 5)
    assert [each["title"] for each in run["written"]] == ["Inspector Holt"]
    for _ in range(3):
        await play.turn()
    assert len(model.asked) == 2
    assert "Inspector Holt (npc)" not in model.asked[0]
    assert len(lines_of(model.asked[1])) == 6


async def test_each_tool_writes_its_kind_of_item(play: Evening, model: Compactor) -> None:
    town = await seagate(play.table)
    thread = await play.table.add("threads", title="The Fading Muffle", kind="quest")
    clock = await play.table.add("clocks", name="The alarm", segments=6, filled=1)
    fact = await play.table.add("facts", text="The gate is shut.")
    model.finds = {
        "everything": [
            (
                "character_updater_tool",
                {
                    "name": "Jake",
                    "set": {"location": "Sunfall Hills", "hp": 7},
                    "add": {"inventory": ["a brass key"], "gold": 5},
                    "remove": {"inventory": ["fork"]},
                },
            ),
            (
                "npc_updater_tool",
                {"name": "marlena", "set": {"wants": "The key."}, "add": {"voice": ["Whispers"]}},
            ),
            (
                "environment_updater_tool",
                {"name": "The crypt", "set": {"description": "Cold.", "day": 6}},
            ),
            ("environment_updater_tool", {"set": {"time_of_day": "dusk"}}),
            (
                "quest_updater_tool",
                {
                    "name": "the fading muffle",
                    "set": {"tension": "urgent", "giver": "Marlena"},
                    "add": {"objectives": ["Find the key", "Open the crypt"]},
                },
            ),
            ("quest_updater_tool", {"name": "The Fading Muffle", "add": {"done": "Find the key"}}),
            ("ability_updater_tool", {"name": "Lockwhisper", "set": {"role": "Jake's"}}),
            ("item_updater_tool", {"name": "The brass key", "set": {"location": "The crypt"}}),
            (
                "scene_narrative_updater_tool",
                {"set": {"title": "Below"}, "add": {"present": ["Jake", "Marlena"]}},
            ),
            DEBT,
            ("fact_recorder_tool", {"set": {"text": "The gate is open.", "supersedes": "F1"}}),
            ("fact_recorder_tool", {"name": "Marlena", "set": {"text": "She owes 40 crowns."}}),
            ("clock_updater_tool", {"name": "The alarm", "add": {"filled": 2}}),
            (
                "chronicle_event_tool",
                {"set": {"summary": "Jake found the key.", "kind": "discovery", "who": ["Jake"]}},
            ),
        ]
    }
    await play.compact_turn("Then everything happens.")
    [run] = await play.runs()
    assert run["refused"] == []
    jake, marlena = await play.entity("Jake"), await play.entity("Marlena")
    attributes = jake["attributes"]
    assert (attributes["hp"], attributes["gold"]) == (7, 20)
    assert (attributes["class"], attributes["inventory"]) == ("Wizard", ["a brass key"])
    assert jake["location_id"] == town["hills"]
    assert (marlena["wants"], marlena["voice"]) == (
        "The key.",
        ["Speaks in a slow drawl", "Whispers"],
    )
    world = await play.table.get()
    assert (world["day"], world["time_of_day"]) == (6, "dusk")
    quest = await play.table.get(f"/threads/{thread['id']}")
    assert (quest["tension"], quest["giver_id"]) == ("urgent", town["marlena"])
    assert {each["text"]: each["done"] for each in quest["objectives"]} == {
        "Find the key": True,
        "Open the crypt": False,
    }
    made = {each["name"]: each["kind"] for each in await play.items("entities")}
    assert (made["Lockwhisper"], made["The brass key"]) == ("ability", "item")
    [scene] = await play.items("scenes")
    assert (scene["title"], set(scene["present"])) == ("Below", {town["jake"], town["marlena"]})
    assert {each["title"] for each in await play.items("threads")} == {
        "The Fading Muffle",
        "The debt",
    }
    facts = {each["text"]: each for each in await play.items("facts")}
    # Facts of the user stay until the user changes them.
    assert facts["The gate is shut."]["superseded_by"] is None
    [proposal] = await play.items("proposals")
    assert proposal["reason"] == "contradicts"
    assert "The gate is shut." in str(proposal["contradicts"])
    assert facts["She owes 40 crowns."]["about_id"] == town["marlena"]
    assert (await play.table.get(f"/clocks/{clock['id']}"))["filled"] == 3
    assert fact["id"] == facts["The gate is shut."]["id"]
    [chronicle] = (await play.ada.get("/chronicles"))["items"]
    path = f"/chronicles/{chronicle['id']}/events"
    events = (await play.ada.get(path))["items"]
    assert [each["summary"] for each in events] == ["Jake found the key."]
    versions = {each["version"] for each in await play.changes()}
    assert len(versions) == 1


async def test_a_request_says_what_it_queued_or_why_not(
    play: Evening, model: Compactor, ada: Account
) -> None:
    nothing = await play.compact()
    assert nothing == {"messages": 0, "job_id": None, "waits": False}
    await play.turn()
    async with model.thinking() as is_reached:
        first = await play.compact()
        assert (first["messages"], first["waits"]) == (2, False)
        assert first["job_id"]
        await is_reached.wait()
        again, absorbed = await play.compact(), await play.compact()
        assert again["job_id"] not in {None, first["job_id"]}
        assert absorbed["job_id"] is None
    await play.at_rest()
    assert len(model.asked) == 1
    assert (await play.compact())["messages"] == 0

    async def refused(status: int, slug: str, **body: Any) -> None:
        problem(await play.table.ask("POST", "/compact", json=body), status, slug)

    await refused(422, "validation-failed")
    await refused(422, "validation-failed", chat_id="Seagate")
    await refused(422, "validation-failed", chat_id=play.chat, more=True)
    await refused(404, "chat-not-found", chat_id=str(uuid4()))
    other = await ada.new_chat()
    await refused(422, "validation-failed", chat_id=other["id"])
    await set_chat(ada, play.chat, chronicle_enabled=False)
    await refused(409, "chronicle-not-enabled", chat_id=play.chat)
    missing = await ada.ask("POST", f"/campaigns/{uuid4()}/compact", json={"chat_id": play.chat})
    problem(missing, 404, "campaign-not-found")


async def test_a_campaign_reads_only_chats_of_its_owner(play: Evening, server: Running) -> None:
    async with server.account(f"eve-{uuid4().hex[:8]}") as eve:
        body = {"chat_id": play.chat}
        own = await eve.post("/campaigns", {"name": "Mine"}, 201)
        path = f"/campaigns/{own['id']}/compact"
        problem(await eve.ask("POST", path, json=body), 404, "chat-not-found")


async def test_the_end_of_a_scene_is_compacted(play: Evening, model: Compactor) -> None:
    scene = await play.table.add("scenes", title="The stairs")
    model.finds = {"Holt falls": [HOLT]}
    await play.turn("Holt falls down the stairs.")
    assert model.asked == []
    ok(await play.table.ask("POST", f"/scenes/{scene['id']}/close"))
    await play.at_rest()
    assert await play.entity("Inspector Holt")


async def test_no_consent_means_no_reading(play: Evening, model: Compactor, ada: Account) -> None:
    await set_chat(ada, play.chat, chronicle_enabled=False)
    await play.table.change("", settings={"compaction_interval": 1})
    scene = await play.table.add("scenes", title="The stairs")
    await play.turn("This is between us.")
    ok(await play.table.ask("POST", f"/scenes/{scene['id']}/close"))
    await play.at_rest()
    assert model.asked == []
    await set_chat(ada, play.chat, chronicle_enabled=True)
    await play.turn("This may be read.")
    [asked] = model.asked
    assert lines_of(asked) == ["This may be read.", "So it is."]
    assert "between us" not in asked


async def test_withdrawn_consent_ends_it(play: Evening, model: Compactor, ada: Account) -> None:
    model.finds = {"Holt falls": [HOLT]}
    await play.turn("Holt falls down the stairs.")
    async with model.thinking() as is_reached:
        await play.compact()
        await is_reached.wait()
        await set_chat(ada, play.chat, chronicle_enabled=False)
    await play.at_rest()
    assert await play.changes() == []


async def test_a_compaction_waits_for_the_end_of_a_fight(play: Evening, model: Compactor) -> None:
    await play.table.change("", settings={"compaction_interval": 2}, flags={"combat": True})
    for _ in range(3):
        await play.ada.turn(play.chat, text="I strike.")
    assert (await play.compact())["waits"]

    async def is_put_off() -> bool:
        async with play.server.parts.database.read() as session:
            job = await session.scalar(
                select(Job).where(Job.kind == COMPACTION, Job.payload.contains(play.chat))
            )
        assert job is not None
        return job.state == "queued" and (job.run_after - job.updated_at).total_seconds() > 600

    await until(is_put_off)
    assert model.asked == []
    assert await play.runs() == []
    lane = lane_of(UUID(play.table.campaign["id"]))

    async def waiting_kinds() -> set[str]:
        async with play.server.parts.database.read() as session:
            return set(await session.scalars(select(Job.kind).where(Job.lane == lane)))

    assert await waiting_kinds() == {COMPACTION, GLOSSARY}
    # After five minutes other work of the campaign continues.
    async with play.server.parts.database.write() as session:
        job = await session.scalar(select(Job).where(Job.lane == lane, Job.kind == COMPACTION))
        assert job is not None
        assert job.lane_until is not None
        assert 200 < (job.lane_until - job.updated_at).total_seconds() <= 300
        job.lane_until = job.created_at

    async def is_released() -> bool:
        return await waiting_kinds() == {COMPACTION}

    await until(is_released)
    await play.ada.turn(play.chat, text="I strike again.")
    await until(is_put_off)
    # The turn that may have ended the fight triggers another check.
    await play.table.change("", flags={"combat": False})
    await play.compact()
    await play.at_rest()
    [asked] = model.asked
    assert len(lines_of(asked)) == 8


@pytest.mark.every_database
async def test_a_fight_that_ends_during_the_check_causes_no_wait(
    play: Evening, model: Compactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_looked, may_wait = asyncio.Event(), asyncio.Event()
    look = CompactionTask.load

    async def look_slowly(*given: Any) -> Any:
        try:
            return await look(*given)
        except RetryLaterError:
            has_looked.set()
            await may_wait.wait()
            raise

    monkeypatch.setattr(CompactionTask, "load", look_slowly)
    await play.table.change("", flags={"combat": True})
    await play.turn("I strike.")
    await play.compact()
    await has_looked.wait()
    await play.table.change("", flags={"combat": False})
    await play.compact()
    may_wait.set()
    await play.at_rest()
    assert len(model.asked) == 1


async def test_a_turn_that_ends_a_fight_resumes_it(play: Evening, model: Compactor) -> None:
    await play.table.change("", flags={"combat": True})
    other = await evening(play.server, play.table)
    for each in (play, other):
        await each.turn("I strike.")
        await each.compact()
    lane = lane_of(UUID(play.table.campaign["id"]))
    jobs = select(Job.run_after).where(Job.kind == COMPACTION, Job.lane == lane)

    async def is_put_off() -> bool:
        async with play.server.parts.database.write() as session:
            # The second job starts when the first one leaves the lane.
            await session.execute(update(Job).where(Job.lane == lane).values(lane_until=now()))
            times = list(await session.scalars(jobs))
        waits = [(each - now()).total_seconds() for each in times]
        return len(waits) == 2 and min(waits) > 600

    await until(is_put_off)
    model.tells = {"I yield": "The fight is over."}
    async with model.holding_turns():
        turn = asyncio.create_task(play.ada.turn(play.chat, text="I yield."))
        await model.is_asked.wait()
        await play.table.change("", flags={"combat": False})
    await turn
    await play.at_rest()
    await other.at_rest()
    asked = [lines_of(each)[-1] for each in model.asked]
    assert sorted(asked) == ["So it is.", "The fight is over."]


async def test_an_item_deleted_meanwhile_costs_one_call(play: Evening, model: Compactor) -> None:
    thread = await play.table.add("threads", title="The Fading Muffle", kind="quest")
    fact = await play.table.add("facts", text="The gate is shut.")
    model.finds = {
        "Holt falls": [
            ("quest_updater_tool", {"ref": "T1", "set": {"tension": "urgent"}}),
            ("fact_recorder_tool", {"set": {"text": "It is open.", "supersedes": "F1"}}),
            ("chronicle_event_tool", {"set": {"summary": "Holt fell.", "where": "T1"}}),
            HOLT,
        ]
    }
    await play.turn("Holt falls down the stairs.")
    async with model.thinking() as is_reached:
        await play.compact()
        await is_reached.wait()
        for kind, item in (("threads", thread), ("facts", fact)):
            await play.table.delete(f"/{kind}/{item['id']}")
    await play.at_rest()

    assert len(model.asked) == 1
    [run] = await play.runs()
    assert [each["title"] for each in run["written"]] == ["Inspector Holt"]
    assert [each["reason"] for each in run["refused"]] == [
        "T1 no longer exists.",
        "F1 no longer exists.",
        "T1 no longer exists.",
    ]


async def test_a_chat_deleted_meanwhile_is_paid_for(play: Evening, model: Compactor) -> None:
    async def spent() -> int:
        items = (await play.ada.get("/me/usage"))["items"]
        [used] = [each["used"] for each in items if each["quota"] == "tokens_per_day"]
        return int(used)

    await play.turn("Holt falls down the stairs.")
    for kind in (TURN, GLOSSARY):
        await play.at_rest(kind=kind)
    before = await spent()
    async with model.thinking() as is_reached:
        await play.compact()
        await is_reached.wait()
        await play.ada.delete(f"/chats/{play.chat}")
    await play.at_rest()
    assert await spent() == before + 110


@pytest.mark.every_database
async def test_all_changes_are_written_or_none(
    play: Evening, model: Compactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.finds = {
        "Holt falls": [HOLT, DEBT, ("chronicle_event_tool", {"set": {"summary": "Holt fell."}})]
    }
    await play.turn("Holt falls down the stairs.")
    version = (await play.table.get())["version"]
    real, tries = writing.add_events, list[int]()

    async def failing(*args: Any, **more: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError
        return await real(*args, **more)

    monkeypatch.setattr(writing, "add_events", failing)
    async with model.thinking() as is_reached:
        await play.compact()
        await is_reached.wait()
    await until(lambda: _are(tries, 1))
    await play.at_rest()
    assert len(model.asked) == 2
    changes = await play.changes()
    assert [each["target"]["name"] for each in changes] == ["Inspector Holt", "The debt"]
    assert {each["version"] for each in changes} == {version + 1}


async def _are(tries: list[int], count: int) -> bool:
    return len(tries) >= count


@pytest.mark.every_database
async def test_a_failed_compaction_is_shown_and_retried(play: Evening, model: Compactor) -> None:
    model.fails = [error(503), error(503)]
    model.finds = {"Holt falls": [HOLT]}
    await play.compact_turn("Holt falls down the stairs.")
    done, failed = await play.runs()
    assert (done["state"], failed["state"], failed["calls"]) == ("done", "failed", 2)
    assert failed["error"] == "model-overloaded"
    assert len({tuple(lines_of(asked)) for asked in model.asked}) == 1
    assert await play.entity("Inspector Holt")


async def test_the_next_compaction_reads_what_was_missed(play: Evening, model: Compactor) -> None:
    await play.table.change("", settings={"compaction_interval": 2})
    model.fails = [error(400)] * 3
    model.finds = {"Holt falls": [HOLT]}
    await play.turn("Holt falls down the stairs.")
    await play.turn()
    [run] = await play.runs()
    assert (run["state"], run["error"]) == ("failed", "model-refused-request")
    model.fails = []
    count = len(model.asked)
    await play.turn()
    assert len(model.asked) == count
    await play.turn()
    assert len(lines_of(model.asked[-1])) == 8
    assert await play.entity("Inspector Holt")


async def test_an_invalid_call_does_not_stop_the_others(play: Evening, model: Compactor) -> None:
    model.finds = {
        "Holt falls": [
            HOLT,
            ("npc_updater_tool", {"name": "Inspector Holt", "set": {"shoe_size": 44}}),
            ("delete_tool", {"name": "Inspector Holt"}),
            ("npc_updater_tool", {"set": {"status": "gone"}}),
            ("thread_updater_tool", {"name": "The debt", "set": {"tension": "mild"}}),
        ]
    }
    await play.compact_turn("Holt falls down the stairs.")
    assert [each["target"]["name"] for each in await play.changes()] == ["Inspector Holt"]
    [run] = await play.runs()
    assert run["state"] == "done"
    reasons = " ".join(each["reason"] for each in run["refused"])
    for part in ("shoe_size", "no such tool", "`ref` or `name`", "simmering, rising"):
        assert part in reasons


async def test_unnamed_fields_stay_and_nothing_is_deleted(play: Evening, model: Compactor) -> None:
    await seagate(play.table)
    model.finds = {
        "Jake": [
            ("character_updater_tool", {"name": "Jake", "set": {"inventory": ["a rope"]}}),
            ("npc_updater_tool", {"name": "Marlena", "set": {"exists": False, "locked": []}}),
        ]
    }
    await play.compact_turn("Jake finds a rope.")
    jake = await play.entity("Jake")
    assert jake["attributes"]["inventory"] == ["fork", "a rope"]
    assert jake["attributes"]["gold"] == 15
    assert await play.entity("Marlena")


async def test_a_new_entity_is_found_within_the_run(play: Evening, model: Compactor) -> None:
    model.finds = {
        "Brother": [
            npc("Brother Anselm", role="a monk"),
            npc("brother anselm", status="afraid"),
            ("fact_recorder_tool", {"name": "Brother Anselm", "set": {"text": "He has the key."}}),
        ]
    }
    await play.turn("A monk comes in: Brother Anselm.")
    await play.compact_turn("Brother Anselm trembles.")
    [monk] = await play.items("entities")
    assert (monk["name"], monk["role"], monk["status"]) == ("Brother Anselm", "a monk", "afraid")
    [fact] = await play.items("facts")
    assert fact["about_id"] == monk["id"]


async def test_an_ambiguous_name_changes_nothing(play: Evening, model: Compactor) -> None:
    for name in ("Anna Reyes", "Tomas Reyes"):
        await play.table.add("entities", kind="npc", name=name)
    model.finds = {"Reyes": [npc("Reyes", status="dead")]}
    await play.compact_turn("Reyes is dead.")
    entities = await play.items("entities")
    assert [each["status"] for each in entities] == ["active", "active"]
    assert await play.changes() == []
    [proposal] = await play.items("proposals")
    assert proposal["reason"] == "uncertain"
    assert len(model.asked) == 1


async def test_locked_and_changed_fields_are_proposed(play: Evening, model: Compactor) -> None:
    town = await seagate(play.table)
    await play.table.change(f"/entities/{town['holt']}", locked=["status"])
    model.finds = {"Holt falls": [HOLT, npc("Inspector Holt", wants="A doctor")]}
    model.finds["Marlena"] = [npc("Marlena", disposition="cold")]
    await play.turn("Holt falls down the stairs, and Marlena sees it.")
    await play.table.change(f"/entities/{town['marlena']}", disposition="worried")
    await play.compacted()
    holt = await play.table.get(f"/entities/{town['holt']}")
    assert (holt["status"], holt["wants"]) == ("active", "A doctor")
    marlena = await play.table.get(f"/entities/{town['marlena']}")
    assert marlena["disposition"] == "worried"
    reasons = {each["reason"] for each in await play.items("proposals")}
    assert reasons == {"locked", "changed"}
    [line] = {each["message_id"] for each in await play.items("proposals")}
    assert line == (await play.ada.messages(play.chat))[0]["id"]


async def test_another_swipe_replaces_its_changes(play: Evening, model: Compactor) -> None:
    model.finds = {
        "Holt falls": [HOLT],
        "stairs hold": [npc("Inspector Holt", status="well")],
        "debt": [DEBT],
    }
    model.tells = {"stairs": "Holt falls."}
    await play.turn("The debt is due.")
    last = await play.turn("Holt takes the stairs.")
    await play.compacted()
    assert [each["title"] for each in await play.items("threads")] == ["The debt"]
    model.tells = {"stairs": "The stairs hold."}
    other = await play.turn("", regenerate_of=last)
    assert await play.entity("Inspector Holt") == {}
    assert [each["title"] for each in await play.items("threads")] == ["The debt"]
    await play.compacted()
    assert lines_of(model.asked[-1]) == ["The stairs hold."]
    assert (await play.entity("Inspector Holt"))["status"] == "well"
    await play.ada.post(f"/messages/{last}/activate")
    assert (await play.entity("Inspector Holt"))["status"] == "wounded"
    assert (await play.compact())["messages"] == 0
    await play.ada.post(f"/messages/{other}/activate")
    assert (await play.compact())["messages"] == 0


async def test_a_continued_reply_counts_once(play: Evening, model: Compactor) -> None:
    await seagate(play.table)
    model.finds = {
        "gold": [("character_updater_tool", {"name": "Jake", "add": {"gold": 5}})],
        "So it is": [npc("The fence", status="smiling")],
    }
    model.tells = {"fence": "So it is: he pays in gold."}
    await play.compact_turn("Jake goes to the fence.")
    assert (await play.entity("Jake"))["attributes"]["gold"] == 20
    await play.turn("", **{"continue": True})
    assert (await play.entity("Jake"))["attributes"]["gold"] == 15
    await play.compacted()
    assert len(lines_of(model.asked[-1])) == 1
    assert (await play.entity("Jake"))["attributes"]["gold"] == 20


@pytest.mark.every_database
async def test_copied_changes_count_as_read(play: Evening, model: Compactor) -> None:
    model.finds = {"Holt falls": [HOLT], "debt": [DEBT]}
    await play.turn("Holt falls down the stairs.")
    last = await play.turn("The debt is due.")
    await play.compacted()
    path = f"/chats/{play.chat}/fork"
    fork = await play.ada.post(path, {"message_id": last}, 201)
    settings = f"/chats/{fork['id']}/settings"
    await play.ada.patch(settings, {"chronicle_enabled": True})
    other = Evening(play.server, play.table, fork["id"])
    assert (await other.compact())["messages"] == 0
    await other.turn("Holt falls again.")
    await other.compacted()
    assert lines_of(model.asked[-1]) == ["Holt falls again.", "So it is."]
    await play.ada.delete(f"/chats/{play.chat}")
    assert [each["title"] for each in await play.items("threads")] == ["The debt"]


@pytest.mark.every_database
async def test_two_workers_write_once(play: Evening, model: Compactor, server: Running) -> None:
    """The first worker loses its lease during the request, so it must not write."""
    model.finds = {"Holt falls": [HOLT], "debt": [DEBT]}
    await play.turn("Holt falls down the stairs, and the debt is due.")
    async with model.thinking() as is_reached:
        await play.compact()
        await is_reached.wait()
        await lose_lease(server.parts.database, COMPACTION, play.chat)
    await play.at_rest()
    assert len(model.asked) >= 2
    assert len(await play.changes(all_of_them=True)) == 2
    assert len(await play.items("entities")) == 1


@pytest.mark.every_database
async def test_lines_that_move_are_read_again(play: Evening, model: Compactor) -> None:
    model.finds = {"Holt falls": [HOLT], "debt": [DEBT]}
    await play.turn("Holt falls down the stairs.")
    line = (await play.ada.messages(play.chat))[0]
    async with model.thinking() as is_reached:
        await play.compact()
        await is_reached.wait()
        await play.ada.patch(f"/messages/{line['id']}", {"hidden": True})
    await play.at_rest()
    assert [len(lines_of(asked)) for asked in model.asked] == [2, 1]
    assert [each["state"] for each in await play.runs()] == ["done", "failed"]
    assert await play.changes() == []


@pytest.mark.every_database
async def test_each_audience_is_compacted_separately(play: Evening, model: Compactor) -> None:
    await play.table.change("", settings={"hidden_information": True})
    town = await seagate(play.table)
    secret = await play.table.add("entities", kind="npc", name="The Heron", audience="gm")
    model.finds = {
        "heron": [npc("The Heron", status="near"), npc("Marlena", status="a traitor")],
        "whisper": [("fact_recorder_tool", {"name": "Marlena", "set": {"text": "She lies."}})],
        "public": [DEBT],
    }
    await play.turn("A public line.")
    for text, audience in (("The heron waits.", "gm"), ("A whisper.", [town["jake"]])):
        reply_id = await play.turn(text)
        lines = await play.ada.messages(play.chat)
        for message in (lines[-2]["id"], reply_id):
            body = {"audience": audience}
            await play.ada.patch(f"/messages/{message}", body)
    await play.compacted()
    asked = {lines_of(each)[0]: each for each in model.asked}
    assert asked.keys() == {"A public line.", "The heron waits.", "A whisper."}
    for said in ("A public line.", "A whisper."):
        assert "The Heron" not in asked[said]
        assert "heron waits" not in asked[said]
    assert "A public line" in asked["A whisper."]
    assert "A whisper" not in asked["A public line."]
    facts = await play.items("facts")
    assert [each["audience"] for each in facts] == [[town["jake"]]]
    heron = await play.table.get(f"/entities/{secret['id']}")
    assert heron["status"] == "near"
    assert (await play.entity("Marlena"))["status"] == "active"


async def test_a_message_that_becomes_secret_is_undone(play: Evening, model: Compactor) -> None:
    await play.table.change("", settings={"hidden_information": True})
    model.finds = {"Holt falls": [HOLT]}
    await play.compact_turn("Holt falls down the stairs.")
    line = (await play.ada.messages(play.chat))[0]
    await play.ada.patch(f"/messages/{line['id']}", {"audience": "gm"})
    assert await play.entity("Inspector Holt") == {}
    await play.compacted()
    assert (await play.entity("Inspector Holt"))["audience"] == "gm"


async def test_changes_of_several_lines_are_read_again(play: Evening, model: Compactor) -> None:
    await play.table.change("", settings={"hidden_information": True})
    model.finds = {"Holt falls": [HOLT]}
    # A change from both lines belongs to the last one.
    name, told = HOLT
    model.finds = {"Holt limps": [(name, {**told, "source_turns": [1, 3]})]}
    await play.turn("Holt falls down the stairs.")
    await play.compact_turn("Holt limps.")
    assert await play.entity("Inspector Holt")
    model.finds = {}
    line = (await play.ada.messages(play.chat))[0]
    await play.ada.patch(f"/messages/{line['id']}", {"audience": "gm"})
    assert await play.entity("Inspector Holt") == {}
    await play.compacted()
    assert [len(lines_of(asked)) for asked in model.asked] == [4, 1, 3]


async def test_a_run_can_be_undone(play: Evening, model: Compactor) -> None:
    model.finds = {
        "Holt falls": [HOLT, ("chronicle_event_tool", {"set": {"summary": "Holt fell."}})]
    }
    await play.compact_turn("Holt falls down the stairs.")
    [run] = await play.runs()
    assert run["can_undo"]
    view = await play.ada.post(f"/enrichment/runs/{run['id']}/undo")
    assert {each["what"] for each in view["undone"]} == {"item_changed", "event_created"}
    assert await play.entity("Inspector Holt") == {}
    [chronicle] = (await play.ada.get("/chronicles"))["items"]
    path = f"/chronicles/{chronicle['id']}/events"
    assert (await play.ada.get(path))["items"] == []
    [run] = await play.runs()
    assert run["state"] == "undone"
    assert (await play.compact())["messages"] == 0


async def test_compacted_lines_leave_the_history(play: Evening, model: Compactor) -> None:
    await play.table.change("", settings={"memory_interval": 2, "summaries": False})
    model.finds = {"Holt falls": [HOLT]}
    await play.turn("Holt falls down the stairs.")
    for number in range(4):
        await play.turn(f"Round {number}.")

    async def told() -> set[str]:
        return {each["text"] for each in await play.prompt("Where is Inspector Holt?")}

    assert "Holt falls down the stairs." in await told()
    await play.compacted()
    assert {"Round 2.", "Round 3."} <= await told()
    assert not {"Holt falls down the stairs.", "Round 0.", "Round 1."} & await told()
    assert any("wounded" in each for each in await told())
    assert len(await play.ada.messages(play.chat)) == 10
    await play.turn("Round 4.")
    # It is not compacted yet, so it is in the history with the last two rounds.
    assert {"Round 3.", "Round 4."} <= await told()
    for number in range(5, 8):
        await play.turn(f"Round {number}.")
    assert {f"Round {number}." for number in range(4, 8)} <= await told()
    assert "Round 3." not in await told()
    await play.compacted()
    assert not {"Round 4.", "Round 5."} & await told()
    assert {"Round 6.", "Round 7."} <= await told()


async def test_unread_lines_stay_in_history(play: Evening, model: Compactor, ada: Account) -> None:
    await play.table.change("", settings={"memory_interval": 1, "summaries": False})
    await set_chat(ada, play.chat, chronicle_enabled=False)
    await play.turn("Before they agreed.")
    await set_chat(ada, play.chat, chronicle_enabled=True)
    await play.turn("Round 0.")
    await play.compact_turn("Round 1.")
    assert len(model.asked) == 1
    texts = {each["text"] for each in await play.prompt()}
    assert {"Before they agreed.", "Round 0.", "Round 1."} <= texts


async def test_a_compaction_is_followed_by_a_full_state_block(
    play: Evening, model: Compactor
) -> None:
    await seagate(play.table)
    await play.turn()
    await play.turn()
    context = await play.table.get("/context", chat_id=play.chat, text="I wait.")
    assert context["form"] == "light"
    await play.compacted()
    context = await play.table.get("/context", chat_id=play.chat, text="I wait.")
    assert (context["form"], context["why"]) == ("full", "a compaction came in between")


async def test_unknown_references_are_refused(play: Evening, model: Compactor) -> None:
    town = await seagate(play.table)
    await play.table.add("threads", title="The debt")
    model.finds = {
        "T8 beeps": [
            ("npc_updater_tool", {"ref": "E99", "set": {"status": "gone"}}),
            ("npc_updater_tool", {"ref": "#77", "name": "Gareth", "set": {"status": "gone"}}),
            ("npc_updater_tool", {"name": "E98", "set": {"status": "gone"}}),
            ("npc_updater_tool", {"ref": "T1", "set": {"status": "gone"}}),
            ("npc_updater_tool", {"name": "Lena", "add": {"aliases": ["E97"]}}),
            ("thread_updater_tool", {"ref": "T77", "set": {"summary": "Due."}}),
            ("clock_updater_tool", {"ref": "C9", "set": {"segments": 4}}),
            ("scene_narrative_updater_tool", {"ref": "E96", "set": {"title": "Below"}}),
            ("environment_updater_tool", {"ref": "E95", "set": {"day": 6}}),
            ("fact_recorder_tool", {"ref": "E94", "set": {"text": "He is gone."}}),
            ("fact_recorder_tool", {"set": {"text": "It is shut.", "supersedes": "F77"}}),
            ("chronicle_event_tool", {"set": {"summary": "They left.", "who": ["E93"]}}),
            (*DEBT[:1], {**DEBT[1], "source_turns": [77]}),
            # The line contains a robot of this name.
            ("npc_updater_tool", {"name": "T8", "set": {"status": "beeping"}}),
        ]
    }
    await play.compact_turn("T8 beeps.")
    [run] = await play.runs()
    reasons = [each["reason"] for each in run["refused"]]
    for number in (93, 94, 95, 96, 97, 98, 99):
        assert sum(f"There is no E{number}." in reason for reason in reasons) == 3
    for part in ("no #77", "no T77", "no C9", "not 'F77'", "it is a storyline", "#1 to #2"):
        assert any(part in reason for reason in reasons), part
    assert [
        each["name"] for each in await play.items("entities") if each["id"] not in town.values()
    ] == ["T8"]
    assert [each["title"] for each in await play.items("threads")] == ["The debt"]
    assert await play.items("clocks") == []
    # The scene was opened by the turn.
    assert [scene["title"] for scene in await play.items("scenes")] == [""]
    assert (await play.table.get("/state"))["day"] == 5
    assert [len(model.asked), run["state"]] == [3, "done"]


async def test_a_user_without_persona_is_the_only_player(play: Evening, model: Compactor) -> None:
    account = play.ada.name
    await play.turn("I open the door.")
    await seagate(play.table)
    limps: Call = ("npc_updater_tool", {"name": "You", "set": {"status": "limping"}})
    smiles: Call = ("npc_updater_tool", {"name": account, "set": {"disposition": "cheerful"}})
    told: Call = (
        "chronicle_event_tool",
        {"set": {"summary": "Jake limped out.", "who": ["the user", "Marlena"]}},
    )
    model.finds = {"I limp out": [limps, smiles, told]}
    await play.turn("I limp out.")
    assert [each["author"] for each in (await play.ada.messages(play.chat))[::2]] == [
        account,
        "Jake",
    ]
    prompt = str(await play.prompt())
    assert "decide for Jake" in prompt
    assert account not in prompt
    await play.compacted()
    [asked] = model.asked
    assert "#1 Jake: I open the door." in asked
    assert "#3 Jake: I limp out." in asked
    assert account not in asked
    people = {
        each["name"]: each for each in await play.items("entities") if each["kind"] != "location"
    }
    assert set(people) == {"Jake", "Marlena", "Inspector Holt"}
    assert (people["Jake"]["status"], people["Jake"]["disposition"]) == ("limping", "cheerful")
    assert [each["who"] for each in await play.events()] == [["Jake", "Marlena"]]
    greeter = await play.ada.new_character(name="Lena", first_mes="Good morning, {{user}}.")
    opened = await play.ada.new_chat(
        campaign_id=play.table.campaign["id"], character_ids=[greeter["id"]]
    )
    assert (await play.ada.messages(opened["id"]))[0]["text"] == "Good morning, Jake."
    persona = await play.ada.post("/personas", {"name": "Robin", "description": ""}, 201)
    await play.ada.patch(f"/chats/{play.chat}", {"persona_id": persona["id"]})
    assert "decide for Robin" in str(await play.prompt())


async def test_a_declined_request_fails_and_is_repeated(play: Evening, model: Compactor) -> None:
    await play.table.change("", settings={"memory_interval": 1})
    model.finds = {"Holt falls": [HOLT]}
    model.records = {"Holt falls": [("create_chronicle_event", {"summary": "Holt fell."})]}
    model.tells = {"Holt falls": "Above him the *Skyglass* shone."}
    model.declines = {
        "Task: compaction",
        "Task: rolling summary",
        "Task: glossary",
        "You keep the chronicle of a roleplay story. Write",
    }
    await play.turn("Holt falls down the stairs.")
    for _ in range(5):
        await play.turn()
    await play.compact()
    for kind in (COMPACTION, TURN, SUMMARY, GLOSSARY):
        await play.at_rest(kind=kind)
    assert model.declines == set()
    path = f"/chats/{play.chat}/enrichment"
    runs = (await play.ada.get(path, limit=50))["items"][::-1]
    for kind in ("compaction", "turn", "summary", "glossary"):
        states = [(each["state"], each["error"]) for each in runs if each["kind"] == kind]
        assert states[0] == ("failed", "model-declined"), kind
        assert {state for state, _ in states[1:]} == {"done"}, kind
    failed = next(each for each in runs if each["kind"] == "compaction")
    assert (failed["prompt_tokens"], failed["problem"]["title"]) == (
        50,
        "The model declined to answer",
    )
    assert await play.entity("Inspector Holt")
    assert [each["summary"] for each in await play.events()] == ["Holt fell."]
    summary = await play.ada.get(f"/chats/{play.chat}/summary")
    assert summary["text"] == "So it went."


async def test_a_model_without_tools_is_asked_for_json(play: Evening, model: Compactor) -> None:
    """Must be the last test: the server then remembers that the model has no tools."""
    model.has_tools = False
    model.finds = {"Holt falls": [HOLT]}
    await play.compact_turn("Holt falls down the stairs.")
    assert await play.entity("Inspector Holt")
    [run] = await play.runs()
    assert (run["state"], run["calls"]) == ("done", 1)
