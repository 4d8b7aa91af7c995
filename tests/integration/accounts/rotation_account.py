"""Accounts with a text in every sealed column, and rotations in separate processes."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

from sqlalchemy import LargeBinary, String, Table, insert, select, update

import backend
from backend.accounts import repository
from backend.accounts.auth.names import load_instance_keys
from backend.accounts.keys import rotation, sealed_tables
from backend.accounts.keys.keyring import open_sealer
from backend.accounts.keys.sealed_tables import SealedTable, find_model_tables
from backend.accounts.models import DataKey, KeySlot, User
from backend.accounts.service import AccountService
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.database.types import Id, UtcTime
from backend.settings import Settings
from backend.vault.root import RootKeys, load_root_keys
from backend.vault.sealing import Sealer
from backend.vault.slots import PasswordKdf

PASSWORD = "a lighthouse in the fog"
CHEAP = PasswordKdf(salt=bytes(16), memory_kib=64, passes=1, lanes=1)
BACKEND = Path(backend.__file__).parent

MODELS: Sequence[ModuleType] = [
    importlib.import_module(f"backend.{path.parent.name}.models")
    for path in sorted(BACKEND.glob("*/models.py"))
]
"""Every module of models: imported, so that `Base.metadata` is complete."""

Texts = dict[tuple[str, str, UUID], str]
"""Stored texts by table, column and row."""


@dataclass(frozen=True)
class Account:
    """An account, and the user key that its password opens."""

    database: Database
    name: str
    user_id: UUID
    user_key: bytes

    async def sealer(self) -> Sealer:
        async with self.database.read() as session:
            user = await repository.get_user(session, self.user_id)
            rows = await repository.list_data_keys(session, self.user_id)
        return open_sealer(user, rows, user_key=self.user_key)

    async def key_numbers(self) -> list[int]:
        query = select(DataKey.number).where(DataKey.user_id == self.user_id)
        async with self.database.read() as session:
            return sorted(await session.scalars(query))

    async def rows(self, sealed: SealedTable) -> list[dict[str, Any]]:
        query = select(sealed.table).where(sealed.owner == self.user_id).order_by(sealed.id)
        async with self.database.read() as session:
            return [dict(row) for row in (await session.execute(query)).mappings()]

    async def blobs(self) -> dict[tuple[str, str, UUID], bytes]:
        return {
            (sealed.table.name, column.name, row["id"]): row[column.name]
            for sealed in find_model_tables()
            for row in await self.rows(sealed)
            for column in sealed.columns
            if row[column.name] is not None
        }

    async def texts(self) -> Texts:
        """Every text of theirs. Raises `SealBrokenError` unless all of them open."""
        sealer = await self.sealer()
        sealed_as = {
            (sealed.table.name, column.name): sealed.place(column)
            for sealed in find_model_tables()
            for column in sealed.columns
        }
        return {
            (table, name, row_id): sealer.open(sealed_as[table, name], row_id, blob)
            for (table, name, row_id), blob in (await self.blobs()).items()
        }

    async def fill(self, count: int = 1) -> None:
        """Write `count` rows into every table with sealed columns, a text into each of these."""
        sealer = await self.sealer()
        for number in range(count):
            made: dict[str, UUID] = {"users": self.user_id}
            async with self.database.write() as session:
                for sealed in find_model_tables():
                    row = _row(sealed, sealer, made, number)
                    made[sealed.table.name] = row["id"]
                    if sealed.table is User.__table__:
                        query = update(User).where(User.id == self.user_id)
                        await session.execute(query.values(_select_sealed(sealed, row)))
                    else:
                        await session.execute(insert(sealed.table).values(row))


async def sign_up(database: Database, name: str, root: RootKeys) -> Account:
    """An account as people make it, but for a password that is quickly stretched."""
    service = await accounts(database, root)
    unlocked = await service.sign_up(name, PASSWORD, invitation=None, address="::1")
    return Account(database, name, unlocked.user.id, unlocked.current.key)


async def open_user_key(database: Database, name: str, root: RootKeys) -> bytes:
    """Return the user key. Raises the errors of a sign-in."""
    unlocked = await (await accounts(database, root)).unlock(name, PASSWORD, address="::1")
    return unlocked.current.key


async def accounts(database: Database, root: RootKeys) -> AccountService:
    """A server's service of accounts, as it is after a start."""
    values: dict[str, Any] = {"_env_file": None, "registration": "open"}
    instance = await load_instance_keys(database, root)
    return AccountService(database, root, instance, Settings(**values), kdf=CHEAP)


def _row(sealed: SealedTable, sealer: Sealer, made: dict[str, UUID], number: int) -> dict[str, Any]:
    """Return a row with a text in each sealed column. Foreign keys refer to rows made before."""
    refers = {
        column.name: made[key.column.table.name]
        for column in sealed.table.columns
        for key in column.foreign_keys
        if key.column.table.name in made
    }
    row_id = refers.get("id") or made.get(sealed.table.name) or new_id()
    row: dict[str, Any] = {**_plain(sealed.table, number), **refers, "id": row_id}
    if sealed.table is KeySlot.__table__:
        row |= {"kind": "standing", "root_version": 1}  # a change of keys does not open these
    for column in sealed.columns:
        row[column.name] = sealer.seal(
            sealed.place(column), row_id, f"{sealed.table.name}.{column.name} {number}"
        )
    return row


def _plain(table: Table, number: int) -> dict[str, Any]:
    """Some value for each column that needs one."""
    values: dict[str, Any] = {}
    for column in table.columns:
        if column.nullable or column.default is not None or column.foreign_keys:
            continue
        match column.type:
            case LargeBinary():
                values[column.name] = new_id().bytes
            case UtcTime():
                values[column.name] = now()
            case Id():
                values[column.name] = new_id()
            case String():
                values[column.name] = str(new_id())  # some are unique
            case _:
                values[column.name] = column.type.python_type(number)
    return values


def _select_sealed(sealed: SealedTable, row: dict[str, Any]) -> dict[str, Any]:
    return {column.name: row[column.name] for column in sealed.columns}


class PowerCutError(Exception):
    """The power fails during a rotation."""


class Progress:
    """A record of reported progress that can raise `PowerCutError` at one step."""

    def __init__(self, *, cut_at: int | None = None) -> None:
        self.steps: list[tuple[int, int]] = []
        self._cut_at = cut_at

    def __call__(self, done: int, total: int) -> None:
        if len(self.steps) == self._cut_at:
            raise PowerCutError
        self.steps.append((done, total))


def tell(*words: object) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def run_rotation(kind: str, url: str, *rest: str) -> None:
    """Run a rotation that a test kills, and print a line at each step.

    The arguments are `root URL PATH`, `data URL USER_ID USER_KEY`, or `user URL PATH NAME`. The
    last one renews the user key again and again.
    """
    # Small batches give more points at which to be killed.
    rotation.BATCH_ROWS, sealed_tables.BATCH_ROWS = 1, 5
    rotation.MAX_DATA_KEYS = 1_000
    asyncio.run(rotate_or_renew(kind, url, *rest))


async def rotate_or_renew(kind: str, url: str, *rest: str) -> None:
    database = Database(url)
    assert MODELS  # with every model imported, every sealed column is known
    tell("begin")
    if kind == "root":
        await rotation.rotate_root_key(database, path=Path(rest[0]), value=None, report=tell)
    elif kind == "user":
        service = await accounts(database, load_root_keys(Path(rest[0])))
        unlocked = await service.unlock(rest[1], PASSWORD, address="::1")
        current = unlocked.current
        for _ in range(200):
            current = await service.renew(unlocked.user.id, current)
            tell(current.generation)
    else:
        user_id, user_key = UUID(rest[0]), bytes.fromhex(rest[1])
        await rotation.rotate_data_key(database, user_id, user_key, tell, grace=timedelta(0))
    tell("end")
    await database.dispose()
