"""Pictures of the user's lines: uploaded, stored with a line, and sent to models."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from PIL import Image
from sqlalchemy import update

from backend.chats.models import StoredFile
from backend.database.base import now
from backend.generation.images import IMAGE_TOKENS
from backend.operations.pruning import prune
from tests.fakes.openai_server import OpenAIServer, error, reply
from tests.integration.characters.pictures import METADATA, opened, picture
from tests.support.memory import context_of, set_chat, take_turn
from tests.support.models import asking
from tests.support.server import Account, Running, ok, problem, running

pytestmark = pytest.mark.anyio

COLORS = ("red", "orange", "yellow", "green", "blue", "indigo", "violet", "black", "white", "gray")


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    async with running(shared_url, tmp_path_factory.mktemp("data"), **asking(model)) as server:
        yield server


async def upload(
    account: Account, chat: str, data: bytes, name: str = "map.png", status: int = 201
) -> Any:
    files = {"file": (name, data)}
    return ok(await account.ask("POST", f"/chats/{chat}/files", files=files), status)


async def read_picture(account: Account, found: dict[str, Any]) -> bytes:
    answer = await account.ask("GET", f"/files/{found['id']}")
    assert answer.status_code == 200
    return answer.content


def sent_images(model: OpenAIServer) -> list[tuple[str, list[bytes]]]:
    """Return the text and the images of the last request's messages that have images."""
    [*_, request] = model.requests
    found: list[tuple[str, list[bytes]]] = []
    for message in request.body["messages"]:
        if isinstance(message["content"], list):
            parts: list[dict[str, Any]] = message["content"]
            text = "".join(each["text"] for each in parts if each["type"] == "text")
            urls = [each["image_url"]["url"] for each in parts if each["type"] == "image_url"]
            found.append((text, [base64.b64decode(url.partition(",")[2]) for url in urls]))
    return found


async def test_an_uploaded_picture_is_scaled_down_stripped_and_readable_by_its_owner(
    server: Running, ada: Account, chat: str
) -> None:
    photo = picture("JPEG", width=3000, height=1500)
    found = await upload(ada, chat, photo, "The old map.jpeg")
    assert (found["name"], found["media_type"]) == ("The old map.jpg", "image/jpeg")
    assert (found["width"], found["height"]) == (2048, 1024)
    assert found["tokens"] == pytest.approx(IMAGE_TOKENS, rel=0.2)

    got = await ada.ask("GET", f"/files/{found['id']}")
    assert opened(got.content).size == (2048, 1024)
    assert len(got.content) == found["size"]
    assert METADATA.encode() not in got.content
    assert got.headers["content-type"] == "image/jpeg"
    assert got.headers["content-disposition"].startswith('inline; filename="The old map.jpg"')
    assert got.headers["cache-control"] == "private, no-cache"
    assert got.headers["x-content-type-options"] == "nosniff"
    headers = {"If-None-Match": got.headers["etag"]}
    again = await ada.ask("GET", f"/files/{found['id']}", headers=headers)
    assert (again.status_code, again.content) == (304, b"")

    drawing = await upload(ada, chat, picture("GIF", width=20, height=10), "x.gif")
    assert drawing["media_type"] == "image/png"

    broken = {"file": ("map.png", b"\x89PNG\r\n\x1a\n no picture")}
    answer = await ada.ask("POST", f"/chats/{chat}/files", files=broken)
    problem(answer, 422, "unreadable-image")
    async with server.account("eve-of-pictures") as eve:
        problem(await eve.ask("GET", f"/files/{found['id']}"), 404, "file-not-found")
        answer = await eve.ask("POST", f"/chats/{chat}/files", files={"file": ("x.png", photo)})
        problem(answer, 404, "chat-not-found")


async def test_a_large_drawing_becomes_a_jpeg(ada: Account, chat: str) -> None:
    noise = random.Random(1).randbytes(1500 * 1500 * 4)
    target = io.BytesIO()
    Image.frombytes("RGBA", (1500, 1500), noise).save(target, "PNG", compress_level=1)
    found = await upload(ada, chat, target.getvalue())
    assert (found["media_type"], found["width"]) == ("image/jpeg", 1500)


async def test_a_picture_belongs_to_its_line_and_goes_to_the_model_with_the_history(
    ada: Account, chat: str, model: OpenAIServer
) -> None:
    found = await upload(ada, chat, picture(width=40, height=30))
    data = await read_picture(ada, found)
    reply_id = await take_turn(ada, chat, text="What is on the map?", files=[found["id"]])
    assert sent_images(model) == [("What is on the map?", [data])]
    *_, line, _ = await ada.messages(chat)
    [file] = line["files"]
    assert file == {
        "id": found["id"],
        "name": "map.png",
        "media_type": "image/png",
        "size": len(data),
        "width": 40,
        "height": 30,
    }
    context = await context_of(ada, reply_id)
    [item] = [each for each in context["items"] if each["kind"] == "user_line"]
    assert item["images"] == 1
    assert item["tokens"] > IMAGE_TOKENS

    # A line of pictures alone, with the earlier one in the history.
    other = await upload(ada, chat, picture(width=10, height=10, color="red"), "red.png")
    preview = await ada.post(f"/chats/{chat}/context", {"files": [other["id"]], "prompt": True})
    assert preview["prompt"][-1] == {"role": "user", "text": "[image]"}
    assert preview["history"]["images"] == 1
    assert preview["totals"]["history"] > IMAGE_TOKENS
    reply_id = await take_turn(ada, chat, files=[other["id"]])
    red = await read_picture(ada, other)
    assert sent_images(model) == [("What is on the map?", [data]), ("[image]", [red])]
    context = await context_of(ada, reply_id)
    assert context["history"]["images"] == 1
    assert (await ada.messages(chat))[-2]["text"] == "[image]"

    # A new reply to the stored line.
    await take_turn(ada, chat, regenerate_of=reply_id)
    assert sent_images(model)[-1] == ("[image]", [red])


async def test_the_estimate_of_a_line_counts_its_pictures(ada: Account, chat: str) -> None:
    wide, small = [
        await upload(ada, chat, picture(width=side, height=side, color=color))
        for side, color in ((1024, "red"), (16, "blue"))
    ]

    async def estimate(*files: dict[str, Any]) -> tuple[int, int]:
        wish = {"text": "What is on the maps?", "files": [each["id"] for each in files]}
        view = await ada.post(f"/chats/{chat}/context", wish)
        [line] = [each for each in view["items"] if each["kind"] == "user_line"]
        return line["tokens"], view["totals"]["prompt"]

    bare = await estimate()
    assert await estimate(wide) == tuple(each + wide["tokens"] for each in bare)
    both = wide["tokens"] + small["tokens"]
    assert await estimate(wide, small) == tuple(each + both for each in bare)


async def test_edits_and_forks_keep_pictures_until_the_last_message_is_deleted(
    ada: Account, chat: str
) -> None:
    found = await upload(ada, chat, picture(width=8, height=8))
    await take_turn(ada, chat, text="Look!", files=[found["id"]])
    line = (await ada.messages(chat))[-2]
    edited = await ada.patch(f"/messages/{line['id']}", {"text": "Look at this!"})
    assert edited["files"] == line["files"]
    fork = await ada.post(f"/chats/{chat}/fork", {"message_id": edited["id"]}, 201)
    assert (await ada.messages(fork["id"]))[-1]["files"] == line["files"]
    await ada.delete(f"/chats/{chat}")
    await read_picture(ada, found)
    await ada.delete(f"/chats/{fork['id']}")
    problem(await ada.ask("GET", f"/files/{found['id']}"), 404, "file-not-found")


async def test_a_prompt_has_the_newest_eight_pictures_and_notes_the_others(
    ada: Account, chat: str, model: OpenAIServer
) -> None:
    ids = [
        (await upload(ada, chat, picture(width=8, height=8, color=color)))["id"] for color in COLORS
    ]
    await take_turn(ada, chat, text="First.", files=ids[:2])
    reply_id = await take_turn(ada, chat, text="Then.", files=ids[2:])
    assert [(text, len(images)) for text, images in sent_images(model)] == [("Then.", 8)]
    notes = (await context_of(ada, reply_id))["notes"]
    assert any(note.startswith("2 images were left out.") for note in notes)
    answer = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": "Nine", "files": ids[:9]})
    assert answer.status_code == 422


async def test_a_small_budget_leaves_pictures_out(
    ada: Account, chat: str, model: OpenAIServer
) -> None:
    await set_chat(ada, chat, budgets={"total": 2048, "reply_reserve": 256})
    found = await upload(ada, chat, picture(width=8, height=8))
    reply_id = await take_turn(ada, chat, files=[found["id"]])
    assert sent_images(model) == []
    context = await context_of(ada, reply_id)
    assert any(note.startswith("1 image was left out.") for note in context["notes"])
    assert context["totals"]["prompt"] < IMAGE_TOKENS
    # A line of pictures alone gives the chat no title.
    assert (await ada.get(f"/chats/{chat}"))["title"] == "Mara"


async def test_unknown_files_are_refused_and_uploads_wait_for_a_day(
    server: Running, ada: Account, chat: str
) -> None:
    found = await upload(ada, chat, picture(width=8, height=8))
    async with server.account("bob-of-pictures") as bob:
        other = await bob.new_chat()
        body = {"text": "Mine?", "files": [found["id"]]}
        answer = await bob.ask("POST", f"/chats/{other['id']}/turns", json=body)
        problem(answer, 422, "unknown-file")
        assert await bob.messages(other["id"]) == []
    body = {"text": "Look!", "files": [found["id"], str(uuid4())]}
    problem(await ada.ask("POST", f"/chats/{chat}/turns", json=body), 422, "unknown-file")

    await upload(ada, chat, picture(width=8, height=8, color="red"))
    await read_picture(ada, found)
    past = update(StoredFile).where(StoredFile.id == UUID(found["id"]))
    async with server.parts.database.write() as session:
        await session.execute(past.values(waits_until=now() - timedelta(minutes=1)))
    # A message in time keeps a file.
    kept = await upload(ada, chat, picture(width=7, height=7))
    await take_turn(ada, chat, text="Look here!", files=[kept["id"]])
    await prune(server.parts.database, server.parts.settings)
    problem(await ada.ask("GET", f"/files/{found['id']}"), 404, "file-not-found")
    await read_picture(ada, kept)

    # The same picture, with another name, waits again.
    await upload(ada, chat, picture(width=8, height=8))
    again = await upload(ada, chat, picture(width=8, height=8), "again.png")
    await read_picture(ada, again)
    await take_turn(ada, chat, text="Look!", files=[again["id"]])
    assert (await ada.messages(chat))[-2]["files"][0]["name"] == "again.png"


async def test_a_model_without_vision_gets_no_pictures(ada: Account, chat: str) -> None:
    async with OpenAIServer() as blind:
        body = {"kind": "openai", "base_url": blind.url, "models": [{"name": "blind"}]}
        await ada.post("/providers", body, 201)
        ids = [each["id"] for each in (await ada.get("/models"))["items"]]
        [model_id] = [each for each in ids if each.endswith("/blind")]
        await set_chat(ada, chat, model=model_id)
        found = await upload(ada, chat, picture(width=8, height=8))
        assert found["tokens"] > 0
        blind.script(error(400, message="image input is not supported"), reply("I see none."))
        reply_id = await take_turn(ada, chat, text="Look!", files=[found["id"]])
        notes = (await context_of(ada, reply_id))["notes"]
        assert any("the model cannot read them" in note for note in notes)
        # Now it is known.
        assert (await upload(ada, chat, picture(width=9, height=9)))["tokens"] == 0
        reply_id = await take_turn(ada, chat, text="And now?")
        context = await context_of(ada, reply_id)
        note = "1 image was left out, because the model cannot read images."
        assert note in context["notes"]
        assert context["totals"]["history"] < IMAGE_TOKENS
