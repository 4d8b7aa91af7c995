"""The end of a campaign: all work finishes and is compared with the ledger."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from scripts.torture import store_checks
from scripts.torture.campaign import CANARY, Campaign
from scripts.torture.checks import all_items, check_things
from scripts.torture.client import PROVIDER_KEY
from scripts.torture.model import get_server
from scripts.torture.model_checks import (
    check_choices,
    check_memory,
    check_placements,
    check_prompts,
    check_servers,
    chosen_model,
    set_final_model,
)
from scripts.torture.playing import check_campaigns
from scripts.torture.visitors import check_gone, check_private

ANSWERED_WITHIN = 40.0
"""Seconds within which a request that is sent again with its key has to be answered."""
ENDS_WITH = {0: True, 1: False}
"""True for accounts that end with their own embedding model, by number."""
RETRIES = 5
"""Rounds in which jobs that gave up are tried again."""


async def check_everything(run: Campaign) -> dict[str, Any]:
    """All checks, the last ones with the servers stopped; gives back figures."""
    run.progress.tell("checking", always=True)
    await _finish_pending(run)
    await run.pause()
    await store_checks.settle(run.database, run.users)  # turns that still run may come to wait
    await _give_up_waiting(run)
    found = await _end_choices(run)
    gone = await _send_visitors_away(run)
    figures: dict[str, Any] = {"jobs tried again": await _retry_dead_jobs(run)}
    found += await store_checks.settle(run.database, run.users)
    chosen = {
        account.sealer: await chosen_model(run.database, account.sealer) for account in run.accounts
    }
    for account in run.accounts:
        client, ledger = account.client, account.ledger
        found += await check_things(client, run.made.url, ledger)
        found += await check_choices(client, ledger)
        found += await check_prompts(client, ledger)
        found += await check_memory(client, chosen[account.sealer])
        events, count = await store_checks.check_events(run.database, account.sealer)
        found += events
        figures["events"] = figures.get("events", 0) + count
        states, count = await check_campaigns(run.database, account.sealer)
        found += states
        figures["items"] = figures.get("items", 0) + count
    if run.model.asked["triage"] and not figures["events"]:
        found.append("nothing compared: the agent read new lines, and no event is there")
    await run.check_touched(everything=True)
    found += await store_checks.check_rows(run.database)
    found += await check_placements(run.database, run.users)
    found += await check_gone(run.database, gone)
    found += _check_servers(run)
    found += [f"gone: {each.last_words()}" for each in run.made.processes if not each.is_alive]
    await run.made.stop()
    missing, counted = await store_checks.check_index(run.database, run.made, chosen)
    found += missing
    figures |= {**counted, "accounts deleted": len(gone)}
    folders = {"data": run.made.data, "logs": run.made.root / "logs"}
    for word in (CANARY, PROVIDER_KEY):
        found += await asyncio.to_thread(store_checks.check_plaintext, word, folders)
    for each in found:
        run.history.breach(each)
    return figures


async def _end_choices(run: Campaign) -> list[str]:
    """Compare settings with the ledger, then set the final models of accounts."""
    found: list[str] = []
    for number, account in enumerate(run.accounts):
        found += await check_choices(account.client, account.ledger)
        worker = next(each for each in run.players if each.ledger is account.ledger)
        found += await set_final_model(worker, embedding=ENDS_WITH.get(number))
    return found


async def _send_visitors_away(run: Campaign) -> set[UUID]:
    """Have the accounts deleted that are on a visit; gives back all that were."""
    until = run.history.clock + ANSWERED_WITHIN * run.slow
    for visitor in run.visitors:
        while not await visitor.leave() and run.history.clock < until:
            await asyncio.sleep(0.2)
        if visitor.client is not None:
            run.history.breach(f"unanswered: the deletion of {visitor.client.username}")
    return {user_id for each in run.visitors for user_id in each.gone}


def _check_servers(run: Campaign) -> list[str]:
    """Lines that were sent to servers of others, or to the installation's."""
    ledgers = {get_server(url): each.ledger for each in run.accounts for url in each.servers}
    private = {mark for each in run.visitors for mark in each.private}
    return [*check_servers(run.model, ledgers), *check_private(run.model, private)]


async def _retry_dead_jobs(run: Campaign) -> int:
    """Have jobs that gave up tried again, as their users would: their processes died a lot."""
    for account in run.accounts:
        # Jobs without a key wait until their user is active.
        await account.client.ask("seen", "look", "GET", "/me")
    tried = 0
    for _ in range(RETRIES):
        await store_checks.settle(run.database, run.users)
        dead = [
            (account.client, job["id"])
            for account in run.accounts
            for job in await all_items(account.client, run.made.url, "/jobs")
            if job["state"] == "dead"
        ]
        # Of several that gave up on the same work one at a time can be tried again.
        for client, job_id in dead:
            await client.ask("retry", "retry job", "POST", f"/jobs/{job_id}/retry")
        if not dead:
            break
        tried += len(dead)
    return tried


async def _give_up_waiting(run: Campaign) -> None:
    """Stop the turns that wait for a choice, because no choice will follow."""
    for account in run.accounts:
        for chat in account.ledger.usable("chat"):
            path, waiting = f"/chats/{chat.id}/turns", {"state": "waiting"}
            page = await account.client.ask("end", "turns", "GET", path, params=waiting)
            for turn in page.body["items"] if page.outcome == "ok" else ():
                await account.client.ask("end", "stop", "POST", f"/turns/{turn['id']}/stop")


async def _finish_pending(run: Campaign) -> None:
    """Send unanswered requests again until they are answered."""
    await run.pause()
    until = run.history.clock + ANSWERED_WITHIN * run.slow
    for player in run.players:
        while player.pending and run.history.clock < until:
            await player.pending.pop(0)()
            await asyncio.sleep(0.5 if player.pending else 0)
        for _ in player.pending:
            run.history.breach(f"unanswered: a request of {player.name} with its key")
        player.pending.clear()
