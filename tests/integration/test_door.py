"""Two servers behind the proxy of compose.yaml, of which one is told to end."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.compose import door, free_port
from tests.support.player import API, Player
from tests.support.process import Served, serving
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.postgres, pytest.mark.door]

ADDRESSES = ("127.0.0.2", "127.0.0.3")
ROOT_KEY = "1:" + "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI="
NOBODY_THERE = "http://127.0.0.1:9"
"""An index that does not answer: turns go on without it."""
REPLIES = 4
"""The proxy gives each server two."""


def start(folder: Path, address: str, port: int, database_url: str, stack: ExitStack) -> Served:
    """Start a server that runs until the stack is left."""
    folder.mkdir()
    server = serving(
        folder,
        port=port,
        host=address,
        database_url=database_url,
        root_key=ROOT_KEY,
        qdrant_url=NOBODY_THERE,
        drain_seconds=3600,
        demo_tokens_per_second=50,
    )
    return stack.enter_context(server)


def write_until(player: Player, is_over: threading.Event) -> set[int]:
    """Make one chat after the other. Return the statuses of the answers."""
    statuses: set[int] = set()
    with player.client() as client:
        while not is_over.is_set():
            statuses.add(client.post(f"{API}/chats", json={}).status_code)
    return statuses


def test_a_server_that_ends_costs_no_request_and_cuts_no_reply(
    postgres_url: str, tmp_path: Path
) -> None:
    port, is_over = free_port(ADDRESSES), threading.Event()
    with ThreadPoolExecutor(REPLIES + 1) as threads, ExitStack() as stack:
        ending, _ = (start(tmp_path / each, each, port, postgres_url, stack) for each in ADDRESSES)
        player = Player(stack.enter_context(door(tmp_path, ADDRESSES, port)))
        replies = [threads.submit(player.read_reply, "/demo long 120") for _ in range(REPLIES)]
        statuses = threads.submit(write_until, player, is_over)
        for _ in replies:
            assert player.streaming.acquire(timeout=PATIENCE)

        ending.process.send_signal(signal.SIGTERM)
        assert ending.process.wait(PATIENCE) == 0
        later = player.read_reply("/demo long 1")
        is_over.set()

        for events in [*(each.result(PATIENCE) for each in replies), later]:
            assert "event: turn.completed" in events
        assert statuses.result(PATIENCE) == {201}
        assert "turn.finished" in ending.log.read_text()
