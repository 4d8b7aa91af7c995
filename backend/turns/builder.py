"""Reading what a prompt is made of: the part of a turn that a preview shares with it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.accounts.settings import BudgetSettings, check_budgets, first_set
from backend.chats.counting import CountUnit
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT
from backend.chats.repository import StoredLines
from backend.chats.settings import ChatSettings
from backend.context.assembly import History, Item
from backend.context.budget import Budget
from backend.context.lines import line_text
from backend.database.engine import Database
from backend.generation.model import ModelSpec, PromptMessage
from backend.generation.sampling import Sampling
from backend.generation.tokens import best_tokenizer, starting_ratio
from backend.memory.index.protocol import Kind
from backend.memory.search import MemorySearch
from backend.prompts import PromptLibrary
from backend.settings import Settings
from backend.turns.composing import Built, Composer, Material
from backend.turns.counting import CountCache
from backend.turns.fitting import reading_from
from backend.turns.gather import Gathered, Gatherer, Reach
from backend.turns.inputs import spoken_line
from backend.turns.lore import LoreReader
from backend.turns.ratios import RatioCache
from backend.turns.remembering import ask_for
from backend.turns.schemas import TurnRequest

MOST_ALWAYS = 16_384
"""Tokens that what is always sent hardly ever exceeds; half of a window that is smaller."""

ModelChooser = Callable[[Identity, ChatSettings], tuple[ModelSpec, Sampling]]
"""What `ChatService.effective_model` does."""

SCANNED: tuple[Kind, ...] = ("lore",)
"""Of these the scan of the lorebooks has the texts at hand, and knows which of them count."""

Check = Callable[[AsyncSession], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """With what vocabulary prompts are counted, and what they may take.

    `ratio` makes counted tokens the model's; `budget` is in counted ones.
    """

    spec: ModelSpec
    tokenizer: str
    ratio: float
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """How the prompt of a chat is counted, and what it may take.

    `limits` is in the model's tokens, `budget` the same in counted ones.
    """

    spec: ModelSpec
    sampling: Sampling
    stored_unit: CountUnit
    unit: CountUnit
    ratio: float
    limits: Budget
    budget: Budget

    @property
    def scale(self) -> float:
        """Makes stored tokens counted ones."""
        return starting_ratio(self.unit.tokenizer, counted_with=self.stored_unit.tokenizer)


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
        self._settings = settings
        self._ratios = RatioCache()
        self._composer = Composer(prompts, counts, lore)

    async def build(
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        *,
        user_name: str,
        choose_model: ModelChooser,
        check: Check | None = None,
        tried: BudgetSettings | None = None,
        suggestions: int = 0,
    ) -> Built:
        """Read what the turn needs and put its prompt together; nothing is stored.

        `check` looks first, in the same view of the database, whether the turn may come at all.
        `tried` makes it a preview, which need not have a line, with budgets that stand before what
        the settings say.

        Raises what `Gatherer.gather` raises, `ContextOverflowError` and `MacroLimitError`, and
        `ValidationError` where the budgets tried leave nothing for a prompt.
        """
        async with self._search.searching(identity.sealer) as search:
            async with self._database.read() as session:
                if check is not None:
                    await check(session)
                gatherer = Gatherer(
                    session,
                    identity,
                    user_name=user_name,
                    lore=self._lore,
                    is_preview=tried is not None,
                )
                gathered = await gatherer.gather(chat_id, request)
                window = await self._window(session, identity, gathered, choose_model, tried)
                unit, stored_unit = window.unit, window.stored_unit
                # What is always sent seldom leaves less than history may take: lines are read for
                # that, while memory is searched, and cut once what is always sent is known.
                widest = math.floor(window.budget.for_history(0) / window.scale)
                reach = await gatherer.reach(gathered, budget=widest)
                line = spoken_line(identity, gathered, request)
                # Of a small window that may take a good part: memory is looked through from where
                # history would begin then. What is kept all the same is left out later.
                always = min(window.budget.prompt // 2, MOST_ALWAYS)
                narrow = math.floor(window.budget.for_history(always) / window.scale)
                behind = reach
                if narrow < widest:
                    behind = await gatherer.reach(gathered, budget=narrow)
                search.begin(ask_for(identity, gathered, line, behind))
                lines = await gatherer.history(
                    gathered,
                    _reading(gathered, reach, window),
                    authors=unit.names or unit != stored_unit,
                )
            if unit == stored_unit:
                history = _open(identity, lines, unit)
            else:
                # Counts stored in another unit chose the lines; they are made anew for them.
                history = await asyncio.to_thread(_open, identity, lines, unit, recount=True)
            # An embedding model far away takes its time: no connection waits for it.
            findings = await search.findings()
        memories = await self._search.recall(
            self._database, identity.sealer, findings, known=SCANNED
        )
        material = Material(
            gathered=gathered,
            spec=window.spec,
            sampling=window.sampling,
            unit=unit,
            ratio=window.ratio,
            scale=window.scale,
            limits=window.limits,
            is_estimated=unit != stored_unit,
            budget=window.budget,
            widest=widest,
            line=line,
            lines=lines,
            history=history,
            memories=memories,
            notes=findings.notes,
        )
        return await self._composer.compose(identity, material, request, suggestions=suggestions)

    async def measure(
        self,
        session: AsyncSession,
        identity: Identity,
        settings: ChatSettings,
        choose_model: ModelChooser,
    ) -> Measure:
        """How prompts of a chat with these settings are counted, and what they may take."""
        spec, _ = choose_model(identity, settings)
        tokenizer = best_tokenizer(spec.tokenizer)
        ratio = await self._ratios.get(session, spec, tokenizer)
        budget = self._budget(identity, settings, spec, None).counted(ratio)
        return Measure(spec=spec, tokenizer=tokenizer, ratio=ratio, budget=budget)

    def render_omitted(self, count: int) -> str:
        """The line that stands for messages taken out of the middle."""
        return self._composer.render_omitted(count)

    def render_memory(self, items: Sequence[Item]) -> str:
        """The section of what was retrieved."""
        return self._composer.render_memory(items)

    async def _window(
        self,
        session: AsyncSession,
        identity: Identity,
        gathered: Gathered,
        choose_model: ModelChooser,
        tried: BudgetSettings | None,
    ) -> _Window:
        spec, sampling = choose_model(identity, gathered.settings)
        unit = _unit(spec, gathered)
        ratio = await self._ratios.get(session, spec, unit.tokenizer)
        limits = self._budget(identity, gathered.settings, spec, tried)
        return _Window(
            spec=spec,
            sampling=sampling,
            stored_unit=CountUnit.parse(gathered.chat.count_unit),
            unit=unit,
            ratio=ratio,
            limits=limits,
            budget=limits.counted(ratio),
        )

    def _budget(
        self,
        identity: Identity,
        chat: ChatSettings,
        spec: ModelSpec,
        tried: BudgetSettings | None,
    ) -> Budget:
        """Budgets in the model's tokens: those tried, the chat's, the account's, the server's."""
        chain = [chat.budgets, identity.settings.budgets]
        settings = self._settings
        if tried is not None and tried != BudgetSettings():
            chain.insert(0, tried)
            check_budgets(
                chain, total=settings.budget_total, reply_reserve=settings.budget_reply_reserve
            )
        total = min(first_set(chain, "total", settings.budget_total), spec.context_window)
        reserve = min(
            first_set(chain, "reply_reserve", settings.budget_reply_reserve), spec.max_output_tokens
        )
        return Budget(
            total=total,
            history=first_set(chain, "history", settings.budget_history),
            retrieval=first_set(chain, "retrieval", settings.budget_retrieval),
            reply_reserve=reserve,
            min_tail_messages=first_set(
                chain, "min_tail_messages", settings.budget_min_tail_messages
            ),
        )


def _reading(gathered: Gathered, reach: Reach, window: _Window) -> Reach:
    """From where lines are read: further back where the history has to follow on a summary."""
    summary, leaf = gathered.summary, gathered.target.leaf
    if summary is None or leaf is None:
        return reach
    begin = reading_from(
        reach.from_sum,
        summarised=summary.path_tokens,
        path_tokens=leaf.path_tokens,
        budget=window.budget,
        scale=window.scale,
    )
    return replace(reach, from_sum=begin)


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
