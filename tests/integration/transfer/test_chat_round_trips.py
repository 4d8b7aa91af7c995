"""Chats of SillyTavern come out as they went in, with the changes made since."""

from __future__ import annotations

import io
import json
import zipfile
from base64 import b64encode
from typing import Any

import pytest
from sqlalchemy import select

from backend.chats.drafts import MessageDraft, make_message
from backend.chats.errors import ChatNotFoundError
from backend.chats.models import Message
from backend.chats.repository import get_chat
from backend.chats.token_counting import CountUnit
from backend.chats.transfer import read_log
from backend.chats.tree import attach_message
from backend.database.engine import Database
from backend.transfer.chats.exporting import ExportFormat
from tests.integration.chats.trees import Grove, sign_up
from tests.support.stored_chats import (
    ChatShelf,
    encode,
    make_header,
    make_line,
    make_swiped,
    write_lines,
)

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

NOTE = {
    "note_prompt": "It rains.",
    "note_interval": 2,
    "note_position": 1,
    "note_depth": 3,
    "note_role": 1,
}
FULL = write_lines(
    [
        make_header(
            **NOTE,
            variables={"gold": 12, "mood": "calm"},
            scenario="A flooded mill.",
            timedWorldInfo={"sticky": {}},
            cfg_groupchat_individual_chars=False,
        ),
        make_swiped(["The door creaks.", "Rain hammers the roof.", "Silence."], 1),
        make_line("I knock.", is_user=True, minute=1, force_avatar="ada.png", odd=[1.0, None]),
        make_line(
            "“Who is there?” 🦊\u000b",
            minute=2,
            extra={"reasoning": "She is afraid.", "reasoning_duration": 1200, "token_count": 7},
            gen_started="2024-03-01T10:02:00.000Z",
            gen_finished=None,
        ),
        make_line("/help", minute=3, is_system=True, extra={"type": "help"}),
        make_line("Years pass.", minute=4, extra={"type": "narrator"}, send_date=1709287440123),
        make_swiped(["A", "B"], 0, swipe_info=[{"extra": {"reasoning": "Short."}}]),
        make_line("", minute=5, title="", is_name=True),
    ]
)


async def plant(database: Database) -> tuple[ChatShelf, Grove]:
    identity = await sign_up(database)
    return ChatShelf(database, identity), Grove(database, identity)


async def test_a_chat_comes_out_byte_for_byte(database: Database) -> None:
    shelf, _ = await plant(database)
    chat_id = await shelf.add(FULL)
    assert (await shelf.export(chat_id)).removesuffix(b"\n") == FULL


async def test_swipes_become_siblings_and_the_chosen_one_is_on_the_path(
    database: Database,
) -> None:
    shelf, grove = await plant(database)
    chat_id = await shelf.add(FULL)
    page = await grove.messages.page(shelf.identity, chat_id, before=None, limit=20)
    assert [each.text for each in page.items[:3]] == [
        "Rain hammers the roof.",
        "I knock.",
        "“Who is there?” 🦊\u000b",
    ]
    assert [(each.sibling, each.sibling_count) for each in page.items[:2]] == [(2, 3), (1, 1)]
    assert page.items[2].thinking == "She is afraid."
    assert [each.role for each in page.items[3:5]] == ["system", "system"]
    assert [each.hidden for each in page.items] == [False, False, False, True, False, False, True]
    assert page.items[4].created_at.isoformat() == "2024-03-01T10:04:00.123000+00:00"


async def test_the_header_sets_the_settings_of_the_chat(database: Database) -> None:
    shelf, grove = await plant(database)
    chat_id = await shelf.add(FULL)
    settings, _ = await grove.chats.read_settings(shelf.identity, chat_id)
    assert settings.authors_note.text == "It rains."
    assert (settings.authors_note.interval, settings.authors_note.depth) == (2, 3)
    assert settings.authors_note.role == "user"
    assert settings.scenario == "A flooded mill."
    chat = await grove.chats.get(shelf.identity, chat_id)
    assert chat.title == "Mara - 2024-03-01"
    assert chat.created_at.isoformat() == "2024-03-01T10:00:00+00:00"


async def test_changes_of_the_settings_are_written_into_the_header(database: Database) -> None:
    shelf, grove = await plant(database)
    chat_id = await shelf.add(FULL)
    patch = {"scenario": "A dry mill.", "authors_note": {"text": "The sun shines."}}
    await grove.chats.patch_settings(shelf.identity, chat_id, patch, if_match=None)
    header, *_ = await shelf.export_lines(chat_id)
    metadata = header["chat_metadata"]
    assert metadata["scenario"] == "A dry mill."
    assert metadata["note_prompt"] == "The sun shines."
    assert metadata["note_depth"] == 3
    assert metadata["variables"] == {"gold": 12, "mood": "calm"}
    assert metadata["integrity"] == "0b5c"


async def test_an_edit_and_a_hidden_message_are_written(database: Database) -> None:
    shelf, grove = await plant(database)
    chat_id = await shelf.add(FULL)
    page = await grove.messages.page(shelf.identity, chat_id, before=None, limit=20)
    await grove.messages.hide(shelf.identity, page.items[1].id, hidden=True)
    await grove.messages.edit(shelf.identity, page.items[6].id, "A new ending.")
    lines = await shelf.export_lines(chat_id)
    assert lines[2]["is_system"] is True
    assert lines[2]["odd"] == [1.0, None]
    assert lines[7]["mes"] == "A new ending."
    assert lines[7]["swipes"] == ["", "A new ending."]
    assert lines[7]["swipe_id"] == 1
    assert len(lines[7]["swipe_info"]) == 2


async def test_another_swipe_brings_its_own_members(database: Database) -> None:
    shelf, grove = await plant(database)
    chat_id = await shelf.add(write_lines([make_header(), make_swiped(["A", "B", "C"], 1)]))
    async with database.read() as session:
        ids = list(await session.scalars(select(Message.id).order_by(Message.id)))
    await grove.messages.activate(shelf.identity, ids[2], follow=True)
    [_, line] = await shelf.export_lines(chat_id)
    assert line == make_swiped(["A", "B", "C"], 2)


async def test_a_chat_of_talekeeper_gets_the_members_of_sillytavern(database: Database) -> None:
    shelf, grove = await plant(database)
    await grove.plant("The door creaks.", "Rain.")
    [header, line] = await shelf.export_lines(grove.chat_id)
    assert header["chat_metadata"] == {}
    assert header["user_name"] == "Ada"
    assert line["name"] == "Mara"
    assert (line["is_user"], line["is_system"], line["mes"]) == (False, False, "The door creaks.")
    assert (line["swipes"], line["swipe_id"]) == (["The door creaks.", "Rain."], 0)
    again = await shelf.add(await shelf.export(grove.chat_id))
    assert (await shelf.export_lines(again))[1] == line


async def test_a_new_message_has_the_avatar_of_its_author(database: Database) -> None:
    shelf, _ = await plant(database)
    avatars = {"force_avatar": "/thumbnail?file=Mara.png", "original_avatar": "Mara.png"}
    chat_id = await shelf.add(write_lines([make_header(), make_line("Hi.") | avatars]))
    async with database.write() as session:
        chat = await get_chat(session, chat_id, owner_id=shelf.identity.user_id)
        [parent] = list(await session.scalars(select(Message)))
        draft = MessageDraft(role="assistant", author="Mara", text="Ho.")
        unit = CountUnit.parse(chat.count_unit)
        made = make_message(shelf.identity.sealer, draft, unit=unit)
        await attach_message(session, chat, made, parent=parent)
    line = (await shelf.export_lines(chat_id))[2]
    assert line["mes"] == "Ho."
    assert line.items() >= avatars.items()


async def test_an_empty_chat_has_a_header_alone(database: Database) -> None:
    shelf, _ = await plant(database)
    data = write_lines([make_header()])
    chat_id = await shelf.add(data)
    assert await shelf.export(chat_id) == data + b"\n"


async def test_a_fork_keeps_the_members_of_the_file(database: Database) -> None:
    shelf, grove = await plant(database)
    chat_id = await shelf.add(FULL)
    page = await grove.messages.page(shelf.identity, chat_id, before=None, limit=20)
    fork = await grove.chats.fork(
        shelf.identity, chat_id, message_id=page.items[1].id, title="Copy"
    )
    lines = await shelf.export_lines(fork.id)
    assert encode(lines[2]) == FULL.split(b"\n")[2]


async def test_no_one_else_can_export_a_chat(database: Database) -> None:
    shelf, _ = await plant(database)
    other, _ = await plant(database)
    chat_id = await shelf.add(FULL)
    formats: tuple[ExportFormat, ...] = ("jsonl", "markdown", "text", "archive")
    for file_format in formats:
        with pytest.raises(ChatNotFoundError):
            await other.export(chat_id, file_format)


async def test_markdown_and_text_have_the_active_path(database: Database) -> None:
    shelf, _ = await plant(database)
    chat_id = await shelf.add(FULL)
    formats: tuple[ExportFormat, ...] = ("markdown", "text")
    for file_format in formats:
        text = (await shelf.export(chat_id, file_format)).decode()
        assert text.index("Rain hammers") < text.index("I knock") < text.index("Years pass")
        assert "Silence" not in text


PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
WITH_FILES: list[dict[str, Any]] = [
    make_header(),
    make_line("Look.", extra={"image": "user/images/Mara/fox.png", "title": "A fox"}),
    make_line("Again.", extra={"media": [{"url": "user/images/Mara/fox.png", "type": "image"}]}),
    make_line(
        "Inline.",
        is_user=True,
        extra={"file": {"url": "user/files/notes.txt", "name": "notes.txt", "size": 3}},
    ),
    make_line("Data.", extra={"image": "data:image/png;base64," + b64encode(PICTURE).decode()}),
]


def find_file(path: str) -> bytes | None:
    return {"user/images/Mara/fox.png": PICTURE}.get(path)


async def test_files_are_stored_once_and_come_out_in_the_archive(database: Database) -> None:
    shelf, _ = await plant(database)
    result = await shelf.store(write_lines(WITH_FILES), find_file=find_file)
    assert await shelf.count_rows() == (1, 4, 1)
    assert any("1 pictures or files" in each for each in result.warnings)
    assert result.item_id is not None
    with zipfile.ZipFile(io.BytesIO(await shelf.export(result.item_id, "archive"))) as archive:
        assert archive.testzip() is None
        log = read_log(archive.read("chat.jsonl"))
        [name] = [each for each in archive.namelist() if each.startswith("files/")]
        assert archive.read(name) == PICTURE
        assert archive.read("sillytavern.jsonl").rstrip() == write_lines(WITH_FILES)
    stored = [file.stored for line in log.lines for file in line.files]
    assert stored == [name, name, None, name]
    assert log.lines[2].files[0].path == "user/files/notes.txt"


async def test_a_file_is_deleted_with_the_last_message_that_refers_to_it(
    database: Database,
) -> None:
    shelf, grove = await plant(database)
    chat_id = await shelf.add(write_lines(WITH_FILES[:3]), find_file=find_file)
    page = await grove.messages.page(shelf.identity, chat_id, before=None, limit=20)
    await grove.messages.delete(shelf.identity, page.items[1].id)
    assert await shelf.count_rows() == (1, 1, 1)
    await grove.chats.delete(shelf.identity, chat_id)
    assert await shelf.count_rows() == (0, 0, 0)


async def test_an_archive_has_all_branches(database: Database) -> None:
    shelf, grove = await plant(database)
    chat_id = await shelf.add(FULL)
    with zipfile.ZipFile(io.BytesIO(await shelf.export(chat_id, "archive"))) as archive:
        log = read_log(archive.read("chat.jsonl"))
    assert len(log.lines) == 10
    assert log.head.settings is not None
    assert log.head.settings.scenario == "A flooded mill."
    assert log.head.variables == {"gold": "12", "mood": "calm"}
    [origin] = log.head.origins
    assert json.loads(origin.header or "")["chat_metadata"]["integrity"] == "0b5c"
    chat = await grove.chats.get(shelf.identity, chat_id)
    assert origin.message_id == chat.leaf_id


async def test_texts_and_names_of_files_are_sealed(database: Database) -> None:
    shelf, _ = await plant(database)
    await shelf.add(write_lines(WITH_FILES), find_file=find_file)
    async with database.read() as session:
        connection = await session.connection()
        for table in ("chats", "messages", "message_files", "stored_files", "imported_files"):
            rows = (await connection.exec_driver_sql(f"SELECT * FROM {table}")).all()
            assert rows
            for value in (value for row in rows for value in row):
                raw = value if isinstance(value, bytes) else str(value).encode()
                assert not any(word in raw for word in (b"fox", b"Look.", b"PNG", b"Mara"))
