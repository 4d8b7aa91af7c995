"""Every oddity of a server, through each adapter that it applies to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from backend.generation.model import (
    ChatModel,
    Finish,
    FinishReason,
    ModelError,
    Piece,
    Prompt,
    PromptMessage,
    SentRequest,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolCall,
    apply_resets,
)
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ServerAbilities
from backend.generation.tools.streams import stream_with_tools
from tests.fakes.oddities.oddity import Oddity, Result
from tests.fakes.oddities.server import serve
from tests.fakes.oddities.settings import SETTINGS
from tests.fakes.oddities.streams import STREAMS
from tests.fakes.oddities.templates import TEMPLATES
from tests.fakes.oddities.thoughts import THOUGHTS
from tests.fakes.oddities.tool_calls import CALLS
from tests.fakes.oddities.values import VALUES
from tests.fakes.oddities.wire_formats import FORMATS, WireFormat

pytestmark = pytest.mark.anyio

STORY = [
    PromptMessage("system", "You are Mags."),
    PromptMessage("assistant", "Who is there?"),
    PromptMessage("system", "It rains."),
    PromptMessage("user", "It is me."),
    PromptMessage("user", "Hello?"),
    PromptMessage("system", "Write in her voice."),
]
SCHEMA = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}
DAMAGE = Tool(
    "damage",
    "Apply damage.",
    {
        "type": "object",
        "properties": {"target": {"type": "string"}, "damage": {"type": "string"}},
    },
)


def rows(*tables: Iterable[Oddity]) -> pytest.MarkDecorator:
    """Each row in each of its formats."""
    found = [(row, FORMATS[name]) for table in tables for row in table for name in row.formats]
    names = [f"{form.name}-{row.name}" for row, form in found]
    assert len(set(names)) == len(names)
    return pytest.mark.parametrize(("row", "form"), found, ids=names)


@dataclass
class Connected:
    """A model, and what was learned of it."""

    model: ChatModel
    learned: list[ServerAbilities] = field(default_factory=list[ServerAbilities])


@asynccontextmanager
async def connect(row: Oddity, form: WireFormat) -> AsyncGenerator[Connected]:
    learned: list[ServerAbilities] = []
    async with serve(form, [row]) as server:
        config: dict[str, Any] = {form.name: server.config(on_learned=learned.append)}
        registry = ModelRegistry(**config)
        try:
            yield Connected(registry.get(f"{form.name}/{row.name}"), learned)
        finally:
            await registry.aclose()


def sum_up(row: Oddity, heard: Sequence[Piece], problem: ModelError | None) -> Result:
    """Return what was heard in the words of the table."""
    kept = apply_resets(heard)
    words = f"{problem.title}: {problem.detail}" if problem else ""
    sent = next((piece for piece in kept if isinstance(piece, SentRequest)), SentRequest())
    used = [piece for piece in kept if isinstance(piece, TokenUsage)]
    counted = next(((each.prompt_tokens, each.completion_tokens) for each in used), ())
    reasons: list[FinishReason] = [piece.reason for piece in kept if isinstance(piece, Finish)]
    return Result(
        text="".join(piece.text for piece in kept if isinstance(piece, TextPiece)),
        thinking="".join(piece.text for piece in kept if isinstance(piece, ThinkingPiece)),
        finish=reasons[0] if reasons else "stop",
        error=problem.slug if problem else "",
        says=row.result.says if row.result.says in words else words,
        usage=None if row.result.usage is None else counted,
        calls=[(each.name, each.arguments) for each in kept if isinstance(each, ToolCall)],
        shape=sent.shape,
        left_out=sent.left_out,
    )


def find_learned(connected: Connected, row: Oddity) -> dict[str, Any]:
    """Return what was learned of a row's model."""
    found = connected.learned[-1].find(row.name) if connected.learned else None
    return {
        name: value
        for name, value in (msgspec.structs.asdict(found) if found else {}).items()
        if value and name not in {"json", "tools", "counts"}
    }


def expected(row: Oddity) -> Result:
    return replace(row.result, calls=list(row.result.calls), left_out=tuple(row.result.left_out))


@rows(STREAMS, THOUGHTS, TEMPLATES, SETTINGS)
async def test_a_reply_is_read_as_it_was_meant(row: Oddity, form: WireFormat) -> None:
    heard: list[Piece] = []
    problem: ModelError | None = None
    prompt = Prompt([*STORY, *([PromptMessage("assistant", "Well,")] if row.continues else ())])
    async with connect(row, form) as connected:
        try:
            async for piece in connected.model.stream(prompt, Sampling(**row.sampling)):
                heard.append(piece)  # noqa: PERF401 - what came before an error counts
        except ModelError as error:
            problem = error

    found = replace(sum_up(row, heard, problem), learned=find_learned(connected, row))
    assert found == expected(row)


@rows(CALLS)
async def test_calls_are_read_as_they_were_meant(row: Oddity, form: WireFormat) -> None:
    async with connect(row, form) as connected:
        stream = stream_with_tools(connected.model, Prompt(STORY), [DAMAGE], Sampling())
        heard = [piece async for piece in stream]
        answer = await connected.model.call_tools(Prompt(STORY), [DAMAGE], Sampling())

    assert sum_up(row, heard, None) == expected(row)
    assert [(call.name, call.arguments) for call in answer.calls] == list(row.result.calls)


@rows(VALUES)
async def test_a_value_is_read_as_it_was_meant(row: Oddity, form: WireFormat) -> None:
    async with connect(row, form) as connected:
        answer = await connected.model.generate_json(Prompt(STORY), SCHEMA, Sampling())

    assert answer.value == row.result.value
