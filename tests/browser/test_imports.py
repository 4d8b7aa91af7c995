"""Import of files that are dropped on the page, export of chats, and the account's archive."""

from __future__ import annotations

import base64
import io
import json
import re
import zipfile
from collections.abc import Callable

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.support.browser import Account, Watch, finish_deletion, phone
from tests.support.sillytavern_folder import FolderSize, SillyTavernFolder

pytestmark = pytest.mark.browser

IN_A_CHAT = re.compile(r"#/chats/[0-9a-f-]{36}")
DROPPED = """([name, data]) => {
  const held = new DataTransfer();
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  held.items.add(new File([bytes], name));
  return held;
}"""


def drop(page: Page, name: str, data: bytes) -> None:
    """Drop a file on the present view."""
    held = page.evaluate_handle(DROPPED, [name, base64.b64encode(data).decode()])
    page.get_by_role("main").dispatch_event("drop", {"dataTransfer": held})


def zip_folder(folder: SillyTavernFolder) -> bytes:
    """Return a user's folder as a zip of SillyTavern's `data` folder."""
    target = io.BytesIO()
    folder.write_zip(target, prefix="data/default-user/")
    return target.getvalue()


def imports(page: Page) -> Locator:
    """The list of imports above every view."""
    return page.get_by_role("region", name="Imports")


def test_a_sillytavern_folder_is_dropped_and_each_file_has_a_result(
    page: Page, account: Account, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    watch.expected.append("/me/archive/status")
    folder = SillyTavernFolder(
        FolderSize(characters=3, chats=6, messages=6, groups=1, group_chats=1, worlds=2)
    )
    page.goto("/#/")
    page.get_by_role("button", name="Import from SillyTavern").click()
    steps = page.get_by_role("dialog", name="Import from SillyTavern")
    expect(steps).to_contain_text("default-user")
    expect(steps).to_contain_text("API keys stay out")
    assert_accessible(page)
    page.keyboard.press("Escape")
    page.goto("/#/lorebooks")
    expect(page.get_by_role("heading", name="Lore", exact=True)).to_be_visible()

    drop(page, "data.zip", zip_folder(folder))

    expect(imports(page)).to_contain_text("Finished")
    expect(page.get_by_role("list").get_by_role("link", name=folder.worlds[0])).to_be_visible()
    imports(page).get_by_role("link", name="data.zip").click()
    expect(page.get_by_role("heading", name="data.zip")).to_be_visible()
    results = page.get_by_role("list", name="Results")
    page.get_by_role("button", name="skipped").click()
    expect(results.get_by_role("listitem").filter(has_text="secrets.json")).to_be_visible()
    assert_accessible(page)
    assert {each["name"] for each in account.get("/personas")["items"]} == {
        *folder.personas.values()
    }
    page.get_by_role("button", name="imported").click()
    first = folder.chat_paths[0].removeprefix("chats/")
    results.get_by_role("link", name=first).click()

    expect(page).to_have_url(IN_A_CHAT)
    expect(page.get_by_text(re.compile(r"^\d / 3$")).last).to_be_visible()

    page.goto("/#/imports")
    earlier = page.get_by_role("list", name="Earlier imports")
    expect(earlier.get_by_role("listitem")).to_have_count(1)
    drop(page, "data.zip", zip_folder(folder))
    expect(imports(page)).to_contain_text("already there")
    expect(earlier.get_by_role("listitem")).to_have_count(2)


def test_an_import_is_stopped_and_continued(page: Page, account: Account) -> None:
    folder = SillyTavernFolder(FolderSize(characters=2, chats=200, messages=10, groups=0))
    page.goto("/#/characters")
    expect(page.get_by_role("heading", name="Characters", level=1)).to_be_visible()
    drop(page, "default-user.zip", zip_folder(folder))

    imports(page).get_by_role("button", name="Stop importing default-user.zip").click()

    expect(imports(page)).to_contain_text("Stopped")
    [before] = account.get("/imports")["items"]
    assert before["counts"]["imported"] < len(folder.chat_paths)
    page.reload()
    page.goto(f"/#/imports/{before['id']}")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("status").filter(has_text="Finished")).to_be_visible()
    [after] = account.get("/imports")["items"]
    assert after["counts"]["imported"] > before["counts"]["imported"]


def test_a_file_that_is_nothing_known_says_why_on_a_phone(
    page: Page, assert_accessible: Callable[[Page], None]
) -> None:
    phone(page)
    page.goto("/#/memory")
    expect(page.get_by_role("heading", name="Memory", level=1)).to_be_visible()

    drop(page, "letter.txt", b"Dear sir,\nthe light is out.\n")

    expect(imports(page).get_by_role("status")).to_have_text("0 of 1 imported, 1 failed")
    expect(imports(page)).to_contain_text("not of a known kind")
    assert_accessible(page)
    imports(page).get_by_role("button", name="Clear").click()
    expect(imports(page)).to_be_hidden()


def test_a_chat_is_exported_and_imported_into_its_character_s_chats(
    page: Page, account: Account
) -> None:
    character = account.import_card()
    account.new_chat(character_ids=[character["id"]], title="The storm")
    page.goto("/#/")
    saved: dict[str, bytes] = {}
    for label in (
        "Export for SillyTavern (JSONL)",
        "Export as Markdown",
        "Export as plain text",
        "Export with all branches",
    ):
        page.get_by_role("main").get_by_role("button", name="More actions for The storm").click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name=label).click()
        saved[label] = download.value.path().read_bytes()
    header, greeting = map(json.loads, saved["Export for SillyTavern (JSONL)"].splitlines())
    assert "chat_metadata" in header
    assert greeting["name"] == "Marlena"
    assert b"Marlena" in saved["Export as Markdown"]
    assert b"Marlena" in saved["Export as plain text"]

    page.goto(f"/#/characters/{character['id']}")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import a chat").click()
    chat = FilePayload(
        name="The storm.jsonl",
        mimeType="application/jsonl",
        buffer=saved["Export for SillyTavern (JSONL)"],
    )
    chooser.value.set_files([chat])

    expect(imports(page).get_by_role("status")).to_have_text("1 of 1 imported")
    imports(page).get_by_role("link", name="The storm.jsonl").click()
    expect(page).to_have_url(IN_A_CHAT)
    expect(page.get_by_role("article", name="Marlena")).to_be_visible()
    chats = account.get("/chats", character_id=character["id"])["items"]
    assert len(chats) == 2


def test_the_archive_of_the_account_is_made_downloaded_and_offered_before_deletion(
    page: Page, account: Account, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    watch.expected.append("/me/archive/status")
    account.import_card()
    page.goto("/#/settings")
    page.get_by_role("link", name="Data", exact=True).click()

    page.get_by_role("button", name="Make the archive").click()

    expect(page.get_by_text("is ready")).to_be_visible()
    assert_accessible(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        assert any("Marlena" in name for name in archive.namelist()), archive.namelist()
    page.goto("/#/account")
    page.get_by_role("button", name="Delete account").click()
    dialog = page.get_by_role("dialog", name="Delete account")
    expect(dialog).to_contain_text("is ready")
    expect(dialog.get_by_role("button", name="Download")).to_be_visible()
    assert_accessible(page)
    dialog.get_by_role("button", name="Delete the archive").click()
    finish_deletion(page)
    expect(dialog.get_by_role("button", name="Make the archive")).to_be_visible()


def test_the_archive_says_how_many_items_could_not_be_decrypted(
    page: Page, account: Account, watch: Watch
) -> None:
    del account  # the page is signed in to it
    watch.expected.append("/me/archive/status")
    status = {
        "state": "ready",
        "size": 2_000,
        "unreadable": 2,
        "created_at": "2026-01-02T03:04:05Z",
        "expires_at": "2026-01-03T03:04:05Z",
        "job": None,
    }
    page.route("**/me/archive/status", lambda route: route.fulfill(json=status))
    page.goto("/#/settings")
    page.get_by_role("link", name="Data", exact=True).click()
    expect(page.get_by_text("2 items could not be decrypted and are left out")).to_be_visible()
