"""How much of a book a scan expands and counts: no more than a prompt could hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backend.context.macros import MacroLimitError
from backend.generation.tokens import choose_tokenizer, get_tokenizer
from backend.lorebooks.activation import window
from backend.lorebooks.activation.compiled import LONGEST_TOKEN
from backend.lorebooks.activation.outcome import TOO_MANY_MACROS
from backend.lorebooks.activation.selection import MIN_READ_CHARACTERS, NO_ROOM, TOO_LONG
from tests.unit.lorebooks.scans import book, entry, refusals, said, scanned, titles, words_in


class Recorder:
    """A function from text, and the texts that it was given."""

    def __init__(self, does: Callable[[str], object]) -> None:
        self.texts: list[str] = []
        self._does = does

    def __call__(self, text: str) -> object:
        self.texts.append(text)
        return self._does(text)

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))


def recording_count() -> Recorder:
    return Recorder(words_in)


def recording_expand() -> Recorder:
    return Recorder(lambda text: text.replace("{{char}}", "Mags"))


def test_constant_entries_that_find_no_room_are_not_expanded() -> None:
    expand, count = recording_expand(), recording_count()
    entries = (
        entry(f"{number}", content="{{char}} word word word", constant=True, order=1000 - number)
        for number in range(400)
    )

    outcome = scanned(book(*entries), "Hello.", room=40, expand=expand, count=count)

    assert len(titles(outcome)) == 10
    assert len(expand.texts) == len(count.texts) == 10
    assert set(refusals(outcome).values()) == {said(NO_ROOM)}


def test_entries_after_the_one_that_ended_the_budget_are_not_expanded() -> None:
    expand = recording_expand()
    entries = (
        entry(f"{number}", "sea", content="{{char}} at sea", order=1000 - number)
        for number in range(400)
    )

    outcome = scanned(book(*entries), "The sea.", budget=10, expand=expand)

    assert len(titles(outcome)) == 3
    assert len(expand.texts) == 3
    assert set(refusals(outcome).values()) == {"budget"}


def test_the_entry_that_finds_the_budget_used_up_ends_the_scan() -> None:
    lore = book(
        entry("First", "sea", content="one two three", order=3),
        entry("Second", "sea", content="{{char}}", order=2),
        entry("Third", "three"),
    )

    expand = recording_expand()
    outcome = scanned(lore, "The sea.", budget=4, expand=expand)

    assert titles(outcome) == ["First"]
    assert refusals(outcome) == {"Second": "budget"}
    assert outcome.not_found == 1
    assert expand.texts == []


@pytest.mark.parametrize("content", ["word " * 4_000, "{{char}} " + "word " * 4_000])
def test_a_scan_counts_no_more_characters_than_a_prompt_could_hold(content: str) -> None:
    count = recording_count()
    entries = (entry(f"{number}", content=content, constant=True) for number in range(400))

    outcome = scanned(book(*entries), "Hello.", room=1_000, count=count)

    assert count.characters <= MIN_READ_CHARACTERS
    assert titles(outcome) == []
    assert refusals(outcome)["0"] == said(NO_ROOM)
    assert refusals(outcome)["399"] == said(TOO_LONG)
    assert len(refusals(outcome)) == 400


def test_texts_without_macros_are_counted_once_a_revision() -> None:
    lore = book(
        entry("Plain", content="one two three", constant=True),
        entry("Out", "never", content="one two three"),
        entry("With a macro", content="{{char}} nods", constant=True),
    )
    first, second, other = recording_count(), recording_count(), recording_count()

    once = scanned(lore, "Hello.", count=first, vocabulary="words")
    again = scanned(lore, "Hello.", count=second, vocabulary="words")
    scanned(lore, "Hello.", count=other, vocabulary="other words")

    assert once == again
    assert sorted(first.texts) == ["one two three", "{{char}} nods"]
    assert second.texts == ["{{char}} nods"]
    assert sorted(other.texts) == sorted(first.texts)


def test_an_entry_whose_macros_do_too_much_is_left_out_and_the_others_come_in() -> None:
    def expand(text: str) -> str:
        if "bomb" in text:
            raise MacroLimitError(place="lore", limit="characters", most=1_000_000)
        return text.replace("{{char}}", "Mags")

    lore = book(
        entry("Bomb", "sea", content="{{char}} bomb"),
        entry("Key", "{{bomb}}", content="Never."),
        entry("Fine", "sea", content="{{char}} nods."),
    )

    outcome = scanned(lore, "The sea.", expand=expand)

    assert titles(outcome) == ["Fine"]
    assert refusals(outcome) == {"Bomb": "macros: more than 1,000,000 characters"}
    assert outcome.notes == [TOO_MANY_MACROS]


@pytest.mark.parametrize("vocabulary", ["o200k_base", "gemma3"])
def test_no_token_is_longer_than_is_assumed(vocabulary: str) -> None:
    if choose_tokenizer(vocabulary) != vocabulary:
        pytest.skip("not installed")
    tokenizer = get_tokenizer(vocabulary)
    for character in " \n\t=-_*#.aA0/|\u3000":
        length = 100 * LONGEST_TOKEN
        assert tokenizer.count(character * length) >= length // LONGEST_TOKEN


def test_the_books_of_a_scan_read_no_more_than_a_bound_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Newest messages first, and books in the order of precedence."""
    monkeypatch.setattr(window, "MAX_WINDOW_WORK", 5 * (window.BOOK_WORK + 100))
    books = [book(entry(f"{number}", "sea", "rain"), name=f"{number}") for number in range(4)]

    outcome = scanned(books, "The sea.", "The rain.", include_names=False)
    late = scanned(books, "Nothing.", "The sea.", include_names=False)

    assert sorted(titles(outcome)) == ["0", "1", "2", "3"]
    assert titles(late) == ["0"]
    assert late.notes == ["So many books are too much to look for in so much text."]
