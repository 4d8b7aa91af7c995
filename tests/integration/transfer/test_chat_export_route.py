"""The route that exports a chat."""

from __future__ import annotations

import io
import zipfile

import pytest
from sqlalchemy import func, select

from backend.database.base import new_id
from backend.transfer.contracts import ChatTarget
from backend.transfer.models import ImportedFile
from tests.integration.turns.seeding import identity_of
from tests.support.server import Account, Running, ok, problem
from tests.support.shared import ada, chat, server, shared_url
from tests.support.stored_chats import make_header, make_line, read, report_nothing, write_lines

__all__ = ["ada", "chat", "server", "shared_url"]

pytestmark = pytest.mark.anyio

API = "/api/v1"


@pytest.mark.parametrize(
    ("file_format", "media_type", "extension"),
    [
        ("jsonl", "application/x-ndjson", "jsonl"),
        ("markdown", "text/markdown; charset=utf-8", "md"),
        ("text", "text/plain; charset=utf-8", "txt"),
        ("archive", "application/zip", "zip"),
    ],
)
async def test_a_chat_is_downloaded_under_its_title(
    ada: Account, file_format: str, media_type: str, extension: str
) -> None:
    made = await ada.new_chat(title="Über Bord/../2")
    await ada.turn(made["id"], text="A storm!")
    path = f"{API}/chats/{made['id']}/export"
    answer = await ada.client.get(path, params={"format": file_format})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == media_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    disposition = answer.headers["content-disposition"]
    assert disposition.startswith("attachment;")
    assert disposition.endswith(f".{extension}")
    assert "%C3%9Cber" in disposition
    assert "/" not in disposition
    content = answer.content
    if file_format == "archive":
        content = zipfile.ZipFile(io.BytesIO(content)).read("chat.jsonl")
    assert b"A storm!" in content


async def test_an_unknown_format_and_an_unknown_chat_are_refused(ada: Account, chat: str) -> None:
    path = f"{API}/chats/{chat}/export"
    answer = await ada.client.get(path, params={"format": "pdf"})
    assert answer.status_code in {400, 422}
    unknown = await ada.client.get(f"{API}/chats/{new_id()}/export")
    problem(unknown, 404, "chat-not-found")


async def test_the_header_of_a_file_is_deleted_with_its_chat(server: Running, ada: Account) -> None:
    target = ChatTarget(file_name="Mara.jsonl", digest=new_id().bytes)
    result = await server.parts.chat_importer.store(
        await identity_of(server, ada),
        read(write_lines([make_header(), make_line("Hi.")])),
        target,
        report=report_nothing,
    )
    count = select(func.count()).where(ImportedFile.item_id == result.item_id)
    async with server.parts.database.read() as session:
        assert await session.scalar(count) == 1
    ok(await ada.client.delete(f"{API}/chats/{result.item_id}"), 204)
    async with server.parts.database.read() as session:
        assert await session.scalar(count) == 0
