"""Prompt presets of an account: made, imported, exported, changed, chosen, deleted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scripts.torture.client import Answer
from scripts.torture.ledger import Thing
from scripts.torture.own_models import SETTINGS
from scripts.torture.worker import MOST_THINGS, Worker

MADE, IMPORTED = 0.4, 0.5
"""Chances that a preset is created, and that it comes from a file."""

OWN = "own"
"""The id of the block with the text of a preset."""


def get_block_text(blocks: Sequence[Any], *, member: str = "id") -> str | None:
    """Return the text of a preset's block, or null."""
    return next((each.get("content", "") for each in blocks if each[member] == OWN), None)


@dataclass
class Presets:
    """Presets of a worker's account."""

    worker: Worker

    async def change(self) -> None:
        """Make a preset or import one, change it, export it, or delete it."""
        worker = self.worker
        own = worker.ledger.usable("preset")
        if len(own) >= MOST_THINGS:
            await worker.delete("preset")
        elif not own or worker.draw.random() < MADE:
            await self._add()
        else:
            thing = worker.draw.choice(own)
            await worker.draw.choice((self._write, self._write, self._export))(thing)

    async def choose(self) -> None:
        """Choose a preset, or none, for the account, a character or a chat."""
        worker = self.worker
        own = worker.ledger.usable("preset")
        chosen = worker.draw.choice(own).id if own and worker.draw.random() < 0.7 else None
        chats = [each for each in worker.ledger.usable("chat") if each.id]
        characters = worker.ledger.usable("character")
        kind = worker.draw.choice(("account", "character", "chat"))
        if kind == "character" and characters:
            place = f"/characters/{worker.draw.choice(characters).id}"
            await worker.choose(place, "preset_id", chosen, path=f"{place}/preset")
            return
        place = SETTINGS
        if kind == "chat" and chats:
            place = f"/chats/{worker.draw.choice(chats).id}/settings"
        answer = await worker.choose(place, "preset_id", chosen)
        if answer.slug == "unknown-model":
            # A setting with a deleted model does not prevent other changes.
            worker.client.history.breach(f"settings: no preset can be chosen ({answer.body})")

    async def _add(self) -> None:
        worker = self.worker
        name = worker.unique("preset")
        if worker.draw.random() < IMPORTED:
            text = worker.text()

            async def record_text(thing: Thing, _: Answer) -> None:
                worker.ledger.choice(f"/presets/{thing.id}", "blocks").values = [text]

            files = {"file": (f"{name}.json", json.dumps(_file(text)).encode())}
            await worker.make("preset", name, "/presets/import", files=files, after=record_text)
        else:
            await worker.make("preset", name, "/presets", json={"name": name})

    async def _write(self, thing: Thing) -> None:
        """Set one block of text, and the history."""
        text = self.worker.text()
        history = {"id": "chatHistory", "name": "Chat history", "marker": "history"}
        blocks = [{"id": OWN, "name": "Own", "content": text}, history]
        path = f"/presets/{thing.id}"
        await self.worker.choose(path, "blocks", text, path=path, body={"blocks": blocks})

    async def _export(self, thing: Thing) -> None:
        choice = self.worker.ledger.choice(f"/presets/{thing.id}", "blocks")
        before = list(choice.values)
        path = f"/presets/{thing.id}/export"
        file = await self.worker.ask("export preset", "GET", path)
        if file.outcome == "ok":
            text = get_block_text(file.body["prompts"], member="identifier")
            if text not in {*before, *choice.values}:
                told = f"changed: the file of {thing.name} says {text!r}"
                self.worker.client.history.breach(told)


def _file(text: str) -> dict[str, Any]:
    """Return a SillyTavern preset with one block of text."""
    own = {"identifier": OWN, "name": "Own", "role": "system", "content": text}
    history = {"identifier": "chatHistory", "name": "Chat History", "marker": True}
    order = [{"identifier": each, "enabled": True} for each in (OWN, "chatHistory")]
    return {
        "temperature": 1,
        "prompts": [own, history],
        "prompt_order": [{"character_id": 100001, "order": order}],
    }
