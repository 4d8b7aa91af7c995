"""Separates the thoughts that a model writes between tags from the text of its reply.

Many servers do not separate them. The rules for tags:

- An opening tag is valid at the beginning of a reply and after another block. Later tags belong to
  the story or to code.
- A closing tag without an opening one is valid once in a reply: outside code, before any tool call,
  and within the first `MAX_TAKEN_BACK` characters. Some chat templates write the opening tag into
  the prompt, so that the reply begins inside the thoughts. The text before the tag is taken back.
- A closing tag between two backticks is a quotation.
- Tags of an answer (`<|channel|>final<|message|>`) are valid at the same places as opening tags,
  and are removed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import msgspec

from backend.core.code_spans import CodeSpans
from backend.generation.model import (
    FinishReason,
    TextPiece,
    TextReset,
    ThinkingPiece,
    ThinkingReset,
    ToolCall,
)
from backend.generation.servers.replies import Delta, DeltaPiece

Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=40, pattern=r"^\S(.*\S)?$")]
"""A tag without outer white space, which the reader skips at the beginning of a reply."""

MAX_TAKEN_BACK = 200_000
"""Maximum number of characters that a closing tag can turn into thoughts, kept in memory.

They are about 50,000 tokens, more than models think.
"""

MAX_BLANKS = 200
"""Characters of white space after which a reply has begun."""


class ThoughtTags(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pair of tags that enclose thoughts in the text."""

    opening: Tag
    closing: Tag


KNOWN_TAGS: Sequence[ThoughtTags] = (
    *(
        ThoughtTags(f"<{name}>", f"</{name}>")
        for name in ("think", "thinking", "thought", "reasoning", "seed:think")
    ),
    ThoughtTags("[THINK]", "[/THINK]"),  # Mistral
    ThoughtTags("<|channel>thought", "<channel|>"),  # Gemma
    ThoughtTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ThoughtTags("◁think▷", "◁/think▷"),  # Kimi
)
"""Tags that are recognised in all replies, in upper or lower case."""

_CHANNEL_TAGS: Sequence[ThoughtTags] = tuple(
    ThoughtTags(f"{start}<|channel|>{channel}<|message|>", "<|end|>")
    for start in ("", "<|start|>assistant")
    for channel in ("analysis", "commentary")
)
"""The tags of gpt-oss. Their closing tag also ends replies, so it is not valid alone.

Source: https://cookbook.openai.com/articles/openai-harmony
"""

_ANSWER_OPENINGS = (
    "<|channel|>final<|message|>",
    "<|start|>assistant<|channel|>final<|message|>",
    "<|START_RESPONSE|>",
)
_ANSWER_CLOSINGS = ("<|end|>", "<|return|>", "<|END_RESPONSE|>")

_BLANKS = re.compile(r"\s*")
_CUT_FINISHES: frozenset[FinishReason] = frozenset({"length", "safety"})
"""Finish reasons of replies that may end inside their thoughts."""


class _TagFinder:
    """Finds tags in a growing text. ASCII letters match in upper and lower case."""

    def __init__(self, tags: Iterable[str]) -> None:
        longest_first = sorted(set(tags), key=len, reverse=True)
        self._tags = [tag.lower() for tag in longest_first]
        self._length = len(longest_first[0])
        first = sorted({tag[0] for tag in longest_first})
        self.any, self._first = (
            re.compile("|".join(map(re.escape, each)), re.IGNORECASE | re.ASCII)
            for each in (longest_first, first)
        )

    def may_begin(self, text: str, at: int) -> bool:
        """True if the text ends within a tag that begins at `at`."""
        rest = text[at : at + self._length].lower()
        return any(len(rest) < len(tag) and tag.startswith(rest) for tag in self._tags)

    def find_settled_end(self, text: str, at: int) -> int:
        """Return the first position from `at` where an incomplete tag may begin."""
        place = max(at, len(text) - self._length + 1)
        while first := self._first.search(text, place):
            if self.may_begin(text, first.start()):
                return first.start()
            place = first.start() + 1
        return len(text)


class _ReplyTags(NamedTuple):
    """The tags of a reply, in lower case.

    Attributes:
        head: Finds the tags that are valid at the beginning of a reply.
        text: Finds the tags that are relevant after it.
        closing_of: The closing tag of each opening one.
        ends: The finder of the closing tag, by the opening one.
        lone: The closing tags that are valid without an opening one.
        lone_end: Finds them.
    """

    head: _TagFinder
    text: _TagFinder
    closing_of: Mapping[str, str]
    ends: Mapping[str, _TagFinder]
    lone: Collection[str]
    lone_end: _TagFinder


def _make_reply_tags(added: Sequence[ThoughtTags] = ()) -> _ReplyTags:
    own = (*KNOWN_TAGS, *added)
    pairs = (*own, *_CHANNEL_TAGS)
    openings = [pair.opening for pair in pairs]
    # Closing tags without letters, such as a code fence, are too common in stories.
    lone = [pair.closing for pair in own if any(map(str.isalpha, pair.closing))]
    return _ReplyTags(
        head=_TagFinder([*openings, *lone, *_ANSWER_OPENINGS]),
        text=_TagFinder([*openings, *lone]),
        closing_of={pair.opening.lower(): pair.closing.lower() for pair in pairs},
        ends={pair.opening.lower(): _TagFinder([pair.closing]) for pair in pairs},
        lone={tag.lower() for tag in lone},
        lone_end=_TagFinder(lone),
    )


KNOWN_REPLY_TAGS = _make_reply_tags()
_ANSWER_END = _TagFinder(_ANSWER_CLOSINGS)


class ThoughtReader:
    """Separates thoughts from text, piece by piece, in linear time.

    It holds back at most the longest tag, or `MAX_BLANKS` characters of white space.

    Attributes:
        thinks_first: True if replies begin inside thoughts that only a closing tag ends. It is
            updated by the reply.
    """

    def __init__(
        self,
        tags: Sequence[ThoughtTags] = (),
        *,
        start: str = "",
        thinks_first: bool = False,
        is_json: bool = False,
        is_off: bool = False,
    ) -> None:
        """Prepare for one reply.

        Args:
            tags: Tags in addition to the known ones.
            start: The requested beginning of the reply, which servers do not repeat.
            thinks_first: Treat the reply as thoughts until a closing tag. Without one, the reply is
                yielded again as text.
            is_json: JSON was requested, so a reply that begins with a bracket has no tags.
            is_off: Do not change the text.
        """
        self.thinks_first = thinks_first
        # A user's tags are not cached, because they are the user's text.
        self._marks = _make_reply_tags(tags) if tags else KNOWN_REPLY_TAGS
        self._place: Literal["head", "thoughts", "text"] = "text" if is_off else "head"
        self._end = self._marks.lone_end
        self._held = ""
        self._last = ""  # of the thoughts so far
        self._is_json = is_json
        self._in_answer = self._had_block = False
        self._presumes_thoughts = thinks_first and not (start or is_off)
        self._can_take_back = not is_off
        self._streamed: list[str] = []
        self._length = 0
        self._code = CodeSpans()
        self._open_tags: Counter[str] = Counter()
        self._started = self.feed(start) if start else []

    def read(self, delta: Delta) -> Delta:
        """Separate the thoughts in a part of a reply. A part with a finish is the last one."""
        pieces: list[DeltaPiece] = []
        for piece in delta.pieces:
            match piece:
                case TextPiece(text):
                    pieces += self.feed(text)
                case ToolCall():
                    # Text before a call is not taken back, because the call may be executed.
                    pieces += [*self.close(is_cut=False), piece]
                    self._keep()
                case _:
                    # The server separates thoughts.
                    pieces += [*self._refute(), piece]
        if delta.pieces:
            pieces, self._started = [*self._started, *pieces], []
        if delta.finish is not None:
            pieces += self.close(is_cut=delta.finish in _CUT_FINISHES)
        return replace(delta, pieces=tuple(pieces))

    def break_off(self) -> Delta:
        """Return the rest of an incomplete reply."""
        return Delta(tuple(self.close(is_cut=True)))

    def feed(self, text: str) -> list[DeltaPiece]:
        """Return the pieces that the next part of the reply completes."""
        text, self._held = self._held + text, ""
        pieces: list[DeltaPiece] = []
        at = 0
        while at < len(text):
            match self._place:
                case "head":
                    at = self._begin(text, at)
                case "thoughts":
                    at = self._think(text, at, pieces)
                case "text" if self._in_answer:
                    at = self._answer(text, at, pieces)
                case "text":
                    at = self._say(text, at, pieces)
        return pieces

    def close(self, *, is_cut: bool) -> list[DeltaPiece]:
        """Return the rest at the end of the reply, or before a tool call.

        If it `is_cut`, it may have ended inside its thoughts.
        """
        held, self._held = self._held, ""
        pieces: list[DeltaPiece] = []
        if self._place != "thoughts":
            self._add(TextPiece(held.lstrip() if self._had_block else held), pieces)
        elif self._end.any.match(held):
            self._end_block()
        else:
            self._add(ThinkingPiece(held), pieces)
            if not is_cut:
                pieces += self._refute()
        return pieces

    def _begin(self, text: str, at: int) -> int:
        """Read a tag at the beginning of a block, and return the position after it."""
        blanks = _BLANKS.match(text, at)
        begin = blanks.end() if blanks else at
        is_open = begin == len(text) or self._marks.head.may_begin(text, begin)
        if is_open and begin - at <= MAX_BLANKS:
            self._held = text[at:]
            return len(text)
        found = self._marks.head.any.match(text, begin)
        if found is None:
            return self._begin_text(text, at, begin)
        tag = found[0].lower()
        if tag in self._marks.ends:
            self._end, self._place, self._last = self._marks.ends[tag], "thoughts", ""
            if self._presumes_thoughts:
                self.thinks_first = False
            self._keep()
        elif tag in self._marks.lone:
            # The prompt contains the opening tag, and the thoughts are empty.
            self.thinks_first |= self._can_take_back
            self._end_block()
        else:
            self._place, self._in_answer = "text", True
            self._keep()
        return found.end()

    def _begin_text(self, text: str, at: int, begin: int) -> int:
        if self._is_json and text[begin : begin + 1] in {"{", "["}:
            self._keep()
        self._place = "thoughts" if self._presumes_thoughts else "text"
        return begin if self._had_block or self._presumes_thoughts else at

    def _think(self, text: str, at: int, pieces: list[DeltaPiece]) -> int:
        if not self._last and (blanks := _BLANKS.match(text, at)):
            at = blanks.end()
        place = at
        while found := self._end.any.search(text, place):
            before = text[found.start() - 1] if found.start() > at else self._last
            if before != "`":
                break
            after = text[found.end() : found.end() + 1]
            if after == "`":
                place = found.end()
                continue
            if after:
                break
            self._add(ThinkingPiece(text[at : found.start()]), pieces)
            self._held = text[found.start() :]
            return len(text)
        end = found.start() if found else self._end.find_settled_end(text, place)
        self._add(ThinkingPiece(text[at:end]), pieces)
        if found:
            self._end_block()
            return found.end()
        self._held = text[end:]
        return len(text)

    def _answer(self, text: str, at: int, pieces: list[DeltaPiece]) -> int:
        found = _ANSWER_END.any.search(text, at)
        end = found.start() if found else _ANSWER_END.find_settled_end(text, at)
        self._add(TextPiece(text[at:end]), pieces)
        if found:
            self._in_answer = False
            self._end_block()
            return found.end()
        self._held = text[end:]
        return len(text)

    def _say(self, text: str, at: int, pieces: list[DeltaPiece]) -> int:
        """Read text up to a lone closing tag."""
        if not self._can_take_back:
            self._add(TextPiece(text[at:]), pieces)
            return len(text)
        place = at
        for found in self._marks.text.any.finditer(text, at):
            self._code.add(text[place : found.start()])
            place = found.start()
            if self._code.ends_in_code():
                continue
            tag = found[0].lower()
            if tag in self._marks.closing_of:
                self._open_tags[self._marks.closing_of[tag]] += 1
            elif self._open_tags[tag]:
                self._open_tags[tag] -= 1
            else:
                pieces += self._take_back(text[at : found.start()])
                return found.end()
        end = self._marks.text.find_settled_end(text, place)
        self._code.add(text[place:end])
        self._add(TextPiece(text[at:end]), pieces)
        self._held = text[end:]
        return len(text)

    def _take_back(self, more: str) -> list[DeltaPiece]:
        """Take back the streamed text, and return it and `more` as thoughts."""
        pieces: list[DeltaPiece] = [TextReset()] if self._streamed else []
        if thoughts := "".join((*self._streamed, more)).lstrip():
            pieces.append(ThinkingPiece(thoughts))
        self.thinks_first = True
        self._end_block()
        return pieces

    def _refute(self) -> list[DeltaPiece]:
        """Return presumed thoughts as text."""
        if not self._presumes_thoughts:
            return []
        self.thinks_first = False
        text = "".join(self._streamed)
        if text:
            self._place = "text"
        self._keep()
        return [ThinkingReset(), TextPiece(text)] if text else []

    def _add(self, piece: TextPiece | ThinkingPiece, pieces: list[DeltaPiece]) -> None:
        """Add a piece unless it is empty. Remember it while it can be taken back."""
        if not piece.text:
            return
        pieces.append(piece)
        self._last = piece.text[-1]
        if self._can_take_back:
            self._streamed.append(piece.text)
            self._length += len(piece.text)
            if self._length > MAX_TAKEN_BACK:
                self._keep()

    def _end_block(self) -> None:
        self._place, self._had_block = "head", True
        self._keep()

    def _keep(self) -> None:
        """Forget the streamed pieces, which can no longer be taken back."""
        self._presumes_thoughts = self._can_take_back = False
        self._streamed.clear()
