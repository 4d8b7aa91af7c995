"""Memory by meaning on a server without a key: a model is fetched with one button, and used."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

import pytest
from anyio.from_thread import BlockingPortal
from playwright.sync_api import Page, expect

from tests.fakes.hub_server import HubServer
from tests.support.browser import Account, Installation, installing
from tests.support.memory import MODEL_FOLDER

pytestmark = [pytest.mark.embeddings, pytest.mark.browser, pytest.mark.slow]

FACT = "I hide the old wedding ring in a tin behind the flour in the pantry."
OTHER_WORDS = "Where did I conceal the ancient marriage jewellery?"
ROUNDS = 100
SMALL_WINDOW = {"total": 6000, "history": 1500, "retrieval": 1500, "reply_reserve": 500}


@pytest.fixture(scope="module")
def hub(portal: BlockingPortal) -> Generator[HubServer]:
    if not (MODEL_FOLDER / "model.onnx").is_file():
        pytest.skip("there is no embedding model to serve")
    files = {path.name: path.read_bytes() for path in MODEL_FOLDER.iterdir()}
    with portal.wrap_async_context_manager(HubServer(files)) as hub:
        yield hub


@pytest.fixture(scope="module")
def installation(
    hub: HubServer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Installation]:
    """A server that downloads models from the stand-in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.url)
        folder = tmp_path_factory.mktemp("served")
        with installing(
            folder,
            registration="open",
            demo_tokens_per_second="0",
            embedding_timeout_seconds="60",  # a busy machine must not search by words only
        ) as installation:
            yield installation


@pytest.fixture
def account(administrator: Account) -> Account:
    """The administrator, who alone can download models."""
    return administrator


def test_a_model_is_fetched_with_one_button_and_finds_what_was_said_long_ago(
    page: Page,
    account: Account,
    hub: HubServer,
    portal: BlockingPortal,
    assert_accessible: Callable[[Page], None],
) -> None:
    chat = account.new_chat(title="The mill")["id"]
    account.client.patch(f"/chats/{chat}/settings", json={"budgets": SMALL_WINDOW})
    account.turn(chat, text=FACT)
    for number in range(ROUNDS):
        account.turn(chat, text=f"/demo long 6, at stone {number}")

    page.goto("/#/memory/status")
    offered = page.get_by_role("list", name="Local embedding models").get_by_role("listitem")
    english = offered.filter(has_text="all-MiniLM-L6-v2")
    expect(english).to_contain_text(re.compile(r"91.1 MB · about \d+ lines per second · license"))
    expect(english).to_contain_text("1 language: English")
    assert "apache-2.0\n1 language" in english.inner_text()
    expect(english).to_contain_text("Recommended for you")
    expect(page.get_by_text("Recommended for you")).to_have_count(1)
    assert offered.count() == 6
    potion = offered.filter(has_text="potion-multilingual-128M")
    expect(potion).to_contain_text("5,000 lines per second")
    potion.get_by_text("101 languages").click()
    expect(potion).to_contain_text("Welsh")
    expect(page.get_by_text("By words only")).to_be_visible()
    assert_accessible(page)
    assert hub.requests == []

    portal.call(hub.pace.clear)
    english.get_by_role("button", name="Download and use").click()
    expect(page.get_by_role("progressbar", name="Downloading an embedding model")).to_be_visible()
    expect(english.get_by_role("button")).to_be_disabled()
    assert_accessible(page)
    portal.call(hub.pace.set)
    expect(english).to_contain_text("In use")
    expect(page.get_by_text("By words and by meaning")).to_be_visible()
    # Everything has moved.
    expect(page.get_by_text("vectors in the index")).to_be_visible(timeout=150_000)
    expect(page.get_by_role("status").filter(has_text="Texts are being re-indexed")).to_have_count(
        0, timeout=150_000
    )

    page.goto(f"/#/chats/{chat}?panel=context")
    page.get_by_label("Your message").fill(OTHER_WORDS)
    panel = page.get_by_role("complementary")
    panel.get_by_role("button", name=re.compile("^Memory")).press("Enter")
    found = panel.get_by_role("listitem").filter(has=page.get_by_text("Message 1", exact=True))
    expect(found).to_contain_text(re.compile("similar meaning", re.IGNORECASE))
    found.locator("summary").click()
    expect(found).to_contain_text(FACT)
