"""Files of a SillyTavern user folder, the same in each run: chats with swipes, and cards."""

from __future__ import annotations

import json
import random
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from backend.characters.cards import png
from scripts.bench.data import Lines

CHAT_MESSAGES = 1_000
"""Messages of each chat of a folder."""

PICTURE_PIXELS = 720
"""Width and height of a card's picture, which has 1.6 MB because it is noise."""

CHARACTER, USER = "Mara", "Ben"
_LINE_UTTERANCES, _REPLY_UTTERANCES = 2, 6
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def write_chat_folder(path: Path, lines: Lines, messages: int) -> int:
    """Write a zip of a folder with a character and its chats. Return the number of chats."""
    texts = _make_texts(lines)
    starts = range(0, messages, CHAT_MESSAGES)
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=1) as folder:
        folder.writestr(f"characters/{CHARACTER}.png", make_card(CHARACTER, 0))
        for start in starts:
            chat = _write_messages(texts, start, min(messages - start, CHAT_MESSAGES), swipes=1)
            folder.writestr(f"chats/{CHARACTER}/{start:07}.jsonl", b"".join(chat))
    return len(starts)


def write_chat(path: Path, lines: Lines, messages: int, *, swipes: int) -> None:
    """Write one chat, in which each message has `swipes` swipes."""
    with path.open("wb") as file:
        file.writelines(_write_messages(_make_texts(lines), 0, messages, swipes=swipes))


def write_card_folder(path: Path, cards: int) -> None:
    """Write a zip of a folder with cards."""
    with ZipFile(path, "w", ZIP_STORED) as folder:
        for number in range(1, cards + 1):
            name = f"Guest {number}"
            folder.writestr(f"characters/{name}.png", make_card(name, number))


def make_card(name: str, number: int) -> bytes:
    """Return a PNG of noise with a card of version 2."""
    draw = random.Random(number)
    rows = (b"\0" + draw.randbytes(3 * PICTURE_PIXELS) for _ in range(PICTURE_PIXELS))
    header = struct.pack(">IIBBBBB", PICTURE_PIXELS, PICTURE_PIXELS, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows), 1)), (b"IEND", b""))
    picture = png.SIGNATURE + b"".join(_make_chunk(kind, body) for kind, body in chunks)
    data = {
        "name": name,
        "description": f"{{{{char}}}} keeps inn number {number} at the old road.",
        "personality": "patient, curious",
        "scenario": "",
        "first_mes": "Come in from the rain.",
        "mes_example": "",
    }
    card = {"spec": "chara_card_v2", "spec_version": "2.0", "data": data}
    return png.replace_texts(picture, {b"chara": b64encode(json.dumps(card).encode())})


def _make_chunk(kind: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)


def _make_texts(lines: Lines) -> Iterator[str]:
    """Yield the texts of lines and replies in turn, without end."""
    spoken = cycle(text for _, text in lines)
    for size in cycle((_LINE_UTTERANCES, _REPLY_UTTERANCES)):
        yield "\n\n".join(next(spoken) for _ in range(size))


def _write_messages(
    texts: Iterator[str], first: int, messages: int, *, swipes: int
) -> Iterator[bytes]:
    """Yield the lines of a chat. `first` is its first message's number among those of all chats."""
    at = _BEGIN + timedelta(minutes=first)
    yield _encode(
        {
            "user_name": USER,
            "character_name": CHARACTER,
            "create_date": _format_time(at),
            "chat_metadata": {"note_prompt": "", "note_interval": 1},
        }
    )
    for number in range(messages):
        at += timedelta(minutes=1)
        yield _encode(_make_message(texts, number, at, swipes))


def _make_message(texts: Iterator[str], number: int, at: datetime, swipes: int) -> dict[str, Any]:
    is_user = number % 2 == 0
    message: dict[str, Any] = {
        "name": USER if is_user else CHARACTER,
        "is_user": is_user,
        "is_system": False,
        "send_date": _format_time(at),
        "mes": next(texts),
        "extra": {} if is_user else {"api": "openai", "model": "a-model", "token_count": 120},
    }
    if swipes > 1 or not is_user:
        others = [next(texts) for _ in range(swipes - 1)]
        about = {key: message[key] for key in ("send_date", "extra")}
        message["swipe_id"] = 0
        message["swipes"] = [message["mes"], *others]
        message["swipe_info"] = [about] * swipes
    return message


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _format_time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z")
