"""Tests that every route and every id hides other accounts' resources."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from sqlalchemy import select, update

from backend.campaigns.ledger.changes import Operations
from backend.campaigns.models import CampaignProposal
from backend.campaigns.proposals.authority import Ambiguity
from backend.chats.models import Chat
from backend.database.base import now
from backend.jobs.models import Job
from backend.jobs.queue import NewJob
from backend.openai_api.requests import RequestDetails
from backend.operations.openapi import make_operation_id
from tests.integration.campaigns.drafting import compact
from tests.integration.characters.pictures import picture
from tests.integration.turns.seeding import identity_of
from tests.support.chronicling import last_run, new_event, opt_in, rebuild, sum_up
from tests.support.factors import add_passkey
from tests.support.importing import bring
from tests.support.memory import settled
from tests.support.routes import Route, routes_of
from tests.support.server import PASSWORD, Account, Running, ok, problem, running, text_of
from tests.support.shared import shared_url

__all__ = ["shared_url"]

pytestmark = pytest.mark.anyio

API = "/api/v1"
TITLE = "The lighthouse"
CHRONICLE = b'{"format": "talekeeper-chronicle", "version": 1, "name": "Mine", "events": []}'

BODIES: dict[str, dict[str, Any]] = {
    "putCharacterAvatar": {"content": b"", "headers": {"content-type": "image/png"}},
    "putChatBackground": {"content": b"", "headers": {"content-type": "image/png"}},
    "putCharacterBackground": {"content": b"", "headers": {"content-type": "image/png"}},
    "putPersonaAvatar": {"content": b"", "headers": {"content-type": "image/png"}},
    "putCharacterScripts": {"json": {"allowed": True}},
    "chooseCharacterPreset": {"json": {"preset_id": None}},
    "beginDowntime": {"json": {"activity": "recovery"}},
    "choose": {"json": {"option": "1.0"}},
    "putChatLorebook": {"json": {"state": "off"}},
    "orderLoreEntries": {"json": {"entry_ids": []}},
    "testLorebook": {"json": {"texts": ["Who lit the lamp?"]}},
    "uploadPicture": {"files": {"file": ("x.png", b"")}},
    "forkChat": {"json": {"message_id": str(uuid4())}},
    "restoreCampaignVersion": {"json": {"version": 1}},
    "createCampaignEntity": {"json": {"kind": "npc", "name": "Mine"}},
    "createCampaignRelation": {"json": {"from_id": str(uuid4()), "to_id": str(uuid4())}},
    "createCampaignThread": {"json": {"title": "Mine"}},
    "createCampaignClock": {"json": {"name": "Mine"}},
    "createCampaignFact": {"json": {"text": "Mine."}},
    "createCampaignEcho": {"json": {"text": "Mine."}},
    "createCampaignTerm": {"json": {"term": "Mine"}},
    "addMemory": {"json": {"text": "Mine.", "chat_id": str(uuid4())}},
    "createChronicleEvent": {"json": {"summary": "The lamp went out."}},
    "mergeChronicleEvents": {"json": {"event_ids": [str(uuid4()), str(uuid4())]}},
    "importChronicleEvents": {"files": {"file": CHRONICLE}},
    "putSummary": {"json": {"text": "Nothing happened."}},
    "changeOneSummary": {"json": {"text": "Nothing happened."}},
    "rebuildChronicle": {"json": {"chat_id": str(uuid4())}},
    "compactCampaign": {"json": {"chat_id": str(uuid4())}},
    "addMessage": {"json": {"text": "Let me in."}},
    "patchMember": {"json": {"presence": "absent"}},
    "patchMessage": {"json": {"text": "Not yours any more."}},
    "renamePasskey": {"json": {"label": "Mine"}},
    "removePasskey": {"json": {"password": PASSWORD}},
    "correctClientRequest": {"json": {"kind": "turn"}},
    "takeTurn": {"json": {"text": "Let me in."}},
}
"""Bodies of routes that refuse an empty object."""


@dataclass(frozen=True)
class Belongings:
    """One resource of each kind with a route, all owned by one account."""

    owner: Account
    ids: dict[str, str]

    async def shown(self) -> list[Any]:
        paths = (
            "chats/{chat_id}",
            "chats/{chat_id}/settings",
            "chats/{chat_id}/messages",
            "characters/{character_id}",
            "characters/{character_id}/avatar",
            "characters/{character_id}/background",
            "chats/{chat_id}/background",
            "personas/{persona_id}",
            "personas/{persona_id}/avatar",
            "turns/{turn_id}",
            "jobs/{job_id}",
            "messages/{message_id}/siblings",
            "messages/{message_id}/context",
            "files/{file_id}",
            "lorebooks/{lorebook_id}",
            "lorebooks/{lorebook_id}/entries",
            "lorebooks/{lorebook_id}/entries/{entry_id}",
            "chats/{chat_id}/lorebooks",
            "characters/{character_id}/lorebooks",
            "personas/{persona_id}/lorebooks",
            "presets/{preset_id}",
            "chronicles/{chronicle_id}",
            "chronicles/{chronicle_id}/events",
            "chronicles/{chronicle_id}/events/{event_id}",
            "chronicles/{chronicle_id}/export",
            "chronicles/{chronicle_id}/rebuild",
            "campaigns/{campaign_id}/state",
            "campaigns/{campaign_id}/changes",
            "chats/{chat_id}/enrichment",
            "chats/{chat_id}/summary",
            "chats/{chat_id}/summaries",
            "enrichment/runs/{run_id}",
            "api-keys",
            "providers/{provider_id}",
            "me/settings",
            "me/second-factors",
        )
        answers = [
            await self.owner.client.get(f"{API}/{path.format_map(self.ids)}") for path in paths
        ]
        assert {answer.status_code for answer in answers} == {200}
        return [answer.content for answer in answers]


async def make_job(server: Running, owner: Account) -> str:
    """Make a finished job. Its stream ends at once."""
    async with server.parts.database.write() as session:
        user_id = UUID(owner.user["id"])
        job_id = await server.parts.queue.enqueue(session, NewJob("example", user_id))
        await session.execute(update(Job).where(Job.id == job_id).values(state="done"))
    return str(job_id)


async def correct_request(server: Running, owner: Account) -> dict[str, str]:
    """Record a request of a program, and correct the decision about it."""
    await server.parts.client_requests.record(
        await identity_of(server, owner),
        kind="quiet",
        reason="unknown_instruction",
        chat_id=None,
        turn_id=None,
        instruction="Describe the weather.",
        details=RequestDetails(),
    )
    client = owner.client
    request_id = ok(await client.get(f"{API}/client-requests"))["items"][0]["id"]
    path = f"{API}/client-requests/{request_id}/correction"
    ok(await client.post(path, json={"kind": "turn"}), 200)
    rule_id = ok(await client.get(f"{API}/client-rules"))["items"][0]["id"]
    return {"request_id": request_id, "rule_id": rule_id}


async def play(owner: Account) -> dict[str, str]:
    """Make a campaign with one item of each kind."""
    client = owner.client
    made = ok(await client.post(f"{API}/campaigns", json={"name": TITLE}), 201)
    path = f"{API}/campaigns/{made['id']}"

    async def add(plural: str, **fields: Any) -> str:
        item: str = ok(await client.post(f"{path}/{plural}", json=fields), 201)["id"]
        return item

    mara = await add("entities", kind="npc", name="Mara")
    ids = {
        "campaign_id": made["id"],
        "item_id": mara,
        "entities/item_id": mara,
        "relations/item_id": await add("relations", from_id=mara, to_id=mara),
        "threads/item_id": await add("threads", title="The lamp"),
        "clocks/item_id": await add("clocks", name="The oil"),
        "facts/item_id": await add("facts", text="The lamp burns oil.", about_id=mara),
        "scenes/item_id": await add("scenes", title="At the lamp"),
        "chapters/item_id": await add("chapters", title="Of the lamp"),
        "echoes/item_id": await add("echoes", text="The oil was dear."),
        "glossary/item_id": await add("glossary", term="Lampkeeper"),
    }
    (change, *_) = ok(await client.get(f"{path}/changes"))["items"]
    return {**ids, "scene_id": ids["scenes/item_id"], "change_id": change["id"]}


async def make_proposal(
    server: Running, owner: Account, campaign: dict[str, str], *, line: str
) -> str:
    """Make a proposal that the owner has to decide."""
    people = [UUID(campaign["item_id"])] * 2
    draft = {
        "kind": "entity",
        "item_id": uuid4(),
        "operations": Operations(set={"role": "Lampkeeper"}),
        "unclear": Ambiguity(mention="the keeper", candidates=people),
    }
    identity, database = await identity_of(server, owner), server.parts.database
    campaign_id = UUID(campaign["campaign_id"])
    await compact(database, identity, campaign_id, draft, line=UUID(line), since=now())
    async with database.read() as session:
        query = select(CampaignProposal.id).where(CampaignProposal.campaign_id == campaign_id)
        return str(await session.scalar(query))


async def fill(server: Running, owner: Account, administrator: Account) -> Belongings:
    client = owner.client
    character = await owner.new_character(name="Mara of the Lamp")
    persona = ok(await client.post(f"{API}/personas", json={"name": "Wanderer"}), 201)
    headers = {"content-type": "image/png"}
    for path in (f"characters/{character['id']}", f"personas/{persona['id']}"):
        put = await client.put(
            f"{API}/{path}/avatar", content=picture(width=8, height=8), headers=headers
        )
        assert put.status_code == 204
    preset = ok(await client.post(f"{API}/presets", json={"name": "Lamplight"}), 201)
    chat = await owner.new_chat(
        title=TITLE, character_ids=[character["id"]], persona_id=persona["id"]
    )
    for path in (f"chats/{chat['id']}", f"characters/{character['id']}"):
        put = await client.put(
            f"{API}/{path}/background", content=picture(width=8, height=8), headers=headers
        )
        assert put.status_code == 204
    chronicle_id = await opt_in(owner, chat["id"])
    events = await owner.turn(chat["id"], text="Who lit the lamp?")
    reply_id = events[0].data["reply_id"]
    form = {"file": ("lamp.png", picture(width=8, height=8))}
    file = ok(await client.post(f"{API}/chats/{chat['id']}/files", files=form), 201)
    event_id = await new_event(owner, chronicle_id, "Mara lit the lamp.")
    await sum_up(owner, chat["id"], "The lamp was lit.", through=reply_id)
    summary = await owner.get(f"/chats/{chat['id']}/summary")
    await rebuild(owner, chronicle_id, chat["id"])
    run = await last_run(owner, chat["id"])
    book = ok(await client.post(f"{API}/lorebooks", json={"name": TITLE}), 201)["id"]
    lore = {"keys": ["lamp"], "content": "It never goes out."}
    entry = ok(await client.post(f"{API}/lorebooks/{book}/entries", json=lore), 201)["id"]
    for path in (f"characters/{character['id']}", f"personas/{persona['id']}"):
        ok(await client.put(f"{API}/{path}/lorebooks/{book}"), 204)
    link = {"state": "linked"}
    ok(await client.put(f"{API}/chats/{chat['id']}/lorebooks/{book}", json=link))
    campaign = await play(owner)
    proposal_id = await make_proposal(server, owner, campaign, line=reply_id)
    _, passkey = await add_passkey(server, owner)
    key = ok(await client.post(f"{API}/api-keys", json={"label": "script"}), 201)["key"]
    (session,) = ok(await client.get(f"{API}/sessions"))["items"]
    server_of_models = {"kind": "openai", "base_url": "http://127.0.0.1:11434/v1"}
    provider = ok(await client.post(f"{API}/providers", json=server_of_models), 201)
    invited = await administrator.client.post(f"{API}/admin/invitations", json={})
    allowed = await administrator.client.post(
        f"{API}/admin/provider-addresses", json={"host": "192.168.1.7", "port": 8080}
    )
    return Belongings(
        owner,
        {
            "character_id": character["id"],
            "persona_id": persona["id"],
            "preset_id": preset["id"],
            "chat_id": chat["id"],
            "lorebook_id": book,
            "entry_id": entry,
            **campaign,
            "proposal_id": proposal_id,
            "chronicle_id": chronicle_id,
            "event_id": event_id,
            "run_id": run["id"],
            "summary_id": summary["id"],
            "message_id": reply_id,
            "file_id": file["id"],
            "turn_id": events[0].data["turn_id"],
            "key_id": key["id"],
            "passkey_id": passkey["passkey"]["id"],
            "session_id": session["id"],
            "provider_id": provider["id"],
            "user_id": owner.user["id"],
            "invitation_id": ok(invited, 201)["id"],
            "address_id": ok(allowed, 201)["id"],
            "job_id": await make_job(server, owner),
            "import_id": (await bring(owner, b"The lamp.", "notes.bin"))[0]["id"],
            **await correct_request(server, owner),
        },
    )


@dataclass(frozen=True)
class Scene:
    """An administrator, an owner with resources, and another account."""

    server: Running
    administrator: Account
    thief: Account
    things: Belongings


@asynccontextmanager
async def scene(server: Running) -> AsyncGenerator[Scene]:
    async with (
        server.account("Ada") as administrator,
        server.account("Owner") as owner,
        server.account("Thief") as thief,
    ):
        yield Scene(server, administrator, thief, await fill(server, owner, administrator))


@pytest.fixture(scope="module")
async def stage(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Scene]:
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder) as server, scene(server) as stage:
        yield stage


@pytest.fixture
async def fresh_stage(server: Running) -> AsyncGenerator[Scene]:
    """A scene without changes by earlier tests."""
    async with scene(server) as stage:
        yield stage


def routes_with_ids(server: Running, *, administration: bool) -> list[Route]:
    return [
        route
        for route in routes_of(server.app)
        if route.parameters
        # Routes below /v1 refuse cookies; their own tests ask for another account's names.
        and not route.path.startswith(("/schema", "/page", "/v1"))
        and route.path.startswith(f"{API}/admin/") is administration
    ]


async def ask(
    client: httpx.AsyncClient, route: Route, ids: dict[str, str]
) -> tuple[int, Any, set[str]]:
    options: dict[str, Any] = BODIES.get(make_operation_id(route.handler), {})
    if not options and route.method in {"POST", "PATCH", "PUT"}:
        options = {"json": {}}
    answer = await client.request(route.method, route.filled(ids), **options)
    return answer.status_code, answer.content, set(answer.headers)


def random_ids(route: Route) -> dict[str, str]:
    return {name: str(uuid4()) for name in route.parameters}


async def test_every_parameter_of_a_route_is_known_here(stage: Scene) -> None:
    routes = [
        route
        for administration in (False, True)
        for route in routes_with_ids(stage.server, administration=administration)
    ]
    assert len(routes) > 30
    named = {name for route in routes for name in route.parameters}
    assert named <= stage.things.ids.keys(), "let `fill` make one of these, too"


async def test_someone_elses_thing_is_answered_like_one_that_does_not_exist(
    database_url: str, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path) as server, scene(server) as stage:
        before = await stage.things.shown()
        for attacker in (stage.thief, stage.administrator):
            for route in routes_with_ids(server, administration=False):
                real = await ask(attacker.client, route, stage.things.ids)
                invented = await ask(attacker.client, route, random_ids(route))
                assert real == invented, route
                assert real[0] == 404, (str(route), real)
        assert await stage.things.shown() == before


async def test_a_chat_that_is_being_imported_is_answered_like_one_that_does_not_exist(
    fresh_stage: Scene,
) -> None:
    things, database = fresh_stage.things, fresh_stage.server.parts.database
    client = things.owner.client
    async with database.write() as session:
        await session.execute(
            update(Chat).where(Chat.id == UUID(things.ids["chat_id"])).values(is_ready=False)
        )
    walked = 0
    for route in routes_with_ids(fresh_stage.server, administration=False):
        if {"chat_id", "message_id"} & set(route.parameters):
            real = await ask(client, route, things.ids)
            invented = await ask(client, route, random_ids(route))
            assert real == invented, route
            assert real[0] == 404, (str(route), real)
            walked += 1
    assert walked > 15
    assert ok(await client.get(f"{API}/chats"))["items"] == []
    found = ok(await client.get(f"{API}/search", params={"q": "Who lit the lamp?"}))
    assert all(each["kind"] != "message" for each in found["items"])


async def test_administrators_things_are_closed_to_others_whether_they_exist_or_not(
    stage: Scene,
) -> None:
    for route in routes_with_ids(stage.server, administration=True):
        real = await ask(stage.thief.client, route, stage.things.ids)
        invented = await ask(stage.thief.client, route, random_ids(route))
        assert real == invented, route
        assert real[0] == 403, route


async def test_the_owner_is_answered_by_the_same_routes(stage: Scene) -> None:
    """Check that the same requests succeed for the owner."""
    things = stage.things
    for route in routes_with_ids(stage.server, administration=False):
        if route.method == "GET":
            status, content, _ = await ask(things.owner.client, route, things.ids)
            assert status == 200, (str(route), content)


def naming(member: str, thing_id: str) -> dict[str, Any]:
    return {member: [thing_id] if member.endswith("_ids") else thing_id}


async def test_ids_of_others_in_bodies_are_refused(stage: Scene) -> None:
    client, theirs = stage.thief.client, stage.things.ids
    own = await stage.thief.new_chat(title="Mine")
    invented = str(uuid4())
    chats, chat = f"{API}/chats", f"{API}/chats/{own['id']}"
    for method, path, member, kind, slug in (
        ("POST", chats, "character_ids", "character_id", "character-not-found"),
        ("POST", chats, "persona_id", "persona_id", "persona-not-found"),
        ("PATCH", chat, "character_ids", "character_id", "character-not-found"),
        ("PATCH", chat, "persona_id", "persona_id", "persona-not-found"),
        ("POST", chats, "campaign_id", "campaign_id", "campaign-not-found"),
        ("PATCH", chat, "campaign_id", "campaign_id", "campaign-not-found"),
        ("POST", f"{chat}/fork", "message_id", "message_id", "message-not-found"),
        ("POST", f"{chat}/turns", "regenerate_of", "message_id", "message-not-found"),
        ("POST", f"{chat}/turns", "speaker", "character_id", "character-not-found"),
    ):
        real, unreal = [
            await client.request(method, path, json=naming(member, thing_id))
            for thing_id in (theirs[kind], invented)
        ]
        assert problem(real, 404, slug) == problem(unreal, 404, slug), (path, member)
    assert ok(await client.get(chats))["items"] == [own]
    assert await stage.thief.messages(own["id"]) == []


async def test_ids_of_others_chronicles_in_bodies_are_refused(stage: Scene) -> None:
    thief, theirs = stage.thief, stage.things.ids
    client = thief.client
    chat = (await thief.new_chat(title="Mine"))["id"]
    own = await opt_in(thief, chat)
    event = await new_event(thief, own, "I came for the lamp.")
    events = f"{API}/chronicles/{own}/events"
    for method, path, body, kind, slug in (
        ("PATCH", f"{API}/chats/{chat}/settings", {"chronicle_id": ID}, "chronicle_id", None),
        ("POST", events, {"summary": "Mine.", "source_message_ids": [ID]}, "message_id", None),
        ("PATCH", f"{events}/{event}", {"source_message_ids": [ID]}, "message_id", None),
        ("PATCH", f"{events}/{event}", {"superseded_by": ID}, "event_id", "validation-failed"),
        ("POST", f"{events}/merge", {"event_ids": [event, ID]}, "event_id", None),
        (
            "PUT",
            f"{API}/chats/{chat}/summary",
            {"text": "Mine.", "through_message_id": ID},
            "message_id",
            None,
        ),
        ("POST", f"{API}/chronicles/{own}/rebuild", {"chat_id": ID}, "chat_id", None),
    ):
        real, unreal = [
            await client.request(method, path, json=replace_id(body, each))
            for each in (theirs[kind], str(uuid4()))
        ]
        wanted = slug or f"{kind.removesuffix('_id')}-not-found"
        status = 422 if slug else 404
        told = problem(real, status, wanted), problem(unreal, status, wanted)
        assert drop_ids(told[0]) == drop_ids(told[1]), (path, body)
    assert [each["id"] for each in ok(await client.get(events))["items"]] == [event]


ID = "an id"


def replace_id(body: dict[str, Any], thing_id: str) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(json.dumps(body).replace(ID, thing_id))
    return whole


def drop_ids(told: dict[str, Any]) -> dict[str, Any]:
    """Return a problem without the ids of the request, which it may repeat."""
    return {name: value for name, value in told.items() if not name.endswith("_id")}


async def test_someone_elses_persona_in_the_settings_shows_nothing_of_itself(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The persona is stored in the settings, although they normally refuse it."""

    async def found(*_: object, **__: object) -> None:
        """Accept any persona."""

    thief, theirs = stage.thief, stage.things.ids
    prompts: list[tuple[Any, str]] = []
    for persona_id in (theirs["persona_id"], str(uuid4())):
        path, body = f"{API}/me/settings", {"persona_id": persona_id}
        problem(await thief.client.patch(path, json=body), 404, "persona-not-found")
        with monkeypatch.context() as patched:
            patched.setattr(stage.server.parts.profile, "_find_persona", found)
            ok(await thief.client.patch(path, json=body))
        chat = await thief.new_chat(title="Mine")
        assert chat["persona_id"] is None
        events = await thief.turn(chat["id"], text="Who am I?")
        context = await thief.client.get(f"{API}/messages/{events[0].data['reply_id']}/context")
        prompts.append((ok(context)["prompt"], text_of(events)))
    assert prompts[0] == prompts[1]
    assert "Wanderer" not in str(prompts)


async def test_someone_elses_ids_in_a_query_find_nothing(stage: Scene) -> None:
    thief, theirs = stage.thief, stage.things.ids
    await thief.new_chat(title="Mine")
    for path, name, kind in (
        ("chats", "character_id", "character_id"),
        ("chats", "after", "chat_id"),
        ("characters", "after", "character_id"),
        ("personas", "after", "persona_id"),
        ("lorebooks", "after", "lorebook_id"),
        ("chronicles", "after", "chronicle_id"),
        ("campaigns", "after", "campaign_id"),
        ("jobs", "after", "job_id"),
    ):
        answer = await thief.client.get(f"{API}/{path}", params={name: theirs[kind]})
        assert TITLE not in answer.text
        assert "Mara" not in answer.text
        assert ok(answer)["items"] == []


async def test_lists_and_searches_hide_other_accounts_resources(fresh_stage: Scene) -> None:
    owned = list(fresh_stage.things.ids.values())
    for person in (fresh_stage.thief, fresh_stage.administrator):
        for path in (
            "chats",
            "characters",
            "characters?search=mara",
            "lorebooks",
            "lorebooks?search=light",
            "chronicles",
            "campaigns",
            "personas",
            "api-keys",
            "jobs",
        ):
            assert ok(await person.client.get(f"{API}/{path}"))["items"] == []
        for path in ("sessions", "me", "me/settings", "me/activity"):
            answer = await person.client.get(f"{API}/{path}")
            assert not [each for each in owned if each in answer.text]


async def test_a_search_finds_nothing_of_other_accounts(fresh_stage: Scene) -> None:
    await settled(fresh_stage.server)
    chat_id, search = fresh_stage.things.ids["chat_id"], f"{API}/search"
    for query in ({"q": "lamp"}, {"q": "lamp", "chat_id": chat_id}):
        found = ok(await fresh_stage.things.owner.client.get(search, params=query))["items"]
        assert "Who lit the lamp?" in [item["text"] for item in found]
    for person in (fresh_stage.thief, fresh_stage.administrator):
        own = (await person.new_chat(title="Mine"))["id"]
        for query in ({"q": "lamp"}, {"q": "lamp", "chat_id": own}):
            assert ok(await person.client.get(search, params=query))["items"] == []
        real, invented = [
            await person.client.get(search, params={"q": "lamp", "chat_id": each})
            for each in (chat_id, str(uuid4()))
        ]
        assert problem(real, 404, "chat-not-found") == problem(invented, 404, "chat-not-found")


async def test_someone_elses_turn_id_says_no_more_than_that_it_was_used(stage: Scene) -> None:
    own = await stage.thief.new_chat()
    body = {"text": "Let me in.", "turn_id": stage.things.ids["turn_id"]}
    answer = await stage.thief.client.post(f"{API}/chats/{own['id']}/turns", json=body)
    assert set(problem(answer, 409, "turn-id-reused")) == {"type", "title", "status", "detail"}
