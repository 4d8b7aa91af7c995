from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.idempotency import find_made_id, record_made
from backend.accounts.auth.identity import Identity
from backend.accounts.profile.settings import DEFAULT_LORE_MODE
from backend.characters import repository
from backend.characters.card_rows import (
    BookView,
    CardBooks,
    CardRows,
    CopySource,
    ExportRows,
    FileDownload,
    LazyBook,
    copy_rows,
    export_card,
    import_rows,
    make_rows,
    patch_card,
    view_import,
    view_stored,
)
from backend.characters.cards.model import Card, check_greetings, describe_long_greetings
from backend.characters.cards.writer import ExportSpec
from backend.characters.errors import CharacterNotFoundError
from backend.characters.events import CharacterCopied
from backend.characters.models import Character, Summary, open_card, open_summary, seal_card
from backend.characters.repository import CharacterRow
from backend.characters.schemas import (
    CardLorebook,
    CharacterChange,
    CharacterItem,
    CharacterView,
    ExportFormat,
    ImportedCharacter,
)
from backend.core.cpu_pool import CpuPool
from backend.core.events import Participants
from backend.core.files import file_stem
from backend.core.zip_files import ZipStream
from backend.database.base import RecordCreated, now, record_nothing
from backend.database.engine import Database
from backend.errors import ConflictError, ValidationError
from backend.http.schemas import Page, check_revision, make_struct, reject_unknown
from backend.vault.sealing import Sealer

MAX_SEARCH_ROWS = 5000
"""Limit of characters that one request searches. Names are sealed, so no index can find them."""

MAX_ATTEMPTS = 20
"""Limit of attempts to change a card that other requests change at the same time."""


class CharacterService:
    """Manage characters and their card files. Each route lists its errors.

    `longest_message` is a limit in characters.
    """

    def __init__(
        self,
        database: Database,
        books: CardBooks,
        *,
        pool: CpuPool,
        longest_message: int,
        participants: Participants | None = None,
    ) -> None:
        self._participants = participants or Participants()
        self._pool = pool
        self._database = database
        self._longest_message = longest_message
        self._books = books

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None, search: str
    ) -> Page[CharacterItem]:
        """List characters, newest first. Each word of `search` must occur in the summary.

        A page ends after `MAX_SEARCH_ROWS` characters, even if it has few results.
        """
        words = search.casefold().split()
        bound = MAX_SEARCH_ROWS if words else limit
        async with self._database.read() as session:
            rows = await repository.list_characters(
                session, owner_id=identity.user_id, limit=bound + 1, after=after
            )
        return await self._pool.run(
            identity.user_id,
            partial(_make_page, identity.sealer, rows, words, limit=limit, bound=bound),
            size=sum(len(row.sealed_summary) for row in rows) // 2,
        )

    async def create(self, identity: Identity, card: Card) -> CharacterView:
        check_greetings(card, longest=self._longest_message)
        rows = await self._pool.run(
            identity.user_id, partial(make_rows, identity.sealer, card, self._books)
        )
        async with self._database.write() as session:
            await self._add(session, identity, rows)
        return _make_view(rows.character, rows.card, view_import(rows.book), has_avatar=False)

    async def get(self, identity: Identity, character_id: UUID) -> CharacterView:
        async with self._database.read() as session:
            character = await repository.get_character(
                session, character_id, owner_id=identity.user_id
            )
            has_avatar = await repository.has_avatar(session, character)
            stored = await self._books.find(session, identity, character_id)
        card = open_card(identity.sealer, character.id, character.sealed_card)
        shown = await self._open_book(identity, card, stored)
        return _make_view(character, card, shown, has_avatar=has_avatar)

    async def patch(
        self,
        identity: Identity,
        character_id: UUID,
        patch: dict[str, Any],
        *,
        if_match: str | None,
    ) -> CharacterView:
        reject_unknown(patch, CharacterChange)
        owner_id, sealer = identity.user_id, identity.sealer
        is_favourite = _read_flag(patch, "is_favourite")
        patch = _move_memory({key: patch[key] for key in patch if key != "is_favourite"})
        if is_favourite is not None and not patch:
            await self._mark(identity, character_id, is_favourite=is_favourite, if_match=if_match)
            return await self.get(identity, character_id)
        for _ in range(MAX_ATTEMPTS):
            async with self._database.read() as session:
                before = await repository.get_character(session, character_id, owner_id=owner_id)
                stored = await self._books.find(session, identity, character_id)
            check_revision(if_match, before.revision)
            # Outside the write transaction, because a large card takes long and SQLite has one
            # writer at a time.
            changed = await self._pool.run(
                owner_id,
                partial(
                    patch_card,
                    sealer,
                    before,
                    stored,
                    patch,
                    self._books,
                    longest_greeting=self._longest_message,
                ),
            )
            async with self._database.write() as session:
                character = await repository.get_character(
                    session, character_id, owner_id=owner_id, lock=True
                )
                if character.revision != before.revision:
                    continue
                seal_card(sealer, character, changed.card)
                if is_favourite is not None:
                    character.is_favourite = is_favourite
                if changed.new_scripts:
                    character.scripts_allowed = None
                character.revision += 1
                character.updated_at = now()
                if changed.drops_book:
                    await self._books.drop(session, identity, character_id)
                if changed.prepared is not None:
                    await changed.prepared.store(session, identity)
                has_avatar = await repository.has_avatar(session, character)
            return _make_view(character, changed.card, changed.shown, has_avatar=has_avatar)
        raise ConflictError("Another request is changing it. Send the change again.")

    async def _mark(
        self, identity: Identity, character_id: UUID, *, is_favourite: bool, if_match: str | None
    ) -> None:
        async with self._database.write() as session:
            character = await repository.get_character(
                session, character_id, owner_id=identity.user_id, lock=True
            )
            check_revision(if_match, character.revision)
            character.is_favourite = is_favourite

    async def duplicate(
        self, identity: Identity, character_id: UUID, *, name: str | None
    ) -> CharacterView:
        """Copy a character with its picture, files, lorebooks and preset, but not its chats."""
        owner_id = identity.user_id
        async with self._database.read() as session:
            source = CopySource(
                await repository.get_character(
                    session, character_id, owner_id=owner_id, source=True
                ),
                await self._books.find(session, identity, character_id),
                await repository.find_character_avatar(session, character_id, owner_id=owner_id),
                await repository.find_card_file(session, character_id, owner_id=owner_id),
                await repository.list_assets(session, character_id, owner_id=owner_id),
            )
        rows = await self._pool.run(
            owner_id, partial(copy_rows, identity.sealer, source, name, self._books)
        )
        async with self._database.write() as session:
            await self._add(session, identity, rows)
            for handler in self._participants.find_handlers(CharacterCopied):
                await handler.character_copied(session, identity, character_id, rows.character.id)
        return _make_view(
            rows.character, rows.card, view_import(rows.book), has_avatar=rows.avatar is not None
        )

    async def _add(self, session: AsyncSession, identity: Identity, rows: CardRows) -> None:
        """Store the rows of a new character."""
        session.add(rows.character)
        await session.flush()
        session.add_all(rows.files)
        if rows.avatar is not None:
            session.add(rows.avatar)
        if rows.book is not None:
            await rows.book.store(session, identity)

    async def characters_named(
        self, session: AsyncSession, identity: Identity, character_ids: Collection[UUID]
    ) -> None:
        """Raise `ValidationError` if one does not exist or belongs to another user."""
        found = await repository.find_names(
            session, list(character_ids), owner_id=identity.user_id, sealer=identity.sealer
        )
        if missing := [each for each in character_ids if each not in found]:
            raise ValidationError(f"{min(missing)} is not one of your characters.")

    async def allow_scripts(self, identity: Identity, character_id: UUID, *, allowed: bool) -> None:
        async with self._database.write() as session:
            character = await repository.get_character(
                session, character_id, owner_id=identity.user_id, lock=True
            )
            character.scripts_allowed = allowed

    async def delete(self, identity: Identity, character_id: UUID, *, if_match: str | None) -> None:
        async with self._database.write() as session:
            character = await repository.get_character(
                session, character_id, owner_id=identity.user_id, lock=True
            )
            check_revision(if_match, character.revision)
            await self._books.drop(session, identity, character_id)
            await session.delete(character)

    async def import_file(
        self, identity: Identity, data: bytes, *, record: RecordCreated = record_nothing
    ) -> ImportedCharacter:
        """Create a character from a card file. A refused file stores nothing.

        A greeting that is too long for a chat only causes a warning.
        """
        rows = await self._pool.run(
            identity.user_id, partial(import_rows, identity.sealer, data, self._books)
        )
        if (made_id := find_made_id()) is not None:
            return await self._find_earlier_import(identity, made_id, rows)
        async with self._database.write() as session:
            await record_made(session, rows.character.id)
            await self._add(session, identity, rows)
            await record(session, rows.character.id)
        made = _make_view(
            rows.character, rows.card, view_import(rows.book), has_avatar=rows.avatar is not None
        )
        return self._make_result(identity, made, rows, rows.book.summary if rows.book else None)

    async def _find_earlier_import(
        self, identity: Identity, character_id: UUID, rows: CardRows
    ) -> ImportedCharacter:
        """Return the character that the same request created before."""
        made = await self.get(identity, character_id)
        async with self._database.read() as session:
            stored = await self._books.find(session, identity, character_id)
        summary = None
        if stored is not None and rows.book is not None:
            summary = msgspec.structs.replace(rows.book.summary, id=stored.id)
        return self._make_result(identity, made, rows, summary)

    def _make_result(
        self,
        identity: Identity,
        made: CharacterView,
        rows: CardRows,
        lorebook: CardLorebook | None,
    ) -> ImportedCharacter:
        warnings = [
            *rows.warnings,
            *describe_long_greetings(rows.card, longest=self._longest_message),
        ]
        found_by = None
        if lorebook is not None:
            found_by = lorebook.mode or identity.settings.lore.mode or DEFAULT_LORE_MODE
        return ImportedCharacter(
            character=made, lorebook=lorebook, found_by=found_by, warnings=warnings
        )

    async def export(
        self,
        identity: Identity,
        character_id: UUID,
        *,
        file_format: ExportFormat,
        spec: ExportSpec,
    ) -> FileDownload:
        """Return a file that differs from the imported one only by later changes."""
        owner_id, sealer = identity.user_id, identity.sealer
        async with self._database.read() as session:
            character = await repository.get_character(
                session, character_id, owner_id=owner_id, source=True
            )
            picture = await repository.find_avatar(
                session, "character", character_id, owner_id=owner_id, size="full"
            )
            stored = ExportRows(
                character, await self._books.find(session, identity, character_id), picture
            )
            if file_format != "json":
                stored.file = await repository.find_card_file(
                    session, character_id, owner_id=owner_id
                )
                stored.assets = await repository.list_assets(
                    session, character_id, owner_id=owner_id
                )
        return await self._pool.run(
            owner_id, partial(export_card, sealer, stored, self._books, file_format, spec)
        )

    async def export_many(
        self, identity: Identity, character_ids: Sequence[UUID], *, file_format: ExportFormat
    ) -> AsyncIterator[bytes]:
        """Return a zip of cards, one piece for each. Raises `CharacterNotFoundError`."""
        wanted = list(dict.fromkeys(character_ids))
        async with self._database.read() as session:
            missing = await repository.find_missing(session, wanted, owner_id=identity.user_id)
        if missing:
            raise CharacterNotFoundError
        return self._write_zip(identity, wanted, file_format)

    async def _write_zip(
        self, identity: Identity, character_ids: Sequence[UUID], file_format: ExportFormat
    ) -> AsyncIterator[bytes]:
        zipped, taken = ZipStream(), set[str]()
        for character_id in character_ids:
            # One that was deleted since the request began is left out.
            with suppress(CharacterNotFoundError):
                file = await self.export(identity, character_id, file_format=file_format, spec="v3")
                path = _choose_path(file, taken)
                is_compressed = file_format != "json"
                yield await self._pool.run(
                    identity.user_id,
                    partial(zipped.put, path, file.data, is_compressed=is_compressed),
                )
        yield zipped.close()

    async def _open_book(
        self, identity: Identity, card: Card, stored: LazyBook | None
    ) -> BookView | None:
        """Open a card's book in a thread, because it may have thousands of entries."""
        if stored is None:
            return view_stored(card, None)
        return await self._pool.run(identity.user_id, partial(view_stored, card, stored))


def _choose_path(file: FileDownload, taken: set[str]) -> str:
    """Return a path in a zip. Equal names are numbered."""
    stem = file_stem(file.stem, fallback="character")
    path, number = stem, 2
    while path.casefold() in taken:
        path, number = f"{stem} ({number})", number + 1
    taken.add(path.casefold())
    return f"{path}.{file.extension}"


def _read_flag(patch: dict[str, Any], name: str) -> bool | None:
    """Return a boolean member of a patch, or None if it is absent. Null is the default, false."""
    if name not in patch:
        return None
    wanted = patch[name]
    if wanted is not None and not isinstance(wanted, bool):
        raise ValidationError(f"`{name}` must be true or false.")
    return wanted or False


def _move_memory(patch: dict[str, Any]) -> dict[str, Any]:
    """Return a patch of the card that keeps `keeps_memories` among its extensions."""
    wanted = _read_flag(patch, "keeps_memories")
    if wanted is None:
        return patch
    moved = {"extensions": {"talekeeper": {"keeps_memories": wanted or None}}}
    extensions = patch.get("extensions")
    others = cast("dict[str, Any]", extensions) if isinstance(extensions, dict) else {}
    own = others.get("talekeeper")
    if isinstance(own, dict):
        moved["extensions"]["talekeeper"] = {**own, **moved["extensions"]["talekeeper"]}
    rest = {name: value for name, value in patch.items() if name != "keeps_memories"}
    return {**rest, "extensions": {**others, **moved["extensions"]}}


def _make_page(
    sealer: Sealer,
    rows: Sequence[CharacterRow],
    words: Sequence[str],
    *,
    limit: int,
    bound: int,
) -> Page[CharacterItem]:
    """Return at most `limit` matching rows among the first `bound`."""
    items: list[CharacterItem] = []
    for looked_at, row in enumerate(rows):
        if looked_at == bound or len(items) == limit:
            return Page(items=items, next=str(rows[looked_at - 1].id))
        summary = open_summary(sealer, row.id, row.sealed_summary)
        if _matches(summary, words):
            items.append(make_struct(CharacterItem, row, **msgspec.structs.asdict(summary)))
    return Page(items=items)


def _matches(summary: Summary, words: Sequence[str]) -> bool:
    if not words:
        return True
    fields = (summary.name, summary.nickname, summary.creator, *summary.tags)
    text = "\n".join(fields).casefold()
    return all(word in text for word in words)


def _make_view(
    character: Character, card: Card, shown: BookView | None, *, has_avatar: bool
) -> CharacterView:
    fields = msgspec.structs.asdict(card)
    fields["character_book"] = shown.book if shown else None
    lorebook_id = shown.lorebook_id if shown else None
    return make_struct(
        CharacterView, character, **fields, lorebook_id=lorebook_id, has_avatar=has_avatar
    )
