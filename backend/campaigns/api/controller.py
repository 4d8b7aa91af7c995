"""Campaigns: `/campaigns`."""

from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.item_controller import ITEM_CONTROLLERS
from backend.campaigns.api.schemas import (
    CampaignContextView,
    CampaignView,
    ChangePage,
    ChangeView,
    Comparison,
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
    CampaignFullError,
    CampaignNotFoundError,
    CampaignVersionNotFoundError,
)
from backend.campaigns.ledger.change_log import HistoryService
from backend.campaigns.proposals.controller import ProposalController
from backend.campaigns.rules import known_rules
from backend.campaigns.state.situations import SituationService
from backend.chats.errors import ChatNotFoundError, MessageNotFoundError
from backend.chronicles.errors import ChronicleFullError
from backend.core.audience import GM, ViewpointText, read_viewpoint
from backend.errors import PreconditionFailedError
from backend.http.schemas import (
    EXAMPLE,
    MAX_INTEGER,
    PATCHES,
    RAISES,
    Page,
    PageSize,
    PlaceCursor,
    make_etag,
)

AnyRequest = Request[Any, Any, Any]
TAGS = ("Campaigns",)


class CampaignController(Controller):
    """Campaigns as wholes."""

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
        """Campaigns, newest first, with the chats that are their sessions."""
        return await campaigns.list_page(identity, limit=limit, after=after)

    @get("/rules", summary="List rules modules")
    async def list_rules(self) -> Page[RulesView]:
        """The rules that a campaign may be played under, in one page."""
        found = [
            RulesView(
                name=name,
                moods={mood.name: list(mood.variants) for mood in rules.moods().values()},
            )
            for name, rules in sorted(known_rules().items())
        ]
        return Page(items=found, next=None)

    @post(opt={RAISES: (CampaignFullError, ChronicleFullError)}, summary="Create a campaign")
    async def create_campaign(
        self,
        data: JSONBody[NewCampaign],
        identity: NamedDependency[Identity],
        campaigns: NamedDependency[CampaignService],
    ) -> Response[CampaignView]:
        """Make a campaign without people or places, and a chronicle named after it.

        A chat joins by its `campaign_id`; one without a chronicle takes the campaign's.
        """
        return _tagged(await campaigns.create(identity, data))

    @get("/{campaign_id:uuid}", opt={RAISES: (CampaignNotFoundError,)}, summary="Read a campaign")
    async def get_campaign(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaigns: NamedDependency[CampaignService],
    ) -> Response[CampaignView]:
        """A campaign, without its items."""
        return _tagged(await campaigns.get(identity, campaign_id))

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
        request: AnyRequest,
        campaign_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        campaigns: NamedDependency[CampaignService],
        message_id: FromQuery[UUID | None] = None,
    ) -> Response[CampaignView]:
        """Merge into a campaign: what is absent stays, null goes back to the default.

        The day, the time of day and the flags are changes of the ledger, which count while the
        message of `message_id` is told; without one, always.
        """
        if_match = request.headers.get("if-match")
        return _tagged(
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
        request: AnyRequest,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaigns: NamedDependency[CampaignService],
    ) -> None:
        """Delete a campaign with its items and its ledger.

        Its chats stay, as plain chats, and so does its chronicle.
        """
        if_match = request.headers.get("if-match")
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
        """The world as it is now: day, scene, entities nearby, open threads, the last echoes.

        At most 500 entities, and 100 each of threads, clocks and echoes; `more` counts the others.
        `viewpoint` leaves out fields that prompts of `public`, or of an entity, cannot contain.
        """
        return await situations.state(identity, campaign_id, viewpoint=read_viewpoint(viewpoint))

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
        """Both forms of the state block, and which of them a turn with this text would get.

        `viewpoint` shows what `public`, or an entity of the campaign, may know.
        """
        return await situations.context(
            identity,
            campaign_id,
            chat_id=chat_id,
            text=text,
            viewpoint=read_viewpoint(viewpoint),
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
        campaign_history: NamedDependency[HistoryService],
        limit: PageSize = 50,
        before: PlaceCursor = None,
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> ChangePage:
        """Changes, newest first; each says who made it, and whether it counts.

        The ledger is the game master's: for another `viewpoint` it is empty.
        """
        return await campaign_history.changes(
            identity,
            campaign_id,
            limit=limit,
            before=before,
            viewpoint=read_viewpoint(viewpoint),
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
        campaign_history: NamedDependency[HistoryService],
    ) -> ChangeView:
        """Let a change count no longer. What was changed after it stays."""
        return await campaign_history.undo(identity, campaign_id, change_id)

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
        campaign_history: NamedDependency[HistoryService],
        limit: PageSize = 50,
        before: PlaceCursor = None,
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> VersionPage:
        """Versions, newest first: changes that were made together.

        For a `viewpoint` other than `gm` there are none.
        """
        return await campaign_history.versions(
            identity,
            campaign_id,
            limit=limit,
            before=before,
            viewpoint=read_viewpoint(viewpoint),
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
        campaign_history: NamedDependency[HistoryService],
        version: Annotated[int, QueryParameter(ge=1, le=MAX_INTEGER)] = 1,
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> Comparison:
        """Each item that changed since: its fields in that version, and its fields now.

        For a `viewpoint` other than `gm` there are no differences.
        """
        return await campaign_history.compare(
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
        campaign_history: NamedDependency[HistoryService],
    ) -> Response[CampaignView]:
        """Make the world what it was in a version. This is a change too, and can be undone."""
        return _tagged(await campaign_history.restore(identity, campaign_id, data.version))


CONTROLLERS: tuple[type[Controller], ...] = (
    CampaignController,
    *ITEM_CONTROLLERS,
    ProposalController,
)


def _tagged(view: CampaignView) -> Response[CampaignView]:
    return Response(view, headers={"ETag": make_etag(view.version)})
