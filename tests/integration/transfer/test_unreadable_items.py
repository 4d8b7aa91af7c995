"""Accounts with damaged rows still get an archive, with everything else."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from backend.accounts.keys.sealed_tables import find_model_tables
from backend.chats.models import MESSAGE_THINKING
from backend.transfer.archives.comparison import compare_archives
from tests.support.archived_rows import add_file_and_source, add_work
from tests.support.archives import find_identity, make_archive, read_files
from tests.support.full_account import fill_account
from tests.support.importing import bring, chat_jsonl, preset_json, world_json
from tests.support.server import Account, Running, ok, running

pytestmark = [pytest.mark.anyio]

EntryKey = tuple[str, str]
"""The kind of a file, and the id of its item or else its path."""


@dataclass(frozen=True)
class Case:
    """A damaged value, and its effect.

    `where` chooses the row. `lost` are the kinds of the files that are missing in the archive, and
    `changed` those of the files that have lost a part.
    """

    place: str
    kind: str
    lost: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    where: str = "1 = 1"

    def __str__(self) -> str:
        return f"{self.place}-{self.kind}"


def loses(place: str, kind: str, *lost: str, where: str = "1 = 1", changed: str = "") -> Case:
    return Case(place, kind, frozenset(lost or {kind}), frozenset(changed.split()), where)


def changes(place: str, kind: str, changed: str, where: str = "1 = 1") -> Case:
    return Case(place, kind, changed=frozenset({changed}), where=where)


OUTSIDE = "chat_id IN (SELECT id FROM chats WHERE campaign_id IS NULL)"
IN_CAMPAIGN = "chat_id IN (SELECT id FROM chats WHERE campaign_id IS NOT NULL)"
OF_CARD = "character_id IS NOT NULL"
OF_NO_CARD = "character_id IS NULL"
ITS_BOOK = "lorebook_id IN (SELECT id FROM lorebooks WHERE character_id IS NOT NULL)"
OWN_BOOK = "lorebook_id IN (SELECT id FROM lorebooks WHERE character_id IS NULL)"
OF_CAMPAIGN = "chronicle_id IN (SELECT chronicle_id FROM campaigns)"
OF_NO_CAMPAIGN = "chronicle_id NOT IN (SELECT chronicle_id FROM campaigns)"
CAMPAIGN = ("campaign", "campaign", "campaign_state")

CASES = [
    changes("users.sealed_settings", "settings", "settings"),
    changes("users.sealed_variables", "variables", "settings"),
    loses("users.sealed_scripts", "scripts"),
    loses("providers.sealed_config", "provider"),
    loses("presets.sealed_preset", "preset"),
    loses("presets.sealed_source", "preset"),
    loses(
        "personas.sealed_persona",
        "persona",
        "persona",
        "avatar",
        where="id IN (SELECT persona_id FROM avatars)",
    ),
    loses("avatars.sealed_image", "avatar", where="persona_id IS NOT NULL"),
    loses("avatars.sealed_image", "character", where=OF_CARD),
    loses("characters.sealed_card", "character"),
    loses("characters.sealed_source", "character"),
    loses("card_files.sealed_data", "character"),
    loses("character_assets.sealed_description", "character"),
    loses("character_assets.sealed_data", "character"),
    loses("lorebooks.sealed_book", "lorebook", where=OF_NO_CARD),
    loses("lorebooks.sealed_book", "character", where=OF_CARD),
    loses("lorebooks.sealed_source", "lorebook", where=OF_NO_CARD),
    loses("lore_entries.sealed_entry", "lorebook", where=OWN_BOOK),
    loses("lore_entries.sealed_entry", "character", where=ITS_BOOK),
    loses("lore_entries.sealed_source", "lorebook", where=OWN_BOOK),
    loses("backgrounds.sealed_image", "background", "chat_background", where="chat_id IS NOT NULL"),
    loses("stored_files.sealed_description", "file", changed="chat_state"),
    loses("stored_files.sealed_data", "file", changed="chat_state"),
    changes("message_files.sealed_reference", "file_name", "chat_state"),
    changes("chats.sealed_title", "chat_title", "chat", "campaign_id IS NULL"),
    loses("chats.sealed_title", *CAMPAIGN, where="campaign_id IS NOT NULL"),
    changes("chats.sealed_settings", "chat_settings", "chat_state", "campaign_id IS NULL"),
    changes("chats.sealed_settings", "chat_settings", "campaign_state", "campaign_id IS NOT NULL"),
    changes("chats.sealed_variables", "chat_variables", "chat_state"),
    changes("messages.sealed_author", "message", "chat", OUTSIDE),
    changes("messages.sealed_content", "message", "chat", f"position = 0 AND {OUTSIDE}"),
    changes("messages.sealed_content", "message", "chat", f"position = 2 AND {OUTSIDE}"),
    loses("messages.sealed_content", *CAMPAIGN, where=IN_CAMPAIGN),
    changes("messages.sealed_typed", "message", "chat", OUTSIDE),
    changes("messages.sealed_thinking", "message", "chat", OUTSIDE),
    changes("messages.sealed_source", "message", "chat", OUTSIDE),
    changes("messages.sealed_injected_context", "message", "campaign_state"),
    changes("chat_summaries.sealed_summary", "summary", "chat_state", OUTSIDE),
    changes("lore_states.sealed_state", "lore_state", "chat_state", OUTSIDE),
    loses("imported_files.sealed_source", "chat_source", "chat_state"),
    loses("campaigns.sealed_campaign", *CAMPAIGN),
    loses("campaign_items.sealed_state", *CAMPAIGN),
    loses("campaign_changes.sealed_operations", *CAMPAIGN),
    changes("campaign_proposals.sealed_proposal", "proposal", "campaign_state"),
    loses(
        "chronicles.sealed_chronicle",
        "chronicle",
        where="id NOT IN (SELECT chronicle_id FROM campaigns)",
    ),
    changes(
        "chronicles.sealed_chronicle",
        "chronicle",
        "campaign_state",
        "id IN (SELECT chronicle_id FROM campaigns)",
    ),
    loses("chronicle_events.sealed_event", "chronicle", where=OF_NO_CAMPAIGN),
    loses("chronicle_events.sealed_event", *CAMPAIGN, where=OF_CAMPAIGN),
]

NOT_IN_ARCHIVES = {
    "account_activity",
    "client_chats",
    "client_requests",
    "client_rules",
    "context_records",
    "context_texts",
    "embeddings",
    "enrichment_runs",
    "idempotent_requests",
    "import_results",
    "imports",
    "key_slots",
    "second_factors",
    "turns",
    "avatars.sealed_thumbnail",
    "characters.sealed_summary",
    "presets.sealed_name",
}
"""Tables and columns that are copied from others, or belong to the installation."""


def test_every_sealed_column_has_a_case() -> None:
    sealed = {
        f"{each.table.name}.{column.name}"
        for each in find_model_tables()
        for column in each.columns
        if each.table.name not in NOT_IN_ARCHIVES
    }
    assert sealed - NOT_IN_ARCHIVES == {case.place for case in CASES}


@dataclass(frozen=True)
class Whole:
    """An undamaged account on a server, and its archive."""

    server: Running
    ada: Account
    archive: bytes


@pytest.fixture(scope="module")
async def whole(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Whole]:
    folder = tmp_path_factory.mktemp("whole")
    file = await asyncio.to_thread(shutil.copy, sqlite_template, folder / "whole.sqlite3")
    async with (
        running(f"sqlite+aiosqlite:///{file}", folder) as server,
        server.account("Ada") as ada,
    ):
        await _fill(server, ada)
        yield Whole(server, ada, await make_archive(ada))


async def _fill(server: Running, account: Account) -> None:
    full = await fill_account(account)
    await add_work(server, account, full)
    for path, name, data in (
        ("/presets/import", "Imported.json", preset_json()),
        ("/lorebooks/import", "Imported.json", world_json("lamp")),
    ):
        ok(await account.ask("POST", path, files={"file": (name, data)}), 201)
    await bring(account, chat_jsonl(6), "Mara - 2024.jsonl")
    [line, *_] = await account.messages(full.ids["inn"])
    await add_file_and_source(server, account, line["id"])
    identity = await find_identity(server, account)
    thought = identity.sealer.seal(MESSAGE_THINKING, UUID(line["id"]), "Hm.")
    async with server.parts.database.write() as session:
        query = text("UPDATE messages SET sealed_thinking = :thought WHERE id = :id")
        await session.execute(query, {"thought": thought, "id": UUID(line["id"]).bytes})


@asynccontextmanager
async def damage(server: Running, case: Case) -> AsyncGenerator[None]:
    """Change the last byte of one value until the block ends."""
    table, column = case.place.split(".")
    found = f"SELECT id, {column} FROM {table} WHERE {column} IS NOT NULL AND {case.where}"
    change = text(f"UPDATE {table} SET {column} = :blob WHERE id = :id")
    async with server.parts.database.write() as session:
        row_id, blob = (await session.execute(text(f"{found} ORDER BY id LIMIT 1"))).one()
        damaged = blob[:-1] + bytes([blob[-1] ^ 1])
        await session.execute(change, {"blob": damaged, "id": row_id})
    try:
        yield
    finally:
        async with server.parts.database.write() as session:
            await session.execute(change, {"blob": blob, "id": row_id})


def _read_entries(data: bytes) -> Mapping[EntryKey, bytes]:
    files = read_files(data)
    entries = json.loads(files["manifest.json"])["entries"]
    return {(each["kind"], each.get("id", each["path"])): files[each["path"]] for each in entries}


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_damaged_value_costs_only_its_item(case: Case, whole: Whole) -> None:
    async with damage(whole.server, case):
        archive = await make_archive(whole.ada)
        assert (await whole.ada.get("/me/archive/status"))["unreadable"] == 1
    manifest = json.loads(read_files(archive)["manifest.json"])
    assert [each["kind"] for each in manifest["unreadable"]] == [case.kind]
    before, after = _read_entries(whole.archive), _read_entries(archive)
    assert after.keys() <= before.keys()
    lost = before.keys() - after.keys()
    assert sorted(kind for kind, _ in lost) == sorted(case.lost)
    changed = {key for key, data in after.items() if data != before[key]}
    assert sorted(kind for kind, _ in changed) == sorted(case.changed)


FIRST_CASES = {case.kind: case for case in reversed(CASES)}
"""The first case of each kind of item."""


@pytest.mark.parametrize("case", FIRST_CASES.values(), ids=str)
async def test_an_archive_without_a_damaged_item_is_imported(case: Case, whole: Whole) -> None:
    async with damage(whole.server, case):
        archive = await make_archive(whole.ada)
    async with whole.server.account(uuid4().hex) as bea:
        _, results = await bring(bea, archive)
        report = results.pop("manifest.json")
        assert report["detail"].endswith(f": {case.kind.replace('_', ' ')} (1).")
        assert {each["outcome"] for each in results.values()} == {"imported"}
        again = await make_archive(bea)
    counts = [json.loads(read_files(each)["manifest.json"])["counts"] for each in (archive, again)]
    assert counts[0] == counts[1]


async def test_a_damaged_message_keeps_its_place(whole: Whole) -> None:
    case = changes("messages.sealed_content", "message", "chat", f"position = 2 AND {OUTSIDE}")
    async with damage(whole.server, case):
        archive = await make_archive(whole.ada)
    [item] = json.loads(read_files(archive)["manifest.json"])["unreadable"]
    lines = [
        json.loads(line)
        for path, data in read_files(archive).items()
        if path.startswith("chats/") and path.endswith(".jsonl")
        for line in data.splitlines()[1:]
    ]
    [damaged] = [each for each in lines if each["id"] == item["id"]]
    assert "text" not in damaged
    assert damaged["author"]
    assert [each for each in lines if each.get("parent_id") == item["id"]]


async def test_a_comparison_reports_unreadable_items(whole: Whole) -> None:
    async with damage(whole.server, loses("users.sealed_scripts", "scripts")):
        archive = await make_archive(whole.ada)
    found = compare_archives(io.BytesIO(whole.archive), io.BytesIO(archive))
    first, second = [each.render() for each in found]
    assert first.startswith('manifest.json: unreadable[0]: missing / "scripts ')
    assert second == "regex.json: only in the first"
