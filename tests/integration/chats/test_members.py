"""Tests of members: who takes part in a chat, who joins, leaves or is muted, and what they know."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.support.models import asking
from tests.support.server import Account, Running, ok, running

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

Line = dict[str, Any]


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[OpenAIServer]:
    """A model server that keeps the requests it has received."""
    async with OpenAIServer() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    async with running(shared_url, tmp_path_factory.mktemp("data"), **asking(model)) as server:
        yield server


@pytest.fixture
async def alda(ada: Account) -> str:
    return str((await ada.new_character(name="Alda", first_mes="Alda waits."))["id"])


@pytest.fixture
async def bor(ada: Account) -> str:
    return str((await ada.new_character(name="Bor", first_mes="Bor waits."))["id"])


@pytest.fixture
async def group(ada: Account, alda: str, bor: str) -> str:
    """A chat with Alda and Bor, which begins with Alda's greeting."""
    return str((await ada.new_chat(character_ids=[alda, bor]))["id"])


async def set_presence(ada: Account, chat: str, character: str, presence: str, **more: Any) -> Any:
    path = f"/chats/{chat}/members/{character}"
    return ok(await ada.ask("PATCH", path, json={"presence": presence, **more}))


async def presences(ada: Account, chat: str) -> dict[str, str]:
    members: Any = await ada.get(f"/chats/{chat}/members")
    return {member["name"]: member["presence"] for member in members}


async def describe_path(ada: Account, chat: str) -> list[tuple[str, str | None, bool]]:
    return [(line["text"], line["presence"], line["hidden"]) for line in await ada.messages(chat)]


async def test_members_from_the_start_are_present(
    ada: Account, group: str, alda: str, bor: str
) -> None:
    members: Any = await ada.get(f"/chats/{group}/members")
    assert members == [
        {
            "character_id": each,
            "name": name,
            "presence": "present",
            "since": None,
            "talkativeness": 0.5,
            "narrates": False,
        }
        for each, name in ((alda, "Alda"), (bor, "Bor"))
    ]


async def test_a_member_leaves_returns_and_is_muted(ada: Account, group: str, bor: str) -> None:
    for presence, text in (
        ("absent", "Bor leaves."),
        ("present", "Bor joins."),
        ("muted", "Bor only listens."),
        ("present", "Bor speaks again."),
    ):
        members = await set_presence(ada, group, bor, presence)
        last = (await ada.messages(group))[-1]
        assert members[1]["presence"] == last["presence"] == presence
        assert members[1]["since"] == last["position"]
        assert (last["text"], last["author"], last["character_id"]) == (text, "Bor", bor)
        assert (last["role"], last["hidden"], last["audience"]) == ("system", True, "public")
        assert members[0]["presence"] == "present"


async def test_presence_that_is_the_same_changes_nothing(
    ada: Account, group: str, bor: str
) -> None:
    before = await ada.messages(group)
    await set_presence(ada, group, bor, "present")
    await set_presence(ada, group, bor, "present", briefing="The bridge is down.")
    assert await ada.messages(group) == before
    await set_presence(ada, group, bor, "absent")
    left = await ada.messages(group)
    await set_presence(ada, group, bor, "absent")
    assert await ada.messages(group) == left
    assert len(left) == len(before) + 1
