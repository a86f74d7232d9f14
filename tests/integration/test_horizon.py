"""A settled horizon is the truth: below it nothing can still become visible, however appenders draw and commit."""

import psycopg
import pytest
from psycopg import sql

from rebuilder.errors import MissingPrivilege, RefusedError
from rebuilder.eventlog import Columns, Selection, TableLog
from tests.fix_threads import wait_for_lock, wait_until

COLUMNS = Columns(position="id", stream="stream", type="type", data="data")
ALL = Selection(("happened",))
APPEND = "INSERT INTO events (stream, type, data) VALUES ('a', 'happened', '{}') RETURNING id"
APPEND_AS = "INSERT INTO events (id, stream, type, data) VALUES (%s, 'a', 'happened', '{}')"
TABLE = "CREATE TABLE events (id bigserial PRIMARY KEY, stream text NOT NULL, type text NOT NULL, data jsonb NOT NULL)"

# The horizon without the sequence in V, as drafts had it.
NAIVE = """SELECT DISTINCT virtualtransaction FROM pg_locks
           WHERE relation = 'events'::regclass AND mode = 'RowExclusiveLock' AND pid <> pg_backend_pid()"""


@pytest.fixture
def reader(connect, bare_dsn):
    connection = connect(bare_dsn, autocommit=True)
    connection.execute(TABLE)
    return connection


@pytest.fixture
def writer(connect, bare_dsn, reader):
    return lambda: connect(bare_dsn)


@pytest.fixture
def log(reader):
    return TableLog("events", columns=COLUMNS).open(reader)


def positions(log, connection, upto=None):
    return [raw.position for raw in log.page(connection, ALL, after=None, upto=upto, limit=1000)]


def drawn(connection):
    return connection.execute("SELECT nextval('events_id_seq')").fetchone()[0]


def between(connection, after, action):
    """Call `action` right after the `after`-th statement of the connection, once."""
    seen = []

    class Interrupted(psycopg.Cursor):
        def execute(self, *args, **kwargs):
            result = super().execute(*args, **kwargs)
            seen.append(args[0])
            if len(seen) == after:
                action()
            return result

    connection.cursor_factory = Interrupted
    return seen


# --- who is waited for -----------------------------------------------------------------------------------------------


def test_an_id_drawn_before_the_insert_is_waited_for(log, reader, writer):
    appender = writer()
    early = drawn(appender)
    horizon = log.horizon(reader, own_pids=())
    assert horizon.position == early
    assert not horizon.settled(reader)
    assert reader.execute(NAIVE).fetchall() == [], "the naive version waits for nobody"
    naive_page = positions(log, reader, upto=early)  # … and takes this for complete

    appender.execute(APPEND_AS, [early])
    assert not horizon.settled(reader)
    appender.commit()
    assert horizon.settled(reader)
    assert (naive_page, positions(log, reader, upto=horizon.position)) == ([], [early])


def test_an_insert_rolled_back_to_a_savepoint_and_repeated_is_waited_for(log, reader, writer):
    appender = writer()
    early = drawn(appender)
    appender.execute("SAVEPOINT attempt")
    appender.execute(APPEND_AS, [early])
    appender.execute("ROLLBACK TO attempt")  # frees the lock on the table, not the one on the sequence
    horizon = log.horizon(reader, own_pids=())
    assert reader.execute(NAIVE).fetchall() == []
    assert not horizon.settled(reader)
    appender.execute(APPEND_AS, [early])
    appender.commit()
    assert horizon.settled(reader)


def test_nothing_is_below_the_horizon_of_a_sequence_that_was_never_used(log, reader, writer):
    assert reader.execute("SELECT last_value FROM events_id_seq").fetchone() == (1,), "what the naive version reads"
    horizon = log.horizon(reader, own_pids=())
    assert (horizon.position, horizon.settled(reader)) == (0, True)
    appender = writer()
    assert appender.execute(APPEND).fetchone() == (1,)
    assert positions(log, reader, upto=horizon.position) == []
    appender.commit()
    assert positions(log, reader, upto=horizon.position) == []


def test_who_draws_between_the_two_statements_is_in_the_second(log, reader, writer):
    appender = writer()
    statements = between(reader, 1, lambda: drawn(appender))
    horizon = log.horizon(reader, own_pids=())
    assert len(statements) == 2
    assert "pg_sequence_last_value" in statements[0]
    assert "pg_locks" in statements[1]
    assert (horizon.position, horizon.settled(reader)) == (0, False)


def test_the_other_order_of_the_statements_loses_an_event(log, reader, writer):
    appender = writer()
    pending = reader.execute(NAIVE).fetchall()
    early = drawn(appender)
    position = reader.execute("SELECT pg_sequence_last_value('events_id_seq')").fetchone()[0]
    assert (pending, position) == ([], early), "taken for settled, while the event of that position is still to come"
    assert not log.horizon(reader, own_pids=()).settled(reader)


def test_an_open_insert_is_waited_for_and_a_later_one_is_not(log, reader, writer):
    first, second = writer(), writer()
    first.execute(APPEND)
    horizon = log.horizon(reader, own_pids=())
    second.execute(APPEND)
    assert not horizon.settled(reader)
    first.rollback()
    assert horizon.settled(reader)
    assert horizon.position == 1


def test_a_prepared_transaction_stays_pending_and_is_named(log, reader, writer):
    appender = writer()
    appender.tpc_begin("transfer 17")
    appender.execute(APPEND)
    horizon = log.horizon(reader, own_pids=())
    appender.tpc_prepare()
    for look in (horizon, log.horizon(reader, own_pids=())):
        assert not look.settled(reader)
        (blocker,) = look.blockers(reader)
        assert (blocker.gid, blocker.pid) == ("transfer 17", None)
        assert blocker.user == reader.info.user
        assert "prepared transaction 'transfer 17'" in blocker.describe()
        assert blocker.age_seconds >= 0
    appender.tpc_commit()
    assert horizon.settled(reader)
    assert horizon.blockers(reader) == []


def test_a_transaction_prepared_before_the_horizon_is_pending(log, reader, writer):
    appender = writer()
    appender.tpc_begin("early")
    appender.execute(APPEND)
    appender.tpc_prepare()
    horizon = log.horizon(reader, own_pids=())
    naive = reader.execute(NAIVE).fetchall()
    assert naive == [], "pid <> pg_backend_pid() drops prepared transactions"
    assert not horizon.settled(reader)
    appender.tpc_rollback()
    assert horizon.settled(reader)


def test_a_database_from_the_same_template_is_another(connect, make_database, bare_template):
    original = make_database(bare_template)
    with connect(original) as connection:
        connection.execute(TABLE)
        name = connection.info.dbname
    twin = connect(make_database(name))
    reader = connect(original, autocommit=True)
    twin.execute(APPEND)
    assert twin.execute("SELECT 'events'::regclass::oid").fetchone() == reader.execute(
        "SELECT 'events'::regclass::oid").fetchone()
    assert len(reader.execute(NAIVE).fetchall()) == 1, "by the OID alone the other database's writer is in the way"
    horizon = TableLog("events", columns=COLUMNS).open(reader).horizon(reader, own_pids=())
    assert horizon.pending == frozenset()


@pytest.mark.parametrize("into", ["events", "events_1"])
def test_appends_to_a_partition_and_to_the_root_are_waited_for(connect, bare_dsn, into):
    reader, appender = connect(bare_dsn, autocommit=True), connect(bare_dsn)
    reader.execute("CREATE SEQUENCE given")
    reader.execute("CREATE TABLE events (id bigint PRIMARY KEY DEFAULT nextval('given'), stream text, type text,"
                   " data jsonb) PARTITION BY RANGE (id)")
    reader.execute("CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (1) TO (1000)")
    log = TableLog("events", columns=COLUMNS).open(reader)
    appender.execute(sql.SQL("INSERT INTO {} (stream, type, data) VALUES ('a', 'happened', '{{}}')").format(
        sql.Identifier(into)))
    horizon = log.horizon(reader, own_pids=())
    assert not horizon.settled(reader)
    appender.commit()
    assert horizon.settled(reader)


def test_a_partition_made_after_the_log_was_opened_counts(connect, bare_dsn):
    reader, appender = connect(bare_dsn, autocommit=True), connect(bare_dsn)
    reader.execute("CREATE SEQUENCE given")
    reader.execute("CREATE TABLE events (id bigint PRIMARY KEY DEFAULT nextval('given'), stream text, type text,"
                   " data jsonb) PARTITION BY RANGE (id)")
    log = TableLog("events", columns=COLUMNS).open(reader)
    reader.execute("CREATE TABLE late PARTITION OF events FOR VALUES FROM (1) TO (1000) PARTITION BY RANGE (id)")
    reader.execute("CREATE TABLE late_leaf PARTITION OF late FOR VALUES FROM (1) TO (1000)")
    # An explicit id leaves the sequence alone: only the lock on the leaf shows this appender.
    appender.execute("INSERT INTO late_leaf VALUES (7, 'a', 'happened', '{}')")
    assert not log.horizon(reader, own_pids=()).settled(reader)
    appender.rollback()
    assert log.horizon(reader, own_pids=()).settled(reader)


def test_appends_behind_a_view_are_waited_for(reader, writer):
    reader.execute("CREATE VIEW seen AS SELECT id, stream, type, data FROM events WHERE type <> 'noise'")
    log = TableLog("seen", columns=COLUMNS).open(reader)
    appender = writer()
    appender.execute(APPEND)
    assert reader.execute(NAIVE.replace("'events'", "'seen'")).fetchall() == [], "nobody locks a view"
    horizon = log.horizon(reader, own_pids=())
    assert not horizon.settled(reader)
    appender.commit()
    assert horizon.settled(reader)


def test_our_own_connections_are_not_waited_for(log, reader, writer):
    ours = writer()
    ours.execute(APPEND)
    assert log.horizon(reader, own_pids=[ours.info.backend_pid]).settled(reader)
    assert log.horizon(ours, own_pids=()).settled(ours)
    assert not log.horizon(reader, own_pids=()).settled(reader)


def test_a_session_that_is_idle_in_a_transaction_of_another_kind_is_not_waited_for(log, reader, writer):
    leaked, looking, appender = writer(), writer(), writer()
    leaked.execute("SELECT pg_advisory_xact_lock(1)")
    looking.execute("SELECT count(*) FROM events")
    for _ in range(50):
        appender.execute(APPEND)
        appender.rollback()
    horizon = log.horizon(reader, own_pids=())
    assert (horizon.position, horizon.settled(reader)) == (50, True)


# --- holes -----------------------------------------------------------------------------------------------------------


def test_numbers_that_were_rolled_back_are_no_target(log, reader, writer):
    appender = writer()
    for _ in range(10):
        appender.execute(APPEND)
    appender.commit()
    for _ in range(3):
        appender.execute(APPEND)
        appender.rollback()
    horizon = log.horizon(reader, own_pids=())
    assert (horizon.position, horizon.settled(reader)) == (13, True)
    assert log.totals(reader, ALL) == (10, 10, 10)
    assert positions(log, reader, upto=horizon.position)[-1] == 10
    assert log.count(reader, ALL, above=10, upto=horizon.position) == 0


def test_a_hole_that_a_killed_client_left_is_passed(log, reader, writer):
    appender = writer()
    drawn(appender)
    horizon = log.horizon(reader, own_pids=())
    assert not horizon.settled(reader)
    reader.execute("SELECT pg_terminate_backend(%s, 5000)", [appender.info.backend_pid])
    wait_until(lambda: horizon.settled(reader), what="the killed client's transaction to end")
    other = writer()
    other.execute(APPEND)
    other.commit()
    assert positions(log, reader, upto=log.horizon(reader, own_pids=()).position) == [2]


def test_a_held_number_between_a_dead_one_and_committed_ones_is_read(log, reader, writer):
    appender, holder = writer(), writer()
    for _ in range(8):
        appender.execute(APPEND)
    appender.commit()
    appender.execute(APPEND)
    appender.rollback()
    assert holder.execute(APPEND).fetchone() == (10,)
    for _ in range(2):
        appender.execute(APPEND)
    appender.commit()
    horizon = log.horizon(reader, own_pids=())
    assert (horizon.position, horizon.settled(reader)) == (12, False)
    behind_the_hole = log.page(reader, ALL, after=(9,), upto=horizon.position, limit=10)
    assert [raw.position for raw in behind_the_hole] == [11, 12], "what a reader that does not wait would take"
    holder.commit()
    assert horizon.settled(reader)
    complete = log.page(reader, ALL, after=(9,), upto=horizon.position, limit=10)
    assert [raw.position for raw in complete] == [10, 11, 12]


def test_a_commit_between_the_horizon_and_the_page_is_not_taken_for_all(log, reader, writer):
    appender, other = writer(), writer()
    appender.execute(APPEND)
    horizon = log.horizon(reader, own_pids=())
    other.execute(APPEND)
    other.commit()
    assert horizon.position == 1
    assert positions(log, reader, upto=horizon.position) == [], "the page keeps to its bound"
    appender.commit()
    assert horizon.settled(reader)
    assert positions(log, reader, upto=horizon.position) == [1]


# --- who is in the way -----------------------------------------------------------------------------------------------


def test_a_blocker_is_described(connect, bare_dsn, log, reader):
    appender = connect(bare_dsn, application_name="import job")
    appender.execute("INSERT INTO events (stream, type, data)\n   SELECT 'a', 'happened', '{}'"
                     " FROM generate_series(1, 5) AS numbers(n) WHERE n > 0")
    (blocker,) = log.horizon(reader, own_pids=()).blockers(reader)
    assert blocker.pid == appender.info.backend_pid
    assert (blocker.user, blocker.application, blocker.state) == (
        appender.info.user, "import job", "idle in transaction")
    assert len(blocker.query) == 80
    assert not blocker.waiting_on_us
    text = blocker.describe()
    assert f"pid {blocker.pid} (user {blocker.user}, application import job, idle in transaction for " in text
    assert "INSERT INTO events (stream, type, data) SELECT" in text
    assert blocker.to_json()["application"] == "import job"


def test_the_oldest_blocker_comes_first(log, reader, writer):
    first, second = writer(), writer()
    first.execute(APPEND)
    second.execute(APPEND)
    blockers = log.horizon(reader, own_pids=()).blockers(reader)
    assert [b.pid for b in blockers] == [first.info.backend_pid, second.info.backend_pid]


def test_a_blocker_that_waits_for_us_is_known(log, reader, writer, spawn):
    ours, appender = writer(), writer()
    ours.execute("SELECT pg_advisory_xact_lock(7)")
    appender.execute(APPEND)
    waiting = spawn(appender.execute, "SELECT pg_advisory_xact_lock(7)")
    wait_for_lock(reader, appender.info.backend_pid)
    (blocker,) = log.horizon(reader, own_pids=[ours.info.backend_pid]).blockers(reader)
    assert blocker.waiting_on_us
    assert "waits for this run itself" in blocker.describe()
    (stranger,) = log.horizon(reader, own_pids=()).blockers(reader)
    assert not stranger.waiting_on_us or stranger.pid == ours.info.backend_pid
    ours.rollback()
    waiting.result(10)
    appender.rollback()


def test_what_the_role_may_not_see_is_said(connect, bare_dsn, role, reader, writer):
    watcher = role()
    reader.execute(sql.SQL("GRANT SELECT ON events TO {}; GRANT SELECT ON SEQUENCE events_id_seq TO {}").format(
        sql.Identifier(watcher.name), sql.Identifier(watcher.name)))
    connection = connect(watcher.dsn(bare_dsn), autocommit=True)
    log = TableLog("events", columns=COLUMNS).open(connection)
    appender = writer()
    appender.execute(APPEND)
    (blocker,) = log.horizon(connection, own_pids=()).blockers(connection)
    assert blocker.hidden
    assert blocker.query is None
    assert blocker.pid == appender.info.backend_pid
    assert "GRANT pg_read_all_stats" in blocker.describe()


# --- what changes under way ------------------------------------------------------------------------------------------


def test_a_privilege_taken_away_is_an_error_and_not_an_empty_sequence(connect, bare_dsn, role, reader, writer):
    watcher = role()
    reader.execute(sql.SQL("GRANT SELECT ON events TO {}; GRANT SELECT ON SEQUENCE events_id_seq TO {}").format(
        sql.Identifier(watcher.name), sql.Identifier(watcher.name)))
    connection = connect(watcher.dsn(bare_dsn), autocommit=True)
    log = TableLog("events", columns=COLUMNS).open(connection)
    reader.execute(sql.SQL("REVOKE SELECT ON SEQUENCE events_id_seq FROM {}").format(sql.Identifier(watcher.name)))
    with pytest.raises(MissingPrivilege, match="events_id_seq"):
        log.horizon(connection, own_pids=())


def test_a_sequence_that_begins_to_cache_is_refused(log, reader):
    reader.execute("ALTER SEQUENCE events_id_seq CACHE 20")
    with pytest.raises(RefusedError, match="CACHE 20"):
        log.horizon(reader, own_pids=())


def test_a_sequence_that_is_dropped_is_refused(log, reader):
    reader.execute("DROP SEQUENCE events_id_seq CASCADE")
    with pytest.raises(RefusedError, match="is gone"):
        log.horizon(reader, own_pids=())


def test_looks_inside_a_transaction_keep_no_lock_and_draw_no_transaction_id(log, reader, writer):
    main, appender = writer(), writer()
    appender.execute(APPEND)
    main.execute("SELECT 1")
    horizon = log.horizon(main, own_pids=())
    horizon.settled(main)
    horizon.blockers(main)
    log.page(main, ALL, after=None, upto=None, limit=10)
    log.tail(main, ALL, above=0)
    log.count(main, ALL)
    log.keys(main, ALL, above=0)
    log.totals(main, ALL)
    log.state(main)
    log.read_plan(main, ALL)
    TableLog("events", columns=COLUMNS).open(main)
    held = reader.execute("SELECT relation::regclass::text, mode FROM pg_locks"
                          " WHERE pid = %s AND locktype <> 'virtualxid'", [main.info.backend_pid]).fetchall()
    assert held == []
    assert main.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
    assert main.execute("SHOW enable_sort").fetchone() == ("on",)
    assert main.execute("SHOW row_security").fetchone() == ("on",)


def test_without_a_horizon_the_highest_visible_position_stands_for_it(connect, bare_dsn):
    reader, appender = connect(bare_dsn, autocommit=True), connect(bare_dsn)
    reader.execute("CREATE TABLE events (id bigint PRIMARY KEY, stream text, type text, data jsonb)")
    reader.execute("INSERT INTO events VALUES (5, 'a', 'happened', '{}')")
    log = TableLog("events", columns=COLUMNS, completeness="count").open(reader)
    assert not log.complete
    appender.execute("INSERT INTO events VALUES (3, 'a', 'happened', '{}')")
    horizon = log.horizon(reader, own_pids=())
    assert (horizon.position, horizon.settled(reader)) == (5, False)
