"""`POST /chats`, and the changes to a chat that touch other domains."""

from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from backend.accounts.identity import Identity
from backend.chats.schemas import ChatView, NewChat
from backend.turns.opening import OpeningService
from backend.wire import etag


class OpeningController(Controller):
    """Opening chats."""

    path = "/chats"
    tags = ("Chats",)

    @post(operation_id="openChat", summary="Open a chat")
    async def open_chat(
        self,
        data: JSONBody[NewChat],
        identity: NamedDependency[Identity],
        opening: NamedDependency[OpeningService],
    ) -> ChatView:
        """Open a chat; the first character's greetings become its first message and its swipes."""
        return await opening.open(identity, data)

    @patch("/{chat_id:uuid}", operation_id="patchChat", summary="Change a chat")
    async def patch_chat(
        self,
        request: Request[Any, Any, Any],
        chat_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        opening: NamedDependency[OpeningService],
    ) -> Response[ChatView]:
        """Change `title`, `persona_id` or `character_ids`; what is absent stays, null clears."""
        view = await opening.patch(
            identity, chat_id, data, if_match=request.headers.get("if-match")
        )
        return Response(view, headers={"ETag": etag(view.revision)})


CONTROLLERS = (OpeningController,)
