"""Export a chat as a stream: SillyTavern's JSONL, Markdown, plain text, an archive, or a group.

An archive is a zip: `chat.jsonl` has all branches (`chats.transfer`), `files/` the pictures and
files of messages, `background.webp` its background, and `sillytavern.jsonl` the active path for
other programs. A group is a zip with the folders of a SillyTavern user: the group, its chat, and
the cards of its members.
"""

from __future__ import annotations

import mimetypes
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol
from uuid import UUID

import msgspec

from backend.accounts.auth.identity import Identity
from backend.characters.card_rows import FileDownload, format_disposition
from backend.characters.cards.writer import ExportSpec as CardSpec
from backend.characters.errors import CharacterNotFoundError
from backend.characters.schemas import ExportFormat as CardFormat
from backend.chats.files import FileDescription
from backend.chats.models import FILE_DATA
from backend.chats.transfer import LogFile, LogHead, make_head, make_line
from backend.core.audience import GM, Viewpoint
from backend.core.cpu_pool import SEALED_FACTOR, CpuPool
from backend.core.files import file_stem
from backend.core.zip_files import ZipStream
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.transfer.chats.stored_chat import StoredChat, StoredChatReader, StoredReference
from backend.transfer.folders.groups import write_group
from backend.transfer.folders.layout import CHARACTERS, GROUP_CHATS, GROUPS
from backend.transfer.formats.chat_file import ChatHead, FileMessage
from backend.transfer.formats.sillytavern import write_sillytavern
from backend.transfer.formats.transcript import write_markdown, write_text
from backend.vault.sealing import Sealer

ExportFormat = Literal["jsonl", "markdown", "text", "archive", "group"]

Write = Callable[[ChatHead, Iterable[FileMessage]], Iterator[bytes]]
"""Yields one piece for each message, after those of the head."""

_LOG: Final = "chat.jsonl"
_BACKGROUND: Final = "background.webp"
_SILLYTAVERN: Final = "sillytavern.jsonl"
_COMPRESSED: Final = ("image/", "audio/", "video/")


@dataclass(frozen=True, slots=True)
class ChatDownload:
    """A chat as a file that is made while it is read."""

    chunks: AsyncIterator[bytes]
    media_type: str
    stem: str
    extension: str

    @property
    def disposition(self) -> str:
        return format_disposition(self.stem, self.extension, fallback="chat")


class ExportCard(Protocol):
    """Returns the card of a character as a file. Raises `CharacterNotFoundError`."""

    async def __call__(
        self,
        identity: Identity,
        character_id: UUID,
        *,
        file_format: CardFormat,
        spec: CardSpec,
    ) -> FileDownload: ...


class ChatExporter:
    """Exports chats. `name_of` returns the name of a user without a persona."""

    def __init__(
        self,
        database: Database,
        pool: CpuPool,
        *,
        name_of: Callable[[Identity], str],
        export_card: ExportCard,
    ) -> None:
        self._export_card = export_card
        self._database = database
        self._pool = pool
        self._name_of = name_of

    async def open(
        self,
        identity: Identity,
        chat_id: UUID,
        file_format: ExportFormat,
        *,
        viewpoint: Viewpoint = GM,
    ) -> ChatDownload:
        """Begin an export. Raises `ChatNotFoundError`, `ValidationError`."""
        if viewpoint != GM and file_format not in _WRITERS:
            raise ValidationError(f"`viewpoint` is allowed only with {', '.join(_WRITERS)}.")
        reader = StoredChatReader(self._database, self._pool, identity)
        stored = await reader.load(chat_id, viewpoint)
        export = _Export(reader, self._pool, identity.sealer, stored, self._name_of(identity))
        chunks: AsyncIterator[bytes]
        if file_format == "archive":
            chunks, media_type, extension = export.write_archive(), "application/zip", "zip"
        elif file_format == "group":
            export_card = partial(self._export_card, identity, file_format="png", spec="v3")
            chunks, media_type, extension = (
                export.write_group(export_card),
                "application/zip",
                "zip",
            )
        else:
            write, media_type, extension = _WRITERS[file_format]
            chunks = export.write_path(partial(write, stored))
        return ChatDownload(chunks, media_type, stored.title, extension)


def _write_jsonl(
    stored: StoredChat, head: ChatHead, messages: Iterable[FileMessage]
) -> Iterator[bytes]:
    """A branch that was joined keeps its own settings, which are in its header."""
    is_own = stored.origin is None or not stored.origin.is_joined
    return write_sillytavern(head, messages, reflects_settings=is_own)


def _write_markdown(
    _: StoredChat, head: ChatHead, messages: Iterable[FileMessage]
) -> Iterator[bytes]:
    return (piece.encode() for piece in write_markdown(head, messages))


def _write_text(_: StoredChat, head: ChatHead, messages: Iterable[FileMessage]) -> Iterator[bytes]:
    return (piece.encode() for piece in write_text(head, messages))


_WRITERS: Final = {
    "jsonl": (_write_jsonl, "application/x-ndjson", "jsonl"),
    "markdown": (_write_markdown, "text/markdown", "md"),
    "text": (_write_text, "text/plain", "txt"),
}


MEDIA_TYPES: Final = (*(kind for _, kind, _ in _WRITERS.values()), "application/zip")


class _Feed:
    """The messages that are there for a writer. It is asked only while there are some."""

    def __init__(self) -> None:
        self.waiting: deque[FileMessage] = deque()

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> FileMessage:
        if not self.waiting:
            raise StopIteration
        return self.waiting.popleft()


class _Export:
    """One export of a chat."""

    def __init__(
        self,
        reader: StoredChatReader,
        pool: CpuPool,
        sealer: Sealer,
        stored: StoredChat,
        user_name: str,
    ) -> None:
        self._reader = reader
        self._pool = pool
        self._sealer = sealer
        self._stored = stored
        self._user_name = user_name

    async def write_path(self, write: Write) -> AsyncIterator[bytes]:
        """Yield the file of the active path in pieces of one batch each."""
        feed = _Feed()
        pieces = write(self._stored.make_head(self._user_name), feed)

        def write_waiting() -> bytes:
            written: list[bytes] = []
            while feed.waiting:
                written.append(next(pieces))
            return b"".join(written)

        async for messages in self._reader.read_path(self._stored):
            feed.waiting.extend(messages)
            size = sum(len(swipe.text) for each in messages for swipe in each.swipes)
            if data := await self._pool.run(self._sealer.user_id, write_waiting, size=size // 10):
                yield data
        if rest := b"".join(pieces):
            yield rest

    async def write_archive(self) -> AsyncIterator[bytes]:
        zipped = ZipStream()
        files: dict[UUID, tuple[str, FileDescription]] = {}
        zipped.begin(_LOG)
        yield zipped.write(msgspec.json.encode(self._make_log_head()) + b"\n")
        async for rows, references in self._reader.read_tree(self._stored):
            work = partial(self._write_lines, zipped, rows, references, files)
            yield await self._run(work, sum(len(row.sealed_content) for row in rows))
        yield zipped.end()
        for file_id, (path, about) in files.items():
            blob = await self._reader.load_file(file_id)
            if blob is not None:
                work = partial(self._write_file, zipped, file_id, path, about, blob)
                yield await self._run(work, len(blob))
        if background := await self._reader.load_background(self._stored.chat.id):
            work = partial(zipped.put, _BACKGROUND, background, is_compressed=True)
            yield await self._run(work, len(background))
        zipped.begin(_SILLYTAVERN)
        async for piece in self.write_path(partial(_write_jsonl, self._stored)):
            yield await self._run(partial(zipped.write, piece), len(piece))
        yield zipped.end()
        yield zipped.close()

    async def write_group(
        self, export_card: Callable[[UUID], Awaitable[FileDownload]]
    ) -> AsyncIterator[bytes]:
        """Yield a zip of the folders of a SillyTavern user. Deleted members have no card."""
        zipped, stored = ZipStream(), self._stored
        title = file_stem(stored.title, fallback="chat")
        for character_id, name in stored.card_files.items():
            with suppress(CharacterNotFoundError):
                card = await export_card(character_id)
                path = f"{CHARACTERS}/{name}"
                yield await self._run(partial(zipped.put, path, card.data), len(card.data))
        silent = [
            stored.card_files[each]
            for each, presence in stored.group.presences.items()
            if presence != "present" and each in stored.card_files
        ]
        group = write_group(
            msgspec.structs.replace(stored.make_group(), muted=silent),
            group_id=str(stored.chat.id),
            name=stored.title,
            members=list(stored.card_files.values()),
            chat=title,
        )
        yield zipped.put(f"{GROUPS}/{stored.chat.id}.json", group)
        zipped.begin(f"{GROUP_CHATS}/{title}.jsonl")
        async for piece in self.write_path(partial(_write_jsonl, stored)):
            yield await self._run(partial(zipped.write, piece), len(piece))
        yield zipped.end()
        yield zipped.close()

    async def _run(self, work: Callable[[], bytes], size: int) -> bytes:
        return await self._pool.run(self._sealer.user_id, work, size=size * 10 // SEALED_FACTOR)

    def _make_log_head(self) -> LogHead:
        stored = self._stored
        head = make_head(self._sealer.open, stored.chat, stored.group.members)
        head.settings = stored.settings
        head.variables = stored.variables
        head.origins = [each.origin.to_log(each.message_id) for each in stored.origins]
        return head

    def _write_lines(
        self,
        zipped: ZipStream,
        rows: Sequence[Any],
        references: dict[UUID, list[StoredReference]],
        files: dict[UUID, tuple[str, FileDescription]],
    ) -> bytes:
        """Write messages, and add their files to `files`."""
        encoder = msgspec.json.Encoder()
        parts: list[bytes] = []
        for row in rows:
            line = make_line(self._sealer.open, row)
            line.files = [_make_log_file(each, files) for each in references.get(row.id, ())]
            parts.append(encoder.encode(line))
        return zipped.write(b"".join(part + b"\n" for part in parts))

    def _write_file(
        self, zipped: ZipStream, file_id: UUID, path: str, about: FileDescription, blob: bytes
    ) -> bytes:
        data = self._sealer.open_bytes(FILE_DATA, file_id, blob)
        zipped.begin(path, is_compressed=about.media_type.startswith(_COMPRESSED))
        return zipped.write(data) + zipped.end()


def _make_log_file(
    reference: StoredReference, files: dict[UUID, tuple[str, FileDescription]]
) -> LogFile:
    about, stored = reference.description, None
    if reference.file_id is not None and about is not None:
        extension = mimetypes.guess_extension(about.media_type) or ".bin"
        stored = f"files/{reference.file_id}{extension}"
        files[reference.file_id] = stored, about
    return LogFile(
        name=reference.name.name,
        path=reference.name.path,
        media_type=about.media_type if about else "",
        stored=stored,
        width=about.width if about else None,
        height=about.height if about else None,
    )
