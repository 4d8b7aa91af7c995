"""What a scene coins, and who owns, promises or owes what in it: word for word, as facts.

A summary says such things in words of its own, and a summary of summaries loses them. A quotation
that does not stand in a line is refused; the others are changes of their lines. Nothing here
commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, structs
from sqlalchemy.ext.asyncio import AsyncSession

from backend.audience import opened
from backend.campaigns.authority import Draft, judged
from backend.campaigns.items import Fact
from backend.campaigns.ledger import creation
from backend.campaigns.models import Campaign
from backend.campaigns.play.table import Table
from backend.campaigns.roster import Roster
from backend.chats.models import Message
from backend.database.base import new_id
from backend.enrichment.cleaning import clipped, one_line, without_tags
from backend.enrichment.compaction.known import member_of
from backend.enrichment.lines import Version
from backend.enrichment.runs import Refused
from backend.vault.sealing import Sealer

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
    wanted = _plain(without_tags(quote)).strip("\"' ")
    if not wanted:
        return None
    return next((at for at, line in enumerate(lines) if wanted in _plain(line)), None)


async def quoted_facts(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    quotes: Sequence[Quote],
    *,
    lines: Sequence[str],
    versions: Sequence[Version],
    table: Table,
) -> tuple[list[Draft], list[Refused]]:
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
    roster = Roster(member_of(one, held.state) for one, held in items if held.kind == "entity")
    drafts: list[Draft] = []
    refused: list[Refused] = []
    for each in quotes:
        at = find_line(lines, each.quote) if len(each.quote) <= MAX_QUOTE else None
        if at is None:
            reason = clipped(one_line(each.quote), MAX_REASON)
            refused.append(Refused(tool="quote", reason=f"It is in no line: {reason}"))
            continue
        message = await session.get_one(Message, versions[at][0])
        about = roster.resolve(each.about) if each.about else ()
        fact = Fact(
            text=one_line(each.quote),
            about_id=about[0] if len(about) == 1 else None,
            audience=opened(message.audience),
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
