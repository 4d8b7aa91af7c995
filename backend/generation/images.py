"""Images in prompts: their tokens, their place, and models that cannot read them."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence

from msgspec import structs

from backend.generation.model import PromptImage, PromptMessage

IMAGE_TOKENS = 1_200
"""Estimated tokens of one image. Images have 85 to 1,105 tokens for OpenAI's models, 258 to 1,548
for Gemini and up to 1,600 for Claude, depending on their size. Sources:
https://platform.openai.com/docs/guides/images-vision,
https://ai.google.dev/gemini-api/docs/tokens, https://platform.claude.com/docs/en/build-with-claude/vision
"""

IMAGE_TEXT = "[image]"
"""The text of a line that has only images. A line is never empty, because it is stored, searched
and compared as a message."""

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
"""Media types that vision models read."""

_MAX_SEARCHED_CHARACTERS = 4_000

_REFUSAL = re.compile(
    r"images? (?:inputs? |contents? |urls? )?(?:modality )?"
    r"(?:is|are) not (?:supported|enabled|allowed)"
    r"|(?:not|n't|no \w+ \w+ that) support (?:an? )?(?:image|vision|multi-?modal)"
    r"|not (?:an? )?(?:multi-?modal|vision)|mmproj|variant `image_url`"
    r"|image_url['\"`]? is (?:only|not) supported|content must be a string"
    r"|input should be a valid string|missing data required for image"
    r"|only (?:supports? )?text (?:content|inputs?)",
    re.IGNORECASE,
)
"""Words of servers that refuse images. They count only if the request contains images. Sources:
llama.cpp ("image input is not supported - hint: ... mmproj"), DeepSeek ("unknown variant
`image_url`, expected `text`"), vLLM ("is not a multimodal model"), LM Studio ("Model does not
support images"), OpenRouter ("No endpoints found that support image input"), Gemini ("Image input
modality is not enabled"), Ollama ("this model is missing data required for image input")."""


def count_images(messages: Iterable[PromptMessage]) -> int:
    return sum(len(message.images) for message in messages)


def count_image_tokens(*messages: PromptMessage) -> int:
    """Return the estimated tokens of all images. See `IMAGE_TOKENS`."""
    return IMAGE_TOKENS * count_images(messages)


def refuses_images(text: str) -> bool:
    """True if the refusal of a request with images is about the images."""
    return _REFUSAL.search(text[:_MAX_SEARCHED_CHARACTERS]) is not None


def place_images(
    messages: Sequence[PromptMessage], *, reads_images: bool, reads_addresses: bool
) -> tuple[Sequence[PromptMessage], int]:
    """Move all images to messages of the user, and remove those that cannot be sent.

    The vendors accept images only from the user. Images of other messages are sent with the next
    message of the user, or else with the last one. Also returns the number of removed images.

    Args:
        messages: The messages before shaping. Their number does not change.
        reads_images: The model reads images.
        reads_addresses: The server loads images from their addresses.
    """
    whole = count_images(messages)
    if not whole:
        return messages, 0
    placed = [
        structs.replace(message, images=()) if message.images else message for message in messages
    ]
    users = [at for at, message in enumerate(messages) if message.role == "user"]
    if not users or not reads_images:
        return placed, whole
    images: dict[int, list[PromptImage]] = {}
    sent = following = 0
    for at, message in enumerate(messages):
        while following < len(users) - 1 and users[following] < at:
            following += 1
        kept = [each for each in message.images if each.data or reads_addresses]
        if kept:
            images.setdefault(users[following], []).extend(kept)
            sent += len(kept)
    for at, added in images.items():
        placed[at] = structs.replace(placed[at], images=tuple(added))
    return placed, whole - sent


def encode_base64(image: PromptImage) -> str:
    return base64.b64encode(image.data).decode("ascii")
