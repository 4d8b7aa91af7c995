"""Shared schemas, parameters and rules of the HTTP API."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from types import GenericAlias
from typing import Annotated, Any, Generic, Protocol, Self, TypeVar, cast

import msgspec
from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter, QueryParameter
from litestar.status_codes import HTTP_304_NOT_MODIFIED
from litestar.types import Scope

from backend.errors import AppError, PreconditionFailedError, ValidationError

AnyRequest = Request[Any, Any, Any]
AnyConnection = ASGIConnection[Any, Any, Any, Any]


class RevisionView(Protocol):
    """A view of a resource that has a revision."""

    @property
    def revision(self) -> int: ...


T = TypeVar("T")
RowT = TypeVar("RowT")
ViewT = TypeVar("ViewT", bound=RevisionView)
StructT = TypeVar("StructT", bound=msgspec.Struct)

_SLICE_ITEMS = 500
"""Converting this many items takes 1 to 2 ms."""

_PLACE = re.compile(r"`\$\[(\d+)\]")
"""The index of an item in a message of msgspec."""

MAX_PAGE = 500
MAX_INTEGER = 2**31 - 1
"""The largest value of an integer column, which has 32 bits on PostgreSQL."""

PageSize = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)]
"""The `limit` of a list."""
PlaceCursor = Annotated[int | None, QueryParameter(ge=0, le=MAX_INTEGER)]
"""The `after` or `before` of a list that is paged by position."""
IfMatch = Annotated[str | None, HeaderParameter(name="If-Match", include_in_schema=False)]
"""The header of a conditional change. `docs/reference/api.md` describes it for all routes."""
IfNoneMatch = Annotated[str | None, HeaderParameter(name="If-None-Match", include_in_schema=False)]
"""The header of a request that has a version of the resource already."""

API_PREFIXES = ("/api/", "/v1/")
"""The beginnings of the paths of Talekeeper's own API, and of the OpenAI-compatible one."""

# Keys of a handler's `opt` for the OpenAPI document.
RAISES = "raises"
"""The `AppError` classes that the route can return, in addition to those of every route."""
COMMON_RAISES = "common_raises"
"""The same for all routes of a controller."""
PATCHES = "patches"
"""The struct that the route's JSON Merge Patch is applied to."""
EXAMPLE = "example"
STREAMS = "streams"
"""The events of a stream: the members of each event's data, by event name."""
CHUNKS = "chunks"
"""The struct of each event of a stream. Its events have only `data`."""
BODY = "body"
"""The struct of a JSON body that the route parses itself."""
FILES = "files"
"""The media types of the files that the route returns."""

ENDS_WITH_CLIENT = "ends_with_client"
"""True if the route's CPU-bound work stops when the client disconnects."""
BEGINS_TURN = "begins_turn"
"""True if the route starts a request to a model. A process that shuts down refuses it."""

# Keys of a handler's `opt` for the quotas.
STREAMS_BODY = "streams_body"
"""True if the route reads its body in bounded memory and checks its size. It counts as one of the
account's streams. An idempotency key identifies its requests without their bodies."""
PREVIEWS = "previews"
"""True if the route counts as one of the account's concurrent previews."""
STORES = "stores"
"""False if a writing route does not increase the account's storage. True by default."""


def find_max_body_bytes(scope: Scope) -> int:
    handler = scope["route_handler"]
    found = handler.resolve_request_max_body_size() if isinstance(handler, HTTPRouteHandler) else 0
    return found or 0


class Page(msgspec.Struct, Generic[T], kw_only=True):
    """One page of a list. `next` is the `after` of the following page; null on the last."""

    items: list[T]
    next: str | None = None


class ShownProblem(msgspec.Struct, kw_only=True, frozen=True):
    """A problem as part of another response.

    `slug` is the last part of the problem's `type`. `provider_message` is the provider's message
    without keys; empty if there is none, or if only administrators may see it.
    """

    slug: str
    title: str
    detail: str
    provider_message: str = ""

    @classmethod
    def from_error(cls, error: AppError, *, for_administrator: bool) -> Self:
        members = error.to_problem(for_administrator=for_administrator)
        return cls(
            slug=error.slug,
            title=error.title,
            detail=members.get("detail", error.title),
            provider_message=members.get("provider_message", ""),
        )


def make_struct(kind: type[StructT], source: object, /, **members: Any) -> StructT:
    for name in kind.__struct_fields__:
        if name not in members:
            members[name] = getattr(source, name)
    return kind(**members)


def convert_list(values: Any, kind: type[T], *, at: str = "$") -> list[T]:
    """Convert parsed JSON to a list of `kind` in slices, because msgspec blocks other threads.

    Raises:
        msgspec.ValidationError: The value is not such a list. The message contains the path
            below `at`.
    """
    list_kind: Any = GenericAlias(list, (kind,))
    convert: Callable[[Any], list[T]] = partial(msgspec.convert, type=list_kind, strict=True)
    if not isinstance(values, list):
        return convert(values)
    items = cast("Any", values)
    found: list[T] = []
    for start in range(0, len(items), _SLICE_ITEMS):
        try:
            found += convert(items[start : start + _SLICE_ITEMS])
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(_move_place(str(error), at, start)) from None
    return found


def _move_place(message: str, at: str, start: int) -> str:
    """Return a message of msgspec with the index of the item in the whole list."""
    return _PLACE.sub(lambda found: f"`{at}[{start + int(found[1])}]", message, count=1)


def merge_patch(current: StructT, patch: dict[str, Any]) -> StructT:
    """Apply a JSON Merge Patch (RFC 7396) to a copy. Null resets a member to its default.

    Raises `ValidationError` with the name of a member of the wrong type.
    """
    merged = _merge(msgspec.to_builtins(current), patch)
    try:
        return msgspec.convert(merged, type(current), strict=True)
    except msgspec.ValidationError as error:
        raise ValidationError(str(error)) from error


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    changes = cast("dict[str, Any]", patch)
    result = dict(cast("dict[str, Any]", target)) if isinstance(target, dict) else {}
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(result.get(key), value)
    return result


def reject_unknown(patch: dict[str, Any], known: type[msgspec.Struct] | frozenset[str]) -> None:
    names = known if isinstance(known, frozenset) else frozenset(known.__struct_encode_fields__)
    if unknown := sorted(patch.keys() - names):
        raise ValidationError(
            f"Unknown member: {', '.join(unknown)}. Known members: {', '.join(sorted(names))}.",
            extra={"unknown": unknown},
        )


def make_page(rows: Sequence[RowT], limit: int) -> tuple[list[RowT], str | None]:
    """Return a page and the cursor of the next one, from up to `limit + 1` rows with an id."""
    page = list(rows[:limit])
    last: Any = page[-1] if len(rows) > limit else None
    return page, str(last.id) if last is not None else None


def make_etag(revision: int) -> str:
    return f'"{revision}"'


def is_current(if_none_match: str | None, tag: str) -> bool:
    """True if `If-None-Match` is `*` or contains the tag. Weak and strong tags are equal."""
    known = {part.strip().removeprefix("W/") for part in (if_none_match or "").split(",")}
    return not known.isdisjoint({"*", tag.removeprefix("W/")})


def make_unchanged(headers: dict[str, str]) -> Response[Any]:
    """Return the response for a client that has the current version."""
    return Response(b"", status_code=HTTP_304_NOT_MODIFIED, headers=headers)


def tag_body(body: T, revision: int) -> Response[T]:
    """Return a response with the revision as its ETag."""
    return Response(body, headers={"ETag": make_etag(revision)})


def tag_view(view: ViewT) -> Response[ViewT]:
    return tag_body(view, view.revision)


def check_revision(if_match: str | None, revision: int) -> None:
    """Raise `PreconditionFailedError` unless `If-Match` is absent, `*`, or names the revision."""
    if if_match is None or if_match.strip() == "*":
        return
    wanted = {part.strip().removeprefix("W/") for part in if_match.split(",")}
    if make_etag(revision) not in wanted:
        raise PreconditionFailedError(
            "Read the resource again, then send your change with the new ETag.",
            extra={"revision": revision},
        )
