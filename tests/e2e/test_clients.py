"""A client with a short window at the OpenAI-compatible endpoint of a process, and its memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import DefaultHttpxClient, OpenAI

from tests.e2e.test_crash import browser
from tests.e2e.test_memory import BY_WORDS, wait_for_jobs
from tests.fakes import openai_server as fake
from tests.fakes.openai_server import MODEL, MODEL_ID, OpenAIServer
from tests.fakes.scripted_server import Answer, Request
from tests.support.memory import MODEL_FOLDER
from tests.support.process import serving
from tests.support.server import Account, ok

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CARD = Path(__file__).parents[2] / "docs" / "example-card.json"
TURNS, WINDOW = 30, 20
FACT = "My sister's locket is buried beneath the third pear tree."
FACT_TURN = 3
TOPICS = ("the tide", "the lamp", "the harbour", "a loaf of bread", "the fog", "a broken clock")


class Narrator(OpenAIServer):
    """A model server that never says the same twice."""

    def usual(self, request: Request) -> Answer:
        """Answer a request."""
        del request
        topic = TOPICS[len(self.requests) % len(TOPICS)]
        return fake.reply(f"She tells of {topic},", f" and of night {len(self.requests)}.")

    def find_prompt(self, line: str) -> list[str]:
        """Return the texts of the request that ends with a line."""
        for request in reversed(self.requests):
            texts = [str(message["content"]) for message in request.body["messages"]]
            if any(line in text for text in texts):
                return texts
        raise AssertionError("The model was not asked.")


class ListClient:
    """A client that keeps its list of messages, and sends the last ones with each request."""

    def __init__(self, api: OpenAI, *messages: Any) -> None:
        self._api = api
        self.messages: list[Any] = list(messages)

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        self.ask()

    def ask(self) -> None:
        """Request the reply to the last line."""
        stream = self._api.chat.completions.create(
            model="character:marlena", messages=self.messages[-WINDOW:], stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        self.messages.append({"role": "assistant", "content": text})

    def swipe(self) -> None:
        del self.messages[-1]
        self.ask()

    @property
    def texts(self) -> list[str]:
        return [message["content"] for message in self.messages]


@contextmanager
def connect(url: str, key: str, *messages: Any) -> Generator[ListClient]:
    http = DefaultHttpxClient(trust_env=False)
    with OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http) as api:
        yield ListClient(api, *messages)


def play(client: ListClient) -> None:
    """Take all turns. The third one has the fact."""
    for turn in range(1, TURNS + 1):
        topic = TOPICS[turn % len(TOPICS)]
        client.say(FACT if turn == FACT_TURN else f"Tell me more of {topic}, keeper. ({turn})")


async def read_path(account: Account, chat: str) -> list[dict[str, Any]]:
    """Return the active path, with hidden messages."""
    path: list[dict[str, Any]] = []
    before: int | None = None
    while True:
        query = {} if before is None else {"before": before}
        page = await account.get(f"/chats/{chat}/messages", limit=100, **query)
        path = page["items"] + path
        before = page["previous"]
        if before is None:
            return path


def list_ids(path: list[dict[str, Any]]) -> list[str]:
    return [message["id"] for message in path]


def show(path: list[dict[str, Any]]) -> list[str]:
    return [message["text"] for message in path if not message["hidden"]]


@pytest.mark.parametrize("embedder", ["none", pytest.param("local", marks=pytest.mark.embeddings)])
async def test_a_client_with_a_short_window_is_reminded_of_the_third_turn(
    tmp_path: Path, embedder: str
) -> None:
    settings = {**BY_WORDS, "default_model": MODEL_ID, "openai_models": MODEL}
    question = "Where is the locket of my sister?"
    if embedder == "local":
        if not (MODEL_FOLDER / "model.onnx").is_file():
            pytest.skip("there is no embedding model on this machine")
        settings |= {"embedder": "local", "embedding_model_path": str(MODEL_FOLDER)}
        question = "In which place did I hide the jewellery of my sibling?"
    async with Narrator() as model:
        with serving(tmp_path, openai_base_url=model.url, **settings) as served:
            async with browser(served) as ada:
                await ada.post("/characters", json.loads(CARD.read_bytes())["data"], 201)
                body = {"label": "client", "scope": "chat"}
                key = ok(await ada.client.post("/api/v1/api-keys", json=body), 201)["token"]
                with connect(served.url, key) as client:
                    await asyncio.to_thread(play, client)
                    await wait_for_jobs(ada)
                    await asyncio.to_thread(client.say, question)
                    sent = client.texts[-WINDOW - 1 : -1]
                    assert FACT not in sent
                    prompt = model.find_prompt(question)
                    assert any(FACT in text for text in prompt)
                    assert [text for text in prompt if text in sent] == sent

                    chats = (await ada.get("/chats"))["items"]
                    assert len(chats) == 1
                    await check_tree(ada, chats[0]["id"], client)
            assert served.stop() == 0


async def check_tree(account: Account, chat: str, client: ListClient) -> None:
    """Swipe, edit, delete and branch; the one chat follows."""
    path = await read_path(account, chat)
    assert show(path) == client.texts

    await asyncio.to_thread(client.swipe)
    swiped = await read_path(account, chat)
    assert show(swiped) == client.texts
    assert list_ids(swiped[:-1]) == list_ids(path[:-1])
    assert (swiped[-1]["sibling"], swiped[-1]["sibling_count"]) == (2, 2)

    client.messages[-6]["content"] = "Tell me of the wreck instead."
    await asyncio.to_thread(client.say, "And then?")
    edited = await read_path(account, chat)
    assert show(edited) == client.texts
    assert list_ids(edited[:-2]) == list_ids(swiped)
    assert edited[-8]["sibling_count"] == 1

    del client.messages[-7]
    await asyncio.to_thread(client.say, "Go on.")
    deleted = await read_path(account, chat)
    assert show(deleted) == client.texts
    assert list_ids(deleted[:-2]) == list_ids(edited)
    assert [each["id"] for each in deleted if each["hidden"]] == [edited[-7]["id"]]

    del client.messages[-4:]
    await asyncio.to_thread(client.say, "No: I want to sleep.")
    branched = await read_path(account, chat)
    assert show(branched) == client.texts
    assert list_ids(branched[:-2]) == list_ids(deleted[:-4])
    assert branched[-2]["sibling_count"] == 2
    await account.post(f"/messages/{deleted[-4]['id']}/activate", {})
    assert list_ids(await read_path(account, chat)) == list_ids(deleted)
    assert len((await account.get("/chats"))["items"]) == 1
