"""A browser test fails where the page goes wrong: tests/support/browser.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Watch
from tests.support.process import Served

pytestmark = pytest.mark.browser


def test_errors_warnings_and_inaccessible_elements_are_seen(
    visitor: Page, server: Served, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    visitor.goto("/")
    expect(visitor.get_by_role("heading", level=1)).to_be_visible()
    visitor.evaluate("document.body.append(document.createElement('button'))")

    with pytest.raises(AssertionError, match="button-name"):
        assert_accessible(visitor)
    visitor.goto("/")
    expect(visitor.get_by_role("heading", level=1)).to_be_visible()
    assert watch.seen == []

    watch.expected.append("/no/such/file$")
    visitor.evaluate("fetch('/no/such/file')")
    assert watch.seen == []

    visitor.evaluate("fetch('/no/such/thing')")
    visitor.evaluate("fetch('https://elsewhere.example/').catch(() => {})")
    visitor.evaluate("setTimeout(() => { document.body.innerHTML = 'Hello.'; })")
    visitor.evaluate("console.warn('careful')")
    watch.expected.append("/favicon.ico$")  # a browser looks for it where a document names none
    elsewhere = server.url.replace("127.0.0.1", "localhost") + "/health"
    visitor.goto(elsewhere)

    told = "\n".join(watch.seen)
    for part in (
        "Failed to load resource",
        "Connecting to 'https://elsewhere.example/' violates the following Content Security Policy",
        "error: TypeError: Failed to set the 'innerHTML' property",
        "console warning: careful",
        f"request to another origin: {elsewhere}",
    ):
        assert part in told
    with pytest.raises(AssertionError, match="careful"):
        watch.check()
