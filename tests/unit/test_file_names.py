"""Names of users as file names, on every system alike."""

from __future__ import annotations

import pytest

from backend.core.files import file_stem, portable_paths


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("Marlena", "Marlena"),
        ("CON", "tale"),
        ("aux.json", "tale"),
        ("com¹", "tale"),
        ("nul .txt", "tale"),
        ("CONSTANCE", "CONSTANCE"),
        ("a:b", "a b"),
        ("../../etc/passwd", "etc passwd"),
        ("trailing dots... ", "trailing dots"),
        ("...", "tale"),
        ("", "tale"),
        ("two\nlines\x00", "two lines"),
        ("\u202egnp.exe", "gnp.exe"),
        ("日本", "日本"),
    ],
)
def test_a_name_becomes_a_stem_that_every_system_can_have(name: str, stem: str) -> None:
    assert file_stem(name, fallback="tale") == stem


@pytest.mark.parametrize("letter", ["a", "日", "😀"])
def test_a_long_name_is_cut(letter: str) -> None:
    stem = file_stem(300 * letter, fallback="tale")

    assert 40 < len(stem) <= 80
    assert len(f"{stem}.json".encode()) < 255


def test_paths_of_an_archive_can_be_unpacked_everywhere_and_good_ones_stay() -> None:
    long = "long" * 100
    wanted = [
        "assets/icon/main.png",
        "assets/CON/aux.png",
        "assets/a:b?.png",
        "dots./spaces /x",
        "assets/Icon/MAIN.png",
        f"assets/{long}.webp",
        "a//b",
    ]
    assert list(portable_paths(wanted).values()) == [
        "assets/icon/main.png",
        "assets/_CON/_aux.png",
        "assets/a_b_.png",
        "dots/spaces/x",
        "assets/Icon/MAIN-2.png",
        f"assets/{long[:195]}.webp",
        "a/_/b",
    ]
