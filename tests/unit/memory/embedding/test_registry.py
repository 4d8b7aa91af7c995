"""The embedder that settings choose, and the texts that remote embedders send."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from backend.generation.tokens import choose_tokenizer, get_tokenizer
from backend.memory.embedding import registry
from backend.memory.embedding.catalogue import list_models, use_model
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import EmbedderError
from backend.memory.embedding.registry import build_embedder, choose_embedder, find_local_model
from backend.memory.embedding.remote import (
    RemoteEmbedder,
    prepare_text,
    split_into_batches,
)
from backend.settings import Settings

KEY = SecretStr("AIzaFake")
URL = "http://127.0.0.1:9/v1"


def settings(**values: Any) -> Settings:
    return Settings(_env_file=None, **values)  # type: ignore[call-arg]  # pydantic-settings' own


@pytest.mark.parametrize(
    ("values", "choice"),
    [
        ({}, "none"),
        ({"gemini_api_key": KEY}, "gemini"),
        ({"gemini_api_key": KEY, "embedder": "none"}, "none"),
        ({"gemini_api_key": KEY, "embedding_model_path": "/models"}, "gemini"),
        ({"embedding_model_path": "/models"}, "local"),
        ({"embedding_model_path": ""}, "none"),
        ({"openai_base_url": URL}, "none"),
        ({"openai_base_url": URL, "embedder": "openai", "embedding_model": "bge"}, "openai"),
    ],
)
def test_auto_chooses_an_available_embedder(values: dict[str, Any], choice: str) -> None:
    assert choose_embedder(settings(**values)) == choice


def test_auto_does_without_fastembed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "is_installed", lambda: False)
    assert choose_embedder(settings(embedding_model_path="/models")) == "none"


@pytest.mark.parametrize(
    ("values", "choice"),
    [
        ({}, "local"),
        ({"embedder": "none"}, "none"),
        ({"gemini_api_key": KEY}, "gemini"),
        ({"embedding_model_path": "/models"}, "local"),
    ],
)
def test_a_fetched_model_comes_last(tmp_path: Path, values: dict[str, Any], choice: str) -> None:
    model = list_models()[0]
    folder = tmp_path / "models" / model.folder
    folder.mkdir(parents=True)
    assert choose_embedder(settings(data_dir=tmp_path)) == "none"

    use_model(tmp_path / "models", model)

    assert choose_embedder(settings(data_dir=tmp_path, **values)) == choice
    is_used = values == {}
    found = find_local_model(settings(data_dir=tmp_path, **values))
    assert found == ((model.name, folder) if is_used else None)


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ({"embedder": "gemini"}, "TALEKEEPER_GEMINI_API_KEY"),
        ({"embedder": "openai", "embedding_model": "bge"}, "TALEKEEPER_EMBEDDING_BASE_URL"),
        ({"embedder": "openai", "openai_base_url": URL}, "TALEKEEPER_EMBEDDING_MODEL"),
        ({"embedder": "local"}, "TALEKEEPER_EMBEDDING_MODEL_PATH"),
    ],
)
def test_a_choice_that_lacks_something_is_refused_by_name(
    values: dict[str, Any], missing: str
) -> None:
    with pytest.raises(ValidationError, match=missing):
        settings(**values)


def test_none_is_none() -> None:
    assert build_embedder(settings()) is None


def test_gemini_has_a_model_and_a_dimension_of_its_own() -> None:
    usual = build_embedder(settings(gemini_api_key=KEY))
    other = build_embedder(
        settings(gemini_api_key=KEY, embedding_model="gemini-embedding-2", embedding_dimension=1536)
    )
    assert isinstance(usual, RemoteEmbedder)
    assert usual.spec.collection == "gemini-gemini-embedding-001-768"
    assert other is not None
    assert other.spec.collection == "gemini-gemini-embedding-2-1536"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"openai_base_url": URL, "openai_api_key": SecretStr("sk-chat")}, "sk-chat"),
        ({"openai_base_url": URL, "embedding_api_key": SecretStr("sk-own")}, "sk-own"),
        (
            {
                "openai_base_url": URL,
                "openai_api_key": SecretStr("sk-chat"),
                "embedding_base_url": "http://127.0.0.1:8/v1",
            },
            None,
        ),
    ],
)
def test_a_key_goes_to_the_server_that_it_was_given_for(
    values: dict[str, Any], key: str | None
) -> None:
    embedder = build_embedder(settings(embedder="openai", embedding_model="bge", **values))
    assert isinstance(embedder, RemoteEmbedder)
    config = embedder.provider.config
    assert config.api_key == key
    assert config.base_url == (values.get("embedding_base_url") or URL)


def test_a_folder_without_a_model_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(EmbedderError, match=str(tmp_path)):
        build_embedder(settings(embedding_model_path=tmp_path))


def test_a_local_model_is_known_by_its_folder_and_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 384}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    (folder / "model.onnx").write_bytes(b"weights")
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "tiny")

    one, other = [build_embedder(settings(embedding_model_path=path)) for path in (folder, copy)]

    assert isinstance(one, LocalEmbedder)
    assert other is not None
    assert one.spec == other.spec
    assert one.spec.collection.startswith("local-tiny-")


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("  A ferry. \n", "  A ferry. \n"),
        *((blank, ".") for blank in ("", " ", "\n\t")),
        ("an oar \ud83d", "an oar ?"),
    ],
)
def test_blank_texts_and_half_emoji_are_replaced(text: str, sent: str) -> None:
    assert prepare_text(text) == sent


@pytest.mark.parametrize("text", ["The ferry waits. ", "渡し船が待っている。", "🛶", "zzzz", "\n"])
def test_a_long_text_is_cut_to_the_limit_and_not_much_below(text: str) -> None:
    tokenizer = get_tokenizer(choose_tokenizer("gemma3"))
    cut = prepare_text(text * 20_000 + "end", longest=200)
    assert (text * 20_000).startswith(cut) or cut == "."
    assert tokenizer.count(cut) <= 200
    assert cut == "." or tokenizer.count(cut) > 150


def test_batches_keep_the_order_and_both_limits() -> None:
    texts = ["a" * 40_000, "b" * 70_000, "c", "d", "e", "f" * 200_000, "g"]
    made = [list(batch) for batch in split_into_batches(texts, most=3)]
    assert [text for batch in made for text in batch] == texts
    assert [len(batch) for batch in made] == [1, 3, 1, 1, 1]
    assert list(split_into_batches([], most=3)) == []
