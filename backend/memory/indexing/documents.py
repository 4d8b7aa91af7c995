"""What is indexed of a message, a scene, an entry, an event, a campaign's item: texts and figures.

Pure. A row becomes one document or, where its text is long, several: one a chunk.

Vectors get the bare line, terms get its date as well: a date in front of a line draws its vector
away from what the line says. What each choice brings: docs/retrieval.md.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import pairwise
from typing import Protocol
from uuid import UUID

import numpy as np

from backend.core.audience import PUBLIC, is_known_to_all, keywords
from backend.core.cpu_pool import CpuPool
from backend.memory.embedding.protocol import EmbedderError, Floats
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

_SEPARATORS = tuple(
    map(
        re.compile,
        (r"\n\s*\n", r"\n", r"[.!?…][\"'”’)*]*\s+|[。！？]", r"\s+"),  # noqa: RUF001  # ends of sentences in Chinese and Japanese
    )
)
"""Where a text is cut, the best places first: after paragraphs, lines, sentences, words."""

_CHARACTERS_PER_WORD = 12
"""What has no spaces is counted in words of this length."""

_MAX_WORD_CHARACTERS = 36
"""Characters up to which a word is one."""


def split_into_chunks(
    text: str, *, words: int = CHUNK_WORDS, overlap: int = OVERLAP_WORDS
) -> list[str]:
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
        """How many words it has, as `_count_words` counts them."""
        return self._closed + _estimate_words(self._open)

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
        self._closed += sum(map(_estimate_words, sizes))


def _split_pieces(text: str, words: int, depth: int) -> list[str]:
    """The text in pieces of at most `words` words, which put together are the text."""
    if _count_words(text) <= words:
        return [text] if text else []
    if depth == len(_SEPARATORS):
        size = words * _CHARACTERS_PER_WORD
        return [text[start : start + size] for start in range(0, len(text), size)]
    cuts = [match.end() for match in _SEPARATORS[depth].finditer(text)]
    bounds = [0, *cuts, len(text)]
    return [
        piece
        for start, end in pairwise(bounds)
        for piece in _split_pieces(text[start:end], words, depth + 1)
    ]


def _count_words(text: str) -> int:
    """How many words a text has; what is too long for a word is several."""
    return sum(_estimate_words(len(word)) for word in text.split())


def _estimate_words(characters: int) -> int:
    if characters <= _MAX_WORD_CHARACTERS:
        return min(characters, 1)
    return -(-characters // _CHARACTERS_PER_WORD)


def _take_last_words(text: str, words: int) -> str:
    """The last words of a text, with the spaces between them."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    return text[starts[-words] :] if words and len(starts) > words else ""


WINDOW = 2
"""Messages on either side that a message's window takes in, for terms."""

_NEIGHBOUR_WORDS = 40
"""Words of a neighbour, of its near end, in a window for vectors: models read 128 to 512 tokens."""

_NEIGHBOUR_CHARACTERS = 16_000
"""Characters of a neighbour, of its near end, that are cut into parts: `WINDOW` parts have less."""

_SCENE_CHARACTERS = 5_000
"""Characters of a message that count in its scene, which is made anew with each of its messages."""

_HEADING_WORDS = 60
"""Words of title and keys that stand in each chunk of a lorebook entry."""

_QUESTION_END = re.compile(r"[?？][\s\"'”’»)*_~]*$")  # noqa: RUF001  # the Chinese question mark


@dataclass(frozen=True, kw_only=True)
class SourceMessage:
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
        return split_into_chunks(self.text)

    @cached_property
    def first_chunks(self) -> list[str]:
        """The parts at its beginning that the windows of lines above it show."""
        is_short = len(self.text) <= _NEIGHBOUR_CHARACTERS
        return (self.chunks if is_short else split_into_chunks(self.text[:_NEIGHBOUR_CHARACTERS]))[
            :WINDOW
        ]

    @cached_property
    def last_chunks(self) -> list[str]:
        """The parts at its end that the windows of lines below it show."""
        is_short = len(self.text) <= _NEIGHBOUR_CHARACTERS
        return (self.chunks if is_short else split_into_chunks(self.text[-_NEIGHBOUR_CHARACTERS:]))[
            -WINDOW:
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDocument:
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


def build_message_documents(
    line: SourceMessage, *, before: Sequence[SourceMessage], after: Sequence[SourceMessage]
) -> list[IndexDocument]:
    """A message's documents, one a chunk.

    Around a chunk stand the chunks next to it, of this message or of another, of the same scene:
    what was said before a pause says little about what comes after it. `before` and `after` are
    the lines around the message, oldest first; the `WINDOW` next to it count. Lines that not all
    of the message's audience may know are left out.
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


def question_documents(first: IndexDocument, questions: Sequence[str]) -> list[IndexDocument]:
    """A document for each question that a message answers, with the figures of its `first` one.

    Found by the question, the message is what comes back: no text of theirs is ever shown.
    """
    bare = replace(first, kind="question", dense_text=None, dense_window=None, sparse_window=None)
    return [replace(bare, chunk=number, text=text) for number, text in enumerate(questions)]


def build_scene_document(scene_id: UUID, lines: Sequence[SourceMessage]) -> IndexDocument:
    """A scene's document, of its lines (at least one), oldest first: terms alone.

    Only public lines are in it: a scene lifts all of its lines in a search.
    """
    heard = [line for line in lines if line.audience == PUBLIC]
    texts = [line.text[:_SCENE_CHARACTERS] for line in heard]
    spoken = [_format_line(line.author, text) for line, text in zip(heard, texts, strict=True)]
    return IndexDocument(
        kind="scene",
        source_id=scene_id,
        container_id=lines[0].container_id,
        version=max(line.version for line in lines),
        text="\n".join([_format_date(lines[0].said_at), *spoken]),
        dense_text="",
        scene_id=scene_id,
        position=lines[0].position,
        said_at=int(lines[0].said_at.timestamp()),
        words=sum(len(text.split()) for text in texts),
    )


def build_lore_documents(
    entry_id: UUID,
    book_id: UUID,
    *,
    title: str,
    keys: Sequence[str],
    content: str,
    version: int,
) -> list[IndexDocument]:
    """A lorebook entry's documents: its title and keys stand in each of them."""
    return [
        IndexDocument(
            kind="lore",
            source_id=entry_id,
            container_id=book_id,
            version=version,
            chunk=number,
            text=text,
            words=words,
        )
        for number, (text, words) in enumerate(_chunk_with_heading([title, *keys], content))
    ]


def build_item_documents(
    item_id: UUID,
    campaign_id: UUID,
    *,
    names: Sequence[str],
    content: str,
    version: int,
    audience: str,
) -> list[IndexDocument]:
    """The documents of a campaign's item: its names stand in each of them."""
    return [
        IndexDocument(
            kind="campaign",
            source_id=item_id,
            container_id=campaign_id,
            version=version,
            chunk=number,
            text=text,
            words=words,
            audience=audience,
        )
        for number, (text, words) in enumerate(_chunk_with_heading(names, content))
    ]


def build_event_document(  # noqa: PLR0913  # an event has that many sides
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
    """A chronicle event's document. `when` is the story's own time, in whatever words."""
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


def _chunk_with_heading(names: Sequence[str], content: str) -> list[tuple[str, int]]:
    """The chunks of a text, each below the names that it goes by, and the words of each."""
    head = " ".join(", ".join(filter(None, names)).split()[:_HEADING_WORDS])
    return [
        (f"{head}\n{chunk}".strip(), len(chunk.split())) for chunk in split_into_chunks(content)
    ]


def _shares_window(other: SourceMessage, line: SourceMessage) -> bool:
    """Whether a line may stand in another one's window."""
    return other.scene_id == line.scene_id and is_known_to_all(line.audience, other.audience)


def _build_dense_window(pieces: Sequence[tuple[str, str]], place: int) -> str:
    """A piece with the near ends of those next to it: the mean of more is near to everything."""
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


class DocumentEmbedder(Protocol):
    """Turns a user's texts into vectors; each text once, for it keeps them."""

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:
        """Vectors, shape (n, d), of unit length. Raises `EmbedderError`."""
        ...


class Blinders:
    """The blinders of users who were here lately: they hold keys, and terms in the clear."""

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, tuple[float, Blinder]] = OrderedDict()

    def get(self, sealer: Sealer) -> Blinder:
        """A user's blinder, made where it is not at hand."""
        self.sweep()
        found = self._kept.pop(sealer.user_id, None)
        blinder = found[1] if found else Blinder(sealer)
        self._kept[sealer.user_id] = time.monotonic(), blinder
        return blinder

    def sweep(self) -> None:
        """Drop those that were not used for a while, and the oldest of too many."""
        at = time.monotonic()
        while self._kept:
            oldest = next(iter(self._kept))
            if len(self._kept) <= MAX_BLINDERS and at - self._kept[oldest][0] < BLINDER_SECONDS:
                return
            del self._kept[oldest]

    def forget(self, user_id: UUID) -> None:
        """Drop a user's."""
        self._kept.pop(user_id, None)


@dataclass(slots=True)
class IndexRun:
    """One user's texts on their way into the index.

    `failure` is why dense vectors are missing, once they are: they are not asked for again. The
    rest goes in without them, and is found by its terms until then.
    """

    sealer: Sealer
    failure: EmbedderError | None = None


@dataclass(frozen=True, slots=True)
class VectorSource:
    """What gives points their dense vectors.

    `are_missed`: the points lack them only for now, where there is no embedder.
    """

    embedder: DocumentEmbedder | None
    are_missed: bool = False


class PointMaker:
    """Makes points of documents. Without an embedder they have terms alone."""

    def __init__(
        self,
        embedder: DocumentEmbedder | None,
        *,
        blinders: Blinders,
        pool: CpuPool,
    ) -> None:
        self.embedder = embedder
        self._blinders = blinders
        self._pool = pool

    async def make(
        self,
        attempt: IndexRun,
        documents: Sequence[IndexDocument],
        *,
        vectors: VectorSource | None = None,
    ) -> list[Point]:
        """Points of one user's documents, in order; without `vectors` by the usual embedder."""
        owner_id = attempt.sealer.user_id
        blinder = self._blinders.get(attempt.sealer)
        wanted = vectors or VectorSource(self.embedder)
        dense: list[dict[DenseName, Floats]] = [{} for _ in documents]
        if wanted.embedder is not None and attempt.failure is None:
            try:
                dense = await self._dense(attempt.sealer, wanted.embedder, blinder, documents)
            except EmbedderError as error:
                attempt.failure = error
        has_failed = wanted.embedder is not None and attempt.failure is not None
        is_incomplete = has_failed or wanted.are_missed
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
        is_incomplete: bool,  # noqa: FBT001  # called by `partial` alone
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
                # Without its vectors a point is stale from the start: the next look mends it.
                version=0 if is_incomplete else document.version,
                position=document.position,
                scene_id=document.scene_id,
                said_at=document.said_at,
                speaker=speaker_id(document.speaker, blinder),
                words=document.words,
                is_question=document.is_question,
                audience=keywords(document.audience),
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
    """The keyed id of who speaks; 0 for nobody."""
    return blinder.term_id(f"speaker/{name.casefold()}") if name else 0
