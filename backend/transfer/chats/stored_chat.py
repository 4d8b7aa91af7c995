"""Read a stored chat for an export: first its head and path, then its messages in batches.

No transaction is open between batches, because a client may read slowly. The path is fixed at the
beginning. A message that is deleted later is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.viewpoints import resolve_viewpoint
from backend.characters import repository as characters
from backend.chats import repository
from backend.chats.files import FileDescription, FileName, open_description, open_name
from backend.chats.members import Group, has_heard, load_group
from backend.chats.models import (
    BACKGROUND_IMAGE,
    CHAT_TITLE,
    CHAT_VARIABLES,
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    MESSAGE_THINKING,
    Background,
    Chat,
    Message,
    MessageFile,
    StoredFile,
)
from backend.chats.schemas import ChatSettings
from backend.chats.service import read_settings
from backend.chats.tree import make_ancestors
from backend.core.audience import GM, PUBLIC, Viewpoint, decode_audience
from backend.core.cpu_pool import CpuPool, check_stopped
from backend.core.files import file_stem
from backend.database.base import split_chunks
from backend.database.engine import Database
from backend.transfer.chats.origin import ChatOrigin, MessageOrigin, digest_swipe
from backend.transfer.formats.chat_file import (
    CARD_EXTENSION,
    ChatHead,
    FileGroup,
    FileMessage,
    FileReference,
    FileSwipe,
)
from backend.transfer.models import ImportedFile
from backend.vault.sealing import Sealer

PATH_BATCH: Final = 50
"""Messages of the path that are read at once, with their swipes."""

TREE_BATCH: Final = 200

_UNNAMED_CARD: Final = "character"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOrigin:
    """A file that a chat was imported from. `message_id` is the last message of its path."""

    origin: ChatOrigin
    message_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChat:
    """A chat with its active path. `origin` is the file that the path belongs to.

    `card_files` are the names that the cards of the members have in files. A `viewpoint` other than
    the game master's has only texts that its prompts can contain.
    """

    chat: Chat
    title: str
    group: Group
    member_names: Sequence[str]
    card_files: Mapping[UUID, str]
    persona_name: str
    settings: ChatSettings
    variables: dict[str, str]
    origins: Sequence[PathOrigin]
    origin: ChatOrigin | None
    path: Sequence[UUID]
    viewpoint: Viewpoint = GM

    @property
    def is_whole(self) -> bool:
        return self.viewpoint == GM

    def shows(self, row: Any) -> bool:
        """True if the viewpoint may see a message of the path."""
        if self.is_whole:
            return True
        is_heard = has_heard(self.viewpoint, self.chat.id, row.position, row.audience)
        return is_heard and not row.hidden

    @property
    def member_ids(self) -> list[UUID]:
        return list(self.group.members)

    def make_head(self, user_name: str) -> ChatHead:
        """Return the head of a file. `user_name` is used if the chat has no persona."""
        note = self.settings.authors_note
        return ChatHead(
            title=self.title,
            user_name=self.persona_name or user_name,
            character_names=self.member_names,
            created_at=self.chat.created_at,
            authors_note=note if note.text.strip() else None,
            variables=self.variables,
            scenario=self.settings.scenario or None,
            source=self.origin.header if self.origin else None,
            group=self.make_group() if self.group.is_group else None,
        )

    def make_group(self) -> FileGroup:
        """Return the settings of a group with the card files of its members."""
        own, files = self.settings.group, self.card_files
        return FileGroup(
            next_speaker=own.next_speaker,
            cards=own.cards,
            auto_replies=own.auto_replies,
            allow_self_replies=own.allow_self_replies,
            narrators=[files[each] for each in own.narrators if each in files],
            talkativeness={
                files[each]: share for each, share in own.talkativeness.items() if each in files
            },
            joined_later=[
                files[each]
                for each, is_there in self.group.members.items()
                if not is_there and each in files
            ],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReference:
    """A file of a message. `file_id` and `description` are None if the content is missing."""

    message_id: UUID
    file_id: UUID | None
    name: FileName
    description: FileDescription | None


class StoredChatReader:
    """Reads chats of one user."""

    def __init__(self, database: Database, pool: CpuPool, identity: Identity) -> None:
        self._database = database
        self._pool = pool
        self._identity = identity
        self._sealer = identity.sealer

    async def load(self, chat_id: UUID, viewpoint: Viewpoint = GM) -> StoredChat:
        """Raises `ChatNotFoundError`, `ValidationError`."""
        sealer = self._sealer
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=sealer.user_id)
            viewpoint = await resolve_viewpoint(session, self._identity, chat, viewpoint)
            group = await load_group(session, chat_id)
            names = await characters.find_names(
                session, list(group.members), owner_id=sealer.user_id, sealer=sealer
            )
            persona = chat.persona_id and await characters.find_persona(
                session, chat.persona_id, owner_id=sealer.user_id, sealer=sealer
            )
            path = await _load_path(session, chat)
            origins = await _load_origins(session, sealer, chat_id)
        is_whole, variables = viewpoint == GM, chat.sealed_variables
        if not is_whole:  # no prompt contains the texts of a file that are in no message
            origins, variables = [], None
        return StoredChat(
            chat=chat,
            viewpoint=viewpoint,
            title=sealer.open(CHAT_TITLE, chat_id, chat.sealed_title) if is_whole else "",
            group=group,
            member_names=list(names.values()),
            card_files=name_card_files(names),
            persona_name=persona.name if persona else "",
            settings=read_settings(sealer, chat),
            variables=(
                msgspec.json.decode(
                    sealer.open_bytes(CHAT_VARIABLES, chat_id, variables), type=dict[str, str]
                )
                if variables
                else {}
            ),
            origins=origins,
            origin=_choose_origin(origins, path),
            path=path,
        )

    async def read_path(self, stored: StoredChat) -> AsyncIterator[list[FileMessage]]:
        """Yield the messages of the active path with their swipes, in batches."""
        parents = [None, *stored.path]
        for first in range(0, len(stored.path), PATH_BATCH):
            chosen = set(stored.path[first : first + PATH_BATCH])
            above = parents[first : first + len(chosen)]
            async with self._database.read() as session:
                rows = await _load_families(session, stored.chat, above, first)
                references = await _load_references(session, self._sealer, [r.id for r in rows])
            yield await self._pool.run(
                self._sealer.user_id,
                partial(_make_messages, self._sealer, stored, rows, references, chosen),
                size=sum(len(row.sealed_content) for row in rows),
            )

    async def read_tree(
        self, stored: StoredChat
    ) -> AsyncIterator[tuple[Sequence[Any], dict[UUID, list[StoredReference]]]]:
        """Yield all columns of all messages, parents first, in batches, with their files."""
        table, chat = Message.__table__.c, stored.chat
        query = (
            select(Message.__table__)
            .where(table.chat_id == chat.id, table.user_id == chat.user_id)
            .order_by(table.position, table.id)
            .limit(TREE_BATCH)
        )
        known: set[UUID | None] = {None}
        after = None
        while True:
            following = query
            if after is not None:
                is_later = and_(table.position == after.position, table.id > after.id)
                following = query.where(
                    # Implied by the other condition, but without it SQLite reads the whole chat.
                    table.position >= after.position,
                    or_(table.position > after.position, is_later),
                )
            async with self._database.read() as session:
                rows = (await session.execute(following)).all()
                references = await _load_references(session, self._sealer, [r.id for r in rows])
            if not rows:
                return
            after = rows[-1]
            # A message is left out if its parent was added or deleted since the export began.
            kept: list[Any] = []
            for row in rows:
                if row.parent_id in known:
                    known.add(row.id)
                    kept.append(row)
            yield kept, references

    async def load_background(self, chat_id: UUID) -> bytes | None:
        """Return the chat's background, which is a WebP picture, if it has one."""
        query = select(Background).where(
            Background.chat_id == chat_id, Background.user_id == self._sealer.user_id
        )
        async with self._database.read() as session:
            row = await session.scalar(query)
        if row is None:
            return None
        return self._sealer.open_bytes(BACKGROUND_IMAGE, row.id, row.sealed_image)

    async def load_file(self, file_id: UUID) -> bytes | None:
        """Return the sealed content of a file."""
        async with self._database.read() as session:
            return await session.scalar(
                select(StoredFile.sealed_data).where(
                    StoredFile.id == file_id, StoredFile.user_id == self._sealer.user_id
                )
            )


async def _load_path(session: AsyncSession, chat: Chat) -> list[UUID]:
    if chat.leaf_id is None:
        return []
    climb = make_ancestors(chat.leaf_id)
    return list(await session.scalars(select(climb.c.id).order_by(climb.c.position)))


async def _load_origins(session: AsyncSession, sealer: Sealer, chat_id: UUID) -> list[PathOrigin]:
    query = (
        select(ImportedFile)
        .where(
            ImportedFile.item_id == chat_id,
            ImportedFile.user_id == sealer.user_id,
            ImportedFile.kind == "chat",
            ImportedFile.sealed_source.is_not(None),
        )
        .order_by(ImportedFile.id)
    )
    return [
        PathOrigin(
            origin=ChatOrigin.open(sealer, row.id, row.sealed_source or b""),
            message_id=row.message_id,
        )
        for row in await session.scalars(query)
    ]


def _choose_origin(origins: Sequence[PathOrigin], path: Sequence[UUID]) -> ChatOrigin | None:
    """Return the file with the longest path that is part of this one, or the chat's own."""
    places = {message_id: place for place, message_id in enumerate(path)}
    on_path = {
        places[each.message_id]: each.origin
        for each in origins
        if each.message_id is not None and each.message_id in places
    }
    if on_path:
        return on_path[max(on_path)]
    return next((each.origin for each in origins if not each.origin.is_joined), None)


async def _load_families(
    session: AsyncSession, chat: Chat, parents: Sequence[UUID | None], first: int
) -> Sequence[Any]:
    """Return all columns of the messages below a part of a path, in the order of swipes.

    `first` is the position below the first parent. Without positions SQLite reads the whole chat.
    """
    table = Message.__table__.c
    families: list[ColumnElement[bool]] = [
        table.parent_id.in_([each for each in parents if each is not None])
    ]
    if None in parents:
        families.append(table.position == 0)
    query = select(Message.__table__).where(
        table.chat_id == chat.id,
        table.user_id == chat.user_id,
        table.position >= first,
        table.position < first + len(parents),
        or_(*families),
    )
    return (await session.execute(query.order_by(table.position, table.id))).all()


async def _load_references(
    session: AsyncSession, sealer: Sealer, message_ids: Collection[UUID]
) -> dict[UUID, list[StoredReference]]:
    found: defaultdict[UUID, list[StoredReference]] = defaultdict(list)
    for ids in split_chunks(list(message_ids)):
        query = (
            select(
                MessageFile.id,
                MessageFile.message_id,
                MessageFile.file_id,
                MessageFile.sealed_reference,
                StoredFile.sealed_description,
            )
            .outerjoin(StoredFile, StoredFile.id == MessageFile.file_id)
            .where(MessageFile.message_id.in_(ids), MessageFile.user_id == sealer.user_id)
            .order_by(MessageFile.message_id, MessageFile.place)
        )
        for row in await session.execute(query):
            about = row.sealed_description
            reference = StoredReference(
                message_id=row.message_id,
                file_id=row.file_id,
                name=open_name(sealer, row.id, row.sealed_reference),
                description=open_description(sealer, row.file_id, about) if about else None,
            )
            found[row.message_id].append(reference)
    return found


def _make_messages(
    sealer: Sealer,
    stored: StoredChat,
    rows: Sequence[Any],
    references: dict[UUID, list[StoredReference]],
    chosen: Collection[UUID],
) -> list[FileMessage]:
    """Group messages with their swipes, without removed ones. CPU-bound."""
    file = stored.origin
    card_files: Mapping[UUID, str] = stored.card_files if stored.group.is_group else {}
    families: defaultdict[UUID | None, list[Any]] = defaultdict(list)
    for row in rows:
        families[row.parent_id].append(row)
    messages: list[FileMessage] = []
    for family in families.values():
        check_stopped()
        row = next((row for row in family if row.id in chosen), None)
        if row is None or row.removed_at is not None or not stored.shows(row):
            continue
        siblings = _choose_siblings(
            row.id,
            [
                _Sibling(
                    row=each,
                    text=sealer.open(MESSAGE_CONTENT, each.id, each.sealed_content),
                    origin=MessageOrigin.open(sealer, each.id, each.sealed_source),
                )
                for each in family
                if (stored.is_whole and each.removed_at is None) or each.id == row.id
                # Someone who leaves is no version of a reply.
                if (each.presence or row.presence) is None or each.id == row.id
            ],
        )
        selected = next(place for place, each in enumerate(siblings) if each.row.id == row.id)
        if (own := file.find_message(row.position) if file else None) is not None:
            siblings[selected] = replace(siblings[selected], origin=own)
        named = (siblings[selected].origin, *(each.origin for each in siblings))
        messages.append(
            FileMessage(
                role=row.role,
                author=sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author),
                swipes=[
                    _make_swipe(
                        sealer,
                        each,
                        references.get(each.row.id, ()),
                        card_files,
                        is_whole=stored.is_whole,
                    )
                    for each in siblings
                ],
                selected=selected,
                hidden=row.hidden,
                speaker=card_files.get(row.character_id, ""),
                presence=row.presence,
                source=(
                    next((each.message for each in named if each.message is not None), None)
                    if stored.is_whole
                    else None
                ),
            )
        )
    return messages


def _list_audience(column: str, card_files: Mapping[UUID, str]) -> list[str] | None:
    """Return the card files of those who know a message, or None if everyone there does."""
    if column == PUBLIC:
        return None
    audience = decode_audience(column)
    named = () if isinstance(audience, str) else audience
    return [card_files[each] for each in named if each in card_files]


def name_card_files(names: Mapping[UUID, str]) -> dict[UUID, str]:
    """Return a file name for the card of each character, as SillyTavern numbers equal names."""
    found: dict[UUID, str] = {}
    taken: set[str] = set()
    for character_id, name in names.items():
        stem = file_stem(name, fallback=_UNNAMED_CARD)
        numbered = (stem if number == 0 else f"{stem}{number}" for number in count())
        chosen = next(each for each in numbered if each.casefold() not in taken)
        taken.add(chosen.casefold())
        found[character_id] = chosen + CARD_EXTENSION
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sibling:
    row: Any
    text: str
    origin: MessageOrigin


def _choose_siblings(selected_id: UUID, family: Sequence[_Sibling]) -> list[_Sibling]:
    """Return the siblings that are swipes of the selected message in its file.

    The first message of a branch has those of the branch's file. Others have none of a branch.
    """
    selected = next(each for each in family if each.row.id == selected_id)
    if not selected.origin.swipes:
        return [each for each in family if not each.origin.swipes]
    waiting = {each.row.id: each for each in family}
    found: list[_Sibling] = []
    for digest in selected.origin.swipes:
        alike = [each for each in waiting.values() if digest_swipe(each.text) == digest]
        is_own = [each for each in alike if each.origin.swipes == selected.origin.swipes]
        found += [waiting.pop(each.row.id) for each in (is_own or alike)[:1]]
    # Swipes that were written or edited here have other digests.
    found += [
        each
        for each in waiting.values()
        if each.origin.message is None or each.origin.swipes == selected.origin.swipes
    ]
    return found


def _make_swipe(
    sealer: Sealer,
    sibling: _Sibling,
    references: Sequence[StoredReference],
    card_files: Mapping[UUID, str],
    *,
    is_whole: bool,
) -> FileSwipe:
    row = sibling.row
    thinking = row.sealed_thinking if is_whole else None
    return FileSwipe(
        text=sibling.text,
        thinking=sealer.open(MESSAGE_THINKING, row.id, thinking) if thinking else None,
        created_at=row.created_at,
        source=sibling.origin.swipe if is_whole else None,
        audience=_list_audience(row.audience, card_files),
        files=[
            FileReference(
                path=each.name.path,
                name=each.name.name,
                media_type=each.description.media_type if each.description else "",
            )
            for each in references
        ],
    )
