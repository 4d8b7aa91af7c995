"""Pictures of messages: attached by button, paste and drop, and shown in place and in full."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.integration.characters.pictures import picture
from tests.support.browser import Account, phone

pytestmark = pytest.mark.browser

HELD = """([name, type, data]) => {
  const held = new DataTransfer();
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  held.items.add(new File([bytes], name, { type }));
  return held;
}"""
PASTE = """(element, clipboardData) => element.dispatchEvent(
  new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }))"""


@pytest.fixture
def chat(account: Account) -> dict[str, Any]:
    character = account.import_card()
    return account.new_chat(character_ids=[character["id"]], title="The map")


def line(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Your message")


def attached(page: Page) -> Locator:
    return page.get_by_role("list", name="Attached pictures").get_by_role("img")


def hold(page: Page, name: str, color: str, media_type: str = "image/png") -> Any:
    data = base64.b64encode(picture(width=60, height=40, color=color)).decode()
    return page.evaluate_handle(HELD, [name, media_type, data])


def choose(page: Page, *names: str) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach pictures").click()
    chooser.value.set_files(
        [
            FilePayload(name=name, mimeType="image/png", buffer=picture(width=300 + place))
            for place, name in enumerate(names)
        ]
    )


def is_loaded(image: Locator) -> bool:
    return bool(image.evaluate("(image) => image.decode().then(() => image.naturalWidth > 0)"))


def test_pictures_are_attached_sent_and_shown_in_full(
    page: Page, account: Account, chat: dict[str, Any], assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#/chats/{chat['id']}")
    choose(page, "harbour.png", "cellar.png")
    expect(attached(page)).to_have_count(2)
    line(page).evaluate(PASTE, hold(page, "pasted.png", "red"))
    expect(attached(page)).to_have_count(3)
    line(page).dispatch_event("drop", {"dataTransfer": hold(page, "dropped.png", "blue")})
    expect(attached(page)).to_have_count(4)
    page.get_by_role("button", name="Remove cellar.png").click()
    expect(attached(page)).to_have_count(3)
    line(page).dispatch_event(
        "drop", {"dataTransfer": hold(page, "letter.txt", "blue", "text/plain")}
    )
    expect(page.get_by_role("alert")).to_contain_text("Only PNG, JPEG, WebP and GIF")

    # They are part of the draft.
    page.reload()
    expect(attached(page)).to_have_count(3)
    assert is_loaded(attached(page).first)
    expect(page.locator(".counted")).to_have_text(re.compile(r"^\d,\d{3} tokens$"))
    assert_accessible(page)

    line(page).fill("Which way to the *harbour*?")
    line(page).press("Enter")

    expect(attached(page)).to_have_count(0)
    message = page.get_by_role("article").filter(has_text="Which way to the harbour?").first
    shown = message.get_by_role("img", name="Picture from")
    expect(shown).to_have_count(3)
    expect(message.get_by_role("button", name=f"{account.name}: harbour.png")).to_be_visible()
    assert is_loaded(shown.first)
    shown.first.click()
    whole = page.get_by_role("dialog", name="harbour.png").get_by_role("img", name="harbour.png")
    assert is_loaded(whole)
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(whole).to_have_count(0)
    [_, stored, _] = account.get(f"/chats/{chat['id']}/messages")["items"]
    assert [each["name"] for each in stored["files"]] == [
        "harbour.png",
        "pasted.png",
        "dropped.png",
    ]


def test_a_message_of_pictures_alone_is_edited_on_a_phone(
    page: Page, account: Account, chat: dict[str, Any], assert_accessible: Callable[[Page], None]
) -> None:
    phone(page)
    page.goto(f"/#/chats/{chat['id']}")
    choose(page, "map.png")
    expect(attached(page)).to_have_count(1)
    page.get_by_role("button", name="Send").click()
    message = page.get_by_role("article").nth(1)
    expect(message.get_by_role("img", name="map.png")).to_be_visible()
    expect(page.get_by_label("Actions for message 3")).to_be_visible()
    expect(message).not_to_contain_text("[image]")
    assert_accessible(page)

    page.get_by_label("Actions for message 2").get_by_role("button", name="Edit").click()
    text = page.get_by_label("Message text")
    expect(text).to_have_value("")
    text.fill("This is the island.")
    page.get_by_role("button", name="Save", exact=True).click()

    expect(message).to_contain_text("This is the island.")
    expect(message.get_by_role("img", name="map.png")).to_be_visible()
