"""The known forms of requests that are not part of a conversation.

A program also asks for titles, tags, summaries and image prompts, and tests its connection. Its
default texts identify such a request, by their beginnings. White space, case and an opening bracket
do not matter. A text that a user has changed is not recognised here: `decisions.py` then looks at
the place of the request in the conversation.

| Program | Task | Recognised by |
|---|---|---|
| Open WebUI | title, tags, follow-ups, autocompletion, search queries, image prompts | a user message `### Task:` with `<chat_history>` in it |
| Open WebUI | autocompletion without a history, emoji, merged answers, tool selection | their first words |
| LibreChat | title, language of the title, summary | their first words |
| SillyTavern | summary, expression, image prompts, captions, objectives | their first words |
| RisuAI | summary | its first words |
| SillyTavern, JanitorAI | connection test | a list of one message: `Hi`, `test`, `Just say TEST` |

The default texts are those of Open WebUI 0.3 to 0.6 (`config.py`), LibreChat 0.7 and 0.8 (the title
and summary prompts of `@librechat/agents`), SillyTavern 1.12 to 1.18 (the extensions memory,
vectors, expressions, stable-diffusion, caption and objective) and RisuAI (its memory prompts).

Open WebUI's template for documents begins with `### Task:` too, but contains the user's line, so
its beginning alone identifies nothing.
"""  # noqa: E501  # a table

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.openai_api.contracts import SentMessage

HEAD_CHARACTERS = 600
"""The part of a text that is compared with beginnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietForm:
    """A default text of a program.

    Attributes:
        beginnings: The beginning of each of its versions, as `normalise_head` returns it.
        content: A text that must occur as well.
    """

    program: str
    task: str
    beginnings: tuple[str, ...]
    content: str = ""


QUIET_FORMS: tuple[QuietForm, ...] = (
    QuietForm(
        program="Open WebUI",
        task="Titles, tags, follow-ups, search queries and image prompts",
        beginnings=("### task:",),
        content="<chat_history>",
    ),
    QuietForm(
        program="Open WebUI",
        task="Autocompletion",
        beginnings=("### task: you are an autocompletion system.",),
    ),
    QuietForm(
        program="Open WebUI",
        task="Titles and search queries of older versions",
        beginnings=(
            "create a concise, 3-5 word phrase as a header for the following query",
            "create a concise, 3-5 word title with an emoji as a title for the",
            "generate a concise, 3-5 word title with an emoji summarizing the chat history",
            "here is the query: create a concise, 3-5 word phrase",
            "assess the need for a web search based on the current question",
        ),
    ),
    QuietForm(
        program="Open WebUI",
        task="Emoji",
        beginnings=("your task is to reflect the speaker's likely facial expression",),
    ),
    QuietForm(
        program="Open WebUI",
        task="Merged answers",
        beginnings=("you have been provided with a set of responses from various models to",),
    ),
    QuietForm(
        program="Open WebUI",
        task="Tool selection",
        beginnings=("available tools: [", "tools: ["),
        content="tool_calls",
    ),
    QuietForm(
        program="LibreChat",
        task="Titles",
        beginnings=(
            "provide a concise, 5-word-or-less title for the conversation",
            "please generate a concise, 5-word-or-less title for the conversation",
            "please generate a concise title (max 40 characters) for a conversation that",
            "analyze this conversation and provide: 1. the detected language",
            "write a concise title for this conversation in the given language",
            "in this environment you have access to a set of tools you can use to generate",
        ),
    ),
    QuietForm(
        program="LibreChat",
        task="Language of the title",
        beginnings=("detect the language used in the following text",),
    ),
    QuietForm(
        program="LibreChat",
        task="Summaries",
        beginnings=(
            "summarize the conversation by integrating new lines into the current summary",
            "the following text is cut-off: summarize the content as best as you can",
        ),
    ),
    QuietForm(
        program="SillyTavern",
        task="Summaries",
        beginnings=(
            "ignore previous instructions. summarize the most important",
            "pause your roleplay. summarize the most important",
        ),
    ),
    QuietForm(
        program="SillyTavern",
        task="Expressions",
        beginnings=(
            "ignore previous instructions. classify the emotion of the last message",
            "classify the emotion of the last message. output just one word",
        ),
    ),
    QuietForm(
        program="SillyTavern",
        task="Image prompts",
        beginnings=(
            "in the next response i want you to provide only a detailed comma-delimited list of",
            "ignore previous instructions and provide a detailed description",
            "ignore previous instructions and provide only the last chat message string",
            "ignore previous instructions. your next response must be formatted as a single",
            "pause your roleplay and provide a detailed description",
            "pause your roleplay and provide a brief description",
            "pause your roleplay and provide comma-delimited list of",
            "pause your roleplay and provide an exhaustive comma-separated list of tags",
            "provide an exhaustive comma-separated list of tags describing the appearance",
        ),
    ),
    QuietForm(
        program="SillyTavern",
        task="Objectives",
        beginnings=(
            "pause your roleplay. please generate a numbered list of plain text tasks",
            "pause your roleplay. determine if this task is completed",
            "ignore previous instructions. please generate a numbered list of plain text tasks",
            "ignore previous instructions. determine if this task is completed",
        ),
    ),
    QuietForm(
        program="RisuAI",
        task="Summaries",
        beginnings=("summarize the ongoing role story, it must also remove redundancy",),
    ),
)

CAPTION = QuietForm(
    program="SillyTavern",
    task="Captions",
    beginnings=("what's in this image?", "what's in this image"),
)
"""Only in a list of one message with an image: it could be a user's question elsewhere."""

_MAX_TASK_MESSAGES = 2

CONNECTION_TESTS = frozenset({"Hi", "test", "Just say TEST"})
"""The whole text of a list of one message."""


def normalise_head(text: str) -> str:
    """Return the beginning of a text as forms are compared with it."""
    head = (
        " ".join(text[:HEAD_CHARACTERS].split())
        .casefold()
        .replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    )
    return head.lstrip("[(* ")


def find_quiet_form(text: str) -> QuietForm | None:
    head = normalise_head(text)
    for form in QUIET_FORMS:
        if head.startswith(form.beginnings) and form.content in text:
            return form
    return None


def find_list_form(messages: Sequence[SentMessage]) -> QuietForm | None:
    """Return the form of a list that consists of a task and at most one text.

    SillyTavern's raw tasks send the task as a system message, the text as a user message, and
    perhaps the beginning of the answer.
    """
    if len(messages) > 1 and messages[-1].role == "assistant":
        messages = messages[:-1]
    if not messages or len(messages) > _MAX_TASK_MESSAGES:
        return None
    first = messages[0]
    is_alone = len(messages) == 1
    if is_alone and first.images and normalise_head(first.text).startswith(CAPTION.beginnings):
        return CAPTION
    return find_quiet_form(first.text) if is_alone or first.role == "system" else None


def is_connection_test(messages: Sequence[SentMessage]) -> bool:
    return (
        len(messages) == 1
        and messages[0].role == "user"
        and not messages[0].images
        and messages[0].text.strip() in CONNECTION_TESTS
    )
