"""The files of the benchmark of imports are those of SillyTavern, and the same in each run."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest

from backend.characters.cards.reader import read_card
from backend.transfer.formats.chat_file import FileMessage
from backend.transfer.formats.sillytavern import read_sillytavern
from scripts.bench.data import make_utterances
from scripts.bench.processes import create_database
from scripts.bench.transfer_files import write_chat, write_chat_folder
from scripts.bench.transfer_floor import MessageFloor, read_lines, time_zip

pytestmark = pytest.mark.anyio

LINES = make_utterances()


def test_a_folder_has_a_card_and_chats_with_all_messages(tmp_path: Path) -> None:
    assert write_chat_folder(tmp_path / "folder.zip", LINES, 1_200) == 2
    messages = 0
    with ZipFile(tmp_path / "folder.zip") as folder:
        assert read_card(folder.read("characters/Mara.png")).card.name == "Mara"
        for path in folder.namelist():
            if path.endswith(".jsonl"):
                [reading] = read_sillytavern(BytesIO(folder.read(path)), name=path)
                messages += len(list(reading.messages))
                assert not reading.warnings
    assert messages == 1_200


def test_each_message_of_a_chat_has_its_swipes(tmp_path: Path) -> None:
    for name in ("one.jsonl", "two.jsonl"):
        write_chat(tmp_path / name, LINES, 20, swipes=5)
    with (tmp_path / "one.jsonl").open("rb") as file:
        [reading] = read_sillytavern(file, name="one.jsonl")
        assert [len(set(_list_texts(each))) for each in reading.messages] == [5] * 20
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def _list_texts(message: FileMessage) -> list[str]:
    return [each.text for each in message.swipes]


async def test_the_floor_writes_each_text_that_it_has_stored(tmp_path: Path) -> None:
    path, written = tmp_path / "chat.jsonl", list[bytes]()
    write_chat(path, LINES, 20, swipes=5)
    async with create_database("sqlite") as url:
        floor = MessageFloor(url)
        await floor.store(read_lines(path))
        await floor.export(written.append)
    assert len(written) == len(set(written)) == 100


async def test_the_floor_of_an_archive_writes_the_same_files(tmp_path: Path) -> None:
    source, target = tmp_path / "folder.zip", tmp_path / "copy.zip"
    write_chat_folder(source, LINES, 20)
    await time_zip(source, target)
    with ZipFile(source) as old, ZipFile(target) as new:
        assert {name: old.read(name) for name in old.namelist()} == {
            name: new.read(name) for name in new.namelist()
        }
