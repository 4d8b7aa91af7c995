"""Personas: `/personas`."""

from typing import Any
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.characters import repository
from backend.characters.errors import PersonaNotFoundError
from backend.characters.models import Persona, open_persona, seal_persona
from backend.characters.schemas import PersonaFields, PersonaView
from backend.database.base import RecordCreated, new_id, now, record_nothing
from backend.database.engine import Database
from backend.errors import PreconditionFailedError
from backend.http.schemas import (
    PATCHES,
    RAISES,
    IfMatch,
    Page,
    PageSize,
    check_revision,
    make_struct,
    merge_patch,
    reject_unknown,
    tag_view,
)
from backend.vault.sealing import Sealer


class PersonaService:
    """List, create, change and delete personas. Each route lists its errors."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None
    ) -> Page[PersonaView]:
        async with self._database.read() as session:
            rows = await repository.list_personas(
                session, owner_id=identity.user_id, limit=limit + 1, after=after
            )
        items = [
            _make_view(identity.sealer, persona, has_avatar=has_avatar)
            for persona, has_avatar in rows[:limit]
        ]
        return Page(items=items, next=str(items[-1].id) if len(rows) > limit else None)

    async def create(
        self,
        identity: Identity,
        fields: PersonaFields,
        *,
        record: RecordCreated = record_nothing,
    ) -> PersonaView:
        persona = Persona(id=new_id(), user_id=identity.user_id)
        seal_persona(identity.sealer, persona, fields)
        async with self._database.write() as session:
            session.add(persona)
            await record(session, persona.id)
        return _make_view(identity.sealer, persona, has_avatar=False)

    async def get(self, identity: Identity, persona_id: UUID) -> PersonaView:
        async with self._database.read() as session:
            persona = await repository.get_persona(session, persona_id, owner_id=identity.user_id)
            has_avatar = await repository.has_avatar(session, persona)
        return _make_view(identity.sealer, persona, has_avatar=has_avatar)

    async def patch(
        self, identity: Identity, persona_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> PersonaView:
        reject_unknown(patch, PersonaFields)
        sealer = identity.sealer
        async with self._database.write() as session:
            persona = await repository.get_persona(
                session, persona_id, owner_id=identity.user_id, lock=True
            )
            check_revision(if_match, persona.revision)
            fields = open_persona(sealer, persona.id, persona.sealed_persona)
            seal_persona(sealer, persona, merge_patch(fields, patch))
            persona.revision += 1
            persona.updated_at = now()
            has_avatar = await repository.has_avatar(session, persona)
        return _make_view(sealer, persona, has_avatar=has_avatar)

    async def delete(self, identity: Identity, persona_id: UUID, *, if_match: str | None) -> None:
        async with self._database.write() as session:
            persona = await repository.get_persona(
                session, persona_id, owner_id=identity.user_id, lock=True
            )
            check_revision(if_match, persona.revision)
            await session.delete(persona)


def _make_view(sealer: Sealer, persona: Persona, *, has_avatar: bool) -> PersonaView:
    fields = open_persona(sealer, persona.id, persona.sealed_persona)
    return make_struct(
        PersonaView,
        persona,
        name=fields.name,
        description=fields.description,
        has_avatar=has_avatar,
    )


class PersonaController(Controller):
    """Personas."""

    path = "/personas"
    tags = ("Personas",)

    @get(summary="List personas")
    async def list_personas(
        self,
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[PersonaView]:
        """List personas, newest first."""
        return await personas.list_page(identity, limit=limit, after=after)

    @post(summary="Create a persona")
    async def create_persona(
        self,
        data: JSONBody[PersonaFields],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
    ) -> Response[PersonaView]:
        """Create a persona, the user's role in a chat."""
        return tag_view(await personas.create(identity, data))

    @get("/{persona_id:uuid}", opt={RAISES: (PersonaNotFoundError,)}, summary="Read a persona")
    async def get_persona(
        self,
        persona_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
    ) -> Response[PersonaView]:
        """Return a persona."""
        return tag_view(await personas.get(identity, persona_id))

    @patch(
        "/{persona_id:uuid}",
        opt={RAISES: (PersonaNotFoundError, PreconditionFailedError), PATCHES: PersonaFields},
        summary="Change a persona",
    )
    async def patch_persona(
        self,
        persona_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
        if_match: IfMatch = None,
    ) -> Response[PersonaView]:
        """Merge a patch into a persona. Null restores a default."""
        return tag_view(await personas.patch(identity, persona_id, data, if_match=if_match))

    @delete(
        "/{persona_id:uuid}",
        opt={RAISES: (PersonaNotFoundError, PreconditionFailedError)},
        summary="Delete a persona",
    )
    async def delete_persona(
        self,
        persona_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
        if_match: IfMatch = None,
    ) -> None:
        """Delete a persona and its picture. Its chats continue without a persona."""
        await personas.delete(identity, persona_id, if_match=if_match)
