"""Files in request bodies, read into memory, and files in responses.

Litestar's own form parser writes parts of more than a megabyte to temporary files, in the clear.
What a user uploads is kept sealed or not at all, so it never goes that way; the route's
`request_max_body_size` bounds what is held.
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
from litestar.status_codes import HTTP_304_NOT_MODIFIED

# The parser that Litestar itself uses; its package has no types.
from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
)

from backend.characters.avatars import Picture
from backend.characters.cards.model import MAX_FILE_BYTES, MEGABYTE
from backend.characters.exporting import ExportedFile
from backend.errors import BadRequestError, UnsupportedMediaTypeError, ValidationError
from backend.http.schemas import AnyRequest

FIELD = "file"
NAME_FIELD = "name"
MAX_UPLOAD_BYTES = MAX_FILE_BYTES + MEGABYTE
"""Largest body of an upload: the file, and room for what a form puts around it."""

MULTIPART = "multipart/form-data"
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")

_MAX_PARTS = 16


@dataclass(frozen=True, slots=True)
class Upload:
    """A file out of a form: what it is called, and what the form's part `name` says, if any."""

    data: bytes
    filename: str = ""
    name: str = ""


async def read_file(request: AnyRequest) -> bytes:
    """The part `file` of a form. Raises as `read_upload` does."""
    return (await read_upload(request)).data


async def read_upload(request: AnyRequest) -> Upload:
    """The part `file` of a form, and its part `name`.

    Raises:
        UnsupportedMediaTypeError: No `multipart/form-data`.
        BadRequestError: A broken form.
        ValidationError: The form has no `file`, or several; its `name` is no text.
    """
    media_type, options = request.content_type
    if media_type != MULTIPART:
        raise UnsupportedMediaTypeError(f"Send a form ({MULTIPART}) with a part named `{FIELD}`.")
    try:
        parts = await _parts(request.stream(), options.get("boundary", ""))
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
    """The part `file` of a form, or the whole body where it is a picture by its media type.

    Raises as `read_file` does.
    """
    media_type, _ = request.content_type
    if media_type in IMAGE_TYPES:
        return await request.body()
    if media_type != MULTIPART:
        raise UnsupportedMediaTypeError(
            f"Send the picture itself ({', '.join(IMAGE_TYPES)}), or a form ({MULTIPART}) with a "
            f"part named `{FIELD}`."
        )
    return await read_file(request)


async def _parts(stream: AsyncIterator[bytes], boundary: str) -> list[Upload]:
    """Every part named `file` or `name`, in order; their own names are in `name`."""
    found: list[Upload] = []
    pieces: list[bytes] = []
    segment: MultipartSegment | None = None
    with PushMultipartParser(boundary, max_segment_count=_MAX_PARTS) as parser:
        async for chunk in stream:
            # The stream ends with an empty chunk, which the parser would take for the form's end.
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
    """Tells the API's documentation about a form that the handler reads for itself."""

    def __post_init__(self) -> None:
        """Set the request's body."""
        self.request_body = RequestBody(content={MULTIPART: _form()}, required=True)


@dataclass
class NamedFileOperation(Operation):
    """The same for a form that may have a `name`, too."""

    def __post_init__(self) -> None:
        """Set the request's body."""
        self.request_body = RequestBody(content={MULTIPART: _form(named=True)}, required=True)


@dataclass
class ImageOperation(Operation):
    """The same for a route that takes a picture as its whole body, too."""

    def __post_init__(self) -> None:
        """Set the request's body."""
        images = {kind: OpenAPIMediaType(schema=_binary()) for kind in IMAGE_TYPES}
        self.request_body = RequestBody(content={MULTIPART: _form(), **images}, required=True)


def _form(*, named: bool = False) -> OpenAPIMediaType:
    name = {NAME_FIELD: Schema(type=OpenAPIType.STRING)} if named else {}
    return OpenAPIMediaType(
        schema=Schema(
            type=OpenAPIType.OBJECT, properties={FIELD: _binary(), **name}, required=[FIELD]
        )
    )


def _binary() -> Schema:
    return Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)


_NOSNIFF = {"X-Content-Type-Options": "nosniff"}


def picture_answer(request: AnyRequest, picture: Picture) -> Response[bytes]:
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


def _known(request: AnyRequest) -> str:
    return request.headers.get("if-none-match", "")
