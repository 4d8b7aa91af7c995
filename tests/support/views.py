"""Every view of the page by a name, with data in it: its address, and the act that opens it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from playwright.sync_api import FilePayload, Page, Route, expect

from backend.web.controller import FOLDER
from tests.support.browser import Account
from tests.support.drawings import ledger_page, seascape
from tests.support.tale import TALE, a_tale, a_world, people

Act = Callable[[Page], None]

SAY = "Your message"
GREETINGS = [
    "The bell of the harbour rings twice, and then nobody rings it.",
    "*She holds the lantern higher.* “You came by the cliff path. Nobody comes by the cliff path.” "
    * 3,
    "It snows on the sea.",
]
CHOICE = "I pick the lock of the counting house."


@dataclass(frozen=True)
class View:
    """A view of an account, or of a visitor. `act` opens something in it."""

    address: str
    reader: str | None = "Ada"
    act: Act | None = None
    ready: str | None = None
    """A selector of something that is visible once the view is complete."""


def press(name: str, *, role: str = "button", last: bool = False) -> Act:
    """Press the button with this name, or a part of its name."""

    def act(page: Page) -> None:
        found = page.get_by_role(role, name=name, exact=not last)  # type: ignore[arg-type]
        (found.last if last else found.first).click()

    return act


def one_after_another(*acts: Act) -> Act:
    """Do several things."""

    def act(page: Page) -> None:
        for each in acts:
            each(page)

    return act


def write(text: str, label: str = SAY) -> Act:
    """Fill a field."""

    def act(page: Page) -> None:
        page.get_by_label(label, exact=True).first.fill(text)

    return act


def open_menu(selector: str) -> Act:
    """Open the menu of the last such button."""

    def act(page: Page) -> None:
        page.locator(selector).last.click()
        expect(page.get_by_role("menu")).to_be_visible()

    return act


def choose_item(selector: str, item: str) -> Act:
    """Choose from the menu of the last such button."""
    return one_after_another(open_menu(selector), press(item, role="menuitem"))


def unfold(*summaries: str) -> Act:
    """Open groups of a form."""

    def act(page: Page) -> None:
        for each in summaries:
            page.locator("summary").filter(has_text=each).first.click()

    return act


def attach(page: Page) -> None:
    """Attach two pictures to the line."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach pictures").click()
    files = [("ledger.png", ledger_page()), ("sea.png", seascape())]
    chooser.value.set_files([FilePayload(name=n, mimeType="image/png", buffer=d) for n, d in files])
    expect(page.locator(".attached img")).to_have_count(2)


def lose(path: str) -> Act:
    """Let requests fail, and load the view again."""

    def fail(route: Route) -> None:
        body = {"type": "about:blank", "title": "The database is full", "status": 507}
        route.fulfill(status=507, json=body, content_type="application/problem+json")

    def act(page: Page) -> None:
        page.route(path, fail)
        page.reload()
        expect(page.get_by_role("alert")).to_be_visible()
        page.unroute(path)

    return act


def roll(page: Page) -> None:
    """Play a turn that waits for the choice of a die, unless one does already.

    The page shows a waiting turn a moment after the chat, so the server is asked.
    """
    chat = page.url.rpartition("/")[2]
    found = page.request.get(f"/api/v1/chats/{chat}/turns", params={"limit": 1})
    if not any(turn["state"] == "waiting" for turn in found.json()["items"]):
        write(CHOICE)(page)
        press("Send")(page)


def undo_toast(page: Page) -> None:
    """Delete a message, and leave the offer to undo it open."""
    choose_item(".tools [aria-label=More]", "Delete this message only")(page)
    expect(page.get_by_role("button", name="Undo")).to_be_visible()


def find_views(reader: Account, newcomer: Account) -> dict[str, View]:
    """All views by name. `reader` gets a library, chats and a campaign; `newcomer` stays empty."""
    marlena = people(reader)
    ids = a_tale(reader, marlena)
    chat = ids["chat"]
    campaign = a_world(reader, chat)
    budgets = {"total": 2_400, "reply_reserve": 300}
    reader.client.patch(f"/chats/{chat}/settings", json={"budgets": budgets}).raise_for_status()
    messages = reader.get(f"/chats/{chat}/messages", limit=1)
    ids["reply"] = messages["items"][0]["id"]
    more = make_chats(reader, marlena)
    more["other"] = reader.post(f"/chats/{chat}/duplicate")["id"]
    preset = reader.post("/presets", {"name": "Slow and dark"})["id"]
    return {
        **find_routes(
            {
                "chats": chat,
                "characters": marlena,
                "lorebooks": ids["book"],
                "memory": chat,
                "chronicles": ids["chronicle"],
                "campaigns": campaign,
                "presets": preset,
            }
        ),
        **find_parts(reader, ids),
        **find_opened(f"/#/chats/{chat}", ids, marlena, campaign, more),
        **find_empty(newcomer),
    }


def make_chats(reader: Account, marlena: str) -> dict[str, str]:
    """A group, a chat that has not begun, a choice of dice, and one with a picture: ids by name."""
    others = [each["id"] for each in reader.get("/characters")["items"] if each["id"] != marlena]
    for place, each in enumerate(others):
        if place < 2:
            reader.client.patch(f"/characters/{each}", json={"is_favourite": True})
    group = reader.new_chat(
        character_ids=[marlena, *others[:3]], title="Supper at the inn of Saltwick"
    )["id"]
    for line in ("*I sit down.* Who rang the bell?", "“Nobody?”"):
        reader.turn(group, text=line)
    card = {"name": "Mara", "first_mes": GREETINGS[0], "alternate_greetings": GREETINGS[1:]}
    mara = reader.post("/characters", card)["id"]
    beginning = reader.new_chat(character_ids=[mara])["id"]
    rules = reader.post("/campaigns", {"name": "Doskvol", "rules": "blades"})["id"]
    dice = reader.new_chat(campaign_id=rules, title="The counting house")["id"]
    reader.client.patch(f"/chats/{dice}/settings", json={"model": "demo"}).raise_for_status()
    lone = reader.new_chat(character_ids=[marlena], title="x" * 60)["id"]
    for each, tags in ((group, ["inn", "group"]), (lone, ["a long tag of a chat", "sea"])):
        reader.client.patch(f"/chats/{each}", json={"tags": tags, "pinned": each == group})
    reader.client.patch(f"/chats/{lone}", json={"archived": True}).raise_for_status()
    quick = [
        {"label": label, "text": text, "set": ""}
        for label, text in (("Look around", "I look around."), ("Wait", "I wait."), ("Listen", "…"))
    ]
    reader.client.patch("/me/settings", json={"quick_replies": quick}).raise_for_status()
    return {"group": group, "beginning": beginning, "dice": dice, "rules": rules}


def find_routes(id_of: dict[str, str]) -> dict[str, View]:
    """The views of main.js."""
    source = (FOLDER / "main.js").read_text(encoding="utf-8")
    found = {
        name or "start": View(f"/#/{name}".replace("/id", f"/{id_of.get(name.partition('/')[0])}"))
        for name in re.findall(r"^ {2}\[\"([\w/-]*)\", \[\"", source, re.MULTILINE)
        if name != "imports/id"  # a finished import has its own test
    }
    assert len(found) > 20
    return found


PANELS = ("members", "find", "world", "context", "settings")


def find_parts(reader: Account, ids: dict[str, str]) -> dict[str, View]:
    """Parts of a lorebook, and panels of a chat, which have addresses."""
    book = f"/#/lorebooks/{ids['book']}"
    entry = reader.get(f"/lorebooks/{ids['book']}/entries")["items"][0]["id"]
    return {
        "lorebooks-entry": View(f"{book}?entry={entry}"),
        "lorebooks-test": View(f"{book}?entry=test"),
        "lorebooks-settings": View(f"{book}?entry=settings"),
        **{f"chats-{each}": View(f"/#/chats/{ids['chat']}?panel={each}") for each in PANELS},
    }


def find_opened(
    chat: str, ids: dict[str, str], marlena: str, campaign: str, more: dict[str, str]
) -> dict[str, View]:
    """Menus, dialogs and states that a reader opens."""
    tools = ".tools [aria-label=More]"
    group = f"/#/chats/{more['group']}"
    last = TALE["story"][-1]["line"][:12]
    selecting = press("Select")
    return {
        "open-chats-menu": View("/#/", act=open_menu(".talks [aria-label^='More actions']")),
        "open-chats-rename": View(
            "/#/", act=choose_item(".talks [aria-label^='More actions']", "Rename")
        ),
        "open-chats-selecting": View("/#/", act=one_after_another(selecting, press("Select all"))),
        "open-chats-archive": View("/#/", act=press("Archive: 1")),
        "open-chats-new": View("/#/", act=press("New chat")),
        "open-chats-nothing": View("/#/", act=write("zzz", "Search chats")),
        "open-palette": View("/#/", act=lambda page: page.keyboard.press("Control+k")),
        "open-palette-found": View(
            "/#/characters",
            act=one_after_another(
                lambda page: page.keyboard.press("Control+k"),
                lambda page: page.locator(".search input").fill("salt"),
            ),
            ready=".hit",
        ),
        "open-characters-menu": View(
            "/#/characters", act=open_menu(".people > li:first-child [aria-label^='More actions']")
        ),
        "open-characters-selecting": View(
            "/#/characters", act=one_after_another(selecting, press("Select all"))
        ),
        "open-characters-list": View("/#/characters", act=press("List")),
        "open-characters-list-selecting": View(
            "/#/characters",
            act=one_after_another(press("List"), selecting, press("Select all")),
        ),
        "open-characters-more": View(f"/#/characters/{marlena}", act=unfold_all),
        "open-persona": View("/#/personas", act=lambda page: page.locator(".persona").click()),
        "open-chat-menu": View(chat, act=open_menu(tools)),
        "open-chat-edit": View(chat, act=press("Edit", last=True)),
        "open-chat-undo": View(f"/#/chats/{more['other']}", act=undo_toast),
        "open-chat-selecting": View(chat, act=choose_item(tools, "Select messages")),
        "open-chat-tools": View(chat, act=open_menu(".composing [aria-label=More]")),
        "open-chat-keys": View(
            chat, act=choose_item(".composing [aria-label=More]", "Keyboard shortcuts")
        ),
        "open-chat-commands": View(chat, act=lambda page: page.get_by_label(SAY).press("/")),
        "open-chat-pictures": View(chat, act=one_after_another(attach, write(last))),
        "open-chat-model": View(chat, act=lambda page: page.locator(".asked").click()),
        "open-chat-settings": View(f"{chat}?panel=settings", act=unfold_all),
        "open-chat-found": View(
            f"{chat}?panel=find",
            act=write("silver key", "Words or topic"),
            ready=".passages button",
        ),
        "open-chat-why": View(
            f"{chat}?panel=context&message={ids['reply']}", act=press("Lore", last=True)
        ),
        "group": View(group),
        "group-member-menu": View(
            group, act=lambda page: page.locator(".cast button:visible").first.click()
        ),
        "group-members": View(f"{group}?panel=members"),
        "group-next": View(group, act=press("Next: ", last=True)),
        "group-whisper": View(group, act=press("Whisper")),
        "group-talk": View(group, act=press("Let them talk")),
        "group-share": View(group, act=choose_item(tools, "Who knows this…")),
        "group-settings": View(f"{group}?panel=settings", act=unfold_all),
        "greetings": View(f"/#/chats/{more['beginning']}", ready=".greetings label"),
        "dice": View(f"/#/chats/{more['dice']}", act=roll, ready=".question"),
        "rules": View(f"/#/campaigns/{more['rules']}"),
        "open-world": View(f"{chat}?panel=world", act=unfold_all),
        **{
            f"campaign-tab-{place}": View(
                f"/#/campaigns/{campaign}",
                act=lambda page, place=place: page.locator("main .tabs > *").nth(place).click(),  # type: ignore[misc]
            )
            for place in range(1, 8)
        },
        "open-lorebooks-menu": View(
            "/#/lorebooks", act=open_menu("main [aria-label^='More actions']")
        ),
        "open-lorebooks-tested": View(
            f"/#/lorebooks/{ids['book']}?entry=test",
            act=write("We came to Saltwick by night, and the lighthouse was dark.", "Test text"),
            ready="text=activated",
        ),
        "open-memory-found": View(
            "/#/memory",
            act=one_after_another(
                write("silver key", "Search for"), lambda page: page.keyboard.press("Enter")
            ),
        ),
        "open-chronicle-event": View(f"/#/chronicles/{ids['chronicle']}", act=press("Add event")),
        "open-provider": View("/#/providers", act=press("Add provider")),
        "open-key": View("/#/clients", act=press("Create API key")),
        "open-password": View("/#/security", act=press("Change password")),
        "open-account-remove": View("/#/account", act=press("Delete account", last=True)),
        "open-moving": View("/#/characters", "Bea", press("Import from SillyTavern")),
        "nowhere": View("/#/nowhere/at/all"),
        "failed": View("/#/lorebooks", act=lose("**/api/v1/lorebooks*")),
    }


def unfold_all(page: Page) -> None:
    """Open all groups of a form."""
    page.locator("details:not([open]) > summary:visible").first.wait_for()
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")


def find_empty(newcomer: Account) -> dict[str, View]:
    """Views of a visitor and of a new account."""
    places = (
        "",
        "characters",
        "personas",
        "lorebooks",
        "memory",
        "chronicles",
        "campaigns",
        "account",
    )
    chat = newcomer.new_chat(title="Nobody is here")["id"]
    archived = newcomer.client.patch(f"/chats/{chat}", json={"archived": True})
    archived.raise_for_status()
    return {
        "sign-in": View("/", None),
        "sign-up": View("/", None, press("Create account")),
        "recover": View("/", None, press("Forgot your password?")),
        **{f"empty-{each or 'start'}": View(f"/#/{each}", newcomer.name) for each in places},
        "empty-chat": View(f"/#/chats/{chat}", newcomer.name),
    }
