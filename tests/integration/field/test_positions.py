"""Field cases about gaps, late commits and paging: positions are no counter, and time is no order."""

import signal
import subprocess
import sys
import tracemalloc

import psycopg
import pytest

from rebuilder import Columns, SqlHandlers, TableLog
from rebuilder.eventlog import Selection
from rebuilder.eventlog.open_log import OpenLog
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
    return connection


def deposits(db, count, live=None):
    return [append(db, "a", "Deposited", {"amount": 1}, live=live) for _ in range(count)]


def roll_back(dsn, count):
    """Draw positions that never will be: one rolled-back append each."""
    for _ in range(count):
        with psycopg.connect(dsn) as connection:
            connection.execute("INSERT INTO events (stream, type) VALUES ('a', 'Deposited')")
            connection.rollback()


def change(dsn, watcher, statement, counter):
    """Change the log itself before a run, which would take it for a change during the run until the server's statistics
    have it: they are flushed when the connection ends.
    """
    with psycopg.connect(dsn) as connection:
        changed = connection.execute(statement).rowcount
    counted = f"SELECT {counter} FROM pg_stat_user_tables WHERE relname = 'events'"
    wait_until(lambda: watcher.execute(counted).fetchone() == (changed,), what="the statistics")


def when_waiting(action):
    """An observer that acts once the run says that the horizon stands still; what it heard of the blockers."""
    heard = []

    def observer(seen):
        if seen.kind == "waiting":
            heard.extend(blocker["pid"] for blocker in seen.detail["blockers"])
            action()

    return observer, heard


def test_a_position_that_was_passed_while_invisible_is_not_lost(dsn, db, connect):
    """100 is drawn and open while 101 is committed and applied: once 100 commits it is in the result (field case B01).
    """
    db.execute("SELECT setval('events_id_seq', 99)")
    rebuilder = make_rebuilder(dsn)
    slow = connect()

    def draw_both(run):
        slow.execute("SELECT 1")
        assert append(slow, "slow", "Deposited", {"amount": 1}, live=rebuilder) == 100
        assert append(db, "fast", "Deposited", {"amount": 1}, live=rebuilder) == 101

    rebuilder._seam.points["freeze"] = draw_both  # the bulk has been read by then
    observer, heard = when_waiting(slow.commit)
    rebuilder.rebuild("account_balance", observer=observer)
    assert heard == [slow.info.backend_pid]
    assert rows_of(db) == [("fast", None, 1, 1), ("slow", None, 1, 1)]


def test_a_log_that_begins_at_thirty_million_costs_no_more(dsn, db, monkeypatch):
    """Positions that never were are no work: as many pages are read and as little memory is used as from position 1
    (field case B03).
    """
    pages, page = [], OpenLog.page
    monkeypatch.setattr(OpenLog, "page", lambda *args, **kwargs: (pages.append(kwargs), page(*args, **kwargs))[1])
    rebuilder = make_rebuilder(dsn)

    def cost():
        pages.clear()
        tracemalloc.start()
        report = rebuilder.rebuild("account_balance")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return report.position, len(pages), peak

    deposits(db, 1)
    rebuilder.rebuild("account_balance")  # so that neither of the two warms what the other finds warm
    first, read, used = cost()
    db.execute("SELECT setval('events_id_seq', 30000000)")
    change(dsn, db, "UPDATE events SET id = 30000000", "n_tup_upd")
    far, read_far, used_far = cost()
    assert (first, far) == (1, 30_000_000)
    assert read_far == read
    assert used_far < used + 2_000_000
    assert rows_of(db) == [("a", None, 1, 1)]


def test_rolled_back_positions_at_the_end_are_no_target(dsn, db):
    """After ten events and three appends that were rolled back the rebuild ends, and nothing lags (field case B08)."""
    deposits(db, 10)
    roll_back(dsn, 3)
    rebuilder = make_rebuilder(dsn, make_projection(feeding="async"))
    assert rebuilder.rebuild("account_balance").events_applied == 10
    (after,) = rebuilder.status()
    assert (after.lag, after.high_water_mark) == (0, 10)
    deposits(db, 1)
    assert rebuilder.status()[0].lag == 1
    assert rebuilder.rebuild("account_balance").position == 14


CLIENT = """
import sys, time, psycopg
connection = psycopg.connect(sys.argv[1])
connection.execute("INSERT INTO events (stream, type) VALUES ('dead', 'Deposited')")
print(connection.info.backend_pid, flush=True)
time.sleep(600)
"""


def test_a_client_that_is_killed_in_its_append_holds_nobody_up(dsn, db):
    """The run names the client that it waits for; killed with a position drawn, it leaves a hole that is passed at
    once (field case B09).
    """
    deposits(db, 2)
    client = subprocess.Popen([sys.executable, "-c", CLIENT, dsn], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(client.stdout.readline())
        deposits(db, 2)
        observer, heard = when_waiting(lambda: client.send_signal(signal.SIGKILL))
        report = make_rebuilder(dsn).rebuild("account_balance", observer=observer)
    finally:
        client.kill()
        client.wait(10)
        client.stdout.close()
    assert heard == [pid]
    assert (report.events_applied, report.position) == (4, 5)
    assert_equal_to_replay(db)


def test_a_checkpoint_that_stands_on_a_hole_hides_nothing_behind_it(dsn, db, connect):
    """1 to 8 committed, 9 rolled back, 10 open, 11 and 12 committed, the follower at 9: when 10 commits it is in the
    result, and the follower goes on behind 12 (field case B10).
    """
    rebuilder = make_rebuilder(dsn, make_projection(feeding="async"))
    rebuilder.rebuild("account_balance")
    deposits(db, 8)
    roll_back(dsn, 1)
    db.execute("UPDATE rebuilder.follower_checkpoint SET position = 9")
    slow = connect()
    slow.execute("SELECT 1")
    assert deposits(slow, 1) == [10]
    assert deposits(db, 2) == [11, 12]
    observer, heard = when_waiting(slow.commit)
    report = rebuilder.rebuild("account_balance", observer=observer)
    assert heard == [slow.info.backend_pid]
    assert (report.events_applied, report.position) == (11, 12)
    assert rows_of(db) == [("a", None, 11, 11)]
    assert db.execute("SELECT position FROM rebuilder.follower_checkpoint").fetchone() == (12,)


def test_what_commits_between_a_bound_and_its_pages_is_read_later(dsn, db, monkeypatch):
    """Events that appear after the horizon was taken, before each page is read, are not in those pages, and all are in
    the result once (field case B10, the second half).
    """
    append_many(db, 100)
    rebuilder = make_rebuilder(dsn, settings={"batch": 10})
    page, appended = OpenLog.page, []

    def page_after_a_commit(log, connection, selection, **bounds):
        if len(appended) < 15:
            appended.append(append(db, f"new-{len(appended)}", "Deposited", {"amount": 1}, live=rebuilder))
        found = page(log, connection, selection, **bounds)
        assert all(raw.position <= bounds["upto"] for raw in found)
        return found

    monkeypatch.setattr(OpenLog, "page", page_after_a_commit)
    report = rebuilder.rebuild("account_balance")
    assert appended[0] == 101
    assert report.events_applied == 100 + len(appended)
    assert_equal_to_replay(db)


def test_the_next_page_begins_behind_the_last_row(dsn, db):
    """With a stream deleted in the middle, and pages of one event, nothing is read twice and nothing stands still
    (field case B16).
    """
    append_many(db, 12, accounts=3)
    change(dsn, db, "DELETE FROM events WHERE stream = 'account-1'", "n_tup_del")
    inner, handlers, positions = make_handlers(), SqlHandlers(), []

    @handlers.on(*inner.types)
    def noted(event, target):
        positions.append(event.position)
        inner.handler(event.type)(event, target)

    report = make_rebuilder(dsn, make_projection(handlers=handlers), settings={"batch": 1}).rebuild("account_balance")
    assert positions == [1, 3, 4, 6, 7, 9, 10, 12]
    assert (report.events_applied, report.position) == (8, 12)
    assert_equal_to_replay(db)


@pytest.mark.parametrize("moment", ["freeze", "fence"])
def test_a_writer_s_clock_decides_nothing(dsn, db, moment):
    """An event that says it is an hour old, appended while the run catches up, is read like any other (field case B18).
    """
    rebuilder = make_rebuilder(dsn)
    deposits(db, 3, live=rebuilder)
    late = []

    def append_late(run):
        if not late:
            (hour_ago,) = db.execute("SELECT now() - interval '1 hour'").fetchone()
            late.append(append(db, "a", "Deposited", {"amount": 1}, live=rebuilder, recorded_at=hour_ago))

    rebuilder._seam.points[moment] = append_late
    assert rebuilder.rebuild("account_balance").events_applied == 4
    assert rows_of(db) == [("a", None, 4, 4)]


def test_a_page_deep_in_the_log_costs_what_the_first_one_does(dsn, connect):
    """Where tenants count for themselves the keyset is a pair: the page is a range of its index, and not a walk from
    the start that an OR of two comparisons would be (field case B62).
    """
    db = connect(autocommit=True)
    db.execute("CREATE TABLE events (id bigserial, tenant text, stream text, type text, data jsonb DEFAULT '{}',"
               " PRIMARY KEY (id, tenant));"
               "INSERT INTO events (tenant, stream, type) SELECT 't', 's', 'Happened' FROM generate_series(1, 30000)")
    db.execute("VACUUM ANALYZE events")
    log = TableLog("events", columns=Columns(position="id", tenant="tenant", stream="stream", type="type", data="data"))
    opened, selection = log.open(db), Selection(("Happened",), ())

    def blocks(statement):
        plan = db.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}").fetchone()[0][0]["Plan"]
        return plan, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    def page(position):
        return blocks(opened.statements.page(selection, after=(position, "t"), limit=100).as_string(db))

    plan, deep = page(15_000)
    _, first = page(100)
    assert "Index Scan" in plan["Plans"][0]["Node Type"]
    assert "ROW(id, tenant) > ROW(" in plan["Plans"][0]["Index Cond"].replace("event.", "")
    assert deep <= first + 3
    _, naive = blocks("SELECT * FROM events WHERE (id > 15000 OR (id = 15000 AND tenant > 't')) AND type = 'Happened'"
                      " ORDER BY id, tenant LIMIT 100")
    assert naive > 10 * deep
