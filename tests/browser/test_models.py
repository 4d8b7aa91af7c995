"""Models in the page: choosing one among many, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.sync_api import Page, expect

from tests.fakes.openai_server import OpenAIServer, reply, usage
from tests.support.browser import Account, phone
from tests.support.process import Served, serving

pytestmark = pytest.mark.browser

NAMES = [f"teller-{number}" for number in range(300)]
PRICES = {"openai/teller-7": [2, 8, 0.5]}


@pytest.fixture(scope="module")
def portal() -> Generator[BlockingPortal]:
    """Where the stand-in for a provider runs."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def teller(portal: BlockingPortal) -> Generator[OpenAIServer]:
    with portal.wrap_async_context_manager(OpenAIServer()) as teller:
        yield teller


@pytest.fixture(scope="module")
def server(teller: OpenAIServer, tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with serving(
        tmp_path_factory.mktemp("served"),
        registration="open",
        openai_base_url=teller.url,
        openai_models=",".join(NAMES),
        model_prices=json.dumps(PRICES),
    ) as served:
        yield served


def test_a_model_is_found_among_hundreds_by_keyboard_and_a_reply_has_its_cost(
    page: Page,
    account: Account,
    teller: OpenAIServer,
    portal: BlockingPortal,
    assert_accessible: Callable[[Page], None],
) -> None:
    chat = account.new_chat(character_ids=[account.import_card()["id"]])
    phone(page)
    page.goto(f"/#/chats/{chat['id']}?panel=settings")
    chosen = page.get_by_role("button", name="Model: ")
    expect(chosen).to_contain_text("As usual: teller-0")
    chosen.press("Enter")
    dialog = page.get_by_role("dialog", name="Model", exact=True)
    expect(dialog.get_by_role("button", name="teller-")).to_have_count(len(NAMES) + 1)
    assert_accessible(page)
    search = dialog.get_by_role("searchbox", name="Search models")
    expect(search).to_be_focused()
    page.keyboard.type("teller-7")
    expect(dialog.get_by_text("11 models", exact=True)).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    first = dialog.get_by_role("button", name="teller-7").first
    expect(first).to_be_focused()
    expect(first).to_contain_text("32,768 tokens")
    page.keyboard.press("Enter")

    expect(chosen).to_be_focused()
    expect(chosen).to_contain_text("teller-7")
    expect(page.get_by_text("Saved")).to_be_visible()
    assert account.get(f"/chats/{chat['id']}/settings")["model"] == "openai/teller-7"
    assert_accessible(page)
    page.keyboard.press("Escape")
    portal.call(teller.script, reply("Yes.", used=usage(1000, 100, cached=600)))
    page.get_by_role("textbox", name="Your line").fill("Is it so?")
    page.get_by_role("button", name="Send").click()

    cost = page.get_by_text("reply $0.0019, 1,100 tokens · chat $0.0019, 1,100 tokens")
    expect(cost).to_be_visible()
    assert_accessible(page)
    page.reload()
    expect(cost).to_be_visible()
