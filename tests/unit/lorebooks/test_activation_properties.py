"""What holds of every scan, whatever the books."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from backend.lorebooks.activation.compiled import CompiledBook
from backend.lorebooks.activation.outcome import ScanOutcome
from backend.lorebooks.entries import Logic, LoreEntry
from tests.unit.lorebooks.scans import book, scanned, titles

WORDS: list[str] = ["sea", "inn", "rain", "queen", "iron gate", "moon", "/r[ae]+in?/"]
LOGICS: tuple[Logic, ...] = ("and_any", "not_all", "not_any", "and_all")

texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
keys = st.lists(st.sampled_from(WORDS), max_size=3)


@st.composite
def lore_entries(draw: st.DrawFn, title: str) -> LoreEntry:
    return LoreEntry(
        title=title,
        content=draw(st.sampled_from(["", "@@ignore_on_max_context\n"])) + draw(texts),
        keys=draw(keys),
        secondary_keys=draw(keys),
        logic=draw(st.sampled_from(LOGICS)),
        enabled=draw(st.integers(0, 5)) > 0,
        constant=draw(st.integers(0, 5)) == 0,
        order=draw(st.integers(-3, 3)),
        ignore_budget=draw(st.integers(0, 5)) == 0,
        exclude_recursion=draw(st.booleans()),
        prevent_recursion=draw(st.booleans()),
        delay_until_recursion=draw(st.integers(0, 2)),
        probability=draw(st.sampled_from([0, 50, 100, 100])),
        group=draw(st.sampled_from(["", "", "a", "a,b"])),
        sticky=draw(st.none() | st.integers(0, 5)),
        cooldown=draw(st.none() | st.integers(0, 5)),
        match_whole_words=draw(st.none() | st.booleans()),
        case_sensitive=draw(st.none() | st.booleans()),
    )


@st.composite
def book_lists(draw: st.DrawFn) -> list[CompiledBook]:
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    return [
        book(
            *(draw(lore_entries(f"{number}.{place}")) for place in range(count)),
            name=f"Book {number}",
            token_budget=draw(st.none() | st.integers(0, 20)),
        )
        for number, count in enumerate(counts)
    ]


chats = st.lists(texts, min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(books=book_lists(), chat=chats, seed=st.integers(0, 2**63), budget=st.integers(0, 40))
def test_the_same_seed_gives_the_same_outcome(
    books: list[CompiledBook], chat: list[str], seed: int, budget: int
) -> None:
    first = scanned(books, *chat, seed=seed, budget=budget)

    assert scanned(books, *chat, seed=seed, budget=budget) == first
    assert scanned(books, *chat, seed=seed, budget=budget, timed=first.timed) == first


@settings(max_examples=60, deadline=None)
@given(books=book_lists(), chat=chats, seed=st.integers(0, 99))
def test_what_is_in_stands_in_ascending_order(
    books: list[CompiledBook], chat: list[str], seed: int
) -> None:
    orders = [one.order for one in scanned(books, *chat, seed=seed).activated]

    assert orders == sorted(orders)


@settings(max_examples=60, deadline=None)
@given(books=book_lists(), chat=chats, budget=st.integers(0, 40))
def test_only_what_ignores_the_budget_and_constants_go_over_it(
    books: list[CompiledBook], chat: list[str], budget: int
) -> None:
    outcome = scanned(books, *chat, budget=budget)
    entries = {one.entry_id: one for lore in books for one in lore.entries}
    bound = [
        one
        for one in outcome.activated
        if not one.is_constant and not entries[one.entry_id].entry.ignore_budget
    ]

    assert sum(one.tokens for one in bound) <= budget
    assert outcome.tokens == sum(one.tokens for one in outcome.activated)
    for lore in books:
        if lore.fields.token_budget is not None:
            of_book = [one.tokens for one in bound if one.book_id == lore.book_id]
            assert sum(of_book) <= lore.fields.token_budget


@settings(max_examples=60, deadline=None)
@given(books=book_lists(), chat=chats, budget=st.integers(0, 40))
def test_every_entry_is_in_or_out_or_counted_and_has_a_reason(
    books: list[CompiledBook], chat: list[str], budget: int
) -> None:
    outcome = scanned(books, *chat, budget=budget)
    listed = [one.entry_id for one in outcome.activated]
    listed += [one.entry_id for one in outcome.left_out]

    assert len(listed) == len(set(listed))
    assert len(listed) + outcome.not_found == sum(len(lore.entries) for lore in books)
    assert all(one.reasons for one in outcome.activated)
    assert all(one.reason for one in outcome.left_out)


@settings(max_examples=60, deadline=None)
@given(books=book_lists(), chat=chats, seed=st.integers(0, 99))
def test_draws_do_not_depend_on_the_order_of_books(
    books: list[CompiledBook], chat: list[str], seed: int
) -> None:
    def drawn(outcome: ScanOutcome) -> set[str]:
        return {one.title for one in outcome.left_out if one.reason.kind == "probability"}

    alone = [lore for lore in books if not any(one.groups for one in lore.entries)]
    forth = scanned(alone, *chat, seed=seed)
    back = scanned(alone[::-1], *chat, seed=seed)

    assert set(titles(forth)) == set(titles(back))
    assert drawn(forth) == drawn(back)


@settings(max_examples=60, deadline=None)
@given(books=book_lists(), chat=chats)
def test_of_a_group_no_two_are_in(books: list[CompiledBook], chat: list[str]) -> None:
    outcome = scanned(books, *chat)
    entries = {one.entry_id: one for lore in books for one in lore.entries}
    groups = [name for one in outcome.activated for name in entries[one.entry_id].groups]

    assert len(groups) == len(set(groups))
