"""Readers behind the fence never see an empty table, nor less than the last freeze; and pg_dump: hazards M4, M5."""

import pytest

from tests.bank import append, assert_equal_to_replay, make_rebuilder, rows_of
from tests.fix_threads import wait_until
from tests.integration.hazards.schedule import NAME, PATIENT, Heard, Moments, deposit, main_pid, pid_of

ROWS = "SELECT id, owner, balance, changes FROM account_balance ORDER BY id"
STABLE = """
CREATE FUNCTION all_rows() RETURNS SETOF account_row LANGUAGE plpgsql STABLE AS $$
BEGIN RETURN QUERY SELECT id, owner, balance, changes FROM account_balance ORDER BY id; END $$"""


def plain(connection):
    return connection.execute(ROWS).fetchall()


def copied(connection):
    with connection.cursor().copy(f"COPY ({ROWS}) TO STDOUT") as copy:
        copy.set_types(["text", "text", "int8", "int4"])
        return list(copy.rows())


def copied_table(connection):
    with connection.cursor().copy("COPY account_balance TO STDOUT") as copy:
        copy.set_types(["text", "text", "int8", "int4"])
        return sorted(copy.rows())


def executed(connection):
    return connection.execute("EXECUTE all_rows").fetchall()


def called(connection):
    return connection.execute("SELECT * FROM all_rows()").fetchall()


READERS = [plain, copied, copied_table, executed, called]
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
def readers(connect, watcher):
    """Every kind of reader at every level: transactions from before the run, prepared, with a snapshot and no lock."""
    watcher.execute("CREATE TYPE account_row AS (id text, owner text, balance bigint, changes int)")
    watcher.execute(STABLE)
    opened = {}
    for level in LEVELS:
        for read in READERS:
            connection = connect(autocommit=True)
            connection.execute(f"PREPARE all_rows AS {ROWS}")
            for _ in range(6):  # a generic plan is cached by then
                connection.execute("EXECUTE all_rows")
            connection.execute("SELECT * FROM all_rows()")
            connection.execute(f"BEGIN ISOLATION LEVEL {level}")
            connection.execute("SELECT 1")
            opened[level, read.__name__] = (connection, read)
    return opened


def read_behind(spawn, watcher, readers, holder):
    """All of them wait behind the holder of the fence; their futures."""
    futures = {key: spawn(read, connection) for key, (connection, read) in readers.items()}
    pids = [pid_of(connection) for connection, _ in readers.values()]
    wait_until(lambda: watcher.execute(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ANY (%s) AND relation = 'account_balance'::regclass",
        (pids,)).fetchone() == (len(pids),), what="all readers to wait for live")
    assert {blocker for pid in pids for blocker in watcher.execute(
        "SELECT pg_blocking_pids(%s)", (pid,)).fetchone()[0]} == {holder}
    return futures


def test_every_reader_that_waited_on_the_fence_sees_at_least_the_last_freeze(dsn, watcher, spawn, readers):
    """A SELECT, COPY, EXECUTE or STABLE function in any isolation level, also from before the run (promise 3)."""
    rebuilder = make_rebuilder(dsn, settings=PATIENT)
    watcher.execute("UPDATE account_balance SET balance = -1")
    moments, futures, frozen = Moments(rebuilder), {}, []

    def after_the_freeze(run):
        frozen.extend(run.main.execute(ROWS).fetchall())  # the search_path leads to the shadow
        deposit(watcher, rebuilder, "a1", 1000)
        append(watcher, "new", "AccountOpened", {"owner": "born after the freeze"}, live=rebuilder)

    moments.at("fence", after_the_freeze)
    moments.at("before commit", lambda run: futures.update(read_behind(spawn, watcher, readers, main_pid(run))))
    report = rebuilder.rebuild(NAME)
    assert_equal_to_replay(watcher)
    now = rows_of(watcher)
    assert (len(frozen), len(now)) == (3, 4)
    for key, future in futures.items():
        seen = future.result(20)
        # An old snapshot sees the read model as of the freeze, whatever row versions came later.
        assert seen in (frozen, now), key
        if key == ("READ COMMITTED", "plain"):
            assert seen == now
    assert report.freeze_age_seconds > 0
    for connection, _ in readers.values():
        connection.execute("COMMIT")


def test_behind_a_swap_without_the_freeze_they_see_an_empty_table(watcher, connect, spawn, readers):
    """The naive version: a table filled by INSERT and renamed into place."""
    swapper = connect()
    swapper.execute("CREATE TABLE shadow (LIKE account_balance INCLUDING ALL);"
                    "INSERT INTO shadow SELECT * FROM account_balance;"
                    "LOCK TABLE account_balance; ALTER TABLE account_balance RENAME TO retired;"
                    "ALTER TABLE shadow RENAME TO account_balance")
    futures = read_behind(spawn, watcher, readers, pid_of(swapper))
    swapper.commit()
    empty = {key for key, future in futures.items() if future.result(20) == []}
    assert {(level, read.__name__) for level in LEVELS[1:] for read in READERS} <= empty
    assert {("READ COMMITTED", name) for name in ("copied", "copied_table", "called")} & empty


# --- M5: pg_dump -----------------------------------------------------------------------------------------------------


def dump(pg_dump, dsn):
    """A dump as one SQL text, without psql's own commands and a setting that older servers don't know."""
    text = pg_dump(dsn, "--schema=public", "--inserts", "--no-owner")
    return "\n".join(line for line in text.splitlines() if not line.startswith(("\\", "SET transaction_timeout")))


def test_a_pg_dump_that_waits_behind_the_fence_makes_the_run_give_it_back(dsn, connect, watcher, spawn, pg_dump,
                                                                          bare_dsn):
    """It has read the old catalog: its dump would be short of rows and name objects of the retired table, and would
    not restore (hazard M5).
    """
    watcher.execute("CREATE INDEX by_owner ON account_balance (owner)")
    watcher.execute("CREATE VIEW rich AS SELECT id FROM account_balance WHERE balance > 10")
    heard = Heard()
    rebuilder = make_rebuilder(dsn, settings={**PATIENT, "fence_nowait": 0.1}, observer=heard)
    moments, futures = Moments(rebuilder), []

    def dump_behind_the_fence(run):
        append(watcher, "late", "NobodyWantsIt")
        futures.append(spawn(dump, pg_dump, dsn))
        wait_until(lambda: watcher.execute(
            "SELECT 1 FROM pg_stat_activity a WHERE a.application_name = 'pg_dump' AND wait_event_type = 'Lock'"
            " AND %s = ANY (pg_blocking_pids(pid)) AND datname = current_database()", (main_pid(run),)).fetchone(),
            what="pg_dump to wait behind the fence")

    moments.at("swap", dump_behind_the_fence)
    rebuilder.rebuild(NAME)
    assert any("pg_dump" in seen.message for seen in heard.of("attempt"))
    text = futures[0].result(30)
    restored = connect(bare_dsn, autocommit=True)
    restored.execute("DROP SCHEMA public")
    restored.execute(text)
    restored.execute("SET search_path = public")
    assert rows_of(restored) == rows_of(watcher)
    assert restored.execute("SELECT to_regclass('by_owner'), to_regclass('rich')").fetchone() == ("by_owner", "rich")
    assert_equal_to_replay(watcher)
