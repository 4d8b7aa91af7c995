from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from backend.generation.adapters.demo import DemoModel
from backend.generation.model import (
    Prompt,
    PromptMessage,
    TextPiece,
    Tool,
    ToolAnswer,
    ToolCall,
    ToolRound,
)
from backend.generation.sampling import Sampling

pytestmark = pytest.mark.anyio

PLAIN = Sampling()
FAST = DemoModel(tokens_per_second=0)
TRIAGE = {
    "type": "object",
    "properties": {
        "why": {"type": "string"},
        "significant": {"type": "boolean"},
        "kinds": {
            "type": "array",
            "items": {"type": "string", "enum": ["discovery", "death", "promise", "travel"]},
        },
    },
}
TOOLS = [
    Tool(name, "", {"type": "object", "properties": {}})
    for name in ("create_chronicle_event", "create_lorebook_entry", "finish")
]
OWN = (
    "*Marlena looks up.* You said: “Jake: I killed the wolf.” But I am only Talekeeper's demo "
    "model: no language model wrote this."
)


def story(*lines: str, known: str = "", lore: str = "", rounds: Sequence[ToolRound] = ()) -> Prompt:
    text = "\n".join(
        [
            f"<known_events>\n{known}\n</known_events>\n",
            f"<known_lore>\n{lore}\n</known_lore>\n",
            "<new_lines>",
            *(f"#{number} {line}" for number, line in enumerate(lines, start=11)),
            "</new_lines>",
        ]
    )
    system = "Decide whether the lines in <new_lines> matter.\nI kill Oslo."
    return Prompt([PromptMessage("system", system), PromptMessage("user", text)], rounds)


async def called(*lines: str, **more: Any) -> list[ToolCall]:
    answer: ToolAnswer = await FAST.call_tools(story(*lines, **more), TOOLS, PLAIN)
    return list(answer.calls)


async def events(*lines: str, **more: Any) -> list[dict[str, Any]]:
    return [
        dict(call.arguments)
        for call in await called(*lines, **more)
        if call.name == "create_chronicle_event"
    ]


async def summaries(*lines: str, **more: Any) -> list[str]:
    return [event["summary"] for event in await events(*lines, **more)]


async def test_what_a_line_tells_becomes_an_event_in_its_words() -> None:
    made = await events("Jake: I promise you that I found Oslo by the Lantern Pier.")

    assert made == [
        {
            "summary": "Jake: I promise you that I found Oslo by the Lantern Pier.",
            "kind": "promise",
            "who": ["Jake", "Oslo", "Lantern Pier"],
            "significance": 5,
            "source_messages": ["#11"],
        }
    ]


async def test_what_it_writes_is_as_short_as_the_tools_want_it() -> None:
    (made,) = await events(f"Jake: I met {'O' * 300} and {'k' * 300} {'word ' * 300}.")

    assert len(made["summary"]) <= 600
    assert max(map(len, made["who"])) <= 60


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Jake: I found a body.", "discovery"),
        ("Jake: I've learned who Oslo is.", "discovery"),
        ("Jake: Mara slew the wolf.", "death"),
        ("Jake: Mara has sworn to come back.", "promise"),
        ("Jake: Tam stole the crown.", "possession"),
        ("Jake: Tam lost his ship.", "possession"),
        ("Jake: I met Oslo.", "relationship"),
        ("Jake: Mara married Tam.", "relationship"),
        ("Jake: Captain Dray betrayed us.", "conflict"),
        ("Jake: We came late, but Tam arrived in Karth.", "travel"),
        ("Marlena: *I hide the key under a board*", "possession"),
    ],
)
async def test_verbs_say_what_kind_of_event_it_is(line: str, kind: str) -> None:
    assert [event["kind"] for event in await events(line)] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        "Jake: Good evening. What a night.",
        "Jake: Did you kill Oslo?",
        "Jake: I want to find the Moon Scepter.",
        "Jake: I would never betray Oslo.",
        "Jake: I did not take the crown.",
        "Jake: I take a step towards Oslo.",
        "Jake: She killed them all.",
        "Jake:",
    ],
)
async def test_what_did_not_happen_or_names_nobody_is_no_event(line: str) -> None:
    assert [call.name for call in await called(line)] == ["finish"]


async def test_its_own_replies_quote_the_user_and_are_passed_over() -> None:
    lines = ("Jake: I killed the wolf.", f"Marlena: {OWN}")

    assert await summaries(*lines) == ["Jake: I killed the wolf."]


async def test_a_message_goes_on_over_lines_until_the_next_mark() -> None:
    made = await events("Jake: Hm.\nLook.\nI found a key.", "Jake: I met Oslo.")

    assert [event["source_messages"] for event in made] == [["#11"], ["#12"]]


async def test_only_the_section_of_new_lines_is_read_and_it_ends_where_the_last_tag_is() -> None:
    assert await summaries("Jake: Hm.\n</new_lines>\nI found Oslo.") == ["Jake: I found Oslo."]


async def test_what_the_chronicle_knows_is_not_written_again() -> None:
    known = "E1 (Day 3): Jake: I met Oslo."

    assert await summaries("Jake: I met Oslo. I found a key.", known=known) == [
        "Jake: I found a key."
    ]


@pytest.mark.parametrize(
    ("line", "title", "content"),
    [
        (
            "Jake: The Salty Sigil is an inn by the docks.",
            "Salty Sigil",
            "Salty Sigil is an inn by the docks.",
        ),
        (
            "Jake: Hm. “Oslo is the captain of the guard,” Mara said.",
            "Oslo",
            "Oslo is the captain of the guard.",
        ),
    ],
)
async def test_a_name_that_is_said_to_be_something_becomes_lore_at_once(
    line: str, title: str, content: str
) -> None:
    (call,) = await called(line)

    assert call.name == "create_lorebook_entry"
    assert (call.arguments["title"], call.arguments["content"]) == (title, content)
    assert (await triaged(line))["significant"] is True
    assert [call.name for call in await called(line, lore=f"L1 {title}: known")] == ["finish"]


@pytest.mark.parametrize(
    "line",
    [
        "Jake: The Salty Sigil is an inn by the docks?",
        "Jake: If the Salty Sigil is an inn of hers, good.",
        "Jake: Oslo is a bit late tonight.",
        "Jake: It is a long way to go.",
        "Oslo: Oslo is a captain of renown.",
    ],
)
async def test_what_is_asked_or_supposed_or_is_no_name_is_no_lore_at_once(line: str) -> None:
    assert [call.name for call in await called(line)] == ["finish"]


async def test_it_makes_three_calls_at_most_and_keeps_the_weightiest() -> None:
    lines = (
        "Jake: I left Karth. I found a key. I met Oslo. Mara killed the wolf. I promise it, Tam.",
    )

    assert await summaries(*lines) == [
        "Jake: Mara killed the wolf.",
        "Jake: I promise it, Tam.",
        "Jake: I found a key.",
    ]


async def test_the_second_step_of_a_loop_is_the_last() -> None:
    first = await called("Jake: I met Oslo.")
    rounds = [ToolRound(first, [{"event": "E2"}])]

    assert [call.name for call in await called("Jake: I met Oslo.", rounds=rounds)] == ["finish"]


async def test_the_same_lines_always_make_the_same_calls() -> None:
    assert await called("Jake: I met Oslo.") == await called("Jake: I met Oslo.")


async def test_with_other_tools_it_calls_none() -> None:
    other = Tool("roll_dice", "", {"type": "object", "properties": {}})

    answer = await FAST.call_tools(story("Jake: I met Oslo."), [other], PLAIN)

    assert answer.calls == ()
    assert "demo model" in answer.text


async def triaged(*lines: str) -> dict[str, Any]:
    value: dict[str, Any] = (await FAST.generate_json(story(*lines), TRIAGE, PLAIN)).value
    return value


async def test_triage_finds_lines_that_matter_and_says_that_it_is_a_demo() -> None:
    found = await triaged("Jake: I promise it, Oslo. Mara killed the wolf. I met Tam.")

    assert found["significant"] is True
    assert found["kinds"] == ["death", "promise"], "what the schema does not allow is left out"
    assert "demo model" in found["why"]


async def test_triage_lets_small_talk_pass() -> None:
    found = await triaged("Jake: Good evening.", f"Marlena: {OWN}")

    assert found["significant"] is False
    assert found["kinds"] == []


async def summed_up(*lines: str, previous: str = "", words: int = 40) -> str:
    system = f"Task: rolling summary\nSum it up.\n- About {words} words."
    told = "\n".join(f"#{number} {line}" for number, line in enumerate(lines, start=3))
    text = (
        f"<previous_summary>\n{previous}\n</previous_summary>\n\n<new_lines>\n{told}\n</new_lines>\n\n"
        f"The new summary, about {words} words:"
    )
    prompt = Prompt([PromptMessage("system", system), PromptMessage("user", text)])
    pieces = [piece async for piece in FAST.stream(prompt, PLAIN)]
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


async def test_a_summary_is_an_extract_that_goes_on_from_the_one_before() -> None:
    made = await summed_up(
        "Jake: I met Oslo. He was old.",
        f"Marlena: {OWN}",
        "Marlena: The rain came. It was cold.",
        previous="(Demo summary) Mara killed the wolf.",
    )

    assert made == (
        "(Demo summary) Mara killed the wolf. Jake: I met Oslo. Marlena: The rain came."
    )


async def test_a_summary_keeps_to_its_length_and_to_what_was_last() -> None:
    lines = [f"Jake: On day {day} of the journey nothing at all happened." for day in range(100)]

    made = await summed_up(*lines, words=60)

    assert len(made.split()) <= 62
    assert "day 99" in made


async def test_a_line_that_asks_for_a_summary_gets_an_ordinary_reply() -> None:
    prompt = Prompt([PromptMessage("user", "Task: rolling summary")])

    pieces = [piece async for piece in FAST.stream(prompt, PLAIN)]

    assert "(Demo summary)" not in "".join(p.text for p in pieces if isinstance(p, TextPiece))


async def test_it_keeps_the_state_of_a_campaign_in_a_few_plain_calls() -> None:
    tools = [Tool(name, "", {"type": "object"}) for name in ("chronicle_event_tool", "finish")]
    lines = "Jake: Oslo killed the wolf.", "The Salty Sigil is an inn by the harbour."
    pieces = [piece async for piece in FAST.stream(story(*lines), PLAIN, tools=tools)]
    event, place = [piece for piece in pieces if isinstance(piece, ToolCall)]
    assert (event.name, place.name) == ("chronicle_event_tool", "environment_updater_tool")
    assert event.arguments["source_turns"] == [11]
    assert place.arguments["name"] == "Salty Sigil"
    assert not [piece for piece in pieces if isinstance(piece, TextPiece)]
    pieces = [piece async for piece in FAST.stream(story("Go on."), PLAIN, tools=tools)]
    assert not [piece for piece in pieces if isinstance(piece, ToolCall)]
