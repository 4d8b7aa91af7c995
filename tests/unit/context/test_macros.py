"""Macros: names, chance, variables and their documentation."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backend.context.macros import (
    MACROS,
    MAX_CHARACTERS,
    MAX_MACROS,
    Expansion,
    MacroBudget,
    MacroContext,
    MacroLimitError,
    Variables,
    expand,
)
from backend.context.macros.model import (
    MAX_DEPTH,
    MAX_DICE,
    MAX_REQUEST_CHARACTERS,
    MAX_REQUEST_MACROS,
    MAX_SIDES,
)

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


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("{{user}}, {{USER}} and {{ User }} met {{Char}}.", "Anna, Anna and Anna met Mags."),
        ("<USER> met <bot>, that is <Char>. <START>", "Anna met Mags, that is Mags. <START>"),
        ("{{original}}Be brief.", "Be brief."),
        ("{{maxPrompt}}", "200000"),
        ("a{{newline}}b{{noop}}c", "a\nbc"),
        ("a \r\n\n{{trim}}{{noop}}\n\n b{{newline}}{{trim}}", "a  b"),
        ("a\n{{if yes}}{{trim}}{{/if}}\nb", "ab"),
        ("{{reverse:{{user}}!}}", "!annA"),
        ("{{if ! {{summary}} }}none{{/if}}{{if !x}}never{{/if}}", "none"),
        ("{{if a}}1{{if 0}}2{{else}}3{{if b}}4{{/if}}{{/if}}5{{else}}6{{/if}}7", "13457"),
        (
            "Setting:\n{{if a}}\n  storm\r\n  {{else}}\n  calm\n{{/if}}\nEnd.",
            "Setting:\nstorm\nEnd.",
        ),
        ("Anna{{if a}} and Mags {{/if}}wait", "Annaand Magswait"),
        ("Anna{{#if a}} and Mags {{/if}}wait", "Anna and Mags wait"),
        ("{{if a}}\n    one {{user}}\n      two\n    three\n{{/if}}", "one Anna\n  two\nthree"),
        ("{{reverse}}a{{user}}{{/reverse}}", "annAa"),
        ("{{setvar::x}} one::two {{/setvar}}[{{getvar::x}}]", "[one::two]"),
        ("{{random::a}}a{{/random}}{{//}}not said{{user}}{{///}}", "anot saidAnna"),
        ("{{reverse}}a{{reverse}}bc{{/reverse}}{{/reverse}}", "bca"),
        ("{{if a}}{{reverse}}ab{{/if}}{{/reverse}}", "{{reverse}}ab{{/reverse}}"),
        ("{{if 0}}{{char}}a{{else}}b{{/if}}", "b"),
        (r"\{\{user\}\} {{user}} \{{user}}", r"{{user}} Anna \Anna"),
        ("{{!char}} {{~char}} {{#char}} {{ > char }}", "Mags Mags Mags Mags"),
        ("{{if a}} {{ b {{/if}} {{user}}", "{{ b Anna"),
        ("{{{user}}} {{{{user}}}}", "{Anna} {{Anna}}"),
        ('{{"name": {{char}}, "of": {{x::{{user}}}}}}', '{{"name": Mags, "of": {{x::Anna}}}}'),
    ],
)
def test_names_layout_conditions_and_blocks_are_expanded(text: str, expanded: str) -> None:
    assert said(text) == expanded


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


def test_an_outlet_is_found_by_its_name_and_is_put_in_as_it_is() -> None:
    outlets = {"sea": "It rises, {{user}}."}
    text = said("[{{outlet::sea}}] [{{outlet::sky}}]", outlets=outlets)
    assert text == "[It rises, {{user}}.] []"


def test_fields_that_contain_themselves_or_each_other_end() -> None:
    itself = "Mags ({{description}})"
    assert said("{{description}}", description=itself) == itself
    assert said("A{{scenario}}", place="scenario", scenario="A{{scenario}}") == "A{{scenario}}"
    assert said("{{persona}}", persona="P{{scenario}}", scenario="S{{persona}}") == "PS{{persona}}"


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
        *((invalid, f"{{{{time{invalid}}}}}") for invalid in ("::noon", "::UTC+15", "::")),
    ],
)
def test_time_can_be_asked_for_at_an_offset(offset: str, time: str) -> None:
    assert said(f"{{{{time{offset}}}}}") == time


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


@pytest.mark.parametrize(
    "comment", ["{{// note}}", "{{//{{user}}::{{x}} }}", "{{comment: note}}", "{{hidden_key:lamp}}"]
)
def test_a_comment_is_nothing(comment: str) -> None:
    assert said(f"a{comment}b") == "ab"


@pytest.mark.parametrize(
    ("value", "branch"),
    [
        *((value, "no") for value in ("", "0", "False", " off ")),
        # The name of a macro as a value is not that macro.
        *((value, "yes") for value in ("nothing", "persona")),
    ],
)
def test_empty_and_false_conditions_take_the_else_branch(value: str, branch: str) -> None:
    assert said("{{if {{summary}}}}yes{{else}}no{{/if}}", summary=value) == branch


def test_a_condition_may_be_the_bare_name_of_a_macro() -> None:
    text = "{{if persona}}known{{else}}unknown{{/if}}"
    assert said(text) == "unknown"
    assert said(text, persona="Anna maps coasts.") == "known"


@pytest.mark.parametrize(
    "text",
    [
        "{{user}}a{{/user}}",
        "{{unknown::a}}b{{/unknown}}",
        "{{reverse::a}}b{{/reverse}}",
        "{{/reverse}}a{{reverse}}",
    ],
)
def test_macros_without_blocks_leave_closing_tags_unchanged(text: str) -> None:
    assert said(text, user="{{user}}") == text.replace("{{reverse::a}}", "a")


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


def test_macros_without_meaning_here_are_empty_and_reported() -> None:
    budget = MacroBudget()
    text = expand(
        "a{{instructInput}}{{chatStart}}b", CONTEXT, NO_VARIABLES, place="x", budget=budget
    ).text
    assert (text, budget.ignored) == ("ab", {"instruct", "chatStart"})


def test_a_double_colon_a_colon_or_a_space_separates_the_argument() -> None:
    outlets = {"old sea": "deep"}
    for separator in ("::", ":", " ", " :: ", "\n"):
        assert said(f"{{{{outlet{separator}old sea}}}}", outlets=outlets) == "deep"


def test_macros_nest_in_arguments() -> None:
    assert said("{{outlet::{{char}}_{{user}}}}", outlets={"Mags_Anna": "met"}) == "met"


@pytest.mark.parametrize("text", [
    "{{unknown}}", "{{ unknown :: a::b }}", "{{user::x}}", "{{usermag}}", "{{reverse::a::b}}",
    "{{getvar::a::b}}", "{{random-event}}", "{{roll-call}}", "{{setvar::x}}", "{{}}", "{{::}}",
    "{{/user}}", "{user}", "}}{{", "{{user}", "<u\u017fer> {{u\u017fer}}", "{{if a}}b", "a{{/if}}",
    "{{if}}a{{/if}}", "{{else a}}", "{{if a}}{{ stray",
    "{{ 7 * 7 }} {% if x %} {{ user.name }} {# note #}",
])  # fmt: skip
def test_text_that_is_no_macro_is_unchanged(text: str) -> None:
    assert said(text) == text


def test_a_value_never_becomes_part_of_a_macro() -> None:
    options = {said("{{random::{{summary}}}}", summary="a::b,c", message_seed=n) for n in range(9)}
    assert options == {"a::b,c"}
    assert said("{{{{summary}}}}", summary="user") == "{{user}}"


MANY = "::".join(str(number) for number in range(1000))


def over_messages(text: str, count: int = 600) -> Counter[str]:
    return Counter(said(text, message_seed=seed) for seed in range(count))


def test_random_draws_each_of_its_options_about_as_often() -> None:
    drawn = over_messages("{{random::fog::rain::sun}}")
    assert set(drawn) == {"fog", "rain", "sun"}
    assert all(150 < times < 250 for times in drawn.values())


def test_random_takes_a_list_with_commas_in_which_a_comma_can_be_escaped() -> None:
    assert set(over_messages(r"{{random: fog, rain\, hail ,sun}}")) == {"fog", "rain, hail", "sun"}
    assert set(over_messages("{{random::fog,rain}}")) == {"fog", "rain"}


def test_commas_are_text_if_double_colons_separate() -> None:
    assert set(over_messages("{{random::fog, rain::sun}}")) == {"fog, rain", "sun"}


def test_options_may_be_macros_and_conditions() -> None:
    text = "{{random::{{user}}::{{if a}}x::y{{/if}}::<BOT>}}"
    assert set(over_messages(text)) == {"Anna", "x::y", "Mags"}


def test_an_option_that_is_not_drawn_has_no_effect() -> None:
    text = "{{random::{{setvar::a::1}}::{{setvar::b::1}}}}"
    expansion = expand(text, CONTEXT, Variables(), place="x", budget=MacroBudget())
    assert len(expansion.variables.local) == 1


def test_the_same_prompt_draws_the_same_again() -> None:
    text = f"{{{{random::{MANY}}}}} {{{{pick::{MANY}}}}} {{{{roll::9d1000}}}}"
    assert said(text) == said(text)


def test_another_message_and_another_place_draw_again() -> None:
    text = f"{{{{random::{MANY}}}}} {{{{roll::9d1000}}}}"
    first = said(text).split()
    assert all(a != b for a, b in zip(first, said(text, message_seed=23).split(), strict=True))
    assert all(a != b for a, b in zip(first, said(text, place="scenario").split(), strict=True))


def test_equal_macros_in_one_field_draw_each_for_itself() -> None:
    first, second = said(f"{{{{pick::{MANY}}}}} {{{{pick::{MANY}}}}}").split()
    assert first != second


def test_pick_stays_the_same_from_message_to_message_and_differs_between_chats() -> None:
    text = f"{{{{pick::{MANY}}}}}"
    assert said(text, message_seed=1) == said(text, message_seed=2)
    assert said(text, chat_seed=1) != said(text, chat_seed=2)


def test_a_pick_stays_if_the_text_around_it_changes() -> None:
    pick = f"{{{{pick::{MANY}}}}}"
    assert said(f"{{{{roll:6}}}} {{{{pick::a::b}}}} {pick}").split()[-1] == said(pick)


def test_a_field_draws_the_same_in_every_place() -> None:
    hair = f"{{{{pick::{MANY}}}}} {{{{random::{MANY}}}}}"
    alone = said(hair, place="description")
    assert said("{{description}}", description=hair) == alone
    assert said("{{pick::a::b}}{{description}}", description=hair)[1:] == alone
    assert said("{{persona}}", persona="{{description}}", description=hair) == alone


def test_picks_of_existing_chats_never_change() -> None:
    # Chats that people have begun count on these figures: they may never change.
    assert said("{{pick::a::b::c::d::e::f::g::h}}{{roll::3d1000}}") == "a1435"


@pytest.mark.parametrize(
    ("formula", "least", "most"),
    [("d6", 1, 6), ("6", 1, 6), ("2d2", 2, 4), ("2D2 + 3", 5, 7), ("1d4-2", -1, 2), ("0d6", 0, 0)],
)
def test_a_roll_is_the_sum_of_its_dice(formula: str, least: int, most: int) -> None:
    rolled = {int(text) for text in over_messages(f"{{{{roll::{formula}}}}}", 300)}
    assert rolled == set(range(least, most + 1))


def test_a_roll_may_be_written_with_a_colon_or_a_space_or_a_macro() -> None:
    for text in ("{{roll:1d1}}", "{{roll 1}}", "{{roll::{{random::1d1}}}}"):
        assert said(text) == "1"


@pytest.mark.parametrize("formula", ["many", "d0", "2x6", "d", "", "1d6+1d6", "1d99999999999", "²"])
def test_an_invalid_dice_formula_is_empty(formula: str) -> None:
    assert said(f"[{{{{roll::{formula}}}}}]") == "[]"


@pytest.mark.parametrize(("formula", "limit"), [("1001d6", "dice"), ("1d1000001", "sides")])
def test_a_roll_of_too_many_dice_or_sides_is_refused(formula: str, limit: str) -> None:
    with pytest.raises(MacroLimitError, match=limit):
        said(f"{{{{roll::{formula}}}}}")


def test_half_a_surrogate_pair_can_be_drawn_like_any_other_text() -> None:
    assert said("{{pick::\ud83d::\ud83d}}") == "\ud83d"


def run(text: str, variables: Variables | None = None) -> Expansion:
    return expand(text, CONTEXT, variables or Variables(), place="scenario", budget=MacroBudget())


def test_a_variable_that_was_set_is_read_later_in_the_field() -> None:
    assert run("{{setvar::mood::dry}}[{{getvar::mood}}] [{{getvar::Mood}}]").text == "[dry] []"


def test_variables_carry_over_to_the_next_field() -> None:
    first = run("{{setvar::mood::dry}}")
    assert run("{{getvar::mood}}", first.variables).text == "dry"


def test_given_variables_are_never_changed() -> None:
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


def test_counting_starts_over_from_a_text() -> None:
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


PAGE = (Path(__file__).parents[3] / "docs/reference/macros.md").read_text(encoding="utf-8")

ANNA_AND_MAGS = MacroContext(
    user="Anna",
    char="Mags",
    now=datetime(2026, 3, 4, 15, 5, tzinfo=UTC),
    chat_seed=1,
    message_seed=2,
    model="demo",
    max_prompt=200_000,
    persona="{{user}} is a cartographer.",
    description="{{char}} keeps the lighthouse.",
    personality="dry, patient",
    scenario="A storm traps {{user}}.",
    mes_examples="{{char}}: Seen worse.",
    char_prompt="Write as {{char}}.",
    original="Stay in scene.",
    char_instruction="Stay dry.",
    char_depth_prompt="{{char}} limps.",
    creator_notes="By Ada.",
    greetings=("Who is it?", "Back again, {{user}}?"),
    last_message_id="12",
    max_response=4_096,
    authors_note="{{char}} is lying.",
    char_version="1.2",
    last_message="The lamp is out.",
    last_user_message="Is anyone there?",
    last_char_message="The lamp is out.",
    summary="Anna came by boat.",
    outlets={"sea": "The sea is rising."},
    idle=timedelta(hours=3, minutes=20),
)
VARIABLES = Variables(local={"hp": "10"}, global_={"tone": "grim"})


class Row(NamedTuple):
    macros: str
    example: str
    gives: str


def rows() -> list[Row]:
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in PAGE.splitlines()
        if line.startswith("| `")
    ]
    return [Row(macros, spans(example)[0], gives) for macros, _, example, gives in cells]


def spans(cell: str) -> list[str]:
    return [span.replace("\\n", "\n") for span in re.findall(r"`([^`]*)`", cell)]


def test_the_page_lists_every_macro_and_no_other() -> None:
    listed = {
        name
        for row in rows()
        for name in re.findall(r"\{\{(//|[.$]|/?[a-z_]+)", row.macros, re.IGNORECASE)
    }
    known = {name for macro in MACROS.values() for name in (macro.name, *macro.aliases)}
    instruct = {name for name in known if name.startswith("instruct")}
    assert listed - instruct == (known - instruct) | {"if", "/if"}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.example)
def test_an_example_gives_the_documented_result(row: Row) -> None:
    text = expand(row.example, ANNA_AND_MAGS, VARIABLES, place="docs", budget=MacroBudget()).text
    if " to " in row.gives:
        least, most = spans(row.gives)
        assert int(least) <= int(text) <= int(most)
    else:
        assert text in spans(row.gives)


def test_the_page_names_the_limits() -> None:
    limits = PAGE.partition("## Limits")[2]
    figures = (
        *(MAX_CHARACTERS, MAX_MACROS, MAX_DEPTH, MAX_DICE, MAX_SIDES),
        *(MAX_REQUEST_CHARACTERS, MAX_REQUEST_MACROS),
    )
    for figure in figures:
        assert f"{figure:,} " in limits
