"""The stages of a request to the endpoint: messages, reading, placement, decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from backend.generation.model import PromptImage, ToolCall
from backend.openai_api.models import RequestKind, RequestReason

SentRole = Literal["system", "user", "assistant", "tool"]

InstructionKind = Literal["continue", "group", "impersonate", "quiet", "other"]
"""The purpose of an instruction. `quiet` is a known form of a request that is not part of the
conversation, such as a summary. `other` is any other text, such as a post-history instruction."""

StoreChoice = Literal["always", "never"]
"""The header `X-Talekeeper-Store`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message of a client's list. The role `developer` counts as `system`.

    Attributes:
        text: Its text parts, joined with line breaks.
        name: The field `name`.
        images: Its image parts.
        calls: The tool calls of an assistant's message.
        call_id: The call that a message of the role `tool` answers.
    """

    role: SentRole
    text: str
    name: str = ""
    images: tuple[PromptImage, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the conversation in a client's list.

    Attributes:
        text: The text without the name before it.
        author: The name before it, or in the field `name`. Empty if there is none.
        place: The index of its message in the list. Lines share one if the client has put the
            whole conversation into one message.
        images: The images of its message.
        pieces: The parts of the text between blank lines, without names before them. A client
            that merges neighbouring messages sends several lines, or a line with notes, as one
            text. Empty if the text has one part.
    """

    role: Literal["user", "assistant"]
    text: str
    author: str
    place: int
    images: tuple[PromptImage, ...] = ()
    pieces: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """A text after the last line that instructs the model.

    Attributes:
        name: The member that a nudge of a group names.
        place: The index of its message in the list.
    """

    kind: InstructionKind
    text: str
    place: int
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names that a client may put before its lines."""

    user: Sequence[str] = ()
    characters: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SentConversation:
    """The list of a request, read as a conversation.

    Attributes:
        messages: The list as it was sent.
        lines: The conversation without system messages, examples and markers.
        instructions: The texts after the last line, in order. If the list ends with an assistant's
            message, also those directly before it, because a client puts the beginning of a reply
            after them.
        members: The members that the marker of a group chat names.
    """

    messages: Sequence[SentMessage]
    lines: Sequence[Line]
    instructions: Sequence[Instruction] = ()
    members: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatVersion:
    """A chat, and the values that change with its messages."""

    id: UUID
    user_id: UUID
    leaf_id: UUID | None
    hidden_changes: int
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLine:
    """A message of a stored path."""

    id: UUID
    parent_id: UUID | None
    position: int
    role: Literal["user", "assistant", "system"]
    hidden: bool
    is_active: bool
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlacement:
    """The place of a conversation in the stored chats.

    Attributes:
        chat_id: The chat. None if no chat has these lines.
        pairs: The stored message of each line that has one, by the index of the line.
        edits: New texts of stored messages, by id: the client's text differs.
        hides: Messages that the client no longer sends, although it sends those around them.
        shows: Messages that the endpoint has hidden, and that are sent again.
        last: The stored message of the last line that has one.
        parent_id: The message below which new lines are stored: `last`, or a system message after
            it, such as a change of presence.
        next_position: The position of the first new line.
        tail: The lines after it.
        rest: The messages of the active path after `last`, oldest first, without system messages at
            the beginning. Empty if there are none, or if `last` is on another branch.
        window_start: The position of the first message in the client's window. Of the messages
            before it, a client may keep the first ones. None if no line is stored.
        is_leaf: False if lines follow `last`, on any branch.
        version: The chat as it was read. `ConversationWriter` refuses a placement whose chat has
            changed.
    """

    chat_id: UUID | None = None
    pairs: Mapping[int, StoredLine] = field(default_factory=dict[int, StoredLine])
    edits: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    hides: Sequence[UUID] = ()
    shows: Sequence[UUID] = ()
    last: StoredLine | None = None
    parent_id: UUID | None = None
    next_position: int = 0
    tail: Sequence[Line] = ()
    rest: Sequence[StoredLine] = ()
    window_start: int | None = None
    is_leaf: bool = True
    version: ChatVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConversation:
    """A chat in line with a client's list.

    Attributes:
        leaf_id: The message that a turn follows.
        lines: The lines that were added.
    """

    chat_id: UUID
    leaf_id: UUID | None
    lines: Sequence[Line] = ()


ReplyPart = tuple[tuple[bytes, ...], UUID]
"""A part of a reply that has waited for a choice: the digests of its forms, and the reply.

A choice has no digests until a part follows it.
"""


class ClientState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The memory of the previous turn of a chat, used to decide about the next request.

    Attributes:
        instructions: Digests of the instructions of the last turn, and of notes that the client
            had merged with its line.
        pieces: Digests of the pieces of its last line, if the line had several. A note that the
            client has merged with the line moves on with the next request, and the line stays.
        prefill: The digest of the beginning of the reply that the client sent.
        hidden: Messages that the endpoint has hidden because the client no longer sends them.
        turn_id: The last turn.
        resumed: The turns before it that have written the beginning of the same reply, if its
            connection broke and the client sent the request again.
        first_event: The event after which the last answer begins, of the first of these turns.
        parts: The texts that clients have got as parts of replies, and the choices between them.
    """

    instructions: tuple[bytes, ...] = ()
    pieces: tuple[bytes, ...] = ()
    prefill: bytes | None = None
    hidden: tuple[UUID, ...] = ()
    turn_id: UUID | None = None
    resumed: tuple[UUID, ...] = ()
    first_event: int = 0
    parts: tuple[ReplyPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The kind of a request, its reason, and the placement to apply.

    Attributes:
        placement: The placement to apply. Its tail has the lines to store, without the beginning of
            a reply and without notes that the client has merged with a line.
        prefill: The beginning of the reply.
        speaker: The name of the member that replies.
        instruction: The text that the decision is about, cut to the part that identifies it. A
            correction applies to requests with the same part. Empty if there is none.
    """

    kind: RequestKind
    reason: RequestReason
    placement: ChatPlacement = ChatPlacement()
    prefill: str = ""
    speaker: str = ""
    instruction: str = ""
