"""What an account surely has left is not looked at each time."""

from __future__ import annotations

from backend.quotas.limits import CHECK_INTERVAL_SECONDS, MIN_FREE_BYTES, FreeRoom


def test_room_stands_for_a_while_and_for_half_of_what_was_free() -> None:
    at = 0.0
    room = FreeRoom(clock=lambda: at)
    assert not room.take("ada", 1)
    room.record("ada", MIN_FREE_BYTES - 1)
    assert not room.take("ada", 1)
    room.record("ada", MIN_FREE_BYTES)
    assert room.take("ada", MIN_FREE_BYTES // 2 - 1)
    assert not room.take("ada", 1)
    assert not room.take("bob", 1)
    room.record("ada", MIN_FREE_BYTES)
    at = CHECK_INTERVAL_SECONDS
    assert not room.take("ada", 1)
