"""Public parts of cards, kept by revision, because a group's prompt has those of all members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.characters import repository
from backend.characters.cards.public import PublicCard, find_public_card
from backend.characters.models import open_card
from backend.core.plain_cache import PlainCache
from backend.vault.sealing import Sealer

MAX_CHARACTERS = 2_000_000
"""Characters of all cached public parts together."""

KEEP_SECONDS = 300.0
"""The same time for which a user's keys stay in memory after the last request."""


class SealedCard(NamedTuple):
    """A card whose public part is not cached yet."""

    revision: int
    sealed: bytes


class _KeptCard(NamedTuple):
    revision: int
    card: PublicCard


class PublicCards(UserSignedOut):
    """Reads the public part of each revision of a card once. Thread-safe."""

    def __init__(self) -> None:
        self._cache: PlainCache[_KeptCard] = PlainCache(most=MAX_CHARACTERS, seconds=KEEP_SECONDS)

    async def load(
        self, session: AsyncSession, revisions: Mapping[UUID, int], *, owner_id: UUID
    ) -> dict[UUID, PublicCard | SealedCard]:
        """Return the public parts of cards, and the sealed cards of those that are not cached.

        At most one statement. Characters of other users are left out.
        """
        found: dict[UUID, PublicCard | SealedCard] = {}
        for character_id, revision in revisions.items():
            kept = self._cache.get(owner_id, character_id)
            if kept is not None and kept.revision == revision:
                found[character_id] = kept.card
        if missing := [each for each in revisions if each not in found]:
            sealed = await repository.load_sealed_cards(session, missing, owner_id=owner_id)
            found |= {each: SealedCard(revisions[each], blob) for each, blob in sealed.items()}
        return found

    def open(
        self, sealer: Sealer, cards: Mapping[UUID, PublicCard | SealedCard]
    ) -> dict[UUID, PublicCard]:
        """Return the public parts, and cache new ones. CPU-bound: linear in sealed cards."""
        return {
            character_id: self._open(sealer, character_id, card)
            if isinstance(card, SealedCard)
            else card
            for character_id, card in cards.items()
        }

    def _open(self, sealer: Sealer, character_id: UUID, stored: SealedCard) -> PublicCard:
        card = find_public_card(open_card(sealer, character_id, stored.sealed))
        kept = _KeptCard(stored.revision, card)
        size = len(card.text) + len(card.scenario)
        self._cache.put(sealer.user_id, character_id, kept, size=size)
        return card

    def user_signed_out(self, user_id: UUID) -> None:
        self._cache.forget(user_id)

    def sweep(self) -> None:
        """Drop public parts that have not been used for a while, because they are unsealed."""
        self._cache.sweep()
