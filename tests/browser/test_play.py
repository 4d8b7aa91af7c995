"""Played campaigns in the page: moods, dice, changes, downtime and proposals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from backend.accounts.auth.sessions import SessionService
from backend.campaigns.ledger.changes import Operations, build_creation
from backend.campaigns.ledger.items import Fact
from backend.campaigns.proposals.authority import Ambiguity
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.settings import Settings
from backend.vault.root import load_root_keys
from tests.integration.campaigns.drafting import compact
from tests.integration.turns.seeding import COOKIE
from tests.support.browser import Account, phone
from tests.support.process import Served

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
    page: Page, account: Account, doskvol: dict[str, Any], assert_accessible: Callable[[Page], None]
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
        f"{doskvol['path']}/entities", {"kind": "pc", "name": "Arlyn", "attributes": {"stress": 5}}
    )
    page.goto(f"/#/chats/{doskvol['chat']}")
    page.get_by_role("button", name="Downtime").click()
    page.get_by_label("Activity").select_option("recovery")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".mood")).to_contain_text("Downtime")
    assert account.get(f"{doskvol['path']}/entities")["items"][0]["attributes"]["stress"] < 5
    page.get_by_role("button", name="End downtime").click()
    expect(page.locator(".mood")).to_contain_text("Scene")


@dataclass
class Seagate:
    """A campaign with a chat, and the findings of its compactor."""

    server: Served
    account: Account
    path: str
    chat: str
    ids: dict[str, str]

    def read(self, *drafts: dict[str, Any]) -> None:
        """Store proposals for the last line, as the server does."""

        async def propose() -> None:
            config = Settings(_env_file=None, data_dir=self.server.log.parent)  # type: ignore[call-arg]
            root = load_root_keys(config.resolved_root_key_file)
            database = Database(config.resolved_database_url)
            token = self.account.client.cookies[COOKIE]
            identity = await SessionService(database, root, config).authenticate(token, "session")
            assert identity is not None
            line = self.account.get(f"/chats/{self.chat}/messages")["items"][-1]["id"]
            campaign = UUID(self.path.rpartition("/")[2])
            since = now() - timedelta(hours=1)
            await compact(database, identity, campaign, *drafts, line=UUID(line), since=since)
            await database.dispose()

        in_a_thread(propose())

    def change(self, name: str, **fields: Any) -> dict[str, Any]:
        """A draft that changes a character."""
        item_id = UUID(self.ids[name])
        return {"kind": "entity", "item_id": item_id, "operations": Operations(set=fields)}


def in_a_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its end: Playwright's own loop has this thread."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, work).result()


@pytest.fixture
def seagate(server: Served, account: Account) -> Seagate:
    """Marlena with a locked status, Holt with a fact, and a line of each side."""
    path = f"/campaigns/{account.post('/campaigns', {'name': 'Seagate'})['id']}"
    ids: dict[str, str] = {}
    for name, more in (("Marlena", {"locked": ["status"]}), ("Holt", {}), ("Vance", {})):
        person = {"kind": "npc", "name": name, **more}
        ids[name] = account.post(f"{path}/entities", person)["id"]
    fact = {"text": "Holt is honest.", "about_id": ids["Holt"]}
    ids["honest"] = account.post(f"{path}/facts", fact)["id"]
    chat = account.new_chat(campaign_id=path.rpartition("/")[2], title="A quiet morning")["id"]
    account.turn(chat, text="I look for Marlena.")
    return Seagate(server, account, path, chat, ids)


def test_both_sides_are_shown_and_one_is_accepted_with_the_keyboard(
    page: Page, seagate: Seagate, assert_accessible: Callable[[Page], None]
) -> None:
    holt = UUID(seagate.ids["Holt"])
    lies = {
        "kind": "fact",
        "item_id": new_id(),
        "operations": build_creation(Fact(text="Holt lies.", about_id=holt)),
        "replaces": UUID(seagate.ids["honest"]),
    }
    seagate.read(seagate.change("Marlena", status="dead"), lies)
    page.goto(f"/#{seagate.path}")
    tab = page.get_by_role("link", name="Proposals 2")
    expect(tab).to_be_visible()
    tab.click()
    waiting = page.get_by_role("list", name="Proposals").get_by_role("listitem")
    expect(waiting).to_have_count(2)
    expect(waiting.nth(0).get_by_role("row", name="Status")).to_have_text(
        "StatusActivelocked by youdead"
    )
    expect(waiting.nth(1).get_by_role("row", name="Text")).to_have_text(
        "TextHolt is honest.changed by youHolt lies."
    )
    assert_accessible(page)

    waiting.nth(0).get_by_role("button", name="Accept").press("Enter")

    expect(waiting).to_have_count(1)
    expect(waiting.nth(0)).to_be_focused()
    marlena = seagate.account.get(f"{seagate.path}/entities/{seagate.ids['Marlena']}")
    assert (marlena["status"], marlena["locked"]) == ("dead", ["status"])
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(waiting.get_by_role("button", name="Reject")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("No proposals.")).to_be_visible()
    facts = seagate.account.get(f"{seagate.path}/facts")["items"]
    assert [each["text"] for each in facts] == ["Holt is honest."]
    assert_accessible(page)


def test_beside_the_chat_it_is_asked_who_is_meant_while_the_line_is_told(
    page: Page, seagate: Seagate, assert_accessible: Callable[[Page], None]
) -> None:
    people = [UUID(seagate.ids[name]) for name in ("Holt", "Vance")]
    unclear = Ambiguity(mention="the Inspector", candidates=people)
    role = Operations(set={"role": "Spy"})
    spy = {"kind": "entity", "item_id": new_id(), "operations": role, "unclear": unclear}
    seagate.read(spy, seagate.change("Marlena", status="gone"))
    phone(page)
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    panel = page.get_by_role("complementary", name="World")
    waiting = panel.get_by_role("list", name="Proposals").get_by_role("listitem")
    expect(waiting).to_have_count(2)
    expect(waiting.nth(0)).to_contain_text("Who is “the Inspector”?")
    assert_accessible(page)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0

    waiting.nth(0).get_by_role("button", name="It is Vance").click()

    expect(waiting).to_have_count(1)
    vance = seagate.account.get(f"{seagate.path}/entities/{seagate.ids['Vance']}")
    assert vance["role"] == "Spy"
    # What the user writes by hand meanwhile is what is now.
    marlena = f"{seagate.path}/entities/{seagate.ids['Marlena']}"
    assert seagate.account.client.patch(marlena, json={"status": "hiding"}).is_success
    page.reload()
    expect(waiting.get_by_role("row", name="Status")).to_contain_text("hiding")
    expect(waiting.get_by_role("row", name="Status")).to_contain_text("was: Active")
    # Another line is told in its place, and nothing waits.
    line = seagate.account.get(f"/chats/{seagate.chat}/messages")["items"][-1]["id"]
    seagate.account.turn(seagate.chat, regenerate_of=line)
    page.reload()
    expect(panel.get_by_text("Facts")).to_be_visible()
    expect(waiting).to_have_count(0)
