"""Routes of the memories of characters: `/characters/{character_id}/memories`."""

from typing import Annotated
from uuid import UUID

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.characters.errors import CharacterNotFoundError
from backend.chats.errors import ChatNotFoundError
from backend.chronicles.errors import ChronicleFullError
from backend.chronicles.memories import CharacterMemoryService
from backend.chronicles.schemas import CharacterMemory, NewMemory
from backend.http.schemas import RAISES, Page, PageSize


class CharacterMemoryController(Controller):
    """The memories of a character."""

    path = "/characters/{character_id:uuid}/memories"
    tags = ("Characters",)

    @get(
        opt={RAISES: (CharacterNotFoundError, ChatNotFoundError)},
        summary="List a character's memories",
    )
    async def list_memories(
        self,
        character_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        character_memories: NamedDependency[CharacterMemoryService],
        chat_id: FromQuery[UUID | None] = None,
        limit: PageSize = 50,
        after: Annotated[str | None, QueryParameter(max_length=100)] = None,
    ) -> Page[CharacterMemory]:
        """List the current events that a member of a chat knows, newest first.

        Without `chat_id`, the chat is the character's one that was changed last.
        They are those of the chat's chronicle, and with `keeps_memories` also those of the
        character's other chats. Messages are not listed. Change and delete a memory as an event of
        its chronicle.
        """
        return await character_memories.list_page(
            identity, character_id, chat_id, limit=limit, after=after
        )

    @post(
        opt={
            RAISES: (CharacterNotFoundError, ChatNotFoundError, ChronicleFullError),
        },
        summary="Add a memory to a character",
    )
    async def add_memory(
        self,
        character_id: FromPath[UUID],
        data: JSONBody[NewMemory],
        identity: NamedDependency[Identity],
        character_memories: NamedDependency[CharacterMemoryService],
    ) -> Response[CharacterMemory]:
        """Add an event that only this member of a chat knows.

        If the chat has no chronicle, one is created. This does not allow the agent to write it.
        """
        return Response(await character_memories.add(identity, character_id, data))
