"""The work behind the reply: its runs, rebuilding chronicles, and rolling summaries."""

from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import VIEWS
from backend.campaigns.errors import CampaignItemNotFoundError, CampaignNotFoundError
from backend.chats.errors import ChatNotFoundError, MessageBusyError, MessageNotFoundError
from backend.chronicles.errors import ChronicleNotFoundError
from backend.core.audience import GM, ViewpointText, read_viewpoint
from backend.enrichment.errors import (
    ChronicleNotEnabledError,
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
    EnrichmentView,
    NewRebuild,
    NewSummary,
    RebuildEstimate,
    RunView,
    SummaryView,
    UndoView,
)
from backend.enrichment.service import EnrichmentService, SceneService
from backend.enrichment.summaries.service import SummaryService
from backend.errors import PreconditionFailedError
from backend.http.schemas import PREVIEWS, RAISES, STORES, Page, PageSize, PlaceCursor, make_etag
from backend.jobs.schemas import JobView
from backend.lorebooks.errors import LorebookFullError
from backend.quotas.definitions import QUEUED_JOBS, TOKENS_PER_DAY
from backend.quotas.service import Quotas

TAGS = ("Chronicles",)
SceneView = VIEWS["scene"]


class EnrichmentController(Controller):
    """What the agent did behind a chat's replies."""

    path = "/chats/{chat_id:uuid}/enrichment"
    tags = TAGS

    @get(opt={RAISES: (ChatNotFoundError,)}, summary="Look at the work behind the replies")
    async def get_enrichment(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        enrichment: NamedDependency[EnrichmentService],
        limit: PageSize = 20,
        after: FromQuery[UUID | None] = None,
    ) -> EnrichmentView:
        """How the work stands, and what was done: each run with what it read, wrote and took.

        Newest first, the rolling summary's runs among them.
        """
        return await enrichment.overview(identity, chat_id, limit=limit, after=after)


class RunController(Controller):
    """Runs of the agent."""

    path = "/enrichment/runs/{run_id:uuid}"
    tags = TAGS

    @get(opt={RAISES: (RunNotFoundError,)}, summary="Read a run")
    async def get_run(
        self,
        run_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        enrichment: NamedDependency[EnrichmentService],
    ) -> RunView:
        """What a run read and wrote, and what it took."""
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
        """Take back all that a run wrote, at once: what it made goes, all else is as it was.

        What was changed since is left as it is, and named in the answer; with `force` it is taken
        back, too, also of a run that was undone before. What the run read is not read again.
        """
        return await enrichment.undo(identity, run_id, force=force)


class RebuildController(Controller):
    """Writing a chronicle anew."""

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
        """Have the agent read a chat from the start, and put what it finds in place of the old.

        It replaces what it wrote itself and nobody has changed, batch by batch; all else stays.
        Follow the job, or stop it: what is done by then stays. Each batch is a run of its own, to
        be undone. With `dry_run` nothing is done and no model is asked: 200 with what it would
        take.
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
        summary="Look at the last rebuild",
    )
    async def latest(
        self,
        chronicle_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        enrichment: NamedDependency[EnrichmentService],
    ) -> JobView:
        """The job of the chronicle's last rebuild, for a day after it is done."""
        return await enrichment.latest_rebuild(identity, chronicle_id)


class SummaryController(Controller):
    """Rolling summaries of chats."""

    path = "/chats/{chat_id:uuid}"
    tags = ("Summaries",)

    @get(
        "/summary",
        opt={PREVIEWS: True, RAISES: (ChatNotFoundError, SummaryNotFoundError)},
        summary="Read the summary",
    )
    async def get_summary(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> Response[SummaryView]:
        """What is summarised of the active path: the summary that goes furthest.

        It follows the path: of what was swiped away, edited or deleted nothing is summarised.
        `viewpoint` is whose it is. In a campaign with hidden information each audience has its own
        once something happened that not all know; a public one that goes further stands behind it.
        """
        seen = read_viewpoint(viewpoint)
        return _tagged(await summaries.get(identity, chat_id, viewpoint=seen))

    @put(
        "/summary",
        opt={
            RAISES: (
                ChatNotFoundError,
                MessageNotFoundError,
                MessageBusyError,
                PreconditionFailedError,
            ),
        },
        summary="Write the summary",
    )
    async def put_summary(
        self,
        request: Request[Any, Any, Any],
        chat_id: FromPath[UUID],
        data: JSONBody[NewSummary],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        viewpoint: FromQuery[ViewpointText | None] = None,
    ) -> Response[SummaryView]:
        """Say it in other words. The next summary builds on these.

        Without a summary, or for one that goes further than the current one does, name the last
        message that it covers. With `viewpoint` it is that one's own; `public` is for everyone.
        """
        view = await summaries.put(
            identity,
            chat_id,
            data,
            if_match=request.headers.get("if-match"),
            viewpoint=None if viewpoint is None else read_viewpoint(viewpoint),
        )
        return _tagged(view)

    @delete(
        "/summary",
        opt={RAISES: (ChatNotFoundError, SummaryNotFoundError, PreconditionFailedError)},
        summary="Drop the summary",
    )
    async def delete_summary(
        self,
        request: Request[Any, Any, Any],
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> None:
        """Drop the current summary; the one before it, if any, is the current one again.

        `viewpoint` is whose summary it is.
        """
        if_match, seen = request.headers.get("if-match"), read_viewpoint(viewpoint)
        await summaries.delete(identity, chat_id, if_match=if_match, viewpoint=seen)

    @get("/summaries", opt={RAISES: (ChatNotFoundError,)}, summary="List summaries")
    async def list_summaries(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        limit: PageSize = 20,
        after: PlaceCursor = None,
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> Page[SummaryView]:
        """Summaries along the active path, newest first; the page begins above position `after`.

        The first is the current one; the next one down takes its place when it goes. They are those
        for `viewpoint`, and public ones.
        """
        return await summaries.list_page(
            identity, chat_id, limit=limit, before=after, viewpoint=read_viewpoint(viewpoint)
        )


class SceneController(Controller):
    """Scenes of campaigns, beside what `/campaigns/{campaign_id}/scenes` does with all items."""

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
        request: Request[Any, Any, Any],
        campaign_id: FromPath[UUID],
        scene_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        scenes: NamedDependency[SceneService],
        quotas: NamedDependency[Quotas],
        message_id: FromQuery[UUID | None] = None,
    ) -> Response[SceneView]:  # type: ignore[valid-type]
        """End a scene, and have it compressed: a summary, key moments, and what follows from them.

        That is done after this answer, and belongs to the scene's last message. With `message_id`
        the scene is over while that message is told; without one, always. A scene that is over
        already is compressed as far as it is not.
        """
        await quotas.check(QUEUED_JOBS, identity.user_id)
        closed: Any = await scenes.close(
            identity,
            campaign_id,
            scene_id,
            if_match=request.headers.get("if-match"),
            message_id=message_id,
        )
        return Response(closed, headers={"ETag": make_etag(closed.revision)})


def _tagged(view: SummaryView) -> Response[SummaryView]:
    return Response(view, headers={"ETag": make_etag(view.revision)})
