"""Stores the parts of an archive that belong to the whole account: scripts, links and settings.

The account's present settings take precedence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity, open_user_settings
from backend.accounts.models import USER_SETTINGS, USER_VARIABLES
from backend.accounts.repository import get_user
from backend.characters.models import Character
from backend.database.base import UNSYNCHRONIZED, RecordCreated, new_id, upsert
from backend.database.engine import Database
from backend.http.schemas import make_etag, merge_patch
from backend.llm.user_models import UserModels
from backend.lorebooks.models import Lorebook, LorebookLink, LoreEntryRow
from backend.regex.scripts import RegexScript, ScriptList
from backend.regex.service import ScriptService
from backend.transfer.archives.content import list_entry_ids
from backend.transfer.archives.ids import ArchiveIds, NewMessage
from backend.transfer.archives.records import (
    LinkList,
    LorebookLinksRecord,
    SettingsRecord,
)
from backend.transfer.archives.state_rows import translate_settings
from backend.transfer.errors import TransferFileError
from backend.turns.prompt.macros import read_global_variables


class AccountWriter:
    """Adds the scripts, links and settings of an archive to an account."""

    def __init__(self, database: Database, scripts: ScriptService, user_models: UserModels) -> None:
        self._database = database
        self._scripts = scripts
        self._user_models = user_models

    async def add_scripts(
        self, identity: Identity, scripts: Sequence[RegexScript], record: RecordCreated
    ) -> None:
        """Add the scripts that the account does not have, after its own.

        Raises `PreconditionFailedError` if they are changed at the same time.
        """
        own, revision = await self._scripts.read(identity)
        added = [each for each in scripts if each not in own]
        try:
            merged = msgspec.convert(
                {"scripts": msgspec.to_builtins([*own, *added])}, ScriptList
            ).scripts
        except msgspec.ValidationError as error:
            raise TransferFileError(f"The account would have too many scripts: {error}.") from error
        if added:
            await self._scripts.replace(identity, merged, if_match=make_etag(revision))
        async with self._database.write() as session:
            await record(session, identity.user_id)

    async def store_links(
        self, identity: Identity, links: LinkList, ids: ArchiveIds, record: RecordCreated
    ) -> None:
        """Link the imported characters, personas and lorebooks. Items with the old ids are kept."""
        books = {each.id: await ids.find_book(each.id) for each in links.lorebooks}
        chats = {
            origin.chat_id
            for each in links.lorebooks
            for origin in each.origins
            if origin.chat_id is not None
        }
        messages: dict[UUID, NewMessage] = {}
        for chat_id in chats:
            messages |= await ids.find_messages(chat_id)
        async with self._database.write() as session:
            for character in links.characters:
                character_id = ids.find("character", character.id)
                if character_id is None or character_id == character.id:
                    continue
                values = {
                    "scripts_allowed": character.scripts_allowed,
                    "is_favourite": character.is_favourite,
                    "preset_id": ids.find("preset", character.preset_id),
                }
                await session.execute(
                    update(Character)
                    .where(Character.id == character_id, Character.user_id == identity.user_id)
                    .values(values),
                    execution_options=UNSYNCHRONIZED,
                )
            for each in links.lorebooks:
                book_id = books[each.id]
                if book_id is not None and book_id != each.id:
                    await _link_book(session, identity.user_id, book_id, each, ids)
                    await _store_origins(session, book_id, each, ids, messages)
            await record(session, identity.user_id)

    async def add_settings(
        self, identity: Identity, archived: SettingsRecord, ids: ArchiveIds, record: RecordCreated
    ) -> list[str]:
        """Add the settings and variables that the account has not set. Return warnings."""
        sealer = identity.sealer
        changes, warnings = translate_settings(archived.settings, ids, {})
        tasks = msgspec.structs.replace(archived.settings.task_models, embedding=None)
        wanted = msgspec.structs.replace(archived.settings, task_models=tasks, **changes)
        async with self._database.write() as session:
            user = await get_user(session, identity.user_id, lock=True)
            own = open_user_settings(sealer, user.sealed_settings)
            settings = merge_patch(wanted, msgspec.to_builtins(own))
            if settings != own:
                user.sealed_settings = sealer.seal_bytes(
                    USER_SETTINGS, user.id, msgspec.json.encode(settings)
                )
                user.settings_revision += 1
            variables = read_global_variables(sealer, user.sealed_variables)
            if archived.variables.keys() - variables.keys():
                user.sealed_variables = sealer.seal_bytes(
                    USER_VARIABLES, user.id, msgspec.json.encode(archived.variables | variables)
                )
            models = await self._user_models.of(session, user, sealer)
            await record(session, user.id)
        known = {spec.id for spec in models.specs()}
        if settings.model is not None and settings.model not in known:
            warnings.append(
                f"The model {settings.model} is not available here. Choose another one, or enter "
                "the key of its provider."
            )
        return warnings


async def _link_book(
    session: AsyncSession,
    owner_id: UUID,
    book_id: UUID,
    links: LorebookLinksRecord,
    ids: ArchiveIds,
) -> None:
    """Link an imported book. A chronicle keeps the book that it has."""
    values: dict[str, Any] = {"is_global": links.is_global}
    chronicle_id = ids.find("chronicle", links.chronicle_id)
    if chronicle_id is not None:
        taken = select(func.count()).where(Lorebook.chronicle_id == chronicle_id)
        if not await session.scalar(taken):
            values["chronicle_id"] = chronicle_id
    await session.execute(
        update(Lorebook)
        .where(Lorebook.id == book_id, Lorebook.match_owner(owner_id))
        .values(**values, revision=Lorebook.revision + 1),
        execution_options=UNSYNCHRONIZED,
    )
    for column, found in (
        ("character_id", ids.find_all("character", links.character_ids)),
        ("persona_id", ids.find_all("persona", links.persona_ids)),
    ):
        for holder_id in dict.fromkeys(found):
            row = {
                "id": new_id(),
                "user_id": owner_id,
                "lorebook_id": book_id,
                column: holder_id,
            }
            await upsert(session, LorebookLink, row, key=(column, "lorebook_id"))


async def _store_origins(
    session: AsyncSession,
    book_id: UUID,
    links: LorebookLinksRecord,
    ids: ArchiveIds,
    messages: dict[UUID, NewMessage],
) -> None:
    """Note the entries that the agent wrote, and the messages that they come from."""
    if not links.origins:
        return
    entries = await list_entry_ids(session, book_id)
    run_id = new_id()  # of no run: the runs of the other account cannot be undone here
    for origin in links.origins:
        if origin.entry >= len(entries):
            continue
        message = messages.get(origin.message_id) if origin.message_id else None
        values = {
            "agent_run_id": run_id,
            "agent_revision": LoreEntryRow.revision if origin.is_agents else 0,
            "source_chat_id": ids.find("chat", origin.chat_id),
            "source_message_id": message.id if message else None,
        }
        await session.execute(
            update(LoreEntryRow).where(LoreEntryRow.id == entries[origin.entry]).values(values),
            execution_options=UNSYNCHRONIZED,
        )


def read_script_list(data: bytes) -> list[RegexScript]:
    """Read an untrusted file of scripts. CPU-bound. Raises `TransferFileError`."""
    try:
        return msgspec.convert({"scripts": msgspec.json.decode(data)}, ScriptList).scripts
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransferFileError(f"The file is damaged: {error}.") from error
