"""Lenient parsing of the JSON that models write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

MAX_DEPTH = 64
"""Maximum nesting of objects and lists."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_json(text: str) -> Any:
    """Parse JSON and `clean` the value. Raises `ValueError`."""
    try:
        return clean(json.loads(text))
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None


def clean(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Replace lone surrogates by U+FFFD, because they can be neither stored nor sent.

    Raises `ValueError` if the value is nested deeper than `depth`.
    """
    if isinstance(value, str):
        return clean_text(value)
    if not isinstance(value, Mapping | list):
        return value
    if not depth:
        raise ValueError("the value is nested too deeply")
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        return {clean_text(name): clean(each, depth - 1) for name, each in members.items()}
    return [clean(each, depth - 1) for each in cast("Sequence[Any]", value)]


def clean_text(text: str) -> str:
    """Replace lone surrogates by U+FFFD."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def mapping(value: object) -> Mapping[str, Any]:
    """Return `value` if it is a JSON object, or else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    """Return `value` if it is a JSON array, or else an empty one."""
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


_BRACKET = re.compile(r"[{\[]")
_MARK = re.compile(r"[\"'\\{}\[\]]")
_TOKEN = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"'
    r"|'[^'\\]*(?:\\.[^'\\]*)*'"
    r"|//[^\n]*"
    r"|[{}\[\],:/]"
    r"|\s+"
    r"|[^\s{}\[\],:/\"']+",
    re.DOTALL,
)
_ESCAPE = re.compile(r'\\.|"', re.DOTALL)
_PYTHON_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}


def find_values(text: str) -> list[Any]:
    """Return the value of a JSON text, or else the objects and lists in the text, in linear time.

    In the second case, trailing commas, comments, single quotation marks and Python's literals are
    accepted. Other text and brackets are ignored. Raises `ValueError` if there is no value.
    """
    try:
        return [_parse(_PYTHON_WORDS.get(text.strip(), text))]
    except ValueError as error:
        if found := list(_find_embedded_values(text)):
            return found
        raise ValueError(str(error)) from None


def _parse(text: str) -> Any:
    """Parse JSON that may have line breaks in its strings."""
    try:
        return clean(json.loads(text, strict=False, parse_constant=_refuse))
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None


def _find_embedded_values(text: str) -> Iterator[Any]:
    at = 0
    while found := _BRACKET.search(text, at):
        repaired, at = _repair(text, found.start())
        with suppress(ValueError):
            yield _parse(repaired)


def _repair(text: str, begin: int) -> tuple[str, int]:
    """Convert the value at a bracket to JSON, and return it with the position after it.

    If the value is incomplete, return "" and the end of the text.
    """
    tokens: list[str] = []
    depth, at = 0, begin
    while found := _TOKEN.match(text, at):
        token, at = found[0], found.end()
        if token[0] in "}]" and tokens[-1:] == [","]:
            tokens.pop()
        if token[0] in "\"'":
            token = f'"{_ESCAPE.sub(_convert_quote, token[1:-1])}"'
        if not token.isspace() and not token.startswith("//"):
            tokens.append(_PYTHON_WORDS.get(token, token))
        depth += (token in {"{", "["}) - (token in {"}", "]"})
        if not depth:
            return "".join(tokens), at
    return "", len(text)


def _convert_quote(found: re.Match[str]) -> str:
    """Convert an escape or a quotation mark for a double-quoted string."""
    return {'"': r"\"", r"\'": "'"}.get(found[0], found[0])


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


class ValueProgress:
    """Detects when the value of a streamed JSON text is complete."""

    def __init__(self) -> None:
        self._first = ""
        self._depth = 0
        self._is_string = False
        self._is_escape = False
        self._has_content = False
        self._has_ended = False

    @property
    def is_complete(self) -> bool:
        """True if the last value is complete.

        A value is an object or a list that contains strings, or a string that is the whole text.
        """
        return self._has_ended and not self._depth and not self._is_string

    def feed(self, text: str) -> None:
        """Read the next part in linear time."""
        self._first = self._first or text.lstrip()[:1]
        at = 1 if self._is_escape and text else 0
        self._is_escape = self._is_escape and not text
        while found := _MARK.search(text, at):
            mark, at = found[0], found.end()
            if mark == "\\":
                self._is_escape = at == len(text)
                at += 1
            elif mark == '"':
                self._is_string = not self._is_string
                # A quotation before an object is no value.
                self._has_content = self._has_content or bool(self._depth) or self._first == '"'
                self._end()
            elif mark == "'":
                self._has_content = self._has_content or bool(self._depth)
            elif not self._is_string:
                self._depth = max(0, self._depth + (1 if mark in "{[" else -1))
                self._end()

    def _end(self) -> None:
        is_open = self._depth or self._is_string
        self._has_ended = self._has_ended or (self._has_content and not is_open)
