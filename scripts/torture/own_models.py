"""Providers of an account: created, tested, moved and deleted, with models chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scripts.model_server import MODEL
from scripts.torture.client import PROVIDER_KEY, Answer
from scripts.torture.ledger import Thing
from scripts.torture.model import EMBEDDERS, LISTED
from scripts.torture.worker import Worker

SETTINGS = "/me/settings"
MOST_PROVIDERS, NOWHERE = 5, "http://127.0.0.1:1024/v1"
"""Fewer than an account may have, and where nothing listens."""

DELETED, MADE, LIVE, NAMED = 0.15, 0.35, 0.8, 0.7
"""Chances that a provider is deleted or created, that its server exists, and that its models are
chosen."""

NOT_FOUND = 404
TASKS = ("triage", "agent", "summary", "suggestions", "compaction")
NO_TASKS: dict[str, None] = dict.fromkeys(TASKS)

_MODELS = [{"name": MODEL, "context_window": 32_000}]


@dataclass
class OwnModels:
    """Providers and models of a worker's account."""

    worker: Worker

    async def change_provider(self) -> None:
        """Add a provider; list its models, try it out, give it another key or server; delete it."""
        worker = self.worker
        own = worker.ledger.usable("provider")
        if len(own) >= MOST_PROVIDERS or (own and worker.draw.random() < DELETED):
            await worker.delete("provider")
        elif not own or worker.draw.random() < MADE:
            await self.add()
        else:
            thing = worker.draw.choice(own)
            kinds = [self._list, self._test, self._headers, self._key]
            if thing.slug:
                kinds += [self._list, self._move]
            await worker.draw.choice(kinds)(thing)

    async def add(self, *, is_live: bool | None = None) -> Thing:
        """Add a provider, where one of the account's servers is or where nothing is."""
        worker = self.worker
        name, live = worker.unique("provider"), is_live
        if live is None:
            live = worker.draw.random() < LIVE
        url = worker.draw.choice(worker.servers) if live else NOWHERE
        slug = f"own-{name.split()[1]}"
        body: dict[str, Any] = {"kind": "openai", "slug": slug, "name": name, "base_url": url}
        body["api_key"] = self._new_key()
        if not live or worker.draw.random() < NAMED:
            body["models"] = _MODELS

        async def made(thing: Thing, _: Answer) -> None:
            worker.ledger.choice(f"/providers/{thing.id}", "base_url").values = [url]
            thing.slug = slug if live else ""

        return await worker.make("provider", name, "/providers", json=body, after=made)

    async def choose_model(self) -> None:
        """Name a model for replies or for a task, of the account or of a chat; or none."""
        worker = self.worker
        task = worker.draw.choice(("", "", *TASKS))
        member = f"task_models.{task}" if task else "model"
        chats = [each for each in worker.ledger.usable("chat") if each.id]
        place = SETTINGS
        if chats and worker.draw.random() < 0.6:
            place = f"/chats/{worker.draw.choice(chats).id}/settings"
        live = self._live()
        chosen = worker.draw.choice(live) if live and worker.draw.random() < 0.6 else None
        answer = await worker.choose(place, member, chosen and f"{chosen.slug}/{MODEL}")
        if answer.slug == "unknown-model" and chosen is None:
            worker.client.history.breach(f"settings: {member} can't be taken back ({answer.body})")

    async def choose_embedding(self) -> None:
        """Name an embedding model for the account; or none, which is the installation's."""
        worker = self.worker
        live = self._live()
        model_id = None
        if live and worker.draw.random() < 0.7:
            provider = worker.draw.choice(live)
            model_id = f"{provider.slug}/{worker.draw.choice(EMBEDDERS)}"
        await worker.choose(SETTINGS, "task_models.embedding", model_id)

    async def back_to_usual(self, chat: str) -> None:
        """Remove all chosen models, because a provider was deleted."""
        worker = self.worker
        await worker.choose(SETTINGS, "model", None)
        await worker.choose(f"/chats/{chat}/settings", "model", None)

    async def look_elsewhere(self) -> None:
        """Ask for resources of another account. All must be missing."""
        worker = self.worker
        others = [(ledger, kind) for ledger in worker.others for kind in ("provider", "preset")]
        if not others:
            return
        ledger, kind = worker.draw.choice(others)
        things = ledger.usable("provider" if kind == "provider" else "preset")
        if not things:
            return
        thing = worker.draw.choice(things)
        path = f"/{kind}s/{thing.id}"
        paths = {
            "provider": (path, f"{path}/models", f"{path}/test"),
            "preset": (path, f"{path}/export"),
        }
        asked = worker.draw.choice(paths[kind])
        method = "POST" if asked.endswith("/test") else "GET"
        more: dict[str, Any] = {"json": {}} if method == "POST" else {}
        seen = await worker.ask("look elsewhere", method, asked, **more)
        if seen.status is not None and seen.status < 500 and seen.status != NOT_FOUND:
            worker.client.history.breach(f"another's: {method} {asked} answers {seen.status}")
        await self._take_elsewhere(thing)
        await self._see_own()

    async def _take_elsewhere(self, thing: Thing) -> None:
        """Try to choose a model of another account."""
        worker = self.worker
        wanted: dict[str, Any] = {"preset_id": thing.id}
        if thing.kind == "provider":
            if not thing.slug:
                return
            embedding = {"task_models": {"embedding": f"{thing.slug}/{EMBEDDERS[0]}"}}
            wanted = worker.draw.choice([{"model": f"{thing.slug}/{MODEL}"}, embedding])
        taken = await worker.ask("take elsewhere", "PATCH", SETTINGS, json=wanted)
        if taken.outcome == "ok":
            worker.client.history.breach(f"another's: settings take {wanted}")

    async def _see_own(self) -> None:
        """Report offered models that are neither the account's nor shared."""
        worker = self.worker
        page = await worker.ask("models", "GET", "/models")
        if page.outcome != "ok":
            return
        theirs = {
            thing.slug for ledger in worker.others for thing in ledger.things.values() if thing.slug
        }
        for each in page.body["items"]:
            if each["provider"] in theirs:
                worker.client.history.breach(f"another's: model {each['id']} is on offer")

    async def _list(self, thing: Thing) -> None:
        worker = self.worker
        refresh = worker.draw.choice(("true", "true", "false"))
        path, params = f"/providers/{thing.id}/models", {"refresh": refresh}
        page = await worker.ask("provider's models", "GET", path, params=params)
        if page.outcome != "ok" or refresh == "false" or page.body["problem"] is not None:
            return
        names = {each["name"] for each in page.body["items"]}
        if not names.issuperset(LISTED):
            worker.client.history.breach(f"models: {thing.name} lists {sorted(names)}")

    async def _test(self, thing: Thing) -> None:
        path = f"/providers/{thing.id}/test"
        await self.worker.ask("test provider", "POST", path, json={"model": MODEL})

    async def _headers(self, thing: Thing) -> None:
        change = {"extra_headers": {"X-Canary": self.worker.unique("provider")}}
        await self.worker.ask("change provider", "PATCH", f"/providers/{thing.id}", json=change)

    async def _key(self, thing: Thing) -> None:
        change = {"api_key": self._new_key()}
        await self.worker.ask("change provider", "PATCH", f"/providers/{thing.id}", json=change)

    async def _move(self, thing: Thing) -> None:
        """Move to another server that has models with the same names."""
        url = self.worker.draw.choice(self.worker.servers)
        await self.worker.choose(f"/providers/{thing.id}", "base_url", url)

    def _live(self) -> list[Thing]:
        return [each for each in self.worker.ledger.usable("provider") if each.slug]

    def _new_key(self) -> str:
        return f"{PROVIDER_KEY}-{self.worker.model.canary}-{next(self.worker.ledger.numbers)}"
