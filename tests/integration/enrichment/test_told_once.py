"""The same event told by the chronicle's agent and by a compaction, which read the same lines."""

from __future__ import annotations

from typing import Any

import pytest

from backend.enrichment.outbox import TURN
from tests.fakes.scripted_server import Request
from tests.integration.campaigns.conftest import table
from tests.integration.campaigns.seagate import Table
from tests.support.compacting import Call, Compactor, Evening, evening, model, server
from tests.support.server import Running

__all__ = ["model", "server", "table"]

pytestmark = pytest.mark.anyio

PROMISE = "Tam promised Mara to bring the silver lamp back before the winter."
AGAIN = "Tam promised Mara that the silver lamp would be back before the winter came."
OTHER = "Tam promised Mara to bring the golden lamp back before the winter."


@pytest.fixture(autouse=True)
def fresh(model: Compactor) -> None:
    model.reset()


@pytest.fixture
async def play(server: Running, table: Table) -> Evening:
    return await evening(server, table)


def recorded(summary: str) -> Call:
    return "create_chronicle_event", {"summary": summary}


def compacted(summary: str, *apart: str) -> Call:
    more = {"add": {"differs_from": list(apart)}} if apart else {}
    return "chronicle_event_tool", {"set": {"summary": summary}, **more}


def is_study(request: Request) -> bool:
    messages: list[Any] = (request.body.get("messages") if request.body else None) or []
    return bool(messages) and str(messages[0]["content"]).startswith("You keep the chronicle")


async def studies(play: Evening) -> list[dict[str, Any]]:
    """The runs of the agent, the last one first."""
    path = f"/chats/{play.chat}/enrichment"
    runs: list[dict[str, Any]] = (await play.ada.get(path))["items"]
    return [each for each in runs if each["kind"] == "turn"]


async def summaries(play: Evening) -> list[str]:
    return [each["summary"] for each in await play.events()]


async def test_a_compaction_tells_nothing_that_the_agent_has_told_from_its_lines(
    play: Evening, model: Compactor
) -> None:
    model.records = {"I promise": [recorded(PROMISE)]}
    await play.turn("I promise it.")
    await play.at_rest(kind=TURN)
    model.finds = {
        "I promise": [
            compacted(PROMISE),
            compacted(AGAIN),
            compacted(OTHER, "H1"),
            compacted(OTHER, "H1"),
            compacted("Rain fell.", "H9"),
        ]
    }
    await play.compacted()
    assert "<known_events>\nH1: Day 5, morning: " + PROMISE in model.asked[0]
    assert await summaries(play) == [PROMISE, OTHER]
    [run] = await play.runs()
    reasons = [each["reason"] for each in run["refused"]]
    assert reasons[0] == f"duplicate of H1: {PROMISE}"
    assert reasons[1].startswith(f"H1 may say the same. H1: {PROMISE} If so, leave it.")
    assert reasons[2] == f"duplicate of H2: {OTHER}"
    assert reasons[3] == "H9 is not an event that you were shown."


async def test_the_agent_tells_nothing_that_a_compaction_has_told_from_its_lines(
    play: Evening, model: Compactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "holds", is_study)
    model.records = {"I promise": [recorded(AGAIN)]}
    model.finds = {"I promise": [compacted(PROMISE)]}
    async with model.thinking() as is_reached:
        await play.turn("I promise it.")
        await is_reached.wait()
        await play.compacted()
    await play.at_rest(kind=TURN)
    assert await summaries(play) == [PROMISE]
    refused = [each for run in await studies(play) for each in run["refused"]]
    assert refused[0]["reason"].startswith(f"E1 may say the same. E1: {PROMISE}")


async def test_of_two_who_write_at_the_same_time_the_second_begins_again(
    play: Evening, model: Compactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_last_step(request: Request) -> bool:
        return is_study(request) and request.body["messages"][-1]["role"] == "tool"

    monkeypatch.setattr(model, "holds", is_last_step)
    model.records = {"I promise": [recorded(AGAIN)]}
    model.finds = {"I promise": [compacted(PROMISE)]}
    async with model.thinking() as is_reached:
        await play.turn("I promise it.")
        await is_reached.wait()
        # The agent's event was compared already, and is not written yet.
        await play.compacted()
        assert await summaries(play) == [PROMISE]
    await play.at_rest(kind=TURN)
    assert await summaries(play) == [PROMISE]
    runs = await studies(play)
    assert [(each["state"], each["error"]) for each in runs] == [
        ("done", None),
        ("failed", "events-changed"),
    ]
