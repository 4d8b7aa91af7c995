"""Group chats: who has spoken, and turns that follow each other by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.memory import context_of, set_chat
from tests.support.server import Account, Event, ok

FIVE = ("Alda", "Bor", "Cara", "Dov", "Esk")

Message = dict[str, Any]


@dataclass(frozen=True)
class Ensemble:
    """A chat of several characters, by name."""

    ada: Account
    chat: str
    ids: dict[str, str]

    @property
    def names(self) -> dict[str, str]:
        return {character_id: name for name, character_id in self.ids.items()}

    async def turn(self, **body: Any) -> list[Event]:
        return await self.ada.turn(self.chat, **body)

    async def ask(self, **body: Any) -> tuple[str, str]:
        """Take a turn; return the name of the speaker, and why it was chosen."""
        events = await self.turn(**body)
        assert events[-1].name == "turn.completed", events[-1]
        context = await context_of(self.ada, events[0].data["reply_id"])
        speaker = context["speaker"]
        assert speaker["name"] == self.names[speaker["id"]]
        last = (await self.messages())[-1]
        assert last["character_id"] == speaker["id"]
        return speaker["name"], speaker["reason"]

    async def messages(self) -> list[Message]:
        return await self.ada.messages(self.chat, limit=200)

    async def set(self, **group: Any) -> None:
        await set_chat(self.ada, self.chat, group=group)

    async def move(self, name: str, presence: str) -> None:
        path = f"/chats/{self.chat}/members/{self.ids[name]}"
        ok(await self.ada.ask("PATCH", path, json={"presence": presence}))


async def gather(ada: Account, names: Sequence[str] = FIVE, **cards: Any) -> Ensemble:
    """Open a chat of characters without greetings. `cards` are fields of their cards, by name."""
    ids: dict[str, str] = {}
    for name in names:
        made = await ada.new_character(name=name, first_mes="", **cards.get(name, {}))
        ids[name] = made["id"]
    chat = await ada.new_chat(character_ids=list(ids.values()))
    return Ensemble(ada, chat["id"], ids)


def split_turns(events: Sequence[Event]) -> list[list[Event]]:
    """Split the events of a stream by their turns."""
    turns: list[list[Event]] = []
    for event in events:
        if event.name == "speaker.started" or not turns:
            turns.append([])
        turns[-1].append(event)
    return turns


def speakers_in(events: Sequence[Event]) -> list[str]:
    return [event.data["name"] for event in events if event.name == "speaker.started"]
