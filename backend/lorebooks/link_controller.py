"""Routes of the lorebooks of chats, characters and personas."""

from uuid import UUID

from litestar import Controller, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from backend.accounts.auth.identity import Identity
from backend.characters.errors import CharacterNotFoundError, PersonaNotFoundError
from backend.chats.errors import ChatNotFoundError
from backend.http.schemas import RAISES, Page
from backend.lorebooks.errors import LorebookNotFoundError, LorebookNotLinkedError
from backend.lorebooks.links import LorebookLinkService
from backend.lorebooks.schemas import (
    ChatLorebookChange,
    ChatLorebookItem,
    ChatLorebookView,
    LorebookItem,
)

TAGS = ("Lorebooks",)


class ChatLorebookController(Controller):
    path = "/chats/{chat_id:uuid}/lorebooks"
    tags = TAGS

    @get(
        opt={RAISES: (ChatNotFoundError,)},
        operation_id="listChatLorebooks",
        summary="List a chat's lorebooks",
    )
    async def list_lorebooks(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> Page[ChatLorebookItem]:
        """List the lorebooks of the chat, each once, in one page.

        The order is: linked to the chat, its persona's, its characters' (those of cards first), and
        global ones. Disabled lorebooks are included.
        """
        return await lorebook_links.list_of_chat(identity, chat_id)

    @get(
        "/{lorebook_id:uuid}",
        opt={RAISES: (ChatNotFoundError, LorebookNotFoundError)},
        operation_id="getChatLorebook",
        summary="Read what a chat says of a lorebook",
    )
    async def get_lorebook(
        self,
        chat_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> ChatLorebookView:
        """Get the chat's setting of the lorebook: linked, disabled or none."""
        return await lorebook_links.get_in_chat(identity, chat_id, lorebook_id)

    @put(
        "/{lorebook_id:uuid}",
        opt={RAISES: (ChatNotFoundError, LorebookNotFoundError)},
        operation_id="putChatLorebook",
        summary="Link a lorebook to a chat, or switch it off there",
    )
    async def put_lorebook(
        self,
        chat_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        data: JSONBody[ChatLorebookChange],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> ChatLorebookView:
        """Link the lorebook to the chat, or disable it there despite other links."""
        return await lorebook_links.set_in_chat(identity, chat_id, lorebook_id, data.state)

    @delete(
        "/{lorebook_id:uuid}",
        opt={RAISES: (ChatNotFoundError, LorebookNotFoundError, LorebookNotLinkedError)},
        operation_id="deleteChatLorebook",
        summary="Take a chat's link or switch away",
    )
    async def delete_lorebook(
        self,
        chat_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> None:
        """Remove the chat's setting of the lorebook. Other links apply again."""
        await lorebook_links.clear_in_chat(identity, chat_id, lorebook_id)


class CharacterLorebookController(Controller):
    path = "/characters/{character_id:uuid}/lorebooks"
    tags = TAGS

    @get(
        opt={RAISES: (CharacterNotFoundError,)},
        operation_id="listCharacterLorebooks",
        summary="List a character's lorebooks",
    )
    async def list_lorebooks(
        self,
        character_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> Page[LorebookItem]:
        """List the card's own lorebook, then the linked ones, in one page."""
        return await lorebook_links.list_linked(identity, "character", character_id)

    @put(
        "/{lorebook_id:uuid}",
        status_code=204,
        opt={RAISES: (CharacterNotFoundError, LorebookNotFoundError)},
        operation_id="putCharacterLorebook",
        summary="Link a lorebook to a character",
    )
    async def put_lorebook(
        self,
        character_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> None:
        """Link the lorebook to the character. All chats of the character use it."""
        await lorebook_links.link(identity, "character", character_id, lorebook_id)

    @delete(
        "/{lorebook_id:uuid}",
        opt={RAISES: (CharacterNotFoundError, LorebookNotFoundError, LorebookNotLinkedError)},
        operation_id="deleteCharacterLorebook",
        summary="Unlink a lorebook from a character",
    )
    async def delete_lorebook(
        self,
        character_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> None:
        """Remove the link. To remove the card's own lorebook, delete or disable it instead."""
        await lorebook_links.unlink(identity, "character", character_id, lorebook_id)


class PersonaLorebookController(Controller):
    path = "/personas/{persona_id:uuid}/lorebooks"
    tags = TAGS

    @get(
        opt={RAISES: (PersonaNotFoundError,)},
        operation_id="listPersonaLorebooks",
        summary="List a persona's lorebooks",
    )
    async def list_lorebooks(
        self,
        persona_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> Page[LorebookItem]:
        """List the lorebooks linked to the persona, in one page."""
        return await lorebook_links.list_linked(identity, "persona", persona_id)

    @put(
        "/{lorebook_id:uuid}",
        status_code=204,
        opt={RAISES: (PersonaNotFoundError, LorebookNotFoundError)},
        operation_id="putPersonaLorebook",
        summary="Link a lorebook to a persona",
    )
    async def put_lorebook(
        self,
        persona_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> None:
        """Link the lorebook to the persona. All chats with the persona use it."""
        await lorebook_links.link(identity, "persona", persona_id, lorebook_id)

    @delete(
        "/{lorebook_id:uuid}",
        opt={RAISES: (PersonaNotFoundError, LorebookNotFoundError, LorebookNotLinkedError)},
        operation_id="deletePersonaLorebook",
        summary="Unlink a lorebook from a persona",
    )
    async def delete_lorebook(
        self,
        persona_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> None:
        """Remove the link."""
        await lorebook_links.unlink(identity, "persona", persona_id, lorebook_id)
