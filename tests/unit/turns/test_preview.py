"""The view of a prompt's record."""

from __future__ import annotations

from backend.context.assembly import Place
from backend.context.record import ContextRecord, RecordedBudget, RecordedItem, Totals
from backend.turns.api.schemas import PromptLayers
from backend.turns.prompt.preview import view_context


def item(kind: str, tokens: int, place: Place) -> RecordedItem:
    return RecordedItem(kind=kind, title=kind, tokens=tokens, place=place)


def test_a_summary_below_the_history_is_not_taken_from_the_constant_part() -> None:
    budget = RecordedBudget(
        total=1_000, history=500, retrieval=200, reply_reserve=100, min_tail_messages=8
    )
    totals = Totals(
        prompt=200,
        fixed=150,
        history=30,
        retrieved=20,
        reply_reserve=100,
        free=700,
        total=1_000,
        messages=3,
    )
    items = [item("system", 60, "head"), item("summary", 40, "tail"), item("campaign", 50, "depth")]
    record = ContextRecord(
        model="demo", tokenizer="o200k_base", ratio=1, budgets=budget, totals=totals, items=items
    )
    assert view_context(record).layers == PromptLayers(frozen=60, cold=40, search=20, hot=80)
