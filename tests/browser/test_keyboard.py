"""A whole first evening without a mouse."""

from __future__ import annotations

from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.server import PASSWORD

pytestmark = pytest.mark.browser

FOUND = "I find the silver key under the altar of the flooded chapel."
MOST_STOPS = 60
"""The maximum presses of Tab to reach any control of a view."""


def test_everything_a_first_evening_takes_is_done_with_the_keyboard(visitor: Page) -> None:
    page, keys = visitor, visitor.keyboard
    page.goto("/")
    press(page, page.get_by_role("button", name="Create account"))
    for label, text in (("Username", f"Cleo {uuid4().hex[:8]}"), ("Password", PASSWORD)):
        reach(page, page.get_by_label(label, exact=True))
        keys.type(text)
    keys.press("Enter")
    reach(page, page.get_by_role("checkbox", name="I have saved it"))
    keys.press("Space")
    press(page, page.get_by_role("button", name="Continue"))
    press(page, page.get_by_role("button", name="Try the demo"))
    press(page, page.get_by_role("button", name="Try the example"))

    line = page.get_by_role("textbox", name="Your message")
    reach(page, line)
    keys.type("What burns in the old lighthouse?")
    keys.press("Enter")
    replied = page.get_by_role("group", name="Actions for message 3")
    expect(replied).to_be_visible()
    keys.press("ArrowRight")  # behind the last swipe there is a new one
    expect(page.get_by_text("2 / 2")).to_be_visible()
    keys.press("ArrowLeft")
    expect(page.get_by_text("1 / 2")).to_be_visible()

    press(page, replied.get_by_role("button", name="Why this reply?"))
    panel = page.get_by_role("complementary")
    press(page, panel.get_by_role("button", name="Lore").last)
    expect(panel.get_by_text("Matched the key").first).to_be_visible()
    keys.press("Escape")
    expect(panel).to_have_count(0)

    press(page, page.get_by_role("button", name="Settings"))
    reach(page, panel.get_by_role("checkbox", name="Keep a chronicle"))
    keys.press("Space")
    expect(panel.get_by_role("link", name="Open chronicle")).to_be_visible()
    keys.press("Escape")
    reach(page, line)
    keys.type(FOUND)
    keys.press("Enter")
    expect(page.get_by_text("Recorded")).to_be_visible()


def press(page: Page, target: Locator) -> None:
    """Go to it, and press it."""
    reach(page, target)
    page.keyboard.press("Enter")


def reach(page: Page, target: Locator) -> None:
    """Move the focus to a control with Tab alone."""
    expect(target).to_be_visible()
    for _ in range(MOST_STOPS):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {target}")
