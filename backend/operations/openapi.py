"""The OpenAPI document: Litestar's, completed with problems, streams, files and examples.

They come from the `opt` of handlers. `backend.http.schemas` defines its keys.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from litestar import Litestar, Response, Router
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.routes import HTTPRoute

import backend
from backend import errors
from backend.accounts.auth.idempotency import (
    IdempotencyKeyReusedError,
    RequestInProgressError,
    RequestInterruptedError,
)
from backend.accounts.auth.middleware import (
    CSRF_HEADER,
    NEEDS_KEY,
    PLAIN_COOKIE,
    PUBLIC,
    SECURE_COOKIE,
)
from backend.accounts.errors import (
    CrossSiteError,
    ScopeError,
    TamperedAccountError,
    UnknownHostError,
)
from backend.characters.errors import PersonaNotFoundError
from backend.chronicles.errors import ChronicleFullError, ChronicleNotFoundError
from backend.core.cpu_pool import TooMuchWorkError, WorkTimeoutError
from backend.database.engine import DatabaseUnavailableError, OvertakenError
from backend.errors import MEDIA_TYPE, AppError
from backend.http.schemas import (
    BODY,
    CHUNKS,
    COMMON_RAISES,
    EXAMPLE,
    FILES,
    PATCHES,
    RAISES,
    STREAMS,
    AnyRequest,
)
from backend.lorebooks.errors import LorebookFullError
from backend.openai_api.errors import OPENAI_PREFIX

JSON = "application/json"
EVENTS = "text/event-stream"
REFERENCE = "#/components/schemas/{name}"

PROBLEM = {
    "type": "object",
    "description": "A problem (RFC 9457). `type` is stable; docs/reference/errors.md lists all.",
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
OPENAI_ERROR = {
    "type": "object",
    "description": "An error in OpenAI's form. `code` is the last part of a problem's `type`.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string", "examples": ["invalid_request_error"]},
                "param": {"type": ["string", "null"], "examples": ["messages[0].content"]},
                "code": {"type": "string", "examples": ["invalid-parameter"]},
            },
        }
    },
}
OPENAI_ERROR_REFERENCE = {"$ref": REFERENCE.format(name="OpenAIError")}
COMMON_ERRORS: tuple[type[AppError], ...] = (
    errors.BadRequestError,
    errors.UnauthenticatedError,
    errors.ForbiddenError,
    ScopeError,
    CrossSiteError,
    UnknownHostError,
    TamperedAccountError,
    RequestInProgressError,
    RequestInterruptedError,
    OvertakenError,
    errors.TooLargeError,
    errors.UnsupportedMediaTypeError,
    errors.ValidationError,
    IdempotencyKeyReusedError,
    errors.InternalError,
    TooMuchWorkError,
    WorkTimeoutError,
    DatabaseUnavailableError,
)
"""Problems of all routes."""

HOOK_ERRORS: dict[str, tuple[type[AppError], ...]] = {
    "forkChat": (ChronicleFullError, LorebookFullError),
    "duplicateChat": (ChronicleFullError, LorebookFullError),
    "patchSettings": (PersonaNotFoundError,),
    "patchChatSettings": (ChronicleNotFoundError, ChronicleFullError),
}
"""Additional problems by operation. The container adds the services that raise them, which the
packages of these routes do not import."""

CREATED_ID = "$response.body#/id"
FIRST_ID = "$response.body#/items/0/id"

LINK_IDS: dict[str, dict[str, str]] = {
    "openChat": {"chat_id": CREATED_ID},
    "forkChat": {"chat_id": CREATED_ID},
    "duplicateChat": {"chat_id": CREATED_ID},
    "listMessages": {"message_id": FIRST_ID},
    "patchMessage": {"message_id": CREATED_ID},
    "listTurns": {"turn_id": FIRST_ID},
    "createCharacter": {"character_id": CREATED_ID},
    "importCharacter": {"character_id": "$response.body#/character/id"},
    "createPersona": {"persona_id": CREATED_ID},
    "createPreset": {"preset_id": CREATED_ID},
    "importPreset": {"preset_id": "$response.body#/preset/id"},
    "createLorebook": {"lorebook_id": CREATED_ID},
    "importLorebook": {"lorebook_id": "$response.body#/lorebook/id"},
    "createLoreEntry": {"lorebook_id": "$request.path.lorebook_id", "entry_id": CREATED_ID},
    "createChronicle": {"chronicle_id": CREATED_ID},
    "importChronicle": {"chronicle_id": "$response.body#/chronicle_id"},
    "createChronicleEvent": {"chronicle_id": "$request.path.chronicle_id", "event_id": CREATED_ID},
    "listJobs": {"job_id": FIRST_ID},
    "makeApiKey": {"key_id": "$response.body#/key/id"},
    "invite": {"invitation_id": CREATED_ID},
}
"""Path parameters that the response of an operation provides, by operation.

The document links each of them to the operations that need no other path parameter.
"""

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
    """The document as JSON. It is rendered in a thread at the first request, and then cached.

    There is no viewer, because Litestar's viewers load scripts from other hosts.
    """

    _rendering: asyncio.Task[bytes] | None = None

    async def answer(self, request: AnyRequest) -> Response[bytes] | None:
        """Respond with the document. Return None for other paths.

        Litestar's own handler would build the document on the event loop.
        """
        if request.path_params:
            return None
        if self._rendering is None:
            self._rendering = asyncio.create_task(asyncio.to_thread(self._render, request))
        # Shielded, because other requests wait for it even if this one is cancelled.
        return Response(await asyncio.shield(self._rendering), media_type=self.media_type)

    def _render(self, request: AnyRequest) -> bytes:
        document = request.app.openapi_schema.to_schema()
        return self.render_json(request, complete_document(document, _get_options(request.app)))


def _get_options(app: Litestar) -> dict[str, dict[str, Any]]:
    """Return the `opt` of each operation by operation id."""
    handlers: list[HTTPRouteHandler] = [
        handler
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler, _ in route.route_handler_map.values()
    ]
    return {make_operation_id(handler): handler.opt for handler in handlers}


def make_operation_id(handler: HTTPRouteHandler, *_: object) -> str:
    """Return the operation id of a handler: its own, or else its name in camel case."""
    if isinstance(handler.operation_id, str):
        return handler.operation_id
    first, *others = handler.handler_name.split("_")
    return first + "".join(word.capitalize() for word in others)


REST_OF_PATH = r"^[\w.:@-]+(/[\w.:@-]+)*$"


def complete_document(
    document: dict[str, Any], options: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Complete the document in place with the options, problems and sign-in methods."""
    components: dict[str, Any] = document.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    schemas |= {"Problem": PROBLEM, "OpenAIError": OPENAI_ERROR}
    components["securitySchemes"] = SECURITY
    document["security"] = [{"apiKey": []}, {"session": []}]
    for path, item in document.get("paths", {}).items():
        describe = _describe_openai_error if path.startswith(OPENAI_PREFIX) else _describe_problem
        for operation in item.values():
            _describe_path(operation)
            _complete(operation, options.get(operation["operationId"], {}), schemas, describe)
    _add_links([each for path in document.get("paths", {}).values() for each in path.values()])
    # A struct cannot describe the additional members of a problem.
    schemas["TurnView"]["properties"]["problem"] = _make_nullable(PROBLEM_REFERENCE)
    return document


def _describe_path(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path" and parameter["schema"].get("format") == "uri":
            # Litestar describes the rest of a path as a URI.
            parameter["schema"] = {"type": "string", "pattern": REST_OF_PATH}


def _complete(
    operation: dict[str, Any],
    options: dict[str, Any],
    schemas: dict[str, Any],
    describe: Callable[[str], dict[str, Any]],
) -> None:
    responses: dict[str, Any] = operation["responses"]
    # Litestar describes a 400 in a format that this API does not use.
    responses.pop("400", None)
    if "204" in responses:
        # Litestar describes a body if the handler returns a `Response`.
        responses["204"].pop("content", None)
    hooked = HOOK_ERRORS.get(operation["operationId"], ())
    responses |= _make_problems(
        [*options.get(COMMON_RAISES, ()), *options.get(RAISES, ()), *hooked], describe
    )
    responses["default"] = describe(
        "A problem. Any route may answer with " + _join_slugs(COMMON_ERRORS) + "."
    )
    if options.get(PUBLIC):
        operation["security"] = []
    if options.get(NEEDS_KEY):
        operation["security"] = [{"apiKey": []}]
    if BODY in options:
        sent: dict[str, Any] = {JSON: {"schema": _add_schema(options[BODY], schemas)}}
        operation |= {"requestBody": {"required": True, "content": sent}}
    if CHUNKS in options:
        responses["200"]["content"][EVENTS] = {"schema": _add_schema(options[CHUNKS], schemas)}
    if options.get(STREAMS):
        content = responses["200"]["content"]
        other = {kind: each for kind, each in content.items() if each.get("schema")}
        # JSON is first, because generators of typed clients use the first form.
        responses["200"]["content"] = {
            **other,
            EVENTS: {"schema": _make_event_schema(options[STREAMS])},
        }
    if FILES in options:
        responses["200"]["content"] = {
            kind: {"schema": _make_file_schema(kind)} for kind in options[FILES]
        }
    if PATCHES in options:
        operation["requestBody"]["content"][JSON]["schema"] = _make_patch_schema(
            options[PATCHES], schemas
        )
    if EXAMPLE in options:
        operation["requestBody"]["content"][JSON]["example"] = options[EXAMPLE]


def _add_links(operations: list[dict[str, Any]]) -> None:
    """Link responses to the operations that take ids from them."""
    needs = {
        each["operationId"]: {
            parameter["name"]
            for parameter in each.get("parameters") or ()
            if parameter["in"] == "path"
        }
        for each in operations
    }
    for operation in operations:
        gives = LINK_IDS.get(operation["operationId"], {})
        links = {
            target: {
                "operationId": target,
                "parameters": {name: value for name, value in gives.items() if name in names},
            }
            for target, names in needs.items()
            if names and names <= gives.keys() and target != operation["operationId"]
        }
        if links:
            answers = operation["responses"]
            next(answers[each] for each in answers if each.startswith("2"))["links"] = links


def _make_event_schema(events: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the schema of an event of a stream. Its fields are text, and its `data` is JSON."""
    return {
        "description": "One event. The stream is a sequence of them, as text (server-sent events).",
        "oneOf": [
            {
                "type": "object",
                "title": name,
                "required": ["id", "event", "data"],
                "properties": {
                    "id": {"type": "string", "pattern": "^[0-9]+$"},
                    "event": {"const": name},
                    "data": {
                        "type": "string",
                        "contentMediaType": JSON,
                        "contentSchema": {
                            "type": "object",
                            "properties": {member: {} for member in members},
                        },
                    },
                },
            }
            for name, members in events.items()
        ],
    }


def _make_file_schema(kind: str) -> dict[str, Any]:
    return {"type": "object"} if kind == JSON else {"type": "string", "format": "binary"}


def _add_schema(struct: type[msgspec.Struct], schemas: dict[str, Any]) -> dict[str, Any]:
    """Add the schemas of a struct and its members to `schemas`. Return a reference to its own."""
    [reference], components = msgspec.json.schema_components([struct], ref_template=REFERENCE)
    for name, schema in components.items():
        schemas.setdefault(name, schema)
    return reference


def _make_problems(
    kinds: Iterable[type[AppError]], describe: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """Return the responses of the errors by status."""
    by_status: dict[int, list[type[AppError]]] = defaultdict(list)
    for kind in kinds:
        by_status[kind.status].append(kind)
    return {
        str(status): describe(_join_slugs(group)) for status, group in sorted(by_status.items())
    }


def _describe_problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {MEDIA_TYPE: {"schema": PROBLEM_REFERENCE}}}


def _describe_openai_error(description: str) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": OPENAI_ERROR_REFERENCE}}}


def _join_slugs(kinds: Iterable[type[AppError]]) -> str:
    return ", ".join(f"`{kind.slug}`" for kind in kinds)


def _make_patch_schema(struct: type[msgspec.Struct], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a JSON Merge Patch, and add the schemas of its members to `schemas`."""
    _, components = msgspec.json.schema_components([struct], ref_template=REFERENCE)
    own = components.pop(struct.__name__)
    for name, schema in components.items():
        schemas.setdefault(name, schema)
    return {
        "title": f"{struct.__name__}Patch",
        "description": "A JSON Merge Patch (RFC 7396): absent stays, null is the default.",
        "type": "object",
        "properties": {name: _make_nullable(each) for name, each in own["properties"].items()},
        "additionalProperties": False,
    }


def _make_nullable(schema: dict[str, Any]) -> dict[str, Any]:
    # An absent member is kept, so the default of the struct does not apply.
    schema = {name: value for name, value in schema.items() if name != "default"}
    choices: list[Any] = schema.get("anyOf", [schema])
    null = {"type": "null"}
    return {"anyOf": [*choices, null]} if null not in choices else schema


def make_openapi_config() -> OpenAPIConfig:
    document = SchemaDocument(path=["/", "/openapi.json"])
    return OpenAPIConfig(
        title="Talekeeper",
        version=backend.__version__,
        description="docs/reference/api.md says what holds for every route.",
        use_handler_docstrings=True,
        operation_id_creator=make_operation_id,
        render_plugins=[document],
        openapi_router=Router(
            "/schema",
            route_handlers=[],
            include_in_schema=False,
            dto=None,
            return_dto=None,
            before_request=document.answer,
        ),
    )
