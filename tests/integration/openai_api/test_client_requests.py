"""The last requests of clients, and corrections of the decisions about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import pytest

from backend.openai_api.decisions import digest_instruction
from backend.openai_api.models import RequestKind, RequestReason, RuledKind
from backend.openai_api.requests import MAX_REQUESTS, RequestDetails
from tests.support.archives import find_identity
from tests.support.server import Account, Running, problem
from tests.support.shared import ada, chat, server, shared_url

__all__ = ["ada", "chat", "server", "shared_url"]

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

SUMMARISE = "Summarize the most important facts so far."


async def record(
    server: Running,
    account: Account,
    kind: RequestKind,
    reason: RequestReason,
    *,
    chat_id: str | None = None,
    turn_id: str | None = None,
    instruction: str | None = SUMMARISE,
    **details: Any,
) -> dict[str, Any]:
    """Record a request, and return how the list shows it."""
    values: dict[str, Any] = {"text": instruction or "Good morning.", **details}
    await server.parts.client_requests.record(
        await find_identity(server, account),
        kind=kind,
        reason=reason,
        chat_id=UUID(chat_id) if chat_id else None,
        turn_id=UUID(turn_id) if turn_id else None,
        instruction=instruction,
        details=RequestDetails(**values),
    )
    newest: dict[str, Any] = (await list_requests(account))[0]
    return newest


async def list_requests(account: Account) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await account.get("/client-requests"))["items"]
    return items


async def correct(account: Account, request: Mapping[str, Any], kind: RuledKind) -> dict[str, Any]:
    return await account.post(f"/client-requests/{request['id']}/correction", {"kind": kind})


async def take(account: Account, chat_id: str, text: str) -> str:
    """Take a turn, and return its id."""
    events = await account.turn(chat_id, text=text)
    return str(events[0].data["turn_id"])


async def texts(account: Account, chat_id: str) -> list[str]:
    return [message["text"] for message in await account.messages(chat_id)]


async def test_the_last_fifty_requests_are_listed_with_the_decision_and_its_reason(
    server: Running, ada: Account, chat: str
) -> None:
    shown = await record(
        server, ada, "turn", "new_line", chat_id=chat, instruction=None,
        model="character:mara", client="node-fetch", lines=30, matched=28, edited=1, stored=1,
        text="Good morning. " * 100, ignored=("logprobs",), milliseconds=4,
    )  # fmt: skip
    assert (shown["kind"], shown["reason"]) == ("turn", "new_line")
    assert shown["chat_id"] == chat
    assert (shown["model"], shown["client"]) == ("character:mara", "node-fetch")
    assert (shown["lines"], shown["matched"], shown["edited"], shown["hidden"]) == (30, 28, 1, 0)
    assert (shown["stored"], shown["ignored"]) == (1, ["logprobs"])
    assert len(shown["text"]) == 200

    for number in range(MAX_REQUESTS):
        await record(server, ada, "quiet", "unknown_instruction", text=f"Request {number}.")
    kept = await list_requests(ada)
    assert [each["text"] for each in (kept[0], kept[-1])] == ["Request 49.", "Request 0."]
    page = await ada.get("/client-requests", limit=2)
    rest = await ada.get("/client-requests", after=page["next"])
    assert [each["id"] for each in page["items"] + rest["items"]] == [each["id"] for each in kept]


async def test_a_request_that_was_wrongly_a_turn_is_removed_and_the_next_one_is_quiet(
    server: Running, ada: Account, chat: str
) -> None:
    await take(ada, chat, "Good morning.")
    before = await texts(ada, chat)
    turn_id = await take(ada, chat, SUMMARISE)
    request = await record(server, ada, "turn", "new_line", chat_id=chat, turn_id=turn_id, stored=1)

    corrected = await correct(ada, request, "quiet")

    assert corrected["outcome"] == "removed"
    assert corrected["request"]["rule"] == "quiet"
    assert await texts(ada, chat) == before
    identity = await find_identity(server, ada)
    rules = await server.parts.client_requests.load_rules(identity)
    assert rules == {digest_instruction(identity.sealer, SUMMARISE): "quiet"}
    assert (await correct(ada, request, "quiet"))["outcome"] == "removed"


async def test_messages_that_others_follow_stay(server: Running, ada: Account, chat: str) -> None:
    turn_id = await take(ada, chat, SUMMARISE)
    request = await record(server, ada, "turn", "new_line", chat_id=chat, turn_id=turn_id, stored=1)
    await take(ada, chat, "Good morning.")
    before = await texts(ada, chat)
    assert (await correct(ada, request, "quiet"))["outcome"] == "followed"
    assert await texts(ada, chat) == before


async def test_a_choice_in_a_turn_of_an_earlier_request_does_not_remove_the_turn(
    server: Running, ada: Account, chat: str
) -> None:
    turn_id = await take(ada, chat, "I open the door.")
    known: dict[str, Any] = {"chat_id": chat, "turn_id": turn_id, "instruction": None}
    await record(server, ada, "turn", "new_line", stored=1, **known)
    choice = await record(server, ada, "turn", "new_line", **known)
    before = await texts(ada, chat)
    assert (await correct(ada, choice, "quiet"))["outcome"] == "continued"
    assert await texts(ada, chat) == before


async def test_a_swipe_is_removed_without_the_line_that_it_answers(
    server: Running, ada: Account, chat: str
) -> None:
    await take(ada, chat, "Good morning.")
    before = await texts(ada, chat)
    reply = (await ada.messages(chat))[-1]["id"]
    events = await ada.turn(chat, regenerate_of=reply)
    turn_id = events[0].data["turn_id"]
    request = await record(
        server, ada, "swipe", "answer_missing", chat_id=chat, turn_id=turn_id, instruction=None
    )
    corrected = await correct(ada, request, "quiet")
    assert (corrected["outcome"], corrected["request"]["rule"]) == ("removed", None)
    assert await texts(ada, chat) == before
    problem(
        await ada.ask(
            "POST", f"/client-requests/{request['id']}/correction", json={"kind": "turn"}
        ),
        409,
        "client-request-not-correctable",
    )


async def test_a_chat_that_the_request_has_created_is_deleted(
    server: Running, ada: Account
) -> None:
    wrong, right = [(await ada.new_chat())["id"] for _ in range(2)]
    requests = [
        await record(
            server, ada, "turn", "new_chat",
            chat_id=chat_id, turn_id=await take(ada, chat_id, SUMMARISE), stored=1,
        )
        for chat_id in (wrong, right)
    ]  # fmt: skip
    await take(ada, right, "Good morning.")
    outcomes = [(await correct(ada, each, "quiet"))["outcome"] for each in requests]
    assert outcomes == ["removed", "followed"]
    assert (await ada.ask("GET", f"/chats/{wrong}")).status_code == 404
    assert len(await texts(ada, right)) == 4
    gone = next(each for each in await list_requests(ada) if each["id"] == requests[0]["id"])
    assert gone["chat_id"] is None


async def test_a_quiet_request_stays_and_the_next_one_is_a_turn(
    server: Running, ada: Account
) -> None:
    request = await record(server, ada, "quiet", "unknown_instruction")
    assert (await correct(ada, request, "turn"))["outcome"] == "from_next"
    await correct(ada, request, "quiet")
    (rule,) = (await ada.get("/client-rules"))["items"]
    assert (rule["kind"], rule["text"]) == ("quiet", SUMMARISE)
    await ada.delete(f"/client-rules/{rule['id']}")
    assert (await ada.get("/client-rules"))["items"] == []
    assert (await list_requests(ada))[0]["rule"] is None


@pytest.mark.parametrize(
    ("kind", "reason"), [("plain", "plain_model"), ("repeat", "retry"), ("quiet", "header_never")]
)
async def test_decisions_that_no_rule_can_change_are_not_corrected(
    server: Running, ada: Account, kind: RequestKind, reason: RequestReason
) -> None:
    request = await record(server, ada, kind, reason, instruction=None)
    assert not request["is_correctable"]
    answer = await ada.ask(
        "POST", f"/client-requests/{request['id']}/correction", json={"kind": "turn"}
    )
    problem(answer, 409, "client-request-not-correctable")
    assert (await ada.get("/client-rules"))["items"] == []


async def test_requests_and_rules_belong_to_their_account(server: Running, ada: Account) -> None:
    request = await record(server, ada, "quiet", "unknown_instruction")
    await correct(ada, request, "turn")
    (rule,) = (await ada.get("/client-rules"))["items"]
    async with server.account(f"eve-{uuid4()}") as eve:
        assert (await eve.get("/client-requests"))["items"] == []
        assert (await eve.get("/client-rules"))["items"] == []
        path = f"/client-requests/{request['id']}/correction"
        problem(
            await eve.ask("POST", path, json={"kind": "quiet"}), 404, "client-request-not-found"
        )
        problem(
            await eve.ask("DELETE", f"/client-rules/{rule['id']}"), 404, "client-rule-not-found"
        )
    assert (await ada.get("/client-rules"))["items"] == [rule]


async def test_a_request_of_a_chat_that_is_deleted_meanwhile_is_not_recorded(
    server: Running, ada: Account
) -> None:
    await server.parts.client_requests.record(
        await find_identity(server, ada),
        kind="turn", reason="new_line", chat_id=uuid4(), turn_id=None, instruction=None,
        details=RequestDetails(),
    )  # fmt: skip
    assert await list_requests(ada) == []
