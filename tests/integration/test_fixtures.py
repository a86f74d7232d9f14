"""The ground the other tests stand on holds: a database each, real locks, real lost connections, a real crash."""

import threading

import psycopg
import pytest
from psycopg import errors

from tests.fix_db import url
from tests.fix_server import satisfies
from tests.fix_threads import wait_for_backend, wait_for_lock, wait_until


def number(connection) -> int:
    return connection.execute("SELECT count(*) FROM pg_class WHERE relname = 'only_here'").fetchone()[0]


@pytest.mark.parametrize("attempt", [1, 2])
def test_each_test_has_a_database_of_its_own(connect, attempt):
    connection = connect(autocommit=True)
    assert number(connection) == 0
    connection.execute("CREATE TABLE only_here ()")
    assert number(connection) == 1


def test_a_bare_database_has_no_bookkeeping(connect, bare_dsn):
    assert connect(bare_dsn).execute("SELECT to_regnamespace('rebuilder')").fetchone() == (None,)


def test_the_server_has_what_the_tests_ask_for(connect):
    rows = connect().execute(
        "SELECT name, setting FROM pg_settings WHERE name IN ('wal_level', 'max_connections',"
        " 'max_prepared_transactions', 'deadlock_timeout', 'server_encoding')"
    )
    assert dict(rows) == {
        "wal_level": "logical",
        "max_connections": "200",
        "max_prepared_transactions": "20",
        "deadlock_timeout": "1000",
        "server_encoding": "UTF8",
    }


def test_prepared_transactions_and_slots_do_not_keep_the_database(connect):
    connect(autocommit=True).execute("SELECT pg_create_logical_replication_slot('left_behind', 'test_decoding')")
    connection = connect()
    connection.tpc_begin("left behind")
    connection.execute("CREATE TABLE never_committed ()")
    connection.tpc_prepare()


def test_a_lock_is_waited_for_and_seen(connect, spawn):
    holder, waiter, watcher = connect(), connect(), connect(autocommit=True)
    holder.execute("CREATE TABLE held ()")
    holder.commit()
    holder.execute("LOCK TABLE held")
    reading = spawn(waiter.execute, "SELECT FROM held")
    assert wait_for_lock(watcher, waiter.info.backend_pid) == [holder.info.backend_pid]
    holder.commit()
    assert reading.result(10).rowcount == 0


def test_a_connection_left_waiting_is_ended_with_the_test(connect, spawn):
    holder, waiter, watcher = connect(), connect(), connect(autocommit=True)
    holder.execute("CREATE TABLE held ()")
    holder.commit()
    holder.execute("LOCK TABLE held")

    def read():
        with pytest.raises(psycopg.OperationalError):
            waiter.execute("SELECT FROM held")

    spawn(read)
    wait_for_lock(watcher, waiter.info.backend_pid)


def test_a_backend_is_found_by_its_application_name(connect):
    connection = connect(application_name="rebuilder:7:main")
    assert wait_for_backend(connect(autocommit=True), "rebuilder:7:%") == connection.info.backend_pid


def test_a_role_logs_in_and_may_do_nothing_yet(connect, dsn, role):
    connect(autocommit=True).execute("CREATE TABLE secret ()")
    reader = role()
    connection = connect(reader.dsn(dsn))
    assert connection.execute("SELECT current_user").fetchone() == (reader.name,)
    with pytest.raises(errors.InsufficientPrivilege):
        connection.execute("SELECT FROM secret")


def test_a_role_may_own_what_is_in_the_database(connect, dsn, role):
    owner = role("CREATEDB", hint="owner")
    connect(autocommit=True).execute(f"CREATE SCHEMA mine AUTHORIZATION {owner.name}")
    connect(owner.dsn(dsn), autocommit=True).execute("CREATE TABLE mine.own ()")


def test_a_cut_connection_is_lost_and_a_new_one_goes_through(connect, dsn, proxy):
    between = proxy(dsn)
    connection = connect(between.dsn)
    assert connection.execute("SELECT 1").fetchone() == (1,)
    assert between.cut() == 1
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    assert connect(between.dsn).execute("SELECT 2").fetchone() == (2,)
    assert between.accepted == 2


def test_a_proxy_that_refuses_lets_nobody_in(dsn, proxy):
    between = proxy(dsn)
    between.refuse()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(between.dsn, connect_timeout=5)
    between.accept()
    psycopg.connect(between.dsn, connect_timeout=5).close()


def test_a_held_proxy_is_silent_until_released(connect, dsn, proxy, spawn):
    between = proxy(dsn)
    connection = connect(between.dsn, autocommit=True, application_name="held")
    watcher = connect(autocommit=True)
    between.hold()
    asked = spawn(connection.execute, "SELECT 1")
    wait_until(lambda: connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE)
    state = watcher.execute("SELECT state FROM pg_stat_activity WHERE application_name = 'held'").fetchone()
    assert state == ("idle",)
    between.release()
    assert asked.result(10).fetchone() == (1,)


def test_a_muted_proxy_delivers_and_does_not_answer(connect, dsn, proxy, spawn):
    between = proxy(dsn)
    connection, watcher = connect(between.dsn, autocommit=True), connect(autocommit=True)
    between.mute()
    asked = spawn(connection.execute, "CREATE TABLE delivered ()")
    wait_until(lambda: watcher.execute("SELECT to_regclass('delivered') IS NOT NULL").fetchone() == (True,))
    assert not asked.done()
    between.release()
    asked.result(10)


def test_a_crashed_server_keeps_what_was_committed(private_server, connect):
    server = private_server()
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        connection.execute("CREATE TABLE kept ()")
    lost = psycopg.connect(server.dsn)
    lost.execute("CREATE TABLE lost ()")
    server.crash()
    with pytest.raises(psycopg.OperationalError):
        lost.execute("SELECT 1")
    lost.close()
    server.start()
    with psycopg.connect(server.dsn) as connection:
        tables = connection.execute("SELECT to_regclass('kept') IS NOT NULL, to_regclass('lost') IS NOT NULL")
        assert tables.fetchone() == (True, False)


def test_pg_dump_reads_the_server(connect, dsn, pg_dump):
    connect(autocommit=True).execute("CREATE TABLE dumped (a int)")
    assert "CREATE TABLE public.dumped" in pg_dump(dsn, "--schema-only")


def test_a_dsn_can_be_had_as_a_url(dsn):
    with psycopg.connect(url(dsn)) as connection:
        assert connection.info.dbname in dsn


def test_an_error_in_a_thread_fails_the_test_that_does_not_take_it(pytester):
    pytester.makeconftest("pytest_plugins = ['tests.fix_threads']")
    pytester.makepyfile("def test_it(spawn):\n    spawn(int, 'no number')\n")
    pytester.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=1, errors=1)


def test_waiting_in_vain_says_for_what(monkeypatch):
    with pytest.raises(pytest.fail.Exception, match="in vain for a miracle; the last answer was 0"):
        wait_until(lambda: 0, timeout=0.02, what="a miracle")


def test_threads_run_at_the_same_time(spawn):
    barrier = threading.Barrier(2, timeout=10)
    assert sorted(f.result(10) for f in [spawn(barrier.wait), spawn(barrier.wait)]) == [0, 1]


def test_a_test_may_repeat_its_chance(rng, seed):
    assert rng.random() == type(rng)(seed).random()


@pytest.mark.parametrize(
    "major,condition,expected",
    [
        (15, ">= 15", True),
        (14, ">= 15", False),
        (17, ">= 15, < 18", True),
        (18, ">= 15, < 18", False),
        (16, "!= 16", False),
    ],
)
def test_a_version_condition_is_read(major, condition, expected):
    assert satisfies(major, condition) is expected


def test_a_version_condition_that_says_nothing_is_refused():
    with pytest.raises(ValueError, match="not a condition"):
        satisfies(18, "15+")
