"""The fixed sections of a group's prompt with joined cards.

The head is the same for all speakers. The cache of a provider or of a model server therefore
covers head and history if another character speaks. The head has the public part of each card. All
that depends on the speaker follows the history: who speaks, the whole card, and lore that others do
not have.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

from msgspec import structs

from backend.accounts.auth.identity import Identity
from backend.characters.cards.public import PublicCard
from backend.context.assembly import PromptItem
from backend.context.blocks import Block
from backend.context.macros import MacroBudget, MacroContext, Variables, may_hold_macros
from backend.core.reasons import Reason
from backend.lorebooks.entries import Position
from backend.prompts import PromptLibrary
from backend.turns.prompt.cast import CastMember
from backend.turns.prompt.context import RetrievedPrompt
from backend.turns.prompt.lore import PlacedLore
from backend.turns.prompt.macros import make_joint_macros
from backend.turns.prompt.sections import (
    POST_HISTORY_TITLE,
    SYSTEM_PROMPT_TITLE,
    PromptOrder,
    SectionBuilder,
    Sections,
    make_section,
)

_CARD_MACRO = re.compile(
    r"\{\{[^{}]{0,60}?(?:description|personality|mesexamples|charprompt|charinstruction"
    r"|chardepthprompt|creatornotes|greeting|charfirstmessage|char_?version)",
    re.IGNORECASE,
)
_SCENARIO_MACRO = re.compile(r"\{\{[^{}]{0,60}?scenario", re.IGNORECASE)


class JoinedSections(SectionBuilder):
    """Builds the fixed sections of a group. `cards` are the public parts of its members' cards.

    The line of the user is written from what is public: the card of the speaker is left out.
    """

    def __init__(  # noqa: PLR0913  # those of its base, and the cards
        self,
        prompts: PromptLibrary,
        identity: Identity,
        prompt: RetrievedPrompt,
        order: PromptOrder,
        lore: PlacedLore,
        macros: MacroContext,
        variables: Variables,
        macro_budget: MacroBudget,
        *,
        cards: Mapping[UUID, PublicCard],
    ) -> None:
        super().__init__(prompts, identity, prompt, order, lore, macros, variables, macro_budget)
        loaded = prompt.loaded
        self._cards = cards
        self._speaks = loaded.target.kind != "impersonate"
        self._shared_scenario = loaded.settings.scenario or ""
        scenarios = {card.scenario for card in cards.values()}
        if not self._shared_scenario and len(scenarios) == 1:
            self._shared_scenario = scenarios.pop()
        self._joint = make_joint_macros(macros, loaded, self._shared_scenario)
        if not self._speaks:
            self._macros = self._joint

    @contextmanager
    def _with_macros(self, macros: MacroContext) -> Generator[None]:
        """Expand macros with other values for a while."""
        own, self._macros = self._macros, macros
        try:
            yield
        finally:
            self._macros = own

    def _build_head(self, block: Block, sections: Sections) -> Sequence[PromptItem]:
        """Return the items of a block that all speakers share."""
        has_scenario = "scenario" in self._order.markers
        made: Sections = {
            "system_prompt": lambda block: self._place_joint_note(self._joint_prompt(block)),
            "character": lambda _: [
                *self._public_parts(self._loaded.cast.members),
                *(() if has_scenario else self._joint_scenario()),
            ],
            "personality": lambda _: (),
            "scenario": lambda _: self._joint_scenario(),
            "lore_before": lambda _: self._split_slot("before_character", is_shared=True),
            "lore_after": lambda _: self._split_slot("after_character", is_shared=True),
            "examples": lambda _: (),
            "authors_note": lambda _: self._head_note(),
            "post_history": self._joint_instructions,
        }
        if block.marker is None and self._quotes_card(block.content):
            return ()
        with self._with_macros(self._joint):
            return made.get(block.marker, sections[block.marker])(block)

    def _build_added(self, blocks: Sequence[Block]) -> Sequence[PromptItem]:
        """Return the speaker's part, in the order that the blocks have in the head."""
        made = [*self._speaker(), *(self._note_of_speaker() if self._loses_note else ())]
        items = [structs.replace(item, place="added", role="system") for item in made]
        for block in blocks:
            items += self._place_items(block, self._build_own(block), "added")
        return items

    def _build_own(self, block: Block) -> Sequence[PromptItem]:
        """Return the items of a block of the head that depend on the speaker."""
        made: Sections = {
            "system_prompt": lambda block: [
                *self._own_prompt(block),
                *(self._note_of_speaker() if self._is_note_beside_prompt else ()),
            ],
            "character": lambda _: self._own_card(),
            "personality": lambda _: self._card_text("personality"),
            "scenario": lambda _: () if self._shared_scenario else self._card_text("scenario"),
            "lore_before": lambda _: self._split_slot("before_character", is_shared=False),
            "lore_after": lambda _: self._split_slot("after_character", is_shared=False),
            "examples": self._examples,
            "authors_note": lambda _: self._note_of_speaker(),
            "post_history": self._own_instructions,
        }
        if block.marker is None and self._speaks and self._quotes_card(block.content):
            return self._own_text(block)
        build = made.get(block.marker)
        return build(block) if build else ()

    def _speaker(self) -> list[PromptItem]:
        """Return who speaks, and who else is there."""
        cast = self._loaded.cast
        if not self._speaks or self._replaces("speaker", cast.speaker.name):
            return []
        here, away = ", ".join(cast.here), ", ".join(cast.away)
        text = self.used.render("reply/speaker", char=cast.speaker.name, here=here, away=away)
        name, speaker_id = cast.speaker.name, cast.speaker.id
        return [make_section("speaker", name, text, Reason("speaker"), speaker_id)]

    def _public_parts(self, members: Sequence[CastMember]) -> list[PromptItem]:
        """Return the public part of each member's card. Without a text, it has only the name."""
        items: list[PromptItem] = []
        for member in members:
            card = self._cards.get(member.id)
            if card is None or self._replaces("public_part", member.name, card.text):
                continue
            public = card.text
            if may_hold_macros(public):
                with self._with_macros(replace(self._joint, char=member.name)):
                    public = self._expand(public, "public")
            text = self.used.render("sections/person", char=member.name, public=public)
            reason = Reason("public_part")
            items.append(make_section("public_part", member.name, text, reason, member.id))
        return items

    def _joint_scenario(self) -> list[PromptItem]:
        scenario = self._shared_scenario
        if not scenario or self._replaces("scenario", "Scenario", scenario):
            return []
        text = self.used.render("sections/scenario", scenario=self._expand(scenario, "scenario"))
        is_chats = bool(self._loaded.settings.scenario)
        reason = Reason("chat_settings" if is_chats else "card")
        return [make_section("scenario", "Scenario", text, reason)]

    def _character(self, _: Block) -> list[PromptItem]:
        """Return the cards for a block that is not in the head: the others' public parts too."""
        speaker_id = self._loaded.cast.speaker.id
        others = [each for each in self._loaded.cast.members if each.id != speaker_id]
        return [*self._public_parts(others), *self._own_card()]

    def _own_card(self) -> list[PromptItem]:
        """Return the speaker's card, without a scenario that is in the head."""
        fields = ["description", "personality"]
        if not self._shared_scenario:
            fields.append("scenario")
        return self._card_text(*(each for each in fields if each not in self._order.markers))

    def _card_text(self, *fields: str) -> list[PromptItem]:
        return super()._card_text(*fields) if self._speaks else []

    def _examples(self, block: Block) -> list[PromptItem]:
        if self._speaks:
            return super()._examples(block)
        return [*self._slot("examples_top"), *self._slot("examples_bottom")]

    def _depth_prompt(self) -> list[PromptItem]:
        return super()._depth_prompt() if self._speaks else []

    def _card_prompt(self, block: Block) -> str:
        return super()._card_prompt(block) if self._speaks else ""

    def _card_instructions(self, block: Block) -> str:
        return super()._card_instructions(block) if self._speaks else ""

    def _joint_prompt(self, block: Block) -> list[PromptItem]:
        loaded, title = self._loaded, SYSTEM_PROMPT_TITLE
        prompts = self._list_prompts(block)
        if any(self._quotes_card(text) for text, _, _ in prompts):
            return []
        if self._replaces("system_prompt", title, block.content, loaded.system_prompt):
            return []
        names, user = self._joint.char, loaded.cast.user_name
        default = self.used.render("reply/joined", names=names, user=user) if block.content else ""
        text, reason = self._choose_text(default, *prompts)
        return [make_section("system_prompt", title, text, Reason(reason))]

    def _own_prompt(self, block: Block) -> list[PromptItem]:
        """Return the card's system prompt. A prompt that quotes the card comes with it."""
        speaker = self._loaded.cast.speaker
        if self._speaks and any(
            self._quotes_card(text) for text, _, _ in self._list_prompts(block)
        ):
            return self._prompt(block)
        title, card = f"{SYSTEM_PROMPT_TITLE} of {speaker.name}", self._card_prompt(block)
        if not card or self._replaces("system_prompt", title, card):
            return []
        text = self._expand(card, "charPrompt", original="")
        return [make_section("system_prompt", title, text, Reason("card"), speaker.id)]

    def _joint_instructions(self, block: Block) -> list[PromptItem]:
        title = POST_HISTORY_TITLE
        if self._replaces("post_history", title, block.content, self._loaded.post_history):
            return []
        text, reason = self._choose_text("", *self._list_instructions(block))
        return [make_section("post_history", title, text, Reason(reason))]

    def _own_instructions(self, block: Block) -> list[PromptItem]:
        speaker = self._loaded.cast.speaker
        title, card = f"{POST_HISTORY_TITLE} of {speaker.name}", self._card_instructions(block)
        if not card or self._replaces("post_history", title, card):
            return []
        text = self._expand(card, "charInstruction", original="")
        return [make_section("post_history", title, text, Reason("card"), speaker.id)]

    @property
    def _is_note_beside_prompt(self) -> bool:
        return not self._order.places_note and self._loaded.note.fields.position != "at_depth"

    def _place_joint_note(self, prompt: Sequence[PromptItem]) -> list[PromptItem]:
        """Put the chat's note next to the system prompt, if it belongs there."""
        if not self._is_note_beside_prompt:
            return list(prompt)
        is_first = self._loaded.note.fields.position == "before_prompt"
        note = self._head_note()
        return [*note, *prompt] if is_first else [*prompt, *note]

    def _head_note(self) -> Sequence[PromptItem]:
        """Return the chat's note without the lore around it."""
        if self._loaded.note.reason == "card":
            return ()
        with self._with_macros(self._joint):
            return [self._own_note()]

    def _note_of_speaker(self) -> list[PromptItem]:
        """Return the lore around the note, and the note if it is the card's."""
        is_own = self._loaded.note.reason == "card" and self._speaks
        own = [self._own_note()] if is_own else []
        return [*self._slot("note_top"), *own, *self._slot("note_bottom")]

    def _split_slot(self, position: Position, *, is_shared: bool) -> list[PromptItem]:
        return [item for item in self._slot(position) if (item.place == "head") == is_shared]

    def _quotes_card(self, text: str) -> bool:
        """True if a text has macros of the speaker's card, so that it differs with each speaker."""
        if _CARD_MACRO.search(text):
            return True
        return not self._shared_scenario and bool(_SCENARIO_MACRO.search(text))

    @property
    def _listener(self) -> str:
        if self._speaks:
            return super()._listener
        there = [each.name for each in self._loaded.cast.members if each.presence != "absent"]
        return ", ".join(there) or super()._listener
