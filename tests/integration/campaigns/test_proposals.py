"""Proposals over HTTP: both values, decisions, and the branch of their line."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger.changes import Operations, build_creation
from backend.campaigns.ledger.items import Entity, Fact
from backend.campaigns.proposals.authority import Ambiguity
from backend.database.base import new_id, now
from tests.integration.campaigns.drafting import compact
from tests.integration.campaigns.seagate import Table, seagate
from tests.integration.turns.seeding import identity_of
from tests.support.server import Running, ok, problem

pytestmark = pytest.mark.anyio


class Compacted:
    """A chat of Seagate; drafts come from its last line."""

    def __init__(self, server: Running, table: Table, identity: Identity, chat: str) -> None:
        self.server, self.table, self.identity, self.chat = server, table, identity, chat
        self.people: dict[str, str] = {}
        self.line = ""

    async def turn(self, **body: Any) -> str:
        events = await self.table.account.turn(self.chat, **(body or {"text": "Go on."}))
        self.line = str(events[0].data["reply_id"])
        return self.line

    async def draft(self, item: str, **fields: Any) -> int:
        """Draft fields of an item; return the number of proposals."""
        return await self.drafts(
            {
                "kind": "entity",
                "item_id": UUID(self.people.get(item, item)),
                "operations": Operations(set=fields),
            }
        )

    async def drafts(self, *drafts: dict[str, Any], audience: str = "public") -> int:
        _, kept = await compact(
            self.server.parts.database,
            self.identity,
            UUID(self.table.campaign["id"]),
            *({"audience": audience, **each} for each in drafts),
            line=UUID(self.line),
            since=now() - timedelta(hours=1),
        )
        return kept

    async def open(self, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.table.get("/proposals", **query))["items"]
        return found

    async def decide(self, proposal: dict[str, Any], how: str, **more: Any) -> Any:
        return await self.table.ask("POST", f"/proposals/{proposal['id']}/{how}", **more)

    async def entity(self, name: str) -> dict[str, Any]:
        return await self.table.get(f"/entities/{self.people[name]}")


@pytest.fixture
async def story(server: Running, table: Table) -> Compacted:
    chat = await table.account.new_chat(campaign_id=table.campaign["id"])
    identity = await identity_of(server, table.account)
    story = Compacted(server, table, identity, chat["id"])
    story.people = await seagate(table)
    await table.change(f"/entities/{story.people['marlena']}", locked=["status"])
    await story.turn()
    return story


@pytest.mark.every_database
async def test_a_proposal_shows_both_values_and_its_line(story: Compacted) -> None:
    await story.draft("marlena", status="dead")
    [proposal] = await story.open()
    assert proposal["target"] == {
        "kind": "entity", "id": story.people["marlena"], "name": "Marlena",
    }  # fmt: skip
    assert (proposal["reason"], proposal["conflicts"]) == ("locked", {"status": "locked"})
    assert proposal["then"] == proposal["now"] == {"status": "active"}
    assert proposal["proposed"] == {"status": "dead"}
    assert (proposal["message_id"], proposal["because"]) == (story.line, "It says so.")
    await story.table.change(f"/entities/{story.people['marlena']}", status="in hiding")
    [proposal] = await story.open()
    assert (proposal["then"], proposal["now"]) == ({"status": "active"}, {"status": "in hiding"})


async def test_an_accepted_proposal_is_a_user_change_and_keeps_the_lock(story: Compacted) -> None:
    await story.draft("marlena", status="dead")
    [proposal] = await story.open()
    for _ in range(2):
        accepted = ok(await story.decide(proposal, "accept"))
        assert accepted["state"] == "accepted"
    marlena = await story.entity("marlena")
    assert (marlena["status"], marlena["locked"]) == ("dead", ["status"])
    changes = (await story.table.get("/changes"))["items"]
    [change] = [each for each in changes if each["set"].get("status") == "dead"]
    assert (change["actor"], change["message_id"]) == ("user", story.line)
    assert change["because"] == "It says so."
    assert await story.open() == []
    assert [each["id"] for each in await story.open(state="accepted")] == [proposal["id"]]
    problem(await story.decide(proposal, "refuse"), 409, "proposal-decided")


async def test_a_refused_proposal_is_remembered(story: Compacted) -> None:
    await story.draft("marlena", status="dead")
    [proposal] = await story.open()
    for _ in range(2):
        assert ok(await story.decide(proposal, "refuse"))["state"] == "refused"
    problem(await story.decide(proposal, "accept"), 409, "proposal-decided")
    assert (await story.entity("marlena"))["status"] == "active"
    assert await story.draft("marlena", status="dead") == 0
    assert await story.open() == []
    assert len(await story.open(state="refused")) == 1


@pytest.mark.every_database
async def test_a_changed_proposal_needs_its_new_revision(story: Compacted) -> None:
    await story.draft("marlena", status="dead")
    [proposal] = await story.open()
    match = {"if-match": f'"{proposal["revision"]}"'}
    await story.table.change(f"/entities/{story.people['marlena']}", role="Keeper")
    stale = await story.decide(proposal, "accept", headers=match)
    problem(stale, 412, "revision-mismatch")
    [proposal] = await story.open()
    match = {"if-match": f'"{proposal["revision"]}"'}
    ok(await story.decide(proposal, "accept", headers=match))
    assert (await story.entity("marlena"))["status"] == "dead"


async def test_a_proposal_is_hidden_while_it_is_already_true(story: Compacted) -> None:
    await story.draft("marlena", status="dead")
    path = f"/entities/{story.people['marlena']}"
    await story.table.change(path, status="dead")
    assert await story.open() == []
    await story.table.change(path, status="alive")
    assert len(await story.open()) == 1
    await story.table.delete(path)
    assert await story.open() == []


async def test_a_deleted_item_cannot_be_changed(story: Compacted) -> None:
    await story.draft("marlena", status="dead")
    [proposal] = await story.open()
    await story.table.delete(f"/entities/{story.people['marlena']}")
    problem(await story.decide(proposal, "accept"), 409, "proposal-target-gone")
    ok(await story.decide(proposal, "refuse"))


async def test_a_proposal_follows_its_message(story: Compacted) -> None:
    await story.draft("marlena", status="dead")
    await story.draft("marlena", status="gone")
    dead, gone = await story.open()
    ok(await story.decide(dead, "accept"))
    first = story.line
    await story.turn(regenerate_of=first)
    assert await story.open() == []
    assert (await story.entity("marlena"))["status"] == "active"
    problem(await story.decide(gone, "accept"), 409, "proposal-not-told")
    await story.table.account.post(f"/messages/{first}/activate")
    assert [each["id"] for each in await story.open()] == [gone["id"]]
    assert (await story.entity("marlena"))["status"] == "dead"


@pytest.mark.every_database
async def test_a_fork_shows_and_keeps_a_proposal(story: Compacted) -> None:
    await story.draft("marlena", status="dead")
    account = story.table.account
    fork = await account.post(f"/chats/{story.chat}/fork", {"message_id": story.line}, 201)
    [proposal] = await story.open()
    assert proposal["chat_id"] == story.chat
    await account.delete(f"/chats/{story.chat}")
    [proposal] = await story.open()
    assert proposal["chat_id"] == fork["id"]
    ok(await story.decide(proposal, "accept"))
    await account.delete(f"/chats/{fork['id']}")
    assert await story.open() == await story.open(state="accepted") == []


async def test_an_accepted_change_follows_all_copies_of_its_line(story: Compacted) -> None:
    await story.draft("marlena", status="dead")
    account = story.table.account
    fork = await account.post(f"/chats/{story.chat}/fork", {"message_id": story.line}, 201)
    [proposal] = await story.open()
    ok(await story.decide(proposal, "accept"))
    await account.delete(f"/messages/{story.line}", 200)
    assert (await story.entity("marlena"))["status"] == "dead"
    copy = (await story.table.account.messages(fork["id"]))[-1]
    await account.delete(f"/messages/{copy['id']}", 200)
    assert (await story.entity("marlena"))["status"] == "active"
    assert await story.open(state="accepted") == []


async def test_a_fact_of_the_user_is_shown_with_its_contradiction(story: Compacted) -> None:
    holt = story.people["holt"]
    honest = await story.table.add("facts", text="Holt is honest.", about_id=holt)
    lies = {
        "kind": "fact",
        "item_id": new_id(),
        "operations": build_creation(Fact(text="Holt lies.", about_id=UUID(holt))),
        "replaces": UUID(honest["id"]),
    }
    assert await story.drafts(lies) == 1
    [proposal] = await story.open()
    assert (proposal["reason"], proposal["is_new"]) == ("contradicts", True)
    assert proposal["contradicts"] == {
        "id": honest["id"], "then": "Holt is honest.", "now": "Holt is honest.",
    }  # fmt: skip
    assert proposal["proposed"] == {"text": "Holt lies.", "about_id": holt}
    ok(await story.decide(proposal, "accept"))
    facts = {each["text"]: each for each in (await story.table.get("/facts"))["items"]}
    assert facts["Holt is honest."]["superseded_by"] == facts["Holt lies."]["id"]


@pytest.mark.parametrize("field", ["", "about_id"])
async def test_the_user_decides_who_is_meant(story: Compacted, field: str) -> None:
    people = [UUID(story.people[name]) for name in ("holt", "marlena")]
    await story.drafts(
        {
            "kind": "fact" if field else "entity",
            "item_id": new_id(),
            "operations": build_creation(Fact(text="He lies."))
            if field
            else Operations(set={"role": "Spy"}),
            "unclear": Ambiguity(mention="the Inspector", candidates=people, field=field),
        }
    )
    [proposal] = await story.open()
    assert (proposal["reason"], proposal["mention"]) == ("uncertain", "the Inspector")
    assert [each["name"] for each in proposal["candidates"]] == ["Inspector Holt", "Marlena"]
    for query in ({}, {"item_id": story.people["jake"]}):
        bad = await story.decide(proposal, "accept", params=query)
        problem(bad, 422, "validation-failed")
    assert len(await story.open()) == 1
    ok(await story.decide(proposal, "accept", params={"item_id": story.people["holt"]}))
    if field:
        [fact] = (await story.table.get("/facts"))["items"]
        assert (fact["text"], fact["about_id"]) == ("He lies.", story.people["holt"])
    else:
        assert (await story.entity("holt"))["role"] == "Spy"


async def test_an_ambiguous_reference_is_open_until_decided(story: Compacted) -> None:
    places = [UUID(story.people[name]) for name in ("hills", "shop")]
    await story.table.change(f"/entities/{story.people['holt']}", location_id=None)
    await story.table.change(f"/entities/{story.people['marlena']}", location_id=None)
    moves = [
        {
            "kind": "entity",
            "item_id": UUID(story.people[name]),
            "operations": Operations(set={"location_id": None}),
            "unclear": Ambiguity(mention="up there", candidates=places, field="location_id"),
        }
        for name in ("holt", "marlena")
    ]
    assert await story.drafts(*moves) == 2
    holt, marlena = await story.open()
    assert (holt["now"], holt["target"]["name"]) == ({"location_id": None}, "Inspector Holt")
    ok(await story.decide(holt, "accept", params={"item_id": story.people["hills"]}))
    assert (await story.entity("holt"))["location_id"] == story.people["hills"]
    path = f"/entities/{story.people['marlena']}"
    await story.table.change(path, location_id=story.people["shop"])
    assert await story.open() == []
    await story.table.change(path, location_id=story.people["jake"])
    assert [each["id"] for each in await story.open()] == [marlena["id"]]
    await story.table.delete(path)
    assert await story.open() == []


async def test_a_deleted_item_is_restored_only_by_the_user(story: Compacted) -> None:
    bob = await story.table.add("entities", kind="npc", name="Bob", role="Cook")
    await story.table.delete(f"/entities/{bob['id']}")
    again = {
        "kind": "entity",
        "item_id": new_id(),
        "operations": build_creation(Entity(kind="npc", name="Bob", role="Cook")),
    }
    assert await story.drafts(again) == 1
    [proposal] = await story.open()
    assert (proposal["is_new"], proposal["now"]) == (True, {})
    assert proposal["proposed"] == {"kind": "npc", "name": "Bob", "role": "Cook"}
    ok(await story.decide(proposal, "accept"))
    found = (await story.table.get("/entities", q="Bob"))["items"]
    assert [each["id"] for each in found] == [str(again["item_id"])]


@pytest.mark.every_database
async def test_a_viewpoint_sees_only_known_proposals(story: Compacted) -> None:
    holt, jake = story.people["holt"], story.people["jake"]
    await story.table.change(f"/entities/{holt}", locked=["wants"])
    await story.draft("marlena", status="dead")
    await story.drafts(
        {"kind": "entity", "item_id": UUID(holt), "operations": Operations(set={"wants": "gold"})},
        audience="gm",
    )
    assert len(await story.open()) == 2
    for viewpoint in ("public", jake):
        [known] = await story.open(viewpoint=viewpoint)
        assert known["target"]["name"] == "Marlena"
    # A later limit of the item applies to proposals too.
    await story.table.change(f"/entities/{story.people['marlena']}", audience=[holt])
    assert await story.open(viewpoint=jake) == []
    assert len(await story.open(viewpoint=holt)) == 1
    nobody = await story.table.ask("GET", "/proposals", params={"viewpoint": str(new_id())})
    problem(nobody, 422, "validation-failed")


async def test_limiting_a_line_limits_its_proposals(story: Compacted) -> None:
    await story.draft("marlena", status="dead")
    account = story.table.account
    await account.patch(f"/messages/{story.line}", {"audience": "gm"})
    assert await story.open(viewpoint="public") == []
    assert len(await story.open()) == 1


@pytest.mark.every_database
async def test_proposals_come_in_pages(story: Compacted) -> None:
    for number in range(3):
        await story.draft("marlena", status=f"status {number}")
    first = await story.table.get("/proposals", limit=2)
    rest = await story.table.get("/proposals", limit=2, after=first["next"])
    shown = [each["proposed"]["status"] for each in (*first["items"], *rest["items"])]
    assert (shown, rest["next"]) == (["status 0", "status 1", "status 2"], None)
