"""Requests of a user who keeps lorebooks, and a World Info file."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.support.server import Requests, ok

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


class Reader(Requests):
    """A user who keeps lorebooks."""

    async def new_book(self, name: str = "The lighthouse", **fields: Any) -> str:
        return str((await self.post("/lorebooks", name=name, **fields))["id"])

    async def new_entry(self, book_id: str, **fields: Any) -> dict[str, Any]:
        return await self.post(f"/lorebooks/{book_id}/entries", **fields)

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
        return int((await self.get(f"/lorebooks/{book_id}"))["revision"])

    async def import_card(self, data: bytes) -> dict[str, Any]:
        answer = await self.ask("POST", "/characters/import", files={"file": ("card", data)})
        found: dict[str, Any] = ok(answer, 201)
        return found

    async def export_card(self, character_id: str, file_format: str = "json") -> bytes:
        path = f"/characters/{character_id}/export"
        answer = await self.ask("GET", path, params={"format": file_format})
        assert answer.status_code == 200, answer.text
        return answer.content
