"""A played turn: the requests to the model, each with the tools of the current mood.

A phase is the part of a turn that happens in one mood. A tool call can end the phase, end the turn,
or suspend the turn until the player has chosen. If it ends the phase, the text of the phase is
dropped and the same action continues in another mood.

The server corrects a model in three cases:

- It calls no tool although the mood needs a call. If it is unknown whether the model can call
  tools, it is asked once more for the calls alone.
- It ends before it has narrated anything. It is asked to narrate first.
- It ends although the dice require another mood. The server changes the mood, drops the text and
  asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from backend.campaigns.play.table import FINISH
from backend.campaigns.rules.protocol import OutcomeKind, ToolOutcome, make_refusal
from backend.core.logs import get_logger
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
    choose_tool_support,
    may_learn_calls,
    stream_calls,
    stream_with_tools,
)
from backend.turns.play.state import TurnPlay, add_usage
from backend.turns.prompt.built_prompt import count_extra, make_calls_prompt
from backend.turns.run.events import AWAITING_CHOICE, CALLS_REQUESTED
from backend.turns.run.reply_text import PARAGRAPH
from backend.turns.run.turn_run import TurnRun

log = get_logger(__name__)

MAX_REQUESTS = 20
"""Maximum requests to the model in one turn. Calls and changes of mood never need more."""

MAX_NUDGES = 2
"""Maximum requests to narrate first. After them the model gets no more tools."""

NARRATE = "There is no narration yet: narrate first, then call finish_turn."


@dataclass(slots=True, kw_only=True)
class _RequestResult:
    """The results of one request. `has_begun` if some of its text is in the transcript."""

    offered: Sequence[Tool]
    has_begun: bool = False
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: list[Any] = field(default_factory=list[Any])
    decided: OutcomeKind | None = None


class PlayedTurn:
    """Asks the model for one played turn: requests, tool calls and the change of moods."""

    def __init__(self, run: TurnRun, play: TurnPlay) -> None:
        self._run = run
        self._play = play

    async def run(self) -> None:
        """Ask the model until the turn ends or waits. Raises `ModelError`."""
        while self._play.requests < MAX_REQUESTS and await self._ask():
            pass
        if self._play.is_waiting:
            return
        if self._lacks_calls():
            await self._ask_for_calls()
        if self._play.held is not None and self._run.has_spoken and not self._play.table.is_over:
            self._emit(await self._play.table.use(self._play.held, may_wait=False))
        for name, data in self._play.table.end_turn():
            self._run.progress.transcript.append_event(name, data)

    async def _ask(self) -> bool:
        """Ask the model once. True if another request follows."""
        self._play.requests += 1
        transcript = self._run.progress.transcript
        may_call = self._play.nudges < MAX_NUDGES or self._has_narrated()
        result = _RequestResult(
            offered=self._play.table.list_tools(may_wait=self._play.may_wait) if may_call else []
        )
        await self._take_output(result)
        self._play.support = choose_tool_support(self._run.model)
        if self._run.finish == "tool_calls":
            self._run.finish = "stop"
        if result.decided in {"break", "end"}:
            return result.decided == "break"
        if not result.calls:
            return self._needs_request()
        said = transcript.join("text", since=self._run.request_begin)
        self._play.rounds.append(ToolRound(result.calls, result.results, said))
        if result.decided == "wait":
            transcript.append_event(AWAITING_CHOICE, msgspec.to_builtins(self._play.table.waiting))
        else:
            self._run.built = self._play.guide(self._run.built)
        return result.decided is None

    async def _take_output(self, result: _RequestResult) -> None:
        """Take the output of the model and execute its calls as they arrive."""

        def ask() -> AsyncGenerator[Piece, None]:
            prompt = replace(self._run.prompt, rounds=self._play.rounds)
            return stream_with_tools(
                self._run.model, prompt, result.offered, self._run.built.sampling
            )

        count = partial(count_extra, tools=result.offered, rounds=self._play.rounds)
        try:
            async with contextlib.aclosing(self._run.stream(ask, count_extra=count)) as stream:
                async for piece in stream:
                    if result.decided is not None and _is_speech(piece):
                        break  # text after the decision is not used: close the request
                    await self._take_piece(result, piece)
        except ModelError as error:
            # A decision is kept. A model that has written or called before may have nothing to add.
            has_begun = self._run.has_spoken or bool(self._play.used)
            has_ended = isinstance(error, ModelEmptyReplyError) and has_begun
            if result.decided is None and not has_ended:
                raise

    async def _take_piece(self, result: _RequestResult, piece: Piece) -> None:
        match piece:
            case ToolCall():
                # Calls after the end of a phase are ignored.
                if result.offered and result.decided is None:
                    await self._use(result, piece)
            case TextPiece(text):
                if not result.has_begun:
                    result.has_begun = True
                    self._begin_paragraph(text)
                self._run.add(piece)
            case TextReset():
                result.has_begun = False
                self._run.add(piece)
            case TokenUsage():
                self._run.usage = add_usage(self._run.usage, piece)
            case _:
                self._run.add(piece)

    async def _use(self, result: _RequestResult, call: ToolCall) -> None:
        is_end = call.name == FINISH and any(tool.name == FINISH for tool in result.offered)
        early = self._refuse_early_end(call) if is_end else None
        outcome = early or await self._play.table.use(call, may_wait=self._play.may_wait)
        self._play.used.append(call.name)
        result.calls.append(call)
        if outcome.kind == "answer":
            result.results.append(outcome.result)
        else:
            result.decided = outcome.kind
        if outcome.kind == "break":
            self._break()
        self._emit(outcome)

    def _refuse_early_end(self, call: ToolCall) -> ToolOutcome | None:
        """Return the outcome of an end that comes too early. None if the turn may end."""
        if self._play.table.is_decided:
            return self._play.table.move_on()
        if self._has_narrated():
            return None
        self._play.held = call
        self._play.nudges += 1
        return make_refusal(NARRATE)

    def _needs_request(self) -> bool:
        """True if the turn has not ended, so that the model has to be asked again."""
        if self._play.requests >= MAX_REQUESTS:
            return False
        if self._play.table.is_decided:
            outcome = self._play.table.move_on()
            self._break()
            self._emit(outcome)
            return True
        if self._has_narrated() or self._play.nudges >= MAX_NUDGES or not self._play.used:
            return False
        self._play.nudges += 1
        if self._play.rounds:
            last = self._play.rounds[-1]
            *results, result = last.results
            results.append({"result": result, "next": NARRATE})
            self._play.rounds[-1] = ToolRound(last.calls, results, last.text)
        return True

    def _has_narrated(self) -> bool:
        said = self._run.progress.transcript.join("text", since=self._play.told_from)
        return bool(said.strip())

    def _break(self) -> None:
        """Drop the text and calls of this phase, and prepare the prompt of the next one."""
        self._play.rounds.clear()
        self._play.held = None
        self._run.drop("text", since=0)
        self._run.built = self._play.guide(self._run.built)

    def _emit(self, outcome: ToolOutcome) -> None:
        for name, data in outcome.events:
            self._run.progress.transcript.append_event(name, data)
        self._run.notify()

    def _lacks_calls(self) -> bool:
        """True if the rules need a call, none was made, and the model may be able to call.

        A reply that was cut off or continued proves nothing.
        """
        return (
            self._play.table.needs_calls
            and not self._play.used
            and self._run.has_spoken
            and not self._run.prefix
            and self._run.finish in {"stop", "other"}
            and may_learn_calls(self._run.model)
        )

    async def _ask_for_calls(self) -> None:
        """Ask the model for the calls that belong to its reply, in the fenced form.

        The text is kept. A change of mood applies from the next turn on. If the request fails or
        does not fit the window, the turn ends without calls, and the next turn may ask again.
        """
        tools = self._play.table.list_tools(may_wait=False)
        request = self._play.prompts["moods/calls"].render()
        prompt = await asyncio.to_thread(
            make_calls_prompt, self._run.built, self._run.text, request, tools
        )
        if prompt is None:
            return
        self._play.requests += 1
        self._run.progress.transcript.append_event(CALLS_REQUESTED, {})
        self._run.notify()
        stream = stream_calls(self._run.model, prompt, tools, self._run.built.window.sampling)
        try:
            async with contextlib.aclosing(stream):
                async for piece in stream:
                    if isinstance(piece, TokenUsage):
                        self._run.usage = add_usage(self._run.usage, piece)
                    elif not self._play.table.is_over:
                        self._play.used.append(piece.name)
                        self._emit(await self._play.table.use(piece, may_wait=False))
        except ModelError as error:
            log.info("turn.calls_not_told", turn_id=self._run.turn_id, problem=error.slug)
        self._play.support = "fenced"

    def _begin_paragraph(self, text: str) -> None:
        """Separate text after a tool's answer from the text before it."""
        said = self._run.progress.transcript.join("text")
        if said and not said[-1].isspace() and not text[0].isspace():
            self._run.add(TextPiece(PARAGRAPH))


def _is_speech(piece: Piece) -> bool:
    return isinstance(piece, TextPiece | ThinkingPiece) and bool(piece.text.strip())
