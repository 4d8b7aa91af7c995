"""Events of chats with several characters: audiences, and who knows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from backend.chats.models import Message
from backend.chronicles.event_writer import add_telling
from backend.chronicles.models import Chronicle, ChronicleEvent
from backend.chronicles.repository import SourceMessage
from backend.database.base import now
from tests.integration.chronicles.chroniclers import Chronicler
from tests.integration.turns.seeding import seed
from tests.support.server import Running, ok, problem

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

SECRET = "The lens lies under the stair."


class Stage(Chronicler):
    """A user with a chat of Alda and Bor, and a chronicle for it."""

    people: dict[str, str]
    chat: str
    chronicle: str
    server: Running

    async def set_up(self, server: Running) -> None:
        self.server = server
        self.people = {}
        for name in ("Alda", "Bor"):
            await self.meet(name)
        self.chronicle = await self.new_chronicle()
        self.chat = await self.begin("Alda", "Bor")

    async def meet(self, name: str) -> None:
        self.people[name] = str((await self.account.new_character(name=name))["id"])

    async def begin(self, *names: str) -> str:
        """Begin a chat of these characters with the chronicle."""
        ids = [self.people[each] for each in names]
        chat = str((await self.account.new_chat(character_ids=ids))["id"])
        await self.settle(chat, chronicle_id=self.chronicle)
        return chat

    async def send(self, name: str, presence: str, chat: str | None = None) -> None:
        path = f"/chats/{chat or self.chat}/members/{self.people[name]}"
        ok(await self.ask("PATCH", path, json={"presence": presence}))

    async def tell(self, text: str = "It is said.", chat: str | None = None) -> Message:
        (line,) = await seed(self.server, self.account, chat or self.chat, [text])
        return line

    async def record(self, *lines: Message, **fields: Any) -> dict[str, Any]:
        """Add an event that comes from these messages, as the agent does."""
        made = await self.new_event(
            self.chronicle, fields.pop("summary", SECRET),
            source_message_ids=[str(line.id) for line in lines], **fields,
        )  # fmt: skip
        async with self.server.parts.database.write() as session:
            row = await session.get_one(ChronicleEvent, UUID(made["id"]))
            row.source = "agent"
        return made

    async def tell_again(self, event: dict[str, Any], line: Message, audience: str) -> None:
        """Add a telling to an event, as the agent does."""
        async with self.server.parts.database.write() as session:
            row = await session.get_one(ChronicleEvent, UUID(event["id"]))
            source = SourceMessage(id=line.id, chat_id=line.chat_id, position=line.position)
            await add_telling(session, row, [source], audience)

    async def knowers(self, event: dict[str, Any]) -> list[str]:
        shown = await self.event(event["chronicle_id"], event["id"])
        return self.names(shown["known_to"])

    def names(self, ids: Sequence[str]) -> list[str]:
        return sorted(name for name, each in self.people.items() if each in ids)

    def audience(self, *names: str) -> str:
        return f" {' '.join(self.people[each] for each in names)} "


@pytest.fixture
async def stage(writer: Chronicler, server: Running) -> Stage:
    stage = Stage(writer.account)
    await stage.set_up(server)
    return stage


async def test_a_public_event_is_known_to_those_who_heard_it(stage: Stage) -> None:
    made = await stage.record(await stage.tell())
    assert await stage.knowers(made) == ["Alda", "Bor"]
    await stage.send("Bor", "absent")
    alone = await stage.record(await stage.tell())
    assert await stage.knowers(alone) == ["Alda"]
    await stage.send("Bor", "present")
    assert await stage.knowers(alone) == ["Alda"]
    assert await stage.knowers(made) == ["Alda", "Bor"]


async def test_all_its_messages_must_be_heard(stage: Stage) -> None:
    first = await stage.tell()
    await stage.send("Bor", "absent")
    made = await stage.record(first, await stage.tell())
    assert await stage.knowers(made) == ["Alda"]


async def test_who_joins_later_knows_nothing_from_before(stage: Stage) -> None:
    made = await stage.record(await stage.tell())
    await stage.meet("Dan")
    await stage.send("Dan", "present")
    assert await stage.knowers(made) == ["Alda", "Bor"]
    later = await stage.record(await stage.tell())
    assert await stage.knowers(later) == ["Alda", "Bor", "Dan"]


async def test_events_name_characters_without_a_campaign(stage: Stage) -> None:
    alda = stage.people["Alda"]
    made = await stage.new_event(stage.chronicle, SECRET, audience=[alda])
    assert (made["audience"], made["known_to"]) == ([alda], [alda])
    changed = await stage.change(made, audience=[stage.people["Bor"]])
    assert stage.names(changed["known_to"]) == ["Bor"]
    assert (await stage.change(made, audience="gm"))["known_to"] == []
    assert stage.names((await stage.change(made, audience="public"))["known_to"]) == ["Alda", "Bor"]


async def test_other_characters_are_refused(stage: Stage, stranger: Chronicler) -> None:
    theirs = str((await stranger.account.new_character())["id"])
    await stage.meet("Dan")
    for each in (theirs, stage.people["Dan"]):
        body = {"summary": SECRET, "audience": [each]}
        answer = await stage.ask("POST", f"/chronicles/{stage.chronicle}/events", json=body)
        assert each in problem(answer, 422, "validation-failed")["detail"]
    lonely = await stage.new_chronicle()
    body = {"summary": SECRET, "audience": "gm"}
    problem(
        await stage.ask("POST", f"/chronicles/{lonely}/events", json=body), 422, "validation-failed"
    )


async def test_the_users_audience_needs_no_message(stage: Stage) -> None:
    await stage.send("Bor", "absent")
    made = await stage.record(await stage.tell())
    changed = await stage.change(made, audience=[stage.people["Bor"]])
    assert stage.names(changed["known_to"]) == ["Bor"]


async def test_an_event_told_again_counts_with_either_telling(stage: Stage) -> None:
    await stage.send("Bor", "absent")
    made = await stage.record(await stage.tell(), audience=[stage.people["Alda"]])
    await stage.send("Bor", "present")
    await stage.send("Alda", "absent")
    again = await stage.tell("Told to Bor.")
    await stage.tell_again(made, again, stage.audience("Bor"))
    shown = await stage.event(stage.chronicle, made["id"])
    assert stage.names(shown["audience"]) == ["Alda", "Bor"]
    assert await stage.knowers(made) == ["Alda", "Bor"]
    ok(await stage.ask("DELETE", f"/messages/{again.id}"))
    shown = await stage.event(stage.chronicle, made["id"])
    assert stage.names(shown["audience"]) == ["Alda"]
    assert await stage.knowers(made) == ["Alda"]
    assert shown["is_current"]


async def test_a_message_made_private_limits_its_telling_alone(stage: Stage) -> None:
    await stage.send("Bor", "absent")
    made = await stage.record(await stage.tell(), audience=[stage.people["Alda"]])
    await stage.send("Bor", "present")
    again = await stage.tell("Told to all.")
    await stage.tell_again(made, again, "public")
    assert await stage.knowers(made) == ["Alda", "Bor"]
    await stage.patch(f"/messages/{again.id}", audience="gm")
    shown = await stage.event(stage.chronicle, made["id"])
    assert (stage.names(shown["audience"]), stage.names(shown["known_to"])) == (["Alda"], ["Alda"])


async def test_a_secret_replaces_an_event_only_for_those_who_know_it(stage: Stage) -> None:
    old = await stage.record(await stage.tell(), summary="The lens is in the tower.")
    await stage.send("Bor", "absent")
    alda = stage.people["Alda"]
    new = await stage.record(await stage.tell(), audience=[alda])
    await stage.change(old, superseded_by=new["id"])
    for name, summary in (("Alda", SECRET), ("Bor", "The lens is in the tower.")):
        path = f"/characters/{stage.people[name]}/memories"
        page = await stage.get(path, chat_id=stage.chat)
        assert [each["event"]["summary"] for each in page["items"]] == [summary]


async def test_merged_events_are_for_those_who_know_all_of_them(stage: Stage) -> None:
    first = await stage.record(await stage.tell(), summary="First.")
    await stage.send("Bor", "absent")
    second = await stage.record(await stage.tell(), summary="Second.")
    ids = [first["id"], second["id"]]
    made = await stage.post(f"/chronicles/{stage.chronicle}/events/merge", event_ids=ids)
    assert stage.names(made["audience"]) == ["Alda"]
    assert stage.names(made["known_to"]) == ["Alda"]


async def test_merged_tellings_are_one(stage: Stage) -> None:
    await stage.send("Bor", "absent")
    made = await stage.record(await stage.tell(), audience=[stage.people["Alda"]])
    await stage.send("Bor", "present")
    again = await stage.tell("Told to Bor.")
    await stage.tell_again(made, again, "public")
    other = await stage.record(await stage.tell("All see it."), summary="It shines.")
    ids = [made["id"], other["id"]]
    merged = await stage.post(f"/chronicles/{stage.chronicle}/events/merge", event_ids=ids)
    assert str(again.id) in merged["source_message_ids"]
    assert len(merged["source_message_ids"]) == 2
    assert stage.names(merged["known_to"]) == ["Alda", "Bor"]


async def test_a_copied_chat_keeps_the_tellings_of_its_path(stage: Stage) -> None:
    await stage.send("Bor", "absent")
    told = await stage.tell()
    made = await stage.record(told, audience=[stage.people["Alda"]])
    await stage.send("Bor", "present")
    again = await stage.tell("Told to all.")
    await stage.tell_again(made, again, "public")
    for message, knowers in ((told, ["Alda"]), (again, ["Alda", "Bor"])):
        fork = await stage.post(f"/chats/{stage.chat}/fork", message_id=str(message.id))
        settings = await stage.get(f"/chats/{fork['id']}/settings")
        (copy,) = (await stage.page(settings["chronicle_id"]))["items"]
        assert stage.names(copy["known_to"]) == knowers
        assert copy["audience"] == ([stage.people["Alda"]] if knowers == ["Alda"] else "public")


async def test_a_deleted_chat_leaves_who_was_there(stage: Stage) -> None:
    await stage.meet("Dan")
    other = await stage.begin("Alda", "Dan")
    await stage.send("Bor", "absent")
    made = await stage.record(await stage.tell())
    await stage.account.delete(f"/chats/{stage.chat}")
    shown = await stage.event(stage.chronicle, made["id"])
    assert (shown["is_current"], shown["source_message_ids"]) == (True, [])
    assert stage.names(shown["known_to"]) == ["Alda"]
    assert stage.names(shown["audience"]) == ["Alda"]
    assert (await stage.get(f"/chats/{other}"))["id"] == other


async def test_of_a_deleted_chat_only_its_telling_ends(stage: Stage) -> None:
    other = await stage.begin("Bor")
    await stage.send("Bor", "absent")
    made = await stage.record(await stage.tell(), audience=[stage.people["Alda"]])
    swiped = await stage.tell("Told to Bor.", other)
    kept = await stage.tell("Told once more.")
    await stage.tell_again(made, swiped, stage.audience("Bor"))
    await stage.tell_again(made, kept, stage.audience("Alda"))
    ok(await stage.ask("DELETE", f"/messages/{swiped.id}"))
    await stage.account.delete(f"/chats/{other}")
    shown = await stage.event(stage.chronicle, made["id"])
    assert (shown["is_current"], len(shown["source_message_ids"])) == (True, 2)
    assert stage.names(shown["audience"]) == ["Alda"]


async def test_events_of_a_chronicle_that_is_being_deleted_stay_as_they_are(stage: Stage) -> None:
    await stage.send("Bor", "absent")
    heard, ended = await stage.tell(), await stage.tell()
    made = {(await stage.record(each))["id"] for each in (heard, ended)}
    query = select(ChronicleEvent.id, ChronicleEvent.audience, ChronicleEvent.revision)
    query = query.where(ChronicleEvent.chronicle_id == UUID(stage.chronicle)).order_by("id")
    hidden = update(Chronicle).where(Chronicle.id == UUID(stage.chronicle))
    async with stage.server.parts.database.write() as session:
        before = (await session.execute(query)).all()
        await session.execute(hidden.values(deleted_at=now()))
        inactive = update(Message).where(Message.id == ended.id)
        await session.execute(inactive.values(is_active=False))
    assert {str(row.id) for row in before} == made
    await stage.account.delete(f"/chats/{stage.chat}")
    async with stage.server.parts.database.read() as session:
        assert (await session.execute(query)).all() == before


async def test_a_file_contains_all_tellings(stage: Stage) -> None:
    told = await stage.tell()
    made = await stage.record(told, audience=[stage.people["Alda"]])
    again = await stage.tell("Told to all.")
    await stage.tell_again(made, again, "public")
    file = ok(await stage.ask("GET", f"/chronicles/{stage.chronicle}/export"))
    (record,) = file["events"]
    assert record["source_message_ids"] == [str(told.id)]
    assert record["told_again"] == [[str(again.id)]]
    answer = await stage.account.client.post(
        "/api/v1/chronicles/import", files={"file": ("c.json", json.dumps(file))}
    )
    (copy,) = (await stage.page(ok(answer, 201)["chronicle_id"]))["items"]
    assert copy["source_message_ids"] == [str(told.id), str(again.id)]
    ok(await stage.ask("DELETE", f"/messages/{again.id}"))
    assert (await stage.event(copy["chronicle_id"], copy["id"]))["is_current"]
