"""An OpenAI-compatible server whose chat template raises errors, as those of open models do.

    async with StrictServer(GEMMA_2, status=500) as server: ...

Sources: the templates in `tokenizer_config.json` of google/gemma-2-9b-it, google/gemma-3-12b-it,
Qwen/Qwen3.5-4B and mistralai/Mistral-7B-Instruct-v0.2, and llama-cpp-python's own format for
Mistral.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.fakes.openai_server import OpenAIServer, error, reply
from tests.fakes.scripted_server import Answer, Request

Template = str | None
"""The words of a refusal; None for messages that the template accepts."""

Check = Callable[[Sequence[str]], Template]
"""A template, as far as it looks at roles."""


def qwen(roles: Sequence[str]) -> Template:
    if "system" in roles[1:]:
        return "System message must be at the beginning."
    return None if "user" in roles else "No user query found in messages."


def gemma_2(roles: Sequence[str]) -> Template:
    if roles[0] == "system":
        return "System role not supported"
    return _alternation(roles)


def gemma_3(roles: Sequence[str]) -> Template:
    return _alternation(roles[1:] if roles[0] == "system" else roles)


def mistral(roles: Sequence[str]) -> Template:
    rest = roles[1:] if roles[0] == "system" else roles
    if _alternation(rest):
        return (
            "After the optional system message, conversation roles must alternate "
            "user/assistant/user/assistant/..."
        )
    return None


def llama_cpp_mistral(roles: Sequence[str]) -> Template:
    return None if set(roles) <= {"user", "assistant"} else "Only user and assistant roles allowed."


def _alternation(roles: Sequence[str]) -> Template:
    for place, role in enumerate(roles):
        if (role == "user") != (place % 2 == 0):
            return "Conversation roles must alternate user/assistant/user/assistant/..."
    return None


class StrictServer(OpenAIServer):
    """Refuses messages that its template raises for; `refusals` counts how often."""

    def __init__(self, template: Check, *, status: int = 400) -> None:
        super().__init__()
        self._template, self._status = template, status
        self.refusals = 0

    def usual(self, request: Request) -> Answer:
        if not request.path.endswith("/chat/completions"):
            return super().usual(request)
        said = self._template([each["role"] for each in request.body["messages"]])
        if said is None and "response_format" in request.body:
            return reply("{}")
        if said is None:
            return super().usual(request)
        self.refusals += 1
        return error(self._status, message=f"Jinja Exception: {said}")

    @property
    def accepted(self) -> list[dict[str, Any]]:
        """The messages of the last request."""
        messages: list[dict[str, Any]] = self.requests[-1].body["messages"]
        return messages
