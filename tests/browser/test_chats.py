"""The list of chats: previews, pins, tags, the archive, copies, and several chats at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser import Account, phone

pytestmark = pytest.mark.browser


def list_titles(page: Page) -> Locator:
    return page.get_by_role("main").locator(".talks > li:visible a")


def open_menu(page: Page, title: str, item: str) -> None:
    page.get_by_role("button", name=f"More actions for {title}", exact=True).click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def new_chats(account: Account, *titles: str) -> list[str]:
    return [str(account.new_chat(title=title)["id"]) for title in titles]


def test_a_chat_is_pinned_tagged_copied_and_archived(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    character = account.import_card()
    chat = account.new_chat(character_ids=[character["id"]], title="Night")["id"]
    account.turn(chat, text="Who is there?")
    new_chats(account, "Morning", "Evening")
    phone(page)
    page.goto("/")
    titles = list_titles(page)
    expect(titles).to_have_text(["Evening", "Morning", "Night"])
    last = account.get(f"/chats/{chat}/messages")["items"][-1]["text"]
    row = page.get_by_role("listitem").filter(has_text="Night")
    expect(row).to_contain_text(last.replace("*", "")[:40])

    open_menu(page, "Night", "Pin")
    expect(titles).to_have_text(["Night", "Evening", "Morning"])
    expect(row.get_by_role("img", name="Pinned")).to_be_visible()
    open_menu(page, "Night", "Tags")
    page.get_by_role("combobox", name="Tags").fill("sea, storm")
    page.get_by_role("button", name="Save").click()
    sea = page.get_by_role("group", name="Tags").get_by_role("button", name="sea")
    sea.click()
    expect(titles).to_have_text(["Night"])
    assert_accessible(page)
    sea.click()
    assert account.get(f"/chats/{chat}")["tags"] == ["sea", "storm"]

    open_menu(page, "Night", "Duplicate")
    expect(titles).to_have_text(["Night", "Night (copy)", "Evening", "Morning"])
    open_menu(page, "Morning", "Archive")
    expect(titles).to_have_text(["Night", "Night (copy)", "Evening"])
    archive = page.get_by_role("button", name="Archive: 1")
    archive.click()
    expect(titles).to_have_text(["Morning"])
    open_menu(page, "Morning", "Move out of the archive")
    expect(titles).to_have_text(["Night", "Night (copy)", "Evening", "Morning"])
    page.get_by_role("combobox", name="Sort by").select_option(label="Title")
    expect(titles).to_have_text(["Night", "Evening", "Morning", "Night (copy)"])
    page.reload()
    expect(titles).to_have_text(["Night", "Evening", "Morning", "Night (copy)"])


def test_several_chats_are_tagged_archived_and_deleted_with_undo(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    character = account.import_card()
    ids = new_chats(account, "One", "Two", "Three")
    account.new_chat(character_ids=[character["id"]], title="Four")
    page.goto("/")
    titles = list_titles(page)
    tools = page.get_by_role("group", name="Selected chats")
    page.get_by_role("button", name="Select", exact=True).click()
    expect(tools).to_contain_text("0 chats selected")
    expect(tools.get_by_role("button", name="Delete")).to_be_disabled()
    # A click on a chat selects it here.
    page.get_by_role("main").get_by_role("link", name="One").click()
    page.get_by_role("checkbox", name="Select Two").check()
    expect(tools).to_contain_text("2 chats selected")
    assert_accessible(page)
    tools.get_by_role("button", name="Tags").click()
    page.get_by_role("combobox", name="Tags").fill("sea")
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("group", name="Tags").get_by_role("button", name="sea")).to_be_visible()
    expect(tools).to_contain_text("2 chats selected")
    tools.get_by_role("button", name="Archive").click()
    expect(titles).to_have_text(["Four", "Three"])
    assert [account.get(f"/chats/{each}")["tags"] for each in ids] == [["sea"], ["sea"], []]
    page.get_by_role("button", name="Undo").click()
    expect(titles).to_have_text(["Four", "Three", "Two", "One"])

    page.get_by_role("button", name="Select", exact=True).click()
    tools.get_by_role("button", name="Select all").click()
    page.get_by_role("checkbox", name="Select Four").uncheck()
    with page.expect_download() as saved:
        tools.get_by_role("button", name="Export").click()
        page.get_by_role("menuitem", name="Export as Markdown").click()
    assert saved.value.suggested_filename.endswith(".md")
    tools.get_by_role("button", name="Delete").click()
    expect(titles).to_have_text(["Four"])
    page.get_by_role("button", name="Undo").click()
    expect(titles).to_have_text(["Four", "Three", "Two", "One"])
    page.get_by_role("button", name="Select", exact=True).click()
    tools.get_by_role("button", name="Select all").click()
    tools.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Welcome")
    while account.get("/chats")["items"]:
        page.wait_for_timeout(50)


def test_a_new_chat_gets_its_first_line_as_title(page: Page, account: Account) -> None:
    character = account.import_card()
    chat = account.new_chat(character_ids=[character["id"]])["id"]
    page.goto(f"/#/chats/{chat}")
    title = page.get_by_role("textbox", name="Chat title")
    page.get_by_role("textbox", name="Your message").fill("Who lit the lamp?")
    page.get_by_role("button", name="Send").click()
    expect(title).to_have_value("Who lit the lamp?")
    page.goto("/#/")
    row = page.get_by_role("main").get_by_role("listitem").filter(has_text="Who lit the lamp?")
    last = account.get(f"/chats/{chat}/messages")["items"][-1]["text"]
    expect(row).to_contain_text(last.replace("*", "")[:40])
