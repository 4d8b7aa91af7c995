"""Measure how often lore is found by meaning, both related and unrelated to a line.

The books of `tests/fixtures/lore_by_meaning` have entries with lines that ask for them in other
words. Each line is compared with the entries of its book. Unrelated lines are compared with all
books, and with the lorebooks of `--world`. Texts are embedded as in the index and in a turn, and
the cosine alone decides, as in a turn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import numpy as np

from backend.core.logs import configure_logging
from backend.lorebooks.activation.compiled import split_decorators
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.formats.reader import read_file
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import MINILM, Embedder
from backend.memory.indexing.documents import lore_documents
from backend.memory.search.query import read
from scripts.bench.data import FIXTURES
from scripts.bench.retrieval.search import add_model_options
from scripts.bench.tables import new_parser, print_grid

BOOKS = FIXTURES / "lore_by_meaning" / "books.json"
IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0012")
NOW = datetime(2026, 3, 4, tzinfo=UTC)
COSINES = (0.25, 0.30, 0.35, 0.38, 0.40, 0.42, 0.45, 0.50, 0.55)


async def compare(embedder: Embedder, entries: Sequence[LoreEntry], lines: Sequence[str]) -> Any:
    """Return the cosine of each line and the nearest chunk of each entry, (lines, entries)."""
    texts: list[str] = []
    owners: list[int] = []
    for number, entry in enumerate(entries):
        documents = lore_documents(
            uuid5(IDS, str(number)),
            IDS,
            title=entry.title,
            keys=entry.keys,
            content=split_decorators(entry.content)[1],
            version=1,
        )
        texts += [document.text for document in documents]
        owners += [number] * len(documents)
    entry_vectors = await embedder.embed(texts, "document")
    line_vectors = await embedder.embed([read(line, now=NOW).meaning for line in lines], "query")
    near = line_vectors @ entry_vectors.T
    nearest = np.full((len(lines), len(entries)), -1.0)
    for column, owner in enumerate(owners):
        nearest[:, owner] = np.maximum(nearest[:, owner], near[:, column])
    return nearest


async def measure(embedder: Embedder, data: Any, worlds: Sequence[Path] = ()) -> dict[str, Any]:
    """Return cosines of related and unrelated pairs, by book of a file like `BOOKS`."""
    books: dict[str, dict[str, Any]] = {}
    for book in data["books"]:
        entries = [
            LoreEntry(title=each["title"], keys=each["keys"], content=each["content"])
            for each in book["entries"]
        ]
        lines = [line for each in book["entries"] for line in each["asked"]]
        owners = [row for row, each in enumerate(book["entries"]) for _ in each["asked"]]
        near = await compare(embedder, entries, lines)
        books[book["name"]] = {
            "related": near[np.arange(len(lines)), owners],
            "unrelated": await compare(embedder, entries, data["unrelated"]),
        }
    for file in worlds:
        book = read_file(file.read_bytes(), given_name=file.stem)
        entries = [entry for entry, _ in book.entries]
        books[book.fields.name] = {"unrelated": await compare(embedder, entries, data["unrelated"])}
    return books


def summarize(books: dict[str, dict[str, Any]]) -> dict[str, dict[str, float | str]]:
    """Return unrelated entries a line and the share of related ones, by threshold and book."""
    figures: dict[str, dict[str, float | str]] = {}
    for cosine in sorted({*COSINES, MINILM.lore}):
        row = figures.setdefault(f"{cosine:.2f}", {})
        for name, book in books.items():
            unrelated = (book["unrelated"] >= cosine).sum(axis=1).mean()
            row[f"{name[:18]}: unrelated"] = round(float(unrelated), 3)
            if "related" in book:
                row[f"{name[:18]}: related"] = f"{(book['related'] >= cosine).mean():.0%}"
    return figures


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval lore", __doc__)
    parser.add_argument("--books", type=Path, default=BOOKS)
    parser.add_argument("--world", type=Path, nargs="*", default=[], help="World Info files")
    add_model_options(parser, stores_vectors=False)
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    data = json.loads(options.books.read_text(encoding="utf-8"))
    embedder = LocalEmbedder(options.model_path)
    figures = summarize(asyncio.run(measure(embedder, data, options.world)))
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print_grid("cosine", figures, width=8)
    print("Unrelated entries a line, and the share of related entries that is found.")
