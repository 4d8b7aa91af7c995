"""The order and roles of messages that a model's chat template accepts.

The templates of many open models raise an error for prompts that OpenAI's models accept. Sources:
the templates of Qwen 3.5 ("System message must be at the beginning."), Gemma 2 ("System role not
supported", "Conversation roles must alternate user/assistant/user/assistant/..."), Mistral 7B
Instruct ("After the optional system message, conversation roles must alternate ...") and
llama-cpp-python's Mistral format, which accepts only `user` and `assistant`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from backend.generation.catalogue import MESSAGE_SHAPES, MessageShape
from backend.generation.model import Prompt, PromptImage, PromptMessage, Role
from backend.generation.tokens import MESSAGE_OVERHEAD

OPENING = "[Start]"
"""The user's message before a greeting, for templates that require that the user begins."""

SEPARATOR = "\n\n"
"""Separates texts that share a message."""

_BLOCK_START, _BLOCK_END = "<system>\n", "\n</system>"
"""Enclose a system message that is sent inside a user message."""

_MAX_SEARCHED_CHARACTERS = 4_000
"""Maximum number of searched characters of a refusal."""

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
    """Return the next shape for a refused prompt; None if the refusal has another reason.

    Shapes that would not change the prompt are skipped.

    Args:
        text: The server's answer.
        prompt: The prompt before shaping.
        shape: The refused shape.
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
    """Convert the messages of a prompt to a shape. Rounds of tools are unchanged.

    In strict shapes, later system messages become marked blocks of user messages, and consecutive
    messages of one role are joined with their images. A message with tool calls stays alone.
    """
    if shape == "lenient":
        return prompt
    shaped = _shape(prompt.messages, shape)
    stable = sum(each.last < prompt.stable for each in shaped)
    return replace(prompt, messages=[each.join_texts() for each in shaped], stable=stable)


def shape_messages(messages: Sequence[PromptMessage], shape: MessageShape) -> list[PromptMessage]:
    return list(shape_prompt(Prompt(messages), shape).messages)


def count_shape(
    messages: Sequence[PromptMessage], shape: MessageShape, count: Callable[[str], int]
) -> int:
    """Return the additional tokens of messages in a shape.

    It is negative if joining messages saves more than the marks cost. The texts are not counted,
    so the time is linear in the number of messages.
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
    """Return the maximum of `count_shape` for a number of system messages."""
    if shape == "lenient":
        return 0
    return system_messages * _count_marks(count) + count(OPENING) + MESSAGE_OVERHEAD


def _count_marks(count: Callable[[str], int]) -> int:
    return count(_BLOCK_START) + count(_BLOCK_END)


@dataclass(slots=True)
class _ShapedMessage:
    """A message of a shaped prompt.

    `blocks` is the number of texts that are blocks, and `last` the position of the last message.
    `first` is the first message.
    """

    role: Role
    texts: list[str]
    blocks: int
    last: int
    first: PromptMessage | None = None
    images: list[PromptImage] = field(default_factory=list[PromptImage])

    def joins(self, role: Role, message: PromptMessage) -> bool:
        has_calls = bool(message.calls or (self.first is not None and self.first.calls))
        return self.role == role and not has_calls

    def join_texts(self) -> PromptMessage:
        if self.first is not None and self.first.calls:
            return self.first
        return PromptMessage(self.role, SEPARATOR.join(self.texts), images=tuple(self.images))


def _shape(messages: Sequence[PromptMessage], shape: MessageShape) -> list[_ShapedMessage]:
    shaped: list[_ShapedMessage] = []
    is_leading = True
    for place, message in enumerate(messages):
        role, text, is_block = message.role, message.text, False
        is_leading = is_leading and role == "system"
        if role == "system" and not (is_leading and shape != "no_system"):
            role, text, is_block = "user", f"{_BLOCK_START}{text}{_BLOCK_END}", True
        before = shaped[-1] if shaped else None
        if before is not None and before.joins(role, message):
            before.texts.append(text)
            before.images += message.images
            before.blocks += is_block
            before.last = place
            continue
        if role == "assistant" and shape != "system_first" and _needs_opening(shaped):
            shaped.append(_ShapedMessage("user", [OPENING], 0, place - 1))
        images = list(message.images)
        shaped.append(_ShapedMessage(role, [text], int(is_block), place, message, images))
    if _needs_opening(shaped):
        shaped.append(_ShapedMessage("user", [OPENING], 0, len(messages) - 1))
    return shaped


def _needs_opening(shaped: Sequence[_ShapedMessage]) -> bool:
    """True if the conversation must begin here with a message of the user."""
    return not shaped or shaped[-1].role == "system"
