"""Files to import, built by code, and imports over HTTP."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.server import Account, ok, read_pages
from tests.support.waiting import until

PNG = b"\x89PNG\r\n\x1a\n"


def card_json(name: str = "Mara", **fields: Any) -> bytes:
    """A character card of version 2."""
    data = {
        "name": name,
        "description": f"{name} keeps the lighthouse.",
        "personality": "",
        "scenario": "",
        "first_mes": "The lamp is lit.",
        "mes_example": "",
        **fields,
    }
    return json.dumps({"spec": "chara_card_v2", "spec_version": "2.0", "data": data}).encode()


def card_png(name: str = "Mara", **fields: Any) -> bytes:
    """A picture of one pixel with a card."""
    text = b"chara\0" + base64.b64encode(card_json(name, **fields))
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\x20\x40\x60")
    return PNG + _chunk(b"IHDR", header) + _chunk(b"tEXt", text) + _chunk(b"IDAT", pixels) + _END


def plain_png() -> bytes:
    """A picture of one pixel without a card."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    return PNG + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b"\0\1\2\3")) + _END


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


_END = _chunk(b"IEND", b"")


def chat_jsonl(
    count: int = 3, *, name: str = "Mara", user: str = "Ada", text: str = "Line"
) -> bytes:
    """A chat of SillyTavern with `count` messages."""
    header = {"user_name": user, "character_name": name, "create_date": "2024-1-2@03h04m05s"}
    lines: list[dict[str, Any]] = [{**header, "chat_metadata": {}}]
    for number in range(count):
        is_user = bool(number % 2)
        lines.append(
            {
                "name": user if is_user else name,
                "is_user": is_user,
                "is_system": False,
                "send_date": "January 2, 2024 3:04am",
                "mes": f"{text} {number}",
            }
        )
    return "\n".join(json.dumps(line) for line in lines).encode()


def world_json(*keys: str) -> bytes:
    """A lorebook of SillyTavern with an entry for each key."""
    entries = {
        str(number): {"uid": number, "key": [key], "content": f"About {key}.", "comment": key}
        for number, key in enumerate(keys)
    }
    return json.dumps({"entries": entries}).encode()


def preset_json() -> bytes:
    prompts = [{"identifier": "main", "name": "Main", "role": "system", "content": "Write."}]
    order = [{"character_id": 100001, "order": [{"identifier": "main", "enabled": True}]}]
    return json.dumps({"temperature": 1, "prompts": prompts, "prompt_order": order}).encode()


def script_json(name: str = "Dashes") -> bytes:
    return json.dumps(
        {
            "id": name,
            "scriptName": name,
            "findRegex": "/--/g",
            "replaceString": "-",
            "placement": [2],
        }
    ).encode()


def group_json(*members: str, name: str = "The crew") -> bytes:
    group = {"id": "1", "name": name, "members": list(members), "chat_id": "1", "chats": ["1"]}
    return json.dumps(group).encode()


async def upload(
    account: Account,
    data: bytes,
    name: str = "import.zip",
    *,
    path: str = "/imports",
    **query: Any,
) -> dict[str, Any]:
    """Begin an import and return its view."""
    files = {"file": (name, data)}
    answer = await account.ask("POST", path, files=files, params=query or None)
    view: dict[str, Any] = ok(answer, 202)
    return view


async def bring(
    account: Account, data: bytes, name: str = "import.zip", **query: Any
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Import a file to the end; return the view and the results by path."""
    view = await upload(account, data, name, **query)
    return await ended(account, view["id"])


async def ended(
    account: Account, import_id: str
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Wait for the end of an import; return the view and the results by path."""

    async def find() -> dict[str, Any] | None:
        view = await account.get(f"/imports/{import_id}")
        return None if view["state"] == "running" else view

    view: dict[str, Any] = await until(find)
    return view, await results_of(account, import_id)


async def results_of(account: Account, import_id: str) -> dict[str, dict[str, Any]]:
    pages: Sequence[Sequence[Mapping[str, Any]]] = await read_pages(
        account.client.get, f"/api/v1/imports/{import_id}/results", limit=500
    )
    return {each["path"]: dict(each) for page in pages for each in page}


def outcomes(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {path: each["outcome"] for path, each in results.items()}
