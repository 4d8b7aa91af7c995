"""Play of a campaign: changes of one turn, and an evening with a careless model."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import select

from backend.campaigns.ledger.records import get_campaign
from backend.campaigns.play.store import build_table, commit_table, load_table
from backend.campaigns.play.table import Table as PlayTable
from backend.campaigns.play.table import enter_downtime
from backend.campaigns.rules.blades import find_pool_tier
from backend.campaigns.state.situations import SituationService
from backend.campaigns.state.snapshot import SnapshotCache
from backend.chats.models import Chat, Message
from backend.jobs.models import Job
from backend.memory.indexing.outbox import FORGET
from backend.turns.models import Turn
from tests.fakes.game_master import CarelessGameMaster
from tests.fakes.openai_server import API_KEY, MODEL
from tests.fakes.scripted_server import Gate
from tests.integration.campaigns.seagate import Table
from tests.integration.turns.following import check_tree, follow, is_over, turn_under_way
from tests.integration.turns.playing import Game, new_game
from tests.integration.turns.seeding import identity_of, seed
from tests.support.play import choose_die, commit_to, engage, use
from tests.support.server import Account, Event, Running, read_events, running
from tests.support.stored import check_fold
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

CLOCK = {"clocks": [{"clock": "The Watch"}]}


class Exchange:
    """A chat of a Blades campaign with one line and its reply."""

    def __init__(self, server: Running, ada: Account, table: Table, chat: str) -> None:
        self.server, self.ada, self.table, self.chat = server, ada, table, chat

    @property
    def campaign_id(self) -> UUID:
        return UUID(self.table.campaign["id"])

    async def begin(self) -> PlayTable | None:
        """Return the table of the next turn."""
        database = self.server.parts.database
        situations: SituationService = self.server.parts.situations
        async with database.read() as session:
            chat = await session.get_one(Chat, UUID(self.chat))
            leaf = await session.get_one(Message, chat.leaf_id)
            identity = await identity_of(self.server, self.ada)
            campaign = await get_campaign(session, identity, self.campaign_id)
            layers = await situations.load_layers(
                session, identity, campaign, chat, leaf, line="I", recent=[]
            )
        return build_table(layers)

    async def end(self, played: PlayTable, message: Message) -> list[dict[str, Any]]:
        identity = await identity_of(self.server, self.ada)
        async with self.server.parts.database.write() as session:
            campaign = await get_campaign(session, identity, self.campaign_id, lock=True)
            reply = await session.get_one(Message, message.id)
            return await commit_table(session, identity.sealer, campaign, played, reply, message.id)

    async def state(self) -> dict[str, Any]:
        return await self.table.get("/state")

    async def story(self) -> list[str]:
        """Return the summaries of the current events."""
        [chronicle] = (await self.ada.get("/chronicles"))["items"]
        page = await self.ada.get(f"/chronicles/{chronicle['id']}/events")
        return [each["summary"] for each in page["items"] if each["is_current"]]


@pytest.fixture
async def exchange(server: Running, ada: Account) -> Exchange:
    body = {"name": "Duskwall", "rules": "blades"}
    table = Table(ada, await ada.post("/campaigns", body, 201))
    await table.change("", attributes={"dice": [6, 4, 2, 1]})
    await table.add("entities", kind="pc", name="Jake", attributes={"stress": 1})
    await table.add("clocks", name="The Watch", segments=4, filled=3, consequence="They come.")
    character = await ada.new_character(name="Mara")
    chat = await ada.new_chat(campaign_id=table.campaign["id"], character_ids=[character["id"]])
    return Exchange(server, ada, table, chat["id"])


async def pick_lock(exchange: Exchange) -> tuple[list[dict[str, Any]], Message]:
    """Pick the lock with a die that has a cost; return the changes and the reply."""
    lines = await seed(exchange.server, exchange.ada, exchange.chat, ["I pick it.", "Click."])
    played = await exchange.begin()
    assert played is not None
    await engage(played)
    await commit_to(played)
    choose_die(played, 2)
    await use(played, "resolve", tier="partial")
    await use(played, "finish_turn", cost="A witness", suggested_actions=["Run"])
    return await exchange.end(played, lines[-1]), lines[-1]


async def test_changes_of_a_turn_follow_its_reply(exchange: Exchange) -> None:
    before = await exchange.state()
    items, reply = await pick_lock(exchange)
    listed = (await exchange.table.get("/changes"))["items"]
    assert items == listed[: len(items)][::-1]
    assert {(each["actor"], each["message_id"]) for each in items} == {("tool", str(reply.id))}
    after = await exchange.state()
    assert after["attributes"]["play"]["mood"] == "aftermath"
    assert after["attributes"]["dice"] == [6, 4, 1]
    assert after["clocks"][0]["filled"] == 4
    assert {each["text"] for each in after["echoes"]} == {
        "A witness",
        "The Watch: They come.",
        "it opens, loudly (2 stress, The Watch +1)",
    }
    assert after["precarity"]["score"] == 3
    assert await exchange.story() == ["The Watch: They come."]
    await exchange.ada.ask("DELETE", f"/messages/{reply.id}")
    undone = await exchange.state()
    told = ("attributes", "entities", "clocks", "echoes", "precarity")
    for name in told:
        shown = [without_versions(each[name]) for each in (before, undone)]
        assert shown[0] == shown[1]
    assert await exchange.story() == []


async def test_locked_and_deleted_items_are_left_out(exchange: Exchange) -> None:
    lines = await seed(exchange.server, exchange.ada, exchange.chat, ["I pick it.", "Click."])
    played = await exchange.begin()
    assert played is not None
    await engage(played)
    await commit_to(played)
    choose_die(played, 2)
    state = await exchange.state()
    await exchange.table.change(f"/entities/{state['entities'][0]['id']}", locked=["attributes"])
    await exchange.table.ask("DELETE", f"/clocks/{state['clocks'][0]['id']}")
    items = await exchange.end(played, lines[-1])
    assert {each["target"]["kind"] for each in items} == {"world", "echo"}
    after = await exchange.state()
    assert after["entities"][0]["attributes"] == {"stress": 1}
    assert after["clocks"] == []


@pytest.mark.every_database
async def test_changes_of_a_secret_reply_are_secret(exchange: Exchange) -> None:
    lines = await seed(exchange.server, exchange.ada, exchange.chat, ["I pick it.", "Click."])
    await exchange.ada.patch(f"/messages/{lines[-1].id}", {"audience": "gm"})
    played = await exchange.begin()
    assert played is not None
    asked = {"facts": [{"text": "Jake has the key.", "about": "Jake"}]}
    await use(played, "finish_turn", cost="A witness", deltas={**asked, **CLOCK})
    await exchange.end(played, lines[-1])
    facts = (await exchange.table.get("/facts"))["items"]
    assert [each["audience"] for each in facts] == ["gm"]
    assert {each["audience"] for each in (await exchange.state())["echoes"]} == {"gm"}
    [chronicle] = (await exchange.ada.get("/chronicles"))["items"]
    page = await exchange.ada.get(f"/chronicles/{chronicle['id']}/events")
    assert [each["audience"] for each in page["items"]] == ["gm"]


async def test_a_campaign_without_tools_has_no_table(exchange: Exchange) -> None:
    await seed(exchange.server, exchange.ada, exchange.chat, ["Hello.", "Hello."])
    assert await exchange.begin() is not None
    await exchange.table.change("", settings={"tools": False})
    assert await exchange.begin() is None


async def test_downtime_is_a_change_of_the_user(exchange: Exchange) -> None:
    identity = await identity_of(exchange.server, exchange.ada)
    async with exchange.server.parts.database.write() as session:
        campaign = await get_campaign(session, identity, exchange.campaign_id, lock=True)
        names = await SnapshotCache().load(session, identity.sealer, campaign)
        played = await load_table(session, identity.sealer, campaign, names)
        enter_downtime(played, "recovery")
        items = await commit_table(session, identity.sealer, campaign, played)
    assert {each["actor"] for each in items} == {"user"}
    after = await exchange.state()
    assert after["attributes"]["play"] == {"mood": "downtime", "variant": "recovery"}
    assert after["entities"][0]["attributes"]["stress"] == 0


async def test_invalid_numbers_of_the_user_are_refused(exchange: Exchange) -> None:
    for wrong in ({"heat": 10}, {"wanted": -1}, {"dice": [0]}):
        answer = await exchange.table.ask("PATCH", "", json={"attributes": wrong})
        assert answer.status_code == 422
    answer = await exchange.table.ask("PATCH", "", json={"settings": {"dice": "loaded"}})
    assert answer.status_code == 422


def without_versions(value: Any) -> Any:
    """Return a value without its revisions and times."""
    if isinstance(value, dict):
        gone = {"revision", "updated_at", "created_at"}
        fields = cast("dict[str, Any]", value)
        return {key: without_versions(each) for key, each in fields.items() if key not in gone}
    if isinstance(value, list):
        return [without_versions(each) for each in cast("Sequence[Any]", value)]
    return value


TURNS = 20
HABITS = ("good", "ignore", "unknown", "finish", "voice", "prose", "ignore")
SECRET = "obsidian ledger"
NAME = "ada"


class Evening:
    """A player, a careless game master, and the expected dice."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.game: Game
        self.master = CarelessGameMaster()
        self.stack = contextlib.AsyncExitStack()
        self.cuts: list[str] = []
        self.choices = self.refills = 0
        self.states: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator[Evening]:
        async with self.master, self.stack:
            await self.serve()
            account = await self.stack.enter_async_context(self.server.account(NAME))
            await self.prepare(account)
            yield self

    async def serve(self) -> None:
        self.server: Running = await self.stack.enter_async_context(running(self.url, self.folder))

    async def restart(self) -> None:
        """Restart the application on the same database."""
        await self.stack.aclose()
        await self.serve()
        account = await self.stack.enter_async_context(self.server.signed_in(NAME))
        self.game = self.game.at(account)

    async def prepare(self, account: Account) -> None:
        provider = {"kind": "openai", "slug": "mine", "api_key": API_KEY}
        provider |= {"base_url": self.master.url}
        models = [{"name": MODEL, "tool_support": "native"}]
        path = "/providers"
        await account.post(path, {**provider, "models": models}, 201)
        self.game = await new_game(account, rules="blades")
        settings = {"hidden_information": True, "compaction_interval": 3, "memory_interval": 3}
        await account.patch(self.game.path, {"settings": settings})
        people = [
            await self.game.add("entities", kind=kind, name=name)
            for kind, name in (("pc", "Jake"), ("npc", "Marlena"), ("npc", "Holt"))
        ]
        self.jake, self.marlena, self.holt = (each["id"] for each in people)
        path = f"/chats/{self.game.chat}/settings"
        chat = {"chronicle_enabled": True, "model": f"mine/{MODEL}"}
        await account.patch(path, chat)

    @property
    def account(self) -> Account:
        return self.game.account

    async def dice(self) -> list[int]:
        found: list[int] = (await self.game.state())["attributes"].get("dice", [])
        return found

    async def mood(self) -> str:
        play = (await self.game.state())["attributes"].get("play", {"mood": "scene"})
        return str(play["mood"])

    async def act(self, number: int) -> tuple[str, dict[str, Any]]:
        """Begin a risky action; return the waiting turn and the option to choose.

        An open action ends after two turns.
        """
        self.master.has_risk = False
        for _ in range(3):
            if await self.mood() == "scene":
                break
            await self.game.say("I wait.")
        self.master.has_risk, self.master.number = True, number
        before = await self.dice()
        events = await self.game.say(f"I pick lock {number}.")
        assert events[-1].name == "turn.awaiting_choice", events[-1]
        self.refills += not before
        self.left = before or None
        option: dict[str, Any] = events[-1].data["options"][-1]
        return str(events[0].data["turn_id"]), option

    async def chosen(self, number: int, option: dict[str, Any]) -> None:
        """Record the expected effect of a choice, and check the dice."""
        self.choices += 1
        if find_pool_tier(option["die"]) in {"partial", "bad"}:
            self.cuts.append(f"cut {number}")
        after = await self.dice()
        if self.left is not None:
            assert sorted([*after, option["die"]]) == sorted(self.left)
        else:
            assert len(after) == 3

    async def choose_and_stop(self, turn_id: str, option: str, *, at: str) -> list[Event]:
        """Choose, and stop the turn at the first event of this name."""
        self.master.gate = Gate()
        events = list[Event]()
        body = {"option": option}
        path = f"/turns/{turn_id}/choice"
        async with self.game.account.stream("POST", path, json=body) as response:
            async for event in read_events(response):
                events.append(event)
                if event.name == at:
                    await self.game.account.post(f"/turns/{turn_id}/stop", status=202)
        self.open_gate()
        assert events[-1].data["state"] == "stopped"
        return events

    def open_gate(self) -> None:
        if self.master.gate is not None:
            self.master.gate.opened.set()
        self.master.gate = None

    async def risk(self, number: int) -> None:
        """Take a turn with a die; end it in one of four ways."""
        turn_id, option = await self.act(number)
        chosen = option["id"]
        match number % 8:
            case 0:
                await self.game.choose(turn_id, chosen)
            case 2:
                await self.choose_and_stop(turn_id, chosen, at="text.delta")
                await self.chosen(number, option)
                await self.account.turn(self.game.chat, **{"continue": True})
            case 4:
                if number == 12:
                    await self.restart()
                told = await asyncio.gather(*(self.game.choose(turn_id, chosen) for _ in range(3)))
                assert len({each[-1].id for each in told}) == 1
            case _:
                await self.choose_and_stop(turn_id, chosen, at="turn.choice_made")
        if number % 8 != 2:
            await self.chosen(number, option)
        again = await self.game.choose(turn_id, chosen)
        assert again[-1].name in {"turn.completed", "turn.failed"}
        self.master.has_risk = False

    async def quiet(self, number: int) -> None:
        """Take a turn without a die; disturb it in one of four ways."""
        self.master.has_risk = False
        match number % 8:
            case 1:
                audience = "gm" if number % 16 == 1 else [self.marlena]
                await self.game.say(f"Psst: the {SECRET} {number}.", audience=audience)
            case 3:
                self.master.gate = Gate()
                async with turn_under_way(self.account, self.game.chat, text="I go.") as (
                    turn_id,
                    events,
                ):
                    await self.until_told(events)
                if number == 11:
                    await self.restart()
                self.open_gate()
                await until(lambda: is_over(self.account, turn_id))
                if number == 11:
                    assert (await self.game.turn(turn_id))["state"] == "interrupted"
                    await self.account.turn(self.game.chat, **{"continue": True})
            case 5:
                self.master.gate = Gate()
                async with turn_under_way(self.account, self.game.chat, text="I stay.") as (
                    turn_id,
                    events,
                ):
                    await self.until_told(events)
                    await self.game.account.post(f"/turns/{turn_id}/stop", status=202)
                    assert [each async for each in events][-1].data["state"] == "stopped"
                self.open_gate()
            case _:
                await self.game.say("I look around.")
                last = (await self.account.messages(self.game.chat))[-1]
                await self.account.turn(self.game.chat, regenerate_of=last["id"])

    async def until_told(self, events: AsyncGenerator[Event]) -> None:
        async for event in events:
            if event.name == "text.delta":
                return

    async def check(self) -> None:
        """Raise unless the world is the fold of its ledger, with each die and cost once."""
        identity = await identity_of(self.server, self.account)
        counting = await check_fold(self.server, identity, self.game.campaign["id"])
        operations = [each for _, each in counting]
        dice = [each for each in operations if "attributes.dice" in each.set]
        assert len(dice) == self.choices + self.refills
        cuts = [text for each in operations for text in each.add.get("attributes.harm", ())]
        assert cuts == self.cuts
        state = await self.game.state()
        (jake,) = (each for each in state["entities"] if each["name"] == "Jake")
        assert jake["attributes"].get("harm", []) == self.cuts
        for _, each in counting:
            assert SECRET not in msgspec.json.encode(each).decode()

    async def jobs(self) -> list[tuple[str, str]]:
        """Return the unfinished and dead jobs of the account."""
        query = select(Job.kind, Job.state).where(
            Job.user_id == UUID(self.account.user["id"]), Job.state != "done", Job.kind != FORGET
        )
        async with self.server.parts.database.read() as session:
            return [(row.kind, row.state) for row in await session.execute(query)]


@pytest.fixture
async def evening(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Evening]:
    async with Evening(sqlite_url, tmp_path).open() as evening:
        yield evening


async def test_an_evening_of_twenty_turns_keeps_the_world_consistent(evening: Evening) -> None:
    for number in range(TURNS):
        evening.master.habit = HABITS[number % len(HABITS)]
        await (evening.quiet if number % 2 else evening.risk)(number)
        if number % 10 == 9:
            await evening.check()
    evening.master.habit = "good"
    await evening.game.say("Good night.")
    await evening.check()

    async def is_idle() -> bool:
        return not await evening.jobs()

    await until(is_idle)
    await evening.check()
    game = evening.game
    assert await evening.mood() in {"scene", "aftermath"}
    async with evening.server.parts.database.read() as session:
        turns = list(await session.scalars(select(Turn).where(Turn.chat_id == UUID(game.chat))))
    assert {turn.state for turn in turns} == {"completed", "stopped", "interrupted"}
    for turn in turns:
        assert (await follow(game.client, str(turn.id)))[-1].name.startswith("turn.")
    await check_tree(evening.server.parts.database, game.chat)
    for viewpoint in ("public", evening.holt):
        asked = {"text": f"Where is the {SECRET}?", "prompt": "true", "viewpoint": viewpoint}
        path = f"/chats/{game.chat}/context"
        prompt = (await game.account.get(path, **asked))["prompt"]
        assert not [each for each in prompt if f"Psst: the {SECRET}" in each["text"]]
