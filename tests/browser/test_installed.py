"""The installed page: what browsers need to install it, and its files without a network."""

from __future__ import annotations

import io
import json
from collections.abc import Generator
from typing import Any, cast
from urllib.parse import urljoin

import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, expect

from tests.support.browser import Account, Watch
from tests.support.process import Served
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.browser

STORED = """async () => {
  const names = await caches.keys();
  const stores = await Promise.all(names.map((name) => caches.open(name)));
  const requests = await Promise.all(stores.map((store) => store.keys()));
  return requests.flat().map(({ url }) => new URL(url).pathname);
}"""


@pytest.fixture
def with_worker(chromium: Browser, server: Served, watch: Watch) -> Generator[BrowserContext]:
    """A browser context with service workers. The other tests' contexts block them."""
    context = chromium.new_context(base_url=server.url, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE * 1000)
    with watch.over(context):
        yield context
    context.close()
    watch.check()


def test_the_page_opens_without_a_network_and_stores_only_its_own_files(
    with_worker: BrowserContext, account: Account, watch: Watch
) -> None:
    account.enter(with_worker)
    page = with_worker.new_page()
    page.goto("/#/characters")
    page.evaluate("navigator.serviceWorker.ready")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.wait_for_load_state("networkidle")

    stored = page.evaluate(STORED)
    files = [path for path in stored if path.startswith("/page/")]
    assert sorted(stored) == sorted(["/", *files])
    assert len(files) > 20
    assert not any("/api/" in path for path in stored)

    watch.expected.append("")
    with_worker.set_offline(True)
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    with_worker.set_offline(False)
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_a_browser_offers_to_install_the_page(
    with_worker: BrowserContext, account: Account
) -> None:
    account.enter(with_worker)
    page = with_worker.new_page()
    page.goto("/")
    page.evaluate("navigator.serviceWorker.ready")
    session = with_worker.new_cdp_session(page)

    assert session.send("Page.getInstallabilityErrors")["installabilityErrors"] == []
    found = cast("dict[str, Any]", session.send("Page.getAppManifest"))
    assert found["errors"] == []
    manifest = json.loads(found["data"])
    assert (manifest["name"], manifest["display"]) == ("Talekeeper", "standalone")
    for icon in manifest["icons"]:
        answer = page.request.get(urljoin(found["url"], icon["src"]))
        assert answer.headers["content-type"] == icon["type"]
        if icon["type"] == "image/png":
            width, height = Image.open(io.BytesIO(answer.body())).size
            assert f"{width}x{height}" == icon["sizes"]
