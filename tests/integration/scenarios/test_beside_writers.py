"""Rebuilds while others read and write at exactly chosen moments."""

import psycopg
import pytest

from rebuilder import SqlHandlers
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_handlers,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)
from tests.fix_threads import wait_for_lock


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    return connection


def begin(connection):
    """In a transaction from here on, so that what is appended waits for its commit."""
    connection.execute("SELECT 1")
    return connection


def test_live_can_be_read_in_the_middle_of_a_replay(dsn, db, connect):
    """A handler that looks at live through a connection of its own sees the rows from before the cut-over, at once
    (scenario 19).
    """
    append_many(db, 20, accounts=2)
    make_rebuilder(dsn).rebuild("account_balance")
    before, seen = rows_of(db), []
    append(db, "account-1", "Deposited", {"amount": 1000})
    elsewhere = connect(autocommit=True, options="-c lock_timeout=1ms")
    inner, looking = make_handlers(), SqlHandlers()

    @looking.on(*inner.types)
    def look(event, target):
        inner.handler(event.type)(event, target)
        seen.append(rows_of(elsewhere))

    make_rebuilder(dsn, make_projection(handlers=looking)).rebuild("account_balance")
    assert seen == [before] * 21
    assert_equal_to_replay(db)
    assert rows_of(db) != before


@pytest.mark.parametrize("moment", ["build shadow", "catch up", "freeze", "fence"])
def test_an_event_that_comes_during_the_run_is_in_the_result(dsn, db, moment):
    """A third event, committed with its effect on live once the replay has begun, is counted and not lost
    (scenario 21).
    """
    rebuilder = make_rebuilder(dsn)
    append(db, "a", "Deposited", {"amount": 1}, live=rebuilder)
    append(db, "a", "Deposited", {"amount": 1}, live=rebuilder)
    reached = []

    def third(run):
        if not reached:
            append(db, "a", "Deposited", {"amount": 1}, live=rebuilder)
        reached.append(run.phase)

    rebuilder._seam.points[moment] = third
    report = rebuilder.rebuild("account_balance")
    assert reached
    assert rows_of(db) == [("a", None, 3, 3)]
    assert (report.events_applied, report.drift.total) == (3, 0)


def test_a_low_position_that_commits_late_is_counted_once(dsn, db, connect):
    """A draws its position first and commits last, B's higher one is visible all the time: both are in the result,
    each once, and nothing was replayed under the fence (scenario 22).
    """
    rebuilder = make_rebuilder(dsn)
    slow = begin(connect())
    append(slow, "low", "Deposited", {"amount": 1}, live=rebuilder)
    append(db, "high", "Deposited", {"amount": 2}, live=rebuilder)
    # What a reader that goes by the highest position seen would take for complete:
    assert db.execute("SELECT array_agg(id), max(id) FROM events").fetchone() == ([2], 2)
    waited = []

    def release(observation):
        if observation.kind == "waiting":
            waited.extend(blocker["pid"] for blocker in observation.detail["blockers"])
            slow.commit()

    report = rebuilder.rebuild("account_balance", observer=release)
    assert waited == [slow.info.backend_pid]
    assert rows_of(db) == [("high", None, 2, 1), ("low", None, 1, 1)]
    assert (report.events_applied, report.attempts, report.drift.total) == (2, 1, 0)


def test_a_low_position_that_commits_under_the_fence_is_applied_in_order(dsn, db, connect):
    """An event that nobody projects becomes visible under the fence below one that was applied: the fence is given back
    and the next attempt applies both in their order (scenario 22, as late as it can get).
    """
    rebuilder = make_rebuilder(dsn)
    append_many(db, 50, accounts=5)
    slow, moments = begin(connect()), {"drain": 0}

    def append_both(run):
        if not moments["drain"]:
            append(slow, "account-1", "OwnerRenamed", {"owner": "first"})
            append(db, "account-1", "OwnerRenamed", {"owner": "second"})
        moments["drain"] += 1

    def commit(run):
        if moments["drain"] == 1:
            slow.commit()

    rebuilder._seam.points.update({"drain": append_both, "recheck": commit})
    report = rebuilder.rebuild("account_balance")
    assert (report.attempts, moments["drain"]) == (2, 2)
    assert_equal_to_replay(db)
    assert db.execute("SELECT owner FROM account_balance WHERE id = 'account-1'").fetchone() == ("second",)


def test_the_main_transaction_sees_what_others_commit(dsn, db, role):
    """The rebuild reads in READ COMMITTED whatever its role's default is: a second look sees one row more
    (scenario 24).
    """
    strict = role("SUPERUSER", hint="strict")
    db.execute(f"ALTER ROLE {strict.name} SET default_transaction_isolation = 'serializable';"
               f"ALTER ROLE {strict.name} SET default_transaction_read_only = on")
    counts = []

    def look_twice(run):
        with run.main.transaction(force_rollback=True):
            for _ in range(2):
                counts.append(run.main.execute("SELECT count(*) FROM public.events").fetchone()[0])
                append(db, "a", "Deposited", {"amount": 1})

    rebuilder = make_rebuilder(strict.dsn(dsn))
    rebuilder._seam.points["freeze"] = look_twice
    rebuilder.rebuild("account_balance")
    assert counts == [0, 1]
    assert_equal_to_replay(db)


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_writer_behind_the_fence_writes_all_or_nothing(dsn, db, connect, spawn, outcome):
    """A transaction that has written a row of its own and waits for the fence with its projection commits both or
    neither (scenario 25).
    """
    db.execute("CREATE TABLE transfer_order (id text PRIMARY KEY)")
    rebuilder = make_rebuilder(dsn)
    append(db, "a", "Deposited", {"amount": 1}, live=rebuilder)
    writer = connect()
    writing = []

    def write():
        writer.execute("INSERT INTO transfer_order VALUES ('partner')")
        append(writer, "partner", "Deposited", {"amount": 5}, live=rebuilder)
        writer.commit() if outcome == "commit" else writer.rollback()

    def behind_the_fence(run):
        writing.append(spawn(write))
        assert run.main.info.backend_pid in wait_for_lock(db, writer.info.backend_pid)

    rebuilder._seam.points["swap"] = behind_the_fence
    report = rebuilder.rebuild("account_balance")
    writing[0].result(10)
    assert report.attempts == 1
    orders = db.execute("SELECT count(*) FROM transfer_order").fetchone()
    projected = db.execute("SELECT count(*) FROM account_balance WHERE id = 'partner'").fetchone()
    assert orders == projected == (1 if outcome == "commit" else 0,)
    assert_equal_to_replay(db)


def test_a_reader_in_an_old_snapshot_sees_the_rows_of_the_freeze(dsn, db, connect):
    """A REPEATABLE READ transaction from before the cut-over that first touches live after it finds all rows, where a
    plain swap would show it none (scenario 20, for a pool whose connections are in transactions).
    """
    append_many(db, 50, accounts=5)
    rebuilder = make_rebuilder(dsn)
    old = connect()
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    old.execute("SELECT count(*) FROM events")
    rebuilder.rebuild("account_balance")
    assert rows_of(old) == rows_of(db)
    assert len(rows_of(db)) == 5
