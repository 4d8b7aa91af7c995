"""The images of a prompt: those of the line that is answered, and of the last messages before it.

A message keeps all its files. A prompt contains the newest images that fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from msgspec import structs
from sqlalchemy import ColumnElement, bindparam, exists, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.chats.files import FileDescription, WaitingFile, open_description
from backend.chats.models import FILE_DATA, Message, MessageFile, StoredFile
from backend.context.budget import Budget
from backend.database.base import skip_index
from backend.generation.images import IMAGE_TEXT, IMAGE_TOKENS, IMAGE_TYPES
from backend.generation.model import ModelSpec, PromptImage
from backend.turns.api.schemas import TurnRequest
from backend.vault.sealing import Sealer

MAX_PROMPT_IMAGES: Final = 8

MAX_IMAGE_BYTES: Final = 16 * 1024 * 1024
"""Limit for all images of a prompt, because providers limit the size of a request."""

MAX_IMAGES_SHARE: Final = 2
"""Images take at most half of a prompt."""

LOOK_BACK_MESSAGES: Final = 200
"""Images of earlier messages are not sent."""

LINE: Final = -1
"""The place of the images of the line that is answered. Other places are positions of messages."""

_STORED = (
    select(Message.position, StoredFile.id, StoredFile.sealed_description)
    .join(MessageFile, MessageFile.message_id == Message.id)
    .join(StoredFile, StoredFile.id == MessageFile.file_id)
    .where(
        Message.chat_id == bindparam("chat_id"),
        Message.is_active,
        Message.position > bindparam("after"),
        Message.position <= bindparam("last"),
        ~Message.hidden,
    )
    .order_by(Message.position.desc(), MessageFile.place)
)


class FoundImage(NamedTuple):
    """An image that a prompt may contain."""

    place: int
    file_id: UUID
    description: FileDescription


class SealedImage(NamedTuple):
    place: int
    file_id: UUID
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenImages:
    """The sealed images of a prompt, the newest message first.

    Attributes:
        images: The images.
        excess: The number of images that do not fit.
        unread: The number of images that are left out because the model reads none.
    """

    images: Sequence[SealedImage] = ()
    excess: int = 0
    unread: int = 0

    @property
    def size(self) -> int:
        """The bytes of all images."""
        return sum(len(each.data) for each in self.images)

    @property
    def notes(self) -> list[str]:
        """Notes for the context record about images that are left out."""
        notes: list[str] = []
        if self.unread:
            notes.append(f"{_count(self.unread)} left out, because the model cannot read images.")
        if self.excess:
            notes.append(
                f"{_count(self.excess)} left out. A prompt contains the newest images, at most "
                f"{MAX_PROMPT_IMAGES}, which take at most half of its tokens."
            )
        return notes

    def open(self, sealer: Sealer) -> Mapping[int, tuple[PromptImage, ...]]:
        """Return the images by their place. CPU-bound."""
        opened: defaultdict[int, tuple[PromptImage, ...]] = defaultdict(tuple)
        for each in self.images:
            data = sealer.open_bytes(FILE_DATA, each.file_id, each.data)
            opened[each.place] += (PromptImage(media_type=each.media_type, data=data),)
        return dict(opened)


def has_files(leaf: type[Message]) -> ColumnElement[bool]:
    """Return an expression that is true if one of the last messages up to a leaf has a file."""
    message = aliased(Message)
    return exists().where(
        message.chat_id == leaf.chat_id,
        message.is_active,
        message.position > leaf.position - LOOK_BACK_MESSAGES,
        MessageFile.message_id == message.id,
    )


def _count(number: int) -> str:
    return "1 image was" if number == 1 else f"{number} images were"


def name_images(request: TurnRequest) -> TurnRequest:
    """Return the request with a text for a line that has only images."""
    if request.files and not (request.text and request.text.strip()):
        return structs.replace(request, text=IMAGE_TEXT)
    return request


def list_waiting_images(files: Iterable[WaitingFile]) -> list[FoundImage]:
    """Return the images among the files of a new line."""
    return _filter_images(FoundImage(LINE, each.id, each.description) for each in files)


async def list_stored_images(
    session: AsyncSession,
    sealer: Sealer,
    chat_id: UUID,
    *,
    last: int,
    line: int | None,
    positions: Collection[int],
) -> list[FoundImage]:
    """Return the images of the last messages of the active path, the newest message first.

    Args:
        session: The session.
        sealer: Opens the descriptions of the files.
        chat_id: The chat.
        last: The position of the last message.
        line: The position of the line that is answered, if it is stored.
        positions: The positions of the messages of the history.
    """
    values = {"chat_id": chat_id, "after": last - LOOK_BACK_MESSAGES, "last": last}
    rows = (await session.execute(_STORED, values)).all()
    known = frozenset(positions) if rows else frozenset[int]()
    return _filter_images(
        FoundImage(
            LINE if row.position == line else row.position,
            row.id,
            open_description(sealer, row.id, row.sealed_description),
        )
        for row in rows
        if row.position == line or row.position in known
    )


def _filter_images(found: Iterable[FoundImage]) -> list[FoundImage]:
    return [each for each in found if each.description.media_type in IMAGE_TYPES]


async def load_images(
    session: AsyncSession,
    owner_id: UUID,
    found: Sequence[FoundImage],
    *,
    spec: ModelSpec,
    budget: Budget,
) -> ChosenImages:
    """Load the first images that fit into a prompt for a model."""
    if not found:
        return ChosenImages()
    if spec.image_support == "none":
        return ChosenImages(unread=len(found))
    most = min(MAX_PROMPT_IMAGES, budget.prompt // MAX_IMAGES_SHARE // IMAGE_TOKENS)
    chosen: list[FoundImage] = []
    room = MAX_IMAGE_BYTES
    for each in found:
        if len(chosen) < most and each.description.size <= room:
            chosen.append(each)
            room -= each.description.size
    query = select(StoredFile.id, StoredFile.sealed_data).where(
        StoredFile.id.in_({each.file_id for each in chosen}),
        skip_index(StoredFile.user_id) == owner_id,
    )
    sealed = {row.id: row.sealed_data for row in await session.execute(query)}
    images = [
        SealedImage(each.place, each.file_id, each.description.media_type, sealed[each.file_id])
        for each in chosen
        if each.file_id in sealed
    ]
    return ChosenImages(images=images, excess=len(found) - len(chosen))
