"""Accounts with second factors, and a passkey in software."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import cbor2
import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from pyotp.totp import TOTP
from webauthn import base64url_to_bytes
from webauthn.helpers import bytes_to_base64url

from tests.support.server import PASSWORD, Account, Running, ok

PRESENT, VERIFIED, ATTESTED = 0x01, 0x04, 0x40


@dataclass
class SoftPasskey:
    """One credential on a key whose counter goes up with each use."""

    origin: str
    credential_id: bytes = field(default_factory=lambda: os.urandom(32))
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    count: int = 0

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the result of `navigator.credentials.create`."""
        attested = (
            bytes(16)
            + struct.pack(">H", len(self.credential_id))
            + self.credential_id
            + cbor2.dumps(self._cose_key())
        )
        data = self._authenticator_data(options["rp"]["id"], PRESENT | ATTESTED) + attested
        attestation = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})
        return self._credential(
            clientDataJSON=self._client_data("webauthn.create", options["challenge"]),
            attestationObject=attestation,
        )

    def get(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the result of `navigator.credentials.get`."""
        self.count += 1
        client_data = self._client_data("webauthn.get", options["challenge"])
        data = self._authenticator_data(options["rpId"], PRESENT | VERIFIED)
        signed = data + hashlib.sha256(client_data).digest()
        return self._credential(
            clientDataJSON=client_data,
            authenticatorData=data,
            signature=self.key.sign(signed, ec.ECDSA(SHA256())),
        )

    def _credential(self, **response: bytes) -> dict[str, Any]:
        own = bytes_to_base64url(self.credential_id)
        return {
            "id": own,
            "rawId": own,
            "type": "public-key",
            "response": {name: bytes_to_base64url(each) for name, each in response.items()},
        }

    def _client_data(self, kind: str, challenge: str) -> bytes:
        data = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        assert base64url_to_bytes(challenge)
        return json.dumps(data).encode()

    def _authenticator_data(self, rp_id: str, flags: int) -> bytes:
        return hashlib.sha256(rp_id.encode()).digest() + struct.pack(">BI", flags, self.count)

    def _cose_key(self) -> dict[int, Any]:
        numbers = self.key.public_key().public_numbers()
        x, y = (each.to_bytes(32, "big") for each in (numbers.x, numbers.y))
        return {1: 2, 3: -7, -1: 1, -2: x, -3: y}


FACTORS = "/api/v1/me/second-factors"
SESSIONS = "/api/v1/sessions"


@dataclass(frozen=True)
class App:
    """An authenticator app with one account in it, and the one-time codes that came with it."""

    secret: str
    codes: list[str]

    def code(self, at: datetime) -> str:
        return TOTP(self.secret).at(at)


async def set_up_app(account: Account, at: datetime, **proof: Any) -> App:
    """Switch an authenticator app on."""
    body = {"password": PASSWORD, **proof}
    begun = ok(await account.client.post(f"{FACTORS}/totp", json=body), 201)
    code = TOTP(begun["secret"]).at(at)
    path = f"{FACTORS}/totp/confirmation"
    done = ok(await account.client.post(path, json={"code": code}), 201)
    return App(begun["secret"], done["codes"] or [])


class HasUrl(Protocol):
    """A server, as far as passkeys go."""

    @property
    def url(self) -> str: ...


def at_localhost(server: HasUrl) -> dict[str, str]:
    """Headers of a page that was opened by a name: addresses have no passkeys."""
    return {"Host": server.url.removeprefix("http://").replace("127.0.0.1", "localhost")}


def new_passkey(server: HasUrl) -> SoftPasskey:
    return SoftPasskey(f"http://{at_localhost(server)['Host']}")


async def begin_passkey(
    server: HasUrl, account: Account, password: str = PASSWORD, **proof: Any
) -> dict[str, Any]:
    """Request the options from which a browser creates a passkey."""
    body, headers = {"password": password, **proof}, at_localhost(server)
    answer = await account.client.post(f"{FACTORS}/passkeys", json=body, headers=headers)
    options: dict[str, Any] = ok(answer, 201)["options"]
    return options


async def finish_passkey(
    server: HasUrl, account: Account, credential: dict[str, Any], label: str = "Blue key"
) -> httpx.Response:
    path, headers = f"{FACTORS}/passkeys/confirmation", at_localhost(server)
    body = {"credential": credential, "label": label}
    return await account.client.post(path, json=body, headers=headers)


async def add_passkey(
    server: HasUrl, account: Account, label: str = "Blue key", **proof: Any
) -> tuple[SoftPasskey, dict[str, Any]]:
    """Add a passkey to the account. Return it and the answer of the server."""
    passkey = new_passkey(server)
    options = await begin_passkey(server, account, **proof)
    answer = await finish_passkey(server, account, passkey.create(options), label)
    return passkey, ok(answer, 201)


async def sign_in(
    server: Running, name: str = "Ada", *, address: str = "198.51.100.1", **extra: Any
) -> httpx.Response:
    """Sign in from a new browser at `localhost`, and return the answer."""
    headers = {**at_localhost(server), "X-Forwarded-For": address}
    async with server.browser() as client:
        body = {"username": name, "password": PASSWORD, **extra}
        return await client.post(SESSIONS, json=body, headers=headers)


async def recover(
    server: Running, code: str, *, name: str = "Ada", password: str = "an even finer password"
) -> httpx.Response:
    """Set a new password with a recovery code, from a new browser."""
    async with server.browser() as client:
        body = {"username": name, "recovery_code": code, "new_password": password}
        return await client.post("/api/v1/recoveries", json=body)
