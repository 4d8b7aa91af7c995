"""What a stolen database tells."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from backend.characters.models import Character
from backend.database.engine import Database
from backend.vault.sealing import SealBrokenError
from tests.integration.characters.people import CARDS, Person, body, card_of
from tests.integration.characters.pictures import archive, picture

pytestmark = pytest.mark.anyio

CANARY = "k4n4ri3nv0g3l"


async def stored_values(database: Database) -> AsyncIterator[tuple[str, Any]]:
    """Every value of the tables that characters and personas are in."""
    for table in ("characters", "character_assets", "personas", "avatars"):
        async with database.read() as session:
            rows = (await session.execute(text(f"SELECT * FROM {table}"))).mappings().all()
        assert rows, table
        for row in rows:
            for column, value in row.items():
                yield f"{table}.{column}", value


async def test_no_word_of_a_user_s_is_readable(ada: Person, database: Database) -> None:
    card = json.loads((CARDS / "syn_v3.json").read_bytes())
    for name in ("name", "nickname", "description", "first_mes", "creator", "system_prompt"):
        card["data"][name] = f"{name} {CANARY}"
    card["data"]["tags"] = [CANARY]
    card["data"]["vendor"] = {CANARY: CANARY}
    card["data"]["assets"] = [{"type": "icon", "uri": "embeded://icon.png", "name": "main"}]
    files = {
        "card.json": json.dumps(card).encode(),
        "icon.png": picture(),
        f"assets/{CANARY}.txt": CANARY.encode(),
    }
    imported = await ada.import_card(archive(files))
    persona = await ada.make("/personas", name=CANARY, description=f"Called {CANARY}.")
    await ada.patch(f"/personas/{persona['id']}", json={"name": f"{CANARY} II"})
    await ada.patch(f"/characters/{imported['character']['id']}", json={"scenario": CANARY})

    telltale = (CANARY.encode(), base64.b64encode(CANARY.encode()), b"RIFF", b"\x89PNG", b"chara")
    async for place, value in stored_values(database):
        data = value if isinstance(value, bytes) else str(value).encode()
        assert not any(each in data for each in telltale), place


async def test_what_was_moved_to_another_row_does_not_open(ada: Person, database: Database) -> None:
    magda, jan = await ada.make(name="Magda"), await ada.make(name="Jan")
    async with database.write() as session:
        source = await session.get_one(Character, UUID(magda["id"]))
        target = await session.get_one(Character, UUID(jan["id"]))
        target.sealed_card = source.sealed_card

    answer = await ada.get(f"/characters/{jan['id']}")

    assert answer.status_code == SealBrokenError.status
    assert "Magda" not in answer.text
    assert card_of(body(await ada.get(f"/characters/{magda['id']}"))) == card_of(magda)
