"""Activated lore in a prompt: what a scan is given, and where what it finds stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from backend.context.assembly import Item, LeftOut
from backend.context.macros import (
    MAX_CHARACTERS,
    MAX_MACROS,
    MacroBudget,
    MacroContext,
    Variables,
    expand,
)
from backend.context.sections import LoreSlots, Note, split_examples
from backend.lorebooks.activation.outcome import (
    Activated,
    Outcome,
    Scan,
    ScannedLine,
    SemanticHit,
    lore_budget,
)
from backend.lorebooks.activation.timed import TimedState
from backend.lorebooks.entries import MatchedField, Trigger
from backend.reasons import Reason
from backend.turns.lore import LoadedLore


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoreScene:
    """What of a chat a scan looks at, beside the books."""

    lines: Sequence[ScannedLine]
    message_count: int
    reply_count: int
    greeting: int | None
    seed: int
    speaker: str
    tags: Sequence[str]
    fields: Mapping[MatchedField, str]
    triggers: Sequence[Trigger]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLore:
    """Activated lore by where it stands.

    `ranked` has no place among the fixed sections: it shares the memory's budget, best first.
    `semantic_ranks` says of those that were found by meaning alone at which rank of the search.
    """

    slots: LoreSlots = field(default_factory=LoreSlots)
    ranked: Sequence[Item] = ()
    semantic_ranks: Mapping[UUID, int] = field(default_factory=dict[UUID, int])
    left_out: Sequence[LeftOut] = ()
    timed: TimedState = field(default_factory=TimedState)
    notes: Sequence[str] = ()


def scan_of(
    loaded: LoadedLore,
    scene: LoreScene,
    *,
    semantic: Mapping[UUID, SemanticHit],
    by_meaning: bool,
    context_tokens: int,
    count: Callable[[str], int],
    vocabulary: str,
    expander: LoreExpander,
) -> Scan:
    """What the activation is given."""
    return Scan(
        books=loaded.books,
        messages=scene.lines,
        settings=loaded.settings,
        budget=lore_budget(loaded.settings, context_tokens),
        room=context_tokens,
        count=count,
        vocabulary=vocabulary,
        message_count=scene.message_count,
        reply_count=scene.reply_count,
        greeting=scene.greeting,
        seed=scene.seed,
        expand=expander,
        fields=scene.fields,
        speaker=scene.speaker,
        tags=scene.tags,
        triggers=scene.triggers,
        note=scene.note,
        timed=loaded.timed,
        semantic=semantic,
        by_meaning=by_meaning,
        inactive=loaded.inactive,
        sources=loaded.sources,
    )


def place(outcome: Outcome, note: Note, *, as_written: bool) -> PlacedLore:
    """Give each activated entry its place in the prompt.

    With `as_written`, entries around the character and the examples stand there whenever they are
    activated, and not with the memory.
    """
    slots: dict[str, list[Item]] = {name: [] for name in _SLOTS}
    ranked: list[tuple[tuple[bool, int], Item]] = []
    semantic: dict[UUID, int] = {}
    unplaced: list[Item] = []
    for number, entry in enumerate(outcome.activated):
        item = _item(entry, number)
        if entry.position == "at_depth" or entry.from_start is not None:
            depth = entry.depth if entry.from_start is None else entry.from_start
            from_start = entry.from_start is not None
            slots["at_depth"].append(
                replace(item, place="depth", depth=depth, from_start=from_start)
            )
        elif entry.position in {"note_top", "note_bottom"} and not note.is_due:
            unplaced.append(item)
        elif entry.position in {"note_top", "note_bottom"}:
            slots[entry.position].append(
                replace(item, place=note.place, depth=note.depth, role=note.role)
            )
        elif entry.position == "outlet":
            # Outlets alone stand in descending order, as in World Info.
            slots["outlets"].insert(0, replace(item, title=entry.outlet, place="outlet"))
        elif entry.is_constant or as_written:
            slots[entry.position].append(replace(item, place="head"))
        else:
            by_meaning = all(reason.kind == "semantic" for reason in entry.reasons)
            if by_meaning and entry.rank is not None:
                semantic[entry.entry_id] = entry.rank
            ranked.append(((by_meaning, -entry.order), item))
    ranked.sort(key=lambda each: each[0])
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
    left_out += [
        LeftOut(
            kind="lore",
            title=item.title,
            tokens=item.tokens,
            reasons=[Reason("note_not_due")],
            source_id=item.source_id,
        )
        for item in unplaced
    ]
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
        slots=LoreSlots(**slots),
        ranked=[item for _, item in ranked],
        semantic_ranks=semantic,
        left_out=left_out,
        timed=outcome.timed,
        notes=outcome.notes,
    )


class Outlets(Mapping[str, str]):
    """What stands in outlets, by name; remembers which of them were read."""

    def __init__(self, items: Sequence[Item]) -> None:
        texts: dict[str, list[str]] = {}
        for item in items:
            texts.setdefault(item.title, []).append(item.text)
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


_SLOTS = (
    "before_character",
    "after_character",
    "examples_top",
    "examples_bottom",
    "note_top",
    "note_bottom",
    "at_depth",
    "outlets",
)


def _item(entry: Activated, number: int) -> Item:
    is_example = entry.position in {"examples_top", "examples_bottom"}
    return Item(
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
