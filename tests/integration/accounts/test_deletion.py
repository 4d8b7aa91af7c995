"""Deleting an account: what is left is what was there before it."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from PIL import Image
from sqlalchemy import Table, select

from backend.campaigns.models import (
    CampaignMark,
    CampaignProposal,
    ChangeSource,
    ProposalSource,
)
from backend.database.base import Base, new_id, now
from backend.memory.models import Embedding
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Gate
from tests.support.chronicling import last_run, new_event, opt_in, sum_up
from tests.support.memory import forgotten, settled
from tests.support.models import asking, held_back
from tests.support.server import PASSWORD, Account, Running, ok, problem, running

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

ME = "/api/v1/me"
NOBODYS = {"login_failures", "token_ratios", "processes", "alembic_version"}
"""Tables whose rows belong to no account."""


async def rows(server: Running) -> dict[str, set[tuple[Any, ...]]]:
    """The keys of all rows of all tables."""

    def key(table: Table) -> list[Any]:
        if table.name == "storage_ledger":  # its lines are folded into one now and then
            return [table.c.user_id]
        return list(table.primary_key.columns)

    async with server.parts.database.read() as session:
        return {
            name: {tuple(row) for row in await session.execute(select(*key(table)))}
            for name, table in Base.metadata.tables.items()
            if name not in NOBODYS
        }


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "teal").save(file, "PNG")
    return file.getvalue()


async def write_lore(account: Account, chat_id: str, character_id: str) -> None:
    """A book that is linked twice, with an entry that stays for a while when it is activated."""
    client = account.client
    book = ok(await client.post("/api/v1/lorebooks", json={"name": "Inns"}), 201)["id"]
    entry = {"keys": ["hello"], "content": "Inns are warm.", "sticky": 5}
    ok(await client.post(f"/api/v1/lorebooks/{book}/entries", json=entry), 201)
    ok(await client.put(f"/api/v1/chats/{chat_id}/lorebooks/{book}", json={"state": "linked"}))
    linked = await client.put(f"/api/v1/characters/{character_id}/lorebooks/{book}")
    assert linked.is_success, linked.text


async def keep_a_vector(server: Running, account: Account) -> None:
    """As an embedder would, which this server has none of."""
    async with server.parts.database.write() as session:
        session.add(
            Embedding(
                user_id=UUID(account.user["id"]), digest=b"d", sealed_vector=b"", used_at=now()
            )
        )


async def keep_a_campaign(server: Running, account: Account, chat_id: str) -> None:
    """A campaign with a session: a change that a message made, one proposed, and what was read."""
    client = account.client
    campaign = ok(await client.post("/api/v1/campaigns", json={"name": "Seagate"}), 201)
    body = {"campaign_id": campaign["id"]}
    ok(await client.patch(f"/api/v1/chats/{chat_id}", json=body))
    (change,) = ok(await client.get(f"/api/v1/campaigns/{campaign['id']}/changes"))["items"]
    newest = (await account.messages(chat_id))[-1]
    message_id, position = UUID(newest["id"]), newest["position"]
    own = {"user_id": UUID(account.user["id"]), "campaign_id": UUID(campaign["id"])}
    place = {"chat_id": UUID(chat_id), "position": position}
    proposal = CampaignProposal(
        **own, id=new_id(), item_id=new_id(), kind="fact", reason="locked", sealed_proposal=b"-"
    )
    async with server.parts.database.write() as session:
        session.add(ChangeSource(change_id=UUID(change["id"]), message_id=message_id, **place))
        session.add(CampaignMark(**own, id=message_id, version=1, **place))
        session.add(proposal)
        await session.flush()
        session.add(
            ProposalSource(proposal_id=proposal.id, message_id=message_id, chat_id=UUID(chat_id))
        )


async def live(account: Account) -> str:
    """Leave a row in every table that has room for one; gives back the chat's id."""
    client = account.client
    character = await account.new_character(alternate_greetings=["A knock."])
    persona = ok(await client.post("/api/v1/personas", json={"name": "Wanderer"}), 201)
    for path in (f"characters/{character['id']}", f"personas/{persona['id']}"):
        put = await client.put(
            f"/api/v1/{path}/avatar", content=picture(), headers={"content-type": "image/png"}
        )
        assert put.status_code == 204, put.text
    cards = Path(__file__).parents[2] / "fixtures" / "cards"
    for name in ("syn_v3.charx", "syn_v2_and_v3_precedence.png"):
        file = {"file": (cards / name).read_bytes()}
        ok(await client.post("/api/v1/characters/import", files=file), 201)
    chat = await account.new_chat(character_ids=[character["id"]], persona_id=persona["id"])
    await write_lore(account, chat["id"], character["id"])
    chronicle_id = await opt_in(account, chat["id"])
    events = await account.turn(chat["id"], text="{{setglobalvar::a::b}}Hello.")
    await account.turn(chat["id"], regenerate_of=events[0].data["reply_id"])
    await account.turn(chat["id"], impersonate=True)
    newest = (await account.messages(chat["id"]))[-1]["id"]
    await new_event(account, chronicle_id, "Mara said hello.", source_message_ids=[newest])
    await sum_up(account, chat["id"], "They met.", through=newest)
    await last_run(account, chat["id"])
    ok(await client.patch(f"{ME}/settings", json={"system_prompt": "Be kind."}))
    ok(await client.patch(f"/api/v1/chats/{chat['id']}/settings", json={"system_prompt": "Rain."}))
    ok(await client.post("/api/v1/api-keys", json={"label": "script"}), 201)
    ok(await client.post(f"{ME}/second-factors/totp", json={"password": PASSWORD}), 201)
    again = {"Idempotency-Key": "once"}
    ok(await client.post("/api/v1/chats", json={}, headers=again), 201)
    ok(await client.post("/api/v1/presets", json={"name": "Terse"}), 201)
    provider = {"preset": "anthropic", "api_key": "sk-ant-of-somebody"}
    ok(await client.post("/api/v1/providers", json=provider), 201)
    chat_id: str = chat["id"]
    return chat_id


async def delete_me(account: Account, password: str = PASSWORD) -> Any:
    return await account.client.request("DELETE", ME, json={"password": password})


async def test_nothing_of_the_account_is_left_in_any_table(either: Running) -> None:
    async with either.account("Ada") as ada, either.account("Ben") as ben:
        await live(ada)
        await settled(either)
        before = await rows(either)
        async with either.account("Cleo") as cleo, either.signed_in("Cleo") as other:
            chat_id = await live(cleo)
            await keep_a_campaign(either, cleo, chat_id)
            await keep_a_vector(either, cleo)
            await settled(either)
            cleos = {
                name: keys - before.get(name, set()) for name, keys in (await rows(either)).items()
            }
            assert {name for name, keys in cleos.items() if not keys} <= {
                "instance_keys",
                "invitations",
                # An administrator makes these, for everybody.
                "installation_providers",
                "provider_addresses",
                # What is done is no longer there.
                "index_changes",
                "jobs",
                "slot_claims",
            }
            gone = await delete_me(cleo)
            assert gone.status_code == 204, gone.text
            assert dict(cleo.client.cookies) == {}
            problem(await other.client.get(ME), 401, "unauthenticated")
        await settled(either)
        await forgotten(either)
        assert await rows(either) == before
        ok(await ben.client.get(ME))
        async with either.account("cleo"):
            pass  # the name is free again


async def test_deleting_takes_the_password(server: Running, ada: Account) -> None:
    problem(await delete_me(ada, "not the password"), 401, "wrong-credentials")
    ok(await ada.client.get(ME))


async def test_the_last_administrator_cannot_leave_the_others_alone(
    server: Running, ada: Account
) -> None:
    async with server.account("Ben") as ben:
        code = ok(await ada.client.post("/api/v1/admin/invitations", json={}), 201)["code"]
        problem(await delete_me(ada), 409, "last-administrator")
        path = f"/api/v1/admin/users/{ben.user['id']}"
        ok(await ada.client.patch(path, json={"is_administrator": True}))
        assert (await delete_me(ada)).status_code == 204
        # What an administrator handed out goes with the account.
        assert code
        assert ok(await ben.client.get("/api/v1/admin/invitations"))["items"] == []


async def test_the_only_account_can_go_and_the_next_one_administers(
    server: Running, ada: Account
) -> None:
    assert (await delete_me(ada)).status_code == 204
    async with server.account("Ben") as ben:
        assert ben.user["is_administrator"] is True


async def test_a_turn_that_was_running_leaves_nothing_behind(
    database_url: str, tmp_path: Path
) -> None:
    gate = Gate()
    async with (
        OpenAIServer() as model,
        running(database_url, tmp_path, **asking(model)) as server,
        server.account("Ada"),
    ):
        before = await rows(server)
        async with server.account("Ben") as ben:
            chat = (await ben.new_chat())["id"]
            model.script(held_back(gate))
            stream = asyncio.create_task(ben.turn(chat, text="Tell me."))
            runs = server.parts.turns.runs
            while not len(runs):
                await asyncio.sleep(0.01)
            assert (await delete_me(ben)).status_code == 204
            gate.opened.set()
            while len(runs):
                await asyncio.sleep(0.01)
            await stream
        await settled(server)
        await forgotten(server)
        assert await rows(server) == before
