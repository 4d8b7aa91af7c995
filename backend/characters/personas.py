"""Personas: who the user is in a chat."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.characters import repository
from backend.characters.avatars import AvatarService
from backend.characters.models import Avatar, Persona
from backend.characters.records import open_persona, seal_persona
from backend.characters.schemas import PersonaFields, PersonaView
from backend.cpu_pool import CpuPool
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.vault.sealing import Sealer
from backend.wire import Page, check_revision, merge_patch, reject_unknown


class PersonaService:
    """What a user does with personas."""

    def __init__(self, database: Database, pool: CpuPool) -> None:
        self._database = database
        self.avatars = AvatarService(
            database,
            pool,
            link=Avatar.persona_id,
            get_holder=repository.get_persona,
        )

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None
    ) -> Page[PersonaView]:
        """Personas, newest first."""
        async with self._database.read() as session:
            rows = await repository.list_personas(
                session, owner_id=identity.user_id, limit=limit + 1, after=after
            )
        items = [
            _view(identity.sealer, persona, has_avatar=has_avatar)
            for persona, has_avatar in rows[:limit]
        ]
        return Page(items=items, next=str(items[-1].id) if len(rows) > limit else None)

    async def create(self, identity: Identity, fields: PersonaFields) -> PersonaView:
        """Make a persona."""
        persona = Persona(id=new_id(), user_id=identity.user_id)
        seal_persona(identity.sealer, persona, fields)
        async with self._database.write() as session:
            session.add(persona)
        return _view(identity.sealer, persona, has_avatar=False)

    async def get(self, identity: Identity, persona_id: UUID) -> PersonaView:
        """Raises `PersonaNotFoundError`."""
        async with self._database.read() as session:
            persona = await repository.get_persona(session, persona_id, owner_id=identity.user_id)
            has_avatar = await _has_avatar(session, persona)
        return _view(identity.sealer, persona, has_avatar=has_avatar)

    async def patch(
        self, identity: Identity, persona_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> PersonaView:
        """Merge into a persona: what is absent stays, null goes back to the default.

        Raises `PersonaNotFoundError`, `PreconditionFailedError`, `ValidationError`.
        """
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
            has_avatar = await _has_avatar(session, persona)
        return _view(sealer, persona, has_avatar=has_avatar)

    async def delete(self, identity: Identity, persona_id: UUID, *, if_match: str | None) -> None:
        """Delete a persona with its picture; its chats stay, and go on without one.

        Raises `PersonaNotFoundError`, `PreconditionFailedError`.
        """
        async with self._database.write() as session:
            persona = await repository.get_persona(
                session, persona_id, owner_id=identity.user_id, lock=True
            )
            check_revision(if_match, persona.revision)
            await session.delete(persona)


def _view(sealer: Sealer, persona: Persona, *, has_avatar: bool) -> PersonaView:
    fields = open_persona(sealer, persona.id, persona.sealed_persona)
    return PersonaView(
        id=persona.id,
        name=fields.name,
        description=fields.description,
        has_avatar=has_avatar,
        revision=persona.revision,
        created_at=persona.created_at,
        updated_at=persona.updated_at,
    )


async def _has_avatar(session: AsyncSession, persona: Persona) -> bool:
    return await repository.has_avatar(
        session, Avatar.persona_id, persona.id, owner_id=persona.user_id
    )
