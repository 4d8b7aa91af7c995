r"""Translation of JavaScript's regular expressions to RE2 and the `regex` package.

Lorebooks and scripts are written for JavaScript, so patterns keep that meaning: `\d`, `\w` and `\b`
are ASCII, `$` is the very end, `[^]` matches any character, and an unknown escape is a literal. The
last rule is also a safety measure: RE2's `\C`, and `regex`'s fuzzy `{e<=3}`, `(?R)` and `\L<..>`,
cannot be used.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_KEY = re.compile(r"/((?:[^/\\]|\\.)+)/([gimsuy]*)", re.DOTALL)
_REPEAT = re.compile(r"\{\d+(?:,\d*)?\}")
_GROUP = re.compile(r"\(\?(?:(:|=|!|<=|<!)|<([A-Za-z_]\w*)>|([ims]{0,3}(?:-[ims]{1,3})?)([:)]))")
_PROPERTY = re.compile(r"\{\^?(?:(\w+)=)?(\w+)\}")
_NAMED = re.compile(r"k<([A-Za-z_]\w*)>")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_LOW_HALF = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_CONTROLS = {"n": 10, "r": 13, "t": 9, "v": 11, "f": 12, "0": 0}
_LETTERS = "A-Za-z0-9_"
_SPACE = (
    r"\t\n\v\f\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
)
_CLASSES = frozenset({"0-9", _LETTERS, _SPACE, r"\D", r"\W", r"\S"})
_NO_RANGE = re.compile(r"\]|\\[dwsDWS]")
_EDGE = f"(?:(?<=[{_LETTERS}])(?![{_LETTERS}])|(?<![{_LETTERS}])(?=[{_LETTERS}]))"
_NO_EDGE = f"(?:(?<=[{_LETTERS}])(?=[{_LETTERS}])|(?<![{_LETTERS}])(?![{_LETTERS}]))"
_ANY, _NEVER = r"[\x{0}-\x{10ffff}]", r"[^\x{0}-\x{10ffff}]"
_HEX_BRACES = re.compile(r"\\x\{([0-9a-f]+)\}")
_MAX_CODE = 0x10FFFF


class Translated(NamedTuple):
    """A pattern in the syntax of both engines.

    Attributes:
        re2: The pattern for RE2, or None if RE2 does not support it.
        regex: The pattern for the `regex` package.
        literal: Characters that all matching texts contain, ignoring case. Other texts need no
            search. May be empty.
        names: The numbers of its named groups.
    """

    re2: str | None
    regex: str
    literal: str
    names: dict[str, int]


class RegexSyntaxError(ValueError):
    """The pattern is not a valid JavaScript regular expression."""


def parse_key(key: str) -> tuple[str, str] | None:
    """Return source and flags of a key like `/source/flags`, or None for any other key.

    Slashes in the source must be escaped, so `/path/to/x` is text. A key with repeated flags, or
    with flags unknown to World Info, is text too.
    """
    if not key.startswith("/"):
        return None
    match = _KEY.fullmatch(key)
    if match is None or len(set(match[2])) < len(match[2]):
        return None
    return match[1], "".join(sorted(match[2]))


def translate(source: str, flags: str) -> Translated:
    """Translate `source` with its flags for both engines.

    The flag y matches only at the very start, u enables properties of characters, and g has no
    effect.

    Raises:
        RegexSyntaxError: If it is not valid in JavaScript.
    """
    head = "".join(flag for flag in "ims" if flag in flags)
    prefix = f"(?{head})" if head else ""
    writer = _PatternWriter(source, flags)
    writer.run()
    start, end = (rf"{prefix}\A(?:", ")") if "y" in flags else (prefix, "")
    re2_source = None if writer.beyond_re2 else start + "".join(writer.re2) + end
    literal = max(writer.runs, key=len, default="") if writer.is_one_branch else ""
    return Translated(re2_source, start + "".join(writer.regex) + end, literal, writer.names)


def _literal(code: int) -> str:
    char = chr(code)
    if char.isascii() and (char.isalnum() or char in "_ "):
        return char
    if 0xD800 <= code <= 0xDFFF:  # noqa: PLR2004  # half a surrogate pair is in no text
        return r"\x{fffd}"
    return rf"\x{{{code:x}}}"


def _for_regex(text: str) -> str:
    """Replace RE2's escapes by those of `regex`."""
    return _HEX_BRACES.sub(lambda match: rf"\U{int(match[1], 16):08x}", text)


class _PatternWriter:
    """Walk over a pattern once and write both translations."""

    def __init__(self, source: str, flags: str) -> None:
        self.source, self.at = source, 0
        self.is_multiline, self.is_unicode = "m" in flags, "u" in flags
        self.re2: list[str] = []
        self.regex: list[str] = []
        self.beyond_re2 = False
        self.depth, self.is_one_branch = 0, True
        self.runs: list[str] = [""]
        self.opened = 0
        self.names: dict[str, int] = {}
        self.groups = len(re.findall(r"(?<!\\)\((?!\?)|\(\?<[A-Za-z_]", source))

    def put(self, re2: str, regex: str | None = None) -> None:
        if self.runs[-1]:
            self.runs.append("")
        self.re2.append(re2)
        self.regex.append(_for_regex(re2) if regex is None else regex)

    def put_literal(self, code: int) -> None:
        run = self.runs[-1] if self.depth == 0 else ""
        self.put(_literal(code))
        if self.depth:
            return
        if self.runs[-1] == "" and run:
            self.runs.pop()
        self.runs[-1] = run + chr(code)

    def repeat(self, sign: str) -> None:
        """Write a quantifier that may make the previous item optional."""
        self.runs[-1] = self.runs[-1][:-1]
        self.put(sign)

    def run(self) -> None:
        walks = {
            "\\": self.escape,
            "[": self.char_class,
            "(": self.group,
            ")": self.close_group,
            "{": self.braces,
        }
        while self.at < len(self.source):
            char = self.source[self.at]
            self.at += 1
            if char in walks:
                walks[char]()
            elif char == "$":
                self.put("$", "$" if self.is_multiline else r"\Z")
            elif char in "*?":
                self.repeat(char)
            elif char in "|^.+":
                self.is_one_branch &= char != "|" or self.depth > 0
                self.put(char)
            else:
                self.put_literal(ord(char))
        if self.depth:
            raise RegexSyntaxError("A bracket is not closed.")

    def group(self) -> None:
        if not self.source.startswith("?", self.at):
            self.depth += 1
            self.opened += 1
            self.put("(")
            return
        match = _GROUP.match(self.source, self.at - 1)
        if match is None:
            raise RegexSyntaxError("This kind of group is not known.")
        self.at = match.end()
        self.depth += match[4] != ")"
        if match[1] and match[1] != ":":
            self.beyond_re2 = True
            self.put("", match[0])
        elif match[2]:
            self.opened += 1
            self.names[match[2]] = self.opened
            self.put("(", f"(?P<{match[2]}>")
        else:
            self.put(match[0])

    def close_group(self) -> None:
        self.depth -= 1
        if self.depth < 0:
            raise RegexSyntaxError("A bracket is closed that was not opened.")
        self.put(")")

    def braces(self) -> None:
        match = _REPEAT.match(self.source, self.at - 1)
        if match is None:
            self.put_literal(ord("{"))
            return
        least, _, most = match[0][1:-1].partition(",")
        if most and int(most) < int(least):
            raise RegexSyntaxError("The numbers of a repetition are out of order.")
        self.at = match.end()
        self.repeat(match[0])

    def escape(self) -> None:
        if self.at >= len(self.source):
            raise RegexSyntaxError("It ends in a backslash.")
        char = self.source[self.at]
        if char in "bB":
            self.at += 1
            self.put("\\" + char, _EDGE if char == "b" else _NO_EDGE)
        elif char in "123456789":
            self.back_reference()
        elif char == "k" and (named := _NAMED.match(self.source, self.at)):
            self.at = named.end()
            self.beyond_re2 = True
            self.put("", f"(?P={named[1]})")
        elif (shorthand := self.shorthand()) is not None:
            opening = "[^" if char in "DWS" else "["
            self.put(f"{opening}{shorthand}]")
        elif (found := self.property_name()) is not None:
            self.at = found.end()
            self.property(char, found)
        else:
            self.put_literal(self.code())

    def back_reference(self) -> None:
        digits = re.compile(r"\d{1,3}").match(self.source, self.at)
        number = digits[0] if digits else "0"
        self.at += len(number)
        if int(number) > self.groups:
            raise RegexSyntaxError("It refers to a group that is not there.")
        self.beyond_re2 = True
        # In its own group, so that following digits do not become part of the number.
        self.put("", rf"(?:\{number})")

    def shorthand(self) -> str | None:
        """Return the content of the class for d, w or s. Capital letters return the same."""
        char = self.source[self.at].lower()
        if char not in {"d", "w", "s"} or self.source[self.at] not in "dwsDWS":
            return None
        self.at += 1
        return {"d": "0-9", "w": _LETTERS, "s": _SPACE}[char]

    def property_name(self) -> re.Match[str] | None:
        r"""Match the braces of `\p{...}`, which has no meaning without the flag u."""
        if not self.is_unicode or self.source[self.at] not in "pP":
            return None
        return _PROPERTY.match(self.source, self.at + 1)

    def property(self, char: str, found: re.Match[str]) -> None:
        self.put(f"\\{char}{{{found[2]}}}", f"\\{char}{found[0]}")

    def code(self) -> int:
        """Return the code point of an escape, after its backslash."""
        match = _HEX.match(self.source, self.at)
        if match:
            self.at = match.end()
            code = int(match[1] or match[2] or match[3], 16)
            low = _LOW_HALF.match(self.source, self.at)
            if 0xD800 <= code <= 0xDBFF and low:  # noqa: PLR2004  # the first half of a pair
                self.at = low.end()
                code = 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
            if code > _MAX_CODE:
                raise RegexSyntaxError("There is no such character.")
            return code
        char = self.source[self.at]
        self.at += 1
        if char == "c" and self.source[self.at : self.at + 1].isalpha():
            self.at += 1
            return ord(self.source[self.at - 1]) & 31
        return _CONTROLS.get(char, ord(char))

    def char_class(self) -> None:
        negated = self.source.startswith("^", self.at)
        self.at += negated
        parts: list[str] = []
        while True:
            if self.at >= len(self.source):
                raise RegexSyntaxError("A bracket is not closed.")
            char = self.source[self.at]
            if char == "]":
                self.at += 1
                break
            parts.append(self.class_atom(char, parts[-1] if parts else ""))
        if not parts:
            self.put(_ANY if negated else _NEVER)
            return
        self.put(f"[{'^' if negated else ''}{''.join(parts)}]")

    def class_atom(self, char: str, before: str) -> str:
        self.at += 1
        if char == "-":
            # A range between two characters, a literal anywhere else.
            is_first = self.source[self.at - 2] == "["
            follows_class = before in _CLASSES or before.startswith(("\\p", "\\P"))
            is_range = not (is_first or follows_class or _NO_RANGE.match(self.source, self.at))
            return "-" if is_range else r"\x{2d}"
        return self.class_escape() if char == "\\" else _literal(ord(char))

    def class_escape(self) -> str:
        if self.at >= len(self.source):
            raise RegexSyntaxError("It ends in a backslash.")
        escaped = self.source[self.at]
        if escaped == "b":
            self.at += 1
            return r"\x{8}"
        if escaped in "DWS":
            self.at += 1
            return "\\" + escaped
        shorthand = self.shorthand()
        if shorthand is not None:
            return shorthand
        if (found := self.property_name()) is not None:
            self.at = found.end()
            return f"\\{escaped}{{{found[2]}}}"
        return _literal(self.code())
