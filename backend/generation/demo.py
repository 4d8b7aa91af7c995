"""The built-in model: no key, no network, no language model. It says so in every reply.

The user's last line can command it (`/demo help` says how), so that everything around a model,
its failures included, can be tried without one. For the chronicle's agent and for summaries it
answers by simple rules (`_demo_tools`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from backend.generation._configs import DemoConfig
from backend.generation._demo_script import Script, script_for
from backend.generation._demo_tools import calls, summary, triage
from backend.generation._schema_sample import sample
from backend.generation.model import (
    Finish,
    FinishReason,
    ModelEmptyReplyError,
    ModelSpec,
    Piece,
    Prompt,
    StructuredAnswer,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolAnswer,
)
from backend.generation.sampling import SAMPLING_FIELDS, Sampling

DEMO_SPEC = ModelSpec(
    id="demo",
    provider="demo",
    name="demo",
    title="Demo (no language model)",
    context_window=1_000_000,
    max_output_tokens=1_000_000,
    tokenizer="o200k_base",
    accepts=frozenset(SAMPLING_FIELDS),
)

_CHARACTERS_A_TOKEN = 4

_NEXT_LINES = (
    "I look around and ask what happened here.",
    "“Tell me more,” I say, and take a step closer.",
    "I say nothing, and wait to see what they do next.",
    "I reach for the door. “We should go. Now.”",
)


class DemoModel:
    """A `ChatModel` that needs nothing. The same prompt always gets the same reply."""

    def __init__(self, config: DemoConfig) -> None:
        self.spec = DEMO_SPEC
        pace = config.tokens_per_second
        self._delay = 1 / pace if pace > 0 and math.isfinite(pace) else 0.0

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """See `ChatModel`. Word by word, at the configured pace."""
        told = summary(prompt)
        script = script_for(prompt) if told is None else Script(words=told.split())
        rhythm = _Rhythm(self._delay * script.pace)
        for word in _spaced(script.thoughts):
            await rhythm.beat()
            yield ThinkingPiece(word)
        limits = _Limits(sampling)
        for said, word in enumerate(_spaced(script.words)):
            if script.error is not None and said == script.fails_after:
                raise script.error()
            if not (allowed := limits.admit(word)):
                break
            await rhythm.beat()
            yield TextPiece(allowed)
        if not limits.tokens:
            raise ModelEmptyReplyError("The demo model was told to say nothing.")
        thinking = len(script.thoughts)
        yield _usage(prompt, completion=limits.tokens + thinking, thinking=thinking)
        yield Finish(limits.finish)

    async def call_tools(
        self,
        prompt: Prompt,
        tools: Sequence[Tool],
        sampling: Sampling,  # noqa: ARG002 - nothing is sampled
    ) -> ToolAnswer:
        """See `ChatModel`. The tools of the chronicle's agent, and no others."""
        if made := calls(prompt, tools):
            usage = _usage(prompt, completion=len(made))
            return ToolAnswer(text="", calls=made, usage=usage, finish="tool_calls")
        text = "The demo model does not call these tools."
        usage = _usage(prompt, completion=len(text.split()))
        return ToolAnswer(text=text, calls=(), usage=usage, finish="stop")

    async def structured(
        self,
        prompt: Prompt,
        schema: Mapping[str, Any],
        sampling: Sampling,  # noqa: ARG002 - nothing is sampled
    ) -> StructuredAnswer:
        """See `ChatModel`. Triage of new lines by simple rules; else a value that is made up."""
        value = triage(prompt, schema)
        made = sample(schema, _NEXT_LINES) if value is None else value
        return StructuredAnswer(made, _usage(prompt, completion=1))


class _Rhythm:
    """Beats at even distances: a late one does not delay those after it."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._clock = asyncio.get_running_loop().time
        self._next = self._clock()

    async def beat(self) -> None:
        """Wait for the next beat; without a delay, only let others run."""
        self._next += self._delay
        await asyncio.sleep(max(0.0, self._next - self._clock()))


class _Limits:
    """Ends a reply at `max_output_tokens` (a word counts as one) and at a stop sequence."""

    def __init__(self, sampling: Sampling) -> None:
        self._most = math.inf if sampling.max_output_tokens is None else sampling.max_output_tokens
        self._stops = sampling.stop or ()
        self._longest_stop = max(map(len, self._stops), default=0)
        self._tail = ""
        self._stopped = False
        self.tokens = 0
        self.finish: FinishReason = "stop"

    def admit(self, word: str) -> str:
        """As much of `word` as may still be said: nothing, once the reply is over."""
        if self._stopped:
            return ""
        if self.tokens >= self._most:
            self.finish = "length"
            return ""
        said = len(self._tail)
        text = self._tail + word
        cuts = [cut for stop in self._stops if (cut := text.find(stop)) >= 0]
        self._stopped = bool(cuts)
        self._tail = text[-self._longest_stop :] if self._stops else ""
        allowed = text[said : min(cuts, default=len(text))]
        self.tokens += bool(allowed)
        return allowed


def _spaced(words: Iterable[str]) -> Iterator[str]:
    """Each word but the first with a space before it."""
    for index, word in enumerate(words):
        yield f" {word}" if index else word


def _usage(prompt: Prompt, *, completion: int, thinking: int = 0) -> TokenUsage:
    """An estimate by length: counting a full window would cost more than the reply."""
    characters = sum(len(message.text) for message in prompt.messages)
    return TokenUsage(
        prompt_tokens=max(1, characters // _CHARACTERS_A_TOKEN),
        completion_tokens=completion,
        thinking_tokens=thinking,
    )
