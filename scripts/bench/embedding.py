"""Measure the CPU time of local embedding models: of a line, and of a question.

`--model-path` measures a folder. Without it, models of random weights are measured that have the
sizes of the models of `talekeeper model list`, in float32. Random weights take the same time as
trained ones. All have the tokenizer of MiniLM, which is in `--tokenizer`.

The texts are lines of 25 words, from the English scenes of `tests/fixtures`. Lines are embedded
with one thread, in batches as by the indexer; questions one by one. Models alternate, and the
fastest of the rounds is printed, because other processes slow some. Loading is not included.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from backend.core.logs import configure_logging
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import Task
from scripts.bench.data import MINILM
from scripts.bench.random_models import Shape, write_static, write_transformer
from scripts.bench.retrieval.scenes import read_scenes
from scripts.bench.tables import new_parser, print_grid

LINE_WORDS = 25
LINES = 200
QUESTIONS = 50
ROUNDS = 5

BASE = Shape(layers=12, hidden=384, heads=12, inner=1536)
TRANSFORMERS: Mapping[str, tuple[Shape, int]] = {
    "all-MiniLM-L6-v2": (Shape(layers=6, hidden=384, heads=12, inner=1536), 30_522),
    "bge-small-en-v1.5, snowflake-arctic-embed-s": (BASE, 30_522),
    "granite-embedding-small-english-r2": (
        Shape(layers=12, hidden=384, heads=12, inner=1536, is_modern=True),
        50_368,
    ),
    "paraphrase-multilingual-MiniLM-L12-v2": (BASE, 250_037),
}
"""Sizes and words of the offered models, from their configurations."""

STATIC = "potion-multilingual-128M"
STATIC_WORDS, STATIC_DIMENSION = 500_353, 256


def make_lines() -> list[str]:
    """Return lines of 25 words."""
    scenes = read_scenes("english")
    words = " ".join(line.text for line in scenes.lines).split()
    starts = range(0, len(words) - LINE_WORDS, LINE_WORDS)
    lines = [" ".join(words[start : start + LINE_WORDS]) for start in starts]
    return (lines * (1 + LINES // len(lines)))[:LINES]


def write_models(folder: Path, tokenizer: Path) -> dict[str, Path]:
    """Write models of random weights. Return their folders by name."""
    paths: dict[str, Path] = {}
    for number, (name, (shape, words)) in enumerate(TRANSFORMERS.items()):
        paths[name] = folder / str(number)
        write_transformer(paths[name], shape, {"word": words - 1})
    paths[STATIC] = folder / "static"
    write_static(paths[STATIC], STATIC_DIMENSION, {"word": STATIC_WORDS - 1})
    for path in paths.values():
        shutil.copyfile(tokenizer / "tokenizer.json", path / "tokenizer.json")
    return paths


async def measure_cpu(model: LocalEmbedder, texts: Sequence[str], task: Task) -> float:
    """Return milliseconds of CPU per text."""
    before = time.process_time()
    if task == "document":
        await model.embed(texts, task)
    else:
        for text in texts:
            await model.embed([text], task)
    return 1000 * (time.process_time() - before) / len(texts)


async def measure(paths: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    models = {name: LocalEmbedder(path, workers=1) for name, path in paths.items()}
    lines = make_lines()
    figures: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in models}
    for model in models.values():
        await model.embed(lines[:20], "document")
    for _ in range(ROUNDS):
        for name, model in models.items():
            by_line, by_question = figures[name]
            by_line.append(await measure_cpu(model, lines, "document"))
            by_question.append(await measure_cpu(model, lines[:QUESTIONS], "query"))
    for model in models.values():
        await model.aclose()
    return {
        name: {
            "line, ms": round(min(by_line), 3),
            "question, ms": round(min(by_question), 3),
            "lines per second": round(1000 / min(by_line)),
        }
        for name, (by_line, by_question) in figures.items()
    }


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("embedding", __doc__)
    parser.add_argument("--model-path", type=Path, action="append", help="folder of a model")
    parser.add_argument("--tokenizer", type=Path, default=MINILM, help="folder of MiniLM")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    with TemporaryDirectory() as folder:
        given: list[Path] | None = options.model_path
        paths = {path.resolve().name: path for path in given or ()}
        paths = paths or write_models(Path(folder), options.tokenizer)
        print_grid("model", asyncio.run(measure(paths)), width=46)
