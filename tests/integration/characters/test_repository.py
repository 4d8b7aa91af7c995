"""Tests of the characters' repository, and of stolen or moved rows."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event, text

from backend.accounts.auth.identity import Identity
from backend.characters.cards.model import Card
from backend.characters.errors import CharacterNotFoundError
from backend.characters.models import Character
from backend.characters.personas import PersonaService
from backend.characters.repository import PersonaData, find_names, find_persona, get_card
from backend.characters.schemas import PersonaFields
from backend.database.engine import Database
from backend.vault.sealing import SealBrokenError
from tests.integration.characters.people import (
    CARDS,
    Person,
    body,
    card_of,
    character_service,
    sign_up,
)
from tests.integration.characters.pictures import archive, picture

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ada_identity(database: Database) -> Identity:
    return await sign_up(database)


@pytest.fixture
async def ben_identity(database: Database) -> Identity:
    return await sign_up(database)


async def make(database: Database, owner: Identity, name: str) -> UUID:
    card = Card(name=name, extensions={"depth_prompt": {"prompt": "Terse."}})
    return (await character_service(database).create(owner, card)).id


@pytest.mark.every_database
async def test_a_card_is_read_whole(database: Database, ada_identity: Identity) -> None:
    character_id = await make(database, ada_identity, "Magda")
    async with database.read() as session:
        card = await get_card(
            session, character_id, owner_id=ada_identity.user_id, sealer=ada_identity.sealer
        )
    assert card == Card(name="Magda", extensions={"depth_prompt": {"prompt": "Terse."}})


@pytest.mark.every_database
async def test_someone_else_s_card_does_not_exist(
    database: Database, ada_identity: Identity, ben_identity: Identity
) -> None:
    character_id = await make(database, ada_identity, "Magda")
    async with database.read() as session:
        for missing in (character_id, uuid4()):
            with pytest.raises(CharacterNotFoundError):
                await get_card(
                    session, missing, owner_id=ben_identity.user_id, sealer=ben_identity.sealer
                )


@pytest.mark.every_database
async def test_many_names_are_one_query_in_the_order_asked_for(
    database: Database, ada_identity: Identity, ben_identity: Identity
) -> None:
    first, second = (
        await make(database, ada_identity, "Magda"),
        await make(database, ada_identity, "Jan"),
    )
    foreign = await make(database, ben_identity, "Not Ada's")
    wanted = [second, foreign, uuid4(), first]
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    async with database.read() as session:
        connection = await session.connection()
        event.listen(connection.sync_connection, "before_cursor_execute", note)
        names = await find_names(
            session, wanted, owner_id=ada_identity.user_id, sealer=ada_identity.sealer
        )

    assert list(names.items()) == [(second, "Jan"), (first, "Magda")]
    assert len(statements) == 1


@pytest.mark.every_database
async def test_no_names_are_asked_for_without_a_query(
    database: Database, ada_identity: Identity
) -> None:
    async with database.read() as session:
        assert (
            await find_names(session, [], owner_id=ada_identity.user_id, sealer=ada_identity.sealer)
            == {}
        )


@pytest.mark.every_database
async def test_a_persona_is_found_by_its_owner_alone(
    database: Database, ada_identity: Identity, ben_identity: Identity
) -> None:
    fields = PersonaFields(name="Ada", description="An engineer.")
    persona_id = (await PersonaService(database).create(ada_identity, fields)).id

    async with database.read() as session:
        found = await find_persona(
            session, persona_id, owner_id=ada_identity.user_id, sealer=ada_identity.sealer
        )
        foreign = await find_persona(
            session, persona_id, owner_id=ben_identity.user_id, sealer=ben_identity.sealer
        )
        absent = await find_persona(
            session, uuid4(), owner_id=ada_identity.user_id, sealer=ada_identity.sealer
        )

    assert found == PersonaData(persona_id, "Ada", "An engineer.")
    assert (foreign, absent) == (None, None)


CANARY = "k4n4ri3nv0g3l"


async def read_stored_values(database: Database) -> AsyncIterator[tuple[str, Any]]:
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
    async for place, value in read_stored_values(database):
        data = value if isinstance(value, bytes) else str(value).encode()
        assert not any(each in data for each in telltale), place


async def test_a_card_that_is_moved_to_another_row_does_not_open(
    ada: Person, database: Database
) -> None:
    magda, jan = await ada.make(name="Magda"), await ada.make(name="Jan")
    async with database.write() as session:
        source = await session.get_one(Character, UUID(magda["id"]))
        target = await session.get_one(Character, UUID(jan["id"]))
        target.sealed_card = source.sealed_card
    answer = await ada.get(f"/characters/{jan['id']}")
    assert answer.status_code == SealBrokenError.status
    assert "Magda" not in answer.text
    assert card_of(body(await ada.get(f"/characters/{magda['id']}"))) == card_of(magda)
