"""What is indexed of a message, a scene, a lorebook entry: texts, and figures for the ranking.

Pure. A row becomes one document or, where its text is long, several: one a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from backend.memory.index.protocol import Kind

WINDOW = 3
"""Messages on either side that a message's window takes in, for terms."""

DENSE_WINDOW = 1
"""The same for vectors: the mean of many lines is near to everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A message as its source reads it."""

    id: UUID
    container_id: UUID
    author: str
    text: str
    said_at: datetime
    position: int
    scene_id: UUID | None
    version: int


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


def message_documents(
    line: Line, *, before: Sequence[Line], after: Sequence[Line]
) -> list[Document]:
    """A message's documents. `before` and `after` are what stands around it, oldest first."""
    text = _spoken(line)
    window = "\n".join(map(_spoken, [*before[-DENSE_WINDOW:], line, *after[:DENSE_WINDOW]]))
    wide = "\n".join(map(_spoken, [*before[-WINDOW:], line, *after[:WINDOW]]))
    return [
        Document(
            kind="message",
            source_id=line.id,
            container_id=line.container_id,
            version=line.version,
            text=f"{_date(line)} {text}",
            dense_window=window,
            sparse_window=wide,
            speaker=line.author,
            position=line.position,
            scene_id=line.scene_id,
            said_at=int(line.said_at.timestamp()),
            words=len(line.text.split()),
            is_question=line.text.rstrip().endswith("?"),
        )
    ]


def scene_document(scene_id: UUID, lines: Sequence[Line]) -> Document:
    """A scene's document, of all its lines: terms alone."""
    return Document(
        kind="scene",
        source_id=scene_id,
        container_id=lines[0].container_id,
        version=max(line.version for line in lines),
        text="\n".join(map(_spoken, lines)),
        dense_text="",
        scene_id=scene_id,
        position=lines[0].position,
        said_at=int(lines[0].said_at.timestamp()),
        words=sum(len(line.text.split()) for line in lines),
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
    head = ", ".join(filter(None, [title, *keys]))
    return [
        Document(
            kind="lore",
            source_id=entry_id,
            container_id=book_id,
            version=version,
            text=f"{head}\n{content}",
            words=len(content.split()),
        )
    ]


def _spoken(line: Line) -> str:
    return f"{line.author}: {line.text}" if line.author else line.text


def _date(line: Line) -> str:
    return f"[{line.said_at.day} {line.said_at:%B %Y}]"
