"""Regex scripts: their matches, replacements, places and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from backend.core.operating_system import start_connected
from backend.regex import scripts as module
from backend.regex.patterns import Pattern, compile_pattern
from backend.regex.process import RegexProcess
from backend.regex.scripts import (
    MAX_SCRIPTS,
    RegexScript,
    ScriptEngine,
    Scripts,
    TextForm,
    TextKind,
    parse_find,
    read_scripts,
)

EVERYWHERE = [1, 2, 5, 6]
OWNER = UUID(int=1)


@pytest.fixture(scope="module")
def process() -> Iterator[RegexProcess]:
    process = RegexProcess()
    assert process.prepare()
    yield process
    process.close()


@pytest.fixture
def ready(process: RegexProcess, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripts]:
    """Build scripts with long time limits, for a machine under load."""
    monkeypatch.setattr(module, "MAX_SECONDS", 60.0)
    monkeypatch.setattr(module, "PATTERN_SECONDS", 10.0)
    engine = ScriptEngine(process)

    def made(*scripts: RegexScript) -> Scripts:
        names = {"{{user}}": "Ada", "{{char}}": "Mr. X"}

        def expand(text: str) -> str:
            for macro, name in names.items():
                text = text.replace(macro, name)
            return text

        return Scripts(scripts, expand, engine, OWNER, _seconds_left=60.0)

    return made


def script(find: str, replace: str = "", **more: Any) -> RegexScript:
    more.setdefault("placement", EVERYWHERE)
    return RegexScript(find_regex=find, replace_string=replace, **more)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("/a/gi", ("a", "gi")),
        ("/a/", ("a", "")),
        ("/a\\/b/m", ("a\\/b", "m")),
        ("/a/b/g", ("a/b", "g")),
        ("plain", ("plain", "")),
        ("/open", ("/open", "")),
        ("/a/1", ("/a/1", "")),
        ("/a/gg", ("a", None)),
        ("/a/x", ("a", None)),
    ],
)
def test_a_pattern_is_between_slashes_or_bare(written: str, read: tuple[str, str | None]) -> None:
    assert parse_find(written) == read


@pytest.mark.parametrize(
    ("find", "replace", "text", "written"),
    [
        ("/o/g", "0", "foo boo", "f00 b00"),
        ("/o/", "0", "foo", "f0o"),
        ("o", "0", "foo", "f0o"),
        ("/(\\w+) (\\w+)/g", "$2 $1", "one two", "two one"),
        ("/(?<first>\\w)\\w*/g", "$<first>.", "Mara Vey", "M. V."),
        ("/\\w+/g", "[{{match}}] [{{MATCH}}] [$0]", "a", "[a] [a] [a]"),
        ("/(a)|(b)/g", "<$1$2$3>", "ab", "<a><b>"),
        ("/x*/g", "-", "axb", "-a--b-"),
        ("/x*/g", "-", "é😀", "-é-😀-"),
        ("/x*|(?=y)/g", "-", "😀", "-😀-"),
        ("/^/g", "x", "", ""),
        ("/(?<=é)ö/g", "$0!", "éö ö", "éö! ö"),
        ("/ö+/g", "<$0>", "aöö", "a<öö>"),
        ("/(.)\\1/g", "$1", "aabbc", "abc"),
        ("/^> (.*)$/gm", "$1", "> a\n> b", "a\nb"),
        ("/MARA/i", "Vey", "Mara Mara", "Vey Mara"),
        ("/a/g", "$$ $& $", "a", "$$ $& $"),
        ("", "x", "a", "a"),
    ],
)
def test_matches_are_replaced_as_in_javascript(
    ready: Callable[..., Scripts], find: str, replace: str, text: str, written: str
) -> None:
    assert ready(script(find, replace)).run(text, "reply", "stored") == written


def test_trim_strings_apply_to_groups_only(ready: Callable[..., Scripts]) -> None:
    trimmed = script("/\\[(.*?)\\]/g", "*$1* - ", trim_strings=["- ", "{{user}}"])
    assert ready(trimmed).run("[- Ada runs] - ", "reply", "stored") == "* runs* -  - "


def test_macros_are_a_script_s_own_and_never_a_text_s(ready: Callable[..., Scripts]) -> None:
    quoting = script("/<(.*?)>/g", "{{user}}: $1")
    raw = script("/{{char}}/g", "!", substitute_regex=1)
    escaped = script("/{{char}}/g", "!", substitute_regex=2)
    plain = script("/{{char}}/g", "!")
    assert ready(quoting).run("<{{user}}>", "reply", "stored") == "Ada: {{user}}"
    assert ready(raw).run("Mr. X and MrsiX, Mr_ X", "reply", "stored") == "! and MrsiX, !"
    assert ready(escaped).run("Mr. X and Mr_ X", "reply", "stored") == "! and Mr_ X"
    assert ready(plain).run("Mr. X", "reply", "stored") == "Mr. X"


def test_scripts_run_one_after_the_other(ready: Callable[..., Scripts]) -> None:
    both = ready(script("/a/g", "b", script_name="First"), script("/b/g", "c"))
    steps = list(both.steps("ab", "reply", "stored"))
    assert [text for text, _ in steps] == ["bb", "cc"]
    assert [(step.name, step.state, step.matches) for _, step in steps] == [
        ("First", "changed", 1),
        ("Script 2", "changed", 2),
    ]


@pytest.mark.parametrize(
    ("more", "where", "applies"),
    [
        ({"placement": [2]}, ("reply", "stored", None, False), True),
        ({"placement": [2]}, ("user", "stored", None, False), False),
        ({"placement": [5]}, ("lore", "stored", None, False), True),
        ({"placement": []}, ("reply", "stored", None, False), False),
        ({"disabled": True}, ("reply", "stored", None, False), False),
        ({}, ("reply", "prompt", None, False), False),
        ({}, ("reply", "shown", None, False), False),
        ({"prompt_only": True}, ("reply", "prompt", None, False), True),
        ({"prompt_only": True}, ("reply", "stored", None, False), False),
        ({"markdown_only": True}, ("reply", "shown", None, False), True),
        ({"markdown_only": True, "prompt_only": True}, ("reply", "prompt", None, False), True),
        ({}, ("reply", "stored", None, True), False),
        ({"run_on_edit": True}, ("reply", "stored", None, True), True),
        ({"min_depth": 2}, ("reply", "stored", 1, False), False),
        ({"min_depth": 2}, ("reply", "stored", 2, False), True),
        ({"max_depth": 2}, ("reply", "stored", 3, False), False),
        ({"max_depth": -1}, ("reply", "stored", 3, False), True),
        ({"min_depth": 2}, ("reply", "stored", None, False), True),
    ],
)
def test_a_script_applies_only_in_its_places(
    more: dict[str, Any], where: tuple[TextKind, TextForm, int | None, bool], applies: bool
) -> None:
    place, form, depth, is_edit = where
    one = script("a", **more)
    assert (one.applies_to(place, form, is_edit=is_edit) and one.reaches(depth)) is applies


@pytest.mark.parametrize("find", ["/(/g", "/a/gg", "/[/", "x" * 3_000])
def test_an_invalid_pattern_changes_nothing_and_is_noted(
    ready: Callable[..., Scripts], find: str
) -> None:
    broken = ready(script(find, "x", script_name="Broken"))
    assert broken.run("a( [", "reply", "stored") == "a( ["
    assert list(broken.notes) == ['Regex script "Broken" has no valid pattern, or too long a one.']


@pytest.mark.parametrize(
    ("find", "replace", "text", "note"),
    [
        ("/a/g", "x", "a" * 20_000, "matches too often"),
        ("/(?=a)a/g", "x", "a" * 20_000, "matches too often"),
        ("/.+/gs", "$0" * 9_000, "a" * 20_000, "makes the text too long"),
        ("/a/g", "$0 " * 6_000, "a" * 9_000, "matches too often"),
    ],
)
def test_a_script_beyond_the_limits_is_skipped_with_a_note(
    ready: Callable[..., Scripts], find: str, replace: str, text: str, note: str
) -> None:
    much = ready(script(find, replace, script_name="Much"))
    assert much.run(text, "reply", "stored") == text
    (said,) = much.notes
    assert note in said


@pytest.mark.parametrize("find", ["/(x+x+)+[yz](?!b)/", "/(x*y|x)(?=)/g"])
def test_a_pattern_that_takes_too_long_is_switched_off(process: RegexProcess, find: str) -> None:
    text = "a" * 40 + "x" * 60_000 + "!"
    engine = ScriptEngine(process)
    slow = script(find, "x", script_name="Slow")

    def states() -> list[str]:
        scripts = Scripts([slow], str, engine, OWNER)
        return [step.state for _, step in scripts.steps(text, "reply", "stored")]

    # On a busy machine it may not have had its time yet.
    while (first := states()) == ["busy"]:
        pass

    assert first == ["too_slow"]
    quick = Scripts([slow], str, engine, OWNER)
    assert quick.run("a", "reply", "stored") == "a"
    assert "is switched off" in next(iter(quick.notes))
    # For other users it still runs, because their texts may be shorter.
    assert Scripts([slow], str, engine, UUID(int=2)).run("x", "reply", "stored") == "x"
    assert not engine.is_given_up(UUID(int=2), pattern_of(find))
    assert engine.is_given_up(OWNER, pattern_of(find))


def test_a_script_without_its_process_is_skipped_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start_other(_: str) -> object:
        return start_connected("backend.no_such_module")

    monkeypatch.setattr("backend.regex.process.start_connected", start_other)
    process = RegexProcess()
    scripts = Scripts([script("/(?<=a )b/", "c")], str, ScriptEngine(process), OWNER)

    assert scripts.run("a b", "reply", "stored") == "a b"
    assert "does not start" in next(iter(scripts.notes))
    process.close()


def pattern_of(find: str) -> Pattern:
    source, flags = parse_find(find)
    pattern = compile_pattern(source, flags or "", captures=True)
    assert pattern is not None
    return pattern


def test_scripts_of_a_card_are_read_and_other_values_skipped() -> None:
    listed = [
        {
            "id": "1",
            "scriptName": "Bold",
            "findRegex": "/a/g",
            "replaceString": "**$0**",
            "trimStrings": [],
            "placement": [2, "1"],
            "disabled": None,
            "markdownOnly": True,
            "minDepth": None,
            "maxDepth": "3",
            "substituteRegex": False,
            "unknown": {"kept": 1},
        },
        "none",
        {"findRegex": 5},
        None,
    ]

    (read,) = read_scripts({"regex_scripts": listed})

    assert (read.script_name, read.placement, read.max_depth) == ("Bold", [2, 1], 3)
    assert read.markdown_only
    assert read_scripts({"regex_scripts": {"a": 1}}) == []
    assert len(read_scripts({"regex_scripts": [{}] * 200})) == MAX_SCRIPTS
