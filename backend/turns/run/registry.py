"""The running turns of this process. Each is a task that runs with or without listeners.

Once a second, the text of all running turns is stored in one transaction. When a turn ends, its
reply is stored with everything that belongs to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from uuid import UUID

from prometheus_client import Counter, Histogram

from backend.core.logs import get_logger
from backend.errors import AppError, InternalError, UnavailableError
from backend.generation.model import MAX_REPLY_CHARACTERS, ModelEmptyReplyError
from backend.llm.server_slots import ModelSlots
from backend.llm.slot_rules import Occupation, Rank, SlotWork
from backend.turns.play.played_turn import PlayedTurn
from backend.turns.run.turn_run import TurnRun

log = get_logger(__name__)

TURNS = Counter("talekeeper_turns", "Turns that are over", ["provider", "state"])

FIRST_TOKEN = Histogram(
    "talekeeper_first_token_seconds",
    "Time from the finished prompt to the first text or thought of the model",
    ["provider"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)

STORE_SECONDS = 1.0

RETRY_SECONDS = (0.5, 2.0, 5.0, 10.0)
"""Delays before further attempts to store an ended turn while the database is unavailable."""

MAX_CONCURRENT_ENDS = 2
"""Store at most two ended turns concurrently, so that new turns are not delayed.

Their replies have been streamed already. If all were stored at once, they would share the processor
and SQLite's only writer with new turns."""

MAX_END_WAIT_SECONDS = 3.0
"""An ended turn stops waiting for the others after this time, because one of them may hang."""


CUT_REASONS = frozenset({"length", "safety"})
"""Ends of a reply that the model did not choose. Without text, they are failures and no passes."""

Store = Callable[[Iterable[TurnRun]], Awaitable[set[UUID]]]
"""Stores the text of running turns, and returns the ids of turns that have to stop."""

Conclude = Callable[[TurnRun], Awaitable[None]]
"""Stores an ended turn and sets its closing events."""


class RunRegistry:
    def __init__(self, *, store: Store, conclude: Conclude, slots: ModelSlots) -> None:
        self._store = store
        self._slots = slots
        self._conclude = conclude
        self._runs: dict[UUID, TurnRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._store_task: asyncio.Task[None] | None = None
        self._end_slots = asyncio.Semaphore(MAX_CONCURRENT_ENDS)
        self.is_closing = False

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, turn_id: UUID) -> TurnRun | None:
        return self._runs.get(turn_id)

    def start(self, run: TurnRun) -> None:
        self._runs[run.turn_id] = run
        if self.is_closing:
            run.stop(state="interrupted")
        task = asyncio.create_task(self._run_turn(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._store_task is None:
            self._store_task = asyncio.create_task(self._store_regularly())

    async def close(self) -> None:
        """Interrupt all turns, also ones that start later, and store their text."""
        self.is_closing = True
        for run in list(self._runs.values()):
            run.stop(state="interrupted")
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._store_task is not None:
            self._store_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._store_task
            self._store_task = None

    async def _run_turn(self, run: TurnRun) -> None:
        try:
            await run.run_until_stopped(ask_model(run, self._slots))
            await self._conclude_with_retries(run)
        except Exception as error:  # no one awaits this task, so the error is logged here
            log.exception("turn.not_stored", turn_id=run.turn_id, exc_info=error)
            problem = (
                error
                if isinstance(error, AppError)
                else InternalError("The server log has the details.")
            )
            run.progress.failed = run.show_problem(problem)
        finally:
            _report_end(run)
            # A turn that waited may have been resumed.
            if self._runs.get(run.turn_id) is run:
                del self._runs[run.turn_id]
            run.finished.set()
            run.notify()

    async def _conclude_with_retries(self, run: TurnRun) -> None:
        for pause in RETRY_SECONDS:
            try:
                await self._conclude_in_turn(run)
            except UnavailableError as error:
                log.warning("turn.not_stored_yet", turn_id=run.turn_id, exc_info=error)
                await asyncio.sleep(pause)
            else:
                return
        await self._conclude_in_turn(run)

    async def _conclude_in_turn(self, run: TurnRun) -> None:
        async with contextlib.AsyncExitStack() as place:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_END_WAIT_SECONDS):
                    await place.enter_async_context(self._end_slots)
            await self._conclude(run)

    async def _store_regularly(self) -> None:
        while True:
            await asyncio.sleep(STORE_SECONDS)
            if not self._runs:
                continue
            stopped = await self._store_all(list(self._runs.values()))
            for turn_id in stopped:
                if run := self._runs.get(turn_id):
                    run.stop()

    async def _store_all(self, runs: list[TurnRun]) -> set[UUID]:
        """Store all turns together. If that fails, store each turn alone."""
        try:
            return await self._store(runs)
        except Exception as error:  # retried after a second
            log.warning("turn.progress_not_stored", count=len(runs), exc_info=error)
        if len(runs) == 1:
            return set()
        stopped: set[UUID] = set()
        for run in runs:
            try:
                stopped |= await self._store([run])
            except Exception as error:  # retried after a second
                log.warning("turn.progress_not_stored", turn_id=run.turn_id, exc_info=error)
        return stopped


async def ask_model(run: TurnRun, slots: ModelSlots) -> None:
    """Wait for a slot of the model's server, and take the reply.

    Raises `ModelError`, also if the model adds nothing to the reply.
    """

    def report_wait(occupation: Occupation | None) -> None:
        run.progress.waits_for = occupation
        run.notify()

    window = run.built.window
    limit = window.models.find_limit(window.spec.id)
    work = SlotWork(use="turn", rank=Rank.TURN, user_id=run.user_id, chat_id=run.chat_id)
    async with slots.hold([limit], work, on_wait=report_wait):
        run.is_asked = True
        await take_reply(run)


async def take_reply(run: TurnRun) -> None:
    """Ask the model and take its reply. Raises as `ask_model` does."""
    if run.play is not None:
        await PlayedTurn(run, run.play).run()
    else:
        await _take_pieces(run)
    if run.may_pass and not run.has_spoken and run.finish not in CUT_REASONS:
        run.pass_turn()
    if run.outcome != "waiting" and not run.adds_to_reply:
        raise ModelEmptyReplyError(_explain_emptiness(run))


async def _take_pieces(run: TurnRun) -> None:
    stream = run.stream(lambda: run.model.stream(run.prompt, run.built.sampling))
    try:
        async with contextlib.aclosing(stream):
            async for piece in stream:
                run.add(piece)
    except ModelEmptyReplyError:
        if not run.may_pass:
            raise


def _explain_emptiness(run: TurnRun) -> str:
    if not run.prompt.reply_limit:
        return f"No reply may be longer than {MAX_REPLY_CHARACTERS:,} characters."
    if run.progress.transcript.join("thinking").strip():
        return "The model wrote only thoughts. Try again, or switch its thinking off."
    return "Try again, or choose another model."


def _report_end(run: TurnRun) -> None:
    """Log the end of a turn and count it in the metrics."""
    spec, usage, failed = run.built.window.spec, run.usage, run.progress.failed
    # A failure without a problem means that storing failed, or that another process owned the turn.
    state = "interrupted" if failed and run.problem is None else run.outcome
    # Users name their own providers, so these would be any number of figures with users' words.
    provider = "own" if spec.is_own else spec.provider
    TURNS.labels(provider=provider, state=state).inc()
    if run.first_token_seconds is not None:
        FIRST_TOKEN.labels(provider=provider).observe(run.first_token_seconds)
    log.info(
        "turn.finished",
        turn_id=run.turn_id,
        state=state,
        problem=failed["type"].rpartition(":")[2] if failed else None,
        provider=spec.provider,
        model=spec.id,
        finish_reason=run.finish or None,
        duration_ms=round((time.monotonic() - run.started_at) * 1000),
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
    )
