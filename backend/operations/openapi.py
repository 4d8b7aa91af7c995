"""The OpenAPI document: what Litestar makes of the routes, and what holds for each of them.

A handler's `opt` says what its signature can't: `backend.http.schemas` has the names for that.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, Router
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
from backend.accounts.auth.middleware import CSRF_HEADER, PLAIN_COOKIE, PUBLIC, SECURE_COOKIE
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
from backend.http.schemas import COMMON_RAISES, EXAMPLE, FILES, PATCHES, RAISES, STREAMS
from backend.lorebooks.errors import LorebookFullError

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
EVERYWHERE: tuple[type[AppError], ...] = (
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
"""What any route may answer with."""

HOOKED: dict[str, tuple[type[AppError], ...]] = {
    "forkChat": (ChronicleFullError, LorebookFullError),
    "patchSettings": (PersonaNotFoundError,),
    "patchChatSettings": (ChronicleNotFoundError, ChronicleFullError),
}
"""What operations answer with beside what their handlers name: chats do not know the parts that
the application hooks into them."""

MADE = "$response.body#/id"
FIRST = "$response.body#/items/0/id"

GIVES: dict[str, dict[str, str]] = {
    "openChat": {"chat_id": MADE},
    "forkChat": {"chat_id": MADE},
    "listMessages": {"message_id": FIRST},
    "patchMessage": {"message_id": MADE},
    "listTurns": {"turn_id": FIRST},
    "createCharacter": {"character_id": MADE},
    "importCharacter": {"character_id": "$response.body#/character/id"},
    "createPersona": {"persona_id": MADE},
    "createPreset": {"preset_id": MADE},
    "importPreset": {"preset_id": "$response.body#/preset/id"},
    "createLorebook": {"lorebook_id": MADE},
    "importLorebook": {"lorebook_id": "$response.body#/lorebook/id"},
    "createLoreEntry": {"lorebook_id": "$request.path.lorebook_id", "entry_id": MADE},
    "createChronicle": {"chronicle_id": MADE},
    "importChronicle": {"chronicle_id": "$response.body#/chronicle_id"},
    "createChronicleEvent": {"chronicle_id": "$request.path.chronicle_id", "event_id": MADE},
    "listJobs": {"job_id": FIRST},
    "makeApiKey": {"key_id": "$response.body#/key/id"},
    "invite": {"invitation_id": MADE},
}
"""Operations whose answers give ids, by the parameters of paths that take them: they become the
document's links, to every operation that needs no other id."""

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
    """The document as JSON. No viewer: those of Litestar load their scripts from elsewhere.

    It is rendered once, in a thread, when it is first asked for; its routes do not change.
    """

    _rendering: asyncio.Task[bytes] | None = None

    async def answer(self, request: Request[Any, Any, Any]) -> Response[bytes] | None:
        """Answer before Litestar's own handler, which would build the document on the event loop.

        None for paths that are not the document's.
        """
        if request.path_params:
            return None
        if self._rendering is None:
            self._rendering = asyncio.create_task(asyncio.to_thread(self._render, request))
        # The others wait for it, even if the first one is cancelled.
        return Response(await asyncio.shield(self._rendering), media_type=self.media_type)

    def _render(self, request: Request[Any, Any, Any]) -> bytes:
        document = request.app.openapi_schema.to_schema()
        return self.render_json(request, completed(document, _options(request.app)))


def _options(app: Litestar) -> dict[str, dict[str, Any]]:
    """The `opt` of each operation, by the operation's id."""
    handlers: list[HTTPRouteHandler] = [
        handler
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler, _ in route.route_handler_map.values()
    ]
    return {operation_id(handler): handler.opt for handler in handlers}


def operation_id(handler: HTTPRouteHandler, *_: object) -> str:
    """The id of an operation: the name of its handler, unless that says otherwise."""
    if isinstance(handler.operation_id, str):
        return handler.operation_id
    first, *others = handler.handler_name.split("_")
    return first + "".join(word.capitalize() for word in others)


def completed(document: dict[str, Any], options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The document with what the operations' options say, with their problems and ways to sign in.

    Changes the document that it is given.
    """
    components: dict[str, Any] = document.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    schemas["Problem"] = PROBLEM
    components["securitySchemes"] = SECURITY
    document["security"] = [{"apiKey": []}, {"session": []}]
    for path in document.get("paths", {}).values():
        for operation in path.values():
            _complete(operation, options.get(operation["operationId"], {}), schemas)
    _link([each for path in document.get("paths", {}).values() for each in path.values()])
    # A problem has further members, which no struct can say.
    schemas["TurnView"]["properties"]["problem"] = _nullable(PROBLEM_REFERENCE)
    return document


def _complete(operation: dict[str, Any], options: dict[str, Any], schemas: dict[str, Any]) -> None:
    responses: dict[str, Any] = operation["responses"]
    # Litestar describes a 400 in a form of its own, which our answers do not have.
    responses.pop("400", None)
    if "204" in responses:
        # It has no body, whatever the handler's own answer could be.
        responses["204"].pop("content", None)
    hooked = HOOKED.get(operation["operationId"], ())
    responses |= _problems([*options.get(COMMON_RAISES, ()), *options.get(RAISES, ()), *hooked])
    responses["default"] = _problem(
        "A problem. Any route may answer with " + _slugs(EVERYWHERE) + "."
    )
    if options.get(PUBLIC):
        operation["security"] = []
    if options.get(STREAMS):
        content = responses["200"]["content"]
        other = {kind: each for kind, each in content.items() if each.get("schema")}
        responses["200"]["content"] = {EVENTS: {"schema": _event(options[STREAMS])}, **other}
    if FILES in options:
        responses["200"]["content"] = {kind: {"schema": _file(kind)} for kind in options[FILES]}
    if PATCHES in options:
        operation["requestBody"]["content"][JSON]["schema"] = _patch(options[PATCHES], schemas)
    if EXAMPLE in options:
        operation["requestBody"]["content"][JSON]["example"] = options[EXAMPLE]


def _link(operations: list[dict[str, Any]]) -> None:
    """Say of what an answer gives where it can be used."""
    needs = {
        each["operationId"]: {
            parameter["name"]
            for parameter in each.get("parameters") or ()
            if parameter["in"] == "path"
        }
        for each in operations
    }
    for operation in operations:
        gives = GIVES.get(operation["operationId"], {})
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


def _event(events: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """One of the events of a stream: its fields are text, and its `data` is JSON."""
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


def _file(kind: str) -> dict[str, Any]:
    return {"type": "object"} if kind == JSON else {"type": "string", "format": "binary"}


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
    document = SchemaDocument(path=["/", "/openapi.json"])
    return OpenAPIConfig(
        title="Talekeeper",
        version=backend.__version__,
        description="docs/reference/api.md says what holds for every route.",
        use_handler_docstrings=True,
        operation_id_creator=operation_id,
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
