"""Field cases about rebuilds beside other rebuilds, writers, readers and people."""

import threading
import time
from itertools import pairwise

import psycopg
import pytest

from rebuilder.errors import GuardTripped, LiveChanged, RebuildInProgress
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
from tests.fix_threads import wait_until


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 100)
    return connection


class Gate:
    """Holds a run at a point until it is opened."""

    def __init__(self):
        self._reached, self._open = threading.Event(), threading.Event()

    def __call__(self, run):
        self._reached.set()
        assert self._open.wait(60)

    def wait(self):
        assert self._reached.wait(30)

    def open(self):
        self._open.set()


def test_two_rebuilds_of_one_projection_do_not_meet(dsn, db, spawn):
    """While one runs another is refused with its ticket, host and process, or waits for its turn if it may; a process
    that writes live goes on all the time (field case B21).
    """
    first, second, third = make_rebuilder(dsn), make_rebuilder(dsn), make_rebuilder(dsn)
    first.rebuild("account_balance")
    gate = Gate()
    first._seam.points["catch up"] = gate
    running = spawn(first.rebuild, "account_balance")
    try:
        gate.wait()
        with pytest.raises(RebuildInProgress, match="phase") as caught:
            second.rebuild("account_balance")
        assert caught.value.ticket == str(first.tickets()[0].id)
        assert (caught.value.exit_code, caught.value.pid > 0, bool(caught.value.host)) == (4, True, True)
        assert caught.value.ticket in caught.value.hint
        for _ in range(3):
            append(db, "account-1", "Deposited", {"amount": 1}, live=third)
        waiting = spawn(second.rebuild, "account_balance", wait=60)
        wait_until(lambda: db.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE"
                                      " 'rebuilder:%%:main' AND wait_event_type = 'Lock'").fetchone() == (1,))
    finally:
        gate.open()
    assert running.result(30).generation == 2
    assert waiting.result(30).generation == 3
    assert_equal_to_replay(db)
    assert [str(ticket.stage) for ticket in first.tickets()] == ["completed"] * 3


def test_two_projections_that_share_a_table_do_not_meet_either(dsn, db, spawn):
    """Two applications that give the same table to projections of different names: the table is what is locked
    (field case B21).
    """
    first = make_rebuilder(dsn)
    second = make_rebuilder(dsn, make_projection("balances", tables=["public.account_balance"]))
    gate = Gate()
    first._seam.points["catch up"] = gate
    running = spawn(first.rebuild, "account_balance")
    try:
        gate.wait()
        with pytest.raises(RebuildInProgress, match="is being rebuilt by a run of another projection"):
            second.rebuild("balances", wait=0.1)
    finally:
        gate.open()
    running.result(30)
    assert_equal_to_replay(db)


@pytest.mark.parametrize("feeding", ["inline", "async"])
def test_a_second_rebuild_is_as_full_as_the_first(dsn, db, feeding):
    """Neither a checkpoint nor a position of the first one makes the second skip what it has to read (field case B24).
    """
    rebuilder = make_rebuilder(dsn, make_projection(feeding=feeding))
    reports = [rebuilder.rebuild("account_balance") for _ in range(3)]
    assert [report.events_applied for report in reports] == [100] * 3
    rows = assert_equal_to_replay(db)
    assert [report.drift.total for report in reports] == [rows, 0, 0]
    assert rows > 5


def test_the_result_is_complete_when_the_call_returns(dsn, db):
    """A last batch that takes its time is not left behind (field case B25)."""
    handlers = make_handlers()

    @handlers.on("Slow")
    def slow(event, target):
        target.execute("SELECT pg_sleep(0.3)")
        target.execute("UPDATE account_balance SET owner = 'slow' WHERE id = %s", (event.stream,))

    append(db, "account-1", "Slow")
    rebuilder = make_rebuilder(dsn, make_projection(handlers=handlers), settings={"batch": 10})
    assert rebuilder.rebuild("account_balance").events_applied == 101
    assert db.execute("SELECT owner FROM account_balance WHERE id = 'account-1'").fetchone() == ("slow",)


def test_rows_committed_while_the_fence_waits_are_kept(dsn, db, connect, role):
    """For a role whose transactions are REPEATABLE READ by default: what a writer commits while a reader keeps the
    fence waiting is in the result (field case B27).
    """
    strict = role("SUPERUSER", hint="strict")
    db.execute(f"ALTER ROLE {strict.name} SET default_transaction_isolation = 'repeatable read'")
    rebuilder = make_rebuilder(strict.dsn(dsn), settings={"fence_nowait": 0.0})
    rebuilder.rebuild("account_balance")
    reader, failed = connect(), []
    reader.execute("SELECT count(*) FROM account_balance")

    def write_and_let_go(seen):
        if seen.kind == "attempt":
            failed.append(seen.message)
            append(db, "account-1", "Deposited", {"amount": 5}, live=rebuilder)
            if len(failed) == 2:
                reader.rollback()

    report = rebuilder.rebuild("account_balance", observer=write_and_let_go)
    assert len(failed) == 2
    assert report.attempts >= 3
    assert (report.events_applied, report.drift.total) == (102, 0)
    assert_equal_to_replay(db)


def test_a_long_reader_stops_no_other_readers(dsn, db, connect, spawn):
    """While somebody's open transaction keeps the fence waiting, other readers get through between its short attempts,
    99 of 100 within 300 ms, and the run says who it is (field case B36).
    """
    rebuilder = make_rebuilder(dsn, settings={"fence_nowait": 0.2, "heartbeat": 0.1})
    rebuilder.rebuild("account_balance")
    rows = (len(rows_of(db)),)
    sleeper = connect(application_name="long reader")
    sleeper.execute("SELECT count(*) FROM account_balance")
    queued, took, end, stop = [], [], [], threading.Event()

    def heard(seen):
        if seen.kind == "attempt" and seen.detail["failed_on"]:
            queued.append((seen.detail["blockers"], len(took)))

    def read(connection):
        begin = due = time.monotonic()
        while not stop.is_set():
            assert connection.execute("SELECT count(*) FROM account_balance").fetchone() == rows
            took.append(time.monotonic() - due)  # since it was due: a reader that had to wait is late for the next, too
            due += 0.01
            stop.wait(max(0.0, due - time.monotonic()))
        end.append(due - begin)

    running = spawn(rebuilder.rebuild, "account_balance", observer=heard)
    readers = [spawn(read, connect(autocommit=True)) for _ in range(2)]
    try:
        # In a queue behind one long wait for the lock they would not get on before the sleeper ends.
        wait_until(lambda: len([at for blockers, at in queued if blockers]) >= 3, 30, "three queued attempts")
        seen = len(took)
        wait_until(lambda: len(took) > seen + 20, what="the readers to get on")
        (status,) = rebuilder.status()
        assert [blocker["application"] for blocker in status.progress.blockers] == ["long reader"]
    finally:
        stop.set()
        sleeper.rollback()
    running.result(30)
    for reader in readers:
        reader.result(30)
    assert {blocker["application"] for blockers, _ in queued for blocker in blockers} == {"long reader"}
    assert all(later > earlier for (_, earlier), (_, later) in pairwise(queued))
    assert sorted(took)[int(len(took) * 0.99)] < 0.3


@pytest.mark.parametrize("moment", ["catch up", "freeze", "fence"])
@pytest.mark.parametrize("change, part", [
    ("ADD COLUMN note text", "note"), ("ALTER COLUMN changes TYPE bigint", "changes"),
    ("ALTER COLUMN changes DROP NOT NULL", "changes"), ("ALTER COLUMN balance SET DEFAULT 7", "balance"),
])
def test_a_column_that_comes_during_the_replay_is_not_swapped_away(dsn, db, moment, change, part):
    """A migration of live while the shadow is being built stops the run, by the column's name; the next one carries it
    (field case B37).
    """
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild("account_balance")
    done = []

    def migrate(run):
        if not done:
            db.execute(f"ALTER TABLE account_balance {change}")
        done.append(run.phase)

    rebuilder._seam.points[moment] = migrate
    with pytest.raises(LiveChanged, match=part) as caught:
        rebuilder.rebuild("account_balance")
    assert caught.value.exit_code == 1
    after = columns(db)
    del rebuilder._seam.points[moment]
    rebuilder.rebuild("account_balance")
    assert columns(db) == after
    assert_equal_to_replay(db)


def columns(db):
    return db.execute("SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
                      " WHERE table_schema = 'public' AND table_name = 'account_balance' ORDER BY 1").fetchall()


def test_a_row_that_somebody_inserted_by_hand_is_told_of(dsn, db):
    """It can't be replayed: with the stream's column declared the run stops and names it, without it the report does,
    and the retired table still has it (field case B38).
    """
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild("account_balance")
    db.execute("INSERT INTO account_balance VALUES ('by hand', 'somebody', 7, 1)")
    guarded = make_rebuilder(dsn, make_projection(stream_columns={"account_balance": "id"}))
    with pytest.raises(GuardTripped, match="by hand"):
        guarded.rebuild("account_balance")
    assert ("by hand", "somebody", 7, 1) in rows_of(db)
    report = rebuilder.rebuild("account_balance")
    assert (report.drift.missing, report.drift.sample[0].key) == (1, {"id": "by hand"})
    assert_equal_to_replay(db)
    assert ("by hand", "somebody", 7, 1) in rows_of(db, report.retired[0])


def test_an_application_s_own_serializable_writers_lose_nothing(dsn, db, connect):
    """A writer whose snapshot is older than the cut-over is told to repeat, and its event is not applied to a table
    that nobody reads any more (field case B27, seen from the writer).
    """
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild("account_balance")
    writer = connect()
    writer.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    writer.execute("SELECT count(*) FROM events")
    rebuilder.rebuild("account_balance")
    with pytest.raises(Exception, match="put in place after this transaction's snapshot") as caught:
        append(writer, "account-1", "Deposited", {"amount": 1}, live=rebuilder)
    assert caught.value.sqlstate == "40001"
    writer.rollback()
    append(writer, "account-1", "Deposited", {"amount": 1}, live=rebuilder)
    assert_equal_to_replay(db)
