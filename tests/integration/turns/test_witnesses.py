"""Characters of a group: prompts, searches and files contain only what each of them witnessed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update

from backend.chats import repository
from backend.chats.models import Message
from backend.core.audience import decode_audience, encode_audience, filter_known_to, may_know
from tests.fakes.openai_server import DONE, OpenAIServer, chunk, reply, stream
from tests.integration.campaigns.seagate import Table, new_table
from tests.integration.turns.seeding import identity_of, seed, stored_lines
from tests.support.memory import (
    context_of,
    link,
    new_book,
    note,
    preview,
    remembering,
    search,
    set_chat,
    settled,
    take_turn,
    whole,
)
from tests.support.memory import remembering_server as server
from tests.support.server import Account, Running, ok, problem
from tests.support.shared import vendor as model
from tests.support.statements import record_statements
from tests.support.thorough import rounds

__all__ = ["model", "remembering", "server"]

pytestmark = [pytest.mark.anyio]

ASKED = "Where is the obsidian ledger?"
"""A question that finds all planted texts."""

TOPIC = "obsidian ledger beneath basalt moths"


@dataclass(slots=True)
class Ensemble:
    """A chat of several characters. Names are shorter than ids."""

    ada: Account
    chat: str
    ids: dict[str, str]
    said: dict[str, str] = field(default_factory=dict[str, str])

    async def turn(self, speaker: str, text: str | None = None, **more: Any) -> str:
        """Let a character reply; return the id of the reply."""
        if text is not None:
            more["text"] = text
        return await take_turn(self.ada, self.chat, speaker=self.ids[speaker], **more)

    async def whisper(self, speaker: str, text: str, *others: str) -> str:
        listeners = [self.ids[each] for each in (speaker, *others)]
        return await self.turn(speaker, text, audience=listeners)

    async def set_presence(self, name: str, presence: str, **more: Any) -> None:
        path = f"/chats/{self.chat}/members/{self.ids[name]}"
        ok(await self.ada.ask("PATCH", path, json={"presence": presence, **more}))

    async def preview(self, name: str | None, text: str | None = None) -> dict[str, Any]:
        """Return the next prompt for a speaker, or from the viewpoint `gm`."""
        asked: dict[str, str] = {}
        if name is not None:
            asked = {"speaker": self.ids[name]} if name in self.ids else {"viewpoint": name}
        return await preview(self.ada, self.chat, text, **asked)

    async def export(self, name: str, file_format: str) -> str:
        path = f"/chats/{self.chat}/export"
        query = {"format": file_format, "viewpoint": self.ids.get(name, name)}
        answer = await self.ada.ask("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.text


async def gather(ada: Account, *names: str, **fields: Any) -> Ensemble:
    """Open a chat of characters without greetings and descriptions."""
    ids: dict[str, str] = {}
    for name in names:
        made = await ada.new_character(name=name, first_mes="", description="", scenario="")
        ids[name] = made["id"]
    chat = await ada.new_chat(character_ids=list(ids.values()), **fields)
    return Ensemble(ada, chat["id"], ids)


def unknown(context: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the items that the viewpoint does not know: kind and title."""
    return [
        (item["kind"], item["title"])
        for item in context["left_out"]
        if item["reason"].startswith("not known to ")
    ]


def prompts(model: OpenAIServer, since: int) -> list[Any]:
    return [each.body for each in model.requests[since:] if "messages" in each.body]


class Planted:
    """Secrets by their source, each with its own marker."""

    def __init__(self) -> None:
        self.markers: dict[str, str] = {}

    def mark(self, source: str) -> str:
        marker = self.markers.setdefault(source, f"xq{source}qx")
        return f"{marker} {TOPIC}"

    def found(self, *where: Any) -> set[str]:
        text = json.dumps(where, default=str)
        return {source for source, marker in self.markers.items() if marker in text}


async def plant(
    cast: Ensemble, table: Table, model: OpenAIServer, server: Running
) -> tuple[Planted, str]:
    """Tell Alda secrets from every source: by whispers, and while Bor is away.

    Returns the secrets, and a reply that both have heard.
    """
    ada, planted = cast.ada, Planted()
    alda = cast.ids["Alda"]
    entity = await table.add("entities", kind="npc", name="The ferrywoman", character_id=alda)
    book = await new_book(
        ada,
        {"title": "By a key", "keys": ["xqwhisperqx"], "content": planted.mark("lore")},
        {"title": "Stays", "keys": ["heron"], "content": planted.mark("sticky"), "sticky": 90},
    )
    await link(ada, cast.chat, book)
    note = "{{lastMessage}} {{lastUserMessage}} {{lastCharMessage}}"
    await set_chat(
        ada,
        cast.chat,
        authors_note={"text": note, "interval": 1},
        lore={"mode": "keys", "scan_depth": 50},
    )
    await cast.turn("Bor", "We talk about the weather.")
    model.script(
        stream(
            chunk(reasoning_content=planted.mark("thinking")),
            chunk(content=planted.mark("reply")),
            chunk("stop"),
            DONE,
        )
    )
    whispered = await cast.whisper("Alda", f"A heron. {planted.mark('whisper')}")
    await cast.set_presence("Bor", "absent")
    model.script(reply(planted.mark("answer")))
    away = await cast.turn("Alda", planted.mark("absence"))
    await cast.set_presence("Bor", "present")
    chronicle = (await ada.post("/chronicles", {"name": "The moths"}, 201))["id"]
    await set_chat(ada, cast.chat, chronicle_id=chronicle)
    events = f"/chronicles/{chronicle}/events"
    for source, fields in (
        ("event", {"audience": [entity["id"]], "source_message_ids": [whispered]}),
        ("public_event", {"source_message_ids": [away]}),
        ("pinned", {"source_message_ids": [away], "pinned": True}),
    ):
        await ada.post(events, {"summary": planted.mark(source), **fields}, 201)
    listeners = {"audience": [entity["id"]]}
    await table.add("facts", text=planted.mark("fact"), **listeners)
    await table.add("threads", title=planted.mark("thread"), tension="urgent", **listeners)
    heard = await cast.turn("Bor", "The weather again.")
    await settled(server)
    return planted, heard


async def test_a_character_is_shown_only_what_it_witnessed(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    table = await new_table(ada, settings={"summaries": False})
    cast = await gather(ada, "Alda", "Bor", campaign_id=table.campaign["id"])
    planted, heard = await plant(cast, table, model, server)
    await set_chat(ada, cast.chat, memory={"min_relevance": 0})

    async def views(name: str) -> list[Any]:
        """Return everything that is made for the eyes of a character, and its prompts."""
        since, own = len(model.requests), {"viewpoint": cast.ids[name]}
        seen: list[Any] = [await cast.preview(name, text) for text in (None, ASKED)]
        # Lorebooks are for everyone.
        own_search = {"limit": 100, "sources": "campaign,event,message", **own}
        seen.append(await search(ada, ASKED, **own_search))
        seen.append(await search(ada, ASKED, chat_id=cast.chat, **own_search))
        seen += [await cast.export(name, each) for each in ("jsonl", "markdown", "text")]
        seen.append(await table.get("/state", **own))
        seen.append(await table.get("/context", chat_id=cast.chat, text=ASKED, **own))
        await ada.turn(cast.chat, impersonate=True, **own)
        model.script(reply('{"lines": ["One.", "Two."]}'))
        await ada.post(f"/chats/{cast.chat}/suggestions", {"count": 2, **own})
        for text in (ASKED, "And now?"):
            seen.append(await context_of(ada, await cast.turn(name, text)))
        swipe = await take_turn(
            ada, cast.chat, regenerate_of=(await ada.messages(cast.chat))[-1]["id"]
        )
        seen.append(await context_of(ada, swipe))
        made = prompts(model, since)
        assert len(made) >= 5
        return [*seen, made]

    bors = await views("Bor")
    assert planted.found(bors) == set()
    assert "We talk about the weather." in json.dumps(bors[-1])
    aldas = await views("Alda")
    # Nobody but the user sees thoughts.
    assert set(planted.markers) - planted.found(aldas) == {"thinking"}
    narrated = await cast.preview("gm", ASKED)
    assert set(planted.markers) - planted.found(narrated) == {"thinking"}
    await set_chat(ada, cast.chat, group={"narrators": [cast.ids["Bor"]]})
    since = len(model.requests)
    await cast.turn("Bor", ASKED)
    told = {"whisper", "reply", "absence", "answer", "pinned", "fact", "thread", "lore", "sticky"}
    assert planted.found(prompts(model, since)) >= told
    assert heard


async def test_the_inspector_says_what_a_character_does_not_know(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    table = await new_table(ada, settings={"summaries": False})
    cast = await gather(ada, "Alda", "Bor", campaign_id=table.campaign["id"])
    planted, heard = await plant(cast, table, model, server)
    await set_chat(ada, cast.chat, memory={"min_relevance": 0})
    stored = await cast.turn("Bor", ASKED)
    for context in (await cast.preview("Bor", ASKED), await context_of(ada, stored)):
        assert context["viewpoint"] == {"id": cast.ids["Bor"], "name": "Bor"}
        found = unknown(context)
        # A change of presence is at the places 5 and 8.
        assert ("history", "messages 3 to 4, 6 to 7") in found
        assert ("event", "event") in found
        reasons = {item["title"]: item["reason"] for item in context["left_out"]}
        assert reasons["messages 3 to 4, 6 to 7"] == "not known to Bor"
        assert reasons["Stays"] == "why it would be sticky or cooling down is not known to Bor"
        assert planted.found(context) == set()
    for context in (await cast.preview("Alda"), await cast.preview("gm")):
        assert unknown(context) == []
    assert (await cast.preview("gm"))["viewpoint"] is None
    # What a search would have found is among the near misses, without its text.
    asked = {"q": ASKED, "viewpoint": cast.ids["Bor"], "near_misses": "true", "sources": "event"}
    missed = (await ada.get("/search", **asked))["near_misses"]
    assert {each["reason"] for each in missed} == {"not known to Bor"}
    assert {each["text"] for each in missed} == {""}
    assert heard


async def test_a_group_without_absences_and_whispers_knows_everything(
    ada: Account, server: Running
) -> None:
    cast = await gather(ada, "Alda", "Bor")
    for number in range(4):
        await cast.turn("Alda" if number % 2 else "Bor", f"Line {number}.")
    views = [await cast.preview(name, "And now?") for name in ("gm", "Alda", "Bor")]
    histories = [
        [each["text"] for each in view["prompt"] if each["role"] != "system"] for view in views
    ]
    assert histories[0] == histories[1] == histories[2]
    assert all(unknown(view) == [] for view in views)
    assert "Line 0." in whole(views[0])


async def test_a_character_that_joins_later_knows_nothing_from_before(
    ada: Account, server: Running
) -> None:
    cast = await gather(ada, "Alda", "Bor")
    await cast.turn("Alda", "The old days.")
    made = await ada.new_character(name="Cara", first_mes="", description="")
    cast.ids["Cara"] = made["id"]
    await cast.set_presence("Cara", "present")
    await cast.turn("Cara", "The new days.")
    view = await cast.preview("Cara", "And now?")
    assert "The old days." not in whole(view)
    assert "The new days." in whole(view)
    assert ("history", "messages 1 to 2") in unknown(view)
    # Swipes and branches undo it: in the branch before, Cara is not there.
    [first, *_] = await ada.messages(cast.chat)
    await ada.turn(cast.chat, regenerate_of=(await ada.messages(cast.chat))[1]["id"],
                   speaker=cast.ids["Alda"])  # fmt: skip
    members: Any = await ada.get(f"/chats/{cast.chat}/members")
    assert {each["name"]: each["presence"] for each in members}["Cara"] == "absent"
    assert first["text"] == "The old days."


async def test_the_narrator_reads_who_knows_a_whisper(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    cast = await gather(ada, "Alda", "Bor", "Cara")
    await cast.whisper("Alda", "The key is under the mat.", "Bor")
    narrated = whole(await cast.preview("gm", "And now?"))
    assert "(known to Alda and Bor only)" in narrated
    # Cara is there as well, and must not hear of it.
    assert "(known to Alda and Bor only)" in whole(await cast.preview("Bor", "And now?"))
    await cast.set_presence("Cara", "absent")
    alone = whole(await cast.preview("Bor", "And now?"))
    assert "The key is under the mat." in alone
    assert "known to" not in alone


async def test_sticky_lore_counts_for_those_who_heard_why(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    cast = await gather(ada, "Alda", "Bor")
    shared = await new_book(
        ada, {"title": "Heron", "keys": ["heron"], "content": "Grey birds.", "sticky": 50}
    )
    await link(ada, cast.chat, shared)
    own = await new_book(
        ada, {"title": "Stork", "keys": ["stork"], "content": "White birds.", "sticky": 50}
    )
    path = f"/characters/{cast.ids['Alda']}/lorebooks/{own}"
    ok(await ada.ask("PUT", path), 204)
    await set_chat(ada, cast.chat, lore={"scan_depth": 1})
    await cast.whisper("Alda", "A heron and a stork.")
    for number in range(3):
        await cast.turn("Bor", f"Nothing {number}.")
    bors, aldas = [whole(await cast.preview(name, "And?")) for name in ("Bor", "Alda")]
    assert "Grey birds." not in bors
    assert "White birds." not in bors
    # The turns of Bor have neither scanned nor dropped them.
    assert "Grey birds." in aldas
    assert "White birds." in aldas
    # What Bor is told in public is sticky for both. Alda's own effect is still there afterwards.
    await cast.set_presence("Alda", "absent")
    await cast.turn("Bor", "A heron.")
    await cast.turn("Bor", "Nothing.")
    await cast.set_presence("Alda", "present")
    bors, aldas = [whole(await cast.preview(name, "And?")) for name in ("Bor", "Alda")]
    assert "Grey birds." in bors
    assert "Grey birds." in aldas
    assert "White birds." in aldas


async def test_one_cached_history_serves_all_speakers(
    ada: Account, server: Running, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast = await gather(ada, "Alda", "Bor", "Cara")
    await set_chat(ada, cast.chat, memory={"enabled": False})
    for number in range(6):
        await cast.turn("Alda", f"Line {number}.")
    await cast.whisper("Alda", "A secret.")
    await cast.set_presence("Cara", "absent")
    await cast.turn("Bor", "Without Cara.")
    await cast.set_presence("Cara", "present")
    read, lines = list[int](), repository.load_active_messages

    async def counted(*arguments: Any, **options: Any) -> Any:
        found = await lines(*arguments, **options)
        read.append(len(found.ids))
        return found

    await cast.turn("Cara", "Back again.")
    monkeypatch.setattr(repository, "load_active_messages", counted)
    shown = [whole(await cast.preview(name, "And?")) for name in ("Alda", "Bor", "Cara", "gm")]
    # Of 18 lines, only those since the cached history are read.
    assert max(read) <= 6
    for view, known in zip(
        shown,
        [(True, True), (False, True), (False, False), (True, True)],
        strict=True,
    ):
        assert ("A secret." in view, "Without Cara." in view) == known
        assert "Alda: " in view
        assert "Line 0." in view
        assert "Back again." in view


async def test_a_group_adds_two_statements_to_a_prompt(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    alone, cast = await gather(ada, "Alda"), await gather(ada, "Bor", "Cara", "Dov")
    for each in (alone, cast):
        await set_chat(ada, each.chat, names=True, memory={"enabled": False})
        await each.turn(next(iter(each.ids)), "The first line.")
    await cast.set_presence("Cara", "absent")
    await cast.whisper("Bor", "A secret.", "Dov")
    await cast.set_presence("Cara", "present")
    await cast.turn("Dov", "The last line.")
    await settled(server)

    async def count(ensemble: Ensemble, speaker: str) -> int:
        await ensemble.preview(speaker, "A line.")
        with record_statements() as statements:
            await ensemble.preview(speaker, "A line.")
        return sum(each.text.startswith(("SELECT", "WITH")) for each in statements)

    solo = await count(alone, "Alda")
    assert await count(cast, "Bor") - solo <= 2
    assert await count(cast, "Cara") - solo <= 2


async def test_recall_does_not_suffer_from_long_absences(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    cast = await gather(ada, "Alda", "Bor")
    identity = await identity_of(server, ada)
    heard = [f"Jar {number} holds saffron, said the spice seller." for number in range(12)]
    for place, text in enumerate(heard):
        await seed(server, ada, cast.chat, [text])
        await cast.set_presence("Bor", "absent")
        missed = [f"Saffron jar {place}-{n} is what the seller of spice holds." for n in range(9)]
        await seed(server, ada, cast.chat, missed)
        await cast.set_presence("Bor", "present")
    lines = await stored_lines(server, cast.chat)
    await note(server, identity, cast.chat, [each.id for each in lines if not each.hidden])
    await settled(server)
    query = {"viewpoint": cast.ids["Bor"], "chat_id": cast.chat, "sources": "message"}
    found = await search(ada, "Who holds the jar of saffron?", limit=12, **query)
    assert sorted(each["text"] for each in found) == sorted(heard)
    await seed(server, ada, cast.chat, [f"Filler about boats {n}." for n in range(60)])
    await set_chat(
        ada, cast.chat, budgets={"history": 300}, memory={"min_relevance": 0, "max_items": 12}
    )
    view = await cast.preview("Bor", "Who holds the jar of saffron?")
    recalled = {item["text"].partition("] ")[2] for item in view["retrieved"]}
    assert {text for text in heard if any(text in each for each in recalled)} == set(heard)


@pytest.mark.every_database
async def test_a_damaged_audience_is_nobodys(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    cast = await gather(ada, "Alda", "Bor")
    await cast.whisper("Alda", "Whispered to Alda.")
    alda = UUID(cast.ids["Alda"])
    [line, _] = await stored_lines(server, cast.chat)
    good = encode_audience([alda, uuid4()])
    for column in (
        f" {alda} rubbish ", f" {alda} {'-' * 36} ", f" {alda} {'x' * 36} ", f"{alda}", f" {alda}",
        f" {alda}  ", good.upper(), good.replace("-", "x", 1), "everyone", "", f"public {alda} ",
    ):  # fmt: skip
        async with server.parts.database.write() as session:
            changed = update(Message).where(Message.id == line.id).values(audience=column)
            await session.execute(changed)
            is_known = filter_known_to(alda, Message.audience), Message.id == line.id
            found = await session.scalar(select(Message.id).where(*is_known))
        assert found is None, column
        assert not may_know(alda, column), column
        assert decode_audience(column) == "gm", column
        assert "Whispered to Alda." not in whole(await cast.preview("Alda", "And?"))
    async with server.parts.database.write() as session:
        await session.execute(update(Message).where(Message.id == line.id).values(audience=good))
    assert "Whispered to Alda." not in whole(await cast.preview("Bor", "And?"))
    assert may_know(alda, good)


async def test_a_viewpoint_is_a_member_or_an_entity(ada: Account, server: Running) -> None:
    table = await new_table(ada)
    cast = await gather(ada, "Alda", "Bor", campaign_id=table.campaign["id"])
    entity = (await table.add("entities", kind="npc", name="Bor"))["id"]
    other = (await ada.new_character(name="Esk", first_mes=""))["id"]
    await cast.turn("Alda", "Hello.")
    await cast.set_presence("Bor", "absent")
    await cast.turn("Alda", "Without Bor.")
    await cast.set_presence("Bor", "present")
    # The entity that Bor plays sees with his eyes.
    for viewpoint in (cast.ids["Bor"], entity):
        shown = whole(await preview(ada, cast.chat, "And?", viewpoint=viewpoint))
        assert "Without Bor." not in shown
        assert "Hello." in shown
    for path, query in (
        (f"/chats/{cast.chat}/context", {}),
        (f"/chats/{cast.chat}/export", {}),
        ("/search", {"q": "hello", "chat_id": cast.chat}),
    ):
        answer = await ada.ask("GET", path, params={**query, "viewpoint": other})
        problem(answer, 422, "validation-failed")
    for body in ({"text": "Hi.", "viewpoint": other}, {"text": "Hi.", "audience": [other]}):
        answer = await ada.ask("POST", f"/chats/{cast.chat}/turns", json=body)
        problem(answer, 422, "validation-failed")
    answer = await ada.ask("POST", f"/chats/{cast.chat}/suggestions", json={"viewpoint": other})
    problem(answer, 422, "validation-failed")
    answer = await ada.ask("PATCH", f"/chats/{cast.chat}/settings", json={"viewpoint": other})
    problem(answer, 422, "validation-failed")
    await set_chat(ada, cast.chat, viewpoint=cast.ids["Bor"])
    assert "Without Bor." not in whole(await cast.preview(None, "And?"))
    for file_format in ("archive", "group"):
        query = {"format": file_format, "viewpoint": cast.ids["Bor"]}
        answer = await ada.ask("GET", f"/chats/{cast.chat}/export", params=query)
        problem(answer, 422, "validation-failed")
    # A search everywhere takes any character, and any entity.
    for viewpoint in (other, entity, cast.ids["Bor"]):
        found = await search(ada, "Without Bor", viewpoint=viewpoint)
        assert "Without Bor." not in [each["text"] for each in found]
    problem(
        await ada.ask("GET", "/search", params={"q": "hello", "viewpoint": str(uuid4())}),
        422,
        "validation-failed",
    )


@dataclass(slots=True)
class Chance:
    """A random conversation, and who has heard each of its lines."""

    cast: Ensemble
    model: OpenAIServer
    draw: random.Random
    there: set[str]
    heard: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    count: int = 0

    def name_line(self, listeners: set[str]) -> str:
        self.count += 1
        word = f"zq{self.count}qz"
        self.heard[word] = set(listeners)
        return f"{word} {TOPIC}"

    async def step(self) -> None:
        name = self.draw.choice(list(self.cast.ids))
        act = self.draw.random()
        if act < 0.3:
            await self.move(name)
        elif self.there:
            await self.speak(is_whisper=act > 0.75)

    async def move(self, name: str) -> None:
        presence = "absent" if name in self.there else "present"
        await self.cast.set_presence(name, presence)
        self.there ^= {name}

    async def speak(self, *, is_whisper: bool) -> None:
        speaker = self.draw.choice(sorted(self.there))
        listeners = self.there
        more: dict[str, Any] = {}
        if is_whisper:
            listeners = {speaker, self.draw.choice(sorted(self.there))}
            more["audience"] = [self.cast.ids[each] for each in sorted(listeners)]
        self.model.script(reply(self.name_line(listeners)))
        await self.cast.turn(speaker, self.name_line(listeners), **more)

    def unheard(self, name: str, *where: Any) -> set[str]:
        """Return the lines in some values that a character has not heard."""
        text = json.dumps(where, default=str)
        return {word for word in self.heard if word in text} - {
            word for word, listeners in self.heard.items() if name in listeners
        }


@pytest.mark.parametrize("number", range(rounds(2, 12)))
async def test_whatever_happens_a_character_finds_only_what_it_witnessed(
    ada: Account, server: Running, model: OpenAIServer, number: int
) -> None:
    names = ("Alda", "Bor", "Cara", "Dov")
    cast = await gather(ada, *names)
    book = await new_book(
        ada, {"title": "Moths", "keys": ["moths"], "content": "Moths.", "sticky": 5}
    )
    await link(ada, cast.chat, book)
    await set_chat(ada, cast.chat, memory={"min_relevance": 0}, budgets={"history": 400})
    chance = Chance(cast, model, random.Random(number), set(names))
    for _ in range(rounds(14, 60)):
        await chance.step()
    await settled(server)
    everything = json.dumps(await cast.preview("gm", ASKED))
    assert sum(word in everything for word in chance.heard) > len(chance.heard) // 2
    for name in names:
        view = await cast.preview(name, ASKED)
        found = await search(ada, ASKED, limit=100, chat_id=cast.chat, viewpoint=cast.ids[name])
        files = [await cast.export(name, each) for each in ("jsonl", "text")]
        assert chance.unheard(name, view, found, files) == set()
        own = {word for word, listeners in chance.heard.items() if name in listeners}
        # The file has everything that it heard.
        assert {word for word in chance.heard if word in files[0]} == own
