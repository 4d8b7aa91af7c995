"""Units that messages are counted in, and the cost of a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.chats.token_counting import CountUnit
from backend.generation.tokens import MESSAGE_OVERHEAD, get_tokenizer

UNITS = st.builds(CountUnit, st.sampled_from(["o200k_base", "gemma3"]), names=st.booleans())


@pytest.mark.parametrize("tokenizer", ["o200k_base", "gemma3"])
@given(author=st.text(max_size=20), text=st.text(max_size=200))
def test_a_message_costs_its_line_as_it_is_sent_and_its_marks(
    tokenizer: str, author: str, text: str
) -> None:
    count = get_tokenizer(tokenizer).count
    alone, named = CountUnit(tokenizer, names=False), CountUnit(tokenizer, names=True)
    line = f"{author}: {text}" if author else text
    assert alone.count(author, text) == count(text) + MESSAGE_OVERHEAD
    assert named.count(author, text) == count(line) + MESSAGE_OVERHEAD


@given(UNITS, st.lists(st.tuples(st.text(max_size=8), st.text(max_size=80)), max_size=6))
def test_many_messages_cost_the_sum_of_their_costs(
    unit: CountUnit, lines: list[tuple[str, str]]
) -> None:
    assert unit.count_many(lines) == [unit.count(*line) for line in lines]
    assert CountUnit.parse(str(unit)) == unit
