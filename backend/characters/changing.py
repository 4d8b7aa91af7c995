"""A character's card, changed. CPU-bound, no database."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import msgspec

from backend.characters.card_books import CardBooks, ReadyBook, StoredBook
from backend.characters.cards.model import Card
from backend.characters.greetings import check_greetings
from backend.characters.importing import BOOK, check_card, prepared_book, without_book
from backend.characters.models import Character, open_card
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
    `new_scripts` says that its regex scripts are other ones.
    """

    card: Card
    shown: ShownBook | None
    ready: ReadyBook | None = None
    drops_book: bool = False
    new_scripts: bool = False


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
    *,
    longest_greeting: int,
) -> ChangedCard:
    """Merge into a card; a patch of `character_book` merges into what is shown of its lorebook.

    Raises `CardError`, `ValidationError` (see `check_card`, `check_greetings`).
    """
    card = open_card(sealer, row.id, row.sealed_card)
    before = shown_stored(card, stored)
    keeps_book = stored is not None and BOOK not in patch
    book = before.book if before is not None and not keeps_book else None
    changed = check_card(merge_patch(msgspec.structs.replace(card, character_book=book), patch))
    check_greetings(changed, known=card, longest=longest_greeting)
    then, new = (each.extensions.get("regex_scripts") for each in (card, changed))
    result = ChangedCard(without_book(changed), before, new_scripts=new != then)
    if keeps_book or (stored is not None and book is not None and changed.character_book == book):
        return result
    replaced = stored.id if stored else None
    ready = prepared_book(sealer, books, changed, row.id, replaced=replaced)
    drops_book = ready is None and stored is not None
    return replace(result, shown=shown_ready(ready), ready=ready, drops_book=drops_book)
