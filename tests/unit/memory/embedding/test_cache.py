"""Further attempts, and the breaker, by a clock that a test moves."""

from __future__ import annotations

import pytest

from backend.memory.embedding.cache import CircuitBreaker, Retries
from backend.memory.embedding.protocol import EmbedderError

pytestmark = pytest.mark.anyio

STUMBLED = EmbedderError("It stumbled.", retryable=True)
REFUSED = EmbedderError("It refused.")


class Hands:
    """A clock that moves only by waiting, and counts attempts."""

    def __init__(self, *results: EmbedderError | str, seconds: float = 0) -> None:
        self.at = 100.0
        self.attempts = 0
        self.waits: list[float] = []
        self._results = list(results)
        self._seconds = seconds

    def __call__(self) -> float:
        return self.at

    async def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.at += seconds

    async def attempt(self) -> str:
        self.attempts += 1
        self.at += self._seconds
        result = self._results.pop(0)
        if isinstance(result, EmbedderError):
            raise result
        return result


def retries(hands: Hands, *, draw: float = 1.0) -> Retries:
    return Retries(wait=hands.wait, clock=hands, draw=lambda: draw)


async def test_waits_grow_and_end_with_the_last_attempt() -> None:
    hands = Hands(STUMBLED, STUMBLED, STUMBLED, "late")
    with pytest.raises(EmbedderError, match="stumbled"):
        await retries(hands).run(hands.attempt)
    assert hands.waits == [0.5, 1.0]
    assert hands.attempts == 3


async def test_waits_are_spread() -> None:
    hands = Hands(STUMBLED, "done")
    assert await retries(hands, draw=0.25).run(hands.attempt) == "done"
    assert hands.waits == [0.125]


async def test_a_refusal_is_not_tried_again() -> None:
    hands = Hands(REFUSED, "done")
    with pytest.raises(EmbedderError, match="refused"):
        await retries(hands).run(hands.attempt)
    assert hands.attempts == 1


async def test_no_attempt_begins_after_the_deadline() -> None:
    hands = Hands(STUMBLED, STUMBLED, "late", seconds=20)
    with pytest.raises(EmbedderError, match="stumbled"):
        await retries(hands).run(hands.attempt)
    assert hands.attempts == 2


def opened(hands: Hands, *errors: EmbedderError) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=2, pause=10, clock=hands)
    for error in errors:
        breaker.record_failure(error)
    return breaker


def refusal(breaker: CircuitBreaker) -> EmbedderError:
    with pytest.raises(EmbedderError) as caught:
        breaker.check()
    return caught.value


def test_one_failure_refuses_nothing() -> None:
    opened(Hands(), STUMBLED).check()


def test_a_success_between_two_failures_keeps_it_closed() -> None:
    breaker = opened(Hands(), STUMBLED)
    breaker.record_success()
    breaker.record_failure(STUMBLED)
    breaker.check()


def test_a_refusal_says_for_how_long() -> None:
    hands = Hands()
    breaker = opened(hands, STUMBLED, STUMBLED)
    hands.at += 4
    assert refusal(breaker).retry_after == 6


def test_after_the_pause_one_is_let_through_and_others_still_are_not() -> None:
    hands = Hands()
    breaker = opened(hands, STUMBLED, STUMBLED)
    hands.at += 10
    breaker.check()
    refusal(breaker)
    breaker.record_success()
    breaker.check()


def test_a_failed_trial_opens_the_breaker_again() -> None:
    hands = Hands()
    breaker = opened(hands, STUMBLED, STUMBLED)
    hands.at += 10
    breaker.check()
    hands.at += 5
    breaker.record_failure(STUMBLED)
    assert refusal(breaker).retry_after == 10


@pytest.mark.parametrize(("named", "kept"), [(25.0, 25.0), (86_400.0, 60.0)])
def test_a_limit_that_the_provider_named_is_kept_but_not_for_ever(
    named: float, kept: float
) -> None:
    breaker = opened(Hands(), EmbedderError("Slow down.", retry_after=named))
    assert refusal(breaker).retry_after == kept
