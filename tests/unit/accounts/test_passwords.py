from __future__ import annotations

import unicodedata

import pytest

from backend.accounts.auth.credentials import check_password
from backend.accounts.auth.names import normalise_name
from backend.accounts.errors import WeakPasswordError


@pytest.mark.parametrize(
    "password", ["eight ch", "x" * 6 + "yz", "ключ от дома", "è" * 8, "a b " * 64]
)
def test_any_characters_will_do_from_8_to_256(password: str) -> None:
    assert check_password(password, name="ada") == password


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("", "at least 8"),
        ("seven c", "at least 8"),
        ("a b " * 64 + "c", "at most 256"),
        ("password", "very common password"),
        ("PassWord", "very common password"),
        ("12345678", "very common password"),
        ("Ada Lovelace", "very common password"),
        (" ada lovelace".strip(), "very common password"),
    ],
)
def test_what_is_refused_says_why(password: str, why: str) -> None:
    with pytest.raises(WeakPasswordError, match=why):
        check_password(password, name="Ada Lovelace")


def test_the_length_is_that_of_what_will_be_typed_on_any_keyboard() -> None:
    composed, decomposed = "zoë" * 3, unicodedata.normalize("NFD", "zoë" * 3)
    assert composed != decomposed
    assert check_password(decomposed, name="ada") == composed
    with pytest.raises(WeakPasswordError):
        check_password(unicodedata.normalize("NFD", "ë" * 7), name="ada")


@pytest.mark.parametrize(
    "name", ["Zoë", "zoë", "ZOË", " Zoë ", "Zoe\u0308", "ＺＯＥ\u0308", "\u3000zoë"]
)
def test_a_name_is_the_same_however_it_is_written(name: str) -> None:
    assert normalise_name(name) == normalise_name("zoë")


def test_names_that_differ_stay_apart() -> None:
    assert normalise_name("zoe") != normalise_name("zoë")
