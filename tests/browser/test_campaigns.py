"""Campaigns as somebody keeps them: made, set up, played in, deleted."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.support.browser import Account, Watch, dark, phone
from tests.support.zips import seagate_vault, zipped

pytestmark = pytest.mark.browser

DROPPED = """([name, data]) => {
  const held = new DataTransfer();
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  held.items.add(new File([bytes], name));
  return held;
}"""


def right_edge(locator: Locator) -> float:
    """The place of an element's right edge on the screen, in pixels."""
    box = locator.bounding_box()
    assert box is not None
    return box["x"] + box["width"]


def test_a_campaign_is_made_set_up_and_played_in(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto("/#/")
    page.get_by_role("main").get_by_role("link", name="Campaigns").click()
    expect(page.get_by_text("A campaign is a world")).to_be_visible()
    assert_accessible(page)

    page.get_by_role("button", name="New campaign").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("Seagate")
    dialog.get_by_label("Day", exact=True).fill("5")
    dialog.get_by_label("Time of day").fill("morning")
    dialog.get_by_label("City or region").fill("Seagate")
    assert_accessible(page)
    save = dialog.get_by_role("button", name="Save")
    assert right_edge(save) == pytest.approx(right_edge(dialog.get_by_label("Hook")), abs=1)
    save.click()
    expect(page.get_by_role("heading", level=1, name="Seagate")).to_be_visible()
    expect(page.get_by_text("Day 5, morning")).to_be_visible()
    assert_accessible(page)
    [made] = account.get("/campaigns")["items"]
    assert (made["day"], made["brief"]["city"], made["rules"]) == (5, "Seagate", "freeform")

    parts = page.get_by_role("navigation", name="Campaign sections")
    parts.get_by_role("link", name="Settings").click()
    page.get_by_label("Name", exact=True).fill("Seagate by night")
    page.get_by_label("Rounds between summaries").fill("6")
    page.get_by_role("checkbox", name="Approve new terms automatically").check()
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", level=1, name="Seagate by night")).to_be_visible()
    assert_accessible(page)
    settings = account.get(f"/campaigns/{made['id']}")["settings"]
    assert (settings["memory_interval"], settings["approve_terms"]) == (6, True)

    page.get_by_role("button", name="New chat").click()
    dialog.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile(r"#/chats/[0-9a-f-]{36}"))
    # Freeform play has no mood yet, and an empty line of it would show as a stray mark.
    expect(page.get_by_label("Your message")).to_be_visible()
    expect(page.locator(".mood")).to_be_hidden()
    [chat] = account.get("/chats")["items"]
    assert chat["campaign_id"] == made["id"]


def test_a_chat_joins_a_campaign_takes_a_point_of_view_and_outlives_it(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    campaign = account.post("/campaigns", {"name": "Seagate"})["id"]
    chat = account.new_chat(title="The storm")["id"]
    page.goto(f"/#/campaigns/{campaign}")
    page.get_by_role("button", name="Add an existing chat").click()
    page.get_by_role("menuitem", name="The storm").click()
    sessions = page.get_by_role("list", name="Sessions")
    expect(sessions.get_by_role("link", name="The storm")).to_be_visible()

    page.goto(f"/#/chats/{chat}?panel=settings")
    choice = page.get_by_role("complementary").get_by_label("Campaign", exact=True)
    expect(choice).to_have_value(campaign)
    choice.select_option(label="None")
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    assert account.get(f"/chats/{chat}")["campaign_id"] is None

    # Replies are told from a point of view.
    assert account.client.patch(f"/chats/{chat}", json={"campaign_id": campaign}).is_success
    page = page.context.new_page()
    jake = account.post(f"/campaigns/{campaign}/entities", {"kind": "pc", "name": "Jake"})["id"]
    page.goto(f"/#/chats/{chat}?panel=settings")
    choice = page.get_by_role("complementary").get_by_label("Point of view")
    expect(choice).to_have_value("null")
    for label, wanted in (("Jake", jake), ("Everyone", "public"), ("Game master", None)):
        with page.expect_response(f"**/chats/{chat}/settings"):
            choice.select_option(label=label)
        assert account.get(f"/chats/{chat}/settings").get("viewpoint") == wanted

    # Deleting a campaign keeps its chats.
    page = page.context.new_page()
    phone(page)
    dark(page)
    page.goto("/#/campaigns")
    expect(page.get_by_role("link", name="The storm")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="More actions for Seagate").click()
    page.get_by_role("menuitem", name="Delete").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("link", name="Seagate")).to_be_visible()
    page.get_by_role("button", name="More actions for Seagate").click()
    page.get_by_role("menuitem", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("A campaign is a world")).to_be_visible()
    assert account.get("/campaigns")["items"] == []
    assert account.get(f"/chats/{chat}")["campaign_id"] is None


def test_a_vault_is_dropped_on_the_page_and_says_what_was_not_understood(
    page: Page, account: Account, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    watch.expected.append("/campaigns/import")
    vault = seagate_vault()
    vault["seagate-vault/canon/npcs/odd.md"] = b"---\nname: [unclosed\n---\n"
    page.goto("/#/campaigns")
    expect(page.get_by_text("A campaign is a world")).to_be_visible()
    for name, data in (("Seagate.zip", zipped(vault)), ("broken.zip", b"no zip")):
        encoded = base64.b64encode(data).decode()
        held = page.evaluate_handle(DROPPED, [name, encoded])
        page.get_by_role("main").dispatch_event("drop", {"dataTransfer": held})
    imports = page.get_by_role("region", name="Imports")
    expect(imports.get_by_role("status")).to_have_text("1 of 2 imported, 1 failed")
    expect(imports.get_by_role("button", name="Retry broken.zip")).to_be_visible()
    imports.get_by_text("not recognized").click()
    expect(imports.get_by_text("odd.md")).to_be_visible()
    assert_accessible(page)

    [made] = account.get("/campaigns")["items"]
    imports.get_by_role("link", name=made["name"]).click()
    page.get_by_role("link", name="World").click()
    expect(page.get_by_role("list", name="Party")).to_contain_text("Jake")
    expect(page.get_by_role("list", name="Present")).to_contain_text("Marlena")


def test_a_campaign_is_saved_as_a_file_and_comes_in_again(page: Page, account: Account) -> None:
    campaign = account.post("/campaigns", {"name": "Seagate", "day": 5})["id"]
    page.goto(f"/#/campaigns/{campaign}")
    files: list[FilePayload] = []
    for label in ("Export as zip", "Export as Markdown vault"):
        page.get_by_role("button", name="More actions for Seagate").click()
        with page.expect_download() as saved:
            page.get_by_role("menuitem", name=label).click()
        data = saved.value.path().read_bytes()
        files.append({"name": f"{label}.zip", "mimeType": "application/zip", "buffer": data})
    page.get_by_role("link", name="Campaigns").click()
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Import").click()
    chosen.value.set_files(files)
    expect(page.get_by_role("region", name="Imports").get_by_role("status")).to_have_text(
        "2 of 2 imported"
    )
    found = [(each["name"], each["day"]) for each in account.get("/campaigns")["items"]]
    assert found == [("Seagate", 5)] * 3
