"""Tests of the recognition of a SillyTavern user folder and of its files."""

from __future__ import annotations

import io
import json

import pytest

from backend.transfer.errors import TransferFileError
from backend.transfer.folders.account import read_quick_replies, read_secrets
from backend.transfer.folders.groups import (
    add_header,
    read_group,
    read_start,
    sort_branches,
)
from backend.transfer.folders.layout import clean_path, find_user_folder
from backend.transfer.folders.settings_file import read_settings_file

USER_FILES = ("settings.json", "characters/Mara.png", "chats/Mara/one.jsonl", "worlds/Sea.json")


@pytest.mark.parametrize(
    ("prefix", "root"),
    [
        ("", ""),
        ("default-user/", "default-user/"),
        ("data/default-user/", "data/default-user/"),
        ("SillyTavern/data/ben/", "SillyTavern/data/ben/"),
        ("SillyTavern/public/", "SillyTavern/public/"),
    ],
)
def test_finds_a_folder_at_any_depth(prefix: str, root: str) -> None:
    paths = [f"{prefix}{path}" for path in USER_FILES]
    noise = ["SillyTavern/server.js", "SillyTavern/default/content/settings.json"]
    found = find_user_folder([*paths, *noise])
    assert found is not None
    assert found.root == root
    assert found.find("characters/mara.PNG") == f"{prefix}characters/Mara.png"


def test_takes_the_default_user_before_others() -> None:
    paths = [f"data/{name}/{path}" for name in ("ann", "default-user") for path in USER_FILES]
    found = find_user_folder([*paths, "data/ann/groups/1.json"])
    assert found is not None
    assert (found.root, list(found.others)) == ("data/default-user/", ["data/ann/"])


def test_a_folder_inside_another_is_a_part_of_it() -> None:
    paths = [*USER_FILES, *(f"backups/old/{path}" for path in USER_FILES)]
    found = find_user_folder([*paths, *(f"copy/{path}" for path in USER_FILES)])
    assert found is not None
    assert (found.root, list(found.others)) == ("", [])


@pytest.mark.parametrize(
    "paths",
    [
        [],
        ["Mara.png", "Ivo.png"],
        ["settings.json", "package.json"],
        ["characters/Mara.png"],
        ["a/characters/Mara.png", "b/chats/Mara/one.jsonl"],
        ["characters", "chats"],
        ["thumbnails/characters/x", "thumbnails/chats/y/z"],
    ],
)
def test_other_trees_are_not_a_user_folder(paths: list[str]) -> None:
    assert find_user_folder(paths) is None


def test_files_of_operating_systems_are_left_out() -> None:
    junk = ["characters/.gitkeep", "characters/._Mara.png", "worlds/._Sea.json"]
    found = find_user_folder([*USER_FILES, *junk])
    assert found is not None
    assert found.list_files("characters") == ["characters/Mara.png"]
    assert found.list_files("worlds") == ["worlds/Sea.json"]


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("/user/images/Mara/x.png", "user/images/Mara/x.png"),
        ("user\\images\\x.png", "user/images/x.png"),
        ("./user//files/a.txt", "user/files/a.txt"),
        ("user/../secrets.json", ""),
        ("C:\\Users\\x.png", ""),
        ("", ""),
    ],
)
def test_paths_in_messages_stay_inside_the_folder(written: str, path: str) -> None:
    assert clean_path(written) == path


def test_reads_the_settings_of_any_age() -> None:
    settings = {
        "username": "Ada",
        "user_avatar": "ada.png",
        "power_user": {
            "personas": {"galen.png": "Galen", "blank.png": " "},
            "persona_description": "An engineer.",
            "persona_descriptions": {
                "galen.png": {
                    "description": "A knight.",
                    "position": 4,
                    "lorebook": "Sea",
                    "connections": [
                        {"type": "character", "id": "Mara.png"},
                        {"type": "group", "id": "17"},
                        "nonsense",
                    ],
                },
                "blank.png": None,
            },
        },
        "tags": [{"id": "1", "name": "sea"}, {"id": "2"}, 3],
        "tag_map": {"Mara.png": ["1", "2", "gone"], "Ivo.png": "1"},
        "world_info_settings": {
            "world_info": {"globalSelect": ["Sea", 4], "charLore": [{"name": "Mara"}]},
            "world_info_depth": 5_000_000,
            "world_info_budget": 40,
            "world_info_character_strategy": 2,
        },
        "extension_settings": {"note": {"default": "Be brief."}, "regex": {"not": "a list"}},
    }
    found = read_settings_file(json.dumps(settings).encode())
    galen, blank, ada = found.personas
    assert (galen.name, galen.lorebook, galen.position) == ("Galen", "Sea", 4)
    assert (list(galen.character_files), list(galen.group_ids)) == (["Mara.png"], ["17"])
    assert (blank.name, ada.name, ada.description) == ("User", "Ada", "An engineer.")
    assert found.default_persona == "ada.png"
    assert found.tags == {"Mara.png": ["sea"], "Ivo.png": []}
    assert found.global_books == ["Sea"]
    assert (found.lore.scan_depth, found.lore.budget_percent) == (None, 40)
    assert found.lore.strategy == "global_first"
    assert len(found.left_out) == 1
    assert not found.scripts


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_refuses_settings_that_cannot_be_read(data: bytes) -> None:
    with pytest.raises(TransferFileError):
        read_settings_file(data)


def test_empty_settings_have_no_personas() -> None:
    assert not read_settings_file(b"{}").personas


def test_reads_groups_with_the_metadata_of_older_versions() -> None:
    raw = {
        "id": 17,
        "name": "Party",
        "members": ["Mara.png", "Ivo.png", "Mara.png", None],
        "chat_id": "b",
        "chats": ["a"],
        "chat_metadata": {"note_prompt": "now"},
        "past_metadata": {"a": {"note_prompt": "then"}, "c": 1},
    }
    group = read_group(json.dumps(raw).encode(), name="17")
    assert (group.id, list(group.members)) == ("17", ["Mara.png", "Ivo.png"])
    assert list(group.chats) == ["a", "b"]
    assert group.metadata == {"a": {"note_prompt": "then"}, "b": {"note_prompt": "now"}}
    with pytest.raises(TransferFileError, match="no list of `members`"):
        read_group(b"{}", name="17")


@pytest.mark.parametrize(
    ("line", "main", "has_header"),
    [
        (b'{"chat_metadata": {"main_chat": "one"}}', "one", True),
        (b'{"chat_metadata": {"main_chat": 7}}', "7", True),
        (b'{"user_name": "a", "character_name": "b"}', "", True),
        (b'{"name": "Mara", "mes": "Hi"}', "", False),
        (b'{"broken', "", True),
        (b"[" * 100_000, "", True),
        (b"", "", True),
    ],
)
def test_reads_the_first_line_of_a_chat(line: bytes, main: str, has_header: bool) -> None:
    start = read_start(io.BytesIO(line + b'\n{"mes": "second"}'))
    assert (start.main_chat, start.has_header) == (main, has_header)


def test_branches_follow_the_chats_that_they_came_from() -> None:
    mains = {"c": "b", "b": "a", "a": None, "x": "y", "y": "x", "z": "gone", "s": "s"}
    ordered = sort_branches(mains)
    assert sorted(ordered) == sorted(mains)
    assert ordered.index("a") < ordered.index("b") < ordered.index("c")


def test_a_long_chain_of_branches_is_ordered() -> None:
    mains = {str(number): str(number - 1) for number in range(1, 5_000)} | {"0": None}
    assert sort_branches(dict(reversed(mains.items())))[:3] == ["0", "1", "2"]


def test_adds_the_header_that_older_group_chats_lack() -> None:
    file = add_header(io.BytesIO(b'{"mes": "Hi"}\n{"mes": "Bye"}'), {"note_prompt": "x"})
    header, *messages = [json.loads(line) for line in file]
    assert header["chat_metadata"] == {"note_prompt": "x"}
    assert [message["mes"] for message in messages] == ["Hi", "Bye"]


def test_reads_the_active_one_of_several_keys() -> None:
    keys = [{"value": "old", "active": False}, {"value": "new", "active": True}]
    secrets = {"api_key_openai": keys, "api_key_claude": " key ", "api_key_x": "", "url": "y"}
    found = read_secrets(json.dumps(secrets).encode())
    assert found == {"api_key_openai": "new", "api_key_claude": "key"}


def test_reads_quick_replies_of_both_versions() -> None:
    new = {"name": "Moves", "qrList": [{"label": "Look", "message": "I look."}, {"message": ""}]}
    old = {"quickReplySlots": [{"label": "Go", "mes": "I go."}, {"label": "", "mes": "x" * 5000}]}
    found, _ = read_quick_replies(json.dumps(new).encode(), name="file")
    assert [(each.set, each.label, each.text) for each in found] == [("Moves", "Look", "I look.")]
    found, warnings = read_quick_replies(json.dumps(old).encode(), name="file")
    assert [(each.set, each.label, each.text) for each in found] == [("file", "Go", "I go.")]
    assert "more than 4,000 characters" in warnings[-1]
    with pytest.raises(TransferFileError, match="qrList"):
        read_quick_replies(b"[]", name="file")
