"""What Talekeeper asks of a language model of any provider.

`ChatModel` is the protocol; each vendor has one adapter file beside this one. Nothing outside an
adapter knows a vendor's types, and every failure that leaves an adapter is a `ModelError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import msgspec

from backend.errors import AppError
from backend.generation.catalogue import Ability, FiguresFrom, MessageShape, Price, ToolSupport
from backend.generation.sampling import Sampling, SamplingField, check_taken
from backend.generation.servers.abilities import ModelAbilities

Role = Literal["system", "user", "assistant"]
Fixable = Literal["tool_support", "shape"]
"""Facts of a model that are learned unless its user sets them."""

FinishReason = Literal["stop", "length", "safety", "tool_calls", "other"]


MAX_REPLY_CHARACTERS = 400_000
"""The length of a reply's text, and of its thoughts: about 100,000 tokens each."""


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
    it is told to keeps those. `reply_room` is what the prompt leaves of the window, in the model's
    tokens; None if nobody has counted it. After `reply_limit` characters of text, or of thoughts,
    the reply is cut.
    """

    messages: Sequence[PromptMessage]
    rounds: Sequence[ToolRound] = ()
    stable: int = 0
    reply_room: int | None = None
    reply_limit: int = MAX_REPLY_CHARACTERS


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
class ThinkingReset:
    """Take back the thoughts that this request has streamed so far: they were the reply."""


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


Piece = (
    TextPiece
    | ThinkingPiece
    | TextReset
    | ThinkingReset
    | ToolCall
    | SentRequest
    | TokenUsage
    | Finish
)


def apply_resets(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces that are left at the end of a stream, without resets."""
    kept: list[Piece] = []
    for piece in pieces:
        match piece:
            case TextReset():
                kept = [each for each in kept if not isinstance(each, TextPiece)]
            case ThinkingReset():
                kept = [each for each in kept if not isinstance(each, ThinkingPiece)]
            case _:
                kept.append(piece)
    return kept


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
    `learned_window` is what its server's answers have shown; the user's setting comes before it.
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
    learned_window: int | None = None

    @property
    def usable_window(self) -> int:
        """The window, unless the server is known to have a smaller one than the user has set."""
        return min(self.context_window, self.learned_window or self.context_window)

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise `SettingNotTakenError` for a setting that the vendor's API does not have.

        A setting that the model's server was found to refuse is left out of requests instead.
        """
        check_taken(sampling, accepts=self.accepts | self.refused, model_id=self.id)


@runtime_checkable
class ChatModel(Protocol):
    """A model that continues a chat. Every failure it raises is a `ModelError`."""

    spec: ModelSpec

    @property
    def learned(self) -> ModelAbilities:
        """The abilities that the model's answers have shown so far."""
        ...

    def learn(self, **changes: Any) -> None:
        """Remember abilities that an answer shows: members of `ModelAbilities`."""
        ...

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
                least one piece of text or of thoughts.
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
    """The model could not be reached, rejected the request, or stopped too early.

    `retryable`: the same request may succeed later. The problem's member `provider_message` quotes
    the provider's own words, if there are any; see `failures`.
    """

    status, slug, title = 502, "model-failed", "The model failed"
    retryable: ClassVar[bool] = False


class ModelUnavailableError(ModelError):
    """There is no connection to the model's server."""

    status, slug, title = 502, "model-unavailable", "The model cannot be reached"
    retryable = True


class ModelServerError(ModelUnavailableError):
    """The model's server reports an internal fault (5xx)."""

    slug, title = "model-server-failed", "The model's server failed"


class ModelLoadingError(ModelUnavailableError):
    """The server has not loaded the model yet."""

    status, slug, title = 503, "model-loading", "The model is still loading"


class ModelOverloadedError(ModelUnavailableError):
    """The server is busy with other requests."""

    status, slug, title = 503, "model-overloaded", "The provider is overloaded"


class ModelWebPageError(ModelUnavailableError):
    """A proxy, a login page or a web interface answered instead of the model's API."""

    slug, title = "model-web-page", "The server answered with a web page"


class ModelRedirectError(ModelUnavailableError):
    """The server redirects. Redirects are never followed, because they would take the key along."""

    slug, title = "model-redirect", "The server redirects to another address"


class ModelForeignAnswerError(ModelUnavailableError):
    """The response is neither a reply nor a known error."""

    slug, title = "model-foreign-answer", "The server's response is not a reply"


class ModelTimeoutError(ModelError):
    """The model sent nothing for longer than the configured limit, or a proxy stopped waiting."""

    status, slug, title = 504, "model-timeout", "The model stopped responding"
    retryable = True


class ModelRateLimitError(ModelError):
    """The provider's rate limit was reached: `retry_after` is in seconds, if it was reported."""

    status, slug, title = 503, "model-rate-limited", "The provider's rate limit was reached"
    retryable = True

    def __init__(self, detail: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(
            detail,
            extra={} if retry_after is None else {"retry_after": retry_after},
            headers={} if retry_after is None else {"Retry-After": str(max(1, ceil(retry_after)))},
        )
        self.retry_after = retry_after


class ModelCreditError(ModelError):
    """The account or the key has no credit left, or has reached its spending limit."""

    status, slug, title = 502, "model-no-credit", "The account has no credit at the provider"


class ModelAuthError(ModelError):
    """The API key is missing, wrong, or has no permission."""

    status, slug, title = 502, "model-key-refused", "The provider rejected the API key"


class ModelRegionError(ModelError):
    """The provider does not answer requests from the country of this server."""

    status, slug, title = 502, "model-region-refused", "The provider does not serve this region"


class ModelDataPolicyError(ModelError):
    """A router has no server for the model that the account's privacy settings allow."""

    status, slug, title = (
        502,
        "model-data-policy",
        "The account's privacy settings exclude this model",
    )


class ModelNotFoundError(ModelError):
    """The provider has no model of this name, or the account may not use it."""

    status, slug, title = 502, "model-not-found", "The provider does not have this model"


class ModelWrongAddressError(ModelError):
    """The server responds, but has no model API at this path."""

    status, slug, title = 502, "model-wrong-address", "The provider's address is not a model API"


class ModelRequestError(ModelError):
    """The provider rejected the form of the request: a setting, a message role, or a tool."""

    status, slug, title = 502, "model-refused-request", "The provider rejected the request"


class ModelContextOverflowError(ModelError):
    """The prompt is longer than the model's context window.

    `window` is the model's window and `needed` the length of the prompt, in the model's tokens;
    each is None if the server did not report it. Some servers include the reply in `needed`:
    `reply_limit` is how long a reply the request asked for, if it did.
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
        self.reply_limit: int | None = None


class ModelBlockedError(ModelError):
    """A content filter blocked the prompt or the reply; `reason` is the provider's word for it."""

    status, slug, title = 502, "model-blocked", "The provider's content filter blocked the text"

    def __init__(self, detail: str = "", *, reason: str = "") -> None:
        super().__init__(detail, extra={"reason": reason} if reason else {})
        self.reason = reason


class ModelDeclinedError(ModelError):
    """The model wrote that it will not do its task. It may do so if it is asked again."""

    status, slug, title = 502, "model-declined", "The model declined to answer"
    retryable = True


class ModelEmptyReplyError(ModelError):
    """The model finished without usable text."""

    status, slug, title = 502, "model-empty-reply", "The model returned an empty reply"
    retryable = True


class ModelMalformedAnswerError(ModelError):
    """The answer cannot be read: the arguments of a call, or a value, are not JSON."""

    status, slug, title = 502, "model-malformed-answer", "The model's answer cannot be read"
    retryable = True


class ModelMalformedCallError(ModelMalformedAnswerError):
    """The model ended its reply with a function call that its provider could not read."""

    slug, title = "model-malformed-call", "The model wrote a malformed function call"


class ModelWritesNoJsonError(ModelMalformedAnswerError):
    """The model wrote no JSON, in any of the ways it was asked. Choose another model."""

    slug, title = "model-writes-no-json", "The model cannot answer in JSON"


class ModelInterruptedError(ModelError):
    """The stream ended before the model had finished."""

    status, slug, title = 502, "model-interrupted", "The reply was cut off"
    retryable = True
