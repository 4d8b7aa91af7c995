"""Killed while a long past is summed up: what was stored stays, and the rest follows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.test_crash import browser
from tests.fakes.openai_server import API_KEY, MODEL, MODEL_ID, reply
from tests.fakes.scripted_server import Answer, Silence
from tests.integration.enrichment.storytelling import (
    Storyteller,
    list_numbers,
    list_summaries,
    read_previous,
)
from tests.support.memory import API, preview, set_chat
from tests.support.process import serving
from tests.support.server import Account, ok
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.thorough]

LONG = "The clock in the hall went on and on, and nobody minded it any more, for it rained. " * 60
"""Some thousand tokens."""


async def summaries(ada: Account, chat: str) -> list[str]:
    items = ok(await ada.client.get(f"{API}/chats/{chat}/summaries"))["items"]
    return [each["text"] for each in items[::-1]]


async def test_a_backlog_goes_on_behind_the_last_summary_that_was_stored(tmp_path: Path) -> None:
    async with Storyteller() as teller:
        settings = {
            "openai_base_url": teller.url,
            "openai_api_key": API_KEY,
            "openai_models": MODEL,
            "default_model": MODEL_ID,
        }
        with serving(tmp_path, **settings) as served:
            async with browser(served) as ada:
                chat = str((await ada.new_chat())["id"])
                for number in range(40):
                    events = await ada.turn(chat, text=f"{number}: {LONG}")
                    assert events[-1].name == "turn.completed", events[-1]
                teller.summing_up += (reply("One."), reply("Two."), Answer(events=[Silence()]))
                budgets = {"history": 1_000, "retrieval": 0}
                await set_chat(ada, chat, budgets=budgets, summary={"enabled": True})
                await ada.turn(chat, text="Well?")

                async def is_held() -> bool:
                    return len(teller.summed_up) == 3

                await until(is_held)
                served.process.kill()
                await asyncio.to_thread(served.process.wait)
                cookies = ada.client.cookies
        teller.requests.clear()
        with serving(tmp_path, **settings) as served:
            async with browser(served, cookies) as ada:

                async def is_done() -> bool:
                    context = await preview(ada, chat, "Well?")
                    return bool(list_summaries(context))

                await until(is_done)
                texts = await summaries(ada, chat)
                assert texts[:2] == ["One.", "Two."]
                assert len(texts) > 2
                assert read_previous(teller.summed_up[0]) == "Two."
                numbers = [each for request in teller.summed_up for each in list_numbers(request)]
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
                assert texts[-1] == f"Told up to {numbers[-1]}."
