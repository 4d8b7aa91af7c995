from __future__ import annotations

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


def text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


async def test_a_reply_names_the_character_quotes_the_user_and_says_what_it_is() -> None:
    reply = text(await listen("Is the ferryman waiting?"))

    assert "Marlena Voss" in reply
    assert "Is the ferryman waiting?" in reply
    assert "demo model" in reply
    assert "add a provider" in reply
    assert "TALEKEEPER_GEMINI_API_KEY" in reply


async def test_a_prompt_that_names_nobody_gets_a_reply_as_well() -> None:
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


async def test_it_thinks_aloud_when_told_to() -> None:
    pieces = await listen("/demo think")

    kinds = [type(piece) for piece in pieces]
    assert kinds.index(ThinkingPiece) == 0
    assert kinds.index(TextPiece) == kinds.count(ThinkingPiece)
    usage = next(piece for piece in pieces if isinstance(piece, TokenUsage))
    assert usage.thinking_tokens == kinds.count(ThinkingPiece)
    assert usage.completion_tokens == kinds.count(ThinkingPiece) + kinds.count(TextPiece)


async def test_it_speaks_as_many_words_as_it_is_told() -> None:
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
async def test_it_fails_as_it_is_told(command: str, kind: type[ModelError], said: bool) -> None:
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
async def test_a_command_may_stand_behind_a_name_or_on_a_line_of_its_own(line: str) -> None:
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


async def test_the_pace_is_kept_and_slow_is_a_tenth_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("backend.generation.adapters.demo.asyncio.sleep", note)
    for line, beat in (("Hello?", 0.02), ("/demo slow", 0.2)):
        waits.clear()
        model = DemoModel(tokens_per_second=50)
        pieces = [piece async for piece in model.stream(prompt(line), PLAIN)]

        words = len(pieces) - 2
        assert len(waits) == words
        assert max(waits) == pytest.approx(beat * words, rel=0.2)


@pytest.mark.parametrize("pace", [0, float("inf")])
async def test_no_pace_is_as_fast_as_it_goes(pace: float, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("backend.generation.adapters.demo.asyncio.sleep", note)
    model = DemoModel(tokens_per_second=pace)
    assert [piece async for piece in model.stream(prompt("Hello?"), PLAIN)]

    assert set(waits) == {0}


async def test_it_suggests_three_different_next_lines() -> None:
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
