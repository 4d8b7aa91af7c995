"""Search, chronicles and the activity of the agent in the page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Account, finish_deletion, phone

pytestmark = pytest.mark.browser

FOUND = "I find the silver key under the altar of the flooded chapel."


def test_what_the_agent_writes_appears_is_undone_and_rebuilt(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    chat, chronicle = keeping(account)
    page.goto(f"/#/chronicles/{chronicle}")
    expect(page.get_by_text("No events yet.")).to_be_visible()

    account.turn(chat, text=FOUND)
    # As when somebody comes back to the tab.
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    events = page.get_by_role("list", name="Timeline").get_by_role("listitem")
    expect(events).to_contain_text("find the silver key")
    events.get_by_text("Sources (1)").click()
    expect(events.get_by_role("link", name="The flooded chapel")).to_have_attribute(
        "href", f"#/chats/{chat}?at=0"
    )
    assert_accessible(page)
    page.get_by_role("link", name="Agent activity").click()
    page.get_by_role("button", name="Undo").click()
    finish_deletion(page, "POST")
    expect(page.get_by_text("Undone", exact=True)).to_be_visible()
    assert_accessible(page)
    assert account.get(f"/chronicles/{chronicle}/events")["items"] == []

    page = page.context.new_page()
    chat, chronicle = keeping(account)
    account.turn(chat, text=FOUND)
    page.goto(f"/#/chronicles/{chronicle}")
    page.get_by_role("button", name="More actions for The flooded").click()
    page.get_by_role("menuitem", name="Rebuild").click()
    page.get_by_role("button", name="Estimate cost").click()
    expect(page.get_by_text("Messages: 2.")).to_be_visible()
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("Events created: 1")).to_be_visible()


def test_events_are_written_found_merged_and_deleted_and_nothing_typed_is_lost(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    chronicle = account.post("/chronicles", {"name": "Winter"})["id"]
    path = f"/chronicles/{chronicle}/events"
    account.post(path, {"summary": "The snow came early.", "who": ["Mara"], "day": 2})
    old = account.post(path, {"summary": "Nobody minded.", "day": 3})["id"]
    new = account.post(path, {"summary": "Everybody minded.", "day": 4})["id"]
    account.client.patch(f"{path}/{old}", json={"superseded_by": new})
    page.goto("/#/chronicles")
    page.get_by_role("link", name="Winter").click()
    dialog = page.get_by_role("dialog")

    page.get_by_role("button", name="Add event").click()
    dialog.get_by_label("What happened").fill("The river froze.")
    assert_accessible(page)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Add event").click()
    expect(dialog.get_by_label("What happened")).to_have_value("The river froze.")
    dialog.get_by_label("Characters").fill("Mara, Orla")
    dialog.get_by_role("button", name="Save").click()

    page.get_by_role("button", name="Mara", exact=True).first.click()
    events = page.get_by_role("list", name="Timeline").get_by_role("listitem")
    expect(events).to_have_count(2)
    expect(page).to_have_url(re.compile("who=Mara"))
    page.get_by_role("button", name="More actions for The river froze.").click()
    page.get_by_role("menuitem", name="Merge with others").click()
    page.get_by_role("checkbox", name="The snow came early.").check()
    page.get_by_role("button", name="Merge").click()
    expect(events).to_have_count(1)
    finish_deletion(page, "POST")
    page.get_by_role("button", name="More actions for The snow came early. The river").first.click()
    page.get_by_role("menuitem", name="Edit").click()
    expect(dialog.get_by_label("What happened")).to_have_value(
        "The snow came early.\nThe river froze."
    )
    dialog.get_by_label("Characters").fill("Mara")
    dialog.get_by_role("button", name="Save").click()
    expect(events.get_by_role("button", name="Orla", exact=True)).to_have_count(0)
    [merged, _] = account.get(path)["items"]
    assert merged["who"] == ["Mara"]

    page.get_by_role("searchbox", name="Characters").fill("")
    expect(events).to_have_count(2)
    page.get_by_role("button", name="More actions for Everybody").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(events).to_have_count(1)
    page.get_by_role("button", name="Dismiss").click()
    expect(events.get_by_text("Nobody minded.")).to_be_visible()


def test_a_search_finds_messages_and_facts_and_the_status_rebuilds_the_index(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    chat = account.new_chat(title="The flooded chapel")["id"]
    account.turn(chat, text=FOUND)
    page.goto("/#/memory")
    page.get_by_role("searchbox").fill("silver keys")

    mark = page.locator("mark", has_text="silver").first
    expect(mark).to_be_visible()
    expect(page.get_by_text("Message in The flooded chapel").first).to_be_visible()
    expect(page).to_have_url(re.compile(r"q=silver\+keys"))
    assert_accessible(page)
    page.get_by_role("combobox").select_option("Events")
    expect(page.get_by_text("No results.")).to_be_visible()

    # A name at the beginning of a text is not repeated.
    page = page.context.new_page()
    world = f"/campaigns/{account.post('/campaigns', {'name': 'The mill'})['id']}"
    robin = account.post(f"{world}/entities", {"kind": "npc", "name": "Robin"})["id"]
    account.post(f"{world}/facts", {"text": "Robin: cannot swim.", "about_id": robin})
    page.goto("/#/memory?q=swim")
    for _ in range(100):  # until it is indexed
        if account.get("/search", q="swim")["items"]:
            break
        page.wait_for_timeout(50)
    page.reload()
    found = page.get_by_role("list", name="Best matches first").get_by_role("article").first
    expect(found.get_by_role("heading")).to_have_text("Robin")
    expect(found.locator(".prose")).to_have_text("cannot swim.")

    page = page.context.new_page()
    phone(page)
    page.goto("/#/memory-settings")
    page.get_by_role("link", name="Memory status").click()

    expect(page.get_by_role("listitem").filter(has_text="Messages")).to_contain_text("2")
    expect(page.get_by_text("By words only")).to_be_visible()
    expect(page.get_by_text("download one on this page")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="Rebuild index").focus()
    page.keyboard.press("Enter")
    finish_deletion(page, "POST")
    expect(page.get_by_text("Rebuilding the index")).to_be_visible()
    expect(page.get_by_text("Compared with the database")).to_be_visible()
    assert_accessible(page)


def keeping(account: Account) -> tuple[str, str]:
    """A chat that keeps a chronicle; its id and that of the chronicle."""
    chat = account.new_chat(title="The flooded chapel")["id"]
    answer = account.client.patch(f"/chats/{chat}/settings", json={"chronicle_enabled": True})
    assert answer.is_success, answer.text
    return chat, answer.json()["chronicle_id"]
