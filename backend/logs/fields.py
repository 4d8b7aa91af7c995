"""What our own code may put on a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from structlog.typing import EventDict

from backend.logs.exceptions import exception_fields

FIELDS = frozenset(
    # where a line belongs
    "logger_name request_id error_id user_id chat_id turn_id message_id character_id "  # noqa: SIM905  one name a line would say no more in forty
    "lorebook_id chronicle_id campaign_id job_id run_id api_key_id provider_id "
    # a request
    "method path_template status problem duration_ms "
    # a model's work
    "provider model finish_reason prompt_file prompt_hash prompt_tokens completion_tokens "
    "cached_tokens thinking_tokens budget_tokens history_tokens retrieval_tokens "
    # a job
    "job_kind state attempt retry_after_s "
    # how this installation runs
    "address version python database revision key_version signal "
    # what went wrong, and how much of anything
    "error_type source count bytes".split()
)
"""Every field that our own code may log. A test holds the logging calls of the backend to it."""

EVENT = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
"""An event's name: two words or more with dots between, so that no single word passes for one."""

_WORD = re.compile(r"[!-~]{0,200}")
"""Printable ASCII without a space: ids, addresses, slugs and versions pass, sentences do not."""


def keep_allowed(_logger: Any, _method: str, event_dict: EventDict) -> EventDict:
    """The processor that stands before every other: what it leaves out, nothing later sees."""
    event = event_dict.pop("event", None)
    exc_info = event_dict.pop("exc_info", None)
    is_named = isinstance(event, str) and EVENT.fullmatch(event)
    return {
        "event": event if is_named else "log.unnamed",
        **allowed(event_dict),
        **exception_fields(exc_info),
    }


def allowed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that may be logged, and under `dropped_fields` the names of the others."""
    kept: dict[str, Any] = {}
    dropped: list[str] = []
    for name, given in fields.items():
        value = str(given) if isinstance(given, UUID) else given
        if name in FIELDS and _is_plain(value):
            kept[name] = value
        else:
            dropped.append(name)
    if dropped:
        kept["dropped_fields"] = sorted(dropped)
    return kept


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    return value is None or isinstance(value, int | float)
