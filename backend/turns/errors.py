"""Errors of turns before the model is asked."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from backend.errors import (
    AppError,
    ConflictError,
    NotFoundError,
    ValidationError,
)


class TurnNotFoundError(NotFoundError):
    """The turn does not exist or belongs to another user."""

    slug, title = "turn-not-found", "Turn not found"


class TurnInProgressError(ConflictError):
    """Another turn runs in this chat. Clients can follow it by its `turn_id`."""

    slug, title = "turn-in-progress", "A turn is in progress in this chat"

    def __init__(self, turn_id: UUID | None = None) -> None:
        super().__init__(
            "Follow it at /turns/{turn_id}/events, stop it, or wait until it has ended.",
            extra={"turn_id": str(turn_id)} if turn_id else {},
        )


class TurnWaitingError(ConflictError):
    """A turn of the chat waits for its player. `waiting` is the data of the choice."""

    slug, title = "turn-waiting", "A turn waits for your choice"

    def __init__(self, turn_id: UUID, waiting: dict[str, Any] | None) -> None:
        super().__init__(
            "Choose with POST /turns/{turn_id}/choice, or stop the turn.",
            extra={"turn_id": str(turn_id), "waiting": waiting},
        )


class TurnNotWaitingError(ConflictError):
    """The turn runs or has ended."""

    slug, title = "turn-not-waiting", "The turn does not wait for a choice"


class ChoiceMadeError(ConflictError):
    """Another option was chosen before. `option` is its id."""

    slug, title = "choice-made", "Another option was already chosen"

    def __init__(self, option: str) -> None:
        super().__init__("The choice cannot be changed.", extra={"option": option})


class TurnIdReusedError(ConflictError):
    """The turn id was used for another request."""

    slug, title = "turn-id-reused", "This turn id was used for another request"


class ChatChangedError(ConflictError):
    """The chat changed several times while its prompt was built."""

    slug, title = "chat-changed", "The chat has changed"


class NothingToAnswerError(ValidationError):
    """The request has no line, and the chat has no line to answer."""

    slug, title = "nothing-to-answer", "No line to answer"


class NotContinuableError(ConflictError):
    """The path does not end with a reply that can be continued."""

    slug, title = "not-continuable", "No reply to continue"


class TurnInterruptedError(AppError):
    """The server stopped while the reply was written. The text so far is kept."""

    status, slug, title = 503, "turn-interrupted", "The reply was cut off"


class ContextNotFoundError(NotFoundError):
    """The message has no context record. Only replies of a model have one."""

    slug, title = "context-not-found", "Context record not found"


class OpeningTooLongError(ValidationError):
    """The greetings of a new chat are too long together."""

    slug, title = "opening-too-long", "The greetings are too long"
