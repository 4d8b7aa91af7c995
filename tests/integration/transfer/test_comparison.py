"""The comparison of archives finds every kind of difference."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

import pytest

from backend.transfer.archives.comparison import compare_archives
from backend.transfer.archives.manifest import MANIFEST
from backend.transfer.archives.records import ID_PATTERN
from backend.transfer.errors import TransferFileError
from tests.support.archives import make_archive, read_files, write_files
from tests.support.full_account import draw_picture, fill_account
from tests.support.server import Account

pytestmark = [pytest.mark.anyio]

OWN_IDS = {"id", "format", "version", "file_version"}
"""Members that do not count as content: ids of items themselves, and the format's own."""


def find_differences(first: bytes, second: bytes) -> list[str]:
    found = compare_archives(io.BytesIO(first), io.BytesIO(second))
    return [each.render() for each in found]


def list_leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value that is not a container."""
    if isinstance(value, dict):
        for key, member in cast("dict[str, Any]", value).items():
            if key not in OWN_IDS:
                yield from list_leaves(member, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(cast("Any", value)):
            yield from list_leaves(item, (*path, number))
    else:
        yield path


def choose_leaves(value: Any) -> list[tuple[Any, ...]]:
    """Return one path for each member, once for all items of a list."""
    chosen: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for path in list_leaves(value):
        kind = tuple("*" if isinstance(part, int) else part for part in path)
        chosen.setdefault(kind, path)
    return list(chosen.values())


def change(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return str(uuid4()) if ID_PATTERN.fullmatch(value) else f"{value}x"
    return "x"


def replace_leaf(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of a JSON value in which one leaf is different."""
    copy = json.loads(json.dumps(value))
    at = copy
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = change(at[path[-1]])
    return copy


def read_json(path: str, data: bytes) -> Any:
    """Return the JSON of a file: of each line, if it has lines."""
    if path.endswith(".jsonl"):
        return [json.loads(line) for line in data.splitlines()]
    return json.loads(data)


def write_json(path: str, value: Any) -> bytes:
    if path.endswith(".jsonl"):
        return b"\n".join(json.dumps(line).encode() for line in value)
    return json.dumps(value).encode()


def list_mutations(files: dict[str, bytes]) -> Iterator[tuple[str, str, bytes]]:
    """Yield the path, a description, and the changed file for each change of a member."""
    for path, data in files.items():
        if path.endswith((".json", ".jsonl")):
            value = read_json(path, data)
            for leaf in choose_leaves(value):
                yield path, f"{path} {leaf}", write_json(path, replace_leaf(value, leaf))


async def test_every_changed_member_is_found(ada: Account) -> None:
    await fill_account(ada)
    archive = await make_archive(ada)
    unseen: list[str] = []
    count = 0

    def look(what: str, changed: dict[str, bytes]) -> None:
        nonlocal count
        count += 1
        try:
            found = compare_archives(io.BytesIO(archive), io.BytesIO(write_files(changed)))
            if next(found, None) is None:
                unseen.append(what)
        except TransferFileError:
            pass  # noticed: it is not a valid archive any more

    everything = read_files(archive)
    parts = {path: data for path, data in everything.items() if path != "manifest.json"}
    for path, what, data in list_mutations(parts):
        look(what, everything | {path: data})
    inner = read_files(everything["campaigns/Seagate.zip"])
    for path, what, data in list_mutations(inner):
        look(what, everything | {"campaigns/Seagate.zip": write_files(inner | {path: data})})
    assert count > 200
    assert unseen == []


async def test_differences_name_the_item_and_the_member(ada: Account) -> None:
    persona = await ada.post("/personas", {"name": "Ines", "description": "A guest."}, 201)
    first = await make_archive(ada)
    await ada.patch(f"/personas/{persona['id']}", {"description": "A host."})
    await ada.new_chat(title="New here")
    second = await make_archive(ada)
    assert find_differences(first, second) == [
        "chats/New here.jsonl: only in the second",
        'personas/Ines.json: content.persona.description: "A guest." / "A host."',
    ]
    assert find_differences(second, first)[0] == "chats/New here.jsonl: only in the first"


async def test_a_changed_picture_is_found(ada: Account) -> None:
    mara = await ada.new_character()
    path = f"/characters/{mara['id']}/avatar"
    archives: list[bytes] = []
    for colour in ("teal", "maroon"):
        await ada.ask("PUT", path, files={"file": ("a.png", draw_picture(colour), "image/png")})
        archives.append(await make_archive(ada))
    [difference] = find_differences(*archives)
    assert difference.startswith("characters/Mara.png: picture: ")


@pytest.mark.parametrize("data", [b"", b"no zip", write_files({"a.txt": b"no archive"})])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(TransferFileError):
        find_differences(data, data)


def pack_manifest() -> bytearray:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, b"{" + b" " * 1_000 + b"}")
    return bytearray(target.getvalue())


def test_damaged_and_encrypted_zips_are_refused() -> None:
    damaged, encrypted = pack_manifest(), pack_manifest()
    start = damaged.index(MANIFEST.encode()) + len(MANIFEST)
    damaged[start : start + 4] = b"\xff" * 4
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(header) + flags] |= 1
    for data in (damaged, encrypted):
        with pytest.raises(TransferFileError, match=MANIFEST):
            find_differences(bytes(data), bytes(data))
