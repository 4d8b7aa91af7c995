"""Read untrusted JSON and YAML within limits.

The result is always valid JSON: objects with text keys, lists, UTF-8 texts, finite numbers,
booleans and null, nested at most `JSON_DEPTH` levels deep.
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
    Limit,
)
from backend.characters.errors import CardError

_SLICE_BYTES = 64 * 1024

# The quantifiers are possessive (`++`, `*+`, `?+`), so that the time is linear on any input.
_STRING = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)"?+', re.DOTALL)
_CLOSED_STRINGS = re.compile(rb'(?>(?:[^"]++|"(?>(?:[^"\\]++|\\.)*)")*)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_structure(
    data: bytes, *, slice_bytes: int = _SLICE_BYTES, values_limit: Limit | None = None
) -> None:
    """Limit nesting and values by the punctuation outside strings, before a parser recurses.

    Raises `CardLimitError` at the first exceeded limit. `data` is read in slices, so that the
    memory is a small multiple of one slice.
    """
    values = depth = 0
    begun = b""  # the quote of a string that the last slice left open, and a pending backslash
    for start in range(0, len(data), slice_bytes):
        piece = begun + data[start : start + slice_bytes]
        end = _find_open_string(piece)
        open_string = piece[end:]
        is_escaping = (len(open_string) - len(open_string.rstrip(b"\\"))) % 2
        begun = open_string[:1] + b"\\" * is_escaping
        punctuation = _STRING.sub(b"", piece[:end])
        values += sum(map(punctuation.count, (b",", b"[", b"{")))
        (values_limit or JSON_VALUES).check(values, "The JSON text")
        brackets = punctuation.translate(None, _NOT_BRACKETS)
        depths = list(accumulate(map(_DEPTH_STEPS.__getitem__, brackets), initial=depth))
        JSON_DEPTH.check(max(depths), "The JSON text")
        depth = depths[-1]


def _find_open_string(piece: bytes) -> int:
    """Return the position of the string that `piece` leaves open, or else its length."""
    found = _CLOSED_STRINGS.match(piece)
    return found.end() if found else 0


_MAX_C_PARSER_LISTS = 100_000
"""With more lists, JSON is read by the parser in Python, which is ten times slower.

The parser in C would block all other threads. No card has so many lists.
"""

# The C loader is missing if PyYAML was built without libyaml.
_YAML_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# The core schema of YAML 1.2, because 1.1 converts `no`, `1:30` and dates. The key `None` applies
# the patterns to every scalar. Source: https://yaml.org/spec/1.2.2/, 10.3.2 (without octal,
# hexadecimal and infinity).
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
    """Parse JSON if `data` begins with an object or a list, and YAML otherwise."""
    body = data.removeprefix(BOM_UTF8)
    return parse_json(body) if body.lstrip()[:1] in {b"{", b"["} else parse_yaml(body)


def parse_json(
    data: bytes, *, bytes_limit: Limit | None = None, values_limit: Limit | None = None
) -> Any:
    """Parse UTF-8 JSON, with or without a byte order mark.

    Unlike the standard, line breaks inside strings are allowed. NaN, Infinity and numbers that
    overflow are refused. Lone surrogates become U+FFFD. The default limits are those of cards.

    Raises `CardError` with the line and column, and `CardLimitError` before parsing.
    """
    body = data.removeprefix(BOM_UTF8)
    (bytes_limit or JSON_BYTES).check(len(body), "The JSON text")
    check_structure(body, values_limit=values_limit)
    text = _decode(body)
    decoder = json.JSONDecoder(
        strict=False,
        # The hook runs Python code for each object, so that other threads can run in between.
        object_hook=_return_object,
        parse_constant=_refuse_constant,
        parse_float=_parse_float,
    )
    if body.count(b"[") > _MAX_C_PARSER_LISTS:
        # `py_make_scanner` is undocumented and has no types.
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
    """Parse YAML 1.2 in its core schema, in which `no` and dates are texts.

    Aliases are expanded, and tags are refused. Raises `CardError` with the line and column, and
    `CardLimitError`.
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
    """Return a copy that is valid JSON. Expanded aliases can exceed the depth of the text."""
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
    """Return a YAML key, which can have any type, as text."""
    return _clean(key) if isinstance(key, str) else json.dumps(key, default=str)


def _check_events(text: str) -> None:
    """Limit values, depth and expanded size by the parser's events, before anything is built.

    Every alias counts as the full size of its anchored node.
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
