"""The languages that a user writes in."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from sqlalchemy import select

from backend.chats.models import MESSAGE_CONTENT, Chat, Message
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.memory.search.terms import detect_languages
from backend.vault.sealing import SealBrokenError, Sealer

_RECENT_CHATS = 5
_LINES_PER_CHAT = 8
_CHARACTERS = 500
_MIN_SHARE = 0.2
"""Share of the lines in a language from which the user writes in it."""

_TAGS = {
    "english": "en",
    "german": "de",
    "french": "fr",
    "spanish": "es",
    "italian": "it",
    "portuguese": "pt",
    "dutch": "nl",
    "swedish": "sv",
    "danish": "da",
    "norwegian": "nb",
    "polish": "pl",
    "russian": "ru",
}
_SCRIPT_TAGS = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "zh",
    "HANGUL": "ko",
    "CYRILLIC": "ru",
    "GREEK": "el",
    "ARABIC": "ar",
    "HEBREW": "he",
    "DEVANAGARI": "hi",
    "TAMIL": "ta",
    "THAI": "th",
    "ARMENIAN": "hy",
    "GEORGIAN": "ka",
    "BENGALI": "bn",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "ORIYA": "or",
    "SINHALA": "si",
    "MYANMAR": "my",
    "KHMER": "km",
    "LAO": "lo",
    "ETHIOPIC": "am",
}
"""The language with most speakers of each script, by the first word of its characters' names."""
UNDETERMINED = "und"
"""The tag of a language that is not English, and is not known."""


async def find_written_languages(database: Database, pool: CpuPool, sealer: Sealer) -> list[str]:
    """Return the languages of the user's last lines in the newest chats, as BCP 47 tags."""
    chats = select(Chat.id).where(Chat.user_id == sealer.user_id, Chat.is_ready)
    rows: list[tuple[bytes, bytes]] = []
    async with database.read() as session:
        newest = chats.order_by(Chat.id.desc()).limit(_RECENT_CHATS)
        for chat_id in (await session.scalars(newest)).all():
            lines = select(Message.id, Message.sealed_content).where(
                Message.chat_id == chat_id,
                Message.user_id == sealer.user_id,
                Message.is_active,
                Message.role == "user",
                Message.removed_at.is_(None),
            )
            last = lines.order_by(Message.position.desc()).limit(_LINES_PER_CHAT)
            rows += [(each.bytes, content) for each, content in await session.execute(last)]
    size = sum(len(content) for _, content in rows)
    return await pool.run(sealer.user_id, partial(_detect_all, sealer, rows), size=size)


def _detect_all(sealer: Sealer, rows: Sequence[tuple[bytes, bytes]]) -> list[str]:
    votes = Counter[str]()
    for row in rows:
        with suppress(SealBrokenError):  # a damaged message is reported where it is read
            (text,) = sealer.open_many(MESSAGE_CONTENT, [row])
            votes.update(filter(None, [_detect(text[:_CHARACTERS])]))
    return sorted(tag for tag, count in votes.items() if count >= _MIN_SHARE * votes.total())


def _detect(text: str) -> str | None:
    """Return the language of a text; None if it is not clear."""
    names = (unicodedata.name(each, "") for each in text if each.isalpha() and not each.isascii())
    scripts = Counter(_SCRIPT_TAGS.get(name.partition(" ")[0]) for name in names)
    if scripts["ja"]:
        scripts["ja"] += scripts.pop("zh", 0)  # Japanese contains Han characters, too
    tag, count = max(scripts.items(), key=lambda each: each[1], default=(None, 0))
    if tag and 2 * count > sum(map(str.isalpha, text)):
        return tag
    found = detect_languages(text)
    if len(found) == 1:
        return _TAGS.get(found[0], UNDETERMINED)
    return UNDETERMINED if (found or scripts) and "english" not in found else None
