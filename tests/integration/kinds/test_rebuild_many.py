"""Several projections rebuilt beside each other: one pass over the log, and each for itself otherwise."""

import threading

import pytest

from rebuilder import Fold, Projection, RebuildCancelled, RebuildError, RebuildReport, SqlHandlers, StopToken
from rebuilder.errors import HandlerFailed, UnknownProjection
from rebuilder.eventlog import OpenLog
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)
from tests.kinds import make_batch, make_fold


@pytest.fixture
def db(connect, dsn):
    connection = connect(dsn, autocommit=True)
    make_schema(connection)
    connection.execute("CREATE TABLE by_type (type text PRIMARY KEY, n bigint);"
                       "CREATE TABLE in_batch (LIKE account_balance INCLUDING ALL)")
    return connection


def by_type(name="by_type", **overrides):
    fold = Fold()

    @fold.on("Deposited", "Withdrawn", key=lambda event: event.type)
    def count(row, event):
        return {"n": (row["n"] if row else 0) + 1}

    return Projection(name, **{"version": 1, "tables": ["by_type"], "handlers": fold, **overrides})


COUNTED = "SELECT type, count(*) FROM events WHERE type IN ('Deposited', 'Withdrawn') GROUP BY type ORDER BY type"


@pytest.fixture
def read(monkeypatch):
    """How many events pages had, by the connection's role."""
    pages, lock, page = {}, threading.Lock(), OpenLog.page

    def counted(self, connection, *args, **kwargs):
        found = page(self, connection, *args, **kwargs)
        role = connection.info.parameter_status("application_name").rpartition(":")[2]
        with lock:
            pages[role] = pages.get(role, 0) + len(found)
        return found

    monkeypatch.setattr(OpenLog, "page", counted)
    return pages


def test_the_bulk_is_read_once_for_all(db, dsn, read):
    """Two projections that subscribe to overlapping events: each event crosses the wire once."""
    append_many(db, 3000, accounts=50)
    rebuilder = make_rebuilder(dsn, make_projection(), by_type(), settings={"batch": 100, "fold_page": 250})
    reports = rebuilder.rebuild_many("account_balance", "by_type")
    assert [report.events_applied for report in reports.values()] == [3000, db.execute(
        "SELECT count(*) FROM events WHERE type IN ('Deposited', 'Withdrawn')").fetchone()[0]]
    assert read == {"pass": 3000, "reader": 0}
    assert_equal_to_replay(db)
    assert rows_of(db, "by_type") == db.execute(COUNTED).fetchall()


def test_what_commits_meanwhile_each_reads_by_itself(db, dsn):
    """Late events, between the horizons and behind them, are in every projection once."""
    append_many(db, 500, accounts=20)
    rebuilder = make_rebuilder(dsn, make_projection(handlers=make_fold()), by_type())
    rebuilder.rebuild_many()
    lock = threading.Lock()

    def appends(run):
        with lock:
            append(db, "account-1", "Deposited", {"amount": 7}, live=rebuilder)

    rebuilder._seam.points.update({"catch up": appends, "freeze": appends, "fence": appends})
    reports = rebuilder.rebuild_many()
    assert [type(report) for report in reports.values()] == [RebuildReport] * 2, reports
    rebuilder._seam.points.clear()
    assert_equal_to_replay(db)
    assert rows_of(db, "by_type") == db.execute(COUNTED).fetchall()


def test_one_fails_alone_and_what_depends_on_it_is_left(db, dsn):
    """The others have cut over; nobody waits for the one that is gone, wherever it ended."""
    append_many(db, 500, accounts=20)
    failing = SqlHandlers()

    @failing.on("Deposited")
    def fail(event, target):
        if event.position > 300:
            raise ValueError("no")

    db.execute("CREATE TABLE failing (id int PRIMARY KEY); CREATE TABLE missing (id int);"
               "CREATE TABLE after (type text PRIMARY KEY, n bigint)")
    after = by_type("after", tables=["after"], depends_on=["failing"])
    keyless = Projection("missing", version=1, tables=["missing"], handlers=make_batch())
    rebuilder = make_rebuilder(
        dsn, make_projection(), by_type(), Projection("failing", version=1, tables=["failing"], handlers=failing),
        after, keyless)
    ended = rebuilder.rebuild_many()
    assert isinstance(ended["failing"], HandlerFailed)
    assert isinstance(ended["after"], RebuildError)
    assert "depends on failing" in ended["after"].message
    assert not isinstance(ended["missing"], RebuildReport)
    assert_equal_to_replay(db)
    assert rows_of(db, "by_type") == db.execute(COUNTED).fetchall()
    assert rows_of(db, "after") == []


def test_a_kind_that_the_server_reads_for_takes_no_part_in_the_pass(db, dsn, read):
    """BatchSql beside a fold: the pass does not wait for it."""
    append_many(db, 400, accounts=20)
    batch = make_batch()
    batch.statements = tuple(text.replace("account_balance", "in_batch") for text in batch.statements)
    rebuilder = make_rebuilder(dsn, make_projection(), make_projection("in_batch", tables=["in_batch"], handlers=batch))
    ended = rebuilder.rebuild_many()
    assert [one.events_applied for one in ended.values()] == [400, 400]
    assert read["pass"] == 400
    assert rows_of(db, "in_batch") == rows_of(db)


def test_a_stop_ends_them_all(db, dsn):
    """Each is cancelled, and live is as it was."""
    append_many(db, 2000, accounts=20)
    stop = StopToken()
    rebuilder = make_rebuilder(dsn, make_projection(), by_type(), settings={"batch": 10, "fold_page": 10})
    ended = rebuilder.rebuild_many(
        stop=stop, observer=lambda seen: seen.kind == "progress" and stop.request("the test"))
    assert {type(error) for error in ended.values()} == {RebuildCancelled}
    assert rows_of(db) == []


def test_an_unknown_name_is_refused_before_anything_runs(db, dsn):
    rebuilder = make_rebuilder(dsn, make_projection(), by_type())
    with pytest.raises(UnknownProjection):
        rebuilder.rebuild_many("account_balance", "by_typ")
