"""The built-in model: no key, no network, no language model. It says so in every reply.

The user's last line can command it (`/demo help` says how), so that everything around a model,
its failures included, can be tried without one. For the chronicle's agent and for summaries it
answers by simple rules (`_demo_agent`).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

from backend.generation._demo_agent import (
    SAYINGS,
    calls,
    chapter,
    compaction,
    glossary,
    last_line,
    scene,
    summary,
    system_of,
    triage,
)
from backend.generation._demo_play import play
from backend.generation.figures import Price
from backend.generation.model import (
    Finish,
    FinishReason,
    ModelEmptyReplyError,
    ModelError,
    ModelInterruptedError,
    ModelRateLimitError,
    ModelSpec,
    ModelUnavailableError,
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
from backend.generation.server_abilities import NOTHING_LEARNED, ModelAbilities

DEMO_SPEC = ModelSpec(
    id="demo",
    provider="demo",
    name="demo",
    title="Demo (no language model)",
    context_window=1_000_000,
    max_output_tokens=1_000_000,
    tokenizer="o200k_base",
    accepts=frozenset(SAMPLING_FIELDS),
    fixed=frozenset({"tool_support"}),
    price=Price(input=0, output=0),
    figures_from="table",
)

_COMMAND = re.compile(
    r"^(?:[^\n:/]{1,80}:\s*)?/demo(?:\s+([a-z-]+))?(?:\s+(\d{1,7}))?", re.MULTILINE
)
"""At the head of a line, after the speaker's name where the prompt puts one."""

_CHARACTER = re.compile(r"\bYou are ([A-Z][^\n.,;:(]{0,60})")
_FAILURES: Mapping[str, Callable[[], ModelError]] = {
    "fail": partial(ModelUnavailableError, "The demo model was told to fail."),
    "fail-midway": partial(ModelUnavailableError, "The demo model was told to fail midway."),
    "cut": partial(ModelInterruptedError, "The demo model was told to break off."),
    "rate-limit": partial(ModelRateLimitError, "The demo was told so.", retry_after=30),
}
_WORDS_BEFORE_FAILING = 8
_COMMANDS = {"slow", "think", "long", "silent", *_FAILURES}


class DemoModel:
    """A `ChatModel` that needs nothing. The same prompt always gets the same reply.

    `tokens_per_second` is its pace; 0 and infinity mean without a pause.
    """

    def __init__(self, tokens_per_second: float) -> None:
        self.spec = DEMO_SPEC
        is_paced = tokens_per_second > 0 and math.isfinite(tokens_per_second)
        self._delay = 1 / tokens_per_second if is_paced else 0.0

    @property
    def learned(self) -> ModelAbilities:
        """See `ChatModel`. Its spec says all of it."""
        return NOTHING_LEARNED

    def learn(self, **changes: Any) -> None:
        """See `ChatModel`. Nothing has to be remembered."""

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,  # noqa: ARG002 - it says what it says
    ) -> AsyncGenerator[Piece, None]:
        """See `ChatModel`. Word by word, at the configured pace."""
        kept = compaction(prompt, tools)
        told = summary(prompt) if kept is None else "" if kept else "Nothing to keep."
        command, words = ("", told.split()) if told is not None else _reply(prompt)
        is_told_so = kept is not None or _COMMAND.search(last_line(prompt))
        narration, made = (None, kept or []) if is_told_so else play(prompt, tools)
        if narration is not None:
            words = narration.split()
        thoughts = re.findall(r" ?[^ ]+", SAYINGS["thoughts"]) if command == "think" else []
        pieces, finish = _limited(words, sampling)
        said: list[Piece] = [*map(ThinkingPiece, thoughts), *map(TextPiece, pieces)]
        fails_at = _WORDS_BEFORE_FAILING if command in {"fail-midway", "cut"} else 0
        delay = self._delay * (10 if command == "slow" else 1)
        clock = asyncio.get_running_loop().time
        beat = clock()
        for number, piece in enumerate(said):
            if command in _FAILURES and number == fails_at:
                failure = _FAILURES[command]
                raise failure()
            # At even distances: a late word does not delay those after it.
            beat += delay
            await asyncio.sleep(max(0.0, beat - clock()))
            yield piece
        if not pieces and not made:
            raise ModelEmptyReplyError("The demo model was told to say nothing.")
        for call in made:
            yield call
        yield _usage(prompt, len(said), thinking=len(thoughts))
        yield Finish("tool_calls" if made else finish)

    async def call_tools(
        self,
        prompt: Prompt,
        tools: Sequence[Tool],
        sampling: Sampling,  # noqa: ARG002 - nothing is sampled
    ) -> ToolAnswer:
        """See `ChatModel`. The tools of the chronicle's agent, and no others."""
        if made := calls(prompt, tools):
            usage = _usage(prompt, len(made))
            return ToolAnswer(text="", calls=made, usage=usage, finish="tool_calls")
        text = "The demo model does not call these tools."
        usage = _usage(prompt, len(text.split()))
        return ToolAnswer(text=text, calls=(), usage=usage, finish="stop")

    async def structured(
        self,
        prompt: Prompt,
        schema: Mapping[str, Any],
        sampling: Sampling,  # noqa: ARG002 - nothing is sampled
    ) -> StructuredAnswer:
        """See `ChatModel`. Triage, a glossary, a scene, a chapter, or lines to say next."""
        asked = schema.get("properties", {})
        if "significant" in asked:
            value = triage(prompt, schema)
        elif "terms" in asked:
            value = glossary(prompt)
        else:
            tell = scene if "key_moments" in asked else chapter
            value = tell(prompt) if "summary" in asked else {"lines": SAYINGS["next_lines"]}
        return StructuredAnswer(value, _usage(prompt, 1))


def _limited(words: Iterable[str], sampling: Sampling) -> tuple[list[str], FinishReason]:
    """What may be said, as pieces, and why it ends there; a word counts as a token."""
    text = " ".join(words)
    text = text[
        : min((at for stop in sampling.stop or () if (at := text.find(stop)) >= 0), default=None)
    ]
    pieces: list[str] = re.findall(r" ?[^ ]+", text)
    most = sampling.max_output_tokens
    is_cut = most is not None and len(pieces) > most
    return pieces[:most], "length" if is_cut else "stop"


def _reply(prompt: Prompt) -> tuple[str, Iterable[str]]:
    """The command in the user's last line, if there is one, and the words of the reply."""
    line = last_line(prompt)
    command = _COMMAND.search(line)
    if command and command[1] == "long":
        told = line[command.end() :].partition("\n")[0].split()
        count = min(int(command[2] or 200), 100_000)
        return "long", islice(cycle([*told, *SAYINGS["story"].split()]), count)
    if command and (command[1] == "silent" or command[1] not in _COMMANDS):
        return "", [] if command[1] == "silent" else SAYINGS["help"].split()
    named = _CHARACTER.search(system_of(prompt))
    quote = " ".join(line.split())
    quote = quote if len(quote) <= 160 else f"{quote[:160].rstrip()}..."  # noqa: PLR2004
    name = named[1].strip() if named else "The character"
    opening = SAYINGS["opening"].format(name=name, quote=quote or "...")
    reply = f"{opening} {SAYINGS['explanation']}"
    return command[1] if command else "", reply.split()


def _usage(prompt: Prompt, completion: int, *, thinking: int = 0) -> TokenUsage:
    """An estimate by length: counting a full window would cost more than the reply."""
    characters = sum(len(message.text) for message in prompt.messages)
    return TokenUsage(
        prompt_tokens=max(1, characters // 4),
        completion_tokens=completion,
        thinking_tokens=thinking,
    )
