"""How each provider is reached. Plain values: whoever reads the settings fills them in."""

from __future__ import annotations

from dataclasses import dataclass, field

DEFAULT_GEMINI_MODELS = ("gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.5-flash-lite")


@dataclass(frozen=True, slots=True)
class GeminiConfig:
    """Gemini, through Google AI's API.

    Times are in seconds. `chunk_timeout` is the longest silence within a streamed reply,
    `answer_timeout` the longest wait for one that comes as a whole.
    """

    api_key: str = field(repr=False)
    models: tuple[str, ...] = DEFAULT_GEMINI_MODELS
    base_url: str | None = None
    chunk_timeout: float = 60
    connect_timeout: float = 10
    answer_timeout: float = 300


@dataclass(frozen=True, slots=True)
class OpenAICompatibleConfig:
    """A server that speaks OpenAI's chat completions. `base_url` usually ends in `/v1`.

    Nothing is known of its models but what is said here. Times as in `GeminiConfig`.
    """

    base_url: str
    models: tuple[str, ...]
    context_window: int
    max_output_tokens: int
    api_key: str | None = field(default=None, repr=False)
    chunk_timeout: float = 60
    connect_timeout: float = 10
    answer_timeout: float = 300


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """The built-in model. `tokens_per_second` is its pace; 0 and infinity mean without a pause."""

    tokens_per_second: float = 50
