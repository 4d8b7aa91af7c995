"""Count the tokens of messages, and recount a chat in another unit."""

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
"""Number of messages that are counted or written at once."""


def format_line(author: str, text: str, *, names: bool) -> str:
    """Return a message as sent to the model, after its author's name if the chat needs names."""
    return f"{author}: {text}" if names and author else text


@dataclass(frozen=True, slots=True)
class CountUnit:
    """The unit of stored counts: tokens of one vocabulary, with or without the author's name.

    All messages of a chat have the same unit. Its `str()` is stored with the chat.
    """

    tokenizer: str
    names: bool

    @classmethod
    def parse(cls, text: str) -> CountUnit:
        return cls(text.removesuffix(NAMES_SUFFIX), text.endswith(NAMES_SUFFIX))

    def __str__(self) -> str:
        return self.tokenizer + (NAMES_SUFFIX if self.names else "")

    def count(self, author: str, text: str) -> int:
        return self.count_many([(author, text)])[0]

    def count_many(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Count the tokens of messages (author, text) as sent, in order."""
        lines = [format_line(author, text, names=self.names) for author, text in messages]
        counts = get_tokenizer(self.tokenizer).count_many(lines)
        return [count + MESSAGE_OVERHEAD for count in counts]


class _ChatChangedError(Exception):
    """A message was added or changed during the count."""


async def recount_chat(
    database: Database, pool: CpuPool, sealer: Sealer, chat_id: UUID, unit: CountUnit
) -> bool:
    """Count every message of a chat in another unit, and update its sums and its unit.

    Earlier counts in that unit are reused. All changes are one transaction, so that a prompt uses
    either the old counts or the new ones. Returns False if the chat changed; try again later.
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
    return [
        _read_counts(row).get(str(unit))
        or unit.count(
            sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author),
            sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content),
        )
        for row in rows
    ]


def _read_counts(row: Any) -> dict[str, int]:
    return msgspec.json.decode(row.token_counts, type=dict[str, int])


async def _store_counts(
    database: Database, chat_id: UUID, unit: CountUnit, counts: dict[UUID, tuple[datetime, int]]
) -> None:
    """Raise `_ChatChangedError` if the messages are not those that were counted."""
    async with database.write() as session:
        chat = await session.get(Chat, chat_id, with_for_update=True)
        if chat is None:
            return
        sums: dict[UUID | None, int] = {None: 0}
        rows: Sequence[Any] = ()
        # The pages are ordered by position, so parents come before their children.
        while rows := await _load_page(session, chat_id, _SUMMED, after=rows):
            changes: list[dict[str, Any]] = []
            for row in rows:
                changed_at, tokens = counts.get(row.id, (None, 0))
                if row.status == "streaming" or changed_at != row.updated_at:
                    raise _ChatChangedError
                sums[row.id] = sums[row.parent_id] + (0 if row.hidden else tokens)
                counts_by_unit = {**_read_counts(row), str(unit): tokens}
                changes.append(
                    {
                        "id": row.id,
                        "tokens": tokens,
                        "path_tokens": sums[row.id],
                        "token_counts": msgspec.json.encode(counts_by_unit).decode(),
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
    """Load columns of the messages after the page `after`, from the root down."""
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
