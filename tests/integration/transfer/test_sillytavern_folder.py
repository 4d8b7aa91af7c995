"""Tests of the import of a SillyTavern user folder."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.transfer.importing import Importing
from tests.support.server import Account, Running
from tests.support.shared import ada, server, shared_url
from tests.support.sillytavern_folder import (
    FolderSize,
    SillyTavernFolder,
    make_picture,
    make_secrets,
)

__all__ = ["ada", "server", "shared_url"]

pytestmark = pytest.mark.anyio

SMALL = SillyTavernFolder(
    FolderSize(characters=18, chats=20, messages=6, swipes=2, groups=3, worlds=4)
)


@pytest.fixture
def importing(server: Running, ada: Account) -> Importing:
    return Importing(server, ada)


def files_of(folder: SillyTavernFolder = SMALL, prefix: str = "") -> dict[str, bytes]:
    return {prefix + path: data for path, data in folder.iterate_files()}


async def list_all(account: Account, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page = await account.get(path, limit=50, **({"after": after} if after else {}))
        found += page["items"]
        after = page["next"]
        if not after:
            return found


async def test_everything_of_a_folder_is_there(importing: Importing, ada: Account) -> None:
    results = await importing.run(files_of())
    assert not [path for path, result in results.items() if result.outcome == "failed"]
    kinds = Counter(result.kind for result in results.values() if result.outcome == "imported")
    assert kinds["character"] == len(await list_all(ada, "/characters")) == 18
    assert kinds["lorebook"] == len(await list_all(ada, "/lorebooks")) == 4
    assert kinds["persona"] == len(await list_all(ada, "/personas")) == 4
    assert kinds["preset"] == len(await list_all(ada, "/presets")) == 1
    assert kinds["chat"] == len(importing.chats) == 20 + 6


async def test_personas_have_pictures_books_and_locks(importing: Importing, ada: Account) -> None:
    results = await importing.run(files_of())
    stored = {each["id"]: each for each in await list_all(ada, "/personas")}
    files = list(SMALL.personas)
    ids = [str(results[f"User Avatars/{file}"].item_id) for file in files]
    assert [stored[each]["name"] for each in ids] == list(SMALL.personas.values())
    assert all(
        each["has_avatar"] and "travels light" in each["description"] for each in stored.values()
    )
    settings = await ada.get("/me/settings")
    assert settings["persona_id"] == ids[-1]
    books = await ada.get(f"/personas/{ids[1]}/lorebooks")
    assert [book["name"] for book in books["items"]] == [SMALL.worlds[0]]

    locked = [
        chat
        for chat in importing.chats
        if chat.target.members[0] == results[f"characters/{SMALL.characters[0].file}"].item_id
        and "persona" not in json.loads(chat.head.source or b"{}").get("chat_metadata", {})
    ]
    assert locked
    assert {chat.head.persona for chat in locked} == {files[2]}
    assert str(locked[0].target.personas[files[2]]) == ids[2]


async def test_books_tags_and_notes_reach_the_characters(
    importing: Importing, ada: Account
) -> None:
    results = await importing.run(files_of())
    for character in SMALL.characters:
        character_id = results[f"characters/{character.file}"].item_id
        view = await ada.get(f"/characters/{character_id}")
        assert view["tags"][0] == "original"
        assert len(view["tags"]) == 2
        books = await ada.get(f"/characters/{character_id}/lorebooks")
        names = [book["name"] for book in books["items"]]
        if character.number == 1:
            assert names == SMALL.worlds[:2]
        elif character.number % 3 == 0:
            assert names == [SMALL.worlds[character.number % 4]]  # and no copy of it
        else:
            assert names == []
    first = await ada.get(f"/characters/{results['characters/Mara.png'].item_id}")
    assert first["extensions"]["talekeeper"]["authors_note"]["text"] == "Never reveals the key."
    assert first["extensions"]["talkativeness"] == "0.5"
    worlds = {book["name"]: book["is_global"] for book in await list_all(ada, "/lorebooks")}
    assert worlds == {name: name == SMALL.worlds[-1] for name in SMALL.worlds}


async def test_a_book_in_a_card_stays_if_it_differs_from_its_world(
    importing: Importing, ada: Account
) -> None:
    files = files_of(SillyTavernFolder(FolderSize(characters=1, chats=0, groups=0, worlds=1)))
    world = json.loads(files["worlds/Seagate.json"])
    world["entries"]["0"]["content"] = "The gate was rebuilt."
    files["worlds/Seagate.json"] = json.dumps(world).encode()
    result = (await importing.run(files))["characters/Mara.png"]
    assert "a lorebook beside 'Seagate'" in result.warnings[-1]
    books = await ada.get(f"/characters/{result.item_id}/lorebooks")
    assert [book["name"] for book in books["items"]] == ["Seagate", "Seagate"]


async def test_scripts_of_cards_may_run_as_before(importing: Importing, ada: Account) -> None:
    files = files_of(SillyTavernFolder(FolderSize(characters=2, chats=0, groups=0)))
    settings = json.loads(files["settings.json"])
    settings["extension_settings"]["character_allowed_regex"] = ["Zoë.png", "gone.png"]
    files["settings.json"] = json.dumps(settings).encode()
    results = await importing.run(files)
    for file, allowed in (("Mara.png", None), ("Zoë.png", True)):
        view = await ada.get(f"/characters/{results[f'characters/{file}'].item_id}")
        assert view["scripts_allowed"] is allowed


async def test_settings_with_a_counterpart_are_applied(importing: Importing, ada: Account) -> None:
    results = await importing.run(files_of())
    scripts = await ada.get("/me/regex-scripts")
    assert [script["scriptName"] for script in scripts["scripts"]] == ["Trim spaces"]
    settings = await ada.get("/me/settings")
    assert settings["lore"]["scan_depth"] == 3
    assert settings["lore"]["strategy"] == "character_first"
    assert settings["quick_replies"] == [
        {"set": "Moves", "label": "Look", "text": "*I look around.*"},
        {"set": "Moves", "label": "Roll", "text": "/roll 1d20 | /echo"},
    ]
    assert any("Global variables" in warning for warning in results["settings.json"].warnings)


async def test_what_the_account_has_set_already_stays(importing: Importing, ada: Account) -> None:
    own = await ada.post("/personas", {"name": "Me"}, 201)
    await ada.patch("/me/settings", {"persona_id": own["id"], "lore": {"scan_depth": 9}})
    await importing.run(files_of())
    settings = await ada.get("/me/settings")
    assert settings["persona_id"] == own["id"]
    assert settings["lore"]["scan_depth"] == 9
    assert settings["lore"]["budget_percent"] == 30


async def test_groups_bring_their_members_and_old_metadata(importing: Importing) -> None:
    results = await importing.run(files_of())
    members = [results[f"characters/{each.file}"].item_id for each in SMALL.characters]
    old = importing.find_chat(SMALL.group_chat_paths[2].rpartition("/")[2])
    assert old.head.title == "Party 1"
    assert list(old.target.members) == members[3:6]
    assert old.target.speakers[SMALL.characters[4].file] == members[4]
    metadata = json.loads(old.head.source or b"{}")["chat_metadata"]
    assert metadata["note_prompt"].startswith("Note of 2025-03-02")
    *lines, last = await importing.account.messages(str(old.id))
    assert len(lines) == 6
    assert (last["character_id"], last["presence"]) == (str(members[5]), "muted")
    current = importing.find_chat(SMALL.group_chat_paths[3].rpartition("/")[2])
    assert json.loads(current.head.source or b"{}")["chat_metadata"] == {
        "note_prompt": "An old group."
    }
    group = results["groups/1740852000000.json"]
    assert group.outcome == "imported"
    assert group.warnings == ["Its character 'Nobody' was not imported, so it is not in the chat."]


async def test_branches_join_the_chats_that_they_came_from(importing: Importing) -> None:
    await importing.run(files_of())
    names = [path.rpartition("/")[2] for path in SMALL.chat_paths]
    order = [chat.target.file_name for chat in importing.chats]
    for path in SMALL.branch_paths:
        branch = importing.find_chat(path.rpartition("/")[2])
        main = importing.find_chat(f"{branch.head.main_chat}.jsonl")
        assert branch.target.joins == main.id
        assert order.index(branch.target.file_name) > order.index(main.target.file_name)
    assert sum(chat.target.joins is None for chat in importing.chats[: len(names)]) == 16


async def test_chats_open_with_their_swipes_persona_and_book(
    importing: Importing, ada: Account
) -> None:
    results = await importing.run(files_of())
    chat = await ada.get(f"/chats/{results[SMALL.chat_paths[0]].item_id}")
    persona = results[f"User Avatars/{next(iter(SMALL.personas))}"].item_id
    assert chat["persona_id"] == str(persona)
    books = await ada.get(f"/chats/{chat['id']}/lorebooks")
    linked = {book["lorebook"]["name"] for book in books["items"] if book["source"] == "chat"}
    assert linked == {SMALL.worlds[0]}
    first, second = (await ada.messages(chat["id"]))[:2]
    assert (first["sibling_count"], first["author"]) == (2, "Mara")
    assert first["character_id"] == str(results["characters/Mara.png"].item_id)
    assert second["persona_id"] == str(persona)


async def test_messages_find_their_files(importing: Importing) -> None:
    files = files_of()
    await importing.run(files)
    find = importing.chats[0].target.find_file
    assert find is not None
    picture = files["user/images/Mara/scene 0.png"]
    for path in (
        "/user/images/Mara/scene 0.png",
        "user/images/Mara/scene%200.png",
        "user\\images\\mara\\Scene 0.PNG",
    ):
        assert find(path) == picture
    assert find("/user/files/notes.txt") == files["user/files/notes.txt"]
    for path in ("../secrets.json", "user/../secrets.json", "secrets.json", "C:/user/x", ""):
        assert find(path) is None


async def test_a_second_run_brings_nothing_and_a_new_file_only_itself(
    importing: Importing, ada: Account
) -> None:
    files = files_of()
    await importing.run(files)
    before = [len(await list_all(ada, path)) for path in ("/characters", "/chats", "/lorebooks")]
    again = await importing.run(files)
    outcomes = Counter(result.outcome for result in again.values())
    assert set(outcomes) == {"already_there", "skipped"}
    after = [len(await list_all(ada, path)) for path in ("/characters", "/chats", "/lorebooks")]
    assert after == before

    files["chats/Mara/A new day.jsonl"] = files[SMALL.chat_paths[0]] + b"\n" + _line("A new day.")
    third = await importing.run(files)
    new = [path for path, result in third.items() if result.outcome == "imported"]
    assert new == ["chats/Mara/A new day.jsonl"]
    chat = importing.find_chat("A new day.jsonl")
    assert list(chat.target.members) == [again["characters/Mara.png"].item_id]


async def test_a_chat_that_went_on_joins_its_earlier_import(importing: Importing) -> None:
    files = files_of()
    first = await importing.run(files)
    path = SMALL.chat_paths[0]
    files[path] += b"\n" + _line("And then the bell rang.")
    await importing.run(files)
    assert importing.chats[-1].target.joins == first[path].item_id


async def test_a_card_that_was_only_played_is_the_same_character(
    importing: Importing, ada: Account
) -> None:
    await importing.run(files_of(SillyTavernFolder(FolderSize(characters=1, chats=0, worlds=0))))
    other = FolderSize(characters=1, chats=0, worlds=0, picture_side=25)
    results = await importing.run(files_of(SillyTavernFolder(other)))
    assert results["characters/Mara.png"].outcome == "already_there"
    assert len(await list_all(ada, "/characters")) == 1


async def test_a_continued_import_knows_what_the_first_part_made(importing: Importing) -> None:
    files = files_of()
    done = await importing.run(files, first=60)
    assert any(result.kind == "chat" for result in done.values())
    results = await importing.run(files)
    assert not [path for path, result in results.items() if result.outcome == "failed"]
    assert len(importing.chats) == 26


async def test_copies_are_made_if_asked_for(importing: Importing, ada: Account) -> None:
    folder = SillyTavernFolder(FolderSize(characters=2, chats=5, groups=0))
    files = files_of(folder)
    await importing.run(files)
    await importing.run(files, copy=True)
    assert len(await list_all(ada, "/characters")) == 4
    assert len(await list_all(ada, "/personas")) == 8
    copied = importing.chats[5:]
    assert {chat.target.joins for chat in copied if not chat.head.main_chat} == {None}


@pytest.mark.parametrize(
    ("prefix", "more"),
    [
        ("data/default-user/", {"data/default-user2/settings.json": b"{}"}),
        (
            "SillyTavern/data/default-user/",
            {"SillyTavern/server.js": b"", "SillyTavern/a.txt": b""},
        ),
        ("My chats/", {}),
    ],
)
async def test_finds_the_folder_in_a_larger_tree(
    importing: Importing, prefix: str, more: dict[str, bytes]
) -> None:
    folder = SillyTavernFolder(FolderSize(characters=2, chats=5, groups=1))
    results = await importing.run(files_of(folder, prefix) | more)
    assert results[f"{prefix}characters/Mara.png"].outcome == "imported"
    assert len(importing.chats) == 7
    if more:
        assert "This folder was imported" in results[prefix.rstrip("/")].detail


async def test_says_which_of_several_users_was_imported(importing: Importing) -> None:
    folder = SillyTavernFolder(FolderSize(characters=2, chats=2, groups=0))
    files = files_of(folder, "data/default-user/") | files_of(folder, "data/ben/")
    results = await importing.run(files)
    assert results["data/ben"].outcome == "skipped"
    assert "'data/default-user' was imported" in results["data/ben"].detail
    assert "data/ben/characters/Mara.png" not in results


async def test_folders_without_counterpart_are_skipped_once_with_a_reason(
    importing: Importing,
) -> None:
    files = files_of()
    files["characters/Mara/joy.png"] = files["characters/Mara/anger.png"] = make_picture(4, seed=1)
    files["odd/one.bin"] = files["odd/two.bin"] = b"?"
    files["User Avatars/unnamed.png"] = make_picture(4, seed=1)
    results = await importing.run(files)
    skipped = {path for path, result in results.items() if result.outcome == "skipped"}
    assert skipped == {
        *("backups", "backgrounds", "themes", "movingUI", "vectors", "thumbnails", "user"),
        *("TextGen Settings", "instruct", "context", "sysprompt", "reasoning"),
        *("characters/Mara", "odd", "User Avatars/unnamed.png"),
        *("content.log", "stats.json", "secrets.json"),
    }
    assert all(results[path].detail for path in skipped)


async def test_keys_are_imported_only_if_they_are_named(importing: Importing, ada: Account) -> None:
    files = files_of(SillyTavernFolder(FolderSize(characters=1, chats=0, groups=0)))
    result = (await importing.run(files))["secrets.json"]
    assert result.outcome == "skipped"
    assert "api_key_openai" in result.detail
    keys = [make_secrets()["api_key_openai"], make_secrets()["api_key_openrouter"][0]["value"]]
    assert not any(key in result.detail for key in keys)
    providers = await ada.ask("GET", "/providers")
    assert "sk-not-a-real" not in providers.text

    named = frozenset({"api_key_openrouter"})
    result = (await importing.run(files, secrets=named))["secrets.json"]
    assert (result.outcome, result.kind) == ("imported", "provider")
    assert "not asked for: api_key_openai" in result.detail
    again = (await importing.run(files, secrets=named))["secrets.json"]
    assert (again.outcome, again.item_id) == ("already_there", result.item_id)
    providers = await ada.ask("GET", "/providers")
    assert [each["kind"] for each in providers.json()["items"] if each["scope"] == "user"] == [
        "openai"
    ]


async def test_broken_files_fail_by_themselves(importing: Importing, ada: Account) -> None:
    files = files_of()
    files |= {
        "characters/Broken.png": b"\x89PNG\r\n\x1a\nnothing",
        "characters/plain.png": make_picture(4, seed=3),
        "worlds/Broken.json": b'{"entries": ',
        "worlds/Card.json": b'{"spec": "chara_card_v2", "data": {"name": "X"}}',
        "groups/broken.json": b"[]",
        "group chats/orphan.jsonl": files[SMALL.group_chat_paths[0]] + b"\n" + _line("Who?"),
        "chats/Departed/Old.jsonl": files[SMALL.chat_paths[0]] + b"\n" + _line("Gone."),
        "chats/Mara/broken.jsonl": b"\xff\xfe\x00 not a chat",
        "chats/loose.jsonl": b"{}",
        "OpenAI Settings/Broken.json": b"{}",
        "QuickReplies/Broken.json": b"{}",
    }
    results = await importing.run(files)
    failed = {path: result for path, result in results.items() if result.outcome == "failed"}
    assert set(failed) == {
        "characters/Broken.png",
        "worlds/Broken.json",
        "worlds/Card.json",
        "groups/broken.json",
        "chats/Mara/broken.jsonl",
        "OpenAI Settings/Broken.json",
        "QuickReplies/Broken.json",
    }
    assert all(result.detail for result in failed.values())
    assert results["characters/plain.png"].outcome == "skipped"
    assert "no character card" in results["characters/plain.png"].detail
    orphan = results["group chats/orphan.jsonl"]
    assert orphan.outcome == "imported"
    assert "No group of the folder has this chat" in orphan.warnings[0]
    departed = results["chats/Departed/Old.jsonl"]
    assert departed.outcome == "imported"
    assert "'Departed' was not imported" in departed.warnings[0]
    assert len(await list_all(ada, "/characters")) == 18


async def test_broken_settings_do_not_stop_the_rest(importing: Importing) -> None:
    files = files_of(SillyTavernFolder(FolderSize(characters=2, chats=2, groups=0)))
    files["settings.json"] = b'{"power_user": '
    results = await importing.run(files)
    assert results["settings.json"].outcome == "failed"
    assert "settings cannot be read" in results["settings.json"].detail
    assert len(importing.chats) == 2


async def test_names_may_differ_in_case_and_unicode_form(importing: Importing) -> None:
    files = files_of(SillyTavernFolder(FolderSize(characters=2, chats=10, groups=0)))
    renamed = {
        path.replace("chats/Zoë/", "chats/zoe\u0308/").replace("worlds/", "Worlds/"): data
        for path, data in files.items()
    }
    results = await importing.run(renamed)
    zoe = results["characters/Zoë.png"].item_id
    assert sum(list(chat.target.members) == [zoe] for chat in importing.chats) == 5
    assert not results["characters/Mara.png"].warnings


async def test_a_group_without_chats_opens_one(importing: Importing, ada: Account) -> None:
    files = files_of(SillyTavernFolder(FolderSize(characters=3, chats=0, groups=1, group_chats=0)))
    result = (await importing.run(files))["groups/1740852000000.json"]
    assert (result.outcome, result.kind) == ("imported", "chat")
    chat = await ada.get(f"/chats/{result.item_id}")
    assert chat["title"] == "Party 0"
    assert len(chat["character_ids"]) == 3
    assert (await importing.run(files))["groups/1740852000000.json"].outcome == "already_there"


def test_the_builder_is_deterministic_and_writes_a_folder_or_a_zip(tmp_path: Path) -> None:
    folder = SillyTavernFolder(FolderSize(characters=2, chats=5))
    written = folder.write_folder(tmp_path / "default-user")
    paths = sorted(path for path in written.rglob("*") if path.is_file())
    files = {path.relative_to(written).as_posix(): path.read_bytes() for path in paths}
    assert files == files_of(SillyTavernFolder(FolderSize(characters=2, chats=5)))
    for name in ("one.zip", "two.zip"):
        folder.write_zip(tmp_path / name, prefix="data/default-user/")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def _line(text: str) -> bytes:
    return json.dumps({"name": "Ada", "is_user": True, "mes": text}).encode()
