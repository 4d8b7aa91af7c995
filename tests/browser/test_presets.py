"""Prompt presets in the page: brought in, put in order, tried, chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Account, Watch, phone

pytestmark = pytest.mark.browser

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
