"""The world panel of a chat: shown, edited in place, and synchronous with the chat's path."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser import Account, Watch, dark, phone
from tests.support.zips import zipped

pytestmark = pytest.mark.browser


@dataclass
class Seagate:
    """A small campaign with a chat. `ids` contains the items by name."""

    account: Account
    path: str
    chat: str
    ids: dict[str, str]

    def item(self, name: str, kind: str = "entities") -> dict[str, Any]:
        """An item as the API has it."""
        found: dict[str, Any] = self.account.get(f"{self.path}/{kind}/{self.ids[name]}")
        return found


@pytest.fixture
def seagate(account: Account) -> Seagate:
    made = account.post("/campaigns", {"name": "Seagate", "day": 5, "time_of_day": "morning"})
    path = f"/campaigns/{made['id']}"
    ids: dict[str, str] = {}

    def add(where: str, **fields: Any) -> None:
        item = account.post(f"{path}/{where}", fields)
        ids[fields.get("name") or fields.get("title") or fields["text"]] = item["id"]

    add("entities", kind="location", name="The Salty Sigil")
    add("entities", kind="location", name="Sunfall Hills")
    shop, hills = ids["The Salty Sigil"], ids["Sunfall Hills"]
    sheet = {"class": "Wizard", "hp": 9, "hp_max": 13, "gold": 15, "inventory": ["fork"]}
    add("entities", kind="pc", name="Jake", location_id=shop, attributes=sheet)
    add("entities", kind="npc", name="Marlena", location_id=shop, disposition="ally")
    add("entities", kind="npc", name="Holt", location_id=hills, disposition="hostile")
    add("threads", title="The Fading Muffle", tension="rising")
    add("threads", title="Holt comes back", tension="critical")
    add("clocks", name="The watch closes in", segments=6, filled=2)
    add("facts", text="The cellar floods at spring tide.", about_id=shop)
    add("echoes", text="The mirror is broken.")
    chat = account.new_chat(campaign_id=made["id"], title="A quiet morning")["id"]
    return Seagate(account, path, chat, ids)


def section(page: Page, name: str) -> Locator:
    """A section's cards."""
    return page.get_by_role("list", name=name, exact=True)


def card(page: Page, name: str) -> Locator:
    """The card of the item with this name."""
    heading = page.get_by_role("heading", level=4, name=re.compile(name))
    return page.locator(".thing").filter(has=heading)


def test_the_world_is_shown_beside_the_chat_and_on_the_campaign_s_page(
    page: Page, seagate: Seagate, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#/chats/{seagate.chat}")
    page.get_by_role("button", name="World").click()
    panel = page.get_by_role("complementary", name="World")
    expect(panel.get_by_role("button", name="Day 5, morning")).to_be_visible()
    expect(section(page, "Party")).to_contain_text("HP 9 / 13")
    gold = section(page, "Party").get_by_role("button", name="Gold: 15 gold")
    # A dot separates it from the place behind it.
    assert gold.evaluate("value => getComputedStyle(value, '::after').content") == '"·"'
    expect(section(page, "Present").get_by_role("listitem")).to_have_count(1)
    expect(section(page, "Present")).to_contain_text("Marlena")
    threads = section(page, "Threads").get_by_role("heading")
    expect(threads).to_have_text(["Holt comes back", "The Fading Muffle"])
    clock = section(page, "Clocks").get_by_role("slider", name="The watch closes in")
    expect(clock).to_have_attribute("aria-valuetext", "2 of 6")
    expect(section(page, "Facts")).to_contain_text("The cellar floods")
    expect(section(page, "Echoes")).to_contain_text("The mirror is broken.")
    panel.get_by_text("Elsewhere", exact=False).first.click()
    expect(section(page, "Elsewhere")).to_contain_text("Holt")
    assert_accessible(page)

    # On a phone it covers the chat.
    page = page.context.new_page()
    phone(page)
    dark(page)
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    panel = page.get_by_role("complementary", name="World")
    expect(panel.get_by_text("HP 9 / 13")).to_be_visible()
    panel.get_by_role("button", name="HP: HP 9 / 13").click()
    assert_accessible(page)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) == 0
    page.keyboard.press("Escape")
    expect(panel.get_by_label("HP", exact=True)).to_have_count(0)
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)

    page = page.context.new_page()
    page.goto(f"/#{seagate.path}")
    page.get_by_role("link", name="World").click()
    expect(section(page, "Party")).to_contain_text("Jake")
    assert_accessible(page)
    phone(page)
    assert_accessible(page)


def test_items_are_added_and_deleted_and_a_chapter_shows_its_scenes(
    page: Page, seagate: Seagate, assert_accessible: Callable[[Page], None]
) -> None:
    scenes = [
        seagate.account.post(f"{seagate.path}/scenes", {"title": title, "status": "closed"})["id"]
        for title in ("The mill", "The roof")
    ]
    told = {"title": "The fire", "summary": "They burned the mill.", "scene_ids": scenes}
    chapter = seagate.account.post(f"{seagate.path}/chapters", told)["id"]
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    page.locator("summary").filter(has_text="Chapters").click()
    fire = card(page, "The fire")
    expect(fire).to_contain_text("They burned the mill.")
    expect(fire).to_contain_text("The mill, The roof")
    fire.get_by_role("button", name="They burned the mill.").click()
    fire.get_by_label("Summary", exact=True).fill("They fled.")
    expect(fire.get_by_role("button", name="They fled.")).to_be_visible()
    fire.get_by_role("button", name="Done").click()
    found = seagate.account.get(f"{seagate.path}/chapters/{chapter}")
    assert (found["summary"], found["scene_ids"]) == ("They fled.", scenes)

    page = page.context.new_page()
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    dialog = page.get_by_role("dialog")
    for button, values, where in (
        ("Add clock", {"Name": "The tide"}, "Clocks"),
        ("Add thread", {"Title": "A debt"}, "Threads"),
        ("Add fact", {"Text": "Salt burns blue."}, "Facts"),
        ("Add echo", {"Text": "A window broke."}, "Echoes"),
        ("Add character here", {"Name": "Gareth"}, "Present"),
        ("Start scene", {"Title": "At the bar"}, "Scene"),
    ):
        page.get_by_role("button", name=button, exact=True).click()
        for label, text in values.items():
            dialog.get_by_label(label, exact=True).fill(text)
        assert_accessible(page)
        dialog.get_by_role("button", name="Save").click()
        expect(section(page, where)).to_contain_text(next(iter(values.values())))
    gareth = seagate.account.get(f"{seagate.path}/entities", q="Gareth")["items"][0]
    assert gareth["location_id"] == seagate.ids["The Salty Sigil"]

    page.get_by_role("button", name="More actions for The tide").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(section(page, "Clocks").get_by_role("slider")).to_have_count(1)
    page.get_by_role("status").get_by_role("button", name="Undo").click()
    expect(section(page, "Clocks").get_by_role("slider")).to_have_count(2)


def test_values_are_edited_and_locked_in_place(page: Page, seagate: Seagate) -> None:
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    jake = card(page, "Jake")
    jake.get_by_role("button", name="HP: HP 9 / 13").click()
    hp = jake.get_by_label("HP", exact=True)
    expect(hp).to_be_focused()
    hp.fill("4")
    expect(jake.get_by_role("button", name="HP: HP 4 / 13")).to_be_visible()
    jake.get_by_role("button", name="Done").click()
    expect(hp).to_have_count(0)
    assert seagate.item("Jake")["attributes"]["hp"] == 4
    assert seagate.item("Jake")["attributes"]["inventory"] == ["fork"]

    marlena = card(page, "Marlena")
    marlena.get_by_role("button", name="Location: at The Salty Sigil").click()
    marlena.get_by_label("Location", exact=True).select_option(label="Sunfall Hills")
    expect(marlena.get_by_role("button", name="Location: at Sunfall Hills")).to_be_visible()
    # Not taken away from under the hand that edits it.
    expect(section(page, "Present")).to_contain_text("Marlena")
    marlena.get_by_role("button", name="Done").click()
    expect(section(page, "Present").get_by_role("listitem")).to_have_count(0)
    assert seagate.item("Marlena")["location_id"] == seagate.ids["Sunfall Hills"]

    # Fields are locked one by one.
    page = page.context.new_page()
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    page.get_by_text("Elsewhere", exact=False).first.click()
    marlena = card(page, "Marlena")
    marlena.get_by_role("button", name="Disposition: ally").click()
    marlena.get_by_role("button", name="Lock Disposition").click()
    expect(marlena.get_by_role("button", name="Unlock Disposition")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(marlena.get_by_text("Locked: Disposition")).to_be_visible()
    assert seagate.item("Marlena")["locked"] == ["disposition"]
    marlena.get_by_label("Disposition", exact=True).fill("rival")
    expect(marlena.get_by_role("button", name="Disposition: rival")).to_be_visible()

    page.get_by_role("button", name="Day 5, morning").click()
    page.get_by_role("button", name="Lock Day").click()
    expect(page.get_by_role("button", name="Unlock Day")).to_be_visible()
    page.get_by_label("Time of day", exact=True).fill("dusk")
    expect(page.get_by_role("button", name="Day 5, dusk")).to_be_visible()
    state = seagate.account.get(f"{seagate.path}/state")
    assert (state["day"], state["time_of_day"], state["locked"]) == (5, "dusk", ["day"])


def test_a_clock_is_ticked_and_a_change_made_elsewhere_is_not_overwritten(
    page: Page, seagate: Seagate, watch: Watch
) -> None:
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    clock = page.get_by_role("slider", name="The watch closes in")
    clock.locator("path").nth(3).click()
    expect(clock).to_have_attribute("aria-valuetext", "4 of 6")
    clock.locator("path").nth(3).click()
    expect(clock).to_have_attribute("aria-valuetext", "3 of 6")
    clock.press("End")
    expect(clock).to_have_attribute("aria-valuetext", "6 of 6")
    expect(clock).to_be_focused()
    expect(card(page, "The watch closes in").get_by_text("Full", exact=True)).to_be_visible()
    assert seagate.item("The watch closes in", "clocks")["filled"] == 6

    page = page.context.new_page()
    watch.expected.append("/entities/")
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    holt = card(page, "Marlena")
    holt.get_by_role("button", name="Disposition: ally").click()
    path = f"{seagate.path}/entities/{seagate.ids['Marlena']}"
    seagate.account.client.patch(path, json={"disposition": "foe"})
    holt.get_by_label("Disposition", exact=True).fill("friend")
    expect(holt.get_by_text("This was changed elsewhere")).to_be_visible()
    expect(holt.get_by_label("Disposition", exact=True)).to_have_value("friend")
    assert seagate.item("Marlena")["disposition"] == "foe"


def test_a_scene_says_who_is_there(page: Page, seagate: Seagate) -> None:
    scene = {"title": "At the bar", "present": [seagate.ids["Marlena"]]}
    seagate.account.post(f"{seagate.path}/scenes", scene)
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    page.get_by_text("Elsewhere", exact=False).first.click()
    page.get_by_role("button", name="More actions for Holt", exact=True).click()
    page.get_by_role("menuitem", name="Mark as present").click()
    expect(section(page, "Present")).to_contain_text("Holt")
    page.get_by_role("button", name="More actions for Marlena").click()
    page.get_by_role("menuitem", name="Mark as absent").click()
    expect(section(page, "Present")).not_to_contain_text("Marlena")


def test_the_world_is_updated_by_hand_and_its_part_of_a_prompt_is_shown(
    page: Page, seagate: Seagate, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    account, chat = seagate.account, f"/chats/{seagate.chat}"
    watch.expected.append("/compact$")
    page.goto(f"/#{chat}?panel=world")
    page.get_by_role("button", name="Update the world").click()
    expect(page.get_by_role("alert")).to_contain_text("does not keep a chronicle")
    answer = account.client.patch(f"{chat}/settings", json={"chronicle_enabled": True})
    assert answer.is_success, answer.text
    account.turn(seagate.chat, text="Zedekiah is a smuggler from the north.")
    page.get_by_role("button", name="Update the world").click()
    expect(page.get_by_text("Reading 2 messages")).to_be_visible()

    # The first turn has the full state block; a later one has it only if something changed.
    page = page.context.new_page()
    messages = seagate.account.get(f"/chats/{seagate.chat}/messages")["items"]
    page.goto(f"/#/chats/{seagate.chat}?panel=context&message={messages[-1]['id']}")
    panel = page.get_by_role("complementary")
    window = panel.get_by_role("group", name="Context window usage")
    expect(window.get_by_role("button", name=re.compile("^Campaign"))).to_be_visible()
    layers = panel.locator(".layers")
    for name in ("Frozen", "Cold", "Search", "Hot"):
        expect(layers.get_by_text(name, exact=False).first).to_be_visible()
    panel.get_by_text("Added by the campaign").click()
    expect(panel.get_by_text("## SESSION CONTEXT: Seagate")).to_be_visible()
    assert_accessible(page)
    window.get_by_role("button", name=re.compile("^Campaign")).click()
    state = panel.get_by_role("link", name=re.compile("^Go to State"))
    expect(state).to_have_attribute("href", f"#{seagate.path}?tab=world")

    page.goto(f"/#/chats/{seagate.account.new_chat(title='Plain')['id']}?panel=context")
    expect(panel.get_by_text("Campaign layers")).to_be_hidden()


def test_the_world_follows_the_active_path_and_the_last_reply(page: Page, seagate: Seagate) -> None:
    seagate.account.turn(seagate.chat, text="I ride out.")
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    page.get_by_role("switch", name="Attach my changes to the last message").check()
    jake = card(page, "Jake")
    jake.get_by_role("button", name="Location: at The Salty Sigil").click()
    jake.get_by_label("Location", exact=True).select_option(label="Sunfall Hills")
    expect(section(page, "Present")).to_contain_text("Holt")
    expect(section(page, "Present")).not_to_contain_text("Marlena")

    page.get_by_role("button", name="Regenerate").last.click()
    expect(section(page, "Present")).to_contain_text("Marlena")
    page.get_by_role("button", name="Previous version").last.click()
    expect(section(page, "Present")).to_contain_text("Holt")

    page = page.context.new_page()
    for line in ("I look around.", "I wait."):
        seagate.account.turn(seagate.chat, text=line)
    page.goto(f"/#/chats/{seagate.chat}?panel=world")
    expect(section(page, "Party")).to_contain_text("HP 9 / 13")
    read = re.compile(f"{seagate.path}/state")
    for act in ("Regenerate", "Previous version"):
        path = f"{seagate.path}/entities/{seagate.ids['Jake']}"
        hp = seagate.item("Jake")["attributes"]["hp"] - 1
        seagate.account.client.patch(path, json={"attributes": {"hp": hp}})
        with page.expect_response(read):
            page.get_by_role("button", name=act, exact=True).last.click()
        expect(section(page, "Party")).to_contain_text(f"HP {hp} / 13")

    # A copy of the chat may take a copy of the world along.
    campaigns = {seagate.path.removeprefix("/campaigns/")}
    for choice in ("Share the world", "Copy the world"):
        last = page.get_by_role("article").last
        last.get_by_role("button", name="More", exact=True).click()
        page.get_by_role("menuitem", name="Copy to a new chat").click()
        with page.expect_response("**/fork") as forked:
            page.get_by_role("dialog").get_by_role("button", name=choice).click()
        campaigns.add(forked.value.json()["campaign_id"])
        assert len(campaigns) == (2 if choice == "Copy the world" else 1)


def test_of_a_large_world_what_is_not_read_is_found(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    facts_file = "".join(f"- Lantern {number} is lit.\n" for number in range(505))
    vault = zipped({"canon/facts.md": f"# Facts\n\n{facts_file}"})
    answer = account.client.post(
        "/campaigns/import", files={"file": ("Lanterns.zip", vault, "application/zip")}
    )
    assert answer.status_code == 201, answer.text
    page.goto(f"/#/campaigns/{answer.json()['id']}?tab=world")
    facts = section(page, "Facts")
    expect(facts.get_by_role("listitem")).to_have_count(50)
    find = page.get_by_role("searchbox", name="Search Facts")
    find.fill("lantern 504")
    expect(facts.get_by_role("listitem")).to_have_count(1)
    assert_accessible(page)
    # It is still there once it was edited.
    facts.get_by_role("button", name="Text: Lantern 504 is lit.").click()
    facts.get_by_label("Text", exact=True).fill("Lantern 504 is dark.")
    expect(facts.get_by_role("button", name="Text: Lantern 504 is dark.")).to_be_visible()
    expect(facts.get_by_text("Saved", exact=True)).to_be_visible()
    facts.get_by_role("button", name="Done").click()
    find.fill("")
    expect(facts.get_by_role("listitem")).to_have_count(50)
