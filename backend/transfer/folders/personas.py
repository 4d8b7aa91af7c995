"""Import the personas of a folder, with their pictures and books."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from backend.characters.cards.model import NAME
from backend.characters.schemas import PersonaFields
from backend.errors import AppError
from backend.transfer.contracts import ImportContext, StepResult
from backend.transfer.errors import TransferFileError
from backend.transfer.folders.layout import PERSONA_PICTURES, WORLDS, UserFolder
from backend.transfer.folders.run import FolderRun
from backend.transfer.folders.settings_file import UNUSED_POSITION, FolderPersona
from backend.transfer.imported import digest_parts, make_recorder

_IN_PROMPT: Final = 0


def make_path(folder: UserFolder, persona: FolderPersona) -> str:
    """Return the path of a persona's step, even if its picture is missing."""
    return folder.join(f"{PERSONA_PICTURES}/{persona.file}")


def _digest_persona(run: FolderRun, persona: FolderPersona) -> bytes:
    """Return the digest of a persona. A changed description makes a new persona."""
    texts = persona.file, persona.name, persona.description
    return digest_parts(run.sealer, "persona", [text.encode() for text in texts])


async def import_persona(
    run: FolderRun, persona: FolderPersona, _context: ImportContext
) -> StepResult:
    digest = _digest_persona(run, persona)
    persona_id = await run.find_unless_copy(digest)
    if is_new := persona_id is None:
        made = await run.services.personas.create(
            run.identity,
            _make_fields(persona),
            record=make_recorder(run.sealer, "persona", digest),
        )
        persona_id = made.id
    run.note("persona", make_path(run.folder, persona), persona_id)
    warnings = await _add_picture(run, persona, persona_id)
    warnings += await _link_book(run, persona, persona_id)
    if is_new and persona.position == UNUSED_POSITION:
        warnings.append("SillyTavern did not send its description. Talekeeper does.")
    elif is_new and persona.position != _IN_PROMPT:
        warnings.append("Talekeeper sends its description in the persona's block of the preset.")
    return StepResult(
        outcome="imported" if is_new else "already_there",
        kind="persona",
        item_id=persona_id,
        warnings=warnings,
    )


def _make_fields(persona: FolderPersona) -> PersonaFields:
    """Raises `TransferFileError` if a text is too long."""
    values = {"name": persona.name[: NAME.allowed], "description": persona.description}
    try:
        return msgspec.convert(values, PersonaFields)
    except msgspec.ValidationError as error:
        raise TransferFileError(f"The persona cannot be stored: {error}.") from error


async def _add_picture(run: FolderRun, persona: FolderPersona, persona_id: UUID) -> list[str]:
    """Set the picture of a persona that has none. Return warnings."""
    path = run.folder.find(f"{PERSONA_PICTURES}/{persona.file}")
    if path is None:
        return ["Its picture is not in the folder."]
    try:
        if not (await run.services.personas.get(run.identity, persona_id)).has_avatar:
            data = await run.read(path)
            await run.services.avatars.replace(run.identity, "persona", persona_id, data)
    except AppError as error:
        return [f"Its picture was left out: {error.detail}"]
    return []


async def _link_book(run: FolderRun, persona: FolderPersona, persona_id: UUID) -> list[str]:
    if not persona.lorebook:
        return []
    path = run.folder.find(f"{WORLDS}/{persona.lorebook}.json")
    book_id = await run.find_item("lorebook", path)
    if book_id is None:
        return [f"Its lorebook {persona.lorebook!r} was not imported, so it is not linked."]
    try:
        await run.services.links.link(run.identity, "persona", persona_id, book_id)
    except AppError as error:
        return [f"Its lorebook {persona.lorebook!r} was not linked: {error.detail}"]
    return []


async def find_persona(run: FolderRun, persona: FolderPersona) -> UUID | None:
    """Return the persona of a picture file, or None if it was not imported."""
    found = run.context.found.get(("persona", make_path(run.folder, persona)))
    if found is None:
        found = await run.find(_digest_persona(run, persona))
    return found


async def load_personas(run: FolderRun) -> dict[str, UUID]:
    """Return the personas by picture file and by name. Of equal names, the first one counts."""
    by_file: dict[str, UUID] = {}
    by_name: dict[str, UUID] = {}
    for persona in run.settings.personas:
        persona_id = await find_persona(run, persona)
        if persona_id is not None:
            by_file[persona.file] = persona_id
            by_name.setdefault(persona.name, persona_id)
    return {**by_name, **by_file}
