"""The application: its routes, middleware and background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable, signature
from itertools import count

from litestar import Controller, Litestar, Router
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.plugins.prometheus import PrometheusConfig

from backend.accounts.auth.controller import (
    ApiKeyController,
    InstanceController,
    SessionController,
    SignInController,
)
from backend.accounts.auth.idempotency import IdempotencyMiddleware
from backend.accounts.auth.middleware import (
    NEEDS_KEY,
    IdentityMiddleware,
    guard,
    provide_identity,
)
from backend.accounts.auth.second_factor.controller import SecondFactorController
from backend.accounts.profile.administration import AdministrationController
from backend.accounts.profile.controller import ActivityController, MeController
from backend.backgrounds.controller import BACKGROUND_CONTROLLERS
from backend.campaigns.api.controller import CONTROLLERS as CAMPAIGN_CONTROLLERS
from backend.characters.controller import AVATAR_CONTROLLERS, CharacterController
from backend.characters.personas import PersonaController
from backend.chats.controller import ChatController, MessageController
from backend.chats.member_controller import MemberController
from backend.chronicles.controller import (
    ChronicleController,
    ChronicleTransferController,
    EventController,
)
from backend.chronicles.memory_controller import CharacterMemoryController
from backend.container import Services
from backend.core.logs import get_logger
from backend.database.base import now
from backend.database.engine import persist
from backend.enrichment.controller import (
    BriefingController,
    CompactionController,
    EnrichmentController,
    RebuildController,
    RunController,
    SceneController,
    SummaryController,
)
from backend.generation.tokens import choose_tokenizer, get_tokenizer
from backend.http.connections import DisconnectMiddleware, DrainMiddleware
from backend.http.responses import EXCEPTION_HANDLERS
from backend.jobs.controller import JobController
from backend.lan.controller import LanController
from backend.llm.controller import ModelController, TokenController
from backend.llm.providers.addresses import ProviderAddressController
from backend.llm.providers.controller import ProviderController, ProviderPresetController
from backend.llm.providers.local import LocalServerController
from backend.lorebooks.controller import (
    LINK_CONTROLLERS,
    ChatLorebookController,
    LorebookController,
    LoreEntryController,
)
from backend.memory.controller import MemoryController
from backend.memory.embedding.controller import EmbeddingModelController
from backend.memory.search.features import VOCABULARY
from backend.openai_api.controller import (
    CompletionController,
    EmbeddingController,
    ModelNameController,
)
from backend.openai_api.errors import adapt_handlers
from backend.openai_api.request_controller import (
    ClientModelController,
    ClientRequestController,
    ClientRuleController,
)
from backend.operations.health import HealthController
from backend.operations.openapi import make_openapi_config
from backend.presets.controller import CharacterPresetController, PresetController
from backend.quotas.controller import AccountUsageController, UsageController
from backend.quotas.middleware import QuotaMiddleware
from backend.regex.controller import ScriptController
from backend.transfer.archives.controller import ArchiveController
from backend.transfer.chats.controller import ChatExportController
from backend.transfer.controller import ChatImportController, ImportController
from backend.turns.api.controller import (
    LoreTesterController,
    MessageContextController,
    RunningTurnController,
    TurnController,
)
from backend.turns.api.files import ChatFileController, FileController
from backend.turns.api.new_lines import NewLineController
from backend.turns.api.openings import OpeningController
from backend.turns.api.search import SearchController
from backend.turns.play.downtime import DowntimeController
from backend.usage.models_in_use import ModelsInUseController
from backend.usage.months import MonthUsageController
from backend.usage.spending import ChatUsageController, MeasureController
from backend.web.controller import PageController

log = get_logger(__name__)

API, OPENAI_API = "/api/v1", "/v1"
SWEEP_SECONDS = 15.0
SWEEPS_PER_LONG_ROUND = 20
"""Every so many sweeps also do the chores that read whole tables."""
JSON_BODY_BYTES = 8 * 1024 * 1024
"""Default maximum of a request body. It is enough for a card with all fields full."""

API_CONTROLLERS: Sequence[type[Controller]] = (
    InstanceController,
    SignInController,
    MeController,
    SessionController,
    ApiKeyController,
    ActivityController,
    SecondFactorController,
    AdministrationController,
    ArchiveController,
    LanController,
    UsageController,
    AccountUsageController,
    CharacterController,
    PersonaController,
    *AVATAR_CONTROLLERS,
    *BACKGROUND_CONTROLLERS,
    ScriptController,
    OpeningController,
    ChatController,
    NewLineController,
    ChatExportController,
    MessageController,
    ChatFileController,
    FileController,
    MemberController,
    LorebookController,
    LoreEntryController,
    ChatLorebookController,
    *LINK_CONTROLLERS,
    LoreTesterController,
    PresetController,
    CharacterPresetController,
    *CAMPAIGN_CONTROLLERS,
    ChronicleController,
    EventController,
    CharacterMemoryController,
    ChronicleTransferController,
    EnrichmentController,
    RunController,
    RebuildController,
    SceneController,
    CompactionController,
    BriefingController,
    SummaryController,
    DowntimeController,
    MeasureController,
    ChatUsageController,
    MonthUsageController,
    TurnController,
    RunningTurnController,
    MessageContextController,
    ModelController,
    ModelsInUseController,
    ProviderPresetController,
    ProviderAddressController,
    ProviderController,
    LocalServerController,
    TokenController,
    SearchController,
    MemoryController,
    EmbeddingModelController,
    ImportController,
    ChatImportController,
    ClientModelController,
    ClientRequestController,
    ClientRuleController,
    JobController,
)
"""Controllers below `API`. The guard checks the scope of each request."""

OPENAI_CONTROLLERS: Sequence[type[Controller]] = (
    ModelNameController,
    CompletionController,
    EmbeddingController,
)
"""Controllers below `OPENAI_API`, which only API keys open."""

PLAIN_CONTROLLERS: Sequence[type[Controller]] = (PageController, HealthController)
"""Controllers without the guard and the prefix `API`."""


def create_app(services: Services) -> Litestar:
    provided = _make_dependencies(services)
    api = Router(
        API,
        route_handlers=[_add_dependencies(each, provided) for each in API_CONTROLLERS],
        guards=[guard],
    )
    openai_api = Router(
        OPENAI_API,
        route_handlers=[_add_dependencies(each, provided) for each in OPENAI_CONTROLLERS],
        guards=[guard],
        opt={NEEDS_KEY: True},
    )
    return Litestar(
        route_handlers=[
            api,
            openai_api,
            *(_add_dependencies(each, provided) for each in PLAIN_CONTROLLERS),
        ],
        middleware=[
            PrometheusConfig(
                app_name="talekeeper", prefix="talekeeper", group_path=True
            ).middleware,
            *make_middleware(services),
        ],
        exception_handlers=adapt_handlers(EXCEPTION_HANDLERS),
        lifespan=[lambda _: _run_services(services)],
        request_max_body_size=JSON_BODY_BYTES,
        logging_config=None,
        openapi_config=make_openapi_config(),
    )


def make_middleware(services: Services) -> list[ASGIMiddleware]:
    """Build the middleware of all requests, outermost first."""
    return [
        DrainMiddleware(services.drain),
        IdentityMiddleware(
            services.sessions,
            csrf_secret=services.instance.csrf_secret,
            public_origin=services.settings.public_origin,
            allowed_hosts=(*services.settings.allowed_hosts, *services.lan.names),
            plain_networks=services.settings.plain_http_networks,
            cross_origin=services.cross_origin,
        ),
        QuotaMiddleware(services.quotas, upload_above=JSON_BODY_BYTES),
        IdempotencyMiddleware(services.database),
        DisconnectMiddleware(),
    ]


def _make_dependencies(services: Services) -> dict[str, Provide]:
    found = {name: _provide_service(services, name) for name in vars(services)}
    return {**found, "identity": Provide(provide_identity, sync_to_thread=False)}


def _add_dependencies(
    controller: type[Controller], provided: Mapping[str, Provide]
) -> type[Controller]:
    """Return a subclass of the controller with the dependencies that its handlers name.

    Litestar compares the dependencies of each route with one another. With all services at every
    route, this took a tenth of the start time.
    """
    handlers = [each for each in vars(controller).values() if isinstance(each, HTTPRouteHandler)]
    names = {name for each in handlers for name in signature(each.fn).parameters}
    dependencies = {name: provided[name] for name in names & provided.keys()}
    return type(controller.__name__, (controller,), {"dependencies": dependencies})


def _provide_service(services: Services, name: str) -> Provide:
    return Provide(lambda: getattr(services, name), sync_to_thread=False)


@contextlib.asynccontextmanager
async def _run_services(services: Services) -> AsyncGenerator[None]:
    """Start the background tasks, and stop them and the services after the last request."""
    begin = partial(persist, services.database)
    await begin("processes", services.processes.start)
    await services.database.optimize()
    # Imported objects are never freed, so exclude them from garbage collection. A full prompt
    # creates thousands of objects at once, and the full collections after it took over 100 ms.
    # Collecting the half megabyte of garbage of the start would take a tenth of the start time.
    gc.freeze()
    gc.enable()
    warm_up = asyncio.create_task(_load_tokenizers(services))
    sweeper = asyncio.create_task(_sweep(services))
    emptying = asyncio.create_task(services.database.log.keep_empty())
    backing_up = asyncio.create_task(services.backups.run())
    await begin("index", services.memory.prepare)
    await begin("recount", services.recount.schedule)
    await begin("pruning", services.pruning.schedule)
    services.worker.start()
    try:
        yield
    finally:
        for task in (backing_up, sweeper, warm_up):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        services.jobs.close()
        await services.worker.aclose()
        services.lore.close()
        await services.memory.aclose()
        await services.turns.close()
        await services.plain_models.aclose()
        await services.slots.aclose()
        await services.watch.close()
        await services.user_models.aclose()
        emptying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await emptying
        await services.cpu_pool.aclose()
        await services.processes.aclose()
        await services.database.dispose()


async def _sweep(services: Services) -> None:
    """Recover turns of stopped processes, and delete expired data, until cancelled."""
    rounds = count(1)
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        for name, chore in _list_chores(
            services, is_long_round=next(rounds) % SWEEPS_PER_LONG_ROUND == 0
        ).items():
            try:
                found = chore()
                if isawaitable(found):
                    await found
            except Exception as error:  # the next round tries again
                log.warning("server.sweep_failed", chore=name, exc_info=error)


def _list_chores(services: Services, *, is_long_round: bool) -> dict[str, Callable[[], object]]:
    """Return the chores of one sweep by their names in the log. They are independent."""
    database, memory = services.database, services.memory
    chores: dict[str, Callable[[], object]] = {
        # First, because these do not wait for the database, which may not respond.
        "blinders": memory.blinders.sweep,
        "lore": services.lore.sweep,
        "histories": services.histories.sweep,
        "public_cards": services.public_cards.sweep,
        "client_paths": services.client_paths.sweep,
        "model_names": services.model_names.sweep,
        "user_models": services.user_models.sweep,
        "turns": services.turns.recover,
        "sessions": services.sessions.drop_ended_keys,
        "ledger": services.ledger_folder.fold,
        "jobs": partial(services.jobs.clean, at=now()),
        "index_model": memory.follow_model,
        "index": memory.prepare,
        "lan": services.lan.refresh,
    }
    if is_long_round:
        chores |= {
            "optimize": database.optimize,
            "uploads": services.imports.sweep,
            "deletions": services.deletions.schedule,
            "pruning": services.pruning.schedule,
        }
    return chores


async def _load_tokenizers(services: Services) -> None:
    """Load the vocabularies (50 MB) after the first sign-in, before a turn needs them."""
    await services.has_users.wait()
    used = {choose_tokenizer(spec.tokenizer) for spec in services.registry.specs()}
    for name in {VOCABULARY, *used}:
        await asyncio.to_thread(get_tokenizer, name)
