"""The root key: outside the database, versioned, the one thing that a stolen copy lacks."""

from __future__ import annotations

import base64
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from backend.core.files import create_private, replace_private
from backend.errors import AppError
from backend.vault.sealing import KEY_BYTES, SealBrokenError, derive, seal_under, unseal_under


class RootKeyError(AppError):
    """The root key is missing or unreadable: the server does not start without it."""

    slug, title = "root-key", "The root key cannot be used"


class RootSealBrokenError(RootKeyError):
    """What lies under the root key does not open: changed, moved, or wrapped under another key."""


class Wrapped(NamedTuple):
    """What was wrapped under the root key, and under which version of it."""

    root_version: int
    blob: bytes


class RootKeys:
    """The root key's versions. New wrappings use the newest; older ones still open."""

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        if not keys:
            raise RootKeyError("There is no root key.")
        if any(len(key) != KEY_BYTES for key in keys.values()):
            raise RootKeyError(f"A root key must be {KEY_BYTES} bytes, in base64.")
        self._keys = dict(keys)
        self.current = max(keys)

    @property
    def versions(self) -> list[int]:
        """Every version at hand, oldest first."""
        return sorted(self._keys)

    def wrap(self, secret: bytes, *, context: bytes, purpose: str = "wrapping") -> Wrapped:
        """Wrap a secret under the newest version, by its key for a purpose."""
        key = self._for(self.current, purpose)
        return Wrapped(self.current, seal_under(key, secret, context=context))

    def unwrap(self, wrapped: Wrapped, *, context: bytes, purpose: str = "wrapping") -> bytes:
        """What was wrapped.

        Raises `RootKeyError` when that version is not at hand, its `RootSealBrokenError` when the
        blob does not open.
        """
        key = self._for(wrapped.root_version, purpose)
        try:
            return unseal_under(key, wrapped.blob, context=context)
        except SealBrokenError as error:
            raise RootSealBrokenError(
                f"What lies under root key version {wrapped.root_version} does not open: this is "
                "not the key that it was wrapped under, or its row in the database was damaged."
            ) from error

    def _for(self, version: int, purpose: str) -> bytes:
        key = self._keys.get(version)
        if key is None:
            raise RootKeyError(
                f"Root key version {version} is needed and not at hand. Put it back beside the "
                "newer ones until `talekeeper rotate-keys` has finished."
            )
        return derive(key, purpose)


def parse_root_keys(text: str) -> RootKeys:
    """Read `version:base64` pairs, split by commas or lines; a bare base64 is version 1.

    Lines that begin with `#` are comments. Raises `RootKeyError`, never with the key's text in it.
    """
    return RootKeys(_parse(text))


def load_root_keys(path: Path, *, value: str | None = None, create: bool = False) -> RootKeys:
    """The root key from its setting, else from its file; `create` makes the file when absent.

    Raises `RootKeyError`.
    """
    if value is None and not path.exists():
        if not create:
            raise RootKeyError(
                f"{path.name} is missing: {path} does not exist, and no new key was written. Put "
                "your copy of the root key back there, or into TALEKEEPER_ROOT_KEY."
            )
        with _reported(path):
            create_private(path, _line(1, os.urandom(KEY_BYTES)))
    source, text = ("TALEKEEPER_ROOT_KEY", value) if value is not None else (path, _read(path))
    try:
        return parse_root_keys(text)
    except RootKeyError as error:
        raise RootKeyError(
            f"{source} cannot be used. {error.detail} Put your copy of the root key there."
        ) from None


def add_root_key(path: Path) -> RootKeys:
    """Add a new version to the file, in front of the older ones.

    Raises `RootKeyError`, and `OSError` where the file can't be written.
    """
    text = _read(path)
    text = _line(parse_root_keys(text).current + 1, os.urandom(KEY_BYTES)) + text
    replace_private(path, text)
    return parse_root_keys(text)


def drop_old_root_keys(path: Path) -> RootKeys:
    """Keep only the newest version in the file, once nothing is wrapped under the others.

    Raises `RootKeyError`, and `OSError` where the file can't be written.
    """
    text = _read(path)
    newest = parse_root_keys(text).current
    key = _parse(text)[newest]
    replace_private(path, _line(newest, key))
    return RootKeys({newest: key})


def _parse(text: str) -> dict[int, bytes]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    keys: dict[int, bytes] = {}
    for entry in filter(None, (part.strip() for line in lines for part in line.split(","))):
        version, _, value = entry.rpartition(":")
        try:
            number, key = int(version or "1"), base64.b64decode(value, validate=True)
        except ValueError:
            # Without its cause, whose text quotes a key that stands in the version's place.
            raise RootKeyError("The root key is not `version:base64`.") from None
        if number < 1 or number in keys:
            raise RootKeyError("The root key's versions are numbers from 1 on, each there once.")
        keys[number] = key
    return keys


def _line(version: int, key: bytes) -> str:
    return f"{version}:{base64.b64encode(key).decode()}\n"


def _read(path: Path) -> str:
    try:
        with _reported(path):
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        # Without its cause, which carries the file's bytes.
        raise RootKeyError(f"{path} is not text: it holds `version:base64` lines.") from None


@contextmanager
def _reported(path: Path) -> Generator[None]:
    """Say which file it is that can't be read or written."""
    try:
        yield
    except OSError as error:
        raise RootKeyError(f"{path}: {error.strerror}.") from error
