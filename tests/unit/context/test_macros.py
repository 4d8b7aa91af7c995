"""What each macro stands for, and how macros are read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from backend.context.macros import MacroBudget, MacroContext, Variables, expand

CONTEXT = MacroContext(
    user="Anna",
    char="Mags",
    now=datetime(2026, 3, 4, 15, 5, 9, tzinfo=UTC),
    chat_seed=11,
    message_seed=22,
    model="demo",
    max_prompt=200_000,
)
NO_VARIABLES = Variables()


def said(text: str, *, place: str = "system_prompt", **changes: Any) -> str:
    return expand(
        text, replace(CONTEXT, **changes), NO_VARIABLES, place=place, budget=MacroBudget()
    ).text


# Names and texts


def test_user_and_char_are_the_names_in_any_letter_case() -> None:
    assert (
        said("{{user}}, {{USER}} and {{ User }} met {{Char}}.") == "Anna, Anna and Anna met Mags."
    )


def test_the_old_angle_brackets_are_names_too() -> None:
    assert (
        said("<USER> met <bot>, that is <Char>. <START>") == "Anna met Mags, that is Mags. <START>"
    )


@pytest.mark.parametrize(
    ("macro", "attribute"),
    [
        ("persona", "persona"),
        ("description", "description"),
        ("personality", "personality"),
        ("scenario", "scenario"),
        ("mesExamples", "mes_examples"),
        ("charPrompt", "char_prompt"),
        ("original", "original"),
        ("authorsNote", "authors_note"),
    ],
)
def test_a_field_is_put_in_with_its_own_macros_expanded(macro: str, attribute: str) -> None:
    text = said(f"[{{{{{macro}}}}}]", **{attribute: "{{char}} waits for {{user}}."})

    assert text == "[Mags waits for Anna.]"


@pytest.mark.parametrize(
    ("macro", "attribute"),
    [
        ("user", "user"),
        ("char", "char"),
        ("charVersion", "char_version"),
        ("char_version", "char_version"),
        ("lastMessage", "last_message"),
        ("lastUserMessage", "last_user_message"),
        ("lastCharMessage", "last_char_message"),
        ("summary", "summary"),
        ("model", "model"),
    ],
)
def test_any_other_text_is_put_in_as_it_is(macro: str, attribute: str) -> None:
    value = "I say {{setvar::hp::0}}{{newline}} <USER>"

    assert said(f"[{{{{{macro}}}}}]", **{attribute: value}) == f"[{value}]"


def test_original_stands_for_nothing_where_nothing_is_replaced() -> None:
    assert said("{{original}}Be brief.") == "Be brief."


def test_an_outlet_is_found_by_its_name_and_is_put_in_as_it_is() -> None:
    outlets = {"sea": "It rises, {{user}}."}

    assert (
        said("[{{outlet::sea}}] [{{outlet::sky}}]", outlets=outlets) == "[It rises, {{user}}.] []"
    )


def test_max_prompt_is_a_plain_figure() -> None:
    assert said("{{maxPrompt}}") == "200000"


def test_a_field_that_holds_itself_ends() -> None:
    text = said("{{description}}", description="Mags ({{description}})")

    assert text == "Mags ({{description}})"


def test_two_fields_that_hold_each_other_end() -> None:
    text = said("{{persona}}", persona="P{{scenario}}", scenario="S{{persona}}")

    assert text == "PS{{persona}}"


def test_a_field_expanded_in_its_own_place_does_not_take_itself_in() -> None:
    assert said("A{{scenario}}", place="scenario", scenario="A{{scenario}}") == "A{{scenario}}"


# Time


def test_time_and_date_are_in_the_users_own_zone() -> None:
    now = datetime(2026, 3, 4, 0, 7, tzinfo=timezone(timedelta(hours=-5)))

    text = said("{{time}}, {{weekday}}, {{date}}, {{isodate}} {{isotime}}", now=now)

    assert text == "12:07 AM, Wednesday, March 4, 2026, 2026-03-04 00:07"


@pytest.mark.parametrize(
    ("offset", "time"),
    [
        ("::UTC+2", "5:05 PM"),
        ("::utc-3:30", "11:35 AM"),
        (" UTC+0530", "8:35 PM"),
        ("_UTC+9", "12:05 AM"),
        ("::UTC", "3:05 PM"),
    ],
)
def test_time_can_be_asked_for_at_an_offset(offset: str, time: str) -> None:
    assert said(f"{{{{time{offset}}}}}") == time


@pytest.mark.parametrize("macro", ["{{time::noon}}", "{{time::UTC+15}}", "{{time::}}"])
def test_an_offset_that_is_none_leaves_the_macro_as_written(macro: str) -> None:
    assert said(macro) == macro


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("YYYY YY", "2026 26"),
        ("MMMM MMM MM M", "March Mar 03 3"),
        ("DD D dddd ddd", "04 4 Wednesday Wed"),
        ("HH H hh h", "15 15 03 3"),
        ("mm m ss s", "05 5 09 9"),
        ("h:mmA h:mma", "3:05PM 3:05pm"),
        ("[at] h [o'clock]", "at 3 o'clock"),
    ],
)
def test_datetimeformat_knows_the_tokens_of_moment_js(pattern: str, text: str) -> None:
    assert said(f"{{{{datetimeformat::{pattern}}}}}") == text


def test_noon_and_midnight_are_twelve() -> None:
    noon, midnight = (datetime(2026, 3, 4, hour, tzinfo=UTC) for hour in (12, 0))

    assert said("{{time}}", now=noon) == "12:00 PM"
    assert said("{{time}}", now=midnight) == "12:00 AM"


@pytest.mark.parametrize(
    ("idle", "words"),
    [
        (timedelta(seconds=-5), "a few seconds"),
        (timedelta(seconds=44), "a few seconds"),
        (timedelta(seconds=45), "a minute"),
        (timedelta(seconds=90), "2 minutes"),
        (timedelta(minutes=44), "44 minutes"),
        (timedelta(minutes=45), "an hour"),
        (timedelta(hours=5, minutes=29), "5 hours"),
        (timedelta(hours=22), "a day"),
        (timedelta(days=25), "25 days"),
        (timedelta(days=26), "a month"),
        (timedelta(days=65), "2 months"),
        (timedelta(days=300), "10 months"),
        (timedelta(days=340), "a year"),
        (timedelta(days=800), "2 years"),
    ],
)
def test_idle_duration_is_about_the_largest_unit(idle: timedelta, words: str) -> None:
    assert said("{{idleDuration}}", idle=idle) == words


# Layout and comments


def test_newline_is_a_line_break_and_noop_is_nothing() -> None:
    assert said("a{{newline}}b{{noop}}c") == "a\nbc"


def test_trim_takes_the_line_breaks_on_both_sides() -> None:
    assert said("a \r\n\n{{trim}}{{noop}}\n\n b{{newline}}{{trim}}") == "a  b"


def test_trim_reaches_out_of_the_branch_that_it_stands_in() -> None:
    assert said("a\n{{if yes}}{{trim}}{{/if}}\nb") == "ab"


@pytest.mark.parametrize(
    "comment", ["{{// note}}", "{{//{{user}}::{{x}} }}", "{{comment: note}}", "{{hidden_key:lamp}}"]
)
def test_a_comment_is_nothing(comment: str) -> None:
    assert said(f"a{comment}b") == "ab"


def test_reverse_turns_a_text_round() -> None:
    assert said("{{reverse:{{user}}!}}") == "!annA"


# Conditions


@pytest.mark.parametrize("value", ["", "0", "False", " off "])
def test_a_condition_that_comes_to_nothing_takes_the_else_branch(value: str) -> None:
    assert said("{{if {{summary}}}}yes{{else}}no{{/if}}", summary=value) == "no"


def test_any_other_condition_takes_the_first_branch() -> None:
    assert said("{{if {{summary}}}}yes{{else}}no{{/if}}", summary="nothing") == "yes"


def test_an_exclamation_mark_turns_a_condition_round() -> None:
    assert said("{{if ! {{summary}} }}none{{/if}}{{if !x}}never{{/if}}") == "none"


def test_a_condition_may_be_the_bare_name_of_a_macro() -> None:
    text = "{{if persona}}known{{else}}unknown{{/if}}"

    assert said(text) == "unknown"
    assert said(text, persona="Anna maps coasts.") == "known"


def test_a_value_that_spells_a_macros_name_is_not_that_macro() -> None:
    assert said("{{if {{summary}}}}yes{{/if}}", summary="persona") == "yes"


def test_conditions_nest() -> None:
    text = "{{if a}}1{{if 0}}2{{else}}3{{if b}}4{{/if}}{{/if}}5{{else}}6{{/if}}7"

    assert said(text) == "13457"


def test_tags_on_lines_of_their_own_leave_no_empty_lines() -> None:
    text = "Setting:\n{{if a}}\n  storm\r\n  {{else}}\n  calm\n{{/if}}\nEnd."

    assert said(text) == "Setting:\nstorm\nEnd."


def test_white_space_at_the_edges_of_a_block_goes_unless_it_has_the_flag() -> None:
    assert said("Anna{{if a}} and Mags {{/if}}wait") == "Annaand Magswait"
    assert said("Anna{{#if a}} and Mags {{/if}}wait") == "Anna and Mags wait"


def test_the_indentation_of_a_blocks_first_line_goes_from_all_of_them() -> None:
    text = "{{if a}}\n    one {{user}}\n      two\n    three\n{{/if}}"

    assert said(text) == "one Anna\n  two\nthree"


def test_a_block_is_the_last_argument_of_its_macro() -> None:
    assert said("{{reverse}}a{{user}}{{/reverse}}") == "annAa"
    assert said("{{setvar::x}} one::two {{/setvar}}[{{getvar::x}}]") == "[one::two]"
    assert said("{{random::a}}a{{/random}}{{//}}not said{{user}}{{///}}") == "anot saidAnna"


@pytest.mark.parametrize(
    "text",
    [
        "{{user}}a{{/user}}",
        "{{unknown::a}}b{{/unknown}}",
        "{{reverse::a}}b{{/reverse}}",
        "{{/reverse}}a{{reverse}}",
    ],
)
def test_what_takes_no_block_stays_as_it_is(text: str) -> None:
    assert said(text, user="{{user}}") == text.replace("{{reverse::a}}", "a")


def test_blocks_nest_and_cross_as_far_as_they_can() -> None:
    assert said("{{reverse}}a{{reverse}}bc{{/reverse}}{{/reverse}}") == "bca"
    assert said("{{if a}}{{reverse}}ab{{/if}}{{/reverse}}") == "{{reverse}}ab{{/reverse}}"
    assert said("{{if 0}}{{char}}a{{else}}b{{/if}}") == "b"


def test_a_backslash_keeps_a_brace_from_being_syntax() -> None:
    assert said(r"\{\{user\}\} {{user}} \{{user}}") == r"{{user}} Anna \Anna"


def test_flags_before_a_name_are_passed_over() -> None:
    assert said("{{!char}} {{~char}} {{#char}} {{ > char }}") == "Mags Mags Mags Mags"


def test_the_difference_of_two_moments() -> None:
    before, after = "2026-03-04 12:00:00", "2026-03-06"

    assert said(f"{{{{timeDiff::{before}::{after}}}}}") == "2 days ago"
    assert said(f"{{{{timeDiff::{after}::{before}}}}}") == "in 2 days"
    assert said("{{timeDiff::now::then}}") == "{{timeDiff::now::then}}"


def test_greetings_by_their_number() -> None:
    greetings = ("Hello, {{user}}.", "Again?")

    text = said(
        "{{greeting}}|{{greeting::1}}|{{greeting::2}}|{{charFirstMessage}}", greetings=greetings
    )
    assert text == "Hello, Anna.|Again?||Hello, Anna."


def test_what_means_nothing_here_is_nothing_and_is_told() -> None:
    budget = MacroBudget()
    text = expand(
        "a{{instructInput}}{{chatStart}}b", CONTEXT, NO_VARIABLES, place="x", budget=budget
    ).text

    assert (text, budget.ignored) == ("ab", {"instruct", "chatStart"})


@pytest.mark.parametrize(
    "text",
    [
        "{{if a}}b",
        "a{{/if}}",
        "{{if}}a{{/if}}",
        "{{else a}}",
        "{{if a}}{{ stray",
    ],
)
def test_tags_without_a_partner_stay_as_they_are(text: str) -> None:
    assert said(text) == text


def test_stray_braces_do_not_keep_a_condition_from_ending() -> None:
    assert said("{{if a}} {{ b {{/if}} {{user}}") == "{{ b Anna"


# Reading


def test_a_double_colon_a_colon_or_a_space_separates_the_argument() -> None:
    outlets = {"old sea": "deep"}

    for separator in ("::", ":", " ", " :: ", "\n"):
        assert said(f"{{{{outlet{separator}old sea}}}}", outlets=outlets) == "deep"


def test_macros_nest_in_arguments() -> None:
    assert said("{{outlet::{{char}}_{{user}}}}", outlets={"Mags_Anna": "met"}) == "met"


def test_of_three_braces_the_inner_two_are_the_macros() -> None:
    assert said("{{{user}}} {{{{user}}}}") == "{Anna} {{Anna}}"


@pytest.mark.parametrize(
    "text",
    [
        "{{unknown}}",
        "{{ unknown :: a::b }}",
        "{{user::x}}",
        "{{usermag}}",
        "{{reverse::a::b}}",
        "{{getvar::a::b}}",
        "{{random-event}}",
        "{{roll-call}}",
        "{{setvar::x}}",
        "{{}}",
        "{{::}}",
        "{{/user}}",
        "{user}",
        "}}{{",
        "{{user}",
        "<u\u017fer> {{u\u017fer}}",
    ],
)
def test_what_is_no_macro_stays_as_it_is(text: str) -> None:
    assert said(text) == text


def test_macros_inside_unknown_ones_are_expanded() -> None:
    assert (
        said('{{"name": {{char}}, "of": {{x::{{user}}}}}}') == '{{"name": Mags, "of": {{x::Anna}}}}'
    )


def test_a_value_never_becomes_part_of_a_macro() -> None:
    options = {said("{{random::{{summary}}}}", summary="a::b,c", message_seed=n) for n in range(9)}

    assert options == {"a::b,c"}
    assert said("{{{{summary}}}}", summary="user") == "{{user}}"


def test_user_text_is_no_jinja_template() -> None:
    text = "{{ 7 * 7 }} {% if x %} {{ user.name }} {# note #}"

    assert said(text) == text
