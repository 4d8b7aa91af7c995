"""Embedding models that can be fetched, and which of those that were fetched is in use.

What fastembed says of a model comes from its own list. `catalogue.toml` has the rest: languages,
and what exactly is fetched.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from backend.memory.embedding.local import is_installed

_CHOSEN = "in-use"
"""File in the folder of models that names the one in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file's bytes, and their SHA-256 in hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedModel:
    """A model that can be fetched.

    Attributes:
        name: fastembed's.
        repository: Where it is on Hugging Face.
        revision: The commit that is fetched from there.
        languages: BCP 47 tags.
        licence: SPDX, in lower case.
        dimension: Length of its vectors.
        files: What is fetched, by path in the repository.
    """

    name: str
    repository: str
    revision: str
    languages: tuple[str, ...]
    licence: str
    dimension: int
    files: Mapping[str, PublishedFile]

    @property
    def folder(self) -> str:
        """The name of its folder, and its short name."""
        return self.name.rpartition("/")[2]

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files.values())


@cache
def offered_models() -> tuple[OfferedModel, ...]:
    """All that can be fetched. The first call imports fastembed, which takes a second or two."""
    if not is_installed():
        return ()
    from fastembed import TextEmbedding  # noqa: PLC0415  # slow: not at start-up

    known: dict[str, dict[str, Any]] = {
        each["model"]: each for each in TextEmbedding.list_supported_models()
    }
    return tuple(
        OfferedModel(
            name=name,
            repository=known[name]["sources"]["hf"],
            revision=ours["revision"],
            languages=tuple(ours["languages"]),
            licence=known[name]["license"],
            dimension=known[name]["dim"],
            files={path: PublishedFile(**file) for path, file in ours["files"].items()},
        )
        for name, ours in _catalogue().items()
    )


def find_offered(name: str) -> OfferedModel | None:
    """The model of that name, with or without who made it; the first one for no name."""
    return next((each for each in offered_models() if name in {"", each.name, each.folder}), None)


def described(models: Path, *, in_use: str | None) -> Iterator[str]:
    """Lines that say what can be fetched into a folder, and what is there already."""
    for each in offered_models():
        state = "downloaded" if is_fetched(models, each) else "not downloaded"
        tongues = each.languages
        spoken = f"{len(tongues)} languages ({' '.join(tongues)})" if tongues[1:] else tongues[0]
        yield f"{each.folder} ({'in use' if each.name == in_use else state})"
        yield f"    {each.size:,} bytes, license {each.licence}, for {spoken}"


def is_fetched(models: Path, model: OfferedModel) -> bool:
    """Whether a model is in the folder of models: it comes there whole or not at all."""
    return (models / model.folder).is_dir()


def chosen_model(models: Path) -> tuple[str, Path] | None:
    """The fetched model that is in use: fastembed's name for it, and its folder."""
    try:
        name = (models / _CHOSEN).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    folder = models / name.rpartition("/")[2]
    return (name, folder) if name in _catalogue() and folder.is_dir() else None


def choose_model(models: Path, model: OfferedModel) -> None:
    """Have every process that looks into this folder go over to a model that was fetched."""
    scratch = models / f".{_CHOSEN}"
    scratch.write_text(f"{model.name}\n", encoding="utf-8")
    scratch.replace(models / _CHOSEN)


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
