#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How much lore comes in by meaning that nobody asked for, and how much that somebody did.

    scripts/bench_lore.py [--books FILE] [--world FILE...] [--model-path DIR] [--json]

The books of `tests/fixtures/lore_by_meaning` have entries with lines that ask for them in other
words; each of these is looked for in its own book. Lines that have nothing to do with any book are
looked for in all of them, and in the lorebooks named with `--world`. Entries and lines are embedded
as the index and a turn embed them; the cosine alone decides, as in a turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
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

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
BOOKS = ROOT / "tests" / "fixtures" / "lore_by_meaning" / "books.json"
IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0012")
NOW = datetime(2026, 3, 4, tzinfo=UTC)
CUTS = (0.25, 0.30, 0.35, 0.38, 0.40, 0.42, 0.45, 0.50, 0.55)


async def cosines(embedder: Embedder, entries: Sequence[LoreEntry], lines: Sequence[str]) -> Any:
    """How near each line is to each entry, by its nearest chunk: shape (lines, entries)."""
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
    documents_at = await embedder.embed(texts, "document")
    asked_at = await embedder.embed([read(line, now=NOW).meaning for line in lines], "query")
    near = asked_at @ documents_at.T
    found = np.full((len(lines), len(entries)), -1.0)
    for column, owner in enumerate(owners):
        found[:, owner] = np.maximum(found[:, owner], near[:, column])
    return found


async def measure(embedder: Embedder, data: Any, world: Sequence[Path] = ()) -> dict[str, Any]:
    """The nearness of what was asked for, and of what was not, by book of a file like `BOOKS`."""
    books: dict[str, dict[str, Any]] = {}
    for book in data["books"]:
        entries = [
            LoreEntry(title=each["title"], keys=each["keys"], content=each["content"])
            for each in book["entries"]
        ]
        lines = [line for each in book["entries"] for line in each["asked"]]
        owners = [row for row, each in enumerate(book["entries"]) for _ in each["asked"]]
        near = await cosines(embedder, entries, lines)
        books[book["name"]] = {
            "asked": near[np.arange(len(lines)), owners],
            "unrelated": await cosines(embedder, entries, data["unrelated"]),
        }
    for file in world:
        found = read_file(file.read_bytes(), given_name=file.stem)
        entries = [entry for entry, _ in found.entries]
        books[found.fields.name] = {
            "unrelated": await cosines(embedder, entries, data["unrelated"])
        }
    return books


def table(books: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """By book and threshold: entries a line that nobody asked for, and the share found that was."""
    return {
        name: {
            f"{cut:.2f}": {
                "unasked": round(float((book["unrelated"] >= cut).sum(axis=1).mean()), 3),
                **(
                    {"found": round(float((book["asked"] >= cut).mean()), 3)}
                    if "asked" in book
                    else {}
                ),
            }
            for cut in sorted({*CUTS, MINILM.lore})
        }
        for name, book in books.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, default=BOOKS)
    parser.add_argument("--world", type=Path, nargs="*", default=[])
    parser.add_argument("--model-path", type=Path, default=SHARED / "minilm-l6-v2-int8")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    configure_logging("error", "json")
    embedder = LocalEmbedder(asked.model_path)
    data = json.loads(asked.books.read_text(encoding="utf-8"))
    found = table(asyncio.run(measure(embedder, data, asked.world)))
    if asked.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    names = list(found)
    sys.stdout.write(f"{'cosine':8}" + "".join(f"{name[:18]:>20}" for name in names) + "\n")
    for cut in found[names[0]]:
        cells = [
            f"{rows[cut]['unasked']:.2f}"
            + (f" {rows[cut]['found']:4.0%}" if "found" in rows[cut] else "     ")
            for rows in found.values()
        ]
        sys.stdout.write(f"{cut:8}" + "".join(f"{cell:>20}" for cell in cells) + "\n")
    sys.stdout.write("Entries a line that nobody asked for, and the share found that was.\n")


if __name__ == "__main__":
    main()
