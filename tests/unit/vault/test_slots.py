"""Key slots: passwords, tokens and recovery codes."""

from __future__ import annotations

import base64
import hashlib
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from backend.vault.slots import (
    DEFAULT_KDF,
    PasswordKdf,
    hash_for_lookup,
    make_recovery_code,
    make_token,
    parse_recovery_code,
    parse_token,
)

CHEAP = PasswordKdf(salt=b"salt" * 4, memory_kib=64, passes=1, lanes=1)

SECRET = b"s" * 32
secrets = st.binary(min_size=32, max_size=32)
untimed = settings(deadline=None, database=None)


def test_equal_passwords_of_two_accounts_have_nothing_in_common() -> None:
    one, other = CHEAP.renew_salt(), CHEAP.renew_salt()
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


def test_a_new_password_has_the_documented_cost() -> None:
    assert (DEFAULT_KDF.memory_kib, DEFAULT_KDF.passes, DEFAULT_KDF.lanes) == (65_536, 3, 4)


def test_a_token_names_its_kind_and_carries_256_bits() -> None:
    token, secret = make_token("tk_")
    assert re.fullmatch(r"tk_[A-Za-z0-9_-]{43}", token)
    assert len(secret) == 32
    assert parse_token(token, "tk_") == secret
    assert make_token("tk_")[0] != token


def test_only_a_hash_of_a_token_is_stored() -> None:
    assert hash_for_lookup(SECRET) == hashlib.sha256(SECRET).digest()


def test_a_token_of_another_kind_is_none() -> None:
    token, _ = make_token("ts_")
    assert parse_token(token, "tk_") is None
    assert parse_token(token.removeprefix("ts_"), "ts_") is None


def test_a_token_cut_short_or_drawn_out_is_none() -> None:
    token, _ = make_token("ts_")
    for cut in range(len(token)):
        assert parse_token(token[:cut], "ts_") is None
    assert parse_token(token + "A", "ts_") is None
    assert parse_token(token + "AAAA", "ts_") is None
    assert parse_token(token[:-1] + "*", "ts_") is None
    assert parse_token(token + "\n", "ts_") is None


def test_a_recovery_code_can_be_written_down() -> None:
    code, secret = make_recovery_code()
    assert re.fullmatch(r"[A-Z2-7]{4}(-[A-Z2-7]{4}){12}", code)
    assert parse_recovery_code(code) == secret
    assert make_recovery_code()[0] != code


@untimed
@given(
    secrets,
    st.lists(st.sampled_from((0, 1, 2)), min_size=52, max_size=52),
    st.lists(st.sampled_from(("", "-", " ", "--", "\n", " - ")), min_size=52, max_size=52),
)
def test_a_recovery_code_is_read_in_every_spelling(
    secret: bytes, forms: list[int], gaps: list[str]
) -> None:
    letters = base64.b32encode(secret).decode().rstrip("=")
    alike = {"O": "Oo0", "I": "Ii1", "B": "Bb8"}
    typed = "".join(
        alike.get(letter, letter + letter.lower() * 2)[form] + gap
        for letter, form, gap in zip(letters, forms, gaps, strict=True)
    )
    assert parse_recovery_code(typed) == secret


def test_invalid_recovery_codes_are_none() -> None:
    long = ["ABCD-" * 12, "ABCD-" * 14, "ABC9-" * 13, "ABC?-" * 13, "ÄBCD-" * 13]
    assert {parse_recovery_code(typed) for typed in ("", "-", "ABCD", "=" * 8, *long)} == {None}


def test_a_recovery_code_with_one_letter_wrong_is_another_secret() -> None:
    code, secret = make_recovery_code()
    for place in range(len(code) - 1):  # the last letter carries one bit alone
        if code[place] != "-":
            wrong = "A" if code[place] != "A" else "B"
            assert parse_recovery_code(code[:place] + wrong + code[place + 1 :]) not in {
                None,
                secret,
            }


@untimed
@given(st.text())
def test_any_text_can_be_parsed_as_a_token_or_a_recovery_code(text: str) -> None:
    for secret in (
        parse_recovery_code(text),
        parse_token(text, "ts_"),
        parse_token(f"ts_{text}", "ts_"),
    ):
        assert secret is None or len(secret) == 32
