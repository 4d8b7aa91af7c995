"""The functions that benchmarks time, and the names that torture replaces."""

from __future__ import annotations

from scripts.bench.campaign import STATE_STAGE
from scripts.bench.memory import INDEXING_STAGES
from scripts.bench.turn import STAGES
from scripts.torture.process import SHARED_INDEX, SHORTER_WAITS


def test_every_timed_function_exists() -> None:
    of_indexing = [each for watched in INDEXING_STAGES.values() for each in watched]
    of_turns = [watched for watched, _ in STAGES]
    missing = [
        name
        for holder, name in [STATE_STAGE, *of_indexing, *of_turns]
        if not callable(getattr(holder, name, None))
    ]
    assert missing == []


def test_every_replaced_name_exists() -> None:
    names = [(holder, name) for holder, name, _ in (*SHARED_INDEX, *SHORTER_WAITS)]
    assert [name for holder, name in names if not hasattr(holder, name)] == []
