"""Viewpoints: prompts, contexts and searches contain only texts that they may know."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.fakes.openai_server import DONE, OpenAIServer, chunk, reply, stream
from tests.integration.campaigns.seagate import Table, new_session, new_table
from tests.support.chronicling import last_run, opt_in
from tests.support.memory import (
    context_of,
    preview,
    remembering,
    search,
    set_chat,
    settled,
    take_turn,
)
from tests.support.memory import remembering_server as server
from tests.support.server import Account, Running, ok, problem
from tests.support.shared import vendor as model

__all__ = ["model", "server"]

pytestmark = [pytest.mark.anyio]

ASKED = "Where is the obsidian ledger?"
"""A question that finds all planted texts."""

NEVER = {"thinking", "relation", "alias"}
"""Sources with texts that are in no prompt. Some only help to find their items."""

ENTITY_TEXTS = ("status", "role", "disposition", "description", "personality", "wants")


@pytest.fixture
async def table(ada: Account) -> Table:
    return await new_world(ada)


async def new_world(account: Account, **settings: Any) -> Table:
    return await new_table(account, settings={"summaries": False, **settings})


async def open_session(table: Table) -> str:
    return await new_session(table, first_mes="")


async def read_chronicle_id(account: Account, chat: str) -> str:
    settings = await account.get(f"/chats/{chat}/settings")
    return str(settings["chronicle_id"])


class Planted:
    """Secret texts of every source, each with its own marker."""

    def __init__(self, prefix: str, audience: Any, topic: str) -> None:
        self.prefix, self.audience, self.topic = prefix, audience, topic
        self.markers: dict[str, str] = {}

    def mark(self, source: str) -> str:
        marker = self.markers.setdefault(source, f"{self.prefix}{source}".replace("_", ""))
        return f"{marker} {self.topic}"

    async def items(self, table: Table, place: str, known: str) -> None:
        """Add items of each kind, including a person who is present."""
        more = {"audience": self.audience}
        hidden = await table.add("entities", kind="location", name=self.mark("place"), **more)
        entity = await table.add(
            "entities",
            kind="npc",
            name=self.mark("name"),
            aliases=[self.mark("alias")],
            voice=[self.mark("voice")],
            location_id=place,
            attributes={"keeps": self.mark("attribute")},
            **{field: self.mark(field) for field in ENTITY_TEXTS},
            **more,
        )
        await table.add(
            "entities", kind="npc", name=f"{self.prefix}wanderer", location_id=hidden["id"]
        )
        await table.add("facts", text=self.mark("fact_here"), about_id=known, **more)
        await table.add("facts", text=self.mark("fact"), **more)
        await table.add(
            "relations", from_id=entity["id"], to_id=known, score=80, note=self.mark("relation"),
            **more,
        )  # fmt: skip
        await table.add(
            "threads", title=self.mark("thread"), summary=self.mark("thread_summary"),
            next_step=self.mark("next"), tension="urgent", **more,
        )  # fmt: skip
        await table.add("clocks", name=self.mark("clock"), consequence=self.mark("full"), **more)
        await table.add("echoes", text=self.mark("echo"), **more)
        await table.add(
            "scenes", status="closed", title=self.mark("scene_title"),
            summary=self.mark("scene"), key_moments=[self.mark("moment")], **more,
        )  # fmt: skip
        await table.add(
            "chapters", title=self.mark("chapter_title"), summary=self.mark("chapter"), **more
        )
        await table.add(
            "glossary", term=self.mark("term"), definition=self.mark("definition"), **more
        )

    async def events(self, account: Account, chronicle: str) -> None:
        """Add an event of today, an old one and a pinned one."""
        path = f"/chronicles/{chronicle}/events"
        for source, fields in (
            ("today", {"day": 5}), ("event", {"day": 1}), ("pinned", {"pinned": True}),
        ):  # fmt: skip
            body = {"summary": self.mark(source), "audience": self.audience, **fields}
            made = await account.post(path, body, 201)
            assert made["audience"] == self.audience

    async def lines(self, account: Account, chat: str, model: OpenAIServer) -> str:
        """Add a line and its reply with thoughts; return the id of the reply."""
        model.script(
            stream(
                chunk(reasoning_content=self.mark("thinking")),
                chunk(content=self.mark("reply")),
                chunk("stop"),
                DONE,
            )
        )
        reply_id = await take_turn(account, chat, text=self.mark("line"), audience=self.audience)
        [line, answer] = (await account.messages(chat))[-2:]
        assert (line["audience"], answer["audience"]) == (self.audience, self.audience)
        assert answer["thinking"] == self.mark("thinking")
        return reply_id

    def unmarked(self, prompts: list[Any], words: str) -> list[str]:
        """Return entries of prompts that contain a marker without its audience."""
        found: list[str] = []
        for message in (each for prompt in prompts for each in prompt["messages"]):
            entry: list[str] = []
            for line in message["content"].split("\n"):
                entry = [line] if line.startswith(("- ", "**", "#")) else [*entry, line]
                if any(each in line for each in self.markers.values()):
                    said = "\n".join(entry)
                    found += [said] if words not in said else []
        return found

    def found(self, *where: Any) -> set[str]:
        """Return the sources of the markers in these values."""
        text = json.dumps(where, default=str)
        return {source for source, marker in self.markers.items() if marker in text}


async def test_no_prompt_contains_secrets_of_others(
    ada: Account, table: Table, server: Running, model: OpenAIServer
) -> None:
    shop = await table.add("entities", kind="location", name="The Salty Sigil")
    jake = (await table.add("entities", kind="pc", name="Jake", location_id=shop["id"]))["id"]
    mara = (await table.add("entities", kind="npc", name="Mara", location_id=shop["id"]))["id"]
    # Equal texts would be left out as repetitions.
    secret = Planted("gmq", "gm", "obsidian ledger beneath basalt moths")
    jakes = Planted("jakeq", [jake], "obsidian ledger")
    chat = await open_session(table)
    chronicle = await read_chronicle_id(ada, chat)
    for planted in (jakes, secret):
        await planted.items(table, shop["id"], mara)
        await planted.events(ada, chronicle)
    await take_turn(ada, chat, text="We talk about the weather.")
    for planted in (jakes, secret):
        through = await planted.lines(ada, chat, model)
    body = {"text": secret.mark("summary"), "through_message_id": through}
    summary = await ada.put(f"/chats/{chat}/summary", body)
    assert summary["audience"] == "gm"
    public_id = await take_turn(ada, chat, text="Good morning.", viewpoint="public")
    await ada.ask(
        "PATCH", f"/chats/{chat}/settings", json={"memory": {"min_relevance": 0}, "names": True}
    )
    await settled(server)

    async def views(viewpoint: str) -> list[Any]:
        """Return all contexts, search results and prompts of a viewpoint."""
        asked = len(model.requests)
        seen: list[Any] = [
            await preview(ada, chat, text, viewpoint=viewpoint)
            for text in (None, ASKED, "continue", "Mara looks at jakeqwanderer and gmqwanderer.")
        ]
        seen.append(await table.get("/context", chat_id=chat, text=ASKED, viewpoint=viewpoint))
        seen.append(await search(ada, ASKED, viewpoint=viewpoint))
        seen.append(await search(ada, ASKED, viewpoint=viewpoint, chat_id=chat, limit=100))
        await ada.turn(chat, impersonate=True, viewpoint=viewpoint)
        model.script(reply('{"lines": ["One.", "Two."]}'))
        asked_for = {"viewpoint": viewpoint, "count": 2}
        await ada.post(f"/chats/{chat}/suggestions", asked_for)
        for turn in (
            {"text": "And now?"}, {"text": "Next"}, {"continue": True},
            {"regenerate_of": public_id},
        ):  # fmt: skip
            if "regenerate_of" in turn:
                turn["regenerate_of"] = (await ada.messages(chat))[-1]["id"]
            reply_id = await take_turn(ada, chat, **turn, viewpoint=viewpoint)
            seen.append(await context_of(ada, reply_id))
        prompts = [each.body for each in model.requests[asked:] if "messages" in each.body]
        assert len(prompts) >= 6
        return [*seen, prompts]

    for viewpoint in ("public", mara):
        seen = await views(viewpoint)
        assert secret.found(seen) == set()
        assert jakes.found(seen) == set()
        assert "We talk about the weather." in json.dumps(seen)
    for_jake = await views(jake)
    assert secret.found(for_jake) == set()
    gm = await views("gm")
    every = set(jakes.markers) - NEVER
    assert every - jakes.found(for_jake) == set()
    assert every - jakes.found(gm) == set()
    assert set(secret.markers) - NEVER - secret.found(gm) == set()
    # The narrator sees who else knows a secret.
    assert secret.unmarked(gm[-1], "secret: game master only") == []
    assert jakes.unmarked(gm[-1], "known to Jake only") == []
    # Mara is there too, and does not know.
    assert jakes.unmarked(for_jake[-1], "known to Jake only") == []


async def test_invalid_audiences_are_refused(ada: Account, table: Table) -> None:
    jake = (await table.add("entities", kind="pc", name="Jake"))["id"]
    gone = (await table.add("entities", kind="npc", name="Gone"))["id"]
    await table.delete(f"/entities/{gone}")
    thread = (await table.add("threads", title="The tide"))["id"]
    other = (await (await new_world(ada)).add("entities", kind="pc", name="Kim"))["id"]
    chat, plain = await open_session(table), str((await ada.new_chat())["id"])
    turns = "/chats/{}/turns"
    before = await ada.messages(chat)
    for where, body in (
        (chat, {"text": "Psst.", "audience": [other]}),
        (chat, {"text": "Psst.", "audience": [gone]}),
        (chat, {"text": "Psst.", "audience": [thread]}),
        (chat, {"text": "Psst.", "audience": [str(uuid4())]}),
        (chat, {"text": "Psst.", "audience": "nobody"}),
        (chat, {"text": "Psst.", "audience": [jake] * 51}),
        (chat, {"text": "Psst.", "audience": "gm", "viewpoint": "public"}),
        (chat, {"text": "Psst.", "viewpoint": "nobody"}),
        (chat, {"text": "Psst.", "viewpoint": other}),
        (chat, {"impersonate": True, "audience": "gm"}),
        (plain, {"text": "Psst.", "audience": "gm"}),
        (plain, {"text": "Psst.", "audience": [jake]}),
        (plain, {"text": "Psst.", "viewpoint": jake}),
    ):
        answer = await ada.ask("POST", turns.format(where), json=body)
        problem(answer, 422, "validation-failed")
    assert await ada.messages(chat) == before
    await take_turn(ada, chat, text="Psst.", audience=[jake])
    await take_turn(ada, plain, text="Psst.", audience="public", viewpoint="public")
    line = (await ada.messages(chat))[-2]
    for body in ({"audience": [other]}, {"audience": "nobody"}):
        answer = await ada.ask("PATCH", f"/messages/{line['id']}", json=body)
        problem(answer, 422, "validation-failed")
    both = await ada.ask(
        "PATCH", f"/messages/{line['id']}", json={"audience": "gm", "hidden": True}
    )
    problem(both, 400, "bad-request")
    own = (await ada.messages(plain))[-1]
    answer = await ada.ask("PATCH", f"/messages/{own['id']}", json={"audience": "gm"})
    problem(answer, 422, "validation-failed")
    chronicle = (await ada.post("/chronicles", {"name": "Plain"}, 201))["id"]
    for path, audience in ((chronicle, "gm"), (await read_chronicle_id(ada, chat), [other])):
        body = {"summary": "It rained.", "audience": audience}
        answer = await ada.ask("POST", f"/chronicles/{path}/events", json=body)
        problem(answer, 422, "validation-failed")


async def test_a_viewpoint_cannot_continue_a_secret_line(ada: Account, table: Table) -> None:
    jake = (await table.add("entities", kind="pc", name="Jake"))["id"]
    chat = await open_session(table)
    reply_id = await take_turn(ada, chat, text="Psst.", audience=[jake])
    for body in (
        {"regenerate_of": reply_id, "viewpoint": "public"},
        {"continue": True, "viewpoint": "public"},
    ):
        answer = await ada.ask("POST", f"/chats/{chat}/turns", json=body)
        problem(answer, 422, "validation-failed")
    # Swipes and edits keep the audience of their message.
    swipe = await take_turn(ada, chat, regenerate_of=reply_id, viewpoint=jake)
    [line, answered] = (await ada.messages(chat))[-2:]
    assert (answered["id"], answered["audience"]) == (swipe, [jake])
    edited = await ada.ask("PATCH", f"/messages/{line['id']}", json={"text": "Psst!"})
    assert ok(edited)["audience"] == [jake]
    path = f"/messages/{edited.json()['id']}"
    wider = await ada.patch(path, {"text": "Psst!!", "audience": "gm"})
    assert wider["audience"] == "gm"
    await ada.post(f"{path}/activate", {})
    # A preview leaves out the last line and does not search for its text.
    assert "Psst!" not in json.dumps(await preview(ada, chat, viewpoint="public"))
    assert "Psst!" in json.dumps(await preview(ada, chat, viewpoint=jake))
    answered_id = await take_turn(ada, chat)
    last = (await ada.messages(chat))[-1]
    assert (last["id"], last["audience"]) == (answered_id, [jake])


async def test_history_has_the_last_known_rounds(ada: Account, model: OpenAIServer) -> None:
    table = await new_world(ada, summaries=True, memory_interval=20)
    chat = await open_session(table)
    jake = (await table.add("entities", kind="pc", name="Jake"))["id"]
    replies: list[str] = []
    for number in range(1, 9):
        model.script(reply(f"Answer {number}."))
        replies.append(await take_turn(ada, chat, text=f"Round {number}."))
    for number in range(1, 9):
        model.script(reply(f"Aside {number}, " + "beneath the basalt moths, " * 20))
        audience: Any = [jake] if number == 4 else "gm"
        await take_turn(ada, chat, text=f"Whisper {number}.", audience=audience)

    async def shown(viewpoint: str) -> list[str]:
        prompt = (await preview(ada, chat, "And now?", viewpoint=viewpoint))["prompt"]
        lines = [each["text"] for each in prompt if each["role"] == "user"][:-1]
        return [line.rpartition(")")[2].strip(" .") for line in lines]

    rounds = [f"Round {number}" for number in range(1, 9)]
    whispers = [f"Whisper {number}" for number in range(1, 9)]
    # Room for about two of the long asides.
    await set_chat(ada, chat, budgets={"history": 400})
    assert await shown("gm") == whispers[-2:]
    assert await shown("public") == rounds
    assert await shown(jake) == [*rounds, "Whisper 4"]

    # The summary replaces the rounds before the last four known ones.
    body = {"text": "Six rounds.", "through_message_id": replies[5]}
    assert (await ada.put(f"/chats/{chat}/summary", body))["audience"] == "public"
    assert await shown("public") == rounds[4:]
    assert await shown(jake) == [*rounds[5:], "Whisper 4"]


async def test_impersonation_knows_only_the_player(ada: Account, model: OpenAIServer) -> None:
    table = await new_world(ada, hidden_information=True)
    chat = await open_session(table)
    await table.add("facts", text="The pears are poisoned.", audience="gm")
    await table.add("threads", title="The poisoned pears", tension="urgent", audience="gm")

    async def written(**body: Any) -> str:
        asked = len(model.requests)
        await ada.turn(chat, impersonate=True, **body)
        model.script(reply('{"lines": ["One.", "Two."]}'))
        await ada.post(f"/chats/{chat}/suggestions", body)
        return json.dumps([each.body for each in model.requests[asked:]])

    await take_turn(ada, chat, text="I look at the pears.")
    await table.change("", settings={"hidden_information": False})
    assert "poisoned" in await written()
    await table.change("", settings={"hidden_information": True})
    assert "poisoned" not in await written()
    jake = (await table.add("entities", kind="pc", name="Jake"))["id"]
    await table.add("threads", title="Jake's itch", tension="urgent", audience=[jake])
    assert "itch" in await written()
    await table.add("entities", kind="pc", name=ada.name)
    said = await written()
    assert "itch" not in said
    assert "poisoned" not in said
    assert "itch" in await written(viewpoint=jake)
    answer = await ada.ask(
        "POST", f"/chats/{chat}/turns", json={"impersonate": True, "viewpoint": "gm"}
    )
    problem(answer, 422, "validation-failed")
    # The narrator knows everything.
    assert "poisoned" in json.dumps(await preview(ada, chat, "Hm?"))


async def test_a_chat_has_a_viewpoint(ada: Account, table: Table, model: OpenAIServer) -> None:
    jake = (await table.add("entities", kind="pc", name="Jake"))["id"]
    other = (await (await new_world(ada)).add("entities", kind="pc", name="Kim"))["id"]
    chat = await open_session(table)
    await table.add("threads", title="The poisoned pears", tension="urgent", audience="gm")
    await table.add("threads", title="Jake's itch", tension="urgent", audience=[jake])
    path = f"/chats/{chat}/settings"
    for viewpoint, words in (("public", []), (jake, ["itch"]), (None, ["poisoned", "itch"])):
        await ada.patch(path, {"viewpoint": viewpoint})
        asked = len(model.requests)
        await take_turn(ada, chat, text="Continue")
        told = json.dumps([each.body for each in model.requests[asked:]])
        shown = json.dumps(await preview(ada, chat, "Continue"))
        for text in (told, shown):
            assert [word for word in ("poisoned", "itch") if word in text] == words
    # A turn may say otherwise.
    await ada.patch(path, {"viewpoint": "public"})
    assert "poisoned" in json.dumps(await preview(ada, chat, "Continue", viewpoint="gm"))
    for viewpoint in (other, "nobody", str(uuid4())):
        answer = await ada.ask("PATCH", path, json={"viewpoint": viewpoint})
        problem(answer, 422, "validation-failed")
    assert (await ada.get(path))["viewpoint"] == "public"


async def test_limiting_a_message_limits_both(ada: Account, table: Table, server: Running) -> None:
    jake = (await table.add("entities", kind="pc", name="Jake"))["id"]
    chat = await open_session(table)
    for text in ("The heron waits.", "A kettle sings.", "Snow falls."):
        await take_turn(ada, chat, text=text)
    lines = await ada.messages(chat)
    summary = {"text": "A heron waited.", "through_message_id": lines[3]["id"]}
    path = f"/chats/{chat}/summary"
    assert (await ada.put(path, summary))["audience"] == "public"
    await settled(server)

    async def found(**query: Any) -> list[str]:
        items = await search(ada, "heron", sources="message", **query)
        words = {"sparse", "sparse_window"}
        return [each["text"] for each in items if words & each["scores"].keys()]

    assert "A kettle sings." in await found(viewpoint="public")  # its line is near the heron's
    heron = next(each for each in lines if each["text"] == "The heron waits.")
    changed = await ada.patch(f"/messages/{heron['id']}", {"audience": [jake]})
    assert changed["audience"] == [jake]
    assert (await ada.get(path))["audience"] == "gm"
    assert "The heron waits." not in await found(viewpoint="public")
    await settled(server)
    assert await found(viewpoint="public") == []
    assert await found(viewpoint=jake) == ["The heron waits."]
    fork = (await ada.post(f"/chats/{chat}/fork", {"message_id": lines[-1]["id"]}, 201))["id"]
    assert "heron" not in json.dumps(await preview(ada, fork, viewpoint="public"))
    assert "A heron waited." in json.dumps(await preview(ada, fork))
    assert (await ada.get(f"/chats/{fork}/summary"))["audience"] == "gm"
    await ada.patch(f"/messages/{heron['id']}", {"audience": "public"})
    assert (await ada.get(path))["audience"] == "public"


async def test_the_audience_of_events_survives_all_transfers(ada: Account, table: Table) -> None:
    jake = (await table.add("entities", kind="pc", name="Jake"))["id"]
    kim = (await table.add("entities", kind="pc", name="Kim"))["id"]
    chat = await open_session(table)
    path = f"/chronicles/{await read_chronicle_id(ada, chat)}"

    async def event(summary: str, audience: Any) -> str:
        body = {"summary": summary, "audience": audience}
        return str((await ada.post(f"{path}/events", body, 201))["id"])

    shared, one = await event("Both saw it.", [jake, kim]), await event("Jake saw it.", [jake])
    everyone = await event("All saw it.", "public")
    merge = {"event_ids": [shared, one, everyone]}
    merged = await ada.post(f"{path}/events/merge", merge, 201)
    assert merged["audience"] == [jake]
    secret = await event("Nobody saw it.", "gm")
    patched = await ada.patch(f"{path}/events/{secret}", {"audience": [kim]})
    assert patched["audience"] == [kim]
    file = await ada.get(f"{path}/export")
    assert "public" not in {each["audience"] for each in file["events"]}
    sent = {"file": ("events.json", json.dumps(file).encode())}
    imported = ok(await ada.ask("POST", "/chronicles/import", files=sent), 201)
    elsewhere = f"/chronicles/{imported['chronicle_id']}/events"
    events = (await ada.get(elsewhere))["items"]
    assert [each["audience"] for each in events] == ["gm", "gm"]
    reply_id = await take_turn(ada, chat, text="Well?")
    fork = (await ada.post(f"/chats/{chat}/fork", {"message_id": reply_id}, 201))["id"]
    copies = (await ada.get(f"/chronicles/{await read_chronicle_id(ada, fork)}/events"))["items"]
    assert sorted(each["audience"][0] for each in copies) == sorted([jake, kim])


async def test_the_agent_keeps_the_audience_of_its_lines(
    sqlite_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("data")
    async with remembering(sqlite_url, folder) as server, server.account() as ada:
        table = await new_world(ada)
        chat = await open_session(table)
        chronicle = await opt_in(ada, chat)
        await take_turn(ada, chat, text="Ophelia found the silver key in Blackwater.")
        await last_run(ada, chat)
        secret = "Ophelia betrayed Marcus at Blackwater. The Gilded Moth is a den of spies."
        await take_turn(ada, chat, text=secret, audience="gm")
        await last_run(ada, chat)
        await take_turn(ada, chat, text="Marcus found a lantern in Blackwater.")
        await last_run(ada, chat)
        events = (await ada.get(f"/chronicles/{chronicle}/events"))["items"]
        audiences = {
            word: each["audience"]
            for each in events
            for word in ("silver key", "betrayed", "lantern")
            if word in each["summary"]
        }
        assert audiences == {"silver key": "public", "betrayed": "gm", "lantern": "public"}
        books = (await ada.get("/lorebooks"))["items"]
        for book in books:
            entries = await ada.get(f"/lorebooks/{book['id']}/entries")
            assert "spies" not in json.dumps(entries)
