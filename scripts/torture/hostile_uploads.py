"""Uploads that cost the most before they are refused or read."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import zipfile
from collections.abc import Mapping
from uuid import uuid4

from scripts.torture.hostile_user import HostileUser

SIZE = 20 * 1024 * 1024 - 1024
CARDS, BOOKS, CAMPAIGNS = "/characters/import", "/lorebooks/import", "/campaigns/import"
FACTS, CHANGES = 1_000, 100
"""Facts of a long ledger, and the changes of each."""


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


async def upload_linked_vaults(user: HostileUser) -> None:
    """Vaults with an entity that links to itself in one sentence 8,000 or 200,000 times."""
    for links in (8_000, 200_000):
        await user.upload(CAMPAIGNS, _zip({"npcs/a.md": "[[a]] " * links}))


async def long_ledger(user: HostileUser) -> None:
    """The zip of a campaign with 100,000 changes, and the export of the imported campaign."""
    campaign = await user.campaign("A long story")
    files = await user.export(campaign)
    at = "2026-01-01T00:00:00Z"
    change = {"actor": "user", "kind": "fact", "created_at": at}
    ids = [str(uuid4()) for _ in range(FACTS)]
    lines = [
        {
            **change,
            "item_id": item_id,
            "set": {"text": f"It is {number}."} | ({} if number else {"exists": True}),
        }
        for number, item_id in itertools.product(range(CHANGES), ids)
    ]
    facts = [{"id": each, "text": f"It is {CHANGES - 1}."} for each in ids]
    before = json.loads(files["ledger.json"])
    after = [
        {**line, "seq": seq, "version": seq} for seq, line in enumerate(lines, len(before) + 1)
    ]
    made = {"ledger.json": json.dumps([*before, *after]), "facts.json": json.dumps(facts)}
    answer = await user.upload(CAMPAIGNS, _zip({**files, **made}))
    if answer.outcome == "ok":
        await user.export(answer.body["id"])


def _zip(files: Mapping[str, bytes | str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


UPLOADS = {
    "vaults of many links": upload_linked_vaults,
    "a ledger of 100,000 changes": long_ledger,
    "20 MB of brackets": brackets,
    "20 MB of short texts": letters,
    "20 MB of members": objects,
    "8 uploads of 20 MB at once": several_at_once,
}
