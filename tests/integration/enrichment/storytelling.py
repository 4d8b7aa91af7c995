"""A model server that continues stories and writes summaries, and readers of summaries."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.enrichment.models import EnrichmentRun
from backend.enrichment.outbox import SUMMARY
from backend.jobs.models import Job
from tests.fakes.openai_server import OpenAIServer, reply, usage
from tests.fakes.scripted_server import Answer, Gate, Request
from tests.support.server import Account, Running, ok, problem
from tests.support.waiting import until

TASK = "Task: rolling summary"
NUMBER = re.compile(r"^#(\d+) ", re.MULTILINE)


class Storyteller(OpenAIServer):
    """A model that continues stories and writes summaries.

    Requests for summaries are answered from `summing_up` first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.summing_up: deque[Answer] = deque()

    def usual(self, request: Request) -> Answer:
        if not is_summing_up(request):
            return super().usual(request)
        if self.summing_up:
            return self.summing_up.popleft()
        numbers = list_numbers(request)
        return reply(f"Told up to {numbers[-1]}.", used=usage(100, 10))

    def hold(self, answer: Answer) -> Gate:
        """Answer a request for a summary with this once the returned gate is opened."""
        gate = Gate()
        self.summing_up.append(replace(answer, events=[gate, *(answer.events or ())]))
        return gate

    @property
    def summed_up(self) -> list[Request]:
        """The requests for summaries so far."""
        return [request for request in self.requests if is_summing_up(request)]

    async def is_asked(self, count: int = 1) -> None:
        """Wait until the model has received this number of requests for summaries."""

        async def are_asked() -> bool:
            return len(self.summed_up) >= count

        await until(are_asked)


@pytest.fixture(scope="module")
async def vendor() -> AsyncGenerator[Storyteller]:
    async with Storyteller() as vendor:
        yield vendor


@pytest.fixture
def teller(vendor: Storyteller) -> Storyteller:
    """The model of the module's server, without requests and answers of earlier tests."""
    vendor.requests.clear()
    vendor.summing_up.clear()
    return vendor


def is_summing_up(request: Request) -> bool:
    return bool(request.body["messages"][0]["content"].startswith(TASK))


def asked(request: Request) -> str:
    """Return the text that a request for a summary contains."""
    return str(request.body["messages"][1]["content"])


def list_numbers(request: Request) -> list[int]:
    """Return the numbers of the lines in a request for a summary."""
    return [int(number) for number in NUMBER.findall(asked(request))]


def read_previous(request: Request) -> str:
    """Return the earlier summary in a request for a summary."""
    found = re.search(r"<previous_summary>\n(.*)\n</previous_summary>", asked(request), re.DOTALL)
    return found.group(1).strip() if found else ""


async def read_summary(ada: Account, chat: str) -> dict[str, Any]:
    """Return the current summary, or an empty object if there is none."""
    answer = await ada.ask("GET", f"/chats/{chat}/summary")
    if answer.status_code == 404:
        problem(answer, 404, "summary-not-found")
        return {}
    summary: dict[str, Any] = ok(answer)
    return summary


async def put_summary(ada: Account, chat: str, text: str, **body: Any) -> dict[str, Any]:
    return await ada.put(f"/chats/{chat}/summary", {"text": text, **body})


def list_summaries(context: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in context["items"] if item["kind"] == "summary"]


async def load_jobs(server: Running, chat: str) -> list[Job]:
    """Return the summary jobs of a chat."""
    async with server.parts.database.read() as session:
        rows = await session.scalars(select(Job).where(Job.kind == SUMMARY))
        return [row for row in rows if chat in row.payload]


async def load_runs(server: Running, chat: str) -> list[EnrichmentRun]:
    query = select(EnrichmentRun).where(EnrichmentRun.chat_id == UUID(chat))
    async with server.parts.database.read() as session:
        return list(await session.scalars(query.order_by(EnrichmentRun.id)))


async def at_rest(server: Running, chat: str) -> None:
    """Wait until the summary jobs of a chat are done."""

    async def is_done() -> bool:
        return all(job.state == "done" for job in await load_jobs(server, chat))

    await until(is_done)
