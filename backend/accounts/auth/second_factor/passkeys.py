"""Passkeys (Web Authentication) as a second factor, by the library `webauthn`.

The library is imported when the first passkey is used, because it takes 0.3 s and 7 MB. Call
`load_library` in a thread before any other function.
"""

from __future__ import annotations

import importlib
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hmac import compare_digest
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from backend.accounts.auth.middleware import parse_address
from backend.accounts.errors import PasskeyUnavailableError
from backend.vault.sealing import derive, digest

RP_NAME = "Talekeeper"
TIMEOUT_MS = 120_000
CHALLENGE_LIFETIME = timedelta(minutes=5)
_TIME = struct.Struct(">Q")
_NONCE_BYTES = 16
_BODY_BYTES = _TIME.size + _NONCE_BYTES


class StoredPasskey(msgspec.Struct, frozen=True):
    """The sealed part of a passkey. It works only at the site `rp_id`."""

    credential_id: bytes
    public_key: bytes
    rp_id: str


class PasskeyRejectedError(Exception):
    """The browser's response is invalid. The reason is in `__cause__`."""


@dataclass(frozen=True, slots=True)
class Site:
    """The page's address for passkeys: its host name, and its origin."""

    rp_id: str
    origin: str


def parse_site(origin: str) -> Site:
    """Parse an origin. Raises `PasskeyUnavailableError` if browsers have no passkeys there."""
    parts = urlsplit(origin)
    host = parts.hostname or ""
    if parse_address(host) is not None:
        port = f":{parts.port}" if parts.port else ""
        raise PasskeyUnavailableError(
            f"Passkeys need a host name, and {host} is an address. On this machine, open "
            f"http://localhost{port} instead. Elsewhere, give the server a name with https, "
            "and set TALEKEEPER_PUBLIC_ORIGIN to it."
        )
    default = {"http": 80, "https": 443}.get(parts.scheme)
    own = host if parts.port in {None, default} else f"{host}:{parts.port}"
    if parts.scheme != "https" and host != "localhost":
        raise PasskeyUnavailableError(
            "Passkeys need https: use `talekeeper serve --lan`, or put a TLS proxy in front of it."
        )
    return Site(host, f"{parts.scheme}://{own}")


def load_library() -> None:
    importlib.import_module("webauthn")


def make_registration_options(
    site: Site, *, user_id: UUID, name: str, challenge: bytes, known: Sequence[StoredPasskey]
) -> dict[str, Any]:
    from webauthn import generate_registration_options  # noqa: PLC0415
    from webauthn.helpers import options_to_json_dict  # noqa: PLC0415
    from webauthn.helpers.structs import (  # noqa: PLC0415
        AuthenticatorSelectionCriteria,
        PublicKeyCredentialDescriptor,
        ResidentKeyRequirement,
        UserVerificationRequirement,
    )

    options = generate_registration_options(
        rp_id=site.rp_id,
        rp_name=RP_NAME,
        user_id=user_id.bytes,
        user_name=name,
        challenge=challenge,
        timeout=TIMEOUT_MS,
        authenticator_selection=AuthenticatorSelectionCriteria(
            resident_key=ResidentKeyRequirement.DISCOURAGED,
            user_verification=UserVerificationRequirement.PREFERRED,
        ),
        exclude_credentials=[
            PublicKeyCredentialDescriptor(id=each.credential_id)
            for each in known
            if each.rp_id == site.rp_id
        ],
    )
    return options_to_json_dict(options)


def make_authentication_options(
    site: Site, *, challenge: bytes, known: Sequence[StoredPasskey]
) -> dict[str, Any]:
    from webauthn import generate_authentication_options  # noqa: PLC0415
    from webauthn.helpers import options_to_json_dict  # noqa: PLC0415
    from webauthn.helpers.structs import (  # noqa: PLC0415
        PublicKeyCredentialDescriptor,
        UserVerificationRequirement,
    )

    options = generate_authentication_options(
        rp_id=site.rp_id,
        challenge=challenge,
        timeout=TIMEOUT_MS,
        allow_credentials=[PublicKeyCredentialDescriptor(id=each.credential_id) for each in known],
        user_verification=UserVerificationRequirement.PREFERRED,
    )
    return options_to_json_dict(options)


def verify_registration(
    credential: dict[str, Any], *, site: Site, challenge: bytes
) -> tuple[StoredPasskey, int]:
    """Return the new passkey and its sign count. Raises `PasskeyRejectedError`."""
    from webauthn import verify_registration_response  # noqa: PLC0415

    try:
        found = verify_registration_response(
            credential=credential,
            expected_challenge=challenge,
            expected_rp_id=site.rp_id,
            expected_origin=site.origin,
        )
    except Exception as error:  # bytes from outside: the library lets errors of its parsers through
        raise PasskeyRejectedError from error
    passkey = StoredPasskey(found.credential_id, found.credential_public_key, site.rp_id)
    return passkey, found.sign_count


def verify_authentication(
    credential: dict[str, Any],
    *,
    site: Site,
    challenge: bytes,
    passkey: StoredPasskey,
    sign_count: int,
) -> int:
    """Return the new sign count. Raises `PasskeyRejectedError`."""
    from webauthn import verify_authentication_response  # noqa: PLC0415

    try:
        found = verify_authentication_response(
            credential=credential,
            expected_challenge=challenge,
            expected_rp_id=site.rp_id,
            expected_origin=site.origin,
            credential_public_key=passkey.public_key,
            credential_current_sign_count=sign_count,
        )
    except Exception as error:  # as above
        raise PasskeyRejectedError from error
    return found.new_sign_count


def read_response(credential: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the id of the passkey that responded, and the challenge in its response.

    Neither is verified yet. Raises `PasskeyRejectedError`.
    """
    from webauthn import base64url_to_bytes  # noqa: PLC0415

    try:
        data = json.loads(base64url_to_bytes(credential["response"]["clientDataJSON"]))
        return base64url_to_bytes(credential["id"]), base64url_to_bytes(data["challenge"])
    except Exception as error:  # as above
        raise PasskeyRejectedError from error


def make_challenge(user_key: bytes, purpose: bytes, *, at: datetime) -> bytes:
    """Make a challenge that is valid for 5 minutes and needs no table.

    It is `time | nonce | MAC`. The MAC uses a key of the user's, which only the right password or a
    session opens. It covers the purpose, so a challenge for one account, password or session is
    invalid for another. A challenge works once: a passkey stores the time of the newest challenge
    that it answered, and accepts no older one.
    """
    body = _TIME.pack(_to_microseconds(at)) + os.urandom(_NONCE_BYTES)
    return body + _make_mac(user_key, purpose, body)


def read_issue_time(
    challenge: bytes, user_key: bytes, purpose: bytes, *, at: datetime
) -> int | None:
    """Return when a challenge was made, in microseconds; None if it is forged or too old."""
    body, mac = challenge[:_BODY_BYTES], challenge[_BODY_BYTES:]
    if len(body) != _BODY_BYTES or not compare_digest(mac, _make_mac(user_key, purpose, body)):
        return None
    issued: int = _TIME.unpack_from(body)[0]
    age = _to_microseconds(at) - issued
    return issued if age < CHALLENGE_LIFETIME / timedelta(microseconds=1) else None


def _make_mac(user_key: bytes, purpose: bytes, body: bytes) -> bytes:
    return digest(derive(user_key, "passkey-challenge"), purpose, body)


def _to_microseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000)
