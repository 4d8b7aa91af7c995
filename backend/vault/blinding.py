"""Blinding: what goes into the index is turned and keyed, so that the index alone tells little.

It is obfuscation and no encryption. Equal terms of one user are visible as equal, neighbours stay
neighbours, and whoever has about as many texts with their vectors as a vector has dimensions can
work the rotation out.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache, partial

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from backend.vault.sealing import KEY_BYTES, Sealer

Floats = NDArray[np.float32]

ROUNDS = 3
_TERMS_KEPT = 50_000
_ROTATIONS_KEPT = 4
_WORD = np.dtype("<u8")
_SMALL_BLOCK = 64
"""Longest block whose Hadamard transform is one product with a matrix."""


class Rotation:
    """A secret rotation (or reflection) of vectors of one length. Cosines and lengths are kept.

    Three rounds of: order the numbers anew, flip signs, apply an orthonormal Hadamard transform to
    blocks. The blocks are powers of two that make up the dimension, largest first (1,000 is
    512+256+128+64+32+8), so nothing is padded and nothing is cut; for an odd dimension the last
    block is a single number. The orders of the following rounds mix the blocks, and a last order
    hides which numbers came out of which.

    What is drawn from `key` must stay the same for good, for stored vectors hang on it. The stream
    is AES-256-CTR of zero bytes, from a counter block of zeros, read as 64-bit words, little
    endian. Rounds come one after the other; each takes d words for its order, then (d + 63) // 64
    words for its signs, bit i % 64 of word i // 64 flipping number i. At the end come d words for
    the last order. An order lists the indices of its words from the smallest word to the largest,
    equal ones as they stand.

    Args:
        key: 32 bytes.
        dimension: d, at least 1.

    Raises:
        ValueError: For a key of another length, or a dimension below 1.
    """

    __slots__ = ("_blocks", "_last", "_orders", "_scales", "dimension")

    def __init__(self, key: bytes, dimension: int) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"The key must be {KEY_BYTES} bytes.")
        if dimension < 1:
            raise ValueError("The dimension must be at least 1.")
        self.dimension = dimension
        self._blocks = _blocks(dimension)
        flags = (dimension + 63) // 64
        words = _keystream(key, ROUNDS * (dimension + flags) + dimension)
        # The transform below leaves the root of a block's length out: the scales bring it in.
        norms = np.concatenate([np.full(size, size**-0.5) for _, size in self._blocks])
        self._orders: list[NDArray[np.intp]] = []
        self._scales: list[Floats] = []
        for number in range(ROUNDS):
            first = number * (dimension + flags)
            self._orders.append(_order(words[first : first + dimension]))
            bits = words[first + dimension : first + dimension + flags].view(np.uint8)
            flipped = np.unpackbits(bits, bitorder="little")[:dimension]
            self._scales.append(((1.0 - 2.0 * flipped) * norms).astype(np.float32))
        self._last = _order(words[ROUNDS * (dimension + flags) :])

    def apply(self, vectors: Floats) -> Floats:
        """Turn vectors, shape (n, d) or (d,), float32; a new array of the same shape.

        O(n * d * log d) time. Raises `ValueError` when the last axis is not d long.
        """
        if vectors.shape[-1] != self.dimension:
            raise ValueError(
                f"A vector of {vectors.shape[-1]} numbers does not fit a rotation of "
                f"{self.dimension}."
            )
        turned = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
        for order, scale in zip(self._orders, self._scales, strict=True):
            turned = turned[:, order]
            turned *= scale
            for start, size in self._blocks:
                if size > 1:
                    part = turned[:, start : start + size]
                    part[...] = _hadamard(part)
        return turned[:, self._last].reshape(vectors.shape)


class Blinder:
    """Blinds one user's vectors and terms under keys of that user's."""

    __slots__ = ("_ids", "_rotation", "_term_mac")

    def __init__(self, sealer: Sealer) -> None:
        make = partial(Rotation, sealer.derived("memory-rotation"))
        self._rotation = lru_cache(_ROTATIONS_KEPT)(make)
        self._term_mac = hmac.new(sealer.derived("memory-terms"), digestmod=hashlib.sha256)
        self._ids: dict[str, int] = {}

    def turn(self, vectors: Floats) -> Floats:
        """Vectors, shape (n, d) or (d,), as they go into the index."""
        return self._rotation(vectors.shape[-1]).apply(vectors)

    def term_id(self, stem: str) -> int:
        """The first 32 bits, big-endian, of HMAC-SHA256 of the stem's UTF-8."""
        found = self._ids.get(stem)
        if found is None:
            mac = self._term_mac.copy()
            mac.update(stem.encode())
            found = int.from_bytes(mac.digest()[:4], "big")
            if len(self._ids) >= _TERMS_KEPT:
                self._ids.clear()
            self._ids[stem] = found
        return found


def _keystream(key: bytes, count: int) -> NDArray[np.uint64]:
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), dtype=_WORD)


def _order(words: NDArray[np.uint64]) -> NDArray[np.intp]:
    """A permutation: every one is as likely as any other, but for equal words (2**-40 or so)."""
    return np.argsort(words, kind="stable")


def _blocks(dimension: int) -> tuple[tuple[int, int], ...]:
    """(start, size) of powers of two that make up the dimension, largest first."""
    blocks: list[tuple[int, int]] = []
    start = 0
    while start < dimension:
        size = 1 << ((dimension - start).bit_length() - 1)
        blocks.append((start, size))
        start += size
    return tuple(blocks)


@lru_cache
def _matrix(size: int) -> Floats:
    """Sylvester's Hadamard matrix of plus and minus one, shape (size, size)."""
    index = np.arange(size)
    is_odd = np.bitwise_count(index[:, None] & index) & 1
    matrix: Floats = (1 - 2 * is_odd.astype(np.int64)).astype(np.float32)
    return matrix


def _hadamard(block: Floats) -> Floats:
    """The unscaled Hadamard transform of each row, shape (n, size), size a power of two.

    As products with small matrices: H of a * b is H of a, times the row as a matrix (a, b), times
    H of b. Two of them are faster than a pass in Python for every power of two.
    """
    count, size = block.shape
    if size <= _SMALL_BLOCK:
        return block @ _matrix(size)
    right = _SMALL_BLOCK
    left = size // right
    folded = block.reshape(count, left, right) @ _matrix(right)
    if left <= _SMALL_BLOCK:
        mixed: Floats = np.matmul(_matrix(left), folded, dtype=np.float32)
        return mixed.reshape(count, size)
    columns = folded.transpose(0, 2, 1).reshape(count * right, left)
    return _hadamard(columns).reshape(count, right, left).transpose(0, 2, 1).reshape(count, size)
