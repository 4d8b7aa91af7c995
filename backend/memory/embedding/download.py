"""Downloads of embedding models, and the pins of their files.

The first download from a hub pins the model: the commit and the digest of every file, as the hub
names them, over TLS unless `HF_ENDPOINT` is a mirror with plain HTTP. Later downloads must have the
same. Pins of the public hub that are known ship in `catalogue.toml`; others are in `NAME.pins.json`
in the same folder as the models.

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
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from backend.core.operating_system import FileLockedError, lock_file
from backend.errors import ConflictError, UnavailableError
from backend.memory.embedding.catalogue import (
    ModelPin,
    OfferedModel,
    PinnedFile,
    is_fetched,
    use_model,
    write_description,
)
from backend.settings import PUBLIC_HUB

if TYPE_CHECKING:
    import httpx2

_CHUNK_BYTES = 1 << 18
_MAX_ATTEMPTS = 5
"""Interruptions in a row without any progress, after which a download fails."""
_DIGEST_LENGTHS = (40, 64)
"""Hexadecimal digits of the hash of a git blob, and of a SHA-256 (Git LFS)."""
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


class ModelChangedError(ModelFetchError):
    """The hub offers other content than the pinned one. Nothing was downloaded."""

    slug, title = "model-changed", "The model on the hub has changed"


class DiskFullError(ModelFetchError):
    """The disk has not enough space for the model."""

    slug, title = "disk-full", "The disk is full"


class FetchUnderWayError(ConflictError):
    """Another process is downloading a model to the same folder."""

    slug, title = "model-fetch-under-way", "A model is already being downloaded"


@dataclass(frozen=True, slots=True)
class _HubFile:
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

    A mirror has its own pins, because it may have another export of the model. Raises
    `FetchUnderWayError` if another process downloads one, and `ModelFetchError`.
    """
    with _lock_folder(models):
        if not is_fetched(models, model):
            part = models / f"{model.folder}.part"
            part.mkdir(exist_ok=True)
            try:
                files = await asyncio.to_thread(_look_up, model, models, hub)
                await _fetch_files(files, part, report, wait)
                await asyncio.to_thread(write_description, model, part)
            except OSError as error:
                if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                    raise
                raise _build_disk_full_error(models, model.size) from error
            part.rename(models / model.folder)
        use_model(models, model)


async def _fetch_files(
    files: Sequence[_HubFile],
    part: Path,
    report: Report,
    wait: Callable[[float], Awaitable[None]],
) -> None:
    import httpx2  # noqa: PLC0415  # seldom needed: not at start-up

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
        why: object = "the file ended early"
        try:
            await _fetch_rest(client, file, target, tell)
        except httpx2.TransportError as error:
            why = error
        if _get_size(target) < file.size:
            failures = failures + 1 if _get_size(target) <= size else 1
            if failures == _MAX_ATTEMPTS:
                raise _build_unreachable_error(file.url, why)
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


def _look_up(model: OfferedModel, models: Path, hub: str) -> list[_HubFile]:
    """Return the files of the pinned content, and pin it if this hub was never asked before."""
    pins_file = models / f"{model.folder}.pins.json"
    pins = _read_pins(pins_file)
    is_shipped = hub == PUBLIC_HUB and model.pin is not None
    pin = model.pin if is_shipped else pins.get(hub)
    if pin and {*pin.files} != {*model.files}:
        # Another version of Talekeeper, which downloads other files, made the pins.
        raise ModelChangedError(
            f"{pins_file} does not have the files of this model. Nothing was downloaded. Delete it "
            "to pin the model again, and download the model again."
        )
    revision = pin.revision if pin else "main"
    urls: dict[str, str] = {}
    offered: dict[str, PinnedFile] = {}
    for path in model.files:
        metadata, urls[path] = _ask_hub(model.repository, path, revision, hub)
        if pin is None:
            # The other files must be of the same commit.
            revision = metadata.commit_hash or revision
        offered[path] = _read_metadata(model, path, metadata, pin)
    if pin is None:
        pin = ModelPin(revision=revision, files=offered)
        scratch = pins_file.with_suffix(".part")
        scratch.write_bytes(msgspec.json.format(msgspec.json.encode({**pins, hub: pin})))
        scratch.replace(pins_file)
    for path, pinned in pin.files.items():
        # A SHA-256 and the hash of a git blob can't be compared before the download.
        if len(offered[path].digest) == len(pinned.digest) and offered[path] != pinned:
            raise _build_changed_error(urls[path], None if is_shipped else pins_file)
    return [
        _HubFile(path, urls[path], pinned.size, pinned.digest) for path, pinned in pin.files.items()
    ]


def _read_pins(file: Path) -> dict[str, ModelPin]:
    """Return the pins of a model by hub."""
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, ModelPin])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelChangedError(f"{file} is damaged. Delete it to pin the model again.") from error


def _ask_hub(repository: str, path: str, revision: str, hub: str) -> tuple[Any, str]:
    """Return huggingface_hub's metadata of a file, and its URL in a commit if that is known."""
    # These modules are slow to import.
    import huggingface_hub  # noqa: PLC0415
    from huggingface_hub.errors import (  # noqa: PLC0415
        EntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def build_url(revision: str) -> str:
        return huggingface_hub.hf_hub_url(repository, path, revision=revision, endpoint=hub)

    url = build_url(revision)
    try:
        metadata = cast("Any", huggingface_hub).get_hf_file_metadata(
            url, token=False, timeout=_METADATA_TIMEOUT_SECONDS, endpoint=hub
        )
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelNotOnHubError(
            f"{hub} has no {path} of {repository} in {revision}. Check HF_ENDPOINT, or download "
            "another model."
        ) from error
    except Exception as error:
        raise _build_unreachable_error(url, error) from error
    return metadata, build_url(metadata.commit_hash or revision)


def _read_metadata(
    model: OfferedModel, path: str, metadata: Any, pin: ModelPin | None
) -> PinnedFile:
    """Return a file as the hub names it, or as it is known if the hub names no usable digest."""
    if metadata.etag and len(metadata.etag) in _DIGEST_LENGTHS and metadata.size is not None:
        return PinnedFile(size=metadata.size, digest=metadata.etag)
    known = pin or model.pin
    if known is None:
        raise ModelNotOnHubError(
            f"The hub names no digest of {path} of {model.repository}, so it can't be checked. "
            "Use another mirror in HF_ENDPOINT, or none."
        )
    return known.files[path]


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


def _build_changed_error(url: str, pins_file: Path | None) -> ModelChangedError:
    accept = (
        f"To accept the new content, delete {pins_file}"
        if pins_file
        else "The published content is known, so do not use this one: update Talekeeper"
    )
    return ModelChangedError(
        f"The size or digest of {url} is not the pinned one. Nothing was downloaded. Check "
        f"HF_ENDPOINT and proxies first. {accept}, and download the model again."
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
