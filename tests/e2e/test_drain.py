"""A server that is told to end while replies run, and gives them time."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.process import Served, serving
from tests.support.waiting import PATIENCE

API = "/api/v1"
ADA = {"username": "Ada", "password": "a fine long password"}
TOKENS_PER_SECOND = 50


@dataclass
class Reply:
    """A reply that streams in a thread of its own."""

    text: str = ""
    has_begun: threading.Event = field(default_factory=threading.Event)

    def read(self, response: httpx.Response) -> None:
        for piece in response.iter_text():
            self.text += piece
            if "text.delta" in self.text:
                self.has_begun.set()


@dataclass
class Player:
    """Somebody with a key for the API, and a server that they use."""

    served: Served
    key: str

    @contextlib.contextmanager
    def client(self) -> Generator[httpx.Client]:
        """A client with a connection that is kept."""
        headers = {"Authorization": f"Bearer {self.key}"}
        with httpx.Client(
            base_url=self.served.url, headers=headers, timeout=PATIENCE, trust_env=False
        ) as client:
            assert client.get("/health").status_code == 200
            yield client

    @contextlib.contextmanager
    def speaking(self, text: str) -> Generator[Reply]:
        """Send a line, and enter the block once the reply has begun. Leave it after its end."""
        with self.client() as client:
            chat = client.post(f"{API}/chats", json={}).json()["id"]
            reply, body = Reply(), {"text": text}
            with client.stream("POST", f"{API}/chats/{chat}/turns", json=body) as response:
                reader = threading.Thread(target=reply.read, args=(response,))
                reader.start()
                assert reply.has_begun.wait(PATIENCE)
                yield reply
                reader.join(PATIENCE)


@contextlib.contextmanager
def playing(folder: Path, **settings: str | int) -> Generator[Player]:
    with serving(folder, demo_tokens_per_second=TOKENS_PER_SECOND, **settings) as served:
        with httpx.Client(base_url=served.url, timeout=PATIENCE, trust_env=False) as browser:
            assert browser.post(f"{API}/accounts", json=ADA).status_code == 201
            token = {"x-csrftoken": browser.cookies["csrftoken"]}
            body = {"label": "player"}
            made = browser.post(f"{API}/api-keys", json=body, headers=token)
            assert made.status_code == 201, made.text
        yield Player(served, made.json()["token"])


def order(served: Served, number: int = signal.SIGTERM) -> None:
    """Tell a server to end, and return once it has closed its listener."""
    served.process.send_signal(number)
    address = httpx.URL(served.url)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            httpx.get(address.copy_with(path="/health"), trust_env=False)
        except httpx.ConnectError:
            return
    raise AssertionError("it still listens")


def test_a_reply_that_ends_in_time_arrives_whole_and_nothing_new_begins(tmp_path: Path) -> None:
    with (
        playing(tmp_path, drain_seconds=PATIENCE) as player,
        player.client() as prober,
        player.client() as writer,
        player.client() as reader,
    ):
        chat = writer.post(f"{API}/chats", json={}).json()["id"]
        with player.speaking("/demo long 120") as reply:
            order(player.served)

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
        assert "event: turn.completed" in reply.text
        assert player.served.process.wait(PATIENCE) == 0
        assert '"error"' not in player.served.log.read_text()


def test_a_second_signal_ends_the_reply(tmp_path: Path) -> None:
    with playing(tmp_path, drain_seconds=PATIENCE) as player:
        with player.speaking("/demo long 100000") as reply:
            order(player.served)
            player.served.process.terminate()
        assert "turn-interrupted" in reply.text
        assert player.served.process.wait(PATIENCE) == 0
        assert "another signal ends it now" in said_by(player.served)


def said_by(served: Served) -> str:
    stdout: Any = served.process.stdout
    said: str = stdout.read()
    return said
