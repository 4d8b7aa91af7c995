"""The kept history and the summary before it. No line between them is missing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.chats.repository import HistoryColumns
from backend.context.assembly import History, Plan, PromptItem, assemble
from backend.context.budget import (
    Budget,
    ContextOverflowError,
    compute_step,
    find_eviction_point,
    find_joined_start,
)
from backend.core.reasons import Reason
from backend.generation.model import PromptMessage
from backend.turns.prompt.context import RetrievedPrompt
from backend.turns.prompt.history import find_read_begin, fit_history


@dataclass(frozen=True)
class Line:
    """A message: `tokens` as stored, `counted` as counted for the model."""

    position: int
    tokens: int
    counted: int
    hidden: bool
    start: int


@dataclass(frozen=True)
class Scene:
    """A chat: its lines and budget, the tokens always sent, and the last summarised line."""

    lines: list[Line]
    budget: Budget
    scale: float
    always: int
    summary: int | None
    words: int

    @property
    def path_tokens(self) -> int:
        return sum(line.tokens for line in self.lines if not line.hidden)

    @property
    def summarised(self) -> int | None:
        if self.summary is None:
            return None
        return sum(line.tokens for line in self.lines[: self.summary + 1] if not line.hidden)

    @property
    def items(self) -> list[PromptItem]:
        always = PromptItem(
            kind="system", title="", text="a " * self.always, place="head", reasons=[]
        )
        text = "s " * self.words
        summary = PromptItem(
            kind="summary", title="", text=text, place="head", reasons=[Reason("summary", count=4)]
        )
        return [always] if self.summary is None else [always, summary]


def read(scene: Scene) -> RetrievedPrompt:
    """Load a scene as `PromptBuilder` does."""
    summary = None if scene.summarised is None else SimpleNamespace(path_tokens=scene.summarised)
    loaded: Any = SimpleNamespace(
        summary=summary,
        path_tokens=scene.path_tokens,
        sums_rounds=False,
        summed_up=0,
        client=None,
    )

    def to_stored(count: int) -> int:
        return math.floor(count / scene.scale)

    widest = to_stored(scene.budget.for_history(0))
    spec = SimpleNamespace(shape="lenient")
    window: Any = SimpleNamespace(
        budget=scene.budget, to_stored=to_stored, widest=widest, spec=spec
    )
    begin = find_read_begin(loaded, window)
    lines = [line for line in scene.lines if not line.hidden and line.start >= begin]
    positions, counted = [line.position for line in lines], [line.counted for line in lines]
    messages = [PromptMessage("user", str(line.position)) for line in lines]
    return RetrievedPrompt(
        loaded=loaded,
        window=window,
        lines=HistoryColumns(positions=positions, tokens=[line.tokens for line in lines]),
        history=History(messages, counted, positions),
    )


def words(text: str) -> int:
    return len(text.split())


@st.composite
def scenes(draw: st.DrawFn, *, scales: tuple[float, ...] = (1.0,)) -> Scene:
    scale = draw(st.sampled_from(scales))
    sizes = draw(st.lists(st.integers(4, 120), min_size=1, max_size=80))
    lines: list[Line] = []
    start = 0
    for position, tokens in enumerate(sizes):
        counted = max(1, round(tokens * scale) + draw(st.integers(-3, 3)) * (scale != 1))
        hidden = draw(st.booleans()) and draw(st.booleans())
        lines.append(Line(position, tokens, counted, hidden, start))
        start += 0 if hidden else tokens
    total = draw(st.integers(60, 6_000))
    budget = Budget(
        total=total,
        history=draw(st.integers(0, total)),
        retrieval=draw(st.integers(0, 500)),
        reply_reserve=draw(st.integers(1, 50)),
        min_tail_messages=4,
    )
    return Scene(
        lines=lines,
        budget=budget,
        scale=scale,
        always=draw(st.integers(1, 400)),
        summary=draw(st.none() | st.integers(0, len(lines) - 1)),
        words=draw(st.integers(1, 200)),
    )


def has_summary(fixed: Plan) -> bool:
    return any(item.kind == "summary" for item in fixed.items)


@given(scenes(scales=(1.0, 0.8, 1.25)))
def test_between_a_summary_and_the_oldest_kept_line_there_is_never_a_gap(scene: Scene) -> None:
    try:
        fixed, history, left_out = fit_history(read(scene), scene.items, count=words)
    except ContextOverflowError:
        assert scene.always > scene.budget.prompt - 8
        return
    assert has_summary(fixed) == (scene.summary is not None and not left_out)
    if has_summary(fixed):
        assert scene.summary is not None
        behind = [
            line.position
            for line in scene.lines
            if line.position > scene.summary and not line.hidden
        ]
        assert set(behind) <= set(history.positions)


@given(scenes())
def test_history_that_reaches_back_to_a_summary_needs_no_truncation(scene: Scene) -> None:
    try:
        fixed, history, _ = fit_history(read(scene), scene.items, count=words)
    except ContextOverflowError:
        return
    assembled = assemble(fixed, history, count=words, render_omitted=str)
    assert assembled.gap is None
    budget = scene.budget
    assert assembled.history_tokens <= budget.history + budget.retrieval
    assert assembled.tokens <= scene.budget.prompt


@given(scenes())
def test_a_summary_that_is_left_out_leaves_the_prompt_as_it_would_be_without(scene: Scene) -> None:
    without = Scene(scene.lines, scene.budget, scene.scale, scene.always, None, 0)
    try:
        fixed, history, left_out = fit_history(read(scene), scene.items, count=words)
    except ContextOverflowError:
        with pytest.raises(ContextOverflowError):
            fit_history(read(without), without.items, count=words)
        return
    plain, plain_history, nothing = fit_history(read(without), without.items, count=words)
    assert not nothing
    if left_out:
        assert (fixed, history) == (plain, plain_history)
        assert [each.kind for each in left_out] == ["summary"]
        return
    # Never fewer lines than are kept with that much always sent, and no others.
    begin = find_eviction_point(scene.path_tokens, scene.budget.for_history(fixed.fixed))
    kept = [line.position for line in scene.lines if line.start >= begin and not line.hidden]
    assert history.positions[len(history.positions) - len(kept) :] == kept


def test_history_uses_the_retrieval_budget_to_reach_a_summary() -> None:
    lines = [Line(place, 10, 10, hidden=False, start=10 * place) for place in range(50)]
    budget = Budget(total=400, history=200, retrieval=200, reply_reserve=1, min_tail_messages=4)
    scene = Scene(lines, budget, 1.0, always=10, summary=24, words=10)
    _, history, left_out = fit_history(read(scene), scene.items, count=words)
    assert (history.positions[0], left_out) == (25, [])
    too_far = Scene(lines, budget, 1.0, always=10, summary=4, words=10)
    fixed, history, left_out = fit_history(read(too_far), too_far.items, count=words)
    assert not has_summary(fixed)
    assert history.positions[0] == 31
    assert left_out[0].reasons == [Reason("summary_too_old", count=4)]


def test_a_summary_for_which_there_is_no_room_does_not_keep_the_turn_from_coming() -> None:
    line = Line(0, 10, 10, hidden=False, start=0)
    budget = Budget(total=100, history=50, retrieval=0, reply_reserve=1, min_tail_messages=4)
    scene = Scene([line], budget, 1.0, always=50, summary=0, words=90)
    fixed, history, left_out = fit_history(read(scene), scene.items, count=words)
    assert not has_summary(fixed)
    assert history.positions == [0]
    assert left_out[0].reasons == [Reason("summary_no_room", count=4)]


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 5_000))
def test_joined_history_starts_at_the_summary_and_keeps_its_limit(
    begin: int, summarised: int, path_tokens: int, most: int
) -> None:
    start = find_joined_start(begin, summarised=summarised, path_tokens=path_tokens, most=most)
    if start is None:
        assert begin > summarised
        assert path_tokens - summarised > most
    else:
        assert start <= summarised
        assert start <= begin


@given(st.integers(0, 200_000), st.integers(1, 50_000))
def test_the_history_loses_no_more_than_a_step_at_a_time(path: int, budget: int) -> None:
    assert find_eviction_point(path + 1, budget) - find_eviction_point(path, budget) <= max(
        compute_step(budget), path + 1 - budget
    )
