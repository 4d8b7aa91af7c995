"""Build the rows of a chat's messages from a file, in batches of bounded size. CPU-bound."""

from __future__ import annotations

import binascii
import mimetypes
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote_to_bytes
from uuid import UUID

import msgspec

from backend.chats.drafts import opens_scene, place_in_scene, seal_optional
from backend.chats.files import (
    MAX_FILE_BYTES,
    FileName,
    SealedFile,
    SealedReference,
    compute_digest,
    seal_file,
    seal_reference,
)
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, MESSAGE_THINKING, Presence
from backend.chats.text_digests import TextDigester
from backend.chats.token_counting import CountUnit
from backend.chats.transfer import YEARS
from backend.core.audience import GM, PUBLIC, encode_audience
from backend.core.cpu_pool import check_stopped
from backend.database.base import new_id
from backend.generation.model import Role
from backend.transfer.chats.origin import MessageOrigin
from backend.transfer.contracts import ChatTarget
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.chat_file import (
    ChatReading,
    FileMessage,
    FileReference,
    FileSwipe,
    find_character,
    find_characters,
)
from backend.vault.sealing import Sealer

MAX_MESSAGES: Final = 100_000
MAX_ROWS: Final = 250_000
"""Maximum number of messages of a chat with all their swipes."""

MAX_AUTHOR_CHARACTERS: Final = 500
MAX_PATH_CHARACTERS: Final = 1_000
BATCH_ROWS: Final = 250
BATCH_BYTES: Final = 1024 * 1024
MAX_BATCH_FILE_BYTES: Final = 64 * 1024 * 1024
"""Limit for the files of one message, which are in memory at once."""


STEP: Final = timedelta(milliseconds=1)
"""The time between a message and the next one, if the file does not say."""

_DATA_URI: Final = "data:"


@dataclass(slots=True, kw_only=True)
class TreePlace:
    """A message that the next one is placed below."""

    id: UUID
    role: Role
    position: int
    path_tokens: int
    scene_id: UUID | None
    scene_place: int
    created_at: datetime
    presence: Presence | None = None


@dataclass(slots=True)
class RowBatch:
    """Rows to insert, and the number of messages of the file that they belong to.

    `last` is the last message of the path so far. `free_bytes` of files may be added.
    """

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    files: list[SealedFile] = field(default_factory=list[SealedFile])
    references: list[SealedReference] = field(default_factory=list[SealedReference])
    messages: int = 0
    last: TreePlace | None = None
    free_bytes: int = MAX_BATCH_FILE_BYTES


class TreeBuilder:
    """Builds the rows of one chat: swipes become siblings. The next one follows the selected.

    Args:
        unit: The unit of the chat's token counts.
        target: Its ids belong to the sealer's user.
        max_characters: Maximum length of a message.
        start: The message that a branch begins below. Its messages are not on the active path.
        start_swipes: The digests of all swipes of the first message of a branch.
    """

    def __init__(
        self,
        sealer: Sealer,
        unit: CountUnit,
        chat_id: UUID,
        reading: ChatReading,
        target: ChatTarget,
        *,
        max_characters: int,
        start: TreePlace | None = None,
        start_swipes: Sequence[str] = (),
    ) -> None:
        self._sealer = sealer
        self._digester = TextDigester(sealer)
        self._unit = unit
        self._chat_id = chat_id
        self._reading = reading
        self._target = target
        self._max_characters = max_characters
        self._is_main = start is None
        self._start_swipes = start_swipes
        self._at = start
        self._time = start.created_at if start else clean_time(reading.head.created_at)
        self._count = start.position + 1 if start else 0
        self._row_count = 0
        self._digests: dict[str, bytes | None] = {}
        self._missing_files = 0

    def build(self) -> RowBatch:
        """Return the next rows; none at the end. Raises `TransferFileError`."""
        batch = RowBatch(last=self._at)
        taken = self._take()
        if not taken:
            self._warn_of_files()
            return batch
        self._start_clock(taken)
        swipes = [(each.author, swipe.text) for each in taken for swipe in each.swipes]
        counts = iter(self._unit.count_many(swipes))
        for message in taken:
            check_stopped()
            self._place(batch, message, [next(counts) for _ in message.swipes])
        batch.messages, batch.last = len(taken), self._at
        return batch

    def _take(self) -> list[FileMessage]:
        taken: list[FileMessage] = []
        rows = size = 0
        has_files = False
        for message in self._reading.messages:
            check_stopped()
            self._check(message)
            taken.append(message)
            rows += len(message.swipes)
            size += sum(len(each.text) + len(each.source or b"") for each in message.swipes)
            has_files = any(each.files for each in message.swipes)
            if rows >= BATCH_ROWS or size >= BATCH_BYTES or has_files:
                break
        self._row_count += rows
        if self._row_count > MAX_ROWS:
            raise TransferFileError(
                f"The chat has more than {MAX_ROWS:,} messages with their swipes. Split the file."
            )
        return taken

    def _check(self, message: FileMessage) -> None:
        self._count += 1
        if self._count > MAX_MESSAGES:
            raise TransferFileError(
                f"The chat has more than {MAX_MESSAGES:,} messages. Split the file."
            )
        for swipe in message.swipes:
            length = max(len(swipe.text), len(swipe.thinking or ""))
            if length > self._max_characters:
                raise TransferFileError(
                    f"Message {self._count:,} has {length:,} characters; "
                    f"{self._max_characters:,} are allowed. Shorten it, and try again."
                )

    def _start_clock(self, taken: Sequence[FileMessage]) -> None:
        """Begin with the first known time, so that later times do not go back."""
        if self._time is None:
            times = (clean_time(swipe.created_at) for message in taken for swipe in message.swipes)
            self._time = next((each for each in times if each), datetime.now(UTC))
            self._time -= STEP * len(taken)

    def _place(self, batch: RowBatch, message: FileMessage, counts: Sequence[int]) -> None:
        parent = self._at
        times = [clean_time(swipe.created_at) for swipe in message.swipes]
        usual = times[message.selected] or next((each for each in times if each), None)
        if usual is None:
            usual = (self._time or datetime.now(UTC)) + STEP
        for place, (swipe, tokens) in enumerate(zip(message.swipes, counts, strict=True)):
            node = self._make_node(message.role, swipe, parent, times[place] or usual)
            comes_or_goes = message.presence is not None
            is_hidden = message.hidden or comes_or_goes or not swipe.text.strip()
            if not is_hidden:
                node.path_tokens += tokens
            is_selected = place == message.selected
            row = self._make_row(message, swipe, node, parent, tokens)
            row["hidden"] = is_hidden
            row["is_active"] = is_selected and self._is_main
            row["is_selected"] = is_selected
            batch.rows.append(row)
            self._add_files(batch, node.id, swipe.files)
            if is_selected:
                self._at, self._time = node, usual
        self._start_swipes = ()

    def _make_node(
        self, role: Role, swipe: FileSwipe, parent: TreePlace | None, at: datetime
    ) -> TreePlace:
        message_id = new_id()
        node = TreePlace(
            id=message_id,
            role=role,
            position=parent.position + 1 if parent else 0,
            path_tokens=parent.path_tokens if parent else 0,
            scene_id=message_id if opens_scene(swipe.text) else None,
            scene_place=0,
            created_at=at,
        )
        place_in_scene(node, parent)
        return node

    def _make_row(
        self,
        message: FileMessage,
        swipe: FileSwipe,
        node: TreePlace,
        parent: TreePlace | None,
        tokens: int,
    ) -> dict[str, Any]:
        sealer, author = self._sealer, message.author[:MAX_AUTHOR_CHARACTERS]
        origin = MessageOrigin(
            message=message.source, swipe=swipe.source, swipes=self._start_swipes
        )
        character_id = self._find_character(message)
        return {
            "id": node.id,
            "user_id": sealer.user_id,
            "chat_id": self._chat_id,
            "parent_id": parent.id if parent else None,
            "position": node.position,
            "role": message.role,
            "character_id": character_id,
            "persona_id": (
                self._target.personas.get(message.author) if message.role == "user" else None
            ),
            "status": "complete",
            "tokens": tokens,
            "path_tokens": node.path_tokens,
            "token_counts": msgspec.json.encode({str(self._unit): tokens}).decode(),
            "scene_id": node.scene_id,
            "scene_place": node.scene_place,
            "sealed_author": sealer.seal(MESSAGE_AUTHOR, node.id, author),
            "sealed_content": sealer.seal(MESSAGE_CONTENT, node.id, swipe.text),
            "sealed_thinking": seal_optional(sealer, MESSAGE_THINKING, node.id, swipe.thinking),
            "sealed_source": origin.seal(sealer, node.id),
            "audience": self._find_audience(swipe),
            "presence": message.presence if character_id else None,
            "text_digest": self._digester.compute(message.role, swipe.text),
            "created_at": node.created_at,
            "updated_at": node.created_at,
        }

    def _find_audience(self, swipe: FileSwipe) -> str:
        """Return who knows a swipe. Characters that are not there are left out."""
        if swipe.audience is None:
            return PUBLIC
        found = find_characters(self._target.speakers, swipe.audience)
        return encode_audience(found) if found else GM

    def _find_character(self, message: FileMessage) -> UUID | None:
        if message.presence is not None:
            return find_character(self._target.speakers, message.speaker or message.author)
        if message.role != "assistant":
            return None
        target = self._target
        for name in (message.speaker, message.author):
            if name and name in target.speakers:
                return target.speakers[name]
        return target.members[0] if len(target.members) == 1 else None

    def _add_files(
        self, batch: RowBatch, message_id: UUID, references: Sequence[FileReference]
    ) -> None:
        for place, each in enumerate(references):
            path, is_inline = each.path, each.path.startswith(_DATA_URI)
            if path not in self._digests:
                self._digests[path] = self._store_file(batch, each)
            found = self._digests[path]
            if is_inline:
                del self._digests[path]  # as long as the file itself
            name = FileName(
                name=each.name[:MAX_AUTHOR_CHARACTERS],
                path=_DATA_URI if is_inline else path[:MAX_PATH_CHARACTERS],
            )
            batch.references.append(
                seal_reference(self._sealer, message_id, name, place=place, digest=found)
            )

    def _store_file(self, batch: RowBatch, reference: FileReference) -> bytes | None:
        """Add a file to the batch, and return its digest. None if the content is missing."""
        check_stopped()
        if reference.path.startswith(_DATA_URI):
            data, media_type = _read_data_uri(reference.path)
        else:
            find = self._target.find_file
            data, media_type = find(reference.path) if find else None, ""
        if data is None or len(data) > min(MAX_FILE_BYTES, batch.free_bytes):
            self._missing_files += 1
            return None
        known = {each.digest for each in batch.files}
        if (found := compute_digest(self._sealer, data)) not in known:
            named = mimetypes.guess_type(reference.name or reference.path[:MAX_PATH_CHARACTERS])[0]
            batch.free_bytes -= len(data)
            kind = reference.media_type or media_type or named or "application/octet-stream"
            batch.files.append(seal_file(self._sealer, data, media_type=kind))
        return found

    def _warn_of_files(self) -> None:
        if self._missing_files:
            self._reading.warnings.append(
                f"{self._missing_files:,} pictures or files of messages are missing or too "
                f"large: {MAX_FILE_BYTES // 2**20} MB each are allowed. Their names are kept."
            )
            self._missing_files = 0


def clean_time(at: datetime | None) -> datetime | None:
    """Return a time in UTC, or None if its year is out of range."""
    return at.astimezone(UTC) if at is not None and at.year in YEARS else None


def _read_data_uri(uri: str) -> tuple[bytes | None, str]:
    """Return the content and the media type of `data:image/png;base64,...`."""
    about, comma, text = uri.removeprefix(_DATA_URI).partition(",")
    kind, *parameters = about.split(";")
    if not comma:
        return None, kind
    if "base64" not in parameters:
        return unquote_to_bytes(text), kind
    try:
        return b64decode(text), kind
    except (binascii.Error, ValueError):
        return None, kind
