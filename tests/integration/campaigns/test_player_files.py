"""A player's file and views contain no field that prompts of this player do not contain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.openai_server import DONE, chunk, stream
from tests.integration.campaigns.seagate import Table
from tests.support.compacting import Compactor, Evening, evening, model
from tests.support.memory import (
    preview,
    search,
    set_chat,
    settled,
    take_turn,
)
from tests.support.memory import remembering_server as server
from tests.support.server import Account, Running, ok
from tests.support.zips import unzipped, zipped

__all__ = ["model", "server"]

pytestmark = [pytest.mark.anyio]

ASKED = "Where is the obsidian ledger?"
"""A question that finds all planted texts."""

PRIVATE = {
    "alone", "attribute number", "attribute object", "attribute in a list", "bare word", "branch",
    "chat title", "comment", "deleted", "event keyword", "flag", "hidden clock", "hidden line",
    "locked", "old event", "old fact", "proposed term", "rejected term", "relation note",
    "resolved echo", "scene mood", "scene variant", "thought", "unknown attribute", "last dice",
    "play of no rules", "before",
}  # fmt: skip
"""Sources that are only in the game master's file, although players may know them."""


class Markers:
    """A marker for each source of text."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.by_source: dict[str, str] = {}

    def word(self, source: str) -> str:
        """Return the marker of a source."""
        return self.by_source.setdefault(source, f"{self.prefix}{source}q".replace(" ", ""))

    def text(self, source: str) -> str:
        return f"{self.word(source)} obsidian ledger"

    def number(self, source: str, value: int) -> int:
        self.by_source[source] = str(value)
        return value

    def found(self, *where: Any) -> set[str]:
        text = json.dumps(where, default=str)
        return {source for source, marker in self.by_source.items() if marker in text}


async def plant(table: Table, told: Markers, place: str, jake: str, audience: Any) -> None:
    """Put a marker into every text of items of every kind."""
    more, text = {"audience": audience}, told.text
    entity = await table.add(
        "entities", kind="npc", name=text("name"), aliases=[text("alias")], location_id=place,
        voice=[text("voice")],
        attributes={
            "keeps": text("attribute"),
            "pockets": [text("attribute list"), {"name": text("attribute in a list")}],
            "ties": {"who": text("attribute object")},
            "loyalty": told.number("attribute number", 7_310_000 + len(told.prefix)),
        },
        **{
            field: text(field)
            for field in ("status", "role", "disposition", "description", "personality", "wants")
        },
        **more,
    )  # fmt: skip
    other = await table.add("entities", kind="npc", name=text("other"), location_id=place, **more)
    await table.add(
        "relations", from_id=other["id"], to_id=jake, score=80, note=text("relation note"), **more
    )
    await table.add(
        "relations", from_id=other["id"], to_id=entity["id"], note=text("alone"), **more
    )
    fact = await table.add("facts", text=text("fact"), **more)
    await table.add("facts", text=text("fact here"), about_id=entity["id"], **more)
    await table.add("facts", text=text("old fact"), superseded_by=fact["id"], **more)
    await table.add(
        "threads", title=text("thread"), summary=text("thread summary"), next_step=text("next"),
        tension="urgent", objectives=[{"text": text("objective")}], giver_id=other["id"], **more,
    )  # fmt: skip
    await table.add("clocks", name=text("clock"), consequence=text("consequence"), **more)
    await table.add("clocks", name=text("hidden clock"), visible=False, **more)
    await table.add("echoes", text=text("echo"), **more)
    await table.add("echoes", text=text("resolved echo"), resolved=True, **more)
    await table.add(
        "scenes", title=text("scene"), location_id=place, stakes=text("stakes"), type=text("type"),
        mood=text("scene mood"), variant=text("scene variant"), **more,
    )  # fmt: skip
    closed = await table.add(
        "scenes", status="closed", title=text("old scene"), summary=text("scene summary"),
        key_moments=[text("moment")], **more,
    )  # fmt: skip
    await table.add(
        "chapters", title=text("chapter"), summary=text("chapter summary"),
        scene_ids=[closed["id"]], **more,
    )  # fmt: skip
    for status, term, meaning in (
        ("approved", "term", "definition"), ("raw", "raw term", "bare word"),
        ("proposed", "proposed term", "proposed term"),
        ("rejected", "rejected term", "rejected term"),
    ):  # fmt: skip
        await table.add(
            "glossary", term=told.word(term), definition=text(meaning), status=status, **more
        )
    gone = await table.add("facts", text=text("deleted"), **more)
    await table.delete(f"/facts/{gone['id']}")
    before = await table.add("facts", text=text("before"), **more)
    await table.change(f"/facts/{before['id']}", text="A fact that was put right.")


async def plant_events(account: Account, path: str, told: Markers, audience: Any) -> None:
    """Add an event of today, and a superseded one."""

    async def event(**fields: Any) -> str:
        body = {"audience": audience, **fields}
        return str((await account.post(f"{path}/events", body, 201))["id"])

    await event(
        summary=told.text("event"), day=5, time=told.text("event time"),
        where=told.text("event place"), who=[told.text("event who")],
        keywords=[told.text("event keyword")], pinned=True,
    )  # fmt: skip
    old = await event(summary=told.text("old event"))
    later = {"superseded_by": await event(summary="The ledger is back.")}
    await account.patch(f"{path}/events/{old}", later)


async def plant_lines(there: Evening, told: Markers, model: Compactor, audience: Any) -> None:
    """Add a line, its reply, an inactive reply and a hidden line."""
    account, chat = there.ada, there.chat
    viewpoint = audience if audience == "public" else audience[0]
    for_them = {"audience": audience, "viewpoint": viewpoint}
    text = f"{told.text('line')}{{{{// {told.word('comment')}}}}}"
    model.script(
        stream(
            chunk(reasoning_content=told.text("thought")),
            chunk(content=told.text("branch")), chunk("stop"), DONE,
        )
    )  # fmt: skip
    swiped = await take_turn(account, chat, text=text, **for_them)
    await take_turn(account, chat, regenerate_of=swiped, viewpoint=viewpoint)
    await take_turn(account, chat, text=told.text("hidden line"), **for_them)
    hidden = (await account.messages(chat))[-2]
    path = f"/messages/{hidden['id']}"
    await account.patch(path, {"hidden": True})
    await there.compacted()


async def export_files(table: Table, viewpoint: str) -> dict[str, dict[str, str]]:
    """Return the files of a viewpoint in both formats."""
    found: dict[str, dict[str, str]] = {}
    for form in ("json", "vault"):
        answer = await table.ask("GET", "/export", params={"format": form, "viewpoint": viewpoint})
        assert answer.status_code == 200, answer.text
        found[form] = {name: data.decode() for name, data in unzipped(answer.content).items()}
    return found


async def test_files_have_only_known_texts(ada: Account, server: Running, model: Compactor) -> None:
    settings = {"summaries": False, "tools": False}
    body = {"name": "Seagate", "day": 5, "rules": "blades", "settings": settings}
    table = Table(ada, await ada.post("/campaigns", body, 201))
    shop = (await table.add("entities", kind="location", name="The Salty Sigil"))["id"]
    public, jakes = Markers("pq"), Markers("jqx")
    jake = (
        await table.add(
            "entities", kind="pc", name="Jake", location_id=shop,
            attributes={
                "class": public.text("class"),
                "gear": [{"name": public.text("gear"), "charges": public.number("charges", 4711)}],
            },
        )
    )["id"]  # fmt: skip
    await table.change(
        "",
        time_of_day=public.text("time"),
        flags={public.word("flag"): True},
        attributes={
            "heat": 5,
            "wanted": 2,
            "cult": public.text("unknown attribute"),
            "roll": {"seed": public.text("last dice")},
            "play": {"mood": public.text("play of no rules")},
        },
        locked=["day", f"attributes.{public.word('locked')}"],
        brief={name: public.text(name) for name in ("setting", "hook", "roster", "city")},
    )
    there = await evening(server, table)
    chat = there.chat
    await ada.patch(f"/chats/{chat}", {"title": public.text("chat title")})
    chronicle = (await ada.get(f"/chats/{chat}/settings"))["chronicle_id"]
    seen: dict[str, list[Any]] = {}
    for viewpoint, told, audience in (("public", public, "public"), (jake, jakes, [jake])):
        await plant(table, told, shop, jake, audience)
        await plant_events(ada, f"/chronicles/{chronicle}", told, audience)
        await set_chat(ada, chat, memory={"min_relevance": 0}, names=True)
        await settled(server)
        asked = len(model.requests)
        await plant_lines(there, told, model, audience)
        await settled(server)
        shown: list[Any] = [
            await preview(ada, chat, text, viewpoint=viewpoint)
            for text in (ASKED, "continue", told.text("name"), told.text("old scene"))
        ]
        shown.append(await table.get("/context", chat_id=chat, text=ASKED, viewpoint=viewpoint))
        shown += [
            await search(ada, text, viewpoint=viewpoint, chat_id=chat, limit=100)
            for text in (ASKED, told.text("attribute"))
        ]
        prompts = [each.body for each in model.requests[asked:] if "messages" in each.body]
        seen[viewpoint] = [*seen.get("public", []), *shown, *prompts]

    whole = await export_files(table, "gm")
    for viewpoint, known in (("public", [public]), (jake, [public, jakes])):
        files = await export_files(table, viewpoint)
        for told in known:
            assert told.found(files) - told.found(seen[viewpoint]) == set()
            # The file contains all other sources.
            assert set(told.by_source) - told.found(files) == PRIVATE & set(told.by_source)
            assert told.found(whole) == set(told.by_source)
        for form in files.values():
            upload = {"file": ("player.zip", zipped(form), "application/zip")}
            ok(await ada.ask("POST", "/campaigns/import", files=upload), 201)
        if viewpoint == "public":
            assert jakes.found(files) == set()
        state = await table.get("/state", viewpoint=viewpoint)
        for told in known:
            assert told.found(state) - told.found(files) == set()
        assert known[-1].found(state) > {"name", "thread", "clock", "echo", "stakes"}
        assert (state["flags"], state["locked"]) == ({}, [])
        for path, members in (("/changes", "items"), ("/versions", "items"),
                              ("/comparison", "differences")):  # fmt: skip
            assert (await table.get(path, viewpoint=viewpoint))[members] == []
            assert (await table.get(path, viewpoint="gm"))[members] != []
        world = json.loads(files["json"]["campaign_data.json"])["world"]
        assert world["attributes"] == {"heat": 5, "wanted": 2, "play": {"mood": "scene"}}
        assert "locked" not in json.dumps(files["json"])
