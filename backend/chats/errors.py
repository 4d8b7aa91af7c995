"""What can go wrong with chats and messages."""

from __future__ import annotations

from backend.errors import ConflictError, NotFoundError, ValidationError


class ChatNotFoundError(NotFoundError):
    """No such chat, or someone else's."""

    slug, title = "chat-not-found", "No such chat"


class MessageNotFoundError(NotFoundError):
    """No such message, or someone else's."""

    slug, title = "message-not-found", "No such message"


class MessageTooLongError(ValidationError):
    """The text is longer than the settings allow."""

    slug, title = "message-too-long", "The text is too long"


class EmptyMessageError(ValidationError):
    """A message needs a text."""

    slug, title = "message-empty", "A message needs a text"


class MessageBusyError(ConflictError):
    """A reply is being written there right now."""

    slug, title = "message-busy", "A reply is being written there"


class NotOnlyThoughtsError(ConflictError):
    """The message already has a text, or it has no thoughts."""

    slug, title = "not-only-thoughts", "The message is not made of thoughts alone"
