from __future__ import annotations

import pytest

from backend.generation.tokens import choose_tokenizer, get_tokenizer
from backend.memory.embedding.remote import prepare_text, split_into_batches


def test_a_short_text_stays_as_it_is() -> None:
    assert prepare_text("  A ferry. \n") == "  A ferry. \n"


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_a_blank_text_becomes_something_that_providers_take(blank: str) -> None:
    assert prepare_text(blank) == "."


def test_half_an_emoji_is_replaced() -> None:
    assert prepare_text("an oar \ud83d") == "an oar ?"


@pytest.mark.parametrize("text", ["The ferry waits. ", "渡し船が待っている。", "🛶", "zzzz", "\n"])
def test_a_long_text_is_cut_to_the_limit_and_not_much_below(text: str) -> None:
    tokenizer = get_tokenizer(choose_tokenizer("gemma3"))

    cut = prepare_text(text * 20_000 + "end", longest=200)

    assert (text * 20_000).startswith(cut) or cut == "."
    assert tokenizer.count(cut) <= 200
    assert cut == "." or tokenizer.count(cut) > 150


def test_batches_keep_the_order_and_both_limits() -> None:
    texts = ["a" * 40_000, "b" * 70_000, "c", "d", "e", "f" * 200_000, "g"]

    made = [list(batch) for batch in split_into_batches(texts, most=3)]

    assert [text for batch in made for text in batch] == texts
    assert [len(batch) for batch in made] == [1, 3, 1, 1, 1]
    assert list(split_into_batches([], most=3)) == []
