"""Tests of origins: comparison, and those of the settings."""

from __future__ import annotations

import pytest

from backend.core.origins import check_origin, is_same_origin


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://a.example", "https://A.example:443", True),
        ("http://a.example", "http://a.example:80", True),
        ("http://a.example", "https://a.example", False),
        ("http://a.example:8000", "http://a.example:3000", False),
        ("null", "http://a.example", False),
        ("http://[", "http://[", False),
    ],
)
def test_origins_are_equal_if_scheme_host_and_port_are(one: str, other: str, *, same: bool) -> None:
    assert is_same_origin(one, other) is same


@pytest.mark.parametrize("text", ["*", "https://a.example", "http://localhost:3000", "tauri://app"])
def test_origins_are_accepted(text: str) -> None:
    assert check_origin(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "a.example",
        "null",
        "https://a.example/",
        "https://a@b",
        "https://a:x",
        "https://*.a.example",
        "https://",
        "**",
    ],
)
def test_other_texts_are_not_origins(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        check_origin(text)
