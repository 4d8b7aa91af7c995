"""From what was read to the prompt: lore, sections, history, memories, within the budget."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from backend.accounts.identity import Identity
from backend.audience import GM
from backend.context.assembly import Assembled, Counter, Item, LeftOut, assemble
from backend.context.budget import ContextOverflowError
from backend.context.macros import MacroBudget, Variables
from backend.context.record import Totals
from backend.cpu_pool import CpuPool
from backend.generation.model import Prompt, PromptMessage
from backend.generation.tokens import MESSAGE_OVERHEAD, get_tokenizer
from backend.lorebooks.activation.outcome import lore_reserve
from backend.lorebooks.activation.timed import TimedState
from backend.prompts import PromptLibrary
from backend.reasons import Reason
from backend.turns.counting import CountCache
from backend.turns.history import fit
from backend.turns.lore import LoreReader
from backend.turns.lore_placement import LoreExpander, Outlets, PlacedLore, place, scan_of
from backend.turns.macro_fields import expanded_size, macros_for, within_limits
from backend.turns.prompt_context import LoadedChat, PromptContext, PromptWindow
from backend.turns.retrieval import (
    by_rank,
    consequence_items,
    memory_items,
    memory_texts,
    missed_items,
    named_items,
    outside_history,
    semantic_hits,
    sized,
)
from backend.turns.rewriting import sent_lore
from backend.turns.schemas import TurnRequest
from backend.turns.sections import SectionBuilder

LOST_ROUNDS = "There was no room for all rounds that the campaign's summary does not tell yet."

_TOLD = frozenset({"summary", "chapters", "scenes", "state"})
"""Kinds of items that say what happened, in place of lines that are not sent."""


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
    near_misses: Sequence[LeftOut]
    notes: Sequence[str]

    @property
    def prompt(self) -> Prompt:
        """What is sent."""
        return Prompt(self.assembled.messages, stable=self.assembled.stable)

    @property
    def totals(self) -> Totals:
        """How the window is used, in the model's tokens."""
        assembled, limits, model = self.assembled, self.window.limits, self.window.to_model_tokens
        prompt = model(assembled.tokens)
        return Totals(
            prompt=prompt,
            fixed=model(assembled.fixed_tokens),
            history=model(assembled.history_tokens),
            retrieved=model(assembled.retrieved_tokens),
            reply_reserve=limits.reply_reserve,
            free=limits.prompt - prompt,
            total=limits.total,
            messages=len(assembled.messages),
        )

    @property
    def path_tokens(self) -> int:
        """What the whole history would have taken, in the model's tokens."""
        window = self.window
        return window.to_model_tokens(round(self.loaded.path_tokens * window.scale))

    @property
    def sent_tokens(self) -> int:
        """What took its place: the lines that were sent, and what tells the rest."""
        assembled = self.assembled
        told = [each for each in assembled.items if each.kind in _TOLD]
        told += [each for each in assembled.retrieved if each.kind != "lore"]
        tokens = assembled.history_tokens + sum(each.tokens for each in told)
        return self.window.to_model_tokens(tokens)

    def with_guidance(self, text: str) -> Built:
        """The same prompt, for a mood that has other guidance."""
        assembled, messages = self.assembled, list(self.assembled.messages)
        old = next(item for item in assembled.items if item.kind == "mood")
        tokens = get_tokenizer(self.window.unit.tokenizer).count(text) + MESSAGE_OVERHEAD
        new = replace(old, text=text, tokens=tokens)
        place = len(messages) - 1 - messages[::-1].index(PromptMessage(old.role, old.text))
        messages[place] = PromptMessage(new.role, new.text)
        assembled = replace(
            assembled,
            messages=messages,
            items=[new if item is old else item for item in assembled.items],
            fixed_tokens=assembled.fixed_tokens + tokens - old.tokens,
        )
        return replace(self, assembled=assembled)

    @property
    def loses_rounds(self) -> bool:
        """Whether lines of a campaign stand neither in the history, its summary, nor its state."""
        return _loses_rounds(self.loaded, self.assembled)

    @property
    def history_budget(self) -> int:
        """What history may take beside what is always sent, in tokens as they are stored."""
        window = self.window
        return window.to_stored(window.budget.for_history(self.assembled.fixed_tokens))


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
        return await self._pool.run(
            identity.user_id,
            partial(self._assembled, identity, context, request, suggestions),
            size=_size(context),
        )

    def _assembled(
        self, identity: Identity, context: PromptContext, request: TurnRequest, suggestions: int
    ) -> Built:
        """The prompt. CPU-bound, without the database."""
        loaded, window = context.loaded, context.window
        count = partial(self._counts.count, identity.user_id, window.unit.tokenizer)
        macros, macro_budget = macros_for(loaded, window), MacroBudget()
        expander = LoreExpander(macros, loaded.variables, macro_budget)
        placed = PlacedLore(timed=loaded.lore.timed)
        if loaded.lore.books:
            placed = self._scan(context, request, expander, count, is_quiet=bool(suggestions))
        outlets = Outlets(placed.slots.get("outlet", ()))
        sections = SectionBuilder(
            self._prompts,
            identity,
            context,
            placed,
            replace(macros, outlets=outlets),
            expander.variables,
            macro_budget,
        )
        items, unread = _read_outlets(sections.build(count=count, suggestions=suggestions), outlets)
        told = [*(loaded.campaign.told if loaded.campaign else ()), *sections.chapter_ids]
        memories = memory_items(
            context.memories,
            count=count,
            pinned=loaded.pinned,
            told=told,
        )
        named = named_items(loaded, count=count)
        followed = consequence_items(context, count=count)
        found = by_rank(
            [*named, *followed, *memories],
            [sized(item, count) for item in placed.ranked],
            context.memories,
        )
        with _in_model_tokens(window.ratio):
            reserved = self._reserved(context, [item for item in found if not item.rank], count)
            fixed, history, unsaid = fit(context, items, count=count, reserved=reserved)
            retrieved, repeated = outside_history(
                found, context.memories, history, chat_id=loaded.chat.id
            )
            assembled = assemble(
                fixed,
                history,
                count=count,
                render_omitted=partial(render_omitted, self._prompts),
                retrieved=retrieved,
                render_memory=partial(render_memory, self._prompts),
                memory_first=loaded.settings.memory_placement == "before_history",
            )
        known = {each.source_id for each in [*items, *found]}
        known |= {each.source_id for each in placed.left_out}
        left_out = [*assembled.left_out, *unsaid, *unread, *repeated, *placed.left_out]
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
            near_misses=missed_items(context, history, known | set(told)),
            notes=[
                *context.notes,
                *([LOST_ROUNDS] if _loses_rounds(loaded, assembled) else ()),
                *placed.notes,
                *unkept,
                *_ignored(macro_budget),
                *(loaded.scripts.notes if loaded.scripts else ()),
            ],
        )

    def _scan(
        self,
        context: PromptContext,
        request: TurnRequest,
        expander: LoreExpander,
        count: Counter,
        *,
        is_quiet: bool,
    ) -> PlacedLore:
        """Which lore comes in, and where it stands."""
        loaded = context.loaded
        scan = replace(
            scan_of(
                loaded,
                request,
                context.window,
                count=count,
                expander=expander,
                is_quiet=is_quiet,
            ),
            semantic=semantic_hits(context.memories),
            by_meaning=context.by_meaning,
        )
        outcome = sent_lore(loaded.scripts, self._lore.scan(scan), count)
        return place(
            outcome,
            loaded.note,
            note_is_due=loaded.note_is_due,
            as_written=loaded.settings.lore_placement == "as_written",
        )

    def _reserved(self, context: PromptContext, asked: Sequence[Item], count: Counter) -> int:
        """Tokens that history leaves to pinned events and lore by key: at most a share."""
        if not asked:
            return 0
        around = count(render_memory(self._prompts, [replace(asked[0], text="")]))
        tokens = sum(each.tokens for each in asked) + around + MESSAGE_OVERHEAD
        return min(tokens, lore_reserve(context.loaded.lore.settings, context.window.budget.prompt))


def render_omitted(prompts: PromptLibrary, count: int) -> str:
    """The line that stands for messages taken out of the middle."""
    return prompts["sections/omitted"].render(count=count)


def render_memory(prompts: PromptLibrary, items: Sequence[Item]) -> str:
    """The section of what was retrieved."""
    return prompts["sections/memory"].render(**memory_texts(items))


_COUNTED_ONCE = 8
"""Fields come back turn after turn, and their counts are kept: most turns only expand them."""

_LINE_SIZE = 2
"""Laying out a line of the history takes as long as counting so many characters."""


def _size(context: PromptContext) -> int | None:
    """How much work a prompt is, as `CpuPool.run` is told; None where lorebooks are scanned.

    Patterns that can't be trusted may take a quarter of a second together.
    """
    if context.loaded.lore.books:
        return None
    loaded = context.loaded
    texts = [*loaded.fields, loaded.summary.text if loaded.summary else "", loaded.said or ""]
    found = sum(len(memory.recalled.text) for memory in context.memories)
    lines = _LINE_SIZE * len(context.lines.ids)
    return lines + (expanded_size(texts) + found) // _COUNTED_ONCE


def _loses_rounds(loaded: LoadedChat, assembled: Assembled) -> bool:
    leaf = loaded.target.leaf
    # What a viewpoint may not know is not lost to it.
    if leaf is None or not loaded.sums_rounds or loaded.viewpoint != GM:
        return False
    kept = assembled.history.positions
    first = kept[0] if kept else leaf.position + 1
    told = loaded.summary.position + 1 if loaded.summary else 0
    return first > (max(told, loaded.unread.position) if loaded.unread else told)


def _ignored(macros: MacroBudget) -> list[str]:
    """What to say of macros that mean nothing here."""
    names = ", ".join(sorted(macros.ignored))
    return [f"Macros that stand for nothing here: {names}."] if names else []


def _read_outlets(items: Sequence[Item], outlets: Outlets) -> tuple[list[Item], list[LeftOut]]:
    """Items without what stands in outlets that no field reads; and that."""
    kept: list[Item] = []
    unread: list[LeftOut] = []
    for item in items:
        if item.place == "outlet" and item.outlet not in outlets.read:
            reason = Reason("outlet_unread", name=item.outlet)
            unread.append(replace(item, tokens=0).left_out(reason))
        else:
            kept.append(item)
    return kept, unread


@contextlib.contextmanager
def _in_model_tokens(ratio: float) -> Generator[None]:
    """Let an overflow speak of the model's tokens, as everything that people read does."""
    try:
        yield
    except ContextOverflowError as error:
        raise error.scaled(ratio) from None
