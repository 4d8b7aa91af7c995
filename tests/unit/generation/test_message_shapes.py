"""Prompts in the shapes that chat templates accept, and shapes that refusals ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.generation.catalogue import MESSAGE_SHAPES, MessageShape
from backend.generation.message_shapes import (
    count_shape,
    find_stricter_shape,
    limit_shape_tokens,
    shape_messages,
    shape_prompt,
)
from backend.generation.model import Prompt, PromptMessage, Role
from backend.generation.tokens import MESSAGE_OVERHEAD
from tests.fakes.strict_server import gemma_2, mistral, qwen

HEAD = PromptMessage("system", "You are Oswin.")
GREETING = PromptMessage("assistant", "Who is there?")
LINE = PromptMessage("user", "It is me.")
LORE = PromptMessage("system", "It rains.")
STORY = [HEAD, GREETING, LORE, LINE]

BLOCK = "<system>\nIt rains.\n</system>"


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("shape", "messages"),
    [
        ("lenient", STORY),
        ("system_first", [HEAD, GREETING, PromptMessage("user", f"{BLOCK}\n\nIt is me.")]),
        (
            "alternating",
            [
                HEAD,
                PromptMessage("user", "[Start]"),
                GREETING,
                PromptMessage("user", f"{BLOCK}\n\nIt is me."),
            ],
        ),
        (
            "no_system",
            [
                PromptMessage("user", "<system>\nYou are Oswin.\n</system>"),
                GREETING,
                PromptMessage("user", f"{BLOCK}\n\nIt is me."),
            ],
        ),
    ],
)
def test_a_prompt_in_each_shape(shape: MessageShape, messages: list[PromptMessage]) -> None:
    assert shape_messages(STORY, shape) == messages


def test_two_lines_after_a_failed_turn_are_one_message() -> None:
    again = [HEAD, LINE, PromptMessage("user", "Hello?")]
    assert shape_messages(again, "alternating") == [
        HEAD,
        PromptMessage("user", "It is me.\n\nHello?"),
    ]


def test_instructions_alone_get_a_user_message() -> None:
    assert shape_messages([HEAD], "alternating") == [HEAD, PromptMessage("user", "[Start]")]
    assert shape_messages([HEAD], "system_first")[-1].role == "user"


def test_the_stable_part_stays_stable() -> None:
    prompt = Prompt(STORY, stable=2)
    assert shape_prompt(prompt, "system_first").stable == 2
    assert shape_prompt(prompt, "alternating").stable == 3
    assert shape_prompt(Prompt(STORY, stable=3), "system_first").stable == 2


MESSAGES = st.lists(
    st.builds(
        PromptMessage,
        role=st.sampled_from(["system", "user", "assistant"]),
        text=st.text(alphabet="ab ", min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=8,
)


@given(messages=MESSAGES, shape=st.sampled_from(MESSAGE_SHAPES))
def test_a_shaped_prompt_is_accepted_and_stays_as_it_is(
    messages: list[PromptMessage], shape: MessageShape
) -> None:
    shaped = shape_messages(messages, shape)
    roles: list[Role] = [message.role for message in shaped]

    assert shape_messages(shaped, shape) == shaped
    if shape == "lenient":
        return
    assert qwen(roles) is None or "user" not in roles
    if shape == "alternating":
        assert mistral(roles) is None
    if shape == "no_system":
        assert gemma_2(roles) is None


@given(messages=MESSAGES, shape=st.sampled_from(MESSAGE_SHAPES))
def test_tokens_are_those_of_the_shape_that_is_sent(
    messages: list[PromptMessage], shape: MessageShape
) -> None:
    def total(each: list[PromptMessage]) -> int:
        return sum(words(message.text) + MESSAGE_OVERHEAD for message in each)

    added = count_shape(messages, shape, words)
    system = sum(message.role == "system" for message in messages)

    assert total(messages) + added == total(shape_messages(messages, shape))
    assert added <= limit_shape_tokens(system, shape, words)


@pytest.mark.parametrize(
    ("said", "shape"),
    [
        ("Jinja Exception: System message must be at the beginning.", "system_first"),
        ("Unexpected role 'system' after role 'assistant'", "system_first"),
        ("System role not supported", "no_system"),
        ("Error rendering prompt with jinja template: System role not supported", "no_system"),
        ("Only user and assistant roles are supported!", "no_system"),
        ("Developer instruction is not enabled for models/gemma-3-27b-it", "no_system"),
        ("Conversation roles must alternate user/assistant/user/assistant/...", "alternating"),
        ("After the optional system message, conversation roles must alternate", "alternating"),
        ("Error in template: UndefinedError, chat_template", "system_first"),
        ("jinja2.exceptions.TemplateError: the template raised an exception", "system_first"),
        ("tools param requires --jinja flag", None),
        ("the request exceeds the available context size", None),
        ("Unsupported parameter: 'top_k'", None),
        ("Insufficient credits", None),
    ],
)
def test_a_refusal_names_the_shape_that_it_asks_for(said: str, shape: MessageShape | None) -> None:
    assert find_stricter_shape(said, Prompt(STORY), "lenient") == shape


def test_a_shape_in_which_the_prompt_would_be_the_same_is_not_tried() -> None:
    plain = Prompt([HEAD, LINE])
    said = "raise_exception: the chat template failed"
    assert find_stricter_shape(said, plain, "lenient") == "no_system"
    assert find_stricter_shape(said, Prompt([LINE]), "lenient") is None
    assert find_stricter_shape(said, plain, "no_system") is None


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_a_long_refusal_is_searched_up_to_its_limit(size: int) -> None:
    said = "system " * size + "role not supported"
    assert find_stricter_shape(said, Prompt(STORY), "lenient") is None
