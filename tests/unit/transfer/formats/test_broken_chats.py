"""Broken, changed and hostile files end in readings or in a `TransferFileError`, soon."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from io import BytesIO
from random import Random
from typing import Any, cast, get_args

import pytest

from backend.generation.model import Role
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.chat_file import ChatReading
from backend.transfer.formats.registry import BUNDLES, FORMATS, HEAD_BYTES
from backend.transfer.formats.transcript import write_markdown, write_text
from tests.support.chat_files import agnai_export, kobold, list_files, risu_export, to_json

FILES = list_files()
WRONG: tuple[Any, ...] = (None, True, -1, 1e300, "", "\ud800 x", [], {}, [[]], {"a": []}, [None])


def consume(reading: ChatReading) -> None:
    messages = list(reading.messages)
    for message in messages:
        assert message.role in get_args(Role)
        assert message.selected in range(len(message.swipes))
        assert all(isinstance(each.text, str) for each in message.swipes)
        assert all(each.created_at is None or each.created_at.tzinfo for each in message.swipes)
    assert all(isinstance(name, str) for name in reading.head.character_names)
    assert all(isinstance(each, str) for each in reading.head.variables.values())
    "".join(write_markdown(reading.head, messages))
    "".join(write_text(reading.head, messages))


def try_formats(data: bytes, name: str) -> None:
    """Read a file as each format, whether or not it is recognised."""
    for form in FORMATS:
        form.matches(data[:HEAD_BYTES], name)
        try:
            for reading in form.read(BytesIO(data), name=name):
                consume(reading)
        except TransferFileError:
            continue
    for bundle_format in BUNDLES:
        bundle_format.matches(data[:HEAD_BYTES], name)
        try:
            for bundle in bundle_format.read(BytesIO(data), name=name):
                for reading in bundle.chats:
                    consume(reading)
            if bundle_format.read_pictures is not None:
                list(bundle_format.read_pictures(BytesIO(data), names={"a.png"}))
        except TransferFileError:
            continue


@pytest.mark.parametrize("form", FILES)
def test_cut_files_raise_no_other_error(form: str) -> None:
    name, data = FILES[form]
    random = Random(form)
    for end in {0, 1, len(data) - 1, *(random.randrange(len(data)) for _ in range(40))}:
        try_formats(data[:end], name)


@pytest.mark.parametrize("form", FILES)
def test_files_with_changed_bytes_raise_no_other_error(form: str) -> None:
    name, data = FILES[form]
    random = Random(form)
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(random.randrange(1, 6)):
            changed[random.randrange(len(changed))] = random.choice(b'\0\xff\x91\xdf"{}[]:,0a\n')
        try_formats(bytes(changed), name)


def change(value: object, random: Random) -> object:
    """Return a JSON value with one part of another type, missing, or repeated."""
    if value and random.random() > 0.1:
        if isinstance(value, dict):
            return change_object(cast("dict[str, object]", value), random)
        if isinstance(value, list):
            return change_list(cast("list[object]", value), random)
    return random.choice(WRONG)


def change_object(value: dict[str, object], random: Random) -> dict[str, object]:
    key = random.choice([*value])
    rest = {name: each for name, each in value.items() if name != key}
    return rest if random.random() < 0.2 else rest | {key: change(value[key], random)}


def change_list(value: list[object], random: Random) -> list[object]:
    place = random.randrange(len(value))
    if random.random() < 0.2:
        return [*value, value[place]]
    return [*value[:place], change(value[place], random), *value[place + 1 :]]


@pytest.mark.parametrize("form", [form for form in FILES if FILES[form][1][:1] in (b"{", b"[")])
def test_files_with_values_of_other_types_raise_no_other_error(form: str) -> None:
    name, data = FILES[form]
    value: object = json.loads(data)
    random = Random(form)
    for _ in range(150):
        try_formats(json.dumps(change(value, random)).encode(), name)


def repeat_lines(count: int) -> bytes:
    return b"Ada: Hm\nEllis: Hm?\n" * (count // 4)


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "open quotes": lambda count: b'{"type": "risuChat", "data": ' + b'"\\' * count,
    "open lists": lambda count: b"[" * count,
    "empty lists": lambda count: b'{"messages": [' + b"[]," * count + b"0]}",
    "colons": lambda count: b"Ada:" * count,
    "lines of a log": repeat_lines,
    "lines of blanks": lambda count: b"Ada: x\nAda: y\n" + b" \n" * count,
    "one line of blanks": lambda count: b"Ada: x\nAda: y" + b" " * count,
    "brackets": lambda count: b"Ada: x\nAda: y\n" + b"[" * count,
    "dashes": lambda count: b"--Ada\n" + b"--x\n" * count,
    "a page": lambda count: b"<title>CAI Library</title>" + b"JSON.parse(`" * count,
    "thoughts": lambda count: risu_export(
        {"message": [{"role": "char", "data": "<think></think>" * count + "<think>" * count}]}
    ),
    "macros": lambda count: risu_export({"message": [{"data": "{{" * count}]}),
    "pictures": lambda count: kobold(1, "[<|d|" * count + "x" * count),
    "tags": lambda count: kobold(4, "{{[INPUT]}}" * count, instruct_starttag="{{[INPUT]}}x"),
    "names": lambda count: kobold(3, "Ada:" * count, chatopponent="Ada||$||" * count),
    "siblings": lambda count: agnai_export(
        [{"_id": f"{n:08}", "parent": "00000000" if n else "", "msg": "x", "characterId": "c"}
         for n in range(count // 10)]
    ),
    "one chain": lambda count: agnai_export(
        [{"_id": f"{n:08}", "parent": f"{n - 1:08}", "msg": "x", "userId": "c"}
         for n in range(count // 10)]
    ),
    "fences": lambda count: to_json(
        {"internal": [["`" * count + "\n" + "#" * count, "~~~\n" * count]]}
    ),
}  # fmt: skip


SMALL, LARGE = 10_000, 40_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_four_times_the_file_takes_no_more_than_some_four_times_the_time(kind: str) -> None:
    before, taken = (measure(HOSTILE[kind](count)) for count in (SMALL, LARGE))
    assert taken < max(9 * before, 0.5)


def measure(data: bytes) -> float:
    """Return the shortest of some times of reading, in seconds."""
    times: list[float] = []
    for _ in range(3):
        start = time.thread_time()
        try_formats(data, "Ada.txt")
        times.append(time.thread_time() - start)
    return min(times)
