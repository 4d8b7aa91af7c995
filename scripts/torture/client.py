"""Clients: an account with an API key, its requests and their outcomes."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import httpx

from scripts.torture.history import History, Invocation, Outcome

PATIENCE = 20.0
"""Seconds after which a client gives a request up."""

PASSWORD = "a long torture password"  # noqa: S105  # of accounts that last as long as a campaign

PROVIDER_KEY = "sk-torture"
"""Prefix of the API keys of providers. No answer may contain it."""


@dataclass
class Answer:
    """The outcome of a request. `body` is the parsed JSON of its answer, or its bytes."""

    outcome: Outcome
    status: int | None = None
    body: Any = None

    @property
    def slug(self) -> str:
        """The slug of the problem, or an empty string."""
        body = cast("dict[str, Any]", self.body) if isinstance(self.body, dict) else {}
        return str(body.get("type", "")).rpartition(":")[2]


@dataclass
class HeardTurn:
    """The events of a turn. `started` and `is_saved` are acknowledgements.

    `started_at` is the time of `turn.started`, by the monotonic clock. If `is_unreachable`, the
    request did not reach the server.
    """

    status: int | None = None
    slug: str = ""
    started: dict[str, Any] | None = None
    text: str = ""
    waiting: dict[str, Any] | None = None
    started_at: float = 0.0
    is_unreachable: bool = False
    is_saved: bool = False
    is_over: bool = False
    problem: str = ""


def get_outcome(status: int) -> Outcome:
    """Return the outcome of a request by the status of its answer."""
    if 200 <= status < 300:
        return "ok"
    # Of a failure in mid-way the client does not know how far it came.
    return "refused" if status < 500 else "unknown"


@dataclass
class Client:
    """An account's requests. `urls` gives the servers that run at the moment."""

    name: str
    username: str
    user_id: UUID
    token: str
    history: History
    urls: Callable[[], Sequence[str]]
    draw: random.Random
    http: httpx.AsyncClient = field(
        default_factory=lambda: httpx.AsyncClient(timeout=PATIENCE, trust_env=False)
    )

    async def aclose(self) -> None:
        await self.http.aclose()

    async def ask(
        self, who: str, name: str, method: str, path: str, *, key: str = "", **more: Any
    ) -> Answer:
        """Send one request, and record it in the history as `name`.

        Args:
            who: The worker that asks.
            name: What is asked for.
            method: HTTP's.
            path: Below `/api/v1`.
            key: An `Idempotency-Key`.
            more: Arguments of httpx: `json`, `files`, `params`.
        """
        headers = {"idempotency-key": key} if key else {}
        arguments = {"path": path, "key": key, "json": more.get("json")}
        with self.history.invocation(f"{self.name}/{who}", name, **arguments) as invocation:
            url = self._url(path)
            if not url:
                invocation.outcome = "refused"
                return Answer("refused")
            try:
                async with asyncio.timeout(PATIENCE):
                    answer = await self.http.request(
                        method, url, headers=self._headers | headers, **more
                    )
            except httpx.ConnectError:
                invocation.outcome = "refused"
                await asyncio.sleep(0.1)
            except (httpx.TransportError, TimeoutError):
                pass
            else:
                return self._read_answer(invocation, answer.status_code, answer.content, path)
            return Answer(invocation.outcome)

    async def turn(
        self, who: str, chat_id: str, body: dict[str, Any], *, heard: HeardTurn | None = None
    ) -> HeardTurn:
        """Take a turn, and listen to its end or until the connection breaks.

        The events go into `heard` while they arrive.
        """
        name = next(
            (each for each in ("regenerate_of", "continue") if each in body), "turn"
        ).removesuffix("_of")
        path = f"/chats/{chat_id}/turns"
        return await self._heard(who, name, chat_id, path, body, heard or HeardTurn())

    async def choose(self, who: str, chat_id: str, turn_id: str, option: str) -> HeardTurn:
        """Send the choice that a turn waits for, and read its events."""
        path = f"/turns/{turn_id}/choice"
        body = {"option": option}
        return await self._heard(who, "choose", chat_id, path, body, HeardTurn())

    async def _heard(
        self,
        who: str,
        name: str,
        chat_id: str,
        path: str,
        body: dict[str, Any],
        heard: HeardTurn,
    ) -> HeardTurn:
        with self.history.invocation(f"{self.name}/{who}", name, chat=chat_id, **body) as made:
            url = self._url(path)
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._listen(url, body, heard)
            except httpx.ConnectError:
                made.outcome, heard.is_unreachable = "refused", True
                await asyncio.sleep(0.1)
            except (httpx.TransportError, TimeoutError):
                pass
            made.status = heard.status
            if heard.status is not None and heard.status != 200:
                made.outcome = get_outcome(heard.status)
                self._look_for_crash(heard.status, name, {"type": heard.slug})
            elif heard.is_saved:
                made.outcome = "ok"
            made.arguments["heard"] = {"started": heard.started, "over": heard.is_over}
        return heard

    async def _listen(self, url: str, body: dict[str, Any], heard: HeardTurn) -> None:
        async with self.http.stream("POST", url, json=body, headers=self._headers) as answer:
            heard.status = answer.status_code
            if answer.status_code != 200:
                problem = json.loads(await answer.aread() or b"{}")
                heard.slug = str(problem.get("type", "")).rpartition(":")[2]
                if heard.slug == "turn-waiting":
                    heard.waiting = problem["waiting"]
                    heard.started = {"turn_id": problem["turn_id"]}
                return
            event = ""
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    self._hear(heard, event, json.loads(line[6:]))

    @staticmethod
    def _hear(heard: HeardTurn, event: str, data: Any) -> None:
        match event:
            case "turn.started":
                heard.started, heard.started_at = data, time.monotonic()
            case "text.delta":
                heard.text += data["text"]
            case "text.reset":
                heard.text = heard.text[: data["length"]]
            case "turn.awaiting_choice":
                heard.waiting = data
            case "turn.choice_made":
                heard.waiting = None
            case "message.saved":
                heard.is_saved = True
            case "turn.completed" | "turn.failed":
                heard.is_over = True
                heard.problem = str(data.get("type", "")).rpartition(":")[2]
            case _:
                pass

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    def _url(self, path: str) -> str:
        urls = self.urls()
        return f"{self.draw.choice(urls)}/api/v1{path}" if urls else ""

    def _read_answer(
        self, invocation: Invocation, status: int, content: bytes, path: str
    ) -> Answer:
        invocation.status, invocation.outcome = status, get_outcome(status)
        try:
            body = json.loads(content) if content else None
        except ValueError:
            body = content
        self._look_for_crash(status, f"{invocation.name} {path}", body)
        if PROVIDER_KEY.encode() in content:
            self.history.breach(f"key: a provider's is in an answer to {invocation.name} {path}")
        return Answer(invocation.outcome, status, body)

    def _look_for_crash(self, status: int, what: str, body: Any) -> None:
        # A part that is unavailable answers 502 or 503. A 500 is a bug.
        if status == 500:
            self.history.breach(f"answered 500: {what.partition('/')[0].strip()} ({body})")


async def sign_up(
    url: str,
    name: str,
    history: History,
    urls: Callable[[], Sequence[str]],
    draw: random.Random,
) -> Client:
    """Create an account with an API key for all scopes."""
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=60, trust_env=False) as browser:
        username = f"{name}{time.time_ns()}"
        body = {"username": username, "password": PASSWORD}
        # One address may make only so many accounts.
        address = ".".join(["10", *(str(draw.randrange(256)) for _ in range(3))])
        made = await browser.post("/accounts", json=body, headers={"x-forwarded-for": address})
        made.raise_for_status()
        csrf = {"x-csrftoken": browser.cookies["csrftoken"]}
        body = {"label": "torture", "scope": "manage"}
        key = await browser.post("/api-keys", json=body, headers=csrf)
        key.raise_for_status()
        user = await browser.get("/me")
        user.raise_for_status()
    user_id = UUID(user.json()["id"])
    return Client(name, username, user_id, key.json()["token"], history, urls, draw)
