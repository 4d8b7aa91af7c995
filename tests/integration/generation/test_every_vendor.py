"""Tests of every adapter: streams, hang-ups, failures, secrets, and the process's environment."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from backend.generation.model import (
    Finish,
    ModelAuthError,
    ModelContextOverflowError,
    ModelCreditError,
    ModelError,
    ModelInterruptedError,
    ModelMalformedAnswerError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelRedirectError,
    ModelRequestError,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    ModelWebPageError,
    Piece,
    Prompt,
    PromptMessage,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
)
from backend.generation.sampling import Sampling, SettingNotTakenError
from tests.fakes.provider_answers import ANSWERS, Seen
from tests.fakes.scripted_server import Answer, Break, Event, Gate, Silence
from tests.integration.generation.conftest import Vendor
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

PROMPT = Prompt([PromptMessage("user", "Is the ferryman still waiting for me?")])
PLAIN = Sampling()
LOOK = Tool("look", "Look around.", {"type": "object", "properties": {}})
SHORT = 1.0
"""Seconds. Long enough for a server on loopback to start a reply."""


async def listen(
    vendor: Vendor, *, heard: list[Piece] | None = None, **changes: Any
) -> list[Piece]:
    """Return the pieces of a reply. `heard` keeps the pieces before an error."""
    heard = [] if heard is None else heard
    async for piece in vendor.connect(**changes).stream(PROMPT, PLAIN):
        heard.append(piece)
    return heard


async def test_a_reply_comes_piece_by_piece_then_its_usage_then_its_end(vendor: Vendor) -> None:
    vendor.server.script(vendor.reply("He", " is", " waiting."))
    assert await listen(vendor) == [
        TextPiece("He"),
        TextPiece(" is"),
        TextPiece(" waiting."),
        TokenUsage(prompt_tokens=12, completion_tokens=3),
        Finish("stop"),
    ]


async def test_a_piece_is_handed_on_before_the_next_one_is_sent(vendor: Vendor) -> None:
    gate = Gate()
    vendor.server.script(
        Answer(events=[vendor.said("He"), gate, vendor.said(" is."), *vendor.ended])
    )
    async with aclosing(vendor.connect().stream(PROMPT, PLAIN)) as pieces:
        assert await anext(pieces) == TextPiece("He")
        gate.opened.set()
        assert await anext(pieces) == TextPiece(" is.")


async def test_closing_the_stream_early_hangs_up_on_the_provider(vendor: Vendor) -> None:
    vendor.server.script(Answer(events=[vendor.said("He"), Silence()]))
    async with aclosing(vendor.connect().stream(PROMPT, PLAIN)) as pieces:
        await anext(pieces)
    await asyncio.wait_for(vendor.server.hung_up.wait(), timeout=PATIENCE)


async def test_cancelling_a_listener_hangs_up_on_the_provider(vendor: Vendor) -> None:
    heard = asyncio.Event()
    vendor.server.script(Answer(events=[vendor.said("He"), Silence()]))

    async def listener() -> None:
        async for _ in vendor.connect().stream(PROMPT, PLAIN):
            heard.set()

    task = asyncio.create_task(listener())
    await heard.wait()
    task.cancel()

    await asyncio.wait_for(vendor.server.hung_up.wait(), timeout=PATIENCE)


async def test_a_model_that_falls_silent_amid_the_reply_is_given_up(vendor: Vendor) -> None:
    vendor.server.script(Answer(events=[vendor.said("He"), Silence()]))
    heard: list[Piece] = []
    with pytest.raises(ModelTimeoutError):
        await listen(vendor, heard=heard, chunk_timeout=SHORT)
    assert heard == [TextPiece("He")]
    await asyncio.wait_for(vendor.server.hung_up.wait(), timeout=PATIENCE)


async def test_a_model_that_never_begins_is_given_up(vendor: Vendor) -> None:
    vendor.server.script(Answer(events=[Silence()]))
    with pytest.raises(ModelTimeoutError):
        await listen(vendor, chunk_timeout=SHORT)


async def test_a_reply_that_has_ended_is_whole_even_if_the_connection_lingers(
    vendor: Vendor,
) -> None:
    vendor.server.script(Answer(events=[vendor.said("He is."), vendor.ended[0], Silence()]))
    pieces = await listen(vendor, chunk_timeout=SHORT)
    assert (pieces[0], pieces[-1]) == (TextPiece("He is."), Finish("stop"))


async def test_a_broken_stream_is_not_asked_for_again(vendor: Vendor) -> None:
    vendor.server.script(Answer(events=[vendor.said("He"), Break()]))
    with pytest.raises(ModelInterruptedError):
        await listen(vendor)
    assert len(vendor.server.requests) == 1


async def test_a_stream_without_an_event_is_asked_for_again_as_a_whole(vendor: Vendor) -> None:
    vendor.server.script(Answer(events=["not json"]), vendor.reply("He is."))
    assert (await listen(vendor))[0] == TextPiece("He is.")
    assert len(vendor.server.requests) == 2
    assert not vendor.server.wants_stream(vendor.server.requests[-1])


@pytest.mark.parametrize("events", [[], [Break()]])
async def test_a_stream_without_an_event_gives_the_error_of_the_whole_answer(
    vendor: Vendor, events: list[Event]
) -> None:
    vendor.server.script(Answer(events=events), vendor.failed(429, "slow down"))
    with pytest.raises(ModelRateLimitError):
        await listen(vendor)


async def test_a_tool_call_may_follow_thoughts_in_the_text(vendor: Vendor) -> None:
    vendor.server.script(vendor.reply("Roll.</think>I see."))
    answer = await vendor.connect().call_tools(PROMPT, [LOOK], PLAIN)
    assert answer.text == "I see."


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, ModelRedirectError),
        (400, ModelRequestError),
        (401, ModelAuthError),
        (402, ModelCreditError),
        (403, ModelAuthError),
        (404, ModelNotFoundError),
        (408, ModelTimeoutError),
        (413, ModelContextOverflowError),
        (422, ModelRequestError),
        (429, ModelRateLimitError),
        (500, ModelServerError),
        (503, ModelOverloadedError),
    ],
)
async def test_a_refusal_is_named_by_what_can_be_done_about_it(
    vendor: Vendor, status: int, kind: type[ModelError]
) -> None:
    vendor.server.script(vendor.failed(status, "no"))
    with pytest.raises(kind) as caught:
        await listen(vendor)
    assert type(caught.value) is kind
    assert str(status) in caught.value.detail
    assert len(vendor.server.requests) == 1, "a refused request is not tried again unasked"


async def test_a_redirect_is_not_followed_with_the_key(vendor: Vendor) -> None:
    vendor.server.script(
        Answer(status=307, headers={"location": f"{vendor.server.url}/elsewhere"}, body={})
    )
    with pytest.raises(ModelUnavailableError):
        await listen(vendor)
    assert len(vendor.server.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
async def test_an_error_shows_neither_the_key_nor_the_prompt(vendor: Vendor, status: int) -> None:
    said = PROMPT.messages[0].text
    vendor.server.script(vendor.failed(status, f"Bad key {vendor.key} for prompt {said}"))
    with pytest.raises(ModelError) as caught:
        await listen(vendor)
    shown = f"{caught.value!r} {caught.value.to_problem()}"
    assert vendor.key not in shown
    assert "ferryman" not in shown
    assert caught.value.__suppress_context__, "a traceback in the log would show the SDK's error"


async def test_the_owner_of_a_provider_reads_its_words_without_the_key(vendor: Vendor) -> None:
    said = f"Bad key {vendor.key}, and header secret-tenant"
    vendor.server.script(vendor.failed(400, said))
    with pytest.raises(ModelError) as caught:
        await listen(vendor, is_own=True, extra_headers={"x-tenant": "secret-tenant"})
    words = caught.value.to_problem()["provider_message"]
    assert words == "Bad key [removed], and header [removed]"


async def test_a_pause_that_the_header_asks_for_is_handed_on(vendor: Vendor) -> None:
    refusal = vendor.failed(429, "slow down")
    vendor.server.script(Answer(status=429, headers={"retry-after": "17"}, body=refusal.body))
    with pytest.raises(ModelRateLimitError) as caught:
        await listen(vendor)
    assert caught.value.retry_after == 17
    assert caught.value.headers == {"Retry-After": "17"}


@pytest.mark.parametrize(
    ("url", "detail"),
    [
        ("http://127.0.0.1:9/v1", "Cannot connect to http://127.0.0.1:9/v1. Is the server running"),
        ("http://nowhere.invalid/v1", "Cannot find http://nowhere.invalid/v1: the name has no"),
    ],
)
async def test_a_server_that_is_not_there_is_named_to_its_owner(
    vendor: Vendor, url: str, detail: str
) -> None:
    with pytest.raises(ModelUnavailableError) as own:
        await listen(vendor, base_url=url, is_own=True)
    with pytest.raises(ModelUnavailableError) as shared:
        await listen(vendor, base_url=url)
    assert own.value.detail.startswith(detail)
    assert "://" not in str(shared.value.to_problem())


async def test_a_server_without_tls_is_said_to_have_none(vendor: Vendor) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        with pytest.raises(ModelUnavailableError, match="this port does not use TLS"):
            await listen(vendor, base_url=url, is_own=True)


async def test_a_page_of_a_proxy_is_no_answer(vendor: Vendor) -> None:
    vendor.server.script(Answer(status=502, body=b"<html>Bad gateway</html>"))
    with pytest.raises(ModelUnavailableError, match="the server behind it did not"):
        await listen(vendor)


async def test_a_web_page_is_not_taken_for_a_reply(vendor: Vendor) -> None:
    page = b"<html><title>Please log in</title></html>"
    vendor.server.script(Answer(headers={"content-type": "text/html"}, body=page))
    with pytest.raises(ModelWebPageError) as caught:
        await listen(vendor, is_own=True)
    assert caught.value.to_problem()["provider_message"] == "Please log in"


async def test_a_setting_that_the_model_does_not_take_is_refused_and_not_dropped(
    vendor: Vendor,
) -> None:
    model = vendor.connect()
    odd = {
        "gemini": Sampling(reasoning_effort="low"),
        "openai": Sampling(thinking_budget=3),
        "anthropic": Sampling(seed=3),
    }[model.spec.provider]
    with pytest.raises(SettingNotTakenError):
        await anext(model.stream(PROMPT, odd))
    assert vendor.server.requests == []


async def test_a_whole_answer_is_not_waited_for_for_ever(vendor: Vendor) -> None:
    model = vendor.connect(answer_timeout=SHORT)
    never = Answer(status=200, headers={"content-length": "1000"}, body=b"{")
    vendor.server.script(never)
    with pytest.raises(ModelTimeoutError):
        await model.generate_json(PROMPT, {"type": "object"}, PLAIN)


async def test_an_answer_in_json_is_parsed(vendor: Vendor) -> None:
    vendor.server.script(vendor.reply('{"lines": ["I wait."]}'))
    answer = await vendor.connect().generate_json(PROMPT, {"type": "object"}, PLAIN)
    assert answer.value == {"lines": ["I wait."]}
    assert answer.usage == TokenUsage(prompt_tokens=12, completion_tokens=1)


async def test_an_answer_that_is_no_json_is_no_answer(vendor: Vendor) -> None:
    vendor.server.script(vendor.reply("Certainly! Here it is."))
    with pytest.raises(ModelMalformedAnswerError):
        await vendor.connect().generate_json(PROMPT, {"type": "object"}, PLAIN)


async def test_an_answer_cut_at_the_limit_is_an_interruption(vendor: Vendor) -> None:
    finish = "MAX_TOKENS" if vendor.connect().spec.provider == "gemini" else "length"
    vendor.server.script(vendor.reply('{"lines": ["I wa', finish=finish))
    with pytest.raises(ModelInterruptedError, match="max_output_tokens"):
        await vendor.connect().generate_json(PROMPT, {"type": "object"}, PLAIN)


async def test_an_answer_with_nothing_in_it_is_no_answer(vendor: Vendor) -> None:
    vendor.server.script(Answer(body={}))
    with pytest.raises(ModelUnavailableError):
        await vendor.connect().generate_json(PROMPT, {"type": "object"}, PLAIN)


async def test_many_replies_at_once_are_not_mixed_up(vendor: Vendor) -> None:
    model = vendor.connect(chunk_timeout=30)
    count = 120  # more than the usual 100 connections of an HTTP client
    gate = Gate()
    vendor.server.script(
        *(
            Answer(events=[vendor.said(f"{n}"), gate, vendor.said(f"-{n}"), *vendor.ended])
            for n in range(count)
        )
    )
    begun: list[str] = []

    async def one() -> str:
        async with aclosing(model.stream(PROMPT, PLAIN)) as pieces:
            first = await anext(pieces)
            assert isinstance(first, TextPiece)
            begun.append(first.text)
            if len(begun) == count:
                gate.opened.set()
            rest = [piece.text async for piece in pieces if isinstance(piece, TextPiece)]
        return first.text + "".join(rest)

    replies = await asyncio.gather(*(one() for _ in range(count)))

    assert sorted(replies) == sorted(f"{n}-{n}" for n in range(count))


@pytest.mark.parametrize("kind", ["said", "thought"])
async def test_a_reply_without_an_end_is_cut_and_hung_up_on(vendor: Vendor, kind: str) -> None:
    event = getattr(vendor, kind)("Word. " * 50)
    vendor.server.script(Answer(events=[*[event] * 40, Silence()]))
    prompt = replace(PROMPT, reply_limit=10_000)
    heard = [piece async for piece in vendor.connect().stream(prompt, PLAIN)]
    *pieces, finish = heard
    assert finish == Finish("length")
    texts = [each.text for each in pieces if isinstance(each, TextPiece | ThinkingPiece)]
    assert "".join(texts) == ("Word. " * 2_000)[:10_000]
    await asyncio.wait_for(vendor.server.hung_up.wait(), PATIENCE)


async def test_a_reply_that_comes_in_one_piece_lets_others_work_while_it_is_read(
    vendor: Vendor,
) -> None:
    vendor.server.script(Answer(events=[vendor.said("Ada: a\n" * 20_000), *vendor.ended]))
    longest = before = 0

    async with aclosing(vendor.connect().stream(PROMPT, PLAIN)) as pieces:

        async def watch() -> None:
            nonlocal longest, before
            while True:
                longest, before = max(longest, length - before), length
                await asyncio.sleep(0)

        length = 0
        watcher = asyncio.create_task(watch())
        async for piece in pieces:
            length += len(piece.text) if isinstance(piece, TextPiece) else 0
        watcher.cancel()

    assert length == 140_000
    assert longest < 20_000


def is_text(body: object) -> bool:
    return isinstance(body, str) and not body.startswith("<")


def replay(seen: Seen) -> Answer:
    """Return the answer as a server sends it."""
    if seen.in_stream:
        return Answer(events=[seen.body])
    headers = dict(seen.headers)
    if is_text(seen.body):
        headers.setdefault("content-type", "text/plain")
    body = seen.body.encode() if isinstance(seen.body, str) else seen.body
    return Answer(status=seen.status, headers=headers, body=b"" if body is None else body)


@pytest.mark.parametrize("seen", ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_becomes_the_error_that_names_its_cause(vendor: Vendor, seen: Seen) -> None:
    answer = replay(seen)
    # After a stream without an event, the whole reply is requested.
    requests = 2 if answer.status == 200 and is_text(seen.body) else 1
    vendor.server.script(*[answer] * requests)
    with pytest.raises(ModelError) as caught:
        async with aclosing(vendor.connect().stream(PROMPT, Sampling())) as pieces:
            async for _ in pieces:
                pass
    assert type(caught.value) is seen.kind
    assert len(vendor.server.requests) == requests, "no other form of the request is tried"


GO_ON = Prompt([PromptMessage("user", "Go on.")])
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def strange_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, NOWHERE)
    for name, value in {
        "OPENAI_API_KEY": "sk-of-somebody-else",
        "OPENAI_BASE_URL": NOWHERE,
        "OPENAI_ORG_ID": "org-of-somebody-else",
        "OPENAI_PROJECT_ID": "project-of-somebody-else",
        "OPENAI_CUSTOM_HEADERS": "x-note: of-somebody-else\nAuthorization: of-somebody-else",
        "ANTHROPIC_API_KEY": "sk-ant-of-somebody-else",
        "ANTHROPIC_AUTH_TOKEN": "token-of-somebody-else",
        "ANTHROPIC_BASE_URL": NOWHERE,
        "ANTHROPIC_CUSTOM_HEADERS": "x-note: of-somebody-else",
        "GEMINI_API_KEY": "key-of-somebody-else",
        "GOOGLE_GEMINI_BASE_URL": NOWHERE,
        "GOOGLE_GENAI_USE_VERTEXAI": "true",
        "GOOGLE_GENAI_API_VERSION": "v9",
        "GOOGLE_GENAI_CLIENT_MODE": "replay",
        "GOOGLE_CLOUD_PROJECT": "project-of-somebody-else",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("strange_environment")
async def test_the_environment_changes_neither_where_a_prompt_goes_nor_what_goes_along(
    vendor: Vendor,
) -> None:
    pieces = [piece async for piece in vendor.connect().stream(GO_ON, Sampling())]
    assert TextPiece("The rain") in pieces
    request = vendor.server.requests[0]
    assert vendor.key in " ".join(request.headers.values())
    assert "somebody-else" not in " ".join(request.headers.values())
    assert request.path in {
        "/v1/chat/completions",
        "/v1/messages",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent",
    }


@pytest.mark.usefixtures("strange_environment")
async def test_a_server_without_a_key_is_not_sent_the_environment_s(openai: Vendor) -> None:
    model = openai.connect(api_key=None)
    assert [piece async for piece in model.stream(GO_ON, Sampling())]
    assert "authorization" not in openai.server.requests[0].headers


async def test_nothing_about_this_machine_goes_along(vendor: Vendor) -> None:
    assert [piece async for piece in vendor.connect().stream(GO_ON, Sampling())]
    assert set(vendor.server.requests[0].headers) <= {
        *("host", "connection", "user-agent", "accept", "accept-encoding"),
        *("content-type", "content-length", "authorization", "x-goog-api-key"),
        *("x-api-key", "anthropic-version"),
    }


def test_slow_libraries_are_not_imported_before_a_model_is_asked() -> None:
    program = """
import sys
from backend.generation.client.provider import ServerConfig
from backend.generation.registry import KINDS, ModelRegistry
registry = ModelRegistry(
    gemini=ServerConfig(api_key="key", models=("gemini-2.5-flash",)),
    openai=KINDS["openai"].configure(
        None, base_url="http://127.0.0.1:9/v1", models=("any",)
    ),
    anthropic=ServerConfig(api_key="key", models=("any",)),
)
registry.get("gemini/gemini-2.5-flash"), registry.get("openai/any"), registry.get("demo")
slow = {"google.genai", "httpx2", "tiktoken", "splintr"} & set(sys.modules)
sys.exit(f"imported: {slow}" if slow else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
