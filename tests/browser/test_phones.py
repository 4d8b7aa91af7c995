"""Phones in the same network: what an administrator sees of them, and what a phone is warned of."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator

import httpx
import pytest
import zxingcpp
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.browser import Watch, phone, signing_up
from tests.support.process import Served, serving
from tests.support.server import PLAIN

pytestmark = pytest.mark.browser

ADDRESS = "192.168.7.20"


@pytest.fixture(scope="module")
def lan_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("lan")
    with serving(folder, lan="true", lan_port=0, allowed_hosts=ADDRESS) as served:
        yield served


def test_an_administrator_finds_the_address_and_the_certificate_as_qr_codes(
    chromium: Browser, lan_server: Served, assert_accessible: Callable[[Page], None]
) -> None:
    context = chromium.new_context(base_url=lan_server.url, reduced_motion="reduce")
    watch = Watch(lan_server.url)
    watch.over(context)
    with signing_up(lan_server.url, "ada") as account:
        account.enter(context)
    page = context.new_page()
    phone(page)
    page.goto("/#/settings")
    part = page.locator("section").filter(has_text="Phones in the same network")
    for name, path in (("address", ""), ("certificate", "/api/v1/lan/certificate")):
        drawn = part.get_by_role("img", name=f"QR code for the {name}")
        (code,) = zxingcpp.read_barcodes(Image.open(io.BytesIO(drawn.screenshot())))
        assert code.text.startswith(f"https://{ADDRESS}:")
        assert code.text.endswith(path)
        expect(part.get_by_role("link", name=code.text, exact=True)).to_be_visible()
    with httpx.Client(trust_env=False, verify=PLAIN) as client:
        root = client.get(f"{lan_server.url}/api/v1/lan/certificate")
    assert root.is_success
    part.get_by_text("Install it on Android").click()
    expect(part.get_by_text("Choose CA certificate, Install anyway")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert_accessible(page)
    context.close()
    watch.check()


def test_whoever_signs_in_over_plain_http_is_warned(chromium: Browser, lan_server: Served) -> None:
    def lead_here(route: Route) -> None:
        here = route.request.url.replace(f"http://{ADDRESS}", lan_server.url)
        route.fulfill(response=route.fetch(url=here))

    with chromium.new_context() as context:
        page = context.new_page()
        page.route(f"http://{ADDRESS}/**", lead_here)
        warning = page.get_by_text("This connection is not encrypted")
        for origin, is_warned in ((lan_server.url, False), (f"http://{ADDRESS}", True)):
            page.goto(origin)
            expect(page.get_by_label("Username")).to_be_visible()
            expect(warning).to_be_visible(visible=is_warned)
