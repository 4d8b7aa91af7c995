"""Who leaves takes along what is kept of theirs in the clear."""

from __future__ import annotations

from uuid import UUID, uuid4

from backend.accounts.keys.open_keys import OpenKeys
from backend.core.events import Participants


class Keeper:
    def __init__(self) -> None:
        self.heard: list[UUID] = []

    def user_signed_out(self, user_id: UUID) -> None:
        self.heard.append(user_id)


def test_whoever_keeps_something_of_a_user_s_hears_that_the_user_left() -> None:
    keeper, user_id = Keeper(), uuid4()
    OpenKeys(Participants(object(), keeper)).drop(user_id)
    assert keeper.heard == [user_id]
