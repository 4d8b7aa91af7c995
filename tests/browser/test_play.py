"""Campaigns that are played on the page: moods, dice, what changed, downtime."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Account, phone

pytestmark = pytest.mark.browser

LINE = "I pick the lock of the counting house."


@pytest.fixture
def doskvol(account: Account) -> dict[str, Any]:
    """A chat of a campaign under the rules of blades: its id and its campaign's path."""
    made = account.post("/campaigns", {"name": "Doskvol", "rules": "blades"})
    chat = account.new_chat(campaign_id=made["id"], title="The counting house")
    return {"chat": chat["id"], "path": f"/campaigns/{made['id']}"}


def say(page: Page, text: str) -> None:
    """Write a line and send it."""
    page.get_by_label("Your message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_a_die_is_chosen_and_what_it_changed_is_told_and_undone(
    page: Page,
    account: Account,
    doskvol: dict[str, Any],
    assert_accessible: Callable[[Page], None],
) -> None:
    page.goto(f"/#/chats/{doskvol['chat']}")
    say(page, LINE)
    question = page.get_by_role("region", name="Choose a die")
    expect(question).to_be_visible()
    expect(page.locator(".mood")).to_contain_text("Action")
    expect(page.get_by_label("Your message")).to_be_hidden()
    expect(page.get_by_text("This reply is waiting for your choice.")).to_be_visible()
    assert_accessible(page)
    # It waits for whoever comes back, too.
    page.reload()
    expect(question).to_be_visible()
    best = question.get_by_role("listitem").first.get_by_role("button")
    pips, label = best.locator(".pips").inner_text(), best.locator("b").inner_text()
    tier, outcome = re.findall("[^:(]+", best.locator("small").inner_text())[:2]
    chosen = f"{pips}Die {label}: {tier.capitalize()} · {outcome.strip()}"
    best.press("Enter")
    expect(question).to_be_hidden()
    expect(page.locator(".mood")).to_contain_text("Aftermath")
    told = page.locator(".message.last")
    expect(told).to_contain_text("Talekeeper's demo model told this.")
    expect(page.get_by_role("button", name="I hide, and wait.")).to_be_visible()
    die = page.locator(".message.last .die")
    expect(die).to_have_text(chosen)
    page.reload()
    expect(die).to_have_text(chosen)
    page.get_by_text("changes in the world").click()
    ledger = page.locator(".changes .ledger")
    expect(ledger).to_contain_text("Somebody raises the alarm")
    assert account.get(f"{doskvol['path']}/state")["clocks"][0]["filled"] == 1
    ledger.get_by_role("button", name="Undo").last.click()
    expect(ledger.get_by_text("Undone").first).to_be_visible()
    assert_accessible(page)


def test_a_turn_that_waits_can_be_given_up_on_a_phone(
    page: Page, account: Account, doskvol: dict[str, Any]
) -> None:
    phone(page)
    page.goto(f"/#/chats/{doskvol['chat']}")
    say(page, LINE)
    page.get_by_role("button", name="Cancel this turn").click()
    expect(page.get_by_label("Your message")).to_be_visible()
    expect(page.get_by_role("region", name="Choose a die")).to_be_hidden()
    assert account.get(f"{doskvol['path']}/state")["entities"] == []


def test_a_scene_is_ended_and_downtime_is_the_player_s_decision(
    page: Page, account: Account, doskvol: dict[str, Any]
) -> None:
    scene = account.post(f"{doskvol['path']}/scenes", {"title": "The counting house"})
    page.goto(f"/#/chats/{doskvol['chat']}?panel=world")
    card = page.locator(".thing.scene")
    card.get_by_role("button", name="More actions for The counting house").click()
    page.get_by_role("menuitem", name="End scene").click()
    expect(card).to_have_count(0)
    ended = account.get(f"{doskvol['path']}/scenes/{scene['id']}")
    assert ended["status"] == "closed"

    page = page.context.new_page()
    account.post(
        f"{doskvol['path']}/entities",
        {"kind": "pc", "name": "Arlyn", "attributes": {"stress": 5}},
    )
    page.goto(f"/#/chats/{doskvol['chat']}")
    page.get_by_role("button", name="Downtime").click()
    page.get_by_label("Activity").select_option("recovery")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".mood")).to_contain_text("Downtime")
    assert account.get(f"{doskvol['path']}/entities")["items"][0]["attributes"]["stress"] < 5
    page.get_by_role("button", name="End downtime").click()
    expect(page.locator(".mood")).to_contain_text("Scene")
