"""Turns that run in this process: each a task of its own, with or without listeners.

What was said is stored every second, for all running turns in one transaction, and once more, with
everything that belongs to the reply, when a turn is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from prometheus_client import Counter

from backend.accounts.models import KeyMode
from backend.chats.models import MessageStatus
from backend.errors import AppError, InternalError, UnavailableError
from backend.generation.model import (
    ChatModel,
    Finish,
    ModelEmptyReplyError,
    ModelError,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
)
from backend.generation.tokens import get_tokenizer
from backend.logs import get_logger
from backend.turns.assemble import Built
from backend.turns.events import Progress, SegmentKind, TurnEvent
from backend.turns.models import TurnKind, TurnState
from backend.vault.sealing import Sealer

log = get_logger(__name__)

TURNS = Counter("talekeeper_turns", "Turns that are over", ["provider", "state"])

STORE_EVERY = 1.0

CONCLUDE_AGAIN_AFTER = (0.5, 2.0, 5.0, 10.0)
"""Seconds between attempts to store a finished turn while the database does not answer."""


@dataclass(slots=True, kw_only=True)
class TurnRun:
    """One running turn.

    `prefix` is what a continued reply said before, `status_before` how it had ended. `usage` and
    `finish` come from the model. `rewritten` are text and thoughts as regex scripts leave them,
    once the model has ended. `finished` is set when everything is stored.
    """

    turn_id: UUID
    user_id: UUID
    chat_id: UUID
    kind: TurnKind
    reply_id: UUID | None
    sealer: Sealer = field(repr=False)
    key_mode: KeyMode
    model: ChatModel = field(repr=False)
    built: Built = field(repr=False)
    progress: Progress
    prefix: str = field(default="", repr=False)
    prefix_thinking: str = field(default="", repr=False)
    status_before: MessageStatus = "streaming"
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    usage: TokenUsage | None = None
    finish: str = ""
    problem: AppError | None = None
    started_at: float = field(default_factory=time.monotonic)
    stored_length: int = -1
    record_stored: bool = False
    rewritten: tuple[str, str] | None = field(default=None, repr=False)
    _waiters: set[asyncio.Future[None]] = field(default_factory=set[asyncio.Future[None]])
    _speaking: asyncio.Task[None] | None = None
    _stop_as: TurnState | None = None

    @property
    def text(self) -> str:
        """The reply so far, with what it continues."""
        return self.prefix + self._joined("text")

    @property
    def thinking(self) -> str:
        """What the model has thought aloud."""
        return self.prefix_thinking + self._joined("thinking")

    def _joined(self, kind: SegmentKind) -> str:
        if self.rewritten is not None:
            return self.rewritten[kind == "thinking"]
        return self.progress.transcript.joined(kind)

    def apply_scripts(self) -> None:
        """Let regex scripts change what was said, once. CPU-bound.

        A reply of which they would leave nothing stays as it is.
        """
        scripts = self.built.loaded.scripts
        if scripts is None or self.rewritten is not None or self.kind == "impersonate":
            return
        scripts = scripts.renewed()
        text, thinking = (self.progress.transcript.joined(kind) for kind in ("text", "thinking"))
        new = scripts.run(text, "reply", "stored", depth=0)
        reasoning = scripts.run(thinking, "reasoning", "stored", depth=0) if thinking else ""
        self.rewritten = (new if new.strip() else text, reasoning)

    @property
    def segments(self) -> list[tuple[SegmentKind, int]]:
        """Lengths of the runs of thoughts and text, in order.

        What scripts added comes last; what they took leaves a gap, so that no event's id changes.
        """
        runs = self.progress.transcript.segments()
        for kind in ("thinking", "text"):
            more = len(self._joined(kind)) - sum(length for each, length in runs if each == kind)
            if more > 0:
                runs.append((kind, more))
        return runs

    @property
    def has_spoken(self) -> bool:
        """Whether anything was said beside thoughts."""
        return bool(self.progress.transcript.joined("text"))

    @property
    def is_beat(self) -> bool:
        """Whether it completes a reply, which counts once, however often it goes on."""
        return self.outcome == "completed" and self.status_before != "complete"

    @property
    def unstored_text(self) -> str:
        """What of the reply was said since it was stored last."""
        news = self.progress.transcript.since(max(0, self.stored_length))
        return "".join(text for kind, text, _ in news if kind == "text")

    def spent_tokens(self) -> int:
        """Tokens that it took, also if the provider reported none. CPU-bound."""
        if self.usage is not None:
            return self.usage.prompt_tokens + self.usage.completion_tokens
        transcript = self.progress.transcript
        if self.outcome == "failed" and not transcript.length:
            return 0  # the provider refused it
        said = transcript.joined("text") + transcript.joined("thinking")
        tokenizer = get_tokenizer(self.built.window.unit.tokenizer)
        return self.built.assembled.tokens + tokenizer.count(said)

    def notify(self) -> None:
        """Wake everyone who listens."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for_update(self, *, within: float) -> bool:
        """Wait for something new to be said; False after `within` seconds of silence."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(within):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    async def events(self, last_id: int, *, beat: float) -> AsyncIterator[list[TurnEvent]]:
        """Events after `last_id` as they come; an empty list every `beat` seconds of silence."""
        while True:
            is_over = self.progress.is_over
            batch = list(self.progress.events_after(last_id))
            if batch:
                last_id = batch[-1].id
                yield batch
            if is_over:
                return
            if not batch and not await self.wait_for_update(within=beat):
                yield []

    def stop(self, *, state: TurnState = "stopped") -> None:
        """End it where it is; what was said is kept. Once it has ended, nothing changes."""
        if self._stop_as is None and not (self._speaking and self._speaking.done()):
            self._stop_as = state
            if self._speaking is not None:
                self._speaking.cancel()

    async def run_model(self) -> None:
        """Let the model speak to its end. Never raises: what went wrong is in `problem`."""
        self._speaking = asyncio.create_task(self._listen_to_model())
        if self._stop_as is not None:
            self._speaking.cancel()
        try:
            await self._speaking
        except asyncio.CancelledError:
            if self._stop_as is None:
                # Not asked for here: the process is going down.
                self._stop_as = "interrupted"
        except ModelError as error:
            self.problem = error
        except Exception as error:  # a fault of ours must end the turn, not hang it
            log.exception("turn.crashed", turn_id=self.turn_id, exc_info=error)
            self.problem = InternalError("The log says more.")

    @property
    def outcome(self) -> TurnState:
        """How it ended, once the model no longer speaks."""
        if self.problem is not None:
            return "failed"
        return self._stop_as or "completed"

    async def _listen_to_model(self) -> None:
        transcript = self.progress.transcript
        stream = self.model.stream(self.built.prompt, self.built.window.sampling)
        async with contextlib.aclosing(stream):
            async for piece in stream:
                match piece:
                    case TextPiece(text):
                        transcript.append("text", text)
                        self.notify()
                    case ThinkingPiece(text):
                        transcript.append("thinking", text)
                        self.notify()
                    case TokenUsage():
                        self.usage = piece
                    case Finish(reason):
                        self.finish = reason
        if not self.has_spoken:
            raise ModelEmptyReplyError("Try again, or another model.")


Store = Callable[[Iterable[TurnRun]], Awaitable[set[UUID]]]
"""Stores what running turns have said; gives back the ids of those that are to stop."""

Conclude = Callable[[TurnRun], Awaitable[None]]
"""Stores a turn that is over, and fills in its closing events."""


class RunRegistry:
    """The running turns of this process."""

    def __init__(self, *, store: Store, conclude: Conclude) -> None:
        self._store = store
        self._conclude = conclude
        self._runs: dict[UUID, TurnRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, turn_id: UUID) -> TurnRun | None:
        """A turn that runs here."""
        return self._runs.get(turn_id)

    def start(self, run: TurnRun) -> None:
        """Let a turn run until it is over, on its own."""
        self._runs[run.turn_id] = run
        if self._is_closing:
            run.stop(state="interrupted")
        task = asyncio.create_task(self._drive(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Cut every turn off, and those that still come, and store what there is."""
        self._is_closing = True
        for run in list(self._runs.values()):
            run.stop(state="interrupted")
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None

    async def _drive(self, run: TurnRun) -> None:
        try:
            await run.run_model()
            await self._conclude_surely(run)
        except Exception as error:  # nobody awaits this task: say it here
            log.exception("turn.not_stored", turn_id=run.turn_id, exc_info=error)
            problem = error if isinstance(error, AppError) else InternalError("The log says more.")
            run.progress.failed = {"turn_id": str(run.turn_id), **problem.to_problem()}
        finally:
            _report(run)
            self._runs.pop(run.turn_id, None)
            run.finished.set()
            run.notify()

    async def _conclude_surely(self, run: TurnRun) -> None:
        for pause in CONCLUDE_AGAIN_AFTER:
            try:
                await self._conclude(run)
            except UnavailableError as error:
                log.warning("turn.not_stored_yet", turn_id=run.turn_id, exc_info=error)
                await asyncio.sleep(pause)
            else:
                return
        await self._conclude(run)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(STORE_EVERY)
            if not self._runs:
                continue
            stopped = await self._store_all(list(self._runs.values()))
            for turn_id in stopped:
                if run := self._runs.get(turn_id):
                    run.stop()

    async def _store_all(self, runs: list[TurnRun]) -> set[UUID]:
        """Store all at once; where that fails, each by itself, so that one can't hold up others."""
        try:
            return await self._store(runs)
        except Exception as error:  # the next second tries again
            log.warning("turn.progress_not_stored", count=len(runs), exc_info=error)
        if len(runs) == 1:
            return set()
        stopped: set[UUID] = set()
        for run in runs:
            with contextlib.suppress(Exception):
                stopped |= await self._store([run])
        return stopped


def _report(run: TurnRun) -> None:
    """One line in the log and one more in the metrics for a turn that is over."""
    spec, usage, failed = run.built.window.spec, run.usage, run.progress.failed
    # Without a problem of the model's, it could not be stored, or was another process's by then.
    state = "interrupted" if failed and run.problem is None else run.outcome
    TURNS.labels(provider=spec.provider, state=state).inc()
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
