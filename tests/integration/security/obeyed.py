"""Play a case of the corpus: load the rows before and after a run of the agent."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import select, update

from backend.accounts.auth.identity import Identity
from backend.database.base import new_id
from backend.jobs.models import Job
from backend.lorebooks import authoring
from backend.lorebooks.entries import LoreEntry
from tests.fakes.obedient_server import ObedientGemini, ObedientOpenAI
from tests.integration.turns.seeding import identity_of, seed
from tests.support.chronicling import new_event
from tests.support.injections import (
    ENTRY,
    EVENT,
    FOREIGN,
    GREETING,
    SECOND_EVENT,
    TRAP,
    Injection,
    Obedience,
    filled,
)
from tests.support.memory import new_book, new_entry, settled
from tests.support.server import Account, Running, ok
from tests.support.stored import Dump, dump
from tests.support.studying import tools_of
from tests.support.waiting import until

API = "/api/v1"
DATABASE = "/.s.PGSQL.5432"
"""The end of the path of PostgreSQL's socket."""
HARBOUR = "The harbour of Rill froze over in the ninth winter."
"""The text of chats that the agent must not read."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """Another account, and the ids of its rows."""

    identity: Identity
    ids: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Played:
    """The changes of the database by a case. `ids` belong to the account of the agent."""

    server: Running
    account: Account
    identity: Identity
    ids: dict[str, str]
    new_lines: list[UUID]
    before: Dump
    after: Dump
    requests: list[Any]
    steps: int
    run: dict[str, Any]
    reached: set[str]

    @property
    def chronicle_id(self) -> UUID:
        """The ids of the rows that the agent may write."""
        return UUID(self.ids["own_chronicle"])


@dataclass
class Wire:
    """Records connections and child processes of this process while it is active."""

    reached: set[str] = field(default_factory=set[str])
    is_looking: bool = False

    def __post_init__(self) -> None:
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_looking:
            return
        if event == "socket.connect" and not str(arguments[1]).endswith(DATABASE):
            self.reached.add(str(arguments[1]))
        elif event == "socket.getaddrinfo":
            self.reached.add(f"name {arguments[0]}")
        elif event in {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"}:
            self.reached.add(f"{event} {arguments[0]}")


async def settle_down(server: Running, account: Account) -> Neighbour:
    client = account.client
    chat_id = (await account.new_chat(title="The harbour"))["id"]
    (line,) = await seed(server, account, chat_id, [HARBOUR])
    book_id = await new_book(account, name="The harbour")
    entry_id = await new_entry(account, book_id, title="Rill", keys=["harbour"], content=HARBOUR)
    chronicle_id = ok(await client.post(f"{API}/chronicles", json={"name": "Rill"}), 201)["id"]
    event_id = await new_event(account, chronicle_id, HARBOUR)
    settings = {"chronicle_id": chronicle_id}
    ok(await client.patch(f"{API}/chats/{chat_id}/settings", json=settings))
    await settled(server)
    identity = await identity_of(server, account)
    ids = {
        "other_user": account.user["id"],
        "other_chat": chat_id,
        "other_message": str(line.id),
        "other_book": book_id,
        "other_entry": entry_id,
        "other_chronicle": chronicle_id,
        "other_event": event_id,
    }
    return Neighbour(identity=identity, ids=ids)


async def play(
    server: Running,
    model: ObedientOpenAI | ObedientGemini,
    wire: Wire,
    account: Account,
    neighbour: Neighbour,
    case: Injection,
) -> Played:
    """Play a turn with the text of the case, and run the agent."""
    ids = {**neighbour.ids, **await open_story(server, account, case, neighbour.ids)}
    identity = await identity_of(server, account)
    sealers = identity.sealer, neighbour.identity.sealer
    await settled(server)
    model.obey(Obedience(case, ids))
    model.hold()
    wire.reached.clear()
    wire.is_looking = True
    try:
        events = await account.turn(ids["own_chat"], text=model.obedience.line)
        assert events[-1].name == "turn.completed", events[-1]
        await settled(server)
        await until(lambda: _are_asked(model))
        before = await dump(server.parts.database, sealers)
        model.release()
        await until(lambda: is_over(server, account))
        await settled(server)
    finally:
        wire.is_looking = False
        model.release()
    lines = await account.messages(ids["own_chat"])
    overview = ok(await account.client.get(f"{API}/chats/{ids['own_chat']}/enrichment"))
    return Played(
        server=server,
        account=account,
        identity=identity,
        ids=ids,
        new_lines=[UUID(line["id"]) for line in lines if line["position"] > 0],
        before=before,
        after=await dump(server.parts.database, sealers),
        requests=[each for each in model.requests if tools_of([each])],
        steps=len(model.steps),
        run=overview["items"][0],
        reached=set(wire.reached),
    )


async def _are_asked(model: ObedientOpenAI | ObedientGemini) -> int:
    return model.triages


async def is_over(server: Running, account: Account) -> bool:
    """True if the agent has finished. A failed attempt is not repeated."""
    mine = Job.user_id == UUID(account.user["id"]), Job.kind.like("enrichment.%")
    async with server.parts.database.read() as session:
        jobs = list(await session.scalars(select(Job).where(*mine)))
    if any(job.state == "running" or (job.state == "queued" and job.error is None) for job in jobs):
        return False
    async with server.parts.database.write() as session:
        failed = *mine, Job.state == "queued"
        await session.execute(update(Job).where(*failed).values(state="dead"))
    return True


async def open_story(
    server: Running, account: Account, case: Injection, others: dict[str, str]
) -> dict[str, str]:
    """Make lore, events and a chat with the text of the case."""
    client = account.client
    book_id = await new_book(account, name="The drowned coast")
    entry_id = await new_entry(
        account, book_id, title="The lighthouse", keys=["lamp"], content=ENTRY
    )
    chronicle_id = ok(await client.post(f"{API}/chronicles", json={"name": "Morrow"}), 201)["id"]
    first, second = [await new_event(account, chronicle_id, text) for text in (EVENT, SECOND_EVENT)]
    elsewhere = (await account.new_chat(title="Elsewhere"))["id"]
    (line,) = await seed(server, account, elsewhere, [HARBOUR])
    shares = {"chronicle_id": chronicle_id}
    ok(await client.patch(f"{API}/chats/{elsewhere}/settings", json=shares))
    foreign = await write_for_another_chronicle(server, account, elsewhere, line.id)
    ids = {
        "own_user": account.user["id"],
        "own_book": book_id,
        "own_entry": entry_id,
        "own_chronicle": chronicle_id,
        "own_event": first,
        "own_second_event": second,
        "own_second_chat": elsewhere,
        "own_second_message": str(line.id),
    }
    text: str = filled(case.text, {**others, **ids})
    if case.kind == "entry":
        await new_entry(account, book_id, **_trap(case.place, text))
    card = _card(case.place, text) if case.kind == "card" else {}
    character = await account.new_character(**{"first_mes": GREETING, **card})
    chat_id = (await account.new_chat(character_ids=[character["id"]]))["id"]
    for linked in (book_id, foreign):
        ok(await client.put(f"{API}/chats/{chat_id}/lorebooks/{linked}", json={"state": "linked"}))
    settings = {"chronicle_id": chronicle_id, "chronicle_enabled": True}
    ok(await client.patch(f"{API}/chats/{chat_id}/settings", json=settings))
    return {**ids, "own_chat": chat_id}


async def write_for_another_chronicle(
    server: Running, account: Account, chat_id: str, message_id: UUID
) -> str:
    """Write an entry of the agent for another chronicle. Return the id of the book."""
    made = await account.client.post(f"{API}/chronicles", json={"name": "Skarne"})
    identity, parts = await identity_of(server, account), server.parts
    entry = LoreEntry(title="The ferry", keys=["ferry"], content=FOREIGN)
    origin = authoring.EntryOrigin(new_id(), UUID(chat_id), message_id)
    async with parts.database.write() as session:
        book = await authoring.chronicle_book(
            session, identity.sealer, UUID(ok(made, 201)["id"]), name="Skarne"
        )
        row = await authoring.add_entry(session, identity.sealer, book, entry, origin)
        await parts.index.changed(
            session, identity, kind="lore", container_id=book.id, source_ids=[row.id]
        )
    return str(book.id)


def _trap(place: str, text: str) -> dict[str, Any]:
    if place == "title":
        return {"title": text, "keys": ["lamp"], "content": f"{TRAP}."}
    return {"title": TRAP, "keys": ["lamp"], "content": text, "constant": place == "constant"}


def _card(place: str, text: str) -> dict[str, Any]:
    if place != "book":
        return {place: text}
    return {"character_book": {"entries": [{"keys": ["lamp"], "content": text, "name": TRAP}]}}


async def undo(played: Played, neighbour: Neighbour) -> Dump:
    path = f"{API}/enrichment/runs/{played.run['id']}/undo"
    undone = ok(await played.account.client.post(path))
    assert undone["kept"] == []
    assert len(undone["undone"]) == len(played.run["written"])
    await settled(played.server)
    sealers = played.identity.sealer, neighbour.identity.sealer
    return await dump(played.server.parts.database, sealers)


def find_allowed_addresses(urls: Iterable[str]) -> set[str]:
    """Return the addresses of these servers on loopback, as `Wire` records them."""
    ports = [int(url.split(":")[2].split("/")[0]) for url in urls]
    return {"name 127.0.0.1"} | {str(("127.0.0.1", port)) for port in ports}
