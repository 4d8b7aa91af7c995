"""Personas, who the user is in a chat: `/personas`, and their pictures."""

from typing import Any
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.characters import repository
from backend.characters.avatars import AvatarService
from backend.characters.errors import AvatarNotFoundError, ImageError, PersonaNotFoundError
from backend.characters.models import Avatar, Persona, open_persona, seal_persona
from backend.characters.schemas import AvatarSize, PersonaFields, PersonaView
from backend.characters.uploads import MAX_UPLOAD_BYTES, ImageOperation, picture_answer, read_image
from backend.core.cpu_pool import CpuPool
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import PreconditionFailedError
from backend.http.schemas import (
    FILES,
    PATCHES,
    RAISES,
    AnyRequest,
    IfMatch,
    Page,
    PageSize,
    check_revision,
    merge_patch,
    reject_unknown,
    tag_view,
)
from backend.vault.sealing import Sealer


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
            has_avatar = await repository.has_avatar(session, persona)
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
            has_avatar = await repository.has_avatar(session, persona)
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
        """Personas, newest first."""
        return await personas.list_page(identity, limit=limit, after=after)

    @post(summary="Create a persona")
    async def create_persona(
        self,
        data: JSONBody[PersonaFields],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
    ) -> Response[PersonaView]:
        """Make a persona: who the user is in a chat."""
        return tag_view(await personas.create(identity, data))

    @get("/{persona_id:uuid}", opt={RAISES: (PersonaNotFoundError,)}, summary="Read a persona")
    async def get_persona(
        self,
        persona_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
    ) -> Response[PersonaView]:
        """A persona."""
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
        """Merge into a persona: what is absent stays, null goes back to the default."""
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
        """Delete a persona with its picture. Chats stay, and go on without it."""
        await personas.delete(identity, persona_id, if_match=if_match)

    @get(
        "/{persona_id:uuid}/avatar",
        opt={RAISES: (PersonaNotFoundError, AvatarNotFoundError), FILES: ("image/webp",)},
        operation_id="getPersonaAvatar",
        summary="Read a persona's picture",
        media_type="image/webp",
    )
    async def get_avatar(
        self,
        request: AnyRequest,
        persona_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
        size: FromQuery[AvatarSize] = "full",
    ) -> Response[bytes]:
        """The picture, at most 1,024 pixels a side, or its thumbnail, at most 256."""
        return picture_answer(request, await personas.avatars.read(identity, persona_id, size))

    @put(
        "/{persona_id:uuid}/avatar",
        status_code=204,
        opt={RAISES: (PersonaNotFoundError, ImageError)},
        operation_id="putPersonaAvatar",
        summary="Set a persona's picture",
        operation_class=ImageOperation,
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def put_avatar(
        self,
        request: AnyRequest,
        persona_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
    ) -> None:
        """Set the picture: a PNG, JPEG, WebP or GIF, which is encoded anew without metadata."""
        await personas.avatars.replace(identity, persona_id, await read_image(request))

    @delete(
        "/{persona_id:uuid}/avatar",
        opt={RAISES: (PersonaNotFoundError, AvatarNotFoundError)},
        operation_id="deletePersonaAvatar",
        summary="Delete a persona's picture",
    )
    async def delete_avatar(
        self,
        persona_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
    ) -> None:
        """Delete the picture, in both sizes."""
        await personas.avatars.remove(identity, persona_id)
