"""Keyed digests of messages' texts, to recognise texts that another program sends.

The key belongs to the user and to this purpose. It is derived from a key that stays the same if the
user's other keys change, so that digests remain valid. Equal digests reveal that two messages of
one user have the same role and text, and nothing else.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from backend.core.text_forms import normalize
from backend.generation.model import Role
from backend.vault.sealing import Sealer

DIGEST_BYTES: Final = 12

_KEY_PURPOSE: Final = "messages/text-digest"


def normalize_text(text: str) -> str:
    """Return a text in Unicode's form NFC, with single spaces for white space."""
    return " ".join(normalize("NFC", text).split())


class TextDigester:
    """Computes digests of one user's texts. CPU-bound for many or long texts."""

    def __init__(self, sealer: Sealer) -> None:
        key = sealer.derive_key(_KEY_PURPOSE)
        self._states = {
            role: blake2b(role.encode() + b"\0", key=key, digest_size=DIGEST_BYTES)
            for role in ("system", "user", "assistant")
        }

    def compute(self, role: Role, text: str) -> bytes:
        """Return the digest of a message. Texts that differ only in white space have the same."""
        state = self._states[role].copy()
        state.update(normalize_text(text).encode(errors="surrogatepass"))
        return state.digest()
