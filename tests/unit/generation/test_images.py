"""Images in prompts: their place, the shapes of messages, and the reports of servers."""

from __future__ import annotations

from typing import Any

import pytest

from backend.generation.adapters.openai.probes import read_image_support
from backend.generation.catalogue import ImageSupport, ListedModel, combine_figures
from backend.generation.images import (
    IMAGE_TOKENS,
    count_image_tokens,
    place_images,
    refuses_images,
)
from backend.generation.message_shapes import shape_messages
from backend.generation.model import PromptImage, PromptMessage, ToolCall

PHOTO = PromptImage(media_type="image/png", data=b"png")
MAP = PromptImage(media_type="image/jpeg", data=b"jpeg")
LINK = PromptImage(url="https://example.org/door.png")
DEFAULT = ListedModel(name="-", context_window=8_000, max_output_tokens=1_000)


def said(role: Any, text: str, *images: PromptImage) -> PromptMessage:
    return PromptMessage(role, text, images=images)


def test_images_of_others_are_sent_with_the_next_message_of_the_user() -> None:
    messages = [
        said("system", "Be kind.", MAP),
        said("user", "Look.", PHOTO),
        said("assistant", "Here.", MAP),
        said("user", "Thanks."),
        said("assistant", "And this.", PHOTO),
    ]
    placed, removed = place_images(messages, reads_images=True, reads_addresses=True)
    assert [len(each.images) for each in placed] == [0, 2, 0, 2, 0]
    assert placed[1].images == (MAP, PHOTO)
    assert (placed[3].images, removed) == ((MAP, PHOTO), 0)


def test_images_that_cannot_be_sent_are_counted() -> None:
    messages = [said("user", "Look.", PHOTO, LINK)]
    placed, removed = place_images(messages, reads_images=True, reads_addresses=False)
    assert (placed[0].images, removed) == ((PHOTO,), 1)
    placed, removed = place_images(messages, reads_images=False, reads_addresses=True)
    assert (placed[0].images, removed) == ((), 2)
    lonely = [said("assistant", "Look.", PHOTO)]
    assert place_images(lonely, reads_images=True, reads_addresses=True)[1] == 1


def test_a_prompt_without_images_is_unchanged() -> None:
    messages = [said("user", "Hello.")]
    assert place_images(messages, reads_images=False, reads_addresses=False) == (messages, 0)


def test_images_count_as_a_fixed_number_of_tokens() -> None:
    assert count_image_tokens(said("user", "", PHOTO, LINK), said("user", "a")) == (
        2 * IMAGE_TOKENS
    )


def test_joined_messages_keep_their_images() -> None:
    (joined,) = shape_messages([said("user", "a", PHOTO), said("user", "b", MAP)], "alternating")
    assert (joined.text, joined.images) == ("a\n\nb", (PHOTO, MAP))


def test_a_message_with_calls_stays_alone_in_every_shape() -> None:
    call = ToolCall("1", "look", {})
    asked = PromptMessage("assistant", "I look.", calls=(call,), results=("a door",))
    story = [said("user", "Look."), said("assistant", "Yes."), asked, said("assistant", "A door.")]
    assert shape_messages(story, "no_system") == story


@pytest.mark.parametrize(
    "text",
    [
        "image input is not supported - hint: you may need to provide the mmproj",
        "Failed to deserialize the JSON body: unknown variant `image_url`, expected `text`",
        "gemma-2-9b-it is not a multimodal model",
        "Model does not support images. Please use a model that does.",
        "No endpoints found that support image input",
        "Image input modality is not enabled for models/gemma-3-1b-it",
        "this model is missing data required for image input",
        "Invalid content type. image_url is only supported by certain models.",
        "messages[0].content must be a string",
    ],
)
def test_refusals_of_images_are_recognised(text: str) -> None:
    assert refuses_images(text)


@pytest.mark.parametrize(
    "text",
    [
        "You uploaded an unsupported image. Please make sure your image is valid.",
        "Error while downloading https://example.org/a.png.",
        "messages.0.content.1.image_url.url: the image is larger than 20 MB",
        "temperature is not supported",
    ],
)
def test_refusals_of_one_image_teach_nothing(text: str) -> None:
    assert not refuses_images(text)


@pytest.mark.parametrize(
    ("entry", "support"),
    [
        ({"architecture": {"input_modalities": ["text", "image"]}}, "native"),
        ({"architecture": {"input_modalities": ["text"]}}, "none"),
        ({"capabilities": ["completion", "vision"]}, "native"),
        ({"capabilities": ["completion", "tools"]}, "none"),
        ({"capabilities": ["chat"]}, None),
        ({"capabilities": {"vision": True}}, "native"),
        ({"capabilities": {"vision": False}}, "none"),
        ({"type": "vlm"}, "native"),
        ({"type": "llm"}, "none"),
        ({"type": {}, "capabilities": 3, "architecture": []}, None),
        ({}, None),
    ],
)
def test_servers_say_in_their_own_ways_whether_a_model_reads_images(
    entry: dict[str, Any], support: ImageSupport | None
) -> None:
    assert read_image_support(entry) == support


@pytest.mark.parametrize(
    ("chosen", "learned", "listed", "support"),
    [
        ("none", "native", "native", "none"),
        (None, "none", "native", "none"),
        (None, None, "none", "none"),
        (None, None, None, "native"),  # the table of known models
    ],
)
def test_the_user_s_word_on_images_precedes_what_was_learned_and_listed(
    chosen: ImageSupport | None,
    learned: ImageSupport | None,
    listed: ImageSupport | None,
    support: ImageSupport,
) -> None:
    figures = combine_figures(
        "gpt-4o",
        chosen=ListedModel(name="gpt-4o", image_support=chosen),
        learned_images=learned,
        listed=ListedModel(name="gpt-4o", image_support=listed, abilities=("tools",)),
        default=DEFAULT,
    )
    assert figures.image_support == support
    assert ("images" in figures.abilities) == (support == "native")


def test_nothing_is_known_of_the_images_of_an_unknown_model() -> None:
    figures = combine_figures("mystery-9b", default=DEFAULT)
    assert (figures.image_support, figures.abilities) == (None, frozenset())
