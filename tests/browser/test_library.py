"""The library: characters, lorebooks and presets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Page, Response, expect

from tests.support.browser import EXAMPLE_CARD, Account, Watch, phone

pytestmark = pytest.mark.browser

IN_A_CHAT = re.compile(r"#/chats/[0-9a-f-]{36}")


def test_the_example_opens_a_chat_and_a_deleted_chat_is_restored(
    page: Page, account: Account
) -> None:
    page.goto("/")
    expect(page.get_by_role("heading", name=f"Welcome, {account.name}")).to_be_visible()

    page.get_by_role("button", name="Try the demo").click()
    page.get_by_role("button", name="Try the example").click()

    expect(page).to_have_url(IN_A_CHAT)
    page.goto("/#/")
    expect(page.get_by_role("main").get_by_role("link", name="Marlena")).to_be_visible()
    [book] = account.get("/lorebooks")["items"]
    assert book["entry_count"] == 4

    page = page.context.new_page()
    character = account.import_card()
    account.new_chat(character_ids=[character["id"]], title="The storm")
    page.goto("/#/")
    main = page.get_by_role("main")
    main.get_by_role("button", name="More actions for The storm").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(main.get_by_role("link", name="The storm")).to_have_count(0)

    page.get_by_role("button", name="Undo").click()

    expect(main.get_by_role("link", name="The storm")).to_be_visible()
    assert len(account.get("/chats")["items"]) == 2


def test_of_several_files_one_that_is_no_card_stops_no_other(
    page: Page, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    watch.expected.append("/characters/import")
    page.goto("/#/characters")
    expect(page.get_by_role("button", name="Try the example")).to_be_visible()
    card = EXAMPLE_CARD.read_text()

    choose(page, ("a.json", card), ("b.json", "no card"), ("c.json", card))

    imports = page.get_by_role("region", name="Imports")
    expect(imports.get_by_role("status")).to_have_text("2 of 3 imported, 1 failed")
    expect(imports.get_by_text("could not be read")).to_be_visible()
    expect(imports.get_by_role("button", name="Retry b.json")).to_be_visible()
    expect(page.get_by_text("2 characters")).to_be_visible()
    assert_accessible(page)
    imports.get_by_role("button", name="Chat with Marlena").first.click()
    expect(page).to_have_url(IN_A_CHAT)
    page.get_by_role("link", name="Characters").first.click()
    expect(imports.get_by_role("status")).to_have_text("0 of 1 imported, 1 failed")


def test_a_card_is_saved_as_it_is_typed_with_its_author_s_note(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    character = account.import_card()
    page.goto(f"/#/characters/{character['id']}")
    page.get_by_label("Personality", exact=True).fill("Dry.")
    page.get_by_text("More greetings").click()
    page.get_by_role("button", name="Add greeting").first.click()
    page.keyboard.type("A knock.")
    page.get_by_role("button", name="Delete greeting").first.click()
    assert_accessible(page)

    # Gone from the view before it saves by itself.
    page.get_by_role("link", name="Characters").first.click()

    expect(page.get_by_role("heading", level=1, name="Characters")).to_be_visible()
    page.get_by_role("link", name="Marlena").click()
    expect(page.get_by_label("Personality", exact=True)).to_have_value("Dry.")
    page.get_by_text("More greetings").click()
    expect(page.get_by_label("Greeting", exact=True)).to_have_value("A knock.")

    page = page.context.new_page()
    extensions = {"talkeeper_else": {"kept": 1}}
    made = account.post("/characters", {"name": "Vey", "extensions": extensions})
    page.goto(f"/#/characters/{made['id']}")
    page.get_by_text("Author's note", exact=True).click()
    page.get_by_label("Note", exact=True).fill("Rain all day.")
    page.get_by_label("Role").select_option(label="You")
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()

    stored = account.get(f"/characters/{made['id']}")["extensions"]
    assert stored["talekeeper"]["authors_note"] == {"text": "Rain all day.", "role": "user"}
    assert stored["talkeeper_else"] == {"kept": 1}
    page.reload()
    page.get_by_text("Author's note", exact=True).click()
    expect(page.get_by_label("Note", exact=True)).to_have_value("Rain all day.")


def test_a_persona_is_made_and_becomes_the_default(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto("/#/personas")
    page.get_by_role("button", name="New persona").click()
    page.get_by_label("Name").fill("Kit")
    page.keyboard.press("Enter")

    page.get_by_role("button", name="Set as default").click()

    expect(page.get_by_text("Default", exact=True)).to_be_visible()
    assert_accessible(page)
    [kit] = account.get("/personas")["items"]
    assert account.get("/me/settings")["persona_id"] == kit["id"]


def choose(page: Page, *cards: tuple[str, str]) -> None:
    """Import files as character cards."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import…").first.click()
    chooser.value.set_files(
        [
            FilePayload(name=name, mimeType="application/json", buffer=text.encode())
            for name, text in cards
        ]
    )


def is_put(answer: Response) -> bool:
    """True if scripts or the permission to run them were stored."""
    return answer.request.method == "PUT" and answer.url.endswith("/regex-scripts")


def test_regex_scripts_of_a_card_and_of_the_user_change_what_is_shown(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    script = {
        "scriptName": "Sea",
        "findRegex": "/sea/g",
        "replaceString": "ocean",
        "placement": [2],
    }
    card = {
        "spec": "chara_card_v2",
        "spec_version": "2.0",
        "data": {
            "name": "Vey",
            "first_mes": "The sea.",
            "extensions": {"regex_scripts": [{**script, "markdownOnly": True}]},
        },
    }
    page.goto("/#/characters")
    expect(page.get_by_role("button", name="Try the example")).to_be_visible()
    choose(page, ("a.json", json.dumps(card)))
    imports = page.get_by_role("region", name="Imports")
    expect(imports.get_by_text("1 regex script was imported")).to_be_visible()
    imports.get_by_role("button", name="Chat with Vey").click()
    message = page.get_by_role("article", name="Vey")
    expect(message).to_contain_text("The sea.")

    [item] = account.get("/characters")["items"]
    page.goto(f"/#/characters/{item['id']}")
    allow = page.get_by_role("switch", name="Allow scripts")
    expect(allow).not_to_be_checked()
    with page.expect_response(is_put):
        allow.check()
    page.go_back()

    expect(message).to_contain_text("The ocean.")
    assert account.get(f"/characters/{item['id']}")["scripts_allowed"] is True

    page = page.context.new_page()
    page.goto("/#/scripts")
    section = page.get_by_role("main")
    section.get_by_role("button", name="New script").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("Softer")
    dialog.get_by_label("Find").fill("/\\((.*?)\\)/g")
    dialog.get_by_label("Replace with").fill("_$1_")
    dialog.get_by_label("Applies to").select_option(label="Display only")
    dialog.get_by_label("Test text").fill("A (low) voice (near).")
    expect(dialog.get_by_text("2 matches")).to_be_visible()
    expect(dialog.get_by_text("A _low_ voice _near_.")).to_be_visible()
    expect(dialog.get_by_text("Saved", exact=True)).to_be_visible()
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(section.get_by_role("button", name="Softer", exact=True)).to_be_visible()
    [script] = account.get("/me/regex-scripts")["scripts"]
    assert (script["findRegex"], script["placement"], script["markdownOnly"]) == (
        "/\\((.*?)\\)/g",
        [2],
        True,
    )

    character = account.post("/characters", {"name": "Vey", "first_mes": "A (soft) hello."})
    chat = account.post("/chats", {"character_ids": [character["id"]]})
    page.goto(f"/#/chats/{chat['id']}")
    expect(page.get_by_role("article", name="Vey").locator("em")).to_have_text("soft")

    page.goto("/#/scripts")
    with page.expect_response(is_put):
        section.get_by_role("switch", name="Use Softer").uncheck()
    with page.expect_response(is_put):
        section.get_by_role("button", name="Delete Softer").click()
    expect(section.get_by_role("switch", name="Use Softer")).to_have_count(0)
    assert account.get("/me/regex-scripts")["scripts"] == []
    with page.expect_response(is_put):
        page.get_by_role("button", name="Undo").click()
    expect(section.get_by_role("switch", name="Use Softer")).not_to_be_checked()
    page.goto(f"/#/chats/{chat['id']}")
    expect(page.get_by_role("article", name="Vey")).to_contain_text("A (soft) hello.")


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


def test_a_long_lorebook_is_searched_moved_in_and_scrolled(page: Page, account: Account) -> None:
    entries = {
        str(number): {"uid": number, "key": [f"rumour {number}"], "content": f"Told {number}."}
        for number in range(600)
    }
    file = json.dumps({"entries": entries}).encode()
    made = account.client.post("/lorebooks/import", files={"file": ("long.json", file)}).json()
    path = f"/lorebooks/{made['lorebook']['id']}"
    page.goto(f"/#{path}")
    rows = page.get_by_role("list", name="Entries").get_by_role("listitem")
    expect(rows.first).to_have_attribute("aria-setsize", "600")
    # Only those near the view are in the document.
    expect(rows.filter(has_text="rumour 300")).to_have_count(0)

    search = page.get_by_role("searchbox", name="Search entries")
    search.fill("told 59")
    expect(rows).to_have_count(16)
    expect(rows.first).to_contain_text("rumour 59")
    search.fill("")
    expect(rows.first).to_contain_text("rumour 0")

    # In a higher window there are more.
    page.set_viewport_size({"width": 1280, "height": 300})
    expect(rows.filter(has_text="rumour 14")).to_have_count(0)
    page.set_viewport_size({"width": 1280, "height": 1200})
    expect(rows.filter(has_text="rumour 14")).to_be_in_viewport()
    page.set_viewport_size({"width": 1280, "height": 720})

    # After a deletion the focus is on the next entry.
    page.get_by_role("button", name="More actions for rumour 0", exact=True).press("Enter")
    page.get_by_role("menuitem", name="Delete").press("Enter")
    expect(rows.first.get_by_role("button", name="rumour 1 rumour 1")).to_be_focused()
    page.get_by_role("button", name="Undo").click()
    expect(rows.first).to_contain_text("rumour 0")

    # A moved entry keeps the focus, and is scrolled to.
    menu = page.get_by_role("button", name="More actions for rumour 1", exact=True)
    menu.press("Enter")
    with page.expect_response(lambda answer: answer.url.endswith("/entries/order")):
        page.get_by_role("menuitem", name="Move to the bottom").press("Enter")
    expect(menu).to_be_focused()
    expect(menu).to_be_in_viewport()
    moved = rows.filter(has_text="rumour 1")
    expect(moved.last).to_have_attribute("aria-posinset", "600")
    page.locator("main").evaluate("main => main.scrollTo(0, 0)")
    expect(rows.first).to_contain_text("rumour 0")
    expect(menu).to_be_focused()
    expect(menu).not_to_be_in_viewport()
    titles = [entry["keys"][0] for entry in account.get(f"{path}/entries", limit=500)["items"]]
    assert titles[:3] == ["rumour 0", "rumour 2", "rumour 3"]

    page.locator("main").evaluate("main => main.scrollTo(0, main.scrollHeight)")
    expect(rows.last).to_be_in_viewport()
    rows.last.get_by_role("button", name="rumour 1 rumour 1").click()
    details = page.get_by_role("region", name="Details")
    expect(details.get_by_label("Keys", exact=True)).to_have_value("rumour 1")


FILE = Path(__file__).parents[1] / "fixtures/presets/lighthouse.json"


def test_a_preset_is_brought_in_put_in_order_and_makes_the_prompt(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    chat = account.new_chat(character_ids=[account.import_card()["id"]])
    page.set_viewport_size({"width": 1280, "height": 2400})
    page.goto("/#/settings")
    page.get_by_role("link", name="Prompt presets").click()
    expect(page.get_by_role("heading", name="Prompt presets", level=1)).to_be_visible()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    chooser.value.set_files(FILE)
    page.get_by_role("link", name="lighthouse").click()

    prompt = page.get_by_role("region", name="Prompt preview").get_by_role("listitem")
    blocks = page.get_by_role("list", name="Blocks").get_by_role("listitem")
    expect(prompt.filter(has_text="Keep the tone dry.")).to_have_count(1)
    assert_accessible(page)

    # By keyboard, by dragging, off, and another text.
    place = [row.get_by_text("Tone", exact=True).count() for row in blocks.all()].index(1)
    grip = page.get_by_role("button", name="Move Tone with the arrow keys")
    grip.press("ArrowUp")
    expect(blocks.nth(place - 1)).to_contain_text("Tone")
    expect(grip).to_be_focused()
    expect(page.get_by_text(f"Tone is now {place} of")).to_be_attached()
    grip.click()
    page.get_by_role("menuitem", name="Move down").click()
    expect(page.get_by_text(f"Tone is now {place + 1} of")).to_be_attached()
    grip.drag_to(blocks.last)
    expect(blocks.last).to_contain_text("Tone")
    expect(prompt.last).to_contain_text("Keep the tone dry.")
    # What was done after a block was deleted holds when it is had back.
    page.get_by_role("button", name="Delete Tone").click()
    page.get_by_role("button", name="Move Persona Description with the arrow keys").press("ArrowUp")
    persona = [
        row.get_by_text("Persona Description", exact=True).count() for row in blocks.all()
    ].index(1)
    page.get_by_role("button", name="Undo").click()
    expect(blocks.last).to_contain_text("Tone")
    expect(blocks.nth(persona)).to_contain_text("Persona Description")
    page.get_by_role("switch", name="Send Tone").click()
    expect(prompt.filter(has_text="Keep the tone dry.")).to_have_count(0)
    expect(page.get_by_role("switch", name="Send Tone")).to_be_focused()
    page.get_by_role("button", name="New block", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Text").fill("The fog lifts, {{char}}.")
    dialog.get_by_label("Depth").fill("0")
    expect(dialog.get_by_text("Saved")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    expect(prompt.filter(has_text="The fog lifts, ")).to_have_count(1)

    # It is stored, and the chat's turn goes by it.
    (stored,) = account.get("/presets")["items"]
    kept = account.get(f"/presets/{stored['id']}")["blocks"]
    assert (kept[-1]["name"], kept[-1]["enabled"]) == ("Tone", False)
    page.goto(f"/#/chats/{chat['id']}?panel=settings")
    page.get_by_label("Prompt preset").select_option("lighthouse")
    expect(page.get_by_text("Saved")).to_be_visible()
    account.turn(chat["id"], text="Hello.")
    page.goto(f"/#/chats/{chat['id']}?panel=context")
    expect(page.get_by_text("block New block").first).to_be_attached()


def test_what_was_changed_elsewhere_is_told_and_kept(
    page: Page, account: Account, watch: Watch
) -> None:
    watch.expected.append("/api/v1/presets/")
    preset = account.post("/presets", {"name": "Mine"})
    phone(page)
    page.goto(f"/#/presets/{preset['id']}")
    expect(page.get_by_text("Start a chat to")).to_be_visible()
    name = page.get_by_role("button", name="Chat history", exact=True)
    expect(name).to_have_css("text-align", "start")
    other = account.client.patch(f"/presets/{preset['id']}", json={"name": "Elsewhere"})
    assert other.is_success
    page.get_by_role("switch", name="Send Persona").click()
    expect(page.get_by_text("Your last change was not saved.")).to_be_visible()
    page.get_by_role("button", name="Reload").click()
    expect(page.get_by_role("heading", name="Elsewhere")).to_be_visible()
    expect(page.get_by_role("switch", name="Send Persona")).to_be_checked()
