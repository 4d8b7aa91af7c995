from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from backend.memory.index.protocol import Kind, Payload
from backend.memory.indexing.sources import MemoryItem
from backend.memory.search.features import Candidate, Scores
from backend.memory.search.ranking import (
    SCENE_DISCOUNT,
    breadth,
    lower_neighbours,
    lower_scene_scores,
)
from backend.memory.search.request import SearchRequest, SearchResult
from backend.memory.search.search import MemorySearch

CHAT = uuid4()


def line(
    score: float,
    position: int,
    *,
    scene: UUID | None = None,
    chat: UUID = CHAT,
    kind: Kind = "message",
    window: float = 10.0,
    near_scene: float = 0.0,
) -> Candidate:
    payload = Payload(
        owner_id=CHAT,
        kind=kind,
        container_id=chat,
        source_id=uuid4(),
        position=position,
        scene_id=scene,
    )
    return Candidate(
        id=uuid4(),
        payload=payload,
        score=score,
        signals=Scores(sparse_window=window),
        scene=near_scene,
    )


def in_scenes(scenes: Sequence[UUID]) -> list[Candidate]:
    return [line(1 - 0.02 * at, 10 * at, scene=scene) for at, scene in enumerate(scenes)]


MANY_SCENES = in_scenes([uuid4() for _ in range(20)])
ONE_SCENE = in_scenes([uuid4()] * 20)


def test_a_short_question_whose_hits_lie_in_many_scenes_is_broad() -> None:
    question = "Which spells?"
    assert breadth(question, MANY_SCENES) > 0.8
    assert breadth(question, ONE_SCENE) < 0.5 * breadth(question, MANY_SCENES)


@pytest.mark.parametrize(
    "text",
    [
        "What gift did grandmother bring back from her winter journey across the frozen lake?",
        "She opens the door and waits. " * 20,
        "??",
    ],
)
def test_many_terms_or_none_ask_for_one_thing(text: str) -> None:
    assert breadth(text, MANY_SCENES) < 0.15


def test_nothing_is_broad_where_no_line_was_found() -> None:
    assert breadth("Which spells?", []) == 0
    assert breadth("Which spells?", [line(1.0, 0, kind="lore")]) == 0


def test_a_broad_question_goes_less_by_scenes() -> None:
    there, apart = line(0.9, 7, near_scene=1.0), line(0.85, 40)
    assert lower_scene_scores([there, apart], 0.0) == [there, apart]
    far = lower_scene_scores([there, apart], 0.5)
    assert [each.id for each in far] == [apart.id, there.id]
    assert far[1].score == pytest.approx(0.9 - 0.5 * SCENE_DISCOUNT)


def test_a_line_next_to_a_better_one_makes_room_for_another_scene() -> None:
    best, beside, apart = line(1.0, 7), line(0.9, 8), line(0.8, 40)
    assert lower_neighbours([best, beside, apart], 0.9) == [best, apart, _lower(beside, 0.45)]
    assert lower_neighbours([best, beside, apart], 0.0) == [best, beside, apart]


def test_a_line_that_its_own_words_found_keeps_its_place() -> None:
    best, beside, apart = line(1.0, 7), line(0.9, 8, window=1.0), line(0.8, 40)
    assert [each.id for each in lower_neighbours([best, beside, apart], 0.9)] == [
        best.id,
        beside.id,
        apart.id,
    ]


def test_only_lines_of_one_chat_stand_next_to_each_other() -> None:
    some = [
        line(1.0, 0),
        line(0.9, 1, chat=uuid4()),
        line(0.8, 0, kind="lore"),
        line(0.7, 1, kind="lore"),
    ]
    assert lower_neighbours(some, 1.0) == some


@pytest.mark.anyio
async def test_what_is_recalled_for_a_list_comes_from_several_places() -> None:
    best, beside, apart = line(1.0, 7), line(0.9, 8), line(0.8, 40)
    request = SearchRequest(text="Which spells?", now=datetime(2026, 3, 4, tzinfo=UTC))
    nowhere: Any = None
    everything: Any = EveryRow()
    search = MemorySearch(nowhere, [everything], embedders=nowhere, blinders=nowhere, pool=nowhere)

    async def recalled(breadth: float) -> list[UUID]:
        result = SearchResult(request=request, candidates=[best, beside, apart], breadth=breadth)
        memories = await search.recall(everything, nowhere, result)
        return [each.recalled.source_id for each in memories]

    of = [each.payload.source_id for each in (best, beside, apart)]
    assert await recalled(0.0) == of
    assert await recalled(0.9) == [of[0], of[2], of[1]]


class EveryRow:
    """A source whose rows all count, and a database that is not asked."""

    kind: Kind = "message"

    def read(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def recall(
        self, _session: Any, _sealer: Any, ids: Sequence[UUID], *, viewpoint: Any
    ) -> dict[UUID, MemoryItem]:
        _ = viewpoint
        return {
            each: MemoryItem(kind="message", source_id=each, container_id=CHAT, title="", text="")
            for each in ids
        }


def _lower(candidate: Candidate, by: float) -> Candidate:
    return Candidate(
        id=candidate.id,
        payload=candidate.payload,
        score=candidate.score - by,
        signals=candidate.signals,
    )
