"""What can go wrong with campaigns."""

from __future__ import annotations

from uuid import UUID

from backend.errors import ConflictError, NotFoundError, ValidationError


class CampaignNotFoundError(NotFoundError):
    """No such campaign, or someone else's."""

    slug, title = "campaign-not-found", "No such campaign"


class CampaignItemNotFoundError(NotFoundError):
    """No such item of that kind in this campaign, or a deleted one."""

    slug, title = "campaign-item-not-found", "No such item in this campaign"


class CampaignChangeNotFoundError(NotFoundError):
    """No such change in this campaign."""

    slug, title = "campaign-change-not-found", "No such change in this campaign"


class ProposalNotFoundError(NotFoundError):
    """No such proposal in this campaign."""

    slug, title = "proposal-not-found", "No such proposal in this campaign"


class ProposalDecidedError(ConflictError):
    """It was decided the other way before."""

    slug, title = "proposal-decided", "The proposal was decided already"


class ProposalNotToldError(ConflictError):
    """No chat of the campaign tells the message any more that the proposal comes from."""

    slug, title = "proposal-not-told", "The proposal's message is on another branch"


class ProposalTargetGoneError(ConflictError):
    """What the proposal would change was deleted, or is of another branch."""

    slug, title = "proposal-target-gone", "What the proposal is about is gone"


class CampaignVersionNotFoundError(NotFoundError):
    """The campaign has not had that version."""

    slug, title = "campaign-version-not-found", "No such version of this campaign"


class CampaignFullError(ConflictError):
    """A campaign, or an account, holds as much as it may."""

    slug, title = "campaign-full", "There is no more room"


class CampaignFileError(ValidationError):
    """The file is broken, or no campaign: the text says where."""

    slug, title = "unreadable-campaign", "The campaign's file could not be read"


class StaleCampaignError(Exception):
    """Some items have to be folded again before they are read: call `SituationService.fold`."""

    def __init__(self, campaign_id: UUID) -> None:
        super().__init__()
        self.campaign_id = campaign_id
