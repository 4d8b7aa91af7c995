"""What a folder with an ONNX model in it is: read from its files, without loading the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from backend.memory.embedding.protocol import EmbedderError, Task

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
