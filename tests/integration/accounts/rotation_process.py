"""A rotation in a process of its own, to be killed: `root URL PATH` or `data URL USER_ID USER_KEY`.

Prints a line when it begins, one at each progress, and one at the end.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from backend.accounts import rotation, rotation_texts
from backend.database.engine import Database
from tests.integration.accounts.rotation_account import MODELS

# Small batches: more points at which to be killed.
rotation.BATCH_SLOTS, rotation_texts.BATCH_ROWS = 1, 5


def tell(*words: object) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


async def main(kind: str, url: str, *rest: str) -> None:
    database = Database(url)
    assert MODELS  # with every model imported, every sealed column is known
    tell("begin")
    if kind == "root":
        await rotation.rotate_root_key(database, path=Path(rest[0]), value=None, report=tell)
    else:
        user_id, user_key = UUID(rest[0]), bytes.fromhex(rest[1])
        await rotation.rotate_data_key(database, user_id, user_key, tell, grace=timedelta(0))
    tell("end")
    await database.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
