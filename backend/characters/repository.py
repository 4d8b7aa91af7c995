"""Rows of characters and personas.

No function commits. If a row does not exist or belongs to another user, a `get_` function raises a
not-found error, and a `find_` function returns None. `lock` blocks other transactions that change
the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import delete, exists, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, defer

from backend.characters.cards.model import Card
from backend.characters.errors import CharacterNotFoundError, PersonaNotFoundError
from backend.characters.models import (
    Avatar,
    CardFile,
    Character,
    CharacterAsset,
    Persona,
    Summary,
    open_card,
    open_persona,
    open_summary,
)
from backend.characters.schemas import AvatarSize
from backend.vault.sealing import Sealer

HolderKind = Literal["character", "persona"]
"""The kinds of rows that have an avatar."""

_HOLDER_IDS: Mapping[HolderKind, InstrumentedAttribute[UUID | None]] = {
    "character": Avatar.character_id,
    "persona": Avatar.persona_id,
}


class PersonaData(msgspec.Struct, frozen=True):
    """The persona of a prompt."""

    id: UUID
    name: str
    description: str


@dataclass(frozen=True, slots=True)
class CharacterRow:
    """The columns of a character that a list shows, still sealed."""

    id: UUID
    sealed_summary: bytes
    is_favourite: bool
    revision: int
    created_at: datetime
    updated_at: datetime
    has_avatar: bool


@dataclass(frozen=True, slots=True)
class AvatarRow:
    """An avatar in one of its two sizes, still sealed. A new picture has a new id.

    `is_imported` is true if it was imported with the character's card.
    """

    id: UUID
    media_type: str
    is_imported: bool
    sealed: bytes


async def get_character(
    session: AsyncSession,
    character_id: UUID,
    *,
    owner_id: UUID,
    lock: bool = False,
    source: bool = False,
) -> Character:
    """Return a character. `source` also loads the imported card, which may take megabytes."""
    query = select(Character).where(Character.id == character_id, Character.user_id == owner_id)
    if not source:
        query = query.options(defer(Character.sealed_source, raiseload=True))
    character = await session.scalar(query.with_for_update() if lock else query)
    if character is None:
        raise CharacterNotFoundError
    return character


async def list_characters(
    session: AsyncSession, *, owner_id: UUID, limit: int, after: UUID | None
) -> list[CharacterRow]:
    query = (
        select(
            Character.id,
            Character.sealed_summary,
            Character.is_favourite,
            Character.revision,
            Character.created_at,
            Character.updated_at,
            exists().where(Avatar.character_id == Character.id),
        )
        .where(Character.user_id == owner_id)
        .order_by(Character.id.desc())
        .limit(limit)
    )
    if after is not None:
        query = query.where(Character.id < after)
    return [CharacterRow(*row) for row in (await session.execute(query)).all()]


async def get_card(
    session: AsyncSession, character_id: UUID, *, owner_id: UUID, sealer: Sealer
) -> Card:
    blob = await session.scalar(
        select(Character.sealed_card).where(
            Character.id == character_id, Character.user_id == owner_id
        )
    )
    if blob is None:
        raise CharacterNotFoundError
    return open_card(sealer, character_id, blob)


async def load_summaries(
    session: AsyncSession, character_ids: Sequence[UUID], *, owner_id: UUID, sealer: Sealer
) -> dict[UUID, Summary]:
    """Return the summaries of characters by id. Characters of other users are left out."""
    if not character_ids:
        return {}
    rows = await session.execute(
        select(Character.id, Character.sealed_summary).where(
            Character.id.in_(character_ids), Character.user_id == owner_id
        )
    )
    return {row.id: open_summary(sealer, row.id, row.sealed_summary) for row in rows.all()}


class NamedCharacter(NamedTuple):
    """The name of a character in a chat, and the revision of its card."""

    name: str
    revision: int


async def find_named(
    session: AsyncSession, character_ids: Sequence[UUID], *, owner_id: UUID, sealer: Sealer
) -> dict[UUID, NamedCharacter]:
    """Return the names of characters in a chat: the nickname, or else the name.

    They are in the order of `character_ids`. Characters of other users are left out.
    """
    if not character_ids:
        return {}
    query = select(Character.id, Character.revision, Character.sealed_summary).where(
        Character.id.in_(character_ids), Character.user_id == owner_id
    )
    found: dict[UUID, NamedCharacter] = {}
    for row in await session.execute(query):
        summary = open_summary(sealer, row.id, row.sealed_summary)
        found[row.id] = NamedCharacter(summary.nickname or summary.name, row.revision)
    return {each: found[each] for each in character_ids if each in found}


async def find_names(
    session: AsyncSession, character_ids: Sequence[UUID], *, owner_id: UUID, sealer: Sealer
) -> dict[UUID, str]:
    """Return the names of characters as `find_named` does, without their revisions."""
    found = await find_named(session, character_ids, owner_id=owner_id, sealer=sealer)
    return {character_id: each.name for character_id, each in found.items()}


async def load_sealed_cards(
    session: AsyncSession, character_ids: Sequence[UUID], *, owner_id: UUID
) -> dict[UUID, bytes]:
    """Return the sealed cards of characters by id. Characters of other users are left out."""
    query = select(Character.id, Character.sealed_card).where(
        Character.id.in_(character_ids), Character.user_id == owner_id
    )
    return {row.id: row.sealed_card for row in await session.execute(query)}


async def list_assets(
    session: AsyncSession, character_id: UUID, *, owner_id: UUID
) -> list[CharacterAsset]:
    query = (
        select(CharacterAsset)
        .where(CharacterAsset.character_id == character_id, CharacterAsset.user_id == owner_id)
        .order_by(CharacterAsset.id)
    )
    return list(await session.scalars(query))


async def find_card_file(
    session: AsyncSession, character_id: UUID, *, owner_id: UUID
) -> CardFile | None:
    """Return the PNG file from which a character's card was imported."""
    return await session.scalar(
        select(CardFile).where(CardFile.character_id == character_id, CardFile.user_id == owner_id)
    )


async def find_character_avatar(
    session: AsyncSession, character_id: UUID, *, owner_id: UUID
) -> Avatar | None:
    """Return a character's avatar in both sizes."""
    return await session.scalar(
        select(Avatar).where(Avatar.character_id == character_id, Avatar.user_id == owner_id)
    )


async def find_missing(
    session: AsyncSession, character_ids: Sequence[UUID], *, owner_id: UUID
) -> set[UUID]:
    """Return the ids that are not those of a user's characters."""
    query = select(Character.id).where(
        Character.id.in_(character_ids), Character.user_id == owner_id
    )
    return set(character_ids) - set(await session.scalars(query))


async def get_persona(
    session: AsyncSession, persona_id: UUID, *, owner_id: UUID, lock: bool = False
) -> Persona:
    query = select(Persona).where(Persona.id == persona_id, Persona.user_id == owner_id)
    persona = await session.scalar(query.with_for_update() if lock else query)
    if persona is None:
        raise PersonaNotFoundError
    return persona


async def get_holder(
    session: AsyncSession, kind: HolderKind, holder_id: UUID, *, owner_id: UUID, lock: bool = False
) -> Character | Persona:
    get = get_character if kind == "character" else get_persona
    return await get(session, holder_id, owner_id=owner_id, lock=lock)


async def list_personas(
    session: AsyncSession, *, owner_id: UUID, limit: int, after: UUID | None
) -> list[tuple[Persona, bool]]:
    """List personas, newest first. The flag is true if the persona has an avatar."""
    query = (
        select(Persona, exists().where(Avatar.persona_id == Persona.id))
        .where(Persona.user_id == owner_id)
        .order_by(Persona.id.desc())
        .limit(limit)
    )
    if after is not None:
        query = query.where(Persona.id < after)
    return [(persona, has_avatar) for persona, has_avatar in await session.execute(query)]


async def find_persona(
    session: AsyncSession, persona_id: UUID, *, owner_id: UUID, sealer: Sealer
) -> PersonaData | None:
    blob = await session.scalar(
        select(Persona.sealed_persona).where(Persona.id == persona_id, Persona.user_id == owner_id)
    )
    if blob is None:
        return None
    fields = open_persona(sealer, persona_id, blob)
    return PersonaData(persona_id, fields.name, fields.description)


async def has_avatar(session: AsyncSession, holder: Character | Persona) -> bool:
    link = Avatar.character_id if isinstance(holder, Character) else Avatar.persona_id
    query = select(exists().where(link == holder.id, Avatar.user_id == holder.user_id))
    return bool(await session.scalar(query))


async def find_avatar(
    session: AsyncSession, kind: HolderKind, holder_id: UUID, *, owner_id: UUID, size: AvatarSize
) -> AvatarRow | None:
    media_type, sealed = (
        (Avatar.media_type, Avatar.sealed_image)
        if size == "full"
        else (Avatar.thumbnail_media_type, Avatar.sealed_thumbnail)
    )
    query = select(Avatar.id, media_type, Avatar.is_imported, sealed).where(
        _HOLDER_IDS[kind] == holder_id, Avatar.user_id == owner_id
    )
    row = (await session.execute(query)).one_or_none()
    return None if row is None else AvatarRow(*row)


async def delete_avatar(
    session: AsyncSession, kind: HolderKind, holder_id: UUID, *, owner_id: UUID
) -> bool:
    """Delete the avatar of a character or persona. Return False if it had none."""
    query = delete(Avatar).where(_HOLDER_IDS[kind] == holder_id, Avatar.user_id == owner_id)
    deleted = await session.scalars(query.returning(Avatar.id))
    return deleted.one_or_none() is not None
