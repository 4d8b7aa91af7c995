"""Blinding: rotates vectors and hashes terms with secret keys before they enter the index.

It is obfuscation, not encryption. Equal terms of one user remain equal, and near vectors remain
near. Anyone who knows as many texts with their vectors as a vector has dimensions can compute the
rotation.
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
MAX_TERM_IDS = 50_000
_ROTATIONS_KEPT = 4
_WORD = np.dtype("<u8")
_SMALL_BLOCK = 64
"""Up to this size, a block's Hadamard transform is a single matrix product."""


class Rotation:
    """A secret rotation (or reflection) of vectors of one dimension. Preserves cosines and lengths.

    Each of three rounds permutes the numbers, flips signs, and applies an orthonormal Hadamard
    transform to blocks. The blocks are powers of two that add up to the dimension, largest first
    (1,000 is 512+256+128+64+32+8), so no padding is needed. The permutations of later rounds mix
    the blocks, and a final permutation hides the blocks.

    Stored vectors depend on the numbers drawn from `key`, so the method must not change. The stream
    is AES-256-CTR of zero bytes with a counter block of zeros, read as little-endian 64-bit words.
    Each round takes d words for its permutation, then (d + 63) // 64 words for its signs: bit
    i % 64 of word i // 64 flips number i. The last d words are for the final permutation. A
    permutation sorts the indices of its words by value (stable).

    Raises `ValueError` unless the key has 32 bytes and the dimension is at least 1.
    """

    __slots__ = ("_blocks", "dimension", "last_order", "orders", "scales")

    def __init__(self, key: bytes, dimension: int) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"The key must be {KEY_BYTES} bytes.")
        if dimension < 1:
            raise ValueError("The dimension must be at least 1.")
        self.dimension = dimension
        self._blocks = _blocks(dimension)
        flags = (dimension + 63) // 64
        words = _keystream(key, ROUNDS * (dimension + flags) + dimension)
        # The transform below is unscaled: the scales contain the square root of the block size.
        norms = np.concatenate([np.full(size, size**-0.5) for _, size in self._blocks])
        self.orders: list[NDArray[np.intp]] = []
        self.scales: list[Floats] = []
        for number in range(ROUNDS):
            first = number * (dimension + flags)
            self.orders.append(_order(words[first : first + dimension]))
            bits = words[first + dimension : first + dimension + flags].view(np.uint8)
            flipped = np.unpackbits(bits, bitorder="little")[:dimension]
            self.scales.append(((1.0 - 2.0 * flipped) * norms).astype(np.float32))
        self.last_order = _order(words[ROUNDS * (dimension + flags) :])

    def apply(self, vectors: Floats) -> Floats:
        """Return rotated copies of vectors, shape (n, d) or (d,), float32.

        O(n * d * log d) time. Raises `ValueError` if the last axis does not have length d.
        """
        if vectors.shape[-1] != self.dimension:
            raise ValueError(
                f"A vector of {vectors.shape[-1]} numbers does not fit a rotation of "
                f"{self.dimension}."
            )
        turned = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
        for order, scale in zip(self.orders, self.scales, strict=True):
            turned = turned[:, order]
            turned *= scale
            for start, size in self._blocks:
                if size > 1:
                    part = turned[:, start : start + size]
                    part[...] = _hadamard(part)
        return turned[:, self.last_order].reshape(vectors.shape)


class Blinder:
    __slots__ = ("_rotation", "_term_mac", "term_ids")

    def __init__(self, sealer: Sealer) -> None:
        make = partial(Rotation, sealer.derive_key("memory-rotation"))
        self._rotation = lru_cache(_ROTATIONS_KEPT)(make)
        self._term_mac = hmac.new(sealer.derive_key("memory-terms"), digestmod=hashlib.sha256)
        self.term_ids: dict[str, int] = {}

    def turn(self, vectors: Floats) -> Floats:
        return self._rotation(vectors.shape[-1]).apply(vectors)

    def term_id(self, stem: str) -> int:
        """Return the first 32 bits, big-endian, of HMAC-SHA256 of the stem's UTF-8."""
        found = self.term_ids.get(stem)
        if found is None:
            mac = self._term_mac.copy()
            mac.update(stem.encode())
            found = int.from_bytes(mac.digest()[:4], "big")
            if len(self.term_ids) >= MAX_TERM_IDS:
                self.term_ids.clear()
            self.term_ids[stem] = found
        return found


def _keystream(key: bytes, count: int) -> NDArray[np.uint64]:
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), dtype=_WORD)


def _order(words: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return a uniformly distributed permutation, up to equal words (about 2**-40)."""
    return np.argsort(words, kind="stable")


def _blocks(dimension: int) -> tuple[tuple[int, int], ...]:
    """Return (start, size) of blocks that are powers of two and add up to the dimension."""
    blocks: list[tuple[int, int]] = []
    start = 0
    while start < dimension:
        size = 1 << ((dimension - start).bit_length() - 1)
        blocks.append((start, size))
        start += size
    return tuple(blocks)


@lru_cache
def _matrix(size: int) -> Floats:
    """Return Sylvester's Hadamard matrix of 1 and -1, shape (size, size)."""
    index = np.arange(size)
    is_odd = np.bitwise_count(index[:, None] & index) & 1
    matrix: Floats = (1 - 2 * is_odd.astype(np.int64)).astype(np.float32)
    return matrix


def _hadamard(block: Floats) -> Floats:
    """Return the unscaled Hadamard transform of each row, shape (n, size), size a power of two.

    H(a * b) is the product of H(a), the row as a matrix (a, b), and H(b). Two such products are
    faster than a loop over the powers of two.
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
