"""The pictures of the README, the tour and the guides.

    TEST_THOROUGH=1 TEST_SCREENSHOTS=1 scripts/test tests/browser/test_screenshots.py

writes them into docs/screenshots/. Without it they are made all the same, and thrown away.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Route, ViewportSize, expect

from tests.support.browser import Account, signing_up
from tests.support.drawings import seascape
from tests.support.tale import (
    TALE,
    a_council,
    a_picture,
    a_tale,
    a_world,
    find_people,
    people,
    some_chats,
    telling,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.thorough]

DOCS = Path(__file__).parents[2] / "docs"
MAX_BYTES = 60_000
GAP = 8
"""Pixels around the parts of a page, and between parts of a collage."""
OTHER_HINTS = ["branches", "memory", "groups"]


@dataclass(frozen=True)
class Stage:
    """A server with the tale, and the folder that the pictures go to."""

    url: str
    chromium: Browser
    account: Account
    ids: dict[str, str]
    folder: Path

    @property
    def chat(self) -> str:
        return f"/#/chats/{self.ids['chat']}"

    def open(self, width: int = 1280, height: int = 800, **options: Any) -> Page:
        """A tab of a new browser context."""
        context = self.chromium.new_context(
            base_url=self.url,
            reduced_motion="reduce",
            viewport=ViewportSize(width=width, height=height),
            **options,
        )
        self.account.enter(context)
        return context.new_page()

    def open_large(self, width: int = 900, height: int = 900, *, scale: float = 2) -> Page:
        """A tab for pictures of parts of a page, enlarged."""
        return self.open(width, height, device_scale_factor=scale)

    def save(self, name: str, picture: Image.Image) -> None:
        """Write a picture with as many colours as fit."""
        assert len(picture.getcolors(2**24) or []) > 50, f"{name} shows nothing"
        for colours in (256, 128, 64, 32):
            data = io.BytesIO()
            picture.quantize(colours).save(data, "PNG", optimize=True)
            if data.tell() <= MAX_BYTES:
                break
        assert data.tell() <= MAX_BYTES, f"{name} is too large"
        (self.folder / f"{name}.png").write_bytes(data.getvalue())

    def shoot(self, name: str, page: Page, *parts: Locator, gap: int = GAP) -> None:
        """Save a picture of the page, or of the area of these parts of it."""
        self.save(name, photograph(page, *parts, gap=gap))


@pytest.fixture(scope="module")
def stage(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    scratch = tmp_path_factory.mktemp("screenshots")
    wanted = os.environ.get("TEST_SCREENSHOTS")  # noqa: TID251  no setting of the program's
    folder = DOCS / "screenshots" if wanted else scratch / "pictures"
    folder.mkdir(exist_ok=True)
    with telling(scratch) as url, signing_up(url, "Ada") as account:
        marlena = people(account)
        some_chats(account)
        account.client.patch(
            "/me/settings", json={"page": {"dismissed": [*OTHER_HINTS, "inspector"]}}
        )
        yield Stage(url, chromium, account, a_tale(account, marlena), folder)


def photograph(page: Page, *parts: Locator, gap: int = GAP) -> Image.Image:
    page.wait_for_load_state("networkidle")
    page.evaluate("document.fonts.ready")
    # Pictures outside the screen are not loaded.
    page.wait_for_function(
        "[...document.images].every((image) => image.complete || image.loading === 'lazy')"
    )
    if not parts:
        return Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    boxes = [box for part in parts if (box := part.bounding_box())]
    assert len(boxes) == len(parts)
    size = page.viewport_size
    assert size
    left = max(min(box["x"] for box in boxes) - gap, 0)
    top = max(min(box["y"] for box in boxes) - gap, 0)
    right = min(max(box["x"] + box["width"] for box in boxes) + gap, size["width"])
    bottom = min(max(box["y"] + box["height"] for box in boxes) + gap, size["height"])
    picture = page.screenshot(
        clip={"x": left, "y": top, "width": right - left, "height": bottom - top}
    )
    return Image.open(io.BytesIO(picture)).convert("RGB")


def collage(*rows: list[Image.Image]) -> Image.Image:
    """Put pictures of the same size next to each other, in rows."""
    gap = 2 * GAP
    width, height = rows[0][0].size
    columns = len(rows[0])
    whole = (columns * (width + gap) - gap, len(rows) * (height + gap) - gap)
    picture = Image.new("RGB", whole, "white")
    for y, row in enumerate(rows):
        for x, each in enumerate(row):
            picture.paste(each, (x * (width + gap), y * (height + gap)))
    return picture


def line(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Your message")


def messages(page: Page) -> Locator:
    return page.get_by_role("feed").get_by_role("article")


def header(page: Page) -> Locator:
    return page.locator("header").filter(has=page.get_by_role("textbox", name="Chat title"))


def patch(stage: Stage, path: str, changes: dict[str, Any]) -> None:
    stage.account.client.patch(path, json=changes).raise_for_status()


def spread_over_days(route: Route) -> None:
    """Answer with the chats as if they had been played on different days."""
    response = route.fetch()
    answer = response.json()
    for number, chat in enumerate(answer["items"]):
        played = datetime.fromisoformat(chat["last_message_at"]) - number * timedelta(hours=17)
        chat["last_message_at"] = chat["created_at"] = played.isoformat()
    route.fulfill(response=response, json=answer)


def test_main_views(stage: Stage) -> None:
    page, ids = stage.open(height=560), stage.ids
    page.goto("/#/characters")
    expect(page.get_by_role("link", name="Marlena").first).to_be_visible()
    stage.shoot("library", page)

    page.set_viewport_size({"width": 1280, "height": 800})
    last = stage.account.get(f"/chats/{ids['chat']}/messages", limit=1)["items"][0]
    page.goto(f"{stage.chat}?panel=context&message={last['id']}")
    expect(messages(page).last).to_contain_text("Mind the ninth step")
    page.get_by_role("button", name="Lore").last.click()
    expect(page.get_by_text("matched the key").first).to_be_visible()
    stage.shoot("inspector", page)

    page.goto(f"/#/chronicles/{ids['chronicle']}")
    expect(page.get_by_role("heading", name="The light at Saltwick", level=1)).to_be_visible()
    expect(page.get_by_role("list", name="Timeline")).to_contain_text("a silver key")
    stage.shoot("chronicle", page)

    page.goto(f"/#/lorebooks/{ids['book']}")
    page.get_by_role("button", name="Test").click()
    page.get_by_label("Test text").fill(
        "We came to Saltwick by night, and nobody would talk about the lighthouse, or the dark "
        "lamp, or the navy."
    )
    expect(page.get_by_text("4 entries activated")).to_be_visible()
    stage.shoot("lorebook", page)

    a_world(stage.account, ids["chat"])
    page.goto(f"{stage.chat}?panel=world")
    expect(messages(page).last).to_contain_text("Mind the ninth step")
    expect(page.get_by_role("list", name="Party")).to_contain_text("Tobias")
    page.get_by_role("slider").first.scroll_into_view_if_needed()
    stage.shoot("campaign", page)
    patch(stage, f"/chats/{ids['chat']}", {"campaign_id": None})
    page.context.close()


def test_lists_and_search(stage: Stage) -> None:
    patch(stage, f"/chats/{stage.ids['chat']}", {"pinned": True, "tags": ["saltwick", "sea"]})
    page = stage.open_large(820, 980, scale=1.5)
    page.route(re.compile(r"/api/v1/chats\?"), spread_over_days)
    page.goto("/")
    rows = page.locator(".talks > li")
    for each in TALE["chats"]:
        expect(page.get_by_role("main").get_by_role("link", name=each["title"])).to_be_visible()
    stage.shoot("chats", page, page.get_by_role("main").get_by_role("heading").first, rows.last)

    page.get_by_role("button", name="Select", exact=True).click()
    tools = page.get_by_role("group", name="Selected chats")
    for each in TALE["chats"][-2:]:
        page.get_by_role("checkbox", name=f"Select {each['title']}").check()
    expect(tools).to_contain_text("2 chats selected")
    page.mouse.move(0, 0)
    stage.shoot("chats-selected", page, tools, rows.nth(3))
    page.context.close()

    page = stage.open_large(800, 900, scale=1.5)
    page.goto("/")
    expect(page.locator(".talks > li").first).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search").fill("saltwick")
    expect(page.get_by_role("option").filter(has_text="A storm threw")).to_be_visible()
    stage.shoot("search", page, page.get_by_role("dialog"))
    page.context.close()


def test_composer(stage: Stage) -> None:
    page_settings = {"dismissed": OTHER_HINTS}
    patch(stage, "/me/settings", {"quick_replies": TALE["quick_replies"], "page": page_settings})
    page = stage.open_large()
    page.goto(stage.chat)
    expect(messages(page).last).to_contain_text("Mind the ninth step")
    expect(page.get_by_text(re.compile(r"next about \$"))).to_be_visible()
    stage.shoot("cost", page, header(page), gap=0)

    hint = page.get_by_role("region", name="Hint")
    composer = page.locator("form.composer")
    stage.shoot("hint", page, messages(page).last, hint, gap=0)
    hint.get_by_role("button", name="Got it").click()
    line(page).fill("I follow her down, one hand on the wall.")
    expect(page.locator(".counted")).to_have_text(re.compile(r"^\d+ tokens$"))
    row = page.get_by_role("toolbar", name="Quick replies")
    stage.shoot("quick-replies", page, row, composer)

    page.mouse.move(0, 0)
    line(page).fill("")
    line(page).press("/")
    options = page.get_by_role("listbox", name="Commands and names")
    expect(options.get_by_role("option").first).to_be_visible()
    stage.shoot("commands", page, options, composer)
    page.context.close()
    patch(stage, "/me/settings", {"quick_replies": []})


def test_appearance(stage: Stage) -> None:
    pictures: list[Image.Image] = []
    for theme, style in (
        ("light", "book"), ("dark", "bubbles"), ("sepia", "book"), ("night", "bubbles"),
    ):  # fmt: skip
        patch(stage, "/me/settings", {"page": {"theme": theme, "style": style}})
        page = stage.open(560, 620)
        page.goto(stage.chat)
        expect(messages(page).last).to_be_visible()
        pictures.append(photograph(page, page.get_by_role("region", name="Conversation"), gap=-4))
        page.context.close()
    stage.save("themes", collage(pictures[:2], pictures[2:]))
    patch(stage, "/me/settings", {"page": {"theme": "dark", "width": "narrow"}})

    background = f"/chats/{stage.ids['chat']}/background"
    picture = {"Content-Type": "image/png"}
    sent = stage.account.client.put(background, content=seascape(), headers=picture)
    assert sent.is_success, sent.text
    page = stage.open(1240, 700)
    page.goto(stage.chat)
    expect(page.locator(".backdrop")).to_be_visible()
    stage.shoot("background", page)
    page.context.close()
    stage.account.client.delete(background)
    patch(stage, "/me/settings", {"page": {"theme": "auto", "style": "book", "width": "medium"}})


def test_phone(stage: Stage) -> None:
    """The installed page. A browser's own window for installing can't be photographed."""
    page = stage.open(390, 780, color_scheme="dark", has_touch=True, is_mobile=True)
    session = page.context.new_cdp_session(page)
    standalone = [{"name": "display-mode", "value": "standalone"}]
    session.send("Emulation.setEmulatedMedia", {"features": standalone})
    page.goto("/")
    expect(page.get_by_role("main").get_by_role("link", name="Charts")).to_be_visible()
    chats = photograph(page)
    page.goto(stage.chat)
    expect(messages(page).last).to_be_visible()
    stage.save("phone", collage([chats, photograph(page)]))
    page.context.close()


def test_costs(stage: Stage) -> None:
    used = {"turns": 412, "runs": 96, "unreported": 0, "cached_tokens": 620_000}
    used |= {"prompt_tokens": 2_310_400, "completion_tokens": 148_200, "thinking_tokens": 0}
    cost = {"cost": {"amount": 4.21, "currency": "USD"}}
    models = [{**used, **cost, "model": "openai/mistral-large"}]
    month = {**used, **cost, "by_model": models, "month": "2026-11"}
    patch(stage, "/me/settings", {"page": {"monthly_limit": 5}})
    page = stage.open_large(820)
    page.route("**/usage/month", lambda route: route.fulfill(json=month))
    page.goto("/#/account")
    part = page.locator("section").filter(has=page.get_by_role("heading", name="This month"))
    expect(part.get_by_role("progressbar")).to_be_visible()
    stage.shoot("limit", page, part)
    page.context.close()
    patch(stage, "/me/settings", {"page": {"monthly_limit": None}})


def test_groups(stage: Stage) -> None:
    council = a_council(stage.account)
    captain, verne = council["Captain Ysolde Verne"], "Captain Ysolde Verne"
    monk = find_people(stage.account)["Brother Anselm"]
    page = stage.open_large(1100, 760)
    page.goto(f"/#/chats/{council['chat']}")
    expect(messages(page).last).to_contain_text("stay close to me")
    patch(stage, f"/chats/{council['chat']}/members/{monk}", {"presence": "absent"})
    page.reload()
    members = page.get_by_role("group", name="Members")
    members.get_by_role("button", name="Brother Anselm, away").click()
    stage.shoot("group-members", page, header(page), page.get_by_role("menu"))
    page.keyboard.press("Escape")

    whispers = messages(page).filter(has_text=re.compile("Whispered to|Only known to"))
    page.get_by_role("button", name="Whisper", exact=True).click()
    page.get_by_role("group", name="Only heard by:").get_by_role("button", name=verne).click()
    line(page).fill("Tonight, then. You first.")
    stage.shoot("whisper", page, whispers.first, page.locator("form.composer"))
    page.context.close()

    page = stage.open(1240, 700)
    page.goto(f"/#/chats/{council['chat']}?panel=knows&character={captain}")
    panel = page.get_by_role("complementary", name="Knowledge")
    expect(panel.get_by_role("list", name="Memories")).to_contain_text("a copy")
    stage.shoot("knows", page)
    page.context.close()


def test_messages(stage: Stage) -> None:
    page = stage.open_large()
    page.goto(stage.chat)
    shown = messages(page)
    expect(shown).to_have_count(9)
    shown.nth(6).get_by_role("button", name="More").click()
    stage.shoot("message-menu", page, shown.nth(6), page.get_by_role("menu"), shown.nth(7))
    page.get_by_role("menuitem", name="Select messages").click()
    page.get_by_label("Select message 8").click()
    bar = page.get_by_role("group", name="Actions for the selected messages")
    expect(bar).to_contain_text("2 messages selected")
    stage.shoot("messages-selected", page, shown.nth(6), shown.nth(8), bar, gap=0)

    a_picture(stage.account, stage.ids["chat"])
    page.set_viewport_size({"width": 900, "height": 1000})
    page.reload()
    expect(shown.last).to_contain_text("He drew it from memory")
    expect(shown.nth(9).get_by_role("img", name="Picture from")).to_be_visible()
    stage.shoot("picture", page, shown.nth(9), shown.last)
    page.context.close()
