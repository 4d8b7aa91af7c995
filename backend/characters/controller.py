"""Characters: `/characters`, their pictures, and card files in and out."""

from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.characters.cards.model import Card
from backend.characters.cards.writer import ExportSpec
from backend.characters.errors import (
    AvatarNotFoundError,
    CardError,
    CardLimitError,
    CharacterNotFoundError,
    ImageError,
    NoCardError,
)
from backend.characters.schemas import (
    AvatarSize,
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
    file_answer,
    picture_answer,
    read_file,
    read_image,
)
from backend.errors import ConflictError, PreconditionFailedError
from backend.http.schemas import (
    ENDS_WITH_CLIENT,
    FILES,
    PATCHES,
    RAISES,
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
        """Characters, newest first.

        With `search`, those in whose name, nickname, creator or tags each of its words occurs,
        whatever the case. A page of a search may be short, or empty, while `next` leads on.
        """
        return await characters.list_page(identity, limit=limit, after=after, search=search)

    @post(opt={RAISES: (CardError, CardLimitError)}, summary="Create a character")
    async def create_character(
        self,
        data: JSONBody[NewCharacter],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
    ) -> Response[CharacterView]:
        """Make a character of the fields of a card (Character Card V3)."""
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
        """Make a character of a PNG, CHARX, JSON or YAML card of any version.

        Characters of Agnai, Backyard (also `.byaf`), Chub, Character.AI and RisuAI are translated.
        Members without a field here are kept for the export, and `warnings` name them. Another
        kind of file is refused by its name. A file that is refused changes nothing.
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
        """A character, with all fields of its card."""
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
            PATCHES: Card,
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
        """Merge into the card's fields: what is absent stays, null goes back to the default."""
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
        """Delete a character with its picture and files. Chats that it took part in stay."""
        await characters.delete(identity, character_id, if_match=if_match)

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
        """Let the regex scripts that a card brings run, or not. Until then they don't.

        They are `extensions.regex_scripts` of the card. Changed ones have to be allowed again.
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
        """The card as a file that other tools read, and that imports back to the same.

        A PNG carries the card as version 3 and as version 2, a CHARX archive as version 3 with
        every file that came with it; `spec` chooses for JSON alone. A character without a picture
        gets a placeholder in a PNG. JSON and PNG leave an archive's files out, and name them as the
        card does.
        """
        file = await characters.export(identity, character_id, file_format=file_format, spec=spec)
        await activity.note(request, "exported", detail="character")
        return file_answer(file)

    @get(
        "/{character_id:uuid}/avatar",
        opt={RAISES: (CharacterNotFoundError, AvatarNotFoundError), FILES: ("image/webp",)},
        operation_id="getCharacterAvatar",
        summary="Read a character's picture",
        media_type="image/webp",
    )
    async def get_avatar(
        self,
        request: AnyRequest,
        character_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
        size: FromQuery[AvatarSize] = "full",
    ) -> Response[bytes]:
        """The picture, at most 1,024 pixels a side, or its thumbnail, at most 256."""
        return picture_answer(request, await characters.avatars.read(identity, character_id, size))

    @put(
        "/{character_id:uuid}/avatar",
        status_code=204,
        opt={RAISES: (CharacterNotFoundError, ImageError)},
        operation_id="putCharacterAvatar",
        summary="Set a character's picture",
        operation_class=ImageOperation,
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def put_avatar(
        self,
        request: AnyRequest,
        character_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
    ) -> None:
        """Set the picture: a PNG, JPEG, WebP or GIF, which is encoded anew without metadata."""
        await characters.avatars.replace(identity, character_id, await read_image(request))

    @delete(
        "/{character_id:uuid}/avatar",
        opt={RAISES: (CharacterNotFoundError, AvatarNotFoundError)},
        operation_id="deleteCharacterAvatar",
        summary="Delete a character's picture",
    )
    async def delete_avatar(
        self,
        character_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        characters: NamedDependency[CharacterService],
    ) -> None:
        """Delete the picture, in both sizes."""
        await characters.avatars.remove(identity, character_id)
