"""Tests of new user keys, passwords and recovery codes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.auth.identity import Identity
from backend.accounts.auth.sessions import SessionService
from backend.accounts.keys import rotation
from backend.accounts.keys.keyring import open_sealer
from backend.accounts.keys.open_keys import OpenKeys
from backend.accounts.keys.rotation import GRACE_PERIOD
from backend.accounts.keys.slots import refuse_older_root
from backend.accounts.models import ActivityEntry, DataKey, KeySlot, User
from backend.chats.models import Chat, Message
from backend.core.events import Participants
from backend.database.base import now
from backend.jobs.keys import JobKeys
from backend.jobs.models import Job
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.worker import Worker
from backend.vault.root import RootKeys
from backend.vault.sealing import SealBrokenError, key_number
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Gate
from tests.integration.jobs.working import put
from tests.support.factors import recover, sign_in
from tests.support.memory import settled
from tests.support.models import asking, held_back
from tests.support.server import PASSWORD, ROOT, Account, Running, ok, problem, running
from tests.support.waiting import PATIENCE, until, until_true

pytestmark = pytest.mark.anyio

ME = "/api/v1/me"
NEW = "an even finer password"
Act = Callable[[Account], Coroutine[Any, Any, None]]
Rows = dict[Any, list[dict[str, Any]]]


async def rotate(account: Account) -> None:
    ok(await account.client.post(f"{ME}/rotate-key", json={"password": PASSWORD}), 204)


async def change_password(account: Account) -> None:
    body = {"current_password": PASSWORD, "new_password": NEW}
    ok(await account.client.post(f"{ME}/password", json=body), 204)


async def change_mode(account: Account) -> None:
    ok(await account.client.patch(ME, json={"key_mode": "sealed"}))


ACTS: dict[str, Act] = {"rotate": rotate, "password": change_password, "mode": change_mode}


def read_token(account: Account) -> str:
    return account.client.cookies["talekeeper_session"]


async def find_identity(server: Running, account: Account) -> Identity:
    found = await server.parts.sessions.authenticate(read_token(account), "session")
    assert found is not None
    return found


async def list_titles(client: httpx.AsyncClient) -> list[str]:
    return [chat["title"] for chat in ok(await client.get("/api/v1/chats"))["items"]]


async def rows_of_account(server: Running, account: Account) -> Rows:
    """Copy the account's rows in the tables of keys."""
    user_id = UUID(account.user["id"])
    async with server.parts.database.read() as session:
        found: Rows = {}
        for model, owner in (
            (User, User.id),
            (KeySlot, KeySlot.user_id),
            (DataKey, DataKey.user_id),
        ):
            query = select(model.__table__).where(owner == user_id)
            found[model] = [dict(row) for row in (await session.execute(query)).mappings()]
    return found


async def put_back(
    session: AsyncSession, rows: Rows, model: Any, *, kind: str | None = None
) -> None:
    if model is User:
        (row,) = rows[User]
        await session.execute(update(User).where(User.id == row["id"]).values(row))
        return
    wanted = [row for row in rows[model] if kind is None or row["kind"] == kind]
    gone = delete(model).where(model.user_id == wanted[0]["user_id"])
    await session.execute(gone if kind is None else gone.where(KeySlot.kind == kind))
    await session.execute(insert(model), wanted)


@pytest.mark.parametrize("act", ACTS)
async def test_after_a_change_of_keys_everything_that_may_open_the_account_does(
    either: Running, act: str
) -> None:
    async with either.account("Ada") as ada, either.signed_in("Ada") as other:
        await ada.new_chat(title="The lighthouse")
        key = ok(await ada.client.post("/api/v1/api-keys", json={"label": "script"}), 201)
        for number in range(3):
            before = await rows_of_account(either, ada)
            await ACTS[act](ada) if number == 0 else await rotate_after(ada, act)
            after = await rows_of_account(either, ada)
            assert after[User][0]["key_generation"] == before[User][0]["key_generation"] + 1
            assert len(after[DataKey]) == len(before[DataKey]) + 1
            assert await list_titles(ada.client) == ["The lighthouse"]
            async with either.program(key["token"]) as script:
                assert await list_titles(script) == ["The lighthouse"]
            if act == "password":
                problem(await other.client.get(ME), 401, "unauthenticated")
            else:
                assert await list_titles(other.client) == ["The lighthouse"]
            password = NEW if act == "password" else PASSWORD
            ok(await sign_in(either, password=password), 201)
        assert ok(await ada.client.get("/api/v1/api-keys"))["items"][0]["label"] == "script"
        ok(await recover(either, ada.recovery_code), 201)


async def rotate_after(account: Account, act: str) -> None:
    password = NEW if act == "password" else PASSWORD
    ok(await account.client.post(f"{ME}/rotate-key", json={"password": password}), 204)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.every_database
async def test_the_old_user_key_opens_neither_old_keys_nor_new_texts(
    either: Running, act: str
) -> None:
    async with either.account("Ada") as ada:
        old = await find_identity(either, ada)
        await ACTS[act](ada)
        chat = (await ada.new_chat())["id"]
        await ada.turn(chat, text="Written afterwards.")
        rows = await rows_of_account(either, ada)
        new = await find_identity(either, ada)
        assert old.user_key != new.user_key
        async with either.parts.database.read() as session:
            user = await repository.get_user(session, old.user_id)
            data_keys = await repository.list_data_keys(session, old.user_id)
            blobs = list(await session.scalars(select(Message.sealed_content)))
        with pytest.raises(SealBrokenError):
            open_sealer(user, data_keys, user_key=old.user_key)
        assert {key_number(blob) for blob in blobs} == {2}
        assert old.sealer.current_key == 1
        for slot in rows[KeySlot]:
            assert old.user_key not in slot["wrapped"]


async def test_keys_are_changed_by_a_session_with_the_password_alone(
    server: Running, ada: Account
) -> None:
    made = {"label": "script", "scope": "manage"}
    key = ok(await ada.client.post("/api/v1/api-keys", json=made), 201)
    body = {"password": "not the password"}
    wrong = await ada.client.post(f"{ME}/rotate-key", json=body)
    problem(wrong, 401, "wrong-credentials")
    async with server.program(key["token"]) as script:
        problem(
            await script.post(f"{ME}/rotate-key", json={"password": PASSWORD}), 403, "forbidden"
        )
    assert (await find_identity(server, ada)).current.generation == 1


@pytest.mark.every_database
async def test_an_old_mode_with_its_old_mac_is_refused(either: Running) -> None:
    async with either.account("Ada") as ada:
        before = await rows_of_account(either, ada)
        await change_mode(ada)
        after = await rows_of_account(either, ada)
        (old,) = before[User]
        guarded = ("key_mode", "settings_mac")
        for names in (guarded, (*guarded, "key_generation"), tuple(old)):
            async with either.parts.database.write() as session:
                await session.execute(update(User).values({name: old[name] for name in names}))
            for answer in (await ada.client.get(ME), await sign_in(either)):
                problem(answer, 403, "account-tampered")
            async with either.parts.database.write() as session:
                await put_back(session, after, User)
        assert ok(await ada.client.get(ME))["key_mode"] == "sealed"


@pytest.mark.every_database
async def test_an_old_password_slot_that_is_put_back_opens_nothing(either: Running) -> None:
    async with either.account("Ada") as ada:
        before = await rows_of_account(either, ada)
        await change_password(ada)
        after = await rows_of_account(either, ada)
        async with either.parts.database.write() as session:
            await put_back(session, before, KeySlot, kind="password")
        problem(await sign_in(either), 403, "account-tampered")
        problem(await sign_in(either, password=NEW), 401, "wrong-credentials")
        problem(await ada.client.get(ME), 403, "account-tampered")

        # The account's older row does not help.
        async with either.parts.database.write() as session:
            await put_back(session, before, User)
        problem(await sign_in(either), 403, "account-tampered")

        async with either.parts.database.write() as session:
            await put_back(session, after, User)
            await put_back(session, after, KeySlot)
        problem(await sign_in(either), 401, "wrong-credentials")
        ok(await sign_in(either, password=NEW), 201)


async def test_beside_the_new_password_slot_the_old_one_opens_nothing_either(
    either: Running,
) -> None:
    async with either.account("Ada") as ada:
        before = await rows_of_account(either, ada)
        await change_password(ada)
        (old,) = [row for row in before[KeySlot] if row["kind"] == "password"]
        async with either.parts.database.write() as session:
            await session.execute(insert(KeySlot), [old])
        assert (await sign_in(either)).status_code in {401, 403}


async def test_an_older_copy_of_an_account_opens_no_newer_texts(either: Running) -> None:
    async with either.account("Ada") as ada:
        await ada.new_chat(title="The lighthouse")
        before = await rows_of_account(either, ada)
        await change_password(ada)
        chat = (await ada.new_chat(title="Written afterwards"))["id"]
        async with either.parts.database.write() as session:
            for model in (User, KeySlot, DataKey):
                await put_back(session, before, model)
        # A text is under a data key that the account no longer has.
        problem(await sign_in(either), 403, "account-tampered")
        # Without that text the older copy of the account is consistent.
        async with either.parts.database.write() as session:
            await session.execute(delete(Chat).where(Chat.id == UUID(chat)))
        async with either.signed_in("Ada") as thief:
            assert await list_titles(thief.client) == ["The lighthouse"]
        problem(await sign_in(either, password=NEW), 401, "wrong-credentials")


@pytest.mark.every_database
async def test_a_data_key_that_came_with_the_user_key_cannot_be_taken_away(either: Running) -> None:
    async with either.account("Ada") as ada:
        await rotate(ada)
        async with either.parts.database.write() as session:
            await session.execute(delete(DataKey).where(DataKey.number == 2))
        for answer in (await ada.client.get(ME), await sign_in(either)):
            problem(answer, 403, "account-tampered")


async def test_a_search_finds_the_same_texts_after_a_rotation(either: Running) -> None:
    async with either.account("Ada") as ada:
        before = (await find_identity(either, ada)).sealer
        chat = (await ada.new_chat())["id"]
        await ada.turn(chat, text="The lighthouse keeper has a wooden leg.")
        await settled(either)
        query = {"q": "wooden lighthouse"}
        found = ok(await ada.client.get("/api/v1/search", params=query))["items"]
        await rotate(ada)
        after = (await find_identity(either, ada)).sealer
        for purpose in ("memory-terms", "memory-rotation", "embeddings", "context-texts"):
            assert before.derive_key(purpose) == after.derive_key(purpose)
        assert found
        assert ok(await ada.client.get("/api/v1/search", params=query))["items"] == found


@pytest.mark.every_database
async def test_two_rotations_at_the_same_time_do_not_break_the_account(either: Running) -> None:
    async with either.account("Ada") as ada, either.signed_in("Ada") as other:
        chat = (await ada.new_chat(title="The lighthouse"))["id"]
        await ada.turn(chat, text="Tell me.")
        path = f"{ME}/rotate-key"
        answers = await asyncio.gather(
            *(each.client.post(path, json={"password": PASSWORD}) for each in (ada, other))
        )
        for answer in answers:
            if answer.status_code != 204:
                problem(answer, 409, "keys-changed")
        assert 204 in [answer.status_code for answer in answers]
        for each in (ada, other):
            assert await list_titles(each.client) == ["The lighthouse"]
        ok(await sign_in(either), 201)


@pytest.mark.every_database
async def test_the_keys_are_not_changed_so_often_that_each_request_opens_very_many(
    either: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "MAX_DATA_KEYS", 3)
    async with either.account("Ada") as ada:
        await rotate(ada)
        await rotate(ada)
        refused = await ada.client.post(f"{ME}/rotate-key", json={"password": PASSWORD})
        problem(refused, 429, "too-many-data-keys")
        mode = await ada.client.patch(ME, json={"key_mode": "sealed"})
        problem(mode, 429, "too-many-data-keys")
        assert ok(await ada.client.get(ME))["key_mode"] == "per_job"
        await change_password(ada)

        # A day later unused data keys are deleted.
        async with either.parts.database.write() as session:
            await session.execute(update(DataKey).values(created_at=now() - GRACE_PERIOD))
            await session.execute(delete(ActivityEntry))
        await rotate_after(ada, "password")
        async with either.parts.database.read() as session:
            assert await session.scalar(select(func.count()).select_from(DataKey)) == 3
        ok(await sign_in(either, password=NEW), 201)


class Reader:
    """A handler that records the number of its user's data key."""

    def __init__(self) -> None:
        self.read: list[int] = []

    async def __call__(self, job: RunningJob) -> None:
        self.read.append(job.keys.current_key)


async def until_no_jobs(server: Running) -> None:
    async def are_gone() -> bool:
        async with server.parts.database.read() as session:
            return not await session.scalar(select(func.count()).where(Job.kind == "read"))

    await until(are_gone)


async def test_jobs_that_carry_the_old_key_are_done_with_the_new_one(either: Running) -> None:
    async with either.account("Ada") as ada:
        parts, reader = either.parts, Reader()
        old = await find_identity(either, ada)
        await put(
            parts.queue, "read", user_id=old.user_id, key=parts.queue.grant(old.sealer, "per_job")
        )
        await rotate(ada)
        # This worker has no keys in memory, as in another process.
        await work(either, reader)
        await until_no_jobs(either)
        assert reader.read == [2]


@pytest.mark.every_database
async def test_a_job_that_was_given_the_old_key_too_late_waits_for_its_user(
    either: Running,
) -> None:
    async with either.account("Ada") as ada:
        parts, reader = either.parts, Reader()
        old = await find_identity(either, ada)
        await rotate(ada)
        await put(
            parts.queue, "read", user_id=old.user_id, key=parts.queue.grant(old.sealer, "per_job")
        )
        parts.kinds["read"] = JobKind(reader)
        parts.queue.wake()
        ok(await ada.client.get(ME))
        await until_no_jobs(either)
        assert reader.read == [2]


async def work(server: Running, reader: Reader) -> None:
    """Run the queued jobs in a worker without keys in memory."""
    parts = server.parts
    worker = Worker(parts.queue, {"read": JobKind(reader)}, JobKeys(ROOT), poll=0.05)
    worker.start()
    try:
        await until_no_jobs(server)
    finally:
        await worker.aclose()


@pytest.mark.every_database
async def test_a_running_turn_stores_its_reply_after_a_rotation(
    database_url: str, tmp_path: Path
) -> None:
    gate = Gate()
    async with (
        OpenAIServer() as model,
        running(database_url, tmp_path, **asking(model)) as server,
        server.account("Ada") as ada,
    ):
        chat = (await ada.new_chat())["id"]
        model.script(held_back(gate))
        stream = asyncio.create_task(ada.turn(chat, text="Tell me."))
        runs = server.parts.turns.runs
        await until_true(lambda: len(runs))
        await rotate(ada)
        gate.opened.set()
        events = await stream
        assert events[-1].name == "turn.completed", events[-1]
        messages = await ada.messages(chat)
        assert len(messages) == 2
        assert messages[-1]["text"]
        await settled(server)


class Keeper:
    def __init__(self) -> None:
        self.heard: list[UUID] = []

    def user_signed_out(self, user_id: UUID) -> None:
        self.heard.append(user_id)


async def test_a_key_in_the_memory_of_another_process_is_forgotten(either: Running) -> None:
    async with either.account("Ada") as ada, either.signed_in("Ada") as other:
        keeper = Keeper()
        elsewhere = OpenKeys(Participants(keeper))
        parts = either.parts
        sessions = SessionService(parts.database, ROOT, parts.settings, elsewhere)
        user_id = UUID(ada.user["id"])
        for forget in (rotate, end_other(other)):
            assert await sessions.authenticate(read_token(other), "session")
            await sessions.drop_ended_keys()
            assert elsewhere.get(user_id) is not None
            await forget(ada)
            await sessions.drop_ended_keys()
            assert elsewhere.get(user_id) is None
        assert keeper.heard == [user_id, user_id]


def end_other(other: Account) -> Act:
    async def end(_: Account) -> None:
        ok(await other.client.delete("/api/v1/sessions/current"), 204)

    return end


async def change(client: httpx.AsyncClient, current: str, new: str) -> httpx.Response:
    body = {"current_password": current, "new_password": new}
    return await client.post(f"{ME}/password", json=body)


async def send_together(*requests: Coroutine[Any, Any, httpx.Response]) -> list[httpx.Response]:
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
        # This is the first step of `lock_account`, before the transaction has a connection.
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
        problem(await sign_in(server, password=PASSWORD), 401, "wrong-credentials")
        ok(await sign_in(server, password=NEW), 201)


async def test_a_password_is_not_changed_by_who_does_not_know_it_or_to_a_weak_one(
    server: Running, ada: Account
) -> None:
    problem(await change(ada.client, NEW, NEW), 401, "wrong-credentials")
    problem(await change(ada.client, PASSWORD, "password"), 422, "weak-password")
    problem(await change(ada.client, PASSWORD, "ada"), 422, "weak-password")
    ok(await sign_in(server, password=PASSWORD), 201)


async def test_one_of_two_password_changes_wins(either: Running) -> None:
    async with either.account("Ada") as ada, either.signed_in("Ada") as other:
        wanted = [NEW, "quite another password"]
        answers = await send_together(
            *(
                change(person.client, PASSWORD, new)
                for person, new in zip((ada, other), wanted, strict=True)
            )
        )
        statuses = [answer.status_code for answer in answers]
        assert sorted(statuses) == [204, 409]
        problem(answers[statuses.index(409)], 409, "keys-changed")
        assert await count_slots(either, "password") == 1
        ok(await sign_in(either, password=wanted[statuses.index(204)]), 201)


async def test_a_change_of_the_key_mode_at_the_same_time_breaks_nothing(either: Running) -> None:
    async with either.account("Ada") as ada:
        answers = await send_together(
            change(ada.client, PASSWORD, NEW), ada.client.patch(ME, json={"key_mode": "sealed"})
        )
        changed, switched = (answer.is_success for answer in answers)
        assert changed or switched
        for answer in answers:
            if not answer.is_success:
                problem(answer, 409, "keys-changed")
        mode = ok(await ada.client.get(ME))["key_mode"]
        assert mode == ("sealed" if switched else "per_job")
        ok(await sign_in(either, password=NEW if changed else PASSWORD), 201)


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
            assert ok(await client.get("/api/v1/api-keys"))["items"] == []
            chats = ok(await client.get("/api/v1/chats"))["items"]
            assert [chat["title"] for chat in chats] == ["The lighthouse"]

        # A recovery ends all earlier keys, because they may be stolen.
        async with either.program(key["token"]) as script:
            for before in (ada.client, script):
                problem(await before.get(ME), 401, "unauthenticated")
        problem(await sign_in(either, password=PASSWORD), 401, "wrong-credentials")
        ok(await sign_in(either, password=NEW), 201)
        used_up = await recover(either, ada.recovery_code)
        problem(used_up, 401, "wrong-recovery-code")
        ok(await recover(either, back["recovery_code"]), 201)


async def test_a_recovery_code_sent_twice_works_once(either: Running) -> None:
    async with either.account("Ada") as ada:
        wanted = [NEW, "quite another password"]
        answers = await send_together(
            *(recover(either, ada.recovery_code, password=new) for new in wanted)
        )
        statuses = [answer.status_code for answer in answers]
        assert sorted(statuses) == [201, 409]
        assert [await count_slots(either, kind) for kind in ("password", "recovery")] == [1, 1]
        ok(await sign_in(either, password=wanted[statuses.index(201)]), 201)


async def test_a_wrong_code_and_an_unknown_name_get_one_answer_for_the_same_work(
    server: Running, ada: Account, stretches: list[tuple[int, int, int]]
) -> None:
    other = "-".join(["ABCD"] * 13)
    said = []
    for name, code in (("Ada", other), ("nobody", other), ("Ada", "no code"), ("nobody", "")):
        stretches.clear()
        answer = await recover(server, code, name=name)
        problem(answer, 401, "wrong-recovery-code")
        said.append((answer.text, set(answer.headers), stretches.copy()))
    assert said == [said[0]] * 4
    assert said[0][2] != []


async def test_a_weak_password_does_not_use_up_the_recovery_code(
    server: Running, ada: Account
) -> None:
    weak = await recover(server, ada.recovery_code, password="password")
    problem(weak, 422, "weak-password")
    ok(await recover(server, ada.recovery_code), 201)


async def test_a_new_recovery_code_takes_the_password_and_the_place_of_the_old_one(
    server: Running, ada: Account
) -> None:
    path = f"{ME}/recovery-code"
    problem(await ada.client.post(path, json={"password": NEW}), 401, "wrong-credentials")
    made = ok(await ada.client.post(path, json={"password": PASSWORD}), 201)
    old = await recover(server, ada.recovery_code)
    problem(old, 401, "wrong-recovery-code")
    ok(await recover(server, made["recovery_code"]), 201)
