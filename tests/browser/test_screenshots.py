"""The main views as the README and the tour show them.

    TEST_THOROUGH=1 TEST_SCREENSHOTS=1 scripts/test tests/browser/test_screenshots.py

writes them into docs/screenshots/. Without it they are made all the same, and thrown away.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.fakes.openai_server import MODEL, MODEL_ID, OpenAIServer, reply, usage
from tests.fakes.scripted_server import Answer, Request
from tests.support.browser import EXAMPLE_CARD, Account, signing_up
from tests.support.process import serving

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.thorough]

DOCS = Path(__file__).parents[2] / "docs"
LOREBOOK = DOCS / "example-lorebook.json"

TALE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "tale.json").read_text(encoding="utf-8")
)
"""A small library, a chat with its replies, and the events of the chat."""


class Storyteller(OpenAIServer):
    """Answers with the story's reply to the last line."""

    def usual(self, request: Request) -> Answer:
        if not self.wants_stream(request):
            return super().usual(request)
        last = request.body["messages"][-1]["content"]
        told = (each["reply"] for each in TALE["story"] if each["line"] in last)
        return reply(next(told, "The sea says nothing."), used=usage(1_240, 60, cached=512))


@contextmanager
def telling(folder: Path) -> Generator[str]:
    """A server with the storyteller for its model; its address."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Storyteller()) as model,
        serving(
            folder, registration="open", openai_base_url=model.url, openai_models=MODEL,
            default_model=MODEL_ID,
        ) as served,
    ):  # fmt: skip
        yield served.url


def portrait(tint: str, *, lamp: bool = False) -> bytes:
    """A picture for a card: a person in front of an evening sky."""
    size = 384
    sky = Image.linear_gradient("L").resize((size, size))
    picture = Image.composite(
        Image.new("RGB", (size, size), tint), Image.new("RGB", (size, size), "#12161f"), sky
    )
    draw = ImageDraw.Draw(picture, "RGBA")
    if lamp:
        draw.polygon([(192, 96), (384, 20), (384, 150)], fill="#f2c27b66")
        draw.polygon([(160, 384), (224, 384), (212, 120), (172, 120)], fill="#efe7d8")
        draw.rectangle((166, 220, 218, 262), fill="#b4541a")
        draw.rectangle((172, 84, 212, 120), fill="#f2c27b")
        draw.polygon([(164, 84), (220, 84), (192, 56)], fill="#b4541a")
    else:
        draw.ellipse((250, 50, 310, 110), fill="#f6e7c6")
        draw.ellipse((132, 120, 252, 252), fill="#0d1017")
        draw.pieslice((72, 250, 312, 520), 180, 360, fill="#0d1017")
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def put_picture(account: Account, character_id: str, data: bytes) -> None:
    answer = account.client.put(
        f"/characters/{character_id}/avatar", content=data, headers={"Content-Type": "image/png"}
    )
    assert answer.is_success, answer.text


def people(account: Account) -> str:
    """A library of characters; the one who keeps the lighthouse is the newest."""
    for each in TALE["cast"]:
        made = account.post("/characters", {"name": each["name"], "tags": each["tags"]})
        put_picture(account, made["id"], portrait(each["tint"]))
    marlena: str = account.import_card(EXAMPLE_CARD)["id"]
    put_picture(account, marlena, portrait("#24425c", lamp=True))
    return marlena


def a_tale(account: Account, character_id: str) -> dict[str, str]:
    """A chat that was played for a while, with lore and a chronicle: ids by name."""
    persona = account.post("/personas", {"name": "Tobias", "description": "A shipwrecked clerk."})
    chat = account.new_chat(
        character_ids=[character_id], persona_id=persona["id"], title="The light at Saltwick"
    )["id"]
    uploaded = account.client.post(
        "/lorebooks/import", files={"file": (LOREBOOK.name, LOREBOOK.read_bytes())}
    ).json()
    book = uploaded["lorebook"]["id"]
    account.client.patch(f"/lorebooks/{book}", json={"name": "Saltwick and the sea"})
    account.client.put(f"/chats/{chat}/lorebooks/{book}", json={"state": "linked"})
    chronicle = account.post("/chronicles", {"name": "The light at Saltwick"})["id"]
    settings = {"chronicle_id": chronicle, "budgets": {"total": 1_600, "reply_reserve": 300}}
    account.client.patch(f"/chats/{chat}/settings", json=settings)
    for event in TALE["events"]:
        account.post(f"/chronicles/{chronicle}/events", event)
    for each in TALE["story"]:
        account.turn(chat, text=each["line"])
    return {"chat": chat, "book": book, "chronicle": chronicle}


@pytest.fixture
def keep(tmp_path: Path) -> Path:
    """The folder that the pictures go to."""
    wanted = os.environ.get("TEST_SCREENSHOTS")  # noqa: TID251  no setting of the program's
    folder = DOCS / "screenshots" if wanted else tmp_path / "screenshots"
    folder.mkdir(exist_ok=True)
    return folder


def shoot(page: Page, path: Path) -> None:
    """A picture of the page in 256 colours, which takes a third of the bytes."""
    page.wait_for_load_state("networkidle")
    page.evaluate("document.fonts.ready")
    picture = Image.open(io.BytesIO(page.screenshot()))
    assert len(picture.convert("RGB").getcolors(2**24) or []) > 100, f"{path.name} shows nothing"
    picture.convert("RGB").quantize(256).save(path, optimize=True)


def test_the_main_views_have_their_pictures(chromium: Browser, tmp_path: Path, keep: Path) -> None:
    with telling(tmp_path) as url, signing_up(url, "Ada") as account:
        context = chromium.new_context(
            base_url=url, reduced_motion="reduce", viewport={"width": 1280, "height": 800}
        )
        marlena = people(account)
        ids = a_tale(account, marlena)
        account.enter(context)
        page = context.new_page()

        page.goto("/#/characters")
        expect(page.get_by_role("link", name="Marlena").first).to_be_visible()
        shoot(page, keep / "library.png")

        show_context(page, ids["chat"])
        shoot(page, keep / "inspector.png")

        page.goto(f"/#/chronicles/{ids['chronicle']}")
        expect(page.get_by_role("heading", name="The light at Saltwick", level=1)).to_be_visible()
        expect(page.get_by_role("list", name="Timeline")).to_contain_text("a silver key")
        shoot(page, keep / "chronicle.png")

        show_tester(page, ids["book"])
        shoot(page, keep / "lorebook.png")
        show_world(page, account, ids["chat"])
        shoot(page, keep / "campaign.png")
        context.close()

        small = on_a_phone(chromium, url, account)
        small.goto(f"/#/chats/{ids['chat']}")
        expect(small.get_by_role("article").last).to_contain_text("Mind the ninth step")
        shoot(small, keep / "phone.png")
        small.context.close()


def show_context(page: Page, chat: str) -> None:
    """The last reply and the prompt inspector."""
    last = page.request.get(f"/api/v1/chats/{chat}/messages?limit=1").json()["items"][0]
    page.goto(f"/#/chats/{chat}?panel=context&message={last['id']}")
    expect(page.get_by_role("article").last).to_contain_text("Mind the ninth step")
    page.get_by_role("button", name="Lore").last.click()
    expect(page.get_by_text("matched the key").first).to_be_visible()


def show_world(page: Page, account: Account, chat: str) -> None:
    """The last reply and the world panel."""
    world = TALE["world"]
    campaign = f"/campaigns/{account.post('/campaigns', world['campaign'])['id']}"
    shore = account.post(f"{campaign}/entities", world["place"])["id"]
    for each in world["people"]:
        account.post(f"{campaign}/entities", {**each, "location_id": shore})
    for kind in ("threads", "clocks", "facts"):
        for each in world[kind]:
            account.post(f"{campaign}/{kind}", each)
    joined = {"campaign_id": campaign.removeprefix("/campaigns/")}
    assert account.client.patch(f"/chats/{chat}", json=joined).is_success
    page.goto(f"/#/chats/{chat}?panel=world")
    expect(page.get_by_role("article").last).to_contain_text("Mind the ninth step")
    expect(page.get_by_role("list", name="Party")).to_contain_text("Tobias")
    page.get_by_role("slider").first.scroll_into_view_if_needed()


def show_tester(page: Page, book: str) -> None:
    """A lorebook with the result of its tester."""
    page.goto(f"/#/lorebooks/{book}")
    page.get_by_role("button", name="Test").click()
    page.get_by_label("Test text").fill(
        "We came to Saltwick by night, and nobody would talk about the lighthouse, or the dark "
        "lamp, or the navy."
    )
    expect(page.get_by_text("activated").first).to_be_visible()


def on_a_phone(chromium: Browser, url: str, account: Account) -> Page:
    context: BrowserContext = chromium.new_context(
        base_url=url, color_scheme="dark", reduced_motion="reduce", has_touch=True,
        viewport={"width": 390, "height": 780}, device_scale_factor=1.5,
    )  # fmt: skip
    account.enter(context)
    return context.new_page()
