"""A model server that goes on with stories and sums them up, and what tests ask about summaries."""

from __future__ import annotations

import re
from collections import deque
from typing import Any
from uuid import UUID

from sqlalchemy import select

from backend.enrichment.models import EnrichmentRun
from backend.enrichment.outbox import SUMMARY
from backend.jobs.models import Job
from tests.fakes.openai_server import OpenAIServer, reply, usage
from tests.fakes.scripted_server import Answer, Request
from tests.support.server import Account, Running, ok
from tests.support.waiting import until

API = "/api/v1"
TASK = "Task: rolling summary"
NUMBER = re.compile(r"^#(\d+) ", re.MULTILINE)


class Storyteller(OpenAIServer):
    """Tells on, or sums up, as it is asked to; what is in `summing_up` it answers to that first."""

    def __init__(self) -> None:
        super().__init__()
        self.summing_up: deque[Answer] = deque()

    def usual(self, request: Request) -> Answer:
        if not is_summing_up(request):
            return super().usual(request)
        if self.summing_up:
            return self.summing_up.popleft()
        numbers = numbers_in(request)
        return reply(f"Told up to {numbers[-1]}.", used=usage(100, 10))

    @property
    def summed_up(self) -> list[Request]:
        """The requests for summaries that came in."""
        return [request for request in self.requests if is_summing_up(request)]


def is_summing_up(request: Request) -> bool:
    return bool(request.body["messages"][0]["content"].startswith(TASK))


def asked(request: Request) -> str:
    """What a request for a summary is about."""
    return str(request.body["messages"][1]["content"])


def numbers_in(request: Request) -> list[int]:
    """The numbers of the lines that a request for a summary holds."""
    return [int(number) for number in NUMBER.findall(asked(request))]


def previous_in(request: Request) -> str:
    """The summary that a request for one builds on."""
    found = re.search(r"<previous_summary>\n(.*)\n</previous_summary>", asked(request), re.DOTALL)
    return found.group(1).strip() if found else ""


async def summary_of(ada: Account, chat: str) -> dict[str, Any] | None:
    """The current summary; None where there is none."""
    answer = await ada.ask("GET", f"/chats/{chat}/summary")
    if answer.status_code == 404:
        assert answer.json()["type"].endswith(":summary-not-found")
        return None
    return ok(answer)


async def put_summary(ada: Account, chat: str, text: str, **body: Any) -> dict[str, Any]:
    return await ada.put(f"/chats/{chat}/summary", {"text": text, **body})


def summaries_in(context: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in context["items"] if item["kind"] == "summary"]


async def jobs_of(server: Running, chat: str) -> list[Job]:
    """The jobs of a chat's summary."""
    async with server.parts.database.read() as session:
        rows = await session.scalars(select(Job).where(Job.kind == SUMMARY))
        return [row for row in rows if chat in row.payload]


async def runs_of(server: Running, chat: str) -> list[EnrichmentRun]:
    query = select(EnrichmentRun).where(EnrichmentRun.chat_id == UUID(chat))
    async with server.parts.database.read() as session:
        return list(await session.scalars(query.order_by(EnrichmentRun.id)))


async def at_rest(server: Running, chat: str) -> None:
    """Wait until nothing is to be done for a chat's summary."""

    async def is_done() -> bool:
        return all(job.state == "done" for job in await jobs_of(server, chat))

    await until(is_done)
