"""The fixed sections of a prompt: which there are, where they stand, and what fills them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from uuid import UUID

from backend.accounts.identity import Identity
from backend.campaigns.chapters import fitting_chapters
from backend.campaigns.glossary import glossary_lines
from backend.chats.counting import line_text
from backend.context.assembly import Counter, Item
from backend.context.macros import MacroBudget, MacroContext, Variables, expand
from backend.lorebooks.entries import Position
from backend.prompts import PromptLibrary
from backend.reasons import Reason, ReasonKind
from backend.turns.load import author_of
from backend.turns.lore_placement import PlacedLore, note_place, split_examples
from backend.turns.prompt_context import PromptContext


class SectionBuilder:
    """Expands a prompt's fields in the order in which the prompt reads them."""

    def __init__(
        self,
        prompts: PromptLibrary,
        identity: Identity,
        context: PromptContext,
        lore: PlacedLore,
        macros: MacroContext,
        variables: Variables,
        macro_budget: MacroBudget,
    ) -> None:
        self._prompts = prompts
        self._identity = identity
        self._context = context
        self._loaded = context.loaded
        self._lore = lore
        self._macros = macros
        self._macro_budget = macro_budget
        self.variables = variables
        self.used: dict[str, str] = {}
        self.chapter_ids: Collection[UUID] = ()

    def build(self, *, count: Counter, suggestions: int) -> list[Item]:
        """The items, in order.

        `variables` holds what macros wrote, `used` the prompt files, `chapter_ids` the chapters
        that are told. `count` counts the tokens of a text. An empty one leaves its section out.
        Raises `MacroLimitError`.
        """
        note = self._loaded.note.position
        items = [
            *(self._note() if note == "before_prompt" else ()),
            self._system_prompt(),
            *(self._note() if note == "after_prompt" else ()),
            self._persona(),
            *self._slot("before_character"),
            self._character(),
            *self._slot("after_character"),
            *self._slot("examples_top"),
            self._examples(),
            *self._slot("examples_bottom"),
            *self._campaign(),
            *self._glossary(count),
            *self._chapters(count),
            *self._summary(),
            *self._scenes(),
            *self._mood(),
            *self._state(),
            *self._depth_prompt(),
            *(self._note() if note == "at_depth" else ()),
            *self._slot("at_depth"),
            self._line(suggestions),
            self._post_history(),
            *self._slot("outlet"),
        ]
        return [item for item in items if item.text.strip()]

    def _slot(self, position: Position) -> Sequence[Item]:
        return self._lore.slots.get(position, ())

    def _system_prompt(self) -> Item:
        loaded, card = self._loaded, self._loaded.speaker.card
        names = {"char": loaded.speaker.name, "user": loaded.user_name}
        if loaded.others:
            default = self._render("reply/group", **names, others=", ".join(loaded.others))
        else:
            default = self._render("reply/system", **names)
        text, reason = self._replaced(
            default,
            (loaded.system_prompt, "systemPrompt", "settings"),
            (card.system_prompt, "charPrompt", "card"),
        )
        return _head("system_prompt", "System prompt", text, Reason(reason))

    def _persona(self) -> Item:
        loaded, text = self._loaded, ""
        if loaded.persona:
            persona = self._expand(loaded.persona, "persona")
            text = self._render("sections/persona", user=loaded.user_name, persona=persona)
        return _head("persona", loaded.user_name, text, Reason("persona"), loaded.persona_id)

    def _character(self) -> Item:
        speaker, card, text = self._loaded.speaker, self._loaded.speaker.card, ""
        if card.description or card.personality or card.scenario:
            text = self._render(
                "sections/character",
                char=speaker.name,
                description=self._expand(card.description, "description"),
                personality=self._expand(card.personality, "personality"),
                scenario=self._expand(card.scenario, "scenario"),
            )
        return _head("character", speaker.name, text, Reason("card"), speaker.id)

    def _examples(self) -> Item:
        speaker, text = self._loaded.speaker, ""
        if examples := split_examples(self._expand(speaker.card.mes_example, "mesExamples")):
            text = self._render("sections/examples", char=speaker.name, examples=examples)
        return _head("examples", "Example dialogue", text, Reason("card"), speaker.id)

    def _summary(self) -> list[Item]:
        """What was summarised. Macros in it are not expanded: a model wrote it."""
        summary = self._loaded.summary
        if summary is None or not summary.text:
            return []
        text = self._render("sections/summary", summary=summary.text)
        reason = Reason("summary", count=summary.position + 1)
        return [_head("summary", "Previously", text, reason, summary.message_id)]

    def _campaign(self) -> list[Item]:
        """What a campaign says of itself. Macros in what follows are not expanded, either."""
        campaign = self._loaded.campaign
        if campaign is None:
            return []
        name, brief = campaign.fields.name, campaign.fields.brief
        text = self._render(
            "sections/campaign",
            campaign=name,
            city=brief.city,
            setting=brief.setting,
            hook=brief.hook,
            roster=brief.roster,
        )
        return [_head("campaign", name, text, Reason("campaign"), campaign.campaign_id)]

    def _glossary(self, count: Counter) -> list[Item]:
        """What the words mean that its story coined, within the campaign's budget."""
        campaign = self._loaded.campaign
        if campaign is None:
            return []
        budget = campaign.fields.settings.glossary_tokens
        lines = glossary_lines(campaign.terms, count=count, budget=budget)
        if not lines:
            return []
        text = self._render("sections/glossary", terms="\n".join(lines))
        is_all = len(lines) == len(campaign.terms)
        reason = Reason(
            "glossary", name=f"{len(lines)}" if is_all else f"the {len(lines)} most used"
        )
        return [_head("glossary", "Glossary", text, reason, campaign.campaign_id)]

    def _chapters(self, count: Counter) -> list[Item]:
        """What is long over, within the campaign's budget: the oldest chapters go first."""
        campaign = self._loaded.campaign
        if campaign is None or not campaign.chapters:
            return []
        budget = campaign.fields.settings.chapter_tokens
        chapters = fitting_chapters(campaign.chapters, count=count, budget=budget)
        if not chapters:
            return []
        self.chapter_ids = chapters.keys()
        text = self._render("sections/chapters", chapters=list(chapters.values()))
        return [_head("chapters", "Chapters", text, Reason("campaign"), campaign.campaign_id)]

    def _scenes(self) -> list[Item]:
        """The last scenes that are over."""
        campaign = self._loaded.campaign
        if campaign is None or not campaign.scenes:
            return []
        text = self._render("sections/scenes", scenes=list(campaign.scenes.values()))
        return [_head("scenes", "Last scenes", text, Reason("campaign"), campaign.campaign_id)]

    def _state(self) -> list[Item]:
        """The state block: behind the history, so that what comes before stays the same."""
        campaign = self._loaded.campaign
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

    def _mood(self) -> list[Item]:
        """How a played turn is to be told, and what its tools are for: above the state block."""
        table, campaign = self._loaded.table, self._loaded.campaign
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

    def _depth_prompt(self) -> list[Item]:
        speaker, prompt = self._loaded.speaker, self._loaded.speaker.card.depth_prompt
        if prompt is None:
            return []
        return [
            Item(
                kind="depth_prompt",
                title=speaker.name,
                text=self._expand(prompt.prompt, "depthPrompt"),
                place="depth",
                depth=prompt.depth,
                role=prompt.role,
                reasons=[Reason("card")],
                source_id=speaker.id,
            )
        ]

    def _note(self) -> list[Item]:
        """The author's note with the lore around it: one message."""
        loaded, note = self._loaded, self._loaded.note
        own = Item(
            kind="authors_note",
            title="Author's note",
            text=self._expand(note.text, "authorsNote") if loaded.note_is_due else "",
            place=note_place(note),
            depth=note.depth,
            role=note.role,
            reasons=[Reason(loaded.note_reason)],
        )
        around = [*self._slot("note_top"), own, *self._slot("note_bottom")]
        items = [item for item in around if item.text.strip()]
        return [replace(item, joins=number > 0) for number, item in enumerate(items)]

    def _line(self, suggestions: int) -> Item:
        """What the user says, or is asked of the model in its place.

        Macros in it are not expanded: it may quote what a model wrote.
        """
        loaded, target = self._loaded, self._loaded.target
        names = {"user": loaded.user_name, "char": loaded.speaker.name}
        reason: ReasonKind = "turn"
        if suggestions:
            prompt = self._prompts["assist/suggestions"]
            text, reason = prompt.render(**names, count=suggestions), "suggestions"
        elif target.line_kind != "user_line":
            prompt, reason = self._prompts[f"assist/{target.line_kind}"], target.line_kind
            text = prompt.render(**{key: names[key] for key in prompt.inputs})
        else:
            author = author_of(self._identity, target.line) if target.line else loaded.user_name
            names_sent = self._context.window.unit.names
            text = line_text(author, loaded.said or "", names=names_sent)
        return Item(
            kind="user_line" if reason == "turn" else "instruction",
            title="User's line" if reason == "turn" else reason.capitalize(),
            text=text,
            place="line",
            role="user",
            reasons=[Reason(reason)],
            source_id=target.line.id if target.line else None,
        )

    def _post_history(self) -> Item:
        loaded, speaker = self._loaded, self._loaded.speaker
        text, reason = self._replaced(
            "",
            (loaded.post_history, "postHistory", "settings"),
            (speaker.card.post_history_instructions, "charInstruction", "card"),
        )
        return Item(
            kind="post_history",
            title="Post-history instructions",
            text=text,
            place="tail",
            reasons=[Reason(reason)],
            source_id=speaker.id if reason == "card" else None,
        )

    def _replaced(self, text: str, *fields: tuple[str, str, ReasonKind]) -> tuple[str, ReasonKind]:
        """What the last of the fields (text, place, where from) says; each may quote the former."""
        reason: ReasonKind = "default"
        for field, place, source in fields:
            if field:
                text, reason = self._expand(field, place, original=text), source
        return text, reason

    def _expand(self, text: str, place: str, *, original: str | None = None) -> str:
        context = replace(self._macros, original=original)
        expansion = expand(text, context, self.variables, place=place, budget=self._macro_budget)
        self.variables = expansion.variables
        return expansion.text

    def _render(self, name: str, **values: object) -> str:
        prompt = self._prompts[name]
        self.used[name] = prompt.digest
        return prompt.render(**values)


def _head(kind: str, title: str, text: str, reason: Reason, source_id: UUID | None = None) -> Item:
    return Item(
        kind=kind, title=title, text=text, place="head", reasons=[reason], source_id=source_id
    )
