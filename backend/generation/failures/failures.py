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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
        return convert_server_error(error, source)
    causes = list(_find_causes(error))
    own = next((each for each in causes if isinstance(each, ModelError)), None)
    if own is not None and source.is_own:
        own.disclose()
    return own or convert_connection_error(error, source)


def convert_server_error(answer: ServerError, source: FailureSource) -> ModelError:
    """Return the error for an answer of a provider that is not a reply."""
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
    """Return the error for a request without an answer, or with one that ended too early."""
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


def _describe_answer(answer: ServerError, fault: ProviderFault, source: FailureSource) -> str:
    """Status and code words, which every user may see."""
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


def _explain_tls_error(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted. Check the address and the certificate."
    if error.reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"}:
        return "it speaks no TLS on this port. Does its address begin with http://?"
    return "the TLS handshake failed. Check the address and the port."
