"""What a provider answers in place of a reply, as a `ModelError`.

A provider's own sentence is never passed on: it may quote the prompt, or the key. What is passed on
are its status and its code words (`INVALID_ARGUMENT`, `context_length_exceeded`, the name of a
field), from which a reader can tell what to change.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from backend.generation.model import (
    ModelAuthError,
    ModelError,
    ModelRateLimitError,
    ModelRequestError,
    ModelUnavailableError,
)

_CODE_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.\[\]-]{1,63}")
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s?")
_LONGEST_WAIT = 86_400.0

_TOO_LONG = frozenset({"context_length_exceeded", "string_above_max_length"})

_VERDICTS: dict[int, tuple[type[ModelError], str]] = {
    401: (ModelAuthError, "does not take the key"),
    403: (ModelAuthError, "does not take the key"),
    404: (ModelRequestError, "has no model of that name"),
    408: (ModelUnavailableError, "gives no answer"),
    413: (ModelRequestError, "finds the prompt too long"),
    429: (ModelRateLimitError, "asks to slow down"),
}


def own_error(error: BaseException | None) -> ModelError | None:
    """The error of our own HTTP client's that an SDK has wrapped in one of its own, if it has."""
    while error is not None and not isinstance(error, ModelError):
        error = error.__cause__
    return error


def code_words(*values: object, secret: str | None) -> tuple[str, ...]:
    """Those of `values` that are code words, each once; sentences and the key are left out."""
    return tuple(
        dict.fromkeys(
            value
            for value in values
            if isinstance(value, str)
            and _CODE_WORD.fullmatch(value)
            and not (secret and secret in value)
        )
    )


def wait_seconds(value: object) -> float | None:
    """Seconds to wait, out of a `Retry-After` header or a `google.protobuf.Duration`.

    Takes `30`, `34.07s` and an HTTP date; None for anything else. Never negative, a day at most.
    """
    if not isinstance(value, str):
        return None
    if match := _DURATION.fullmatch(value.strip()):
        seconds = float(match[1])
    else:
        try:
            until = parsedate_to_datetime(value)
        except ValueError:
            return None
        if until.tzinfo is None:
            return None
        seconds = (until - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), _LONGEST_WAIT)


def failure(
    who: str, *, status: int | None, words: tuple[str, ...] = (), retry_after: float | None = None
) -> ModelError:
    """The error for an answer of `who` with HTTP status `status` and these code words.

    Without a status (a connection that failed, an answer that can't be read) the model is
    unavailable, as it is for 5xx, 408 and a redirect, which is never followed.
    """
    kind, verdict = _verdict(status, words)
    quoted = " ".join((*([str(status)] if status else ()), *words))
    detail = f"{who} {verdict} ({quoted})." if quoted else f"{who} {verdict}."
    if kind is ModelRateLimitError:
        return ModelRateLimitError(detail, retry_after=retry_after)
    return kind(detail)


def _verdict(status: int | None, words: tuple[str, ...]) -> tuple[type[ModelError], str]:
    if status is None:
        return ModelUnavailableError, "gives no answer"
    if status in _VERDICTS:
        return _VERDICTS[status]
    if not 400 <= status < 500:  # noqa: PLR2004 - HTTP's own classes
        return ModelUnavailableError, "failed"
    if _TOO_LONG.intersection(words):
        return _VERDICTS[413]
    return ModelRequestError, "does not take the request: a setting of it, or its length"
