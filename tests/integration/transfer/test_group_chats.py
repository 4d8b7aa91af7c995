"""Group chats of files: who speaks, who takes part, and the settings of the chat."""

from __future__ import annotations

from uuid import UUID

import pytest

from backend.database.base import new_id
from backend.transfer.contracts import ChatTarget
from tests.integration.turns.seeding import identity_of
from tests.support.memory import new_book, preview
from tests.support.server import Account, Running, ok
from tests.support.shared import ada, server, shared_url
from tests.support.stored_chats import make_header, make_line, read, report_nothing, write_lines

__all__ = ["ada", "server", "shared_url"]

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

API = "/api/v1"
LINES = [
    make_line("Who goes there?", original_avatar="Mara2.png", force_avatar="/Mara2.png"),
    make_line("Me.", is_user=True, minute=1),
    make_line("And me.", name="Jon", original_avatar="Jon.png", minute=2),
    make_line("And I.", name="Jon", minute=3),
    make_line("Somebody else.", name="Nobody", original_avatar="Gone.png", minute=4),
]


async def import_group(server: Running, ada: Account, data: bytes) -> tuple[str, list[str]]:
    """Import a chat of Mara and Jon with a persona and a lorebook. Return its id, and theirs."""
    mara = (await ada.new_character(name="Mara"))["id"]
    jon = (await ada.new_character(name="Jon"))["id"]
    persona = ok(await ada.client.post(f"{API}/personas", json={"name": "Ada"}), 201)["id"]
    book = await new_book(ada, {"keys": ["gate"], "content": "The gate is locked."})
    target = ChatTarget(
        file_name="1709287440.jsonl",
        digest=new_id().bytes,
        members=[UUID(jon), UUID(mara)],
        speakers={"Mara2.png": UUID(mara), "Jon.png": UUID(jon), "Jon": UUID(jon)},
        personas={"ada.png": UUID(persona), "Ada": UUID(persona)},
        lorebook_id=UUID(book),
    )
    result = await server.parts.chat_importer.store(
        await identity_of(server, ada), read(data), target, report=report_nothing
    )
    return str(result.item_id), [mara, jon, persona, book]


async def test_each_member_speaks_its_own_lines(server: Running, ada: Account) -> None:
    chat_id, [mara, jon, persona, book] = await import_group(server, ada, write_lines(LINES))
    chat = ok(await ada.client.get(f"{API}/chats/{chat_id}"))
    assert chat["character_ids"] == [jon, mara]
    messages = await ada.messages(chat_id)
    assert [each["character_id"] for each in messages] == [mara, None, jon, jon, None]
    assert [each["persona_id"] for each in messages] == [None, persona, None, None, None]
    books = ok(await ada.client.get(f"{API}/chats/{chat_id}/lorebooks"))["items"]
    assert [each["lorebook"]["id"] for each in books] == [book]


async def test_a_chat_without_a_header_comes_out_with_one(server: Running, ada: Account) -> None:
    data = write_lines(LINES)
    chat_id, _ = await import_group(server, ada, data)
    answer = await ada.client.get(f"{API}/chats/{chat_id}/export")
    header, _, rest = answer.content.partition(b"\n")
    assert b'"chat_metadata":{}' in header
    assert rest == data + b"\n"


async def test_play_goes_on_in_an_imported_chat(server: Running, ada: Account) -> None:
    header = make_header(persona="ada.png", note_prompt="Whisper.", scenario="At the gate.")
    chat_id, [_, _, persona, _] = await import_group(server, ada, write_lines([header, *LINES]))
    assert ok(await ada.client.get(f"{API}/chats/{chat_id}"))["persona_id"] == persona
    context = await preview(ada, chat_id, "I knock at the gate.")
    prompt = "\n".join(part["text"] for part in context["prompt"])
    for text in ("Who goes there?", "Whisper.", "At the gate.", "The gate is locked."):
        assert text in prompt
    await ada.turn(chat_id, text="I knock at the gate.")
    answer = await ada.client.get(f"{API}/chats/{chat_id}/export")
    assert answer.content.startswith(write_lines([header, *LINES]))
    assert len(answer.content.splitlines()) == 8
