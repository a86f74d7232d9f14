"""Which events a rebuild counts on, and where a follower goes on: hazards C1, C2, H8, M8, R2(a), R3."""

import pytest

from rebuilder import ExternalCheckpoint
from rebuilder.errors import HorizonBlocked
from rebuilder.eventlog.horizon import Horizon
from rebuilder.eventlog.open_log import OpenLog
from tests.bank import (
    append,
    assert_equal_to_replay,
    make_projection,
    make_rebuilder,
    make_schema,
    replay_in_sql,
    rows_of,
)
from tests.fix_threads import wait_until
from tests.integration.hazards.schedule import NAME, Heard, Moments, deposit, insert_event

WITH_ID = "INSERT INTO events (id, stream, type, data) VALUES (%s, 'a1', 'Deposited', '{\"amount\": 100}')"
ADVANCE = "UPDATE rebuilder.follower_checkpoint SET position = %s WHERE projection = 'account_balance'"


def draw(connection):
    return connection.execute("SELECT nextval('events_id_seq')").fetchone()[0]


def waiting(heard):
    """Whom the horizon waits for, once it does."""
    wait_until(lambda: heard.of("waiting"), what="the horizon to stand still")
    return [blocker["application"] for blocker in heard.of("waiting")[0].detail["blockers"]]


# --- C1, H8, M8: the horizon -----------------------------------------------------------------------------------------


def test_an_event_whose_id_was_drawn_before_the_insert_is_waited_for(dsn, connect, spawn, watcher):
    """An appender that draws its id first and inserts it during the run loses nothing (hazard C1)."""
    heard = Heard()
    rebuilder = make_rebuilder(dsn, observer=heard)
    appender = connect(application_name="draws first")
    early = draw(appender)
    deposit(watcher, rebuilder)  # the horizon lies above the early id
    on_the_table = watcher.execute("SELECT count(*) FROM pg_locks WHERE relation = 'events'::regclass"
                                   " AND mode = 'RowExclusiveLock'").fetchone()
    assert on_the_table == (0,), "a horizon that looks at the table's locks alone waits for nobody"

    running = spawn(rebuilder.rebuild, NAME)
    assert waiting(heard) == ["draws first"]
    appender.execute(WITH_ID, (early,))
    appender.commit()
    assert running.result(30).position > early
    assert_equal_to_replay(watcher)


def test_without_that_wait_the_event_is_lost_and_nothing_notices(dsn, connect, watcher, monkeypatch):
    """The same schedule against a horizon that waits for nobody: live lacks the event, and all checks pass (C1)."""
    monkeypatch.setattr(Horizon, "settled", lambda self, connection: True)
    rebuilder = make_rebuilder(dsn)
    appender = connect()
    early = draw(appender)
    deposit(watcher, rebuilder)

    def commit(run):
        appender.execute(WITH_ID, (early,))
        appender.commit()

    Moments(rebuilder).at("fence", commit)
    before = rows_of(watcher)
    rebuilder.rebuild(NAME)
    assert rows_of(watcher) == before
    with pytest.raises(AssertionError, match="lost"):
        assert_equal_to_replay(watcher)


def test_the_first_event_of_a_fresh_sequence_is_not_below_the_horizon(dsn, connect):
    """An event appended to an empty log while it is being rebuilt is read (hazard H8)."""
    watcher = connect(autocommit=True)
    make_schema(watcher)
    assert watcher.execute("SELECT last_value FROM events_id_seq").fetchone() == (1,), "what a naive horizon reads"
    rebuilder = make_rebuilder(dsn)
    Moments(rebuilder).at("fence", lambda run: append(watcher, "a1", "AccountOpened", {"owner": "x"}, live=rebuilder))
    report = rebuilder.rebuild(NAME)
    assert (report.events_applied, rows_of(watcher)) == (1, [("a1", "x", 0, 1)])


def test_an_open_import_is_waited_for_and_not_taken_for_a_log_that_grows_too_fast(dsn, connect, spawn, watcher):
    """While a named transaction holds the horizon, rounds that find nothing are not counted (hazard M8, gh-ost#921)."""
    heard = Heard()
    rebuilder = make_rebuilder(dsn, observer=heard, settings={"fence_rest": 5, "catch_up_rounds": 1, "batch": 10})
    importer = connect(application_name="import")

    def begin_import(run):
        insert_event(importer, "a2", amount=1000)
        for _ in range(30):
            deposit(watcher, None)

    Moments(rebuilder).at("freeze", begin_import)
    running = spawn(rebuilder.rebuild, NAME)
    assert waiting(heard) == ["import"]
    for _ in range(30):
        deposit(watcher, None)
    importer.commit()
    assert running.result(30).late_events == 0
    assert_equal_to_replay(watcher)


def test_an_import_that_stays_open_ends_the_run_by_name_within_the_budget(dsn, connect, watcher):
    """The wait for the horizon has an end, which names who is in the way and leaves live as it was."""
    importer = connect(application_name="import")
    insert_event(importer, "a2", amount=1000)
    before = rows_of(watcher)
    with pytest.raises(HorizonBlocked, match="application import"):
        make_rebuilder(dsn, settings={"fence_budget": 0.3}).rebuild(NAME)
    assert rows_of(watcher) == before


def test_a_prepared_transaction_holds_the_horizon_and_is_named_by_its_gid(dsn, connect, watcher):
    """A prepared appender has no backend, and is still waited for (hazards, LOW)."""
    appender = connect()
    insert_event(appender, "a2", amount=1000)
    appender.execute("PREPARE TRANSACTION 'forgotten import'")
    rebuilder = make_rebuilder(dsn, settings={"fence_budget": 0.3})
    with pytest.raises(HorizonBlocked, match="forgotten import"):
        rebuilder.rebuild(NAME)
    watcher.execute("COMMIT PREPARED 'forgotten import'")
    rebuilder.rebuild(NAME)
    assert_equal_to_replay(watcher)


def test_an_appender_of_a_database_with_the_same_oids_is_not_waited_for(dsn, connect, make_database, watcher):
    """Databases made from one template share OIDs: locks count only in our own (hazards, LOW)."""
    name = watcher.info.dbname
    watcher.close()  # a template must have no connection
    other = make_database(name)
    appender = connect(other)
    insert_event(appender, "a1", amount=5)
    oids = [connect(d).execute("SELECT 'events'::regclass::oid").fetchone() for d in (dsn, other)]
    assert oids[0] == oids[1]
    report = make_rebuilder(dsn, settings={"fence_budget": 0.5}).rebuild(NAME)
    assert report.seconds["catch up"] < 0.5


# --- R2(a): pages that were sent too early ---------------------------------------------------------------------------


def test_no_page_is_sent_before_the_horizon_that_bounds_it_is_settled(dsn, connect, spawn, watcher, monkeypatch):
    """Also when pages are loaded ahead: a page sent earlier lacks what is committed meanwhile (hazard R2)."""
    order, real_settled, real_page = [], Horizon.settled, OpenLog.page

    def settled(self, connection):
        if answer := real_settled(self, connection):
            order.append(("settled", self.position))
        return answer

    def page(self, connection, selection, *, after, upto, limit):
        order.append(("page", upto))
        return real_page(self, connection, selection, after=after, upto=upto, limit=limit)

    monkeypatch.setattr(Horizon, "settled", settled)
    monkeypatch.setattr(OpenLog, "page", page)
    heard = Heard()
    rebuilder = make_rebuilder(dsn, observer=heard, settings={"batch": 2})
    appender = connect(application_name="slow")
    insert_event(appender, "a3", amount=1000)
    deposit(watcher, rebuilder)
    running = spawn(rebuilder.rebuild, NAME)
    assert waiting(heard) == ["slow"]
    assert order == [], "nothing is read while what lies below the horizon may still become visible"
    appender.commit()
    running.result(30)
    assert_equal_to_replay(watcher)
    highest = 0
    for what, position in order:
        if what == "settled":
            highest = max(highest, position)
        assert what == "settled" or position <= highest, order
    assert [what for what, _ in order].count("page") >= 4


def test_what_is_committed_between_the_last_page_and_the_fence_is_drained(dsn, watcher):
    """The tail is read with the fence held: a page from before it lacks what came in between (hazard R2,
    pg-osc#58).
    """
    rebuilder = make_rebuilder(dsn)
    Moments(rebuilder).at("fence", lambda run: deposit(watcher, rebuilder, "a2", 77))
    report = rebuilder.rebuild(NAME)
    assert (report.late_events, report.drift.total) == (0, 0)
    assert_equal_to_replay(watcher)


# --- C2, R3: followers -----------------------------------------------------------------------------------------------


@pytest.fixture
def external(watcher):
    """The checkpoint of somebody else's follower."""
    watcher.execute("CREATE TABLE theirs (name text PRIMARY KEY, position bigint NOT NULL);"
                    "INSERT INTO theirs SELECT 'balances', max(id) FROM events")
    return ExternalCheckpoint(lock="SELECT FROM theirs WHERE name = 'balances' FOR UPDATE",
                              advance="UPDATE theirs SET position = %s WHERE name = 'balances'")


def our_checkpoint(watcher):
    """The row of our own follower, which has applied all that is there."""
    watcher.execute("INSERT INTO rebuilder.follower_checkpoint (scope, projection, position)"
                    " SELECT '', 'account_balance', max(id) FROM events")


def follow(connection, rebuilder, checkpoint, advance):
    """A follower's turn: everything visible above its checkpoint, applied through the projection's own handlers."""
    with connection.transaction():
        rows = connection.execute("SELECT id, stream, type, data ->> 'amount' FROM events WHERE id > %s ORDER BY id",
                                  (checkpoint,)).fetchall()
        for _, stream, type_, amount in rows:
            assert type_ == "Deposited"
            connection.execute("UPDATE account_balance SET balance = balance + %s, changes = changes + 1 WHERE id = %s",
                               (int(amount), stream))
        if rows:
            connection.execute(advance, (rows[-1][0],))
    return len(rows)


def in_flight(connect, watcher, moments):
    """Right before the fence one event is open, and two later ones are committed."""
    appender = connect()

    def append_three(run):
        insert_event(appender, "a1", amount=1)
        deposit(watcher, None, "a2", 2)
        deposit(watcher, None, "a3", 3)

    moments.at("fence", append_three)
    return appender


@pytest.mark.parametrize("kind", ["async", "external"])
def test_a_follower_goes_on_behind_the_cut_over_and_loses_nothing(dsn, connect, watcher, request, kind):
    """What is in flight at the cut-over lies above the checkpoint, with all that was visible above it (hazard C2)."""
    feeding = kind
    if kind == "external":
        feeding = request.getfixturevalue("external")
        where, advance = "SELECT position FROM theirs", feeding.advance
    else:
        our_checkpoint(watcher)
        where, advance = "SELECT position FROM rebuilder.follower_checkpoint", ADVANCE
    last = deposit(watcher, None, "a1", 5)  # the follower lags a little
    rebuilder = make_rebuilder(dsn, make_projection(feeding=feeding))
    appender = in_flight(connect, watcher, Moments(rebuilder))
    below = replay_in_sql(watcher)
    report = rebuilder.rebuild(NAME)
    assert (report.position, rows_of(watcher)) == (last, below), "nothing above the horizon was applied"
    appender.commit()
    (checkpoint,) = watcher.execute(where).fetchone()
    assert checkpoint == last
    assert follow(watcher, rebuilder, checkpoint, advance) == 3
    assert_equal_to_replay(watcher)


def test_a_follower_behind_a_drain_of_all_that_is_visible_would_lose_what_was_in_flight(dsn, connect, watcher):
    """The same schedule, drained as for inline writers: right for those, who apply their own event; not for a follower
    that goes on behind what was read (hazard C2, the naive version).
    """
    rebuilder = make_rebuilder(dsn)
    appender = in_flight(connect, watcher, Moments(rebuilder))
    report = rebuilder.rebuild(NAME)
    appender.commit()
    assert follow(watcher, rebuilder, report.position, "SELECT %s") == 0
    with pytest.raises(AssertionError, match="lost"):
        assert_equal_to_replay(watcher)


def test_the_checkpoint_of_a_follower_that_ran_on_does_not_go_backwards(dsn, watcher):
    """The drain goes as far as the follower has come: nothing that readers have seen disappears again (hazard R3)."""
    our_checkpoint(watcher)
    rebuilder = make_rebuilder(dsn, make_projection(feeding="async"))

    def follower_runs_on(run):
        (checkpoint,) = watcher.execute("SELECT position FROM rebuilder.follower_checkpoint").fetchone()
        for amount in range(5):
            deposit(watcher, None, "a1", amount)
        assert follow(watcher, rebuilder, checkpoint, ADVANCE) == 5

    Moments(rebuilder).at("fence", follower_runs_on)
    report = rebuilder.rebuild(NAME)
    (checkpoint, last) = watcher.execute(
        "SELECT position, (SELECT max(id) FROM events) FROM rebuilder.follower_checkpoint").fetchone()
    assert (checkpoint, report.position) == (last, last)
    assert report.drift.total == 0
    assert_equal_to_replay(watcher)
