"""Embedding models that can be downloaded for local use.

Models come from Hugging Face, or from the mirror in `HF_ENDPOINT`. fastembed has a list of models.
`catalogue.toml` adds their languages, speed, files, and prefixes of queries.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from backend.core.files import replace_private
from backend.memory.embedding.local import Pooling, is_installed

_NORWEGIAN = {"no": "nb", "nn": "nb"}
"""The tags of Norwegian that browsers send, and the one in the catalogue."""

_IN_USE_FILE = "in-use"
"""File in the folder of models that contains the name of the one in use."""


class PinnedFile(msgspec.Struct, frozen=True):
    """A file on the hub. `digest` is a SHA-256, or the hash of a git blob, in hexadecimal."""

    size: int
    digest: str


class ModelPin(msgspec.Struct, frozen=True):
    """The only accepted content of a model: a commit of its repository and its files by path."""

    revision: str
    files: Mapping[str, PinnedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedModel:
    """A downloadable model. `name` is fastembed's.

    Attributes:
        files: Paths in the repository.
        pin: The content on the public hub; None if the first download pins it.
        size: In bytes. Without a pin it is rounded.
        languages: BCP 47 tags.
        licence: SPDX, in lower case.
        lines_per_second: Lines of 25 words that a core embeds. docs/how-to/embedding-models.md
            says how it was measured.
        query_prefix: Precedes queries, as the publisher of the model recommends.
    """

    name: str
    repository: str
    files: tuple[str, ...]
    pin: ModelPin | None
    size: int
    languages: tuple[str, ...]
    licence: str
    dimension: int
    lines_per_second: int
    pooling: Pooling
    query_prefix: str

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[2]


@cache
def list_models() -> tuple[OfferedModel, ...]:
    """Return all models. The first call imports fastembed, which takes a second or two."""
    if not is_installed():
        return ()
    from fastembed import TextEmbedding  # noqa: PLC0415  # slow: not at start-up

    known: dict[str, dict[str, Any]] = {
        each["model"]: each for each in TextEmbedding.list_supported_models()
    }
    return tuple(_build_model(name, ours, known[name]) for name, ours in _load_catalogue().items())


def _build_model(name: str, ours: Mapping[str, Any], known: Mapping[str, Any]) -> OfferedModel:
    pin = msgspec.convert(ours["pin"], ModelPin) if "pin" in ours else None
    rounded = int(known["size_in_GB"] * 1e9)
    return OfferedModel(
        name=name,
        repository=known["sources"]["hf"],
        files=tuple(pin.files if pin else ours["files"]),
        pin=pin,
        size=sum(file.size for file in pin.files.values()) if pin else rounded,
        languages=tuple(ours["languages"]),
        licence=known["license"],
        dimension=known["dim"],
        lines_per_second=ours["lines_per_second"],
        pooling=ours.get("pooling", "mean"),
        query_prefix=ours.get("query_prefix", ""),
    )


def find_model(name: str) -> OfferedModel | None:
    """Return the model with this full or short name; the first one if the name is empty."""
    return next((each for each in list_models() if name in {"", each.name, each.folder}), None)


def recommend_model(languages: Collection[str]) -> OfferedModel | None:
    """Return the first model that knows most of these languages (BCP 47); None without fastembed.

    Models for several languages count as knowing an undetermined one (`und`). The catalogue lists
    models for English first, and the default one before them.
    """
    wanted = {each.partition("-")[0].lower() for each in languages}
    wanted = {_NORWEGIAN.get(each, each) for each in wanted}

    def count(model: OfferedModel) -> int:
        known = {*model.languages, "und"} if len(model.languages) > 1 else {*model.languages}
        return len(wanted & known)

    return max(list_models(), key=count, default=None)


def describe_models(models: Path, *, in_use: str | None) -> Iterator[str]:
    for each in list_models():
        state = "downloaded" if is_fetched(models, each) else "not downloaded"
        tongues = each.languages
        spoken = f"{len(tongues)} languages ({' '.join(tongues)})" if tongues[1:] else tongues[0]
        yield f"{each.folder} ({'in use' if each.name == in_use else state})"
        yield (
            f"    {each.size / 1e6:,.0f} MB, about {each.lines_per_second:,} lines per second, "
            f"license {each.licence}, for {spoken}"
        )


def is_fetched(models: Path, model: OfferedModel) -> bool:
    """True if a model is complete in the folder of models."""
    return (models / model.folder).is_dir()


def write_description(model: OfferedModel, folder: Path) -> None:
    """Write the prefixes and the pooling as sentence-transformers does, for `read_folder`.

    The files are on disk when it returns, because nothing checks them after the download.
    """
    pooling = {
        "word_embedding_dimension": model.dimension,
        f"pooling_mode_{'cls_token' if model.pooling == 'cls' else 'mean_tokens'}": True,
    }
    prompts = {"prompts": {"query": model.query_prefix, "document": ""}}
    for path, content in (
        ("1_Pooling/config.json", pooling),
        ("config_sentence_transformers.json", prompts),
    ):
        (folder / path).parent.mkdir(exist_ok=True)
        replace_private(folder / path, json.dumps(content))


def find_model_in_use(models: Path) -> tuple[str, Path] | None:
    """Return the name and folder of the downloaded model in use; None if there is none."""
    try:
        name = (models / _IN_USE_FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    folder = models / name.rpartition("/")[2]
    return (name, folder) if name in _load_catalogue() and folder.is_dir() else None


def use_model(models: Path, model: OfferedModel) -> None:
    """Make a downloaded model the one in use, for all processes with this folder."""
    scratch = models / f".{_IN_USE_FILE}"
    scratch.write_text(f"{model.name}\n", encoding="utf-8")
    scratch.replace(models / _IN_USE_FILE)


@cache
def _load_catalogue() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
