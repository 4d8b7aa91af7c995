"""Routes of background work: its runs, rebuilds, rolling summaries, scenes and compactions."""

from typing import Any
from uuid import UUID

from litestar import Controller, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import VIEWS
from backend.campaigns.errors import CampaignItemNotFoundError, CampaignNotFoundError
from backend.chats.errors import (
    ChatNotFoundError,
    MemberNotFoundError,
    MessageBusyError,
    MessageNotFoundError,
)
from backend.chats.schemas import MemberBriefing
from backend.chronicles.errors import ChronicleNotFoundError
from backend.core.audience import GM, ViewpointText, read_viewpoint
from backend.enrichment.errors import (
    ChronicleNotEnabledError,
    NothingMissedError,
    NothingToUndoError,
    OtherChronicleError,
    RebuildNotFoundError,
    RebuildUnderWayError,
    RunNotFoundError,
    RunReplacedError,
    RunUndoneError,
    SummaryNotFoundError,
)
from backend.enrichment.schemas import (
    CompactionView,
    EnrichmentView,
    NewCompaction,
    NewRebuild,
    NewSummary,
    RebuildEstimate,
    RunView,
    SummaryChange,
    SummaryView,
    UndoView,
)
from backend.enrichment.service import CompactionService, EnrichmentService, SceneService
from backend.enrichment.summaries.briefing import BriefingService
from backend.enrichment.summaries.service import SummaryService
from backend.errors import PreconditionFailedError
from backend.generation.model import ModelError
from backend.generation.registry import UnknownModelError
from backend.http.connections import ServerStoppingError
from backend.http.schemas import (
    BEGINS_TURN,
    COMMON_RAISES,
    PREVIEWS,
    RAISES,
    STORES,
    IfMatch,
    Page,
    PageSize,
    PlaceCursor,
    tag_view,
)
from backend.jobs.schemas import JobView
from backend.llm.server_slots import ModelBusyError
from backend.lorebooks.errors import LorebookFullError
from backend.quotas.limits import QUEUED_JOBS, TOKENS_PER_DAY
from backend.quotas.service import Quotas


class CompactionController(Controller):
    """`POST /campaigns/{campaign_id}/compact`: bring a campaign up to date by hand."""

    path = "/campaigns/{campaign_id:uuid}/compact"
    tags = ("Campaigns",)

    @post(
        status_code=202,
        opt={RAISES: (CampaignNotFoundError, ChatNotFoundError, ChronicleNotEnabledError)},
        operation_id="compactCampaign",
        summary="Bring a campaign up to date",
    )
    async def compact(
        self,
        campaign_id: FromPath[UUID],
        data: JSONBody[NewCompaction],
        identity: NamedDependency[Identity],
        compactions: NamedDependency[CompactionService],
        quotas: NamedDependency[Quotas],
    ) -> CompactionView:
        """Let a model read the unread messages of a chat, and update the campaign.

        The work follows in a job, which the chat's runs and jobs show. Only messages since the
        owner's consent are read.
        """
        await quotas.check(QUEUED_JOBS, identity.user_id)
        return await compactions.compact(identity, campaign_id, data)


TAGS = ("Chronicles",)
SceneView = VIEWS["scene"]


class EnrichmentController(Controller):
    """`GET /chats/{chat_id}/enrichment`: the background work of a chat."""

    path = "/chats/{chat_id:uuid}/enrichment"
    tags = TAGS

    @get(opt={RAISES: (ChatNotFoundError,)}, summary="Read the status of background tasks")
    async def get_enrichment(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        enrichment: NamedDependency[EnrichmentService],
        limit: PageSize = 20,
        after: FromQuery[UUID | None] = None,
    ) -> EnrichmentView:
        """Return the state of the work, and its runs with their messages, effects and tokens.

        The newest runs come first. Runs of the rolling summary are included.
        """
        return await enrichment.overview(identity, chat_id, limit=limit, after=after)


class RunController(Controller):
    """`/enrichment/runs/{run_id}`: one run, and undoing it."""

    path = "/enrichment/runs/{run_id:uuid}"
    tags = TAGS

    @get(opt={RAISES: (RunNotFoundError,)}, summary="Read a run")
    async def get_run(
        self,
        run_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        enrichment: NamedDependency[EnrichmentService],
    ) -> RunView:
        """Return the messages, the effects and the tokens of a run."""
        return await enrichment.get(identity, run_id)

    @post(
        "/undo",
        status_code=200,
        opt={
            STORES: False,
            RAISES: (
                RunNotFoundError,
                RunUndoneError,
                NothingToUndoError,
                RunReplacedError,
                LorebookFullError,
            ),
        },
        summary="Undo a run",
    )
    async def undo_run(
        self,
        run_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        enrichment: NamedDependency[EnrichmentService],
        force: FromQuery[bool] = False,  # noqa: FBT002  # a query parameter
    ) -> UndoView:
        """Undo everything that a run wrote, in one transaction.

        Items that were changed since are kept and listed in the answer. With `force` they are
        undone, too, even if the run was undone before. The messages of the run are not read again.
        """
        return await enrichment.undo(identity, run_id, force=force)


class RebuildController(Controller):
    """`/chronicles/{chronicle_id}/rebuild`: rebuild a chronicle from a chat."""

    path = "/chronicles/{chronicle_id:uuid}/rebuild"
    tags = TAGS

    @post(
        status_code=202,
        responses={
            200: ResponseSpec(
                RebuildEstimate, generate_examples=False, description="What it would take"
            )
        },
        opt={
            RAISES: (
                ChronicleNotFoundError,
                ChatNotFoundError,
                OtherChronicleError,
                ChronicleNotEnabledError,
                RebuildUnderWayError,
            )
        },
        operation_id="rebuildChronicle",
        summary="Rebuild a chronicle from a chat",
    )
    async def rebuild(
        self,
        chronicle_id: FromPath[UUID],
        data: JSONBody[NewRebuild],
        identity: NamedDependency[Identity],
        enrichment: NamedDependency[EnrichmentService],
        quotas: NamedDependency[Quotas],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002  # a query parameter
    ) -> Response[JobView]:
        """Let the agent read a chat from the start, and replace the chronicle's entries by it.

        It replaces only its own unchanged items, batch by batch. If you stop
        the job, finished batches are kept. Each batch is a run that can be undone. With `dry_run`
        nothing is changed and no model is asked: the answer is 200 with the estimated cost.
        """
        if dry_run:
            estimate: Any = await enrichment.estimate_rebuild(identity, chronicle_id, data)
            return Response(estimate, status_code=200)
        await quotas.check(QUEUED_JOBS, identity.user_id)
        await quotas.check(TOKENS_PER_DAY, identity.user_id)
        return Response(await enrichment.rebuild(identity, chronicle_id, data))

    @get(
        opt={RAISES: (ChronicleNotFoundError, RebuildNotFoundError)},
        operation_id="getRebuild",
        summary="Read the last rebuild",
    )
    async def latest(
        self,
        chronicle_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        enrichment: NamedDependency[EnrichmentService],
    ) -> JobView:
        """Return the job of the last rebuild, for a day after its end."""
        return await enrichment.latest_rebuild(identity, chronicle_id)


class SummaryController(Controller):
    """`/chats/{chat_id}/summary` and `/chats/{chat_id}/summaries`: rolling summaries."""

    path = "/chats/{chat_id:uuid}"
    tags = ("Summaries",)
    opt = {COMMON_RAISES: (ChatNotFoundError,)}  # noqa: RUF012  # Litestar's own declaration

    @get(
        "/summary",
        opt={PREVIEWS: True, RAISES: (SummaryNotFoundError,)},
        summary="Read the summary",
    )
    async def get_summary(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> Response[SummaryView]:
        """Return the summary that covers most of the active path. In a group it is the last piece.

        It never covers messages that were swiped away, edited or deleted. In a campaign with hidden
        information, an audience has its own summary from the first event that not everyone knows.
        Its text includes a public summary that covers more.
        """
        seen = read_viewpoint(viewpoint)
        return tag_view(await summaries.get(identity, chat_id, viewpoint=seen))

    @put(
        "/summary",
        opt={
            RAISES: (MessageNotFoundError, MessageBusyError, PreconditionFailedError),
        },
        summary="Replace the summary",
    )
    async def put_summary(
        self,
        chat_id: FromPath[UUID],
        data: JSONBody[NewSummary],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        viewpoint: FromQuery[ViewpointText | None] = None,
        if_match: IfMatch = None,
    ) -> Response[SummaryView]:
        """Replace the text of the current summary. Later summaries continue it.

        Without a summary, or for one that covers more, name the last message that it covers. With
        `viewpoint` the summary belongs to that audience; `public` is for everyone.

        In a group, the summary has pieces, which begin where presence changes. The piece through
        the named message is changed, or the part of the path around it gets one.
        """
        return tag_view(
            await summaries.put(
                identity,
                chat_id,
                data,
                if_match=if_match,
                viewpoint=None if viewpoint is None else read_viewpoint(viewpoint),
            )
        )

    @delete(
        "/summary",
        opt={RAISES: (SummaryNotFoundError, PreconditionFailedError)},
        summary="Delete the summary",
    )
    async def delete_summary(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        viewpoint: FromQuery[ViewpointText] = GM,
        if_match: IfMatch = None,
    ) -> None:
        """Delete the current summary. The one before it becomes the current one."""
        seen = read_viewpoint(viewpoint)
        await summaries.delete(identity, chat_id, if_match=if_match, viewpoint=seen)

    @get("/summaries", summary="List summaries")
    async def list_summaries(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        limit: PageSize = 20,
        after: PlaceCursor = None,
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> Page[SummaryView]:
        """Return the summaries along the active path, the newest first, above position `after`.

        The first one is the current one. The list contains summaries of `viewpoint` and public
        ones. In a group, these are the pieces that `viewpoint` witnessed completely.
        """
        return await summaries.list_page(
            identity, chat_id, limit=limit, before=after, viewpoint=read_viewpoint(viewpoint)
        )

    @get(
        "/summaries/{summary_id:uuid}",
        opt={RAISES: (SummaryNotFoundError,), PREVIEWS: True},
        operation_id="getOneSummary",
        summary="Read one of the summaries",
    )
    async def get_one_summary(
        self,
        chat_id: FromPath[UUID],
        summary_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
    ) -> Response[SummaryView]:
        """Return a summary of the active path."""
        return tag_view(await summaries.get_one(identity, chat_id, summary_id))

    @put(
        "/summaries/{summary_id:uuid}",
        opt={RAISES: (SummaryNotFoundError, PreconditionFailedError)},
        operation_id="changeOneSummary",
        summary="Change one of the summaries",
    )
    async def put_one_summary(
        self,
        chat_id: FromPath[UUID],
        summary_id: FromPath[UUID],
        data: JSONBody[SummaryChange],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        if_match: IfMatch = None,
    ) -> Response[SummaryView]:
        """Replace the text of a summary of the active path, such as a piece of a group's.

        Its audience and the messages that it covers stay the same.
        """
        return tag_view(
            await summaries.change_one(identity, chat_id, summary_id, data.text, if_match=if_match)
        )

    @delete(
        "/summaries/{summary_id:uuid}",
        opt={RAISES: (SummaryNotFoundError, PreconditionFailedError)},
        operation_id="deleteOneSummary",
        summary="Delete one of the summaries",
    )
    async def delete_one_summary(
        self,
        chat_id: FromPath[UUID],
        summary_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        if_match: IfMatch = None,
    ) -> None:
        """Delete a summary of the active path. A job may write it again."""
        await summaries.delete_one(identity, chat_id, summary_id, if_match=if_match)


class BriefingController(Controller):
    """`POST /chats/{chat_id}/members/{character_id}/briefing`: draft a briefing."""

    path = "/chats/{chat_id:uuid}/members/{character_id:uuid}/briefing"
    tags = ("Chats",)

    @post(
        status_code=200,
        opt={
            STORES: False,
            BEGINS_TURN: True,
            RAISES: (
                ChatNotFoundError,
                MemberNotFoundError,
                NothingMissedError,
                UnknownModelError,
                ModelError,
                ModelBusyError,
                ServerStoppingError,
            ),
        },
        operation_id="draftBriefing",
        summary="Draft what a character that joins is told",
    )
    async def draft_briefing(
        self,
        chat_id: FromPath[UUID],
        character_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        briefings: NamedDependency[BriefingService],
    ) -> MemberBriefing:
        """Let the summary model tell what happened while a character was not there.

        It reads only what everyone who was there has heard: summaries, and the lines after them.
        Nothing is stored, but the tokens are counted. Change the text, and send it as `briefing`
        when the character joins.
        """
        return await briefings.draft(identity, chat_id, character_id)


class SceneController(Controller):
    """`POST /campaigns/{campaign_id}/scenes/{scene_id}/close`: end a scene."""

    path = "/campaigns/{campaign_id:uuid}/scenes/{scene_id:uuid}"
    tags = ("Campaigns",)

    @post(
        "/close",
        status_code=200,
        opt={
            RAISES: (
                CampaignNotFoundError,
                CampaignItemNotFoundError,
                MessageNotFoundError,
                PreconditionFailedError,
            )
        },
        operation_id="closeCampaignScene",
        summary="End a scene",
    )
    async def close_scene(
        self,
        campaign_id: FromPath[UUID],
        scene_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        scenes: NamedDependency[SceneService],
        quotas: NamedDependency[Quotas],
        message_id: FromQuery[UUID | None] = None,
        if_match: IfMatch = None,
    ) -> Response[SceneView]:  # type: ignore[valid-type]
        """End a scene, and compress it into a summary, key moments and their consequences.

        The compression follows in a job and belongs to the scene's last message. With `message_id`
        the scene is closed only while that message is on the active path. A closed scene is
        compressed as far as it is not yet.
        """
        await quotas.check(QUEUED_JOBS, identity.user_id)
        closed: Any = await scenes.close(
            identity,
            campaign_id,
            scene_id,
            if_match=if_match,
            message_id=message_id,
        )
        return tag_view(closed)
