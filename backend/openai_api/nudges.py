"""Texts that SillyTavern puts between and after the lines of a chat: markers and nudges.

Users change these texts. Recognised are the default texts of versions 1.12 to 1.18.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_MARKER_BEGINNING = "[Start a new "
_NEW_CHAT = "[start a new chat]"
_NEW_GROUP_CHAT = "[start a new group chat."
_MEMBERS = "group members:"
_GROUP_NUDGE = "[write the next reply only as "
_IMPERSONATE_NUDGE = "[write your next reply from the point of view of"
_CONTINUE_NUDGE = "[continue"
_EXACT_CONTINUE_NUDGES = (
    "[continue your last message without repeating",
    "[continue the following message.",
)
PLACEHOLDERS = frozenset({_NEW_CHAT, "let's get started."})
"""User messages that the strict prompt post-processing inserts before a greeting."""

_HEAD_CHARACTERS = 400
_MAX_MEMBERS = 100
_MAX_NAME = 200

NudgeKind = Literal["continue", "group", "impersonate"]


@dataclass(frozen=True, slots=True)
class ChatMarker:
    """The marker before the first line. `end` is the offset of the text after it."""

    end: int
    members: Sequence[str]


@dataclass(frozen=True, slots=True)
class Nudge:
    """`name` is the member that a group nudge names."""

    kind: NudgeKind
    name: str = ""


def collapse(text: str) -> str:
    """Return a text as defaults are compared with it: one space between words, in lower case."""
    return " ".join(text.split()).casefold()


def find_chat_marker(text: str) -> ChatMarker | None:
    """Return the last marker that fills a line.

    SillyTavern can join its system messages, and its post-processing joins any messages.
    """
    if _MARKER_BEGINNING not in text:
        return None
    found: ChatMarker | None = None
    end = -1
    for line in text.split("\n"):
        end += len(line) + 1
        if line.lstrip().startswith(_MARKER_BEGINNING):
            members = _read_marker(line)
            found = found if members is None else ChatMarker(end, members)
    return found


def find_nudge(text: str, *, is_loose: bool = False) -> Nudge | None:
    """Return the nudge that a text begins with.

    If `is_loose`, any text that begins with `[Continue` is a nudge. It is not if a user can have
    written the text, or if the list ends with a user's line.
    """
    head = text[:_HEAD_CHARACTERS].lstrip()
    if not head.startswith("["):
        return None
    head = collapse(head)
    if head.startswith(_GROUP_NUDGE):
        return Nudge("group", _read_nudge_name(text))
    if head.startswith(_IMPERSONATE_NUDGE):
        return Nudge("impersonate")
    if head.startswith(_CONTINUE_NUDGE if is_loose else _EXACT_CONTINUE_NUDGES):
        return Nudge("continue")
    return None


def _read_marker(line: str) -> Sequence[str] | None:
    words = collapse(line)
    if words == _NEW_CHAT:
        return ()
    if not words.startswith(_NEW_GROUP_CHAT) or not words.endswith("]"):
        return None
    _, colon, names = line.rpartition("embers:") if _MEMBERS in words else ("", "", "")
    if not colon:
        return ()
    names = names.rstrip().removesuffix("]")
    return [name for each in names.split(",")[:_MAX_MEMBERS] if (name := each.strip()[:_MAX_NAME])]


def _read_nudge_name(text: str) -> str:
    words = " ".join(text[:_HEAD_CHARACTERS].split())
    return words[len(_GROUP_NUDGE) :].partition("]")[0].strip().removesuffix(".").strip()
