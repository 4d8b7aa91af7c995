"""Campaigns as files: `/campaigns/import`, `/campaigns/{campaign_id}/export`."""

from pathlib import PurePosixPath
from typing import Annotated
from uuid import UUID

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.campaigns.errors import (
    CampaignFileError,
    CampaignFullError,
    CampaignNotFoundError,
)
from backend.campaigns.files.transfer import CampaignTransfer, ExportFormat, ImportedCampaign
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    NamedFileOperation,
    file_answer,
    read_upload,
)
from backend.chronicles.errors import ChronicleFullError
from backend.core.audience import GM, ViewpointText, read_viewpoint
from backend.http.schemas import ENDS_WITH_CLIENT, FILES, RAISES, AnyRequest, tag_body


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
        """Make a campaign of a zip: of one that was exported, or of a vault of Markdown files.

        All of it is taken in, or nothing. `name` is what it is called where the file does not say,
        else the file's name. `warnings` name what was not understood; its text is kept.
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
        """A zip of the campaign, from which it is imported to the same state.

        `json` has the ledger and the chats too. `vault` is a folder of Markdown for people and
        programs such as Obsidian; its import begins a ledger of its own. `viewpoint` is for a
        player: the file holds texts that prompts of `public`, or of an entity, can contain, and no
        ledger.
        """
        seen = read_viewpoint(viewpoint)
        file = await campaign_transfer.export(identity, campaign_id, file_format, viewpoint=seen)
        await activity.note(request, "exported", detail="campaign")
        return file_answer(file)
