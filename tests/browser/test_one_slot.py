"""A model that answers one request at a time: what the page says while a turn waits for it."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.sync_api import Page, expect

from tests.fakes.one_slot_server import OneSlotServer, never_ending
from tests.fakes.openai_server import MODEL, MODEL_ID, reply
from tests.fakes.scripted_server import Gate
from tests.support.browser import Account
from tests.support.models import held_back
from tests.support.process import Served, serving

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def portal() -> Generator[BlockingPortal]:
    """Where the model runs."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def model(portal: BlockingPortal) -> Generator[OneSlotServer]:
    with portal.wrap_async_context_manager(OneSlotServer()) as model:
        yield model


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, model: OneSlotServer) -> Generator[Served]:
    with serving(
        tmp_path_factory.mktemp("served"),
        registration="open",
        openai_base_url=model.url,
        openai_models=MODEL,
        openai_server="llama-cpp",
        default_model=MODEL_ID,
    ) as served:
        yield served


def say(page: Page, text: str) -> None:
    page.get_by_label("Your line").fill(text)
    page.get_by_role("button", name="Send").click()


def test_a_turn_says_that_it_waits_for_another_one_and_can_be_stopped(
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


def test_work_of_the_chronicle_is_stopped_in_activity(
    page: Page, account: Account, model: OneSlotServer
) -> None:
    model.background.append(never_ending())
    chat = account.new_chat()["id"]
    path = f"/chats/{chat}/settings"
    assert account.client.patch(path, json={"chronicle_enabled": True}).is_success
    page.goto(f"/#/chats/{chat}")
    say(page, "Is anyone there?")
    expect(page.get_by_text("The rain has stopped.", exact=True)).to_be_visible()
    page.goto("/#/activity")
    row = page.get_by_role("listitem").filter(has_text="Reading what was said")
    row.get_by_role("button", name=re.compile("^Stop")).click()
    expect(row).to_contain_text("Ended: you stopped it")


def test_suggestions_that_are_code_are_left_out_and_counted(
    page: Page, account: Account, model: OneSlotServer
) -> None:
    model.background.append(reply('{"lines": ["I go in.", "{\\"lines\\": []}", ""]}'))
    page.goto(f"/#/chats/{account.new_chat()['id']}")
    page.get_by_role("button", name="Suggest lines").click()
    expect(page.get_by_role("button", name="I go in.")).to_be_visible()
    expect(page.get_by_text("2 were left out: they were code or empty.")).to_be_visible()


def test_how_many_requests_a_server_answers_is_set_at_its_provider(
    page: Page, account: Account, model: OneSlotServer
) -> None:
    account.post("/providers", {"preset": "llama-cpp", "name": "Mine", "base_url": model.url})
    page.goto("/#/providers")
    page.get_by_role("button", name="More about Mine").click()
    page.get_by_role("menuitem", name="Edit").click()
    field = page.get_by_label("Requests at the same time")
    expect(field).to_have_value("")
    expect(page.get_by_text("Empty: 1.")).to_be_visible()
    field.fill("4")
    page.get_by_role("button", name="Save").click()
    expect(field).not_to_be_visible()
    (provider,) = (each for each in account.get("/providers")["items"] if each["name"] == "Mine")
    assert (provider["concurrency"], provider["usual_concurrency"]) == (4, 1)
