"""The sealed state of clients' chats."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats import repository
from backend.chats.errors import ChatNotFoundError
from backend.chats.models import MESSAGE_CONTENT, Chat, Message
from backend.chats.text_digests import TextDigester
from backend.database.base import now, upsert
from backend.database.engine import Database
from backend.openai_api.choices import ReplyParts, fold_choices, list_part_forms
from backend.openai_api.contracts import ClientState, Line, ReplyPart
from backend.openai_api.models import CLIENT_CHAT_STATE, ClientChat
from backend.turns.models import Turn
from backend.vault.sealing import Sealer

MAX_PARTS: Final = 400
"""Parts of replies that a chat remembers. The newest are kept."""

MAX_RESUMED: Final = 10
"""Turns of one reply that a chat remembers. SDKs send a request three times by default."""

MAX_PLAYED_CHATS: Final = 20
"""Chats of campaigns with parts that are compared with a list, the last played ones."""

_STATE = select(ClientChat.sealed_state).where(
    ClientChat.id == bindparam("chat_id"), ClientChat.user_id == bindparam("owner_id")
)
_PLAYED = (
    select(ClientChat.id, ClientChat.sealed_state)
    .join(Chat, Chat.id == ClientChat.id)
    .where(ClientChat.user_id == bindparam("owner_id"), Chat.campaign_id.is_not(None))
    .order_by(ClientChat.updated_at.desc())
    .limit(MAX_PLAYED_CHATS)
)
_WAITING = select(Turn.id).where(Turn.reply_id == Message.id, Turn.state == "waiting").exists()
_REPLIES = select(
    Message.id, Message.chat_id, Message.sealed_content, _WAITING.label("is_waiting")
).where(
    Message.id.in_(bindparam("reply_ids", expanding=True)),
    Message.user_id == bindparam("owner_id"),
)


async def load_state(session: AsyncSession, sealer: Sealer, chat_id: UUID) -> ClientState:
    values = {"chat_id": chat_id, "owner_id": sealer.user_id}
    sealed = await session.scalar(_STATE, values)
    return _open(sealer, chat_id, sealed) if sealed is not None else ClientState()


async def save_state(
    session: AsyncSession, sealer: Sealer, chat_id: UUID, state: ClientState
) -> None:
    """Store the state of a chat. The chat's row is locked."""
    values = {
        "id": chat_id,
        "user_id": sealer.user_id,
        "sealed_state": sealer.seal_bytes(CLIENT_CHAT_STATE, chat_id, msgspec.json.encode(state)),
        "updated_at": now(),
    }
    await upsert(session, ClientChat, values, key=("id",), update=("sealed_state", "updated_at"))


def _open(sealer: Sealer, chat_id: UUID, sealed: bytes) -> ClientState:
    data = sealer.open_bytes(CLIENT_CHAT_STATE, chat_id, sealed)
    return msgspec.json.decode(data, type=ClientState)


class ChatStates:
    """Reads and changes the states of chats. Each call is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, identity: Identity, chat_id: UUID) -> ClientState:
        async with self._database.read() as session:
            return await load_state(session, identity.sealer, chat_id)

    async def record_turn(
        self,
        identity: Identity,
        chat_id: UUID,
        state: ClientState,
        turn_id: UUID,
        *,
        resumes: bool = False,
    ) -> None:
        """Store the state after a turn has begun. Keeps the hidden messages and the parts.

        With `resumes`, the turn writes the rest of the previous one's reply, for the same request.
        """
        resumed = (*state.resumed, state.turn_id) if resumes and state.turn_id else ()
        await self._change(
            identity,
            chat_id,
            instructions=state.instructions,
            pieces=state.pieces,
            prefill=state.prefill,
            turn_id=turn_id,
            resumed=resumed[-MAX_RESUMED:],
            first_event=state.first_event if resumes else 0,
        )

    async def record_choice(
        self, identity: Identity, chat_id: UUID, reply_id: UUID | None, *, first_event: int
    ) -> None:
        """Store the event after which the reply to the last request begins: that of a choice."""
        parts = [((), reply_id)] if reply_id is not None else []
        await self._change(identity, chat_id, parts, first_event=first_event, resumed=())

    async def add_part(self, identity: Identity, chat_id: UUID, reply_id: UUID, text: str) -> None:
        """Store that a client has got a text as a part of a reply."""
        digester = TextDigester(identity.sealer)
        forms = [digester.compute("assistant", form) for form in list_part_forms(text)]
        await self._change(identity, chat_id, [(tuple(dict.fromkeys(forms)), reply_id)])

    async def fold_choices(self, identity: Identity, lines: Sequence[Line]) -> Sequence[Line]:
        """Join the parts of replies that have waited for choices. See `choices.fold_choices`."""
        if not any(line.role == "assistant" for line in lines):
            return lines
        sealer = identity.sealer
        async with self._database.read() as session:
            rows = (await session.execute(_PLAYED, {"owner_id": identity.user_id})).all()
            parts: dict[UUID, list[Collection[bytes]]] = {}
            for row in reversed(rows):  # the last played chat is the last one
                for forms, reply_id in _open(sealer, row.id, row.sealed_state).parts:
                    parts.setdefault(reply_id, []).append(forms)
            if not parts:
                return lines
            digester = TextDigester(sealer)
            digests = [digester.compute(line.role, line.text) for line in lines]
            known = set(digests)
            found = [key for key, each in parts.items() if not known.isdisjoint(chain(*each))]
            values = {"reply_ids": found, "owner_id": identity.user_id}
            replies = {
                row.id: ReplyParts(
                    chat_id=row.chat_id,
                    is_waiting=row.is_waiting,
                    text=sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content),
                    digests=parts[row.id],
                )
                for row in await session.execute(_REPLIES, values)
            }
        return fold_choices(lines, digests, [replies[key] for key in found if key in replies])

    async def _change(
        self,
        identity: Identity,
        chat_id: UUID,
        parts: Sequence[ReplyPart] = (),
        **members: Any,
    ) -> None:
        sealer = identity.sealer
        async with self._database.write() as session:
            try:
                await repository.get_chat(session, chat_id, owner_id=identity.user_id, lock=True)
            except ChatNotFoundError:  # deleted while the reply was written
                return
            state = await load_state(session, sealer, chat_id)
            if parts:
                members["parts"] = (*state.parts, *parts)[-MAX_PARTS:]
            await save_state(session, sealer, chat_id, msgspec.structs.replace(state, **members))
