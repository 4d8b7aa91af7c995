"""The API shapes of the endpoint's responses, as OpenAI's SDKs read them."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishName = Literal["stop", "length", "tool_calls", "content_filter"]


class CompletionFunction(msgspec.Struct, kw_only=True):
    """The function of a tool call. `arguments` is the JSON text of an object."""

    name: str
    arguments: str


class CompletionToolCall(msgspec.Struct, kw_only=True):
    """A tool call. `index` is its place in the message; only chunks have it."""

    id: str
    function: CompletionFunction
    type: Literal["function"] = "function"
    index: int | msgspec.UnsetType = msgspec.UNSET


class CompletionMessage(msgspec.Struct, kw_only=True):
    """The message of a reply. `content` is null if there are only tool calls."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CompletionToolCall] | msgspec.UnsetType = msgspec.UNSET
    refusal: None = None


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    message: CompletionMessage
    finish_reason: FinishName
    logprobs: None = None


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class CompletionUsage(msgspec.Struct, kw_only=True):
    """The tokens that the provider has reported."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ChatCompletion(msgspec.Struct, kw_only=True):
    """A complete reply. `usage` is absent if the provider has not reported it."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["chat.completion"] = "chat.completion"
    usage: CompletionUsage | msgspec.UnsetType = msgspec.UNSET


class ChunkDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The new part of a message. Only the first chunk of a choice has the role."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CompletionToolCall] | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChunkDelta
    finish_reason: FinishName | None = None


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    """A part of a streamed reply. The last one may have usage, and then no choices."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: CompletionUsage | msgspec.UnsetType | None = msgspec.UNSET


class TextCompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    finish_reason: FinishName | None = None
    logprobs: None = None


class TextCompletion(msgspec.Struct, kw_only=True):
    """A reply to `/v1/completions`, or a part of one that is streamed."""

    id: str
    created: int
    model: str
    choices: list[TextCompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: CompletionUsage | msgspec.UnsetType | None = msgspec.UNSET


class ModelEntry(msgspec.Struct, kw_only=True):
    """A name that `model` accepts. `name` is its title for people."""

    id: str
    created: int
    owned_by: str
    name: str
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct, kw_only=True):
    data: list[ModelEntry]
    object: Literal["list"] = "list"


class EmbeddingEntry(msgspec.Struct, kw_only=True):
    """The vector of one text: numbers, or the base64 text of 32-bit little-endian floats."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
