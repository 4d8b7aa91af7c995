"""The fixed sections of a prompt: which there are, where they stand, and what fills them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from backend.context.assembly import Item
from backend.context.macros import MacroBudget, MacroContext, Variables, expand
from backend.generation.model import Role
from backend.prompts import PromptLibrary
from backend.reasons import Reason, ReasonKind

EXAMPLE_MARK = re.compile(r"<START>", re.IGNORECASE)


def split_examples(text: str) -> list[str]:
    """The example dialogues of a text, which `<START>` stands before."""
    return [part.strip() for part in EXAMPLE_MARK.split(text) if part.strip()]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFields:
    """What a prompt uses of a character card. An empty text leaves its section out."""

    id: UUID | None = None
    name: str = ""
    description: str = ""
    personality: str = ""
    scenario: str = ""
    examples: str = ""
    system_prompt: str = ""
    post_history: str = ""
    depth_prompt: str = ""
    depth_prompt_depth: int = 4
    depth_prompt_role: Role = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The author's note. Where it is not due, neither it nor the lore around it is sent."""

    text: str = ""
    depth: int = 4
    role: Role = "system"
    position: Literal["at_depth", "before_prompt", "after_prompt"] = "at_depth"
    is_due: bool = True
    reason: ReasonKind = "chat_settings"

    @property
    def place(self) -> Literal["depth", "head"]:
        """Where it and its lore stand."""
        return "depth" if self.position == "at_depth" else "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoreSlots:
    """Activated lore that has a place among the fixed sections, each slot in ascending order.

    Its texts are expanded already. The first four hold what is always on: the head of a prompt must
    not change from turn to turn. `outlets` stands inside other items, by the macro of that name.
    """

    before_character: Sequence[Item] = ()
    after_character: Sequence[Item] = ()
    examples_top: Sequence[Item] = ()
    examples_bottom: Sequence[Item] = ()
    note_top: Sequence[Item] = ()
    note_bottom: Sequence[Item] = ()
    at_depth: Sequence[Item] = ()
    outlets: Sequence[Item] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionInputs:
    """Everything that fixed sections are made of, before macros are expanded.

    `others` are the names of further characters; with any, the default system prompt is the
    group's. `line` is what the user says, as it is: macros in it are not expanded, for it may
    quote what a model wrote. `line_reason` says where it comes from. Nor are they in `summary`;
    `summary_id` is the last message that it covers, `summary_position` where that stands.
    """

    card: CardFields
    user: str
    persona: str = ""
    persona_id: UUID | None = None
    others: Sequence[str] = ()
    system_prompt: str = ""
    post_history: str = ""
    note: Note = Note()
    summary: str = ""
    summary_position: int = 0
    summary_id: UUID | None = None
    line: str | None = None
    line_kind: str = "user_line"
    line_title: str = "User's line"
    line_reason: ReasonKind = "turn"
    line_id: UUID | None = None
    lore: LoreSlots = LoreSlots()


class SectionBuilder:
    """Expands a prompt's fields in the order in which the prompt reads them."""

    def __init__(
        self,
        prompts: PromptLibrary,
        inputs: SectionInputs,
        context: MacroContext,
        variables: Variables,
        macro_budget: MacroBudget,
    ) -> None:
        self._prompts = prompts
        self._inputs = inputs
        self._context = context
        self._macro_budget = macro_budget
        self.variables = variables
        self.used: dict[str, str] = {}

    def build(self) -> list[Item]:
        """The items, in order. `variables` holds what macros wrote, `used` the prompt files.

        Raises `MacroLimitError`.
        """
        inputs = self._inputs
        card, lore = inputs.card, inputs.lore
        note = inputs.note.position
        items = self._note() if note == "before_prompt" else []
        items.append(self._system_prompt())
        if note == "after_prompt":
            items += self._note()
        if inputs.persona:
            persona = self._expand(inputs.persona, "persona")
            items.append(
                Item(
                    kind="persona",
                    title=inputs.user,
                    text=self._render(
                        "sections/persona", {"user": inputs.user, "persona": persona}
                    ),
                    place="head",
                    reasons=[Reason("persona")],
                    source_id=inputs.persona_id,
                )
            )
        items += [*lore.before_character, *self._character(), *lore.after_character]
        items += [*lore.examples_top, *self._examples(), *lore.examples_bottom]
        if inputs.summary:
            items.append(
                Item(
                    kind="summary",
                    title="Previously",
                    text=self._render("sections/summary", {"summary": inputs.summary}),
                    place="head",
                    reasons=[Reason("summary", count=inputs.summary_position + 1)],
                    source_id=inputs.summary_id,
                )
            )
        if card.depth_prompt:
            items.append(
                Item(
                    kind="depth_prompt",
                    title=card.name,
                    text=self._expand(card.depth_prompt, "depthPrompt"),
                    place="depth",
                    depth=card.depth_prompt_depth,
                    role=card.depth_prompt_role,
                    reasons=[Reason("card")],
                    source_id=card.id,
                )
            )
        if note == "at_depth":
            items += self._note()
        items += lore.at_depth
        if inputs.line is not None:
            items.append(
                Item(
                    kind=inputs.line_kind,
                    title=inputs.line_title,
                    text=inputs.line,
                    place="line",
                    role="user",
                    reasons=[Reason(inputs.line_reason)],
                    source_id=inputs.line_id,
                )
            )
        items += [*self._post_history(), *lore.outlets]
        return [item for item in items if item.text.strip()]

    def _system_prompt(self) -> Item:
        inputs, card = self._inputs, self._inputs.card
        if inputs.others:
            default = self._render(
                "reply/group",
                {"char": card.name, "user": inputs.user, "others": ", ".join(inputs.others)},
            )
        else:
            default = self._render("reply/system", {"char": card.name, "user": inputs.user})
        text, reason = default, Reason("default")
        if inputs.system_prompt:
            text = self._expand(inputs.system_prompt, "systemPrompt", original=default)
            reason = Reason("settings")
        if card.system_prompt:
            text = self._expand(card.system_prompt, "charPrompt", original=text)
            reason = Reason("card")
        return Item(
            kind="system_prompt", title="System prompt", text=text, place="head", reasons=[reason]
        )

    def _character(self) -> list[Item]:
        card = self._inputs.card
        if not (card.description or card.personality or card.scenario):
            return []
        text = self._render(
            "sections/character",
            {
                "char": card.name,
                "description": self._expand(card.description, "description"),
                "personality": self._expand(card.personality, "personality"),
                "scenario": self._expand(card.scenario, "scenario"),
            },
        )
        return [
            Item(
                kind="character",
                title=card.name,
                text=text,
                place="head",
                reasons=[Reason("card")],
                source_id=card.id,
            )
        ]

    def _examples(self) -> list[Item]:
        card = self._inputs.card
        expanded = self._expand(card.examples, "mesExamples")
        examples = split_examples(expanded)
        if not examples:
            return []
        return [
            Item(
                kind="examples",
                title="Example dialogue",
                text=self._render("sections/examples", {"char": card.name, "examples": examples}),
                place="head",
                reasons=[Reason("card")],
                source_id=card.id,
            )
        ]

    def _note(self) -> list[Item]:
        """The author's note with the lore around it: one message."""
        inputs, lore = self._inputs, self._inputs.lore
        note = Item(
            kind="authors_note",
            title="Author's note",
            text=self._expand(inputs.note.text, "authorsNote") if inputs.note.is_due else "",
            place=inputs.note.place,
            depth=inputs.note.depth,
            role=inputs.note.role,
            reasons=[Reason(inputs.note.reason)],
        )
        items = [item for item in (*lore.note_top, note, *lore.note_bottom) if item.text.strip()]
        return [replace(item, joins=number > 0) for number, item in enumerate(items)]

    def _post_history(self) -> list[Item]:
        inputs, card = self._inputs, self._inputs.card
        text, reason = (
            self._expand(inputs.post_history, "postHistory", original=""),
            Reason("settings"),
        )
        if card.post_history:
            text = self._expand(card.post_history, "charInstruction", original=text)
            reason = Reason("card")
        return [
            Item(
                kind="post_history",
                title="Post-history instructions",
                text=text,
                place="tail",
                reasons=[reason],
                source_id=card.id if reason.kind == "card" else None,
            )
        ]

    def _expand(self, text: str, place: str, *, original: str | None = None) -> str:
        context = replace(self._context, original=original)
        expansion = expand(text, context, self.variables, place=place, budget=self._macro_budget)
        self.variables = expansion.variables
        return expansion.text

    def _render(self, name: str, values: Mapping[str, object]) -> str:
        prompt = self._prompts[name]
        self.used[name] = prompt.digest
        return prompt.render(**values)
