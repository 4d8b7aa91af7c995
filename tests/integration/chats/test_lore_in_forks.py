"""A copy of a chat has the chat's lorebooks, and what is sticky along the copied path."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.server import Account, ok

pytestmark = pytest.mark.anyio

API = "/api/v1"


async def fork(ada: Account, chat: str, message_id: str) -> str:
    made = await ada.client.post(f"{API}/chats/{chat}/fork", json={"message_id": message_id})
    return str(ok(made, 201)["id"])


async def new_book(ada: Account, chat: str, state: str, **entry: Any) -> str:
    book = ok(await ada.client.post(f"{API}/lorebooks", json={"name": "Inns"}), 201)["id"]
    ok(await ada.client.post(f"{API}/lorebooks/{book}/entries", json=entry), 201)
    ok(await ada.client.put(f"{API}/chats/{chat}/lorebooks/{book}", json={"state": state}))
    return str(book)


async def reasons(ada: Account, chat: str, text: str) -> list[str]:
    answer = await ada.client.get(f"{API}/chats/{chat}/context", params={"text": text})
    return [item["reason"] for item in ok(answer)["retrieved"]]


async def test_links_and_switches_come_along(ada: Account, chat: str) -> None:
    linked = await new_book(ada, chat, "linked", keys=["inn"], content="Warm.")
    off = await new_book(ada, chat, "off", keys=["inn"], content="Cold.")
    leaf = (await ada.messages(chat))[-1]["id"]
    copy = await fork(ada, chat, leaf)
    for book, state in ((linked, "linked"), (off, "off")):
        answer = await ada.client.get(f"{API}/chats/{copy}/lorebooks/{book}")
        assert ok(answer)["state"] == state


@pytest.mark.every_database
async def test_what_is_sticky_stays_sticky_in_a_copy(ada: Account, chat: str) -> None:
    await new_book(ada, chat, "linked", keys=["inn"], content="Warm.", sticky=20)
    await ada.turn(chat, text="We come to an inn.")
    for _ in range(2):
        await ada.turn(chat, text="We go on.")
    lines = await ada.messages(chat)
    assert "sticky" in (await reasons(ada, chat, "And now?"))[0]
    assert "sticky" in (await reasons(ada, await fork(ada, chat, lines[-1]["id"]), "And now?"))[0]
    before_it = await fork(ada, chat, lines[0]["id"])
    assert await reasons(ada, before_it, "And now?") == []
