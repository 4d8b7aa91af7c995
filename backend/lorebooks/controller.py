"""Lorebooks, their entries, and lorebook files in and out: `/lorebooks`."""

from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    NamedFileOperation,
    Upload,
    file_answer,
    read_upload,
)
from backend.errors import PreconditionFailedError
from backend.http.schemas import (
    ENDS_WITH_CLIENT,
    FILES,
    PATCHES,
    RAISES,
    Page,
    PageSize,
    PlaceCursor,
    make_etag,
)
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.errors import (
    LorebookFullError,
    LorebookNotFoundError,
    LoreEntryNotFoundError,
    LoreFileError,
    LoreLimitError,
)
from backend.lorebooks.schemas import (
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

AnyRequest = Request[Any, Any, Any]


class LorebookController(Controller):
    """Lorebooks."""

    path = "/lorebooks"
    tags = ("Lorebooks",)

    @get(summary="List and search lorebooks")
    async def list_lorebooks(
        self,
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
        search: Annotated[str, QueryParameter(max_length=200)] = "",
    ) -> Page[LorebookItem]:
        """Lorebooks, newest first, those of cards among them.

        With `search`, those in whose name each of its words occurs, whatever the case. A page of a
        search may be short, or empty, while `next` leads on.
        """
        return await lorebooks.list_page(identity, limit=limit, after=after, search=search)

    @post(opt={RAISES: (LorebookFullError,)}, summary="Create a lorebook")
    async def create_lorebook(
        self,
        data: JSONBody[NewLorebook],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> Response[LorebookView]:
        """Make a lorebook without entries. Settings that are null are as the chat says."""
        return _tagged(await lorebooks.create(identity, data))

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
        """Make a lorebook of a file.

        World Info, `character_book`, `lorebook_v3`, Agnai, Risu, NovelAI and Kobold are told apart
        by what is in the file; of a whole card (JSON, PNG, CHARX) its lorebook is taken. `name` is
        what it is called where the file does not say, else the file's name. What the file holds
        beyond the fields known here is kept, and comes back on export. The lorebook is stored with
        all its entries or not at all.
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
        """A lorebook's settings and links, without its entries."""
        return _tagged(await lorebooks.get(identity, lorebook_id))

    @patch(
        "/{lorebook_id:uuid}",
        opt={RAISES: (LorebookNotFoundError, PreconditionFailedError), PATCHES: LorebookFields},
        summary="Change a lorebook",
    )
    async def patch_lorebook(
        self,
        request: AnyRequest,
        lorebook_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> Response[LorebookView]:
        """Merge into a lorebook's settings: what is absent stays, null goes back to the default."""
        view = await lorebooks.patch(
            identity, lorebook_id, data, if_match=request.headers.get("if-match")
        )
        return _tagged(view)

    @delete(
        "/{lorebook_id:uuid}",
        opt={RAISES: (LorebookNotFoundError, PreconditionFailedError)},
        summary="Delete a lorebook",
    )
    async def delete_lorebook(
        self,
        request: AnyRequest,
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> None:
        """Delete a lorebook with its entries and links. A card's character goes on without it."""
        await lorebooks.delete(identity, lorebook_id, if_match=request.headers.get("if-match"))

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
        """The lorebook as a file that other tools read, and that imports back to the same.

        `v2` is a card's `character_book` by itself, `v3` a `lorebook_v3`. What came in in the same
        format comes back as it was, but for what was changed here.
        """
        file = await lorebooks.export(identity, lorebook_id, file_format)
        await activity.note(request, "exported", detail="lorebook")
        return file_answer(file)


class LoreEntryController(Controller):
    """Entries of lorebooks."""

    path = "/lorebooks/{lorebook_id:uuid}/entries"
    tags = ("Lorebooks",)

    @get(
        opt={RAISES: (LorebookNotFoundError,)},
        operation_id="listLoreEntries",
        summary="List a lorebook's entries",
    )
    async def list_entries(
        self,
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
        limit: PageSize = 50,
        after: PlaceCursor = None,
    ) -> Page[LoreEntryView]:
        """Entries in their order. `after` is the place behind which the page begins."""
        return await lorebooks.list_entries(identity, lorebook_id, limit=limit, after=after)

    @post(
        opt={RAISES: (LorebookNotFoundError, LorebookFullError)},
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
        """Put an entry behind the others. What is absent is as World Info has it by default."""
        return _tagged(await lorebooks.create_entry(identity, lorebook_id, data))

    @put(
        "/order",
        status_code=204,
        opt={RAISES: (LorebookNotFoundError,)},
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
        """Put all entries in this order: how they are listed and exported. Prompts go by `order`.

        Each entry of the lorebook is named once.
        """
        await lorebooks.order_entries(identity, lorebook_id, data.entry_ids)

    @get(
        "/{entry_id:uuid}",
        opt={RAISES: (LorebookNotFoundError, LoreEntryNotFoundError)},
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
        """An entry, with all its fields."""
        return _tagged(await lorebooks.get_entry(identity, lorebook_id, entry_id))

    @patch(
        "/{entry_id:uuid}",
        opt={
            RAISES: (LorebookNotFoundError, LoreEntryNotFoundError, PreconditionFailedError),
            PATCHES: LoreEntry,
        },
        operation_id="patchLoreEntry",
        summary="Change an entry",
    )
    async def patch_entry(
        self,
        request: AnyRequest,
        lorebook_id: FromPath[UUID],
        entry_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> Response[LoreEntryView]:
        """Merge into an entry: what is absent stays, null goes back to the default."""
        view = await lorebooks.patch_entry(
            identity, lorebook_id, entry_id, data, if_match=request.headers.get("if-match")
        )
        return _tagged(view)

    @delete(
        "/{entry_id:uuid}",
        opt={RAISES: (LorebookNotFoundError, LoreEntryNotFoundError, PreconditionFailedError)},
        operation_id="deleteLoreEntry",
        summary="Delete an entry",
    )
    async def delete_entry(
        self,
        request: AnyRequest,
        lorebook_id: FromPath[UUID],
        entry_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebooks: NamedDependency[LorebookService],
    ) -> None:
        """Delete an entry."""
        await lorebooks.delete_entry(
            identity, lorebook_id, entry_id, if_match=request.headers.get("if-match")
        )


View = TypeVar("View", LorebookView, LoreEntryView)


def _tagged(view: View) -> Response[View]:
    return Response(view, headers={"ETag": make_etag(view.revision)})


def _name(upload: Upload) -> str:
    return upload.name.strip() or PurePosixPath(upload.filename.replace("\\", "/")).stem
