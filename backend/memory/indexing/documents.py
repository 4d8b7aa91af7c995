"""What is indexed of a message, a scene, an entry, an event, a campaign's item: texts and figures.

Pure. A row becomes one document or, where its text is long, several: one a chunk.

Vectors get the bare line, terms get its date as well: a date in front of a line draws its vector
away from what the line says. What each choice brings: docs/explanation/quality.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from uuid import UUID

from backend.core.audience import PUBLIC, may_all_know
from backend.memory.index.protocol import Kind
from backend.memory.search.words import MONTHS

CHUNK_WORDS = 200
OVERLAP_WORDS = 20

_SEPARATORS = tuple(
    map(
        re.compile,
        (r"\n\s*\n", r"\n", r"[.!?…][\"'”’)*]*\s+|[。！？]", r"\s+"),  # noqa: RUF001  # ends of sentences in Chinese and Japanese
    )
)
"""Where a text is cut, the best places first: after paragraphs, lines, sentences, words."""

_WORD_CHARACTERS = 12
"""What has no spaces is counted in words of this length."""

_LONGEST_WORD = 36
"""Characters up to which a word is one."""


def chunked(text: str, *, words: int = CHUNK_WORDS, overlap: int = OVERLAP_WORDS) -> list[str]:
    """Cut a text into parts of at most `words` words, at the best places that there are.

    A part that would be too long is cut at paragraphs, then lines, sentences, words. Parts are
    filled up as far as they go, and each begins with the end of the one before: whole words, at
    most `overlap`.

    Args:
        text: Any text.
        words: The most that a part has, at least 1. Twelve characters without a space are a word:
            Chinese has no spaces.
        overlap: Words that are repeated, less than `words`.

    Returns:
        At least one part; all of the text, but for spaces at the cuts, is in them, in order.

    Raises:
        ValueError: If `overlap` is not less than `words`.
    """
    if not 0 <= overlap < words:
        raise ValueError("The overlap must be less than a part.")
    if _length(text) <= words:
        return [text.strip()]
    parts: list[str] = []
    part = _Part()
    for piece in _pieces(text, words - overlap, 0):
        if part.length + _length(piece) > words and part.text:
            parts.append(part.text)
            part = _Part(_tail(part.text, overlap))
        part.append(piece)
    return [each.strip() for each in (*parts, part.text)]


class _Part:
    """A part that grows by pieces, whose words are counted as they come."""

    def __init__(self, text: str = "") -> None:
        self._pieces: list[str] = []
        self._closed = 0  # in words, without the one that the next piece may go on with
        self._open = 0  # characters of that
        self.append(text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def length(self) -> int:
        """How many words it has, as `_length` counts them."""
        return self._closed + _words_in(self._open)

    def append(self, piece: str) -> None:
        """Add a piece. Its first word may go on with the last one there."""
        self._pieces.append(piece)
        if not piece:
            return
        sizes = [len(word) for word in piece.split()]
        if sizes and not piece[0].isspace():
            sizes[0] += self._open
        else:
            sizes.insert(0, self._open)
        self._open = 0 if piece[-1].isspace() else sizes.pop()
        self._closed += sum(map(_words_in, sizes))


def _pieces(text: str, words: int, depth: int) -> list[str]:
    """The text in pieces of at most `words` words, which put together are the text."""
    if _length(text) <= words:
        return [text] if text else []
    if depth == len(_SEPARATORS):
        size = words * _WORD_CHARACTERS
        return [text[start : start + size] for start in range(0, len(text), size)]
    cuts = [match.end() for match in _SEPARATORS[depth].finditer(text)]
    bounds = [0, *cuts, len(text)]
    return [
        piece
        for start, end in pairwise(bounds)
        for piece in _pieces(text[start:end], words, depth + 1)
    ]


def _length(text: str) -> int:
    """How many words a text has; what is too long for a word is several."""
    return sum(_words_in(len(word)) for word in text.split())


def _words_in(characters: int) -> int:
    if characters <= _LONGEST_WORD:
        return min(characters, 1)
    return -(-characters // _WORD_CHARACTERS)


def _tail(text: str, words: int) -> str:
    """The last words of a text, with the spaces between them."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    return text[starts[-words] :] if words and len(starts) > words else ""


WINDOW = 2
"""Messages on either side that a message's window takes in, for terms."""

_BESIDE_WORDS = 40
"""Words of a neighbour, of its near end, in a window for vectors: models read 128 to 512 tokens."""

_BESIDE_CHARACTERS = 16_000
"""Characters of a neighbour, of its near end, that are cut into parts: `WINDOW` parts have less."""

_SCENE_CHARACTERS = 5_000
"""Characters of a message that count in its scene, which is made anew with each of its messages."""

_HEAD_WORDS = 60
"""Words of title and keys that stand in each chunk of a lorebook entry."""

_ASKS = re.compile(r"[?？][\s\"'”’»)*_~]*$")  # noqa: RUF001  # the Chinese question mark


@dataclass(frozen=True, kw_only=True)
class Line:
    """A message as its source reads it. `audience` is as its column holds it."""

    id: UUID
    container_id: UUID
    author: str
    text: str
    said_at: datetime
    position: int
    scene_id: UUID | None
    version: int
    audience: str = PUBLIC

    @cached_property
    def chunks(self) -> list[str]:
        """Its text in parts, cut once: the windows of its neighbours show them as well."""
        return chunked(self.text)

    @cached_property
    def first_chunks(self) -> list[str]:
        """The parts at its beginning that the windows of lines above it show."""
        is_short = len(self.text) <= _BESIDE_CHARACTERS
        return (self.chunks if is_short else chunked(self.text[:_BESIDE_CHARACTERS]))[:WINDOW]

    @cached_property
    def last_chunks(self) -> list[str]:
        """The parts at its end that the windows of lines below it show."""
        is_short = len(self.text) <= _BESIDE_CHARACTERS
        return (self.chunks if is_short else chunked(self.text[-_BESIDE_CHARACTERS:]))[-WINDOW:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What one point is made of.

    Attributes:
        text: For `dense` and `sparse`: with the title or the speaker, and the date.
        dense_text: For `dense`, where that differs; None is `text`. Empty: no dense vector.
        dense_window: For `dense_window`; None is no such vector.
        sparse_window: For `sparse_window`; None is no such vector.
        speaker: Who speaks, by name; empty for nobody.
        said_at: Seconds since 1970; 0 where there is no time.
        version: Of the row.
        audience: Who may know it, as the row's column holds it.
    """

    kind: Kind
    source_id: UUID
    container_id: UUID
    text: str
    version: int
    chunk: int = 0
    dense_text: str | None = None
    dense_window: str | None = None
    sparse_window: str | None = None
    speaker: str = ""
    position: int = 0
    scene_id: UUID | None = None
    said_at: int = 0
    words: int = 0
    is_question: bool = False
    audience: str = PUBLIC


def message_documents(
    line: Line, *, before: Sequence[Line], after: Sequence[Line]
) -> list[Document]:
    """A message's documents, one a chunk.

    Around a chunk stand the chunks next to it, of this message or of another, of the same scene:
    what was said before a pause says little about what comes after it. `before` and `after` are
    the lines around the message, oldest first; the `WINDOW` next to it count. Lines that not all
    of the message's audience may know are left out.
    """
    date = _date(line.said_at)
    chunks = line.chunks
    above = [each for each in before[-WINDOW:] if _is_beside(each, line)]
    below = [each for each in after[:WINDOW] if _is_beside(each, line)]
    heads = [(each.author, part) for each in above for part in each.last_chunks]
    tails = [(each.author, part) for each in below for part in each.first_chunks]
    pieces = [*heads, *((line.author, chunk) for chunk in chunks), *tails]
    documents: list[Document] = []
    for number, chunk in enumerate(chunks):
        place = len(heads) + number
        text = _spoken(line.author, chunk)
        wide = pieces[max(0, place - WINDOW) : place + WINDOW + 1]
        documents.append(
            Document(
                kind="message",
                source_id=line.id,
                container_id=line.container_id,
                version=line.version,
                chunk=number,
                text=f"{date}. {text}",
                dense_text=text,
                dense_window=_dense_window(pieces, place),
                sparse_window="\n".join([date, *(_spoken(*piece) for piece in wide)]),
                speaker=line.author,
                position=line.position,
                scene_id=line.scene_id,
                said_at=int(line.said_at.timestamp()),
                words=len(chunk.split()),
                is_question=_ASKS.search(chunk) is not None,
                audience=line.audience,
            )
        )
    return documents


def scene_document(scene_id: UUID, lines: Sequence[Line]) -> Document:
    """A scene's document, of its lines (at least one), oldest first: terms alone.

    Only public lines are in it: a scene lifts all of its lines in a search.
    """
    heard = [line for line in lines if line.audience == PUBLIC]
    texts = [line.text[:_SCENE_CHARACTERS] for line in heard]
    spoken = [_spoken(line.author, text) for line, text in zip(heard, texts, strict=True)]
    return Document(
        kind="scene",
        source_id=scene_id,
        container_id=lines[0].container_id,
        version=max(line.version for line in lines),
        text="\n".join([_date(lines[0].said_at), *spoken]),
        dense_text="",
        scene_id=scene_id,
        position=lines[0].position,
        said_at=int(lines[0].said_at.timestamp()),
        words=sum(len(text.split()) for text in texts),
    )


def lore_documents(
    entry_id: UUID,
    book_id: UUID,
    *,
    title: str,
    keys: Sequence[str],
    content: str,
    version: int,
) -> list[Document]:
    """A lorebook entry's documents: its title and keys stand in each of them."""
    return [
        Document(
            kind="lore",
            source_id=entry_id,
            container_id=book_id,
            version=version,
            chunk=number,
            text=text,
            words=words,
        )
        for number, (text, words) in enumerate(_headed([title, *keys], content))
    ]


def item_documents(
    item_id: UUID,
    campaign_id: UUID,
    *,
    names: Sequence[str],
    content: str,
    version: int,
    audience: str,
) -> list[Document]:
    """The documents of a campaign's item: its names stand in each of them."""
    return [
        Document(
            kind="campaign",
            source_id=item_id,
            container_id=campaign_id,
            version=version,
            chunk=number,
            text=text,
            words=words,
            audience=audience,
        )
        for number, (text, words) in enumerate(_headed(names, content))
    ]


def event_document(  # noqa: PLR0913  # an event has that many sides
    event_id: UUID,
    chronicle_id: UUID,
    *,
    summary: str,
    when: str,
    where: str,
    who: Sequence[str],
    keywords: Sequence[str],
    said_at: datetime | None,
    version: int,
    audience: str = PUBLIC,
) -> Document:
    """A chronicle event's document. `when` is the story's own time, in whatever words."""
    date = _date(said_at) if said_at else ""
    about = ", ".join(filter(None, [when, where, *who]))
    said = f"{about}: {summary}" if about else summary
    return Document(
        kind="event",
        source_id=event_id,
        container_id=chronicle_id,
        version=version,
        text="\n".join(filter(None, [date, said, ", ".join(keywords)])),
        dense_text=said,
        said_at=int(said_at.timestamp()) if said_at else 0,
        words=len(summary.split()),
        audience=audience,
    )


def _headed(names: Sequence[str], content: str) -> list[tuple[str, int]]:
    """The chunks of a text, each below the names that it goes by, and the words of each."""
    head = " ".join(", ".join(filter(None, names)).split()[:_HEAD_WORDS])
    return [(f"{head}\n{chunk}".strip(), len(chunk.split())) for chunk in chunked(content)]


def _is_beside(other: Line, line: Line) -> bool:
    """Whether a line may stand in another one's window."""
    return other.scene_id == line.scene_id and may_all_know(line.audience, other.audience)


def _dense_window(pieces: Sequence[tuple[str, str]], place: int) -> str:
    """A piece with the near ends of those next to it: the mean of more is near to everything."""
    lines = [_spoken(*pieces[place])]
    if place:
        author, text = pieces[place - 1]
        lines.insert(0, _spoken(author, " ".join(text.split()[-_BESIDE_WORDS:])))
    if place + 1 < len(pieces):
        author, text = pieces[place + 1]
        lines.append(_spoken(author, " ".join(text.split()[:_BESIDE_WORDS])))
    return "\n".join(lines)


def _spoken(author: str, text: str) -> str:
    return f"{author}: {text}" if author else text


def _date(at: datetime) -> str:
    return f"{at.day} {MONTHS[at.month - 1]} {at.year}"
