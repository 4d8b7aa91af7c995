"""Query plans of PostgreSQL: statements do not get slower if other accounts have more rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from backend import app
from backend.database.base import now
from backend.database.engine import Database
from backend.jobs.models import Job
from backend.operations import metrics
from backend.operations.pruning import prune
from backend.quotas.ledgers import MIN_ROWS_TO_FOLD, RECOUNT_KIND
from backend.quotas.models import StorageLedger
from tests.support.full_account import FullAccount, fill_account
from tests.support.multiplied import multiply
from tests.support.routes import routes_of
from tests.support.server import Account, Running, ok, running
from tests.support.statements import Statement, record_statements
from tests.support.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

COPIES = 1000
"""Other accounts with the same rows. The tables that grow have at least one row for each."""

TURN_TABLES = frozenset(
    [
        "campaign_changes",
        "campaign_items",
        "chats",
        "chronicle_events",
        "context_records",
        "context_texts",
        "index_changes",
        "jobs",
        "key_slots",
        "lore_entries",
        "messages",
        "storage_ledger",
        "token_ledger",
        "turns",
    ]
)

ADMIN_USERS = "/api/v1/admin/users"
"""A list that is read from the first account that was not copied: names of copies are sealed."""

_DUE_JOBS = text(
    "SELECT count(*) FROM jobs WHERE state IN ('queued', 'running') AND run_after <= now()"
)
_UNFOLDED = text(
    f"SELECT 1 FROM storage_ledger GROUP BY user_id HAVING count(*) >= {MIN_ROWS_TO_FOLD}"
)
_LATER_JOBS = text(
    "INSERT INTO jobs (id, user_id, share, kind, lane, payload, state, attempts, leases_lost,"
    " run_after, fence, progress_done, progress_total, created_at, updated_at)"
    " SELECT gen_random_uuid(), users.id, users.id, 'memory.index', gen_random_uuid(), '{}', state,"
    " 0, 0, now() + interval '1 day', 0, 0, 0, now(), now()"
    " FROM users, unnest(ARRAY['queued', 'waiting_key', 'dead']) AS state, generate_series(1, 5)"
)
_INDEX_CHANGES = text(
    "INSERT INTO index_changes (id, user_id, kind, container_id, source_id)"
    " SELECT id, user_id, 'message', chat_id, id FROM messages"
)
_GROWN = text(
    "SELECT relname FROM pg_class"
    " WHERE relnamespace = 'public'::regnamespace AND reltuples >= :copies"
)


async def test_no_statement_reads_a_table_that_grows_from_end_to_end(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "SWEEP_SECONDS", 0.5)
    monkeypatch.setattr(app, "SWEEPS_PER_LONG_ROUND", 1)
    monkeypatch.setattr(metrics, "MAX_COUNTED", COPIES // 10)
    async with (
        running(postgres_url, tmp_path, embedder="none") as server,
        server.account("ada") as ada,
    ):
        database = server.parts.database
        full = await fill_account(ada)
        await until(lambda: has_none(database, _DUE_JOBS))
        async with database.write() as session:
            await session.execute(_LATER_JOBS)
            await session.execute(_INDEX_CHANGES)
        await until(lambda: has_none(database, _UNFOLDED))
        await multiply(database, COPIES)
        await plan_recount(database)
        with record_statements() as recorded:
            await use_everything(server, ada, full)
            await prune(database, server.parts.settings)
            await until(lambda: has_none(database, _DUE_JOBS))
            await asyncio.sleep(2 * app.SWEEP_SECONDS)
        async with database.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            grown = frozenset(await connection.scalars(_GROWN, {"copies": COPIES}))
            statements = {each.text: each for each in recorded}
            scans = {
                text: found
                for text, each in statements.items()
                if (found := await find_scans(connection, each, grown))
            }
    assert grown >= TURN_TABLES
    for name in TURN_TABLES | {"processes"}:
        assert any(name in text for text in statements), name
    assert scans == {}


async def has_none(database: Database, query: Any) -> bool:
    async with database.read() as session:
        return not await session.scalar(query)


async def use_everything(server: Running, ada: Account, full: FullAccount) -> None:
    """Sign up and in, take turns, use each list and view, search, and delete."""
    async with server.account("bob"), server.signed_in("ada"):
        pass
    inn = full.ids["inn"]
    for name in ("inn", "session", "group"):
        await ada.turn(full.ids[name], text="The tide is late. Is the cellar open?")
    last = (await ada.messages(inn))[-1]["id"]
    await ada.turn(inn, regenerate_of=last)
    path = await ada.messages(inn)
    values = {
        "chat_id": inn,
        "message_id": path[-1]["id"],
        "turn_id": (await ada.get(f"/chats/{inn}/turns"))["items"][0]["id"],
        "character_id": full.ids["Mara"],
        "persona_id": full.ids["Ines"],
        "lorebook_id": full.ids["The war"],
        "preset_id": full.ids["preset"],
        "campaign_id": full.ids["campaign"],
        "chronicle_id": full.ids["chronicle"],
    }
    for route in routes_of(server.app):
        if (
            route.method == "GET"
            and route.path != ADMIN_USERS
            and set(route.parameters) <= values.keys()
        ):
            await ada.client.get(route.filled(values))
    before = UUID(int=UUID(ada.user["id"]).int - 1)
    assert (await ada.get("/admin/users", after=str(before), limit=1))["items"]
    assert (await ada.get("/search", q="tide"))["items"]
    key = await ada.post("/api-keys", {"label": "Client", "scope": "chat"}, 201)
    async with server.program(key["token"]) as program:
        talk = [{"role": "user", "content": "Who keeps the inn?"}]
        asked = {"model": f"character:{full.ids['Mara']}", "messages": talk}
        ok(await program.post("/v1/chat/completions", json=asked))
    await ada.patch(f"/messages/{path[-2]['id']}", {"text": "The tide is in."})
    await ada.delete(f"/messages/{path[-1]['id']}", 200)
    await ada.delete(f"/chats/{full.ids['group']}")


async def plan_recount(database: Database) -> None:
    """Let the recount of a night be due, after one that has counted all accounts."""
    async with database.write() as session:
        newest = await session.scalar(select(func.max(StorageLedger.id)))
        due = {"run_after": now(), "payload": json.dumps({"newest": newest})}
        await session.execute(update(Job).where(Job.kind == RECOUNT_KIND).values(due))


async def find_scans(
    connection: AsyncConnection, statement: Statement, grown: frozenset[str]
) -> list[str]:
    """Return the scans in the plan of a statement whose length depends on other accounts."""
    if not statement.text.lstrip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
        return []
    values = statement.values[0] if statement.is_batch else statement.values
    explained = await connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement.text}", values)
    return list(_walk(json.loads(explained.scalar_one())[0]["Plan"], grown))


def _walk(node: Any, grown: frozenset[str], *, is_limited: bool = False) -> Iterator[str]:
    kind, name = node["Node Type"], node.get("Index Name", node.get("Relation Name"))
    is_limited = is_limited or kind == "Limit"
    if "Scan" in kind and name in grown:
        is_whole = not {"Index Cond", "Recheck Cond", "TID Cond"} & node.keys()
        # A limit ends a scan early only if most rows are wanted.
        is_ended = is_limited and "Filter" not in node
        if (is_whole or node["Plan Rows"] >= COPIES) and not is_ended:
            yield f"{kind} of {name}: {node['Plan Rows']} rows"
    for each in node.get("Plans", ()):
        yield from _walk(each, grown, is_limited=is_limited)
