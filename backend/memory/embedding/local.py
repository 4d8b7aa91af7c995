"""Embeddings computed on this machine, by fastembed, out of a folder on disk.

Nothing is ever downloaded: fastembed is given the folder, and looks nowhere else. What would report
to its makers is switched off in `backend.memory`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np

from backend.memory.embedding.protocol import EmbedderError, EmbedderSpec, Floats, Task
from backend.memory.embedding.requests import repaired, unit_rows

if TYPE_CHECKING:
    from fastembed import TextEmbedding
    from tokenizers import Tokenizer

Pooling = Literal["mean", "cls", "last"]

_NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
_USUAL_FILES = (
    "model.onnx",
    "onnx/model.onnx",
    "model_optimized.onnx",
    "model_quantized.onnx",
    "onnx/model_quantized.onnx",
)
_WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")
"""Names under which configurations of transformers keep the length of their vectors."""

_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_ENDS_BYTES = 1 << 20
_MARK_LENGTH = 8


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk.

    `mark` tells this model's files from any other's: a few hexadecimal digits. `prompts` are texts
    that the model wants in front of documents and queries; most want none.
    """

    path: Path
    model_file: str
    dimension: int
    pooling: Pooling
    prompts: Mapping[Task, str]
    mark: str


def read_folder(path: Path) -> ModelFolder:
    """Look at the folder at `path`. Raises `EmbedderError` that says what it lacks."""
    missing = [name for name in _NEEDED if not (path / name).is_file()]
    if missing:
        raise EmbedderError(
            f"TALEKEEPER_EMBEDDING_MODEL_PATH: there is no {', '.join(missing)} in {path}. It must "
            "be a folder with a model in ONNX form and the files of its tokenizer."
        )
    model_file = _model_file(path)
    return ModelFolder(
        path=path,
        model_file=model_file,
        dimension=_dimension(path),
        pooling=_pooling(path),
        prompts=_prompts(path),
        mark=_mark(path / model_file, path / "tokenizer.json"),
    )


def _model_file(path: Path) -> str:
    for name in _USUAL_FILES:
        if (path / name).is_file():
            return name
    found = sorted(each.relative_to(path).as_posix() for each in path.rglob("*.onnx"))
    if len(found) != 1:
        there = f"there are {', '.join(found)}" if found else "there is none"
        raise EmbedderError(
            f"TALEKEEPER_EMBEDDING_MODEL_PATH: one ONNX file is needed in {path}; {there}."
        )
    return found[0]


def _dimension(path: Path) -> int:
    pooled = _read(path / "1_Pooling" / "config.json").get("word_embedding_dimension")
    config = _read(path / "config.json")
    for width in (pooled, *map(config.get, _WIDTHS)):
        if isinstance(width, int) and width > 0:
            return width
    raise EmbedderError(
        f"TALEKEEPER_EMBEDDING_MODEL_PATH: config.json in {path} does not say how long the model's "
        "vectors are (hidden_size)."
    )


def _pooling(path: Path) -> Pooling:
    """How token vectors become one: as sentence-transformers writes it down, else their mean."""
    config = _read(path / "1_Pooling" / "config.json")
    for key, pooling in _POOLINGS.items():
        if config.get(key) is True:
            return pooling
    return "mean"


def _prompts(path: Path) -> Mapping[Task, str]:
    """As sentence-transformers writes them down: E5 wants `query: ` and `passage: `, say."""
    named = _read(path / "config_sentence_transformers.json").get("prompts")
    prompts = cast("dict[str, Any]", named) if isinstance(named, dict) else {}
    document = prompts.get("document") or prompts.get("passage") or ""
    return {"document": str(document), "query": str(prompts.get("query") or "")}


def _mark(*files: Path) -> str:
    """A hash of the files' sizes and of their first and last mebibyte, where weights differ."""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "big"))
        with file.open("rb") as content:
            digest.update(content.read(_ENDS_BYTES))
            content.seek(max(0, size - _ENDS_BYTES))
            digest.update(content.read())
    return digest.hexdigest()[:_MARK_LENGTH]


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value: object = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise EmbedderError(
            f"TALEKEEPER_EMBEDDING_MODEL_PATH: {file} is not readable JSON."
        ) from None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


T = TypeVar("T")

WHO = "The embedding model on this machine"
NOT_INSTALLED = (
    "fastembed, which computes embeddings here, is not installed. It comes with Talekeeper if "
    "the machine supports it: on Linux, and on Macs with Apple processors."
)

_GROUP_TOKENS = 256
"""Tokens that go through the model at once, padding included. On a CPU more are slower, not faster,
and take memory: measured with MiniLM int8, a token takes as long from 128 to 400 at once, a tenth
longer at 800 and a quarter longer at 1,600."""

_MOST_WORKERS = 4

_LONGEST_CHARS = 40_000
"""No tokenizer needs to see more of a text: models end at some thousand tokens."""


def is_installed() -> bool:
    """Whether fastembed is there, without the second that importing it takes."""
    return find_spec("fastembed") is not None


class LocalEmbedder:
    """A model in a folder. It is loaded when the first text comes.

    Args:
        folder: Where it is.
        model: fastembed's name for it, where its files do not say how it pools. Empty: by its
            files.
        dimension: Length of its vectors, where its files do not say so rightly.
        workers: Documents are computed in so many threads, each on one core; 0 is one a core, and
            4 at most. Queries have a thread of their own, and wait for no document.

    Raises `EmbedderError` when the folder holds no model, or fastembed is not installed.
    """

    def __init__(
        self, folder: Path, *, model: str = "", dimension: int | None = None, workers: int = 0
    ) -> None:
        if not is_installed():
            raise EmbedderError(NOT_INSTALLED)
        self.folder = folder
        self._folder = read_folder(folder)
        self._name = model
        name = model or folder.resolve().name
        self.spec = EmbedderSpec(
            provider="local",
            model=f"{name}-{self._folder.mark}",
            dimension=dimension or self._folder.dimension,
        )
        self._workers = workers or min(_MOST_WORKERS, os.cpu_count() or 1)
        self._documents = ThreadPoolExecutor(self._workers, thread_name_prefix="embed")
        self._queries = ThreadPoolExecutor(1, thread_name_prefix="embed-query")
        self._loading: asyncio.Future[TextEmbedding] | None = None

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`."""
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        """See `Embedder`."""
        model = await self._loaded()
        prefix = self._folder.prompts[task]
        prepared = [prefix + repaired(text[:_LONGEST_CHARS]) for text in texts]
        vectors = np.empty((len(texts), self.spec.dimension), dtype=np.float32)
        pool = self._queries if task == "query" else self._documents
        groups = _groups(await self._computed(pool, partial(_lengths, model, prepared)))

        async def work() -> None:
            # One group after the other, so that another caller's text gets in between.
            for group in groups:
                some = [prepared[index] for index in group]
                rows = await self._computed(pool, partial(_run, model, some, task))
                vectors[group] = unit_rows(
                    rows, who=WHO, count=len(some), dimension=self.spec.dimension
                )

        await asyncio.gather(*(work() for _ in range(self._workers)))
        return vectors

    async def aclose(self) -> None:
        """Let go of the model; a group under way is computed to its end."""
        for pool in (self._documents, self._queries):
            pool.shutdown(wait=False, cancel_futures=True)
        self._loading = None

    async def _computed(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        """What the model says in a thread of a pool. Raises `EmbedderError`."""
        try:
            return await self._begin(pool, work)
        except EmbedderError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a model's file may cause
            raise EmbedderError(f"{WHO} failed ({type(error).__name__}).") from None

    def _begin(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do `work` in a thread of a pool. Raises `EmbedderError` once that is closed."""
        try:
            return asyncio.get_running_loop().run_in_executor(pool, work)
        except RuntimeError:
            raise EmbedderError(f"{WHO} is closed.") from None

    async def _loaded(self) -> TextEmbedding:
        if self._loading is None:
            self._loading = self._begin(self._queries, partial(_load, self._folder, self._name))
        loading = self._loading
        try:
            # A caller who has no more time does not stop it: the next one finds it loaded.
            return await asyncio.shield(loading)
        except Exception as error:
            self._loading = None
            raise EmbedderError(
                f"{WHO}, in {self._folder.path}, does not load ({type(error).__name__})."
            ) from error


def _lengths(model: TextEmbedding, texts: Sequence[str]) -> list[int]:
    """The tokens of each text, as the model gets to see it; of a single one nobody needs them."""
    if len(texts) < 2:  # noqa: PLR2004
        return [0] * len(texts)
    tokenizer = cast("Tokenizer", cast("Any", model.model).tokenizer)
    return [sum(each.attention_mask) for each in tokenizer.encode_batch(list(texts))]


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts of like length: what is computed together is padded to the longest."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[index] > _GROUP_TOKENS:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _run(model: TextEmbedding, texts: list[str], task: Task) -> Floats:
    embed = model.query_embed if task == "query" else model.passage_embed
    return np.asarray(list(embed(texts)), dtype=np.float32)


def _load(folder: ModelFolder, name: str) -> TextEmbedding:
    """Load the model; takes a second or two, most of it to import fastembed."""
    from fastembed import TextEmbedding  # noqa: PLC0415  # slow: not at start-up

    known = {str(each["model"]).lower() for each in TextEmbedding.list_supported_models()}
    if name.lower() not in known:
        name = f"talekeeper/{folder.mark}-{folder.pooling}"
        if name not in known:
            _describe(folder, name)
    return TextEmbedding(
        name,
        specific_model_path=str(folder.path),
        # Else it makes a folder for downloads.
        cache_dir=str(folder.path),
        local_files_only=True,
        providers=["CPUExecutionProvider"],
        # More threads in one computation wait for each other more than they help.
        threads=1,
    )


def _describe(folder: ModelFolder, name: str) -> None:
    """Tell fastembed of a model that it does not know."""
    from fastembed import TextEmbedding  # noqa: PLC0415  # slow: not at start-up
    from fastembed.common.model_description import (  # noqa: PLC0415  # likewise
        ModelSource,
        PoolingType,
    )

    poolings: dict[Pooling, PoolingType] = {
        "mean": PoolingType.MEAN,
        "cls": PoolingType.CLS,
        "last": PoolingType.LAST_TOKEN,
    }
    TextEmbedding.add_custom_model(
        name,
        pooling=poolings[folder.pooling],
        normalization=True,
        # It wants one; with a folder given it is never asked.
        sources=ModelSource(hf="none"),
        dim=folder.dimension,
        model_file=folder.model_file,
    )
