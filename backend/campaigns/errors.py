"""What can go wrong with campaigns."""

from __future__ import annotations

from uuid import UUID

from backend.errors import ConflictError, NotFoundError, ValidationError


class CampaignNotFoundError(NotFoundError):
    """The campaign does not exist or belongs to another user."""

    slug, title = "campaign-not-found", "Campaign not found"


class CampaignItemNotFoundError(NotFoundError):
    """The campaign has no item of this kind with this id, or it was deleted."""

    slug, title = "campaign-item-not-found", "Item not found"


class CampaignChangeNotFoundError(NotFoundError):
    """The campaign has no such change."""

    slug, title = "campaign-change-not-found", "Change not found"


class ProposalNotFoundError(NotFoundError):
    """The campaign has no such proposal."""

    slug, title = "proposal-not-found", "Proposal not found"


class ProposalDecidedError(ConflictError):
    """The proposal was decided differently before."""

    slug, title = "proposal-decided", "The proposal was already decided"


class ProposalNotToldError(ConflictError):
    """The proposal's message is not on the active path of any chat of the campaign."""

    slug, title = "proposal-not-told", "The proposal's message is on another branch"


class ProposalTargetGoneError(ConflictError):
    """The item was deleted, or belongs to another branch."""

    slug, title = "proposal-target-gone", "The item of the proposal no longer exists"


class CampaignVersionNotFoundError(NotFoundError):
    """The campaign has no such version."""

    slug, title = "campaign-version-not-found", "Version not found"


class CampaignFullError(ConflictError):
    """The campaign or the account has reached its limit."""

    slug, title = "campaign-full", "Campaign limit reached"


class CampaignFileError(ValidationError):
    """The file is damaged, or is not a campaign."""

    slug, title = "unreadable-campaign", "The campaign file could not be read"


class StaleCampaignError(Exception):
    """Some items have to be folded again before they are read: call `SituationService.fold`."""

    def __init__(self, campaign_id: UUID) -> None:
        super().__init__()
        self.campaign_id = campaign_id
