"""Errors of chats and messages."""

from __future__ import annotations

from uuid import UUID

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


class UnknownFileError(ValidationError):
    """A file of a new message does not exist, belongs to another user, or has waited too long."""

    slug, title = "unknown-file", "Unknown file"


class StoredFileNotFoundError(NotFoundError):
    """The file does not exist or belongs to another user."""

    slug, title = "file-not-found", "File not found"


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


class PresenceMessageError(ConflictError):
    """The message says that a character joins, leaves or is muted, and cannot be changed."""

    slug, title = "presence-message", "The message records who is present"


class MemberNotFoundError(NotFoundError):
    """The character does not exist, belongs to another user, or is not a member of the chat."""

    slug, title = "member-not-found", "Member not found"


class TooManyMembersError(ValidationError):
    """The chat has as many members as are allowed."""

    slug, title = "too-many-members", "Too many members"


class MemberAbsentError(ConflictError):
    """A turn asks a character that is not there, or is for its ears only.

    `character_id` is the character, and `name` its name.
    """

    slug, title = "member-absent", "The character is absent"

    def __init__(self, character_id: UUID, name: str) -> None:
        super().__init__(
            f"{name} is absent. Let this character join first, or choose another one.",
            extra={"character_id": str(character_id), "name": name},
        )


class NobodyPresentError(ConflictError):
    """All members of the chat are absent, so that no one can reply."""

    slug, title = "nobody-present", "No one is present"
