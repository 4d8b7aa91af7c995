"""Personas: `/personas`, and their pictures."""

from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.identity import Identity
from backend.characters.answers import picture_answer
from backend.characters.errors import AvatarNotFoundError, PersonaNotFoundError
from backend.characters.images import ImageError
from backend.characters.personas import PersonaService
from backend.characters.schemas import AvatarSize, PersonaFields, PersonaView
from backend.characters.uploads import MAX_UPLOAD_BYTES, ImageOperation, read_image
from backend.errors import PreconditionFailedError
from backend.wire import FILES, PATCHES, RAISES, Page, PageSize, etag

AnyRequest = Request[Any, Any, Any]


class PersonaController(Controller):
    """Personas."""

    path = "/personas"
    tags = ("Personas",)

    @get(operation_id="listPersonas", summary="List personas")
    async def list_personas(
        self,
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[PersonaView]:
        """Personas, newest first."""
        return await personas.list_page(identity, limit=limit, after=after)

    @post(operation_id="createPersona", summary="Make a persona")
    async def create_persona(
        self,
        data: JSONBody[PersonaFields],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
    ) -> Response[PersonaView]:
        """Make a persona: who the user is in a chat."""
        return _tagged(await personas.create(identity, data))

    @get(
        "/{persona_id:uuid}",
        opt={RAISES: (PersonaNotFoundError,)},
        operation_id="getPersona",
        summary="Read a persona",
    )
    async def get_persona(
        self,
        persona_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
    ) -> Response[PersonaView]:
        """A persona."""
        return _tagged(await personas.get(identity, persona_id))

    @patch(
        "/{persona_id:uuid}",
        opt={RAISES: (PersonaNotFoundError, PreconditionFailedError), PATCHES: PersonaFields},
        operation_id="patchPersona",
        summary="Change a persona",
    )
    async def patch_persona(
        self,
        request: AnyRequest,
        persona_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
    ) -> Response[PersonaView]:
        """Merge into a persona: what is absent stays, null goes back to the default."""
        view = await personas.patch(
            identity, persona_id, data, if_match=request.headers.get("if-match")
        )
        return _tagged(view)

    @delete(
        "/{persona_id:uuid}",
        opt={RAISES: (PersonaNotFoundError, PreconditionFailedError)},
        operation_id="deletePersona",
        summary="Delete a persona",
    )
    async def delete_persona(
        self,
        request: AnyRequest,
        persona_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        personas: NamedDependency[PersonaService],
    ) -> None:
        """Delete a persona with its picture. Chats stay, and go on without it."""
        await personas.delete(identity, persona_id, if_match=request.headers.get("if-match"))

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


def _tagged(view: PersonaView) -> Response[PersonaView]:
    return Response(view, headers={"ETag": etag(view.revision)})
