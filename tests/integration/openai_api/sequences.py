"""A client that plays in a served application, and the chat as its user sees it in the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

import httpx
from sqlalchemy import func, select

from backend.chats.models import Message
from tests.fakes.openai_server import OpenAIServer, chunk, error, reply, stream
from tests.fakes.scripted_server import Silence
from tests.support.clients import (
    SillyTavernClient,
    Wire,
)
from tests.support.server import Account, Running, ok

CHAT = "/v1/chat/completions"
GREETING = "Welcome to the mill."


class ChatClient(Protocol):
    """A client that keeps its own chat."""

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The chat as the client's user sees it."""
        ...

    def receive(self, reply: str) -> object:
        """Take the reply to the last request."""
        ...


Client = TypeVar("Client", bound=ChatClient)
Other = TypeVar("Other", bound=ChatClient)


@dataclass(kw_only=True)
class Seat(Generic[Client]):
    """A user with a client, a page and a scripted model."""

    server: Running
    account: Account
    program: httpx.AsyncClient
    vendor: OpenAIServer
    client: Client
    model: str = "character:marlena"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def use(self, client: Other) -> Seat[Other]:
        """Return the same user with another client."""
        return Seat(
            server=self.server,
            account=self.account,
            program=self.program,
            vendor=self.vendor,
            client=client,
            model=self.model,
            headers=self.headers,
        )

    async def send(
        self, sent: Sequence[Wire], text: str = "", *, is_stream: bool = False, **headers: str
    ) -> httpx.Response:
        """Send a request that the model answers with a text. The client gets nothing."""
        self.script(text or self._make_text())
        body = {"model": self.model, "messages": list(sent), "stream": is_stream}
        return await self.program.post(CHAT, json=body, headers=self._make_headers(headers))

    async def ask(self, sent: Sequence[Wire], text: str = "", **options: Any) -> str:
        """Send a request, and take the reply into the client's chat. Returns the reply."""
        response = await self.send(sent, text, **options)
        assert response.status_code == 200, response.text
        spoken = read_reply(response)
        self.client.receive(spoken)
        return spoken

    async def stop(self, sent: Sequence[Wire], text: str, written: str = "", **headers: str) -> str:
        """Send a request, and close the connection after a part of the reply. Returns it.

        The model writes `written` of the reply, by default all of it.
        """
        self.vendor.unscript()
        begin = chunk(role="assistant", content="")
        self.vendor.script(stream(begin, chunk(content=written or text), Silence()))
        body = {"model": self.model, "messages": list(sent), "stream": True}
        spoken = ""
        async with self.program.stream(
            "POST", CHAT, json=body, headers=self._make_headers(headers)
        ) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                spoken += read_delta(line)
                if spoken == text:
                    break
        return spoken

    async def fail(self, sent: Sequence[Wire]) -> httpx.Response:
        """Send a request that the model refuses."""
        self.vendor.unscript()
        self.vendor.script(error(400, message="No."))
        body = {"model": self.model, "messages": list(sent)}
        return await self.program.post(CHAT, json=body, headers=self.headers)

    def script(self, text: str) -> None:
        """Let the model answer the next request with a text."""
        self.vendor.unscript()
        self.vendor.script(reply(text[:5], text[5:]))

    def _make_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return {**self.headers, **names}

    def _make_text(self) -> str:
        number = len(self.vendor.requests)
        return f"Reply {number}: the wheel of the mill turns for the {number}th time today."

    @property
    def prompt(self) -> list[tuple[str, str]]:
        """The messages that the model has received last."""
        body = self.vendor.requests[-1].body
        return [(each["role"], each["content"]) for each in body["messages"]]

    @property
    def prompt_text(self) -> str:
        return "\n".join(text for _, text in self.prompt)

    async def list_chats(self) -> list[str]:
        return [each["id"] for each in (await self.account.get("/chats"))["items"]]

    async def find_chat(self) -> str:
        [chat_id] = await self.list_chats()
        return chat_id

    async def read_path(self, chat_id: str = "") -> list[dict[str, Any]]:
        return await self.account.messages(chat_id or await self.find_chat(), limit=200)

    async def show(self, chat_id: str = "") -> list[tuple[str, str]]:
        """Return the lines of the active path that are not hidden."""
        path = await self.read_path(chat_id)
        return [(each["role"], each["text"]) for each in path if not each["hidden"]]

    async def show_hidden(self) -> list[str]:
        return [each["text"] for each in await self.read_path() if each["hidden"]]

    async def list_siblings(self, place: int) -> list[str]:
        """Return the texts of all swipes of a message of the active path."""
        found = (await self.read_path())[place]
        listed = await self.account.ask("GET", f"/messages/{found['id']}/siblings")
        return sorted(each["text"] for each in ok(listed)["items"])

    async def decide(self) -> tuple[str, str]:
        """Return the kind and the reason of the last request."""
        last = (await self.account.get("/client-requests"))["items"][0]
        return last["kind"], last["reason"]

    async def check(
        self, kind: str, reason: str, *, shown: Sequence[tuple[str, str]] | None = None
    ) -> None:
        """Assert the decision, and that the one chat is that of the client."""
        decided, seen = await self.decide(), await self.show()
        expected = self.client.lines if shown is None else list(shown)
        assert decided == (kind, reason), decided
        assert seen == expected, f"The page shows\n{seen}\nand the client\n{expected}"
        await self.check_stored()

    async def has_indexed(self) -> bool:
        """True if no job of the account is left."""
        jobs = (await self.account.get("/jobs", limit=100))["items"]
        return all(job["state"] in {"done", "dead"} for job in jobs)

    async def correct(self, kind: str) -> dict[str, Any]:
        """Correct the decision about the last request."""
        last = (await self.account.get("/client-requests"))["items"][0]
        return await self.account.post(f"/client-requests/{last['id']}/correction", {"kind": kind})

    async def check_stored(self) -> None:
        """Assert that no text is twice below one message."""
        query = (
            select(func.count())
            .where(Message.user_id == UUID(self.account.user["id"]))
            .group_by(Message.chat_id, Message.parent_id, Message.text_digest)
        )
        async with self.server.parts.database.read() as session:
            assert set(await session.scalars(query)) <= {1}


class Player(Seat[SillyTavernClient]):
    """A user of SillyTavern."""

    async def play(self, count: int) -> None:
        """Say some lines, and take the replies."""
        for _ in range(count):
            await self.ask(self.client.say(f"Line {len(self.client.chat)}: {_WORDS}"))


_WORDS = "I walk along the river and look for the miller."


def read_reply(response: httpx.Response) -> str:
    """Return the text of a reply, streamed or not."""
    if response.headers["content-type"] != "text/event-stream":
        return str(response.json()["choices"][0]["message"]["content"])
    return "".join(read_delta(line) for line in response.text.split("\n"))


def read_delta(line: str) -> str:
    """Return the text in a line of a stream."""
    data = line.removeprefix("data: ")
    if data in {line, "[DONE]"}:
        return ""
    chunk = json.loads(data)
    assert "error" not in chunk, chunk
    return "".join(each["delta"].get("content") or "" for each in chunk["choices"])
