"""A rotation in a separate process, which a test kills.

`root URL PATH`, `data URL USER_ID USER_KEY`, or `user URL PATH NAME`, which changes the user key
again and again.

Prints a line when it begins, one at each progress, and one at the end.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from backend.accounts.keys import rotation, sealed_tables
from backend.database.engine import Database
from backend.vault.root import load_root_keys
from tests.integration.accounts.rotation_account import MODELS, PASSWORD, accounts


def tell(*words: object) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def run(kind: str, url: str, *rest: str) -> None:
    # Small batches give more points at which to be killed.
    rotation.BATCH_ROWS, sealed_tables.BATCH_ROWS = 1, 5
    rotation.MAX_DATA_KEYS = 1_000
    asyncio.run(main(kind, url, *rest))


async def main(kind: str, url: str, *rest: str) -> None:
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
