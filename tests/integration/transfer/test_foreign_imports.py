"""Imports of files of other programs: chats, and characters together with their chats."""

from __future__ import annotations

import pytest

from tests.support.chat_files import (
    list_files,
    risu_all_chats,
    risu_backup,
    risu_chat,
    risu_database,
    risu_database_file,
)
from tests.support.importing import bring, outcomes, plain_png
from tests.support.server import Account
from tests.support.zips import zipped

pytestmark = pytest.mark.anyio


async def test_files_of_every_known_program_are_imported(ada: Account) -> None:
    files = {f"{form}/{name}": data for form, (name, data) in list_files().items()}
    _, results = await bring(ada, zipped(files))
    assert outcomes(results) == dict.fromkeys(files, "imported"), results
    kinds = {each["kind"] for each in results.values()}
    assert kinds == {"chat", "character"}

    _, again = await bring(ada, zipped(files))
    assert outcomes(again) == dict.fromkeys(files, "already_there")


async def test_a_backup_brings_characters_with_pictures_and_chats(ada: Account) -> None:
    data = risu_backup([("a.png", plain_png())], risu_database_file(risu_database()))
    _, results = await bring(ada, data, "backup.bin")
    result = results["backup.bin"]
    assert (result["outcome"], result["kind"]) == ("imported", "character")
    assert result["detail"] == "New: 2 of 2 characters, 2 of 2 chats."
    assert "The chat “Empty” was left out, because it has no messages." in result["warnings"]

    characters = {each["name"]: each for each in (await ada.get("/characters"))["items"]}
    assert characters.keys() == {"Ada", "Bo"}
    assert (characters["Ada"]["has_avatar"], characters["Bo"]["has_avatar"]) == (True, False)
    members = [each["character_ids"] for each in (await ada.get("/chats"))["items"]]
    assert sorted(members, key=len) == [
        [characters["Ada"]["id"]],
        [characters["Ada"]["id"], characters["Bo"]["id"]],
    ]

    _, again = await bring(ada, data, "backup.bin")
    assert outcomes(again) == {"backup.bin": "already_there"}
    assert len((await ada.get("/chats"))["items"]) == 2


async def test_a_deleted_chat_of_a_backup_is_imported_again_alone(ada: Account) -> None:
    data = risu_backup()
    await bring(ada, data, "backup.bin")
    [first, _] = (await ada.get("/chats"))["items"]
    await ada.delete(f"/chats/{first['id']}")
    _, again = await bring(ada, data, "backup.bin")
    assert again["backup.bin"]["detail"] == "New: 0 of 2 characters, 1 of 2 chats."


async def test_each_chat_of_a_file_is_stored_once(ada: Account) -> None:
    data = risu_all_chats(risu_chat(name="First"), risu_chat(name="Second"))
    view, results = await bring(ada, data, "chats.json")
    assert results["chats.json"]["detail"] == "New chats: 2 of 2."
    assert len((await ada.get("/chats"))["items"]) == 2
    assert view["chat_id"] == results["chats.json"]["item_id"]
    _, again = await bring(ada, data, "chats.json")
    assert outcomes(again) == {"chats.json": "already_there"}
    assert len((await ada.get("/chats"))["items"]) == 2


async def test_a_format_can_be_named(ada: Account) -> None:
    name, data = list_files()["oobabooga"]
    _, results = await bring(ada, data, name, format="oobabooga", path="/chats/import")
    assert outcomes(results) == {name: "imported"}
    _, results = await bring(ada, b"nothing like it", "a.txt", format="oobabooga")
    assert outcomes(results) == {"a.txt": "failed"}
    assert results["a.txt"]["detail"]
