"""Chats that keep a chronicle, through the API: opt in, and wait for background work."""

from __future__ import annotations

from typing import Any

from tests.support.server import Account, ok
from tests.support.waiting import until

API = "/api/v1"


async def opt_in(account: Account, chat_id: str) -> str:
    """Enable the chronicle of a chat, and return its id."""
    path = f"{API}/chats/{chat_id}/settings"
    answer = ok(await account.client.patch(path, json={"chronicle_enabled": True}))
    chronicle_id: str = answer["chronicle_id"]
    return chronicle_id


async def overview(account: Account, chat_id: str) -> dict[str, Any]:
    """The state of the background work of a chat."""
    found: dict[str, Any] = ok(await account.client.get(f"{API}/chats/{chat_id}/enrichment"))
    return found


async def last_run(account: Account, chat_id: str) -> dict[str, Any]:
    """Wait until all background work of a chat is done, and return its newest run."""

    async def is_over() -> dict[str, Any] | None:
        view = await overview(account, chat_id)
        return view if view["items"] and not view["pending"] and view["job"] is None else None

    view = await until(is_over)
    run: dict[str, Any] = view["items"][0]
    return run


async def new_event(account: Account, chronicle_id: str, summary: str, **fields: Any) -> str:
    """An event of the user's own; its id."""
    path, body = f"{API}/chronicles/{chronicle_id}/events", {"summary": summary, **fields}
    event_id: str = ok(await account.client.post(path, json=body), 201)["id"]
    return event_id


async def sum_up(account: Account, chat_id: str, text: str, *, through: str) -> None:
    """A summary of a chat's path down to a message, written by hand."""
    body = {"text": text, "through_message_id": through}
    ok(await account.client.put(f"{API}/chats/{chat_id}/summary", json=body))


async def rebuild(account: Account, chronicle_id: str, chat_id: str) -> None:
    """Have a chronicle rebuilt from a chat, to the end."""
    path = f"{API}/chronicles/{chronicle_id}/rebuild"
    ok(await account.client.post(path, json={"chat_id": chat_id}), 202)

    async def is_done() -> bool:
        state: str = ok(await account.client.get(path))["state"]
        return state == "done"

    await until(is_done)
