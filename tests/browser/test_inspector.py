"""What the model sees: taken apart and explained, compared, and tried in other sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Account, Watch

pytestmark = pytest.mark.browser

LOREBOOK = Path(__file__).parents[2] / "docs" / "example-lorebook.json"


@pytest.fixture
def chat(account: Account) -> dict[str, Any]:
    """A chat of five messages with a lorebook: the greeting, and two lines that were answered."""
    character = account.import_card()
    chat = account.new_chat(character_ids=[character["id"]], title="The storm")
    files = {"file": (LOREBOOK.name, LOREBOOK.read_bytes())}
    book = account.client.post("/lorebooks/import", files=files).json()["lorebook"]
    chat["book_id"] = book["id"]
    linked = account.client.put(
        f"/chats/{chat['id']}/lorebooks/{book['id']}", json={"state": "linked"}
    )
    assert linked.is_success, linked.text
    for line in ("/demo long 300", "I climb the stairs."):
        account.turn(chat["id"], text=line)
    return chat


def test_what_is_typed_is_seen_in_the_prompt_with_what_it_brings_in(
    page: Page, chat: dict[str, Any], assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#/chats/{chat['id']}?panel=context")
    panel = page.get_by_role("complementary")
    window = panel.get_by_role("group", name="How the window is filled")
    expect(window.get_by_role("button", name=re.compile("^History"))).to_be_visible()
    page.get_by_label("Your line").fill("Who keeps the lighthouse?")
    expect(window.get_by_role("button", name=re.compile("^Lore"))).to_be_visible()

    window.get_by_role("button", name=re.compile("^Lore")).press("Enter")

    entry = panel.get_by_role("listitem").filter(has_text="Found by its key “lighthouse”").first
    expect(entry).to_contain_text("in your message")
    link = entry.get_by_role("link", name="Go to The lighthouse")
    expect(link).to_have_attribute("href", re.compile(f"^#/lorebooks/{chat['book_id']}\\?entry="))
    entry.locator("summary").click()
    expect(entry).to_contain_text("The lighthouse of Saltwick stands")
    assert_accessible(page)


def test_another_size_is_tried_before_it_is_kept_and_can_be_taken_back(
    page: Page, account: Account, chat: dict[str, Any], watch: Watch
) -> None:
    page.goto(f"/#/chats/{chat['id']}?panel=context")
    panel = page.get_by_role("complementary")
    history = panel.get_by_role("button", name=re.compile("^History: "))
    expect(history).to_be_visible()
    settings = f"/chats/{chat['id']}/settings"
    before = account.get(settings)

    slider = panel.get_by_role("slider", name="History")
    expect(slider).not_to_have_attribute("aria-valuetext", "0 tokens")
    slider.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "0 tokens")
    expect(history).to_be_hidden()
    expect(panel.get_by_text("Messages 1 to 5")).to_be_attached()
    assert account.get(settings) == before

    panel.get_by_role("button", name="Keep for this chat").click()
    expect(page.get_by_text("Saved")).to_be_visible()
    assert account.get(settings)["budgets"] == {"history": 0}
    panel.get_by_role("button", name="Back to the default").click()
    expect(history).to_be_visible()
    watch.expected.append("/chats/.*/context")
    panel.get_by_role("spinbutton", name="Whole window").fill("1100")
    panel.get_by_role("spinbutton", name="Kept for the reply").fill("1000")
    expect(panel.get_by_text(re.compile("It does not fit"))).to_be_visible()
    panel.get_by_role("spinbutton", name="Whole window").fill("50000")
    expect(panel.get_by_text("of 50,000 tokens")).to_be_visible()


def test_a_reply_has_the_prompt_that_it_came_from(
    page: Page, account: Account, chat: dict[str, Any], watch: Watch
) -> None:
    greeting, *_, reply = account.get(f"/chats/{chat['id']}/messages")["items"]
    page.goto(f"/#/chats/{chat['id']}?panel=context&message={reply['id']}")
    panel = page.get_by_role("complementary")
    expect(panel.get_by_text("As sent to demo.")).to_be_visible()
    expect(panel.get_by_text(re.compile("a provider can reuse them"))).to_be_visible()
    panel.get_by_text("The exact prompt").click()
    messages = panel.get_by_role("list").last.get_by_role("listitem")
    expect(messages.first).to_contain_text("1 system")
    messages.last.locator("summary").click()
    expect(messages.last).to_contain_text("I climb the stairs.")

    watch.expected.append("/messages/.*/context")
    page.goto(f"/#/chats/{chat['id']}?panel=context&message={greeting['id']}")
    expect(panel.get_by_text("No model wrote this message here")).to_be_visible()
    panel.get_by_role("link", name="See the next prompt").click()
    expect(panel.get_by_text("The prompt for the next reply")).to_be_visible()
