"""Envelopes: what a slot holds, so that a new user key can be put in without the slot's secret.

Each slot has an X25519 key pair: the private key is HKDF of the slot's secret, and the public key
lies in the slot. When the user key is changed, the new one is encrypted to that public key (HPKE,
RFC 9180); whoever has the old user key alone learns nothing of the new one. The next time that the
slot is opened, its secret wraps the user key directly again, which is faster to open.

An envelope is `form (1 byte) | public key, sealed (60) | user key, wrapped`, and all of that under
the root key:

- The public key is sealed under HKDF of the user key: somebody who can write to the database can't
  put in one of their own, to be sent the next user key, nor guess passwords against it.
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
    """Which slot an envelope belongs to, and the generation of the user key in it."""

    kind: SlotKind
    slot_id: UUID
    user_id: UUID
    generation: int

    def context(self) -> bytes:
        """What each part of the envelope is bound to."""
        return (
            f"envelope/{self.kind}/".encode()
            + self.slot_id.bytes
            + self.user_id.bytes
            + self.generation.to_bytes(8, "big")
        )


class UnwrappedKey(NamedTuple):
    """The user key of an envelope, and whether its secret wraps it directly."""

    user_key: bytes
    is_direct: bool


def wrap(place: EnvelopePlace, *, secret: bytes, user_key: bytes, root: RootKeys) -> Wrapped:
    """Wrap the user key for a slot whose secret is at hand."""
    public_key = _private_key(place.kind, secret).public_key().public_bytes_raw()
    key = derive(secret, f"slot/{place.kind}")
    inner = seal_under(key, user_key, context=place.context())
    return _enclose(place, DIRECT, public_key, inner, user_key=user_key, root=root)


def unwrap(
    place: EnvelopePlace, wrapped: Wrapped, *, secret: bytes, root: RootKeys
) -> UnwrappedKey:
    """The user key, by the slot's secret.

    Raises `WrongSecretError`, also where the envelope was changed or is another slot's, and
    `RootKeyError` when the root key of that version is not at hand.
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
    """The envelope of the next generation, with the new user key: the secret is not needed.

    Raises `SealBrokenError` where the old user key or the place is wrong, and `RootKeyError`.
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
    """The same envelope under the newest root key. Raises `RootKeyError`."""
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
