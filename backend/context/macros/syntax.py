"""Text to tree: which braces are calls, and which `{{if}}` belongs to which `{{/if}}`.

Both questions are answered the same way: everything goes into one flat list, openings are
remembered by their index, and a closing folds what has come since into one node. What never closes
has then already become the literal text that it is, and a part is moved once, into the node around
it: time and memory are linear in the text, whatever it holds, and nothing recurses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Part: TypeAlias = "str | Call | Conditional"
Parts: TypeAlias = Sequence[Part]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call:
    """Braces that close, or an old `<USER>`: perhaps a macro, perhaps only braces.

    Args:
        name: In lower case; empty where the braces don't begin with a name.
        argument: What follows the name and its separator; None where there is no separator.
        inside: All that stands between the braces, for when they turn out to be no macro.
        text: The whole text, of which `start` to `end` is this call.
    """

    name: str
    argument: Parts | None
    inside: Parts
    text: str
    start: int
    end: int

    @property
    def source(self) -> str:
        """The call as it is written, braces included."""
        return self.text[self.start : self.end]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Conditional:
    """`{{if condition}}then{{else}}otherwise{{/if}}`."""

    condition: Parts
    negated: bool
    then: Parts
    otherwise: Parts


# ASCII: in Unicode, other letters than s and S are an s in some letter case.
_TOKEN: Final = re.compile(r"\{{2,}|\}\}|<(?:user|bot|char)>", re.IGNORECASE | re.ASCII)

_OLD_NAMES: Final = {"<user>": "user", "<bot>": "char", "<char>": "char"}

# The name with its separator. A comment needs none, nor does the old `{{time_UTC+2}}`.
_HEAD: Final = re.compile(
    r"\s*(?:(//)|(/?[a-z][a-z_]*)(\s*::?|\s+|(?<=time_utc)(?=[+-])|\Z))", re.IGNORECASE
)


def parse(text: str) -> Parts:
    """The tree of `text`. Of three braces in a row the inner two are the call's: `{{{user}}}`."""
    parts: list[Part] = []
    openings: list[tuple[int, int]] = []  # for each open `{{`, index in parts and offset in text
    position = 0
    for token in _TOKEN.finditer(text):
        if token.start() > position:
            parts.append(text[position : token.start()])
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
                inside = _fold_conditionals(parts[index + 1 :])
                parts[index:] = [_call(inside, text, start, token.end())]
            case "<":
                name = _OLD_NAMES[token[0].lower()]
                parts.append(Call(name, None, (), text, token.start(), token.end()))
            case _:
                parts.append(token[0])
    if position < len(text):
        parts.append(text[position:])
    return _fold_conditionals(parts)


def split(parts: Parts, separator: re.Pattern[str], most: int | None = None) -> list[Parts]:
    """Split at a separator in literal text, into `most` pieces or fewer, edges trimmed."""
    pieces: list[list[Part]] = [[]]
    for part in parts:
        if not isinstance(part, str) or len(pieces) == most:
            pieces[-1].append(part)
            continue
        # 0 means every one of them to re.split.
        first, *others = separator.split(part, 0 if most is None else most - len(pieces))
        pieces[-1].append(first)
        pieces.extend([other] for other in others)
    return [_trimmed(piece) for piece in pieces]


def _call(inside: list[Part], text: str, start: int, end: int) -> Call:
    first = inside[0] if inside else ""
    head = _HEAD.match(first) if isinstance(first, str) else None
    if head is None:
        return Call("", None, inside, text, start, end)
    comment, name, separator = head.groups(default="")
    rest = head.string[head.end() :]
    argument: Parts | None = [rest, *inside[1:]]
    if not rest and not comment and not separator.strip():
        if len(inside) == 1:  # `{{user}}`, `{{ user }}`
            argument = None
        elif not separator:  # `{{user{{char}}}}`: the name is not over
            name = ""
    return Call(comment or name.lower(), argument, inside, text, start, end)


def _fold_conditionals(parts: list[Part]) -> list[Part]:
    """Fold each `{{if}}` to `{{/if}}` of one level. An odd `{{else}}` or `{{/if}}` stays a call."""
    folded: list[Part] = []
    openings: list[tuple[int, Parts, int | None]] = []  # index of `{{if}}`, condition, `{{else}}`
    for part in parts:
        if isinstance(part, Call):
            if part.name == "/if" and openings:
                index, condition, middle = openings.pop()
                folded[index:] = [_conditional(condition, folded[index + 1 :], middle, index + 1)]
                continue
            if part.name == "else" and part.argument is None and openings:
                index, condition, middle = openings[-1]
                if middle is None:
                    openings[-1] = (index, condition, len(folded))
            elif part.name == "if" and part.argument is not None:
                openings.append((len(folded), part.argument, None))
        folded.append(part)
    return folded


def _conditional(
    condition: Parts, body: list[Part], middle: int | None, offset: int
) -> Conditional:
    """`middle` is where `{{else}}` stands in the list of which `body` began at `offset`."""
    condition = _trimmed(condition)
    negated = bool(condition) and isinstance(condition[0], str) and condition[0].startswith("!")
    if negated:
        condition = _trimmed([str(condition[0])[1:], *condition[1:]])
    end = len(body) if middle is None else middle - offset
    return Conditional(
        condition, negated, _without_tag_lines(body[:end]), _without_tag_lines(body[end + 1 :])
    )


def _trimmed(parts: Parts) -> Parts:
    """Without literal white space at the edges, nor empty text."""
    kept = list(parts)
    if kept and isinstance(kept[0], str):
        kept[0] = kept[0].lstrip()
    if kept and isinstance(kept[-1], str):
        kept[-1] = kept[-1].rstrip()
    return [part for part in kept if part != ""]


def _without_tag_lines(body: list[Part]) -> Parts:
    """Without the line breaks that only end the lines of `{{if}}`, `{{else}}` and `{{/if}}`."""
    if body and isinstance(body[0], str):
        indentation, line_break, rest = body[0].partition("\n")
        if line_break and not indentation.strip():
            body[0] = rest
    if body and isinstance(body[-1], str):
        rest, line_break, indentation = body[-1].rpartition("\n")
        if line_break and not indentation.strip():
            body[-1] = rest.removesuffix("\r")
    return body
