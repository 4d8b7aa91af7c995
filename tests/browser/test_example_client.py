"""The example client of docs/, served from another origin than the server."""

from __future__ import annotations

import threading
from collections.abc import Generator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.support.browser import Account, Installation, Watch, installing
from tests.support.process import Served

pytestmark = pytest.mark.browser

DOCS = Path(__file__).parents[2] / "docs"


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name in the base
        """Write nothing."""


@pytest.fixture(scope="module")
def site() -> Generator[str]:
    """The origin of a site with the files of docs/."""
    handler = partial(QuietHandler, directory=str(DOCS))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()


@pytest.fixture(scope="module")
def installation(site: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Installation]:
    """A server that allows the pages of the site."""
    with installing(
        tmp_path_factory.mktemp("served"),
        registration="open",
        demo_tokens_per_second="0",
        cors_origins=site,
    ) as installation:
        yield installation


@pytest.fixture
def example(site: str, context: BrowserContext, watch: Watch) -> Page:
    """A tab with the example client."""
    watch.expected.append("/favicon.ico$")
    watch.others.append(f"{site}/")
    page = context.new_page()
    page.goto(f"{site}/example-client.html")
    return page


def begin(example: Page, server: Served, account: Account, *, api: str, name: str) -> None:
    """Connect with a new key, and start a chat."""
    token = account.post("/api-keys", {"label": "Example", "scope": "chat"})["token"]
    example.get_by_label("Server").fill(server.url)
    example.get_by_label("API key").fill(token)
    example.get_by_label("Interface").select_option(api)
    example.get_by_role("button", name="Connect").click()
    example.locator("#choice select").select_option(label=name)
    example.get_by_role("button", name="Start a chat").click()
    expect(example.get_by_label("Your message")).to_be_visible()


def say(example: Page, text: str, *, count: int) -> None:
    """Send a line, and wait until there are so many messages."""
    example.get_by_label("Your message").fill(text)
    example.get_by_role("button", name="Send").click()
    expect(example.get_by_role("article")).to_have_count(count)
    expect(example.get_by_role("button", name="Send")).to_be_enabled()


def read(example: Page, account: Account) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the texts in the page, and the messages of the chat that it names."""
    expect(example.get_by_role("alert")).to_be_empty()
    chat = example.get_by_role("status").inner_text().rpartition(" ")[2]
    shown = [each.inner_text() for each in example.locator("article p").all()]
    return shown, account.get(f"/chats/{chat}/messages")["items"]


def test_it_chats_with_events_and_swipes(example: Page, server: Served, account: Account) -> None:
    character = account.import_card()
    begin(example, server, account, api="/api/v1", name=character["name"])
    expect(example.get_by_role("article")).to_have_count(1)
    say(example, "Is anyone there?", count=3)

    example.get_by_role("button", name="Another reply").click()
    expect(example.get_by_text("2 of 2")).to_be_visible()
    example.get_by_role("button", name="Previous version").last.click()
    expect(example.get_by_text("1 of 2").last).to_be_visible()
    say(example, "And then?", count=5)

    shown, stored = read(example, account)
    assert shown == [message["text"] for message in stored]
    assert (stored[2]["sibling"], stored[2]["sibling_count"]) == (1, 2)


def test_it_chats_through_the_openai_compatible_endpoint(
    example: Page, server: Served, account: Account
) -> None:
    account.import_card()
    name = next(
        each["id"]
        for each in account.get("/client-models")["items"]
        if each["id"].startswith("character:")
    )
    begin(example, server, account, api="/v1", name=name)
    say(example, "Is anyone there?", count=2)
    say(example, "I wait.", count=4)
    example.get_by_role("button", name="Another reply").click()
    expect(example.get_by_role("button", name="Another reply")).to_be_enabled()

    example.once("dialog", lambda dialog: dialog.accept("I wait for the ferry."))
    example.get_by_role("button", name="Edit").nth(2).click()
    expect(example.get_by_text("I wait for the ferry.")).to_be_visible()
    say(example, "And then?", count=6)

    shown, stored = read(example, account)
    assert shown == [message["text"] for message in stored]
    assert shown[2] == "I wait for the ferry."
    assert stored[3]["sibling_count"] == 2
