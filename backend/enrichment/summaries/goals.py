"""How far the path of a chat should be summed up by now, and how."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.records import open_campaign
from backend.campaigns.models import Campaign
from backend.campaigns.state.viewpoints import players_among
from backend.chats.models import Chat, Message
from backend.chats.repository import first_behind
from backend.chats.schemas import SummarySettings
from backend.chats.service import read_settings
from backend.context.budget import eviction_point, step_of
from backend.core.audience import GM, PUBLIC, Viewpoint, list_entities, may_know
from backend.enrichment.story import is_between, is_readable
from backend.enrichment.summaries.store import StoredSummary, find_current_summary
from backend.vault.sealing import Sealer

CAMPAIGN_WORDS = 150
"""About how long the summary of a campaign's chat is."""

HOT_ROUNDS = 4
"""The last rounds of a campaign's chat: they stand in its history and are not summed up."""

_LEAST_BETWEEN = 4
"""Messages, two exchanges: however small the history is, no summary is asked for more often."""

_LAST_EXCHANGE = 2
"""Messages that are swiped and edited most: they are not summed up ahead of time."""


async def find_goal(
    session: AsyncSession,
    chat: Chat,
    current: StoredSummary | None,
    *,
    history_budget: int,
    interval: int,
    is_begun: bool,
) -> int | None:
    """The position through which the path should be summarised by now; None where it is.

    That is all that the history loses with its next step, and `interval` messages at least, as far
    as they are in the older half of the history. Until there are as many new ones it waits, unless
    the history has lost some already: then `_LEAST_BETWEEN` are enough, of whichever half.

    `current` is what is summarised, `history_budget` in stored tokens. With `is_begun` a summary on
    the way there was just stored: the rest does not wait.
    """
    query = (
        select(Message.path_tokens, Message.position)
        .where(Message.chat_id == chat.id, Message.is_active, Message.status != "streaming")
        .order_by(Message.position.desc())
        .limit(1)
    )
    last = (await session.execute(query)).one_or_none()
    if last is None:
        return None
    leaf = last.path_tokens
    reached, covered = (current.position, current.path_tokens) if current else (-1, 0)
    next_begin = eviction_point(leaf + step_of(history_budget), history_budget)
    needed = await _last_before(session, chat, next_begin)
    if needed is None or needed <= reached:
        return None
    middle = max(next_begin, leaf - history_budget // 2)
    older = await _last_before(session, chat, middle, at_most=reached + interval)
    goal = max(needed, needed if older is None else older)
    if is_begun or goal - reached >= interval:
        return goal
    if covered >= eviction_point(leaf, history_budget):
        return None
    least = min(_LEAST_BETWEEN, interval)
    goal = max(goal, min(reached + least, last.position - _LAST_EXCHANGE))
    return goal if goal - reached >= least else None


async def find_round_goal(
    session: AsyncSession, chat: Chat, current: StoredSummary | None, *, interval: int
) -> int | None:
    """The same for a campaign's chat: all but the last `HOT_ROUNDS`, every `interval` rounds."""
    query = (
        select(Message.position)
        .where(is_readable(chat), Message.role == "user")
        .order_by(Message.position.desc())
        .limit(HOT_ROUNDS + interval)
    )
    begins = list(await session.scalars(query))
    reached = current.position if current else -1
    if sum(begin > reached for begin in begins) < HOT_ROUNDS + interval:
        return None
    return begins[HOT_ROUNDS - 1] - 1


async def wanted_summary(session: AsyncSession, sealer: Sealer, chat: Chat) -> SummarySettings:
    """How a chat is summed up: as it says itself, or as its campaign does."""
    own = read_settings(sealer, chat).summary
    if chat.campaign_id is None:
        return own
    campaign = await session.get_one(Campaign, chat.campaign_id)
    settings = open_campaign(sealer, campaign).settings
    if not settings.summaries:
        return own
    return SummarySettings(enabled=True, words=CAMPAIGN_WORDS, interval=settings.memory_interval)


async def next_audience(
    session: AsyncSession, sealer: Sealer, chat: Chat, *, through: int
) -> tuple[Viewpoint, StoredSummary | None] | None:
    """Who has news down to a position, in a campaign with hidden information; and their summary.

    Players' characters and the game master have news where lines are for them and not for all.
    Everyone comes last: what the public summary passes by is told in the others' by then.
    """
    told = await find_current_summary(session, sealer, chat, viewpoint=PUBLIC)
    query = (
        select(Message.audience, func.max(Message.position))
        .where(*is_between(chat, told.position if told else -1, through))
        .group_by(Message.audience)
    )
    last = {row[0]: row[1] for row in await session.execute(query)}
    named = {each for column in last for each in list_entities(column)}
    players = await players_among(session, named, chat.campaign_id)
    viewpoints: list[Viewpoint] = [*players, GM, PUBLIC]
    for viewpoint in viewpoints:
        current = await find_current_summary(session, sealer, chat, viewpoint=viewpoint)
        after = current.position if current else -1
        for column, position in last.items():
            is_new = position > after and may_know(viewpoint, column)
            if is_new and (column == PUBLIC) == (viewpoint == PUBLIC):
                return viewpoint, current
    return None


async def _last_before(
    session: AsyncSession, chat: Chat, begin: int, *, at_most: int | None = None
) -> int | None:
    """Position of the last line that a history which begins at `begin` tokens does not hold."""
    first = await first_behind(session, chat.id, from_sum=begin)
    query = (
        select(Message.position).where(is_readable(chat)).order_by(Message.position.desc()).limit(1)
    )
    if first is not None:
        query = query.where(Message.position < first)
    if at_most is not None:
        query = query.where(Message.position <= at_most)
    return await session.scalar(query)
