"""What macros may do in one request: a field beyond a limit is refused, lore beyond it left out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.memory import (
    context_of,
    link,
    new_book,
    preview,
    reasons,
    set_chat,
    take_turn,
)
from tests.support.server import Account, problem

pytestmark = pytest.mark.anyio


async def chat_with(ada: Account, **card: Any) -> str:
    character = await ada.new_character(**card)
    return str((await ada.new_chat(character_ids=[character["id"]]))["id"])


def left_out(context: dict[str, Any]) -> dict[str, str]:
    return {each["title"]: each["reason"] for each in context["left_out"]}


async def test_fields_that_are_long_together_refuse_the_turn_and_nothing_is_stored(
    ada: Account,
) -> None:
    """Each field of the card stays below the limits of a field."""
    grown = "{{description}}" * 4
    chat = await chat_with(
        ada,
        description="x" * 190_000 + "{{char}}",
        personality=grown,
        scenario=grown,
        system_prompt=grown,
    )
    answer = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": "Well?"})
    body = problem(answer, 422, "macro-limit")
    assert (body["limit"], body["most"], body["scope"]) == ("characters", 2_000_000, "request")
    assert len(await ada.messages(chat)) == 1


async def test_lore_whose_macros_do_too_much_is_left_out_and_the_turn_goes_on(
    ada: Account,
) -> None:
    chat = await chat_with(ada, description="x" * 150_000)
    bomb = "{{description}}" * 7
    book = await new_book(
        ada,
        {"title": "Bomb", "content": bomb, "constant": True, "order": 9},
        {"title": "Fine", "content": "{{char}} keeps the light.", "constant": True},
    )
    await link(ada, chat, book)
    context = await context_of(ada, await take_turn(ada, chat, text="Well?"))
    assert reasons(context) == {"Fine": "constant"}
    assert left_out(context)["Bomb"] == "macros: more than 1,000,000 characters"
    assert any("macros" in note for note in context["notes"])


async def test_lore_leaves_half_of_the_budget_to_the_fields(ada: Account) -> None:
    chat = await chat_with(ada, description="{{char}} keeps the light. " + "x" * 10_000)
    await set_chat(ada, chat, authors_note={"text": "{{if {{description}}}}NOTE{{/if}}"})
    idle = "{{if {{description}}}}{{/if}}" * 10
    book = await new_book(
        ada, *({"title": f"{n}", "content": idle, "constant": True} for n in range(30))
    )
    await link(ada, chat, book)
    context = await preview(ada, chat, "Well?")
    assert "macros: more than 1,000,000 characters" in left_out(context).values()
    assert any(item["kind"] == "authors_note" for item in context["items"])


async def test_variables_that_grow_too_large_stay_as_they_were_and_the_record_says_so(
    ada: Account,
) -> None:
    note = "{{addvar::a::" + "x" * 15_000 + "}}{{setvar::length::{{getvar::length}}i}}"
    chat = await chat_with(ada, description="The light. {{getvar::length}}")
    await set_chat(ada, chat, authors_note={"text": note + "Be brief."})
    for _ in range(13):
        context = await context_of(ada, await take_turn(ada, chat, text="On."))
        assert context["notes"] == []
    reply = ""
    for _ in range(2):
        reply = await take_turn(ada, chat, text="On.")
        context = await context_of(ada, reply)
        (said,) = context["notes"]
        assert "variables were not changed" in said
    items: list[dict[str, Any]] = (await context_of(ada, reply))["items"]
    character = next(item for item in items if item["kind"] == "character")
    assert "i" * 13 in character["text"]
    assert "i" * 14 not in character["text"]
