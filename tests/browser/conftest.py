"""The page in a real Chromium, before a server that runs as people run it.

Tests have the marker `browser`, and are plain functions: Playwright's synchronous interface does
not run inside an event loop. Each test also fails if the page logs an error or a warning to the
console, or sends a request to another origin.

A worker starts one Chromium and one server for all of these tests, and a module has one browser
context: the page's 110 modules are fetched and compiled once. Each test gets a new tab and a new
account, without the cookies and the stored texts of the test before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from itertools import count

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.fakes.openai_server import OpenAIServer
from tests.support.browser import (
    FLAGS,
    Account,
    Installation,
    Watch,
    empty,
    find_chromium,
    get_axe,
    installing,
    signing_up,
    violations,
)
from tests.support.process import Served
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
def chromium(chromium_path: str) -> Generator[Browser]:
    """One Chromium for the tests of a module.

    It ends with them, because Playwright's event loop counts as running in this thread as long as
    Playwright exists. Tests with their own loop could not run.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=list(FLAGS))
        expect.set_options(timeout=PATIENCE * 1000)
        yield browser
        browser.close()


@pytest.fixture
def chromium_with_scrollbars(chromium: Browser, chromium_path: str) -> Generator[Browser]:
    """A Chromium with scrollbars that take up space, as on Windows. Playwright hides them."""
    browser = chromium.browser_type.launch(
        executable_path=chromium_path, args=list(FLAGS), ignore_default_args=["--hide-scrollbars"]
    )
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Generator[Installation]:
    """A server with open sign-up and the demo model at full speed.

    A module that needs other settings overrides this fixture, with the scope "module".
    """
    settings = {"registration": "open", "demo_tokens_per_second": "0", "index_delay_seconds": "0"}
    with installing(tmp_path_factory.mktemp("served"), **settings) as installation:
        yield installation


@pytest.fixture(scope="module")
def server(installation: Installation) -> Served:
    """The server of the module's tests."""
    return installation.server


@pytest.fixture(scope="module")
def administrator(installation: Installation) -> Account:
    """The server's first account."""
    return installation.administrator


@pytest.fixture(scope="module")
def portal() -> Generator[BlockingPortal]:
    """The event loop of the fake providers."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def model(portal: BlockingPortal) -> Generator[OpenAIServer]:
    """An OpenAI-compatible server that no provider names yet."""
    with portal.wrap_async_context_manager(OpenAIServer()) as model:
        yield model


@pytest.fixture
def account(server: Served) -> Generator[Account]:
    """A new account. Tests create their data through it."""
    with signing_up(server.url, f"reader{next(_numbers)}") as account:
        yield account


@pytest.fixture
def watch(server: Served) -> Watch:
    """Watch for errors and forbidden requests of the page.

    Add patterns of requests that may fail: `watch.expected.append("/characters/.*/image")`.
    """
    return Watch(server.url)


@pytest.fixture(scope="module")
def shared_context(chromium: Browser, server: Served) -> Generator[BrowserContext]:
    """The browser context of a module. Animations are off, so that tests need not wait for them.

    Service workers are off, because they would answer requests that a test intercepts.
    """
    context = chromium.new_context(
        base_url=server.url, reduced_motion="reduce", service_workers="block"
    )
    context.set_default_timeout(PATIENCE * 1000)
    yield context
    context.close()


@pytest.fixture
def context(shared_context: BrowserContext, watch: Watch) -> Generator[BrowserContext]:
    """The module's context for one test: without cookies, stored texts and tabs of another one."""
    with watch.over(shared_context):
        yield shared_context
        empty(shared_context, watch.origin)
    watch.check()


@pytest.fixture
def visitor(context: BrowserContext) -> Page:
    """A tab of a visitor without an account, at no address yet."""
    return context.new_page()


@pytest.fixture
def page(context: BrowserContext, account: Account) -> Page:
    """A tab of the account's owner, signed in, at no address yet: `page.goto("/#/characters")`."""
    account.enter(context)
    return context.new_page()


@pytest.fixture(scope="session")
def axe(pytestconfig: pytest.Config) -> str:
    """axe-core's source, downloaded once and kept in pytest's cache."""
    try:
        return get_axe(pytestconfig.cache.mkdir("axe"))
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture
def assert_accessible(axe: str) -> Callable[[Page], None]:
    """Fail if axe-core finds a serious or critical problem in the current page."""

    def check(page: Page) -> None:
        found = violations(page, axe)
        assert not found, f"{page.url} is not accessible:\n" + "\n".join(found)

    return check
