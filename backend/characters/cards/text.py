"""JSON and YAML of unknown origin, read within bounds.

What comes out is always JSON: objects with text keys, lists, texts that UTF-8 can hold, finite
numbers, booleans and null, at most `JSON_DEPTH` levels deep.
"""

from __future__ import annotations

import json
import json.scanner
import math
import re
from codecs import BOM_UTF8
from itertools import accumulate
from typing import Any, NoReturn, cast

import yaml

from backend.characters.cards.model import (
    JSON_BYTES,
    JSON_DEPTH,
    JSON_VALUES,
    YAML_BYTES,
    YAML_EXPANDED,
    YAML_VALUES,
)
from backend.characters.errors import CardError

_SLICE_BYTES = 64 * 1024

# Possessive (`++`, `*+`, `?+`): linear on any input.
_STRING = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)"?+', re.DOTALL)
_CLOSED_STRINGS = re.compile(rb'(?>(?:[^"]++|"(?>(?:[^"\\]++|\\.)*)")*)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_structure(data: bytes, *, slice_bytes: int = _SLICE_BYTES) -> None:
    """Bound nesting and values by the punctuation outside strings, before a parser recurses.

    `data` is read in slices: memory is a small multiple of one slice, and a text that is over a
    limit is read no further than that.

    Raises:
        CardLimitError: Too deep, or too many values.
    """
    values = depth = 0
    begun = b""  # of a string that the slice before did not close: its quote, a backslash
    for start in range(0, len(data), slice_bytes):
        piece = begun + data[start : start + slice_bytes]
        end = _find_open_string(piece)
        open_string = piece[end:]
        is_escaping = (len(open_string) - len(open_string.rstrip(b"\\"))) % 2
        begun = open_string[:1] + b"\\" * is_escaping
        punctuation = _STRING.sub(b"", piece[:end])
        values += sum(map(punctuation.count, (b",", b"[", b"{")))
        JSON_VALUES.check(values, "The JSON text")
        brackets = punctuation.translate(None, _NOT_BRACKETS)
        depths = list(accumulate(map(_DEPTH_STEPS.__getitem__, brackets), initial=depth))
        JSON_DEPTH.check(max(depths), "The JSON text")
        depth = depths[-1]


def _find_open_string(piece: bytes) -> int:
    """Where the string begins that `piece` does not close; its length where there is none."""
    found = _CLOSED_STRINGS.match(piece)
    return found.end() if found else 0


_MAX_C_PARSER_LISTS = 100_000
"""Lists from which on JSON is read by the parser in Python, ten times as slow: the one in C would
keep all other threads waiting. No card has so many."""

# The one in C is missing where PyYAML was built without libyaml.
_YAML_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# YAML 1.2's core schema, in place of 1.1 with its `no`, `1:30` and dates; `None`: tried on every
# scalar. Source: https://yaml.org/spec/1.2.2/, 10.3.2 (without octal, hexadecimal and infinity).
_CORE_SCHEMA = {
    None: [
        (f"tag:yaml.org,2002:{name}", re.compile(pattern))
        for name, pattern in (
            ("null", r"(?:~|null|Null|NULL|)\Z"),
            ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z"),
            ("int", r"[-+]?(?:0|[1-9][0-9]*)\Z"),
            ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z"),
        )
    ]
}

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_text(data: bytes) -> Any:
    """JSON where `data` begins like a JSON object or list, YAML otherwise."""
    body = data.removeprefix(BOM_UTF8)
    return parse_json(body) if body.lstrip()[:1] in {b"{", b"["} else parse_yaml(body)


def parse_json(data: bytes) -> Any:
    """Parse UTF-8 JSON, with or without a byte order mark.

    More lenient than the standard in one thing: line breaks inside strings are taken as they
    are. NaN, Infinity and numbers that overflow are refused; lone surrogates become U+FFFD.

    Raises:
        CardError: Not UTF-8, or not JSON; the message names line and column.
        CardLimitError: Too long, too deep or too many values. Found before anything is built.
    """
    body = data.removeprefix(BOM_UTF8)
    JSON_BYTES.check(len(body), "The JSON text")
    check_structure(body)
    text = _decode(body)
    decoder = json.JSONDecoder(
        strict=False,
        # What Python does with each object lets other threads run: the rest is one call in C.
        object_hook=_return_object,
        parse_constant=_refuse_constant,
        parse_float=_parse_float,
    )
    if body.count(b"[") > _MAX_C_PARSER_LISTS:
        # Undocumented, and unknown to the type checker.
        python: Any = json.scanner
        cast("Any", decoder).scan_once = python.py_make_scanner(decoder)
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise CardError(
            f"The JSON is invalid at line {error.lineno}, column {error.colno}: {error.msg}."
        ) from error
    except ValueError as error:  # an integer of thousands of digits
        raise CardError("The JSON contains a number that is too long.") from error
    return _clean(value) if "\\u" in text else value


def parse_yaml(data: bytes) -> Any:
    """Parse YAML 1.2 in its core schema: `no` is a text, and a date is a text too.

    Aliases are expanded, tags are refused.

    Raises:
        CardError: Not UTF-8, or not YAML; the message names line and column.
        CardLimitError: Too long, too deep, too many values, or too large once aliases are expanded.
    """
    YAML_BYTES.check(len(data), "The YAML text")
    text = _decode(data)
    try:
        _check_events(text)
        loader = _YAML_LOADER(text)
        loader.yaml_implicit_resolvers = _CORE_SCHEMA
        try:
            value: object = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise CardError(f"The text is neither JSON nor YAML: it is invalid{at}.") from error
    except yaml.YAMLError as error:
        raise CardError("The text is neither JSON nor YAML.") from error
    except ValueError as error:  # an integer of thousands of digits
        raise CardError("The YAML contains a number that is too long.") from error
    return _clean(value)


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CardError(f"The text is not UTF-8: byte {error.start:,} is invalid.") from error


def _return_object(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise CardError(f"The JSON contains {name}, which is not a JSON number.")


def _parse_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise CardError("The JSON contains a number that is too large.")
    return number


def _clean(value: Any, depth: int = 0) -> Any:
    """A copy of `value` that is JSON. Aliases may have nested deeper than the text showed."""
    match value:
        case str():
            return _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
        case dict():
            JSON_DEPTH.check(depth + 1, "The text")
            members = cast("dict[object, Any]", value)
            return {_format_key(key): _clean(member, depth + 1) for key, member in members.items()}
        case list():
            JSON_DEPTH.check(depth + 1, "The text")
            return [_clean(item, depth + 1) for item in cast("list[object]", value)]
        case float() if not math.isfinite(value):
            raise CardError("The text contains a number that is too large.")
        case _:
            return value


def _format_key(key: object) -> str:
    """YAML has keys of any kind; written as JSON would write them."""
    return _clean(key) if isinstance(key, str) else json.dumps(key, default=str)


def _check_events(text: str) -> None:
    """Bound values, depth and expanded size by the parser's events, before anything is composed.

    An anchored node weighs what it holds, every alias to it weighs the same again.
    """
    weight = values = 0
    weights: dict[str, int] = {}
    collections: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=_YAML_LOADER):
        if getattr(event, "tag", None) is not None:
            raise CardError("The YAML contains tags (`!...`), which are not supported.")
        values += isinstance(event, yaml.NodeEvent)
        YAML_VALUES.check(values, "The YAML text")
        match event:
            case yaml.AliasEvent():
                if event.anchor not in weights:
                    raise CardError(
                        "The YAML contains an alias to itself, or to an unknown anchor."
                    )
                weight += weights[event.anchor]
            case yaml.ScalarEvent():
                weight += 1 + len(event.value)
                if event.anchor:
                    weights[event.anchor] = 1 + len(event.value)
            case yaml.CollectionStartEvent():
                collections.append((event.anchor, weight))
                weight += 1
                JSON_DEPTH.check(len(collections), "The YAML text")
            case yaml.CollectionEndEvent():
                anchor, before = collections.pop()
                if anchor:
                    weights[anchor] = weight - before
            case _:
                pass
        YAML_EXPANDED.check(weight, "The YAML text")
