"""Histories that were unsealed lately: a turn's is the one before it and some lines more.

Reading and unsealing a full window takes longer than all else that a turn reads. What a message
says, and what stands above it, never changes once something follows it. What else decides which
lines are sent is compared: whether they are hidden, what they cost, where they end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.audience import GM
from backend.chats import repository as chats
from backend.chats.models import Chat
from backend.chats.repository import SealedHistory
from backend.plain_cache import PlainCache
from backend.turns.history import read_from
from backend.turns.prompt_context import LoadedChat, PromptContext, PromptWindow

MOST = 20_000_000
"""Characters that are kept of all chats together."""

SECONDS = 300.0
"""As long as a user's keys stay after the last request."""


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """The lines of a chat that stand wholly after `begin` stored tokens from the root.

    The first of them begins at `start`; the last is one that something follows. `mark` says how
    lines are counted and what is hidden.
    """

    mark: tuple[str, int]
    begin: int
    start: int
    lines: SealedHistory

    @property
    def end(self) -> int:
        """Stored tokens from the root to where the last line begins."""
        return self.start + sum(self.lines.tokens[:-1])

    def continued(
        self, later: SealedHistory, *, begin: int, path_tokens: int
    ) -> SealedHistory | None:
        """The lines that stand wholly after `begin`, with those that came since.

        Args:
            later: What stands wholly after `end`.
            begin: Stored tokens from the root.
            path_tokens: Those of the whole path.

        Returns:
            None where the path runs elsewhere, or not all is kept.
        """
        kept, end = self.lines, self.end
        if (
            begin < self.begin
            or not later.ids
            or later.ids[0] != kept.ids[-1]
            or end + sum(later.tokens) != path_tokens
        ):
            return None
        first, start, last = 0, self.start, len(kept.ids) - 1
        while first < last and (start < begin or start + kept.tokens[first] <= begin):
            start += kept.tokens[first]
            first += 1
        if start < begin:
            return None
        return SealedHistory(
            ids=[*kept.ids[first:last], *later.ids],
            positions=[*kept.positions[first:last], *later.positions],
            roles=[*kept.roles[first:last], *later.roles],
            tokens=[*kept.tokens[first:last], *later.tokens],
            sealed_contents=later.sealed_contents,
            opened=kept.opened[first:last],
        )


class HistoryCache(UserSignedOut):
    """The last histories of chats, for their owners: what the game master may know."""

    def __init__(self) -> None:
        self._kept: PlainCache[KeptHistory] = PlainCache(most=MOST, seconds=SECONDS)

    async def read(
        self, session: AsyncSession, loaded: LoadedChat, window: PromptWindow
    ) -> SealedHistory:
        """The lines that history may take, down to the leaf. What is kept is not read again."""
        leaf, chat, begin = loaded.target.leaf, loaded.chat, read_from(loaded, window)
        if leaf is None:
            return SealedHistory()
        read = partial(
            chats.active_lines,
            session,
            chat.id,
            to_position=leaf.position,
            authors=window.needs_authors,
            viewpoint=loaded.viewpoint,
        )
        if _may_be_kept(loaded, window):
            kept = self._kept.get(chat.user_id, chat.id)
            if kept is not None and kept.mark == _mark(chat):
                later = await read(from_sum=kept.end)
                lines = kept.continued(later, begin=begin, path_tokens=leaf.path_tokens)
                if lines is not None:
                    return lines
        return await read(from_sum=begin)

    def keep(self, context: PromptContext) -> None:
        """Keep the lines of a prompt, with what they say, but for the last one.

        While nothing follows that one, it may be continued.
        """
        loaded, lines, texts = context.loaded, context.lines, context.texts
        if len(texts) <= 1 or not _may_be_kept(loaded, context.window):
            return
        chat = loaded.chat
        kept = SealedHistory(
            lines.ids[:-1],
            lines.positions[:-1],
            lines.roles[:-1],
            lines.tokens[:-1],
            opened=texts[:-1],
        )
        history = KeptHistory(
            _mark(chat),
            begin=read_from(loaded, context.window),
            start=loaded.path_tokens - sum(lines.tokens),
            lines=kept,
        )
        self._kept.put(chat.user_id, chat.id, history, size=sum(map(len, texts)))

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop what a user's chats say."""
        self._kept.forget(user_id)

    def sweep(self) -> None:
        """Drop what nobody used for a while."""
        self._kept.sweep()


def _may_be_kept(loaded: LoadedChat, window: PromptWindow) -> bool:
    return loaded.viewpoint == GM and not window.needs_authors


def _mark(chat: Chat) -> tuple[str, int]:
    return chat.count_unit, chat.hidden_changes
