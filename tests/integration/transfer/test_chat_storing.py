"""Storing the chats of files: all of a chat or nothing, as a new tree or as a branch."""

from __future__ import annotations

import asyncio
import io
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO
from uuid import UUID

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.deletion import ABANDONED_AFTER
from backend.chats.models import Chat, Message
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import AppError, ConflictError, TooLargeError
from backend.jobs.models import Job
from backend.lorebooks.models import ChatLorebook, Lorebook
from backend.memory.indexing.outbox import INDEX, INDEX_IMPORTED
from backend.transfer.chats.origin import ChatOrigin
from backend.transfer.chats.storing import ImportedChats
from backend.transfer.errors import TransferFileError
from backend.transfer.models import ImportedFile
from tests.integration.chats.trees import Grove, sign_up
from tests.support.stored_chats import (
    ChatShelf,
    delete_abandoned,
    encode,
    make_header,
    make_line,
    make_swiped,
    write_lines,
)

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

LONG = write_lines([make_header(), *(make_line(f"Line {n}.") for n in range(900))])


async def plant(database: Database) -> tuple[ChatShelf, Grove]:
    identity = await sign_up(database)
    return ChatShelf(database, identity), Grove(database, identity)


async def read_path(shelf: ChatShelf, grove: Grove, chat_id: UUID) -> list[str]:
    page = await grove.messages.page(shelf.identity, chat_id, before=None, limit=200)
    return [each.text for each in page.items]


async def load_rows(database: Database) -> list[Message]:
    async with database.read() as session:
        query = select(Message).order_by(Message.position, Message.id)
        return list(await session.scalars(query))


@pytest.mark.parametrize(
    "data",
    [
        LONG + b"\n{oops}\n" + encode(make_line("End.")),
        LONG + b"\n" + encode(make_line("x" * 100_001)),
    ],
)
async def test_a_refused_file_leaves_nothing(database: Database, data: bytes) -> None:
    shelf, _ = await plant(database)
    with pytest.raises(TransferFileError):
        await shelf.store(data)
    assert await shelf.count_rows() == (0, 0, 0)
    assert await shelf.count(ImportedFile) == 0
    assert await shelf.count(Job) == 0


async def test_a_chat_without_a_date_begins_with_its_first_message(database: Database) -> None:
    shelf, _ = await plant(database)
    header: dict[str, Any] = {"user_name": "unused", "character_name": "unused"}
    header["chat_metadata"] = {}
    lines = [header, make_line("Dawn.", minute=5), make_line("Noon.", minute=9)]
    result = await shelf.store(write_lines(lines))
    async with database.read() as session:
        chat = await session.get_one(Chat, result.item_id)
    assert chat.created_at == datetime(2024, 3, 1, 10, 5, tzinfo=UTC)


async def test_a_quota_that_is_reached_in_the_middle_leaves_nothing(database: Database) -> None:
    async def check(session: AsyncSession, _user_id: UUID) -> None:
        if len(list(await session.scalars(select(Message.id)))) > 500:
            raise TooLargeError("The storage is full.")

    shelf, _ = await plant(database)
    shelf = ChatShelf(database, shelf.identity, checks=[check])
    with pytest.raises(TooLargeError):
        await shelf.store(LONG)
    assert await shelf.count_rows() == (0, 0, 0)


async def test_a_cancelled_import_leaves_nothing(database: Database) -> None:
    shelf, _ = await plant(database)
    stored = asyncio.Event()

    async def report(_count: int) -> None:
        stored.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(shelf.store(LONG, report=report))
    await stored.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await shelf.count_rows() == (0, 0, 0)


async def test_an_unfinished_chat_is_invisible_until_it_is_complete(database: Database) -> None:
    shelf, grove = await plant(database)
    seen: list[Any] = []

    async def report(count: int) -> None:
        page = await grove.chats.list_chats(shelf.identity, limit=10, after=None, character_id=None)
        seen.append((count, len(page.items)))
        async with database.read() as session:
            chat_id = await session.scalar(select(Chat.id))
            message_id = await session.scalar(select(Message.id))
        assert chat_id is not None
        assert message_id is not None
        for call in (
            grove.chats.get(shelf.identity, chat_id),
            grove.messages.get(shelf.identity, message_id),
            grove.messages.hide(shelf.identity, message_id, hidden=True),
            grove.chats.delete(shelf.identity, chat_id),
            shelf.export(chat_id),
        ):
            with pytest.raises(AppError, match="not found"):
                await call

    result = await shelf.store(LONG, report=report)
    assert seen[-1] == (900, 0)
    assert [count for count, _ in seen] == sorted(count for count, _ in seen)
    page = await grove.chats.list_chats(shelf.identity, limit=10, after=None, character_id=None)
    assert [each.id for each in page.items] == [result.item_id]


async def test_what_a_killed_process_left_is_swept(database: Database) -> None:
    shelf, _ = await plant(database)
    stored = asyncio.Event()

    async def report(_count: int) -> None:
        stored.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(shelf.store(LONG, report=report))
    await stored.wait()
    await shelf.add(write_lines([make_header(), make_line("Hi.")]))
    await delete_abandoned(database)  # it is still growing
    assert (await shelf.count_rows())[0] == 2
    async with database.write() as session:
        await session.execute(
            update(Chat)
            .where(~Chat.is_ready)
            .values(updated_at=now() - ABANDONED_AFTER - timedelta(seconds=1))
        )
    await delete_abandoned(database)
    assert await shelf.count_rows() == (1, 1, 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_import_that_was_swept_fails(database: Database) -> None:
    shelf, _ = await plant(database)

    async def report(_count: int) -> None:
        async with database.write() as session:
            await session.execute(update(Chat).values(updated_at=now() - 2 * ABANDONED_AFTER))
        await delete_abandoned(database)

    with pytest.raises(ConflictError):
        await shelf.store(LONG, report=report)
    assert await shelf.count_rows() == (0, 0, 0)


async def test_sums_scenes_and_flags_are_those_of_a_tree(database: Database) -> None:
    shelf, _ = await plant(database)
    data = write_lines(
        [
            make_header(),
            make_swiped(["One.", "Two longer."], 1),
            make_line("Hidden.", is_system=True),
            make_line("***\nA new scene.", minute=1),
            make_line("The end.", send_date="March 2, 2024 10:00am"),
        ]
    )
    await shelf.add(data)
    rows = await load_rows(database)
    first, chosen, hidden, scene, last = rows
    assert [row.is_active for row in rows] == [False, True, True, True, True]
    assert [row.is_selected for row in rows] == [False, True, True, True, True]
    assert (hidden.parent_id, scene.parent_id, last.parent_id) == (chosen.id, hidden.id, scene.id)
    assert first.path_tokens == first.tokens
    assert hidden.path_tokens == chosen.tokens
    assert last.path_tokens == chosen.tokens + scene.tokens + last.tokens
    assert hidden.scene_id == chosen.id
    assert (scene.scene_id, last.scene_id) == (scene.id, last.id)


async def test_missing_and_impossible_times_are_filled_in_order(database: Database) -> None:
    shelf, _ = await plant(database)
    times: list[Any] = [None, "yesterday", 1709287440123, -5, "9999-12-31T23:00:00Z", "2099-01-01"]
    lines = [make_line(f"{n}", send_date=at) for n, at in enumerate(times)]
    await shelf.add(write_lines([make_header() | {"create_date": "soon"}, *lines]))
    found = [row.created_at for row in await load_rows(database)]
    assert found == sorted(found)
    assert found[2].year == 2024
    assert found[4].year == 2024
    assert found[5].year == 2099


async def test_members_speakers_and_personas_that_are_not_mine_are_left_out(
    database: Database,
) -> None:
    shelf, grove = await plant(database)
    stranger = new_id()
    chat_id = await shelf.add(
        write_lines([make_header(), make_line("Hi."), make_line("Ho.", is_user=True)]),
        members=[stranger],
        speakers={"Mara": stranger},
        personas={"Ada": stranger},
        lorebook_id=stranger,
    )
    chat = await grove.chats.get(shelf.identity, chat_id)
    assert (chat.character_ids, chat.persona_id) == ([], None)
    rows = await load_rows(database)
    assert [(row.character_id, row.persona_id) for row in rows] == [(None, None)] * 2


@pytest.mark.parametrize("deleted_at", [None, now()])
async def test_a_lorebook_that_is_being_deleted_is_not_linked(
    database: Database, deleted_at: datetime | None
) -> None:
    shelf, _ = await plant(database)
    book = Lorebook(
        id=new_id(),
        user_id=shelf.identity.user_id,
        sealed_book=b"",
        deleted_at=deleted_at,
    )
    async with database.write() as session:
        session.add(book)
    await shelf.add(write_lines([make_header(), make_line("Hi.")]), lorebook_id=book.id)
    assert await shelf.count(ChatLorebook) == (1 if deleted_at is None else 0)


async def test_variables_that_are_too_large_are_left_out(database: Database) -> None:
    shelf, _ = await plant(database)
    data = write_lines([make_header(variables={"a": "x" * 300_000}), make_line("Hi.")])
    result = await shelf.store(data)
    assert "Its variables are too large, and were left out." in result.warnings
    assert result.item_id is not None
    assert await shelf.export(result.item_id) == data + b"\n"


async def test_one_low_priority_job_indexes_all_imported_chats(database: Database) -> None:
    shelf, _ = await plant(database)
    for _ in range(3):
        await shelf.add(write_lines([make_header(), make_line("Hi.")]))
    async with database.read() as session:
        kinds = list(await session.scalars(select(Job.kind)))
    assert kinds == [INDEX_IMPORTED]
    assert INDEX not in kinds


MAIN = [
    make_header(),
    make_swiped(["The door creaks.", "Rain."]),
    make_line("I knock.", is_user=True, minute=1),
    make_line("Who is there?", minute=2),
    make_line("A friend.", is_user=True, minute=3),
]
BRANCH = [
    make_header(main_chat="Mara - 2024-03-01", note_prompt="The branch has its own note."),
    *MAIN[1:3],
    make_swiped(["Go away!", "Who is there?", "Leave."], 2),
    make_line("I leave.", is_user=True, minute=5),
]


async def test_a_branch_joins_the_tree_of_its_chat(database: Database) -> None:
    shelf, grove = await plant(database)
    main_id = await shelf.add(write_lines(MAIN))
    before = await grove.chats.get(shelf.identity, main_id)
    result = await shelf.store(write_lines(BRANCH), "Branch #1.jsonl", joins=main_id)
    assert result.item_id == main_id
    assert result.detail.startswith("2 messages were added as a branch")
    assert await read_path(shelf, grove, main_id) == [
        "The door creaks.",
        "I knock.",
        "Who is there?",
        "A friend.",
    ]
    after = await grove.chats.get(shelf.identity, main_id)
    assert (after.title, after.leaf_id) == (before.title, before.leaf_id)
    assert (await shelf.count_rows())[0] == 1
    rows = await load_rows(database)
    assert [row.position for row in rows] == [0, 0, 1, 2, 2, 2, 3, 3]
    assert await shelf.export(main_id) == write_lines(MAIN) + b"\n"


async def test_the_path_of_a_branch_has_the_header_of_its_file(database: Database) -> None:
    shelf, grove = await plant(database)
    main_id = await shelf.add(write_lines(MAIN))
    await shelf.store(write_lines(BRANCH), "Branch #1.jsonl", joins=main_id)
    last = (await load_rows(database))[-1]
    await grove.messages.activate(shelf.identity, last.id, follow=True)
    assert await read_path(shelf, grove, main_id) == [
        "The door creaks.",
        "I knock.",
        "Leave.",
        "I leave.",
    ]
    header, *_ = await shelf.export_lines(main_id)
    assert encode(header) == encode(BRANCH[0])


async def test_members_of_shared_messages_are_those_of_each_file(database: Database) -> None:
    shelf, grove = await plant(database)
    marked = make_line("I knock.", is_user=True, minute=1, extra={"bookmark_link": "Branch #1"})
    main = write_lines([*MAIN[:2], marked, *MAIN[3:]])
    branch = write_lines([*BRANCH[:3], make_line("Leave."), BRANCH[4]])
    main_id = await shelf.add(main)
    await shelf.store(branch, "Branch #1.jsonl", joins=main_id)
    assert await shelf.export(main_id) == main + b"\n"
    last = (await load_rows(database))[-1]
    await grove.messages.activate(shelf.identity, last.id, follow=True)
    assert await shelf.export(main_id) == branch + b"\n"


async def test_no_branch_keeps_members_of_a_removed_message(database: Database) -> None:
    shelf, grove = await plant(database)
    main_id = await shelf.add(write_lines(MAIN))
    marked = [
        make_line("I knock.", is_user=True, minute=1, extra={"bookmark_link": name})
        for name in ("Branch #1", "Branch #2")
    ]
    for number, line in enumerate(marked, start=1):
        data = write_lines([*BRANCH[:2], line, make_line(f"Leave {number}."), BRANCH[4]])
        await shelf.store(data, f"Branch #{number}.jsonl", joins=main_id)
    [shared] = [row for row in await load_rows(database) if row.position == 1]
    query = select(ImportedFile).where(ImportedFile.message_id.is_not(None))

    async def list_positions() -> list[list[int]]:
        async with database.read() as session:
            rows = (await session.scalars(query)).all()
        sealer = shelf.identity.sealer
        found = [ChatOrigin.open(sealer, row.id, row.sealed_source or b"") for row in rows]
        return [list(each.messages) for each in found if each.is_joined]

    assert await list_positions() == [[1], [1]]
    await grove.messages.remove(shelf.identity, shared.id)
    async with database.write() as session:
        chat = await session.get_one(Chat, main_id)
        message = await session.get_one(Message, shared.id)
        await ImportedChats().message_removed(session, shelf.identity, chat, message)
    assert await list_positions() == [[], []]


async def test_swipes_of_a_branch_that_its_chat_has_too_come_out_with_both(
    database: Database,
) -> None:
    shelf, grove = await plant(database)
    main = write_lines([*MAIN[:3], make_swiped(["One.", "Two."])])
    branch = write_lines([*BRANCH[:3], make_swiped(["One.", "Two.", "Three."], 2)])
    main_id = await shelf.add(main)
    await shelf.store(branch, "Branch #1.jsonl", joins=main_id)
    assert await shelf.export(main_id) == main + b"\n"
    last = (await load_rows(database))[-1]
    await grove.messages.activate(shelf.identity, last.id, follow=True)
    assert await shelf.export(main_id) == branch + b"\n"


async def test_a_branch_that_was_swept_fails(database: Database) -> None:
    shelf, _ = await plant(database)
    main_id = await shelf.add(write_lines(MAIN))

    async def report(_count: int) -> None:
        unfinished = update(Chat).where(~Chat.is_ready)
        async with database.write() as session:
            await session.execute(unfinished.values(updated_at=now() - 2 * ABANDONED_AFTER))
        await delete_abandoned(database)

    with pytest.raises(ConflictError):
        await shelf.store(write_lines(BRANCH), "Branch #1.jsonl", joins=main_id, report=report)
    assert await shelf.count_rows() == (1, 5, 0)


async def test_sums_of_a_branch_follow_those_of_its_chat(database: Database) -> None:
    shelf, grove = await plant(database)
    main_id = await shelf.add(write_lines(MAIN))
    page = await grove.messages.page(shelf.identity, main_id, before=None, limit=10)

    async def report(_count: int) -> None:
        # A message of the shared part is hidden while the branch is stored.
        await grove.messages.hide(shelf.identity, page.items[1].id, hidden=True)

    await shelf.store(write_lines(BRANCH), "Branch #1.jsonl", joins=main_id, report=report)
    rows = {row.id: row for row in await load_rows(database)}
    for row in rows.values():
        above = rows[row.parent_id].path_tokens if row.parent_id else 0
        assert row.path_tokens == above + (0 if row.hidden else row.tokens)
        assert row.chat_id == main_id


async def test_a_branch_whose_junction_is_deleted_meanwhile_is_refused(
    database: Database,
) -> None:
    shelf, grove = await plant(database)
    main_id = await shelf.add(write_lines(MAIN))
    page = await grove.messages.page(shelf.identity, main_id, before=None, limit=10)

    async def report(_count: int) -> None:
        await grove.messages.delete(shelf.identity, page.items[1].id)

    with pytest.raises(ConflictError, match="has changed"):
        await shelf.store(write_lines(BRANCH), "Branch #1.jsonl", joins=main_id, report=report)
    assert await shelf.count_rows() == (1, 2, 0)


async def test_a_checkpoint_that_is_part_of_its_chat_adds_nothing(database: Database) -> None:
    shelf, _ = await plant(database)
    main_id = await shelf.add(write_lines(MAIN))
    result = await shelf.store(write_lines(MAIN[:3]), "Checkpoint.jsonl", joins=main_id)
    assert result.item_id == main_id
    assert result.detail == "It is already part of the chat that it branches from."
    assert (await shelf.count_rows())[:2] == (1, 5)
    assert await shelf.count(ImportedFile) == 2


async def test_a_branch_of_a_branch_joins_below_it(database: Database) -> None:
    shelf, _ = await plant(database)
    main_id = await shelf.add(write_lines(MAIN))
    await shelf.store(write_lines(BRANCH), "Branch #1.jsonl", joins=main_id)
    twig = [*BRANCH[:3], make_line("Leave."), make_line("No.", is_user=True)]
    await shelf.store(write_lines(twig), "Branch #2.jsonl", joins=main_id)
    rows = await load_rows(database)
    assert [row.position for row in rows] == [0, 0, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize(
    "first", [make_swiped(["Another beginning.", "Rain."]), make_line("I knock.", is_user=True)]
)
async def test_a_file_that_begins_otherwise_is_a_chat_of_its_own(
    database: Database, first: dict[str, Any]
) -> None:
    shelf, _ = await plant(database)
    main_id = await shelf.add(write_lines(MAIN))
    data = write_lines([MAIN[0], first, *MAIN[2:]])
    other_id = await shelf.add(data, "Other.jsonl", joins=main_id)
    assert other_id != main_id
    assert await shelf.export(other_id) == data + b"\n"


async def test_a_branch_of_a_chat_that_is_gone_or_foreign_is_a_chat_of_its_own(
    database: Database,
) -> None:
    shelf, _ = await plant(database)
    other, _ = await plant(database)
    foreign_id = await other.add(write_lines(MAIN))
    for joins in (new_id(), foreign_id):
        assert await shelf.add(write_lines(MAIN), joins=joins) not in {joins, foreign_id}


async def test_a_long_branch_is_compared_in_pages(database: Database) -> None:
    shelf, _ = await plant(database)
    main_id = await shelf.add(LONG)
    branch = LONG + b"\n" + encode(make_line("One more."))
    await shelf.store(branch, "Branch #1.jsonl", joins=main_id)
    assert (await shelf.count_rows())[:2] == (1, 901)


class Lines(io.RawIOBase):
    """A file of lines that are made while it is read."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        super().__init__()
        self._lines = lines

    def read(self, size: int = -1) -> bytes:
        found, total = list[bytes](), 0
        for line in self._lines:
            found.append(line + b"\n")
            total += len(line)
            if 0 <= size <= total:
                break
        return b"".join(found)


LARGE = 800


def make_large_chat(count: int, swipes: int) -> BinaryIO:
    text = "The rain hammers on the roof of the old mill, and nobody comes. " * 16

    def make_lines() -> Iterator[bytes]:
        yield encode(make_header())
        for number in range(count):
            texts = [f"{number}.{swipe} {text}" for swipe in range(swipes)]
            yield encode(make_swiped(texts, swipes - 1))

    return Lines(make_lines())  # type: ignore[return-value]


@pytest.mark.slow
async def test_a_large_chat_is_streamed_in_and_out(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    shelf = ChatShelf(database, await sign_up(database))

    async def store_and_export(count: int) -> tuple[int, int]:
        """Return the lines and the bytes of the export."""
        result = await shelf.store(make_large_chat(count, 5))
        assert result.item_id is not None
        download = await shelf.exporter.open(shelf.identity, result.item_id, "jsonl")
        lines = size = 0
        async for chunk in download.chunks:
            lines += chunk.count(b"\n")
            size += len(chunk)
        return lines, size

    await store_and_export(1)  # loads the vocabulary, which takes more memory than the chat
    tracemalloc.start()
    try:
        lines, size = await store_and_export(LARGE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await database.dispose()
    assert lines == LARGE + 1
    assert size > 5_000_000
    assert peak < 4_000_000
