"""Files in request bodies, read into memory.

Litestar's own form parser writes parts of more than a megabyte to temporary files, in the clear.
What a user uploads is kept sealed or not at all, so it never goes that way; the route's
`request_max_body_size` bounds what is held.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from litestar import Request
from litestar.openapi.spec import (
    OpenAPIFormat,
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    RequestBody,
    Schema,
)

# The parser that Litestar itself uses; its package has no types.
from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
)

from backend.characters.cards.limits import MAX_FILE_BYTES, MEGABYTE
from backend.errors import BadRequestError, UnsupportedMediaTypeError, ValidationError

FIELD = "file"
MAX_UPLOAD_BYTES = MAX_FILE_BYTES + MEGABYTE
"""Largest body of an upload: the file, and room for what a form puts around it."""

MULTIPART = "multipart/form-data"
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")

_MAX_PARTS = 16

AnyRequest = Request[Any, Any, Any]


async def read_file(request: AnyRequest) -> bytes:
    """The part `file` of a form.

    Raises:
        UnsupportedMediaTypeError: No `multipart/form-data`.
        BadRequestError: A broken form.
        ValidationError: The form has no `file`, or several.
    """
    media_type, options = request.content_type
    if media_type != MULTIPART:
        raise UnsupportedMediaTypeError(f"Send a form ({MULTIPART}) with a part named `{FIELD}`.")
    try:
        files = await _parts(request.stream(), options.get("boundary", ""))
    except MultipartError as error:
        raise BadRequestError("The form is broken or cut short.") from error
    if len(files) != 1:
        raise ValidationError(f"The form needs one part named `{FIELD}`; it has {len(files)}.")
    return files[0]


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


async def _parts(stream: AsyncIterator[bytes], boundary: str) -> list[bytes]:
    """Every part named `file`, in order."""
    found: list[bytes] = []
    pieces: list[bytes] = []
    wanted = False
    with PushMultipartParser(boundary, max_segment_count=_MAX_PARTS) as parser:
        async for chunk in stream:
            # The stream ends with an empty chunk, which the parser would take for the form's end.
            for event in parser.parse(chunk) if chunk else ():
                if isinstance(event, MultipartSegment):
                    wanted, pieces = event.name == FIELD, []
                elif wanted and event is not None:
                    pieces.append(bytes(event))
                elif wanted:
                    found.append(b"".join(pieces))
    return found


@dataclass
class FileOperation(Operation):
    """Tells the API's documentation about a form that the handler reads for itself."""

    def __post_init__(self) -> None:
        """Set the request's body."""
        self.request_body = RequestBody(content={MULTIPART: _form()}, required=True)


@dataclass
class ImageOperation(Operation):
    """The same for a route that takes a picture as its whole body, too."""

    def __post_init__(self) -> None:
        """Set the request's body."""
        images = {kind: OpenAPIMediaType(schema=_binary()) for kind in IMAGE_TYPES}
        self.request_body = RequestBody(content={MULTIPART: _form(), **images}, required=True)


def _form() -> OpenAPIMediaType:
    return OpenAPIMediaType(
        schema=Schema(type=OpenAPIType.OBJECT, properties={FIELD: _binary()}, required=[FIELD])
    )


def _binary() -> Schema:
    return Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
