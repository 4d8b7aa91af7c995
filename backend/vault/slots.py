"""Key slots: the user key, wrapped once for each way to sign in.

The secret of a slot is a password, which Argon2id stretches, or 256 random bits (a session token,
an API key, a recovery code), for which HKDF is enough. A user key that is lent to the server, for a
job or for a period, is wrapped under the root key.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from typing import Annotated, Literal, NamedTuple
from uuid import UUID

import msgspec
from argon2.low_level import Type, hash_secret_raw
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from backend.errors import AppError
from backend.vault.root import RootKeys, RootSealBrokenError, Wrapped
from backend.vault.sealing import (
    KEY_BYTES,
    NONCE_BYTES,
    TAG_BYTES,
    SealBrokenError,
    derive,
    seal_under,
    unseal_under,
)

SlotKind = Literal["password", "recovery", "session", "api_key", "standing"]
LentKind = Literal["standing", "job"]
"""Slots that the server opens without the user, because only the root key wraps them."""
SECRET_BYTES = 32


class WrongSecretError(AppError):
    """The secret does not open the slot."""

    status, slug, title = 401, "wrong-secret", "Incorrect secret"


class PasswordKdf(msgspec.Struct, frozen=True):
    """Argon2id parameters (RFC 9106), stored with each password slot.

    The bounds are checked when it is decoded. Otherwise an attacker who can write to the database
    could make a sign-in use all memory.
    """

    salt: bytes
    memory_kib: Annotated[int, msgspec.Meta(ge=8, le=1024 * 1024)] = 64 * 1024
    passes: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    lanes: Annotated[int, msgspec.Meta(ge=1, le=16)] = 4

    def stretch(self, password: str) -> bytes:
        """Return 32 bytes. Takes about 0.1 s and `memory_kib` of memory: call it in a thread."""
        return hash_secret_raw(
            password.encode(),
            self.salt,
            time_cost=self.passes,
            memory_cost=self.memory_kib,
            parallelism=self.lanes,
            hash_len=KEY_BYTES,
            type=Type.ID,
        )

    def renew_salt(self) -> PasswordKdf:
        return msgspec.structs.replace(self, salt=os.urandom(16))


DEFAULT_KDF = PasswordKdf(salt=b"\0" * 16)
"""Costs of a new password slot. `renew_salt` adds its salt."""


def wrap_lent(
    kind: LentKind, slot_id: UUID, user_id: UUID, *, user_key: bytes, root: RootKeys
) -> Wrapped:
    context, purpose = _make_lent_context(kind, slot_id, user_id)
    return root.wrap(user_key, context=context, purpose=purpose)


def unwrap_lent(
    kind: LentKind, slot_id: UUID, user_id: UUID, wrapped: Wrapped, *, root: RootKeys
) -> bytes:
    """Raises `RootKeyError`."""
    context, purpose = _make_lent_context(kind, slot_id, user_id)
    return root.unwrap(wrapped, context=context, purpose=purpose)


def rewrap_lent(
    kind: LentKind, slot_id: UUID, user_id: UUID, wrapped: Wrapped, *, root: RootKeys
) -> Wrapped:
    """Raises `RootKeyError`."""
    user_key = unwrap_lent(kind, slot_id, user_id, wrapped, root=root)
    return wrap_lent(kind, slot_id, user_id, user_key=user_key, root=root)


def make_token(prefix: str) -> tuple[str, bytes]:
    """Return a new token (`prefix` and 256 random bits in base64url) and its secret."""
    secret = secrets.token_bytes(SECRET_BYTES)
    return prefix + base64.urlsafe_b64encode(secret).rstrip(b"=").decode(), secret


def parse_token(token: str, prefix: str) -> bytes | None:
    """Return the secret of a token, or None if it is not a token of `make_token`."""
    body = token.removeprefix(prefix)
    if body == token and prefix:
        return None
    try:
        secret = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
    return secret if len(secret) == SECRET_BYTES else None


def hash_for_lookup(secret: bytes) -> bytes:
    """Return the SHA-256 hash by which the table finds a token's slot."""
    return hashlib.sha256(secret).digest()


def make_recovery_code() -> tuple[str, bytes]:
    """Return a new recovery code (`ABCD-EFGH-...`, 13 groups of base32) and its secret."""
    secret = secrets.token_bytes(SECRET_BYTES)
    letters = base64.b32encode(secret).decode().rstrip("=")
    return "-".join(letters[i : i + 4] for i in range(0, len(letters), 4)), secret


def normalize_code(code: str) -> str:
    """Return the base32 letters of a typed code, without regard to case, dashes and spaces.

    0, 1 and 8 are not in base32: they are read as the similar letters.
    """
    return "".join(code.split()).replace("-", "").upper().translate(str.maketrans("018", "OIB"))


def parse_recovery_code(code: str) -> bytes | None:
    letters = normalize_code(code)
    try:
        secret = base64.b32decode(letters + "=" * (-len(letters) % 8))
    except ValueError:
        return None
    return secret if len(secret) == SECRET_BYTES else None


def _make_lent_context(kind: LentKind, slot_id: UUID, user_id: UUID) -> tuple[bytes, str]:
    context = f"slot/{kind}/".encode() + slot_id.bytes + user_id.bytes
    return context, f"slot/{kind}/{slot_id.hex}/{user_id.hex}"


DIRECT, ADDRESSED = 1, 2
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
SEALED_KEY_BYTES = NONCE_BYTES + KEY_BYTES + TAG_BYTES
_HEAD_BYTES = 1 + SEALED_KEY_BYTES
_PURPOSE = "envelope"


class EnvelopePlace(NamedTuple):
    """The slot of an envelope, and the generation of the user key in it."""

    kind: SlotKind
    slot_id: UUID
    user_id: UUID
    generation: int

    def context(self) -> bytes:
        return (
            f"envelope/{self.kind}/".encode()
            + self.slot_id.bytes
            + self.user_id.bytes
            + self.generation.to_bytes(8, "big")
        )


class UnwrappedKey(NamedTuple):
    """The user key of an envelope. `is_direct` is true if the slot's secret wraps it directly."""

    user_key: bytes
    is_direct: bool


def wrap(place: EnvelopePlace, *, secret: bytes, user_key: bytes, root: RootKeys) -> Wrapped:
    public_key = _private_key(place.kind, secret).public_key().public_bytes_raw()
    key = derive(secret, f"slot/{place.kind}")
    inner = seal_under(key, user_key, context=place.context())
    return _enclose(place, DIRECT, public_key, inner, user_key=user_key, root=root)


def unwrap(
    place: EnvelopePlace, wrapped: Wrapped, *, secret: bytes, root: RootKeys
) -> UnwrappedKey:
    """Return the user key.

    Raises `WrongSecretError`, also if the envelope was modified or belongs to another slot, and
    `RootKeyError` if its root key version is missing.
    """
    try:
        content = root.unwrap(wrapped, context=place.context(), purpose=_PURPOSE)
        form, inner = content[0], content[_HEAD_BYTES:]
        if form == DIRECT:
            key = derive(secret, f"slot/{place.kind}")
            return UnwrappedKey(unseal_under(key, inner, context=place.context()), is_direct=True)
        private_key = _private_key(place.kind, secret)
        return UnwrappedKey(
            SUITE.decrypt(inner, private_key, info=place.context()), is_direct=False
        )
    except (SealBrokenError, RootSealBrokenError, InvalidTag) as error:
        raise WrongSecretError from error


def readdress(
    place: EnvelopePlace, wrapped: Wrapped, *, old_key: bytes, new_key: bytes, root: RootKeys
) -> Wrapped:
    """Return the envelope of the next generation with the new user key, without the secret.

    Raises `SealBrokenError` if the old user key or the place is wrong, and `RootKeyError`.
    """
    try:
        content = root.unwrap(wrapped, context=place.context(), purpose=_PURPOSE)
    except RootSealBrokenError as error:
        raise SealBrokenError from error
    sealed = content[1:_HEAD_BYTES]
    public_key = unseal_under(derive(old_key, _PURPOSE), sealed, context=place.context())
    following = place._replace(generation=place.generation + 1)
    recipient = X25519PublicKey.from_public_bytes(public_key)
    inner = SUITE.encrypt(new_key, recipient, info=following.context())
    return _enclose(following, ADDRESSED, public_key, inner, user_key=new_key, root=root)


def rewrap(place: EnvelopePlace, wrapped: Wrapped, *, root: RootKeys) -> Wrapped:
    """Return the same envelope under the newest root key. Raises `RootKeyError`."""
    content = root.unwrap(wrapped, context=place.context(), purpose=_PURPOSE)
    return root.wrap(content, context=place.context(), purpose=_PURPOSE)


def _enclose(
    place: EnvelopePlace,
    form: int,
    public_key: bytes,
    inner: bytes,
    *,
    user_key: bytes,
    root: RootKeys,
) -> Wrapped:
    sealed = seal_under(derive(user_key, _PURPOSE), public_key, context=place.context())
    content = bytes([form]) + sealed + inner
    return root.wrap(content, context=place.context(), purpose=_PURPOSE)


def _private_key(kind: SlotKind, secret: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(derive(secret, f"envelope/{kind}"))
