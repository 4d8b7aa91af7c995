"""Actions on messages, chat settings, jumps within a chat, and thoughts of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from playwright.sync_api import Locator, Page, expect

from tests.fakes.openai_server import DONE, MODEL, OpenAIServer, chunk, reply, stream
from tests.fakes.scripted_server import Gate
from tests.support.browser import Account

pytestmark = pytest.mark.browser


@pytest.fixture
def chat(account: Account) -> dict[str, Any]:
    """A chat of five messages: the greeting, and two lines that were answered."""
    character = account.import_card()
    chat = account.new_chat(character_ids=[character["id"]], title="The storm")
    for line in ("Where is the silver key?", "I climb the stairs."):
        account.turn(chat["id"], text=line)
    return chat


def test_a_message_is_edited_regenerated_and_found(
    page: Page, chat: dict[str, Any], assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#/chats/{chat['id']}")
    page.get_by_label("Actions for message 5").get_by_role("button", name="Regenerate").click()
    expect(page.get_by_text("2 / 2")).to_be_visible()
    line(page).press("ArrowUp")
    text = page.get_by_label("Message text")
    text.fill("I run up the stairs.")
    text.press("Escape")
    line(page).press("ArrowUp")
    expect(text).to_have_value("I run up the stairs.")
    assert_accessible(page)
    text.fill("I fly up the stairs.")
    page.get_by_role("button", name="Discard changes").click()
    expect(text).to_be_hidden()
    page.get_by_role("button", name="Undo").click()
    expect(text).to_have_value("I fly up the stairs.")
    text.fill("I run up the stairs.")

    page.get_by_role("button", name="Save and regenerate").click()

    expect(page.get_by_text("“I run up the stairs.”", exact=True)).to_be_visible()
    expect(page.get_by_label("Actions for message 5")).to_be_visible()
    page.get_by_label("Actions for message 4").get_by_role(
        "button", name="Previous version"
    ).click()
    expect(page.get_by_text("“I climb the stairs.”", exact=True)).to_be_visible()
    expect(page.get_by_text("2 / 2")).to_be_visible()

    # A message is found by its words and by its number.
    page = page.context.new_page()
    page.set_viewport_size({"width": 390, "height": 700})
    page.goto(f"/#/chats/{chat['id']}")
    page.get_by_role("article").last.press("/")
    page.get_by_label("Words or topic").fill("silver keys")
    found = page.get_by_role("button", name="message 2")
    expect(found.locator("mark").first).to_have_text("silver")
    assert_accessible(page)

    found.click()

    place = page.get_by_role("article").filter(has_text="Where is the silver key?").first
    expect(place).to_be_focused()
    page.get_by_role("button", name="Find").click()
    page.get_by_label("Message number").fill("1")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(page.get_by_label("Actions for message 1")).to_be_in_viewport()


def test_deleted_messages_are_restored_and_settings_are_saved(
    page: Page, account: Account, chat: dict[str, Any], assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#/chats/{chat['id']}")
    more = page.get_by_label("Actions for message 4").get_by_role("button", name="More")
    messages = page.get_by_role("feed").get_by_role("article")
    expect(messages).to_have_count(5)
    for undo in (True, False):
        more.click()
        page.get_by_role("menuitem", name="Delete from here").click()
        expect(page.get_by_text("2 messages deleted")).to_be_visible()
        expect(messages).to_have_count(3)
        if undo:
            page.get_by_role("button", name="Undo").click()
            expect(messages).to_have_count(5)

    line(page).fill("/demo long 5")
    line(page).press("Enter")
    expect(page.get_by_text("/demo long 5", exact=True)).to_be_visible()
    # The deletion was finished before the line was sent.
    expect(page.get_by_role("button", name="Dismiss")).to_have_count(0)
    expect(messages).to_have_count(5)
    page.reload()
    expect(page.get_by_text("/demo long 5", exact=True)).to_be_visible()
    path = account.get(f"/chats/{chat['id']}/messages")["items"]
    assert [message["sibling_count"] for message in path[3:]] == [1, 1]

    page = page.context.new_page()
    account.post("/lorebooks", {"name": "Tides"})
    account.client.patch(f"/chats/{account.new_chat()['id']}", json={"tags": ["sea", "storm"]})
    account.client.patch("/me/settings", json={"budgets": {"history": 9000}})
    page.goto(f"/#/chats/{chat['id']}?panel=settings")
    tags = page.get_by_role("combobox", name="Tags")
    tags.fill("sea, ")
    offered = page.locator("datalist option")
    expect(offered).to_have_count(1)
    expect(offered).to_have_attribute("value", "sea, storm")
    page.get_by_text("Token budget").click()
    expect(page.get_by_label("Chat history tokens")).to_have_attribute("placeholder", "9000")
    page.get_by_label("Keep a chronicle").check()
    expect(page.get_by_role("link", name="Open chronicle")).to_be_visible()
    page.get_by_label("Add a lorebook").select_option(label="Tides")
    expect(page.get_by_role("button", name="Remove Tides")).to_be_visible()
    page.get_by_text("Sampling").click()
    page.get_by_label("Temperature").fill("3")
    expect(page.get_by_text("must be less than or equal to 2")).to_be_visible()
    page.get_by_label("Temperature").fill("0.5")
    assert_accessible(page)
    page.get_by_text("Author's note").click()
    page.get_by_label("Note", exact=True).fill("It rains.")

    page.get_by_label("Settings", exact=True).get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Settings").click()
    page.get_by_text("Author's note").click()
    expect(page.get_by_label("Note", exact=True)).to_have_value("It rains.")
    settings = account.get(f"/chats/{chat['id']}/settings")
    assert settings["chronicle_enabled"]
    assert settings["tags"] == ["sea"]
    assert settings["sampling"] == {"temperature": 0.5}


def test_messages_are_selected_hidden_and_deleted_alone(
    page: Page, account: Account, chat: dict[str, Any], assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#/chats/{chat['id']}")
    question = page.get_by_text("Where is the silver key?", exact=True)
    expect(question).to_be_visible()

    def choose(name: str) -> None:
        page.get_by_label("Actions for message 2").get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name=name).click()

    # One message is deleted alone, and comes back.
    choose("Delete this message only")
    expect(question).to_be_hidden()
    page.get_by_role("button", name="Undo").click()
    expect(question).to_be_visible()

    choose("Select messages")
    box = page.get_by_label("Select message 2")
    expect(box).to_be_checked()
    expect(box).to_be_focused()
    page.get_by_label("Select message 4").click(modifiers=["Shift"])
    bar = page.get_by_role("group", name="Actions for the selected messages")
    expect(bar.get_by_text("3 messages selected")).to_be_visible()
    assert_accessible(page)
    bar.get_by_role("button", name="Hide from the model").click()
    expect(bar.get_by_role("button", name="Show to the model")).to_be_visible()
    page.get_by_label("Select message 3").press("Space")
    bar.get_by_role("button", name="Delete").click()
    expect(bar).to_be_hidden()
    expect(question).to_be_hidden()
    expect(page.get_by_text("I climb the stairs.", exact=True)).to_be_hidden()

    # The next line is not sent before they are deleted on the server.
    line(page).fill("Who is there?")
    line(page).press("Enter")
    expect(page.get_by_label("Actions for message 7")).to_be_visible()
    path = account.get(f"/chats/{chat['id']}/messages")["items"]
    removed = [message["removed"] for message in path]
    assert removed == [False, True, False, True, False, False, False]
    assert [message["hidden"] for message in path][:5] == [False, True, True, True, False]
    page.reload()
    expect(page.get_by_text("Who is there?", exact=True)).to_be_visible()
    heights = page.locator(".message.removed").evaluate_all(
        "all => all.map(each => each.offsetHeight)"
    )
    assert heights == [0, 0]

    # All of them are deleted if the page is closed before the time to undo it has passed.
    page.get_by_label("Actions for message 5").get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Select messages").click()
    page.get_by_label("Select message 3").check()
    bar.get_by_role("button", name="Delete").click()
    expect(page.locator(".message.removed")).to_have_count(4)
    page.reload()
    expect(page.get_by_text("Who is there?", exact=True)).to_be_visible()
    expect(page.locator(".message.removed")).to_have_count(4)


def line(page: Page) -> Locator:
    """Where the next line is typed."""
    return page.get_by_label("Your message")


@pytest.fixture
def teller(model: OpenAIServer, account: Account) -> OpenAIServer:
    """The account's own provider. Its chats use this model."""
    body = {"kind": "openai", "base_url": model.url, "slug": "own", "name": "Own"}
    account.post("/providers", body | {"models": [{"name": MODEL}]})
    account.client.patch("/me/settings", json={"model": f"own/{MODEL}"}).raise_for_status()
    return model


@pytest.fixture
def teller_chat(account: Account) -> dict[str, Any]:
    return account.new_chat(character_ids=[account.import_card()["id"]], title="The storm")


def say(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_thoughts_become_the_reply_and_are_found_by_the_provider_s_tags(
    page: Page,
    account: Account,
    teller_chat: dict[str, Any],
    teller: OpenAIServer,
    portal: BlockingPortal,
    assert_accessible: Callable[[Page], None],
) -> None:
    thoughts = chunk(reasoning_content="Mags waves.")
    teller.script(stream(thoughts, chunk("stop"), DONE))
    page.goto(f"/#/chats/{teller_chat['id']}")
    say(page, "Hello!")
    last = page.locator(".message.last")
    expect(last).to_contain_text("The model sent thoughts but no reply.")
    expect(last.locator(".thoughts div")).to_be_visible()
    expect(last.locator(".prose")).to_have_text("")
    assert_accessible(page)
    last.get_by_role("button", name="More").click()
    expect(page.get_by_role("menuitem", name="Copy")).to_be_visible()
    expect(page.get_by_role("menuitem", name="Show to the model")).to_be_hidden()
    page.keyboard.press("Escape")

    last.get_by_role("button", name="Use as the reply").click()

    expect(last.locator(".prose")).to_have_text("Mags waves.")
    expect(last).not_to_contain_text("The model sent thoughts")
    expect(last).not_to_contain_text("Hidden")
    message = account.get(f"/chats/{teller_chat['id']}/messages")["items"][-1]
    assert (message["text"], message["thinking"]) == ("Mags waves.", None)

    page = page.context.new_page()
    page.goto("/#/providers")
    page.get_by_role("button", name="More actions for Own").click()
    page.get_by_role("menuitem", name="Edit").click()
    page.get_by_label("Detect thoughts in replies").uncheck()
    tags = page.get_by_label("Extra thought tags")
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

    page = page.context.new_page()
    page.goto(f"/#/chats/{teller_chat['id']}?panel=settings")
    page.get_by_text("Token budget").click()
    page.get_by_label("Keep other speakers' lines").select_option(label="On")
    expect(page.get_by_text("Saved")).to_be_visible()
    page.goto("/#/settings")
    expect(page.get_by_label("Instructions for the model")).to_be_visible()
    page.get_by_text("Token budget").click()
    page.get_by_label("Keep other speakers' lines").check()
    expect(page.get_by_text("Saved").first).to_be_visible()

    assert account.get(f"/chats/{teller_chat['id']}/settings")["keep_other_speakers"] is True
    assert account.get("/me/settings")["keep_other_speakers"] is True


def test_text_that_was_thoughts_is_taken_back_while_it_streams(
    page: Page, teller_chat: dict[str, Any], teller: OpenAIServer, portal: BlockingPortal
) -> None:
    thought, end = Gate(), Gate()
    begun = chunk(content="They greet me 🦊. I wave.")
    rest = (chunk(content="</think>"), chunk(content="Mags waves."))
    teller.script(stream(begun, thought, *rest, end, chunk("stop"), DONE))
    page.goto(f"/#/chats/{teller_chat['id']}")
    say(page, "Hello!")
    last = page.locator(".message.last")
    expect(last.locator(".prose")).to_have_text("They greet me 🦊. I wave.")
    portal.call(thought.opened.set)

    expect(last.locator(".prose")).to_have_text("Mags waves.")
    expect(last.locator(".thoughts div")).to_have_text("They greet me 🦊. I wave.")
    portal.call(end.opened.set)
    expect(page.get_by_label("Actions for message 3")).to_be_visible()
    expect(last.locator(".prose")).to_have_text("Mags waves.")


def test_a_continued_reply_keeps_its_earlier_text_when_new_text_is_taken_back(
    page: Page, teller_chat: dict[str, Any], teller: OpenAIServer, portal: BlockingPortal
) -> None:
    end = Gate()
    # The first reply shows that the model does not always begin with thoughts.
    teller.script(reply("Mags waves 🦊."))
    more = (chunk(content="I go on."), chunk(content="</think>"), chunk(content=" She nods."))
    teller.script(stream(*more, end, chunk("stop"), DONE))
    page.goto(f"/#/chats/{teller_chat['id']}")
    say(page, "Hello!")
    last = page.locator(".message.last")
    expect(page.get_by_label("Actions for message 3")).to_be_visible()

    last.get_by_role("button", name="Continue writing").click()

    expect(last.locator(".prose")).to_have_text("Mags waves 🦊. She nods.")
    portal.call(end.opened.set)
    expect(page.get_by_label("Actions for message 3")).to_be_visible()
    expect(last.locator(".prose")).to_have_text("Mags waves 🦊. She nods.")
