"""Titles of chats that a model writes after the first exchange."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from backend.jobs import running as running_jobs
from tests.fakes.openai_server import MODEL_ID, OpenAIServer, error, reply, usage
from tests.fakes.scripted_server import Answer, Request
from tests.integration.enrichment.storytelling import load_runs
from tests.support.server import Account, Running
from tests.support.shared import asking_server as server
from tests.support.waiting import until

__all__ = ["server"]

pytestmark = pytest.mark.anyio

TASK = "Task: title"


class TitleWriter(OpenAIServer):
    """A model that continues stories, and answers each request for a title with `title`."""

    def __init__(self) -> None:
        super().__init__()
        self.title: Answer = reply("")

    def usual(self, request: Request) -> Answer:
        is_title = request.body["messages"][0]["content"].startswith(TASK)
        return self.title if is_title else super().usual(request)


@pytest.fixture(scope="module")
async def vendor() -> AsyncGenerator[TitleWriter]:
    async with TitleWriter() as vendor:
        yield vendor


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_jobs, "FIRST_DELAY_SECONDS", 0.05)


async def read_title(ada: Account, chat: str) -> str:
    return str((await ada.get(f"/chats/{chat}"))["title"])


async def test_a_model_for_background_tasks_writes_the_title(
    ada: Account, chat: str, server: Running, vendor: TitleWriter
) -> None:
    vendor.title = reply('"The Last Lamp."', used=usage(90, 4))
    await ada.patch("/me/settings", {"task_models": {"summary": MODEL_ID}})
    await ada.turn(chat, text="I light the lamp.")

    async def is_titled() -> bool:
        return await read_title(ada, chat) == "The Last Lamp"

    await until(is_titled)
    request = vendor.requests[-1].body["messages"]
    assert "#1 Mara: The door creaks open." in request[1]["content"]
    assert f"#2 {ada.name}: I light the lamp." in request[1]["content"]
    [run] = await load_runs(server, chat)
    assert (run.kind, run.state, run.calls) == ("title", "done", 1)
    assert (run.prompt_tokens, run.completion_tokens) == (90, 4)
    await ada.turn(chat, text="And then?")
    assert len(await load_runs(server, chat)) == 1
    assert await read_title(ada, chat) == "The Last Lamp"


async def test_without_an_answer_the_first_line_remains(
    ada: Account, chat: str, server: Running, vendor: TitleWriter
) -> None:
    vendor.title = error(401, message="No such key.")
    await ada.patch("/me/settings", {"page": {"titles": "model"}})
    await ada.turn(chat, text="I light the lamp.")

    async def has_failed() -> bool:
        return [run.state for run in await load_runs(server, chat)] == ["failed"]

    await until(has_failed)
    assert await read_title(ada, chat) == "I light the lamp."


async def test_a_title_of_the_user_is_kept(
    ada: Account, chat: str, server: Running, vendor: TitleWriter
) -> None:
    vendor.title = reply("The Last Lamp")
    await ada.patch("/me/settings", {"page": {"titles": "model"}})
    await ada.patch(f"/chats/{chat}", {"title": "Mine"})
    await ada.turn(chat, text="I light the lamp.")
    assert await read_title(ada, chat) == "Mine"
    assert await load_runs(server, chat) == []
