from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import tiktoken_ext.openai_public  # type: ignore[import-untyped]

from backend.generation import tokens
from backend.generation.tokens import (
    Tokenizer,
    TokenizerUnavailableError,
    VocabularyDamagedError,
    choose_tokenizer,
    find_starting_ratio,
    get_tokenizer,
)

PROSE = Path(__file__).with_name("roleplay_prose.md").read_text(encoding="utf-8")


@pytest.fixture(params=["o200k_base", "gemma3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return get_tokenizer(request.param)


def test_counts_are_those_that_openai_documents() -> None:
    vocabulary = get_tokenizer("o200k_base")

    assert vocabulary.count("hello world") == 2
    assert vocabulary.count("tiktoken is great!") == 6
    assert vocabulary.count("") == 0


def test_the_vocabulary_is_cut_as_tiktoken_cuts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_ranks(*_: Any, **__: Any) -> dict[bytes, int]:
        return {}

    monkeypatch.setattr(tiktoken_ext.openai_public, "load_tiktoken_bpe", no_ranks)
    published = tiktoken_ext.openai_public.o200k_base()

    assert published["pat_str"] == tokens.O200K_SPLIT


def test_loads_with_no_network_whatever_the_environment_says(tmp_path: Path) -> None:
    program = """
import socket
def refuse(*args): raise OSError("no network")
socket.socket.connect = socket.getaddrinfo = refuse
from backend.generation.tokens import get_tokenizer
assert get_tokenizer("o200k_base").count("hello world") == 2
"""
    environment = {
        "TIKTOKEN_CACHE_DIR": str(tmp_path / "nowhere"),
        "DATA_GYM_CACHE_DIR": "",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "TMPDIR": str(tmp_path / "nowhere"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_vocabulary_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = resources.files("backend.generation") / "vocabulary" / tokens.O200K_FILE
    damaged = package.read_bytes().replace(b"IQ== 0\n", b"IQ== 1\n", 1)
    (tmp_path / "vocabulary").mkdir()
    (tmp_path / "vocabulary" / tokens.O200K_FILE).write_bytes(damaged)

    def elsewhere(_: str) -> Path:
        return tmp_path

    monkeypatch.setattr("backend.generation.tokens.resources.files", elsewhere)
    monkeypatch.setattr(tokens, "_loaded", {})

    with pytest.raises(VocabularyDamagedError):
        get_tokenizer("o200k_base")


def test_many_threads_that_ask_at_once_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_loaded", {})

    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(get_tokenizer, ["o200k_base"] * 8))

    assert len(found) == 1


@pytest.mark.parametrize(
    "text",
    ["<|endoftext|>", "<|endofprompt|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"],
)
def test_text_that_looks_like_a_special_token_is_plain_text(
    tokenizer: Tokenizer, text: str
) -> None:
    assert tokenizer.count(text) > 1


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        " " * 1_000_000,
        " " * 2_000_000 + "x",
        "\n" * 1_000_000,
        "\t" * 1_000_000,
        "\u00a0" * 1_000_000,
        "😀" * 250_000,
        "e\u0301" * 300_000,
        "!" * 1_000_000,
        "<|endoftext|>" * 70_000,
    ],
    ids=["a", "spaces", "spaces-x", "newlines", "tabs", "nbsp", "emoji", "accents", "!", "special"],
)
def test_hostile_text_is_counted_like_any_other(tokenizer: Tokenizer, text: str) -> None:
    # The regex engine of o200k_base gives up on the second and on the fifth when they come whole.
    assert 0 < tokenizer.count(text) <= len(text) * 4


def test_half_an_emoji_is_counted_and_not_refused(tokenizer: Tokenizer) -> None:
    assert tokenizer.count("before \ud83d after") > 0


def test_counting_in_runs_adds_up_exactly(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokenizer.count(PROSE)
    for length in (40, 97, 1000):
        monkeypatch.setattr(tokenizer, "_max_run", length)

        assert tokenizer.count(PROSE) == whole


def test_many_texts_are_counted_in_their_order(tokenizer: Tokenizer) -> None:
    texts = PROSE.split("\n\n")

    assert tokenizer.count_many(texts) == [tokenizer.count(text) for text in texts]
    assert tokenizer.count_many([]) == []


def test_a_vocabulary_that_is_not_installed_gives_way_to_the_one_that_always_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert choose_tokenizer("gemma3") == "gemma3"
    assert choose_tokenizer("made_up") == "o200k_base"

    def nothing_found(_: str) -> None:
        return None

    monkeypatch.setattr(tokens, "find_spec", nothing_found)
    monkeypatch.setattr(tokens, "_loaded", {})

    assert choose_tokenizer("gemma3") == "o200k_base"
    with pytest.raises(TokenizerUnavailableError, match="exact-tokens"):
        get_tokenizer("gemma3")


def test_an_unknown_vocabulary_is_named_in_the_error() -> None:
    with pytest.raises(TokenizerUnavailableError, match="made_up"):
        get_tokenizer("made_up")


def test_english_roleplay_is_estimated_within_8_percent_of_gemini_s_own_count() -> None:
    exact = get_tokenizer("gemma3").count(PROSE)
    counted = get_tokenizer("o200k_base").count(PROSE)

    estimate = counted * find_starting_ratio("gemma3", counted_with="o200k_base")

    assert estimate == pytest.approx(exact, rel=0.08)


def test_ratios_start_from_the_table_and_can_be_turned_round() -> None:
    assert find_starting_ratio("gemma3", counted_with="o200k_base") == 1.06
    assert find_starting_ratio("o200k_base", counted_with="gemma3") == pytest.approx(1 / 1.06)
    assert find_starting_ratio("gemma3", counted_with="gemma3") == 1
    assert find_starting_ratio("llama3", counted_with="o200k_base") == 1
