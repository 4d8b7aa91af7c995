"""An account with a library, played chats, lore, a chronicle and a campaign, for pictures."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from tests.fakes.openai_server import OpenAIServer, reply, usage
from tests.fakes.scripted_server import Answer, Request
from tests.support.browser import EXAMPLE_CARD, Account
from tests.support.drawings import ledger_page, portrait
from tests.support.process import serving

LOREBOOK = EXAMPLE_CARD.parent / "example-lorebook.json"

TALE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "tale.json").read_text(encoding="utf-8")
)
"""A small library, chats with their replies, and the events and the world of one."""

MODEL = "mistral-large"
MODEL_ID = f"openai/{MODEL}"
PRICES = {MODEL_ID: [3.0, 15.0, 0.3]}

REPLIES: list[dict[str, str]] = [
    *TALE["story"],
    *TALE["chats"],
    *TALE["group"]["story"],
    TALE["group"]["secret"],
    TALE["picture"],
]
"""Lines of the user with their replies."""


class Storyteller(OpenAIServer):
    """Answers with the story's reply to the last line, and with the titles of the chats."""

    def usual(self, request: Request) -> Answer:
        messages = json.dumps(request.body.get("messages"), ensure_ascii=False)
        if "Task: title" in messages:
            return reply(next(each["title"] for each in TALE["chats"] if each["line"] in messages))
        if not self.wants_stream(request):
            return super().usual(request)
        told = [(messages.rfind(each["line"]), each["reply"]) for each in REPLIES]
        at, text = max(told)
        return reply(
            text if at >= 0 else "The sea says nothing.", used=usage(1_240, 60, cached=512)
        )


@contextmanager
def telling(folder: Path) -> Generator[str]:
    """A server with the storyteller for its model; its address."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Storyteller()) as model,
        serving(
            folder, registration="open", openai_base_url=model.url, openai_models=MODEL,
            default_model=MODEL_ID, model_prices=json.dumps(PRICES),
        ) as served,
    ):  # fmt: skip
        yield served.url


def put_picture(account: Account, character_id: str, data: bytes) -> None:
    answer = account.client.put(
        f"/characters/{character_id}/avatar", content=data, headers={"Content-Type": "image/png"}
    )
    assert answer.is_success, answer.text


def people(account: Account) -> str:
    """A library of characters; the one who keeps the lighthouse is the newest."""
    for each in TALE["cast"]:
        made = account.post("/characters", {"name": each["name"], "tags": each["tags"]})
        put_picture(account, made["id"], portrait(each["tint"], each["shape"]))
        if each["favourite"]:
            marked = account.client.patch(f"/characters/{made['id']}", json={"is_favourite": True})
            assert marked.is_success
    marlena: str = account.import_card(EXAMPLE_CARD)["id"]
    put_picture(account, marlena, portrait("#24425c", "lighthouse"))
    return marlena


def find_people(account: Account) -> dict[str, str]:
    """Return the ids of all characters by name."""
    return {each["name"]: each["id"] for each in account.get("/characters")["items"]}


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


def some_chats(account: Account) -> None:
    """Short chats with the other characters. The model writes their titles."""
    account.client.patch("/me/settings", json={"enrichment": {"model": MODEL_ID}})
    ids = find_people(account)
    for each in TALE["chats"]:
        chat = account.new_chat(character_ids=[ids[each["character"]]])["id"]
        account.turn(chat, text=each["line"])
        tagged = account.client.patch(f"/chats/{chat}", json={"tags": each["tags"]})
        assert tagged.is_success


def a_picture(account: Account, chat: str) -> None:
    """A line with a picture, and its reply."""
    picture = {"file": ("ledger of the Anna.png", ledger_page(), "image/png")}
    sent = account.client.post(f"/chats/{chat}/files", files=picture)
    assert sent.is_success, sent.text
    account.turn(chat, text=TALE["picture"]["line"], files=[sent.json()["id"]])


def a_council(account: Account) -> dict[str, str]:
    """A chat of three characters with a whisper, and memories of one: ids by name."""
    group, ids = TALE["group"], find_people(account)
    members = {name: ids[name] for name in ("Marlena", *group["members"])}
    personas = account.get("/personas")["items"]
    chat = account.new_chat(
        character_ids=list(members.values()), title=group["title"], persona_id=personas[0]["id"]
    )["id"]
    for each in group["story"]:
        account.turn(chat, text=each["line"], speaker=ids[each["speaker"]])
    secret, listener = group["secret"], ids[group["secret"]["listener"]]
    account.turn(chat, text=secret["line"], speaker=listener, audience=[listener])
    for text in group["memories"]:
        account.post(f"/characters/{listener}/memories", {"chat_id": chat, "text": text})
    return {"chat": chat, **members}


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
