"""The exact bytes of every stored format, so that stored data stays readable.

A change that fails here makes existing installations unreadable: it needs a new format number or
a migration, not a new vector. Some tests build or open the formats by hand, only with RFC 5869,
RFC 2104, RFC 9180 and AES-GCM, so that another program could read them from this description.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from backend.accounts.auth.names import INSTANCE_CONTEXT, InstanceKeys
from backend.accounts.keys.keyring import (
    Protection,
    make_data_key,
    open_sealer,
    wrap_derivation_key,
)
from backend.accounts.models import User
from backend.vault.root import RootKeys, Wrapped, add_root_key, load_root_keys
from backend.vault.sealing import Column, Sealer, derive, digest, unseal_under
from backend.vault.slots import EnvelopePlace, LentKind, PasswordKdf, unwrap, unwrap_lent, wrap_lent

KEY, USER_KEY, SECRET = (bytes(range(first, first + 32)) for first in (0, 32, 64))
USER = UUID("00112233-4455-6677-8899-aabbccddeeff")
ROW = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
CONTENT = Column("messages", "sealed_content")
TEXT = "Où est Ædith?"
PASSWORD = "correct horse battery staple"
ROOT = RootKeys({3: KEY})
PROTECTION = Protection(generation=7, key_mode="per_job", kdf=b"{}")

BLOB = (
    "0100000007000102030405060708090a0b"
    "08c16f3ba096b63b4ec7f3e2c58147fff7c5c17dfd16ab4c96aba9c91973c8"
)
LENT: dict[LentKind, str] = {
    "standing": (
        "000102030405060708090a0bf9d2a1fe00f44ed5da1c4871dc52561ba3c91aac16e162a74152b80092b0145e"
        "9a81fcf579cc66f080ea4a80ac358158"
    ),
    "job": (
        "000102030405060708090a0b04cadca8bfc39f1214514dd60b342c577fd15d94ca71d288e2b1491f41173891"
        "bbde9a7aa948fe2953f2dc16855b19e8"
    ),
}
DERIVATION_KEY = (
    "000102030405060708090a0bbe8821d7a48444ae3c80f88382ad1e35fb11a5f94871ad94ab011b2b5de3adb1"
    "3ba0de5d534c47eb18a67a70d0fa9400"
)
INSTANCE_KEY = (
    "000102030405060708090a0bcc16b4c0eb4717fa3f1c96aa1eae9a26ab5538d5649836cd828746714bcd8410"
    "133b569d779ecd6e005f12601186e509"
)
ROOT_FILE = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace random bytes by 00 01 02 ..."""

    def count(length: int) -> bytes:
        return bytes(range(length))

    monkeypatch.setattr(os, "urandom", count)


def hkdf(key: bytes, info: str) -> bytes:
    extracted = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(extracted, info.encode() + b"\x01", "sha256")


def test_a_blob_can_be_opened_by_its_description_alone() -> None:
    blob = bytes.fromhex(BLOB)
    associated = (
        b"\x01\x00\x00\x00\x07"  # format, data key
        b"\x00\x08messages\x00\x0esealed_content" + USER.bytes + ROW.bytes
    )
    assert blob[:5] == associated[:5]
    assert AESGCM(KEY).decrypt(blob[5:17], blob[17:], associated).decode() == TEXT


def test_a_digest_is_an_hmac_over_parts_behind_their_lengths() -> None:
    message = b"\x00\x00\x00\x04name\x00\x00\x00\x05edith"
    assert digest(KEY, b"name", b"edith") == hmac.digest(KEY, message, hashlib.sha256)


def test_the_protections_mac_is_over_names_and_values_in_order() -> None:
    message = (
        b"\x00\x00\x00\x0ageneration\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x07"
        b"\x00\x00\x00\x08key_mode\x00\x00\x00\x07per_job"
        b"\x00\x00\x00\x03kdf\x00\x00\x00\x02{}"
    )
    key = hkdf(USER_KEY, "talekeeper/protection/2")

    assert PROTECTION.mac(USER_KEY) == hmac.digest(key, message, hashlib.sha256)
    with_factors = msgspec.structs.replace(PROTECTION, factors=b"ff")
    message += b"\x00\x00\x00\x07factors\x00\x00\x00\x02ff"
    assert with_factors.mac(USER_KEY) == hmac.digest(key, message, hashlib.sha256)
    with_both = msgspec.structs.replace(with_factors, newest_data_key=3)
    message += b"\x00\x00\x00\x0fnewest_data_key\x00\x00\x00\x08" + bytes(7) + b"\x03"
    assert with_both.mac(USER_KEY) == hmac.digest(key, message, hashlib.sha256)


def test_a_derived_key_is_hkdf_for_a_purpose() -> None:
    assert derive(KEY, "terms") == hkdf(KEY, "talekeeper/terms")


def test_a_sealed_text_keeps_its_form(counting: None) -> None:
    sealer = Sealer(USER, {7: KEY}, user_key=USER_KEY)
    assert sealer.seal_bytes(CONTENT, ROW, TEXT.encode()).hex() == BLOB
    assert sealer.seal(CONTENT, ROW, TEXT).hex() == BLOB
    assert sealer.open(CONTENT, ROW, bytes.fromhex(BLOB)) == TEXT


@pytest.mark.parametrize("kind", LENT)
def test_keys_lent_to_the_server_keep_their_form(kind: LentKind, counting: None) -> None:
    version, wrapped = wrap_lent(kind, ROW, USER, user_key=USER_KEY, root=ROOT)
    purpose = f"talekeeper/slot/{kind}/{ROW.hex}/{USER.hex}"
    context = f"slot/{kind}/".encode() + ROW.bytes + USER.bytes
    assert (version, wrapped.hex()) == (3, LENT[kind])
    assert AESGCM(hkdf(KEY, purpose)).decrypt(wrapped[:12], wrapped[12:], context) == USER_KEY
    assert unwrap_lent(kind, ROW, USER, Wrapped(3, wrapped), root=ROOT) == USER_KEY


def test_the_instance_key_keeps_its_form(counting: None) -> None:
    version, wrapped = ROOT.wrap(USER_KEY, context=INSTANCE_CONTEXT)
    assert (version, wrapped.hex()) == (3, INSTANCE_KEY)


def test_the_root_key_file_keeps_its_form(counting: None, tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    load_root_keys(path, create=True)
    assert path.read_text() == ROOT_FILE
    add_root_key(path)
    assert path.read_text() == ROOT_FILE.replace("1:", "2:") + ROOT_FILE


def test_a_data_key_keeps_its_form(counting: None) -> None:
    row = make_data_key(USER, 7, user_key=USER_KEY)
    opened = unseal_under(
        hkdf(USER_KEY, "talekeeper/data-keys"),
        row.wrapped,
        context=b"data-key/" + USER.bytes + b"\x00\x00\x00\x07",
    )

    assert opened == KEY
    user = User(id=USER, key_generation=1, newest_data_key=7)
    wrap_derivation_key(user, SECRET, user_key=USER_KEY)
    sealer = open_sealer(user, [row], user_key=USER_KEY)
    assert sealer.open(CONTENT, ROW, bytes.fromhex(BLOB)) == TEXT


def test_a_derivation_key_keeps_its_form(counting: None) -> None:
    user = User(id=USER, key_generation=1, newest_data_key=7)
    wrap_derivation_key(user, SECRET, user_key=USER_KEY)
    assert user.wrapped_derivation_key is not None
    key = hkdf(USER_KEY, "talekeeper/derivation-key")
    blob, associated = user.wrapped_derivation_key, b"derivation-key/" + USER.bytes

    assert blob.hex() == DERIVATION_KEY
    assert AESGCM(key).decrypt(blob[:12], blob[12:], associated) == SECRET
    sealer = open_sealer(user, [make_data_key(USER, 7, user_key=USER_KEY)], user_key=USER_KEY)
    assert sealer.derive_key("terms") == hkdf(SECRET, "talekeeper/terms")


def test_values_computed_from_keys_never_change() -> None:
    instance = InstanceKeys(KEY)
    full_cost = PasswordKdf(salt=bytes(range(16)))
    computed = {
        "a derived key": derive(USER_KEY, "terms"),
        "a digest": digest(KEY, b"name", b"edith"),
        "a password, stretched at little cost": stretched(),
        "a password, stretched at full cost": full_cost.stretch(PASSWORD),
        "the protection's MAC": PROTECTION.mac(USER_KEY),
        "a name's hash": instance.hash_name(" Ædith "),
        "a throttle's hash": instance.hash_throttle_key("account", "edith"),
    }

    assert {name: value.hex() for name, value in computed.items()} == {
        "a derived key": "b0fc814a0576a22e86e9ac5e015bf8973ce443c3cc16d4bef6de226caf6a46b3",
        "a digest": "bda092c053888efb24c55ffdba5604f39e5677dd4ac96997edeea05aeb01f549",
        "a password, stretched at little cost": (
            "9992982626d0fa7b38ee9ce8e7951eeb239679653fcbb197fd39264d51652da5"
        ),
        "a password, stretched at full cost": (
            "853b272a44db1421c02962669a55eb0994f3cab385ed1c4c79253eee19bab49e"
        ),
        "the protection's MAC": (
            "b6f7ec0eb1f1fd73c18ca8a8d179ee51a7b710a87eaf81741d6e21d1d6802ccc"
        ),
        "a name's hash": "8f831d38e3784252dd75af92b1fe6ed0f2428746433ac05fd1849eadc0e960af",
        "a throttle's hash": "34f06d95caacb21e650ef01c11f5cee83f4e765b8cbfc3b6badf6613255b7dd3",
    }


def stretched() -> bytes:
    kdf = PasswordKdf(salt=bytes(range(16)), memory_kib=256, passes=2, lanes=2)
    return kdf.stretch(PASSWORD)


PLACE = EnvelopePlace("api_key", ROW, USER, 7)
CONTEXT = b"envelope/api_key/" + ROW.bytes + USER.bytes + bytes(7) + b"\x07"
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
    return gcm(hkdf(KEY, "talekeeper/envelope"), bytes.fromhex(blob), CONTEXT)


def private_key_from(secret: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(hkdf(secret, "talekeeper/envelope/api_key"))


def public_key_in(content: bytes) -> bytes:
    return gcm(hkdf(USER_KEY, "talekeeper/envelope"), content[1:61], CONTEXT)


def open_direct(sealed: bytes) -> bytes:
    return gcm(hkdf(SECRET, "talekeeper/slot/api_key"), sealed, CONTEXT)


def open_addressed(sealed: bytes) -> bytes:
    return hpke_open(private_key_from(SECRET), sealed, CONTEXT)


@pytest.mark.parametrize(
    ("blob", "form", "open_sealed"), [(DIRECT, 1, open_direct), (ADDRESSED, 2, open_addressed)]
)
def test_an_envelope_can_be_opened_by_its_description_alone_and_by_the_program(
    blob: str, form: int, open_sealed: Callable[[bytes], bytes]
) -> None:
    content = content_of(blob)
    assert content[0] == form
    assert public_key_in(content) == private_key_from(SECRET).public_key().public_bytes_raw()
    assert open_sealed(content[61:]) == USER_KEY
    opened = unwrap(PLACE, Wrapped(3, bytes.fromhex(blob)), secret=SECRET, root=ROOT)
    assert opened.user_key == USER_KEY
