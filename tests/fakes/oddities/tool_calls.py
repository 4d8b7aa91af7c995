"""Oddities of tool calls: how their fragments, their ids and their arguments are sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.fakes.oddities.oddity import ANTHROPIC, EVERY, GEMINI, OPENAI, Oddity, Result
from tests.fakes.oddities.wire_formats import Call, End, FormatName, Part
from tests.fakes.openai_server import chunk

HIT = {"target": "Anna", "damage": "1d2+2"}
HARDER = {"target": "Anna", "damage": "1d2+4"}
"""Three or four points of damage, and five or six."""

FIRST, SECOND = json.dumps(HIT), json.dumps(HARDER)
BOTH = (("damage", HIT), ("damage", HARDER))
ONE = BOTH[:1]


def fragment(arguments: Any, *, name: str | None = "damage", **members: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"type": "function", "function": function, **members}


def sent(*fragments: dict[str, Any]) -> dict[str, Any]:
    return chunk(tool_calls=list(fragments))


def calls(
    name: str,
    server: str,
    parts: Sequence[Part],
    expected: Sequence[tuple[str, Any]] = BOTH,
    formats: Sequence[FormatName] = OPENAI,
    *,
    end: str = "tool_calls",
    is_whole: bool = False,
    text: str = "",
) -> Oddity:
    result = Result(text=text, calls=expected, finish="tool_calls")
    return Oddity(
        name, server, parts, result, formats, end=[End(end)] if end else (), is_whole=is_whole
    )


CALLS = [
    calls("calls", "every vendor", [Call("damage", HIT), Call("damage", HARDER)], formats=EVERY),
    calls(
        "calls-after-text",
        "every vendor",
        ["It hits.", Call("damage", HIT)],
        ONE,
        EVERY,
        text="It hits.",
    ),
    calls(
        "calls-that-stop",
        "Ollama, Gemini",
        [Call("damage", HIT), Call("damage", HARDER)],
        formats=OPENAI,
        end="stop",
    ),
    calls(
        "calls-whole",
        "servers that stream no calls",
        [Call("damage", HIT), Call("damage", HARDER)],
        formats=EVERY,
        is_whole=True,
    ),
    calls(
        "one-index-no-ids",
        "Gemini's OpenAI route, TabbyAPI",
        [sent(fragment(FIRST, index=0)), sent(fragment(SECOND, index=0))],
    ),
    calls(
        "one-id-for-all",
        "KoboldCpp, older Ollama",
        [sent(fragment(FIRST, index=0, id="x")), sent(fragment(SECOND, index=1, id="x"))],
    ),
    calls(
        "several-in-one-chunk",
        "Ollama, Mistral",
        [sent(fragment(FIRST, index=0, id="a"), fragment(SECOND, index=1, id="b"))],
    ),
    calls(
        "no-index", "Groq, Mistral", [sent(fragment(FIRST, id="a")), sent(fragment(SECOND, id="b"))]
    ),
    calls(
        "empty-name-in-the-rest",
        "LM Studio 0.3.16",
        [
            sent(fragment("", index=0, id="a")),
            sent(fragment(FIRST[:9], name="", index=0)),
            sent(fragment(FIRST[9:], name="", index=0)),
        ],
        ONE,
    ),
    calls(
        "fenced-arguments", "small models", [sent(fragment(f"```json\n{FIRST}\n```", index=0))], ONE
    ),
    calls(
        "arguments-encoded-twice",
        "older Qwen, GLM",
        [sent(fragment(json.dumps(FIRST), index=0, id="a"))],
        ONE,
    ),
    calls("arguments-as-an-object", "Ollama, llamafile", [sent(fragment(HIT, index=0))], ONE),
    calls("trailing-comma", "small models", [sent(fragment(f"{FIRST[:-1]},}}", index=0))], ONE),
    calls("no-finish", "Foundry Local", [sent(fragment(FIRST, index=0, id="a"))], ONE, end=""),
    calls(
        "call-before-deprecation",
        "older LocalAI",
        [chunk(function_call={"name": "damage", "arguments": FIRST})],
        ONE,
        end="function_call",
    ),
    calls(
        "several-in-one-candidate",
        "Gemini 2.5",
        [
            {
                "candidates": [
                    {
                        "content": {
                            "parts": [
                                {"functionCall": {"name": "damage", "args": args}}
                                for args in (HIT, HARDER)
                            ]
                        }
                    }
                ]
            }
        ],
        formats=GEMINI,
    ),
    calls(
        "input-in-the-start",
        "Bedrock, Kimi's Anthropic route",
        [
            {
                "type": "content_block_start",
                "index": 1,
                "content_block": {"type": "tool_use", "id": "a", "name": "damage", "input": HIT},
            },
            {"type": "content_block_stop", "index": 1},
        ],
        ONE,
        ANTHROPIC,
    ),
]
