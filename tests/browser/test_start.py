"""The first visit up to the first reply, the keyboard, and the faults that fail a browser test."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.support.browser import Watch, dark, phone
from tests.support.process import Served
from tests.support.server import PASSWORD

pytestmark = pytest.mark.browser


def test_from_the_address_to_the_first_reply(
    visitor: Page, assert_accessible: Callable[[Page], None]
) -> None:
    page = visitor
    phone(page)
    page.goto("/")
    page.get_by_role("button", name="Create account").click()
    page.get_by_label("Username").fill(f"Bea {uuid4().hex[:8]}")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    assert_accessible(page)
    page.get_by_role("button", name="Create account").click()
    page.get_by_role("checkbox", name="I have saved it").check()
    page.get_by_role("button", name="Continue").click()

    expect(page.get_by_role("heading", name="Welcome")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="Try the demo").click()
    page.get_by_role("button", name="Try the example").click()

    messages = page.get_by_role("feed", name="Messages").get_by_role("article")
    expect(messages).to_have_count(1)
    line = page.get_by_role("textbox", name="Your message")
    line.fill('*I sit down.* "Thank you."')
    page.get_by_role("button", name="Send").click()

    expect(messages).to_have_count(3)
    expect(messages.nth(1).get_by_role("emphasis")).to_have_text("I sit down.")
    expect(messages.nth(2).get_by_role("group", name="Actions for message 3")).to_be_visible()
    expect(line).to_have_value("")
    dark(page)
    assert_accessible(page)
    page.reload()
    expect(messages).to_have_count(3)
    expect(messages.nth(1)).to_contain_text('"Thank you."')


def test_every_place_can_be_reached_and_an_unknown_address_says_so(
    page: Page, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto("/")
    for place in ("Characters", "Lore", "Memory", "Activity", "Settings", "Account", "Chats"):
        # The rail's, which stands before all others.
        link = page.get_by_role("link", name=place, exact=True).first
        link.click()
        expect(link).to_have_attribute("aria-current", "page")
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        expect(page.get_by_role("main").get_by_role("heading", level=1)).to_be_visible()
        assert_accessible(page)

    page = page.context.new_page()
    page.goto("/#/nowhere/at/all")

    expect(page.get_by_role("alert")).to_contain_text("Page not found")


def test_a_place_that_was_left_while_it_loaded_takes_nothing_from_the_next(page: Page) -> None:
    held = list[Route]()
    page.route("**/chat/list.js", lambda route: held.append(route))  # noqa: PLW0108  # Playwright takes no builtin
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))
    page.goto("/")
    page.get_by_role("link", name="Account", exact=True).first.click()
    made = page.get_by_text("Account created")
    expect(made).to_be_visible()
    page.clock.run_for(400)  # longer than a place may take until it says that it is loading
    expect(made).to_be_visible()
    (chats,) = held
    with page.expect_response("**/chat/list.js"):
        chats.continue_()
    page.wait_for_timeout(100)  # nothing is to happen, so there is nothing to wait for
    expect(made).to_be_visible()
    assert page.title().startswith("Account")


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


def test_errors_warnings_and_inaccessible_elements_are_seen(
    visitor: Page, server: Served, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    visitor.goto("/")
    expect(visitor.get_by_role("heading", level=1)).to_be_visible()
    visitor.evaluate("document.body.append(document.createElement('button'))")

    with pytest.raises(AssertionError, match="button-name"):
        assert_accessible(visitor)
    visitor.goto("/")
    expect(visitor.get_by_role("heading", level=1)).to_be_visible()
    assert watch.seen == []

    watch.expected.append("/no/such/file$")
    visitor.evaluate("fetch('/no/such/file')")
    assert watch.seen == []

    visitor.evaluate("fetch('/no/such/thing')")
    visitor.evaluate("fetch('https://elsewhere.example/').catch(() => {})")
    visitor.evaluate("setTimeout(() => { document.body.innerHTML = 'Hello.'; })")
    visitor.evaluate("console.warn('careful')")
    watch.expected.append("/favicon.ico$")  # a browser looks for it where a document names none
    elsewhere = server.url.replace("127.0.0.1", "localhost") + "/health"
    visitor.goto(elsewhere)

    told = "\n".join(watch.seen)
    for part in (
        "Failed to load resource",
        "Connecting to 'https://elsewhere.example/' violates the following Content Security Policy",
        "error: TypeError: Failed to set the 'innerHTML' property",
        "console warning: careful",
        f"request to another origin: {elsewhere}",
    ):
        assert part in told
    with pytest.raises(AssertionError, match="careful"):
        watch.check()
