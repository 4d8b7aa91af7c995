"""A campaign's ledger, versions and glossary, as somebody reads them and answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Account, phone

pytestmark = pytest.mark.browser


@pytest.fixture
def seagate(account: Account) -> str:
    """The path of a campaign whose only person was moved, and renamed."""
    path = f"/campaigns/{account.post('/campaigns', {'name': 'Seagate', 'day': 5})['id']}"
    shop = account.post(f"{path}/entities", {"kind": "location", "name": "The Salty Sigil"})["id"]
    jake = {"kind": "pc", "name": "Jake", "attributes": {"hp": 13, "inventory": ["fork"]}}
    item = f"{path}/entities/{account.post(f'{path}/entities', jake)['id']}"
    for patch in ({"location_id": shop}, {"attributes": {"hp": 9, "inventory": ["fork", "cloak"]}}):
        assert account.client.patch(item, json=patch).is_success
    return path


def test_a_change_is_undone_and_leads_to_its_message_while_its_branch_is_active(
    page: Page, account: Account, seagate: str, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#{seagate}?tab=ledger")
    lines = (
        page.get_by_role("list", name="Change log").get_by_role("listitem").filter(has_text="You")
    )
    expect(lines).to_have_count(5)
    expect(lines.nth(0)).to_contain_text("HP 9")
    expect(lines.nth(0)).to_contain_text("Inventory cloak")
    expect(lines.nth(1)).to_contain_text("Location The Salty Sigil")
    expect(lines.nth(2)).to_contain_text("Created")
    assert_accessible(page)

    lines.nth(0).get_by_role("button", name="Undo the change of Jake").click()

    expect(lines.nth(0).get_by_text("Undone", exact=True)).to_be_visible()
    expect(lines.nth(0).get_by_role("button", name="Undo")).to_have_count(0)
    assert_accessible(page)
    [jake] = account.get(f"{seagate}/entities", kind="pc")["items"]
    assert jake["attributes"] == {"hp": 13, "inventory": ["fork"]}

    page = page.context.new_page()
    chat = account.new_chat(campaign_id=seagate.removeprefix("/campaigns/"), title="Morning")["id"]
    account.turn(chat, text="I rest.")
    line, reply = account.get(f"/chats/{chat}/messages")["items"]
    body = {"day": 6}
    answer = account.client.patch(seagate, json=body, params={"message_id": reply["id"]})
    assert answer.is_success, answer.text
    page.goto(f"/#{seagate}?tab=ledger")
    newest = page.get_by_role("list", name="Change log").get_by_role("listitem").first
    expect(newest).to_contain_text("Day 6")
    newest.get_by_role("button", name="Message").click()
    expect(page.get_by_role("article").nth(1)).to_be_visible()
    expect(page).to_have_url(f"{page.url.split('#')[0]}#/chats/{chat}")

    account.post(f"/messages/{line['id']}/activate", {"follow": False})
    page.goto(f"/#{seagate}?tab=ledger")
    expect(newest.get_by_text("not on the current branch")).to_be_visible()
    expect(page.get_by_text("Day 5", exact=True)).to_be_visible()
    assert_accessible(page)
    newest.get_by_role("button", name="Message").click()
    expect(page.get_by_text("That message was deleted")).to_be_visible()


def test_a_version_is_restored_and_proposed_terms_are_answered(
    page: Page, account: Account, seagate: str, assert_accessible: Callable[[Page], None]
) -> None:
    account.post(f"{seagate}/clocks", {"name": "The tide"})
    phone(page)
    page.goto(f"/#{seagate}?tab=versions")
    versions = page.get_by_role("list", name="Versions").locator("> li")
    expect(versions).to_have_count(6)
    third = versions.filter(has_text="Version 3")
    third.locator("summary").click()
    expect(third.locator("dd").filter(has_text="9")).to_have_text("139")
    expect(third).to_contain_text("The Salty Sigil")
    expect(third).to_contain_text("Created since")
    assert_accessible(page)

    third.get_by_role("button", name="Restore version 3").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()

    expect(page.get_by_text("The world was restored to version 3.")).to_be_visible()
    expect(versions).to_have_count(7)
    [jake] = account.get(f"{seagate}/entities", kind="pc")["items"]
    assert (jake["attributes"]["hp"], jake["location_id"]) == (13, None)
    assert account.get(f"{seagate}/clocks")["items"] == []

    page = page.context.new_page()
    for term in ("saltreader", "GLASSWAY", "Quillon"):
        body = {"term": term, "status": "proposed", "source": "auto", "definition": f"A {term}."}
        account.post(f"{seagate}/glossary", body)
    campaign = seagate.removeprefix("/campaigns/")
    chat = account.new_chat(campaign_id=campaign, title="Morning")["id"]
    page.goto(f"/#/chats/{chat}?panel=world")
    page.get_by_role("link", name="Glossary 3 proposed").click()
    proposed = page.get_by_role("list", name="Proposed", exact=True).get_by_role("listitem")
    expect(proposed).to_have_count(3)
    assert_accessible(page)

    salt = proposed.filter(has_text="saltreader")
    salt.get_by_role("button", name="Definition: A saltreader.").click()
    salt.get_by_label("Definition", exact=True).fill("Who reads brine.")
    expect(salt.get_by_role("button", name="Definition: Who reads brine.")).to_be_visible()
    salt.get_by_role("button", name="Done").click()
    salt.get_by_role("button", name="Approve").click()
    glass = proposed.filter(has_text="GLASSWAY")
    glass.get_by_role("button", name="Term only").click()
    proposed.filter(has_text="Quillon").get_by_role("button", name="Reject").click()

    expect(proposed).to_have_count(0)
    approved = page.get_by_role("list", name="Approved", exact=True)
    expect(approved).to_contain_text("saltreader")
    page.get_by_role("button", name="Add term").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Term").fill("Muffle")
    dialog.get_by_role("button", name="Save").click()
    expect(approved).to_contain_text("Muffle")
    stored = {each["term"]: each for each in account.get(f"{seagate}/glossary")["items"]}
    assert {name: each["status"] for name, each in stored.items()} == {
        "saltreader": "approved",
        "GLASSWAY": "raw",
        "Quillon": "rejected",
        "Muffle": "approved",
    }
    assert stored["saltreader"]["definition"] == "Who reads brine."
