"""A played turn: the model is asked again and again, each time with the tools of the mood it is in.

A phase is what happens in one mood. A tool may end it (what was said in it is dropped, and the same
action goes on in another mood), end the turn, or suspend it until the player has chosen. A turn
that waits holds no memory: all that it goes on with is in its row, sealed.

If a model calls no tool although the mood needs one, and it is not known whether it ever does, it
is asked once more for the calls alone. A model that ends before it has told anything is asked to
narrate first. If it ends before it has gone on to what a die has fixed, the server does that, drops
the text and asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from backend.campaigns.play.table import FINISH, Table
from backend.campaigns.play.tools import Outcome, OutcomeKind, refusal
from backend.core.logs import get_logger
from backend.generation.catalogue import ToolSupport
from backend.generation.model import (
    ModelEmptyReplyError,
    ModelError,
    Piece,
    TextPiece,
    TextReset,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolCall,
    ToolRound,
)
from backend.generation.tools.streams import (
    may_learn_calls,
    stream_calls,
    stream_with_tools,
    tool_support,
)
from backend.prompts import PromptLibrary
from backend.turns.api.schemas import ChoiceRequest
from backend.turns.prompt.built_prompt import BuiltPrompt, count_extra, make_calls_prompt
from backend.turns.run.events import AWAITING_CHOICE, CALLS_REQUESTED, PlayEvent
from backend.turns.run.reply_text import PARAGRAPH

if TYPE_CHECKING:
    from backend.turns.run.turn_run import TurnRun

log = get_logger(__name__)

MAX_REQUESTS = 20
"""To the model in one turn: more than calls and breaks can need."""

MAX_NUDGES = 2
"""Requests in one turn to narrate first. After them the model gets no more tools."""

NARRATE = "There is no narration yet: narrate first, then call finish_turn."


class SuspendedPlay(msgspec.Struct, kw_only=True):
    """What a turn that waits goes on with. `rounds` lack the result that the choice will be."""

    table: bytes
    rounds: list[ToolRound]
    used: list[str]
    viewpoint: str | None
    earlier: TokenUsage | None


@dataclass(slots=True, kw_only=True)
class _RequestResult:
    """The results of one request. `has_begun`: some of its text is in the transcript."""

    offered: Sequence[Tool]
    has_begun: bool = False
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: list[Any] = field(default_factory=list[Any])
    decided: OutcomeKind | None = None


@dataclass(slots=True, kw_only=True)
class Play:
    """The progress of a played turn.

    Attributes:
        table: The items that its tools see and change.
        rounds: Calls of this phase that were answered.
        used: Names of the tools that were called, in order.
        viewpoint: As it was asked for: whose knowledge the prompt may hold.
        support: How the model was asked for calls last.
        earlier: What the model took before the turn was suspended.
        requests: How often the model was asked since then.
        may_wait: False if the turn can't be suspended, because it goes on with a reply.
        told_from: The place in the transcript of the player's last choice. The narration has to
            come after it.
        nudges: The number of requests to narrate first.
        held: The call of `finish_turn` that came before the narration.
        closing: What is told once the reply is stored.
    """

    table: Table
    prompts: PromptLibrary = field(repr=False)
    rounds: list[ToolRound] = field(default_factory=list[ToolRound], repr=False)
    used: list[str] = field(default_factory=list[str])
    viewpoint: str | None = None
    support: ToolSupport = "native"
    earlier: TokenUsage | None = None
    requests: int = 0
    may_wait: bool = True
    told_from: int = 0
    nudges: int = 0
    held: ToolCall | None = field(default=None, repr=False)
    closing: Sequence[PlayEvent] = ()

    @property
    def is_waiting(self) -> bool:
        """Whether it is the player's move."""
        return self.table.waiting is not None

    async def run(self, run: TurnRun) -> None:
        """Ask the model until the turn is over, or waits. Raises `ModelError`."""
        while self.requests < MAX_REQUESTS and await self._ask(run):
            pass
        if self.is_waiting:
            return
        if self._lacks_calls(run):
            await self._ask_for_calls(run)
        if self.held is not None and run.has_spoken and not self.table.is_over:
            self._emit(run, await self.table.use(self.held, may_wait=False))
        for name, data in self.table.end_turn():
            run.progress.transcript.append_event(name, data)

    async def _ask(self, run: TurnRun) -> bool:
        """One request to the model; whether another one follows."""
        self.requests += 1
        transcript = run.progress.transcript
        may_call = self.nudges < MAX_NUDGES or self._has_narrated(run)
        heard = _RequestResult(
            offered=self.table.offered(may_wait=self.may_wait) if may_call else []
        )
        await self._hear(run, heard)
        self.support = tool_support(run.model)
        if run.finish == "tool_calls":
            run.finish = "stop"
        if heard.decided in {"break", "end"}:
            return heard.decided == "break"
        if not heard.calls:
            return self._goes_on(run)
        said = transcript.joined("text", since=run.request_begin)
        self.rounds.append(ToolRound(heard.calls, heard.results, said))
        if heard.decided == "wait":
            transcript.append_event(AWAITING_CHOICE, msgspec.to_builtins(self.table.waiting))
            run.notify()
        else:
            run.built = self.guide(run.built)
        return heard.decided is None

    async def _hear(self, run: TurnRun, heard: _RequestResult) -> None:
        """Take what the model says, and let its calls happen as they come."""

        def ask() -> AsyncGenerator[Piece, None]:
            prompt = replace(run.prompt, rounds=self.rounds)
            return stream_with_tools(run.model, prompt, heard.offered, run.built.sampling)

        count = partial(count_extra, tools=heard.offered, rounds=self.rounds)
        try:
            async with contextlib.aclosing(run.hear(ask, count_extra=count)) as stream:
                async for piece in stream:
                    if heard.decided is not None and _is_speech(piece):
                        break  # it talks to nobody: hang up
                    await self._take(run, heard, piece)
        except ModelError as error:
            # A decision stays; a model that has spoken or called may have nothing to add.
            has_begun = run.has_spoken or bool(self.used)
            has_ended = isinstance(error, ModelEmptyReplyError) and has_begun
            if heard.decided is None and not has_ended:
                raise

    async def _take(self, run: TurnRun, heard: _RequestResult, piece: Piece) -> None:
        match piece:
            case ToolCall():
                # Nothing that is called after the end of a phase counts.
                if heard.offered and heard.decided is None:
                    await self._use(run, heard, piece)
            case TextPiece(text):
                if not heard.has_begun:
                    heard.has_begun = True
                    self._begin_paragraph(run, text)
                run.take(piece)
            case TextReset():
                heard.has_begun = False
                run.take(piece)
            case TokenUsage():
                run.usage = added(run.usage, piece)
            case _:
                run.take(piece)

    async def _use(self, run: TurnRun, heard: _RequestResult, call: ToolCall) -> None:
        """Execute a tool call and emit its events."""
        is_end = call.name == FINISH and any(tool.name == FINISH for tool in heard.offered)
        early = self._refuse_early_end(run, call) if is_end else None
        outcome = early or await self.table.use(call, may_wait=self.may_wait)
        self.used.append(call.name)
        heard.calls.append(call)
        if outcome.kind == "answer":
            heard.results.append(outcome.result)
        else:
            heard.decided = outcome.kind
        if outcome.kind == "break":
            self._break(run)
        self._emit(run, outcome)

    def _refuse_early_end(self, run: TurnRun, call: ToolCall) -> Outcome | None:
        """Return the outcome of an end that comes too early; None if the turn may end."""
        if self.table.is_decided:
            return self.table.move_on()
        if self._has_narrated(run):
            return None
        self.held = call
        self.nudges += 1
        return refusal(NARRATE)

    def _goes_on(self, run: TurnRun) -> bool:
        """True if a model that has ended its reply is asked again, because the turn is not over."""
        if self.requests >= MAX_REQUESTS:
            return False
        if self.table.is_decided:
            outcome = self.table.move_on()
            self._break(run)
            self._emit(run, outcome)
            return True
        if self._has_narrated(run) or self.nudges >= MAX_NUDGES or not self.used:
            return False
        self.nudges += 1
        if self.rounds:
            last = self.rounds[-1]
            *results, result = last.results
            results.append({"result": result, "next": NARRATE})
            self.rounds[-1] = ToolRound(last.calls, results, last.text)
        return True

    def _has_narrated(self, run: TurnRun) -> bool:
        """True if the model has narrated something since the player's last choice."""
        said = run.progress.transcript.joined("text", since=self.told_from)
        return bool(said.strip())

    def _break(self, run: TurnRun) -> None:
        """Drop the text and calls of this phase, and prepare the prompt of the next one."""
        self.rounds.clear()
        self.held = None
        run.take_back("text", since=0)
        run.built = self.guide(run.built)

    def _emit(self, run: TurnRun, outcome: Outcome) -> None:
        for name, data in outcome.events:
            run.progress.transcript.append_event(name, data)
        run.notify()

    def guide(self, built: BuiltPrompt) -> BuiltPrompt:
        """Return a prompt with the guidance of the mood that the turn is in."""
        return built.with_guidance(self.table.guidance(self.prompts))

    def _lacks_calls(self, run: TurnRun) -> bool:
        """True if the rules need a call, none was made, and it is open whether the model can.

        A reply that was cut off, or that continues another one, shows nothing.
        """
        return (
            self.table.needs_calls
            and not self.used
            and run.has_spoken
            and not run.prefix
            and run.finish in {"stop", "other"}
            and may_learn_calls(run.model)
        )

    async def _ask_for_calls(self, run: TurnRun) -> None:
        """Ask the model, in the fenced form, for the calls that belong to its reply.

        The text stays. A change of mood counts from the next turn on. If the request fails, or has
        no room in the window, the turn ends without calls, and the next one may ask again.
        """
        tools = self.table.offered(may_wait=False)
        request = self.prompts["moods/calls"].render()
        prompt = await asyncio.to_thread(make_calls_prompt, run.built, run.text, request, tools)
        if prompt is None:
            return
        self.requests += 1
        run.progress.transcript.append_event(CALLS_REQUESTED, {})
        run.notify()
        stream = stream_calls(run.model, prompt, tools, run.built.window.sampling)
        try:
            async with contextlib.aclosing(stream):
                async for piece in stream:
                    if isinstance(piece, TokenUsage):
                        run.usage = added(run.usage, piece)
                    elif not self.table.is_over:
                        self.used.append(piece.name)
                        self._emit(run, await self.table.use(piece, may_wait=False))
        except ModelError as error:
            log.info("turn.calls_not_told", turn_id=run.turn_id, problem=error.slug)
        self.support = "fenced"

    def _begin_paragraph(self, run: TurnRun, text: str) -> None:
        """Set what is said after a tool's answer apart from what was said before it."""
        said = run.progress.transcript.joined("text")
        if said and not said[-1].isspace() and not text[0].isspace():
            run.take(TextPiece(PARAGRAPH))

    def choose(self, choice: ChoiceRequest) -> None:
        """Answer the call that waits with the player's choice. Raises `ValidationError`."""
        last = self.rounds[-1]
        chosen = self.table.choose(choice.option, choice.text)
        self.rounds[-1] = ToolRound(last.calls, [*last.results, chosen], last.text)

    def suspended(self, usage: TokenUsage | None) -> bytes:
        """What is stored while the turn waits; `usage` is what was taken since it went on."""
        return msgspec.json.encode(
            SuspendedPlay(
                table=self.table.save(),
                rounds=self.rounds,
                used=self.used,
                viewpoint=self.viewpoint,
                earlier=added(self.earlier, usage),
            )
        )


def _is_speech(piece: Piece) -> bool:
    return isinstance(piece, TextPiece | ThinkingPiece) and bool(piece.text.strip())


def added(one: TokenUsage | None, other: TokenUsage | None) -> TokenUsage | None:
    """What two requests took together; None where neither was reported."""
    if one is None or other is None:
        return one or other
    return TokenUsage(
        **{each.name: getattr(one, each.name) + getattr(other, each.name) for each in fields(one)}
    )
