"""Read uploaded files into memory, and build responses with files.

Litestar's own form parser writes parts of more than a megabyte to temporary files, unencrypted.
This module reads forms itself, because user data must never be written in plain text. The route's
`request_max_body_size` limits the memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from litestar import Response
from litestar.openapi.spec import (
    OpenAPIFormat,
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    RequestBody,
    Schema,
)

# The parser of Litestar itself.
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from backend.characters.avatars import Picture
from backend.characters.card_rows import FileDownload
from backend.characters.cards.model import MAX_FILE_BYTES, MEGABYTE
from backend.errors import BadRequestError, UnsupportedMediaTypeError, ValidationError
from backend.generation.images import IMAGE_TYPES
from backend.http.schemas import AnyRequest, is_current, make_unchanged

FIELD = "file"
NAME_FIELD = "name"
MAX_UPLOAD_BYTES = MAX_FILE_BYTES + MEGABYTE
"""Limit of the body of an upload: the file, and space for the form around it."""

MULTIPART = "multipart/form-data"

_MAX_PARTS = 16


@dataclass(frozen=True, slots=True)
class Upload:
    """A file from a form, its file name, and the form's part `name`, if any."""

    data: bytes
    filename: str = ""
    name: str = ""


async def read_file(request: AnyRequest) -> bytes:
    return (await read_upload(request)).data


async def read_upload(request: AnyRequest) -> Upload:
    """Return the part `file` of a form, and its part `name`.

    Raises:
        UnsupportedMediaTypeError: The body is not `multipart/form-data`.
        BadRequestError: The form is malformed.
        ValidationError: The form has no `file` or several, or `name` is not UTF-8.
    """
    media_type, options = request.content_type
    if media_type != MULTIPART:
        raise UnsupportedMediaTypeError(f"Send a form ({MULTIPART}) with a part named `{FIELD}`.")
    try:
        parts = await _read_parts(request.stream(), options.get("boundary", ""))
    except MultipartError as error:
        raise BadRequestError("The form is malformed or truncated.") from error
    files = [part for part in parts if part.name == FIELD]
    if len(files) != 1:
        raise ValidationError(f"The form needs one part named `{FIELD}`; it has {len(files)}.")
    names = [part.data for part in parts if part.name == NAME_FIELD]
    try:
        name = names[-1].decode() if names else ""
    except UnicodeDecodeError as error:
        raise ValidationError(f"The form's `{NAME_FIELD}` is not UTF-8.") from error
    return Upload(files[0].data, files[0].filename, name)


async def read_image(request: AnyRequest) -> bytes:
    """Return the part `file` of a form, or the whole body if its media type is a picture's."""
    media_type, _ = request.content_type
    if media_type in IMAGE_TYPES:
        return await request.body()
    if media_type != MULTIPART:
        raise UnsupportedMediaTypeError(
            f"Send the picture itself ({', '.join(IMAGE_TYPES)}), or a form ({MULTIPART}) with a "
            f"part named `{FIELD}`."
        )
    return await read_file(request)


async def _read_parts(stream: AsyncIterator[bytes], boundary: str) -> list[Upload]:
    """Return the parts named `file` or `name`, in order. `Upload.name` is the name of the part."""
    found: list[Upload] = []
    pieces: list[bytes] = []
    segment: MultipartSegment | None = None
    with PushMultipartParser(boundary, max_segment_count=_MAX_PARTS) as parser:
        async for chunk in stream:
            # The stream ends with an empty chunk. The parser would treat it as the end of the form.
            for event in parser.parse(chunk) if chunk else ():
                if isinstance(event, MultipartSegment):
                    segment = event if event.name in {FIELD, NAME_FIELD} else None
                    pieces = []
                elif segment is not None and event is not None:
                    pieces.append(bytes(event))
                elif segment is not None:
                    data = b"".join(pieces)
                    found.append(Upload(data, segment.filename or "", segment.name or ""))
    return found


@dataclass
class FileOperation(Operation):
    """Documents a form that the handler reads itself."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(content={MULTIPART: _make_form_type()}, required=True)


@dataclass
class NamedFileOperation(Operation):
    """Documents a form that may have a part `name`."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(
            content={MULTIPART: _make_form_type(named=True)}, required=True
        )


@dataclass
class ImageOperation(Operation):
    """Documents a form or a whole body that is a picture."""

    def __post_init__(self) -> None:
        images = {kind: OpenAPIMediaType(schema=_make_binary_schema()) for kind in IMAGE_TYPES}
        self.request_body = RequestBody(
            content={MULTIPART: _make_form_type(), **images}, required=True
        )


def _make_form_type(*, named: bool = False) -> OpenAPIMediaType:
    name = {NAME_FIELD: Schema(type=OpenAPIType.STRING)} if named else {}
    return OpenAPIMediaType(
        schema=Schema(
            type=OpenAPIType.OBJECT,
            properties={FIELD: _make_binary_schema(), **name},
            required=[FIELD],
        )
    )


def _make_binary_schema() -> Schema:
    return Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)


_NOSNIFF = {"X-Content-Type-Options": "nosniff"}


def make_picture_response(request: AnyRequest, picture: Picture) -> Response[bytes]:
    """Return a picture that browsers cache and revalidate, or 304 if the client has it."""
    tag = f'"{picture.tag}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", **_NOSNIFF}
    if is_current(request.headers.get("if-none-match"), tag):
        return make_unchanged(headers)
    return Response(picture.data, media_type=picture.media_type, headers=headers)


def make_file_response(file: FileDownload) -> Response[bytes]:
    """Return a file that a browser downloads without displaying it."""
    headers = {"Content-Disposition": file.disposition, **_NOSNIFF}
    return Response(file.data, media_type=file.media_type, headers=headers)
