"""Local embedding models and their folders."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from subprocess import run
from threading import Event
from typing import Any

import numpy as np
import pytest
from fastembed import TextEmbedding

from backend.memory.embedding import local as local_module
from backend.memory.embedding.local import LocalEmbedder, read_folder
from backend.memory.embedding.protocol import EmbedderError, Floats, Task
from scripts.bench.random_models import Shape, write_static, write_transformer

pytestmark = pytest.mark.anyio

REPOSITORY = Path(__file__).parents[4]
USUAL = REPOSITORY.parent / "shared" / "data" / "minilm-l6-v2-int8"


@pytest.fixture(scope="module")
def folder() -> Path:
    """The folder that TEST_EMBEDDING_MODEL names, or the usual one."""
    named = os.environ.get("TEST_EMBEDDING_MODEL")  # noqa: TID251  # no setting of the program's
    folder = Path(named) if named else USUAL
    if not (folder / "model.onnx").is_file():
        pytest.skip("there is no embedding model: TEST_EMBEDDING_MODEL may name its folder")
    return folder


@pytest.fixture
async def local(folder: Path) -> AsyncGenerator[LocalEmbedder]:
    embedder = LocalEmbedder(folder)
    yield embedder
    await embedder.aclose()


async def test_texts_that_mean_the_same_are_near_each_other(local: LocalEmbedder) -> None:
    texts = ["The ferryman waits.", "A boatman is waiting.", "Quantum chromodynamics."]
    vectors = await local.embed(texts, "document")
    assert vectors.shape == (3, local.spec.dimension) == (3, 384)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    assert vectors[0] @ vectors[1] > 0.6
    assert vectors[0] @ vectors[2] < 0.3


async def test_order_and_neighbours_do_not_matter(local: LocalEmbedder) -> None:
    texts = [f"Line {number}: " + "the ferry waits " * (number % 40) for number in range(90)]
    together = await local.embed([*texts, "", "🛶 " * 5000, "\ud83d"], "document")
    alone = np.concatenate([await local.embed([text], "document") for text in texts[::17]])
    # The model's numbers are of eight bits: padding moves them a little.
    assert np.sum(together[:90:17] * alone, axis=1) == pytest.approx(1, abs=0.02)
    assert np.isfinite(together).all()


async def test_no_text_gives_no_vector(local: LocalEmbedder) -> None:
    assert (await local.embed([], "document")).shape == (0, 384)


async def test_several_threads_come_to_the_same(folder: Path, local: LocalEmbedder) -> None:
    texts = [f"The {number}th ferry waits." for number in range(60)]
    two = LocalEmbedder(folder, workers=2)
    assert np.allclose(await two.embed(texts, "query"), await local.embed(texts, "query"))
    await two.aclose()


async def test_a_query_waits_for_no_document(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, usual, is_asked = (
        LocalEmbedder(folder, workers=1),
        local_module.compute_vectors,
        Event(),
    )

    def run_late(model: TextEmbedding, texts: list[str], task: Task) -> Floats:
        if task == "document":
            assert is_asked.wait(60)
        return usual(model, texts, task)

    monkeypatch.setattr(local_module, "compute_vectors", run_late)
    documents = asyncio.create_task(embedder.embed(["The ferry waits."] * 90, "document"))
    async with asyncio.timeout(60):
        assert (await embedder.embed(["Who waits?"], "query")).shape == (1, 384)
    assert not documents.done()
    is_asked.set()

    assert (await documents).shape == (90, 384)
    await embedder.aclose()


async def test_fastembed_s_own_name_for_a_model_comes_to_the_same(
    folder: Path, local: LocalEmbedder
) -> None:
    named = LocalEmbedder(folder, model="sentence-transformers/all-MiniLM-L6-v2")
    one, other = [await each.embed(["The ferry waits."], "query") for each in (local, named)]
    assert np.allclose(one, other, atol=1e-5)
    await named.aclose()


async def test_a_cancelled_caller_does_not_stop_the_loading(local: LocalEmbedder) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await local.embed(["The ferry waits."], "query")
    assert (await local.embed(["The ferry waits."], "query")).shape == (1, 384)


async def test_a_model_that_does_not_load_is_an_embedder_error(
    folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    (copy / "model.onnx").write_bytes(b"no model")
    broken = LocalEmbedder(copy)
    for _ in range(2):
        with pytest.raises(EmbedderError, match="does not load"):
            await broken.embed(["The ferry waits."], "document")
    await broken.aclose()


async def test_a_folder_with_another_dimension_than_it_says_is_an_embedder_error(
    folder: Path,
) -> None:
    wrong = LocalEmbedder(folder, dimension=768)
    with pytest.raises(EmbedderError, match="384"):
        await wrong.embed(["The ferry waits."], "document")
    await wrong.aclose()


async def test_a_closed_embedder_says_so(local: LocalEmbedder) -> None:
    await local.aclose()
    with pytest.raises(EmbedderError):
        await local.embed(["The ferry waits."], "document")


NO_NETWORK = """
import asyncio, socket, sys
from pathlib import Path


def refused(*_args, **_options):
    sys.exit("it looked for the network")


socket.getaddrinfo = socket.socket.connect = socket.socket.connect_ex = refused

from backend.memory.embedding.local import LocalEmbedder

embedder = LocalEmbedder(Path(sys.argv[1]))
assert "fastembed" not in sys.modules and "onnxruntime" not in sys.modules
vectors = asyncio.run(embedder.embed(["The ferry waits."], "query"))
print(vectors.shape)
"""


def test_a_local_model_uses_no_network_and_writes_no_reports(folder: Path, tmp_path: Path) -> None:
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", NO_NETWORK, str(folder)]
    done = run(command, cwd=REPOSITORY, env=environment, capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"(1, 384)\n", 0), done.stderr
    # onnxruntime keeps its reports to Microsoft here until it has sent them.
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def new_folder(tmp_path: Path) -> Path:
    """A folder with a model of 384 dimensions whose weights are no weights."""
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


def test_a_plain_folder_pools_by_the_mean_and_wants_no_prompts(new_folder: Path) -> None:
    model = read_folder(new_folder)
    assert (model.dimension, model.pooling, model.model_file) == (384, "mean", "model.onnx")
    assert model.prompts == {"document": "", "query": ""}


def test_the_files_of_sentence_transformers_are_used(new_folder: Path) -> None:
    pooling = {"word_embedding_dimension": 768, "pooling_mode_cls_token": True}
    write(new_folder, "1_Pooling/config.json", pooling)
    prompts = {"query": "query: ", "passage": "passage: "}
    write(new_folder, "config_sentence_transformers.json", {"prompts": prompts})
    model = read_folder(new_folder)
    assert (model.dimension, model.pooling) == (768, "cls")
    assert model.prompts == {"document": "passage: ", "query": "query: "}


def test_other_weights_are_another_model(new_folder: Path) -> None:
    before = read_folder(new_folder).mark
    (new_folder / "model.onnx").write_bytes(b"Weights")
    assert read_folder(new_folder).mark != before


def test_another_pooling_is_another_model(new_folder: Path) -> None:
    marks = [read_folder(new_folder).mark]
    for mode in ("cls_token", "lasttoken"):
        write(new_folder, "1_Pooling/config.json", {f"pooling_mode_{mode}": True})
        marks.append(read_folder(new_folder).mark)
    assert len(set(marks)) == 3


def test_the_mark_of_a_folder_does_not_depend_on_the_version(new_folder: Path) -> None:
    """Otherwise an update would compute all vectors again."""
    assert read_folder(new_folder).mark == "f1ef41bd"
    write(new_folder, "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    write(new_folder, "config_sentence_transformers.json", {"prompts": {"query": ""}})
    assert read_folder(new_folder).mark == "f1ef41bd"
    write(new_folder, "config_sentence_transformers.json", {"prompts": {"query": "query: "}})
    assert read_folder(new_folder).mark == "70309291"


def test_a_table_of_vectors_has_no_pooling(tmp_path: Path) -> None:
    write_static(tmp_path, 64, VOCABULARY)
    before = read_folder(tmp_path).mark
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode_cls_token": True})
    assert read_folder(tmp_path).mark == before


def test_the_usual_model_keeps_its_mark() -> None:
    if not (USUAL / "model.onnx").is_file():
        pytest.skip("there is no embedding model")
    assert read_folder(USUAL).mark == "def06d63"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    text = complaint(tmp_path / "nowhere")
    assert "TALEKEEPER_EMBEDDING_MODEL_PATH" in text
    assert "config.json, tokenizer.json, tokenizer_config.json" in text


def test_one_model_of_any_name_is_found_and_two_are_refused(new_folder: Path) -> None:
    (new_folder / "model.onnx").rename(new_folder / "one.onnx")
    assert read_folder(new_folder).model_file == "one.onnx"
    (new_folder / "two.onnx").write_bytes(b"weights")
    assert "one.onnx, two.onnx" in complaint(new_folder)


def test_an_unusable_configuration_is_reported(new_folder: Path) -> None:
    write(new_folder, "config.json", {"hidden_size": "wide"})
    assert "hidden_size" in complaint(new_folder)
    (new_folder / "config.json").write_text("{")
    assert "not readable JSON" in complaint(new_folder)


VOCABULARY = {word: number for number, word in enumerate("the ferry waits query".split(), 4)}  # noqa: SIM905  # as the texts


async def test_a_table_of_vectors_needs_only_its_tokenizer(tmp_path: Path) -> None:
    write_static(tmp_path, 64, VOCABULARY)
    (tmp_path / "config.json").unlink()
    model = LocalEmbedder(tmp_path)
    assert model.spec.dimension == 64
    texts = ["The ferry waits.", "ferry the waits", "The ferry.", "", "🛶"]
    vectors = await model.embed(texts, "document")
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    assert vectors[0] @ vectors[1] == pytest.approx(1, abs=1e-6)
    assert vectors[0] @ vectors[2] < 0.95
    assert vectors[0] @ vectors[3] < 0.3
    assert np.allclose(await model.embed(texts[:1], "query"), vectors[0], atol=1e-6)
    await model.aclose()


async def test_long_texts_are_cut_where_attention_would_take_gigabytes(tmp_path: Path) -> None:
    shape = Shape(layers=1, hidden=24, heads=2, inner=24, is_modern=True)
    write_transformer(tmp_path, shape, VOCABULARY)
    model = LocalEmbedder(tmp_path)
    long, cut = await model.embed(["ferry " * 6000, "ferry " * 1022], "document")
    assert long @ cut == pytest.approx(1, abs=1e-5)
    await model.aclose()


async def test_a_prefix_is_part_of_the_text_and_of_the_model(tmp_path: Path) -> None:
    write_static(tmp_path, 64, VOCABULARY)
    plain = LocalEmbedder(tmp_path)
    expected = await plain.embed(["query the ferry"], "query")
    write(tmp_path, "config_sentence_transformers.json", {"prompts": {"query": "query "}})
    model = LocalEmbedder(tmp_path)
    assert np.allclose(await model.embed(["the ferry"], "query"), expected, atol=1e-6)
    assert not np.allclose(await model.embed(["the ferry"], "document"), expected, atol=0.1)
    assert model.spec.identity != plain.spec.identity
    await plain.aclose()
    await model.aclose()


def test_external_weights_identify_the_model(tmp_path: Path) -> None:
    shape = Shape(layers=1, hidden=48, heads=2, inner=48)
    marks: list[str] = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        write_transformer(folder, shape, VOCABULARY, is_external=True, seed=seed)
        marks.append(read_folder(folder).mark)
    graphs = [(tmp_path / str(seed) / "model.onnx").read_bytes() for seed in (1, 2)]
    assert graphs[0] == graphs[1]
    assert marks[0] != marks[1]
