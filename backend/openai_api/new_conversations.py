"""Store a client's list as a new chat."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Final
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.chats import repository
from backend.chats.drafts import MessageDraft
from backend.chats.schemas import ChatPatch, NewChat
from backend.chats.service import ChatService
from backend.chats.text_digests import normalize_text
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.errors import ConflictError
from backend.generation.model import PromptImage
from backend.openai_api.alignment import TextProfile
from backend.openai_api.contracts import Line, StoredConversation
from backend.transfer.contracts import ChatTarget, StoreChat
from backend.transfer.formats.chat_file import (
    ChatHead,
    ChatReading,
    FileMessage,
    FileReference,
    FileSwipe,
)
from backend.turns.api.openings import Opening, OpeningService

MAX_NOTES: Final = 4
"""Notes that a client can insert before a greeting."""


class ConversationImporter:
    """Stores lists that are of no chat."""

    def __init__(
        self,
        database: Database,
        pool: CpuPool,
        *,
        chats: ChatService,
        openings: OpeningService,
        store_chat: StoreChat,
    ) -> None:
        self._database = database
        self._pool = pool
        self._chats = chats
        self._openings = openings
        self._store_chat = store_chat

    async def store(
        self,
        identity: Identity,
        lines: Sequence[Line],
        *,
        character_ids: Sequence[UUID] = (),
        campaign_id: UUID | None = None,
        title: str | None = None,
    ) -> StoredConversation:
        """Store lines as a new chat. Thousands of lines are stored in batches.

        If the first line is a greeting of the character, the others become its swipes. Lines of the
        user before a greeting are notes that the client inserts at a depth, and are not stored.

        Also raises the errors of `OpeningService.open`, of quotas, and `TransferFileError` if a
        line is too long.
        """
        new = NewChat(character_ids=list(character_ids), campaign_id=campaign_id, title=title)
        opening = await self._openings.prepare(identity, new)
        lines = await self._pool.run(
            identity.user_id, partial(_drop_notes, lines, opening.greetings)
        )
        reading = ChatReading(
            ChatHead(title=opening.title, user_name=opening.user_name),
            iter(_make_messages(lines, opening)),
        )
        target = ChatTarget(
            file_name=opening.title,
            title_origin=opening.title_origin,
            digest=None,
            members=character_ids,
            speakers=dict(zip(opening.names, character_ids, strict=False)),
        )
        result = await self._store_chat(identity, reading, target, report=_report_nothing)
        if result.item_id is None:
            raise ConflictError("The chat was not stored. Send the request again.")
        if campaign_id is not None:
            change = ChatPatch(campaign_id=campaign_id)
            await self._chats.patch(
                identity,
                result.item_id,
                change,
                named=frozenset({"campaign_id"}),
                if_match=None,
            )
        async with self._database.read() as session:
            chat = await repository.get_chat(session, result.item_id, owner_id=identity.user_id)
        return StoredConversation(chat_id=chat.id, leaf_id=chat.leaf_id, lines=lines)


async def _report_nothing(_count: int) -> None:
    """The progress of a new chat is not shown."""


def _drop_notes(lines: Sequence[Line], greetings: Sequence[MessageDraft]) -> Sequence[Line]:
    """Return lines without the user's before a greeting. CPU-bound.

    A greeting can differ by the names that the client puts into it.
    """
    notes = list(takewhile(lambda line: line.role == "user", lines[: MAX_NOTES + 1]))
    if not 0 < len(notes) <= min(MAX_NOTES, len(lines) - 1):
        return lines
    first = TextProfile(lines[len(notes)].text)
    is_greeting = any(first.compare(TextProfile(each.text)) is not None for each in greetings)
    return lines[len(notes) :] if is_greeting else lines


def _make_messages(lines: Sequence[Line], opening: Opening) -> Sequence[FileMessage]:
    """Return lines as the messages of a chat file."""
    messages: list[FileMessage] = []
    for place, line in enumerate(lines):
        own = FileSwipe(text=line.text, files=[_make_file(image) for image in line.images])
        swipes, selected = [own], 0
        if place == 0 and line.role == "assistant":
            swipes, selected = _find_greeting(own, opening.greetings)
        character = next(iter(opening.names), "")
        author = line.author or (opening.user_name if line.role == "user" else character)
        messages.append(
            FileMessage(role=line.role, author=author, swipes=swipes, selected=selected)
        )
    return messages


def _find_greeting(
    line: FileSwipe, greetings: Sequence[MessageDraft]
) -> tuple[list[FileSwipe], int]:
    """Return the greetings of a card with the client's in the place of the equal one."""
    text = normalize_text(line.text)
    for place, greeting in enumerate(greetings):
        if normalize_text(greeting.text) == text:
            swipes = [FileSwipe(text=each.text) for each in greetings]
            swipes[place] = line
            return swipes, place
    return [line], 0


def _make_file(image: PromptImage) -> FileReference:
    if image.url:
        return FileReference(path=image.url, media_type=image.media_type)
    data = b64encode(image.data).decode()
    return FileReference(path=f"data:{image.media_type};base64,{data}", media_type=image.media_type)
