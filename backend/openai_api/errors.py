"""Errors in the form of OpenAI's API, which its SDKs turn into exceptions.

Paths below `/v1` use this form for all errors, also for those of middleware and routing. The slug
of the problem is the `code`. docs/reference/errors.md lists all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from litestar import Response

from backend.errors import AppError, BadRequestError, NotFoundError
from backend.generation.model import ModelError
from backend.http.responses import AnyResponse
from backend.http.schemas import AnyRequest

OPENAI_PREFIX = "/v1/"

ErrorHandlers = dict[int | type[Exception], Callable[[AnyRequest, Any], AnyResponse]]

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_INVALID_REQUEST, _SERVER_FAULT = "invalid_request_error", "server_error"
_FIRST_FAULT = 500

_NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's SDKs retry every status of 500 and above, unless this header forbids it."""


class InvalidParameterError(BadRequestError):
    """A member of a request to `/v1` is missing or invalid. `param` is its path in the body."""

    slug, title = "invalid-parameter", "Invalid parameter"

    def __init__(self, param: str, detail: str) -> None:
        super().__init__(detail, extra={"param": param})


class ModelNameNotFoundError(NotFoundError):
    """`model` is none of the names that `GET /v1/models` lists."""

    slug, title = "model-name-not-found", "Model name not found"


class ChatCompletionsOnlyError(BadRequestError):
    """Characters, chats and campaigns are available at `/v1/chat/completions` only."""

    slug, title = "chat-completions-only", "Not available at this address"


def make_error_body(error: AppError, *, for_administrator: bool = False) -> dict[str, Any]:
    """Return `{"error": {...}}` for an error."""
    return _convert_problem(error.to_problem(for_administrator=for_administrator))


def adapt_handlers(handlers: ErrorHandlers) -> ErrorHandlers:
    """Return exception handlers that respond in OpenAI's form on paths below `/v1`."""
    return {kind: _adapt(handle) for kind, handle in handlers.items()}


def _adapt(
    handle: Callable[[AnyRequest, Any], AnyResponse],
) -> Callable[[AnyRequest, Any], AnyResponse]:
    def respond(request: AnyRequest, error: Exception) -> AnyResponse:
        response = handle(request, error)
        if not request.scope["path"].startswith(OPENAI_PREFIX):
            return response
        is_final = isinstance(error, ModelError) and not error.retryable
        return Response(
            _convert_problem(response.content),
            status_code=response.status_code,
            media_type="application/json",
            headers={**response.headers, **(_NO_RETRY if is_final else {})},
        )

    return respond


def _convert_problem(problem: Mapping[str, Any]) -> dict[str, Any]:
    status = problem["status"]
    usual = _SERVER_FAULT if status >= _FIRST_FAULT else _INVALID_REQUEST
    return {
        "error": {
            "message": _write_message(problem),
            "type": _TYPES.get(status, usual),
            "param": _find_param(problem),
            "code": str(problem["type"]).rpartition(":")[2],
        }
    }


def _write_message(problem: Mapping[str, Any]) -> str:
    """Join the parts of a problem, because clients show nothing but the message."""
    title, detail, param = problem["title"], problem.get("detail", ""), _find_param(problem)
    parts = [f"{title} ({param})" if param else title]
    if detail not in {"", title}:
        parts.append(detail)
    if quoted := problem.get("provider_message"):
        parts.append(f"The provider's message: {quoted}")
    if error_id := problem.get("error_id"):
        parts.append(f"Error id: {error_id}")
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts)


def _find_param(problem: Mapping[str, Any]) -> str | None:
    if "param" in problem:
        return str(problem["param"]) or None
    faults = problem.get("errors")
    return str(faults[0]["member"]) or None if faults else None
