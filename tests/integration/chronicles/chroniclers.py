"""Somebody who keeps chronicles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.server import Account, ok

API = "/api/v1"


@dataclass(frozen=True)
class Chronicler:
    """A signed-in account."""

    account: Account

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.account.client.request(method, f"{API}{path}", **options)

    async def get(self, path: str, **query: Any) -> Any:
        return ok(await self.ask("GET", path, params=query))

    async def post(self, path: str, **body: Any) -> Any:
        return ok(await self.ask("POST", path, json=body), 201)

    async def patch(self, path: str, **body: Any) -> Any:
        return ok(await self.ask("PATCH", path, json=body))

    async def delete(self, path: str) -> None:
        ok(await self.ask("DELETE", path), 204)

    async def new_chronicle(self, name: str = "The lighthouse", **fields: Any) -> str:
        made = await self.post("/chronicles", name=name, **fields)
        chronicle_id: str = made["id"]
        return chronicle_id

    async def new_event(
        self, chronicle_id: str, summary: str = "The lamp went out.", **fields: Any
    ) -> dict[str, Any]:
        path = f"/chronicles/{chronicle_id}/events"
        made: dict[str, Any] = await self.post(path, summary=summary, **fields)
        return made

    async def page(self, chronicle_id: str, **query: Any) -> dict[str, Any]:
        found: dict[str, Any] = await self.get(f"/chronicles/{chronicle_id}/events", **query)
        return found

    async def summaries(self, chronicle_id: str, **query: Any) -> list[str]:
        """What a list shows."""
        return [each["summary"] for each in (await self.page(chronicle_id, **query))["items"]]

    async def event(self, chronicle_id: str, event_id: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.get(f"/chronicles/{chronicle_id}/events/{event_id}")
        return found

    async def change(self, event: dict[str, Any], **fields: Any) -> dict[str, Any]:
        path = f"/chronicles/{event['chronicle_id']}/events/{event['id']}"
        changed: dict[str, Any] = await self.patch(path, **fields)
        return changed

    async def settle(self, chat_id: str, **settings: Any) -> dict[str, Any]:
        """Change a chat's settings."""
        changed: dict[str, Any] = await self.patch(f"/chats/{chat_id}/settings", **settings)
        return changed

    async def say(self, chat_id: str, text: str = "I climb the stair.") -> list[dict[str, Any]]:
        """Take a turn; the active path behind it."""
        await self.account.turn(chat_id, text=text)
        return await self.account.messages(chat_id)
