"""An index that is not there yet is asked again, but not at every turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend.memory.index.protocol import IndexUnavailableError
from backend.memory.index.server import RECONNECT_SECONDS, ServerIndex
from backend.settings import Settings

pytestmark = pytest.mark.anyio


class Empty:
    """A client of a server with nothing in it."""

    async def count(self, *_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(count=0)

    async def get_collection(self, _: str) -> None:
        return

    async def close(self) -> None:
        return


class Remote(ServerIndex):
    """An index on a server that may be down."""

    def __init__(self) -> None:
        super().__init__(Settings.model_validate({}), "empty", None, clock=lambda: self.at)
        self.is_up = False
        self.asked = 0
        self.at = 100.0

    async def _connect(self) -> Any:
        self.asked += 1
        if not self.is_up:
            raise IndexUnavailableError("Nobody listens there.")
        self.is_new = True
        return cast("Any", Empty())


async def test_it_is_opened_when_it_is_first_needed() -> None:
    index = Remote()
    index.is_up = True
    assert (index.asked, index.is_new) == (0, False)
    assert await index.count() == 0
    assert await index.count() == 0
    assert (index.asked, index.is_new) == (1, True)


async def test_while_it_is_down_it_is_tried_once_in_some_seconds() -> None:
    index = Remote()
    for _ in range(3):
        with pytest.raises(IndexUnavailableError, match="Nobody listens"):
            await index.ping()
    assert index.asked == 1
    index.at += RECONNECT_SECONDS
    with pytest.raises(IndexUnavailableError):
        await index.ping()
    assert index.asked == 2


async def test_once_it_is_up_it_answers() -> None:
    index = Remote()
    with pytest.raises(IndexUnavailableError):
        await index.ping()
    index.is_up = True
    index.at += RECONNECT_SECONDS
    await index.ping()
    assert await index.count() == 0


async def test_what_was_never_opened_is_closed_without_being_opened() -> None:
    index = Remote()
    await index.aclose()
    assert index.asked == 0
