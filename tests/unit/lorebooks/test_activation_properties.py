"""Properties of every scan, and scans of a SillyTavern lorebook."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.accounts.profile.settings import LoreStrategy
from backend.lorebooks.activation.compiled import CompiledBook
from backend.lorebooks.activation.outcome import ScanOutcome
from backend.lorebooks.entries import LinkSource, Logic, LoreEntry
from backend.regex.process import RegexProcess
from tests.unit.lorebooks.scans import book, entry, refusals, scanned, titles

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
def test_activated_entries_are_in_ascending_order(
    books: list[CompiledBook], chat: list[str], seed: int
) -> None:
    orders = [one.order for one in scanned(books, *chat, seed=seed).activated]
    assert orders == sorted(orders)


@settings(max_examples=60, deadline=None)
@given(books=book_lists(), chat=chats, budget=st.integers(0, 40))
def test_only_constant_and_unlimited_entries_exceed_the_budget(
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
def test_no_two_entries_of_a_group_are_activated(
    books: list[CompiledBook], chat: list[str]
) -> None:
    outcome = scanned(books, *chat)
    entries = {one.entry_id: one for lore in books for one in lore.entries}
    groups = [name for one in outcome.activated for name in entries[one.entry_id].groups]
    assert len(groups) == len(set(groups))


SOURCES: tuple[LinkSource, ...] = ("global", "character", "persona", "chat")


def in_turn(strategy: LoreStrategy, **settings: Any) -> ScanOutcome:
    """A scan of four books, each with an entry of a small and of a large order."""
    books: list[CompiledBook] = [
        book(
            entry(f"{source} small", "sea", content="one", order=10),
            entry(f"{source} large", "sea", content="one", order=90),
            name=source,
        )
        for source in SOURCES
    ]
    sources = {each.book_id: source for each, source in zip(books, SOURCES, strict=True)}
    return scanned(books, "sea", sources=sources, strategy=strategy, **settings)


@pytest.mark.parametrize(
    ("strategy", "third"),
    [
        ("evenly", ["global large", "character large", "global small", "character small"]),
        ("character_first", ["character large", "character small", "global large", "global small"]),
        ("global_first", ["global large", "global small", "character large", "character small"]),
    ],
)
def test_the_chat_s_books_ask_first_then_the_persona_s_then_as_is_set(
    strategy: LoreStrategy, third: list[str]
) -> None:
    first = ["chat large", "chat small", "persona large", "persona small"]
    for count, _ in enumerate([*first, *third], start=1):
        found = titles(in_turn(strategy, budget=count + 1))
        assert set(found) == {*first, *third} - set([*first, *third][count:])
    orders = [title.split()[1] for title in titles(in_turn(strategy))]
    assert orders == ["small"] * 4 + ["large"] * 4


def test_an_entry_that_would_fill_the_budget_to_the_last_token_is_too_long() -> None:
    lore = book(entry("It", "sea", content="one two three"))
    assert titles(scanned(lore, "sea", budget=3)) == []
    assert titles(scanned(lore, "sea", budget=4)) == ["It"]


def test_sticky_entries_get_tokens_before_others() -> None:
    lore = book(
        entry("Sticky", "sea", content="one two", sticky=9, order=1),
        entry("Other", "sky", content="one two", order=9),
    )
    state = scanned(lore, "sea", message_count=10).timed
    later = scanned(lore, "sky", message_count=12, timed=state, budget=3)
    assert titles(later) == ["Sticky"]


@pytest.mark.parametrize(
    ("levels", "found"), [([1], []), ([1, 2], ["B", "A"]), ([3, 7], ["B", "A"])]
)
def test_levels_of_recursion_follow_each_other_though_nothing_began_one(
    levels: list[int], found: list[str]
) -> None:
    entries = (
        entry(name, "sea", delay_until_recursion=level)
        for name, level in zip("AB", levels, strict=False)
    )
    assert titles(scanned(book(*entries), "sea")) == found


def test_a_group_loser_is_activated_if_the_winner_fails_its_probability() -> None:
    lore = book(
        entry("Winner", "sea", group="g", group_override=True, probability=0),
        entry("Loser", "sea", group="g"),
        entry("Spoken", "sea", content="The sea."),
    )
    outcome = scanned(lore, "sea")
    assert set(titles(outcome)) == {"Loser", "Spoken"}
    assert refusals(outcome) == {"Winner": "probability 0%"}


@pytest.mark.parametrize("own", [True, False])
def test_with_a_scan_depth_of_nothing_nothing_is_looked_at(own: bool) -> None:
    depth = {"scan_depth": 0} if own else {}
    lore = book(
        entry("Start", constant=True, content="The sea."),
        entry("Field", "scar", match_fields=["persona_description"], **depth),
        entry("Recursion", "sea", **depth),
    )
    settings = {} if own else {"scan_depth": 0}
    found = scanned(lore, "sea", fields={"persona_description": "A scar."}, **settings)
    assert titles(found) == ["Start"]


@pytest.mark.parametrize(
    ("logic", "is_in"),
    [("and_any", False), ("and_all", False), ("not_any", True), ("not_all", True)],
)
def test_a_blank_secondary_key_is_one_that_is_never_said(logic: Any, is_in: bool) -> None:
    lore = book(entry("It", "sea", secondary_keys=[""], logic=logic))
    assert titles(scanned(lore, "sea")) == (["It"] if is_in else [])


def test_a_regex_spans_messages_and_activated_contents() -> None:
    lore = book(entry("Fire", "dragon", content="fire"), entry("Both", "/dragon[^]*fire/"))
    assert set(titles(scanned(lore, "dragon"))) == {"Fire", "Both"}


@pytest.mark.parametrize(
    ("key", "text", "is_in"),
    [
        ("/dragon/ii", "a dragon", False),
        ("/dragon/ii", "so /dragon/ii it is", True),
        ("/dragon/d", "a dragon", False),
        ("/dragon/v", "a dragon", False),
        ("/dragon/y", "dragon", False),
        (r"/\x01dragon/y", "dragon", True),
        (r"/\p{L}+/u", "dragon", True),
        (r"/\p{L}/", "dragon", False),
        (r"/\p{L}/", "p{L}", True),
        ("/a{2,1}/", "aa", False),
        ("/a{2,1}/", "so /a{2,1}/ it is", True),
        (r"/[a-\d]/", "-", True),
        (r"/[a-\d]/", "b", False),
        (r"/[\d-a]/", "-", True),
    ],
)
def test_flags_and_classes_have_their_javascript_meaning(key: str, text: str, is_in: bool) -> None:
    outcome = scanned(book(entry("It", key)), text, include_names=False, evaluator=RegexProcess())
    assert titles(outcome) == (["It"] if is_in else [])


def test_the_largest_order_wins_a_group_across_books() -> None:
    first = book(entry("Small", "sea", group="g", group_override=True, order=1), name="Chat")
    second = book(entry("Large", "sea", group="g", group_override=True, order=9), name="Global")
    sources: dict[Any, LinkSource] = {first.book_id: "chat", second.book_id: "global"}
    assert titles(scanned([first, second], "sea", sources=sources)) == ["Large"]


def test_a_constant_entry_s_secondary_keys_count_for_its_group() -> None:
    lore = book(
        entry("Constant", "x", group="g", constant=True, secondary_keys=["fire", "ice"]),
        entry("Preferred", "dragon", group="g", group_override=True),
    )
    found = scanned(lore, "dragon fire ice", use_group_scoring=True)
    assert titles(found) == ["Constant"]
