"""Shapes and rules that every part of the HTTP API shares."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import msgspec

from backend.errors import PreconditionFailedError, ValidationError

T = TypeVar("T")
StructT = TypeVar("StructT", bound=msgspec.Struct)

MAX_PAGE = 500

# What a handler's `opt` tells the OpenAPI document beyond what its signature does.
RAISES = "raises"
"""The kinds of `AppError` that the route may answer with, beside those of every route."""
PATCHES = "patches"
"""The struct that the route's JSON Merge Patch is merged into."""
EXAMPLE = "example"
"""A body that the route takes."""
STREAMS = "streams"
"""True where the route answers with server-sent events."""


class Page(msgspec.Struct, Generic[T], kw_only=True):
    """One page of a list. `next` is the `after` of the following page; null on the last."""

    items: list[T]
    next: str | None = None


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


def etag(revision: int) -> str:
    """The `ETag` of a revision."""
    return f'"{revision}"'


def check_revision(if_match: str | None, revision: int) -> None:
    """Raise `PreconditionFailedError` unless `If-Match` is absent, `*`, or names the revision."""
    if if_match is None or if_match.strip() == "*":
        return
    wanted = {part.strip().removeprefix("W/") for part in if_match.split(",")}
    if etag(revision) not in wanted:
        raise PreconditionFailedError(
            "Fetch it again, look at what changed, and send the change with its new ETag.",
            extra={"revision": revision},
        )


def page_limit(limit: int) -> int:
    """`limit` when it is a page size; raises `ValidationError` otherwise."""
    if not 1 <= limit <= MAX_PAGE:
        raise ValidationError(f"limit must be from 1 to {MAX_PAGE}.")
    return limit
