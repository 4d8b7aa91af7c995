"""Quotas in the page: usage, uploads of several files, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.support.browser import EXAMPLE_CARD, Account, Installation, Watch, installing

pytestmark = pytest.mark.browser

FILES = 5
COUNTING = """
  globalThis.underWay = [];
  let count = 0;
  const { open } = XMLHttpRequest.prototype;
  XMLHttpRequest.prototype.open = function (method, ...given) {
    if (method === "POST") {
      underWay.push((count += 1));
      this.addEventListener("load", () => (count -= 1));
    }
    return open.call(this, method, ...given);
  };
"""
"""Notes of each upload how many are under way with it."""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Generator[Installation]:
    """A server with quotas that are easily reached."""
    with installing(
        tmp_path_factory.mktemp("served"),
        registration="open",
        demo_tokens_per_second="0",
        max_chats_per_user=2,
        max_tokens_per_day_per_user=1,
        max_lorebook_entries_per_user=0,
    ) as installation:
        yield installation


def test_a_user_and_the_administrator_see_the_usage_of_an_account(
    page: Page, administrator: Account, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    account.turn(account.new_chat()["id"], text="Hello.")
    page.goto("/#/account")

    usage = page.locator("section").filter(has=page.get_by_role("heading", name="Usage"))
    chats = usage.get_by_role("progressbar", name="Chats", exact=True)
    expect(chats).to_have_attribute("value", "1")
    expect(chats).to_have_attribute("max", "2")
    rows = usage.get_by_role("listitem")
    expect(rows.filter(has_text="Chats")).to_contain_text("1 of 2")
    expect(rows.filter(has_text="Storage")).to_contain_text(re.compile(r"[\d.]+ kB of 10 GB"))
    expect(rows.filter(has_text="Lorebook entries")).to_contain_text("0, no limit")
    expect(rows.filter(has_text="Tokens today")).to_contain_text("available again at")
    assert_accessible(page)

    administrator.enter(page.context)
    page = page.context.new_page()
    page.goto("/#/server")
    page.get_by_role("button", name=f"Usage of {account.name}", exact=True).click()
    box = page.get_by_role("dialog", name=f"Usage of {account.name}")
    expect(box.get_by_role("listitem").filter(has_text="Chats")).to_contain_text("1 of 2")


def test_files_that_are_imported_together_are_sent_one_after_the_other_and_all_arrive(
    page: Page, account: Account
) -> None:
    page.add_init_script(COUNTING)
    page.goto("/#/characters")
    card = EXAMPLE_CARD.read_bytes()
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Import…").first.click()
    files: list[FilePayload] = [
        {"name": f"{number}.json", "mimeType": "application/json", "buffer": card}
        for number in range(FILES)
    ]
    chosen.value.set_files(files)

    imports = page.get_by_role("region", name="Imports")
    expect(imports.get_by_role("status")).to_have_text(f"{FILES} of {FILES} imported")
    assert len(account.get("/characters")["items"]) == FILES
    assert page.evaluate("underWay") == [1] * FILES


def test_a_full_account_and_a_spent_day_are_told_in_words(
    page: Page, account: Account, watch: Watch
) -> None:
    watch.expected += ["/api/v1/chats$", "/turns$"]
    account.import_card()
    chat = account.new_chat(title="The storm")["id"]
    account.turn(chat, text="Hello.")
    account.new_chat()
    page.goto("/#/characters")
    page.get_by_role("button", name="Chat with Marlena").first.click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Storage quota exceeded")
    expect(alert).to_contain_text("delete chats that you no longer need")

    page.goto(f"/#/chats/{chat}")
    page.get_by_role("textbox", name="Your message").fill("And on.")
    page.keyboard.press("Enter")
    expect(page.get_by_text("today's tokens are used up")).to_be_visible()
    expect(page.get_by_text(re.compile("^Quota exceeded"))).to_be_visible()
