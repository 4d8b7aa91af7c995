"""Tests for operators: health, metrics, request ids, errors, and imports of a start."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import NullPool, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from backend import app
from backend.jobs.service import JobService
from backend.operations.doctor import Finding, examine
from backend.turns.api.service import TurnService
from tests.support.logs import Logged
from tests.support.server import Account, Running, ok, problem, running, settings_of
from tests.support.waiting import PATIENCE, until, until_true

pytestmark = pytest.mark.anyio

API = "/api/v1"
CANARY = "the-canary-sings-in-the-cellar"


@pytest.mark.every_database
async def test_it_says_that_it_is_alive_and_ready_and_with_what(
    database_url: str, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path) as server, server.browser() as client:
        assert ok(await client.get("/health")) == {"status": "alive"}
        answer = ok(await client.get("/ready"))
        assert answer["ready"] is True
        parts = {part["name"]: part for part in answer["parts"]}
        assert parts["database"]["detail"] == make_url(database_url).get_backend_name()
        assert parts["models"]["detail"] == "demo"
        assert all(part["ready"] for part in parts.values())


async def test_it_says_that_a_helper_process_does_not_start_and_serves_without(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.regex.process._PROGRAM", "backend.no_such_module")
    async with running(sqlite_url, tmp_path) as server, server.browser() as client:
        await asyncio.to_thread(server.parts.regexes.prepare)
        answer = ok(await client.get("/ready"))
    parts = {part["name"]: part for part in answer["parts"]}
    assert parts["patterns"] == {
        "name": "patterns",
        "ready": False,
        "detail": "its process does not start; it is retried automatically",
        "needed": False,
    }
    assert answer["ready"] is True


async def test_the_doctor_finds_helper_processes_that_do_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(data_dir=tmp_path)

    async def finding() -> Finding:
        (found,) = [each for each in await examine(settings) if each.name == "helper processes"]
        return found

    assert (await finding()).state == "ok"
    for program in ("regex.process", "memory.index.edge"):
        monkeypatch.setattr(f"backend.{program}._PROGRAM", "backend.no_such_module")
    found = await finding()
    assert found.state == "fault"
    assert "regular expressions" in found.detail
    assert "the index" in found.detail


async def test_without_its_database_it_is_alive_and_not_ready(
    postgres_url: str, tmp_path: Path, postgres_server: Any, logged: Logged
) -> None:
    name = make_url(postgres_url).database
    admin = create_async_engine(
        postgres_server.get_uri(driver="asyncpg"), isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    async with running(postgres_url, tmp_path) as server, server.browser() as client:
        ok(await client.get("/ready"))
        answer = await client.get("/ready")
        # A worker may replace its closed connection first.
        while answer.status_code != 503:
            async with admin.connect() as connection:
                await connection.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    f"WHERE datname = '{name}'"
                )
            answer = await client.get("/ready")
        parts = {part["name"]: part for part in answer.json()["parts"]}
        assert parts["database"] == {
            "name": "database",
            "ready": False,
            "detail": "The database does not respond",
            "needed": True,
        }
        ok(await client.get("/health"))
        assert ok(await client.get("/ready"))["ready"] is True
    await admin.dispose()


async def test_metrics_are_for_this_machine_alone_unless_the_settings_say_otherwise(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with running(sqlite_url, tmp_path) as server, server.browser() as client:
        await client.get(f"{API}/chats/{CANARY}")
        await client.get(f"{API}/chats?after={CANARY}")
        metrics = await client.get("/metrics")
        assert metrics.status_code == 200
        assert 'path="/api/v1/chats"' in metrics.text
        assert CANARY not in metrics.text
        for headers in (
            {"X-Forwarded-For": "127.0.0.1"},
            {"Forwarded": "for=127.0.0.1"},
            {"X-Real-IP": "127.0.0.1"},
            {"Via": "1.1 proxy"},
            {"Host": "tales.example"},
            {"Host": "127.tales.example"},
        ):
            problem(await client.get("/metrics", headers=headers), 404, "not-found")
    for metrics_for, status in (("everyone", 200), ("off", 404)):
        async with (
            running(sqlite_url, tmp_path, metrics=metrics_for) as server,
            server.browser() as client,
        ):
            answer = await client.get("/metrics", headers={"X-Forwarded-For": "203.0.113.7"})
            assert answer.status_code == status


async def test_a_request_keeps_the_id_that_it_came_with_when_it_is_one(
    server: Running, logged: Logged
) -> None:
    async with server.browser() as client:
        given = "trace-1234.abcd_ef"
        answer = await client.get("/health", headers={"X-Request-ID": given})
        assert answer.headers["x-request-id"] == given
        made: set[str] = set()
        for bad in ("short", "x" * 65, "two words here", "line\tbreak", "éééééééé"):
            sent = [(b"X-Request-ID", bad.encode())]
            answer = await client.get("/no/such/page", headers=sent)
            made.add(answer.headers["x-request-id"])
        assert len(made) == 5
        assert all(re.fullmatch(r"[0-9a-f]{16}", each) for each in made)
    finished = logged.lines("request.finished")
    assert {line["request_id"] for line in finished} == {given, *made}
    assert {line["path_template"] for line in finished} == {"/health", "unmatched"}


async def test_a_client_that_disconnects_during_an_upload_is_no_crash(
    server: Running, ada: Account, logged: Logged
) -> None:
    made = ok(await ada.client.post(f"{API}/api-keys", json={"label": "script"}), 201)
    url = httpx.URL(server.url)
    _, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        f"POST {API}/characters/import HTTP/1.1\r\nHost: {url.netloc.decode()}\r\n"
        f"Authorization: Bearer {made['token']}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n"
        "--x\r\n".encode()
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await until_true(lambda: logged.lines("request.abandoned"))
    (line,) = logged.lines("request.abandoned")
    assert line["level"] == "info"
    assert logged.lines("request.crashed") == []


async def test_a_crash_gives_the_client_an_id_and_the_log_a_place(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    def fail(text: str) -> None:
        raise LookupError(f"no such thing as {text}")

    async def crash(*_: Any, **__: Any) -> None:
        try:
            fail(CANARY)
        except LookupError as error:
            raise RuntimeError(f"{CANARY} was too much") from error

    monkeypatch.setattr(server.parts.chats, "list_chats", crash)
    answer = await ada.client.get(f"{API}/chats", headers={"X-Request-ID": "trace-12345"})
    body = problem(answer, 500, "internal")
    assert set(body) == {"type", "title", "status", "detail", "error_id"}
    assert CANARY not in answer.text
    assert CANARY not in str(answer.headers)

    (line,) = logged.lines("request.crashed")
    assert line["error_id"] == body["error_id"]
    assert line["request_id"] == "trace-12345"
    assert line["error_type"] == "RuntimeError"
    assert "tests/integration/test_operation.py" in line["exception"]
    assert "caused by LookupError" in line["exception"]
    assert CANARY not in logged.text


async def test_errors_of_every_kind_are_problems_and_say_what_to_do(
    server: Running, ada: Account
) -> None:
    client = ada.client
    bare = {"type", "title", "status"}
    for path in ("/no/such/page", f"{API}/chats/no-id", f"{API}/chats/{CANARY}/messages"):
        assert set(problem(await client.get(path), 404, "not-found")) == bare

    wrong_method = await client.put(f"{API}/chats", json={})
    assert set(problem(wrong_method, 405, "method-not-allowed")) == bare
    allowed = {each.strip() for each in wrong_method.headers["allow"].split(",")}
    assert {"GET", "POST"} <= allowed

    json = {"content-type": "application/json"}
    for content in (
        b"{",
        b'{"title": }',
        b'{"title": "\xff"}',
        b'{"title": "\\ud800"}',
        b"[" * 99_999,
    ):
        answer = await client.post(f"{API}/chats", content=content, headers=json)
        assert problem(answer, 400, "bad-request")["detail"]

    for content, member in (
        (b'{"title": 1}', "title"),
        (b'{"character_ids": ["no id"]}', "character_ids[0]"),
        (b'{"unknown": 1}', ""),
        (b"[]", ""),
        (b"", ""),
    ):
        answer = await client.post(f"{API}/chats", content=content, headers=json)
        (fault,) = problem(answer, 422, "validation-failed")["errors"]
        assert (fault["member"], fault["in"]) == (member, "body")
        assert fault["message"]
        assert "'data'" not in answer.text

    answer = await client.get(f"{API}/chats", params={"limit": "many"})
    (fault,) = problem(answer, 422, "validation-failed")["errors"]
    assert (fault["member"], fault["in"]) == ("limit", "query")

    too_much = await client.post(f"{API}/chats", content=b" " * 9_000_000, headers=json)
    problem(too_much, 413, "too-large")


async def test_while_the_database_is_busy_nothing_is_half_done(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    monkeypatch.setattr("backend.database.sqlite_connection.BUSY_TIMEOUT_MS", 20)
    async with running(sqlite_url, tmp_path) as server, server.account() as ada:
        other = sqlite3.connect(tmp_path / "talekeeper.sqlite3", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        refused = await ada.client.post(f"{API}/chats", json={})
        body = problem(refused, 503, "database-unavailable")
        assert "sqlite" not in str(body).lower()
        # Readers do not block writers.
        assert ok(await ada.client.get(f"{API}/chats"))["items"] == []
        other.execute("ROLLBACK")
        other.close()
        made = ok(await ada.client.post(f"{API}/chats", json={}), 201)
        assert ok(await ada.client.get(f"{API}/chats"))["items"] == [made]


async def test_a_chore_that_fails_keeps_no_other_from_being_done(
    sqlite_url: str, tmp_path: Path, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, is_started = asyncio.Event(), False

    async def fail(*_: Any) -> None:
        if is_started:  # during the sweep, not at the start
            raise RuntimeError(CANARY)

    async def clean(*_: Any, **__: Any) -> None:
        done.set()

    async def has_failed() -> bool:
        return bool(logged.lines("server.sweep_failed"))

    monkeypatch.setattr(app, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(TurnService, "recover", fail)
    monkeypatch.setattr(JobService, "clean", clean)
    async with running(sqlite_url, tmp_path):
        is_started = True
        await until(has_failed)
        done.clear()
        await asyncio.wait_for(done.wait(), PATIENCE)
    failed = logged.lines("server.sweep_failed")
    assert {line["chore"] for line in failed} == {"turns"}
    assert CANARY not in logged.text


SERVE = """
import sys
from backend import cli
from backend.server import Server

serve = Server.serve

async def serve_shortly(self, **options):
    self.should_exit = True  # as soon as it has started
    await serve(self, **options)

Server.serve = serve_shortly
failed = cli.main(["serve", "--port", "0", "--data-dir", sys.argv[1]])
print("imported:", *sys.modules, sep="\\n")
sys.exit(failed)
"""

LATER = {
    *("alembic", "google.genai", "splintr", "tiktoken"),
    *("fastembed", "huggingface_hub", "onnxruntime", "qdrant_client", "qdrant_edge"),
    *("PIL", "httpx2", "markdown_it", "minify_html", "pygments", "rich"),
    *("segno", "tree_sitter", "tree_sitter_javascript"),
    *("cryptography.x509", "psutil"),
}


def test_a_start_imports_nothing_that_can_wait(tmp_path: Path) -> None:
    for _ in ("makes the tables", "finds them made"):
        done = subprocess.run(
            [sys.executable, "-c", SERVE, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    imported = set(done.stdout.partition("imported:\n")[2].split())
    assert "litestar" in imported
    assert not imported & LATER
