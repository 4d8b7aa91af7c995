"""Tests of the rules by which old rows are deleted or folded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import Invitation, LoginFailures
from backend.chats.models import Message
from backend.database.base import Base, now
from backend.database.batches import MAX_ROWS, TARGET_SECONDS, Pace
from backend.database.engine import Database
from backend.enrichment.models import EnrichmentRun
from backend.jobs.models import Job
from backend.operations.doctor import examine
from backend.operations.pruning import GRACE, OTHER_RULES, PRUNE_KIND, RULES, prune
from backend.quotas.models import TokenLedger
from backend.settings import Settings
from backend.transfer.models import Import
from backend.turns.models import ContextText, StoredContextRecord
from backend.turns.run.store import TEXT_RENEWAL
from tests.support.chronicling import last_run, opt_in
from tests.support.memory import settled
from tests.support.server import Account, Running, ok, problem, running
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

KEPT = timedelta(days=180)
LINE = "Three lamps burn on the wall."


@pytest.fixture
async def either(database_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(database_url, tmp_path) as server:
        yield server


async def count(session: AsyncSession, model: type[Base]) -> int:
    return await session.scalar(select(func.count()).select_from(model)) or 0


async def grow_older(server: Running, model: type[Base], age: timedelta, **which: Any) -> None:
    """Change the time of creation of rows."""
    change = update(model).values(created_at=now() - age)
    async with server.parts.database.write() as session:
        await session.execute(change.filter_by(**which))


async def prune_now(server: Running) -> None:
    await prune(server.parts.database, server.parts.settings)


def test_every_table_has_a_rule_or_a_reason() -> None:
    pruned = {rule.table.name for rule in RULES}
    kept = [name for names in OTHER_RULES.values() for name in names]
    assert sorted([*pruned, *kept]) == sorted(Base.metadata.tables)


def test_the_number_of_rows_follows_the_duration() -> None:
    pace = Pace()
    for _ in range(20):
        pace.note(TARGET_SECONDS / 100)
    assert pace.rows == MAX_ROWS
    pace.note(10 * TARGET_SECONDS)
    assert pace.rows == MAX_ROWS // 2
    for _ in range(20):
        pace.note(10 * TARGET_SECONDS)
    assert pace.rows == 1


@pytest.mark.every_database
async def test_old_prompts_are_deleted_and_their_replies_stay(either: Running) -> None:
    async with either.account("Ada") as ada:
        chat = (await ada.new_chat())["id"]
        old = (await ada.turn(chat, text=LINE))[0].data["reply_id"]
        new = (await ada.turn(chat, text="And now?"))[0].data["reply_id"]
        await grow_older(either, StoredContextRecord, KEPT - timedelta(minutes=1))
        await prune_now(either)
        ok(await ada.ask("GET", f"/messages/{old}/context"))

        for model in (StoredContextRecord, Message):
            await grow_older(either, model, KEPT, id=UUID(old))
        await prune_now(either)
        gone = problem(await ada.ask("GET", f"/messages/{old}/context"), 404, "context-not-found")
        assert "180 days" in gone["detail"]
        assert ok(await ada.ask("GET", f"/messages/{new}/context"))["difference"] is None
        # A swipe of the old reply gets a record of its own.
        await ada.turn(chat, regenerate_of=new)
        swipe = (await ada.messages(chat))[-1]["id"]
        ok(await ada.ask("GET", f"/messages/{swipe}/context"))


@pytest.mark.every_database
async def test_a_text_in_use_is_renewed_and_others_are_deleted(either: Running) -> None:
    async with either.account("Ada") as ada:
        chat = (await ada.new_chat(character_ids=[(await ada.new_character())["id"]]))["id"]
        await ada.turn(chat, text=LINE)
        async with either.parts.database.read() as session:
            used = set(await session.scalars(select(ContextText.id)))
        assert used
        await grow_older(either, ContextText, TEXT_RENEWAL - timedelta(hours=1))
        before = await read_times(either.parts.database)
        await ada.turn(chat, text="And now?")
        after = await read_times(either.parts.database)
        assert {each: after[each] for each in used} == before

        await grow_older(either, ContextText, KEPT + TEXT_RENEWAL)
        reply = (await ada.turn(chat, text="Go on."))[0].data["reply_id"]
        await prune_now(either)
        left = await read_times(either.parts.database)
        assert left
        assert min(left.values()) > now() - timedelta(minutes=5)
        context = ok(await ada.ask("GET", f"/messages/{reply}/context"))
        assert all(each["text"] for each in context["prompt"])


async def read_times(database: Database) -> dict[UUID, datetime]:
    async with database.read() as session:
        rows = await session.execute(select(ContextText.id, ContextText.created_at))
        return {row[0]: row[1] for row in rows}


async def test_a_run_without_details_keeps_its_tokens_and_cannot_be_undone(
    server: Running, ada: Account
) -> None:
    chat = (await ada.new_chat())["id"]
    await opt_in(ada, chat)
    await ada.turn(chat, text="The lamp of Seagate is called Ember.")
    run = await last_run(ada, chat)
    await grow_older(server, EnrichmentRun, timedelta(days=365))
    await prune_now(server)
    left = await last_run(ada, chat)
    assert (left["id"], left["prompt_tokens"]) == (run["id"], run["prompt_tokens"])
    assert (left["message_ids"], left["written"], left["can_undo"]) == ([], [], False)
    answer = await ada.ask("POST", f"/enrichment/runs/{run['id']}/undo")
    assert "too old" in problem(answer, 409, "nothing-to-undo")["detail"]


@pytest.mark.every_database
async def test_the_token_ledger_is_folded_and_the_month_stays_the_same(either: Running) -> None:
    async with either.account("Ada") as ada, either.account("Ben") as ben:
        today = now().date()
        yesterday, last_month = today - timedelta(days=1), today - timedelta(days=32)
        rows = [
            make_usage(person, day, model, tokens)
            for person in (ada, ben)
            for day in (today, yesterday, last_month)
            for model, tokens in ((None, 5), (None, 7), ("a", 1), ("a", 2), ("b", 3))
        ]
        async with either.parts.database.write() as session:
            await session.execute(insert(TokenLedger), rows)
        before = await ada.get("/usage/month"), await read_ledger(either)
        await prune_now(either)
        await prune_now(either)
        ledger = await read_ledger(either)
        assert await ada.get("/usage/month") == before[0]
        for person in (ada, ben):
            mine = ledger[UUID(person.user["id"])]
            assert mine[today] == before[1][UUID(person.user["id"])][today]
            assert mine[yesterday] == [(None, 12), ("a", 3), ("b", 3)]
            assert set(mine) == {today, yesterday}


def make_usage(person: Account, day: date, model: str | None, tokens: int) -> dict[str, Any]:
    counts = {"turns": 1 if model else 0, "prompt_tokens": 10 * tokens if model else 0}
    user_id = UUID(person.user["id"])
    return {"user_id": user_id, "day": day, "model": model, "tokens": tokens, **counts}


async def read_ledger(server: Running) -> dict[UUID, dict[date, list[tuple[str | None, int]]]]:
    found: dict[UUID, dict[date, list[tuple[str | None, int]]]] = {}
    query = select(TokenLedger).order_by(TokenLedger.model.is_not(None), TokenLedger.model)
    async with server.parts.database.read() as session:
        for row in await session.scalars(query.order_by(TokenLedger.tokens)):
            found.setdefault(row.user_id, {}).setdefault(row.day, []).append(
                (row.model, row.tokens)
            )
    return found


async def test_the_rest_is_deleted_by_its_age(server: Running, ada: Account) -> None:
    code = ok(await ada.ask("POST", "/admin/invitations", json={"days": 1}), 201)
    year = timedelta(days=365)
    own = {"user_id": UUID(ada.user["id"]), "sealed_options": b"", "expires_at": now()}
    async with server.parts.database.write() as session:
        session.add(Import(**own, created_at=now() - year))
        session.add(Import(**own))
        session.add(LoginFailures(key=b"old", failures=1, last_at=now() - timedelta(days=1)))
        session.add(LoginFailures(key=b"new", failures=1, last_at=now()))
        over = update(Invitation).where(Invitation.id == UUID(code["id"]))
        await session.execute(over.values(expires_at=now() - timedelta(days=30)))
    # A session that has ended goes as well, and one that lasts stays.
    async with server.signed_in("Ada"):
        await prune_now(server)
        async with server.parts.database.read() as session:
            assert await count(session, Import) == 1
            assert await count(session, Invitation) == 0
            failures = set(await session.scalars(select(LoginFailures.key)))
            assert (b"old" in failures, b"new" in failures) == (False, True)
        ok(await ada.client.get("/api/v1/me"))


async def test_with_zero_days_nothing_is_deleted(server: Running, ada: Account) -> None:
    chat = (await ada.new_chat())["id"]
    reply = (await ada.turn(chat, text=LINE))[0].data["reply_id"]
    await grow_older(server, StoredContextRecord, 40 * KEPT)
    await prune(server.parts.database, Settings.model_validate({"keep_prompts_days": 0}))
    ok(await ada.ask("GET", f"/messages/{reply}/context"))


@pytest.mark.every_database
async def test_the_job_runs_every_hour_and_is_queued_once(either: Running) -> None:
    parts = either.parts
    async with either.account("Ada") as ada:
        chat = (await ada.new_chat())["id"]
        await ada.turn(chat, text=LINE)
        await grow_older(either, StoredContextRecord, KEPT)
        await parts.pruning.schedule()
        this = Job.kind == PRUNE_KIND
        async with parts.database.write() as session:
            assert await session.scalar(select(func.count()).where(this)) == 1
            await session.execute(update(Job).where(this).values(run_after=now()))
        parts.queue.wake()

        async def is_done() -> bool:
            async with parts.database.read() as session:
                left = await count(session, StoredContextRecord)
                later = select(func.count()).where(this, Job.run_after > now())
                return (left, await session.scalar(later)) == (0, 1)

        await until(is_done)
        await settled(either)


async def test_the_doctor_shows_the_rules_and_warns_if_they_are_not_followed(
    server: Running, ada: Account
) -> None:
    chat = (await ada.new_chat())["id"]
    await ada.turn(chat, text=LINE)
    await grow_older(server, StoredContextRecord, KEPT + GRACE / 2)
    name, settings = "old rows: context_records", server.parts.settings
    [found] = [each for each in await examine(settings) if each.name == name]
    assert found.state == "ok"
    assert "kept for 180 days (TALEKEEPER_KEEP_PROMPTS_DAYS)" in found.detail
    assert "about 1 rows in the table, the oldest 181.0 days" in found.detail
    await grow_older(server, StoredContextRecord, KEPT + 2 * GRACE)
    [found] = [each for each in await examine(settings) if each.name == name]
    assert found.state == "warning"


@pytest.mark.postgres
async def test_the_rules_read_no_whole_table(postgres_url: str) -> None:
    database = Database(postgres_url)
    settings = Settings.model_validate({})
    async with database.trial() as session:
        # The tables are empty: without this, reading all of them would be cheapest.
        await session.execute(text("SET LOCAL enable_seqscan = off"))
        for rule in RULES:
            query = select(rule.age_column).where(*rule.select_due(settings, now())).limit(10)
            sql = query.compile(
                dialect=session.get_bind().dialect, compile_kwargs={"literal_binds": True}
            )
            plan = list(await session.scalars(text(f"EXPLAIN {sql}")))
            assert not [line for line in plan if "Seq Scan" in line], (rule.rows, plan)
    await database.dispose()
