"""A character's card, changed. CPU-bound, no database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from backend.characters.card_books import CardBooks, ReadyBook, StoredBook
from backend.characters.cards.model import Card
from backend.characters.importing import BOOK, check_card, prepared_book, without_book
from backend.characters.models import Character
from backend.characters.records import open_card
from backend.vault.sealing import Sealer
from backend.wire import merge_patch


@dataclass(frozen=True, slots=True)
class ShownBook:
    """A card's book as it is shown: its lorebook (None while it is in the card), its members."""

    lorebook_id: UUID | None
    book: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChangedCard:
    """A card with a patch merged into it, as it is stored, and what becomes of its book.

    `ready` is a book to be stored; `drops_book` says that the one that is there goes.
    """

    card: Card
    shown: ShownBook | None
    ready: ReadyBook | None = None
    drops_book: bool = False


def shown_ready(ready: ReadyBook | None) -> ShownBook | None:
    """A book that is about to be stored, as it is shown then."""
    return ShownBook(ready.summary.id, ready.shown) if ready else None


def shown_stored(card: Card, stored: StoredBook | None) -> ShownBook | None:
    """The book of a stored card. Those of older versions may have it in the card itself."""
    if stored is not None:
        return ShownBook(stored.id, stored.open())
    return None if card.character_book is None else ShownBook(None, card.character_book)


def patched(
    sealer: Sealer,
    row: Character,
    stored: StoredBook | None,
    patch: dict[str, Any],
    books: CardBooks,
) -> ChangedCard:
    """Merge into a card; a patch of `character_book` merges into what is shown of its lorebook.

    Raises `CardError`, `ValidationError` (see `check_card`).
    """
    card = open_card(sealer, row.id, row.sealed_card)
    before = shown_stored(card, stored)
    if BOOK not in patch and stored is not None:
        return ChangedCard(check_card(merge_patch(without_book(card), patch)), before)
    whole = msgspec.structs.replace(card, character_book=before.book if before else None)
    changed = check_card(merge_patch(whole, patch))
    kept = without_book(changed)
    if changed.character_book is None:
        return ChangedCard(kept, None, drops_book=stored is not None)
    if stored is not None and before is not None and changed.character_book == before.book:
        return ChangedCard(kept, before)
    replaced = stored.id if stored else None
    ready = prepared_book(sealer, books, changed, row.id, replaced=replaced)
    return ChangedCard(kept, shown_ready(ready), ready)
