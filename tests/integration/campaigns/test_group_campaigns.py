"""Campaigns of groups: what a character knows that was away, and what it thinks of others."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.integration.campaigns.seagate import Table, new_table
from tests.integration.campaigns.test_audience import ASKED, NEVER, Planted, read_chronicle_id
from tests.support.memory import preview, search, set_chat, settled, take_turn
from tests.support.memory import remembering_server as server
from tests.support.server import Account, Running, ok, problem
from tests.support.shared import vendor as model

__all__ = ["model", "server"]

pytestmark = [pytest.mark.anyio]

TOPIC = "obsidian ledger"


class AtMessage(Table):
    """A campaign whose new items belong to a message."""

    message_id = ""

    async def add(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        return await super().add(f"{kind}?message_id={self.message_id}", **fields)

    async def change(self, path: str, **fields: Any) -> dict[str, Any]:
        return await super().change(f"{path}?message_id={self.message_id}", **fields)


@dataclass
class Ensemble:
    """A chat of Alda and Bor in a campaign, in which entities have their names."""

    ada: Account
    table: Table
    chat: str
    alda: str
    bor: str
    people: dict[str, str]
    shop: str

    async def set_presence(self, character: str, presence: str) -> None:
        path = f"/chats/{self.chat}/members/{character}"
        await self.ada.patch(path, {"presence": presence})

    def at(self, message_id: str) -> AtMessage:
        table = AtMessage(self.ada, self.table.campaign)
        table.message_id = message_id
        return table


async def gather(ada: Account, *, with_bor: bool = True) -> Ensemble:
    """Open the chat. Without Bor, he may join later."""
    table = await new_table(ada, settings={"summaries": False})
    shop = (await table.add("entities", kind="location", name="The Salty Sigil"))["id"]
    people = {
        name: (await table.add("entities", kind=kind, name=name, location_id=shop))["id"]
        for name, kind in (("Jake", "pc"), ("Alda", "npc"), ("Bor", "npc"))
    }
    alda, bor = [
        str((await ada.new_character(name=name, first_mes="", description=f"{name}."))["id"])
        for name in ("Alda", "Bor")
    ]
    members = [alda, bor] if with_bor else [alda]
    chat = await ada.new_chat(campaign_id=table.campaign["id"], character_ids=members)
    await set_chat(ada, chat["id"], memory={"min_relevance": 0})
    return Ensemble(ada, table, str(chat["id"]), alda, bor, people, shop)


@pytest.fixture
async def group(ada: Account) -> Ensemble:
    return await gather(ada)


async def plant(group: Ensemble, message_id: str) -> Planted:
    """Add public items of every kind that were learned from a message."""
    planted = Planted("awayq", "public", TOPIC)
    await planted.items(group.at(message_id), group.shop, group.people["Alda"])
    return planted


async def look(
    group: Ensemble, model: OpenAIServer, server: Running, viewpoint: str, speaker: str | None
) -> str:
    """Return everything that a viewpoint sees: previews, search, state, files, prompts."""
    ada, asked = group.ada, len(model.requests)
    await settled(server)
    seen: list[Any] = [
        await preview(ada, group.chat, text, viewpoint=viewpoint)
        for text in (None, ASKED, "continue", "Alda looks at awayqwanderer.")
    ]
    seen.append(
        await group.table.get("/context", chat_id=group.chat, text=ASKED, viewpoint=viewpoint)
    )
    seen.append(await group.table.get("/state", viewpoint=viewpoint))
    seen.append(await search(ada, ASKED, viewpoint=viewpoint, chat_id=group.chat, limit=100))
    file = await ada.ask(
        "GET", f"{group.table.path}/export", params={"format": "json", "viewpoint": viewpoint}
    )
    seen.append(sorted(read_zip(file.content).items()))
    if speaker is not None:
        for text in ("And now?", "Next"):
            await take_turn(ada, group.chat, text=text, speaker=speaker)
    prompts = [each.body for each in model.requests[asked:] if "messages" in each.body]
    return json.dumps([*seen, prompts], default=str)


def read_zip(data: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.mark.every_database
async def test_changes_are_unknown_to_a_member_that_was_away(
    group: Ensemble, server: Running, model: OpenAIServer
) -> None:
    table, ada = group.table, group.ada
    thread = await table.add(
        "threads", title="The bridge", summary="It is olden.", tension="urgent"
    )
    fact = await table.add("facts", text="The gate is olden.", about_id=group.people["Alda"])
    await table.change(f"/entities/{group.people['Jake']}", attributes={"hp": 9, "oath": "olden"})
    await take_turn(ada, group.chat, text="We talk about the weather.", speaker=group.alda)
    await group.set_presence(group.bor, "absent")
    away = await take_turn(ada, group.chat, text="He is gone.", speaker=group.alda)
    planted = await plant(group, away)
    later = group.at(away)
    await later.change(f"/threads/{thread['id']}", summary=planted.mark("changed_summary"))
    await later.change(f"/facts/{fact['id']}", text=planted.mark("changed_fact"))
    await later.change(
        f"/entities/{group.people['Jake']}",
        attributes={"hp": 4, "oath": planted.mark("changed_oath")},
    )
    await later.change(
        f"/entities/{group.people['Alda']}", description=planted.mark("changed_person")
    )
    await group.set_presence(group.bor, "present")
    every = set(planted.markers) - NEVER
    changed = {each for each in every if each.startswith("changed")}
    for_bor = await look(group, model, server, group.bor, group.bor)
    assert planted.found(for_bor) == set()
    # He knows how things were, and sees who is hurt.
    for words in ("It is olden.", "The gate is olden.", "oath: olden", "HP 4"):
        assert words in for_bor, words
    assert "HP 9" not in for_bor
    for_alda = await look(group, model, server, group.alda, group.alda)
    assert (every | changed) - planted.found(for_alda) == set()
    assert "oath: olden" not in for_alda
    assert every - planted.found(await look(group, model, server, "gm", None)) == set()
    # An entity that a member plays knows what the member knows.
    entity = group.people["Bor"]
    assert planted.found(await look(group, model, server, entity, None)) == set()


async def test_a_member_that_joins_later_knows_what_was_written_by_hand(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    group = await gather(ada, with_bor=False)
    by_hand = Planted("handq", "public", TOPIC)
    await by_hand.items(group.table, group.shop, group.people["Alda"])
    told = await take_turn(ada, group.chat, text="We talk about the weather.")
    planted = await plant(group, told)
    for_others = Planted("aldaq", [group.people["Alda"]], TOPIC)
    await for_others.items(group.table, group.shop, group.people["Alda"])
    for_him = Planted("borq", [group.bor], TOPIC)
    await for_him.items(group.at(told), group.shop, group.people["Alda"])
    await group.set_presence(group.bor, "present")
    for_bor = await look(group, model, server, group.bor, group.bor)
    assert planted.found(for_bor) == for_others.found(for_bor) == set()
    # The audience of an item decides if it is limited, even for what was said before he came.
    for known in (by_hand, for_him):
        assert set(known.markers) - NEVER - known.found(for_bor) == set()


async def test_a_chat_can_join_the_campaign_later(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    group = await gather(ada)
    chat = await ada.new_chat(character_ids=[group.alda, group.bor])
    group.chat = str(chat["id"])
    await take_turn(ada, group.chat, text="whisperq for Bor.", audience=[group.bor])
    await group.set_presence(group.bor, "absent")
    await take_turn(ada, group.chat, text="awayq is said.", speaker=group.alda)
    await group.set_presence(group.bor, "present")
    await ada.patch(f"/chats/{group.chat}", {"campaign_id": group.table.campaign["id"]})
    for viewpoint in (group.bor, group.people["Bor"]):
        seen = json.dumps(await preview(ada, group.chat, "Well?", viewpoint=viewpoint))
        assert ("whisperq" in seen, "awayq" in seen) == (True, False)
    for viewpoint in (group.alda, group.people["Alda"]):
        seen = json.dumps(await preview(ada, group.chat, "Well?", viewpoint=viewpoint))
        assert ("whisperq" in seen, "awayq" in seen) == (False, True)


async def test_a_prompt_has_what_the_speaker_thinks_of_the_others(
    group: Ensemble, model: OpenAIServer
) -> None:
    people, ada = group.people, group.ada
    for one, other, score, note in (
        ("Alda", "Bor", -50, "aldaq knows that he steals."),
        ("Alda", "Jake", 80, "aldaq would follow him."),
        ("Bor", "Alda", 45, "borq admires her."),
    ):
        await group.table.add(
            "relations", from_id=people[one], to_id=people[other], score=score, note=note
        )
    hidden = await group.table.add(
        "relations", from_id=people["Bor"], to_id=people["Jake"], note="gmq", audience="gm"
    )
    seen: dict[str, str] = {}
    for speaker, name in ((group.alda, "Alda"), (group.bor, "Bor"), (group.alda, "Alda again")):
        await take_turn(ada, group.chat, text="Well?", speaker=speaker)
        seen[name] = json.dumps(model.requests[-1].body, ensure_ascii=False)
    for each in ("Alda", "Alda again"):
        assert "- **Bor**: hostile. aldaq knows that he steals." in seen[each]
        assert "- **Jake**: devoted. aldaq would follow him." in seen[each]
        assert "borq" not in seen[each]
    # Nothing has changed for her, although Bor was shown the full block in between.
    assert "## SESSION CONTEXT" in seen["Alda"]
    assert "## SESSION CONTEXT" in seen["Bor"]
    assert "## SESSION CONTEXT" not in seen["Alda again"]
    assert "- **Alda**: ally. borq admires her." in seen["Bor"]
    assert "aldaq" not in seen["Bor"]
    assert "gmq" not in json.dumps(seen)
    narrator = json.dumps(await preview(ada, group.chat, "Well?", viewpoint="gm"))
    assert not any(each in narrator for each in ("aldaq", "borq", hidden["note"]))


async def test_who_is_away_is_not_thought_of(group: Ensemble) -> None:
    people = group.people
    await group.table.add(
        "relations", from_id=people["Alda"], to_id=people["Bor"], score=50, note="thoughtq"
    )
    for name in ("Alda", "Bor"):
        await group.table.change(f"/entities/{people[name]}", location_id=None)

    async def has_thought() -> bool:
        seen = await preview(group.ada, group.chat, "Well?", viewpoint=group.alda)
        return "thoughtq" in json.dumps(seen)

    assert await has_thought()
    await group.set_presence(group.bor, "absent")
    assert not await has_thought()


async def test_an_entity_names_the_card_that_plays_it(ada: Account, group: Ensemble) -> None:
    table, people = group.table, group.people
    captain = await table.add(
        "entities", kind="npc", name="The Captain", location_id=group.shop, character_id=group.bor
    )
    assert captain["character_id"] == group.bor
    for entity, text in ((captain["id"], "captainq"), (people["Bor"], "borq")):
        await table.add("facts", text=text, about_id=entity, audience=[entity])

    async def look_as_bor() -> list[str]:
        seen = json.dumps(await preview(ada, group.chat, "Well?", viewpoint=group.bor))
        return [each for each in ("captainq", "borq") if each in seen]

    # A link comes before a name.
    assert await look_as_bor() == ["captainq"]
    await table.change(f"/entities/{captain['id']}", character_id=None)
    assert await look_as_bor() == ["borq"]
    await table.change(f"/entities/{captain['id']}", name="BOR")
    assert await look_as_bor() == ["captainq", "borq"]


async def test_items_name_characters_of_the_user(ada: Account, group: Ensemble) -> None:
    table, people = group.table, group.people
    path = f"/entities/{people['Bor']}"
    for unknown in (str(uuid4()), group.chat):
        answer = await table.ask("PATCH", path, json={"character_id": unknown})
        problem(answer, 422, "validation-failed")
    other = (await ada.new_character(name="Cyd"))["id"]
    ok(await table.ask("PATCH", path, json={"character_id": other}))
    await ada.delete(f"/characters/{other}")
    # Other fields can still be changed.
    assert (await table.change(path, status="well"))["character_id"] == other
    assert (await table.change(path, character_id=None))["character_id"] is None
    named = await table.add("facts", text="It is his.", audience=[group.bor, people["Bor"]])
    assert named["audience"] == [group.bor, people["Bor"]]
    changed = await table.change(f"/facts/{named['id']}", text="It was his.")
    assert changed["audience"] == [group.bor, people["Bor"]]
    answer = await table.ask("POST", "/facts", json={"text": "No.", "audience": [str(uuid4())]})
    problem(answer, 422, "validation-failed")


@pytest.mark.parametrize("file_format", ["json", "vault"])
async def test_files_keep_characters_that_the_account_has(
    ada: Account, group: Ensemble, file_format: str
) -> None:
    table, bor = group.table, group.bor
    gone = (await ada.new_character(name="Cyd"))["id"]
    await table.change(f"/entities/{group.people['Bor']}", character_id=bor)
    await table.change(f"/entities/{group.people['Alda']}", character_id=gone)
    await table.add("facts", text="For Bor.", audience=[bor, gone])
    await table.add("facts", text="For Cyd.", audience=[gone])
    await take_turn(ada, group.chat, text="Psst.", audience=[bor])
    await ada.delete(f"/characters/{gone}")
    file = await ada.ask("GET", f"{table.path}/export", params={"format": file_format})
    answer = await ada.ask(
        "POST", "/campaigns/import", files={"file": ("a.zip", file.content, "application/zip")}
    )
    made = Table(ada, ok(answer, 201))
    entities = {each["name"]: each["character_id"] for each in await made.items("entities")}
    assert (entities["Bor"], entities["Alda"]) == (bor, None)
    facts = {each["text"]: each["audience"] for each in await made.items("facts")}
    # A vault names entities only, so that what it cannot name is nobody's.
    assert facts["For Bor."] == ([bor] if file_format == "json" else "gm")
    assert facts["For Cyd."] == "gm"
    if file_format == "json":
        [chat] = (await made.get())["chat_ids"]
        lines = await ada.messages(chat)
        assert [line["audience"] for line in lines] == [[bor], [bor]]


async def test_a_copy_of_a_world_keeps_characters(ada: Account, group: Ensemble) -> None:
    table, bor = group.table, group.bor
    await table.change(f"/entities/{group.people['Bor']}", character_id=bor)
    await table.add("facts", text="For Bor.", audience=[bor, group.people["Bor"]])
    said = await take_turn(ada, group.chat, text="Psst.", audience=[bor])
    body = {"message_id": said, "world": "copy"}
    fork = await ada.post(f"/chats/{group.chat}/fork", body, 201)
    copy = Table(ada, await ada.get(f"/campaigns/{fork['campaign_id']}"))
    [entity] = [each for each in await copy.items("entities") if each["name"] == "Bor"]
    assert (entity["character_id"], entity["id"] == group.people["Bor"]) == (bor, False)
    [fact] = await copy.items("facts")
    assert fact["audience"] == [bor, entity["id"]]
    assert [line["audience"] for line in await ada.messages(fork["id"])] == [[bor], [bor]]


async def test_a_public_event_of_a_campaign_is_known_to_members(
    group: Ensemble, server: Running, model: OpenAIServer
) -> None:
    chronicle = await read_chronicle_id(group.ada, group.chat)
    path = f"/chronicles/{chronicle}/events"
    await group.ada.post(path, {"summary": f"handq {TOPIC}"}, 201)
    assert "handq" in await look(group, model, server, group.bor, None)
