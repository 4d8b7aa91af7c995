"""The root key: its text, its file and wrapped keys."""

from __future__ import annotations

import base64
import errno
import os
import stat
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.vault.root import (
    RootKeyError,
    RootKeys,
    Wrapped,
    add_root_key,
    drop_old_root_keys,
    load_root_keys,
    parse_root_keys,
)

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
OLD_TEXT, NEW_TEXT = base64.b64encode(OLD).decode(), base64.b64encode(NEW).decode()


class PowerCutError(BaseException):
    """The process ends here: nothing may catch it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "root.key"


@pytest.fixture
def careless_umask() -> Iterator[None]:
    """New files would be open to everybody."""
    before = os.umask(0)  # noqa: TID251
    yield
    os.umask(before)  # noqa: TID251


def opens(keys: RootKeys, wrapped: Wrapped, *, context: bytes = b"c") -> bytes:
    return keys.unwrap(wrapped, context=context)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        (f"1:{OLD_TEXT}", [1]),
        (f"1:{OLD_TEXT}\n", [1]),
        (OLD_TEXT, [1]),
        (f"{OLD_TEXT}\n", [1]),
        (f"2:{NEW_TEXT}\n1:{OLD_TEXT}\n", [1, 2]),
        (f"2:{NEW_TEXT},1:{OLD_TEXT}", [1, 2]),
        (f" 2:{NEW_TEXT} , 1:{OLD_TEXT} ,", [1, 2]),
        (f"2:{NEW_TEXT}\r\n\r\n{OLD_TEXT}\r\n", [1, 2]),
        (f"# keep this safe, and a copy\n1:{OLD_TEXT}\n  # the end\n", [1]),
        (f"10:{NEW_TEXT}\n9:{OLD_TEXT}\n", [9, 10]),
    ],
)
def test_reads_versions_in_every_form_that_people_write(text: str, versions: list[int]) -> None:
    keys = parse_root_keys(text)
    assert keys.versions == versions
    assert keys.current == versions[-1]


def test_order_does_not_matter_only_the_version_does() -> None:
    one, other = f"1:{OLD_TEXT}\n2:{NEW_TEXT}", f"2:{NEW_TEXT}\n1:{OLD_TEXT}"
    wrapped = parse_root_keys(one).wrap(b"secret", context=b"c")
    assert wrapped[0] == 2
    assert opens(parse_root_keys(other), wrapped) == b"secret"
    assert opens(parse_root_keys(f"2:{NEW_TEXT}"), wrapped) == b"secret"


@pytest.mark.parametrize(
    "text",
    [
        f"{NEW_TEXT}:1",
        f"one:{NEW_TEXT}",
        f"1:{NEW_TEXT[:-1]}",
        f"1:{NEW_TEXT[:-4]}",
        f"1:{NEW_TEXT}AAAA",
        f"1:{NEW_TEXT}!",
        f"1:{NEW_TEXT[:20]}\n{NEW_TEXT[20:]}",
        f"1:{NEW_TEXT} 2:{OLD_TEXT}",
        f"1:{NEW_TEXT},1:{OLD_TEXT}",
        f"{NEW_TEXT},{OLD_TEXT}",
        f"0:{NEW_TEXT}",
        f"-1:{NEW_TEXT}",
        f"1:{NEW.hex()}",
        f"1:{NEW_TEXT}é",
    ],
)
def test_a_key_that_cannot_be_read_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(RootKeyError) as caught:
        parse_root_keys(text)
    told = "".join(traceback.format_exception(caught.value))
    for key in (OLD_TEXT, NEW_TEXT, NEW.hex()):
        assert key[:12] not in told


@pytest.mark.parametrize("text", ["", "\n\n", " , ,", "# nothing but a comment"])
def test_no_key_at_all_is_refused(text: str) -> None:
    with pytest.raises(RootKeyError, match="There is no root key"):
        parse_root_keys(text)


def test_a_key_file_of_raw_bytes_is_refused_without_being_quoted(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe" + NEW_TEXT.encode())
    with pytest.raises(RootKeyError, match="is not a text file") as caught:
        load_root_keys(path)
    assert NEW_TEXT[:12] not in "".join(traceback.format_exception(caught.value))


def test_the_first_start_makes_a_key_that_its_owner_alone_can_read(
    path: Path, careless_umask: None
) -> None:
    made = load_root_keys(path, create=True)
    assert made.versions == [1]
    assert mode(path) == 0o600
    assert opens(load_root_keys(path), made.wrap(b"secret", context=b"c")) == b"secret"
    assert list(path.parent.iterdir()) == [path]


def test_a_key_is_not_made_unless_asked_for(path: Path) -> None:
    with pytest.raises(RootKeyError, match="does not exist"):
        load_root_keys(path)
    assert not path.exists()


def test_every_installation_makes_a_key_of_its_own(tmp_path: Path) -> None:
    one = load_root_keys(tmp_path / "one", create=True)
    other = load_root_keys(tmp_path / "other", create=True)
    with pytest.raises(RootKeyError):
        opens(other, one.wrap(b"secret", context=b"c"))


def test_two_processes_that_start_together_use_one_key(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_root_keys(path, create=True)

    def looked_before(_: Path) -> bool:
        return False

    monkeypatch.setattr(Path, "exists", looked_before)

    second = load_root_keys(path, create=True)

    assert opens(second, first.wrap(b"secret", context=b"c")) == b"secret"
    assert list(path.parent.iterdir()) == [path]


def test_the_setting_goes_before_the_file(path: Path) -> None:
    wrapped = load_root_keys(path, create=True).wrap(b"secret", context=b"c")
    keys = load_root_keys(path, value=f"3:{NEW_TEXT}")
    assert keys.versions == [3]
    with pytest.raises(RootKeyError, match="version 1 is missing"):
        opens(keys, wrapped)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RootKeyError, match=str(tmp_path)):
        load_root_keys(tmp_path)


def test_a_new_version_is_used_from_then_on_and_the_old_one_still_opens(
    path: Path, careless_umask: None
) -> None:
    old = load_root_keys(path, create=True)

    added = add_root_key(path)

    assert added.versions == load_root_keys(path).versions == [1, 2]
    assert mode(path) == 0o600
    assert opens(added, old.wrap(b"before", context=b"c")) == b"before"
    wrapped = added.wrap(b"after", context=b"c")
    assert wrapped[0] == 2
    with pytest.raises(RootKeyError, match="version 2 is missing"):
        opens(old, wrapped)


def test_dropping_old_versions_leaves_the_newest_alone(path: Path, careless_umask: None) -> None:
    old = load_root_keys(path, create=True)
    added = add_root_key(path)
    left = drop_old_root_keys(path)
    assert left.versions == load_root_keys(path).versions == [2]
    assert mode(path) == 0o600
    assert opens(left, added.wrap(b"secret", context=b"c")) == b"secret"
    with pytest.raises(RootKeyError, match="version 1 is missing"):
        opens(left, old.wrap(b"secret", context=b"c"))


@pytest.mark.parametrize(
    "text",
    [
        f"2:{NEW_TEXT},1:{OLD_TEXT}",
        f"# a comment\n2:{NEW_TEXT}\n{OLD_TEXT}",
        f"{OLD_TEXT}\n  2:{NEW_TEXT}",
    ],
)
def test_a_file_written_by_hand_can_be_rotated_too(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    assert add_root_key(path).versions == [1, 2, 3]
    left = drop_old_root_keys(path)
    assert left.versions == [3]
    assert OLD_TEXT not in path.read_text()
    assert NEW_TEXT not in path.read_text()


@pytest.mark.parametrize(("change", "newest"), [(add_root_key, 3), (drop_old_root_keys, 2)])
@pytest.mark.parametrize("at", ["os.open", "os.fsync", "pathlib.Path.replace"])
def test_a_power_cut_while_the_file_is_replaced_loses_no_key(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], RootKeys],
    newest: int,
    at: str,
) -> None:
    load_root_keys(path, create=True)
    add_root_key(path)
    before = path.read_text()

    def cut(*_: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(at, cut)
        with pytest.raises(PowerCutError):
            change(path)

    assert path.read_text() == before
    change(path)
    assert load_root_keys(path).current == newest
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_stays_with_no_key_left_lying_beside_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_root_keys(path, create=True)
    before = path.read_text()

    def refuse(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="busy"):
        add_root_key(path)

    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_new_file_is_on_the_disk_before_it_takes_the_old_ones_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_root_keys(path, create=True)
    steps: list[str] = []
    sync, replace = os.fsync, Path.replace

    def spied_sync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def spied_replace(self: Path, target: Path) -> Path:
        steps.append("replaced")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", spied_sync)
    monkeypatch.setattr(Path, "replace", spied_replace)
    add_root_key(path)

    assert steps == ["file", "replaced", "folder"]


def test_a_link_to_the_key_file_stays_a_link(path: Path, tmp_path: Path) -> None:
    load_root_keys(path, create=True)
    link = tmp_path / "link"
    link.symlink_to(path)
    add_root_key(link)
    assert link.is_symlink()
    assert load_root_keys(path).versions == [1, 2]


def test_a_wrapping_opens_in_its_context_alone() -> None:
    keys = RootKeys({1: OLD})
    wrapped = keys.wrap(b"secret", context=b"slot/1")
    assert opens(keys, wrapped, context=b"slot/1") == b"secret"
    with pytest.raises(RootKeyError):
        opens(keys, wrapped, context=b"slot/2")


def test_a_different_key_and_a_missing_key_have_different_errors() -> None:
    wrapped = RootKeys({1: OLD}).wrap(b"secret", context=b"c")
    with pytest.raises(RootKeyError, match="this is a different key"):
        opens(RootKeys({1: NEW}), wrapped)
    with pytest.raises(RootKeyError, match="version 1 is missing"):
        opens(RootKeys({2: NEW}), wrapped)


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_only_keys_of_256_bits_are_taken(length: int) -> None:
    with pytest.raises(RootKeyError, match="32 bytes"):
        RootKeys({1: bytes(length)})


def test_root_keys_do_not_show_in_a_repr() -> None:
    assert "x" * 8 not in repr(RootKeys({1: b"x" * 32}))
