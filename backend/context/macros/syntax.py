"""Parser from text to a tree of calls and `{{if}}` blocks.

Both levels work the same way. All parts go into one flat list, and openings are remembered by their
index. A closing folds the parts since its opening into one node. Unclosed openings simply remain
literal text, and each part is moved only once. So time and memory are linear in any text, and
nothing recurses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Part: TypeAlias = "str | MacroCall | MacroBlock | Conditional"
Parts: TypeAlias = Sequence[Part]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MacroCall:
    """Closed braces, or an old `<USER>`. They may be a macro or just braces.

    Args:
        name: In lower case. Empty if the braces do not begin with a name.
        argument: The parts after the name and its separator, or None without a separator.
        inside: All parts between the braces, used if they are not a macro.
        text: The whole text. This call is `start` to `end` of it.
        keeps_space: True with the flag `#`: a block keeps the white space at its edges.
    """

    name: str
    argument: Parts | None
    inside: Parts
    text: str
    start: int
    end: int
    keeps_space: bool = False

    @property
    def source(self) -> str:
        """The call as written, including braces."""
        return self.text[self.start : self.end]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MacroBlock:
    """`{{reverse}}content{{/reverse}}`. The content is the last argument, if the macro takes one.

    Args:
        content: The parts between the calls, trimmed. `body` is the same as written.
    """

    call: MacroCall
    content: Parts
    body: Parts
    closing: MacroCall


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Conditional:
    """`{{if condition}}then{{else}}otherwise{{/if}}`."""

    condition: Parts
    negated: bool
    then: Parts
    otherwise: Parts


# ASCII, because in Unicode other letters than s and S match s if case is ignored.
_TOKEN: Final = re.compile(r"\{{2,}|\}\}|<(?:user|bot|char)>", re.IGNORECASE | re.ASCII)

_OLD_NAMES: Final = {"<user>": "user", "<bot>": "char", "<char>": "char"}

# Flags, then the name with its separator. A comment and the old `{{time_UTC+2}}` need none.
# `.name` and `$name` are variables, and the text after them is their argument.
_HEAD: Final = re.compile(
    r"\s*+([!?~>#]*+)\s*+"
    r"(?:(//|[.$](?=[a-z]))|(/?[a-z][a-z_]*+)(\s*+::?|\s++|(?<=time_utc)(?=[+-])|\Z))",
    re.IGNORECASE,
)

_ESCAPED: Final = re.compile(r"\\([{}])")

ARGUMENTS: Final = re.compile("::")
"""Separator of arguments."""

_NOTHING: Final = re.compile(r"(?!)")
_OPERATION: Final = re.compile(
    r"([a-z](?>(?:[a-z0-9_]|-(?![-=]))*))\s*+"
    r"(\+\+|--|\|\|=|\?\?=|\|\||\?\?|\+=|-=|==|!=|>=|<=|>|<|=|\Z)",
    re.IGNORECASE | re.ASCII,
)


def parse(text: str) -> Parts:
    """Parse `text`. Of three braces in a row the inner two belong to the call: `{{{user}}}`.

    A brace after a backslash is always literal.
    """
    parts: list[Part] = []
    openings: list[tuple[int, int]] = []  # for each open `{{`, index in parts and offset in text
    position = 0
    for token in _TOKEN.finditer(text):
        if token.start() > position:
            parts.append(_ESCAPED.sub(r"\1", text[position : token.start()]))
        position = token.end()
        match token[0][0]:
            case "{":
                single = (token.end() - token.start()) % 2
                if single:
                    parts.append("{")
                for offset in range(token.start() + single, token.end(), 2):
                    openings.append((len(parts), offset))
                    parts.append("{{")
            case "}" if openings:
                index, start = openings.pop()
                inside = _fold(parts[index + 1 :])
                parts[index:] = [_call(inside, text, start, token.end())]
            case "<":
                name = _OLD_NAMES[token[0].lower()]
                parts.append(MacroCall(name, None, (), text, token.start(), token.end()))
            case _:
                parts.append(token[0])
    if position < len(text):
        parts.append(_ESCAPED.sub(r"\1", text[position:]))
    return _fold(parts)


def split(parts: Parts, separator: re.Pattern[str]) -> list[Parts]:
    """Split at separators in literal text and trim the pieces."""
    pieces: list[list[Part]] = [[]]
    for part in parts:
        if not isinstance(part, str):
            pieces[-1].append(part)
            continue
        first, *others = separator.split(part)
        pieces[-1].append(first)
        pieces.extend([other] for other in others)
    return [_trim_edges(piece) for piece in pieces]


def split_operation(argument: Parts) -> list[Parts]:
    """Split into a variable's name, operator and operand. Empty if it is not an operation."""
    first = argument[0] if argument else ""
    found = _OPERATION.match(first) if isinstance(first, str) else None
    if found is None:
        return []
    (value,) = split([found.string[found.end() :], *argument[1:]], _NOTHING)
    takes_value = found[2] not in {"", "++", "--"}
    if bool(value) and not takes_value:
        return []
    return [[found[1]], [found[2]], value]


def parse_condition(text: str) -> MacroCall:
    """Parse a condition without braces: `{{if persona}}`, `{{if .hp > 3}}`."""
    return _call([text], text, 0, len(text))


def _call(inside: list[Part], text: str, start: int, end: int) -> MacroCall:
    first = inside[0] if inside else ""
    head = _HEAD.match(first) if isinstance(first, str) else None
    if head is None:
        return MacroCall("", None, inside, text, start, end)
    flags, sign, name, separator = head.groups(default="")
    rest = head.string[head.end() :]
    argument: Parts | None = [rest, *inside[1:]]
    if not rest and not sign and not separator.strip():
        if len(inside) == 1:  # `{{user}}`, `{{ user }}`
            argument = None
        elif not separator:  # `{{user{{char}}}}`: the name continues
            name = ""
    return MacroCall(sign or name.lower(), argument, inside, text, start, end, "#" in flags)


@dataclass(slots=True)
class _Opening:
    """A call that a `{{/name}}` may close. `middle` is the index of its `{{else}}`."""

    call: MacroCall
    index: int
    middle: int | None = None


def _fold(parts: list[Part]) -> list[Part]:
    """Fold each pair of `{{name}}` and `{{/name}}` of one level. Unpaired calls are kept."""
    folded: list[Part] = []
    openings: dict[str, list[_Opening]] = {}

    def innermost(name: str) -> _Opening | None:
        """Return the last open call. Others were folded into enclosing blocks."""
        waiting = openings.get(name, [])
        while waiting:
            last = waiting[-1]
            if last.index < len(folded) and folded[last.index] is last.call:
                return last
            waiting.pop()
        return None

    for part in parts:
        if isinstance(part, MacroCall) and part.name:
            if part.name[0] == "/" and (opening := innermost(part.name[1:])):
                openings[part.name[1:]].pop()
                body = folded[opening.index + 1 :]
                folded[opening.index :] = [_block(opening, body, part)]
                continue
            if part.name == "else" and part.argument is None:
                if (opening := innermost("if")) and opening.middle is None:
                    opening.middle = len(folded)
            elif part.name != "if" or part.argument is not None:
                openings.setdefault(part.name, []).append(_Opening(part, len(folded)))
        folded.append(part)
    return folded


def _block(opening: _Opening, body: list[Part], closing: MacroCall) -> MacroBlock | Conditional:
    call = opening.call
    if call.name != "if":
        return MacroBlock(call, body if call.keeps_space else _trim_block(body), body, closing)
    condition = _trim_edges(call.argument or ())
    negated = bool(condition) and isinstance(condition[0], str) and condition[0].startswith("!")
    if negated:
        condition = _trim_edges([str(condition[0])[1:], *condition[1:]])
    end = len(body) if opening.middle is None else opening.middle - opening.index - 1
    then, otherwise = body[:end], body[end + 1 :]
    if not call.keeps_space:
        then, otherwise = _trim_block(then), _trim_block(otherwise)
    return Conditional(condition, negated, then, otherwise)


def _trim_edges(parts: Parts) -> Parts:
    """Remove literal white space at the edges and empty texts."""
    kept = list(parts)
    if kept and isinstance(kept[0], str):
        kept[0] = kept[0].lstrip()
    if kept and isinstance(kept[-1], str):
        kept[-1] = kept[-1].rstrip()
    return [part for part in kept if part != ""]


def _trim_block(body: list[Part]) -> list[Part]:
    """Remove white space at the edges and the common indentation, that of the first line."""
    first = body[0] if body else ""
    indentation = ""
    if isinstance(first, str) and "\n" in first:
        line = first[: len(first) - len(first.lstrip())].rpartition("\n")[2]
        indentation = line if first.strip() or len(body) > 1 else ""
    kept = list(_trim_edges(body))
    if indentation:
        unindented = "\n" + indentation
        kept = [part.replace(unindented, "\n") if isinstance(part, str) else part for part in kept]
    return kept
