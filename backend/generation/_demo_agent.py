"""The demo model as chronicle's agent, compactor, and writer of summaries: rules alone.

A sentence with a name and a verb of finding, killing, promising and the like is an event; `X is an
inn` is lore; the first sentence of each line is a summary; a term means the sentence that it is in.
English only.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from backend.generation._json import mapping, sequence
from backend.generation.model import Prompt, Tool, ToolCall

MARK = "Talekeeper's demo model"
SAYINGS: dict[str, Any] = tomllib.loads(
    (resources.files("backend.generation") / "demo.toml").read_text("utf-8")
)
SUMMARY_HEAD = "(Demo summary)"
_WHY = f"{MARK}, which goes by simple rules: a name, and a verb of finding, killing, promising."
_EVENT, _ENTRY = "create_chronicle_event", "create_lorebook_entry"
_MOST_CALLS, _MOST_NAMES, _MOST_MOMENTS = 3, 10, 5


def any_word(words: str, ending: str) -> re.Pattern[str]:
    """A pattern of any of these words, each with an ending."""
    return re.compile(rf"\b(?:{'|'.join(words.split())}){ending}\b", re.IGNORECASE)


_KINDS = {kind: any_word(verbs, "s?") for kind, verbs in SAYINGS["events"].items()}
"""What events are told by, the weightiest first."""

_LINE = re.compile(r"^#(\d+) (?:([^:\n]{1,80}): )?", re.MULTILINE)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_DOUBT = re.compile(r"\?|\b(?:no|not|never|if|would|could|should|might|may|wants?|will|can)\b")
_NAME = re.compile(r"\b[A-Z]\w{2,40}(?: [A-Z]\w{2,40}){0,3}")
_NO_NAMES = frozenset(SAYINGS["no_names"].split())
_TOLD = re.compile(
    rf"(?:The )?({_NAME.pattern}) is ((?:an?|the) (?!bit |lot )[a-z][^.!?\n;,]{{4,200}})"
)
_PLACE = any_word(SAYINGS["places"], "s?")
_WORDS_WANTED = re.compile(r"\babout (\d{1,5}) words\b", re.IGNORECASE)


def triage(prompt: Prompt, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the new lines of a story matter."""
    events, entries = _news(prompt)
    kinds = mapping(mapping(schema.get("properties")).get("kinds"))
    allowed = sequence(mapping(kinds.get("items")).get("enum"))
    found = sorted({event["kind"] for event in events}.intersection(map(str, allowed)))
    return {"why": _WHY, "significant": bool(events or entries), "kinds": found}


def calls(prompt: Prompt, tools: Sequence[Tool]) -> list[ToolCall]:
    """The calls of one step of the chronicle's agent; none where other tools are offered."""
    offered = {tool.name for tool in tools}
    if _EVENT not in offered:
        return []
    wanted: list[tuple[str, dict[str, Any]]] = []
    if not prompt.rounds:
        events, entries = _news(prompt)
        wanted += [(_ENTRY, entry) for entry in entries[:1] if _ENTRY in offered]
        events.sort(key=lambda event: -event["significance"])
        wanted += [(_EVENT, event) for event in events[: _MOST_CALLS - len(wanted)]]
    return [
        ToolCall(id=f"demo-{len(prompt.rounds) + 1}-{number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(wanted or [("finish", {})], start=1)
    ]


def compaction(prompt: Prompt, tools: Sequence[Tool]) -> list[ToolCall] | None:
    """What keeps a campaign's state: events, and who or what is told to be something.

    None where other tools are offered.
    """
    if "chronicle_event_tool" not in {tool.name for tool in tools}:
        return None
    events, entries = ([], []) if prompt.rounds else _news(prompt)
    wanted: list[tuple[str, dict[str, Any]]] = []
    for event in events:
        lines = [int(mark[1:]) for mark in event.pop("source_messages")]
        told = {"set": event, "because": event["summary"][:200], "source_turns": lines}
        wanted.append(("chronicle_event_tool", told))
    for entry in entries:
        is_place = _PLACE.search(entry["content"])
        name, field = ("environment", "description") if is_place else ("npc", "role")
        told = {"name": entry["title"], "set": {field: entry["content"]}, "because": _WHY}
        wanted.append((f"{name}_updater_tool", {**told, "source_turns": []}))
    return [
        ToolCall(id=f"demo-{number}", name=name, arguments=told)
        for number, (name, told) in enumerate(wanted)
    ]


def glossary(prompt: Prompt) -> dict[str, Any]:
    """Candidates of a glossary, defined by the sentences that they are in, and all of the tags."""
    terms, tags = (
        [
            line.removeprefix("- ").split(" | ", 1)
            for line in section(last_line(prompt), name).splitlines()
            if " | " in line
        ]
        for name in ("candidates", "tags")
    )
    return {
        "terms": [{"term": term, "definition": f"(Demo) {told}"} for term, told in terms],
        "tags": [tag for tag, _ in tags],
    }


def summary(prompt: Prompt) -> str | None:
    """An extract of what is to be summed up; None where the prompt asks for something else."""
    system = system_of(prompt)
    if "Task: rolling summary" not in system.splitlines():
        return None
    text = last_line(prompt)
    wanted = _WORDS_WANTED.search(f"{system}\n{text}")
    return _extract(text, section(text, "previous_summary"), int(wanted[1]) if wanted else 150)


def scene(prompt: Prompt) -> dict[str, Any]:
    """An extract of a scene, and the events in it as its key moments."""
    text = last_line(prompt)
    before, *moments = section(text, "summary_so_far").split("\n- ")
    told = [*map(str.strip, moments), *(event["summary"] for event in _news(prompt)[0])]
    return {
        "summary": _extract(text, before, 150),
        "key_moments": [each for each in told if each][-_MOST_MOMENTS:],
        "seeds": [],
        "changes": [],
    }


def chapter(prompt: Prompt) -> dict[str, Any]:
    """The first sentence of each scene, and the first scene's title."""
    scenes = section(last_line(prompt), "scenes").replace(SUMMARY_HEAD, "").splitlines()
    told = [each[2:].partition(": ") for each in scenes if each.startswith("- ")]
    kept = [sentence for *_, text in told for sentence in sentences(text)[:1]]
    return {"title": told[0][0], "summary": " ".join([SUMMARY_HEAD, *kept])}


def _extract(text: str, before: str, most: int) -> str:
    """The first sentence of each new line behind what was told before, in about so many words."""
    kept = sentences(before.replace(SUMMARY_HEAD, ""))
    for _, speaker, said in told_lines(text):
        kept += [f"{speaker}: {each}" if speaker else each for each in sentences(said)[:1]]
    while len(kept) > 1 and sum(len(each.split()) for each in kept) > most:
        # Every other one goes, from the oldest: something of everything stays.
        half = max(1, len(kept) // 2)
        kept = kept[:half][1::2] + kept[half:]
    return " ".join(" ".join([SUMMARY_HEAD, *kept]).split()[: most + 2])


def _news(prompt: Prompt) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Events and entries that the new lines tell of, as arguments of the tools; known ones not."""
    text = last_line(prompt)
    known_events, known_lore = section(text, "known_events"), section(text, "known_lore")
    events: dict[str, dict[str, Any]] = {}
    entries: dict[str, dict[str, Any]] = {}
    for mark, speaker, said in told_lines(text):
        for sentence in sentences(said):
            event = _event(sentence, speaker, mark)
            if event is not None and event["summary"] not in known_events:
                events.setdefault(event["summary"], event)
            told = _TOLD.match(sentence)
            if told and "?" not in sentence and told[1] not in f"{known_lore}\n{speaker}":
                content = {"content": f"{told[1]} is {told[2]}.", "because": _WHY}
                entries.setdefault(told[1], {"title": told[1], "keys": [told[1]], **content})
    return list(events.values()), list(entries.values())


def _event(sentence: str, speaker: str, mark: str) -> dict[str, Any] | None:
    """The event that a sentence tells of, in its words; None for a question or a wish."""
    kinds = list(_KINDS)
    kind = next((kind for kind in kinds if _KINDS[kind].search(sentence)), None)
    who: list[str] = [name for name in _NAME.findall(sentence) if name not in _NO_NAMES]
    if speaker and re.search(r"\bI\b", sentence):
        who.insert(0, speaker)
    if kind is None or not who or _DOUBT.search(sentence):
        return None
    return {
        "summary": (f"{speaker}: {sentence}" if speaker else sentence)[:400],
        "kind": kind,
        "who": [name[:60] for name in dict.fromkeys(who)][:_MOST_NAMES],
        "significance": 5 - kinds.index(kind) // 2,
        "source_messages": [mark],
    }


def system_of(prompt: Prompt) -> str:
    """The system messages, one after the other."""
    return "\n".join(message.text for message in prompt.messages if message.role == "system")


def last_line(prompt: Prompt) -> str:
    """The user's last message; what follows it (a post-history instruction) is not the user's."""
    spoken = (message.text for message in reversed(prompt.messages) if message.role == "user")
    return next(spoken, "")


def section(text: str, name: str) -> str:
    """What stands between the last line `<name>` and `</name>`; empty where there is none."""
    _, opened, rest = f"\n{text}".rpartition(f"\n<{name}>\n")
    return rest.rpartition(f"</{name}>")[0] if opened else ""


def told_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """The new lines in a prompt, `#12 Marlena: text`: mark, speaker, text. Not the demo's own."""
    lines = section(text, "new_lines")
    heads = list(_LINE.finditer(lines))
    ends = [*(head.start() for head in heads[1:]), len(lines)][: len(heads)]
    for head, end in zip(heads, ends, strict=True):
        said = lines[head.end() : end].strip()
        if MARK not in said:
            yield f"#{head[1]}", (head[2] or "").strip(), said


def sentences(text: str) -> list[str]:
    """A text's sentences, without the marks of speech and emphasis."""
    found: list[str] = _SENTENCE.findall(re.sub(r"[*_\"“”]+", "", text))
    return [each for sentence in found if (each := sentence.strip(" \t-"))]
