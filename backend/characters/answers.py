"""Answers of the characters' routes that are no JSON: pictures, and files to download."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.status_codes import HTTP_304_NOT_MODIFIED

from backend.characters.avatars import Picture
from backend.characters.exporting import ExportedFile

_NOSNIFF = {"X-Content-Type-Options": "nosniff"}


def picture_answer(request: Request[Any, Any, Any], picture: Picture) -> Response[bytes]:
    """A picture that a browser may keep, and asks about before it shows it again; else 304."""
    tag = f'"{picture.tag}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", **_NOSNIFF}
    known = {part.strip().removeprefix("W/") for part in _known(request).split(",")}
    if tag in known or "*" in known:
        return Response(b"", status_code=HTTP_304_NOT_MODIFIED, headers=headers)
    return Response(picture.data, media_type=picture.media_type, headers=headers)


def file_answer(file: ExportedFile) -> Response[bytes]:
    """A file that a browser saves and does not show."""
    headers = {"Content-Disposition": file.disposition, **_NOSNIFF}
    return Response(file.data, media_type=file.media_type, headers=headers)


def _known(request: Request[Any, Any, Any]) -> str:
    return request.headers.get("if-none-match", "")
