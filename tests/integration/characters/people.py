"""An application with the routes of characters and personas, and its users."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from litestar import Litestar, Request
from litestar.di import Provide
from litestar.testing import AsyncTestClient
from sqlalchemy import Connection, inspect, text

import backend.chronicles.models  # noqa: F401  # pyright: ignore[reportUnusedImport]  # lorebooks refer to its tables
from backend.accounts.auth.identity import Identity
from backend.accounts.models import User
from backend.accounts.profile.activity import ActivityLog
from backend.characters.avatars import AvatarService
from backend.characters.controller import AVATAR_CONTROLLERS, CharacterController
from backend.characters.personas import PersonaController, PersonaService
from backend.characters.service import CharacterService
from backend.core.cpu_pool import CpuPool
from backend.database.base import new_id
from backend.database.engine import Database
from backend.http import responses as http
from backend.jobs.queue import JobQueue
from backend.lorebooks.card_books import CardBookService
from backend.memory.indexing.outbox import IndexOutbox
from backend.vault.root import RootKeys
from backend.vault.sealing import KEY_BYTES, Sealer

CARDS = Path(__file__).parents[2] / "fixtures" / "cards"
FOREIGN = CARDS.parent / "foreign_cards"
CARD_FIXTURES = (
    "syn_v1.json",
    "syn_v2_only_mixedcase_Chara.png",
    "syn_v2_and_v3_precedence.png",
    "syn_v3.json",
    "syn_v3.charx",
)
ON_SQLITE_ALONE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For tests that do not depend on the database. A SQLite database is copied much faster."""

AROUND_THE_CARD = {
    "id",
    "lorebook_id",
    "scripts_allowed",
    "keeps_memories",
    "is_favourite",
    "preset_id",
    "has_avatar",
    "revision",
    "created_at",
    "updated_at",
}


def character_service(database: Database) -> CharacterService:
    """Make the service of characters. Index changes are queued, but not processed."""
    outbox = IndexOutbox(JobQueue(database, RootKeys({1: b"r" * 32})))
    return CharacterService(
        database, CardBookService(outbox), pool=CpuPool(), longest_message=100_000
    )


def make_app(database: Database, identities: Mapping[str, Identity]) -> Litestar:
    """Make an application. The header `x-user` names the account."""

    def who(request: Request[Any, Any, Any]) -> Identity:
        identity = identities[request.headers["x-user"]]
        request.scope["user"] = identity  # the same as `IdentityMiddleware`
        return identity

    characters = character_service(database)
    personas = PersonaService(database)
    avatars = AvatarService(database, CpuPool())
    activity = ActivityLog(database)
    return Litestar(
        route_handlers=[CharacterController, PersonaController, *AVATAR_CONTROLLERS],
        dependencies={
            "identity": Provide(who, sync_to_thread=False),
            "characters": Provide(lambda: characters, sync_to_thread=False),
            "personas": Provide(lambda: personas, sync_to_thread=False),
            "avatars": Provide(lambda: avatars, sync_to_thread=False),
            "activity": Provide(lambda: activity, sync_to_thread=False),
        },
        exception_handlers=http.EXCEPTION_HANDLERS,
        # The client runs the application in another event loop.
        on_shutdown=[database.dispose],
        logging_config=None,
    )


async def sign_up(database: Database) -> Identity:
    user_id, user_key = new_id(), os.urandom(KEY_BYTES)
    user = User(
        id=user_id,
        name_lookup=user_id.bytes,
        wrapped_name=b"",
        wrapped_derivation_key=b"",
        settings_mac=b"",
        sealed_settings=None,
    )
    async with database.write() as session:
        session.add(user)
    sealer = Sealer(user_id, {1: os.urandom(KEY_BYTES)}, user_key=user_key)
    return Identity(user, new_id(), "session", "manage", sealer)


@dataclass(frozen=True)
class Person:
    name: str
    identity: Identity
    client: AsyncTestClient[Litestar]

    async def ask(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        return await self.client.request(
            method, path, headers={"x-user": self.name, **(headers or {})}, **options
        )

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, **options: Any) -> httpx.Response:
        return await self.ask("POST", path, **options)

    async def put(self, path: str, **options: Any) -> httpx.Response:
        return await self.ask("PUT", path, **options)

    async def patch(self, path: str, **options: Any) -> httpx.Response:
        return await self.ask("PATCH", path, **options)

    async def delete(self, path: str, **options: Any) -> httpx.Response:
        return await self.ask("DELETE", path, **options)

    async def make(self, path: str = "/characters", **members: Any) -> dict[str, Any]:
        return body(await self.post(path, json=members), status=201)

    async def upload(self, data: bytes) -> httpx.Response:
        return await self.post("/characters/import", files={"file": ("card", data)})

    async def import_card(self, data: bytes) -> dict[str, Any]:
        return body(await self.upload(data), status=201)


def body(response: httpx.Response, *, status: int = 200) -> dict[str, Any]:
    """Return the JSON of an answer; fail unless it has this status."""
    assert response.status_code == status, response.text
    return cast("dict[str, Any]", response.json())


def card_of(character: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in character.items() if name not in AROUND_THE_CARD}


async def count_rows(database: Database) -> dict[str, int]:
    """Count the rows of every table except the storage ledger, which only grows."""

    def count(connection: Connection) -> dict[str, int]:
        return {
            table: connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0
            for table in inspect(connection).get_table_names()
            if table != "storage_ledger"
        }

    async with database.engine.connect() as connection:
        return await connection.run_sync(count)
