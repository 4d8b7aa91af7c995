"""Campaign items in the search index."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.campaigns.state.index_source import CampaignSource
from backend.jobs.models import Job
from tests.integration.campaigns.seagate import Table, new_session, new_table
from tests.integration.turns.seeding import identity_of
from tests.support.memory import (
    MODEL_FOLDER,
    context_of,
    points_of,
    preview,
    reconcile,
    remembered,
    remembering,
    search,
    set_chat,
    settled,
    take_turn,
)
from tests.support.server import Account, Running, ok, problem

pytestmark = [pytest.mark.anyio]

SECRET = "(secret: game master only)"


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    async with remembering(shared_url, tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
async def table(ada: Account) -> Table:
    return await new_table(ada)


async def found(table: Table, words: str, **query: Any) -> list[str]:
    """Return titles and texts of items that contain one of the words."""
    items = await search(table.account, words, sources="campaign", **query)
    return [f"{each['title']}: {each['text']}" for each in items if "sparse" in each["scores"]]


def said(texts: Iterable[str], part: str) -> bool:
    return any(part in text for text in texts)


@pytest.mark.every_database
async def test_current_items_are_found_by_their_words(table: Table, server: Running) -> None:
    holt = await table.add(
        "entities", kind="npc", name="Inspector Holt", aliases=["Bloodhound"], role="inspector",
        attributes={"inventory": ["a cracked monocle"], "hp": 7},
    )  # fmt: skip
    fact = await table.add("facts", text="The harbour freezes in Frostfall.", about_id=holt["id"])
    await table.add("threads", title="The Fading Muffle", summary="Bells lose their clappers.")
    chat = await new_session(table)
    await settled(server)
    assert said(await found(table, "bloodhound"), "Inspector Holt: npc, inspector, active")
    assert said(await found(table, "monocle", chat_id=chat), "a cracked monocle")
    assert said(await found(table, "clappers"), "The Fading Muffle: Storyline, open")
    assert await found(table, "frostfall") == ["Inspector Holt: The harbour freezes in Frostfall."]

    newer = await table.add("facts", text="The harbour is open all year round.")
    await table.change(f"/facts/{fact['id']}", superseded_by=newer["id"])
    assert await found(table, "frostfall") == []  # before the index is updated, too
    await settled(server)
    assert await found(table, "frostfall") == []
    points = await points_of(
        server.parts.memory.collections.current, UUID(table.account.user["id"])
    )
    assert UUID(fact["id"]) not in {point.source_id for point in points}

    change = (await table.get("/changes", limit=1))["items"][0]
    ok(await table.ask("POST", f"/changes/{change['id']}/undo"))
    await settled(server)
    assert said(await found(table, "frostfall"), "Frostfall")
    await table.delete(f"/entities/{holt['id']}")
    assert await found(table, "bloodhound") == []
    assert await found(table, "frostfall") == [": The harbour freezes in Frostfall."]


async def test_an_entity_shows_its_place_and_facts(table: Table, server: Running) -> None:
    vault = await table.add("entities", kind="location", name="The Vault", audience="gm")
    holt = await table.add(
        "entities", kind="npc", name="Holt", role="bloodhound", location_id=vault["id"]
    )
    await table.add("facts", text="He limps since the flood.", about_id=holt["id"])
    await table.add("facts", text="He is the thief.", about_id=holt["id"], audience="gm")
    await settled(server)
    (all_of_it,) = await found(table, "bloodhound")
    assert all_of_it == (
        f"Holt: npc, bloodhound, active, at {SECRET} The Vault\n"
        f"He limps since the flood.\n{SECRET} He is the thief."
    )
    (public,) = await found(table, "bloodhound", viewpoint="public")
    assert public == "Holt: npc, bloodhound, active\nHe limps since the flood."


@pytest.mark.every_database
async def test_closed_scenes_and_chapters_are_found(table: Table, server: Running) -> None:
    over = await table.add(
        "scenes", title="The mill", summary="They burned the windmill.", key_moments=["A spark."]
    )
    secret = await table.add(
        "chapters", title="The fire", summary="The windmill was Holt's.", audience="gm"
    )
    chat = await new_session(table)
    await settled(server)
    assert await found(table, "windmill") == ["The fire: Chapter\nThe windmill was Holt's."]
    await table.change(f"/scenes/{over['id']}", status="closed")
    await settled(server)
    scene = "The mill: Scene, over\nThey burned the windmill.\nA spark."
    assert scene in await found(table, "windmill")
    assert await found(table, "windmill", viewpoint="public") == [scene]
    # Memories do not repeat the scenes and chapters of the prompt.
    context = await preview(table.account, chat, "Who burned the windmill?")
    assert remembered(context, "campaign") == []
    await table.change("", settings={"chapter_tokens": 0})
    for number in range(4):
        await table.add("scenes", title=f"No {number}", summary="Nothing.", status="closed")
    await settled(server)
    context = await preview(table.account, chat, "Who burned the windmill?")
    assert set(remembered(context, "campaign")) >= {
        scene, f"{SECRET} The fire: Chapter\nThe windmill was Holt's."
    }  # fmt: skip
    await table.change(f"/scenes/{over['id']}", status="open")
    assert await found(table, "spark") == []
    await table.delete(f"/chapters/{secret['id']}")
    assert await found(table, "windmill") == []
    await settled(server)
    await reconcile(server)
    await settled(server)
    assert await found(table, "windmill") == []


async def test_a_chapter_without_room_is_found(table: Table, server: Running) -> None:
    await table.add("chapters", title="The fire", summary="They burned the windmill. " * 20)
    await table.add("chapters", title="The flood", summary="They drowned the windmill.")
    await table.change("", settings={"chapter_tokens": 60})
    chat = await new_session(table)
    await settled(server)
    context = await preview(table.account, chat, "Who burned the windmill?")
    (told,) = [each["text"] for each in context["items"] if each["kind"] == "chapters"]
    assert ("flood" in told, "fire" in told) == (True, False)
    (text,) = remembered(context, "campaign")
    assert text.startswith("The fire: Chapter\nThey burned the windmill.")


async def test_a_beat_of_a_scene_makes_no_index_jobs(table: Table, server: Running) -> None:
    await table.add("scenes", title="The mill")
    chat = await new_session(table)
    await settled(server)
    jobs = select(Job.id).where(Job.lane == UUID(table.campaign["id"]))
    async with server.parts.database.read() as session:
        before = set(await session.scalars(jobs))
    await table.account.turn(chat, text="On.")
    async with server.parts.database.read() as session:
        after = set(await session.scalars(jobs))
    assert after <= before


async def test_reconciling_keeps_points_until_deletion(table: Table, server: Running) -> None:
    old = await table.add("facts", text="The bridge stands.")
    new = await table.add("facts", text="The bridge has fallen.")
    await table.change(f"/facts/{old['id']}", superseded_by=new["id"])
    await table.add("entities", kind="location", name="Sunfall Hills")
    await settled(server)
    index, owner = server.parts.memory.collections.current, UUID(table.account.user["id"])

    async def campaign_points() -> dict[UUID, int]:
        points = await points_of(index, owner)
        return {each.source_id: each.version for each in points if each.kind == "campaign"}

    before = await campaign_points()
    assert len(before) == 2
    await reconcile(server)
    await settled(server)
    assert await campaign_points() == before
    await index.delete_container(owner, UUID(table.campaign["id"]))
    await reconcile(server)
    await settled(server)
    assert await campaign_points() == before
    await table.delete()
    await settled(server)
    assert await campaign_points() == {}


async def test_a_search_respects_the_viewpoint(table: Table, server: Running) -> None:
    jake = (await table.add("entities", kind="pc", name="Jake"))["id"]
    holt = (await table.add("entities", kind="npc", name="Holt", audience="gm"))["id"]
    await table.add("facts", text="The vault code is 7734.", audience="gm", about_id=holt)
    await table.add("facts", text="The vault door is blue.", audience=[jake], about_id=holt)
    await table.add("facts", text="The vault is below the bank.", about_id=holt)
    await settled(server)
    gm = [
        f"{SECRET} Holt: The vault door is blue.",
        f"{SECRET} Holt: The vault is below the bank.",
        "Holt: The vault code is 7734.",
    ]
    assert sorted(await found(table, "vault")) == gm
    assert sorted(await found(table, "vault", viewpoint=jake)) == [
        ": The vault door is blue.",
        ": The vault is below the bank.",
    ]
    assert await found(table, "vault", viewpoint="public") == [": The vault is below the bank."]
    assert await found(table, "holt", viewpoint="public") == []
    chat = await new_session(table)
    plain = str((await table.account.new_chat())["id"])
    assert len(await found(table, "vault", viewpoint=jake, chat_id=chat)) == 2
    for query in ({"viewpoint": "nobody"}, {"viewpoint": jake, "chat_id": plain},
                  {"viewpoint": chat}):  # fmt: skip
        answer = await table.account.ask("GET", "/search", params={"q": "vault", **query})
        problem(answer, 422, "validation-failed")


async def test_memories_do_not_repeat_the_state_block(table: Table, server: Running) -> None:
    shop = await table.add("entities", kind="location", name="The Salty Sigil")
    await table.add("entities", kind="pc", name="Jake", location_id=shop["id"])
    await table.add("facts", text="The sigil on the door glows at dusk.", about_id=shop["id"])
    far = await table.add("entities", kind="location", name="Sunfall Hills")
    await table.add("facts", text="A sigil stone stands at dusk hill.", about_id=far["id"])
    chat = await new_session(table)
    await settled(server)
    context = await preview(table.account, chat, "Where does a sigil glow on the door at dusk?")
    whole = "\n".join(message["text"] for message in context["prompt"])
    assert whole.count("The sigil on the door glows at dusk.") == 1
    assert remembered(context, "campaign") == ["Sunfall Hills: A sigil stone stands at dusk hill."]


async def test_an_old_line_comes_with_its_consequences(table: Table, server: Running) -> None:
    chat = await new_session(table)
    await table.change("", settings={"summaries": False})
    reply = await take_turn(table.account, chat, text="The drawbridge of Marrow is down.")
    made = await table.ask("POST", f"/facts?message_id={reply}", json={"text": "One can cross."})
    fact = ok(made, 201)["id"]
    steps = ["Then it was raised.", "In the end the flood took it."]
    for step in steps:
        reply = await take_turn(table.account, chat, text="/demo long 200 we ride on")
        made = await table.ask("POST", f"/facts?message_id={reply}", json={"text": step})
        newer = {"superseded_by": ok(made, 201)["id"]}
        ok(await table.ask("PATCH", f"/facts/{fact}?message_id={reply}", json=newer))
        fact = newer["superseded_by"]
    await settled(server)
    await set_chat(table.account, chat, budgets={"history": 200})

    context = await preview(table.account, chat, "Is the drawbridge of Marrow down?")
    assert said(remembered(context), "drawbridge of Marrow is down")
    (became,) = [item for item in context["retrieved"] if item["kind"] == "campaign"]
    assert became["text"] == "In the end the flood took it."
    assert became["reasons"][0]["kind"] == "followed"
    told = context["prompt"][-2]["text"]
    assert told.index("the flood took it") < told.index("drawbridge of Marrow is down")


async def test_a_line_its_event_and_its_fact_share_one_place(table: Table, server: Running) -> None:
    ada = table.account
    chat = await new_session(table)
    await table.change("", settings={"summaries": False})
    await take_turn(ada, chat, text="Down is the old drawbridge of Marrow!")
    line = (await ada.messages(chat))[-2]
    text = "The old drawbridge of Marrow is down."
    made = await table.ask("POST", f"/facts?message_id={line['id']}", json={"text": text})
    fact = ok(made, 201)["id"]
    chronicle = (await ada.post("/chronicles", {"name": "Marrow"}, 201))["id"]
    await set_chat(ada, chat, chronicle_id=chronicle)
    told = "The old drawbridge of Marrow is down again."
    body = {"summary": told, "source_message_ids": [line["id"]]}
    event = (await ada.post(f"/chronicles/{chronicle}/events", body, 201))["id"]
    for _ in range(2):
        await take_turn(ada, chat, text="/demo long 200 we ride on")
    await settled(server)
    await set_chat(ada, chat, budgets={"history": 200})
    question = "Is the drawbridge of Marrow down?"

    def places(context: dict[str, Any]) -> tuple[set[str], dict[str, dict[str, Any]]]:
        """Return the kinds of found rows, and the reasons of those that gave their place."""
        left = {
            each["kind"]: each["reasons"][0]
            for each in context["left_out"]
            if each["reasons"][0]["kind"] == "same_evidence"
        }
        rows = {fact, event, line["id"]}
        about = [each for each in context["retrieved"] if each.get("source_id") in rows]
        return {each["kind"] for each in about}, left

    reply = await take_turn(ada, chat, text=question)
    kinds, left = places(await context_of(ada, reply))
    assert (kinds, set(left)) == ({"campaign"}, {"event", "memory"})
    assert left["memory"] == {
        "kind": "same_evidence",
        "winner": text,
        "source_id": fact,
        "because": "current",
    }
    assert left["event"] == {**left["memory"], "because": "shorter"}

    ok(await table.ask("DELETE", f"/facts/{fact}"), 204)
    await settled(server)
    kinds, left = places(await preview(ada, chat, question))
    assert (kinds, set(left)) == ({"event"}, {"memory"})
    assert (left["memory"]["source_id"], left["memory"]["because"]) == (event, "current")

    await ada.delete(f"/chronicles/{chronicle}/events/{event}")
    await settled(server)
    assert places(await preview(ada, chat, question)) == ({"memory"}, {})


async def test_a_fact_knows_its_source_lines(table: Table, server: Running) -> None:
    chat = await new_session(table)
    reply = await take_turn(table.account, chat, text="The drawbridge of Marrow is down.")
    made = await table.ask("POST", f"/facts?message_id={reply}", json={"text": "One can cross."})
    fact = UUID(ok(made, 201)["id"])
    sealer = (await identity_of(server, table.account)).sealer
    async with server.parts.database.read() as session:
        [found] = (await CampaignSource().recall(session, sealer, [fact])).values()
    assert [(each.message_id, each.chat_id) for each in found.origins] == [
        (UUID(reply), UUID(chat))
    ]


async def test_a_fact_of_round_3_is_found_later(
    sqlite_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not (MODEL_FOLDER / "model.onnx").is_file():
        pytest.skip("there is no embedding model on this machine")
    settings = {"embedder": "local", "embedding_model_path": MODEL_FOLDER}
    folder = tmp_path_factory.mktemp("data")
    async with remembering(sqlite_url, folder, **settings) as server, server.account() as ada:
        table = await new_table(ada)
        chat = await new_session(table)
        for number in range(13):
            await take_turn(ada, chat, text=f"/demo long 12 the rain falls on roof {number}")
            if number == 2:
                await table.add("facts", text="The lighthouse keeper is terrified of dogs.")
                wren = await table.add("entities", kind="npc", name="Widow Wren")
                await table.add("facts", text="Her boat is called Patience.", about_id=wren["id"])
        await settled(server)
        fact = "The lighthouse keeper is terrified of dogs."
        by_name = await preview(ada, chat, "What do I know about the lighthouse keeper?")
        assert fact in "\n".join(remembered(by_name, "campaign"))
        paraphrase = "How would the man who tends the beacon react if a hound ran up to him?"
        assert fact in "\n".join(remembered(await preview(ada, chat, paraphrase), "campaign"))
        unrelated = await preview(ada, chat, "I count the coins in my purse.")
        assert fact not in "\n".join(remembered(unrelated, "campaign"))
