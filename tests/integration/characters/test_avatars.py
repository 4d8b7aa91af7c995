"""Tests of pictures of characters and personas."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from litestar import Litestar

from backend.accounts.auth.identity import Identity
from backend.characters.avatars import AvatarService
from backend.characters.personas import PersonaService
from backend.characters.schemas import PersonaFields
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.generation.images import IMAGE_TYPES
from tests.integration.characters.people import ON_SQLITE_ALONE, Person, body, count_rows
from tests.integration.characters.pictures import METADATA, opened, picture
from tests.support.server import problem

pytestmark = pytest.mark.anyio

PNG = {"Content-Type": "image/png"}


@pytest.fixture(params=["/characters", "/personas"])
async def holder(request: pytest.FixtureRequest, ada: Person) -> str:
    """The path of a character or a persona."""
    collection: str = request.param
    return f"{collection}/{(await ada.make(collection, name='Magda'))['id']}"


async def read_item(person: Person, holder: str) -> dict[str, Any]:
    items: list[dict[str, Any]] = body(await person.get(holder.rpartition("/")[0]))["items"]
    return items[0]


@ON_SQLITE_ALONE
@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif"])
async def test_a_picture_is_encoded_in_two_sizes(ada: Person, holder: str, kind: str) -> None:
    original = picture(kind.upper())
    assert METADATA.encode() in original

    sent = await ada.put(
        f"{holder}/avatar", content=original, headers={"Content-Type": f"image/{kind}"}
    )

    assert sent.status_code == 204
    for size, side in (("full", 1024), ("thumbnail", 256)):
        answer = await ada.get(f"{holder}/avatar?size={size}")
        image = opened(answer.content)
        assert max(image.size) == side
        assert image.format == "WEBP"
        assert METADATA.encode() not in answer.content
        assert answer.headers["content-type"] == "image/webp"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "private, no-cache"


async def test_a_picture_comes_in_a_form_too(ada: Person, holder: str) -> None:
    sent = await ada.put(
        f"{holder}/avatar",
        data={"remark": "not looked at"},
        files={"file": ("me.png", picture(width=40, height=60), "text/html")},
    )
    assert sent.status_code == 204
    assert opened((await ada.get(f"{holder}/avatar")).content).size == (40, 60)


async def test_views_and_lists_say_whether_there_is_a_picture(ada: Person, holder: str) -> None:
    before = (
        body(await ada.get(holder))["has_avatar"],
        (await read_item(ada, holder))["has_avatar"],
    )
    await ada.put(f"{holder}/avatar", content=picture(), headers=PNG)
    after = (
        body(await ada.get(holder))["has_avatar"],
        (await read_item(ada, holder))["has_avatar"],
    )
    assert (before, after) == ((False, False), (True, True))
    patched = body(await ada.patch(holder, json={"name": "Magdalena"}))
    assert patched["has_avatar"] is True


async def test_a_picture_that_is_known_is_not_sent_again(ada: Person, holder: str) -> None:
    await ada.put(f"{holder}/avatar", content=picture(), headers=PNG)
    first = await ada.get(f"{holder}/avatar")
    tag = first.headers["etag"]
    same = await ada.get(f"{holder}/avatar", headers={"If-None-Match": f'"other", W/{tag}'})
    thumbnail = await ada.get(f"{holder}/avatar?size=thumbnail", headers={"If-None-Match": tag})
    await ada.put(f"{holder}/avatar", content=picture(color="red"), headers=PNG)
    changed = await ada.get(f"{holder}/avatar", headers={"If-None-Match": tag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert thumbnail.status_code == 200
    assert changed.status_code == 200
    assert changed.content != first.content


async def test_a_new_picture_takes_the_place_of_the_old_one(
    ada: Person, database: Database, holder: str
) -> None:
    for color in ("teal", "red"):
        await ada.put(f"{holder}/avatar", content=picture(color=color), headers=PNG)
    assert (await count_rows(database))["avatars"] == 1
    red, green, blue = opened((await ada.get(f"{holder}/avatar")).content).getpixel((5, 5)) or ()  # type: ignore[misc]  # Pillow types pixels of any mode
    assert red > 200 > green + blue


async def test_one_of_several_concurrent_pictures_is_stored(
    database: Database, identities: dict[str, Identity]
) -> None:
    personas, avatars = PersonaService(database), AvatarService(database, CpuPool())
    owner = identities["ada"]
    persona_id = (await personas.create(owner, PersonaFields(name="Ada"))).id
    pictures = [picture(color=color) for color in ("teal", "red", "white")]
    await asyncio.gather(
        *(avatars.replace(owner, "persona", persona_id, data) for data in pictures)
    )
    assert (await count_rows(database))["avatars"] == 1


async def test_a_deleted_picture_is_gone(ada: Person, database: Database, holder: str) -> None:
    await ada.put(f"{holder}/avatar", content=picture(), headers=PNG)
    assert (await ada.delete(f"{holder}/avatar")).status_code == 204
    problem(await ada.get(f"{holder}/avatar"), 404, "avatar-not-found")
    problem(await ada.delete(f"{holder}/avatar"), 404, "avatar-not-found")
    assert (await count_rows(database))["avatars"] == 0


async def test_a_picture_goes_with_whom_it_shows(
    ada: Person, database: Database, holder: str
) -> None:
    await ada.put(f"{holder}/avatar", content=picture(), headers=PNG)
    await ada.delete(holder)
    assert (await count_rows(database))["avatars"] == 0


@ON_SQLITE_ALONE
@pytest.mark.parametrize(
    ("content", "media_type", "status", "slug"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/png", 422, "unreadable-image"),
        (b"", "image/png", 422, "unreadable-image"),
        (picture()[:200], "image/png", 422, "unreadable-image"),
        (picture("BMP"), "image/png", 422, "unreadable-image"),
        (picture(width=5001, height=5000), "image/png", 422, "unreadable-image"),
        (b"\x89PNG\r\n\x1a\n" + bytes(20 * 1024 * 1024), "image/png", 413, "too-large"),
        (b"\x89PNG\r\n\x1a\n" + bytes(22 * 1024 * 1024), "image/png", 413, "too-large"),
        (picture(), "image/svg+xml", 415, "unsupported-media-type"),
        (picture(), "application/json", 415, "unsupported-media-type"),
    ],
    ids=["svg", "empty", "cut", "bmp", "pixels", "bytes", "body", "type", "json"],
)
async def test_a_picture_that_is_refused_leaves_the_old_one(
    ada: Person, holder: str, content: bytes, media_type: str, status: int, slug: str
) -> None:
    await ada.put(f"{holder}/avatar", content=picture(), headers=PNG)
    before = await ada.get(f"{holder}/avatar")
    answer = await ada.put(
        f"{holder}/avatar", content=content, headers={"Content-Type": media_type}
    )
    problem(answer, status, slug)
    assert (await ada.get(f"{holder}/avatar")).content == before.content


@ON_SQLITE_ALONE
async def test_there_are_two_sizes(ada: Person, holder: str) -> None:
    problem(await ada.get(f"{holder}/avatar?size=huge"), 422, "validation-failed")


@ON_SQLITE_ALONE
async def test_the_documentation_says_how_to_send_a_picture(app: Litestar) -> None:
    paths: dict[str, Any] = app.openapi_schema.to_schema()["paths"]
    for path in ("/characters/{character_id}/avatar", "/personas/{persona_id}/avatar"):
        content: dict[str, Any] = paths[path]["put"]["requestBody"]["content"]
        assert content.keys() == {"multipart/form-data", *IMAGE_TYPES}
    imported: dict[str, Any] = paths["/characters/import"]["post"]["requestBody"]["content"]
    assert imported["multipart/form-data"]["schema"]["required"] == ["file"]
