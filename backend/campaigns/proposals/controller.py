"""Proposals of campaigns: `/campaigns/{campaign_id}/proposals`."""

from typing import Annotated
from uuid import UUID

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import ProposalView
from backend.campaigns.errors import (
    CampaignFullError,
    CampaignNotFoundError,
    ProposalDecidedError,
    ProposalNotFoundError,
    ProposalNotToldError,
    ProposalTargetGoneError,
)
from backend.campaigns.models import ProposalState
from backend.campaigns.proposals.store import ProposalService
from backend.core.audience import GM, ViewpointText, read_viewpoint
from backend.errors import PreconditionFailedError
from backend.http.schemas import COMMON_RAISES, RAISES, IfMatch, Page, PageSize


class ProposalController(Controller):
    """Proposals: changes that were read from the story and wait for the user's decision."""

    path = "/campaigns/{campaign_id:uuid}/proposals"
    tags = ("Campaigns",)
    opt = {COMMON_RAISES: (CampaignNotFoundError,)}  # noqa: RUF012  # Litestar's own declaration

    @get(operation_id="listCampaignProposals", summary="List proposals")
    async def list_proposals(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaign_proposals: NamedDependency[ProposalService],
        wanted: Annotated[ProposalState, QueryParameter(name="state")] = "open",
        viewpoint: FromQuery[ViewpointText] = GM,
        limit: PageSize = 100,
        after: FromQuery[UUID | None] = None,
    ) -> Page[ProposalView]:
        """List proposals whose message is on an active path, oldest first, with both sides.

        Proposals that would have no effect are omitted, so a page may have fewer than `limit`.
        `viewpoint` omits proposals that `public`, or an entity of the campaign, may not know.
        """
        return await campaign_proposals.list_page(
            identity,
            campaign_id,
            state=wanted,
            viewpoint=read_viewpoint(viewpoint),
            limit=limit,
            after=after,
        )

    @post(
        "/{proposal_id:uuid}/accept",
        status_code=200,
        opt={
            RAISES: (
                ProposalNotFoundError,
                ProposalDecidedError,
                ProposalNotToldError,
                ProposalTargetGoneError,
                PreconditionFailedError,
                CampaignFullError,
            )
        },
        operation_id="acceptCampaignProposal",
        summary="Accept a proposal",
    )
    async def accept_proposal(
        self,
        campaign_id: FromPath[UUID],
        proposal_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaign_proposals: NamedDependency[ProposalService],
        item_id: FromQuery[UUID | None] = None,
        if_match: IfMatch = None,
    ) -> ProposalView:
        """Write a proposal as a change of the user. It is active while its message is.

        Locks are kept. `item_id` chooses one of the candidates. `If-Match` may contain the
        proposal's `revision`.
        """
        return await campaign_proposals.accept(
            identity, campaign_id, proposal_id, item_id=item_id, if_match=if_match
        )

    @post(
        "/{proposal_id:uuid}/refuse",
        status_code=200,
        opt={RAISES: (ProposalNotFoundError, ProposalDecidedError)},
        operation_id="refuseCampaignProposal",
        summary="Reject a proposal",
    )
    async def refuse_proposal(
        self,
        campaign_id: FromPath[UUID],
        proposal_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        campaign_proposals: NamedDependency[ProposalService],
    ) -> ProposalView:
        """Refuse a proposal. It is not proposed again from the same message."""
        return await campaign_proposals.refuse(identity, campaign_id, proposal_id)
