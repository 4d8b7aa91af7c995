"""From what was read to the prompt: lore, sections, history, memories, within the budget."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from uuid import UUID

import msgspec

from backend.accounts.identity import Identity
from backend.context.assembly import Assembled, Item, LeftOut, assemble
from backend.context.errors import ContextOverflowError
from backend.context.macros import MacroBudget, MacroContext, Variables
from backend.context.sections import Note, SectionBuilder, SectionInputs
from backend.cpu_pool import CpuPool
from backend.generation.model import Prompt
from backend.generation.tokens import MESSAGE_OVERHEAD
from backend.lorebooks.activation.outcome import lore_reserve
from backend.lorebooks.activation.timed import TimedState
from backend.prompts import PromptLibrary
from backend.reasons import Reason
from backend.turns.counting import CountCache
from backend.turns.history import fit
from backend.turns.inputs import InputMaker, macros_for, scene_of
from backend.turns.load import LoadedChat
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
from backend.turns.prompt_context import PromptContext, PromptWindow
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A prompt, ready to be sent, and all that has to be stored with its reply.

    Counts are in the window's `unit`.
    """

    loaded: LoadedChat
    window: PromptWindow
    assembled: Assembled
    variables: Variables
    prompt_files: dict[str, str]
    timed: TimedState
    notes: Sequence[str]

    @property
    def prompt(self) -> Prompt:
        """What is sent."""
        return Prompt(self.assembled.messages)

    @property
    def totals(self) -> dict[str, int]:
        """How the window is used, in the model's tokens."""
        assembled, limits, real = self.assembled, self.window.limits, self.window.to_model_tokens
        prompt = real(assembled.tokens)
        return {
            "prompt": prompt,
            "fixed": real(assembled.fixed_tokens),
            "history": real(assembled.history_tokens),
            "retrieved": real(assembled.retrieved_tokens),
            "reply_reserve": limits.reply_reserve,
            "free": limits.prompt - prompt,
            "total": limits.total,
            "messages": len(assembled.messages),
        }

    @property
    def history_budget(self) -> int:
        """What history may take beside what is always sent, in tokens as they are stored."""
        window = self.window
        return math.floor(window.budget.for_history(self.assembled.fixed_tokens) / window.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    """What the fixed sections are made of, and what lorebooks are scanned against."""

    inputs: SectionInputs
    macros: MacroContext
    scene: LoreScene | None


class PromptAssembler:
    """Puts prompts together from what was loaded alone: no database, no index."""

    def __init__(
        self, prompts: PromptLibrary, counts: CountCache, lore: LoreReader, pool: CpuPool
    ) -> None:
        self._pool = pool
        self._prompts = prompts
        self._counts = counts
        self._lore = lore

    async def assemble(
        self, identity: Identity, context: PromptContext, request: TurnRequest, *, suggestions: int
    ) -> Built:
        """The prompt. Raises `ContextOverflowError` and `MacroLimitError`."""
        loaded, window = context.loaded, context.window
        inputs = InputMaker(self._prompts, identity, loaded, window.unit)
        fields = _Fields(
            inputs=inputs.inputs(request, suggestions=suggestions),
            macros=macros_for(
                loaded,
                window.spec,
                max_prompt=window.to_model_tokens(window.budget.prompt),
                max_response=window.limits.reply_reserve,
            ),
            scene=(
                scene_of(loaded, request, context.line, is_quiet=bool(suggestions))
                if loaded.lore.books
                else None
            ),
        )
        return await self._pool.run(
            identity.user_id,
            partial(self._assembled, identity.user_id, context, fields),
            size=_size(context, fields),
        )

    def _assembled(self, user_id: UUID, context: PromptContext, fields: _Fields) -> Built:
        """The prompt. CPU-bound, without the database; it looks into no row of it."""
        loaded, window = context.loaded, context.window

        def count(text: str) -> int:
            return self._counts.count(user_id, window.unit.tokenizer, text)

        recalled = remembered(
            context.memories, chat_id=loaded.chat.id, count=count, pinned=loaded.pinned
        )
        macro_budget = MacroBudget()
        expander = LoreExpander(fields.macros, loaded.variables, macro_budget)
        placed = self._scan(
            context, fields.scene, fields.inputs.note, recalled, count=count, expander=expander
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
        with _in_real_tokens(window.ratio):
            reserved = self._reserved(context, placed, recalled, count=count)
            fixed, history, unsaid = fit(context, items, count=count, reserved=reserved)
            recalled = beyond(recalled, history)
            assembled = assemble(
                fixed,
                history,
                count=count,
                render_omitted=self.render_omitted,
                retrieved=ranked(placed, recalled, count=count),
                render_memory=self.render_memory,
                memory_first=loaded.settings.memory_placement == "before_history",
            )
        left_out = [*assembled.left_out, *unsaid, *unread, *recalled.left_out, *placed.left_out]
        variables, unkept = within_limits(loaded.variables, sections.variables)
        files = dict(sections.used)
        if unsaid:
            files.pop("sections/summary", None)
        if assembled.retrieved:
            files["sections/memory"] = self._prompts["sections/memory"].digest
        return Built(
            loaded=loaded,
            window=window,
            assembled=replace(assembled, left_out=left_out),
            variables=variables,
            prompt_files=files,
            timed=placed.timed,
            notes=[
                *context.notes,
                *placed.notes,
                *unkept,
                *_ignored(macro_budget),
                *(loaded.scripts.notes if loaded.scripts else ()),
            ],
        )

    def _scan(
        self,
        context: PromptContext,
        scene: LoreScene | None,
        note: Note,
        recalled: Remembered,
        *,
        count: Callable[[str], int],
        expander: LoreExpander,
    ) -> PlacedLore:
        """Which lore comes in, and where it stands."""
        loaded, window = context.loaded, context.window
        if scene is None:
            return PlacedLore(timed=loaded.lore.timed)
        scan = scan_of(
            loaded.lore,
            scene,
            semantic=recalled.lore,
            by_meaning=context.by_meaning,
            context_tokens=window.budget.prompt,
            count=count,
            vocabulary=window.unit.tokenizer,
            expander=expander,
        )
        outcome = sent_lore(loaded.scripts, self._lore.scan(scan), count)
        return place(outcome, note, as_written=loaded.settings.lore_placement == "as_written")

    def _reserved(
        self,
        context: PromptContext,
        placed: PlacedLore,
        recalled: Remembered,
        *,
        count: Callable[[str], int],
    ) -> int:
        """Tokens that history leaves to pinned events and lore by key: at most a share."""
        needed = wanted(placed, recalled, count=count)
        if not needed:
            return 0
        around = count(self.render_memory([replace(each, text="") for each in needed[:1]]))
        tokens = sum(each.tokens for each in needed) + around + MESSAGE_OVERHEAD
        return min(tokens, lore_reserve(context.loaded.lore.settings, context.window.budget.prompt))

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


def _size(context: PromptContext, fields: _Fields) -> int | None:
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
    recalled = sum(len(memory.recalled.text) for memory in context.memories)
    lines = _LINE_SIZE * len(context.lines.ids)
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


MAX_VARIABLE_BYTES: Final = 200_000
"""What the variables of a chat may take as JSON, and what a user's may."""


def within_limits(before: Variables, after: Variables) -> tuple[Variables, list[str]]:
    """The variables after a prompt, each scope as it was where it is too large; and what to say."""
    notes: list[str] = []
    local = _within(before.local, after.local, "the chat's", notes)
    global_ = _within(before.global_, after.global_, "the user's", notes)
    return (Variables(local, global_) if notes else after), notes


def _within(
    before: Mapping[str, str], after: Mapping[str, str], whose: str, notes: list[str]
) -> Mapping[str, str]:
    if after is before:
        return after
    size = len(msgspec.json.encode(dict(after)))
    if size <= MAX_VARIABLE_BYTES:
        return after
    notes.append(
        f"{whose} variables stay as they were: they would have {size:,} bytes, "
        f"of {MAX_VARIABLE_BYTES:,} allowed"
    )
    return before
