"""Lines that are written directly into the database."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import select

from backend.accounts.auth.identity import Identity
from backend.chats import repository, tree
from backend.chats.drafts import MessageDraft, make_message
from backend.chats.models import Message
from backend.chats.token_counting import CountUnit
from tests.support.server import Account, Running

COOKIE = "talekeeper_session"


async def identity_of(server: Running, ada: Account) -> Identity:
    """Return the identity of an account, with its keys."""
    identity = await server.parts.sessions.authenticate(ada.client.cookies[COOKIE], "session")
    assert identity is not None
    return identity


async def seed(
    server: Running,
    ada: Account,
    chat_id: str,
    texts: Iterable[str],
    *,
    hidden: frozenset[int] = frozenset(),
) -> list[Message]:
    """Add lines of the user and the character, in turn, to the end of a chat.

    `hidden` are indexes of `texts` that prompts leave out.
    """
    identity = await identity_of(server, ada)
    made: list[Message] = []
    async with server.parts.database.write() as session:
        chat = await repository.get_chat(
            session, UUID(chat_id), owner_id=identity.user_id, lock=True
        )
        unit = CountUnit.parse(chat.count_unit)
        above = await session.get(Message, chat.leaf_id) if chat.leaf_id else None
        for place, text in enumerate(texts):
            by_user = above is None or above.role == "assistant"
            line = make_message(
                identity.sealer,
                MessageDraft(
                    role="user" if by_user else "assistant",
                    author=ada.name if by_user else "Mara",
                    text=text,
                ),
                unit=unit,
            )
            line.hidden = place in hidden
            await tree.attach_message(session, chat, line, parent=above)
            made.append(line)
            above = line
    return made


async def stored_lines(server: Running, chat_id: str) -> list[Message]:
    """Return the messages of the active path, from the root."""
    query = (
        select(Message)
        .where(Message.chat_id == UUID(chat_id), Message.is_active)
        .order_by(Message.position)
    )
    async with server.parts.database.read() as session:
        return list(await session.scalars(query))
