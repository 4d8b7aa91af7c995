"""What was left behind, swipes and failed turns, neither drowns memory nor falls out of it."""

from __future__ import annotations

import pytest

from tests.fakes.openai_server import OpenAIServer, error
from tests.support.memory import API, settled, tell, texts_found
from tests.support.server import Account, Running, ok

pytestmark = pytest.mark.anyio


async def test_a_hundred_lines_left_behind_do_not_hide_the_one_that_counts(
    server: Running, ada: Account, chat: str
) -> None:
    await tell(server, ada, chat, ["A silver key was sold in town.", "Was it?"])
    path = f"{API}/messages/{(await ada.messages(chat))[-1]['id']}"
    for number in range(130):
        text = f"The silver key, the silver key, number {number}."
        path = f"{API}/messages/{ok(await ada.client.patch(path, json={'text': text}))['id']}"
    ok(await ada.client.patch(path, json={"text": "Nobody knows."}))
    await settled(server)
    found = await texts_found(ada, "silver key", chat_id=chat, sources="message")
    assert found[0] == "A silver key was sold in town."


async def test_the_line_of_a_turn_that_failed_is_remembered(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    for _ in range(3):  # some failures are tried again by the vendor's own library
        model.script(error(500, message="broken"))
    events = await ada.turn(chat, text="The heron sleeps in the bell tower.")
    model._answers.clear()
    assert events[-1].name == "turn.failed"
    await settled(server)
    found = await texts_found(ada, "heron tower", chat_id=chat, sources="message")
    assert found[0] == "The heron sleeps in the bell tower."
