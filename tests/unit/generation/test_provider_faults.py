"""What is quoted of a provider's answer, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.generation.failures.provider_faults import (
    MAX_QUOTE_CHARS,
    find_code_words,
    read_fault,
    remove_keys,
)

SECRETS = ("sk-the-key-itself", "tenant 42-abcdefgh", "ab")


def quote(body: Any) -> str:
    return read_fault(body).quote(SECRETS)


BODIES: list[tuple[Any, str]] = [
    ({"error": {"message": "Overloaded"}}, "Overloaded"),
    ([{"error": {"message": "Overloaded"}}], "Overloaded"),
    ({"error": "Overloaded"}, "Overloaded"),
    ({"detail": "Overloaded"}, "Overloaded"),
    ({"detail": {"msg": "Overloaded", "type": "busy"}}, "Overloaded"),
    ({"detail": [{"loc": ["body"], "msg": "Overloaded", "input": "She waits."}]}, "Overloaded"),
    ({"message": {"detail": [{"msg": "Overloaded"}]}}, "Overloaded"),
    ({"error": {"message": json.dumps({"error": {"message": "Overloaded"}})}}, "Overloaded"),
    ("Overloaded", "Overloaded"),
    (b"Overloaded", "Overloaded"),
    ("<html><title>Overloaded</title></html>", "Overloaded"),
    ("<html><body><h1>Overloaded</h1></body></html>", "Overloaded"),
    ("<html><body><p>Please <b>log in</b></p></body></html>", "Please log in"),
    ("<html><script>let a = 1</script></html>", ""),
    ('{"error": {"message": "Overloaded \\u00e9", "type": "bus', "Overloaded é"),
    (
        {"error": {"message": "Provider returned error", "metadata": {"raw": "Overloaded"}}},
        "Overloaded",
    ),
    ({"error": {"message": "Provider returned error"}}, "Provider returned error"),
    (None, ""),
    (7, ""),
    ({"error": None}, ""),
    ({"error": {"message": 7}}, ""),
    ([[[[]]]], ""),
]


@pytest.mark.parametrize(("body", "words"), BODIES)
def test_the_providers_words_are_found_in_a_body_of_any_shape(body: Any, words: str) -> None:
    assert quote(body) == words


@pytest.mark.parametrize("name", ["flagged_input", "input", "prompt", "messages", "ctx"])
def test_members_that_quote_the_prompt_are_not_read(name: str) -> None:
    assert read_fault({"error": {name: "She waits.", "metadata": {name: ["She"]}}}).sentences == ()


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-the-key-itself. Look",
        "Incorrect API key provided: SK-THE-KEY-ITSELF. Look",
        "the header tenant 42-abcdefgh is wrong",
        "the header 42-abcdefgh is wrong",
        "wrong: ab, look",
        "https://x.example/?key=sk-the-key-itself&a=1",
        "of tenant%2042-abcdefgh",
    ],
)
def test_the_key_and_the_headers_values_are_removed(text: str) -> None:
    words = quote(text)

    assert "[removed]" in words
    assert not any(secret.lower() in words.lower() for secret in (*SECRETS[:2], "42-abcdefgh"))


def test_a_short_value_is_removed_as_a_word_alone() -> None:
    assert quote("cabin ab lab") == "cabin [removed] lab"


@pytest.mark.parametrize(
    "token",
    [
        "sk-proj-4kFq99z8",
        "sk-ant-api03-Zz9",
        "sk-abc*****wxyz",
        "gsk_Kd83hfkq9s",
        "hf_abcdEFGH1234",
        "xai-abcdEFGH1234",
        "AIzaSyA-1234567890abcdefg",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.abc-def",
        "Bearer abcdef12345",
        "Authorization: Basic abcdef==",
        "api_key=abcdefgh",
        "API key: hunter22",
        "0123456789abcdef0123456789abcdef",
        "8c7d4f2e-1b3a-4c5d-9e8f-0a1b2c3d4e5f",
        "my****key",
    ],
)
def test_what_looks_like_a_key_is_removed(token: str) -> None:
    cleaned = remove_keys(f"Wrong: {token}, sorry", ())

    assert "[removed]" in cleaned
    assert token.rsplit(maxsplit=1)[-1].strip("=") not in cleaned
    assert cleaned.startswith("Wrong: ")
    assert cleaned.endswith("sorry")


@pytest.mark.parametrize(
    "text",
    [
        "anthropic/claude-3-5-sonnet-20241022 is not a valid model ID",
        "meta-llama/Llama-3.1-8B-Instruct-Q4_K_M.gguf failed",
        "key_limit_exceeded context_length_exceeded",
        "Missing Bearer authentication in header",
        "Limit 100000, Used 99912, Requested 480. Please try again in 5m38.688s.",
        "See https://openrouter.ai/settings/privacy",
        "Unknown key: temperature; unexpected token: <",
    ],
)
def test_names_and_addresses_are_kept(text: str) -> None:
    assert remove_keys(text, ()) == text


def test_a_long_sentence_is_cut_and_marked() -> None:
    words = quote({"error": {"message": "so long " * 2_000}})

    assert len(words) == MAX_QUOTE_CHARS
    assert words.endswith("…")


def test_a_key_at_the_end_of_what_is_read_is_not_quoted_by_half() -> None:
    spaces = " " * 1_980
    words = quote({"error": {"message": f"Wrong{spaces}: {'a b ' * 489}sk-the-key-itself"}})

    assert "sk-" not in words


def test_control_characters_are_removed() -> None:
    words = quote({"error": {"message": "a\x00b\x1b[31mc\u202ed\u200be\nf\u2028g\ud800"}})

    assert words == "abcde f g"


def test_only_code_words_pass_for_code_words() -> None:
    words = find_code_words(
        "INVALID_ARGUMENT",
        "generation_config.stop[0]",
        "INVALID_ARGUMENT",
        "The prompt was: hello",
        "sk-the-key-itself",
        "gsk_Kd83hfkq9s",
        "x" * 65,
        7,
        None,
        secrets=("sk-the-key", ""),
    )

    assert words == ("INVALID_ARGUMENT", "generation_config.stop[0]")


def test_a_body_that_never_ends_is_read_for_a_while() -> None:
    deep: Any = "end"
    for _ in range(900):
        deep = {"error": deep}
    listed: Any = "end"
    for _ in range(900):
        listed = [listed]
    wide = {"error": [{"message": f"no {number}"} for number in range(100_000)]}

    assert read_fault(deep).sentences == ()
    assert read_fault({"code": listed, "error": listed}).codes == ()
    assert len(read_fault(wide).sentences) < 10
    assert read_fault("[" * 100_000).sentences == ()
