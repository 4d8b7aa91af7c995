"""Secrets over many rounds, with a model that repeats its prompts.

A thorough run has 40 secrets over 40 rounds.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select

from backend.jobs.models import Job
from backend.memory.indexing.outbox import RECONCILE
from tests.fakes.parrot_server import ParrotServer, secret_word, secrets_in
from tests.integration.campaigns.seagate import Table, new_session, new_table
from tests.support.chronicling import opt_in
from tests.support.memory import embedding, preview, remembering, search, set_chat, take_turn
from tests.support.models import asking
from tests.support.server import Account, Running, ok
from tests.support.thorough import rounds
from tests.support.waiting import until as wait_until

pytestmark = [pytest.mark.anyio]

ROUNDS = rounds(5, 40)
PLAYERS = ("Jake", "Kim", "Lou", "Mia")
ASKED = "Where is the obsidian ledger?"
"""A question that finds all planted texts."""


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[ParrotServer]:
    async with ParrotServer() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: ParrotServer
) -> AsyncGenerator[Running]:
    folder = tmp_path_factory.mktemp("data")
    settings = {**asking(model), **embedding(model)}
    async with remembering(shared_url, folder, **settings) as server:
        yield server


def find_unmarked(texts: list[str]) -> list[str]:
    """Return entries of a prompt that contain a secret without its audience."""
    found: list[str] = []
    for text in texts:
        entry: list[str] = []
        for line in text.split("\n"):
            begins = line.startswith(("- ", "**", "#", "PREVIOUSLY"))
            entry = [line] if begins else [*entry, line]
            said = "\n".join(entry)
            if secrets_in(line) and "secret: game master only" not in said:
                found += [said] if "(known to " not in said else []
    return found


@dataclass(slots=True)
class Trial:
    """A campaign with hidden information and the audience of each secret.

    `known` contains the audience of each word: `gm` or the id of a player. `leaks` are words that
    the wrong viewpoint saw. `unmarked` are entries without their audience.
    """

    server: Running
    model: ParrotServer
    table: Table
    chat: str = ""
    chronicle: str = ""
    people: dict[str, str] = field(default_factory=dict[str, str])
    known: dict[str, str] = field(default_factory=dict[str, str])
    seen: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    leaks: list[str] = field(default_factory=list[str])
    unmarked: list[str] = field(default_factory=list[str])

    @property
    def ada(self) -> Account:
        return self.table.account

    @property
    def viewpoints(self) -> list[str]:
        """The viewpoints of everyone except the game master."""
        return ["public", *(self.people[name] for name in PLAYERS)]

    async def begin(self) -> None:
        place = await self.table.add("entities", kind="location", name="The Salty Sigil")
        self.people["place"] = place["id"]
        for name in (*PLAYERS, "Mara"):
            kind = "npc" if name == "Mara" else "pc"
            made = await self.table.add("entities", kind=kind, name=name, location_id=place["id"])
            self.people[name] = made["id"]
        await self.table.add("scenes", location_id=place["id"], title="The counter")
        self.model.knows = [*PLAYERS, "Mara", "The Salty Sigil"]
        self.chat = await new_session(self.table, first_mes="")
        self.chronicle = await opt_in(self.ada, self.chat)
        await set_chat(self.ada, self.chat, memory={"min_relevance": 0})

    async def settled(self) -> None:
        """Wait until all work after a reply is done."""

        async def is_done() -> bool:
            # Nightly jobs wait for their time.
            mine = Job.user_id.is_not(None), Job.kind != RECONCILE
            query = select(Job.kind, Job.error).where(*mine, Job.state.not_in(("done", "dead")))
            async with self.server.parts.database.read() as session:
                rows = (await session.execute(query)).all()
                return not rows

        self.server.parts.queue.wake()
        await wait_until(is_done)

    def new_secret(self, number: int, whose: str) -> str:
        """Create a secret; return its text."""
        word = secret_word(number)
        self.known[word] = whose
        return f"{word} keeps the obsidian ledger"

    def look(self, viewpoint: str, where: str, *found: Any) -> None:
        """Record the secrets that a viewpoint sees."""
        words = {word for each in found for word in secrets_in(each)}
        self.seen.setdefault(viewpoint, set()).update(words)
        if viewpoint != "gm":
            leaked = {word for word in words if self.known[word] not in {viewpoint, "public"}}
            self.leaks += [f"{where} for {viewpoint}: {word}" for word in sorted(leaked)]

    def prompts_since(self, start: int) -> list[Any]:
        return [each.body for each in self.model.prompts[start:]]

    async def turn(self, viewpoint: str, where: str, **body: Any) -> str:
        """Take a turn with this viewpoint; return the id of the reply."""
        start = len(self.model.prompts)
        reply_id = await take_turn(self.ada, self.chat, viewpoint=viewpoint, **body)
        # The later jobs send requests too.
        story = [each for each in self.prompts_since(start) if "ongoing roleplay" in str(each)]
        assert story
        self.look(viewpoint, where, story)
        await self.settled()
        return reply_id

    async def watch(self, viewpoint: str) -> None:
        """Check the prompt of a turn that asks for every secret."""
        asked = f"{ASKED} Mara asks about {' '.join(word.lower() for word in self.known)}."
        context = await preview(self.ada, self.chat, asked, viewpoint=viewpoint)
        self.look(viewpoint, "preview", context)
        if viewpoint == "gm":
            self.unmarked += find_unmarked([each["text"] for each in context["prompt"]])

    async def watch_closely(self, viewpoint: str) -> None:
        """Check all prompts, searches and exports of a viewpoint."""
        for text in (None, ASKED, "continue"):
            context = await preview(self.ada, self.chat, text, viewpoint=viewpoint)
            self.look(viewpoint, f"preview of {text}", context)
        asked = {"chat_id": self.chat, "text": ASKED, "viewpoint": viewpoint}
        self.look(viewpoint, "state block", await self.table.get("/context", **asked))
        for query in (ASKED, *(word.lower() for word in list(self.known)[-3:])):
            self.look(viewpoint, "search", await search(self.ada, query, viewpoint=viewpoint))
            of_chat = {"chat_id": self.chat, "viewpoint": viewpoint}
            self.look(viewpoint, "search", await search(self.ada, query, limit=100, **of_chat))
        if viewpoint != "gm":
            start = len(self.model.prompts)
            await self.ada.turn(self.chat, impersonate=True, viewpoint=viewpoint)
            self.look(viewpoint, "impersonation", self.prompts_since(start))
            start = len(self.model.prompts)
            lines = await self.ada.ask(
                "POST", f"/chats/{self.chat}/suggestions", json={"viewpoint": viewpoint, "count": 2}
            )
            self.look(viewpoint, "suggestions", self.prompts_since(start), lines.json())
        for form in ("json", "vault"):
            answer = await self.ada.ask(
                "GET", f"{self.table.path}/export", params={"format": form, "viewpoint": viewpoint}
            )
            assert answer.status_code == 200, answer.text
            with zipfile.ZipFile(io.BytesIO(answer.content)) as file:
                texts = [file.read(name).decode() for name in file.namelist()]
            self.look(viewpoint, f"export as {form}", *texts, file.namelist())
        answer = await self.ada.ask(
            "GET", f"/chats/{self.chat}/summary", params={"viewpoint": viewpoint}
        )
        self.look(viewpoint, "summary", answer.json())

    async def close_scene(self) -> None:
        """Close the open scenes and wait for their compression."""
        for scene in (await self.table.get("/scenes", limit=100))["items"]:
            if scene["status"] == "open":
                ok(await self.table.ask("POST", f"/scenes/{scene['id']}/close"))
        await self.settled()

    async def plant(self, number: int, whose: str) -> None:
        """Add a secret to one source of the campaign."""
        told = self.new_secret(number, whose)
        more = {"audience": whose if whose == "gm" else [whose]}
        place, mara, jake = (self.people[name] for name in ("place", "Mara", "Jake"))
        sources = (
            ("entities", {"kind": "npc", "name": f"{told}", "location_id": place}),
            ("entities", {"kind": "npc", "name": f"Rook {number}", "description": told,
                          "wants": told, "location_id": place}),
            ("facts", {"text": told, "about_id": mara}),
            ("events", {"summary": told, "day": 1 + number % 3}),
            ("glossary", {"term": secret_word(number), "definition": told}),
            ("scenes", {"status": "closed", "title": told, "summary": told, "key_moments": [told]}),
            ("threads", {"title": told, "next_step": told, "tension": "urgent"}),
            ("clocks", {"name": told, "consequence": told, "segments": 4, "filled": 2}),
            ("relations", {"from_id": mara, "to_id": jake, "score": 50, "note": told}),
            ("echoes", {"text": told}),
        )  # fmt: skip
        self.model.knows.append(f"Rook {number}")
        kind, fields = sources[number // 2 % len(sources)]
        if kind == "events":
            path = f"/chronicles/{self.chronicle}/events"
            await self.ada.post(path, {**fields, **more}, 201)
        else:
            await self.table.add(kind, **fields, **more)

    async def kinds(self) -> set[str]:
        """Return the kinds of background work that have written something."""
        path = f"/chats/{self.chat}/enrichment"
        runs = (await self.ada.get(path, limit=500))["items"]
        return {run["kind"] for run in runs if run["significant"]}


@pytest.fixture
async def trial(ada: Account, server: Running, model: ParrotServer) -> Trial:
    settings = {"hidden_information": True, "approve_terms": True, "scene_beats": 5}
    trial = Trial(server, model, await new_table(ada, day=1, settings=settings))
    await trial.begin()
    return trial


async def test_secrets_only_reach_those_who_may_know_them(trial: Trial) -> None:
    owners = ["gm", *(trial.people[name] for name in PLAYERS)]
    for number in range(ROUNDS):
        whose = owners[number % len(owners)]
        audience = whose if whose == "gm" else [whose]
        # Half of the secrets are in items and events, the others in lines.
        if number % 2:
            await trial.plant(number, whose)
            line = "We go on about the obsidian ledger."
        else:
            line = f"Psst: {trial.new_secret(number, whose)}."
        told = await trial.turn(whose, "secret turn", text=line, audience=audience)
        if number % 4 == 1:
            await trial.turn(whose, "swipe", regenerate_of=told)
        if number % 4 == 3:
            await trial.turn(whose, "continuation", **{"continue": True})
        await trial.turn("public", "public turn", text="And the weather?", audience="public")
        if number % 8 == 7:
            await trial.close_scene()
        for viewpoint in trial.viewpoints:
            await trial.watch(viewpoint)
        await trial.watch_closely(trial.viewpoints[number % len(trial.viewpoints)])
        await trial.watch("gm")
        assert trial.leaks == []
        assert trial.unmarked == []
    for viewpoint in trial.viewpoints:
        await trial.watch_closely(viewpoint)
    await trial.watch_closely("gm")
    assert trial.leaks == []
    # The test is able to fail: each audience saw its secrets.
    assert trial.seen["gm"] == set(trial.known)
    assert await trial.kinds() == {"compaction", "glossary", "scene", "summary", "turn"}
    for word, whose in trial.known.items():
        assert word in trial.seen[whose]


async def test_limiting_a_message_hides_everything_made_from_it(trial: Trial) -> None:
    trial.model.knows = []
    told = trial.new_secret(0, "public")
    reply_id = await trial.turn("public", "turn", text=f"Listen: {told}.")
    for viewpoint in trial.viewpoints:
        await trial.watch_closely(viewpoint)
    assert trial.seen["public"] == set(trial.known)
    lines = await trial.ada.messages(trial.chat)
    assert lines[-1]["id"] == reply_id
    trial.known[secret_word(0)] = "gm"
    for line in lines[-2:]:
        limited = {"audience": "gm"}
        await trial.ada.patch(f"/messages/{line['id']}", limited)
    await trial.settled()
    for viewpoint in trial.viewpoints:
        await trial.watch_closely(viewpoint)
    await trial.turn("public", "turn", text="And the weather?")
    assert trial.leaks == []
    await trial.watch_closely("gm")
