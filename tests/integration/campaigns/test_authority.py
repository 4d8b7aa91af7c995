"""Changes that the compactor may write, and changes that it may only propose."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from backend.campaigns.api.schemas import NewCampaign
from backend.campaigns.api.service import CampaignService
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.change_log import ChangeLogService
from backend.campaigns.ledger.changes import EXISTS, Change, Operations, State, build_creation
from backend.campaigns.ledger.item_service import ItemService
from backend.campaigns.ledger.items import Entity, Fact, Item, Kind
from backend.campaigns.ledger.records import ItemKey, get_campaign, load_states
from backend.campaigns.models import Actor, CampaignChange, CampaignProposal
from backend.campaigns.proposals.authority import Ambiguity, Verdict
from backend.campaigns.proposals.store import MAX_OPEN, ProposalService
from backend.chats.models import Chat, Message
from backend.core.audience import GM, encode_audience
from backend.database.base import new_id, now
from backend.database.engine import Database
from tests.integration.campaigns.drafting import compact
from tests.integration.chats.trees import Grove, sign_up
from tests.support.thorough import rounds

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

FIELDS = ("status", "wants", "aliases", "attributes.hp", "attributes.inventory")
EXAMPLES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["user", "tool", "lock", "undo", "append", "window", "accept", "draft", "draft"]
        ),
        st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True),
        st.integers(0, 5),
    ),
    min_size=4,
    max_size=16,
)


@dataclass
class Story:
    """A chat of a campaign. `since` is the time of the first line that the compactor reads."""

    database: Database
    grove: Grove
    campaign_id: UUID
    since: datetime
    theirs: set[str] = field(default_factory=set[str])
    locked: set[str] = field(default_factory=set[str])

    @property
    def identity(self) -> Any:
        return self.grove.identity

    async def line(self, text: str = "She looks away.") -> UUID:
        return await self.grove.append(text)

    async def make(
        self, item: Item, *, actor: Actor = "compactor", line: UUID | None = None
    ) -> UUID:
        kind: Kind = "fact" if isinstance(item, Fact) else "entity"
        item_id = new_id()
        await self.write(kind, item_id, build_creation(item), actor=actor, line=line)
        return item_id

    async def write(
        self,
        kind: Kind,
        item_id: UUID,
        operations: Operations,
        *,
        actor: Actor = "compactor",
        line: UUID | None = None,
    ) -> UUID:
        async with self.database.write() as session:
            campaign = await get_campaign(session, self.identity, self.campaign_id, lock=True)
            message = await session.get_one(Message, line) if line else None
            change = Change(kind, item_id, operations)
            (change_id,) = await ledger_store.append_changes(
                session, self.identity.sealer, campaign, [change], actor=actor, message=message
            )
        return change_id

    async def state(self, item_id: UUID) -> State:
        async with self.database.read() as session:
            campaign = await get_campaign(session, self.identity, self.campaign_id)
            states = await load_states(session, self.identity.sealer, campaign, [item_id])
        return states.get(item_id, {})

    async def compact(self, *drafts: dict[str, Any], line: UUID) -> tuple[Verdict, int]:
        """Judge drafts of a line; return the verdict and the number of proposals."""
        return await compact(
            self.database, self.identity, self.campaign_id, *drafts, line=line, since=self.since
        )

    async def proposals(self) -> list[CampaignProposal]:
        async with self.database.read() as session:
            query = select(CampaignProposal).where(CampaignProposal.campaign_id == self.campaign_id)
            return list(await session.scalars(query))

    async def undo(self, change_id: UUID) -> None:
        await ChangeLogService(self.database).undo(self.identity, self.campaign_id, change_id)

    async def edit(self, kind: Kind, item_id: UUID, **patch: Any) -> None:
        key = ItemKey(self.campaign_id, kind, item_id)
        await ItemService(self.database).patch_item(self.identity, key, patch, if_match=None)


async def begun(database: Database) -> Story:
    identity = await sign_up(database)
    view = await CampaignService(database).create(identity, NewCampaign(name="Seagate"))
    grove = Grove(database, identity)
    await grove.plant("The door creaks open.")
    async with database.write() as session:
        await session.execute(
            update(Chat).where(Chat.id == grove.chat_id).values(campaign_id=view.id)
        )
    return Story(database, grove, view.id, since=now())


@pytest.fixture
async def story(database: Database) -> Story:
    return await begun(database)


def read_value(state: State, key: str) -> Any:
    name, _, member = key.partition(".")
    members: State = (state.get(name) or {}) if member else state
    return members.get(member or name)


def operations(keys: list[str], number: int) -> Operations:
    """Return a change of these fields. Lists are set as by a model that forgets other values."""
    change = Operations()
    for key in keys:
        if key in {"aliases", "attributes.inventory"}:
            change.set[key] = [f"thing {number}"]
        else:
            change.set[key] = number if key == "attributes.hp" else f"value {number}"
    return change


async def step(story: Story, marlena: UUID, name: str, keys: list[str], number: int) -> None:
    if name == "window":
        story.since, story.theirs = now(), set()
        await story.line()
    elif name == "append":
        await story.line(f"Line {number}.")
    elif name in {"user", "tool"}:
        actor: Actor = "user" if name == "user" else "tool"
        line = story.grove.expected.leaf if name == "tool" else None
        await story.write("entity", marlena, operations(keys, number), actor=actor, line=line)
        story.theirs |= set(keys)
    elif name == "lock":
        await story.edit("entity", marlena, locked=keys)
        story.locked = set(keys)
    elif name == "accept":
        await accept(story, marlena)
    elif name == "undo":
        async with story.database.read() as session:
            query = select(CampaignChange).where(
                CampaignChange.item_id == marlena, ~CampaignChange.is_undone
            )
            rows = list(await session.scalars(query.order_by(CampaignChange.seq)))[1:]
        if rows and not story.locked:
            row = rows[number % len(rows)]
            await story.undo(row.id)
            if row.created_at >= story.since:
                sealer = story.identity.sealer
                undone = ledger_store.read_operations(sealer, row.id, row.sealed_operations)
                story.theirs |= set(undone.list_keys())
    else:
        await draft(story, marlena, keys, number)


async def accept(story: Story, marlena: UUID) -> None:
    """Accept the oldest proposal. It then is a change of the user."""
    service = ProposalService(story.database)
    page = await service.list_page(
        story.identity, story.campaign_id, state="open", viewpoint=GM, limit=1, after=None
    )
    for proposal in page.items:
        await service.accept(
            story.identity, story.campaign_id, proposal.id, item_id=None, if_match=None
        )
        state = await story.state(marlena)
        for key, value in proposal.proposed.items():
            assert read_value(state, key) == value
        story.theirs |= proposal.proposed.keys()


async def draft(story: Story, marlena: UUID, keys: list[str], number: int) -> None:
    before, line = await story.state(marlena), story.grove.expected.leaf
    assert line is not None
    change = operations(keys, number)
    found, _ = await story.compact(
        {"kind": "entity", "item_id": marlena, "operations": change}, line=line
    )
    after = await story.state(marlena)
    written = {key for each in found.drafts for key in each.operations.list_keys()}
    proposed = {key for each in found.proposals for key in each.draft.operations.list_keys()}
    for key in FIELDS:
        was, is_now = read_value(before, key), read_value(after, key)
        if isinstance(was, list):
            assert set(cast("list[str]", was)) <= set(is_now), "what is not named stays"
        if key not in keys or key in story.theirs | story.locked:
            assert is_now == was
        wanted = change.set.get(key)
        is_so = was == wanted or (isinstance(wanted, list) and wanted[0] in (was or ()))
        assert (key in written or key in proposed) == (key in keys and not is_so)
    assert not written & (story.theirs | story.locked)


async def play(database: Database, steps: list[tuple[str, list[str], int]]) -> None:
    story = await begun(database)
    attributes: dict[str, Any] = {"hp": 9, "inventory": ["fork"]}
    marlena = await story.make(Entity(kind="npc", name="Marlena", attributes=attributes))
    for name, keys, number in steps:
        await step(story, marlena, name, keys, number)


@settings(EXAMPLES, max_examples=rounds(12, 80))
@given(STEPS)
async def test_user_and_tool_changes_are_never_overwritten(
    sqlite: Database, steps: list[tuple[str, list[str], int]]
) -> None:
    await play(sqlite, steps)


@pytest.mark.postgres
@settings(EXAMPLES, max_examples=rounds(3, 20))
@given(STEPS)
async def test_user_and_tool_changes_win_on_postgresql(
    postgres: Database, steps: list[tuple[str, list[str], int]]
) -> None:
    await play(postgres, steps)


async def test_only_free_fields_of_a_draft_are_written(story: Story) -> None:
    marlena = await story.make(Entity(kind="npc", name="Marlena", locked=["wants"]))
    await story.edit("entity", marlena, status="in hiding")
    change = Operations(
        set={"status": "dead", "wants": "revenge", "disposition": "cold", "role": ""}
    )
    found, kept = await story.compact(
        {"kind": "entity", "item_id": marlena, "operations": change}, line=await story.line()
    )
    state = await story.state(marlena)
    assert (state["status"], state["wants"], state["disposition"]) == ("in hiding", "", "cold")
    assert kept == 2
    assert {each.reason: dict(each.content.conflicts) for each in found.proposals} == {
        "locked": {"wants": "locked"},
        "changed": {"status": "user"},
    }


async def test_the_user_s_item_wins_over_lines_from_before_it(story: Story) -> None:
    before = await story.line()
    marlena = await story.make(Entity(kind="npc", name="Marlena", role="Keeper"), actor="user")
    after = await story.line()
    change = {"kind": "entity", "item_id": marlena, "operations": Operations(set={"role": "Spy"})}
    _, kept = await story.compact(change, line=before)
    assert (kept, (await story.state(marlena))["role"]) == (1, "Keeper")
    _, kept = await story.compact(change, line=after)
    assert (kept, (await story.state(marlena))["role"]) == (0, "Spy")


async def test_an_undone_change_is_not_written_again(story: Story) -> None:
    marlena = await story.make(Entity(kind="npc", name="Marlena"))
    dead, gone = Operations(set={"status": "dead"}), Operations(set={"status": "gone"})
    await story.undo(await story.write("entity", marlena, dead))
    story.since = now()
    line = await story.line()
    draft = {"kind": "entity", "item_id": marlena}
    found, _ = await story.compact({**draft, "operations": dead}, line=line)
    assert [each.content.conflicts for each in found.proposals] == [{"status": "undone"}]
    found, _ = await story.compact({**draft, "operations": gone}, line=line)
    assert (found.proposals, (await story.state(marlena))["status"]) == ([], "gone")


async def test_a_deleted_item_is_not_created_again(story: Story) -> None:
    line = await story.line()
    bob = await story.make(Entity(kind="npc", name="Bob the Cook"), line=line)
    key = ItemKey(story.campaign_id, "entity", bob)
    await ItemService(story.database).delete_item(story.identity, key, if_match=None)
    again, fact_id = new_id(), new_id()
    found, kept = await story.compact(
        {
            "kind": "entity",
            "item_id": again,
            "operations": build_creation(Entity(kind="npc", name="Bob, the cook")),
        },
        # Changes that depend on him wait too.
        {
            "kind": "fact",
            "item_id": fact_id,
            "operations": build_creation(Fact(text="He drinks.", about_id=again)),
        },
        line=line,
    )
    assert (found.drafts, kept, await story.state(again)) == ([], 1, {})


async def test_an_invalid_draft_does_not_stop_the_others(story: Story) -> None:
    names = [f"Name {number}" for number in range(50)]
    marlena = await story.make(Entity(kind="npc", name="Marlena", aliases=names))
    changes = [Operations(add={"aliases": ["One more"]}), Operations(set={"status": "dead"})]
    drafts = [{"kind": "entity", "item_id": marlena, "operations": each} for each in changes]
    await story.compact(*drafts, line=await story.line())
    state = await story.state(marlena)
    assert (len(state["aliases"]), state["status"]) == (50, "dead")


async def test_deleted_items_are_not_changed(story: Story) -> None:
    line = await story.line()
    bob = await story.make(Entity(kind="npc", name="Bob"), line=line)
    key = ItemKey(story.campaign_id, "entity", bob)
    await ItemService(story.database).delete_item(story.identity, key, if_match=None)
    change = Operations(set={"status": "drunk"})
    found, kept = await story.compact(
        {"kind": "entity", "item_id": bob, "operations": change}, line=line
    )
    assert (found, kept) == (Verdict([], []), 0)


async def test_an_older_line_does_not_overwrite_a_newer_one(story: Story) -> None:
    marlena = await story.make(Entity(kind="npc", name="Marlena"))
    older, newer = await story.line(), await story.line()
    await story.write("entity", marlena, Operations(set={"status": "dead"}), line=newer)
    change = Operations(set={"status": "alive"})
    found, _ = await story.compact(
        {"kind": "entity", "item_id": marlena, "operations": change}, line=older
    )
    assert found == Verdict([], [])


def told(text: str, *, replaces: UUID | None = None, **more: Any) -> dict[str, Any]:
    fact = build_creation(Fact(text=text, **more))
    return {"kind": "fact", "item_id": new_id(), "operations": fact, "replaces": replaces}


async def test_a_known_fact_is_not_added_again(story: Story) -> None:
    marlena = await story.make(Entity(kind="npc", name="Marlena"))
    await story.make(Fact(text="Owns the “Sigil”.", about_id=marlena))
    found, _ = await story.compact(
        told("owns the Sigil", about_id=marlena),
        told("Owns the Sigil!"),
        told("Owns the sigil."),
        line=await story.line(),
    )
    assert [each.operations.set["about_id"] for each in found.drafts] == [None]


@pytest.mark.parametrize("actor", ["tool", "compactor"])
async def test_only_newer_lines_supersede_a_fact(story: Story, actor: Actor) -> None:
    older, line, newer = [await story.line() for _ in range(3)]
    open_, ajar = [
        await story.make(Fact(text=text), actor=actor, line=line)
        for text in ("The door is open.", "The window is ajar.")
    ]
    shut = told("The door is shut.", replaces=open_)
    await story.compact(shut, line=newer)
    assert (await story.state(open_))["superseded_by"] == str(shut["item_id"])
    found, kept = await story.compact(told("The window is shut.", replaces=ajar), line=older)
    assert (found.drafts, kept) == ([], 1)
    assert found.proposals[0].content.conflicts == {"text": actor}
    assert found.proposals[0].content.against == "The window is ajar."
    assert (await story.state(ajar))["superseded_by"] is None


async def test_the_last_of_several_facts_is_valid(story: Story) -> None:
    line = await story.line()
    open_ = await story.make(Fact(text="The door is open."), line=line)
    shut = told("The door is shut.", replaces=open_)
    gone = told("The door is gone.", replaces=open_)
    await story.compact(shut, gone, line=await story.line())
    assert (await story.state(open_))["superseded_by"] == str(shut["item_id"])
    assert (await story.state(shut["item_id"]))["superseded_by"] == str(gone["item_id"])


@pytest.mark.parametrize("how", ["written", "edited", "locked"])
async def test_a_fact_of_the_user_is_never_superseded(story: Story, how: str) -> None:
    line = await story.line()
    fact = await story.make(
        Fact(text="Holt lies.", locked=["text"] if how == "locked" else []),
        actor="user" if how == "written" else "compactor",
        line=line,
    )
    if how == "edited":
        await story.edit("fact", fact, text="Holt always lies.")
    story.since = now()
    found, kept = await story.compact(
        told("Holt is honest.", replaces=fact), line=await story.line()
    )
    assert (found.drafts, kept) == ([], 1)
    [proposed] = found.proposals
    assert proposed.reason == "contradicts"
    assert proposed.content.conflicts == {"text": "locked" if how == "locked" else "user"}


async def test_a_secret_does_not_supersede_public_facts(story: Story) -> None:
    public = await story.make(Fact(text="Holt is honest."), line=await story.line())
    secret = told("Holt lies.", replaces=public, audience=GM)
    found, _ = await story.compact(secret, line=await story.line())
    assert [each.item_id for each in found.drafts] == [secret["item_id"]]


async def test_an_ambiguous_name_is_proposed(story: Story) -> None:
    some = new_id()
    people = [
        await story.make(Entity(kind="npc", name="Holt")),
        await story.make(Entity(kind="npc", name="Vance", audience=[some])),
    ]
    change = {"kind": "entity", "item_id": new_id(), "operations": Operations(set={"role": "Spy"})}
    unclear = Ambiguity(mention="the Inspector", candidates=people)
    found, kept = await story.compact({**change, "unclear": unclear}, line=await story.line())
    assert ([each.reason for each in found.proposals], kept) == (["uncertain"], 1)
    [row] = await story.proposals()
    assert row.audience == encode_audience([some])


async def test_a_proposal_is_made_once_and_not_after_a_refusal(story: Story) -> None:
    marlena = await story.make(Entity(kind="npc", name="Marlena", locked=["status"]))
    first, second = await story.line(), await story.line()
    dead = {
        "kind": "entity", "item_id": marlena, "operations": Operations(set={"status": "dead"}),
    }  # fmt: skip
    assert (await story.compact(dead, dead, line=first))[1] == 1
    assert (await story.compact(dead, line=second))[1] == 0
    async with story.database.write() as session:
        await session.execute(update(CampaignProposal).values(state="refused"))
    assert (await story.compact(dead, line=first))[1] == 0
    gone = {**dead, "operations": Operations(set={"status": "gone"})}
    assert (await story.compact(gone, line=first))[1] == 1
    assert (await story.compact(dead, line=second))[1] == 1


async def test_open_proposals_have_a_maximum(story: Story) -> None:
    marlena = await story.make(Entity(kind="npc", name="Marlena", locked=["status", "wants"]))
    line = await story.line()
    many = [
        {
            "kind": "entity",
            "item_id": marlena,
            "operations": Operations(set={"status": f"status {number}"}),
        }
        for number in range(MAX_OPEN + 5)
    ]
    found, kept = await story.compact(*many, line=line)
    assert (len(found.proposals), kept) == (MAX_OPEN + 5, MAX_OPEN)
    # A proposal that became true makes room.
    await story.edit("entity", marlena, status="status 7")
    _, kept = await story.compact(*many[-2:], line=line)
    assert kept == 1
    assert EXISTS in await story.state(marlena)
