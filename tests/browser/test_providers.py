"""An own model: from a new server to a reply with its cost, hidden from other accounts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from anyio.from_thread import BlockingPortal
from playwright.sync_api import BrowserContext, Page, expect

from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer, called, reply
from tests.fakes.scripted_server import Answer
from tests.fakes.window_server import WindowServer
from tests.support.browser import EXAMPLE_CARD, Account, Watch, finish_deletion, phone, signing_up
from tests.support.process import Served
from tests.support.server import PASSWORD

pytestmark = pytest.mark.browser


def test_a_key_is_pasted_into_the_page_and_the_chat_goes_on_with_its_model(
    visitor: Page, server: Served, model: OpenAIServer, assert_accessible: Callable[[Page], None]
) -> None:
    page = visitor
    phone(page)
    page.goto("/")
    page.get_by_role("button", name="Create account").click()
    page.get_by_label("Username").fill(f"Ada {uuid4().hex[:8]}")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Create account").click()
    page.get_by_role("checkbox", name="I have saved it").check()
    page.get_by_role("button", name="Continue").click()

    expect(page.get_by_role("button", name="Try the demo")).to_be_visible()
    assert_accessible(page)
    page.get_by_label("Service").select_option(label="Another OpenAI-compatible server")
    page.get_by_label("Address").fill(model.url)
    key = page.get_by_label("API key", exact=True)
    expect(key).to_have_attribute("autocomplete", "off")
    key.fill(API_KEY)
    model.script(Answer(status=404))
    page.get_by_role("button", name="Add provider").click()
    expect(page.get_by_role("alert")).to_contain_text("enter the names of the models")
    assert_accessible(page)
    page.get_by_label("Models").fill(MODEL)
    model.script(Answer(status=404), reply("Yes."))
    page.get_by_role("button", name="Add provider").click()
    expect(page.get_by_text(f"{urlsplit(model.url).netloc} is ready.")).to_be_visible()

    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import…").click()
    chooser.value.set_files(EXAMPLE_CARD)
    page.get_by_role("button", name="Chat with Marlena").first.click()
    page.get_by_role("textbox", name="Your message").fill("Hello.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("The rain has stopped.", exact=True)).to_be_visible()
    expect(page.get_by_text("reply 14 tokens · chat 14 tokens")).to_be_visible()
    assert model.requests[-1].headers["authorization"] == f"Bearer {API_KEY}"

    page.goto("/#/providers")
    providers = page.get_by_role("list", name="Model providers")
    expect(providers).to_contain_text(f"key …{API_KEY[-4:]}")
    model.script(Answer(body={"data": [{"id": MODEL}]}), reply("Yes."))
    page.get_by_role("button", name=f"More actions for {urlsplit(model.url).netloc}").click()
    page.get_by_role("menuitem", name="Test").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Model list loaded (1).")
    expect(dialog).to_contain_text(f"{MODEL} replied.")
    expect(dialog.get_by_text("The test passed.")).to_be_visible()
    assert_accessible(page)
    page.keyboard.press("Escape")
    assert API_KEY not in page.content()
    assert_accessible(page)
    with signing_up(server.url, "Bob") as bob:
        assert bob.get("/providers")["items"] == []
        assert [each["id"] for each in bob.get("/models")["items"]] == ["demo"]


def test_a_failing_provider_is_saved_on_request_and_edited_without_its_key(
    page: Page, account: Account, model: OpenAIServer, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto("/#/providers")
    expect(page.get_by_text("only the demo model replies")).to_be_visible()
    body = {"preset": "other", "base_url": model.url, "api_key": API_KEY, "name": "Mine"}
    made = account.post("/providers", body | {"models": [{"name": MODEL, "context_window": 9000}]})
    page.reload()
    more = page.get_by_role("button", name="More actions for Mine")
    more.click()
    page.get_by_role("menuitem", name="Edit").click()
    dialog = page.get_by_role("dialog", name="Edit Mine")
    expect(dialog.get_by_label("API key", exact=True)).to_have_value("")
    assert_accessible(page)
    dialog.get_by_label("Models").fill(f"{MODEL}, another")
    dialog.get_by_label("Name", exact=True).fill("Ours")
    dialog.get_by_label("Extra headers").fill("X-Title Talekeeper")
    dialog.get_by_label("Extra request body").fill('{"route": {"sort": "price"}}')
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert").get_by_text("is not a valid header")).to_have_count(2)
    dialog.get_by_label("Extra headers").fill("X-Title: Talekeeper at home")
    dialog.get_by_role("button", name="Save").click()

    more = page.get_by_role("button", name="More actions for Ours")
    more.click()
    kept = account.get(f"/providers/{made['id']}")
    assert kept["key_hint"] == API_KEY[-4:]
    assert [each["name"] for each in kept["models"]] == [MODEL, "another"]
    assert kept["models"][0]["context_window"] == 9000
    assert (kept["extra_headers"], kept["extra_body"]) == (
        {"X-Title": "home"},
        {"route": {"sort": "price"}},
    )
    page.get_by_role("menuitem", name="Edit").click()
    headers = page.get_by_label("Extra headers")
    expect(headers).to_have_value("X-Title: …home")
    page.get_by_label("Extra request body").fill("")
    with page.expect_response("**/providers?*"):
        page.get_by_role("button", name="Save").click()

    more.click()
    assert account.get(f"/providers/{made['id']}")["extra_headers"] == {"X-Title": "home"}
    assert account.get(f"/providers/{made['id']}")["extra_body"] == {}
    page.get_by_role("menuitem", name="Delete").click()
    finish_deletion(page)
    expect(page.get_by_text("only the demo model replies")).to_be_visible()
    assert account.get("/providers")["items"] == []

    page = page.context.new_page()
    page.goto("/#/providers")
    page.get_by_role("button", name="Add provider").click()
    dialog = page.get_by_role("dialog", name="Add provider")
    dialog.get_by_label("Service").select_option(label="Another OpenAI-compatible server")
    dialog.get_by_label("Address").fill(model.url)
    dialog.get_by_label("Name").fill("Slow box")
    dialog.get_by_label("Models").fill(MODEL)
    refused = Answer(401, body={"error": {"message": "no"}})
    model.script(refused, refused)
    dialog.get_by_role("button", name="Add provider").click()
    expect(dialog.get_by_text(f"{MODEL} did not reply.")).to_be_visible()
    assert account.get("/providers")["items"] == []
    assert_accessible(page)
    dialog.get_by_role("button", name="Save anyway").click()
    expect(dialog).to_be_hidden()

    providers = page.get_by_role("list", name="Model providers")
    expect(providers).to_contain_text("not tested")
    assert_accessible(page)
    model.script(Answer(body=[{"id": MODEL}]), reply("Yes."))
    page.get_by_role("button", name="More actions for Slow box").click()
    page.get_by_role("menuitem", name="Test").click()
    tested = page.get_by_role("dialog", name="Test Slow box")
    expect(tested.get_by_text("The test passed.")).to_be_visible()
    expect(tested.get_by_text("Context window: 32,768 tokens (assumed).")).to_be_visible()
    page.keyboard.press("Escape")
    expect(providers).not_to_contain_text("not tested")


def test_models_are_chosen_with_their_own_figures_and_an_assumed_window_is_set(
    page: Page, account: Account, model: OpenAIServer, assert_accessible: Callable[[Page], None]
) -> None:
    names = [{"name": MODEL, "context_window": 9000}, {"name": "another"}]
    body = {"preset": "other", "base_url": model.url, "name": "Ours", "models": names}
    made = account.post("/providers", body)
    phone(page)
    page.goto("/#/providers")
    page.get_by_role("button", name="More actions for Ours").click()
    page.get_by_role("menuitem", name="Models").click()
    dialog = page.get_by_role("dialog", name="Models of Ours")
    model.script(Answer(body={"data": [{"id": MODEL}, {"id": "newer"}]}))
    dialog.get_by_role("button", name="Refresh").click()
    expect(dialog.get_by_role("checkbox", name="newer")).not_to_be_checked()
    expect(dialog.get_by_text("Updated ")).to_be_visible()
    dialog.get_by_role("searchbox").fill("another")
    expect(dialog.get_by_text("1 model", exact=True)).to_be_visible()
    dialog.get_by_role("checkbox", name="another").uncheck()
    dialog.get_by_role("searchbox").fill("")
    dialog.get_by_role("button", name=f"Details of {MODEL}").click()
    expect(dialog.get_by_label("Context window")).to_have_value("9000")
    dialog.get_by_label("Input price", exact=True).fill("0")
    dialog.get_by_label("Output price").fill("0.5")
    assert_accessible(page)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    price = {"input": 0, "output": 0.5, "cached_input": None}
    figures = {"name": MODEL, "context_window": 9000, "price": price}
    assert account.get(f"/providers/{made['id']}")["models"] == [figures]

    page = page.context.new_page()
    body = {"preset": "other", "base_url": model.url, "slug": "home", "name": "Home"}
    made = account.post("/providers", body)
    model.script(Answer(body={"data": [{"id": "unheard/of"}, {"id": "second"}]}))
    account.get(f"/providers/{made['id']}/models")
    account.client.patch("/me/settings", json={"model": "home/unheard/of"})
    chat = account.new_chat()
    page.goto(f"/#/chats/{chat['id']}?panel=context")
    link = page.get_by_role("link", name="Set context window")
    expect(page.get_by_text("Context window: 32,768 tokens (assumed).")).to_be_visible()
    assert_accessible(page)
    link.click()
    dialog = page.get_by_role("dialog", name="Models of Home")
    window = dialog.get_by_label("Context window")
    expect(window).to_be_focused()
    window.fill("4096")
    dialog.get_by_label("Tool calls").select_option(label="code block in the text")
    dialog.get_by_label("Message format").select_option(label="alternating user and assistant")
    assert_accessible(page)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    kept = {each["name"]: each for each in account.get(f"/providers/{made['id']}")["models"]}
    assert set(kept) == {"unheard/of", "second"}
    assert kept["unheard/of"]["context_window"] == 4096
    assert kept["unheard/of"]["tool_support"] == "fenced"
    assert kept["unheard/of"]["message_shape"] == "alternating"

    page.get_by_role("button", name="More actions for Home").click()
    page.get_by_role("menuitem", name="Models").click()
    expect(dialog.get_by_text("4,096 tokens (set by you)")).to_be_visible()
    expect(dialog.get_by_text("32,768 tokens (assumed)")).to_be_visible()
    page.keyboard.press("Escape")
    page.goto(f"/#/chats/{chat['id']}?panel=context")
    expect(page.get_by_text("Context window: 4,096 tokens (set by you).")).to_be_visible()
    expect(link).to_have_count(0)


def test_a_prompt_that_overflows_leads_to_the_setting_of_the_window(
    page: Page, account: Account, watch: Watch, portal: BlockingPortal
) -> None:
    watch.expected.append("/messages/")  # nothing is left of a turn that failed at once
    with portal.wrap_async_context_manager(OpenAIServer()) as model:
        overflow(page, account, model)


def test_a_prompt_that_was_cut_in_silence_is_said_at_the_reply(
    page: Page, account: Account, portal: BlockingPortal, assert_accessible: Callable[[Page], None]
) -> None:
    with portal.wrap_async_context_manager(WindowServer(4_096, overflow="cut")) as model:
        body = {"preset": "other", "base_url": model.url, "slug": "home", "name": "Home"}
        account.post("/providers", body | {"models": [{"name": MODEL}]})
        account.client.patch("/me/settings", json={"model": f"home/{MODEL}"})
        who = account.post("/characters", {"name": "Mara", "description": "Old tales. " * 4_000})
        chat = account.new_chat(character_ids=[who["id"]])
        page.goto(f"/#/chats/{chat['id']}")
        page.get_by_role("textbox", name="Your message").fill("Hello.")
        page.get_by_role("button", name="Send").click()
        notice = page.get_by_role("note").filter(
            has_text="silently cut this prompt to 2,050 of about"
        )
        expect(notice).to_be_visible()
        assert_accessible(page)
        page.reload()
        expect(notice).to_be_visible()
        reply_id = account.get(f"/chats/{chat['id']}/messages")["items"][-1]["id"]
        page.goto(f"/#/chats/{chat['id']}?panel=context&message={reply_id}")
        expect(page.get_by_text("Context window: 32,768 tokens (assumed).")).to_be_visible()
        notice.get_by_role("link", name="Set context window").click()
        dialog = page.get_by_role("dialog", name="Models of Home")
        expect(dialog.get_by_label("Context window")).to_be_focused()
        expect(dialog.get_by_text("4,096 tokens (detected)")).to_be_visible()


def overflow(page: Page, account: Account, model: OpenAIServer) -> None:
    """Send a line to a model with a window that is too small for any prompt."""
    body = {"preset": "other", "base_url": model.url, "slug": "home", "name": "Home"}
    account.post("/providers", body | {"models": [{"name": MODEL}]})
    account.client.patch("/me/settings", json={"model": f"home/{MODEL}"})
    chat = account.new_chat()
    page.goto(f"/#/chats/{chat['id']}")
    said = "the request exceeds the available context size, try increasing it"
    too_long = {"error": {"code": 400, "message": said, "type": "exceed_context_size_error"}}
    model.script(*[Answer(400, body=too_long)] * 9)
    page.get_by_role("textbox", name="Your message").fill("Hello.")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("link", name="Set context window").click()
    expect(
        page.get_by_role("dialog", name="Models of Home").get_by_label("Context window")
    ).to_be_focused()


def test_activity_lists_the_models_that_the_account_uses(
    page: Page, account: Account, model: OpenAIServer, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto("/#/activity")
    used = page.get_by_role("list", name="Models in use")
    expect(used).to_contain_text("Demo")
    expect(used.get_by_role("link", name="Add provider")).to_be_visible()
    body = {"preset": "other", "base_url": model.url, "slug": "home", "name": "Home"}
    made = account.post("/providers", body | {"models": [{"name": MODEL}]})
    account.client.patch("/me/settings", json={"model": f"home/{MODEL}"})
    page.reload()
    expect(used).to_contain_text(f"{MODEL}Home · Replies")
    expect(used).not_to_contain_text("Demo")
    assert_accessible(page)
    account.client.delete(f"/providers/{made['id']}")
    page.reload()
    expect(used).to_contain_text("No longer available")


def test_an_administrator_shares_a_provider_whose_window_others_cannot_set(
    context: BrowserContext, administrator: Account, account: Account, model: OpenAIServer
) -> None:
    administrator.enter(context)
    page = context.new_page()
    page.goto("/#/providers")
    page.get_by_role("button", name="Add provider").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Service").select_option(label="Ollama (on this machine)")
    dialog.get_by_label("Address").fill(model.url)
    dialog.get_by_label("Share with all users").check()
    listed = Answer(body={"data": [{"id": MODEL}]})
    model.script(listed, reply("Yes."), listed)
    dialog.get_by_role("button", name="Add provider").click()

    more = page.get_by_role("button", name="More actions for Ollama")
    more.click()
    assert [each["id"] for each in account.get("/models")["items"]] == [f"ollama/{MODEL}", "demo"]
    page.get_by_role("menuitem", name="Edit").click()
    dialog.get_by_label("Embedding model").fill("embedder")
    with page.expect_response("**/providers?*"):
        dialog.get_by_role("button", name="Save").click()
    more.click()
    [shared] = administrator.get("/providers")["items"]
    assert (shared["scope"], shared["embedding_model"]) == ("installation", "embedder")
    page.get_by_role("menuitem", name="Delete").click()
    finish_deletion(page)
    expect(page.get_by_text("only the demo model replies")).to_be_visible()
    assert account.get("/providers")["items"] == []

    made = administrator.post(
        "/providers",
        {"preset": "other", "base_url": model.url, "slug": "shared", "scope": "installation"}
        | {"models": [{"name": MODEL}]},
    )
    account.enter(context)
    page = context.new_page()
    page.goto(f"/#/providers?model=shared/{MODEL}")
    expect(page.get_by_role("alert")).to_contain_text("is shared with all users")
    expect(page).to_have_url(re.compile("#/providers$"))
    administrator.client.delete(f"/providers/{made['id']}")


OWN = f"mine/{MODEL}"
WARNING = "This model does not use tools: dice and the world are not updated."
BLOCK = json.dumps([{"tool": "damage", "arguments": {"target": "Anna", "damage": "1d2+2"}}])


@pytest.fixture(scope="module")
def vendor(portal: BlockingPortal) -> Generator[OpenAIServer]:
    with portal.wrap_async_context_manager(OpenAIServer()) as vendor:
        yield vendor


@pytest.fixture
def chat(account: Account, vendor: OpenAIServer) -> str:
    """The address of a chat of a campaign under the rules of dnd, with the account's own model."""
    body = {"kind": "openai", "slug": "mine", "base_url": vendor.url, "api_key": API_KEY}
    account.post("/providers", {**body, "models": [{"name": MODEL}]})
    campaign = account.post("/campaigns", {"name": "Seagate", "rules": "dnd"})
    attributes = {"hp": 20, "hp_max": 20}
    anna = {"kind": "pc", "name": "Anna", "attributes": attributes}
    account.post(f"/campaigns/{campaign['id']}/entities", anna)
    chat = account.new_chat(campaign_id=campaign["id"], title="The harbour")
    chosen = account.client.patch(f"/chats/{chat['id']}/settings", json={"model": OWN})
    assert chosen.is_success, chosen.text
    return f"/#/chats/{chat['id']}"


def say(page: Page, text: str) -> None:
    """Write a line and send it."""
    page.get_by_label("Your message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_the_page_says_that_a_model_does_not_use_tools(
    page: Page, chat: str, vendor: OpenAIServer, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(chat)
    expect(page.get_by_text(WARNING)).to_have_count(0)
    vendor.script(reply("The axe comes down."), reply("Anna loses 3 points."))
    say(page, "I parry.")

    warning = page.get_by_text(WARNING)
    expect(warning).to_be_visible()
    expect(page.locator(".message.last")).to_contain_text("The axe comes down.")
    assert_accessible(page)
    link = warning.get_by_role("link", name="Change tool calls")
    expect(link).to_have_attribute("href", f"#/providers?model=mine%2F{MODEL}")
    page.reload()
    expect(page.get_by_text(WARNING)).to_be_visible()

    link.click()
    figures = page.get_by_role("dialog").get_by_role("group", name=f"Details of {MODEL}")
    way = figures.get_by_label("Tool calls")
    expect(way.locator("option").first).to_contain_text("now: none")
    way.select_option(label="code block in the text")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.goto(chat)
    button = page.get_by_role("button", name=f"Change model: {MODEL}")
    expect(button).to_be_visible()
    expect(page.get_by_text(WARNING)).to_have_count(0)
    button.click()
    facts = page.get_by_role("dialog").get_by_role("button", name=MODEL, exact=False)
    expect(facts.last).to_contain_text("tools: code block in the text")


def test_the_calls_of_what_was_told_change_the_world_and_the_text_stays(
    page: Page, account: Account, chat: str, vendor: OpenAIServer
) -> None:
    page.goto(chat)
    vendor.script(reply("The axe comes down."), reply(f"```tools\n{BLOCK}\n```"))
    say(page, "I parry.")

    last = page.locator(".message.last")
    expect(last).to_contain_text("2 changes in the world")
    expect(last).to_contain_text("The axe comes down.")
    expect(page.get_by_text(WARNING)).to_have_count(0)
    reply_id = account.get(f"{chat.removeprefix('/#')}/messages")["items"][-1]["id"]
    page.goto(f"{chat}?panel=context&message={reply_id}")
    notes = page.get_by_role("complementary").get_by_role("listitem")
    asked = "The model was asked for tool calls in a code block in its text."
    expect(notes.filter(has_text=asked)).to_be_visible()


def test_a_question_is_answered_in_the_players_own_words(
    page: Page, chat: str, vendor: OpenAIServer, assert_accessible: Callable[[Page], None]
) -> None:
    vendor.script(called(("ask_player", {"prompt": "Which way?", "options": ["Left", "Right"]})))
    page.goto(chat)
    say(page, "I go on.")
    question = page.get_by_role("region", name="A question for you")
    own = question.get_by_label("Your own answer")
    expect(own).to_be_visible()
    assert_accessible(page)
    vendor.script(called(("finish_turn", {}), text="You climb."))
    own.fill("I climb the wall.")
    own.press("Enter")
    expect(question).to_be_hidden()
    expect(page.locator(".message.last")).to_contain_text("You climb.")
    assert "I climb the wall." in json.dumps(vendor.requests[-1].body["messages"])
