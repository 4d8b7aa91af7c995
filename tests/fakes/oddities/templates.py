"""Chat templates and APIs that refuse the order or the roles of messages, in their own words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backend.generation.catalogue import MessageShape
from tests.fakes.oddities.oddity import (
    GEMINI,
    LOCAL,
    OPENAI,
    Asked,
    Oddity,
    Refusal,
    Refuse,
    Result,
)
from tests.fakes.oddities.wire_formats import FormatName
from tests.fakes.scripted_server import Answer
from tests.fakes.strict_server import (
    Check,
    Template,
    gemma_2,
    gemma_3,
    llama_cpp_mistral,
    mistral,
    qwen,
)


def no_system(roles: Sequence[str]) -> Template:
    return "No system." if "system" in roles else None


def one_at_the_end(roles: Sequence[str]) -> Template:
    return "Two at the end." if roles[-2:] == ["assistant", "assistant"] else None


def in_words(check: Check, message: str = "{}", status: int = 400, kind: str = "") -> Refuse:
    """Refuse in the usual form of an error; `{}` are the words of the template."""

    def refuse(asked: Asked) -> Refusal | None:
        words = check(asked.roles)
        kept = kind or "invalid_request_error"
        return None if words is None else Refusal(message.replace("{}", words), status, kept)

    return refuse


def in_form(check: Check, status: int, make_body: Callable[[str], Any]) -> Refuse:
    """Refuse in a form of the server's own."""

    def refuse(asked: Asked) -> Answer | None:
        words = check(asked.roles)
        return None if words is None else Answer(status=status, body=make_body(words))

    return refuse


def bare(words: str, kind: str = "BadRequestError", code: int | str = 400) -> Any:
    """The form of vLLM and Mistral."""
    return {"object": "error", "message": words, "type": kind, "param": None, "code": code}


def openai(message: str, **members: Any) -> Any:
    return {"error": {"message": message, "type": "invalid_request_error", **members}}


def template(
    name: str,
    server: str,
    refuse: Refuse,
    shape: MessageShape,
    formats: Sequence[FormatName] = OPENAI,
) -> Oddity:
    """A model with a strict template. It replies after the right shape is found."""
    result = Result(text="Mags nods.", shape=shape, learned={"shape": shape})
    return Oddity(name, server, ["Mags ", "nods."], result, formats, refuse=refuse)


JINJA = "\n------------\nWhile executing CallExpression at line 19, column 27 in source:\n...\n"

TEMPLATES = [
    template(
        "qwen",
        "Qwen 3.5 in llama.cpp b8000",
        in_words(
            qwen,
            "Unable to generate parser for this template. Automatic parser generation failed: "
            f"{JINJA}Error: Jinja Exception: {{}}",
        ),
        "system_first",
    ),
    template("qwen-vllm", "Qwen 3.5 in vLLM 0.12", in_form(qwen, 400, bare), "system_first"),
    template(
        "mistral-service",
        "Mistral's own API",
        in_form(
            qwen,
            400,
            lambda _: bare(
                "Unexpected role 'system' after role 'assistant'",
                "invalid_request_message_order",
                "3230",
            ),
        ),
        "system_first",
    ),
    template(
        "gemma-2",
        "Gemma 2 in llama.cpp b5000, on both routes",
        in_words(gemma_2, f"{JINJA}Error: Jinja Exception: {{}}", 500, "server_error"),
        "no_system",
        LOCAL,
    ),
    template(
        "gemma-3",
        "Gemma 3 in llama.cpp b7950",
        in_words(gemma_3, f"{JINJA}Error: Jinja Exception: {{}}", 500, "server_error"),
        "alternating",
    ),
    template("gemma-vllm", "Gemma 3 in vLLM", in_form(gemma_3, 400, bare), "alternating"),
    template(
        "gemma-lm-studio",
        "Gemma 3 in LM Studio 0.3",
        in_form(
            gemma_3,
            400,
            lambda words: {
                "error": f'Error rendering prompt with jinja template: "Error: {words}". This is '
                "usually an issue with the model's prompt template."
            },
        ),
        "alternating",
    ),
    template(
        "gemma-in-the-stream",
        "Gemma 3 in llama.cpp b5630",
        in_form(gemma_3, 200, lambda words: openai(f"Jinja Exception: {words}", code=500)),
        "alternating",
    ),
    template(
        "gemma-service",
        "Gemma 3 in Gemini's API",
        in_words(no_system, "Developer instruction is not enabled for models/gemma-3-27b-it"),
        "no_system",
        GEMINI,
    ),
    template(
        "mistral-7b", "Mistral 7B Instruct v0.3 in vLLM, SGLang", in_words(mistral), "alternating"
    ),
    template(
        "devstral",
        "Devstral in llama.cpp b7950",
        in_words(
            mistral,
            "Error: Jinja Exception: After the optional system message, conversation roles must "
            "alternate user and assistant roles except for tool calls and results.",
            500,
            "server_error",
        ),
        "alternating",
    ),
    template(
        "mistral-tabbyapi",
        "Mistral Nemo in TabbyAPI",
        in_form(mistral, 400, lambda words: {"detail": f"TemplateError: {words}"}),
        "alternating",
    ),
    template(
        "mistral-llama-cpp-python",
        "Mistral in llama-cpp-python 0.3",
        in_words(llama_cpp_mistral, "{}", 500, "internal_server_error"),
        "no_system",
    ),
    template(
        "mixtral",
        "Mixtral 8x7B Instruct v0.1 in Aphrodite",
        in_words(llama_cpp_mistral, "Only user and assistant roles are supported!"),
        "no_system",
    ),
    template(
        "llama-2",
        "Llama 2 Chat in TGI 2",
        in_form(
            gemma_3,
            422,
            lambda words: {
                "error": f"Template error: {words} (in <string>:1)",
                "error_type": "template_error",
            },
        ),
        "alternating",
    ),
    template(
        "command-r",
        "Command R in KoboldCpp with --jinja",
        in_form(
            gemma_3,
            400,
            lambda words: {"detail": {"error": f"jinja2.exceptions.TemplateError: {words}"}},
        ),
        "alternating",
    ),
    template(
        "perplexity",
        "Perplexity",
        in_words(
            mistral,
            "After the (optional) system message(s), user and assistant roles should be "
            "alternating.",
            kind="invalid_message",
        ),
        "alternating",
    ),
    template(
        "deepseek-reasoner",
        "DeepSeek",
        in_words(
            mistral,
            "deepseek-reasoner does not support successive user or assistant messages (messages[1] "
            "and messages[2] in your input). You should interleave the user/assistant messages in "
            "the message sequence.",
        ),
        "alternating",
    ),
    template(
        "o1-mini",
        "OpenAI",
        in_form(
            no_system,
            400,
            lambda _: openai(
                "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
                param="messages[0].role",
                code="unsupported_value",
            ),
        ),
        "no_system",
    ),
    Oddity(
        "two-assistant-messages",
        "llama.cpp b5200, Ollama",
        refuse=in_words(
            one_at_the_end, "Cannot have 2 or more assistant messages at the end of the list."
        ),
        result=Result(
            text="Mags: Hello there.", shape="alternating", learned={"shape": "alternating"}
        ),
        formats=OPENAI,
        sampling={"start_reply_with": "Mags: "},
        continues=True,
    ),
]
