"""Files that are refused, and uploads that are no file: nothing of them is left."""

from __future__ import annotations

import json
import tempfile
from typing import Any, NoReturn

import pytest
from sqlalchemy import text

from backend.database.engine import Database
from tests.integration.characters.people import (
    CARDS,
    FOREIGN,
    ON_SQLITE_ALONE,
    Person,
    count_rows,
    problem,
)
from tests.integration.characters.pictures import archive, picture

pytestmark = pytest.mark.anyio

PNG_CARD = (CARDS / "syn_v2_and_v3_precedence.png").read_bytes()
CHARX_CARD = (CARDS / "syn_v3.charx").read_bytes()
JSON_CARD = (CARDS / "syn_v3.json").read_bytes()


def nested(depth: int) -> bytes:
    return b'{"name": "Magda", "extensions": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"


def with_members(**members: Any) -> bytes:
    return json.dumps({"spec": "chara_card_v2", "data": {"name": "M", **members}}).encode()


HOSTILE: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 422, "unreadable-card"),
    "blank": (b" \n", 422, "unreadable-card"),
    "no card": (b'{"hello": "world"}', 422, "unreadable-card"),
    "no object": (b"[1, 2, 3]", 422, "unreadable-card"),
    "no name": (b'{"description": "nobody"}', 422, "unreadable-card"),
    "broken json": (JSON_CARD[:-20], 422, "unreadable-card"),
    "deep json": (nested(65), 422, "card-limit"),
    "very deep json": (nested(100_000), 422, "card-limit"),
    "binary": (bytes(range(256)), 422, "unreadable-card"),
    "lorebook": ((CARDS / "syn_lorebook_v3.json").read_bytes(), 422, "unreadable-card"),
    "group": (
        (FOREIGN / "st_group.json").read_bytes(),
        422,
        "unreadable-card",
    ),
    "several lines": (
        b'{"user_name": "U", "character_name": "C"}\n{"mes": "x"}',
        422,
        "unreadable-card",
    ),
    "long text": (with_members(scenario="s" * 200_001), 422, "card-limit"),
    "yaml tags": (b"name: !!python/object/apply:os.system [id]", 422, "unreadable-card"),
    "yaml bomb": (
        b"a: &a [x, x, x, x, x, x, x, x]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (b + 1, b + 1, b", ".join([b"*%c" % b] * 8))
            for b in range(ord("a"), ord("j"))
        ),
        422,
        "card-limit",
    ),
    "plain picture": (picture(), 422, "no-card-in-image"),
    "jpeg": (picture("JPEG"), 422, "no-card-in-image"),
    "cut png": (PNG_CARD[:-30], 422, "unreadable-card"),
    "cut charx": (CHARX_CARD[:-30], 422, "unreadable-card"),
    "charx without a card": (archive({"readme.txt": b"hi"}), 422, "unreadable-card"),
    "charx that climbs": (
        archive({"card.json": JSON_CARD, "../../evil.png": b"x"}),
        422,
        "unreadable-card",
    ),
    "charx bomb": (
        archive({"card.json": JSON_CARD, "assets/zeros.png": bytes(30_000_000)}),
        422,
        "card-limit",
    ),
    "file over the limit": (bytes(20 * 1024 * 1024 + 1), 413, "too-large"),
    "body over the limit": (bytes(22 * 1024 * 1024), 413, "too-large"),
}


@ON_SQLITE_ALONE
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_file_that_is_refused_leaves_nothing_behind(
    ada: Person, database: Database, name: str
) -> None:
    data, status, slug = HOSTILE[name]
    before = await count_rows(database)

    refusal = problem(await ada.upload(data), status, slug)

    assert refusal["detail"]
    assert await count_rows(database) == before


async def test_an_import_that_fails_half_way_leaves_nothing_behind(
    ada: Person, database: Database
) -> None:
    async with database.write() as session:
        await session.execute(text("DROP TABLE avatars"))
    before = await count_rows(database)

    answer = await ada.upload(CHARX_CARD)

    assert answer.status_code >= 500
    assert await count_rows(database) == before


@ON_SQLITE_ALONE
@pytest.mark.parametrize(
    ("options", "status", "slug"),
    [
        ({"json": {"name": "Magda"}}, 415, "unsupported-media-type"),
        ({"data": {"file": "in a plain form"}}, 415, "unsupported-media-type"),
        ({"files": {"card": JSON_CARD}}, 422, "validation-failed"),
        ({"files": [("file", JSON_CARD), ("file", JSON_CARD)]}, 422, "validation-failed"),
        ({"files": [("file", b"x")] * 17}, 400, "bad-request"),
        (
            {
                "content": b"--x\r\ncut",
                "headers": {"Content-Type": "multipart/form-data; boundary=x"},
            },
            400,
            "bad-request",
        ),
        (
            {"content": JSON_CARD, "headers": {"Content-Type": "multipart/form-data"}},
            400,
            "bad-request",
        ),
    ],
    ids=["json", "plain form", "no file", "two files", "many parts", "cut", "no boundary"],
)
async def test_a_card_comes_as_one_file_in_a_form(
    ada: Person, database: Database, options: dict[str, Any], status: int, slug: str
) -> None:
    before = await count_rows(database)

    problem(await ada.post("/characters/import", **options), status, slug)

    assert await count_rows(database) == before


@ON_SQLITE_ALONE
async def test_an_upload_is_never_written_to_a_temporary_file(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        pytest.fail("a temporary file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    padded = json.loads(JSON_CARD) | {"padding": "p" * 3_000_000}

    imported = await ada.import_card(json.dumps(padded).encode())

    assert imported["character"]["name"] == "RIGHT_ccv3"
