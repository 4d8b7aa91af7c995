"""Activated lore in a prompt: what a scan is given, and where what it finds stands."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from backend.chats.schemas import AuthorsNote
from backend.context.layout import LeftOut, PromptItem
from backend.context.macros import (
    MAX_CHARACTERS,
    MAX_MACROS,
    MacroBudget,
    MacroContext,
    Variables,
    expand,
)
from backend.core.reasons import FoundIn, Reason
from backend.lorebooks.activation.outcome import (
    ActiveEntry,
    Scan,
    ScannedLine,
    ScanOutcome,
    compute_lore_budget,
)
from backend.lorebooks.activation.timed import NO_EFFECTS, TimedState
from backend.lorebooks.entries import Position, Trigger
from backend.turns.api.schemas import TurnRequest
from backend.turns.prompt.context import LoadedChat, PromptWindow
from backend.turns.prompt.macros import make_seed


class LoreExpander:
    """Expands macros of entries, one after the other: what one writes, the next one reads.

    All lore together may take what a single field may; the rest of the request's budget is left to
    the fields.
    """

    def __init__(
        self, context: MacroContext, variables: Variables, macro_budget: MacroBudget
    ) -> None:
        self._context = context
        self._budget = macro_budget.share(characters=MAX_CHARACTERS, macros=MAX_MACROS)
        self.variables = variables

    def __call__(self, text: str) -> str:
        """A key or a content, expanded. Raises `MacroLimitError`."""
        expansion = expand(text, self._context, self.variables, place="lore", budget=self._budget)
        self.variables = expansion.variables
        return expansion.text


def scan_of(
    loaded: LoadedChat,
    request: TurnRequest,
    window: PromptWindow,
    *,
    count: Callable[[str], int],
    expander: LoreExpander,
    is_quiet: bool = False,
) -> Scan:
    """What lorebooks are scanned against: what the user says, the last messages, the cast."""
    lore, leaf, card = loaded.lore, loaded.target.leaf, loaded.speaker.card
    lines = [
        ScannedLine(line.author, line.text, FoundIn("message", line.position + 1))
        for line in reversed(loaded.recent)
    ]
    if loaded.said:
        lines.insert(0, ScannedLine(loaded.user_name, loaded.said, FoundIn("line")))
    context_tokens = window.budget.prompt
    return Scan(
        books=lore.books,
        messages=lines,
        settings=lore.settings,
        budget=compute_lore_budget(lore.settings, context_tokens),
        room=context_tokens,
        count=count,
        vocabulary=window.unit.tokenizer,
        message_count=(leaf.position + 1 if leaf else 0) + bool(loaded.said),
        reply_count=lore.reply_count,
        greeting=lore.greeting,
        seed=make_seed(loaded.chat.id, leaf.id if leaf else None),
        expand=expander,
        fields={
            "persona_description": loaded.persona,
            "character_description": card.description,
            "character_personality": card.personality,
            "character_depth_prompt": card.depth_prompt.prompt if card.depth_prompt else "",
            "scenario": card.scenario,
            "creator_notes": card.creator_notes,
        },
        speaker=loaded.speaker.name,
        tags=card.tags,
        triggers=triggers_of(request, is_quiet=is_quiet),
        note=loaded.note.text if loaded.note.scan and loaded.note_is_due else "",
        timed=lore.timed,
        inactive=lore.inactive,
        sources=lore.sources,
    )


def triggers_of(request: TurnRequest, *, is_quiet: bool) -> Sequence[Trigger]:
    """The kinds of turns that a request is."""
    if is_quiet:
        return ["quiet"]
    if request.continue_:
        return ["continue"]
    if request.impersonate:
        return ["impersonate"]
    # What others do in two ways is one here: a regenerated reply is a swipe beside the first.
    return ["regenerate", "swipe"] if request.regenerate_of else ["normal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLore:
    """Activated lore by where it stands.

    Attributes:
        slots: By its place among the fixed sections, each slot in ascending order. Texts are
            expanded already. Around the character and the examples stands what is always on: the
            head of a prompt must not change from turn to turn.
        ranked: What has no such place, best first: it shares the memory's budget.
    """

    slots: Mapping[Position, Sequence[PromptItem]] = field(
        default_factory=dict[Position, list[PromptItem]]
    )
    ranked: Sequence[PromptItem] = ()
    left_out: Sequence[LeftOut] = ()
    timed: TimedState = NO_EFFECTS
    notes: Sequence[str] = ()


def place(
    outcome: ScanOutcome, note: AuthorsNote, *, note_is_due: bool, as_written: bool
) -> PlacedLore:
    """Give each activated entry its place in the prompt.

    With `as_written`, entries around the character and the examples stand there whenever they are
    activated, and not with the memory.
    """
    slots: defaultdict[Position, list[PromptItem]] = defaultdict(list)
    ranked: list[tuple[int, PromptItem]] = []
    left_out = [
        LeftOut(
            kind="lore",
            title=each.title,
            tokens=each.tokens,
            reasons=[each.reason],
            source_id=each.entry_id,
        )
        for each in outcome.left_out
    ]
    for number, entry in enumerate(outcome.activated):
        item = _item(entry, number)
        if entry.from_start is not None:
            slots["at_depth"].append(
                replace(item, place="depth", depth=entry.from_start, from_start=True)
            )
        elif entry.position == "at_depth":
            slots["at_depth"].append(replace(item, place="depth", depth=entry.depth))
        elif entry.position in {"note_top", "note_bottom"} and not note_is_due:
            left_out.append(item.left_out(Reason("note_not_due")))
        elif entry.position in {"note_top", "note_bottom"}:
            slots[entry.position].append(
                replace(item, place=note_place(note), depth=note.depth, role=note.role)
            )
        elif entry.position == "outlet":
            # Outlets alone stand in descending order, as in World Info.
            slots["outlet"].insert(0, replace(item, place="outlet", outlet=entry.outlet))
        elif entry.is_constant or as_written:
            slots[entry.position].append(replace(item, place="head"))
        else:
            is_found = all(reason.kind in {"semantic", "words"} for reason in entry.reasons)
            rank = entry.rank or 0 if is_found else 0
            ranked.append((-entry.order, replace(item, rank=rank)))
    ranked.sort(key=lambda each: each[0])
    for more, what, reason in (
        (outcome.left_out_more, "more ", Reason("not_listed")),
        (outcome.not_found, "", Reason("no_key")),
    ):
        if more:
            noun = "entry" if more == 1 else "entries"
            left_out.append(
                LeftOut(kind="lore", title=f"{more:,} {what}{noun}", tokens=0, reasons=[reason])
            )
    return PlacedLore(
        slots=slots,
        ranked=[item for _, item in ranked],
        left_out=left_out,
        timed=outcome.timed,
        notes=outcome.notes,
    )


def note_place(note: AuthorsNote) -> Literal["depth", "head"]:
    """Where the author's note and its lore stand."""
    return "depth" if note.position == "at_depth" else "head"


class Outlets(Mapping[str, str]):
    """What stands in outlets, by name; remembers which of them were read."""

    def __init__(self, items: Sequence[PromptItem]) -> None:
        texts: dict[str, list[str]] = {}
        for item in items:
            texts.setdefault(item.outlet, []).append(item.text)
        self._texts = {name: "\n".join(parts) for name, parts in texts.items()}
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        text = self._texts[name]
        self.read.add(name)
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


EXAMPLE_MARK = re.compile(r"<START>", re.IGNORECASE)


def split_examples(text: str) -> list[str]:
    """The example dialogues of a text, which `<START>` stands before."""
    return [part.strip() for part in EXAMPLE_MARK.split(text) if part.strip()]


def _item(entry: ActiveEntry, number: int) -> PromptItem:
    is_example = entry.position in {"examples_top", "examples_bottom"}
    return PromptItem(
        kind="lore",
        title=entry.title,
        text="\n\n".join(split_examples(entry.content)) if is_example else entry.content,
        place="memory",
        reasons=entry.reasons,
        role=entry.role,
        source_id=entry.entry_id,
        order=number,
        tokens=entry.tokens,
    )
