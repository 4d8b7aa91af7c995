"""Thoughts on the page: taken back from the text, made the reply, and the tags around them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.sync_api import Page, expect

from tests.fakes.openai_server import DONE, OpenAIServer, chunk, reply, stream
from tests.fakes.scripted_server import Gate
from tests.support.browser import Account
from tests.support.process import Served, serving

pytestmark = pytest.mark.browser


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
        openai_models="teller",
    ) as served:
        yield served


@pytest.fixture
def chat(account: Account) -> dict[str, Any]:
    return account.new_chat(character_ids=[account.import_card()["id"]], title="The storm")


def say(page: Page, text: str) -> None:
    page.get_by_label("Your line").fill(text)
    page.get_by_role("button", name="Send").click()


def test_thoughts_alone_are_shown_and_become_the_reply(
    page: Page,
    account: Account,
    chat: dict[str, Any],
    teller: OpenAIServer,
    portal: BlockingPortal,
    assert_accessible: Callable[[Page], None],
) -> None:
    thoughts = chunk(reasoning_content="Mags waves.")
    portal.call(teller.script, stream(thoughts, chunk("stop"), DONE))
    page.goto(f"/#/chats/{chat['id']}")
    say(page, "Hello!")
    last = page.locator(".message.last")
    expect(last).to_contain_text("The model sent thoughts and no reply.")
    expect(last.locator(".thoughts div")).to_be_visible()
    expect(last.locator(".prose")).to_have_text("")
    assert_accessible(page)
    last.get_by_role("button", name="More").click()
    expect(page.get_by_role("menuitem", name="Copy")).to_be_visible()
    expect(page.get_by_role("menuitem", name="Show to the model")).to_be_hidden()
    page.keyboard.press("Escape")

    last.get_by_role("button", name="Make them the reply").click()

    expect(last.locator(".prose")).to_have_text("Mags waves.")
    expect(last).not_to_contain_text("The model sent thoughts")
    expect(last).not_to_contain_text("Left out")
    message = account.get(f"/chats/{chat['id']}/messages")["items"][-1]
    assert (message["text"], message["thinking"]) == ("Mags waves.", None)


def test_text_that_was_thoughts_is_taken_back_while_it_streams(
    page: Page, chat: dict[str, Any], teller: OpenAIServer, portal: BlockingPortal
) -> None:
    thought, end = Gate(), Gate()
    begun = chunk(content="They greet me 🦊. I wave.")
    rest = (chunk(content="</think>"), chunk(content="Mags waves."))
    portal.call(teller.script, stream(begun, thought, *rest, end, chunk("stop"), DONE))
    page.goto(f"/#/chats/{chat['id']}")
    say(page, "Hello!")
    last = page.locator(".message.last")
    expect(last.locator(".prose")).to_have_text("They greet me 🦊. I wave.")
    portal.call(thought.opened.set)

    expect(last.locator(".prose")).to_have_text("Mags waves.")
    expect(last.locator(".thoughts div")).to_have_text("They greet me 🦊. I wave.")
    portal.call(end.opened.set)
    expect(page.get_by_label("Tools of message 3")).to_be_visible()
    expect(last.locator(".prose")).to_have_text("Mags waves.")


def test_what_a_continued_reply_said_before_stays_when_text_is_taken_back(
    page: Page, chat: dict[str, Any], teller: OpenAIServer, portal: BlockingPortal
) -> None:
    end = Gate()
    # The first reply shows that the model does not always begin with thoughts.
    portal.call(teller.script, reply("Mags waves 🦊."))
    more = (chunk(content="I go on."), chunk(content="</think>"), chunk(content=" She nods."))
    portal.call(teller.script, stream(*more, end, chunk("stop"), DONE))
    page.goto(f"/#/chats/{chat['id']}")
    say(page, "Hello!")
    last = page.locator(".message.last")
    expect(page.get_by_label("Tools of message 3")).to_be_visible()

    last.get_by_role("button", name="Go on writing").click()

    expect(last.locator(".prose")).to_have_text("Mags waves 🦊. She nods.")
    portal.call(end.opened.set)
    expect(page.get_by_label("Tools of message 3")).to_be_visible()
    expect(last.locator(".prose")).to_have_text("Mags waves 🦊. She nods.")


def test_lines_of_other_speakers_are_kept_where_a_setting_says_so(
    page: Page, account: Account, chat: dict[str, Any]
) -> None:
    page.goto(f"/#/chats/{chat['id']}?panel=settings")
    page.get_by_text("How much the model reads").click()
    page.get_by_label("Keep lines of other speakers").select_option(label="On")
    expect(page.get_by_text("Saved")).to_be_visible()
    page.goto("/#/settings")
    expect(page.get_by_label("Instructions for the model")).to_be_visible()
    page.get_by_text("How much the model reads").click()
    page.get_by_label("Keep lines of other speakers").check()
    expect(page.get_by_text("Saved").first).to_be_visible()

    assert account.get(f"/chats/{chat['id']}/settings")["keep_other_speakers"] is True
    assert account.get("/me/settings")["keep_other_speakers"] is True


def test_a_provider_has_tags_of_its_own(
    page: Page,
    account: Account,
    teller: OpenAIServer,
    assert_accessible: Callable[[Page], None],
) -> None:
    account.client.post(
        "/providers", json={"kind": "openai", "base_url": teller.url, "slug": "own", "name": "Own"}
    ).raise_for_status()
    page.goto("/#/providers")
    page.get_by_role("button", name="More about Own").click()
    page.get_by_role("menuitem", name="Edit").click()
    page.get_by_label("Find thoughts in the text").uncheck()
    tags = page.get_by_label("More tags around thoughts")
    tags.fill("(muse)")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("“(muse)” is not a pair of tags").first).to_be_visible()
    assert_accessible(page)
    tags.fill("(muse) (/muse)")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_be_hidden()

    (own,) = [each for each in account.get("/providers")["items"] if each["slug"] == "own"]
    assert own["thought_tags"] == [{"opening": "(muse)", "closing": "(/muse)"}]
    assert own["reads_thoughts"] is False
