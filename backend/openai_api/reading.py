"""Reads the list of a request as a conversation: its lines, and the instructions after them.

Clients send more than lines: prompts, lore, notes, examples, markers and nudges. System messages
are never lines. Everything before the last marker of a new chat belongs to the prompt. Names that
the client puts before its lines are removed. All functions are linear in the length of the list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from backend.generation.images import IMAGE_TEXT
from backend.openai_api.contracts import (
    Instruction,
    InstructionKind,
    Line,
    Names,
    SentConversation,
    SentMessage,
)
from backend.openai_api.nudges import PLACEHOLDERS, collapse, find_chat_marker, find_nudge
from backend.openai_api.quiet_forms import find_quiet_form

MAX_PIECES = 50
MAX_INSTRUCTIONS = 50

_MAX_EXAMINED_LINES = 200
"""Lines at the end of a text that are compared with known texts."""

_MAX_TASK = 8_000
"""The part of a merged text that is compared with known tasks."""

_MAX_NAME = 100
_MAX_GUESSED_NAME = 40
_NO_NAME = frozenset('.!?*"[](){}<>|')
_DOCUMENT_TASK = "### Task:"
_DOCUMENT_HEAD = 300

_LineRole = Literal["user", "assistant"]


def read_conversation(
    messages: Sequence[SentMessage], names: Names, *, finds_tasks: bool = True
) -> SentConversation:
    """Read a list.

    `finds_tasks` is false if the client wants every request stored: a user message with the words
    of a known task is then a line.
    """
    start = _find_start(messages)
    speakers = _Speakers(names, start.members)
    texts = list(_iterate_texts(messages, start))
    texts, instructions = _take_instructions(messages, texts, finds_tasks=finds_tasks)
    if len(messages) == 1:
        texts = _split_single(texts, speakers, has_marker=bool(start.place or start.offset))
    if start.members or speakers.name_all(each.text for each in texts if each.role == "assistant"):
        # The client writes names before the lines, also a name that the account does not have.
        users = (each.text for each in texts if each.role == "user")
        speakers.guess_user(text for text in users if collapse(text) not in PLACEHOLDERS)
    lines = [_make_line(each, messages[each.place], speakers) for each in texts]
    return SentConversation(
        messages=messages,
        lines=_drop_extra_lines(lines),
        instructions=instructions,
        members=start.members,
    )


def iterate_paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each part of a text that has no blank line in it."""
    offset, begin, end = 0, -1, 0
    for line in text.split("\n"):
        if line.strip():
            begin = offset if begin < 0 else begin
            end = offset + len(line)
        elif begin >= 0:
            yield begin, end
            begin = -1
        offset += len(line) + 1
    if begin >= 0:
        yield begin, end


@dataclass(frozen=True, slots=True)
class _Start:
    """The position after the last marker: a message, and an offset in its text."""

    place: int = 0
    offset: int = 0
    members: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _SentText:
    """A text that may be a line."""

    role: _LineRole
    place: int
    text: str


class _Speakers:
    """The names that clients put before a text, by role."""

    def __init__(self, names: Names, members: Sequence[str]) -> None:
        self._names: dict[_LineRole, dict[str, str]] = {
            "user": _spell(names.user),
            "assistant": _spell([*members, *names.characters]),
        }

    def find_name(self, role: _LineRole, text: str) -> tuple[str, int]:
        """Return the name before a text, and the offset after it. ("", 0) if there is none."""
        name, colon, _ = text[: _MAX_NAME + 1].partition(":")
        known = self._names[role].get(collapse(name)) if colon else None
        if known is None:
            return "", 0
        offset = len(name) + 1
        return known, offset + 1 if text[offset : offset + 1] == " " else offset

    def find_role(self, text: str) -> _LineRole | None:
        if self.find_name("user", text)[0]:
            return "user"
        return "assistant" if self.find_name("assistant", text)[0] else None

    def name_all(self, texts: Iterable[str]) -> bool:
        """True if a name is before each of these replies, and there is at least one."""
        named = [bool(self.find_name("assistant", text)[0]) for text in texts]
        return bool(named) and all(named)

    def find_spelling(self, role: _LineRole, name: str) -> str:
        """Return a name of the field `name` as it is spelled, because clients replace signs."""
        return self._names[role].get(collapse(name), name)

    def guess_user(self, texts: Iterable[str]) -> None:
        """Take a name for the user's if it is before each of these texts."""
        found = {_guess_name(text) for text in texts}
        if len(found) == 1 and (name := found.pop()):
            self._add_user(name)

    def guess_frequent_user(self, texts: Iterable[str]) -> None:
        """Take the most frequent unknown name before these texts for the user's."""
        found = Counter(name for text in texts if (name := _guess_name(text)))
        if found:
            self._add_user(found.most_common(1)[0][0])

    def _add_user(self, name: str) -> None:
        if collapse(name) not in self._names["assistant"]:
            self._names["user"].setdefault(collapse(name), name)


def _spell(names: Iterable[str]) -> dict[str, str]:
    """Return names by their forms: as written, and with `_` for signs, as in the field `name`."""
    forms: dict[str, str] = {}
    for name in filter(str.strip, names):
        plain = "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in name)
        for form in (collapse(name), collapse(plain)):
            if form.strip("_"):
                forms.setdefault(form, name)
    return forms


def _guess_name(text: str) -> str:
    name, colon, rest = text[: _MAX_GUESSED_NAME + 2].partition(":")
    is_name = colon and rest[:1] in (" ", "\n") and not _NO_NAME & set(name) and "\n" not in name
    return name.strip() if is_name else ""


def _find_start(messages: Sequence[SentMessage]) -> _Start:
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.role not in ("system", "user"):
            continue
        marker = find_chat_marker(message.text)
        if marker is None:
            continue
        if message.role == "system":
            return _Start(place + 1, 0, marker.members)
        return _Start(place, marker.end, marker.members)
    return _Start()


def _iterate_texts(messages: Sequence[SentMessage], start: _Start) -> Iterator[_SentText]:
    for place in range(start.place, len(messages)):
        message = messages[place]
        if message.role not in ("user", "assistant") or message.calls:
            continue
        text = message.text[start.offset :] if place == start.place else message.text
        text = (_find_query(text) if message.role == "user" else text).strip()
        if text or message.images:
            role: _LineRole = "user" if message.role == "user" else "assistant"
            yield _SentText(role, place, text)


def _find_query(text: str) -> str:
    """Return the user's line in Open WebUI's template for documents, or the text itself."""
    head = text[:_DOCUMENT_HEAD]
    if not head.lstrip().startswith(_DOCUMENT_TASK) or "user query" not in head:
        return text
    _, tag, query = text.rpartition("<user_query>")
    if tag:
        return query.partition("</user_query>")[0] or text
    _, tag, query = text.rpartition("</context>")
    return query if query.strip() else text


def _split_single(
    texts: list[_SentText], speakers: _Speakers, *, has_marker: bool
) -> list[_SentText]:
    """Split a list of one message, into which the client has put the whole conversation."""
    if len(texts) != 1:
        return texts
    (whole,) = texts
    parts = [whole.text[begin:end] for begin, end in iterate_paragraphs(whole.text)]
    roles: list[_LineRole | None] = [speakers.find_role(part) for part in parts]
    if has_marker and "assistant" in roles and "user" not in roles:
        unknown = (part for part, role in zip(parts, roles, strict=True) if role is None)
        speakers.guess_frequent_user(unknown)
        roles = [speakers.find_role(part) for part in parts]
    if "assistant" not in roles or "user" not in roles:
        return texts
    if not has_marker and [role for role in roles if role][-1] == "assistant":
        return texts
    split: list[tuple[_LineRole, list[str]]] = []
    for part, speaker in zip(parts, roles, strict=True):
        if speaker is not None:
            split.append((speaker, [part]))
        elif split:
            split[-1][1].append(part)
    return [_SentText(role, whole.place, "\n\n".join(parts)) for role, parts in split]


def _take_instructions(
    messages: Sequence[SentMessage], texts: list[_SentText], *, finds_tasks: bool
) -> tuple[list[_SentText], list[Instruction]]:
    """Split the texts into lines and the instructions after them."""
    prefill: list[_SentText] = []
    if len(texts) > 1 and texts[-1].role == "assistant" and texts[-1].place == len(messages) - 1:
        prefill = [texts.pop()]
    found: list[list[Instruction]] = []
    after = prefill[0].place if prefill else len(messages)
    while texts:
        last = texts[-1]
        is_reply = last.role == "assistant"
        found.append(_read_system(messages, last.place + 1, after, is_loose=is_reply))
        if is_reply:
            break
        kept, instructions = _split_user_text(last, finds_tasks=finds_tasks)
        found.append(instructions)
        if kept is not None:
            texts[-1] = kept
            break
        after = texts.pop().place
    ordered = [instruction for part in reversed(found) for instruction in part]
    return texts + prefill, ordered[-MAX_INSTRUCTIONS:]


def _read_system(
    messages: Sequence[SentMessage], begin: int, end: int, *, is_loose: bool
) -> list[Instruction]:
    found: list[Instruction] = []
    for place in range(begin, end):
        message = messages[place]
        if message.role == "system" and message.text.strip():
            found += _split_instructions(message.text, place, is_loose=is_loose)
    return found


def _split_user_text(
    sent: _SentText, *, finds_tasks: bool
) -> tuple[_SentText | None, list[Instruction]]:
    """Return the line of a user message, and nudges and tasks that the client has merged with it.

    Only texts that a person does not write count: exact defaults.
    """
    ignored = (None,) if finds_tasks else (None, "quiet")
    if _find_kind(sent.text)[0] not in ignored:
        return None, _split_instructions(sent.text, sent.place)
    for begin in _find_line_begins(sent.text)[-_MAX_EXAMINED_LINES:]:
        if _find_kind(sent.text[begin : begin + _MAX_TASK])[0] not in ignored:
            kept = replace(sent, text=sent.text[:begin].strip())
            return kept, _split_instructions(sent.text[begin:], sent.place)
    return sent, []


def _find_line_begins(text: str) -> list[int]:
    """Return the offsets of the lines after the first."""
    begins: list[int] = []
    begin = text.find("\n") + 1
    while begin:
        begins.append(begin)
        begin = text.find("\n", begin) + 1
    return begins


def _split_instructions(text: str, place: int, *, is_loose: bool = False) -> list[Instruction]:
    """Split a text at its nudges and known tasks.

    A client can join a nudge with the instruction before it. A group's nudge is one line, with
    other instructions after it.
    """
    found: list[Instruction] = []
    other: list[str] = []
    lines = text.strip().split("\n")
    for number, line in enumerate(lines):
        kind, name = None, ""
        if number == 0 or len(lines) - number <= _MAX_EXAMINED_LINES:
            kind, name = _find_kind(line if number else text, is_loose=is_loose)
        if kind is None:
            other.append(line)
            continue
        _add_other(found, other, place)
        other = []
        if kind != "group":
            rest = "\n".join(lines[number:]).strip()
            return [*found, Instruction(kind=kind, text=rest, place=place, name=name)]
        found.append(Instruction(kind=kind, text=line.strip(), place=place, name=name))
    _add_other(found, other, place)
    return found


def _add_other(found: list[Instruction], lines: list[str], place: int) -> None:
    if text := "\n".join(lines).strip():
        found.append(Instruction(kind="other", text=text, place=place))


def _find_kind(text: str, *, is_loose: bool = False) -> tuple[InstructionKind | None, str]:
    nudge = find_nudge(text, is_loose=is_loose)
    if nudge is not None:
        return nudge.kind, nudge.name
    return ("quiet" if find_quiet_form(text) else None), ""


def _make_line(sent: _SentText, message: SentMessage, speakers: _Speakers) -> Line:
    author, offset = speakers.find_name(sent.role, sent.text)
    if not author and message.name:
        author = speakers.find_spelling(sent.role, message.name)
    text = sent.text[offset:].strip() or sent.text or IMAGE_TEXT
    return Line(
        role=sent.role,
        text=text,
        author=author,
        place=sent.place,
        images=message.images,
        pieces=_find_pieces(text, sent.role, speakers),
    )


def _find_pieces(text: str, role: _LineRole, speakers: _Speakers) -> Sequence[str]:
    spans = list(iterate_paragraphs(text)) if "\n" in text else []
    if len(spans) <= 1:
        return ()
    if len(spans) > MAX_PIECES:
        first_end = spans[-MAX_PIECES][1]
        spans = [(0, first_end), *spans[1 - MAX_PIECES :]]
    parts = (text[begin:end].strip() for begin, end in spans)
    return tuple(part[speakers.find_name(role, part)[1] :].strip() for part in parts)


def _drop_extra_lines(lines: list[Line]) -> list[Line]:
    """Drop the inserted first line of the strict post-processing, and a repeated last line."""
    if (
        len(lines) > 1
        and (lines[0].role, lines[1].role) == ("user", "assistant")
        and collapse(lines[0].text) in PLACEHOLDERS
    ):
        lines = lines[1:]
    if len(lines) > 1 and lines[-1].role == lines[-2].role == "assistant":
        last, before = lines[-1], lines[-2]
        if last.author == before.author and collapse(last.text) == collapse(before.text):
            lines = lines[:-1]
    return lines
