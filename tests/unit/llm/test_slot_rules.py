"""The rules of a server that answers few requests at the same time."""

from __future__ import annotations

from itertools import count
from uuid import UUID

from backend.llm.slot_rules import (
    Claim,
    Rank,
    SlotUse,
    SlotWork,
    find_occupation,
    may_start,
    must_yield,
)

ADA, BEN = UUID(int=1), UUID(int=2)
CHAT, OTHER_CHAT = UUID(int=11), UUID(int=12)
_ids = count(100)


def claim(
    rank: Rank,
    use: SlotUse = "chronicle",
    *,
    granted: bool = False,
    user: UUID = ADA,
    chat: UUID = CHAT,
) -> Claim:
    """A claim that comes after all earlier ones."""
    work = SlotWork(use=use, rank=rank, user_id=user, chat_id=chat)
    return Claim(UUID(int=next(_ids)), work, granted)


def turn(*, granted: bool = False, user: UUID = ADA) -> Claim:
    return claim(Rank.TURN, "turn", granted=granted, user=user)


def test_a_free_server_takes_any_work() -> None:
    for rank in Rank:
        assert may_start(claim(rank), [], concurrency=1)


def test_turns_wait_for_each_other_in_the_order_in_which_they_came() -> None:
    running, first, second = turn(granted=True), turn(), turn(user=BEN)
    assert not may_start(first, [running, second], concurrency=1)
    assert may_start(first, [second], concurrency=1)
    assert not may_start(second, [first], concurrency=1)
    assert may_start(second, [running], concurrency=2)
    assert not may_start(second, [running, first], concurrency=2)


def test_background_work_waits_for_turns_that_came_later() -> None:
    work = claim(Rank.BACKGROUND)
    assert not may_start(work, [turn()], concurrency=1)
    assert not may_start(work, [turn(granted=True)], concurrency=1)
    assert may_start(work, [turn(granted=True)], concurrency=2)


def test_background_work_yields_only_if_a_turn_finds_no_other_place() -> None:
    older = claim(Rank.BACKGROUND, granted=True)
    newer = claim(Rank.BACKGROUND, granted=True)
    assert must_yield(older, [turn()], concurrency=1)
    assert not must_yield(older, [turn()], concurrency=2)
    assert not must_yield(older, [newer, turn()], concurrency=2)
    assert must_yield(newer, [older, turn()], concurrency=2)
    assert must_yield(older, [newer, turn(), turn()], concurrency=2)
    assert not must_yield(older, [claim(Rank.BACKGROUND)], concurrency=1)


def test_a_turn_waits_until_the_work_that_yields_has_gone() -> None:
    work = claim(Rank.BACKGROUND, granted=True)
    assert not may_start(turn(), [work], concurrency=1)


def test_suggestions_come_after_turns_and_before_background_work() -> None:
    suggestions = claim(Rank.ASKED, "suggestions", granted=True)
    assert must_yield(suggestions, [turn()], concurrency=1)
    work = claim(Rank.BACKGROUND, granted=True)
    assert must_yield(work, [claim(Rank.ASKED, "suggestions")], concurrency=1)
    assert not may_start(claim(Rank.BACKGROUND), [claim(Rank.ASKED, "suggestions")], concurrency=1)


def test_a_turn_never_yields() -> None:
    assert not must_yield(turn(granted=True), [turn(), turn()], concurrency=1)


def test_a_summary_that_a_turn_waits_for_is_done_on_the_turn_s_place() -> None:
    needed = claim(Rank.TURN, "summary", granted=True)
    summary = claim(Rank.BACKGROUND, "summary")
    assert may_start(summary, [needed, turn()], concurrency=1)
    running = Claim(summary.id, summary.work, is_granted=True)
    assert not must_yield(running, [needed, turn()], concurrency=1)
    # Both together take one place.
    assert may_start(turn(), [needed, running], concurrency=2)
    for other in (
        claim(Rank.BACKGROUND, "summary", chat=OTHER_CHAT),
        claim(Rank.BACKGROUND, "chronicle"),
    ):
        assert not may_start(other, [needed], concurrency=1)


def test_a_summary_that_runs_already_goes_on_for_a_turn_that_comes_to_need_it() -> None:
    running = claim(Rank.BACKGROUND, "summary", granted=True)
    needed = claim(Rank.TURN, "summary")
    assert not must_yield(running, [needed], concurrency=1)
    assert may_start(needed, [running], concurrency=1)


def test_a_summary_yields_once_its_turn_waits_for_it_no_longer() -> None:
    running = claim(Rank.BACKGROUND, "summary", granted=True)
    assert must_yield(running, [turn()], concurrency=1)


def test_users_learn_of_their_own_work_and_of_others_only_that_it_is_a_turn() -> None:
    waiting = turn()
    own = claim(Rank.BACKGROUND, "chronicle", granted=True)
    others = claim(Rank.BACKGROUND, "summary", granted=True, user=BEN)
    assert find_occupation(waiting, [own]) == "chronicle"
    assert find_occupation(waiting, [others]) == "other"
    assert find_occupation(waiting, [turn(granted=True, user=BEN)]) == "turn"
    assert find_occupation(waiting, [turn(user=BEN)]) == "turn"
