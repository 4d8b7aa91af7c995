"""Build the prompt of a turn or of a preview: load, retrieve, assemble."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from prometheus_client import Histogram
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.settings import (
    BudgetSettings,
    check_budgets,
    compute_budgets,
    find_first_set,
)
from backend.accounts.service import AccountService
from backend.campaigns.errors import StaleCampaignError
from backend.campaigns.scenes.scenes import find_consequences
from backend.campaigns.state.index_source import CampaignSource
from backend.campaigns.state.situations import SituationService
from backend.campaigns.state.story_clock import StoryClock
from backend.characters.public_cards import PublicCards
from backend.chats.errors import EmptyMessageError
from backend.chats.files import load_waiting_files
from backend.chats.messages import MessageService
from backend.chats.models import Message
from backend.chats.repository import HistoryColumns
from backend.chats.schemas import ChatSettings
from backend.chats.service import choose_chat_model
from backend.chats.token_counting import CountUnit
from backend.context.assembly import History
from backend.context.budget import Budget
from backend.context.macros import MacroBudget, MacroLimitError
from backend.core.cpu_pool import SEALED_FACTOR, CpuPool
from backend.database.engine import Database
from backend.enrichment.outbox import SUMMARY_SECONDS, EnrichmentOutbox
from backend.enrichment.reader import choose_model, safe_sampling
from backend.generation.model import ModelSpec, PromptImage
from backend.generation.sampling import SamplingField
from backend.generation.tokens import choose_tokenizer
from backend.llm.server_slots import ModelBusyError, ModelSlots
from backend.llm.slot_rules import Rank, SlotWork
from backend.llm.token_ratios import RatioCache
from backend.llm.user_models import UserModels
from backend.lorebooks.activation.outcome import compute_lore_reserve
from backend.memory.index.protocol import Kind
from backend.memory.indexing.sources import MemoryItem
from backend.memory.search.request import Memory
from backend.memory.search.search import MemorySearch, SearchSession, near_misses
from backend.prompts import PromptLibrary
from backend.regex.scripts import ScriptEngine
from backend.settings import Settings
from backend.turns.api.schemas import ContextRequest, TurnRequest
from backend.turns.errors import ChatChangedError
from backend.turns.prompt.assemble import CountCache, PromptAssembler
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.prompt.client import ClientPrompt
from backend.turns.prompt.context import (
    Constraint,
    LoadedChat,
    LoadedPrompt,
    PromptWindow,
    RetrievedPrompt,
)
from backend.turns.prompt.history import (
    HistoryCache,
    find_history_begin,
    load_last_thoughts,
    open_history,
)
from backend.turns.prompt.images import (
    LINE,
    ChosenImages,
    list_stored_images,
    list_waiting_images,
    load_images,
)
from backend.turns.prompt.load import ChatLoader
from backend.turns.prompt.lore import LoreReader
from backend.turns.prompt.macros import expand_line, load_scripts, rewrite_line
from backend.turns.prompt.retrieve import Rephraser, make_request
from backend.turns.prompt.speaker_choice import SpeakerQuestionError, TurnSpeaker
from backend.turns.prompt.speaker_model import SpeakerModel

FIXED_RESERVE_TOKENS = 16_384
"""Reserve for the fixed sections: 16,384 tokens, or half of a smaller window."""

QUICK_CHARACTERS, QUICK_MACROS = 20_000, 100
"""Limits of macros that are expanded on the event loop. They take 1 or 2 ms."""

SCANNED_KINDS: tuple[Kind, ...] = ("lore",)
"""Kinds with texts that the lorebook scan has already loaded."""

Check = Callable[[AsyncSession], Awaitable[None]]

PROMPT_SECONDS = Histogram(
    "talekeeper_prompt_seconds",
    "Time to build a prompt, also for previews",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)


class PromptBuilder:
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
        cards: PublicCards,
        slots: ModelSlots,
        rephraser: Rephraser,
        speakers: SpeakerModel,
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
        self._cards = cards
        self._histories = histories
        self._situations = situations
        self._clock = clock
        self._enrichment = enrichment
        self._search = search
        self._rephraser = rephraser
        self._speakers = speakers
        self._database = database
        self._settings = settings
        self._ratios = RatioCache()
        self._assembler = PromptAssembler(prompts, counts, lore, cards, pool)

    async def build(  # noqa: PLR0913  # the parts of turns, previews and suggestions
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        *,
        check: Check | None = None,
        tried: ContextRequest | None = None,
        suggestions: int = 0,
        constraint: Constraint | None = None,
        client: ClientPrompt | None = None,
        speaker: TurnSpeaker | None = None,
    ) -> BuiltPrompt:
        """Load the data of the turn and build its prompt. Stores nothing.

        Args:
            identity: The user.
            chat_id: The chat.
            request: The request of the turn.
            check: Runs first in the same transaction, and raises if the turn is not allowed.
            tried: Makes it a preview. Its budgets and its preset replace the stored settings.
            suggestions: The number of lines to suggest. 0 for a reply.
            constraint: Limits the prompt further after the model refused one.
            client: The prompt of a client, to which lore, memory and campaign are added.
            speaker: The choice of the turn's speaker. It is kept there.

        If the history would drop rounds that no summary covers, the summary is written first,
        except in a preview.

        Raises:
            ChainEndedError: No reply follows by itself.
            AppError: As `ChatLoader.load` does; `EmptyMessageError`, `MessageTooLongError`,
                `ContextOverflowError`, `MacroLimitError`; and `ValidationError` if the tried
                budgets leave no room for a prompt.
        """
        if request.text is not None:
            self._messages.check_text(request.text)

        rank = Rank.ASKED if suggestions else Rank.TURN

        async def attempt() -> BuiltPrompt:
            async with self._search.session(identity.sealer) as search:
                prompt = await self._load(
                    identity,
                    chat_id,
                    request,
                    search,
                    check=check,
                    tried=tried,
                    is_quiet=bool(suggestions),
                    constraint=constraint,
                    client=client,
                    speaker=speaker,
                )
                retrieved = await self._retrieve(
                    identity, prompt, search, rank=rank if tried is None else None
                )
            return await self._assembler.assemble(
                identity, retrieved, request, suggestions=suggestions
            )

        with PROMPT_SECONDS.time():
            built = await self._run_attempt(identity, attempt, speaker)
        if built.loses_rounds and tried is None and await self._summarise(identity, built, rank):
            built = await self._run_attempt(identity, attempt, speaker)
        return built

    async def rebuild(
        self, identity: Identity, request: TurnRequest, built: BuiltPrompt, constraint: Constraint
    ) -> BuiltPrompt:
        """Build the prompt of a turn again after its line was stored, with a smaller size.

        Line, cast, lore and variables stay as they were loaded for `built`. No model is asked,
        because the turn may hold the only slot of its server.

        Raises `ChatChangedError` if the active path has left the turn, `ContextOverflowError` and
        `MacroLimitError`.
        """
        loaded = built.loaded
        if loaded.scripts is not None:
            loaded = replace(loaded, scripts=loaded.scripts.renew())
        async with self._search.session(identity.sealer) as search:
            async with self._database.read() as session:
                await _check_path(session, loaded)
                window = await self.make_window(
                    session, identity, loaded.settings, loaded=loaded, constraint=constraint
                )
                before = await _estimate_search_end(session, loaded, window)
                await search.start(
                    make_request(identity, loaded, before=before, budget=window.budget.retrieval)
                )
                prompt = await self._load_history(session, identity, loaded, window)
            retrieved = await self._retrieve(identity, prompt, search, rank=None)
        return await self._assembler.assemble(identity, retrieved, request, suggestions=0)

    async def _run_attempt(
        self,
        identity: Identity,
        attempt: Callable[[], Awaitable[BuiltPrompt]],
        speaker: TurnSpeaker | None,
    ) -> BuiltPrompt:
        """Run `attempt`, again if something has to be done first without its transaction.

        The task model has to choose the speaker, the campaign to be folded, or books compiled.
        """
        try:
            return await self._lore.with_books(identity, attempt)
        except SpeakerQuestionError as asked:
            if speaker is None:
                raise ValueError("Only a turn asks the task model for its speaker.") from asked
            await self._speakers.answer(identity, asked.question, speaker)
            return await self._run_attempt(identity, attempt, speaker)
        except StaleCampaignError as stale:
            await self._situations.fold(identity, stale.campaign_id)
            return await self._lore.with_books(identity, attempt)

    async def _summarise(self, identity: Identity, built: BuiltPrompt, rank: Rank) -> bool:
        """Let a job summarise messages that do not fit. It uses the slot of the turn."""
        loaded, models, account = built.loaded, built.window.models, identity.settings
        usual = loaded.settings.model or account.model or models.default_id
        chosen = choose_model(models, self._settings, "summary", loaded.settings, account, usual)
        work = SlotWork(use="summary", rank=rank, user_id=identity.user_id, chat_id=loaded.chat.id)
        try:
            limit = models.find_limit(chosen)
            async with self._slots.hold([limit], work, patience=SUMMARY_SECONDS):
                return await self._enrichment.summarise_now(
                    identity,
                    loaded.chat.id,
                    history_budget=built.history_budget,
                    count_unit=loaded.chat.count_unit,
                )
        except ModelBusyError:
            return False

    async def _load(  # noqa: PLR0913  # the arguments of `build`
        self,
        identity: Identity,
        chat_id: UUID,
        request: TurnRequest,
        search: SearchSession,
        *,
        check: Check | None,
        tried: ContextRequest | None,
        is_quiet: bool,
        constraint: Constraint | None,
        client: ClientPrompt | None,
        speaker: TurnSpeaker | None,
    ) -> LoadedPrompt:
        """Load the chat and its last messages in one transaction, and start the memory search."""
        async with self._database.read() as session:
            if check is not None:
                await check(session)
            loader = ChatLoader(
                session,
                identity,
                user_name=self._accounts.name_of(identity),
                lore=self._lore,
                cards=self._cards,
                histories=self._histories,
                situations=self._situations,
                is_preview=tried is not None,
                tried=tried.preset if tried else None,
                client=client,
                speaker=speaker,
            )
            loaded = await loader.load(chat_id, request)
            if request.files:
                files = await load_waiting_files(session, identity.sealer, request.files)
                loaded = replace(loaded, files=files)
            scripts = await load_scripts(session, identity, self._scripts, loaded)
            if scripts is not None:
                loaded = replace(loaded, scripts=scripts)
            window = await self.make_window(
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
            # A client has applied its own scripts to its texts.
            is_rewritten = scripts is None or client is not None
            if is_rewritten:
                quick = MacroBudget(characters=QUICK_CHARACTERS, macros=QUICK_MACROS)
                try:
                    loaded = expand_line(loaded, window, quick)
                except MacroLimitError:
                    is_rewritten = False
            if is_rewritten:
                self._check_line(loaded, request)
                await search.start(asked(loaded))
            loaded = await loader.with_campaign(loaded)
            prompt = await self._load_history(session, identity, loaded, window)
        if not is_rewritten:
            # The transaction has ended, because it must not wait for a thread.
            loaded = await self._pool.run(identity.user_id, partial(rewrite_line, loaded, window))
            self._check_line(loaded, request)
            await search.start(asked(loaded))
            prompt = replace(prompt, loaded=loaded)
        return prompt

    def _check_line(self, loaded: LoadedChat, request: TurnRequest) -> None:
        """Raise `EmptyMessageError` or `MessageTooLongError` if the line has become invalid."""
        if loaded.line is None or loaded.line == request.text:
            return
        if not loaded.line.strip():
            raise EmptyMessageError("The macros or your regex scripts removed the whole text.")
        self._messages.check_text(loaded.line)

    async def _load_history(
        self, session: AsyncSession, identity: Identity, loaded: LoadedChat, window: PromptWindow
    ) -> LoadedPrompt:
        """Load the sealed messages that the history may take, with thoughts and images to send."""
        chain = loaded.settings, identity.settings
        most = find_first_set(chain, "reasoning_sent", default=0)
        if loaded.client is not None:
            most = 0  # a client has chosen its history
        read = await self._histories.read(session, loaded, window)
        lines = read.columns.select(read.known)
        return LoadedPrompt(
            loaded=loaded,
            window=window,
            lines=lines,
            read=read,
            thoughts=await load_last_thoughts(session, loaded, most),
            images=await _load_images(session, identity, loaded, window, lines),
        )

    async def _retrieve(
        self,
        identity: Identity,
        prompt: LoadedPrompt,
        search: SearchSession,
        *,
        rank: Rank | None,
    ) -> RetrievedPrompt:
        """Unseal the history and load the search results.

        `rank` is the rank of requests to a model. With None, no model is asked: a preview asks none
        because the page may request one with each key press.
        """
        loaded, window = prompt.loaded, prompt.window
        columns = prompt.read.columns
        sealed = sum(map(len, columns.sealed_contents)) + sum(map(len, columns.sealed_authors))
        opened = sum(map(len, columns.opened))
        # Messages that were counted in another unit are counted again.
        is_counted = window.is_estimated or loaded.scripts is not None
        size = sealed + opened if is_counted else sealed // SEALED_FACTOR
        if loaded.client is not None:
            size += loaded.client.characters
        size += prompt.images.size // SEALED_FACTOR
        history, messages, images = await self._pool.run(
            identity.user_id, partial(_open_prompt, identity, prompt), size=size
        )
        self._histories.keep(prompt, messages)
        # A remote embedding model may be slow, so no connection is held while waiting.
        found = await search.result()
        if rank is not None:
            found = await self._rephraser.search_again(identity, loaded, window, found, rank)
        campaign = loaded.story.campaign
        days: dict[UUID, str] = {}
        consequences: dict[UUID, Sequence[MemoryItem]] = {}

        async def load_consequences(session: AsyncSession, memories: Sequence[Memory]) -> None:
            if campaign is not None:
                recalled = [row for each in memories for row in each.rows]
                days.update(await self._clock.find_days(session, identity.sealer, recalled))
                consequences.update(
                    await find_consequences(
                        session,
                        identity.sealer,
                        [each.source_id for each in recalled if each.kind == "message"],
                        viewpoint=loaded.viewpoint,
                        besides={each.source_id for each in recalled} | campaign.told,
                        kept=campaign.names,
                        marks=campaign.now.marks,
                    )
                )

        memories = await self._search.recall(
            self._database,
            identity.sealer,
            found,
            known=SCANNED_KINDS,
            instead=[CampaignSource(campaign.names, campaign.now.marks)] if campaign else [],
            then=load_consequences,
        )
        return RetrievedPrompt(
            loaded=loaded,
            window=window,
            lines=prompt.lines,
            thoughts=prompt.thoughts,
            images=prompt.images,
            history=history,
            line_images=images,
            memories=memories,
            consequences=consequences,
            days=days,
            near_misses=near_misses(found, memories),
            by_meaning=found.by_meaning,
            notes=[*found.notes, *prompt.images.notes],
        )

    async def make_window(
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
        """Return the model, tokenizer and budgets for prompts of a chat with these settings.

        With `is_quiet`, the model is the one that writes suggestions. With a `constraint`, the
        window that the server has reported applies even if the user has set a larger one.
        """
        models = await self._user_models.of(session, identity.user, identity.sealer)
        preset = loaded.preset if loaded else None
        spec, sampling = choose_chat_model(
            models, identity, settings, beneath=preset.fields.sampling if preset else None
        )
        if is_quiet:
            account = identity.settings
            chosen = choose_model(models, self._settings, "suggestions", settings, account, spec.id)
            if chosen != spec.id:  # the sampling settings were chosen for the other model
                spec = models.spec(chosen)
                sampling = safe_sampling(spec, sampling.safety)
        tokenizer = choose_tokenizer(spec.tokenizer)
        client = loaded.client.prompt if loaded and loaded.client else None
        unsent: Sequence[SamplingField] = ()
        if client is not None:
            sampling, unsent = client.choose_sampling(spec, sampling)
        has_names = loaded is not None and loaded.cast.member_count > 1
        unit = CountUnit(tokenizer, names=has_names if settings.names is None else settings.names)
        ratio = await self._ratios.get(session, identity.user_id, spec, tokenizer)
        limits, extra = self._budget(identity, settings, spec, tried, client), 0
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
            budget=limits.convert(ratio),
            extra=extra,
            unsent=unsent,
        )

    def _budget(
        self,
        identity: Identity,
        chat: ChatSettings,
        spec: ModelSpec,
        tried: BudgetSettings | None,
        client: ClientPrompt | None,
    ) -> Budget:
        """Return the budgets in the model's tokens, from the first settings that have them."""
        chain = [chat.budgets, identity.settings.budgets]
        if tried is not None and tried != BudgetSettings():
            chain.insert(0, tried)
            check_budgets(chain, self._settings, before=BudgetSettings())
        budget = compute_budgets(chain, self._settings)
        reply = min(budget.reply_reserve, spec.max_output_tokens)
        most = spec.context_window
        if client is not None:
            # A client fills the context up to the length of the reply that it asks for.
            asked = client.sampling.max_output_tokens or reply
            reply = min(asked, spec.max_output_tokens, max(reply, budget.total // 4))
            most = min(most, client.max_context or most)
        return replace(budget, reply_reserve=reply).within(most)


async def _estimate_search_end(
    session: AsyncSession, loaded: LoadedChat, window: PromptWindow
) -> int | None:
    """Return the position where the history probably begins. Memory is searched before it.

    The fixed sections are not known yet, so their size is estimated. Results that turn out to be in
    the history are left out later.
    """
    always = min(window.budget.prompt // 2, FIXED_RESERVE_TOKENS)
    if loaded.lore.books:
        always += compute_lore_reserve(loaded.lore.settings, window.budget.prompt)
    budget = window.to_stored(window.budget.for_history(always))
    return await find_history_begin(session, loaded, budget=budget)


async def _load_images(
    session: AsyncSession,
    identity: Identity,
    loaded: LoadedChat,
    window: PromptWindow,
    lines: HistoryColumns,
) -> ChosenImages:
    """Load the images of the line and the history. A client sends its images itself."""
    line, leaf = loaded.target.line, loaded.target.leaf
    if loaded.client is not None:
        return ChosenImages()
    found = list_waiting_images(loaded.files)
    last = line or leaf
    is_end = last is not None and last.id == loaded.chat.leaf_id
    if last is not None and (loaded.has_files or not is_end):
        found += await list_stored_images(
            session,
            identity.sealer,
            loaded.chat.id,
            last=last.position,
            line=line.position if line else None,
            positions=lines.positions,
        )
    return await load_images(
        session, identity.user_id, found, spec=window.spec, budget=window.budget
    )


def _open_prompt(
    identity: Identity, prompt: LoadedPrompt
) -> tuple[History, HistoryColumns, tuple[PromptImage, ...]]:
    """Return the unsealed history, all messages that were read, and the images of the line."""
    images = prompt.images.open(identity.sealer)
    return *open_history(identity, prompt, images), images.get(LINE, ())


async def _check_path(session: AsyncSession, loaded: LoadedChat) -> None:
    leaf = loaded.target.leaf
    if leaf is None:
        return
    query = select(Message.is_active).where(Message.id == leaf.id, Message.user_id == leaf.user_id)
    if not await session.scalar(query):
        raise ChatChangedError(
            "The chat is on another branch than the turn. Send the message again."
        )
