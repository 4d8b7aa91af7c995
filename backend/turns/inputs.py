"""From what was gathered to what the sections of a prompt are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from backend.accounts.identity import Identity
from backend.chats.counting import CountUnit
from backend.context.lines import line_text
from backend.context.macros import MacroContext
from backend.context.sections import CardFields, Note, SectionInputs
from backend.generation.model import ModelSpec, Role
from backend.lorebooks.activation.outcome import ScannedLine
from backend.lorebooks.entries import Trigger
from backend.prompts import PromptLibrary
from backend.reasons import FoundIn, ReasonKind
from backend.turns.gather import Gathered, author_of, text_of
from backend.turns.lore_placement import LoreScene
from backend.turns.macro_fields import macros_of, seed_of
from backend.turns.schemas import TurnRequest

ASSISTS = {
    "continue": ("assist/continue", "Continue"),
    "impersonate": ("assist/impersonate", "Impersonate"),
    "suggestions": ("assist/suggestions", "Suggestions"),
    "opening": ("assist/opening", "Opening"),
    "next": ("assist/next", "Next"),
}


class InputMaker:
    """Makes the inputs of one prompt's sections."""

    def __init__(
        self, prompts: PromptLibrary, identity: Identity, gathered: Gathered, unit: CountUnit
    ) -> None:
        self._prompts = prompts
        self._identity = identity
        self._gathered = gathered
        self._unit = unit

    def inputs(self, request: TurnRequest, *, suggestions: int = 0) -> SectionInputs:
        """Everything that the fixed sections are made of; `suggestions` asks for so many lines."""
        gathered = self._gathered
        card, settings = gathered.speaker.card, gathered.settings
        account = self._identity.settings
        depth = card.depth_prompt
        line, kind, title, reason = self._line(suggestions=suggestions)
        summary = gathered.summary
        return SectionInputs(
            card=CardFields(
                id=gathered.speaker.id,
                name=gathered.speaker.name,
                description=card.description,
                personality=card.personality,
                scenario=card.scenario,
                examples=card.mes_example,
                system_prompt=card.system_prompt,
                post_history=card.post_history_instructions,
                depth_prompt=depth.prompt if depth else "",
                depth_prompt_depth=depth.depth if depth else 0,
                depth_prompt_role=depth.role if depth else "system",
            ),
            user=gathered.user_name,
            persona=gathered.persona,
            persona_id=gathered.persona_id,
            others=gathered.others,
            system_prompt=settings.system_prompt or account.system_prompt or "",
            post_history=(
                settings.post_history_instructions or account.post_history_instructions or ""
            ),
            note=note_of(gathered, request),
            summary=summary.text if summary else "",
            summary_position=summary.position if summary else 0,
            summary_id=summary.message_id if summary else None,
            line=line,
            line_kind=kind,
            line_title=title,
            line_reason=reason,
            line_id=gathered.target.line.id if gathered.target.line else None,
        )

    def _line(self, *, suggestions: int) -> tuple[str, str, str, ReasonKind]:
        """What stands as the user's line: (text, kind, title, reason)."""
        gathered = self._gathered
        target = gathered.target
        if suggestions:
            prompt = self._prompts["assist/suggestions"].render(
                user=gathered.user_name, char=gathered.speaker.name, count=suggestions
            )
            return prompt, "instruction", "Suggestions", "suggestions"
        if target.line_kind != "user_line":
            name, title = ASSISTS[target.line_kind]
            prompt_file = self._prompts[name]
            names = {"user": gathered.user_name, "char": gathered.speaker.name}
            text = prompt_file.render(**{key: names[key] for key in prompt_file.inputs})
            return text, "instruction", title, target.line_kind
        line = target.line
        author = author_of(self._identity, line) if line is not None else gathered.user_name
        text = spoken_line(self._identity, gathered) or ""
        return line_text(author, text, names=self._unit.names), "user_line", "User's line", "turn"


def spoken_line(identity: Identity, gathered: Gathered) -> str | None:
    """What the user says in this turn, stored or not; None where nobody says anything new."""
    target = gathered.target
    if target.line_kind != "user_line":
        return None
    if gathered.said is not None:
        return gathered.said
    return text_of(identity, target.line) if target.line is not None else gathered.line


def scene_of(
    gathered: Gathered, request: TurnRequest, line: str | None, *, is_quiet: bool
) -> LoreScene:
    """What lorebooks are scanned against: the user's `line`, the last messages, the cast."""
    target, card = gathered.target, gathered.speaker.card
    lines = [
        ScannedLine(line.author, line.text, FoundIn("message", line.position + 1))
        for line in reversed(gathered.recent)
    ]
    if line:
        lines.insert(0, ScannedLine(gathered.user_name, line, FoundIn("line")))
    messages = (target.leaf.position + 1 if target.leaf else 0) + bool(line)
    depth = card.depth_prompt
    return LoreScene(
        lines=lines,
        message_count=messages,
        reply_count=gathered.lore.reply_count,
        greeting=gathered.lore.greeting,
        seed=seed_of(gathered.chat.id, target.leaf.id if target.leaf else None),
        speaker=gathered.speaker.name,
        tags=card.tags,
        fields={
            "persona_description": gathered.persona,
            "character_description": card.description,
            "character_personality": card.personality,
            "character_depth_prompt": depth.prompt if depth else "",
            "scenario": card.scenario,
            "creator_notes": card.creator_notes,
        },
        triggers=_triggers(request, is_quiet=is_quiet),
        note=gathered.note.text if gathered.note.scan and note_of(gathered, request).is_due else "",
    )


def note_of(gathered: Gathered, request: TurnRequest) -> Note:
    """The author's note, and whether it comes with this turn."""
    note = gathered.note
    said = gathered.user_lines + (gathered.target.line is not None or bool(request.text))
    is_due = note.interval == 1 or bool(note.interval and said and said % note.interval == 0)
    return Note(
        text=note.text,
        depth=note.depth,
        role=note.role,
        position=note.position,
        is_due=is_due,
        reason=gathered.note_reason,
    )


def _triggers(request: TurnRequest, *, is_quiet: bool) -> Sequence[Trigger]:
    if is_quiet:
        return ["quiet"]
    if request.continue_:
        return ["continue"]
    if request.impersonate:
        return ["impersonate"]
    # What others do in two ways is one here: a regenerated reply is a swipe beside the first.
    return ["regenerate", "swipe"] if request.regenerate_of else ["normal"]


def macros_for(
    gathered: Gathered, spec: ModelSpec, *, max_prompt: int, max_response: int
) -> MacroContext:
    """What the macros of a prompt's fields stand for."""
    leaf = gathered.target.leaf
    context = macros_of(
        gathered.speaker.card,
        char=gathered.speaker.name,
        user=gathered.user_name,
        persona=gathered.persona,
        chat_seed=seed_of(gathered.chat.id),
        message_seed=seed_of(gathered.chat.id, leaf.id if leaf else None),
    )
    said = [line.created_at for line in gathered.recent if line.role == "user"]
    return replace(
        context,
        model=spec.id,
        max_prompt=max_prompt,
        max_response=max_response,
        group=", ".join((gathered.speaker.name, *gathered.others)) if gathered.others else "",
        not_char=", ".join((*gathered.others, gathered.user_name)),
        last_message_id=str(gathered.recent[-1].position) if gathered.recent else "",
        authors_note=gathered.note.text,
        last_message=_last(gathered, None),
        last_user_message=_last(gathered, "user"),
        last_char_message=_last(gathered, "assistant"),
        idle=context.now - said[-1] if said else timedelta(0),
    )


def _last(gathered: Gathered, role: Role | None) -> str:
    texts = [line.text for line in gathered.recent if role is None or line.role == role]
    return texts[-1] if texts else ""
