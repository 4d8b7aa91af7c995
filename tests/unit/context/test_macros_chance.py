"""`random`, `pick` and `roll`: drawn fairly, and the same again for the same prompt."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from backend.context.macros import MacroBudget, MacroContext, MacroLimitError, Variables, expand

CONTEXT = MacroContext(
    user="Anna",
    char="Mags",
    now=datetime(2026, 3, 4, 15, 5, 9, tzinfo=UTC),
    chat_seed=11,
    message_seed=22,
    model="demo",
    max_prompt=200_000,
)
MANY = "::".join(str(number) for number in range(1000))


def said(text: str, *, place: str = "system_prompt", **changes: Any) -> str:
    return expand(
        text, replace(CONTEXT, **changes), Variables(), place=place, budget=MacroBudget()
    ).text


def over_messages(text: str, count: int = 600) -> Counter[str]:
    return Counter(said(text, message_seed=seed) for seed in range(count))


def test_random_draws_each_of_its_options_about_as_often() -> None:
    drawn = over_messages("{{random::fog::rain::sun}}")

    assert set(drawn) == {"fog", "rain", "sun"}
    assert all(150 < times < 250 for times in drawn.values())


def test_random_takes_a_list_with_commas_in_which_a_comma_can_be_escaped() -> None:
    assert set(over_messages(r"{{random: fog, rain\, hail ,sun}}")) == {"fog", "rain, hail", "sun"}
    assert set(over_messages("{{random::fog,rain}}")) == {"fog", "rain"}


def test_commas_are_text_where_double_colons_separate() -> None:
    assert set(over_messages("{{random::fog, rain::sun}}")) == {"fog, rain", "sun"}


def test_options_may_be_macros_and_conditions() -> None:
    text = "{{random::{{user}}::{{if a}}x::y{{/if}}::<BOT>}}"

    assert set(over_messages(text)) == {"Anna", "x::y", "Mags"}


def test_an_option_that_is_not_drawn_has_no_effect() -> None:
    text = "{{random::{{setvar::a::1}}::{{setvar::b::1}}}}"

    assert (
        len(expand(text, CONTEXT, Variables(), place="x", budget=MacroBudget()).variables.local)
        == 1
    )


def test_the_same_prompt_draws_the_same_again() -> None:
    text = f"{{{{random::{MANY}}}}} {{{{pick::{MANY}}}}} {{{{roll::9d1000}}}}"

    assert said(text) == said(text)


def test_another_message_draws_anew_and_another_place_too() -> None:
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


def test_what_was_picked_stays_when_the_text_around_it_is_edited() -> None:
    pick = f"{{{{pick::{MANY}}}}}"

    assert said(f"{{{{roll:6}}}} {{{{pick::a::b}}}} {pick}").split()[-1] == said(pick)


def test_a_field_draws_the_same_wherever_it_is_put_in() -> None:
    hair = f"{{{{pick::{MANY}}}}} {{{{random::{MANY}}}}}"

    alone = said(hair, place="description")
    assert said("{{description}}", description=hair) == alone
    assert said("{{pick::a::b}}{{description}}", description=hair)[1:] == alone
    assert said("{{persona}}", persona="{{description}}", description=hair) == alone


def test_what_a_chat_has_picked_outlives_this_release() -> None:
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
def test_what_is_no_dice_formula_comes_to_nothing(formula: str) -> None:
    assert said(f"[{{{{roll::{formula}}}}}]") == "[]"


@pytest.mark.parametrize(("formula", "limit"), [("1001d6", "dice"), ("1d1000001", "sides")])
def test_a_roll_of_too_many_dice_or_sides_is_refused(formula: str, limit: str) -> None:
    with pytest.raises(MacroLimitError, match=limit):
        said(f"{{{{roll::{formula}}}}}")


def test_half_a_surrogate_pair_can_be_drawn_like_any_other_text() -> None:
    assert said("{{pick::\ud83d::\ud83d}}") == "\ud83d"
