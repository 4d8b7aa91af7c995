"""From what was read to the prompt: lore, sections, history, memories, within the budget."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from backend.accounts.identity import Identity
from backend.chats.counting import CountUnit
from backend.chats.repository import StoredLines
from backend.context.assembly import Assembled, History, Item, LeftOut, assemble
from backend.context.budget import Budget
from backend.context.errors import ContextOverflowError
from backend.context.macros import Variables
from backend.context.sections import Note, SectionBuilder
from backend.generation.model import ModelSpec, Prompt
from backend.generation.sampling import Sampling
from backend.lorebooks.activation.timed import TimedState
from backend.memory.asking import Memory
from backend.prompts import PromptLibrary
from backend.turns.counting import CountCache
from backend.turns.fitting import fit
from backend.turns.gather import Gathered
from backend.turns.inputs import InputMaker, macros_for, scene_of
from backend.turns.lore import LoreReader
from backend.turns.placing import LoreExpander, Outlets, PlacedLore, place, scan_of
from backend.turns.remembering import Remembered, beyond, memory_texts, ranked, remembered
from backend.turns.schemas import TurnRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Everything that was read for a prompt.

    Attributes:
        unit: What tokens are counted in.
        ratio: Makes counted tokens the model's.
        scale: Makes tokens as they are stored counted ones.
        is_estimated: The stored counts are in another unit.
        limits: The budgets in the model's tokens.
        budget: The same in counted ones.
        widest: Stored tokens that the lines were read for; what is always sent may leave less.
        line: What the user says, where somebody says something new.
        lines: As they are stored.
        history: The same, unsealed.
        memories: What was found and counts, best first.
        notes: What there is to say about the search.
    """

    gathered: Gathered
    spec: ModelSpec
    sampling: Sampling
    unit: CountUnit
    ratio: float
    scale: float
    is_estimated: bool
    limits: Budget
    budget: Budget
    widest: int
    line: str | None
    lines: StoredLines
    history: History
    memories: Sequence[Memory]
    notes: Sequence[str]

    @property
    def path_tokens(self) -> int:
        """Stored tokens of the whole path."""
        leaf = self.gathered.target.leaf
        return leaf.path_tokens if leaf else 0

    @property
    def summarised(self) -> int | None:
        """Stored tokens from the root that the chat's summary covers; None without one."""
        summary = self.gathered.summary
        return summary.path_tokens if summary else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A prompt, ready to be sent, and all that has to be stored with its reply.

    Counts are in `unit`; `ratio` makes them the model's, and `scale` made them of stored ones.
    `limits` is the budget in the model's tokens, as it was set.
    """

    gathered: Gathered
    spec: ModelSpec
    sampling: Sampling
    unit: CountUnit
    ratio: float
    scale: float
    limits: Budget
    budget: Budget
    assembled: Assembled
    variables: Variables
    prompt_files: dict[str, str]
    path_tokens: int
    estimated: bool
    timed: TimedState
    notes: Sequence[str]

    @property
    def prompt(self) -> Prompt:
        """What is sent."""
        return Prompt(self.assembled.messages)

    @property
    def totals(self) -> dict[str, int]:
        """How the window is used, in the model's tokens."""
        assembled, limits = self.assembled, self.limits
        prompt = self.real(assembled.tokens)
        return {
            "prompt": prompt,
            "fixed": self.real(assembled.fixed_tokens),
            "history": self.real(assembled.history_tokens),
            "retrieved": self.real(assembled.retrieved_tokens),
            "reply_reserve": limits.reply_reserve,
            "free": limits.prompt - prompt,
            "total": limits.total,
            "messages": len(assembled.messages),
        }

    @property
    def history_budget(self) -> int:
        """What history may take beside what is always sent, in tokens as they are stored."""
        return math.floor(self.budget.for_history(self.assembled.fixed_tokens) / self.scale)

    def real(self, count: int) -> int:
        """A count in the model's tokens."""
        return round(count * self.ratio)


class Composer:
    """Puts prompts together; asks nobody for anything any more."""

    def __init__(self, prompts: PromptLibrary, counts: CountCache, lore: LoreReader) -> None:
        self._prompts = prompts
        self._counts = counts
        self._lore = lore

    async def compose(
        self, identity: Identity, material: Material, request: TurnRequest, *, suggestions: int
    ) -> Built:
        """The prompt. Raises `ContextOverflowError` and `MacroLimitError`."""

        def count(text: str) -> int:
            return self._counts.count(material.unit.tokenizer, text)

        gathered, budget, ratio = material.gathered, material.budget, material.ratio
        recalled = remembered(
            material.memories, chat_id=gathered.chat.id, count=count, pinned=gathered.pinned
        )
        maker = InputMaker(self._prompts, identity, gathered, material.unit)
        inputs = maker.inputs(request, suggestions=suggestions)
        macros = macros_for(gathered, material.spec, max_prompt=round(budget.prompt * ratio))
        expander = LoreExpander(macros, gathered.variables)
        placed = await self._scan(
            material, request, recalled, count=count, expander=expander, is_quiet=bool(suggestions)
        )
        outlets = Outlets(placed.slots.outlets)
        sections = SectionBuilder(
            self._prompts,
            replace(inputs, lore=placed.slots),
            replace(macros, outlets=outlets),
            expander.variables,
        )
        items, unread = _read_outlets(sections.build(), outlets)
        with _in_real_tokens(ratio):
            fixed, history, unsaid = fit(material, items, count=count)
            recalled = beyond(recalled, history)
            assembled = assemble(
                fixed,
                history,
                count=count,
                render_omitted=self.render_omitted,
                retrieved=ranked(placed, recalled, count=count),
                render_memory=self.render_memory,
                memory_first=gathered.settings.memory_placement == "before_history",
            )
        left_out = [*assembled.left_out, *unsaid, *unread, *recalled.left_out, *placed.left_out]
        files = dict(sections.used)
        if unsaid:
            files.pop("sections/summary", None)
        if assembled.retrieved:
            files["sections/memory"] = self._prompts["sections/memory"].digest
        return Built(
            gathered=gathered,
            spec=material.spec,
            sampling=material.sampling,
            unit=material.unit,
            ratio=ratio,
            scale=material.scale,
            limits=material.limits,
            budget=budget,
            assembled=replace(assembled, left_out=left_out),
            variables=sections.variables,
            prompt_files=files,
            path_tokens=material.path_tokens,
            estimated=material.is_estimated,
            timed=placed.timed,
            notes=[*material.notes, *placed.notes],
        )

    async def _scan(
        self,
        material: Material,
        request: TurnRequest,
        recalled: Remembered,
        *,
        count: Callable[[str], int],
        expander: LoreExpander,
        is_quiet: bool,
    ) -> PlacedLore:
        """Which lore comes in, and where it stands."""
        gathered = material.gathered
        if not gathered.lore.books:
            return PlacedLore(timed=gathered.lore.timed)
        scan = scan_of(
            gathered.lore,
            scene_of(gathered, request, material.line, is_quiet=is_quiet),
            semantic=recalled.lore,
            context_tokens=material.budget.prompt,
            count=count,
            expander=expander,
        )
        note = gathered.settings.authors_note
        # In a thread: patterns that can't be trusted may take a quarter of a second together.
        outcome = await asyncio.to_thread(self._lore.scan, scan)
        return place(outcome, Note(text=note.text, depth=note.depth, role=note.role))

    def render_omitted(self, count: int) -> str:
        """The line that stands for messages taken out of the middle."""
        return self._prompts["sections/omitted"].render(count=count)

    def render_memory(self, items: Sequence[Item]) -> str:
        """The section of what was retrieved."""
        return self._prompts["sections/memory"].render(**memory_texts(items))


def _read_outlets(items: Sequence[Item], outlets: Outlets) -> tuple[list[Item], list[LeftOut]]:
    """Items without what stands in outlets that no field reads; and that."""
    unread = [
        LeftOut(
            kind=item.kind,
            title=item.title,
            tokens=0,
            reason=f'no field reads the outlet "{item.title}"',
            source_id=item.source_id,
        )
        for item in items
        if item.place == "outlet" and item.title not in outlets.read
    ]
    kept = [item for item in items if item.place != "outlet" or item.title in outlets.read]
    return kept, unread


@contextlib.contextmanager
def _in_real_tokens(ratio: float) -> Generator[None]:
    """Let an overflow speak of the model's tokens, as everything that people read does."""
    try:
        yield
    except ContextOverflowError as error:
        raise error.scaled(ratio) from None
