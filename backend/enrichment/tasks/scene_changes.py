"""Changes from a compressed scene: threads, changed fields, and quotations as facts.

Quotations keep coined words, ownership, promises and debts in their original wording, which
summaries lose. A quotation that is in no line is refused. Functions here never commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import msgspec
from msgspec import Meta, structs
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import Change, State, build_creation, compare_states
from backend.campaigns.ledger.item_service import MAX_ITEMS
from backend.campaigns.ledger.items import Fact, Thread
from backend.campaigns.ledger.records import open_campaign
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignChange, CampaignItem
from backend.campaigns.names.roster import Roster, make_slug
from backend.campaigns.play.references import get_name
from backend.campaigns.play.story_tools import (
    Deltas,
    FieldDelta,
    apply_deltas,
    list_changeable_fields,
)
from backend.campaigns.play.table import Table
from backend.campaigns.proposals.authority import (
    Draft,
    find_recent_changes,
    find_undone_items,
    judge_drafts,
)
from backend.campaigns.rules.protocol import ToolRefusedError
from backend.campaigns.state.knowledge import KnownItems
from backend.campaigns.state.situation_reader import SituationReader
from backend.campaigns.state.snapshot import CampaignSnapshot
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
    """Return the threads that seeds become, and the refused seeds.

    A thread with a title that was used before is refused, even if the user deleted or undid it.
    """
    if not seeds:
        return [], []
    count = select(func.count()).where(CampaignItem.campaign_id == campaign.id)
    room = MAX_ITEMS - (await session.scalar(count) or 0)
    taken = await _find_taken_titles(session, sealer, campaign)
    changes: list[Change] = []
    refused: list[RefusedCall] = []
    for seed in seeds:
        title = clip(to_one_line(seed.title), MAX_TITLE)
        if not title or make_slug(title) in taken or len(changes) >= room:
            refused.append(RefusedCall(tool="thread", reason=title or "without a title"))
            continue
        taken.add(make_slug(title))
        thread = Thread(
            kind=seed.kind,
            title=title,
            summary=clip(to_one_line(seed.summary), MAX_TEXT),
            tension=seed.tension,
            audience=decode_audience(audience),
        )
        changes.append(Change("thread", new_id(), build_creation(thread)))
    return changes, refused


async def _find_taken_titles(session: AsyncSession, sealer: Sealer, campaign: Campaign) -> set[str]:
    """Return the titles of all threads, deleted and undone ones included."""
    query = _THREADS.where(CampaignItem.campaign_id == campaign.id, CampaignItem.kind == "thread")
    rows = (await session.execute(query)).all()
    taken = {
        words for _, _, words in await find_undone_items(session, sealer, campaign, {"thread"})
    }
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        taken.add(make_slug(read_state(sealer, row.id, row.sealed_state)["title"]))
    return taken


MAX_SHOWN = 40
MAX_LINE = 400

Fields = Mapping[UUID, set[str]]
"""The keys of fields by item."""


async def build_scene_table(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    names: CampaignSnapshot,
    text: str,
    *,
    audience: str,
    known: KnownItems,
) -> Table:
    """Return the table of items that a scene may have changed: present and named ones.

    Items that not all of the audience may know are left out. `known` are those that they know in
    another state.
    """
    viewpoint = GM if audience == GM else PUBLIC
    reader = SituationReader(session, sealer, campaign, viewpoint, known=known)
    names = names.with_known(known) if known else names
    situation = await reader.load_situation(names, line=text, recent=())
    fields = open_campaign(sealer, campaign)
    items = situation.in_play
    return Table.new(campaign.id, rules=fields.rules, dice=fields.settings.dice, items=items)


def render_items(table: Table) -> list[str]:
    """Render items and their changeable fields for the model."""
    lines: list[str] = []
    for item_id, held in table.state.items.items():
        if held.kind not in {"entity", "thread"}:
            continue
        values = [
            f"{key.rpartition('.')[2]}: {value}"
            for key in list_changeable_fields(table, item_id)
            if (value := _render_value(held.state, key))
        ]
        kind = held.state["kind"] if held.kind == "entity" else held.kind
        values += filter(None, [table.references.render_audience(held.state)])
        line = f"{get_name(held.state)} ({kind}) {'; '.join(values)}"
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
    """Return the fields that others have changed or undone since the scene began.

    `last` is the position of the last message of the scene that is being read.
    """
    first = select(func.min(CampaignChange.created_at)).where(CampaignChange.item_id == scene_id)
    begun = await session.scalar(first)
    items = list(table.state.items)
    changes = await find_recent_changes(
        session, sealer, items, since=begun or now(), chat_id=chat_id
    )
    return {
        item_id: {
            key
            for told in tolds
            if not (told.is_old or told.is_creation)
            if told.by != "compactor" or (told.position is not None and told.position > last)
            for key in told.operations.list_keys()
        }
        for item_id, tolds in changes.items()
    }


def compare_deltas(
    table: Table, deltas: Sequence[FieldDelta], told: Fields, *, audience: str
) -> tuple[list[Change], list[RefusedCall]]:
    """Return the changes of the ledger that deltas cause, and the refused deltas.

    Information for a limited audience never changes an item that others know. The table is changed.
    """
    changes: list[Change] = []
    refused: list[RefusedCall] = []
    for delta in deltas:
        before = table.state.copy()
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
    """Raise `ToolRefusedError` if the ledger has the change already, or cannot compare it."""
    operations = change.operations
    if not compare_states(before, after).list_fields():
        raise ToolRefusedError("It would change nothing.")
    counted = (*operations.add.values(), *operations.remove.values())
    if any(isinstance(each, int | float) for each in counted):
        raise ToolRefusedError("A number is set to what it is now.")
    keys = {*operations.set, *operations.add, *operations.remove}
    if any(key in known or key.partition(".")[0] in known for key in keys):
        raise ToolRefusedError("It was changed since the scene began.")


def _check_audience(state: State, audience: str) -> None:
    """Raise `ToolRefusedError` if someone knows the item who may not know the change."""
    listeners: Audience = msgspec.convert(state.get("audience", PUBLIC), Audience)
    if not may_all_know(encode_audience(listeners), audience):
        raise ToolRefusedError("Not everyone who knows of the item may know this.")


def _render_value(state: State, key: str) -> str:
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
"""Maps variants of punctuation to one form, and drops marks of emphasis."""


class Quote(msgspec.Struct, frozen=True):
    """Words of a line that are to be kept as they are."""

    quote: Annotated[str, Meta(description="Copied from one line, word for word.")]
    kind: Literal["coined", "owned", "promised", "owed"]
    about: Annotated[str, Meta(description="Whose it is, or who says so: a name.")] = ""


def find_line(lines: Sequence[str], quote: str) -> int | None:
    """Return the index of the first line with a quotation, ignoring variants of punctuation."""
    wanted = _normalize(strip_tags(quote)).strip("\"' ")
    if not wanted:
        return None
    return next((at for at, line in enumerate(lines) if wanted in _normalize(line)), None)


async def build_quoted_facts(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    quotes: Sequence[Quote],
    *,
    lines: Sequence[str],
    versions: Sequence[Version],
    table: Table,
    audience: str | None = None,
) -> tuple[list[Draft], list[RefusedCall]]:
    """Return the facts of quotations, each as a draft of its line, and the refused quotations.

    Known facts, and facts that the user undid, are left out.

    Args:
        session: The caller's transaction.
        sealer: Of the owner.
        campaign: Locked by the caller.
        quotes: The quotations.
        lines: The rendered lines of the scene.
        versions: The messages of the lines.
        table: The items that a quotation may be about.
        audience: The audience of the facts, in the form of the database column; by default, that of
            their lines.
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
        told_to = audience or message.audience
        fact = Fact(
            text=to_one_line(each.quote),
            about_id=about[0] if len(about) == 1 else None,
            audience=decode_audience(told_to),
        )
        made = structs.replace(build_creation(fact), because=each.kind)
        drafts.append(Draft("fact", new_id(), made, message, audience=told_to))
    if not drafts:
        return [], refused
    since = min(draft.message.created_at for draft in drafts)
    found = await judge_drafts(session, sealer, campaign, drafts, since=since)
    return list(found.drafts), refused


def _normalize(text: str) -> str:
    return " ".join(text.translate(_ALIKE).split())
