"""Variables: read and written while a field is expanded, and handed back as new values."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from backend.context.macros import Expansion, MacroBudget, MacroContext, Variables, expand

CONTEXT = MacroContext(
    user="Anna",
    char="Mags",
    now=datetime(2026, 3, 4, 15, 5, 9, tzinfo=UTC),
    chat_seed=11,
    message_seed=22,
    model="demo",
    max_prompt=200_000,
)


def run(text: str, variables: Variables | None = None) -> Expansion:
    return expand(text, CONTEXT, variables or Variables(), place="scenario", budget=MacroBudget())


def test_a_variable_that_was_set_is_read_later_in_the_field() -> None:
    assert run("{{setvar::mood::dry}}[{{getvar::mood}}] [{{getvar::Mood}}]").text == "[dry] []"


def test_variables_carry_over_to_the_next_field() -> None:
    first = run("{{setvar::mood::dry}}")

    assert run("{{getvar::mood}}", first.variables).text == "dry"


def test_what_was_handed_in_is_never_changed() -> None:
    local, global_ = {"hp": "3"}, {"visits": "8"}

    _, after = run("{{incvar::hp}}{{setglobalvar::visits::9}}", Variables(local, global_))

    assert (local, global_) == ({"hp": "3"}, {"visits": "8"})
    assert after == Variables({"hp": "4"}, {"visits": "9"})


def test_a_field_that_only_reads_gives_back_the_same_variables() -> None:
    variables = Variables({"hp": "3"})

    assert run("{{getvar::hp}} {{user}}", variables).variables is variables


@pytest.mark.parametrize(
    ("value", "more", "sum_"),
    [
        ("2", "3", "5"),
        ("2", "-3.5", "-1.5"),
        ("0.1", "0.2", "0.3"),
        ("99", "1", "100"),
        ("", "7", "7"),
        ("fog", "bound", "fogbound"),
        ("1e5", "1", "1e51"),
        ("9" * 40, "1", "9" * 40 + "1"),
    ],
)
def test_addvar_adds_numbers_and_appends_texts(value: str, more: str, sum_: str) -> None:
    text, after = run(f"{{{{addvar::x::{more}}}}}", Variables({"x": value}))

    assert (text, after.local["x"]) == ("", sum_)


def test_incvar_and_decvar_give_the_new_value() -> None:
    text, after = run("{{incvar::x}} {{incvar::x}} {{decvar::x}} {{decvar::y}}")

    assert text == "1 2 1 -1"
    assert after.local == {"x": "1", "y": "-1"}


def test_counting_starts_over_from_what_is_no_number() -> None:
    assert run("{{incvar::x}}", Variables({"x": "fog"})).text == "1"


@pytest.mark.parametrize("infix", ["", "global"])
def test_each_form_has_variables_of_its_own(infix: str) -> None:
    text = "{{setXvar::n::5}}{{addXvar::n::2}}{{incXvar::n}} {{decXvar::n}} {{getXvar::n}}"

    result = run(text.replace("X", infix))

    assert result.text == "8 7 7"
    expected = Variables(global_={"n": "7"}) if infix else Variables({"n": "7"})
    assert result.variables == expected


def test_names_and_values_may_be_macros() -> None:
    result = run("{{setvar::{{char}}_says::Hello, {{user}}!}}{{getvar::Mags_says}}")

    assert result.text == "Hello, Anna!"


def test_a_value_may_hold_double_colons_and_braces_that_stay_text() -> None:
    variables = Variables({"said": "{{incvar::hp}}", "path": "std::sort"})

    result = run("{{getvar::path}} {{getvar::said}}", variables)

    assert result.text == "std::sort {{incvar::hp}}"
    assert "hp" not in result.variables.local


@pytest.mark.parametrize("infix", ["", "global"])
def test_whether_a_variable_is_there_and_that_it_goes(infix: str) -> None:
    text = "{{hasXvar::n}}{{setXvar::n::}}{{Xvarexists::n}}{{flushXvar::n}}{{hasXvar::n}}"
    result = run(text.replace("X", infix), Variables({"m": "1"}, {"m": "1"}))

    assert result.text == "falsetruefalse"
    assert result.variables == Variables({"m": "1"}, {"m": "1"})
    assert run("{{if {{hasvar::n}}}}there{{else}}gone{{/if}}").text == "gone"


def test_a_number_reads_as_a_plain_number_and_a_list_grows() -> None:
    assert run("{{setvar::n::007.50}}{{getvar::n}}").text == "7.5"
    assert run("{{setvar::l::[]}}{{addvar::l::a}}{{addvar::l::b}}{{getvar::l}}").text == '["a","b"]'
    assert run("{{setvar::l::[a}}{{addvar::l::b}}{{getvar::l}}").text == "[ab"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{.n = 5}}{{.n}}{{getvar::n}}", "55"),
        ("{{$n = {{char}}}}{{$n}}", "Mags"),
        ("{{.n += 2}}{{.n += 3}}{{.n -= 1}}{{.n}}", "4"),
        ("{{.n++}}{{.n++}}{{.n--}}", "121"),
        ("{{.n || x}}{{.n ?? y}}", "xy"),
        ("{{.n = 0}}{{.n || x}}{{.n ?? y}}", "x0"),
        ("{{.n ||= {{user}}}}{{.n}}", "AnnaAnna"),
        ("{{.n ??= 1}}{{.n ??= 2}}", "11"),
        ("{{.n = 9}}{{.n > 10}}{{.n >= 9}}{{.n < 10}}{{.n <= 8}}", "falsetruetruefalse"),
        ("{{.n == }}{{.n != a}}", "truetrue"),
        ("{{.my-name = a}}{{ .my-name }}", "a"),
        ("{{if .n}}y{{else}}n{{/if}}{{.n = 3}}{{if .n > 2}}y{{/if}}", "ny"),
        ("{{.n ++ 3}}{{.n & 3}}{{.5}}{{$}}", "{{.n ++ 3}}{{.n & 3}}{{.5}}{{$}}"),
    ],
)
def test_a_sign_and_a_name_are_a_variable(text: str, said: str) -> None:
    assert run(text).text == said


def test_a_branch_that_is_not_taken_sets_nothing() -> None:
    result = run("{{if 0}}{{setvar::a::1}}{{else}}{{setvar::b::1}}{{/if}}")

    assert result.variables.local == {"b": "1"}
