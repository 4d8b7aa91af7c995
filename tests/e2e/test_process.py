"""`talekeeper` as a process: its output, its end and its files."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.database import engine as patience
from backend.database.migrate import HEAD
from tests.support.player import Player
from tests.support.process import Served, run_command, serving, serving_installed
from tests.support.waiting import PATIENCE

API = "/api/v1"
ADA = {"username": "Ada", "password": "a fine long password"}
NOWHERE = "postgresql+asyncpg://user:secret@127.0.0.1:1/name"


@contextmanager
def browser(url: str) -> Generator[httpx.Client]:
    """A client that sends the CSRF token back, as the page does."""

    def send_token(request: httpx.Request) -> None:
        if token := client.cookies.get("csrftoken"):
            request.headers["x-csrftoken"] = token

    with httpx.Client(
        base_url=url, event_hooks={"request": [send_token]}, timeout=60, trust_env=False
    ) as client:
        yield client


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(API + path, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def events_of(stream: str) -> list[tuple[str, Any]]:
    """Names and data of a whole stream's events."""
    events: list[tuple[str, Any]] = []
    for block in stream.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields:
            events.append((fields["event"], json.loads(fields["data"])))
    return events


@pytest.mark.parametrize(
    "order", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]
)
def test_a_server_that_is_stopped_in_mid_reply_keeps_all_of_it_and_tells_the_stream(
    tmp_path: Path, order: signal.Signals
) -> None:
    stream = ""
    with serving(tmp_path, demo_tokens_per_second="50") as served, browser(served.url) as client:
        post(client, "/accounts", ADA)
        chat = post(client, "/chats", {})["id"]
        turn = {"text": "/demo long 100000"}
        with client.stream("POST", f"{API}/chats/{chat}/turns", json=turn) as response:
            for piece in response.iter_text():
                if stream.count("text.delta") < 5 <= (stream + piece).count("text.delta"):
                    served.process.send_signal(order)
                stream += piece
        assert served.process.wait(60) == (0 if order == signal.SIGTERM else 130)
        assert '"error"' not in served.log.read_text()
        assert "Talekeeper is stopping." in served.output.read()
    events = events_of(stream)
    name, data = events[-1]
    assert name == "turn.failed"
    assert data["type"].endswith(":turn-interrupted"), data
    said = "".join(data["text"] for name, data in events if name == "text.delta")
    assert said

    with serving(tmp_path) as served, browser(served.url) as client:
        post(client, "/sessions", ADA)
        reply = client.get(f"{API}/chats/{chat}/messages").json()["items"][-1]
        assert (reply["status"], reply["text"]) == ("interrupted", said)


def test_a_server_that_nobody_uses_stops_with_exit_code_0(tmp_path: Path) -> None:
    with serving_installed(tmp_path) as served, browser(served.url) as client:
        assert client.get("/health").status_code == 200
        assert served.stop() == 0


UNREACHABLE = (
    "talekeeper: The database at 127.0.0.1:1 does not respond. Start it, or correct "
    "TALEKEEPER_DATABASE_URL."
)


def test_a_database_that_does_not_answer_is_said_in_one_sentence(tmp_path: Path) -> None:
    result = run_command(tmp_path, "migrate", database_url=NOWHERE)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"{UNREACHABLE}\n"


def shorten_delays() -> None:
    patience.START_RETRY_SECONDS = (0.02, 0.02, 0.02, 0.02, 0.02)


@pytest.mark.parametrize("command", ["serve", "work"])
def test_a_start_waits_for_a_database_that_does_not_answer_yet(
    tmp_path: Path, command: str
) -> None:
    result = run_command(
        tmp_path,
        command,
        prepare=shorten_delays,
        database_url=NOWHERE,
        qdrant_url="http://127.0.0.1:1",
        port="0",
    )
    assert (result.returncode, result.stdout) == (1, "")
    *tries, last = result.stderr.splitlines()
    assert ['"start.step_failed"' in line for line in tries] == [True] * 5
    assert last == UNREACHABLE


def test_the_tables_of_a_running_server_stay_as_they_are(tmp_path: Path) -> None:
    with serving(tmp_path) as served, browser(served.url) as client:
        result = run_command(tmp_path, "migrate", "--down", "--to", "base")
        assert result.returncode == 1
        assert "Another process uses" in result.stderr
        post(client, "/accounts", ADA)


def test_going_back_needs_to_be_told_how_far(tmp_path: Path) -> None:
    for arguments in (["--down"], ["--down", "--to", "head"]):
        result = run_command(tmp_path, "migrate", *arguments)
        assert result.returncode == 2
        assert "--to REVISION" in result.stderr
    assert run_command(tmp_path, "migrate").stdout.endswith(f"revision {HEAD}.\n")
    result = run_command(tmp_path, "migrate", "--down", "--to", "base")
    assert (result.returncode, result.stdout) == (0, "The database is at revision base.\n")


LONG = 3600


def end(served: Served) -> None:
    """Ask a server to end, and return after it has closed its listener."""
    served.process.send_signal(signal.SIGTERM)
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        try:
            httpx.get(f"{served.url}/health", trust_env=False)
        except httpx.ConnectError:
            return
    raise AssertionError("it still listens")


def speak(player: Player, line: str) -> Future[str]:
    """Send a line, and wait until the reply has begun. The result is its events."""
    thread = ThreadPoolExecutor(1)
    events = thread.submit(player.read_reply, line)
    thread.shutdown(wait=False)
    assert player.streaming.acquire(timeout=PATIENCE)
    return events


def test_a_reply_that_ends_in_time_arrives_whole_and_nothing_new_begins(tmp_path: Path) -> None:
    with serving(tmp_path, drain_seconds=LONG, demo_tokens_per_second=50) as served:
        player = Player(served.url)
        with player.client() as prober, player.client() as writer, player.client() as reader:
            events = speak(player, "/demo long 120")
            chat = writer.post(f"{API}/chats", json={}).json()["id"]
            end(served)

            ready = prober.get("/ready")
            assert ready.status_code == 503
            assert ready.json()["parts"][0] == {
                "name": "server",
                "ready": False,
                "detail": "The server is stopping",
                "needed": True,
            }
            refused = writer.post(f"{API}/chats/{chat}/turns", json={"text": "Anyone?"})
            assert refused.status_code == 503
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["type"].endswith(":server-stopping")
            assert int(refused.headers["retry-after"]) > 0
            assert refused.headers["connection"] == "close"

            left = reader.get(f"{API}/chats/{chat}/messages")
            assert (left.json()["items"], left.headers["connection"]) == ([], "close")
        assert "event: turn.completed" in events.result(PATIENCE)
        assert served.process.wait(PATIENCE) == 0
        assert '"error"' not in served.log.read_text()


def test_a_second_signal_ends_the_reply(tmp_path: Path) -> None:
    with serving(tmp_path, drain_seconds=LONG, demo_tokens_per_second=50) as served:
        events = speak(Player(served.url), "/demo long 100000")
        end(served)
        served.process.terminate()
        assert "turn-interrupted" in events.result(PATIENCE)
        assert served.process.wait(PATIENCE) == 0
        assert "Send another signal to stop now" in served.output.read()
