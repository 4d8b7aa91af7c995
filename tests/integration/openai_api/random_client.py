"""A client that edits, deletes, regenerates, trims and branches, and keeps its own list."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from uuid import UUID

from tests.integration.openai_api.clients import Desk, Sent


@dataclass
class RandomClient:
    """Its texts are all different, so that each stored text belongs to one message."""

    desk: Desk
    draw: random.Random
    chat_id: UUID | None = None
    messages: list[Sent] = field(default_factory=list[Sent])
    earlier: list[list[Sent]] = field(default_factory=list[list[Sent]])
    replaced: set[Sent] = field(default_factory=set[Sent])
    count: int = 0

    def make_text(self) -> str:
        self.count += 1
        return f"{self.count}: {' '.join(f'word{self.count}x{n}' for n in range(8))}."

    async def step(self) -> None:
        """Change the list as a user does, send it, and take the reply into it."""
        self.earlier.append(list(self.messages))
        changes = [
            self.say, self.say, self.swipe, self.edit, self.delete, self.trim, self.go_back,
            self.go_back_and_say, self.return_to_earlier, self.play_elsewhere,
        ]  # fmt: skip
        self.draw.choice(changes)()
        reply = self.make_text()
        self.chat_id = await self.desk.send(self.messages, reply)
        self.messages.append(("assistant", reply))

    def say(self) -> None:
        self.messages.append(("user", self.make_text()))

    def swipe(self) -> None:
        while self.messages[-1][0] == "assistant" and len(self.messages) > 1:
            self.messages.pop()
        if self.messages[-1][0] == "assistant":
            self.say()

    def edit(self) -> None:
        if len(self.messages) > 3:
            place = self.draw.randrange(1, len(self.messages))
            role, _ = self.messages[place]
            self.replaced.add(self.messages[place])
            self.messages[place] = (role, self.make_text())
        self.say()

    def delete(self) -> None:
        if len(self.messages) > 5:
            first = self.draw.randrange(1, len(self.messages) - 2)
            del self.messages[first : first + self.draw.randint(1, 2)]
        self.say()

    def trim(self) -> None:
        role, text = self.messages[-1]
        if role == "assistant" and len(self.messages) > 1:
            self.messages[-1] = (role, text[: self.draw.randint(20, len(text) - 1)].strip())
        self.say()

    def go_back(self) -> None:
        if len(self.messages) > 4:
            del self.messages[self.draw.randrange(3, len(self.messages)) :]
        self.swipe()

    def go_back_and_say(self) -> None:
        if len(self.messages) > 4:
            del self.messages[self.draw.randrange(3, len(self.messages)) :]
        self.say()

    def return_to_earlier(self) -> None:
        # A text that was edited and then deleted is not stored, and looks like an inserted note.
        known = [each for each in self.earlier if not self.replaced.intersection(each)]
        self.messages = list(self.draw.choice(known))
        self.say()

    def play_elsewhere(self) -> None:
        for _ in range(self.draw.randint(1, 3)):
            self.say()
            self.messages.append(("assistant", self.make_text()))
        self.say()
