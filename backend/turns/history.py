"""The lines that history may take, and a summary that they follow on from without a gap."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from backend.accounts.identity import Identity
from backend.audience import PUBLIC, AudienceMarks, put_mark
from backend.chats.counting import line_text
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT
from backend.chats.repository import SealedHistory
from backend.context.assembly import Counter, Plan, plan
from backend.context.budget import ContextOverflowError, eviction_point, joined
from backend.context.layout import History, Item, LeftOut
from backend.generation.model import PromptMessage
from backend.reasons import Reason, ReasonKind
from backend.turns.prompt_context import LoadedChat, PromptContext, PromptWindow
from backend.turns.rewriting import sent_texts
from backend.turns.thoughts import LARGEST_SHARE, add_thoughts

SUMMARY = "summary"
"""The kind of the section that a summary is."""


def read_from(loaded: LoadedChat, window: PromptWindow) -> int:
    """Stored tokens from the root after which lines are read: those of known lines.

    They are as many as history may take beside nothing else, and what a summary needs of those
    before. They are cut when it is known what is always sent.
    """
    begin = max(eviction_point(loaded.path_tokens, window.widest), loaded.summed_up)
    if loaded.summary is None or loaded.sums_rounds:
        return begin
    reached = joined(
        begin,
        summarised=loaded.summary.path_tokens,
        path_tokens=loaded.path_tokens,
        most=window.to_stored(window.budget.for_reaching(0)),
    )
    return begin if reached is None else reached


def open_history(identity: Identity, context: PromptContext) -> History:
    """The lines unsealed, as they are sent, with their tokens. CPU-bound."""
    lines, unit, scripts = context.lines, context.window.unit, context.loaded.scripts
    sealed = zip(lines.ids[len(lines.opened) :], lines.sealed_contents, strict=True)
    stored = [*lines.opened, *identity.sealer.open_many(MESSAGE_CONTENT, sealed)]
    context.texts = stored
    tokens = list(lines.tokens)
    texts = sent_texts(scripts, lines.roles, stored, has_line=context.loaded.said is not None)
    changed = [at for at, text in enumerate(texts) if text != stored[at]]
    if context.window.needs_authors:
        authors = identity.sealer.open_many(
            MESSAGE_AUTHOR, zip(lines.ids, lines.sealed_authors, strict=True)
        )
        spoken = list(zip(authors, texts, strict=True))
        if context.window.is_estimated:
            tokens = unit.count_many(spoken)
            changed = []
        texts = [line_text(author, text, names=unit.names) for author, text in spoken]
    marks = _mark_lines(texts, lines, context.loaded.marks)
    changed = [*changed, *marks]
    # The names, if they are sent, stand in the texts by now.
    unnamed = replace(unit, names=False)
    for at, count in zip(
        changed, unnamed.count_many([("", texts[at]) for at in changed]), strict=True
    ):
        tokens[at] = count
    thoughts = add_thoughts(
        texts,
        tokens,
        lines.positions,
        context.thoughts,
        sealer=identity.sealer,
        count=lambda text: unnamed.count_many([("", text)])[0],
        most=context.window.budget.prompt // LARGEST_SHARE,
    )
    messages = list(map(PromptMessage, lines.roles, texts))
    positions = list(lines.positions)
    words = {positions[at]: said for at, said in marks.items()}
    return History(messages, tokens, positions, thoughts, words)


def _mark_lines(texts: list[str], lines: SealedHistory, marks: AudienceMarks) -> dict[int, str]:
    """Put who knows a line before each that is not for everyone; the words, by place in `texts`."""
    found: dict[int, str] = {}
    for at, audience in enumerate(lines.audiences):
        if audience != PUBLIC and (words := marks.words(audience)):
            found[at], texts[at] = words, put_mark(texts[at], words)
    return found


def fit(
    context: PromptContext, items: Sequence[Item], *, count: Counter, reserved: int = 0
) -> tuple[Plan, History, list[LeftOut]]:
    """What is always sent, counted, and the lines beside it; and the summary, if it is left out.

    The lines leave `reserved` tokens to others, unless they have to reach back to a summary. A
    summary that the kept lines do not follow on from is left out, as is one that would leave no
    room for what has to be sent; but a campaign's stays, and its history holds what it does not
    tell.

    Raises:
        ContextOverflowError: What is always sent is over the budget by itself.
    """
    budget, summarised = context.window.budget, context.loaded.summary
    shape = context.window.spec.shape
    summary = next((item for item in items if item.kind == SUMMARY), None)
    if summary is None or summarised is None or context.loaded.sums_rounds:
        fixed = plan(items, budget=budget, count=count, shape=shape)
        return fixed, _after(context, _begin(context, fixed, reserved, count)), []
    kind: ReasonKind = "summary_no_room"
    try:
        fixed = plan(items, budget=budget, count=count, shape=shape)
    except ContextOverflowError:
        pass
    else:
        begin = _begin(context, fixed, reserved, count)
        history = _following(context, fixed, begin, summarised.path_tokens)
        if history is not None:
            return fixed, history, []
        kind = "summary_too_old"
    rest = [item for item in items if item is not summary]
    fixed = plan(rest, budget=budget, count=count, shape=shape)
    reasons = [Reason(kind, count=each.count) for each in summary.reasons]
    left_out = structs.replace(summary, tokens=count(summary.text)).left_out(*reasons)
    return fixed, _after(context, _begin(context, fixed, reserved, count)), [left_out]


def _begin(context: PromptContext, fixed: Plan, reserved: int, count: Counter) -> int:
    """Stored tokens from the root after which history fits beside what is always sent."""
    window, loaded = context.window, context.loaded

    def find_begin(taken: int) -> int:
        fits = window.to_stored(window.budget.for_history(taken))
        return max(eviction_point(loaded.path_tokens, fits), loaded.summed_up)

    # Lines are cut by their stored tokens, in which neither thoughts nor marks are.
    taken = fixed.fixed + reserved + sum(context.history.thoughts.values())
    begin = find_begin(taken)
    if not context.history.marks:
        return begin
    history = _after(context, begin)
    kept = Counts(history.marks[at] for at in history.positions if at in history.marks)
    return find_begin(
        taken + sum(times * count(put_mark("", each)) for each, times in kept.items())
    )


def _following(context: PromptContext, fixed: Plan, begin: int, summarised: int) -> History | None:
    """History that reaches back to where a summary ends; None where there is no room for that."""
    room = context.window.budget.for_reaching(fixed.fixed)
    most, path_tokens = context.window.to_stored(room), context.loaded.path_tokens
    start = joined(begin, summarised=summarised, path_tokens=path_tokens, most=most)
    if start is None:
        return None
    history = _after(context, start)
    # Stored counts may be estimates: what they let through has to fit as it is counted.
    return history if start == begin or sum(history.tokens) <= room else None


def _after(context: PromptContext, begin: int) -> History:
    """The lines that stand wholly after `begin` stored tokens from the root."""
    history, stored = context.history, context.lines.tokens
    start = context.loaded.path_tokens - sum(stored)
    dropped = 0
    for tokens in stored:
        if start >= begin:
            break
        start += tokens
        dropped += 1
    return History(
        history.messages[dropped:],
        history.tokens[dropped:],
        history.positions[dropped:],
        history.thoughts,
        history.marks,
    )
