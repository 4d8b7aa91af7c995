"""Replies that follow each other by themselves: one turn for each reply of a group.

When a turn ends, its transaction reserves the next one (`TurnStore.conclude`), and a task of the
same process builds its prompt and starts it. A chain does not depend on a client. It ends if no
reply is left, no one wants to or may speak, a reply fails or waits for the player, the path
changes, another turn takes the place, the session that asked for it ends, or someone stops it. If
the process ends, its turn is recovered like any other, and the chain ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import msgspec

from backend.accounts.auth.identity import Identity
from backend.accounts.models import User
from backend.core.logs import get_logger
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import AppError, InternalError
from backend.quotas.limits import TOKENS_PER_DAY
from backend.quotas.service import Quotas
from backend.turns import repository
from backend.turns.api.schemas import TurnRequest
from backend.turns.errors import ChatChangedError, NoSpeakerError
from backend.turns.models import TURN_PROBLEM, Turn
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.prompt.speaker_choice import AutomaticReply, ChainEndedError, TurnSpeaker
from backend.turns.run.registry import RunRegistry
from backend.turns.run.start import TurnStarter
from backend.turns.run.turn_run import ChainPlace, TurnRun

log = get_logger(__name__)

MAX_ATTEMPTS = 3
"""Limit of attempts to build the prompt of a reply, if the chat changes at the same time."""

FindOpen = Callable[[set[UUID]], Awaitable[set[UUID]]]
"""Returns those of some sessions and keys that have not ended."""


@dataclass(slots=True)
class ReplyChain:
    """One chain in this process. `over` is set when it has ended.

    `viewpoint` is the requested one, if it is no character's.
    """

    identity: Identity = field(repr=False)
    viewpoint: str | None
    over: asyncio.Event = field(default_factory=asyncio.Event)


class ReplyChains:
    """Runs the chains of this process."""

    def __init__(
        self,
        database: Database,
        builder: PromptBuilder,
        starter: TurnStarter,
        quotas: Quotas,
        runs: RunRegistry,
        *,
        find_open: FindOpen,
    ) -> None:
        self._database = database
        self._builder = builder
        self._starter = starter
        self._quotas = quotas
        self._runs = runs
        self._find_open = find_open
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: defaultdict[UUID, set[asyncio.Future[None]]] = defaultdict(set)

    def follow(self, identity: Identity, run: TurnRun, *, viewpoint: str | None) -> asyncio.Event:
        """Let replies follow a turn. The returned event is set when the chain has ended."""
        is_shared = viewpoint in {"gm", "public"}
        chain = ReplyChain(identity, viewpoint if is_shared else None)
        task = asyncio.create_task(self._run_chain(chain, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return chain.over

    async def wait(self, turn_id: UUID, *, within: float) -> None:
        """Wait until a reserved turn begins or is given up in this process, or for some seconds."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[turn_id].add(waiter)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await waiter
        finally:
            self._waiters[turn_id].discard(waiter)
            if not self._waiters[turn_id]:
                del self._waiters[turn_id]

    def notify(self, turn_id: UUID) -> None:
        """Tell those who wait for a turn that it has begun or was given up."""
        for waiter in self._waiters.get(turn_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        """End all chains. Their running turns must have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run_chain(self, chain: ReplyChain, run: TurnRun) -> None:
        try:
            following: TurnRun | None = run
            while following is not None:
                run = following
                await run.finished.wait()
                following = await self._begin_next(chain, run) if run.has_next else None
        except asyncio.CancelledError:
            if run.chain is not None and run.has_next:
                await self._give_up(run.chain.next_id)
        except Exception as error:  # no one awaits this task, so the error is logged here
            log.exception("chain.crashed", turn_id=run.turn_id, exc_info=error)
        finally:
            chain.over.set()

    async def _begin_next(self, chain: ReplyChain, run: TurnRun) -> TurnRun | None:
        """Start the reserved turn after a turn. None if the chain ends."""
        place = run.chain
        if place is None:
            return None
        following: TurnRun | None = None
        try:
            await self._check(chain)
            following = await self._start(chain, run, place)
        except (ChainEndedError, NoSpeakerError):
            await self._give_up(place.next_id)
        except AppError as error:
            await self._fail(chain, run, place.next_id, error)
        except Exception as error:  # an error in the code must end the turn and not block the chat
            log.exception("turn.crashed", turn_id=place.next_id, exc_info=error)
            problem = InternalError("The server log has the details.")
            await self._fail(chain, run, place.next_id, problem)
        finally:
            if following is not None:
                self._runs.start(following)
            self.notify(place.next_id)
        return following

    async def _start(self, chain: ReplyChain, run: TurnRun, place: ChainPlace) -> TurnRun:
        """Build the prompt of the next turn, and store its beginning. Raises `ChainEndedError`."""
        if run.reply_id is None:
            raise ChainEndedError
        speaker = TurnSpeaker.of_turn(
            place.next_id, AutomaticReply(after=run.reply_id, waiting=_find_waiting(run))
        )
        request = TurnRequest(viewpoint=chain.viewpoint)
        following = ChainPlace(
            chain_id=place.chain_id, number=place.number + 1, left=place.left - 1
        )
        for _ in range(MAX_ATTEMPTS):
            built = await self._builder.build(chain.identity, run.chat_id, request, speaker=speaker)
            started = await self._starter.start(
                chain.identity,
                built,
                place.next_id,
                b"",
                viewpoint=request.viewpoint,
                rebuild=partial(self._builder.rebuild, chain.identity, request),
                chain=following,
            )
            if started is not None:
                return started
        raise ChatChangedError("The chat's settings have changed. Send the next line.")

    async def _check(self, chain: ReplyChain) -> None:
        """Read the account again, and check its quota.

        Raises `QuotaExceededError`, and `ChainEndedError` if the session that asked for the chain
        has ended, or the process ends.
        """
        identity = chain.identity
        if self._runs.is_closing or not await self._find_open({identity.slot_id}):
            raise ChainEndedError
        async with self._database.read() as session:
            user = await session.get(User, identity.user_id)
        if user is None:
            raise ChainEndedError
        chain.identity = replace(identity, user=user)
        await self._quotas.check(TOKENS_PER_DAY, user.id)

    async def _give_up(self, turn_id: UUID) -> None:
        async with self._database.write() as session:
            await repository.delete_reserved_turn(session, turn_id)

    async def _fail(self, chain: ReplyChain, run: TurnRun, turn_id: UUID, error: AppError) -> None:
        """Store the problem because of which a reserved turn could not begin."""
        log.info("turn.not_begun", turn_id=turn_id, problem=error.slug)
        problem = error.to_problem(for_administrator=run.is_administrator)
        async with self._database.write() as session:
            turn = await session.get(Turn, turn_id, with_for_update=True)
            if turn is None or not turn.is_reserved:
                return
            data = msgspec.json.encode(problem)
            turn.sealed_problem = chain.identity.sealer.seal_bytes(TURN_PROBLEM, turn_id, data)
            turn.state, turn.finished_at = "failed", now()
            turn.lease_owner = turn.lease_until = None


def _find_waiting(run: TurnRun) -> Sequence[UUID]:
    """Return the characters that a line before this reply has named, without its speaker."""
    cast = run.built.loaded.cast
    return [each for each in cast.waiting if each != cast.speaker.id]
