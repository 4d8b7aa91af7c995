"""A client that changes its chat at random, and the chat that Talekeeper shows after each request.

Each walk has a seed. A failure shows the actions of its walk, so that the same walk can be repeated
with fewer of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select

from backend.chats.models import Message
from tests.fakes.openai_server import OpenAIServer
from tests.integration.openai_api.sequences import GREETING, Player
from tests.support.chronicling import new_event, sum_up
from tests.support.clients import (
    ClientLine,
    Injection,
    SillyTavernClient,
    SillyTavernSettings,
    Wire,
)
from tests.support.thorough import rounds

pytestmark = pytest.mark.anyio

STEPS = rounds(12, 20)

Request = Sequence[Wire]
Action = Callable[[], Request]

PLAIN = SillyTavernSettings()
SETTINGS = [
    PLAIN,
    SillyTavernSettings(window=9),
    SillyTavernSettings(trims=True, continues_by_prefill=True, naming="content"),
    SillyTavernSettings(window=14, post_history="Write one paragraph.", naming="field"),
    SillyTavernSettings(
        injections=[Injection(text="It is raining in the valley.", depth=4)], squashes=True
    ),
    SillyTavernSettings(post_processing="merge", continues_by_prefill=True),
    SillyTavernSettings(post_processing="strict", window=11),
    SillyTavernSettings(post_processing="single"),
]
"""The settings of the walks, in turn."""


@dataclass
class Walk:
    """One client, its former lists, and what was recorded about its lines.

    Attributes:
        replaced: Texts that were changed in place, so that they are no longer stored.
        swipes: The texts of the last reply and of its siblings.
        events: The chronicle's events by the text that they are about.
        summaries: The last messages of summaries with their texts.
        log: The actions so far.
    """

    player: Player
    client: SillyTavernClient
    draw: random.Random
    chronicle_id: str = ""
    earlier: list[list[ClientLine]] = field(default_factory=list[list[ClientLine]])
    replaced: set[str] = field(default_factory=set[str])
    swipes: list[str] = field(default_factory=list[str])
    events: dict[str, str] = field(default_factory=dict[str, str])
    summaries: dict[str, str] = field(default_factory=dict[str, str])
    log: list[str] = field(default_factory=list[str])
    count: int = 0

    @property
    def chat(self) -> list[ClientLine]:
        return self.client.chat

    @property
    def history(self) -> str:
        return ", ".join(self.log)

    @property
    def visible(self) -> list[tuple[str, str]]:
        return [(line.role, line.text) for line in self.chat if not line.is_hidden]

    def make_text(self) -> str:
        """Return a text that shares no word with others. Digits would count as equal."""
        self.count += 1
        first, second = divmod(self.count, len(ascii_lowercase))
        name = ascii_lowercase[first] + ascii_lowercase[second]
        return f"{' '.join(name + letter * 2 for letter in 'abcdefgh')}."

    def list_inner(self) -> list[int]:
        """Return the places after the first line that the client sends before a new one."""
        shown = [at for at, line in enumerate(self.chat) if not line.is_hidden]
        window = self.client.settings.window
        sent = shown if window is None else shown[1 - window :]
        return [at for at in range(len(self.chat)) if at > sent[0]]

    async def step(self) -> None:
        """Do one random thing, and compare."""
        actions: list[Action] = [
            self.say, self.say, self.say, self.swipe, self.swipe, self.edit, self.delete,
            self.hide, self.trim, self.proceed, self.branch, self.return_to_earlier,
            self.choose_swipe, self.client.ask_quietly, self.play_elsewhere,
        ]  # fmt: skip
        action = self.draw.choice(actions) if self.earlier else self.say
        self.log.append(action.__name__)
        await self.player.ask(action(), self.make_text())
        if action != self.client.ask_quietly and self.chat[-1].role == "assistant":
            self.swipes.append(self.chat[-1].text)
        self.earlier.append(deepcopy(self.chat))
        await self.check()
        await self.record()

    # Each action changes the list and returns the request.

    def say(self) -> Request:
        self.swipes = []
        return self.client.say(self.make_text())

    def swipe(self) -> Request:
        # A greeting and one line may begin many chats.
        roles = [role for role, _ in self.visible]
        is_reply = roles[-2:] == ["user", "assistant"] and not self.chat[-1].is_hidden
        if not is_reply or "assistant" not in roles[1:-2]:
            return self.say()
        self.log.append("by a swipe")
        return self.client.swipe()

    def go_on(self) -> Request:
        """Say something, or ask for another reply."""
        return self.say() if self.draw.random() < 0.7 else self.swipe()

    def choose_swipe(self) -> Request:
        if self.chat[-1].role == "assistant" and self.swipes:
            self.chat[-1].text = self.draw.choice(self.swipes)
        return self.say()

    def edit(self) -> Request:
        if inner := [at for at in self.list_inner() if not self.chat[at].is_hidden]:
            place = self.draw.choice(inner)
            line = self.chat[place]
            self.log.append(f"{place - len(self.chat)}")
            self.replaced.add(line.text)
            self.swipes = []
            if self.draw.random() < 0.5:
                line.text = self.make_text()
            else:
                words = line.text.split()
                words[self.draw.randrange(len(words))] = f"other{words[0]}"
                line.text = " ".join(words)
        return self.go_on()

    def delete(self) -> Request:
        inner = self.list_inner()
        if len(inner) > 3:
            place, size = self.draw.choice(inner[:-1]), self.draw.randint(1, 2)
            self.log.append(f"{place - len(self.chat)} {size}")
            del self.chat[place : place + size]
        return self.go_on()

    def hide(self) -> Request:
        """Hide a line, or show it again."""
        inner = self.list_inner()
        if len(inner) > 3:
            place = self.draw.choice(inner[:-1])
            line = self.chat[place]
            line.is_hidden = not line.is_hidden
            self.log.append(f"{place - len(self.chat)} {line.is_hidden}")
        return self.say()

    def trim(self) -> Request:
        line = self.chat[-1]
        if line.role == "assistant" and len(self.chat) > 2:
            self.replaced.add(line.text)
            line.text = " ".join(line.text.split()[: self.draw.randint(4, 7)])
        return self.say()

    def proceed(self) -> Request:
        if self.chat[-1].role != "assistant" or len(self.chat) < 3:
            return self.say()
        self.replaced.add(self.chat[-1].text)
        self.swipes = []
        return self.client.proceed()

    def branch(self) -> Request:
        inner = self.list_inner()
        if len(inner) > 5:
            place = self.draw.choice(inner[4:])
            self.log.append(f"{place - len(self.chat)}")
            self.client.go_back(place)
            self.swipes = []
            if self.chat[-1].role == "user" and self.draw.random() < 0.5:
                return self.client.send_nothing()
        return self.go_on()

    def return_to_earlier(self) -> Request:
        """Return to a list that is stored as it was, and that the client sends as a whole."""
        window = self.client.settings.window or 1000
        known = [
            each
            for each in self.earlier
            if len(each) < window and self.replaced.isdisjoint(line.text for line in each)
        ]
        if known:
            self.chat[:] = deepcopy(self.draw.choice(known))
        self.swipes = []
        return self.go_on()

    def play_elsewhere(self) -> Request:
        """Add lines that another server has answered."""
        for _ in range(self.draw.randint(1, 2)):
            self.client.say(self.make_text())
            self.client.receive(self.make_text())
        return self.say()

    async def record(self) -> None:
        """Record an event about a line, or a summary down to it."""
        path = await self.player.read_path()
        shown = [each for each in path if not each["hidden"]]
        chat_id = await self.player.find_chat()
        if not self.chronicle_id:
            # No chat uses it, so that no background task asks the scripted model.
            made = await self.player.account.post("/chronicles", {"name": "The mill"}, 201)
            self.chronicle_id = made["id"]
        each = self.draw.choice(shown)
        if each["text"] in self.events:
            return
        self.events[each["text"]] = await new_event(
            self.player.account,
            self.chronicle_id,
            f"About {each['text']}",
            source_message_ids=[each["id"]],
        )
        if self.draw.random() < 0.2 and each["position"] > self.find_covered(path):
            self.summaries[each["id"]] = each["text"]
            text = f"Until {each['text']}"
            await sum_up(self.player.account, chat_id, text, through=each["id"])

    def find_covered(self, path: Sequence[Mapping[str, Any]]) -> int:
        """Return the position down to which a path is summarised, or -1."""
        return max((each["position"] for each in path if each["id"] in self.summaries), default=-1)

    async def check(self) -> None:
        """Compare Talekeeper's chat with the client's, and look for what was recorded."""
        assert await self.player.show() == self.visible, self.history
        assert (await self.player.list_chats())[1:] == [], self.history
        await self.check_count()
        await self.check_events()
        await self.check_summaries()

    async def check_count(self) -> None:
        """Assert that each text is stored once."""
        query = (
            select(func.count())
            .where(Message.user_id == UUID(self.player.account.user["id"]))
            .group_by(Message.text_digest)
        )
        async with self.player.server.parts.database.read() as session:
            assert set(await session.scalars(query)) <= {1}, self.history

    async def check_events(self) -> None:
        """Assert that events about unchanged lines are active."""
        if not self.events:
            return
        path = f"/chronicles/{self.chronicle_id}/events"
        items = (await self.player.account.get(path, limit=100))["items"]
        current = {each["id"] for each in items if each["is_current"]}
        unchanged = {text for _, text in self.visible}
        for text, event_id in self.events.items():
            if text in unchanged:
                assert event_id in current, f"{text}: {self.history}"

    async def check_summaries(self) -> None:
        """Assert that the path has its last summary, unless the message there has changed."""
        path = await self.player.read_path()
        covered = self.find_covered(path)
        if covered >= 0 and path[covered]["text"] == self.summaries[path[covered]["id"]]:
            chat_id = await self.player.find_chat()
            found = await self.player.account.get(f"/chats/{chat_id}/summary")
            assert found["through_position"] == covered, self.history


async def walk(player: Player, seed: int, settings: SillyTavernSettings) -> None:
    player.client = SillyTavernClient(settings, greeting=GREETING)
    found = Walk(player, player.client, random.Random(seed))
    for _ in range(STEPS):
        await found.step()


@pytest.mark.parametrize("seed", range(rounds(8, 160)))
async def test_the_active_path_is_the_list_of_a_random_client(
    player: Player, vendor: OpenAIServer, seed: int
) -> None:
    vendor.requests.clear()
    await walk(player, seed, SETTINGS[seed % len(SETTINGS)])
