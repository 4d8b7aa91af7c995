"""From a built prompt to its record, in the model's tokens, and on to the database, sealed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from uuid import UUID

import msgspec
from msgspec import structs
from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.context.layout import LeftOut
from backend.context.record import (
    ContextRecord,
    RecordedBudget,
    RecordedHistory,
    RecordedLeftOut,
    RecordedPreset,
    RecordedWindow,
    hash_prompt,
    move_texts,
    record_item,
    recorded_left_out,
)
from backend.core.reasons import Reason
from backend.database.base import new_id, now, upsert
from backend.turns.models import CONTEXT_RECORD, CONTEXT_TEXT, ContextText, StoredContextRecord
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.prompt.sections import LoadedPreset
from backend.turns.run.turn_run import TurnRun
from backend.vault.sealing import digest

MOST_LEFT_OUT = 200
"""Things left out that a record lists one by one."""


FEW_TEXTS = 8
"""So many texts are sent to the database without asking first which of them it has."""


def record_of(built: BuiltPrompt) -> ContextRecord:
    """The record of a built prompt, in the model's tokens. Hashes the whole prompt."""
    loaded, assembled = built.loaded, built.assembled
    record = ContextRecord(
        model=built.window.spec.id,
        tokenizer=built.window.unit.tokenizer,
        ratio=round(built.window.ratio, 4),
        budgets=RecordedBudget(**asdict(built.window.limits)),
        totals=built.totals,
        items=[record_item(item) for item in assembled.items],
        retrieved=[record_item(item) for item in assembled.retrieved],
        history=_recorded_history(built),
        left_out=_recorded_left_out(assembled.left_out),
        near_misses=list(map(recorded_left_out, built.near_misses)),
        memory_first=built.memory_first,
        prompt_files=dict(built.prompt_files),
        prompt_hash=hash_prompt(assembled.messages),
        preset=_recorded_preset(loaded.preset),
        window=RecordedWindow(
            tokens=built.window.spec.context_window, source=built.window.spec.figures_from
        ),
        shape=assembled.shape,
    )
    record.notes += built.notes
    if built.window.is_estimated:
        record.notes.append("the chat's stored counts are being made anew for this model")
    older = _older(built)
    if older is not None:
        record.left_out.insert(0, older)
    _to_real(record, built)
    return record


def _recorded_preset(preset: LoadedPreset | None) -> RecordedPreset | None:
    if preset is None:
        return None
    return RecordedPreset(
        id=preset.id,
        name=preset.fields.name,
        revision=preset.revision,
        chosen_by=preset.chosen_by,
    )


def _recorded_left_out(left_out: Sequence[LeftOut]) -> list[RecordedLeftOut]:
    """What was left out, the first of it one by one: a record has to stay small."""
    recorded = [recorded_left_out(each) for each in left_out[:MOST_LEFT_OUT]]
    if more := left_out[MOST_LEFT_OUT:]:
        recorded.append(
            RecordedLeftOut(
                kind="more",
                title=f"{len(more):,} more",
                tokens=sum(each.tokens for each in more),
                reasons=[Reason("not_listed")],
            )
        )
    return recorded


def _recorded_history(built: BuiltPrompt) -> RecordedHistory | None:
    history, leaf = built.assembled.history, built.loaded.target.leaf
    if leaf is None or not history.positions:
        return None
    first, last = history.positions[0], history.positions[-1]
    present = frozenset(history.positions)
    goes_on, gap = built.loaded.target.line_kind == "continue", built.assembled.gap
    return RecordedHistory(
        leaf_id=leaf.id,
        first=first,
        last=last,
        count=len(history.positions) - (gap.count if gap else 0),
        tokens=built.assembled.history_tokens,
        without=[place for place in range(first, last + 1) if place not in present],
        cut=len(history.messages[-1].text) if goes_on else None,
        names=built.window.unit.names,
        omitted_first=history.positions[gap.start] if gap else None,
        omitted_last=history.positions[gap.stop - 1] if gap else None,
        thoughts=sorted(present.intersection(history.thoughts)),
        marks={place: words for place, words in history.marks.items() if place in present},
    )


def _older(built: BuiltPrompt) -> RecordedLeftOut | None:
    """What lies before the kept history, as one entry."""
    history = built.assembled.history
    leaf = built.loaded.target.leaf
    first = history.positions[0] if history.positions else (leaf.position + 1 if leaf else 0)
    if first <= 0 or leaf is None:
        return None
    tokens = max(0, built.loaded.path_tokens - sum(history.tokens))
    if tokens == 0:
        return None
    title = "message 1" if first == 1 else f"messages 1 to {first}"
    return RecordedLeftOut(kind="history", title=title, tokens=tokens, reasons=[Reason("budget")])


def _to_real(record: ContextRecord, built: BuiltPrompt) -> None:
    """Turn the record's counts into the model's tokens."""
    if built.window.ratio == 1:
        return
    for item in (*record.items, *record.retrieved):
        item.tokens = built.window.to_model_tokens(item.tokens)
    for left_out in record.left_out:
        left_out.tokens = built.window.to_model_tokens(left_out.tokens)
        left_out.reasons = [
            structs.replace(each, count=built.window.to_model_tokens(each.count or 0))
            if each.kind == "budget_left"
            else each
            for each in left_out.reasons
        ]
    if record.history is not None:
        record.history.tokens = built.window.to_model_tokens(record.history.tokens)


_KNOWN = select(ContextText.digest).where(
    ContextText.chat_id == bindparam("chat_id"),
    ContextText.digest.in_(bindparam("digests", expanding=True)),
)


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """A context record, and its texts by their keyed hashes, sealed for storing."""

    record: bytes
    texts: dict[bytes, tuple[UUID, bytes]]


def seal_record(run: TurnRun) -> SealedRecord:
    """The record of a running turn. Hashes and seals a whole prompt: call it in a thread."""
    record = record_of(run.built.with_shape(run.sent.shape))
    record.unsent_settings = list(run.sent.left_out)
    if run.play is not None:
        record.tools, record.tool_support = list(run.play.used), run.play.support
    record.notes += [refused.note for refused in run.refused]
    key = run.sealer.derive_key("context-texts")
    texts = move_texts(record, lambda text: digest(key, text.encode()).hex())
    sealed: dict[bytes, tuple[UUID, bytes]] = {}
    for text_hash, text in texts.items():
        text_id = new_id()
        sealed[bytes.fromhex(text_hash)] = text_id, run.sealer.seal(CONTEXT_TEXT, text_id, text)
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
    texts = sealed.texts
    if len(texts) > FEW_TEXTS:
        held = {"chat_id": run.chat_id, "digests": list(texts)}
        known = set(await session.scalars(_KNOWN, held))
        texts = {key: text for key, text in texts.items() if key not in known}
    rows = [
        {
            "id": text_id,
            "user_id": run.user_id,
            "chat_id": run.chat_id,
            "digest": key,
            "sealed_text": blob,
            "created_at": now(),
        }
        for key, (text_id, blob) in texts.items()
    ]
    if rows:
        await upsert(session, ContextText, rows, key=("chat_id", "digest"))
    await upsert(
        session, StoredContextRecord, values, key=("id",), update=("sealed_record", "created_at")
    )
