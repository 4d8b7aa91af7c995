"""`create_app`: the one place where the parts are put together."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from litestar import Controller, Litestar, Router
from litestar.di import Provide
from litestar.plugins.prometheus import PrometheusConfig

from backend.accounts.admin_controller import CONTROLLERS as ADMIN_CONTROLLERS
from backend.accounts.cleanup import finish_deletions
from backend.accounts.controller import CONTROLLERS as ACCOUNT_CONTROLLERS
from backend.accounts.door import Door, IdentityMiddleware, guard, provide_identity
from backend.accounts.idempotency import IdempotencyMiddleware, forget_old
from backend.accounts.names import InstanceKeys, load_instance_keys
from backend.accounts.open_keys import OpenKeys
from backend.accounts.profile import AdministrationService, ProfileService
from backend.accounts.service import AccountService
from backend.accounts.sessions import SessionService
from backend.accounts.watch import SessionWatch
from backend.characters.controller import CONTROLLERS as CHARACTER_CONTROLLERS
from backend.characters.persona_controller import CONTROLLERS as PERSONA_CONTROLLERS
from backend.characters.personas import PersonaService
from backend.characters.service import CharacterService
from backend.characters.uploads import MAX_UPLOAD_BYTES
from backend.chats.controller import CONTROLLERS as CHAT_CONTROLLERS
from backend.chats.messages import MessageService
from backend.chats.recollection import MessageSource
from backend.chats.service import ChatService
from backend.chronicles.controller import CONTROLLERS as CHRONICLE_CONTROLLERS
from backend.chronicles.event_controller import CONTROLLERS as EVENT_CONTROLLERS
from backend.chronicles.event_service import EventService
from backend.chronicles.joining import ChatChronicles
from backend.chronicles.recollection import ChronicleSource
from backend.chronicles.service import ChronicleService
from backend.chronicles.transfer import ChronicleTransfer
from backend.chronicles.transfer_controller import (
    CONTROLLERS as CHRONICLE_TRANSFER_CONTROLLERS,
)
from backend.database.base import now
from backend.database.engine import Database
from backend.enrichment.controller import CONTROLLERS as ENRICHMENT_CONTROLLERS
from backend.enrichment.house import open_enrichment
from backend.enrichment.outbox import EnrichmentOutbox
from backend.enrichment.service import EnrichmentService
from backend.enrichment.summary.controller import CONTROLLERS as SUMMARY_CONTROLLERS
from backend.enrichment.summary.service import SummaryService
from backend.enrichment.summary.stored import copy_summaries, drop_summaries
from backend.generation.registry import (
    DemoConfig,
    GeminiConfig,
    ModelRegistry,
    OpenAICompatibleConfig,
)
from backend.generation.tokens import best_tokenizer, get_tokenizer
from backend.health import HealthController
from backend.http import EXCEPTION_HANDLERS
from backend.jobs.controller import CONTROLLERS as JOB_CONTROLLERS
from backend.jobs.keys import JobKeys
from backend.jobs.queue import JobQueue
from backend.jobs.running import JobKind, stoppable_kinds
from backend.jobs.service import JobService
from backend.jobs.worker import Worker
from backend.logs import get_logger
from backend.lorebooks.card_books import CardBookService
from backend.lorebooks.controller import CONTROLLERS as LOREBOOK_CONTROLLERS
from backend.lorebooks.entry_controller import CONTROLLERS as LORE_ENTRY_CONTROLLERS
from backend.lorebooks.entry_service import LoreEntryService
from backend.lorebooks.forking import ChatLore
from backend.lorebooks.link_controller import CONTROLLERS as LOREBOOK_LINK_CONTROLLERS
from backend.lorebooks.links import LorebookLinkService
from backend.lorebooks.recollection import LoreSource
from backend.lorebooks.service import LorebookService
from backend.memory.house import MemoryHouse, open_memory
from backend.memory.outbox import IndexOutbox
from backend.openapi import openapi_config
from backend.prompts import load_prompts
from backend.settings import Settings
from backend.turns.builder import PromptBuilder
from backend.turns.contexts import ContextService
from backend.turns.controller import CONTROLLERS as TURN_CONTROLLERS
from backend.turns.counting import CountCache
from backend.turns.lore import LoreReader
from backend.turns.models_controller import CONTROLLERS as MODEL_CONTROLLERS
from backend.turns.opening import OpeningService
from backend.turns.opening_controller import CONTROLLERS as OPENING_CONTROLLERS
from backend.turns.searching import CONTROLLERS as SEARCH_CONTROLLERS
from backend.turns.searching import SearchService
from backend.turns.service import TurnService
from backend.turns.store import TurnStore
from backend.vault.root import RootKeys
from backend.vault.slots import DEFAULT_KDF, PasswordKdf

log = get_logger(__name__)

API = "/api/v1"
SWEEP_EVERY = 15.0
LOOK_EVERY = 20
"""Rounds of the sweep between two looks at what is in the database's tables."""
JSON_BODY_BYTES = 8 * 1024 * 1024
"""Largest body of a route that says nothing else: a card with every field full."""

API_CONTROLLERS: Sequence[type[Controller]] = (
    *ACCOUNT_CONTROLLERS,
    *ADMIN_CONTROLLERS,
    *CHARACTER_CONTROLLERS,
    *PERSONA_CONTROLLERS,
    *OPENING_CONTROLLERS,
    *CHAT_CONTROLLERS,
    *LOREBOOK_CONTROLLERS,
    *LORE_ENTRY_CONTROLLERS,
    *LOREBOOK_LINK_CONTROLLERS,
    *CHRONICLE_CONTROLLERS,
    *EVENT_CONTROLLERS,
    *CHRONICLE_TRANSFER_CONTROLLERS,
    *ENRICHMENT_CONTROLLERS,
    *SUMMARY_CONTROLLERS,
    *TURN_CONTROLLERS,
    *MODEL_CONTROLLERS,
    *SEARCH_CONTROLLERS,
    *JOB_CONTROLLERS,
)
"""Everything below `API`, behind the guard."""

PLAIN_CONTROLLERS: Sequence[type[Controller]] = (HealthController,)
"""What stands beside it."""


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
    builder = PromptBuilder(database, prompts, settings, CountCache(), lore, memory.search)
    turns = TurnService(
        database,
        builder,
        registry,
        chats,
        messages,
        TurnStore(database, index, EnrichmentOutbox(queue)),
        name_of=accounts.name_of,
        max_per_user=settings.max_turns_per_user,
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


def create_app(parts: Parts) -> Litestar:
    """The application: routes, guards, and what runs beside them."""
    api = Router(API, route_handlers=API_CONTROLLERS, guards=[guard])
    return Litestar(
        route_handlers=[api, *PLAIN_CONTROLLERS],
        dependencies=_dependencies(parts),
        middleware=[
            PrometheusConfig(
                app_name="talekeeper", prefix="talekeeper", group_path=True
            ).middleware,
            IdentityMiddleware(
                parts.sessions,
                csrf_secret=parts.instance.csrf_secret,
                public_origin=parts.settings.public_origin,
                allowed_hosts=parts.settings.allowed_hosts,
            ),
            IdempotencyMiddleware(parts.database, max_body=MAX_UPLOAD_BYTES),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
        lifespan=[lambda _: _running(parts)],
        request_max_body_size=JSON_BODY_BYTES,
        logging_config=None,
        openapi_config=openapi_config(),
    )


def _dependencies(parts: Parts) -> dict[str, Provide]:
    found = {name: _constant(getattr(parts, name)) for name in Parts.__dataclass_fields__}
    return {**found, "identity": Provide(provide_identity, sync_to_thread=False)}


def _constant(value: object) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


@contextlib.asynccontextmanager
async def _running(parts: Parts) -> AsyncGenerator[None]:
    """What happens before the first request, beside all, and after the last."""
    await parts.turns.recover(all_running=parts.settings.embedded)
    if parts.settings.embedded:
        await parts.jobs.take_over(at=now())
    await finish_deletions(parts.database)
    await parts.database.optimize()
    # What was imported stays: the collector need not walk it again and again. A full prompt makes
    # thousands of objects at once, and the full collections that they set off took over 100 ms.
    gc.collect()
    gc.freeze()
    warm_up = asyncio.create_task(asyncio.to_thread(_load_tokenizers, parts.registry))
    sweeper = asyncio.create_task(_sweep(parts))
    await parts.memory.prepare()
    parts.worker.start()
    try:
        yield
    finally:
        for task in (sweeper, warm_up):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        parts.jobs.close()
        await parts.worker.aclose()
        parts.lore.close()
        await parts.memory.aclose()
        await parts.turns.close()
        await parts.watch.close()
        await parts.registry.aclose()
        await parts.database.dispose()


async def _sweep(parts: Parts) -> None:
    """Look after turns that other processes left behind, and drop what has served its time."""
    rounds = count(1)
    while True:
        await asyncio.sleep(SWEEP_EVERY)
        try:
            await parts.turns.recover(all_running=False)
            await finish_deletions(parts.database)
            await forget_old(parts.database, at=now())
            if next(rounds) % LOOK_EVERY == 0:
                await parts.database.optimize()
            await parts.jobs.clean(at=now())
            await parts.memory.prepare()
            parts.memory.blinders.sweep()
            parts.lore.sweep()
        except Exception as error:  # the next round tries again
            log.warning("server.sweep_failed", exc_info=error)


def _load_tokenizers(registry: ModelRegistry) -> None:
    """Load the vocabularies before the first turn needs them."""
    wanted = {best_tokenizer(spec.tokenizer) for spec in registry.specs()}
    for name in wanted:
        get_tokenizer(name).count("warm")
