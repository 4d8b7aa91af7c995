"""Imports of folders in memory."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, BinaryIO
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.errors import AppError
from backend.transfer.chats.storing import ChatImporter
from backend.transfer.contracts import (
    ChatTarget,
    ImportContext,
    ImportOptions,
    ReportMessages,
    StepResult,
)
from backend.transfer.folders.planner import SillyTavernPlanner
from backend.transfer.formats.chat_file import ChatHead, ChatReading
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
    """A chat that was stored, with its head and target."""

    id: UUID
    head: ChatHead
    target: ChatTarget


@dataclass
class Importing:
    """Imports folders into an account."""

    server: Running
    account: Account
    chats: list[StoredChat] = field(default_factory=list[StoredChat])

    @cached_property
    def importer(self) -> ChatImporter:
        parts = self.server.parts
        return ChatImporter(
            parts.database,
            parts.index,
            parts.cpu_pool,
            parts.settings,
            user_models=parts.user_models,
            checks_added=(),
        )

    async def run(
        self, files: dict[str, bytes], *, first: int | None = None, **options: Any
    ) -> dict[str, StepResult]:
        """Import files, and return the result of each. `first` stops after that many steps."""
        identity = await identity_of(self.server, self.account)
        planner = SillyTavernPlanner(
            replace(self.server.parts.import_services, store_chat=self._store)
        )
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
        result = await self.importer.store(identity, reading, target, report=report)
        assert result.item_id is not None
        self.chats.append(StoredChat(result.item_id, reading.head, target))
        return result
