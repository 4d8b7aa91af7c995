"""A server that other machines reach: phones, plain http, and addresses that providers may have."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from urllib.parse import urlsplit

import httpx
import pytest
import zxingcpp
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect

from backend.generation.client.network import HOST_NAME, runs_in_container
from tests.fakes.openai_server import MODEL, OpenAIServer, reply
from tests.fakes.scripted_server import Answer
from tests.support.browser import (
    Account,
    Installation,
    Watch,
    finish_deletion,
    installing,
    phone,
)
from tests.support.process import Served
from tests.support.server import PLAIN

pytestmark = pytest.mark.browser

ADDRESS = "192.168.7.20"
LISTED = Answer(body={"data": [{"id": MODEL}]})


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Generator[Installation]:
    """A server with other hosts, so that providers at inner addresses are refused by default."""
    folder = tmp_path_factory.mktemp("served")
    with installing(
        folder, registration="open", lan="true", lan_port=0, allowed_hosts=f"tales.lan,{ADDRESS}"
    ) as installation:
        yield installation


def test_an_administrator_finds_the_address_and_the_certificate_as_qr_codes(
    context: BrowserContext,
    administrator: Account,
    server: Served,
    assert_accessible: Callable[[Page], None],
) -> None:
    administrator.enter(context)
    page = context.new_page()
    phone(page)
    page.goto("/#/server")
    part = page.locator("section").filter(has_text="Phones on the same network")
    for name, path in (("address", ""), ("certificate", "/api/v1/lan/certificate")):
        drawn = part.get_by_role("img", name=f"QR code for the {name}")
        (code,) = zxingcpp.read_barcodes(Image.open(io.BytesIO(drawn.screenshot())))
        assert code.text.startswith(f"https://{ADDRESS}:")
        assert code.text.endswith(path)
        expect(part.get_by_role("link", name=code.text, exact=True)).to_be_visible()
    with httpx.Client(trust_env=False, verify=PLAIN) as client:
        root = client.get(f"{server.url}/api/v1/lan/certificate")
    assert root.is_success
    part.get_by_text("Install on Android").click()
    expect(part.get_by_text("Choose CA certificate, Install anyway")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert_accessible(page)


def test_a_visitor_over_plain_http_is_warned(chromium: Browser, server: Served) -> None:
    def lead_here(route: Route) -> None:
        here = route.request.url.replace(f"http://{ADDRESS}", server.url)
        route.fulfill(response=route.fetch(url=here))

    with chromium.new_context() as context:
        page = context.new_page()
        page.route(f"http://{ADDRESS}/**", lead_here)
        warning = page.get_by_text("This connection is not encrypted")
        for origin, is_warned in ((server.url, False), (f"http://{ADDRESS}", True)):
            page.goto(origin)
            expect(page.get_by_label("Username")).to_be_visible()
            expect(warning).to_be_visible(visible=is_warned)
        # Chromium reads the icons of the manifest later.
        page.unroute_all(behavior="ignoreErrors")


@pytest.fixture
def refusing(watch: Watch) -> None:
    """Refused addresses are answered with an error, which the console shows."""
    watch.expected.append("/providers/test")


def try_out(page: Page, model: OpenAIServer) -> Locator:
    page.goto("/#/providers")
    page.get_by_role("button", name="Add provider").click()
    dialog = page.get_by_role("dialog", name="Add provider")
    dialog.get_by_label("Service").select_option(label="llama.cpp (on this machine)")
    dialog.get_by_label("Address").fill(model.url)
    dialog.get_by_role("button", name="Add provider").click()
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
    expect(page.get_by_role("list", name="Model providers")).to_contain_text("llama.cpp")

    page.reload()
    allowed = page.get_by_role("list", name="Allowed addresses")
    expect(allowed).to_contain_text(address)
    page.get_by_label("Host").fill("NAS.lan")
    page.get_by_label("Port", exact=True).fill("1234")
    page.get_by_role("button", name="Allow", exact=True).click()
    expect(allowed).to_contain_text("nas.lan:1234")
    expect(page.get_by_label("Host")).to_have_value("")
    assert_accessible(page)
    for each in (address, "nas.lan:1234"):
        page.get_by_role("button", name=f"Remove {each}").click()
        finish_deletion(page)
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
