"""Other clients: their turns appear in the open page, and *Other apps* has their settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Account, Installation, finish_deletion, installing
from tests.support.process import Served
from tests.support.server import PLAIN
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Generator[Installation]:
    """A server with a demo model that can be watched while it writes."""
    with installing(
        tmp_path_factory.mktemp("served"), registration="open", demo_tokens_per_second="40"
    ) as installation:
        yield installation


@pytest.fixture
def client(server: Served, account: Account) -> Generator[httpx.Client]:
    """Another program of the account's owner, with an API key."""
    token = account.post("/api-keys", {"label": "SillyTavern", "scope": "chat"})["token"]
    with httpx.Client(
        base_url=f"{server.url}/api/v1",
        headers={"Authorization": f"Bearer {token}"},
        timeout=PATIENCE,
        trust_env=False,
        verify=PLAIN,
    ) as client:
        yield client


def test_turns_edits_and_branches_of_another_client_appear_in_an_open_chat(
    page: Page, account: Account, client: httpx.Client
) -> None:
    chat = account.new_chat(title="The lighthouse")["id"]
    page.goto(f"/#/chats/{chat}")
    expect(page.get_by_text("No messages yet.")).to_be_visible()
    messages = page.get_by_role("feed").get_by_role("article")

    with ThreadPoolExecutor(1) as background:
        turn = background.submit(
            client.post, f"/chats/{chat}/turns", json={"text": "/demo long 200"}
        )
        growing = page.locator("article[aria-busy=true]")
        expect(growing).to_contain_text("the rain came down on the old harbour")
        assert not turn.done()
        expect(messages).to_have_count(2)
        page.get_by_role("button", name="Stop").click()
        assert turn.result().is_success
    expect(growing).to_have_count(0)

    line, reply = client.get(f"/chats/{chat}/messages").json()["items"]
    client.patch(f"/messages/{reply['id']}", json={"hidden": True}).raise_for_status()
    expect(messages.last.get_by_text("Hidden", exact=True)).to_be_visible()
    client.patch(f"/messages/{line['id']}", json={"text": "Row faster."}).raise_for_status()
    expect(messages).to_have_count(1)
    expect(messages).to_contain_text("Row faster.")


def test_the_page_of_other_apps_names_what_to_enter_and_keeps_its_settings(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    account.import_card()
    page.goto("/#/clients")
    expect(page.get_by_text(re.compile("^http://.*/v1$"))).to_be_visible()
    names = page.get_by_role("list", name="Models")
    expect(names.get_by_text("character:", exact=False)).to_be_visible()
    expect(page.get_by_text("No requests yet.")).to_be_visible()

    page.get_by_role("button", name="Create API key").click()
    page.get_by_label("Label").fill("SillyTavern")
    page.get_by_role("dialog").get_by_role("button", name="Create API key").click()
    expect(page.get_by_text("it will not be shown again")).to_be_visible()
    page.get_by_role("button", name="Close").click()

    expect(page.get_by_role("checkbox", name="Recognize characters")).to_be_checked()
    page.get_by_role("checkbox", name="Keep a chronicle in new chats").check()
    page.get_by_label("Unknown parameters").select_option("Pass on to the provider")
    expect(page.get_by_text("Saved")).to_be_visible()
    assert account.get("/me/settings")["client"] == {
        "chronicle": True,
        "unknown_parameters": "pass_on",
    }
    assert_accessible(page)


def test_requests_are_explained_and_a_wrong_decision_is_corrected(
    page: Page, account: Account, server: Served, assert_accessible: Callable[[Page], None]
) -> None:
    account.import_card()
    model = next(
        each["id"]
        for each in account.get("/client-models")["items"]
        if each["id"].startswith("character:")
    )
    token = account.post("/api-keys", {"label": "SillyTavern", "scope": "chat"})["token"]

    def complete(*messages: dict[str, str]) -> dict[str, str]:
        answer = httpx.post(
            f"{server.url}/v1/chat/completions",
            json={"model": model, "messages": messages},
            headers={"Authorization": f"Bearer {token}", "User-Agent": "node-fetch"},
            timeout=PATIENCE,
            trust_env=False,
            verify=PLAIN,
        )
        assert answer.is_success, answer.text
        message: dict[str, str] = answer.json()["choices"][0]["message"]
        return {"role": "assistant", "content": message["content"]}

    line = {"role": "user", "content": "Is anyone there, down by the old harbour?"}
    reply = complete(line)
    complete(line, reply, {"role": "system", "content": "Write a haiku about the harbour."})

    page.goto("/#/clients")
    requests = page.get_by_role("list", name="Last requests").get_by_role("listitem")
    expect(requests).to_have_count(2)
    quiet, turn = requests.first, requests.last
    expect(quiet).to_contain_text("Not stored. It had no new line")
    expect(quiet).to_contain_text("Write a haiku about the harbour.")
    expect(turn).to_contain_text("Reply. Its lines match no chat, so a new one was created.")
    expect(turn).to_contain_text("node-fetch")
    expect(turn.get_by_role("link", name="Open chat")).to_be_visible()
    assert_accessible(page)

    quiet.get_by_role("button", name="This was a turn").click()
    expect(page.get_by_text("The next one like it is decided as you said.")).to_be_visible()
    expect(quiet).to_contain_text("Always a turn")
    turn.get_by_role("button", name="This was not a turn").click()
    finish_deletion(page, "POST")
    expect(page.get_by_text("The line and the reply are deleted.")).to_be_visible()
    assert account.get("/chats")["items"] == []

    corrections = page.get_by_role("list", name="Your corrections").get_by_role("listitem")
    expect(corrections).to_have_count(2)
    corrections.last.get_by_role("button", name="Delete the correction").click()
    finish_deletion(page)
    expect(corrections).to_have_count(1)
    expect(quiet).not_to_contain_text("Always a turn")
