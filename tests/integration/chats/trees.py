"""A chat's message tree in the database, and a simple model of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import select

from backend.accounts.auth.identity import Identity
from backend.accounts.models import User
from backend.campaigns.chat_events import CampaignSessions
from backend.campaigns.state.viewpoints import find_player_name
from backend.characters.repository import find_names
from backend.chats import repository, tree
from backend.chats.drafts import MessageDraft, make_message
from backend.chats.events import notify_path_moved
from backend.chats.messages import MessageService
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.service import ChatService
from backend.chats.token_counting import CountUnit, recount_chat
from backend.chronicles.chat_chronicles import ChatChronicles
from backend.core.cpu_pool import CpuPool
from backend.core.events import Participants
from backend.database.base import new_id
from backend.database.engine import Database
from backend.generation.registry import ModelRegistry
from backend.jobs.queue import JobQueue
from backend.llm.user_models import UserModels
from backend.memory.indexing.outbox import IndexOutbox
from backend.operations.deletions import Deletions
from backend.regex.process import RegexProcess
from backend.regex.scripts import ScriptEngine
from backend.regex.service import ScriptService
from backend.settings import Settings
from backend.turns.prompt.macros import LineMacroService
from backend.vault.root import RootKeys
from backend.vault.sealing import KEY_BYTES, Sealer


def called_ada(_: Identity) -> str:
    return "Ada"


ALL_ARE_ADA: Any = SimpleNamespace(name_of=called_ada)
"""The account service that regex scripts need."""

PARTICIPANTS = Participants(CampaignSessions())
AUTHORS: dict[Literal["user", "assistant"], str] = {"user": "Ada", "assistant": "Mara"}


async def sign_up(database: Database) -> Identity:
    user_id, user_key = new_id(), os.urandom(KEY_BYTES)
    user = User(
        id=user_id,
        name_lookup=user_id.bytes,
        wrapped_name=b"",
        wrapped_derivation_key=b"",
        settings_mac=b"",
        sealed_settings=None,
    )
    async with database.write() as session:
        session.add(user)
    sealer = Sealer(user_id, {1: os.urandom(KEY_BYTES)}, user_key=user_key)
    return Identity(user, new_id(), "session", "manage", sealer)


@dataclass
class Node:
    parent: UUID | None
    role: Literal["user", "assistant"]
    text: str
    hidden: bool = False


@dataclass
class Expected:
    """The expected tree. `nodes` keeps the order in which messages were created."""

    unit: CountUnit
    nodes: dict[UUID, Node] = field(default_factory=dict[UUID, Node])
    selected: dict[UUID | None, UUID] = field(default_factory=dict[UUID | None, UUID])
    leaf: UUID | None = None

    def children(self, parent: UUID | None) -> list[UUID]:
        return [key for key, node in self.nodes.items() if node.parent == parent]

    def path(self, key: UUID | None) -> list[UUID]:
        path: list[UUID] = []
        while key is not None:
            path.insert(0, key)
            key = self.nodes[key].parent
        return path

    def subtree(self, key: UUID) -> Iterator[UUID]:
        yield key
        for child in self.children(key):
            yield from self.subtree(child)

    def add(self, key: UUID, node: Node) -> None:
        self.nodes[key] = node
        self.choose(key)

    def choose(self, leaf: UUID | None) -> None:
        self.leaf = leaf
        for key in self.path(leaf):
            self.selected[self.nodes[key].parent] = key

    def end_below(self, key: UUID) -> UUID:
        while key in self.selected:
            key = self.selected[key]
        return key

    def remove(self, key: UUID) -> int:
        parent = self.nodes[key].parent
        family = self.children(parent)
        place = family.index(key)
        heir = family[place - 1] if place else next(iter(family[1:]), None)
        if key in self.path(self.leaf):
            self.choose(self.end_below(heir) if heir else parent)
        elif self.selected.get(parent) == key and heir:
            self.selected[parent] = heir
        gone = list(self.subtree(key))
        for each in gone:
            del self.nodes[each]
            self.selected.pop(each, None)
        if self.selected.get(parent) == key:
            del self.selected[parent]
        return len(gone)

    def tokens(self, key: UUID) -> int:
        node = self.nodes[key]
        return self.unit.count(AUTHORS[node.role], node.text)

    def path_tokens(self, key: UUID) -> int:
        return sum(self.tokens(each) for each in self.path(key) if not self.nodes[each].hidden)


class Grove:
    """A chat in the database and its model, which change together."""

    def __init__(self, database: Database, identity: Identity) -> None:
        self.database = database
        self.identity = identity
        values: dict[str, Any] = {"_env_file": None}
        settings = Settings(**values)
        queue = JobQueue(database, RootKeys({1: b"r" * 32}))
        index = IndexOutbox(queue)
        pool = CpuPool()
        self.chats = ChatService(
            database,
            UserModels(ModelRegistry(), settings, RootKeys({1: b"r" * 32})),
            settings,
            index,
            pool=pool,
            chronicle=ChatChronicles(index).choose,
            find_names=find_names,
            participants=Participants(CampaignSessions(), Deletions(database, queue)),
        )
        self.messages = MessageService(
            database,
            settings,
            index,
            pool=pool,
            scripts=ScriptService(
                database,
                ScriptEngine(RegexProcess()),
                pool,
                accounts=ALL_ARE_ADA,
                find_player_name=find_player_name,
            ),
            macros=LineMacroService(database, pool, accounts=ALL_ARE_ADA),
            participants=PARTICIPANTS,
        )
        self.pool = pool
        self.expected = Expected(CountUnit("o200k_base", names=False))
        self.chat_id = UUID(int=0)

    async def plant(self, *greetings: str) -> None:
        """Open the chat. Its greetings are roots, and the first one is active."""
        opened = await self.chats.open(
            self.identity,
            title="A chat",
            character_ids=[],
            persona_id=None,
            greetings=[
                MessageDraft(role="assistant", author=AUTHORS["assistant"], text=text)
                for text in greetings
            ],
        )
        self.chat_id = opened.id
        for row in await self.rows():
            text = self.identity.sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
            self.expected.nodes[row.id] = Node(None, "assistant", text)
        if greetings:
            self.expected.choose(next(iter(self.expected.nodes)))

    async def rows(self) -> list[Message]:
        query = select(Message).where(Message.chat_id == self.chat_id).order_by(Message.id)
        async with self.database.read() as session:
            return list(await session.scalars(query))

    async def read(self, key: UUID | None) -> Message | None:
        """Read a message in a separate transaction, as a turn does."""
        async with self.database.read() as session:
            return await session.get(Message, key) if key else None

    async def attach(self, text: str, *, parent: UUID | None) -> UUID:
        return await self.attach_below(await self.read(parent), text)

    async def attach_below(self, row: Message | None, text: str) -> UUID:
        """Add a message below one that was read earlier."""
        parent = row.id if row else None
        above = self.expected.nodes[parent].role if parent else "user"
        role: Literal["user", "assistant"] = "user" if above == "assistant" else "assistant"
        async with self.database.write() as session:
            chat = await repository.get_chat(
                session, self.chat_id, owner_id=self.identity.user_id, lock=True
            )
            message = make_message(
                self.identity.sealer,
                MessageDraft(role=role, author=AUTHORS[role], text=text),
                unit=CountUnit.parse(chat.count_unit),
            )
            moved = await tree.attach_message(session, chat, message, parent=row)
            await notify_path_moved(PARTICIPANTS, session, self.identity.sealer, chat, moved)
        self.expected.add(message.id, Node(parent, role, text))
        return message.id

    async def append(self, text: str) -> UUID:
        return await self.attach(text, parent=self.expected.leaf)

    async def regenerate(self, key: UUID, text: str) -> None:
        await self.attach(text, parent=self.expected.nodes[key].parent)

    async def edit(self, key: UUID, text: str) -> None:
        view = await self.messages.edit(self.identity, key, text)
        old = self.expected.nodes[key]
        self.expected.add(view.id, Node(old.parent, old.role, text, old.hidden))

    async def activate(self, key: UUID, *, follow: bool) -> None:
        await self.messages.activate(self.identity, key, follow=follow)
        self.expected.choose(self.expected.end_below(key) if follow else key)

    async def hide(self, key: UUID, *, hidden: bool) -> None:
        await self.messages.hide(self.identity, key, hidden=hidden)
        self.expected.nodes[key].hidden = hidden

    async def delete(self, key: UUID) -> None:
        gone = await self.messages.delete(self.identity, key)
        assert gone.deleted == self.expected.remove(key)
        assert gone.leaf_id == self.expected.leaf

    async def recount(self, unit: CountUnit) -> None:
        assert await recount_chat(
            self.database, self.pool, self.identity.sealer, self.chat_id, unit
        )
        self.expected.unit = unit

    async def fork(self, key: UUID) -> Grove:
        """Copy the path to a message to a new chat."""
        view = await self.chats.fork(self.identity, self.chat_id, message_id=key, title=None)
        copy = Grove(self.database, self.identity)
        copy.chat_id = view.id
        copy.expected.unit = self.expected.unit
        rows = sorted(await copy.rows(), key=lambda row: row.position)
        parent: UUID | None = None
        for original, row in zip(self.expected.path(key), rows, strict=True):
            node = self.expected.nodes[original]
            copy.expected.add(row.id, Node(parent, node.role, node.text, node.hidden))
            parent = row.id
        return copy

    async def check(self) -> None:
        expected, sealer = self.expected, self.identity.sealer
        rows = {row.id: row for row in await self.rows()}
        async with self.database.read() as session:
            chat = await session.get_one(Chat, self.chat_id)
        assert chat.count_unit == str(expected.unit)
        assert chat.leaf_id == expected.leaf
        assert rows.keys() == expected.nodes.keys()
        active = expected.path(expected.leaf)
        assert [
            row.id for row in sorted(rows.values(), key=lambda row: row.position) if row.is_active
        ] == active
        for key, node in expected.nodes.items():
            row = rows[key]
            assert sealer.open(MESSAGE_CONTENT, key, row.sealed_content) == node.text
            assert sealer.open(MESSAGE_AUTHOR, key, row.sealed_author) == AUTHORS[node.role]
            assert (row.parent_id, row.role, row.hidden) == (node.parent, node.role, node.hidden)
            assert row.position == len(expected.path(key)) - 1
            assert row.is_selected == (expected.selected.get(node.parent) == key)
            assert row.tokens == expected.tokens(key)
            assert row.path_tokens == expected.path_tokens(key)
