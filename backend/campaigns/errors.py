"""Errors of campaigns."""

from __future__ import annotations

from uuid import UUID

from backend.errors import ConflictError, NotFoundError, ValidationError


class CampaignNotFoundError(NotFoundError):
    """The campaign does not exist, or belongs to someone else."""

    slug, title = "campaign-not-found", "Campaign not found"


class CampaignItemNotFoundError(NotFoundError):
    """The campaign has no such item of that kind, or it was deleted."""

    slug, title = "campaign-item-not-found", "Item not found in this campaign"


class CampaignChangeNotFoundError(NotFoundError):
    """The campaign has no such change."""

    slug, title = "campaign-change-not-found", "Change not found in this campaign"


class ProposalNotFoundError(NotFoundError):
    """The campaign has no such proposal."""

    slug, title = "proposal-not-found", "Proposal not found in this campaign"


class ProposalDecidedError(ConflictError):
    """The proposal was decided differently before."""

    slug, title = "proposal-decided", "Proposal already decided"


class ProposalNotToldError(ConflictError):
    """The message of the proposal is not on an active path."""

    slug, title = "proposal-not-told", "The proposal's message is on another branch"


class ProposalTargetGoneError(ConflictError):
    """The item of the proposal was deleted, or exists only on another branch."""

    slug, title = "proposal-target-gone", "The proposal's item no longer exists"


class CampaignVersionNotFoundError(NotFoundError):
    """The campaign has no such version."""

    slug, title = "campaign-version-not-found", "Version not found in this campaign"


class CampaignFullError(ConflictError):
    """A campaign or an account has reached its limit."""

    slug, title = "campaign-full", "Limit reached"


class CampaignFileError(ValidationError):
    """The file is broken, or is not a campaign. The detail says where."""

    slug, title = "unreadable-campaign", "The campaign file could not be read"


class StaleCampaignError(Exception):
    """Some items must be folded before they are read: call `SituationService.fold`."""

    def __init__(self, campaign_id: UUID) -> None:
        super().__init__()
        self.campaign_id = campaign_id
