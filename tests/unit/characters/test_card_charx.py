from __future__ import annotations

import base64
import io
import json
import stat
import struct
import zipfile
from typing import Any

import pytest

from backend.characters.cards.charx import pack
from backend.characters.cards.model import ARCHIVE_BYTES, ARCHIVE_ENTRIES, ARCHIVE_RATIO
from backend.characters.cards.reader import read_card
from backend.characters.errors import CardError, CardLimitError

ICON = b"\x89PNG the icon"
FACE = b"\x89PNG the face"
NOISE = bytes(range(256)) * 4_096
"""A megabyte that is small when it is packed, and not that small."""


def card(*assets: dict[str, str]) -> bytes:
    data: dict[str, Any] = {"name": "Magda", "assets": list(assets)}
    return json.dumps({"spec": "chara_card_v3", "spec_version": "3.0", "data": data}).encode()


def icon(uri: str, name: str = "main") -> dict[str, str]:
    return {"type": "icon", "uri": uri, "name": name, "ext": "png"}


def archive(*entries: tuple[zipfile.ZipInfo | str, bytes], packed: bool = True) -> bytes:
    target = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(target, "w", method) as written:
        for name, data in entries:
            written.writestr(name, data)
    return target.getvalue()


def charx(*entries: tuple[zipfile.ZipInfo | str, bytes], packed: bool = True) -> bytes:
    return archive(("card.json", card()), *entries, packed=packed)


def test_bytes_before_the_archive_are_skipped() -> None:
    data = b"\xff\xd8\xff\xe0 a JPEG picture \xff\xd9" + charx(("a.png", ICON))
    assert read_card(data).assets[0].data == ICON


@pytest.mark.parametrize("scheme", ["embeded://", "embedded://", "Embeded://"])
def test_the_main_icon_is_found_in_either_spelling(scheme: str) -> None:
    data = archive(
        ("card.json", card(icon(scheme + "b.png", "side"), icon(scheme + "a.png"))),
        ("a.png", ICON),
        ("b.png", FACE),
    )
    imported = read_card(data)
    assert imported.avatar == ICON
    assert imported.warnings == []


def test_a_main_icon_in_a_data_uri_is_decoded() -> None:
    uri = "data:image/png;base64," + base64.b64encode(ICON).decode()
    assert read_card(archive(("card.json", card(icon(uri))))).avatar == ICON
    assert read_card(card(icon(uri))).avatar == ICON


@pytest.mark.parametrize("uri", ["data:image/png;base64,A", "data:nothing", "ccdefault:", ""])
def test_an_icon_that_holds_no_picture_is_none(uri: str) -> None:
    assert read_card(archive(("card.json", card(icon(uri))))).avatar is None


def test_another_icon_is_used_if_the_main_one_is_missing() -> None:
    assets = (icon("https://example.invalid/a.png"), icon("embeded://b.png", "side"))
    imported = read_card(archive(("card.json", card(*assets)), ("b.png", FACE)))
    assert imported.avatar == FACE
    assert imported.warnings == ["The file does not contain every asset of the card: 1 is missing."]


def test_files_that_the_card_does_not_name_are_kept() -> None:
    imported = read_card(charx(("module.risum", b"1"), ("x/page.html", b"2"), ("x/a.svg", b"3")))
    assert [(asset.path, asset.media_type) for asset in imported.assets] == [
        ("module.risum", "application/octet-stream"),
        ("x/page.html", "application/octet-stream"),
        ("x/a.svg", "application/octet-stream"),
    ]


def test_folders_are_no_assets() -> None:
    assert read_card(charx(("assets/", b""), ("other\\", b""))).assets == []


def test_backslashes_in_a_harmless_path_are_slashes() -> None:
    assert read_card(charx(("assets\\icon\\a.png", ICON))).assets[0].path == "assets/icon/a.png"


@pytest.mark.parametrize(
    "path",
    [
        "../evil.png",
        "assets/../../evil.png",
        "..",
        "/etc/passwd",
        "C:\\Windows\\evil.dll",
        "c:evil.dll",
        "..\\evil.dll",
        "\\\\server\\share\\evil.dll",
    ],
)
def test_a_path_that_leads_out_of_the_archive_is_refused(path: str) -> None:
    with pytest.raises(CardError, match="path outside the archive"):
        read_card(charx((path, b"x")))


def test_a_path_with_a_nul_is_refused() -> None:
    data = charx(("a.png?.exe", b"x")).replace(b"a.png?.exe", b"a.png\0.exe")
    with pytest.raises(CardError, match="path outside the archive"):
        read_card(data)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(kind: int) -> None:
    entry = zipfile.ZipInfo("link.png")
    entry.external_attr = (kind | 0o777) << 16
    with pytest.raises(CardError, match="a link or another special file"):
        read_card(charx((entry, b"/etc/passwd")))


def test_an_encrypted_entry_is_refused() -> None:
    data = bytearray(charx(("a.png", ICON)))
    local, central = data.index(b"PK\x03\x04"), data.index(b"PK\x01\x02")
    data[local + 6] |= 1
    data[central + 8] |= 1
    with pytest.raises(CardError, match="encrypted"):
        read_card(bytes(data))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_than_deflate_are_refused(method: int) -> None:
    entry = zipfile.ZipInfo("a.png")
    entry.compress_type = method
    with pytest.raises(CardError, match="a compression other than deflate"):
        read_card(charx((entry, ICON)))


def test_two_entries_of_one_name_are_refused() -> None:
    data = charx(("a.png", ICON), ("b.png", FACE)).replace(b"b.png", b"a.png")
    with pytest.raises(CardError, match="two entries of the same name"):
        read_card(data)


def test_a_thousand_entries_are_read_and_one_more_is_refused() -> None:
    entries = [(f"{n}.txt", b"x") for n in range(ARCHIVE_ENTRIES.allowed - 1)]
    assert len(read_card(charx(*entries)).assets) == 999
    with pytest.raises(CardLimitError) as caught:
        read_card(charx(*entries, ("one-more.txt", b"x")))
    assert caught.value.extra == {"limit": "archive_entries", "allowed": 1_000, "found": 1_001}


def test_a_zip_bomb_is_refused_by_its_ratio() -> None:
    data = charx(("bomb.bin", bytes(50_000_000)))
    assert len(data) < 100_000
    with pytest.raises(CardLimitError) as caught:
        read_card(data)
    assert caught.value.extra == {"limit": "archive_ratio", "allowed": 100, "found": 101}


def test_a_zip_bomb_with_ballast_is_refused_by_its_size() -> None:
    ballast = zipfile.ZipInfo("ballast.bin")
    data = charx((ballast, NOISE * 2), ("bomb.bin", bytes(ARCHIVE_BYTES.allowed)))
    with pytest.raises(CardLimitError) as caught:
        read_card(data)
    assert caught.value.limit == "archive_bytes"
    assert caught.value.found <= ARCHIVE_BYTES.allowed + 64 * 1024


def test_a_flat_picture_may_be_packed_tightly_in_a_larger_archive() -> None:
    stored = zipfile.ZipInfo("noise.bin")
    flat = bytes(1_000_000)
    imported = read_card(charx((stored, NOISE), ("flat.bmp", flat)))
    assert imported.assets[1].data == flat


def _lie_about_size(data: bytes, size: int) -> bytes:
    lying = bytearray(data)
    central = lying.rindex(b"PK\x01\x02")
    struct.pack_into("<I", lying, central + 24, size)
    local = lying.rindex(b"PK\x03\x04")
    struct.pack_into("<I", lying, local + 22, size)
    return bytes(lying)


@pytest.mark.parametrize("size", [0, 10, 3_000_000_000])
def test_a_header_that_lies_about_the_size_is_found_out(size: int) -> None:
    data = _lie_about_size(charx(("a.bin", NOISE)), size)
    with pytest.raises(CardError):
        read_card(data)


def test_a_false_size_in_a_header_is_an_error_and_no_limit() -> None:
    data = _lie_about_size(charx(("a.bin", b"small")), ARCHIVE_RATIO.allowed * 10_000_000)
    with pytest.raises(CardError) as caught:
        read_card(data)
    assert caught.value.slug == "unreadable-card"


def test_an_archive_without_a_card_is_refused_with_words_for_it() -> None:
    with pytest.raises(CardError, match=r"there is no card\.json at its root"):
        read_card(archive(("folder/card.json", card())))


def test_a_card_in_the_archive_has_the_limits_of_any_json() -> None:
    with pytest.raises(CardLimitError) as caught:
        read_card(archive(("card.json", b"[" * 100), packed=False))
    assert caught.value.limit == "json_depth"


def test_a_cut_archive_is_called_broken() -> None:
    data = charx(("a.png", ICON))
    for cut in range(4, len(data) - 1, 7):
        with pytest.raises(CardError, match="broken"):
            read_card(data[:cut])


def test_packing_is_the_same_for_the_same_files() -> None:
    files = {"card.json": card(), "a.png": ICON}
    assert pack(files) == pack(dict(files))
    assert read_card(pack(files)).assets[0].data == ICON
