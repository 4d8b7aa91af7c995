"""A passkey in software: what a browser and a security key answer together."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass, field
from typing import Any

import cbor2
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from webauthn import base64url_to_bytes
from webauthn.helpers import bytes_to_base64url

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
        """What `navigator.credentials.create` gives."""
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
        """What `navigator.credentials.get` gives."""
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
