"""Trees of files: names, links, bombs and limits."""

from __future__ import annotations

import io
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from backend.transfer import trees
from backend.transfer.errors import TransferFileError
from backend.transfer.trees import FolderTree, SingleFileTree, ZipTree, open_file, open_path
from backend.vault.sealed_files import SealedFileReader, SealedFileWriter
from backend.vault.sealing import Column, Sealer
from tests.support.zips import zipped


def tree_of(files: Mapping[str, bytes | str]) -> ZipTree:
    return ZipTree(io.BytesIO(zipped(files)), "test.zip")


def reasons(tree: trees.SafeTree) -> dict[str, str]:
    return {each.path: each.reason for each in tree.refused}


def test_a_zip_lists_and_reads_its_files() -> None:
    tree = tree_of({"a.txt": b"one", "folder/b.txt": b"two", "folder/": b""})
    assert tree.list_paths() == ("a.txt", "folder/b.txt")
    assert tree.get_size("folder/b.txt") == 3
    with tree.open("folder/b.txt") as file:
        assert file.read() == b"two"
    with pytest.raises(TransferFileError):
        tree.open("c.txt")


@pytest.mark.parametrize(
    "name", ["../a", "a/../../b", "/a", "\\a", "C:/a", "c:\\a", "..", "a/..", "\\\\host\\share\\a"]
)
def test_a_path_outside_the_zip_is_refused(name: str) -> None:
    tree = tree_of({name: b"x", "kept.txt": b"y"})
    assert tree.list_paths() == ("kept.txt",)
    assert list(reasons(tree).values()) == ["The path leaves the zip file."]


@pytest.mark.parametrize(
    ("name", "path"),
    [("a\\b\\c.txt", "a/b/c.txt"), ("./a//b.txt", "a/b.txt"), ("a/./b.txt", "a/b.txt")],
)
def test_paths_are_normalised(name: str, path: str) -> None:
    assert tree_of({name: b"x"}).list_paths() == (path,)


def test_a_name_with_a_nul_is_refused() -> None:
    data = zipped({"axb.txt": b"x"}).replace(b"axb.txt", b"a\0b.txt")
    tree = ZipTree(io.BytesIO(data), "test.zip")
    assert tree.list_paths() == ()
    assert len(tree.refused) == 1


def test_of_two_entries_with_one_path_the_first_counts() -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("a\\b.txt", b"first")
        archive.writestr("a/b.txt", b"second")
    tree = ZipTree(target, "test.zip")
    with tree.open("a/b.txt") as file:
        assert file.read() == b"first"
    assert reasons(tree) == {"a/b.txt (2)": "The zip file has two entries of the same name."}


def test_files_of_operating_systems_are_ignored() -> None:
    names = (".DS_Store", "__MACOSX/._a.txt", "b/Thumbs.db", "desktop.ini", "a.txt", "._a.txt")
    assert tree_of(dict.fromkeys(names, b"x")).list_paths() == ("a.txt",)


def test_names_in_utf8_without_the_flag_are_read_as_such() -> None:
    name = "Café ☕.json".encode()
    data = zipped({"x" * len(name): b"x"}).replace(b"x" * len(name), name)
    assert ZipTree(io.BytesIO(data), "test.zip").list_paths() == ("Café ☕.json",)


def test_names_in_another_encoding_are_kept_somehow() -> None:
    name = "Caf\xe9.json".encode("latin-1")
    data = zipped({"y" * len(name): b"x"}).replace(b"y" * len(name), name)
    tree = ZipTree(io.BytesIO(data), "test.zip")
    [path] = tree.list_paths()
    assert path.startswith("Caf")
    path.encode()
    with tree.open(path) as file:
        assert file.read() == b"x"


def test_the_unicode_name_of_info_zip_is_used() -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        entry = zipfile.ZipInfo("?.txt")
        body = struct.pack("<BI", 1, zlib.crc32(b"?.txt")) + "☕.txt".encode()
        entry.extra = struct.pack("<HH", 0x7075, len(body)) + body
        archive.writestr(entry, b"x")
    assert ZipTree(target, "test.zip").list_paths() == ("☕.txt",)


def test_an_encrypted_entry_is_refused_by_name() -> None:
    data = bytearray(zipped({"a.txt": b"x"}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    tree = ZipTree(io.BytesIO(bytes(data)), "test.zip")
    assert "encrypted" in reasons(tree)["a.txt"]


def test_an_unknown_compression_is_refused_by_name() -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.txt", b"x")
    tree = ZipTree(target, "test.zip")
    assert "unsupported compression (method 14)" in reasons(tree)["a.txt"]


def test_a_link_in_a_zip_is_refused() -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        entry = zipfile.ZipInfo("link")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, b"/etc/passwd")
    assert "link" in reasons(ZipTree(target, "test.zip"))["link"]


def test_a_bomb_is_refused_before_it_is_read() -> None:
    tree = tree_of({"bomb.json": b"\0" * (trees.FREE_BYTES + 1), "a.txt": b"x"})
    assert tree.list_paths() == ("a.txt",)
    assert "1/200" in reasons(tree)["bomb.json"]


def lie(data: bytes, size: int) -> bytes:
    """A zip whose headers say that its only entry has `size` bytes."""
    found = bytearray(data)
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", found, found.index(mark) + offset, size)
    return bytes(found)


@pytest.mark.parametrize("size", [10, 5_000])
def test_a_header_that_lies_about_the_size_is_found_out(size: int) -> None:
    data = lie(zipped({"a.txt": b"x" * 1_000}), size)
    tree = ZipTree(io.BytesIO(data), "test.zip")
    with pytest.raises(TransferFileError), tree.open("a.txt") as file:
        file.read()


def test_a_damaged_entry_is_found_out_and_harms_no_other() -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("a.txt", b"aaaaaaaa")
        archive.writestr("b.txt", b"bbbbbbbb")
    data = target.getvalue().replace(b"aaaaaaaa", b"aaaaXaaa")
    tree = ZipTree(io.BytesIO(data), "test.zip")
    with pytest.raises(TransferFileError), tree.open("a.txt") as file:
        file.read()
    with tree.open("b.txt") as file:
        assert file.read() == b"bbbbbbbb"


@pytest.mark.parametrize("length", [0, 10, 50])
def test_a_cut_zip_is_broken_as_a_whole(length: int) -> None:
    with pytest.raises(TransferFileError, match="broken"):
        ZipTree(io.BytesIO(zipped({"a.txt": b"x" * 100})[:length]), "test.zip")


def test_too_many_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_FILES", 3)
    with pytest.raises(TransferFileError, match="more than 3 files"):
        tree_of({f"{number}.txt": b"" for number in range(4)})


def test_a_long_list_of_entries_is_counted_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trees, "MAX_FILES", 3)

    def parse(_: object) -> None:
        pytest.fail("it was parsed")

    monkeypatch.setattr(zipfile.ZipFile, "infolist", parse)
    with pytest.raises(TransferFileError, match="more than 3 files"):
        tree_of({f"{number}.txt": b"" for number in range(40)})


def test_too_many_bytes_are_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_TREE_BYTES", 10)
    with pytest.raises(TransferFileError, match="10 are allowed"):
        tree_of({"a": b"x" * 6, "b": b"y" * 6})


def test_a_large_file_and_a_deep_one_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trees, "MAX_FILE_BYTES", 10)
    deep = "/".join("d" * 30)
    tree = tree_of({"large": b"x" * 11, deep: b"y", "n" * 1_100: b"z", "small": b"s"})
    assert tree.list_paths() == ("small",)
    assert len(tree.refused) == 3


def test_a_zip_larger_than_4_gigabytes_is_read_in_pieces(tmp_path: Path) -> None:
    """The file has a hole, so that it takes no space on the disk."""
    path, hole = tmp_path / "large.zip", 5 * 2**30
    small = zipped({"a.txt": b"behind the hole"})
    with path.open("wb") as file:
        file.seek(hole)
        file.write(small)
    with path.open("rb") as file:
        tree = ZipTree(file, "large.zip")
        with tree.open("a.txt") as entry:
            assert entry.read() == b"behind the hole"


def test_a_zip64_entry_is_read() -> None:
    target = io.BytesIO()
    with (
        zipfile.ZipFile(target, "w") as archive,
        archive.open("a.txt", "w", force_zip64=True) as entry,
    ):
        entry.write(b"content")
    with ZipTree(target, "test.zip").open("a.txt") as file:
        assert file.read() == b"content"


def test_a_zip_is_read_from_a_sealed_file(tmp_path: Path) -> None:
    sealer = Sealer(uuid4(), {1: os.urandom(32)}, user_key=os.urandom(32))
    column, file_id = Column("imports", "upload"), uuid4()
    content = os.urandom(700_000)
    writer = SealedFileWriter(tmp_path / "sealed", sealer, column, file_id)
    writer.write(zipped({"a.bin": content, "b.txt": b"b"}))
    size = writer.finish()
    tree = open_file(
        lambda: SealedFileReader(tmp_path / "sealed", sealer, column, file_id),  # type: ignore[arg-type, return-value]
        "upload.zip",
        size,
    )
    assert tree.list_paths() == ("a.bin", "b.txt")
    with tree.open("a.bin") as file:
        assert file.read() == content
    tree.close()


def test_a_folder_is_listed_in_order_with_its_sizes(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", "c/d/e.txt", ".DS_Store", ".git/config"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    tree = FolderTree(tmp_path)
    assert tree.list_paths() == ("a.txt", "b/1.txt", "b/2.txt", "c/d/e.txt")
    assert tree.get_size("b/1.txt") == 7
    with tree.open("c/d/e.txt") as file:
        assert file.read() == b"c/d/e.txt"


@pytest.mark.skipif(sys.platform == "win32", reason="links need a permission on Windows")
def test_links_are_followed_only_within_the_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside.txt"
    (folder / "inner").mkdir(parents=True)
    outside.write_text("secret")
    (folder / "a.txt").write_text("a")
    (folder / "good.txt").symlink_to(folder / "a.txt")
    (folder / "bad.txt").symlink_to(outside)
    (folder / "gone.txt").symlink_to(tmp_path / "nothing")
    (folder / "inner" / "loop").symlink_to(folder)
    tree = FolderTree(folder)
    assert tree.list_paths() == ("a.txt", "good.txt")
    assert reasons(tree).keys() == {"bad.txt", "gone.txt", "inner/loop"}
    assert "outside the folder" in reasons(tree)["bad.txt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_special_files_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "plain file" in reasons(FolderTree(tmp_path))["pipe"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_file_name_that_is_not_utf8_can_be_shown(tmp_path: Path) -> None:
    Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.txt")).write_text("x")
    tree = FolderTree(tmp_path)
    [path] = tree.list_paths()
    path.encode()
    with tree.open(path) as file:
        assert file.read() == b"x"


def test_a_path_becomes_the_tree_of_its_kind(tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_bytes(b"{}")
    (tmp_path / "many.zip").write_bytes(zipped({"a.json": b"{}"}))
    (tmp_path / "card.charx").write_bytes(zipped({"card.json": b"{}"}))
    (tmp_path / "tale.zip").write_bytes(zipped({"tale/campaign_data.json": b"{}"}))
    assert isinstance(open_path(tmp_path), FolderTree)
    assert isinstance(open_path(tmp_path / "plain.json"), SingleFileTree)
    assert isinstance(open_path(tmp_path / "many.zip"), ZipTree)
    assert isinstance(open_path(tmp_path / "card.charx"), SingleFileTree)
    assert isinstance(open_path(tmp_path / "tale.zip"), SingleFileTree)
    with pytest.raises(TransferFileError, match="cannot be read"):
        open_path(tmp_path / "nothing")
