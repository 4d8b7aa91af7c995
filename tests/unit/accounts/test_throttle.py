from __future__ import annotations

from itertools import pairwise

import pytest

from backend.accounts.throttle import FREE_ATTEMPTS, LONGEST_DELAY, address_block, delay_after


def test_the_first_five_attempts_wait_for_nothing() -> None:
    assert [delay_after(failures) for failures in range(FREE_ATTEMPTS)] == [0] * 5


def test_from_the_fifth_failure_on_each_doubles_the_delay() -> None:
    assert [delay_after(failures) for failures in range(5, 11)] == [1, 2, 4, 8, 16, 32]


def test_where_more_is_free_the_delays_begin_later() -> None:
    assert [delay_after(failures, free=100) for failures in (0, 99, 100, 101)] == [0, 0, 1, 2]


def test_no_delay_is_longer_than_a_quarter_of_an_hour() -> None:
    delays = [delay_after(failures) for failures in range(2000)]
    assert max(delays) == LONGEST_DELAY == 15 * 60
    assert all(one <= other for one, other in pairwise(delays))


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
    assert address_block(address) == block
