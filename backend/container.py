"""What Talekeeper is made of, put together: every service, and what works on its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from backend.accounts.middleware import AuthMiddleware
from backend.accounts.names import InstanceKeys, load_instance_keys
from backend.accounts.open_keys import OpenKeys
from backend.accounts.profile import AdministrationService, ProfileService
from backend.accounts.recent_activity.log import ActivityLog
from backend.accounts.second_factor.asking import SecondFactorGate
from backend.accounts.second_factor.service import SecondFactorService
from backend.accounts.service import AccountService
from backend.accounts.sessions import SessionService
from backend.accounts.throttle import Throttle
from backend.accounts.watch import SessionWatch
from backend.characters.personas import PersonaService
from backend.characters.repository import get_persona
from backend.characters.service import CharacterService
from backend.chats.index_source import MessageSource
from backend.chats.messages import MessageService
from backend.chats.repository import count_chats
from backend.chats.service import ChatService
from backend.chronicles.event_service import EventService
from backend.chronicles.index_source import ChronicleSource
from backend.chronicles.joining import ChatChronicles
from backend.chronicles.service import ChronicleService
from backend.chronicles.transfer import ChronicleTransfer
from backend.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.enrichment.outbox import EnrichmentOutbox
from backend.enrichment.runtime import open_enrichment
from backend.enrichment.service import EnrichmentService
from backend.enrichment.summary.service import SummaryService
from backend.enrichment.summary.stored import ChatSummaries
from backend.events import Participants
from backend.generation.registry import (
    DemoConfig,
    GeminiConfig,
    ModelRegistry,
    OpenAICompatibleConfig,
)
from backend.http import RequestCaches
from backend.jobs.keys import JobKeys
from backend.jobs.queue import JobQueue
from backend.jobs.running import JobKind, stoppable_kinds
from backend.jobs.service import JobService
from backend.jobs.worker import Worker
from backend.lore_tester.service import LoreTester
from backend.lorebooks.card_books import CardBookService
from backend.lorebooks.entry_service import LoreEntryService
from backend.lorebooks.forking import ChatLore
from backend.lorebooks.index_source import LoreSource
from backend.lorebooks.links import LorebookLinkService
from backend.lorebooks.repository import count_all_entries
from backend.lorebooks.service import LorebookService
from backend.memory.outbox import IndexOutbox
from backend.memory.runtime import MemoryRuntime, open_memory
from backend.openings.service import OpeningService
from backend.prompts import load_prompts
from backend.quotas.definitions import CHATS, LOREBOOK_ENTRIES
from backend.quotas.ledgers import NightlyRecount
from backend.quotas.service import Quotas
from backend.regex.process import RegexProcess
from backend.regex.scripts import ScriptEngine
from backend.scripting.service import ScriptService
from backend.search import SearchService
from backend.settings import Settings
from backend.turns.builder import PromptBuilder
from backend.turns.contexts import ContextService
from backend.turns.counting import CountCache
from backend.turns.lore import LoreReader
from backend.turns.service import TurnService
from backend.turns.store import TurnStore
from backend.vault.root import RootKeys
from backend.vault.slots import DEFAULT_KDF, PasswordKdf


@dataclass(frozen=True, slots=True)
class Services:
    """What a running Talekeeper is made of. Handlers get these by their field's name."""

    settings: Settings
    database: Database
    cpu_pool: CpuPool
    registry: ModelRegistry
    queue: JobQueue
    index: IndexOutbox
    memory: MemoryRuntime
    searching: SearchService
    lore: LoreReader
    quotas: Quotas
    recount: NightlyRecount
    instance: InstanceKeys
    accounts: AccountService
    sessions: SessionService
    watch: SessionWatch
    door: AuthMiddleware
    activity: ActivityLog
    second_factors: SecondFactorService
    second_factor_gate: SecondFactorGate
    profile: ProfileService
    administration: AdministrationService
    characters: CharacterService
    personas: PersonaService
    lorebooks: LorebookService
    lore_entries: LoreEntryService
    lorebook_links: LorebookLinkService
    lore_tester: LoreTester
    scripts: ScriptService
    chronicles: ChronicleService
    chronicle_events: EventService
    chronicle_transfer: ChronicleTransfer
    enrichment: EnrichmentService
    summaries: SummaryService
    chats: ChatService
    messages: MessageService
    opening: OpeningService
    turns: TurnService
    contexts: ContextService
    jobs: JobService
    kinds: Mapping[str, JobKind]
    worker: Worker


async def build_services(
    settings: Settings,
    root: RootKeys,
    database: Database,
    *,
    kdf: PasswordKdf = DEFAULT_KDF,
    registry: ModelRegistry | None = None,
) -> Services:
    """Make every part, on a database whose tables are up to date."""
    instance = await load_instance_keys(database, root)
    registry = registry or build_registry(settings)
    participants = Participants(RequestCaches())
    queue, open_keys, pool = JobQueue(database, root), OpenKeys(participants), CpuPool()
    open_keys.on_arrival(queue.wake)
    sessions = SessionService(database, root, settings, open_keys)
    activity = ActivityLog(database)
    index = IndexOutbox(queue)
    accounts = AccountService(
        database,
        root,
        instance,
        settings,
        kdf=kdf,
        open_keys=open_keys,
        participants=participants,
    )
    quotas = Quotas(
        database,
        settings,
        counts={CHATS: count_chats, LOREBOOK_ENTRIES: count_all_entries},
    )
    check_chats = partial(quotas.check_added, CHATS)
    check_entries = partial(quotas.check_added, LOREBOOK_ENTRIES)
    joining = ChatChronicles(index)
    # The chronicle first: its book is copied where the copy has a chronicle of its own.
    participants.add(index, joining, ChatLore(index, check_added=check_entries), ChatSummaries())
    chats = ChatService(
        database,
        registry,
        settings,
        index,
        pool=pool,
        chronicle=joining.choose,
        participants=participants,
        check_added=check_chats,
    )
    regexes = RegexProcess()
    engine = ScriptEngine(regexes)
    scripts = ScriptService(database, engine, pool, accounts=accounts)
    messages = MessageService(
        database, settings, index, pool=pool, scripts=scripts, participants=participants
    )
    sources = (MessageSource(), LoreSource(), ChronicleSource())
    memory = await open_memory(settings, database, queue, index, sources, pool)
    lore = LoreReader(pool, regexes)
    counts = CountCache()
    participants.add(memory, lore, counts)
    prompts = load_prompts()
    behind = open_enrichment(settings, database, registry, prompts, memory, pool)
    builder = PromptBuilder(
        database,
        prompts,
        settings,
        counts,
        lore,
        memory.search,
        engine,
        pool,
        chats=chats,
        accounts=accounts,
    )
    turns = TurnService(
        database,
        builder,
        registry,
        messages,
        TurnStore(database, index, EnrichmentOutbox(queue)),
        quotas.turns,
        pool=pool,
    )
    contexts = ContextService(database, builder, turns, pool)
    recount = NightlyRecount(database, queue)
    kinds = {**memory.kinds, **behind.kinds, **recount.kinds}
    return Services(
        settings=settings,
        database=database,
        cpu_pool=pool,
        registry=registry,
        queue=queue,
        index=index,
        memory=memory,
        searching=SearchService(database, memory.search, sources),
        lore=lore,
        quotas=quotas,
        recount=recount,
        instance=instance,
        accounts=accounts,
        sessions=sessions,
        watch=SessionWatch(sessions),
        door=AuthMiddleware(sessions, settings, instance, activity),
        activity=activity,
        second_factors=SecondFactorService(database, root, open_keys),
        second_factor_gate=SecondFactorGate(
            database, settings, Throttle(database, instance), accounts, activity
        ),
        profile=ProfileService(
            database, root, settings, registry, open_keys, find_persona=get_persona
        ),
        administration=AdministrationService(database),
        characters=CharacterService(
            database,
            CardBookService(index, check_added=check_entries),
            pool=pool,
            longest_message=settings.max_message_chars,
        ),
        personas=PersonaService(database, pool),
        lorebooks=LorebookService(database, index, pool=pool, check_added=check_entries),
        lore_entries=LoreEntryService(database, index, check_added=check_entries),
        lorebook_links=LorebookLinkService(database),
        scripts=scripts,
        lore_tester=LoreTester(database, builder, lore, counts, chats, accounts, pool),
        chronicles=ChronicleService(database, index),
        chronicle_events=EventService(database, index),
        chronicle_transfer=ChronicleTransfer(database, index, pool),
        enrichment=EnrichmentService(database, queue, index, registry, settings, prompts),
        summaries=SummaryService(database, in_prompt=contexts.has_summary),
        chats=chats,
        messages=messages,
        opening=OpeningService(
            database,
            chats,
            pool=pool,
            scripts=engine,
            accounts=accounts,
            longest_message=settings.max_message_chars,
        ),
        turns=turns,
        contexts=contexts,
        jobs=JobService(queue, stoppable=stoppable_kinds(kinds)),
        kinds=kinds,
        worker=build_worker(
            settings,
            queue,
            JobKeys(database, root, open_keys),
            kinds,
            # Without a Qdrant server this process alone has the index open.
            takes_queued=settings.embedded or not settings.qdrant_url,
        ),
    )


def build_worker(
    settings: Settings,
    queue: JobQueue,
    keys: JobKeys,
    kinds: Mapping[str, JobKind],
    *,
    takes_queued: bool,
) -> Worker:
    """What works on jobs in this process.

    On SQLite that is everything. On PostgreSQL `talekeeper work` does most of it, and a server what
    waits for a key that only it has, its user being signed in.
    """
    return Worker(
        queue,
        kinds,
        keys,
        concurrency=settings.job_workers,
        takes_queued=takes_queued,
        poll=3.0 if settings.embedded else 1.0,
    )


def build_registry(settings: Settings) -> ModelRegistry:
    """The models that the settings name.

    Raises `UnknownModelError` where they name one by default that they do not offer.
    """
    gemini = openai = None
    if settings.gemini_api_key is not None:
        gemini = GeminiConfig(
            api_key=settings.gemini_api_key.get_secret_value(),
            models=settings.gemini_models,
            base_url=settings.gemini_base_url or None,
            chunk_timeout=settings.model_silence_seconds,
        )
    if settings.openai_base_url:
        openai = OpenAICompatibleConfig(
            base_url=settings.openai_base_url,
            api_key=(
                settings.openai_api_key.get_secret_value() if settings.openai_api_key else None
            ),
            models=settings.openai_models,
            context_window=settings.openai_context_window,
            max_output_tokens=settings.openai_max_output_tokens,
            chunk_timeout=settings.model_silence_seconds,
        )
    registry = ModelRegistry(
        DemoConfig(settings.demo_tokens_per_second), gemini, openai, default=settings.default_model
    )
    registry.spec(registry.default_id)
    if settings.enrichment_model:
        registry.spec(settings.enrichment_model)
    return registry
