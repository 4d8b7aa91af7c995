"""From what was gathered to the prompt: the part of a turn that a preview shares with it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.accounts.settings import first_set
from backend.chats.counting import CountUnit
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT
from backend.chats.repository import StoredLines
from backend.chats.settings import ChatSettings
from backend.context.assembly import Assembled, History, Item, LeftOut, assemble, plan
from backend.context.budget import Budget, eviction_point
from backend.context.errors import ContextOverflowError
from backend.context.lines import line_text
from backend.context.macros import Variables
from backend.context.record import totals_of
from backend.context.sections import Note, SectionBuilder
from backend.database.engine import Database
from backend.generation.model import ModelSpec, Prompt, PromptMessage
from backend.generation.sampling import Sampling
from backend.generation.tokens import best_tokenizer, starting_ratio
from backend.lorebooks.activation.timed import TimedState
from backend.memory.search import MemorySearch
from backend.prompts import PromptLibrary
from backend.settings import Settings
from backend.turns.counting import CountCache
from backend.turns.gather import Gathered, Gatherer
from backend.turns.inputs import InputMaker, macros_for, scene_of, spoken_line
from backend.turns.lore import (
    LoreExpander,
    LoreReader,
    LoreScene,
    Outlets,
    PlacedLore,
    place,
    scan_of,
)
from backend.turns.ratios import RatioCache
from backend.turns.remembering import (
    Remembered,
    ask_for,
    memory_texts,
    ranked,
    remembered,
)
from backend.turns.schemas import TurnRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A prompt, ready to be sent, and all that has to be stored with its reply.

    Counts are in `unit`; `ratio` makes them the model's.
    """

    gathered: Gathered
    spec: ModelSpec
    sampling: Sampling
    unit: CountUnit
    ratio: float
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
        totals = totals_of(self.assembled, self.budget)
        return {
            name: value if name == "messages" else self.real(value)
            for name, value in ((name, getattr(totals, name)) for name in totals.__struct_fields__)
        }

    def real(self, count: int) -> int:
        """A count in the model's tokens."""
        return round(count * self.ratio)


ModelChooser = Callable[[Identity, ChatSettings], tuple[ModelSpec, Sampling]]
"""What `ChatService.effective_model` does."""

Check = Callable[[AsyncSession], Awaitable[None]]


class PromptBuilder:
    """Builds the prompt of the turn that would come now."""

    def __init__(
        self,
        database: Database,
        prompts: PromptLibrary,
        settings: Settings,
        counts: CountCache,
        lore: LoreReader,
        search: MemorySearch,
    ) -> None:
        self._lore = lore
        self._search = search
        self._database = database
        self._prompts = prompts
        self._settings = settings
        self._counts = counts
        self._ratios = RatioCache()

    async def build(
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        *,
        user_name: str,
        choose_model: ModelChooser,
        check: Check | None = None,
        is_preview: bool = False,
        suggestions: int = 0,
    ) -> Built:
        """Read what the turn needs and put its prompt together; nothing is stored.

        `check` looks first, in the same view of the database, whether the turn may come at all.
        A preview need not have a line.

        Raises what `Gatherer.gather` raises, `ContextOverflowError` and `MacroLimitError`.
        """
        async with self._database.read() as session:
            if check is not None:
                await check(session)
            gatherer = Gatherer(
                session, identity, user_name=user_name, lore=self._lore, is_preview=is_preview
            )
            gathered = await gatherer.gather(chat_id, request)
            spec, sampling = choose_model(identity, gathered.settings)
            stored_unit = CountUnit.parse(gathered.chat.count_unit)
            unit = _unit(spec, gathered)
            ratio = await self._ratios.get(session, spec, unit.tokenizer)
            budget = self._budget(identity, gathered, spec, ratio)
            # Counts stored in another unit are scaled to choose the lines, and made anew for them.
            scale = starting_ratio(unit.tokenizer, counted_with=stored_unit.tokenizer)
            # What is always sent seldom leaves less than history may take: lines are read for that,
            # while memory is searched, and cut once what is always sent is known.
            widest = math.floor(budget.for_history(0) / scale)
            reach = await gatherer.reach(gathered, budget=widest)
            line = spoken_line(identity, gathered, request)
            ask = ask_for(identity, gathered, line, reach)
            async with self._search.finding(identity.sealer, ask) as finding:
                lines = await gatherer.history(
                    gathered, reach, authors=unit.names or unit != stored_unit
                )
                if unit == stored_unit:
                    history = _open(identity, lines, unit)
                else:
                    history = await asyncio.to_thread(_open, identity, lines, unit, recount=True)
                found = await finding
            memories = await self._search.recall(session, identity.sealer, found)

        def count(text: str) -> int:
            return self._counts.count(unit.tokenizer, text)

        recalled = remembered(memories, reach, count=count)
        maker = InputMaker(self._prompts, identity, gathered, unit)
        inputs = maker.inputs(request, suggestions=suggestions)
        macros = macros_for(gathered, spec, inputs, max_prompt=round(budget.prompt * ratio))
        expander = LoreExpander(macros, gathered.variables)
        placed = await self._scan(
            gathered,
            scene_of(gathered, request, line, is_quiet=bool(suggestions)),
            recalled,
            budget=budget,
            count=count,
            expander=expander,
        )
        outlets = Outlets(placed.slots.outlets)
        sections = SectionBuilder(
            self._prompts,
            replace(inputs, lore=placed.slots),
            replace(macros, outlets=outlets),
            expander.variables,
        )
        items = sections.build()
        unread = [
            item for item in items if item.place == "outlet" and item.title not in outlets.read
        ]
        items = [item for item in items if item not in unread]
        with _in_real_tokens(ratio):
            fixed = plan(items, budget=budget, count=count)
        path_tokens = gathered.target.leaf.path_tokens if gathered.target.leaf else 0
        fits = math.floor(fixed.history_budget / scale)
        if fits < widest:
            history = _behind(history, lines, path_tokens, eviction_point(path_tokens, fits))
        with _in_real_tokens(ratio):
            assembled = assemble(
                fixed,
                history,
                count=count,
                render_omitted=self.render_omitted,
                retrieved=ranked(placed, recalled, count=count),
                render_memory=self.render_memory,
                memory_first=gathered.settings.memory_placement == "before_history",
            )
        left_out = [*assembled.left_out, *recalled.left_out, *placed.left_out]
        left_out += [_unread(item) for item in unread]
        if placed.not_found:
            left_out.append(_not_found(placed.not_found))
        files = dict(sections.used)
        if assembled.retrieved:
            files["sections/memory"] = self._prompts["sections/memory"].digest
        return Built(
            gathered=gathered,
            spec=spec,
            sampling=sampling,
            unit=unit,
            ratio=ratio,
            budget=budget,
            assembled=replace(assembled, left_out=left_out),
            variables=sections.variables,
            prompt_files=files,
            path_tokens=path_tokens,
            estimated=unit != stored_unit,
            timed=placed.timed,
            notes=[*found.notes, *placed.notes],
        )

    async def _scan(
        self,
        gathered: Gathered,
        scene: LoreScene,
        recalled: Remembered,
        *,
        budget: Budget,
        count: Callable[[str], int],
        expander: LoreExpander,
    ) -> PlacedLore:
        """Which lore comes in, and where it stands."""
        if not gathered.lore.books:
            return PlacedLore(timed=gathered.lore.timed)
        scan = scan_of(
            gathered.lore,
            scene,
            semantic=recalled.lore,
            context_tokens=budget.prompt,
            count=count,
            expander=expander,
        )
        note = gathered.settings.authors_note
        outcome = self._lore.scan(scan)
        return place(outcome, Note(text=note.text, depth=note.depth, role=note.role))

    def render_omitted(self, count: int) -> str:
        """The line that stands for messages taken out of the middle."""
        return self._prompts["sections/omitted"].render(count=count)

    def render_memory(self, items: Sequence[Item]) -> str:
        """The section of what was retrieved."""
        return self._prompts["sections/memory"].render(**memory_texts(items))

    def _budget(
        self, identity: Identity, gathered: Gathered, spec: ModelSpec, ratio: float
    ) -> Budget:
        """The budgets in counted tokens: the chat's, else the account's, else the server's."""
        chain = (gathered.settings.budgets, identity.settings.budgets)
        settings = self._settings
        total = min(first_set(chain, "total", settings.budget_total), spec.context_window)
        reserve = min(
            first_set(chain, "reply_reserve", settings.budget_reply_reserve), spec.max_output_tokens
        )
        return Budget(
            total=math.floor(total / ratio),
            history=math.floor(first_set(chain, "history", settings.budget_history) / ratio),
            retrieval=math.floor(first_set(chain, "retrieval", settings.budget_retrieval) / ratio),
            reply_reserve=math.ceil(reserve / ratio),
            min_tail_messages=first_set(
                chain, "min_tail_messages", settings.budget_min_tail_messages
            ),
        )


@contextlib.contextmanager
def _in_real_tokens(ratio: float) -> Generator[None]:
    """Let an overflow speak of the model's tokens, as everything that people read does."""
    try:
        yield
    except ContextOverflowError as error:
        raise error.scaled(ratio) from None


def _unit(spec: ModelSpec, gathered: Gathered) -> CountUnit:
    names = gathered.settings.names
    return CountUnit(
        best_tokenizer(spec.tokenizer),
        names=gathered.member_count > 1 if names is None else names,
    )


def _open(
    identity: Identity, lines: StoredLines, unit: CountUnit, *, recount: bool = False
) -> History:
    """The lines unsealed, as they are sent."""
    texts = identity.sealer.open_many(
        MESSAGE_CONTENT, zip(lines.ids, lines.sealed_contents, strict=True)
    )
    tokens = list(lines.tokens)
    if unit.names or recount:
        authors = identity.sealer.open_many(
            MESSAGE_AUTHOR, zip(lines.ids, lines.sealed_authors, strict=True)
        )
        spoken = list(zip(authors, texts, strict=True))
        if recount:
            tokens = unit.count_many(spoken)
        texts = [line_text(author, text, names=unit.names) for author, text in spoken]
    return History(list(map(PromptMessage, lines.roles, texts)), tokens, list(lines.positions))


def _behind(history: History, lines: StoredLines, path_tokens: int, from_sum: int) -> History:
    """The lines of a history that stand wholly behind `from_sum` tokens from the root."""
    start = path_tokens - sum(lines.tokens)
    kept = 0
    for tokens in lines.tokens:
        if start >= from_sum:
            break
        start += tokens
        kept += 1
    return History(history.messages[kept:], history.tokens[kept:], history.positions[kept:])


def _unread(item: Item) -> LeftOut:
    return LeftOut(
        kind=item.kind,
        title=item.title,
        tokens=0,
        reason=f'no field reads the outlet "{item.title}"',
        source_id=item.source_id,
    )


def _not_found(count: int) -> LeftOut:
    return LeftOut(kind="lore", title=f"{count:,} entries", tokens=0, reason="no key was said")
