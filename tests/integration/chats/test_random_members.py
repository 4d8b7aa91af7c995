"""Random lines and changes of presence, and what each member knows, against a naive model."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from backend.chats.members import load_group
from tests.fakes.openai_server import OpenAIServer, reply
from tests.support.models import asking
from tests.support.server import Account, Running, ok, running
from tests.support.thorough import rounds

pytestmark = [pytest.mark.anyio]

STEPS = rounds(24, 120)
SEEDS = range(rounds(3, 20))
PRESENCES = ("present", "absent", "muted")

Message = dict[str, Any]


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    async with running(shared_url, tmp_path_factory.mktemp("data"), **asking(model)) as server:
        yield server


@dataclass
class Table:
    """A chat that is changed at random.

    `members` are true if they are there from the start. `guests` can join. `unheard` counts the
    lines that a member must not know, over all comparisons.
    """

    server: Running
    ada: Account
    model: OpenAIServer
    chance: random.Random
    chat: str = ""
    members: dict[str, bool] = field(default_factory=dict[str, bool])
    guests: list[str] = field(default_factory=list[str])
    said: int = 0
    unheard: int = 0

    async def open(self) -> None:
        made = [await self.ada.new_character(name=f"Guest {n}") for n in range(4)]
        first, second, *self.guests = [str(each["id"]) for each in made]
        self.members = {first: True, second: True}
        self.chat = str((await self.ada.new_chat(character_ids=[first, second]))["id"])
        await self._take(text=self._word(), speaker=first)
        await self._set_presence(self.guests[0], "present")

    async def step(self) -> None:
        """Change something."""
        path = await self.ada.messages(self.chat, limit=500)
        there = find_presences(path, self.members)
        speakers = [each for each, presence in there.items() if presence != "absent"]
        match self.chance.choice([*["say"] * 6, *["presence"] * 4, *_RARE]):
            case "say" if speakers:
                await self._take(text=self._word(), speaker=self.chance.choice(speakers))
            case "whisper" if speakers:
                told = self.chance.sample(speakers, self.chance.randint(1, len(speakers)))
                await self._take(text=self._word(), speaker=told[0], audience=told)
            case "next" if speakers and path:
                await self._next(self.chance.choice(speakers))
            case "swipe" if replies := [each for each in path if is_swipeable(each)]:
                found = self.chance.choice(replies[-3:])
                there = find_presences(path[: found["position"]], self.members)
                if there[found["character_id"]] != "absent":
                    await self._take(regenerate_of=found["id"])
            case "edit" if lines := [each for each in path if each["role"] == "user"]:
                line = self.chance.choice(lines[-3:])
                await self.ada.patch(f"/messages/{line['id']}", {"text": self._word()})
            case "activate" if path:
                message = self.chance.choice(path[-6:])
                body = {"follow": self.chance.random() < 0.7}
                await self.ada.post(f"/messages/{message['id']}/activate", body)
            case "delete" if len(path) > 2:
                message = self.chance.choice(path[-2:])
                await self.ada.delete(f"/messages/{message['id']}", status=200)
            case _:
                member = self.chance.choice([*self.members, *self.guests])
                await self._set_presence(member, self.chance.choice(PRESENCES))

    async def check(self) -> None:
        """Compare what each member knows with the model."""
        path = await self.ada.messages(self.chat, limit=500)
        async with self.server.parts.database.read() as session:
            group = await load_group(session, UUID(self.chat))
        presences = {str(each): presence for each, presence in group.presences.items()}
        assert presences == find_presences(path, self.members)
        for member in presences:
            heard = find_heard(path, member, self.members[member])
            for each in path:
                ranges = group.find_absences(UUID(member))
                is_away = any(begin <= each["position"] < end for begin, end in ranges)
                if is_said(each) and each["audience"] == "public":
                    assert (each in heard) == (not is_away)
            await self._check_prompt(path, member, heard)
            self.unheard += len([each for each in path if is_said(each)]) - len(heard)

    async def _check_prompt(self, path: list[Message], member: str, heard: list[Message]) -> None:
        query = {"prompt": "true", "viewpoint": member}
        context = await self.ada.get(f"/chats/{self.chat}/context", **query)
        prompt = "\n".join(each["text"] for each in context["prompt"])
        found = [each["text"] for each in path if is_said(each) and each["text"] in prompt]
        assert found == [each["text"] for each in heard]
        assert not any(each["text"] in prompt for each in path if each["presence"])

    async def _set_presence(self, member: str, presence: str) -> None:
        body = {"presence": presence}
        if presence == "present" and self.chance.random() < 0.3:
            body["briefing"] = self._word()
        is_refused = member in self.guests and presence == "absent"
        url = f"/chats/{self.chat}/members/{member}"
        answer = await self.ada.ask("PATCH", url, json=body)
        assert answer.status_code == (404 if is_refused else 200), answer.text
        if member in self.guests and not is_refused:
            self.guests.remove(member)
            self.members[member] = False

    async def _next(self, speaker: str) -> None:
        """Ask for a reply without a line. It is refused if it would answer one of the user that the
        speaker has not heard.
        """
        self.model.unscript()
        self.model.script(reply(self._word()))
        url = f"/chats/{self.chat}/turns"
        answer = await self.ada.ask("POST", url, json={"speaker": speaker})
        assert answer.status_code in {200, 422}, answer.text

    async def _take(self, **body: Any) -> None:
        self.model.unscript()
        self.model.script(reply(self._word()))
        url = f"/chats/{self.chat}/turns"
        ok(await self.ada.ask("POST", url, json=body, headers={"Accept": "application/json"}))

    def _word(self) -> str:
        """Return a text that no other one contains."""
        self.said += 1
        return f"word-{self.said:04}"


_RARE = ("whisper", "next", "swipe", "edit", "activate", "delete")


def is_said(message: Message) -> bool:
    return message["presence"] is None and not message["hidden"]


def is_swipeable(message: Message) -> bool:
    return bool(message["role"] == "assistant" and message["position"] > 0)


def find_presences(path: list[Message], members: dict[str, bool]) -> dict[str, str]:
    """Return the presence of each member at the end of a path."""
    found = {each: "present" if is_there else "absent" for each, is_there in members.items()}
    changes = {each["character_id"]: each["presence"] for each in path if each["presence"]}
    return {each: changes.get(each, presence) for each, presence in found.items()}


def find_heard(path: list[Message], member: str, is_there: bool) -> list[Message]:
    """Return the messages that a member has heard."""
    found: list[Message] = []
    for each in path:
        if each["presence"] and each["character_id"] == member:
            is_there = each["presence"] != "absent"
        elif is_said(each):
            named = isinstance(each["audience"], list) and member in each["audience"]
            if named or (each["audience"] == "public" and is_there):
                found.append(each)
    return found


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_member_knows_exactly_the_lines_that_it_has_heard(
    ada: Account, server: Running, model: OpenAIServer, seed: int
) -> None:
    table = Table(server, ada, model, random.Random(seed))
    await table.open()
    for number in range(STEPS):
        await table.step()
        if number % 4 == 3:
            await table.check()
    await table.check()
    assert table.unheard > STEPS // 4  # the guest knows less than the others in each comparison
