"""The list of characters, the search field, and backgrounds."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.integration.characters.pictures import picture
from tests.support.browser import Account

pytestmark = pytest.mark.browser

Check = Callable[[Page], None]
NAMES = "main li :is(.poster strong, .grow > a)"
"""The names of the characters, in the gallery and in the list."""


def make(account: Account, *names: str) -> dict[str, str]:
    """Characters with these names, the first one the oldest; their ids."""
    return {name: account.post("/characters", {"name": name})["id"] for name in names}


def test_characters_are_marked_ordered_and_filtered(
    page: Page, account: Account, assert_accessible: Check
) -> None:
    made = make(account, "Bor", "Alda", "Cid")
    account.new_chat(character_ids=[made["Bor"]])
    page.goto("/#/characters")
    expect(page.get_by_role("button", name="Favorite Alda")).to_be_visible()
    expect(page.locator(NAMES)).to_have_text(["Bor", "Cid", "Alda"])

    page.get_by_role("button", name="Favorite Alda").click()

    expect(page.get_by_role("button", name="Favorite Alda")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.locator(NAMES).first).to_have_text("Alda")
    assert account.get(f"/characters/{made['Alda']}")["is_favourite"] is True
    page.get_by_label("Order").select_option(label="By name")
    page.get_by_role("button", name="List", exact=True).click()
    expect(page.locator(NAMES)).to_have_text(["Alda", "Bor", "Cid"])
    assert_accessible(page)
    page.get_by_role("button", name="Favorites", exact=True).click()
    expect(page.get_by_text("1 character", exact=True)).to_be_visible()

    page.reload()  # the order and the look are kept, the filter is not
    expect(page.locator(NAMES)).to_have_text(["Alda", "Bor", "Cid"])
    page.get_by_role("button", name="More actions for Bor").click()
    page.get_by_role("menuitem", name="Duplicate").click()
    expect(page.locator(NAMES)).to_have_text(["Alda", "Bor", "Bor (copy)", "Cid"])


def test_several_characters_are_exported_and_deleted(
    page: Page, account: Account, assert_accessible: Check
) -> None:
    make(account, "Bor", "Alda", "Cid")
    page.goto("/#/characters")
    page.get_by_role("button", name="Select", exact=True).click()
    page.get_by_role("checkbox", name="Select Bor").check()
    page.locator(NAMES).filter(has_text="Cid").click()
    expect(page.get_by_text("2 selected")).to_be_visible()
    assert_accessible(page)

    page.get_by_role("group", name="Selected characters").get_by_role(
        "button", name="Export"
    ).click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Export as JSON").click()
    file = Path(download.value.path()).read_bytes()
    with zipfile.ZipFile(io.BytesIO(file)) as zipped:
        assert sorted(zipped.namelist()) == ["Bor.json", "Cid.json"]

    remove = page.get_by_role("group", name="Selected characters").get_by_role(
        "button", name="Delete"
    )
    remove.click()
    expect(page.locator(NAMES)).to_have_text(["Alda"])
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(NAMES)).to_have_count(3)
    page.get_by_role("button", name="Select", exact=True).click()
    page.get_by_role("button", name="Select all").click()
    expect(page.get_by_text("3 selected")).to_be_visible()
    page.locator(NAMES).filter(has_text="Cid").click()
    remove.click()
    expect(page.locator(NAMES)).to_have_text(["Cid"])
    with page.expect_response(lambda answer: answer.request.method == "DELETE"):
        page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_text("1 character", exact=True)).to_be_visible()
    page.reload()
    expect(page.locator(NAMES)).to_have_text(["Cid"])


def test_one_field_finds_chats_characters_settings_and_messages(
    page: Page, account: Account, assert_accessible: Check
) -> None:
    made = make(account, "Magda", "Vey")
    chat = account.new_chat(character_ids=[made["Vey"]], title="The storm")
    account.turn(chat["id"], text="The lamp burns whale oil.")
    page.goto("/#/lorebooks")
    expect(page.get_by_role("heading", level=1)).to_be_visible()

    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Search")
    expect(field).to_be_focused()
    page.keyboard.type("mag")
    people = page.get_by_role("group", name="Characters")
    expect(people.get_by_role("option")).to_have_text([re.compile("Magda")])
    for typed, area in (
        ("theme", "General"),
        ("dark", "General"),
        ("api key", "Models"),
        ("password", "Security"),
    ):
        field.fill(typed)
        settings = page.get_by_role("group", name="Settings").get_by_role("option")
        expect(settings.filter(has=page.get_by_text(area, exact=True))).to_have_count(1)
    field.fill("embedding model")
    expect(page.get_by_role("option", name=re.compile("^Models|^Memory")).first).to_be_visible()
    field.fill("whale")
    found = page.get_by_role("group", name="Messages").get_by_role("option")
    expect(found.first).to_contain_text("The storm")
    expect(page.get_by_text(re.compile(r"^\d+ results?$"))).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(found.first).to_have_attribute("aria-selected", "true")
    assert_accessible(page)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"#/chats/{chat['id']}"))
    expect(page.get_by_text("The lamp burns whale oil.", exact=True)).to_be_visible()

    page.get_by_role("button", name="Search", exact=True).first.click()
    expect(field).to_be_focused()
    page.keyboard.type("vey")
    expect(page.get_by_role("group", name="Characters").get_by_role("option")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(field).to_have_count(0)


def test_a_chat_shows_its_background_or_that_of_its_character(
    page: Page, account: Account, assert_accessible: Check
) -> None:
    character = account.import_card()
    chat = account.new_chat(character_ids=[character["id"]])

    def choose() -> None:
        with page.expect_file_chooser() as chooser:
            page.get_by_role(
                "button", name=re.compile("Choose a picture|Change picture")
            ).last.click()
        image = picture(width=64, height=64, color="black")
        chooser.value.set_files([FilePayload(name="a.png", mimeType="image/png", buffer=image)])

    page.goto(f"/#/characters/{character['id']}")
    choose()
    expect(page.get_by_role("img", name="The background")).to_be_visible()
    page.goto(f"/#/chats/{chat['id']}")
    backdrop = page.locator(".backdrop")
    expect(backdrop).to_have_attribute("src", re.compile(f"characters/{character['id']}"))
    assert_accessible(page)

    page.get_by_role("button", name="Settings", exact=True).click()
    choose()
    expect(backdrop).to_have_attribute("src", re.compile(f"chats/{chat['id']}"))
    page.get_by_role("button", name="Remove background").click()
    expect(backdrop).to_have_attribute("src", re.compile(f"characters/{character['id']}"))
    page.get_by_role("button", name="Undo").click()
    expect(backdrop).to_have_attribute("src", re.compile(f"chats/{chat['id']}"))
    backgrounds = account.get("/backgrounds")["items"]
    assert [bool(each["chat_id"]) for each in backgrounds] == [True, False]
