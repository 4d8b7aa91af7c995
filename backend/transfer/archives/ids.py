"""Maps the ids of an archive to the ids in the account that imports it.

The rows of an earlier run are found by their content, so that a stopped import can continue:
messages by their place in the tree and their time, items of a campaign by their order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar
from uuid import UUID

from sqlalchemy import select

from backend.campaigns.files.archive import list_chat_logs, list_item_ids
from backend.campaigns.files.transfer import unpack_campaign
from backend.campaigns.models import Campaign, CampaignItem
from backend.chats.models import Chat, Message
from backend.chats.transfer import ChatLog, read_log
from backend.core.audience import GM, decode_audience, encode_audience
from backend.core.cpu_pool import CpuPool
from backend.database.base import stream_rows
from backend.database.engine import Database
from backend.lorebooks.models import Lorebook
from backend.transfer.archives.content import LINKS_PATH
from backend.transfer.archives.manifest import ArchiveEntry, ArchiveManifest
from backend.transfer.archives.records import CampaignState, LinkList, read_record
from backend.transfer.contracts import FileTree, ImportContext
from backend.transfer.errors import TransferFileError
from backend.transfer.models import ItemKind

T = TypeVar("T")

MAX_FILE_BYTES = 512 * 1024 * 1024
"""Maximum size of one file of an archive. It is in memory while it is imported."""


class NewMessage(NamedTuple):
    """A message in this account."""

    id: UUID
    position: int


class _Line(NamedTuple):
    """The part of a message of a file that finds it again."""

    id: UUID
    parent_id: UUID | None
    role: str
    created_at: datetime


def read_file(tree: FileTree, path: str) -> bytes:
    """Read a whole file, in a thread. Raises `TransferFileError`."""
    with tree.open(path) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise TransferFileError(f"The file has more than {MAX_FILE_BYTES:,} bytes.")
    return data


class ArchiveIds:
    """The new ids of an archive's items, during one import."""

    def __init__(
        self, database: Database, pool: CpuPool, context: ImportContext, manifest: ArchiveManifest
    ) -> None:
        self._database = database
        self._pool = pool
        self._context = context
        self._found: dict[tuple[ItemKind, UUID], UUID] = {}
        self._known: set[tuple[ItemKind, UUID]] = set()
        self._owner_id = context.identity.user_id
        self._paths = set(context.tree.list_paths())
        self._entries = {(each.kind, each.id): each for each in manifest.entries if each.id}
        self._chat_homes = {
            chat_id: each
            for each in manifest.entries
            if each.kind == "campaign"
            for chat_id in each.chats
        }
        self._card_books: dict[UUID, UUID] | None = None
        self._campaign: tuple[UUID, dict[UUID, Sequence[_Line]]] | None = None

    def find(self, kind: ItemKind, old: UUID | None) -> UUID | None:
        """Return the new id of an item, or None if it was not imported."""
        return None if old is None else self._found.get((kind, old))

    def note(self, kind: ItemKind, old: UUID, new: UUID) -> None:
        self._found[kind, old] = new

    def note_known(self, kind: ItemKind, old: UUID) -> None:
        """Note that the account had the item before this import."""
        self._known.add((kind, old))

    def is_known(self, kind: ItemKind, old: UUID | None) -> bool:
        """True if the account had the item before this import."""
        return old is not None and (kind, old) in self._known

    def find_all(self, kind: ItemKind, old: Iterable[UUID]) -> list[UUID]:
        return [new for each in old if (new := self.find(kind, each)) is not None]

    def list_people(self) -> dict[UUID, UUID]:
        """Return the characters and personas by their old ids."""
        return {
            old: new for (kind, old), new in self._found.items() if kind in {"character", "persona"}
        }

    async def find_book(self, old: UUID) -> UUID | None:
        """Return a lorebook. That of a card is found by its character."""
        found = self.find("lorebook", old)
        if found is not None:
            return found
        if self._card_books is None:
            links = await self._read_record(LINKS_PATH, LinkList)
            listed = links.characters if links else []
            self._card_books = {each.book_id: each.id for each in listed if each.book_id}
        character_id = self.find("character", self._card_books.get(old))
        if character_id is None:
            return None
        query = select(Lorebook.id).where(
            Lorebook.character_id == character_id, Lorebook.match_owner(self._owner_id)
        )
        async with self._database.read() as session:
            found = await session.scalar(query)
        if found is not None:
            self.note("lorebook", old, found)
        return found

    async def note_campaign(self, entry: ArchiveEntry, new: UUID) -> None:
        """Find the chats and the chronicle of an imported campaign."""
        if entry.id is None:
            return
        state_entry = self._entries.get(("campaign_state", entry.id))
        state = await self._read_record(state_entry.path, CampaignState) if state_entry else None
        logs = await self._run(lambda: list_chat_logs(unpack_campaign(self._read(entry.path))))
        async with self._database.read() as session:
            campaign = await session.get(Campaign, new)
            query = select(Chat.id, Chat.created_at).where(
                Chat.campaign_id == new, Chat.user_id == self._owner_id
            )
            chats = (await session.execute(query.order_by(Chat.id))).all()
        free: defaultdict[datetime, deque[UUID]] = defaultdict(deque)
        for chat in chats:
            free[chat.created_at].append(chat.id)
        for log in logs:
            if alike := free[log.head.created_at.astimezone(UTC)]:
                self.note("chat", log.head.id, alike.popleft())
        if state and state.chronicle_id and campaign and campaign.chronicle_id:
            self.note("chronicle", state.chronicle_id, campaign.chronicle_id)

    async def find_items(self, campaign_id: UUID) -> dict[UUID, UUID]:
        """Return the items of a campaign by their old ids. Raises `TransferFileError`."""
        new, entry = (
            self.find("campaign", campaign_id),
            self._entries.get(("campaign", campaign_id)),
        )
        if new is None or entry is None:
            return {}
        old = await self._run(lambda: list_item_ids(unpack_campaign(self._read(entry.path))))
        query = select(CampaignItem.id).where(
            CampaignItem.campaign_id == new, CampaignItem.user_id == self._owner_id
        )
        async with self._database.read() as session:
            found = list(await session.scalars(query.order_by(CampaignItem.id)))
        # Items that were created since the import have later ids.
        return dict(zip(old, found, strict=False))

    async def find_messages(self, chat_id: UUID) -> dict[UUID, NewMessage]:
        """Return the messages of a chat by their old ids, without those deleted since."""
        new = self.find("chat", chat_id)
        lines = await self._read_lines(chat_id) if new is not None else ()
        if not lines:
            return {}
        query = (
            select(
                Message.id, Message.parent_id, Message.role, Message.created_at, Message.position
            )
            .where(Message.chat_id == new, Message.user_id == self._owner_id)
            .order_by(Message.position, Message.id)
        )
        siblings: defaultdict[tuple[UUID | None, str, datetime], deque[NewMessage]] = defaultdict(
            deque
        )
        async with self._database.read() as session:
            async for row in stream_rows(session, query):
                place = row.parent_id, row.role, row.created_at
                siblings[place].append(NewMessage(row.id, row.position))
        found: dict[UUID, NewMessage] = {}
        for line in lines:
            parent = found.get(line.parent_id) if line.parent_id else None
            if line.parent_id is not None and parent is None:
                continue
            place = parent.id if parent else None, line.role, line.created_at
            if alike := siblings.get(place):
                found[line.id] = alike.popleft()
        return found

    async def _read_lines(self, chat_id: UUID) -> Sequence[_Line]:
        entry = self._entries.get(("chat", chat_id))
        if entry is not None:
            return await self._run(lambda: _list_lines(read_log(self._read(entry.path))))
        home = self._chat_homes.get(chat_id)
        if home is None or home.id is None:
            return ()
        if self._campaign is None or self._campaign[0] != home.id:
            # Only the last campaign is kept: its chats are asked for one after the other.
            self._campaign = None
            logs = await self._run(lambda: list_chat_logs(unpack_campaign(self._read(home.path))))
            self._campaign = home.id, {log.head.id: _list_lines(log) for log in logs}
        return self._campaign[1].get(chat_id, ())

    async def _read_record(self, path: str, kind: type[T]) -> T | None:
        """Read a file, or return None if it is missing or damaged: its own step reports that."""
        if path not in self._paths:
            return None
        try:
            return await self._run(lambda: read_record(self._read(path), kind))
        except TransferFileError:
            return None

    def _read(self, path: str) -> bytes:
        if path not in self._paths:
            raise TransferFileError(f"{path} is missing in the archive.")
        return read_file(self._context.tree, path)

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._pool.run(self._owner_id, work, is_job=True)


def _list_lines(log: ChatLog) -> list[_Line]:
    return [
        _Line(line.id, line.parent_id, line.role, line.created_at.astimezone(UTC))
        for line in log.lines
    ]


def translate_audience(column: str, items: Mapping[UUID, UUID]) -> str:
    """Return the value of an audience column with the new ids of its entities.

    Entities that were not imported are removed. If none is left, only the game master may know it.
    """
    audience = decode_audience(column)
    if isinstance(audience, str):
        return audience
    found = [items[each] for each in audience if each in items]
    return encode_audience(found) if found else GM
