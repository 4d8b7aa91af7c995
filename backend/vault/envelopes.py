"""Envelopes: the wrapped user key in a slot, which can be replaced without the slot's secret.

Each slot has an X25519 key pair. The private key is HKDF of the slot's secret; the public key is
stored in the slot. A new user key is encrypted to this public key (HPKE, RFC 9180), so the old user
key reveals nothing about the new one. When the slot is opened next, its secret wraps the user key
directly again, which opens faster.

An envelope is `form (1 byte) | public key, sealed (60) | user key, wrapped`, wrapped under the root
key:

- The public key is sealed under HKDF of the user key. An attacker who can write to the database
  cannot replace it to receive the next user key, and cannot use it to guess passwords.
- `DIRECT`: the user key, sealed under HKDF of the slot's secret (60 bytes).
- `ADDRESSED`: the user key, encrypted to the public key (80 bytes).

Each part is bound to the slot, its user, and the generation of the user key.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

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
from backend.vault.slots import SlotKind, WrongSecretError

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
