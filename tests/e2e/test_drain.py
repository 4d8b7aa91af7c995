"""A server that is told to end while replies run, and gives them time."""

from __future__ import annotations

import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.support.player import API, Player
from tests.support.process import Served, serving
from tests.support.waiting import PATIENCE

LONG = 3600


def end(served: Served) -> None:
    """Tell a server to end, and return once it has closed its listener."""
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
