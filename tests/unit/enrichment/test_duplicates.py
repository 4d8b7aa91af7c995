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
from backend.cpu_pool import CpuPool
from backend.enrichment.duplicates.judging import DuplicateJudge, Kept, Near, duplicate_of
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
WORDS_ALONE = DuplicateJudge(None, POOL)


class Model:
    """MiniLM. The texts of the pairs are embedded once for all tests."""

    vectors: ClassVar[dict[str, Floats]] = {}

    def __init__(self) -> None:
        self.model = LocalEmbedder(MODEL_FOLDER)

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:  # noqa: ARG002  # nothing is sealed
        wanted = {text for text in texts if text not in self.vectors}
        if wanted and not self.vectors:
            wanted |= {each.summary for pair in PAIRS for each in (pair.one, pair.other)}
        if wanted:
            order = sorted(wanted)
            made = await self.model.embed(order, "document")
            self.vectors.update(zip(order, made, strict=True))
        return np.stack([self.vectors[text] for text in texts])


class Counting:
    """Vectors that say nothing; `asked` is every text that it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:  # noqa: ARG002  # nothing is sealed
        self.asked += texts
        return np.eye(len(texts), 8, dtype=np.float32)


class Unreachable:
    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:  # noqa: ARG002  # it is gone
        raise EmbedderError("It is gone.", retryable=True)


@pytest.fixture
async def minilm() -> AsyncGenerator[DuplicateJudge]:
    if not (MODEL_FOLDER / "model.onnx").is_file():
        pytest.skip("The embedding model is not here.")
    model = Model()
    yield DuplicateJudge(model, POOL)
    await model.model.aclose()


def event(text: str, **fields: Any) -> Event:
    return Event(uuid4(), EventFields(summary=text, **fields))


async def judged(judge: DuplicateJudge, new: EventFields, *old: Event) -> Near[Event] | None:
    return duplicate_of(await judge.nearest(SEALER, new, old))


async def is_same(one: str, other: str, **fields: Any) -> bool:
    new = EventFields(summary=one, **fields)
    return await judged(WORDS_ALONE, new, event(other, **fields)) is not None


async def rates(judge: DuplicateJudge, split: str) -> tuple[float, float]:
    """Precision and recall, each pair taken each way round."""
    right = wrong = missed = 0
    for pair in PAIRS:
        for new, old in ((pair.one, pair.other), (pair.other, pair.one)):
            if pair.split == split:
                found = await judged(judge, new, Event(uuid4(), old)) is not None
                right += found and pair.same
                wrong += found and not pair.same
                missed += pair.same and not found
    return right / (right + wrong), right / (right + missed)


def test_there_are_pairs_enough_of_either_sort_in_either_half() -> None:
    for split in ("choose", "check"):
        half = [pair for pair in PAIRS if pair.split == split]
        same = sum(pair.same for pair in half)
        assert len(half) >= 150
        assert 0.4 <= same / len(half) <= 0.6


async def test_by_words_alone_at_most_one_refusal_in_twenty_is_wrong() -> None:
    precision, recall = await rates(WORDS_ALONE, "check")

    assert precision >= 0.95
    assert recall >= 0.44


async def test_with_meaning_at_most_one_refusal_in_twenty_is_wrong(
    minilm: DuplicateJudge,
) -> None:
    precision, recall = await rates(minilm, "check")

    assert precision >= 0.95
    assert recall >= 0.45


async def test_meaning_finds_more_of_what_the_thresholds_were_chosen_on(
    minilm: DuplicateJudge,
) -> None:
    _, by_words = await rates(WORDS_ALONE, "choose")
    _, with_meaning = await rates(minilm, "choose")

    assert with_meaning > by_words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Mara killed the wolf.", "The wolf was slain by Mara."),
        ("Tam promised to return by spring.", "By spring, Tam swore, he would be back."),
        ("Mara found the key.", "Mara found the key."),
        ("Marlena hid the key.", "The key was hidden by Marlena."),
        ("Hana opened a bakery.", "Hana has now opened her bakery."),
        ("狼は死んだ。", "狼は死んだ。"),
        ("Мара убила волка.", "Мара убила волка!"),
        ("It is so.", "It is so."),
    ],
)
async def test_the_same_in_other_words_is_one(one: str, other: str) -> None:
    assert await is_same(one, other, who=["Mara", "Tam", "Marlena", "Hana"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Mara killed the wolf.", "Mara killed the bear."),
        ("Mara killed the wolf.", "Mara spared the wolf."),
        ("The bridge is open.", "The bridge is closed."),
        ("The bridge over the gorge is up.", "The bridge over the gorge is down."),
        ("The lamp of the tower is on.", "The lamp of the tower is off."),
        ("Tam arrived before the storm.", "Tam arrived after the storm."),
        ("Tam promised to return by spring.", "Tam did not promise to return by spring."),
        ("Tam promised to return by spring.", "Tam returned by spring, as promised."),
        ("Jake told Marlena the secret.", "Marlena told Jake the secret."),
        ("Jake owes Bruno fifty crowns.", "Jake owes Bruno eighty crowns."),
        ("Jake owes Bruno 50 crowns.", "Jake owes Bruno 51 crowns."),
        ("We met Oslo at the gate.", "We met Mara at the gate."),
        ("狼は死んだ。", "熊が来た。"),
        ("It is so.", "It was here."),
    ],
)
async def test_one_word_can_make_it_another_event(one: str, other: str) -> None:
    assert not await is_same(one, other, who=["Mara", "Tam", "Jake", "Marlena", "Bruno"])


async def test_the_same_on_another_day_is_another_event() -> None:
    new = EventFields(summary="Pip bought a cat.", day=3)

    assert await judged(WORDS_ALONE, new, event("Pip bought a cat.", day=9)) is None
    assert await judged(WORDS_ALONE, new, event("Pip bought a cat.", day=3)) is not None
    assert await judged(WORDS_ALONE, new, event("Pip bought a cat.")) is not None


async def test_what_says_the_same_from_the_other_side_is_one() -> None:
    one = "Jake sold the sword to Marlena."

    assert await is_same(one, "Marlena bought the sword from Jake.", who=["Jake", "Marlena"])
    assert not await is_same(one, "Marlena sold the sword to Jake.", who=["Jake", "Marlena"])
    assert not await is_same(one, "Jake bought the sword from Marlena.", who=["Jake", "Marlena"])


async def test_meaning_lets_an_event_pass_that_tells_more_than_the_old_one(
    minilm: DuplicateJudge,
) -> None:
    short = "Maria volunteers at a homeless shelter in the old harbour."
    long = f"{short[:-1]}, where she met the thief who had robbed her brother."

    assert await judged(minilm, EventFields(summary=long), event(short)) is None


async def test_the_nearest_comes_first_and_says_how_near_it_is(minilm: DuplicateJudge) -> None:
    wolf, bear, tea = (
        event("Mara slew the wolf."),
        event("Mara killed the bear."),
        event("The tea is cold."),
    )
    new = EventFields(summary="Mara killed the wolf.", who=["Mara"])

    near = await minilm.nearest(SEALER, new, [tea, bear, wolf])

    assert [each.event for each in near] == [wolf, bear, tea]
    assert near[0].overlap == 1
    assert near[0].cosine is not None
    assert near[2].cosine is not None
    assert near[0].cosine > near[2].cosine


async def test_an_embedder_that_fails_leaves_the_words() -> None:
    judge = DuplicateJudge(Unreachable(), POOL)
    new = EventFields(summary="Mara killed the wolf.", who=["Mara"])

    near = await judge.nearest(SEALER, new, [event("Mara slew the wolf.")])

    assert near[0].cosine is None
    assert duplicate_of(near) is near[0]


async def test_nothing_is_a_duplicate_of_nothing() -> None:
    old: list[Event] = []

    near = await DuplicateJudge(Unreachable(), POOL).nearest(
        SEALER, EventFields(summary="News."), old
    )

    assert near == []
    assert duplicate_of(near) is None


async def test_one_run_embeds_each_text_once() -> None:
    embedder, kept = Counting(), Kept()
    judge = DuplicateJudge(embedder, POOL)
    old = [event("Mara slew the wolf."), event("The tea is cold.")]

    await judge.nearest(SEALER, EventFields(summary="Mara left."), old, kept=kept)
    await judge.nearest(SEALER, EventFields(summary="Mara came back."), old, kept=kept)

    said = ["Mara left.", *(each.fields.summary for each in old), "Mara came back."]
    assert embedder.asked == said


async def test_an_event_that_was_said_anew_is_compared_as_it_stands() -> None:
    kept = Kept()
    new = EventFields(summary="Mara killed the wolf.", who=["Mara"])
    tea = event("The tea is cold.")
    wolf = Event(tea.id, EventFields(summary="Mara slew the wolf."))
    judge = DuplicateJudge(None, POOL)

    before = await judge.nearest(SEALER, new, [tea], kept=kept)
    after = await judge.nearest(SEALER, new, [wolf], kept=kept)

    assert duplicate_of(before) is None
    assert duplicate_of(after) is after[0]
