"""The exact bytes of envelopes, opened by their description alone: RFC 5869, RFC 7748, RFC 9180.

A change that fails here makes existing installations unreadable, as in `test_vectors.py`.
"""

from __future__ import annotations

import hmac
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from backend.vault.root import RootKeys, Wrapped
from backend.vault.slots import EnvelopePlace, unwrap

ROOT_KEY, USER_KEY, SECRET = (bytes(range(first, first + 32)) for first in (0, 32, 64))
PLACE = EnvelopePlace(
    "api_key",
    UUID("ffeeddcc-bbaa-9988-7766-554433221100"),
    UUID("00112233-4455-6677-8899-aabbccddeeff"),
    7,
)
CONTEXT = (
    b"envelope/api_key/"
    + PLACE.slot_id.bytes
    + PLACE.user_id.bytes
    + b"\x00\x00\x00\x00\x00\x00\x00\x07"
)
DIRECT = (
    "f6a5d3ddc3a25216dd95f8fa48bbe80a16d40b76527d443938200357e4c0a7c6b2db55ecb305a3db0b52a697"
    "d5ead6439d3715b2fd6a7f01985121d0e6b8f46b4e59c5a37bcf12879eebf48689ea82e63036fa69a4e6a465"
    "09282b7ef748d32df70410c49c1879bceecafc388f4110a5e28818c8bed8697d185007f2f33839d012abad5f"
    "481755feb7e209976523d95d229d343216"
)
ADDRESSED = (
    "e0c064150eff6c7e4c2196d9ce63193531afa42fa19c44df26b303634493b88f412d4629d5e9deb033385109"
    "2b64f404096cc41ee1252c412525da95b87ffbcb22bb66fc1bb5dfc809675c524468896cd3e5ca8f2b4c2b93"
    "6f68e8152e2d8e2083999ac8a95112304222a754d4ace28d512c6c3b85c0e409084f0ab21f736dab42eb8ee9"
    "46532ada26a7b482ce9f3f0a6ee1fe4095065418be75fab22bc11fecd5e5f3e5b1688de15b"
)


def hkdf(key: bytes, info: str) -> bytes:
    extracted = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(extracted, info.encode() + b"\x01", "sha256")


def gcm(key: bytes, blob: bytes, context: bytes) -> bytes:
    return AESGCM(key).decrypt(blob[:12], blob[12:], context)


def extract(suite: bytes, salt: bytes, label: bytes, key: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + key, "sha256")


def expand(suite: bytes, key: bytes, label: bytes, info: bytes, length: int) -> bytes:
    labelled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(key, labelled + b"\x01", "sha256")[:length]


def hpke_open(private_key: X25519PrivateKey, encrypted: bytes, info: bytes) -> bytes:
    """Base mode with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES-256-GCM."""
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x02"
    sent, sealed = encrypted[:32], encrypted[32:]
    shared = private_key.exchange(X25519PublicKey.from_public_bytes(sent))
    both = sent + private_key.public_key().public_bytes_raw()
    secret = expand(kem, extract(kem, b"", b"eae_prk", shared), b"shared_secret", both, 32)
    context = (
        b"\x00" + extract(suite, b"", b"psk_id_hash", b"") + extract(suite, b"", b"info_hash", info)
    )
    final = extract(suite, secret, b"secret", b"")
    key = expand(suite, final, b"key", context, 32)
    return AESGCM(key).decrypt(expand(suite, final, b"base_nonce", context, 12), sealed, b"")


def content_of(blob: str) -> bytes:
    return gcm(hkdf(ROOT_KEY, "talekeeper/envelope"), bytes.fromhex(blob), CONTEXT)


def private_key_from(secret: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(hkdf(secret, "talekeeper/envelope/api_key"))


def public_key_in(content: bytes) -> bytes:
    return gcm(hkdf(USER_KEY, "talekeeper/envelope"), content[1:61], CONTEXT)


def test_a_direct_envelope_can_be_opened_by_its_description_alone() -> None:
    content = content_of(DIRECT)

    assert content[0] == 1
    assert public_key_in(content) == private_key_from(SECRET).public_key().public_bytes_raw()
    assert gcm(hkdf(SECRET, "talekeeper/slot/api_key"), content[61:], CONTEXT) == USER_KEY


def test_an_addressed_envelope_can_be_opened_by_its_description_alone() -> None:
    content = content_of(ADDRESSED)

    assert content[0] == 2
    assert public_key_in(content) == private_key_from(SECRET).public_key().public_bytes_raw()
    assert hpke_open(private_key_from(SECRET), content[61:], CONTEXT) == USER_KEY


@pytest.mark.parametrize("blob", [DIRECT, ADDRESSED])
def test_what_was_stored_still_opens(blob: str) -> None:
    opened = unwrap(
        PLACE, Wrapped(3, bytes.fromhex(blob)), secret=SECRET, root=RootKeys({3: ROOT_KEY})
    )

    assert opened.user_key == USER_KEY
