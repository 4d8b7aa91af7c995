"""Whatever a field holds, its expansion ends, within the limits and without surprises."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

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
from backend.context.macros.model import MAX_DEPTH

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


def test_conditions_that_never_end_are_read_in_one_pass() -> None:
    text = "{{if a}}" * 30_000

    assert said(text) == text


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


def test_text_that_grows_beyond_the_limit_is_refused() -> None:
    long = "x" * (MAX_CHARACTERS // 4)

    assert said("{{summary}}" * 3, summary=long) == long * 3
    with pytest.raises(MacroLimitError, match=r"1,000,000 characters"):
        said("{{summary}}" * 5, summary=long)


def test_text_that_is_only_read_counts_as_well() -> None:
    with pytest.raises(MacroLimitError, match="characters"):
        said("{{if {{summary}}}}{{/if}}" * 5, summary="x" * (MAX_CHARACTERS // 4))


def test_a_variable_that_doubles_itself_is_refused() -> None:
    with pytest.raises(MacroLimitError, match="characters"):
        said("{{setvar::x::ab}}" + "{{addvar::x::{{getvar::x}}}}" * 40)


def test_the_error_tells_a_client_the_field_and_the_limit() -> None:
    with pytest.raises(MacroLimitError) as caught:
        said("{{user}}" * (MAX_MACROS + 1))

    problem = caught.value.to_problem()
    assert problem["status"] == 422
    assert problem["type"].endswith(":macro-limit")
    assert (problem["place"], problem["limit"], problem["most"]) == ("scenario", "macros", 10_000)
