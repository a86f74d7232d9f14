"""What comes to hang off live while the run is under way: hazard H9."""

import pytest

from rebuilder.errors import LiveChanged
from tests.bank import assert_equal_to_replay, make_rebuilder, rows_of
from tests.fix_threads import wait_for_lock, wait_until
from tests.integration.hazards.schedule import NAME, PATIENT, Heard, Moments, main_pid, pid_of


@pytest.mark.parametrize("point", ["freeze", "fence"])
@pytest.mark.parametrize("statement, name", [
    ("CREATE VIEW born AS SELECT * FROM account_balance", "born"),
    ("CREATE INDEX born ON account_balance (owner)", "account_balance.born"),
    ("CREATE TABLE born (id text REFERENCES account_balance)", "born_id_fkey"),
    ("ALTER TABLE account_balance ALTER owner SET DEFAULT 'x'", "owner"),
    ("GRANT SELECT ON account_balance TO PUBLIC", "grants"),
])
def test_what_is_born_during_the_run_ends_it_by_name(dsn, watcher, point, statement, name):
    """A view made after the preflight would go on reading the retired table, silently (hazard H9,
    pg_repack#420).
    """
    rebuilder, before = make_rebuilder(dsn), rows_of(watcher)
    (live,) = watcher.execute("SELECT 'account_balance'::regclass::oid").fetchone()
    Moments(rebuilder).at(point, lambda run: watcher.execute(statement))
    with pytest.raises(LiveChanged, match=name):
        rebuilder.rebuild(NAME)
    assert watcher.execute("SELECT 'account_balance'::regclass::oid").fetchone() == (live,)
    assert rows_of(watcher) == before
    rebuilder.rebuild(NAME)  # the next run takes it into account
    assert_equal_to_replay(watcher)


@pytest.mark.parametrize("point", ["drain", "swap"])
def test_a_grant_under_the_fence_is_not_left_on_the_retired_table(dsn, connect, watcher, spawn, server_version, point):
    """Before 18 a GRANT takes no lock that the fence would stop; since then it waits, and finds the new table (H9)."""
    dba, futures = connect(autocommit=True), []
    rebuilder = make_rebuilder(dsn, settings=PATIENT)

    def grant(run):
        futures.append(spawn(lambda: dba.execute("GRANT SELECT ON account_balance TO PUBLIC")))
        if server_version >= 180000:
            assert wait_for_lock(watcher, pid_of(dba)) == [main_pid(run)]
        else:
            futures[0].result(10)

    Moments(rebuilder).at(point, grant)
    if server_version >= 180000:
        rebuilder.rebuild(NAME)
    else:
        with pytest.raises(LiveChanged, match="grants"):
            rebuilder.rebuild(NAME)
        rebuilder.rebuild(NAME)
    futures[0].result(10)
    assert watcher.execute("SELECT has_table_privilege('public', 'account_balance', 'SELECT')").fetchone() == (True,)
    assert_equal_to_replay(watcher)


@pytest.mark.pg("< 18")
def test_a_grant_that_is_still_open_gives_the_fence_back(dsn, connect, watcher, spawn):
    """Moving live meets its row version: XX000 "tuple concurrently updated", or a wait under the fence (hazard H9)."""
    dba, heard = connect(), Heard()
    rebuilder = make_rebuilder(dsn, settings=PATIENT, observer=heard)
    Moments(rebuilder).at("swap", lambda run: dba.execute("GRANT SELECT ON account_balance TO PUBLIC"))
    running = spawn(rebuilder.rebuild, NAME)
    wait_until(lambda: heard.of("attempt"), what="the fence to be given back")
    dba.rollback()
    running.result(30)
    assert_equal_to_replay(watcher)
