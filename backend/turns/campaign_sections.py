"""What a campaign says in a prompt: itself, its words, what is over, its state.

Macros are not expanded in it: a model wrote most of it.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from backend.campaigns.chapters import fitting_chapters
from backend.campaigns.glossary import glossary_lines
from backend.context.assembly import Counter
from backend.context.layout import Item
from backend.prompts import PromptLibrary, UsedPrompts
from backend.reasons import Reason
from backend.turns.prompt_context import LoadedChat


def section(
    kind: str, title: str, text: str, reason: Reason, source_id: UUID | None = None
) -> Item:
    """A section of the head: where it stands in the end, its block says."""
    return Item(
        kind=kind, title=title, text=text, place="head", reasons=[reason], source_id=source_id
    )


class CampaignSections:
    """The sections of a chat's campaign; each is empty in a chat of none.

    `chapter_ids` holds the chapters that are told.
    """

    def __init__(self, prompts: PromptLibrary, used: UsedPrompts, loaded: LoadedChat) -> None:
        self._prompts = prompts
        self._used = used
        self._loaded = loaded
        self._campaign = loaded.campaign
        self.chapter_ids: Collection[UUID] = ()

    def campaign(self) -> list[Item]:
        """What a campaign says of itself."""
        campaign = self._campaign
        if campaign is None:
            return []
        name, brief = campaign.fields.name, campaign.fields.brief
        text = self._used.render(
            "sections/campaign",
            campaign=name,
            city=brief.city,
            setting=brief.setting,
            hook=brief.hook,
            roster=brief.roster,
        )
        return [section("campaign", name, text, Reason("campaign"), campaign.campaign_id)]

    def glossary(self, count: Counter) -> list[Item]:
        """What the words mean that its story coined, within the campaign's budget."""
        campaign = self._campaign
        if campaign is None:
            return []
        budget = campaign.fields.settings.glossary_tokens
        lines = glossary_lines(campaign.terms, count=count, budget=budget, marks=campaign.now.marks)
        if not lines:
            return []
        text = self._used.render("sections/glossary", terms="\n".join(lines))
        is_all = len(lines) == len(campaign.terms)
        reason = Reason(
            "glossary", name=f"{len(lines)}" if is_all else f"the {len(lines)} most used"
        )
        return [section("glossary", "Glossary", text, reason, campaign.campaign_id)]

    def chapters(self, count: Counter) -> list[Item]:
        """What is long over, within the campaign's budget: the oldest chapters go first."""
        campaign = self._campaign
        if campaign is None or not campaign.chapters:
            return []
        budget = campaign.fields.settings.chapter_tokens
        chapters = fitting_chapters(campaign.chapters, count=count, budget=budget)
        if not chapters:
            return []
        self.chapter_ids = chapters.keys()
        text = self._used.render("sections/chapters", chapters=list(chapters.values()))
        return [section("chapters", "Chapters", text, Reason("campaign"), campaign.campaign_id)]

    def scenes(self) -> list[Item]:
        """The last scenes that are over."""
        campaign = self._campaign
        if campaign is None or not campaign.scenes:
            return []
        text = self._used.render("sections/scenes", scenes=list(campaign.scenes.values()))
        return [section("scenes", "Last scenes", text, Reason("campaign"), campaign.campaign_id)]

    def state(self) -> list[Item]:
        """The state block: behind the history, so that what comes before stays the same."""
        campaign = self._campaign
        if campaign is None:
            return []
        return [
            Item(
                kind="state",
                title=f"State, {campaign.block.form}",
                text=campaign.block.injected.text,
                place="depth",
                depth=self._above_line,
                reasons=[Reason("state", name=campaign.block.why)],
                source_id=campaign.campaign_id,
            )
        ]

    def mood(self) -> list[Item]:
        """How a played turn is to be told, and what its tools are for: above the state block."""
        table, campaign = self._loaded.table, self._campaign
        if table is None or campaign is None:
            return []
        return [
            Item(
                kind="mood",
                title=table.play.mood.capitalize(),
                text=table.guidance(self._prompts),
                place="depth",
                depth=self._above_line,
                reasons=[Reason("campaign")],
                source_id=campaign.campaign_id,
            )
        ]

    @property
    def _above_line(self) -> int:
        """The depth of what stands right above the user's line."""
        has_line = bool(self._loaded.said) or self._loaded.target.line_kind != "user_line"
        return 1 if has_line else 0
