"""Chats as files: `/chats/{chat_id}/export`."""

from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.chats.errors import ChatNotFoundError
from backend.core.audience import GM, ViewpointText, read_viewpoint
from backend.http.schemas import FILES, RAISES, AnyRequest
from backend.transfer.chats.exporting import MEDIA_TYPES, ChatExporter, ExportFormat


class ChatExportController(Controller):
    """Chats as files."""

    path = "/chats/{chat_id:uuid}/export"
    tags = ("Chats",)

    @get(opt={RAISES: (ChatNotFoundError,), FILES: MEDIA_TYPES}, summary="Export a chat")
    async def export_chat(
        self,
        request: AnyRequest,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        chat_exporter: NamedDependency[ChatExporter],
        activity: NamedDependency[ActivityLog],
        file_format: Annotated[ExportFormat, QueryParameter(name="format")] = "jsonl",
        viewpoint: FromQuery[ViewpointText] = GM,
    ) -> Response[Any]:
        """Return a chat as a file, which is streamed.

        `jsonl` is the active path with its swipes, as SillyTavern writes it. An imported chat keeps
        all members of its file. `markdown` and `text` are for people. `archive` is a zip with all
        branches, and the pictures and files of messages. `group` is a zip with the chat, its group
        and the cards of its members in the folders of a SillyTavern user. `viewpoint` limits
        `jsonl`, `markdown` and `text` to messages that `public`, a character or an entity of the
        campaign knows.
        """
        seen = read_viewpoint(viewpoint)
        file = await chat_exporter.open(identity, chat_id, file_format, viewpoint=seen)
        await activity.note(request, "exported", detail="chat")
        return Stream(
            file.chunks,
            media_type=file.media_type,
            headers={
                "Content-Disposition": file.disposition,
                "X-Content-Type-Options": "nosniff",
            },
        )
