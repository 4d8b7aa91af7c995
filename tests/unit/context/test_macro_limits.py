"""Limits of macro expansion: depth, size and time."""

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
from backend.context.macros.model import MAX_DEPTH, MAX_REQUEST_CHARACTERS, MAX_REQUEST_MACROS

CONTEXT = MacroContext(
    user="Anna",
    char="Mags",
    now=datetime(2026, 3, 4, 15, 5, 9, tzinfo=UTC),
    chat_seed=11,
    message_seed=22,
    model="demo",
    max_prompt=200_000,
    description="{{char}}: {{persona}}",
    persona="{{user}}: {{description}}",
)

PIECES = [
    *("{{", "}}", "{", "}", "::", ":", " ", "\n", ",", "!", "<USER>", "0", "a", "d6", "UTC+2"),
    *("if ", "else", "/if", "//", *sorted(MACROS)),
]
without_braces = st.characters(exclude_characters="{}<")
unknown_names = st.from_regex(r"[a-zA-Z_]{1,12}", fullmatch=True).filter(
    lambda name: name.lower() not in {*MACROS, "if", "else"}
)
scraps = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
calls = st.lists(st.sampled_from(["if a", "else", "/if", "trim", "user", "x", "incvar::n"])).map(
    lambda names: "\n".join(f"{{{{{name}}}}}" for name in names)
)


def said(text: str, **changes: Any) -> str:
    return expand(
        text, replace(CONTEXT, **changes), Variables(), place="scenario", budget=MacroBudget()
    ).text


@settings(deadline=None)
@given(scraps | calls | st.text())
def test_any_text_ends_and_the_same_text_comes_out_the_same(text: str) -> None:
    variables = Variables({"n": "1"})
    first = expand(text, CONTEXT, variables, place="scenario", budget=MacroBudget())
    assert expand(text, CONTEXT, variables, place="scenario", budget=MacroBudget()) == first
    assert variables == Variables({"n": "1"})


@given(st.text().filter(lambda text: not any(each in text for each in ("{{", "<", "\\"))))
def test_text_without_macros_is_the_very_same_object(text: str) -> None:
    variables = Variables()
    result = expand(text, CONTEXT, variables, place="scenario", budget=MacroBudget())
    assert result.text is text
    assert result.variables is variables


@given(unknown_names, st.sampled_from(["::", ":", " ", "-", "."]), st.text(without_braces))
def test_braces_around_an_unknown_name_are_unchanged(
    name: str, separator: str, argument: str
) -> None:
    text = f"{{{{{name}{separator}{argument}}}}}"
    assert said(text) == text


@given(st.text(without_braces), st.text())
def test_a_value_is_put_in_literally(before: str, value: str) -> None:
    assert said(f"{before}{{{{lastMessage}}}}", last_message=value) == before + value


@pytest.mark.parametrize("braces", ["{{", "}}", "{", "<", "{{random::", "{{if "])
def test_a_megabyte_of_braces_that_never_close_is_only_text(braces: str) -> None:
    text = braces * (1_000_000 // len(braces))
    assert said(text) is text


def test_conditions_that_never_end_are_read_in_one_pass() -> None:
    text = "{{if a}}" * 30_000
    assert said(text) == text


@pytest.mark.parametrize(
    ("opening", "closing"), [("{{", "}}"), ("{{random::", "}}"), ("{{if a}}", "{{/if}}")]
)
@pytest.mark.parametrize("levels", [MAX_DEPTH + 2, 2_000])
def test_nesting_that_is_too_deep_is_refused(opening: str, closing: str, levels: int) -> None:
    with pytest.raises(MacroLimitError, match=r"scenario need more than 32 levels of nesting"):
        said(opening * levels + closing * levels)


@pytest.mark.parametrize("opening", ["{{", "{{random::", "{{// ", "{{if "])
def test_a_megabyte_of_nested_braces_is_refused(opening: str) -> None:
    levels = 1_000_000 // len(opening)
    with pytest.raises(MacroLimitError):
        said(opening * levels + "}}" * levels)


def test_nesting_up_to_the_limit_is_expanded() -> None:
    assert said("{{" * MAX_DEPTH + "{{user}}" + "}}" * MAX_DEPTH) == (
        "{{" * MAX_DEPTH + "Anna" + "}}" * MAX_DEPTH
    )


def test_more_macros_than_the_limit_are_refused() -> None:
    assert said("{{user}}" * MAX_MACROS) == "Anna" * MAX_MACROS
    with pytest.raises(MacroLimitError, match=r"10,000 macros"):
        said("{{user}}" * (MAX_MACROS + 1))


def test_fields_that_multiply_each_other_are_refused() -> None:
    with pytest.raises(MacroLimitError, match=r"10,000 macros"):
        said(
            "{{description}}",
            description="{{personality}}" * 50,
            personality="{{mesExamples}}" * 50,
            mes_examples="{{charPrompt}}" * 50,
            char_prompt="{{noop}}" * 50,
        )


@pytest.mark.parametrize(
    "text",
    [
        "{{summary}}" * 5,
        "{{if {{summary}}}}{{/if}}" * 5,
        "{{setvar::x::ab}}" + "{{addvar::x::{{getvar::x}}}}" * 40,
    ],
    ids=["written", "only read", "a variable that doubles itself"],
)
def test_text_beyond_the_limit_is_refused(text: str) -> None:
    long = "x" * (MAX_CHARACTERS // 4)
    assert said("{{summary}}" * 3, summary=long) == long * 3
    with pytest.raises(MacroLimitError, match=r"1,000,000 characters"):
        said(text, summary=long)


def test_the_error_names_the_field_and_the_limit() -> None:
    with pytest.raises(MacroLimitError) as caught:
        said("{{user}}" * (MAX_MACROS + 1))
    problem = caught.value.to_problem()
    assert problem["status"] == 422
    assert problem["type"].endswith(":macro-limit")
    assert (problem["place"], problem["limit"], problem["most"]) == ("scenario", "macros", 10_000)


PLAIN_CONTEXT = replace(CONTEXT, description="", persona="")
FIELDS = ("description", "personality", "scenario", "mes_examples", "char_prompt", "persona")
FIELD_PIECES = [
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
texts = st.lists(st.sampled_from(FIELD_PIECES), max_size=20).map("".join)
cards = st.fixed_dictionaries(dict.fromkeys(FIELDS, texts))


def expand_all(
    fields: list[str],
    budget: MacroBudget,
    variables: Variables | None = None,
    *,
    description: str = "",
) -> None:
    """Expand fields in turn, as a prompt is made of them."""
    context = replace(PLAIN_CONTEXT, description=description)
    variables = variables or Variables()
    for number, field in enumerate(fields):
        expansion = expand(field, context, variables, place=f"{number}", budget=budget)
        variables = expansion.variables


@settings(deadline=None)
@given(card=cards, greetings=st.lists(texts, max_size=8), most=st.integers(0, 3_000))
def test_no_card_makes_a_request_exceed_its_budget(
    card: dict[str, str], greetings: list[str], most: int
) -> None:
    budget = MacroBudget(characters=most)
    variables = Variables()
    written = 0
    for number, field in enumerate([*card.values(), *greetings]):
        try:
            expansion = expand(
                field,
                replace(PLAIN_CONTEXT, **cast("dict[str, Any]", card)),
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


def test_writing_a_variable_costs_as_much_as_copying_all() -> None:
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
    fields = [*[prose] * 12, *["{{description}}\n" + prose[:4_000]] * 12]
    expand_all(fields, budget, description=prose)
    assert budget.characters < MAX_REQUEST_CHARACTERS
    assert budget.macros < MAX_REQUEST_MACROS
