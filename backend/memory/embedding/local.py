"""Embeddings computed on this machine by fastembed, with a model in a folder.

Nothing is downloaded, because fastembed only reads the folder. `backend.memory` disables telemetry.
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
from backend.memory.embedding.remote import normalize_rows, replace_surrogates

if TYPE_CHECKING:
    from fastembed import TextEmbedding
    from tokenizers import Tokenizer

Pooling = Literal["mean", "cls", "last"]

_REQUIRED_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
_STATIC_FILE = "model.safetensors"
_STATIC_REQUIRED_FILES = ("tokenizer.json",)
_USUAL_FILES = (
    "model.onnx",
    "onnx/model.onnx",
    "model_optimized.onnx",
    "model_quantized.onnx",
    "onnx/model_quantized.onnx",
)
_DIMENSION_KEYS = ("hidden_size", "dim", "d_model", "n_embd")
"""Names of the dimension in the configurations of transformers."""

_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_HASHED_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 20
"""A file of model2vec describes at most three tensors in its header."""
_MARK_LENGTH = 8


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk.

    `mark` identifies the model's files, prefixes and pooling: a few hexadecimal digits. `prompts`
    are prefixes of documents and queries. Most models need none. A model in the format of model2vec
    is a table of vectors: its `model_file` is not in ONNX format, and `pooling` does not apply.
    """

    path: Path
    model_file: str
    dimension: int
    pooling: Pooling
    prompts: Mapping[Task, str]
    mark: str

    @property
    def is_static(self) -> bool:
        return self.model_file == _STATIC_FILE


def read_folder(path: Path) -> ModelFolder:
    """Inspect a folder. Raises `EmbedderError` if a file is missing."""
    static_dimension = _read_static_dimension(path / _STATIC_FILE)
    required = _STATIC_REQUIRED_FILES if static_dimension else _REQUIRED_FILES
    missing = [name for name in required if not (path / name).is_file()]
    if missing:
        raise EmbedderError(
            f"TALEKEEPER_EMBEDDING_MODEL_PATH: {path} does not contain {', '.join(missing)}. It "
            "must be a folder with a model in ONNX or model2vec format and the files of its "
            "tokenizer."
        )
    model_file = _STATIC_FILE if static_dimension else _find_model_file(path)
    prompts = _read_prompts(path)
    pooling = _read_pooling(path)
    weights = [path / model_file, path / f"{model_file}_data"]
    return ModelFolder(
        path=path,
        model_file=model_file,
        dimension=static_dimension or _read_dimension(path),
        pooling=pooling,
        prompts=prompts,
        mark=_compute_mark(
            *filter(Path.is_file, weights),
            path / "tokenizer.json",
            prompts=prompts,
            pooling="mean" if static_dimension else pooling,
        ),
    )


def _read_static_dimension(file: Path) -> int | None:
    """Return the dimension of a model2vec file; None for another model or no file."""
    if not file.is_file():
        return None
    with file.open("rb") as content:
        size = int.from_bytes(content.read(8), "little")
        try:
            tensors: dict[str, Any] = json.loads(content.read(min(size, _MAX_HEADER_BYTES)))
            return int(tensors["embeddings"]["shape"][1])
        except (ValueError, LookupError, TypeError):
            return None


def _find_model_file(path: Path) -> str:
    for name in _USUAL_FILES:
        if (path / name).is_file():
            return name
    found = sorted(each.relative_to(path).as_posix() for each in path.rglob("*.onnx"))
    if len(found) != 1:
        there = f"there are {', '.join(found)}" if found else "there is none"
        raise EmbedderError(
            f"TALEKEEPER_EMBEDDING_MODEL_PATH: {path} must contain one ONNX file; {there}."
        )
    return found[0]


def _read_dimension(path: Path) -> int:
    pooled = _read_json(path / "1_Pooling" / "config.json").get("word_embedding_dimension")
    config = _read_json(path / "config.json")
    for width in (pooled, *map(config.get, _DIMENSION_KEYS)):
        if isinstance(width, int) and width > 0:
            return width
    raise EmbedderError(
        f"TALEKEEPER_EMBEDDING_MODEL_PATH: config.json in {path} does not contain the dimension of "
        "the model (hidden_size)."
    )


def _read_pooling(path: Path) -> Pooling:
    """Return the pooling in the files of sentence-transformers; the default is the mean."""
    config = _read_json(path / "1_Pooling" / "config.json")
    for key, pooling in _POOLINGS.items():
        if config.get(key) is True:
            return pooling
    return "mean"


def _read_prompts(path: Path) -> Mapping[Task, str]:
    """Return the prefixes in the files of sentence-transformers, such as `query: ` for E5."""
    named = _read_json(path / "config_sentence_transformers.json").get("prompts")
    prompts = cast("dict[str, Any]", named) if isinstance(named, dict) else {}
    document = prompts.get("document") or prompts.get("passage") or ""
    return {"document": str(document), "query": str(prompts.get("query") or "")}


def _compute_mark(*files: Path, prompts: Mapping[Task, str], pooling: Pooling) -> str:
    """Hash the files' sizes and their first and last mebibyte, where weights differ.

    Prefixes and pooling are hashed as well, because vectors with others can't be compared. The
    defaults are not, so that folders without either keep the marks of earlier versions.
    """
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "big"))
        with file.open("rb") as content:
            digest.update(content.read(_HASHED_BYTES))
            content.seek(max(0, size - _HASHED_BYTES))
            digest.update(content.read())
    if any(prompts.values()):
        digest.update(json.dumps(dict(prompts), sort_keys=True).encode())
    if pooling != "mean":
        digest.update(f"pooling: {pooling}".encode())
    return digest.hexdigest()[:_MARK_LENGTH]


def _read_json(file: Path) -> dict[str, Any]:
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

LOCAL_LABEL = "The embedding model on this machine"
NOT_INSTALLED = (
    "fastembed, which computes embeddings here, is not installed. It comes with Talekeeper if "
    "the machine supports it: on Linux, and on Macs with Apple processors."
)

_MAX_GROUP_TOKENS = 256
"""Tokens that the model processes at once, including padding. On a CPU, more are slower and take
memory. With MiniLM int8, a token takes the same time from 128 to 400 tokens at once, a tenth longer
at 800 and a quarter longer at 1,600."""

_MAX_WORKERS = 4

_MAX_CHARACTERS = 40_000
"""Characters of a text that are tokenized. Models read at most some thousand tokens."""

_MAX_TOKENS = 1024
"""Tokens of a text that a model reads, if it could read more: attention to 8,192 tokens takes
gigabytes."""

_STATIC_NAME = "minishlab/potion-multilingual-128M"
"""A name of a static model in fastembed. It reads any folder of model2vec under this name."""


def is_installed() -> bool:
    """True if fastembed is installed. It is not imported, because that takes a second."""
    return find_spec("fastembed") is not None


class LocalEmbedder:
    """A model in a folder. The first text loads it.

    Args:
        folder: The folder.
        model: The name in fastembed, which knows the pooling. If it is empty, the files decide.
        dimension: Length of the vectors, if the files are wrong about it.
        workers: Threads for documents, each on one core. 0 means one per core, at most 4. Queries
            have their own thread, so they do not wait for documents.

    Raises `EmbedderError` if the folder contains no model or fastembed is not installed.
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
        self._workers = workers or min(_MAX_WORKERS, os.cpu_count() or 1)
        self._documents = ThreadPoolExecutor(self._workers, thread_name_prefix="embed")
        self._queries = ThreadPoolExecutor(1, thread_name_prefix="embed-query")
        self._loading: asyncio.Future[TextEmbedding] | None = None

    async def ready(self) -> EmbedderSpec:
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        model = await self._load()
        prefix = self._folder.prompts[task]
        prepared = [prefix + replace_surrogates(text[:_MAX_CHARACTERS]) for text in texts]
        vectors = np.empty((len(texts), self.spec.dimension), dtype=np.float32)
        pool = self._queries if task == "query" else self._documents
        count = partial(_count_tokens, model, prepared, is_static=self._folder.is_static)
        groups = _group_by_length(await self._run_in_pool(pool, count))

        async def work() -> None:
            # The groups are computed separately, so that texts of other callers get a turn.
            for group in groups:
                some = [prepared[index] for index in group]
                rows = await self._run_in_pool(pool, partial(compute_vectors, model, some, task))
                vectors[group] = normalize_rows(
                    rows, label=LOCAL_LABEL, count=len(some), dimension=self.spec.dimension
                )

        await asyncio.gather(*(work() for _ in range(self._workers)))
        return vectors

    async def aclose(self) -> None:
        """Unload the model. A running computation ends first."""
        for pool in (self._documents, self._queries):
            pool.shutdown(wait=False, cancel_futures=True)
        self._loading = None

    async def _run_in_pool(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await self._submit(pool, work)
        except EmbedderError:
            raise
        except Exception as error:  # noqa: BLE001  # a model's file may cause any error
            raise EmbedderError(f"{LOCAL_LABEL} failed ({type(error).__name__}).") from None

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
        """Start `work` in a thread of a pool. Raises `EmbedderError` if the pool is closed."""
        try:
            return asyncio.get_running_loop().run_in_executor(pool, work)
        except RuntimeError:
            raise EmbedderError(f"{LOCAL_LABEL} is closed.") from None

    async def _load(self) -> TextEmbedding:
        if self._loading is None:
            self._loading = self._submit(
                self._queries, partial(_load_model, self._folder, self._name)
            )
        loading = self._loading
        try:
            # Cancelling the caller must not stop the loading, which the next call needs.
            return await asyncio.shield(loading)
        except Exception as error:
            self._loading = None
            raise EmbedderError(
                f"{LOCAL_LABEL}, in {self._folder.path}, does not load ({type(error).__name__})."
            ) from error


def _count_tokens(model: TextEmbedding, texts: Sequence[str], *, is_static: bool) -> list[int]:
    """Count the tokens of each text after truncation.

    They are not needed if nothing is padded: for a single text, and by a static model.
    """
    if len(texts) < 2 or is_static:  # noqa: PLR2004
        return [0] * len(texts)
    tokenizer = cast("Tokenizer", cast("Any", model.model).tokenizer)
    return [sum(each.attention_mask) for each in tokenizer.encode_batch(list(texts))]


def _group_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield indices of texts with similar lengths, because a group is padded to the longest."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[index] > _MAX_GROUP_TOKENS:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def compute_vectors(model: TextEmbedding, texts: list[str], task: Task) -> Floats:
    embed = model.query_embed if task == "query" else model.passage_embed
    vectors = np.asarray(list(embed(texts)), dtype=np.float32)
    # A static model has no vector for a text without known tokens, such as an empty one.
    vectors[~vectors.any(axis=1)] = 1.0
    return vectors


def _load_model(folder: ModelFolder, name: str) -> TextEmbedding:
    """Load the model. It takes a second or two, mostly for importing fastembed."""
    from fastembed import TextEmbedding  # noqa: PLC0415  # slow: not at start-up

    load = partial(
        TextEmbedding,
        specific_model_path=str(folder.path),
        # Without it, fastembed creates a folder for downloads.
        cache_dir=str(folder.path),
        local_files_only=True,
    )
    if folder.is_static:
        # Only the vectors of words in use take memory.
        return load(_STATIC_NAME, mmap=True)
    known = {str(each["model"]).lower() for each in TextEmbedding.list_supported_models()}
    if name.lower() not in known:
        name = f"talekeeper/{folder.mark}-{folder.pooling}-{folder.model_file}"
        if name not in known:
            _register_model(folder, name)
    # Threads within one computation wait for each other, which is slower.
    model = load(name, providers=["CPUExecutionProvider"], threads=1)
    tokenizer = cast("Tokenizer", cast("Any", model.model).tokenizer)
    truncation = cast("dict[str, Any]", tokenizer.truncation)
    if truncation["max_length"] > _MAX_TOKENS:
        tokenizer.enable_truncation(_MAX_TOKENS, direction=truncation["direction"])
    return model


def _register_model(folder: ModelFolder, name: str) -> None:
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
        # It is required, but not used if there is a folder.
        sources=ModelSource(hf="none"),
        dim=folder.dimension,
        model_file=folder.model_file,
    )
