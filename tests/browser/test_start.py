"""The first visit up to the first reply."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.browser import dark, phone
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
    made = page.get_by_role("button", name="Delete account")
    expect(made).to_be_visible()
    page.clock.run_for(400)  # longer than a place may take until it says that it is loading
    expect(made).to_be_visible()
    (chats,) = held
    with page.expect_response("**/chat/list.js"):
        chats.continue_()
    page.wait_for_timeout(100)  # nothing is to happen, so there is nothing to wait for
    expect(made).to_be_visible()
    assert page.title().startswith("Account")
