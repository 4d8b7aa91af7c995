"""Imports of folders in memory, with a simple reader and store of chats."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.errors import AppError
from backend.transfer.contracts import (
    ChatTarget,
    ImportContext,
    ImportOptions,
    ReportMessages,
    StepResult,
)
from backend.transfer.errors import TransferFileError
from backend.transfer.folders.planner import SillyTavernPlanner
from backend.transfer.folders.run import FolderServices
from backend.transfer.formats.chat_file import ChatHead, ChatReading, FileMessage, FileSwipe
from backend.transfer.imported import record_imported
from tests.integration.turns.seeding import identity_of
from tests.support.server import Account, Running


@dataclass
class MemoryTree:
    """A tree of files in memory, which counts how often each one is opened."""

    files: dict[str, bytes]
    name: str = "SillyTavern.zip"
    opened: dict[str, int] = field(default_factory=dict[str, int])

    def list_paths(self) -> Sequence[str]:
        return list(self.files)

    def get_size(self, path: str) -> int:
        return len(self.files[path])

    def open(self, path: str) -> BinaryIO:
        self.opened[path] = self.opened.get(path, 0) + 1
        return io.BytesIO(self.files[path])


@dataclass
class StoredChat:
    """A chat that was stored: its head, its target and the texts of its messages."""

    id: UUID
    head: ChatHead
    target: ChatTarget
    texts: list[str]


@dataclass
class Importing:
    """Imports folders into an account."""

    server: Running
    account: Account
    chats: list[StoredChat] = field(default_factory=list[StoredChat])

    async def run(
        self, files: dict[str, bytes], *, first: int | None = None, **options: Any
    ) -> dict[str, StepResult]:
        """Import files, and return the result of each. `first` stops after that many steps."""
        identity = await identity_of(self.server, self.account)
        planner = SillyTavernPlanner(self._list_services())
        tree = MemoryTree(files)
        assert planner.matches(tree)
        context = ImportContext(
            identity=identity,
            tree=tree,
            options=ImportOptions(**options),
            report=self._report,
        )
        results: dict[str, StepResult] = {}
        async for step in planner.plan(context):
            if len(results) == first:
                return results
            assert step.path not in results
            try:
                results[step.path] = await step.run(context)
            except AppError as error:
                results[step.path] = StepResult(outcome="failed", detail=error.detail)
        assert planner.count(tree) == len(results)
        return results

    def find_chat(self, file_name: str) -> StoredChat:
        return next(chat for chat in self.chats if chat.target.file_name == file_name)

    def _list_services(self) -> FolderServices:
        parts = self.server.parts
        return FolderServices(
            database=parts.database,
            pool=parts.cpu_pool,
            characters=parts.characters,
            avatars=parts.avatars,
            personas=parts.personas,
            lorebooks=parts.lorebooks,
            links=parts.lorebook_links,
            presets=parts.presets,
            scripts=parts.scripts,
            profile=parts.profile,
            providers=parts.providers,
            chats=parts.chats,
            read_chat=read_lines,
            store_chat=self._store,
        )

    async def _report(self, _messages: int) -> None:
        return

    async def _store(
        self,
        identity: Identity,
        reading: ChatReading,
        target: ChatTarget,
        *,
        report: ReportMessages,
    ) -> StepResult:
        texts = [message.swipes[message.selected].text for message in reading.messages]
        await report(len(texts))
        chat_id = target.joins
        if chat_id is None:
            opened = await self.server.parts.chats.open(
                identity,
                title=reading.head.title or target.file_name,
                character_ids=target.members,
                persona_id=target.personas.get(reading.head.persona),
                greetings=(),
            )
            chat_id = opened.id
        async with self.server.parts.database.write() as session:
            await record_imported(
                session, identity.sealer, digest=target.digest, kind="chat", item_id=chat_id
            )
        self.chats.append(StoredChat(chat_id, reading.head, target, texts))
        return StepResult(outcome="imported", kind="chat", item_id=chat_id)


def read_lines(file: BinaryIO, *, name: str) -> Iterator[ChatReading]:
    """Read the members of a chat that the importer of folders uses."""
    header = _parse(file.readline())
    metadata = header.get("chat_metadata", {})
    head = ChatHead(
        title=name.removesuffix(".jsonl"),
        lorebook=metadata.get("world_info", ""),
        persona=metadata.get("persona", ""),
        main_chat=metadata.get("main_chat", ""),
        source=json.dumps(header).encode(),
    )
    yield ChatReading(head, map(_read_message, file))


def _read_message(line: bytes) -> FileMessage:
    value = _parse(line)
    return FileMessage(
        role="user" if value["is_user"] else "assistant",
        author=value["name"],
        swipes=[FileSwipe(text=value["mes"])],
    )


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise TransferFileError("Line 1 is not valid JSON.") from error
    return value
