"""The book of a chronicle: entries of the agent, changes of the user, and active entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import select

from backend.accounts.auth.identity import Identity
from backend.database.base import new_id
from backend.lorebooks import entries as limits
from backend.lorebooks.authoring import (
    EntryOrigin,
    add_entry,
    change_entry,
    chronicle_book,
    find_chronicle_book,
    inactive_entries,
    is_own,
    remove_entry,
    restore,
    snapshot,
)
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.errors import LorebookFullError
from backend.lorebooks.models import LoreEntryRow
from backend.lorebooks.records import open_entry
from tests.integration.lorebooks.readers import Reader
from tests.integration.turns.seeding import identity_of
from tests.support.server import Running, ok

pytestmark = pytest.mark.anyio

LAMP = LoreEntry(title="Lamp", keys=["lamp"], content="It burns blue.")
STAIR = LoreEntry(title="Stair", keys=["stair"], content="The third one is rotten.")


@dataclass(frozen=True)
class Desk:
    """A chat with its own chronicle, and methods that write to the chronicle's book."""

    server: Running
    ada: Reader
    identity: Identity
    chat: str
    chronicle: UUID
    greetings: tuple[str, str]

    def origin(self, message: str | None = None) -> EntryOrigin:
        return EntryOrigin(new_id(), UUID(self.chat), UUID(message or self.greetings[0]))

    async def write(self, entry: LoreEntry, message: str | None = None) -> LoreEntryRow:
        async with self.server.parts.database.write() as session:
            sealer = self.identity.sealer
            book = await chronicle_book(session, sealer, self.chronicle, name="Of the coast")
            return await add_entry(session, sealer, book, entry, self.origin(message))

    async def row(self, entry_id: UUID) -> LoreEntryRow | None:
        async with self.server.parts.database.read() as session:
            return await session.scalar(select(LoreEntryRow).where(LoreEntryRow.id == entry_id))

    async def change(
        self, entry_id: UUID, entry: LoreEntry, origin: EntryOrigin | None
    ) -> LoreEntryRow:
        async with self.server.parts.database.write() as session:
            book = await find_chronicle_book(
                session, self.chronicle, owner_id=self.identity.user_id, lock=True
            )
            row = await session.get_one(LoreEntryRow, entry_id)
            assert book is not None
            await change_entry(session, self.identity.sealer, book, row, entry, origin)
            return row

    async def remove(self, entry_id: UUID) -> None:
        async with self.server.parts.database.write() as session:
            book = await find_chronicle_book(
                session, self.chronicle, owner_id=self.identity.user_id, lock=True
            )
            assert book is not None
            await remove_entry(session, book, await session.get_one(LoreEntryRow, entry_id))

    async def restore(self, taken: dict[str, Any]) -> LoreEntryRow:
        async with self.server.parts.database.write() as session:
            sealer = self.identity.sealer
            book = await chronicle_book(session, sealer, self.chronicle, name="")
            return await restore(session, sealer, book, taken)

    async def inactive(self, book_id: UUID) -> set[UUID]:
        async with self.server.parts.database.read() as session:
            return await inactive_entries(session, [book_id], owner_id=self.identity.user_id)

    def opened(self, row: LoreEntryRow | None) -> LoreEntry:
        assert row is not None
        return open_entry(self.identity.sealer, row)


@pytest.fixture
async def desk(server: Running, ada: Reader) -> Desk:
    character = await ada.account.new_character(alternate_greetings=["A knock."])
    chat = str((await ada.account.new_chat(character_ids=[character["id"]]))["id"])
    settings = await ada.patch(f"/chats/{chat}/settings", chronicle_enabled=True)
    [first] = await ada.account.messages(chat)
    page = (await ada.get(f"/messages/{first['id']}/siblings"))["items"]
    second = next(each["id"] for each in page if each["id"] != first["id"])
    identity = await identity_of(server, ada.account)
    return Desk(server, ada, identity, chat, UUID(settings["chronicle_id"]), (first["id"], second))


async def test_a_chronicle_has_one_book_which_is_shown_as_its_own(desk: Desk) -> None:
    lamp, stair = await desk.write(LAMP), await desk.write(STAIR)
    assert lamp.lorebook_id == stair.lorebook_id
    [book] = (await desk.ada.get("/lorebooks"))["items"]
    assert book["id"] == str(lamp.lorebook_id)
    assert (book["name"], book["entry_count"]) == ("Of the coast", 2)
    assert book["chronicle_id"] == str(desk.chronicle)
    assert (await desk.ada.get(f"/lorebooks/{book['id']}"))["chronicle_id"] == str(desk.chronicle)
    assert await desk.ada.revision(book["id"]) == 3
    entries = await desk.ada.entries(book["id"])
    assert [(each["title"], each["place"]) for each in entries] == [("Lamp", 0), ("Stair", 1)]


async def test_the_book_comes_after_the_books_of_the_chat_and_before_all_others(desk: Desk) -> None:
    own, everywhere = await desk.ada.new_book("Own"), await desk.ada.new_book(is_global=True)
    persona = (await desk.ada.post("/personas", name="Wanderer"))["id"]
    hers = await desk.ada.new_book("Hers")
    await desk.ada.put(f"/personas/{persona}/lorebooks/{hers}")
    await desk.ada.patch(f"/chats/{desk.chat}", persona_id=persona)
    await desk.ada.put(f"/chats/{desk.chat}/lorebooks/{own}", 200, state="linked")
    book = str((await desk.write(LAMP)).lorebook_id)

    async def shown() -> list[tuple[str, str]]:
        page = await desk.ada.get(f"/chats/{desk.chat}/lorebooks")
        return [(item["lorebook"]["id"], item["source"]) for item in page["items"]]

    others = [(hers, "persona"), (everywhere, "global")]
    assert await shown() == [(own, "chat"), (book, "chronicle"), *others]
    state = await desk.ada.get(f"/chats/{desk.chat}/lorebooks/{book}")
    assert (state["state"], state["source"], state["is_off"]) == (None, "chronicle", False)
    await desk.ada.patch(f"/chats/{desk.chat}/settings", chronicle_enabled=False)
    assert (book, "chronicle") in await shown()
    await desk.ada.patch(f"/chats/{desk.chat}/settings", chronicle_id=None)
    assert await shown() == [(own, "chat"), *others]


async def test_a_user_s_change_makes_the_entry_the_user_s(desk: Desk) -> None:
    lamp = await desk.write(LAMP)
    assert is_own(lamp)
    later = desk.origin(desk.greetings[1])
    changed = await desk.change(lamp.id, msgspec.structs.replace(LAMP, order=7), later)
    assert is_own(changed)
    assert (changed.agent_run_id, changed.source_message_id) == (later.run_id, later.message_id)
    path = f"/lorebooks/{lamp.lorebook_id}/entries/{lamp.id}"
    assert (await desk.ada.patch(path, content="It burns red."))["revision"] == 3
    row = await desk.row(lamp.id)
    assert row is not None
    assert not is_own(row)
    again = await desk.change(lamp.id, LAMP, desk.origin())
    assert not is_own(again)
    assert (again.revision, again.source_message_id) == (4, later.message_id)
    made = await desk.ada.new_entry(str(lamp.lorebook_id), title="Hers")
    hers = await desk.change(UUID(made["id"]), STAIR, desk.origin())
    assert not is_own(hers)
    assert (hers.agent_run_id, hers.source_chat_id) == (None, None)


async def test_a_changed_or_deleted_entry_is_restored(desk: Desk) -> None:
    lamp, stair = await desk.write(LAMP), await desk.write(STAIR)
    taken = snapshot(desk.identity.sealer, lamp)
    assert msgspec.json.decode(msgspec.json.encode(taken)) == taken
    before = (lamp.agent_run_id, lamp.source_chat_id, lamp.source_message_id)
    revision = await desk.ada.revision(str(lamp.lorebook_id))
    await desk.change(lamp.id, STAIR, desk.origin(desk.greetings[1]))
    back = await desk.restore(taken)
    assert (back.revision, is_own(back)) == (3, True)
    assert (back.agent_run_id, back.source_chat_id, back.source_message_id) == before
    assert desk.opened(await desk.row(lamp.id)) == LAMP
    assert await desk.ada.revision(str(lamp.lorebook_id)) == revision + 2
    await desk.remove(lamp.id)
    assert await desk.row(lamp.id) is None
    again = await desk.restore(taken)
    assert (again.id, again.place, is_own(again)) == (lamp.id, 0, True)
    assert desk.opened(await desk.row(lamp.id)) == LAMP
    await desk.remove(lamp.id)
    await desk.ada.put(
        f"/lorebooks/{lamp.lorebook_id}/entries/order", 204, entry_ids=[str(stair.id)]
    )
    assert (await desk.restore(taken)).place == 1


async def test_a_restored_entry_of_the_user_stays_the_user_s(desk: Desk) -> None:
    lamp = await desk.write(LAMP)
    path = f"/lorebooks/{lamp.lorebook_id}/entries/{lamp.id}"
    await desk.ada.patch(path, content="It burns red.")
    row = await desk.row(lamp.id)
    assert row is not None
    taken = snapshot(desk.identity.sealer, row)
    await desk.change(lamp.id, STAIR, desk.origin())
    assert not is_own(await desk.restore(taken))
    await desk.remove(lamp.id)
    back = await desk.restore(taken)
    assert not is_own(back)
    assert desk.opened(back).content == "It burns red."


async def test_an_entry_of_a_deleted_chat_is_restored_for_good(desk: Desk) -> None:
    lamp = await desk.write(LAMP)
    taken = snapshot(desk.identity.sealer, lamp)
    await desk.remove(lamp.id)
    await desk.ada.delete(f"/chats/{desk.chat}")
    back = await desk.restore(taken)
    assert back.source_chat_id is None
    assert await desk.inactive(back.lorebook_id) == set()


async def test_an_entry_is_active_while_its_message_is_on_the_path(desk: Desk) -> None:
    lamp = await desk.write(LAMP, desk.greetings[0])
    stair = await desk.write(STAIR, desk.greetings[1])
    made = await desk.ada.new_entry(str(lamp.lorebook_id), title="Hers")
    assert made["title"] == "Hers"
    assert await desk.inactive(lamp.lorebook_id) == {stair.id}
    ok(await desk.ada.ask("POST", f"/messages/{desk.greetings[1]}/activate"))
    assert await desk.inactive(lamp.lorebook_id) == {lamp.id}
    await desk.ada.ask("DELETE", f"/messages/{desk.greetings[1]}")
    assert await desk.inactive(lamp.lorebook_id) == {stair.id}


async def test_deleting_a_chat_deletes_entries_of_inactive_branches(desk: Desk) -> None:
    lamp = await desk.write(LAMP, desk.greetings[0])
    stair = await desk.write(STAIR, desk.greetings[1])
    made = await desk.ada.new_entry(str(lamp.lorebook_id), title="Hers")
    await desk.ada.delete(f"/chats/{desk.chat}")
    left = await desk.ada.entries(str(lamp.lorebook_id))
    assert [each["id"] for each in left] == [str(lamp.id), made["id"]]
    assert await desk.row(stair.id) is None
    assert await desk.inactive(lamp.lorebook_id) == set()


async def test_full_books_and_accounts_are_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_BOOKS", 0)
    with pytest.raises(LorebookFullError):
        await desk.write(LAMP)
    monkeypatch.setattr(limits, "MAX_BOOKS", 1)
    monkeypatch.setattr(limits, "MAX_ENTRIES", 1)
    lamp = await desk.write(LAMP)
    taken = snapshot(desk.identity.sealer, lamp)
    with pytest.raises(LorebookFullError):
        await desk.write(STAIR)
    assert (await desk.restore(taken)).id == lamp.id
    await desk.remove(lamp.id)
    await desk.write(STAIR)
    with pytest.raises(LorebookFullError):
        await desk.restore(taken)


async def test_the_book_of_another_user_is_not_found(
    desk: Desk, ben: Reader, server: Running
) -> None:
    await desk.write(LAMP)
    stranger = await identity_of(server, ben.account)
    async with server.parts.database.read() as session:
        found = await find_chronicle_book(session, desk.chronicle, owner_id=stranger.user_id)
    assert found is None
