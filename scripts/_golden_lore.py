"""Cases of World Info through the import and the activation of lorebooks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast, get_args
from unittest.mock import patch
from uuid import NAMESPACE_OID, UUID, uuid5

from backend.accounts.profile.settings import LoreStrategy
from backend.context.macros import MacroBudget, MacroContext, Variables, expand
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


def scan_all(case: Mapping[str, Any], regexes: RegexProcess) -> list[dict[str, Any]]:
    """What comes in at each turn of a case, in the form in which SillyTavern's answer stands."""
    books = {name: _book(name, case) for name in SOURCES if name in case["books"]}
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
            expand=_expanded,
            fields={FIELDS[name]: text for name, text in case.get("scan", {}).items()},
            speaker=MACROS.char,
            tags=case.get("tags", ()),
            triggers=[case.get("trigger", "normal")],
            timed=timed,
            evaluator=regexes,
            process_seconds=10,
        )
        # What SillyTavern's dice were made to show.
        with patch.object(groups, "fraction", return_value=case.get("random", 0.5)):
            outcome = activate(scan)
        timed = outcome.timed
        answers.append(_answer(outcome))
    return answers


def is_reordered(theirs: Sequence[Any], ours: Sequence[Any]) -> bool:
    """Whether the same stands in two answers, in another order."""
    return json.dumps(_sorted(theirs)) == json.dumps(_sorted(ours))


def _book(name: str, case: Mapping[str, Any]) -> CompiledBook:
    # Entries that SillyTavern's editor makes say that they are selective; raw ones are files.
    written = {} if case.get("raw") else {"selective": True}
    raw = {str(place): {**written, **each} for place, each in enumerate(case["books"][name])}
    read = read_value({"entries": raw}, given_name=name)
    entries = [(_id(name, place), place, entry) for place, (entry, _) in enumerate(read.entries)]
    return CompiledBook(_id(name), 1, read.fields, entries)


def _id(*parts: object) -> UUID:
    return uuid5(NAMESPACE_OID, json.dumps(parts))


def _expanded(text: str) -> str:
    return expand(text, MACROS, Variables(), place="golden", budget=MacroBudget()).text


def _answer(outcome: ScanOutcome) -> dict[str, Any]:
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


def _sorted(value: Any) -> Any:
    """A value whose lists and lines are in one order."""
    if isinstance(value, str):
        return sorted(value.split("\n"))
    if isinstance(value, list):
        return sorted(map(_sorted, cast("list[object]", value)), key=json.dumps)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _sorted(members[name]) for name in sorted(members)}
    return value
