"""Addresses that an administrator allows on a server that others reach."""

from __future__ import annotations

from collections.abc import Callable, Generator
from urllib.parse import urlsplit

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.sync_api import BrowserContext, Locator, Page, expect

from backend.generation.client.network import HOST_NAME, runs_in_container
from tests.fakes.openai_server import MODEL, OpenAIServer, reply
from tests.fakes.scripted_server import Answer
from tests.support.browser import Account, Watch, signing_up
from tests.support.process import Served, serving

pytestmark = pytest.mark.browser

LISTED = Answer(body={"data": [{"id": MODEL}]})


@pytest.fixture(scope="module")
def portal() -> Generator[BlockingPortal]:
    """The event loop of the fake model."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def model(portal: BlockingPortal) -> Generator[OpenAIServer]:
    with portal.wrap_async_context_manager(OpenAIServer()) as model:
        yield model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """A server that others reach, so that no inner address is allowed by default."""
    folder = tmp_path_factory.mktemp("served")
    with serving(folder, registration="open", allowed_hosts="tales.lan") as served:
        yield served


@pytest.fixture(scope="module", autouse=True)
def administrator(server: Served) -> Generator[Account]:
    """The first who signs up."""
    with signing_up(server.url, "keeper") as administrator:
        yield administrator


@pytest.fixture
def refusing(watch: Watch) -> None:
    """Refused addresses are answered with an error, which the console shows."""
    watch.expected.append("/providers/test")


def try_out(page: Page, model: OpenAIServer) -> Locator:
    page.goto("/#/providers")
    page.get_by_role("button", name="Add a provider").click()
    dialog = page.get_by_role("dialog", name="Add a provider")
    dialog.get_by_label("Service").select_option(label="llama.cpp, on this machine")
    dialog.get_by_label("Address").fill(model.url)
    dialog.get_by_role("button", name="Add a provider").click()
    return dialog


@pytest.mark.usefixtures("refusing")
def test_an_administrator_allows_the_address_of_a_local_server_in_one_click(
    context: BrowserContext,
    administrator: Account,
    model: OpenAIServer,
    assert_accessible: Callable[[Page], None],
) -> None:
    administrator.enter(context)
    page = context.new_page()
    dialog = try_out(page, model)
    address = urlsplit(model.url).netloc
    expect(dialog.get_by_role("alert").filter(has_text=f"http://{address}")).to_be_visible()
    better = dialog.get_by_role("button", name=f"Use http://{HOST_NAME}:")
    expect(better).to_have_count(1 if runs_in_container() else 0)
    assert_accessible(page)
    model.script(LISTED, reply("Yes."), LISTED)
    dialog.get_by_role("button", name=f"Allow {address} for providers").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("list", name="Providers of models")).to_contain_text("llama.cpp")

    page.reload()
    allowed = page.get_by_role("list", name="Allowed addresses")
    expect(allowed).to_contain_text(address)
    page.get_by_label("Host").fill("NAS.lan")
    page.get_by_label("Port").fill("1234")
    page.get_by_role("button", name="Allow", exact=True).click()
    expect(allowed).to_contain_text("nas.lan:1234")
    expect(page.get_by_label("Host")).to_have_value("")
    assert_accessible(page)
    for each in (address, "nas.lan:1234"):
        page.get_by_role("button", name=f"No longer allow {each}").click()
        expect(allowed).not_to_contain_text(each)
    assert administrator.get("/admin/provider-addresses")["items"] == []


@pytest.mark.usefixtures("refusing")
def test_others_are_told_that_an_administrator_can_allow_it(
    page: Page, model: OpenAIServer
) -> None:
    dialog = try_out(page, model)
    expect(
        dialog.get_by_role("alert").filter(has_text="An administrator can allow")
    ).to_be_visible()
    expect(dialog.get_by_role("button", name="Allow")).to_have_count(0)
    expect(dialog.get_by_role("button", name="Save anyway")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.get_by_text("Allowed addresses")).to_have_count(0)
    assert model.requests == []


@pytest.mark.usefixtures("refusing")
@pytest.mark.skipif(not runs_in_container(), reason="the machine has a name only in a container")
def test_in_a_container_the_name_of_its_machine_is_entered_in_one_click(
    page: Page, model: OpenAIServer
) -> None:
    dialog = try_out(page, model)
    expected = model.url.replace("127.0.0.1", HOST_NAME)
    dialog.get_by_role("button", name=f"Use {expected}").click()
    expect(dialog.get_by_label("Address")).to_have_value(expected)
    expect(dialog.get_by_role("alert").filter(has_text=f"http://{HOST_NAME}")).to_be_visible()
