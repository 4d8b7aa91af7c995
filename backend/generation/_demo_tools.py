"""Triage, tools and summaries of the demo model: rules in the place of understanding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from backend.generation._demo_story import (
    DemoLine,
    Happening,
    Introduced,
    happenings,
    introductions,
    lines_of,
    section,
    sentences,
)
from backend.generation._failures import mapping, sequence
from backend.generation.model import Prompt, Tool, ToolCall

WHY = (
    "Talekeeper's demo model, which goes by simple rules: a name, and a verb of finding, "
    "killing, promising and the like."
)
SUMMARY_TASK = "Task: rolling summary"
SUMMARY_HEAD = "(Demo summary)"

_TRIAGE = frozenset({"significant", "why", "kinds"})
_MOST_CALLS = 3
_MOST_NAMES = 10
_LONGEST_NAME = 60
_USUAL_WORDS = 150
_WORDS_WANTED = re.compile(r"\babout (\d{1,5}) words\b", re.IGNORECASE)
_EVENT, _ENTRY, _FINISH = "create_chronicle_event", "create_lorebook_entry", "finish"


def triage(prompt: Prompt, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Whether the new lines of a story matter; None when the schema asks for something else."""
    members = mapping(schema.get("properties"))
    if not members.keys() >= _TRIAGE:
        return None
    events, entries = _news(prompt)
    allowed = sequence(mapping(mapping(members["kinds"]).get("items")).get("enum"))
    kinds = sorted({event.kind for event in events})
    return {
        "why": WHY,
        "significant": bool(events or entries),
        "kinds": [kind for kind in kinds if not allowed or kind in allowed],
    }


def calls(prompt: Prompt, tools: Sequence[Tool]) -> list[ToolCall]:
    """The calls of one step of the chronicle's agent; none where other tools are offered."""
    offered = {tool.name: tool for tool in tools}
    if _EVENT not in offered:
        return []
    wanted: list[tuple[str, dict[str, Any]]] = []
    if not prompt.rounds:
        events, entries = _news(prompt)
        wanted += [(_EVENT, _event(event)) for event in events]
        wanted += [(_ENTRY, _entry(entry)) for entry in entries if _ENTRY in offered]
    chosen = _fair(wanted) or [(_FINISH, {})]
    return [
        ToolCall(
            id=f"demo-{len(prompt.rounds) + 1}-{number}", name=name, arguments=arguments
        )
        for number, (name, arguments) in enumerate(chosen, start=1)
        if name in offered
    ]  # fmt: skip


def summary(prompt: Prompt) -> str | None:
    """An extract of what is to be summed up; None when the prompt asks for something else."""
    system = "\n".join(message.text for message in prompt.messages if message.role == "system")
    if SUMMARY_TASK not in system.splitlines():
        return None
    text = _read(prompt)
    wanted = _WORDS_WANTED.search(f"{system}\n{text}")
    most = int(wanted[1]) if wanted else _USUAL_WORDS
    told = [sentence for line in _summed_up(text) for sentence in _first_of(line)]
    kept: list[str] = [*_before(text), *told]
    while len(kept) > 1 and sum(len(each.split()) for each in kept) > most:
        # Every other one goes, from the oldest: something of everything stays.
        half = max(1, len(kept) // 2)
        kept = [*kept[:half][1::2], *kept[half:]]
    words = " ".join([SUMMARY_HEAD, *kept]).split()
    return " ".join(words[: most + len(SUMMARY_HEAD.split())])


def _news(prompt: Prompt) -> tuple[list[Happening], list[Introduced]]:
    """Events and names of the new lines, but for those that are known."""
    text = _read(prompt)
    lines = lines_of(section(text, "new_lines"))
    known_events = section(text, "known_events").casefold()
    known_lore = section(text, "known_lore").casefold()
    earlier = lines_of(section(text, "earlier_lines"))
    events = [each for each in happenings(lines) if each.summary.casefold() not in known_events]
    entries = [
        each
        for each in introductions(lines, earlier)
        if each.title.casefold() not in known_lore
    ]  # fmt: skip
    return events, entries


def _fair(wanted: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """As many calls as there may be: of several events the weightiest, and one entry at most."""
    entries = [each for each in wanted if each[0] == _ENTRY][:1]
    events = [each for each in wanted if each[0] == _EVENT]
    weighty = sorted(events, key=lambda each: -each[1]["significance"])
    kept = weighty[: _MOST_CALLS - len(entries)]
    return [each for each in events if each in kept] + entries


def _event(event: Happening) -> dict[str, Any]:
    return {
        "summary": event.summary,
        "kind": event.kind,
        "where": event.where[:_LONGEST_NAME],
        "who": [name[:_LONGEST_NAME] for name in event.who[:_MOST_NAMES]],
        "keywords": [word[:_LONGEST_NAME] for word in event.keywords],
        "significance": event.significance,
        "source_messages": [event.mark],
    }


def _entry(entry: Introduced) -> dict[str, Any]:
    return {
        "title": entry.title[:_LONGEST_NAME],
        "content": entry.content,
        "keys": [entry.title[:_LONGEST_NAME]],
        "because": WHY,
    }


def _read(prompt: Prompt) -> str:
    """The user's last message: where the story stands."""
    spoken = (message.text for message in reversed(prompt.messages) if message.role == "user")
    return next(spoken, "")


def _summed_up(text: str) -> list[DemoLine]:
    lines = lines_of(section(text, "new_lines") or text)
    return [line for line in lines if not line.is_own]


def _before(text: str) -> list[str]:
    """Sentences of the summary so far."""
    return sentences(section(text, "previous_summary").replace(SUMMARY_HEAD, ""))


def _first_of(line: DemoLine) -> list[str]:
    first = sentences(line.text)[:1]
    return [f"{line.speaker}: {each}" if line.speaker else each for each in first]
