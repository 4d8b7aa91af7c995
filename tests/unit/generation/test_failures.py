"""Every answer of a provider becomes the error that names its cause."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any

import pytest

from backend.generation.client.client import ServerError
from backend.generation.failures.failures import (
    FailureSource,
    convert_connection_error,
    convert_server_error,
    show_address,
)
from backend.generation.model import (
    ModelContextOverflowError,
    ModelError,
    ModelUnavailableError,
    ModelWrongAddressError,
)
from tests.fakes.provider_answers import ANSWERS, QUOTA, Seen, openai

ADDRESS = "http://127.0.0.1:8080/v1"
CLOSED = (
    f"{ADDRESS} closed the connection. Try again. If that does not help, look at the server's log, "
    "or check whether its address begins with https://."
)
UNSAFE = f"Cannot connect to {ADDRESS} safely: "
OWN = FailureSource(
    who="The server",
    base_url=ADDRESS,
    secrets=("sk-the-key-itself", "tenant-42"),
    is_own=True,
)


@pytest.mark.parametrize("seen", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_becomes_the_error_that_names_its_cause(seen: Seen) -> None:
    error = convert_server_error(
        ServerError(seen.status, seen.body, seen.headers, in_stream=seen.in_stream), OWN
    )

    assert type(error) is seen.kind
    problem = error.to_problem()
    assert {name: problem.get(name) for name in seen.extra} == seen.extra


@pytest.mark.parametrize("seen", ANSWERS.values(), ids=ANSWERS)
def test_a_body_that_ends_too_early_is_read_as_far_as_it_goes(seen: Seen) -> None:
    text = json.dumps(seen.body)

    for end in range(0, len(text), 7):
        answer = ServerError(seen.status, text[:end], seen.headers, in_stream=seen.in_stream)
        assert isinstance(convert_server_error(answer, OWN), ModelError)


def fail(status: int, body: Any, /, source: FailureSource = OWN, **headers: str) -> ModelError:
    return convert_server_error(ServerError(status, body, headers), source)


def test_the_detail_says_what_was_answered_and_the_next_step() -> None:
    error = fail(429, openai(QUOTA, type="insufficient_quota", code="insufficient_quota"))

    assert error.to_problem() == {
        "type": "urn:talekeeper:problem:model-no-credit",
        "title": "The account has no credit at the provider",
        "status": 502,
        "detail": "The server answered 429 insufficient_quota. Add credit at the provider, or "
        "choose another model.",
        "provider_message": QUOTA,
    }


def test_an_overflow_names_both_numbers() -> None:
    error = fail(
        400, openai("x", type="exceed_context_size_error", n_prompt_tokens=9000, n_ctx=4096)
    )

    assert error.detail == (
        "The server answered 400 exceed_context_size_error. The prompt with the reply takes 9,000 "
        "tokens. The model's window has 4,096 tokens. Lower the context size, or load the model "
        "with a larger window."
    )


@pytest.mark.parametrize("number", [0, -1, 10**9, True, "4096", 4096.5])
def test_a_window_that_no_model_has_is_not_reported(number: Any) -> None:
    error = fail(400, openai("x", code="context_length_exceeded", n_ctx=number))

    assert isinstance(error, ModelContextOverflowError)
    assert error.window is None


@pytest.mark.parametrize(
    ("wait", "advice"),
    [("0", "Wait 1 s,"), ("34.2", "Wait 35 s,"), ("600", "Wait 10 minutes,")],
)
def test_a_rate_limit_says_how_long_to_wait(wait: str, advice: str) -> None:
    error = convert_server_error(ServerError(429, None, {"retry-after": wait}), OWN)

    assert advice in error.detail
    assert error.headers["Retry-After"]


def test_a_redirect_names_the_host_alone() -> None:
    location = "https://user:secret@login.example/realm?key=secret#x"
    error = fail(302, "", location=location)

    assert "It leads to login.example. " in error.detail
    assert "secret" not in str(error.to_problem())


@pytest.mark.parametrize("location", ["/login", "", "http://[", "https://a b/", "x" * 9_000])
def test_a_redirect_within_the_server_names_no_host(location: str) -> None:
    assert "It leads to" not in fail(302, "", location=location).detail


def test_a_redirect_to_the_same_host_names_the_scheme() -> None:
    assert "It leads to https://127.0.0.1" in fail(301, "", location="https://127.0.0.1/v1").detail


SHARED = FailureSource(who="The server", base_url="http://10.0.0.7/v1", secrets=("sk-1",))


def test_a_shared_providers_words_and_address_are_for_administrators() -> None:
    error = fail(401, openai("Invalid API key"), SHARED)
    lost = convert_connection_error(ConnectionRefusedError(), SHARED)

    assert "provider_message" not in error.to_problem()
    assert error.to_problem(for_administrator=True)["provider_message"] == "Invalid API key"
    assert "10.0.0.7" not in str(lost.to_problem())
    assert "http://10.0.0.7/v1" in lost.to_problem(for_administrator=True)["detail"]


def test_a_shared_providers_redirect_is_named_to_administrators() -> None:
    error = fail(302, "", SHARED, location="https://inner.example/")

    assert "inner.example" not in str(error.to_problem())
    assert "inner.example" in error.to_problem(for_administrator=True)["detail"]


def caused(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


class ConnectError(Exception):
    """Named like the HTTP client's."""


class ConnectTimeout(Exception):  # noqa: N818 - likewise
    """Named like the HTTP client's."""


class ReadError(Exception):
    """Named like the HTTP client's."""


WRONG_VERSION = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
WRONG_VERSION.reason = "WRONG_VERSION_NUMBER"


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (
            caused(ConnectError(), ExceptionGroup("tries", [ConnectionRefusedError()])),
            f"Cannot connect to {ADDRESS}. Is the server running?",
        ),
        (
            caused(ConnectError(), socket.gaierror(-2, "unknown")),
            f"Cannot find {ADDRESS}: the name has no address. Check its spelling.",
        ),
        (
            ConnectTimeout(),
            f"Cannot connect to {ADDRESS}: it does not answer. Is the server running?",
        ),
        (
            caused(ConnectError(), ssl.SSLCertVerificationError("no")),
            UNSAFE + "its certificate is not trusted. Check the address and the certificate.",
        ),
        (
            caused(ConnectError(), WRONG_VERSION),
            UNSAFE + "this port does not use TLS. Does its address begin with http://?",
        ),
        (
            ReadError(),
            CLOSED,
        ),
    ],
)
def test_a_broken_connection_names_the_address_and_the_cause(
    error: BaseException, detail: str
) -> None:
    failure = convert_connection_error(error, OWN)

    assert type(failure) is ModelUnavailableError
    assert failure.detail == detail


class UnsupportedProtocol(Exception):  # noqa: N818 - likewise
    """Named like the HTTP client's."""


def test_an_address_without_a_scheme_is_said_to_lack_it() -> None:
    failure = convert_connection_error(UnsupportedProtocol(), OWN)

    assert type(failure) is ModelWrongAddressError
    assert failure.detail == "The address must begin with http:// or https://."


def test_an_unknown_fault_names_its_type() -> None:
    assert convert_connection_error(ZeroDivisionError("secret"), OWN).detail == (
        "The server does not respond (ZeroDivisionError)."
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pass@api.example:8443/v1?key=1#x", "https://api.example:8443/v1"),
        ("http://[::1]:11434/v1", "http://[::1]:11434/v1"),
        ("http://[", ""),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_secrets(url: str, shown: str) -> None:
    assert show_address(url) == shown
