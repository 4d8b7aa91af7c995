"""The prompt that asks a model for the tool calls of a reply that it has already written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import msgspec
from msgspec import structs

from backend.context.assembly import Assembled
from backend.context.layout import LeftOut
from backend.context.macros import Variables
from backend.context.record import Totals
from backend.core.audience import GM
from backend.generation.catalogue import MessageShape
from backend.generation.message_shapes import shape_messages
from backend.generation.model import (
    MAX_REPLY_CHARACTERS,
    ModelContextOverflowError,
    Prompt,
    PromptMessage,
    Tool,
    ToolRound,
)
from backend.generation.sampling import Sampling
from backend.generation.tokens import MESSAGE_OVERHEAD, RATIO_BOUNDS, get_tokenizer
from backend.generation.tools.arguments import describe_tools
from backend.generation.tools.streams import BLOCK_TOKENS
from backend.lorebooks.activation.timed import TimedState
from backend.turns.prompt.context import Constraint, LoadedChat, PromptWindow

REPLY_RESERVES = 4
"""A reply may be this many times as long as its reserve. The reserve only keeps room free in the
window, so a model that is asked for no length may write more."""

MIN_REPLY_TOKENS = 256
"""Tokens that a reply may be expected to take in any case: a user may reserve a single one."""

CHARACTERS_PER_TOKEN = 4

_SUMMARY_KINDS = frozenset({"summary", "chapters", "scenes", "state"})
"""Kinds of items that say what happened, in place of lines that are not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPrompt:
    """A prompt, ready to be sent, and all that has to be stored with its reply.

    Counts are in the window's `unit`.
    """

    loaded: LoadedChat
    window: PromptWindow
    assembled: Assembled
    memory_first: bool
    variables: Variables
    prompt_files: dict[str, str]
    timed: TimedState
    near_misses: Sequence[LeftOut]
    notes: Sequence[str]

    @property
    def prompt(self) -> Prompt:
        """What is sent."""
        return Prompt(
            self.assembled.messages, stable=self.assembled.stable, reply_room=self.reply_room
        )

    @property
    def sampling(self) -> Sampling:
        """The settings that are sent. The longest reply is limited to `reply_room`."""
        sampling = self.window.sampling
        if (sampling.max_output_tokens or 0) <= self.reply_room:
            return sampling
        return structs.replace(sampling, max_output_tokens=self.reply_room)

    @property
    def reply_room(self) -> int:
        """The rest of the model's window after the prompt, in the model's tokens: at least 1."""
        window = self.window
        prompt = window.to_model_tokens(self.assembled.tokens)
        return max(1, window.spec.usable_window - window.extra - prompt)

    @property
    def reply_limit(self) -> int:
        """Characters after which a reply is cut: four times those that it was expected to take."""
        expected = max(
            self.window.limits.reply_reserve,
            self.window.sampling.max_output_tokens or 0,
            MIN_REPLY_TOKENS,
        )
        return min(REPLY_RESERVES * expected * CHARACTERS_PER_TOKEN, MAX_REPLY_CHARACTERS)

    @property
    def totals(self) -> Totals:
        """How the window is used, in the model's tokens."""
        assembled, limits, model = self.assembled, self.window.limits, self.window.to_model_tokens
        prompt = model(assembled.tokens)
        return Totals(
            prompt=prompt,
            fixed=model(assembled.fixed_tokens),
            history=model(assembled.history_tokens),
            retrieved=model(assembled.retrieved_tokens),
            reply_reserve=limits.reply_reserve,
            free=limits.prompt - prompt,
            total=limits.total,
            messages=len(assembled.messages),
        )

    @property
    def path_tokens(self) -> int:
        """What the whole history would have taken, in the model's tokens."""
        window = self.window
        return window.to_model_tokens(round(self.loaded.whole_tokens * window.scale))

    @property
    def sent_tokens(self) -> int:
        """What took its place: the lines that were sent, and what tells the rest."""
        assembled = self.assembled
        told = [each for each in assembled.items if each.kind in _SUMMARY_KINDS]
        told += [each for each in assembled.retrieved if each.kind != "lore"]
        tokens = assembled.history_tokens + sum(each.tokens for each in told)
        return self.window.to_model_tokens(tokens)

    @property
    def sent_messages(self) -> list[PromptMessage]:
        """The messages in the shape in which they are sent."""
        return shape_messages(self.assembled.messages, self.assembled.shape)

    def with_shape(self, shape: MessageShape) -> BuiltPrompt:
        """Return the same prompt, counted as it was sent in a shape."""
        if shape == self.assembled.shape:
            return self
        count = get_tokenizer(self.window.unit.tokenizer).count
        return replace(self, assembled=self.assembled.with_shape(shape, count))

    def with_guidance(self, text: str) -> BuiltPrompt:
        """The same prompt, for a mood that has other guidance."""
        assembled, messages = self.assembled, list(self.assembled.messages)
        old = next(item for item in assembled.items if item.kind == "mood")
        if old.text == text:
            return self
        tokens = get_tokenizer(self.window.unit.tokenizer).count(text) + MESSAGE_OVERHEAD
        new = structs.replace(old, text=text, tokens=tokens)
        place = len(messages) - 1 - messages[::-1].index(PromptMessage(old.role, old.text))
        messages[place] = PromptMessage(new.role, new.text)
        assembled = replace(
            assembled,
            messages=messages,
            items=[new if item is old else item for item in assembled.items],
            fixed_tokens=assembled.fixed_tokens + tokens - old.tokens,
        )
        return replace(self, assembled=assembled)

    @property
    def loses_rounds(self) -> bool:
        """Whether lines of a campaign stand neither in the history, its summary, nor its state."""
        return misses_rounds(self.loaded, self.assembled)

    @property
    def history_budget(self) -> int:
        """What history may take beside what is always sent, in tokens as they are stored."""
        window = self.window
        return window.to_stored(window.budget.for_history(self.assembled.fixed_tokens))


def misses_rounds(loaded: LoadedChat, assembled: Assembled) -> bool:
    """Whether lines of a campaign stand neither in the history nor in what tells them."""
    leaf = loaded.target.leaf
    # What a viewpoint may not know is not lost to it.
    if leaf is None or not loaded.sums_rounds or loaded.viewpoint != GM:
        return False
    kept = assembled.history.positions
    first = kept[0] if kept else leaf.position + 1
    told = loaded.summary.position + 1 if loaded.summary else 0
    return first > (max(told, loaded.story.unread.position) if loaded.story.unread else told)


def make_calls_prompt(
    built: BuiltPrompt, reply: str, request: str, tools: Sequence[Tool]
) -> Prompt | None:
    """Return the reply's prompt, then the reply, then the request. CPU-bound: some milliseconds.

    The prompt is kept whole if the window has room for it, because a local server has it in its
    cache. Else the system messages that lead it are kept, and all from the user's last line on.

    Args:
        built: The prompt that the reply was written for.
        reply: The text of the reply.
        request: The text that asks for the calls.
        tools: The tools that may be called.

    Returns:
        None if the window has no room for the shorter form either.
    """
    window = built.window

    def count(texts: Sequence[str]) -> int:
        counted = get_tokenizer(window.unit.tokenizer).count_many(texts)
        return window.to_model_tokens(sum(counted) + MESSAGE_OVERHEAD * len(counted))

    end = [PromptMessage("assistant", reply), PromptMessage("user", request)]
    room = window.limits.total - count([reply, request, describe_tools(tools)])
    prompt, tokens = built.prompt, built.totals.prompt
    if tokens + BLOCK_TOKENS > room:
        prompt = Prompt(_shorten(prompt.messages))
        tokens = count([message.text for message in prompt.messages])
    if tokens + BLOCK_TOKENS > room:
        return None
    return replace(prompt, messages=[*prompt.messages, *end], reply_room=room - tokens)


def _shorten(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Return the messages without the conversation before the user's last line."""
    leading = list(takewhile(lambda message: message.role == "system", messages))
    spoken = [place for place, message in enumerate(messages) if message.role == "user"]
    return [*leading, *messages[max(len(leading), spoken[-1] if spoken else 0) :]]


MAX_REBUILDS = 2
"""Of one request. The first refusal names the window, or bounds it; the second corrects that."""

UNEXPLAINED_FACTOR = 1.25
"""Factor on the tokens of a prompt after a refusal that explains nothing: it has to get smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPrompt:
    """A prompt that was refused as too long.

    Attributes:
        needed: Its length in the model's tokens, reported or estimated.
        window: The model's window, as the refusal named it or as it was learned from it.
        counted: Its counted tokens.
        is_reported: True if the server reported `needed`, and a tokenizer can explain it.
        extra: The model's tokens that the request took in addition to the prompt.
    """

    needed: int
    window: int
    counted: int
    is_reported: bool
    extra: int

    @property
    def note(self) -> str:
        """The sentence that the record of the next prompt has of it."""
        return (
            f"The model refused a first prompt of {self.needed:,} tokens: its context window has "
            f"{self.window:,}. The prompt was built again."
        )

    def complete(self, error: ModelContextOverflowError) -> ModelContextOverflowError:
        """Return the error of a turn that ends with this refusal: with both numbers.

        Those that the server did not report are estimated.
        """
        if error.window is not None and error.needed is not None:
            return error
        completed = ModelContextOverflowError(
            f"The prompt takes about {self.needed:,} tokens. The model's window has about "
            f"{self.window:,} tokens. Lower the context size, or load the model with a larger "
            "window.",
            window=self.window,
            needed=self.needed,
        )
        completed.extra, completed.private = {**error.extra, **completed.extra}, error.private
        return completed


def describe_refusal(
    error: ModelContextOverflowError, built: BuiltPrompt, *, extra: int
) -> RefusedPrompt:
    """Complete a refusal with the estimates of the prompt and the learned window.

    A server may report the prompt alone, or with the reply that was asked for. The reading that is
    nearer to the estimate counts.

    Args:
        error: The refusal.
        built: The prompt that was refused.
        extra: The model's tokens of tools and rounds of calls in the request.
    """
    spec = built.window.models.spec(built.window.spec.id)
    estimate = max(1, built.totals.prompt + extra)
    needed = estimate
    if error.needed is not None:
        without_reply = error.needed - (error.reply_limit or 0)
        readings = [each for each in (error.needed, without_reply) if each > 0]
        needed = min(readings, key=lambda each: abs(math.log(each / estimate)))
    counted = built.assembled.tokens
    least, most = RATIO_BOUNDS
    is_explained = counted * least <= needed - extra <= counted * most
    return RefusedPrompt(
        needed=needed,
        window=error.window or spec.usable_window,
        counted=counted,
        is_reported=error.needed is not None and is_explained,
        extra=extra,
    )


def make_constraint(refused: RefusedPrompt, built: BuiltPrompt) -> Constraint:
    """Return the limits of the next prompt. They make it smaller than the refused one."""
    window = built.window
    ratio = (refused.needed - refused.extra) / max(1, refused.counted)
    ratio = max(window.ratio, min(ratio, RATIO_BOUNDS[1]))
    is_smaller = window.models.spec(window.spec.id).usable_window < window.limits.total
    if not is_smaller and ratio == window.ratio and refused.extra <= window.extra:
        ratio *= UNEXPLAINED_FACTOR
    return Constraint(ratio=ratio, extra=refused.extra)


def count_extra(built: BuiltPrompt, *, tools: Sequence[Tool], rounds: Sequence[ToolRound]) -> int:
    """Estimate the model's tokens of tools and rounds of calls. CPU-bound: some milliseconds."""
    declared = [(tool.name, tool.description, tool.parameters) for tool in tools]
    called = [
        (each.text, [(call.name, call.arguments) for call in each.calls], each.results)
        for each in rounds
    ]
    text = msgspec.json.encode([declared, called]).decode()
    window = built.window
    return window.to_model_tokens(get_tokenizer(window.unit.tokenizer).count(text))
