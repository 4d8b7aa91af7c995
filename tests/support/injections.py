"""Prompt injections, and the calls of a model that obeys all of them.

A case of `tests/fixtures/injections/*.yaml` has a text, the `place` where it stands, and the calls
of whoever obeys it. `text` may be followed by a `fill` that is repeated. A call has `args`, or
`raw` where they are no JSON object; with `times` it is made that often, `$n` counting. In texts and
arguments `$name` stands for a real id, or for a handle out of the prompt that the model was sent;
`{repeat, times}` for a long text and `{list, times}` for a long list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import yaml

FOLDER = Path(__file__).parents[1] / "fixtures" / "injections"

LINE = "Mara, who lit the lamp of Morrow tonight?"
REPLY = "The lamp of Morrow was lit by Mara herself."
"""The text of a line that a case does not define."""

GREETING = "The door of the lighthouse creaks open."
EVENT = "Wendeline promised to keep the lamp of Morrow burning."
SECOND_EVENT = "Tobias drowned in the lamp's oil off Morrow."
ENTRY = "The lighthouse of Morrow never goes dark while its lamp is tended."
FOREIGN = "The ferry of Skarne carries no lamp."
"""An entry that an agent wrote for another chronicle. Its lorebook is linked to the chat."""
TRAP = "The lamp's shadow"
"""The title of the entry that holds a case's text."""

HANDLES = {
    "line": r"#\d+",
    "greeting": r"#\d+",
    "event": r"E\d+",
    "second_event": r"E\d+",
    "latest_event": r"E\d+",
    "entry": r"L\d+",
    "trap": r"L\d+",
    "foreign_entry": r"L\d+",
    "latest_entry": r"L\d+",
}

Kind = Literal["card", "entry", "message"]
Call = tuple[str, Any]
"""A tool's name, and its arguments: a text where they are to be no JSON object."""


@dataclass(frozen=True, kw_only=True)
class Injection:
    """One text, and the calls of a model that obeys it."""

    name: str
    kind: Kind
    place: str
    text: str
    calls: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        return self.name


def load_injections() -> list[Injection]:
    """The whole corpus: cards, then entries, then messages."""
    kinds: tuple[Kind, ...] = ("card", "entry", "message")
    files = ("cards.yaml", "entries.yaml", "messages.yaml")
    return [
        _injection(kind, case)
        for kind, file in zip(kinds, files, strict=True)
        for case in yaml.safe_load((FOLDER / file).read_text("utf-8"))
    ]


def _injection(kind: Kind, case: dict[str, Any]) -> Injection:
    fill = case.pop("fill", {"text": "", "times": 0})
    return Injection(kind=kind, text=case.pop("text") + fill["text"] * fill["times"], **case)


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """A value with names in the place of `$name`, and long where it is to be long."""
    match value:
        case str():
            return re.sub(r"\$([a-z_]+)", lambda found: names.get(found[1], found[0]), value)
        case {"repeat": text, "times": times}:
            return filled(text, names) * times
        case {"list": text, "times": times}:
            return [filled(text, {**names, "n": str(number + 1)}) for number in range(times)]
        case dict():
            members = cast("dict[str, Any]", value)
            return {name: filled(member, names) for name, member in members.items()}
        case list():
            return [filled(item, names) for item in cast("Sequence[Any]", value)]
        case _:
            return value


@dataclass
class Obedience:
    """The calls of a model that obeys a case. `ids` are real ids that it may know."""

    case: Injection
    ids: Mapping[str, str]

    @property
    def line(self) -> str:
        """The line of the user."""
        return self._text if self.case.place == "line" else LINE

    @property
    def reply(self) -> str:
        """The reply of the story model."""
        return self._text if self.case.place == "reply" else REPLY

    @property
    def _text(self) -> str:
        text: str = filled(self.case.text, self.ids)
        return text

    def triage(self) -> dict[str, Any]:
        """It matters, whatever it is."""
        return {"significant": True, "why": self.case.text[:200], "kinds": ["event", "fact"]}

    def calls(self, number: int, texts: Sequence[str]) -> list[Call]:
        """The calls of step `number` of the loop, from 0. `texts` are the texts of the request.

        First it looks around, for what it is shown can be named; then it obeys, and again.
        """
        if number == 0:
            return [
                ("search_knowledge_base", {"query": query, "limit": 9})
                for query in (EVENT, ENTRY, TRAP, FOREIGN)
            ]
        names = {**self.ids, **self._handles(texts), "prompt": "\n".join(texts)[:3_000]}
        return [call for each in self.case.calls for call in _made(each, names)]

    def _handles(self, texts: Sequence[str]) -> dict[str, str]:
        """The names in the prompt for the items of a case."""
        whole = "\n".join(texts)
        shown = {
            "line": REPLY if REPLY in whole else LINE,
            "greeting": GREETING,
            "event": EVENT,
            "second_event": SECOND_EVENT,
            "entry": ENTRY,
            "trap": TRAP,
            "foreign_entry": FOREIGN,
        }
        usual = {
            name: "#1" if pattern[0] == "#" else f"{pattern[0]}1"
            for name, pattern in HANDLES.items()
        }
        found = {name: _before(whole, text, HANDLES[name]) for name, text in shown.items()}
        latest = {name: _last(whole, HANDLES[name]) for name in ("latest_event", "latest_entry")}
        return usual | {name: handle for name, handle in (found | latest).items() if handle}


def _made(call: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Call]:
    for number in range(1, call.get("times", 1) + 1):
        numbered = {**names, "n": str(number)}
        match call:
            case {"raw": {"nested": depth}}:
                yield call["tool"], '{"a":' * depth + "1" + "}" * depth
            case {"raw": raw}:
                yield call["tool"], filled(raw, numbered)
            case _:
                yield filled(call["tool"], numbered), filled(call["args"], numbered)


def _before(whole: str, text: str, pattern: str) -> str | None:
    """The last handle before a text."""
    return _last(whole[:place], pattern) if (place := whole.find(text)) >= 0 else None


def _last(whole: str, pattern: str) -> str | None:
    found: list[str] = re.findall(rf"(?<!\w){pattern}(?!\w)", whole)
    return found[-1] if found else None


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a request's body; JSON within a text is opened, too."""
    match value:
        case str():
            try:
                inner = json.loads(value) if value[:1] in "{[" else None
            except ValueError:
                inner = None
            if isinstance(inner, dict | list):
                yield from texts_in(inner)
            else:
                yield value
        case dict():
            for member in cast("dict[str, Any]", value).values():
                yield from texts_in(member)
        case list():
            for item in cast("Sequence[Any]", value):
                yield from texts_in(item)
        case _:
            pass
