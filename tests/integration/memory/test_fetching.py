"""Tests of downloads of embedding models, from a faulty hub and by an administrator."""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from backend import cli
from backend.memory.embedding import download as fetching
from backend.memory.embedding.catalogue import (
    ModelPin,
    OfferedModel,
    PinnedFile,
    find_model_in_use,
    is_fetched,
    list_models,
)
from backend.memory.embedding.download import (
    DiskFullError,
    FetchUnderWayError,
    HubUnreachableError,
    ModelChangedError,
    ModelDamagedError,
    ModelNotOnHubError,
    fetch_model,
)
from backend.settings import Settings
from tests.fakes.hub_server import REVISION, HubServer
from tests.support.memory import API, MODEL_FOLDER, Start, search, settled, tell
from tests.support.server import Account, Running, ok, problem
from tests.support.waiting import until, until_true

pytestmark = pytest.mark.anyio

NAME = "sentence-transformers/all-MiniLM-L6-v2"
WEIGHTS = random.Random(7).randbytes(2_000_000)
FILES = {"config.json": b'{"hidden_size": 384}', "onnx/model.onnx": WEIGHTS}

PIN = ModelPin(
    revision=REVISION,
    files={
        path: PinnedFile(size=len(content), digest=hashlib.sha256(content).hexdigest())
        for path, content in FILES.items()
    },
)
TINY = OfferedModel(
    name=NAME,
    repository="Qdrant/tiny",
    files=tuple(FILES),
    pin=PIN,
    size=sum(map(len, FILES.values())),
    languages=("en",),
    licence="apache-2.0",
    dimension=384,
    lines_per_second=100,
    pooling="mean",
    query_prefix="",
)
UNPINNED = replace(TINY, pin=None)


@pytest.fixture
async def tiny_hub() -> AsyncGenerator[HubServer]:
    async with HubServer(FILES) as tiny_hub:
        yield tiny_hub


async def ignore(_done: int, _total: int) -> None:
    pass


async def skip_wait(_seconds: float) -> None:
    """Do not wait between two attempts."""


async def fetch(tiny_hub: HubServer, models: Path, model: OfferedModel = TINY) -> None:
    await fetch_model(model, models, ignore, hub=tiny_hub.url, wait=skip_wait)


async def test_a_model_comes_whole_and_is_used(tiny_hub: HubServer, tmp_path: Path) -> None:
    models = tmp_path / "models"
    told: list[tuple[int, int]] = []

    async def report(done: int, total: int) -> None:
        told.append((done, total))
        assert find_model_in_use(models) is None

    await fetch_model(TINY, models, report, hub=tiny_hub.url)

    folder = models / "all-MiniLM-L6-v2"
    assert find_model_in_use(models) == (NAME, folder)
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES
    assert told == sorted(told)
    assert len(told) > 3
    assert {total for _, total in told} == {TINY.size} == {told[-1][0]}
    asked = len(tiny_hub.requests)
    await fetch(tiny_hub, models)
    assert len(tiny_hub.requests) == asked


@pytest.mark.parametrize("names_length", [True, False])
async def test_only_the_rest_is_fetched_after_a_break(
    tiny_hub: HubServer, tmp_path: Path, *, names_length: bool
) -> None:
    tiny_hub.names_length = names_length
    tiny_hub.breaks = [800_000, 600_000]
    await fetch(tiny_hub, tmp_path)
    starts = [
        int(each.removeprefix("bytes=").removesuffix("-")) for each in tiny_hub.ranges if each
    ]
    assert tiny_hub.ranges[0] == ""
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1] <= 1_400_000
    assert (tmp_path / "all-MiniLM-L6-v2" / "onnx/model.onnx").read_bytes() == WEIGHTS


async def test_downloaded_bytes_are_kept_for_the_next_attempt(
    tiny_hub: HubServer, tmp_path: Path
) -> None:
    tiny_hub.breaks = [500_000, 0, 0, 0, 0, 0]
    with pytest.raises(HubUnreachableError, match="HF_ENDPOINT"):
        await fetch(tiny_hub, tmp_path)
    assert not is_fetched(tmp_path, TINY)
    assert find_model_in_use(tmp_path) is None
    tiny_hub.ranges.clear()
    tiny_hub.breaks.clear()
    await fetch(tiny_hub, tmp_path)
    assert tiny_hub.ranges == [tiny_hub.ranges[0]] != [""]
    assert is_fetched(tmp_path, TINY)


@pytest.mark.parametrize("path", FILES)
async def test_a_file_with_another_digest_is_never_used(
    tiny_hub: HubServer, tmp_path: Path, path: str
) -> None:
    tiny_hub.altered = {path}
    with pytest.raises(ModelDamagedError, match=path):
        await fetch(tiny_hub, tmp_path)
    assert not is_fetched(tmp_path, TINY)
    tiny_hub.altered.clear()
    await fetch(tiny_hub, tmp_path)
    assert is_fetched(tmp_path, TINY)


async def test_the_public_hub_is_held_to_what_was_published(
    tiny_hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_hub.files["onnx/model.onnx"] = b"!" + WEIGHTS[1:]
    await fetch(tiny_hub, tmp_path / "of-a-mirror")
    monkeypatch.setattr(fetching, "PUBLIC_HUB", tiny_hub.url)
    tiny_hub.ranges.clear()
    with pytest.raises(ModelChangedError, match="update Talekeeper"):
        await fetch(tiny_hub, tmp_path / "of-the-hub")
    assert tiny_hub.ranges == []
    # The hub names the hash of a blob for a small file, so its SHA-256 is known after the download.
    tiny_hub.files |= FILES | {"config.json": b'{"hidden_size": 385}'}
    with pytest.raises(ModelDamagedError, match=r"config\.json"):
        await fetch(tiny_hub, tmp_path / "of-the-hub")


@pytest.mark.parametrize("path", FILES)
async def test_the_first_fetch_pins_what_later_ones_must_have(
    tiny_hub: HubServer, tmp_path: Path, path: str
) -> None:
    tiny_hub.names_commit = False
    await fetch(tiny_hub, tmp_path, UNPINNED)
    folder = tmp_path / "all-MiniLM-L6-v2"
    shutil.rmtree(folder)
    tiny_hub.files[path] = b"!" + FILES[path][1:]
    tiny_hub.ranges.clear()
    with pytest.raises(ModelChangedError, match=r"delete .*pins\.json") as caught:
        await fetch(tiny_hub, tmp_path, UNPINNED)
    assert path in caught.value.detail
    assert tiny_hub.ranges == []
    assert not folder.exists()

    (tmp_path / "all-MiniLM-L6-v2.pins.json").unlink()
    await fetch(tiny_hub, tmp_path, UNPINNED)
    assert (folder / path).read_bytes() == tiny_hub.files[path]


async def test_a_pinned_model_is_fetched_from_its_commit(
    tiny_hub: HubServer, tmp_path: Path
) -> None:
    tiny_hub.breaks = [500_000, 0, 0, 0, 0, 0]
    with pytest.raises(HubUnreachableError):
        await fetch(tiny_hub, tmp_path, UNPINNED)
    tiny_hub.breaks.clear()
    tiny_hub.requests.clear()
    await fetch(tiny_hub, tmp_path, UNPINNED)
    resolved = [each.path for each in tiny_hub.requests if "/resolve/" in each.path]
    assert resolved
    assert all(f"/resolve/{REVISION}/" in each for each in resolved)

    shutil.rmtree(tmp_path / "all-MiniLM-L6-v2")
    tiny_hub.revision = "b" * 40
    with pytest.raises(ModelNotOnHubError, match=REVISION):
        await fetch(tiny_hub, tmp_path, UNPINNED)


async def test_hubs_have_pins_of_their_own(tiny_hub: HubServer, tmp_path: Path) -> None:
    await fetch(tiny_hub, tmp_path, UNPINNED)
    shutil.rmtree(tmp_path / "all-MiniLM-L6-v2")
    async with HubServer(FILES | {"config.json": b"{}"}) as other:
        await fetch(other, tmp_path, UNPINNED)
    shutil.rmtree(tmp_path / "all-MiniLM-L6-v2")
    tiny_hub.files["config.json"] = b"{}"
    with pytest.raises(ModelChangedError):
        await fetch(tiny_hub, tmp_path, UNPINNED)


async def test_a_mirror_without_digests_may_have_only_known_files(
    tiny_hub: HubServer, tmp_path: Path
) -> None:
    tiny_hub.names_digests = False
    with pytest.raises(ModelNotOnHubError, match="names no digest"):
        await fetch(tiny_hub, tmp_path, UNPINNED)
    await fetch(tiny_hub, tmp_path)
    assert is_fetched(tmp_path, TINY)


async def test_damaged_pins_are_not_ignored(tiny_hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "all-MiniLM-L6-v2.pins.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelChangedError, match=r"is damaged\. Delete it"):
        await fetch(tiny_hub, tmp_path, UNPINNED)


@pytest.mark.parametrize("names_digests", [True, False])
@pytest.mark.parametrize("pinned", [["config.json"], [*FILES, "vocab.txt"]], ids=["few", "many"])
async def test_pins_of_other_files_are_not_used(
    tiny_hub: HubServer, tmp_path: Path, pinned: list[str], *, names_digests: bool
) -> None:
    await fetch(tiny_hub, tmp_path, UNPINNED)
    folder = tmp_path / "all-MiniLM-L6-v2"
    shutil.rmtree(folder)
    tiny_hub.names_digests = names_digests
    tiny_hub.ranges.clear()
    pins = tmp_path / "all-MiniLM-L6-v2.pins.json"
    pin = msgspec.structs.replace(PIN, files=dict.fromkeys(pinned, PIN.files["config.json"]))
    pins.write_bytes(msgspec.json.encode({tiny_hub.url: pin}))
    with pytest.raises(ModelChangedError, match=r"pins\.json .*Delete it"):
        await fetch(tiny_hub, tmp_path, UNPINNED)
    assert tiny_hub.ranges == []
    assert not folder.exists()

    pins.unlink()
    tiny_hub.names_digests = True
    await fetch(tiny_hub, tmp_path, UNPINNED)
    assert is_fetched(tmp_path, UNPINNED)


async def test_a_missing_file_of_the_hub_is_named(tiny_hub: HubServer, tmp_path: Path) -> None:
    del tiny_hub.files["onnx/model.onnx"]
    with pytest.raises(ModelNotOnHubError, match=r"onnx/model\.onnx"):
        await fetch(tiny_hub, tmp_path)


async def test_without_a_network_it_says_what_to_do(tiny_hub: HubServer, tmp_path: Path) -> None:
    await tiny_hub.__aexit__()
    with pytest.raises(HubUnreachableError, match="set HF_ENDPOINT"):
        await fetch(tiny_hub, tmp_path)


async def test_without_room_nothing_is_fetched(
    tiny_hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", {tmp_path / "all-MiniLM-L6-v2.part": full}.get)
    with pytest.raises(DiskFullError, match="2 MB are needed"):
        await fetch(tiny_hub, tmp_path)
    assert tiny_hub.ranges == []


async def test_two_do_not_fetch_into_one_folder(tiny_hub: HubServer, tmp_path: Path) -> None:
    tiny_hub.pace.clear()
    first = asyncio.create_task(fetch(tiny_hub, tmp_path))
    await until_true(lambda: tiny_hub.ranges)
    with pytest.raises(FetchUnderWayError):
        await fetch(tiny_hub, tmp_path)
    tiny_hub.pace.set()
    await first


async def test_the_command_fetches_and_says_what_is_used(
    tiny_hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_hub.files |= dict.fromkeys(list_models()[0].files, b"{}")

    async def model(*words: str, **values: Any) -> str:
        options = cli._make_parser().parse_args(["model", *words])
        settings = Settings(_env_file=None, data_dir=tmp_path, HF_ENDPOINT=tiny_hub.url, **values)  # type: ignore[call-arg]  # pydantic-settings' own
        assert await cli._model(settings, options) == 0
        return capsys.readouterr().out

    assert "all-MiniLM-L6-v2 was downloaded to" in (
        fetched := await model("fetch", embedder="none")
    )
    assert "It is not used" in fetched
    listed = await model("list")
    assert "all-MiniLM-L6-v2 (in use)\n    91 MB, about" in listed
    assert " lines per second, license apache-2.0, for en\n" in listed
    assert listed.count("(not downloaded)") == 5
    assert "paraphrase-multilingual-MiniLM-L12-v2 (not downloaded)" in listed
    with pytest.raises(cli.UsageError, match="Unknown model gpt"):
        await model("fetch", "gpt")


async def test_the_stand_in_speaks_as_the_hub_does(tiny_hub: HubServer, tmp_path: Path) -> None:
    import huggingface_hub

    download: Callable[..., str] = cast("Any", huggingface_hub).snapshot_download
    found = await asyncio.to_thread(
        download, "Qdrant/tiny", cache_dir=tmp_path, endpoint=tiny_hub.url, token=False
    )
    assert {path: (Path(found) / path).read_bytes() for path in FILES} == FILES


def test_the_offered_models_are_those_of_fastembed() -> None:
    from fastembed import TextEmbedding

    known = {each["model"]: each for each in TextEmbedding.list_supported_models()}
    for model in list_models():
        weights = {known[model.name]["model_file"], *known[model.name]["additional_files"]}
        assert all(model.languages)
        assert weights == {path for path in model.files if not path.endswith(".json")}
        assert model.size == pytest.approx(known[model.name]["size_in_GB"] * 1e9, rel=0.2)


MODELS = f"{API}/admin/embedding-models"
SMALL = "all-MiniLM-L6-v2"
FACT = "The captain buried the astrolabe under the chapel bell."
OTHER_WORDS = "Where did the skipper hide his instrument?"


@pytest.fixture
async def hub() -> AsyncGenerator[HubServer]:
    if not (MODEL_FOLDER / "model.onnx").is_file():
        pytest.skip("there is no embedding model to serve")
    files = {path.name: path.read_bytes() for path in MODEL_FOLDER.iterdir()}
    async with HubServer(files) as hub:
        yield hub


@pytest.fixture
async def server(start: Start, hub: HubServer) -> AsyncGenerator[Running]:
    values = {"HF_ENDPOINT": hub.url, "registration": "open"}
    async with start(**values) as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    """An administrator with a text to find."""
    async with server.account("Ada") as ada:
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see.", "A gannet dives."])
        yield ada


async def read_offer(account: Account) -> dict[str, Any]:
    models: list[dict[str, Any]] = ok(await account.client.get(MODELS))["models"]
    return models[0]


async def begin_fetch(account: Account) -> str:
    """Fetch the model. Return the path of the job."""
    job = ok(await account.client.post(f"{MODELS}/fetch", json={"name": SMALL}), 202)
    return f"{API}/jobs/{job['id']}"


async def wait_for_end(account: Account, path: str) -> dict[str, Any]:
    async def is_over() -> dict[str, Any] | None:
        job: dict[str, Any] = ok(await account.client.get(path))
        return job if job["state"] in {"done", "dead"} else None

    job: dict[str, Any] = await until(is_over)
    return job


@pytest.mark.embeddings
@pytest.mark.every_database
async def test_a_fetched_model_is_used_without_a_restart_and_texts_move_to_it(
    server: Running, hub: HubServer, ada: Account
) -> None:
    first = await read_offer(ada)
    assert (first["name"], first["state"], first["job"]) == (SMALL, "on_offer", None)
    assert (first["languages"], first["licence"], first["size"]) == (["en"], "apache-2.0", 91102069)
    assert hub.requests == []
    assert await search(ada, OTHER_WORDS) == []

    path = await begin_fetch(ada)
    assert await begin_fetch(ada) == path
    job = await wait_for_end(ada, path)
    assert (job["error"], job["progress"]["done"]) == (None, job["progress"]["total"])
    assert (await read_offer(ada))["state"] == "in_use"
    await settled(server)
    assert (await search(ada, OTHER_WORDS))[0]["text"] == FACT

    async with server.account("Ben") as ben:
        chat = str((await ben.new_chat())["id"])
        await tell(server, ben, chat, [FACT])
        assert (await search(ben, OTHER_WORDS))[0]["text"] == FACT
        problem(await ben.client.get(MODELS), 403, "forbidden")
        problem(await ben.client.post(f"{MODELS}/fetch", json={"name": SMALL}), 403, "forbidden")


@pytest.mark.embeddings
async def test_an_unknown_model_is_not_fetched(hub: HubServer, ada: Account) -> None:
    for name in ("", "gpt", "../../etc"):
        asked = await ada.client.post(f"{MODELS}/fetch", json={"name": name})
        problem(asked, 404, "unknown-embedding-model")
    assert hub.requests == []


@pytest.mark.embeddings
async def test_a_fetch_is_stopped_and_goes_on_where_it_was(
    server: Running, hub: HubServer, ada: Account
) -> None:
    hub.pace.clear()
    path = await begin_fetch(ada)

    async def has_begun() -> bool:
        return bool(ok(await ada.client.get(path))["progress"]["done"])

    await until(has_begun)
    ok(await ada.client.post(f"{path}/stop"), 202)
    assert (await wait_for_end(ada, path))["error"] == "stopped"
    assert server.parts.memory.chosen is None

    again = await begin_fetch(ada)
    hub.pace.set()
    assert again != path
    assert (await wait_for_end(ada, again))["error"] is None
    asked = [request.path for request in hub.requests if request.method == "GET"]
    assert sum(each.endswith("/config.json") for each in asked) == 1


@pytest.mark.embeddings
async def test_a_damaged_model_ends_the_job_and_nothing_changes(
    server: Running, hub: HubServer, ada: Account
) -> None:
    hub.altered = {"model.onnx"}
    assert (await wait_for_end(ada, await begin_fetch(ada)))["error"] == "model-damaged"
    assert server.parts.memory.embedder is None
    assert (await search(ada, "astrolabe"))[0]["text"] == FACT


@pytest.mark.embeddings
async def test_a_model_that_another_process_fetched_is_used(
    server: Running, hub: HubServer, ada: Account, tmp_path: Path
) -> None:
    async def ignore(_done: int, _total: int) -> None:
        pass

    await fetch_model(list_models()[0], tmp_path / "models", ignore, hub=hub.url)
    chat = str((await ada.new_chat())["id"])
    await tell(server, ada, chat, ["Rain sets in."])

    assert (await search(ada, OTHER_WORDS))[0]["text"] == FACT
