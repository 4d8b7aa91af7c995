from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from backend.generation._failures import code_words, failure, wait_seconds
from backend.generation.model import ModelRequestError, ModelUnavailableError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30),
        ("34.074824224s", 34.074824224),
        (" 5 ", 5),
        ("0", 0),
        ("999999999", 86_400),
        ("-3", None),
        ("soon", None),
        ("", None),
        ("nan", None),
        (None, None),
        (30, None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
    ],
)
def test_a_pause_is_read_in_every_form_it_comes_in(value: object, seconds: float | None) -> None:
    assert wait_seconds(value) == seconds


def test_a_pause_until_a_date_is_counted_from_now() -> None:
    until = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)

    assert wait_seconds(until) == pytest.approx(3600, abs=60)


def test_only_code_words_are_passed_on() -> None:
    words = code_words(
        "INVALID_ARGUMENT",
        "generation_config.stop[0]",
        "INVALID_ARGUMENT",
        "The prompt was: hello",
        "sk-the-key-itself",
        "x" * 65,
        7,
        None,
        secret="sk-the-key",
    )

    assert words == ("INVALID_ARGUMENT", "generation_config.stop[0]")


def test_without_a_status_the_model_is_unavailable() -> None:
    error = failure("Gemini", status=None, words=("ConnectTimeout",))

    assert type(error) is ModelUnavailableError
    assert error.detail == "Gemini gives no answer (ConnectTimeout)."


def test_a_prompt_that_is_too_long_is_said_to_be() -> None:
    error = failure("The server", status=400, words=("context_length_exceeded",))

    assert type(error) is ModelRequestError
    assert "too long" in error.detail
