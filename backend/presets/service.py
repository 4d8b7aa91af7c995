"""Services for prompt presets and their files."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.characters.card_rows import FileDownload
from backend.characters.repository import get_character
from backend.context.blocks import PresetFields, check_blocks
from backend.core.cpu_pool import CpuPool
from backend.database.base import RecordCreated, new_id, now, record_nothing
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.http.schemas import (
    Page,
    check_revision,
    make_page,
    make_struct,
    merge_patch,
    reject_unknown,
)
from backend.presets import repository
from backend.presets.errors import PresetsFullError
from backend.presets.files import read_preset, write_preset
from backend.presets.models import (
    PRESET_NAME,
    Preset,
    open_preset,
    open_source,
    seal_preset,
    seal_source,
)
from backend.presets.schemas import ImportedPreset, PresetItem, PresetView
from backend.vault.sealing import Sealer

MAX_PRESETS = 100
"""Maximum number of presets of one user."""

MAX_NAME = 300
UNNAMED = "Preset"


class PresetService:
    """Reads and changes a user's presets.

    Methods raise `PresetNotFoundError`, and `PreconditionFailedError` if `if_match` is another
    revision.
    """

    def __init__(self, database: Database, pool: CpuPool) -> None:
        self._database = database
        self._pool = pool

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None
    ) -> Page[PresetItem]:
        """Return a page of presets, newest first."""
        async with self._database.read() as session:
            rows = await repository.list_presets(
                session, owner_id=identity.user_id, limit=limit + 1, after=after
            )
        page, following = make_page(rows, limit)
        names = [identity.sealer.open(PRESET_NAME, row.id, row.sealed_name) for row in page]
        items = [
            make_struct(PresetItem, row, name=name) for row, name in zip(page, names, strict=True)
        ]
        return Page(items=items, next=following)

    async def preset_chosen(
        self, session: AsyncSession, identity: Identity, preset_id: UUID
    ) -> None:
        await repository.get_preset(session, preset_id, owner_id=identity.user_id)

    async def choose_for_character(
        self, identity: Identity, character_id: UUID, preset_id: UUID | None
    ) -> None:
        """Choose the preset of a character, or none. Raises also `CharacterNotFoundError`."""
        async with self._database.write() as session:
            character = await get_character(
                session, character_id, owner_id=identity.user_id, lock=True
            )
            if preset_id is not None:
                await repository.get_preset(session, preset_id, owner_id=identity.user_id)
            character.preset_id = preset_id

    async def create(self, identity: Identity, fields: PresetFields) -> PresetView:
        """Create a preset. Raises `PresetsFullError` and `ValidationError`."""
        _check(fields)
        row = Preset(id=new_id(), user_id=identity.user_id)
        seal_preset(identity.sealer, row, fields)
        async with self._database.write() as session:
            await _add(session, row)
        return _make_view(row, fields)

    async def get(self, identity: Identity, preset_id: UUID) -> PresetView:
        async with self._database.read() as session:
            row = await repository.get_preset(session, preset_id, owner_id=identity.user_id)
        return _make_view(row, open_preset(identity.sealer, row.id, row.sealed_preset))

    async def patch(
        self, identity: Identity, preset_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> PresetView:
        """Apply a merge patch. Raises `ValidationError`."""
        reject_unknown(patch, PresetFields)
        async with self._database.write() as session:
            row = await repository.get_preset(
                session, preset_id, owner_id=identity.user_id, lock=True
            )
            check_revision(if_match, row.revision)
            fields = merge_patch(open_preset(identity.sealer, row.id, row.sealed_preset), patch)
            _check(fields)
            seal_preset(identity.sealer, row, fields)
            row.revision += 1
            row.updated_at = now()
        return _make_view(row, fields)

    async def delete(self, identity: Identity, preset_id: UUID, *, if_match: str | None) -> None:
        async with self._database.write() as session:
            row = await repository.get_preset(
                session, preset_id, owner_id=identity.user_id, lock=True
            )
            check_revision(if_match, row.revision)
            await session.delete(row)

    async def import_file(
        self,
        identity: Identity,
        data: bytes,
        name: str,
        *,
        record: RecordCreated = record_nothing,
    ) -> ImportedPreset:
        """Create a preset from a file. Raises `PresetFileError` and `PresetsFullError`."""
        sealer, row = identity.sealer, Preset(id=new_id(), user_id=identity.user_id)

        def read() -> tuple[PresetFields, list[str]]:
            found = read_preset(data, name=name.strip()[:MAX_NAME] or UNNAMED)
            seal_preset(sealer, row, found.fields)
            seal_source(sealer, row, found.source)
            return found.fields, found.warnings

        fields, warnings = await self._pool.run(identity.user_id, read, size=len(data))
        async with self._database.write() as session:
            await _add(session, row)
            await record(session, row.id)
        return ImportedPreset(preset=_make_view(row, fields), warnings=warnings)

    async def export(self, identity: Identity, preset_id: UUID) -> FileDownload:
        async with self._database.read() as session:
            row = await repository.get_preset(
                session, preset_id, owner_id=identity.user_id, source=True
            )
        size = len(row.sealed_preset) + len(row.sealed_source or b"")
        return await self._pool.run(
            identity.user_id, partial(_export, identity.sealer, row), size=size
        )


def _check(fields: PresetFields) -> None:
    if not fields.name.strip():
        raise ValidationError("A preset needs a name.")
    check_blocks(fields.blocks)


async def _add(session: AsyncSession, row: Preset) -> None:
    if await repository.count_presets(session, owner_id=row.user_id) >= MAX_PRESETS:
        raise PresetsFullError(
            f"An account can have {MAX_PRESETS} presets. Delete some first.",
            extra={"limit": "presets", "allowed": MAX_PRESETS},
        )
    session.add(row)


def _export(sealer: Sealer, row: Preset) -> FileDownload:
    fields = open_preset(sealer, row.id, row.sealed_preset)
    file = msgspec.json.encode(write_preset(fields, open_source(sealer, row)))
    return FileDownload(
        msgspec.json.format(file, indent=4), "application/json", fields.name, "json"
    )


def _make_view(row: Preset, fields: PresetFields) -> PresetView:
    return PresetView(
        id=row.id,
        **msgspec.structs.asdict(fields),
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
