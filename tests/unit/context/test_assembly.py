"""Assembly: what is sent fits, stands in order, and is the same for the same input."""

from __future__ import annotations

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from msgspec.structs import replace

from backend.context.assembly import AssembledPrompt, History, PromptItem, assemble, plan
from backend.context.budget import Budget, ContextOverflowError
from backend.context.record import hash_prompt
from backend.core.reasons import Reason
from backend.generation.model import PromptMessage
from backend.generation.tokens import MESSAGE_OVERHEAD


def count(text: str) -> int:
    """Words, so that a test can count along."""
    return len(text.split())


def words(number: int, label: str = "w") -> str:
    return " ".join(f"{label}{index}" for index in range(number))


def omitted(number: int) -> str:
    return f"[... {number} messages omitted ...]"


def memory(items: object) -> str:
    return "memory " + " ".join(item.text for item in items)  # type: ignore[attr-defined]


def item(kind: str, size: int, place: str, *, depth: int = 0) -> PromptItem:
    role = "user" if place == "line" else "system"
    return PromptItem(
        kind=kind,
        title=kind,
        text=words(size, kind),
        place=place,  # type: ignore[arg-type]
        depth=depth,
        role=role,  # type: ignore[arg-type]
        reasons=[Reason("card")],
    )


def history(sizes: list[int]) -> History:
    messages = [
        PromptMessage("user" if index % 2 else "assistant", words(size, f"m{index}x"))
        for index, size in enumerate(sizes)
    ]
    tokens = [count(message.text) + MESSAGE_OVERHEAD for message in messages]
    return History(messages, tokens, list(range(len(sizes))))


def real_tokens(messages: list[PromptMessage]) -> int:
    return sum(count(message.text) + MESSAGE_OVERHEAD for message in messages)


def budget(total: int, **changes: int) -> Budget:
    values = {
        "history": total,
        "retrieval": total,
        "reply_reserve": 10,
        "min_tail_messages": 4,
        **changes,
    }
    return Budget(total=total, **values)


ITEMS = st.lists(
    st.builds(
        item,
        st.sampled_from(["system_prompt", "character", "note"]),
        st.integers(1, 30),
        st.sampled_from(["head", "depth", "tail"]),
        depth=st.integers(0, 12),
    ),
    max_size=5,
)
SIZES = st.lists(st.integers(1, 40), max_size=40)


def build(
    items: list[PromptItem], sizes: list[int], limit: Budget, retrieved: list[int] | None = None
) -> AssembledPrompt:
    line = item("user_line", 3, "line")
    return assemble(
        plan([*items, line], budget=limit, count=count),
        history(sizes),
        count=count,
        render_omitted=omitted,
        retrieved=[
            PromptItem(
                kind="memory",
                title=str(index),
                text=words(size, "r"),
                place="memory",
                reasons=[Reason("words")],
                tokens=size,
            )
            for index, size in enumerate(retrieved or [])
        ],
        render_memory=memory,
    )


@given(ITEMS, SIZES, st.integers(60, 2_000), st.lists(st.integers(1, 50), max_size=6))
def test_what_is_sent_never_exceeds_the_limit(
    items: list[PromptItem], sizes: list[int], total: int, retrieved: list[int]
) -> None:
    limit = budget(total)
    try:
        assembled = build(items, sizes, limit, retrieved)
    except ContextOverflowError as error:
        assert error.needed > error.available  # either outcome is right  # noqa: PT017  # either outcome is right
        return
    assert real_tokens(assembled.messages) <= limit.prompt
    assert real_tokens(assembled.messages) <= assembled.tokens


@given(ITEMS, st.lists(st.integers(1, 40), min_size=6, max_size=40), st.integers(100, 900))
def test_truncation_keeps_the_first_message_and_the_tail(
    items: list[PromptItem], sizes: list[int], total: int
) -> None:
    try:
        assembled = build(items, sizes, budget(total))
    except ContextOverflowError:
        reject()
    lines = history(sizes).messages
    sent = [message for message in assembled.messages if message in lines]
    assert sent[0] == lines[0]
    assert sent[-2:] == lines[-2:]
    stop = assembled.gap.stop if assembled.gap else 0
    assert sent == ([lines[0], *lines[stop:]] if assembled.gap else lines)


@given(ITEMS, SIZES, st.integers(60, 2_000))
def test_growing_the_limit_never_drops_what_was_there(
    items: list[PromptItem], sizes: list[int], total: int
) -> None:
    try:
        small = build(items, sizes, budget(total))
    except ContextOverflowError:
        reject()
    large = build(items, sizes, budget(total + 1))
    lines = set(history(sizes).messages)
    assert {m for m in small.messages if m in lines} <= {m for m in large.messages if m in lines}


@given(ITEMS, SIZES, st.integers(60, 2_000))
def test_the_same_input_gives_the_same_prompt(
    items: list[PromptItem], sizes: list[int], total: int
) -> None:
    try:
        first = build(items, sizes, budget(total))
    except ContextOverflowError:
        reject()
    second = build(items, sizes, budget(total))
    assert hash_prompt(first.messages) == hash_prompt(second.messages)


@given(ITEMS, SIZES, st.integers(300, 900), st.lists(st.integers(1, 50), max_size=6))
def test_what_is_stable_begins_the_next_turn_s_prompt_too(
    items: list[PromptItem], sizes: list[int], total: int, retrieved: list[int]
) -> None:
    try:
        now = build(items, sizes, budget(total), retrieved)
        later = build(items, [*sizes, 5, 7], budget(total), [9])
    except ContextOverflowError:
        reject()
    if later.gap is None:
        assert later.messages[: now.stable] == now.messages[: now.stable]
        assert later.stable >= now.stable


def test_without_notes_all_but_what_was_retrieved_and_the_line_is_stable() -> None:
    assembled = build([item("system_prompt", 2, "head")], [4] * 6, budget(500), [3])
    assert (len(assembled.messages), assembled.stable) == (9, 7)
    noted = [item("system_prompt", 2, "head"), item("note", 2, "depth", depth=3)]
    assert build(noted, [4] * 6, budget(500)).stable == 5


def test_sections_stand_in_their_order() -> None:
    items = [
        item("system_prompt", 2, "head"),
        item("character", 2, "head"),
        item("post_history", 2, "tail"),
    ]
    assembled = build(items, [3, 3], budget(500), [4])
    roles = [message.role for message in assembled.messages]
    assert roles == ["system", "assistant", "user", "system", "user", "system"]
    assert assembled.messages[0].text.startswith("system_prompt0 system_prompt1\n\ncharacter0")
    assert assembled.messages[3].text.startswith("memory ")
    assert assembled.messages[4].text.startswith("user_line0")
    assert assembled.messages[5].text.startswith("post_history0")


@pytest.mark.parametrize(("depth", "place"), [(0, 5), (1, 4), (2, 3), (3, 2), (4, 1), (99, 1)])
def test_depth_counts_messages_from_the_end(depth: int, place: int) -> None:
    # head, three lines of history, the user's line
    items = [item("system_prompt", 2, "head"), item("note", 2, "depth", depth=depth)]
    assembled = build(items, [3, 3, 3], budget(500))
    found = [i for i, m in enumerate(assembled.messages) if m.text.startswith("note0")]
    assert found == [place]


def test_beyond_the_beginning_of_a_short_chat_the_deeper_stands_above() -> None:
    items = [
        item("near", 1, "depth", depth=5),
        item("far", 1, "depth", depth=50),
        replace(item("late", 1, "depth", depth=70), from_start=True),
        replace(item("later", 1, "depth", depth=90), from_start=True),
    ]
    sent = [message.text for message in build(items, [3], budget(1000)).messages]
    line = words(3, "user_line")
    assert sent == ["far0", "near0", words(3, "m0x"), "late0", "later0", line]


def test_what_joins_stands_in_one_message_with_the_item_before_it() -> None:
    items = [
        item("top", 1, "depth", depth=0),
        replace(item("note", 1, "depth", depth=0), joins=True),
        item("other", 1, "depth", depth=0),
    ]
    sent = [message.text for message in build(items, [3], budget(1000)).messages]
    assert sent == [words(3, "m0x"), words(3, "user_line"), "top0\nnote0", "other0"]


def test_an_item_whose_depth_falls_into_the_gap_is_kept() -> None:
    items = [item("note", 2, "depth", depth=8)]
    assembled = build(items, [20] * 12, budget(200))
    assert assembled.gap is not None
    texts = [message.text for message in assembled.messages]
    place = texts.index(omitted(assembled.gap.count))
    assert texts[place + 1].startswith("note0")


def test_retrieved_items_go_before_any_of_the_history() -> None:
    # Both items fit their share; the section's own words make it too much.
    assembled = build([], [20, 20], budget(100), [20, 15])
    assert assembled.gap is None
    assert [each.title for each in assembled.retrieved] == ["0"]
    assert [(each.title, each.reasons) for each in assembled.left_out] == [
        ("1", [Reason("truncated")])
    ]


def test_an_overflow_itemises_every_section() -> None:
    with pytest.raises(ContextOverflowError) as caught:
        build([item("character", 90, "head")], [], budget(60))
    assert caught.value.status == 422
    assert {"kind": "character", "title": "character", "tokens": 90} in caught.value.sections


def test_history_that_cannot_be_truncated_enough_overflows() -> None:
    with pytest.raises(ContextOverflowError) as caught:
        build([], [50, 50], budget(60))
    assert caught.value.sections[-1]["kind"] == "history"
