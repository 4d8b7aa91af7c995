"""Embedding models that can be downloaded for local use.

Models come from Hugging Face, or from the mirror in `HF_ENDPOINT`. fastembed has a list of models.
`catalogue.toml` adds their languages, revisions and files.

Files are downloaded one after the other into `NAME.part`. After an interruption the next download
resumes there. The downloader of huggingface_hub would start again and does not check digests. When
all files are intact, the folder is renamed, so an incomplete model never has its final name.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import tomllib
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from backend.core.operating_system import FileLockedError, lock_file
from backend.errors import ConflictError, UnavailableError
from backend.memory.embedding.local import is_installed
from backend.settings import PUBLIC_HUB

if TYPE_CHECKING:
    import httpx2

_IN_USE_FILE = "in-use"
"""File in the folder of models that contains the name of the one in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedModel:
    """A downloadable model. `name` is fastembed's, `revision` the commit on Hugging Face.

    `languages` are BCP 47 tags. `licence` is SPDX, in lower case. `files` are by path in the
    repository.
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
        return self.name.rpartition("/")[2]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


@cache
def list_models() -> tuple[OfferedModel, ...]:
    """Return all models. The first call imports fastembed, which takes a second or two."""
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
        for name, ours in _load_catalogue().items()
    )


def find_model(name: str) -> OfferedModel | None:
    """Return the model with this full or short name; the first one if the name is empty."""
    return next((each for each in list_models() if name in {"", each.name, each.folder}), None)


def describe_models(models: Path, *, in_use: str | None) -> Iterator[str]:
    for each in list_models():
        state = "downloaded" if is_fetched(models, each) else "not downloaded"
        tongues = each.languages
        spoken = f"{len(tongues)} languages ({' '.join(tongues)})" if tongues[1:] else tongues[0]
        yield f"{each.folder} ({'in use' if each.name == in_use else state})"
        yield f"    {each.size:,} bytes, license {each.licence}, for {spoken}"


def is_fetched(models: Path, model: OfferedModel) -> bool:
    """True if a model is complete in the folder of models."""
    return (models / model.folder).is_dir()


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


_CHUNK_BYTES = 1 << 18
_MAX_ATTEMPTS = 5
"""Interruptions in a row without any progress, after which a download fails."""
_READ_TIMEOUT_SECONDS = 30.0
_METADATA_TIMEOUT_SECONDS = 20.0

Report = Callable[[int, int], Awaitable[None]]


class ModelFetchError(UnavailableError):
    """The model could not be downloaded. The partial download is kept."""

    slug, title = "model-not-fetched", "The embedding model could not be downloaded"


class HubUnreachableError(ModelFetchError):
    """The hub does not respond, or the connection broke repeatedly. Trying later may help."""

    slug, title = "model-hub-unreachable", "The model hub cannot be reached"


class ModelNotOnHubError(ModelFetchError):
    """The hub responds, but does not have the model or one of its files."""

    slug, title = "model-not-on-hub", "The model hub does not have the model"


class ModelDamagedError(ModelFetchError):
    """A file differs from the published one. It was deleted."""

    slug, title = "model-damaged", "The downloaded model is damaged"


class DiskFullError(ModelFetchError):
    """The disk has not enough space for the model."""

    slug, title = "disk-full", "The disk is full"


class FetchUnderWayError(ConflictError):
    """Another process is downloading a model to the same folder."""

    slug, title = "model-fetch-under-way", "A model is already being downloaded"


@dataclass(frozen=True, slots=True)
class _HubFile:
    """A file on the hub. `digest` is a SHA-256 or a git blob hash."""

    path: str
    url: str
    size: int
    digest: str


async def fetch_model(
    model: OfferedModel,
    models: Path,
    report: Report,
    *,
    hub: str = PUBLIC_HUB,
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Download a model into the folder `models`, unless it is there, and make it the one in use.

    Files from the public hub must match the catalogue. A mirror may have another export of the
    model, so its own digests apply. Raises `FetchUnderWayError` if another process downloads one,
    and `ModelFetchError`.
    """
    with _lock_folder(models):
        if not is_fetched(models, model):
            part = models / f"{model.folder}.part"
            part.mkdir(exist_ok=True)
            try:
                await _fetch_files(model, part, report, hub, wait)
            except OSError as error:
                if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                    raise
                raise _build_disk_full_error(models, model.size) from error
            part.rename(models / model.folder)
        use_model(models, model)


async def _fetch_files(
    model: OfferedModel,
    part: Path,
    report: Report,
    hub: str,
    wait: Callable[[float], Awaitable[None]],
) -> None:
    import httpx2  # noqa: PLC0415  # seldom needed: not at start-up

    files = [await asyncio.to_thread(_look_up, model, path, hub) for path in model.files]
    total, done = sum(file.size for file in files), 0
    if shutil.disk_usage(part).free < total - sum(_get_size(part / file.path) for file in files):
        raise _build_disk_full_error(part, total)
    async with httpx2.AsyncClient(
        follow_redirects=True, timeout=httpx2.Timeout(_READ_TIMEOUT_SECONDS)
    ) as client:
        for file in files:
            target, before = part / file.path, done

            async def tell(size: int, before: int = before) -> None:
                await report(before + size, total)

            await _download(client, file, target, tell, wait)
            if not await asyncio.to_thread(_is_intact, target, file):
                raise _delete_damaged(file, target)
            done += file.size
    await report(total, total)


async def _download(
    client: httpx2.AsyncClient,
    file: _HubFile,
    target: Path,
    tell: Callable[[int], Awaitable[None]],
    wait: Callable[[float], Awaitable[None]],
) -> None:
    """Download the missing bytes of a file. It retries as long as there is progress."""
    import httpx2  # noqa: PLC0415  # as above

    target.parent.mkdir(parents=True, exist_ok=True)
    failures = 0
    while (size := _get_size(target)) != file.size:
        if size > file.size:
            raise _delete_damaged(file, target)
        try:
            await _fetch_rest(client, file, target, tell)
        except httpx2.TransportError as error:
            failures = failures + 1 if _get_size(target) == size else 1
            if failures == _MAX_ATTEMPTS:
                raise _build_unreachable_error(file.url, error) from error
            await wait(2.0 ** (failures - 1))


async def _fetch_rest(
    client: httpx2.AsyncClient,
    file: _HubFile,
    target: Path,
    tell: Callable[[int], Awaitable[None]],
) -> None:
    size = _get_size(target)
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={size}-"} if size else {})}
    async with client.stream("GET", file.url, headers=headers) as response:
        if not response.is_success:
            raise _build_unreachable_error(file.url, f"status {response.status_code}")
        is_rest = response.status_code == HTTPStatus.PARTIAL_CONTENT
        with target.open("ab" if is_rest else "wb") as content:
            async for chunk in response.aiter_raw(_CHUNK_BYTES):
                await asyncio.to_thread(content.write, chunk)
                if content.tell() > file.size:
                    return  # the caller deletes it: on Windows the file must be closed first
                await tell(content.tell())
            content.flush()
            await asyncio.to_thread(os.fsync, content.fileno())


def _look_up(model: OfferedModel, path: str, hub: str) -> _HubFile:
    # These modules are slow to import.
    import huggingface_hub  # noqa: PLC0415
    from huggingface_hub.errors import (  # noqa: PLC0415
        EntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    is_public = hub == PUBLIC_HUB
    revision = model.revision if is_public else "main"
    url = huggingface_hub.hf_hub_url(model.repository, path, revision=revision, endpoint=hub)
    published = model.files[path]
    try:
        found = cast("Any", huggingface_hub).get_hf_file_metadata(
            url, token=False, timeout=_METADATA_TIMEOUT_SECONDS, endpoint=hub
        )
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelNotOnHubError(
            f"{hub} has no {path} of {model.repository}. Check HF_ENDPOINT, or download another "
            "model."
        ) from error
    except Exception as error:
        raise _build_unreachable_error(url, error) from error
    if is_public or found.etag is None or len(found.etag) not in {40, 64}:
        return _HubFile(path, url, published.size, published.sha256)
    return _HubFile(path, url, found.size or published.size, found.etag)


def _is_intact(path: Path, file: _HubFile) -> bool:
    if len(file.digest) == hashlib.sha256().digest_size * 2:
        digest = hashlib.sha256()
    else:
        # The hash of a git blob.
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest() == file.digest


@contextmanager
def _lock_folder(models: Path) -> Generator[None]:
    """Lock the folder of models. Raises `FetchUnderWayError` if another process has locked it."""
    models.mkdir(parents=True, exist_ok=True)
    try:
        lock = lock_file(models / ".lock")
    except FileLockedError:
        raise FetchUnderWayError(f"Another process is downloading a model to {models}.") from None
    with lock:
        yield


def _get_size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _delete_damaged(file: _HubFile, target: Path) -> ModelDamagedError:
    target.unlink()
    return ModelDamagedError(
        f"The size or digest of {file.url} is wrong. It was deleted: download the "
        "model again. If that does not help, check for a proxy that changes files."
    )


def _build_unreachable_error(url: str, why: object) -> HubUnreachableError:
    reason = type(why).__name__ if isinstance(why, Exception) else why
    return HubUnreachableError(
        f"{url} could not be read ({reason}). The partial download is kept: try again later, or "
        "set HF_ENDPOINT to a mirror that this machine can reach."
    )


def _build_disk_full_error(folder: Path, size: int) -> DiskFullError:
    return DiskFullError(
        f"{size / 1e6:,.0f} MB are needed in {folder}. Free some space and retry: the "
        "partial download is kept."
    )
