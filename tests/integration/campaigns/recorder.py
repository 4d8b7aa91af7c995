"""A model that compresses scenes and chapters as scripted, and a chat that uses it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sqlalchemy import select

from backend.enrichment.outbox import CHAPTER, SCENE
from backend.generation.registry import ModelRegistry
from backend.generation.servers.abilities import ModelAbilities, ServerAbilities
from backend.jobs import running as running_jobs
from backend.jobs.models import Job
from tests.fakes.holding_server import HoldingServer
from tests.fakes.openai_server import MODEL, MODEL_ID, reply, usage
from tests.fakes.scripted_server import Answer, Request
from tests.integration.campaigns.seagate import Table, new_session
from tests.support.memory import working
from tests.support.server import Running, ok, running
from tests.support.waiting import until

API = "/api/v1"
USED = usage(100, 10)


class Recorder(HoldingServer):
    """Answers turns, compresses scenes to `kept`, and chapters to `chapter`."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Any] = {}
        self.chapter: dict[str, Any] = {}
        self.fails: list[Answer] = []
        self.task = "scene"
        self.reset()

    def reset(self) -> None:
        self.requests.clear()
        self.fails = []
        self.task = "scene"
        self.kept = {"summary": "They broke in.", "key_moments": ["The lock gave."], "seeds": []}
        self.chapter = {"title": "The break-in", "summary": "They stole the ledger."}
        self.is_opened.set()

    def usual(self, request: Request) -> Answer:
        if not request.path.endswith("/completions"):
            return super().usual(request)
        if answer := {"scene": self.kept, "chapter": self.chapter}.get(read_task(request)):
            failed = self.fails.pop(0) if self.fails and self.holds(request) else None
            return failed or reply(json.dumps(answer), used=USED)
        return reply("The lock gives way with a sigh.")

    def holds(self, request: Request) -> bool:
        """True for requests of `task`, which `thinking` delays and `fails` answers."""
        return read_task(request) == self.task

    @property
    def asked(self) -> list[str]:
        """The texts of the requests for scenes."""
        return self.told("scene")

    def told(self, task: str) -> list[str]:
        """Return the texts of the requests of a task."""
        return [
            str(each.body["messages"][1]["content"])
            for each in self.requests
            if read_task(each) == task
        ]


def read_task(request: Request) -> str:
    """Return `scene`, `chapter`, or an empty text for a turn."""
    messages: list[Any] = (request.body.get("messages") if request.body else None) or []
    first = str(messages[0]["content"]).partition("\n")[0] if messages else ""
    return first.removeprefix("Task: ") if first.startswith("Task: ") else ""


def list_lines(asked: str) -> list[str]:
    inside = asked.partition("<new_lines>\n")[2].partition("</new_lines>")[0]
    return [line for line in inside.splitlines() if line.startswith("#")]


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry failed jobs at once instead of after seconds."""
    monkeypatch.setattr(running_jobs, "FIRST_DELAY_SECONDS", 0.05)


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[Recorder]:
    async with Recorder() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: Recorder
) -> AsyncGenerator[Running]:
    # So that a bad answer is a failure, and not a reason to ask in another form.
    abilities = ServerAbilities(models={MODEL: ModelAbilities(json="json_schema")})
    config = model.config(abilities=abilities)
    registry = ModelRegistry(demo_tokens_per_second=0, openai=config, default=MODEL_ID)
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder, registry=registry) as server, working(server.parts):
        yield server


@pytest.fixture
def fresh(model: Recorder) -> None:
    model.reset()


class Play:
    """A chat of a campaign that compresses scenes after three beats."""

    def __init__(self, server: Running, table: Table, chat: str, scene: str) -> None:
        self.server, self.table, self.chat, self.scene_id = server, table, chat, scene
        self.ada = table.account

    async def turn(self, text: str = "Go on.", **body: Any) -> str:
        """Take a turn; wait for compressions; return the id of the reply."""
        events = await self.ada.turn(self.chat, **({"text": text, **body} if text else body))
        assert events[-1].name == "turn.completed", events[-1]
        await self.at_rest()
        return str(events[0].data["reply_id"])

    async def at_rest(self) -> None:
        """Wait until no compression is due."""
        query = select(Job.state).where(
            Job.kind.in_([SCENE, CHAPTER]), Job.payload.contains(self.chat)
        )

        async def is_over() -> bool:
            async with self.server.parts.database.read() as session:
                return set(await session.scalars(query)) <= {"done", "dead"}

        await until(is_over)

    async def close(self, **query: Any) -> None:
        path = f"/scenes/{self.scene_id}/close"
        ok(await self.table.ask("POST", path, params=query))
        await self.at_rest()

    async def scene(self) -> dict[str, Any]:
        return await self.table.get(f"/scenes/{self.scene_id}")

    async def summary(self) -> str:
        return str((await self.scene())["summary"])

    async def threads(self) -> list[str]:
        return [each["title"] for each in (await self.table.get("/threads"))["items"]]

    async def changes(self) -> list[dict[str, Any]]:
        """Return the changes of compressions, newest first."""
        page = await self.table.get("/changes")
        return [each for each in page["items"] if each["actor"] == "compactor"]

    async def runs(self, kind: str = "scene") -> list[dict[str, Any]]:
        found = (await self.ada.get(f"/chats/{self.chat}/enrichment"))["items"]
        return [each for each in found if each["kind"] == kind]

    async def end(self, number: int, **body: Any) -> str:
        """Play a scene of one turn and close it; return the id of the reply."""
        scene = await self.table.add("scenes", title=f"Scene {number}")
        self.scene_id = scene["id"]
        said = await self.turn(f"Scene {number} is told.", **body)
        await self.close()
        return said

    async def chapters(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self.table.get("/chapters"))["items"]
        return items

    async def prompt(self, **query: Any) -> dict[str, Any]:
        """Return the context of the next turn."""
        asked = {"text": "Well?", "prompt": "true", **query}
        found = await self.ada.get(f"/chats/{self.chat}/context", **asked)
        context: dict[str, Any] = found
        return context


@pytest.fixture
async def play(server: Running, table: Table) -> Play:
    await table.change("", settings={"scene_beats": 3})
    chat = await new_session(table, first_mes="")
    scene = await table.add("scenes", title="The counting house", stakes="The ledger.")
    return Play(server, table, chat, scene["id"])
