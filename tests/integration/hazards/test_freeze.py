"""The frozen copy: hazards M6, M7, H10, and the LOW ones that touch it (row security, generated columns, wal_level)."""

import pytest
from psycopg import errors as pg
from psycopg import sql

from rebuilder import Quarantine, SqlHandlers
from rebuilder.engine.plan_text import plan_text
from rebuilder.errors import MissingPrivilege, RebuilderError
from rebuilder.store.install import install
from tests.bank import append, assert_equal_to_replay, make_handlers, make_projection, make_rebuilder, make_schema
from tests.integration.hazards.schedule import NAME, Moments, deposit, main_pid, open_accounts, subtransactions

# --- M6: indexes -----------------------------------------------------------------------------------------------------


def test_the_indexes_of_the_new_table_are_used_at_once(dsn, connect, watcher):
    """Built after an update they are unusable until every older transaction has ended; right after COPY they are not
    (hazard M6).
    """
    watcher.execute("CREATE INDEX by_balance ON account_balance (balance)")
    only = "SELECT bool_or(indcheckxmin) FROM pg_index WHERE indrelid = '{}'::regclass"
    naive = connect()
    naive.execute("CREATE TABLE naive (id int PRIMARY KEY, n int); INSERT INTO naive VALUES (1, 1)")
    naive.execute("UPDATE naive SET n = 2; CREATE INDEX ON naive (n)")
    assert naive.execute(only.format("naive")).fetchone() == (True,)
    naive.rollback()

    for _ in range(5):  # updates of one row, before and after the freeze
        deposit(watcher, None, "a1", 1)
    rebuilder = make_rebuilder(dsn)
    Moments(rebuilder).at("fence", lambda run: deposit(watcher, rebuilder, "a1", 1))
    rebuilder.rebuild(NAME)
    assert watcher.execute(only.format("account_balance")).fetchone() == (False,)
    assert watcher.execute("SELECT count(*) FROM pg_index WHERE indrelid = 'account_balance'::regclass"
                           " AND indisvalid").fetchone() == (2,)
    assert_equal_to_replay(watcher)


# --- M7: deferred constraints ----------------------------------------------------------------------------------------


def placing_handlers():
    """The bank's, and one that exchanges the places of two accounts: each UPDATE alone breaks the unique constraint."""
    inner, handlers = make_handlers(), SqlHandlers()

    @handlers.on(*inner.types)
    def handler(event, target):
        inner.handler(event.type)(event, target)

    @handlers.on("Placed")
    def placed(event, target):
        target.execute("UPDATE account_balance SET place = %s WHERE id = %s", (event.data["place"], event.stream))

    @handlers.on("Exchanged")
    def exchanged(event, target):
        for stream, place in event.data.items():
            target.execute("UPDATE account_balance SET place = %s WHERE id = %s", (place, stream))

    return handlers


@pytest.fixture
def places(dsn, watcher):
    watcher.execute("ALTER TABLE account_balance ADD place int, ADD CONSTRAINT one_each UNIQUE (place)"
                    " DEFERRABLE INITIALLY DEFERRED")
    rebuilder = make_rebuilder(dsn, make_projection(handlers=placing_handlers()))
    for n in (1, 2, 3):
        append(watcher, f"a{n}", "Placed", {"place": n}, live=rebuilder)
    append(watcher, "a1", "Exchanged", {"a1": 2, "a2": 1}, live=rebuilder)
    return rebuilder


def the_places(watcher):
    return watcher.execute("SELECT id, place FROM account_balance ORDER BY place").fetchall()


def test_deferred_checks_may_be_pending_at_the_freeze_and_before_the_swap(dsn, connect, watcher, places):
    """Pending trigger events forbid TRUNCATE, DROP and ALTER TABLE (55006): they are settled first (hazard M7)."""
    naive = connect()
    naive.execute("UPDATE account_balance SET place = 1 WHERE id = 'a1'")
    with pytest.raises(pg.ObjectInUse):
        naive.execute("TRUNCATE account_balance")
    naive.rollback()
    Moments(places).at("fence", lambda run: append(
        watcher, "a1", "Exchanged", {"a2": 3, "a3": 1}, live=places))  # drained: pending when the swap begins
    report = places.rebuild(NAME)
    assert report.drift.total == 0
    assert the_places(watcher) == [("a3", 1), ("a1", 2), ("a2", 3)]
    assert watcher.execute("SELECT condeferred FROM pg_constraint WHERE conname = 'one_each'").fetchone() == (True,)


def test_a_deferred_check_that_fails_ends_the_run_before_the_swap_and_not_in_the_commit(dsn, watcher, places):
    """What deferred constraints say is asked before anything is moved; live is as it was (hazard M7)."""
    moments = Moments(places)
    moments.at("fence", lambda run: append(watcher, "a1", "Placed", {"place": 1}))  # a2's, and nobody moves
    moments.at("before commit", lambda run: None)
    before = the_places(watcher)
    with pytest.raises(RebuilderError, match="one_each"):
        places.rebuild(NAME)
    assert moments.count("before commit") == 0
    assert the_places(watcher) == before


# --- H10: savepoints under quarantine --------------------------------------------------------------------------------


@pytest.mark.pg(">= 16")
def test_savepoints_of_released_batches_overflow_the_cache_after_64(connect, watcher):
    """The naive version: one savepoint per batch slows the whole cluster down to the end of the run (hazard H10)."""
    naive = connect()
    for n in range(70):
        naive.execute("SAVEPOINT batch")
        naive.execute("INSERT INTO account_balance VALUES (%s, 'x', 0, 1)", (f"n{n}",))
        naive.execute("RELEASE batch")
    assert subtransactions(watcher, naive.info.backend_pid) == (64, True)


@pytest.mark.pg(">= 16")
@pytest.mark.parametrize("poison", [0, 3])
def test_a_run_of_hundreds_of_batches_under_quarantine_overflows_nothing(dsn, watcher, rng, seed, poison):
    """Later savepoints span more batches, and bisecting replays them: what is set aside is the same (hazard H10)."""
    print(f"seed {seed}")
    batch = rng.randint(1, 10)
    watcher.execute("ALTER TABLE account_balance ADD CHECK (balance < 1000000)")
    for account in range(200 * batch // 20):
        append(watcher, f"b{account}", "AccountOpened", {"owner": "x"})
    watcher.execute("INSERT INTO events (stream, type, data) SELECT 'b' || g %% greatest(1, %s), 'Deposited',"
                    " '{\"amount\": 1}' FROM generate_series(1, %s) g", (200 * batch // 20, 200 * batch))
    streams = rng.sample([f"b{n}" for n in range(200 * batch // 20)], min(poison, 200 * batch // 20))
    for stream in streams:
        deposit(watcher, None, stream, 2_000_000)
        deposit(watcher, None, stream, 1)  # follows: set aside too
    rebuilder, seen = make_rebuilder(dsn, settings={"batch": batch}), []
    Moments(rebuilder).at("before commit", lambda run: seen.append(subtransactions(watcher, main_pid(run))))
    report = rebuilder.rebuild(NAME, quarantine=Quarantine())
    ((count, overflowed),) = seen
    assert not overflowed
    assert 0 < count <= 60
    assert report.dead_letters == 2 * len(streams)
    watcher.execute("DELETE FROM events WHERE (data ->> 'amount')::int = 2000000 OR stream = ANY (%s)"
                    " AND id > (SELECT min(id) FROM events WHERE (data ->> 'amount')::int = 2000000)", (streams,))
    assert_equal_to_replay(watcher)


# --- LOW -------------------------------------------------------------------------------------------------------------


def test_generated_columns_are_left_out_of_the_copy_and_computed_anew(dsn, watcher):
    """COPY (SELECT *) of such a table can't be read back (22P04)."""
    watcher.execute("ALTER TABLE account_balance ADD double bigint GENERATED ALWAYS AS (balance * 2) STORED")
    make_rebuilder(dsn).rebuild(NAME)
    assert watcher.execute("SELECT count(*) FROM account_balance WHERE double = balance * 2").fetchone() == (3,)
    assert_equal_to_replay(watcher)


@pytest.mark.pg(">= 18")
def test_virtual_columns_too(dsn, watcher):
    """They have nothing that could be copied."""
    watcher.execute("ALTER TABLE account_balance ADD double bigint GENERATED ALWAYS AS (balance * 2) VIRTUAL")
    make_rebuilder(dsn).rebuild(NAME)
    assert watcher.execute("SELECT count(*) FROM account_balance WHERE double = balance * 2").fetchone() == (3,)


def test_row_security_that_binds_the_owner_is_refused_before_the_replay_and_else_kept(connect, bare_dsn, role):
    """FORCE ROW LEVEL SECURITY: whom it binds may neither COPY FREEZE (0A000) nor compare with live (42501)."""
    owner = role(hint="owner")
    admin = connect(bare_dsn, autocommit=True)
    name = sql.Identifier(owner.name)
    admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(admin.info.dbname), name))
    admin.execute(sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(name))
    dsn = owner.dsn(bare_dsn)
    install(dsn)
    connection = connect(dsn, autocommit=True)
    make_schema(connection)
    rebuilder = make_rebuilder(dsn)
    open_accounts(connection, rebuilder)
    connection.execute("ALTER TABLE account_balance ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
                       "CREATE POLICY all_of_it ON account_balance USING (true)")
    moments = Moments(rebuilder)
    moments.at("catch up", lambda run: None, nth=0)
    with pytest.raises(MissingPrivilege, match=r"hides rows of public\.account_balance") as caught:
        rebuilder.rebuild(NAME)
    assert (moments.count("catch up"), caught.value.hint) == (0, f'ALTER ROLE "{owner.name}" BYPASSRLS')
    assert [refused["error"] for refused in rebuilder.plan(NAME).refused] == ["privilege"]

    admin.execute(sql.SQL("ALTER ROLE {} BYPASSRLS").format(name))
    rebuilder.rebuild(NAME)
    assert connection.execute("SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid ="
                              " 'account_balance'::regclass").fetchone() == (True, True)
    assert_equal_to_replay(connection)


def test_the_plan_says_how_old_the_last_freeze_may_be(dsn, watcher):
    """That is what an old snapshot that waited on the fence sees: part of the price (hazard M4)."""
    plan = make_rebuilder(dsn, settings={"freeze_age": 17.0}).plan(NAME)
    assert plan.price.freeze_age_seconds == 17.0
    assert "at most 17 s old" in plan_text(plan)


def test_the_plan_says_what_wal_level_minimal_costs_and_the_rebuild_works_there(private_server, connect):
    """COMMIT syncs the whole new table under the fence then (65 ms for 148 MB): part of the price."""
    server = private_server(durable=False, wal_level="minimal", max_wal_senders="0")
    install(server.dsn)
    connection = connect(server.dsn, autocommit=True)
    make_schema(connection)
    rebuilder = make_rebuilder(server.dsn)
    open_accounts(connection, rebuilder)
    plan = rebuilder.plan(NAME)
    assert plan.price.wal_level == "minimal"
    assert "wal_level is minimal: COMMIT syncs the whole table under the fence" in plan_text(plan)
    rebuilder.rebuild(NAME)
    server.crash()
    server.start()
    assert_equal_to_replay(connect(server.dsn, autocommit=True))
