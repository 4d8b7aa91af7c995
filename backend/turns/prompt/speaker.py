"""Who speaks in a turn, and the preset that its prompt is made by."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.characters.cards.model import Card
from backend.characters.errors import CharacterNotFoundError
from backend.characters.models import Character, open_card
from backend.chats.schemas import ChatSettings
from backend.context.blocks import ChosenBy
from backend.presets.models import Preset, open_preset
from backend.turns.api.schemas import TurnRequest
from backend.turns.prompt.context import Speaker
from backend.turns.prompt.load import Target
from backend.turns.prompt.sections import LoadedPreset

NARRATOR = "Narrator"
"""Who speaks in a chat without a character."""

_CHARACTER = select(Character.sealed_card, Character.preset_id).where(
    Character.id == bindparam("character_id"), Character.user_id == bindparam("owner_id")
)
_PRESET = select(Preset.sealed_preset, Preset.revision).where(
    Preset.id == bindparam("preset_id"), Preset.user_id == bindparam("owner_id")
)


async def find_speaker(
    session: AsyncSession,
    identity: Identity,
    names: Mapping[UUID, str],
    request: TurnRequest,
    target: Target,
) -> Speaker:
    """Who speaks: as asked, else the speaker of the reply, else the chat's first character.

    Raises `CharacterNotFoundError`.
    """
    if request.speaker is not None and request.speaker not in names:
        raise CharacterNotFoundError
    for character_id in (request.speaker, target.spoken_by, *names):
        if character_id is not None and character_id in names:
            values = {"character_id": character_id, "owner_id": identity.user_id}
            row = (await session.execute(_CHARACTER, values)).one_or_none()
            if row is None:
                raise CharacterNotFoundError
            card = open_card(identity.sealer, character_id, row.sealed_card)
            name, preset_id = names[character_id], row.preset_id
            return Speaker(id=character_id, card=card, name=name, preset_id=preset_id)
    return Speaker(id=None, card=Card(name=NARRATOR), name=NARRATOR)


async def find_preset(
    session: AsyncSession, identity: Identity, settings: ChatSettings, speaker: Speaker
) -> LoadedPreset | None:
    """The nearest preset that is chosen and still there; None for the default order."""
    choices: tuple[tuple[ChosenBy, UUID | None], ...] = (
        ("chat", settings.preset_id),
        ("character", speaker.preset_id),
        ("account", identity.settings.preset_id),
    )
    for chosen_by, preset_id in choices:
        if preset_id is not None:
            values = {"preset_id": preset_id, "owner_id": identity.user_id}
            row = (await session.execute(_PRESET, values)).one_or_none()
            if row is not None:
                fields = open_preset(identity.sealer, preset_id, row.sealed_preset)
                return LoadedPreset(preset_id, row.revision, chosen_by, fields)
    return None
