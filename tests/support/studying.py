"""The agent at work in a test: models that call its tools, a worker of its own, what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from sqlalchemy import delete, select

from backend.campaigns.state.snapshot import SnapshotCache
from backend.campaigns.state.story_clock import StoryClock
from backend.chats.models import Chat, Message
from backend.chronicles.repository import StoryEvent, current_events
from backend.enrichment.models import EnrichmentMark, EnrichmentRun
from backend.enrichment.outbox import TURN, EnrichmentOutbox
from backend.enrichment.pipeline import EnrichmentRuntime
from backend.enrichment.runs.store import RunDetail, open_detail
from backend.enrichment.runtime import job_kinds, open_enrichment
from backend.jobs.keys import JobKeys
from backend.jobs.models import Job
from backend.jobs.worker import Worker
from backend.prompts import load_prompts
from tests.fakes import gemini_server, openai_server
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer, Exchange, Request, ScriptedServer
from tests.integration.turns.seeding import identity_of, seed
from tests.support.memory import API
from tests.support.server import ROOT, Account, Running, ok, running
from tests.support.waiting import PATIENCE, until

Call = tuple[str, dict[str, Any]]
_numbers = count(1)


class Hold:
    """A model that thinks until the test lets it answer; `after` requests are let through."""

    def __init__(self, *, after: int = 0) -> None:
        self._left = after
        self.waiting = 0
        self.is_reached = asyncio.Event()
        self.is_opened = asyncio.Event()

    async def wait(self, client: asyncio.StreamReader) -> bool:
        """Wait until the test lets the model answer; False if the client hangs up before that."""
        self._left -= 1
        if self._left >= 0:
            return True
        self.waiting += 1
        self.is_reached.set()
        leaving = asyncio.ensure_future(client.read(1))
        opened = asyncio.ensure_future(self.is_opened.wait())
        try:
            await asyncio.wait((leaving, opened), return_when=asyncio.FIRST_COMPLETED)
            return opened.done()
        finally:
            for task in (leaving, opened):
                task.cancel()
            await asyncio.wait((leaving, opened))


class _Holding(ScriptedServer):
    """Answers nothing while it is held."""

    hold: Hold | None = None

    def forget(self) -> None:
        """Delete all recorded requests and scripted answers."""
        self.requests.clear()
        self.hung_up.clear()
        self._answers.clear()

    async def respond(self, exchange: Exchange) -> bool:
        hold = self.hold if tools_of([exchange.request]) else None
        if hold is not None and not await hold.wait(exchange.reader):
            self.hung_up.set()
            return False
        return await super().respond(exchange)


class _OpenAI(_Holding, OpenAIServer):
    pass


class _Gemini(_Holding, GeminiServer):
    pass


@dataclass(frozen=True)
class Vendor:
    """A scripted server of one of the two wire formats, spoken to in terms of neither."""

    kind: Literal["openai", "gemini"]
    server: _OpenAI | _Gemini

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a server whose agent uses this model. Its chats use the demo model."""
        if self.kind == "openai":
            return {
                "openai_base_url": self.server.url,
                "openai_models": (openai_server.MODEL,),
                "default_model": "demo",
                "enrichment_model": openai_server.MODEL_ID,
            }
        return {
            "gemini_base_url": self.server.url,
            "gemini_api_key": gemini_server.API_KEY,
            "default_model": "demo",
            "embedder": "none",
        }

    def says(self, text: str, *, used: tuple[int, int] = (100, 10)) -> Answer:
        """An answer in words."""
        if self.kind == "openai":
            return openai_server.reply(text, used=openai_server.usage(*used))
        return gemini_server.reply(text, used=gemini_server.usage(*used))

    def decides(
        self, *, significant: bool = True, why: str = "Something happened.", **more: Any
    ) -> Answer:
        """The answer to the first question."""
        value = {"why": why, "significant": significant, "kinds": ["event"], **more}
        return self.says(json.dumps(value))

    def calls(self, *calls: Call, used: tuple[int, int] = (200, 20)) -> Answer:
        """A step of the loop."""
        if self.kind == "openai":
            made = [
                openai_server.tool_call(name, arguments, call_id=f"call-{place}")
                for place, (name, arguments) in enumerate(calls)
            ]
            body = openai_server.completion(
                None, finish="tool_calls", calls=made, used=openai_server.usage(*used)
            )
            return Answer(body=body)
        parts = [gemini_server.call_part(name, arguments) for name, arguments in calls]
        chunk = gemini_server.chunk(*parts, finish="STOP", used=gemini_server.usage(*used))
        return Answer(body=chunk)

    def fails(self, status: int = 503, *, headers: dict[str, str] | None = None) -> Answer:
        """An answer with an error."""
        if self.kind == "openai":
            return openai_server.error(status, headers=headers)
        return gemini_server.error(status, "UNAVAILABLE", headers=headers)

    def answers_of(self, request: Request) -> list[dict[str, Any]]:
        """The results of the last round of calls in a request."""
        if self.kind == "openai":
            told: list[dict[str, Any]] = []
            for message in reversed(request.body["messages"]):
                if message["role"] != "tool":
                    break
                told.insert(0, json.loads(message["content"]))
            return told
        return [
            part["functionResponse"]["response"] for part in request.body["contents"][-1]["parts"]
        ]

    def prompt_of(self, request: Request) -> str:
        """All texts of a request, but for the rounds of the loop."""
        if self.kind == "openai":
            return "\n".join(each["content"] or "" for each in request.body["messages"])
        system = request.body["systemInstruction"]["parts"]
        said = [part for turn in request.body["contents"] for part in turn["parts"]]
        return "\n".join(part.get("text", "") for part in [*system, *said])

    def script(self, *answers: Answer) -> None:
        """Answer the next requests with these."""
        self.server.script(*answers)

    @contextlib.asynccontextmanager
    async def thinking(self, *, after: int = 0) -> AsyncGenerator[Hold]:
        """For the length of the block the agent's requests are not answered, but for the first."""
        hold = self.server.hold = Hold(after=after)
        try:
            yield hold
        finally:
            self.server.hold = None
            hold.is_opened.set()


@contextlib.asynccontextmanager
async def vendor(kind: Literal["openai", "gemini"]) -> AsyncGenerator[Vendor]:
    """One of the two, listening."""
    async with _OpenAI() if kind == "openai" else _Gemini() as server:
        yield Vendor(kind, server)


@dataclass
class Study:
    """A server with a worker of the test, and a chat that opted in."""

    server: Running
    account: Account
    model: Vendor
    chat_id: str
    chronicle_id: UUID

    async def tell(self, *texts: str) -> list[Message]:
        """Go on with the story: lines of the user's and of the character's in turn."""
        return await seed(self.server, self.account, self.chat_id, texts)

    async def read(self) -> None:
        """Run the agent on new lines, and wait until its job ends or is deferred."""
        await self.enqueue()
        await self.idle()

    async def enqueue(self) -> None:
        """Queue the work that follows a stored reply."""
        parts = self.server.parts
        identity = await identity_of(self.server, self.account)
        async with parts.database.write() as session:
            await EnrichmentOutbox(parts.queue).study(
                session, identity, UUID(self.chat_id), self.chronicle_id
            )

    async def jobs(self) -> list[Job]:
        """The agent's jobs of this chat."""
        query = select(Job).where(Job.kind == TURN, Job.payload.contains(self.chat_id))
        async with self.server.parts.database.read() as session:
            return list(await session.scalars(query))

    async def idle(self, *, seconds: float = PATIENCE) -> None:
        """Wait until no job of the agent's can be done now."""

        async def are_over() -> bool:
            return all(
                job.state in {"done", "dead"}
                or (job.state == "queued" and job.run_after > job.updated_at)
                for job in await self.jobs()
            )

        await until(are_over, seconds=seconds)

    async def try_again(self) -> None:
        """Have a job that was put off tried now."""
        parts = self.server.parts
        async with parts.database.write() as session:
            mine = Job.kind == TURN, Job.payload.contains(self.chat_id), Job.state == "queued"
            for job in await session.scalars(select(Job).where(*mine)):
                job.run_after = job.updated_at
        parts.queue.wake()
        await self.idle()

    async def stop(self) -> None:
        """Delete deferred jobs, because they would call the model in another test."""
        await self.idle()
        async with self.server.parts.database.write() as session:
            await session.execute(
                delete(Job).where(Job.kind == TURN, Job.payload.contains(self.chat_id))
            )

    async def events(self) -> list[StoryEvent]:
        """The current events, in the story's order."""
        identity = await identity_of(self.server, self.account)
        async with self.server.parts.database.read() as session:
            return await current_events(session, identity.sealer, self.chronicle_id, limit=100)

    async def summaries(self) -> list[str]:
        """The summaries of the events."""
        return [event.fields.summary for event in await self.events()]

    async def runs(self) -> list[tuple[EnrichmentRun, RunDetail]]:
        """The runs of the chat in order, with their messages and effects."""
        identity = await identity_of(self.server, self.account)
        query = select(EnrichmentRun).where(EnrichmentRun.chat_id == UUID(self.chat_id))
        async with self.server.parts.database.read() as session:
            rows = list(await session.scalars(query.order_by(EnrichmentRun.id)))
        return [(row, open_detail(identity.sealer, row)) for row in rows]

    async def marks(self) -> list[int]:
        """Positions of the watermarks."""
        query = select(EnrichmentMark.position).where(EnrichmentMark.chat_id == UUID(self.chat_id))
        async with self.server.parts.database.read() as session:
            return sorted(await session.scalars(query))

    async def settings(self, **settings: Any) -> dict[str, Any]:
        """Merge into the chat's settings."""
        path = f"{API}/chats/{self.chat_id}/settings"
        answer: dict[str, Any] = ok(await self.account.client.patch(path, json=settings))
        return answer

    async def chat(self) -> Chat:
        """The chat's row."""
        async with self.server.parts.database.read() as session:
            return await session.get_one(Chat, UUID(self.chat_id))


@contextlib.asynccontextmanager
async def reading(
    url: str, folder: Path, model: Vendor, **settings: Any
) -> AsyncGenerator[Running]:
    """A server with an agent model, and a worker of the test for agent and index jobs."""
    values: dict[str, Any] = {**model.settings, "job_workers": 0, **settings}
    async with running(url, folder, **values) as server:
        worker = _worker(server)
        worker.start()
        try:
            yield server
        finally:
            await worker.aclose()


@contextlib.asynccontextmanager
async def studying_on(
    server: Running, model: Vendor, *, opted_in: bool = True
) -> AsyncGenerator[Study]:
    """An account with a chat, and a model without requests of other tests."""
    model.server.forget()
    async with server.account(f"ada-{next(_numbers)}") as account:
        character = await account.new_character()
        chat = await account.new_chat(character_ids=[character["id"]])
        study = Study(server, account, model, chat["id"], UUID(int=0))
        if opted_in:
            answer = await study.settings(chronicle_enabled=True)
            study.chronicle_id = UUID(answer["chronicle_id"])
        try:
            yield study
        finally:
            await study.stop()


@contextlib.asynccontextmanager
async def studying(
    url: str, folder: Path, model: Vendor, *, opted_in: bool = True, **settings: Any
) -> AsyncGenerator[Study]:
    """Both, for tests that need settings of their own."""
    async with (
        reading(url, folder, model, **settings) as server,
        studying_on(server, model, opted_in=opted_in) as study,
    ):
        yield study


def enrichment(server: Running) -> EnrichmentRuntime:
    """Build the services of the agent's jobs from those of a server."""
    parts = server.parts
    return open_enrichment(
        parts.settings,
        parts.database,
        parts.user_models,
        load_prompts(),
        parts.memory,
        parts.cpu_pool,
        EnrichmentOutbox(parts.queue),
        parts.slots,
        clock=StoryClock(),
        names=SnapshotCache(),
    )


def _worker(server: Running) -> Worker:
    parts = server.parts
    own = job_kinds(enrichment(server))
    kinds = {**parts.memory.kinds, TURN: own[TURN]}
    # The longest wait after a failure: no second attempt of itself while a test looks at the first.
    keys = JobKeys(ROOT)
    return Worker(parts.queue, kinds, keys, poll=0.05, draw=lambda: 0.999)


def event(summary: str, *sources: str, **more: Any) -> Call:
    """A call that writes an event."""
    return "create_chronicle_event", {"summary": summary, "source_messages": list(sources), **more}


def entry(title: str, content: str, *keys: str, **more: Any) -> Call:
    """A call that writes a lorebook entry."""
    arguments = {"title": title, "content": content, "keys": list(keys or (title,)), **more}
    return "create_lorebook_entry", arguments


FINISH: Call = ("finish", {})


def tools_of(requests: Iterable[Request]) -> int:
    """The number of agent requests: those with tools or a schema."""
    return sum(
        "tools" in each.body
        or "response_format" in each.body
        or "responseJsonSchema" in each.body.get("generationConfig", {})
        for each in requests
        if each.body
    )


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[Vendor]:
    """The model that the agent of `server` asks."""
    async with vendor("openai") as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: Vendor
) -> AsyncGenerator[Running]:
    async with reading(shared_url, tmp_path_factory.mktemp("data"), model) as server:
        yield server


@pytest.fixture
async def study(server: Running, model: Vendor) -> AsyncGenerator[Study]:
    """A new account on the server of the module, with a chat that opted in."""
    async with studying_on(server, model) as study:
        yield study
