"""The messages of a path that a viewpoint knows, without their texts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple
from uuid import UUID

from backend.chats.members import list_heard
from backend.chats.repository import HistoryColumns
from backend.core.audience import Viewpoint


class UnknownMessage(NamedTuple):
    """A message that a viewpoint does not know, with the stored tokens before it."""

    position: int
    begin: int
    tokens: int


@dataclass(frozen=True, slots=True)
class KnownPath:
    """Converts stored token sums between all messages and the messages that the viewpoint knows.

    The history of a viewpoint is cut by sums of known messages only. Unknown messages take no room.

    Attributes:
        begins: For each unknown message, the tokens of all messages before it, in order.
        totals: For each unknown message, and after the last one, the tokens of the unknown
            messages before it.
    """

    begins: tuple[int, ...] = ()
    totals: tuple[int, ...] = (0,)

    @classmethod
    def without(cls, lines: Iterable[tuple[int, int]]) -> KnownPath:
        """Return the path without messages, each given by the tokens before it and its own."""
        rows = list(lines)
        return cls(
            tuple(begin for begin, _ in rows),
            tuple(accumulate((tokens for _, tokens in rows), initial=0)),
        )

    def to_known(self, path_tokens: int) -> int:
        """Return the tokens of known messages among the first `path_tokens` of the path."""
        return path_tokens - self.totals[bisect_left(self.begins, path_tokens)]

    def to_path(self, known_tokens: int) -> int:
        """Return the tokens of all messages up to `known_tokens` of known messages."""
        place = bisect_left(
            range(len(self.begins)),
            known_tokens,
            key=lambda number: self.begins[number] - self.totals[number],
        )
        return known_tokens + self.totals[place]


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
