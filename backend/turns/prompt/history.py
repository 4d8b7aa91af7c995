"""The history of a prompt: cached messages, the summary before them, and the thoughts of replies.

Unsealed histories are kept between turns, because reading and unsealing a full window takes longer
than everything else that a turn reads. A kept history has the messages of everyone, so that it
serves all speakers. Once a message has a reply, its text and the messages above it cannot change.
Everything else is compared with the database: the end of the path, the token counts, and changes of
visibility or audience.
"""

from __future__ import annotations

import contextlib
from collections import Counter as Counts
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from msgspec import structs
from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.events import UserSignedOut
from backend.chats import repository as chats
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, MESSAGE_THINKING, Chat, Message
from backend.chats.repository import HistoryColumns
from backend.chats.token_counting import CountUnit, format_line
from backend.context.assembly import (
    Counter,
    History,
    LeftOut,
    Plan,
    PromptItem,
    plan,
)
from backend.context.budget import ContextOverflowError, find_eviction_point, find_joined_start
from backend.core.audience import GM, PUBLIC, AudienceMarks, put_mark
from backend.core.plain_cache import PlainCache
from backend.core.reasons import Reason, ReasonKind
from backend.generation.images import IMAGE_TOKENS, count_image_tokens
from backend.generation.model import PromptImage, PromptMessage
from backend.turns.prompt.client import ClientParts
from backend.turns.prompt.context import (
    LoadedChat,
    LoadedPrompt,
    PromptWindow,
    ReadHistory,
    RetrievedPrompt,
    SealedThoughts,
)
from backend.turns.prompt.macros import rewrite_history
from backend.vault.sealing import Sealer

SUMMARY_KIND = "summary"
"""The kind of the section with the summary."""

MAX_CHARACTERS = 20_000_000
"""Characters of all cached histories together."""

MAX_PLACES = 500_000
"""Messages of all cached paths together. They are read if not everyone knows everything."""

PATH_TAIL = 3
"""Last messages of a path that are read again. They may be continued, or written once more."""

MAX_SPAN_FACTOR = 4
"""A kept history of a group spans at most so many windows, for members who were long away."""

KEEP_SECONDS = 300.0
"""The same time for which a user's keys stay in memory after the last request."""

MAX_THOUGHTS_SHARE = 4
"""Thoughts take at most a quarter of a prompt. The last replies come first."""

_LAST = (
    select(Message.position, Message.id, Message.sealed_thinking)
    .where(
        Message.chat_id == bindparam("chat_id"),
        Message.is_active,
        ~Message.hidden,
        Message.role == "assistant",
        Message.position <= bindparam("to_position"),
    )
    .order_by(Message.position.desc())
    .limit(bindparam("most"))
)


async def find_history_begin(
    session: AsyncSession, loaded: LoadedChat, *, budget: int
) -> int | None:
    """Return the position of the first message of a history that fits `budget` stored tokens.

    Returns None if the whole path fits. The history of a client begins with the first message that
    it sends.
    """
    leaf = loaded.target.leaf
    if loaded.client is not None:
        after = leaf.position + 1 if leaf else None
        return after if loaded.client.first is None else loaded.client.first
    begin = max(find_eviction_point(loaded.path_tokens, budget), loaded.summed_up)
    if leaf is None or begin == 0:
        return None
    from_sum = loaded.known_path.to_path(begin)
    first = await chats.find_first_after(session, loaded.chat.id, from_sum=from_sum)
    return leaf.position + 1 if first is None else first


def find_read_begin(loaded: LoadedChat, window: PromptWindow) -> int:
    """Return the stored tokens from the root after which messages are read. Counts known messages.

    The history may take these messages if there are no fixed sections. Messages that connect it to
    a summary are added. They are cut once the fixed sections are known. For a client, the messages
    are read that it may have sent.
    """
    if loaded.client is not None:
        return loaded.sent_begin
    begin = max(find_eviction_point(loaded.path_tokens, window.widest), loaded.summed_up)
    if loaded.summary is None or loaded.sums_rounds:
        return begin
    reached = find_joined_start(
        begin,
        summarised=loaded.summary.path_tokens,
        path_tokens=loaded.path_tokens,
        most=window.to_stored(window.budget.for_reaching(0)),
    )
    return begin if reached is None else reached


def open_history(
    identity: Identity, prompt: LoadedPrompt, images: Mapping[int, tuple[PromptImage, ...]]
) -> tuple[History, HistoryColumns]:
    """Return the unsealed history as it is sent, and all messages that were read. CPU-bound.

    `images` are those of its messages, by position.
    """
    lines, unit, client = prompt.lines, prompt.window.unit, prompt.loaded.client
    scripts = prompt.loaded.scripts if client is None else None
    read = _open_columns(identity.sealer, prompt.read.columns)
    stored = [read.opened[at] for at in prompt.read.known]
    tokens = list(lines.tokens)
    texts = rewrite_history(scripts, lines.roles, stored, has_line=prompt.loaded.said is not None)
    changed = [at for at, text in enumerate(texts) if text != stored[at]]
    if prompt.window.needs_authors:
        authors = [read.opened_authors[at] for at in prompt.read.known]
        spoken = list(zip(authors, texts, strict=True))
        if prompt.window.is_estimated:
            tokens = unit.count_many(spoken)
            changed = []
        texts = [format_line(author, text, names=unit.names) for author, text in spoken]
    if client is not None:
        return _match_client(client, unit, lines, tokens, texts=texts, bare=stored), read
    marks = _mark_lines(texts, lines, prompt.loaded.marks)
    changed = [*changed, *marks]
    # The texts already contain the names, if they are sent.
    unnamed = replace(unit, names=False)
    for at, count in zip(
        changed, unnamed.count_many([("", texts[at]) for at in changed]), strict=True
    ):
        tokens[at] = count
    thoughts = add_thoughts(
        texts,
        tokens,
        lines.positions,
        prompt.thoughts,
        sealer=identity.sealer,
        count=lambda text: unnamed.count_many([("", text)])[0],
        most=prompt.window.budget.prompt // MAX_THOUGHTS_SHARE,
    )
    messages = list(map(PromptMessage, lines.roles, texts))
    positions = list(lines.positions)
    words = {positions[at]: said for at, said in marks.items()}
    counts = {position: len(images[position]) for position in positions if position in images}
    for at, position in enumerate(positions) if counts else ():
        if position in images:
            messages[at] = structs.replace(messages[at], images=images[position])
            tokens[at] += IMAGE_TOKENS * counts[position]
    return History(messages, tokens, positions, thoughts, words, counts), read


def _open_columns(sealer: Sealer, columns: HistoryColumns) -> HistoryColumns:
    """Unseal the texts and authors that are still sealed."""
    ids, opened, authors = columns.ids, columns.opened, columns.opened_authors
    texts = zip(ids[len(opened) :], columns.sealed_contents, strict=True)
    opened = [*opened, *sealer.open_many(MESSAGE_CONTENT, texts)]
    if columns.sealed_authors:
        named = zip(ids[len(authors) :], columns.sealed_authors, strict=True)
        authors = [*authors, *sealer.open_many(MESSAGE_AUTHOR, named)]
    return replace(
        columns, opened=opened, opened_authors=authors, sealed_contents=(), sealed_authors=()
    )


def _match_client(
    client: ClientParts,
    unit: CountUnit,
    lines: HistoryColumns,
    tokens: Sequence[int],
    *,
    texts: Sequence[str],
    bare: Sequence[str],
) -> History:
    """Return the messages that a client sends. Only those that differ from `lines` are counted.

    CPU-bound. A client may send the names of the authors in another way than Talekeeper, so the
    stored messages are compared in both forms.

    Args:
        client: The client's prompt.
        unit: The unit of `tokens`.
        lines: The stored messages.
        tokens: Their tokens.
        texts: Their texts as Talekeeper sends them.
        bare: Their texts without names.
    """
    changed, has_names = _find_changed(client, lines, texts), True
    if changed and unit.names:
        others = _find_changed(client, lines, bare)
        if len(others) < len(changed):
            changed, has_names = others, False
    # The texts already contain the names, if they are sent.
    counts = replace(unit, names=False).count_many([("", each.text) for each in changed.values()])
    known = dict(zip(lines.positions, tokens, strict=True))
    for (position, message), count in zip(changed.items(), counts, strict=True):
        known[position] = count + count_image_tokens(message)
    return History(
        list(client.history),
        [known[position] for position in client.positions],
        list(client.positions),
        changed=changed,
        has_names=has_names,
    )


def _find_changed(
    client: ClientParts, lines: HistoryColumns, texts: Sequence[str]
) -> dict[int, PromptMessage]:
    """Return the messages that differ from the stored ones, by position."""
    stored = dict(zip(lines.positions, map(PromptMessage, lines.roles, texts), strict=True))
    sent = zip(client.positions, client.history, strict=True)
    return {position: message for position, message in sent if stored.get(position) != message}


def _mark_lines(texts: list[str], lines: HistoryColumns, marks: AudienceMarks) -> dict[int, str]:
    """Mark messages that not everyone knows. Returns the marks by place in `texts`."""
    found: dict[int, str] = {}
    for at, audience in enumerate(lines.audiences):
        if audience != PUBLIC and (words := marks.words(audience)):
            found[at], texts[at] = words, put_mark(texts[at], words)
    return found


def fit_history(
    prompt: RetrievedPrompt, items: Sequence[PromptItem], *, count: Counter, reserved: int = 0
) -> tuple[Plan, History, list[LeftOut]]:
    """Return the counted fixed sections, the history, and the summary if it is left out.

    The history leaves `reserved` tokens to other items, unless it has to reach back to a summary. A
    summary is left out if the history does not connect to it, or if it leaves no room for the fixed
    sections. The summary of a campaign always stays. A client's history is kept whole; see
    `_fit_client`.

    Raises:
        ContextOverflowError: The fixed sections alone exceed the budget.
    """
    budget, summarised = prompt.window.budget, prompt.loaded.summary
    shape = prompt.window.spec.shape
    if prompt.loaded.client is not None:
        return _fit_client(prompt, items, count=count)
    summary = next((item for item in items if item.kind == SUMMARY_KIND), None)
    if summary is None or summarised is None or prompt.loaded.sums_rounds:
        fixed = plan(items, budget=budget, count=count, shape=shape)
        return fixed, _drop_before(prompt, _find_begin(prompt, fixed, reserved, count)), []
    kind: ReasonKind = "summary_no_room"
    try:
        fixed = plan(items, budget=budget, count=count, shape=shape)
    except ContextOverflowError:
        pass
    else:
        begin = _find_begin(prompt, fixed, reserved, count)
        history = _reach_summary(prompt, fixed, begin, summarised.path_tokens)
        if history is not None:
            return fixed, history, []
        kind = "summary_too_old"
    rest = [item for item in items if item is not summary]
    fixed = plan(rest, budget=budget, count=count, shape=shape)
    left_out = _leave_out_summary(summary, kind, count)
    return fixed, _drop_before(prompt, _find_begin(prompt, fixed, reserved, count)), [left_out]


def _fit_client(
    prompt: RetrievedPrompt, items: Sequence[PromptItem], *, count: Counter
) -> tuple[Plan, History, list[LeftOut]]:
    """Return the counted fixed sections and the whole history of a client.

    The summary is left out if the client sends all messages, or if its history leaves no room for
    the summary. It may end before the first sent message, because memory is searched for the
    messages between them.
    """
    budget, history = prompt.window.budget, prompt.history
    plan_items = partial(plan, budget=budget, count=count, shape=prompt.window.spec.shape)
    summary = next((item for item in items if item.kind == SUMMARY_KIND), None)
    if summary is None:
        return plan_items(items), history, []
    kind: ReasonKind = "in_history"
    if prompt.loaded.sent_begin > 0:
        kind = "summary_no_room"
        with contextlib.suppress(ContextOverflowError):
            fixed = plan_items(items)
            if fixed.fixed + sum(history.tokens) <= budget.prompt:
                return fixed, history, []
    rest = [item for item in items if item is not summary]
    return plan_items(rest), history, [_leave_out_summary(summary, kind, count)]


def _leave_out_summary(summary: PromptItem, kind: ReasonKind, count: Counter) -> LeftOut:
    reasons = [Reason(kind, count=each.count) for each in summary.reasons]
    return structs.replace(summary, tokens=count(summary.text)).left_out(*reasons)


def _find_begin(prompt: RetrievedPrompt, fixed: Plan, reserved: int, count: Counter) -> int:
    """Return the stored tokens from the root after which the history fits the budget."""
    window, loaded = prompt.window, prompt.loaded

    def find_begin(taken: int) -> int:
        fits = window.to_stored(window.budget.for_history(taken))
        return max(find_eviction_point(loaded.path_tokens, fits), loaded.summed_up)

    # Stored tokens do not include thoughts, images and marks.
    taken = fixed.fixed + reserved + sum(prompt.history.thoughts.values())
    taken += prompt.history.image_tokens
    begin = find_begin(taken)
    if not prompt.history.marks:
        return begin
    history = _drop_before(prompt, begin)
    kept = Counts(history.marks[at] for at in history.positions if at in history.marks)
    return find_begin(
        taken + sum(times * count(put_mark("", each)) for each, times in kept.items())
    )


def _reach_summary(
    prompt: RetrievedPrompt, fixed: Plan, begin: int, summarised: int
) -> History | None:
    """Return the history that reaches back to a summary. None if it does not fit."""
    room = prompt.window.budget.for_reaching(fixed.fixed)
    most, path_tokens = prompt.window.to_stored(room), prompt.loaded.path_tokens
    start = find_joined_start(begin, summarised=summarised, path_tokens=path_tokens, most=most)
    if start is None:
        return None
    history = _drop_before(prompt, start)
    # Stored counts may be estimates, so the counted tokens have to fit as well.
    return history if start == begin or sum(history.tokens) <= room else None


def _drop_before(prompt: RetrievedPrompt, begin: int) -> History:
    """Return the messages that begin after `begin` stored tokens from the root."""
    history, stored = prompt.history, prompt.lines.tokens
    start = prompt.loaded.path_tokens - sum(stored)
    dropped = 0
    for tokens in stored:
        if start >= begin:
            break
        start += tokens
        dropped += 1
    return History(
        history.messages[dropped:],
        history.tokens[dropped:],
        history.positions[dropped:],
        history.thoughts,
        history.marks,
        {at: count for at, count in history.images.items() if at in history.positions[dropped:]},
    )


class HistoryCache(UserSignedOut):
    """The last messages of each chat, whoever knows them, and the whole path without texts."""

    def __init__(self) -> None:
        self._kept: PlainCache[KeptHistory] = PlainCache(most=MAX_CHARACTERS, seconds=KEEP_SECONDS)
        self._paths: PlainCache[KeptHistory] = PlainCache(most=MAX_PLACES, seconds=KEEP_SECONDS)

    async def read_path(self, session: AsyncSession, chat: Chat, leaf: Message) -> HistoryColumns:
        """Return all visible messages up to the leaf, without texts. Reads only new ones."""
        read = partial(
            chats.load_active_messages,
            session,
            chat.id,
            to_position=leaf.position,
            authors=False,
            texts=False,
        )
        mark = chat.count_unit, chat.hidden_changes, False
        kept, columns = self._paths.get(chat.user_id, chat.id), None
        if kept is not None and kept.mark == mark:
            columns = kept.extend(await read(from_sum=kept.end), path_tokens=leaf.path_tokens)
        if columns is None:
            columns = await read(from_sum=0)
        if len(columns.ids) > PATH_TAIL:
            path = KeptHistory(mark, begin=0, start=0, columns=columns.slice(0, -PATH_TAIL))
            self._paths.put(chat.user_id, chat.id, path, size=len(columns.ids))
        return columns

    async def read(
        self, session: AsyncSession, loaded: LoadedChat, window: PromptWindow
    ) -> ReadHistory:
        """Return the messages that the history may take, up to the leaf. Reads only new ones.

        After a turn, the new ones are among the last messages, which are loaded already.
        If a viewpoint knows so few messages that its history reaches very far back, only those are
        read, and they are not cached.
        """
        leaf, chat = loaded.target.leaf, loaded.chat
        if leaf is None:
            return ReadHistory()
        begin = loaded.known_path.to_path(find_read_begin(loaded, window))
        viewpoint = loaded.viewpoint
        read = partial(
            chats.load_active_messages,
            session,
            chat.id,
            to_position=leaf.position,
            authors=window.needs_authors,
        )
        kept = self._kept.get(chat.user_id, chat.id)
        if kept is not None and kept.mark == _get_mark(chat, window) and kept.begin <= begin:
            later = chats.select_history(
                loaded.last_rows, from_sum=kept.end, authors=window.needs_authors
            )
            if later is None:
                later = await read(from_sum=kept.end)
            columns = kept.extend(later, path_tokens=leaf.path_tokens)
            if columns is not None:
                return ReadHistory.select(loaded, columns, begin=begin, read_begin=kept.begin)
        if leaf.path_tokens - begin > MAX_SPAN_FACTOR * window.widest and viewpoint != GM:
            columns = await read(from_sum=begin, viewpoint=viewpoint)
            return ReadHistory(columns, range(len(columns.ids)))
        columns = await read(from_sum=begin)
        return ReadHistory.select(loaded, columns, begin=begin, read_begin=begin)

    def keep(self, prompt: LoadedPrompt, opened: HistoryColumns) -> None:
        """Cache the messages except for the last one, because its text may be continued.

        In a group, messages before this viewpoint's history are kept for other speakers.
        """
        loaded, leaf, read = prompt.loaded, prompt.loaded.target.leaf, prompt.read
        if leaf is None or read.begin is None or len(opened.ids) <= 1:
            return
        begin, first = read.begin, 0
        span = MAX_SPAN_FACTOR * prompt.window.widest
        if not loaded.group.is_group or leaf.path_tokens - begin > span:
            begin, first = read.known_begin, read.first
        columns = opened.slice(first, -1)
        history = KeptHistory(
            _get_mark(loaded.chat, prompt.window),
            begin=begin,
            start=leaf.path_tokens - sum(opened.tokens[first:]),
            columns=columns,
        )
        size = sum(map(len, columns.opened))
        self._kept.put(loaded.chat.user_id, loaded.chat.id, history, size=size)

    def user_signed_out(self, user_id: UUID) -> None:
        self._kept.forget(user_id)
        self._paths.forget(user_id)

    def sweep(self) -> None:
        self._kept.sweep()
        self._paths.sweep()


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """The messages of a chat after `begin` stored tokens from the root.

    Attributes:
        mark: The counting unit, the number of changes of visibility or audience, and True if there
            are authors.
        begin: The begin that was requested.
        start: Stored tokens from the root to the first message.
        columns: The messages without the last one of the path, unsealed.
    """

    mark: tuple[str, int, bool]
    begin: int
    start: int
    columns: HistoryColumns

    @property
    def end(self) -> int:
        """Stored tokens from the root to the last message."""
        return self.start + sum(self.columns.tokens[:-1])

    def extend(self, later: HistoryColumns, *, path_tokens: int) -> HistoryColumns | None:
        """Return the cached messages and those after them. None if the path has changed.

        `later` are the messages after `end`, and `path_tokens` are those of the whole path.
        """
        if (
            not later.ids
            or not self.columns.ids
            or later.ids[0] != self.columns.ids[-1]
            or self.end + sum(later.tokens) != path_tokens
        ):
            return None
        return self.columns.slice(0, -1).join(later)


def _get_mark(chat: Chat, window: PromptWindow) -> tuple[str, int, bool]:
    return chat.count_unit, chat.hidden_changes, window.needs_authors


async def load_last_thoughts(
    session: AsyncSession, loaded: LoadedChat, most: int
) -> SealedThoughts:
    """Return the thoughts of the last `most` replies on the path.

    The thoughts of a reply that is continued are not sent. A prompt for a viewpoint has none,
    because thoughts may contain secrets.
    """
    leaf = loaded.target.leaf
    if not most or leaf is None or loaded.viewpoint != GM:
        return {}
    last = leaf.position - (loaded.target.line_kind == "continue")
    values = {"chat_id": loaded.chat.id, "to_position": last, "most": most}
    rows = (await session.execute(_LAST, values)).all()
    return {position: (key, sealed) for position, key, sealed in rows if sealed is not None}


def prefix_thoughts(text: str, thoughts: str) -> str:
    """Return a reply with its thoughts before it, in the form that thinking models write."""
    return f"<think>\n{thoughts}\n</think>\n\n{text}"


def add_thoughts(
    texts: list[str],
    tokens: list[int],
    positions: Sequence[int],
    sealed: SealedThoughts,
    *,
    sealer: Sealer,
    count: Callable[[str], int],
    most: int,
) -> dict[int, int]:
    """Put thoughts before the replies in `texts`, the last reply first, and count them. CPU-bound.

    Args:
        texts: The messages of the history, oldest first. Changed in place.
        tokens: Their tokens. Changed in place.
        positions: Their positions on the path.
        sealed: The thoughts.
        sealer: Opens the thoughts.
        count: Counts the tokens of a text.
        most: Tokens that all thoughts together may take.

    Returns:
        The tokens that thoughts added, by position.
    """
    added: dict[int, int] = {}
    for at in range(len(texts) - 1, -1, -1):
        if len(added) == len(sealed):
            break
        if (found := sealed.get(positions[at])) is None:
            continue
        thoughts = prefix_thoughts("", sealer.open(MESSAGE_THINKING, *found))
        more = count(thoughts)
        if sum(added.values()) + more > most:
            break
        added[positions[at]] = more
        texts[at], tokens[at] = thoughts + texts[at], tokens[at] + more
    return added
