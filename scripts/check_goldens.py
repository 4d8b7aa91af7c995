#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""What SillyTavern answers, held against what Talekeeper answers to the same.

    scripts/check_goldens.py macros FILE [--json]
    scripts/check_goldens.py world_info FILE [--json]

The cases of a file go through the code that imports books and builds prompts. It prints how many
agree, how many do but for the order, rule by rule, and each difference;
docs/reference/compatibility.md lists the intended ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from backend.context.macros import (
    MacroBudget,
    MacroContext,
    MacroLimitError,
    Variables,
    expand,
)
from backend.regex.process import RegexProcess
from scripts._golden_lore import is_reordered, scan_all

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
"""The card, persona and chat that the cases of macros were answered with."""


@dataclass(frozen=True)
class Outcome:
    """A case, and both answers to it."""

    name: str
    rule: str
    theirs: Any
    ours: Any

    @property
    def verdict(self) -> Verdict:
        """Whether the answers are the same, or would be in another order."""
        if self.theirs == self.ours:
            return "agree"
        is_lore = isinstance(self.theirs, list)
        return "order" if is_lore and is_reordered(self.theirs, self.ours) else "differ"


def macros(file: Path) -> Iterator[Outcome]:
    """Each case of a file of macros; the rule is the first macro's name."""
    for case in json.loads(file.read_text(encoding="utf-8")):
        source = case["input"]
        variables = Variables(local={name: str(each) for name, each in case["vars"].items()})
        try:
            ours: str | None = expand(
                source, SERAPHINA, variables, place="golden", budget=MacroBudget()
            ).text
        except MacroLimitError as error:
            ours = str(error)
        yield Outcome(source, _rule(source), case["sillytavern"], ours)


def world_info(file: Path) -> Iterator[Outcome]:
    """Each case of a file of World Info, one a line."""
    regexes = RegexProcess()
    regexes.prepare()
    with contextlib.closing(regexes), file.open(encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            name = f"{case['id']} {case['note']}".rstrip()
            yield Outcome(name, case["rule"], case["sillytavern"], scan_all(case, regexes))


def _rule(source: str) -> str:
    name = source.partition("{{")[2].lstrip(" !?~>#\t").split("}")[0].split(":")[0].split(" ")[0]
    return name.lower() or "braces"


KINDS = {"macros": macros, "world_info": world_info}


def report(outcomes: list[Outcome]) -> dict[str, Any]:
    """The figures of a file: of all its cases, and of each rule."""
    rules: dict[str, dict[str, int]] = {}
    for each in outcomes:
        rule = rules.setdefault(each.rule, dict.fromkeys(COLUMNS, 0))
        rule["cases"] += 1
        rule[each.verdict] += 1
    total = {name: sum(rule[name] for rule in rules.values()) for name in COLUMNS}
    return {**total, "rules": rules}


def main() -> int:
    """Print the report; 0 whatever differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    outcomes = list(KINDS[asked.kind](asked.file))
    found = report(outcomes)
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
