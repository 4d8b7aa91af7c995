"""Imports over HTTP: the results of files, and of a second import."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from typing import Any

import pytest

from tests.support.importing import (
    bring,
    card_json,
    card_png,
    chat_jsonl,
    group_json,
    outcomes,
    plain_png,
    preset_json,
    script_json,
    upload,
    world_json,
)
from tests.support.server import Account, problem, read_pages
from tests.support.zips import seagate_vault, zipped

pytestmark = pytest.mark.anyio


async def test_a_zip_brings_files_of_every_kind(ada: Account) -> None:
    chronicle: dict[str, Any] = {
        "format": "talekeeper-chronicle",
        "version": 1,
        "name": "Days",
        "events": [],
    }
    data = zipped(
        {
            "cards/Mara.png": card_png("Mara"),
            "cards/Tovin.json": card_json("Tovin"),
            "cards/Ines.yaml": "name: Ines\ndescription: A captain.\n",
            "lore/Harbour.json": world_json("harbour", "lighthouse"),
            "Story.json": preset_json(),
            "dashes.json": script_json(),
            "days.json": json.dumps(chronicle),
            "tale.zip": zipped(seagate_vault()),
            "crew.json": group_json("Mara.png", "Tovin", "Nobody.png"),
            "Mara - night.jsonl": chat_jsonl(4),
        }
    )
    view, results = await bring(ada, data, "all.zip")

    assert set(outcomes(results).values()) == {"imported"}, results
    kinds = {path: each["kind"] for path, each in results.items()}
    assert kinds == {
        "cards/Mara.png": "character",
        "cards/Tovin.json": "character",
        "cards/Ines.yaml": "character",
        "lore/Harbour.json": "lorebook",
        "Story.json": "preset",
        "dashes.json": "scripts",
        "days.json": "chronicle",
        "tale.zip": "campaign",
        "crew.json": "chat",
        "Mara - night.jsonl": "chat",
    }
    assert view["state"] == "finished"
    assert view["name"] == "all.zip"
    assert view["counts"] == {"imported": 10, "already_there": 0, "skipped": 0, "failed": 0}
    assert view["progress"] == {"done": 10, "total": 10}
    assert not view["can_continue"]
    assert results["crew.json"]["warnings"] == ["Members that were not found: Nobody.png."]
    chat = await ada.get(f"/chats/{results['Mara - night.jsonl']['item_id']}")
    assert chat["character_ids"] == [results["cards/Mara.png"]["item_id"]]
    assert [each["text"] for each in await ada.messages(chat["id"])] == [
        f"Line {number}" for number in range(4)
    ]


async def test_a_second_import_brings_only_what_is_new(ada: Account) -> None:
    files = {"Mara.png": card_png(), "Mara.jsonl": chat_jsonl(), "world.json": world_json("sea")}
    _, first = await bring(ada, zipped(files))
    _, second = await bring(ada, zipped({**files, "Tovin.json": card_json("Tovin")}))

    assert outcomes(second) == {
        "Mara.png": "already_there",
        "Mara.jsonl": "already_there",
        "world.json": "already_there",
        "Tovin.json": "imported",
    }
    assert {path: second[path]["item_id"] for path in files} == {
        path: first[path]["item_id"] for path in files
    }


async def test_a_deleted_item_is_imported_again(ada: Account) -> None:
    _, first = await bring(ada, card_png(), "Mara.png")
    await ada.delete(f"/characters/{first['Mara.png']['item_id']}")
    _, second = await bring(ada, card_png(), "Mara.png")
    assert outcomes(second) == {"Mara.png": "imported"}


async def test_a_copy_is_imported_although_the_file_is_there(ada: Account) -> None:
    await bring(ada, chat_jsonl(), "a.jsonl")
    _, again = await bring(ada, chat_jsonl(), "a.jsonl", copy=True)
    assert outcomes(again) == {"a.jsonl": "imported"}
    assert len((await ada.get("/chats"))["items"]) == 2


async def test_a_chat_file_belongs_to_the_character_that_it_names(ada: Account) -> None:
    mara = await ada.new_character(name="Mara")
    view, _ = await bring(ada, chat_jsonl(), "night.jsonl", path="/chats/import")
    assert view["chat_id"] is not None
    chat = await ada.get(f"/chats/{view['chat_id']}")
    assert chat["character_ids"] == [mara["id"]]


async def test_a_request_chooses_the_members_of_a_chat(ada: Account) -> None:
    await ada.new_character(name="Mara")
    other = await ada.new_character(name="Tovin")
    view, _ = await bring(
        ada, chat_jsonl(), "night.jsonl", path="/chats/import", character_ids=[other["id"]]
    )
    chat = await ada.get(f"/chats/{view['chat_id']}")
    assert chat["character_ids"] == [other["id"]]


async def test_a_chat_without_its_character_is_imported_with_a_warning(ada: Account) -> None:
    _, results = await bring(ada, chat_jsonl(name="Mara"), "night.jsonl")
    assert outcomes(results) == {"night.jsonl": "imported"}
    assert "No character has the name Mara" in results["night.jsonl"]["warnings"][0]


async def test_a_body_needs_no_form(ada: Account) -> None:
    headers = {"Content-Disposition": "attachment; filename*=UTF-8''Caf%C3%A9.jsonl"}
    answer = await ada.ask("POST", "/imports", content=chat_jsonl(), headers=headers)
    assert answer.status_code == 202
    assert answer.json()["name"] == "Café.jsonl"
    answer = await ada.ask("POST", "/imports", content=chat_jsonl(), params={"name": "x.jsonl"})
    assert answer.json()["name"] == "x.jsonl"
    answer = await ada.ask("POST", "/imports", content=card_png())
    assert answer.json()["name"] == "import"


BAD_FILES: dict[str, tuple[bytes, str, str]] = {
    "empty.json": (b"", "skipped", "The file is empty."),
    "blank.jsonl": (b" \n\n", "skipped", "The file is empty."),
    "picture.png": (plain_png(), "skipped", "contains no character card"),
    "photo.jpg": (b"\xff\xd8\xff\xe0" + b"x" * 100, "skipped", "not a PNG"),
    "program.exe": (b"MZ\0\0\x01\x02", "skipped", "not of a known kind"),
    "notes.md": (b"# Notes\nBuy milk.", "skipped", "not of a known kind"),
    "theme.json": (b'{"main_text_color": "x", "blur_strength": 1}', "skipped", "theme"),
    "odd.json": (b'{"colour": "blue"}', "skipped", "can be imported"),
    "broken.json": (b'{"name": "Mara", ', "failed", "invalid at line 1"),
    "latin.json": ('{"name": "José"}'.encode("latin-1"), "failed", "not UTF-8"),
    "cut.png": (card_png()[:60], "failed", ""),
    "group.json": (group_json("Nobody.png"), "failed", "None of the group's characters"),
    "inner.zip": (zipped({"a.txt": "a"}), "skipped", "neither a card nor a campaign"),
    "cut.zip": (zipped({"a.txt": "a"})[:40], "skipped", "broken"),
    "deep.json": (b"[" * 5000, "failed", "nesting"),
    "book.json": (b'{"entries": 5}', "failed", ""),
    "card.json5": (card_json(name=""), "failed", "no name"),
}


async def test_each_bad_file_has_a_clear_result_and_harms_no_other(ada: Account) -> None:
    files = {name: data for name, (data, _, _) in BAD_FILES.items()}
    _, results = await bring(ada, zipped({**files, "Mara.png": card_png()}))

    assert results.pop("Mara.png")["outcome"] == "imported"
    assert outcomes(results) == {name: outcome for name, (_, outcome, _) in BAD_FILES.items()}
    for name, (_, _, detail) in BAD_FILES.items():
        assert results[name]["detail"], name
        assert detail in results[name]["detail"], (name, results[name]["detail"])
    assert len((await ada.get("/characters"))["items"]) == 1
    assert (await ada.get("/chats"))["items"] == []


def add_line(**members: Any) -> bytes:
    return (
        chat_jsonl(1) + b"\n" + json.dumps({"name": "Mara", "is_user": False, **members}).encode()
    )


BAD_CHATS: dict[str, tuple[bytes, int, str]] = {
    "truncated at the end.jsonl": (chat_jsonl(5)[:-20], 4, "is cut off and was left out"),
    "truncated in the middle.jsonl": (
        chat_jsonl(2)[:-20] + b"\n" + chat_jsonl(1).splitlines()[1],
        0,
        "Line 3 is not a message in JSON",
    ),
    "two in a line.jsonl": (
        chat_jsonl(3)[::-1].replace(b"\n", b"", 1)[::-1],
        3,
        "contains 2 messages",
    ),
    "no mes.jsonl": (add_line(), 2, "Line 3 has no text in `mes`"),
    "swipe out of range.jsonl": (
        add_line(mes="a", swipes=["a"], swipe_id=7),
        2,
        "`swipe_id` names none",
    ),
    "1970.jsonl": (chat_jsonl(2).replace(b"January 2, 2024", b"January 1, 1970"), 2, ""),
    "2099.jsonl": (chat_jsonl(2).replace(b"January 2, 2024", b"December 31, 2099"), 2, ""),
    "no date.jsonl": (chat_jsonl(2).replace(b"January 2, 2024", b"Sometime"), 2, ""),
    "Windows-1252.jsonl": (
        chat_jsonl(2, text="Caf\\u00e9").replace(rb"Caf\\u00e9", b"Caf\xe9"),
        2,
        "is not valid UTF-8",
    ),
    "UTF-16.jsonl": (chat_jsonl(2).decode().encode("utf-16"), 2, ""),
    "with a mark.jsonl": (b"\xef\xbb\xbf" + chat_jsonl(2), 2, ""),
    "Windows lines.jsonl": (chat_jsonl(2).replace(b"\n", b"\r\n"), 2, ""),
    "garbage.jsonl": (chat_jsonl(1) + b"\n\xff\xfe\x00garbage\n" + b"{}", 0, "Line 3"),
}
"""Files, the messages that each chat has, and words of the result. No chat has 0 messages."""


async def test_a_damaged_chat_is_whole_or_not_there(ada: Account) -> None:
    data = zipped({name: data for name, (data, _, _) in BAD_CHATS.items()})
    _, results = await bring(ada, data)
    assert results.keys() == BAD_CHATS.keys()
    for name, (_, count, words) in BAD_CHATS.items():
        found = results[name]
        said = " ".join([found["detail"], *found["warnings"]])
        assert words in said, (name, said)
        assert (found["outcome"] == "imported") == bool(count), (name, said)
        if count:
            assert len(await ada.messages(found["item_id"])) == count, name
        else:
            assert found["detail"], name
    chats = {each["id"] for each in (await ada.get("/chats"))["items"]}
    assert chats == {each["item_id"] for each in results.values() if each["item_id"]}


async def test_a_line_of_50_megabytes_fails_its_file(ada: Account) -> None:
    _, results = await bring(ada, add_line(mes="x" * 50_000_000), "long.jsonl")
    assert outcomes(results) == {"long.jsonl": "failed"}
    assert "Line 3 is longer than 8 MB" in results["long.jsonl"]["detail"]
    assert (await ada.get("/chats"))["items"] == []


def zip_many(count: int) -> bytes:
    """A zip of empty files, which is made faster than with `zipfile`."""
    files, directory = bytearray(), bytearray()
    for number in range(count):
        name = b"%06d.json" % number
        place = len(files)
        common = struct.pack("<HHHHHLLLHH", 20, 0, 0, 0, 33, 0, 0, 0, len(name), 0)
        files += b"PK\3\4" + common + name
        directory += b"PK\1\2" + struct.pack("<H", 20) + common
        directory += struct.pack("<HHHLL", 0, 0, 0, 0, place) + name
    end = struct.pack("<HHHHLLH", 0, 0, *[min(count, 0xFFFF)] * 2, len(directory), len(files), 0)
    return bytes(files + directory) + b"PK\5\6" + end


async def test_a_zip_with_too_many_files_is_refused_as_a_whole(ada: Account) -> None:
    view, results = await bring(ada, zip_many(100_001), "many.zip")
    assert view["state"] == "failed"
    assert outcomes(results) == {"many.zip": "failed"}
    assert "more than 100,000 files" in results["many.zip"]["detail"]


async def test_a_bomb_and_a_second_file_of_a_name_harm_no_other(ada: Account) -> None:
    target = io.BytesIO(zipped({"bomb.jsonl": b"\0" * 64_000_000, "Mara.png": card_png()}))
    with zipfile.ZipFile(target, "a") as archive:
        archive.writestr("folder\\Tovin.json", card_json("Tovin"))
        archive.writestr("folder/Tovin.json", card_json("Another"))
    _, results = await bring(ada, target.getvalue())
    assert outcomes(results)["bomb.jsonl"] == "failed"
    assert "1/200" in results["bomb.jsonl"]["detail"]
    assert outcomes(results)["Mara.png"] == "imported"
    names = {each["name"] for each in (await ada.get("/characters"))["items"]}
    assert names == {"Mara", "Tovin"}


async def test_unsafe_entries_of_a_zip_are_refused_one_by_one(ada: Account) -> None:
    data = zipped(
        {
            "../outside.json": card_json("Out"),
            "C:\\Windows\\card.json": card_json("Win"),
            "/etc/passwd.json": card_json("Root"),
            "folder\\Mara.png": card_png(),
        }
    )
    _, results = await bring(ada, data)
    assert outcomes(results) == {
        "../outside.json": "failed",
        "C:\\Windows\\card.json": "failed",
        "/etc/passwd.json": "failed",
        "folder/Mara.png": "imported",
    }


async def test_a_broken_zip_has_one_result(ada: Account) -> None:
    view, results = await bring(ada, zipped({"Mara.png": card_png()})[:-30], "cut.zip")
    assert view["state"] == "failed"
    assert outcomes(results) == {"cut.zip": "failed"}
    assert "broken" in results["cut.zip"]["detail"]
    assert not view["can_continue"]


async def test_results_are_listed_in_pages_and_by_outcome(ada: Account) -> None:
    files: dict[str, bytes] = {f"{number}.json": card_json(f"N{number}") for number in range(5)}
    view, _ = await bring(ada, zipped({**files, "empty.json": b""}))
    path = f"/api/v1/imports/{view['id']}/results"
    pages = await read_pages(ada.client.get, path, limit=2)
    assert [len(page) for page in pages] == [2, 2, 2]
    failed = await ada.get(f"/imports/{view['id']}/results", outcome="skipped")
    assert [each["path"] for each in failed["items"]] == ["empty.json"]


async def test_imports_are_listed_and_deleted(ada: Account) -> None:
    first, _ = await bring(ada, card_png(), "Mara.png")
    second, _ = await bring(ada, card_json("Tovin"), "Tovin.json")
    listed = await ada.get("/imports")
    assert [each["id"] for each in listed["items"]] == [second["id"], first["id"]]
    await ada.delete(f"/imports/{first['id']}")
    problem(await ada.ask("GET", f"/imports/{first['id']}"), 404, "import-not-found")
    assert len((await ada.get("/characters"))["items"]) == 2


async def test_a_finished_import_cannot_be_continued(ada: Account) -> None:
    view, _ = await bring(ada, card_png(), "Mara.png")
    answer = await ada.ask("POST", f"/imports/{view['id']}/continue")
    problem(answer, 409, "import-not-continuable")


UNKNOWN_ID = "01890a5d-ac96-774b-bcce-b302099a8057"

REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "an empty file": ({"files": {"file": ("a", b"")}}, 422, "validation-failed"),
    "an empty body": ({"content": b""}, 422, "validation-failed"),
    "no part file": ({"files": {"other": ("a", b"x")}}, 422, "validation-failed"),
    "two files": (
        {"files": [("file", ("a", b"x")), ("file", ("b", b"y"))]},
        422,
        "validation-failed",
    ),
    "another form": ({"data": {"file": "x"}}, 415, "unsupported-media-type"),
    "a broken form": (
        {"content": b"--x\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        400,
        "bad-request",
    ),
    "an unknown character": (
        {"files": {"file": ("a", b"x")}, "params": {"character_ids": [UNKNOWN_ID]}},
        404,
        "character-not-found",
    ),
    "an unknown format": (
        {"files": {"file": ("a", b"x")}, "params": {"format": "mud"}},
        422,
        "validation-failed",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_bad_request_leaves_nothing(ada: Account, case: str, tmp_path: Any) -> None:
    options, status, slug = REFUSED[case]
    problem(await ada.ask("POST", "/imports", **options), status, slug)
    assert (await ada.get("/imports"))["items"] == []
    assert list((tmp_path / "transfers").glob("*")) == []


async def test_the_upload_is_deleted_when_the_import_has_finished(
    ada: Account, tmp_path: Any
) -> None:
    await bring(ada, card_png(), "Mara.png")
    assert list((tmp_path / "transfers").glob("*")) == []


async def test_an_upload_is_never_in_plain_text_on_disk(ada: Account, tmp_path: Any) -> None:
    view = await upload(ada, chat_jsonl(text="The secret of the lighthouse"), "a.jsonl")
    for file in (tmp_path / "transfers").glob("*"):
        assert b"lighthouse" not in file.read_bytes()
    await ada.delete(f"/imports/{view['id']}")


async def test_another_account_sees_no_import(ada: Account, server: Any) -> None:
    view, _ = await bring(ada, card_png(), "Mara.png")
    async with server.account("Ben") as ben:
        for method, path in (
            ("GET", ""),
            ("GET", "/results"),
            ("POST", "/continue"),
            ("DELETE", ""),
        ):
            answer = await ben.ask(method, f"/imports/{view['id']}{path}")
            problem(answer, 404, "import-not-found")
        assert (await ben.get("/imports"))["items"] == []


async def test_keys_of_providers_need_the_scope_manage(ada: Account, server: Any) -> None:
    made = await ada.post("/api-keys", {"label": "p", "scope": "chat"}, 201)
    async with server.program(made["token"]) as program:
        answer = await program.post(
            "/api/v1/imports",
            params={"secrets": ["api_key_openai"]},
            files={"file": ("a.json", card_json())},
        )
        problem(answer, 403, "forbidden")


async def test_an_import_is_noted_in_the_recent_activity(ada: Account) -> None:
    await bring(ada, card_png(), "Mara.png")
    entries = (await ada.get("/me/activity"))["items"]
    assert "imported" in {each["kind"] for each in entries}
