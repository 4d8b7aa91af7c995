"""The OpenAPI document: what Litestar makes of the routes, and what holds for each of them.

A handler's `opt` says what its signature can't: `backend.wire` has the names for that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
from litestar import Litestar, Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.routes import HTTPRoute

import backend
from backend import errors
from backend.accounts.door import CSRF_HEADER, PLAIN_COOKIE, PUBLIC, SECURE_COOKIE
from backend.accounts.errors import (
    CrossSiteError,
    ScopeError,
    TamperedAccountError,
    UnknownHostError,
)
from backend.accounts.idempotency import IdempotencyKeyReusedError, RequestInProgressError
from backend.chronicles.errors import ChronicleFullError, ChronicleNotFoundError
from backend.database.engine import DatabaseUnavailableError
from backend.errors import MEDIA_TYPE, AppError
from backend.lorebooks.errors import LorebookFullError
from backend.wire import EXAMPLE, PATCHES, RAISES, STREAMS

JSON = "application/json"
EVENTS = "text/event-stream"
REFERENCE = "#/components/schemas/{name}"

PROBLEM = {
    "type": "object",
    "description": "What went wrong (RFC 9457). `type` is stable; docs/errors.md lists them all.",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:talekeeper:problem:chat-not-found"]},
        "title": {"type": "string", "examples": ["No such chat"]},
        "status": {"type": "integer", "examples": [404]},
        "detail": {"type": "string", "description": "What happened, and what to do about it."},
    },
    "additionalProperties": True,
}
PROBLEM_REFERENCE = {"$ref": REFERENCE.format(name="Problem")}
EVERYWHERE: tuple[type[AppError], ...] = (
    errors.BadRequestError,
    errors.UnauthenticatedError,
    errors.ForbiddenError,
    ScopeError,
    CrossSiteError,
    UnknownHostError,
    TamperedAccountError,
    RequestInProgressError,
    errors.TooLargeError,
    errors.UnsupportedMediaTypeError,
    errors.ValidationError,
    IdempotencyKeyReusedError,
    errors.InternalError,
    DatabaseUnavailableError,
)
"""What any route may answer with."""

HOOKED: dict[str, tuple[type[AppError], ...]] = {
    "forkChat": (ChronicleFullError, LorebookFullError),
    "patchChatSettings": (ChronicleNotFoundError, ChronicleFullError),
}
"""What operations answer with beside what their handlers name: chats do not know the parts that
the application hooks into them."""

SECURITY = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, `tk_...`."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": PLAIN_COOKIE,
        "description": (
            f"A session; over https its cookie is {SECURE_COOKIE}. All but GET also needs the "
            f"header {CSRF_HEADER}."
        ),
    },
}


class SchemaDocument(JsonRenderPlugin):
    """The document as JSON. No viewer: those of Litestar load their scripts from elsewhere."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The document, every operation with its errors and how to sign in."""
        return super().render(request, completed(openapi_schema, _options(request.app)))


def _options(app: Litestar) -> dict[str, dict[str, Any]]:
    """The `opt` of each operation, by the operation's id."""
    handlers: list[HTTPRouteHandler] = [
        handler
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler, _ in route.route_handler_map.values()
    ]
    return {str(handler.operation_id): handler.opt for handler in handlers}


def completed(document: dict[str, Any], options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The document with what the operations' options say, with their problems and ways to sign in.

    Litestar gives the same document each time: what is added once is added again unchanged.
    """
    components: dict[str, Any] = document.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    schemas["Problem"] = PROBLEM
    components["securitySchemes"] = SECURITY
    document["security"] = [{"apiKey": []}, {"session": []}]
    for path in document.get("paths", {}).values():
        for operation in path.values():
            _complete(operation, options.get(operation["operationId"], {}), schemas)
    # A problem has further members, which no struct can say.
    schemas["TurnView"]["properties"]["problem"] = _nullable(PROBLEM_REFERENCE)
    return document


def _complete(operation: dict[str, Any], options: dict[str, Any], schemas: dict[str, Any]) -> None:
    responses: dict[str, Any] = operation["responses"]
    # Litestar describes a 400 in a form of its own, which our answers do not have.
    responses.pop("400", None)
    hooked = HOOKED.get(operation["operationId"], ())
    responses |= _problems([*options.get(RAISES, ()), *hooked])
    responses["default"] = _problem(
        "A problem. Any route may answer with " + _slugs(EVERYWHERE) + "."
    )
    if options.get(PUBLIC):
        operation["security"] = []
    if options.get(STREAMS):
        content = responses["200"]["content"]
        other = {kind: each for kind, each in content.items() if each.get("schema")}
        responses["200"]["content"] = {EVENTS: {"schema": {"type": "string"}}, **other}
    if PATCHES in options:
        operation["requestBody"]["content"][JSON]["schema"] = _patch(options[PATCHES], schemas)
    if EXAMPLE in options:
        operation["requestBody"]["content"][JSON]["example"] = options[EXAMPLE]


def _problems(kinds: Iterable[type[AppError]]) -> dict[str, Any]:
    """A response for each status that the kinds have."""
    by_status: dict[int, list[type[AppError]]] = defaultdict(list)
    for kind in kinds:
        by_status[kind.status].append(kind)
    return {str(status): _problem(_slugs(group)) for status, group in sorted(by_status.items())}


def _problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {MEDIA_TYPE: {"schema": PROBLEM_REFERENCE}}}


def _slugs(kinds: Iterable[type[AppError]]) -> str:
    return ", ".join(f"`{kind.slug}`" for kind in kinds)


def _patch(struct: type[msgspec.Struct], schemas: dict[str, Any]) -> dict[str, Any]:
    """A JSON Merge Patch of a struct: each member may be absent, or null for its default."""
    _, components = msgspec.json.schema_components([struct], ref_template=REFERENCE)
    own = components.pop(struct.__name__)
    for name, schema in components.items():
        schemas.setdefault(name, schema)
    return {
        "title": f"{struct.__name__}Patch",
        "description": "A JSON Merge Patch (RFC 7396): absent stays, null is the default.",
        "type": "object",
        "properties": {name: _nullable(each) for name, each in own["properties"].items()},
        "additionalProperties": False,
    }


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    # A default would say what becomes of an absent member, which stays as it is.
    schema = {name: value for name, value in schema.items() if name != "default"}
    choices: list[Any] = schema.get("anyOf", [schema])
    null = {"type": "null"}
    return {"anyOf": [*choices, null]} if null not in choices else schema


def openapi_config() -> OpenAPIConfig:
    """Where the document is, and what it says of itself."""
    return OpenAPIConfig(
        title="Talekeeper",
        version=backend.__version__,
        description="docs/api.md says what holds for every route.",
        path="/schema",
        use_handler_docstrings=True,
        render_plugins=[SchemaDocument(path=["/", "/openapi.json"])],
    )
