"""What Talekeeper is made of, put together: every service, and what works on its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backend.accounts.door import Door
from backend.accounts.names import InstanceKeys, load_instance_keys
from backend.accounts.open_keys import OpenKeys
from backend.accounts.profile import AdministrationService, ProfileService
from backend.accounts.service import AccountService
from backend.accounts.sessions import SessionService
from backend.accounts.watch import SessionWatch
from backend.characters.personas import PersonaService
from backend.characters.service import CharacterService
from backend.chats.messages import MessageService
from backend.chats.recollection import MessageSource
from backend.chats.service import ChatService
from backend.chronicles.event_service import EventService
from backend.chronicles.joining import ChatChronicles
from backend.chronicles.recollection import ChronicleSource
from backend.chronicles.service import ChronicleService
from backend.chronicles.transfer import ChronicleTransfer
from backend.database.engine import Database
from backend.enrichment.house import open_enrichment
from backend.enrichment.outbox import EnrichmentOutbox
from backend.enrichment.service import EnrichmentService
from backend.enrichment.summary.service import SummaryService
from backend.enrichment.summary.stored import copy_summaries, drop_summaries
from backend.generation.registry import (
    DemoConfig,
    GeminiConfig,
    ModelRegistry,
    OpenAICompatibleConfig,
)
from backend.jobs.keys import JobKeys
from backend.jobs.queue import JobQueue
from backend.jobs.running import JobKind, stoppable_kinds
from backend.jobs.service import JobService
from backend.jobs.worker import Worker
from backend.lorebooks.card_books import CardBookService
from backend.lorebooks.entry_service import LoreEntryService
from backend.lorebooks.forking import ChatLore
from backend.lorebooks.links import LorebookLinkService
from backend.lorebooks.recollection import LoreSource
from backend.lorebooks.service import LorebookService
from backend.memory.house import MemoryHouse, open_memory
from backend.memory.outbox import IndexOutbox
from backend.prompts import load_prompts
from backend.settings import Settings
from backend.turns.builder import PromptBuilder
from backend.turns.contexts import ContextService
from backend.turns.counting import CountCache
from backend.turns.gate import Gate
from backend.turns.lore import LoreReader
from backend.turns.lore_tester import LoreTester
from backend.turns.opening import OpeningService
from backend.turns.searching import SearchService
from backend.turns.service import TurnService
from backend.turns.store import TurnStore
from backend.vault.root import RootKeys
from backend.vault.slots import DEFAULT_KDF, PasswordKdf


@dataclass(frozen=True, slots=True)
class Parts:
    """What a running Talekeeper is made of. Handlers get these by their field's name."""

    settings: Settings
    database: Database
    registry: ModelRegistry
    queue: JobQueue
    index: IndexOutbox
    memory: MemoryHouse
    searching: SearchService
    lore: LoreReader
    gate: Gate
    instance: InstanceKeys
    accounts: AccountService
    sessions: SessionService
    watch: SessionWatch
    door: Door
    profile: ProfileService
    administration: AdministrationService
    characters: CharacterService
    personas: PersonaService
    lorebooks: LorebookService
    lore_entries: LoreEntryService
    lorebook_links: LorebookLinkService
    lore_tester: LoreTester
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


async def build_parts(
    settings: Settings,
    root: RootKeys,
    database: Database,
    *,
    kdf: PasswordKdf = DEFAULT_KDF,
    registry: ModelRegistry | None = None,
) -> Parts:
    """Make every part, on a database whose tables are up to date."""
    instance = await load_instance_keys(database, root)
    registry = registry or build_registry(settings)
    queue, open_keys = JobQueue(database, root), OpenKeys()
    open_keys.on_arrival(queue.wake)
    sessions = SessionService(database, settings, open_keys)
    index = IndexOutbox(queue)
    accounts = AccountService(
        database,
        root,
        instance,
        settings,
        kdf=kdf,
        open_keys=open_keys,
        farewell=index.forget_owner,
    )
    joining, lore_of_chats = ChatChronicles(index), ChatLore(index)
    chats = ChatService(
        database,
        registry,
        settings,
        index,
        chronicle=joining.choose,
        before_delete=(joining.leave, lore_of_chats.leave),
        # The chronicle first: its book is copied where the copy has a chronicle of its own.
        copy_along=(joining.copy, lore_of_chats.copy, copy_summaries),
    )
    messages = MessageService(database, settings, index, on_shown=[drop_summaries])
    sources = (MessageSource(), LoreSource(), ChronicleSource())
    memory = await open_memory(settings, database, queue, index, sources)
    lore = LoreReader()
    open_keys.on_departure(memory.blinders.forget)
    open_keys.on_departure(lore.forget)
    prompts = load_prompts()
    behind = open_enrichment(settings, database, registry, prompts, memory)
    counts, gate = CountCache(), Gate(settings.max_turns_per_user)
    builder = PromptBuilder(database, prompts, settings, counts, lore, memory.search)
    turns = TurnService(
        database,
        builder,
        registry,
        chats,
        messages,
        TurnStore(database, index, EnrichmentOutbox(queue)),
        gate,
        name_of=accounts.name_of,
    )
    contexts = ContextService(database, builder, turns)
    kinds = {**memory.kinds, **behind.kinds}
    return Parts(
        settings=settings,
        database=database,
        registry=registry,
        queue=queue,
        index=index,
        memory=memory,
        searching=SearchService(database, memory.search, sources),
        lore=lore,
        gate=gate,
        instance=instance,
        accounts=accounts,
        sessions=sessions,
        watch=SessionWatch(sessions),
        door=Door(sessions, settings, instance),
        profile=ProfileService(database, root, settings, registry),
        administration=AdministrationService(database),
        characters=CharacterService(database, CardBookService(index)),
        personas=PersonaService(database),
        lorebooks=LorebookService(database, index),
        lore_entries=LoreEntryService(database, index),
        lorebook_links=LorebookLinkService(database),
        lore_tester=LoreTester(database, builder, lore, counts, chats, accounts, gate),
        chronicles=ChronicleService(database, index),
        chronicle_events=EventService(database, index),
        chronicle_transfer=ChronicleTransfer(database, index),
        enrichment=EnrichmentService(database, queue, index, registry, settings, prompts),
        summaries=SummaryService(database, in_prompt=contexts.has_summary),
        chats=chats,
        messages=messages,
        opening=OpeningService(database, chats, name_of=accounts.name_of),
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
