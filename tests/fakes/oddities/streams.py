"""Oddities of streams: of their bytes, their events, their members, and their ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.fakes.oddities.oddity import ANTHROPIC, GEMINI, OPENAI, Oddity, Result
from tests.fakes.oddities.wire_formats import End, Fault, Wire, frame
from tests.fakes.openai_server import chunk, completion, usage
from tests.fakes.scripted_server import Answer, Break

EMPTY = b"data: \n\n"
FOX = Result(text="Füchse \N{FOX FACE} – “ja”.")
RUNS = Result(text="Fox \N{FOX FACE} runs.")


def replace(old: bytes, new: bytes) -> Wire:
    return Wire(change=lambda stream: stream.replace(old, new))


def change(function: Callable[[bytes], bytes]) -> Wire:
    return Wire(change=function)


def choice(finish: str | None = None, **members: Any) -> dict[str, Any]:
    """A chunk of which the choice has these members alone."""
    return {**chunk(), "choices": [{"index": 0, "finish_reason": finish, **members}]}


def said(content: Any, finish: str | None = None, **members: Any) -> dict[str, Any]:
    """A chunk with other members than usual."""
    return {**chunk(finish, content=content), **members}


BYTES = [
    Oddity("plain", "every server"),
    Oddity("no-space", "older text-generation-webui", wire=replace(b"data: ", b"data:")),
    Oddity("crlf", "Google, IIS, Aphrodite", wire=replace(b"\n", b"\r\n")),
    Oddity("lone-cr", "allowed by the standard", wire=replace(b"\n", b"\r")),
    Oddity("bom", "ASP.NET proxies", wire=change(lambda stream: b"\xef\xbb\xbf" + stream)),
    Oddity("blank-lines-first", "DeepSeek in its queue", wire=change(lambda all_: b"\n\n" + all_)),
    Oddity("no-last-blank-line", "small proxies", wire=change(bytes.rstrip)),
    Oddity(
        "no-blank-lines",
        "proxies that drop empty lines",
        wire=change(lambda stream: re.sub(rb"\n+", b"\n", stream)),
    ),
    Oddity(
        "one-byte-at-a-time",
        "nginx without buffering",
        ["Füchse \N{FOX FACE} ", "– “ja”."],
        FOX,
        wire=Wire(size=1, is_ascii=False),
    ),
    Oddity(
        "cut-between-cr-and-lf",
        "Google behind a proxy",
        wire=Wire(change=lambda stream: stream.replace(b"\n", b"\r\n"), size=1),
    ),
    Oddity("all-in-one-chunk", "buffering proxies", wire=Wire(size=100_000)),
    Oddity("as-plain-text", "mistral.rs, Railway", wire=Wire(content_type="text/plain")),
    Oddity("as-json", "Foundry, OpenAI itself", wire=Wire(content_type="application/json")),
    Oddity("as-a-web-page", "PHP proxies", wire=Wire(content_type="text/html; charset=utf-8")),
]

CHARACTERS = [
    Oddity("halves-of-a-pair", "llama.cpp b2900, KoboldCpp", ["Fox \ud83e", "\udd8a runs."], RUNS),
    Oddity(
        "a-character-in-two-pieces",
        "text-generation-webui, llama-cpp-python 0.2",
        ["Fox \udcf0\udc9f", "\udca6\udc8a runs."],
        RUNS,
        wire=Wire(is_ascii=False),
    ),
    Oddity(
        "a-lone-half",
        "small models",
        ["Fox \udfff", " runs."],
        Result(text="Fox \N{REPLACEMENT CHARACTER} runs."),
    ),
    Oddity(
        "half-a-character-at-the-end",
        "vLLM 0.4 at max_tokens",
        ["Fox \ud83e"],
        Result(text="Fox \N{REPLACEMENT CHARACTER}", finish="length"),
        end=[End("length")],
    ),
]

EVENTS = [
    Oddity("empty-data", "LM Studio, NewAPI", [EMPTY, "Hello ", b"data:\n\n", "there."]),
    Oddity("empty-data-first", "one-api", wire=change(lambda stream: EMPTY + stream)),
    Oddity(
        "comments",
        "OpenRouter, DeepSeek, Groq",
        [b": OPENROUTER PROCESSING\n\n", "Hello ", b": keep-alive\n\n", "there."],
    ),
    Oddity("other-fields", "Cloudflare", [b"id: 7\nretry: 3000\n", "Hello ", "there."]),
    Oddity("null", "LocalAI, NewAPI", ["Hello ", b"data: null\n\n", "there."]),
    Oddity("a-list", "Helicone", ["Hello ", b"data: []\n\n", "there."]),
    Oddity("a-word", "Vercel's proxies", ["Hello ", b"data: ping\n\n", "there."]),
    Oddity("half-an-object", "buggy proxies", ["Hello ", b'data: {"choices\n\n', "there."]),
    Oddity("unknown-objects", "LiteLLM", ["Hello ", {"object": "ping"}, "there."]),
    Oddity("events-of-its-own", "Poe", ["Hello ", b"event: ping\ndata: {}\n\n", "there."]),
    Oddity(
        "two-objects-in-one-event",
        "KoboldCpp behind Cloudflare, vLLM behind Envoy",
        ["Hello ", frame(chunk(content="th"))[:-1] + frame(chunk(content="ere."))],
        formats=OPENAI,
    ),
    Oddity(
        "whole",
        "servers without streams",
        is_whole=True,
        wire=Wire(content_type="application/json"),
    ),
    Oddity("whole-as-a-stream", "9router, one-api", is_whole=True),
    Oddity(
        "whole-and-then-done",
        "9router",
        answer=Answer(
            body=json.dumps(completion("Hello there.")).encode() + b"\n\ndata: [DONE]\n\n",
            headers={"content-type": "text/event-stream"},
        ),
        formats=OPENAI,
    ),
    Oddity(
        "json-lines",
        "Gemini's OpenAI route behind Railway",
        wire=change(lambda stream: re.sub(rb"\n+data: (\[DONE\])?", b"\n", stream)[6:]),
        formats=OPENAI,
    ),
    Oddity(
        "list-of-chunks",
        "Gemini without `alt=sse`",
        wire=change(lambda stream: b"[" + b",".join(re.findall(rb"data: (.+)\n\n", stream)) + b"]"),
        formats=GEMINI,
    ),
    Oddity(
        "no-event",
        "vLLM 0.9, llama-cpp-python",
        answer=Answer(events=[], body=completion("Hello there.")),
        formats=OPENAI,
    ),
]

MEMBERS = [
    Oddity(
        "null-delta",
        "Azure, NewAPI",
        ["Hello ", choice(delta=None), "there.", choice("stop", delta=None)],
        formats=OPENAI,
        end=(),
    ),
    Oddity(
        "no-delta",
        "Azure with asynchronous filters",
        ["Hello ", choice(content_filter_offsets={"check_offset": 44}), "there."],
        formats=OPENAI,
    ),
    Oddity(
        "no-choices",
        "Azure's filter results, Cloudflare, LocalAI",
        [
            {"choices": [], "prompt_filter_results": [{"prompt_index": 0}], "id": ""},
            "Hello ",
            {**chunk(), "choices": None},
            "there.",
            {"id": "x", "object": "chat.completion.chunk"},
        ],
        formats=OPENAI,
    ),
    Oddity(
        "no-choices-after-the-end",
        "OpenCode Zen",
        end=[End("stop"), {"choices": [], "cost": "0"}],
        formats=OPENAI,
    ),
    Oddity(
        "role-in-each-chunk",
        "llama.cpp, Ollama, SGLang",
        [
            said(None, timings={"prompt_n": 12}),
            {**chunk(role=None, content="Hello ", tool_calls=None), "usage": None},
            chunk(role="assistant", content="there."),
        ],
        formats=OPENAI,
    ),
    Oddity(
        "prompt-progress",
        "llama.cpp b6400",
        [{**choice(delta={"role": "assistant"}), "prompt_progress": {"total": 237, "cache": 0}}]
        + [{**chunk(content=each), "timings": {"predicted_n": 1}} for each in ("Hello ", "there.")],
        formats=OPENAI,
    ),
    Oddity(
        "list-of-parts",
        "Mistral's models that think",
        [
            said([{"type": "thinking", "thinking": [{"type": "text", "text": "A guest."}]}]),
            said([{"type": "text", "text": "Hello "}, {"type": "reference", "reference_ids": [1]}]),
            said([{"type": "text", "text": "there."}]),
        ],
        Result(text="Hello there.", thinking="A guest."),
        formats=OPENAI,
    ),
    Oddity(
        "message-in-one-event",
        "proxies that only pretend to stream",
        [choice("stop", message={"role": "assistant", "content": "Hello there."})],
        formats=OPENAI,
        end=(),
    ),
    Oddity(
        "message-that-grows",
        "Perplexity",
        [
            choice(delta={"content": "Hello "}, message={"content": "Hello "}),
            choice(delta={"content": "there."}, message={"content": "Hello there."}),
        ],
        formats=OPENAI,
        is_closed=False,
    ),
    Oddity(
        "text-beside-the-delta",
        "Together",
        [
            choice(text=each, delta={"content": each, "token_id": 7})
            for each in ("Hello ", "there.")
        ],
        formats=OPENAI,
        end=[End("eos")],
    ),
    Oddity(
        "refusal-member",
        "OpenAI",
        [chunk(refusal="I can't "), chunk(refusal="do that.")],
        Result(text="I can't do that."),
        formats=OPENAI,
    ),
    Oddity("empty-pieces", "every server", ["", "Hello ", "", "there.", ""]),
    Oddity(
        "text-in-the-start-of-a-block",
        "Bedrock, MiniMax",
        [
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "content_block_start",
                "index": 1,
                "content_block": {"type": "text", "text": "Hello there."},
            },
        ],
        formats=ANTHROPIC,
    ),
    Oddity(
        "delta-without-a-start",
        "LiteLLM",
        [
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "Hello there."},
            }
        ],
        formats=ANTHROPIC,
    ),
    Oddity(
        "unknown-blocks",
        "Claude with server tools",
        [
            "Hello ",
            {"type": "content_block_start", "index": 7, "content_block": {"type": "new_block"}},
            {"type": "content_block_delta", "index": 7, "delta": {"type": "new_delta"}},
            {"type": "content_block_stop", "index": 7},
            {"type": "new_event"},
            "there.",
        ],
        formats=ANTHROPIC,
    ),
    Oddity(
        "candidates-without-content",
        "Gemini 2.5 Flash",
        [
            {"candidates": [{"index": 0}], "usageMetadata": {"promptTokenCount": 12}},
            "Hello ",
            {"candidates": [{"content": {"role": "model"}}]},
            {"candidates": [{"content": None}]},
            {"candidates": []},
            {"usageMetadata": {"promptTokenCount": 12}},
            "there.",
        ],
        formats=GEMINI,
    ),
]

USAGE = [
    Oddity(
        "usage-in-each-chunk",
        "vLLM with continuous_usage_stats, xAI, Perplexity",
        [said("Hello ", usage=usage(12, 1)), said("there.", usage=usage(12, 2))],
        Result(text="Hello there.", usage=(12, 2)),
        formats=OPENAI,
    ),
    Oddity(
        "usage-in-the-choice",
        "Moonshot",
        end=[choice("stop", delta={}, usage=usage(19, 13))],
        result=Result(text="Hello there.", usage=(19, 13)),
        formats=OPENAI,
    ),
    Oddity(
        "usage-of-the-vendor",
        "Groq",
        end=[{**chunk("stop"), "x_groq": {"id": "req_1", "usage": usage(19, 13)}}],
        result=Result(text="Hello there.", usage=(19, 13)),
        formats=OPENAI,
    ),
    Oddity(
        "usage-of-zeros",
        "LocalAI, KoboldCpp",
        [said("Hello ", usage=usage(0, 0)), said("there.", usage={"prompt_tokens": None})],
        end=[chunk("stop")],
        result=Result(text="Hello there.", usage=()),
        formats=OPENAI,
    ),
    Oddity(
        "usage-of-nulls",
        "Fireworks, older vLLM",
        end=[{**chunk("stop"), "usage": {"prompt_tokens": 7, "completion_tokens": None}}],
        result=Result(text="Hello there.", usage=(7, 0)),
        formats=OPENAI,
    ),
    Oddity(
        "usage-that-grows",
        "Gemini",
        [
            {
                "candidates": [{"content": {"parts": [{"text": "Hello there."}]}}],
                "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 1},
            },
            {"usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 2}},
        ],
        end=[{"candidates": [{"finishReason": "STOP"}]}],
        result=Result(text="Hello there.", usage=(12, 2)),
        formats=GEMINI,
    ),
]

ENDS = [
    Oddity("done-without-a-finish", "Gemini's OpenAI route, Foundry Local", end=(), formats=OPENAI),
    Oddity("finish-without-done", "Perplexity, Anthropic gateways", is_closed=False),
    Oddity(
        "done-twice",
        "LiteLLM",
        wire=change(lambda all_: all_ + b"data: [DONE]\n\n"),
        formats=OPENAI,
    ),
    Oddity(
        "stop-marker-without-a-reason",
        "Anthropic gateways",
        end=[{"type": "message_delta", "delta": {"stop_reason": None}, "usage": {}}],
        formats=ANTHROPIC,
    ),
    Oddity(
        "empty-finish-in-each-chunk",
        "Ollama 0.1.37, SGLang 0.4.3",
        [said("Hello ", ""), said("there.", "")],
        formats=OPENAI,
    ),
    Oddity(
        "finish-null-as-a-word",
        "KoboldCpp 1.85",
        [said("Hello ", "null"), said("there.", "null")],
        formats=OPENAI,
    ),
    Oddity(
        "finish-in-each-chunk",
        "GPT4All, LangServe",
        [said("Hello ", "stop"), said("there.", "stop")],
        formats=OPENAI,
    ),
    *(
        Oddity(f"finish-{word.lower()}", server, end=[End(word)], formats=OPENAI)
        for word, server in (
            ("eos", "Together"),
            ("eos_token", "TGI"),
            ("stop_sequence", "TGI"),
            ("end_turn", "xAI"),
            ("COMPLETE", "Cohere"),
            ("STOP", "Gemini behind proxies"),
        )
    ),
    *(
        Oddity(
            f"finish-{word.lower()}",
            server,
            end=[End(word)],
            result=Result(text="Hello there.", finish="length"),
            formats=OPENAI,
        )
        for word, server in (
            ("model_length", "Mistral"),
            ("MAX_TOKENS", "Cohere, Gemini behind proxies"),
            ("model_context_window_exceeded", "Z.ai"),
        )
    ),
    *(
        Oddity(
            f"finish-{word.lower()}",
            server,
            end=[End(word)],
            result=Result(text="Hello there.", finish="safety"),
            formats=OPENAI,
        )
        for word, server in (
            ("content_filter", "Azure, OpenAI"),
            ("sensitive", "Z.ai"),
            ("refusal", "Claude behind proxies"),
            ("SAFETY", "Gemini behind proxies"),
        )
    ),
    Oddity(
        "finish-of-a-new-kind",
        "any vendor, one day",
        end=[End("something_new")],
        result=Result(text="Hello there.", finish="other"),
    ),
    *(
        Oddity(
            f"finish-{word}",
            server,
            end=[End(word)],
            result=Result(text="Hello there.", error="model-server-failed", says=says),
            formats=OPENAI,
        )
        for word, server, says in (
            ("error", "OpenRouter, KoboldCpp 1.116", "server failed"),
            ("abort", "vLLM, SGLang", "abort"),
            ("network_error", "Z.ai", "network_error"),
            ("insufficient_system_resource", "DeepSeek", "insufficient_system_resource"),
        )
    ),
    Oddity(
        "empty",
        "every server",
        [""],
        Result(error="model-empty-reply", says="The model returned an empty reply"),
    ),
    Oddity(
        "blanks-alone",
        "small models",
        ["\n", " \n"],
        Result(text="\n \n", error="model-empty-reply"),
    ),
    Oddity(
        "filtered",
        "every vendor",
        (),
        Result(error="model-blocked", says="content filter"),
        end=[End("safety")],
    ),
    Oddity(
        "prompt-filtered",
        "Gemini",
        [{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}],
        Result(error="model-blocked", says="PROHIBITED_CONTENT"),
        end=(),
        formats=GEMINI,
    ),
    Oddity(
        "cut-at-the-limit",
        "every vendor",
        end=[End("length")],
        result=Result(text="Hello there.", finish="length"),
    ),
    Oddity(
        "nothing-but-the-limit",
        "models that think in secret",
        (),
        Result(error="model-empty-reply", says="max_output_tokens"),
        end=[End("length")],
    ),
    Oddity(
        "closed-before-its-end",
        "crashed servers",
        ["Hello ", "there"],
        Result(text="Hello there", error="model-interrupted", says="The reply was cut off"),
        end=(),
        is_closed=False,
    ),
    Oddity(
        "connection-lost",
        "crashed servers, restarted proxies",
        ["Hello ", "there", Break()],
        Result(text="Hello there", error="model-interrupted", says="The reply was cut off"),
        end=(),
        is_closed=False,
    ),
    Oddity(
        "malformed-call",
        "Gemini 2.5 Flash",
        (),
        Result(error="model-malformed-call", says="MALFORMED_FUNCTION_CALL"),
        end=[End("MALFORMED_FUNCTION_CALL")],
        formats=GEMINI,
    ),
]

OVERLOADED = Result(text="Hello ", error="model-overloaded", says="overloaded")
FAILED = Result(text="Hello ", error="model-server-failed", says="server failed")

FAULTS = [
    Oddity(
        "overloaded",
        "Claude, Gemini, vLLM",
        ["Hello ", Fault("Overloaded", "overloaded_error", 503)],
        OVERLOADED,
        end=(),
        is_closed=False,
    ),
    Oddity(
        "overloaded-in-another-form",
        "LiteLLM's Anthropic route",
        ["Hello ", {"error": {"message": "Overloaded", "type": "overloaded_error", "code": "529"}}],
        OVERLOADED,
        ANTHROPIC,
        end=(),
        is_closed=False,
    ),
    Oddity(
        "provider-lost",
        "OpenRouter",
        [
            "Hello ",
            {
                **choice("error", delta={"content": ""}),
                "error": {
                    "code": 502,
                    "message": "Provider disconnected",
                    "metadata": {"error_type": "provider_unavailable"},
                },
            },
        ],
        FAILED,
        end=(),
        formats=OPENAI,
    ),
    Oddity(
        "failed-then-done",
        "vLLM",
        [
            "Hello ",
            {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}},
        ],
        FAILED,
        end=(),
        formats=OPENAI,
    ),
    Oddity(
        "failed-bare",
        "older vLLM, SGLang",
        ["Hello ", {"object": "error", "message": "engine is dead", "type": "", "code": 500}],
        FAILED,
        end=(),
        formats=OPENAI,
    ),
    Oddity(
        "failed-as-an-event",
        "LM Studio, Groq",
        [
            "Hello ",
            b"event: error\n" + frame({"error": {"message": "Compute error."}, "message": "Error"}),
        ],
        FAILED,
        end=(),
        is_closed=False,
        formats=OPENAI,
    ),
    Oddity(
        "failed-as-a-field",
        "llama.cpp before b4000",
        ["Hello ", b'error: {"code":500,"message":"slot unavailable","type":"server_error"}\n\n'],
        FAILED,
        end=(),
        is_closed=False,
        formats=OPENAI,
    ),
    Oddity(
        "failed-as-a-text",
        "Ollama, Featherless, TGI",
        ["Hello ", {"error": "an error was encountered while running the model"}],
        FAILED,
        end=(),
        is_closed=False,
        formats=OPENAI,
    ),
    Oddity(
        "limited",
        "OpenRouter, Groq",
        ["Hello ", {"error": {"message": "Rate limit exceeded", "code": 429}}],
        Result(text="Hello ", error="model-rate-limited", says="429"),
        end=(),
        formats=OPENAI,
    ),
    Oddity(
        "failed-at-once",
        "llama.cpp b5630, TGI",
        wire=Wire(
            change=lambda _: frame(
                {"error": {"message": "Out of memory", "code": 500, "type": "server_error"}}
            )
        ),
        result=Result(error="model-server-failed", says="server failed"),
        formats=OPENAI,
    ),
    Oddity(
        "failed-with-200",
        "OpenRouter, LM Studio",
        answer=Answer(body={"error": {"message": "Rate limit exceeded", "code": 429}}),
        result=Result(error="model-rate-limited", says="429"),
    ),
    Oddity(
        "web-page",
        "login pages, proxies, hotel networks",
        answer=Answer(body=b"<!doctype html>\n<html><body>Please log in</body></html>"),
        result=Result(error="model-web-page", says="web page"),
    ),
    *(
        Oddity(
            name,
            server,
            answer=Answer(body=body),
            result=Result(error="model-foreign-answer", says="not a reply"),
        )
        for name, server, body in (
            ("other-json", "health routes", {"status": "ok"}),
            ("other-list", "other APIs", [1, 2]),
            ("empty-object", "stubs", {}),
        )
    ),
]

STREAMS = [*BYTES, *CHARACTERS, *EVENTS, *MEMBERS, *USAGE, *ENDS, *FAULTS]
