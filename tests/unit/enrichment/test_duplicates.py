from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import msgspec
import numpy as np
import pytest

from backend.chronicles.events import EventFields
from backend.core.cpu_pool import CpuPool
from backend.enrichment.agent.duplicates import DuplicateFinder, SimilarEvent
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import EmbedderError, Floats
from backend.vault.sealing import Sealer
from tests.support.memory import MODEL_FOLDER

pytestmark = pytest.mark.anyio

FIXTURE = Path(__file__).parents[2] / "fixtures" / "duplicates.json"
SEALER = Sealer(UUID(int=1), {1: bytes(32)}, user_key=bytes(32))


class Pair(msgspec.Struct, frozen=True):
    split: str
    same: bool
    kind: str
    one: EventFields
    other: EventFields


@dataclass(frozen=True)
class Event:
    id: UUID
    fields: EventFields


PAIRS = msgspec.json.decode(FIXTURE.read_bytes(), type=list[Pair])
POOL = CpuPool()
WORDS_ALONE = DuplicateFinder(SEALER, None, POOL)


class Model:
    """MiniLM. The texts of the pairs are embedded once for all tests."""

    vectors: ClassVar[dict[str, Floats]] = {}

    def __init__(self) -> None:
        self.model = LocalEmbedder(MODEL_FOLDER)

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:  # noqa: ARG002  # nothing is sealed
        # Separately, because vectors of an eight-bit model depend on the other texts of a batch.
        if not self.vectors:
            await self._embed({each.summary for pair in PAIRS for each in (pair.one, pair.other)})
        if wanted := {text for text in texts if text not in self.vectors}:
            await self._embed(wanted)
        return np.stack([self.vectors[text] for text in texts])

    async def _embed(self, texts: set[str]) -> None:
        order = sorted(texts)
        made = await self.model.embed(order, "document")
        self.vectors.update(zip(order, made, strict=True))


class Counting:
    """An embedder of meaningless vectors that records the requested texts in `asked`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:  # noqa: ARG002  # nothing is sealed
        self.asked += texts
        return np.eye(len(texts), 8, dtype=np.float32)


class Unreachable:
    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:  # noqa: ARG002  # it is gone
        raise EmbedderError("It is gone.", retryable=True)


@pytest.fixture
async def minilm() -> AsyncGenerator[DuplicateFinder]:
    if not (MODEL_FOLDER / "model.onnx").is_file():
        pytest.skip("The embedding model is not here.")
    model = Model()
    yield DuplicateFinder(SEALER, model, POOL)
    await model.model.aclose()


def event(text: str, **fields: Any) -> Event:
    return Event(uuid4(), EventFields(summary=text, **fields))


async def compared(one: str, other: str, **fields: Any) -> SimilarEvent[Event]:
    [near] = await WORDS_ALONE.nearest(EventFields(summary=one, **fields), [event(other)])
    return near


async def shares(finder: DuplicateFinder, *splits: str) -> tuple[float, float, int]:
    """Return the shares of equal and of different pairs that are found, and the wrong merges."""
    seen: dict[bool, list[bool]] = {True: [], False: []}
    wrong = 0
    for pair in PAIRS:
        for new, old in ((pair.one, pair.other), (pair.other, pair.one)):
            if pair.split in splits:
                [near] = await finder.nearest(new, [Event(uuid4(), old)])
                seen[pair.same].append(near.is_same or near.may_be_same())
                wrong += near.is_same and not pair.same
    same, other = (sum(each) / len(each) for each in (seen[True], seen[False]))
    return same, other, wrong


def test_there_are_pairs_enough_of_either_sort_in_either_half() -> None:
    for split in ("choose", "check"):
        half = [pair for pair in PAIRS if pair.split == split]
        same = sum(pair.same for pair in half)
        assert len(half) >= 150
        assert 0.4 <= same / len(half) <= 0.6


@pytest.mark.parametrize("split", ["choose", "check", "languages"])
async def test_words_alone_refuse_no_news_and_find_most_duplicates(split: str) -> None:
    same, _, wrong = await shares(WORDS_ALONE, split)
    assert wrong == 0
    assert same >= 0.86


@pytest.mark.parametrize("split", ["choose", "check", "languages"])
async def test_meaning_refuses_no_news_and_finds_most_duplicates(
    minilm: DuplicateFinder, split: str
) -> None:
    same, _, wrong = await shares(minilm, split)
    assert wrong == 0
    assert same >= 0.84


async def test_meaning_spares_questions_about_news(minilm: DuplicateFinder) -> None:
    _, by_words, _ = await shares(WORDS_ALONE, "choose", "check")
    _, with_meaning, _ = await shares(minilm, "choose", "check")
    assert with_meaning < by_words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Mara found the key.", "Mara found the key."),
        ("Mara found the key.", "mara found  the key!"),
        ("狼は死んだ。", "狼は死んだ。"),
        ("Мара убила волка.", "Мара убила волка!"),
        ("It is so.", "It is so."),
    ],
)
async def test_the_same_in_the_same_words_is_one(one: str, other: str) -> None:
    assert (await compared(one, other)).is_same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Mara killed the wolf.", "Mara has killed the bear."),
        ("The bridge over the gorge is up.", "The bridge over the gorge is down."),
        ("Tam arrived before the storm.", "Tam arrived after the storm."),
        ("Tam promised to return by spring.", "Tam did not promise to return by spring."),
        ("Jake told Marlena the secret.", "Marlena told Jake the secret."),
        ("Jake owes Bruno fifty crowns.", "Jake owes Bruno eighty crowns."),
        ("Le capitaine a vendu la carte aux pirates.", "Le capitaine n'a pas vendu la carte."),
        ("Анна простила Ивана.", "Иван простил Анну."),
    ],
)
async def test_one_word_can_make_it_another_event_so_the_model_is_asked(
    one: str, other: str
) -> None:
    near = await compared(one, other)
    assert not near.is_same
    assert near.may_be_same()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Jake owes Bruno 50 crowns.", "Jake owes Bruno 51 crowns."),
        ("狼は死んだ。", "熊が来た。"),
        ("It is so.", "It was here."),
        ("Mara killed the wolf.", "The tea is cold."),
    ],
)
async def test_the_model_is_not_asked_about_clearly_different_events(one: str, other: str) -> None:
    near = await compared(one, other)
    assert not near.is_same
    assert not near.may_be_same()


async def test_the_same_on_another_day_is_another_event() -> None:
    new = EventFields(summary="Pip bought a cat.", day=3)
    old = [event("Pip bought a cat.", day=day) for day in (9, 3, None)]
    near = {
        each.event.fields.day: each.is_same or each.may_be_same()
        for each in await WORDS_ALONE.nearest(new, old)
    }
    assert near == {9: False, 3: True, None: True}


async def test_the_nearest_comes_first_and_says_how_near_it_is(minilm: DuplicateFinder) -> None:
    texts = ("Mara slew the wolf.", "Mara fed the bear.", "The tea is cold.")
    wolf, bear, tea = map(event, texts)
    new = EventFields(summary="Mara killed the wolf.", who=["Mara"])
    near = await minilm.nearest(new, [tea, bear, wolf])
    assert [each.event for each in near] == [wolf, bear, tea]
    assert near[0].cosine is not None
    assert near[2].cosine is not None
    assert near[0].cosine > near[2].cosine


async def test_an_embedder_that_fails_leaves_the_words() -> None:
    finder = DuplicateFinder(SEALER, Unreachable(), POOL)
    new = EventFields(summary="Mara killed the wolf.", who=["Mara"])
    [near] = await finder.nearest(new, [event("Mara has killed a wolf.")])
    assert near.cosine is None
    assert near.may_be_same()


async def test_without_events_none_is_near() -> None:
    old: list[Event] = []
    finder = DuplicateFinder(SEALER, Unreachable(), POOL)
    assert await finder.nearest(EventFields(summary="News."), old) == []


async def test_one_run_embeds_each_text_once() -> None:
    embedder = Counting()
    finder = DuplicateFinder(SEALER, embedder, POOL)
    old = [event("Mara slew the wolf."), event("The tea is cold.")]
    await finder.nearest(EventFields(summary="Mara left."), old)
    await finder.nearest(EventFields(summary="Mara came back."), old)
    said = ["Mara left.", *(each.fields.summary for each in old), "Mara came back."]
    assert embedder.asked == said
