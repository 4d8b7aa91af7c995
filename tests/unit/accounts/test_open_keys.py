"""User keys that are open in memory."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from backend.accounts.auth.identity import Identity, Scope
from backend.accounts.keys import open_keys
from backend.accounts.keys.open_keys import RETENTION_SECONDS, OpenKeys
from backend.accounts.models import User
from backend.core.events import Participants
from backend.vault.sealing import Sealer


def somebody(user_id: UUID | None = None, scope: Scope = "manage") -> Identity:
    user_id = user_id or uuid4()
    sealer = Sealer(user_id, {1: b"d" * 32}, user_key=b"u" * 32)
    return Identity(User(id=user_id, key_generation=0), uuid4(), "session", scope, sealer)


class Seconds:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def test_a_key_stays_for_some_minutes_after_the_last_request() -> None:
    clock = Seconds()
    keys, ada = OpenKeys(clock=clock), somebody()
    keys.keep(ada)
    clock.at = RETENTION_SECONDS - 1
    keys.keep(ada)
    clock.at += RETENTION_SECONDS - 1
    assert keys.users() == [ada.user_id]
    assert keys.get(ada.user_id) is not None
    clock.at += 1
    assert keys.get(ada.user_id) is None
    assert keys.users() == []


def test_an_arrival_is_reported_once_until_the_key_is_dropped() -> None:
    clock, arrivals = Seconds(), list[int]()
    keys, ada = OpenKeys(clock=clock), somebody()
    keys.on_arrival(lambda: arrivals.append(1))
    keys.keep(ada)
    keys.keep(ada)
    assert len(arrivals) == 1
    keys.drop(ada.user_id)
    assert keys.get(ada.user_id) is None
    keys.keep(ada)
    clock.at = RETENTION_SECONDS
    keys.keep(ada)
    assert len(arrivals) == 3


def test_a_read_scope_lends_no_key() -> None:
    keys, script = OpenKeys(), somebody(scope="read")
    keys.keep(script)
    assert keys.users() == []


def test_the_least_recently_seen_users_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_keys, "MAX_USERS", 2)
    keys, people = OpenKeys(), [somebody() for _ in range(3)]
    keys.keep(people[0])
    keys.keep(people[1])
    keys.keep(people[0])
    keys.keep(people[2])
    assert keys.users() == [people[0].user_id, people[2].user_id]


class Keeper:
    def __init__(self) -> None:
        self.heard: list[UUID] = []

    def user_signed_out(self, user_id: UUID) -> None:
        self.heard.append(user_id)


def test_sign_out_listeners_are_notified() -> None:
    keeper, user_id = Keeper(), uuid4()
    OpenKeys(Participants(object(), keeper)).drop(user_id)
    assert keeper.heard == [user_id]
