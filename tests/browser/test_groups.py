"""Chats with several characters: who is there, who speaks, whispers, and what each one knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.support.browser import Account, Watch, dark, installing, phone, signing_up

pytestmark = pytest.mark.browser

SECRET = "The silver key lies under the altar."


@dataclass
class Inn:
    """A chat of several characters. `ids` contains them by name."""

    account: Account
    chat: str
    ids: dict[str, str]

    @property
    def path(self) -> str:
        return f"/#/chats/{self.chat}"


def open_inn(account: Account, *names: str, guests: int | None = None) -> Inn:
    """Create characters, and a chat with the first ones, or with all of them."""
    ids: dict[str, str] = {}
    for name in names:
        card = {"name": name, "description": f"{name} has a scar.", "first_mes": f"I am {name}."}
        ids[name] = account.post("/characters", card)["id"]
    members = list(ids.values())[:guests]
    chat = account.new_chat(character_ids=members, title="The inn")
    return Inn(account, chat["id"], ids)


def line(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Your message")


def messages(page: Page) -> Locator:
    return page.get_by_role("feed").get_by_role("article")


def replies(page: Page, name: str) -> Locator:
    return page.get_by_role("feed").get_by_role("article", name=name, exact=True)


def say(page: Page, text: str) -> None:
    """Send a line, and wait for the reply."""
    count = messages(page).count()
    line(page).fill(text)
    page.get_by_role("button", name="Send").click()
    expect(messages(page)).to_have_count(count + 2)
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def act(page: Page, member: str, action: str) -> None:
    """Choose from the menu of a member."""
    page.get_by_role("group", name="Members").get_by_role("button", name=f"{member}, ").click()
    page.get_by_role("menuitem", name=action, exact=True).click()


def choose_next(page: Page, name: str) -> None:
    page.get_by_role("button", name="Next: ").click()
    page.get_by_role("menuitem", name=name, exact=True).click()


def test_who_was_away_does_not_know_the_secret(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    inn = open_inn(account, "Alda", "Bor")
    page.goto(inn.path)
    expect(messages(page)).to_have_count(1)
    assert_accessible(page)
    act(page, "Bor", "Leave the scene")
    expect(messages(page).filter(has_text="Bor leaves.")).to_be_visible()
    members = page.get_by_role("group", name="Members")
    expect(members.get_by_role("button", name="Bor, away")).to_be_visible()

    choose_next(page, "Alda")
    say(page, SECRET)
    # The choice was for one reply.
    expect(page.get_by_role("button", name="Next: mentioned")).to_be_visible()
    act(page, "Bor", "Come back")
    expect(members.get_by_role("button", name="Bor, present")).to_be_visible()
    expect(messages(page).filter(has_text="Bor joins.")).to_be_visible()

    page.get_by_role("button", name="Next: ").press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Bor", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    say(page, "Bor, where is the key?")
    messages(page).last.get_by_role("button", name="Why this reply?").click()
    panel = page.get_by_role("complementary", name="Prompt")
    expect(panel).to_contain_text("Bor speaks.")
    panel.get_by_text("Left out").click()
    expect(panel.locator(".left_out")).to_contain_text("Not known to Bor")
    panel.get_by_text("Exact prompt").click()
    expect(panel.locator(".exact")).not_to_contain_text("silver key")

    # The next prompt can be seen with the eyes of each.
    page.goto(f"{inn.path}?panel=context")
    seen = panel.get_by_role("combobox", name="Seen by")
    seen.select_option("Alda")
    panel.get_by_text("Exact prompt").click()
    expect(panel.locator(".exact")).to_contain_text("silver key")
    seen.select_option("Bor")
    expect(panel.locator(".exact")).not_to_contain_text("silver key")
    assert_accessible(page)

    # Without the message that says so, Bor never left.
    panel.get_by_role("button", name="Close").click()
    notice = messages(page).filter(has_text="Bor leaves.")
    notice.hover()
    expect(notice.get_by_role("button", name="Edit")).to_have_count(0)
    notice.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete from here").click()
    expect(notice).to_have_count(0)
    expect(members.get_by_role("button", name="Bor, present")).to_be_visible()


def test_a_character_joins_and_is_told_what_happened(
    page: Page, account: Account, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    inn = open_inn(account, "Alda", "Bor", "Cid", guests=2)
    account.turn(inn.chat, text=SECRET)
    phone(page)
    dark(page)
    page.goto(inn.path)
    # The name, the facts and the cost have a row each, and no figure is cut.
    expect(page.locator(".cost")).to_contain_text("chat")
    header = page.locator(".talk > header")
    assert header.evaluate("header => header.offsetHeight < 96")
    assert header.locator(".figure").evaluate_all(
        "all => all.every((each) => each.scrollWidth <= each.clientWidth)"
    )
    page.get_by_role("button", name="2 members").click()
    panel = page.get_by_role("complementary", name="Members")
    panel.get_by_role("combobox", name="Presence of Bor").select_option("Muted")
    expect(panel.get_by_role("listitem").filter(has_text="Bor")).to_contain_text("Since message")
    assert_accessible(page)

    # The first request for a draft fails.
    watch.expected.append("/briefing")
    problem = '{"type": "urn:talekeeper:model-unavailable", "title": "Down", "status": 502}'
    page.route(
        "**/briefing",
        lambda route: route.fulfill(
            status=502, content_type="application/problem+json", body=problem
        ),
        times=1,
    )
    panel.get_by_role("button", name="Cid").click()
    dialog = page.get_by_role("dialog", name="Cid joins")
    dialog.get_by_role("radio", name="Cid is told what happened").check()
    expect(dialog.get_by_text("There is no draft.")).to_be_visible()
    assert_accessible(page)
    dialog.get_by_role("button", name="Try again").click()
    told = dialog.get_by_role("textbox", name="Cid is told")
    expect(told).not_to_have_value("")
    told.fill("There is a key somewhere.")
    dialog.get_by_role("button", name="Join").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("listitem").filter(has_text="Cid")).to_contain_text("Since message")
    panel.get_by_role("button", name="Close").click()
    expect(page.get_by_role("button", name="3 members")).to_be_focused()
    expect(messages(page).filter(has_text="Cid joins.")).to_be_visible()
    expect(messages(page).filter(has_text="Cid is told")).to_contain_text("a key somewhere")
    members = account.get(f"/chats/{inn.chat}/members")
    assert [each["presence"] for each in members] == ["present", "muted", "present"]
    assert_accessible(page)


def test_a_whisper_is_marked_and_known_to_those_who_heard_it(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    inn = open_inn(account, "Alda Verin", "Bor", "Cid")
    page.goto(inn.path)
    page.get_by_role("button", name="Whisper", exact=True).click()
    heard = page.get_by_role("group", name="Only heard by:")
    heard.get_by_role("button", name="Bor").click()
    assert_accessible(page)
    say(page, SECRET)
    whispered = messages(page).filter(has_text=SECRET).first
    expect(whispered).to_contain_text("Whispered to Bor")
    expect(replies(page, "Bor")).to_contain_text("Only known to Bor")
    line(page).fill("/sys A draught.")
    line(page).press("Enter")
    expect(messages(page).filter(has_text="A draught.")).to_contain_text("Only known to Bor")
    heard.get_by_role("button", name="Stop whispering").click()
    expect(heard).to_be_hidden()

    # Tab completes the command and the names.
    line(page).press_sequentially("/wh")
    line(page).press("Tab")
    line(page).press_sequentially("al")
    line(page).press("Tab")
    expect(line(page)).to_have_value("/whisper Alda Verin ")
    line(page).fill("/whisper alda, Cid Meet me at midnight.")
    line(page).press("Enter")
    mark = messages(page).filter(has_text="Whispered to Alda Verin and Cid")
    expect(mark).to_contain_text("Meet me at midnight.")
    expect(mark).not_to_contain_text("/whisper")
    expect(page.get_by_role("button", name="Send")).to_be_visible()

    line(page).fill("/whisper Nobody Psst.")
    line(page).press("Enter")
    expect(page.get_by_text("No member of this chat is called")).to_be_visible()
    expect(line(page)).to_have_value("/whisper Nobody Psst.")

    # Anyone can be let in on it later.
    whispered.hover()
    whispered.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Who knows this…").click()
    dialog = page.get_by_role("dialog", name="Who knows this message?")
    expect(dialog.get_by_role("checkbox", name="Bor")).to_be_checked()
    dialog.get_by_role("checkbox", name="Cid").check()
    assert_accessible(page)
    dialog.get_by_role("button", name="Save").click()
    expect(whispered).to_contain_text("Whispered to Bor and Cid")


@pytest.fixture(scope="module")
def slow_account(tmp_path_factory: pytest.TempPathFactory) -> Generator[Account]:
    """An account of a server whose demo model writes slowly enough to be stopped."""
    folder: Path = tmp_path_factory.mktemp("slow")
    with (
        installing(folder, registration="open", demo_tokens_per_second="40") as installation,
        signing_up(installation.server.url, "host") as account,
    ):
        yield account


def test_five_characters_talk_until_they_are_stopped(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    inn = open_inn(account, "Alda", "Bor", "Cid", "Dana", "Egil")
    page.goto(inn.path)
    page.get_by_role("button", name="Let them talk").click()
    dialog = page.get_by_role("dialog", name="Let them talk")
    dialog.get_by_role("spinbutton", name="Number of replies").fill("20")
    assert_accessible(page)
    dialog.get_by_role("button", name="Start").click()
    expect(messages(page).last).to_have_attribute("aria-posinset", "21")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    stored = account.get(f"/chats/{inn.chat}/messages", limit=50)["items"]
    authors = [each["author"] for each in stored[1:]]
    assert len(authors) == 20
    assert len(set(authors)) > 2
    assert all(one != other for one, other in pairwise(authors))


def test_a_conversation_is_resumed_after_a_reload_and_stopped(
    context: BrowserContext, slow_account: Account, watch: Watch
) -> None:
    inn = open_inn(slow_account, "Alda", "Bor", "Cid")
    address = str(slow_account.client.base_url.copy_with(path="/"))
    watch.others.append(address)
    slow_account.enter(context)
    page = context.new_page()
    page.goto(f"{address}#/chats/{inn.chat}")
    page.get_by_role("button", name="Let them talk").click()
    page.get_by_role("spinbutton", name="Number of replies").fill("50")
    page.get_by_role("button", name="Start").click()
    expect(messages(page)).to_have_count(3)
    expect(page.get_by_text(re.compile(r"Reply \d of 50"))).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Stop")).to_have_count(1)
    expect(messages(page)).to_have_count(4)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    turn = slow_account.get(f"/chats/{inn.chat}/turns", limit=1)["items"][0]
    assert turn["state"] == "stopped"


def test_memories_of_a_member_are_read_edited_and_added(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    inn = open_inn(account, "Alda", "Bor")
    page.goto(inn.path)
    act(page, "Alda", "What does Alda know?")
    panel = page.get_by_role("complementary", name="Knowledge")
    panel.get_by_role("button", name="Add a memory").click()
    dialog = page.get_by_role("dialog", name="Add a memory")
    dialog.get_by_role("textbox", name="What happened").fill("Alda buried the crown.")
    dialog.get_by_role("button", name="Save").click()
    memories = panel.get_by_role("list", name="Memories")
    expect(memories).to_contain_text("Alda buried the crown.")
    assert_accessible(page)
    panel.get_by_role("button", name="More actions for Alda buried").click()
    page.get_by_role("menuitem", name="Edit").click()
    edited = page.get_by_role("dialog", name="Edit").get_by_role("textbox", name="What happened")
    edited.fill("Alda buried the crown in the cellar.")
    page.get_by_role("dialog", name="Edit").get_by_role("button", name="Save").click()
    expect(memories).to_contain_text("in the cellar")
    panel.get_by_role("searchbox", name="Search what Alda knows").fill("crown")
    expect(panel.locator("[role=search]")).to_contain_text("in the cellar")

    # Bor does not know it.
    panel.get_by_role("combobox", name="Member").select_option("Bor")
    expect(panel.get_by_text("No memories yet.")).to_be_visible()
    panel.get_by_role("searchbox", name="Search what Bor knows").fill("crown")
    expect(panel.get_by_text("Bor knows nothing about this.")).to_be_visible()
    with page.expect_request_finished(lambda sent: sent.method == "PATCH"):
        panel.get_by_role("checkbox", name="Remembers across chats").check()
    page.reload()
    expect(panel.get_by_role("checkbox", name="Remembers across chats")).to_be_checked()

    panel.get_by_role("combobox", name="Member").select_option("Alda")
    panel.get_by_role("button", name="More actions for Alda buried").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(panel.get_by_text("No memories yet.")).to_be_visible()
    panel.get_by_role("link", name="Show the prompt for Alda").click()
    prompt = page.get_by_role("complementary", name="Prompt")
    expect(prompt.get_by_role("combobox", name="Seen by")).to_have_value(inn.ids["Alda"])


def test_the_settings_of_a_group_and_of_its_cards(page: Page, account: Account) -> None:
    inn = open_inn(account, "Alda", "Bor")
    page.goto(f"{inn.path}?panel=settings")
    panel = page.get_by_role("complementary", name="Settings")
    panel.get_by_role("combobox", name="Next speaker").select_option("In order")
    expect(page.get_by_role("button", name="Next: in order")).to_be_visible()
    panel.get_by_role("combobox", name="Cards").select_option("Only the speaker's card")
    panel.get_by_role("spinbutton", name="Automatic replies").fill("2")
    panel.get_by_role("checkbox", name="A character may reply to itself").check()
    panel.get_by_role("checkbox", name="Bor").check()
    with page.expect_request_finished(lambda sent: "talkativeness" in (sent.post_data or "")):
        panel.get_by_role("spinbutton", name="Alda").fill("0.9")
    assert account.get(f"/chats/{inn.chat}/settings")["group"] == {
        "next_speaker": "list",
        "cards": "swapped",
        "auto_replies": 2,
        "allow_self_replies": True,
        "narrators": [inn.ids["Bor"]],
        "talkativeness": {inn.ids["Alda"]: 0.9},
    }

    page.goto(f"/#/characters/{inn.ids['Alda']}")
    page.get_by_text("In chats with several characters").click()
    page.get_by_role("textbox", name="What others can see").fill("A scar on her chin.")
    with page.expect_request_finished(lambda sent: "0.25" in (sent.post_data or "")):
        page.get_by_role("spinbutton", name="Talkativeness").fill("0.25")
    card = account.get(f"/characters/{inn.ids['Alda']}")
    assert card["extensions"]["talekeeper"]["public"] == "A scar on her chin."
    assert card["extensions"]["talkativeness"] == 0.25
