"""The main views as the README and the tour show them.

    TEST_THOROUGH=1 TEST_SCREENSHOTS=1 scripts/test tests/browser/test_screenshots.py

writes them into docs/screenshots/. Without it they are made all the same, and thrown away.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.browser import Account, signing_up
from tests.support.tale import a_tale, a_world, people, telling

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.thorough]

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def keep(tmp_path: Path) -> Path:
    """The folder that the pictures go to."""
    wanted = os.environ.get("TEST_SCREENSHOTS")  # noqa: TID251  no setting of the program's
    folder = DOCS / "screenshots" if wanted else tmp_path / "screenshots"
    folder.mkdir(exist_ok=True)
    return folder


def shoot(page: Page, path: Path) -> None:
    """A picture of the page in 256 colours, which takes a third of the bytes."""
    page.wait_for_load_state("networkidle")
    page.evaluate("document.fonts.ready")
    picture = Image.open(io.BytesIO(page.screenshot()))
    assert len(picture.convert("RGB").getcolors(2**24) or []) > 100, f"{path.name} shows nothing"
    picture.convert("RGB").quantize(256).save(path, optimize=True)


def test_the_main_views_have_their_pictures(chromium: Browser, tmp_path: Path, keep: Path) -> None:
    with telling(tmp_path) as url, signing_up(url, "Ada") as account:
        context = chromium.new_context(
            base_url=url, reduced_motion="reduce", viewport={"width": 1280, "height": 800}
        )
        marlena = people(account)
        ids = a_tale(account, marlena)
        account.enter(context)
        page = context.new_page()

        page.goto("/#/characters")
        expect(page.get_by_role("link", name="Marlena").first).to_be_visible()
        shoot(page, keep / "library.png")

        show_context(page, ids["chat"])
        shoot(page, keep / "inspector.png")

        page.goto(f"/#/chronicles/{ids['chronicle']}")
        expect(page.get_by_role("heading", name="The light at Saltwick", level=1)).to_be_visible()
        expect(page.get_by_role("list", name="Timeline")).to_contain_text("a silver key")
        shoot(page, keep / "chronicle.png")

        show_tester(page, ids["book"])
        shoot(page, keep / "lorebook.png")
        show_world(page, account, ids["chat"])
        shoot(page, keep / "campaign.png")
        context.close()

        small = on_a_phone(chromium, url, account)
        small.goto(f"/#/chats/{ids['chat']}")
        expect(small.get_by_role("article").last).to_contain_text("Mind the ninth step")
        shoot(small, keep / "phone.png")
        small.context.close()


def show_context(page: Page, chat: str) -> None:
    """The last reply and the prompt inspector."""
    last = page.request.get(f"/api/v1/chats/{chat}/messages?limit=1").json()["items"][0]
    page.goto(f"/#/chats/{chat}?panel=context&message={last['id']}")
    expect(page.get_by_role("article").last).to_contain_text("Mind the ninth step")
    page.get_by_role("button", name="Lore").last.click()
    expect(page.get_by_text("matched the key").first).to_be_visible()


def show_world(page: Page, account: Account, chat: str) -> None:
    """The last reply and the world panel."""
    a_world(account, chat)
    page.goto(f"/#/chats/{chat}?panel=world")
    expect(page.get_by_role("article").last).to_contain_text("Mind the ninth step")
    expect(page.get_by_role("list", name="Party")).to_contain_text("Tobias")
    page.get_by_role("slider").first.scroll_into_view_if_needed()


def show_tester(page: Page, book: str) -> None:
    """A lorebook with the result of its tester."""
    page.goto(f"/#/lorebooks/{book}")
    page.get_by_role("button", name="Test").click()
    page.get_by_label("Test text").fill(
        "We came to Saltwick by night, and nobody would talk about the lighthouse, or the dark "
        "lamp, or the navy."
    )
    expect(page.get_by_text("activated").first).to_be_visible()


def on_a_phone(chromium: Browser, url: str, account: Account) -> Page:
    context: BrowserContext = chromium.new_context(
        base_url=url, color_scheme="dark", reduced_motion="reduce", has_touch=True,
        viewport={"width": 390, "height": 780}, device_scale_factor=1.5,
    )  # fmt: skip
    account.enter(context)
    return context.new_page()
