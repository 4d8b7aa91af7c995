"""Read and write chats of SillyTavern: a header, then one message in each line, as JSON.

Members that Talekeeper has no field for are kept as they are written, and so is the order of all
members. They are the `source` of a message and of its swipes:

    message: {"sillytavern": {"name": "Mara", "mes": null, "extra": null, "title": "", ...}}
    swipe:   {"sillytavern": {"current": {"extra": {...}}, "info": {...}}}

In the message, null takes the place of members that follow from the swipes. `current` has the
members that belong to the swipe on the path, and `info` its entry of `swipe_info`. There, null
takes the place of `reasoning` if it is the swipe's `thinking`. So no text is stored twice.

What only Talekeeper knows of a group is in members named `talekeeper`, which SillyTavern keeps: in
`extra` of a message and its swipes who knows it and who comes or leaves, in `chat_metadata` the
settings. Names of characters are card files.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, BinaryIO, Final, Literal, TypeVar

import msgspec
from msgspec import Raw

from backend.chats.models import Presence
from backend.chats.schemas import AuthorsNote
from backend.core.cpu_pool import check_stopped
from backend.generation.model import Role
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.chat_file import (
    ChatFormat,
    ChatHead,
    ChatReading,
    FileGroup,
    FileMessage,
    FileReference,
    FileSwipe,
)
from backend.transfer.formats.lines import FileWarnings, read_lines
from backend.transfer.formats.send_dates import parse_send_date

Members = dict[str, Raw]
T = TypeVar("T")

MAX_SWIPES: Final = 1_000
MAX_OBJECTS: Final = 1_000
"""Maximum number of objects in one line. SillyTavern writes one."""
MAX_FILES: Final = 100
MAX_AVATARS: Final = 1_000
MAX_NOTE_CHARACTERS: Final = 20_000
MAX_SCENARIO_CHARACTERS: Final = 200_000
MAX_NUMBER: Final = 10_000

NO_NAME: Final = "unused"
"""Newer versions write this word for both names of the header."""

_TAG: Final = "sillytavern"
_OWN: Final = "talekeeper"
MAX_AUDIENCE: Final = 50

NARRATOR_TYPES: Final = frozenset({"narrator", "comment"})

_NULL: Final = b"null"
_AVATARS: Final = ("force_avatar", "original_avatar")
_BY_SWIPE: Final = ("send_date", "gen_started", "gen_finished", "extra")
_POSITIONS: Final[Mapping[int, Literal["after_prompt", "at_depth", "before_prompt"]]] = {
    0: "after_prompt",
    1: "at_depth",
    2: "before_prompt",
}
_ROLES: Final[Sequence[Role]] = ("system", "user", "assistant")
_BETWEEN_OBJECTS = re.compile(r"[ \t\r,]*")
_LONE_SURROGATE = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|(\\.)"
)


@dataclass(slots=True)
class _SwipeSource:
    """The members of one swipe.

    `swipe` is its entry of `swipes`, if that is not its text. `is_listed` is false if the line has
    no such entry.
    """

    current: Members | None = None
    info: Raw | None = None
    swipe: Raw | None = None
    is_listed: bool = True

    def encode(self) -> bytes:
        members = {"current": self.current, "info": self.info, "swipe": self.swipe}
        kept: dict[str, object] = {
            name: value for name, value in members.items() if value is not None
        }
        if not self.is_listed:
            kept["is_listed"] = False
        return msgspec.json.encode({_TAG: kept})

    @classmethod
    def decode(cls, data: bytes | None) -> _SwipeSource | None:
        members = _open_source(data)
        if members is None:
            return None
        return cls(
            current=_open_members(members, "current") if "current" in members else None,
            info=members.get("info"),
            swipe=members.get("swipe"),
            is_listed=_open(members, "is_listed") is not False,
        )


def _open_source(data: bytes | None) -> Members | None:
    """Return the members of a source, or None if another program wrote the message."""
    found = _try_decode(data, dict[str, Raw]) if data else None
    return _open_members(found, _TAG) if found and _TAG in found else None


def matches(start: bytes, name: str) -> bool:
    """True if a file begins with a header or a message of SillyTavern."""
    if not name.casefold().endswith((".jsonl", ".txt", ".json")):
        return False
    warnings = FileWarnings()
    for _, line, _ in read_lines(io.BytesIO(start), warnings):
        found = _try_decode(line, dict[str, Raw])
        if found is None:
            # A first message that is longer than the start of the file.
            return line.startswith(b"{") and b'"mes"' in line and b'"is_user"' in line
        return _is_header(found) or ("mes" in found and "is_user" in found)
    return False


def read_sillytavern(file: BinaryIO, *, name: str, zone: tzinfo = UTC) -> Iterator[ChatReading]:
    """Read a chat. `zone` is the zone of times that have none.

    A line that cannot be read is refused, because a message would be missing. The last line is
    left out if the file ends in the middle of it. Other faults are warnings.
    """
    warnings = FileWarnings()
    records = _read_records(file, warnings)
    first = next(records, None)
    if first is None:
        raise TransferFileError("The file is empty.")
    head = ChatHead()
    if _is_header(first[1]):
        head = read_head(first[2], zone=zone)
    else:
        records = _prepend(first, records)
    head.title = head.title or _remove_extension(name)
    messages = (_read_message(number, members, warnings, zone) for number, members, _ in records)
    yield ChatReading(head, messages, warnings.found)


def _prepend(first: T, rest: Iterator[T]) -> Iterator[T]:
    yield first
    yield from rest


def _remove_extension(name: str) -> str:
    stem, dot, extension = name.rpartition(".")
    return stem if dot and extension.casefold() in {"jsonl", "json", "txt"} else name


def _is_header(members: Members) -> bool:
    return "mes" not in members and ("chat_metadata" in members or "user_name" in members)


def _read_records(file: BinaryIO, warnings: FileWarnings) -> Iterator[tuple[int, Members, bytes]]:
    """Yield the objects of a file: number of the line, members, and text."""
    for number, line, is_complete in read_lines(file, warnings):
        try:
            for text in _split_objects(line, number, warnings):
                yield number, msgspec.json.decode(text, type=Members), text
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if not is_complete and line.startswith(b"{"):
                warnings.add(f"Line {number:,}, the last one, is cut off and was left out.")
                return
            raise TransferFileError(
                f"Line {number:,} is not a message in JSON ({_describe(error)}). Correct or delete "
                "the line, and try again."
            ) from error


def _describe(error: Exception) -> str:
    """Return the reason of a decoder without the text of the file."""
    if isinstance(error, msgspec.ValidationError):
        return "it is not an object"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return str(error)


def _split_objects(line: bytes, number: int, warnings: FileWarnings) -> Iterator[bytes]:
    """Yield the objects of a line: one, or several if a line end is missing."""
    if _try_decode(line, Members) is not None:
        yield line
        return
    text = line.decode()
    repaired = _LONE_SURROGATE.sub(_replace_surrogate, text)
    if repaired != text:
        warnings.add(f"Line {number:,} contains half a character, which was replaced.")
    if _try_decode(repaired.encode(), Members) is not None:
        yield repaired.encode()
        return
    found = _separate_objects(repaired)
    if len(found) > 1:
        warnings.add(f"Line {number:,} contains {len(found)} messages. They were separated.")
    yield from (each.encode() for each in found)


def _separate_objects(text: str) -> list[str]:
    """Raises `ValueError` if a text is not a series of objects."""
    decoder, at, found = json.JSONDecoder(), 0, list[str]()
    while at < len(text):
        check_stopped()
        if len(found) == MAX_OBJECTS:
            raise ValueError(f"it contains more than {MAX_OBJECTS:,} objects")
        _, end = decoder.raw_decode(text, at)
        found.append(text[at:end])
        between = _BETWEEN_OBJECTS.match(text, end)
        at = between.end() if between else end
    return found


def _replace_surrogate(match: re.Match[str]) -> str:
    return match[0] if match[1] or match[2] else "\\ufffd"


def _try_decode(data: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _open(members: Mapping[str, Raw], name: str) -> Any:
    """Return a member's value, or None if it is missing or its numbers are too large."""
    return _try_decode(bytes(members[name]), object) if name in members else None


def _open_text(members: Mapping[str, Raw], name: str) -> str:
    value = _open(members, name)
    return value if isinstance(value, str) else ""


def _open_members(members: Mapping[str, Raw], name: str) -> Members:
    return (_try_decode(bytes(members[name]), Members) or {}) if name in members else {}


def _open_list(members: Mapping[str, Raw], name: str) -> list[Raw]:
    return (_try_decode(bytes(members[name]), list[Raw]) or []) if name in members else []


def _encode(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def read_head(data: bytes, *, zone: tzinfo = UTC) -> ChatHead:
    """Read a header, or the metadata of a group's chat as `{"chat_metadata": {...}}`."""
    members = _try_decode(data, Members) or {}
    metadata = _open_members(members, "chat_metadata")
    names = [_open_text(members, name) for name in ("user_name", "character_name")]
    user, character = ("" if each == NO_NAME else each for each in names)
    return ChatHead(
        user_name=user,
        character_names=[character] if character else [],
        created_at=parse_send_date(_open(members, "create_date"), zone=zone),
        authors_note=_read_note(metadata),
        variables=_read_variables(metadata),
        scenario=_open_text(metadata, "scenario")[:MAX_SCENARIO_CHARACTERS] or None,
        lorebook=_open_text(metadata, "world_info"),
        persona=_open_text(metadata, "persona"),
        main_chat=_open_text(metadata, "main_chat"),
        source=data,
        group=_try_decode(bytes(metadata[_OWN]), FileGroup) if _OWN in metadata else None,
    )


def _read_note(metadata: Members) -> AuthorsNote | None:
    text = _open_text(metadata, "note_prompt")
    if not text.strip():
        return None
    position = _open(metadata, "note_position")
    role = _open_number(metadata, "note_role", 0)
    return AuthorsNote(
        text=text[:MAX_NOTE_CHARACTERS],
        interval=_open_number(metadata, "note_interval", 1),
        depth=_open_number(metadata, "note_depth", 4),
        position=_POSITIONS.get(position, "at_depth") if isinstance(position, int) else "at_depth",
        role=_ROLES[role] if role < len(_ROLES) else "system",
    )


def _open_number(members: Members, name: str, default: int) -> int:
    value = _open(members, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return int(min(max(value, 0), MAX_NUMBER))


def _read_variables(metadata: Members) -> dict[str, str]:
    """Return the local variables as texts. SillyTavern also stores numbers and objects."""
    found: dict[str, str] = {}
    variables = _open_members(metadata, "variables")
    for name in variables:
        value = _open(variables, name)
        found[name] = value if isinstance(value, str) else bytes(variables[name]).decode()
    return found


@dataclass(slots=True)
class _Entry:
    """One version of a message in the file, with the members that belong to it."""

    text: str
    members: Members
    source: _SwipeSource
    extra: Members = field(default_factory=Members)


def _read_message(
    number: int, members: Members, warnings: FileWarnings, zone: tzinfo
) -> FileMessage:
    check_stopped()
    if not members.keys() & {"mes", "swipes", "name", "is_user"}:
        raise TransferFileError(
            f"Line {number:,} is not a message: it has neither `mes` nor `name`. Delete the line, "
            "or choose another format."
        )
    entries = _list_swipes(number, members, warnings)
    selected = _find_selected(number, members, entries, warnings)
    current = entries[selected]
    _set_text(number, members, current, warnings)
    own = _BY_SWIPE if isinstance(_open(members, "mes"), str) else (*_BY_SWIPE, "mes")
    current.source.current = {name: members[name] for name in own if name in members}
    current.members = {**current.members, **current.source.current}
    is_user, is_hidden = _open(members, "is_user") is True, _open(members, "is_system") is True
    kind = _open(_open_members(members, "extra"), "type")
    is_program = is_hidden and isinstance(kind, str)
    is_narrated = kind in NARRATOR_TYPES if isinstance(kind, str) else False
    role: Role = "assistant"
    if is_user:
        role = "user"
    elif is_narrated or is_program:
        role = "system"
    return FileMessage(
        role=role,
        author=_open_text(members, "name"),
        swipes=[_make_swipe(each, zone) for each in entries],
        selected=selected,
        hidden=is_hidden,
        speaker=_open_text(members, "original_avatar"),
        presence=_read_knowledge(_open_members(current.members, "extra")).presence,
        source=msgspec.json.encode({_TAG: _clear(members, entries)}),
    )


def _list_swipes(number: int, members: Members, warnings: FileWarnings) -> list[_Entry]:
    found = _open_list(members, "swipes")
    if not found:
        return [_Entry("", {}, _SwipeSource(is_listed=False))]
    if len(found) > MAX_SWIPES:
        raise TransferFileError(
            f"Line {number:,} has {len(found):,} swipes; at most {MAX_SWIPES:,} are allowed."
        )
    infos = _open_list(members, "swipe_info")
    entries: list[_Entry] = []
    for place, raw in enumerate(found):
        text, source = _try_decode(bytes(raw), str), _SwipeSource()
        if text is None:
            text, source.swipe = "", raw
            warnings.add(f"Line {number:,}: swipe {place + 1} is not a text and stays empty.")
        if place < len(infos):
            source.info = infos[place]
        info = _try_decode(bytes(source.info), Members) if source.info is not None else None
        entries.append(_Entry(text, info or {}, source))
    return entries


def _find_selected(
    number: int, members: Members, entries: Sequence[_Entry], warnings: FileWarnings
) -> int:
    """Return the index of the swipe on the path: `swipe_id`, or else the one with the text."""
    if not entries[0].source.is_listed:
        return 0
    wanted = _open(members, "swipe_id")
    if isinstance(wanted, int) and 0 <= wanted < len(entries):
        return wanted
    text = _open(members, "mes")
    same = [place for place, each in enumerate(entries) if each.text == text]
    if "swipe_id" in members or not same:
        warnings.add(
            f"Line {number:,}: `swipe_id` names none of the {len(entries)} swipes. The text of the "
            "message decides."
        )
    return same[0] if same else len(entries) - 1


def _set_text(number: int, members: Members, current: _Entry, warnings: FileWarnings) -> None:
    """Make `mes` the text of the swipe on the path, because SillyTavern shows it."""
    text = _open(members, "mes")
    if not isinstance(text, str):
        rest = "The text of its swipe is used." if current.text else "It stays empty."
        warnings.add(f"Line {number:,} has no text in `mes`. {rest}")
    elif current.source.is_listed and text != current.text:
        warnings.add(f"Line {number:,}: `mes` differs from its swipe, and is used.")
        current.source.swipe = current.source.swipe or _encode(current.text)
        current.text = text
    else:
        current.text = text


def _make_swipe(entry: _Entry, zone: tzinfo) -> FileSwipe:
    extra = _open_members(entry.members, "extra")
    thinking = _open_text(extra, "reasoning") or None
    source = entry.source
    if source.current is not None and "extra" in source.current:
        source.current["extra"] = _hide_thinking(source.current["extra"], thinking)
    info = _try_decode(bytes(source.info), Members) if source.info is not None else None
    if info and "extra" in info:
        info["extra"] = _hide_thinking(info["extra"], thinking)
        source.info = _encode(info)
    return FileSwipe(
        text=entry.text,
        thinking=thinking,
        created_at=parse_send_date(_open(entry.members, "send_date"), zone=zone),
        source=source.encode(),
        files=_list_files(extra),
        audience=_read_knowledge(extra).audience,
    )


class _Knowledge(msgspec.Struct, frozen=True, omit_defaults=True):
    """The member `talekeeper` of `extra`. See `FileSwipe.audience` and `FileMessage.presence`."""

    presence: Presence | None = None
    audience: Annotated[list[str], msgspec.Meta(max_length=MAX_AUDIENCE)] | None = None


def _read_knowledge(extra: Members) -> _Knowledge:
    """Return the member that Talekeeper has written. If it is damaged, the audience is empty."""
    if _OWN not in extra:
        return _Knowledge()
    return _try_decode(bytes(extra[_OWN]), _Knowledge) or _Knowledge(audience=[])


def _write_knowledge(raw: Raw, knowledge: _Knowledge) -> Raw:
    """Return an `extra` with the member `talekeeper`, or without it if there is nothing to say."""
    extra = _try_decode(bytes(raw), Members)
    if extra is None or (knowledge == _Knowledge() and _OWN not in extra):
        return raw
    extra.pop(_OWN, None)
    if knowledge != _Knowledge():
        extra[_OWN] = _encode(knowledge)
    return _encode(extra)


def _hide_thinking(raw: Raw, thinking: str | None) -> Raw:
    """Put null in the place of `reasoning`, if it is the swipe's own."""
    extra = _try_decode(bytes(raw), Members)
    if not extra or thinking is None or _open(extra, "reasoning") != thinking:
        return raw
    return _encode({**extra, "reasoning": Raw(_NULL)})


def _clear(members: Members, entries: Sequence[_Entry]) -> Members:
    """Return the members of a line, with null for those that follow from its swipes."""
    kept = dict(members)
    cleared = [*_BY_SWIPE, "mes"]
    if entries[0].source.is_listed:
        cleared += ["swipes", "swipe_id"]
        if "swipe_info" in kept:
            kept["swipe_info"] = _encode(_open_list(members, "swipe_info")[len(entries) :])
    for name in cleared:
        if name in kept:
            kept[name] = Raw(_NULL)
    return kept


def _list_files(extra: Members) -> list[FileReference]:
    """Return the pictures and files that `extra` names, each once."""
    if not extra.keys() & {"image", "image_swipes", "media", "files", "file"}:
        return []
    values = [extra[name] for name in ("image", "file") if name in extra]
    for name in ("image_swipes", "media", "files"):
        values += _open_list(extra, name)
    found: dict[str, FileReference] = {}
    for value in values:
        members = _try_decode(bytes(value), Members) or {}
        path = _try_decode(bytes(value), str) or _open_text(members, "url")
        kind = _open_text(members, "type")
        if path:
            reference = FileReference(
                path=path,
                name=_open_text(members, "name"),
                media_type=kind if "/" in kind else "",
            )
            found.setdefault(path, reference)
    return list(found.values())[:MAX_FILES]


def write_sillytavern(
    head: ChatHead, messages: Iterable[FileMessage], *, reflects_settings: bool = True
) -> Iterator[bytes]:
    """Yield the lines of a chat.

    With `reflects_settings`, the header gets the author's note, the variables and the scenario of
    `head` where they differ from its source. A branch keeps its own.
    """
    yield write_head(head, reflects_settings=reflects_settings)
    avatars: dict[str, Members] = {}
    for message in messages:
        yield _write_message(message, avatars)


def write_head(head: ChatHead, *, reflects_settings: bool = True) -> bytes:
    members = _try_decode(head.source, Members) if head.source else None
    if members is None:
        members = {
            "user_name": _encode(head.user_name or "User"),
            "character_name": _encode(", ".join(head.character_names) or "Assistant"),
            "create_date": _encode(_format_time(head.created_at)),
            "chat_metadata": Raw(b"{}"),
        }
        if head.created_at is None:
            del members["create_date"]
    if reflects_settings:
        members = _update_head(members, head)
    return msgspec.json.encode(members) + b"\n"


def _update_head(members: Members, head: ChatHead) -> Members:
    metadata, before = _open_members(members, "chat_metadata"), ChatHead()
    before = read_head(msgspec.json.encode(members))
    changed: dict[str, object] = {}
    if head.authors_note != before.authors_note:
        note = head.authors_note or AuthorsNote()
        positions = {name: number for number, name in _POSITIONS.items()}
        changed |= {
            "note_prompt": note.text,
            "note_interval": note.interval,
            "note_depth": note.depth,
            "note_position": positions[note.position],
            "note_role": _ROLES.index(note.role),
        }
    # A chat without variables may come from a file with too many.
    if head.variables and dict(head.variables) != before.variables:
        written = _open_members(metadata, "variables")
        changed["variables"] = {
            name: written[name] if before.variables.get(name) == value else value
            for name, value in head.variables.items()
        }
    if head.scenario != before.scenario:
        changed["scenario"] = head.scenario or ""
    own = head.group or FileGroup()
    if own != (before.group or FileGroup()):
        changed[_OWN] = own
    if not changed:
        return members
    metadata |= {name: _encode(value) for name, value in changed.items()}
    return {**members, "chat_metadata": _encode(metadata)}


def _write_message(message: FileMessage, avatars: dict[str, Members]) -> bytes:
    """Return a line. Swipes without a source get the members that SillyTavern writes.

    `avatars` are the members that name the pictures of authors. A message from Talekeeper has those
    of its author's earlier messages.
    """
    sources = [_SwipeSource.decode(each.source) for each in message.swipes]
    current, source = message.swipes[message.selected], sources[message.selected]
    members = _open_source(message.source)
    if members is None:
        members = _make_members(message, current) | avatars.get(message.author, {})
        if message.speaker:
            members.setdefault("original_avatar", _encode(message.speaker))
    elif len(avatars) < MAX_AVATARS:
        avatars[message.author] = {name: members[name] for name in _AVATARS if name in members}
    members = _restore_current(members, current, source)
    if (knowledge := _Knowledge(message.presence, _list_audience(current))) != _Knowledge():
        members.setdefault("extra", Raw(b"{}"))
    if "extra" in members:
        members["extra"] = _write_knowledge(members["extra"], knowledge)
    _restore_flags(members, message, current)
    if "mes" not in members and current.text:
        members["mes"] = _encode(current.text)
    is_listed = any(each is not None and each.is_listed for each in sources)
    if len(message.swipes) > 1 or is_listed:
        members |= _make_swipe_members(members, message, sources)
    return msgspec.json.encode(members) + b"\n"


def _list_audience(swipe: FileSwipe) -> list[str] | None:
    return None if swipe.audience is None else list(swipe.audience)


def _make_members(message: FileMessage, current: FileSwipe) -> Members:
    return {
        "name": _encode(message.author),
        "is_user": _encode(message.role == "user"),
        "is_system": _encode(message.hidden),
        "send_date": _encode(_format_time(current.created_at)),
        "mes": Raw(_NULL),
        "extra": _encode({"type": "narrator"} if message.role == "system" else {}),
    }


def _restore_current(members: Members, current: FileSwipe, source: _SwipeSource | None) -> Members:
    """Return the members of a line with those that belong to the swipe on the path."""
    own: Members = {}
    if source is not None and source.current is not None:
        own = source.current
    elif source is not None and source.info is not None:
        info = _try_decode(bytes(source.info), Members) or {}
        own = {name: info[name] for name in _BY_SWIPE if name in info}
    made = {
        "send_date": _encode(_format_time(current.created_at)),
        "mes": _encode(current.text),
        "extra": Raw(b"{}"),
    }
    restored: Members = {}
    for name, value in members.items():
        if name not in {*_BY_SWIPE, "mes"} or bytes(value) != _NULL:
            restored[name] = value
        elif name in own or name in made:
            restored[name] = own[name] if name in own else made[name]
    restored |= {name: value for name, value in own.items() if name not in restored}
    if "extra" in restored or current.thinking:
        extra = restored.get("extra", Raw(b"{}"))
        is_new = source is None
        restored["extra"] = _show_thinking(extra, current.thinking, is_new=is_new)
    return restored


def _restore_flags(members: Members, message: FileMessage, current: FileSwipe) -> None:
    """Set `is_system`. A message without text is hidden here, but not in the file."""
    was_hidden = _open(members, "is_system") is True
    is_blank = not current.text.strip()
    if message.hidden != was_hidden and not (message.hidden and is_blank):
        members["is_system"] = _encode(message.hidden)


def _make_swipe_members(
    members: Members, message: FileMessage, sources: Sequence[_SwipeSource | None]
) -> Members:
    swipes: list[Raw] = []
    infos: list[Raw | None] = []
    for swipe, source in zip(message.swipes, sources, strict=True):
        written = source.swipe if source else None
        swipes.append(written if written is not None else _encode(swipe.text))
        infos.append(_make_info(swipe, source))
    while infos and infos[-1] is None:
        infos.pop()
    added: Members = {"swipe_id": _encode(message.selected), "swipes": _encode(swipes)}
    surplus = _open_list(members, "swipe_info")
    if infos or "swipe_info" in members:
        filled = [
            each if each is not None else _make_new_info(swipe)
            for each, swipe in zip(infos, message.swipes, strict=False)
        ]
        is_same = None not in sources and len(filled) == len(swipes)
        added["swipe_info"] = _encode([*filled, *(surplus if is_same else ())])
    return added


def _make_info(swipe: FileSwipe, source: _SwipeSource | None) -> Raw | None:
    if source is None or not source.is_listed:
        return _make_new_info(swipe)
    if source.info is None:
        return None
    info = _try_decode(bytes(source.info), Members)
    if info is None or "extra" not in info:
        return source.info
    shown = _show_thinking(info["extra"], swipe.thinking, is_new=False)
    known = _write_knowledge(shown, _Knowledge(audience=_list_audience(swipe)))
    return _encode({**info, "extra": known})


def _make_new_info(swipe: FileSwipe) -> Raw:
    extra: dict[str, object] = {} if swipe.thinking is None else {"reasoning": swipe.thinking}
    known = _write_knowledge(_encode(extra), _Knowledge(audience=_list_audience(swipe)))
    return _encode({"send_date": _format_time(swipe.created_at), "extra": known})


def _show_thinking(raw: Raw, thinking: str | None, *, is_new: bool) -> Raw:
    """Put a swipe's thoughts in the place of null, or add them if Talekeeper wrote the swipe."""
    extra = _try_decode(bytes(raw), Members)
    if extra is None or thinking is None:
        return raw
    is_cleared = "reasoning" in extra and bytes(extra["reasoning"]) == _NULL
    if not is_cleared and not is_new:
        return raw
    return _encode({**extra, "reasoning": _encode(thinking)})


def _format_time(at: datetime | None) -> str:
    """Return a time as JavaScript writes it: `2026-01-02T03:04:05.678Z`."""
    if at is None:
        return ""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


SILLYTAVERN: Final = ChatFormat(
    name="sillytavern",
    title="SillyTavern",
    matches=matches,
    read=read_sillytavern,
)
