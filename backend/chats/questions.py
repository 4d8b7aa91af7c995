"""Questions that messages answer: written by a task model, read by the index alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, delete, exists, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import MESSAGE_QUESTIONS, Message, MessageQuestions
from backend.database.base import UNSYNCHRONIZED, now, skip_index, split_chunks, upsert
from backend.database.types import Id
from backend.memory.indexing.sources import inventory_of
from backend.vault.sealing import Sealer

UNREAD = ~exists().where(MessageQuestions.id == Message.id)
"""Messages that no model has been asked about."""

_OF_MESSAGES = select(
    MessageQuestions.id, MessageQuestions.sealed_questions, MessageQuestions.written_at
).where(
    MessageQuestions.id.in_(bindparam("ids", expanding=True, type_=Id())),
    skip_index(MessageQuestions.chat_id) == bindparam("chat_id"),
)
_WRITTEN = select(MessageQuestions.id, MessageQuestions.written_at).where(
    MessageQuestions.chat_id == bindparam("chat_id")
)
_DECODER = msgspec.json.Decoder(list[str])


class StoredQuestions(NamedTuple):
    """What a message answers, still sealed; None where that is nothing."""

    message_id: UUID
    sealed: bytes | None
    written_at: datetime

    def open(self, sealer: Sealer) -> list[str]:
        """The questions."""
        if self.sealed is None:
            return []
        return _DECODER.decode(sealer.open_bytes(MESSAGE_QUESTIONS, self.message_id, self.sealed))


async def read_questions(
    session: AsyncSession, chat_id: UUID, ids: Iterable[UUID]
) -> dict[UUID, StoredQuestions]:
    """Of these messages of a chat the ones that have been read for questions, by id."""
    found: dict[UUID, StoredQuestions] = {}
    for part in split_chunks(list(ids)):
        for row in await session.execute(_OF_MESSAGES, {"ids": part, "chat_id": chat_id}):
            found[row.id] = StoredQuestions(*row)
    return found


async def has_questions(session: AsyncSession, *, owner_id: UUID) -> bool:
    """Whether any message of a user's answers a question."""
    there = select(exists().where(MessageQuestions.user_id == owner_id))
    return bool(await session.scalar(there))


async def question_versions(session: AsyncSession, chat_id: UUID) -> dict[UUID, int]:
    """When questions of a chat's messages were written, as versions of points."""
    return await inventory_of(await session.execute(_WRITTEN, {"chat_id": chat_id}))


async def write_questions(
    session: AsyncSession,
    sealer: Sealer,
    chat_id: UUID,
    asked: Mapping[UUID, Sequence[str]],
    *,
    run_id: UUID,
) -> None:
    """Note what messages answer: also that they answer nothing, so that they are not read again."""
    for message_id, questions in asked.items():
        text = msgspec.json.encode(questions)
        values = {
            "id": message_id,
            "user_id": sealer.user_id,
            "chat_id": chat_id,
            "run_id": run_id,
            "sealed_questions": sealer.seal_bytes(MESSAGE_QUESTIONS, message_id, text)
            if questions
            else None,
            "written_at": now(),
        }
        await upsert(session, MessageQuestions, values, key=("id",))


async def drop_questions(
    session: AsyncSession, chat_id: UUID, run_id: UUID, *, owner_id: UUID
) -> list[UUID]:
    """Take back what a run wrote; the messages. They count as read, so nobody writes it again."""
    rows = await session.scalars(
        update(MessageQuestions)
        .where(
            MessageQuestions.chat_id == chat_id,
            MessageQuestions.run_id == run_id,
            MessageQuestions.user_id == owner_id,
            MessageQuestions.sealed_questions.is_not(None),
        )
        .values(sealed_questions=None, written_at=now())
        .returning(MessageQuestions.id)
        .execution_options(**UNSYNCHRONIZED)
    )
    return list(rows)


async def read_questions_again(session: AsyncSession, message_id: UUID) -> None:
    """A message goes on: what it answers is asked for again."""
    gone = delete(MessageQuestions).where(MessageQuestions.id == message_id)
    await session.execute(gone, execution_options=UNSYNCHRONIZED)
