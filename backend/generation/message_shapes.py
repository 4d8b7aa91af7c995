"""The order and roles of messages that a model's chat template accepts.

Many open models have a template that raises an error for prompts that OpenAI's models accept.
Sources: the templates of Qwen 3.5 ("System message must be at the beginning."), Gemma 2 ("System
role not supported", "Conversation roles must alternate user/assistant/user/assistant/..."), Mistral
7B Instruct ("After the optional system message, conversation roles must alternate ...") and
llama-cpp-python's Mistral format, which knows `user` and `assistant` alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from backend.generation.catalogue import MESSAGE_SHAPES, MessageShape
from backend.generation.model import Prompt, PromptMessage, Role
from backend.generation.tokens import MESSAGE_OVERHEAD

OPENING = "[Start]"
"""The user's message before a greeting, for templates that want the user to speak first."""

SEPARATOR = "\n\n"
"""Between texts that share a message."""

_BLOCK_START, _BLOCK_END = "<system>\n", "\n</system>"
"""Around the text of a system message that is sent inside a user message."""

_MAX_SEARCHED_CHARACTERS = 4_000
"""Characters of a refusal that are searched."""

_TEMPLATE_WORDS = re.compile(
    r"jinja2|jinja (?:exception|template|error)|chat[ _]template|templateerror|raise_exception"
    r"|apply_chat|conversation role"
    r"|system (?:role|message)|roles? must|must alternate|\brole\b.{0,40}\bnot supported"
    r"|(?:only|expected?) .{0,40}\broles?\b|\broles?\b.{0,60}(?:order|first|start|begin)"
    r"|(?:first|last) message|user query|unexpected role|(?:developer|system) instruction"
    r"|\brole['\"]? does not support|successive (?:user|assistant)"
    r"|assistant messages at the end",
    re.IGNORECASE,
)
_NO_SYSTEM = re.compile(
    r"system(?: role| message|_message| prompt)?s?['\"]?(?: is| are)? (?:not |un)"
    r"(?:supported|allowed|permitted)|(?:developer|system) instruction is not"
    r"|(?:does not|doesn't) support (?:a |the )?['\"]?system"
    r"|only user(?:,| and|/) ?assistant|only (?:the )?user and assistant|no system",
    re.IGNORECASE,
)
_ALTERNATION = re.compile(
    r"alternat|user/assistant|unexpected role ['\"]?(?:user|assistant)"
    r"|(?:first|last) message .{0,40}\buser|(?:start|begin)s? with .{0,20}user"
    r"|(?:consecutive|successive) .{0,20}(?:role|message)|same role"
    r"|assistant messages at the end",
    re.IGNORECASE,
)
_SYSTEM_FIRST = re.compile(
    r"system .{0,40}(?:beginning|first|start)|(?:beginning|first|start).{0,40} system"
    r"|unexpected role ['\"]?system",
    re.IGNORECASE,
)


def find_stricter_shape(text: str, prompt: Prompt, shape: MessageShape) -> MessageShape | None:
    """Return the shape to send a refused prompt in; None if the refusal is about something else.

    A shape in which the prompt would be the same is not tried.

    Args:
        text: The words of a server's answer.
        prompt: The prompt, before it was shaped.
        shape: The shape that was refused.
    """
    text = text[:_MAX_SEARCHED_CHARACTERS]
    if not _TEMPLATE_WORDS.search(text):
        return None
    wanted = next((asked for words, asked in _BY_WORDS if words.search(text)), "lenient")
    stricter = MESSAGE_SHAPES[MESSAGE_SHAPES.index(shape) + 1 :]
    if wanted in stricter:
        stricter = stricter[stricter.index(wanted) :]
    sent = shape_prompt(prompt, shape).messages
    return next((each for each in stricter if shape_prompt(prompt, each).messages != sent), None)


_BY_WORDS: Sequence[tuple[re.Pattern[str], MessageShape]] = (
    (_NO_SYSTEM, "no_system"),
    (_ALTERNATION, "alternating"),
    (_SYSTEM_FIRST, "system_first"),
)


def shape_prompt(prompt: Prompt, shape: MessageShape) -> Prompt:
    """Return the prompt with its messages in a shape. The rounds of tools stay as they are.

    In the strict shapes a system message inside the conversation becomes a marked block of a user
    message, and neighbours of one role share a message.
    """
    if shape == "lenient":
        return prompt
    shaped = _shape(prompt.messages, shape)
    stable = sum(each.last < prompt.stable for each in shaped)
    return replace(prompt, messages=[each.joined() for each in shaped], stable=stable)


def shape_messages(messages: Sequence[PromptMessage], shape: MessageShape) -> list[PromptMessage]:
    return list(shape_prompt(Prompt(messages), shape).messages)


def count_shape(
    messages: Sequence[PromptMessage], shape: MessageShape, count: Callable[[str], int]
) -> int:
    """Return how many more tokens messages take in a shape than they take as they are.

    It is negative if more is saved by joined messages than the marks cost. Counts no message's own
    text, so it is linear in the number of messages.
    """
    if shape == "lenient":
        return 0
    shaped = _shape(messages, shape)
    texts = sum(len(each.texts) for each in shaped)
    return (
        sum(each.blocks for each in shaped) * _count_marks(count)
        + (texts - len(shaped)) * count(SEPARATOR)
        + (count(OPENING) if texts > len(messages) else 0)
        + MESSAGE_OVERHEAD * (len(shaped) - len(messages))
    )


def limit_shape_tokens(
    system_messages: int, shape: MessageShape, count: Callable[[str], int]
) -> int:
    """Return the most that `count_shape` can return for so many system messages."""
    if shape == "lenient":
        return 0
    return system_messages * _count_marks(count) + count(OPENING) + MESSAGE_OVERHEAD


def _count_marks(count: Callable[[str], int]) -> int:
    return count(_BLOCK_START) + count(_BLOCK_END)


@dataclass(slots=True)
class _ShapedMessage:
    """A message of a shaped prompt: its texts, how many are blocks, and the last one's place."""

    role: Role
    texts: list[str]
    blocks: int
    last: int

    def joined(self) -> PromptMessage:
        """Return the message that is sent."""
        return PromptMessage(self.role, SEPARATOR.join(self.texts))


def _shape(messages: Sequence[PromptMessage], shape: MessageShape) -> list[_ShapedMessage]:
    shaped: list[_ShapedMessage] = []
    is_leading = True
    for place, message in enumerate(messages):
        role, text, is_block = message.role, message.text, False
        is_leading = is_leading and role == "system"
        if role == "system" and not (is_leading and shape != "no_system"):
            role, text, is_block = "user", f"{_BLOCK_START}{text}{_BLOCK_END}", True
        if shaped and shaped[-1].role == role:
            shaped[-1].texts.append(text)
            shaped[-1].blocks += is_block
            shaped[-1].last = place
            continue
        if role == "assistant" and shape != "system_first" and _needs_opening(shaped):
            shaped.append(_ShapedMessage("user", [OPENING], 0, place - 1))
        shaped.append(_ShapedMessage(role, [text], int(is_block), place))
    if _needs_opening(shaped):
        shaped.append(_ShapedMessage("user", [OPENING], 0, len(messages) - 1))
    return shaped


def _needs_opening(shaped: Sequence[_ShapedMessage]) -> bool:
    """True if the user has not spoken yet where a conversation should begin."""
    return not shaped or shaped[-1].role == "system"
