"""Asking a server for a JSON value in the ways there are, and reading what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.generation import _openai_mapping as wire
from backend.generation._replies import Delta, parse_value, said, tool_answer
from backend.generation.declined_answers import check_declined
from backend.generation.model import (
    ModelMalformedAnswerError,
    Prompt,
    PromptMessage,
    Tool,
)
from backend.generation.server_abilities import JsonWay

ANSWER = "answer"
"""The tool whose arguments are the value."""

_INSTRUCTIONS = (
    "Answer with one JSON value of this JSON Schema and nothing else, in a fenced block that "
    "begins with ```json and ends with ```:\n\n"
)
_PLAIN_INSTRUCTIONS = "Answer with one JSON value of this JSON Schema and nothing else:\n\n"


def add_schema(prompt: Prompt, schema: Mapping[str, Any], way: JsonWay) -> Prompt:
    """Return the prompt with the schema in it if the model may not see that of the request."""
    if way not in ("json_object", "fenced"):
        return prompt
    words = _INSTRUCTIONS if way == "fenced" else _PLAIN_INSTRUCTIONS
    told = PromptMessage("system", words + json.dumps(dict(schema), ensure_ascii=False))
    return replace(prompt, messages=[*prompt.messages, told])


def json_members(schema: Mapping[str, Any], way: JsonWay) -> dict[str, Any]:
    """What a request has beside its messages, in this way."""
    match way:
        case "json_schema":
            return {"response_format": wire.response_format(schema)}
        case "json_object":
            return {"response_format": {"type": "json_object", "schema": dict(schema)}}
        case "tool":
            tool = Tool(ANSWER, "Give the answer.", schema)
            choice = {"type": "function", "function": {"name": ANSWER}}
            return {"tools": wire.declarations([tool]), "tool_choice": choice}
        case "fenced":
            return {}


def read_value(answer: Delta, way: JsonWay, *, who: str) -> Any:
    """Return the value in an answer.

    Raises `ModelMalformedAnswerError` if there is none, and `ModelDeclinedError`.
    """
    if way == "tool":
        whole = tool_answer(answer, who=who)
        if not (calls := whole.calls):
            check_declined(whole.text)
            raise ModelMalformedAnswerError(f"{who} did not return the requested tool call.")
        return dict(calls[0].arguments)
    text, finish = said(answer, who=who)
    return parse_value(text, who=who, finish=finish)
