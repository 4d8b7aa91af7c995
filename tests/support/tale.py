"""An account with a library, a played chat, lore, a chronicle and a campaign, for pictures."""

from __future__ import annotations

import io
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal
from PIL import Image, ImageDraw

from tests.fakes.openai_server import MODEL, MODEL_ID, OpenAIServer, reply, usage
from tests.fakes.scripted_server import Answer, Request
from tests.support.browser import EXAMPLE_CARD, Account
from tests.support.process import serving

LOREBOOK = EXAMPLE_CARD.parent / "example-lorebook.json"

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


def a_world(account: Account, chat: str) -> str:
    """The chat's campaign, with its place, people, threads, clocks and facts; its id."""
    world = TALE["world"]
    campaign = f"/campaigns/{account.post('/campaigns', world['campaign'])['id']}"
    shore = account.post(f"{campaign}/entities", world["place"])["id"]
    for each in world["people"]:
        account.post(f"{campaign}/entities", {**each, "location_id": shore})
    for kind in ("threads", "clocks", "facts"):
        for each in world[kind]:
            account.post(f"{campaign}/{kind}", each)
    campaign_id = campaign.removeprefix("/campaigns/")
    joined = account.client.patch(f"/chats/{chat}", json={"campaign_id": campaign_id})
    assert joined.is_success
    return campaign_id
