"""Routes of lorebooks, their entries, files and links to chats, characters and personas."""

from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, PathParameter, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.characters.errors import CharacterNotFoundError, PersonaNotFoundError
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    NamedFileOperation,
    Upload,
    make_file_response,
    read_upload,
)
from backend.chats.errors import ChatNotFoundError
from backend.errors import AppError, PreconditionFailedError
from backend.http.schemas import (
    COMMON_RAISES,
    ENDS_WITH_CLIENT,
    FILES,
    PATCHES,
    RAISES,
    AnyRequest,
    IfMatch,
    Page,
    PageSize,
    PlaceCursor,
    tag_view,
)
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.errors import (
    LorebookFullError,
    LorebookNotFoundError,
    LorebookNotLinkedError,
    LoreEntryNotFoundError,
    LoreFileError,
    LoreLimitError,
)
from backend.lorebooks.links import Holder, LorebookLinkService
from backend.lorebooks.schemas import (
    ChatLorebookChange,
    ChatLorebookItem,
    ChatLorebookView,
    EntryOrder,
    ExportFormat,
    ImportedLorebook,
    LorebookFields,
    LorebookItem,
    LorebookView,
    LoreEntryView,
    NewLorebook,
    NewLoreEntry,
)
from backend.lorebooks.service import LorebookService

TAGS = ("Lorebooks",)


class LorebookController(Controller):
    path = "/lorebooks"
    tags = TAGS

    @get(summary="List and search lorebooks")
    async def list_lorebooks(
        self,
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
        search: Annotated[str, QueryParameter(max_length=200)] = "",
    ) -> Page[LorebookItem]:
        """List lorebooks, newest first, including those of cards.

        `search` finds names that contain each of its words, ignoring case. A page of a search may
        be short or empty even if `next` is set.
        """
        return await lorebooks.list_page(identity, limit=limit, after=after, search=search)

    @post(opt={RAISES: (LorebookFullError,)}, summary="Create a lorebook")
    async def create_lorebook(
        self,
        data: JSONBody[NewLorebook],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> Response[LorebookView]:
        """Create a lorebook without entries. Null settings fall back to those of the chat."""
        return tag_view(await lorebooks.create(identity, data))

    @post(
        "/import",
        opt={ENDS_WITH_CLIENT: True, RAISES: (LoreFileError, LoreLimitError, LorebookFullError)},
        summary="Import a lorebook file",
        operation_class=NamedFileOperation,
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def import_lorebook(
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> ImportedLorebook:
        """Create a lorebook from a file.

        The format is detected from the content: World Info, `character_book`, `lorebook_v3`, Agnai,
        Risu, NovelAI or Kobold. From a whole card (JSON, PNG, CHARX) only its lorebook is imported.
        `name`, or else the name of the file, is used if the file contains no name. Unknown fields
        are kept and exported again. Either the lorebook and all its entries are stored, or nothing.
        """
        upload = await read_upload(request)
        return await lorebooks.import_file(identity, upload.data, _name(upload))

    @get("/{lorebook_id:uuid}", opt={RAISES: (LorebookNotFoundError,)}, summary="Read a lorebook")
    async def get_lorebook(
        self,
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> Response[LorebookView]:
        """Get a lorebook's settings and links, without its entries."""
        return tag_view(await lorebooks.get(identity, lorebook_id))

    @patch(
        "/{lorebook_id:uuid}",
        opt={RAISES: (LorebookNotFoundError, PreconditionFailedError), PATCHES: LorebookFields},
        summary="Change a lorebook",
    )
    async def patch_lorebook(
        self,
        lorebook_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
        if_match: IfMatch = None,
    ) -> Response[LorebookView]:
        """Change a lorebook's settings. Absent fields are kept, null resets one to its default."""
        return tag_view(await lorebooks.patch(identity, lorebook_id, data, if_match=if_match))

    @delete(
        "/{lorebook_id:uuid}",
        opt={RAISES: (LorebookNotFoundError, PreconditionFailedError)},
        summary="Delete a lorebook",
    )
    async def delete_lorebook(
        self,
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
        if_match: IfMatch = None,
    ) -> None:
        """Delete a lorebook with its entries and links. The character of a card is kept."""
        await lorebooks.delete(identity, lorebook_id, if_match=if_match)

    @get(
        "/{lorebook_id:uuid}/export",
        opt={
            ENDS_WITH_CLIENT: True,
            RAISES: (LorebookNotFoundError,),
            FILES: ("application/json",),
        },
        summary="Export a lorebook file",
        media_type="application/json",
    )
    async def export_lorebook(
        self,
        request: AnyRequest,
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
        activity: NamedDependency[ActivityLog],
        file_format: Annotated[ExportFormat, QueryParameter(name="format")] = "world_info",
    ) -> Response[bytes]:
        """Export the lorebook as a file that other tools read and that can be imported again.

        `v2` is the `character_book` of a card, `v3` a `lorebook_v3`. A lorebook imported from the
        same format is exported unchanged except for edits made here.
        """
        file = await lorebooks.export(identity, lorebook_id, file_format)
        await activity.note(request, "exported", detail="lorebook")
        return make_file_response(file)


class LoreEntryController(Controller):
    path = "/lorebooks/{lorebook_id:uuid}/entries"
    tags = TAGS
    opt = {COMMON_RAISES: (LorebookNotFoundError,)}  # noqa: RUF012  # Litestar's own declaration

    @get(operation_id="listLoreEntries", summary="List a lorebook's entries")
    async def list_entries(
        self,
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
        limit: PageSize = 50,
        after: PlaceCursor = None,
    ) -> Page[LoreEntryView]:
        """List entries in their order. The page begins after the place `after`."""
        return await lorebooks.list_entries(identity, lorebook_id, limit=limit, after=after)

    @post(
        opt={RAISES: (LorebookFullError,)},
        operation_id="createLoreEntry",
        summary="Create an entry",
    )
    async def create_entry(
        self,
        lorebook_id: FromPath[UUID],
        data: JSONBody[NewLoreEntry],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> Response[LoreEntryView]:
        """Create an entry after the others. Absent fields get World Info's defaults."""
        return tag_view(await lorebooks.create_entry(identity, lorebook_id, data))

    @put(
        "/order",
        status_code=204,
        operation_id="orderLoreEntries",
        summary="Reorder a lorebook's entries",
    )
    async def order_entries(
        self,
        lorebook_id: FromPath[UUID],
        data: JSONBody[EntryOrder],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> None:
        """Set the order in which all entries are listed and exported. Prompts use `order`.

        Name each entry of the lorebook exactly once.
        """
        await lorebooks.order_entries(identity, lorebook_id, data.entry_ids)

    @get(
        "/{entry_id:uuid}",
        opt={RAISES: (LoreEntryNotFoundError,)},
        operation_id="getLoreEntry",
        summary="Read an entry",
    )
    async def get_entry(
        self,
        lorebook_id: FromPath[UUID],
        entry_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> Response[LoreEntryView]:
        """Get an entry with all its fields."""
        return tag_view(await lorebooks.get_entry(identity, lorebook_id, entry_id))

    @patch(
        "/{entry_id:uuid}",
        opt={
            RAISES: (LoreEntryNotFoundError, PreconditionFailedError),
            PATCHES: LoreEntry,
        },
        operation_id="patchLoreEntry",
        summary="Change an entry",
    )
    async def patch_entry(
        self,
        lorebook_id: FromPath[UUID],
        entry_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
        if_match: IfMatch = None,
    ) -> Response[LoreEntryView]:
        """Change an entry. Absent fields are kept, null resets one to its default."""
        return tag_view(
            await lorebooks.patch_entry(identity, lorebook_id, entry_id, data, if_match=if_match)
        )

    @delete(
        "/{entry_id:uuid}",
        opt={RAISES: (LoreEntryNotFoundError, PreconditionFailedError)},
        operation_id="deleteLoreEntry",
        summary="Delete an entry",
    )
    async def delete_entry(
        self,
        lorebook_id: FromPath[UUID],
        entry_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
        if_match: IfMatch = None,
    ) -> None:
        """Delete an entry."""
        await lorebooks.delete_entry(identity, lorebook_id, entry_id, if_match=if_match)


View = TypeVar("View", LorebookView, LoreEntryView)


def _name(upload: Upload) -> str:
    return upload.name.strip() or PurePosixPath(upload.filename.replace("\\", "/")).stem


class ChatLorebookController(Controller):
    path = "/chats/{chat_id:uuid}/lorebooks"
    tags = TAGS
    opt = {COMMON_RAISES: (ChatNotFoundError,)}  # noqa: RUF012  # Litestar's own declaration

    @get(operation_id="listChatLorebooks", summary="List a chat's lorebooks")
    async def list_lorebooks(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> Page[ChatLorebookItem]:
        """List the lorebooks of the chat, each once, in one page.

        The order is: linked to the chat, its persona's, its characters' (those of cards first), and
        global ones. Disabled lorebooks are included.
        """
        return await lorebook_links.list_of_chat(identity, chat_id)

    @get(
        "/{lorebook_id:uuid}",
        opt={RAISES: (LorebookNotFoundError,)},
        operation_id="getChatLorebook",
        summary="Read what a chat says of a lorebook",
    )
    async def get_lorebook(
        self,
        chat_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> ChatLorebookView:
        """Get the chat's setting of the lorebook: linked, disabled or none."""
        return await lorebook_links.get_in_chat(identity, chat_id, lorebook_id)

    @put(
        "/{lorebook_id:uuid}",
        opt={RAISES: (LorebookNotFoundError,)},
        operation_id="putChatLorebook",
        summary="Link a lorebook to a chat, or switch it off there",
    )
    async def put_lorebook(
        self,
        chat_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        data: JSONBody[ChatLorebookChange],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> ChatLorebookView:
        """Link the lorebook to the chat, or disable it there despite other links."""
        return await lorebook_links.set_in_chat(identity, chat_id, lorebook_id, data.state)

    @delete(
        "/{lorebook_id:uuid}",
        opt={RAISES: (LorebookNotFoundError, LorebookNotLinkedError)},
        operation_id="deleteChatLorebook",
        summary="Take a chat's link or switch away",
    )
    async def delete_lorebook(
        self,
        chat_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> None:
        """Remove the chat's setting of the lorebook. Other links apply again."""
        await lorebook_links.clear_in_chat(identity, chat_id, lorebook_id)


def build_link_controller(holder: Holder, not_found: type[AppError]) -> type[Controller]:
    """Build the controller of the lorebooks that are linked to characters, or to personas."""
    one = holder.title()

    class LinkController(Controller):
        path = f"/{holder}s/{{{holder}_id:uuid}}/lorebooks"
        tags = TAGS
        opt = {COMMON_RAISES: (not_found,)}  # noqa: RUF012  # Litestar's own declaration

        @get(operation_id=f"list{one}Lorebooks", summary=f"List a {holder}'s lorebooks")
        async def list_lorebooks(
            self,
            holder_id: Annotated[UUID, PathParameter(name=f"{holder}_id")],
            identity: NamedDependency[Identity],
            lorebook_links: NamedDependency[LorebookLinkService],
        ) -> Page[LorebookItem]:
            """List the linked lorebooks in one page. The own lorebook of a card is first."""
            return await lorebook_links.list_linked(identity, holder, holder_id)

        @put(
            "/{lorebook_id:uuid}",
            status_code=204,
            opt={RAISES: (LorebookNotFoundError,)},
            operation_id=f"put{one}Lorebook",
            summary=f"Link a lorebook to a {holder}",
        )
        async def put_lorebook(
            self,
            holder_id: Annotated[UUID, PathParameter(name=f"{holder}_id")],
            lorebook_id: FromPath[UUID],
            identity: NamedDependency[Identity],
            lorebook_links: NamedDependency[LorebookLinkService],
        ) -> None:
            """Link the lorebook. All chats with the character or persona use it."""
            await lorebook_links.link(identity, holder, holder_id, lorebook_id)

        @delete(
            "/{lorebook_id:uuid}",
            opt={RAISES: (LorebookNotFoundError, LorebookNotLinkedError)},
            operation_id=f"delete{one}Lorebook",
            summary=f"Unlink a lorebook from a {holder}",
        )
        async def delete_lorebook(
            self,
            holder_id: Annotated[UUID, PathParameter(name=f"{holder}_id")],
            lorebook_id: FromPath[UUID],
            identity: NamedDependency[Identity],
            lorebook_links: NamedDependency[LorebookLinkService],
        ) -> None:
            """Remove the link. To remove the card's own lorebook, delete or disable it instead."""
            await lorebook_links.unlink(identity, holder, holder_id, lorebook_id)

    return LinkController


LINK_CONTROLLERS = (
    build_link_controller("character", CharacterNotFoundError),
    build_link_controller("persona", PersonaNotFoundError),
)
