"""A campaign that a scripted compactor keeps: it calls as the lines that it is shown say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sqlalchemy import select

from backend.enrichment.outbox import COMPACTION
from backend.generation.registry import ModelRegistry
from backend.jobs.models import Job
from tests.fakes.holding_server import HoldingServer
from tests.fakes.openai_server import MODEL_ID, called, error, reply, usage
from tests.fakes.scripted_server import Answer, Exchange, Request
from tests.integration.campaigns.seagate import Table, new_session
from tests.support.memory import working
from tests.support.server import Account, Running, ok, running
from tests.support.waiting import until

API = "/api/v1"
LINE = re.compile(r"^#(\d+) (.*)$", re.MULTILINE)

Call = tuple[str, dict[str, Any]]


class Compactor(HoldingServer):
    """Tells a line, and compacts: `finds` has the calls for lines with a text in them.

    `records` has those of the chronicle's agent. It declines once what is in `declines`, by the
    beginnings of system texts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.finds: dict[str, list[Call]] = {}
        self.records: dict[str, list[Call]] = {}
        self.declines: set[str] = set()
        self.tells: dict[str, str] = {}
        self.fails: list[Answer] = []
        self.has_tools = True
        self.is_asked, self.may_tell = asyncio.Event(), asyncio.Event()
        self.reset()

    def reset(self) -> None:
        self.requests.clear()
        self.finds, self.tells, self.fails, self.has_tools = {}, {}, [], True
        self.records, self.declines = {}, set()
        self.is_opened.set()
        self.may_tell.set()

    @contextlib.asynccontextmanager
    async def holding_turns(self) -> AsyncGenerator[None]:
        """Delay story replies until the block ends. The first request sets `is_asked`."""
        self.is_asked, self.may_tell = asyncio.Event(), asyncio.Event()
        try:
            yield
        finally:
            self.may_tell.set()

    def holds(self, request: Request) -> bool:
        return is_compaction(request)

    async def respond(self, exchange: Exchange) -> bool:
        request = exchange.request
        if not self.holds(request) and request.body and request.body.get("stream"):
            self.is_asked.set()
            await self.may_tell.wait()
        return await super().respond(exchange)

    def usual(self, request: Request) -> Answer:
        if not request.path.endswith("/completions"):
            return super().usual(request)
        system = str(request.body["messages"][0]["content"])
        if declined := next((each for each in self.declines if system.startswith(each)), None):
            self.declines.discard(declined)
            return reply("I'm sorry, but I can't help with that.", used=usage(50, 5))
        if is_compaction(request):
            if self.fails:
                return self.fails.pop(0)
            return self.answered(request)
        return self.wrote(request, system)

    def wrote(self, request: Request, system: str) -> Answer:
        """The answer to anything but a compaction."""
        if system.startswith("You keep the chronicle"):
            return self.studied(request)
        if "response_format" in request.body or system.startswith("Task: glossary"):
            return reply(json.dumps({"why": "", "significant": False, "kinds": [], "terms": []}))
        if system.startswith("Task: rolling summary"):
            return reply("So it went.")
        line = str(request.body["messages"][-1]["content"])
        told = next((told for said, told in self.tells.items() if said in line), "So it is.")
        return reply(told)

    def studied(self, request: Request) -> Answer:
        """The answer to a request of the chronicle's agent."""
        calls = self.calls_of(request)
        if "response_format" in request.body:
            return reply(json.dumps({"why": "", "significant": bool(calls), "kinds": []}))
        is_answered = request.body["messages"][-1]["role"] == "tool"
        return reply("Done.") if is_answered or not calls else called(*calls)

    def answered(self, request: Request) -> Answer:
        """The answer to a request for a compaction, in the way in which it was asked."""
        calls = self.calls_for(shown(request))
        if "tools" not in request.body:
            written = [{"tool": name, "arguments": each} for name, each in calls]
            return reply(json.dumps({"narration": "", "calls": written}))
        if not self.has_tools:
            return error(400)
        return called(*calls) if calls else reply("Nothing.", used=usage(100, 10))

    def calls_for(self, asked: str) -> list[Call]:
        """The calls for the new lines, each from its line."""
        inside = asked.partition("<new_lines>\n")[2]
        return [
            (name, {"because": text, "source_turns": [int(number)], **arguments})
            for number, text in LINE.findall(inside)
            for said, calls in self.finds.items()
            if said in text
            for name, arguments in calls
        ]

    def calls_of(self, request: Request) -> list[Call]:
        """The calls of the chronicle's agent for the new lines."""
        inside = shown(request).partition("<new_lines>\n")[2]
        return [
            (name, {"source_messages": [f"#{number}"], **arguments})
            for number, text in LINE.findall(inside)
            for said, calls in self.records.items()
            if said in text
            for name, arguments in calls
        ]

    @property
    def asked(self) -> list[str]:
        """The texts of compaction requests, by call."""
        return [shown(request) for request in self.requests if is_compaction(request)]


def is_compaction(request: Request) -> bool:
    messages: list[Any] = (request.body.get("messages") if request.body else None) or []
    return bool(messages) and str(messages[0]["content"]).startswith("Task: compaction")


def shown(request: Request) -> str:
    texts = [str(each["content"]) for each in request.body["messages"]]
    return next(text for text in texts if "<new_lines>\n" in text)


def lines_of(asked: str) -> list[str]:
    """The new lines that a request has, without who says them."""
    inside = asked.partition("<new_lines>\n")[2].partition("</new_lines>")[0]
    return [text.partition(": ")[2] for _, text in LINE.findall(inside)]


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[Compactor]:
    async with Compactor() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: Compactor
) -> AsyncGenerator[Running]:
    registry = ModelRegistry(demo_tokens_per_second=0, openai=model.config(), default=MODEL_ID)
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder, registry=registry) as server, working(server.parts):
        yield server


class Evening:
    """A chat of a campaign whose owner agreed to it; nothing is compacted but as tests say."""

    def __init__(self, server: Running, table: Table, chat: str) -> None:
        self.server, self.table, self.chat = server, table, chat
        self.ada: Account = table.account

    async def turn(self, text: str = "Go on.", **body: Any) -> str:
        """Take a turn, wait for due compactions, and return the id of its reply."""
        events = await self.ada.turn(self.chat, **({"text": text, **body} if text else body))
        assert events[-1].name == "turn.completed", events[-1]
        await self.at_rest()
        return str(events[0].data["reply_id"])

    async def at_rest(
        self, *, kind: str = COMPACTION, states: frozenset[str] = frozenset({"done", "dead"})
    ) -> None:
        """Wait until no compaction, or other work, of the chat is to be done."""
        query = select(Job.state).where(Job.kind == kind, Job.payload.contains(self.chat))

        async def is_over() -> bool:
            async with self.server.parts.database.read() as session:
                return set(await session.scalars(query)) <= states

        await until(is_over)

    async def compact(self, **body: Any) -> dict[str, Any]:
        answer = await self.table.ask("POST", "/compact", json={"chat_id": self.chat, **body})
        view: dict[str, Any] = ok(answer, 202)
        return view

    async def compact_turn(self, text: str) -> str:
        """Take a turn and compact; return the id of the reply."""
        reply_id = await self.turn(text)
        await self.compacted()
        return reply_id

    async def compacted(self) -> None:
        """Compact by hand, and wait for it."""
        await self.compact()
        await self.at_rest()

    async def entity(self, name: str) -> dict[str, Any]:
        """Return an entity, or an empty object if there is none of this name."""
        items = await self.table.items("entities", q=name)
        return next((each for each in items if each["name"] == name), dict[str, Any]())

    async def items(self, kind: str) -> list[dict[str, Any]]:
        return await self.table.items(kind)

    async def changes(self, *, all_of_them: bool = False) -> list[dict[str, Any]]:
        """The valid changes of compactions, oldest first."""
        page = await self.table.get("/changes", limit=200)
        found = [each for each in page["items"][::-1] if each["actor"] == "compactor"]
        return [each for each in found if all_of_them or each["counts"]]

    async def events(self) -> list[dict[str, Any]]:
        """The events of the chronicle that count, in story order."""
        client = self.ada.client
        settings = ok(await client.get(f"{API}/chats/{self.chat}/settings"))
        path = f"{API}/chronicles/{settings['chronicle_id']}/events"
        found: list[dict[str, Any]] = ok(await client.get(path))["items"]
        return found

    async def runs(self) -> list[dict[str, Any]]:
        found = ok(await self.ada.client.get(f"{API}/chats/{self.chat}/enrichment"))["items"]
        return [each for each in found if each["kind"] == "compaction"]

    async def prompt(self, text: str = "Well?", **query: Any) -> list[dict[str, Any]]:
        """The messages of the prompt that the next turn would have."""
        asked = {"text": text, "prompt": "true", **query}
        answer = ok(await self.ada.client.get(f"{API}/chats/{self.chat}/context", params=asked))
        messages: list[dict[str, Any]] = answer["prompt"]
        return messages


async def evening(server: Running, table: Table, **settings: Any) -> Evening:
    """A chat with Mara in it; without `compaction_interval` it is compacted by hand alone."""
    await table.change("", settings={"compaction_interval": 100, "scene_beats": 1_000, **settings})
    chat = await new_session(table, first_mes="")
    await table.account.patch(f"/chats/{chat}/settings", {"chronicle_enabled": True})
    return Evening(server, table, chat)


def npc(name: str, **fields: Any) -> Call:
    return "npc_updater_tool", {"name": name, "set": fields}
