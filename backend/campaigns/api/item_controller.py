"""Items of campaigns: `/campaigns/{campaign_id}/entities` and the like."""

# pyright: reportUnknownParameterType=false
# The views of items are generated from their structs, which pyright cannot analyse.

from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import VIEWS, ItemPage
from backend.campaigns.errors import (
    CampaignFullError,
    CampaignItemNotFoundError,
    CampaignNotFoundError,
)
from backend.campaigns.ledger.item_service import ItemFilter, ItemService
from backend.campaigns.ledger.items import STRUCTS, Kind
from backend.campaigns.ledger.records import ItemKey
from backend.chats.errors import MessageNotFoundError
from backend.errors import PreconditionFailedError
from backend.http.schemas import COMMON_RAISES, PATCHES, RAISES, IfMatch, PageSize, tag_view

TAGS = ("Campaigns",)

ITEM_PATHS: dict[Kind, str] = {
    "entity": "entities",
    "thread": "threads",
    "clock": "clocks",
    "fact": "facts",
    "relation": "relations",
    "scene": "scenes",
    "chapter": "chapters",
    "echo": "echoes",
    "term": "glossary",
}


def build_item_controller(kind: Kind) -> type[Controller]:
    """Build the controller of one kind of item. All kinds have the same routes."""
    struct, view, plural = STRUCTS[kind], VIEWS[kind], ITEM_PATHS[kind]
    one = struct.__name__
    names = plural.title()

    class ItemController(Controller):
        path = f"/campaigns/{{campaign_id:uuid}}/{plural}"
        tags = TAGS
        opt = {COMMON_RAISES: (CampaignNotFoundError,)}  # noqa: RUF012  # Litestar's own declaration

        @get(operation_id=f"listCampaign{names}", summary=f"List {plural}")
        async def list_items(  # noqa: PLR0913, PLR0917  # one parameter for each filter of the query
            self,
            campaign_id: FromPath[UUID],
            identity: NamedDependency[Identity],
            campaign_items: NamedDependency[ItemService],
            subkind: Annotated[str | None, QueryParameter(name="kind")] = None,
            at: FromQuery[UUID | None] = None,
            status: FromQuery[str | None] = None,
            q: FromQuery[str | None] = None,
            limit: PageSize = 100,
            after: FromQuery[UUID | None] = None,
        ) -> ItemPage:
            """List items, oldest first; `q` is searched in names and texts."""
            asked = ItemFilter(subkind, at, status, q)
            return await campaign_items.list_items(
                identity, campaign_id, kind, asked, limit=limit, after=after
            )

        @post(
            opt={
                RAISES: (CampaignFullError, MessageNotFoundError),
                PATCHES: struct,
            },
            operation_id=f"createCampaign{one}",
            summary=f"Add to {plural}",
        )
        async def create_item(
            self,
            campaign_id: FromPath[UUID],
            data: JSONBody[dict[str, Any]],
            identity: NamedDependency[Identity],
            campaign_items: NamedDependency[ItemService],
            message_id: FromQuery[UUID | None] = None,
        ) -> Response[view]:  # type: ignore[valid-type]
            """Create an item, as a change of the ledger.

            With `message_id` it exists while that message is on the active path.
            """
            made: Any = await campaign_items.create_item(
                identity, campaign_id, kind, data, message_id=message_id
            )
            return tag_view(made)

        @get(
            "/{item_id:uuid}",
            opt={RAISES: (CampaignItemNotFoundError,)},
            operation_id=f"getCampaign{one}",
            summary=f"Read one of {plural}",
        )
        async def get_item(
            self,
            campaign_id: FromPath[UUID],
            item_id: FromPath[UUID],
            identity: NamedDependency[Identity],
            campaign_items: NamedDependency[ItemService],
        ) -> Response[view]:  # type: ignore[valid-type]
            """Return an item, folded from its active changes."""
            key = ItemKey(campaign_id, kind, item_id)
            item: Any = await campaign_items.get_item(identity, key)
            return tag_view(item)

        @patch(
            "/{item_id:uuid}",
            opt={
                RAISES: (CampaignItemNotFoundError, MessageNotFoundError, PreconditionFailedError),
                PATCHES: struct,
            },
            operation_id=f"patchCampaign{one}",
            summary=f"Change one of {plural}",
        )
        async def patch_item(
            self,
            campaign_id: FromPath[UUID],
            item_id: FromPath[UUID],
            data: JSONBody[dict[str, Any]],
            identity: NamedDependency[Identity],
            campaign_items: NamedDependency[ItemService],
            message_id: FromQuery[UUID | None] = None,
            if_match: IfMatch = None,
        ) -> Response[view]:  # type: ignore[valid-type]
            """Merge a patch into an item, as one change of the ledger.

            With `message_id` it is active while that message is on the active path.
            """
            key = ItemKey(campaign_id, kind, item_id)
            changed: Any = await campaign_items.patch_item(
                identity, key, data, if_match=if_match, message_id=message_id
            )
            return tag_view(changed)

        @delete(
            "/{item_id:uuid}",
            opt={
                RAISES: (CampaignItemNotFoundError, MessageNotFoundError, PreconditionFailedError)
            },
            operation_id=f"deleteCampaign{one}",
            summary=f"Delete one of {plural}",
        )
        async def delete_item(
            self,
            campaign_id: FromPath[UUID],
            item_id: FromPath[UUID],
            identity: NamedDependency[Identity],
            campaign_items: NamedDependency[ItemService],
            message_id: FromQuery[UUID | None] = None,
            if_match: IfMatch = None,
        ) -> None:
            """Delete an item, as a change of the ledger that can be undone.

            With `message_id` it is deleted while that message is on the active path.
            """
            key = ItemKey(campaign_id, kind, item_id)
            await campaign_items.delete_item(
                identity, key, if_match=if_match, message_id=message_id
            )

    return ItemController


ITEM_CONTROLLERS = tuple(build_item_controller(kind) for kind in ITEM_PATHS)
