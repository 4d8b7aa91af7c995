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
    """Another turn is running in this chat: `turn_id` is its id."""

    slug, title = "turn-in-progress", "A turn is already in progress"

    def __init__(self, turn_id: UUID | None = None) -> None:
        super().__init__(
            "Follow it at /turns/{turn_id}/events, stop it, or wait until it is over.",
            extra={"turn_id": str(turn_id)} if turn_id else {},
        )


class TurnWaitingError(ConflictError):
    """A turn of the chat is waiting for the player: `turn_id` is its id, `waiting` the question."""

    slug, title = "turn-waiting", "A turn is waiting for a choice"

    def __init__(self, turn_id: UUID, waiting: dict[str, Any] | None) -> None:
        super().__init__(
            "Choose with POST /turns/{turn_id}/choice, or stop it.",
            extra={"turn_id": str(turn_id), "waiting": waiting},
        )


class TurnNotWaitingError(ConflictError):
    """The turn is running, or has ended."""

    slug, title = "turn-not-waiting", "The turn is not waiting for a choice"


class ChoiceMadeError(ConflictError):
    """Another option was chosen before: `option` is its id."""

    slug, title = "choice-made", "A choice was already made"

    def __init__(self, option: str) -> None:
        super().__init__("What was chosen stays.", extra={"option": option})


class TurnIdReusedError(ConflictError):
    """The turn id was used before, for a different request."""

    slug, title = "turn-id-reused", "The turn id was already used"


class ChatChangedError(ConflictError):
    """The chat's active path kept changing while the prompt was built."""

    slug, title = "chat-changed", "The chat changed during the request"


class NothingToAnswerError(ValidationError):
    """The request has no text, and there is no message to reply to."""

    slug, title = "nothing-to-answer", "Nothing to reply to"


class SpeakerNeededError(ValidationError):
    """The next speaker of the chat is chosen by hand, and the request has no `speaker`."""

    slug, title = "speaker-needed", "Choose who replies"


class NoSpeakerError(ConflictError):
    """No member of the chat may reply unasked."""

    slug, title = "no-speaker", "No one can reply"


class NotContinuableError(ConflictError):
    """The active path does not end with a reply that can be continued."""

    slug, title = "not-continuable", "No reply to continue"


class TurnInterruptedError(AppError):
    """The server stopped while the reply was being written. The text so far is kept."""

    status, slug, title = 503, "turn-interrupted", "The reply was cut off"


class ContextNotFoundError(NotFoundError):
    """The message has no context record. Only replies of a model have one."""

    slug, title = "context-not-found", "Context record not found"


class OpeningTooLongError(ValidationError):
    """The greetings of the new chat are too long together."""

    slug, title = "opening-too-long", "The greetings are too long"
