"""What somebody does with messages, with a chat's settings, and to find a place in a chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser import Account

pytestmark = pytest.mark.browser


@pytest.fixture
def chat(account: Account) -> dict[str, Any]:
    """A chat of five messages: the greeting, and two lines that were answered."""
    character = account.import_card()
    chat = account.new_chat(character_ids=[character["id"]], title="The storm")
    for line in ("Where is the silver key?", "I climb the stairs."):
        account.turn(chat["id"], text=line)
    return chat


def test_a_message_is_edited_regenerated_and_found(
    page: Page, chat: dict[str, Any], assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#/chats/{chat['id']}")
    page.get_by_label("Actions for message 5").get_by_role("button", name="Regenerate").click()
    expect(page.get_by_text("2 / 2")).to_be_visible()
    line(page).press("ArrowUp")
    text = page.get_by_label("Message text")
    text.fill("I run up the stairs.")
    text.press("Escape")
    line(page).press("ArrowUp")
    expect(text).to_have_value("I run up the stairs.")
    assert_accessible(page)

    page.get_by_role("button", name="Save and regenerate").click()

    expect(page.get_by_text("“I run up the stairs.”", exact=True)).to_be_visible()
    expect(page.get_by_label("Actions for message 5")).to_be_visible()
    page.get_by_label("Actions for message 4").get_by_role(
        "button", name="Previous version"
    ).click()
    expect(page.get_by_text("“I climb the stairs.”", exact=True)).to_be_visible()
    expect(page.get_by_text("2 / 2")).to_be_visible()

    # A message is found by its words and by its number.
    page = page.context.new_page()
    page.set_viewport_size({"width": 390, "height": 700})
    page.goto(f"/#/chats/{chat['id']}")
    page.get_by_role("article").last.press("/")
    page.get_by_label("Words or topic").fill("silver keys")
    found = page.get_by_role("button", name="message 2")
    expect(found.locator("mark").first).to_have_text("silver")
    assert_accessible(page)

    found.click()

    place = page.get_by_role("article").filter(has_text="Where is the silver key?").first
    expect(place).to_be_focused()
    page.get_by_role("button", name="Find").click()
    page.get_by_label("Message number").fill("1")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(page.get_by_label("Actions for message 1")).to_be_in_viewport()


def test_deleted_messages_are_restored_and_settings_are_saved(
    page: Page, account: Account, chat: dict[str, Any], assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#/chats/{chat['id']}")
    more = page.get_by_label("Actions for message 4").get_by_role("button", name="More")
    messages = page.get_by_role("feed").get_by_role("article")
    expect(messages).to_have_count(5)
    for undo in (True, False):
        more.click()
        page.get_by_role("menuitem", name="Delete from here").click()
        expect(page.get_by_text("2 messages deleted")).to_be_visible()
        expect(messages).to_have_count(3)
        if undo:
            page.get_by_role("button", name="Undo").click()
            expect(messages).to_have_count(5)

    line(page).fill("/demo long 5")
    line(page).press("Enter")
    expect(page.get_by_text("/demo long 5", exact=True)).to_be_visible()
    page.get_by_role("button", name="Dismiss").click()

    expect(messages).to_have_count(5)
    page.reload()
    expect(page.get_by_text("/demo long 5", exact=True)).to_be_visible()
    path = account.get(f"/chats/{chat['id']}/messages")["items"]
    assert [message["sibling_count"] for message in path[3:]] == [1, 1]

    page = page.context.new_page()
    account.post("/lorebooks", {"name": "Tides"})
    account.client.patch("/me/settings", json={"budgets": {"history": 9000}})
    page.goto(f"/#/chats/{chat['id']}?panel=settings")
    page.get_by_text("Token budget").click()
    expect(page.get_by_label("Chat history tokens")).to_have_attribute("placeholder", "9000")
    page.get_by_label("Keep a chronicle").check()
    expect(page.get_by_role("link", name="Open chronicle")).to_be_visible()
    page.get_by_label("Add a lorebook").select_option(label="Tides")
    expect(page.get_by_role("button", name="Remove Tides")).to_be_visible()
    page.get_by_text("Sampling").click()
    page.get_by_label("Temperature").fill("3")
    expect(page.get_by_text("must be less than or equal to 2")).to_be_visible()
    page.get_by_label("Temperature").fill("0.5")
    assert_accessible(page)
    page.get_by_text("Author's note").click()
    page.get_by_label("Note", exact=True).fill("It rains.")

    page.get_by_label("Settings", exact=True).get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Settings").click()
    page.get_by_text("Author's note").click()
    expect(page.get_by_label("Note", exact=True)).to_have_value("It rains.")
    settings = account.get(f"/chats/{chat['id']}/settings")
    assert settings["chronicle_enabled"]
    assert settings["sampling"] == {"temperature": 0.5}


def line(page: Page) -> Locator:
    """Where the next line is typed."""
    return page.get_by_label("Your message")
