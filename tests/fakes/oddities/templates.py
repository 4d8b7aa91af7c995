"""Chat templates and APIs that refuse the order or the roles of messages, in their own words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.generation.figures import MessageShape
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

ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
ALTERNATE_AFTER_SYSTEM = (
    "After the optional system message, conversation roles must alternate user/assistant/user/"
    "assistant/..."
)
ONLY_TWO_ROLES = "Only user and assistant roles are supported!"

Check = Callable[[Sequence[str]], bool]
"""True for roles that a template accepts."""


def takes_turns(roles: Sequence[str]) -> bool:
    return all((role == "user") == (place % 2 == 0) for place, role in enumerate(roles))


def system_first(roles: Sequence[str]) -> bool:
    return "system" not in roles[1:] and "user" in roles


def alternating(roles: Sequence[str]) -> bool:
    return takes_turns(roles[1:] if roles[0] == "system" else roles)


def no_system(roles: Sequence[str]) -> bool:
    return "system" not in roles and takes_turns(roles)


def in_words(check: Check, message: str, status: int = 400, kind: str = "") -> Refuse:
    """Refuse in the usual form of an error."""

    def refuse(asked: Asked) -> Refusal | None:
        usual = kind or "invalid_request_error"
        return None if check(asked.roles) else Refusal(message, status, usual)

    return refuse


def in_form(check: Check, status: int, body: object) -> Refuse:
    """Refuse in a form of the server's own."""

    def refuse(asked: Asked) -> Answer | None:
        return None if check(asked.roles) else Answer(status=status, body=body)

    return refuse


def template(
    name: str,
    server: str,
    refuse: Refuse,
    shape: MessageShape,
    formats: Sequence[FormatName] = OPENAI,
) -> Oddity:
    """A model whose template is strict. In the end it nods, and the shape is known."""
    learned = {"shape": shape}
    result = Result(text="Mags nods.", shape=shape, learned=learned)
    return Oddity(name, server, ["Mags ", "nods."], result, formats, refuse=refuse)


TEMPLATES = [
    template(
        "qwen",
        "Qwen 3.5 in llama.cpp b8000",
        in_words(
            system_first,
            "Unable to generate parser for this template. Automatic parser generation failed: \n"
            "------------\nWhile executing CallExpression at line 85, column 32 in source:\n...\n"
            "Error: Jinja Exception: System message must be at the beginning.",
        ),
        "system_first",
    ),
    template(
        "qwen-vllm",
        "Qwen 3.5 in vLLM 0.12",
        in_form(
            system_first,
            400,
            {
                "object": "error",
                "message": "System message must be at the beginning.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
        ),
        "system_first",
    ),
    template(
        "mistral-service",
        "Mistral's own API",
        in_form(
            system_first,
            400,
            {
                "object": "error",
                "message": "Unexpected role 'system' after role 'assistant'",
                "type": "invalid_request_message_order",
                "param": None,
                "code": "3230",
            },
        ),
        "system_first",
    ),
    template(
        "gemma-2",
        "Gemma 2 in llama.cpp b5000",
        in_words(
            no_system,
            "\n------------\nWhile executing CallExpression at line 1, column 77 in source:\n...\n"
            "Error: Jinja Exception: System role not supported",
            500,
            "server_error",
        ),
        "no_system",
    ),
    template(
        "gemma-3",
        "Gemma 3 in llama.cpp b7950",
        in_words(
            alternating,
            "\n------------\nWhile executing CallExpression at line 19, column 27 in source:\n"
            '...% 2 == 0) -%}{{ raise_exception("Conversation roles must alternate user...\n'
            f"Error: Jinja Exception: {ALTERNATE}",
            500,
            "server_error",
        ),
        "alternating",
    ),
    template(
        "gemma-vllm",
        "Gemma 3 in vLLM",
        in_form(
            alternating,
            400,
            {
                "object": "error",
                "message": ALTERNATE,
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
        ),
        "alternating",
    ),
    template(
        "gemma-lm-studio",
        "Gemma 3 in LM Studio 0.3",
        in_form(
            alternating,
            400,
            {
                "error": f'Error rendering prompt with jinja template: "Error: {ALTERNATE}". This '
                "is usually an issue with the model's prompt template."
            },
        ),
        "alternating",
    ),
    template(
        "gemma-in-the-stream",
        "Gemma 3 in llama.cpp b5630",
        in_form(
            alternating,
            200,
            {"error": {"code": 500, "message": f"Jinja Exception: {ALTERNATE}", "type": "server"}},
        ),
        "alternating",
    ),
    template(
        "gemma-service",
        "Gemma 3 in Gemini's API",
        in_words(
            lambda roles: "system" not in roles,
            "Developer instruction is not enabled for models/gemma-3-27b-it",
        ),
        "no_system",
        GEMINI,
    ),
    template(
        "mistral-7b",
        "Mistral 7B Instruct v0.3 in vLLM, SGLang",
        in_words(alternating, ALTERNATE_AFTER_SYSTEM),
        "alternating",
    ),
    template(
        "devstral",
        "Devstral in llama.cpp b7950",
        in_words(
            alternating,
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
        in_form(alternating, 400, {"detail": f"TemplateError: {ALTERNATE_AFTER_SYSTEM}"}),
        "alternating",
    ),
    template(
        "mistral-llama-cpp-python",
        "Mistral in llama-cpp-python 0.3",
        in_words(no_system, ONLY_TWO_ROLES, 500, "internal_server_error"),
        "no_system",
    ),
    template(
        "mixtral",
        "Mixtral 8x7B Instruct v0.1 in Aphrodite",
        in_words(no_system, ONLY_TWO_ROLES),
        "no_system",
    ),
    template(
        "llama-2",
        "Llama 2 Chat in TGI 2",
        in_form(
            alternating,
            422,
            {
                "error": f"Template error: {ALTERNATE} (in <string>:1)",
                "error_type": "template_error",
            },
        ),
        "alternating",
    ),
    template(
        "command-r",
        "Command R in KoboldCpp with --jinja",
        in_form(
            alternating, 400, {"detail": {"error": f"jinja2.exceptions.TemplateError: {ALTERNATE}"}}
        ),
        "alternating",
    ),
    template(
        "perplexity",
        "Perplexity",
        in_form(
            alternating,
            400,
            {
                "error": {
                    "message": "After the (optional) system message(s), user and assistant roles "
                    "should be alternating.",
                    "type": "invalid_message",
                    "code": 400,
                }
            },
        ),
        "alternating",
    ),
    template(
        "deepseek-reasoner",
        "DeepSeek",
        in_words(
            alternating,
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
            lambda roles: "system" not in roles,
            400,
            {
                "error": {
                    "message": "Unsupported value: 'messages[0].role' does not support 'system' "
                    "with this model.",
                    "type": "invalid_request_error",
                    "param": "messages[0].role",
                    "code": "unsupported_value",
                }
            },
        ),
        "no_system",
    ),
    Oddity(
        "two-assistant-messages",
        "llama.cpp b5200, Ollama",
        refuse=in_words(
            lambda roles: roles[-2:] != ["assistant", "assistant"],
            "Cannot have 2 or more assistant messages at the end of the list.",
        ),
        result=Result(
            text="Mags: Hello there.", shape="alternating", learned={"shape": "alternating"}
        ),
        formats=OPENAI,
        sampling={"start_reply_with": "Mags: "},
        continues=True,
    ),
    template(
        "messages-gemma-2",
        "Gemma 2 on the Anthropic route of llama.cpp",
        in_words(no_system, "Jinja Exception: System role not supported", 500, "api_error"),
        "no_system",
        LOCAL,
    ),
]
