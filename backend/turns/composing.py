"""From what was read to the prompt: lore, sections, history, memories, within the budget."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from backend.accounts.identity import Identity
from backend.chats.counting import CountUnit
from backend.chats.repository import StoredLines
from backend.context.assembly import Assembled, History, Item, LeftOut, assemble
from backend.context.budget import Budget
from backend.context.errors import ContextOverflowError
from backend.context.macros import MacroBudget, MacroContext, Variables
from backend.context.sections import Note, SectionBuilder, SectionInputs
from backend.cpu_pool import CpuPool
from backend.generation.model import ModelSpec, Prompt
from backend.generation.sampling import Sampling
from backend.generation.tokens import MESSAGE_OVERHEAD
from backend.lorebooks.activation.outcome import lore_reserve
from backend.lorebooks.activation.timed import TimedState
from backend.memory.search_request import Memory
from backend.prompts import PromptLibrary
from backend.reasons import Reason
from backend.turns.counting import CountCache
from backend.turns.fitting import fit
from backend.turns.gather import Gathered
from backend.turns.inputs import InputMaker, macros_for, scene_of
from backend.turns.lore import LoreReader
from backend.turns.lore_placement import (
    LoreExpander,
    LoreScene,
    Outlets,
    PlacedLore,
    place,
    scan_of,
)
from backend.turns.macro_fields import expanded_size
from backend.turns.retrieval import (
    Remembered,
    beyond,
    memory_texts,
    ranked,
    remembered,
    wanted,
)
from backend.turns.rewriting import sent_lore
from backend.turns.schemas import TurnRequest
from backend.turns.variables import kept


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
        by_meaning: Whether it was looked for by meaning, too.
        notes: What there is to say about the search.
        chat_id: Whose turn it is.
        path_tokens: Stored tokens of the whole path.
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
    by_meaning: bool
    notes: Sequence[str]
    chat_id: UUID
    path_tokens: int

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
        prompt = self.to_model_tokens(assembled.tokens)
        return {
            "prompt": prompt,
            "fixed": self.to_model_tokens(assembled.fixed_tokens),
            "history": self.to_model_tokens(assembled.history_tokens),
            "retrieved": self.to_model_tokens(assembled.retrieved_tokens),
            "reply_reserve": limits.reply_reserve,
            "free": limits.prompt - prompt,
            "total": limits.total,
            "messages": len(assembled.messages),
        }

    @property
    def history_budget(self) -> int:
        """What history may take beside what is always sent, in tokens as they are stored."""
        return math.floor(self.budget.for_history(self.assembled.fixed_tokens) / self.scale)

    def to_model_tokens(self, count: int) -> int:
        """A count in the model's tokens."""
        return round(count * self.ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    """What the fixed sections are made of, and what lorebooks are scanned against."""

    inputs: SectionInputs
    macros: MacroContext
    scene: LoreScene | None


class Composer:
    """Puts prompts together; asks nobody for anything any more."""

    def __init__(
        self, prompts: PromptLibrary, counts: CountCache, lore: LoreReader, pool: CpuPool
    ) -> None:
        self._pool = pool
        self._prompts = prompts
        self._counts = counts
        self._lore = lore

    async def compose(
        self, identity: Identity, material: Material, request: TurnRequest, *, suggestions: int
    ) -> Built:
        """The prompt. Raises `ContextOverflowError` and `MacroLimitError`."""
        gathered = material.gathered
        maker = InputMaker(self._prompts, identity, gathered, material.unit)
        max_prompt = round(material.budget.prompt * material.ratio)
        fields = _Fields(
            inputs=maker.inputs(request, suggestions=suggestions),
            macros=macros_for(
                gathered,
                material.spec,
                max_prompt=max_prompt,
                max_response=material.limits.reply_reserve,
            ),
            scene=(
                scene_of(gathered, request, material.line, is_quiet=bool(suggestions))
                if gathered.lore.books
                else None
            ),
        )
        return await self._pool.run(
            identity.user_id,
            partial(self._composed, identity.user_id, material, fields),
            size=_size(material, fields),
        )

    def _composed(self, user_id: UUID, material: Material, fields: _Fields) -> Built:
        """The prompt. CPU-bound, without the database; it looks into no row of it."""

        def count(text: str) -> int:
            return self._counts.count(user_id, material.unit.tokenizer, text)

        gathered, budget, ratio = material.gathered, material.budget, material.ratio
        recalled = remembered(
            material.memories, chat_id=material.chat_id, count=count, pinned=gathered.pinned
        )
        macro_budget = MacroBudget()
        expander = LoreExpander(fields.macros, gathered.variables, macro_budget)
        placed = self._scan(
            material, fields.scene, fields.inputs.note, recalled, count=count, expander=expander
        )
        outlets = Outlets(placed.slots.outlets)
        sections = SectionBuilder(
            self._prompts,
            replace(fields.inputs, lore=placed.slots),
            replace(fields.macros, outlets=outlets),
            expander.variables,
            macro_budget,
        )
        items, unread = _read_outlets(sections.build(), outlets)
        with _in_real_tokens(ratio):
            reserved = self._reserved(material, placed, recalled, count=count)
            fixed, history, unsaid = fit(material, items, count=count, reserved=reserved)
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
        variables, unkept = kept(gathered.variables, sections.variables)
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
            variables=variables,
            prompt_files=files,
            path_tokens=material.path_tokens,
            estimated=material.is_estimated,
            timed=placed.timed,
            notes=[
                *material.notes,
                *placed.notes,
                *unkept,
                *_ignored(macro_budget),
                *(gathered.scripts.notes if gathered.scripts else ()),
            ],
        )

    def _scan(
        self,
        material: Material,
        scene: LoreScene | None,
        note: Note,
        recalled: Remembered,
        *,
        count: Callable[[str], int],
        expander: LoreExpander,
    ) -> PlacedLore:
        """Which lore comes in, and where it stands."""
        gathered = material.gathered
        if scene is None:
            return PlacedLore(timed=gathered.lore.timed)
        scan = scan_of(
            gathered.lore,
            scene,
            semantic=recalled.lore,
            by_meaning=material.by_meaning,
            context_tokens=material.budget.prompt,
            count=count,
            vocabulary=material.unit.tokenizer,
            expander=expander,
        )
        outcome = sent_lore(gathered.scripts, self._lore.scan(scan), count)
        return place(outcome, note, as_written=gathered.settings.lore_placement == "as_written")

    def _reserved(
        self,
        material: Material,
        placed: PlacedLore,
        recalled: Remembered,
        *,
        count: Callable[[str], int],
    ) -> int:
        """Tokens that history leaves to lore that was asked for: what it needs, up to a share."""
        needed = wanted(placed, recalled, count=count)
        if not needed:
            return 0
        around = count(self.render_memory([replace(each, text="") for each in needed[:1]]))
        tokens = sum(each.tokens for each in needed) + around + MESSAGE_OVERHEAD
        return min(tokens, lore_reserve(material.gathered.lore.settings, material.budget.prompt))

    def render_omitted(self, count: int) -> str:
        """The line that stands for messages taken out of the middle."""
        return self._prompts["sections/omitted"].render(count=count)

    def render_memory(self, items: Sequence[Item]) -> str:
        """The section of what was retrieved."""
        return self._prompts["sections/memory"].render(**memory_texts(items))


_COUNTED_ONCE = 8
"""Fields come back turn after turn, and their counts are kept: most turns only expand them."""

_LINE_SIZE = 2
"""Laying out a line of the history takes as long as counting so many characters."""


def _size(material: Material, fields: _Fields) -> int | None:
    """How much work a prompt is, as `CpuPool.run` is told; None where lorebooks are scanned.

    Patterns that can't be trusted may take a quarter of a second together.
    """
    if fields.scene is not None:
        return None
    inputs = fields.inputs
    card = inputs.card
    texts = [
        *(card.description, card.personality, card.scenario, card.examples, card.depth_prompt),
        *(card.system_prompt, card.post_history, inputs.persona, inputs.summary, inputs.note.text),
        *(inputs.system_prompt, inputs.post_history, inputs.line or ""),
    ]
    recalled = sum(len(memory.recalled.text) for memory in material.memories)
    lines = _LINE_SIZE * len(material.lines.ids)
    return lines + (expanded_size(texts) + recalled) // _COUNTED_ONCE


def _ignored(macros: MacroBudget) -> list[str]:
    """What to say of macros that mean nothing here."""
    names = ", ".join(sorted(macros.ignored))
    return [f"Macros that stand for nothing here: {names}."] if names else []


def _read_outlets(items: Sequence[Item], outlets: Outlets) -> tuple[list[Item], list[LeftOut]]:
    """Items without what stands in outlets that no field reads; and that."""
    unread = [
        LeftOut(
            kind=item.kind,
            title=item.title,
            tokens=0,
            reasons=[Reason("outlet_unread", name=item.title)],
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
