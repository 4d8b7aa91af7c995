"""Records of prompts as the API shows them, and how one differs from another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten
from uuid import UUID

from backend.context.record import ContextRecord, RecordedItem, RecordedLeftOut
from backend.generation.model import PromptMessage
from backend.memory.matches import SharedWords
from backend.memory.sources import Recalled
from backend.reasons import told
from backend.turns.schemas import ContextView, Difference, HistoryView, Layers, ShownMessage

MANY = frozenset({"lore", "event", "memory", "campaign", "entity"})
"""Kinds of which a prompt holds several pieces."""

COLD = frozenset({"chapters", "summary", "scenes"})
"""Kinds of sections that tell of what is over."""


def context_view(record: ContextRecord) -> ContextView:
    """A record without its prompt, its reasons in words."""
    history = record.history
    for item in (*record.items, *record.retrieved):
        item.reason = told(item.reasons)
    for left_out in (*record.left_out, *record.near_misses):
        left_out.reason = told(left_out.reasons)
    return ContextView(
        model=record.model,
        tokenizer=record.tokenizer,
        ratio=record.ratio,
        budgets=record.budgets,
        totals=record.totals,
        items=record.items,
        retrieved=record.retrieved,
        history=(
            HistoryView(
                first=history.first,
                last=history.last,
                count=history.count,
                tokens=history.tokens,
                hidden=history.without,
                omitted_first=history.omitted_first,
                omitted_last=history.omitted_last,
                reason="history",
            )
            if history
            else None
        ),
        left_out=record.left_out,
        near_misses=record.near_misses,
        notes=record.notes,
        prompt_files=record.prompt_files,
        prompt_hash=record.prompt_hash,
        preset=record.preset,
        window=record.window,
        tools=record.tools,
        tool_support=record.tool_support,
        shape=record.shape,
        unsent_settings=record.unsent_settings,
        layers=_layers(record),
    )


def with_words(record: ContextRecord, asked: str) -> ContextRecord:
    """A record, changed in place: reasons say which words a text has of those asked for."""
    words = SharedWords(asked)
    for item in (*record.items, *record.retrieved):
        item.reasons = [words.told(reason, item.text or "") for reason in item.reasons]
    return record


def with_near_misses(
    record: ContextRecord, texts: Mapping[UUID, Recalled], *, is_all: bool
) -> ContextRecord:
    """A record, changed in place: what came close has its text.

    What has none goes; with `is_all` not what stayed out because it did not count.
    """
    shown: list[RecordedLeftOut] = []
    for each in record.near_misses:
        recalled = texts.get(each.source_id) if each.source_id else None
        if recalled is not None:
            each.text = recalled.text
            each.title = each.title or recalled.title or shorten(recalled.text, 60)
        is_past = is_all and any(one.kind == "not_current" for one in each.reasons)
        if recalled is not None or is_past:
            shown.append(each)
    record.near_misses = shown
    return record


def _layers(record: ContextRecord) -> Layers | None:
    """The layers of a campaign's prompt; None where there is no campaign."""
    if not any(item.kind == "campaign" for item in record.items):
        return None
    cold = sum(item.tokens for item in record.items if item.kind in COLD)
    frozen = sum(item.tokens for item in record.items if item.place == "head") - cold
    rest = record.totals.prompt - record.totals.retrieved - frozen - cold
    return Layers(frozen=frozen, cold=cold, search=record.totals.retrieved, hot=rest)


def shown(messages: Sequence[PromptMessage]) -> list[ShownMessage]:
    """The messages of a prompt as the API shows them."""
    return [ShownMessage(role=message.role, text=message.text) for message in messages]


def compare(
    earlier_id: UUID,
    before: ContextView,
    before_messages: Sequence[PromptMessage],
    after: ContextView,
    after_messages: Sequence[PromptMessage],
) -> Difference:
    """How one prompt differs from an earlier one, the one of `earlier_id`."""
    old = {_identity(item): item for item in (*before.items, *before.retrieved)}
    new = {_identity(item): item for item in (*after.items, *after.retrieved)}
    shared = 0
    for one, other in zip(before_messages, after_messages, strict=False):
        if one != other:
            break
        shared += 1
    characters = sum(len(message.text) for message in after_messages)
    same = sum(len(message.text) for message in after_messages[:shared])
    return Difference(
        previous_message_id=earlier_id,
        added=[item for key, item in new.items() if key not in old],
        removed=[item for key, item in old.items() if key not in new],
        changed=[item for key, item in new.items() if key in old and old[key].text != item.text],
        history_first=(_first(before), _first(after)),
        history_last=(_last(before), _last(after)),
        shared_prefix=shared,
        shared_tokens=round(after.totals.prompt * same / characters) if characters else 0,
    )


def _identity(item: RecordedItem) -> tuple[str, str]:
    """Of entries and memories there are many, and some share a title."""
    return item.kind, str(item.source_id) if item.kind in MANY and item.source_id else item.title


def _first(view: ContextView) -> int | None:
    return view.history.first if view.history else None


def _last(view: ContextView) -> int | None:
    return view.history.last if view.history else None
