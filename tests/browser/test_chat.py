"""Writing a line and reading the reply; what the agent keeps of it; a long chat; a server that goes
down in between."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from backend.http.connections import ServerStoppingError
from tests.support.browser import Account, Watch, finish_deletion, phone, signing_up
from tests.support.process import Served, serving

pytestmark = pytest.mark.browser

WHEEL_ATTEMPTS, WHEEL_SECONDS = 3, 15
"""Chromium does not always scroll by the whole distance of a wheel's event."""

USED_WIDTHS = (390, 1366)
"""Of a phone and a desktop: at the other widths only the layout differs."""


def line(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Your message")


def messages(page: Page) -> Locator:
    return page.get_by_role("feed").get_by_role("article")


def test_a_line_is_answered_and_stays_if_it_is_refused(
    page: Page, account: Account, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    chat = account.new_chat(character_ids=[account.import_card()["id"]], title="The storm")
    phone(page)
    page.goto(f"/#/chats/{chat['id']}")
    line(page).fill("/demo think")
    page.get_by_role("button", name="Send").click()
    expect(messages(page)).to_have_count(3)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(messages(page).last.get_by_text("Thoughts")).to_be_visible()
    expect(line(page)).to_have_value("")

    line(page).fill("And then?")
    title = page.get_by_role("textbox", name="Chat title")
    title.fill("After the storm")
    title.press("Enter")
    heading = page.get_by_role("heading", name="After the storm", level=1)
    expect(heading).to_be_attached()
    page.reload()

    expect(heading).to_be_attached()
    expect(line(page)).to_have_value("And then?")
    expect(page.get_by_text(re.compile(r"of 200,000 tokens"))).to_be_visible()
    assert_accessible(page)

    # A model's error is shown below the line.
    page = page.context.new_page()
    # The empty reply may be gone again before it is read.
    watch.expected.append("/api/v1/messages/")
    chat = account.new_chat(title="Nobody here")
    page.goto(f"/#/chats/{chat['id']}")
    expect(page.get_by_text("No messages yet.")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    line(page).fill("/demo fail")
    line(page).press("Enter")
    expect(page.get_by_text("The model cannot be reached.")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    expect(messages(page)).to_have_count(1)

    # A line that a stopping server refuses is sent again.
    page = page.context.new_page()
    chat = account.new_chat()
    page.goto(f"/#/chats/{chat['id']}")
    body = json.dumps(ServerStoppingError().to_problem())
    watch.expected.append("/turns")
    page.route(
        "**/turns",
        lambda route: route.fulfill(status=503, content_type="application/problem+json", body=body),
        times=1,
    )
    line(page).fill("Is anyone there?")
    page.get_by_role("button", name="Send").click()
    expect(messages(page)).to_have_count(2)
    expect(line(page)).to_have_value("")


def test_what_the_agent_keeps_is_told_above_the_line_and_can_be_taken_back(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    chat = account.new_chat(title="The flooded chapel")
    page.goto(f"/#/chats/{chat['id']}")
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("checkbox", name="Keep a chronicle").check()
    expect(page.get_by_text("The agent has read everything.")).to_be_visible()
    line(page).fill("I find the silver key under the altar of the flooded chapel.")
    line(page).press("Escape")
    expect(page.get_by_role("checkbox", name="Keep a chronicle")).to_be_hidden()
    line(page).press("Enter")

    kept = page.get_by_role("link", name="find the silver key")
    expect(kept).to_have_attribute("href", re.compile("^#/chronicles/.+event="))
    assert_accessible(page)
    page.get_by_role("button", name="Undo").click()
    expect(kept).to_be_hidden()
    finish_deletion(page, "POST")


def test_a_long_chat_is_gone_through_by_key_and_to_any_place_by_its_address(
    page: Page, account: Account
) -> None:
    chat = account.new_chat()
    for number in range(16):
        account.turn(chat["id"], text=f"Line {number}.")
    page.goto(f"/#/chats/{chat['id']}")
    expect(messages(page).last).to_have_attribute("aria-posinset", "32")
    assert messages(page).count() < 25
    for attempt in range(WHEEL_ATTEMPTS):
        try:
            assert_older_messages_push_nothing(page, page.get_by_text("Line 15.", exact=True))
            break
        except PlaywrightTimeoutError:
            if attempt == WHEEL_ATTEMPTS - 1:
                raise
            page.reload()
            expect(messages(page).last).to_have_attribute("aria-posinset", "32")

    page.get_by_role("region", name="Conversation").press("Home")
    expect(page.get_by_role("feed").get_by_text("Line 0.", exact=True)).to_be_in_viewport()
    page.goto(f"/#/chats/{chat['id']}?at=16")
    expect(page.get_by_text("Line 8.", exact=True)).to_be_in_viewport()
    page.get_by_role("button", name="messages below").click()

    expect(messages(page).last).to_have_attribute("aria-posinset", "32")
    expect(page.get_by_role("button", name="messages below")).to_be_hidden()


def assert_older_messages_push_nothing(page: Page, place: Locator) -> None:
    """Scroll up 400 pixels, which loads messages above: the place moves by as much."""
    before = messages(page).first.get_attribute("aria-posinset") or ""
    place.hover()
    top = place.evaluate("element => element.getBoundingClientRect().top")
    page.mouse.wheel(0, -400)
    expect(messages(page).first).not_to_have_attribute("aria-posinset", before)
    # A wheel's event is answered before the browser scrolls.
    page.wait_for_function(
        "([place, top]) => Math.abs(place.getBoundingClientRect().top - top) <= 1",
        arg=[place.element_handle(), top + 400],
        timeout=WHEEL_SECONDS * 1_000,
    )


def test_no_two_messages_overlap_at_any_width_with_and_without_scrollbars(
    chromium: Browser,
    chromium_with_scrollbars: Browser,
    server: Served,
    account: Account,
    watch: Watch,
) -> None:
    chat = account.new_chat(character_ids=[account.import_card()["id"]])
    for text in ("I wait for the tide. " * 60, "/demo long 200"):
        account.turn(chat["id"], text=text)
    total = 5
    for browser in (chromium, chromium_with_scrollbars):
        context = browser.new_context(base_url=server.url, reduced_motion="reduce")
        with watch.over(context):
            account.enter(context)
            page = context.new_page()
            page.goto(f"/#/chats/{chat['id']}")
            for width in (390, 820, 1366, 1600, 1920):
                page.set_viewport_size({"width": width, "height": 900})
                assert_apart(page, total, f"after a resize to {width}")
                if width in USED_WIDTHS:
                    total += 2
                    use_messages(page, total)
                page.reload()
                assert_apart(page, total, f"after a reload at {width}")
            context.close()
    watch.check()


def use_messages(page: Page, total: int) -> None:
    """Send a line, swipe, edit, open and close a panel: `total` messages are there in the end."""
    line(page).fill("/demo long 40")
    line(page).press("Enter")
    tools = page.get_by_label(f"Actions for message {total}")
    expect(tools).to_be_in_viewport()
    assert_apart(page, total, "after a turn")

    tools.get_by_role("button", name="Regenerate").click()
    expect(tools.get_by_text("2 / 2")).to_be_visible()
    expect(tools).to_be_in_viewport()
    assert_apart(page, total, "after a swipe")

    tools.get_by_role("button", name="Edit").click()
    text = page.get_by_label("Message text")
    text.fill("I wait again. " * 60)
    assert_apart(page, total, "in an edit")
    text.press("Control+Enter")
    expect(text).to_be_hidden()
    assert_apart(page, total, "after an edit")

    page.get_by_role("button", name="Settings").click()
    close = page.get_by_label("Settings", exact=True).get_by_role("button", name="Close")
    expect(close).to_be_visible()
    assert_apart(page, total, "beside a panel")
    close.click()
    expect(close).to_be_hidden()
    assert_apart(page, total, "after a panel")


def assert_apart(page: Page, total: int, when: str) -> None:
    """Fail if a message, or anything in it, reaches into the next one."""
    expect(messages(page).last).to_have_attribute("aria-posinset", str(total))
    # The page may lay messages out again in the frame after a change.
    found: list[list[float]] = page.evaluate("""async () => {
      for (let frames = 0; frames < 3; frames++) await new Promise(requestAnimationFrame);
      // A message out of sight may not be laid out: its own box counts, and nothing in it.
      const isDrawn = (part) => part.checkVisibility({ contentVisibilityAuto: true });
      return [...document.querySelectorAll("[role=feed] > article")].map((each) => {
        const boxes = [each, ...[...each.children].filter(isDrawn)]
          .map((part) => part.getBoundingClientRect());
        const [tops, bottoms] = ["top", "bottom"].map((side) => boxes.map((box) => box[side]));
        return [Math.min(...tops), Math.max(...bottoms)];
      });
    }""")
    assert len(found) > 1
    for (_, bottom), (top, _) in pairwise(found):
        assert bottom <= top + 0.5, f"messages overlap {when}, {page.viewport_size}: {found}"


def test_a_reply_that_the_server_took_down_with_it_goes_on_after_both_are_back(
    chromium: Browser, tmp_path: Path
) -> None:
    with (
        serving(tmp_path, registration="open", demo_tokens_per_second="40") as first,
        signing_up(first.url, "ada") as account,
    ):
        chat = account.new_chat()
        context = chromium.new_context(base_url=first.url)
        account.enter(context)
        page = context.new_page()
        page.goto(f"/#/chats/{chat['id']}")
        line(page).fill("/demo long 5000")
        line(page).press("Enter")
        said = "door closed softly"
        expect(messages(page).last).to_contain_text(said)
        page.reload()
        expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
        expect(messages(page).last).to_contain_text(said)
        # A reply is stored once a second: text that is not stored yet ends with the process.
        while said not in account.get(f"/chats/{chat['id']}/messages")["items"][-1]["text"]:
            page.wait_for_timeout(50)
        first.process.kill()
        expect(page.get_by_text("Connection lost.")).to_be_visible()
    port = urlsplit(first.url).port or 0
    with serving(tmp_path, port=port, demo_tokens_per_second="40"):
        # As when the network is back: there is no waiting for the next attempt.
        page.evaluate("dispatchEvent(new Event('online'))")
        expect(page.get_by_text("This reply was cut off.")).to_be_visible()
        expect(messages(page).last).to_contain_text(said)
        messages(page).last.get_by_role("button", name="Continue writing").click()
        expect(page.get_by_text("This reply was cut off.")).to_be_hidden()
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.get_by_text("This reply was cut off.")).to_be_visible()
        context.close()
