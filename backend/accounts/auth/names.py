"""Account names: looked up by a keyed hash, and stored encrypted under the installation's key."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from uuid import UUID

from sqlalchemy import Connection, inspect, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import InstanceKey, User
from backend.database.base import upsert
from backend.database.engine import Database
from backend.vault.root import (
    RootKeyError,
    RootKeys,
    RootSealBrokenError,
    Wrapped,
    load_root_keys,
)
from backend.vault.sealing import KEY_BYTES, derive, digest, seal_under, unseal_under

INSTANCE_CONTEXT = b"instance-key"


def normalise_name(name: str) -> str:
    """Return the form that is looked up: NFKC, case-folded, without surrounding whitespace."""
    return unicodedata.normalize("NFKC", name).strip().casefold()


class InstanceKeys:
    """Keys derived from the installation's own key, which is stored under the root key.

    A new root key therefore changes no look-up hash, and no name has to be sealed again.
    """

    def __init__(self, secret: bytes) -> None:
        self._lookup = derive(secret, "lookup")
        self._names = derive(secret, "names")
        self.csrf_secret = derive(secret, "csrf").hex()

    def hash_name(self, name: str) -> bytes:
        return digest(self._lookup, b"name", normalise_name(name).encode())

    def hash_throttle_key(self, kind: str, *values: str) -> bytes:
        return digest(self._lookup, b"throttle", kind.encode(), *(each.encode() for each in values))

    def make_server_id(self, *parts: str) -> UUID:
        """Return the id of a model's server: a keyed hash of its address and API key."""
        data = digest(self._lookup, b"server", *(each.encode() for each in parts))
        return UUID(bytes=data[:16])

    def wrap_name(self, user_id: UUID, name: str) -> bytes:
        return seal_under(self._names, name.encode(), context=user_id.bytes)

    def read_name(self, user: User) -> str:
        return unseal_under(self._names, user.wrapped_name, context=user.id.bytes).decode()


async def load_database_root_keys(
    database: Database, path: Path, *, value: str | None = None, create: bool = False
) -> RootKeys:
    """Load the root key of a database; `create` makes one for a database without any.

    The tables may be those of an older version. Raises `RootKeyError` if the key is missing or
    does not open the database's keys.
    """
    row = await _find_instance_key(database)
    root = load_root_keys(path, value=value, create=create and row is None)
    if row is not None:
        try:
            root.unwrap(row, context=INSTANCE_CONTEXT)
        except RootSealBrokenError as error:
            raise RootKeyError(
                "The root key does not open this database: it belongs to another one, or the "
                "database is damaged. Put the root key and the database that belong together in "
                "place."
            ) from error
    return root


async def has_root_key(database: Database) -> bool:
    """True if the database needs the root key that it was first used with."""
    return await _find_instance_key(database) is not None


async def _find_instance_key(database: Database) -> Wrapped | None:
    def has_table(connection: Connection) -> bool:
        return inspect(connection).has_table(InstanceKey.__tablename__)

    async with database.read() as session:
        if not await (await session.connection()).run_sync(has_table):
            return None
        query = select(InstanceKey.root_version, InstanceKey.wrapped)
        row = (await session.execute(query)).first()
    return None if row is None else Wrapped(row.root_version, row.wrapped)


async def load_instance_keys(database: Database, root: RootKeys) -> InstanceKeys:
    """Load the installation's key, or create it if there is none."""
    async with database.read() as session:
        row = await session.get(InstanceKey, 1)
    if row is None:
        async with database.write() as session:
            row = await _create_instance_key(session, root)
    return InstanceKeys(open_instance_key(row, root))


def open_instance_key(row: InstanceKey, root: RootKeys) -> bytes:
    return root.unwrap(Wrapped(row.root_version, row.wrapped), context=INSTANCE_CONTEXT)


async def _create_instance_key(session: AsyncSession, root: RootKeys) -> InstanceKey:
    version, wrapped = root.wrap(os.urandom(KEY_BYTES), context=INSTANCE_CONTEXT)
    values = {"id": 1, "root_version": version, "wrapped": wrapped}
    await upsert(session, InstanceKey, values, key=("id",))
    return (await session.scalars(select(InstanceKey))).one()
