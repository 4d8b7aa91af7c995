"""What a scene coins, and who owns, promises or owes what in it: word for word, as facts.

A summary says such things in words of its own, and a summary of summaries loses them. A quotation
that does not stand in a line is refused; the others are changes of their lines. Nothing here
commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import msgspec
from msgspec import Meta, structs
from sqlalchemy import bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import State, creation, difference
from backend.campaigns.ledger.item_service import MAX_ITEMS
from backend.campaigns.ledger.items import Fact, Thread
from backend.campaigns.ledger.recent_changes import changes_since
from backend.campaigns.ledger.records import open_campaign
from backend.campaigns.ledger.store import Change, read_state
from backend.campaigns.models import Campaign, CampaignChange, CampaignItem
from backend.campaigns.names.mentions import slug
from backend.campaigns.names.roster import Roster
from backend.campaigns.play.deltas import Deltas, FieldDelta, apply_deltas, changeable_fields
from backend.campaigns.play.references import called
from backend.campaigns.play.table import Table
from backend.campaigns.play.tools import ToolRefusedError
from backend.campaigns.proposals.authority import Draft, judged
from backend.campaigns.state.known_items import taken_back
from backend.campaigns.state.situation_reader import SituationReader
from backend.campaigns.state.snapshot import Names
from backend.chats.models import Message
from backend.core.audience import (
    GM,
    PUBLIC,
    Audience,
    decode_audience,
    encode_audience,
    may_all_know,
)
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import new_id, now
from backend.enrichment.cleaning import clip, strip_tags, to_one_line
from backend.enrichment.compaction.reader import build_member
from backend.enrichment.runs.store import RefusedCall
from backend.enrichment.story import Version
from backend.errors import ValidationError
from backend.vault.sealing import Sealer

MAX_TITLE = 120
MAX_TEXT = 600

_THREADS = select(CampaignItem.id, CampaignItem.sealed_state).where(CampaignItem.exists)


class Seed(msgspec.Struct, frozen=True):
    """Something that the scene has set in motion and not settled."""

    title: Annotated[str, Meta(description="A few words.")]
    summary: Annotated[str, Meta(description="One sentence.")] = ""
    kind: Literal["quest", "storyline", "threat", "rumour"] = "storyline"
    tension: Literal["simmering", "rising", "urgent", "critical"] = "rising"


async def build_threads(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    seeds: Sequence[Seed],
    *,
    audience: str,
) -> tuple[list[Change], list[RefusedCall]]:
    """Threads that seeds become, for those who may know what they come from; and the others.

    A thread that has been there is not made again, also where its user has deleted or undone it.
    """
    if not seeds:
        return [], []
    count = select(func.count()).where(CampaignItem.campaign_id == campaign.id)
    room = MAX_ITEMS - (await session.scalar(count) or 0)
    taken = await _taken(session, sealer, campaign)
    changes: list[Change] = []
    refused: list[RefusedCall] = []
    for seed in seeds:
        title = clip(to_one_line(seed.title), MAX_TITLE)
        if not title or slug(title) in taken or len(changes) >= room:
            refused.append(RefusedCall(tool="thread", reason=title or "without a title"))
            continue
        taken.add(slug(title))
        thread = Thread(
            kind=seed.kind,
            title=title,
            summary=clip(to_one_line(seed.summary), MAX_TEXT),
            tension=seed.tension,
            audience=decode_audience(audience),
        )
        changes.append(Change("thread", new_id(), creation(thread)))
    return changes, refused


async def _taken(session: AsyncSession, sealer: Sealer, campaign: Campaign) -> set[str]:
    """The titles of all threads that count, were deleted, or were taken back by their user."""
    query = _THREADS.where(CampaignItem.campaign_id == campaign.id, CampaignItem.kind == "thread")
    rows = (await session.execute(query)).all()
    taken = {words for _, _, words in await taken_back(session, sealer, campaign, {"thread"})}
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        taken.add(slug(read_state(sealer, row.id, row.sealed_state)["title"]))
    return taken


MAX_SHOWN = 40
MAX_LINE = 400

Fields = Mapping[UUID, set[str]]
"""Fields of items, by their keys in the ledger."""

_BEGUN = select(func.min(CampaignChange.created_at)).where(
    CampaignChange.item_id == bindparam("scene")
)


async def build_scene_table(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    names: Names,
    text: str,
    *,
    audience: str,
) -> Table:
    """The items that a scene may have changed: who and what is there, and whom its text names.

    None of what only others know than those who may know the text.
    """
    viewpoint = GM if audience == GM else PUBLIC
    reader = SituationReader(session, sealer, campaign, viewpoint)
    situation = await reader.situation(names, line=text, recent=())
    fields = open_campaign(sealer, campaign)
    items = situation.in_play
    return Table.new(campaign.id, rules=fields.rules, dice=fields.settings.dice, items=items)


def render_items(table: Table) -> list[str]:
    """Items with what of them may be changed, for a model to read."""
    lines: list[str] = []
    for item_id, held in table.state.items.items():
        if held.kind not in {"entity", "thread"}:
            continue
        values = [
            f"{key.rpartition('.')[2]}: {value}"
            for key in changeable_fields(table, item_id)
            if (value := _value(held.state, key))
        ]
        kind = held.state["kind"] if held.kind == "entity" else held.kind
        values += filter(None, [table.references.words(held.state)])
        line = f"{called(held.state)} ({kind}) {'; '.join(values)}"
        lines.append(clip(to_one_line(line), MAX_LINE))
    return lines[:MAX_SHOWN]


async def find_later_changes(
    session: AsyncSession,
    sealer: Sealer,
    table: Table,
    *,
    scene_id: UUID,
    chat_id: UUID,
    last: int,
) -> Fields:
    """What others than a scene's compression changed since it began, and what was taken back.

    `last` is the position of the last message that is read for the scene now.
    """
    begun = await session.scalar(_BEGUN, {"scene": scene_id})
    items = list(table.state.items)
    changes = await changes_since(session, sealer, items, since=begun or now(), chat_id=chat_id)
    return {
        item_id: {
            key
            for told in tolds
            if not (told.is_old or told.is_creation)
            if told.by != "compactor" or (told.position is not None and told.position > last)
            for key in told.operations.touched()
        }
        for item_id, tolds in changes.items()
    }


def compare_deltas(
    table: Table, deltas: Sequence[FieldDelta], told: Fields, *, audience: str
) -> tuple[list[Change], list[RefusedCall]]:
    """The changes of the ledger that deltas come to, and what the others were refused for.

    What some alone may know changes nothing that others know of. The table is changed.
    """
    changes: list[Change] = []
    refused: list[RefusedCall] = []
    for delta in deltas:
        before = table.state.copied()
        try:
            clean = msgspec.structs.replace(delta, value=to_one_line(delta.value))
            apply_deltas(table, Deltas(changes=[clean]))
            change = table.state.changes[-1]
            known = told.get(change.item_id, set[str]())
            _check(before.items[change.item_id].state, table.get(change.item_id), change, known)
            _check_audience(table.get(change.item_id), audience)
            changes.append(change)
        except (ToolRefusedError, ValidationError) as error:
            table.state = before
            reason = error.detail if isinstance(error, ValidationError) else str(error)
            said = clip(to_one_line(f"{delta.item}, {delta.field}: {reason}"), MAX_LINE)
            refused.append(RefusedCall(tool="change", reason=said))
    return changes, refused


def _check(before: State, after: State, change: Change, known: set[str]) -> None:
    """Raise `ToolRefusedError` for what the ledger has, and for what can't be compared with it."""
    operations = change.operations
    if not difference(before, after).fields():
        raise ToolRefusedError("It is so already.")
    counted = (*operations.add.values(), *operations.remove.values())
    if any(isinstance(each, int | float) for each in counted):
        raise ToolRefusedError("A number is set to what it is now.")
    keys = {*operations.set, *operations.add, *operations.remove}
    if any(key in known or key.partition(".")[0] in known for key in keys):
        raise ToolRefusedError("It was changed since the scene began.")


def _check_audience(state: State, audience: str) -> None:
    """Raise `ToolRefusedError` where some know of an item who may not know what is told of it."""
    listeners: Audience = msgspec.convert(state.get("audience", PUBLIC), Audience)
    if not may_all_know(encode_audience(listeners), audience):
        raise ToolRefusedError("What is told of it is not for all who know of it.")


def _value(state: State, key: str) -> str:
    field, _, member = key.partition(".")
    members: State = state.get(field) or {} if member else state
    value = members.get(member or field)
    return ", ".join(map(str, cast("Any", value))) if isinstance(value, list) else str(value or "")


MAX_QUOTE = 400
MAX_REASON = 120

_ALIKE = str.maketrans(
    {
        **dict.fromkeys("“”„«»‟＂", '"'),  # noqa: RUF001  # as printed
        **dict.fromkeys("‘’‚‛´`", "'"),  # noqa: RUF001
        **dict.fromkeys("–—−", "-"),  # noqa: RUF001
        "…": "...",
        **dict.fromkeys("*_"),
    }
)
"""Marks that are written one way or another; those of emphasis go."""


class Quote(msgspec.Struct, frozen=True):
    """Words of a line that are to be kept as they are."""

    quote: Annotated[str, Meta(description="Copied from one line, word for word.")]
    kind: Literal["coined", "owned", "promised", "owed"]
    about: Annotated[str, Meta(description="Whose it is, or who says so: a name.")] = ""


def find_line(lines: Sequence[str], quote: str) -> int | None:
    """The place of the first line that has a quotation, whatever its quotation marks and blanks."""
    wanted = _plain(strip_tags(quote)).strip("\"' ")
    if not wanted:
        return None
    return next((at for at, line in enumerate(lines) if wanted in _plain(line)), None)


async def build_quoted_facts(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    quotes: Sequence[Quote],
    *,
    lines: Sequence[str],
    versions: Sequence[Version],
    table: Table,
) -> tuple[list[Draft], list[RefusedCall]]:
    """Facts that quotations become, each of its line and for those who may know that; the others.

    What is known already, or was taken back by the user, does not come again.

    Args:
        session: Within the caller's transaction.
        sealer: The owner's.
        campaign: It is locked.
        quotes: What is to be kept.
        lines: As they were read.
        versions: Which messages they are.
        table: Those whom a quotation may be about.
    """
    items = table.state.items.items()
    roster = Roster(build_member(one, held.state) for one, held in items if held.kind == "entity")
    drafts: list[Draft] = []
    refused: list[RefusedCall] = []
    for each in quotes:
        at = find_line(lines, each.quote) if len(each.quote) <= MAX_QUOTE else None
        if at is None:
            reason = clip(to_one_line(each.quote), MAX_REASON)
            refused.append(RefusedCall(tool="quote", reason=f"It is in no line: {reason}"))
            continue
        message = await session.get_one(Message, versions[at][0])
        about = roster.resolve(each.about) if each.about else ()
        fact = Fact(
            text=to_one_line(each.quote),
            about_id=about[0] if len(about) == 1 else None,
            audience=decode_audience(message.audience),
        )
        made = structs.replace(creation(fact), because=each.kind)
        drafts.append(Draft("fact", new_id(), made, message, audience=message.audience))
    if not drafts:
        return [], refused
    since = min(draft.message.created_at for draft in drafts)
    found = await judged(session, sealer, campaign, drafts, since=since)
    return list(found.drafts), refused


def _plain(text: str) -> str:
    return " ".join(text.translate(_ALIKE).split())
