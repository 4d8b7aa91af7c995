"""Errors of chats and messages."""

from __future__ import annotations

from backend.errors import ConflictError, NotFoundError, ValidationError


class ChatNotFoundError(NotFoundError):
    """The chat does not exist or belongs to another user."""

    slug, title = "chat-not-found", "Chat not found"


class MessageNotFoundError(NotFoundError):
    """The message does not exist or belongs to another user."""

    slug, title = "message-not-found", "Message not found"


class MessageTooLongError(ValidationError):
    """The text is longer than the configured limit."""

    slug, title = "message-too-long", "Message too long"


class EmptyMessageError(ValidationError):
    """The message has no text."""

    slug, title = "message-empty", "Empty message"


class MessageBusyError(ConflictError):
    """A reply is being written at or below the message."""

    slug, title = "message-busy", "A reply is being written to this message"


class MessagesFollowError(ConflictError):
    """Messages that the caller does not expect would be deleted as well."""

    slug, title = "messages-follow", "Other messages follow"


class NotOnlyThoughtsError(ConflictError):
    """The message already has text, or it has no thoughts."""

    slug, title = "not-only-thoughts", "The message has text, or no thoughts"
