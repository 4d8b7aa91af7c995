"""Tests of errors in OpenAI's form."""

from __future__ import annotations

import pytest

from backend import errors
from backend.errors import AppError
from backend.generation.model import ModelAuthError, ModelRateLimitError
from backend.openai_api.errors import InvalidParameterError, make_error_body


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (errors.BadRequestError(), "invalid_request_error", "bad-request"),
        (errors.UnauthenticatedError(), "authentication_error", "unauthenticated"),
        (errors.ForbiddenError(), "permission_error", "forbidden"),
        (errors.NotFoundError(), "invalid_request_error", "not-found"),
        (errors.TooLargeError(), "invalid_request_error", "too-large"),
        (errors.ValidationError(), "invalid_request_error", "validation-failed"),
        (errors.TooManyRequestsError(retry_after=5), "rate_limit_error", "too-many-requests"),
        (errors.UnavailableError(), "server_error", "unavailable"),
        (ModelRateLimitError(retry_after=2), "server_error", "model-rate-limited"),
    ],
)
def test_the_type_follows_from_the_status_and_the_code_is_the_slug(
    error: AppError, kind: str, code: str
) -> None:
    body = make_error_body(error)["error"]
    assert (body["type"], body["code"], body["param"]) == (kind, code, None)
    assert body["message"].endswith(".")


def test_the_message_names_the_parameter_and_what_to_do() -> None:
    body = make_error_body(InvalidParameterError("messages[0].role", "Send `user`."))["error"]
    assert body["message"] == "Invalid parameter (messages[0].role). Send `user`."
    assert body["param"] == "messages[0].role"


def test_only_administrators_see_what_the_provider_of_the_installation_says() -> None:
    error = ModelAuthError("Check the key.")
    error.private = {"provider_message": "Key 7 has expired"}
    assert "Key 7" not in make_error_body(error)["error"]["message"]
    shown = make_error_body(error, for_administrator=True)["error"]["message"]
    assert shown.endswith("Check the key. The provider's message: Key 7 has expired.")
