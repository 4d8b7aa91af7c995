"""Moving a chat to another tokenizer: its stored counts follow behind the scenes."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.counting import CountUnit
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.database.engine import Database
from backend.vault.sealing import Sealer


async def recount(database: Database, sealer: Sealer, chat_id: UUID, unit: CountUnit) -> bool:
    """Count every message of a chat in another unit, sums and all, and note it on the chat.

    Counts made earlier in that unit are used again. One transaction: whoever builds a prompt sees
    the old counts or the new ones. False when something was said meanwhile: try again later.
    """
    async with database.read() as session:
        rows = await _messages(session, chat_id)
    counts: dict[UUID, int] = {}
    fresh: list[UUID] = []
    lines: list[tuple[str, str]] = []
    for row in rows:
        held: dict[str, int] = msgspec.json.decode(row.token_counts)
        if str(unit) in held:
            counts[row.id] = held[str(unit)]
            continue
        fresh.append(row.id)
        author = sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author)
        lines.append((author, sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)))
    counted = await asyncio.to_thread(unit.count_many, lines)
    counts.update(zip(fresh, counted, strict=True))
    return await _store(
        database, chat_id, unit, counts, seen={row.id: row.updated_at for row in rows}
    )


async def _store(
    database: Database,
    chat_id: UUID,
    unit: CountUnit,
    counts: dict[UUID, int],
    *,
    seen: dict[UUID, datetime],
) -> bool:
    async with database.write() as session:
        chat = await session.get(Chat, chat_id, with_for_update=True)
        if chat is None:
            return True
        rows = await _messages(session, chat_id)
        if any(row.status == "streaming" or seen.get(row.id) != row.updated_at for row in rows):
            return False
        sums: dict[UUID | None, int] = {None: 0}
        changes: list[dict[str, Any]] = []
        for row in rows:
            tokens = counts[row.id]
            sums[row.id] = sums[row.parent_id] + (0 if row.hidden else tokens)
            held = {**msgspec.json.decode(row.token_counts), str(unit): tokens}
            changes.append(
                {
                    "id": row.id,
                    "tokens": tokens,
                    "path_tokens": sums[row.id],
                    "token_counts": msgspec.json.encode(held).decode(),
                }
            )
        if changes:
            await session.execute(update(Message), changes)
        chat.count_unit = str(unit)
        return True


async def _messages(session: AsyncSession, chat_id: UUID) -> list[Message]:
    query = select(Message).where(Message.chat_id == chat_id).order_by(Message.position)
    return list(await session.scalars(query))
