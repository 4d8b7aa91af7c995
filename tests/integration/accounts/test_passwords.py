"""New passwords and recovery codes: what they open, and what they end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.keys import rotation
from backend.accounts.keys.slots import refuse_older_root
from backend.accounts.models import KeySlot
from backend.vault.root import RootKeys
from tests.support.server import PASSWORD, Account, Running, ok, problem
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

ME = "/api/v1/me"
NEW = "an even finer password"


async def log_in(server: Running, name: str, password: str) -> httpx.Response:
    async with server.browser() as client:
        body = {"username": name, "password": password}
        return await client.post("/api/v1/sessions", json=body)


async def recover(server: Running, name: str, code: str, new_password: str = NEW) -> httpx.Response:
    async with server.browser() as client:
        body = {"username": name, "recovery_code": code, "new_password": new_password}
        return await client.post("/api/v1/recoveries", json=body)


async def change(client: httpx.AsyncClient, current: str, new: str) -> httpx.Response:
    body = {"current_password": current, "new_password": new}
    return await client.post(f"{ME}/password", json=body)


async def at_once(*requests: Coroutine[Any, Any, httpx.Response]) -> list[httpx.Response]:
    """Send requests that change one account; none locks it before all are about to.

    They have been authenticated by then, so that none of them ends another's session.
    """
    missing, are_there = len(requests), asyncio.Event()

    async def held(session: AsyncSession, root: RootKeys) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            are_there.set()
        await are_there.wait()
        await refuse_older_root(session, root)

    with pytest.MonkeyPatch.context() as patch:
        # The first step of `lock_account`: the transaction has no connection yet.
        patch.setattr(rotation, "refuse_older_root", held)
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*requests)


async def count_slots(server: Running, kind: str) -> int | None:
    async with server.parts.database.read() as session:
        return await session.scalar(select(func.count()).where(KeySlot.kind == kind))


async def test_a_new_password_ends_the_other_sessions_and_leaves_the_rest(server: Running) -> None:
    async with server.account("Ada") as ada, server.signed_in("Ada") as other:
        await ada.new_chat(title="The lighthouse")
        key = ok(await ada.client.post("/api/v1/api-keys", json={"label": "script"}), 201)

        ok(await change(ada.client, PASSWORD, NEW), 204)

        problem(await other.client.get(ME), 401, "unauthenticated")
        async with server.program(key["token"]) as script:
            for client in (ada.client, script):
                chats = ok(await client.get("/api/v1/chats"))["items"]
                assert [chat["title"] for chat in chats] == ["The lighthouse"]
        problem(await log_in(server, "Ada", PASSWORD), 401, "wrong-credentials")
        ok(await log_in(server, "Ada", NEW), 201)


async def test_a_password_is_not_changed_by_who_does_not_know_it_or_to_a_weak_one(
    server: Running, ada: Account
) -> None:
    problem(await change(ada.client, NEW, NEW), 401, "wrong-credentials")
    problem(await change(ada.client, PASSWORD, "password"), 422, "weak-password")
    problem(await change(ada.client, PASSWORD, "ada"), 422, "weak-password")
    ok(await log_in(server, "Ada", PASSWORD), 201)


async def test_of_two_changes_at_once_one_holds_and_the_account_stays_whole(
    either: Running,
) -> None:
    async with either.account("Ada") as ada, either.signed_in("Ada") as other:
        wanted = [NEW, "quite another password"]
        answers = await at_once(
            *(
                change(person.client, PASSWORD, new)
                for person, new in zip((ada, other), wanted, strict=True)
            ),
        )
        statuses = [answer.status_code for answer in answers]
        assert sorted(statuses) == [204, 409]
        problem(answers[statuses.index(409)], 409, "keys-changed")
        assert await count_slots(either, "password") == 1
        ok(await log_in(either, "Ada", wanted[statuses.index(204)]), 201)


async def test_a_change_of_the_key_mode_at_the_same_time_breaks_nothing(either: Running) -> None:
    async with either.account("Ada") as ada:
        answers = await at_once(
            change(ada.client, PASSWORD, NEW),
            ada.client.patch(ME, json={"key_mode": "sealed"}),
        )
        changed, switched = (answer.is_success for answer in answers)
        assert changed or switched
        for answer in answers:
            if not answer.is_success:
                problem(answer, 409, "keys-changed")
        mode = ok(await ada.client.get(ME))["key_mode"]
        assert mode == ("sealed" if switched else "per_job")
        ok(await log_in(either, "Ada", NEW if changed else PASSWORD), 201)


async def test_the_recovery_code_opens_the_account_once_and_gives_a_new_one(
    either: Running,
) -> None:
    async with either.account("Ada") as ada:
        await ada.new_chat(title="The lighthouse")
        key = ok(await ada.client.post("/api/v1/api-keys", json={"label": "script"}), 201)
        async with either.browser() as client:
            typed = ada.recovery_code.lower().replace("-", " ")
            body = {"username": "ADA", "recovery_code": typed, "new_password": NEW}
            back = ok(await client.post("/api/v1/recoveries", json=body), 201)
            assert back["user"]["username"] == "Ada"
            chats = ok(await client.get("/api/v1/chats"))["items"]
            assert [chat["title"] for chat in chats] == ["The lighthouse"]

        # Whatever opened it before may be in other hands.
        async with either.program(key["token"]) as script:
            for before in (ada.client, script):
                problem(await before.get(ME), 401, "unauthenticated")
        problem(await log_in(either, "Ada", PASSWORD), 401, "wrong-credentials")
        ok(await log_in(either, "Ada", NEW), 201)
        used_up = await recover(either, "Ada", ada.recovery_code)
        problem(used_up, 401, "wrong-recovery-code")
        ok(await recover(either, "Ada", back["recovery_code"]), 201)


async def test_a_recovery_code_that_is_sent_twice_at_once_works_once(either: Running) -> None:
    async with either.account("Ada") as ada:
        wanted = [NEW, "quite another password"]
        answers = await at_once(*(recover(either, "Ada", ada.recovery_code, new) for new in wanted))
        statuses = [answer.status_code for answer in answers]
        assert sorted(statuses) == [201, 409]
        assert [await count_slots(either, kind) for kind in ("password", "recovery")] == [1, 1]
        ok(await log_in(either, "Ada", wanted[statuses.index(201)]), 201)


async def test_a_wrong_code_and_an_unknown_name_get_one_answer_for_the_same_work(
    server: Running, ada: Account, stretches: list[tuple[int, int, int]]
) -> None:
    other = "-".join(["ABCD"] * 13)
    said = []
    for name, code in (("Ada", other), ("nobody", other), ("Ada", "no code"), ("nobody", "")):
        stretches.clear()
        answer = await recover(server, name, code)
        problem(answer, 401, "wrong-recovery-code")
        said.append((answer.text, set(answer.headers), stretches.copy()))
    assert said == [said[0]] * 4
    assert said[0][2] != []


async def test_a_weak_password_does_not_use_up_the_recovery_code(
    server: Running, ada: Account
) -> None:
    weak = await recover(server, "Ada", ada.recovery_code, "password")
    problem(weak, 422, "weak-password")
    ok(await recover(server, "Ada", ada.recovery_code), 201)


async def test_a_new_recovery_code_takes_the_password_and_the_place_of_the_old_one(
    server: Running, ada: Account
) -> None:
    path = f"{ME}/recovery-code"
    problem(await ada.client.post(path, json={"password": NEW}), 401, "wrong-credentials")
    made = ok(await ada.client.post(path, json={"password": PASSWORD}), 201)
    old = await recover(server, "Ada", ada.recovery_code)
    problem(old, 401, "wrong-recovery-code")
    ok(await recover(server, "Ada", made["recovery_code"]), 201)
