"""Uploads of imports: bodies of requests that are streamed to sealed files on disk.

A file is readable only with its user's key. It is renamed when it is complete, so that a broken
upload leaves nothing that looks like one.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from email.message import Message
from email.utils import collapse_rfc2231_value
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from litestar.exceptions import InternalServerException

# The parser of Litestar itself.
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from backend.characters.uploads import FIELD, MULTIPART
from backend.core.cpu_pool import ClientGoneError
from backend.core.logs import get_logger
from backend.core.operating_system import sync_folder
from backend.database.base import new_id
from backend.errors import (
    BadRequestError,
    TooLargeError,
    UnavailableError,
    UnsupportedMediaTypeError,
    ValidationError,
)
from backend.http.schemas import AnyRequest
from backend.settings import Settings
from backend.vault.sealed_files import SealedFileReader, SealedFileWriter
from backend.vault.sealing import Column, Sealer

log = get_logger(__name__)

UPLOAD = Column("imports", "upload")
"""The place that the blocks of an upload are sealed for."""

WRITE_BYTES = 1024 * 1024
"""Bytes that are written together, in a thread."""
CHECK_BYTES = 64 * 1024 * 1024
"""The storage quota is checked again after this many bytes."""
FORM_BYTES = 1024 * 1024
"""Space in a body for the form around a file."""
ABANDONED_SECONDS = 3600.0
"""Time after its last write from which a file without an import is deleted."""
MAX_NAME_CHARACTERS = 255

_FORM_TYPES = frozenset({"application/x-www-form-urlencoded", "multipart/mixed"})
_MAX_PARTS = 16
_SUFFIX = ".upload"
_INCOMPLETE_SUFFIX = ".incoming"
_DEFAULT_NAME = "import"

CheckRoom = Callable[[int], Awaitable[None]]
"""Raises an `AppError` if the account has no room for this many bytes of uploads."""


class UploadNotStoredError(UnavailableError):
    """The server could not write the upload to its disk."""

    slug, title = "upload-not-stored", "The upload could not be stored"


@dataclass(frozen=True, slots=True)
class ImportUpload:
    """A complete upload. `size` is in bytes, `name` without folders."""

    id: UUID
    name: str
    size: int


class UploadStore:
    """The folder of uploads. Processes that run jobs share it."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.transfers_dir
        self._max_bytes = settings.max_import_bytes
        self._pending: Counter[UUID] = Counter()

    async def receive(
        self, request: AnyRequest, sealer: Sealer, *, name: str, check_room: CheckRoom
    ) -> ImportUpload:
        """Store the file of a request: the part `file` of a form, or the whole body.

        `name` takes precedence over the name in the request. After an error, no file is left.

        Raises:
            TooLargeError: The file exceeds `TALEKEEPER_MAX_IMPORT_BYTES`.
            UnsupportedMediaTypeError: The body is another kind of form.
            BadRequestError: The form is malformed, or the client has gone.
            ValidationError: The form has no part `file` or several, or the file is empty.
            UploadNotStoredError: The disk is full or fails.
        """
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._max_bytes + FORM_BYTES:
            raise self._make_too_large_error()
        upload_id, body = new_id(), _Body(request)
        incoming = self._path(upload_id, _INCOMPLETE_SUFFIX)
        try:
            size = await self._write(incoming, upload_id, sealer, body.read(), check_room)
            await asyncio.to_thread(_rename, incoming, self._path(upload_id))
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(incoming.unlink, missing_ok=True))
            if isinstance(error, OSError):
                raise UploadNotStoredError(
                    "The disk of the server is full or fails. Nothing was imported."
                ) from error
            raise
        return ImportUpload(upload_id, _clean_name(name or body.name), size)

    def has(self, upload_id: UUID) -> bool:
        return self._path(upload_id).exists()

    def open(self, upload_id: UUID, sealer: Sealer) -> BinaryIO:
        """Return the content of an upload. Raises `OSError` and `SealBrokenError`."""
        raw = SealedFileReader(self._path(upload_id), sealer, UPLOAD, upload_id)
        return io.BufferedReader(raw, WRITE_BYTES)

    def delete(self, upload_id: UUID) -> None:
        """Delete an upload. Idempotent."""
        with contextlib.suppress(OSError):  # another system may have it open: swept later
            self._path(upload_id).unlink(missing_ok=True)

    def list_ids(self) -> list[UUID]:
        """Return the ids of the complete uploads that were written an hour ago or earlier."""
        return [UUID(path.stem) for path in self._list_old(_SUFFIX)]

    def delete_broken(self) -> None:
        """Delete files of uploads that were broken by the end of their process."""
        for path in self._list_old(_INCOMPLETE_SUFFIX):
            path.unlink(missing_ok=True)

    def _list_old(self, suffix: str) -> list[Path]:
        if not self._folder.is_dir():
            return []
        found: list[Path] = []
        for path in self._folder.glob(f"*{suffix}"):
            with contextlib.suppress(OSError, ValueError):  # deleted since, or another file
                UUID(path.stem)
                if time.time() - path.stat().st_mtime >= ABANDONED_SECONDS:
                    found.append(path)
        return found

    async def _write(
        self,
        path: Path,
        upload_id: UUID,
        sealer: Sealer,
        pieces: AsyncIterator[bytes],
        check_room: CheckRoom,
    ) -> int:
        writer = await asyncio.to_thread(SealedFileWriter, path, sealer, UPLOAD, upload_id)
        waiting, received, checked, owner_id = bytearray(), 0, 0, sealer.user_id
        try:
            async for piece in pieces:
                waiting += piece
                received += len(piece)
                self._pending[owner_id] += len(piece)
                if received > self._max_bytes:
                    raise self._make_too_large_error()
                if len(waiting) < WRITE_BYTES:
                    continue
                await asyncio.to_thread(writer.write, bytes(waiting))
                waiting.clear()
                if received - checked >= CHECK_BYTES:
                    checked = received
                    await check_room(self._pending[owner_id])
            if not received:
                raise ValidationError("The file is empty.")
            await check_room(self._pending[owner_id])
            await asyncio.to_thread(writer.write, bytes(waiting))
            return await asyncio.to_thread(writer.finish)
        finally:
            self._pending[owner_id] -= received
            if not self._pending[owner_id]:
                del self._pending[owner_id]
            writer.close()

    def _path(self, upload_id: UUID, suffix: str = _SUFFIX) -> Path:
        return self._folder / f"{upload_id}{suffix}"

    def _make_too_large_error(self) -> TooLargeError:
        return TooLargeError(
            f"The file has more than {self._max_bytes:,} bytes. Import a part of the folder, or "
            "ask the administrator to raise TALEKEEPER_MAX_IMPORT_BYTES or to use `talekeeper "
            "import`.",
            extra={"limit": "import_bytes", "allowed": self._max_bytes},
        )


class _Body:
    """The file in the body of a request. `name` is known when it has been read."""

    def __init__(self, request: AnyRequest) -> None:
        self._request = request
        self.name = ""

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the file in pieces."""
        media_type, options = self._request.content_type
        if media_type in _FORM_TYPES:
            raise UnsupportedMediaTypeError(
                f"Send the file itself, or a form ({MULTIPART}) with a part named `{FIELD}`."
            )
        try:
            if media_type == MULTIPART:
                async for piece in self._read_form(options.get("boundary", "")):
                    yield piece
                return
            self.name = _read_disposition(self._request.headers.get("content-disposition", ""))
            async for chunk in self._request.stream():
                if chunk:
                    yield chunk
        except MultipartError as error:
            raise BadRequestError("The form is malformed or truncated.") from error
        except InternalServerException as error:  # Litestar's error for a lost connection
            raise ClientGoneError from error

    async def _read_form(self, boundary: str) -> AsyncIterator[bytes]:
        files, others, is_file = 0, 0, False
        with PushMultipartParser(boundary, max_segment_count=_MAX_PARTS) as parser:
            async for chunk in self._request.stream():
                # The parser would treat an empty chunk as the end of the form.
                for event in parser.parse(chunk) if chunk else ():
                    if isinstance(event, MultipartSegment):
                        is_file = event.name == FIELD
                        files += is_file
                        if files > 1:
                            raise _make_parts_error(files)
                        self.name = (event.filename or "") if is_file else self.name
                    elif event is not None and is_file:
                        yield bytes(event)
                    elif event is not None:
                        others += len(event)
                        if others > FORM_BYTES:
                            raise BadRequestError("The other parts of the form are too large.")
        if files != 1:
            raise _make_parts_error(files)


def _read_disposition(value: str) -> str:
    """Return the file name in a header `Content-Disposition`, or an empty string."""
    message = Message()
    message["content-disposition"] = value.replace("\r", " ").replace("\n", " ")
    found = message.get_filename()
    return collapse_rfc2231_value(found) if found else ""


def _clean_name(name: str) -> str:
    """Return the last part of a name that a client sent, or a default."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    shown = "".join(char for char in last if char.isprintable()).strip()
    return shown[:MAX_NAME_CHARACTERS] or _DEFAULT_NAME


def _make_parts_error(found: int) -> ValidationError:
    return ValidationError(f"The form needs one part named `{FIELD}`; it has {found}.")


def _rename(incoming: Path, path: Path) -> None:
    incoming.rename(path)
    sync_folder(path.parent)
