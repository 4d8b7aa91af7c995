"""Plain models: chat completions of any model of the account, without a chat. Nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.generation.model import JsonForm, Piece, Tool, ToolChoice
from backend.generation.sampling import Sampling
from backend.openai_api.contracts import SentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRequest:
    """A chat completion of a plain model.

    Attributes:
        model: The id of a model, `<provider>/<model>` or `demo`.
        messages: The client's messages, in order.
        sampling: The client's settings. Those that the model does not support are left out.
        tools: The client's tools.
        tool_choice: The tools that the model may or must call.
        form: The member `response_format`. None is text.
        n: The number of choices.
        extra: Unknown parameters to pass on.
        chat_id: The chat of a quiet request.
    """

    model: str
    messages: Sequence[SentMessage]
    sampling: Sampling = Sampling()  # noqa: RUF009  # frozen
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice()  # noqa: RUF009  # frozen
    form: JsonForm | None = None
    n: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    chat_id: UUID | None = None


class PlainReply:
    """The choices of one request while they are written.

    Attributes:
        left_out: The parameters that are not sent, by the names of the API. It is complete once
            `pieces` has ended.
    """

    left_out: Sequence[str]

    def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Yield the index of a choice and a piece of it: `TextPiece`, `ThinkingPiece`, `ToolCall`,
        `TextReset`, `ThinkingReset`, and `Finish`. The last is index 0 and the `TokenUsage` of all.

        Closing it ends the requests. Raises `ModelError`.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """End the requests. Required if `pieces` is never iterated."""


class PlainModels:
    """Requests to plain models."""

    async def start(self, identity: Identity, *requests: PlainRequest) -> PlainReply:
        """Begin a request. The choices of several requests are numbered in order.

        Waits for the first piece for some seconds, so that most errors of a provider are raised
        here.

        Raises:
            UnknownModelError: The account has no such model.
            ValidationError: The messages, tools or the number of choices are not valid.
            QuotaExceededError: A quota is used up.
            ModelError: The provider failed before the first piece.
        """
        raise NotImplementedError
