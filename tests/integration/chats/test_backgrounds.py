"""Tests of backgrounds of chats and characters."""

from __future__ import annotations

import pytest

from tests.integration.characters.pictures import METADATA, opened, picture
from tests.support.server import Account, ok, problem
from tests.support.shared import ada, chat, server, shared_url

__all__ = ["ada", "chat", "server", "shared_url"]

pytestmark = pytest.mark.anyio

PNG = {"content-type": "image/png"}


@pytest.fixture(params=["chats", "characters"])
async def holder(request: pytest.FixtureRequest, ada: Account, chat: str) -> str:
    """The path of a chat or of a character."""
    if request.param == "chats":
        return f"/chats/{chat}"
    return f"/characters/{(await ada.get('/characters'))['items'][0]['id']}"


async def test_a_background_is_encoded_again_and_scaled(ada: Account, holder: str) -> None:
    path = f"{holder}/background"
    problem(await ada.ask("GET", path), 404, "background-not-found")

    sent = await ada.ask("PUT", path, content=picture(width=5000, height=1000), headers=PNG)

    assert sent.status_code == 204
    shown = await ada.ask("GET", path)
    image = opened(shown.content)
    assert (image.format, image.size) == ("WEBP", (2560, 512))
    assert METADATA.encode() not in shown.content
    assert shown.headers["content-type"] == "image/webp"
    assert shown.headers["x-content-type-options"] == "nosniff"
    again = await ada.ask("GET", path, headers={"If-None-Match": shown.headers["etag"]})
    assert again.status_code == 304
    # A picture that has this form already is kept.
    await ada.ask("PUT", path, content=shown.content, headers={"content-type": "image/webp"})
    assert (await ada.ask("GET", path)).content == shown.content
    problem(await ada.ask("PUT", path, content=b"", headers=PNG), 422, "unreadable-image")


async def test_a_list_names_the_backgrounds(ada: Account, holder: str) -> None:
    member = "chat_id" if holder.startswith("/chats") else "character_id"
    path = f"{holder}/background"
    for color in ("teal", "red"):
        form = {"file": ("me.png", picture(width=8, height=8, color=color), "text/html")}
        assert (await ada.ask("PUT", path, files=form)).status_code == 204

    [item] = (await ada.get("/backgrounds"))["items"]

    assert item[member] == holder.rpartition("/")[2]
    assert {"chat_id": None, "character_id": None}.items() <= (item | {member: None}).items()
    await ada.delete(path)
    assert (await ada.get("/backgrounds"))["items"] == []
    problem(await ada.ask("DELETE", path), 404, "background-not-found")


async def test_a_background_goes_with_its_holder(ada: Account, holder: str) -> None:
    await ada.ask("PUT", f"{holder}/background", content=picture(width=8, height=8), headers=PNG)
    await ada.delete(holder)
    assert (await ada.get("/backgrounds"))["items"] == []


async def test_a_copied_chat_has_a_copy_of_the_background(ada: Account, chat: str) -> None:
    path = f"/chats/{chat}"
    await ada.ask("PUT", f"{path}/background", content=picture(width=8, height=8), headers=PNG)
    [message] = await ada.messages(chat)

    fork = ok(await ada.ask("POST", f"{path}/fork", json={"message_id": message["id"]}), 201)

    own, other = [await ada.ask("GET", f"/chats/{each}/background") for each in (chat, fork["id"])]
    assert own.content == other.content
    assert own.headers["etag"] != other.headers["etag"]
