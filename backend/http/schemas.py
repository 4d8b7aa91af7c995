"""Shapes and rules that every part of the HTTP API shares."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from types import GenericAlias
from typing import Annotated, Any, Generic, Self, TypeVar, cast

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter
from litestar.types import Scope

from backend.errors import AppError, PreconditionFailedError, ValidationError

T = TypeVar("T")
StructT = TypeVar("StructT", bound=msgspec.Struct)


RowT = TypeVar("RowT")

_SLICE_ITEMS = 500
"""Items that are converted in a millisecond or two."""

_PLACE = re.compile(r"`\$\[(\d+)\]")
"""The place of an item in a message of msgspec."""

MAX_PAGE = 500
MAX_INTEGER = 2**31 - 1
"""The largest number that a column of integers takes: PostgreSQL's have 32 bits."""

PageSize = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)]
"""The `limit` of a list."""
PlaceCursor = Annotated[int | None, QueryParameter(ge=0, le=MAX_INTEGER)]
"""The `after` or `before` of a list that is read by position."""

# What a handler's `opt` tells the OpenAPI document beyond what its signature does.
RAISES = "raises"
"""The kinds of `AppError` that the route may answer with, beside those of every route."""
PATCHES = "patches"
"""The struct that the route's JSON Merge Patch is merged into."""
EXAMPLE = "example"
"""A body that the route takes."""
STREAMS = "streams"
"""The events that a route streams: the members of each one's data, by its name."""
FILES = "files"
"""The media types of the files that a route answers with."""

ENDS_WITH_CLIENT = "ends_with_client"
"""True if the route's work over texts stops when its client closes the connection."""
BEGINS_TURN = "begins_turn"
"""True if the route asks a model for its user. A process that is about to end refuses it."""

# What it tells the quotas.
PREVIEWS = "previews"
"""True where the route holds one of the account's previews for as long as it takes."""
STORES = "stores"
"""False where a route that writes does not make the account larger; true where it is absent."""


def find_max_body_bytes(scope: Scope) -> int:
    """The largest body, in bytes, that a request's route takes."""
    handler = scope["route_handler"]
    found = handler.resolve_request_max_body_size() if isinstance(handler, HTTPRouteHandler) else 0
    return found or 0


class Page(msgspec.Struct, Generic[T], kw_only=True):
    """One page of a list. `next` is the `after` of the following page; null on the last."""

    items: list[T]
    next: str | None = None


class ShownProblem(msgspec.Struct, kw_only=True, frozen=True):
    """A problem as part of another answer.

    `slug` is the last part of the `type` that it would have as an answer.
    `provider_message` quotes the provider's own words, without keys; empty if there are none, or
    if they are for administrators only.
    """

    slug: str
    title: str
    detail: str
    provider_message: str = ""

    @classmethod
    def from_error(cls, error: AppError, *, for_administrator: bool) -> Self:
        """Return the view of an error."""
        members = error.to_problem(for_administrator=for_administrator)
        return cls(
            slug=error.slug,
            title=error.title,
            detail=members.get("detail", error.title),
            provider_message=members.get("provider_message", ""),
        )


def make_struct(kind: type[StructT], source: object, /, **members: Any) -> StructT:
    """A struct of the members given, and of a row's attributes for all others."""
    for name in kind.__struct_fields__:
        if name not in members:
            members[name] = getattr(source, name)
    return kind(**members)


def convert_list(values: Any, kind: type[T], *, at: str = "$") -> list[T]:
    """Convert parsed JSON to a list of `kind`, strictly, a slice at a time.

    One call for all of a long list would keep other threads waiting.

    Raises:
        msgspec.ValidationError: It is no such list. The message names the place below `at`.
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
    """Return a message of msgspec with the place of an item in the whole list."""
    return _PLACE.sub(lambda found: f"`{at}[{start + int(found[1])}]", message, count=1)


def merge_patch(current: StructT, patch: dict[str, Any]) -> StructT:
    """Apply a JSON Merge Patch (RFC 7396): absent stays, null clears to the default.

    Raises `ValidationError` naming the member that is unknown or of the wrong kind. `current` is
    not changed.
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
    """Raise `ValidationError` when a patch names a member that does not exist."""
    names = known if isinstance(known, frozenset) else frozenset(known.__struct_encode_fields__)
    if unknown := sorted(patch.keys() - names):
        raise ValidationError(
            f"There is no member {', '.join(unknown)}; there are {', '.join(sorted(names))}.",
            extra={"unknown": unknown},
        )


def make_page(rows: Sequence[RowT], limit: int) -> tuple[list[RowT], str | None]:
    """(a page, where the next one begins) of rows with an id; one more than `limit` was read."""
    page = list(rows[:limit])
    last: Any = page[-1] if len(rows) > limit else None
    return page, str(last.id) if last is not None else None


def make_etag(revision: int) -> str:
    """The `ETag` of a revision."""
    return f'"{revision}"'


def check_revision(if_match: str | None, revision: int) -> None:
    """Raise `PreconditionFailedError` unless `If-Match` is absent, `*`, or names the revision."""
    if if_match is None or if_match.strip() == "*":
        return
    wanted = {part.strip().removeprefix("W/") for part in if_match.split(",")}
    if make_etag(revision) not in wanted:
        raise PreconditionFailedError(
            "Fetch it again, look at what changed, and send the change with its new ETag.",
            extra={"revision": revision},
        )
