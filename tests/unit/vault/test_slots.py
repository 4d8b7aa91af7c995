"""Key slots: what opens them, what does not, and the secrets that people hold in their hands."""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import product
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.vault.root import RootKeyError, RootKeys
from backend.vault.slots import (
    DEFAULT_KDF,
    PasswordKdf,
    SlotKind,
    WrongSecretError,
    lookup_hash,
    new_recovery_code,
    new_token,
    recovery_secret,
    rewrap_password,
    token_secret,
    unwrap_with_password,
    unwrap_with_secret,
    wrap_with_password,
    wrap_with_secret,
)

SLOT, USER = UUID(int=1), UUID(int=2)
USER_KEY, SECRET = b"u" * 32, b"s" * 32
ROOT = RootKeys({1: b"r" * 32})
CHEAP = PasswordKdf(salt=b"salt" * 4, memory_kib=64, passes=1, lanes=1)
KINDS: tuple[SlotKind, ...] = get_args(SlotKind)

untimed = settings(deadline=None, database=None)
secrets = st.binary(min_size=32, max_size=32)


def password_slot(
    *, password: str = "correct horse", root: RootKeys = ROOT, slot_id: UUID = SLOT
) -> tuple[int, bytes]:
    return wrap_with_password(
        slot_id, USER, stretched=CHEAP.stretch(password), user_key=USER_KEY, root=root
    )


def open_password_slot(
    slot: tuple[int, bytes],
    *,
    password: str = "correct horse",
    root: RootKeys = ROOT,
    slot_id: UUID = SLOT,
    user_id: UUID = USER,
) -> bytes:
    version, blob = slot
    return unwrap_with_password(
        slot_id,
        user_id,
        stretched=CHEAP.stretch(password),
        blob=blob,
        root_version=version,
        root=root,
    )


@untimed
@given(st.sampled_from(KINDS), st.uuids(), st.uuids(), secrets, secrets)
def test_a_slot_gives_the_user_key_to_whoever_has_its_secret(
    kind: SlotKind, slot_id: UUID, user_id: UUID, secret: bytes, user_key: bytes
) -> None:
    blob = wrap_with_secret(kind, slot_id, user_id, secret=secret, user_key=user_key)

    assert unwrap_with_secret(kind, slot_id, user_id, secret=secret, blob=blob) == user_key


def test_a_slot_opens_with_its_own_secret_alone() -> None:
    blob = wrap_with_secret("session", SLOT, USER, secret=SECRET, user_key=USER_KEY)

    for bit in range(256):
        wrong = (int.from_bytes(SECRET, "big") ^ (1 << bit)).to_bytes(32, "big")
        with pytest.raises(WrongSecretError):
            unwrap_with_secret("session", SLOT, USER, secret=wrong, blob=blob)


def test_a_slot_that_was_changed_anywhere_does_not_open() -> None:
    blob = wrap_with_secret("session", SLOT, USER, secret=SECRET, user_key=USER_KEY)

    for place in range(len(blob)):
        flipped = bytearray(blob)
        flipped[place] ^= 1
        for damaged in (bytes(flipped), blob[:place]):
            with pytest.raises(WrongSecretError):
                unwrap_with_secret("session", SLOT, USER, secret=SECRET, blob=damaged)


def test_a_slot_cannot_be_passed_off_as_another() -> None:
    places = list(product(KINDS, (SLOT, UUID(int=3)), (USER, UUID(int=4))))

    for made_for in places:
        blob = wrap_with_secret(*made_for, secret=SECRET, user_key=USER_KEY)
        for place in places:
            if place == made_for:
                continue
            with pytest.raises(WrongSecretError):
                unwrap_with_secret(*place, secret=SECRET, blob=blob)


def test_the_password_opens_its_slot() -> None:
    assert open_password_slot(password_slot()) == USER_KEY


@pytest.mark.parametrize("wrong", ["correct horsf", "Correct horse", "correct horse ", ""])
def test_a_wrong_password_opens_nothing(wrong: str) -> None:
    slot = password_slot()

    with pytest.raises(WrongSecretError):
        open_password_slot(slot, password=wrong)


def test_a_stolen_table_cannot_even_be_guessed_at_without_the_root_key() -> None:
    version, blob = password_slot()

    with pytest.raises(WrongSecretError):
        unwrap_with_secret("password", SLOT, USER, secret=CHEAP.stretch("correct horse"), blob=blob)
    with pytest.raises(RootKeyError):
        open_password_slot((version, blob), root=RootKeys({1: b"x" * 32}))
    with pytest.raises(RootKeyError):
        open_password_slot((version, blob), root=RootKeys({2: b"r" * 32}))


def test_the_root_key_alone_opens_no_password_slot() -> None:
    version, blob = password_slot()

    inner = ROOT.unwrap(version, blob, context=b"slot/password/" + SLOT.bytes + USER.bytes)

    assert USER_KEY not in inner
    with pytest.raises(WrongSecretError):
        unwrap_with_secret("password", SLOT, USER, secret=b"r" * 32, blob=inner)


def test_a_password_slot_cannot_be_moved_to_another_account() -> None:
    slot = password_slot()

    with pytest.raises(RootKeyError):
        open_password_slot(slot, user_id=UUID(int=9))
    with pytest.raises(RootKeyError):
        open_password_slot(slot, slot_id=UUID(int=9))


def test_a_new_root_key_takes_over_a_password_slot_without_the_password() -> None:
    both = RootKeys({1: b"r" * 32, 2: b"n" * 32})
    version, blob = password_slot()

    rewrapped = rewrap_password(SLOT, USER, blob=blob, root_version=version, root=both)

    assert rewrapped[0] == 2
    assert open_password_slot(rewrapped, root=RootKeys({2: b"n" * 32})) == USER_KEY
    with pytest.raises(RootKeyError):
        open_password_slot(rewrapped, root=ROOT)
    with pytest.raises(WrongSecretError):
        open_password_slot(rewrapped, root=both, password="wrong")


def test_equal_passwords_of_two_accounts_have_nothing_in_common() -> None:
    one, other = CHEAP.fresh(), CHEAP.fresh()

    assert one.salt != other.salt
    assert len(one.salt) == 16
    assert one.stretch("correct horse") != other.stretch("correct horse")
    assert one == PasswordKdf(salt=one.salt, memory_kib=64, passes=1, lanes=1)


def test_every_cost_of_the_password_counts() -> None:
    costs = [
        CHEAP,
        PasswordKdf(salt=CHEAP.salt, memory_kib=128, passes=1, lanes=1),
        PasswordKdf(salt=CHEAP.salt, memory_kib=64, passes=2, lanes=1),
        PasswordKdf(salt=CHEAP.salt, memory_kib=64, passes=1, lanes=2),
    ]

    assert len({kdf.stretch("correct horse") for kdf in costs}) == 4


def test_a_new_password_costs_what_the_design_promises() -> None:
    assert (DEFAULT_KDF.memory_kib, DEFAULT_KDF.passes, DEFAULT_KDF.lanes) == (65_536, 3, 4)


def test_a_token_names_its_kind_and_carries_256_bits() -> None:
    token, secret = new_token("tk_")

    assert re.fullmatch(r"tk_[A-Za-z0-9_-]{43}", token)
    assert len(secret) == 32
    assert token_secret(token, "tk_") == secret
    assert new_token("tk_")[0] != token


def test_what_the_table_keeps_of_a_token_is_a_hash() -> None:
    assert lookup_hash(SECRET) == hashlib.sha256(SECRET).digest()


def test_a_token_of_another_kind_is_none() -> None:
    token, _ = new_token("ts_")

    assert token_secret(token, "tk_") is None
    assert token_secret(token.removeprefix("ts_"), "ts_") is None


def test_a_token_cut_short_or_drawn_out_is_none() -> None:
    token, _ = new_token("ts_")

    for cut in range(len(token)):
        assert token_secret(token[:cut], "ts_") is None
    assert token_secret(token + "A", "ts_") is None
    assert token_secret(token + "AAAA", "ts_") is None
    assert token_secret(token[:-1] + "*", "ts_") is None
    assert token_secret(token + "\n", "ts_") is None


@untimed
@given(st.text())
def test_whatever_is_sent_as_a_token_is_answered_without_an_error(text: str) -> None:
    for candidate in (text, "ts_" + text):
        secret = token_secret(candidate, "ts_")
        assert secret is None or len(secret) == 32


def test_a_recovery_code_can_be_written_down() -> None:
    code, secret = new_recovery_code()

    assert re.fullmatch(r"[A-Z2-7]{4}(-[A-Z2-7]{4}){12}", code)
    assert recovery_secret(code) == secret
    assert new_recovery_code()[0] != code


@untimed
@given(
    secrets,
    st.lists(st.sampled_from((0, 1, 2)), min_size=52, max_size=52),
    st.lists(st.sampled_from(("", "-", " ", "--", "\n", " - ")), min_size=52, max_size=52),
)
def test_a_recovery_code_is_read_however_it_was_typed(
    secret: bytes, forms: list[int], gaps: list[str]
) -> None:
    letters = base64.b32encode(secret).decode().rstrip("=")
    alike = {"O": "Oo0", "I": "Ii1", "B": "Bb8"}
    typed = "".join(
        alike.get(letter, letter + letter.lower() * 2)[form] + gap
        for letter, form, gap in zip(letters, forms, gaps, strict=True)
    )

    assert recovery_secret(typed) == secret


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "-",
        "ABCD",
        "ABCD-" * 12,
        "ABCD-" * 14,
        "ABC9-" * 13,
        "ABC?-" * 13,
        "ÄBCD-" * 13,
        "=" * 8,
    ],
)
def test_what_is_no_recovery_code_is_none(typed: str) -> None:
    assert recovery_secret(typed) is None


def test_a_recovery_code_with_one_letter_wrong_is_another_secret() -> None:
    code, secret = new_recovery_code()

    for place in range(len(code) - 1):  # the last letter carries one bit alone
        if code[place] != "-":
            wrong = "A" if code[place] != "A" else "B"
            assert recovery_secret(code[:place] + wrong + code[place + 1 :]) not in {None, secret}


@untimed
@given(st.text())
def test_whatever_is_typed_as_a_recovery_code_is_answered_without_an_error(typed: str) -> None:
    secret = recovery_secret(typed)

    assert secret is None or len(secret) == 32
