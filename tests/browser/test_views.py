"""Every view of the page: accessible, and no wider than the screen, on phones and large screens.

    TEST_THOROUGH=1 TEST_VIEWS=FOLDER scripts/test tests/browser/test_views.py

writes a picture of each view into the folder, at several widths, light and dark.
TEST_VIEWS_ONLY=PATTERN restricts the tests to the views whose names match.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.support.browser import Account, signing_up, violations
from tests.support.tale import telling
from tests.support.thorough import THOROUGH
from tests.support.views import View, find_views
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, Scheme] = ("light", "dark")

CHEAP: list[tuple[int, Scheme]] = [(1440, "light"), (390, "dark")]
"""The widths and colours that axe-core looks at, unless the run is thorough."""

CONTRAST = "color-contrast"
"""The only rule that depends on the colours."""

LOOKS: list[tuple[int, Scheme] | tuple[int, Scheme, str]] = (
    [(1440, "light"), (1440, "dark", CONTRAST), (390, "light"), (390, "dark", CONTRAST)]
    if THOROUGH
    else [(1440, "light", CONTRAST), (390, "dark")]
)
"""The widths and colours in which axe-core looks at a view, with the rule if it is only one."""

HEIGHTS = {390: 780, 820: 1180, 1440: 900, 1920: 1080}
"""The height of the screen for each width in CSS pixels."""

FAILED = ("nowhere", "failed")
"""Views that show an error."""

NARROWEST = 320
"""The width at which text may not be cut off: a window of 1,280 pixels at a zoom of 400%."""

DEBOUNCE = 500
"""Milliseconds after which the page has sent a typed text."""

CURRENT = """document.querySelector(".tabs > [aria-current], .tabs > [aria-selected=true]")
  ?.scrollIntoView({ block: "nearest", inline: "center" })"""
"""Scroll to the current tab, as the page does when it shows tabs."""

TEXT_SIZE = "(size) => { document.documentElement.style.fontSize = size }"
"""Set the size that all other sizes of text depend on."""

OVERFLOW = """() => [...document.querySelectorAll(
    "html, main, main > *, .panel, .panel .body, dialog[open]")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1 && box.clientWidth > 1)
  .map((box) => `${box.localName}.${box.className}: ${box.scrollWidth} in ${box.clientWidth}`)"""


@dataclass
class Stage:
    """A server, its accounts by name, and the views."""

    url: str
    accounts: dict[str, Account]
    views: dict[str, View]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    """A server with an account that has a tale, and one that has nothing."""
    with (
        telling(tmp_path_factory.mktemp("views")) as url,
        signing_up(url, "Ada") as reader,
        signing_up(url, "Bea") as newcomer,
    ):
        accounts = {each.name: each for each in (reader, newcomer)}
        only = os.environ.get("TEST_VIEWS_ONLY", "")  # noqa: TID251  no setting of the program's
        views = find_views(reader, newcomer)
        shown = {name: view for name, view in views.items() if re.search(only, name)}
        yield Stage(url, accounts, shown)


@dataclass
class Visit:
    """A tab that shows one view after another."""

    page: Page
    shown: View | None = None
    open_requests: set[Request] = field(default_factory=set[Request])

    def __post_init__(self) -> None:
        self.page.on("request", self._begin)
        self.page.on("requestfinished", self._end)
        self.page.on("requestfailed", self._end)

    def _begin(self, request: Request) -> None:
        self.open_requests.add(request)

    def _end(self, request: Request) -> None:
        self.open_requests.discard(request)

    def show(self, view: View) -> None:
        """Open a view, and wait until it has loaded everything that it shows.

        The page is loaded again only if something was opened in it, because that takes a second.
        """
        page, before, self.shown = self.page, self.shown, view
        if before is None or before.act or view.act:
            page.goto("about:blank")
            # The end of a request that a navigation cancels is not always reported.
            self.open_requests.clear()
            page.goto(view.address)
        else:
            page.locator("main > *").evaluate("(left) => left.classList.add('left')")
            page.goto(view.address)
            if before.address.partition("?")[0] != view.address.partition("?")[0]:
                page.locator("main > .left").wait_for(state="detached")
        page.locator("h1, main [role=alert]").first.wait_for(state="attached")
        self.wait()
        if view.act:
            view.act(page)
            page.wait_for_timeout(DEBOUNCE)
            self.wait()
        if view.ready:
            page.locator(view.ready).first.wait_for()
            self.wait()
        page.evaluate("document.fonts.ready")

    def wait(self) -> None:
        """Wait until no request is open, and nothing is loading."""
        expect(self.page.get_by_text("Loading…")).to_have_count(0)
        quiet = 0
        while quiet < 3:
            quiet = 0 if self.open_requests else quiet + 1
            self.page.wait_for_timeout(20)

    def look(self, width: int, scheme: Scheme | None = None) -> None:
        """Change the size of the window, and the colours."""
        self.page.set_viewport_size({"width": width, "height": HEIGHTS.get(width, HEIGHTS[390])})
        self.page.emulate_media(color_scheme=scheme)
        self.page.evaluate(CURRENT)


def visit_all(
    browser: Browser, stage: Stage, views: dict[str, View], **options: float
) -> Generator[tuple[str, Visit]]:
    """Show each view, in a tab of its account."""
    for reader in dict.fromkeys(view.reader for view in views.values()):
        context = browser.new_context(
            base_url=stage.url, reduced_motion="reduce", service_workers="block",
            viewport={"width": 1440, "height": 900}, **options,  # type: ignore[arg-type]
        )  # fmt: skip
        context.set_default_timeout(PATIENCE * 1000)
        if reader:
            stage.accounts[reader].enter(context)
        visit = Visit(context.new_page())
        for name, view in views.items():
            if view.reader == reader:
                visit.show(view)
                yield name, visit
        context.close()


def check(browser: Browser, stage: Stage, views: dict[str, View], axe: str) -> list[str]:
    """Return the elements of these views that are inaccessible or wider than the screen."""
    found: list[str] = []
    for name, visit in visit_all(browser, stage, views):
        if name not in FAILED:
            expect(visit.page.locator("main .empty[role=alert], .toast.error")).to_have_count(0)
        for width, scheme, *rules in LOOKS:
            visit.look(width, scheme)
            those = violations(visit.page, axe, *rules)
            found += [f"{name}, {width}, {scheme}: {each}" for each in those]
        for width in (390, NARROWEST):
            visit.look(width)
            found += [f"{name}, {width}: {each}" for each in visit.page.evaluate(OVERFLOW)]
        visit.look(1440)
        visit.page.evaluate(TEXT_SIZE, "200%")
        found += [f"{name}, large text: {each}" for each in visit.page.evaluate(OVERFLOW)]
        visit.page.evaluate(TEXT_SIZE, "")
    return found


def test_every_view_is_accessible_and_fits_the_screen(
    chromium: Browser, stage: Stage, axe: str
) -> None:
    opened = {name: view for name, view in stage.views.items() if THOROUGH or not view.act}
    found = check(chromium, stage, opened, axe)
    assert not found, "\n".join(found)


@pytest.mark.thorough
def test_every_view_has_pictures(
    chromium_with_scrollbars: Browser, stage: Stage, tmp_path: Path
) -> None:
    wanted = os.environ.get("TEST_VIEWS")  # noqa: TID251  no setting of the program's
    folder = Path(wanted) if wanted else tmp_path / "views"
    folder.mkdir(parents=True, exist_ok=True)
    for name, visit in visit_all(chromium_with_scrollbars, stage, stage.views):
        for width, scheme in product(HEIGHTS, SCHEMES):
            visit.look(width, scheme)
            file = folder / f"{name.replace('/', '-')}-{width}-{scheme}.png"
            visit.page.screenshot(path=file)
            assert file.stat().st_size > 5_000, f"{file.name} shows nothing"
        visit.look(1440)
