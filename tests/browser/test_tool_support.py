"""A played chat whose model calls no tools: what the page says, and where it can be changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator

import pytest
from anyio.from_thread import BlockingPortal
from playwright.sync_api import Page, expect

from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer, called, reply
from tests.support.browser import Account

pytestmark = pytest.mark.browser

OWN = f"mine/{MODEL}"
WARNING = "This model does not use tools: dice and the world are not updated."
BLOCK = json.dumps([{"tool": "damage", "arguments": {"target": "Anna", "damage": "1d2+2"}}])


@pytest.fixture(scope="module")
def vendor(portal: BlockingPortal) -> Generator[OpenAIServer]:
    with portal.wrap_async_context_manager(OpenAIServer()) as vendor:
        yield vendor


@pytest.fixture
def chat(account: Account, vendor: OpenAIServer) -> str:
    """The address of a chat of a campaign under the rules of dnd, with the account's own model."""
    body = {"kind": "openai", "slug": "mine", "base_url": vendor.url, "api_key": API_KEY}
    account.post("/providers", {**body, "models": [{"name": MODEL}]})
    campaign = account.post("/campaigns", {"name": "Seagate", "rules": "dnd"})
    attributes = {"hp": 20, "hp_max": 20}
    anna = {"kind": "pc", "name": "Anna", "attributes": attributes}
    account.post(f"/campaigns/{campaign['id']}/entities", anna)
    chat = account.new_chat(campaign_id=campaign["id"], title="The harbour")
    chosen = account.client.patch(f"/chats/{chat['id']}/settings", json={"model": OWN})
    assert chosen.is_success, chosen.text
    return f"/#/chats/{chat['id']}"


def say(page: Page, text: str) -> None:
    """Write a line and send it."""
    page.get_by_label("Your message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_the_page_says_that_a_model_does_not_use_tools(
    page: Page,
    chat: str,
    vendor: OpenAIServer,
    assert_accessible: Callable[[Page], None],
) -> None:
    page.goto(chat)
    expect(page.get_by_text(WARNING)).to_have_count(0)
    vendor.script(reply("The axe comes down."), reply("Anna loses 3 points."))
    say(page, "I parry.")

    warning = page.get_by_text(WARNING)
    expect(warning).to_be_visible()
    expect(page.locator(".message.last")).to_contain_text("The axe comes down.")
    assert_accessible(page)
    link = warning.get_by_role("link", name="Change tool calls")
    expect(link).to_have_attribute("href", f"#/providers?model=mine%2F{MODEL}")
    page.reload()
    expect(page.get_by_text(WARNING)).to_be_visible()

    link.click()
    figures = page.get_by_role("dialog").get_by_role("group", name=f"Details of {MODEL}")
    way = figures.get_by_label("Tool calls")
    expect(way.locator("option").first).to_contain_text("now: none")
    way.select_option(label="code block in the text")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.goto(chat)
    button = page.get_by_role("button", name=f"Change model: {MODEL}")
    expect(button).to_be_visible()
    expect(page.get_by_text(WARNING)).to_have_count(0)
    button.click()
    facts = page.get_by_role("dialog").get_by_role("button", name=MODEL, exact=False)
    expect(facts.last).to_contain_text("tools: code block in the text")


def test_the_calls_of_what_was_told_change_the_world_and_the_text_stays(
    page: Page, account: Account, chat: str, vendor: OpenAIServer
) -> None:
    page.goto(chat)
    vendor.script(reply("The axe comes down."), reply(f"```tools\n{BLOCK}\n```"))
    say(page, "I parry.")

    last = page.locator(".message.last")
    expect(last).to_contain_text("2 changes in the world")
    expect(last).to_contain_text("The axe comes down.")
    expect(page.get_by_text(WARNING)).to_have_count(0)
    reply_id = account.get(f"{chat.removeprefix('/#')}/messages")["items"][-1]["id"]
    page.goto(f"{chat}?panel=context&message={reply_id}")
    notes = page.get_by_role("complementary").get_by_role("listitem")
    asked = "The model was asked for tool calls in a code block in its text."
    expect(notes.filter(has_text=asked)).to_be_visible()


def test_a_question_is_answered_in_the_players_own_words(
    page: Page,
    chat: str,
    vendor: OpenAIServer,
    assert_accessible: Callable[[Page], None],
) -> None:
    vendor.script(called(("ask_player", {"prompt": "Which way?", "options": ["Left", "Right"]})))
    page.goto(chat)
    say(page, "I go on.")
    question = page.get_by_role("region", name="A question for you")
    own = question.get_by_label("Your own answer")
    expect(own).to_be_visible()
    assert_accessible(page)
    vendor.script(called(("finish_turn", {}), text="You climb."))
    own.fill("I climb the wall.")
    own.press("Enter")
    expect(question).to_be_hidden()
    expect(page.locator(".message.last")).to_contain_text("You climb.")
    assert "I climb the wall." in json.dumps(vendor.requests[-1].body["messages"])
