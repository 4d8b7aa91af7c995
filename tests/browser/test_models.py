"""Models in the page: choice among many, and costs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator

import pytest
from anyio.from_thread import BlockingPortal
from playwright.sync_api import Page, expect

from tests.fakes.openai_server import (
    API_KEY,
    DONE,
    OpenAIServer,
    chunk,
    error,
    reply,
    stream,
    usage,
)
from tests.support.browser import Account, Installation, Watch, installing, phone

pytestmark = pytest.mark.browser

NAMES = [f"teller-{number}" for number in range(300)]
PRICES = {"openai/teller-7": [2, 8, 0.5]}


@pytest.fixture(scope="module")
def teller(portal: BlockingPortal) -> Generator[OpenAIServer]:
    with portal.wrap_async_context_manager(OpenAIServer()) as teller:
        yield teller


@pytest.fixture(scope="module")
def installation(
    teller: OpenAIServer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Installation]:
    with installing(
        tmp_path_factory.mktemp("served"),
        registration="open",
        openai_base_url=teller.url,
        openai_models=",".join(NAMES),
        model_prices=json.dumps(PRICES),
    ) as installation:
        yield installation


def test_a_model_is_found_by_keyboard_and_replies_have_a_cost_as_far_as_it_is_known(
    page: Page,
    account: Account,
    teller: OpenAIServer,
    portal: BlockingPortal,
    assert_accessible: Callable[[Page], None],
) -> None:
    chat = account.new_chat(character_ids=[account.import_card()["id"]])
    phone(page)
    page.goto(f"/#/chats/{chat['id']}?panel=settings")
    chosen = page.get_by_role("button", name=re.compile("^Model: "))
    expect(chosen).to_contain_text("Default (teller-0)")
    chosen.press("Enter")
    dialog = page.get_by_role("dialog", name="Model", exact=True)
    expect(dialog.get_by_role("button", name="teller-")).to_have_count(len(NAMES) + 1)
    assert_accessible(page)
    search = dialog.get_by_role("searchbox", name="Search models")
    expect(search).to_be_focused()
    page.keyboard.type("teller-7")
    expect(dialog.get_by_text("11 models", exact=True)).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    first = dialog.get_by_role("button", name="teller-7").first
    expect(first).to_be_focused()
    expect(first).to_contain_text("32,768 tokens")
    page.keyboard.press("Enter")

    expect(chosen).to_be_focused()
    expect(chosen).to_contain_text("teller-7")
    expect(page.get_by_text("Saved")).to_be_visible()
    assert account.get(f"/chats/{chat['id']}/settings")["model"] == "openai/teller-7"
    assert_accessible(page)
    page.keyboard.press("Escape")
    portal.call(teller.script, reply("Yes.", used=usage(1000, 100, cached=600)))
    page.get_by_role("textbox", name="Your message").fill("Is it so?")
    page.get_by_role("button", name="Send").click()

    cost = page.get_by_text("reply $0.0019, 1,100 tokens · chat $0.0019, 1,100 tokens")
    expect(cost).to_be_visible()
    expect(page.get_by_text("next about $")).to_be_in_viewport(ratio=1)
    assert_accessible(page)
    page.reload()
    expect(cost).to_be_visible()
    page.get_by_role("button", name="Why this reply?").last.click()
    spent = "This reply: $0.0019, 1,100 tokens (600 from the cache, 0 for reasoning)."
    expect(page.get_by_text(spent)).to_be_visible()
    page.get_by_role("link", name="Show the next prompt").click()
    expect(page.get_by_text("Sending costs at most $")).to_be_visible()

    # A cost that is not known is named.
    page = page.context.new_page()
    other = account.new_chat(character_ids=[account.import_card()["id"]])["id"]

    def shown(text: str) -> None:
        page.goto(f"/#/chats/{other}?panel=context")
        page.reload()
        expect(page.get_by_text(text)).to_be_visible()

    portal.call(teller.script, stream(chunk(content="Hm."), chunk("stop"), DONE))
    account.turn(other, text="Is it so?")
    shown("reply without token counts · chat without token counts")
    portal.call(teller.script, reply("Yes.", used=usage(100, 10)))
    account.turn(other, text="Is it?")
    shown("chat 110 tokens, 1 reply without token counts, price unknown")
    settings = f"/chats/{other}/settings"
    account.client.patch(settings, json={"model": "openai/teller-7"}).raise_for_status()
    portal.call(teller.script, reply("Yes.", used=usage(1000, 100)))
    account.turn(other, text="Indeed?")
    shown("reply $0.0028, 1,100 tokens · chat at least $0.0028, 1,210 tokens, 1 reply without")
    page.get_by_role("button", name="Why this reply?").nth(-2).click()
    expect(page.get_by_text("This reply: 110 tokens, price unknown (0 from")).to_be_visible()


def test_a_zero_is_a_value_and_json_is_checked_as_it_is_typed(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto("/#/settings")
    page.get_by_text("Token selection").click()
    page.get_by_label("Seed").fill("0")
    expect(page.get_by_text("Saved")).to_be_visible()
    assert account.get("/me/settings")["sampling"] == {"seed": 0}

    chat = account.new_chat(character_ids=[account.import_card()["id"]])
    page.goto(f"/#/chats/{chat['id']}?panel=settings")
    panel = page.get_by_role("complementary", name="Settings")
    panel.get_by_text("Token selection").click()
    expect(page.get_by_label("Seed")).to_have_attribute("placeholder", "0")
    bias = page.get_by_label("Logit bias")
    bias.fill('{"15043": -100, ')
    expect(page.get_by_text("Invalid JSON: ")).to_be_visible()
    bias.fill('["15043"]')
    expect(page.get_by_text("Enter a JSON object")).to_be_visible()
    bias.fill('{"15043": -100, "7": 0}')
    page.get_by_label("Min p").fill("0")
    expect(page.get_by_text("Saved")).to_be_visible()
    bias.fill('{"15043": -50}')
    page.get_by_text("Repetition (advanced)").click()
    page.get_by_label("DRY sequence breakers").fill('["\\n"]')
    assert_accessible(page)
    panel.get_by_role("button", name="Close").click()
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    page.get_by_role("button", name="Settings").click()
    kept = {"min_p": 0, "logit_bias": {"15043": -50}, "dry_sequence_breakers": ["\n"]}
    assert account.get(f"/chats/{chat['id']}/settings")["sampling"] == kept


def test_settings_that_a_model_does_not_take_go_with_the_choice_and_refused_ones_are_named(
    page: Page,
    account: Account,
    watch: Watch,
    teller: OpenAIServer,
    portal: BlockingPortal,
    assert_accessible: Callable[[Page], None],
) -> None:
    provider = {"preset": "mistral", "base_url": teller.url, "api_key": API_KEY, "name": "Mine"}
    account.post("/providers", provider | {"models": [{"name": "small"}]})
    chat = account.new_chat(character_ids=[account.import_card()["id"]])
    settings = f"/chats/{chat['id']}/settings"
    own = {"model": "openai/teller-0", "sampling": {"min_p": 0, "dry_base": 2, "seed": 1}}
    account.client.patch(settings, json=own)
    refusal = "Unrecognized request argument supplied: min_p"
    portal.call(teller.script, error(400, message=refusal))
    page.goto(f"/#/chats/{chat['id']}")
    page.get_by_role("textbox", name="Your message").fill("Is it so?")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("article").last).to_contain_text("The rain has stopped.")
    page.get_by_role("button", name="Settings").click()
    panel = page.get_by_role("complementary", name="Settings")
    panel.get_by_text("Sampling").click()
    expect(page.get_by_role("note")).to_contain_text("Rejected by its server: Min p")
    panel.get_by_text("Token selection").click()
    expect(page.get_by_text("teller-0 rejects this setting, so it is not sent.")).to_be_visible()

    phone(page)
    page.keyboard.press("Escape")
    page.get_by_role("article").last.press("m")
    expect(page.get_by_role("searchbox", name="Search models")).to_be_focused()
    page.keyboard.type("small")
    page.keyboard.press("Enter")
    expect(page.get_by_text("which were removed: Min p, DRY base.")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="Change model: teller-0")).to_be_visible()
    assert account.get(settings)["sampling"] == own["sampling"]
    page.get_by_role("button", name="Change model: teller-0").click()
    expect(page.get_by_role("searchbox", name="Search models")).to_be_focused()
    page.keyboard.type("small")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Change model: small")).to_be_visible()
    assert_accessible(page)
    assert account.get(settings)["sampling"] == {"seed": 1}
    assert "model" not in account.get(settings)
    page.get_by_role("button", name="Settings").click()
    panel.get_by_text("Sampling").click()
    expect(page.get_by_role("note")).to_contain_text("small does not support: Reasoning tokens")
    expect(page.get_by_label("Min p")).to_be_hidden()


def test_tasks_have_their_own_models_and_an_unsuitable_one_is_named(
    page: Page, account: Account, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    def choose(task: str, name: str) -> None:
        page.get_by_role("button", name=f"{task}: ").press("Enter")
        expect(page.get_by_role("searchbox", name="Search models")).to_be_focused()
        page.keyboard.type(name)
        with page.expect_response(lambda answer: answer.request.method == "PATCH"):
            page.keyboard.press("Enter")
        expect(page.get_by_role("button", name=f"{task}: {name}", exact=True)).to_be_focused()

    page.goto("/#/settings")
    page.get_by_text("Models for background tasks").click()
    for task in ("All tasks", "Suggestions"):
        usual = page.get_by_role("button", name=f"{task}: Same as replies (teller-0)")
        expect(usual).to_be_visible()
    choose("Chronicle", "teller-99")
    assert account.get("/me/settings")["task_models"] == {"agent": "openai/teller-99"}

    chat = account.new_chat(character_ids=[account.import_card()["id"]])
    phone(page)
    page.goto(f"/#/chats/{chat['id']}?panel=settings")
    panel = page.get_by_role("complementary", name="Settings")
    panel.get_by_text("Models for background tasks").click()
    expect(
        page.get_by_role("button", name="Chronicle: Account default (teller-99)")
    ).to_be_visible()
    choose("All tasks", "teller-98")
    expect(
        page.get_by_role("button", name="Summaries: Same as all tasks (teller-98)")
    ).to_be_visible()
    choose("Triage", "teller-97")
    assert_accessible(page)
    settings = account.get(f"/chats/{chat['id']}/settings")
    assert settings["task_models"] == {"triage": "openai/teller-97"}
    assert settings["enrichment"] == {"model": "openai/teller-98"}

    # An embedding model is one of a provider.
    page = page.context.new_page()
    watch.expected.append("/api/v1/me/settings$")
    body = {"kind": "openai", "slug": "home", "base_url": "http://127.0.0.1:11434/v1"}
    path = f"/providers/{account.post('/providers', body)['id']}"
    page.goto("/#/memory-settings")
    field = page.get_by_label("Embedding")
    field.fill("nobodys/bge-m3")
    field.blur()
    expect(page.get_by_text("is not an embedding model")).to_be_visible()
    assert_accessible(page)
    field.fill("home/bge-m3")
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        field.blur()
    assert account.get("/me/settings")["task_models"]["embedding"] == "home/bge-m3"
    account.client.delete(path).raise_for_status()
    page.goto("/#/memory/status")
    expect(page.get_by_text("embedding model no longer exists")).to_be_visible()
    assert_accessible(page)


def test_work_that_its_model_cannot_do_says_which_setting_to_change(
    page: Page, account: Account, teller: OpenAIServer, portal: BlockingPortal
) -> None:
    chat = account.new_chat(character_ids=[account.import_card()["id"]])
    settings = f"/chats/{chat['id']}/settings"
    account.client.patch(settings, json={"chronicle_enabled": True}).raise_for_status()
    portal.call(teller.script, reply("The king is dead."), *[reply("no JSON")] * 4)
    account.turn(chat["id"], text="What is it?")
    page.goto("/#/activity")
    told = "its model cannot answer in JSON. Choose another one for “Triage”"
    expect(page.get_by_text(told)).to_be_visible()
    account.client.patch(settings, json={"chronicle_enabled": False}).raise_for_status()
