"""What a table changes, in the database: with its reply, and only while that is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from backend.campaigns.ledger.records import get_campaign
from backend.campaigns.play.store import build_table, commit_table, load_table
from backend.campaigns.play.table import Table as PlayTable
from backend.campaigns.play.table import enter_downtime
from backend.campaigns.state.situations import SituationService
from backend.campaigns.state.snapshot import SnapshotCache
from backend.chats.models import Chat, Message
from tests.integration.campaigns.seagate import Table
from tests.integration.turns.seeding import identity_of, seed
from tests.support.play import choose_die, commit_to, engage, use
from tests.support.server import Account, Running

pytestmark = pytest.mark.anyio
API = "/api/v1"
CLOCK = {"clocks": [{"clock": "The Watch"}]}


class Evening:
    """A chat of a blades campaign with one exchange, whose reply a turn's changes belong to."""

    def __init__(self, server: Running, ada: Account, table: Table, chat: str) -> None:
        self.server, self.ada, self.table, self.chat = server, ada, table, chat

    @property
    def campaign_id(self) -> UUID:
        return UUID(self.table.campaign["id"])

    async def begin(self) -> PlayTable | None:
        """The table that the next turn would have."""
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
        """What the chronicle tells that counts."""
        [chronicle] = (await self.ada.get("/chronicles"))["items"]
        page = await self.ada.get(f"/chronicles/{chronicle['id']}/events")
        return [each["summary"] for each in page["items"] if each["is_current"]]


@pytest.fixture
async def evening(server: Running, ada: Account) -> Evening:
    body = {"name": "Duskwall", "rules": "blades"}
    table = Table(ada, await ada.post("/campaigns", body, 201))
    await table.change("", attributes={"dice": [6, 4, 2, 1]})
    await table.add("entities", kind="pc", name="Jake", attributes={"stress": 1})
    await table.add("clocks", name="The Watch", segments=4, filled=3, consequence="They come.")
    character = await ada.new_character(name="Mara")
    chat = await ada.new_chat(campaign_id=table.campaign["id"], character_ids=[character["id"]])
    return Evening(server, ada, table, chat["id"])


async def picked(evening: Evening) -> tuple[list[dict[str, Any]], Message]:
    """Jake picks the lock with a die that costs him."""
    lines = await seed(evening.server, evening.ada, evening.chat, ["I pick it.", "Click."])
    played = await evening.begin()
    assert played is not None
    await engage(played)
    await commit_to(played)
    choose_die(played, 2)
    await use(played, "resolve", tier="partial")
    await use(played, "finish_turn", cost="A witness", suggested_actions=["Run"])
    return await evening.end(played, lines[-1]), lines[-1]


async def test_a_turn_is_written_with_its_reply_and_goes_with_it(evening: Evening) -> None:
    before = await evening.state()
    items, reply = await picked(evening)
    listed = (await evening.table.get("/changes"))["items"]
    assert items == listed[: len(items)][::-1]
    assert {(each["actor"], each["message_id"]) for each in items} == {("tool", str(reply.id))}
    after = await evening.state()
    assert after["attributes"]["play"]["mood"] == "aftermath"
    assert after["attributes"]["dice"] == [6, 4, 1]
    assert after["clocks"][0]["filled"] == 4
    assert {each["text"] for each in after["echoes"]} == {
        "A witness",
        "The Watch: They come.",
        "it opens, loudly (2 stress, The Watch +1)",
    }
    assert after["precarity"]["score"] == 3
    assert await evening.story() == ["The Watch: They come."]
    await evening.ada.ask("DELETE", f"/messages/{reply.id}")
    undone = await evening.state()
    told = ("attributes", "entities", "clocks", "echoes", "precarity")
    for name in told:
        shown = [_plain(each[name]) for each in (before, undone)]
        assert shown[0] == shown[1]
    assert await evening.story() == []


async def test_what_a_user_locked_or_deleted_meanwhile_is_left_out(evening: Evening) -> None:
    lines = await seed(evening.server, evening.ada, evening.chat, ["I pick it.", "Click."])
    played = await evening.begin()
    assert played is not None
    await engage(played)
    await commit_to(played)
    choose_die(played, 2)
    state = await evening.state()
    await evening.table.change(f"/entities/{state['entities'][0]['id']}", locked=["attributes"])
    await evening.table.ask("DELETE", f"/clocks/{state['clocks'][0]['id']}")
    items = await evening.end(played, lines[-1])
    assert {each["target"]["kind"] for each in items} == {"world", "echo"}
    after = await evening.state()
    assert after["entities"][0]["attributes"] == {"stress": 1}
    assert after["clocks"] == []


@pytest.mark.every_database
async def test_what_a_hidden_reply_makes_is_hidden_as_well(evening: Evening) -> None:
    lines = await seed(evening.server, evening.ada, evening.chat, ["I pick it.", "Click."])
    await evening.ada.patch(f"/messages/{lines[-1].id}", {"audience": "gm"})
    played = await evening.begin()
    assert played is not None
    asked = {"facts": [{"text": "Jake has the key.", "about": "Jake"}]}
    await use(played, "finish_turn", cost="A witness", deltas={**asked, **CLOCK})
    await evening.end(played, lines[-1])
    facts = (await evening.table.get("/facts"))["items"]
    assert [each["audience"] for each in facts] == ["gm"]
    assert {each["audience"] for each in (await evening.state())["echoes"]} == {"gm"}
    [chronicle] = (await evening.ada.get("/chronicles"))["items"]
    page = await evening.ada.get(f"/chronicles/{chronicle['id']}/events")
    assert [each["audience"] for each in page["items"]] == ["gm"]


async def test_a_campaign_without_tools_has_no_table(evening: Evening) -> None:
    await seed(evening.server, evening.ada, evening.chat, ["Hello.", "Hello."])
    assert await evening.begin() is not None
    await evening.table.change("", settings={"tools": False})
    assert await evening.begin() is None


async def test_downtime_is_written_as_the_users_own(evening: Evening) -> None:
    identity = await identity_of(evening.server, evening.ada)
    async with evening.server.parts.database.write() as session:
        campaign = await get_campaign(session, identity, evening.campaign_id, lock=True)
        names = await SnapshotCache().load(session, identity.sealer, campaign)
        played = await load_table(session, identity.sealer, campaign, names)
        enter_downtime(played, "recovery")
        items = await commit_table(session, identity.sealer, campaign, played)
    assert {each["actor"] for each in items} == {"user"}
    after = await evening.state()
    assert after["attributes"]["play"] == {"mood": "downtime", "variant": "recovery"}
    assert after["entities"][0]["attributes"]["stress"] == 0


async def test_bad_numbers_of_a_user_are_refused(evening: Evening) -> None:
    for wrong in ({"heat": 10}, {"wanted": -1}, {"dice": [0]}):
        answer = await evening.table.ask("PATCH", "", json={"attributes": wrong})
        assert answer.status_code == 422
    answer = await evening.table.ask("PATCH", "", json={"settings": {"dice": "loaded"}})
    assert answer.status_code == 422


def _plain(value: Any) -> Any:
    """A value without what says when it changed."""
    if isinstance(value, dict):
        gone = {"revision", "updated_at", "created_at"}
        fields = cast("dict[str, Any]", value)
        return {key: _plain(each) for key, each in fields.items() if key not in gone}
    if isinstance(value, list):
        return [_plain(each) for each in cast("Sequence[Any]", value)]
    return value
