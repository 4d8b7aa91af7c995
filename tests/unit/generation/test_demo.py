"""The demo model: its replies and its tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from backend.generation.adapters.demo import DemoModel
from backend.generation.model import (
    Finish,
    ModelEmptyReplyError,
    ModelError,
    ModelInterruptedError,
    ModelRateLimitError,
    ModelUnavailableError,
    Piece,
    Prompt,
    PromptMessage,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolAnswer,
    ToolCall,
    ToolRound,
)
from backend.generation.sampling import Sampling

pytestmark = pytest.mark.anyio

PLAIN = Sampling()
FAST = DemoModel(tokens_per_second=0)


def prompt(line: str, *, system: str = "You are Marlena Voss. Stay in character.") -> Prompt:
    return Prompt(
        [
            PromptMessage("system", system),
            PromptMessage("user", "An older line."),
            PromptMessage("assistant", "An older reply."),
            PromptMessage("user", line),
            PromptMessage("system", "Write one reply."),
        ]
    )


async def listen(
    line: str, sampling: Sampling = PLAIN, *, heard: list[Piece] | None = None, **more: Any
) -> list[Piece]:
    heard = [] if heard is None else heard
    async for piece in FAST.stream(prompt(line, **more), sampling):
        heard.append(piece)
    return heard


def text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


async def test_a_reply_names_the_character_quotes_the_user_and_names_the_demo() -> None:
    reply = text(await listen("Is the ferryman waiting?"))
    assert "Marlena Voss" in reply
    assert "Is the ferryman waiting?" in reply
    assert "demo model" in reply
    assert "add a provider" in reply
    assert "TALEKEEPER_GEMINI_API_KEY" in reply


async def test_a_prompt_without_names_gets_a_reply_too() -> None:
    assert "character" in text(await listen("Hello?", system="Write a story."))


async def test_the_same_prompt_always_gets_the_same_reply() -> None:
    assert await listen("Hello?") == await listen("Hello?")


async def test_a_reply_comes_word_by_word_and_ends_with_usage_and_finish() -> None:
    *words, usage, finish = await listen("Hello?")
    assert len(words) > 20
    assert all(isinstance(word, TextPiece) and len(word.text.split()) == 1 for word in words)
    assert isinstance(usage, TokenUsage)
    assert usage.completion_tokens == len(words)
    assert finish == Finish("stop")


async def test_a_long_line_is_quoted_in_part() -> None:
    assert len(text(await listen("word " * 5000))) < 1000


async def test_braces_in_a_line_are_text() -> None:
    assert "{name} {0}" in text(await listen("{name} {0}"))


async def test_a_full_window_is_not_counted_word_by_word() -> None:
    messages = [PromptMessage("user", "x" * 600)] * 1000
    pieces = [piece async for piece in FAST.stream(Prompt(messages), PLAIN)]
    assert TokenUsage(prompt_tokens=150_000, completion_tokens=len(pieces) - 2) in pieces


async def test_the_demo_thinks_on_command() -> None:
    pieces = await listen("/demo think")
    kinds = [type(piece) for piece in pieces]
    assert kinds.index(ThinkingPiece) == 0
    assert kinds.index(TextPiece) == kinds.count(ThinkingPiece)
    usage = next(piece for piece in pieces if isinstance(piece, TokenUsage))
    assert usage.thinking_tokens == kinds.count(ThinkingPiece)
    assert usage.completion_tokens == kinds.count(ThinkingPiece) + kinds.count(TextPiece)


async def test_the_demo_writes_the_requested_number_of_words() -> None:
    assert len(text(await listen("/demo long 1234")).split()) == 1234


@pytest.mark.parametrize(
    ("command", "kind", "said"),
    [
        ("fail", ModelUnavailableError, False),
        ("rate-limit", ModelRateLimitError, False),
        ("silent", ModelEmptyReplyError, False),
        ("fail-midway", ModelUnavailableError, True),
        ("cut", ModelInterruptedError, True),
    ],
)
async def test_the_demo_fails_on_command(command: str, kind: type[ModelError], said: bool) -> None:
    heard: list[Piece] = []
    with pytest.raises(kind) as caught:
        await listen(f"/demo {command}", heard=heard)
    assert type(caught.value) is kind
    assert bool(heard) is said


async def test_a_rate_limit_says_how_long_to_wait() -> None:
    with pytest.raises(ModelRateLimitError) as caught:
        await listen("/demo rate-limit")
    assert caught.value.retry_after == 30


@pytest.mark.parametrize("line", ["Jake: /demo silent", "One line.\n/demo silent"])
async def test_a_command_may_follow_a_name_or_have_its_own_line(line: str) -> None:
    with pytest.raises(ModelEmptyReplyError):
        await listen(line)


async def test_a_command_amid_a_sentence_is_text() -> None:
    assert "/demo fail" in text(await listen("I shall not say /demo fail today."))


@pytest.mark.parametrize("line", ["/demo", "/demo help", "/demo make-tea"])
async def test_an_unknown_command_is_answered_with_those_that_there_are(line: str) -> None:
    assert "fail-midway" in text(await listen(line))


async def test_only_the_last_line_commands() -> None:
    conversation = [PromptMessage("user", "/demo fail"), PromptMessage("user", "Never mind.")]
    assert [piece async for piece in FAST.stream(Prompt(conversation), PLAIN)]


async def test_a_reply_ends_at_the_token_limit() -> None:
    pieces = await listen("Hello?", Sampling(max_output_tokens=5))
    assert len(text(pieces).split()) == 5
    assert pieces[-1] == Finish("length")


async def test_a_reply_ends_at_a_stop_sequence_that_spans_words() -> None:
    whole = text(await listen("Hello?"))
    pieces = await listen("Hello?", Sampling(stop=("demo mod",)))
    assert text(pieces).rstrip() in whole.split("demo mod", maxsplit=1)[0] + "demo"
    assert pieces[-1] == Finish("stop")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that the demo model sleeps, without waiting."""
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("backend.generation.adapters.demo.asyncio.sleep", note)
    return waits


async def test_the_pace_is_kept_and_slow_is_a_tenth_of_it(waits: list[float]) -> None:
    for line, beat in (("Hello?", 0.02), ("/demo slow", 0.2)):
        waits.clear()
        model = DemoModel(tokens_per_second=50)
        pieces = [piece async for piece in model.stream(prompt(line), PLAIN)]
        words = len(pieces) - 2
        assert len(waits) == words
        assert max(waits) == pytest.approx(beat * words, rel=0.2)


@pytest.mark.parametrize("pace", [0, float("inf")])
async def test_without_a_pace_the_demo_never_waits(pace: float, waits: list[float]) -> None:
    model = DemoModel(tokens_per_second=pace)
    assert [piece async for piece in model.stream(prompt("Hello?"), PLAIN)]
    assert set(waits) == {0}


async def test_the_demo_suggests_three_different_lines() -> None:
    schema = {
        "type": "object",
        "properties": {"lines": {"type": "array", "items": {"type": "string"}}},
        "required": ["lines"],
    }
    answer = await FAST.generate_json(prompt("Hello?"), schema, PLAIN)
    assert len(set(answer.value["lines"])) == 3


async def test_offered_tools_it_calls_none() -> None:
    answer = await FAST.call_tools(prompt("Hello?"), [], PLAIN)
    assert answer.calls == ()
    assert answer.text


async def test_a_chapter_has_the_first_sentence_of_each_scene() -> None:
    scenes = "- The mill: They broke in. Nobody saw.\n  - A spark.\n- The roof: They ran."
    schema: dict[str, Any] = {"properties": {"title": {}, "summary": {}}}
    asked = prompt(f"<scenes>\n{scenes}\n</scenes>", system="Task: chapter")
    answer = await FAST.generate_json(asked, schema, PLAIN)
    assert answer.value == {
        "title": "The mill",
        "summary": "(Demo summary) They broke in. They ran.",
    }


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
    new = "\n".join(f"#{number} {line}" for number, line in enumerate(lines, start=11))
    asked = (
        f"<known_events>\n{known}\n</known_events>\n\n<known_lore>\n{lore}\n</known_lore>\n\n"
        f"<new_lines>\n{new}\n</new_lines>"
    )
    system = "Decide whether the lines in <new_lines> matter.\nI kill Oslo."
    return Prompt([PromptMessage("system", system), PromptMessage("user", asked)], rounds)


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


async def test_a_statement_in_a_line_becomes_an_event_in_its_words() -> None:
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


async def test_the_demo_respects_the_length_limits_of_tools() -> None:
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
async def test_verbs_decide_the_kind_of_an_event(line: str, kind: str) -> None:
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
async def test_lines_without_facts_or_names_make_no_event(line: str) -> None:
    assert [call.name for call in await called(line)] == ["finish"]


async def test_the_demos_own_replies_are_skipped() -> None:
    lines = ("Jake: I killed the wolf.", f"Marlena: {OWN}")
    assert await summaries(*lines) == ["Jake: I killed the wolf."]


async def test_a_message_goes_on_over_lines_until_the_next_mark() -> None:
    made = await events("Jake: Hm.\nLook.\nI found a key.", "Jake: I met Oslo.")
    assert [event["source_messages"] for event in made] == [["#11"], ["#12"]]


async def test_new_lines_are_read_up_to_the_last_closing_tag() -> None:
    assert await summaries("Jake: Hm.\n</new_lines>\nI found Oslo.") == ["Jake: I found Oslo."]


async def test_known_events_are_not_written_again() -> None:
    known = "E1 (Day 3): Jake: I met Oslo."
    assert await summaries("Jake: I met Oslo. I found a key.", known=known) == [
        "Jake: I found a key."
    ]


@pytest.mark.parametrize(
    ("line", "title", "content"),
    [
        ("Jake: The Salty Sigil is an inn by the docks.", "Salty Sigil", "is an inn by the docks."),
        (
            "Jake: “Oslo is the captain of the guard,” Mara said.",
            "Oslo",
            "is the captain of the guard.",
        ),
    ],
)
async def test_a_name_that_is_said_to_be_something_becomes_lore_at_once(
    line: str, title: str, content: str
) -> None:
    (call,) = await called(line)
    assert call.name == "create_lorebook_entry"
    assert (call.arguments["title"], call.arguments["content"]) == (title, f"{title} {content}")
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
async def test_questions_suppositions_and_common_words_make_no_lore(line: str) -> None:
    assert [call.name for call in await called(line)] == ["finish"]


async def test_the_demo_makes_at_most_three_calls_by_significance() -> None:
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
    asked = (
        f"<previous_summary>\n{previous}\n</previous_summary>\n\n<new_lines>\n{told}\n</new_lines>\n\n"
        f"The new summary, about {words} words:"
    )
    prompt = Prompt([PromptMessage("system", system), PromptMessage("user", asked)])
    pieces = [piece async for piece in FAST.stream(prompt, PLAIN)]
    return text(pieces)


async def test_a_summary_is_an_extract_that_continues_the_previous_one() -> None:
    made = await summed_up(
        "Jake: I met Oslo. He was old.",
        f"Marlena: {OWN}",
        "Marlena: The rain came. It was cold.",
        previous="(Demo summary) Mara killed the wolf.",
    )

    assert made == (
        "(Demo summary) Mara killed the wolf. Jake: I met Oslo. Marlena: The rain came."
    )


async def test_a_summary_keeps_its_length_and_the_last_lines() -> None:
    lines = [f"Jake: On day {day} of the journey nothing at all happened." for day in range(100)]
    made = await summed_up(*lines, words=60)
    assert len(made.split()) <= 62
    assert "day 99" in made


async def test_a_line_that_asks_for_a_summary_gets_an_ordinary_reply() -> None:
    prompt = Prompt([PromptMessage("user", "Task: rolling summary")])
    pieces = [piece async for piece in FAST.stream(prompt, PLAIN)]
    assert "(Demo summary)" not in text(pieces)


async def test_the_demo_records_campaign_state_in_plain_calls() -> None:
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
