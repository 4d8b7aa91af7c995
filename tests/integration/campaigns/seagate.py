"""A campaign over HTTP, and the town that tests play in."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.server import Account, ok


class Table:
    """A campaign at `/campaigns`, and short words for what is done with it."""

    def __init__(self, account: Account, campaign: dict[str, Any]) -> None:
        self.account, self.campaign = account, campaign
        self.path = f"/api/v1/campaigns/{campaign['id']}"

    async def get(self, path: str = "", **query: Any) -> Any:
        return ok(await self.account.client.get(self.path + path, params=query))

    async def add(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        made = await self.account.client.post(f"{self.path}/{kind}", json=fields)
        item: dict[str, Any] = ok(made, 201)
        return item

    async def change(self, path: str, **fields: Any) -> Any:
        return ok(await self.account.client.patch(self.path + path, json=fields))

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self.account.client.request(method, self.path + path, **more)


async def seagate(table: Table) -> dict[str, str]:
    """The shop, its people, and Jake."""
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
