"""Blinding: a rotation that keeps every cosine, and term ids that depend on a key."""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given
from hypothesis import strategies as st

from backend.vault import blinding
from backend.vault.blinding import ROUNDS, Blinder, Rotation
from backend.vault.sealing import Sealer, derive

KEY = bytes(range(32))
DIMENSIONS = (384, 768, 1000, 37, 1536, 3072, 1, 2, 3, 64, 65, 8192, 64 * 64 * 4)

FROZEN: list[tuple[int, str, list[float]]] = [
    (5, "9bbb8cf335b4b0bc", [0.3370999, -0.2022600, 0.0674200]),
    (37, "e58e05a539ddc6a9", [0.1013958, 0.1682415, -0.0461505]),
    (384, "cd3dcefda024e37d", [-0.0211012, -0.0067145, -0.0464725]),
    (768, "1ed0f75436381330", [-0.0492833, 0.0639173, -0.0073087]),
    (1000, "61712946fcda4c0d", [-0.0674290, -0.0055625, 0.0114467]),
    (1536, "6cfe57df8d0b3050", [0.0300115, -0.0360378, 0.0073900]),
    (3072, "ca692a49ed7abbb0", [0.0141466, -0.0033323, -0.0081414]),
]
"""A dimension, the digest of its random numbers, and the first numbers of a rotated vector."""


def made_up(count: int, dimension: int, seed: int = 1) -> Any:
    vectors = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def sealer(user_key: bytes = KEY) -> Sealer:
    return Sealer(uuid4(), {1: bytes(32)}, user_key=user_key)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_cosines_and_lengths_stay_as_they_are(dimension: int) -> None:
    vectors = made_up(40, dimension)
    turned = Rotation(KEY, dimension).apply(vectors)
    assert turned.shape == vectors.shape
    assert turned.dtype == np.float32
    exact, found = vectors.astype(np.float64), turned.astype(np.float64)
    assert np.abs(found @ found.T - exact @ exact.T).max() < 1e-6


@given(dimension=st.integers(1, 700), seed=st.integers(0, 1000))
def test_any_dimension_is_turned_without_loss(dimension: int, seed: int) -> None:
    vectors = made_up(3, dimension, seed)
    turned = Rotation(KEY, dimension).apply(vectors)
    assert np.abs(turned @ turned.T - vectors @ vectors.T).max() < 2e-6


def test_a_single_vector_and_none_at_all_are_turned_too() -> None:
    rotation, vectors = Rotation(KEY, 48), made_up(2, 48)
    assert np.allclose(rotation.apply(vectors[1]), rotation.apply(vectors)[1], atol=1e-7)
    assert rotation.apply(vectors[:0]).shape == (0, 48)


def test_the_vectors_that_were_given_are_left_alone() -> None:
    vectors = made_up(2, 48)
    before = vectors.copy()
    Rotation(KEY, 48).apply(vectors)
    assert (vectors == before).all()


@pytest.mark.parametrize("dimension", [37, 384, 1000, 3072])
def test_every_number_goes_into_every_number(dimension: int) -> None:
    one = np.zeros((dimension, dimension), dtype=np.float32)
    np.fill_diagonal(one, 1)
    matrix = Rotation(KEY, dimension).apply(one)
    if dimension > 37:
        # No number keeps its place or weight.
        assert np.abs(matrix).max() < 0.6
    assert np.abs(matrix @ matrix.T - one).max() < 1e-5
    assert (matrix != 0).mean() > 0.9


def test_two_keys_turn_the_same_vector_to_unrelated_places() -> None:
    vectors = made_up(50, 384)
    ours, theirs = (Rotation(key, 384).apply(vectors) for key in (KEY, bytes(32)))
    assert np.abs((ours * theirs).sum(axis=1)).max() < 0.3
    assert np.abs((ours * vectors).sum(axis=1)).max() < 0.3


@pytest.mark.parametrize(("dimension", "drawn", "first"), FROZEN)
def test_a_rotation_is_the_same_for_good(dimension: int, drawn: str, first: list[float]) -> None:
    """Stored vectors depend on it: if this fails, every index must be rebuilt."""
    rotation = Rotation(KEY, dimension)
    whole = hashlib.sha256()
    for order, scale in zip(rotation.orders, rotation.scales, strict=True):
        whole.update(order.astype("<i8").tobytes())
        whole.update((scale < 0).tobytes())
    whole.update(rotation.last_order.astype("<i8").tobytes())
    assert whole.hexdigest()[:16] == drawn
    counting = np.arange(1, dimension + 1)
    turned = rotation.apply((counting / np.linalg.norm(counting)).astype(np.float32))
    assert list(turned[:3]) == pytest.approx(first, abs=1e-6)


def plain_rotation(key: bytes, vector: list[float]) -> list[float]:
    """Rotate a vector as the docstring of `Rotation` describes it, in plain Python."""
    d = len(vector)
    flags = (d + 63) // 64
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(8 * (4 * d + 3 * flags)))
    words = list(struct.unpack(f"<{len(stream) // 8}Q", stream))

    def taken(count: int) -> list[int]:
        head, words[:] = words[:count], words[count:]
        return head

    def reordered(values: list[float]) -> list[float]:
        drawn = taken(d)
        return [values[i] for i in sorted(range(d), key=lambda i: drawn[i])]

    for _ in range(ROUNDS):
        vector = reordered(vector)
        signs = taken(flags)
        vector = [-x if signs[i // 64] >> (i % 64) & 1 else x for i, x in enumerate(vector)]
        mixed: list[float] = []
        while (rest := d - len(mixed)) > 0:
            size = 1 << (rest.bit_length() - 1)
            block = vector[len(mixed) : len(mixed) + size]
            mixed += [
                sum(x * (-1) ** (i & j).bit_count() for j, x in enumerate(block)) / size**0.5
                for i in range(size)
            ]
        vector = mixed
    return reordered(vector)


@pytest.mark.parametrize("dimension", [1, 6, 37, 130, 300])
def test_a_rotation_agrees_with_its_description(dimension: int) -> None:
    vector = made_up(1, dimension)[0]
    expected = plain_rotation(KEY, [float(number) for number in vector])
    assert Rotation(KEY, dimension).apply(vector) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("key", "dimension"), [(b"short", 8), (KEY, 0), (KEY, -1)])
def test_a_key_or_dimension_of_no_use_is_refused(key: bytes, dimension: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        Rotation(key, dimension)


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Rotation(KEY, 8).apply(made_up(2, 9))


def test_a_term_id_is_the_beginning_of_a_keyed_digest() -> None:
    key = derive(KEY, "memory-terms")
    expected = hmac.new(key, "drägon".encode(), hashlib.sha256).digest()[:4]
    blinder = Blinder(sealer())
    assert blinder.term_id("drägon") == int.from_bytes(expected, "big")
    assert blinder.term_id("drägon") == blinder.term_id("drägon")


def test_term_ids_stay_right_when_more_terms_came_than_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blinding, "MAX_TERM_IDS", 10)
    small, other = Blinder(sealer()), Blinder(sealer())
    words = [f"word{number}" for number in range(35)] * 2
    assert [small.term_id(word) for word in words] == [other.term_id(word) for word in words]
    assert len(small.term_ids) <= 10


def test_a_user_has_the_same_blinding_again_and_no_two_users_share_one() -> None:
    ann, again, ben = Blinder(sealer()), Blinder(sealer()), Blinder(sealer(bytes(32)))
    vectors = made_up(3, 96)
    assert (ann.turn(vectors) == again.turn(vectors)).all()
    assert not np.allclose(ann.turn(vectors), ben.turn(vectors), atol=0.01)
    words = ["dragon", "castle", "sea"]
    assert not {ann.term_id(word) for word in words} & {ben.term_id(word) for word in words}


def test_terms_and_vectors_are_blinded_under_different_keys() -> None:
    asked: list[str] = []

    class Watched(Sealer):
        def derive_key(self, purpose: str) -> bytes:
            asked.append(purpose)
            return super().derive_key(purpose)

    Blinder(Watched(uuid4(), {1: bytes(32)}, user_key=KEY))
    assert sorted(asked) == ["memory-rotation", "memory-terms"]
