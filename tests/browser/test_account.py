"""Sign-up, sign-in, recovery and the account page."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Account, Watch, finish_deletion, phone
from tests.support.server import PASSWORD

pytestmark = pytest.mark.browser


def keep_the_code(page: Page) -> str:
    """Say that the recovery code is kept, and go on into the house."""
    expect(page.get_by_role("heading", name="Save your recovery code")).to_be_focused()
    code = page.get_by_role("status").filter(has_text="-").inner_text()
    go_on = page.get_by_role("button", name="Continue")
    expect(go_on).to_be_disabled()
    page.get_by_role("checkbox", name="I have saved it").check()
    go_on.click()
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    return "".join(code.split())


def test_somebody_new_is_told_what_a_password_takes_and_keeps_the_recovery_code(
    visitor: Page, watch: Watch
) -> None:
    watch.expected.append("/api/v1/accounts$")
    visitor.goto("/")
    visitor.get_by_role("button", name="Create account").click()
    visitor.get_by_label("Username").fill(f"Ada {uuid4().hex[:8]}")
    password = visitor.get_by_label("Password", exact=True)
    password.fill("short")
    visitor.get_by_role("button", name="Create account").click()
    expect(visitor.get_by_role("alert").filter(has_text="at least 8 characters")).to_be_visible()
    password.fill(PASSWORD)
    visitor.get_by_role("button", name="Show password").click()
    expect(password).to_have_attribute("type", "text")
    visitor.get_by_role("button", name="Create account").click()

    code = keep_the_code(visitor)

    kept = visitor.url + visitor.evaluate("JSON.stringify(localStorage)")
    assert code not in kept
    assert PASSWORD not in kept


def test_who_lost_the_password_comes_back_with_the_code(
    visitor: Page, account: Account, watch: Watch
) -> None:
    watch.expected.append("/api/v1/tokens$")  # the fields' tokens may be counted after the session
    watch.expected.append("/api/v1/sessions/current$")
    phone(visitor)
    visitor.goto("/#/account")
    visitor.get_by_role("button", name="Forgot your password?").click()
    visitor.get_by_label("Username").fill(account.name)
    visitor.get_by_label("Recovery code").fill(account.recovery_code)
    visitor.get_by_label("New password").fill("lanterns over the quay")
    visitor.get_by_role("button", name="Continue").click()
    assert keep_the_code(visitor) != account.recovery_code

    # To where they wanted to go, and out again, but not without their drafts' being told of.
    expect(visitor.get_by_role("heading", name=account.name)).to_be_visible()
    visitor.goto("/#/chronicles")
    visitor.get_by_role("button", name="New chronicle").click()
    visitor.get_by_role("dialog").get_by_label("Name").fill("The long winter")
    visitor.keyboard.press("Escape")
    visitor.goto("/#/account")
    sign_out = visitor.get_by_role("button", name="Sign out")
    # The drafts stay if the server cannot be reached.
    visitor.route("**/sessions/current", lambda route: route.abort())
    sign_out.click()
    expect(visitor.get_by_text("Your unsent and unsaved text")).to_be_visible()
    visitor.get_by_role("button", name="Now", exact=True).click()
    expect(sign_out).to_be_enabled()
    visitor.unroute("**/sessions/current")
    sign_out.click()
    expect(visitor.get_by_text("Your unsent and unsaved text")).to_be_visible()
    with visitor.expect_navigation():
        finish_deletion(visitor, button="Now")
    expect(visitor.get_by_role("heading", name="Sign in")).to_be_visible()
    assert "winter" not in visitor.evaluate("JSON.stringify(localStorage)")


def test_whose_session_ended_comes_back_to_what_they_were_typing(
    page: Page, account: Account, watch: Watch
) -> None:
    watch.expected += ["/api/v1/me/settings$", "/api/v1/tokens$", "/api/v1/jobs$"]
    page.goto("/#/settings")
    text = page.get_by_label("Instructions for the model")
    expect(text).to_be_visible()
    page.wait_for_load_state("networkidle")  # else what still loads finds out before the line does
    page.context.clear_cookies()
    with page.expect_response(lambda answer: answer.url.endswith("/me/settings")) as refused:
        text.fill("Be brief.")
    assert refused.value.status == 401
    door = page.get_by_role("dialog", name="Sign in")
    expect(door).to_contain_text("You have been signed out.")
    page.keyboard.press("Escape")
    door.get_by_label("Username").fill(account.name)
    door.get_by_label("Password", exact=True).fill(PASSWORD)
    door.get_by_role("button", name="Sign in").click()

    expect(door).to_be_hidden()
    expect(text).to_have_value("Be brief.")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    assert account.get("/me/settings")["system_prompt"] == "Be brief."


def test_keys_are_rotated_and_an_api_key_is_shown_once_and_ended(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto("/#/security")
    page.get_by_role("button", name="Rotate encryption keys").click()
    dialog = page.get_by_role("dialog")
    assert_accessible(page)
    dialog.get_by_label("Password", exact=True).fill(PASSWORD)
    dialog.get_by_role("button", name="Rotate encryption keys").click()

    expect(page.get_by_text("Your encryption keys were rotated.")).to_be_visible()
    expect(dialog).to_be_hidden()
    page.reload()
    expect(page.get_by_role("button", name="Rotate encryption keys")).to_be_visible()
    assert account.get("/me")["username"]

    page = page.context.new_page()
    page.goto("/#/security")
    page.get_by_role("button", name="Create API key").click()
    page.get_by_label("Label").fill("A script of mine")
    page.get_by_label("Permission").select_option("read")
    page.get_by_role("dialog").get_by_role("button", name="Create API key").click()
    expect(page.get_by_role("dialog").get_by_text("tk_")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    end = page.get_by_role("button", name="End “A script of mine”")
    expect(end).to_be_visible()
    assert_accessible(page)
    end.click()
    expect(end).to_be_hidden()
    page.get_by_role("button", name="Undo").click()
    expect(end).to_be_visible()
    end.click()
    expect(page.get_by_text("A script of mine loses access in 10 seconds.")).to_be_visible()
    finish_deletion(page, button="Now")
    assert account.get("/api-keys")["items"] == []


def test_settings_are_found_from_a_chat_and_saved_as_they_are_typed(
    page: Page, account: Account
) -> None:
    page.goto(f"/#/chats/{account.new_chat()['id']}?panel=settings")
    panel = page.get_by_role("complementary", name="Settings")
    for place in ("Models", "Prompt presets", "Regex scripts"):
        expect(panel.get_by_role("link", name=place, exact=True)).to_be_visible()
    panel.get_by_role("link", name="General").click()
    expect(page.get_by_role("heading", name="Settings", level=1)).to_be_visible()

    phone(page)
    tabs = page.get_by_role("navigation", name="Settings")
    tabs.get_by_role("link", name="Security").click()
    expect(page.get_by_role("button", name="Change password")).to_be_visible()
    # The row is wider than the screen, and shows the place where one is.
    expect(tabs.get_by_role("link", name="Security")).to_be_in_viewport(ratio=0.98)
    assert tabs.evaluate("row => row.scrollLeft") > 0
    page.get_by_role("link", name="Settings", exact=True).click()
    expect(tabs.get_by_role("link", name="General")).to_be_in_viewport(ratio=0.98)

    page = page.context.new_page()
    page.goto("/#/settings")
    page.get_by_label("Instructions for the model").fill("Be brief.")
    page.get_by_text("Token budget").click()
    with page.expect_response(lambda answer: "12000" in (answer.request.post_data or "")):
        page.get_by_label("Total tokens").fill("12000")
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    settings = account.get("/me/settings")
    assert settings["system_prompt"] == "Be brief."
    assert settings["budgets"] == {"total": 12000}
    page.reload()
    expect(page.get_by_label("Instructions for the model")).to_have_value("Be brief.")

    page.goto("/#/security")
    page.get_by_role("radio", name="Only while I am signed in").check()
    expect(page.get_by_role("button", name="Dismiss")).to_be_visible()
    assert account.get("/me")["key_mode"] == "sealed"
    page.reload()
    expect(page.get_by_role("radio", name="Only while I am signed in")).to_be_checked()


def test_the_door_and_activity_are_accessible(
    visitor: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    visitor.goto("/")
    expect(visitor.get_by_role("heading", name="Sign in")).to_be_visible()
    assert_accessible(visitor)
    account.enter(visitor.context)
    visitor.goto("/?again#/activity")
    expect(visitor.get_by_text("Semantic search")).to_be_visible()
    assert_accessible(visitor)
