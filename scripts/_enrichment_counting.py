"""What became of a chat that was played: what is there, missing, or there twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from uuid import UUID

from sqlalchemy import select

from backend.chats.models import Message
from backend.database.engine import Database
from backend.enrichment.models import EnrichmentMark, EnrichmentRun
from backend.jobs.models import Job
from scripts._bench_table import Row, spread
from scripts._enrichment_facts import DOUBT


@dataclass(frozen=True)
class Stored:
    """Rows of the database: `replies` are (id, position) on the path, `leaf` is the last one's."""

    replies: Sequence[tuple[UUID, int]]
    leaf: int
    mark: int
    runs: Sequence[EnrichmentRun]
    jobs: Sequence[Job]


@dataclass(frozen=True)
class Played:
    """A chat that was played: rows, answers of the API, and what the model says of itself.

    `completed` is when each reply was over, in seconds since 1970. `seconds` is how long the turns
    took, `settled` how long the work behind them went on. `retried` are jobs that were put back.
    """

    stored: Stored
    events: Sequence[dict[str, Any]]
    runs: Sequence[dict[str, Any]]
    completed: dict[UUID, float]
    broken: int
    kills: int
    retried: int
    seconds: float
    settled: float
    stats: dict[str, Any]


async def stored_of(url: str, chat_id: UUID) -> Stored:
    """What the database holds of a chat."""
    database = Database(url)
    async with database.read() as session:
        lines = (
            await session.execute(
                select(Message.id, Message.position, Message.role)
                .where(Message.chat_id == chat_id, Message.is_active)
                .order_by(Message.position)
            )
        ).all()
        mark = await session.scalar(
            select(EnrichmentMark.position)
            .where(EnrichmentMark.chat_id == chat_id)
            .order_by(EnrichmentMark.position.desc())
            .limit(1)
        )
        runs = await session.scalars(
            select(EnrichmentRun)
            .where(EnrichmentRun.chat_id == chat_id, EnrichmentRun.kind == "turn")
            .order_by(EnrichmentRun.from_position, EnrichmentRun.id)
        )
        found = Stored(
            replies=[(line.id, line.position) for line in lines if line.role == "assistant"],
            leaf=max((line.position for line in lines if line.role == "assistant"), default=-1),
            mark=-1 if mark is None else mark,
            runs=list(runs),
            jobs=list(await session.scalars(select(Job).where(Job.kind.like("enrichment.%")))),
        )
    await database.dispose()
    return found


def rows_of(name: str, played: Played) -> list[Row]:
    """The rows of one database."""
    return [
        _turns(name, played),
        *_events(name, played),
        *_exactness(name, played),
        *_costs(name, played),
    ]


def _turns(name: str, played: Played) -> Row:
    victims = "worker killed" if name == "postgres" else "server killed"
    note = f"in {played.seconds:.0f} s; {victims} {played.kills} times, {played.broken} broken off"
    return Row(name, "story: turns", len(played.completed), None, "", note)


def _said(summary: str) -> str:
    return " ".join(summary.split())


def _events(name: str, played: Played) -> list[Row]:
    """Events that are stored and count, and how many of them say what another one says."""
    every = played.stats["told"]
    told = [each for each in every if not each["call_id"].startswith("a")]
    facts = {_said(each["summary"]): each["key"] for each in told}
    current = [each for each in played.events if each["is_current"]]
    keys = [facts.get(_said(each["summary"])) for each in current]
    twice = sum(count - 1 for key, count in Counter(keys).items() if key is not None)
    share = 100 * twice / max(1, len(current))
    repetitions = sum(each["is_repetition"] for each in told)
    right, wrong, full = _refusals(every, played.stats["results"], facts)
    doubted = _doubted(told, played.stats["results"])
    lost = {each["key"] for each in told if not each["is_repetition"]} - set(keys)
    return [
        Row(name, "  events made", len(current), None, "", f"{keys.count(None)} of unknown origin"),
        Row(
            name,
            "  told by the model",
            len(told),
            None,
            "",
            f"{repetitions} of them again, in other words",
        ),
        Row(name, "  duplicates", round(share, 1), None, "%", f"{twice} of {len(current)}"),
        Row(name, "  refused as duplicates, rightly", right, None),
        Row(name, "  refused as duplicates, wrongly", wrong, None, "", "of another fact"),
        Row(
            name,
            "  asked about, and given up",
            doubted["given up"],
            None,
            "",
            f"{doubted['insisted']} repetitions and {doubted['news']} news insisted on",
        ),
        Row(name, "  facts that are not stored", len(lost), None, "", f"{full} over the limit"),
    ]


def _refusals(
    told: Sequence[dict[str, Any]], results: dict[str, str], facts: dict[str, str]
) -> tuple[int, int, int]:
    """Calls refused as duplicates of their own fact, of another one, and for lack of room."""
    keys = {each["call_id"]: each["key"] for each in told}
    right = wrong = full = 0
    for call_id, content in results.items():
        reason: str = json.loads(content).get("error", "") if call_id in keys else ""
        if reason.startswith("duplicate of "):
            of = facts.get(_said(reason.partition(": ")[2].rpartition(": ")[2]))
            of = of or next((key for said, key in facts.items() if said in _said(reason)), None)
            right, wrong = right + (of == keys[call_id]), wrong + (of != keys[call_id])
        elif reason and DOUBT not in reason:
            full += 1
    return right, wrong, full


def _doubted(told: Sequence[dict[str, Any]], results: dict[str, str]) -> Counter[str]:
    """What became of calls that were asked about, by what they were."""
    found: Counter[str] = Counter()
    for each in told:
        if DOUBT in results.get(each["call_id"], ""):
            again = f"a{each['call_id']}" in results
            known = "insisted" if again else "given up"
            found[known if each["is_repetition"] else "news"] += 1
    return found


def _exactness(name: str, played: Played) -> list[Row]:
    """What is lost or doubled: all of it has to be 0."""
    stored = played.stored
    done = [run for run in stored.runs if run.state == "done"]
    read = Counter(at for run in done for at in range(run.from_position, run.to_position + 1))
    unread = [at for _, at in stored.replies if not read[at]]
    doubled = [at for _, at in stored.replies if read[at] > 1]
    written = Counter(
        each["id"]
        for run in played.runs
        if run["state"] == "done"
        for each in run["written"]
        if each["what"] == "event_created"
    )
    there = {each["id"] for each in played.events if each["source"] == "agent"}
    overlaps = sum(late.from_position <= early.to_position for early, late in pairwise(done))
    dead = sum(job.state == "dead" for job in stored.jobs)
    left = len(stored.jobs) - dead - sum(job.state == "done" for job in stored.jobs)
    behind = max(0, stored.leaf - stored.mark)
    return [
        Row(name, "  replies that no run read", len(unread), None, "", f"of {len(stored.replies)}"),
        Row(name, "  replies that two runs read", len(doubled) + overlaps, None),
        Row(name, "  lines behind the watermark", behind, None, "", f"last reply {stored.leaf}"),
        Row(
            name,
            "  effects doubled or lost",
            sum(count - 1 for count in written.values()) + len(there ^ written.keys()),
            None,
            "",
            f"{len(written)} in {len(done)} runs",
        ),
        Row(name, "  jobs left", left, None),
        Row(
            name,
            "  jobs dead",
            dead,
            None,
            "",
            f"after 8 attempts; {played.retried} more put back by hand at the end",
        ),
    ]


def _costs(name: str, played: Played) -> list[Row]:
    stored, stats = played.stored, played.stats
    covering = {
        at: run.created_at.timestamp()
        for run in stored.runs
        if run.state == "done"
        for at in range(run.from_position, run.to_position + 1)
    }
    lags = [
        covering[at] - played.completed[reply_id]
        for reply_id, at in stored.replies
        if at in covering and reply_id in played.completed
    ]
    turns = max(1, len(stored.replies))
    asked = stats["asked"]
    calls = asked.get("triage", 0) + asked.get("step", 0)
    failed = sum(count for kind, count in asked.items() if kind.startswith("failed"))
    tokens = sum(run.prompt_tokens + run.completion_tokens for run in stored.runs)
    share = 100 * failed / max(1, calls)
    runs = Counter(run.state for run in stored.runs)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(runs.items()))
    given = sum(stats["tokens"].values())
    return [
        spread(name, "  lag behind the reply", lags, unit="s", note="waits shortened"),
        Row(
            name, "  after the last turn", round(played.settled, 1), None, "s", "until all is read"
        ),
        Row(name, "  runs", len(stored.runs), None, "", counted),
        Row(
            name,
            "  model calls a turn",
            round(calls / turns, 2),
            None,
            "",
            f"{share:.1f}% of {calls:,} failed",
        ),
        Row(
            name,
            "  tokens a turn",
            round(tokens / turns),
            None,
            "",
            f"the model counts {given:,}, runs {tokens:,}",
        ),
    ]
