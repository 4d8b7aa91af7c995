"""Folders with models in them: what is read from their files, and what they lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.memory.embedding.local import read_folder
from backend.memory.embedding.protocol import EmbedderError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "config.json", {"hidden_size": 384})
    write(tmp_path, "tokenizer.json", {})
    write(tmp_path, "tokenizer_config.json", {})
    (tmp_path / "model.onnx").write_bytes(b"weights")
    return tmp_path


def write(folder: Path, name: str, value: Any) -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value))


def complaint(folder: Path) -> str:
    with pytest.raises(EmbedderError) as caught:
        read_folder(folder)
    return caught.value.detail


def test_a_plain_folder_pools_by_the_mean_and_wants_no_prompts(folder: Path) -> None:
    model = read_folder(folder)

    assert (model.dimension, model.pooling, model.model_file) == (384, "mean", "model.onnx")
    assert model.prompts == {"document": "", "query": ""}


def test_what_sentence_transformers_wrote_down_is_followed(folder: Path) -> None:
    pooling = {"word_embedding_dimension": 768, "pooling_mode_cls_token": True}
    write(folder, "1_Pooling/config.json", pooling)
    prompts = {"query": "query: ", "passage": "passage: "}
    write(folder, "config_sentence_transformers.json", {"prompts": prompts})

    model = read_folder(folder)

    assert (model.dimension, model.pooling) == (768, "cls")
    assert model.prompts == {"document": "passage: ", "query": "query: "}


def test_a_model_under_another_name_is_found(folder: Path) -> None:
    (folder / "model.onnx").rename(folder / "minilm_int8.onnx")

    assert read_folder(folder).model_file == "minilm_int8.onnx"


def test_other_weights_are_another_model(folder: Path) -> None:
    before = read_folder(folder).mark
    (folder / "model.onnx").write_bytes(b"Weights")

    assert read_folder(folder).mark != before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    text = complaint(tmp_path / "nowhere")

    assert "TALEKEEPER_EMBEDDING_MODEL_PATH" in text
    assert "config.json, tokenizer.json, tokenizer_config.json" in text


def test_two_models_in_one_folder_are_one_too_many(folder: Path) -> None:
    (folder / "model.onnx").rename(folder / "one.onnx")
    (folder / "two.onnx").write_bytes(b"weights")

    assert "one.onnx, two.onnx" in complaint(folder)


def test_a_configuration_without_a_width_or_without_sense_is_told(folder: Path) -> None:
    write(folder, "config.json", {"hidden_size": "wide"})
    assert "hidden_size" in complaint(folder)

    (folder / "config.json").write_text("{")
    assert "not readable JSON" in complaint(folder)
