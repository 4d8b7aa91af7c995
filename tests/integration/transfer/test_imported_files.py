"""The record of imported files, which prevents that a file is imported twice."""

from __future__ import annotations

import io

import pytest

from backend.characters.models import Persona, seal_persona
from backend.characters.schemas import PersonaFields
from backend.database.base import new_id
from backend.database.engine import Database
from backend.transfer.imported import (
    READ_BYTES,
    digest_file,
    digest_parts,
    find_imported,
    make_recorder,
    record_imported,
)
from tests.integration.characters.people import sign_up

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


async def test_finds_a_file_while_its_item_exists(database: Database) -> None:
    ada, ben = await sign_up(database), await sign_up(database)
    digest = digest_file(ada.sealer, io.BytesIO(b"Once upon a time"))
    persona = Persona(id=new_id(), user_id=ada.user_id)
    seal_persona(ada.sealer, persona, PersonaFields(name="Ada"))
    async with database.write() as session:
        session.add(persona)
        await make_recorder(ada.sealer, "persona", digest)(session, persona.id)

    async with database.read() as session:
        found = await find_imported(session, ada.user_id, digest)
        assert found is not None
        assert found.item_id == persona.id
        assert await find_imported(session, ben.user_id, digest) is None

    async with database.write() as session:
        await session.delete(await session.get(Persona, persona.id))
    async with database.read() as session:
        assert await find_imported(session, ada.user_id, digest) is None


async def test_settings_exist_as_long_as_their_account(database: Database) -> None:
    ada = await sign_up(database)
    async with database.write() as session:
        await record_imported(
            session,
            ada.sealer,
            digest=b"d" * 32,
            kind="settings",
            item_id=ada.user_id,
            source=b'{"file": "settings.json"}',
        )
    async with database.read() as session:
        found = await find_imported(session, ada.user_id, b"d" * 32)
        assert found is not None
        assert found.sealed_source is not None
        assert b"settings" not in found.sealed_source


async def test_digests_are_keyed_and_depend_on_the_whole_content(database: Database) -> None:
    ada, ben = await sign_up(database), await sign_up(database)
    text = b"x" * READ_BYTES
    digests = {
        digest_file(ada.sealer, io.BytesIO(text + b"1")),
        digest_file(ada.sealer, io.BytesIO(text + b"2")),
        digest_file(ben.sealer, io.BytesIO(text + b"1")),
        digest_parts(ada.sealer, "name", [text + b"1"]),
        digest_parts(ada.sealer, "name", [text, b"1"]),
    }
    assert len(digests) == 5
    assert digest_file(ada.sealer, io.BytesIO(text + b"1")) in digests


async def test_an_item_of_someone_else_does_not_count(database: Database) -> None:
    ada, ben = await sign_up(database), await sign_up(database)
    persona = Persona(id=new_id(), user_id=ben.user_id)
    seal_persona(ben.sealer, persona, PersonaFields(name="Ben"))
    digest, item_id = b"e" * 32, persona.id
    async with database.write() as session:
        session.add(persona)
        await record_imported(session, ada.sealer, digest=digest, kind="persona", item_id=item_id)
    async with database.read() as session:
        assert await find_imported(session, ada.user_id, digest) is None
