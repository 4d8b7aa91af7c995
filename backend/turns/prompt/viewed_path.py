"""The messages of a path that a viewpoint knows, without their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from uuid import UUID

from backend.chats.members import list_heard
from backend.chats.repository import HistoryColumns
from backend.core.audience import Viewpoint
from backend.turns.prompt.context import UnknownMessage


@dataclass(frozen=True)
class ViewedPath:
    """All visible messages from the root, and the places of those that the viewpoint knows."""

    columns: HistoryColumns
    known: Sequence[int]

    @classmethod
    def view(cls, columns: HistoryColumns, viewpoint: Viewpoint, chat_id: UUID) -> ViewedPath:
        return cls(columns, list_heard(viewpoint, chat_id, columns.positions, columns.audiences))

    @cached_property
    def _begins(self) -> Sequence[int]:
        """The stored tokens from the root before each message."""
        return list(accumulate(self.columns.tokens, initial=0))

    def list_unknown(self) -> list[UnknownMessage]:
        columns, known = self.columns, set(self.known)
        return [
            UnknownMessage(position, self._begins[at], columns.tokens[at])
            for at, position in enumerate(columns.positions)
            if at not in known
        ]

    def list_last_positions(self, limit: int) -> list[int]:
        """Return the positions of the last known messages, in order."""
        return [self.columns.positions[at] for at in self.known[-limit:]]

    def list_round_starts(self, limit: int) -> list[int]:
        """Return the tokens before the last known messages of the user, the last one first."""
        roles = self.columns.roles
        starts = (self._begins[at] for at in reversed(self.known) if roles[at] == "user")
        return list(islice(starts, limit))
