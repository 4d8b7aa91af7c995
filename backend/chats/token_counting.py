"""Counts of messages' tokens, in which units they are kept, and counting a chat anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.generation.tokens import MESSAGE_OVERHEAD, get_tokenizer
from backend.vault.sealing import Sealer

NAMES_SUFFIX = "+names"

BATCH_SIZE = 100
"""Messages that are counted, or written, in one go."""


def format_line(author: str, text: str, *, names: bool) -> str:
    """A message as the model gets it: its text, after its author's name where chats need names."""
    return f"{author}: {text}" if names and author else text


@dataclass(frozen=True, slots=True)
class CountUnit:
    """What a stored count counts: tokens of one vocabulary, with or without the author's name.

    A chat's messages are all counted in one unit; `str()` of it is stored with the chat.
    """

    tokenizer: str
    names: bool

    @classmethod
    def parse(cls, text: str) -> CountUnit:
        """The unit that was stored."""
        return cls(text.removesuffix(NAMES_SUFFIX), text.endswith(NAMES_SUFFIX))

    def __str__(self) -> str:
        return self.tokenizer + (NAMES_SUFFIX if self.names else "")

    def count(self, author: str, text: str) -> int:
        """Tokens of one message as it is sent."""
        return self.count_many([(author, text)])[0]

    def count_many(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Tokens of many messages (author, text) as they are sent, in order."""
        lines = [format_line(author, text, names=self.names) for author, text in messages]
        counts = get_tokenizer(self.tokenizer).count_many(lines)
        return [count + MESSAGE_OVERHEAD for count in counts]


class _ChatChangedError(Exception):
    """Something was said meanwhile."""


async def recount_chat(
    database: Database, pool: CpuPool, sealer: Sealer, chat_id: UUID, unit: CountUnit
) -> bool:
    """Count every message of a chat in another unit, sums and all, and note it on the chat.

    Counts made earlier in that unit are used again. They are stored in one transaction: whoever
    builds a prompt sees the old counts or the new ones. False when something was said meanwhile:
    try again later.
    """
    counts: dict[UUID, tuple[datetime, int]] = {}
    rows: Sequence[Any] = ()
    while True:
        async with database.read() as session:
            rows = await _load_page(session, chat_id, _COUNTED, after=rows)
        if not rows:
            break
        counted = await pool.run(
            sealer.user_id,
            partial(_count_rows, sealer, rows, unit),
            size=sum(len(row.sealed_content) for row in rows),
            is_job=True,
        )
        counts |= {
            row.id: (row.updated_at, tokens) for row, tokens in zip(rows, counted, strict=True)
        }
    try:
        await _store_counts(database, chat_id, unit, counts)
    except _ChatChangedError:
        return False
    return True


def _count_rows(sealer: Sealer, rows: Sequence[Any], unit: CountUnit) -> list[int]:
    """Tokens of each message."""
    return [
        held.get(str(unit))
        or unit.count(
            sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author),
            sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content),
        )
        for row in rows
        for held in [_read_counts(row)]
    ]


def _read_counts(row: Any) -> dict[str, int]:
    return msgspec.json.decode(row.token_counts, type=dict[str, int])


async def _store_counts(
    database: Database, chat_id: UUID, unit: CountUnit, counts: dict[UUID, tuple[datetime, int]]
) -> None:
    """Raises `_ChatChangedError` where the messages are not those that were counted."""
    async with database.write() as session:
        chat = await session.get(Chat, chat_id, with_for_update=True)
        if chat is None:
            return
        sums: dict[UUID | None, int] = {None: 0}
        rows: Sequence[Any] = ()
        # Parents come before what hangs below them.
        while rows := await _load_page(session, chat_id, _SUMMED, after=rows):
            changes: list[dict[str, Any]] = []
            for row in rows:
                changed_at, tokens = counts.get(row.id, (None, 0))
                if row.status == "streaming" or changed_at != row.updated_at:
                    raise _ChatChangedError
                sums[row.id] = sums[row.parent_id] + (0 if row.hidden else tokens)
                held = {**_read_counts(row), str(unit): tokens}
                changes.append(
                    {
                        "id": row.id,
                        "tokens": tokens,
                        "path_tokens": sums[row.id],
                        "token_counts": msgspec.json.encode(held).decode(),
                    }
                )
            await session.execute(update(Message), changes)
        chat.count_unit = str(unit)


async def _load_page(
    session: AsyncSession,
    chat_id: UUID,
    columns: Sequence[InstrumentedAttribute[Any]],
    *,
    after: Sequence[Any],
) -> Sequence[Any]:
    """Columns of the messages that follow those of the page `after`, from the root down."""
    query = select(*columns).where(Message.chat_id == chat_id)
    if after:
        at, last = after[-1].position, after[-1].id
        is_below = or_(Message.position > at, Message.id > last)
        query = query.where(Message.position >= at, is_below)
    query = query.order_by(Message.position, Message.id).limit(BATCH_SIZE)
    return (await session.execute(query)).all()


_COUNTED: tuple[InstrumentedAttribute[Any], ...] = (
    Message.id,
    Message.position,
    Message.updated_at,
    Message.token_counts,
    Message.sealed_author,
    Message.sealed_content,
)
_SUMMED: tuple[InstrumentedAttribute[Any], ...] = (
    Message.id,
    Message.parent_id,
    Message.position,
    Message.status,
    Message.hidden,
    Message.updated_at,
    Message.token_counts,
)
