"""Logs that have no room for a user's words.

Three rules hold for every line, whoever writes it:

- Our own code logs an event by its name (`turn.failed`), with fields out of `FIELDS`, whose values
  are numbers or single words. Anything else is left out and named under `dropped_fields`.
- Of an exception come its type and the places it passed, never its message and never a variable:
  both may quote what a user wrote.
- Of a library come warnings and errors. Its message is shown only where it stands, letter for
  letter, in the library's code; what was put into it is not.

A module logs through a logger of its own:

    log = get_logger(__name__)
    log.info("turn.finished", turn_id=turn.id, completion_tokens=usage.completion_tokens)
"""

from __future__ import annotations

from backend.logs.fields import EVENT, FIELDS
from backend.logs.setup import bind_request, configure_logging, get_logger

__all__ = ["EVENT", "FIELDS", "bind_request", "configure_logging", "get_logger"]
