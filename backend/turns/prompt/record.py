"""The context record of a built prompt, in the model's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from msgspec import structs

from backend.context.assembly import LeftOut
from backend.context.record import (
    ContextRecord,
    RecordedBudget,
    RecordedHistory,
    RecordedPreset,
    RecordedWindow,
    hash_prompt,
    record_item,
)
from backend.core.reasons import Reason
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.prompt.context import LoadedPreset

MAX_LEFT_OUT = 200
"""A record lists this many left-out items one by one."""


def make_record(built: BuiltPrompt) -> ContextRecord:
    """Return the record of a prompt, in the model's tokens. Hashes the whole prompt."""
    loaded, assembled = built.loaded, built.assembled
    record = ContextRecord(
        model=built.window.spec.id,
        tokenizer=built.window.unit.tokenizer,
        ratio=round(built.window.ratio, 4),
        budgets=RecordedBudget(**asdict(built.window.limits)),
        totals=built.totals,
        items=[record_item(item) for item in assembled.items],
        retrieved=[record_item(item) for item in assembled.retrieved],
        history=_record_history(built),
        left_out=_record_left_out(assembled.left_out),
        near_misses=[structs.replace(each) for each in built.near_misses],
        memory_first=built.memory_first,
        prompt_files=dict(built.prompt_files),
        prompt_hash=hash_prompt(assembled.messages),
        preset=_record_preset(loaded.preset),
        window=RecordedWindow(
            tokens=built.window.spec.context_window, source=built.window.spec.figures_from
        ),
        shape=assembled.shape,
    )
    record.notes += built.notes
    if built.window.is_estimated:
        record.notes.append("the chat's token counts are being recalculated for this model")
    older = _summarise_older(built)
    if older is not None:
        record.left_out.insert(0, older)
    _convert_counts(record, built)
    return record


def _record_preset(preset: LoadedPreset | None) -> RecordedPreset | None:
    if preset is None:
        return None
    return RecordedPreset(
        id=preset.id,
        name=preset.fields.name,
        revision=preset.revision,
        chosen_by=preset.chosen_by,
    )


def _record_left_out(left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """List the first left-out items and sum up the others, because a record has to stay small."""
    recorded = [structs.replace(each) for each in left_out[:MAX_LEFT_OUT]]
    if more := left_out[MAX_LEFT_OUT:]:
        recorded.append(
            LeftOut(
                kind="more",
                title=f"{len(more):,} more",
                tokens=sum(each.tokens for each in more),
                reasons=[Reason("not_listed")],
            )
        )
    return recorded


def _record_history(built: BuiltPrompt) -> RecordedHistory | None:
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


def _summarise_older(built: BuiltPrompt) -> LeftOut | None:
    """Return one entry for all messages before the history."""
    history = built.assembled.history
    leaf = built.loaded.target.leaf
    first = history.positions[0] if history.positions else (leaf.position + 1 if leaf else 0)
    if first <= 0 or leaf is None:
        return None
    tokens = max(0, built.loaded.path_tokens - sum(history.tokens))
    if tokens == 0:
        return None
    title = "message 1" if first == 1 else f"messages 1 to {first}"
    return LeftOut(kind="history", title=title, tokens=tokens, reasons=[Reason("budget")])


def _convert_counts(record: ContextRecord, built: BuiltPrompt) -> None:
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
