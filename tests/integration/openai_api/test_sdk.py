"""The `openai` SDKs for Python and JavaScript at every route of `/v1`."""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from tests.fakes import openai_server as fake
from tests.fakes.openai_server import MODEL_ID, OpenAIServer
from tests.fakes.scripted_server import Answer, Request
from tests.integration.openai_api.conftest import make_key
from tests.support.importing import plain_png
from tests.support.npm import install_packages, run_script
from tests.support.server import Account, Running
from tests.support.shared import asking_server, shared_url

__all__ = ["asking_server", "shared_url"]

pytestmark = pytest.mark.anyio

USUAL = "The rain has stopped."
"""The usual reply of the model server."""

PICTURE = f"data:image/png;base64,{base64.b64encode(plain_png()).decode()}"

PARAMETERS = {
    "type": "object",
    "properties": {"at": {"type": "string"}},
    "required": ["at"],
    "additionalProperties": False,
}
LOOK: Any = {
    "type": "function",
    "function": {"name": "look", "description": "Look around.", "parameters": PARAMETERS},
}


BROKEN = fake.stream(
    fake.chunk(content="Once upon a time"),
    {"error": {"message": "The server has no memory left.", "code": 500}},
)


class Vendor(OpenAIServer):
    """A model server that calls a tool, or fails in the middle, if the last message says so."""

    def usual(self, request: Request) -> Answer:
        """Answer a request."""
        body: Any = request.body or {}
        last: Any = body.get("messages", [{}])[-1].get("content")
        if last == "call":
            return fake.called(("look", {"at": "the door"}))
        return BROKEN if last == "break" else super().usual(request)


class Place(BaseModel):
    """The form of a reply."""

    name: str
    rooms: int


def said(role: str, content: Any, **members: Any) -> Any:
    return {"role": role, "content": content, **members}


@dataclass
class Desk:
    """An account, a client of the SDK with its key, and the model server."""

    account: Account
    client: AsyncOpenAI
    model: OpenAIServer
    character: str

    async def ask(self, model: str, *messages: Any, **options: Any) -> Any:
        """Return the reply, and fail if the model server was not asked."""
        count = len(self.model.requests)
        create: Any = self.client.chat.completions.create
        reply: Any = await create(
            model=model, messages=messages or [said("user", "Hello.")], **options
        )
        assert len(self.model.requests) > count
        return reply

    @property
    def sent(self) -> dict[str, Any]:
        """The last request that the model server received."""
        body: dict[str, Any] = self.model.requests[-1].body
        return body


@dataclass
class Heard:
    """A stream that was read to its end."""

    headers: Any
    chunks: list[ChatCompletionChunk] = field(default_factory=list[ChatCompletionChunk])

    @property
    def text(self) -> str:
        return "".join(
            choice.delta.content or "" for chunk in self.chunks for choice in chunk.choices
        )


async def listen(desk: Desk, model: str, *messages: Any, **options: Any) -> Heard:
    """Read a streamed reply."""
    raw = await desk.client.chat.completions.with_raw_response.create(
        model=model, messages=list(messages), stream=True, **options
    )
    heard = Heard(raw.headers)
    async for chunk in raw.parse():
        heard.chunks.append(chunk)
    return heard


class LosingTransport(httpx2.AsyncHTTPTransport):
    """Loses the first response."""

    has_lost = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        response = await super().handle_async_request(request)
        if self.has_lost:
            return response
        self.has_lost = True
        await response.aread()
        raise httpx2.ReadError("The connection is lost.")


@asynccontextmanager
async def connect(
    server: Running,
    key: str,
    *,
    max_retries: int = 0,
    transport: httpx2.AsyncHTTPTransport | None = None,
) -> AsyncGenerator[AsyncOpenAI]:
    """Yield a client that sends each request once."""
    async with AsyncOpenAI(
        base_url=f"{server.url}/v1",
        api_key=key,
        max_retries=max_retries,
        http_client=DefaultAsyncHttpxClient(trust_env=False, transport=transport),
    ) as client:
        yield client


@pytest.fixture(scope="module")
async def vendor() -> AsyncGenerator[Vendor]:
    async with Vendor() as vendor:
        yield vendor


@pytest.fixture(scope="session")
def npm_folder(pytestconfig: pytest.Config) -> Path:
    """A folder with the SDK for JavaScript."""
    return install_packages(pytestconfig)


@pytest.fixture(scope="module")
async def ada(asking_server: Running) -> AsyncGenerator[Account]:
    async with asking_server.account("Ada") as account:
        yield account


@pytest.fixture(scope="module")
async def key(ada: Account) -> str:
    return await make_key(ada, "chat")


@pytest.fixture(scope="module")
async def character(ada: Account) -> str:
    made = await ada.new_character(name="Marlena", description="Keeps the old mill.")
    return str(made["id"])


@pytest.fixture
async def desk(
    asking_server: Running, vendor: OpenAIServer, ada: Account, key: str, character: str
) -> AsyncGenerator[Desk]:
    vendor.unscript()
    async with connect(asking_server, key) as client:
        yield Desk(ada, client, vendor, character)


def texts(messages: Iterable[dict[str, Any]]) -> list[str]:
    return [message["text"] for message in messages]


async def test_models_are_listed_and_found(desk: Desk) -> None:
    listed = [each async for each in await desk.client.models.list()]
    names = [each.id for each in listed]
    assert {"auto", "character:marlena", "demo", MODEL_ID} <= set(names)
    found = await desk.client.models.retrieve("character:marlena")
    assert (found.id, found.owned_by) == ("character:marlena", "talekeeper")
    assert (await desk.client.models.retrieve(MODEL_ID)).id == MODEL_ID


async def test_a_plain_model_answers_with_usage(desk: Desk) -> None:
    reply = await desk.ask(
        MODEL_ID, said("system", "Be brief."), said("user", "Hello."), stop="END"
    )
    [choice] = reply.choices
    assert (choice.message.content, choice.finish_reason) == (USUAL, "stop")
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (12, 14)
    assert desk.sent["stop"] == ["END"]
    assert [each["content"] for each in desk.sent["messages"]] == ["Be brief.", "Hello."]


async def test_a_plain_model_streams_with_usage_at_the_end(desk: Desk) -> None:
    options = {"include_usage": True}
    heard = await listen(desk, MODEL_ID, said("user", "Hello."), stream_options=options)
    assert heard.text == USUAL
    *_, end, last = heard.chunks
    assert end.choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 2


async def test_several_choices_are_told_apart(desk: Desk) -> None:
    desk.model.script(fake.reply("One."), fake.reply("Two."))
    reply = await desk.ask(MODEL_ID, n=2)
    assert {choice.message.content for choice in reply.choices} == {"One.", "Two."}
    assert [choice.index for choice in reply.choices] == [0, 1]


async def test_tools_are_called_and_answered(desk: Desk) -> None:
    line = said("user", "call")
    create = desk.client.chat.completions
    async with create.stream(model=MODEL_ID, messages=[line], tools=[LOOK]) as stream:
        asked = (await stream.get_final_completion()).choices[0]
    assert asked.finish_reason == "tool_calls"
    assert asked.message.tool_calls
    [call] = asked.message.tool_calls
    assert json.loads(call.function.arguments) == {"at": "the door"}
    answer = said("tool", "A cat.", tool_call_id=call.id)
    message = asked.message.model_dump(exclude_none=True, exclude={"parsed"})
    reply = await desk.ask(MODEL_ID, line, message, answer, tools=[LOOK])
    assert reply.choices[0].message.content == USUAL
    assert [each["role"] for each in desk.sent["messages"]] == ["user", "assistant", "tool"]
    assert desk.sent["tools"][0]["function"]["parameters"] == PARAMETERS


async def test_a_reply_is_parsed_into_the_requested_form(desk: Desk) -> None:
    desk.model.script(fake.reply('{"name": "The mill", ', '"rooms": 3}'))
    reply = await desk.client.chat.completions.parse(
        model=MODEL_ID, messages=[said("user", "Describe it.")], response_format=Place
    )
    assert reply.choices[0].message.parsed == Place(name="The mill", rooms=3)
    form = desk.sent["response_format"]
    assert (form["type"], form["json_schema"]["name"]) == ("json_schema", "Place")


async def test_texts_are_continued_by_plain_models_only(desk: Desk) -> None:
    whole = await desk.client.completions.create(model=MODEL_ID, prompt="Once", max_tokens=9)
    assert (whole.object, whole.choices[0].text) == ("text_completion", USUAL)
    assert whole.usage is not None
    assert whole.usage.total_tokens == 14
    stream = await desk.client.completions.create(model=MODEL_ID, prompt="Once", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == USUAL
    with pytest.raises(openai.BadRequestError) as caught:
        await desk.client.completions.create(model="character:marlena", prompt="Once")
    assert caught.value.code == "chat-completions-only"


async def test_embeddings_are_equal_as_numbers_and_as_base64(desk: Desk) -> None:
    create = desk.client.embeddings.create
    # The SDK asks for base64 and decodes it, unless a format is chosen.
    usual = await create(model="openai/words", input=["a door", "a cat"])
    numbers = await create(model="openai/words", input=["a door"], encoding_format="float")
    coded = await create(model="openai/words", input="a door", encoding_format="base64")
    assert len(usual.data) == 2
    assert usual.data[0].embedding == pytest.approx(numbers.data[0].embedding)
    # The SDK declares numbers here, whatever format was asked for.
    raw = str(coded.data[0].embedding)
    assert len(base64.b64decode(raw)) == 4 * len(numbers.data[0].embedding)
    assert usual.usage.prompt_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_character_answers_in_a_stored_chat(desk: Desk, *, stream: bool) -> None:
    lines = [said("user", f"Is anyone there? {stream}")]
    first = await listen(desk, "character:marlena", *lines, stream_options={"include_usage": True})
    assert first.text == USUAL
    assert first.chunks[-1].usage is not None
    chat, message = (first.headers[f"x-talekeeper-{name}"] for name in ("chat", "message"))
    lines += [said("assistant", first.text), said("user", "Open the door!")]
    create = desk.client.chat.completions
    if stream:
        second = await listen(desk, "character:marlena", *lines)
        headers, text = second.headers, second.text
    else:
        raw = await create.with_raw_response.create(model="character:marlena", messages=lines)
        headers, text = raw.headers, raw.parse().choices[0].message.content or ""
    assert headers["x-talekeeper-chat"] == chat
    stored = await desk.account.messages(chat)
    assert texts(stored)[-4:] == [*(line["content"] for line in lines), text]
    assert [stored[-3]["id"], stored[-1]["id"]] == [message, headers["x-talekeeper-message"]]
    # The same list makes another version of the reply.
    await create.create(model="character:marlena", messages=lines)
    assert (await desk.account.messages(chat))[-1]["sibling_count"] == 2


async def test_a_chat_and_a_campaign_answer_by_name(desk: Desk) -> None:
    chat = (await desk.account.new_chat(character_ids=[desk.character]))["id"]
    heard = await listen(desk, f"chat:{chat}", said("user", "Who is at the gate?"))
    assert heard.headers["x-talekeeper-chat"] == chat
    assert texts(await desk.account.messages(chat))[-2:] == ["Who is at the gate?", USUAL]
    campaign = await desk.account.post("/campaigns", {"name": "The Salt Road"}, 201)
    heard = await listen(desk, "campaign:the-salt-road", said("user", "I look at the sea."))
    assert heard.text.startswith(USUAL)
    found = await desk.account.get(f"/chats/{heard.headers['x-talekeeper-chat']}")
    assert found["campaign_id"] == campaign["id"]


async def test_auto_recognises_a_character_or_is_a_plain_model(desk: Desk) -> None:
    card = said("system", "Write Marlena's next reply. Marlena keeps the old mill.")
    heard = await listen(desk, "auto", card, said("user", "Does the mill turn?"))
    found = await desk.account.get(f"/chats/{heard.headers['x-talekeeper-chat']}")
    assert found["character_ids"] == [desk.character]
    plain = await listen(desk, "auto", said("system", "Translate."), said("user", "Ja."))
    assert plain.text == USUAL
    assert "x-talekeeper-chat" not in plain.headers


async def test_headers_choose_a_chat_and_what_is_stored(desk: Desk) -> None:
    chat = (await desk.account.new_chat(character_ids=[desk.character]))["id"]
    named = await listen(
        desk,
        "character:marlena",
        said("user", "A line of its own."),
        extra_headers={"X-Talekeeper-Chat": chat},
    )
    assert named.headers["x-talekeeper-chat"] == chat
    count = (await desk.account.get("/chats", limit=1))["items"][0]["id"]
    quiet = await listen(
        desk,
        "character:marlena",
        said("user", "Nobody is to know this."),
        extra_headers={"X-Talekeeper-Store": "never"},
        extra_body={"mirostat": 2},
    )
    assert quiet.text == USUAL
    assert quiet.headers["x-talekeeper-ignored"] == "mirostat"
    assert (await desk.account.get("/chats", limit=1))["items"][0]["id"] == count


async def test_each_error_is_an_exception_of_its_class(asking_server: Running, desk: Desk) -> None:
    async def fails(kind: type[openai.APIStatusError], code: str, **options: Any) -> None:
        body: dict[str, Any] = {
            "model": MODEL_ID,
            "messages": [said("user", "Hello.")],
            "client": desk.client,
            **options,
        }
        client = body.pop("client")
        for stream in (False, True):
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(**body, stream=stream)
            assert caught.value.code == code
            assert caught.value.message

    async with connect(asking_server, "tk_wrong") as stranger:
        await fails(openai.AuthenticationError, "unauthenticated", client=stranger)
    async with connect(asking_server, await make_key(desk.account, "read")) as reader:
        await fails(openai.PermissionDeniedError, "scope-missing", client=reader)
    await fails(openai.NotFoundError, "model-name-not-found", model="character:nobody")
    await fails(openai.BadRequestError, "invalid-parameter", temperature=99)
    lonely = said("tool", "A cat.", tool_call_id="call-1")
    await fails(openai.UnprocessableEntityError, "tool-messages", messages=[lonely])
    user = UUID(desk.account.user["id"])
    with asking_server.parts.quotas.turns.hold(user, 1_000):
        await fails(openai.RateLimitError, "quota-exceeded")
        await fails(openai.RateLimitError, "quota-exceeded", model="character:marlena")
    desk.model.script(*[fake.error(401, message="wrong key")] * 4)
    await fails(openai.InternalServerError, "model-key-refused")
    await fails(openai.InternalServerError, "model-key-refused", model="character:marlena")


@pytest.mark.parametrize("model", [MODEL_ID, "character:marlena"])
async def test_an_error_in_the_middle_of_a_stream_is_raised_there(desk: Desk, model: str) -> None:
    stream = await desk.client.chat.completions.create(
        model=model, messages=[said("user", "break")], stream=True
    )
    heard = ""
    with pytest.raises(openai.APIError) as caught:
        async for chunk in stream:
            heard += chunk.choices[0].delta.content or ""
    assert heard == "Once upon a time"
    assert caught.value.code
    assert not isinstance(caught.value, openai.APIStatusError)


async def test_a_request_that_the_sdk_repeats_is_stored_once(
    asking_server: Running, desk: Desk, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0)
    lines = [said("user", "How is the weather?")]
    desk.model.script(fake.reply("The wind", " rises."))
    transport = LosingTransport()
    async with connect(asking_server, key, max_retries=1, transport=transport) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="character:marlena", messages=lines
        )
    assert raw.retries_taken == 1
    assert raw.parse().choices[0].message.content == "The wind rises."
    stored = await desk.account.messages(raw.headers["x-talekeeper-chat"])
    assert texts(stored)[-2:] == ["How is the weather?", "The wind rises."]
    assert stored[-1]["sibling_count"] == 1


async def test_a_refused_key_of_the_provider_is_not_tried_again(
    asking_server: Running, desk: Desk, key: str
) -> None:
    desk.model.script(fake.error(401, message="wrong key"))
    count = len(desk.model.requests)
    async with connect(asking_server, key, max_retries=2) as client:
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model=MODEL_ID, messages=[said("user", "Hello.")])
    assert len(desk.model.requests) == count + 1


async def test_images_are_sent_to_the_model_and_kept_with_the_message(desk: Desk) -> None:
    shown = said(
        "user",
        [
            {"type": "text", "text": "What is in this picture?"},
            {"type": "image_url", "image_url": {"url": PICTURE}},
        ],
    )
    for model in (MODEL_ID, "character:marlena"):
        heard = await listen(desk, model, shown)
        *_, line = (each for each in desk.sent["messages"] if each["role"] == "user")
        [image] = [part for part in line["content"] if part["type"] == "image_url"]
        assert image["image_url"]["url"] == PICTURE
    chat = heard.headers["x-talekeeper-chat"]
    lines = [shown, said("assistant", heard.text), said("user", "And who is that?")]
    await listen(desk, "character:marlena", *lines)
    exported = await desk.account.ask("GET", f"/chats/{chat}/export", params={"format": "archive"})
    assert exported.status_code == 200
    with zipfile.ZipFile(BytesIO(exported.content)) as archive:
        kept = [archive.read(name) for name in archive.namelist()]
    assert kept.count(plain_png()) == 1


@pytest.mark.npm
async def test_the_sdk_for_javascript_uses_every_route(
    asking_server: Running, vendor: Vendor, npm_folder: Path
) -> None:
    vendor.unscript()
    async with asking_server.account("Bea") as bea:
        character = await bea.new_character(name="Marlena")
        await bea.post("/campaigns", {"name": "The Salt Road"}, 201)
        key = await make_key(bea, "chat")
        found = await run_script(npm_folder, "routes.mjs", f"{asking_server.url}/v1", key, PICTURE)
        assert {"auto", "campaign:the-salt-road", "demo", MODEL_ID} <= set(found["models"])
        assert found["model"] == "character:marlena"

        assert found["plain"]["choices"][0]["message"]["content"] == USUAL
        assert found["plain"]["usage"]["total_tokens"] == 14
        stream = found["stream"]
        assert (stream["text"], stream["finish"], stream["chat"]) == (USUAL, "stop", None)
        assert stream["usage"]["completion_tokens"] == 2
        assert found["choices"] == [0, 1]
        assert found["tools"] == {"name": "look", "reply": USUAL}
        assert found["form"] == "chat.completion"
        assert (found["completion"], found["continued"]) == (USUAL, USUAL)
        assert found["embeddings"] == [fake.OWN_DIMENSION] * 2

        chat = found["first"]["chat"]
        assert {found[name]["chat"] for name in ("second", "swipe", "named", "auto")} == {chat}
        assert found["campaign"]["chat"] not in {chat, None}
        assert found["shown"]["text"] == USUAL
        stored = await bea.messages(chat)
        first, second = "Who turns the wheel, and why?", "And at night?"
        assert texts(stored) == [first, USUAL, second, USUAL]
        assert stored[-1]["sibling_count"] == 3
        assert (await bea.get(f"/chats/{chat}"))["character_ids"] == [character["id"]]

        errors = [(each["name"], each["status"], each["code"]) for each in found["errors"]]
        assert errors[:4] == [
            ("AuthenticationError", 401, "unauthenticated"),
            ("NotFoundError", 404, "model-name-not-found"),
            ("BadRequestError", 400, "invalid-parameter"),
            ("UnprocessableEntityError", 422, "tool-messages"),
        ]
        assert [each[:2] for each in errors[4:]] == [("APIError", None)] * 2
