"""Who leaves takes along what is kept of theirs in the clear."""

from __future__ import annotations

from uuid import UUID, uuid4

from backend.accounts.open_keys import OpenKeys


def test_whoever_keeps_something_of_a_user_s_hears_that_the_user_left() -> None:
    open_keys, heard = OpenKeys(), list[UUID]()
    open_keys.on_departure(heard.append)
    user_id = uuid4()
    open_keys.drop(user_id)
    assert heard == [user_id]
