"""Entries of lorebooks: `/lorebooks/{lorebook_id}/entries`."""

from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from backend.accounts.identity import Identity
from backend.errors import PreconditionFailedError
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.entry_service import LoreEntryService
from backend.lorebooks.errors import (
    LorebookFullError,
    LorebookNotFoundError,
    LoreEntryNotFoundError,
)
from backend.lorebooks.schemas import EntryOrder, LoreEntryView, NewLoreEntry
from backend.wire import PATCHES, RAISES, Page, PageSize, PlaceCursor, etag

AnyRequest = Request[Any, Any, Any]
TAGS = ("Lorebooks",)


class LoreEntryController(Controller):
    """Entries of lorebooks."""

    path = "/lorebooks/{lorebook_id:uuid}/entries"
    tags = TAGS

    @get(
        opt={RAISES: (LorebookNotFoundError,)},
        operation_id="listLoreEntries",
        summary="List a lorebook's entries",
    )
    async def list_entries(
        self,
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lore_entries: NamedDependency[LoreEntryService],
        limit: PageSize = 50,
        after: PlaceCursor = None,
    ) -> Page[LoreEntryView]:
        """Entries in their order. `after` is the place behind which the page begins."""
        return await lore_entries.list_page(identity, lorebook_id, limit=limit, after=after)

    @post(
        opt={RAISES: (LorebookNotFoundError, LorebookFullError)},
        operation_id="createLoreEntry",
        summary="Make an entry",
    )
    async def create_entry(
        self,
        lorebook_id: FromPath[UUID],
        data: JSONBody[NewLoreEntry],
        identity: NamedDependency[Identity],
        lore_entries: NamedDependency[LoreEntryService],
    ) -> Response[LoreEntryView]:
        """Put an entry behind the others. What is absent is as World Info has it by default."""
        return _tagged_entry(await lore_entries.create(identity, lorebook_id, data))

    @put(
        "/order",
        status_code=204,
        opt={RAISES: (LorebookNotFoundError,)},
        operation_id="orderLoreEntries",
        summary="Put a lorebook's entries in order",
    )
    async def order_entries(
        self,
        lorebook_id: FromPath[UUID],
        data: JSONBody[EntryOrder],
        identity: NamedDependency[Identity],
        lore_entries: NamedDependency[LoreEntryService],
    ) -> None:
        """Put all entries in this order: how they are listed and exported. Prompts go by `order`.

        Each entry of the lorebook is named once.
        """
        await lore_entries.reorder(identity, lorebook_id, data.entry_ids)

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
        lore_entries: NamedDependency[LoreEntryService],
    ) -> Response[LoreEntryView]:
        """An entry, with all its fields."""
        return _tagged_entry(await lore_entries.get(identity, lorebook_id, entry_id))

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
        lore_entries: NamedDependency[LoreEntryService],
    ) -> Response[LoreEntryView]:
        """Merge into an entry: what is absent stays, null goes back to the default."""
        view = await lore_entries.patch(
            identity, lorebook_id, entry_id, data, if_match=request.headers.get("if-match")
        )
        return _tagged_entry(view)

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
        lore_entries: NamedDependency[LoreEntryService],
    ) -> None:
        """Delete an entry."""
        await lore_entries.delete(
            identity, lorebook_id, entry_id, if_match=request.headers.get("if-match")
        )


def _tagged_entry(view: LoreEntryView) -> Response[LoreEntryView]:
    return Response(view, headers={"ETag": etag(view.revision)})
