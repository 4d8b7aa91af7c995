"""Cards, lorebooks and personas that workers create."""

from __future__ import annotations

import json
from dataclasses import dataclass

from scripts.torture.model import WORDS
from scripts.torture.worker import MOST_THINGS, Worker


@dataclass
class Things:
    """Cards, lorebooks and personas of a worker's account."""

    worker: Worker

    async def import_card(self) -> None:
        """Import a card, with an `Idempotency-Key` or without."""
        worker = self.worker
        if len(worker.ledger.usable("character")) >= MOST_THINGS:
            await worker.delete("character")
            return
        name = worker.unique("character")
        card = {
            "spec": "chara_card_v3",
            "spec_version": "3.0",
            "data": {
                "name": name,
                "description": f"{worker.model.canary} is what {name} is.",
                "first_mes": worker.text(),
                "alternate_greetings": [worker.text() for _ in range(worker.draw.randint(0, 2))],
            },
        }
        files = {"file": ("card.json", json.dumps(card).encode())}
        await worker.make("character", name, "/characters/import", files=files)

    async def import_lorebook(self) -> None:
        """Import a lorebook, with an `Idempotency-Key` or without."""
        worker = self.worker
        if len(worker.ledger.usable("lorebook")) >= MOST_THINGS:
            await worker.delete("lorebook")
            return
        name = worker.unique("lorebook")
        entries = {
            str(number): {
                "uid": number,
                "key": [worker.draw.choice(WORDS), f"key{number}"],
                "content": f"{worker.model.canary} entry {number} of {name}.",
            }
            for number in range(worker.draw.randint(1, 5))
        }
        book = {"name": name, "entries": entries}
        files = {"file": (f"{name}.json", json.dumps(book).encode())}
        await worker.make("lorebook", name, "/lorebooks/import", files=files)

    async def change_persona(self) -> None:
        """Create a persona, or change the description of the worker's persona."""
        worker = self.worker
        personas = worker.ledger.usable("persona")
        own = [each for each in personas if each.name.startswith(worker.name)]
        if not own:
            name = f"{worker.name} {worker.unique('persona')}"
            body = {"name": name, "description": worker.text()}
            thing = await worker.make("persona", name, "/personas", json=body)
            thing.values = [body["description"]]
            return
        thing, value = own[0], worker.text()
        thing.values.append(value)
        answer = await worker.ask(
            "change persona", "PATCH", f"/personas/{thing.id}", json={"description": value}
        )
        if answer.outcome == "ok":
            thing.values = [value]
        elif answer.outcome == "refused":
            thing.values.remove(value)
