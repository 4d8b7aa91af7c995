"""The third phase of a prompt: ready to be sent, asked for tool calls, or refused as too long.

The adapter of a model learns the window from a refusal. If the prompt was built for that window,
its tokens are worth more than was assumed, or tools and rounds of calls took the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile

import msgspec
from msgspec import structs

from backend.context.assembly import AssembledPrompt, LeftOut
from backend.context.macros import Variables
from backend.context.record import (
    ContextRecord,
    RecordedBudget,
    RecordedHistory,
    RecordedMessage,
    RecordedPreset,
    RecordedSpeaker,
    RecordedViewpoint,
    RecordedWindow,
    Totals,
    hash_prompt,
    record_item,
)
from backend.core.audience import GM, Witness
from backend.core.reasons import Reason
from backend.generation.catalogue import MessageShape
from backend.generation.images import count_image_tokens
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
from backend.generation.tools.calls import describe_tools
from backend.generation.tools.streams import BLOCK_TOKENS
from backend.lorebooks.activation.timed import TimedState
from backend.turns.prompt.cast import Cast
from backend.turns.prompt.context import Constraint, LoadedChat, LoadedPreset, PromptWindow

REPLY_RESERVES = 4
"""A reply may be this many times as long as its reserve.

The reserve only keeps room free in the window. A model without an output limit may write more."""

MIN_REPLY_TOKENS = 256
"""The expected length of a reply is at least this, because a user may reserve a single token."""

CHARACTERS_PER_TOKEN = 4

_SUMMARY_KINDS = frozenset({"summary", "chapters", "scenes", "state"})
"""Kinds of items that replace messages of the history."""

MAX_REBUILDS = 2
"""Maximum rebuilds of one prompt.

The first refusal reveals the window or a limit of it, the second corrects it."""

UNEXPLAINED_FACTOR = 1.25
"""Factor on the tokens of a prompt after a refusal without numbers, so that it becomes smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPrompt:
    """An assembled prompt with all data that is stored with its reply.

    Counts are in `window.unit`.
    """

    loaded: LoadedChat
    window: PromptWindow
    assembled: AssembledPrompt
    memory_first: bool
    variables: Variables
    prompt_files: dict[str, str]
    timed: TimedState
    near_misses: Sequence[LeftOut]
    notes: Sequence[str]

    @property
    def prompt(self) -> Prompt:
        return Prompt(
            self.assembled.messages, stable=self.assembled.stable, reply_room=self.reply_room
        )

    @property
    def sampling(self) -> Sampling:
        """The settings that are sent. `reply_room` limits the length of the reply."""
        sampling = self.window.sampling
        if (sampling.max_output_tokens or 0) <= self.reply_room:
            return sampling
        return structs.replace(sampling, max_output_tokens=self.reply_room)

    @property
    def reply_room(self) -> int:
        """The model's tokens that the prompt leaves in the window. At least 1."""
        window = self.window
        prompt = window.to_model_tokens(self.assembled.tokens)
        return max(1, window.spec.usable_window - window.extra - prompt)

    @property
    def reply_limit(self) -> int:
        """Characters after which a reply is cut: four times the expected length."""
        expected = max(
            self.window.limits.reply_reserve,
            self.window.sampling.max_output_tokens or 0,
            MIN_REPLY_TOKENS,
        )
        return min(REPLY_RESERVES * expected * CHARACTERS_PER_TOKEN, MAX_REPLY_CHARACTERS)

    @property
    def has_images(self) -> bool:
        return any(message.images for message in self.assembled.messages)

    @property
    def totals(self) -> Totals:
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
        """The model's tokens of the whole history."""
        window = self.window
        return window.to_model_tokens(round(self.loaded.whole_tokens * window.scale))

    @property
    def sent_tokens(self) -> int:
        """The model's tokens of the sent messages and of the items that replace the others."""
        assembled = self.assembled
        told = [each for each in assembled.items if each.kind in _SUMMARY_KINDS]
        told += [each for each in assembled.retrieved if each.kind != "lore"]
        tokens = assembled.history_tokens + sum(each.tokens for each in told)
        return self.window.to_model_tokens(tokens)

    @property
    def sent_messages(self) -> list[PromptMessage]:
        return shape_messages(self.assembled.messages, self.assembled.shape)

    def with_shape(self, shape: MessageShape) -> BuiltPrompt:
        """Return the same prompt, with the token counts of a message shape."""
        if shape == self.assembled.shape:
            return self
        count = get_tokenizer(self.window.unit.tokenizer).count
        return replace(self, assembled=self.assembled.with_shape(shape, count))

    def with_guidance(self, text: str) -> BuiltPrompt:
        """Return the same prompt with the guidance of another mood."""
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
        return misses_rounds(self.loaded, self.assembled)

    @property
    def history_budget(self) -> int:
        """Stored tokens that the history may take next to the fixed sections.

        A client that does not send all messages has decided on them.
        """
        window, loaded = self.window, self.loaded
        if loaded.client is not None and 0 < loaded.sent_begin < loaded.path_tokens:
            return loaded.path_tokens - loaded.sent_begin
        taken = self.assembled.fixed_tokens + self.assembled.history.image_tokens
        return window.to_stored(window.budget.for_history(taken))


def misses_rounds(loaded: LoadedChat, assembled: AssembledPrompt) -> bool:
    leaf = loaded.target.leaf
    # Messages that the viewpoint does not know are not missing. A client has chosen its history.
    if (
        loaded.client is not None
        or leaf is None
        or not loaded.sums_rounds
        or loaded.viewpoint != GM
    ):
        return False
    kept = assembled.history.positions
    first = kept[0] if kept else leaf.position + 1
    told = loaded.summary.position + 1 if loaded.summary else 0
    return first > (max(told, loaded.story.unread.position) if loaded.story.unread else told)


def make_calls_prompt(
    built: BuiltPrompt, reply: str, request: str, tools: Sequence[Tool]
) -> Prompt | None:
    """Return a prompt with the reply and a request for its tool calls.

    CPU-bound: some milliseconds.

    The prompt is kept whole if it fits, because a local server has it in its cache. Otherwise only
    its leading system messages remain, and the messages from the user's last line on.

    Args:
        built: The prompt of the reply.
        reply: The text of the reply.
        request: The text that asks for the calls.
        tools: The tools that may be called.

    Returns:
        None if the shorter form does not fit either.
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
        tokens += window.to_model_tokens(count_image_tokens(*prompt.messages))
    if tokens + BLOCK_TOKENS > room:
        return None
    return replace(prompt, messages=[*prompt.messages, *end], reply_room=room - tokens)


def _shorten(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Return the messages without the conversation before the user's last line."""
    leading = list(takewhile(lambda message: message.role == "system", messages))
    spoken = [place for place, message in enumerate(messages) if message.role == "user"]
    return [*leading, *messages[max(len(leading), spoken[-1] if spoken else 0) :]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPrompt:
    """A prompt that was refused as too long.

    Attributes:
        needed: Its length in the model's tokens, reported or estimated.
        window: The model's window, reported or learned from the refusal.
        counted: Its counted tokens.
        is_reported: True if the server reported `needed`, and a tokenizer can explain the number.
        extra: The model's tokens that the request took in addition to the prompt.
    """

    needed: int
    window: int
    counted: int
    is_reported: bool
    extra: int

    @property
    def note(self) -> str:
        """The note about it in the context record of the next prompt."""
        return (
            f"The model refused a first prompt of {self.needed:,} tokens: its context window has "
            f"{self.window:,}. The prompt was built again."
        )

    def complete(self, error: ModelContextOverflowError) -> ModelContextOverflowError:
        """Return the error of a turn that ends with this refusal. Missing numbers are estimated."""
        if error.window is not None and error.needed is not None:
            return error
        completed = ModelContextOverflowError(
            f"The prompt needs about {self.needed:,} tokens. The model's context window has about "
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
    """Complete a refusal with the estimated prompt size and the learned window.

    A server may report the prompt with or without the requested reply. The reading that is closer
    to the estimate is used.

    Args:
        error: The refusal.
        built: The refused prompt.
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


MAX_LEFT_OUT = 200
"""A record lists this many left-out items one by one."""


def make_record(built: BuiltPrompt) -> ContextRecord:
    """Return the record of a prompt, in the model's tokens. Hashes the whole prompt."""
    loaded, assembled = built.loaded, built.assembled
    record = ContextRecord(
        model=built.window.spec.id,
        tokenizer=built.window.unit.tokenizer,
        ratio=round(built.window.ratio, 4),
        budgets=RecordedBudget(**asdict(built.window.limits)),
        totals=built.totals,
        items=[record_item(item) for item in assembled.items],
        retrieved=[record_item(item) for item in assembled.retrieved],
        history=_record_history(built),
        left_out=_record_left_out(assembled.left_out),
        near_misses=[structs.replace(each) for each in built.near_misses],
        memory_first=built.memory_first,
        prompt_files=dict(built.prompt_files),
        prompt_hash=hash_prompt(assembled.messages),
        preset=_record_preset(loaded.preset),
        window=RecordedWindow(
            tokens=built.window.spec.context_window, source=built.window.spec.figures_from
        ),
        shape=assembled.shape,
        unsent_settings=list(built.window.unsent),
        speaker=_record_speaker(loaded.cast),
        viewpoint=_record_viewpoint(loaded),
    )
    record.notes += built.notes
    if built.window.is_estimated:
        record.notes.append("the chat's token counts are being recalculated for this model")
    messages = (_summarise_older(built), _summarise_unknown(loaded))
    record.left_out[:0] = [each for each in messages if each is not None]
    _convert_counts(record, built)
    return record


def _record_viewpoint(loaded: LoadedChat) -> RecordedViewpoint | None:
    viewpoint = loaded.viewpoint
    if viewpoint == GM:
        return None
    seen_by = viewpoint.character_id if isinstance(viewpoint, Witness) else viewpoint
    return RecordedViewpoint(id=str(seen_by), name=loaded.viewer)


def _record_preset(preset: LoadedPreset | None) -> RecordedPreset | None:
    if preset is None:
        return None
    return RecordedPreset(
        id=preset.id,
        name=preset.fields.name,
        revision=preset.revision,
        chosen_by=preset.chosen_by,
    )


def _record_speaker(cast: Cast) -> RecordedSpeaker | None:
    if cast.speaker.id is None or not cast.reasons:
        return None
    return RecordedSpeaker(id=cast.speaker.id, name=cast.speaker.name, reasons=list(cast.reasons))


def _record_left_out(left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """List the first left-out items and sum up the others, because a record has to stay small."""
    recorded = [structs.replace(each) for each in left_out[:MAX_LEFT_OUT]]
    if more := left_out[MAX_LEFT_OUT:]:
        recorded.append(
            LeftOut(
                kind="more",
                title=f"{len(more):,} more",
                tokens=sum(each.tokens for each in more),
                reasons=[Reason("not_listed")],
            )
        )
    return recorded


def _record_history(built: BuiltPrompt) -> RecordedHistory | None:
    history, leaf = built.assembled.history, built.loaded.target.leaf
    if leaf is None or not history.positions:
        return None
    first, last = history.positions[0], history.positions[-1]
    present = frozenset(history.positions)
    goes_on, gap = built.loaded.target.line_kind == "continue", built.assembled.gap
    return RecordedHistory(
        leaf_id=leaf.id,
        first=first,
        last=last,
        count=len(history.positions) - (gap.count if gap else 0),
        tokens=built.assembled.history_tokens,
        without=[place for place in range(first, last + 1) if place not in present],
        cut=len(history.messages[-1].text) if goes_on else None,
        names=built.window.unit.names and history.has_names,
        omitted_first=history.positions[gap.start] if gap else None,
        omitted_last=history.positions[gap.stop - 1] if gap else None,
        thoughts=sorted(present.intersection(history.thoughts)),
        marks={place: words for place, words in history.marks.items() if place in present},
        images={place: count for place, count in history.images.items() if place in present},
        changed={
            place: RecordedMessage(role=message.role, images=len(message.images), text=message.text)
            for place, message in history.changed.items()
        },
    )


def _summarise_older(built: BuiltPrompt) -> LeftOut | None:
    """Return one entry for all messages before the history."""
    history = built.assembled.history
    leaf = built.loaded.target.leaf
    first = history.positions[0] if history.positions else (leaf.position + 1 if leaf else 0)
    if first <= 0 or leaf is None:
        return None
    kept = sum(history.tokens) - history.image_tokens
    tokens = max(0, built.loaded.path_tokens - kept)
    if tokens == 0:
        return None
    title = "message 1" if first == 1 else f"messages 1 to {first}"
    return LeftOut(kind="history", title=title, tokens=tokens, reasons=[Reason("budget")])


MAX_SPANS = 5
"""Spans of unknown messages that are listed; the other messages are only counted."""


def _summarise_unknown(loaded: LoadedChat) -> LeftOut | None:
    """Return one entry for all messages of the path that the viewpoint does not know."""
    if not loaded.unknown:
        return None
    spans: list[tuple[int, int]] = []
    for each in loaded.unknown:
        if spans and spans[-1][1] == each.position:
            spans[-1] = spans[-1][0], each.position + 1
        else:
            spans.append((each.position, each.position + 1))
    parts = [
        f"{first + 1}" if end == first + 1 else f"{first + 1} to {end}"
        for first, end in spans[:MAX_SPANS]
    ]
    more = sum(end - first for first, end in spans[MAX_SPANS:])
    noun = "message" if len(loaded.unknown) == 1 else "messages"
    return LeftOut(
        kind="history",
        title=f"{noun} {', '.join(parts)}" + (f" and {more:,} more" if more else ""),
        tokens=sum(each.tokens for each in loaded.unknown),
        reasons=[Reason("unknown", name=loaded.viewer, count=len(loaded.unknown))],
    )


def _convert_counts(record: ContextRecord, built: BuiltPrompt) -> None:
    if built.window.ratio == 1:
        return
    for item in (*record.items, *record.retrieved):
        item.tokens = built.window.to_model_tokens(item.tokens)
    for left_out in record.left_out:
        left_out.tokens = built.window.to_model_tokens(left_out.tokens)
        left_out.reasons = [
            structs.replace(each, count=built.window.to_model_tokens(each.count or 0))
            if each.kind == "budget_left"
            else each
            for each in left_out.reasons
        ]
    if record.history is not None:
        record.history.tokens = built.window.to_model_tokens(record.history.tokens)
