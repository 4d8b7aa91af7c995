"""A campaign over HTTP, and the town of the tests."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.server import Account


class Table:
    """A campaign and its items over HTTP; paths begin after `/api/v1/campaigns/{id}`."""

    def __init__(self, account: Account, campaign: dict[str, Any]) -> None:
        self.account, self.campaign = account, campaign
        self.path = f"/campaigns/{campaign['id']}"

    async def get(self, path: str = "", **query: Any) -> dict[str, Any]:
        return await self.account.get(self.path + path, **query)

    async def items(self, kind: str, /, **query: Any) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self.get(f"/{kind}", **query))["items"]
        return items

    async def add(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        return await self.account.post(f"{self.path}/{kind}", fields, 201)

    async def change(self, path: str, **fields: Any) -> dict[str, Any]:
        return await self.account.patch(self.path + path, fields)

    async def delete(self, path: str = "") -> None:
        await self.account.delete(self.path + path)

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request and return its answer, of any status."""
        return await self.account.ask(method, self.path + path, **more)

    async def undo(self, change: dict[str, Any]) -> dict[str, Any]:
        return await self.account.post(f"{self.path}/changes/{change['id']}/undo")


async def new_table(account: Account, **fields: Any) -> Table:
    body = {"name": "Seagate", "day": 5, **fields}
    return Table(account, await account.post("/campaigns", body, 201))


async def new_session(table: Table, **card: Any) -> str:
    """Create a chat of the campaign with one character; return its id."""
    character = await table.account.new_character(**card)
    chat = await table.account.new_chat(
        campaign_id=table.campaign["id"], character_ids=[character["id"]]
    )
    return str(chat["id"])


async def seagate(table: Table) -> dict[str, str]:
    """Add a shop, the people in it, Inspector Holt and Jake; return their ids."""
    shop = await table.add(
        "entities", kind="location", name="The Salty Sigil", description="A curio shop."
    )
    hills = await table.add("entities", kind="location", name="Sunfall Hills")
    marlena = await table.add(
        "entities",
        kind="npc",
        name="Marlena",
        disposition="intimate-ally",
        voice=["Speaks in a slow drawl"],
        location_id=shop["id"],
    )
    holt = await table.add(
        "entities", kind="npc", name="Inspector Holt", aliases=["Holt"], location_id=hills["id"]
    )
    jake = await table.add(
        "entities",
        kind="pc",
        name="Jake",
        location_id=shop["id"],
        attributes={"class": "Wizard", "hp": 13, "hp_max": 13, "gold": 15, "inventory": ["fork"]},
    )
    made = {"shop": shop, "hills": hills, "marlena": marlena, "holt": holt, "jake": jake}
    return {name: item["id"] for name, item in made.items()}
