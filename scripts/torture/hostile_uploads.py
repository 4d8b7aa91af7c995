"""Uploads that cost the most before they are refused or read."""

from __future__ import annotations

import asyncio
import io
import zipfile

from scripts.torture.hostile_user import HostileUser

SIZE = 20 * 1024 * 1024 - 1024
CARDS, BOOKS = "/characters/import", "/lorebooks/import"


async def brackets(user: HostileUser) -> None:
    """20 MB of opening brackets."""
    await user.upload(CARDS, b"[" * SIZE)
    await user.upload(BOOKS, b"[" * SIZE)


async def letters(user: HostileUser) -> None:
    """20 MB of short texts, five million of them."""
    data = b"[" + b'"a",' * (SIZE // 4 - 1) + b'"a"]'
    await user.upload(CARDS, data)
    await user.upload(BOOKS, data)


async def objects(user: HostileUser) -> None:
    """20 MB of members with names of their own."""
    members = ",".join(f'"{n}":[]' for n in range(SIZE // 12))
    await user.upload(CARDS, b"{" + members.encode() + b"}")


async def several_at_once(user: HostileUser) -> None:
    """Eight of them at once."""
    data = b"[" + b'"a",' * (SIZE // 4 - 1) + b'"a"]'
    await asyncio.gather(*(user.upload(CARDS, data) for _ in range(8)))


async def linked_vault(user: HostileUser) -> None:
    """A vault whose entity links to itself 200,000 times in one sentence."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as vault:
        vault.writestr("npcs/a.md", "[[a]] " * 200_000)
    await user.upload("/campaigns/import", data.getvalue())


UPLOADS = {
    "a vault of 200,000 links": linked_vault,
    "20 MB of brackets": brackets,
    "20 MB of short texts": letters,
    "20 MB of members": objects,
    "8 uploads of 20 MB at once": several_at_once,
}
