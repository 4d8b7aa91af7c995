"""Summaries by audience: who gets one, what it is made from, which prompt has it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, func, select, text

from backend.chats.models import Message
from backend.database import migrate
from backend.enrichment.models import CHAT_SUMMARY, ChatSummary
from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL_ID
from tests.integration.campaigns.seagate import Table
from tests.integration.enrichment.storytelling import (
    Storyteller,
    asked,
    at_rest,
    numbers_in,
    previous_in,
)
from tests.integration.turns.seeding import identity_of, seed
from tests.support.memory import preview, take_turn
from tests.support.server import Running, ok, problem, running

pytestmark = [pytest.mark.anyio]


@pytest.fixture(scope="module")
async def teller() -> AsyncGenerator[Storyteller]:
    async with Storyteller() as teller:
        yield teller


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, teller: Storyteller
) -> AsyncGenerator[Running]:
    registry = ModelRegistry(demo_tokens_per_second=0, openai=teller.config(), default=MODEL_ID)
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder, registry=registry) as server:
        yield server


class Session:
    """A chat of a campaign with two players, and what was asked of the model since last time."""

    def __init__(self, server: Running, teller: Storyteller, table: Table) -> None:
        self.server, self.teller, self.table = server, teller, table
        self.ada, self.chat, self.jake, self.kim = table.account, "", "", ""

    async def begin(self, **settings: Any) -> None:
        await self.table.change("", settings=settings)
        for name in ("Jake", "Kim"):
            made = await self.table.add("entities", kind="pc", name=name)
            setattr(self, name.lower(), made["id"])
        campaign_id = self.table.campaign["id"]
        self.chat = (await self.ada.new_chat(campaign_id=campaign_id))["id"]
        self.teller.requests.clear()
        self.teller.summing_up.clear()

    async def play(self, rounds: range, **audiences: Any) -> list[list[int]]:
        """Rounds of two lines each, public but for `r4="gm"`; which lines were summed up."""
        before = len(self.teller.summed_up)
        for number in rounds:
            audience = audiences.get(f"r{number}", "public")
            body = {"text": f"Round {number}.", "audience": audience}
            await take_turn(self.ada, self.chat, **body)
            await at_rest(self.server, self.chat)
        return [numbers_in(each) for each in self.teller.summed_up[before:]]

    async def summary(self, viewpoint: str | None = None) -> dict[str, Any]:
        query = {"viewpoint": viewpoint} if viewpoint else {}
        answer = await self.ada.get(f"/chats/{self.chat}/summary", **query)
        found: dict[str, Any] = answer
        return found

    async def previously(self, viewpoint: str) -> list[str]:
        """The summary in a prompt."""
        context = await preview(self.ada, self.chat, "Well?", viewpoint=viewpoint)
        items = [item["text"] for item in context["items"] if item["kind"] == "summary"]
        return [line for text in items for line in text.splitlines()[1:]]

    async def history(self, viewpoint: str) -> list[str]:
        """The rounds in a prompt."""
        context = await preview(self.ada, self.chat, "Well?", viewpoint=viewpoint)
        said = [each["text"] for each in context["prompt"] if each["role"] == "user"]
        return [text for text in said if text.startswith("Round")]


@pytest.fixture
async def session(server: Running, teller: Storyteller, table: Table) -> Session:
    return Session(server, teller, table)


ROUNDS_1_TO_4 = list(range(1, 9))
ROUNDS_5_TO_8 = list(range(9, 17))
ROUND_6 = [11, 12]


async def test_each_audience_that_has_news_gets_one_and_no_other(session: Session) -> None:
    await session.begin(hidden_information=True)
    assert await session.play(range(1, 9)) == [ROUNDS_1_TO_4]
    summary = await session.summary()
    assert (summary["text"], summary["audience"]) == ("Told up to 8.", "public")

    told = await session.play(range(9, 13))
    assert told == [list(range(9, 17))]
    # Rounds 9 to 12 are summed up after the 16th: by then the tenth was Jake's alone.
    told = await session.play(range(13, 17), r14=[session.jake], r15="gm")
    assert told == [list(range(17, 25))]
    told = await session.play(range(17, 21))
    of_all = list(range(25, 33))
    jakes = [each for each in of_all if each not in (29, 30)]
    public = [each for each in jakes if each not in (27, 28)]
    assert told == [jakes, of_all, public]
    requests = session.teller.summed_up[-3:]
    assert {previous_in(each) for each in requests} == {"Told up to 24."}
    assert "Round 14" in asked(requests[0])
    assert "Round 14" not in asked(requests[2])
    for viewpoint, number in ((session.jake, 32), ("gm", 32), ("public", 32), (session.kim, 32)):
        assert await session.previously(viewpoint) == [f"Told up to {number}."]
    for viewpoint, audience in (
        (session.jake, [session.jake]), ("gm", "gm"), ("public", "public"), (session.kim, "public"),
    ):  # fmt: skip
        summary = await session.summary(viewpoint)
        assert (summary["audience"], summary["is_used"]) == (audience, True)

    # Nothing happens that not all may know: one call, and the others' go on with what it says.
    assert await session.play(range(21, 25)) == [list(range(33, 41))]
    for viewpoint in (session.jake, "gm"):
        assert await session.previously(viewpoint) == ["Told up to 32.", "Told up to 40."]
        assert await session.history(viewpoint) == [f"Round {each}." for each in range(21, 25)]
    for viewpoint in (session.kim, "public"):
        assert await session.previously(viewpoint) == ["Told up to 40."]
    told = await session.play(range(25, 29), r26="gm")
    assert len(told) == 1
    told = await session.play(range(29, 33))
    assert [previous_in(each) for each in session.teller.summed_up[-2:]] == [
        "Told up to 32.\nTold up to 48.",
        "Told up to 48.",
    ]
    assert await session.previously(session.jake) == ["Told up to 32.", "Told up to 56."]


async def test_without_hidden_information_there_is_one_for_the_game_master(
    session: Session,
) -> None:
    await session.begin()
    assert await session.play(range(1, 9), r2=[session.jake]) == [ROUNDS_1_TO_4]
    assert (await session.summary())["audience"] == "gm"
    assert await session.previously(session.jake) == []
    # From now on there are others: Jake's begins where nothing is told yet.
    await session.table.change("", settings={"hidden_information": True})
    told = await session.play(range(9, 13), r10=[session.jake])
    public = [each for each in range(1, 17) if each not in (3, 4)]
    assert told == [list(range(1, 17)), public]
    assert await session.previously("gm") == ["Told up to 8.", "Told up to 16."]


async def test_summaries_are_read_written_and_dropped_by_audience(session: Session) -> None:
    await session.begin(hidden_information=True)
    await session.play(range(1, 9), r2=[session.jake])
    path = f"/chats/{session.chat}/summary"

    async def put(text: str, **query: str) -> dict[str, Any]:
        answer = await session.ada.ask("PUT", path, params=query, json={"text": text})
        return ok(answer)

    mine = await put("Jake palmed a key.", viewpoint=session.jake)
    assert (mine["audience"], mine["edited"]) == ([session.jake], True)
    assert await session.previously(session.jake) == ["Jake palmed a key."]
    assert await session.previously(session.kim) == ["Told up to 8."]
    await put("They met.", viewpoint="public")
    assert await session.previously(session.kim) == ["They met."]
    assert await session.previously("gm") == ["Told up to 8."]
    listed = (await session.ada.get(f"/chats/{session.chat}/summaries?viewpoint=public"))["items"]
    assert [each["text"] for each in listed] == ["They met."]
    drop = await session.ada.ask("DELETE", path, params={"viewpoint": session.jake})
    ok(drop, 204)
    assert await session.previously(session.jake) == ["They met."]
    for query in ({"viewpoint": "nobody"}, {"viewpoint": session.table.campaign["id"]}):
        for method in ("GET", "PUT", "DELETE"):
            body = {"text": "No."} if method == "PUT" else None
            answer = await session.ada.ask(method, path, params=query, json=body)
            problem(answer, 422, "validation-failed")


async def test_a_message_that_is_kept_from_some_is_in_no_summary_of_theirs(
    session: Session,
) -> None:
    await session.begin(hidden_information=True)
    await session.play(range(1, 9), r2=[session.jake])
    lines = await session.ada.messages(session.chat)

    async def limit(place: int, audience: Any) -> None:
        changed = await session.ada.patch(f"/messages/{lines[place]['id']}", {"audience": audience})
        changed

    await limit(0, [session.kim])
    assert await session.previously("public") == []
    assert await session.previously(session.jake) == []
    assert await session.previously("gm") == ["Told up to 8."]
    # They are written again with the next ones, each from what its audience may know.
    told = await session.play(range(9, 13))
    jakes, public = list(range(2, 17)), [2, *range(5, 17)]
    assert sorted(told) == sorted([jakes, [1, *public], public])
    for viewpoint in (session.jake, session.kim, "public"):
        assert await session.previously(viewpoint) == ["Told up to 16."]
    assert await session.previously("gm") == ["Told up to 8.", "Told up to 16."]
    # What all may know now is told to all.
    await limit(0, "public")
    assert await session.previously("public") == []
    assert await session.previously(session.kim) == ["Told up to 16."]


@pytest.mark.every_database
async def test_the_tables_go_down_and_up_with_their_summaries(
    database_url: str, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path) as server, server.account() as ada:
        chat = (await ada.new_chat())["id"]
        lines = await seed(server, ada, chat, ["One.", "Two."])
        sealer, database = (await identity_of(server, ada)).sealer, server.parts.database
        put = {"text": "So far.", "through_message_id": str(lines[0].id)}
        await ada.put(f"/chats/{chat}/summary", put)
        # As a version before summaries had audiences has written it.
        last = lines[1].id
        row = ChatSummary(
            id=last, message_id=last, user_id=sealer.user_id, chat_id=UUID(chat), position=1,
            is_edited=True, sealed_summary=sealer.seal(CHAT_SUMMARY, last, "It rained."),
        )  # fmt: skip
        async with database.write() as writing:
            writing.add(row)

        async def stored() -> int:
            async with database.read() as reading:
                query = text("SELECT sum(bytes) FROM storage_ledger")
                return await reading.scalar(query) or 0

        await migrate.downgrade(database, "2026_11_6")
        await migrate.upgrade(database)
        found = await ada.get(f"/chats/{chat}/summary")
        assert (found["text"], found["audience"], found["revision"]) == ("It rained.", "public", 1)
        before = await stored()
        async with database.write() as writing:
            await writing.execute(delete(Message).where(Message.id == last))
            left = await writing.scalar(select(func.count()).select_from(ChatSummary))
        assert left == 0
        assert before - await stored() > 400
