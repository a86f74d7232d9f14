"""Waiting between attempts: told the time, so nothing here waits."""

import pytest

from rebuilder.domain.backoff import Backoff


def pauses(chance, *, budget=1000.0, count=12, **overrides):
    backoff = Backoff(budget=budget, started=0.0, random=lambda: chance, **overrides)
    return [backoff.pause(0.0) for _ in range(count)]


def test_pauses_double_up_to_a_longest():
    """Without luck in either direction: 0.05, 0.1, 0.2 … 5 seconds."""
    assert pauses(1.0) == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5, 5])


def test_half_of_a_pause_is_jitter():
    """Two runs that failed together do not come back together, nor does anyone come back at once."""
    assert pauses(0.0) == pytest.approx([pause / 2 for pause in pauses(1.0)])
    assert pauses(0.5) == pytest.approx([pause * 0.75 for pause in pauses(1.0)])


def test_pauses_stay_within_the_budget():
    """The last pause ends when the budget does, so that one more attempt is made."""
    backoff = Backoff(budget=10.0, started=100.0, random=lambda: 1.0, base=4.0)
    assert backoff.pause(100.0) == 4.0
    assert backoff.pause(104.0) == 5.0
    assert backoff.pause(109.5) == 0.5
    assert backoff.pause(111.0) == 0.0
    assert backoff.failures == 4


@pytest.mark.parametrize("now, expired, left", [(100.0, False, 10.0), (109.9, False, 0.1), (110.0, True, 0.0),
                                                (500.0, True, 0.0)])
def test_the_budget_is_a_stretch_of_time(now, expired, left):
    """It begins when it was made to begin, whatever the clock counts from."""
    backoff = Backoff(budget=10.0, started=100.0, random=lambda: 1.0)
    assert backoff.expired(now) is expired
    assert backoff.left(now) == pytest.approx(left)


def test_many_failures_are_no_overflow():
    """An attempt a second for weeks must not make the number of seconds too large to wait for."""
    backoff = Backoff(budget=1e9, started=0.0, random=lambda: 1.0, failures=10**6)
    assert backoff.pause(0.0) == 5.0
