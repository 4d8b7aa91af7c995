"""The agent's job after a reply: the lines that it reads, and its events."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec
import pytest

from backend.accounts.models import USER_SETTINGS, User
from backend.accounts.profile.settings import EnrichmentSettings, UserSettings
from backend.database.base import new_id
from backend.enrichment.agent import agent
from backend.enrichment.outbox import EnrichmentOutbox
from backend.jobs import running
from tests.fakes import openai_server
from tests.integration.turns.seeding import identity_of
from tests.support.studying import (
    FINISH,
    Study,
    Vendor,
    entry,
    event,
    model,
    server,
    study,
    studying,
    tools_of,
    vendor,
)

__all__ = ["model", "server", "study"]

pytestmark = pytest.mark.anyio

Kind = Literal["openai", "gemini"]


async def kill_the_king(study: Study) -> None:
    """Add lines about a murder that the agent will record, and queue its job."""
    model = study.model
    await study.tell("I kill the king.", "The king is dead.")
    model.script(model.decides(), model.calls(event("The king was killed."), FINISH))
    await study.enqueue()


@pytest.mark.parametrize("kind", ["openai", "gemini"])
async def test_six_turns_make_three_events(sqlite_url: str, tmp_path: Path, kind: Kind) -> None:
    async with vendor(kind) as model, studying(sqlite_url, tmp_path, model) as study:
        for turn in range(6):
            place = 2 * turn + 2
            await study.tell(f"I look around, for the {turn}th time.", f"Lamp {turn} went out.")
            if turn % 2:
                model.script(model.decides(significant=False, why="Small talk."))
            else:
                model.script(
                    model.decides(why="A lamp went out."),
                    model.calls(
                        event(
                            f"Lamp {turn} of the harbour went out.",
                            f"#{place}",
                            f"#{place + 1}",
                            who=["Mara"],
                            where="The harbour",
                            kind="fact",
                            significance=4,
                        ),
                        FINISH,
                    ),
                )
            await study.read()
        assert await study.summaries() == [
            f"Lamp {turn} of the harbour went out." for turn in (0, 2, 4)
        ]
        first, *_ = await study.events()
        assert (first.fields.kind, first.significance, first.source) == ("fact", 4, "agent")
        assert [source.position for source in first.sources] == [1, 2]
        assert await study.marks() == [2, 4, 6, 8, 10, 12]
        runs = await study.runs()
        assert [run.state for run, _ in runs] == ["done"] * 6
        assert [detail.significant for _, detail in runs] == [True, False] * 3
        run, detail = runs[0]
        assert (run.calls, run.prompt_tokens, run.completion_tokens) == (2, 300, 30)
        assert detail.why == "A lamp went out."
        assert [effect.what for effect in detail.effects] == ["event_created"]
        assert first.run_id == run.id
        assert tools_of(model.server.requests) == 9


async def test_no_consent_no_request(database_url: str, tmp_path: Path, model: Vendor) -> None:
    async with studying(
        database_url,
        tmp_path,
        model,
        opted_in=False,
        default_model=model.settings["enrichment_model"],
    ) as study:
        await study.account.turn(study.chat_id, text="I kill the king.")
        assert await study.jobs() == []
        # A job that exists for another reason does not reach the agent either.
        await study.enqueue()
        await study.idle()
        assert len(model.server.requests) == 1
        assert tools_of(model.server.requests) == 0
        assert await study.runs() == []


async def test_withdrawn_consent_leaves_nothing(study: Study, model: Vendor) -> None:
    await kill_the_king(study)
    async with model.thinking() as hold:
        await hold.is_reached.wait()
        await study.settings(chronicle_enabled=False)
        await model.server.hung_up.wait()
    await study.idle()
    assert await study.events() == []
    assert await study.marks() == []
    (job,) = await study.jobs()
    assert (job.state, job.error) == ("done", "chronicle-not-enabled")


async def test_renewed_consent_starts_the_job_again(study: Study, model: Vendor) -> None:
    await kill_the_king(study)
    async with model.thinking() as hold:
        await hold.is_reached.wait()
        await study.settings(chronicle_enabled=False)
        await study.settings(chronicle_enabled=True)
        await model.server.hung_up.wait()
    await study.idle()
    assert await study.events() == []
    assert await study.marks() == []


async def test_a_chat_deleted_meanwhile_is_not_read(study: Study, model: Vendor) -> None:
    await kill_the_king(study)
    async with model.thinking() as hold:
        await hold.is_reached.wait()
        await study.account.delete(f"/chats/{study.chat_id}")
    await study.idle()
    assert await study.events() == []
    assert await study.jobs() == []


async def test_lines_before_consent_are_never_sent(study: Study, model: Vendor) -> None:
    await study.settings(chronicle_enabled=False)
    await study.tell("The secret of the well.", "It is deep.")
    await study.settings(chronicle_enabled=True)
    await study.tell("We leave.", "We arrive at Morrow.")
    model.script(model.decides(), model.calls(FINISH))
    await study.read()
    prompts = [model.prompt_of(each) for each in model.server.requests]
    assert len(prompts) == 2
    assert all("We arrive at Morrow." in each for each in prompts)
    assert not any("secret of the well" in each for each in prompts)


async def test_a_line_without_its_reply_waits_for_it(study: Study, model: Vendor) -> None:
    await study.tell("I open the door.", "It creaks.", "I go in.")
    model.script(model.decides(significant=False))
    await study.read()
    assert await study.marks() == [2]
    await study.tell("It is dark.")
    model.script(model.decides(significant=False))
    await study.read()
    assert "I go in." in model.prompt_of(model.server.requests[-1])
    assert await study.marks() == [2, 4]


async def test_a_reply_that_was_swiped_is_not_read(study: Study, model: Vendor) -> None:
    lines = await study.tell("Who is there?", "A wolf!")
    model.script(model.decides(significant=False))
    await study.account.turn(study.chat_id, regenerate_of=str(lines[-1].id))
    await study.idle()
    (request,) = model.server.requests
    assert "A wolf!" not in model.prompt_of(request)
    assert "Who is there?" in model.prompt_of(request)


async def test_a_reply_swiped_meanwhile_is_read_again(study: Study, model: Vendor) -> None:
    lines = await study.tell("Who is there?", "A wolf!")
    model.script(
        model.decides(),
        model.calls(event("A wolf came.", "#3"), FINISH),
        model.decides(),
        model.calls(event("A friend came.", "#3"), FINISH),
    )
    await study.enqueue()
    async with model.thinking() as hold:
        await hold.is_reached.wait()
        await study.account.turn(study.chat_id, regenerate_of=str(lines[-1].id))
    await study.idle()
    assert await study.summaries() == ["A friend came."]
    (failed, _), (done, _) = await study.runs()
    assert (failed.state, failed.error) == ("failed", "path-changed")
    assert failed.prompt_tokens > 0
    assert done.state == "done"
    assert await study.marks() == [2]


async def test_events_of_a_swiped_reply_are_inactive(study: Study, model: Vendor) -> None:
    lines = await study.tell("Who is there?", "A wolf!")
    model.script(model.decides(), model.calls(event("A wolf came to the door.", "#3"), FINISH))
    await study.read()
    assert await study.summaries() == ["A wolf came to the door."]
    model.script(model.decides(significant=False))
    await study.account.turn(study.chat_id, regenerate_of=str(lines[-1].id))
    await study.idle()
    assert await study.events() == []


async def test_what_was_made_from_a_removed_message_is_deleted(study: Study, model: Vendor) -> None:
    ada = study.account
    lines = await study.tell("Who is there?", "A wolf!", "I bar the door.", "It howls.")
    wolf = event("A wolf came to the door.", "#3")
    howl = event("The wolf howled.", "#5")
    model.script(
        model.decides(), model.calls(wolf, howl, entry("Wolf", "A grey wolf.", "wolf"), FINISH)
    )
    await study.read()
    assert len(await study.summaries()) == 2
    chronicle = f"/chronicles/{study.chronicle_id}"
    own = await ada.post(
        f"{chronicle}/events",
        {"summary": "My own note.", "source_message_ids": [str(lines[1].id)]},
        201,
    )
    [book] = [each for each in (await ada.get("/lorebooks"))["items"] if each["chronicle_id"]]
    assert len((await ada.get(f"/lorebooks/{book['id']}/entries"))["items"]) == 1
    marks = await study.marks()
    await ada.delete(f"/messages/{lines[1].id}", 200, alone="true")
    # The event of another message stays, and so does the user's own, without the message.
    assert set(await study.summaries()) == {"The wolf howled.", "My own note."}
    assert (await ada.get(f"{chronicle}/events/{own['id']}"))["source_message_ids"] == []
    # The entry comes from the last message of its run.
    await ada.delete(f"/messages/{lines[3].id}", 200, alone="true")
    assert await study.summaries() == ["My own note."]
    assert (await ada.get(f"/lorebooks/{book['id']}/entries"))["items"] == []
    # The messages that were read are not read again.
    assert await study.marks() == marks
    await study.tell("Who now?", "Nobody.")
    model.script(model.decides(significant=False))
    await study.read()
    asked = model.prompt_of(model.server.requests[-1])
    assert "I bar the door." in asked
    assert "A wolf!" not in asked
    assert "It howls." not in asked


@pytest.mark.every_database
async def test_a_swipe_is_read_without_the_lines_before_it(study: Study, model: Vendor) -> None:
    lines = await study.tell(
        "I wait.", "Nothing.", "I wait on.", "Nothing still.", "Hm.", "A wolf!"
    )
    model.script(*(model.decides(significant=False) for _ in range(2)))
    await study.read()
    await study.account.turn(study.chat_id, regenerate_of=str(lines[-1].id))
    await study.idle()
    (_, _), (again, _) = await study.runs()
    assert (again.from_position, again.to_position) == (5, 6)


async def test_a_continued_reply_is_read_again(study: Study, model: Vendor) -> None:
    await study.tell("I wait.", "Nothing.", "Who is there?", "A wolf")
    model.script(*(model.decides(significant=False) for _ in range(2)))
    await study.read()
    await study.account.turn(study.chat_id, **{"continue": True})
    await study.idle()
    (_, _), (again, _) = await study.runs()
    assert (again.from_position, again.to_position) == (3, 4)
    assert await study.marks() == [2, 4]


async def test_two_jobs_write_once(database_url: str, tmp_path: Path, model: Vendor) -> None:
    """A chat that changes its chronicle has a job in both lanes."""
    async with studying(database_url, tmp_path, model) as study:
        await study.tell("I light the lamp.", "It burns.")
        model.script(
            *(model.decides() for _ in range(2)),
            *(model.calls(event("The lamp was lit."), FINISH) for _ in range(2)),
        )
        identity = await identity_of(study.server, study.account)
        parts = study.server.parts
        async with model.thinking() as hold:
            await study.enqueue()
            await hold.is_reached.wait()
            async with parts.database.write() as session:
                await EnrichmentOutbox(parts.queue).study(
                    session, identity, UUID(study.chat_id), new_id()
                )
            while hold.waiting < 2:  # else one of them takes an answer that is meant for the other
                await asyncio.sleep(0.01)
        await study.idle()
        assert await study.summaries() == ["The lamp was lit."]
        assert sorted(run.state for run, _ in await study.runs()) == ["done", "failed"]


async def test_the_next_run_reads_lines_of_a_failed_one(study: Study, model: Vendor) -> None:
    await study.tell("I bury the sword.", "It is buried.")
    model.script(model.decides(), model.fails(503))
    await study.read()
    ((run, _),) = await study.runs()
    assert (run.state, run.error) == ("failed", "model-overloaded")
    assert (run.calls, run.prompt_tokens, run.completion_tokens) == (1, 100, 10)
    assert await study.events() == []
    assert await study.marks() == []
    await study.tell("I go home.", "You are home.")
    model.script(model.decides(), model.calls(event("Ada buried the sword.", "#2", "#3"), FINISH))
    await study.try_again()
    assert await study.summaries() == ["Ada buried the sword."]
    assert await study.marks() == [2, 4]
    assert [run.state for run, _ in await study.runs()] == ["failed", "done"]


async def test_the_provider_sets_the_time_of_the_retry(study: Study, model: Vendor) -> None:
    await study.tell("I bury the sword.", "It is buried.")
    model.script(model.fails(429, headers={"retry-after": "120"}))
    await study.read()
    (job,) = await study.jobs()
    assert job.state == "queued"
    assert job.attempts == 0
    assert 100 < (job.run_after - job.updated_at).total_seconds() <= 121


@pytest.mark.every_database
async def test_an_unknown_model_ends_the_job(study: Study) -> None:
    """The chosen model is no longer available."""
    identity = await identity_of(study.server, study.account)
    chosen = UserSettings(enrichment=EnrichmentSettings(model="gemini/none"))
    async with study.server.parts.database.write() as session:
        user = await session.get_one(User, identity.user_id)
        user.sealed_settings = identity.sealer.seal_bytes(
            USER_SETTINGS, user.id, msgspec.json.encode(chosen)
        )
    await study.tell("I bury the sword.", "It is buried.")
    await study.read()
    ((run, _),) = await study.runs()
    assert (run.state, run.error, run.model) == ("failed", "unknown-model", "gemini/none")
    assert await study.jobs() == []


@pytest.mark.every_database
async def test_the_job_waits_for_tokens(database_url: str, tmp_path: Path, model: Vendor) -> None:
    async with studying(database_url, tmp_path, model, enrichment_tokens_per_day=100) as study:
        await study.tell("I bury the sword.", "It is buried.")
        model.script(model.decides(significant=False))
        await study.read()
        await study.tell("I dig it up.", "It is rusty.")
        await study.read()
        (job,) = await study.jobs()
        assert job.attempts == 0
        assert (job.run_after - job.updated_at).total_seconds() > 80_000
        assert len(model.server.requests) == 1
        assert await study.marks() == [2]


@pytest.mark.every_database
async def test_a_long_past_is_read_in_steps(study: Study, model: Vendor) -> None:
    await study.tell(*(f"Line number {n}." for n in range(58)))
    model.script(*(model.decides(significant=False) for _ in range(3)))
    await study.read()
    runs = [run for run, _ in await study.runs()]
    assert [(run.from_position, run.to_position) for run in runs] == [(1, 24), (25, 48), (49, 58)]
    assert await study.marks() == [22, 24, 46, 48, 56, 58]
    last = model.prompt_of(model.server.requests[-1])
    before, new = last.rsplit("<new_lines>", 1)
    assert "Line number 47." in before
    assert "Line number 47." not in new
    assert "Line number 48." in new


@pytest.mark.parametrize(
    ("text", "finish", "problem"),
    [
        ("", "content_filter", "model-blocked"),
        ("", "stop", "model-empty-reply"),
        ("Certainly!", "stop", "model-malformed-answer"),
        ('{"significant": "who knows"}', "stop", "model-malformed-answer"),
    ],
)
@pytest.mark.every_database
async def test_lines_without_an_answer_are_skipped_in_the_end(
    study: Study, model: Vendor, text: str, finish: str, problem: str
) -> None:
    await study.tell("A door.", "It opens.")
    model.script(model.decides(significant=False))
    await study.read()  # from now on the JSON format of this server is known
    await study.tell("Something dreadful.", "Something worse.")
    blocked = openai_server.reply(text, finish=finish, used=openai_server.usage(50, 0))
    model.script(blocked, blocked, blocked)
    await study.read()
    for _ in range(2):
        assert await study.marks() == [2]
        await study.try_again()
    assert await study.marks() == [2, 4]
    await study.tell("A walk.", "Fresh air.")
    model.script(model.decides(significant=False))
    await study.try_again()
    assert await study.marks() == [2, 4, 6]
    _, (blocked_run, _), (done, _) = await study.runs()
    assert (blocked_run.state, blocked_run.error) == ("failed", problem)
    assert done.state == "done"


@pytest.mark.every_database
async def test_an_internal_error_leaves_a_failed_run(
    study: Study, model: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_an_hour(*_: object) -> timedelta:
        return timedelta(hours=1)

    await study.tell("I kill the king.", "The king is dead.")
    model.script(model.decides())
    with monkeypatch.context() as broken:
        broken.setattr(agent, "ShownReferences", None)
        broken.setattr(running, "draw_delay", wait_an_hour)
        await study.read()
    (run, detail) = (await study.runs())[-1]
    assert (run.state, run.error, run.prompt_tokens) == ("failed", "internal-error", 100)
    assert len(detail.message_ids) == 2
    (job,) = await study.jobs()
    assert (job.attempts, job.error) == (1, "internal-error")


async def test_the_demo_writes_an_event(database_url: str, tmp_path: Path, model: Vendor) -> None:
    async with studying(database_url, tmp_path, model, enrichment_model="demo") as study:
        await study.tell(
            "I find the silver key under the altar of the chapel.",
            "Mara kills the drowned warden on the causeway.",
        )
        await study.read()
        assert any("silver key" in each for each in await study.summaries())
        _, detail = (await study.runs())[-1]
        assert detail.note == "Demo model: simple rules, no language model read this."
        assert model.server.requests == []


async def test_long_lines_are_truncated(sqlite_url: str, tmp_path: Path, model: Vendor) -> None:
    async with studying(sqlite_url, tmp_path, model, openai_context_window=4_096) as study:
        long = "It began. " + "The rain fell on the roofs of the harbour. " * 500 + "It ended."
        await study.tell("I listen.", long, "I sleep.", "Good night.")
        model.script(*(model.decides(significant=False) for _ in range(3)))
        await study.read()
        runs = [run for run, _ in await study.runs()]
        assert [(run.from_position, run.to_position) for run in runs] == [(1, 1), (2, 2), (3, 4)]
        prompt = model.prompt_of(model.server.requests[1])
        assert "It began." in prompt
        assert "It ended." in prompt
        assert len(prompt) < 8_000
