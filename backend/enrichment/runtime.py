"""Construction of the background tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

from backend.campaigns.state.snapshot import SnapshotCache
from backend.campaigns.state.story_clock import StoryClock
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.enrichment.agent.agent import Agent
from backend.enrichment.compaction.task import CompactionTask
from backend.enrichment.outbox import (
    CHAPTER,
    COMPACTION,
    GLOSSARY,
    REBUILD,
    SCENE,
    SUMMARY,
    TITLE,
    TURN,
    EnrichmentOutbox,
)
from backend.enrichment.pipeline import EnrichmentRuntime, Task
from backend.enrichment.summaries.task import SummaryTask
from backend.enrichment.tasks.glossary import GlossaryTask
from backend.enrichment.tasks.rebuild import RebuildTask
from backend.enrichment.tasks.scene import ChapterTask, SceneTask
from backend.enrichment.tasks.title import TitleTask
from backend.enrichment.tasks.turn import TurnTask
from backend.jobs.running import JobKind, RunningJob
from backend.llm.server_slots import ModelSlots
from backend.llm.user_models import UserModels
from backend.memory.runtime import MemoryRuntime
from backend.prompts import PromptLibrary
from backend.settings import Settings


def open_enrichment(  # noqa: PLR0913  # everything that it puts together
    settings: Settings,
    database: Database,
    user_models: UserModels,
    prompts: PromptLibrary,
    memory: MemoryRuntime,
    pool: CpuPool,
    outbox: EnrichmentOutbox,
    slots: ModelSlots,
    *,
    clock: StoryClock,
    names: SnapshotCache,
) -> EnrichmentRuntime:
    """Return the services of tasks."""
    agent = Agent(prompts, memory.search, database, memory.get_embedder, settings, pool)
    return EnrichmentRuntime(
        database, user_models, settings, prompts, agent, memory.outbox, outbox, slots, clock, names
    )


def job_kinds(runtime: EnrichmentRuntime) -> dict[str, JobKind]:
    return {
        TURN: JobKind(partial(_run, TurnTask, runtime), stoppable=True),
        REBUILD: JobKind(partial(_run, RebuildTask, runtime), keep=True, stoppable=True),
        SUMMARY: JobKind(partial(_run, SummaryTask, runtime), stoppable=True),
        GLOSSARY: JobKind(partial(_run, GlossaryTask, runtime), stoppable=True),
        SCENE: JobKind(partial(_run, SceneTask, runtime), stoppable=True),
        CHAPTER: JobKind(partial(_run, ChapterTask, runtime), stoppable=True),
        COMPACTION: JobKind(partial(_run, CompactionTask, runtime), stoppable=True),
        TITLE: JobKind(partial(_run, TitleTask, runtime), stoppable=True),
    }


async def _run(task: type[Task[Any, Any]], runtime: EnrichmentRuntime, job: RunningJob) -> None:
    await task(runtime, job).run()
