"""Documents of rows, and the points of the index that are built from them.

A row has one document, or one per chunk if its text is long. Building documents is pure.

Terms include the date of a message, vectors do not: a date would dominate the vector of a short
line. docs/explanation/quality.md has the effect of each choice.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from itertools import pairwise
from uuid import UUID

import numpy as np

from backend.core.audience import PUBLIC, make_keywords, may_all_know
from backend.core.cpu_pool import CpuPool
from backend.memory.embedding.protocol import DocumentEmbedder, EmbedderError, Floats, TextEmbedder
from backend.memory.index.protocol import (
    DenseName,
    Kind,
    Payload,
    Point,
    Sparse,
    SparseName,
    point_id,
)
from backend.memory.search.query import MONTHS
from backend.memory.search.terms import build_sparse_vector
from backend.vault.blinding import Blinder
from backend.vault.sealing import Sealer

CHUNK_WORDS = 200
OVERLAP_WORDS = 20

SEPARATORS = tuple(
    map(
        re.compile,
        (r"\n\s*\n", r"\n", r"[.!?…][\"'”’)*]*\s+|[。！？]", r"\s+"),  # noqa: RUF001  # ends of sentences in Chinese and Japanese
    )
)
"""Ends of paragraphs, lines, sentences and words: the places to cut, the best first."""

_CHARACTERS_PER_WORD = 12
"""Text without spaces is counted as words of this length."""

_MAX_WORD_CHARACTERS = 36
"""Longer words are counted as several."""


def split_into_chunks(
    text: str, *, words: int = CHUNK_WORDS, overlap: int = OVERLAP_WORDS
) -> list[str]:
    """Split a text into at least one chunk of at most `words` words.

    It cuts at paragraphs if possible, or else at lines, sentences or words. Chunks are filled as
    far as possible. Each begins with the last words of the previous one, at most `overlap`. They
    contain the whole text in order, except spaces at the cuts. Twelve characters without a space
    count as a word, because Chinese has no spaces. `ValueError` means that `overlap` is too large.
    """
    if not 0 <= overlap < words:
        raise ValueError("The overlap must be less than a chunk.")
    if _count_words(text) <= words:
        return [text.strip()]
    parts: list[str] = []
    part = _Part()
    for piece in _split_pieces(text, words - overlap, 0):
        if part.length + _count_words(piece) > words and part.text:
            parts.append(part.text)
            part = _Part(_take_last_words(part.text, overlap))
        part.append(piece)
    return [each.strip() for each in (*parts, part.text)]


class _Part:
    """A chunk that grows by pieces and counts its words incrementally."""

    def __init__(self, text: str = "") -> None:
        self._pieces: list[str] = []
        self._closed = 0  # words, without the last one if the next piece may continue it
        self._open = 0  # characters of that last word
        self.append(text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def length(self) -> int:
        return self._closed + _estimate_words(self._open)

    def append(self, piece: str) -> None:
        """Append a piece. Its first word may continue the last word."""
        self._pieces.append(piece)
        if not piece:
            return
        sizes = [len(word) for word in piece.split()]
        if sizes and not piece[0].isspace():
            sizes[0] += self._open
        else:
            sizes.insert(0, self._open)
        self._open = 0 if piece[-1].isspace() else sizes.pop()
        self._closed += sum(map(_estimate_words, sizes))


def _split_pieces(text: str, words: int, depth: int) -> list[str]:
    """Split the text into pieces of at most `words` words. Joined, they are the text."""
    if _count_words(text) <= words:
        return [text] if text else []
    if depth == len(SEPARATORS):
        size = words * _CHARACTERS_PER_WORD
        return [text[start : start + size] for start in range(0, len(text), size)]
    cuts = [match.end() for match in SEPARATORS[depth].finditer(text)]
    bounds = [0, *cuts, len(text)]
    return [
        piece
        for start, end in pairwise(bounds)
        for piece in _split_pieces(text[start:end], words, depth + 1)
    ]


def _count_words(text: str) -> int:
    """Count the words of a text. Very long words count as several."""
    return sum(_estimate_words(len(word)) for word in text.split())


def _estimate_words(characters: int) -> int:
    if characters <= _MAX_WORD_CHARACTERS:
        return min(characters, 1)
    return -(-characters // _CHARACTERS_PER_WORD)


def _take_last_words(text: str, words: int) -> str:
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    return text[starts[-words] :] if words and len(starts) > words else ""


WINDOW = 2
"""Messages before and after a message that its window for terms contains."""

_NEIGHBOUR_WORDS = 40
"""Words of the near end of a neighbour in a window for vectors. Models read 128 to 512 tokens."""

_NEIGHBOUR_CHARACTERS = 16_000
"""Characters of the near end of a neighbour that are split. `WINDOW` chunks have fewer."""

_HEADING_WORDS = 60
"""Words of title and keys at the head of each chunk of a lorebook entry."""

_QUESTION_END = re.compile(r"[?？][\s\"'”’»)*_~]*$")  # noqa: RUF001  # the Chinese question mark


@dataclass(frozen=True, kw_only=True)
class IndexedMessage:
    """A decrypted message.

    `audience` is in the format of the column, and `witnesses` is that without the members of the
    chat who were not there.
    """

    id: UUID
    container_id: UUID
    author: str
    text: str
    said_at: datetime
    position: int
    scene_id: UUID | None
    version: int
    audience: str = PUBLIC
    witnesses: str = PUBLIC

    @cached_property
    def chunks(self) -> list[str]:
        """Its chunks. They are cached because the windows of its neighbours contain them, too."""
        return split_into_chunks(self.text)

    @cached_property
    def first_chunks(self) -> list[str]:
        """The first chunks, which the windows of the messages above contain."""
        is_short = len(self.text) <= _NEIGHBOUR_CHARACTERS
        return (self.chunks if is_short else split_into_chunks(self.text[:_NEIGHBOUR_CHARACTERS]))[
            :WINDOW
        ]

    @cached_property
    def last_chunks(self) -> list[str]:
        """The last chunks, which the windows of the messages below contain."""
        is_short = len(self.text) <= _NEIGHBOUR_CHARACTERS
        return (self.chunks if is_short else split_into_chunks(self.text[-_NEIGHBOUR_CHARACTERS:]))[
            -WINDOW:
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDocument:
    """The content of a point. Rows without an author or a time have no `speaker` and `said_at` 0.

    Attributes:
        text: The text of `dense` and `sparse`, with the title or the speaker, and the date.
        dense_text: A different text for `dense`; None for `text`, empty for no dense vector.
        dense_window: The text of `dense_window`; None for no such vector.
        sparse_window: The text of `sparse_window`; None for no such vector.
        said_at: Seconds since 1970.
        audience: Who may know it, in the format of the row's column.
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


def build_message_documents(
    line: IndexedMessage, *, before: Sequence[IndexedMessage], after: Sequence[IndexedMessage]
) -> list[IndexDocument]:
    """Build a document for each chunk of a message.

    The window of a chunk contains the chunks next to it, of this message or of its neighbours.
    Neighbours must be in the same scene, because lines before a pause say little about lines after
    it. All witnesses of the message must know them.

    `before` and `after` are the messages around it, oldest first. The nearest `WINDOW` are used.
    """
    date = _format_date(line.said_at)
    chunks = line.chunks
    above = [each for each in before[-WINDOW:] if _shares_window(each, line)]
    below = [each for each in after[:WINDOW] if _shares_window(each, line)]
    heads = [(each.author, part) for each in above for part in each.last_chunks]
    tails = [(each.author, part) for each in below for part in each.first_chunks]
    pieces = [*heads, *((line.author, chunk) for chunk in chunks), *tails]
    documents: list[IndexDocument] = []
    for number, chunk in enumerate(chunks):
        place = len(heads) + number
        text = _format_line(line.author, chunk)
        wide = pieces[max(0, place - WINDOW) : place + WINDOW + 1]
        documents.append(
            IndexDocument(
                kind="message",
                source_id=line.id,
                container_id=line.container_id,
                version=line.version,
                chunk=number,
                text=f"{date}. {text}",
                dense_text=text,
                dense_window=_build_dense_window(pieces, place),
                sparse_window="\n".join([date, *(_format_line(*piece) for piece in wide)]),
                speaker=line.author,
                position=line.position,
                scene_id=line.scene_id,
                said_at=int(line.said_at.timestamp()),
                words=len(chunk.split()),
                is_question=_QUESTION_END.search(chunk) is not None,
                audience=line.audience,
            )
        )
    return documents


def build_lore_documents(
    entry_id: UUID,
    book_id: UUID,
    *,
    title: str,
    keys: Sequence[str],
    content: str,
    version: int,
) -> list[IndexDocument]:
    """Build the documents of a lorebook entry. Each begins with its title and keys."""
    names = [title, *keys]
    return build_item_documents(
        entry_id, book_id, kind="lore", names=names, content=content, version=version
    )


def build_item_documents(
    item_id: UUID,
    campaign_id: UUID,
    *,
    kind: Kind = "campaign",
    names: Sequence[str],
    content: str,
    version: int,
    audience: str = PUBLIC,
) -> list[IndexDocument]:
    """Build the documents of a campaign item. Each begins with its names."""
    heading = " ".join(", ".join(filter(None, names)).split()[:_HEADING_WORDS])
    return [
        IndexDocument(
            kind=kind,
            source_id=item_id,
            container_id=campaign_id,
            version=version,
            chunk=number,
            text=f"{heading}\n{chunk}".strip(),
            words=len(chunk.split()),
            audience=audience,
        )
        for number, chunk in enumerate(split_into_chunks(content))
    ]


def build_event_document(  # noqa: PLR0913  # the fields of an event
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
) -> IndexDocument:
    """Build the document of a chronicle event. `when` is the story's own time, in any words."""
    date = _format_date(said_at) if said_at else ""
    about = ", ".join(filter(None, [when, where, *who]))
    said = f"{about}: {summary}" if about else summary
    return IndexDocument(
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


def _shares_window(other: IndexedMessage, line: IndexedMessage) -> bool:
    return other.scene_id == line.scene_id and may_all_know(line.witnesses, other.witnesses)


def _build_dense_window(pieces: Sequence[tuple[str, str]], place: int) -> str:
    """Return a piece with the near ends of its neighbours. Longer windows match everything."""
    lines = [_format_line(*pieces[place])]
    if place:
        author, text = pieces[place - 1]
        lines.insert(0, _format_line(author, " ".join(text.split()[-_NEIGHBOUR_WORDS:])))
    if place + 1 < len(pieces):
        author, text = pieces[place + 1]
        lines.append(_format_line(author, " ".join(text.split()[:_NEIGHBOUR_WORDS])))
    return "\n".join(lines)


def _format_line(author: str, text: str) -> str:
    return f"{author}: {text}" if author else text


def _format_date(at: datetime) -> str:
    return f"{at.day} {MONTHS[at.month - 1]} {at.year}"


MAX_BLINDERS = 500
BLINDER_SECONDS = 900.0


class Blinders:
    """A cache of users' blinders, which contain keys and plain terms."""

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, tuple[float, Blinder]] = OrderedDict()

    def get(self, sealer: Sealer) -> Blinder:
        """Return the blinder of a user."""
        self.sweep()
        found = self._kept.pop(sealer.user_id, None)
        blinder = found[1] if found else Blinder(sealer)
        self._kept[sealer.user_id] = time.monotonic(), blinder
        return blinder

    def sweep(self) -> None:
        """Drop idle blinders, and the oldest ones above the limit."""
        at = time.monotonic()
        while self._kept:
            oldest = next(iter(self._kept))
            if len(self._kept) <= MAX_BLINDERS and at - self._kept[oldest][0] < BLINDER_SECONDS:
                return
            del self._kept[oldest]

    def forget(self, user_id: UUID) -> None:
        self._kept.pop(user_id, None)


@dataclass(slots=True)
class IndexRun:
    """The indexing of one user's texts in a job.

    `failure` is the first error of the embedder. After it, points are stored without dense vectors
    and found by their terms alone.
    """

    sealer: Sealer
    failure: EmbedderError | None = None


@dataclass(frozen=True, slots=True)
class VectorSource:
    """The source of the dense vectors of a user's points. Without an embedder, they have none.

    `are_missed` is true if the points lack them only until the texts have moved.
    """

    embedder: TextEmbedder | None
    are_missed: bool = False


class PointMaker:
    """Builds points from documents."""

    def __init__(self, *, blinders: Blinders, pool: CpuPool) -> None:
        self._blinders = blinders
        self._pool = pool

    async def make(
        self, run: IndexRun, documents: Sequence[IndexDocument], *, vectors: VectorSource
    ) -> list[Point]:
        """Return the points of one user's documents, in order."""
        owner_id = run.sealer.user_id
        blinder = self._blinders.get(run.sealer)
        dense: list[dict[DenseName, Floats]] = [{} for _ in documents]
        if vectors.embedder is not None and run.failure is None:
            try:
                dense = await self._dense(run.sealer, vectors.embedder, blinder, documents)
            except EmbedderError as error:
                run.failure = error
        has_failed = vectors.embedder is not None and run.failure is not None
        is_incomplete = has_failed or vectors.are_missed
        return await self._pool.run(
            owner_id,
            partial(self._points, owner_id, blinder, documents, dense, is_incomplete),
            size=sum(len(each.text) + len(each.sparse_window or "") for each in documents),
            is_job=True,
        )

    def _points(
        self,
        owner_id: UUID,
        blinder: Blinder,
        documents: Sequence[IndexDocument],
        dense: Sequence[dict[DenseName, Floats]],
        is_incomplete: bool,  # noqa: FBT001  # an argument of `partial`
    ) -> list[Point]:
        points: list[Point] = []
        for document, vectors in zip(documents, dense, strict=True):
            sparse: dict[SparseName, Sparse] = {
                "sparse": build_sparse_vector(document.text, blinder)
            }
            if document.sparse_window:
                sparse["sparse_window"] = build_sparse_vector(document.sparse_window, blinder)
            payload = Payload(
                owner_id=owner_id,
                kind=document.kind,
                container_id=document.container_id,
                source_id=document.source_id,
                chunk=document.chunk,
                # A point without its vectors is stale, so the next comparison rebuilds it.
                version=0 if is_incomplete else document.version,
                position=document.position,
                scene_id=document.scene_id,
                said_at=document.said_at,
                speaker=speaker_id(document.speaker, blinder),
                words=document.words,
                is_question=document.is_question,
                audience=make_keywords(document.audience),
            )
            name = point_id(document.kind, document.source_id, document.chunk)
            points.append(Point(id=name, payload=payload, dense=vectors, sparse=sparse))
        return points

    async def _dense(
        self,
        sealer: Sealer,
        embedder: DocumentEmbedder,
        blinder: Blinder,
        documents: Sequence[IndexDocument],
    ) -> list[dict[DenseName, Floats]]:
        wanted: list[tuple[int, DenseName, str]] = []
        for place, document in enumerate(documents):
            text = document.text if document.dense_text is None else document.dense_text
            if text:
                wanted.append((place, "dense", text))
            if document.dense_window:
                wanted.append((place, "dense_window", document.dense_window))
        found: list[dict[DenseName, Floats]] = [{} for _ in documents]
        if not wanted:
            return found
        vectors = await embedder.embed_documents(sealer, [text for *_, text in wanted])
        turned = await self._pool.run(
            sealer.user_id, partial(blinder.turn, np.ascontiguousarray(vectors)), is_job=True
        )
        for (place, name, _), vector in zip(wanted, turned, strict=True):
            found[place][name] = vector
        return found


def speaker_id(name: str, blinder: Blinder) -> int:
    """Return the keyed id of a speaker; 0 for an empty name."""
    return blinder.term_id(f"speaker/{name.casefold()}") if name else 0
