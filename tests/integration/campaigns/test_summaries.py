"""Summaries of campaigns: per audience, and as a layer of the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, func, select, text

from backend.chats.models import Message
from backend.database import migrate
from backend.enrichment.models import CHAT_SUMMARY, ChatSummary
from tests.integration.campaigns.seagate import Table, seagate
from tests.integration.enrichment.storytelling import (
    Storyteller,
    asked,
    at_rest,
    list_numbers,
    list_summaries,
    read_previous,
    read_summary,
    teller,
    vendor,
)
from tests.integration.turns.seeding import identity_of, seed
from tests.support.memory import preview, set_chat, take_turn
from tests.support.server import Account, Running, ok, problem, running
from tests.support.shared import asking_server as server

__all__ = ["server", "teller", "vendor"]

pytestmark = pytest.mark.anyio

TICK = "The clock in the hall went on and on, and nobody minded it any more, for it rained. "


async def play_rounds(ada: Account, server: Running, chat: str, rounds: range) -> None:
    for number in rounds:
        await ada.turn(chat, text=f"Round {number} begins.")
        await at_rest(server, chat)


def read_rounds(context: dict[str, Any]) -> list[str]:
    said = [each["text"] for each in context["prompt"] if each["role"] == "user"]
    return [text for text in said if text.startswith("Round")]


async def test_the_summary_tells_all_but_the_last_rounds(
    ada: Account, server: Running, table: Table, teller: Storyteller
) -> None:
    await seagate(table)
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    await play_rounds(ada, server, chat, range(1, 8))
    assert teller.summed_up == []
    context = await preview(ada, chat, "Well?")
    assert read_rounds(context) == [f"Round {number} begins." for number in range(1, 8)]
    assert list_summaries(context) == []

    await play_rounds(ada, server, chat, range(8, 9))
    summary = await read_summary(ada, chat)
    assert (summary["through_position"], summary["is_used"]) == (7, True)
    assert list_numbers(teller.summed_up[0]) == list(range(1, 9))
    assert "150" in teller.summed_up[0].body["messages"][0]["content"]
    context = await preview(ada, chat, "Well?")
    assert read_rounds(context) == [f"Round {number} begins." for number in range(5, 9)]
    assert "PREVIOUSLY\nTold up to 8." in context["prompt"][0]["text"]
    layers = context["layers"]
    assert sum(layers.values()) == context["totals"]["prompt"]
    assert layers["cold"] == sum(item["tokens"] for item in list_summaries(context))

    await play_rounds(ada, server, chat, range(9, 12))
    assert len(teller.summed_up) == 1
    await play_rounds(ada, server, chat, range(12, 13))
    assert list_numbers(teller.summed_up[1]) == list(range(9, 17))


async def test_rounds_that_would_be_lost_are_summed_up_first(
    ada: Account, server: Running, table: Table, teller: Storyteller
) -> None:
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    await set_chat(ada, chat, budgets={"history": 300})
    for number in range(1, 9):
        await ada.turn(chat, text=f"Round {number} begins. {TICK * 2}")
    assert teller.summed_up
    for message in await ada.messages(chat):
        if message["role"] == "assistant":
            context = await ada.get(f"/messages/{message['id']}/context")
            history = context["history"] or {"first": 0}
            told = [item["reasons"][0]["count"] for item in list_summaries(context)]
            assert history["first"] <= sum(told)
            assert not any("no room" in note for note in context["notes"])


async def test_without_summaries_the_history_is_whole(
    ada: Account, server: Running, table: Table, teller: Storyteller
) -> None:
    settings = {**table.campaign["settings"], "summaries": False}
    await table.change("", settings=settings)
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    await play_rounds(ada, server, chat, range(1, 10))
    assert teller.summed_up == []
    assert len(read_rounds(await preview(ada, chat, "Well?"))) == 9


async def test_prompts_contain_closed_scenes_and_the_open_one(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    for number in range(1, 4):
        await table.add(
            "scenes", title=f"Scene {number}", status="closed", summary=f"It rained {number} times."
        )
    scene = await table.add(
        "scenes", location_id=ids["hills"], present=[ids["marlena"]], stakes="A cart"
    )
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    context = await preview(ada, chat, "Well?")
    head = context["prompt"][0]["text"]
    assert "- Scene 2: It rained 2 times.\n- Scene 3: It rained 3 times." in head
    assert "Scene 1" not in head
    state = next(item["text"] for item in context["items"] if item["kind"] == "state")
    assert "**Sunfall Hills**" in state
    assert "**Marlena**" in state
    assert "Holt" not in state
    texts = "\n".join(each["text"] for each in context["prompt"])
    assert texts.count("At stake: A cart") == 1
    ok(await table.ask("PATCH", f"/scenes/{scene['id']}", json={"status": "closed"}))
    state = next(
        item["text"]
        for item in (await preview(ada, chat, "Well?"))["items"]
        if item["kind"] == "state"
    )
    assert "**Sunfall Hills**" in state
    assert "**Inspector Holt**" in state
    assert "Marlena" not in state


class Session:
    """A chat of a campaign with two players."""

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

    async def play(self, rounds: range, **audiences: Any) -> list[list[int]]:
        """Play rounds with audiences such as `r4="gm"`; return the lines that were summarised."""
        before = len(self.teller.summed_up)
        for number in rounds:
            audience = audiences.get(f"r{number}", "public")
            body = {"text": f"Round {number}.", "audience": audience}
            await take_turn(self.ada, self.chat, **body)
            await at_rest(self.server, self.chat)
        return [list_numbers(each) for each in self.teller.summed_up[before:]]

    async def summary(self, viewpoint: str | None = None) -> dict[str, Any]:
        query = {"viewpoint": viewpoint} if viewpoint else {}
        answer = await self.ada.get(f"/chats/{self.chat}/summary", **query)
        found: dict[str, Any] = answer
        return found

    async def previously(self, viewpoint: str) -> list[str]:
        """Return the lines of the summary in a prompt."""
        context = await preview(self.ada, self.chat, "Well?", viewpoint=viewpoint)
        items = [item["text"] for item in context["items"] if item["kind"] == "summary"]
        return [line for text in items for line in text.splitlines()[1:]]

    async def history(self, viewpoint: str) -> list[str]:
        """Return the rounds in a prompt."""
        context = await preview(self.ada, self.chat, "Well?", viewpoint=viewpoint)
        said = [each["text"] for each in context["prompt"] if each["role"] == "user"]
        return [text for text in said if text.startswith("Round")]


@pytest.fixture
async def session(server: Running, teller: Storyteller, table: Table) -> Session:
    return Session(server, teller, table)


ROUNDS_1_TO_4 = list(range(1, 9))


async def test_each_audience_with_news_gets_a_summary(session: Session) -> None:
    await session.begin(hidden_information=True)
    assert await session.play(range(1, 9)) == [ROUNDS_1_TO_4]
    summary = await session.summary()
    assert (summary["text"], summary["audience"]) == ("Told up to 8.", "public")

    told = await session.play(range(9, 13))
    assert told == [list(range(9, 17))]
    # Rounds 13 to 16 are summarised later, separately for each audience.
    told = await session.play(range(13, 17), r14=[session.jake], r15="gm")
    assert told == [list(range(17, 25))]
    told = await session.play(range(17, 21))
    of_all = list(range(25, 33))
    jakes = [each for each in of_all if each not in (29, 30)]
    public = [each for each in jakes if each not in (27, 28)]
    assert told == [jakes, of_all, public]
    requests = session.teller.summed_up[-3:]
    assert {read_previous(each) for each in requests} == {"Told up to 24."}
    assert "Round 14" in asked(requests[0])
    assert "Round 14" not in asked(requests[2])
    for viewpoint, number in ((session.jake, 32), ("gm", 32), ("public", 32), (session.kim, 32)):
        assert await session.previously(viewpoint) == [f"Told up to {number}."]
    for viewpoint, audience in (
        (session.jake, [session.jake]), ("gm", "gm"), ("public", "public"), (session.kim, "public"),
    ):  # fmt: skip
        summary = await session.summary(viewpoint)
        assert (summary["audience"], summary["is_used"]) == (audience, True)

    # Without secret lines there is one request, and its summary extends the others.
    assert await session.play(range(21, 25)) == [list(range(33, 41))]
    for viewpoint in (session.jake, "gm"):
        assert await session.previously(viewpoint) == ["Told up to 32.", "Told up to 40."]
        assert await session.history(viewpoint) == [f"Round {each}." for each in range(21, 25)]
    for viewpoint in (session.kim, "public"):
        assert await session.previously(viewpoint) == ["Told up to 40."]
    told = await session.play(range(25, 29), r26="gm")
    assert len(told) == 1
    told = await session.play(range(29, 33))
    assert [read_previous(each) for each in session.teller.summed_up[-2:]] == [
        "Told up to 32.\nTold up to 48.",
        "Told up to 48.",
    ]
    assert await session.previously(session.jake) == ["Told up to 32.", "Told up to 56."]


async def test_without_hidden_information_one_summary_is_written(session: Session) -> None:
    await session.begin()
    assert await session.play(range(1, 9), r2=[session.jake]) == [ROUNDS_1_TO_4]
    assert (await session.summary())["audience"] == "gm"
    assert await session.previously(session.jake) == []
    # From now on Jake has a summary, which begins with the first line.
    await session.table.change("", settings={"hidden_information": True})
    told = await session.play(range(9, 13), r10=[session.jake])
    public = [each for each in range(1, 17) if each not in (3, 4)]
    assert told == [list(range(1, 17)), public]
    assert await session.previously("gm") == ["Told up to 8.", "Told up to 16."]


async def test_summaries_are_read_written_and_dropped_by_audience(session: Session) -> None:
    await session.begin(hidden_information=True)
    await session.play(range(1, 9), r2=[session.jake])
    path = f"/chats/{session.chat}/summary"

    async def put(text: str, **query: Any) -> dict[str, Any]:
        return await session.ada.put(path, {"text": text}, **query)

    mine = await put("Jake palmed a key.", viewpoint=session.jake)
    assert (mine["audience"], mine["edited"]) == ([session.jake], True)
    assert await session.previously(session.jake) == ["Jake palmed a key."]
    assert await session.previously(session.kim) == ["Told up to 8."]
    await put("They met.", viewpoint="public")
    assert await session.previously(session.kim) == ["They met."]
    assert await session.previously("gm") == ["Told up to 8."]
    listed = (await session.ada.get(f"/chats/{session.chat}/summaries?viewpoint=public"))["items"]
    assert [each["text"] for each in listed] == ["They met."]
    await session.ada.delete(path, viewpoint=session.jake)
    assert await session.previously(session.jake) == ["They met."]
    for query in ({"viewpoint": "nobody"}, {"viewpoint": session.table.campaign["id"]}):
        for method in ("GET", "PUT", "DELETE"):
            body = {"text": "No."} if method == "PUT" else None
            answer = await session.ada.ask(method, path, params=query, json=body)
            problem(answer, 422, "validation-failed")


async def test_a_limited_message_is_in_no_public_summary(session: Session) -> None:
    await session.begin(hidden_information=True)
    await session.play(range(1, 9), r2=[session.jake])
    lines = await session.ada.messages(session.chat)

    async def limit(place: int, audience: Any) -> None:
        await session.ada.patch(f"/messages/{lines[place]['id']}", {"audience": audience})

    await limit(0, [session.kim])
    assert await session.previously("public") == []
    assert await session.previously(session.jake) == []
    assert await session.previously("gm") == ["Told up to 8."]
    # The next summaries cover these lines again, for each audience separately.
    told = await session.play(range(9, 13))
    jakes, public = list(range(2, 17)), [2, *range(5, 17)]
    assert sorted(told) == sorted([jakes, [1, *public], public])
    for viewpoint in (session.jake, session.kim, "public"):
        assert await session.previously(viewpoint) == ["Told up to 16."]
    assert await session.previously("gm") == ["Told up to 8.", "Told up to 16."]
    # A line that becomes public is added to the public summary.
    await limit(0, "public")
    assert await session.previously("public") == []
    assert await session.previously(session.kim) == ["Told up to 16."]


@pytest.mark.every_database
async def test_a_downgrade_keeps_public_summaries(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, tmp_path) as server, server.account() as ada:
        chat = (await ada.new_chat())["id"]
        lines = await seed(server, ada, chat, ["One.", "Two."])
        sealer, database = (await identity_of(server, ada)).sealer, server.parts.database
        put = {"text": "So far.", "through_message_id": str(lines[0].id)}
        await ada.put(f"/chats/{chat}/summary", put)
        # As written by a version without audiences of summaries.
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


async def test_a_group_with_hidden_information_has_pieces(
    ada: Account, server: Running, table: Table, teller: Storyteller
) -> None:
    await table.change("", settings={"hidden_information": True})
    ids: dict[str, str] = {}
    for name in ("Alda", "Bor"):
        card = await ada.new_character(name=name, first_mes="")
        entity = await table.add("entities", kind="npc", name=name, character_id=card["id"])
        ids |= {name: card["id"], f"{name} of the campaign": entity["id"]}
    chat = (
        await ada.new_chat(
            campaign_id=table.campaign["id"], character_ids=[ids["Alda"], ids["Bor"]]
        )
    )["id"]

    async def play(rounds: range, **body: Any) -> None:
        for number in rounds:
            text = f"Round {number} begins."
            await take_turn(ada, chat, text=text, speaker=ids["Alda"], **body)
            await at_rest(server, chat)

    async def see(name: str, presence: str) -> None:
        path = f"/chats/{chat}/members/{ids[name]}"
        ok(await ada.ask("PATCH", path, json={"presence": presence}))

    async def used(viewpoint: str) -> list[tuple[int, int]]:
        page = await ada.get(f"/chats/{chat}/summaries", viewpoint=viewpoint)
        return sorted(
            (each["from_position"], each["through_position"])
            for each in page["items"]
            if each["is_used"]
        )

    await play(range(1, 5))
    await see("Bor", "absent")
    await play(range(5, 7))
    await play(range(7, 8), audience=[ids["Alda of the campaign"]])
    await see("Bor", "present")
    await play(range(8, 17))
    # Alda and the game master know the private round, and Bor was not there.
    assert await used(ids["Bor"]) == [(0, 7), (15, 23)]
    assert await used(ids["Bor of the campaign"]) == await used(ids["Bor"])
    for viewpoint in ("gm", ids["Alda"], ids["Alda of the campaign"]):
        assert await used(viewpoint) == [(0, 7), (9, 14), (15, 23)]
    private = [each for each in teller.summed_up if "Round 7 begins." in asked(each)]
    assert len(private) == 2
    for viewpoint, knows in (("gm", True), (ids["Alda"], True), (ids["Bor"], False)):
        context = await preview(ada, chat, "Well?", viewpoint=viewpoint)
        [item] = list_summaries(context)
        assert ("Told up to 15." in item["text"]) == knows
    # The rounds before the summaries' end are not in the prompt of anyone.
    for viewpoint in ("gm", ids["Alda"], ids["Bor"]):
        context = await preview(ada, chat, "Well?", viewpoint=viewpoint)
        said = [each["text"] for each in context["prompt"] if "Round" in each["text"]]
        assert said[0].endswith("Round 12 begins.")
