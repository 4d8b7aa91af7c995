"""Tests of the adapters' HTTP client over real sockets: addresses, limits and connections."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpcore2
import httpx2
import pytest

from backend.generation.client.client import ModelClient, make_http_client
from backend.generation.client.network import AddressRefusedError, NetworkPolicy
from backend.generation.client.transport import MAX_ANSWER_BYTES, MAX_EVENT_BYTES
from backend.generation.model import (
    ModelError,
    ModelMalformedAnswerError,
    ModelTimeoutError,
    ModelUnavailableError,
    Prompt,
    PromptMessage,
)
from backend.generation.sampling import Sampling
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

PROMPT = Prompt([PromptMessage("user", "Go on.")])
NAME = "model.example"
GOOD, BAD = "127.0.0.1", "127.0.0.2"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@dataclass
class NameServer:
    """Answers each lookup with the next answer, and then always with the last one."""

    answers: list[Sequence[str]]
    asked: list[str] = field(default_factory=list[str])

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def policy(self) -> NetworkPolicy:
        return NetworkPolicy([GOOD], resolve=self)


class Listener:
    """One port on two addresses. `said` is the answer, `reached` the connected addresses."""

    def __init__(self) -> None:
        self.said = OK
        self.pause = 0.0
        self.reached: list[str] = []
        self.heads: list[str] = []
        self.port = 0
        self.tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached.append(writer.get_extra_info("sockname")[0])
        if task := asyncio.current_task():
            self.tasks.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head.decode())
                step = 1 if self.pause else len(self.said)
                for start in range(0, len(self.said), step):
                    writer.write(self.said[start : start + step])
                    await writer.drain()
                    await asyncio.sleep(self.pause)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def client(self, network: NetworkPolicy, *, connect_timeout: float = 5) -> httpx2.AsyncClient:
        return make_http_client(connect_timeout=connect_timeout, headers={}, network=network)


@pytest.fixture
async def listener() -> AsyncGenerator[Listener, None]:
    made = Listener()
    first = await asyncio.start_server(made.serve, GOOD, 0)
    made.port = first.sockets[0].getsockname()[1]
    second = await asyncio.start_server(made.serve, BAD, made.port)
    yield made
    first.close()
    second.close()
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def say(vendor: Vendor, **changes: Any) -> ModelError:
    """Return the error of a streamed reply."""
    changes = {"network": NetworkPolicy(["loopback"]), **changes}
    with pytest.raises(ModelError) as caught:
        async for _ in vendor.connect(**changes).stream(PROMPT, Sampling()):
            pass
    return caught.value


async def answer(vendor: Vendor) -> ModelError:
    """Return the error of a whole answer."""
    model = vendor.connect(network=NetworkPolicy(["loopback"]))
    with pytest.raises(ModelError) as caught:
        await model.generate_json(PROMPT, {"type": "object"}, Sampling())
    return caught.value


async def test_no_sdk_connects_to_a_refused_address(vendor: Vendor) -> None:
    port = vendor.server.url.partition("://")[2].partition(":")[2].partition("/")[0]
    errors = {
        host: await say(vendor, base_url=f"http://{host}", network=NetworkPolicy())
        for host in (f"{GOOD}:{port}", f"localhost:{port}", f"{GOOD}:9")
    }

    assert {type(error) for error in errors.values()} == {AddressRefusedError}
    said = {
        host: error.to_problem(for_administrator=True)["detail"] for host, error in errors.items()
    }
    assert len({str(error.to_problem()) for error in errors.values()}) == 1
    assert all(f"http://{host} is refused" in detail for host, detail in said.items())
    # The errors of open and closed ports are equal.
    assert said[f"{GOOD}:{port}"] == said[f"{GOOD}:9"].replace(":9 ", f":{port} ")
    assert not vendor.server.requests


async def test_an_sdk_connects_where_it_may(vendor: Vendor) -> None:
    model = vendor.connect(network=NetworkPolicy(["loopback"]))
    assert [piece async for piece in model.stream(PROMPT, Sampling())]


async def test_a_name_that_moves_to_a_refused_address_is_not_followed(listener: Listener) -> None:
    names = NameServer([[GOOD], [BAD]])
    listener.said = OK.replace(b"200 OK\r\n", b"200 OK\r\nconnection: close\r\n")
    async with listener.client(names.policy()) as client:
        await client.get(f"http://{NAME}:{listener.port}/")
        with pytest.raises(AddressRefusedError):
            await client.get(f"http://{NAME}:{listener.port}/")
    assert names.asked == [NAME, NAME]
    assert listener.reached == [GOOD]


async def test_a_name_of_the_public_internet_is_connected_to_with_tls_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    async def connect(_: Any, host: str, *__: Any, **___: Any) -> None:
        tried.append(host)
        raise httpcore2.ConnectError

    async def resolve(_: str, __: int) -> list[str]:
        return ["1.1.1.1"]

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect)
    network = NetworkPolicy(resolve=resolve)
    async with make_http_client(connect_timeout=5, headers={}, network=network) as client:
        with pytest.raises(AddressRefusedError):
            await client.get(f"http://{NAME}/v1/models")
        assert tried == []
        with pytest.raises(httpx2.ConnectError):
            await client.get(f"https://{NAME}/v1/models")
    assert tried == ["1.1.1.1"]


async def test_a_connection_that_is_kept_stays_with_what_was_checked(listener: Listener) -> None:
    names = NameServer([[GOOD], [BAD]])
    async with listener.client(names.policy()) as client:
        for _ in range(3):
            await client.get(f"http://{NAME}:{listener.port}/")
    assert names.asked == [NAME]
    assert listener.reached == [GOOD]
    assert f"\r\nHost: {NAME}:{listener.port}\r\n" in listener.heads[0]


@pytest.mark.parametrize("addresses", [[BAD, GOOD], ["::1", GOOD, BAD], [f"::ffff:{BAD}", GOOD]])
async def test_only_allowed_addresses_of_a_name_are_connected_to(
    listener: Listener, addresses: list[str]
) -> None:
    async with listener.client(NameServer([addresses]).policy()) as client:
        await client.get(f"http://{NAME}:{listener.port}/")
    assert listener.reached == [GOOD]


async def test_the_next_address_is_tried_if_one_does_not_answer(listener: Listener) -> None:
    names = NameServer([["127.0.0.3", GOOD]])
    policy = NetworkPolicy(["127.0.0.3", GOOD], resolve=names)
    async with listener.client(policy) as client:
        await client.get(f"http://{NAME}:{listener.port}/")
    assert listener.reached == [GOOD]


async def test_looking_a_name_up_is_part_of_the_time_to_connect(listener: Listener) -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return [host]

    policy = NetworkPolicy(resolve=never)
    async with listener.client(policy, connect_timeout=0.05) as client:
        with pytest.raises(httpx2.ConnectTimeout):
            await client.get(f"http://{NAME}:{listener.port}/")


async def test_tls_is_by_name(listener: Listener) -> None:
    shown: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _, name, __: shown.append(name)
    server = await asyncio.start_server(listener.serve, GOOD, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with listener.client(NameServer([[GOOD]]).policy()) as client:
        with pytest.raises(httpx2.ConnectError):  # the server has no certificate
            await client.get(f"https://{NAME}:{port}/")
    server.close()
    assert shown == [NAME]


@pytest.mark.parametrize("url", ["http://2130706433", "http://0x7f.1", "http://me:x@127.0.0.1"])
async def test_a_url_that_is_odd_is_refused_at_the_request_too(
    listener: Listener, url: str
) -> None:
    async with listener.client(NetworkPolicy(["loopback"])) as client:
        with pytest.raises(AddressRefusedError):
            await client.get(f"{url}:{listener.port}/")
    assert not listener.reached


async def test_an_answer_that_swells_when_it_is_unpacked_is_dropped(vendor: Vendor) -> None:
    packed = gzip.compress(b" " * (MAX_ANSWER_BYTES + 1))
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    vendor.server.script(Answer(body=packed, headers=headers))
    assert isinstance(await answer(vendor), ModelMalformedAnswerError)


async def test_a_packed_answer_is_read(vendor: Vendor) -> None:
    plain = vendor.reply("He", " is.")
    body = gzip.compress(httpx2.Response(200, json=plain.body).content)
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    vendor.server.script(Answer(body=body, headers=headers))

    # The body is read, but it is not JSON.
    assert "did not return" in (await answer(vendor)).detail
    assert vendor.server.requests[0].headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "zstd"])
async def test_an_answer_packed_in_another_way_is_dropped(vendor: Vendor, encoding: str) -> None:
    vendor.server.script(Answer(body=b"{}", headers={"content-encoding": encoding}))
    assert isinstance(await answer(vendor), ModelMalformedAnswerError)


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_without_an_end_is_dropped(vendor: Vendor, status: int) -> None:
    vendor.server.script(Answer(status=status, body=b"[" * (MAX_ANSWER_BYTES + 1)))
    assert isinstance(await answer(vendor), ModelMalformedAnswerError)


async def test_an_event_without_an_end_is_dropped(vendor: Vendor) -> None:
    said = vendor.said("a" * (MAX_EVENT_BYTES + 2**17))
    vendor.server.script(Answer(events=[said, *vendor.ended]))
    assert isinstance(await say(vendor), ModelMalformedAnswerError)


async def test_events_are_told_apart_however_they_are_cut(listener: Listener) -> None:
    event = b"data: %s\n\n" % (b"a" * (MAX_EVENT_BYTES // 2))
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (event[:-1], event[-1:]) * 5)
    listener.said = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + body
        + b"0\r\n\r\n"
    )
    async with listener.client(NetworkPolicy(["loopback"])) as client:
        response = await client.get(f"http://{GOOD}:{listener.port}/")
    assert response.content == event * 5


async def test_a_head_without_an_end_is_dropped(vendor: Vendor) -> None:
    vendor.server.script(Answer(headers={"x-long": "a" * 200_000}, body={}))
    assert isinstance(await answer(vendor), ModelUnavailableError)


async def test_a_head_that_comes_letter_by_letter_is_silence(
    openai: Vendor, listener: Listener
) -> None:
    listener.said, listener.pause = OK[:-6] + b"x: " + b"a" * 10_000, 0.01
    error = await say(openai, base_url=f"http://{GOOD}:{listener.port}", chunk_timeout=0.1)
    assert isinstance(error, ModelTimeoutError)


async def test_the_time_to_connect_is_limited_even_where_the_sdk_lifts_the_limit() -> None:
    async with (
        OpenAIServer() as openai_server,
        make_http_client(connect_timeout=3, headers={}) as client,
    ):
        response = await client.post(openai_server.url, json={}, timeout=None)
    limits = response.request.extensions["timeout"]
    assert limits == {"connect": 3, "read": None, "write": None, "pool": None}
    assert isinstance(response, httpx2.Response)


async def test_cookies_of_the_provider_s_are_not_sent_back() -> None:
    async with (
        OpenAIServer() as openai_server,
        make_http_client(connect_timeout=3, headers={}) as client,
    ):
        client.cookies.set("session", "of-another-user")
        await client.post(openai_server.url, json={})
    assert "cookie" not in openai_server.requests[0].headers


async def test_a_request_on_a_connection_that_the_server_has_closed_is_sent_again() -> None:
    """Each connection answers one request, announces keep-alive, and closes at the next one."""
    served: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            served.append(number)
            if number == 0:
                writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{"a": 1}')
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as openai_server:
        url = f"http://127.0.0.1:{openai_server.sockets[0].getsockname()[1]}/"
        client = ModelClient(make_http_client(connect_timeout=3, headers={}))
        answers = [await client.post(url, {}), await client.post(url, {})]
        await client.aclose()

    assert answers == [{"a": 1}, {"a": 1}]
    assert served == [0, 1, 0]
