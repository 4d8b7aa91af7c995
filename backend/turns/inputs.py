"""From what was loaded to what the sections of a prompt are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from backend.accounts.identity import Identity
from backend.chats.counting import CountUnit, line_text
from backend.context.macros import MacroContext
from backend.context.sections import CardFields, Note, SectionInputs
from backend.generation.model import ModelSpec, Role
from backend.lorebooks.activation.outcome import ScannedLine
from backend.lorebooks.entries import Trigger
from backend.prompts import PromptLibrary
from backend.reasons import FoundIn, ReasonKind
from backend.turns.load import LoadedChat, author_of, text_of
from backend.turns.lore_placement import LoreScene
from backend.turns.macro_fields import macros_of, seed_of
from backend.turns.schemas import TurnRequest

ASSISTS = {
    "continue": ("assist/continue", "Continue"),
    "impersonate": ("assist/impersonate", "Impersonate"),
    "opening": ("assist/opening", "Opening"),
    "next": ("assist/next", "Next"),
}


class InputMaker:
    """Makes the inputs of one prompt's sections."""

    def __init__(
        self, prompts: PromptLibrary, identity: Identity, loaded: LoadedChat, unit: CountUnit
    ) -> None:
        self._prompts = prompts
        self._identity = identity
        self._loaded = loaded
        self._unit = unit

    def inputs(self, request: TurnRequest, *, suggestions: int = 0) -> SectionInputs:
        """Everything that the fixed sections are made of; `suggestions` asks for so many lines."""
        loaded = self._loaded
        card, settings = loaded.speaker.card, loaded.settings
        account = self._identity.settings
        depth = card.depth_prompt
        line, kind, title, reason = self._line(suggestions=suggestions)
        summary = loaded.summary
        return SectionInputs(
            card=CardFields(
                id=loaded.speaker.id,
                name=loaded.speaker.name,
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
            user=loaded.user_name,
            persona=loaded.persona,
            persona_id=loaded.persona_id,
            others=loaded.others,
            system_prompt=settings.system_prompt or account.system_prompt or "",
            post_history=(
                settings.post_history_instructions or account.post_history_instructions or ""
            ),
            note=note_of(loaded, request),
            summary=summary.text if summary else "",
            summary_position=summary.position if summary else 0,
            summary_id=summary.message_id if summary else None,
            line=line,
            line_kind=kind,
            line_title=title,
            line_reason=reason,
            line_id=loaded.target.line.id if loaded.target.line else None,
        )

    def _line(self, *, suggestions: int) -> tuple[str, str, str, ReasonKind]:
        """What stands as the user's line: (text, kind, title, reason)."""
        loaded = self._loaded
        target = loaded.target
        if suggestions:
            prompt = self._prompts["assist/suggestions"].render(
                user=loaded.user_name, char=loaded.speaker.name, count=suggestions
            )
            return prompt, "instruction", "Suggestions", "suggestions"
        if target.line_kind != "user_line":
            name, title = ASSISTS[target.line_kind]
            prompt_file = self._prompts[name]
            names = {"user": loaded.user_name, "char": loaded.speaker.name}
            text = prompt_file.render(**{key: names[key] for key in prompt_file.inputs})
            return text, "instruction", title, target.line_kind
        line = target.line
        author = author_of(self._identity, line) if line is not None else loaded.user_name
        text = spoken_line(self._identity, loaded) or ""
        return line_text(author, text, names=self._unit.names), "user_line", "User's line", "turn"


def spoken_line(identity: Identity, loaded: LoadedChat) -> str | None:
    """What the user says in this turn, stored or not; None where nobody says anything new."""
    target = loaded.target
    if target.line_kind != "user_line":
        return None
    if loaded.said is not None:
        return loaded.said
    return text_of(identity, target.line) if target.line is not None else loaded.line


def scene_of(
    loaded: LoadedChat, request: TurnRequest, line: str | None, *, is_quiet: bool
) -> LoreScene:
    """What lorebooks are scanned against: the user's `line`, the last messages, the cast."""
    target, card = loaded.target, loaded.speaker.card
    lines = [
        ScannedLine(line.author, line.text, FoundIn("message", line.position + 1))
        for line in reversed(loaded.recent)
    ]
    if line:
        lines.insert(0, ScannedLine(loaded.user_name, line, FoundIn("line")))
    messages = (target.leaf.position + 1 if target.leaf else 0) + bool(line)
    depth = card.depth_prompt
    return LoreScene(
        lines=lines,
        message_count=messages,
        reply_count=loaded.lore.reply_count,
        greeting=loaded.lore.greeting,
        seed=seed_of(loaded.chat.id, target.leaf.id if target.leaf else None),
        speaker=loaded.speaker.name,
        tags=card.tags,
        fields={
            "persona_description": loaded.persona,
            "character_description": card.description,
            "character_personality": card.personality,
            "character_depth_prompt": depth.prompt if depth else "",
            "scenario": card.scenario,
            "creator_notes": card.creator_notes,
        },
        triggers=_triggers(request, is_quiet=is_quiet),
        note=loaded.note.text if loaded.note.scan and note_of(loaded, request).is_due else "",
    )


def note_of(loaded: LoadedChat, request: TurnRequest) -> Note:
    """The author's note, and whether it comes with this turn."""
    note = loaded.note
    said = loaded.user_lines + (loaded.target.line is not None or bool(request.text))
    is_due = note.interval == 1 or bool(note.interval and said and said % note.interval == 0)
    return Note(
        text=note.text,
        depth=note.depth,
        role=note.role,
        position=note.position,
        is_due=is_due,
        reason=loaded.note_reason,
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
    loaded: LoadedChat, spec: ModelSpec, *, max_prompt: int, max_response: int
) -> MacroContext:
    """What the macros of a prompt's fields stand for."""
    leaf = loaded.target.leaf
    context = macros_of(
        loaded.speaker.card,
        char=loaded.speaker.name,
        user=loaded.user_name,
        persona=loaded.persona,
        chat_seed=seed_of(loaded.chat.id),
        message_seed=seed_of(loaded.chat.id, leaf.id if leaf else None),
    )
    said = [line.created_at for line in loaded.recent if line.role == "user"]
    return replace(
        context,
        model=spec.id,
        max_prompt=max_prompt,
        max_response=max_response,
        group=", ".join((loaded.speaker.name, *loaded.others)) if loaded.others else "",
        not_char=", ".join((*loaded.others, loaded.user_name)),
        last_message_id=str(loaded.recent[-1].position) if loaded.recent else "",
        authors_note=loaded.note.text,
        last_message=_last(loaded, None),
        last_user_message=_last(loaded, "user"),
        last_char_message=_last(loaded, "assistant"),
        idle=context.now - said[-1] if said else timedelta(0),
    )


def _last(loaded: LoadedChat, role: Role | None) -> str:
    texts = [line.text for line in loaded.recent if role is None or line.role == role]
    return texts[-1] if texts else ""
