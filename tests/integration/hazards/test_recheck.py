"""The log under the run's feet: hazard H7, and late events (position order, stream order)."""

import pytest

from rebuilder.errors import LogChanged
from tests.bank import append, assert_equal_to_replay, make_log, make_projection, make_rebuilder, rows_of
from tests.fix_threads import wait_until
from tests.integration.hazards.schedule import NAME, PATIENT, Heard, Moments, deposit, insert_event, open_accounts


@pytest.fixture
def change(connect, watcher):
    """`change(statement)`: run it in a session of its own, and wait until the statistics have heard of it."""

    def run(statement):
        before = counters()
        session = connect(autocommit=True)
        session.execute(statement)
        session.close()  # its counters reach the statistics at its end
        if statement.startswith(("UPDATE events", "DELETE FROM events")):
            wait_until(lambda: counters() != before, what="the statistics")

    def counters():
        watcher.execute("SELECT pg_stat_clear_snapshot()")
        return watcher.execute("SELECT pg_stat_get_tuples_updated(oid), pg_stat_get_tuples_deleted(oid) FROM pg_class"
                               " WHERE oid = 'events'::regclass").fetchone()

    return run


# --- H7: the log must stay append-only -------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["freeze", "drain"])
@pytest.mark.parametrize("statement, what", [
    ("""UPDATE events SET data = '{"amount": 0}' WHERE id = 5""", "1 row was updated"),
    ("DELETE FROM events WHERE id = 5", "1 row was deleted"),
])
def test_an_old_event_that_is_corrected_or_deleted_ends_the_run_by_name(dsn, watcher, change, point, statement, what):
    """Its old content is in the shadow, below the horizon, where no check of positions looks again (hazard H7)."""
    rebuilder = make_rebuilder(dsn, settings=PATIENT)
    Moments(rebuilder).at(point, lambda run: change(statement))
    before = rows_of(watcher)
    with pytest.raises(LogChanged, match=what):
        rebuilder.rebuild(NAME)
    assert rows_of(watcher) == before
    rebuilder.rebuild(NAME)
    assert_equal_to_replay(watcher)


def test_an_event_replaced_by_another_leaves_the_count_right_and_the_set_wrong(dsn, watcher, change):
    """Below the horizon: one deleted and one inserted in its place; a count of the events passes (hazard H7,
    gh-ost#420, gh-ost#475).
    """
    rebuilder = make_rebuilder(dsn)

    def replace(run):
        (before,) = watcher.execute("SELECT count(*) FROM events").fetchone()
        change("DELETE FROM events WHERE id = 5")
        change("INSERT INTO events (id, stream, type, data) VALUES (5, 'a1', 'Deposited', '{\"amount\": 9999}')")
        assert watcher.execute("SELECT count(*) FROM events").fetchone() == (before,)

    Moments(rebuilder).at("freeze", replace)
    with pytest.raises(LogChanged, match="1 row was deleted"):
        rebuilder.rebuild(NAME)


def test_an_applied_event_of_the_tail_that_is_deleted_while_a_late_one_comes_gives_the_fence_back(
        dsn, connect, watcher, monkeypatch):
    """Applied 1, log 1, and the sets differ; with the counters of the server blind, the sets alone tell (hazard H7)."""
    from rebuilder.eventlog.state import LogState

    monkeypatch.setattr(LogState, "differences", lambda self, other: [])
    heard = Heard()
    rebuilder = make_rebuilder(dsn, settings=PATIENT, observer=heard)
    moments, late, dba = Moments(rebuilder), connect(), connect(autocommit=True)
    positions = []

    def one_visible_one_open(run):
        positions.append(insert_event(late, "a2", amount=500).position)
        positions.append(deposit(watcher, None, "a1", 300))

    def exchange(run):
        dba.execute("DELETE FROM events WHERE id = %s", (positions[1],))
        late.commit()
        assert dba.execute("SELECT count(*) FROM events WHERE id >= %s", (positions[0],)).fetchone() == (1,)

    moments.at("fence", one_visible_one_open)
    moments.at("recheck", exchange, nth=2)  # the first is before the fence
    rebuilder.rebuild(NAME)
    assert "1 applied events are gone" in heard.of("attempt")[0].message
    assert_equal_to_replay(watcher)


def test_a_partition_attached_below_the_horizon_ends_the_run_by_name(dsn, connect):
    """Its attacher holds no lock that the horizon waits for, and its events lie where nobody looks again (H7)."""
    watcher = connect(autocommit=True)
    watcher.execute("""
        CREATE TABLE events (id bigserial, stream text NOT NULL, category text NOT NULL DEFAULT 'account',
            type text NOT NULL, schema_version int NOT NULL DEFAULT 1, data jsonb NOT NULL DEFAULT '{}',
            recorded_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (id)) PARTITION BY RANGE (id);
        CREATE TABLE events_now PARTITION OF events FOR VALUES FROM (100) TO (1000);
        CREATE TABLE account_balance (id text PRIMARY KEY, owner text, balance bigint NOT NULL, changes int NOT NULL);
        SELECT setval('events_id_seq', 100);
        CREATE TABLE events_old (LIKE events INCLUDING ALL);
        INSERT INTO events_old (id, stream, type, data) VALUES (7, 'a1', 'Deposited', '{"amount": 7}')""")
    rebuilder = make_rebuilder(dsn)
    open_accounts(watcher, rebuilder)
    before = rows_of(watcher)
    Moments(rebuilder).at("fence", lambda run: watcher.execute(
        "ALTER TABLE events ATTACH PARTITION events_old FOR VALUES FROM (1) TO (100)"))
    with pytest.raises(LogChanged, match=r"table public\.events_old came to it"):
        rebuilder.rebuild(NAME)
    assert rows_of(watcher) == before
    rebuilder.rebuild(NAME)
    assert_equal_to_replay(watcher)


@pytest.mark.parametrize("archive", ["INSERT INTO archive VALUES ('a2')",
                                     "INSERT INTO archive VALUES ('a2'); DELETE FROM archive WHERE stream = 'a1'"])
def test_a_stream_archived_during_the_run_ends_it_by_name(dsn, watcher, archive):
    """Its events are in the shadow, and no row of the log has changed; that as many streams are archived as before
    proves nothing (hazard H7).
    """
    watcher.execute("CREATE TABLE archive (stream text PRIMARY KEY); INSERT INTO archive VALUES ('a1')")
    log = make_log(archived="EXISTS (SELECT FROM archive a WHERE a.stream = event.stream)")
    rebuilder = make_rebuilder(dsn, log=log)
    before = rows_of(watcher)
    Moments(rebuilder).at("freeze", lambda run: watcher.execute(archive))
    with pytest.raises(LogChanged, match="its archived streams changed"):
        rebuilder.rebuild(NAME)
    assert rows_of(watcher) == before


# --- late events -----------------------------------------------------------------------------------------------------


def test_events_that_nobody_wants_and_that_never_stop_are_no_reason_to_begin_again(dsn, connect, watcher, spawn):
    """Appenders that never touch live go on under the fence: one statement compares sets, so none is late (H7)."""
    rebuilder, end = make_rebuilder(dsn), []

    def other_events(connection):
        n = 0
        while not end:
            append(connection, "x", "NobodyWantsIt")
            n += 1
        return n

    appender = spawn(other_events, connect(autocommit=True))
    try:
        report = rebuilder.rebuild(NAME)
    finally:
        end.append(True)
    assert appender.result(10) > 0
    assert (report.attempts, report.late_events) == (1, 0)
    assert_equal_to_replay(watcher)


@pytest.mark.parametrize("order", [None, "stream"])
@pytest.mark.parametrize("stream", ["a1", "a2"])
def test_a_late_event_is_applied_under_the_fence_only_if_no_later_one_that_counts_has_been(
        dsn, connect, watcher, order, stream):
    """Owner is whoever was named last. In stream order an event of another stream may come late; one of the same
    stream, or any in position order, gives the fence back and is read in its place.
    """
    heard = Heard()
    rebuilder = make_rebuilder(dsn, make_projection(order=order), settings=PATIENT, observer=heard)
    moments, late = Moments(rebuilder), connect()

    def one_open_and_a_later_one_visible(run):
        insert_event(late, "a1", "OwnerRenamed", owner="the earlier name")
        append(watcher, stream, "OwnerRenamed", {"owner": "the later name"})

    moments.at("fence", one_open_and_a_later_one_visible)
    moments.at("recheck", lambda run: late.commit(), nth=2)
    report = rebuilder.rebuild(NAME)
    in_time = order == "stream" and stream == "a2"
    assert (report.late_events, len(heard.of("attempt"))) == ((1, 0) if in_time else (0, 1))
    assert_equal_to_replay(watcher)


def test_an_event_that_comes_between_drain_and_recheck_is_applied(dsn, watcher):
    """A later position than all that was applied is late, and in order (hazard H7)."""
    rebuilder = make_rebuilder(dsn, settings=PATIENT)
    Moments(rebuilder).at("recheck", lambda run: deposit(watcher, None, "a2", 44), nth=2)
    report = rebuilder.rebuild(NAME)
    assert (report.late_events, report.attempts) == (1, 1)
    assert_equal_to_replay(watcher)
