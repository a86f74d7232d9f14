"""Reports about locks and outages: who waits behind a rebuild that does not get its fence, and what it leaves."""

import threading
import time

import pytest

from rebuilder.domain.backoff import Backoff
from rebuilder.errors import ConnectionLost, FenceNotAcquired, RebuildInProgress
from rebuilder.store.install import install
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

NAME = "account_balance"


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 100)
    return connection


def held(db):
    """Locks on live that the backends of rebuilds hold or wait for."""
    return set(db.execute("SELECT l.mode, l.granted FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE"
                          " a.application_name LIKE 'rebuilder:%' AND l.relation = 'account_balance'::regclass"))


def test_an_autovacuum_that_prevents_wraparound_is_told_of_and_not_queued_behind(private_server, connect, spawn):
    """It does not leave for anybody and takes hours: no request for ACCESS EXCLUSIVE stands in front of readers and
    writers for its sake, and the run says who it is (pg_repack#95, pg_repack#148, pg_repack#247).
    """
    server = private_server(durable=False, autovacuum_naptime="1s", autovacuum_freeze_max_age="100000",
                            autovacuum_vacuum_cost_delay="100ms", autovacuum_vacuum_cost_limit="1")
    install(server.dsn)
    make_schema(db := connect(server.dsn, autocommit=True))
    db.execute("ALTER TABLE account_balance ALTER owner SET STORAGE PLAIN")
    db.execute("INSERT INTO events (stream, type, data) SELECT 'a' || n, 'AccountOpened',"
               " jsonb_build_object('owner', repeat('x', 3000)) FROM generate_series(1, 600) n")
    db.execute("INSERT INTO account_balance SELECT stream, data ->> 'owner', 0, 1 FROM events")
    db.execute("DO $$ BEGIN FOR n IN 1..101000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    wait_until(lambda: db.execute(
        "SELECT 1 FROM pg_stat_activity a JOIN pg_locks l USING (pid) WHERE a.backend_type = 'autovacuum worker'"
        " AND l.relation = 'account_balance'::regclass AND l.granted AND a.query LIKE '%to prevent wraparound%'"
    ).fetchone(), 60, "an autovacuum against wraparound")
    seen, stop = set(), threading.Event()

    def watch(watcher):
        while not stop.is_set():
            seen.update(mode for mode, granted in held(watcher) if not granted)
            watcher.execute("SELECT count(*) FROM account_balance")

    watching = spawn(watch, connect(server.dsn, autocommit=True, options="-c lock_timeout=200ms"))
    warnings = []
    rebuilder = make_rebuilder(server.dsn, settings={"fence_budget": 1.5, "fence_nowait": 0.1},
                               observer=lambda heard: warnings.append(str(heard)))
    try:
        with pytest.raises(FenceNotAcquired, match="autovacuum worker"):
            rebuilder.rebuild(NAME)
    finally:
        stop.set()
    watching.result(20)
    assert seen == set()
    assert any("to prevent wraparound" in text for text in warnings)


def test_behind_a_reader_that_stays_others_get_through_most_of_the_time(dsn, db, connect, spawn):
    """No reader waits longer than one attempt may queue, and live is free for more than half of the time
    (pg_repack#408).
    """
    rebuilder = make_rebuilder(dsn, settings={"fence_budget": 4.0, "fence_nowait": 0.1, "fence_queue_ms": (100, 200)})
    rebuilder.rebuild(NAME)
    sleeper, watcher, stop, waits = connect(), connect(autocommit=True), threading.Event(), []
    sleeper.execute("SELECT FROM account_balance")

    def read():
        reader = connect(autocommit=True, options="-c lock_timeout=1200ms")
        while not stop.is_set():
            began = time.monotonic()
            reader.execute("SELECT FROM account_balance")
            waits.append(time.monotonic() - began)

    def look():
        seen = []
        while not stop.wait(0.005):
            seen.append(("AccessExclusiveLock", False) in held(watcher))
        return seen

    reading, looking = spawn(read), spawn(look)
    try:
        with pytest.raises(FenceNotAcquired) as caught:
            rebuilder.rebuild(NAME)
    finally:
        stop.set()
    reading.result(20)
    queued = looking.result(20)
    assert caught.value.attempts >= 2
    assert any(queued), "an attempt was seen in front of the readers"
    assert sum(queued) < len(queued) / 2
    assert max(waits) < 1.2  # else its lock_timeout had ended it already


@pytest.mark.pg(">= 16")
def test_a_hundred_failed_attempts_overflow_nothing(dsn, db, connect, monkeypatch):
    """Each is a savepoint with a catch-up behind it: none stays open and none is nested in another, so that no backend
    of the cluster has to look subtransactions up on disk (pg_repack#457).
    """
    pause = Backoff.pause
    monkeypatch.setattr(Backoff, "pause", lambda self, now: 0.0 * pause(self, now))
    monkeypatch.setattr("rebuilder.engine.fence.worth_queueing", lambda looked, backoff: True)
    heard, counts, reader = [], [], connect()

    def observe(seen):
        if seen.kind == "attempt":
            heard.append(seen)
            if len(heard) % 50 == 0:
                append(db, "account-1", "Deposited", {"amount": 1})
            if len(heard) == 100:
                reader.rollback()

    def count(run):
        counts.append(db.execute(
            "SELECT s.subxact_count, s.subxact_overflowed FROM pg_stat_get_backend_idset() b,"
            " pg_stat_get_backend_subxact(b) s WHERE pg_stat_get_backend_pid(b) = %s",
            (run.main.info.backend_pid,)).fetchone())

    rebuilder = make_rebuilder(dsn, observer=observe,
                               settings={"fence_nowait": 0.0, "fence_poll": 0.001, "fence_queue_ms": (1, 2)})
    rebuilder.rebuild(NAME)
    reader.execute("SELECT FROM account_balance")
    rebuilder._seam.points["before commit"] = count
    assert rebuilder.rebuild(NAME).attempts > 100
    [(subtransactions, overflowed)] = counts
    assert subtransactions <= 1
    assert not overflowed
    assert_equal_to_replay(db)


def test_cleanup_takes_no_lock_on_live(dsn, db, connect, spawn):
    """What failed because live could not be locked is cleared away while somebody still has it locked
    (pg_repack#127).
    """
    rebuilder = make_rebuilder(dsn, settings={"fence_budget": 0.3, "fence_nowait": 0.1})
    rebuilder.rebuild(NAME)
    other = connect()
    other.execute("SELECT FROM account_balance")
    with pytest.raises(FenceNotAcquired):
        rebuilder.rebuild(NAME)
    other.execute("LOCK TABLE account_balance IN ACCESS EXCLUSIVE MODE")
    assert spawn(rebuilder.cleanup, all_kept=True).result(20)
    assert other.info.transaction_status.name == "INTRANS"
    other.rollback()
    assert db.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'rebuilder\\_%'").fetchall() == []
    rebuilder.rebuild(NAME)
    assert_equal_to_replay(db)


def test_the_backend_of_a_client_that_is_gone_stops_nobody(dsn, db, connect, proxy):
    """The network goes in the middle of a batch and the server's process works on: live can be read and written, the
    next run is told that it is still there, and goes through once it has ended (pg_repack#456).
    """
    handlers, between = make_handlers(), proxy(dsn)
    handlers.on("Slow")(lambda event, target: target.execute("SELECT pg_advisory_xact_lock_shared(4711)"))
    append(db, "account-1", "Slow")
    direct = make_rebuilder(dsn, make_projection(handlers=handlers))
    direct.rebuild(NAME)
    holder = connect(autocommit=True)
    holder.execute("SELECT pg_advisory_lock(4711)")
    orphan = []

    def cut():
        orphan.append(wait_until(lambda: db.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted").fetchone())[0])
        between.cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    with pytest.raises(ConnectionLost):
        make_rebuilder(between.dsn, make_projection(handlers=handlers)).rebuild(NAME)
    cutter.join()
    alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    assert db.execute(alive, (orphan[0],)).fetchone() == (1,)
    db.execute("SET lock_timeout = '200ms'")
    append(db, "account-2", "Deposited", {"amount": 1}, live=direct)
    assert rows_of(db)
    with pytest.raises(RebuildInProgress):
        direct.rebuild(NAME)
    holder.execute("SELECT pg_advisory_unlock(4711)")
    wait_until(lambda: db.execute(alive, (orphan[0],)).fetchone() == (0,))
    direct.rebuild(NAME)
    assert_equal_to_replay(db)


def test_a_run_that_gave_up_holds_no_horizon(dsn, db, connect):
    """Rows deleted during the run can be vacuumed as soon as it has failed, and could not be while it ran
    (pg_squeeze#25).
    """
    db.execute("CREATE TABLE busy AS SELECT generate_series(1, 1000) AS n")
    size = "SELECT pg_relation_size('busy')"
    rebuilder = make_rebuilder(dsn, settings={"fence_budget": 0.3, "fence_nowait": 0.1})
    rebuilder.rebuild(NAME)
    sizes, reader = [], connect()
    reader.execute("SELECT FROM account_balance")

    def die(run):
        if not sizes:
            db.execute("DELETE FROM busy")
            db.execute("VACUUM busy")
            sizes.append(db.execute(size).fetchone()[0])

    rebuilder._seam.points["fence"] = die
    with pytest.raises(FenceNotAcquired):
        rebuilder.rebuild(NAME)
    assert sizes[0] > 0
    assert db.execute("SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND"
                      " application_name LIKE 'rebuilder:%' AND coalesce(backend_xmin, backend_xid) IS NOT NULL"
                      ).fetchall() == []
    db.execute("VACUUM busy")
    assert db.execute(size).fetchone() == (0,)
