"""Decorators at the head of an entry's content."""

from __future__ import annotations

import pytest

from backend.lorebooks.activation.compiled import NO_DECORATORS, Decorators, split_decorators
from tests.unit.lorebooks.scans import book, entry, reasons, refusals, scanned, titles


def test_decorators_are_removed_from_the_content() -> None:
    lore = book(entry("It", "inn", content="@@depth 2\n@@unknown x\n\n\nThe inn.\n@@not one\n"))
    assert scanned(lore, "inn").activated[0].content == "\n\nThe inn.\n@@not one\n"


@pytest.mark.parametrize(
    ("content", "said", "left"),
    [
        ("Text.", NO_DECORATORS, "Text."),
        ("Text.\n@@depth 4", NO_DECORATORS, "Text.\n@@depth 4"),
        ("\n@@depth 4\r\n\r\nText.", Decorators(depth=4), "\r\nText."),
        ("@@depth 4\n\n@@role user\nText.", Decorators(depth=4), "\n@@role user\nText."),
        ("@@ACTIVATE\n@@activate now\nText.", NO_DECORATORS, "Text."),
        ("@@a\n@@@b2\n@@@depth 6\nText.", Decorators(depth=6), "Text."),
        ("@@depth 4\n@@depth 5\nText.", Decorators(depth=4), "Text."),
        ("@@ hello\nText.", NO_DECORATORS, "@@ hello\nText."),
        ("@@depth four\nText.", NO_DECORATORS, "Text."),
        ("@@depth -3\nText.", Decorators(depth=0), "Text."),
        ("@@other 1\n@@@depth 5\nText.", Decorators(depth=5), "Text."),
        ("@@depth 4\n@@@depth 5\n@@@role user\nText.", Decorators(depth=4), "Text."),
        ("@@a\n@@@b 1\n@@@c\n@@@d\n@@@e\n@@@depth 6\nText.", Decorators(depth=6), "Text."),
        ("@@a\n@@@scan_depth 1\n@@@depth 6\nText.", Decorators(scan_depth=1), "Text."),
        ("@@position nowhere\n@@@depth 6\nText.", Decorators(depth=6), "Text."),
        ("@@instruct_depth 100\n@@@depth 6\nText.", Decorators(depth=6), "Text."),
        ("@@@depth 5\nText.", NO_DECORATORS, "Text."),
        ("@@exclude_keys a b, c ,,\nText.", Decorators(exclude_keys=("a b", "c")), "Text."),
        ("@@exclude_keys\nText.", NO_DECORATORS, "Text."),
        ("@@role Assistant\n@@role x\nText.", Decorators(role="assistant"), "Text."),
        ("@@activate_only_every 0\nText.", NO_DECORATORS, "Text."),
        ("@@depth 1e400\nText.", NO_DECORATORS, "Text."),
        ("@@activate", Decorators(activate=True), ""),
    ],
)
def test_decorators_are_read_with_their_fallbacks(
    content: str, said: Decorators, left: str
) -> None:
    assert split_decorators(content) == (said, left)


def with_head(*heads: str) -> str:
    return "".join(f"@@{head}\n" for head in heads) + "Text."


def test_activate_lets_an_entry_in_in_any_case() -> None:
    lore = book(
        entry("It", content=with_head("activate", "dont_activate", "exclude_keys inn")),
        entry("Off", content=with_head("activate"), enabled=False),
    )
    outcome = scanned(lore, "inn")
    assert reasons(outcome) == {"It": ["decorator @@activate"]}
    assert refusals(outcome) == {"Off": "disabled"}


def test_dont_activate_keeps_an_entry_out() -> None:
    lore = book(entry("It", "inn", content=with_head("dont_activate")))
    assert refusals(scanned(lore, "inn")) == {"It": "decorator @@dont_activate"}


def test_activate_only_after_waits_for_so_many_replies() -> None:
    lore = book(entry("It", "inn", content=with_head("activate_only_after 3")))
    assert refusals(scanned(lore, "inn", reply_count=1)) == {
        "It": "decorator @@activate_only_after, 2 replies to go"
    }
    assert titles(scanned(lore, "inn", reply_count=3)) == ["It"]


def test_activate_only_every_lets_an_entry_in_at_multiples() -> None:
    lore = book(entry("It", "inn", content=with_head("activate_only_every 3")))
    assert [titles(scanned(lore, "inn", reply_count=count)) for count in range(7)] == [
        ["It"] if count % 3 == 0 else [] for count in range(7)
    ]


def test_keep_activate_after_match_lets_an_entry_in_for_good() -> None:
    lore = book(entry("It", "inn", content=with_head("keep_activate_after_match")))
    state = scanned(lore, "inn", message_count=10).timed
    later = scanned(lore, "-", message_count=400, timed=state)
    assert reasons(later) == {"It": ["decorator @@keep_activate_after_match"]}
    again = scanned(lore, "-", message_count=900, timed=later.timed)
    assert titles(again) == ["It"]
    assert titles(scanned(lore, "-", message_count=400)) == []


def test_dont_activate_after_match_lets_an_entry_in_once() -> None:
    lore = book(entry("It", "inn", content=with_head("dont_activate_after_match")))
    state = scanned(lore, "inn", message_count=10).timed
    assert refusals(scanned(lore, "inn", message_count=400, timed=state)) == {
        "It": "decorator @@dont_activate_after_match"
    }


def test_is_greeting_asks_for_the_greeting_that_the_chat_was_opened_with() -> None:
    lore = book(entry("It", "inn", content=with_head("is_greeting 1")))
    assert titles(scanned(lore, "inn", greeting=1)) == ["It"]
    assert titles(scanned(lore, "inn", greeting=None)) == ["It"]
    assert refusals(scanned(lore, "inn", greeting=0)) == {"It": "decorator @@is_greeting"}


def test_scan_depth_of_a_decorator_beats_the_entry_s() -> None:
    lore = book(entry("It", "inn", scan_depth=1, content=with_head("scan_depth 3")))
    assert titles(scanned(lore, "-", "-", "inn")) == ["It"]


def test_additional_keys_ask_for_one_of_them_besides_the_keys() -> None:
    lore = book(
        entry("It", "inn", content=with_head("additional_keys rain, two words")),
        entry("World", constant=True, content=with_head("additional_keys rain")),
    )

    assert set(refusals(scanned(lore, "inn")).items()) == {
        ("It", "additional keys"),
        ("World", "additional keys"),
    }
    assert set(titles(scanned(lore, "inn, rain"))) == {"It", "World"}
    assert titles(scanned(lore, "inn of two words")) == ["It"]


def test_exclude_keys_keep_an_entry_out_if_one_occurs() -> None:
    lore = book(entry("It", "inn", content=with_head("exclude_keys rain, /su+n/")))
    assert titles(scanned(lore, "inn")) == ["It"]
    assert refusals(scanned(lore, "inn, rain")) == {"It": 'exclude key "rain"'}
    assert refusals(scanned(lore, "inn, suuun")) == {"It": "exclude key /su+n/"}


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("before_desc", "before_character"),
        ("after_desc", "after_character"),
        ("personality", "after_character"),
        ("scenario", "after_character"),
        ("elsewhere", "note_top"),
    ],
)
def test_position_of_a_decorator_maps_to_the_nearest_slot(name: str, position: str) -> None:
    lore = book(entry("It", "inn", position="note_top", content=with_head(f"position {name}")))
    assert scanned(lore, "inn").activated[0].position == position


def test_depth_of_a_decorator_puts_an_entry_at_that_depth() -> None:
    placed = scanned(book(entry("It", "inn", content=with_head("depth 2", "role user"))), "inn")
    it = placed.activated[0]
    assert (it.position, it.depth, it.from_start, it.role) == ("at_depth", 2, None, "user")


def test_position_beats_depth_and_depth_beats_reverse_depth() -> None:
    content = with_head("position after_desc", "depth 2", "reverse_depth 1")
    placed = scanned(book(entry("It", "inn", content=content)), "inn").activated[0]
    assert (placed.position, placed.from_start) == ("after_character", None)
    content = with_head("reverse_depth 1", "depth 2")
    placed = scanned(book(entry("It", "inn", content=content)), "inn").activated[0]
    assert (placed.position, placed.depth, placed.from_start) == ("at_depth", 2, None)


def test_reverse_depth_counts_from_the_chat_s_first_message() -> None:
    placed = scanned(book(entry("It", "inn", content=with_head("reverse_depth 1"))), "inn")
    assert placed.activated[0].position == "at_depth"
    assert placed.activated[0].from_start == 1


def test_ignore_on_max_context_gives_way_first() -> None:
    lore = book(
        entry("Way", "inn", order=900, content="@@ignore_on_max_context\na b c"),
        entry("Stays", "inn", order=5, content="d e f"),
        entry("Late", "d", order=5, content="g"),
    )

    assert set(titles(scanned(lore, "inn", budget=10))) == {"Way", "Stays", "Late"}
    short = scanned(lore, "inn", budget=5)
    assert set(titles(short)) == {"Stays", "Late"}
    assert refusals(short) == {"Way": "budget, @@ignore_on_max_context"}
    taken_back = scanned(lore, "inn", budget=6)
    assert set(titles(taken_back)) == {"Stays", "Late"}
    assert taken_back.tokens == 4


def test_an_entry_that_gives_way_stays_if_that_frees_too_little() -> None:
    lore = book(
        entry("Way", "inn", content="@@ignore_on_max_context\na b c"),
        entry("Big", "a", content="d e f g h i j"),
    )
    outcome = scanned(lore, "inn", budget=6)
    assert titles(outcome) == ["Way"]
    assert refusals(outcome) == {"Big": "budget"}
    assert outcome.tokens == 3


def test_disable_ui_prompt_is_known() -> None:
    says, _ = split_decorators(with_head("disable_ui_prompt system_prompt"))
    assert says.disable_ui_prompt == "system_prompt"
