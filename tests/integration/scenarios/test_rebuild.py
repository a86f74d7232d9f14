"""What a rebuild leaves behind when nothing disturbs it."""

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from rebuilder import Health, SqlHandlers
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_handlers,
    make_log,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)

ARCHIVED = "EXISTS (SELECT FROM archived_stream a WHERE a.stream = event.stream)"


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    return connection


def status(rebuilder, name="account_balance"):
    (found,) = rebuilder.status(name)
    return found


def deposits(db, stream, *amounts):
    for amount in amounts:
        append(db, stream, "Deposited", {"amount": amount})


def counting(calls):
    """The bank's handlers, which also note the position of each event that they are given."""
    inner, handlers = make_handlers(), SqlHandlers()

    @handlers.on(*inner.types)
    def noted(event, target):
        calls.append(event.position)
        inner.handler(event.type)(event, target)

    return handlers


def test_an_empty_read_model_is_filled_from_the_log(dsn, db):
    """Three events become a row that has counted all three, and the position is the last one's (scenario 1)."""
    deposits(db, "a", 1, 2, 3)
    report = make_rebuilder(dsn).rebuild("account_balance")
    assert (report.events_applied, report.position) == (3, 3)
    assert rows_of(db) == [("a", None, 6, 3)]


def test_stale_rows_are_replaced_and_not_added_to(dsn, db):
    """A row that was wrong is what the events say afterwards, not the sum of both (scenario 2)."""
    deposits(db, "a", 1, 1)
    db.execute("INSERT INTO account_balance VALUES ('a', NULL, 999, 999)")
    report = make_rebuilder(dsn).rebuild("account_balance")
    assert rows_of(db) == [("a", None, 2, 2)]
    assert report.drift.changed == 1


def test_interleaved_streams_are_kept_apart(dsn, db):
    """Five events over two streams, interleaved, become three and two (scenario 3)."""
    for stream in "ababa":
        deposits(db, stream, 1)
    assert make_rebuilder(dsn).rebuild("account_balance").events_applied == 5
    assert rows_of(db) == [("a", None, 3, 3), ("b", None, 2, 2)]


def test_an_empty_log_is_no_error(dsn, db):
    """Without any event the rebuild completes at position 0 (scenario 4)."""
    report = make_rebuilder(dsn).rebuild("account_balance")
    assert (report.events_applied, report.position, report.rows) == (0, 0, {"public.account_balance": 0})
    assert status(make_rebuilder(dsn)).health is Health.READY


def test_archived_streams_are_neither_replayed_nor_counted(dsn, db):
    """Of two streams the archived one is left out, and no count misses it later (scenario 5)."""
    db.execute("CREATE TABLE archived_stream (stream text PRIMARY KEY)")
    deposits(db, "gone", 5)
    deposits(db, "kept", 7)
    db.execute("INSERT INTO archived_stream VALUES ('gone')")
    calls = []
    rebuilder = make_rebuilder(dsn, make_projection(handlers=counting(calls)), log=make_log(archived=ARCHIVED))
    report = rebuilder.rebuild("account_balance")
    assert (report.events_applied, report.attempts, calls) == (1, 1, [2])
    assert rows_of(db) == [("kept", None, 7, 1)]


def test_the_first_rebuild_leaves_a_complete_state(dsn, db):
    """A projection without any state is ready afterwards, with position and time, without a failure (scenario 6)."""
    deposits(db, "a", 1)
    assert db.execute("SELECT count(*) FROM rebuilder.projection_state").fetchone() == (0,)
    make_rebuilder(dsn).rebuild("account_balance")
    after = status(make_rebuilder(dsn))
    assert (after.health, after.position, after.generation, after.last_failure) == (Health.READY, 1, 1, None)
    assert after.rebuilt_at is not None


def test_time_position_and_generation_grow_with_each_rebuild(dsn, db):
    """A second rebuild after another event is later and further than the first (scenario 7)."""
    rebuilder = make_rebuilder(dsn)
    deposits(db, "a", 1)
    rebuilder.rebuild("account_balance")
    first = status(rebuilder)
    deposits(db, "a", 1)
    rebuilder.rebuild("account_balance")
    second = status(rebuilder)
    assert second.rebuilt_at > first.rebuilt_at
    assert (first.position, first.generation, second.position, second.generation) == (1, 1, 2, 2)


def test_a_recipe_without_events_leaves_its_table_as_it_was_made(dsn, db):
    """Subscribing to nothing is legal: the index has its name in the live schema, and no schema of the run is left
    (scenario 17).
    """
    db.execute("CREATE INDEX account_balance_by_owner ON account_balance (owner)")
    report = make_rebuilder(dsn, make_projection(handlers=SqlHandlers())).rebuild("account_balance", retire="drop")
    assert report.events_applied == 0
    assert db.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'public' AND tablename = 'account_balance'"
                      " ORDER BY 1").fetchall() == [("account_balance_by_owner",), ("account_balance_pkey",)]
    assert db.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'rebuilder\\_%'").fetchall() == []


def test_what_an_earlier_run_left_is_not_taken_for_the_shadow(dsn, db):
    """A leftover table of the wrong shape in a work schema does no harm: live has its own columns (scenario 18)."""
    db.execute("CREATE SCHEMA rebuilder_work_left; CREATE TABLE rebuilder_work_left.account_balance (wrong int)")
    append_many(db, 50)
    make_rebuilder(dsn).rebuild("account_balance")
    assert assert_equal_to_replay(db) == 10
    assert db.execute("SELECT count(*) FROM rebuilder_work_left.account_balance").fetchone() == (0,)


def test_pooled_connections_survive_the_cut_over(dsn, db):
    """Prepared statements of a warm pool read and write the table that was swapped in, rebuild after rebuild
    (scenario 20).
    """
    rebuilder = make_rebuilder(dsn)
    with ConnectionPool(dsn, min_size=1, max_size=1, open=True, kwargs={"prepare_threshold": 0}) as pool:
        seen = []
        for amount in (1, 2, 3):
            with pool.connection() as connection:
                append(connection, "a", "Deposited", {"amount": amount}, live=rebuilder)
                seen.append(connection.execute("SELECT balance FROM account_balance", prepare=True).fetchone()[0])
                oid = connection.execute("SELECT 'account_balance'::regclass::oid").fetchone()
            rebuilder.rebuild("account_balance")
            assert db.execute("SELECT 'account_balance'::regclass::oid").fetchone() != oid
    assert seen == [1, 3, 6]
    assert_equal_to_replay(db)


def test_a_quiet_rebuild_reads_and_applies_everything_once(dsn, db):
    """Without anybody else there is one shadow, one attempt, and each handler call happens once (scenario 23)."""
    append_many(db, 2500)
    calls, shadows = [], []
    rebuilder = make_rebuilder(dsn, make_projection(handlers=counting(calls)))
    rebuilder._seam.points["build shadow"] = shadows.append
    report = rebuilder.rebuild("account_balance")
    assert (len(shadows), report.attempts, report.late_events) == (1, 1, 0)
    assert calls == list(range(1, 2501))


def test_the_same_log_gives_the_same_rows_every_time(dsn, db):
    """Ten thousand events, four fifths of which no handler writes for, rebuilt three times: the same each time
    (scenario 31, whose speed is in the benchmarks).
    """
    db.execute("INSERT INTO events (stream, type, data) SELECT 'a' || n % 2000,"
               " CASE WHEN n < 2000 THEN 'AccountOpened' ELSE 'Seen' END, jsonb_build_object('owner', n)"
               " FROM generate_series(0, 9999) AS n")
    handlers = make_handlers()
    handlers.on("Seen")(lambda event, target: None)
    rebuilder = make_rebuilder(dsn, make_projection(handlers=handlers))
    for drifted in (2000, 0, 0):
        report = rebuilder.rebuild("account_balance")
        assert (report.events_applied, report.drift.total) == (10_000, drifted)
    assert assert_equal_to_replay(db) == 2000


def test_a_rebuild_needs_no_connection_of_a_pool(dsn, db):
    """A pool lends its conninfo only: its dead connections don't matter, so nothing has to be tried again
    (scenario 113).
    """
    append_many(db, 50)
    with ConnectionPool(dsn, min_size=1, max_size=1, open=True) as pool:
        pool.wait()
        rebuilder = make_rebuilder(pool)
        with pool.connection() as connection:
            pid = connection.info.backend_pid
        db.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        assert rebuilder.rebuild("account_balance").events_applied == 50
        assert status(rebuilder).health is Health.READY
        with pytest.raises(psycopg.OperationalError), pool.connection() as connection:
            connection.execute("SELECT 1")  # what a reader that used the pool would have met
