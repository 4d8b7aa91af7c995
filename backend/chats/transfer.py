"""Read and write a chat as JSON lines: the chat first, then every message of its tree.

    {"format": "talekeeper-chat", "version": 1, "id": ..., "title": ..., "leaf_id": ...}
    {"id": ..., "parent_id": null, "role": "assistant", "author": "Mara", "text": ..., ...}

A message follows its parent, and siblings are in the order of creation. Ids are valid within the
files of one export. An import gives each message a new one. CPU-bound, no database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec

from backend.chats.drafts import seal_optional
from backend.chats.members import has_heard
from backend.chats.models import (
    CHAT_TITLE,
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    MESSAGE_SOURCE,
    MESSAGE_THINKING,
    MESSAGE_TYPED,
    Chat,
    Presence,
    TitleOrigin,
)
from backend.chats.schemas import MAX_MEMBERS, ChatSettings, Title
from backend.chats.text_digests import TextDigester
from backend.chats.token_counting import CountUnit
from backend.core.audience import GM, Viewpoint, list_entities
from backend.core.cpu_pool import check_stopped
from backend.database.base import new_id
from backend.errors import ValidationError
from backend.generation.model import Role
from backend.vault.sealing import Column, Sealer

MAX_MESSAGES = 250_000

YEARS = range(1970, 9_999)

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Author = Annotated[str, msgspec.Meta(max_length=500)]
Pixels = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
LoggedText = Annotated[str, msgspec.Meta(max_length=1_000_000)]
Audience = Annotated[str, msgspec.Meta(max_length=4_000)]


class LogOrigin(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A file that the chat, or a branch of it (`is_joined`), was imported from.

    `message_id` is the last message of its path, and `header` the JSON of its first line.
    `messages` are the members of messages that a branch shares with its chat, by position, if they
    differ.
    """

    name: Author = ""
    header: Annotated[str, msgspec.Meta(max_length=9_000_000)] | None = None
    is_joined: bool = False
    message_id: UUID | None = None
    messages: dict[int, Annotated[str, msgspec.Meta(max_length=9_000_000)]] = {}


class LogHead(msgspec.Struct, kw_only=True):
    """The first line of a file. Characters and personas are those of the exporting account.

    `joined_later` are the characters that are not there from the start. `settings`, `variables` and
    `origins` are in the export of a single chat.
    """

    format: Literal["talekeeper-chat"] = "talekeeper-chat"
    version: Literal[1] = 1
    id: UUID
    title: Title = ""
    leaf_id: UUID | None = None
    character_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_MEMBERS)] = []
    joined_later: Annotated[list[UUID], msgspec.Meta(max_length=MAX_MEMBERS)] = []
    persona_id: UUID | None = None
    settings: ChatSettings | None = None
    variables: dict[str, str] = {}
    origins: Annotated[list[LogOrigin], msgspec.Meta(max_length=10_000)] = []
    title_origin: TitleOrigin = "user"
    pinned_at: Moment | None = None
    archived_at: Moment | None = None
    created_at: datetime


class LogFile(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A picture or file of a message.

    `stored` is the path of its content in the archive, or null if the content is missing. `path`
    is the path in the file that the chat was imported from. Uploaded pictures have a `width` and a
    `height` in pixels.
    """

    name: Author = ""
    path: Annotated[str, msgspec.Meta(max_length=1_000)] = ""
    media_type: Annotated[str, msgspec.Meta(max_length=200)] = ""
    stored: Annotated[str, msgspec.Meta(max_length=300)] | None = None
    width: Pixels | None = None
    height: Pixels | None = None


class LogLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message. `selected` marks the sibling on the active path, or on it most recently.

    With a `presence`, `character_id` joins, leaves or is muted, and the message is hidden. One with
    `removed_at` was deleted alone: it is hidden, and its text is ignored.

    `source` is the JSON of members of the file that it was imported from, exactly as written.
    """

    id: UUID
    parent_id: UUID | None = None
    role: Role
    author: Author = ""
    text: LoggedText = ""
    typed: LoggedText | None = None
    thinking: LoggedText | None = None
    status: Literal["complete", "interrupted", "failed"] = "complete"
    hidden: bool = False
    selected: bool = False
    audience: Audience = "public"
    character_id: UUID | None = None
    persona_id: UUID | None = None
    presence: Presence | None = None
    scene_id: UUID | None = None
    scene_place: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    source: Annotated[str, msgspec.Meta(max_length=9_000_000)] | None = None
    files: Annotated[list[LogFile], msgspec.Meta(max_length=1_000)] = []
    removed_at: datetime | None = None
    created_at: datetime


LineT = TypeVar("LineT", LogHead, LogLine)

OpenText = Callable[[Column, UUID, bytes], str | None]
"""Decrypts a text. `Sealer.open` is one. None means that the text is left out."""


@dataclass(frozen=True, slots=True)
class ChatLog:
    """A chat with all its messages, parents first."""

    head: LogHead
    lines: Sequence[LogLine]

    @property
    def members(self) -> dict[UUID, bool]:
        """The members in order, with True for those that are there from the start."""
        later = frozenset(self.head.joined_later)
        return {each: each not in later for each in self.head.character_ids}

    def list_people(self) -> set[UUID]:
        """Return the characters and personas, without those that only audiences name."""
        head = self.head
        found = [*head.character_ids, head.persona_id]
        found += [each for line in self.lines for each in (line.character_id, line.persona_id)]
        return {each for each in found if each is not None}

    def list_listeners(self) -> set[UUID]:
        """Return the ids in audiences: characters, and entities of the chat's campaign."""
        columns = {line.audience for line in self.lines}
        return {each for column in columns for each in list_entities(column)}

    def rename_people(self, ids: Mapping[UUID, UUID]) -> None:
        """Replace the ids of characters and personas. Those without a new id are removed.

        `build_message_rows` translates audiences, which may name entities of a campaign as well.
        """
        head = self.head
        head.character_ids = [ids[each] for each in head.character_ids if each in ids]
        head.joined_later = [ids[each] for each in head.joined_later if each in ids]
        head.persona_id = ids.get(head.persona_id) if head.persona_id else None
        for line in self.lines:
            line.character_id = ids.get(line.character_id) if line.character_id else None
            line.persona_id = ids.get(line.persona_id) if line.persona_id else None

    def find_path(self) -> set[UUID]:
        parents = {line.id: line.parent_id for line in self.lines}
        path: set[UUID] = set()
        at = self.head.leaf_id
        while at is not None:
            path.add(at)
            at = parents[at]
        return path


def write_log(
    open_text: OpenText,
    chat: Chat,
    members: Mapping[UUID, bool],
    rows: Sequence[Any],
    viewpoint: Viewpoint = GM,
) -> bytes:
    """Return a chat's file. `rows` are its messages with all columns, by position, then id.

    For a player's viewpoint, it contains only texts that a prompt can contain: the messages of the
    active path that are not hidden and that the viewpoint may know. Titles, lines before macro
    expansion, thoughts, and changes of presence are in no prompt.
    """
    is_whole = viewpoint == GM
    known: list[Any] = []
    # The rows are ordered by position, so a parent is handled before its children.
    above: dict[UUID | None, UUID | None] = {None: None}
    for row in rows:
        is_heard = has_heard(viewpoint, chat.id, row.position, row.audience)
        is_visible = row.is_active and not row.hidden and is_heard
        if is_whole or is_visible:
            known.append(row)
            above[row.id] = row.id
        else:
            above[row.id] = above[row.parent_id]
    lines = [make_line(open_text, row) for row in known]
    for line in lines:
        line.parent_id = above[line.parent_id]
        if not is_whole:
            line.typed = line.thinking = line.source = None
    head = make_head(open_text, chat, members)
    head.leaf_id = above[chat.leaf_id]
    if not is_whole:
        head.title, head.joined_later = "", []
        head.pinned_at = head.archived_at = None
    return msgspec.json.Encoder().encode_lines([head, *lines])


def make_head(open_text: OpenText, chat: Chat, members: Mapping[UUID, bool]) -> LogHead:
    """Return the head of a file. `members` is true for those that are there from the start."""
    return LogHead(
        id=chat.id,
        title=open_text(CHAT_TITLE, chat.id, chat.sealed_title) or "",
        leaf_id=chat.leaf_id,
        character_ids=list(members),
        joined_later=[each for each, is_there in members.items() if not is_there],
        persona_id=chat.persona_id,
        title_origin=chat.title_origin,
        pinned_at=chat.pinned_at,
        archived_at=chat.archived_at,
        created_at=chat.created_at,
    )


def get_list_columns(head: LogHead) -> dict[str, Any]:
    """Return the columns of a chat that lists are sorted and filtered by."""
    return {
        "title_origin": head.title_origin,
        "pinned_at": head.pinned_at.astimezone(UTC) if head.pinned_at else None,
        "archived_at": head.archived_at.astimezone(UTC) if head.archived_at else None,
    }


def make_line(open_text: OpenText, row: Any) -> LogLine:
    """Return the line of a message with all columns."""
    check_stopped()
    typed: bytes | None = row.sealed_typed
    thinking: bytes | None = row.sealed_thinking
    source: bytes | None = row.sealed_source
    return LogLine(
        id=row.id,
        parent_id=row.parent_id,
        role=row.role,
        author=open_text(MESSAGE_AUTHOR, row.id, row.sealed_author) or "",
        text=open_text(MESSAGE_CONTENT, row.id, row.sealed_content) or "",
        typed=open_text(MESSAGE_TYPED, row.id, typed) if typed else None,
        thinking=open_text(MESSAGE_THINKING, row.id, thinking) if thinking else None,
        status="interrupted" if row.status == "streaming" else row.status,
        hidden=row.hidden,
        selected=row.is_selected,
        audience=row.audience,
        character_id=row.character_id,
        persona_id=row.persona_id,
        presence=row.presence,
        scene_id=row.scene_id,
        scene_place=row.scene_place,
        source=open_text(MESSAGE_SOURCE, row.id, source) if source else None,
        removed_at=row.removed_at,
        created_at=row.created_at,
    )


_HEAD = msgspec.json.Decoder(LogHead)
_LINE = msgspec.json.Decoder(LogLine)


def read_log(data: bytes) -> ChatLog:
    """Read an untrusted file. Raises `ValidationError` with the number of the line."""
    first, *rest = data.rstrip().split(b"\n")
    if len(rest) > MAX_MESSAGES:
        raise ValidationError(f"A chat file can contain at most {MAX_MESSAGES:,} messages.")
    head = _decode(_HEAD, first, 1)
    for at in (head.pinned_at, head.archived_at):
        if at is not None and at.year not in YEARS:
            raise ValidationError("Line 1: the year of a time is out of range.")
    lines: list[LogLine] = []
    known: set[UUID] = set()
    for number, text in enumerate(rest, start=2):
        line = _decode(_LINE, text, number)
        if line.removed_at is not None:
            _clear_removed(line, line.removed_at, number)
        if line.id in known:
            raise ValidationError(f"Line {number}: `id` is already used by an earlier message.")
        if line.parent_id is not None and line.parent_id not in known:
            raise ValidationError(
                f"Line {number}: `parent_id` is not the id of an earlier message."
            )
        known.add(line.id)
        lines.append(line)
    if head.leaf_id is not None and head.leaf_id not in known:
        raise ValidationError("Line 1: `leaf_id` is not the id of a message in the file.")
    return ChatLog(head, lines)


def _decode(decoder: msgspec.json.Decoder[LineT], text: bytes, number: int) -> LineT:
    check_stopped()
    try:
        line = decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValidationError(f"Line {number}: {error}.") from error
    if not _is_usable(line.created_at):
        raise ValidationError(
            f"Line {number}: `created_at` has no UTC offset, or its year is out of range."
        )
    return line


def _clear_removed(line: LogLine, removed_at: datetime, number: int) -> None:
    """Ignore everything that a message without text cannot have."""
    if not _is_usable(removed_at):
        raise ValidationError(
            f"Line {number}: `removed_at` has no UTC offset, or its year is out of range."
        )
    line.text, line.typed, line.thinking, line.source = "", None, None, None
    line.presence, line.hidden, line.files = None, True, []


def _is_usable(time: datetime) -> bool:
    return time.tzinfo is not None and time.year in YEARS


def build_message_rows(
    sealer: Sealer,
    log: ChatLog,
    *,
    chat_id: UUID,
    unit: CountUnit,
    ids: Mapping[UUID, UUID],
    audience: Callable[[str], str],
    people: Collection[UUID],
) -> list[dict[str, Any]]:
    """Return the rows of a file's messages, sealed and counted.

    `ids` are the new ids of the messages. `audience` translates an audience of the file. Characters
    and personas that are not among the owner's, `people`, are dropped.
    """
    active = log.find_path()
    selected = _choose_selected(log, active)
    at: dict[UUID, tuple[int, int]] = {}
    rows: list[dict[str, Any]] = []
    digester = TextDigester(sealer)
    for line in log.lines:
        message_id = ids[line.id]
        above, tokens_above = at[line.parent_id] if line.parent_id else (-1, 0)
        tokens = unit.count(line.author, line.text)
        hidden = line.hidden or line.presence is not None
        path_tokens = tokens_above + (0 if hidden else tokens)
        at[line.id] = above + 1, path_tokens
        scene_id = ids.get(line.scene_id) if line.scene_id else None
        rows.append(
            {
                "id": message_id,
                "user_id": sealer.user_id,
                "chat_id": chat_id,
                "parent_id": ids[line.parent_id] if line.parent_id else None,
                "position": above + 1,
                "role": "system" if line.presence else line.role,
                "presence": line.presence,
                "character_id": line.character_id if line.character_id in people else None,
                "persona_id": line.persona_id if line.persona_id in people else None,
                "status": line.status,
                "hidden": hidden,
                "is_active": line.id in active,
                "is_selected": line.id in selected,
                "tokens": tokens,
                "path_tokens": path_tokens,
                "token_counts": msgspec.json.encode({str(unit): tokens}).decode(),
                "scene_id": scene_id or message_id,
                "scene_place": line.scene_place if scene_id else 0,
                "sealed_author": sealer.seal(MESSAGE_AUTHOR, message_id, line.author),
                "sealed_content": sealer.seal(MESSAGE_CONTENT, message_id, line.text),
                "sealed_typed": seal_optional(sealer, MESSAGE_TYPED, message_id, line.typed),
                "sealed_thinking": seal_optional(
                    sealer, MESSAGE_THINKING, message_id, line.thinking
                ),
                "sealed_source": seal_optional(sealer, MESSAGE_SOURCE, message_id, line.source),
                "audience": audience(line.audience),
                "text_digest": digester.compute(line.role, line.text),
                "removed_at": line.removed_at.astimezone(UTC) if line.removed_at else None,
                "created_at": line.created_at.astimezone(UTC),
                "updated_at": line.created_at.astimezone(UTC),
            }
        )
    return rows


def create_message_ids(log: ChatLog) -> dict[UUID, UUID]:
    """Return a new id for each message of a file. Later messages get later ids."""
    return {line.id: new_id() for line in log.lines}


def _choose_selected(log: ChatLog, active: set[UUID]) -> set[UUID]:
    """Return one child of each parent: the one on the path, or else the first one marked."""
    chosen = {line.parent_id: line.id for line in log.lines if line.id in active}
    for line in log.lines:
        if line.selected:
            chosen.setdefault(line.parent_id, line.id)
    return set(chosen.values())
