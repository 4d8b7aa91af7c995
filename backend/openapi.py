"""The OpenAPI document: what Litestar makes of the routes, and what holds for each of them."""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

import backend
from backend.accounts.door import CSRF_HEADER, PLAIN_COOKIE, SECURE_COOKIE
from backend.errors import MEDIA_TYPE

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
        return super().render(request, completed(openapi_schema))


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with a problem as every operation's other answer, and the ways to sign in."""
    components: dict[str, Any] = document.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = PROBLEM
    components["securitySchemes"] = SECURITY
    answer = {
        "description": "A problem",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for path in document.get("paths", {}).values():
        for operation in path.values():
            # Litestar describes a 400 in a form of its own, which our answers do not have.
            operation["responses"].pop("400", None)
            operation["responses"]["default"] = answer
    document["security"] = [{"apiKey": []}, {"session": []}]
    return document


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
