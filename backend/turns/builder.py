"""Reading what a prompt is made of: the part of a turn that a preview shares with it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.accounts.settings import BudgetSettings, check_budgets, effective_budgets
from backend.chats.counting import CountUnit
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT
from backend.chats.repository import StoredLines
from backend.chats.settings import ChatSettings
from backend.context.assembly import History, Item
from backend.context.budget import Budget
from backend.context.lines import line_text
from backend.cpu_pool import SEALED_FACTOR, CpuPool
from backend.database.engine import Database
from backend.generation.model import ModelSpec, PromptMessage
from backend.generation.sampling import Sampling
from backend.generation.tokens import best_tokenizer, starting_ratio
from backend.lorebooks.activation.outcome import lore_reserve
from backend.memory.index.protocol import Kind
from backend.memory.search import MemorySearch
from backend.memory.search_request import SearchRequest
from backend.prompts import PromptLibrary
from backend.regex.scripts import ScriptEngine, Scripts
from backend.settings import Settings
from backend.turns.composing import Built, Composer, Material
from backend.turns.counting import CountCache
from backend.turns.fitting import reading_from
from backend.turns.gather import Gathered, Gatherer, Reach
from backend.turns.inputs import spoken_line
from backend.turns.lore import LoreReader
from backend.turns.ratios import RatioCache
from backend.turns.retrieval import ask_for
from backend.turns.rewriting import rewritten, scripts_of, sent_texts
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
        scripts: ScriptEngine,
        pool: CpuPool,
    ) -> None:
        self._pool = pool
        self._scripts = scripts
        self._lore = lore
        self._search = search
        self._database = database
        self._settings = settings
        self._ratios = RatioCache()
        self._composer = Composer(prompts, counts, lore, pool)

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
        return await self._lore.with_books(
            identity,
            partial(
                self._attempt,
                identity,
                chat_id,
                request,
                user_name=user_name,
                choose_model=choose_model,
                check=check,
                tried=tried,
                suggestions=suggestions,
            ),
        )

    async def _attempt(
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        *,
        user_name: str,
        choose_model: ModelChooser,
        check: Check | None,
        tried: BudgetSettings | None,
        suggestions: int,
    ) -> Built:
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
                scripts = await scripts_of(session, identity, self._scripts, gathered)
                if scripts is not None:
                    gathered = replace(gathered, scripts=scripts)
                window = await self._window(session, identity, gathered, choose_model, tried)
                unit, stored_unit = window.unit, window.stored_unit
                # What is always sent seldom leaves less than history may take: lines are read for
                # that, while memory is searched, and cut once what is always sent is known.
                widest = math.floor(window.budget.for_history(0) / window.scale)
                reach = await gatherer.reach(gathered, budget=widest)
                # Of a small window that may take a good part: memory is looked through from where
                # history would begin then. What is kept all the same is left out later.
                always = min(window.budget.prompt // 2, MOST_ALWAYS)
                if gathered.lore.books:
                    always += lore_reserve(gathered.lore.settings, window.budget.prompt)
                narrow = math.floor(window.budget.for_history(always) / window.scale)
                behind = reach
                if narrow < widest:
                    behind = await gatherer.reach(gathered, budget=narrow)
                if scripts is None:
                    search.begin(_asked(identity, gathered, behind))
                lines = await gatherer.history(
                    gathered,
                    _reading(gathered, reach, window),
                    authors=unit.names or unit != stored_unit,
                )
            if scripts is not None:
                # No transaction waits for a thread; and the search is for what they leave.
                gathered = await self._pool.run(
                    identity.user_id, partial(rewritten, identity, gathered)
                )
                search.begin(_asked(identity, gathered, behind))
            line = spoken_line(identity, gathered)
            # Counts stored in another unit chose the lines; they are made anew for them.
            recount = unit != stored_unit
            sealed = sum(map(len, lines.sealed_contents))
            history = await self._pool.run(
                identity.user_id,
                partial(
                    _open,
                    identity,
                    lines,
                    unit,
                    recount=recount,
                    scripts=gathered.scripts,
                    has_line=line is not None,
                ),
                size=sealed if recount or gathered.scripts else sealed // SEALED_FACTOR,
            )
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
            by_meaning=findings.by_meaning,
            notes=findings.notes,
            chat_id=gathered.chat.id,
            path_tokens=gathered.target.leaf.path_tokens if gathered.target.leaf else 0,
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
        ratio = await self._ratios.get(session, identity.user_id, spec, tokenizer)
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
        ratio = await self._ratios.get(session, identity.user_id, spec, unit.tokenizer)
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
        if tried is not None and tried != BudgetSettings():
            chain.insert(0, tried)
            check_budgets(chain, self._settings, before=BudgetSettings())
        budget = effective_budgets(chain, self._settings)
        reply = min(budget.reply_reserve, spec.max_output_tokens)
        return replace(budget, reply_reserve=reply).within(spec.context_window)


def _asked(identity: Identity, gathered: Gathered, behind: Reach) -> SearchRequest | None:
    """What memory is searched for: what the user says, and the last messages."""
    return ask_for(identity, gathered, spoken_line(identity, gathered), behind)


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
    identity: Identity,
    lines: StoredLines,
    unit: CountUnit,
    *,
    recount: bool,
    scripts: Scripts | None,
    has_line: bool,
) -> History:
    """The lines unsealed, as they are sent."""
    stored = identity.sealer.open_many(
        MESSAGE_CONTENT, zip(lines.ids, lines.sealed_contents, strict=True)
    )
    tokens = list(lines.tokens)
    texts = sent_texts(scripts, lines.roles, stored, has_line=has_line)
    changed = [at for at, text in enumerate(texts) if text != stored[at]]
    if unit.names or recount:
        authors = identity.sealer.open_many(
            MESSAGE_AUTHOR, zip(lines.ids, lines.sealed_authors, strict=True)
        )
        spoken = list(zip(authors, texts, strict=True))
        if recount:
            tokens = unit.count_many(spoken)
            changed = []
        texts = [line_text(author, text, names=unit.names) for author, text in spoken]
    # The names, if they are sent, stand in the texts by now.
    unnamed = replace(unit, names=False)
    for at, count in zip(
        changed, unnamed.count_many([("", texts[at]) for at in changed]), strict=True
    ):
        tokens[at] = count
    return History(list(map(PromptMessage, lines.roles, texts)), tokens, list(lines.positions))
