"""What a turn reads of characters and personas."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from sqlalchemy import event

from backend.accounts.auth.identity import Identity
from backend.characters.cards.model import Card
from backend.characters.errors import CharacterNotFoundError
from backend.characters.personas import PersonaService
from backend.characters.repository import PersonaData, find_names, find_persona, get_card
from backend.characters.schemas import PersonaFields
from backend.database.engine import Database
from tests.integration.characters.people import character_service, sign_up

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


@pytest.fixture
async def ada(database: Database) -> Identity:
    return await sign_up(database)


@pytest.fixture
async def ben(database: Database) -> Identity:
    return await sign_up(database)


async def make(database: Database, owner: Identity, name: str) -> UUID:
    card = Card(name=name, extensions={"depth_prompt": {"prompt": "Terse."}})
    return (await character_service(database).create(owner, card)).id


async def test_a_card_is_read_whole(database: Database, ada: Identity) -> None:
    character_id = await make(database, ada, "Magda")

    async with database.read() as session:
        card = await get_card(session, character_id, owner_id=ada.user_id, sealer=ada.sealer)

    assert card == Card(name="Magda", extensions={"depth_prompt": {"prompt": "Terse."}})


async def test_someone_else_s_card_does_not_exist(
    database: Database, ada: Identity, ben: Identity
) -> None:
    character_id = await make(database, ada, "Magda")

    async with database.read() as session:
        for missing in (character_id, uuid4()):
            with pytest.raises(CharacterNotFoundError):
                await get_card(session, missing, owner_id=ben.user_id, sealer=ben.sealer)


async def test_many_names_are_one_query_in_the_order_asked_for(
    database: Database, ada: Identity, ben: Identity
) -> None:
    first, second = await make(database, ada, "Magda"), await make(database, ada, "Jan")
    foreign = await make(database, ben, "Not Ada's")
    wanted = [second, foreign, uuid4(), first]
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    async with database.read() as session:
        connection = await session.connection()
        event.listen(connection.sync_connection, "before_cursor_execute", note)
        names = await find_names(session, wanted, owner_id=ada.user_id, sealer=ada.sealer)

    assert list(names.items()) == [(second, "Jan"), (first, "Magda")]
    assert len(statements) == 1


async def test_no_names_are_asked_for_without_a_query(database: Database, ada: Identity) -> None:
    async with database.read() as session:
        assert await find_names(session, [], owner_id=ada.user_id, sealer=ada.sealer) == {}


async def test_a_persona_is_found_by_its_owner_alone(
    database: Database, ada: Identity, ben: Identity
) -> None:
    fields = PersonaFields(name="Ada", description="An engineer.")
    persona_id = (await PersonaService(database).create(ada, fields)).id

    async with database.read() as session:
        found = await find_persona(session, persona_id, owner_id=ada.user_id, sealer=ada.sealer)
        foreign = await find_persona(session, persona_id, owner_id=ben.user_id, sealer=ben.sealer)
        absent = await find_persona(session, uuid4(), owner_id=ada.user_id, sealer=ada.sealer)

    assert found == PersonaData(persona_id, "Ada", "An engineer.")
    assert (foreign, absent) == (None, None)
