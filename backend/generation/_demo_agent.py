"""The demo model as chronicle's agent and writer of summaries and glossaries: rules alone.

A sentence with a name and a verb of finding, killing, promising and the like is an event; `X is an
inn` is lore; the first sentence of each line is a summary; a term means the sentence that it is in.
English only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backend.generation._json import mapping, sequence
from backend.generation.model import Prompt, Tool, ToolCall

SUMMARY_HEAD = "(Demo summary)"
_SEEN_IN = "(Demo)"
_MARK = "Talekeeper's demo model"
_WHY = f"{_MARK}, which goes by simple rules: a name, and a verb of finding, killing, promising."
_EVENT, _ENTRY, _FINISH = "create_chronicle_event", "create_lorebook_entry", "finish"
_MOST_CALLS, _MOST_NAMES, _LONGEST_NAME, _LONGEST_SUMMARY = 3, 10, 60, 400
_SCENE_WORDS, _MOST_MOMENTS = 150, 5

_VERBS = {
    ("discovery", 3): """find finds found, discover discovers discovered, learn learns learned,
        reveal reveals revealed, confess confesses confessed""",
    ("death", 5): "kill kills killed, slay slays slew, murder murders murdered, die dies died",
    ("promise", 4): "promise promises promised, swear swears swore sworn, vow vows vowed",
    ("possession", 3): """give gives gave, steal steals stole, buy buys bought, lose loses lost,
        hide hides hid""",
    ("relationship", 3): "meet meets met, marry marries married, forgive forgives forgave",
    ("conflict", 4): "betray betrays betrayed, attack attacks attacked, fight fights fought",
    ("travel", 2): "arrive arrives arrived, reach reaches reached, leave leaves left",
}
_KINDS = {word: kind for kind, verbs in _VERBS.items() for word in verbs.replace(",", " ").split()}
_THIRD = {
    verb.split()[0]: verb.split()[1] for verbs in _VERBS.values() for verb in verbs.split(",")
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HEDGES = _words(
    "to not never if would could should might may want wanted will can cannot must don't didn't"
)
_DETERMINERS = _words("the a an my your his her their")
_STARTERS = _words(
    """a an and as at but by for he her his how i if in is it my no of on or she so that the their
    then there they this to was we what when where who why will with yes you your"""
)

_LINE = re.compile(r"^#(\d+) (?:([^:\n]{1,80}): )?", re.MULTILINE)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_WORD = re.compile(r"[\w'-]+")
_NAME = re.compile(r"\b[A-Z][\w-]{1,40}(?: (?:of (?:the )?)?[A-Z][\w-]{1,40}){0,4}")
_PLACE = re.compile(
    rf"\b(?:in|at|into|under|near|on|to|behind|reached|left) (?:the )?({_NAME.pattern})"
)
_TOLD = re.compile(
    rf"(?:The )?({_NAME.pattern}) is ((?:an?|the) (?!bit |lot |little )[a-z][^.!?\n;,]{{4,200}})"
)
_WORDS_WANTED = re.compile(r"\babout (\d{1,5}) words\b", re.IGNORECASE)


def triage(prompt: Prompt, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the new lines of a story matter."""
    events, entries = _news(prompt)
    kinds = mapping(mapping(schema.get("properties")).get("kinds"))
    allowed = sequence(mapping(kinds.get("items")).get("enum"))
    found = sorted({event["kind"] for event in events})
    return {
        "why": _WHY,
        "significant": bool(events or entries),
        "kinds": [kind for kind in found if not allowed or kind in allowed],
    }


def calls(prompt: Prompt, tools: Sequence[Tool]) -> list[ToolCall]:
    """The calls of one step of the chronicle's agent; none where other tools are offered."""
    offered = {tool.name for tool in tools}
    if _EVENT not in offered:
        return []
    wanted: list[tuple[str, dict[str, Any]]] = []
    if not prompt.rounds:
        events, entries = _news(prompt)
        wanted += [(_ENTRY, entry) for entry in entries[:1] if _ENTRY in offered]
        weighty = sorted(events, key=lambda event: -event["significance"])
        kept = weighty[: _MOST_CALLS - len(wanted)]
        wanted = [*((_EVENT, event) for event in events if event in kept), *wanted]
    return [
        ToolCall(id=f"demo-{len(prompt.rounds) + 1}-{number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(wanted or [(_FINISH, {})], start=1)
    ]


def glossary(prompt: Prompt) -> dict[str, Any]:
    """The candidates of a glossary, each with the sentence that it is in for its definition."""
    terms: list[dict[str, str]] = []
    for candidate in _section(last_line(prompt), "candidates").splitlines():
        term, _, told = candidate.removeprefix("- ").partition(" | ")
        if term and told:
            terms.append({"term": term, "definition": f"{_SEEN_IN} {told}"})
    return {"terms": terms}


def summary(prompt: Prompt) -> str | None:
    """An extract of what is to be summed up; None where the prompt asks for something else."""
    system = "\n".join(message.text for message in prompt.messages if message.role == "system")
    if "Task: rolling summary" not in system.splitlines():
        return None
    text = last_line(prompt)
    wanted = _WORDS_WANTED.search(f"{system}\n{text}")
    most = int(wanted[1]) if wanted else 150
    return _extract(_section(text, "previous_summary"), _section(text, "new_lines") or text, most)


def scene(prompt: Prompt) -> dict[str, Any]:
    """An extract of a scene, and the events in it as its key moments."""
    text = last_line(prompt)
    before, _, moments = _section(text, "summary_so_far").partition("\n- ")
    events, _ = _news(prompt)
    told = [*moments.split("\n- "), *(event["summary"] for event in events)]
    return {
        "summary": _extract(before, _section(text, "new_lines"), _SCENE_WORDS),
        "key_moments": [each.strip() for each in told if each.strip()][-_MOST_MOMENTS:],
        "seeds": [],
        "changes": [],
    }


def _extract(before: str, lines: str, most: int) -> str:
    """The first sentence of each line behind what was told before, in about so many words."""
    kept: list[str] = _sentences(before.replace(SUMMARY_HEAD, ""))
    for _, speaker, said in _lines(lines):
        first = _sentences(said)[:1]
        kept += [f"{speaker}: {each}" if speaker else each for each in first]
    while len(kept) > 1 and sum(len(each.split()) for each in kept) > most:
        # Every other one goes, from the oldest: something of everything stays.
        half = max(1, len(kept) // 2)
        kept = kept[:half][1::2] + kept[half:]
    return " ".join(" ".join([SUMMARY_HEAD, *kept]).split()[: most + 2])


def last_line(prompt: Prompt) -> str:
    """The user's last message; what follows it (a post-history instruction) is not the user's."""
    spoken = (message.text for message in reversed(prompt.messages) if message.role == "user")
    return next(spoken, "")


def _news(prompt: Prompt) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Events and entries that the new lines tell of, as arguments of the tools; known ones not."""
    text = last_line(prompt)
    known_events = _section(text, "known_events").casefold()
    known_lore = _section(text, "known_lore").casefold()
    events: dict[str, dict[str, Any]] = {}
    entries: dict[str, dict[str, Any]] = {}
    for mark, speaker, said in _lines(_section(text, "new_lines")):
        for sentence in _sentences(said):
            event = _event(sentence, speaker, mark)
            if event is not None and event["summary"].casefold() not in known_events:
                events.setdefault(event["summary"], event)
            told = _TOLD.match(sentence)
            if told and "?" not in sentence and told[1].casefold() not in known_lore:
                name = told[1][:_LONGEST_NAME]
                entry = {"content": f"{told[1]} is {told[2]}.", "keys": [name], "because": _WHY}
                if name.lower() not in _STARTERS and name != speaker:
                    entries.setdefault(name, {"title": name, **entry})
    return list(events.values()), list(entries.values())


def _event(sentence: str, speaker: str, mark: str) -> dict[str, Any] | None:
    """The event that a sentence tells of; None for a question, a wish, or without a name."""
    words: list[str] = _WORD.findall(sentence)
    if speaker and words and words[0] in _THIRD.values():  # *hides the key*
        words, sentence = [speaker, *words], f"{speaker} {sentence}"
    lower = [word.lower() for word in words]
    found = next(
        (
            word
            for at, word in enumerate(lower)
            if at
            and word in _KINDS
            and lower[at - 1] not in _DETERMINERS
            and not _HEDGES.intersection(lower[max(0, at - 3) : at])
        ),
        None,
    )
    if found is None or "?" in sentence:
        return None
    told = sentence
    if speaker:
        third = _THIRD.get(found, found)
        told = re.sub(rf"\bI {found}\b", lambda _: f"{speaker} {third}", told)
        told = re.sub(r"\b[Mm]y\b", lambda _: f"{speaker}'s", told)
        told = re.sub(r"\b(?:I|me|myself)\b", lambda _: speaker, told)
    place = _PLACE.search(told)
    where = place[1] if place else ""
    names = [each for each in _NAME.findall(sentence) if each.lower() not in _STARTERS]
    who = [speaker] if speaker and speaker in told else []
    who += [name for name in names if name not in {where, speaker}]
    if not who:
        return None
    kind, significance = _KINDS[found]
    dull = _HEDGES | _STARTERS | _KINDS.keys()
    keywords = [word for word in words if len(word) > 3 and word.islower() and word not in dull]  # noqa: PLR2004
    return {
        "summary": told[:_LONGEST_SUMMARY],
        "kind": kind,
        "where": where[:_LONGEST_NAME],
        "who": [name[:_LONGEST_NAME] for name in dict.fromkeys(who)][:_MOST_NAMES],
        "keywords": [word[:_LONGEST_NAME] for word in dict.fromkeys(keywords)][:6],
        "significance": significance,
        "source_messages": [mark],
    }


def _section(text: str, name: str) -> str:
    """What stands between the last line `<name>` and `</name>`; empty where there is none."""
    _, opened, rest = f"\n{text}".rpartition(f"\n<{name}>\n")
    return rest.rpartition(f"</{name}>")[0] if opened else ""


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """The messages of a section, `#12 Marlena: text`: mark, speaker, text. Not the demo's own."""
    heads = list(_LINE.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)][: len(heads)]
    for head, end in zip(heads, ends, strict=True):
        said = text[head.end() : end].strip()
        if _MARK not in said:
            yield f"#{head[1]}", (head[2] or "").strip(), said


def _sentences(text: str) -> list[str]:
    """A text's sentences, without the marks of speech and emphasis."""
    plain = re.sub(r"[*_\"“”]+", "", re.sub(r"\*([^*\n]+)\*", r"\1.", text))
    found: list[str] = _SENTENCE.findall(plain)
    return [each for sentence in found if (each := sentence.strip(" \t-"))]
