"""The prompt inspector: sections, reasons, comparison and other sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from backend.web.controller import PageFiles
from tests.support.browser import Account, Watch

pytestmark = pytest.mark.browser

LOREBOOK = Path(__file__).parents[2] / "docs" / "example-lorebook.json"


@pytest.fixture
def chat(account: Account) -> dict[str, Any]:
    """A chat of five messages with a lorebook: the greeting, and two lines that were answered."""
    character = account.import_card()
    chat = account.new_chat(character_ids=[character["id"]], title="The storm")
    files = {"file": (LOREBOOK.name, LOREBOOK.read_bytes())}
    book = account.client.post("/lorebooks/import", files=files).json()["lorebook"]
    chat["book_id"] = book["id"]
    linked = account.client.put(
        f"/chats/{chat['id']}/lorebooks/{book['id']}", json={"state": "linked"}
    )
    assert linked.is_success, linked.text
    for line in ("/demo long 300", "I climb the stairs."):
        account.turn(chat["id"], text=line)
    return chat


def test_the_prompt_of_a_typed_line_is_explained_and_resized(
    page: Page,
    account: Account,
    chat: dict[str, Any],
    watch: Watch,
    assert_accessible: Callable[[Page], None],
) -> None:
    page.goto(f"/#/chats/{chat['id']}?panel=context")
    panel = page.get_by_role("complementary")
    window = panel.get_by_role("group", name="Context window usage")
    expect(window.get_by_role("button", name=re.compile("^History"))).to_be_visible()
    page.get_by_label("Your message").fill("Who keeps the lighthouse?")
    expect(window.get_by_role("button", name=re.compile("^Lore"))).to_be_visible()

    window.get_by_role("button", name=re.compile("^Lore")).press("Enter")

    entry = panel.get_by_role("listitem").filter(has_text="Matched the key “lighthouse”").first
    expect(entry).to_contain_text("in your message")
    link = entry.get_by_role("link", name="Go to The lighthouse")
    expect(link).to_have_attribute("href", re.compile(f"^#/lorebooks/{chat['book_id']}\\?entry="))
    entry.locator("summary").click()
    expect(entry).to_contain_text("The lighthouse of Saltwick stands")
    assert_accessible(page)

    # Another token budget is tried, saved and reset.
    page = page.context.new_page()
    page.goto(f"/#/chats/{chat['id']}?panel=context")
    page.get_by_label("Your message").fill("")
    panel = page.get_by_role("complementary")
    history = panel.get_by_role("button", name=re.compile("^History: "))
    expect(history).to_be_visible()
    settings = f"/chats/{chat['id']}/settings"
    before = account.get(settings)

    slider = panel.get_by_role("slider", name="History")
    expect(slider).not_to_have_attribute("aria-valuetext", "0 tokens")
    slider.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "0 tokens")
    expect(history).to_be_hidden()
    expect(panel.get_by_text("Messages 1 to 5")).to_be_attached()
    assert account.get(settings) == before

    expect(panel.get_by_text("Not saved yet")).to_be_visible()
    panel.get_by_role("button", name="Save for this chat").click()
    expect(panel.get_by_text("Saved for this chat")).to_be_visible()
    assert account.get(settings)["budgets"] == {"history": 0}
    panel.get_by_role("button", name="Reset to default").click()
    expect(history).to_be_visible()
    expect(panel.get_by_text("Saved for this chat")).to_be_hidden()
    watch.expected.append("/chats/.*/context")
    whole = panel.get_by_role("spinbutton", name="Total")
    whole.fill("7")
    expect(whole).to_have_accessible_description(re.compile("1024"))
    whole.fill("1100")
    expect(whole).to_have_accessible_description(re.compile("leaves no tokens for the prompt"))
    expect(panel.get_by_role("button", name="Save for this chat")).to_be_disabled()
    panel.get_by_role("spinbutton", name="Reserved for the reply").fill("1000")
    expect(panel.get_by_text(re.compile("The prompt is too long"))).to_be_visible()
    whole.fill("50000")
    expect(panel.get_by_text("of 50,000 tokens")).to_be_visible()
    expect(whole).to_have_accessible_description("")


WORDED: list[tuple[list[dict[str, Any]], str]] = [
    (
        [{"kind": "key", "key": "lighthouse", "found_in": {"kind": "message", "number": 63}}],
        "Matched the key “lighthouse” in message 63",
    ),
    (
        [
            {"kind": "semantic", "score": 0.41, "rank": 2},
            {"kind": "key", "key": "lamp; oil", "found_in": {"kind": "line"}},
            {"kind": "secondary_key", "key": "/in (.+)/", "found_in": {"kind": "scenario"}},
        ],
        (
            "Matched the key “lamp; oil” in your message; with /in (.+)/ in the scenario; "
            "found by meaning (match 2)"
        ),
    ),
    (
        [
            {
                "kind": "key",
                "key": "a",
                "found_in": {"kind": "entry", "number": 1, "title": "Alice in the tower"},
            }
        ],
        "Matched the key “a” in the entry “Alice in the tower”",
    ),
    (
        [
            {
                "kind": "semantic",
                "rank": 1,
                "signals": [
                    {"kind": "meaning", "strength": 2.4},
                    {"kind": "words", "strength": 0.9, "words": ["silver", "key"]},
                    {"kind": "speaker", "name": "Mira"},
                ],
            }
        ],
        "Nearly the same text; contains the words “silver”, “key”; said by Mira (match 1)",
    ),
    ([{"kind": "sticky", "count": 1}], "Matched earlier, stays for 1 more message"),
    ([{"kind": "sticky", "count": 2}], "Matched earlier, stays for 2 more messages"),
    ([{"kind": "probability", "chance": 12.5}], "Skipped by chance (12.5% probability)"),
]


def test_a_reply_has_the_prompt_that_it_came_from_and_reasons_are_in_words(
    page: Page, account: Account, chat: dict[str, Any], watch: Watch
) -> None:
    greeting, *_, reply = account.get(f"/chats/{chat['id']}/messages")["items"]
    page.goto(f"/#/chats/{chat['id']}?panel=context&message={reply['id']}")
    panel = page.get_by_role("complementary")
    expect(panel.get_by_text("Sent to demo.")).to_be_visible()
    expect(panel.get_by_text(re.compile("a provider can reuse them"))).to_be_visible()
    panel.get_by_text("Exact prompt").click()
    messages = panel.get_by_role("list").last.get_by_role("listitem")
    expect(messages.first).to_contain_text("1 system")
    messages.last.locator("summary").click()
    expect(messages.last).to_contain_text("I climb the stairs.")

    watch.expected.append("/messages/.*/context")
    page.goto(f"/#/chats/{chat['id']}?panel=context&message={greeting['id']}")
    expect(panel.get_by_text("This message was not written by a model")).to_be_visible()
    panel.get_by_role("link", name="Show the next prompt").click()
    expect(panel.get_by_text("Everything the model reads")).to_be_visible()

    source = page.locator("script[type=module]").get_attribute("src") or ""
    read = """async ([address, name, reasons]) => {
      const { [name]: why } = await import(address);
      return reasons.map(why);
    }"""
    address = source.replace("main.js", "inspector/why.js")
    name = PageFiles().exports["why"]
    said = page.evaluate(read, [address, name, [reasons for reasons, _ in WORDED]])
    assert said == [words for _, words in WORDED]
