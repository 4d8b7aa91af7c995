"""An account that has something of everything, made through the API."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from tests.support.chronicling import new_event, sum_up
from tests.support.server import Account, ok
from tests.support.zips import seagate_vault, zipped

PIXELS = 24


def draw_picture(colour: str, side: int = PIXELS) -> bytes:
    """Return a PNG with a border, so that a lossy encoding has something to lose."""
    image = Image.new("RGB", (side, side), colour)
    image.paste("white", (4, 4, side // 2, side - 4))
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


class FullAccount:
    """The items of a full account, by a short name."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.ids: dict[str, str] = {}

    async def fill(self) -> None:
        await self._add_presets()
        await self._add_people()
        await self._add_lorebooks()
        await self._add_chats()
        await self._add_campaign()
        await self._set_account()

    async def _add_presets(self) -> None:
        for name in ("Slow burn", "Slow burn", "Brief: fast / loose"):
            body = {"name": name, "sampling": {"temperature": 0.7}}
            made = await self.account.post("/presets", body, 201)
            self.ids[f"preset {len(self.ids)}"] = made["id"]
            self.ids["preset"] = made["id"]

    async def _add_people(self) -> None:
        account = self.account
        for name in ("Ines", "Traveller"):
            made = await account.post("/personas", {"name": name, "description": "A guest."}, 201)
            self.ids[name] = made["id"]
        await self._upload("PUT", f"/personas/{self.ids['Ines']}/avatar", draw_picture("teal"))
        mara = await account.new_character(
            description="She keeps the inn of {{user}}'s childhood.",
            alternate_greetings=["Rain again.", "The fire is low."],
            character_book={
                "name": "The inn",
                "entries": [
                    {
                        "keys": ["cellar"],
                        "content": "The cellar is locked.",
                        "extensions": {"sticky": 3},
                        "enabled": True,
                        "insertion_order": 10,
                        "use_regex": False,
                    }
                ],
            },
            extensions={
                "regex_scripts": [{"scriptName": "Shout", "findRegex": "/no/", "placement": [2]}]
            },
        )
        self.ids["Mara"] = mara["id"]
        self.ids["card book"] = mara["lorebook_id"]
        await self._upload("PUT", f"/characters/{mara['id']}/avatar", draw_picture("maroon"))
        await account.put(f"/characters/{mara['id']}/regex-scripts", {"allowed": True}, status=204)
        preset = {"preset_id": self.ids["preset"]}
        await account.put(f"/characters/{mara['id']}/preset", preset, status=204)
        for _ in range(2):
            twin = await account.new_character(name="Bo", first_mes="Hm?", tags=["quiet"])
            self.ids["Bo"] = twin["id"]
        await account.patch(f"/characters/{self.ids['Bo']}", {"is_favourite": True})
        await self._upload("PUT", f"/characters/{self.ids['Bo']}/background", draw_picture("olive"))
        exported = await account.ask(
            "GET", f"/characters/{mara['id']}/export", params={"format": "png"}
        )
        again = await self._upload("POST", "/characters/import", exported.content, 201)
        self.ids["imported Mara"] = again["character"]["id"]
        packed = await account.ask(
            "GET", f"/characters/{mara['id']}/export", params={"format": "charx"}
        )
        await self._upload("POST", "/characters/import", packed.content, 201)

    async def _add_lorebooks(self) -> None:
        account = self.account
        for name, is_global in (("The coast", True), ("The war", False)):
            made = await account.post(
                "/lorebooks", {"name": name, "is_global": is_global, "scan_depth": 3}, 201
            )
            self.ids[name] = made["id"]
        coast = f"/lorebooks/{self.ids['The coast']}/entries"
        entry = {"title": "Tides", "keys": ["tide"], "content": "The tide is late.", "sticky": 4}
        await account.post(coast, entry, 201)
        await account.post(coast, {"keys": ["gull"], "content": "Gulls lie.", "mode": "keys"}, 201)
        war = self.ids["The war"]
        await account.post(
            f"/lorebooks/{war}/entries", {"keys": ["war"], "content": "It was long."}, 201
        )
        await account.put(f"/characters/{self.ids['Bo']}/lorebooks/{war}", status=204)
        await account.put(f"/personas/{self.ids['Ines']}/lorebooks/{war}", status=204)

    async def _add_chats(self) -> None:
        account = self.account
        inn = await account.new_chat(
            character_ids=[self.ids["Mara"]], persona_id=self.ids["Ines"], title="At the inn"
        )
        chat = self.ids["inn"] = inn["id"]
        await self._upload("PUT", f"/chats/{chat}/background", draw_picture("navy"))
        await account.turn(chat, text="The tide is in. {{setvar::door::open}}Is the cellar open?")
        await account.turn(chat, text="I go down. {{setglobalvar::luck::3}}")
        path = await account.messages(chat)
        await account.turn(chat, regenerate_of=path[-1]["id"])
        await account.patch(f"/messages/{path[1]['id']}", {"text": "The tide is out."})
        await account.turn(chat, text="A second branch begins here.")
        path = await account.messages(chat)
        await account.patch(f"/messages/{path[-1]['id']}", {"hidden": True})
        await account.put(f"/chats/{chat}/lorebooks/{self.ids['The war']}", {"state": "linked"})
        await account.put(f"/chats/{chat}/lorebooks/{self.ids['card book']}", {"state": "off"})
        chronicle = await account.post(
            "/chronicles", {"name": "Nights", "description": "What was said."}, 201
        )
        self.ids["chronicle"] = chronicle["id"]
        await account.patch(
            f"/chats/{chat}/settings",
            {
                "chronicle_id": chronicle["id"],
                "preset_id": self.ids["preset"],
                "authors_note": {"text": "Keep it quiet.", "depth": 2},
                "system_prompt": "You are the inn.",
                "lore": {"scan_depth": 5},
            },
        )
        await sum_up(account, chat, "They met at the inn.", through=path[2]["id"])
        first = await new_event(
            account, chronicle["id"], "The tide was late.", source_message_ids=[path[1]["id"]]
        )
        await new_event(
            account,
            chronicle["id"],
            "The tide was out.",
            source_message_ids=[path[2]["id"]],
            pinned=True,
            keywords=["tide"],
        )
        self.ids["event"] = first
        group = await account.new_chat(
            character_ids=[self.ids["Bo"], self.ids["imported Mara"]], title="At the inn"
        )
        self.ids["group"] = group["id"]
        await account.turn(group["id"], text="Who is there?")
        await account.patch(f"/chats/{chat}", {"pinned": True, "tags": ["sea"]})
        await account.patch(f"/chats/{group['id']}", {"archived": True})
        await account.new_chat(title="")

    async def _add_campaign(self) -> None:
        account = self.account
        upload = {"file": ("seagate.zip", zipped(seagate_vault()), "application/zip")}
        campaign = ok(await account.ask("POST", "/campaigns/import", files=upload), 201)
        self.ids["campaign"] = campaign["id"]
        chat = await account.new_chat(
            character_ids=[self.ids["Mara"]], campaign_id=campaign["id"], title="First evening"
        )
        self.ids["session"] = chat["id"]
        await account.patch(f"/chats/{chat['id']}", {"pinned": True, "archived": True})
        await account.turn(chat["id"], text="I look for the fork.")
        await account.turn(chat["id"], text="I wait.")
        await account.patch(
            f"/chats/{chat['id']}/settings", {"authors_note": {"text": "It rains."}}
        )
        path = await account.messages(chat["id"])
        entities = await account.get(f"/campaigns/{campaign['id']}/entities")
        people = [each["id"] for each in entities["items"] if each["kind"] == "npc"]
        await account.patch(f"/messages/{path[-2]['id']}", {"audience": people[:2]})
        await sum_up(account, chat["id"], "They looked around.", through=path[-1]["id"])

    async def _set_account(self) -> None:
        account = self.account
        scripts = [
            {
                "id": "dashes",
                "scriptName": "Dashes",
                "findRegex": "/--/g",
                "replaceString": "-",
                "placement": [1, 2],
            }
        ]
        await account.put("/me/regex-scripts", {"scripts": scripts})
        await account.patch(
            "/me/settings",
            {
                "model": "demo",
                "persona_id": self.ids["Traveller"],
                "preset_id": self.ids["preset"],
                "lore": {"scan_depth": 6},
                "system_prompt": "Write well.",
            },
        )
        await account.post(
            "/providers",
            {
                "preset": "openai",
                "slug": "mine",
                "name": "Mine",
                "api_key": "sk-a-secret-of-twenty-characters",
            },
            201,
        )

    async def _upload(
        self, method: str, path: str, data: bytes, status: int = 204
    ) -> dict[str, Any]:
        upload = {"file": ("picture.png", data, "image/png")}
        found: dict[str, Any] | None = ok(
            await self.account.ask(method, path, files=upload), status
        )
        return found or {}


async def fill_account(account: Account) -> FullAccount:
    """Fill an account with something of everything."""
    full = FullAccount(account)
    await full.fill()
    return full
