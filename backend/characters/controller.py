"""Characters and their card files: `/characters`; the avatars of characters and personas."""

from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, PathParameter, QueryParameter
from litestar.response import Stream

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.characters.avatars import AvatarService
from backend.characters.cards.writer import ExportSpec
from backend.characters.errors import (
    AvatarNotFoundError,
    CardError,
    CardLimitError,
    CharacterNotFoundError,
    ImageError,
    NoCardError,
    PersonaNotFoundError,
)
from backend.characters.repository import HolderKind
from backend.characters.schemas import (
    AvatarSize,
    CharacterChange,
    CharacterCopy,
    CharacterExport,
    CharacterItem,
    CharacterView,
    ExportFormat,
    ImportedCharacter,
    NewCharacter,
    ScriptConsent,
)
from backend.characters.service import CharacterService
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    FileOperation,
    ImageOperation,
    make_file_response,
    make_picture_response,
    read_file,
    read_image,
)
from backend.errors import AppError, ConflictError, PreconditionFailedError
from backend.http.schemas import (
    ENDS_WITH_CLIENT,
    FILES,
    PATCHES,
    RAISES,
    STORES,
    AnyRequest,
    IfMatch,
    Page,
    PageSize,
    tag_view,
)


class CharacterController(Controller):
    """Characters."""

    path = "/characters"
    tags = ("Characters",)

    @get(summary="List and search characters")
    async def list_characters(
        self,
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
        search: Annotated[str, QueryParameter(max_length=200)] = "",
    ) -> Page[CharacterItem]:
        """List characters, newest first.

        With `search`, each of its words must occur in the name, nickname, creator or tags, in any
        letter case. A page of search results may be short or empty and still have a `next`.
        """
        return await characters.list_page(identity, limit=limit, after=after, search=search)

    @post(opt={RAISES: (CardError, CardLimitError)}, summary="Create a character")
    async def create_character(
        self,
        data: JSONBody[NewCharacter],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
    ) -> Response[CharacterView]:
        """Create a character from the fields of a card (Character Card V3)."""
        return tag_view(await characters.create(identity, data))

    @post(
        "/import",
        opt={ENDS_WITH_CLIENT: True, RAISES: (CardError, NoCardError, CardLimitError)},
        summary="Import a card file",
        operation_class=FileOperation,
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def import_character(
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
    ) -> ImportedCharacter:
        """Create a character from a PNG, CHARX, JSON or YAML card of any version.

        Characters of Agnai, Backyard (also `.byaf`), Chub, Character.AI and RisuAI are translated.
        Members without a field here are kept for the export, and `warnings` name them. Other kinds
        of files are refused with their name. A refused file changes nothing.
        """
        return await characters.import_file(identity, await read_file(request))

    @get(
        "/{character_id:uuid}", opt={RAISES: (CharacterNotFoundError,)}, summary="Read a character"
    )
    async def get_character(
        self,
        character_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
    ) -> Response[CharacterView]:
        """Return a character with all fields of its card."""
        return tag_view(await characters.get(identity, character_id))

    @patch(
        "/{character_id:uuid}",
        opt={
            RAISES: (
                CharacterNotFoundError,
                ConflictError,
                CardError,
                CardLimitError,
                PreconditionFailedError,
            ),
            PATCHES: CharacterChange,
        },
        summary="Change a character",
    )
    async def patch_character(
        self,
        character_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
        if_match: IfMatch = None,
    ) -> Response[CharacterView]:
        """Merge a patch into the card's fields and flags. Null restores a default."""
        return tag_view(await characters.patch(identity, character_id, data, if_match=if_match))

    @delete(
        "/{character_id:uuid}",
        opt={RAISES: (CharacterNotFoundError, PreconditionFailedError)},
        summary="Delete a character",
    )
    async def delete_character(
        self,
        character_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
        if_match: IfMatch = None,
    ) -> None:
        """Delete a character, its picture and its files. Its chats are kept."""
        await characters.delete(identity, character_id, if_match=if_match)

    @post(
        "/{character_id:uuid}/duplicate",
        opt={RAISES: (CharacterNotFoundError, CardError, CardLimitError)},
        summary="Duplicate a character",
    )
    async def duplicate_character(
        self,
        character_id: FromPath[UUID],
        data: JSONBody[CharacterCopy],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
    ) -> Response[CharacterView]:
        """Copy a character with its picture, files, lorebooks, preset and background.

        The copy has the original's name as its nickname, so chats still use that name. It has no
        chats and no memories.
        """
        return tag_view(await characters.duplicate(identity, character_id, name=data.name))

    @post(
        "/export",
        status_code=200,
        opt={RAISES: (CharacterNotFoundError,), FILES: ("application/zip",), STORES: False},
        summary="Export several card files",
    )
    async def export_characters(
        self,
        request: AnyRequest,
        data: JSONBody[CharacterExport],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
        activity: NamedDependency[ActivityLog],
    ) -> Response[Any]:
        """Return a zip of cards, which is streamed. Cards of the same name are numbered."""
        chunks = await characters.export_many(identity, data.character_ids, file_format=data.format)
        await activity.note(request, "exported", detail="character")
        return Stream(
            chunks,
            media_type="application/zip",
            headers={
                "Content-Disposition": 'attachment; filename="characters.zip"',
                "X-Content-Type-Options": "nosniff",
            },
        )

    @put(
        "/{character_id:uuid}/regex-scripts",
        status_code=204,
        opt={RAISES: (CharacterNotFoundError,)},
        operation_id="putCharacterScripts",
        summary="Allow a card's regex scripts",
    )
    async def put_scripts(
        self,
        character_id: FromPath[UUID],
        data: JSONBody[ScriptConsent],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
    ) -> None:
        """Allow or forbid the card's regex scripts. They do not run until they are allowed.

        They are in `extensions.regex_scripts` of the card. After a change they must be allowed
        again.
        """
        await characters.allow_scripts(identity, character_id, allowed=data.allowed)

    @get(
        "/{character_id:uuid}/export",
        opt={
            ENDS_WITH_CLIENT: True,
            RAISES: (CharacterNotFoundError,),
            FILES: ("image/png", "application/json", "application/zip"),
        },
        summary="Export a card file",
        media_type="image/png",
    )
    async def export_character(
        self,
        request: AnyRequest,
        character_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
        activity: NamedDependency[ActivityLog],
        file_format: Annotated[ExportFormat, QueryParameter(name="format")] = "png",
        spec: FromQuery[ExportSpec] = "v3",
    ) -> Response[bytes]:
        """Return the card as a file that can be imported again without changes.

        A PNG contains the card as version 3 and as version 2. A CHARX archive contains version 3
        and every imported file. `spec` selects the version of JSON only. In a PNG, a character
        without a picture gets a placeholder. JSON and PNG do not contain an archive's files, but
        still name them.
        """
        file = await characters.export(identity, character_id, file_format=file_format, spec=spec)
        await activity.note(request, "exported", detail="character")
        return make_file_response(file)


def build_avatar_controller(kind: HolderKind, not_found: type[AppError]) -> type[Controller]:
    """Build the controller of the avatars of characters, or of personas."""

    class AvatarController(Controller):
        path = f"/{kind}s/{{{kind}_id:uuid}}/avatar"
        tags = (f"{kind.title()}s",)

        @get(
            opt={RAISES: (not_found, AvatarNotFoundError), FILES: ("image/webp",)},
            operation_id=f"get{kind.title()}Avatar",
            summary=f"Read a {kind}'s picture",
            media_type="image/webp",
        )
        async def get_avatar(
            self,
            request: AnyRequest,
            holder_id: Annotated[UUID, PathParameter(name=f"{kind}_id")],
            identity: NamedDependency[Identity],
            avatars: NamedDependency[AvatarService],
            size: FromQuery[AvatarSize] = "full",
        ) -> Response[bytes]:
            """Return the picture, at most 1,024 pixels a side, or its thumbnail, at most 256."""
            picture = await avatars.read(identity, kind, holder_id, size)
            return make_picture_response(request, picture)

        @put(
            status_code=204,
            opt={RAISES: (not_found, ImageError)},
            operation_id=f"put{kind.title()}Avatar",
            summary=f"Set a {kind}'s picture",
            operation_class=ImageOperation,
            request_max_body_size=MAX_UPLOAD_BYTES,
        )
        async def put_avatar(
            self,
            request: AnyRequest,
            holder_id: Annotated[UUID, PathParameter(name=f"{kind}_id")],
            identity: NamedDependency[Identity],
            avatars: NamedDependency[AvatarService],
        ) -> None:
            """Set the picture: a PNG, JPEG, WebP or GIF. It is encoded again without metadata."""
            await avatars.replace(identity, kind, holder_id, await read_image(request))

        @delete(
            opt={RAISES: (not_found, AvatarNotFoundError)},
            operation_id=f"delete{kind.title()}Avatar",
            summary=f"Delete a {kind}'s picture",
        )
        async def delete_avatar(
            self,
            holder_id: Annotated[UUID, PathParameter(name=f"{kind}_id")],
            identity: NamedDependency[Identity],
            avatars: NamedDependency[AvatarService],
        ) -> None:
            """Delete the picture in both sizes."""
            await avatars.remove(identity, kind, holder_id)

    return AvatarController


AVATAR_CONTROLLERS = (
    build_avatar_controller("character", CharacterNotFoundError),
    build_avatar_controller("persona", PersonaNotFoundError),
)
