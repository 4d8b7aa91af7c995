"""Settings of the page: appearance, languages, the month's limit, and the connection."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
from playwright.sync_api import Page, Route, expect

from backend.web.controller import FOLDER
from tests.support.browser import Account, Watch, phone

pytestmark = pytest.mark.browser

AREAS = (
    "General",
    "Models",
    "Memory",
    "Prompt presets",
    "Regex scripts",
    "Data",
    "Other apps",
    "Security",
)
LOOSE = """
  () => {
    const found = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
      const { parentElement: box, data } = walk.currentNode;
      const isLoose = /\\p{L}{2}/u.test(data) && !/[⟦⟧]/.test(data);
      if (isLoose && box.checkVisibility()) found.push(data.trim());
    }
    return found;
  }
"""
"""Texts that are not from the translation, which has brackets around each one."""


def test_settings_have_areas_and_the_appearance_is_kept_in_the_account(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    chat = account.new_chat(character_ids=[account.import_card()["id"]])["id"]
    page.goto("/#/settings")
    tabs = page.get_by_role("navigation", name="Settings")
    expect(tabs.get_by_role("link")).to_have_text(AREAS)

    for theme, colour in (("Sepia", "rgb(244, 233, 211)"), ("Night", "rgb(0, 0, 0)")):
        with page.expect_response("**/me/settings"):
            page.get_by_role("radio", name=theme).check()
        expect(page.locator("body")).to_have_css("background-color", colour)
        assert_accessible(page)
    page.get_by_label("Messages", exact=True).select_option("Bubbles")
    page.get_by_label("Width of chats").select_option("Narrow")
    with page.expect_response(lambda answer: "font_percent" in (answer.request.post_data or "")):
        page.get_by_label("Text size in percent").fill("150")
    settings = account.get("/me/settings")["page"]
    assert settings == {
        "theme": "night",
        "style": "bubbles",
        "width": "narrow",
        "font_percent": 150,
    }

    # Another browser of the account looks the same, before the page has asked the server.
    page = page.context.new_page()
    page.goto(f"/#/chats/{chat}")
    prose = page.get_by_role("article").first.locator(".prose")
    expect(prose).to_have_css("font-size", "25.5px")
    expect(page.locator("body")).to_have_css("background-color", "rgb(0, 0, 0)")
    assert page.locator("head script:not([type])").count() == 1
    assert_accessible(page)
    phone(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_translation_is_chosen_by_the_browser_or_in_the_settings_and_covers_every_text(
    page: Page, account: Account
) -> None:
    chat = account.new_chat(character_ids=[account.import_card()["id"]], title="0")["id"]
    english: dict[str, Any] = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))

    def mark_texts(texts: Any) -> Any:
        if isinstance(texts, dict):
            parts = cast("dict[str, Any]", texts)
            return {key: mark_texts(value) for key, value in parts.items()}
        return re.sub(r"([^|]+)", lambda part: f"⟦{part[0].strip()}⟧", texts)

    translation: dict[str, Any] = {**mark_texts(english), "language": "de"}
    del translation["shell"]["lorebooks"]  # not translated yet

    def answer_index(route: Route) -> None:
        response = route.fetch()
        body = response.text().replace('data-languages=""', 'data-languages="de"')
        route.fulfill(response=response, body=body)

    page.route(re.compile(r"/$"), answer_index)
    page.route("**/texts.de.json", lambda route: route.fulfill(json=translation))
    page.goto("/#/settings")
    with page.expect_navigation():
        page.get_by_label("Language", exact=True).select_option("Deutsch")
    expect(page.get_by_role("heading", name="⟦Settings⟧", level=1)).to_be_visible()
    assert page.evaluate("document.documentElement.lang") == "de"
    expect(page.get_by_role("link", name="Lore", exact=True)).to_be_visible()
    assert account.get("/me/settings")["page"]["language"] == "de"

    data = {"Talekeeper", "Lore", account.name, "Marlena", "Deutsch", "English"}
    for place in ("settings", "providers", "security", "account", "memory", "campaigns"):
        page.goto(f"/#/{place}")
        expect(page.locator("main h1")).to_be_visible()
        page.wait_for_load_state("networkidle")
        loose = {text for text in page.evaluate(LOOSE) if not any(word in text for word in data)}
        assert loose <= {"openai", "demo"}, (place, loose)
    page.goto(f"/#/chats/{chat}")
    expect(page.get_by_role("button", name="⟦Send⟧")).to_be_visible()


def test_the_page_says_that_the_server_is_away_and_saves_when_it_is_back(
    page: Page, account: Account, watch: Watch
) -> None:
    watch.expected += ["/api/v1/"]
    page.goto("/#/settings")
    text = page.get_by_label("Instructions for the model")
    expect(text).to_be_visible()
    page.wait_for_load_state("networkidle")
    page.route("**/api/v1/**", lambda route: route.abort())
    text.fill("Be brief.")
    line = page.get_by_role("status").filter(has_text="Trying again")
    expect(line).to_be_visible()

    page.unroute("**/api/v1/**")

    expect(line).to_be_hidden()
    saved = page.get_by_text("Saved", exact=True)
    expect(saved).to_be_visible()
    expect(saved).to_have_attribute("title", re.compile("^Last saved: "))
    assert account.get("/me/settings")["system_prompt"] == "Be brief."


def test_the_next_turn_is_estimated_and_a_reached_limit_is_told(
    page: Page, account: Account
) -> None:
    chat = account.new_chat()["id"]
    model = {**account.get("/models")["items"][0], "price": {"input": 10, "output": 20}}
    used = {"turns": 1, "runs": 0, "unreported": 0, "prompt_tokens": 1000, "cached_tokens": 0}
    used |= {"completion_tokens": 100, "thinking_tokens": 0}
    money = {"cost": {"amount": 4.5, "currency": "USD"}}
    usage = {**used, **money, "by_model": [{**used, **money, "model": "demo/plain"}]}
    page.route(
        "**/api/v1/models?*", lambda route: route.fulfill(json={"items": [model], "next": None})
    )
    page.route("**/usage?*", lambda route: route.fulfill(json=usage))
    page.route("**/usage/month", lambda route: route.fulfill(json={**usage, "month": "2026-11"}))
    page.goto("/#/account")
    month = page.locator("section").filter(has=page.get_by_role("heading", name="This month"))
    expect(month).to_contain_text("$4.5, 1,100 tokens")
    with page.expect_response("**/me/settings"):
        month.get_by_label("Monthly limit").fill("5")
    expect(month.get_by_role("progressbar")).to_have_attribute("aria-valuetext", "$4.5 of $5")

    page.goto(f"/#/chats/{chat}")
    page.get_by_role("textbox", name="Your message").fill("Hello.")
    page.keyboard.press("Enter")

    expect(page.get_by_text("You have used $4.5 of your monthly limit of $5.")).to_be_visible()
    expect(page.get_by_text(re.compile(r"next about \$0\.0"))).to_be_visible()


def test_hints_come_one_at_a_time_and_stay_closed(page: Page, account: Account) -> None:
    chat = account.new_chat(character_ids=[account.import_card()["id"]])["id"]
    account.turn(chat, text="Hello.")
    page.goto(f"/#/chats/{chat}")
    hint = page.get_by_role("region", name="Hint")
    expect(hint).to_contain_text("You can see the whole prompt")
    with page.expect_response("**/me/settings"):
        hint.get_by_role("button", name="Show me").click()
    expect(page.get_by_role("complementary")).to_be_visible()
    expect(hint).to_be_hidden()
    assert account.get("/me/settings")["page"] == {"dismissed": ["inspector"]}

    for number in range(5):
        account.turn(chat, text=f"On, {number}.")
    page.reload()
    expect(hint).to_contain_text("With a chronicle")
    hint.get_by_role("button", name="Got it").click()
    page.goto("/#/settings")
    page.get_by_role("button", name="Show hints again").click()
    expect(page.get_by_role("button", name="Show hints again")).to_be_hidden()
    assert account.get("/me/settings").get("page", {}) == {}


def test_examples_of_a_lorebook_and_a_campaign_are_added(page: Page, account: Account) -> None:
    page.goto("/#/lorebooks")
    page.get_by_role("button", name="Add the example lorebook").click()
    expect(page.get_by_role("heading", name="The people of Saltwick")).to_be_visible()
    page.goto("/#/campaigns")
    page.get_by_role("button", name="Add the example campaign").click()
    expect(page).to_have_url(re.compile(r"#/campaigns/."))
    (world,) = account.get("/campaigns")["items"]
    items = account.get(f"/campaigns/{world['id']}/entities")["items"]
    assert {item["name"] for item in items} >= {"Marlena", "The lighthouse"}
