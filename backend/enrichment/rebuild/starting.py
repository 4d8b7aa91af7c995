"""Before a rebuild: whether it may be, what it would take, and putting it into the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec
from sqlalchemy import Select, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chats.models import Chat
from backend.chats.repository import get_chat
from backend.chronicles.repository import get_chronicle
from backend.enrichment.agent.agent import MOST_CALLS
from backend.enrichment.agent.tools import EVENT_KINDS, TOOLS, TRIAGE_SCHEMA
from backend.enrichment.errors import (
    ChronicleNotEnabledError,
    OtherChronicleError,
    RebuildNotFoundError,
    RebuildUnderWayError,
)
from backend.enrichment.outbox import REBUILD, lane_of
from backend.enrichment.rebuild.replacing import RebuiltRange, entries_to_replace, events_to_replace
from backend.enrichment.rebuild.state import RebuildState
from backend.enrichment.run_work import find_reader
from backend.enrichment.schemas import AmountRange, NewRebuild, RebuildEstimate
from backend.enrichment.story import EARLIER_LINES, EARLIER_TOKENS, last_reply, plan_batches
from backend.enrichment.study import CHARACTERS_A_TOKEN
from backend.errors import ValidationError
from backend.generation.registry import ModelRegistry
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.schemas import JobView
from backend.prompts import PromptLibrary
from backend.settings import Settings

LINE_MARK = 4
"""Tokens of the mark before each line."""
KNOWN = 1_500
"""Tokens of what is near in memory: some events, some lore, some old lines."""
ROUND = 400
"""Tokens of one step of the loop: what the model called, and what it was answered."""
DECISION = 60
"""Tokens of the answer to the first question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Calls and tokens, from where nothing of note is found to where every batch takes all."""

    calls: AmountRange
    prompt_tokens: AmountRange
    completion_tokens: AmountRange


def estimate_cost(
    batches: Sequence[Sequence[int]], prompts: PromptLibrary, *, most_writes: int, per_run: int
) -> Cost:
    """What it takes to study a chat's stretches.

    Args:
        batches: Of each stretch the tokens of its lines.
        prompts: What the agent is told.
        most_writes: How much one run may write.
        per_run: Tokens that one run may take; its first call is always made.
    """
    kinds = ", ".join(EVENT_KINDS)
    frame = prompts["enrichment/story"].render(
        events=[], entries=[], messages=[], earlier=[], lines=[]
    )
    question = _tokens(
        prompts["enrichment/triage"].render(kinds=kinds), frame, msgspec.json.encode(TRIAGE_SCHEMA)
    )
    task = _tokens(
        prompts["enrichment/agent"].render(
            kinds=kinds, most_writes=most_writes, most_calls=MOST_CALLS - 1
        ),
        frame,
        *(msgspec.json.encode(tool.parameters) for tool in TOOLS),
        *(tool.description for tool in TOOLS),
    )
    steps = MOST_CALLS - 1
    least = most = 0
    before: list[int] = []
    for batch in batches:
        lines = sum(batch) + LINE_MARK * len(batch) + _earlier(before)
        first = question + lines
        loop = steps * (task + lines + KNOWN) + ROUND * steps * (steps - 1) // 2
        least += first
        most += max(first, min(first + loop, per_run))
        before = [*before, *batch][-EARLIER_LINES:]
    count = len(batches)
    return Cost(
        calls=AmountRange(least=count, most=count * MOST_CALLS),
        prompt_tokens=AmountRange(least=least, most=most),
        completion_tokens=AmountRange(
            least=count * DECISION, most=count * (DECISION + steps * ROUND)
        ),
    )


def _earlier(tokens: Sequence[int]) -> int:
    """Tokens of the lines that are shown before a batch."""
    total = 0
    for each in reversed(tokens):
        if total + each > EARLIER_TOKENS:
            break
        total += each + LINE_MARK
    return total


def _tokens(*texts: str | bytes) -> int:
    return sum(map(len, texts)) // CHARACTERS_A_TOKEN


UNDER_WAY = ("queued", "waiting_key", "running")


async def check(
    session: AsyncSession,
    identity: Identity,
    chronicle_id: UUID,
    wanted: NewRebuild,
    *,
    lock: bool = False,
) -> tuple[Chat, RebuiltRange]:
    """The chat, and the stretch of it that is to be read.

    Raises `ChatNotFoundError`, `ChronicleNotFoundError`, `OtherChronicleError`,
    `ChronicleNotEnabledError`, `ValidationError`.
    """
    owner_id = identity.user_id
    chat = await get_chat(session, wanted.chat_id, owner_id=owner_id, lock=lock)
    await get_chronicle(session, chronicle_id, owner_id=owner_id, lock=lock)
    if chat.chronicle_id != chronicle_id:
        raise OtherChronicleError("Choose this chronicle in the chat's settings first.")
    if not chat.chronicle_enabled:
        raise ChronicleNotEnabledError(
            "Nothing of it is read without consent: switch chronicle_enabled on in its settings."
        )
    first = wanted.from_position or 0
    if wanted.to_position is not None and wanted.to_position < first:
        raise ValidationError("to_position must not be before from_position.")
    last = await last_reply(session, chat)
    end = -1 if last is None else last
    if wanted.to_position is not None:
        end = min(end, wanted.to_position)
    return chat, RebuiltRange(
        owner_id=owner_id,
        chat_id=chat.id,
        chronicle_id=chronicle_id,
        from_position=first,
        to_position=end,
    )


async def estimate(
    session: AsyncSession,
    registry: ModelRegistry,
    settings: Settings,
    prompts: PromptLibrary,
    identity: Identity,
    chronicle_id: UUID,
    wanted: NewRebuild,
) -> RebuildEstimate:
    """What a rebuild would take. Asks no model. Raises what `check` does."""
    chat, place = await check(session, identity, chronicle_id, wanted)
    reader = await find_reader(session, registry, settings, identity.sealer, chat)
    batches = await plan_batches(
        session,
        chat,
        from_position=place.from_position,
        to_position=place.to_position,
        most_tokens=reader.stretch_tokens,
    )
    cost = estimate_cost(
        batches,
        prompts,
        most_writes=settings.enrichment_max_writes,
        per_run=settings.enrichment_tokens_per_run,
    )
    return RebuildEstimate(
        messages=sum(map(len, batches)),
        batches=len(batches),
        calls=cost.calls,
        prompt_tokens=cost.prompt_tokens,
        completion_tokens=cost.completion_tokens,
        events_to_replace=len(await events_to_replace(session, place)),
        entries_to_replace=len(await entries_to_replace(session, place)),
        model=reader.model_id,
    )


async def start(
    session: AsyncSession,
    queue: JobQueue,
    identity: Identity,
    chronicle_id: UUID,
    wanted: NewRebuild,
) -> JobView:
    """Put a rebuild into the queue. Raises what `check` does, and `RebuildUnderWayError`."""
    chat, place = await check(session, identity, chronicle_id, wanted, lock=True)
    under_way = await session.scalar(
        _rebuilds(identity.user_id, chronicle_id).where(Job.state.in_(UNDER_WAY)).limit(1)
    )
    if under_way is not None:
        raise RebuildUnderWayError(
            "Stop it first, or wait until it is done.", extra={"job_id": str(under_way.id)}
        )
    batches = await plan_batches(
        session, chat, from_position=place.from_position, to_position=place.to_position
    )
    total = sum(map(len, batches))
    state = RebuildState(
        chat_id=chat.id,
        chronicle_id=chronicle_id,
        next=place.from_position,
        to_position=place.to_position,
        total=total,
    )
    job_id = await queue.enqueue(
        session,
        NewJob(
            kind=REBUILD,
            user_id=identity.user_id,
            lane=lane_of(chronicle_id),
            payload=state.to_payload(),
            dedupe_key=f"{REBUILD}/{chronicle_id}",
        ),
        key=queue.grant(identity.sealer, identity.key_mode),
    )
    if job_id is None:  # what else holds its key is a rebuild that waits, and there was none
        raise RebuildUnderWayError
    await session.execute(update(Job).where(Job.id == job_id).values(progress_total=total))
    return JobView.of(await session.get_one(Job, job_id))


async def latest(session: AsyncSession, identity: Identity, chronicle_id: UUID) -> JobView:
    """The last rebuild of a chronicle. Raises `ChronicleNotFoundError`, `RebuildNotFoundError`."""
    await get_chronicle(session, chronicle_id, owner_id=identity.user_id)
    query = _rebuilds(identity.user_id, chronicle_id).order_by(Job.id.desc()).limit(1)
    job = await session.scalar(query)
    if job is None:
        raise RebuildNotFoundError("Rebuilds are shown for a day, and longer where they failed.")
    return JobView.of(job)


def _rebuilds(owner_id: UUID, chronicle_id: UUID) -> Select[Job]:
    return select(Job).where(
        Job.lane == lane_of(chronicle_id), Job.kind == REBUILD, Job.user_id == owner_id
    )
