"""Campaigns as somebody keeps them: made, set up, played in, deleted."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Account, dark, phone

pytestmark = pytest.mark.browser


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
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1, name="Seagate")).to_be_visible()
    expect(page.get_by_text("Day 5, morning")).to_be_visible()
    assert_accessible(page)
    [made] = account.get("/campaigns")["items"]
    assert (made["day"], made["brief"]["city"], made["rules"]) == (5, "Seagate", "freeform")

    page.get_by_role("link", name="Settings").click()
    page.get_by_label("Name", exact=True).fill("Seagate by night")
    page.get_by_label("Rounds between two summaries").fill("6")
    page.get_by_role("checkbox", name="Approve new terms at once").check()
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", level=1, name="Seagate by night")).to_be_visible()
    assert_accessible(page)
    settings = account.get(f"/campaigns/{made['id']}")["settings"]
    assert (settings["memory_interval"], settings["approve_terms"]) == (6, True)

    page.get_by_role("button", name="Open a chat").click()
    dialog.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile(r"#/chats/[0-9a-f-]{36}"))
    [chat] = account.get("/chats")["items"]
    assert chat["campaign_id"] == made["id"]


def test_chats_join_a_campaign_and_leave_it(page: Page, account: Account) -> None:
    campaign = account.post("/campaigns", {"name": "Seagate"})["id"]
    chat = account.new_chat(title="The storm")["id"]
    page.goto(f"/#/campaigns/{campaign}")
    page.get_by_role("button", name="Let a chat join").click()
    page.get_by_role("menuitem", name="The storm").click()
    sessions = page.get_by_role("list", name="Sessions")
    expect(sessions.get_by_role("link", name="The storm")).to_be_visible()

    page.goto(f"/#/chats/{chat}?panel=settings")
    choice = page.get_by_role("complementary").get_by_label("Campaign")
    expect(choice).to_have_value(campaign)
    choice.select_option(label="None")
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    assert account.get(f"/chats/{chat}")["campaign_id"] is None


def test_a_campaign_is_deleted_once_that_is_confirmed(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    phone(page)
    dark(page)
    campaign = account.post("/campaigns", {"name": "Seagate"})["id"]
    chat = account.new_chat(title="The storm", campaign_id=campaign)["id"]
    page.goto("/#/campaigns")
    expect(page.get_by_role("link", name="The storm")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="More for Seagate").click()
    page.get_by_role("menuitem", name="Delete").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("link", name="Seagate")).to_be_visible()
    page.get_by_role("button", name="More for Seagate").click()
    page.get_by_role("menuitem", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("A campaign is a world")).to_be_visible()
    assert account.get("/campaigns")["items"] == []
    assert account.get(f"/chats/{chat}")["campaign_id"] is None
