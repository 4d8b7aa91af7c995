"""Answers of models to background tasks: structured answers, tool loops and their token counts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from backend.generation.images import count_image_tokens
from backend.generation.model import (
    ChatModel,
    ModelDeclinedError,
    ModelError,
    ModelMalformedAnswerError,
    Piece,
    Prompt,
    PromptMessage,
    TextPiece,
    TextReset,
    TokenUsage,
    ToolAnswer,
    ToolCall,
    ToolRound,
)
from backend.generation.sampling import Sampling

CHARACTERS_PER_TOKEN = 4
"""Average of most texts, for estimates without a provider's count."""


@dataclass(slots=True)
class RunBudget:
    """The tokens that a run may use, and the calls and tokens that it has used.

    It is updated during the run, so that the cost of a run that fails is known, too.

    Attributes:
        limit: Tokens, prompts and answers together.
        calls: Requests to models.
        prompt_tokens: As providers reported them, or else estimated.
        completion_tokens: Likewise.
        triage: The model of the first call, with its prompt and completion tokens.
    """

    limit: int
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    triage: tuple[str, int, int] | None = None

    def mark_triage(self, model_id: str) -> None:
        """Attribute everything that was used so far to the model of the triage."""
        self.triage = model_id, self.prompt_tokens, self.completion_tokens

    def can_afford(self, prompt: Prompt) -> bool:
        """True if a prompt fits into the rest of the budget. The first call is always allowed."""
        used = self.prompt_tokens + self.completion_tokens
        return not self.calls or used + estimate_tokens(prompt) <= self.limit

    def count_call(self, usage: TokenUsage | None, prompt: Prompt, answer: str = "") -> None:
        """Count a call. Without `usage` its tokens are estimated from the length of the texts."""
        self.calls += 1
        self.add(usage or estimate_usage(prompt, answer))

    def add(self, usage: TokenUsage) -> None:
        """Add tokens of a call that is counted already."""
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens


def estimate_tokens(prompt: Prompt) -> int:
    characters = sum(len(message.text) for message in prompt.messages)
    characters += sum(len(each.text) for each in prompt.rounds)
    rounds: Iterable[PromptMessage | ToolRound] = (*prompt.messages, *prompt.rounds)
    for each in rounds:
        if each.calls:
            arguments = [dict(call.arguments) for call in each.calls]
            characters += len(msgspec.json.encode([arguments, list(each.results)]))
    return characters // CHARACTERS_PER_TOKEN + 1 + count_image_tokens(*prompt.messages)


def estimate_usage(prompt: Prompt, answer: str) -> TokenUsage:
    """Estimate the tokens of a call from the length of its texts."""
    return TokenUsage(
        prompt_tokens=estimate_tokens(prompt),
        completion_tokens=len(answer) // CHARACTERS_PER_TOKEN + 1,
    )


def build_prompt(system: str, user: str) -> Prompt:
    return Prompt([PromptMessage("system", system), PromptMessage("user", user)])


async def ask(
    model: ChatModel,
    prompt: Prompt,
    schema: Mapping[str, Any],
    *,
    sampling: Sampling,
    budget: RunBudget,
) -> Any:
    """Return the answer of a model as parsed JSON, and count its tokens.

    The answer is not validated against `schema`, because models rarely keep to all of it. Raises
    `ModelError`.
    """
    try:
        answer = await model.generate_json(prompt, schema, sampling)
    except (ModelMalformedAnswerError, ModelDeclinedError):
        budget.count_call(None, prompt)
        raise
    budget.count_call(answer.usage, prompt, str(answer.value))
    return answer.value


async def collect(
    pieces: AsyncGenerator[Piece, None], prompt: Prompt, budget: RunBudget
) -> ToolAnswer:
    """Return a streamed answer as a whole, and count its tokens, even if the stream fails.

    Text before a `TextReset` is dropped. Raises `ModelError`.
    """
    text, usage = "", None
    calls: list[ToolCall] = []
    budget.calls += 1
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                match piece:
                    case TextPiece(part):
                        text += part
                    case TextReset():
                        text = ""
                    case ToolCall():
                        calls.append(piece)
                    case TokenUsage():
                        usage = piece
                    case _:
                        pass
    finally:
        if usage is not None:
            budget.add(usage)
    if usage is None:
        budget.add(estimate_usage(prompt, join_answer(text, calls)))
    return ToolAnswer(text=text, calls=calls, usage=usage, finish="stop")


def join_answer(text: str, calls: Sequence[ToolCall]) -> str:
    return "".join([text, *(str(dict(call.arguments)) for call in calls)])


LoopEnd = Literal["finished", "budget_spent", "failed"]


async def run_tool_loop(
    messages: Sequence[PromptMessage],
    ask_model: Callable[[Prompt], Awaitable[ToolAnswer]],
    execute: Callable[[Sequence[ToolCall]], Awaitable[Sequence[Any] | None]],
    *,
    budget: RunBudget,
    max_calls: int,
    tolerated: type[ModelError],
) -> LoopEnd:
    """Let a model call tools until it calls none, the executor stops it, or the budget is used up.

    Args:
        messages: The prompt before the first round.
        ask_model: Asks for one answer, and counts it in `budget`.
        execute: Executes the calls of an answer and returns a result for each; None ends the loop.
        budget: No further call is made when it is used up.
        max_calls: Calls of the whole run, those that `budget` has counted before included.
        tolerated: An error that ends the loop after the first round, so that earlier rounds count.

    Returns why the loop ended. Raises `ModelError` of any other kind, or in the first round.
    """
    rounds: list[ToolRound] = []
    while budget.calls < max_calls:
        prompt = Prompt(messages, tuple(rounds))
        if not budget.can_afford(prompt):
            return "budget_spent"
        try:
            answer = await ask_model(prompt)
        except tolerated:
            if not rounds:
                raise
            return "failed"
        results = await execute(answer.calls) if answer.calls else None
        if results is None:
            break
        rounds.append(ToolRound(answer.calls, results, answer.text))
    return "finished"
