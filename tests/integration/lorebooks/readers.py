"""Somebody who keeps lorebooks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.server import Account, ok

API = "/api/v1"

WORLD: dict[str, Any] = {
    "entries": {
        "0": {
            "uid": 0,
            "key": ["lamp", "/len(s|ses)/i"],
            "keysecondary": ["broken"],
            "comment": "The lens",
            "content": "The lens cracked in the gale.",
            "constant": False,
            "selective": True,
            "selectiveLogic": 3,
            "order": 90,
            "position": 4,
            "depth": 2,
            "role": 1,
            "disable": False,
            "addMemo": True,
            "displayIndex": 0,
            "probability": 50,
            "useProbability": True,
            "characterFilter": {"isExclude": True, "names": ["Mara"], "tags": []},
            "matchScenario": True,
            "triggers": ["swipe"],
            "vendor": {"kept": [1, None]},
        },
        "7": {"uid": 7, "key": ["stair"], "content": "The third stair is rotten.", "order": "10"},
    },
    "vendor": "kept, too",
}


@dataclass(frozen=True)
class Reader:
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

    async def put(self, path: str, status: int = 204, **body: Any) -> Any:
        return ok(await self.ask("PUT", path, json=body), status)

    async def delete(self, path: str) -> None:
        ok(await self.ask("DELETE", path), 204)

    async def new_book(self, name: str = "The lighthouse", **fields: Any) -> str:
        made = await self.post("/lorebooks", name=name, **fields)
        book_id: str = made["id"]
        return book_id

    async def new_entry(self, book_id: str, **fields: Any) -> dict[str, Any]:
        made: dict[str, Any] = await self.post(f"/lorebooks/{book_id}/entries", **fields)
        return made

    async def upload(
        self, value: object, *, filename: str = "book.json", **form: str
    ) -> httpx.Response:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        files = {"file": (filename, data)}
        return await self.ask("POST", "/lorebooks/import", files=files, data=form)

    async def import_book(self, value: object, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = ok(await self.upload(value, **options), 201)
        return found

    async def export(self, book_id: str, file_format: str = "world_info") -> Any:
        return await self.get(f"/lorebooks/{book_id}/export", format=file_format)

    async def entries(self, book_id: str, **query: Any) -> list[dict[str, Any]]:
        page = await self.get(f"/lorebooks/{book_id}/entries", **query)
        items: list[dict[str, Any]] = page["items"]
        return items

    async def revision(self, book_id: str) -> int:
        found: int = (await self.get(f"/lorebooks/{book_id}"))["revision"]
        return found

    async def import_card(self, data: bytes) -> dict[str, Any]:
        answer = await self.ask("POST", "/characters/import", files={"file": ("card", data)})
        found: dict[str, Any] = ok(answer, 201)
        return found

    async def export_card(self, character_id: str, file_format: str = "json") -> bytes:
        path = f"/characters/{character_id}/export"
        answer = await self.ask("GET", path, params={"format": file_format})
        assert answer.status_code == 200, answer.text
        return answer.content
