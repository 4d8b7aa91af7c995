"""Tool calls as models write them: arguments in JSON, or in what was to be JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast
from uuid import uuid4

from backend.generation._json import clean, clean_text, parse_json
from backend.generation.model import ToolCall

MAX_CALLS = 64
"""Of one reply; what is called after them is passed over."""

MAX_ARGUMENTS = 65_536
"""Characters of one call's arguments."""

TOO_LONG = f"The arguments are longer than {MAX_ARGUMENTS} characters."


def read_call(
    name: str, arguments: object, *, call_id: str = "", vendor_state: Any = None
) -> ToolCall:
    """The call of a tool. What can't be read of its arguments is its `problem`: nothing is raised.

    Args:
        name: As the model gave it.
        arguments: A JSON text, empty where there are none, or what was parsed of one.
        call_id: The vendor's; one is made up where that is empty.
        vendor_state: See `ToolCall`.
    """
    try:
        value = _parsed(arguments)
    except ValueError as error:
        value, problem = {}, str(error)
    else:
        problem = ""
    return ToolCall(
        id=clean_text(call_id) or f"call-{uuid4().hex}",
        name=clean_text(name),
        arguments=value,
        vendor_state=vendor_state,
        problem=problem,
    )


def _parsed(arguments: object) -> dict[str, Any]:
    """Raises `ValueError`, whose text says to the model what is wrong."""
    if isinstance(arguments, str):
        if len(arguments) > MAX_ARGUMENTS:
            raise ValueError(TOO_LONG)
        try:
            value = parse_json(arguments.strip() or "{}")
        except ValueError as error:
            raise ValueError(f"The arguments are not JSON: {error}.") from None
    else:
        value = clean(arguments)
        if len(json.dumps(value, ensure_ascii=False)) > MAX_ARGUMENTS:
            raise ValueError(TOO_LONG)
    if not isinstance(value, Mapping):
        raise ValueError("The arguments are not a JSON object.")  # noqa: TRY004 - of what the model wrote, not of a caller's type
    return cast("dict[str, Any]", value)


def unreadable_call(problem: str) -> ToolCall:
    """A call of which not even the name is known."""
    return ToolCall(id=f"call-{uuid4().hex}", name="", arguments={}, problem=problem)
