"""Campaigns, their items, their rules, and their files: `/campaigns`."""

from pathlib import PurePosixPath
from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.campaigns.api.schemas import (
    VIEWS,
    CampaignContextView,
    CampaignView,
    ChangePage,
    ChangeView,
    Comparison,
    ItemPage,
    NewCampaign,
    Restore,
    RulesView,
    StateView,
    VersionPage,
    WorldPatch,
)
from backend.campaigns.api.service import CampaignService
from backend.campaigns.errors import (
    CampaignChangeNotFoundError,
    CampaignFileError,
    CampaignFullError,
    CampaignItemNotFoundError,
    CampaignNotFoundError,
    CampaignVersionNotFoundError,
)
from backend.campaigns.files.transfer import CampaignTransfer, ExportFormat, ImportedCampaign
from backend.campaigns.ledger.change_log import ChangeLogService
from backend.campaigns.ledger.item_service import ItemFilter, ItemService
from backend.campaigns.ledger.items import STRUCTS, Kind
from backend.campaigns.ledger.records import ItemKey
from backend.campaigns.proposals.controller import ProposalController
from backend.campaigns.rules.protocol import load_rules
from backend.campaigns.state.situations import SituationService
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    NamedFileOperation,
    make_file_response,
    read_upload,
)
from backend.chats.errors import ChatNotFoundError, MessageNotFoundError
from backend.chronicles.errors import ChronicleFullError
from backend.core.audience import GM, ViewpointText, read_viewpoint
from backend.errors import PreconditionFailedError
from backend.http.schemas import (
    COMMON_RAISES,
    ENDS_WITH_CLIENT,
    EXAMPLE,
    FILES,
    MAX_INTEGER,
    PATCHES,
    RAISES,
    AnyRequest,
    IfMatch,
    Page,
    PageSize,
    PlaceCursor,
    tag_body,
    tag_view,
)

TAGS = ("Campaigns",)


class CampaignController(Controller):
    """Campaigns: list, create, edit, delete, and their state and change log."""

    path = "/campaigns"
    tags = TAGS

    @get(summary="List campaigns")
    async def list_campaigns(
        self,
        identity: NamedDependency[Identity],
        campaigns: NamedDependency[CampaignService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[CampaignView]:
        """List campaigns, newest first, with the chats that are their sessions."""
        return await campaigns.list_page(identity, limit=limit, after=after)

    @get("/rules", summary="List rules modules")
    async def list_rules(self) -> Page[RulesView]:
        """List the available rule systems in one page."""
        found = [
            RulesView(
                name=name,
                title=rules.title or name,
                moods={mood.name: list(mood.variants) for mood in rules.moods},
            )
            for name, rules in sorted(load_rules().items())
        ]
        return Page(items=found, next=None)

    @post(opt={RAISES: (CampaignFullError, ChronicleFullError)}, summary="Create a campaign")
    async def create_campaign(
        self,
        data: JSONBody[NewCampaign],
        identity: NamedDependency[Identity],
        campaigns: NamedDependency[CampaignService],
    ) -> Response[CampaignView]:
        """Create a campaign without items, and a chronicle with the same name.

        A chat joins by its `campaign_id`. A chat without a chronicle gets the campaign's.
        """
        return _tag_view(await campaigns.create(identity, data))

    @get("/{campaign_id:uuid}", opt={RAISES: (CampaignNotFoundError,)}, summary="Read a campaign")
    async def get_campaign(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaigns: NamedDependency[CampaignService],
    ) -> Response[CampaignView]:
        """Return a campaign without its items."""
        return _tag_view(await campaigns.get(identity, campaign_id))

    @patch(
        "/{campaign_id:uuid}",
        opt={
            RAISES: (CampaignNotFoundError, MessageNotFoundError, PreconditionFailedError),
            PATCHES: WorldPatch,
            EXAMPLE: {"day": 6, "time_of_day": "dusk", "settings": {"memory_interval": 6}},
        },
        summary="Change a campaign",
    )
    async def patch_campaign(
        self,
        campaign_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        campaigns: NamedDependency[CampaignService],
        message_id: FromQuery[UUID | None] = None,
        if_match: IfMatch = None,
    ) -> Response[CampaignView]:
        """Merge a patch into a campaign: absent fields are kept, null restores the default.

        Day, time of day and flags are changed through the ledger. The changes are active while the
        message of `message_id` is; without one, always.
        """
        return _tag_view(
            await campaigns.patch(
                identity, campaign_id, data, if_match=if_match, message_id=message_id
            )
        )

    @delete(
        "/{campaign_id:uuid}",
        opt={RAISES: (CampaignNotFoundError, PreconditionFailedError)},
        summary="Delete a campaign",
    )
    async def delete_campaign(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaigns: NamedDependency[CampaignService],
        if_match: IfMatch = None,
    ) -> None:
        """Delete a campaign with its items and its ledger.

        Its chats and its chronicle are kept.
        """
        await campaigns.delete(identity, campaign_id, if_match=if_match)

    @get(
        "/{campaign_id:uuid}/state",
        opt={RAISES: (CampaignNotFoundError,)},
        operation_id="getCampaignState",
        summary="Read the state",
    )
    async def get_state(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        situations: NamedDependency[SituationService],
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> StateView:
        """Return the present state of the world: day, scene, nearby entities, open threads, echoes.

        At most 500 entities, and 100 each of threads, clocks and echoes; `more` counts the others.
        `viewpoint` omits fields that prompts of `public`, of an entity, or of a character of a chat
        cannot contain.
        """
        return await situations.load_state(
            identity, campaign_id, viewpoint=read_viewpoint(viewpoint)
        )

    @get(
        "/{campaign_id:uuid}/context",
        opt={RAISES: (CampaignNotFoundError, ChatNotFoundError)},
        operation_id="getCampaignContext",
        summary="Preview the state block",
    )
    async def get_context(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        situations: NamedDependency[SituationService],
        chat_id: FromQuery[UUID | None] = None,
        text: FromQuery[str] = "",
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> CampaignContextView:
        """Return both forms of the state block, and the form that a turn with this text would get.

        `viewpoint` limits it to the knowledge of `public`, of an entity of the campaign, or of a
        character of a chat.
        """
        return await situations.load_context(
            identity, campaign_id, chat_id=chat_id, text=text, viewpoint=read_viewpoint(viewpoint)
        )

    @get(
        "/{campaign_id:uuid}/changes",
        opt={RAISES: (CampaignNotFoundError,)},
        operation_id="listCampaignChanges",
        summary="List changes",
    )
    async def list_changes(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaign_changes: NamedDependency[ChangeLogService],
        limit: PageSize = 50,
        before: PlaceCursor = None,
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> ChangePage:
        """List changes, newest first, with their actor and whether they are active.

        Only the game master sees the ledger: for another `viewpoint` it is empty.
        """
        return await campaign_changes.list_changes(
            identity, campaign_id, limit=limit, before=before, viewpoint=read_viewpoint(viewpoint)
        )

    @post(
        "/{campaign_id:uuid}/changes/{change_id:uuid}/undo",
        status_code=200,
        opt={RAISES: (CampaignNotFoundError, CampaignChangeNotFoundError)},
        operation_id="undoCampaignChange",
        summary="Undo a change",
    )
    async def undo_change(
        self,
        campaign_id: FromPath[UUID],
        change_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaign_changes: NamedDependency[ChangeLogService],
    ) -> ChangeView:
        """Undo one change. Later changes are kept."""
        return await campaign_changes.undo(identity, campaign_id, change_id)

    @get(
        "/{campaign_id:uuid}/versions",
        opt={RAISES: (CampaignNotFoundError,)},
        operation_id="listCampaignVersions",
        summary="List versions",
    )
    async def list_versions(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaign_changes: NamedDependency[ChangeLogService],
        limit: PageSize = 50,
        before: PlaceCursor = None,
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> VersionPage:
        """List versions, newest first. A version is the changes that were made together.

        For a `viewpoint` other than `gm` there are none.
        """
        return await campaign_changes.list_versions(
            identity, campaign_id, limit=limit, before=before, viewpoint=read_viewpoint(viewpoint)
        )

    @get(
        "/{campaign_id:uuid}/comparison",
        opt={RAISES: (CampaignNotFoundError, CampaignVersionNotFoundError)},
        operation_id="compareCampaignVersion",
        summary="Compare a version",
    )
    async def compare_version(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaign_changes: NamedDependency[ChangeLogService],
        version: Annotated[int, QueryParameter(ge=1, le=MAX_INTEGER)] = 1,
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> Comparison:
        """List the items that changed since a version, with their fields then and now.

        For a `viewpoint` other than `gm` there are no differences.
        """
        return await campaign_changes.compare(
            identity, campaign_id, version, viewpoint=read_viewpoint(viewpoint)
        )

    @post(
        "/{campaign_id:uuid}/restore",
        status_code=200,
        opt={
            RAISES: (CampaignNotFoundError, CampaignVersionNotFoundError),
            EXAMPLE: {"version": 1},
        },
        operation_id="restoreCampaignVersion",
        summary="Restore a version",
    )
    async def restore_version(
        self,
        campaign_id: FromPath[UUID],
        data: JSONBody[Restore],
        identity: NamedDependency[Identity],
        campaign_changes: NamedDependency[ChangeLogService],
    ) -> Response[CampaignView]:
        """Restore the world's state of a version. The restore is a change that can be undone."""
        return _tag_view(await campaign_changes.restore(identity, campaign_id, data.version))


def _tag_view(view: CampaignView) -> Response[CampaignView]:
    return tag_body(view, view.version)


class CampaignTransferController(Controller):
    """Campaigns as zip files."""

    path = "/campaigns"
    tags = ("Campaigns",)

    @post(
        "/import",
        opt={
            ENDS_WITH_CLIENT: True,
            RAISES: (CampaignFileError, CampaignFullError, ChronicleFullError),
        },
        summary="Import a campaign",
        operation_class=NamedFileOperation,
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def import_campaign(
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        campaign_transfer: NamedDependency[CampaignTransfer],
    ) -> Response[ImportedCampaign]:
        """Make a campaign from a zip: an exported one, or a vault of Markdown files.

        Everything is imported, or nothing. If the file names no campaign, it is called `name`, or
        else like the file. `warnings` name the parts that were not understood; their text is kept.
        """
        upload = await read_upload(request)
        stem = PurePosixPath(upload.filename.replace("\\", "/")).stem
        made = await campaign_transfer.import_new(
            identity, upload.data, upload.name.strip() or stem
        )
        return tag_body(made, made.version)

    @get(
        "/{campaign_id:uuid}/export",
        opt={
            ENDS_WITH_CLIENT: True,
            RAISES: (CampaignNotFoundError, CampaignFileError),
            FILES: ("application/zip",),
        },
        summary="Export a campaign",
        media_type="application/zip",
    )
    async def export_campaign(
        self,
        request: AnyRequest,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaign_transfer: NamedDependency[CampaignTransfer],
        activity: NamedDependency[ActivityLog],
        file_format: Annotated[ExportFormat, QueryParameter(name="format")] = "json",
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> Response[bytes]:
        """Return a zip of the campaign. Importing it restores the same state.

        `json` includes the ledger and the chats. `vault` is a folder of Markdown for people and
        programs such as Obsidian; its import begins a new ledger. With a player's `viewpoint`, the
        file has no ledger, and only texts that prompts of `public` or of an entity can contain.
        """
        seen = read_viewpoint(viewpoint)
        file = await campaign_transfer.export(identity, campaign_id, file_format, viewpoint=seen)
        await activity.note(request, "exported", detail="campaign")
        return make_file_response(file)


# pyright: reportUnknownParameterType=false
# The views of items are generated from their structs, which pyright cannot analyse.


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


CONTROLLERS: tuple[type[Controller], ...] = (
    CampaignController,
    *map(build_item_controller, ITEM_PATHS),
    ProposalController,
    CampaignTransferController,
)
