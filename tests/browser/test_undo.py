"""Actions that can be undone: they stay pending across views, and run once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Locator, Page, Request, expect

from tests.support.browser import Account, finish_deletion
from tests.support.drawings import portrait

pytestmark = pytest.mark.browser


def count_requests(page: Page, method: str, path: str) -> Callable[[], int]:
    """Count the requests whose address ends with a path."""
    found: list[Request] = []
    # Playwright sets an attribute of the function, which a method of a list cannot have.
    page.on("request", lambda request: found.append(request))  # noqa: PLW0108
    return lambda: sum(each.method == method and each.url.endswith(path) for each in found)


def delete_in_menu(page: Page, row: Locator) -> None:
    row.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete").click()


def test_what_is_being_deleted_stays_away_when_its_list_is_opened_again(
    page: Page, account: Account
) -> None:
    for name in ("Plain", "Ornate"):
        account.post("/presets", {"name": name})
        account.post("/api-keys", {"label": name, "scope": "chat"})
    page.goto("/#/presets")
    delete_in_menu(page, page.get_by_role("listitem").filter(has_text="Plain"))
    expect(page.get_by_role("link", name="Plain")).to_be_hidden()
    page.goto("/#/security")
    end = page.get_by_role("button", name="End “Ornate”")
    end.click()
    expect(end).to_be_hidden()

    page.goto("/#/presets")
    expect(page.get_by_role("link", name="Ornate")).to_be_visible()
    expect(page.get_by_role("link", name="Plain")).to_be_hidden()
    page.goto("/#/security")
    expect(page.get_by_role("button", name="End “Plain”")).to_be_visible()
    expect(end).to_be_hidden()
    page.get_by_role("button", name="Undo").last.click()
    expect(end).to_be_visible()

    finish_deletion(page)
    page.goto("/#/presets")
    expect(page.get_by_role("link", name="Ornate")).to_be_visible()
    expect(page.get_by_role("link", name="Plain")).to_be_hidden()
    assert [each["name"] for each in account.get("/presets")["items"]] == ["Ornate"]
    assert len(account.get("/api-keys")["items"]) == 2


def test_a_message_that_is_being_deleted_stays_away_when_the_chat_is_opened_again(
    page: Page, account: Account
) -> None:
    chat = account.new_chat(title="Harbour")["id"]
    for text in ("The first line.", "The second line."):
        account.post(f"/chats/{chat}/messages", {"role": "user", "text": text})
    page.goto(f"/#/chats/{chat}")
    line = page.get_by_text("The first line.")
    tools = page.get_by_role("group", name="Actions for message 1")
    tools.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete this message only").click()
    expect(line).to_be_hidden()

    page.goto("/#/characters")
    page.goto(f"/#/chats/{chat}")
    expect(page.get_by_text("The second line.")).to_be_visible()
    expect(line).to_be_hidden()
    page.get_by_role("button", name="Undo").click()
    expect(line).to_be_visible()


def test_all_messages_that_are_being_deleted_stay_away_when_the_chat_is_opened_again(
    page: Page, account: Account
) -> None:
    chat = account.new_chat(title="Harbour")["id"]
    for text in ("The first line.", "The second line."):
        account.post(f"/chats/{chat}/messages", {"role": "user", "text": text})
    messages = page.get_by_role("feed").get_by_role("article")
    for undo in (True, False):
        page.goto(f"/#/chats/{chat}")
        expect(messages).to_have_count(2)
        tools = page.get_by_role("group", name="Actions for message 1")
        tools.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name="Delete from here").click()
        expect(messages).to_have_count(0)
        page.goto("/#/characters")
        expect(page.get_by_role("heading", name="Characters")).to_be_visible()
        page.goto(f"/#/chats/{chat}")
        expect(page.get_by_text("No messages yet.")).to_be_visible()
        expect(messages).to_have_count(0)
        if undo:
            page.get_by_role("button", name="Undo").click()
            expect(messages).to_have_count(2)

    # A new line is not deleted with them.
    line = page.get_by_role("textbox", name="Your message")
    line.fill("/sys The tide turns.")
    line.press("Enter")
    expect(messages).to_have_count(1)
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()
    items = account.get(f"/chats/{chat}/messages")["items"]
    assert [(each["text"], each["position"]) for each in items] == [("The tide turns.", 0)]


@pytest.mark.parametrize("action", ["Duplicate", "Export as plain text"])
def test_a_chat_is_copied_without_messages_that_are_being_deleted(
    page: Page, account: Account, action: str
) -> None:
    chat = account.new_chat(title="Harbour")["id"]
    for text in ("The first line.", "The second line."):
        account.post(f"/chats/{chat}/messages", {"role": "user", "text": text})
    page.goto(f"/#/chats/{chat}")
    tools = page.get_by_role("group", name="Actions for message 1")
    tools.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete this message only").click()
    expect(page.get_by_text("The first line.")).to_be_hidden()

    page.goto("/#/")
    page.get_by_role("button", name="More actions for Harbour").click()
    copy = page.get_by_role("menuitem", name=action)
    if action == "Duplicate":
        copy.click()
        expect(page.locator("main").get_by_role("link", name="Harbour (copy)")).to_be_visible()
        [made] = [each for each in account.get("/chats")["items"] if each["id"] != chat]
        found = "".join(
            each["text"] for each in account.get(f"/chats/{made['id']}/messages")["items"]
        )
    else:
        with page.expect_download() as saved:
            copy.click()
        found = Path(saved.value.path()).read_text(encoding="utf-8")
    assert "The second line." in found
    assert "The first line." not in found
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()


def test_a_search_leaves_out_what_is_being_deleted(page: Page, account: Account) -> None:
    chat = account.new_chat(title="Harbour")["id"]
    for text in ("The heron waits.", "The heron flies."):
        account.post(f"/chats/{chat}/messages", {"role": "user", "text": text})
    while len(account.get("/search", q="heron", chat_id=chat)["items"]) < 2:
        page.wait_for_timeout(50)
    page.goto(f"/#/chats/{chat}")
    tools = page.get_by_role("group", name="Actions for message 1")
    tools.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete this message only").click()
    page.goto("/#/memory?q=heron")
    results = page.get_by_role("list", name="Best matches first").get_by_role("article")
    expect(results).to_have_count(1)
    expect(results).to_contain_text("The heron flies.")
    page.get_by_role("button", name="Undo").click()
    page.reload()
    expect(results).to_have_count(2)


def test_what_is_being_deleted_is_deleted_before_the_user_signs_out(
    page: Page, account: Account
) -> None:
    account.post("/presets", {"name": "Plain"})
    page.goto("/#/presets")
    delete_in_menu(page, page.get_by_role("listitem").filter(has_text="Plain"))
    page.goto("/#/account")
    with page.expect_response(lambda answer: "/presets/" in answer.url) as deletion:
        page.get_by_role("button", name="Sign out").click()
    assert deletion.value.status == 204
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_entries_can_be_moved_after_a_deletion_that_began_before_the_lorebook_was_opened_again(
    page: Page, account: Account
) -> None:
    book = account.post("/lorebooks", {"name": "Tides"})["id"]
    for name in ("Ebb", "Flow", "Storm"):
        account.post(f"/lorebooks/{book}/entries", {"title": name, "keys": [name]})
    page.goto(f"/#/lorebooks/{book}")
    delete_in_menu(page, page.get_by_role("listitem").filter(has_text="Ebb"))
    page.goto("/#/lorebooks")
    expect(page.get_by_role("link", name="Tides")).to_be_visible()
    page.goto(f"/#/lorebooks/{book}")
    page.get_by_role("button", name="More actions for Storm").click()
    with page.expect_response(lambda answer: answer.url.endswith("/entries/order")) as order:
        page.get_by_role("menuitem", name="Move up").click()
    assert order.value.ok
    items = account.get(f"/lorebooks/{book}/entries")["items"]
    assert [each["title"] for each in items] == ["Storm", "Flow"]


def test_a_rebuild_cannot_be_started_twice(page: Page, account: Account) -> None:
    count = count_requests(page, "POST", "/memory/rebuild")
    page.goto("/#/memory/status")
    again = page.get_by_role("button", name="Rebuild index")
    again.click()
    expect(again).to_have_attribute("aria-busy", "true")
    again.click()
    # The view reads its state again in the meantime.
    page.goto("/#/memory")
    page.goto("/#/memory/status")
    expect(again).to_have_attribute("aria-busy", "true")
    again.click()
    finish_deletion(page, "POST")
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()
    assert count() == 1


def test_a_second_click_waits_for_the_request_of_the_first(page: Page, account: Account) -> None:
    page.goto("/#/presets")
    page.get_by_role("button", name="New preset").dblclick()
    expect(page.get_by_role("heading", name="My preset")).to_be_visible()
    assert len(account.get("/presets")["items"]) == 1


@pytest.mark.parametrize(
    ("kind", "button"), [("avatar", "Change picture"), ("background", "Change picture")]
)
def test_a_replaced_picture_comes_back(
    page: Page, account: Account, kind: str, button: str
) -> None:
    character = account.import_card()["id"]
    path = f"/characters/{character}/{kind}"
    first, second = portrait("#703048", "hat"), portrait("#304870", "hood")
    other = FilePayload(name="second.png", mimeType="image/png", buffer=second)
    headers = {"x-csrftoken": account.client.cookies["csrftoken"]}
    answer = account.client.put(path, files={"file": ("first.png", first)}, headers=headers)
    assert answer.is_success, answer.text
    before = account.client.get(path).content
    page.goto(f"/#/characters/{character}")
    place = page.locator(".portrait" if kind == "avatar" else ".background")

    def replace() -> None:
        with page.expect_file_chooser() as chooser:
            place.get_by_role("button", name=button).click()
        with page.expect_response(lambda answer: answer.request.method == "PUT"):
            chooser.value.set_files([other])

    replace()
    expect(page.get_by_text("The picture was replaced.")).to_be_visible()
    assert account.client.get(path).content != before
    with page.expect_response(lambda answer: answer.request.method == "PUT"):
        page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("The picture was replaced.")).to_be_hidden()
    assert account.client.get(path).content == before

    # A picture that is being removed does not take the new one with it.
    place.get_by_role("button", name="Remove").click()
    expect(place.get_by_role("button", name="Remove")).to_be_hidden()
    with page.expect_file_chooser() as chooser:
        place.get_by_role("button", name=re.compile("picture")).click()
    with page.expect_response(lambda answer: answer.request.method == "PUT"):
        chooser.value.set_files([other])
    expect(place.get_by_role("button", name="Remove")).to_be_visible()
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()
    assert account.client.get(path).status_code == 200
