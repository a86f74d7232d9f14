"""What happens between attempts: the savepoint that is released, and the freeze that gets old (hazards M4, R6)."""

import pytest

from rebuilder.engine import fence, rebuild
from tests.bank import append, assert_equal_to_replay, make_rebuilder
from tests.fix_threads import wait_for_lock
from tests.integration.hazards.schedule import (
    NAME,
    PATIENT,
    Moments,
    deposit,
    main_pid,
    pid_of,
    subtransactions,
)

QUICK = {**PATIENT, "fence_nowait": 0.05}


# --- a reader that stays, and what is applied between the attempts ---------------------------------------------------


def test_what_is_applied_between_attempts_is_not_undone_by_the_next(dsn, connect, watcher):
    """Each attempt's savepoint is rolled back and released: with one outside the loop, what was caught up meanwhile is
    undone and the recheck passes (drift 112 with one slow reader, 0 so).
    """
    rebuilder = make_rebuilder(dsn, settings=QUICK)
    moments, reader = Moments(rebuilder), connect()
    moments.at("fence", lambda run: reader.execute("SELECT FROM account_balance"))
    for turn in (2, 3, 4):
        moments.at("fence", lambda run: deposit(watcher, rebuilder, "a2", 1000), nth=turn)
    moments.at("fence", lambda run: reader.rollback(), nth=5)
    report = rebuilder.rebuild(NAME)
    assert report.attempts >= 4
    assert report.drift.total == 0
    assert_equal_to_replay(watcher)


def test_failed_attempts_leave_no_subtransactions_and_the_table_can_be_frozen_again(
        dsn, connect, watcher, monkeypatch, server_version):
    """A savepoint that is rolled back and not released stays open, and all that follows is nested in it."""
    monkeypatch.setattr(fence, "stale", lambda run, shadow: True)
    rebuilder = make_rebuilder(dsn, settings=QUICK)
    moments, reader = Moments(rebuilder), connect()
    moments.at("freeze", lambda run: None)
    moments.at("fence", lambda run: reader.execute("SELECT FROM account_balance"))
    moments.at("fence", lambda run: deposit(watcher, rebuilder), nth=2)
    moments.at("fence", lambda run: reader.rollback(), nth=3)
    open_ones = []
    if server_version >= 160000:
        moments.at("before commit", lambda run: open_ones.append(subtransactions(watcher, main_pid(run))[0]))
    rebuilder.rebuild(NAME)
    assert moments.count("freeze") >= 4
    assert open_ones in ([], [0], [1]), "the successful attempt's own at most"
    assert_equal_to_replay(watcher)


def test_rows_born_since_the_freeze_are_no_reason_to_freeze_again_at_once(dsn, connect, watcher):
    """Under steady inserts each attempt would cost a copy of the table (hazard R6)."""
    rebuilder = make_rebuilder(dsn, settings=QUICK)
    moments, reader = Moments(rebuilder), connect()
    moments.at("freeze", lambda run: None)
    moments.at("fence", lambda run: reader.execute("SELECT FROM account_balance"))
    for turn in (1, 2, 3, 4):
        moments.at("fence", lambda run, turn=turn: append(
            watcher, f"new{turn}", "AccountOpened", {"owner": "x"}, live=rebuilder), nth=turn)
    moments.at("fence", lambda run: reader.rollback(), nth=5)
    report = rebuilder.rebuild(NAME)
    assert (moments.count("freeze"), report.attempts >= 4) == (1, True)
    assert report.freeze_age_seconds > 0
    assert_equal_to_replay(watcher)


@pytest.fixture
def free_of_charge(monkeypatch):
    """A freeze counts as one that took no time, so that `freeze_age` alone says when it is old."""
    for module in (fence, rebuild):
        def frozen(run, shadow, freeze=module.freeze):
            freeze(run, shadow)
            shadow.freeze_cost = 0.0

        monkeypatch.setattr(module, "freeze", frozen)


def test_an_old_freeze_is_repeated_before_the_next_attempt(dsn, connect, watcher, spawn, free_of_charge):
    """So that an old snapshot that waited on the fence lacks seconds, not the whole wait for it (hazards M4, R6)."""
    rebuilder = make_rebuilder(dsn, settings={**QUICK, "freeze_age": 0.0})
    moments, reader, old, futures = Moments(rebuilder), connect(), connect(), []
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT 1")

    def first_fence(run):
        reader.execute("SELECT FROM account_balance")
        append(watcher, "new", "AccountOpened", {"owner": "born after the freeze"}, live=rebuilder)

    def read_behind_the_fence(run):
        futures.append(spawn(lambda: old.execute("SELECT id FROM account_balance ORDER BY id").fetchall()))
        wait_for_lock(watcher, pid_of(old))

    moments.at("freeze", lambda run: None)
    moments.at("fence", first_fence)
    moments.at("fence", lambda run: reader.rollback(), nth=2)
    moments.at("before commit", read_behind_the_fence)
    report = rebuilder.rebuild(NAME)
    assert moments.count("freeze") >= 3
    assert futures[0].result(10) == [("a1",), ("a2",), ("a3",), ("new",)]
    assert 0 < report.freeze_age_seconds < 60


@pytest.mark.parametrize("cost, least, again", [(1.0, 0.0, False), (0.0, 600.0, False), (0.0, 0.0, True)])
def test_a_freeze_is_old_after_ten_times_its_cost_and_at_least_a_while(
        dsn, connect, watcher, monkeypatch, cost, least, again):
    """A copy that takes ten seconds is not made before every attempt of a second (hazard R6)."""
    for module in (fence, rebuild):
        def frozen(run, shadow, freeze=module.freeze):
            freeze(run, shadow)
            shadow.freeze_cost = cost * 100

        monkeypatch.setattr(module, "freeze", frozen)
    rebuilder = make_rebuilder(dsn, settings={**QUICK, "freeze_age": least})
    moments, reader = Moments(rebuilder), connect()
    moments.at("freeze", lambda run: None)
    moments.at("fence", lambda run: reader.execute("SELECT FROM account_balance"))
    moments.at("fence", lambda run: reader.rollback(), nth=2)
    rebuilder.rebuild(NAME)
    assert (moments.count("freeze") > 1) == again
