"""What Talekeeper asks of a language model of any provider.

`ChatModel` is the protocol; each vendor has one adapter file beside this one. Nothing outside an
adapter knows a vendor's types, and every failure that leaves an adapter is a `ModelError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import msgspec

from backend.errors import AppError
from backend.generation.figures import Ability, FiguresFrom, MessageShape, Price, ToolSupport
from backend.generation.sampling import Sampling, SamplingField, check_taken

Role = Literal["system", "user", "assistant"]
Fixable = Literal["tool_support", "shape"]
"""Facts of a model that are learned unless its user sets them."""

FinishReason = Literal["stop", "length", "safety", "tool_calls", "other"]


class PromptMessage(msgspec.Struct, frozen=True, gc=False):
    """One message as the model sees it. A prompt has thousands: they are made a fifth as fast."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for a tool. `arguments` are as the model gave them, parsed, not validated.

    `problem` says in words what could not be read of the call; `arguments` are empty then, and so
    may be `name`. `vendor_state` is opaque JSON: what the vendor wants back with the answer
    (Gemini's thought signature, say). Hand it back untouched.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    vendor_state: Any = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ToolRound:
    """One step of a tool loop that has happened: what the model asked, what it was answered.

    `results` holds one JSON-serialisable value a call, in the calls' order.
    """

    calls: Sequence[ToolCall]
    results: Sequence[Any]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Everything that is sent: messages in order, then the rounds of a tool loop so far.

    The first `stable` messages are likely to begin the next prompt, too: a provider that keeps what
    it is told to keeps those.
    """

    messages: Sequence[PromptMessage]
    rounds: Sequence[ToolRound] = ()
    stable: int = 0


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of the reply. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingPiece:
    """A piece of what the model thought aloud before or amid the reply. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class TextReset:
    """Take back the text that this request has streamed so far: it was something else."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request that was sent in another form than it was asked for: the first piece of a stream.

    `shape` is the message shape that was sent. `left_out` are sampling settings of the user that
    the model cannot take, or cannot take together with another one.
    """

    shape: MessageShape = "lenient"
    left_out: tuple[SamplingField, ...] = ()


MAX_REPORTED_TOKENS = 10_000_000
"""Of one request: several times the largest context window."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens as the provider reported them. `completion_tokens` includes `thinking_tokens`.

    A number that no request can have is brought to the nearest that it can: what a server says is
    added up and stored.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    thinking_tokens: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            reported = getattr(self, each.name)
            object.__setattr__(self, each.name, min(max(reported, 0), MAX_REPORTED_TOKENS))


@dataclass(frozen=True, slots=True)
class Finish:
    """The reply is over. Always the last piece of a stream that did not fail."""

    reason: FinishReason


Piece = TextPiece | ThinkingPiece | TextReset | ToolCall | SentRequest | TokenUsage | Finish


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a model said when it was offered tools: text, calls, or both."""

    text: str
    calls: Sequence[ToolCall]
    usage: TokenUsage | None
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class StructuredAnswer:
    """A value of the schema that was asked for, parsed but not validated against it."""

    value: Any
    usage: TokenUsage | None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of a model that are known before it is called.

    `id` is `provider/name` (`gemini/gemini-2.5-flash`), or a bare name for the built-in demo.
    `provider` is the provider's slug, `provider_name` what people call it.
    `tokenizer` names the vocabulary in `generation.tokens` that comes closest.
    `accepts` are the sampling settings that it takes; others are refused when they are set.
    `refused` are those that its server was found not to take: they are left out of requests.
    `shape` is the message shape that it accepts, and `tool_support` the best way of calling tools
    that is expected of it: see `tool_streams`. Each is what the user set, else what was learned,
    else the default of the preset.
    `excludes` names the settings that may be left out while another one is set.
    `fixed` names those of the two that the user set. Nothing that is learned replaces them.
    """

    id: str
    provider: str
    name: str
    title: str
    context_window: int
    max_output_tokens: int
    tokenizer: str
    accepts: frozenset[SamplingField] = frozenset()
    refused: frozenset[SamplingField] = frozenset()
    tool_support: ToolSupport = "native"
    shape: MessageShape = "lenient"
    excludes: Mapping[SamplingField, Sequence[SamplingField]] = field(
        default_factory=dict[SamplingField, Sequence[SamplingField]]
    )
    fixed: frozenset[Fixable] = frozenset()
    provider_name: str = ""
    price: Price | None = None
    abilities: frozenset[Ability] = frozenset()
    figures_from: FiguresFrom = "default"

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise `SettingNotTakenError` for a setting that the vendor's API does not have.

        A setting that the model's server was found to refuse is left out of requests instead.
        """
        check_taken(sampling, accepts=self.accepts | self.refused, model_id=self.id)


@runtime_checkable
class ChatModel(Protocol):
    """A model that continues a chat. Every failure it raises is a `ModelError`."""

    spec: ModelSpec

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """Yield the reply piece by piece: text or calls, then usage if known, then `Finish`.

        Closing it early hangs up on the provider: iterate inside `contextlib.aclosing`.

        Args:
            prompt: What is sent.
            sampling: What the user set.
            tools: What the model may call. A call is one piece, once it is complete; one that
                can't be read has a `problem` and does not end the reply. Without tools there is at
                least one piece of text.
            schema: JSON Schema of the whole text. Not to be combined with tools.
        """
        ...

    async def call_tools(
        self, prompt: Prompt, tools: Sequence[Tool], sampling: Sampling
    ) -> ToolAnswer:
        """One step of a tool loop: the model answers with text, with calls, or with both."""
        ...

    async def structured(
        self, prompt: Prompt, schema: Mapping[str, Any], sampling: Sampling
    ) -> StructuredAnswer:
        """Ask for one JSON value of `schema`. Not to be combined with tools."""
        ...


class ModelError(AppError):
    """The model could not be reached, refused, or broke off.

    `retryable`: the same request may succeed later.
    """

    status, slug, title = 502, "model-failed", "The model failed"
    retryable: ClassVar[bool] = False


class ModelUnavailableError(ModelError):
    """Not reachable, a 5xx, or an answer that is no answer."""

    status, slug, title = 502, "model-unavailable", "The model cannot be reached"
    retryable = True


class ModelTimeoutError(ModelError):
    """It fell silent for longer than the settings allow."""

    status, slug, title = 504, "model-timeout", "The model fell silent"
    retryable = True


class ModelRateLimitError(ModelError):
    """The provider's limit was reached; `retry_after` seconds, when the provider said so."""

    status, slug, title = 503, "model-rate-limited", "The model's provider asks to slow down"
    retryable = True

    def __init__(self, detail: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(
            detail,
            extra={} if retry_after is None else {"retry_after": retry_after},
            headers={} if retry_after is None else {"Retry-After": str(max(1, round(retry_after)))},
        )
        self.retry_after = retry_after


class ModelAuthError(ModelError):
    """The provider does not take the key."""

    status, slug, title = 502, "model-key-refused", "The model's provider refused the key"


class ModelRequestError(ModelError):
    """The provider does not take the request (a setting, the model's name, the length)."""

    status, slug, title = 502, "model-refused-request", "The model's provider refused the request"


class ModelContextOverflowError(ModelRequestError):
    """The prompt is longer than the model's context window.

    `window` is the model's window and `needed` the length of the prompt with the reply, in the
    model's tokens; each is None if the server did not report it.
    """

    status, slug, title = (
        422,
        "model-context-overflow",
        "The prompt is longer than the model's context window",
    )

    def __init__(
        self, detail: str = "", *, window: int | None = None, needed: int | None = None
    ) -> None:
        reported = {"window": window, "needed": needed}
        super().__init__(
            detail, extra={name: size for name, size in reported.items() if size is not None}
        )
        self.window, self.needed = window, needed


class ModelBlockedError(ModelError):
    """The provider's safety filter let nothing through; `reason` is the provider's word for it."""

    status, slug, title = 502, "model-blocked", "The model's provider blocked the reply"

    def __init__(self, detail: str = "", *, reason: str = "") -> None:
        super().__init__(detail, extra={"reason": reason} if reason else {})
        self.reason = reason


class ModelEmptyReplyError(ModelError):
    """The model finished without a word."""

    status, slug, title = 502, "model-empty-reply", "The model said nothing"
    retryable = True


class ModelMalformedAnswerError(ModelError):
    """An answer came that cannot be read: a call's arguments, or a value, that are no JSON."""

    status, slug, title = 502, "model-malformed-answer", "The model's answer cannot be read"
    retryable = True


class ModelWritesNoJsonError(ModelMalformedAnswerError):
    """It gave no JSON in any of the ways in which it was asked: another model is needed."""

    slug, title = "model-writes-no-json", "The model can't answer in JSON"


class ModelInterruptedError(ModelError):
    """The stream broke off before the model had finished."""

    status, slug, title = 502, "model-interrupted", "The model broke off"
    retryable = True
