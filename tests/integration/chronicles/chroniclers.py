"""Requests of a user who keeps chronicles."""

from __future__ import annotations

from typing import Any

from tests.support.server import Requests


class Chronicler(Requests):
    """A user who keeps chronicles."""

    async def new_chronicle(self, name: str = "The lighthouse", **fields: Any) -> str:
        return str((await self.post("/chronicles", name=name, **fields))["id"])

    async def new_event(
        self, chronicle_id: str, summary: str = "The lamp went out.", **fields: Any
    ) -> dict[str, Any]:
        path = f"/chronicles/{chronicle_id}/events"
        return await self.post(path, summary=summary, **fields)

    async def page(self, chronicle_id: str, **query: Any) -> dict[str, Any]:
        return await self.get(f"/chronicles/{chronicle_id}/events", **query)

    async def summaries(self, chronicle_id: str, **query: Any) -> list[str]:
        """Return the summaries in a list of events."""
        return [each["summary"] for each in (await self.page(chronicle_id, **query))["items"]]

    async def event(self, chronicle_id: str, event_id: str) -> dict[str, Any]:
        return await self.get(f"/chronicles/{chronicle_id}/events/{event_id}")

    async def change(self, event: dict[str, Any], **fields: Any) -> dict[str, Any]:
        path = f"/chronicles/{event['chronicle_id']}/events/{event['id']}"
        return await self.patch(path, **fields)

    async def settle(self, chat_id: str, **settings: Any) -> dict[str, Any]:
        """Change the settings of a chat."""
        return await self.patch(f"/chats/{chat_id}/settings", **settings)

    async def say(self, chat_id: str, text: str = "I climb the stair.") -> list[dict[str, Any]]:
        """Take a turn; return the active path after it."""
        await self.account.turn(chat_id, text=text)
        return await self.account.messages(chat_id)
