"""Oddities of thoughts: their places and tags."""

from __future__ import annotations

from tests.fakes import gemini_server
from tests.fakes.gemini_server import text_part, thought_part
from tests.fakes.oddities.oddity import GEMINI, NODS, OPENAI, Oddity, Result
from tests.fakes.oddities.wire_formats import End, Thought
from tests.fakes.openai_server import chunk

PLAN, REPLY = "The user greets me.", "Mags waves."
THOUGHT = Result(text=REPLY, thinking=PLAN)
THINKS_FIRST = Result(text=REPLY, thinking=PLAN, learned={"thinks_first": True})

_TAGS = (
    ("think", "DeepSeek R1, Qwen 3, GLM", "<think>", "</think>"),
    ("think-in-capitals", "fine-tunes", "<THINK>", "</Think>"),
    ("thinking", "fine-tunes, prompts of SillyTavern", "<thinking>", "</thinking>"),
    ("thought", "Gemini, Gemma 3", "<thought>", "</thought>"),
    ("reasoning", "Reka, fine-tunes", "<reasoning>", "</reasoning>"),
    ("seed", "ByteDance Seed-OSS", "<seed:think>", "</seed:think>"),
    ("brackets", "Magistral 2509", "[THINK]", "[/THINK]"),
    ("channel", "Gemma 4", "<|channel>thought\n", "<channel|>"),
    (
        "harmony",
        "gpt-oss without a parser",
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
)

TAGS = [
    *(
        Oddity(f"tags-{name}", server, [opening, PLAN, closing, REPLY], THOUGHT)
        for name, server, opening, closing in _TAGS
    ),
    Oddity(
        "tags-whole",
        "servers without streams",
        [f"<think>{PLAN}</think>{REPLY}"],
        THOUGHT,
        is_whole=True,
    ),
    Oddity(
        "tags-in-letters",
        "every server that streams tokens",
        list(f"<think>\n{PLAN}</think>\n\n{REPLY}"),
        THOUGHT,
    ),
    *(
        Oddity(
            f"lone-{name}",
            server,
            ["The user ", "greets me.", f"\n{closing}\n\n", REPLY],
            Result(text=REPLY, thinking=f"{PLAN}\n", learned={"thinks_first": True}),
        )
        for name, server, closing in (
            ("think", "R1 templates in llama.cpp, vLLM without a parser", "</think>"),
            ("thought", "Gemma behind LM Studio", "</Thought>"),
            ("channel", "Gemma 4 behind Ollama", "<channel|>"),
        )
    ),
    Oddity("lone-tag-in-letters", "llama.cpp", list(f"{PLAN}</think>{REPLY}"), THINKS_FIRST),
    Oddity("lone-tag-whole", "LM Studio", [f"{PLAN}</think>{REPLY}"], THINKS_FIRST, is_whole=True),
    Oddity(
        "no-thoughts-between-tags",
        "Qwen 3 with /no_think",
        ["<think>\n\n</think>\n\n", REPLY],
        Result(text=REPLY),
    ),
    Oddity(
        "thoughts-twice",
        "GLM 4.5",
        ["<think>The user ", "</think>\n", "<think>greets me.</think>", REPLY],
        THOUGHT,
    ),
    Oddity(
        "tag-in-code",
        "models that explain themselves",
        ["Write `</think>`:\n```\n</think>\n```\n", "Done."],
        Result(text="Write `</think>`:\n```\n</think>\n```\nDone."),
    ),
    Oddity(
        "tag-in-a-story",
        "every model",
        ["She typed <think>x</think>", " and left."],
        Result(text="She typed <think>x</think> and left."),
    ),
    Oddity(
        "thoughts-without-an-end",
        "small models",
        ["<think>", "The user greets me."],
        Result(thinking=PLAN),
    ),
    Oddity(
        "cut-in-thoughts",
        "every model with too few tokens",
        ["<think>", "The user greets"],
        Result(thinking="The user greets", finish="length"),
        end=[End("length")],
    ),
]

MEMBERS = [
    Oddity("member", "every vendor with thoughts of its own", [Thought(PLAN), REPLY], THOUGHT),
    Oddity(
        "member-alone",
        "DeepSeek, vLLM with a wrong parser",
        [Thought("Mags waves "), Thought("and says hello.")],
        Result(thinking="Mags waves and says hello."),
    ),
    Oddity(
        "member-whole", "servers without streams", [Thought(PLAN), REPLY], THOUGHT, is_whole=True
    ),
    Oddity(
        "member-and-tags",
        "NewAPI, Poe",
        [Thought("The user "), "<think>", "greets me.", "</think>", REPLY],
        THOUGHT,
    ),
    Oddity(
        "member-and-text-in-one-chunk",
        "SGLang, LiteLLM",
        [chunk(reasoning_content=PLAN, content="Mags "), "waves."],
        THOUGHT,
        formats=OPENAI,
    ),
    Oddity(
        "thought-and-text-in-one-chunk",
        "Gemini 2.5",
        [gemini_server.chunk(thought_part(PLAN), text_part("Mags ")), "waves."],
        THOUGHT,
        formats=GEMINI,
    ),
    Oddity(
        "member-under-both-names",
        "OpenRouter, vLLM 0.11",
        [
            chunk(
                content="",
                reasoning=PLAN,
                reasoning_content=PLAN,
                reasoning_details=[{"type": "reasoning.text", "text": PLAN}],
            ),
            REPLY,
        ],
        THOUGHT,
        formats=OPENAI,
    ),
    Oddity(
        "member-of-nulls",
        "vLLM, OpenRouter",
        [
            chunk(reasoning_content=None, reasoning=None, content="Mags "),
            chunk(reasoning_content="", content="nods."),
        ],
        NODS,
        formats=OPENAI,
    ),
    Oddity(
        "member-after-text",
        "GLM, interleaved thoughts",
        ["Mags ", Thought(PLAN), "waves."],
        THOUGHT,
    ),
]

THOUGHTS = [*TAGS, *MEMBERS]
