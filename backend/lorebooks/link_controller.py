"""Lorebooks of chats, characters and personas: links, and switches of a chat."""

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
    """Lorebooks of a chat."""

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
        """The lorebooks that the chat has, each once, in one page.

        First those linked to the chat, then its persona's, its characters' (the cards' own before
        others), and the global ones. Those that are switched off here are shown, too.
        """
        return await lorebook_links.list_of_chat(identity, chat_id)

    @get(
        "/{lorebook_id:uuid}",
        opt={RAISES: (ChatNotFoundError, LorebookNotFoundError)},
        operation_id="getChatLorebook",
        summary="Read a chat's lorebook link",
    )
    async def get_lorebook(
        self,
        chat_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> ChatLorebookView:
        """Whether the lorebook is linked to the chat or switched off there."""
        return await lorebook_links.in_chat(identity, chat_id, lorebook_id)

    @put(
        "/{lorebook_id:uuid}",
        opt={RAISES: (ChatNotFoundError, LorebookNotFoundError)},
        operation_id="putChatLorebook",
        summary="Link a lorebook to a chat, or turn it off there",
    )
    async def put_lorebook(
        self,
        chat_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        data: JSONBody[ChatLorebookChange],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> ChatLorebookView:
        """`linked` or `off`. What is off is off for this chat, however else it is linked."""
        return await lorebook_links.set_in_chat(identity, chat_id, lorebook_id, data.state)

    @delete(
        "/{lorebook_id:uuid}",
        opt={RAISES: (ChatNotFoundError, LorebookNotFoundError, LorebookNotLinkedError)},
        operation_id="deleteChatLorebook",
        summary="Remove a chat's lorebook link or switch",
    )
    async def delete_lorebook(
        self,
        chat_id: FromPath[UUID],
        lorebook_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        lorebook_links: NamedDependency[LorebookLinkService],
    ) -> None:
        """The chat says nothing more of the lorebook; other links to it count again."""
        await lorebook_links.clear_in_chat(identity, chat_id, lorebook_id)


class CharacterLorebookController(Controller):
    """Lorebooks of a character."""

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
        """The card's own lorebook, then those linked, in one page."""
        return await lorebook_links.list_of(identity, "character", character_id)

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
        """Every chat that the character takes part in has the lorebook."""
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
        """Take the link away. The card's own lorebook is no link: delete it, or switch it off."""
        await lorebook_links.unlink(identity, "character", character_id, lorebook_id)


class PersonaLorebookController(Controller):
    """Lorebooks of a persona."""

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
        """The lorebooks linked to the persona, in one page."""
        return await lorebook_links.list_of(identity, "persona", persona_id)

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
        """Every chat with the persona has the lorebook."""
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
        """Take the link away."""
        await lorebook_links.unlink(identity, "persona", persona_id, lorebook_id)
