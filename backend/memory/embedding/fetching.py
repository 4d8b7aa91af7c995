"""Fetching a model from Hugging Face, or from the mirror that `HF_ENDPOINT` names.

Files come one after the other into `NAME.part`. What came stays there after a break, and only the
rest is fetched the next time: huggingface_hub's own download begins anew, and holds no digest
against what it got. When every file is as it was published, the folder gets its name, so that a
model is there whole or not at all.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock, Timeout

from backend.errors import ConflictError, UnavailableError
from backend.memory.embedding.catalogue import OfferedModel, choose_model, is_fetched
from backend.settings import PUBLIC_HUB

if TYPE_CHECKING:
    import httpx2

_CHUNK = 1 << 18
_ATTEMPTS = 5
"""Breaks in a row, without a byte in between, after which a file is given up."""
_SILENCE_SECONDS = 30.0
_METADATA_SECONDS = 20.0

Report = Callable[[int, int], Awaitable[None]]
"""Is told how many bytes are there, of how many."""


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
    """A file on the hub. `digest` is a SHA-256, or what git names a file by."""

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
    """Bring a model into the folder `models`, and have it used.

    One that is there is not fetched again. Files from the public hub must be those that the
    catalogue knows. A mirror may have another export of the model: its own word counts there.

    Raises:
        ModelFetchError: One of its kinds, whose text says what to do.
        FetchUnderWayError: Another process is at it.
    """
    with _alone(models):
        if not is_fetched(models, model):
            part = models / f"{model.folder}.part"
            part.mkdir(exist_ok=True)
            try:
                await _fetch_files(model, part, report, hub, wait)
            except OSError as error:
                if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                    raise
                raise _disk_full(models, model.size) from error
            part.rename(models / model.folder)
        choose_model(models, model)


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
    if shutil.disk_usage(part).free < total - sum(_bytes_of(part / file.path) for file in files):
        raise _disk_full(part, total)
    async with httpx2.AsyncClient(
        follow_redirects=True, timeout=httpx2.Timeout(_SILENCE_SECONDS)
    ) as client:
        for file in files:
            target, before = part / file.path, done

            async def tell(size: int, before: int = before) -> None:
                await report(before + size, total)

            await _download(client, file, target, tell, wait)
            if not await asyncio.to_thread(_is_intact, target, file):
                raise _damaged(file, target)
            done += file.size
    await report(total, total)


async def _download(
    client: httpx2.AsyncClient,
    file: _HubFile,
    target: Path,
    tell: Callable[[int], Awaitable[None]],
    wait: Callable[[float], Awaitable[None]],
) -> None:
    """Fetch what is missing of a file, with new attempts for as long as something comes."""
    import httpx2  # noqa: PLC0415  # as above

    target.parent.mkdir(parents=True, exist_ok=True)
    failures = 0
    while (size := _bytes_of(target)) != file.size:
        if size > file.size:
            raise _damaged(file, target)
        try:
            await _fetch_rest(client, file, target, tell)
        except httpx2.TransportError as error:
            failures = failures + 1 if _bytes_of(target) == size else 1
            if failures == _ATTEMPTS:
                raise _unreachable(file.url, error) from error
            await wait(2.0 ** (failures - 1))


async def _fetch_rest(
    client: httpx2.AsyncClient,
    file: _HubFile,
    target: Path,
    tell: Callable[[int], Awaitable[None]],
) -> None:
    size = _bytes_of(target)
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={size}-"} if size else {})}
    async with client.stream("GET", file.url, headers=headers) as response:
        if not response.is_success:
            raise _unreachable(file.url, f"status {response.status_code}")
        is_rest = response.status_code == HTTPStatus.PARTIAL_CONTENT
        with target.open("ab" if is_rest else "wb") as content:
            async for chunk in response.aiter_raw(_CHUNK):
                await asyncio.to_thread(content.write, chunk)
                if content.tell() > file.size:
                    return  # the caller deletes it, which Windows allows for closed files alone
                await tell(content.tell())
            content.flush()
            await asyncio.to_thread(os.fsync, content.fileno())


def _look_up(model: OfferedModel, path: str, hub: str) -> _HubFile:
    """Where a file is, and what it must be."""
    # Slow to import, and fastembed's anyway.
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
            url, token=False, timeout=_METADATA_SECONDS, endpoint=hub
        )
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelNotOnHubError(
            f"{hub} has no {path} of {model.repository}. Check HF_ENDPOINT, or "
            "download another model."
        ) from error
    except Exception as error:
        raise _unreachable(url, error) from error
    if is_public or found.etag is None or len(found.etag) not in {40, 64}:
        return _HubFile(path, url, published.size, published.sha256)
    return _HubFile(path, url, found.size or published.size, found.etag)


def _is_intact(path: Path, file: _HubFile) -> bool:
    """Whether a file has the digest that it must have."""
    if len(file.digest) == hashlib.sha256().digest_size * 2:
        digest = hashlib.sha256()
    else:
        # As git names a blob.
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest() == file.digest


@contextmanager
def _alone(models: Path) -> Generator[None]:
    """Hold the folder of models. Raises `FetchUnderWayError` where another process does."""
    models.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(models / ".lock").acquire(blocking=False)
    except Timeout:
        raise FetchUnderWayError(f"Another process is downloading a model to {models}.") from None
    with lock:
        yield


def _bytes_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _damaged(file: _HubFile, target: Path) -> ModelDamagedError:
    target.unlink()
    return ModelDamagedError(
        f"The size or digest of {file.url} is wrong. It was deleted: download the "
        "model again. If that does not help, check for a proxy that changes files."
    )


def _unreachable(url: str, why: object) -> HubUnreachableError:
    reason = type(why).__name__ if isinstance(why, Exception) else why
    return HubUnreachableError(
        f"{url} could not be read ({reason}). The partial download is kept: try again later, or "
        "set HF_ENDPOINT to a mirror that this machine can reach."
    )


def _disk_full(folder: Path, size: int) -> DiskFullError:
    return DiskFullError(
        f"{size / 1e6:,.0f} MB are needed in {folder}. Free some space and retry: the "
        "partial download is kept."
    )
