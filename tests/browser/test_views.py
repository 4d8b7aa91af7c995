"""Every view of the page: accessible, and no wider than the screen, on phones and large screens.

    TEST_THOROUGH=1 TEST_VIEWS=FOLDER scripts/test tests/browser/test_views.py

writes a picture of each view into the folder, at several widths, light and dark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from backend.web.controller import FOLDER
from tests.support.browser import Account, signing_up, violations
from tests.support.tale import a_tale, a_world, people, telling

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCREENS: tuple[tuple[int, Literal["light", "dark"]], ...] = ((1440, "light"), (390, "dark"))
"""Widths and colour schemes in which each view is checked."""

HEIGHTS = {390: 780, 820: 1180, 1440: 900, 1920: 1080}
"""The height of the screen for each width in CSS pixels."""

NARROWEST = 320
"""The width at which text may not be cut off: a window of 1,280 pixels at a zoom of 400%."""

PANELS = ("members", "find", "world", "context", "settings")
"""Panels of a chat."""

OVERFLOW = """() => [...document.querySelectorAll("html, main, main > *, .panel, .panel .body")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1 && box.clientWidth > 1
    && !/auto|scroll/.test(getComputedStyle(box).overflowX))
  .map((box) => `${box.localName}.${box.className}: ${box.scrollWidth} in ${box.clientWidth}`)"""


@pytest.fixture(scope="module")
def addresses_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[tuple[str, Account, dict[str, str]]]:
    """A server, an account with a tale, and the address of each view by its name."""
    with telling(tmp_path_factory.mktemp("views")) as url, signing_up(url, "Ada") as account:
        yield url, account, find_addresses(account)


def find_addresses(account: Account) -> dict[str, str]:
    """The address of every view of main.js, with data in it; also of panels and of parts."""
    marlena = people(account)
    ids = a_tale(account, marlena)
    campaign = a_world(account, ids["chat"])
    preset = account.post("/presets", {"name": "Slow and dark"})["id"]
    id_of = {
        "chats": ids["chat"],
        "characters": marlena,
        "lorebooks": ids["book"],
        "memory": ids["chat"],
        "chronicles": ids["chronicle"],
        "campaigns": campaign,
        "presets": preset,
    }
    source = (FOLDER / "main.js").read_text(encoding="utf-8")
    found = {
        name or "start": f"/#/{name}".replace("/id", f"/{id_of.get(name.partition('/')[0])}")
        for name in re.findall(r"^ {2}\[\"([\w/]*)\", \[\"", source, re.MULTILINE)
        if name != "imports/id"  # a finished import has its own test
    }
    assert len(found) > 20
    entry = account.get(f"/lorebooks/{ids['book']}/entries")["items"][0]["id"]
    for part in (entry, "test", "settings"):
        found[f"lorebooks-{'entry' if part == entry else part}"] = (
            f"/#/lorebooks/{ids['book']}?entry={part}"
        )
    for panel in PANELS:
        found[f"chats-{panel}"] = f"/#/chats/{ids['chat']}?panel={panel}"
    return found


def show(page: Page, address: str) -> None:
    """Open a view, and wait until it has loaded everything that it shows."""
    page.goto("about:blank")
    page.goto(address)
    page.locator("main h1").first.wait_for(state="attached")
    page.wait_for_load_state("networkidle")
    page.evaluate("document.fonts.ready")
    expect(page.locator("main .empty[role=alert], .toast.error")).to_have_count(0)


def test_every_view_is_accessible_and_fits_the_screen(
    chromium: Browser, addresses_of: tuple[str, Account, dict[str, str]], axe: str
) -> None:
    url, account, addresses = addresses_of
    context = chromium.new_context(base_url=url, reduced_motion="reduce", service_workers="block")
    account.enter(context)
    page = context.new_page()
    found: list[str] = []
    for name, address in addresses.items():
        show(page, address)
        for width, scheme in SCREENS:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": HEIGHTS[width]})
            found += [f"{name}, {width}, {scheme}: {each}" for each in violations(page, axe)]
        for width in (390, NARROWEST):
            page.set_viewport_size({"width": width, "height": HEIGHTS[390]})
            found += [f"{name}, {width}: {each}" for each in page.evaluate(OVERFLOW)]
    context.close()
    assert not found, "\n".join(found)


@pytest.mark.thorough
def test_every_view_has_pictures(
    chromium_with_scrollbars: Browser,
    addresses_of: tuple[str, Account, dict[str, str]],
    tmp_path: Path,
) -> None:
    url, account, addresses = addresses_of
    wanted = os.environ.get("TEST_VIEWS")  # noqa: TID251  no setting of the program's
    folder = Path(wanted) if wanted else tmp_path / "views"
    folder.mkdir(parents=True, exist_ok=True)
    context = chromium_with_scrollbars.new_context(base_url=url, reduced_motion="reduce")
    account.enter(context)
    page = context.new_page()
    for name, address in addresses.items():
        for width, height in HEIGHTS.items():
            page.set_viewport_size({"width": width, "height": height})
            show(page, address)
            for _, scheme in SCREENS:
                page.emulate_media(color_scheme=scheme)
                file = folder / f"{name.replace('/', '-')}-{width}-{scheme}.png"
                page.screenshot(path=file)
                assert file.stat().st_size > 5_000, f"{file.name} shows nothing"
    context.close()
