"""A program that plays over HTTP, for tests that start servers as processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator

import httpx

from tests.support.waiting import PATIENCE

API = "/api/v1"
ACCOUNT = {"username": "Ada", "password": "a fine long password"}


class Player:
    """An account's program, with an API key.

    Args:
        url: Address of a server without accounts.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.streaming = threading.Semaphore(0)
        """One more for each reply that has begun."""
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as browser:
            assert browser.post(f"{API}/accounts", json=ACCOUNT).status_code == 201
            token = {"x-csrftoken": browser.cookies["csrftoken"]}
            made = browser.post(f"{API}/api-keys", json={"label": "player"}, headers=token)
            assert made.status_code == 201, made.text
        self._headers = {"Authorization": f"Bearer {made.json()['token']}"}

    @contextlib.contextmanager
    def client(self) -> Generator[httpx.Client]:
        """A client with an open connection."""
        with httpx.Client(
            base_url=self._url, headers=self._headers, timeout=PATIENCE, trust_env=False
        ) as client:
            assert client.get("/health").status_code == 200
            yield client

    def read_reply(self, line: str) -> str:
        """Send a line in a new chat. Return the events of the reply once its stream has ended."""
        events, has_begun = "", False
        with self.client() as client:
            chat = client.post(f"{API}/chats", json={}).json()["id"]
            path = f"{API}/chats/{chat}/turns"
            with client.stream("POST", path, json={"text": line}) as response:
                assert response.status_code == 200, response.read()
                for piece in response.iter_text():
                    events += piece
                    if not has_begun and "text.delta" in events:
                        has_begun = True
                        self.streaming.release()
        return events
