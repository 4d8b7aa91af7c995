"""The composer: commands, quick replies, greetings, the Enter key, and fingers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.browser import Account, Watch, phone
from tests.support.process import Served

pytestmark = pytest.mark.browser


@pytest.fixture
def chat(account: Account) -> dict[str, Any]:
    character = account.import_card()
    return account.new_chat(character_ids=[character["id"]], title="The storm")


def line(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Your message")


def messages(page: Page) -> Locator:
    return page.get_by_role("feed").get_by_role("article")


def send(page: Page, text: str) -> None:
    line(page).fill(text)
    line(page).press("Control+Enter")


def test_commands_are_completed_and_add_messages_without_a_reply(
    page: Page, account: Account, chat: dict[str, Any], assert_accessible: Callable[[Page], None]
) -> None:
    account.post("/personas", {"name": "Jo Verin"})
    page.goto(f"/#/chats/{chat['id']}")
    expect(messages(page)).to_have_count(1)
    line(page).press("/")
    options = page.get_by_role("listbox", name="Commands and names").get_by_role("option")
    expect(options).to_have_count(5)
    assert_accessible(page)
    for _ in range(4):
        line(page).press("ArrowDown")
    expect(options.nth(3)).to_have_attribute("aria-selected", "true")
    line(page).press("Enter")
    expect(line(page)).to_have_value("/roll ")
    expect(options).to_have_count(0)
    line(page).press_sequentially("2d1+3 for stealth")
    expect(page.get_by_text(re.compile(r"^\d+ tokens$")).last).to_be_visible()
    line(page).press("Enter")
    expect(messages(page)).to_have_count(2)
    expect(messages(page).last).to_contain_text("rolls 2d1+3 for stealth: 1 + 1 + 3 = 5")
    expect(line(page)).to_have_value("")

    line(page).fill("/as jo")
    line(page).press("Tab")
    expect(line(page)).to_have_value("/as Jo Verin ")
    line(page).press_sequentially("Ahoy!")
    line(page).press("Enter")
    expect(messages(page).last).to_contain_text("Ahoy!")
    expect(messages(page).last).to_have_accessible_name("Jo Verin")

    # What is refused stays in the field, and nothing is sent.
    for text, problem in (
        ("/dance all night", "There is no command /dance."),
        ("/roll a stone", "Write dice after /roll"),
        ("/roll 0d6", "Roll at most"),
        ("/as Nobody Hm.", "is called “Nobody Hm.”"),
        ("/whisper Jo Hm.", "only one character listens"),
    ):
        send(page, text)
        expect(page.get_by_role("status").filter(has_text=problem)).to_be_visible()
        expect(line(page)).to_have_value(text)
    assert len(account.get(f"/chats/{chat['id']}/messages")["items"]) == 3

    send(page, "/note It rains.")
    expect(page.get_by_text("Author’s note changed")).to_be_visible()
    note = f"/chats/{chat['id']}/settings"
    assert account.get(note)["authors_note"]["text"] == "It rains."
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Author’s note changed")).to_be_hidden()
    # A character replies to the narrator if the line is empty.
    send(page, "/sys Night falls.")
    expect(messages(page).last).to_have_accessible_name("Narrator")
    page.get_by_role("button", name="Send").click()
    expect(messages(page)).to_have_count(5)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    send(page, "/continue")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(line(page)).to_have_value("")
    expect(messages(page)).to_have_count(5)
    send(page, "//dance")
    expect(messages(page)).to_have_count(7)
    assert "text" not in account.get(note)["authors_note"]
    path = account.get(f"/chats/{chat['id']}/messages")["items"]
    assert [each["role"] for each in path[-4:]] == ["system", "assistant", "user", "assistant"]
    assert path[-2]["text"] == "/dance"


def test_quick_replies_of_account_chat_and_character_are_edited_and_sent(
    page: Page, account: Account, chat: dict[str, Any], assert_accessible: Callable[[Page], None]
) -> None:
    character = chat["character_ids"][0]
    for address, label in (
        ("/#/settings", "Wait"),
        (f"/#/chats/{chat['id']}?panel=settings", "Look"),
        (f"/#/characters/{character}", "Lamp"),
    ):
        page = page.context.new_page()
        phone(page)
        page.goto(address)
        editor = page.get_by_role("group", name="Quick replies")
        add = editor.get_by_role("button", name="Add a quick reply")
        if address != "/#/settings":
            page.locator("summary").filter(has_text="Quick replies").click()
        add.click()
        editor.get_by_role("textbox", name="Label").fill(label)
        editor.get_by_role("textbox", name="Text").fill(f"{label}, {{{{char}}}}!")
        expect(page.get_by_text("Saved")).to_be_visible()
        assert_accessible(page)
    page = page.context.new_page()
    page.goto(f"/#/chats/{chat['id']}")
    row = page.get_by_role("toolbar", name="Quick replies")
    expect(row.get_by_role("button")).to_have_text(["Wait", "Look", "Lamp"])
    assert_accessible(page)
    row.get_by_role("button", name="Wait").focus()
    page.keyboard.press("ArrowRight")
    expect(row.get_by_role("button", name="Look")).to_be_focused()
    page.keyboard.press("Enter")
    expect(messages(page)).to_have_count(3)
    expect(messages(page).nth(1)).to_contain_text(re.compile(r"Look, \w+!"))
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    # Into a line that has begun, it is inserted.
    line(page).fill("Yes. ")
    row.get_by_role("button", name="Lamp").click()
    expect(line(page)).to_have_value("Yes. Lamp, {{char}}!")
    card = account.get(f"/characters/{character}")["extensions"]["talekeeper"]
    assert card["quick_replies"] == [{"label": "Lamp", "set": "", "text": "Lamp, {{char}}!"}]


def test_a_greeting_is_chosen_before_the_first_line(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    greetings = ["The door creaks open.", "A knock at the window.", "It snows."]
    card = {"name": "Mara", "first_mes": greetings[0], "alternate_greetings": greetings[1:]}
    character = account.post("/characters", card)
    chat = account.new_chat(character_ids=[character["id"]])
    page.goto(f"/#/chats/{chat['id']}")
    cards = page.get_by_role("radiogroup", name="Choose how the story begins").get_by_role("radio")
    expect(cards).to_have_count(3)
    expect(cards.first).to_be_checked()
    assert_accessible(page)
    cards.first.press("ArrowRight")
    expect(cards.nth(1)).to_be_checked()
    expect(cards.nth(1)).to_be_focused()
    expect(messages(page).last).to_contain_text("A knock at the window.")
    page.get_by_text("It snows.").click()
    expect(messages(page).last).to_contain_text("It snows.")
    send(page, "I go out.")
    expect(messages(page)).to_have_count(3)
    expect(cards).to_have_count(0)
    assert account.get(f"/chats/{chat['id']}/messages")["items"][0]["text"] == "It snows."


def test_enter_begins_a_new_line_if_it_does_not_send(
    page: Page, account: Account, chat: dict[str, Any]
) -> None:
    account.client.patch("/me/settings", json={"page": {"enter_sends": False}}).raise_for_status()
    page.goto(f"/#/chats/{chat['id']}")
    line(page).fill("I wait.")
    line(page).press("Enter")
    expect(line(page)).to_have_value("I wait.\n")
    line(page).press("Control+Enter")
    expect(messages(page)).to_have_count(3)


def test_fingers_scroll_and_swipe_the_last_message(
    chromium: Browser, server: Served, account: Account, watch: Watch
) -> None:
    greetings = ["One. " * 400, "Two. " * 400]
    card = {"name": "Mara", "first_mes": greetings[0], "alternate_greetings": greetings[1:]}
    character = account.post("/characters", card)
    chat = account.new_chat(character_ids=[character["id"]])
    context = chromium.new_context(
        base_url=server.url, has_touch=True, viewport={"width": 390, "height": 740}
    )
    account.enter(context)
    with watch.over(context):
        page = context.new_page()
        page.goto(f"/#/chats/{chat['id']}")
        expect(messages(page).last).to_contain_text("One.")
        log = page.get_by_role("region", name="Conversation")
        session = context.new_cdp_session(page)

        def drag(x: int, y: int, *, begin: tuple[int, int] = (200, 300)) -> None:
            """Move a finger by a distance, in small steps."""
            for step in range(11):
                point = {"x": begin[0] + x * step / 10, "y": begin[1] + y * step / 10}
                kind = "touchStart" if step == 0 else "touchMove"
                session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [point]})
            session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

        end = "log => log.scrollHeight - log.clientHeight - log.scrollTop"
        page.wait_for_function(
            f"log => log.scrollTop > 400 && ({end})(log) < 5", arg=log.element_handle()
        )
        drag(30, 200)
        page.wait_for_function(f"log => ({end})(log) > 50", arg=log.element_handle())
        expect(messages(page).last).to_contain_text("One.")
        drag(-120, 10)
        expect(messages(page).last).to_contain_text("Two.")
        drag(120, 10)
        expect(messages(page).last).to_contain_text("One.")
        # At the edges, browsers have gestures of their own.
        drag(-120, 10, begin=(385, 300))
        expect(messages(page).last).to_contain_text("One.")
        viewport = page.locator("meta[name=viewport]")
        expect(viewport).to_have_attribute("content", re.compile("interactive-widget=resizes-con"))
    context.close()
    watch.check()
