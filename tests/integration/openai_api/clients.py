"""Lists of a client, and the parts of the endpoint that recognise them in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import select

from backend.accounts.auth.identity import Identity
from backend.characters.card_rows import make_rows
from backend.characters.cards.model import Card
from backend.chats import repository, tree
from backend.chats.drafts import MessageDraft, make_message
from backend.chats.events import notify_path_moved
from backend.chats.models import MESSAGE_CONTENT, Chat, Message
from backend.chats.token_counting import CountUnit
from backend.core.cpu_pool import CpuPool
from backend.database.base import new_id
from backend.database.engine import Database
from backend.jobs.queue import JobQueue
from backend.memory.indexing.outbox import IndexOutbox
from backend.openai_api.contracts import ChatPlacement, Line, StoredConversation
from backend.openai_api.conversation_writer import ConversationWriter
from backend.openai_api.conversations import ConversationFinder, ConversationScope
from backend.openai_api.new_conversations import ConversationImporter
from backend.openai_api.stored_paths import PathCache
from backend.quotas.service import CheckAdded
from backend.regex.process import RegexProcess
from backend.regex.scripts import ScriptEngine
from backend.turns.api.openings import OpeningService
from backend.vault.root import RootKeys
from tests.integration.chats.trees import ALL_ARE_ADA, PARTICIPANTS, Grove, sign_up
from tests.support.stored_chats import ChatShelf

NO_BOOKS: Any = None
"""The cards of these tests have no lorebooks."""

Sent = tuple[Literal["user", "assistant"], str]
"""A message of a client's list."""


def make_lines(messages: Sequence[Sent]) -> list[Line]:
    return [
        Line(role=role, text=text, author="", place=place)
        for place, (role, text) in enumerate(messages)
    ]


def make_merged(role: Literal["user", "assistant"], *pieces: str, place: int = 0) -> Line:
    """Return a message of a client that merges neighbours."""
    return Line(role=role, text="\n\n".join(pieces), author="", place=place, pieces=pieces)


@dataclass
class Desk:
    """The store of one user with one character, and the endpoint's services for it."""

    database: Database
    identity: Identity
    character_id: UUID = field(default_factory=new_id)
    checks: Sequence[CheckAdded] = ()

    def __post_init__(self) -> None:
        self.pool = CpuPool()
        self.grove = Grove(self.database, self.identity)
        self.paths = PathCache()
        self.finder = ConversationFinder(self.database, self.pool, self.paths)
        self.writer = ConversationWriter(
            self.database,
            IndexOutbox(JobQueue(self.database, RootKeys({1: b"r" * 32}))),
            self.pool,
            messages=self.grove.messages,
            accounts=ALL_ARE_ADA,
            participants=PARTICIPANTS,
            checks_added=self.checks,
        )
        openings = OpeningService(
            self.database,
            self.grove.chats,
            pool=self.pool,
            scripts=ScriptEngine(RegexProcess()),
            accounts=ALL_ARE_ADA,
            longest_message=100_000,
        )
        shelf = ChatShelf(self.database, self.identity, checks=self.checks, pool=self.pool)
        self.importer = ConversationImporter(
            self.database,
            self.pool,
            chats=self.grove.chats,
            openings=openings,
            store_chat=shelf.importer.store,
        )

    @classmethod
    async def open(cls, database: Database, *greetings: str) -> Desk:
        """Sign up a user who has one character, Mara."""
        desk = cls(database, await sign_up(database))
        first, *others = greetings or ("Hello.",)
        card = Card(name="Mara", first_mes=first, alternate_greetings=others)
        desk.character_id = await desk.add_character(card)
        return desk

    async def add_character(self, card: Card) -> UUID:
        rows = make_rows(self.identity.sealer, card, NO_BOOKS)
        async with self.database.write() as session:
            session.add(rows.character)
        return rows.character.id

    async def find(
        self,
        messages: Sequence[Sent] | Sequence[Line],
        *,
        chat_id: UUID | None = None,
        may_be_prefill: bool = True,
    ) -> ChatPlacement:
        lines = [each if isinstance(each, Line) else make_lines([each])[0] for each in messages]
        scope = ConversationScope(kind="character", id=self.character_id)
        if chat_id is not None:
            scope = ConversationScope(kind="chat", id=chat_id)
        return await self.finder.find(self.identity, lines, scope, may_be_prefill=may_be_prefill)

    async def store(self, messages: Sequence[Sent]) -> UUID:
        """Store a list as a new chat."""
        stored = await self.importer.store(
            self.identity, make_lines(messages), character_ids=[self.character_id]
        )
        return stored.chat_id

    async def send(
        self, messages: Sequence[Sent], reply: str, *, chat_id: UUID | None = None
    ) -> UUID:
        """Take a turn as the endpoint does: find, write, and store the line with its reply."""
        for _ in range(3):
            placement = await self.find(messages, chat_id=chat_id)
            tail = list(placement.tail)
            line = tail.pop() if tail and tail[-1].role == "user" else None
            stored = await self._write(placement, tail)
            if stored is not None:
                break
        else:
            raise AssertionError("The chat changes again and again.")
        leaf = stored.leaf_id
        if line is not None:
            leaf = await self.add(stored.chat_id, leaf, "user", line.text)
        await self.add(stored.chat_id, leaf, "assistant", reply)
        return stored.chat_id

    async def _write(
        self, placement: ChatPlacement, tail: Sequence[Line]
    ) -> StoredConversation | None:
        if placement.chat_id is None:
            return await self.importer.store(self.identity, tail, character_ids=[self.character_id])
        return await self.writer.apply(self.identity, placement, tail)

    async def add(
        self,
        chat_id: UUID,
        parent_id: UUID | None,
        role: Literal["user", "assistant"],
        text: str,
    ) -> UUID:
        """Store a message below another one, as a turn does."""
        async with self.database.write() as session:
            chat = await repository.get_chat(
                session, chat_id, owner_id=self.identity.user_id, lock=True
            )
            draft = MessageDraft(role=role, author="", text=text)
            message = make_message(
                self.identity.sealer, draft, unit=CountUnit.parse(chat.count_unit)
            )
            parent = await session.get(Message, parent_id) if parent_id else None
            moved = await tree.attach_message(session, chat, message, parent=parent)
            await notify_path_moved(PARTICIPANTS, session, self.identity.sealer, chat, moved)
            return message.id

    async def load_path(self, chat_id: UUID) -> list[Message]:
        """Return the active path, with hidden messages."""
        query = (
            select(Message)
            .where(Message.chat_id == chat_id, Message.is_active)
            .order_by(Message.position)
        )
        async with self.database.read() as session:
            return list(await session.scalars(query))

    def read(self, message: Message) -> str:
        return self.identity.sealer.open(MESSAGE_CONTENT, message.id, message.sealed_content)

    async def show(self, chat_id: UUID) -> list[str]:
        """Return the texts of the active path that are not hidden."""
        return [self.read(each) for each in await self.load_path(chat_id) if not each.hidden]

    async def list_messages(self, chat_id: UUID) -> list[Message]:
        query = select(Message).where(Message.chat_id == chat_id).order_by(Message.id)
        async with self.database.read() as session:
            return list(await session.scalars(query))

    async def list_chats(self) -> list[UUID]:
        async with self.database.read() as session:
            return list(await session.scalars(select(Chat.id).order_by(Chat.id)))

    async def check_sums(self, chat_id: UUID) -> None:
        """Assert the invariants of a chat's tree."""
        rows = {row.id: row for row in await self.list_messages(chat_id)}
        unit = self.grove.expected.unit
        for row in rows.values():
            above = rows[row.parent_id].path_tokens if row.parent_id else 0
            assert row.path_tokens == above + (0 if row.hidden else row.tokens)
            assert row.tokens == unit.count("", self.read(row))
