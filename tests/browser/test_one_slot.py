"""Notices of the page while a turn waits for a model that answers one request at a time."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest
from anyio.from_thread import BlockingPortal
from playwright.sync_api import Page, expect

from tests.fakes.one_slot_server import OneSlotServer, never_ending
from tests.fakes.openai_server import MODEL, reply
from tests.fakes.scripted_server import Gate
from tests.support.browser import Account
from tests.support.models import held_back

pytestmark = pytest.mark.browser


@pytest.fixture
def model(portal: BlockingPortal, account: Account) -> Generator[OneSlotServer]:
    """The account's own llama.cpp server. Its chats use this model."""
    with portal.wrap_async_context_manager(OneSlotServer()) as model:
        body = {"preset": "llama-cpp", "name": "Mine", "slug": "mine", "base_url": model.url}
        account.post("/providers", body | {"models": [{"name": MODEL}]})
        account.client.patch("/me/settings", json={"model": f"mine/{MODEL}"}).raise_for_status()
        yield model


def say(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_the_page_says_what_waits_for_the_model_and_how_many_requests_it_takes(
    page: Page, account: Account, model: OneSlotServer, portal: BlockingPortal
) -> None:
    gate = portal.call(Gate)
    model.script(held_back(gate), reply("The second."))
    first, second = (account.new_chat()["id"] for _ in range(2))
    page.goto(f"/#/chats/{first}")
    say(page, "Tell me.")
    expect(page.get_by_text("Once upon")).to_be_visible()
    other = page.context.new_page()
    other.goto(f"/#/chats/{second}")
    say(other, "And me.")
    notice = other.get_by_text("Waiting for the model: it is writing another turn.")
    expect(notice).to_be_visible()
    other.get_by_role("button", name="Stop").click()
    expect(notice).not_to_be_visible()
    expect(other.get_by_role("button", name="Send")).to_be_visible()
    say(other, "And me?")
    expect(notice).to_be_visible()
    portal.call(gate.opened.set)
    expect(other.get_by_text("The second.", exact=True)).to_be_visible()
    expect(notice).not_to_be_visible()
    expect(page.get_by_text("Once upon a time.", exact=True)).to_be_visible()

    page = page.context.new_page()
    page.goto("/#/providers")
    page.get_by_role("button", name="More actions for Mine").click()
    page.get_by_role("menuitem", name="Edit").click()
    field = page.get_by_label("Concurrent requests")
    expect(field).to_have_value("")
    expect(page.get_by_text("Leave empty for 1.")).to_be_visible()
    field.fill("4")
    page.get_by_role("button", name="Save").click()
    expect(field).not_to_be_visible()
    (provider,) = (each for each in account.get("/providers")["items"] if each["name"] == "Mine")
    assert (provider["concurrency"], provider["usual_concurrency"]) == (4, 1)


def test_suggestions_that_are_code_are_skipped_and_background_work_is_stopped(
    page: Page, account: Account, model: OneSlotServer
) -> None:
    model.background.append(reply('{"lines": ["I go in.", "{\\"lines\\": []}", ""]}'))
    page.goto(f"/#/chats/{account.new_chat()['id']}")
    page.get_by_role("button", name="Suggestions").click()
    expect(page.get_by_role("button", name="I go in.")).to_be_visible()
    expect(page.get_by_text("2 were skipped because they were code or empty.")).to_be_visible()

    page = page.context.new_page()
    model.background.append(never_ending())
    chat = account.new_chat()["id"]
    path = f"/chats/{chat}/settings"
    assert account.client.patch(path, json={"chronicle_enabled": True}).is_success
    page.goto(f"/#/chats/{chat}")
    say(page, "Is anyone there?")
    expect(page.get_by_text("The rain has stopped.", exact=True)).to_be_visible()
    page.goto("/#/activity")
    row = page.get_by_role("listitem").filter(has_text="Reading new messages")
    row.get_by_role("button", name=re.compile("^Stop")).click()
    expect(row).to_contain_text("Ended: you stopped it")
