"""Books as they are stored."""

from __future__ import annotations

from uuid import UUID

from backend.lorebooks.entries import BookFields
from backend.lorebooks.models import LOREBOOK_BOOK
from backend.lorebooks.records import open_book
from backend.vault.sealing import Sealer

OWNER = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0001")


def test_a_book_that_was_stored_before_there_were_modes_keeps_to_its_keys() -> None:
    sealer = Sealer(OWNER, {1: bytes(32)}, user_key=OWNER.bytes * 2)
    stored = sealer.seal_bytes(LOREBOOK_BOOK, OWNER, b'{"name":"Old","semantic":false}')
    assert open_book(sealer, OWNER, stored) == BookFields(name="Old", mode="keys")
