"""Chat files of other programs, in the forms that `backend.transfer.formats` documents."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

PICTURE = "data:image/png;base64," + base64.b64encode(b"\x89PNG a picture").decode()


def to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


# RisuAI


def risu_message(role: str, text: str, **more: object) -> dict[str, Any]:
    return {"role": role, "data": text, "chatId": "m", "time": 1_687_184_405_123, **more}


def risu_chat(**more: object) -> dict[str, Any]:
    return {
        "message": [
            risu_message("user", "Is the lamp lit?"),
            risu_message("char", "<Thoughts>\nHe is early.\n</Thoughts>\n\nIt is, and it smokes."),
        ],
        "note": "Keep it short.",
        "name": "The lamp",
        "localLore": [],
        "fmIndex": -1,
        "scriptstate": {"$oil": 3, "$lit": "yes"},
        **more,
    }


def risu_export(chat: object = None, *, version: int = 2) -> bytes:
    return to_json({"type": "risuChat", "ver": version, "data": chat or risu_chat(), "folders": []})


def risu_all_chats(*chats: object) -> bytes:
    return to_json({"type": "risuAllChats", "ver": 2, "data": chats, "folders": []})


def risu_character(name: str, identity: str, **more: object) -> dict[str, Any]:
    return {
        "type": "character",
        "name": name,
        "chaId": identity,
        "desc": f"{name} keeps the light.",
        "firstMessage": "You found the door, {{user}}.",
        "alternateGreetings": ["", "{{char}} waves."],
        "firstMsgIndex": -1,
        "globalLore": [],
        "image": f"assets/{identity}.png",
        "chats": [risu_chat()],
        **more,
    }


def risu_database(**more: object) -> dict[str, Any]:
    return {
        "characters": [
            {
                "type": "group",
                "name": "The harbour",
                "chaId": "g",
                "characters": ["a", "b"],
                "chats": [
                    risu_chat(
                        message=[
                            risu_message("user", "Who is there?"),
                            risu_message("char", "Ada.", saying="a"),
                            risu_message("char", "And Bo.", saying="b"),
                        ]
                    )
                ],
            },
            risu_character("Ada", "a"),
            risu_character("Bo", "b", chats=[risu_chat(message=[], name="Empty")]),
        ],
        "username": "Ellis",
        "personas": [{"name": "Captain", "id": "p1"}],
        "openAIKey": "not-a-key",
        **more,
    }


def risu_database_file(database: object, *, kind: int = 8) -> bytes:
    """Return `database.risudat` of kind 7 (MessagePack), 8 (compressed), or 0 (the oldest)."""
    packed = msgspec.msgpack.encode(database)
    if kind == 0:
        return b"\0\0RISU" + packed
    return b"\0RISUSAVE\0" + bytes([kind]) + (packed if kind == 7 else gzip.compress(packed))


def risu_blocks(database: dict[str, Any], *, is_compressed: bool = False) -> bytes:
    rest = {name: value for name, value in database.items() if name != "characters"}
    blocks: list[tuple[int, str, object]] = [
        (1, "root", rest),
        (4, "preset", []),
        (0, "config", {"version": 1}),
    ]
    blocks += [(2, each["chaId"], each) for each in database["characters"]]
    return b"RISUSAVE\0" + b"".join(
        risu_block(kind, name, value, is_compressed=is_compressed) for kind, name, value in blocks
    )


def risu_block(kind: int, name: str, value: object, *, is_compressed: bool = False) -> bytes:
    content = gzip.compress(to_json(value)) if is_compressed else to_json(value)
    lead = bytes([kind, is_compressed, len(name)]) + name.encode()
    return lead + struct.pack("<I", len(content)) + content


def risu_backup(files: Sequence[tuple[str, bytes]] = (), database: bytes | None = None) -> bytes:
    last = database or risu_database_file(risu_database())
    listed = [*(files or [("a.png", b"\x89PNG a"), ("x.png", b"\x89PNG x")])]
    if last:
        listed.append(("database.risudat", last))
    return b"".join(
        struct.pack("<I", len(name.encode()))
        + name.encode()
        + struct.pack("<I", len(content))
        + content
        for name, content in listed
    )


# Agnai


def agnai_message(number: int, text: str, *, is_user: bool, **more: object) -> dict[str, Any]:
    who = {"userId": "u1", "name": "Ellis"} if is_user else {"characterId": "c1", "name": "Ada"}
    return {
        "_id": f"{number:08}",
        "parent": f"{number - 1:08}" if number else None,
        "createdAt": "2023-06-19T14:20:05.123Z",
        "msg": text,
        **who,
        **more,
    }


def agnai_export(messages: Sequence[object] | None = None, **more: object) -> bytes:
    if messages is None:
        messages = [
            agnai_message(0, "You found the door.", is_user=False),
            agnai_message(1, "Is the lamp lit?", is_user=True),
            agnai_message(2, "It is.", is_user=False, retries=["It is not."]),
        ]
    return to_json(
        {
            "name": "Exported",
            "greeting": "You found the door.",
            "sampleChat": "",
            "scenario": "A lighthouse.",
            "treeLeafId": "00000002-aaaa-bbbb",
            "messages": messages,
            **more,
        }
    )


def agnai_installation() -> bytes:
    messages = [
        agnai_message(0, "You found the door.", is_user=False, chatId="h1"),
        agnai_message(1, "Is the lamp lit?", is_user=True, chatId="h1"),
    ]
    persona = {"kind": "text", "attributes": {"text": ["Keeps the light."]}}
    return to_json(
        {
            "characters": [
                {
                    "_id": "c1",
                    "kind": "character",
                    "name": "Ada",
                    "persona": persona,
                    "greeting": "Hm.",
                    "scenario": "",
                    "sampleChat": "",
                }
            ],
            "chats": [
                {"_id": "h1", "kind": "chat", "name": "The lamp", "characterId": "c1"},
                {"_id": "h2", "kind": "chat", "name": "Empty", "characterId": "c1"},
                {"_id": "h3", "kind": "chat", "name": "Gone", "characterId": "c9"},
            ],
            "messages": messages,
            "messages-h3": [agnai_message(0, "Hello?", is_user=True)],
        }
    )


# Character.AI


def character_ai_old(**more: object) -> bytes:
    ada, ellis = {"name": "Ada", "is_human": False}, {"name": "Ellis", "is_human": True}
    return to_json(
        {
            "info": {"character": {"name": "Ada", "greeting": "Hm.", "external_id": "x1"}},
            "histories": {
                "histories": [
                    {
                        "msgs": [
                            {"text": "You found the door.", "src": ada},
                            {"text": "Is the lamp lit?", "src": ellis},
                            {"text": "It is.", "src": ada, "is_alternative": False},
                            {"text": "It is not.", "src": ada, "is_alternative": True},
                        ],
                        "created": "2023-06-19T14:20:05Z",
                    },
                    {"msgs": [{"text": "Again?", "src": ada}]},
                ]
            },
            **more,
        }
    )


def character_ai_turn(
    text: str, *, is_human: bool, minute: int, others: Sequence[str] = ()
) -> dict[str, Any]:
    texts = [*others, text]
    return {
        "turn_key": {"chat_id": "h", "turn_id": f"t{minute}"},
        "create_time": f"2024-01-01T10:{minute:02}:00.000000Z",
        "author": {"name": "Ellis", "is_human": True} if is_human else {"name": "Ada"},
        "candidates": [
            {"candidate_id": f"k{place}", "raw_content": each} for place, each in enumerate(texts)
        ],
        "primary_candidate_id": f"k{len(others)}",
    }


def character_ai_turns() -> bytes:
    turns = [
        character_ai_turn("It is.", is_human=False, minute=2, others=["It is not."]),
        character_ai_turn("Is the lamp lit?", is_human=True, minute=1),
        character_ai_turn("You found the door.", is_human=False, minute=0),
    ]
    return to_json({"turns": turns, "meta": {"next_token": None}})


def character_ai_short() -> bytes:
    chat = [
        {"name": "Ada", "message": "You found the door.", "isHuman": False},
        {"name": "Ellis", "message": "Is the lamp lit?", "isHuman": True},
    ]
    return to_json([chat, chat[:1]])


def character_ai_page() -> bytes:
    chat = [
        {
            "isUser": False,
            "name": "Ada",
            "message": quote("You found the *door*.\n`It` is “open”."),
        },
        {"isUser": True, "name": "Ellis", "message": quote("Is the lamp lit?")},
    ]
    data = json.dumps({"charPic": PICTURE, "userPic": None, "history": [chat]})
    return (
        "<!DOCTYPE html><html><head><title>CAI Library</title></head><body><script>"
        f"const historyData = JSON.parse(`{data}`);</script></body></html>"
    ).encode()


# text-generation-webui


def oobabooga(**more: object) -> bytes:
    rows = [
        ["<|BEGIN-VISIBLE-CHAT|>", "You found the door."],
        ["Is the lamp lit?", "<think>He is early.</think>It is."],
        ["", "And it smokes."],
    ]
    return to_json(
        {
            "internal": rows,
            "visible": [["", "You found the door."], *rows[1:]],
            "metadata": {
                "user_1": {
                    "timestamp": "Jun 19, 2023 14:20",
                    "attachments": [
                        {"name": "lamp.png", "type": "image", "image_data": PICTURE},
                        {"name": "oil.pdf", "type": "application/pdf", "content": "One gallon."},
                        {"name": "lost", "type": "application/pdf"},
                    ],
                },
                "assistant_1": {
                    "timestamp": "Jun 19, 2023 14:21",
                    "versions": [
                        {"content": "It is not.", "timestamp": "Jun 19, 2023 14:21"},
                        {"content": "stale", "timestamp": "Jun 19, 2023 14:22"},
                        {"content": "", "timestamp": "Jun 19, 2023 14:23"},
                    ],
                    "current_version_index": 1,
                },
            },
            **more,
        }
    )


# KoboldAI


def kobold(mode: int | None, prompt: str, *actions: str, **settings: object) -> bytes:
    saved = {"opmode": mode, "chatname": "Ellis", "chatopponent": "Ada", **settings}
    return to_json(
        {
            "gamestarted": True,
            "prompt": prompt,
            "memory": "A lighthouse.",
            "authorsnote": "Keep it short.",
            "anotetemplate": "[Author's note: <|>]",
            "actions": actions,
            "actions_metadata": {},
            "worldinfo": [{"key": "lamp", "content": "It smokes."}],
            "savedsettings": None if mode is None else saved,
        }
    )


def kobold_chat() -> bytes:
    return kobold(
        3, "It is night.\nAda: You found the door.", "\nEllis: Is the lamp lit?\nAda:", " It is."
    )


def kobold_instruct() -> bytes:
    return kobold(
        4,
        "Play Ada.{{[INPUT]}}Is the lamp lit?{{[OUTPUT]}}",
        f"It is.[<|d|{PICTURE}|d|>]",
        "\n### Instruction:\nAnd the oil?\n### Response:\n",
        "A gallon.",
        instruct_starttag="\\n### Instruction:\\n",
        instruct_endtag="\\n### Response:\\n",
    )


# Plain logs


def plain_log() -> bytes:
    return (
        b"Ada: You found the door.\nIt was open.\n\nEllis: Is the lamp lit?\n"
        b"Ada: It is.\nNote: it smokes.\nEllis: Good.\n"
    )


def list_files() -> dict[str, tuple[str, bytes]]:
    """Return a file's name and content by the form, at least one for each format."""
    database = risu_database()
    return {
        "risu chat": ("Ada_2023-06-19T142005123Z_chat.json", risu_export()),
        "risu chats": ("Ada_all_chats_2023.json", risu_all_chats(risu_chat(), risu_chat())),
        "risu backup": ("risu-backup.bin", risu_backup()),
        "risu database": ("database.bin", risu_database_file(database, kind=7)),
        "risu blocks": ("database.bin", risu_blocks(database)),
        "agnai chat": ("chat-1a2b.json", agnai_export()),
        "agnai installation": ("agnai.json", agnai_installation()),
        "character.ai dump": ("Ada.json", character_ai_old()),
        "character.ai turns": ("Ada.json", character_ai_turns()),
        "character.ai lists": ("Ada.json", character_ai_short()),
        "character.ai page": ("Ada_Offline.html", character_ai_page()),
        "oobabooga": ("Ada_persistent.json", oobabooga()),
        "koboldai chat": ("save.json", kobold_chat()),
        "koboldai instruct": ("save.json", kobold_instruct()),
        "koboldai adventure": ("save.json", kobold(2, "A door.\n", "\n> open it\n", "It opens.")),
        "koboldai story": ("save.json", kobold(None, "Once", " upon", " a time.")),
        "plain log": ("Ada.txt", plain_log()),
    }
