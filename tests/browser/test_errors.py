"""Errors of a provider on the page: the cause, the next step, and the provider's own words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer, chunk, error, reply, stream
from tests.support.browser import Account, Watch

pytestmark = pytest.mark.browser


@pytest.fixture
def model(model: OpenAIServer, account: Account) -> OpenAIServer:
    """The account's own provider with one model, which its chats use."""
    names = [{"name": MODEL, "context_window": 9000}]
    body = {"kind": "openai", "slug": "mine", "name": "Mine", "models": names}
    account.post("/providers", {**body, "base_url": model.url, "api_key": API_KEY})
    account.client.patch("/me/settings", json={"model": f"mine/{MODEL}"})
    return model


def say(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Your message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_an_error_quotes_the_provider_and_leads_to_its_settings(
    page: Page,
    account: Account,
    model: OpenAIServer,
    watch: Watch,
    assert_accessible: Callable[[Page], None],
) -> None:
    # The empty reply may be deleted before it is read.
    watch.expected.append("/api/v1/messages/")
    page.goto(f"/#/chats/{account.new_chat()['id']}")
    model.script(error(402, message=f"No funds for {API_KEY}."))
    say(page, "Hello.")
    notice = page.locator(".notice")
    expect(notice).to_contain_text("The account has no credit at the provider.")
    expect(notice).to_contain_text("Add credit at the provider, or choose another model.")
    expect(notice.locator("blockquote")).to_have_text("The provider says: No funds for [removed].")
    expect(notice.get_by_role("button", name="Try again")).to_be_enabled()
    assert_accessible(page)

    page.reload()
    expect(notice.locator("blockquote")).to_contain_text("No funds for")
    notice.get_by_role("link", name="Open model settings").click()
    expect(page.get_by_role("heading", name="Model providers", level=1)).to_be_visible()

    model.script(*[error(401, message=f"Wrong key: {API_KEY}")] * 2)
    page.get_by_role("button", name="More actions for Mine").click()
    page.get_by_role("menuitem", name="Test").click()
    report = page.get_by_role("dialog").get_by_role("alert")
    expect(report).to_contain_text("The provider rejected the API key.")
    expect(report.locator("blockquote")).to_have_text("The provider says: Wrong key: [removed]")
    assert_accessible(page)


def test_a_failed_reply_is_tried_again_and_one_that_was_cut_off_is_continued(
    page: Page,
    account: Account,
    model: OpenAIServer,
    watch: Watch,
    assert_accessible: Callable[[Page], None],
) -> None:
    # After a rate limit the button waits as long as the provider asks.
    watch.expected.append("/api/v1/messages/")
    page.goto(f"/#/chats/{account.new_chat()['id']}")
    model.script(error(429, message="Slow down.", headers={"retry-after": "3"}), reply("Hello!"))
    say(page, "Hello.")
    expect(page.get_by_text("The provider's rate limit was reached.")).to_be_visible()
    expect(page.get_by_role("button", name="Try again in")).to_be_disabled()
    page.get_by_role("button", name="Try again", exact=True).click()
    expect(page.get_by_text("Hello!", exact=True)).to_be_visible()

    # An error in the middle of a reply is shown below its text.
    page = page.context.new_page()
    page.goto(f"/#/chats/{account.new_chat()['id']}")
    fault = {"error": {"code": 502, "message": "Provider disconnected"}}
    model.script(stream(chunk(content="Once upon"), fault))
    say(page, "Hello.")
    expect(page.get_by_text("Once upon", exact=True)).to_be_visible()
    for _ in range(2):
        expect(page.locator(".notice")).to_contain_text("The model's server failed.")
        expect(page.locator(".notice blockquote")).to_contain_text("Provider disconnected")
        page.reload()

    # A reply that reached its maximum length is continued or written again.
    page = page.context.new_page()
    page.goto(f"/#/chats/{account.new_chat()['id']}")
    model.script(
        reply("The door opens and the", finish="length"),
        stream(chunk(content="lamp goes"), fault),
        reply("It stays shut."),
    )
    say(page, "I knock.")
    last, go_on = (
        page.locator(".message.last"),
        page.get_by_role("button", name="Continue", exact=True),
    )
    expect(last).to_contain_text("The reply reached the maximum length")
    page.reload()
    expect(last).to_contain_text("The reply reached the maximum length")
    assert_accessible(page)
    go_on.click()
    expect(last.locator(".prose")).to_have_text("The door opens and the lamp goes")
    expect(last).to_contain_text("This reply was interrupted by an error.")
    expect(last).not_to_contain_text("maximum length")
    expect(go_on).to_be_visible()
    last.get_by_role("button", name="Try again").click()
    expect(last.locator(".prose")).to_have_text("It stays shut.")
    expect(go_on).to_be_hidden()
