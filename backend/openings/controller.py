"""`POST /chats`, and the changes to a chat that touch other domains."""

from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from backend.accounts.identity import Identity
from backend.characters.errors import CharacterNotFoundError, PersonaNotFoundError
from backend.chats.errors import ChatNotFoundError, MessageTooLongError
from backend.chats.schemas import ChatPatch, ChatView, NewChat
from backend.context.macros import MacroLimitError
from backend.errors import PreconditionFailedError
from backend.generation.registry import UnknownModelError
from backend.openings.service import OpeningService
from backend.turns.errors import OpeningTooLongError
from backend.wire import EXAMPLE, PATCHES, RAISES, etag


class OpeningController(Controller):
    """Opening chats."""

    path = "/chats"
    tags = ("Chats",)

    @post(
        opt={
            RAISES: (
                CharacterNotFoundError,
                PersonaNotFoundError,
                MessageTooLongError,
                OpeningTooLongError,
                MacroLimitError,
                UnknownModelError,
            ),
            EXAMPLE: {"character_ids": [], "title": "The lighthouse"},
        },
        operation_id="openChat",
        summary="Open a chat",
    )
    async def open_chat(
        self,
        data: JSONBody[NewChat],
        identity: NamedDependency[Identity],
        opening: NamedDependency[OpeningService],
    ) -> ChatView:
        """Open a chat; the first character's greetings become its first message and its swipes."""
        return await opening.open(identity, data)

    @patch(
        "/{chat_id:uuid}",
        opt={
            RAISES: (
                ChatNotFoundError,
                CharacterNotFoundError,
                PersonaNotFoundError,
                PreconditionFailedError,
            ),
            PATCHES: ChatPatch,
            EXAMPLE: {"title": "The storm", "persona_id": None},
        },
        operation_id="patchChat",
        summary="Change a chat",
    )
    async def patch_chat(
        self,
        request: Request[Any, Any, Any],
        chat_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        opening: NamedDependency[OpeningService],
    ) -> Response[ChatView]:
        """Change `title`, `persona_id` or `character_ids`; what is absent stays, null clears.

        A title of null is the default again: the names of the characters.
        """
        view = await opening.patch(
            identity, chat_id, data, if_match=request.headers.get("if-match")
        )
        return Response(view, headers={"ETag": etag(view.revision)})


CONTROLLERS = (OpeningController,)
