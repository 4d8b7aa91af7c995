"""Decode MessagePack within limits.

The decoder of msgspec has no limit of values: 64 MB of empty lists would take four gigabytes.
Maps have text keys. Extensions, such as dates and JavaScript's `undefined`, become null.
Source: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from backend.core.cpu_pool import check_stopped

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 2_000_000
_VALUES_BETWEEN_CHECKS: Final = 4_096

_CONSTANTS: Final = {0: None, 2: False, 3: True}

_Kind = Literal["constant", "number", "text", "bytes", "list", "map", "extension"]


class _Code(NamedTuple):
    """The meaning of a value's first byte.

    `value` is a constant, the format of a number, or the length of the others. If `length_bytes`
    is set, the length follows in as many bytes.
    """

    kind: _Kind
    value: Any = None
    length_bytes: int = 0


def _list_codes() -> dict[int, _Code]:
    codes = {0xC0 + place: _Code("constant", value) for place, value in _CONSTANTS.items()}
    codes |= {code: _Code("constant", code) for code in range(0x80)}
    codes |= {code: _Code("constant", code - 0x100) for code in range(0xE0, 0x100)}
    codes |= {code: _Code("map", code - 0x80) for code in range(0x80, 0x90)}
    codes |= {code: _Code("list", code - 0x90) for code in range(0x90, 0xA0)}
    codes |= {code: _Code("text", code - 0xA0) for code in range(0xA0, 0xC0)}
    codes |= {
        code: _Code("number", struct.Struct(f">{letter}"))
        for code, letter in enumerate("fdBHIQbhiq", 0xCA)
    }
    codes |= {code: _Code("extension", 1 << power) for power, code in enumerate(range(0xD4, 0xD9))}
    sized: tuple[tuple[_Kind, int, Sequence[int]], ...] = (
        ("bytes", 0xC4, (1, 2, 4)),
        ("extension", 0xC7, (1, 2, 4)),
        ("text", 0xD9, (1, 2, 4)),
        ("list", 0xDC, (2, 4)),
        ("map", 0xDE, (2, 4)),
    )
    for kind, first, sizes in sized:
        codes |= {code: _Code(kind, None, size) for code, size in enumerate(sizes, first)}
    return codes


_CODES: Final = _list_codes()


class MessagePackError(ValueError):
    """The data are broken or exceed a limit. The text says where and which."""


def decode(data: bytes) -> Any:
    """Decode the first value. Raises `MessagePackError`."""
    return _Decoder(data).read(0)


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._values = 0

    def read(self, depth: int) -> Any:
        self._values += 1
        if self._values % _VALUES_BETWEEN_CHECKS == 0:
            check_stopped()
        if self._values > MAX_VALUES:
            raise MessagePackError(f"it has more than {MAX_VALUES:,} values")
        if depth > MAX_DEPTH:
            raise MessagePackError(f"it is nested more than {MAX_DEPTH} levels deep")
        code = _CODES.get(self._take(1)[0])
        if code is None:
            raise MessagePackError(f"byte {self._at - 1:,} is no type")
        return self._read_value(code, depth)

    def _read_value(self, code: _Code, depth: int) -> Any:
        size = code.length_bytes
        length: Any = int.from_bytes(self._take(size), "big") if size else code.value
        found: Any = None
        match code.kind:
            case "constant":
                found = code.value
            case "number":
                (found,) = code.value.unpack(self._take(code.value.size))
            case "text":
                found = self._take(length).decode(errors="replace")
            case "bytes":
                found = self._take(length)
            case "list":
                found = [self.read(depth + 1) for _ in range(length)]
            case "map":
                found = self._read_map(length, depth)
            case "extension":
                self._take(1 + length)
        return found

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise MessagePackError(f"it ends within a value, at byte {len(self._data):,}")
        found = self._data[self._at : end]
        self._at = end
        return found

    def _read_map(self, length: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(length):
            key = self.read(depth + 1)
            found[key if isinstance(key, str) else str(key)] = self.read(depth + 1)
        return found
