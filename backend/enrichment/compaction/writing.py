"""Writes the changes that a compaction comes to, as one version. Nothing here commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from msgspec import structs
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns import ledger_store
from backend.campaigns.authority import Draft, judged
from backend.campaigns.errors import CampaignFullError
from backend.campaigns.item_service import check_item_room
from backend.campaigns.ledger import exists
from backend.campaigns.ledger_store import Change
from backend.campaigns.models import Campaign
from backend.campaigns.proposals import keep
from backend.campaigns.records import item_name, item_states, named_items
from backend.chats.models import Chat, Message
from backend.enrichment.compaction.values import Drafted
from backend.enrichment.runs import Refused, RunEffect
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWriter:
    """Writes within the caller's transaction, who has locked the campaign's row.

    Attributes:
        messages: Those that were read, by their positions.
        audience: Theirs, as a column holds it.
        effects: What was written.
        refused: What was not.
    """

    session: AsyncSession
    sealer: Sealer
    campaign: Campaign
    messages: Mapping[int, Message]
    audience: str
    effects: list[RunEffect] = field(default_factory=list[RunEffect])
    refused: list[Refused] = field(default_factory=list[Refused])

    async def change(self, chat: Chat, drafts: Sequence[Drafted], *, since: datetime) -> None:
        """Write the changes that may be written, as one version, and propose the others.

        There is a new version also where nothing changes: what was read is noted with it.
        """
        session, sealer, campaign = self.session, self.sealer, self.campaign
        verdict = await judged(
            session, sealer, campaign, [self._draft(each) for each in drafts], since=since
        )
        kept = await keep(session, sealer, campaign, chat, verdict.proposals)
        if left := len(verdict.proposals) - kept:
            reason = f"{left} were proposed before, or too many wait already."
            self.refused.append(Refused(tool="proposal", reason=reason))
        wanted = await self._with_room(verdict.drafts)
        if not wanted:
            campaign.version += 1
            return
        changes = [
            Change(each.kind, each.item_id, structs.replace(each.operations, because=each.because))
            for each in wanted
        ]
        change_ids = await ledger_store.append(
            session,
            sealer,
            campaign,
            changes,
            actor="compactor",
            sources=[draft.message for draft in wanted],
        )
        states = await item_states(session, sealer, campaign, {each.item_id for each in wanted})
        self.effects.extend(
            RunEffect(
                what="item_changed",
                id=change_id,
                container_id=campaign.id,
                title=item_name(draft.kind, states[draft.item_id]),
                because=draft.because,
            )
            for change_id, draft in zip(change_ids, wanted, strict=True)
        )

    async def _with_room(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """All drafts; where the campaign is full, those alone that change what there is."""
        made = {draft.item_id for draft in drafts if exists(draft.operations.set)}
        try:
            await check_item_room(self.session, self.campaign.id, more=len(made))
        except CampaignFullError as error:
            self.refused.append(Refused(tool="", reason=error.detail))
            return [
                each
                for each in drafts
                if not made.intersection((each.item_id, *named_items(each.operations)))
            ]
        return drafts

    def _draft(self, draft: Drafted) -> Draft:
        return Draft(
            kind=draft.kind,
            item_id=draft.item_id,
            operations=draft.operations,
            message=self.messages[draft.position],
            because=draft.because,
            audience=self.audience,
            replaces=draft.replaces,
            unclear=draft.unclear,
        )
