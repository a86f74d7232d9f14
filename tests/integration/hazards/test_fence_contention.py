"""Getting the fence among others: hazards R1, H4, H5, H6, M10."""

import threading

import pytest
from psycopg import errors as pg

from rebuilder.domain.backoff import Backoff
from rebuilder.errors import FenceNotAcquired, LiveChanged
from rebuilder.store.install import install
from tests.bank import assert_equal_to_replay, make_projection, make_rebuilder, make_schema, rows_of
from tests.fix_threads import wait_for_lock, wait_until
from tests.integration.hazards.schedule import (
    NAME,
    PATIENT,
    Heard,
    Moments,
    deposit,
    insert_event,
    main_pid,
    modes,
    open_accounts,
    pid_of,
    wait_for_wait,
)

QUICK = {**PATIENT, "fence_nowait": 0.05}


# --- R1: who is starved ----------------------------------------------------------------------------------------------

MIXTURE = {
    "insert": ["INSERT INTO account_balance VALUES ('{me}-{n}', 'x', 0, 1, default, 'eu')"],
    "referred first": ["UPDATE region SET note = '{n}' WHERE name = 'r{me}'",
                       "UPDATE account_balance SET balance = balance WHERE id = 'a1'"],
    "sequence first": ["SELECT nextval('account_balance_number_seq')",
                       "INSERT INTO account_balance VALUES ('{me}-{n}', 'x', 0, 1, default, 'eu')"],
}


def test_a_mixture_of_writers_with_every_order_of_locks_does_not_keep_the_fence_away(dsn, connect, watcher, spawn):
    """No single order serves INSERT, UPDATE of a referred table first, and nextval first: attempts that queue never get
    it among them (0 of 25); ones that look and never queue do (hazard R1). No writer fails.
    """
    watcher.execute("CREATE TABLE region (name text PRIMARY KEY, note text);"
                    "INSERT INTO region SELECT 'r' || g FROM generate_series(0, 5) g; INSERT INTO region VALUES ('eu');"
                    "ALTER TABLE account_balance ADD number bigserial, ADD region text REFERENCES region")
    rebuilder = make_rebuilder(dsn, make_projection(not_compared=["number", "region"]), settings={"fence_budget": 30.0})
    end = threading.Event()

    def write(me, statements):
        connection, n = connect(autocommit=True), 0
        while not end.is_set():
            n += 1
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement.format(me=me, n=n))
            end.wait(0.01)  # moderate load
        return n

    writers = [spawn(write, me, statements) for me, statements in enumerate([*MIXTURE.values()] * 2)]
    try:
        report = rebuilder.rebuild(NAME, allow=["shrink"])
    finally:
        end.set()
    assert all(writer.result(20) > 0 for writer in writers)
    assert report.attempts > 0


def test_attempts_that_do_not_queue_stop_nobody_and_get_the_fence_as_soon_as_it_is_free(dsn, connect, watcher, spawn):
    """They look first and never wait: writers behind a queued attempt would wait for who is in front of it (R1)."""
    rebuilder = make_rebuilder(dsn, settings={"fence_nowait": 60.0})
    writer, runs = connect(), []

    def hold(run):
        writer.execute("UPDATE account_balance SET balance = balance WHERE id = 'a1'")
        runs.append(run)

    Moments(rebuilder).at("fence", hold)
    running = spawn(rebuilder.rebuild, NAME)
    wait_until(lambda: runs, timeout=20)
    watcher.execute("SET lock_timeout = '5ms'")
    for _ in range(50):
        deposit(watcher, rebuilder, "a2", 1)
        assert modes(watcher, main_pid(runs[0]), granted=False) == set()
    writer.rollback()
    assert running.result(30).fence_wait_seconds < 50
    assert_equal_to_replay(watcher)


def test_it_goes_on_looking_while_it_backs_off_from_queueing(dsn, connect, watcher, spawn, monkeypatch):
    """What backs off is what stops others: an attempt that does not queue needs no pause (hazard R1)."""
    monkeypatch.setattr(Backoff, "pause", lambda self, now: 60.0)
    heard, reader = Heard(), connect()
    rebuilder = make_rebuilder(dsn, settings=QUICK, observer=heard)
    Moments(rebuilder).at("fence", lambda run: reader.execute("SELECT FROM account_balance"))
    running = spawn(rebuilder.rebuild, NAME)
    wait_until(lambda: heard.of("attempt"), what="the queued attempt to fail")
    deposit(watcher, rebuilder)
    reader.rollback()
    assert running.result(30).attempts == 2
    assert_equal_to_replay(watcher)


def test_readers_that_overlap_do_not_keep_the_fence_away(dsn, connect, watcher, spawn):
    """Among readers of which one is always there NOWAIT alone never gets it (0 of 750), so in turn one queues (R1)."""
    rebuilder = make_rebuilder(dsn, settings={"fence_nowait": 0.3, "fence_budget": 30.0})
    end, readers = threading.Event(), []

    def read():
        connection, n = connect(autocommit=True), 0
        while not end.is_set():
            connection.execute("SELECT pg_sleep(0.03) FROM account_balance LIMIT 1")  # a query that takes its time
            n += 1
        return n

    def begin(run):
        readers.extend(spawn(read) for _ in range(8))
        wait_until(lambda: watcher.execute("SELECT count(*) FROM pg_locks WHERE relation = 'account_balance'::regclass"
                                           ).fetchone()[0] >= 5, what="readers to overlap")

    Moments(rebuilder).at("fence", begin)
    try:
        report = rebuilder.rebuild(NAME)
    finally:
        end.set()
    assert all(reader.result(20) > 0 for reader in readers)
    assert report.fence_wait_seconds < 15
    assert_equal_to_replay(watcher)


# --- H6: the follower ------------------------------------------------------------------------------------------------


def test_the_checkpoint_is_waited_for_while_live_is_untouched(dsn, connect, watcher, spawn):
    """A follower locks its checkpoint, then live: the other order is an outage for nothing, or kills it (hazard H6)."""
    watcher.execute("INSERT INTO rebuilder.follower_checkpoint (scope, projection, position)"
                    " SELECT '', 'account_balance', max(id) FROM events")
    rebuilder = make_rebuilder(dsn, make_projection(feeding="async"), settings={**QUICK, "fence_queue_ms": (700, 700)})
    follower, runs = connect(), []

    def lock_checkpoint(run):
        follower.execute("SELECT position FROM rebuilder.follower_checkpoint FOR UPDATE")
        runs.append(run)

    Moments(rebuilder).at("fence", lock_checkpoint)
    running = spawn(rebuilder.rebuild, NAME)
    wait_until(lambda: runs, timeout=20)
    assert wait_for_wait(watcher, main_pid(runs[0])) == "transactionid"
    assert {name for name, _ in modes(watcher, main_pid(runs[0]))} & {"account_balance"} == set()
    follower.execute("SET lock_timeout = '300ms'")
    follower.execute("UPDATE account_balance SET balance = balance")
    follower.commit()
    running.result(30)
    assert_equal_to_replay(watcher)


# --- H5: autovacuum --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(90)
def test_an_autovacuum_is_evicted_by_a_request_that_nobody_queues_behind(private_server, connect, spawn):
    """Waiting for ACCESS EXCLUSIVE long enough to evict it would stop readers and writers for a second (hazard H5)."""
    server = private_server(durable=False, autovacuum_naptime="1s", autovacuum_vacuum_cost_delay="100ms",
                            autovacuum_vacuum_cost_limit="1")
    install(server.dsn)
    watcher = connect(server.dsn, autocommit=True)
    make_schema(watcher)
    heard = Heard()
    rebuilder = make_rebuilder(server.dsn, observer=heard, settings=QUICK)
    open_accounts(watcher, rebuilder)
    watcher.execute("ALTER TABLE account_balance ADD filler text, ALTER filler SET STORAGE PLAIN")
    watcher.execute("INSERT INTO account_balance SELECT 'x' || g, 'x', 0, 1, repeat('x', 3000)"
                    " FROM generate_series(1, 2000) g")
    watcher.execute("DELETE FROM account_balance WHERE id LIKE 'x%'")
    vacuum = wait_until(lambda: watcher.execute(
        "SELECT a.pid FROM pg_stat_activity a JOIN pg_locks l USING (pid) WHERE a.backend_type = 'autovacuum worker'"
        " AND l.relation = 'account_balance'::regclass AND l.granted").fetchone(), 30, "an autovacuum of live")[0]
    runs = []
    Moments(rebuilder).at("fence", runs.append)
    running = spawn(rebuilder.rebuild, NAME)
    wait_until(lambda: runs, timeout=20)
    asked = wait_until(lambda: modes(watcher, main_pid(runs[0]), granted=False), what="main to wait for live")
    assert asked == {("account_balance", "ShareUpdateExclusiveLock")}
    watcher.execute("SET lock_timeout = '200ms'")
    watcher.execute("SELECT FROM account_balance")
    deposit(watcher, rebuilder)
    running.result(30)
    assert watcher.execute("SELECT 1 FROM pg_locks WHERE pid = %s AND relation = 'account_balance'::regclass",
                           (vacuum,)).fetchone() is None
    assert_equal_to_replay(watcher)


# --- M10: who waits for us -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point, error, name", [("fence", FenceNotAcquired, "application dba"),
                                                ("freeze", LiveChanged, "account_balance.wanted")])
def test_create_index_concurrently_on_live_that_waits_for_the_run_ends_it_at_once_by_name(
        dsn, connect, watcher, spawn, point, error, name):
    """It can't go away while the run is open: no retry, no deadlock, and its index is finished afterwards (M10)."""
    rebuilder = make_rebuilder(dsn)
    dba, futures = connect(autocommit=True, application_name="dba"), []

    def meet_a_statement(run):
        with run.main.cursor(name="statement") as cursor:  # a statement of ours that is running just then
            cursor.execute("SELECT 1")
            futures.append(spawn(lambda: dba.execute("CREATE INDEX CONCURRENTLY wanted ON account_balance (owner)")))
            assert wait_for_lock(watcher, pid_of(dba)) == [main_pid(run)]

    moments = Moments(rebuilder)
    moments.at(point, meet_a_statement)
    moments.at("fence", lambda run: None)
    before = rows_of(watcher)
    with pytest.raises(error, match=name):
        rebuilder.rebuild(NAME)
    assert moments.count("fence") <= 1
    futures[0].result(10)
    assert rows_of(watcher) == before
    (valid,) = watcher.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'wanted'::regclass").fetchone()
    assert valid


def test_the_plan_names_an_index_that_is_being_built_concurrently(dsn, connect, watcher, spawn):
    """It would wait for the whole rebuild, whatever table it is on: part of the price (hazard M10)."""
    watcher.execute("CREATE TABLE elsewhere (id int)")
    writer, dba = connect(), connect(autocommit=True)
    writer.execute("INSERT INTO elsewhere VALUES (1)")
    building = spawn(lambda: dba.execute("CREATE INDEX CONCURRENTLY ON elsewhere (id)"))
    wait_for_lock(watcher, pid_of(dba))
    plan = make_rebuilder(dsn).plan(NAME)
    writer.commit()
    building.result(10)
    assert plan.price.indexing_concurrently == (f"pid {pid_of(dba)} on elsewhere",)


def test_a_prepared_transaction_in_the_way_is_named_by_its_gid(dsn, connect, watcher):
    """It has no backend that could be ended: the error says what can be done with it (hazards, LOW)."""
    other = connect()
    other.execute("UPDATE account_balance SET balance = balance")
    other.execute("PREPARE TRANSACTION 'in doubt'")
    with pytest.raises(FenceNotAcquired, match="in doubt"):
        make_rebuilder(dsn, settings={**QUICK, "fence_budget": 0.5}).rebuild(NAME)
    watcher.execute("ROLLBACK PREPARED 'in doubt'")
    assert_equal_to_replay(watcher)


# --- H4: the synchronous standby -------------------------------------------------------------------------------------


def test_the_fence_does_not_wait_for_a_synchronous_standby(private_server, connect, spawn):
    """The swap is committed locally and live is readable; success is told once an ordinary commit is confirmed (H4)."""
    server = private_server(durable=False)
    install(server.dsn)
    watcher, probe = connect(server.dsn, autocommit=True), connect(server.dsn, autocommit=True)
    make_schema(watcher)
    watcher.execute("CREATE TABLE probe ()")
    rebuilder = make_rebuilder(server.dsn, settings=PATIENT)
    open_accounts(watcher, rebuilder)
    watcher.execute("UPDATE account_balance SET balance = -1")
    runs, futures = [], []

    def waits_for_standby(pid):
        return watcher.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'",
                               (pid,)).fetchone()

    def lose_the_standby(run):
        watcher.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
        watcher.execute("SELECT pg_reload_conf()")
        wait_until(lambda: run.main.execute("SHOW synchronous_standby_names").fetchone() == ("absent",))
        futures.append(spawn(commit_until_it_waits))
        wait_until(lambda: waits_for_standby(pid_of(probe)), what="an ordinary commit to wait for the standby")
        runs.append(run)

    def commit_until_it_waits():
        while not runs:
            probe.execute("INSERT INTO probe DEFAULT VALUES")

    Moments(rebuilder).at("before commit", lose_the_standby)
    running = spawn(rebuilder.rebuild, NAME)
    wait_until(lambda: runs, timeout=20)
    ledger = pid_of(runs[0].ledger.connection)
    wait_until(lambda: waits_for_standby(ledger), what="the second connection's commit to wait for the standby")
    watcher.execute("SET lock_timeout = '300ms'")
    assert_equal_to_replay(watcher)
    assert not running.done(), "success is told only when the standby has it"
    watcher.execute("ALTER SYSTEM RESET synchronous_standby_names")
    watcher.execute("SELECT pg_reload_conf()")
    assert running.result(30).fence_held_seconds < 25
    futures[0].result(10)
    insert_event(watcher, "a1", amount=0)


# --- R1: when only the referred tables are in the way ----------------------------------------------------------------


def test_a_referred_table_that_stays_in_the_way_does_not_keep_the_fence_away(dsn, connect, watcher):
    """Live's own key becomes owed work then; until it is settled the retired table's refuses deletes, as is told (R1).
    """
    watcher.execute("CREATE TABLE customer (name text PRIMARY KEY); INSERT INTO customer SELECT owner FROM"
                    " account_balance; ALTER TABLE account_balance ADD CONSTRAINT known FOREIGN KEY (owner) REFERENCES"
                    " customer")
    rebuilder = make_rebuilder(dsn, settings={**QUICK, "fence_budget": 3.0})
    report_reader = connect()
    report_reader.execute("SELECT FROM customer")  # a long report: it is in the way of nothing but dropping a key
    report = rebuilder.rebuild(NAME)
    assert "a delete in such a table may be refused" in " ".join(report.warnings)
    assert [owed.kind for owed in report.owed] == ["drop-retired-constraint"]
    watcher.execute("DELETE FROM account_balance WHERE id = 'a3'")
    with pytest.raises(pg.LockNotAvailable), watcher.transaction():
        watcher.execute("SET LOCAL lock_timeout = '1ms'")
        watcher.execute("LOCK TABLE customer")
    with pytest.raises(pg.ForeignKeyViolation):
        watcher.execute("DELETE FROM customer WHERE name = 'owner 3'")
    report_reader.rollback()
    rebuilder.cleanup()
    watcher.execute("DELETE FROM customer WHERE name = 'owner 3'")
    (valid,) = watcher.execute("SELECT convalidated FROM pg_constraint WHERE conrelid = 'account_balance'::regclass"
                               " AND conname = 'known'").fetchone()
    assert valid
