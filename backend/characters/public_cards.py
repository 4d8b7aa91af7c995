"""Cards of the members of groups, kept by revision, because prompts need those of all members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.characters import repository
from backend.characters.cards.model import Card
from backend.characters.cards.public import PublicCard, find_public_card
from backend.characters.models import open_card
from backend.core.plain_cache import PlainCache
from backend.vault.sealing import Sealer

MAX_CHARACTERS = 5_000_000
"""Characters of all cached cards together."""

KEEP_SECONDS = 300.0
"""The same time for which a user's keys stay in memory after the last request."""


class SealedCard(NamedTuple):
    """A card that is not cached yet."""

    revision: int
    sealed: bytes


class KeptCard(NamedTuple):
    """The public part of a card, and the texts of a prompt in which its character speaks.

    `own` is only for `PublicCards.count_largest`. No other character may know it. `talkativeness`
    is the card's own.
    """

    revision: int
    card: PublicCard
    own: str
    talkativeness: float | None


class PublicCards(UserSignedOut):
    """Opens each revision of a card once. Thread-safe."""

    def __init__(self) -> None:
        self._cache: PlainCache[KeptCard] = PlainCache(most=MAX_CHARACTERS, seconds=KEEP_SECONDS)

    async def load(
        self, session: AsyncSession, revisions: Mapping[UUID, int], *, owner_id: UUID
    ) -> dict[UUID, KeptCard | SealedCard]:
        """Return the cards that are cached, and the others sealed.

        At most one statement. Characters of other users are left out.
        """
        found: dict[UUID, KeptCard | SealedCard] = {}
        for character_id, revision in revisions.items():
            kept = self._cache.get(owner_id, character_id)
            if kept is not None and kept.revision == revision:
                found[character_id] = kept
        if missing := [each for each in revisions if each not in found]:
            sealed = await repository.load_sealed_cards(session, missing, owner_id=owner_id)
            found |= {each: SealedCard(revisions[each], blob) for each, blob in sealed.items()}
        return found

    async def find_talkativeness(
        self, session: AsyncSession, sealer: Sealer, revisions: Mapping[UUID, int]
    ) -> dict[UUID, float]:
        """Return the talkativeness of characters whose cards have one."""
        cards = await self.load(session, revisions, owner_id=sealer.user_id)
        found: dict[UUID, float] = {}
        for character_id, card in cards.items():
            if isinstance(card, SealedCard):
                own = open_card(sealer, character_id, card.sealed).talkativeness
                await asyncio.sleep(0)
            else:
                own = card.talkativeness
            if own is not None:
                found[character_id] = own
        return found

    def open(
        self, sealer: Sealer, cards: Mapping[UUID, KeptCard | SealedCard]
    ) -> dict[UUID, KeptCard]:
        """Return all cards open, and cache new ones. CPU-bound: linear in sealed cards."""
        return {
            character_id: self._open(sealer, character_id, card)
            if isinstance(card, SealedCard)
            else card
            for character_id, card in cards.items()
        }

    def _open(self, sealer: Sealer, character_id: UUID, stored: SealedCard) -> KeptCard:
        card = open_card(sealer, character_id, stored.sealed)
        public, own = find_public_card(card), _join_own_texts(card)
        kept = KeptCard(stored.revision, public, own, card.talkativeness)
        size = len(kept.card.text) + len(kept.card.scenario) + len(kept.own)
        self._cache.put(sealer.user_id, character_id, kept, size=size)
        return kept

    @staticmethod
    def count_largest(cards: Iterable[KeptCard], count: Callable[[str], int]) -> int:
        """Return the tokens of the card that has most."""
        return max((count(card.own) for card in cards), default=0)

    def user_signed_out(self, user_id: UUID) -> None:
        self._cache.forget(user_id)

    def sweep(self) -> None:
        """Drop cards that have not been used for a while, because they are unsealed."""
        self._cache.sweep()


def _join_own_texts(card: Card) -> str:
    depth_prompt = card.depth_prompt
    texts = (
        *(card.description, card.personality, card.scenario, card.mes_example),
        *(card.system_prompt, card.post_history_instructions),
        depth_prompt.prompt if depth_prompt else "",
    )
    return "\n\n".join(filter(None, texts))
