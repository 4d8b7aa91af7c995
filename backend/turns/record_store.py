"""Context records on their way to the database: sealed, each text kept once a chat."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.context.record import move_texts
from backend.database.base import new_id, now, upsert
from backend.turns.models import CONTEXT_RECORD, CONTEXT_TEXT, ContextText, StoredContextRecord
from backend.turns.recording import record_of
from backend.turns.runs import TurnRun
from backend.vault.sealing import Sealer, digest


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """A context record, and its texts by their keyed hashes, sealed for storing."""

    record: bytes
    texts: dict[bytes, tuple[UUID, bytes]]


def seal_record(run: TurnRun) -> SealedRecord:
    """The record of a running turn. Hashes and seals a whole prompt: call it in a thread."""
    record = record_of(run.built)
    texts = move_texts(record, lambda text: text_digest(run.sealer, text).hex())
    sealed: dict[bytes, tuple[UUID, bytes]] = {}
    for key, text in texts.items():
        text_id = new_id()
        sealed[bytes.fromhex(key)] = text_id, run.sealer.seal(CONTEXT_TEXT, text_id, text)
    if run.reply_id is None:
        raise ValueError("Only a reply has a record.")
    blob = run.sealer.seal_bytes(CONTEXT_RECORD, run.reply_id, msgspec.json.encode(record))
    return SealedRecord(blob, sealed)


async def store_record(session: AsyncSession, run: TurnRun, sealed: SealedRecord) -> None:
    """Store a record, and those of its texts that the chat does not have yet."""
    values = {
        "id": run.reply_id,
        "user_id": run.user_id,
        "chat_id": run.chat_id,
        "sealed_record": sealed.record,
        "created_at": now(),
    }
    known = set(
        await session.scalars(
            select(ContextText.digest).where(
                ContextText.chat_id == run.chat_id, ContextText.digest.in_(list(sealed.texts))
            )
        )
    )
    for key, (text_id, blob) in sealed.texts.items():
        if key not in known:
            row = {
                "id": text_id,
                "user_id": run.user_id,
                "chat_id": run.chat_id,
                "digest": key,
                "sealed_text": blob,
                "created_at": now(),
            }
            await upsert(session, ContextText, row, key=["chat_id", "digest"], update={})
    await upsert(session, StoredContextRecord, values, key=["id"], update=values)


def text_digest(sealer: Sealer, text: str) -> bytes:
    """The keyed hash under which a text of a prompt is kept."""
    return digest(sealer.derived("context-texts"), text.encode())
