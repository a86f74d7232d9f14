"""The second connection, the state row, the advisory keys, the server behind a connection: M1, M2, M14, R2(b)."""

import threading

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rebuilder.domain.ticket import Stage
from rebuilder.engine import state_lock
from rebuilder.errors import HookVetoed, NotNow, RebuildInProgress, UnsupportedServer
from rebuilder.store.install import install
from tests.bank import assert_equal_to_replay, make_projection, make_rebuilder, make_schema, rows_of
from tests.fix_threads import wait_until
from tests.integration.hazards.schedule import NAME, PATIENT, Moments, deposit

# --- M1: the second connection never waits for the first -------------------------------------------------------------


@pytest.mark.parametrize("point", ["drain", "finalize", "before commit"])
def test_the_heartbeat_goes_on_while_the_fence_is_held(dsn, watcher, point):
    """PostgreSQL can't see a deadlock between our two connections: the second writes progress only (hazard M1)."""
    rebuilder = make_rebuilder(dsn, settings={**PATIENT, "heartbeat": 0.05})

    def beats():
        return watcher.execute("SELECT heartbeat_at, phase FROM rebuilder.ticket_progress").fetchone()

    def two_beats(run):
        for _ in range(2):
            last = beats()
            wait_until(lambda last=last: beats() != last, what="a heartbeat")
        assert beats()[1] == (point if point != "before commit" else "finalize")

    moments = Moments(rebuilder)
    moments.at(point, two_beats)
    rebuilder.rebuild(NAME)
    assert moments.count(point) == 1


def test_a_write_that_does_wait_for_main_ends_with_its_own_lock_timeout(dsn, watcher):
    """The ticket is completed by the main transaction: whoever of us touches it meanwhile must not hang (M1)."""
    rebuilder = make_rebuilder(dsn, settings={**PATIENT, "lock_timeout_ms": 50})

    def touch_the_ticket(run):
        with pytest.raises(NotNow):
            run.ledger.close(run.ticket, RuntimeError("never said"), {})

    moments = Moments(rebuilder)
    moments.at("before commit", touch_the_ticket)
    rebuilder.rebuild(NAME)
    assert moments.count("before commit") == 1
    assert rebuilder.tickets()[0].stage is Stage.COMPLETED


# --- M2: the state row -----------------------------------------------------------------------------------------------


def test_others_see_the_first_run_ever_and_need_not_wait_for_its_end(dsn, watcher):
    """State row and ticket are committed before the main transaction begins its work (hazard M2)."""
    rebuilder, other = make_rebuilder(dsn), make_rebuilder(dsn)
    seen = []

    def look(run):
        seen.append(watcher.execute("SELECT projection, generation FROM rebuilder.projection_state").fetchall())
        seen.append([(t.stage, t.id) for t in other.tickets()])
        with pytest.raises(RebuildInProgress) as caught:
            other.rebuild(NAME)
        assert caught.value.ticket == str(run.ticket)
        watcher.execute("SET lock_timeout = '100ms'")
        watcher.execute("INSERT INTO rebuilder.projection_state (scope, projection) VALUES ('', %s)"
                        " ON CONFLICT DO NOTHING", (NAME,))
        seen.append(run.ticket)

    Moments(rebuilder).at("catch up", look)
    rebuilder.rebuild(NAME)
    assert seen == [[(NAME, 0)], [(Stage.RUNNING, seen[2])], seen[2]]


def test_a_failure_of_the_first_run_ever_is_recorded(dsn, watcher):
    """There is a row to record it in, outside the transaction that was rolled back (hazard M2)."""
    def veto(ticket):
        raise HookVetoed("not today")

    rebuilder = make_rebuilder(dsn, hooks={"before_fence": veto})
    with pytest.raises(HookVetoed):
        rebuilder.rebuild(NAME)
    (state,) = rebuilder.status(NAME)
    assert "not today" in state.last_failure
    assert rebuilder.tickets()[0].stage is Stage.FAILED


# --- M14: advisory keys ----------------------------------------------------------------------------------------------


def test_two_rebuilds_of_one_table_exclude_each_other_by_its_name_also_across_a_swap(dsn, watcher, spawn, monkeypatch):
    """Three projections fill one table. The first swaps it between the second's look at its name and its lock: a key
    made of the OID would be that of the retired table, and the third would not meet it (hazard M14).
    """
    first, second, third = (make_rebuilder(dsn, make_projection(name)) for name in ("first", "second", "third"))
    fenced, go_on, swapped, refused = threading.Event(), threading.Event(), [], []
    key = state_lock.advisory_key

    def refuses(other, name):
        with pytest.raises(RebuildInProgress, match="account_balance is being rebuilt"):
            other.rebuild(name)
        refused.append(name)

    def the_first_swaps_now(schema, table):
        monkeypatch.setattr(state_lock, "advisory_key", key)
        go_on.set()
        swapped.append(running.result(20))
        return key(schema, table)

    Moments(first).at("before commit", lambda run: (fenced.set(), go_on.wait(20)))
    Moments(second).at("before commit", lambda run: refuses(third, "third"))
    running = spawn(first.rebuild, "first")
    assert fenced.wait(20)
    refuses(second, "second")  # tried, never waited for
    monkeypatch.setattr(state_lock, "advisory_key", the_first_swaps_now)
    second.rebuild("second")
    assert len(swapped) == 1
    assert refused == ["second", "third"]
    assert_equal_to_replay(watcher)


# --- R2(b): the server behind a connection ---------------------------------------------------------------------------


@pytest.fixture
def two_servers(private_server, proxy, connect, dsn, watcher):
    """A door before the test's database that can be made to lead to another server, which has the same tables."""
    other = private_server(durable=False)
    connect(other.dsn, autocommit=True).execute(f"CREATE DATABASE {watcher.info.dbname}")
    elsewhere = make_conninfo(other.dsn, dbname=watcher.info.dbname)
    install(elsewhere)
    make_schema(connect(elsewhere, autocommit=True))
    return proxy(dsn), conninfo_to_dict(elsewhere)


def test_a_connection_that_reaches_another_server_ends_the_run(dsn, watcher, two_servers):
    """As load_balance_hosts or a proxy may send it: pages of a lagging server would look complete (hazard R2)."""
    door, elsewhere = two_servers
    dial = door._dial

    def third_goes_elsewhere():
        door._target = elsewhere if door.accepted == 2 else conninfo_to_dict(dsn)
        return dial()

    door._dial = third_goes_elsewhere
    before = rows_of(watcher)
    with pytest.raises(UnsupportedServer, match="reached another server"):
        make_rebuilder(door.dsn).rebuild(NAME)
    assert door.accepted >= 3
    assert rows_of(watcher) == before


def test_a_reader_that_was_lost_proves_its_server_again(dsn, watcher, two_servers):
    """After a reconnect too: nothing that a later page lacks would be missed by any check there (hazard R2)."""
    door, elsewhere = two_servers
    rebuilder = make_rebuilder(door.dsn)

    def lose_the_reader(run):
        run.reader.close()
        door._target = elsewhere
        deposit(watcher, rebuilder)

    Moments(rebuilder).at("freeze", lose_the_reader)
    with pytest.raises(UnsupportedServer, match="reached another server"):
        rebuilder.rebuild(NAME)


def test_a_reader_that_was_lost_and_finds_its_server_again_goes_on(dsn, watcher):
    """It holds no state, so its loss costs nothing."""
    rebuilder = make_rebuilder(dsn)
    readers = []

    def lose_the_reader(run):
        readers.append(run.reader.info.backend_pid)
        run.reader.close()
        deposit(watcher, rebuilder)

    moments = Moments(rebuilder)
    moments.at("freeze", lose_the_reader)
    moments.at("before commit", lambda run: readers.append(run.reader.info.backend_pid))
    rebuilder.rebuild(NAME)
    assert readers[0] != readers[1]
    assert_equal_to_replay(watcher)
