"""A user who sends hostile requests, and their outcomes."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from scripts.torture.client import Answer, Client, HeardTurn
from scripts.torture.model import TaggedModel

QUIET_AFTER = 0.5


@dataclass
class HostileUser:
    """An account that attacks. `statuses` are the statuses of its answers.

    `own_server` is the address of its own model server.
    """

    client: Client
    url: str
    model: TaggedModel
    own_server: str
    statuses: Counter[int | str] = field(default_factory=Counter[int | str])

    @property
    def place(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    async def ask(self, name: str, method: str, path: str, **more: Any) -> Answer:
        answer = await self.client.ask("hostile", name, method, path, **more)
        self.statuses[answer.status or "none"] += 1
        return answer

    async def warm_up(self) -> None:
        """Send the first request of each kind, because it loads modules."""
        chat = await self.chat()
        await self.say(chat, "Is anyone there?")
        await self.ask("search", "GET", "/search", params={"q": "harbour"})
        await self.ask("preview", "GET", f"/chats/{chat}/context")
        await self.until_quiet()
        self.statuses.clear()

    async def chat(self, *characters: str) -> str:
        made = await self.ask("chat", "POST", "/chats", json={"character_ids": list(characters)})
        return str(made.body["id"]) if made.outcome == "ok" else ""

    async def character(self, **fields: Any) -> str:
        """Create a character; return an empty id if it is refused."""
        body = {"name": "Mara", **fields}
        made = await self.ask("character", "POST", "/characters", json=body)
        return str(made.body["id"]) if made.outcome == "ok" else ""

    async def lorebook(self, entries: Sequence[dict[str, Any]]) -> str:
        """Import a lorebook; return an empty id if it is refused."""
        book = {"entries": {str(uid): {"uid": uid, **each} for uid, each in enumerate(entries)}}
        made = await self.upload("/lorebooks/import", json.dumps(book).encode())
        return str(made.body["lorebook"]["id"]) if made.outcome == "ok" else ""

    async def list_models(self) -> None:
        """Have the models listed of a provider at the account's own server."""
        body = {"kind": "openai", "slug": "own", "name": "Own", "base_url": self.own_server}
        made = await self.ask("provider", "POST", "/providers", json=body)
        if made.outcome == "ok":
            path, params = f"/providers/{made.body['id']}/models", {"refresh": "true"}
            await self.ask("models", "GET", path, params=params)

    async def campaign(self, name: str) -> str:
        made = await self.ask("campaign", "POST", "/campaigns", json={"name": name})
        return str(made.body["id"])

    async def export(self, campaign: str) -> dict[str, bytes]:
        """Return the files of a campaign's export, or none if it is refused."""
        path = f"/campaigns/{campaign}/export"
        answer = await self.ask("export", "GET", path, params={"format": "json"})
        if answer.outcome != "ok":
            return {}
        with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    async def upload(self, path: str, data: bytes) -> Answer:
        """Return a file in the format of a form."""
        return await self.ask("upload", "POST", path, files={"file": ("file.json", data)})

    async def link(self, chat: str, lorebook: str) -> None:
        body = {"state": "linked"}
        await self.ask("link", "PUT", f"/chats/{chat}/lorebooks/{lorebook}", json=body)

    async def say(self, chat: str, text: str) -> HeardTurn:
        heard = await self.client.turn("hostile", chat, {"text": text})
        self.statuses[heard.status or "none"] += 1
        return heard

    async def preview(self, chat: str, text: str = "What of the harbour?") -> None:
        """Preview the whole next prompt."""
        body = {"text": text, "prompt": True}
        await self.ask("preview", "POST", f"/chats/{chat}/context", json=body)

    async def until_quiet(self) -> None:
        """Wait until the account's jobs are done."""
        quiet = 0
        while quiet < 2:
            page = await self.client.ask("hostile", "jobs", "GET", "/jobs")
            items = page.body["items"] if page.outcome == "ok" else [{"state": "running"}]
            busy = any(each["state"] in {"queued", "running"} for each in items)
            quiet = 0 if busy else quiet + 1
            await asyncio.sleep(QUIET_AFTER / 2)
