#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Compare the answers of Talekeeper with those of SillyTavern.

    scripts/check_goldens.py macros FILE [--json]
    scripts/check_goldens.py world_info FILE [--json]

The cases of a file go through the code that imports books and builds prompts. For each rule it
prints how many answers agree, differ only in their order, or differ; and then each difference.
docs/reference/compatibility.md lists the intended ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args
from unittest.mock import patch
from uuid import NAMESPACE_OID, UUID, uuid5

from backend.accounts.profile.settings import LoreStrategy
from backend.context.macros import (
    MacroBudget,
    MacroContext,
    MacroLimitError,
    Variables,
    expand,
)
from backend.core.reasons import FoundIn
from backend.generation.model import Role
from backend.lorebooks.activation import selection as groups
from backend.lorebooks.activation.compiled import CompiledBook
from backend.lorebooks.activation.outcome import Scan, ScannedLine, ScanOutcome
from backend.lorebooks.activation.scan import activate
from backend.lorebooks.activation.timed import TimedState
from backend.lorebooks.entries import LinkSource, LoreSettings, MatchedField
from backend.lorebooks.formats.fields import MATCHED
from backend.lorebooks.formats.reader import read_value
from backend.regex.process import RegexProcess

Verdict = Literal["agree", "order", "differ"]

COLUMNS: Final = ("cases", "agree", "order", "differ")

SERAPHINA = MacroContext(
    user="Traveler",
    char="Seraphina",
    now=datetime(2026, 3, 4, 15, 5, tzinfo=UTC),
    chat_seed=1,
    message_seed=2,
    model="demo",
    max_prompt=200_000,
    max_response=4_096,
    persona="{{user}} is a cartographer.",
    description="{{char}} keeps the lighthouse.",
    personality="dry, patient",
    scenario="A storm traps {{user}}.",
    mes_examples="{{char}}: Seen worse.",
    char_prompt="Write as {{char}}.",
    char_instruction="Stay in scene.",
    creator_notes="By Ada.",
    greetings=("Who goes there?", "You again."),
    char_version="1.2",
    last_message="Who keeps it?",
    last_user_message="Who keeps it?",
    last_char_message="The lamp is out.",
    original="ORIG",
    outlets={"sea": "The sea is rising."},
    idle=timedelta(hours=3),
)
"""The card, persona and chat of the macro cases."""


SOURCES: Final[dict[str, LinkSource]] = {
    "chat": "chat",
    "persona": "persona",
    "char": "character",
    "global": "global",
}
SETTINGS: Final = {
    "depth": "scan_depth",
    "recursive": "recursive",
    "caseSensitive": "case_sensitive",
    "matchWholeWords": "match_whole_words",
    "includeNames": "include_names",
    "useGroupScoring": "use_group_scoring",
    "maxRecursionSteps": "max_recursion_steps",
    "minActivations": "min_activations",
    "minActivationsDepthMax": "min_activations_depth",
}
ROLES: Final[tuple[Role, ...]] = ("system", "user", "assistant")
NO_LIMIT: Final = 1_000_000
MACROS: Final = MacroContext(
    user="Anna",
    char="Seraphina",
    now=datetime(2026, 3, 4, 15, 5, tzinfo=UTC),
    chat_seed=1,
    message_seed=2,
    model="demo",
    max_prompt=200_000,
    max_response=4_096,
)
FIELDS: Final[dict[str, MatchedField]] = {
    member.removeprefix("match")[0].lower() + member.removeprefix("match")[1:]: field
    for field, member in MATCHED.items()
}


@dataclass(frozen=True)
class GoldenCase:
    """A case with both answers."""

    name: str
    rule: str
    theirs: Any
    ours: Any

    @property
    def verdict(self) -> Verdict:
        """Return whether the answers agree, differ only in their order, or differ."""
        if self.theirs == self.ours:
            return "agree"
        is_lore = isinstance(self.theirs, list)
        return "order" if is_lore and is_reordered(self.theirs, self.ours) else "differ"


def read_macros(file: Path) -> Iterator[GoldenCase]:
    """Yield each case of a file of macros. The rule is the name of the first macro."""
    for case in json.loads(file.read_text(encoding="utf-8")):
        source = case["input"]
        variables = Variables(local={name: str(each) for name, each in case["vars"].items()})
        try:
            ours: str | None = expand(
                source, SERAPHINA, variables, place="golden", budget=MacroBudget()
            ).text
        except MacroLimitError as error:
            ours = str(error)
        yield GoldenCase(source, _get_rule(source), case["sillytavern"], ours)


def read_world_info(file: Path) -> Iterator[GoldenCase]:
    """Yield each case of a file of World Info, which has one in each line."""
    regexes = RegexProcess()
    regexes.prepare()
    with contextlib.closing(regexes), file.open(encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            name = f"{case['id']} {case['note']}".rstrip()
            yield GoldenCase(name, case["rule"], case["sillytavern"], scan_all(case, regexes))


def scan_all(case: Mapping[str, Any], regexes: RegexProcess) -> list[dict[str, Any]]:
    """Return the activated lore of each turn of a case, in the format of SillyTavern's answers."""
    books = {name: _make_book(name, case) for name in SOURCES if name in case["books"]}
    given = case.get("settings", {})
    settings: dict[str, Any] = {
        ours: given[theirs] for theirs, ours in SETTINGS.items() if theirs in given
    }
    if "strategy" in given:
        settings["strategy"] = get_args(LoreStrategy)[given["strategy"]]
    turns = case.get("turns") or [{"messages": case["messages"]}]
    timed, answers = TimedState(), list[dict[str, Any]]()
    for turn in turns:
        scan = Scan(
            books=list(books.values()),
            sources={book.book_id: SOURCES[name] for name, book in books.items()},
            messages=[
                ScannedLine(each["name"], each["text"], FoundIn("text"))
                for each in turn["messages"]
            ],
            settings=LoreSettings(**settings),
            budget=given.get("budget", NO_LIMIT),
            count=lambda text: len(text.split()),
            message_count=len(turn["messages"]),
            seed=0,
            expand=_expand,
            fields={FIELDS[name]: text for name, text in case.get("scan", {}).items()},
            speaker=MACROS.char,
            tags=case.get("tags", ()),
            triggers=[case.get("trigger", "normal")],
            timed=timed,
            evaluator=regexes,
            process_seconds=10,
        )
        # The cases were recorded with fixed dice.
        with patch.object(groups, "fraction", return_value=case.get("random", 0.5)):
            outcome = activate(scan)
        timed = outcome.timed
        answers.append(_format_answer(outcome))
    return answers


def is_reordered(theirs: Sequence[Any], ours: Sequence[Any]) -> bool:
    """True if two answers differ only in their order."""
    return json.dumps(_sort(theirs)) == json.dumps(_sort(ours))


def _make_book(name: str, case: Mapping[str, Any]) -> CompiledBook:
    # Entries that SillyTavern's editor makes say that they are selective; raw ones are files.
    written = {} if case.get("raw") else {"selective": True}
    raw = {str(place): {**written, **each} for place, each in enumerate(case["books"][name])}
    read = read_value({"entries": raw}, given_name=name)
    entries = [
        (_make_id(name, place), place, entry) for place, (entry, _) in enumerate(read.entries)
    ]
    return CompiledBook(_make_id(name), 1, read.fields, entries)


def _make_id(*parts: object) -> UUID:
    return uuid5(NAMESPACE_OID, json.dumps(parts))


def _expand(text: str) -> str:
    return expand(text, MACROS, Variables(), place="golden", budget=MacroBudget()).text


def _format_answer(outcome: ScanOutcome) -> dict[str, Any]:
    entries = outcome.activated

    def at(position: str) -> list[str]:
        return [entry.content for entry in entries if entry.position == position]

    depths: dict[tuple[int, int], list[str]] = {}
    outlets: dict[str, list[str]] = {}
    for entry in reversed(entries):
        if entry.position == "at_depth":
            place = entry.depth, ROLES.index(entry.role)
            depths.setdefault(place, []).insert(0, entry.content)
        elif entry.position == "outlet":
            outlets.setdefault(entry.outlet, []).append(entry.content)
    return {
        "active": sorted(entry.title for entry in entries),
        "before": "\n".join(at("before_character")),
        "after": "\n".join(at("after_character")),
        "anTop": at("note_top"),
        "anBottom": at("note_bottom"),
        "em": [
            [int(entry.position == "examples_bottom"), entry.content]
            for entry in entries
            if entry.position.startswith("examples")
        ],
        "depth": [[depth, role, texts] for (depth, role), texts in depths.items()],
        "outlets": outlets,
    }


def _sort(value: Any) -> Any:
    """Return a value with sorted lists and lines."""
    if isinstance(value, str):
        return sorted(value.split("\n"))
    if isinstance(value, list):
        return sorted(map(_sort, cast("list[object]", value)), key=json.dumps)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _sort(members[name]) for name in sorted(members)}
    return value


def _get_rule(source: str) -> str:
    name = source.partition("{{")[2].lstrip(" !?~>#\t").split("}")[0].split(":")[0].split(" ")[0]
    return name.lower() or "braces"


KINDS = {"macros": read_macros, "world_info": read_world_info}


def count_verdicts(outcomes: list[GoldenCase]) -> dict[str, Any]:
    """Return the figures of all cases, and of each rule."""
    rules: dict[str, dict[str, int]] = {}
    for each in outcomes:
        rule = rules.setdefault(each.rule, dict.fromkeys(COLUMNS, 0))
        rule["cases"] += 1
        rule[each.verdict] += 1
    total = {name: sum(rule[name] for rule in rules.values()) for name in COLUMNS}
    return {**total, "rules": rules}


def main() -> int:
    """Print the report; return 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    outcomes = list(KINDS[asked.kind](asked.file))
    found = count_verdicts(outcomes)
    if asked.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return 0
    sys.stdout.write(f"{'':28}" + "".join(f"{column:>8}" for column in COLUMNS) + "\n")
    for name, rule in [*sorted(found["rules"].items()), ("all", found)]:
        figures = "".join(f"{rule[column]:8}" for column in COLUMNS)
        sys.stdout.write(f"{name:28}{figures}\n")
    for each in outcomes:
        if each.verdict != "agree":
            sys.stdout.write(f"\n{each.name}\n  theirs {each.theirs!r}\n  ours   {each.ours!r}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
