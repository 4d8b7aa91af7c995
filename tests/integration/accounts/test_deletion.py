"""Tests of account deletion: no rows are left, and no deleted bytes in SQLite's files."""

from __future__ import annotations

import asyncio
import os
import random
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Table, delete, select, text, update

from backend.accounts.keys.sealed_tables import find_model_tables
from backend.accounts.models import DataKey, IdempotentRequest, KeySlot
from backend.campaigns.models import CampaignMark, CampaignProposal, ChangeSource, ProposalSource
from backend.database import sqlite_connection as write_ahead_log
from backend.database.base import Base, new_id, now
from backend.database.engine import Database
from backend.jobs.models import Job
from backend.jobs.queue import NewJob
from backend.memory.models import Embedding
from backend.quotas.models import StorageLedger
from backend.transfer.contracts import ChatTarget
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Gate
from tests.integration.characters.pictures import picture
from tests.integration.turns.seeding import identity_of
from tests.support.archives import make_archive
from tests.support.chronicling import last_run, new_event, opt_in, sum_up
from tests.support.importing import card_json, upload
from tests.support.memory import forgotten, settled
from tests.support.models import asking, held_back
from tests.support.server import PASSWORD, Account, Running, ok, problem, running
from tests.support.stored_chats import make_header, make_line, read, report_nothing, write_lines
from tests.support.waiting import until, until_true
from tests.support.zips import zipped

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

ME = "/api/v1/me"
NOBODYS = {"login_failures", "token_ratios", "processes", "alembic_version", "compatible_revisions"}
"""Tables without an owner."""


async def rows(server: Running) -> dict[str, set[tuple[Any, ...]]]:
    """Return the keys of all rows, by table."""

    def key(table: Table) -> list[Any]:
        if table.name == "storage_ledger":  # its rows are folded into one from time to time
            return [table.c.user_id]
        return list(table.primary_key.columns)

    async with server.parts.database.read() as session:
        return {
            name: {tuple(row) for row in await session.execute(select(*key(table)))}
            for name, table in Base.metadata.tables.items()
            if name not in NOBODYS
        }


async def has_rows(server: Running, before: dict[str, set[tuple[Any, ...]]]) -> bool:
    """True if the rows are the same as before. Jobs without an owner may end a little later."""
    found = await rows(server)
    assert found | {"jobs": set()} == before | {"jobs": set()}
    return found == before


async def write_lore(account: Account, chat_id: str, character_id: str) -> None:
    """Make a book that is linked twice, with a sticky entry."""
    client = account.client
    book = ok(await client.post("/api/v1/lorebooks", json={"name": "Inns"}), 201)["id"]
    entry = {"keys": ["hello"], "content": "Inns are warm.", "sticky": 5}
    ok(await client.post(f"/api/v1/lorebooks/{book}/entries", json=entry), 201)
    ok(await client.put(f"/api/v1/chats/{chat_id}/lorebooks/{book}", json={"state": "linked"}))
    linked = await client.put(f"/api/v1/characters/{character_id}/lorebooks/{book}")
    assert linked.is_success, linked.text


async def keep_a_vector(server: Running, account: Account) -> None:
    """Store an embedding, because this server has no embedder."""
    async with server.parts.database.write() as session:
        session.add(
            Embedding(
                user_id=UUID(account.user["id"]), digest=b"d", sealed_vector=b"", used_at=now()
            )
        )


async def keep_a_request(server: Running, account: Account, chat_id: str) -> None:
    """Play the chat with an API key, and correct the decision about the request."""
    body = {"label": "program", "scope": "chat"}
    token = ok(await account.client.post("/api/v1/api-keys", json=body), 201)["token"]
    line = {"role": "user", "content": "The lamp is out again, I fear."}
    async with server.program(token) as program:
        request = {"model": f"chat:{chat_id}", "messages": [line]}
        ok(await program.post("/v1/chat/completions", json=request))
    [made] = ok(await account.client.get("/api/v1/client-requests"))["items"]
    path = f"/api/v1/client-requests/{made['id']}/correction"
    ok(await account.client.post(path, json={"kind": "turn"}))


async def keep_a_file(server: Running, account: Account) -> None:
    """Import a chat with a picture."""
    uri = "data:image/png;base64,iVBORw0KGgo="
    chat = write_lines([make_header(), make_line("Look.", extra={"image": uri})])
    await server.parts.chat_importer.store(
        await identity_of(server, account),
        read(chat),
        ChatTarget(file_name="Mara.jsonl", digest=b"d"),
        report=report_nothing,
    )


async def keep_transfers(account: Account) -> None:
    """Make an archive, and stop an import in the middle."""
    await make_archive(account)
    files = {f"{number:03}.json": card_json(f"N{number}") for number in range(100)}
    view = await upload(account, zipped(files))

    async def has_begun() -> bool:
        return bool((await account.get(f"/imports/{view['id']}"))["counts"]["imported"])

    await until(has_begun)
    await account.post(f"/jobs/{view['job_id']}/stop", status=202)


async def keep_a_campaign(server: Running, account: Account, chat_id: str) -> None:
    """Make a campaign with a change of a message, a proposal, and a mark."""
    client = account.client
    campaign = ok(await client.post("/api/v1/campaigns", json={"name": "Seagate"}), 201)
    body = {"campaign_id": campaign["id"]}
    ok(await client.patch(f"/api/v1/chats/{chat_id}", json=body))
    (change,) = ok(await client.get(f"/api/v1/campaigns/{campaign['id']}/changes"))["items"]
    newest = (await account.messages(chat_id))[-1]
    message_id, position = UUID(newest["id"]), newest["position"]
    own = {"user_id": UUID(account.user["id"]), "campaign_id": UUID(campaign["id"])}
    place = {"chat_id": UUID(chat_id), "position": position}
    proposal = CampaignProposal(
        **own, id=new_id(), item_id=new_id(), kind="fact", reason="locked", sealed_proposal=b"-"
    )
    async with server.parts.database.write() as session:
        session.add(ChangeSource(change_id=UUID(change["id"]), message_id=message_id, **place))
        session.add(CampaignMark(**own, id=message_id, version=1, **place))
        session.add(proposal)
        await session.flush()
        session.add(
            ProposalSource(proposal_id=proposal.id, message_id=message_id, chat_id=UUID(chat_id))
        )


async def live(account: Account) -> str:
    """Make a row in every table with an owner. Return the id of the chat."""
    client = account.client
    character = await account.new_character(alternate_greetings=["A knock."])
    persona = ok(await client.post("/api/v1/personas", json={"name": "Wanderer"}), 201)
    mara, wanderer = f"characters/{character['id']}", f"personas/{persona['id']}"
    for path in (f"{mara}/avatar", f"{mara}/background", f"{wanderer}/avatar"):
        put = await client.put(
            f"/api/v1/{path}",
            content=picture(width=8, height=8),
            headers={"content-type": "image/png"},
        )
        assert put.status_code == 204, put.text
    cards = Path(__file__).parents[2] / "fixtures" / "cards"
    for name in ("syn_v3.charx", "syn_v2_and_v3_precedence.png"):
        file = {"file": (cards / name).read_bytes()}
        ok(await client.post("/api/v1/characters/import", files=file), 201)
    chat = await account.new_chat(character_ids=[character["id"]], persona_id=persona["id"])
    await write_lore(account, chat["id"], character["id"])
    chronicle_id = await opt_in(account, chat["id"])
    events = await account.turn(chat["id"], text="{{setglobalvar::a::b}}Hello.")
    await account.turn(chat["id"], regenerate_of=events[0].data["reply_id"])
    await account.turn(chat["id"], impersonate=True)
    newest = (await account.messages(chat["id"]))[-1]["id"]
    await new_event(account, chronicle_id, "Mara said hello.", source_message_ids=[newest])
    await sum_up(account, chat["id"], "They met.", through=newest)
    await last_run(account, chat["id"])
    ok(await client.patch(f"{ME}/settings", json={"system_prompt": "Be kind."}))
    ok(await client.patch(f"/api/v1/chats/{chat['id']}/settings", json={"system_prompt": "Rain."}))
    ok(await client.post("/api/v1/api-keys", json={"label": "script"}), 201)
    ok(await client.post(f"{ME}/second-factors/totp", json={"password": PASSWORD}), 201)
    again = {"Idempotency-Key": "once"}
    ok(await client.post("/api/v1/chats", json={}, headers=again), 201)
    ok(await client.post("/api/v1/presets", json={"name": "Terse"}), 201)
    provider = {"preset": "anthropic", "api_key": "sk-ant-of-somebody"}
    ok(await client.post("/api/v1/providers", json=provider), 201)
    chat_id: str = chat["id"]
    return chat_id


async def delete_me(account: Account, password: str = PASSWORD) -> Any:
    return await account.client.request("DELETE", ME, json={"password": password})


async def test_nothing_of_the_account_is_left_in_any_table(either: Running) -> None:
    async with either.account("Ada") as ada, either.account("Ben") as ben:
        await live(ada)
        await settled(either)
        before = await rows(either)
        async with either.account("Cleo") as cleo, either.signed_in("Cleo") as other:
            chat_id = await live(cleo)
            await keep_transfers(cleo)
            await keep_a_campaign(either, cleo, chat_id)
            await keep_a_vector(either, cleo)
            await keep_a_file(either, cleo)
            await keep_a_request(either, cleo, chat_id)
            await settled(either)
            folder = either.parts.settings.transfers_dir
            assert {path.suffix for path in folder.iterdir()} == {".archive", ".upload"}
            cleos = {
                name: keys - before.get(name, set()) for name, keys in (await rows(either)).items()
            }
            assert {name for name, keys in cleos.items() if not keys} <= {
                "instance_keys",
                "invitations",
                # Only administrators make these.
                "installation_providers",
                "provider_addresses",
                # Finished work leaves no rows.
                "index_changes",
                "jobs",
                "slot_claims",
            }
            gone = await delete_me(cleo)
            assert gone.status_code == 204, gone.text
            assert dict(cleo.client.cookies) == {}
            problem(await other.client.get(ME), 401, "unauthenticated")
        await settled(either)
        await forgotten(either)
        await until_true(lambda: not list(folder.iterdir()))
        await until(lambda: has_rows(either, before))
        ok(await ben.client.get(ME))
        async with either.account("cleo"):
            pass  # the name is free again


async def test_deleting_takes_the_password(server: Running, ada: Account) -> None:
    problem(await delete_me(ada, "not the password"), 401, "wrong-credentials")
    ok(await ada.client.get(ME))


async def test_the_last_administrator_cannot_leave_the_others_alone(
    server: Running, ada: Account
) -> None:
    async with server.account("Ben") as ben:
        code = ok(await ada.client.post("/api/v1/admin/invitations", json={}), 201)["code"]
        problem(await delete_me(ada), 409, "last-administrator")
        path = f"/api/v1/admin/users/{ben.user['id']}"
        ok(await ada.client.patch(path, json={"is_administrator": True}))
        assert (await delete_me(ada)).status_code == 204
        # The invitations of an administrator are deleted with the account.
        assert code
        assert ok(await ben.client.get("/api/v1/admin/invitations"))["items"] == []


async def test_the_only_account_can_go_and_the_next_one_administers(
    server: Running, ada: Account
) -> None:
    assert (await delete_me(ada)).status_code == 204
    async with server.account("Ben") as ben:
        assert ben.user["is_administrator"] is True


async def test_a_running_turn_of_a_deleted_account_leaves_no_rows(
    database_url: str, tmp_path: Path
) -> None:
    gate = Gate()
    async with (
        OpenAIServer() as model,
        running(database_url, tmp_path, **asking(model)) as server,
        server.account("Ada"),
    ):
        before = await rows(server)
        async with server.account("Ben") as ben:
            chat = (await ben.new_chat())["id"]
            model.script(held_back(gate))
            stream = asyncio.create_task(ben.turn(chat, text="Tell me."))
            runs = server.parts.turns.runs
            await until_true(lambda: len(runs))
            assert (await delete_me(ben)).status_code == 204
            gate.opened.set()
            await until_true(lambda: not len(runs))
            await stream
        await settled(server)
        await forgotten(server)
        assert await rows(server) == before


NEW = "an even finer password"
PIECE = 24
"""Bytes of a blob to search for, too many for a match by chance."""


def find_in_files(folder: Path, blob: bytes) -> list[str]:
    """Return the names of the database's files that contain a piece of the blob."""
    pieces = {blob[at : at + PIECE] for at in (0, len(blob) // 2, len(blob) - PIECE)}
    return [
        file.name
        for file in sorted(folder.glob("*.sqlite3*"))
        if any(piece in file.read_bytes() for piece in pieces)
    ]


def sightings(folder: Path, blobs: list[bytes]) -> list[list[str]]:
    return [found for blob in blobs if (found := find_in_files(folder, blob))]


async def read_keys(server: Running, account: Account) -> list[bytes]:
    """Return the wrapped keys that open the account's texts."""
    user_id = UUID(account.user["id"])
    async with server.parts.database.read() as session:
        found: list[bytes] = []
        for query in (
            select(KeySlot.wrapped).where(KeySlot.user_id == user_id),
            select(DataKey.wrapped).where(DataKey.user_id == user_id),
            select(Job.wrapped_key).where(Job.user_id == user_id, Job.wrapped_key.is_not(None)),
        ):
            found += [each for each in await session.scalars(query) if each]
    return found


async def read_texts(server: Running, account: Account, *tables: str) -> list[bytes]:
    user_id, found = UUID(account.user["id"]), list[bytes]()
    async with server.parts.database.read() as session:
        for sealed in find_model_tables():
            for column in sealed.columns:
                query = select(column).where(sealed.owner == user_id, column.is_not(None))
                if not tables or sealed.table.name in tables:
                    found += await session.scalars(query)
    return found


async def later_job(server: Running, account: Account) -> bytes:
    """Enqueue a job for tomorrow. Return its wrapped key."""
    queue, user_id = server.parts.queue, UUID(account.user["id"])
    identity = await server.parts.sessions.authenticate(
        account.client.cookies["talekeeper_session"], "session"
    )
    assert identity is not None
    async with server.parts.database.write() as session:
        job_id = await queue.enqueue(
            session,
            NewJob("index", user_id, run_after=now() + timedelta(days=1)),
            key=queue.grant(identity.sealer, "per_job"),
        )
        wrapped = await session.scalar(select(Job.wrapped_key).where(Job.id == job_id))
    assert wrapped is not None
    return wrapped


async def test_a_deleted_account_leaves_neither_keys_nor_texts_in_the_files(
    server: Running, ada: Account, tmp_path: Path
) -> None:
    chat = (await ada.new_chat(title="The lighthouse"))["id"]
    await ada.turn(chat, text="Tell me. " * 2_000)
    await later_job(server, ada)
    blobs = [*await read_keys(server, ada), *await read_texts(server, ada)]
    assert len(blobs) > 8
    assert len(sightings(tmp_path, blobs)) == len(blobs)
    gone = await ada.client.request("DELETE", ME, json={"password": PASSWORD})
    assert gone.status_code == 204
    assert sightings(tmp_path, blobs) == []


async def test_a_switch_to_sealed_leaves_no_jobs_key_in_the_files(
    server: Running, ada: Account, tmp_path: Path
) -> None:
    wrapped = await later_job(server, ada)
    assert find_in_files(tmp_path, wrapped)
    ok(await ada.client.patch(ME, json={"key_mode": "sealed"}))
    assert find_in_files(tmp_path, wrapped) == []


async def test_a_replaced_password_and_an_ended_session_leave_nothing_in_the_files(
    server: Running, ada: Account, tmp_path: Path
) -> None:
    async with server.signed_in("Ada") as other:
        change = {"current_password": PASSWORD, "new_password": NEW}
        before = await read_slots(server, "password")
        ok(await ada.client.post(f"{ME}/password", json=change), 204)
        assert sightings(tmp_path, before) == []
        del other
    sessions = await read_slots(server, "session")
    ok(await ada.client.delete("/api/v1/sessions/current"), 204)
    assert sightings(tmp_path, sessions) == []


async def read_slots(server: Running, kind: str) -> list[bytes]:
    async with server.parts.database.read() as session:
        return list(await session.scalars(select(KeySlot.wrapped).where(KeySlot.kind == kind)))


async def test_whatever_else_is_deleted_is_gone_from_the_files_soon(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead_log, "EMPTY_INTERVAL_SECONDS", 0.1)
    async with running(sqlite_url, tmp_path) as server, server.account("Ada") as ada:
        chat = (await ada.new_chat(title="The lighthouse"))["id"]
        await ada.turn(chat, text="Tell me.")
        blobs = await read_texts(server, ada, "chats", "messages")
        assert len(sightings(tmp_path, blobs)) == len(blobs)
        ok(await ada.client.delete(f"/api/v1/chats/{chat}"), 204)
        await until_true(lambda: not sightings(tmp_path, blobs))


async def test_a_stop_leaves_an_empty_log(sqlite_url: str, tmp_path: Path) -> None:
    reader = Database(sqlite_url)  # as another process has it, so that the log is not deleted
    async with reader.read() as session:
        await session.execute(text("SELECT 1"))
    async with running(sqlite_url, tmp_path) as server, server.account("Ada") as ada:
        await ada.new_chat(title="The lighthouse")
        assert (tmp_path / "talekeeper.sqlite3-wal").stat().st_size > 0
    assert (tmp_path / "talekeeper.sqlite3-wal").stat().st_size == 0
    await reader.dispose()


async def add_slots(database: Database, count: int) -> list[bytes]:
    rows = [
        IdempotentRequest(
            id=new_id(),
            user_id=new_id(),
            key_digest=os.urandom(32),
            request_digest=b"",
            sealed_response=os.urandom(random.choice((40, 400, 4_000, 40_000))),
        )
        for _ in range(count)
    ]
    async with database.write() as session:
        await session.execute(text("PRAGMA defer_foreign_keys=ON"))
        session.add_all(rows)
        await session.flush()
        found = [row.sealed_response or b"" for row in rows]
        ids = [row.id for row in rows]
        kept = ids[::3]
        await session.execute(
            update(IdempotentRequest)
            .where(IdempotentRequest.id.in_(kept))
            .values(sealed_response=os.urandom(60))
        )
        await session.execute(delete(IdempotentRequest))
        await session.execute(delete(StorageLedger))  # of accounts that there are none of
    return found


async def test_pages_that_were_freed_or_split_keep_nothing(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    blobs = await add_slots(database, 300)
    assert await database.log.empty()
    assert sightings(tmp_path, blobs) == []
    await database.dispose()


async def test_a_reader_in_the_way_is_waited_for_and_holds_up_neither_answers_nor_writers(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead_log, "EMPTY_INTERVAL_SECONDS", 0.1)
    database, other = Database(sqlite_url), Database(sqlite_url)
    await database.log.empty()
    async with other.read() as reading:
        await reading.execute(text("SELECT * FROM users"))
        await add_slots(database, 3)
        assert not await database.log.empty_now()
        await add_slots(database, 3)
    keeping = asyncio.create_task(database.log.keep_empty())
    file = Path(database.place + "-wal")
    await until_true(lambda: not file.stat().st_size)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    for each in (database, other):
        await each.dispose()


async def test_writers_go_on_beside_a_log_that_is_emptied_all_the_time(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    is_over = asyncio.Event()

    async def empty() -> int:
        count = 0
        while not is_over.is_set():
            count += await database.log.empty()
            await asyncio.sleep(0)
        return count

    emptying = asyncio.create_task(empty())
    await asyncio.gather(*(add_slots(database, 2) for _ in range(30)))
    is_over.set()
    assert await emptying > 0
    await database.dispose()


@pytest.mark.postgres
async def test_postgresql_has_no_such_log(postgres_url: str) -> None:
    database = Database(postgres_url)
    async with database.write() as session:
        await session.execute(text("SELECT 1"))
    assert await database.log.empty()
    await database.dispose()
