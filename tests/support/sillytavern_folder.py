"""Builds the folder of a user as SillyTavern 1.18 lays it out. The same size gives the same bytes.

`iterate_files` yields one file at a time, so that a folder of gigabytes needs little memory.
"""

from __future__ import annotations

import base64
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from random import Random
from typing import IO, Any

HANDLE = "default-user"
BEGIN = datetime(2025, 3, 1, 18, 0, tzinfo=UTC)
GONE = "Nobody.png"
"""A card that a group names, and that was deleted."""

NAMES = (
    *("Mara", "Zoë", "Captain O'Neill", "Ivo", "Ash & Ember", "黒川", "Lady Winter", "Tobias"),
    *("Quill", "Sister Anne", "Rook", "Old Bess", "Nim", "Dr. Vex", "Pell", "Yara"),
)
PERSONAS = ("Ada", "Sir Galen", "The Stranger", "Bo")
PLACES = ("Seagate", "The Tower", "Old Forest", "Inn of the Crow", "Undercity", "The Pass")
TAGS = ("fantasy", "slow burn", "mystery", "sci-fi", "favourite")
SENTENCES = (
    "The lamp on the windowsill flickers and goes out.",
    "*She turns the coin between her fingers.* “You came back.”",
    "Rain drums on the slate roof, and somewhere a door falls shut.",
    "“I told you not to open the {{random::red,green}} letter,” he says at last.",
    "Nothing in the harbour moves except the gulls.",
    "```\nThe map has one corner missing.\n```",
    "They walk in silence until the road forks — left to the mill, right to the sea.",
    "*A long pause.* “Then we leave tonight.” 🌙",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSize:
    """The size of a folder. `chats` counts branches, but not the chats of groups.

    A message has `sentences` sentences, and a reply up to `swipes` versions. Pictures have
    `picture_side` pixels a side, of noise, so that their size does not shrink in a zip.
    """

    characters: int = 30
    chats: int = 200
    messages: int = 20
    swipes: int = 3
    sentences: int = 3
    groups: int = 3
    group_chats: int = 2
    worlds: int = 5
    entries: int = 6
    personas: int = 4
    pictures: int = 4
    picture_side: int = 24


@dataclass(frozen=True, slots=True)
class Character:
    number: int
    name: str
    file: str

    @property
    def stem(self) -> str:
        return self.file.removesuffix(".png")


@dataclass(frozen=True)
class SillyTavernFolder:
    """The files of a user. All members follow from `size`."""

    size: FolderSize = field(default_factory=FolderSize)

    @cached_property
    def characters(self) -> list[Character]:
        """Names repeat: then SillyTavern adds a number to the name of the card's file."""
        found: list[Character] = []
        for number in range(self.size.characters):
            name = NAMES[number % len(NAMES)]
            times = number // len(NAMES)
            found.append(Character(number, name, f"{name}{times or ''}.png"))
        return found

    @cached_property
    def worlds(self) -> list[str]:
        return [
            f"{PLACES[number % len(PLACES)]}{f' {number}' if number >= len(PLACES) else ''}"
            for number in range(self.size.worlds)
        ]

    @cached_property
    def personas(self) -> dict[str, str]:
        """Names by picture file."""
        names = [PERSONAS[number % len(PERSONAS)] for number in range(self.size.personas)]
        return {
            f"{1700000000000 + number}-{name.split()[-1]}.png": name
            for number, name in enumerate(names)
        }

    @cached_property
    def chat_paths(self) -> list[str]:
        """The paths of the chats of single characters: each fifth is a branch of the one before."""
        paths: list[str] = []
        for number in range(self.size.chats):
            character = self.characters[self._owner(number)]
            paths.append(f"chats/{character.stem}/{self._chat_name(number)}.jsonl")
        return paths

    @property
    def branch_paths(self) -> list[str]:
        return [path for number, path in enumerate(self.chat_paths) if self._is_branch(number)]

    @cached_property
    def group_chat_paths(self) -> list[str]:
        return [
            f"group chats/{self._group_chat_id(group, chat)}.jsonl"
            for group in range(self.size.groups)
            for chat in range(self.size.group_chats)
        ]

    def iterate_files(self) -> Iterator[tuple[str, bytes]]:
        """Yield (path in the user's folder, content)."""
        for character in self.characters:
            yield f"characters/{character.file}", self._make_card(character)
            yield f"thumbnails/avatar/{character.file}", make_picture(8, seed=character.number)
        for number, name in enumerate(self.worlds):
            yield f"worlds/{name}.json", _dump(self._make_world(number), indent=4)
        for number, file in enumerate(self.personas):
            yield f"User Avatars/{file}", make_picture(self.size.picture_side, seed=900 + number)
        for number in range(self.size.pictures):
            path = self._picture_path(number)
            yield path, make_picture(self.size.picture_side, seed=500 + number)
        yield "user/files/notes.txt", b"Notes of the last session.\n"
        for number, path in enumerate(self.chat_paths):
            yield path, self._make_chat(number)
        for group in range(self.size.groups):
            yield f"groups/{self._group_id(group)}.json", _dump(self._make_group(group), indent=4)
            for chat in range(self.size.group_chats):
                path = f"group chats/{self._group_chat_id(group, chat)}.jsonl"
                yield path, self._make_group_chat(group, chat)
        yield from self._iterate_presets()
        yield "settings.json", _dump(self.make_settings(), indent=4)
        yield "secrets.json", _dump(make_secrets(), indent=4)
        yield "backups/chat_mara_20250301-180000.jsonl", b"{}"
        yield "backups/settings_20250301-180000.json", b"{}"
        yield "backgrounds/tavern.jpg", b"\xff\xd8\xff\xe0"
        yield "themes/Dark Lite.json", b'{"name": "Dark Lite"}'
        yield "movingUI/Default.json", b'{"name": "Default"}'
        yield "vectors/webllm/1/index.json", b"{}"
        yield "content.log", b"Mara.png\n"
        yield "stats.json", b"{}"

    def write_folder(self, target: Path) -> Path:
        """Write the folder, and return its path."""
        for path, data in self.iterate_files():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return target

    def write_zip(self, target: Path | IO[bytes], *, prefix: str = "") -> None:
        """Write a zip. `prefix` is for example `data/default-user/`."""
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path, data in self.iterate_files():
                archive.writestr(zipfile.ZipInfo(prefix + path, (2025, 3, 1, 18, 0, 0)), data)

    # Characters and worlds

    def _make_card(self, character: Character) -> bytes:
        data = {
            "name": character.name,
            "description": f"{character.name} keeps the records of {PLACES[0]}. {SENTENCES[0]}",
            "personality": "patient, dry, observant",
            "scenario": f"{{{{user}}}} meets {{{{char}}}} at the gate. (No. {character.number})",
            "first_mes": f"*{character.name} looks up.* “{{{{user}}}}? Come in.”",
            "mes_example": "<START>\n{{user}}: Hello?\n{{char}}: You are late.",
            "creator_notes": "",
            "system_prompt": "",
            "post_history_instructions": "",
            "tags": ["original"],
            "creator": "",
            "character_version": "",
            "alternate_greetings": [f"“Who goes there?” asks {character.name}."],
            "extensions": {
                "talkativeness": "0.5",
                "fav": character.number == 0,
                "world": self._find_world(character),
                "depth_prompt": {"prompt": "", "depth": 4, "role": "system"},
            },
            "group_only_greetings": [],
        }
        world = self._find_world(character)
        if world:
            data["character_book"] = self._make_card_book(self.worlds.index(world))
        card = {
            "name": data["name"],
            "description": data["description"],
            "personality": data["personality"],
            "scenario": data["scenario"],
            "first_mes": data["first_mes"],
            "mes_example": data["mes_example"],
            "creatorcomment": "",
            "avatar": "none",
            "chat": f"{character.name} - 2025-03-01@18h00m00s",
            "talkativeness": "0.5",
            "fav": False,
            "tags": ["original"],
            "spec": "chara_card_v2",
            "spec_version": "2.0",
            "data": data,
            "create_date": "2025-03-01T18:00:00.000Z",
        }
        third = {**card, "spec": "chara_card_v3", "spec_version": "3.0"}
        texts = {"chara": _dump(card), "ccv3": _dump(third)}
        return make_picture(self.size.picture_side, seed=character.number, texts=texts)

    def _find_world(self, character: Character) -> str:
        """Return the world of each third card."""
        return (
            self.worlds[character.number % len(self.worlds)] if self._has_world(character) else ""
        )

    def _has_world(self, character: Character) -> bool:
        return bool(self.worlds) and character.number % 3 == 0

    def _list_lore(self, world: int) -> list[tuple[list[str], str]]:
        name = self.worlds[world]
        return [
            (
                [f"{name} {entry}", f"gate {entry}"],
                f"Lore {entry} of {name}: {SENTENCES[entry % 8]}",
            )
            for entry in range(self.size.entries)
        ]

    def _make_world(self, number: int) -> dict[str, Any]:
        entries: dict[str, dict[str, Any]] = {
            str(uid): {
                "uid": uid,
                "key": keys,
                "keysecondary": [],
                "comment": keys[0],
                "content": content,
                "constant": False,
                "vectorized": False,
                "selective": True,
                "selectiveLogic": 0,
                "addMemo": True,
                "order": 100,
                "position": 0,
                "disable": False,
                "ignoreBudget": False,
                "excludeRecursion": False,
                "preventRecursion": False,
                "matchPersonaDescription": False,
                "delayUntilRecursion": 0,
                "probability": 100,
                "useProbability": True,
                "depth": 4,
                "outletName": "",
                "group": "",
                "groupOverride": False,
                "groupWeight": 100,
                "scanDepth": None,
                "caseSensitive": None,
                "matchWholeWords": None,
                "useGroupScoring": None,
                "automationId": "",
                "role": 0,
                "sticky": 0,
                "cooldown": 0,
                "delay": 0,
                "triggers": [],
                "displayIndex": uid,
                "characterFilter": {"isExclude": False, "names": [], "tags": []},
            }
            for uid, (keys, content) in enumerate(self._list_lore(number))
        }
        return {"entries": entries}

    def _make_card_book(self, world: int) -> dict[str, Any]:
        """The copy of a world that SillyTavern puts into the cards that are linked to it."""
        entries = [
            {
                "id": uid,
                "keys": keys,
                "secondary_keys": [],
                "comment": keys[0],
                "content": content,
                "constant": False,
                "selective": True,
                "insertion_order": 100,
                "enabled": True,
                "position": "before_char",
                "use_regex": True,
                "extensions": {"position": 0, "display_index": uid, "probability": 100},
            }
            for uid, (keys, content) in enumerate(self._list_lore(world))
        ]
        return {"entries": entries, "name": self.worlds[world]}

    # Chats

    def _owner(self, number: int) -> int:
        """Return the number of a chat's character: each has runs of five chats."""
        return number // 5 % self.size.characters

    def _is_branch(self, number: int) -> bool:
        return number % 5 == 4

    def _begin(self, number: int) -> datetime:
        return BEGIN + timedelta(hours=7 * number)

    def _chat_name(self, number: int) -> str:
        begin = f"{self._begin(number):%Y-%m-%d@%Hh%Mm%Ss}000ms"
        name = self.characters[self._owner(number)].name
        return f"Branch #{number} - {begin}" if self._is_branch(number) else f"{name} - {begin}"

    def _make_chat(self, number: int) -> bytes:
        """Return a chat. A branch shares its first half with the chat before it."""
        metadata: dict[str, Any] = {"integrity": f"0000-{number:08d}", "tainted": True}
        main = number - 1 if self._is_branch(number) else number
        metadata |= {"chat_id_hash": 1000 + main, "lastInContextMessageId": 0}
        if number % 7 == 0:
            metadata |= {"note_prompt": "Keep it tense.", "note_interval": 1, "note_depth": 4}
            metadata |= {"note_position": 1, "note_role": 0}
        if number % 6 == 0 and self.worlds:
            metadata["world_info"] = self.worlds[number % len(self.worlds)]
        if number % 4 == 0 and self.personas:
            metadata["persona"] = list(self.personas)[number % len(self.personas)]
        if number % 9 == 0:
            metadata["variables"] = {"gold": number, "mood": "wary"}
        if main != number:
            metadata["main_chat"] = self._chat_name(main)
        character = self.characters[self._owner(number)]
        shared = self.size.messages // 2 if main != number else 0
        header = {"chat_metadata": metadata, "user_name": "unused", "character_name": "unused"}
        lines: list[dict[str, Any]] = [header]
        for place in range(self.size.messages):
            origin = main if place < shared else number
            lines.append(self._make_message(origin, place, character))
        if not self._is_branch(number) and number % 5 == 3 and self.size.messages > 2:
            last = lines[self.size.messages // 2]
            last["extra"] = {**last["extra"], "bookmark_link": self._chat_name(number + 1)}
        return b"\n".join(map(_dump, lines))

    def _make_message(self, chat: int, place: int, speaker: Character) -> dict[str, Any]:
        random = Random(f"{chat}/{place}")
        sent = self._begin(chat) + timedelta(minutes=3 * place)
        date = f"{sent:%B} {sent.day}, {sent.year} {sent.hour % 12 or 12}:{sent:%M}{sent:%p}"
        written = date.replace("AM", "am").replace("PM", "pm") if chat % 3 == 0 else _iso(sent)
        texts = [
            " ".join(random.choices(SENTENCES, k=self.size.sentences))
            for _ in range(self.size.swipes)
        ]
        if place % 2:
            persona = next(iter(self.personas.values()), "User")
            return {
                "name": persona,
                "is_user": True,
                "is_system": False,
                "send_date": written,
                "mes": texts[0],
                "extra": self._make_attachment(chat, place),
                "force_avatar": f"User Avatars/{next(iter(self.personas), 'user-default.png')}",
            }
        swipe_id = random.randrange(len(texts))
        infos = [
            {
                "send_date": written,
                "gen_started": _iso(sent),
                "gen_finished": _iso(sent + timedelta(seconds=4 + swipe)),
                "extra": {
                    "api": "openai",
                    "model": "gpt-4o",
                    "reasoning": "She would hesitate." if swipe == 0 else "",
                    "reasoning_duration": 1200,
                    "token_count": 30 + swipe,
                },
            }
            for swipe in range(len(texts))
        ]
        return {
            "name": speaker.name,
            "is_user": False,
            "is_system": place == 6,
            "send_date": written,
            "mes": texts[swipe_id],
            "extra": infos[swipe_id]["extra"],
            "swipe_id": swipe_id,
            "swipes": texts,
            "swipe_info": infos,
            "gen_started": infos[swipe_id]["gen_started"],
            "gen_finished": infos[swipe_id]["gen_finished"],
        }

    def _picture_path(self, number: int) -> str:
        return f"user/images/{self.characters[0].name}/scene {number}.png"

    def _make_attachment(self, chat: int, place: int) -> dict[str, Any]:
        extra: dict[str, Any] = {"isSmallSys": False}
        if place == 1 and chat % 10 == 0 and self.size.pictures:
            url = f"/{self._picture_path(chat // 10 % self.size.pictures)}"
            extra |= {"media": [{"url": url, "type": "image", "title": "A scene"}]}
            extra |= {"media_display": "gallery", "inline_image": True}
        if place == 3 and chat % 20 == 0:
            file = {"url": "/user/files/notes.txt", "size": 27, "name": "notes.txt"}
            extra["files"] = [{**file, "created": 1740852000000}]
        return extra

    # Groups

    def _group_id(self, group: int) -> str:
        return str(1740852000000 + group)

    def _group_chat_id(self, group: int, chat: int) -> str:
        return f"{BEGIN + timedelta(days=group, hours=chat):%Y-%m-%d@%Hh%Mm%Ss}{group:03d}ms"

    def _members(self, group: int) -> list[Character]:
        return [
            self.characters[(3 * group + place) % len(self.characters)]
            for place in range(min(3, len(self.characters)))
        ]

    def _make_group(self, group: int) -> dict[str, Any]:
        chats = [self._group_chat_id(group, chat) for chat in range(self.size.group_chats)]
        members = [member.file for member in self._members(group)]
        return {
            "id": self._group_id(group),
            "name": f"Party {group}",
            "members": [*members, GONE] if group == 0 else members,
            "avatar_url": "img/five.png",
            "allow_self_responses": False,
            "activation_strategy": group % 4,
            "generation_mode": 0,
            "disabled_members": members[2:],
            "fav": False,
            "chat_id": chats[-1] if chats else "",
            "chats": chats,
            "auto_mode_delay": 5,
            "generation_mode_join_prefix": "",
            "generation_mode_join_suffix": "",
            **({"chat_metadata": {"note_prompt": "An old group."}} if group == 1 else {}),
            **({"past_metadata": self._past_metadata(chats)} if group == 1 else {}),
        }

    def _past_metadata(self, chats: list[str]) -> dict[str, Any]:
        return {chat: {"note_prompt": f"Note of {chat}."} for chat in chats}

    def _make_group_chat(self, group: int, chat: int) -> bytes:
        """Return a group chat. Those of the second group are old and have no header."""
        members = self._members(group)
        lines: list[dict[str, Any]] = []
        if group != 1:
            metadata = {"integrity": f"1111-{group}{chat}", "tainted": False}
            lines.append(
                {"chat_metadata": metadata, "user_name": "unused", "character_name": "unused"}
            )
        for place in range(self.size.messages):
            member = members[place // 2 % len(members)]
            line = self._make_message(10_000 + 100 * group + chat, place, member)
            if not line["is_user"]:
                line |= {"original_avatar": member.file}
                line |= {"force_avatar": f"/thumbnail?type=avatar&file={member.file}"}
            lines.append(line)
        return b"\n".join(map(_dump, lines))

    # The account

    def _iterate_presets(self) -> Iterator[tuple[str, bytes]]:
        preset = {
            "temperature": 0.9,
            "top_p": 0.95,
            "openai_max_tokens": 400,
            "prompts": [
                {
                    "identifier": "main",
                    "name": "Main Prompt",
                    "system_prompt": True,
                    "role": "system",
                    "content": "Write {{char}}'s next reply.",
                },
                {"identifier": "chatHistory", "name": "Chat History", "marker": True},
            ],
            "prompt_order": [
                {
                    "character_id": 100001,
                    "order": [
                        {"identifier": "main", "enabled": True},
                        {"identifier": "chatHistory", "enabled": True},
                    ],
                }
            ],
        }
        yield "OpenAI Settings/Slow burn.json", _dump(preset, indent=4)
        yield "TextGen Settings/Default.json", b'{"temp": 0.7, "rep_pen": 1.1}'
        yield "instruct/ChatML.json", b'{"input_sequence": "", "output_sequence": ""}'
        yield "context/Default.json", b'{"story_string": ""}'
        yield "sysprompt/Neutral.json", b'{"name": "Neutral", "content": ""}'
        yield "reasoning/DeepSeek.json", b'{"name": "DeepSeek", "prefix": "<think>"}'
        replies = [
            {"id": 1, "label": "Look", "title": "", "message": "*I look around.*"},
            {"id": 2, "label": "Roll", "title": "", "message": "/roll 1d20 | /echo"},
        ]
        extra = {"version": 2, "name": "Moves", "disableSend": False, "qrList": replies}
        yield "QuickReplies/Moves.json", _dump(extra, indent=4)

    def make_settings(self) -> dict[str, Any]:
        files = list(self.personas)
        tags = [{"id": f"tag-{name}", "name": name, "color": ""} for name in TAGS]
        tag_map = {
            character.file: [f"tag-{TAGS[character.number % len(TAGS)]}"]
            for character in self.characters
        }
        descriptions: dict[str, Any] = {
            file: {
                "description": f"{name} travels light. {SENTENCES[number % len(SENTENCES)]}",
                "position": 0,
                "depth": 2,
                "role": 0,
                "lorebook": self.worlds[0] if number == 1 and self.worlds else "",
                "title": "",
                "connections": [],
            }
            for number, (file, name) in enumerate(self.personas.items())
        }
        if len(files) > 2:
            locked = [{"type": "character", "id": self.characters[0].file}]
            if self.size.groups:
                locked.append({"type": "group", "id": self._group_id(0)})
            descriptions[files[2]]["connections"] = locked
        return {
            "firstRun": False,
            "username": next(iter(self.personas.values()), "User"),
            "user_avatar": files[0] if files else "user-default.png",
            "main_api": "openai",
            "power_user": {
                "personas": dict(self.personas),
                "persona_descriptions": descriptions,
                "default_persona": files[-1] if files else None,
                "auto_connect": True,
            },
            "tags": tags,
            "tag_map": {**tag_map, self._group_id(0): [f"tag-{TAGS[0]}"]},
            "world_info_settings": {
                "world_info": {
                    "globalSelect": self.worlds[-1:],
                    "charLore": [
                        {"name": self.characters[1].stem, "extraBooks": self.worlds[:2]}
                        for _ in self.characters[1:2]
                    ],
                },
                "world_info_depth": 3,
                "world_info_budget": 30,
                "world_info_recursive": True,
                "world_info_character_strategy": 1,
            },
            "extension_settings": {
                "regex": [
                    {
                        "id": "5f0c",
                        "scriptName": "Trim spaces",
                        "findRegex": "/ +$/gm",
                        "replaceString": "",
                        "trimStrings": [],
                        "placement": [2],
                        "disabled": False,
                        "markdownOnly": False,
                        "promptOnly": True,
                        "runOnEdit": True,
                        "substituteRegex": 0,
                        "minDepth": None,
                        "maxDepth": None,
                    }
                ],
                "variables": {"global": {"score": 7}},
                "note": {
                    "default": "",
                    "defaultDepth": 4,
                    "defaultInterval": 1,
                    "defaultPosition": 1,
                    "defaultRole": 0,
                    "chara": [
                        {
                            "name": self.characters[0].stem,
                            "prompt": "Never reveals the key.",
                            "useChara": True,
                            "position": 0,
                        }
                        for _ in self.characters[:1]
                    ],
                },
            },
        }


def make_secrets() -> dict[str, Any]:
    """Keys that no service accepts, as 1.18 writes them, and one as older versions do."""
    active = {"id": "a1", "value": "sk-or-not-a-real-key-0001", "label": "main", "active": True}
    return {"api_key_openrouter": [active], "api_key_openai": "sk-not-a-real-key-0000002"}


def make_picture(side: int, *, seed: int, texts: dict[str, bytes] | None = None) -> bytes:
    """Return a PNG of noise, with base64 texts as cards have them."""
    rows = Random(seed).randbytes(3 * side * side)
    lines = b"".join(b"\0" + rows[3 * side * y : 3 * side * (y + 1)] for y in range(side))
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines, 1)),
        *(
            (b"tEXt", keyword.encode() + b"\0" + base64.b64encode(text))
            for keyword, text in (texts or {}).items()
        ),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data) & 0xFFFFFFFF)
        for kind, data in chunks
    )


def _iso(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%S}.000Z"


def _dump(value: object, *, indent: int | None = None) -> bytes:
    """Write JSON as JavaScript does."""
    separators = (",", ": ") if indent else (",", ":")
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators).encode()
