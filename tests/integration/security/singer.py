"""A player who writes one word in every text field, and plays turns with every ending."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from scripts.torture.canary import disguises
from tests.fakes.openai_server import (
    OpenAIServer,
    chunk,
    completion,
    error,
    reply,
    stream,
    tool_call,
)
from tests.fakes.scripted_server import Answer, Break, Request
from tests.support.chronicling import last_run, new_event, opt_in, overview, sum_up
from tests.support.factors import FACTORS, at_localhost, begin_passkey, finish_passkey, new_passkey
from tests.support.server import Account, Event, ok, text_of
from tests.support.waiting import until

WORD = "kanarienvogel7f3a"
NEEDLES = disguises(WORD)
PASSWORD = f"{WORD} password"
API = "/api/v1"
JSON = {"content-type": "application/json"}


def sing(field: str) -> str:
    return f"{field} {WORD} {field}"


CARD: dict[str, Any] = {
    "name": sing("name"),
    "nickname": sing("nickname"),
    "description": sing("description"),
    "personality": sing("personality"),
    "scenario": sing("scenario"),
    "first_mes": sing("first") + " {{setvar::place::" + sing("local") + "}}",
    "mes_example": f"<START>\n{{{{user}}}}: {sing('example')}",
    "creator_notes": sing("notes"),
    "creator_notes_multilingual": {"de": sing("german")},
    "system_prompt": sing("system"),
    "post_history_instructions": sing("post"),
    "alternate_greetings": [sing("alternate")],
    "group_only_greetings": [sing("group")],
    "tags": [sing("tag")],
    "creator": sing("creator"),
    "character_version": sing("version"),
    "source": [f"https://example.org/{WORD}"],
    "extensions": {WORD: {"depth_prompt": sing("extension")}},
    "character_book": {"name": WORD, "entries": [{"keys": [WORD], "content": sing("entry")}]},
    "assets": [{"type": "icon", "uri": "ccdefault:", "name": WORD, "ext": "png"}],
}
ENTRY: dict[str, Any] = {
    "title": sing("title"),
    "content": sing("content"),
    "keys": [WORD, f"/{WORD}/i"],
    "secondary_keys": [sing("secondary")],
    "outlet": sing("outlet"),
    "group": sing("group"),
    "automation_id": sing("automation"),
    "character_filter": {"is_exclude": True, "names": [sing("name")], "tags": [sing("tag")]},
}
WORLD: dict[str, Any] = {
    "entries": {WORD: {"key": [WORD], "content": sing("content"), WORD: [sing("vendor")]}},
    WORD: sing("beside"),
}
SETTINGS: dict[str, Any] = {
    "system_prompt": sing("system"),
    "post_history_instructions": sing("post"),
    "sampling": {"stop": [sing("stop")]},
}


EVENT: dict[str, Any] = {
    "time": sing("time"),
    "where": sing("where"),
    "who": [sing("who")],
    "keywords": [sing("keyword")],
}
TOLD: dict[str, Any] = {
    "summary": sing("told"),
    "story_time": sing("time"),
    "where": sing("where"),
    "who": [sing("who")],
    "keywords": [sing("keyword")],
}
LORE: dict[str, Any] = {
    "title": sing("title"),
    "content": sing("content"),
    "keys": [WORD],
    "because": sing("because"),
}
CALLS: list[list[tuple[str, Any]]] = [
    [("search_knowledge_base", {"query": sing("query")})],
    [
        ("create_chronicle_event", TOLD),
        ("create_chronicle_event", TOLD),
        ("create_chronicle_event", {**TOLD, "source_messages": [WORD]}),
        ("update_chronicle_event", {"event": WORD, "summary": sing("other")}),
        ("create_lorebook_entry", LORE),
        ("create_lorebook_entry", {**LORE, "title": sing("pattern"), "keys": [f"/{WORD}/"]}),
        ("create_lorebook_entry", {WORD: sing("member")}),
        (WORD, {WORD: sing("argument")}),
    ],
    [("finish", {})],
]
"""The tool calls of the agent's model by step. Some are refused."""


class Scribe(OpenAIServer):
    """Sends scripted replies. Without a script it writes events and summaries with the canary."""

    def usual(self, request: Request) -> Answer:
        body: dict[str, Any] = request.body or {}
        if "tools" in body:
            step = sum(1 for message in body["messages"] if message.get("tool_calls"))
            calls = [
                tool_call(name, arguments, call_id=f"{WORD}-{step}-{place}")
                for place, (name, arguments) in enumerate(CALLS[step])
            ]
            return Answer(body=completion(None, finish="tool_calls", calls=calls))
        if "response_format" in body:
            why = {"why": sing("why"), "significant": True, "kinds": [WORD, "event"]}
            return Answer(body=completion(json.dumps(why)))
        return reply(sing("summed up"))


FORGETFUL: dict[str, Any] = {
    "budgets": {"history": 500},
    "summary": {"enabled": True, "interval": 2},
}
"""Settings of a chat with a small history budget and frequent summaries."""


def picture() -> bytes:
    """Return a picture with the canary in plain and compressed metadata."""
    about = PngInfo()
    about.add_text("Comment", sing("comment"))
    about.add_itxt("Description", sing("description"), zip=True)
    card = json.dumps({"spec": "chara_card_v2", "spec_version": "2.0", "data": CARD})
    about.add_text("chara", base64.b64encode(card.encode()).decode())
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "gold").save(file, "PNG", pnginfo=about)
    # Bytes after the end of the file are ignored by programs.
    return file.getvalue() + sing("tail").encode()


@dataclass(frozen=True)
class Site:
    url: str


class Player:
    """Writes the canary into every field, and checks the answers."""

    def __init__(self, account: Account, model: OpenAIServer) -> None:
        self.account = account
        self.client = account.client
        self.model = model

    async def play(self) -> None:
        await self.write_characters()
        chat = await self.open_chat()
        await self.write_presets()
        await self.write_lore(chat)
        await self.keep_chronicles()
        await self.keep_campaign()
        await self.take_turns(chat)
        await self.fail_turns(chat)
        await self.change_messages(chat)
        await self.be_refused(chat)
        await self.use_providers()
        await self.look_after_the_account()
        await self.add_second_factors()

    async def write_characters(self) -> None:
        client = self.client
        made = ok(await client.post(f"{API}/characters", json=CARD), 201)
        self.character_id = made["id"]
        assert WORD in made["character_book"]["entries"][0]["content"]
        ok(await client.patch(f"{API}/characters/{made['id']}", json={"nickname": sing("other")}))
        upload = {"file": (f"{WORD}.png", picture(), "image/png")}
        imported = ok(await client.post(f"{API}/characters/import", files=upload), 201)
        assert WORD in imported["character"]["description"]
        for kind in ("png", "json"):
            path = f"{API}/characters/{imported['character']['id']}/export"
            assert (await client.get(path, params={"format": kind})).status_code == 200
        large = json.dumps({**CARD, "creator_notes": sing("large") * 80_000}).encode()
        refused = await client.post(f"{API}/characters/import", files={"file": large})
        assert refused.status_code == 422
        body = {"name": sing("persona"), "description": sing("description")}
        self.persona_id = ok(await client.post(f"{API}/personas", json=body), 201)["id"]
        for path in (f"characters/{self.character_id}", f"personas/{self.persona_id}"):
            headers = {"content-type": "image/png"}
            put = await client.put(f"{API}/{path}/avatar", content=picture(), headers=headers)
            assert put.status_code == 204
            shown = await client.get(f"{API}/{path}/avatar")
            assert WORD.encode() not in shown.content

    async def write_presets(self) -> None:
        client, path = self.client, f"{API}/presets"
        block = {"id": "own", "name": sing("block"), "content": sing("told")}
        made = ok(await client.post(path, json={"name": sing("preset")}), 201)
        blocks = [*made["blocks"], block]
        ok(await client.patch(f"{path}/{made['id']}", json={"blocks": blocks}))
        assert WORD in (await client.get(f"{path}/{made['id']}/export")).text
        prompt = {"identifier": WORD, "content": sing("prompt")}
        upload = {"file": (f"{WORD}.json", json.dumps({"prompts": [prompt]}).encode())}
        ok(await client.post(f"{path}/import", files=upload), 201)
        refused = await client.post(path, json={"name": WORD, "blocks": [block, block]})
        assert refused.status_code == 422

    async def use_providers(self) -> None:
        """Make an own and a shared provider with the canary in key, headers and body."""
        client, path = self.client, f"{API}/providers"
        secrets = {"api_key": f"sk-{WORD}", "extra_headers": {"X-Team": sing("header")}}
        body = {"kind": "openai", "base_url": f"{self.model.url}/", "name": sing("provider")}
        for scope in ("user", "installation"):
            wanted = {**body, **secrets, "extra_body": {WORD: sing("body")}, "scope": scope}
            made = ok(await client.post(path, json=wanted), 201)
            for answer in (
                Answer(body={"data": [{"id": "m", "name": WORD}]}),
                error(401, message=WORD),
            ):
                self.model.script(answer, error(401, message=WORD))
                await client.post(f"{path}/{made['id']}/test", json={"model": "m"})
            models = [{"name": "m", "title": sing("title")}]
            changed = await client.patch(f"{path}/{made['id']}", json={"models": models})
            assert f"sk-{WORD}" not in changed.text
            chat = ok(await client.post(f"{API}/chats", json={}), 201)["id"]
            chosen = {"model": f"{made['slug']}/m"}
            ok(await client.patch(f"{API}/chats/{chat}/settings", json=chosen))
            for wire in (reply(sing("reply")), error(401, message=WORD)):
                self.model.script(wire)
                await self.account.turn(chat, text=sing("line"))
            sent = self.model.requests[-1].headers
            assert (WORD in sent["authorization"], WORD in sent["x-team"]) == (True, True)
            self.model.script(Answer(body={"data": [{"id": "m", "name": WORD}]}))
            assert WORD in (await client.get(f"{path}/{made['id']}/models")).text
            embeds = {"task_models": {"embedding": f"{made['slug']}/{WORD}"}}
            self.model.script(error(401, message=WORD))
            ok(await client.patch(f"{API}/me/settings", json=embeds))
            assert (await client.get(f"{API}/memory")).status_code == 200
            ok(await client.patch(f"{API}/me/settings", json={"task_models": {"embedding": None}}))
            refused = {**wanted, "base_url": f"http://169.254.169.254/{WORD}"}
            assert (await client.post(path, json=refused)).status_code == 422

    async def write_lore(self, chat: str) -> None:
        client = self.client
        body = {"name": sing("book"), "description": sing("description")}
        book = ok(await client.post(f"{API}/lorebooks", json=body), 201)["id"]
        path = f"{API}/lorebooks/{book}"
        ok(await client.patch(path, json={"name": sing("renamed"), "is_global": True}))
        entry = ok(await client.post(f"{path}/entries", json=ENTRY), 201)
        ok(await client.patch(f"{path}/entries/{entry['id']}", json={"title": sing("other")}))
        found = ok(await client.get(f"{API}/lorebooks", params={"search": WORD}))["items"]
        assert {book, *(item["id"] for item in found)} == {item["id"] for item in found}
        ok(await client.put(f"{API}/chats/{chat}/lorebooks/{book}", json={"state": "linked"}))
        upload = {"file": (f"{WORD}.json", json.dumps(WORLD).encode())}
        name = {"name": sing("name")}
        imported = ok(await client.post(f"{API}/lorebooks/import", files=upload, data=name), 201)
        assert WORD in imported["lorebook"]["name"]
        for kind in ("world_info", "v2", "v3"):
            own = f"{API}/lorebooks/{imported['lorebook']['id']}/export"
            assert WORD in (await client.get(own, params={"format": kind})).text
        for broken in ({"entries": WORD}, {"entries": {WORD: {"key": [WORD], "order": WORD}}}):
            data = {"file": (WORD, json.dumps(broken).encode())}
            answer = await client.post(f"{API}/lorebooks/import", files=data)
            assert answer.status_code in {201, 422}
        gone = await client.delete(f"{path}/entries/{entry['id']}")
        assert gone.status_code == 204

    async def open_chat(self) -> str:
        ok(await self.client.patch(f"{API}/me/settings", json=SETTINGS))
        chat = await self.account.new_chat(
            title=sing("title"), character_ids=[self.character_id], persona_id=self.persona_id
        )
        settings = {**SETTINGS, "authors_note": {"text": sing("note"), "depth": 1}}
        ok(await self.client.patch(f"{API}/chats/{chat['id']}/settings", json=settings))
        chat_id: str = chat["id"]
        return chat_id

    async def keep_campaign(self) -> None:
        client = self.client
        brief = {"setting": sing("setting"), "hook": sing("hook"), "city": sing("city")}
        body = {"name": sing("campaign"), "time_of_day": sing("time"), "brief": brief}
        path = f"{API}/campaigns/{ok(await client.post(f'{API}/campaigns', json=body), 201)['id']}"
        person = {"kind": "npc", "name": sing("person"), "attributes": {WORD: sing("attribute")}}
        made = ok(await client.post(f"{path}/entities", json=person), 201)
        for plural, fields in (
            ("threads", {"title": sing("thread")}),
            ("facts", {"text": sing("fact"), "about_id": made["id"]}),
            ("glossary", {"term": sing("term"), "definition": sing("definition")}),
        ):
            ok(await client.post(f"{path}/{plural}", json=fields), 201)
        ok(await client.patch(f"{path}/entities/{made['id']}", json={"wants": sing("wish")}))
        assert (
            WORD in ok(await client.get(f"{path}/context", params={"text": sing("look")}))["full"]
        )

    async def keep_chronicles(self) -> None:
        client = self.client
        body = {"name": sing("chronicle"), "description": sing("description")}
        other = ok(await client.post(f"{API}/chronicles", json=body), 201)["id"]
        ok(await client.patch(f"{API}/chronicles/{other}", json={"name": sing("renamed")}))
        path = f"{API}/chronicles/{other}"
        events = [await new_event(self.account, other, sing(place), **EVENT) for place in "abc"]
        ok(await client.patch(f"{path}/events/{events[0]}", json={"where": sing("elsewhere")}))
        merge = {"event_ids": events[:2], "event": {"summary": sing("merged")}}
        assert (await client.post(f"{path}/events/merge", json=merge)).is_success
        found = await client.get(f"{path}/events", params={"search": WORD})
        assert WORD in found.text
        exported = await client.get(f"{path}/export")
        assert WORD in exported.text
        for place in ("chronicles", f"chronicles/{other}"):
            for data in (exported.content, f'{{"{WORD}": "{WORD}"}}'.encode(), WORD.encode()):
                upload = {"file": (f"{WORD}.json", data)}
                answer = await client.post(f"{API}/{place}/import", files=upload)
                assert answer.status_code in {200, 201, 422}, answer.text
        chat = (await self.account.new_chat(title=sing("told")))["id"]
        await opt_in(self.account, chat)
        ok(await client.patch(f"{API}/chats/{chat}/settings", json=FORGETFUL))
        for number in range(3):
            line = sing(f"line {number} ") + "and so on. " * 200
            await self.turn(chat, reply(sing("answer")), text=line)
        await last_run(self.account, chat)
        view = await overview(self.account, chat)
        assert any(WORD in run["why"] for run in view["items"])
        written = [each["what"] for run in view["items"] for each in run["written"]]
        assert {"event_created", "entry_created"} <= set(written)
        assert {WORD, "create_chronicle_event"} <= {
            each["tool"] for run in view["items"] for each in run["refused"]
        }

        async def is_at_rest() -> bool:
            """Wait, so that background jobs do not take scripted answers."""
            jobs = ok(await client.get(f"{API}/jobs"))["items"]
            return {job["state"] for job in jobs} <= {"done"}

        await until(is_at_rest)
        assert WORD in ok(await client.get(f"{API}/chats/{chat}/summary"))["text"]
        newest = (await self.account.messages(chat))[-1]["id"]
        await sum_up(self.account, chat, sing("summary"), through=newest)

    async def turn(self, chat: str, answer: Answer, **body: Any) -> list[Event]:
        self.model.script(answer)
        return await self.account.turn(chat, **body)

    async def take_turns(self, chat: str) -> None:
        line = sing("line") + " {{setglobalvar::everywhere::" + sing("global") + "}}"
        thinking = stream(
            chunk(reasoning_content=sing("thought")),
            chunk(content=sing("answer")),
            chunk("stop"),
            "[DONE]",
        )
        events = await self.turn(chat, thinking, text=line)
        assert WORD in text_of(events)
        assert WORD in str(self.model.requests[-1].body)
        reply_id = events[0].data["reply_id"]
        await self.turn(chat, reply(sing("other answer")), regenerate_of=reply_id)
        await self.turn(chat, reply(sing("more")), **{"continue": True})
        events = await self.turn(chat, reply(sing("my next line")), impersonate=True)
        assert WORD in text_of(events)
        lines = json.dumps({"lines": [sing("one"), sing("two"), sing("three")]})
        self.model.script(Answer(body=completion(lines)))
        answer = await self.client.post(f"{API}/chats/{chat}/suggestions", json={})
        assert WORD in answer.text
        preview = await self.client.get(
            f"{API}/chats/{chat}/context", params={"text": sing("preview"), "prompt": "true"}
        )
        assert WORD in str(ok(preview)["prompt"])
        context = await self.client.get(f"{API}/messages/{reply_id}/context")
        assert WORD in str(ok(context)["prompt"])

    async def fail_turns(self, chat: str) -> None:
        for answer in (
            error(400, message=sing("refusal")),
            error(401, message=sing("key")),
            error(429, message=sing("slow down")),
            error(500, message=sing("broken")),
            Answer(body=sing("no JSON").encode()),
            stream(chunk(content=sing("half")), Break()),
            stream(chunk(content=sing("half")), sing("no JSON either")),
        ):
            for _ in range(3):  # some failures are tried again by the vendor's own library
                self.model.script(answer)
            events = await self.account.turn(chat, text=sing("line"))
            assert events[-1].name == "turn.failed"
            turn = await self.client.get(f"{API}/turns/{events[0].data['turn_id']}")
            problem = ok(turn)["problem"]
            # The first account administers, and reads the provider's own words.
            assert answer.status == 200 or WORD in problem["provider_message"]
            self.model.unscript()

    async def change_messages(self, chat: str) -> None:
        lines = await self.account.messages(chat)
        path = f"{API}/messages/{lines[-1]['id']}"
        edited = ok(await self.client.patch(path, json={"text": sing("edited")}))
        ok(await self.client.patch(f"{API}/messages/{edited['id']}", json={"hidden": True}))
        fork = {"message_id": edited["id"], "title": sing("fork")}
        copy = ok(await self.client.post(f"{API}/chats/{chat}/fork", json=fork), 201)
        ok(await self.client.patch(f"{API}/chats/{copy['id']}", json={"title": sing("renamed")}))
        ok(await self.client.delete(f"{API}/messages/{lines[-1]['id']}"))
        gone = await self.client.delete(f"{API}/chats/{copy['id']}")
        assert gone.status_code == 204

    async def be_refused(self, chat: str) -> None:
        """Send failing requests with the canary in every part of a request."""
        client = self.client
        for path in (
            f"/{WORD}",
            f"{API}/chats/{WORD}",
            f"{API}/chats/{chat}/{WORD}",
            f"{API}/chats?limit={WORD}",
            f"{API}/chats?after={WORD}",
            f"{API}/characters?search={WORD}&{WORD}=1",
        ):
            assert (await client.get(path)).status_code in {200, 404, 422}
        for content in (
            f'{{"title": "{WORD}'.encode(),
            f'{{"{WORD}": 1}}'.encode(),
            f'{{"character_ids": ["{WORD}"]}}'.encode(),
            f'"{WORD}"'.encode(),
            b'{"title": "\xff' + WORD.encode() + b'"}',
            json.dumps({"title": WORD * 1000}).encode(),
        ):
            answer = await client.post(f"{API}/chats", content=content, headers=JSON)
            assert answer.status_code in {400, 422}
        long = {"text": sing("long") * 100_000}
        assert (await client.post(f"{API}/chats/{chat}/turns", json=long)).status_code == 422
        for headers in (
            {"Origin": f"https://{WORD}.example"},
            {"Authorization": f"Bearer tk_{WORD}"},
            {"Authorization": f"Basic {WORD}"},
            {"Cookie": f"talekeeper_session={WORD}; csrftoken={WORD}"},
            {"X-CSRFToken": WORD},
            {"If-Match": f'"{WORD}"'},
            {"Idempotency-Key": WORD},
            {"Content-Type": f"multipart/form-data; boundary={WORD}"},
            {"User-Agent": WORD, "Referer": f"https://example.org/{WORD}", "Accept": WORD},
        ):
            await client.patch(f"{API}/chats/{chat}", json={}, headers=headers)
            await client.post(f"{API}/characters/import", content=WORD, headers=headers)
        wrong = {"username": WORD, "password": WORD}
        assert (await client.post(f"{API}/sessions", json=wrong)).status_code == 401
        recovery = {"username": WORD, "recovery_code": WORD, "new_password": PASSWORD}
        assert (await client.post(f"{API}/recoveries", json=recovery)).status_code == 401

    async def add_second_factors(self) -> None:
        """Add a passkey and an authenticator app with the canary in the names."""
        site = Site(str(self.client.base_url).rstrip("/"))
        options = await begin_passkey(site, self.account, PASSWORD)
        assert WORD in options["user"]["name"]
        made = new_passkey(site).create(options)
        codes = ok(await finish_passkey(site, self.account, made, sing("passkey")), 201)["codes"]
        assert WORD in (await self.client.get(FACTORS)).text
        body = {"password": PASSWORD, "otp": codes[0]}
        begun = ok(await self.client.post(f"{FACTORS}/totp", json=body), 201)
        assert WORD in begun["uri"]
        for wrong in ({"code": WORD}, {"credential": {WORD: WORD}, "label": WORD}):
            kind = "totp" if "code" in wrong else "passkeys"
            headers = at_localhost(site)
            path = f"{FACTORS}/{kind}/confirmation"
            answer = await self.client.post(path, json=wrong, headers=headers)
            assert answer.status_code in {401, 422}
        sign_in = {"username": sing("user"), "password": PASSWORD, "otp": WORD}
        assert (await self.client.post(f"{API}/sessions", json=sign_in)).status_code == 401
        assert WORD in (await self.client.get(f"{API}/me/activity")).text

    async def look_after_the_account(self) -> None:
        client = self.client
        again = {"Idempotency-Key": sing("key")}
        ok(await client.post(f"{API}/personas", json={"name": sing("kept")}, headers=again), 201)
        body = {"label": sing("label"), "scope": "manage"}
        ok(await client.post(f"{API}/api-keys", json=body), 201)
        assert WORD in ok(await client.get(f"{API}/api-keys"))["items"][0]["label"]
        assert WORD in ok(await client.get(f"{API}/me/activity"))["items"][0]["detail"]
        change = {"current_password": PASSWORD, "new_password": f"{PASSWORD} too"}
        ok(await client.post(f"{API}/me/password", json=change), 204)
        recovery = {
            "username": sing("user"),
            "recovery_code": self.account.recovery_code,
            "new_password": PASSWORD,
        }
        ok(await client.post(f"{API}/recoveries", json=recovery), 201)
        listed = ok(await client.get(f"{API}/sessions"))["items"]
        assert WORD in listed[0]["label"]
        ok(await client.post(f"{API}/api-keys", json=body), 201)
