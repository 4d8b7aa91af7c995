"""The fixed sections of a prompt: their order, places and texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from uuid import UUID

from msgspec import structs

from backend.accounts.auth.identity import Identity
from backend.campaigns.glossary.terms import render_glossary
from backend.campaigns.play.guidance import render_guidance
from backend.campaigns.scenes.chapters import select_fitting_chapters
from backend.campaigns.state.situations import CampaignLayers
from backend.chats.schemas import ChatSettings
from backend.chats.token_counting import format_line
from backend.context.assembly import Counter, LeftOut, Place, PromptItem
from backend.context.blocks import (
    DEFAULT_BLOCKS,
    USUAL_ORDER,
    Block,
    Marker,
)
from backend.context.macros import MacroBudget, MacroContext, Variables, expand, may_hold_macros
from backend.core.reasons import Reason, ReasonKind
from backend.enrichment.summaries.pieces import LostPart
from backend.generation.model import PromptMessage
from backend.llm.answers import CHARACTERS_PER_TOKEN
from backend.lorebooks.entries import Position, Trigger
from backend.prompts import PromptLibrary, UsedPrompts
from backend.turns.prompt.client_items import make_end, place_sections
from backend.turns.prompt.context import LoadedChat, LoadedPreset, RetrievedPrompt
from backend.turns.prompt.load import read_author
from backend.turns.prompt.lore import PlacedLore, get_note_place, split_examples
from backend.turns.speakers import PASS_MARK

Sections = Mapping[Marker | None, Callable[[Block], Sequence[PromptItem]]]
"""The functions that build the items of a block, by its marker."""

ORIGINAL_MACRO = "{{original}}"
"""The content of a block that sends the default system prompt."""

SYSTEM_PROMPT_TITLE = "System prompt"
POST_HISTORY_TITLE = "Post-history instructions"

LORE_BLOCKS: dict[Position, Marker] = {
    "before_character": "lore_before",
    "after_character": "lore_after",
    "examples_top": "examples",
    "examples_bottom": "examples",
}
"""The blocks that lore around the character and the examples belongs to."""


@dataclass(frozen=True)
class PromptOrder:
    """The blocks that are sent with a turn, and their order.

    `triggers` are the kinds of this turn. A block may be limited to some of them. With
    `follows_client`, everything that changes comes after the history of a client.
    """

    preset: LoadedPreset | None
    settings: ChatSettings
    triggers: Sequence[Trigger]
    follows_client: bool = False

    @cached_property
    def blocks(self) -> Sequence[Block]:
        return self.preset.fields.blocks if self.preset else DEFAULT_BLOCKS

    @cached_property
    def sent(self) -> Sequence[Block]:
        """The blocks that are sent. The history always is."""
        return [block for block in self.blocks if block.marker == "history" or self._is_sent(block)]

    @cached_property
    def markers(self) -> frozenset[Marker | None]:
        return frozenset(block.marker for block in self.blocks)

    @property
    def around_history(self) -> tuple[Sequence[Block], Sequence[Block]]:
        """The blocks before and after the history, without memory and blocks with a depth."""
        place = self._place("history") or 0
        blocks = [
            (number, block)
            for number, block in enumerate(self.sent)
            if block.marker not in {"history", "memory"} and block.depth is None
        ]
        head = [block for number, block in blocks if number < place]
        return head, [block for number, block in blocks if number > place]

    @property
    def places_note(self) -> bool:
        """True if a block places the author's note. Otherwise the note has its own position."""
        return "authors_note" in self.markers

    @property
    def sends_memory(self) -> bool:
        return self._place("memory") is not None

    @property
    def memory_first(self) -> bool:
        if self.follows_client:
            return False
        memory = self._place("memory")
        is_before = memory is not None and memory < (self._place("history") or 0)
        return is_before or self.settings.memory_placement == "before_history"

    @property
    def lore_as_written(self) -> bool:
        """True if lore that was found by key keeps its place, also because no memory is sent."""
        said = {self.settings.lore_placement}
        if self.preset:
            said.add(self.preset.fields.lore_placement)
        return "as_written" in said or not self.sends_memory

    @property
    def squashes(self) -> bool:
        """True if neighbouring blocks of the role `system` are merged into one message."""
        return self.preset is None or self.preset.fields.squash_system_messages

    def title(self, block: Block) -> str:
        """Return the title of a block for the context record. Empty if no preset is chosen."""
        return block.title if self.preset else ""

    def _is_sent(self, block: Block) -> bool:
        is_turn = not block.triggers or not set(block.triggers).isdisjoint(self.triggers)
        return block.enabled and is_turn

    def _place(self, marker: Marker) -> int | None:
        places = [place for place, block in enumerate(self.sent) if block.marker == marker]
        return places[0] if places else None


def make_section(
    kind: str, title: str, text: str, reason: Reason, source_id: UUID | None = None
) -> PromptItem:
    """Return a section of the head. Its block may change the place later."""
    return PromptItem(
        kind=kind, title=title, text=text, place="head", reasons=[reason], source_id=source_id
    )


def _lose_parts(parts: Sequence[LostPart], kind: ReasonKind, name: str = "") -> list[LeftOut]:
    """Return parts of the summary that are not in the prompt. Their tokens are estimates."""
    return [
        LeftOut(
            kind="summary",
            title="Previously",
            tokens=each.size // CHARACTERS_PER_TOKEN + 1,
            reasons=[Reason(kind, count=each.position + 1, name=name)],
            source_id=each.message_id,
        )
        for each in parts
    ]


class CampaignSections:
    """The sections of a chat's campaign. `chapter_ids` are the chapters that `build_head` used."""

    def __init__(
        self,
        prompts: PromptLibrary,
        used: UsedPrompts,
        loaded: LoadedChat,
        campaign: CampaignLayers,
    ) -> None:
        self._prompts = prompts
        self._used = used
        self._loaded = loaded
        self._campaign = campaign
        self.chapter_ids: Collection[UUID] = ()

    def build_head(self, count: Counter) -> list[PromptItem]:
        """Return the description of the campaign, its glossary and its past chapters."""
        fields = self._campaign.fields
        brief = structs.asdict(fields.brief)
        text = self._used.render("sections/campaign", campaign=fields.name, **brief)
        make_section = self._make("campaign", fields.name, text)
        return [make_section, *self._build_glossary(count), *self._build_chapters(count)]

    def build_scenes(self) -> list[PromptItem]:
        if not self._campaign.scenes:
            return []
        text = self._used.render("sections/scenes", scenes=list(self._campaign.scenes.values()))
        return [self._make("scenes", "Last scenes", text)]

    def build_depth(self) -> list[PromptItem]:
        """Return the guidance of a played turn and the state block, above the user's line.

        They come after the history, so that the text before them stays the same.
        """
        table, block = self._loaded.story.table, self._campaign.block
        has_line = bool(self._loaded.said) or self._loaded.target.line_kind != "user_line"
        place = {"place": "depth", "depth": 1 if has_line else 0}
        items: list[PromptItem] = []
        if table is not None:
            items.append(
                self._make(
                    "mood", table.play.mood.capitalize(), render_guidance(table, self._prompts)
                )
            )
        reason = Reason("state", name=block.why)
        items.append(self._make("state", f"State, {block.form}", block.injected.text, reason))
        return [structs.replace(item, **place) for item in items]

    def _build_glossary(self, count: Counter) -> list[PromptItem]:
        campaign = self._campaign
        budget = campaign.fields.settings.glossary_tokens
        lines = render_glossary(
            campaign.terms, count=count, budget=budget, marks=campaign.now.marks
        )
        if not lines:
            return []
        text = self._used.render("sections/glossary", terms="\n".join(lines))
        is_all = len(lines) == len(campaign.terms)
        name = f"{len(lines)}" if is_all else f"the {len(lines)} most used"
        return [self._make("glossary", "Glossary", text, Reason("glossary", name=name))]

    def _build_chapters(self, count: Counter) -> list[PromptItem]:
        """Return the past chapters within the campaign's budget. The oldest are dropped."""
        budget = self._campaign.fields.settings.chapter_tokens
        chapters = select_fitting_chapters(self._campaign.chapters, count=count, budget=budget)
        if not chapters:
            return []
        self.chapter_ids = chapters.keys()
        text = self._used.render("sections/chapters", chapters=list(chapters.values()))
        return [self._make("chapters", "Chapters", text)]

    def _make(self, kind: str, title: str, text: str, reason: Reason | None = None) -> PromptItem:
        source_id = self._campaign.campaign_id
        return make_section(kind, title, text, reason or Reason("campaign"), source_id)


class SectionBuilder:
    """Builds the fixed sections, and expands their macros in the order of the prompt."""

    def __init__(
        self,
        prompts: PromptLibrary,
        identity: Identity,
        prompt: RetrievedPrompt,
        order: PromptOrder,
        lore: PlacedLore,
        macros: MacroContext,
        variables: Variables,
        macro_budget: MacroBudget,
    ) -> None:
        # There is no reference back to this object. A cycle would keep the prompt alive until the
        # garbage collector runs, which delays the next turn by 2 ms.
        self.used = UsedPrompts(prompts)
        self._prompts = prompts
        self._identity = identity
        self._window = prompt.window
        self._line_images = prompt.line_images
        self._loaded = prompt.loaded
        self._order = order
        self._lore = lore
        self._macros = macros
        self._macro_budget = macro_budget
        self.variables = variables
        self.off: list[LeftOut] = []
        self._client = prompt.loaded.client
        campaign = prompt.loaded.story.campaign
        self._campaign = (
            CampaignSections(prompts, self.used, prompt.loaded, campaign) if campaign else None
        )

    def build(self, *, count: Counter, suggestions: int) -> list[PromptItem]:
        """Return the items in order, without empty ones.

        Sets `variables` to the values that macros wrote, `used` to the prompt files, `chapter_ids`
        to the chapters in the prompt, and `off` to lore without a sent block and to sections that a
        client's messages replace. `count` counts the tokens of a text. Raises `MacroLimitError`.
        """
        campaign, order = self._campaign, self._order
        sections: Sections = {
            None: self._own_text,
            "system_prompt": self._system_prompt,
            "persona": self._persona,
            "lore_before": lambda _: self._slot("before_character"),
            "character": self._character,
            "personality": lambda _: self._card_text("personality"),
            "scenario": lambda _: self._card_text("scenario"),
            "lore_after": lambda _: self._slot("after_character"),
            "examples": self._examples,
            "campaign": lambda _: campaign.build_head(count) if campaign else [],
            "summary": lambda _: [
                *self._summary(),
                *(campaign.build_scenes() if campaign else ()),
            ],
            "authors_note": lambda _: self._note(),
            "post_history": self._post_history,
        }
        around = self._head_note() if self._loses_note else ()
        items = [structs.replace(item, role="system") for item in around]
        head, tail = order.around_history
        for block in head:
            items += self._place_items(block, self._build_head(block, sections), "head")
        items += self._build_added(head)
        items += self._build_middle(sections, suggestions)
        for block in tail:
            items += self._place_items(block, sections[block.marker](block), "tail")
        self._leave_out_unplaced()
        items += self._slot("outlet")
        if self._client is not None:
            items = place_sections(self._client, items)
        # A client's message may consist of images.
        return [item for item in items if item.text.strip() or item.message]

    def _build_head(self, block: Block, sections: Sections) -> Sequence[PromptItem]:
        """Return the items of a block before the history."""
        return sections[block.marker](block)

    def _build_added(self, blocks: Sequence[Block]) -> Sequence[PromptItem]:  # noqa: ARG002  # for groups
        """Return the items that follow the history instead of their block in the head."""
        return ()

    def _head_note(self) -> Sequence[PromptItem]:
        """Return the author's note if it belongs next to the system prompt."""
        return self._note()

    def _replaces(self, kind: str, title: str, *texts: str) -> bool:
        """True if a client's messages replace a section. It is left out if it has a text."""
        if self._client is None or not self._client.prompt.replaces_sections:
            return False
        if any(text.strip() for text in texts):
            reason = Reason("client_replaces")
            self.off.append(LeftOut(kind=kind, title=title, tokens=0, reasons=[reason]))
        return True

    def _place_items(
        self, block: Block, made: Sequence[PromptItem], place: Place
    ) -> list[PromptItem]:
        """Move the items of a block to its place. They form one message or a part of one."""
        order = self._order
        starts = not (order.squashes and block.role == "system")
        return [
            structs.replace(
                item,
                place=place,
                role=block.role,
                depth=block.depth or 0,
                from_start=False,
                joins=number > 0 if place == "depth" else item.joins,
                starts=starts and number == 0,
                block=order.title(block),
            )
            for number, item in enumerate(item for item in made if item.text.strip())
        ]

    def _build_middle(
        self,
        sections: Sections,
        suggestions: int,
    ) -> list[PromptItem]:
        """Return the items among the messages, and the user's line.

        Blocks with an order below the default come before items with their own depth.
        """
        deep = [block for block in self._order.sent if block.depth is not None]
        deep = [block for block in deep if block.marker not in {"history", "memory"}]
        deep.sort(key=lambda block: block.order)
        early = [block for block in deep if block.order < USUAL_ORDER]
        late = deep[len(early) :]

        def place_blocks(blocks: Sequence[Block]) -> list[PromptItem]:
            made = [(block, sections[block.marker](block)) for block in blocks]
            return [each for some in made for each in self._place_items(*some, "depth")]

        note = self._loaded.note.fields.position
        return [
            *place_blocks(early),
            *(self._campaign.build_depth() if self._campaign else ()),
            *self._depth_prompt(),
            *(self._note() if note == "at_depth" and not self._order.places_note else ()),
            *self._slot("at_depth"),
            *place_blocks(late),
            *self._end(suggestions),
        ]

    @property
    def chapter_ids(self) -> Collection[UUID]:
        return self._campaign.chapter_ids if self._campaign else ()

    def _slot(self, position: Position) -> Sequence[PromptItem]:
        return self._lore.slots.get(position, ())

    def _system_prompt(self, block: Block) -> list[PromptItem]:
        """Return the system prompt, with the author's note if it belongs next to it."""
        note = "" if self._order.places_note else self._loaded.note.fields.position
        return [
            *(self._note() if note == "before_prompt" else ()),
            *self._prompt(block),
            *(self._note() if note == "after_prompt" else ()),
        ]

    @property
    def _loses_note(self) -> bool:
        """True if no block sends the system prompt that the author's note belongs to."""
        if self._order.places_note or self._loaded.note.fields.position == "at_depth":
            return False
        return all(block.marker != "system_prompt" for block in self._order.sent)

    def _prompt(self, block: Block) -> list[PromptItem]:
        loaded, title = self._loaded, SYSTEM_PROMPT_TITLE
        if self._replaces("system_prompt", title, block.content, loaded.system_prompt):
            return []
        names = {"char": loaded.cast.speaker.name, "user": loaded.cast.user_name}
        default = ""
        if loaded.cast.others and block.content:
            default = self.used.render("reply/group", **names, others=", ".join(loaded.cast.here))
        elif block.content:
            default = self.used.render("reply/system", **names)
        text, reason = self._choose_text(
            default,
            *self._list_prompts(block),
            (self._card_prompt(block), "charPrompt", "card"),
        )
        return [make_section("system_prompt", title, text, Reason(reason))]

    def _card_prompt(self, block: Block) -> str:
        return "" if block.forbid_overrides else self._loaded.cast.speaker.card.system_prompt

    def _card_instructions(self, block: Block) -> str:
        card = self._loaded.cast.speaker.card
        return "" if block.forbid_overrides else card.post_history_instructions

    def _list_prompts(self, block: Block) -> Sequence[tuple[str, str, ReasonKind]]:
        """Return the system prompts that replace the default, except for the card's."""
        own = block.content if block.content != ORIGINAL_MACRO else ""
        return [
            (own, "systemPrompt", "preset"),
            (self._loaded.system_prompt, "systemPrompt", "settings"),
        ]

    def _own_text(self, block: Block) -> list[PromptItem]:
        if self._replaces("block", block.title, block.content):
            return []
        text = self._expand(block.content, "block")
        return [make_section("block", block.title, text, Reason("preset"))]

    def _persona(self, _: Block) -> list[PromptItem]:
        loaded, text = self._loaded, ""
        if self._replaces("persona", loaded.cast.user_name, loaded.cast.persona):
            return []
        if loaded.cast.persona:
            persona = self._expand(loaded.cast.persona, "persona")
            text = self.used.render("sections/persona", user=loaded.cast.user_name, persona=persona)
        return [
            make_section(
                "persona", loaded.cast.user_name, text, Reason("persona"), loaded.cast.persona_id
            )
        ]

    def _character(self, _: Block) -> list[PromptItem]:
        """Return the card's description, and its other texts that have no own block."""
        fields = ("description", "personality", "scenario")
        return self._card_text(*(each for each in fields if each not in self._order.markers))

    def _card_text(self, *fields: str) -> list[PromptItem]:
        speaker, text = self._loaded.cast.speaker, ""
        texts = {field: getattr(speaker.card, field) for field in fields}
        if self._replaces("character", speaker.name, *texts.values()):
            return []
        if any(texts.values()):
            expanded = {field: self._expand(text, field) for field, text in texts.items()}
            empty = {"description": "", "personality": "", "scenario": ""}
            text = self.used.render("sections/character", char=speaker.name, **(empty | expanded))
        return [make_section("character", speaker.name, text, Reason("card"), speaker.id)]

    def _examples(self, block: Block) -> list[PromptItem]:  # noqa: ARG002  # for groups
        speaker, text = self._loaded.cast.speaker, ""
        top, bottom = self._slot("examples_top"), self._slot("examples_bottom")
        title = "Example dialogue"
        if self._replaces("examples", title, speaker.card.mes_example):
            return [*top, *bottom]
        if examples := split_examples(self._expand(speaker.card.mes_example, "mesExamples")):
            text = self.used.render("sections/examples", char=speaker.name, examples=examples)
        own = make_section("examples", title, text, Reason("card"), speaker.id)
        return [*top, own, *bottom]

    def _leave_out_unplaced(self) -> None:
        """Record lore as left out if its block is not sent."""
        sent = {block.marker for block in self._order.sent}
        lost: list[Position] = [
            position for position, marker in LORE_BLOCKS.items() if marker not in sent
        ]
        if self._order.places_note and "authors_note" not in sent:
            lost += ("note_top", "note_bottom")
        self.off += [
            item.left_out(Reason("block_off")) for each in lost for item in self._slot(each)
        ]

    def _summary(self) -> list[PromptItem]:
        """Return the summary. Its macros are not expanded, because a model wrote it."""
        summary = self._loaded.summary
        if summary is None:
            return []
        self.off += [
            *_lose_parts(summary.left_out, "summary_older"),
            *_lose_parts(summary.unknown, "summary_unknown", self._loaded.viewer),
        ]
        if not summary.text:
            return []
        marks = self._loaded.marks
        parts = "\n".join(marks.mark(each.text, each.audience) for each in summary.parts)
        audience = marks.words(summary.audience)
        text = self.used.render("sections/summary", summary=parts, audience=audience)
        reason = Reason("summary", count=summary.position + 1)
        return [make_section("summary", "Previously", text, reason, summary.message_id)]

    def _depth_prompt(self) -> list[PromptItem]:
        speaker, prompt = self._loaded.cast.speaker, self._loaded.cast.speaker.card.depth_prompt
        if prompt is None or self._replaces("depth_prompt", speaker.name, prompt.prompt):
            return []
        return [
            PromptItem(
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

    def _note(self) -> list[PromptItem]:
        """Return the author's note and the lore around it, as one message."""
        around = [*self._slot("note_top"), self._own_note(), *self._slot("note_bottom")]
        items = [item for item in around if item.text.strip()]
        return [structs.replace(item, joins=number > 0) for number, item in enumerate(items)]

    def _own_note(self) -> PromptItem:
        loaded, note, title = self._loaded, self._loaded.note.fields, "Author's note"
        is_sent = loaded.note.is_due and not self._replaces("authors_note", title, note.text)
        return PromptItem(
            kind="authors_note",
            title=title,
            text=self._expand(note.text, "authorsNote") if is_sent else "",
            place=get_note_place(note),
            depth=note.depth,
            role=note.role,
            reasons=[Reason(loaded.note.reason)],
        )

    def _end(self, suggestions: int) -> Sequence[PromptItem]:
        """Return the user's line or its replacement, and the instructions of a client after it."""
        target = self._loaded.target
        line_id = target.line.id if target.line else None
        return (make_end(self._client, line_id) if self._client else ()) or [
            self._line(suggestions)
        ]

    def _line(self, suggestions: int) -> PromptItem:
        """Return the user's line or its replacement. Quoted macros are not expanded."""
        loaded, target = self._loaded, self._loaded.target
        names = {"user": loaded.cast.user_name, "char": self._listener}
        reason: ReasonKind = "turn"
        message: PromptMessage | None = None
        if suggestions:
            prompt = self._prompts["assist/suggestions"]
            text, reason = prompt.render(**names, count=suggestions), "suggestions"
        elif target.line_kind != "user_line":
            name = "next_or_pass" if loaded.may_pass else target.line_kind
            prompt, reason = self._prompts[f"assist/{name}"], target.line_kind
            text = prompt.render_from({**names, "mark": PASS_MARK})
        else:
            author = (
                read_author(self._identity, target.line) if target.line else loaded.cast.user_name
            )
            names_sent = self._window.unit.names
            text = format_line(author, loaded.said or "", names=names_sent)
            audience = target.line.audience if target.line else loaded.audience
            text = loaded.marks.mark(text, audience)
            if self._line_images:
                message = PromptMessage("user", text, images=self._line_images)
        return PromptItem(
            kind="user_line" if reason == "turn" else "instruction",
            title="User's line" if reason == "turn" else reason.capitalize(),
            text=text,
            place="line",
            role="user",
            reasons=[Reason(reason)],
            source_id=target.line.id if target.line else None,
            message=message,
        )

    @property
    def _listener(self) -> str:
        """The name of the character that the user's next line is for, or that speaks next."""
        return self._loaded.cast.speaker.name

    def _post_history(self, block: Block) -> list[PromptItem]:
        loaded, card, title = self._loaded, self._card_instructions(block), POST_HISTORY_TITLE
        if self._replaces("post_history", title, block.content, loaded.post_history, card):
            return []
        text, reason = self._choose_text(
            "", *self._list_instructions(block), (card, "charInstruction", "card")
        )
        source_id = loaded.cast.speaker.id if reason == "card" else None
        return [make_section("post_history", title, text, Reason(reason), source_id)]

    def _list_instructions(self, block: Block) -> Sequence[tuple[str, str, ReasonKind]]:
        """Return the instructions after the history, except for the card's."""
        return [
            (block.content, "postHistory", "preset"),
            (self._loaded.post_history, "postHistory", "settings"),
        ]

    def _choose_text(
        self, text: str, *fields: tuple[str, str, ReasonKind]
    ) -> tuple[str, ReasonKind]:
        """Return the last of the fields that is not empty, and its source.

        Each may quote the one before.

        A field is its text, its place and its source.
        """
        reason: ReasonKind = "default"
        for field, place, source in fields:
            if field:
                text, reason = self._expand(field, place, original=text), source
        return text, reason

    def reply_start(self) -> str | None:
        """Return the text that the reply begins with. Raises `MacroLimitError`."""
        start = self._window.sampling.start_reply_with
        if self._client is not None and start == self._client.prompt.prefill:
            return start or None
        return (self._expand(start, "startReplyWith") or None) if start else None

    def _expand(self, text: str, place: str, *, original: str | None = None) -> str:
        if not may_hold_macros(text):
            return text
        context = replace(self._macros, original=original)
        expansion = expand(text, context, self.variables, place=place, budget=self._macro_budget)
        self.variables = expansion.variables
        return expansion.text
