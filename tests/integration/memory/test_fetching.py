"""Fetching an embedding model from a hub that breaks off, lies, or is not there."""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from backend import cli
from backend.memory.embedding import catalogue as fetching
from backend.memory.embedding.catalogue import (
    DiskFullError,
    FetchUnderWayError,
    HubUnreachableError,
    ModelDamagedError,
    ModelNotOnHubError,
    OfferedModel,
    PublishedFile,
    fetch_model,
    find_model_in_use,
    is_fetched,
    list_models,
)
from backend.settings import Settings
from tests.fakes.hub_server import HubServer

pytestmark = pytest.mark.anyio

NAME = "sentence-transformers/all-MiniLM-L6-v2"
WEIGHTS = random.Random(7).randbytes(2_000_000)
FILES = {"config.json": b'{"hidden_size": 384}', "onnx/model.onnx": WEIGHTS}
TINY = OfferedModel(
    name=NAME,
    repository="Qdrant/tiny",
    revision="a" * 40,
    languages=("en",),
    licence="apache-2.0",
    dimension=384,
    files={
        path: PublishedFile(size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for path, content in FILES.items()
    },
)


@pytest.fixture
async def hub() -> AsyncGenerator[HubServer]:
    async with HubServer(FILES) as hub:
        yield hub


async def ignore(_done: int, _total: int) -> None:
    pass


async def at_once(_seconds: float) -> None:
    """Nobody waits between two attempts."""


async def fetch(hub: HubServer, models: Path) -> None:
    await fetch_model(TINY, models, ignore, hub=hub.url, wait=at_once)


async def test_a_model_comes_whole_and_is_used(hub: HubServer, tmp_path: Path) -> None:
    models = tmp_path / "models"
    told: list[tuple[int, int]] = []

    async def report(done: int, total: int) -> None:
        told.append((done, total))
        assert find_model_in_use(models) is None

    await fetch_model(TINY, models, report, hub=hub.url)

    folder = models / "all-MiniLM-L6-v2"
    assert find_model_in_use(models) == (NAME, folder)
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES
    assert told == sorted(told)
    assert len(told) > 3
    assert {total for _, total in told} == {TINY.size} == {told[-1][0]}
    asked = len(hub.requests)
    await fetch(hub, models)
    assert len(hub.requests) == asked


async def test_only_the_rest_is_fetched_after_a_break(hub: HubServer, tmp_path: Path) -> None:
    hub.breaks = [800_000, 600_000]

    await fetch(hub, tmp_path)

    starts = [int(each.removeprefix("bytes=").removesuffix("-")) for each in hub.ranges if each]
    assert hub.ranges[0] == ""
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1] <= 1_400_000
    assert (tmp_path / "all-MiniLM-L6-v2" / "onnx/model.onnx").read_bytes() == WEIGHTS


async def test_what_came_is_kept_for_the_next_time(hub: HubServer, tmp_path: Path) -> None:
    hub.breaks = [500_000, 0, 0, 0, 0, 0]

    with pytest.raises(HubUnreachableError, match="HF_ENDPOINT"):
        await fetch(hub, tmp_path)
    assert not is_fetched(tmp_path, TINY)
    assert find_model_in_use(tmp_path) is None

    hub.ranges.clear()
    hub.breaks.clear()
    await fetch(hub, tmp_path)
    assert hub.ranges == [hub.ranges[0]] != [""]
    assert is_fetched(tmp_path, TINY)


@pytest.mark.parametrize("path", FILES)
async def test_a_file_with_another_digest_is_never_used(
    hub: HubServer, tmp_path: Path, path: str
) -> None:
    hub.altered = {path}

    with pytest.raises(ModelDamagedError, match=path):
        await fetch(hub, tmp_path)
    assert not is_fetched(tmp_path, TINY)

    hub.altered.clear()
    await fetch(hub, tmp_path)
    assert is_fetched(tmp_path, TINY)


async def test_the_public_hub_is_held_to_what_was_published(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["onnx/model.onnx"] = b"!" + WEIGHTS[1:]

    await fetch(hub, tmp_path / "of-a-mirror")
    monkeypatch.setattr(fetching, "PUBLIC_HUB", hub.url)
    with pytest.raises(ModelDamagedError):
        await fetch(hub, tmp_path / "of-the-hub")


async def test_what_the_hub_does_not_have_is_named(hub: HubServer, tmp_path: Path) -> None:
    del hub.files["onnx/model.onnx"]

    with pytest.raises(ModelNotOnHubError, match=r"onnx/model\.onnx"):
        await fetch(hub, tmp_path)


async def test_without_a_network_it_says_what_to_do(hub: HubServer, tmp_path: Path) -> None:
    await hub.__aexit__()

    with pytest.raises(HubUnreachableError, match="set HF_ENDPOINT"):
        await fetch(hub, tmp_path)


async def test_without_room_nothing_is_fetched(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", {tmp_path / "all-MiniLM-L6-v2.part": full}.get)

    with pytest.raises(DiskFullError, match="2 MB are needed"):
        await fetch(hub, tmp_path)
    assert hub.ranges == []


async def test_two_do_not_fetch_into_one_folder(hub: HubServer, tmp_path: Path) -> None:
    hub.pace.clear()
    first = asyncio.create_task(fetch(hub, tmp_path))
    while not hub.ranges:
        await asyncio.sleep(0.01)

    with pytest.raises(FetchUnderWayError):
        await fetch(hub, tmp_path)
    hub.pace.set()
    await first


async def test_the_command_fetches_and_says_what_is_used(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files |= dict.fromkeys(list_models()[0].files, b"{}")

    async def model(*words: str, **values: Any) -> str:
        options = cli._make_parser().parse_args(["model", *words])
        settings = Settings(_env_file=None, data_dir=tmp_path, HF_ENDPOINT=hub.url, **values)  # type: ignore[call-arg]  # pydantic-settings' own
        assert await cli._model(settings, options) == 0
        return capsys.readouterr().out

    assert "all-MiniLM-L6-v2 was downloaded to" in (
        fetched := await model("fetch", embedder="none")
    )
    assert "It is not used" in fetched
    listed = await model("list")
    assert "all-MiniLM-L6-v2 (in use)\n    91,102,069 bytes, license apache-2.0, for en" in listed
    assert "paraphrase-multilingual-MiniLM-L12-v2 (not downloaded)" in listed
    with pytest.raises(cli.UsageError, match="Unknown model gpt"):
        await model("fetch", "gpt")


async def test_the_stand_in_speaks_as_the_hub_does(hub: HubServer, tmp_path: Path) -> None:
    import huggingface_hub

    download: Callable[..., str] = cast("Any", huggingface_hub).snapshot_download
    found = await asyncio.to_thread(
        download, "Qdrant/tiny", cache_dir=tmp_path, endpoint=hub.url, token=False
    )

    assert {path: (Path(found) / path).read_bytes() for path in FILES} == FILES


def test_what_is_on_offer_is_what_fastembed_fetches() -> None:
    from fastembed import TextEmbedding

    known = {each["model"]: each for each in TextEmbedding.list_supported_models()}
    for model in list_models():
        weights = {known[model.name]["model_file"], *known[model.name]["additional_files"]}
        assert weights == {path for path in model.files if not path.endswith(".json")}
        assert model.size == pytest.approx(known[model.name]["size_in_GB"] * 1e9, rel=0.2)
