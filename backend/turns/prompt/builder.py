"""Building the prompt of a turn: load, retrieve, assemble. A preview shares all of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.settings import (
    BudgetSettings,
    check_budgets,
    effective_budgets,
    first_set,
)
from backend.accounts.service import AccountService
from backend.campaigns.errors import StaleCampaignError
from backend.campaigns.scenes.consequences import find_consequences
from backend.campaigns.state.index_source import CampaignSource
from backend.campaigns.state.situations import SituationService
from backend.campaigns.state.story_clock import StoryClock
from backend.chats.errors import EmptyMessageError
from backend.chats.messages import MessageService
from backend.chats.model_choice import effective_model
from backend.chats.models import Message
from backend.chats.schemas import ChatSettings
from backend.chats.token_counting import CountUnit
from backend.context.budget import Budget
from backend.context.macros import MacroBudget, MacroLimitError
from backend.core.cpu_pool import SEALED_FACTOR, CpuPool
from backend.database.engine import Database
from backend.enrichment.llm_selection import choose_model, safe_sampling
from backend.enrichment.outbox import SUMMARY_WAIT, EnrichmentOutbox
from backend.generation.model import ModelSpec
from backend.generation.tokens import best_tokenizer
from backend.llm.server_slots import ModelBusyError, ModelSlots
from backend.llm.slot_rules import Rank, Work
from backend.llm.token_ratios import RatioCache
from backend.llm.user_models import UserModels
from backend.lorebooks.activation.outcome import lore_reserve
from backend.memory.index.protocol import Kind
from backend.memory.search.request import Memory
from backend.memory.search.search import MemorySearch, Searching, near_misses
from backend.prompts import PromptLibrary
from backend.regex.scripts import ScriptEngine
from backend.settings import Settings
from backend.turns.api.schemas import ContextRequest, TurnRequest
from backend.turns.errors import ChatChangedError
from backend.turns.prompt.assemble import CountCache, PromptAssembler
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.prompt.context import Constraint, LoadedChat, PromptContext, PromptWindow
from backend.turns.prompt.history import HistoryCache, load_last_thoughts, open_history
from backend.turns.prompt.load import ChatLoader, find_history_begin
from backend.turns.prompt.lore import LoreReader
from backend.turns.prompt.macros import expand_line, load_scripts, rewrite_line
from backend.turns.prompt.retrieve import Rephraser, make_request

FIXED_RESERVE_TOKENS = 16_384
"""Tokens that what is always sent hardly ever exceeds; half of a window that is smaller."""

QUICK_CHARACTERS, QUICK_MACROS = 20_000, 100
"""Limits of the macros of a line that are expanded on the event loop: 1 or 2 ms."""

SCANNED_KINDS: tuple[Kind, ...] = ("lore",)
"""Of these the scan of the lorebooks has the texts at hand, and knows which of them count."""

Check = Callable[[AsyncSession], Awaitable[None]]


class PromptBuilder:
    """Builds the prompt of the turn that would come now."""

    def __init__(  # noqa: PLR0913  # the application hands it its parts
        self,
        database: Database,
        prompts: PromptLibrary,
        settings: Settings,
        counts: CountCache,
        lore: LoreReader,
        search: MemorySearch,
        scripts: ScriptEngine,
        pool: CpuPool,
        *,
        slots: ModelSlots,
        rephraser: Rephraser,
        histories: HistoryCache,
        situations: SituationService,
        clock: StoryClock,
        enrichment: EnrichmentOutbox,
        user_models: UserModels,
        messages: MessageService,
        accounts: AccountService,
    ) -> None:
        self._slots = slots
        self._messages = messages
        self._user_models = user_models
        self._accounts = accounts
        self._pool = pool
        self._scripts = scripts
        self._lore = lore
        self._histories = histories
        self._situations = situations
        self._clock = clock
        self._enrichment = enrichment
        self._search = search
        self._rephraser = rephraser
        self._database = database
        self._settings = settings
        self._ratios = RatioCache()
        self._assembler = PromptAssembler(prompts, counts, lore, pool)

    async def build(
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        *,
        check: Check | None = None,
        tried: ContextRequest | None = None,
        suggestions: int = 0,
        constraint: Constraint | None = None,
    ) -> BuiltPrompt:
        """Read what the turn needs and put its prompt together; nothing is stored.

        `check` looks first, in the same view of the database, whether the turn may come at all.
        `tried` makes it a preview, which need not have a line, with budgets that stand before what
        the settings say, and its preset in place of the chosen one. Otherwise, where a campaign's
        history would lose rounds that its summary does not tell, the summary is made first.
        `constraint` limits it further after a refusal.

        Raises what `ChatLoader.load` raises, `EmptyMessageError`, `MessageTooLongError`,
        `ContextOverflowError` and `MacroLimitError`, and `ValidationError` where the budgets tried
        leave nothing for a prompt.
        """
        if request.text is not None:
            self._messages.check_text(request.text)

        rank = Rank.ASKED if suggestions else Rank.TURN

        async def attempt() -> BuiltPrompt:
            async with self._search.searching(identity.sealer) as search:
                context = await self._load(
                    identity,
                    chat_id,
                    request,
                    search,
                    check=check,
                    tried=tried,
                    is_quiet=bool(suggestions),
                    constraint=constraint,
                )
                await self._retrieve(
                    identity, context, search, rank=rank if tried is None else None
                )
            return await self._assembler.assemble(
                identity, context, request, suggestions=suggestions
            )

        built = await self._fresh(identity, attempt)
        if built.loses_rounds and tried is None and await self._summarise(identity, built, rank):
            built = await self._fresh(identity, attempt)
        return built

    async def rebuild(
        self, identity: Identity, request: TurnRequest, built: BuiltPrompt, constraint: Constraint
    ) -> BuiltPrompt:
        """Build the prompt of a turn again after its line was stored, as its model takes it now.

        The chat is as it was loaded for `built`: the same line, cast, lore and variables. No model
        is asked, because the turn may hold the only slot of its server.

        Raises `ChatChangedError` if the path has left the turn, `ContextOverflowError` and
        `MacroLimitError`.
        """
        loaded = built.loaded
        if loaded.scripts is not None:
            loaded = replace(loaded, scripts=loaded.scripts.renewed())
        async with self._search.searching(identity.sealer) as search:
            async with self._database.read() as session:
                await _check_path(session, loaded)
                window = await self.window(
                    session, identity, loaded.settings, loaded=loaded, constraint=constraint
                )
                before = await _estimate_search_end(session, loaded, window)
                await search.begin(
                    make_request(identity, loaded, before=before, budget=window.budget.retrieval)
                )
                context = await self._with_history(session, identity, loaded, window)
            await self._retrieve(identity, context, search, rank=None)
        return await self._assembler.assemble(identity, context, request, suggestions=0)

    async def _fresh(
        self, identity: Identity, attempt: Callable[[], Awaitable[BuiltPrompt]]
    ) -> BuiltPrompt:
        """What `attempt` gives, begun again once where its campaign has to be folded first."""
        try:
            return await self._lore.with_books(identity, attempt)
        except StaleCampaignError as stale:
            await self._situations.fold(identity, stale.campaign_id)
            return await self._lore.with_books(identity, attempt)

    async def _summarise(self, identity: Identity, built: BuiltPrompt, rank: Rank) -> bool:
        """Have lines summarised for which the history has no room. True if that was done.

        A job does it. It uses the place at the model's server that the turn holds for it.
        """
        loaded, models, account = built.loaded, built.window.models, identity.settings
        usual = loaded.settings.model or account.model or models.default_id
        chosen = choose_model(models, self._settings, "summary", loaded.settings, account, usual)
        work = Work(use="summary", rank=rank, user_id=identity.user_id, chat_id=loaded.chat.id)
        try:
            async with self._slots.hold([models.find_limit(chosen)], work, patience=SUMMARY_WAIT):
                return await self._enrichment.summarise_now(
                    identity,
                    loaded.chat.id,
                    history_budget=built.history_budget,
                    count_unit=loaded.chat.count_unit,
                )
        except ModelBusyError:
            return False

    async def _load(
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        search: Searching,
        *,
        check: Check | None,
        tried: ContextRequest | None,
        is_quiet: bool,
        constraint: Constraint | None,
    ) -> PromptContext:
        """The chat, its budgets and its last lines, in one view of the database.

        Begins to search memory as soon as it is known for what.
        """
        async with self._database.read() as session:
            if check is not None:
                await check(session)
            loader = ChatLoader(
                session,
                identity,
                user_name=self._accounts.name_of(identity),
                lore=self._lore,
                situations=self._situations,
                is_preview=tried is not None,
                tried=tried.preset if tried else None,
            )
            loaded = await loader.load(chat_id, request)
            scripts = await load_scripts(session, identity, self._scripts, loaded)
            if scripts is not None:
                loaded = replace(loaded, scripts=scripts)
            window = await self.window(
                session,
                identity,
                loaded.settings,
                loaded=loaded,
                tried=tried.budgets if tried else None,
                is_quiet=is_quiet,
                constraint=constraint,
            )
            asked = partial(
                make_request,
                identity,
                before=await _estimate_search_end(session, loaded, window),
                budget=window.budget.retrieval,
            )
            is_rewritten = scripts is None
            if is_rewritten:
                quick = MacroBudget(characters=QUICK_CHARACTERS, macros=QUICK_MACROS)
                try:
                    loaded = expand_line(loaded, window, quick)
                except MacroLimitError:
                    is_rewritten = False
            if is_rewritten:
                self._check_line(loaded, request)
                await search.begin(asked(loaded))
            loaded = await loader.with_campaign(loaded)
            context = await self._with_history(session, identity, loaded, window)
        if not is_rewritten:
            # After the transaction, which waits for no thread.
            loaded = await self._pool.run(identity.user_id, partial(rewrite_line, loaded, window))
            self._check_line(loaded, request)
            await search.begin(asked(loaded))
            context.loaded = loaded
        return context

    def _check_line(self, loaded: LoadedChat, request: TurnRequest) -> None:
        """Raise `EmptyMessageError` or `MessageTooLongError` if the line became unusable."""
        if loaded.line is None or loaded.line == request.text:
            return
        if not loaded.line.strip():
            raise EmptyMessageError("Its macros or your regex scripts leave no text of it.")
        self._messages.check_text(loaded.line)

    async def _with_history(
        self, session: AsyncSession, identity: Identity, loaded: LoadedChat, window: PromptWindow
    ) -> PromptContext:
        """Read the lines that the history may take, still sealed, and the thoughts among them."""
        chain = loaded.settings, identity.settings
        most = first_set(chain, "reasoning_sent", default=0)
        return PromptContext(
            loaded=loaded,
            window=window,
            lines=await self._histories.read(session, loaded, window),
            thoughts=await load_last_thoughts(session, loaded, most),
        )

    async def _retrieve(
        self,
        identity: Identity,
        context: PromptContext,
        search: Searching,
        *,
        rank: Rank | None,
    ) -> None:
        """Unseal the history, and bring back what the search found.

        `rank` is that of the requests to a model; None to ask none. A preview asks none, because
        the page may ask for one with each key that is pressed.
        """
        # Counts stored in another unit chose the lines; they are made anew for them.
        recount = context.window.is_estimated
        sealed = sum(map(len, context.lines.sealed_contents))
        opened = sum(map(len, context.lines.opened))
        context.history = await self._pool.run(
            identity.user_id,
            partial(open_history, identity, context),
            size=sealed + opened if recount or context.loaded.scripts else sealed // SEALED_FACTOR,
        )
        self._histories.keep(context)
        # An embedding model far away takes its time: no connection waits for it.
        found = await search.result()
        if rank is not None:
            found = await self._rephraser.search_again(
                identity, context.loaded, context.window, found, rank
            )
        campaign = context.loaded.campaign

        async def follow(session: AsyncSession, memories: Sequence[Memory]) -> None:
            """Read the consequences of the lines among them, and their days in the story."""
            if campaign is not None:
                recalled = [each.recalled for each in memories]
                context.days = await self._clock.find_days(session, identity.sealer, recalled)
                context.consequences = await find_consequences(
                    session,
                    identity.sealer,
                    [each.source_id for each in recalled if each.kind == "message"],
                    viewpoint=context.loaded.viewpoint,
                    besides={each.source_id for each in recalled} | campaign.told,
                    kept=campaign.names,
                    marks=campaign.now.marks,
                )

        context.memories = await self._search.recall(
            self._database,
            identity.sealer,
            found,
            known=SCANNED_KINDS,
            instead=[CampaignSource(campaign.names, campaign.now.marks)] if campaign else [],
            then=follow,
        )
        context.near_misses = near_misses(found, context.memories)
        context.by_meaning = found.by_meaning
        context.notes = found.notes

    async def window(
        self,
        session: AsyncSession,
        identity: Identity,
        settings: ChatSettings,
        *,
        loaded: LoadedChat | None = None,
        tried: BudgetSettings | None = None,
        is_quiet: bool = False,
        constraint: Constraint | None = None,
    ) -> PromptWindow:
        """How prompts of a chat with these settings are counted, and what they may take.

        Of the model that replies; with `is_quiet` of the one that makes suggestions. With a
        `constraint` the window that the server has shown counts, even if the user has set a larger
        one: the request would be refused again.
        """
        models = await self._user_models.of(session, identity.user, identity.sealer)
        preset = loaded.preset if loaded else None
        spec, sampling = effective_model(
            models, identity, settings, beneath=preset.fields.sampling if preset else None
        )
        if is_quiet:
            account = identity.settings
            chosen = choose_model(models, self._settings, "suggestions", settings, account, spec.id)
            if chosen != spec.id:  # sampling goes with the model that it was chosen for
                spec = models.spec(chosen)
                sampling = safe_sampling(spec, sampling.safety)
        tokenizer = best_tokenizer(spec.tokenizer)
        has_names = loaded is not None and loaded.member_count > 1
        unit = CountUnit(tokenizer, names=has_names if settings.names is None else settings.names)
        ratio = await self._ratios.get(session, identity.user_id, spec, tokenizer)
        limits, extra = self._budget(identity, settings, spec, tried), 0
        if constraint is not None:
            ratio, extra = max(ratio, constraint.ratio), constraint.extra
            limits = limits.within(max(1, spec.usable_window - extra))
        return PromptWindow(
            models=models,
            spec=spec,
            sampling=sampling,
            unit=unit,
            stored_unit=CountUnit.parse(loaded.chat.count_unit) if loaded else unit,
            ratio=ratio,
            limits=limits,
            budget=limits.counted(ratio),
            extra=extra,
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


async def _estimate_search_end(
    session: AsyncSession, loaded: LoadedChat, window: PromptWindow
) -> int | None:
    """Return the position from which on memory need not be searched, because history has the rest.

    What is always sent seldom leaves less than history may take: lines are read for that, while
    memory is searched, and cut once what is always sent is known. Of a small window that may take a
    good part: memory is looked through from where history would begin then. What is kept all the
    same is left out later.
    """
    always = min(window.budget.prompt // 2, FIXED_RESERVE_TOKENS)
    if loaded.lore.books:
        always += lore_reserve(loaded.lore.settings, window.budget.prompt)
    budget = window.to_stored(window.budget.for_history(always))
    return await find_history_begin(session, loaded, budget=budget)


async def _check_path(session: AsyncSession, loaded: LoadedChat) -> None:
    """Raise `ChatChangedError` unless the active path still leads through the turn's place."""
    leaf = loaded.target.leaf
    if leaf is None:
        return
    query = select(Message.is_active).where(Message.id == leaf.id, Message.user_id == leaf.user_id)
    if not await session.scalar(query):
        raise ChatChangedError("The chat left the turn's branch. Send the line again.")
