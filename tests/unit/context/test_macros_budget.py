"""The fields of one request share what macros may take; all work is paid for before it is done."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.context.macros import (
    MACROS,
    MAX_CHARACTERS,
    MAX_MACROS,
    MacroBudget,
    MacroContext,
    MacroLimitError,
    Variables,
    expand,
)
from backend.context.macros.model import MAX_REQUEST_CHARACTERS, MAX_REQUEST_MACROS

CONTEXT = MacroContext(
    user="Anna",
    char="Mags",
    now=datetime(2026, 3, 4, 15, 5, 9, tzinfo=UTC),
    chat_seed=11,
    message_seed=22,
    model="demo",
    max_prompt=200_000,
)
FIELDS = ("description", "personality", "scenario", "mes_examples", "char_prompt", "persona")
PIECES = [
    *("{{", "}}", "::", " ", "\n", "<USER>", "some words of the field "),
    *(f"{{{{{name}}}}}" for name in ("description", "personality", "scenario", "persona", "user")),
    *("{{setvar::a::{{getvar::a}}{{getvar::a}}x}}", "{{addvar::b::yy}}", "{{getvar::a}}"),
    *(
        "{{random::a::{{scenario}}}}",
        "{{pick::b,c}}",
        "{{mesExamples}}",
        "{{reverse::{{persona}}}}",
    ),
    *("{{// ", "{{if a}}", "{{/if}}", "{{trim}}", "{{noop}}", *sorted(MACROS)),
]
texts = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)
cards = st.fixed_dictionaries(dict.fromkeys(FIELDS, texts))


def expand_all(
    fields: list[str],
    budget: MacroBudget,
    variables: Variables | None = None,
    *,
    description: str = "",
) -> None:
    """Expand fields in turn, as a prompt is made of them."""
    context = replace(CONTEXT, description=description)
    variables = variables or Variables()
    for number, field in enumerate(fields):
        expansion = expand(field, context, variables, place=f"{number}", budget=budget)
        variables = expansion.variables


@settings(deadline=None)
@given(card=cards, greetings=st.lists(texts, max_size=8), most=st.integers(0, 3_000))
def test_whatever_a_card_holds_a_request_puts_out_no_more_than_its_budget(
    card: dict[str, str], greetings: list[str], most: int
) -> None:
    budget = MacroBudget(characters=most)
    variables = Variables()
    written = 0
    for number, field in enumerate([*card.values(), *greetings]):
        try:
            expansion = expand(
                field,
                replace(CONTEXT, **cast("dict[str, Any]", card)),
                variables,
                place=f"{number}",
                budget=budget,
            )
        except MacroLimitError:
            continue
        variables = expansion.variables
        if expansion.text is not field:
            written += len(expansion.text)

    assert written <= most
    assert sum(map(len, variables.local.values())) <= most


def test_greetings_that_each_stay_below_a_field_s_limit_are_bounded_together() -> None:
    budget = MacroBudget()
    greetings = ["{{description}}" * 4] * 40

    with pytest.raises(MacroLimitError, match=r"Together with the fields before it.* 2,000,000"):
        expand_all(greetings, budget, description="x" * 200_000)
    assert budget.characters <= MAX_REQUEST_CHARACTERS + MAX_CHARACTERS


def test_variables_that_fields_double_in_turn_are_bounded_together() -> None:
    doubled = "{{setvar::a::{{getvar::a}}{{getvar::a}}}}"
    fields = ["{{setvar::a::xxxxxxxx}}", *[doubled] * 40]

    with pytest.raises(MacroLimitError) as caught:
        expand_all(fields, MacroBudget())
    assert caught.value.extra["limit"] == "characters"


def test_macros_of_all_fields_are_counted_together() -> None:
    budget = MacroBudget()
    expand_all(["{{user}}" * MAX_MACROS] * 2, budget)
    assert budget.macros == MAX_REQUEST_MACROS

    with pytest.raises(MacroLimitError) as caught:
        expand_all(["{{user}}"], budget)
    problem = caught.value.to_problem()
    assert (problem["place"], problem["limit"], problem["scope"]) == ("0", "macros", "request")


def test_a_field_is_paid_for_before_it_is_read() -> None:
    budget = MacroBudget(characters=1_000)

    with pytest.raises(MacroLimitError):
        expand_all(["{{// a comment that comes to nothing " + "x" * 1_000 + "}}"], budget)


def test_a_text_without_macros_costs_nothing() -> None:
    budget = MacroBudget(characters=0, macros=0)

    expand_all(["x" * 100_000], budget)

    assert (budget.characters, budget.macros) == (0, 0)


def test_writing_one_of_many_variables_costs_what_copying_them_does() -> None:
    many = Variables({str(number): "" for number in range(5_000)})
    budget = MacroBudget()

    expand_all(["{{setvar::a::1}}{{setvar::b::1}}"], budget, many)

    assert 5_000 <= budget.characters < 6_000


def test_a_share_ends_before_the_whole_does() -> None:
    whole = MacroBudget(characters=10_000)
    share = whole.share(characters=1_000, macros=10)

    with pytest.raises(MacroLimitError, match=r"1,000 characters"):
        expand_all(["{{user}}" + "x" * 2_000], share)
    expand_all(["{{user}}" + "x" * 2_000], whole)
    with pytest.raises(MacroLimitError, match=r"10,000 characters"):
        expand_all(["{{user}}" + "x" * 9_000], whole)


def test_a_large_and_honest_card_is_far_from_the_limits() -> None:
    prose = "{{char}} looks at {{user}} and says nothing for a while. " * 350  # 20,000 characters
    budget = MacroBudget()

    expand_all(
        [*[prose] * 12, *["{{description}}\n" + prose[:4_000]] * 12], budget, description=prose
    )

    assert budget.characters < MAX_REQUEST_CHARACTERS
    assert budget.macros < MAX_REQUEST_MACROS
