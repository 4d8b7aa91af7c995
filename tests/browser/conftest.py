"""The page in a real Chromium, before a server that runs as people run it.

Tests have the marker `browser`, and are plain functions: Playwright's synchronous interface does
not run inside an event loop. A test fails, whatever else it looks at, where the page had an error
or a warning in the console, or sent a request to another origin.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from itertools import count

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.browser import (
    FLAGS,
    Account,
    Watch,
    find_chromium,
    get_axe,
    signing_up,
    violations,
)
from tests.support.process import Served, serving
from tests.support.waiting import PATIENCE

_numbers = count(1)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The path of the Chromium to test with."""
    path = find_chromium(os.environ.get("TEST_CHROMIUM"))  # noqa: TID251  no setting of the program's
    if path is None:
        pytest.skip("no Chromium here: install it, or name one in TEST_CHROMIUM")
    return path


@pytest.fixture(scope="module")
def chromium(request: pytest.FixtureRequest, chromium_path: str) -> Generator[Browser]:
    """A Chromium, for one module's tests.

    For no longer: as long as Playwright is there, its event loop counts as running in this thread,
    and no test with a loop of its own could run.
    """
    assert request.node.get_closest_marker("browser"), "pytestmark = pytest.mark.browser"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=list(FLAGS))
        expect.set_options(timeout=PATIENCE * 1000)
        yield browser
        browser.close()


@pytest.fixture
def chromium_with_scrollbars(chromium: Browser, chromium_path: str) -> Generator[Browser]:
    """A Chromium whose scrollbars take room, as on Windows. Playwright hides them by default."""
    browser = chromium.browser_type.launch(
        executable_path=chromium_path,
        args=list(FLAGS),
        ignore_default_args=["--hide-scrollbars"],
    )
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """A server where everybody may sign up, with the demo model at full speed."""
    folder = tmp_path_factory.mktemp("served")
    with serving(folder, registration="open", demo_tokens_per_second="0") as served:
        yield served


@pytest.fixture
def account(server: Served) -> Generator[Account]:
    """Somebody who has just signed up: what a test needs to be there, it makes as them."""
    with signing_up(server.url, f"reader{next(_numbers)}") as account:
        yield account


@pytest.fixture
def watch(server: Served) -> Watch:
    """What the page must not do. Requests that may fail are told to it:
    `watch.expected.append("/characters/.*/image")`.
    """
    return Watch(server.url)


@pytest.fixture
def context(chromium: Browser, server: Served, watch: Watch) -> Generator[BrowserContext]:
    """A browser with nothing in it. Nothing moves in it either, so that tests need not wait."""
    context = chromium.new_context(base_url=server.url, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE * 1000)
    watch.over(context)
    yield context
    context.close()
    watch.check()


@pytest.fixture
def visitor(context: BrowserContext) -> Page:
    """A tab of somebody who has no account yet, at no address yet."""
    return context.new_page()


@pytest.fixture
def page(context: BrowserContext, account: Account) -> Page:
    """A tab of the account's owner, signed in, at no address yet: `page.goto("/#/characters")`."""
    account.enter(context)
    return context.new_page()


@pytest.fixture(scope="session")
def axe(pytestconfig: pytest.Config) -> str:
    """axe-core's source, fetched once and kept in pytest's cache."""
    try:
        return get_axe(pytestconfig.cache.mkdir("axe"))
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture
def assert_accessible(axe: str) -> Callable[[Page], None]:
    """Fails where axe-core finds something serious or critical in what the page shows now."""

    def check(page: Page) -> None:
        found = violations(page, axe)
        assert not found, f"{page.url} is not accessible:\n" + "\n".join(found)

    return check
