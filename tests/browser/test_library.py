"""Characters, personas and the start page, as somebody uses them who has read nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import JSHandle, Page, Response, expect

from tests.support.browser import EXAMPLE_CARD, Account, Watch

pytestmark = pytest.mark.browser

IN_A_CHAT = re.compile(r"#/chats/[0-9a-f-]{36}")
FILES = """files => {
  const held = new DataTransfer();
  for (const [name, text] of files) held.items.add(new File([text], name));
  return held;
}"""


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


def test_of_several_dropped_files_one_that_is_no_card_stops_no_other(
    page: Page, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    watch.expected.append("/characters/import")
    page.goto("/#/characters")
    expect(page.get_by_role("button", name="Try the example")).to_be_visible()
    card = EXAMPLE_CARD.read_text()
    dropped = held(page, ("a.json", card), ("b.json", "no card"), ("c.json", card))

    page.get_by_role("main").dispatch_event("drop", {"dataTransfer": dropped})

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


def held(page: Page, *files: tuple[str, str]) -> JSHandle:
    """Files as somebody holds them over the page with the mouse."""
    return page.evaluate_handle(FILES, files)


def is_put(answer: Response) -> bool:
    """Whether scripts, or the leave for them to run, were stored."""
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
    dropped = held(page, ("a.json", json.dumps(card)))
    page.get_by_role("main").dispatch_event("drop", {"dataTransfer": dropped})
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
    page.goto(f"/#/chats/{chat['id']}")
    expect(page.get_by_role("article", name="Vey")).to_contain_text("A (soft) hello.")
