"""Trial of a fault: it begins, lasts and ends while accounts play.

While it lasts answers may be poorer, or problems that say what is the matter: never a 500, never a
loss. Once it is over `/ready` has to be good within 10 s, a turn has to go through, and all that
was acknowledged has to be there, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping

import httpx

from scripts.model_server import MODEL_ID
from scripts.torture.campaign import BREAKS, Campaign, Options, run_guarded
from scripts.torture.ending import check_everything
from scripts.torture.report import Row

LASTS = 4.0
BEFORE, AFTER = 15, 15
"""Acknowledged requests before a fault and after it."""

Step = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Do nothing, for faults without a step."""


async def try_fault(
    made: Campaign,
    group: str,
    name: str,
    begin: Step,
    end: Step,
    *,
    lasts: float = LASTS,
) -> Row:
    """Return one row: play, cause the fault, play again, check."""
    history = made.history
    made.progress.tell(f"{group}: {name}", always=True)
    broken_before, outcomes_before = len(history.broken), dict(history.outcomes)
    await made.play(BEFORE)
    try:
        await begin()
        await asyncio.sleep(lasts)
    finally:
        await end()
    ended = time.monotonic()
    # The fault may have hit the connections that look at the database from here, too.
    await made.database.dispose()
    recovered = await _wait_for_recovery(made, ended)
    await made.play(AFTER, at_most=30 * made.slow)
    await made.pause()
    await made.check_touched()
    counts = {
        outcome: sum(n for (_, each), n in history.outcomes.items() if each == outcome)
        - sum(n for (_, each), n in outcomes_before.items() if each == outcome)
        for outcome in ("ok", "refused", "unknown")
    }
    figures = {**counts, "ready again after": f"{recovered:.1f} s"}
    return Row(group, name, figures, history.broken[broken_before:])


async def _wait_for_recovery(made: Campaign, ended: float) -> float:
    """Wait until `/ready` is good and a turn goes through; seconds since the fault ended."""
    within = made.made.ready_within
    account = made.accounts[0]
    async with httpx.AsyncClient(base_url=made.made.url, timeout=5, trust_env=False) as client:
        while time.monotonic() - ended < within:
            with contextlib.suppress(httpx.TransportError):
                answer = await client.get("/ready")
                if answer.status_code == 200 and all(
                    each["ready"] for each in answer.json()["parts"]
                ):
                    break
            await asyncio.sleep(0.05)
        else:
            made.history.breach(f"not ready {within:.0f} s after the fault was over")
    seconds = time.monotonic() - ended
    body = {"title": f"after the fault {time.time_ns()}"}
    account.ledger.thing("chat", body["title"])
    chat = await account.client.ask("after", "make chat", "POST", "/chats", json=body)
    if chat.outcome != "ok":
        made.history.breach(f"a chat could not be opened after the fault was over ({chat.status})")
        return seconds
    account.ledger.things["chat", body["title"]].id = chat.body["id"]
    account.ledger.things["chat", body["title"]].outcome = "ok"
    # The account's own model may be of a provider that is gone.
    place = f"/chats/{chat.body['id']}/settings"
    account.ledger.choice(place, "model").values = [MODEL_ID]
    await account.client.ask("after", "settings", "PATCH", place, json={"model": MODEL_ID})
    heard = await account.client.turn("after", chat.body["id"], {"text": "Is anyone there?"})
    if not heard.is_saved:
        made.history.breach(f"no reply after the fault was over ({heard.status} {heard.problem})")
    account.ledger.sent.add("Is anyone there?")
    account.ledger.answered[chat.body["id"]] += 1
    return seconds


async def check_all(made: Campaign, group: str) -> Row:
    """Return a row for all checks after the faults of a group."""
    broken_before = len(made.history.broken)
    try:
        figures = await check_everything(made)
    except BREAKS as error:
        made.history.breach(f"the checks broke off: {type(error).__name__}: {error}")
        figures = {}
    figures = {"acknowledged": made.history.count_acknowledged(), **figures}
    return Row(group, "all of it, checked", figures, made.history.broken[broken_before:])


async def try_all(
    made: Campaign, options: Options, group: str, faults: Mapping[str, tuple[Step, Step]]
) -> list[Row]:
    """Return one row for each fault, and one for the checks."""
    rows: list[Row] = []
    for name, (begin, end) in faults.items():
        if options.name not in name:
            continue
        rows += await run_guarded(group, name, _rows(made, group, name, begin, end))
        if not made.made.servers[0].is_alive:
            await made.made.open()
    return [*rows, await check_all(made, group)]


async def _rows(made: Campaign, group: str, name: str, begin: Step, end: Step) -> list[Row]:
    return [await try_fault(made, group, name, begin, end)]
