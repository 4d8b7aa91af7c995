from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from backend.accounts.auth.throttle import (
    ACCOUNT_ALLOWANCE,
    ADDRESS_ALLOWANCE,
    MAX_DELAY_SECONDS,
    Allowance,
    normalise_address,
)
from backend.accounts.errors import TooManyAttemptsError


@pytest.mark.parametrize(("allowance", "free"), [(ADDRESS_ALLOWANCE, 5), (ACCOUNT_ALLOWANCE, 100)])
def test_delays_double_after_the_free_attempts(allowance: Allowance, free: int) -> None:
    assert {allowance.delay_after(failures) for failures in range(free)} == {0}
    delays = [allowance.delay_after(failures) for failures in range(free, free + 6)]
    assert delays == [1, 2, 4, 8, 16, 32]


def test_no_delay_is_longer_than_a_quarter_of_an_hour() -> None:
    delays = [ADDRESS_ALLOWANCE.delay_after(failures) for failures in range(2000)]
    assert max(delays) == MAX_DELAY_SECONDS == 15 * 60
    assert all(one <= other for one, other in pairwise(delays))


class Counter:
    """The stored failures of one key."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self.failures, self._last_at = 0.0, START

    def wait(self, at: datetime) -> int:
        """Seconds that an attempt would have to wait."""
        try:
            self._allowance.count(self.failures, self._last_at, at=at)
        except TooManyAttemptsError as error:
            return int(error.headers["Retry-After"])
        return 0

    def attempt(self, at: datetime) -> None:
        self.failures = self._allowance.count(self.failures, self._last_at, at=at)
        self._last_at = at


START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def guess(addresses: list[Counter], account: Counter, *, days: int) -> tuple[int, float]:
    """Guess from all addresses as often as allowed.

    Returns the number of guesses and the seconds that the owner, at a new address, waits at most.
    """
    at, guesses, longest = START, 0, 0
    while at < START + days * DAY:
        waits = [max(each.wait(at), account.wait(at)) for each in addresses]
        longest = max(longest, account.wait(at))
        if soonest := min(waits):
            at += timedelta(seconds=soonest)
            continue
        for counter in (addresses[waits.index(0)], account):
            counter.attempt(at)
        guesses += 1
    return guesses, longest


def test_failures_are_forgiven_one_after_the_other() -> None:
    def after(seconds: float) -> float:
        return ADDRESS_ALLOWANCE.count(5, START, at=START + timedelta(seconds=seconds)) - 1

    assert after(ADDRESS_ALLOWANCE.forgiven_every) == 4
    assert after(ADDRESS_ALLOWANCE.forgiven_every / 2) == 4.5
    assert after(10 * ADDRESS_ALLOWANCE.forgiven_every) == 0


def test_a_clock_that_was_put_back_adds_no_failures() -> None:
    assert ADDRESS_ALLOWANCE.count(2, START, at=START - DAY) == 3


@pytest.mark.parametrize("addresses", [1, 2, 3])
def test_a_month_of_guesses_from_a_few_addresses_never_keeps_the_owner_waiting(
    addresses: int,
) -> None:
    account = Counter(ACCOUNT_ALLOWANCE)
    guesses, longest = guess(
        [Counter(ADDRESS_ALLOWANCE) for _ in range(addresses)], account, days=30
    )
    assert longest == 0
    assert account.failures < ACCOUNT_ALLOWANCE.free
    assert guesses <= addresses * (30 * 96 + 15)


def test_guesses_from_many_addresses_get_288_a_day_and_a_burst() -> None:
    account = Counter(ACCOUNT_ALLOWANCE)
    guesses, longest = guess([Counter(ADDRESS_ALLOWANCE) for _ in range(20)], account, days=10)
    assert 10 * 250 < guesses <= 10 * 288 + 110
    assert longest <= 513


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("::1", "::/64"),
        ("", ""),
        ("a socket's path", "a socket's path"),
    ],
)
def test_attempts_count_for_all_addresses_that_one_customer_has(address: str, block: str) -> None:
    assert normalise_address(address) == block
