"""Tests of quotas: refusals, their details, and unchanged data."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from backend.database.base import new_id, now
from backend.database.processes import Process
from backend.jobs.queue import NewJob
from backend.quotas import middleware
from backend.quotas.ledgers import count_stored_bytes
from backend.quotas.limits import QUOTAS
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Gate
from tests.integration.turns.following import turn_under_way
from tests.support.chronicling import opt_in
from tests.support.memory import new_book, new_entry
from tests.support.models import asking, held_back
from tests.support.server import Account, Running, ok, problem, running, text_of
from tests.support.waiting import until, until_true

pytestmark = pytest.mark.anyio

API = "/api/v1"
CARD = (Path(__file__).parents[2] / "fixtures" / "cards" / "syn_v3.charx").read_bytes()
Serve = Callable[..., contextlib.AbstractAsyncContextManager[tuple[Running, Account]]]


@pytest.fixture
def serve(database_url: str, tmp_path: Path) -> Serve:
    """Start a server with limits, and sign up the first account."""

    @contextlib.asynccontextmanager
    async def serving(**settings: Any) -> AsyncGenerator[tuple[Running, Account]]:
        async with (
            running(database_url, tmp_path, **settings) as server,
            server.account("Ada") as ada,
        ):
            yield server, ada

    return serving


def check_refusal(response: httpx.Response, quota: str) -> dict[str, Any]:
    """Return the body of an answer; fail unless this quota refused the request."""
    if response.status_code == 413:
        body = problem(response, 413, "storage-quota-exceeded")
    else:
        body = problem(response, 429, "quota-exceeded")
        assert response.headers["retry-after"] == str(body["retry_after"])
    assert body["quota"] == quota
    assert {"limit", "used", "unit", "frees_at"} <= body.keys()
    return body


async def count_bytes(server: Running, ada: Account) -> int:
    async with server.parts.database.read() as session:
        return await count_stored_bytes(session, UUID(ada.user["id"]))


async def test_a_full_account_can_read_export_and_delete_and_not_grow(serve: Serve) -> None:
    async with (
        OpenAIServer() as model,
        serve(max_stored_bytes_per_user=60_000, **asking(model)) as (_, ada),
    ):
        character = await ada.new_character(description="x" * 20_000)
        chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
        greeting = (await ada.messages(chat))[0]["id"]
        ok(await ada.client.patch(f"{API}/messages/{greeting}", json={"text": "y" * 38_000}))
        before = await ada.messages(chat)

        line = {"text": "Hello? " * 100}
        body = check_refusal(
            await ada.client.post(f"{API}/chats/{chat}/turns", json=line), "stored_bytes"
        )
        assert body["limit"] == 60_000
        assert 58_000 < body["used"] <= 60_000
        assert body["frees_at"] is None
        assert len(model.requests) == 0
        assert await ada.messages(chat) == before
        writes: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", "characters", {"json": {"name": "Ben", "description": "z" * 2000}}),
            ("POST", "characters/import", {"files": {"file": CARD}}),
            ("PATCH", f"messages/{greeting}", {"json": {"text": "y" * 50_000}}),
        ]
        for method, path, options in writes:
            check_refusal(
                await ada.client.request(method, f"{API}/{path}", **options), "stored_bytes"
            )

        ok(await ada.client.get(f"{API}/characters/{character['id']}/export?format=json"))
        ok(await ada.client.get(f"{API}/chats/{chat}/context"))
        ok(await ada.client.post(f"{API}/chats/{chat}/context", json={"text": "Hello?"}))
        ok(await ada.client.get(f"{API}/me/usage"))
        gone = await ada.client.delete(f"{API}/characters/{character['id']}")
        assert gone.status_code == 204
        assert (await ada.turn(chat, **line))[-1].name == "turn.completed"


async def test_a_reply_that_is_on_its_way_is_stored_beyond_the_limit(serve: Serve) -> None:
    gate = Gate()
    async with (
        OpenAIServer() as model,
        serve(max_stored_bytes_per_user=20_000, **asking(model)) as (server, ada),
    ):
        chat = (await ada.new_chat())["id"]
        model.script(held_back(gate))
        async with turn_under_way(ada, chat, text="Tell me.") as (_, events):
            made = await ada.client.post(
                f"{API}/characters", json={"name": "Ben", "description": "x" * 14_000}
            )
            ok(made, 201)
            gate.opened.set()
            heard = [event async for event in events]
        assert heard[-1].name == "turn.completed"
        assert await count_bytes(server, ada) > 0
        assert (await ada.messages(chat))[-1]["text"] == text_of(heard) == "Once upon a time."


async def test_chats_are_counted_however_they_are_made(serve: Serve) -> None:
    async with serve(max_chats_per_user=2) as (server, ada):
        character = await ada.new_character()
        chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
        greeting = (await ada.messages(chat))[0]["id"]
        fork = {"message_id": greeting}
        other = ok(await ada.client.post(f"{API}/chats/{chat}/fork", json=fork), 201)["id"]
        body = check_refusal(await ada.client.post(f"{API}/chats", json={}), "chats")
        assert (body["limit"], body["unit"]) == (2, "chats")
        check_refusal(await ada.client.post(f"{API}/chats/{chat}/fork", json=fork), "chats")
        assert len(ok(await ada.client.get(f"{API}/chats"))["items"]) == 2
        assert (await ada.client.delete(f"{API}/chats/{other}")).status_code == 204
        await ada.new_chat()
        async with server.account("Ben") as ben:
            await ben.new_chat()


async def test_entries_of_all_lorebooks_count_and_a_file_comes_whole_or_not_at_all(
    serve: Serve,
) -> None:
    async with serve(max_lorebook_entries_per_user=5) as (_, ada):
        book = await new_book(ada)
        for number in range(3):
            await new_entry(ada, book, keys=[f"k{number}"], content="One.")
        three = {
            "entries": [{"keys": [f"f{number}"], "content": "Of a file."} for number in range(3)]
        }
        card = {"name": "Cleo", "character_book": three}
        file = {"file": ("book.json", httpx.Response(200, json=three).content)}
        for response in (
            await ada.client.post(f"{API}/lorebooks/import", files=file),
            await ada.client.post(f"{API}/characters", json=card),
        ):
            check_refusal(response, "lorebook_entries")
        assert len(ok(await ada.client.get(f"{API}/lorebooks"))["items"]) == 1
        assert ok(await ada.client.get(f"{API}/characters"))["items"] == []
        for number in range(2):
            await new_entry(ada, book, keys=[f"m{number}"], content="One.")
        entry = {"keys": ["n"], "content": "One too many."}
        path = f"{API}/lorebooks/{book}/entries"
        check_refusal(await ada.client.post(path, json=entry), "lorebook_entries")
        assert len(ok(await ada.client.get(path))["items"]) == 5


async def test_requests_beyond_a_minutes_worth_wait_and_health_and_the_page_do_not(
    serve: Serve,
) -> None:
    async with serve(max_requests_per_minute_per_user=20) as (server, ada):
        # The sign-up does not count for the account.
        answers = [await ada.client.get(f"{API}/me") for _ in range(40)]
        late = [each for each in answers if each.status_code != 200]
        assert 10 <= len(late) <= 20
        body = check_refusal(late[0], "requests_per_minute")
        assert (body["limit"], body["unit"]) == (20, "requests")
        assert 1 <= body["retry_after"] <= 4
        assert datetime.fromisoformat(body["frees_at"]) > now() - timedelta(seconds=60)
        for path in ("/health", "/ready", "/", "/schema"):
            ok_or_page = await ada.client.get(path)
            assert ok_or_page.status_code == 200, path
        async with server.account("Ben") as ben:
            ok(await ben.client.get(f"{API}/me"))


async def test_an_address_without_an_account_is_slowed_down_and_accounts_there_are_not(
    serve: Serve,
) -> None:
    async with serve(max_requests_per_minute_per_address=30) as (server, ada):
        async with server.browser() as nobody:
            answers = [await nobody.get(f"{API}/me") for _ in range(60)]
        assert {each.status_code for each in answers} == {401, 429}
        late = next(each for each in answers if each.status_code == 429)
        body = problem(late, 429, "too-many-from-address")
        assert late.headers["retry-after"] == str(body["retry_after"])
        ok(await ada.client.get(f"{API}/me"))


@pytest.mark.every_database
async def test_turns_and_suggestions_at_once_are_limited(serve: Serve) -> None:
    gate = Gate()
    async with OpenAIServer() as model, serve(max_turns_per_user=1, **asking(model)) as (_, ada):
        first, second = (await ada.new_chat())["id"], (await ada.new_chat())["id"]
        model.script(held_back(gate), held_back(gate))
        turn = {"text": "Tell me.", "turn_id": str(uuid4())}
        async with turn_under_way(ada, first, **turn) as (_, events):
            # The repeated request joins its running turn, and does not count.
            again = asyncio.create_task(ada.turn(first, **turn))
            path, line = f"{API}/chats/{second}", {"text": "And me."}
            body = check_refusal(await ada.client.post(f"{path}/turns", json=line), "turns")
            assert (body["limit"], body["used"], body["unit"]) == (1, 1, "at once")
            check_refusal(await ada.client.post(f"{path}/suggestions", json={}), "turns")
            assert await ada.messages(second) == []
            gate.opened.set()
            assert [event async for event in events][-1].name == "turn.completed"
        assert (await again)[-1].name == "turn.completed"
        assert (await ada.turn(second, **line))[-1].name == "turn.completed"


@pytest.mark.every_database
async def test_streams_at_once_are_limited_and_a_turn_is_not_begun_without_one(
    serve: Serve,
) -> None:
    gate = Gate()
    async with (
        OpenAIServer() as model,
        serve(max_streams_per_user=2, **asking(model)) as (server, ada),
    ):
        first, second = (await ada.new_chat())["id"], (await ada.new_chat())["id"]
        model.script(held_back(gate), held_back(gate))
        async with (
            turn_under_way(ada, first, text="Tell me.") as (turn_id, events),
            ada.client.stream("GET", f"{API}/turns/{turn_id}/events"),
        ):
            check_refusal(await ada.client.get(f"{API}/turns/{turn_id}/events"), "streams")
            line = {"text": "And me."}
            check_refusal(
                await ada.client.post(f"{API}/chats/{second}/turns", json=line), "streams"
            )
            assert await ada.messages(second) == []
            gate.opened.set()
            assert [event async for event in events][-1].name == "turn.completed"
        await until_true(lambda: not server.parts.quotas.streams.used(UUID(ada.user["id"])))
        assert (await ada.turn(second, **line))[-1].name == "turn.completed"


async def trickle(start: bytes, rest: bytes, let_go: asyncio.Event) -> AsyncGenerator[bytes]:
    yield start
    await let_go.wait()
    yield rest


def form(data: bytes) -> tuple[bytes, dict[str, str]]:
    request = httpx.Request("POST", "http://x", files={"file": data})
    return request.read(), {"content-type": request.headers["content-type"]}


@pytest.mark.every_database
async def test_requests_wait_only_for_requests_of_the_same_account(serve: Serve) -> None:
    async with serve(max_requests_at_once_per_user=2) as (server, ada):
        chat = (await ada.new_chat())["id"]
        at_once, user_id = server.parts.quotas.requests_at_once, UUID(ada.user["id"])
        async with server.account("Ben") as ben:
            with at_once.hold(user_id), at_once.hold(user_id):
                searches = [
                    asyncio.create_task(ada.client.get(f"{API}/search", params={"q": f"lamp {n}"}))
                    for n in range(30)
                ]
                await asyncio.sleep(0.2)
                assert not any(each.done() for each in searches)
                assert at_once.used(user_id) == 2
                ok(await ben.client.get(f"{API}/me"))
                # Turns and uploads have other limits, so they do not wait.
                assert (await ada.turn(chat, text="Hello."))[-1].name == "turn.completed"
                ok(await ada.client.post(f"{API}/characters/import", files={"file": CARD}), 201)
            for each in asyncio.as_completed(searches):
                ok(await each)
                assert at_once.used(user_id) <= 2
            while at_once.used(user_id):  # the last answer is being sent
                await asyncio.sleep(0.01)


@pytest.mark.every_database
async def test_a_request_that_waits_too_long_or_behind_too_many_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "REQUEST_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(middleware, "MAX_WAITING_REQUESTS", 2)
    async with serve(max_requests_at_once_per_user=1) as (server, ada):
        with server.parts.quotas.requests_at_once.hold(UUID(ada.user["id"])):
            answers = await asyncio.gather(*(ada.client.get(f"{API}/me") for _ in range(3)))
            for each in answers:
                body = check_refusal(each, "requests_at_once")
                assert (body["used"], body["limit"]) == (1, 1)
        ok(await ada.client.get(f"{API}/me"))


@pytest.mark.every_database
async def test_one_upload_at_a_time_and_the_next_one_waits_for_it(serve: Serve) -> None:
    let_go = asyncio.Event()
    body, headers = form(CARD)
    async with serve() as (server, ada):
        uploads, user_id = server.parts.quotas.uploads, UUID(ada.user["id"])
        path = f"{API}/characters/import"
        slow = asyncio.create_task(
            ada.client.post(path, content=trickle(body[:10], body[10:], let_go), headers=headers)
        )
        await until_true(lambda: uploads.used(user_id))
        others = [
            asyncio.create_task(ada.client.post(path, content=body, headers=headers))
            for _ in range(3)
        ]
        await asyncio.sleep(0.2)
        assert uploads.used(user_id) == 1
        assert not any(each.done() for each in others)
        let_go.set()
        for each in (slow, *others):
            ok(await each, 201)
        assert len(ok(await ada.client.get(f"{API}/characters"))["items"]) == 4
        assert uploads.used(user_id) == 0


@pytest.mark.every_database
async def test_an_upload_that_waits_too_long_is_refused_before_its_body_is_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "UPLOAD_TIMEOUT_SECONDS", 0.2)
    let_go = asyncio.Event()
    body, headers = form(CARD)
    async with serve() as (server, ada):
        uploads, user_id = server.parts.quotas.uploads, UUID(ada.user["id"])
        path = f"{API}/characters/import"
        # With an idempotency key the body is read before the route runs.
        slow = asyncio.create_task(
            ada.client.post(
                path,
                content=trickle(body[:10], body[10:], let_go),
                headers={**headers, "idempotency-key": "once"},
            )
        )
        await until_true(lambda: uploads.used(user_id))
        late = await ada.client.post(
            path, content=body, headers={**headers, "idempotency-key": "twice"}
        )
        assert check_refusal(late, "uploads")["limit"] == 1
        let_go.set()
        ok(await slow, 201)
        ok(await ada.client.post(path, content=body, headers=headers), 201)


@pytest.mark.every_database
async def test_an_upload_that_breaks_off_gives_its_place_back(serve: Serve) -> None:
    body, headers = form(CARD)
    async with serve() as (server, ada):
        quotas, user_id = server.parts.quotas, UUID(ada.user["id"])
        path = f"{API}/characters/import"
        content = trickle(body[:10], body[10:], asyncio.Event())
        slow = asyncio.create_task(ada.client.post(path, content=content, headers=headers))
        await until_true(lambda: quotas.uploads.used(user_id))
        assert quotas.upload_bytes.used(user_id) > len(CARD)
        slow.cancel()
        await until_true(
            lambda: not (quotas.uploads.used(user_id) or quotas.upload_bytes.used(user_id))
        )
        ok(await ada.client.post(path, content=body, headers=headers), 201)


@pytest.mark.every_database
async def test_bytes_of_bodies_at_once_are_limited_before_they_are_read(serve: Serve) -> None:
    let_go = asyncio.Event()
    body = httpx.Response(200, json={"name": "Ben", "description": "x" * 600}).content
    headers = {"content-type": "application/json"}
    announced = {**headers, "content-length": str(len(body))}
    async with serve(max_upload_bytes_per_user=1000) as (server, ada):
        held, user_id = server.parts.quotas.upload_bytes, UUID(ada.user["id"])
        path = f"{API}/characters"
        slow = asyncio.create_task(
            ada.client.post(path, content=trickle(body[:9], body[9:], let_go), headers=announced)
        )
        await until_true(lambda: held.used(user_id))
        assert held.used(user_id) == len(body)
        late = check_refusal(
            await ada.client.post(path, content=body, headers=headers), "upload_bytes"
        )
        assert (late["used"], late["unit"]) == (len(body), "bytes")
        ok(await ada.client.get(path))
        let_go.set()
        ok(await slow, 201)
        ok(await ada.client.post(path, content=body, headers=headers), 201)


@pytest.mark.every_database
async def test_a_rebuild_is_not_begun_while_too_many_jobs_wait_and_a_reply_still_gets_its_own(
    serve: Serve,
) -> None:
    async with serve(max_queued_jobs_per_user=3, job_workers=0) as (server, ada):
        chat, user_id = (await ada.new_chat())["id"], UUID(ada.user["id"])
        chronicle = await opt_in(ada, chat)
        async with server.parts.database.write() as session:
            for number in range(3):
                await server.parts.queue.enqueue(
                    session, NewJob(kind=f"some.kind{number}", user_id=user_id)
                )
        path, wanted = f"{API}/chronicles/{chronicle}/rebuild", {"chat_id": chat}
        body = check_refusal(await ada.client.post(path, json=wanted), "queued_jobs")
        assert (body["limit"], body["unit"]) == (3, "jobs")
        ok(await ada.client.post(f"{path}?dry_run=true", json=wanted))
        await ada.turn(chat, text="Hello.")
        kinds = {each["kind"] for each in ok(await ada.client.get(f"{API}/jobs"))["items"]}
        assert {"memory.index", "enrichment.turn"} <= kinds
        assert "enrichment.rebuild" not in kinds


async def test_when_the_days_tokens_are_spent_turns_wait_for_midnight(serve: Serve) -> None:
    async with serve(max_tokens_per_day_per_user=300) as (server, ada):
        chat = (await ada.new_chat())["id"]
        first = {"text": "Hello. " * 20, "turn_id": str(uuid4())}
        events = await ada.turn(chat, **first)
        [usage] = [event.data for event in events if event.name == "usage"]
        spent = usage["prompt_tokens"] + usage["completion_tokens"]
        while spent < 300:
            events = await ada.turn(chat, text="And on. " * 20)
            [usage] = [event.data for event in events if event.name == "usage"]
            spent += usage["prompt_tokens"] + usage["completion_tokens"]
        before = await ada.messages(chat)
        assert text_of(await ada.turn(chat, **first)) == before[1]["text"]
        path = f"{API}/chats/{chat}"
        body = check_refusal(
            await ada.client.post(f"{path}/turns", json={"text": "More."}), "tokens_per_day"
        )
        assert (body["limit"], body["used"], body["unit"]) == (300, spent, "tokens")
        frees_at = datetime.fromisoformat(body["frees_at"])
        midnight = datetime.combine(
            now().date() + timedelta(days=1), datetime.min.time(), tzinfo=UTC
        )
        assert abs((frees_at - midnight).total_seconds()) < 1
        check_refusal(await ada.client.post(f"{path}/suggestions", json={}), "tokens_per_day")
        assert await ada.messages(chat) == before
        ok(await ada.client.get(f"{path}/context"))
        # The count is in the database, so other processes have it, too.
        async with server.account("Ben") as ben:
            events = await ben.turn((await ben.new_chat())["id"], text="Hello.")
            theirs = {"text": "More.", "turn_id": events[0].data["turn_id"]}
            check_refusal(await ada.client.post(f"{path}/turns", json=theirs), "tokens_per_day")


async def test_a_turn_that_is_stopped_is_not_free(serve: Serve) -> None:
    gate = Gate()
    async with OpenAIServer() as model, serve(**asking(model)) as (_, ada):
        chat = (await ada.new_chat())["id"]
        model.script(held_back(gate))
        async with turn_under_way(ada, chat, text="Tell me.") as (turn_id, events):
            async for event in events:
                if event.name == "text.delta":
                    break
            assert (await ada.client.post(f"{API}/turns/{turn_id}/stop")).status_code == 202
            assert [event async for event in events][-1].data["state"] == "stopped"
        gate.opened.set()
        items = ok(await ada.client.get(f"{API}/me/usage"))["items"]
        [tokens] = [each for each in items if each["quota"] == "tokens_per_day"]
        assert tokens["used"] > 5


@pytest.mark.every_database
async def test_limits_that_are_off_refuse_nothing(serve: Serve) -> None:
    off = {f"max_{quota.name}_per_user": 0 for quota in QUOTAS}
    async with serve(**off) as (_, ada):
        chat = (await ada.new_chat())["id"]
        await asyncio.gather(
            *(ada.client.post(f"{API}/characters/import", files={"file": CARD}) for _ in range(3))
        )
        assert len(ok(await ada.client.get(f"{API}/characters"))["items"]) == 3
        await new_entry(ada, await new_book(ada), keys=["inn"], content="An inn.")
        assert (await ada.turn(chat, text="Hello."))[-1].name == "turn.completed"
        items = ok(await ada.client.get(f"{API}/me/usage"))["items"]
        assert {each["limit"] for each in items} == {None}


@pytest.mark.postgres
async def test_processes_divide_the_limits_of_requests_and_a_lost_one_gives_its_share_back(
    postgres_url: str, tmp_path: Path
) -> None:
    limits: dict[str, Any] = {
        "max_requests_per_minute_per_user": 1000,
        "max_requests_at_once_per_user": 5,
    }
    async with running(postgres_url, tmp_path / "one", **limits) as one, one.account("Ada") as ada:

        async def has(account: Account, per_minute: int, at_once: int) -> bool:
            items = ok(await account.client.get(f"{API}/me/usage"))["items"]
            found = {each["quota"]: each["limit"] for each in items}
            shares = found["requests_per_minute"], found["requests_at_once"]
            return shares == (per_minute, at_once)

        assert await has(ada, 1000, 5)
        async with (
            running(postgres_url, tmp_path / "two", **limits) as two,
            two.signed_in("Ada") as there,
        ):
            await until(lambda: has(ada, 500, 2))
            await until(lambda: has(there, 500, 2))
            # A worker serves no requests, and a killed server does not renew its row.
            async with one.parts.database.write() as session:
                worker = Process(id=new_id(), seen_at=now(), is_server=False)
                session.add_all([worker, Process(id=new_id(), seen_at=now())])
            await until(lambda: has(ada, 333, 1))
            await until(lambda: has(ada, 500, 2))
        await until(lambda: has(ada, 1000, 5))
