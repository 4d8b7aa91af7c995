"""Sealing: encryption with AES-256-GCM that binds a text to its table, column, row and owner.

A sealed blob is `format (1 byte) | data key number (4 bytes, big-endian) | nonce (12) | ciphertext
and tag (16)`. Its associated data contains table, column, owner, key number and row id, so that a
blob does not open if it is moved to another of these.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from backend.errors import AppError

FORMAT = 1
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
HEADER = struct.Struct(">BI")
OVERHEAD = HEADER.size + NONCE_BYTES + TAG_BYTES


class SealBrokenError(AppError):
    """A stored text does not open: it is damaged, moved, or sealed under another key."""

    status, slug, title = 500, "seal-broken", "Stored text could not be decrypted"


@dataclass(frozen=True, slots=True)
class Column:
    table: str
    name: str


def derive(key: bytes, purpose: str) -> bytes:
    """Derive a key of 32 bytes for one purpose with HKDF-SHA256."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=f"talekeeper/{purpose}".encode()).derive(key)


def digest(key: bytes, *parts: bytes) -> bytes:
    """Return HMAC-SHA256 over the parts with their lengths, so that different lists differ."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(struct.pack(">I", len(part)))
        mac.update(part)
    return mac.digest()


def seal_under(key: bytes, data: bytes, *, context: bytes) -> bytes:
    """Return `nonce | ciphertext and tag`, bound to `context`. For keys that wrap keys."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, data, context)


def unseal_under(key: bytes, blob: bytes, *, context: bytes) -> bytes:
    """Return the data that `seal_under` sealed. Raises `SealBrokenError`."""
    try:
        return AESGCM(key).decrypt(blob[:NONCE_BYTES], blob[NONCE_BYTES:], context)
    except (InvalidTag, ValueError) as error:
        raise SealBrokenError from error


class Sealer:
    """Seals and opens the texts of one user.

    Args:
        user_id: The owner; part of every blob's associated data.
        data_keys: 32-byte keys by number. New blobs are sealed under the highest, `current_key`.
        user_key: The key that wraps the others. Use it only to wrap it in a slot.
        derivation_key: The key for `derive_key`; by default the user key.
    """

    __slots__ = ("_ciphers", "_derivation_key", "_prefixes", "current_key", "user_id", "user_key")

    def __init__(
        self,
        user_id: UUID,
        data_keys: Mapping[int, bytes],
        *,
        user_key: bytes,
        derivation_key: bytes | None = None,
    ) -> None:
        self.user_id = user_id
        self._ciphers = {number: AESGCM(key) for number, key in data_keys.items()}
        self.current_key = max(data_keys)
        self.user_key = user_key
        self._derivation_key = derivation_key or user_key
        self._prefixes: dict[tuple[Column, int], bytes] = {}

    def derive_key(self, purpose: str) -> bytes:
        """Return this user's key for one purpose. It does not depend on the current user key."""
        return derive(self._derivation_key, purpose)

    def seal(self, column: Column, row_id: UUID, text: str) -> bytes:
        return self.seal_bytes(column, row_id, text.encode())

    def seal_bytes(self, column: Column, row_id: UUID, data: bytes) -> bytes:
        number = self.current_key
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._ciphers[number].encrypt(
            nonce, data, self._prefix(column, number) + row_id.bytes
        )
        return HEADER.pack(FORMAT, number) + nonce + sealed

    def open(self, column: Column, row_id: UUID, blob: bytes) -> str:
        """Raises `SealBrokenError`."""
        return self.open_bytes(column, row_id, blob).decode()

    def open_bytes(self, column: Column, row_id: UUID, blob: bytes) -> bytes:
        """Raises `SealBrokenError`."""
        cipher, prefix = self._opener(column, blob)
        body = HEADER.size + NONCE_BYTES
        try:
            return cipher.decrypt(blob[HEADER.size : body], blob[body:], prefix + row_id.bytes)
        except InvalidTag as error:
            raise SealBrokenError from error

    def open_many(self, column: Column, rows: Iterable[tuple[bytes, bytes]]) -> list[str]:
        """Return the texts of many rows (16 bytes of the id, blob) of one column, in order.

        Faster than single calls for the thousands of rows of a window. Raises `SealBrokenError`.
        """
        texts: list[str] = []
        header, decrypt, prefix = b"", None, b""
        body = HEADER.size + NONCE_BYTES
        try:
            for row_id, blob in rows:
                if blob[: HEADER.size] != header:
                    header = blob[: HEADER.size]
                    cipher, prefix = self._opener(column, blob)
                    decrypt = cipher.decrypt
                if decrypt is None:
                    raise SealBrokenError
                data = decrypt(blob[HEADER.size : body], blob[body:], prefix + row_id)
                texts.append(data.decode())
        except (InvalidTag, ValueError) as error:
            raise SealBrokenError from error
        return texts

    def reseal(self, column: Column, row_id: UUID, blob: bytes) -> bytes | None:
        """Seal the same text under the newest data key. None if it already is."""
        if key_number(blob) == self.current_key:
            return None
        return self.seal_bytes(column, row_id, self.open_bytes(column, row_id, blob))

    def _opener(self, column: Column, blob: bytes) -> tuple[AESGCM, bytes]:
        """Return the cipher of a blob, and its associated data without the row's id."""
        if len(blob) < OVERHEAD:
            raise SealBrokenError
        version, number = HEADER.unpack_from(blob)
        cipher = self._ciphers.get(number)
        if version != FORMAT or cipher is None:
            raise SealBrokenError
        return cipher, self._prefix(column, number)

    def _prefix(self, column: Column, number: int) -> bytes:
        prefix = self._prefixes.get((column, number))
        if prefix is None:
            prefix = make_associated_data_prefix(column, self.user_id, number)
            self._prefixes[column, number] = prefix
        return prefix


def make_associated_data_prefix(column: Column, user_id: UUID, key_number: int) -> bytes:
    """Return a blob's associated data without its last part, the 16 bytes of the row's id."""
    table, name = column.table.encode(), column.name.encode()
    return b"".join(
        (
            HEADER.pack(FORMAT, key_number),
            struct.pack(">H", len(table)),
            table,
            struct.pack(">H", len(name)),
            name,
            user_id.bytes,
        )
    )


def key_number(blob: bytes) -> int:
    """Raises `SealBrokenError`."""
    if len(blob) < OVERHEAD:
        raise SealBrokenError
    number: int = HEADER.unpack_from(blob)[1]
    return number
