"""Summaries of groups: pieces between changes of presence, and drafts of briefings."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import pytest

from backend.chats.models import Message
from tests.fakes.openai_server import error, reply, usage
from tests.fakes.scripted_server import Answer, Request
from tests.integration.enrichment.storytelling import (
    Storyteller,
    asked,
    at_rest,
    is_summing_up,
    list_numbers,
    list_summaries,
    load_runs,
    read_previous,
)
from tests.integration.turns.seeding import seed
from tests.support.memory import preview, set_chat, take_turn
from tests.support.server import Account, Running, ok, problem
from tests.support.shared import asking_server as server

__all__ = ["server"]

pytestmark = pytest.mark.anyio

SECRET = re.compile(r"secret-\w+")
TICK = "The clock in the hall went on and on, and nobody minded it any more, for it rained."
SMALL = {"history": 400}
"""Fewer than thirty lines."""


class Gossip(Storyteller):
    """Writes summaries and briefings that repeat all secrets of the request."""

    def usual(self, request: Request) -> Answer:
        if is_briefing(request):
            return reply(f"You missed: {list_secrets(asked(request))}", used=usage(50, 5))
        if not is_summing_up(request) or self.summing_up:
            return super().usual(request)
        numbers = list_numbers(request)
        told = f"Told {numbers[0]} to {numbers[-1]}" if numbers else "Told in short"
        return reply(f"{told}: {list_secrets(asked(request))}.", used=usage(100, 10))

    @property
    def briefings(self) -> list[Request]:
        return [request for request in self.requests if is_briefing(request)]


def is_briefing(request: Request) -> bool:
    return bool(request.body["messages"][0]["content"].startswith("Task: briefing"))


def list_secrets(text: str) -> str:
    return " ".join(dict.fromkeys(SECRET.findall(text)))


@pytest.fixture(scope="module")
async def vendor() -> AsyncGenerator[Gossip]:
    async with Gossip() as vendor:
        yield vendor


@pytest.fixture
def teller(vendor: Gossip) -> Gossip:
    vendor.requests.clear()
    vendor.summing_up.clear()
    return vendor


class Room:
    """A chat with characters that come and go."""

    def __init__(self, server: Running, ada: Account, teller: Gossip) -> None:
        self.server, self.ada, self.teller = server, ada, teller
        self.chat = ""
        self.ids: dict[str, str] = {}

    async def open(self, *names: str, **more: Any) -> None:
        for name in names:
            await self.add(name)
        members = [self.ids[name] for name in names]
        self.chat = (await self.ada.new_chat(character_ids=members, **more))["id"]
        summary = {"enabled": True, "interval": 4, "words": 60}
        await set_chat(self.ada, self.chat, budgets=SMALL, summary=summary)

    async def add(self, name: str) -> None:
        made = await self.ada.new_character(name=name, first_mes="")
        self.ids[name] = made["id"]

    async def set_presence(self, name: str, presence: str, **more: Any) -> None:
        path = f"/chats/{self.chat}/members/{self.ids[name]}"
        ok(await self.ada.ask("PATCH", path, json={"presence": presence, **more}))

    async def leave(self, name: str) -> None:
        await self.set_presence(name, "absent")

    async def enter(self, name: str, **more: Any) -> None:
        await self.set_presence(name, "present", **more)

    async def talk(self, count: int, secret: str = "") -> list[Message]:
        """Add lines, the second of them with a secret."""
        texts = [f"{secret} {TICK}" if place == 1 else TICK for place in range(count)]
        return await seed(self.server, self.ada, self.chat, texts)

    async def whisper(self, count: int, to: str, secret: str) -> None:
        for line in await self.talk(count, secret):
            await self.ada.patch(f"/messages/{line.id}", {"audience": [self.ids[to]]})

    async def summarise(self, speaker: str = "Alda") -> str:
        """Take a turn, after which the summary is written. Returns the reply's id."""
        body = {"text": TICK, "speaker": self.ids[speaker]}
        reply_id = await take_turn(self.ada, self.chat, **body)
        await at_rest(self.server, self.chat)
        return reply_id

    def read_as(self, viewpoint: str) -> str:
        return self.ids.get(viewpoint, viewpoint)

    async def previously(self, viewpoint: str) -> str:
        """Return the summary in a prompt; empty without one."""
        context = await self.preview(viewpoint)
        return "\n".join(item["text"] for item in list_summaries(context))

    async def preview(self, viewpoint: str) -> dict[str, Any]:
        return await preview(self.ada, self.chat, "Well?", viewpoint=self.read_as(viewpoint))

    async def pieces(self, viewpoint: str = "gm") -> list[dict[str, Any]]:
        """Return the pieces that a viewpoint may know, the oldest first."""
        path = f"/chats/{self.chat}/summaries"
        page = await self.ada.get(path, viewpoint=self.read_as(viewpoint), limit=100)
        found: list[dict[str, Any]] = page["items"]
        return found[::-1]

    async def used(self, viewpoint: str = "gm") -> list[str]:
        return [each["text"] for each in await self.pieces(viewpoint) if each["is_used"]]

    async def members(self) -> dict[str, str]:
        members: Any = await self.ada.get(f"/chats/{self.chat}/members")
        return {member["name"]: member["presence"] for member in members}


@pytest.fixture
async def room(server: Running, ada: Account, teller: Gossip) -> Room:
    return Room(server, ada, teller)


@pytest.mark.every_database
async def test_a_secret_is_in_no_summary_of_who_was_away(room: Room) -> None:
    await room.open("Alda", "Bor")
    await room.talk(20, "secret-early")
    await room.leave("Bor")
    await room.talk(20, "secret-away")
    await room.enter("Bor")
    await room.talk(40, "secret-late")
    await room.summarise()

    requests = room.teller.summed_up
    assert [list_secrets(asked(each)) for each in requests] == [
        "secret-early",
        "secret-away",
        "secret-late",
    ]
    assert [read_previous(each) for each in requests] == ["", "", ""]
    for viewpoint, secrets in (
        ("Alda", "secret-early secret-away secret-late"),
        ("gm", "secret-early secret-away secret-late"),
        ("Bor", "secret-early secret-late"),
    ):
        assert list_secrets(await room.previously(viewpoint)) == secrets
        assert list_secrets(" ".join(await room.used(viewpoint))) == secrets
    assert "(known to Alda only) Told" in await room.previously("gm")
    [alone] = [each for each in await room.pieces() if each["audience"] != "public"]
    assert alone["audience"] == [room.ids["Alda"]]

    context = await room.preview("Bor")
    [lost] = [each for each in context["left_out"] if each["kind"] == "summary"]
    assert lost["source_id"] == alone["through_message_id"]
    assert lost["reason"] == (
        f"summary through message {alone['through_position'] + 1}: not known to Bor"
    )
    # The history begins at the same message for everyone.
    assert context["history"]["first"] == (await room.preview("Alda"))["history"]["first"]

    for speaker, knows in (("Bor", False), ("Alda", True)):
        room.teller.requests.clear()
        await take_turn(room.ada, room.chat, text="Well?", speaker=room.ids[speaker])
        prompt = str(room.teller.requests[0].body["messages"])
        assert ("secret-away" in prompt) == knows
        assert "secret-early" in prompt
        await at_rest(room.server, room.chat)


async def test_a_piece_is_continued_until_presence_changes(room: Room) -> None:
    await room.open("Alda", "Bor")
    await room.talk(40, "secret-early")
    await room.summarise()
    [first] = await room.pieces()
    await room.leave("Bor")
    await room.talk(40, "secret-away")
    await room.summarise()
    early, away = room.teller.summed_up[-2:]
    assert read_previous(early) == first["text"]
    assert list_numbers(early)[0] == first["through_position"] + 2
    assert (read_previous(away), list_secrets(asked(away))) == ("", "secret-away")
    begin = (await room.pieces())[-1]["from_position"]
    await room.talk(40)
    await room.summarise()
    assert "secret-away" in read_previous(room.teller.summed_up[-1])
    assert (await room.pieces())[-1]["from_position"] == begin
    assert [each["from_position"] for each in await room.pieces("Bor")] == [0, 0]
    # Who only listens hears everything, and changes nothing.
    await room.set_presence("Alda", "muted")
    await room.talk(40)
    await room.summarise("Alda")
    assert (await room.pieces())[-1]["from_position"] == begin


async def test_old_pieces_are_combined_for_those_who_heard_them(room: Room) -> None:
    await room.open("Alda", "Bor")
    for number in range(5):
        await room.talk(8, f"secret-all{number}")
        await room.leave("Bor")
        await room.talk(8, f"secret-alda{number}")
        await room.enter("Bor")
    await room.talk(40)
    await room.summarise()
    assert await room.members() == {"Alda": "present", "Bor": "present"}

    [combination] = [each for each in room.teller.summed_up if not list_numbers(each)]
    [combined] = [each for each in await room.pieces() if each["text"].startswith("Told in short")]
    assert combined["audience"] == [room.ids["Alda"]]
    assert combined["from_position"] == 0
    everything = list_secrets(" ".join(f"secret-all{each} secret-alda{each}" for each in range(5)))
    for viewpoint in ("Alda", "gm"):
        assert list_secrets(await room.previously(viewpoint)) == everything
        used = await room.used(viewpoint)
        assert used[0] == combined["text"]
        assert len(used) < 6
    told = await room.previously("Bor")
    assert list_secrets(told) == " ".join(f"secret-all{each}" for each in range(5))
    assert "alda" not in asked(combination).casefold() or "secret-alda4" not in asked(combination)

    # A piece that changes is no longer in the combination.
    [first] = [each for each in await room.pieces("Bor") if "secret-all0" in each["text"]]
    path = f"/chats/{room.chat}/summaries/{first['id']}"
    await room.ada.put(path, {"text": "secret-edited"})
    for viewpoint in ("Alda", "Bor", "gm"):
        assert "secret-all0" not in await room.previously(viewpoint)
    await room.summarise()
    assert list_secrets(await room.previously("Alda")) == everything.replace("all0", "edited")


async def test_older_pieces_without_room_are_left_out(room: Room) -> None:
    await room.open("Alda", "Bor")
    for number in range(10):
        await room.talk(6, f"secret-{number}")
        await room.leave("Bor")
        await room.talk(2)
        await room.enter("Bor")
    await room.talk(40)
    await room.summarise()
    context = await room.preview("Bor")
    [item] = list_summaries(context)
    told = list_secrets(item["text"]).split()
    assert len(await room.used("Bor")) == 8
    lost = [each for each in context["left_out"] if "only the latest" in each["reason"]]
    assert len(lost) == len(await room.pieces("Bor")) - 8
    assert "secret-9" in told
    assert "secret-0" not in told
    assert all(each["tokens"] > 0 for each in lost)


@pytest.mark.every_database
async def test_a_swipe_over_a_change_selects_other_pieces(room: Room) -> None:
    await room.open("Alda", "Bor")
    early = await room.talk(30, "secret-early")
    await room.leave("Bor")
    await room.talk(50, "secret-away")
    await room.summarise()
    assert list_secrets(await room.previously("Bor")) == "secret-early"
    left = (await room.ada.messages(room.chat, limit=100))[-1]
    assert left["presence"] is None

    # On this branch, Bor stays.
    branch = str(early[-1].id)
    await room.ada.patch(f"/messages/{branch}", {"text": "Stay, Bor."})
    assert await room.members() == {"Alda": "present", "Bor": "present"}
    await room.talk(50, "secret-here")
    await room.summarise()
    for viewpoint in ("Alda", "Bor", "gm"):
        assert list_secrets(await room.previously(viewpoint)) == "secret-early secret-here"
    assert {each["from_position"] for each in await room.pieces()} == {0}

    await room.ada.post(f"/messages/{left['id']}/activate", {})
    assert list_secrets(await room.previously("Bor")) == "secret-early"
    assert list_secrets(await room.previously("Alda")) == "secret-early secret-away"
    fork = await room.ada.post(f"/chats/{room.chat}/fork", {"message_id": left["id"]}, 201)
    room.chat = fork["id"]
    assert list_secrets(await room.previously("Bor")) == "secret-early"
    assert list_secrets(await room.previously("Alda")) == "secret-early secret-away"


async def test_the_summary_of_a_solo_chat_becomes_the_first_piece(room: Room) -> None:
    await room.open("Alda")
    await room.talk(40, "secret-alone")
    await room.summarise()
    [alone] = await room.pieces()
    assert alone["audience"] == "public"
    await room.add("Bor")
    await room.enter("Bor", briefing="Bor was told of secret-briefing.")
    await room.talk(60, "secret-together")
    await room.summarise()
    # Now messages are counted with names, which ends the first job.
    await room.summarise()
    pieces = await room.pieces()
    assert pieces[0] == {**alone, "audience": [room.ids["Alda"]], "is_used": False}
    _, rest, together, *_ = room.teller.summed_up
    assert read_previous(rest) == alone["text"]
    assert read_previous(together) == ""
    assert list_secrets(await room.previously("Alda")) == "secret-alone secret-together"
    # A character still knows what it was told, after the message has left its history.
    assert list_secrets(await room.previously("Bor")) == "secret-briefing secret-together"
    assert "secret-briefing" not in await room.previously("gm")


async def test_whispers_are_in_no_public_piece(room: Room) -> None:
    await room.open("Alda", "Bor")
    await room.talk(20, "secret-all")
    await room.whisper(4, "Alda", "secret-few")
    await room.talk(40)
    await room.summarise()
    assert [list_secrets(asked(each)) for each in room.teller.summed_up] == ["secret-all"]
    for viewpoint in ("Alda", "Bor", "gm"):
        assert list_secrets(await room.previously(viewpoint)) == "secret-all"

    # A long private conversation is summarised for those who know it.
    await room.whisper(12, "Alda", "secret-many")
    await room.talk(40)
    await room.summarise()
    assert list_secrets(await room.previously("Bor")) == "secret-all"
    for viewpoint in ("Alda", "gm"):
        assert list_secrets(await room.previously(viewpoint)) == "secret-all secret-many"
    assert (await room.pieces("Alda"))[-1]["audience"] in ("public", [room.ids["Alda"]])


async def test_a_line_that_becomes_a_whisper_leaves_its_piece(room: Room) -> None:
    await room.open("Alda", "Bor")
    await room.talk(20, "secret-early")
    await room.leave("Bor")
    await room.talk(20, "secret-away")
    await room.enter("Bor")
    late = await room.talk(40, "secret-late")
    await room.summarise()
    await room.ada.patch(f"/messages/{late[1].id}", {"audience": [room.ids["Alda"]]})
    assert list_secrets(await room.previously("Bor")) == "secret-early"
    assert list_secrets(await room.previously("gm")) == "secret-early secret-away"
    await room.summarise()
    [last] = [each for each in room.teller.summed_up[-1:] if list_numbers(each)]
    assert "secret-late" not in asked(last)
    assert len(await room.used("Bor")) == 2
    assert list_secrets(await room.previously("Alda")) == "secret-early secret-away"


async def test_pieces_are_edited_one_by_one(room: Room) -> None:
    await room.open("Alda", "Bor")
    early = await room.talk(20, "secret-early")
    await room.leave("Bor")
    away = await room.talk(20, "secret-away")
    await room.enter("Bor")
    await room.talk(40, "secret-late")
    await room.summarise()
    path = f"/chats/{room.chat}/summary"

    # Without a message, the last piece is meant.
    last = await room.ada.get(path)
    assert list_secrets(last["text"]) == "secret-late"
    changed = ok(
        await room.ada.ask("PUT", path, json={"text": "Late."}, headers={"If-Match": '"1"'})
    )
    assert (changed["id"], changed["text"], changed["edited"]) == (last["id"], "Late.", True)
    body = {"text": "Away.", "through_message_id": str(away[-1].id)}
    await room.ada.put(path, body)
    assert await room.previously("Bor") == "PREVIOUSLY\nTold 1 to 20: secret-early.\nLate."
    assert "Away.\nLate." in await room.previously("Alda")
    refused = await room.ada.ask(
        "PUT", path, json={"text": "No.", "through_message_id": str(early[0].id)}
    )
    assert "covers more" in problem(refused, 422, "validation-failed")["detail"]

    first, middle, _ = await room.pieces()
    one = f"/chats/{room.chat}/summaries/{middle['id']}"
    assert await room.ada.get(one) == {**middle, "audience": [room.ids["Alda"]]}
    stale = {"If-Match": f'"{middle["revision"] + 1}"'}
    for method in ("PUT", "DELETE"):
        json = {"text": "No."} if method == "PUT" else None
        answer = await room.ada.ask(method, one, json=json, headers=stale)
        problem(answer, 412, "revision-mismatch")
    problem(await room.ada.ask("PUT", one, json={"text": " "}), 422, "validation-failed")
    assert (await room.ada.put(one, {"text": "Bor was away."}))["text"] == "Bor was away."
    await room.ada.delete(one)
    problem(await room.ada.ask("GET", one), 404, "summary-not-found")
    assert [each["id"] for each in await room.pieces()] == [first["id"], last["id"]]
    assert list_secrets(await room.previously("Alda")) == "secret-early"
    # The next job writes the missing piece again.
    await room.talk(20)
    await room.summarise()
    assert "secret-away" in await room.previously("Alda")
    assert "secret-away" not in await room.previously("Bor")

    # A viewpoint's own text is for it alone.
    own = await room.ada.put(path, {"text": "Bor thinks."}, viewpoint=room.ids["Bor"])
    assert own["audience"] == [room.ids["Bor"]]
    assert "Bor thinks." in await room.previously("Bor")
    assert "Bor thinks." not in await room.previously("gm")
    await room.ada.delete(path, viewpoint=room.ids["Bor"])
    assert "Bor thinks." not in await room.previously("Bor")


async def test_an_undone_piece_is_written_again(room: Room) -> None:
    await room.open("Alda", "Bor")
    await room.talk(20, "secret-early")
    await room.leave("Bor")
    await room.talk(40, "secret-away")
    await room.summarise()
    runs = await load_runs(room.server, room.chat)
    assert [run.kind for run in runs] == ["summary", "summary"]
    ok(await room.ada.ask("POST", f"/enrichment/runs/{runs[0].id}/undo"))
    assert list_secrets(await room.previously("Bor")) == ""
    assert list_secrets(await room.previously("Alda")) == "secret-away"
    await room.talk(20)
    await room.summarise()
    assert list_secrets(await room.previously("Bor")) == "secret-early"


def briefing_path(room: Room, name: str) -> str:
    return f"/chats/{room.chat}/members/{room.ids[name]}/briefing"


async def test_a_briefing_tells_what_was_missed(room: Room) -> None:
    await room.open("Alda", "Bor")
    await room.talk(20, "secret-early")
    await room.leave("Bor")
    await room.talk(20, "secret-away")
    await room.talk(60, "secret-later")
    await room.summarise()
    await room.talk(4, "secret-last")
    await room.whisper(2, "Alda", "secret-whisper")
    before = await room.ada.messages(room.chat, limit=200)
    draft = await room.ada.post(briefing_path(room, "Bor"), None, 200)
    assert draft == {"text": "You missed: secret-away secret-later secret-last"}
    assert await room.ada.messages(room.chat, limit=200) == before
    [request] = room.teller.briefings
    assert "Bor" in request.body["messages"][0]["content"]
    assert len(list_numbers(request)) < 40
    [run] = [each for each in await load_runs(room.server, room.chat) if each.kind == "briefing"]
    assert (run.state, run.calls, run.prompt_tokens, run.completion_tokens) == ("done", 1, 50, 5)
    problem(await room.ada.ask("POST", f"/enrichment/runs/{run.id}/undo"), 409, "nothing-to-undo")

    # A character from outside has missed everything.
    await room.add("Cara")
    draft = await room.ada.post(briefing_path(room, "Cara"), None, 200)
    assert list_secrets(draft["text"]) == "secret-early secret-away secret-later secret-last"
    await room.enter("Bor", briefing=draft["text"])
    assert (await room.ada.messages(room.chat))[-1]["text"] == draft["text"]


async def test_a_long_past_is_read_from_its_end(room: Room) -> None:
    await room.open("Alda", "Bor")
    await set_chat(room.ada, room.chat, summary={"enabled": False})
    await room.leave("Bor")
    await room.talk(2, "secret-first")
    await seed(room.server, room.ada, room.chat, [TICK * 40] * 40)
    await room.talk(4, "secret-last")
    draft = await room.ada.post(briefing_path(room, "Bor"), None, 200)
    assert list_secrets(draft["text"]) == "secret-last"
    assert re.search(r"\[\.\.\. \d+ messages omitted \.\.\.\]", asked(room.teller.briefings[0]))

    # A model with a smaller window gets less.
    room.teller.requests.clear()
    refusal = error(400, message="maximum context length", code="context_length_exceeded")
    room.teller.script(refusal)
    draft = await room.ada.post(briefing_path(room, "Bor"), None, 200)
    assert list_secrets(draft["text"]) == "secret-last"
    first, second = room.teller.briefings
    assert len(asked(second)) < len(asked(first))


async def test_briefings_that_cannot_be_written_are_refused(room: Room, server: Running) -> None:
    await room.open("Alda", "Bor")
    await room.talk(4)
    path = briefing_path(room, "Bor")
    problem(await room.ada.ask("POST", path), 409, "nothing-missed")
    await room.leave("Bor")
    problem(await room.ada.ask("POST", path), 409, "nothing-missed")
    await room.whisper(2, "Alda", "secret-whisper")
    problem(await room.ada.ask("POST", path), 409, "nothing-missed")
    assert room.teller.briefings == []
    await room.talk(4)
    for unknown, slug in (
        (f"/chats/{room.chat}/members/{uuid4()}/briefing", "member-not-found"),
        (f"/chats/{uuid4()}/members/{room.ids['Bor']}/briefing", "chat-not-found"),
    ):
        problem(await room.ada.ask("POST", unknown), 404, slug)
    async with server.account("eve") as eve:
        problem(await eve.ask("POST", path), 404, "chat-not-found")
    assert room.teller.briefings == []

    room.teller.script(reply("  "), error(400, message="No.", code="no"))
    problem(await room.ada.ask("POST", path), 502, "model-empty-reply")
    problem(await room.ada.ask("POST", path), 502, "model-refused-request")
    runs = [each for each in await load_runs(room.server, room.chat) if each.kind == "briefing"]
    assert [(run.state, run.error) for run in runs] == [
        ("failed", "model-empty-reply"),
        ("failed", "model-refused-request"),
    ]
    assert (await room.ada.post(path, None, 200))["text"]
