"""Tests of the calculated sizes of installations."""

from __future__ import annotations

import pytest

from scripts.plan import plan


def test_turns_points_and_bytes_follow_from_the_users() -> None:
    large = plan(100_000)
    assert large.turns_a_second == pytest.approx(100_000 * 0.1 * 25 * 0.1 / 3600)
    assert large.points == 2 * 100_000 * 0.1 * 25 * 365
    assert (large.servers, large.workers, large.nodes) == (2, 1, 3)
    assert (plan(1).servers, plan(1).workers, plan(1).nodes) == (1, 0, 0)


def test_more_users_need_no_fewer_parts() -> None:
    plans = [plan(users) for users in (1, 1_000, 10_000, 100_000, 1_000_000, 3_000_000)]
    for name in ("servers", "nodes", "postgres_cores", "database_bytes", "cost"):
        sizes = [getattr(each, name) for each in plans]
        assert sizes == sorted(sizes), name
    assert plans[-1].used[plans[-1].bottleneck] > 1
