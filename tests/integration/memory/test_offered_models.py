"""Tests of every model that can be downloaded: from a hub, until it finds a text in other words.

The hub has tiny models of random weights with the same architectures and files.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from backend.chats.models import Message
from backend.memory.embedding import protocol
from backend.memory.embedding.catalogue import OfferedModel, list_models
from backend.memory.embedding.local import LocalEmbedder
from scripts.bench.random_models import Shape, write_static, write_transformer
from tests.fakes.hub_server import HubServer
from tests.support.memory import API, Start, search, settled, tell
from tests.support.server import Account, ok
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

MODELS = f"{API}/admin/embedding-models"
FACT = "The captain buried his astrolabe under the chapel bell."
OTHER_WORDS = "Where did our skipper hide its instrument?"
SYNONYMS = {"skipper": "captain", "hide": "buried", "its": "his", "instrument": "astrolabe"}
ASYMMETRIC = {"bge-small-en-v1.5", "snowflake-arctic-embed-s"}


def make_vocabulary() -> dict[str, int]:
    """Return ids of the words of this test and of the texts by which a model is measured."""
    texts = Path(protocol.__file__).with_name("cosines.toml").read_text(encoding="utf-8")
    words = re.findall(r"\w+", f"{texts} {FACT} {OTHER_WORDS} I see A gannet dives".lower())
    ids = {word: number for number, word in enumerate(dict.fromkeys(words), 4)}
    return ids | {word: ids[other] for word, other in SYNONYMS.items()}


def write_model(model: OfferedModel, folder: Path) -> None:
    """Write a tiny model with the architecture and the files of an offered one."""
    vocabulary = make_vocabulary()
    (weights, *_) = (path for path in model.files if path.endswith((".onnx", ".safetensors")))
    if weights.endswith(".safetensors"):
        write_static(folder, model.dimension, vocabulary)
        return
    shape = Shape(
        layers=1,
        hidden=model.dimension,
        heads=12,
        inner=model.dimension,
        is_modern="granite" in model.name,
    )
    is_external = f"{weights}_data" in model.files
    write_transformer(folder, shape, vocabulary, model_file=weights, is_external=is_external)
    for path in model.files:
        if not (folder / path).exists():
            (folder / path).write_text("{}", encoding="utf-8")


@pytest.fixture(params=[each.folder for each in list_models()])
def model(request: pytest.FixtureRequest) -> OfferedModel:
    return next(each for each in list_models() if each.folder == request.param)


@pytest.fixture
async def hub(model: OfferedModel, tmp_path: Path) -> AsyncGenerator[HubServer]:
    folder = tmp_path / "published"
    folder.mkdir()
    write_model(model, folder)
    async with HubServer({path: (folder / path).read_bytes() for path in model.files}) as hub:
        yield hub


async def list_offers(account: Account, **headers: str) -> dict[str, Mapping[str, Any]]:
    found = ok(await account.client.get(MODELS, headers=headers))["models"]
    return {each["name"]: each for each in found}


async def test_a_downloaded_model_finds_a_text_in_other_words(
    start: Start, hub: HubServer, model: OfferedModel, tmp_path: Path
) -> None:
    async with (
        start(HF_ENDPOINT=hub.url, registration="open", embedding_timeout_seconds=60) as server,
        server.account("Ada") as ada,
    ):
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see.", "A gannet dives."])
        assert await search(ada, OTHER_WORDS) == []

        job = ok(await ada.client.post(f"{MODELS}/fetch", json={"name": model.folder}), 202)

        async def is_over() -> dict[str, Any] | None:
            now: dict[str, Any] = ok(await ada.client.get(f"{API}/jobs/{job['id']}"))
            return now if now["state"] in {"done", "dead"} else None

        assert (await until(is_over))["error"] is None
        await settled(server)
        assert (await search(ada, OTHER_WORDS))[0]["text"] == FACT
        assert (await list_offers(ada))[model.folder]["state"] == "in_use"

    # The folder alone says how to read it: another installation can be given a copy.
    folder = tmp_path / "models" / model.folder
    named, copied = LocalEmbedder(folder, model=model.name), LocalEmbedder(folder)
    for task in ("query", "document"):
        one, other = await named.embed([FACT], task), await copied.embed([FACT], task)
        assert np.allclose(one, other, atol=1e-5)
    query, document = await named.embed([FACT], "query"), await named.embed([FACT], "document")
    assert np.allclose(query, document) == (model.folder not in ASYMMETRIC)
    await named.aclose()
    await copied.aclose()


@pytest.mark.parametrize(
    ("lines", "language", "recommended"),
    [
        ([], "en-GB,en;q=0.9", "all-MiniLM-L6-v2"),
        ([], "", "all-MiniLM-L6-v2"),
        ([], "de-DE,de;q=0.9,en;q=0.8", "paraphrase-multilingual-MiniLM-L12-v2"),
        ([], "cy", "potion-multilingual-128M"),
        (
            ["Ich habe den Ring nicht in der Mühle versteckt.", "Wo ist er denn nun?"],
            "en",
            "paraphrase-multilingual-MiniLM-L12-v2",
        ),
        ([], "no", "paraphrase-multilingual-MiniLM-L12-v2"),
        (
            ["Kılıcımı çekip kapıya doğru yürüyorum.", "Kim var orada, diye bağırıyorum."],
            "en",
            "paraphrase-multilingual-MiniLM-L12-v2",
        ),
        (
            ["Aku menarik pedangku dan berjalan ke pintu. Siapa di sana?"],
            "en",
            "paraphrase-multilingual-MiniLM-L12-v2",
        ),
        (["আমি আমার তলোয়ার বের করে দরজার দিকে হাঁটছি।"], "en", "potion-multilingual-128M"),
        (["To the café, naïve one!", FACT, "No!"], "en", "all-MiniLM-L6-v2"),
        (["船長は星盤を鐘の下に埋めた。"], "en", "paraphrase-multilingual-MiniLM-L12-v2"),
        ([FACT, "Where is the ring?", "That is all there was."], "en", "all-MiniLM-L6-v2"),
    ],
)
async def test_a_model_is_recommended_by_the_languages_of_the_account(
    start: Start, lines: list[str], language: str, recommended: str
) -> None:
    async with start(registration="open") as server, server.account("Ada") as ada:
        if lines:
            chat = str((await ada.new_chat())["id"])
            await tell(server, ada, chat, lines)
        offers = await list_offers(ada, **{"Accept-Language": language})
        assert [name for name, each in offers.items() if each["is_recommended"]] == [recommended]
        assert all(each["lines_per_second"] > 0 for each in offers.values())
        if language == "cy":
            ok(await ada.client.patch(f"{API}/me/settings", json={"page": {"language": "de"}}))
            offers = await list_offers(ada, **{"Accept-Language": "cy"})
            assert offers["paraphrase-multilingual-MiniLM-L12-v2"]["is_recommended"]


async def test_a_damaged_message_does_not_prevent_a_recommendation(start: Start) -> None:
    async with start(registration="open") as server, server.account("Ada") as ada:
        chat = str((await ada.new_chat())["id"])
        lines = await tell(server, ada, chat, ["Wo ist er denn nun?", "Ich habe ihn nicht."])
        async with server.parts.database.write() as session:
            damaged = update(Message).where(Message.id == lines[-1].id)
            await session.execute(damaged.values(sealed_content=b"damaged"))
        offers = await list_offers(ada, **{"Accept-Language": "en"})
        assert offers["paraphrase-multilingual-MiniLM-L12-v2"]["is_recommended"]
