"""Second factors in the page: an app's QR code, one-time codes, passkeys; and recent activity."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
import zxingcpp
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from pyotp.totp import TOTP

from tests.support.browser import Account, Watch, dark
from tests.support.process import Served
from tests.support.server import PASSWORD
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.browser

REFUSED = ["/api/v1/sessions$", "/api/v1/me/second-factors", "/api/v1/tokens$", "/api/v1/jobs$"]
"""Requests that a second factor is asked for with, and what a page that is signed out asks."""


def read_qr(code: Locator) -> str:
    """The text of the QR code on the page."""
    picture = Image.open(io.BytesIO(code.screenshot()))
    (found,) = zxingcpp.read_barcodes(picture)
    return found.text


def next_code(secret: str) -> str:
    """A code that no earlier one is as young as."""
    return TOTP(secret).at(datetime.now(UTC) + timedelta(seconds=30))


def begin(page: Page, what: str) -> Locator:
    """Open a dialog of the account's, and say the password."""
    page.goto("/#/security")
    page.get_by_role("button", name=what).click()
    box = page.get_by_role("dialog", name=what)
    box.get_by_label("Password", exact=True).fill(PASSWORD)
    return box


def shown_once(box: Locator) -> Locator:
    return box.get_by_role("status").filter(has_text=re.compile(r"\w"))


def keep_codes(box: Locator) -> list[str]:
    codes = shown_once(box).inner_text().split()
    assert len(codes) == 10
    box.get_by_role("checkbox", name="I have saved it").check()
    box.get_by_role("button", name="Continue").click()
    expect(box).to_be_hidden()
    return codes


def sign_out(page: Page) -> None:
    # Nothing is under way that would be told that it is signed out.
    page.goto("/#/account")
    expect(page.get_by_role("listitem").filter(has_text="Storage")).to_be_visible()
    page.wait_for_load_state("networkidle")
    with page.expect_event("load"):
        page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def say_password(page: Page, name: str) -> None:
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Second factor")).to_be_visible()


def say_code(page: Page, code: str) -> None:
    """With the keyboard alone: the field has the focus, unless there is a passkey to use."""
    page.get_by_label("Code").fill(code)
    page.keyboard.press("Enter")


def expect_inside(page: Page) -> None:
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()


def expect_refused(page: Page) -> None:
    refusal = page.get_by_role("alert").filter(has_text="Incorrect code or passkey")
    expect(refusal).to_be_visible()


def test_an_app_signs_in_and_is_removed_with_a_code(
    page: Page, account: Account, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    watch.expected += REFUSED
    dark(page)  # the code is dark on light all the same
    box = begin(page, "Set up an app")
    box.get_by_role("button", name="Set up an app").click()
    code = box.get_by_role("img", name="QR code for the app")
    expect(code).to_be_visible()
    uri = read_qr(code)
    assert uri == box.get_by_role("link", name="Open the app on this device").get_attribute("href")
    (secret,) = parse_qs(urlsplit(uri).query)["secret"]
    assert secret == shown_once(box).inner_text()
    assert_accessible(page)
    used = TOTP(secret).now()
    box.get_by_label("Code from the app").fill(used)
    box.get_by_role("button", name="Turn on").click()
    expect(box.get_by_role("button", name="Print")).to_be_visible()
    assert_accessible(page)
    one_time = keep_codes(box)
    expect(page.get_by_text("10 left")).to_be_visible()
    assert_accessible(page)

    sign_out(page)
    say_password(page, account.name)
    assert_accessible(page)
    expect(page.get_by_label("Code")).to_be_focused()
    say_code(page, used)
    expect_refused(page)
    say_code(page, next_code(secret))
    expect_inside(page)

    sign_out(page)
    say_password(page, account.name)
    say_code(page, one_time[0].lower())
    expect_inside(page)
    sign_out(page)
    say_password(page, account.name)
    say_code(page, one_time[0])
    expect_refused(page)
    say_code(page, one_time[1])
    expect_inside(page)

    page.goto("/#/security")
    expect(page.get_by_text("8 left")).to_be_visible()
    recent = page.locator("section").filter(has=page.get_by_role("heading", name="Recent activity"))
    expect(recent.get_by_text("Second factor added: authenticator app")).to_be_visible()
    expect(recent.get_by_text("wrong second factor (2 ×)")).to_be_visible()
    expect(recent.get_by_text("Signed in", exact=True)).to_have_count(3)
    expect(recent.get_by_text("Chrome on Linux, 127.0.0.1").first).to_be_visible()
    assert_accessible(page)

    page.get_by_role("button", name="Remove: Authenticator app").click()
    box = page.get_by_role("dialog", name="Remove")
    box.get_by_label("Password", exact=True).fill(PASSWORD)
    box.get_by_role("button", name="Remove").click()
    box.get_by_label("Code").fill(one_time[2])
    box.get_by_role("button", name="Continue").click()
    expect(box).to_be_hidden()
    expect(page.get_by_text("Authenticator app", exact=True)).to_have_count(0)
    assert page.request.get("/api/v1/me/second-factors").json()["totp"] is None


@pytest.fixture
def named(chromium: Browser, server: Served) -> Generator[BrowserContext]:
    """A browser that opens the server by a name: addresses have no passkeys."""
    url = server.url.replace("127.0.0.1", "localhost")
    watch = Watch(url, expected=REFUSED.copy())
    context = chromium.new_context(base_url=url, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE * 1000)
    with watch.over(context):
        yield context
        context.close()
    watch.check()


def with_security_key(page: Page) -> None:
    """Give the tab an authenticator that always says yes."""
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    session.send("WebAuthn.addVirtualAuthenticator", {"options": options})


def test_a_passkey_is_added_signs_in_and_goes(
    named: BrowserContext, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    page = named.new_page()
    with_security_key(page)
    page.goto("/")
    page.get_by_label("Username").fill(account.name)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.keyboard.press("Enter")
    expect_inside(page)

    box = begin(page, "Add a passkey")
    box.get_by_label("Name").fill("This computer")
    box.get_by_role("button", name="Add a passkey").click()
    keep_codes(box)
    expect(page.get_by_text("This computer")).to_be_visible()

    sign_out(page)
    say_password(page, account.name)
    use = page.get_by_role("button", name="Use a passkey")
    expect(use).to_be_focused()
    assert_accessible(page)
    page.keyboard.press("Enter")
    expect_inside(page)

    page.goto("/#/security")
    page.get_by_role("button", name="Rename: This computer").click()
    page.get_by_role("dialog").get_by_label("Name").fill("Old laptop")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    page.get_by_role("button", name="Remove: Old laptop").click()
    box = page.get_by_role("dialog", name="Remove")
    box.get_by_label("Password", exact=True).fill(PASSWORD)
    box.get_by_role("button", name="Remove").click()
    box.get_by_role("button", name="Use a passkey").click()
    expect(box).to_be_hidden()
    page.reload()
    expect(page.get_by_text("Second factor removed: Old laptop")).to_be_visible()
    expect(page.get_by_text("Second factor added: This computer")).to_be_visible()
    sign_out(page)


def test_at_an_address_the_page_says_where_passkeys_work(
    page: Page, account: Account, watch: Watch
) -> None:
    watch.expected += REFUSED
    box = begin(page, "Add a passkey")
    box.get_by_label("Name").fill("This computer")
    box.get_by_role("button", name="Add a passkey").click()
    told = box.get_by_role("alert").filter(has_text="open http://localhost")
    expect(told).to_be_visible()
