"""The services of a running Talekeeper, connected in one place."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

from backend.accounts.auth.middleware import SessionOpener
from backend.accounts.auth.names import InstanceKeys, load_instance_keys
from backend.accounts.auth.second_factor.gate import SecondFactorGate
from backend.accounts.auth.second_factor.service import SecondFactorService
from backend.accounts.auth.sessions import SessionService, SessionWatch
from backend.accounts.auth.throttle import Throttle
from backend.accounts.keys.open_keys import OpenKeys
from backend.accounts.profile.activity import ActivityLog
from backend.accounts.profile.administration import AdministrationService
from backend.accounts.profile.service import ProfileService
from backend.accounts.service import AccountService
from backend.backgrounds.service import BackgroundService
from backend.campaigns.api.service import CampaignService
from backend.campaigns.chat_events import CampaignSessions, ItemAudiences, WorldCopies
from backend.campaigns.files.transfer import CampaignTransfer
from backend.campaigns.ledger.change_log import ChangeLogService
from backend.campaigns.ledger.item_service import ItemService
from backend.campaigns.proposals.store import ProposalService
from backend.campaigns.state.index_source import CampaignSource
from backend.campaigns.state.listeners import find_chronicle_witnesses, find_memory_witness
from backend.campaigns.state.situations import SituationService
from backend.campaigns.state.snapshot import SnapshotCache
from backend.campaigns.state.story_clock import StoryClock
from backend.campaigns.state.viewpoints import (
    CampaignAudiences,
    check_event_audience,
    find_player_name,
)
from backend.characters.avatars import AvatarService
from backend.characters.personas import PersonaService
from backend.characters.public_cards import PublicCards
from backend.characters.repository import find_named, find_names, get_persona
from backend.characters.service import CharacterService
from backend.chats.index_source import MessageSource
from backend.chats.languages import find_written_languages
from backend.chats.member_service import MemberService
from backend.chats.messages import MessageService
from backend.chats.repository import count_chats
from backend.chats.service import ChatService
from backend.chronicles.chat_chronicles import ChatChronicles
from backend.chronicles.event_service import EventService
from backend.chronicles.index_source import ChronicleSource
from backend.chronicles.memories import CharacterMemoryService
from backend.chronicles.service import ChronicleService
from backend.chronicles.transfer import ChronicleTransfer
from backend.core.cpu_pool import CpuPool
from backend.core.events import Participants
from backend.database.engine import Database
from backend.database.processes import Processes
from backend.enrichment.outbox import EnrichmentOutbox
from backend.enrichment.runtime import job_kinds, open_enrichment
from backend.enrichment.service import CompactionService, EnrichmentService, SceneService
from backend.enrichment.summaries.briefing import BriefingService
from backend.enrichment.summaries.service import SummaryService
from backend.enrichment.summaries.store import ChatSummaries
from backend.generation.registry import ModelRegistry, build_registry
from backend.http.connections import Drain
from backend.http.cross_origin import CrossOriginPolicy
from backend.http.responses import RequestCaches
from backend.jobs.keys import JobKeys
from backend.jobs.models import JOB_LEASES
from backend.jobs.queue import JobQueue
from backend.jobs.running import find_stoppable_kinds
from backend.jobs.service import JobService
from backend.jobs.worker import build_worker
from backend.lan.service import LocalNetwork
from backend.llm.models import SLOT_LEASES
from backend.llm.providers.addresses import ProviderAddressService
from backend.llm.providers.local import LocalServers
from backend.llm.providers.service import ProviderService
from backend.llm.providers.trials import ProviderTests
from backend.llm.server_slots import ModelSlots
from backend.llm.user_models import UserModels
from backend.lorebooks.card_books import CardBookService
from backend.lorebooks.forking import ChatLore
from backend.lorebooks.index_source import LoreSource
from backend.lorebooks.links import LorebookLinkService
from backend.lorebooks.repository import count_all_entries
from backend.lorebooks.service import LorebookService
from backend.memory.controller import MemoryStatusService
from backend.memory.embedding.controller import ModelFetches
from backend.memory.indexing.outbox import IndexOutbox
from backend.memory.runtime import MemoryRuntime, open_memory
from backend.memory.search.search import RowReader
from backend.openai_api.chat_state import ChatStates
from backend.openai_api.client_cast import CastReader
from backend.openai_api.completions import ChatCompletions
from backend.openai_api.conversation_writer import ConversationWriter
from backend.openai_api.conversations import ConversationFinder
from backend.openai_api.embeddings import PlainEmbeddings
from backend.openai_api.model_names import ModelNames
from backend.openai_api.new_characters import CharacterMaker
from backend.openai_api.new_conversations import ConversationImporter
from backend.openai_api.plain import PlainModels
from backend.openai_api.plain_replies import PlainCompletions
from backend.openai_api.requests import RequestLog
from backend.openai_api.stored_paths import PathCache
from backend.operations.backup.schedule import BackupSchedule
from backend.operations.deletions import Deletions
from backend.operations.metrics import MetricsService
from backend.operations.pruning import Pruning
from backend.presets.repository import get_preset
from backend.presets.service import PresetService
from backend.prompts import load_prompts
from backend.quotas.ledgers import LedgerFolder, NightlyRecount
from backend.quotas.limits import CHATS, LOREBOOK_ENTRIES, STORED_BYTES
from backend.quotas.service import Quotas
from backend.regex.process import RegexProcess
from backend.regex.scripts import ScriptEngine
from backend.regex.service import ScriptService
from backend.settings import Settings
from backend.transfer.archives.chat_rows import ChatTreeImporter
from backend.transfer.archives.content import AccountReader
from backend.transfer.archives.planner import ArchivePlanner
from backend.transfer.archives.service import ArchiveService
from backend.transfer.archives.settings_rows import AccountWriter
from backend.transfer.archives.single_chat import ChatArchivePlanner
from backend.transfer.chats.exporting import ChatExporter
from backend.transfer.chats.storing import ChatImporter, ImportedChats
from backend.transfer.folders.planner import SillyTavernPlanner
from backend.transfer.imports import ImportService
from backend.transfer.services import ImportServices
from backend.transfer.single_files import SingleFilePlanner
from backend.turns.api.files import FileService
from backend.turns.api.lore_tester import LoreTester
from backend.turns.api.new_lines import NewLineService
from backend.turns.api.openings import OpeningService, TitleResets
from backend.turns.api.search import SearchService
from backend.turns.api.service import TurnService
from backend.turns.api.suggestions import SuggestionService
from backend.turns.models import TURN_LEASES
from backend.turns.play.downtime import DowntimeService
from backend.turns.prompt.assemble import CountCache
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.prompt.history import HistoryCache
from backend.turns.prompt.lore import LoreReader
from backend.turns.prompt.macros import LineMacroService
from backend.turns.prompt.preview import ContextService
from backend.turns.prompt.retrieve import Rephraser
from backend.turns.prompt.speaker_model import SpeakerModel
from backend.turns.run.recovery import TurnRecovery
from backend.turns.run.removed_replies import RemovedReplies
from backend.turns.run.store import TurnStore
from backend.usage.models_in_use import ModelsInUseService
from backend.usage.months import DeletedUsage, MonthUsageService
from backend.usage.spending import ChatUsageService, MeasureService
from backend.vault.root import RootKeys
from backend.vault.slots import DEFAULT_KDF, PasswordKdf

SOURCES = (MessageSource(), LoreSource(), ChronicleSource(), CampaignSource())
"""The sources of the memory index."""


class Services:
    """All services. The name of an attribute is its dependency name in route handlers."""

    def __init__(  # noqa: PLR0913, PLR0915, PLR0917  # everything is connected in one place
        self,
        settings: Settings,
        root: RootKeys,
        database: Database,
        memory: MemoryRuntime,
        queue: JobQueue,
        pool: CpuPool,
        instance: InstanceKeys,
        registry: ModelRegistry,
        user_models: UserModels,
        kdf: PasswordKdf,
    ) -> None:
        self.settings = settings
        self.drain = Drain(settings.drain_seconds)
        self.database = database
        self.metrics_service = MetricsService(database)
        self.memory = memory
        self.queue = queue
        self.cpu_pool = pool
        self.instance = instance
        self.registry = registry
        self.user_models = user_models
        self.lan = LocalNetwork(settings)
        self.cross_origin = CrossOriginPolicy(settings.cors_origins, settings.public_origin)
        self.slots = slots = ModelSlots(database, instance)
        self.index = index = memory.outbox
        self.providers = ProviderService(database, root, user_models, follow=memory.follow_account)
        self.provider_addresses = ProviderAddressService(database, user_models)
        self.provider_tests = ProviderTests(database, self.providers, user_models)
        self.local_servers = LocalServers(self.providers, user_models, settings)

        self.deletions = Deletions(database, queue)
        self.pruning = Pruning(database, queue, settings)
        participants = Participants(RequestCaches())
        self.open_keys = open_keys = OpenKeys(participants)
        open_keys.on_arrival(queue.wake_here)
        self.has_users = asyncio.Event()
        open_keys.on_arrival(self.has_users.set)
        self.sessions = SessionService(database, root, settings, open_keys)
        self.watch = SessionWatch(self.sessions)
        self.activity = ActivityLog(database)
        self.auth = SessionOpener(self.sessions, settings, instance, self.activity)
        self.accounts = AccountService(
            database,
            root,
            instance,
            settings,
            kdf=kdf,
            open_keys=open_keys,
            participants=participants,
        )
        self.second_factors = SecondFactorService(database, root, open_keys)
        self.second_factor_gate = SecondFactorGate(
            database, settings, Throttle(database, instance), self.accounts, self.activity
        )
        self.profile = ProfileService(
            database,
            root,
            settings,
            open_keys,
            find_models=user_models.of,
            find_persona=get_persona,
            find_preset=get_preset,
            embedding_changed=memory.follow_account,
        )
        self.administration = AdministrationService(database, instance)
        self.quotas = Quotas(
            database, settings, counts={CHATS: count_chats, LOREBOOK_ENTRIES: count_all_entries}
        )
        self.recount = NightlyRecount(database, queue)
        self.ledger_folder = LedgerFolder(database)
        check_entries = partial(self.quotas.check_added, LOREBOOK_ENTRIES)

        self.regexes = RegexProcess()
        engine = ScriptEngine(self.regexes)
        self.scripts = ScriptService(
            database,
            engine,
            pool,
            accounts=self.accounts,
            find_player_name=find_player_name,
        )
        self.characters = CharacterService(
            database,
            CardBookService(index, check_added=check_entries),
            pool=pool,
            longest_message=settings.max_message_chars,
            participants=participants,
        )
        self.personas = PersonaService(database)
        self.avatars = AvatarService(database, pool)
        self.backgrounds = BackgroundService(database, pool)
        self.presets = PresetService(database, pool)
        participants.add(self.presets, self.characters)
        self.lorebooks = LorebookService(database, index, pool=pool, check_added=check_entries)
        self.model_names = ModelNames(database, user_models, pool)
        participants.add(self.model_names)
        self.lorebook_links = LorebookLinkService(database)
        participants.add(self.backgrounds, self.lorebook_links)
        self.lore = LoreReader(pool, self.regexes)
        self.chronicles = ChronicleService(database, index, participants=participants)
        self.chronicle_events = EventService(
            database,
            index,
            check_audience=check_event_audience,
            find_witnesses=find_chronicle_witnesses,
        )
        self.chronicle_transfer = ChronicleTransfer(database, index, pool)

        self.campaigns = CampaignService(database)
        self.campaign_items = ItemService(database)
        self.campaign_changes = ChangeLogService(database)
        self.campaign_proposals = ProposalService(database)
        names, clock = SnapshotCache(), StoryClock()
        self.histories, self.public_cards = HistoryCache(), PublicCards()
        self.situations = SituationService(database, names)
        self.downtime = DowntimeService(database, names)
        self.measures = MeasureService(database, user_models)
        self.chat_usage = ChatUsageService(database, user_models)
        self.month_usage = MonthUsageService(database, user_models)
        self.models_in_use = ModelsInUseService(database, user_models, settings)
        joining = ChatChronicles(index)
        self.character_memories = CharacterMemoryService(
            database,
            index,
            joining,
            find_rememberer=find_memory_witness,
            find_witnesses=find_chronicle_witnesses,
        )
        counts = CountCache()
        # Campaigns are before chronicles, because they are locked in this order. The chronicle is
        # before the lore, because its lorebook is copied for a new chronicle.
        participants.add(
            index,
            CampaignSessions(),
            CampaignAudiences(),
            ItemAudiences(),
            joining,
            ChatLore(index, check_added=check_entries),
            ChatSummaries(),
            names,
            clock,
            memory,
            self.lore,
            self.histories,
            self.public_cards,
            user_models,
            counts,
        )
        self.chats = ChatService(
            database,
            user_models,
            settings,
            index,
            pool=pool,
            chronicle=joining.choose,
            find_names=find_names,
            participants=participants,
            check_added=partial(self.quotas.check_added, CHATS),
        )
        self.members = MemberService(
            database,
            settings,
            index,
            pool=pool,
            find_cards=find_named,
            find_talkativeness=self.public_cards.find_talkativeness,
            participants=participants,
        )
        checks_added = [partial(self.quotas.check_added, each) for each in (CHATS, STORED_BYTES)]
        self.campaign_transfer = CampaignTransfer(
            database, index, pool, user_models=user_models, checks_added=checks_added
        )
        self.chat_importer = ChatImporter(
            database,
            index,
            pool,
            settings,
            user_models=user_models,
            checks_added=checks_added,
        )
        participants.add(ImportedChats(), RemovedReplies(), TitleResets(), DeletedUsage())
        self.chat_exporter = ChatExporter(
            database,
            pool,
            name_of=self.accounts.name_of,
            export_card=self.characters.export,
        )
        participants.add(
            WorldCopies(database, index, pool, participants=participants, checks_added=checks_added)
        )
        self.messages = MessageService(
            database,
            settings,
            index,
            pool=pool,
            scripts=self.scripts,
            macros=LineMacroService(database, pool, accounts=self.accounts),
            participants=participants,
        )
        self.new_lines = NewLineService(database, self.messages, accounts=self.accounts)
        self.client_requests = RequestLog(database, self.messages, self.chats)
        self.opening = OpeningService(
            database,
            self.chats,
            pool=pool,
            scripts=engine,
            accounts=self.accounts,
            longest_message=settings.max_message_chars,
        )

        prompts, enrichment_outbox = load_prompts(), EnrichmentOutbox(queue)
        participants.add(enrichment_outbox)
        builder = PromptBuilder(
            database,
            prompts,
            settings,
            counts,
            self.lore,
            memory.search,
            engine,
            pool,
            rephraser=Rephraser(database, memory.search, settings, prompts, slots),
            speakers=SpeakerModel(database, settings, prompts, slots, user_models),
            cards=self.public_cards,
            slots=slots,
            histories=self.histories,
            situations=self.situations,
            clock=clock,
            enrichment=enrichment_outbox,
            user_models=user_models,
            messages=self.messages,
            accounts=self.accounts,
        )
        self.turns = TurnService(
            database,
            builder,
            self.messages,
            store=TurnStore(database, index, enrichment_outbox, participants),
            recovery=TurnRecovery(database, index, enrichment_outbox, participants),
            prompts=prompts,
            quotas=self.quotas,
            pool=pool,
            slots=slots,
            find_open=self.sessions.find_open,
        )

        async def take_over() -> None:
            await self.turns.recover()
            queue.note_loss()

        self.processes = Processes(
            database,
            (TURN_LEASES, JOB_LEASES, SLOT_LEASES),
            on_loss=take_over,
            on_news=queue.note_news,
            on_count=self.quotas.divide,
        )
        queue.announce = None if database.is_sqlite else self.processes.announce
        self.suggestions = SuggestionService(database, builder, self.quotas, slots)
        self.plain_models = PlainModels(database, user_models, self.quotas, slots)
        self.text_embedder = PlainEmbeddings(
            database,
            user_models,
            self.quotas,
            slots,
            pool,
            find_shared=lambda: memory.embedder,
            batch=settings.embedding_batch,
        )
        plain_completions = PlainCompletions(self.plain_models, self.model_names)
        self.client_paths = PathCache()
        participants.add(self.client_paths)
        self.chat_completions = ChatCompletions(
            database,
            pool,
            names=self.model_names,
            plain=plain_completions,
            user_models=user_models,
            cast=CastReader(database, self.accounts, self.model_names),
            finder=ConversationFinder(database, pool, self.client_paths),
            writer=ConversationWriter(
                database,
                index,
                pool,
                messages=self.messages,
                accounts=self.accounts,
                participants=participants,
                checks_added=checks_added,
            ),
            importer=ConversationImporter(
                database,
                pool,
                chats=self.chats,
                openings=self.opening,
                store_chat=self.chat_importer.store,
            ),
            characters=CharacterMaker(self.characters),
            chats=self.chats,
            states=ChatStates(database),
            turns=self.turns,
            requests=self.client_requests,
        )
        self.text_completions = plain_completions
        rows = RowReader(database, SOURCES)
        self.contexts = ContextService(
            database, builder, prompts, pool, rows, kept_days=settings.keep_prompts_days
        )
        self.message_files = FileService(
            database,
            pool,
            user_models,
            check_added=partial(self.quotas.check_added, STORED_BYTES),
        )
        self.lore_tester = LoreTester(
            database, builder, self.lore, counts, self.chats, self.accounts, pool
        )
        # Not `search`, because this is a query parameter of lists.
        self.search_service = SearchService(database, memory.search, SOURCES, rows, pool, clock)
        self.memory_status = MemoryStatusService(database, memory, SOURCES)

        enrichment = open_enrichment(
            settings,
            database,
            user_models,
            prompts,
            memory,
            pool,
            enrichment_outbox,
            slots,
            clock=clock,
            names=names,
        )
        self.enrichment = EnrichmentService(database, queue, index, user_models, settings, prompts)
        self.scenes = SceneService(database, enrichment_outbox)
        self.compactions = CompactionService(database, enrichment_outbox)
        self.summaries = SummaryService(database, in_prompt=self.contexts.has_summary)
        self.briefings = BriefingService(
            database, user_models, settings, prompts, self.quotas, slots
        )
        self.model_fetches = ModelFetches(
            queue, memory, partial(find_written_languages, database, pool)
        )
        self.archives = ArchiveService(
            queue,
            AccountReader(
                database,
                pool,
                characters=self.characters,
                lorebooks=self.lorebooks,
                presets=self.presets,
                scripts=self.scripts,
                chronicles=self.chronicle_transfer,
                campaigns=self.campaign_transfer,
            ),
            pool,
            folder=settings.transfers_dir,
        )
        self.import_services = services = ImportServices(
            database=database,
            pool=pool,
            accounts=AccountWriter(database, self.scripts, user_models),
            avatars=self.avatars,
            backgrounds=self.backgrounds,
            campaigns=self.campaign_transfer,
            characters=self.characters,
            chat_trees=ChatTreeImporter(
                database, index, pool, user_models=user_models, checks_added=checks_added
            ),
            chats=self.chats,
            chronicles=self.chronicle_transfer,
            links=self.lorebook_links,
            lorebooks=self.lorebooks,
            members=self.members,
            opening=self.opening,
            personas=self.personas,
            presets=self.presets,
            profile=self.profile,
            providers=self.providers,
            scripts=self.scripts,
            store_chat=self.chat_importer.store,
        )
        self.imports = ImportService(
            database,
            settings,
            queue,
            pool,
            quotas=self.quotas,
            planners=(
                ArchivePlanner(services),
                ChatArchivePlanner(services),
                SillyTavernPlanner(services),
                SingleFilePlanner(services),
            ),
        )
        participants.add(self.archives, self.imports, self.deletions)
        self.kinds = {
            **memory.kinds,
            **self.model_fetches.kinds,
            **job_kinds(enrichment),
            **self.recount.kinds,
            **self.deletions.kinds,
            **self.pruning.kinds,
            **self.archives.kinds,
            **self.imports.kinds,
        }
        self.backups = BackupSchedule(settings)
        self.jobs = JobService(queue, stoppable=find_stoppable_kinds(self.kinds))
        self.worker = build_worker(
            settings,
            queue,
            JobKeys(root, open_keys),
            self.kinds,
            # Without a Qdrant server only this process can open the index.
            takes_queued=settings.embedded or not settings.qdrant_url,
        )


async def build_services(
    settings: Settings,
    root: RootKeys,
    database: Database,
    *,
    kdf: PasswordKdf = DEFAULT_KDF,
    registry: ModelRegistry | None = None,
) -> Services:
    """Build the services on a migrated database."""
    instance = await load_instance_keys(database, root)
    registry = registry or build_registry(settings)
    queue, pool = JobQueue(database, root), CpuPool()
    user_models = UserModels(registry, settings, root, database=database)
    outbox = IndexOutbox(queue, delay=timedelta(seconds=settings.index_delay_seconds))
    memory = await open_memory(settings, database, queue, outbox, SOURCES, pool, user_models)
    return Services(
        settings, root, database, memory, queue, pool, instance, registry, user_models, kdf
    )
