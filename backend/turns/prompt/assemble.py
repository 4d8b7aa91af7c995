"""Assemble a prompt from its retrieved data, within the token budgets."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from msgspec import structs

from backend.accounts.auth.identity import Identity
from backend.accounts.events import UserSignedOut
from backend.characters.public_cards import PublicCards, SealedCard
from backend.context.assembly import Counter, History, LeftOut, PromptItem, assemble
from backend.context.budget import ContextOverflowError
from backend.context.macros import MacroBudget
from backend.core.cpu_pool import CpuPool
from backend.core.reasons import Reason
from backend.generation.tokens import MESSAGE_OVERHEAD, get_tokenizer
from backend.lorebooks.activation.outcome import compute_lore_reserve
from backend.prompts import PromptLibrary
from backend.turns.api.schemas import TurnRequest
from backend.turns.prompt.built_prompt import BuiltPrompt, misses_rounds
from backend.turns.prompt.context import RetrievedPrompt
from backend.turns.prompt.history import fit_history
from backend.turns.prompt.joined_sections import JoinedSections
from backend.turns.prompt.lore import (
    LoreExpander,
    LoreReader,
    Outlets,
    PlacedLore,
    find_shared_entries,
    list_triggers,
    list_unknown_state,
    make_turn_scan,
    merge_timed_state,
    place_lore,
)
from backend.turns.prompt.macros import (
    estimate_expansion,
    limit_variables,
    make_macros,
    rewrite_lore,
)
from backend.turns.prompt.retrieve import (
    collect_items,
    find_in_history,
    find_semantic_hits,
    group_memory_texts,
    list_near_misses,
    list_repetitions,
    split_by_history,
    split_by_summary,
)
from backend.turns.prompt.sections import PromptOrder, SectionBuilder

MAX_COUNTS = 20_000

MIN_CACHED_CHARACTERS = 200
"""For shorter texts, counting is as fast as the cache."""

LOST_ROUNDS = "The prompt has no room for all rounds that the campaign's summary does not cover."

_SPEAKER_TOKENS = 200
"""Tokens of the speaker's part of a joined prompt in addition to the card's texts."""

_CACHED_COUNT_FACTOR = 8
"""Most turns only expand fields, because their token counts are cached."""

_LINE_CHARACTERS = 2
"""Adding a message of the history takes as long as counting so many characters."""


class CountCache(UserSignedOut):
    """Token counts by user, tokenizer and text hash, with the least recently used dropped first.

    The hashes use a key of this process, so that texts cannot be guessed from them. Thread-safe.
    """

    def __init__(self, capacity: int = MAX_COUNTS) -> None:
        self._capacity = capacity
        self._key = os.urandom(32)
        self._counts: OrderedDict[tuple[UUID, bytes], int] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, user_id: UUID, tokenizer: str, text: str) -> int:
        if len(text) < MIN_CACHED_CHARACTERS:
            return get_tokenizer(tokenizer).count(text)
        digest = hashlib.blake2b(
            text.encode(), key=self._key, digest_size=16, person=tokenizer.encode()[:16]
        ).digest()
        key = user_id, digest
        with self._lock:
            found = self._counts.get(key)
            if found is not None:
                self._counts.move_to_end(key)
                return found
        found = get_tokenizer(tokenizer).count(text)
        with self._lock:
            self._counts[key] = found
            if len(self._counts) > self._capacity:
                self._counts.popitem(last=False)
        return found

    def user_signed_out(self, user_id: UUID) -> None:
        with self._lock:
            for key in [each for each in self._counts if each[0] == user_id]:
                del self._counts[key]


class PromptAssembler:
    """Assembles prompts from retrieved data. Uses neither the database nor the index."""

    def __init__(
        self,
        prompts: PromptLibrary,
        counts: CountCache,
        lore: LoreReader,
        cards: PublicCards,
        pool: CpuPool,
    ) -> None:
        self._cards = cards
        self._pool = pool
        self._prompts = prompts
        self._counts = counts
        self._lore = lore

    async def assemble(
        self,
        identity: Identity,
        prompt: RetrievedPrompt,
        request: TurnRequest,
        *,
        suggestions: int,
    ) -> BuiltPrompt:
        """Assemble the prompt in a thread. Raises `ContextOverflowError` and `MacroLimitError`."""
        return await self._pool.run(
            identity.user_id,
            partial(self._assemble, identity, prompt, request, suggestions),
            size=_estimate_size(prompt),
        )

    def _assemble(
        self, identity: Identity, prompt: RetrievedPrompt, request: TurnRequest, suggestions: int
    ) -> BuiltPrompt:
        loaded, window = prompt.loaded, prompt.window
        order = PromptOrder(
            loaded.preset,
            loaded.settings,
            list_triggers(request, is_quiet=bool(suggestions)),
            follows_client=loaded.client is not None,
        )
        count = partial(self._counts.count, identity.user_id, window.unit.tokenizer)
        macros, macro_budget = make_macros(loaded, window), MacroBudget()
        expander = LoreExpander(macros, loaded.variables, macro_budget)
        placed = PlacedLore(timed=loaded.lore.stored_timed)
        if loaded.lore.books:
            placed = self._scan(prompt, request, order, expander, count)
        outlets = Outlets(placed.slots.get("outlet", ()))
        make_sections: Callable[..., SectionBuilder] = SectionBuilder
        opened = self._cards.open(identity.sealer, loaded.cast.public_cards)
        if opened:
            cards = {character_id: each.card for character_id, each in opened.items()}
            make_sections = partial(JoinedSections, cards=cards)
        sections = make_sections(
            self._prompts,
            identity,
            prompt,
            order,
            placed,
            replace(macros, outlets=outlets),
            expander.variables,
            macro_budget,
        )
        items, unread = _drop_unread_outlets(
            sections.build(count=count, suggestions=suggestions), outlets
        )
        sampling = structs.replace(window.sampling, start_reply_with=sections.reply_start())
        window = replace(window, sampling=sampling)
        told = [
            *(loaded.story.campaign.told if loaded.story.campaign else ()),
            *sections.chapter_ids,
        ]
        found = collect_items(prompt, placed.ranked, told=told, count=count)
        if not order.sends_memory:
            unsent = [item.left_out(Reason("block_off")) for item in found]
            placed = replace(placed, left_out=[*placed.left_out, *unsent])
            found = []
        with _convert_overflow(window.ratio):
            reserved = self._count_reserved(
                prompt, [item for item in found if not item.rank], count
            )
            largest = PublicCards.count_largest(opened.values(), count)
            reserved += _count_speaker_room(items, loaded.cast.speaker.id, largest, count)
            fixed, history, unsaid = fit_history(prompt, items, count=count, reserved=reserved)
            first = _find_first(prompt, history)
            in_history = find_in_history(
                prompt.memories,
                first,
                chat_id=loaded.chat.id,
                sent=frozenset(loaded.client.positions) if loaded.client else (),
            )
            retrieved, repeated = split_by_history(found, in_history)
            retrieved, summarised = split_by_summary(retrieved, prompt, fixed.items)
            assembled = assemble(
                fixed,
                history,
                count=count,
                render_omitted=partial(render_omitted, self._prompts),
                retrieved=retrieved,
                render_memory=partial(render_memory, self._prompts),
                memory_first=order.memory_first,
            )
        known = {each.source_id for each in [*items, *found]}
        known |= {each.source_id for each in placed.left_out}
        left_out = [
            *assembled.left_out,
            *unsaid,
            *unread,
            *repeated,
            *summarised,
            *(list_repetitions(prompt, in_history, count=count) if order.sends_memory else ()),
            *placed.left_out,
            *sections.off,
        ]
        variables, unkept = limit_variables(loaded.stored_variables, sections.variables)
        files = dict(sections.used.digests)
        if unsaid:
            files.pop("sections/summary", None)
        if assembled.retrieved:
            files["sections/memory"] = self._prompts["sections/memory"].digest
        return BuiltPrompt(
            loaded=loaded,
            window=window,
            memory_first=order.memory_first,
            assembled=replace(assembled, left_out=left_out),
            variables=variables,
            prompt_files=files,
            timed=placed.timed,
            near_misses=list_near_misses(prompt, first, known | set(told)),
            notes=[
                *prompt.notes,
                *([LOST_ROUNDS] if misses_rounds(loaded, assembled) else ()),
                *placed.notes,
                *(loaded.preset.describe_refused(window.spec) if loaded.preset else ()),
                *unkept,
                *_note_ignored_macros(macro_budget),
                *(loaded.scripts.notes if loaded.scripts else ()),
            ],
        )

    def _scan(
        self,
        prompt: RetrievedPrompt,
        request: TurnRequest,
        order: PromptOrder,
        expander: LoreExpander,
        count: Counter,
    ) -> PlacedLore:
        loaded = prompt.loaded
        scan = replace(
            make_turn_scan(
                loaded,
                request,
                prompt.window,
                count=count,
                expander=expander,
                is_quiet="quiet" in order.triggers,
            ),
            semantic=find_semantic_hits(prompt.memories),
            by_meaning=prompt.by_meaning,
        )
        outcome = rewrite_lore(loaded.scripts, self._lore.scan(scan), count)
        placed = place_lore(
            outcome,
            loaded.note.fields,
            note_is_due=loaded.note.is_due,
            as_written=order.lore_as_written,
            shared=find_shared_entries(loaded.lore) if loaded.cast.public_cards else None,
        )
        if not loaded.group.is_group:
            return placed
        unknown = list_unknown_state(
            loaded.lore, outcome, now=scan.message_count, viewer=loaded.viewer
        )
        return replace(
            placed,
            timed=merge_timed_state(loaded.lore, placed.timed),
            left_out=[*placed.left_out, *unknown],
        )

    def _count_reserved(
        self, prompt: RetrievedPrompt, asked: Sequence[PromptItem], count: Counter
    ) -> int:
        """Return the tokens that the history leaves to pinned events and lore."""
        if not asked:
            return 0
        around = count(render_memory(self._prompts, [structs.replace(asked[0], text="")]))
        tokens = sum(each.tokens for each in asked) + around + MESSAGE_OVERHEAD
        return min(
            tokens, compute_lore_reserve(prompt.loaded.lore.settings, prompt.window.budget.prompt)
        )


def render_omitted(prompts: PromptLibrary, count: int) -> str:
    """Render the line that replaces messages from the middle of the history."""
    return prompts["sections/omitted"].render(count=count)


def render_memory(prompts: PromptLibrary, items: Sequence[PromptItem]) -> str:
    return prompts["sections/memory"].render(**group_memory_texts(items))


def _count_speaker_room(
    items: Sequence[PromptItem], speaker_id: UUID | None, largest: int, count: Counter
) -> int:
    """Return the tokens that the history leaves, so that it begins at the same message for all.

    Without them, speakers with a longer card would have less history in a full window, and the
    cache of the model's server would be lost with each change of the speaker. `largest` is the
    number of tokens of the largest card, or 0 if cards are not joined.
    """
    if not largest:
        return 0
    own = sum(
        count(item.text)
        for item in items
        if item.source_id == speaker_id and item.kind != "public_part"
    )
    return max(0, largest + _SPEAKER_TOKENS - own)


def _find_first(prompt: RetrievedPrompt, history: History) -> int | None:
    """Return the position of the first message in the prompt."""
    if prompt.loaded.client is not None:
        return prompt.loaded.client.first
    return history.positions[0] if history.positions else None


def _estimate_size(prompt: RetrievedPrompt) -> int | None:
    """Return the work for `CpuPool.run`. None if lorebooks are scanned, which may take long."""
    if prompt.loaded.lore.books:
        return None
    loaded = prompt.loaded
    texts = [*loaded.macro_texts, loaded.summary.text if loaded.summary else "", loaded.said or ""]
    found = sum(len(memory.recalled.text) for memory in prompt.memories)
    lines = _LINE_CHARACTERS * len(prompt.lines.ids)
    lines += loaded.client.characters if loaded.client else 0
    cards = loaded.cast.public_cards.values()
    lines += sum(len(card.sealed) for card in cards if isinstance(card, SealedCard))
    if loaded.summary:  # it is compared with the memories
        lines += len(loaded.summary.text) + found
    return lines + (estimate_expansion(texts) + found) // _CACHED_COUNT_FACTOR


def _note_ignored_macros(macros: MacroBudget) -> list[str]:
    names = ", ".join(sorted(macros.ignored))
    return [f"Macros without a value: {names}."] if names else []


def _drop_unread_outlets(
    items: Sequence[PromptItem], outlets: Outlets
) -> tuple[list[PromptItem], list[LeftOut]]:
    """Split off the items of outlets that no field reads."""
    kept: list[PromptItem] = []
    unread: list[LeftOut] = []
    for item in items:
        if item.place == "outlet" and item.outlet not in outlets.read:
            reason = Reason("outlet_unread", name=item.outlet)
            unread.append(structs.replace(item, tokens=0).left_out(reason))
        else:
            kept.append(item)
    return kept, unread


@contextlib.contextmanager
def _convert_overflow(ratio: float) -> Generator[None]:
    """Convert the numbers of an overflow error to the model's tokens."""
    try:
        yield
    except ContextOverflowError as error:
        raise error.scale(ratio) from None
