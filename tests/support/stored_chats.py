"""Chat files as SillyTavern writes them, and services that import and export them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from uuid import UUID

import msgspec
from sqlalchemy import delete, func, select

from backend.accounts.auth.identity import Identity
from backend.characters.errors import CharacterNotFoundError
from backend.chats.deletion import delete_hidden_chat
from backend.chats.models import Chat, Message, StoredFile
from backend.core.cpu_pool import CpuPool
from backend.database.base import Base, new_id
from backend.database.engine import Database
from backend.generation.registry import ModelRegistry
from backend.jobs.deletions import DELETE_KIND
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue
from backend.llm.user_models import UserModels
from backend.memory.indexing.outbox import IndexOutbox
from backend.operations.deletions import Deletions
from backend.quotas.service import CheckAdded
from backend.settings import Settings
from backend.transfer.chats.exporting import ChatExporter, ExportFormat
from backend.transfer.chats.storing import ChatImporter
from backend.transfer.contracts import ChatTarget, ReportMessages, StepResult
from backend.transfer.formats.chat_file import ChatReading
from backend.transfer.formats.sillytavern import read_sillytavern
from backend.vault.root import RootKeys

ROOT = RootKeys({1: b"r" * 32})
ABOUT_ADA = "Ada"


def encode(value: object) -> bytes:
    """Encode a value as `JSON.stringify` does."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def make_header(**metadata: Any) -> dict[str, Any]:
    return {
        "user_name": "Ada",
        "character_name": "Mara",
        "create_date": "2024-03-01@10h00m00s",
        "chat_metadata": {"integrity": "0b5c", **metadata},
    }


def make_line(text: str, *, is_user: bool = False, minute: int = 0, **more: Any) -> dict[str, Any]:
    """Return a message without swipes."""
    return {
        "name": "Ada" if is_user else "Mara",
        "is_user": is_user,
        "is_system": False,
        "send_date": f"March 1, 2024 10:{minute:02}am",
        "mes": text,
        "extra": {},
        **more,
    }


def make_swiped(texts: Sequence[str], selected: int = 0, **more: Any) -> dict[str, Any]:
    """Return a reply with swipes, each with its own time and count."""
    infos = [
        {"send_date": f"March 1, 2024 11:{n:02}am", "extra": {"token_count": 10 + n}}
        for n in range(len(texts))
    ]
    return {
        **make_line(texts[selected]),
        **infos[selected],
        "swipe_id": selected,
        "swipes": list(texts),
        "swipe_info": infos,
        **more,
    }


def write_lines(lines: Iterable[object]) -> bytes:
    return b"\n".join(each if isinstance(each, bytes) else encode(each) for each in lines)


def read(data: bytes | BinaryIO, name: str = "Mara - 2024-03-01.jsonl") -> ChatReading:
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    [reading] = read_sillytavern(file, name=name)
    return reading


async def export_no_card(*_: Any, **__: Any) -> Any:
    raise CharacterNotFoundError


async def report_nothing(_count: int) -> None:
    """A `ReportMessages`."""


async def delete_abandoned(database: Database) -> None:
    """Delete abandoned chats as the server does every five minutes, by jobs."""
    await Deletions(database, JobQueue(database, ROOT)).schedule()
    async with database.write() as session:
        ended = delete(Job).where(Job.kind == DELETE_KIND).returning(Job.payload)
        jobs = list(await session.scalars(ended))
    for payload in jobs:
        await delete_hidden_chat(database, UUID(msgspec.json.decode(payload)["id"]))


@dataclass
class ChatShelf:
    """Imports and exports chats of one user."""

    database: Database
    identity: Identity
    checks: Sequence[CheckAdded] = ()
    pool: CpuPool = field(default_factory=CpuPool)

    def __post_init__(self) -> None:
        values: dict[str, Any] = {"_env_file": None}
        settings = Settings(**values)
        self.importer = ChatImporter(
            self.database,
            IndexOutbox(JobQueue(self.database, ROOT)),
            self.pool,
            settings,
            user_models=UserModels(ModelRegistry(), settings, ROOT),
            checks_added=self.checks,
        )
        self.exporter = ChatExporter(
            self.database, self.pool, name_of=lambda _: ABOUT_ADA, export_card=export_no_card
        )

    async def store(
        self,
        data: bytes | BinaryIO,
        name: str = "Mara - 2024-03-01.jsonl",
        *,
        report: ReportMessages = report_nothing,
        **target: Any,
    ) -> StepResult:
        made = ChatTarget(file_name=name, digest=new_id().bytes, **target)
        return await self.importer.store(self.identity, read(data, name), made, report=report)

    async def add(self, data: bytes, name: str = "Mara - 2024-03-01.jsonl", **target: Any) -> UUID:
        """Store a chat, and return its id."""
        result = await self.store(data, name, **target)
        assert result.item_id is not None
        return result.item_id

    async def export(self, chat_id: UUID, file_format: ExportFormat = "jsonl") -> bytes:
        download = await self.exporter.open(self.identity, chat_id, file_format)
        return b"".join([chunk async for chunk in download.chunks])

    async def export_lines(self, chat_id: UUID) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (await self.export(chat_id)).splitlines()]

    async def count(self, table: type[Base]) -> int:
        async with self.database.read() as session:
            return await session.scalar(select(func.count()).select_from(table)) or 0

    async def count_rows(self) -> tuple[int, int, int]:
        """Return the numbers of stored chats, messages and files."""
        chats, messages, files = [await self.count(each) for each in (Chat, Message, StoredFile)]
        return chats, messages, files
