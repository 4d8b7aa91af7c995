"""Tests of favourites, copies, and exports of several characters."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any
from uuid import uuid4

import pytest

from backend.characters.cards.reader import read_card
from tests.integration.characters.people import CARDS
from tests.integration.characters.pictures import opened, picture
from tests.support.server import Account, ok, problem
from tests.support.shared import ada, server, shared_url

__all__ = ["ada", "server", "shared_url"]

pytestmark = pytest.mark.anyio

PNG = {"content-type": "image/png"}


async def export(account: Account, **body: Any) -> dict[str, bytes]:
    """The files of a zip of cards, by their paths."""
    answer = await account.ask("POST", "/characters/export", json=body)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as zipped:
        assert zipped.testzip() is None
        return {name: zipped.read(name) for name in zipped.namelist()}


async def test_a_favourite_keeps_its_revision_and_its_card(ada: Account) -> None:
    made = await ada.new_character(name="Magda")
    path = f"/characters/{made['id']}"

    marked = await ada.patch(path, {"is_favourite": True})

    assert marked == made | {"is_favourite": True}
    [item] = (await ada.get("/characters"))["items"]
    assert item["is_favourite"] is True
    changed = await ada.patch(path, {"is_favourite": None, "personality": "Dry."})
    assert (changed["is_favourite"], changed["personality"]) == (False, "Dry.")
    refused = await ada.ask("PATCH", path, json={"is_favourite": "yes"})
    problem(refused, 422, "validation-failed")
    stale = await ada.ask(
        "PATCH", path, json={"is_favourite": True}, headers={"If-Match": f'"{made["revision"]}"'}
    )
    problem(stale, 412, "revision-mismatch")


async def test_a_copy_has_everything_except_the_chats(ada: Account) -> None:
    upload = {"file": ("card", (CARDS / "syn_v3.charx").read_bytes())}
    made = ok(await ada.ask("POST", "/characters/import", files=upload), 201)["character"]
    path = f"/characters/{made['id']}"
    book = ok(await ada.ask("POST", "/lorebooks", json={"name": "Saltwick"}), 201)
    ok(await ada.ask("PUT", f"{path}/lorebooks/{book['id']}"), 204)
    for part in ("avatar", "background"):
        await ada.ask("PUT", f"{path}/{part}", content=picture(width=9, height=9), headers=PNG)
    await ada.new_chat(character_ids=[made["id"]])

    copy = ok(await ada.ask("POST", f"{path}/duplicate", json={}), 201)

    own = {"id", "lorebook_id", "created_at", "updated_at", "name", "nickname"}
    assert {key: value for key, value in copy.items() if key not in own} == {
        key: value for key, value in made.items() if key not in own
    } | {"has_avatar": True, "revision": 1}
    assert copy["name"] == f"{made['name']} (copy)"
    assert copy["nickname"] == (made["nickname"] or made["name"])
    there = f"/characters/{copy['id']}"
    for part in ("avatar", "background"):
        image = await ada.ask("GET", f"{there}/{part}")
        assert opened(image.content).size == (9, 9)
    linked = (await ada.get(f"{there}/lorebooks"))["items"]
    assert [each["id"] for each in linked if each["id"] != copy["lorebook_id"]] == [book["id"]]
    assert (await ada.get("/chats", character_id=copy["id"]))["items"] == []
    files = [
        {each.path: each.data for each in read_card(answer.content).assets}
        for answer in [
            await ada.ask("GET", f"{each}/export?format=charx") for each in (path, there)
        ]
    ]
    assert files[0].keys() == files[1].keys() != set()
    named = await ada.ask("POST", f"{path}/duplicate", json={"name": "Other"})
    assert ok(named, 201)["name"] == "Other"
    blank = await ada.ask("POST", f"{path}/duplicate", json={"name": " "})
    problem(blank, 422, "validation-failed")


async def test_several_cards_are_one_zip(ada: Account) -> None:
    names = ("Mara", "mara", "Kit")
    ids = [(await ada.new_character(name=name))["id"] for name in names]

    files = await export(ada, character_ids=[*ids, ids[0]], format="json")

    assert list(files) == ["Mara.json", "mara (2).json", "Kit.json"]
    cards = [json.loads(data)["data"]["name"] for data in files.values()]
    assert cards == list(names)
    pictures = await export(ada, character_ids=ids[2:])
    assert read_card(pictures["Kit.png"]).card.name == "Kit"


async def test_an_export_of_unknown_or_too_many_characters_is_refused(ada: Account) -> None:
    mine = (await ada.new_character(name="Kit"))["id"]
    for wanted, status, slug in (
        ([mine, str(uuid4())], 404, "character-not-found"),
        ([], 422, "validation-failed"),
        ([mine] * 501, 422, "validation-failed"),
    ):
        answer = await ada.ask("POST", "/characters/export", json={"character_ids": wanted})
        problem(answer, status, slug)
