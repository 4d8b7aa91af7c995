"""The focus stays near its place, and keys work wherever it is."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser import Account

pytestmark = pytest.mark.browser


def delete_with_keys(page: Page) -> None:
    """Delete the item whose menu button has the focus."""
    page.keyboard.press("Enter")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Delete")).to_be_focused()
    page.keyboard.press("Enter")


def test_after_a_deletion_the_focus_is_on_the_next_item_or_the_one_before(
    page: Page, account: Account
) -> None:
    for name in ("Cross", "Anchor", "Bell"):
        account.post("/presets", {"name": name})
    page.goto("/#/presets")

    def menu_of(name: str) -> Locator:
        row = page.get_by_role("listitem").filter(has_text=name)
        return row.get_by_role("button", name="More")

    links = page.locator("ul.list > li a")
    expect(links).to_have_count(3)
    names = links.all_inner_texts()
    menu_of(names[1]).focus()
    delete_with_keys(page)
    expect(menu_of(names[2])).to_be_focused()
    delete_with_keys(page)
    expect(menu_of(names[0])).to_be_focused()
    delete_with_keys(page)
    expect(page.get_by_role("listitem").filter(has_text=names[0])).to_be_hidden()
    assert page.evaluate("document.activeElement.closest('.page') !== null")
    # In a row that is hidden in place.
    for name in ("Cross", "Anchor"):
        account.post("/api-keys", {"label": name, "scope": "chat"})
    page.goto("/#/security")
    keys = page.get_by_role("button", name="End “")
    expect(keys).to_have_count(2)
    keys.first.focus()
    page.keyboard.press("Enter")
    expect(keys).to_have_count(1)
    expect(keys).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Create API key")).to_be_focused()


def test_after_the_last_item_of_a_list_the_focus_stays_in_the_view(
    page: Page, account: Account
) -> None:
    account.import_card()
    page.goto("/#/characters")
    page.get_by_role("main").get_by_role("button", name="More").focus()
    page.keyboard.press("Enter")
    page.get_by_role("menuitem", name="Delete").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Import a character")).to_be_visible()
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_the_focus_returns_from_a_message_of_the_page(page: Page, account: Account) -> None:
    account.post("/presets", {"name": "Bell"})
    page.goto("/#/presets")
    page.get_by_role("button", name="More").focus()
    delete_with_keys(page)
    kept = page.evaluate_handle("document.activeElement")
    undo = page.get_by_role("button", name="Undo")
    undo.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Bell")).to_be_visible()
    assert kept.evaluate("element => element === document.activeElement")


def test_the_focus_returns_to_a_row_that_a_dialog_has_changed(page: Page, account: Account) -> None:
    for name in ("Harbour", "Tower"):
        account.new_chat(title=name)
    page.goto("/#/")
    more = page.get_by_role("button", name="More actions for Harbour")
    more.focus()
    page.keyboard.press("Enter")
    page.get_by_role("menuitem", name="Tags").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("combobox", name="Tags").fill("sea")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("listitem").filter(has_text="Harbour").last).to_contain_text("sea")
    expect(more).to_be_focused()


def test_escape_ends_a_selection_wherever_the_focus_is(page: Page, account: Account) -> None:
    for name in ("Harbour", "Tower"):
        account.new_chat(title=name)
    page.goto("/#/")
    page.get_by_role("button", name="Select", exact=True).click()
    bar = page.get_by_role("group", name="Selected chats")
    expect(bar).to_be_visible()
    page.get_by_role("link", name="Campaigns").focus()
    page.keyboard.press("Escape")
    expect(bar).to_be_hidden()
    # A menu uses the key first.
    page.get_by_role("button", name="Select", exact=True).click()
    page.get_by_role("button", name="More actions for Harbour").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("menu")).to_be_hidden()
    expect(bar).to_be_visible()


def test_lists_keep_the_focus_and_their_place_when_the_user_returns(
    page: Page, account: Account
) -> None:
    for number in range(3):
        account.new_chat(title=f"Chat {number}")
    page.goto("/#/")
    recent = page.get_by_role("navigation", name="Recent chats").get_by_role("link").nth(1)
    row = page.get_by_role("button", name="More actions for Chat 0")
    expect(row).to_be_visible()
    for control in (recent, row):
        control.focus()
        element = control.element_handle()
        with page.expect_response(lambda answer: "/api/v1/chats?" in answer.url):
            page.evaluate("dispatchEvent(new Event('focus'))")
        page.evaluate("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
        # The same element is in the document, so that it keeps its place as well.
        assert element is not None
        assert element.evaluate("element => element === document.activeElement")


def test_tags_are_saved_once_they_are_complete(page: Page, account: Account) -> None:
    character = account.import_card()["id"]
    page.goto(f"/#/characters/{character}")
    page.locator("summary", has_text="About").first.click()
    tags = page.get_by_label("Tags")
    tags.fill("sea, li")
    name = page.get_by_label("Name", exact=True)
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        page.get_by_label("Creator", exact=True).fill("Ada")
    assert account.get(f"/characters/{character}")["tags"] == ["sea", "li"]
    # While the user types, nothing is saved.
    saved: list[str] = []
    page.on("request", lambda request: saved.append(request.method))
    tags.press("End")
    tags.press_sequentially("ghthou")
    page.wait_for_timeout(1200)
    assert "PATCH" not in saved
    tags.press_sequentially("se")
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        name.focus()
    assert account.get(f"/characters/{character}")["tags"] == ["sea", "lighthouse"]


def test_a_new_entry_is_visible_whatever_the_list_shows(page: Page, account: Account) -> None:
    book = account.post("/lorebooks", {"name": "Saltwick"})["id"]
    account.post(f"/lorebooks/{book}/entries", {"title": "The sea", "keys": ["sea"]})
    page.goto(f"/#/lorebooks/{book}")
    show = page.get_by_role("combobox", name="Show")
    show.select_option("off")
    entries = page.get_by_role("list", name="Entries").get_by_role("listitem")
    expect(entries).to_have_count(0)
    page.get_by_role("button", name="Add entry").click()
    expect(entries).to_have_count(2)
    expect(show).to_have_value("")


def test_dialogs_of_the_account_begin_in_their_first_field(page: Page, account: Account) -> None:
    page.goto("/#/security")
    for button, field in (
        ("Create API key", "Label"),
        ("Change password", "Current password"),
    ):
        page.get_by_role("button", name=button).click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_label(field)).to_be_focused()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
