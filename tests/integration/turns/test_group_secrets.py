"""Secrets in a group over many rounds, with a model that repeats its prompts in private.

A thorough run has 60 secrets over 60 rounds. Who knows a secret is counted by a simple model that
reads the messages of the path one by one.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select

from backend.jobs.models import Job
from backend.memory.indexing.outbox import RECONCILE
from tests.fakes.openai_server import reply
from tests.fakes.parrot_server import ParrotServer, secret_word, secrets_in
from tests.fakes.scripted_server import Answer, Request
from tests.support.chronicling import opt_in
from tests.support.memory import embedding, preview, remembering, search, set_chat, take_turn
from tests.support.models import asking
from tests.support.server import Account, Running, ok
from tests.support.thorough import rounds
from tests.support.waiting import until as wait_until

pytestmark = [pytest.mark.anyio]

ROUNDS = rounds(5, 60)
NAMES = ("Alda", "Bor", "Cara", "Dov", "Esk")
ASKED = "Where is the obsidian ledger?"
SMALL = {"history": 400}


class DiscreetServer(ParrotServer):
    """Repeats secrets in private turns and in background work, and is silent in public turns."""

    def __init__(self) -> None:
        super().__init__()
        self.is_public = False

    def usual(self, request: Request) -> Answer:
        if self.is_public and "ongoing roleplay" in str(request.body):
            return reply(f"Nothing to say, answer {len(self.requests)}.")
        return super().usual(request)


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[DiscreetServer]:
    async with DiscreetServer() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: DiscreetServer
) -> AsyncGenerator[Running]:
    folder = tmp_path_factory.mktemp("data")
    settings = {**asking(model), **embedding(model)}
    async with remembering(shared_url, folder, **settings) as server:
        yield server


@dataclass(slots=True)
class Trial:
    """A chat of five characters. `seen` are the secrets that each of them was shown."""

    server: Running
    model: DiscreetServer
    ada: Account
    chance: random.Random
    chat: str = ""
    ids: dict[str, str] = field(default_factory=dict[str, str])
    there: set[str] = field(default_factory=lambda: set(NAMES[:4]))
    words: list[str] = field(default_factory=list[str])
    known: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    seen: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in NAMES})
    leaks: list[str] = field(default_factory=list[str])

    async def begin(self) -> None:
        """Open a chat of four. The fifth joins later."""
        for name in NAMES:
            made = await self.ada.new_character(name=name, first_mes="", description=f"{name}.")
            self.ids[name] = made["id"]
        opened = await self.ada.new_chat(character_ids=[self.ids[name] for name in NAMES[:4]])
        self.chat = opened["id"]
        self.model.knows = list(NAMES)
        await opt_in(self.ada, self.chat)
        await set_chat(
            self.ada,
            self.chat,
            memory={"min_relevance": 0},
            budgets=SMALL,
            summary={"enabled": True, "interval": 4, "words": 60},
        )

    async def settle(self) -> None:
        """Wait until all work after a reply is done."""

        async def is_done() -> bool:
            mine = Job.user_id.is_not(None), Job.kind != RECONCILE
            query = select(Job.kind).where(*mine, Job.state.not_in(("done", "dead")))
            async with self.server.parts.database.read() as session:
                return not (await session.execute(query)).all()

        self.server.parts.queue.wake()
        await wait_until(is_done)

    async def count_knowledge(self) -> None:
        """Read the path, and note who has heard which secrets."""
        by_id = {character_id: name for name, character_id in self.ids.items()}
        there = set(NAMES[:4])
        self.known = {name: set() for name in NAMES}
        for message in await self.ada.messages(self.chat, limit=200):
            if message["presence"] is not None:
                changed = {by_id[message["character_id"]]}
                there = there - changed if message["presence"] == "absent" else there | changed
                continue
            audience: str | list[str] = message["audience"]
            named = there if isinstance(audience, str) else {by_id[each] for each in audience}
            for name in named:
                self.known[name].update(secrets_in(message["text"]))

    def look(self, name: str, where: str, *shown: Any) -> None:
        """Note the secrets that a character was shown."""
        words = {word for each in shown for word in secrets_in(each)}
        self.seen[name] |= words
        self.leaks += [f"{where} for {name}: {word}" for word in words - self.known[name]]

    async def change_presence(self, name: str, presence: str) -> None:
        path = f"/chats/{self.chat}/members/{self.ids[name]}"
        await self.ada.patch(path, {"presence": presence})
        self.there = self.there - {name} if presence == "absent" else self.there | {name}

    async def take_turn(self, name: str, *, is_public: bool, **body: Any) -> str:
        """Take a turn of a character, and look at its prompt."""
        self.model.is_public = is_public
        start = len(self.model.prompts)
        reply_id = await take_turn(self.ada, self.chat, speaker=self.ids[name], **body)
        self.model.is_public = False
        sent = [each.body for each in self.model.prompts[start:]]
        story = [each for each in sent if "ongoing roleplay" in str(each)]
        assert story
        # The line of the turn is heard as well.
        await self.count_knowledge()
        self.look(name, "turn", *story)
        context = await self.ada.get(f"/messages/{reply_id}/context", prompt="true")
        self.look(name, "record", context["prompt"], context["items"], context["retrieved"])
        await self.settle()
        return reply_id

    async def tell(self, number: int) -> str:
        """Let the user tell a new secret, in a whisper or to all who are there."""
        self.words.append(secret_word(number))
        line = f"Psst: {self.words[-1]} keeps the obsidian ledger."
        hears = self.pick()
        if number % 3 == 0:
            return await self.take_turn(hears, is_public=True, text=line)
        others = self.chance.sample(sorted(self.there), k=1 + number % 2)
        audience = [self.ids[name] for name in {hears, *others}]
        return await self.take_turn(hears, is_public=False, text=line, audience=audience)

    def pick(self) -> str:
        return self.chance.choice(sorted(self.there))

    async def tell_again(self) -> None:
        """Let the user repeat an old secret to someone else."""
        name = self.pick()
        line = f"Again: {self.chance.choice(self.words)} keeps the obsidian ledger."
        await self.take_turn(name, is_public=False, text=line, audience=[self.ids[name]])

    async def move(self) -> None:
        """Let someone leave, return or join."""
        away = sorted({*NAMES} - self.there)
        if len(self.there) > 2 and (not away or self.chance.random() < 0.5):
            await self.change_presence(self.pick(), "absent")
        elif away:
            await self.change_presence(self.chance.choice(away), "present")

    async def list_members(self) -> list[str]:
        members: list[dict[str, Any]] = ok(await self.ada.ask("GET", f"/chats/{self.chat}/members"))
        return [each["name"] for each in members]

    async def watch(self, name: str) -> None:
        """Ask for all secrets from the viewpoint of a character."""
        me = self.ids[name]
        asked = f"{ASKED} {' '.join(word.lower() for word in self.words)}"
        for text in (asked, None):
            context = await preview(self.ada, self.chat, text, viewpoint=me)
            shown = [each for each in context["prompt"] if each["text"] != f"Ada: {asked}"]
            self.look(name, "preview", shown, context["items"], context["retrieved"])

    async def watch_closely(self, name: str) -> None:
        await self.watch(name)
        me, of_chat = self.ids[name], {"chat_id": self.chat, "viewpoint": self.ids[name]}
        for query in (ASKED, *(word.lower() for word in self.words[-3:])):
            self.look(name, "search", await search(self.ada, query, limit=100, **of_chat))
        answer = await self.ada.ask("GET", f"/chats/{self.chat}/summary", params={"viewpoint": me})
        self.look(name, "summary", answer.json())
        memories = await self.ada.get(f"/characters/{me}/memories", chat_id=self.chat, limit=100)
        self.look(name, "memories", memories["items"])
        start = len(self.model.prompts)
        lines = await self.ada.ask(
            "POST", f"/chats/{self.chat}/suggestions", json={"viewpoint": me, "count": 2}
        )
        sent = [each.body for each in self.model.prompts[start:]]
        self.look(name, "suggestions", sent, lines.json())
        for form in ("jsonl", "markdown", "text"):
            params = {"format": form, "viewpoint": me}
            file = await self.ada.ask("GET", f"/chats/{self.chat}/export", params=params)
            assert file.status_code == 200, file.text
            self.look(name, f"export as {form}", file.text)


@pytest.fixture
async def trial(ada: Account, server: Running, model: DiscreetServer) -> Trial:
    trial = Trial(server, model, ada, random.Random(44))
    await trial.begin()
    return trial


def list_some(names: Sequence[str], number: int) -> list[str]:
    return [names[number % len(names)], names[(number + 2) % len(names)]]


async def test_no_character_is_shown_what_it_has_not_heard(trial: Trial) -> None:
    for number in range(ROUNDS):
        told = await trial.tell(number)
        if number % 4 == 1:
            message = await trial.ada.get(f"/messages/{told}")
            names = {character_id: name for name, character_id in trial.ids.items()}
            speaker = names[message["character_id"]]
            await trial.take_turn(speaker, is_public=False, regenerate_of=told)
        await trial.move()
        if number % 5 == 2:
            await trial.tell_again()
        await trial.take_turn(trial.pick(), is_public=True, text="And the weather?")
        members = await trial.list_members()
        for name in members:
            await trial.watch(name)
        for name in list_some(members, number):
            await trial.watch_closely(name)
        assert trial.leaks == []
    for name in await trial.list_members():
        await trial.watch_closely(name)
    assert trial.leaks == []
    # The test is able to fail: everyone knows some secrets and is shown them, and not the others.
    for name in await trial.list_members():
        assert trial.seen[name] & trial.known[name]
    assert any(trial.known[name] != set(trial.words) for name in NAMES)
