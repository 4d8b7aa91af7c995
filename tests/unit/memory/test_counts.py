"""How often a search counts a user's points."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from backend.memory.search import search as module
from backend.memory.search.features import LARGE_CORPUS_POINTS
from backend.memory.search.search import MemorySearch

pytestmark = pytest.mark.anyio


class Index:
    """Counts how often it is asked."""

    name = "tales"

    def __init__(self) -> None:
        self.asked: list[UUID] = []

    async def count(self, owner_id: UUID) -> int:
        self.asked.append(owner_id)
        return LARGE_CORPUS_POINTS


def open_search() -> MemorySearch:
    nowhere = cast("Any", None)
    return MemorySearch(nowhere, [], embedders=nowhere, blinders=nowhere, pool=nowhere)


async def test_many_points_are_counted_once_until_their_user_signs_out() -> None:
    search, index, ann = open_search(), cast("Any", Index()), uuid4()
    for _ in range(2):
        assert await search._points(index, ann) == LARGE_CORPUS_POINTS
    assert index.asked == [ann]
    search.user_signed_out(ann)
    await search._points(index, ann)
    assert index.asked == [ann, ann]


async def test_what_is_kept_of_users_with_many_points_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_COUNTED_USERS", 2)
    search, index = open_search(), cast("Any", Index())
    first, *others = [uuid4() for _ in range(3)]
    for each in (first, *others, *others, first):
        await search._points(index, each)
    assert index.asked == [first, *others, first]
