"""An index that is not there yet is asked again, but not at every turn."""

from __future__ import annotations

from typing import Any, cast
from uuid import uuid4

import pytest

from backend.memory.index.lazy import AGAIN_AFTER, LazyIndex
from backend.memory.index.protocol import IndexUnavailableError, VectorIndex

pytestmark = pytest.mark.anyio


class Empty:
    """An index with nothing in it."""

    name = "empty"
    is_new = True

    async def count(self, _: Any = None) -> int:
        return 0

    async def ping(self) -> None:
        return

    async def aclose(self) -> None:
        return


class Server:
    """Somewhere to open an index, that may be down."""

    def __init__(self) -> None:
        self.is_up = False
        self.asked = 0
        self.at = 100.0

    async def open(self) -> VectorIndex:
        self.asked += 1
        if not self.is_up:
            raise IndexUnavailableError("Nobody listens there.")
        return cast("VectorIndex", Empty())


def index_on(server: Server) -> LazyIndex:
    return LazyIndex("empty", server.open, clock=lambda: server.at)


async def test_it_is_opened_when_it_is_first_needed() -> None:
    server = Server()
    server.is_up = True
    index = index_on(server)
    assert (server.asked, index.is_new) == (0, False)
    assert await index.count(uuid4()) == 0
    assert await index.count() == 0
    assert (server.asked, index.is_new) == (1, True)


async def test_while_it_is_down_it_is_tried_once_in_some_seconds() -> None:
    server = Server()
    index = index_on(server)
    for _ in range(3):
        with pytest.raises(IndexUnavailableError, match="Nobody listens"):
            await index.ping()
    assert server.asked == 1
    server.at += AGAIN_AFTER
    with pytest.raises(IndexUnavailableError):
        await index.ping()
    assert server.asked == 2


async def test_once_it_is_up_it_answers() -> None:
    server = Server()
    index = index_on(server)
    with pytest.raises(IndexUnavailableError):
        await index.ping()
    server.is_up = True
    server.at += AGAIN_AFTER
    await index.ping()
    assert await index.count() == 0


async def test_what_was_never_opened_is_closed_without_being_opened() -> None:
    server = Server()
    await index_on(server).aclose()
    assert server.asked == 0
