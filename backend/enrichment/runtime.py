"""The work behind the reply, put together."""

from __future__ import annotations

from dataclasses import dataclass

from backend.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.enrichment.agent.agent import Agent
from backend.enrichment.rebuild.rebuilding import Rebuilder
from backend.enrichment.summary.summarising import Summarizer
from backend.enrichment.turn_job import TurnEnricher
from backend.generation.registry import ModelRegistry
from backend.jobs.running import JobKind
from backend.memory.runtime import MemoryRuntime
from backend.prompts import PromptLibrary
from backend.settings import Settings


@dataclass(frozen=True, slots=True)
class EnrichmentRuntime:
    """What does the jobs behind the reply, in one process."""

    enricher: TurnEnricher
    rebuilder: Rebuilder
    summarizer: Summarizer

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        return {**self.enricher.kinds, **self.rebuilder.kinds, **self.summarizer.kinds}


def open_enrichment(
    settings: Settings,
    database: Database,
    registry: ModelRegistry,
    prompts: PromptLibrary,
    memory: MemoryRuntime,
    pool: CpuPool,
) -> EnrichmentRuntime:
    """Make the parts. They ask `registry` for models and look into `memory`."""
    agent = Agent(registry, prompts, memory.search, database, memory.embedder, settings, pool)
    return EnrichmentRuntime(
        enricher=TurnEnricher(database, agent, registry, settings, memory.outbox),
        rebuilder=Rebuilder(database, agent, registry, settings, memory.outbox),
        summarizer=Summarizer(database, registry, settings, prompts),
    )
