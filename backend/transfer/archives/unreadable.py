"""Leaves out the items of an account that cannot be decrypted, and notes them for the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

from backend.transfer.archives.manifest import UnreadableItem, UnreadableKind
from backend.vault.sealing import Column, SealBrokenError, Sealer

T = TypeVar("T")

_TEXT_KINDS: dict[str, UnreadableKind] = {"chats": "chat_title", "messages": "message"}


class Salvage:
    """Reads the rest of an account of which some texts are damaged. `items` are those left out.

    An item is listed once, also if several of its texts are damaged.
    """

    def __init__(self, sealer: Sealer) -> None:
        self.sealer = sealer
        self._items: dict[UnreadableItem, None] = {}

    @property
    def items(self) -> list[UnreadableItem]:
        return list(self._items)

    def count_kinds(self) -> Counter[UnreadableKind]:
        return Counter(each.kind for each in self._items)

    @contextmanager
    def leave_out(self, kind: UnreadableKind, item_id: UUID) -> Generator[None]:
        """End the block at a `SealBrokenError`, and note its item. Other errors are raised."""
        try:
            yield
        except SealBrokenError:
            self._items[UnreadableItem(kind=kind, id=item_id)] = None

    def open_rows(
        self, kind: UnreadableKind, rows: Iterable[Any], open_row: Callable[[Any], T]
    ) -> list[T]:
        """Return the result of `open_row` for each row that can be decrypted."""
        opened: list[T] = []
        for row in rows:
            with self.leave_out(kind, row.id):
                opened.append(open_row(row))
        return opened

    def open_text(self, column: Column, row_id: UUID, blob: bytes) -> str | None:
        """Return a text of a chat or message, or None if it cannot be decrypted."""
        text: str | None = None
        with self.leave_out(_TEXT_KINDS[column.table], row_id):
            text = self.sealer.open(column, row_id, blob)
        return text  # noqa: RET504  # the block above may have ended early
