"""Two servers behind the proxy of compose.yaml, of which one is told to end."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.door import door, free_port
from tests.support.process import Served, serving
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.postgres, pytest.mark.door]

API = "/api/v1"
ADDRESSES = ("127.0.0.2", "127.0.0.3")
ROOT_KEY = "1:" + "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI="
NOBODY_THERE = "http://127.0.0.1:9"
"""An index that does not answer: turns go on without it."""
ACCOUNT = {"username": "Ada", "password": "a fine long password"}
REPLIES = 4
"""The proxy gives each server two."""


def client(url: str, key: str = "") -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=url, headers=headers, timeout=PATIENCE, trust_env=False)


def sign_up(url: str) -> str:
    """Make an account and an API key for it."""
    with client(url) as browser:
        assert browser.post(f"{API}/accounts", json=ACCOUNT).status_code == 201
        token = {"x-csrftoken": browser.cookies["csrftoken"]}
        made = browser.post(f"{API}/api-keys", json={"label": "player"}, headers=token)
        assert made.status_code == 201, made.text
    return made.json()["token"]


class Replies:
    """Replies that stream, each read in a thread of its own."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        self.streaming = threading.Semaphore(0)
        """One more for each reply that has begun."""

    def read(self, line: str) -> tuple[int, str]:
        """Send a line in a new chat. Return status and events once the stream has ended."""
        with client(self._url, self._key) as player:
            chat = player.post(f"{API}/chats", json={}).json()["id"]
            text, has_begun = "", False
            path = f"{API}/chats/{chat}/turns"
            with player.stream("POST", path, json={"text": line}) as response:
                for piece in response.iter_text():
                    text += piece
                    if not has_begun and "text.delta" in text:
                        has_begun = True
                        self.streaming.release()
            return response.status_code, text


def write_until(url: str, key: str, is_over: threading.Event) -> list[int]:
    """Make one chat after the other. Return the statuses of the answers."""
    statuses: list[int] = []
    with client(url, key) as writer:
        while not is_over.is_set():
            statuses.append(writer.post(f"{API}/chats", json={}).status_code)
    return statuses


def test_a_server_that_ends_costs_no_request_and_cuts_no_reply(
    postgres_url: str, tmp_path: Path
) -> None:
    port, is_over = free_port(ADDRESSES), threading.Event()
    with ExitStack() as stack, ThreadPoolExecutor(REPLIES + 1) as threads:
        servers: list[Served] = []
        for address in ADDRESSES:
            folder = tmp_path / address
            folder.mkdir()
            server = serving(
                folder,
                port=port,
                host=address,
                database_url=postgres_url,
                root_key=ROOT_KEY,
                qdrant_url=NOBODY_THERE,
                drain_seconds=PATIENCE,
                demo_tokens_per_second=50,
            )
            servers.append(stack.enter_context(server))
        url = stack.enter_context(door(tmp_path, ADDRESSES, port))
        key = sign_up(url)
        replies = Replies(url, key)
        streams = [threads.submit(replies.read, "/demo long 120") for _ in range(REPLIES)]
        written = threads.submit(write_until, url, key, is_over)
        for _ in streams:
            assert replies.streaming.acquire(timeout=PATIENCE)

        servers[0].process.send_signal(signal.SIGTERM)
        assert servers[0].process.wait(PATIENCE) == 0
        later = replies.read("/demo long 1")
        is_over.set()

        for status, events in [*(each.result(PATIENCE) for each in streams), later]:
            assert status == 200
            assert "event: turn.completed" in events
        assert set(written.result(PATIENCE)) == {201}
        assert "turn.finished" in servers[0].log.read_text()
