"""Lorebooks as people keep and try them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.support.browser import Account, Watch

pytestmark = pytest.mark.browser


def book(account: Account, *entries: dict[str, Any]) -> str:
    """The address of a new lorebook with these entries."""
    made = account.post("/lorebooks", {"name": "Saltwick"})
    for entry in entries:
        account.post(f"/lorebooks/{made['id']}/entries", entry)
    return f"/#/lorebooks/{made['id']}"


LIGHT = {"title": "The light", "keys": ["lighthouse"], "content": "It stands on a rock."}
NAVY = {"title": "The navy", "keys": ["navy"], "content": "Ships.", "enabled": False}


def test_files_become_lorebooks_and_one_that_is_none_says_why(page: Page, watch: Watch) -> None:
    watch.expected.append("/lorebooks/import")
    world = {"entries": {"0": {"uid": 0, "key": ["inn"], "content": "An inn.", "comment": "Inn"}}}
    page.goto("/#/lorebooks")
    expect(page.get_by_text("Lorebook entries are added")).to_be_visible()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    files = {"Harbour.json": json.dumps(world).encode(), "letter.json": b"Dear sir,"}
    chooser.value.set_files(
        [
            FilePayload(name=name, mimeType="application/json", buffer=data)
            for name, data in files.items()
        ]
    )
    imports = page.get_by_role("region", name="Imports")
    expect(imports).to_contain_text("This is no lorebook")
    expect(imports).to_contain_text("or by their meaning")
    imports.get_by_role("button", name="Use keys only").click()
    expect(imports).to_contain_text("Entries activate by their keys.")
    imports.get_by_role("link", name="Harbour").click()
    expect(page.get_by_role("heading", name="Harbour")).to_be_visible()
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Activate by")).to_have_value("keys")
    expect(page.get_by_role("button", name="Inn inn", exact=True)).to_be_visible()


def test_entries_are_tested_added_ordered_and_restored(page: Page, account: Account) -> None:
    page.goto(book(account, LIGHT, NAVY))
    page.get_by_label("Test text").fill("The navy sees the Lighthouse.")
    expect(page.get_by_role("heading", name="1 entry activated")).to_be_visible()
    expect(page.locator("mark")).to_have_text(["Lighthouse"])
    details = page.get_by_role("region", name="Details")
    expect(details).to_contain_text("Matched the key “lighthouse” in the text")
    expect(details).to_contain_text("Turned off")
    details.get_by_role("button", name="The navy").click()
    page.get_by_role("checkbox", name="On", exact=True).check()
    expect(details).to_contain_text("Saved")
    details.get_by_role("button", name="Test").click()
    expect(page.locator("mark")).to_have_text(["navy", "Lighthouse"])

    page = page.context.new_page()
    address = book(account, LIGHT)
    page.goto(address)
    page.get_by_role("button", name="Add entry").click()
    details = page.get_by_role("region", name="Details")
    details.get_by_label("Name", exact=True).fill("The lamp")
    details.get_by_label("Keys", exact=True).fill("/lamps?{1,2}/i\nwick, oil")
    details.get_by_text("Timing", exact=True).click()
    details.get_by_label("Cooldown").fill("3")
    details.get_by_text("Filters", exact=True).click()
    details.get_by_label("Characters").fill("Mara")
    expect(details).to_contain_text("Saved")
    expect(page.get_by_role("list", name="Entries")).to_contain_text("The lamp")
    _, made = account.get(f"{address[3:]}/entries")["items"]
    assert (made["title"], made["cooldown"]) == ("The lamp", 3)
    assert made["keys"] == ["/lamps?{1,2}/i", "wick, oil"]
    assert made["character_filter"]["names"] == ["Mara"]

    page = page.context.new_page()
    address = book(account, LIGHT, NAVY)
    page.goto(address)
    rows = page.get_by_role("list", name="Entries").get_by_role("listitem")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="More actions for The light").press("Enter")
    with page.expect_response(lambda answer: answer.url.endswith("/entries/order")):
        page.get_by_role("menuitem", name="Move down").press("Enter")
    expect(rows.first).to_contain_text("The navy")
    titles = [entry["title"] for entry in account.get(f"{address[3:]}/entries")["items"]]
    assert titles == ["The navy", "The light"]
    page.get_by_role("button", name="More actions for The navy").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(rows).to_have_count(2)
    page.get_by_role("combobox", name="Show").select_option("Off")
    expect(rows).to_have_count(1)
