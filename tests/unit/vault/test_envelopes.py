"""Envelopes: opened by their secret alone, given the next user key without it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import product
from typing import get_args
from uuid import UUID

import pytest

from backend.vault import slots as envelopes
from backend.vault.root import RootKeyError, RootKeys, Wrapped
from backend.vault.sealing import SealBrokenError, derive, unseal_under
from backend.vault.slots import (
    EnvelopePlace,
    SlotKind,
    WrongSecretError,
    readdress,
    rewrap,
    unwrap,
    wrap,
)

SLOT, USER = UUID(int=1), UUID(int=2)
SECRET = b"s" * 32
KEYS = [bytes([each]) * 32 for each in range(5)]
ROOT = RootKeys({1: b"r" * 32})
KINDS: tuple[SlotKind, ...] = get_args(SlotKind)


def place(generation: int = 1, kind: SlotKind = "session") -> EnvelopePlace:
    return EnvelopePlace(kind, SLOT, USER, generation)


def direct(kind: SlotKind = "session") -> Wrapped:
    return wrap(place(1, kind), secret=SECRET, user_key=KEYS[1], root=ROOT)


def next_one(wrapped: Wrapped, generation: int, kind: SlotKind = "session") -> Wrapped:
    return readdress(
        place(generation - 1, kind),
        wrapped,
        old_key=KEYS[generation - 1],
        new_key=KEYS[generation],
        root=ROOT,
    )


def opened(
    wrapped: Wrapped, at: EnvelopePlace, *, secret: bytes = SECRET, root: RootKeys = ROOT
) -> bytes:
    return unwrap(at, wrapped, secret=secret, root=root).user_key


def addressed() -> Wrapped:
    return next_one(direct(), 2)


FORMS: dict[str, Callable[[], Wrapped]] = {
    "direct": direct,
    "addressed": addressed,
}
GENERATIONS = {"direct": 1, "addressed": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_the_secret_opens_every_generation(kind: SlotKind) -> None:
    wrapped = direct(kind)
    for generation in (1, 2, 3, 4):
        if generation > 1:
            wrapped = next_one(wrapped, generation, kind)
        assert opened(wrapped, place(generation, kind)) == KEYS[generation]


def test_what_was_just_wrapped_opens_directly_and_what_was_sent_does_not() -> None:
    for form, make in FORMS.items():
        wrapped = make()
        at = place(GENERATIONS[form])
        found = unwrap(at, wrapped, secret=SECRET, root=ROOT)
        assert found.is_direct == (form == "direct")


@pytest.mark.parametrize("form", FORMS)
def test_no_other_secret_opens_it(form: str) -> None:
    wrapped = FORMS[form]()
    for other in (bytes(32), KEYS[0], KEYS[1], KEYS[2], secrets.token_bytes(32)):
        with pytest.raises(WrongSecretError):
            opened(wrapped, place(GENERATIONS[form]), secret=other)


@pytest.mark.parametrize("form", FORMS)
def test_an_envelope_that_was_changed_anywhere_does_not_open(form: str) -> None:
    version, blob = FORMS[form]()
    for at in range(len(blob)):
        flipped = bytearray(blob)
        flipped[at] ^= 1
        for damaged in (bytes(flipped), blob[:at]):
            with pytest.raises(WrongSecretError):
                opened(Wrapped(version, damaged), place(GENERATIONS[form]))
            with pytest.raises(SealBrokenError):
                readdress(
                    place(GENERATIONS[form]),
                    Wrapped(version, damaged),
                    old_key=KEYS[GENERATIONS[form]],
                    new_key=KEYS[4],
                    root=ROOT,
                )


def test_an_envelope_cannot_be_passed_off_as_another() -> None:
    places = [
        EnvelopePlace(*each)
        for each in product(KINDS, (SLOT, UUID(int=3)), (USER, UUID(int=4)), (1, 2))
    ]
    for made_for in places:
        wrapped = wrap(made_for, secret=SECRET, user_key=KEYS[1], root=ROOT)
        for other in places:
            if other != made_for:
                with pytest.raises(WrongSecretError):
                    opened(wrapped, other)


def test_who_has_the_old_user_key_and_the_root_key_does_not_get_the_next_one() -> None:
    wrapped = next_one(direct(), 2)
    content = ROOT.unwrap(wrapped, context=place(2).context(), purpose="envelope")
    assert KEYS[2] not in content
    for key in (KEYS[1], derive(KEYS[1], "envelope"), derive(KEYS[1], "slot/session")):
        with pytest.raises(SealBrokenError):
            unseal_under(key, content[1:61], context=place(2).context())
        with pytest.raises(WrongSecretError):
            opened(wrapped, place(2), secret=key)


def test_the_next_user_key_is_sent_only_to_a_public_key_that_the_present_one_sealed() -> None:
    """A database writer with the root key puts in an envelope of their own."""
    mine = wrap(place(1), secret=b"m" * 32, user_key=KEYS[3], root=ROOT)
    with pytest.raises(SealBrokenError):
        next_one(mine, 2)


def test_without_the_root_key_neither_the_secret_nor_a_user_key_opens_it() -> None:
    wrapped = direct()
    other = RootKeys({1: b"x" * 32})
    with pytest.raises(WrongSecretError):
        opened(wrapped, place(1), root=other)
    with pytest.raises(SealBrokenError):
        readdress(
            place(1),
            wrapped,
            old_key=KEYS[1],
            new_key=KEYS[2],
            root=other,
        )
    with pytest.raises(RootKeyError, match="version 1 is missing"):
        opened(wrapped, place(1), root=RootKeys({2: b"r" * 32}))


@pytest.mark.parametrize("form", FORMS)
def test_a_new_root_key_takes_over_an_envelope(form: str) -> None:
    both = RootKeys({1: b"r" * 32, 2: b"n" * 32})
    at = place(GENERATIONS[form])
    before = FORMS[form]()
    after = rewrap(at, before, root=both)
    assert after.root_version == 2
    assert opened(after, at, root=RootKeys({2: b"n" * 32})) == KEYS[GENERATIONS[form]]
    with pytest.raises(RootKeyError):
        opened(after, at)


def test_envelopes_have_the_sizes_that_they_are_described_with() -> None:
    sizes = {form: len(make().blob) - 28 for form, make in FORMS.items()}
    assert sizes == {"direct": 121, "addressed": 141}
    assert envelopes.SEALED_KEY_BYTES == 60
