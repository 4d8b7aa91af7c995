"""Export and import of campaigns as zip files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import update

from backend.campaigns.models import CampaignItem
from backend.database import migrate
from tests.integration.campaigns.seagate import Table, seagate
from tests.support.server import Account, ok, problem, running
from tests.support.zips import seagate_vault, unzipped, zipped

pytestmark = [pytest.mark.anyio]

KINDS = (
    "entities",
    "threads",
    "clocks",
    "facts",
    "relations",
    "scenes",
    "chapters",
    "glossary",
    "echoes",
)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OWN = {"id", "revision", "created_at", "updated_at"}

GOLDEN = """\
## SESSION CONTEXT: Seagate
Setting: SEAGATE. No other place name may stand in for SEAGATE.
A harbour city of tide-gates and dredged canals. Magic is taxed by weight.
**Day 5** - morning

### Player character
**Jake** | Wizard | HP 13/13 | at The Salty Sigil | 15 gold
Inventory: spell-etched tuning fork, Courier Valen's cloak

### Current location
**The Salty Sigil**: A curio shop in the Dredgeworks dealing in rare magical components. \
Salt crusts the window; the bell rings a beat late.

### NPCs present
**Marlena** [active] - intimate-ally
*Voice: Speaks in a slow, measured drawl (drops when emotional); \
Views herself as a "gardener": supplies ingredients, doesn't judge; Shows vulnerability with Jake*
**Gareth** [rescued] - ally
**Aldous** [active] - neutral
**Bettany** [active] - neutral
**Corwin** [active] - neutral
Also here: Delphine, Emeric

### Active threads
- [URGENT] **The Fading Muffle**: Token scrying anchor muffled for about 36 hours, fading. \
→ Next: Execute infiltration before it fails
- [URGENT] **Silent Circle Salon (TONIGHT)**: Infiltrate as Courier Valen.
- [RISING] **The debt to the Collegium**: 200 gp by midwinter.

### Today
- Jake rescued Gareth from the Sunfall Hills gully
- Token muffling performed by Marlena"""


async def sent(
    account: Account, files: Mapping[str, bytes | str], name: str = "campaign.zip"
) -> httpx.Response:
    upload = {"file": (name, zipped(files), "application/zip")}
    return await account.ask("POST", "/campaigns/import", files=upload)


async def import_files(account: Account, files: Mapping[str, bytes | str]) -> Table:
    return Table(account, ok(await sent(account, files), 201))


async def export_files(table: Table, file_format: str) -> dict[str, bytes]:
    answer = await table.ask("GET", "/export", params={"format": file_format})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/zip"
    return unzipped(answer.content)


async def state(table: Table) -> dict[str, Any]:
    """Return the contents of a campaign with names instead of ids, without deleted items."""
    items = {kind: await every(table, f"/{kind}") for kind in KINDS}
    names = {
        item["id"]: f"{kind}: {item.get('name') or item.get('text') or item.get('title')}"
        for kind, found in items.items()
        for item in found
    }

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {key: named(each) for key, each in members.items() if key not in OWN}
        if isinstance(value, list):
            return [named(each) for each in cast("Any", value)]
        return names.get(value) if isinstance(value, str) and UUID.fullmatch(value) else value

    held = {
        kind: sorted(json.dumps(named(item), sort_keys=True) for item in found)
        for kind, found in items.items()
    }
    view = await table.get()
    kept = ("name", "rules", "brief", "settings", "day", "time_of_day", "flags")
    return {**{key: view[key] for key in kept}, **held}


async def every(table: Table, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 100}
    while True:
        page = await table.get(path, **query)
        found += page["items"]
        if page["next"] is None:
            return found
        query["before" if "changes" in path else "after"] = page["next"]


async def ledger(table: Table) -> list[dict[str, Any]]:
    lines = await every(table, "/changes")
    ids = {line["target"]["id"]: number for number, line in enumerate(lines[::-1])}
    return [
        {
            **{k: line[k] for k in ("seq", "version", "actor", "counts", "undone", "created_at")},
            "item": (line["target"]["kind"], line["target"]["name"], ids[line["target"]["id"]]),
            "keys": [sorted(line[each]) for each in ("set", "add", "remove")],
            "told": line["message_id"] is not None,
        }
        for line in lines
    ]


async def world(table: Table) -> None:
    """Add one item of each kind, with references between them."""
    ids = await seagate(table)
    clock = await table.add("clocks", name="The tide", segments=4, filled=1, consequence="Flood")
    await table.add("clocks", name="The watch", visible=False, linked_id=clock["id"])
    await table.add(
        "threads",
        kind="quest",
        title="The Fading Muffle",
        tension="critical",
        objectives=[{"text": "Get in", "done": True}, {"text": "Get out"}],
        giver_id=ids["marlena"],
        clock_id=clock["id"],
    )
    new = await table.add("facts", text="The token is loud again.", about_id=ids["jake"])
    await table.add("facts", text="The token is quiet.", superseded_by=new["id"])
    await table.add("facts", text="Holt sold it.", about_id=ids["holt"], audience="gm")
    await table.add(
        "facts", text="Only Marlena knows.\nReally.", audience=[ids["marlena"], ids["jake"]]
    )
    await table.add(
        "relations", from_id=ids["marlena"], to_id=ids["jake"], score=70, note="[[odd]]"
    )
    await table.add(
        "scenes",
        title="The Salon",
        location_id=ids["shop"],
        present=[ids["marlena"], ids["jake"]],
        stakes="All of it",
        beats=3,
        key_moments=["The bell rings", "- a dash"],
    )
    over = [
        await table.add("scenes", title=title, status="closed", summary="It ended.")
        for title in ("The roof", "The roof")
    ]
    told = [each["id"] for each in over]
    await table.add("chapters", title="Over the roofs", summary="They ran.", scene_ids=told)
    await table.add("chapters", summary="- Nothing\n**more**", audience="gm", locked=["summary"])
    await table.add("echoes", kind="threat", text="Holt saw the cloak", resolved=True)
    await table.add("glossary", term="Muffle", definition="A spell: quiet.", status="raw")
    await table.change("", flags={"masked": True}, settings={"memory_interval": 6})
    await table.change(f"/entities/{ids['jake']}", attributes={"hp": 9}, locked=["attributes"])
    newest = (await table.get("/changes", limit=1))["items"][0]
    ok(await table.ask("POST", f"/changes/{newest['id']}/undo"))
    await table.delete(f"/entities/{ids['hills']}")


async def test_a_vault_is_imported_at_the_present_of_its_story(ada: Account) -> None:
    table = await import_files(ada, seagate_vault())
    view = table.campaign
    assert (view["name"], view["day"], view["time_of_day"]) == ("Seagate", 5, "morning")
    assert view["warnings"] == [
        "canon/locations/the-salty-sigil.md: `district` is kept among the attributes"
    ]
    context = await table.get("/context", text="continue")
    assert context["full"] == GOLDEN
    assert context["light"] == (
        "[Day 5 | Jake HP 13/13 | at the-salty-sigil | with Marlena, Gareth +5]"
    )
    assert {line["actor"] for line in await ledger(table)} == {"import"}
    [holt] = (await table.get("/entities", q="Holt"))["items"]
    [secret] = (await table.get("/facts"))["items"]
    assert (secret["about_id"], secret["audience"]) == (holt["id"], "gm")
    assert secret["text"] == "He sold the token's twin to the Silent Circle."
    [owes] = (await table.get("/relations"))["items"]
    assert owes["note"] == "Owes Gareth a year of rent."


async def test_the_place_of_the_player_decides_who_is_present(ada: Account) -> None:
    table = await import_files(ada, seagate_vault())
    [jake] = (await table.get("/entities", kind="pc"))["items"]
    [hills] = (await table.get("/entities", q="Sunfall", kind="location"))["items"]
    await table.change(f"/entities/{jake['id']}", location_id=hills["id"])
    full = (await table.get("/context", text="continue"))["full"]
    assert "**Inspector Holt** [active] - hostile" in full
    assert "Marlena" not in full.partition("### Active threads")[0]


async def test_an_archive_restores_state_and_change_log(ada: Account, table: Table) -> None:
    await world(table)
    files = await export_files(table, "json")
    copy = await import_files(ada, files)
    assert copy.campaign["warnings"] == []
    assert await state(copy) == await state(table)
    assert await ledger(copy) == await ledger(table)
    assert copy.campaign["version"] == (await table.get())["version"]
    assert copy.campaign["id"] != table.campaign["id"]
    old = {item["id"] for kind in KINDS for item in await every(table, f"/{kind}")}
    new = {item["id"] for kind in KINDS for item in await every(copy, f"/{kind}")}
    assert not old & new
    again = await export_files(copy, "json")
    assert files.keys() == again.keys()
    deleted = next(
        line
        for line in await every(copy, "/changes")
        if line["target"]["name"] == "Sunfall Hills" and line["set"] == {"exists": False}
    )
    ok(await copy.ask("POST", f"/changes/{deleted['id']}/undo"))
    assert (await copy.get("/entities", q="Sunfall"))["items"]


async def test_a_vault_restores_the_state_again_and_again(ada: Account, table: Table) -> None:
    await world(table)
    files = await export_files(table, "vault")
    copy = await import_files(ada, files)
    assert copy.campaign["warnings"] == []
    assert await state(copy) == await state(table)
    assert await export_files(copy, "vault") == files


async def test_the_example_vault_is_exported_again(ada: Account) -> None:
    first = await import_files(ada, seagate_vault())
    files = await export_files(first, "vault")
    assert set(seagate_vault("")) <= set(files)
    second = await import_files(ada, files)
    assert await state(second) == await state(first)
    assert await export_files(second, "vault") == files
    assert (await second.get("/context"))["full"] == GOLDEN


async def test_changes_stay_linked_to_imported_messages(ada: Account, table: Table) -> None:
    character = await ada.new_character(alternate_greetings=["The door stays shut."])
    chat = await ada.new_chat(
        campaign_id=table.campaign["id"], character_ids=[character["id"]], title="One"
    )
    await ada.turn(chat["id"], text="I open it")
    [greeting, *_] = await ada.messages(chat["id"])
    cause = {"message_id": greeting["id"]}
    ok(await table.ask("PATCH", "", params=cause, json={"day": 9}))
    files = await export_files(table, "json")
    copy = await import_files(ada, files)
    assert copy.campaign["day"] == 9
    [copied] = copy.campaign["chat_ids"]
    shown = await ada.messages(copied)
    before = await ada.messages(chat["id"])
    kept = ("role", "author", "text", "position", "sibling", "sibling_count", "created_at")
    assert [[each[k] for k in kept] for each in shown] == [
        [each[k] for k in kept] for each in before
    ]
    view = await ada.get(f"/chats/{copied}")
    assert (view["title"], view["character_ids"]) == ("One", [character["id"]])
    path = f"/messages/{shown[0]['id']}/siblings"
    other = (await ada.get(path))["items"][1]
    await ada.post(f"/messages/{other['id']}/activate", {})
    assert (await copy.get())["day"] == 5
    await ada.post(f"/messages/{shown[0]['id']}/activate", {})
    assert (await copy.get())["day"] == 9
    assert (await table.get())["day"] == 9


async def test_edits_of_an_archive_are_changes_of_the_import(ada: Account, table: Table) -> None:
    await world(table)
    files = await export_files(table, "json")
    people = json.loads(files["npcs.json"])
    [marlena] = [each for each in people if each["name"] == "Marlena"]
    marlena["status"] = "gone"
    del marlena["voice"]
    stranger = {"kind": "npc", "name": "Stranger"}
    files["npcs.json"] = json.dumps([marlena, stranger]).encode()
    copy = await import_files(ada, files)
    people = (await copy.get("/entities", kind="npc"))["items"]
    assert [(each["name"], each["status"]) for each in people] == [
        ("Marlena", "gone"),
        ("Stranger", "active"),
    ]
    assert people[0]["voice"] == []
    added = [line for line in await ledger(copy) if line["actor"] == "import"]
    assert sorted(line["item"][1] for line in added) == ["Inspector Holt", "Marlena", "Stranger"]


async def test_an_unreadable_file_changes_nothing(ada: Account, table: Table) -> None:
    await world(table)
    files = await export_files(table, "json")
    before = (await ada.get("/campaigns"))["items"]
    wrong: list[Mapping[str, bytes | str]] = [
        {"readme.txt": "hello"},
        {**files, "npcs.json": b"["},
        {**files, "npcs.json": b'[{"kind": "npc", "name": ""}]'},
        {**files, "npcs.json": b'[{"kind": "npc", "name": "A", "location_id": "%s"}]' % b"0" * 8},
        {**files, "npcs.json": b"\xff\xfe"},
        {**files, "ledger.json": b'[{"seq": 1}]'},
        {**files, "ledger.json": files["ledger.json"].replace(b'"seq":2,', b'"seq":9,', 1)},
        {**files, "ledger.json": files["ledger.json"].replace(b"2026-", b"0001-")},
        {**files, "ledger.json": files["ledger.json"].replace(b'"actor":"user"', b'"actor":"me"')},
        {**files, "campaign_data.json": files["campaign_data.json"].replace(b"freeform", b"chess")},
        {**files, "narratives.json": b'{"format": "other"}'},
        {**files, "chats/001.jsonl": b'{"id": 1}\n'},
        {"../npcs/a.md": "hello", "campaign.md": "hello"},
        {"campaign.md": "---\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
         "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
         "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"
         "g: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n---\n"},
        {"campaign.md": "x" * 9_000_000},
        {f"canon/npcs/{number}.md": "" for number in range(10_000)},
        {"canon/temporal-index.json": b"{"},
    ]  # fmt: skip
    for each in wrong:
        problem(await sent(ada, each), 422, "unreadable-campaign")
    upload = {"file": ("a.zip", b"no zip at all", "application/zip")}
    answer = await ada.ask("POST", "/campaigns/import", files=upload)
    problem(answer, 422, "unreadable-campaign")
    assert (await ada.get("/campaigns"))["items"] == before
    assert len((await ada.get("/chronicles"))["items"]) == 1


async def test_a_player_s_file_has_only_what_is_known(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    jake = ids["jake"]
    den = await table.add("entities", kind="location", name="The den", audience="gm")
    moth = await table.add("entities", kind="npc", name="Moth", audience="gm")
    await table.change(f"/entities/{ids['holt']}", location_id=den["id"])
    await table.add("relations", from_id=ids["holt"], to_id=moth["id"], score=50)
    await table.add("relations", from_id=ids["holt"], to_id=jake, score=50)
    await table.add("facts", text="Holt takes bribes.", about_id=ids["holt"], audience=[jake])
    await table.add("scenes", title="The counter", present=[ids["holt"], moth["id"]])
    hidden = await table.add("clocks", name="The Traitor", visible=False)
    await table.add("clocks", name="The Watch", linked_id=ids["holt"])
    await table.add("threads", title="Who tells?", clock_id=hidden["id"])
    await table.change("", flags={"bridge_down": True}, locked=["day", "flags.bridge_down"])
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    for text, audience in (("One.", "public"), ("Two.", "gm"), ("Three.", [jake])):
        await ada.turn(chat, text=text, audience=audience)

    async def export_files(**query: str) -> dict[str, Any]:
        answer = await ada.ask("GET", f"{table.path}/export", params=query)
        assert answer.status_code == 200, answer.text
        return {name: data.decode() for name, data in unzipped(answer.content).items()}

    files = await export_files(viewpoint=jake)
    assert "Moth" not in str(files)
    assert "The den" not in str(files)
    assert moth["id"] not in str(files)
    for found in (files, await export_files(viewpoint="public", format="vault")):
        assert "The Watch" in str(found)
        assert "Who tells?" in str(found)
        assert "Traitor" not in str(found)
        assert hidden["id"] not in str(found)
        assert "bridge" not in str(found)
    assert "Holt takes bribes." in files["facts.json"]
    assert len(json.loads(files["relations.json"])) == 1
    assert json.loads(files["ledger.json"]) == []
    lines = [json.loads(line) for line in files["chats/001.jsonl"].splitlines()]
    said = [line["text"] for line in lines if line.get("role") == "user"]
    assert said == ["One.", "Three."]
    [three] = [line for line in lines if line.get("text") == "Three."]
    [answered] = [line for line in lines if line["id"] == three["parent_id"]]
    assert answered["role"] == "assistant"
    assert "Holt takes bribes." not in str(await export_files(viewpoint="public"))
    assert "Holt takes bribes." not in str(await export_files(viewpoint="public", format="vault"))
    whole = str(await export_files(viewpoint="gm"))
    assert all(word in whole for word in ("Moth", "Traitor", "bridge_down"))
    made = ok(await sent(ada, files), 201)
    there = Table(ada, made)
    assert {each["name"] for each in (await there.get("/entities"))["items"]} == {
        "The Salty Sigil", "Sunfall Hills", "Marlena", "Inspector Holt", "Jake",
    }  # fmt: skip
    chats = (await ada.get("/chats"))["items"]
    [copy] = [each["id"] for each in chats if each["campaign_id"] == made["id"]]
    assert [line["text"] for line in await ada.messages(copy)][0::2] == ["One.", "Three."]
    answer = await ada.ask("GET", f"{table.path}/export", params={"viewpoint": made["id"]})
    problem(answer, 422, "validation-failed")


async def test_an_old_hidden_clock_is_for_the_gm(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, tmp_path) as server, server.account() as ada:
        made = await ada.post("/campaigns", {"name": "Seagate"}, 201)
        table, database = Table(ada, made), server.parts.database
        for name, visible in (("The Traitor", False), ("The Watch", True)):
            await table.add("clocks", name=name, visible=visible)
        async with database.write() as session:
            await session.execute(update(CampaignItem).values(audience="public"))
        await migrate.downgrade(database, "2026_11_18")
        await migrate.upgrade(database)
        answer = await ada.ask("GET", f"{table.path}/export", params={"viewpoint": "public"})
        clocks = json.loads(unzipped(answer.content)["clocks.json"])
        assert [each["name"] for each in clocks] == ["The Watch"]
