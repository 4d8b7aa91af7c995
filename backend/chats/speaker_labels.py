"""Labels of speakers, as in `Alda: Good day.`, that a model writes before a line.

Prompts of chats with several speakers put each author's name before the text
(`token_counting.format_line`), and models copy that. The speaker's own label is not part of the
reply. At another speaker's label, the model begins to write for someone else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import regex  # type: ignore[import-untyped]  # it has no types

from backend.core.audience import MARK_PATTERN
from backend.core.code_spans import CodeSpans

MAX_BLANKS = 1_000
"""Limit of white space that is held back. Longer white space is always text."""

_SPACE = "[ \u00a0\u202f]?"
"""French puts a space before a colon."""

_COLON = "[:\uff1a]"
_MARK = r"(?P<mark>\*{1,3}|_{1,3})"
_MAX_MARKS = 4
"""Characters of marks and a bracket before a name."""

_BLANKS = regex.compile(r"\s*+")
_AUDIENCE_MARK = regex.compile(MARK_PATTERN)


class _Label(NamedTuple):
    """A label in a text, and its end. `is_open` is true if the text may end inside a label."""

    end: int
    is_own: bool
    is_open: bool


class _Labels:
    """The labels of a speaker and of others."""

    def __init__(self, speaker: str, others: Iterable[str]) -> None:
        own = speaker.strip().lower()
        self._own = [own] if own else []
        self._others = sorted({name for each in others if (name := each.strip().lower())} - {own})
        self._names = (*self._own, *self._others)
        self._length = _MAX_MARKS + max(map(len, self._names), default=0)

    def read(self, text: str, at: int) -> _Label | None:
        """Return the label that begins at a position."""
        if text[at : at + 1] == "(":
            mark = _AUDIENCE_MARK.match(text, at, partial=True)
            return _Label(mark.end(), is_own=True, is_open=mark.partial) if mark else None
        head = text[at : at + self._length]
        name = head.lstrip("*_[").lower()
        if not name and len(head) < _MAX_MARKS:
            return _Label(at, is_own=False, is_open=True)
        # The pattern takes a millisecond to compile, and few lines begin with a name.
        if not any(name.startswith(each) or each.startswith(name) for each in self._names):
            return None
        found = self._pattern.match(text, at, partial=True)
        if found is None:
            return None
        return _Label(found.end(), found["speaker"] is not None, is_open=found.partial)

    @cached_property
    def _pattern(self) -> Any:
        names = f"(?P<speaker>{_join_names(self._own)})|(?:{_join_names(self._others)})"
        end = f"{_SPACE}{_COLON}"
        marked = f"(?(mark)(?:{end}(?P=mark)|(?P=mark){end})|{end})"
        bracketed = rf"(?(bracket)(?:\]{marked}|{end}\])|{marked})"
        label = rf"{_MARK}?(?P<bracket>\[)?(?:{names}){bracketed}"
        # The module's cache must not keep the pattern, because names are user text.
        return regex.compile(label, regex.IGNORECASE, cache_pattern=False)


class SpeakerFilter:
    """Removes the speaker's label from a reply, and ends the reply at another speaker's line.

    A label is a name with a colon at the beginning of a line, in any letter case, possibly in bold,
    italics or brackets. The speaker's own is removed at the beginning of the text only, and so are
    audience marks. Another speaker's ends the reply, except in a fenced block and at the beginning
    of the reply, because nothing would be left. `is_over` is true after that, and later text is
    dropped.

    The time is linear in the text, however it is split. At most a label and `MAX_BLANKS` characters
    of white space are held back, because white space at the end is removed.
    """

    def __init__(
        self,
        speaker: str,
        others: Iterable[str] = (),
        *,
        has_text: bool = False,
        joins_text: bool = False,
        keeps_others: bool = False,
    ) -> None:
        """Prepare for the text of one request. `others` include the user.

        `has_text` is true if the reply has text before this one, and `joins_text` if this one is
        joined to it, so that the space after a label stays. `keeps_others` keeps lines of other
        speakers.
        """
        self.is_over = False
        self._labels = _Labels(speaker, () if keeps_others else others)
        self._held = ""
        self._has_text, self._joins_text = has_text, joins_text
        self._is_head = self._begins_line = True
        self._drops_blanks = False
        self._code = CodeSpans()

    def feed(self, text: str) -> str:
        """Return the text that the next part of the reply settles."""
        text, self._held = self._held + text, ""
        kept: list[str] = []
        at = 0
        while at < len(text) and not self.is_over:
            at = (self._begin_line if self._begins_line else self._end_line)(text, at, kept)
        return "".join(kept)

    def close(self) -> str:
        """Return the rest at the end of the text, or before something else in the reply."""
        held, self._held = self._held, ""
        kept: list[str] = []
        self._keep(held, kept)
        if held.strip():
            self._begins_line = False
        return "".join(kept)

    def _begin_line(self, text: str, at: int, kept: list[str]) -> int:
        """Look for a label, and return the position up to which the text is read."""
        leading = _BLANKS.match(text, at)
        begin: int = leading.end() if leading else at
        blanks = "" if self._drops_blanks else text[at:begin]
        label: _Label | None = None
        if len(blanks) <= MAX_BLANKS and not self._code.ends_in_fence():
            label = self._labels.read(text, begin)
            if begin == len(text) or (label and label.is_open):
                self._held = blanks + text[begin:]
                return len(text)
        if label and label.is_own and self._is_head:
            self._drops_blanks = not self._joins_text
            return label.end
        if label and not label.is_own and (self._has_text or not self._is_head):
            self.is_over = True
            return len(text)
        self._keep(blanks, kept)
        self._begins_line = self._drops_blanks = False
        return begin

    def _end_line(self, text: str, at: int, kept: list[str]) -> int:
        """Keep a line without the white space at its end."""
        newline = text.find("\n", at)
        line = text[at : newline if newline >= 0 else len(text)].rstrip()
        end = at + len(line)
        if newline >= 0:
            self._begins_line = True
        elif len(text) - end <= MAX_BLANKS:
            self._held = text[end:]
            end = len(text)
        else:
            line, end = text[at:], len(text)
        self._keep(line, kept)
        return end

    def _keep(self, text: str, kept: list[str]) -> None:
        self._code.add(text)
        kept.append(text)
        if text.strip():
            self._is_head = False


def remove_label(text: str, speaker: str) -> str:
    """Return a whole text without the speaker's label at its beginning."""
    speakers = SpeakerFilter(speaker)
    return speakers.feed(text) + speakers.close()


def _join_names(names: Sequence[str]) -> str:
    """Return a pattern of names, the longest first, which matches nothing without names."""
    return "|".join(map(regex.escape, sorted(names, key=len, reverse=True))) or "(?!)"
