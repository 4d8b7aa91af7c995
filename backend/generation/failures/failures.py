"""Converts errors of providers and connections into `ModelError`s that name the cause.

The title of an error names the cause, and the detail the next step. `provider_message` quotes the
provider's own text without keys. That member and the address are private (`AppError.private`): they
are shown to the provider's owner, or to administrators if it has no owner.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from math import ceil
from typing import cast
from urllib.parse import urlsplit

from backend.generation.client.client import ServerError
from backend.generation.failures.causes import Cause, find_cause, find_status, read_sizes
from backend.generation.failures.provider_faults import ProviderFault, find_code_words, read_fault
from backend.generation.model import (
    ModelAuthError,
    ModelBlockedError,
    ModelContextOverflowError,
    ModelCreditError,
    ModelDataPolicyError,
    ModelError,
    ModelForeignAnswerError,
    ModelInterruptedError,
    ModelLoadingError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelRedirectError,
    ModelRegionError,
    ModelRequestError,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    ModelWebPageError,
    ModelWrongAddressError,
)

MAX_WAIT_SECONDS = 86_400.0

_FIRST_TIMESTAMP = 1_000_000_000
"""Larger numbers are seconds since 1970, not durations."""

_FIRST_TIMESTAMP_MS = 100_000_000_000
"""Larger numbers are milliseconds since 1970."""

_NUMBER = re.compile(r"\d{1,14}(?:\.\d{1,9})?")
_DURATION = re.compile(
    r"(?:(\d{1,9})\s?d(?:ays?)?(?![a-z]))?,?\s?(?:(\d{1,9})\s?h(?:(?:ou)?rs?)?(?![a-z]))?,?\s?"
    r"(?:(\d{1,9})\s?m(?:in(?:ute)?s?)?(?![a-z]))?,?\s?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?)\s?(?:s(?:ec(?:ond)?s?)?|(ms|milliseconds?))(?![a-z]))?",
    re.IGNORECASE,
)
"""Days, hours, minutes and seconds: `6m0s`, `1h2m`, `20ms`, `34.07s`, `1 minute 30 seconds`."""

_IN_WORDS = re.compile(
    r"(?:try again|retry|available again|resets?|wait)(?: after| in| for)?[: ]{1,3}"
    r"(?:about |approximately |up to )?(\d[^.,;)]{0,40}(?:\.\d{1,9}[^.,;)]{0,20})?)",
    re.IGNORECASE,
)

_RETRY_AFTER = ("retry-after-ms", "retry-after", "x-retry-after")
_RESETS = (
    *("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens", "x-ratelimit-reset"),
    *("ratelimit-reset", "anthropic-ratelimit-requests-reset", "anthropic-ratelimit-tokens-reset"),
    *("anthropic-ratelimit-input-tokens-reset", "anthropic-ratelimit-output-tokens-reset"),
)


def find_wait(
    headers: Mapping[str, str], waits: Iterable[object] = (), text: str = ""
) -> float | None:
    """Return the seconds to wait, from 0 to a day; None if unknown.

    Args:
        headers: Headers of the answer, with lowercase names. If nothing else gives a time, the
            resets of used-up rate limits are used.
        waits: Values in the body, such as Google's `retryDelay`, which are the most exact.
        text: The provider's sentences in lower case, such as "please try again in 20s".
    """
    exact = [parse_wait(value) for value in waits]
    exact += [parse_wait(headers.get(name), name) for name in _RETRY_AFTER]
    exact += map(parse_wait, (match[1] for match in _IN_WORDS.finditer(text)))
    if (found := next((wait for wait in exact if wait is not None), None)) is not None:
        return found
    return max(_find_resets(headers), default=None)


def parse_wait(value: object, name: str = "") -> float | None:
    """Return a waiting time in seconds, from 0 to a day; None if the value is not a time.

    Accepts `30`, `34.07s`, `6m0s`, an HTTP date, an RFC 3339 time, and seconds or milliseconds
    since 1970. If the header's `name` ends with `-ms`, the value is in milliseconds.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()[:60]
    if _NUMBER.fullmatch(text):
        seconds = float(text) / 1000 if name.endswith("-ms") else _parse_number(float(text))
    elif (parsed := _parse_duration(text)) is not None:
        seconds = parsed
    elif (moment := _parse_date(text)) is not None:
        seconds = (moment - datetime.now(UTC)).total_seconds()
    else:
        return None
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)


def _parse_number(number: float) -> float:
    if number < _FIRST_TIMESTAMP:
        return number
    moment = number / 1000 if number >= _FIRST_TIMESTAMP_MS else number
    return moment - datetime.now(UTC).timestamp()


def _parse_duration(text: str) -> float | None:
    match = _DURATION.match(text)
    if match is None or not match[0].strip():
        return None
    days, hours, minutes, seconds, milliseconds = match.groups()
    last = float(seconds or 0) / (1000 if milliseconds else 1)
    return int(days or 0) * 86_400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + last


def _parse_date(text: str) -> datetime | None:
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = parse(text)
        except ValueError:
            continue
        if moment.tzinfo is not None:
            return moment
    return None


def _find_resets(headers: Mapping[str, str]) -> Iterator[float]:
    """Yield the seconds until used-up rate limits are reset."""
    for name in _RESETS:
        if headers.get(name.replace("reset", "remaining"), "0").strip() in {"0", "0.0"}:
            seconds = parse_wait(headers.get(name))
            if seconds is not None:
                yield seconds


MAX_SEARCHED_CHARACTERS = 8_000
"""Maximum number of searched characters of an answer."""

_UNKNOWN_MEMBER_WORDS = re.compile(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|not (?:be )?(?:supported?|permitted|allowed)"
    r"|does ?n[o']t support|extra_forbidden|extra inputs|no such (?:field|parameter)|not enabled"
    r"|deprecated",
    re.IGNORECASE,
)
"""Words of refusals of an unknown member. Other refusals are about its value."""

_OVERFLOW_CODES = frozenset({"context_length_exceeded", "string_above_max_length"})
_STATUSES = frozenset({HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused member of a request. If not `for_good`, only its value is refused."""

    member: str
    for_good: bool


def read_refusal(error: ServerError, members: Iterable[str]) -> Refusal | None:
    """Return the last of the request's `members` that a refusal names; None if it names none.

    A member is named by the answer's `param`, in quotation marks, before a colon, after a colon at
    the end of a sentence, or by a name that is no ordinary word (`top_k`, `topK`).
    """
    fault = error.fault
    if error.status not in _STATUSES or fault.get("code") in _OVERFLOW_CODES:
        return None
    text = error.text[:MAX_SEARCHED_CHARACTERS]
    param = fault.get("param")
    param = param.rpartition(".")[2] if isinstance(param, str) else ""
    named = [name for name in members if name == param or _is_named(text, name)]
    return (
        Refusal(named[-1], for_good=_UNKNOWN_MEMBER_WORDS.search(text) is not None)
        if named
        else None
    )


def _is_named(text: str, member: str) -> bool:
    name = re.escape(member)
    if "_" in member or not member.islower():
        first, *rest = member.split("_")
        camel = re.escape(first + "".join(map(str.title, rest)))
        return re.search(rf"\b(?:{name}|{camel})\b", text) is not None
    return re.search(rf"[\"'`]{name}[\"'`.\[]|\b{name}:|: {name}[\"'`.]", text) is not None


_MAX_CODES_SHOWN = 3
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,100}")

_ADVICE: Mapping[Cause, tuple[type[ModelError], str]] = {
    "credit": (ModelCreditError, "Add credit at the provider, or choose another model."),
    "region": (ModelRegionError, "Choose another provider, or a router that serves this region."),
    "data_policy": (
        ModelDataPolicyError,
        "Change the account's privacy settings at the provider, or choose another model.",
    ),
    "missing_model": (
        ModelNotFoundError,
        "Check the model's name and the account's access. A local server has to load it first.",
    ),
    "key": (
        ModelAuthError,
        "Check the API key of the provider, and whether it may use this model.",
    ),
    "loading": (ModelLoadingError, "Wait until the server has loaded it, then try again."),
    "busy": (ModelOverloadedError, "Wait a moment and try again, or choose another model."),
    "address": (
        ModelWrongAddressError,
        "Check the address of the provider. Most addresses end in /v1.",
    ),
    "tunnel": (
        ModelUnavailableError,
        "A proxy or tunnel answered, and the server behind it did not. Is the server running?",
    ),
    "timeout": (
        ModelTimeoutError,
        "A proxy stopped waiting for the model. Try again, or choose a faster model.",
    ),
    "web_page": (
        ModelWebPageError,
        "Check the address of the provider: it may lack /v1, or lead to a proxy or a login page.",
    ),
    "too_large": (
        ModelRequestError,
        "A proxy limits the size of requests. Raise its limit, or lower the context size.",
    ),
    "request": (
        ModelRequestError,
        "Check the settings of the model, or choose another model.",
    ),
    "server": (
        ModelServerError,
        "Try again. If it fails again, look at the server's log or choose another model.",
    ),
    "foreign": (
        ModelForeignAnswerError,
        "Check the address of the provider. Most addresses end in /v1.",
    ),
}


@dataclass(frozen=True, slots=True)
class FailureSource:
    """The provider of an error.

    Attributes:
        who: The provider's name in error texts.
        base_url: Its address.
        secrets: The key and the values of the user's headers, which are never quoted.
        is_own: True if it belongs to the user, who may see its address and text.
    """

    who: str
    base_url: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    is_own: bool = False

    def restrict(self, error: ModelError, **private: str) -> ModelError:
        """Add private members. Empty ones are omitted."""
        error.private = {name: value for name, value in private.items() if value}
        if self.is_own:
            error.disclose()
        return error


def find_failure(error: BaseException, source: FailureSource) -> ModelError:
    if isinstance(error, ServerError):
        return convert_server_error(error, source)
    causes = list(_find_causes(error))
    own = next((each for each in causes if isinstance(each, ModelError)), None)
    if own is not None and source.is_own:
        own.disclose()
    return own or convert_connection_error(error, source)


def convert_server_error(answer: ServerError, source: FailureSource) -> ModelError:
    fault = read_fault(answer.body, answer.headers.get("content-type", ""))
    cause = find_cause(answer, fault)
    facts = _describe_answer(answer, fault, source)
    words = fault.quote(source.secrets)
    match cause:
        case "overflow":
            window, needed = read_sizes(fault.text, dict(fault.numbers))
            detail = facts + _advise_on_overflow(window, needed)
            error: ModelError = ModelContextOverflowError(detail, window=window, needed=needed)
        case "rate_limit":
            wait = find_wait(answer.headers, fault.waits, fault.text)
            error = ModelRateLimitError(facts + _advise_on_wait(wait), retry_after=wait)
        case "filter":
            reason = ", ".join(find_code_words(*fault.reasons, secrets=source.secrets)) or next(
                iter(find_code_words(*fault.codes, secrets=source.secrets)), ""
            )
            advice = "Change the text, or choose another model."
            error = ModelBlockedError(facts + advice, reason=reason)
        case "redirect":
            advice = "Redirects are not followed. Set the right address for the provider."
            host = _find_redirect_host(answer, source)
            named = f"It leads to {host}. " if host else ""
            error = ModelRedirectError(facts + advice)
            return source.restrict(error, detail=facts + named + advice, provider_message=words)
        case _:
            kind, advice = _ADVICE[cause]
            error = kind(facts + advice)
    return source.restrict(error, provider_message=words)


def convert_connection_error(error: BaseException, source: FailureSource) -> ModelError:
    causes = list(_find_causes(error))
    names = {type(each).__name__ for each in causes}
    who, address = source.who, show_address(source.base_url) or "the provider"
    tls = next((each for each in causes if isinstance(each, ssl.SSLError)), None)
    if names & {"UnsupportedProtocol", "InvalidURL"}:
        return ModelWrongAddressError("The address must begin with http:// or https://.")
    if any(isinstance(each, socket.gaierror) for each in causes):
        public = f"{who} cannot be found: its name has no address."
        named = f"Cannot find {address}: the name has no address. Check its spelling."
    elif tls is not None:
        hint = _explain_tls_error(tls)
        public = f"{who} cannot be reached safely: {hint}"
        named = f"Cannot connect to {address} safely: {hint}"
    elif names & {"ConnectTimeout", "PoolTimeout"}:
        public = f"{who} does not answer. Is it running?"
        named = f"Cannot connect to {address}: it does not answer. Is the server running?"
    elif names & {"ReadError", "WriteError", "RemoteProtocolError"}:
        public = f"{who} closed the connection. Try again."
        named = (
            f"{address} closed the connection. Try again. If that does not help, look at the "
            "server's log, or check whether its address begins with https://."
        )
    elif names & {"ConnectError", "OSError", "ConnectionRefusedError"}:
        public = f"{who} does not accept connections. Is it running?"
        named = f"Cannot connect to {address}. Is the server running?"
    else:
        return ModelUnavailableError(f"{who} does not respond ({type(error).__name__}).")
    return source.restrict(ModelUnavailableError(public), detail=named)


def find_interruption(error: ModelError, who: str) -> ModelError:
    """Convert a lost connection after the reply began. Other errors are unchanged."""
    if type(error) is not ModelUnavailableError:
        return error
    return ModelInterruptedError(f"{who} closed the connection before the model had finished.")


def show_address(url: str) -> str:
    """Return a URL without user name, password, query and fragment."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}{parts.path}" if host else ""


def _describe_answer(answer: ServerError, fault: ProviderFault, source: FailureSource) -> str:
    """Render the status and the codes, which all users may see."""
    status = find_status(answer, fault)
    words = find_code_words(*fault.codes, secrets=source.secrets)[:_MAX_CODES_SHOWN]
    quoted = " ".join((*([] if status is None else [str(status)]), *words))
    verb = "reported" if answer.in_stream else "answered"
    return f"{source.who} {verb} {quoted}. " if quoted else ""


def _advise_on_overflow(window: int | None, needed: int | None) -> str:
    shown = ""
    if needed is not None:
        shown = f"The prompt with the reply takes {needed:,} tokens. "
    if window is not None:
        shown += f"The model's window has {window:,} tokens. "
    return shown + "Lower the context size, or load the model with a larger window."


def _advise_on_wait(wait: float | None) -> str:
    if wait is None:
        return "Wait a moment, then try again."
    if wait < 120:  # noqa: PLR2004 - two minutes
        return f"Wait {max(1, ceil(wait))} s, then try again."
    return f"Wait {ceil(wait / 60)} minutes, then try again."


def _find_redirect_host(answer: ServerError, source: FailureSource) -> str:
    try:
        target = urlsplit(answer.headers.get("location", "")[:2_000])
        own = urlsplit(source.base_url)
    except ValueError:
        return ""
    host = target.netloc.rpartition("@")[2]
    if not _HOST.fullmatch(host):
        return ""
    if target.hostname == own.hostname and target.scheme != own.scheme:
        return f"{target.scheme}://{host}"
    return host


def _find_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, and the members of groups, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(cast("tuple[BaseException, ...]", each.exceptions))
        waiting += [cause for cause in (each.__cause__, each.__context__) if cause is not None]


def _explain_tls_error(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted. Check the address and the certificate."
    if error.reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"}:
        return "this port does not use TLS. Does its address begin with http://?"
    return "the TLS handshake failed. Check the address and the port."
