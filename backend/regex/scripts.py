"""Execution of regex scripts, which replace matches in a text within limits."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import msgspec

from backend.regex.patterns import (
    PATTERN_SECONDS,
    Pattern,
    compile_pattern,
    forget_compiled,
)
from backend.regex.process import RegexProcess

TextKind = Literal["user", "reply", "lore", "reasoning"]
TextForm = Literal["stored", "prompt", "shown"]

PLACEMENTS: Mapping[TextKind, int] = {"user": 1, "reply": 2, "lore": 5, "reasoning": 6}
"""SillyTavern's numbers. Its 0 (shown) and 3 (slash commands) have no meaning here."""

MAX_SCRIPTS = 100
"""Maximum per account and per card."""


class RegexScript(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A script with the member names of SillyTavern's files.

    `findRegex` is `/pattern/flags` or only a pattern. In `replaceString`, `$1` and `$<name>` are
    groups and `{{match}}` is the whole match. `trimStrings` are removed from these values.
    `placement` lists the kinds of texts: 1 user messages, 2 replies, 5 lore, 6 reasoning.
    `markdownOnly` changes the displayed text, `promptOnly` the prompt. With neither, the stored
    text is changed. `minDepth` and `maxDepth` count from the newest message, which is 0.
    `substituteRegex` expands macros in the pattern: 1 as patterns, 2 as literal text.
    """

    id: Annotated[str, msgspec.Meta(max_length=100)] = ""
    script_name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    find_regex: Annotated[str, msgspec.Meta(max_length=20_000)] = ""
    replace_string: Annotated[str, msgspec.Meta(max_length=20_000)] = ""
    trim_strings: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=500)]], msgspec.Meta(max_length=20)
    ] = []
    placement: Annotated[list[int], msgspec.Meta(max_length=10)] = []
    disabled: bool = False
    markdown_only: bool = False
    prompt_only: bool = False
    run_on_edit: bool = False
    substitute_regex: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0
    min_depth: int | None = None
    max_depth: int | None = None

    def applies_to(self, place: TextKind, form: TextForm, *, is_edit: bool) -> bool:
        if self.disabled or PLACEMENTS[place] not in self.placement:
            return False
        forms = {"shown": self.markdown_only, "prompt": self.prompt_only}
        return forms.get(form, not any(forms.values())) and (self.run_on_edit or not is_edit)

    def reaches(self, depth: int | None) -> bool:
        """True if the script applies at that distance from the newest message, or it is unknown."""
        if depth is None:
            return True
        least, most = self.min_depth, self.max_depth
        return (least is None or depth >= least) and (most is None or most < 0 or depth <= most)


def read_scripts(extensions: Mapping[str, Any]) -> list[RegexScript]:
    """Read the scripts of a card, up to the limit. Invalid ones are skipped."""
    listed = extensions.get("regex_scripts")
    if not isinstance(listed, list):
        return []
    scripts: list[RegexScript] = []
    for value in cast("list[object]", listed)[:MAX_SCRIPTS]:
        try:
            # Tools write null for unset members. Older ones write a boolean for substituteRegex.
            given = {k: v for k, v in cast("dict[str, Any]", value).items() if v is not None}
            if "substituteRegex" in given:
                given["substituteRegex"] = int(given["substituteRegex"])
            scripts.append(msgspec.convert(given, RegexScript, strict=False))
        except (msgspec.ValidationError, AttributeError, ValueError, TypeError):
            continue
    return scripts


def parse_find(text: str) -> tuple[str, str | None]:
    """Split a script's `findRegex` into pattern and flags. Invalid flags are returned as None.

    The pattern is the text between the first and the last slash, or the whole text without slashes.
    """
    end = text.rfind("/")
    flags = text[end + 1 :]
    is_between = text.startswith("/") and end > 1
    if not is_between or (flags and not (flags.isascii() and flags.isalpha())):
        return text, ""
    is_known = set(flags) <= set("gimsuy") and len(set(flags)) == len(flags)
    return text[1:end], "".join(sorted(flags)) if is_known else None


ScriptState = Literal[
    "changed",
    "no_match",
    "not_here",
    "too_slow",
    "busy",
    "unavailable",
    "invalid",
    "too_many",
    "too_long",
]

MAX_MATCHES = 10_000
MAX_SPANS = 100_000
"""Numbers in the answer for one text: two per match, and two more per group."""

MAX_PIECES = 500_000
"""Texts and groups that one result is built from."""

MAX_GROWTH = 100_000
"""Characters that a script may add to one text."""

MAX_WRITTEN = 4_000_000
"""Characters that all scripts of one request may write."""

MAX_SECONDS = 0.5
"""Wall clock for all scripts of one request; `PATTERN_SECONDS` for one script on one text."""

MAX_GIVEN_UP = 10_000

_TEMPLATE = re.compile(r"\$(\d{1,3})|\$<([^>]{1,100})>")
_MATCH = re.compile(r"\{\{match\}\}", re.IGNORECASE)
_ESCAPED = re.compile(r"[\n\r\t\v\f\0.^$*+?{}\[\]\\/|()]")
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\f": r"\f", "\0": r"\0"}
_RAW, _ESCAPED_MACROS = 1, 2
_CONTINUES, _BEGINS = 0xC0, 0x80


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """The result of one script on a text: its name and the number of matches."""

    name: str
    state: ScriptState
    matches: int = 0


class ScriptEngine:
    """Runs script patterns and remembers those that timed out. Thread-safe."""

    def __init__(self, process: RegexProcess) -> None:
        self.process = process
        self._given_up: dict[tuple[UUID, bytes], None] = {}

    def give_up(self, owner_id: UUID, pattern: Pattern) -> None:
        """Disable a user's pattern until the server restarts."""
        if len(self._given_up) >= MAX_GIVEN_UP:
            self._given_up.clear()
        self._given_up[owner_id, pattern.digest] = None

    def is_given_up(self, owner_id: UUID, pattern: Pattern) -> bool:
        """True if a user's pattern timed out before."""
        return (owner_id, pattern.digest) in self._given_up


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compiled script. `parts` are literal texts, group numbers and group names."""

    pattern: Pattern | None
    is_global: bool
    parts: Sequence[str | int]
    trims: Sequence[str]


@dataclass(slots=True)
class Scripts:
    """The scripts of one request in order. CPU-bound, not thread-safe.

    Attributes:
        scripts: Scripts of an account, then of a card.
        expand: Expands macros in a script's own texts. Matches are inserted afterwards and are not
            expanded.
        engine: Runs the patterns.
        owner_id: The owner of the scripts.
        notes: Sentences about scripts that did not run.
    """

    scripts: Sequence[RegexScript]
    expand: Callable[[str], str]
    engine: ScriptEngine
    owner_id: UUID
    notes: dict[str, None] = field(default_factory=dict[str, None])
    _compiled: dict[int, _Compiled] = field(default_factory=dict[int, "_Compiled"])
    _by_use: dict[tuple[TextKind, TextForm, bool], Sequence[int]] = field(
        default_factory=dict[tuple[TextKind, TextForm, bool], Sequence[int]]
    )
    _seconds_left: float = MAX_SECONDS
    _room: int = MAX_WRITTEN

    def renew(self) -> Scripts:
        """Return the same scripts with a new time limit, for a later text."""
        return Scripts(self.scripts, self.expand, self.engine, self.owner_id, self.notes)

    def has(self, form: TextForm) -> bool:
        return any(self._chosen(place, form, is_edit=False) for place in PLACEMENTS)

    def run(
        self,
        text: str,
        place: TextKind,
        form: TextForm,
        *,
        depth: int | None = None,
        is_edit: bool = False,
    ) -> str:
        """Return the text after all applicable scripts."""
        for number in self._chosen(place, form, is_edit=is_edit):
            if text and self.scripts[number].reaches(depth):
                text, _ = self._step(number, text)
        return text

    def steps(
        self,
        text: str,
        place: TextKind,
        form: TextForm,
        *,
        depth: int | None = None,
        is_edit: bool = False,
    ) -> Iterator[tuple[str, ScriptResult]]:
        chosen = self._chosen(place, form, is_edit=is_edit)
        for number, script in enumerate(self.scripts):
            if number in chosen and script.reaches(depth):
                text, step = self._step(number, text)
            else:
                step = ScriptResult(self._name(number), "not_here")
            yield text, step

    def _chosen(self, place: TextKind, form: TextForm, *, is_edit: bool) -> Sequence[int]:
        key = (place, form, is_edit)
        if key not in self._by_use:
            self._by_use[key] = [
                number
                for number, script in enumerate(self.scripts)
                if script.applies_to(place, form, is_edit=is_edit)
            ]
        return self._by_use[key]

    def _name(self, number: int) -> str:
        return self.scripts[number].script_name or f"Script {number + 1}"

    def _step(self, number: int, text: str) -> tuple[str, ScriptResult]:
        begun = time.monotonic()
        if self._seconds_left > 0:
            state, text, count = self._replace(number, self.scripts[number], text)
        else:
            state, count = "busy", 0
        name = self._name(number)
        if note := _NOTES.get(state):
            self.notes[f'Regex script "{name}" {note}.'] = None
        self._seconds_left -= time.monotonic() - begun
        return text, ScriptResult(name, state, count)

    def _replace(self, number: int, script: RegexScript, text: str) -> tuple[ScriptState, str, int]:
        if not script.find_regex or not text:
            return "no_match", text, 0
        compiled = self._compiled.get(number)
        if compiled is None:
            compiled = self._compiled[number] = self._compile(script)
        if compiled.pattern is None:
            return "invalid", text, 0
        state, matches = self._matches(compiled.pattern, text, is_global=compiled.is_global)
        if state is not None or not matches:
            return state or "no_match", text, 0
        if len(matches) * len(compiled.parts) > MAX_PIECES:
            return "too_many", text, len(matches)
        written = _replace_matches(
            compiled, matches, text, most=min(len(text) + MAX_GROWTH, self._room)
        )
        if written is None:
            return "too_long", text, len(matches)
        self._room -= len(written)
        return "changed" if written != text else "no_match", written, len(matches)

    def _compile(self, script: RegexScript) -> _Compiled:
        find = script.find_regex
        if script.substitute_regex == _RAW:
            find = self.expand(find)
        elif script.substitute_regex == _ESCAPED_MACROS:
            find = self._with_literal_macros(find)
        source, flags = parse_find(find)
        pattern = compile_pattern(source, flags, captures=True) if flags is not None else None
        forget_compiled()
        template = self.expand(_MATCH.sub("$0", script.replace_string))
        parts: list[str | int] = []
        end = 0
        names = pattern.names if pattern else {}
        for found in _TEMPLATE.finditer(template):
            parts.append(template[end : found.start()])
            # A missing group inserts nothing.
            parts.append(int(found[1]) if found[1] else names.get(found[2], -1))
            end = found.end()
        parts.append(template[end:])
        trims = [trim for each in script.trim_strings if (trim := self.expand(each))]
        return _Compiled(pattern, "g" in (flags or ""), parts, trims)

    def _with_literal_macros(self, find: str) -> str:
        """Expand macros in a pattern so that their values match literally."""
        return _MACRO.sub(lambda macro: _literal(self.expand(macro[0])), find)

    def _matches(
        self, pattern: Pattern, text: str, *, is_global: bool
    ) -> tuple[ScriptState | None, Sequence[Sequence[int]]]:
        """Return start and end of each match and its groups in characters, or the failure."""
        if self.engine.is_given_up(self.owner_id, pattern):
            return "too_slow", ()
        data = text.encode(errors="replace")
        if pattern.is_quick(len(data)):
            return self._matches_here(pattern, data, is_global=is_global)
        return self._matches_elsewhere(pattern, text, is_global=is_global)

    def _matches_here(
        self, pattern: Pattern, data: bytes, *, is_global: bool
    ) -> tuple[ScriptState | None, Sequence[Sequence[int]]]:
        # Thread time, because a pattern may wait for a processor on a busy machine.
        begun, deadline = time.thread_time(), time.monotonic() + self._seconds_left
        matches: list[Sequence[int]] = []
        for match in pattern.matches(data):
            matches.append(match)
            if not is_global:
                break
            if len(matches) > MAX_MATCHES or len(matches) * len(match) > MAX_SPANS:
                return "too_many", ()
            if time.thread_time() - begun > PATTERN_SECONDS:
                self.engine.give_up(self.owner_id, pattern)
                return "too_slow", ()
            if time.monotonic() > deadline:
                return "busy", ()
        if matches and not data.isascii():
            # The number of bytes before each byte that begin a character.
            counts = [0, *accumulate(byte & _CONTINUES != _BEGINS for byte in data)]
            matches = [[at if at < 0 else counts[at] for at in match] for match in matches]
        return None, matches

    def _matches_elsewhere(
        self, pattern: Pattern, text: str, *, is_global: bool
    ) -> tuple[ScriptState | None, Sequence[Sequence[int]]]:
        if self._seconds_left < PATTERN_SECONDS:
            return "busy", ()
        self.engine.process.prepare()
        answer = self.engine.process.search(
            pattern.engine,
            pattern.source,
            text,
            seconds=PATTERN_SECONDS,
            most=MAX_MATCHES if is_global else 1,
            owner_id=self.owner_id,
        )
        spans = answer.spans
        match answer.status:
            case "found" if len(spans) <= MAX_SPANS:
                width = 2 * (answer.start + 1)
                return None, [spans[at : at + width] for at in range(0, len(spans), width)]
            case "absent":
                return None, ()
            case "late":
                self.engine.give_up(self.owner_id, pattern)
                return "too_slow", ()
            case "invalid" | "busy" | "unavailable":
                return answer.status, ()
            case _:
                return "too_many", ()


_NOTES: Mapping[ScriptState, str] = {
    "too_slow": "took too long and is switched off until the server restarts",
    "busy": "was not run: the scripts before it took the time there is, or the machine was busy",
    "unavailable": "was not run: the process for such patterns does not start",
    "invalid": "has no valid pattern, or too long a one",
    "too_many": "was not run: it matches too often",
    "too_long": "was not run: it makes the text too long",
}
_MACRO = re.compile(r"\{\{[^{}]{0,200}\}\}")


def _literal(text: str) -> str:
    return _ESCAPED.sub(lambda char: _ESCAPES.get(char[0], "\\" + char[0]), text)


def _replace_matches(
    compiled: _Compiled, matches: Sequence[Sequence[int]], text: str, *, most: int
) -> str | None:
    pieces: list[str] = []
    end, left = 0, most
    for match in matches:
        groups: dict[int, str] = {}
        for part in (text[end : match[0]], *compiled.parts):
            piece = part if isinstance(part, str) else groups.get(part)
            if piece is None:
                piece = groups[cast("int", part)] = _group(
                    match, cast("int", part), text, compiled.trims
                )
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                return None
        end = match[1]
    return "".join((*pieces, text[end:])) if left >= len(text) - end else None


def _group(match: Sequence[int], number: int, text: str, trims: Sequence[str]) -> str:
    at = 2 * number
    if number < 0 or at >= len(match) or match[at] < 0:
        return ""
    found = text[match[at] : match[at + 1]]
    for trim in trims:
        found = found.replace(trim, "")
    return found


class ScriptList(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Regex scripts in execution order, in the format of SillyTavern's files."""

    scripts: Annotated[list[RegexScript], msgspec.Meta(max_length=MAX_SCRIPTS)]


class ScriptListView(msgspec.Struct, kw_only=True):
    """The account's regex scripts and the revision of the list."""

    scripts: list[RegexScript]
    revision: int


class ScriptTest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to test scripts on, and the kind of text that it represents.

    `form` is `stored`, `prompt` (sent to the model) or `shown`. `depth` is the distance from the
    newest message. `character` is the value of `{{char}}`.
    """

    scripts: Annotated[list[RegexScript], msgspec.Meta(max_length=MAX_SCRIPTS)]
    text: Annotated[str, msgspec.Meta(max_length=100_000)]
    place: TextKind = "reply"
    form: TextForm = "stored"
    depth: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    is_edit: bool = False
    character: Annotated[str, msgspec.Meta(max_length=200)] = ""


class ScriptStep(msgspec.Struct, kw_only=True):
    """The result of one script: the number of matches and the text after it."""

    name: str
    state: ScriptState
    matches: int
    text: str


class ScriptTested(msgspec.Struct, kw_only=True):
    """The final text and the result of each script."""

    text: str
    steps: list[ScriptStep]
