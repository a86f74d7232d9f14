"""When a copy of the shadow pays, by the pace of batches alone."""

from rebuilder.domain.slowdown import Slowdown


def told(*batches):
    slowdown = Slowdown()
    for _ in range(3):
        slowdown.add(1000, 0.04)  # the usual pace: 25,000 a second
    for seconds in batches:
        slowdown.add(1000, seconds)
    return slowdown


def test_a_steady_pace_loses_nothing():
    assert told(*[0.04] * 1000).lost < 1e-9


def test_what_batches_take_above_the_usual_pace_is_lost():
    slowdown = told(0.06, 0.08, 0.10)
    assert abs(slowdown.lost - 0.12) < 1e-9
    assert slowdown.pays(rows=0)
    assert slowdown.pays(rows=5_000)
    assert not slowdown.pays(rows=10_000)  # guessed at 0.1 s, which is not lost twice yet


def test_a_quicker_batch_makes_up_for_a_slower_one():
    assert told(*[0.02, 0.06] * 500).lost < 0.021


def test_a_copy_costs_what_the_last_one_did():
    slowdown = told(1.0)
    slowdown.copied(rows=1000, seconds=1.0)
    assert slowdown.lost == 0
    for seconds in (0.04, 0.04, 0.04, 1.54):
        slowdown.add(1000, seconds)
    assert not slowdown.pays(rows=1000)
    slowdown.add(1000, 0.6)
    assert slowdown.pays(rows=1000)


def test_a_pace_that_a_copy_does_not_mend_becomes_the_usual_one():
    slowdown = told(0.2, 0.2)
    slowdown.copied(rows=100, seconds=0.01)
    for _ in range(1000):
        slowdown.add(1000, 0.2)
    assert not slowdown.pays(rows=0)


def test_after_many_copies_each_must_be_worth_twice_the_last():
    slowdown = told(1.0)
    slowdown.copies = 64
    assert slowdown.pays(rows=0)
    slowdown.copies = 70
    assert not slowdown.pays(rows=0)
    slowdown.copies = 10_000
    assert not slowdown.pays(rows=0)
