"""From a provider's answer, or a broken connection, to the error that names its cause.

The title of an error names the cause, its detail the next step. The provider's own words are
quoted in the member `provider_message`, without keys. They and the address are for those who may
change the provider: for its owner, or for administrators if it belongs to the installation or is
set in the environment (`AppError.private`).
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
from backend.generation.failures.provider_faults import ProviderFault, code_words, read_fault
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

_FIRST_MOMENT = 1_000_000_000
"""A plain number from this on is a moment in seconds since 1970, not a duration."""

_FIRST_MOMENT_MS = 100_000_000_000
"""The same in milliseconds."""

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
    """Return the seconds to wait, from 0 to a day; None if nothing says so.

    Args:
        headers: Headers of the answer; names in lower case. The reset of a rate limit counts if
            that limit is used up, and if nothing else says how long to wait.
        waits: Values in the body, such as Google's `retryDelay`. They come first, because they are
            the most exact.
        text: The provider's sentences in lower case, such as "please try again in 20s".
    """
    exact = [wait_seconds(value) for value in waits]
    exact += [wait_seconds(headers.get(name), name) for name in _RETRY_AFTER]
    exact += map(wait_seconds, (match[1] for match in _IN_WORDS.finditer(text)))
    if (found := next((wait for wait in exact if wait is not None), None)) is not None:
        return found
    return max(_resets(headers), default=None)


def wait_seconds(value: object, name: str = "") -> float | None:
    """Return a waiting time in seconds, from 0 to a day; None if the value is not a time.

    Takes `30`, `34.07s`, `6m0s`, an HTTP date, an RFC 3339 time, and seconds or milliseconds since
    1970. `name` is the header that the value comes from: those that end in `-ms` hold milliseconds.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()[:60]
    if _NUMBER.fullmatch(text):
        seconds = float(text) / 1000 if name.endswith("-ms") else _from_number(float(text))
    elif (parsed := _from_duration(text)) is not None:
        seconds = parsed
    elif (moment := _from_date(text)) is not None:
        seconds = (moment - datetime.now(UTC)).total_seconds()
    else:
        return None
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)


def _from_number(number: float) -> float:
    if number < _FIRST_MOMENT:
        return number
    moment = number / 1000 if number >= _FIRST_MOMENT_MS else number
    return moment - datetime.now(UTC).timestamp()


def _from_duration(text: str) -> float | None:
    match = _DURATION.match(text)
    if match is None or not match[0].strip():
        return None
    days, hours, minutes, seconds, milliseconds = match.groups()
    last = float(seconds or 0) / (1000 if milliseconds else 1)
    return int(days or 0) * 86_400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + last


def _from_date(text: str) -> datetime | None:
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = parse(text)
        except ValueError:
            continue
        if moment.tzinfo is not None:
            return moment
    return None


def _resets(headers: Mapping[str, str]) -> Iterator[float]:
    """The waits until the rate limits that are used up are reset."""
    for name in _RESETS:
        if headers.get(name.replace("reset", "remaining"), "0").strip() in {"0", "0.0"}:
            seconds = wait_seconds(headers.get(name))
            if seconds is not None:
                yield seconds


_LONGEST = 8_000
"""Characters of an answer that are searched."""

_UNKNOWN = re.compile(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|not (?:be )?(?:supported?|permitted|allowed)"
    r"|does ?n[o']t support|extra_forbidden|extra inputs|no such (?:field|parameter)|not enabled"
    r"|deprecated",
    re.IGNORECASE,
)
"""Words for a member that a server does not know at all; without them its value is refused."""

_TOO_LONG = frozenset({"context_length_exceeded", "string_above_max_length"})
_STATUSES = frozenset({HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A member of a request that a server does not take: never (`for_good`), or not this value."""

    member: str
    for_good: bool


def read_refusal(error: ServerError, members: Iterable[str]) -> Refusal | None:
    """Return the refused one of a request's `members`; None if the server names none of them.

    A member is named if the answer's `param` is its name, if a sentence quotes it, has a colon
    after it or ends with a colon and the name, or if it is a word that no sentence has (`top_k`,
    `topK`). If several are named, the last one in `members` is returned.
    """
    fault = error.fault
    if error.status not in _STATUSES or fault.get("code") in _TOO_LONG:
        return None
    text = error.text[:_LONGEST]
    param = fault.get("param")
    param = param.rpartition(".")[2] if isinstance(param, str) else ""
    named = [name for name in members if name == param or _names(text, name)]
    return Refusal(named[-1], for_good=_UNKNOWN.search(text) is not None) if named else None


def _names(text: str, member: str) -> bool:
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
        "Allow more in the privacy settings of the account there, or choose another model.",
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
        "A proxy limits how large a request may be. Raise its limit, or lower the context size.",
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
    """The provider that an error comes from.

    Attributes:
        who: The provider's name in error texts.
        base_url: Its address.
        secrets: The key and the values of the user's own headers. They are never quoted.
        is_own: It belongs to the user who asks it, who may see its address and its words.
    """

    who: str
    base_url: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    is_own: bool = False

    def restrict(self, error: ModelError, **private: str) -> ModelError:
        """Add members for those who may change the provider. Empty ones are left out."""
        error.private = {name: value for name, value in private.items() if value}
        if self.is_own:
            error.disclose()
        return error


def find_failure(error: BaseException, source: FailureSource) -> ModelError:
    """Return the error of a request to a provider as the one that names its cause."""
    if isinstance(error, ServerError):
        return answer_failure(error, source)
    causes = list(_causes(error))
    own = next((each for each in causes if isinstance(each, ModelError)), None)
    if own is not None and source.is_own:
        own.disclose()
    return own or connection_failure(error, source)


def answer_failure(answer: ServerError, source: FailureSource) -> ModelError:
    """Return the error for an answer of a provider that is not a reply."""
    fault = read_fault(answer.body, answer.headers.get("content-type", ""))
    cause = find_cause(answer, fault)
    facts = _facts(answer, fault, source)
    words = fault.quote(source.secrets)
    match cause:
        case "overflow":
            window, needed = read_sizes(fault.text, dict(fault.numbers))
            detail = facts + _overflow_advice(window, needed)
            error: ModelError = ModelContextOverflowError(detail, window=window, needed=needed)
        case "rate_limit":
            wait = find_wait(answer.headers, fault.waits, fault.text)
            error = ModelRateLimitError(facts + _wait_advice(wait), retry_after=wait)
        case "filter":
            reason = ", ".join(code_words(*fault.reasons, secrets=source.secrets)) or next(
                iter(code_words(*fault.codes, secrets=source.secrets)), ""
            )
            advice = "Change the text, or choose another model."
            error = ModelBlockedError(facts + advice, reason=reason)
        case "redirect":
            advice = "Redirects are not followed. Set the right address for the provider."
            host = _redirect_host(answer, source)
            named = f"It leads to {host}. " if host else ""
            error = ModelRedirectError(facts + advice)
            return source.restrict(error, detail=facts + named + advice, provider_message=words)
        case _:
            kind, advice = _ADVICE[cause]
            error = kind(facts + advice)
    return source.restrict(error, provider_message=words)


def connection_failure(error: BaseException, source: FailureSource) -> ModelError:
    """Return the error for a request without an answer, or with one that ended too early."""
    causes = list(_causes(error))
    names = {type(each).__name__ for each in causes}
    who, address = source.who, show_address(source.base_url) or "the provider"
    tls = next((each for each in causes if isinstance(each, ssl.SSLError)), None)
    if names & {"UnsupportedProtocol", "InvalidURL"}:
        return ModelWrongAddressError("The address must begin with http:// or https://.")
    if any(isinstance(each, socket.gaierror) for each in causes):
        public = f"{who} cannot be found: its name has no address."
        named = f"Cannot find {address}: the name has no address. Check its spelling."
    elif tls is not None:
        hint = _tls_hint(tls)
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
    """Return the error for a reply that had begun: a lost connection cut it off.

    A cause that the provider named is kept.
    """
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


def _facts(answer: ServerError, fault: ProviderFault, source: FailureSource) -> str:
    """Status and code words, which every user may see."""
    status = find_status(answer, fault)
    words = code_words(*fault.codes, secrets=source.secrets)[:_MAX_CODES_SHOWN]
    quoted = " ".join((*([] if status is None else [str(status)]), *words))
    verb = "reported" if answer.in_stream else "answered"
    return f"{source.who} {verb} {quoted}. " if quoted else ""


def _overflow_advice(window: int | None, needed: int | None) -> str:
    shown = ""
    if needed is not None:
        shown = f"The prompt with the reply takes {needed:,} tokens. "
    if window is not None:
        shown += f"The model's window has {window:,} tokens. "
    return shown + "Lower the context size, or load the model with a larger window."


def _wait_advice(wait: float | None) -> str:
    if wait is None:
        return "Wait a moment, then try again."
    if wait < 120:  # noqa: PLR2004 - two minutes
        return f"Wait {max(1, ceil(wait))} s, then try again."
    return f"Wait {ceil(wait / 60)} minutes, then try again."


def _redirect_host(answer: ServerError, source: FailureSource) -> str:
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


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, and the members of groups among them, each once."""
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


def _tls_hint(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted. Check the address and the certificate."
    if error.reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"}:
        return "it speaks no TLS on this port. Does its address begin with http://?"
    return "the TLS handshake failed. Check the address and the port."
