"""Automatic titles of chats: the first line of the user, then one that a model writes.

A title of the user is never replaced. Functions here never commit.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import open_user_settings
from backend.accounts.models import User
from backend.accounts.profile.settings import UserSettings, find_named_models
from backend.chats.models import CHAT_TITLE, MESSAGE_CONTENT, Chat, Message, TitleOrigin
from backend.enrichment.story import is_readable
from backend.generation.images import IMAGE_TEXT
from backend.vault.sealing import Sealer

TitleSource = Literal["model", "first_line", "off"]

MAX_LINE_CHARACTERS: Final = 60

_MARKUP = re.compile(r"[*`]+|^[#>\s-]+")


async def find_title_source(session: AsyncSession, sealer: Sealer) -> TitleSource:
    """Return the source of the automatic titles of the sealer's user."""
    owner = await session.get_one(User, sealer.user_id)
    return choose_title_source(open_user_settings(sealer, owner.sealed_settings))


def choose_title_source(account: UserSettings) -> TitleSource:
    """Return the user's choice. By default a model writes titles if one is set for such tasks."""
    if account.page.titles is not None:
        return account.page.titles
    has_model = find_named_models(account.task_models, account.enrichment)
    return "model" if has_model else "first_line"


async def find_first_line(session: AsyncSession, chat: Chat) -> Message | None:
    """Return the first message of the user on the active path."""
    query = (
        select(Message)
        .where(is_readable(chat), Message.role == "user")
        .order_by(Message.position)
        .limit(1)
    )
    return await session.scalar(query)


async def use_first_line(session: AsyncSession, sealer: Sealer, chat: Chat) -> bool:
    """Use the first line of the user as the title. False if there is none. The chat is locked.

    A line that has only images gives no title.
    """
    line = await find_first_line(session, chat)
    if line is None:
        return False
    text = sealer.open(MESSAGE_CONTENT, line.id, line.sealed_content)
    title = make_line_title(text)
    if title and text != IMAGE_TEXT:
        set_title(sealer, chat, title, "first_line")
    return True


def set_title(sealer: Sealer, chat: Chat, title: str, origin: TitleOrigin) -> None:
    chat.sealed_title = sealer.seal(CHAT_TITLE, chat.id, title)
    chat.title_origin = origin


def make_line_title(text: str) -> str:
    """Return the first line of a text, without Markdown, shortened after a word."""
    lines = (" ".join(_MARKUP.sub("", line).split()) for line in text.splitlines())
    return shorten(next((line for line in lines if line), ""), MAX_LINE_CHARACTERS)


def shorten(text: str, most: int) -> str:
    """Shorten a text to `most` characters, after a word if possible."""
    if len(text) <= most:
        return text
    head = text[: most - 1]
    if not text[most - 1].isspace():
        head = head.rpartition(" ")[0] or head
    return head.rstrip(" ,;:.-–—") + "…"  # noqa: RUF001  # dashes of every length
