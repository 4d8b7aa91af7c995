"""The operator's maxima of token budgets: what users may set, and what becomes of larger ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Account, problem, running

pytestmark = pytest.mark.anyio

ME = "/me/settings"


async def previewed(ada: Account, chat: str, **body: Any) -> tuple[int, int]:
    """The (total, reply reserve) that a preview goes by."""
    context = await ada.post(f"/chats/{chat}/context", body)
    return context["budgets"]["total"], context["budgets"]["reply_reserve"]


@pytest.mark.parametrize(("name", "most"), [("total", 50_000), ("reply_reserve", 40_000)])
async def test_nothing_above_a_maximum_can_be_set_or_tried(
    sqlite_url: str, tmp_path: Path, name: str, most: int
) -> None:
    maxima: dict[str, Any] = {"max_budget_total": 50_000, "max_budget_reply_reserve": 40_000}
    async with running(sqlite_url, tmp_path, **maxima) as server, server.account() as ada:
        chat = (await ada.new_chat())["id"]
        own = f"/chats/{chat}/settings"
        other = {"reply_reserve": 100} if name == "total" else {"total": 50_000}
        for method, path in (("PATCH", ME), ("PATCH", own), ("POST", own[:-8] + "context")):
            before = await ada.get(path)
            budgets = {**other, name: most + 1}
            answer = await ada.ask(method, path, json={"budgets": budgets})
            detail = problem(answer, 422, "validation-failed")["detail"]
            assert f"budgets.{name}" in detail
            assert f"{most:,}" in detail
            assert f"TALEKEEPER_MAX_BUDGET_{name.upper()}" in detail
            assert (await ada.get(path)) == before
        largest = {"budgets": {"total": 50_000, "reply_reserve": 40_000}}
        for path in (ME, own):
            await ada.patch(path, largest)
        assert await previewed(ada, chat, **largest) == (50_000, 40_000)


async def test_settings_above_a_maximum_that_was_lowered_count_as_the_maximum(
    database_url: str, tmp_path: Path
) -> None:
    large = {"budgets": {"total": 90_000, "reply_reserve": 60_000}}
    async with running(database_url, tmp_path) as server, server.account() as ada:
        chat = (await ada.new_chat())["id"]
        own = f"/chats/{chat}/settings"
        await ada.patch(ME, large)
        await ada.patch(own, large)
        assert await previewed(ada, chat) == (90_000, 60_000)
    async with (
        running(database_url, tmp_path, max_budget_total=20_000) as server,
        server.signed_in("ada") as ada,
    ):
        # A reserve of 60,000 would leave nothing: it gets half.
        assert await previewed(ada, chat) == (20_000, 10_000)
        assert (await ada.turn(chat, text="Well?"))[-1].name == "turn.completed"
        for path in (ME, own):
            settings = await ada.patch(path, {"system_prompt": "Be brief."})
            assert settings["budgets"] == large["budgets"]
            answer = await ada.ask("PATCH", path, json={"budgets": {"total": 89_999}})
            problem(answer, 422, "validation-failed")
        await ada.patch(own, {"budgets": {"total": 8_000, "reply_reserve": 900}})
        assert await previewed(ada, chat) == (8_000, 900)
    async with (
        running(database_url, tmp_path, max_budget_reply_reserve=500) as server,
        server.signed_in("ada") as ada,
    ):
        assert await previewed(ada, chat) == (8_000, 500)


async def test_a_maximum_below_the_server_s_own_defaults_counts_for_those_who_set_nothing(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        running(sqlite_url, tmp_path, max_budget_total=4_096) as server,
        server.account() as ada,
    ):
        chat = (await ada.new_chat())["id"]
        assert await previewed(ada, chat) == (4_096, 2_048)
        assert (await ada.turn(chat, text="Well?"))[-1].name == "turn.completed"
