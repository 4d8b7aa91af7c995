"""The root key: versioned, and stored outside the database, so that a stolen copy lacks it."""

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
    """The root key is missing or unreadable. The server does not start without it."""

    slug, title = "root-key", "The root key cannot be used"


class RootSealBrokenError(RootKeyError):
    """A wrapped secret does not open: it was modified, moved, or wrapped under another root key."""


class Wrapped(NamedTuple):
    """A secret wrapped under a version of the root key."""

    root_version: int
    blob: bytes


class RootKeys:
    """The versions of the root key. The newest one wraps; older ones only unwrap."""

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        if not keys:
            raise RootKeyError("There is no root key.")
        if any(len(key) != KEY_BYTES for key in keys.values()):
            raise RootKeyError(f"A root key must be {KEY_BYTES} bytes, in base64.")
        self._keys = dict(keys)
        self.current = max(keys)

    @property
    def versions(self) -> list[int]:
        return sorted(self._keys)

    def wrap(self, secret: bytes, *, context: bytes, purpose: str = "wrapping") -> Wrapped:
        """Wrap a secret under the newest version, with a key derived for `purpose`."""
        key = self._derive(self.current, purpose)
        return Wrapped(self.current, seal_under(key, secret, context=context))

    def unwrap(self, wrapped: Wrapped, *, context: bytes, purpose: str = "wrapping") -> bytes:
        """Raises `RootKeyError` for a missing version, and `RootSealBrokenError`."""
        key = self._derive(wrapped.root_version, purpose)
        try:
            return unseal_under(key, wrapped.blob, context=context)
        except SealBrokenError as error:
            raise RootSealBrokenError(
                f"Data under root key version {wrapped.root_version} cannot be decrypted. Either "
                "this is a different key, or the database row is damaged."
            ) from error

    def _derive(self, version: int, purpose: str) -> bytes:
        key = self._keys.get(version)
        if key is None:
            raise RootKeyError(
                f"Root key version {version} is missing. Add it again to the newer ones, and keep "
                "it until `talekeeper rotate-keys` has finished."
            )
        return derive(key, purpose)


def parse_root_keys(text: str) -> RootKeys:
    """Parse `version:base64` pairs, separated by commas or lines. A key without version is 1.

    Lines that begin with `#` are comments. Raises `RootKeyError`, which never quotes the key.
    """
    return RootKeys(_parse(text))


def load_root_keys(path: Path, *, value: str | None = None, create: bool = False) -> RootKeys:
    """Load the root key from its setting `value`, else from its file.

    With `create`, a missing file is created. Raises `RootKeyError`.
    """
    if value is None and not path.exists():
        if not create:
            raise RootKeyError(
                f"{path.name} is missing: {path} does not exist, and no new key was written. "
                "Restore your copy of the root key there, or set TALEKEEPER_ROOT_KEY."
            )
        with _name_file(path):
            create_private(path, _line(1, os.urandom(KEY_BYTES)))
    source, text = ("TALEKEEPER_ROOT_KEY", value) if value is not None else (path, _read(path))
    try:
        return parse_root_keys(text)
    except RootKeyError as error:
        raise RootKeyError(
            f"{source} cannot be used. {error.detail} Restore your copy of the root key there."
        ) from None


def add_root_key(path: Path) -> RootKeys:
    """Add a new version to the file. Raises `RootKeyError` and `OSError`."""
    text = _read(path)
    text = _line(parse_root_keys(text).current + 1, os.urandom(KEY_BYTES)) + text
    replace_private(path, text)
    return parse_root_keys(text)


def drop_old_root_keys(path: Path) -> RootKeys:
    """Delete the older versions from the file. First rewrap everything under the newest one.

    Raises `RootKeyError` and `OSError`.
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
            # Without the cause, which may quote the key.
            raise RootKeyError("The root key is not in the format `version:base64`.") from None
        if number < 1 or number in keys:
            raise RootKeyError("Versions of the root key must be different numbers from 1.")
        keys[number] = key
    return keys


def _line(version: int, key: bytes) -> str:
    return f"{version}:{base64.b64encode(key).decode()}\n"


def _read(path: Path) -> str:
    try:
        with _name_file(path):
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        # Without the cause, which contains the file's bytes.
        raise RootKeyError(f"{path} is not a text file with `version:base64` lines.") from None


@contextmanager
def _name_file(path: Path) -> Generator[None]:
    """Raise an `OSError` of the block as a `RootKeyError` that names the file."""
    try:
        yield
    except OSError as error:
        raise RootKeyError(f"{path}: {error.strerror}.") from error
