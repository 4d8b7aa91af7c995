"""Exceptions told by type and place, without a word of what they were about."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

_MOST_EXCEPTIONS = 8
_MOST_FRAMES = 40

_HOUSE = Path(__file__).parents[2]


def exception_fields(
    exc_info: BaseException | tuple[Any, ...] | Literal[True] | None,
) -> dict[str, str]:
    """`error_type` and `exception` for `exc_info` as `logging` takes it: error, triple or True."""
    error: object = exc_info
    if isinstance(exc_info, tuple):
        error = exc_info[1]
    elif exc_info is True:
        error = sys.exception()
    if not isinstance(error, BaseException):
        return {}
    return {"error_type": _type_name(error), "exception": describe_exception(error)}


def describe_exception(error: BaseException) -> str:
    """An exception's type and the places it passed, then the same of its causes, line by line.

    Places are `file:line:function`, the innermost last. Messages and variables stay out; of an
    `OSError` the system's own words for its number come in, without the file it was about.
    """
    lines: list[str] = []
    for number, (relation, each) in enumerate(_with_causes(error)):
        if number == _MOST_EXCEPTIONS:
            lines.append("and more")
            break
        lines.append(relation + _type_name(each) + _system_words(each))
        lines.extend(f"  {place}" for place in _places(each.__traceback__))
    return "\n".join(lines)


def short_path(filename: str) -> str:
    """A source file's path from its package on."""
    path = Path(filename)
    if "site-packages" in path.parts:
        return "/".join(path.parts[path.parts.index("site-packages") + 1 :])
    if path.is_relative_to(_HOUSE):
        return path.relative_to(_HOUSE).as_posix()
    return "/".join(path.parts[-2:])


def _with_causes(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """The exception, then what it came of, each once and with a word on how they hang together."""
    seen: set[int] = set()
    queue = [("", error)]
    while queue:
        relation, each = queue.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield relation, each
        if isinstance(each, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", each)
            queue.extend(("part of the group: ", part) for part in group.exceptions)
        if each.__cause__ is not None:
            queue.append(("caused by ", each.__cause__))
        elif each.__context__ is not None and not each.__suppress_context__:
            queue.append(("while handling ", each.__context__))


def _places(trace: TracebackType | None) -> list[str]:
    frames = [
        f"{short_path(frame.f_code.co_filename)}:{line}:{frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(trace)
    ]
    return frames[-_MOST_FRAMES:]


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _system_words(error: BaseException) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return f" ({os.strerror(number)})" if number else ""
