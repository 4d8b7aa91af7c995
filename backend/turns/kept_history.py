"""Unsealed histories, kept between turns: the history of a turn is that of the last one, and more.

Reading and unsealing a full window takes longer than everything else that a turn reads. Once a
message has a reply, neither its text nor the messages above it change. Everything else that decides
which lines are sent is compared with the database: the end of the path, the token counts, and
whether lines were hidden or got another audience.
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
"""As long as a user's keys stay in memory after the last request."""


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """The lines of a chat that lie wholly after `begin` stored tokens from the root.

    Attributes:
        mark: How lines are counted, and how often one was hidden, shown, or got another audience.
        begin: As it was asked for.
        start: Stored tokens from the root to the first line.
        lines: Without the last line of the path.
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
        """The lines that lie wholly after `begin`, with new ones at the end.

        Args:
            later: The lines that lie wholly after `end`.
            begin: Stored tokens from the root.
            path_tokens: Stored tokens of the whole path.

        Returns:
            None if the path has changed, or if not all of them are kept.
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
            audiences=[*kept.audiences[first:last], *later.audiences],
            sealed_contents=later.sealed_contents,
            opened=kept.opened[first:last],
        )


class HistoryCache(UserSignedOut):
    """The last history of each chat, as the game master may know it."""

    def __init__(self) -> None:
        self._kept: PlainCache[KeptHistory] = PlainCache(most=MOST, seconds=SECONDS)

    async def read(
        self, session: AsyncSession, loaded: LoadedChat, window: PromptWindow
    ) -> SealedHistory:
        """The lines that history may take, down to the leaf. Kept lines are not read again."""
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
        return await read(from_sum=loaded.known_path.to_path(begin))

    def keep(self, context: PromptContext) -> None:
        """Keep the lines of a prompt with their texts, except for the last one.

        A reply without a line after it can be continued, which changes its text.
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
            lines.audiences[:-1],
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
        """Drop the histories of a user's chats."""
        self._kept.forget(user_id)

    def sweep(self) -> None:
        """Drop histories that were not used for some minutes."""
        self._kept.sweep()


def _may_be_kept(loaded: LoadedChat, window: PromptWindow) -> bool:
    return loaded.viewpoint == GM and not window.needs_authors


def _mark(chat: Chat) -> tuple[str, int]:
    return chat.count_unit, chat.hidden_changes
